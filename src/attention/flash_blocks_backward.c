/* The kernels "blocks", "panels" and "amx" of flash_attention_backward: products of blocks of
 * queries (flash_blocks.h), the method otherwise that of tiles (flash_backward.c). Scores lie by
 * rows of keys, queries along the lanes, so that four of the five products read p and ds as they
 * lie:
 *
 *   s = k q^T,  dp = v do^T,  dk += ds q,  dv += p do,  dq += ds^T k
 *
 * of which panels form dq^T += k^T ds.
 *
 * Order: a task walks its blocks of queries one after the other and adds to sums of dk and dv of
 * its own, in f32 in the workspace; those of a key head's tasks are added in order. How many tasks
 * a key head has follows from the sizes alone. */
#include "flash_blocks.h"

#include "../op/rows.h"

enum { SCORES, KEYS, QUERIES, PRODUCTS };

/* ---- products and workspace ---- */

typedef struct State {
    Blocks s;
    OneRun **run;
    int *status;        /* of each slot's products */
    int64_t sums, nsum; /* where sums of dk and dv begin in the workspace; floats of one of them */
} State;

/* A slot's: q and do[rows][size], a head's keys and values, scores and dp of a block and, of bf16,
 * p and ds; dq in f32; log-sum-exp and rowsum(do o) of each row. By panels also those of q^T, do^T,
 * q, do and ds, k^T by blocks of keys, and dq^T. */
typedef struct Work {
    char *q, *grad, *k, *v, *p, *ds, *scratch;
    float *s, *dp, *dq, *lse, *delta, *dq_t;
    uint32_t *q_t, *grad_t, *q_pairs, *grad_pairs, *ds_pairs;
    uint16_t *k_t;
} Work;

static uint32_t *take_words(char *work, int64_t *nbytes, int64_t n)
{
    return (uint32_t *)(void *)blocks_take(work, nbytes, 4 * n);
}

static void take_panels(const Blocks *s, Work *w, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, words = s->rows * s->size / 2;
    w->q_t = take_words(work, nbytes, words);
    w->grad_t = take_words(work, nbytes, words);
    w->q_pairs = take_words(work, nbytes, words);
    w->grad_pairs = take_words(work, nbytes, words);
    w->ds_pairs = take_words(work, nbytes, s->rows * keys / 2);
    w->dq_t = (float *)(void *)blocks_take(work, nbytes, s->rows * s->size * 4);
    w->k_t = (uint16_t *)(void *)blocks_take(
        work, nbytes, (s->padded + keys - 1) / keys * keys * s->size * (int64_t)sizeof *w->k_t);
}

static Work work_of(const Blocks *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->size, width = blocks_width(s);
    bool f32s = s->dtype == F32;
    Work w = {0};
    *nbytes = 0;
    w.q = blocks_take(work, nbytes, s->rows * size * width);
    w.grad = blocks_take(work, nbytes, s->rows * size * width);
    w.k = blocks_take(work, nbytes, s->padded * size * width);
    w.v = blocks_take(work, nbytes, s->padded * size * width);
    w.s = (float *)(void *)blocks_take(work, nbytes, s->rows * keys * 4);
    w.dp = (float *)(void *)blocks_take(work, nbytes, s->rows * keys * 4);
    w.p = f32s ? (char *)w.s : blocks_take(work, nbytes, s->rows * keys * width);
    w.ds = f32s ? (char *)w.dp : blocks_take(work, nbytes, s->rows * keys * width);
    w.dq = (float *)(void *)blocks_take(work, nbytes, s->rows * size * 4);
    w.lse = (float *)(void *)blocks_take(work, nbytes, s->rows * 4);
    w.delta = (float *)(void *)blocks_take(work, nbytes, s->rows * 4);
    w.scratch = blocks_take(work, nbytes, s->scratch);
    if (s->by != BLOCKS_LIBRARY)
        take_panels(s, &w, work, nbytes);
    return w;
}

