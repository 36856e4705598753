/* Fourier transforms of small sizes, as products with matrices of cosines and sines: O(n^2) for an
 * axis of n, which a product of a few hundred columns does faster than a pass over memory for each
 * factor of n. With t = 2 pi j k / n the forward transform is sum_j x_j (cos t - i sin t). Angles
 * are reduced to one turn as integers and computed in f64. A real transform's half is the columns
 * up to n / 2; back from it these count twice, but for the first and an even n's last. */
#include "arith.h"

#include <math.h>
#include <string.h>

enum { MOST_SIZE = 2048 };

/* ---- one axis ---- */

/* cos or sin of 2 pi j k / n for j < rows and k < columns */
static Value *wave(Site *s, const char *op, int64_t n, int64_t rows, int64_t columns, DType d)
{
    const int64_t column[] = {rows, 1};
    const double turn = 2 * acos(-1.0);
    Value *j = lower_count(s, rows);
    Value *k = lower_count(s, columns);
    Value *at = mul(s, lower_reshape(s, j, 2, column), k);
    at = lower2(s, "remainder", at, lower_number(s, (double)n, I64));
    return lower_cast(s, lower1(s, op, lower_times(s, lower_cast(s, at, F64), turn / (double)n)),
                      d);
}

static Item item_of(Site *s, Value *x)
{
    return (Item){.kind = FX_TENSOR, .t = fx_fresh(s->im, x)};
}

/* x times a matrix along an axis */
static Value *along(Site *s, Value *x, int axis, Value *m)
{
    int last = x->type.rank - 1;
    const AttrArg *swap = ATTRS(A_INT("dim0", axis), A_INT("dim1", last));
    if (axis != last)
        x = emit1(s->b, "transpose", IN(x), swap);
    Item pair[] = {item_of(s, x), item_of(s, m)};
    Value *y = fx_read(s->im, lower_call(s, "matmul.default", 2, pair).t);
    return axis == last
               ? y
               : emit1(s->b, "transpose", IN(y), ATTRS(A_INT("dim0", axis), A_INT("dim1", last)));
}

/* re and im, of which im may be NULL, along an axis of n; `count` of the results. */
static void transform(Site *s, Value *x[2], int axis, int64_t count, bool forward)
{
    int64_t n = x[0]->type.dim[axis];
    DType d = x[0]->type.dtype;
    Value *c = wave(s, "cos", n, n, count, d), *w = wave(s, "sin", n, n, count, d);
    if (forward)
        w = lower1(s, "neg", w);
    Value *re = along(s, x[0], axis, c), *im = along(s, x[0], axis, w);
    if (x[1]) {
        re = sub(s, re, along(s, x[1], axis, w));
        im = add(s, im, along(s, x[1], axis, c));
    }
    x[0] = re;
    x[1] = im;
}

/* The n real numbers whose half is x. */
static Value *from_half(Site *s, Value *x[2], int axis, int64_t n)
{
    int64_t m = x[0]->type.dim[axis];
    const int64_t column[] = {m, 1};
    DType d = x[0]->type.dtype;
    Value *k = lower_count(s, m);
    Value *single = lower2(s, "logical_or", compare(s, "eq", k, 0),
                           compare(s, "eq", lower_times(s, k, 2), (double)n));
    Value *times = lower_where(s, single, lower_number(s, 1, d), lower_number(s, 2, d));
    times = lower_reshape(s, times, 2, column);
    Value *c = mul(s, wave(s, "cos", n, m, n, d), times);
    Value *w = mul(s, wave(s, "sin", n, m, n, d), times);
    return sub(s, along(s, x[0], axis, c), along(s, x[1], axis, w));
}

/* ---- calls ---- */

typedef struct Fourier {
    int count, axis[TN_RANK];
    double scale; /* of the results */
} Fourier;

/* The axes of x and the scale; `last`: how many elements the last of them stands for. */
static Fourier read_fourier(Site *s, const Type *x, const Item *dims, const Item *norm,
                            int64_t last)
{
    Fourier f = {.count = dims->kind == FX_LIST ? dims->count : -1, .scale = 1};
    double all = 1;
    if (f.count < 1 || f.count > x->rank || norm->kind != FX_INT || !dtype_float(x->dtype) ||
        dtype_size(x->dtype) == 2)
        site_fail(s, "expected f32 or f64, axes and a kind of norm, found %s",
                  type_text(s->im->a, x));
    for (int i = 0; i < f.count; i++) {
        int64_t axis = dims->item[i].i < 0 ? dims->item[i].i + x->rank : dims->item[i].i;
        if (axis < 0 || axis >= x->rank)
            site_fail(s, "argument dim: expected axes of %s", type_text(s->im->a, x));
        int64_t n = last && i == f.count - 1 ? last : x->dim[axis];
        if (n < 1 || n > MOST_SIZE)
            site_fail(
                s,
                "expected axes of 1 to %d elements, found %lld: a transform is a product with "
                "a matrix",
                MOST_SIZE, (long long)n);
        f.axis[i] = (int)axis;
        all *= (double)n;
    }
    f.scale = norm->i == 1 ? 1 / sqrt(all) : norm->i == 2 ? 1 / all : 1;
    return f;
}

static Item pair_of(Site *s, Value *x[2], double scale)
{
    Item y[2];
    for (int k = 0; k < 2; k++)
        y[k] = item_of(s, scale == 1 ? x[k] : lower_times(s, x[k], scale));
    return lower_call(s, "complex.default", 2, y);
}

void row_fft_real(Site *s)
{
    Value *x[2] = {site_tensor(s, "self"), NULL};
    Fourier f = read_fourier(s, &x[0]->type, site_arg(s, "dim"), site_arg(s, "normalization"), 0);
    int last = f.axis[f.count - 1];
    int64_t n = x[0]->type.dim[last];
    transform(s, x, last, site_bool(s, "onesided") ? n / 2 + 1 : n, true);
    for (int i = 0; i < f.count - 1; i++)
        transform(s, x, f.axis[i], x[0]->type.dim[f.axis[i]], true);
    s->result = pair_of(s, x, f.scale);
}

void row_fft_complex(Site *s)
{
    site_fail(s, "argument self: expected a complex tensor, found %s",
              type_text(s->im->a, site_type(s, "self")));
}

Item fx_fourier(Site *s, const Item *x, int narg, const Item *arg)
{
    bool back = !strncmp(s->name, "aten._fft_c2r", 13);
    if (narg != 4 || (back ? arg[3].kind != FX_INT : arg[3].kind != FX_BOOL) ||
        (back && arg[3].i < 1))
        site_fail(s, "%s: expected axes, a kind of norm, and %s", s->name,
                  back ? "a size" : "a direction");
    Value *v[2] = {fx_read(s->im, x->item[0].t), fx_read(s->im, x->item[1].t)};
    Fourier f = read_fourier(s, &v[0]->type, &arg[1], &arg[2], back ? arg[3].i : 0);
    int count = f.count - back;
    for (int i = 0; i < count; i++)
        transform(s, v, f.axis[i], v[0]->type.dim[f.axis[i]], !back && arg[3].i);
    if (!back)
        return pair_of(s, v, f.scale);
    int last = f.axis[count];
    if (v[0]->type.dim[last] != arg[3].i / 2 + 1)
        site_fail(s, "argument last_dim_size: expected half of it, and one, as elements");
    Value *y = from_half(s, v, last, arg[3].i);
    return item_of(s, f.scale == 1 ? y : lower_times(s, y, f.scale));
}
