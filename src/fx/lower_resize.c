/* Resampling along axes of space: nearest, linear and cubic. An axis is resampled by taps: each
 * place of the result has as many places of the operand, which `index` reads, and their weights,
 * which are computed from the place's number as PyTorch does, in the dtype in which it computes
 * (f32 for 16 bits). The axes come one after another, the last first. A gradient is put back by the
 * same taps. Sizes that are a multiple of the operand's repeat elements, for nearest. Where a scale
 * was asked for that the sizes round, PyTorch's own kernels differ (nearest of a large image beside
 * that of a small one): here images are as its small ones, lines and volumes as its large ones, and
 * gradients as all of its gradients, which copy where no size changes, for cubic too. */
#include "arith.h"

#include "../op/convolution.h"

#include <math.h>
#include <string.h>

enum { MOST_TAPS = 4 };

typedef enum { NEAREST, NEAREST_EXACT, LINEAR, CUBIC } Resampling;

/* One axis: `n` elements of the operand, `out` of the result. */
typedef struct ResizedAxis {
    int axis;
    int64_t n, out;
    double scale; /* of the size, as it was asked for; 0: by the sizes */
    bool corners; /* first and last elements lie upon each other */
    bool rounded; /* NEAREST: no scale counts where the size stays or doubles */
    Resampling by;
} ResizedAxis;

typedef struct Taps {
    int count;
    Value *at[MOST_TAPS], *weight[MOST_TAPS]; /* weight NULL: 1 */
} Taps;

/* ---- where the taps lie ---- */

/* x of the result is x * this in the operand, rounded as the dtype d does. */
static double ratio(const ResizedAxis *r, DType d)
{
    double x = r->scale > 0 ? 1 / r->scale : (double)r->n / (double)r->out;
    if (r->corners)
        x = r->out > 1 ? (double)(r->n - 1) / (double)(r->out - 1) : 0;
    return d == F64 ? x : (float)x;
}

static Value *clamped(Site *s, Value *x, int64_t least, int64_t most)
{
    x = lower2(s, "maximum", x, lower_like(s, (double)least, x));
    return lower2(s, "minimum", x, lower_like(s, (double)most, x));
}

/* Where the places of the result lie in the operand. */
static Value *sources(Site *s, const ResizedAxis *r, DType d)
{
    Value *x = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", r->out), A_DTYPE("dtype", I64)));
    x = lower_cast(s, x, d);
    bool whole = r->corners || r->by == NEAREST;
    if (!whole)
        x = plus(s, x, 0.5);
    x = lower_times(s, x, ratio(r, d));
    return whole || r->by == NEAREST_EXACT ? x : plus(s, x, -0.5);
}

/* ((a x + b) x + c) x + e */
static Value *cubic(Site *s, Value *x, double a, double b, double c, double e)
{
    Value *y = plus(s, lower_times(s, x, a), b);
    y = plus(s, mul(s, y, x), c);
    return plus(s, mul(s, y, x), e);
}

/* Keys 1981, with A = -0.75: weights of the four elements around a place t behind the second. */
static void fill_cubic(Site *s, Taps *p, Value *t, Value *first, int64_t n)
{
    const double a = -0.75;
    Value *back = lower_times(s, plus(s, t, -1), -1);
    Value *x[] = {plus(s, t, 1), t, back, plus(s, back, 1)};
    p->count = MOST_TAPS;
    for (int k = 0; k < MOST_TAPS; k++) {
        bool near = k == 1 || k == 2;
        p->weight[k] =
            near ? cubic(s, x[k], a + 2, -(a + 3), 0, 1) : cubic(s, x[k], a, -5 * a, 8 * a, -4 * a);
        p->at[k] = clamped(s, plus(s, first, k - 1), 0, n - 1);
    }
}

static Taps taps_of(Site *s, const ResizedAxis *r, DType d)
{
    bool nearest = r->by <= NEAREST_EXACT;
    Value *x = sources(s, r, nearest && d != F64 ? F32 : d);
    if (r->by == LINEAR)
        x = lower2(s, "maximum", x, lower_like(s, 0, x));
    Value *first = lower2(s, "minimum", lower1(s, "floor", x), lower_like(s, (double)r->n - 1, x));
    Value *t = sub(s, x, first);
    first = lower_cast(s, first, I64);
    if (nearest)
        return (Taps){.count = 1, .at = {first}};
    t = lower2(s, "minimum", lower2(s, "maximum", t, lower_like(s, 0, t)), lower_like(s, 1, t));
    Taps p = {.count = 2, .at = {first, clamped(s, plus(s, first, 1), 0, r->n - 1)}};
    p.weight[0] = lower_times(s, plus(s, t, -1), -1);
    p.weight[1] = t;
    if (r->by == CUBIC)
        fill_cubic(s, &p, t, first, r->n);
    return p;
}