static OneProduct describe(const Blocks *s, int which, int64_t nkeys)
{
    DType d = s->dtype;
    int64_t rows = s->rows, size = s->size;
    OneProduct p = {.adds = which != SCORES, .alone = true};
    p.a = blocks_dense(d, nkeys, which == SCORES ? size : rows, false);
    p.b = blocks_dense(d, rows, size, false);
    p.y = blocks_dense(F32, nkeys, which == SCORES ? rows : size, false);
    if (which == SCORES)
        p.b = blocks_dense(d, size, rows, true);
    if (which == QUERIES) {
        p.a = blocks_dense(d, rows, nkeys, true);
        p.b = blocks_dense(d, nkeys, size, false);
        p.y = blocks_dense(F32, rows, size, false);
    }
    return p;
}

static Blocks sizes(Ctx *ctx, const Call *c, BlocksBy by)
{
    Blocks s = blocks_of(c, Q, by);
    blocks_scratch(ctx, c->node, &s, describe, PRODUCTS);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

/* Pairs of sums: of each task, or of each slot where a key head has one task. */
static int64_t nsums(const Blocks *s)
{
    return s->parts == 1 ? s->nslot : s->ntask;
}

static int64_t workspace(Ctx *ctx, const Call *c, BlocksBy by)
{
    Blocks s = sizes(ctx, c, by);
    return s.nslot * s.nbytes + 2 * nsums(&s) * s.padded * s.size * (int64_t)sizeof(float);
}

static void prepare(Call *c, Arena *a, BlocksBy by)
{
    State *x = c->state = NEW(a, State);
    x->s = sizes(arena_ctx(a), c, by);
    x->sums = x->s.nslot * x->s.nbytes;
    x->nsum = x->s.padded * x->s.size;
    x->run = blocks_make(a, c->node, &x->s, describe, PRODUCTS);
    x->status = NEWN(a, int, x->s.nslot);
}

bool flash_blocks_backward_accepts(const Call *c)
{
    return matmul_fast(c->in[Q].dtype) && blocks_accept(c, Q, 5);
}

int64_t flash_blocks_backward_workspace(Ctx *ctx, const Call *c)
{
    return workspace(ctx, c, BLOCKS_LIBRARY);
}

int64_t flash_blocks_backward_handles(const Call *c)
{
    Blocks s = blocks_of(c, Q, BLOCKS_LIBRARY);
    return blocks_handles(&s, PRODUCTS);
}

void flash_blocks_backward_prepare(Call *c, Arena *a)
{
    prepare(c, a, BLOCKS_LIBRARY);
}

bool flash_panels_backward_accepts(const Call *c)
{
    return panel_has() && c->in[Q].dtype == BF16 && blocks_accept(c, Q, 5);
}

int64_t flash_panels_backward_workspace(Ctx *ctx, const Call *c)
{
    return workspace(ctx, c, BLOCKS_VECTORS);
}

void flash_panels_backward_prepare(Call *c, Arena *a)
{
    prepare(c, a, BLOCKS_VECTORS);
}

bool flash_amx_backward_accepts(const Call *c)
{
    return amx_has() && c->in[Q].dtype == BF16 && blocks_accept(c, Q, 5);
}

int64_t flash_amx_backward_workspace(Ctx *ctx, const Call *c)
{
    return workspace(ctx, c, BLOCKS_AMX);
}

void flash_amx_backward_prepare(Call *c, Arena *a)
{
    prepare(c, a, BLOCKS_AMX);
}

/* ---- rows ---- */

INLINE float dot(const char *x, const char *y, int64_t n, DType d)
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, sum[lane] += v_load(x, i, d) * v_load(y, i, d));
    return lanes_sum(sum);
}

KERNEL_FMA(float, dot_f32, (const char *x, const char *y, int64_t n), (x, y, n))
{
    return dot(x, y, n, F32);
}

KERNEL_FMA(float, dot_bf16, (const char *x, const char *y, int64_t n), (x, y, n))
{
    return dot(x, y, n, BF16);
}

