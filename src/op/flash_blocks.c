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
 * on the number of threads. */
#include "flash_blocks.h"

#include "rows.h"

enum { SCORES, VALUES, PRODUCTS };

/* ---- sizes ---- */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

Blocks blocks_of(const Call *c, int first, int64_t most)
{
    enum { KEYS = 256, UNIT = 64, SHARE = 8, TASKS = 8 };
    Blocks s = {.f = flash_of(c->node, first), .dtype = c->in[first].dtype};
    const Flash *f = &s.f;
    int64_t rows = MIN(MAX(f->queries * f->group / SHARE, UNIT), most);
    s.queries = MIN(MAX(rows / f->group, 1), f->queries);
    s.count = (f->queries + s.queries - 1) / s.queries;
    s.queries = (f->queries + s.count - 1) / s.count;
    s.rows = round_up(s.queries * f->group, LANES);
    s.unit = MIN(UNIT, round_up(f->keys, LANES));
    s.padded = round_up(f->keys, s.unit);
    s.steps = MIN(KEYS, s.padded) / s.unit;
    int64_t heads = f->batch * (f->heads / f->group);
    s.parts = MAX(1, MIN(s.count, (TASKS + heads - 1) / heads));
    s.ntask = heads * s.parts;
    s.nslot = MAX(1, MIN(par_threads(), s.ntask));
    return s;
}

bool blocks_accept(const Call *c, int first, int count)
{
    const Tensor *q = &c->in[first];
    return flash_accepts(c, count) && matmul_fast(q->dtype) && tensor_nelem(q) &&
           q->dim[3] <= ONE_MOST_LEADING;
}

void blocks_scratch(Ctx *ctx, const Node *n, Blocks *s, BlockProduct *describe, int count)
{
    for (int64_t i = 0; i < count * s->steps; i++) {
        OneProduct p = describe(s, (int)(i / s->steps), (i % s->steps + 1) * s->unit);
        OneRoom room = onednn_room(ctx, n, &p);
        s->scratch = MAX(s->scratch, room.scratch);
    }
}

OneRun **blocks_make(Arena *a, const Node *n, const Blocks *s, BlockProduct *describe, int count)
{
    int64_t each = count * s->steps;
    OneRun **run = NEWN(a, OneRun *, s->nslot * each);
    for (int64_t i = 0; i < s->nslot * each; i++) {
        OneProduct p = describe(s, (int)(i / s->steps), (i % s->steps + 1) * s->unit);
        run[i] = i < each ? onednn_make(a, n, &p) : onednn_twin(a, n, run[i - each]);
    }
    return run;
}

