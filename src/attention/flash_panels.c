/* The kernels "panels" and "amx" of flash_attention: products of panels (flash_panel.h) on blocks
 * of queries (flash_blocks.h), by AVX512_BF16 or AMX. Scores lie by rows of keys, queries along the
 * lanes, so that the maximum and sum of a query need no sum across a vector and probabilities come
 * out as the panels that the second product reads:
 *
 *   s = k q^T,  o^T = o^T alpha + v^T p
 *
 * Numerics: as of "blocks" (flash_blocks.c); products sum over pairs in ascending order. */
#include "flash_blocks.h"

#include "../op/rows.h"

typedef struct State {
    Blocks s;
    int *status; /* of each slot, 0 */
} State;

/* A slot's: rows of q; its panels of q^T; a head's keys, and v^T by blocks of keys; scores of a
 * block and the panels of p; o^T and o; of each row the maximum, the sum, alpha and the
 * log-sum-exp; rows of a unit of values, and their panels. */
typedef struct Work {
    uint16_t *q, *k, *v_t, *unit;
    uint32_t *q_t, *p, *turned;
    float *s, *o_t, *o, *top, *sum, *alpha, *lse;
} Work;

static uint16_t *take_halves(char *work, int64_t *at, int64_t n)
{
    return (uint16_t *)(void *)blocks_take(work, at, 2 * n);
}

static uint32_t *take_words(char *work, int64_t *at, int64_t n)
{
    return (uint32_t *)(void *)blocks_take(work, at, 4 * n);
}

static float *take_floats(char *work, int64_t *at, int64_t n)
{
    return (float *)(void *)blocks_take(work, at, 4 * n);
}

static Work work_of(const Blocks *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->size;
    Work w;
    *nbytes = 0;
    w.q = take_halves(work, nbytes, s->rows * size);
    w.k = take_halves(work, nbytes, s->padded * size);
    w.v_t = take_halves(work, nbytes, (s->padded + keys - 1) / keys * keys * size);
    w.unit = take_halves(work, nbytes, s->unit * size);
    w.q_t = take_words(work, nbytes, s->rows * size / 2);
    w.p = take_words(work, nbytes, s->rows * keys / 2);
    w.turned = take_words(work, nbytes, s->unit * size / 2);
    w.s = take_floats(work, nbytes, s->rows * keys);
    w.o_t = take_floats(work, nbytes, s->rows * size);
    w.o = take_floats(work, nbytes, s->rows * size);
    w.top = take_floats(work, nbytes, s->rows);
    w.sum = take_floats(work, nbytes, s->rows);
    w.alpha = take_floats(work, nbytes, s->rows);
    w.lse = take_floats(work, nbytes, s->rows);
    return w;
}

static Blocks sizes(const Call *c, BlocksBy by)
{
    Blocks s = blocks_of(c, 0, by);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

static int64_t workspace(const Call *c, BlocksBy by)
{
    Blocks s = sizes(c, by);
    return s.nslot * s.nbytes;
}

static void prepare(Call *c, Arena *a, BlocksBy by)
{
    State *x = c->state = NEW(a, State);
    x->s = sizes(c, by);
    x->status = NEWN(a, int, x->s.nslot);
}

bool flash_panels_accepts(const Call *c)
{
    return panel_has() && c->in[0].dtype == BF16 && blocks_accept(c, 0, 3);
}

int64_t flash_panels_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return workspace(c, BLOCKS_VECTORS);
}

void flash_panels_prepare(Call *c, Arena *a)
{
    prepare(c, a, BLOCKS_VECTORS);
}

bool flash_amx_accepts(const Call *c)
{
    return amx_has() && c->in[0].dtype == BF16 && blocks_accept(c, 0, 3);
}

int64_t flash_amx_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return workspace(c, BLOCKS_AMX);
}

void flash_amx_prepare(Call *c, Arena *a)
{
    prepare(c, a, BLOCKS_AMX);
}

/* ---- softmax along the lanes ---- */

/* Of a panel's queries: p = 2^(scale (s - top)) of `width` keys, rows of s `rows` floats apart,
 * into its panel; the new top and sum, and the factor alpha that brings what was summed before to
 * that top. */
KERNEL_FMA(void, softmax,
           (uint32_t * p, const Work *w, int64_t first, int64_t rows, int64_t width, float scale),
           (p, w, first, rows, width, scale))
{
    const float *s = w->s + first;
    float most[PANEL], base[PANEL], sum[PANEL] = {0};
    for (int l = 0; l < PANEL; l++)
        most[l] = s[l];
    for (int64_t i = 1; i < width; i++)
        for (int l = 0; l < PANEL; l++)
            most[l] = MAX(most[l], s[i * rows + l]);
    for (int l = 0; l < PANEL; l++) {
        float top = MAX(w->top[first + l], most[l]);
        base[l] = top == -INFINITY ? 0.0f : top; /* nothing seen yet: 2^(-inf - 0) */
        w->alpha[first + l] = tile_exp2(scale * (w->top[first + l] - base[l]));
        w->top[first + l] = top;
    }
    for (int64_t i = 0; i < width; i += 2, p += PANEL) {
        const float *low = s + i * rows, *high = low + rows;
        INDEPENDENT
        for (int l = 0; l < PANEL; l++) {
            float p0 = tile_exp2(scale * (low[l] - base[l]));
            float p1 = tile_exp2(scale * (high[l] - base[l]));
            sum[l] += p0 + p1;
            p[l] = tile_half(p0) | (uint32_t)tile_half(p1) << 16;
        }
    }
    for (int l = 0; l < PANEL; l++)
        w->sum[first + l] = w->sum[first + l] * w->alpha[first + l] + sum[l];
}

