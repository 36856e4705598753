/* Searches: positions in sorted sequences, elements by rank, counts by bin. All of them find the
 * position of a value by one binary search of log2(n) gathers. */
#include "arith.h"

#include <math.h>
#include <string.h>

static Value *flat(Site *s, Value *x)
{
    int64_t n = type_nelem(&x->type);
    return lower_reshape(s, x, 1, &n);
}

static Value *gathered(Site *s, Value *x, Value *at)
{
    return emit1(s->b, "gather", IN(x, at), ATTRS(A_INT("dim", x->type.rank - 1)));
}

/* How many elements of the last axis of x, which ascend, come before those of v (or with them, for
 * `right`); NaN comes after every number. Other axes are those of v. */
static Value *search(Site *s, Value *x, Value *v, bool right)
{
    int64_t n = x->type.dim[x->type.rank - 1], step = 1;
    Type t = v->type;
    t.dtype = I64;
    Value *count = lower_full(s, 0, &t);
    while (step <= n / 2)
        step *= 2;
    for (; n && step; step /= 2) {
        Value *next = plus(s, count, (double)step);
        Value *within = lower2(s, "le", next, lower_number(s, (double)n, I64));
        Value *at = plus(s, lower2(s, "minimum", next, lower_number(s, (double)n, I64)), -1);
        Value *beyond = lower2(s, right ? "gt" : "ge", gathered(s, x, at), v);
        Value *more = lower2(s, "logical_and", within, lower1(s, "logical_not", beyond));
        count = lower_where(s, more, next, count);
    }
    return count;
}

/* The search of a node with arguments right, side, out_int32 and sorter (of x). */
static void search_site(Site *s, Value *x, Value *v, bool right)
{
    Type t = v->type;
    if (x->type.rank == 1)
        v = flat(s, v);
    if (!x->type.rank || x->type.rank != v->type.rank ||
        memcmp(x->type.dim, v->type.dim, sizeof *t.dim * (size_t)(x->type.rank - 1)))
        site_fail(s, "expected a sequence of one axis, or with the leading axes of %s, found %s",
                  type_text(s->im->a, &t), type_text(s->im->a, &x->type));
    Value *count = search(s, x, v, right);
    count = lower_reshape(s, count, t.rank, t.dim);
    site_return(s, lower_cast(s, count, site_bool(s, "out_int32") ? I32 : I64));
}

void row_searchsorted(Site *s)
{
    const Item *arg[] = {site_arg(s, "sorted_sequence"), site_arg(s, "self")};
    bool right = site_bool(s, "right");
    if (site_has(s, "side") && strcmp(site_text(s, "side"), "left") != 0) {
        if (strcmp(site_text(s, "side"), "right") != 0)
            site_fail(s, "argument side: expected \"left\" or \"right\", found \"%s\"",
                      site_text(s, "side"));
        right = true;
    }
    DType d = result_type(s, 2, arg);
    Value *x = promoted(s, arg[0], d), *v = promoted(s, arg[1], d);
    if (site_has(s, "sorter"))
        x = gathered(s, x, site_tensor(s, "sorter"));
    search_site(s, x, v, right);
}

void row_bucketize(Site *s)
{
    const Item *arg[] = {site_arg(s, "self"), site_arg(s, "boundaries")};
    DType d = result_type(s, 2, arg);
    Value *v = promoted(s, arg[0], d), *x = promoted(s, arg[1], d);
    search_site(s, x, v, site_bool(s, "right"));
}

/* Whether an element is among those of test_elements, by their order. */
void row_isin(Site *s)
{
    const Item *arg[] = {&s->arg[0], &s->arg[1]};
    DType d = result_type(s, 2, arg);
    Value *v = promoted(s, arg[0], d), *x = flat(s, promoted(s, arg[1], d)), *found;
    Type t = v->type;
    int64_t n = x->type.dim[0];
    t.dtype = BOOL;
    if (n == 0) {
        found = lower_full(s, 0, &t);
    } else {
        x = emit1(s->b, "sort", IN(x), ATTRS(A_INT("dim", 0)));
        v = flat(s, v);
        Value *at = search(s, x, v, false);
        at = lower2(s, "minimum", at, lower_number(s, (double)n - 1, I64));
        found = lower_reshape(s, lower2(s, "eq", gathered(s, x, at), v), t.rank, t.dim);
    }
    site_return(s, site_bool(s, "invert") ? lower1(s, "logical_not", found) : found);
}