/* w along an axis of x */
static Value *along(Site *s, Value *w, const Value *x, int axis)
{
    int64_t size[TN_RANK];
    for (int d = 0; d < x->type.rank; d++)
        size[d] = d == axis ? w->type.dim[0] : 1;
    return lower_reshape(s, w, x->type.rank, size);
}

/* ---- one axis ---- */

/* How often each element is repeated; 0: not each alike, so in what d rounds the places to. */
static int64_t repeats(const ResizedAxis *r, DType d)
{
    int64_t times = r->n ? r->out / r->n : 0;
    bool alone = !(r->scale > 0) || r->scale == (double)times || (r->rounded && times <= 2);
    if (r->by > NEAREST_EXACT || times * r->n != r->out || !alone)
        return 0;
    double by = ratio(r, d);
    for (int64_t k = 1; k < r->n && r->by == NEAREST && times > 2; k++) {
        double at = (double)(k * times) * by;
        if ((d == F64 ? at : (float)at) < (double)k)
            return 0;
    }
    return times;
}

/* Whether the axis stays as it is: linear resampling to the same size asks for no scale. */
static bool stays(const ResizedAxis *r, DType d)
{
    bool alone = r->by == LINEAR || r->corners || !(r->scale > 0) || r->scale == 1;
    return r->n == r->out && (repeats(r, d) == 1 || alone);
}

/* x with its axis as [n, times] */
static Type split_axis(const Type *x, int axis, int64_t n, int64_t times)
{
    Type t = *x;
    memmove(t.dim + axis + 2, t.dim + axis + 1, sizeof *t.dim * (size_t)(t.rank - axis - 1));
    t.dim[axis] = n;
    t.dim[axis + 1] = times;
    t.rank++;
    return t;
}

static Value *resized(Site *s, Value *x, const ResizedAxis *r, DType d)
{
    const int64_t dim = r->axis, times = repeats(r, d);
    if (stays(r, d))
        return x;
    if (times) {
        Type one = split_axis(&x->type, r->axis, r->n, 1), all = x->type;
        all.dim[r->axis] = r->out;
        Type wide = split_axis(&all, r->axis, r->n, times);
        x = lower_expand(s, lower_reshape(s, x, one.rank, one.dim), &wide);
        return lower_reshape(s, lower1(s, "clone", x), all.rank, all.dim);
    }
    Taps p = taps_of(s, r, d);
    Value *y = NULL;
    for (int k = 0; k < p.count; k++) {
        Value *part = emit1(s->b, "index", IN(x, p.at[k]), ATTRS(A_INTS("dims", 1, &dim)));
        if (p.weight[k])
            part = mul(s, part, along(s, p.weight[k], part, r->axis));
        y = y ? add(s, y, part) : part;
    }
    return y;
}

/* The gradient of the operand. */
static Value *resized_back(Site *s, Value *dy, const ResizedAxis *r, DType d)
{
    const int64_t dim = r->axis, times = repeats(r, d), last = dim + 1;
    if (stays(r, d))
        return dy;
    if (times) {
        Type wide = split_axis(&dy->type, r->axis, r->n, times);
        return lower_reduce(s, "sum", lower_reshape(s, dy, wide.rank, wide.dim), 1, &last, false);
    }
    Taps p = taps_of(s, r, d);
    Type t = dy->type;
    t.dim[r->axis] = r->n;
    Value *dx = lower_full(s, 0, &t);
    for (int k = 0; k < p.count; k++) {
        Value *part = dy;
        if (p.weight[k])
            part = mul(s, dy, along(s, p.weight[k], dy, r->axis));
        dx = emit1(s->b, "index_put", IN(dx, part, p.at[k]),
                   ATTRS(A_INTS("dims", 1, &dim), A_BOOL("accumulate", true)));
    }
    return dx;
}

/* ---- calls ---- */

