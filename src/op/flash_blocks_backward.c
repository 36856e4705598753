/* The kernel "blocks" of flash_attention_backward: the library's products on blocks of queries
 * (flash_blocks.h), the method otherwise that of tiles (flash_backward.c). Scores lie by rows of
 * keys, queries along the lanes, so that four of the five products read p and ds as they lie:
 *
 *   s = k q^T,  dp = v do^T,  dk += ds q,  dv += p do,  dq += ds^T k
 *
 * Order: a task walks its blocks of queries one after the other and adds to sums of dk and dv of
 * its own, in f32 in the workspace; those of a key head's tasks are added in order. How many tasks
 * a key head has follows from the sizes alone. */
#include "flash_blocks.h"

#include "rows.h"

enum { SCORES, KEYS, QUERIES, PRODUCTS };

/* ---- products and workspace ---- */

typedef struct State {
    Blocks s;
    OneRun **run;
    int *status;        /* of each slot's products */
    int64_t sums, nsum; /* where sums of dk and dv begin in the workspace; floats of one of them */
} State;

/* A slot's: q and do[rows][size], a head's keys and values, scores and dp of a block and, of bf16,
 * p and ds; dq in f32; log-sum-exp and rowsum(do o) of each row. */
typedef struct Work {
    char *q, *grad, *k, *v, *p, *ds, *scratch;
    float *s, *dp, *dq, *lse, *delta;
} Work;

static Work work_of(const Blocks *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->f.size, width = dtype_size(s->dtype);
    bool f32s = s->dtype == F32;
    Work w;
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
    return w;
}

static OneProduct describe(const Blocks *s, int which, int64_t nkeys)
{
    DType d = s->dtype;
    int64_t rows = s->rows, size = s->f.size;
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

static Blocks sizes(Ctx *ctx, const Call *c)
{
    enum { ROWS = 256 };
    Blocks s = blocks_of(c, Q, ROWS);
    blocks_scratch(ctx, c->node, &s, describe, PRODUCTS);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

/* Pairs of sums: of each task, or of each slot where a key head has one task. */
static int64_t nsums(const Blocks *s)
{
    return s->parts == 1 ? s->nslot : s->ntask;
}

bool flash_blocks_backward_accepts(const Call *c)
{
    return blocks_accept(c, Q, 5);
}

int64_t flash_blocks_backward_workspace(Ctx *ctx, const Call *c)
{
    Blocks s = sizes(ctx, c);
    return s.nslot * s.nbytes + 2 * nsums(&s) * s.padded * s.f.size * (int64_t)sizeof(float);
}

void flash_blocks_backward_prepare(Call *c, Arena *a)
{
    State *x = c->state = NEW(a, State);
    x->s = sizes(arena_ctx(a), c);
    x->sums = x->s.nslot * x->s.nbytes;
    x->nsum = x->s.padded * x->s.f.size;
    x->run = blocks_make(a, c->node, &x->s, describe, PRODUCTS);
    x->status = NEWN(a, int, x->s.nslot);
}

/* ---- rows ---- */

INLINE float dot(const char *x, const char *y, int64_t n, DType d)
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, sum[lane] += v_load(x, i, d) * v_load(y, i, d));
    return lanes_sum(sum);
}

KERNEL_FMA static float dot_f32(const char *x, const char *y, int64_t n)
{
    return dot(x, y, n, F32);
}

KERNEL_FMA static float dot_bf16(const char *x, const char *y, int64_t n)
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
        float p = tile_exp(s[i] * scale - w->lse[i]), ds = p * (dp[i] - w->delta[i]) * factor;
        if (narrow) {
            p_half[i] = v_f32_to_bf16(p);
            ds_half[i] = v_f32_to_bf16(ds);
        } else {
            p_wide[i] = p;
            ds_wide[i] = ds;
        }
    }
}

KERNEL_FMA static void grads_f32(const Work *w, int64_t at, int64_t n, int64_t from, float scale,
                                 float factor)
{
    grads(w, at, n, from, scale, factor, false);
}

KERNEL_FMA static void grads_bf16(const Work *w, int64_t at, int64_t n, int64_t from, float scale,
                                  float factor)
{
    grads(w, at, n, from, scale, factor, true);
}

KERNEL static void add_row(float *restrict y, const float *x, int64_t n)
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

/* The block's rows of q and do, and what each row has one of. Rows behind are of no weight. */
static void load(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *x = j->c->in, *lse = &x[LSE];
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    int64_t nbytes = s->f.size * dtype_size(s->dtype);
    blocks_load(s, &x[Q], j->b, j->head, j->i, w->q);
    blocks_load(s, &x[DO], j->b, j->head, j->i, w->grad);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t t = query + r / group, h = j->head * group + r % group;
        w->lse[r] = INFINITY;
        w->delta[r] = 0;
        if (r >= n)
            continue;
        const char *o = element(&x[O], flash_at(&x[O], j->b, t, h)), *grad = w->grad + r * nbytes;
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

/* p and ds of keys [key, key + nkeys); zeros for those behind, up to `width`, and for queries
 * before the first that sees a key. */
static void score_grads(const Job *j, int64_t key, int64_t nkeys, int64_t width)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    bool narrow = s->dtype != F32, mask = flash_mask(j->c, MASK);
    int64_t element = dtype_size(s->dtype);
    float factor = (float)s->f.scale, scale = mask ? 1 : factor;
    if (mask)
        add_mask(j, key, nkeys);
    for (int64_t i = 0; i < width; i++) {
        int64_t at = i * s->rows, first = key + i - s->f.offset - j->i * s->queries;
        int64_t blind = s->f.causal ? MAX(0, first * s->f.group) : 0;
        if (i >= nkeys)
            blind = s->rows;
        blind = MIN(blind, s->rows);
        int64_t from = blind / LANES * LANES;
        for (int64_t r = from; r < blind; r++)
            w->s[at + r] = -INFINITY;
        (narrow ? grads_bf16 : grads_f32)(w, at, s->rows, from, scale, factor);
        memset(w->p + at * element, 0, (size_t)(from * element));
        memset(w->ds + at * element, 0, (size_t)(from * element));
    }
}

