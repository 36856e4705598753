/* The variants "query_f32" and "query_bf16": one query a head, as text is generated: nothing to
 * reuse but the keys and values themselves, which the heads of a group share, so it runs as fast as
 * they are read. A task is a group of heads: scores of all its keys, their softmax, then the sum of
 * the values.
 *
 * Numerics: f32, to which bf16 is converted as it is read; a score's products in LANES partial
 * sums, values in the order of the keys four at a time, whatever the threads. */
#include "attention.h"

#include <math.h>

typedef struct QueryState {
    Flash f;
    int nslot;
    int64_t nfloat; /* workspace of a slot: the scores of a group, a row of o */
} QueryState;

static QueryState state_of(const Call *c)
{
    QueryState s = {.f = flash_of(c->node, 0)};
    s.nslot = (int)MAX(1, MIN(par_threads(), s.f.batch * s.f.heads / s.f.group));
    s.nfloat = round_up(s.f.group * s.f.keys + s.f.size, TILE_LANES);
    return s;
}

/* query_f32_accepts, query_f32_workspace, query_f32_prepare; query_bf16_accepts,
 * query_bf16_workspace, query_bf16_prepare. */
#define X(prefix, type)                                                                       \
    bool prefix##_accepts(const Call *c)                                                      \
    {                                                                                         \
        return c->in[0].dim[1] == 1 && c->in[0].dtype == (type) && flash_accepts(c, false) && \
               !flash_mask(c, 3) && !flash_starts(c, 3);                                      \
    }                                                                                         \
    int64_t prefix##_workspace(Ctx *ctx, const Call *c)                                       \
    {                                                                                         \
        (void)ctx;                                                                            \
        QueryState s = state_of(c);                                                           \
        return s.nslot * s.nfloat * (int64_t)sizeof(float);                                   \
    }                                                                                         \
    void prefix##_prepare(Call *c, Arena *a)                                                  \
    {                                                                                         \
        QueryState *s = c->state = NEW(a, QueryState);                                        \
        *s = state_of(c);                                                                     \
    }
X(query_f32, F32)
X(query_bf16, BF16)
#undef X

/* s[j] = scale q k[j] for n keys, `step` bytes apart; returns the greatest. */
INLINE float scores(float *s, const char *q, const char *k, int64_t step, int64_t n, int64_t size,
                    float scale, DType d)
{
    float top = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        s[j] = scale * row_dot(q, k + j * step, size, d);
        top = MAX(top, s[j]);
    }
    return top;
}

KERNEL_FMA(float, scores_f32,
           (float *s, const char *q, const char *k, int64_t step, int64_t n, int64_t size,
            float scale),
           (s, q, k, step, n, size, scale))
{
    return scores(s, q, k, step, n, size, scale, F32);
}

KERNEL_FMA(float, scores_bf16,
           (float *s, const char *q, const char *k, int64_t step, int64_t n, int64_t size,
            float scale),
           (s, q, k, step, n, size, scale))
{
    return scores(s, q, k, step, n, size, scale, BF16);
}

/* s[j] becomes exp(s[j] - top); returns the sum. */
KERNEL(float, exponentials, (float *s, int64_t n, float top), (s, n, top))
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, s[i] = v_exp(s[i] - top); sum[lane] += s[i]);
    return lanes_sum(sum);
}

/* o = sum over j of p[j] v[j], times factor. */
INLINE void values(float *restrict o, const float *p, const char *v, int64_t step, int64_t n,
                   int64_t size, float factor, DType t)
{
    int64_t j = 0;
    memset(o, 0, sizeof *o * (size_t)size);
    for (; j + 4 <= n; j += 4) {
        const char *x = v + j * step, *y = x + step, *z = y + step, *w = z + step;
        for (int64_t d = 0; d < size; d++)
            o[d] += (p[j] * v_load(x, d, t) + p[j + 1] * v_load(y, d, t)) +
                    (p[j + 2] * v_load(z, d, t) + p[j + 3] * v_load(w, d, t));
    }
    for (; j < n; j++)
        for (int64_t d = 0; d < size; d++)
            o[d] += p[j] * v_load(v + j * step, d, t);
    for (int64_t d = 0; d < size; d++)
        o[d] *= factor;
}

KERNEL_FMA(void, values_f32,
           (float *restrict o, const float *p, const char *v, int64_t step, int64_t n, int64_t size,
            float factor),
           (o, p, v, step, n, size, factor))
{
    values(o, p, v, step, n, size, factor, F32);
}

KERNEL_FMA(void, values_bf16,
           (float *restrict o, const float *p, const char *v, int64_t step, int64_t n, int64_t size,
            float factor),
           (o, p, v, step, n, size, factor))
{
    values(o, p, v, step, n, size, factor, BF16);
}

static const char *row_at(const Tensor *t, int64_t b, int64_t h)
{
    return element(t, flash_at(t, b, 0, h));
}

/* Key head `head` of row b and the heads that read it. */
static void group(const Call *c, const Flash *f, float *work, int64_t b, int64_t head)
{
    const Tensor *q = &c->in[0], *k = &c->in[1], *v = &c->in[2], *o = &c->out[0], *lse = &c->out[1];
    int64_t seen = flash_seen(f, 0), width = dtype_size(q->dtype);
    float *row = work + f->group * f->keys;
    for (int64_t i = 0; i < f->group; i++) {
        int64_t h = head * f->group + i;
        bool narrow = q->dtype == BF16;
        float *s = work + i * f->keys, *to = narrow ? row : flash_row(o, b, 0, h);
        float top = (narrow ? scores_bf16 : scores_f32)(s, row_at(q, b, h), row_at(k, b, head),
                                                        k->stride[1] * width, seen, f->size,
                                                        (float)f->scale);
        float sum = exponentials(s, seen, top == -INFINITY ? 0 : top);
        (narrow ? values_bf16 : values_f32)(to, s, row_at(v, b, head), v->stride[1] * width, seen,
                                            f->size, sum == 0 ? 0 : 1 / sum);
        if (narrow)
            flash_store(o, b, 0, h, 1, row, f->size);
        f32(lse)[tensor_index(lse, (int64_t[]){b, h, 0})] = sum == 0 ? INFINITY : top + logf(sum);
    }
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const QueryState *s = c->state;
    int64_t heads = s->f.heads / s->f.group, ntask = s->f.batch * heads;
    for (int64_t slot = lo; slot < hi; slot++)
        for (int64_t i = slot; i < ntask; i += s->nslot)
            group(c, &s->f, (float *)(void *)c->work + slot * s->nfloat, i / heads, i % heads);
}

int query_run(Call *c)
{
    QueryState *s = c->state;
    if (flash_place(c, &s->f))
        return -1;
    par_for(s->nslot, 1, slots, c);
    return 0;
}
