/* Antialiased resampling of images, linear and cubic: each axis is multiplied by a matrix of
 * weights, [out, n]. The weights of an element of the result are a filter's around its place in the
 * operand, as wide as the step from place to place where that is over 1, and their sum is 1. They
 * are computed from places' numbers, in the dtype in which PyTorch computes (f32 for 16 bits). A
 * gradient is multiplied by the same matrices, transposed. An axis that keeps its size is copied,
 * whatever scale was asked for; PyTorch's gradient of that takes the scale. */
#include "arith.h"

#include <math.h>
#include <string.h>

enum { IMAGE_AXES = 2 };

/* One axis: `n` elements of the operand, `out` of the result, `step` of the operand between places
 * of the result. */
typedef struct SmoothedAxis {
    int64_t n, out;
    double step;
    bool cubic;
} SmoothedAxis;

/* ---- weights ---- */

static Value *numbers(Site *s, int64_t n, DType d)
{
    return lower_cast(s, lower_count(s, n), d);
}

/* 1 - x, up to where that is 0 */
static Value *hat(Site *s, Value *x)
{
    Value *y = plus(s, lower_times(s, x, -1), 1);
    return lower2(s, "maximum", y, lower_like(s, 0, y));
}

/* ((a x + b) x + c) x + e */
static Value *polynomial(Site *s, Value *x, double a, double b, double c, double e)
{
    Value *y = plus(s, lower_times(s, x, a), b);
    y = plus(s, mul(s, y, x), c);
    return plus(s, mul(s, y, x), e);
}

/* Keys 1981, with A = -0.5. */
static Value *keys(Site *s, Value *x)
{
    const double a = -0.5;
    Value *near = polynomial(s, x, a + 2, -(a + 3), 0, 1);
    Value *far = polynomial(s, x, a, -5 * a, 8 * a, -4 * a);
    far = where_or(s, compare(s, "lt", x, 2), far, 0);
    return lower_where(s, compare(s, "lt", x, 1), near, far);
}

/* [out, n] */
static Value *weights(Site *s, const SmoothedAxis *a, DType d)
{
    const int64_t last = 1, column[] = {a->out, 1};
    double width = fmax(a->step, 1);
    Value *center = lower_times(s, plus(s, numbers(s, a->out, d), 0.5), a->step);
    Value *x = sub(s, plus(s, numbers(s, a->n, d), 0.5), lower_reshape(s, center, 2, column));
    x = lower_times(s, lower1(s, "abs", x), 1 / width);
    Value *w = a->cubic ? keys(s, x) : hat(s, x);
    return lower2(s, "div", w, lower_reduce(s, "sum", w, 1, &last, true));
}

/* ---- products ---- */

static Value *turned(Site *s, Value *w)
{
    return lower1(s, "t", w);
}

/* x[..., n] w^T */
static Value *along_rows(Site *s, Value *x, Value *w)
{
    Type t = x->type;
    int64_t n = t.dim[t.rank - 1], size[] = {n ? type_nelem(&t) / n : 0, n};
    Value *y = lower2(s, "mm", lower_reshape(s, x, 2, size), turned(s, w));
    t.dim[t.rank - 1] = w->type.dim[0];
    return lower_reshape(s, y, t.rank, t.dim);
}

/* w x for each image of x[N, C, n, width]. */
static Value *along_columns(Site *s, Value *x, Value *w)
{
    Type t = x->type, each = w->type;
    int64_t size[] = {t.dim[0] * t.dim[1], t.dim[2], t.dim[3]};
    each.rank = 3;
    each.dim[0] = size[0];
    memcpy(each.dim + 1, w->type.dim, sizeof *each.dim * 2);
    Value *y = lower2(s, "bmm", lower_expand(s, w, &each), lower_reshape(s, x, 3, size));
    t.dim[2] = w->type.dim[0];
    return lower_reshape(s, y, t.rank, t.dim);
}

/* ---- calls ---- */

static void check_image(Site *s, const Type *t)
{
    if (t->rank != 2 + IMAGE_AXES || !dtype_float(t->dtype) || t->dim[2] < 1 || t->dim[3] < 1)
        site_fail(s, "expected images [N, C, H, W] of floats with elements, found %s",
                  type_text(s->im->a, t));
}

/* x: the operand's type, out: sizes of the result. */
static void fill_axes(Site *s, const Type *x, const int64_t *out, SmoothedAxis *a)
{
    static const char *const names[] = {"scales_h", "scales_w"};
    bool corners = site_bool(s, "align_corners"), list = strstr(s->row->name, ".vec") != NULL;
    for (int d = 0; d < IMAGE_AXES; d++) {
        double n = (double)x->dim[2 + d], step = n / (double)out[d];
        if (out[d] < 1)
            site_fail(s, "expected sizes of 1 or more, found %lld", (long long)out[d]);
        if (corners)
            step = out[d] > 1 ? (n - 1) / (double)(out[d] - 1) : 0;
        else if (list && site_has(s, "scale_factors"))
            step = 1 / site_list_real(s, "scale_factors", IMAGE_AXES, d);
        else if (!list && site_has(s, names[d]))
            step = 1 / site_real(s, names[d]);
        a[d] = (SmoothedAxis){x->dim[2 + d], out[d], x->dtype == F64 ? step : (float)step,
                              strstr(s->row->name, "cubic") != NULL};
    }
}

static void read_sizes(Site *s, const Type *x, int64_t *out)
{
    bool given = site_has(s, "output_size");
    int count = given ? site_ints(s, "output_size", out) : IMAGE_AXES;
    if (count != IMAGE_AXES)
        site_fail(s, "expected %d sizes, found %d", IMAGE_AXES, count);
    for (int d = 0; !given && d < count; d++)
        out[d] = lower_scaled_size(s, x->dim[2 + d], IMAGE_AXES, d);
}

void row_upsample_smooth(Site *s)
{
    Value *x = site_tensor(s, strstr(s->row->name, ".vec") ? "input" : "self");
    DType d = x->type.dtype, wide = opmath_type(d);
    int64_t out[TN_RANK];
    SmoothedAxis a[IMAGE_AXES];
    check_image(s, &x->type);
    read_sizes(s, &x->type, out);
    fill_axes(s, &x->type, out, a);
    x = lower_cast(s, x, wide);
    if (a[1].n != a[1].out)
        x = along_rows(s, x, weights(s, &a[1], wide));
    if (a[0].n != a[0].out)
        x = along_columns(s, x, weights(s, &a[0], wide));
    site_return(s, lower_cast(s, x, d));
}

void row_upsample_smooth_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    DType d = dy->type.dtype, wide = opmath_type(d);
    Type t = {.dtype = d};
    SmoothedAxis a[IMAGE_AXES];
    t.rank = site_ints(s, "input_size", t.dim);
    check_image(s, &t);
    check_image(s, &dy->type);
    fill_axes(s, &t, dy->type.dim + 2, a);
    dy = along_columns(s, lower_cast(s, dy, wide), turned(s, weights(s, &a[0], wide)));
    dy = along_rows(s, dy, turned(s, weights(s, &a[1], wide)));
    site_return(s, lower_cast(s, dy, d));
}