/* p and ds of a key and `n` rows, from scores and dp. */
INLINE void grads(const Work *w, int64_t at, int64_t n, int64_t from, float scale, float factor,
                  bool narrow)
{
    const float *s = w->s + at, *dp = w->dp + at;
    float *p_wide = w->s + at, *ds_wide = w->dp + at;
    uint16_t *p_half = (uint16_t *)(void *)w->p + at, *ds_half = (uint16_t *)(void *)w->ds + at;
    INDEPENDENT
    for (int64_t i = from; i < n; i++) {
        float x = s[i] * scale - w->lse[i];
        float p = narrow ? tile_exp2(x * BLOCKS_LOG2E) : tile_exp(x);
        float ds = p * (dp[i] - w->delta[i]) * factor;
        if (narrow) {
            p_half[i] = tile_half(p);
            ds_half[i] = tile_half(ds);
        } else {
            p_wide[i] = p;
            ds_wide[i] = ds;
        }
    }
}

KERNEL_FMA(void, grads_f32,
           (const Work *w, int64_t at, int64_t n, int64_t from, float scale, float factor),
           (w, at, n, from, scale, factor))
{
    grads(w, at, n, from, scale, factor, false);
}

KERNEL_FMA(void, grads_bf16,
           (const Work *w, int64_t at, int64_t n, int64_t from, float scale, float factor),
           (w, at, n, from, scale, factor))
{
    grads(w, at, n, from, scale, factor, true);
}

KERNEL(void, add_row, (float *restrict y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* ---- a block ---- */

/* Block i of queries of the group of heads that read key head `head`; the task's sums. */
typedef struct Job {
    const Call *c;
    const Blocks *s;
    const Work *w;
    OneRun **run;
    float *dk, *dv;
    int64_t b, head, i;
} Job;

static void make_panels(const Blocks *s, const Work *w)
{
    const char *rows[] = {w->q, w->grad};
    uint32_t *turned[] = {w->q_t, w->grad_t}, *pairs[] = {w->q_pairs, w->grad_pairs};
    for (int i = 0; i < 2; i++) {
        const uint16_t *from = (const uint16_t *)(const void *)rows[i];
        panel_turn(turned[i], from, s->rows, s->size);
        panel_pairs(pairs[i], s->rows * PANEL / 2, from, s->size, s->rows, s->size);
    }
}

/* The block's rows of q and do, and what each row has one of. Rows behind are of no weight. */
static void load(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *x = j->c->in, *lse = &x[LSE];
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    int64_t nbytes = s->size * blocks_width(s);
    blocks_load(s, &x[Q], j->b, j->head, j->i, w->q);
    blocks_load(s, &x[DO], j->b, j->head, j->i, w->grad);
    if (s->by != BLOCKS_LIBRARY)
        make_panels(s, w);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t t = query + r / group, h = j->head * group + r % group;
        w->lse[r] = INFINITY;
        w->delta[r] = 0;
        if (r >= n)
            continue;
        if (t + BLOCKS_AHEAD < s->f.queries)
            blocks_fetch(s, &x[O], j->b, t + BLOCKS_AHEAD, h);
        const char *o = x[O].data + flash_at(&x[O], j->b, t, h) * blocks_width(s);
        const char *grad = w->grad + r * nbytes;
        w->lse[r] = f32(lse)[tensor_index(lse, (int64_t[]){j->b, h, t})];
        w->delta[r] = (s->dtype == F32 ? dot_f32 : dot_bf16)(grad, o, s->f.size);
    }
}

static void add_mask(const Job *j, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    for (int64_t r = 0; r < n; r++)
        flash_add_mask(flash_mask(j->c, MASK), j->w->s + r, s->rows, (float)s->f.scale, j->b,
                       j->head * group + r % group, query + r / group, key, nkeys);
}

/* p and ds of keys [key, key + nkeys) and the rows from `first` on; zeros for keys behind, up to
 * `width`, and for queries before the first that sees a key. */
static void score_grads(const Job *j, int64_t key, int64_t nkeys, int64_t width, int64_t first)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *mask = flash_mask(j->c, MASK);
    bool narrow = s->dtype != F32;
    int64_t element = blocks_width(s);
    float factor = (float)s->f.scale, scale = blocks_scale(s, mask);
    if (mask)
        add_mask(j, key, nkeys);
    for (int64_t i = 0; i < width; i++) {
        int64_t at = i * s->rows, blind = i < nkeys ? blocks_unseen(s, j->i, key + i) : s->rows;
        int64_t from = MAX(first, blind / LANES * LANES);
        (narrow ? grads_bf16 : grads_f32)(w, at, s->rows, from, scale, factor);
        blind = MAX(first, blind);
        memset(w->p + (at + first) * element, 0, (size_t)((blind - first) * element));
        memset(w->ds + (at + first) * element, 0, (size_t)((blind - first) * element));
    }
}