int64_t blocks_seen(const Blocks *s, int64_t i)
{
    return flash_seen(&s->f, i * s->queries + blocks_queries(s, i) - 1);
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

void blocks_load_keys(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t n,
                      char *to)
{
    int64_t nbytes = s->f.size * dtype_size(s->dtype);
    for (int64_t j = 0; j < n; j++)
        memcpy(to + j * nbytes, element(t, flash_at(t, b, j, head)), (size_t)nbytes);
    memset(to + n * nbytes, 0, (size_t)((round_up(n, s->unit) - n) * nbytes));
}

void blocks_load(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t i, char *to)
{
    int64_t nbytes = s->f.size * dtype_size(s->dtype), group = s->f.group;
    int64_t n = blocks_queries(s, i), query = i * s->queries;
    for (int64_t r = 0; r < n * group; r++) {
        int64_t at = flash_at(t, b, query + r / group, head * group + r % group);
        memcpy(to + r * nbytes, element(t, at), (size_t)nbytes);
    }
    memset(to + n * group * nbytes, 0, (size_t)((s->rows - n * group) * nbytes));
}

/* ---- the forward's products and workspace ---- */

typedef struct State {
    Blocks s;
    OneRun **run;
    int *status; /* of each slot's products */
} State;

/* A slot's: q[rows][size], all keys and values of a head, a block's scores s and, of bf16, p; its
 * sums o in f32; the maximum and the sum of each row. */
typedef struct Work {
    char *q, *k, *v, *p, *scratch;
    float *s, *o, *top, *sum;
} Work;

static Work work_of(const Blocks *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, size = s->f.size, width = dtype_size(s->dtype);
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
        return (OneProduct){.a = blocks_dense(s->dtype, s->rows, s->f.size, false),
                            .b = blocks_dense(s->dtype, s->f.size, nkeys, true),
                            .y = blocks_dense(F32, s->rows, nkeys, false),
                            .alone = true};
    return (OneProduct){.a = blocks_dense(s->dtype, s->rows, nkeys, false),
                        .b = blocks_dense(s->dtype, nkeys, s->f.size, false),
                        .y = blocks_dense(F32, s->rows, s->f.size, false),
                        .adds = true,
                        .alone = true};
}

static Blocks sizes(Ctx *ctx, const Call *c)
{
    enum { ROWS = 256 };
    Blocks s = blocks_of(c, 0, ROWS);
    blocks_scratch(ctx, c->node, &s, describe, PRODUCTS);
    work_of(&s, NULL, &s.nbytes);
    return s;
}

bool flash_blocks_accepts(const Call *c)
{
    return blocks_accept(c, 0, 3);
}

int64_t flash_blocks_workspace(Ctx *ctx, const Call *c)
{
    Blocks s = sizes(ctx, c);
    return s.nslot * s.nbytes;
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
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            top[l] = MAX(top[l], top[l + half]);
    return top[0];
}

/* p = exp(scale s - base) into f32 or bf16; returns the sum, of what is not yet rounded. */
INLINE float exponentials(char *to, const float *s, int64_t n, float scale, float base, bool narrow)
{
    float sum[LANES] = {0}, *wide = (float *)(void *)to;
    uint16_t *half = (uint16_t *)(void *)to;
    for (int64_t j = 0; j < n; j += LANES) {
        INDEPENDENT
        for (int l = 0; l < LANES; l++) {
            float p = tile_exp(s[j + l] * scale - base);
            sum[l] += p;
            if (narrow)
                half[j + l] = v_f32_to_bf16(p);
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
    float most = scale * greatest(s, whole);
    most = MAX(*top, most);
    float base = most == -INFINITY ? 0.0f : most, factor = tile_exp(*top - base);
    *sum = *sum * factor + exponentials(p, s, whole, scale, base, narrow);
    *top = most;
    return factor;
}

KERNEL_FMA static float row_f32(char *p, float *s, int64_t n, int64_t width, float scale,
                                float *top, float *sum)
{
    return row(p, s, n, width, scale, top, sum, false);
}

KERNEL_FMA static float row_bf16(char *p, float *s, int64_t n, int64_t width, float scale,
                                 float *top, float *sum)
{
    return row(p, s, n, width, scale, top, sum, true);
}

KERNEL static void multiply(float *x, float factor, int64_t n)
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
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t t = query + r / group, seen = r < n ? flash_seen(&s->f, t) - key : 0;
        float *row = w->s + r * width, scale = (float)s->f.scale, factor;
        char *p = w->p + r * width * dtype_size(s->dtype);
        seen = MAX(0, MIN(seen, nkeys));
        if (mask) {
            flash_add_mask(mask, row, 1, scale, j->b, j->head * group + r % group, t, key, seen);
            scale = 1;
        }
        if (s->dtype == F32)
            factor = row_f32(p, row, seen, width, scale, &w->top[r], &w->sum[r]);
        else
            factor = row_bf16(p, row, seen, width, scale, &w->top[r], &w->sum[r]);
        if (key && factor != 1)
            multiply(w->o + r * s->f.size, factor, s->f.size);
    }
}

/* Rows of o and lse from the block's sums. */
static void store(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    const Tensor *o = &j->c->out[0], *lse = &j->c->out[1];
    int64_t group = s->f.group, query = j->i * s->queries, n = blocks_queries(s, j->i) * group;
    for (int64_t r = 0; r < n; r++) {
        int64_t t = query + r / group, h = j->head * group + r % group;
        float *row = w->o + r * s->f.size, sum = w->sum[r];
        multiply(row, sum == 0 ? 0.0f : 1.0f / sum, s->f.size); /* 0: sees nothing */
        if (s->dtype == F32)
            memcpy(flash_row(o, j->b, t, h), row, sizeof *row * (size_t)s->f.size);
        else
            flash_store(o, j->b, t, h, 1, row, s->f.size);
        f32(lse)[tensor_index(lse, (int64_t[]){j->b, h, t})] =
            sum == 0 ? INFINITY : w->top[r] + logf(sum);
    }
}

static int block(const Job *j)
{
    const Blocks *s = j->s;
    const Work *w = j->w;
    int64_t seen = blocks_seen(s, j->i), most = s->steps * s->unit, size = s->f.size;
    int64_t nbytes = size * dtype_size(s->dtype);
    blocks_load(s, &j->c->in[0], j->b, j->head, j->i, w->q);
    memset(w->o, 0, sizeof(float) * (size_t)(s->rows * size));
    for (int64_t r = 0; r < s->rows; r++) {
        w->top[r] = -INFINITY;
        w->sum[r] = 0;
    }
    for (int64_t key = 0; key < seen; key += most) {
        int64_t nkeys = MIN(most, seen - key), units = blocks_units(s, nkeys);
        OneRun **run = j->run + units - 1;
        int status =
            onednn_run(run[SCORES * s->steps], w->q, w->k + key * nbytes, NULL, w->s, w->scratch);
        if (status)
            return status;
        probabilities(j, key, nkeys, units * s->unit);
        status =
            onednn_run(run[VALUES * s->steps], w->p, w->v + key * nbytes, NULL, w->o, w->scratch);
        if (status)
            return status;
    }
    store(j);
    return 0;
}

static int task(const Call *c, const Blocks *s, const Work *w, OneRun **run, int64_t i)
{
    int64_t heads = s->f.heads / s->f.group, unit = i / s->parts;
    Job j = {c, s, w, run, .b = unit / heads, .head = unit % heads};
    int64_t seen = blocks_seen(s, s->count - 1);
    int status = 0;
    blocks_load_keys(s, &c->in[1], j.b, j.head, seen, w->k);
    blocks_load_keys(s, &c->in[2], j.b, j.head, seen, w->v);
    for (j.i = 0; j.i < s->count && !status; j.i++)
        if (blocks_deal(s, j.i, i % s->parts))
            status = block(&j);
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
            x->status[slot] = task(c, s, &w, x->run + slot * PRODUCTS * s->steps, i);
    }
}

int flash_blocks_run(Call *c)
{
    State *x = c->state;
    if (flash_place(c, &x->s.f))
        return -1;
    par_for(x->s.nslot, 1, slots, c);
    for (int64_t i = 0; i < x->s.nslot; i++)
        if (x->status[i])
            return run_fail(c, "oneDNN product failed (status %d)", x->status[i]);
    return 0;
}
