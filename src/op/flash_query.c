/* flash_attention of one query a head, as text is generated: nothing to reuse but the keys and
 * values themselves, which the heads of a group share, so it runs as fast as they are read. A task
 * is a group of heads: scores of all its keys, their softmax, then the sum of the values.
 *
 * Numerics: f32; a score's products in LANES partial sums, values in the order of the keys four at
 * a time, whatever the threads. */
#include "flash_tile.h"
#include "rows.h"
#include "vmath.h"

#include <math.h>

typedef struct QueryState {
    Flash f;
    int nslot;
    int64_t nfloat; /* workspace of a slot: the scores of a group */
} QueryState;

bool flash_query_accepts(const Call *c)
{
    return c->in[0].dim[1] == 1 && c->in[0].dtype == F32 && flash_accepts(c, 3) &&
           !flash_mask(c, 3);
}

static QueryState state_of(const Call *c)
{
    QueryState s = {.f = flash_of(c->node, 0)};
    s.nslot = (int)MAX(1, MIN(par_threads(), s.f.batch * s.f.heads / s.f.group));
    s.nfloat = round_lanes(s.f.group * s.f.keys);
    return s;
}

int64_t flash_query_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    QueryState s = state_of(c);
    return s.nslot * s.nfloat * (int64_t)sizeof(float);
}

void flash_query_prepare(Call *c, Arena *a)
{
    QueryState *s = c->state = NEW(a, QueryState);
    *s = state_of(c);
}

INLINE float dot(const float *x, const float *y, int64_t n)
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, sum[lane] += x[i] * y[i]);
    return lanes_sum(sum);
}

/* s[j] = scale q k[j] for n keys; returns the greatest. */
KERNEL_FMA(float, scores,
           (float *s, const float *q, const float *k, int64_t step, int64_t n, int64_t size,
            float scale),
           (s, q, k, step, n, size, scale))
{
    float top = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        s[j] = scale * dot(q, k + j * step, size);
        top = MAX(top, s[j]);
    }
    return top;
}

/* s[j] becomes exp(s[j] - top); returns the sum. */
KERNEL(float, exponentials, (float *s, int64_t n, float top), (s, n, top))
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, s[i] = v_exp(s[i] - top); sum[lane] += s[i]);
    return lanes_sum(sum);
}

/* o = sum over j of p[j] v[j], times factor. */
KERNEL_FMA(void, values,
           (float *restrict o, const float *p, const float *v, int64_t step, int64_t n,
            int64_t size, float factor),
           (o, p, v, step, n, size, factor))
{
    int64_t j = 0;
    memset(o, 0, sizeof *o * (size_t)size);
    for (; j + 4 <= n; j += 4) {
        const float *x = v + j * step, *y = x + step, *z = y + step, *w = z + step;
        for (int64_t d = 0; d < size; d++)
            o[d] += (p[j] * x[d] + p[j + 1] * y[d]) + (p[j + 2] * z[d] + p[j + 3] * w[d]);
    }
    for (; j < n; j++)
        for (int64_t d = 0; d < size; d++)
            o[d] += p[j] * v[j * step + d];
    for (int64_t d = 0; d < size; d++)
        o[d] *= factor;
}

/* Key head `head` of row b and the heads that read it. */
static void group(const Call *c, const Flash *f, float *work, int64_t b, int64_t head)
{
    const Tensor *k = &c->in[1], *v = &c->in[2];
    int64_t seen = flash_seen(f, 0);
    const Tensor *lse = &c->out[1];
    for (int64_t i = 0; i < f->group; i++) {
        int64_t h = head * f->group + i;
        float *s = work + i * f->keys;
        float top = scores(s, flash_row(&c->in[0], b, 0, h), flash_row(k, b, 0, head), k->stride[1],
                           seen, f->size, (float)f->scale);
        float sum = exponentials(s, seen, top);
        values(flash_row(&c->out[0], b, 0, h), s, flash_row(v, b, 0, head), v->stride[1], seen,
               f->size, 1 / sum);
        f32(lse)[tensor_index(lse, (int64_t[]){b, h, 0})] = top + logf(sum);
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

int flash_query_run(Call *c)
{
    QueryState *s = c->state;
    if (flash_place(c, &s->f))
        return -1;
    par_for(s->nslot, 1, slots, c);
    return 0;
}