/* The block against keys [key, key + nkeys). */
static int library_keys(const Job *j, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t units = blocks_units(s, nkeys), steps = s->steps, at = key * s->size;
    OneRun **run = j->run + units - 1;
    const char *k = w->k + at * blocks_width(s), *v = w->v + at * blocks_width(s);
    int status = onednn_run(run[SCORES * steps], k, w->q, NULL, w->s, w->scratch);
    if (!status)
        status = onednn_run(run[SCORES * steps], v, w->grad, NULL, w->dp, w->scratch);
    if (status)
        return status;
    score_grads(j, key, nkeys, units * s->unit, 0);
    status = onednn_run(run[KEYS * steps], w->ds, w->q, NULL, j->dk + at, w->scratch);
    if (!status)
        status = onednn_run(run[KEYS * steps], w->p, w->grad, NULL, j->dv + at, w->scratch);
    if (!status)
        status = onednn_run(run[QUERIES * steps], w->ds, k, NULL, w->dq, w->scratch);
    return status;
}

/* The same by panels, of the rows that see any of the keys. */
static void panel_keys(const Job *j, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t rows = s->rows, size = s->size, width = blocks_units(s, nkeys) * s->unit;
    int64_t blind = blocks_unseen(s, j->i, key) / PANEL * PANEL, n = rows - blind;
    int64_t most = s->steps * s->unit, block = key / most * most;
    const uint16_t *k = (const uint16_t *)(void *)w->k, *p = (const uint16_t *)(void *)w->p;
    const uint16_t *v = (const uint16_t *)(void *)w->v, *ds = (const uint16_t *)(void *)w->ds;
    PanelProduct x = {.c = w->s + blind,
                      .a = k + key * size,
                      .b = w->q_t + blind * size / 2,
                      .ldc = rows,
                      .lda = size,
                      .apart = size * PANEL / 2,
                      .m = width,
                      .n = n,
                      .k = size};
    blocks_multiply(s, &x);
    x.c = w->dp + blind;
    x.a = v + key * size;
    x.b = w->grad_t + blind * size / 2;
    blocks_multiply(s, &x);
    score_grads(j, key, nkeys, width, blind);
    panel_pairs(w->ds_pairs, width * PANEL / 2, ds + blind, rows, width, n);
    x = (PanelProduct){.c = j->dk + key * size,
                       .a = ds + blind,
                       .b = w->q_pairs + blind * PANEL / 2,
                       .ldc = size,
                       .lda = rows,
                       .apart = rows * PANEL / 2,
                       .m = width,
                       .n = size,
                       .k = n,
                       .into = TILE_ADD};
    blocks_multiply(s, &x);
    x.c = j->dv + key * size;
    x.a = p + blind;
    x.b = w->grad_pairs + blind * PANEL / 2;
    blocks_multiply(s, &x);
    x = (PanelProduct){.c = w->dq_t + blind,
                       .a = w->k_t + block * size + key - block,
                       .b = w->ds_pairs,
                       .ldc = rows,
                       .lda = most,
                       .apart = width * PANEL / 2,
                       .m = size,
                       .n = n,
                       .k = width,
                       .into = TILE_ADD};
    blocks_multiply(s, &x);
}

