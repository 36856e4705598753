/* Adaptive pools: window i of n over an axis of `all` elements goes from i all / n, rounded down,
 * to (i + 1) all / n, rounded up. Means over windows of one size, side by side, are a reduction of
 * a view; else windows are read by `index`, each as long as the longest, and what is in none of
 * them counts as 0 (a maximum: -inf). A maximum is gathered from where argmax finds it, the first
 * of equal ones, and of several NaN, of which PyTorch takes the last; its gradient goes there. */
#include "arith.h"

#include "../op/convolution.h"

#include <math.h>
#include <string.h>

typedef struct Windows {
    int axis;
    int64_t all, n, most; /* elements, windows, elements of the longest window */
    Value *at,
        *within; /* [n, most]: places, clamped; which of them belong. NULL: all of one size */
    Value *size; /* [n] */
} Windows;

static Value *counted(Site *s, int64_t n, int rank, const int64_t *shape)
{
    return lower_reshape(s, lower_count(s, n), rank, shape);
}

static Windows windows_of(Site *s, const Type *x, int axis, int64_t n)
{
    const int64_t all = x->dim[axis], column[] = {n, 1}, row[] = {1, 0};
    if (n < 1 || n > INT32_MAX || !all || all > INT32_MAX)
        site_fail(s, "expected sizes of 1 to %d for axes of as many elements, found %lld for %lld",
                  INT32_MAX, (long long)n, (long long)all);
    Windows w = {.axis = axis, .all = all, .n = n, .most = all / n};
    if (all % n == 0)
        return w;
    w.most = (all + 2 * n - gcd(all, n) - 1) / n; /* of one that begins as late as windows do */
    Value *i = counted(s, n, 2, column), *by = lower_number(s, (double)n, I64);
    Value *start = lower2(s, "floor_divide", lower_times(s, i, (double)all), by);
    Value *end = plus(s, lower_times(s, plus(s, i, 1), (double)all), (double)n - 1);
    end = lower2(s, "floor_divide", end, by);
    int64_t shape[] = {row[0], w.most};
    Value *at = add(s, start, counted(s, w.most, 2, shape));
    w.within = lower2(s, "lt", at, end);
    w.at = lower2(s, "minimum", at, lower_number(s, (double)all - 1, I64));
    w.size = lower_reshape(s, sub(s, end, start), 1, &n);
    return w;
}

/* x with its axis as [n, most]; what is in no window is `fill`. */
static Value *in_windows(Site *s, Value *x, const Windows *w, double fill)
{
    const int64_t dim = w->axis, flat = w->n * w->most;
    Type t = x->type;
    memmove(t.dim + dim + 2, t.dim + dim + 1, sizeof *t.dim * (size_t)(t.rank - dim - 1));
    t.dim[dim] = w->n;
    t.dim[dim + 1] = w->most;
    t.rank++;
    if (w->at) {
        Value *at = lower_reshape(s, w->at, 1, &flat);
        x = emit1(s->b, "index", IN(x, at), ATTRS(A_INTS("dims", 1, &dim)));
    }
    x = lower_reshape(s, x, t.rank, t.dim);
    if (!w->within)
        return x;
    int64_t shape[TN_RANK];
    for (int d = 0; d < t.rank; d++)
        shape[d] = d == dim || d == dim + 1 ? t.dim[d] : 1;
    return where_or(s, lower_reshape(s, w->within, t.rank, shape), x, fill);
}

/* The count of elements of each window, beside x, whose axis is of n elements. */
static Value *divisor(Site *s, const Windows *w, const Value *x)
{
    int64_t shape[TN_RANK];
    if (!w->size)
        return lower_number(s, (double)w->most, x->type.dtype);
    for (int d = 0; d < x->type.rank; d++)
        shape[d] = d == w->axis ? w->n : 1;
    return lower_cast(s, lower_reshape(s, w->size, x->type.rank, shape), x->type.dtype);
}

static int axes_named(const Site *s)
{
    return *strpbrk(s->row->name, "123") - '0';
}

/* The sizes of the result, by axis of space; the operand may be without a batch. */
static void read_sizes(Site *s, const Type *x, int axes, int64_t *size)
{
    int count = axes;
    const Item *list = site_arg(s, "output_size");
    if ((x->rank != axes + 1 && x->rank != axes + 2) || !dtype_float(x->dtype))
        site_fail(s, "expected floats with %d axes of space, found %s", axes,
                  type_text(s->im->a, x));
    if (list->kind == FX_LIST) { /* None keeps an axis */
        count = list->count;
        for (int d = 0; d < axes && d < count; d++)
            size[d] = list->item[d].kind == FX_NONE ? x->dim[x->rank - axes + d] : list->item[d].i;
    } else {
        for (int d = 0; d < axes; d++)
            size[d] = site_int(s, "output_size");
    }
    for (int d = count; d < axes && count == 1; d++)
        size[d] = size[0];
    if (count != axes && count != 1)
        site_fail(s, "argument output_size: expected %d sizes, found %d", axes, count);
}

/* ---- means ---- */

static Value *mean_along(Site *s, Value *x, int axis, int64_t n)
{
    Windows w = windows_of(s, &x->type, axis, n);
    const int64_t dim = axis + 1;
    if (n == w.all)
        return x;
    x = lower_reduce(s, "sum", in_windows(s, x, &w, 0), 1, &dim, false);
    return lower2(s, "div", x, divisor(s, &w, x));
}

void row_adaptive_avg_pool(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axes = axes_named(s), rank = x->type.rank;
    DType d = x->type.dtype;
    int64_t size[TN_RANK];
    read_sizes(s, &x->type, axes, size);
    x = lower_cast(s, x, opmath_type(d));
    for (int k = axes - 1; k >= 0; k--)
        x = mean_along(s, x, rank - axes + k, size[k]);
    site_return(s, lower_cast(s, x, d));
}

