/* The kernel "blocks" of flash_attention: the library's products on blocks of queries
 * (flash_blocks.h), the method otherwise that of tiles (flash_attention.c). Scores lie by rows of
 * queries, s = q k^T, p beside or in the place of s, o += p v.
 *
 * For processors whose products need more than vectors (AMX), and all others that the library
 * knows. Rows of a block are a share of the queries: larger ones cost less for each product,
 * smaller ones waste less where attention is causal.
 *
 * Numerics: the sums of a product are the library's, by shape alone; blocks of keys in order.
 * Operands of both products have q's dtype, probabilities are rounded to it. The bits do not depend
 * on the number of threads. A query's probability of a key that it does not see is 0, but 0 times a
 * NaN or infinity is NaN: one in v of a key reaches all queries of a block that reads it. */
#include "flash_blocks.h"

#include "../op/rows.h"

enum { SCORES, VALUES, PRODUCTS };

/* ---- sizes ---- */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* All, where the position among the keys is known only when it runs. */
static unsigned units_used(const Call *c, int first, const Blocks *s)
{
    unsigned used = 1u << (s->steps - 1);
    if (first + 3 < c->nin && !flash_mask(c, first + 3) && !first)
        return 2 * used - 1;
    int64_t most = s->steps * s->unit;
    for (int64_t i = 0; i < s->count; i++)
        if (blocks_seen(s, i) % most)
            used |= 1u << (blocks_units(s, blocks_seen(s, i) % most) - 1);
    return used;
}

/* Of the forward and of the backward: a block's share of the queries, the keys that it takes at
 * once. */
typedef struct Shares {
    int64_t queries[2], rows[2], keys[2];
    int64_t unit, strip; /* keys; no strip: as many as a block takes */
} Shares;

static const Shares shares[] = {
    [BLOCKS_LIBRARY] = {{16, 16}, {256, 256}, {256, 256}, 64, 0},
    [BLOCKS_VECTORS] = {{1, 1}, {64, 128}, {512, 128}, 32, 32},
    [BLOCKS_AMX] = {{8, 8}, {256, 256}, {512, 256}, 64, 0},
};

Blocks blocks_of(const Call *c, int first, BlocksBy by)
{
    enum { LEAST_ROWS = 64, TASKS = 8 };
    _Static_assert(LANES % PANEL == 0, "rows of a block are whole panels");
    Blocks s = {.f = flash_of(c->node, first), .dtype = c->in[first].dtype, .by = by};
    const Flash *f = &s.f;
    const Shares *share = &shares[by];
    bool backward = first > 0;
    s.size = by == BLOCKS_LIBRARY ? f->size : round_up(f->size, PANEL);
    int64_t rows = MIN(MAX(f->queries * f->group / share->queries[backward], LEAST_ROWS),
                       share->rows[backward]);
    s.queries = MIN(MAX(rows / f->group, 1), f->queries);
    s.count = (f->queries + s.queries - 1) / s.queries;
    s.queries = (f->queries + s.count - 1) / s.count;
    s.rows = round_up(s.queries * f->group, LANES);
    s.unit = MIN(share->unit, round_up(f->keys, LANES));
    s.padded = round_up(f->keys, s.unit);
    s.steps = MIN(share->keys[backward], s.padded) / s.unit;
    s.strip = share->strip ? share->strip : s.steps * s.unit;
    s.used = units_used(c, first, &s);
    int64_t heads = f->batch * (f->heads / f->group);
    s.parts = MAX(1, MIN(s.count, (TASKS + heads - 1) / heads));
    s.ntask = heads * s.parts;
    s.nslot = MAX(1, MIN(par_threads(), s.ntask));
    return s;
}

bool blocks_accept(const Call *c, int first, int count)
{
    const Tensor *q = &c->in[first];
    return flash_accepts(c, count) && tensor_nelem(q) && q->dim[3] <= ONE_MOST_LEADING;
}