/* ---- elements by rank ---- */

typedef struct RankedValues {
    Value *value, *at; /* where self has it; the axis is the last, of size 1 */
} RankedValues;

/* self with its axis "dim" last, or flat where there is no such argument */
static Value *axis_last(Site *s, bool whole)
{
    Value *x = site_tensor(s, "self");
    if (whole || !x->type.rank)
        return flat(s, x);
    int64_t dim = site_axis(s, "dim", x->type.rank), last = x->type.rank - 1;
    return dim == last
               ? x
               : emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", dim), A_INT("dim1", last)));
}

/* x, whose last axis is of size 1, as the result: that axis in its place, or gone */
static Value *axis_back(Site *s, Value *x)
{
    Type t = *site_type(s, "self");
    int dim = t.rank ? site_axis(s, "dim", t.rank) : 0, last = t.rank - 1;
    if (dim < last)
        x = emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", dim), A_INT("dim1", last)));
    t.dim[dim] = 1;
    if (t.rank && !site_bool(s, "keepdim")) {
        t.rank--;
        memmove(t.dim + dim, t.dim + dim + 1, sizeof *t.dim * (size_t)(t.rank - dim));
    }
    return lower_reshape(s, x, t.rank, t.dim);
}

static Node *ordered(Site *s, Value *x, bool descending)
{
    return emit(s->b, "sort", IN(x),
                ATTRS(A_INT("dim", x->type.rank - 1), A_BOOL("descending", descending)));
}

static RankedValues element(Site *s, const Node *sorted, int64_t k)
{
    int last = sorted->out[0]->type.rank - 1;
    return (RankedValues){lower_slice(s, sorted->out[0], last, k, k + 1, 1),
                          lower_slice(s, sorted->out[1], last, k, k + 1, 1)};
}

static void return_ranked(Site *s, RankedValues r)
{
    Value *out[] = {axis_back(s, r.value), axis_back(s, r.at)};
    site_return_list(s, 2, out);
}

static int64_t need_some(Site *s, const Value *x)
{
    int64_t n = x->type.dim[x->type.rank - 1];
    if (!n)
        site_fail(s, "expected at least one element");
    return n;
}

/* The lower of the two in the middle; the first NaN where there is one, which comes first in
 * descending order. */
static RankedValues median(Site *s, Value *x)
{
    int64_t n = need_some(s, x);
    Node *sorted = ordered(s, x, true);
    RankedValues middle = element(s, sorted, n / 2), first = element(s, sorted, 0);
    if (dtype_float(x->type.dtype)) {
        Value *nan = lower2(s, "ne", first.value, first.value);
        middle.value = lower_where(s, nan, first.value, middle.value);
        middle.at = lower_where(s, nan, first.at, middle.at);
    }
    return middle;
}

/* v, an element of x, whose gradient all elements share that are equal to it, as ATen's of a whole
 * tensor's is; where v is NaN, all that x has. */
static Value *shared(Site *s, Value *x, Value *v)
{
    if (!dtype_float(x->type.dtype))
        return lower_reshape(s, v, 0, NULL);
    Value *all = lower2(s, "logical_or", lower2(s, "eq", x, v), lower2(s, "ne", v, v));
    x = lower_where(s, all, x, lower_like(s, -INFINITY, x));
    return lower_reduce(s, "amax", x, 0, NULL, false);
}

void row_median(Site *s)
{
    Value *x = axis_last(s, true);
    site_return(s, shared(s, x, median(s, x).value));
}

void row_median_dim(Site *s)
{
    return_ranked(s, median(s, axis_last(s, false)));
}

/* The median of those that are not NaN, which come last in ascending order. */
static RankedValues nanmedian(Site *s, Value *x)
{
    need_some(s, x);
    Node *sorted = ordered(s, x, false);
    int64_t last = x->type.rank - 1;
    Value *count = lower2(s, "eq", x, x);
    count = lower_reduce(s, "sum", lower_cast(s, count, I64), 1, &last, true);
    Value *k = lower2(s, "maximum", plus(s, count, -1), lower_number(s, 0, I64));
    k = lower2(s, "floor_divide", k, lower_number(s, 2, I64));
    return (RankedValues){gathered(s, sorted->out[0], k), gathered(s, sorted->out[1], k)};
}