/* dy, over all elements of its windows. */
static Value *mean_back(Site *s, Value *dy, int axis, int64_t all)
{
    const int64_t dim = axis;
    Type whole = dy->type, wide;
    int64_t n = whole.dim[axis];
    whole.dim[axis] = all;
    Windows w = windows_of(s, &whole, axis, n);
    if (n == all)
        return dy;
    dy = lower2(s, "div", dy, divisor(s, &w, dy));
    dy = emit1(s->b, "unsqueeze", IN(dy), ATTRS(A_INT("dim", axis + 1)));
    wide = dy->type;
    wide.dim[axis + 1] = w.most;
    dy = lower_expand(s, dy, &wide);
    if (!w.at)
        return lower_reshape(s, lower1(s, "clone", dy), whole.rank, whole.dim);
    int64_t shape[TN_RANK], flat = w.n * w.most;
    for (int d = 0; d < wide.rank; d++)
        shape[d] = d == axis || d == axis + 1 ? wide.dim[d] : 1;
    dy = where_or(s, lower_reshape(s, w.within, wide.rank, shape), dy, 0);
    Type joined = whole;
    joined.dim[axis] = flat;
    dy = lower_reshape(s, dy, joined.rank, joined.dim);
    Value *in[] = {lower_full(s, 0, &whole), dy, lower_reshape(s, w.at, 1, &flat)};
    return emit1(s->b, "index_put", LEN(in), in,
                 ATTRS(A_INTS("dims", 1, &dim), A_BOOL("accumulate", true)));
}

void row_adaptive_avg_pool_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    const Type *t = site_type(s, "self");
    int axes = axes_named(s);
    DType d = dy->type.dtype;
    if (t->rank < axes + 1 || dy->type.rank != t->rank)
        site_fail(s, "expected %d axes of space, found %s and %s", axes, type_text(s->im->a, t),
                  type_text(s->im->a, &dy->type));
    dy = lower_cast(s, dy, opmath_type(d));
    for (int k = t->rank - axes; k < t->rank; k++)
        dy = mean_back(s, dy, k, t->dim[k]);
    site_return(s, lower_cast(s, dy, d));
}

/* ---- maxima ---- */

/* Where the elements of windows lie in the operand, counted in rows: [..., n1, most1, n2, most2] */
static Value *places(Site *s, const Windows *w, int axes)
{
    Value *flat = NULL;
    for (int k = 0; k < axes; k++) {
        int64_t below = 1, shape[2 * SPACE_AXES];
        for (int d = 0; d < 2 * axes; d++)
            shape[d] = d / 2 != k ? 1 : d % 2 ? w[k].most : w[k].n;
        for (int d = k + 1; d < axes; d++)
            below *= w[d].all;
        int64_t count = w[k].n * w[k].most;
        Value *at = w[k].at ? w[k].at : counted(s, count, 1, &count);
        at = lower_times(s, lower_reshape(s, at, 2 * axes, shape), (double)below);
        flat = flat ? add(s, flat, at) : at;
    }
    return flat;
}

/* [n1, most1, n2, most2] after `lead` axes, as [n1, n2, most1 most2] */
static Value *windows_last(Site *s, Value *x, int lead, int axes)
{
    int64_t order[TN_RANK];
    for (int d = 0; d < lead; d++)
        order[d] = d;
    for (int k = 0; k < axes; k++) {
        order[lead + k] = lead + 2 * k;
        order[lead + axes + k] = lead + 2 * k + 1;
    }
    x = emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", lead + 2 * axes, order)));
    Type t = x->type;
    for (int d = lead + axes + 1; d < t.rank; d++)
        t.dim[lead + axes] *= t.dim[d];
    return lower_reshape(s, x, lead + axes + 1, t.dim);
}

void row_adaptive_max_pool(Site *s)
{
    Value *x = site_tensor(s, "self"), *y = x;
    int axes = axes_named(s), lead = x->type.rank - axes;
    int64_t size[TN_RANK];
    Windows w[SPACE_AXES];
    read_sizes(s, &x->type, axes, size);
    if (lead + 2 * axes > TN_RANK)
        site_fail(s, "expected at most %d axes on the way", TN_RANK);
    for (int k = axes - 1; k >= 0; k--) {
        w[k] = windows_of(s, &x->type, lead + k, size[k]);
        y = in_windows(s, y, &w[k], -INFINITY);
    }
    y = windows_last(s, y, lead, axes);
    const int64_t last = lead + axes;
    Value *won = lower_reduce(s, "argmax", y, 1, &last, true);
    Value *at = windows_last(s, places(s, w, axes), 0, axes);
    Type all = won->type, one = won->type;
    all.dim[last] = y->type.dim[last];
    all.dtype = I64;
    at = lower_expand(s, at, &all);
    at = emit1(s->b, "gather", IN(at, won), ATTRS(A_INT("dim", last)));
    int64_t flat[TN_RANK], space = 1, windows = 1;
    for (int d = 0; d < axes; d++) {
        space *= x->type.dim[lead + d];
        windows *= size[d];
    }
    memcpy(flat, x->type.dim, sizeof *flat * (size_t)lead);
    flat[lead] = windows;
    at = lower_reshape(s, at, lead + 1, flat);
    flat[lead] = space;
    y = emit1(s->b, "gather", IN(lower_reshape(s, x, lead + 1, flat), at),
              ATTRS(A_INT("dim", lead)));
    one.rank--;
    Value *out[] = {lower_reshape(s, y, one.rank, one.dim),
                    lower_reshape(s, at, one.rank, one.dim)};
    site_return_list(s, 2, out);
}