/* o^T by its sums, and the log-sum-exp. */
KERNEL(void, divide, (const Work *w, int64_t size, int64_t rows, float scale),
       (w, size, rows, scale))
{
    for (int64_t i = 0; i < rows; i++) {
        float sum = w->sum[i];
        w->alpha[i] = sum == 0 ? 0.0f : 1.0f / sum; /* 0: sees nothing */
        w->lse[i] = sum == 0 ? INFINITY : scale * w->top[i] + v_log(sum);
    }
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < rows; i++)
            w->o_t[d * rows + i] *= w->alpha[i];
}

/* ---- a block ---- */

/* Block i of queries of the group of heads that read key head `head`. */
typedef struct Job {
    const Call *c;
    const Blocks *s;
    const Work *w;
    int64_t b, head, i;
} Job;

static void load_queries(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    blocks_load(s, &j->c->in[0], j->b, j->head, j->i, (char *)w->q);
    blocks_turn(s, (char *)w->q);
    panel_turn(w->q_t, w->q, s->rows, s->size);
    for (int64_t r = 0; r < s->rows; r++) {
        w->top[r] = -INFINITY;
        w->sum[r] = 0;
    }
}

/* Scores of keys [key, key + nkeys), of `width` with padding, and the rows from `blind` on: the
 * mask is added, what is not seen is -inf. */
static void mask(const Job *j, int64_t key, int64_t nkeys, int64_t width, int64_t blind)
{
    const Blocks *s = j->s;
    const Tensor *add = flash_mask(j->c, 3);
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    for (int64_t r = blind; r < n && add; r++)
        flash_add_mask(add, j->w->s + r, s->rows, (float)s->f.above, j->b,
                       j->head * group + r % group, query + r / group, key, nkeys);
    for (int64_t i = 0; i < width; i++) {
        int64_t end = i < nkeys ? blocks_unseen(s, j->i, key + i) : s->rows;
        for (int64_t r = blind; r < end; r++)
            j->w->s[i * s->rows + r] = -INFINITY;
    }
}

/* The block against keys [key, key + nkeys), of the rows that see any. */
static void keys(const Job *j, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t width = blocks_units(s, nkeys) * s->unit, size = s->size, most = s->steps * s->unit;
    int64_t blind = blocks_unseen(s, j->i, key) / PANEL * PANEL, apart = width * PANEL / 2;
    float scale = blocks_above(s, flash_mask(j->c, 3)) * BLOCKS_LOG2E;
    PanelProduct x = {.c = w->s + blind,
                      .a = w->k + key * size,
                      .b = w->q_t + blind * size / 2,
                      .ldc = s->rows,
                      .lda = size,
                      .apart = size * PANEL / 2,
                      .m = width,
                      .n = s->rows - blind,
                      .k = size};
    blocks_multiply(s, &x);
    mask(j, key, nkeys, width, blind);
    for (int64_t r = blind; r < s->rows; r += PANEL)
        softmax(w->p + r / PANEL * apart, w, r, s->rows, width, scale);
    x = (PanelProduct){.c = w->o_t + blind,
                       .a = w->v_t + key / most * most * size + key % most,
                       .b = w->p + blind / PANEL * apart,
                       .alpha = w->alpha + blind,
                       .ldc = s->rows,
                       .lda = most,
                       .apart = apart,
                       .m = size,
                       .n = s->rows - blind,
                       .k = width,
                       .into = key ? TILE_SCALE : TILE_SET};
    blocks_multiply(s, &x);
}

static void store(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *o = &j->c->out[0], *lse = &j->c->out[1];
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    divide(w, s->size, s->rows, blocks_above(s, flash_mask(j->c, 3)));
    tile_transpose(w->o, s->size, s->size, w->o_t, s->rows, s->size, n, 1);
    for (int64_t r = 0; r < n; r++) {
        int64_t t = query + r / group, h = j->head * group + r % group;
        blocks_put(s, o, j->b, t, h, w->o + r * s->size);
        f32(lse)[tensor_index(lse, (int64_t[]){j->b, h, t})] = w->lse[r];
    }
}

static void block(const Job *j)
{
    int64_t seen = blocks_seen(j->s, j->i), n;
    load_queries(j);
    for (int64_t key = 0; key < seen; key += n) {
        n = blocks_keys(j->s, j->i, key);
        keys(j, key, n);
    }
    store(j);
}

/* The first n keys of a head, and v^T of them block by block. */
static void load_keys(const Job *j, int64_t n)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *k = &j->c->in[1], *v = &j->c->in[2];
    int64_t most = s->steps * s->unit;
    blocks_load_keys(s, k, j->b, j->head, n, (char *)w->k);
    for (int64_t u = 0, key = 0; u < blocks_units(s, n); u++, key += s->unit) {
        blocks_load_unit(s, v, j->b, j->head, n, u, (char *)w->unit);
        panel_turn(w->turned, w->unit, s->unit, s->size);
        panel_transpose(w->v_t + key / most * most * s->size + key % most, most, w->turned, s->unit,
                        s->size);
    }
}

static int task(const Call *c, int64_t slot, int64_t i)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts, nbytes;
    Work w = work_of(s, c->work + slot * s->nbytes, &nbytes);
    Job j = {c, s, &w, .b = unit / heads, .head = unit % heads};
    load_keys(&j, blocks_seen(s, s->count - 1));
    for (j.i = 0; j.i < s->count; j.i++)
        if (blocks_deal(s, j.i, i % s->parts))
            block(&j);
    return 0;
}

int flash_panels_run(Call *c)
{
    State *x = c->state;
    if (flash_place(c, &x->s.f))
        return -1;
    return blocks_run(c, &x->s, x->status, task);
}