void blocks_scratch(Ctx *ctx, const Node *n, Blocks *s, BlockProduct *describe, int count)
{
    for (int64_t i = 0; i < count * s->steps && s->by == BLOCKS_LIBRARY; i++) {
        if (!(s->used >> i % s->steps & 1))
            continue;
        OneProduct p = describe(s, (int)(i / s->steps), (i % s->steps + 1) * s->unit);
        OneRoom room = onednn_room(ctx, n, &p);
        s->scratch = MAX(s->scratch, room.scratch);
    }
}

OneRun **blocks_make(Arena *a, const Node *n, const Blocks *s, BlockProduct *describe, int count)
{
    int64_t each = count * s->steps;
    OneRun **run = NEWN(a, OneRun *, s->nslot * each);
    for (int64_t i = 0; i < s->nslot * each && s->by == BLOCKS_LIBRARY; i++) {
        if (!(s->used >> i % s->steps & 1))
            continue;
        OneProduct p = describe(s, (int)(i / s->steps % count), (i % s->steps + 1) * s->unit);
        run[i] = i < each ? onednn_make(a, n, &p) : onednn_twin(a, n, run[i - each]);
    }
    return run;
}

int64_t blocks_handles(const Blocks *s, int count)
{
    enum { MADE = 6 << 10 }; /* nothing is packed */
    return count * __builtin_popcount(s->used) * (MADE + (s->nslot - 1) * onednn_keeps().each_twin);
}

int64_t blocks_seen(const Blocks *s, int64_t i)
{
    return flash_seen(&s->f, i * s->queries + blocks_queries(s, i) - 1);
}

int64_t blocks_keys(const Blocks *s, int64_t i, int64_t key)
{
    int64_t all = round_up(flash_seen(&s->f, i * s->queries), s->strip);
    int64_t most = key < all ? MIN(s->steps * s->unit, all - key) : s->strip;
    return MIN(most, blocks_seen(s, i) - key);
}

int64_t blocks_unseen(const Blocks *s, int64_t i, int64_t key)
{
    int64_t queries = key - s->f.offset - i * s->queries; /* before the one that sees it */
    return s->f.causal ? MAX(0, MIN(queries * s->f.group, s->rows)) : 0;
}

void blocks_multiply(const Blocks *s, const PanelProduct *x)
{
    (s->by == BLOCKS_AMX ? amx_multiply : panel_multiply)(x);
}

bool blocks_deal(const Blocks *s, int64_t i, int64_t which)
{
    int64_t turn = i % (2 * s->parts);
    return MIN(turn, 2 * s->parts - 1 - turn) == which;
}

/* ---- dense operands ---- */

OneMatrix blocks_dense(DType d, int64_t rows, int64_t columns, bool turned)
{
    OneMatrix m = {.dtype = d, .rank = 2, .dim = {rows, columns}, .stride = {columns, 1}};
    if (turned) {
        m.stride[0] = 1;
        m.stride[1] = rows;
    }
    return m;
}

/* A row, and zeros behind it. */
static void load_row(const Blocks *s, const Tensor *t, int64_t at, char *to)
{
    int64_t width = blocks_width(s), nbytes = s->f.size * width;
    memcpy(to, t->data + at * width, (size_t)nbytes);
    if (s->size > s->f.size)
        memset(to + nbytes, 0, (size_t)(s->size * width - nbytes));
}

typedef struct Tasks {
    const Call *c;
    const Blocks *s;
    int *status;
    BlocksTask *task;
} Tasks;

static void run_slots(void *arg, int64_t lo, int64_t hi)
{
    const Tasks *x = arg;
    const Blocks *s = x->s;
    for (int64_t slot = lo; slot < hi; slot++) {
        x->status[slot] = 0;
        if (s->by == BLOCKS_AMX)
            amx_begin();
        for (int64_t i = slot; i < s->ntask && !x->status[slot]; i += s->nslot)
            x->status[slot] = x->task(x->c, slot, i);
        if (s->by == BLOCKS_AMX)
            amx_end();
    }
}

int blocks_run(Call *c, const Blocks *s, int *status, BlocksTask *task)
{
    Tasks x = {c, s, status, task};
    par_for(s->nslot, 1, run_slots, &x);
    for (int64_t i = 0; i < s->nslot; i++)
        if (status[i])
            return run_fail(c, "oneDNN product failed (status %d)", status[i]);
    return 0;
}