/* The block against keys [key, key + nkeys). */
static int keys(const Job *j, int64_t key, int64_t nkeys)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t units = blocks_units(s, nkeys), steps = s->steps, at = key * s->f.size;
    OneRun **run = j->run + units - 1;
    const char *k = w->k + at * dtype_size(s->dtype), *v = w->v + at * dtype_size(s->dtype);
    int status = onednn_run(run[SCORES * steps], k, w->q, NULL, w->s, w->scratch);
    if (!status)
        status = onednn_run(run[SCORES * steps], v, w->grad, NULL, w->dp, w->scratch);
    if (status)
        return status;
    score_grads(j, key, nkeys, units * s->unit);
    status = onednn_run(run[KEYS * steps], w->ds, w->q, NULL, j->dk + at, w->scratch);
    if (!status)
        status = onednn_run(run[KEYS * steps], w->p, w->grad, NULL, j->dv + at, w->scratch);
    if (!status)
        status = onednn_run(run[QUERIES * steps], w->ds, k, NULL, w->dq, w->scratch);
    return status;
}

static void put_row(const Blocks *s, const Tensor *y, int64_t b, int64_t t, int64_t h,
                    const float *row)
{
    if (s->dtype == F32)
        memcpy(flash_row(y, b, t, h), row, sizeof *row * (size_t)s->f.size);
    else
        flash_store(y, b, t, h, 1, row, s->f.size);
}

static int block(const Job *j)
{
    const Blocks *s = j->s;
    int64_t seen = blocks_seen(s, j->i), most = s->steps * s->unit, group = s->f.group;
    int64_t query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    int status = 0;
    load(j);
    memset(j->w->dq, 0, sizeof(float) * (size_t)(s->rows * s->f.size));
    for (int64_t key = 0; key < seen && !status; key += most)
        status = keys(j, key, MIN(most, seen - key));
    for (int64_t r = 0; r < n; r++)
        put_row(s, &j->c->out[DQ], j->b, query + r / group, j->head * group + r % group,
                j->w->dq + r * s->f.size);
    return status;
}

/* ---- tasks and their sums ---- */

static float *sums_of(const Call *c, int64_t slot, int64_t i, int k)
{
    const State *x = c->state;
    float *sums = (float *)(void *)(c->work + x->sums);
    return sums + (2 * (x->s.parts == 1 ? slot : i) + k - DK) * x->nsum;
}

static int task(const Call *c, const Work *w, OneRun **run, int64_t slot, int64_t i)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts;
    Job j = {c,
             s,
             w,
             run,
             sums_of(c, slot, i, DK),
             sums_of(c, slot, i, DV),
             .b = unit / heads,
             .head = unit % heads};
    int status = 0;
    memset(j.dk, 0, sizeof(float) * (size_t)(2 * x->nsum));
    blocks_load_keys(s, &c->in[K], j.b, j.head, s->f.keys, w->k);
    blocks_load_keys(s, &c->in[V], j.b, j.head, s->f.keys, w->v);
    for (j.i = 0; j.i < s->count && !status; j.i++)
        if (blocks_deal(s, j.i, i % s->parts))
            status = block(&j);
    for (int64_t key = 0; key < s->f.keys && s->parts == 1; key++) {
        put_row(s, &c->out[DK], j.b, key, j.head, j.dk + key * s->f.size);
        put_row(s, &c->out[DV], j.b, key, j.head, j.dv + key * s->f.size);
    }
    return status;
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *x = c->state;
    const Blocks *s = &x->s;
    for (int64_t slot = lo; slot < hi; slot++) {
        int64_t nbytes;
        Work w = work_of(s, c->work + slot * s->nbytes, &nbytes);
        x->status[slot] = 0;
        for (int64_t i = slot; i < s->ntask && !x->status[slot]; i += s->nslot)
            x->status[slot] = task(c, &w, x->run + slot * PRODUCTS * s->steps, slot, i);
    }
}

/* Rows lo to hi of dk and dv, by heads: the sums of a head's tasks. */
static void add_parts(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *x = c->state;
    const Blocks *s = &x->s;
    int64_t heads = s->f.heads / s->f.group, size = s->f.size;
    for (int64_t i = 2 * lo; i < 2 * hi; i++) {
        int k = i % 2 ? DV : DK;
        int64_t head = i / 2 / s->f.keys, key = i / 2 % s->f.keys;
        float *row = sums_of(c, 0, head * s->parts, k) + key * size;
        for (int64_t part = 1; part < s->parts; part++)
            add_row(row, sums_of(c, 0, head * s->parts + part, k) + key * size, size);
        put_row(s, &c->out[k], head / heads, key, head % heads, row);
    }
}

int flash_blocks_backward_run(Call *c)
{
    const State *x = c->state;
    const Blocks *s = &x->s;
    par_for(s->nslot, 1, slots, c);
    for (int64_t i = 0; i < s->nslot; i++)
        if (x->status[i])
            return run_fail(c, "oneDNN product failed (status %d)", x->status[i]);
    if (s->parts > 1)
        par_for(s->ntask / s->parts * s->f.keys, row_grain(s->f.size), add_parts, c);
    return 0;
}