static int block(const Job *j)
{
    const Blocks *s = j->s;
    bool library = s->by == BLOCKS_LIBRARY;
    int64_t seen = blocks_seen(s, j->i), group = s->f.group, taken;
    int64_t query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    int status = 0;
    load(j);
    memset(library ? j->w->dq : j->w->dq_t, 0, sizeof(float) * (size_t)(s->rows * s->size));
    for (int64_t key = 0; key < seen && !status; key += taken) {
        taken = blocks_keys(s, j->i, key);
        if (library)
            status = library_keys(j, key, taken);
        else
            panel_keys(j, key, taken);
    }
    if (!library)
        tile_transpose(j->w->dq, s->size, s->size, j->w->dq_t, s->rows, s->size, n, 1);
    for (int64_t r = 0; r < n; r++)
        blocks_put(s, &j->c->out[DQ], j->b, query + r / group, j->head * group + r % group,
                   j->w->dq + r * s->size);
    return status;
}

/* ---- tasks and their sums ---- */

static float *sums_of(const Call *c, int64_t slot, int64_t i, int k)
{
    const State *x = c->state;
    float *sums = (float *)(void *)(c->work + x->sums);
    return sums + (2 * (x->s.parts == 1 ? slot : i) + k - DK) * x->nsum;
}

/* All keys and values of a head; k^T block by block. */
static void load_keys(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t most = s->steps * s->unit;
    blocks_load_keys(s, &j->c->in[K], j->b, j->head, s->f.keys, w->k);
    blocks_load_keys(s, &j->c->in[V], j->b, j->head, s->f.keys, w->v);
    for (int64_t key = 0; key < s->padded && s->by != BLOCKS_LIBRARY; key += s->unit) {
        const uint16_t *rows = (const uint16_t *)(void *)w->k + key * s->size;
        uint32_t *turned = (uint32_t *)(void *)w->dq_t; /* free until a block begins */
        panel_turn(turned, rows, s->unit, s->size);
        panel_transpose(w->k_t + key / most * most * s->size + key % most, most, turned, s->unit,
                        s->size);
    }
}

static int task(const Call *c, int64_t slot, int64_t i)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts, nbytes;
    Work w = work_of(s, c->work + slot * s->nbytes, &nbytes);
    Job j = {c,
             s,
             &w,
             x->run + slot * PRODUCTS * s->steps,
             sums_of(c, slot, i, DK),
             sums_of(c, slot, i, DV),
             .b = unit / heads,
             .head = unit % heads};
    int status = 0;
    memset(j.dk, 0, sizeof(float) * (size_t)(2 * x->nsum));
    load_keys(&j);
    for (j.i = 0; j.i < s->count && !status; j.i++)
        if (blocks_deal(s, j.i, i % s->parts))
            status = block(&j);
    for (int64_t key = 0; key < s->f.keys && s->parts == 1; key++) {
        blocks_put(s, &c->out[DK], j.b, key, j.head, j.dk + key * s->size);
        blocks_put(s, &c->out[DV], j.b, key, j.head, j.dv + key * s->size);
    }
    return status;
}

/* Rows lo to hi of dk and dv, by heads: the sums of a head's tasks. */
static void add_parts(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, size = s->size;
    for (int64_t i = 2 * lo; i < 2 * hi; i++) {
        int k = i % 2 ? DV : DK;
        int64_t head = i / 2 / s->f.keys, key = i / 2 % s->f.keys;
        float *row = sums_of(c, 0, head * s->parts, k) + key * size;
        for (int64_t part = 1; part < s->parts; part++)
            add_row(row, sums_of(c, 0, head * s->parts + part, k) + key * size, size);
        blocks_put(s, &c->out[k], head / heads, key, head % heads, row);
    }
}

int flash_blocks_backward_run(Call *c)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    if (blocks_run(c, s, x->status, task))
        return -1;
    if (s->parts > 1)
        par_for(s->ntask / s->parts * s->f.keys, row_grain(s->f.size), add_parts, c);
    return 0;
}