void blocks_load_unit(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t n,
                      int64_t u, char *to)
{
    int64_t nbytes = s->size * blocks_width(s), lo = u * s->unit;
    int64_t hi = MIN(n, lo + s->unit);
    for (int64_t j = lo; j < hi; j++) {
        if (j + BLOCKS_AHEAD < n)
            blocks_fetch(s, t, b, j + BLOCKS_AHEAD, head);
        load_row(s, t, flash_at(t, b, j, head), to + (j - lo) * nbytes);
    }
    memset(to + (hi - lo) * nbytes, 0, (size_t)((lo + s->unit - hi) * nbytes));
}

void blocks_load_keys(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t n,
                      char *to)
{
    for (int64_t u = 0; u < blocks_units(s, n); u++)
        blocks_load_unit(s, t, b, head, n, u, to + u * s->unit * s->size * blocks_width(s));
}

void blocks_load(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t i, char *to)
{
    int64_t nbytes = s->size * blocks_width(s), group = s->f.group;
    int64_t n = blocks_queries(s, i), query = i * s->queries;
    for (int64_t r = 0; r < n * group; r++)
        load_row(s, t, flash_at(t, b, query + r / group, head * group + r % group),
                 to + r * nbytes);
    memset(to + n * group * nbytes, 0, (size_t)((s->rows - n * group) * nbytes));
}

void blocks_turn(const Blocks *s, char *q)
{
    float turn = (float)s->f.turn;
    for (int64_t i = 0; turn != 1 && i < s->rows * s->size; i++)
        v_store(q, i, turn * v_load(q, i, s->dtype), s->dtype);
}

void blocks_put(const Blocks *s, const Tensor *t, int64_t b, int64_t i, int64_t h, const float *row)
{
    if (i + BLOCKS_AHEAD < t->dim[1])
        blocks_fetch(s, t, b, i + BLOCKS_AHEAD, h);
    if (s->dtype == F32)
        memcpy(flash_row(t, b, i, h), row, sizeof *row * (size_t)s->f.size);
    else
        flash_store(t, b, i, h, 1, row, s->f.size);
}

/* ---- the forward's products and workspace ---- */

typedef struct State {
    Blocks s;
    OneRun **run;
    int *status; /* of each slot's products */
} State;

/* A slot's: q[rows][size], all keys and values of a head; a block's scores s and, of bf16, p; its
 * sums o in f32; the maximum and the sum of each row. */
typedef struct Work {
    char *q, *k, *v, *p, *scratch;
    float *s, *o, *top, *sum;
} Work;

static Work work_of(const Blocks *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->size, width = blocks_width(s);
    Work w;
    *nbytes = 0;
    w.q = blocks_take(work, nbytes, s->rows * size * width);
    w.k = blocks_take(work, nbytes, s->padded * size * width);
    w.v = blocks_take(work, nbytes, s->padded * size * width);
    w.s = (float *)(void *)blocks_take(work, nbytes, s->rows * keys * 4);
    w.p = s->dtype == F32 ? (char *)w.s : blocks_take(work, nbytes, s->rows * keys * width);
    w.o = (float *)(void *)blocks_take(work, nbytes, s->rows * size * 4);
    w.top = (float *)(void *)blocks_take(work, nbytes, s->rows * 4);
    w.sum = (float *)(void *)blocks_take(work, nbytes, s->rows * 4);
    w.scratch = blocks_take(work, nbytes, s->scratch);
    return w;
}

static OneProduct describe(const Blocks *s, int which, int64_t nkeys)
{
    if (which == SCORES)
        return (OneProduct){.a = blocks_dense(s->dtype, s->rows, s->size, false),
                            .b = blocks_dense(s->dtype, s->size, nkeys, true),
                            .y = blocks_dense(F32, s->rows, nkeys, false),
                            .alone = true};
    return (OneProduct){.a = blocks_dense(s->dtype, s->rows, nkeys, false),
                        .b = blocks_dense(s->dtype, nkeys, s->size, false),
                        .y = blocks_dense(F32, s->rows, s->size, false),
                        .adds = true,
                        .alone = true};
}

