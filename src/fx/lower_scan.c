/* Products and running results along an axis, of operations that are associative: prod, cumprod,
 * cummax, cummin, logcumsumexp.
 *
 * A product halves its axis until one element is left. A running result doubles the reach of each
 * element: after step k it covers the 2^k elements that end with it (Hillis and Steele 1986).
 * Either takes log2(n) pointwise nodes, whose gradients give its own, also where elements are 0,
 * and rounds as a tree does, more accurately than a sequence. 16 bits are computed in f32. */
#include "lower.h"

#include <math.h>
#include <string.h>

/* The axis in "dim"; 0 for a tensor without axes, which gets one. */
static Value *operand(Site *s, DType d, int *axis)
{
    Value *x = lower_cast(s, site_tensor(s, "self"), opmath_type(d));
    int64_t one = 1;
    *axis = site_axis(s, "dim", x->type.rank);
    return x->type.rank ? x : lower_reshape(s, x, 1, &one);
}

/* y in dtype d and in self's shape */
static Value *finished(Site *s, Value *y, DType d)
{
    const Type *t = site_type(s, "self");
    return lower_reshape(s, lower_cast(s, y, d), t->rank, t->dim);
}

/* ---- products ---- */

static Value *product(Site *s, Value *x, int axis)
{
    int64_t n = x->type.dim[axis];
    Value *odd = NULL;
    if (n == 0) {
        Type t = x->type;
        t.dim[axis] = 1;
        return lower_full(s, 1, &t);
    }
    for (; n > 1; n /= 2) {
        if (n % 2) {
            Value *last = lower_slice(s, x, axis, n - 1, n, 1);
            odd = odd ? lower2(s, "mul", odd, last) : last;
        }
        Value *high = lower_slice(s, x, axis, n / 2, n / 2 * 2, 1);
        x = lower2(s, "mul", lower_slice(s, x, axis, 0, n / 2, 1), high);
    }
    return odd ? lower2(s, "mul", x, odd) : x;
}

void row_prod(Site *s)
{
    Value *x = site_tensor(s, "self");
    DType d = site_dtype(s, "dtype", sum_type(x->type.dtype));
    int64_t n = type_nelem(&x->type);
    x = lower_reshape(s, lower_cast(s, x, opmath_type(d)), 1, &n);
    site_return(s, lower_reshape(s, lower_cast(s, product(s, x, 0), d), 0, NULL));
}

void row_prod_dim(Site *s)
{
    int axis, rank = site_type(s, "self")->rank;
    DType d = site_dtype(s, "dtype", sum_type(site_type(s, "self")->dtype));
    Value *x = operand(s, d, &axis);
    x = lower_cast(s, product(s, x, axis), d);
    Type t = x->type;
    if (rank == 0 || !site_bool(s, "keepdim")) {
        t.rank--;
        memmove(t.dim + axis, t.dim + axis + 1, sizeof *t.dim * (size_t)(t.rank - axis));
    }
    site_return(s, lower_reshape(s, x, t.rank, t.dim));
}

/* ---- running results ---- */

/* Elements [0, k) of x as they are, then y. */
static Value *after(Site *s, Value *x, int axis, int64_t k, Value *y)
{
    return emit1(s->b, "cat", IN(lower_slice(s, x, axis, 0, k, 1), y), ATTRS(A_INT("dim", axis)));
}

static Value *multiply(Site *s, Value *x, Value *y)
{
    return lower2(s, "mul", x, y);
}

static void running(Site *s, DType d, Value *(*join)(Site *s, Value *x, Value *y))
{
    int axis;
    Value *x = operand(s, d, &axis);
    int64_t n = x->type.dim[axis];
    for (int64_t k = 1; k < n; k *= 2) {
        Value *before = lower_slice(s, x, axis, 0, n - k, 1);
        x = after(s, x, axis, k, join(s, before, lower_slice(s, x, axis, k, n, 1)));
    }
    site_return(s, finished(s, x, d));
}

void row_cumprod(Site *s)
{
    running(s, site_dtype(s, "dtype", sum_type(site_type(s, "self")->dtype)), multiply);
}

void row_logcumsumexp(Site *s)
{
    running(s, float_type(site_type(s, "self")->dtype), lower_logaddexp);
}

static Value *is_nan(Site *s, Value *x)
{
    return lower2(s, "ne", x, x);
}

/* Equal elements give the later one, as in ATen; NaN beats every number. `beats` is "ge" or "le".
 */
static void running_extreme(Site *s, const char *beats)
{
    int axis;
    DType d = site_type(s, "self")->dtype;
    Value *x = operand(s, d, &axis);
    int64_t n = x->type.dim[axis], column[TN_RANK];
    for (int e = 0; e < x->type.rank; e++)
        column[e] = e == axis ? n : 1;
    Value *at = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    at = lower_expand(s, lower_reshape(s, at, x->type.rank, column), &x->type);
    for (int64_t k = 1; k < n; k *= 2) {
        Value *before = lower_slice(s, x, axis, 0, n - k, 1);
        Value *own = lower_slice(s, x, axis, k, n, 1);
        Value *wins = lower2(s, beats, own, before);
        if (dtype_float(d)) {
            Value *known = lower1(s, "logical_not", is_nan(s, before));
            wins = lower2(s, "logical_or", lower2(s, "logical_and", wins, known), is_nan(s, own));
        }
        Value *from = lower_slice(s, at, axis, 0, n - k, 1);
        from = lower_where(s, wins, lower_slice(s, at, axis, k, n, 1), from);
        at = after(s, at, axis, k, from);
        x = after(s, x, axis, k, lower_where(s, wins, own, before));
    }
    Value *out[] = {finished(s, x, d), finished(s, at, I64)};
    site_return_list(s, 2, out);
}

void row_cummax(Site *s)
{
    running_extreme(s, "ge");
}

void row_cummin(Site *s)
{
    running_extreme(s, "le");
}