void row_nanmedian(Site *s)
{
    Value *x = axis_last(s, true);
    site_return(s, shared(s, x, nanmedian(s, x).value));
}

void row_nanmedian_dim(Site *s)
{
    return_ranked(s, nanmedian(s, axis_last(s, false)));
}

void row_kthvalue(Site *s)
{
    Value *x = axis_last(s, false);
    int64_t n = x->type.dim[x->type.rank - 1], k = site_int(s, "k");
    if (k < 1 || k > n)
        site_fail(s, "argument k: expected 1 to %lld, found %lld", (long long)n, (long long)k);
    return_ranked(s, element(s, ordered(s, x, false), k - 1));
}

/* The least of the values that are there most often, and where it is last: the length of a run is
 * the distance of its ends. */
void row_mode(Site *s)
{
    Value *x = axis_last(s, false);
    int64_t last = x->type.rank - 1;
    need_some(s, x);
    Node *sorted = ordered(s, x, false);
    Value *v = sorted->out[0], *end = search(s, v, v, true);
    Value *length = lower2(s, "sub", end, search(s, v, v, false));
    Value *k =
        emit1(s->b, "argmax", IN(length), ATTRS(A_INTS("dim", 1, &last), A_BOOL("keepdim", 1)));
    Value *at = gathered(s, sorted->out[1], plus(s, gathered(s, end, k), -1));
    return_ranked(s,
                  (RankedValues){gathered(s, x, at), at}); /* the gradient goes where `at` says */
}

/* ---- counts ---- */

/* Ends of the bins: those asked for, or where both are the same the least and the greatest element,
 * or where these too are the same one less and one more. */
static void ends(Site *s, Value *x, Value **low, Value **high)
{
    double min = site_real(s, "min"), max = site_real(s, "max");
    DType d = x->type.dtype;
    if (min > max)
        site_fail(s, "expected min not above max, found %g and %g", min, max);
    *low = lower_number(s, min, d);
    *high = lower_number(s, max, d);
    if (min != max)
        return;
    if (type_nelem(&x->type)) {
        *low = lower_reduce(s, "amin", x, 0, NULL, false);
        *high = lower_reduce(s, "amax", x, 0, NULL, false);
    }
    Value *same = lower2(s, "eq", *low, *high), *least = *low;
    *low = lower_where(s, same, plus(s, least, -1), least);
    *high = lower_where(s, same, plus(s, *high, 1), *high);
}

/* How many elements lie in each of `bins` bins of one width; the last includes its upper end. */
void row_histc(Site *s)
{
    Value *x = flat(s, site_tensor(s, "self")), *low, *high;
    DType d = x->type.dtype, wide = dtype_float(d) ? opmath_type(d) : F64;
    int64_t bins = site_int(s, "bins"), axis = 0;
    if (bins < 1 || d == BOOL)
        site_fail(s, "expected numbers and at least one bin, found %s and %lld", dtype_name(d),
                  (long long)bins);
    x = lower_cast(s, x, wide);
    ends(s, x, &low, &high);
    Value *inside = lower2(s, "logical_and", lower2(s, "ge", x, low), lower2(s, "le", x, high));
    Value *at = lower_times(s, lower2(s, "sub", x, low), (double)bins);
    at = lower2(s, "div", at, lower2(s, "sub", high, low));
    at = lower_cast(s, lower_where(s, inside, at, lower_like(s, 0, at)), I64);
    at = lower2(s, "minimum", at, lower_number(s, (double)bins - 1, I64));
    Value *counts = lower_full(s, 0, &(Type){.dtype = I64, .rank = 1, .dim = {bins}});
    counts = emit1(s->b, "index_put", IN(counts, lower_cast(s, inside, I64), at),
                   ATTRS(A_INTS("dims", 1, &axis), A_BOOL("accumulate", true)));
    site_return(s, lower_cast(s, counts, d));
}
