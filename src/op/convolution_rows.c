/* The kernel of depthwise convolutions over one axis with stride 1, such as Mamba's causal ones:
 * each channel is a row with a few taps. It reads and writes each element once, in blocks that stay
 * in a cache, and needs no workspace; oneDNN has no such kernel for one axis and unfolds images for
 * the weight's gradient.
 *
 *   y[t] = bias + sum over j of w[j] x[t + first + j step]
 *   dw[j] = sum over images and t of dy[t] x[t + first + j step]
 *
 * where first = -padding and step = dilation; transposed, padding and -dilation. f32 and bf16.
 *
 * Numerics: an element's sum is in f32, bias first, taps in ascending order, rounded once. The
 * weight's sums over a row are in LANES sums in f32, over rows in double. Rows and channels are
 * divided among threads: bits do not depend on how. */
#include "convolution.h"

#include "vmath.h"

#include <string.h>

enum { BLOCK = 512, HALO = 512, LANES = 16, MOST_TAPS = 64 };

/* Operand x and result y, or for the weight image and map. */
typedef struct RowTaps {
    Conv c;
    const Tensor *x, *y, *w, *bias;
    int64_t first, step, nx, ny, taps;
} RowTaps;

static RowTaps taps_of(const Conv *c, const Tensor *x, const Tensor *y, const Tensor *w)
{
    RowTaps r = {.c = *c, .x = x, .y = y, .w = w, .taps = c->kernel[2]};
    r.first = c->transposed ? c->padding[2] : -c->padding[2];
    r.step = c->transposed ? -c->dilation[2] : c->dilation[2];
    r.nx = x->dim[2];
    r.ny = y->dim[2];
    return r;
}

static bool narrow_or_f32(const Tensor *t)
{
    return t->dtype == F32 || t->dtype == BF16;
}

static bool is_row(const Tensor *t)
{
    return narrow_or_f32(t) && (t->dim[2] == 1 || t->stride[2] == 1);
}

static bool accepts(const Conv *c, const Tensor *x, const Tensor *y, const Tensor *w)
{
    return c->axes == 1 && c->in == 1 && c->out == 1 && c->stride[2] == 1 &&
           c->kernel[2] <= MOST_TAPS && c->dilation[2] * (c->kernel[2] - 1) <= HALO && is_row(x) &&
           is_row(y) && narrow_or_f32(w);
}

bool conv_rows_accepts(const Call *c)
{
    if (c->out[0].rank != 3)
        return false;
    Conv conv = conv_of(c->node);
    return accepts(&conv, &c->in[CONV_INPUT], &c->out[0], &c->in[CONV_WEIGHT]);
}

bool conv_rows_weight_accepts(const Call *c)
{
    if (c->out[0].rank != 3)
        return false;
    Conv conv = conv_weight_of(c->node);
    return accepts(&conv, &c->in[CONV_IMAGE], &c->in[CONV_MAP], &c->out[0]);
}

/* ---- elements ---- */

KERNEL(void, load, (float *restrict to, const void *from, int64_t at, int64_t n, int bf16),
       (to, from, at, n, bf16))
{
    if (bf16)
        for (int64_t i = 0; i < n; i++)
            to[i] = v_bf16_to_f32(((const uint16_t *)from)[at + i]);
    else
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
}

KERNEL(void, store, (void *to, int64_t at, const float *restrict from, int64_t n, int bf16),
       (to, at, from, n, bf16))
{
    if (bf16)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[at + i] = v_f32_to_bf16(from[i]);
    else
        memcpy((float *)to + at, from, (size_t)n * sizeof *from);
}

KERNEL_FMA(void, add_tap, (float *restrict y, const float *restrict x, float w, int64_t n),
           (y, x, w, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] += w * x[i];
}

KERNEL_FMA(void, add_products,
           (float *restrict lane, const float *restrict x, const float *restrict y, int64_t n),
           (lane, x, y, n))
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (int l = 0; i + l < n; l++)
        lane[l] += x[i + l] * y[i + l];
}

static const char *row_at(const Tensor *t, int64_t n, int64_t channel)
{
    return t->data + (n * t->stride[0] + channel * t->stride[1]) * dtype_size(t->dtype);
}

/* The elements [from, end) of a row of x that taps read for one block of y. */
typedef struct TapWindow {
    float x[BLOCK + HALO];
    int64_t from, end;
} TapWindow;

