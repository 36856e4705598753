/* The variant "blocks": the library's products on blocks of queries and keys (frame.c), the method
 * otherwise that of tiles (tiles.c). Forward, scores lie by rows of queries:
 *
 *   s = q k^T, p beside or in the place of s,  o += p v
 *
 * Backward, scores lie by rows of keys, so that four of the five products read p and ds as they
 * lie:
 *
 *   s = k q^T,  dp = v do^T,  dk += ds q,  dv += p do,  dq += ds^T k
 *
 * For processors whose products need more than vectors (AMX), and all others that the library
 * knows.
 *
 * Numerics: the sums of a product are the library's, by shape alone; blocks of keys in order.
 * Operands have q's dtype, probabilities and their gradients are rounded to it. The bits do not
 * depend on the number of threads. A query's probability of a key that it does not see is 0, but 0
 * times a NaN or infinity is NaN: one in v of a key reaches all queries of a block that reads it.
 */
#include "attention.h"

#include <math.h>

/* ---- products ---- */

/* rows x columns without gaps; turned: their transpose lies in memory. */
static OneMatrix dense(DType d, int64_t rows, int64_t columns, bool turned)
{
    OneMatrix m = {.dtype = d, .rank = 2, .dim = {rows, columns}, .stride = {columns, 1}};
    if (turned) {
        m.stride[0] = 1;
        m.stride[1] = rows;
    }
    return m;
}

/* y = a b, or y += a b. */
static OneProduct describe(OneMatrix a, OneMatrix b, bool adds)
{
    OneMatrix y = dense(F32, a.dim[0], b.dim[1], false);
    return (OneProduct){.a = a, .b = b, .y = y, .adds = adds, .alone = true};
}

/* Runs a product of a block and the units of `nkeys` keys. */
static int product(const FrameBlock *j, int which, int64_t nkeys, const char *a, const char *b,
                   float *y)
{
    OneRun *run = j->run[which * j->s->steps + frame_units(j->s, nkeys) - 1];
    return onednn_run(run, a, b, NULL, y, j->w.own);
}

/* Row `key` of k or v. */
static const char *key_row(const FrameBlock *j, const char *rows, int64_t key)
{
    return rows + key * j->s->size * dtype_size(j->s->dtype);
}

/* ---- softmax by rows ---- */

/* The greatest of s[0 .. n), which ends with -inf up to whole LANES. */
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

/* ---- forward ---- */

enum { SCORES, VALUES, PRODUCTS };

static OneProduct describe_forward(const Frame *s, int which, int64_t nkeys)
{
    if (which == SCORES)
        return describe(dense(s->dtype, s->rows, s->size, false),
                        dense(s->dtype, s->size, nkeys, true), false);
    return describe(dense(s->dtype, s->rows, nkeys, false), dense(s->dtype, nkeys, s->size, false),
                    true);
}

/* p of the block's rows and keys [key, key + nkeys), of `width` with padding; o to their maxima. */
static void probabilities(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t width)
{
    const Frame *s = j->s;
    const FrameWork *w = &j->w;
    frame_add_mask(j, key, nkeys, 0, width, 1);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t seen = r < j->n ? flash_seen(&s->f, j->query + r / s->f.group) - key : 0;
        float *row = w->s + r * width, factor;
        char *p = w->p + r * width * dtype_size(s->dtype);
        seen = MAX(0, MIN(seen, nkeys));
        int64_t blind = r < j->n && j->starts
                            ? flash_first(j->starts, j->b, j->query + r / s->f.group) - key
                            : 0;
        for (int64_t k = 0; k < MIN(blind, seen); k++)
            row[k] = -INFINITY;
        if (s->dtype == F32)
            factor = row_f32(p, row, seen, width, j->scale, &w->top[r], &w->sum[r]);
        else
            factor = row_bf16(p, row, seen, width, j->scale * LOG2E, &w->top[r], &w->sum[r]);
        if (key > j->first && factor != 1)
            multiply(w->y + r * s->size, factor, s->f.size);
    }
}

static int step(const FrameBlock *j, int64_t key, int64_t nkeys)
{
    const FrameWork *w = &j->w;
    int status = product(j, SCORES, nkeys, w->q, key_row(j, w->k, key), w->s);
    if (status)
        return status;
    probabilities(j, key, nkeys, frame_units(j->s, nkeys) * j->s->unit);
    return product(j, VALUES, nkeys, w->p, key_row(j, w->v, key), w->y);
}

/* o by the sums; the log-sum-exp in the place of the maximum. */
static void end(const FrameBlock *j)
{
    const FrameWork *w = &j->w;
    for (int64_t r = 0; r < j->n; r++) {
        float sum = w->sum[r], top = w->top[r];
        multiply(w->y + r * j->s->size, sum == 0 ? 0.0f : 1.0f / sum, j->s->f.size);
        w->lse[r] = flash_lse(j->scale * top, sum, logf(sum), j->mask);
    }
}

static const FrameSteps steps = {.step = step, .end = end};
static const FrameVariant forward = {
    .steps = &steps,
    .cut = {16, 256, 256, 64, 0},
    .describe = describe_forward,
    .nproduct = PRODUCTS,
};

/* blocks_accepts, blocks_workspace, blocks_prepare; below, blocks_backward_accepts and so on. */
FRAME_KERNEL(blocks, &forward, matmul_fast(c->in[0].dtype))

int64_t blocks_handles(const Call *c)
{
    return frame_handles(c, &forward);
}

/* ---- backward ---- */

enum { BACKWARD_SCORES, BACKWARD_KEYS, BACKWARD_QUERIES, BACKWARD_PRODUCTS };

static OneProduct describe_backward(const Frame *s, int which, int64_t nkeys)
{
    OneMatrix rows = dense(s->dtype, s->rows, s->size, false);
    OneMatrix keys = dense(s->dtype, nkeys, s->size, false);
    if (which == BACKWARD_SCORES)
        return describe(keys, dense(s->dtype, s->size, s->rows, true), false);
    if (which == BACKWARD_KEYS)
        return describe(dense(s->dtype, nkeys, s->rows, false), rows, true);
    return describe(dense(s->dtype, s->rows, nkeys, true), keys, true);
}

static int step_backward(const FrameBlock *j, int64_t key, int64_t nkeys)
{
    const FrameWork *w = &j->w;
    const char *k = key_row(j, w->k, key), *v = key_row(j, w->v, key);
    int64_t at = key * j->s->size;
    int status = product(j, BACKWARD_SCORES, nkeys, k, w->q, w->s);
    if (!status)
        status = product(j, BACKWARD_SCORES, nkeys, v, w->grad, w->dp);
    if (status)
        return status;
    frame_score_grads(j, key, nkeys, frame_units(j->s, nkeys) * j->s->unit, 0);
    status = product(j, BACKWARD_KEYS, nkeys, w->ds, w->q, j->dk + at);
    if (!status)
        status = product(j, BACKWARD_KEYS, nkeys, w->p, w->grad, j->dv + at);
    return status ? status : product(j, BACKWARD_QUERIES, nkeys, w->ds, k, w->y);
}

static const FrameSteps steps_backward = {.step = step_backward};
static const FrameVariant backward = {
    .backward = true,
    .steps = &steps_backward,
    .cut = {16, 256, 256, 64, 0},
    .describe = describe_backward,
    .nproduct = BACKWARD_PRODUCTS,
};

FRAME_KERNEL(blocks_backward, &backward, matmul_fast(c->in[0].dtype))

int64_t blocks_backward_handles(const Call *c)
{
    return frame_handles(c, &backward);
}