static Blocks sizes(Ctx *ctx, const Call *c)
{
    Blocks s = blocks_of(c, 0, BLOCKS_LIBRARY);
    blocks_scratch(ctx, c->node, &s, describe, PRODUCTS);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

bool flash_blocks_accepts(const Call *c)
{
    return matmul_fast(c->in[0].dtype) && blocks_accept(c, 0, 3);
}

int64_t flash_blocks_workspace(Ctx *ctx, const Call *c)
{
    Blocks s = sizes(ctx, c);
    return s.nslot * s.nbytes;
}

int64_t flash_blocks_handles(const Call *c)
{
    Blocks s = blocks_of(c, 0, BLOCKS_LIBRARY);
    return blocks_handles(&s, PRODUCTS);
}

void flash_blocks_prepare(Call *c, Arena *a)
{
    State *x = c->state = NEW(a, State);
    x->s = sizes(arena_ctx(a), c);
    x->run = blocks_make(a, c->node, &x->s, describe, PRODUCTS);
    x->status = NEWN(a, int, x->s.nslot);
}

/* ---- softmax by rows ---- */

/* Of s[0 .. n), -inf behind to whole LANES: the greatest. */
INLINE float greatest(const float *s, int64_t n)
{
    float top[LANES];
    for (int l = 0; l < LANES; l++)
        top[l] = s[l];
    for (int64_t j = LANES; j < n; j += LANES)
        for (int l = 0; l < LANES; l++)
            top[l] = MAX(top[l], s[j + l]);
#pragma GCC unroll 3
    for (int half = LANES / 2; half >= 4; half /= 2)
        for (int l = 0; l < half; l++)
            top[l] = MAX(top[l], top[l + half]);
    float low = MAX(top[0], top[1]), high = MAX(top[2], top[3]);
    return MAX(low, high);
}

/* p = exp(scale (s - base)) into f32, 2^(...) into bf16; returns the sum, of what is not yet
 * rounded. */
INLINE float exponentials(char *to, const float *s, int64_t n, float scale, float base, bool narrow)
{
    float sum[LANES] = {0}, *wide = (float *)(void *)to;
    uint16_t *half = (uint16_t *)(void *)to;
    for (int64_t j = 0; j < n; j += LANES) {
        INDEPENDENT
        for (int l = 0; l < LANES; l++) {
            float x = scale * (s[j + l] - base), p = narrow ? tile_exp2(x) : tile_exp(x);
            sum[l] += p;
            if (narrow)
                half[j + l] = tile_half(p);
            else
                wide[j + l] = p;
        }
    }
    return lanes_sum(sum);
}

/* A row of scores, of which n are seen and `width` wanted: p, the new maximum and sum. Returns the
 * factor that brings what was summed before to that maximum. */
INLINE float row(char *p, float *s, int64_t n, int64_t width, float scale, float *top, float *sum,
                 bool narrow)
{
    int64_t whole = (n + LANES - 1) / LANES * LANES;
    for (int64_t j = n; j < whole; j++)
        s[j] = -INFINITY;
    memset(p + whole * (narrow ? 2 : 4), 0, (size_t)((width - whole) * (narrow ? 2 : 4)));
    if (!n)
        return 1;
    float most = greatest(s, whole);
    most = MAX(*top, most);
    float base = most == -INFINITY ? 0.0f : most;
    float less = scale * (*top - base), factor = narrow ? tile_exp2(less) : tile_exp(less);
    *sum = *sum * factor + exponentials(p, s, whole, scale, base, narrow);
    *top = most;
    return factor;
}

KERNEL_FMA(float, row_f32,
           (char *p, float *s, int64_t n, int64_t width, float scale, float *top, float *sum),
           (p, s, n, width, scale, top, sum))
{
    return row(p, s, n, width, scale, top, sum, false);
}

KERNEL_FMA(float, row_bf16,
           (char *p, float *s, int64_t n, int64_t width, float scale, float *top, float *sum),
           (p, s, n, width, scale, top, sum))
{
    return row(p, s, n, width, scale, top, sum, true);
}

KERNEL(void, multiply, (float *x, float factor, int64_t n), (x, factor, n))
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* ---- a block ---- */

/* Block i of queries of the group of heads that read key head `head`. */
typedef struct Job {
    const Call *c;
    const Blocks *s;
    const Work *w;
    OneRun **run;
    int64_t b, head, i;
} Job;

/* p of the block's rows and keys [key, key + nkeys), of `width` with padding; o to their maxima. */
static void probabilities(const Job *j, int64_t key, int64_t nkeys, int64_t width)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *mask = flash_mask(j->c, 3);
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    float scale = blocks_above(s, mask);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t t = query + r / group, seen = r < n ? flash_seen(&s->f, t) - key : 0;
        float *row = w->s + r * width, factor;
        char *p = w->p + r * width * blocks_width(s);
        seen = MAX(0, MIN(seen, nkeys));
        if (mask)
            flash_add_mask(mask, row, 1, (float)s->f.above, j->b, j->head * group + r % group, t,
                           key, seen);
        if (s->dtype == F32)
            factor = row_f32(p, row, seen, width, scale, &w->top[r], &w->sum[r]);
        else
            factor = row_bf16(p, row, seen, width, scale * BLOCKS_LOG2E, &w->top[r], &w->sum[r]);
        if (key && factor != 1)
            multiply(w->o + r * s->size, factor, s->f.size);
    }
}