static void load_window(const RowTaps *r, TapWindow *b, const char *row, int64_t at, int64_t count)
{
    int64_t reach = r->step * (r->taps - 1);
    int64_t from = at + r->first + MIN(reach, 0), end = at + count + r->first + MAX(reach, 0);
    b->from = MIN(MAX(from, 0), r->nx);
    b->end = MAX(MIN(end, r->nx), b->from);
    load(b->x, row, b->from, b->end - b->from, r->x->dtype == BF16);
}

/* The places [*lo, *hi) of a block at which tap j reads x; returns x's of *lo. */
static const float *tap_range(const RowTaps *r, const TapWindow *b, int64_t at, int64_t count,
                              int64_t j, int64_t *lo, int64_t *hi)
{
    int64_t shift = at + r->first + j * r->step; /* of x for the block's first place */
    *lo = MIN(MAX(-shift, 0), count);
    *hi = MAX(MIN(r->nx - shift, count), *lo);
    return b->x + (*hi > *lo ? shift + *lo - b->from : 0);
}

/* ---- convolution ---- */

static void run_row(const RowTaps *r, int64_t n, int64_t channel)
{
    TapWindow b;
    float y[BLOCK], w[MOST_TAPS];
    const char *x = row_at(r->x, n, channel);
    char *to = (char *)(uintptr_t)row_at(r->y, n, channel);
    float bias = r->bias ? (float)tensor_get(r->bias, channel * r->bias->stride[0]) : 0;
    for (int64_t j = 0; j < r->taps; j++)
        w[j] = (float)tensor_get(r->w, channel * r->w->stride[0] + j * r->w->stride[2]);
    for (int64_t at = 0; at < r->ny; at += BLOCK) {
        int64_t count = MIN(BLOCK, r->ny - at), lo, hi;
        load_window(r, &b, x, at, count);
        for (int64_t i = 0; i < count; i++)
            y[i] = bias;
        for (int64_t j = 0; j < r->taps; j++) {
            const float *from = tap_range(r, &b, at, count, j, &lo, &hi);
            add_tap(y + lo, from, w[j], hi - lo);
        }
        store(to, at, y, count, r->y->dtype == BF16);
    }
}

static void run_rows(void *arg, int64_t lo, int64_t hi)
{
    const RowTaps *r = arg;
    for (int64_t i = lo; i < hi; i++)
        run_row(r, i / r->c.groups, i % r->c.groups);
}

/* Rows that one thread does at least. */
static int64_t grain(int64_t n)
{
    return MAX(16384 / MAX(n, 1), 1);
}

int conv_rows_run(Call *c)
{
    Conv conv = conv_of(c->node);
    RowTaps r = taps_of(&conv, &c->in[CONV_INPUT], &c->out[0], &c->in[CONV_WEIGHT]);
    r.bias = c->nin > CONV_BIAS ? &c->in[CONV_BIAS] : NULL;
    par_for(conv.batch * conv.groups, grain(r.ny), run_rows, &r);
    return 0;
}

/* ---- the weight's gradient ---- */

static void sum_row(const RowTaps *r, int64_t n, int64_t channel, double *sum)
{
    TapWindow b;
    float y[BLOCK], lane[MOST_TAPS][LANES];
    const char *x = row_at(r->x, n, channel), *map = row_at(r->y, n, channel);
    memset(lane, 0, sizeof *lane * (size_t)r->taps);
    for (int64_t at = 0; at < r->ny; at += BLOCK) {
        int64_t count = MIN(BLOCK, r->ny - at), lo, hi;
        load_window(r, &b, x, at, count);
        load(y, map, at, count, r->y->dtype == BF16);
        for (int64_t j = 0; j < r->taps; j++) {
            const float *from = tap_range(r, &b, at, count, j, &lo, &hi);
            add_products(lane[j], from, y + lo, hi - lo);
        }
    }
    for (int64_t j = 0; j < r->taps; j++)
        for (int l = 0; l < LANES; l++)
            sum[j] += (double)lane[j][l];
}

static void sum_channels(void *arg, int64_t lo, int64_t hi)
{
    const RowTaps *r = arg;
    for (int64_t channel = lo; channel < hi; channel++) {
        double sum[MOST_TAPS] = {0};
        for (int64_t n = 0; n < r->c.batch; n++)
            sum_row(r, n, channel, sum);
        for (int64_t j = 0; j < r->taps; j++)
            tensor_set(r->w, channel * r->w->stride[0] + j * r->w->stride[2], sum[j]);
    }
}

int conv_rows_weight_run(Call *c)
{
    Conv conv = conv_weight_of(c->node);
    RowTaps r = taps_of(&conv, &c->in[CONV_IMAGE], &c->in[CONV_MAP], &c->out[0]);
    par_for(conv.groups, grain(conv.batch * r.ny), sum_channels, &r);
    return 0;
}