static Resampling kind_of(Site *s)
{
    const char *name = site_stem(s);
    return strstr(name, "exact")     ? NEAREST_EXACT
           : strstr(name, "nearest") ? NEAREST
           : strstr(name, "cubic")   ? CUBIC
                                     : LINEAR;
}

/* A number of a list, or the argument alone, as "scales_h"; 0: there is none. */
static double scale_at(Site *s, int axes, int d)
{
    static const char *const names[] = {"scales_d", "scales_h", "scales_w"};
    const char *name = axes == 1 ? "scales" : names[SPACE_AXES - axes + d];
    return site_has(s, name) ? site_real(s, name) : 0;
}

static void check_space(Site *s, const Type *t, int axes)
{
    if (t->rank != axes + 2 || !dtype_float(t->dtype))
        site_fail(s, "expected floats [N, C, ...] with %d axes of space, found %s", axes,
                  type_text(s->im->a, t));
    for (int d = 0; d < axes; d++)
        if (t->dim[2 + d] < 1)
            site_fail(s, "expected axes of space with elements, found %s", type_text(s->im->a, t));
}

/* The axes of a call; x: the operand's type, `out` sizes of the result. */
static void fill_axes(Site *s, const Type *x, int axes, const int64_t *out, ResizedAxis *r)
{
    Resampling by = kind_of(s);
    bool corners = by >= LINEAR && site_bool(s, "align_corners");
    bool lists = strstr(s->row->name, ".vec") != NULL;
    bool rounded = by == NEAREST && (axes == 2 || strstr(s->row->name, "backward"));
    bool listed = lists && site_has(s, "scale_factors");
    for (int d = 0; d < axes; d++) {
        double scale = listed  ? site_list_real(s, "scale_factors", axes, d)
                       : lists ? 0
                               : scale_at(s, axes, d);
        r[d] = (ResizedAxis){2 + d, x->dim[2 + d], out[d], scale, corners, rounded, by};
        if (out[d] < 1)
            site_fail(s, "expected sizes of 1 or more, found %lld", (long long)out[d]);
    }
}

static int axes_named(const Site *s)
{
    return *strpbrk(s->row->name, "123") - '0';
}

int64_t lower_scaled_size(Site *s, int64_t n, int axes, int k)
{
    double size = floor((double)n * site_list_real(s, "scale_factors", axes, k));
    if (!(size >= 1 && size <= INT32_MAX))
        site_fail(s, "argument scale_factors: expected sizes of 1 to %d, found %g", INT32_MAX,
                  size);
    return (int64_t)size;
}

/* Sizes that are given, or the operand's times scale_factors. */
static void read_sizes(Site *s, const Type *x, int axes, int64_t *out)
{
    int count = axes;
    if (site_has(s, "output_size"))
        count = site_ints(s, "output_size", out);
    else
        for (int d = 0; d < axes; d++)
            out[d] = lower_scaled_size(s, x->dim[2 + d], axes, d);
    if (count != axes)
        site_fail(s, "expected %d sizes, found %d", axes, count);
}

void row_upsample(Site *s)
{
    const char *name = strstr(s->row->name, ".vec") ? "input" : "self";
    Value *x = site_tensor(s, name);
    int axes = axes_named(s);
    DType d = x->type.dtype;
    int64_t out[TN_RANK];
    ResizedAxis r[SPACE_AXES];
    check_space(s, &x->type, axes);
    read_sizes(s, &x->type, axes, out);
    fill_axes(s, &x->type, axes, out, r);
    DType wide = r[0].by <= NEAREST_EXACT ? d : opmath_type(d);
    x = lower_cast(s, x, wide);
    for (int k = axes - 1; k >= 0; k--)
        x = resized(s, x, &r[k], opmath_type(d));
    site_return(s, lower_cast(s, x, d));
}

void row_upsample_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    int axes = axes_named(s);
    DType d = dy->type.dtype;
    Type t = {.dtype = d};
    ResizedAxis r[SPACE_AXES];
    t.rank = site_ints(s, "input_size", t.dim);
    check_space(s, &t, axes);
    check_space(s, &dy->type, axes);
    fill_axes(s, &t, axes, dy->type.dim + 2, r);
    dy = lower_cast(s, dy, opmath_type(d));
    bool copied = r[0].by == CUBIC && shape_equal(&t, &dy->type);
    for (int k = 0; k < axes && !copied; k++)
        dy = resized_back(s, dy, &r[k], opmath_type(d));
    site_return(s, lower_cast(s, dy, d));
}