/* Rows of o and lse from the block's sums. */
static void store(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *o = &j->c->out[0], *lse = &j->c->out[1];
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    float scale = blocks_above(s, flash_mask(j->c, 3));
    for (int64_t r = 0; r < n; r++) {
        int64_t t = query + r / group, h = j->head * group + r % group;
        float *row = w->o + r * s->size, sum = w->sum[r];
        multiply(row, sum == 0 ? 0.0f : 1.0f / sum, s->f.size); /* 0: sees nothing */
        blocks_put(s, o, j->b, t, h, row);
        f32(lse)[tensor_index(lse, (int64_t[]){j->b, h, t})] =
            sum == 0 ? INFINITY : scale * w->top[r] + logf(sum);
    }
}

/* s = q k^T or o += p v, of keys [key, key + nkeys). */
static int product(const Job *j, int which, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    OneRun *run = j->run[which * s->steps + blocks_units(s, nkeys) - 1];
    int64_t at = key * s->size * blocks_width(s);
    return which == SCORES ? onednn_run(run, w->q, w->k + at, NULL, w->s, w->scratch)
                           : onednn_run(run, w->p, w->v + at, NULL, w->o, w->scratch);
}

static int block(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t seen = blocks_seen(s, j->i), n;
    int status = 0;
    blocks_load(s, &j->c->in[0], j->b, j->head, j->i, w->q);
    blocks_turn(s, w->q);
    memset(w->o, 0, sizeof(float) * (size_t)(s->rows * s->size));
    for (int64_t r = 0; r < s->rows; r++) {
        w->top[r] = -INFINITY;
        w->sum[r] = 0;
    }
    for (int64_t key = 0; key < seen && !status; key += n) {
        n = blocks_keys(s, j->i, key);
        status = product(j, SCORES, key, n);
        if (!status)
            probabilities(j, key, n, blocks_units(s, n) * s->unit);
        if (!status)
            status = product(j, VALUES, key, n);
    }
    store(j);
    return status;
}

static int task(const Call *c, int64_t slot, int64_t i)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts, nbytes;
    Work w = work_of(s, c->work + slot * s->nbytes, &nbytes);
    OneRun **run = x->run + slot * PRODUCTS * s->steps;
    Job j = {c, s, &w, run, .b = unit / heads, .head = unit % heads};
    int64_t seen = blocks_seen(s, s->count - 1);
    int status = 0;
    blocks_load_keys(s, &c->in[1], j.b, j.head, seen, w.k);
    blocks_load_keys(s, &c->in[2], j.b, j.head, seen, w.v);
    for (j.i = 0; j.i < s->count && !status; j.i++)
        if (blocks_deal(s, j.i, i % s->parts))
            status = block(&j);
    return status;
}

int flash_blocks_run(Call *c)
{
    State *x = c->state;
    if (flash_place(c, &x->s.f))
        return -1;
    return blocks_run(c, &x->s, x->status, task);
}
