/* Reductions, searches, sorting. No axis named means all of them; sums of integers are i64. */
#include "lower.h"

#include <math.h>
#include <string.h>

/* The axes of argument dim, none for None or where there is no such argument. */
static int axes(Site *s, int64_t *dims)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], "dim"))
            return s->arg[k].kind == FX_NONE ? 0 : site_ints(s, "dim", dims);
    return 0;
}

static bool has_arg(const Site *s, const char *name)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], name))
            return true;
    return false;
}

static bool keepdim(const Site *s)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], "keepdim"))
            return s->arg[k].i != 0;
    return false;
}

static Value *reduce(Site *s, const char *op, Value *x)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    return x->type.rank ? lower_reduce(s, op, x, n, dims, keepdim(s)) : x;
}

/* The sum in the dtype asked for; integers are summed in i64, which wraps to the same. */
static void summed(Site *s, Value *x)
{
    DType d = site_dtype(s, "dtype", sum_type(x->type.dtype));
    site_return(s, lower_cast(s, reduce(s, "sum", lower_cast(s, x, sum_type(d))), d));
}

/* The sum of what a mask selects: over all rows, where rows that are not selected are 0. */
static void sum_selected(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims), rank = s->arg[0].t->type.rank;
    bool over = !n;
    for (int i = 0; i < n; i++)
        over = over || dims[i] == s->arg[0].i || dims[i] + rank == s->arg[0].i;
    if (!over)
        site_fail(s, "argument self: found %s, and no sum over that axis", item_text(&s->arg[0]));
    s->arg[0].kind = FX_TENSOR;
}

void row_sum(Site *s)
{
    if (s->arg[0].kind == FX_SELECTED)
        sum_selected(s);
    summed(s, site_tensor(s, "self"));
}

static Value *nonzero(Site *s, Value *x)
{
    return x->type.dtype == BOOL ? x : lower2(s, "ne", x, lower_like(s, 0, x));
}

void row_count_nonzero(Site *s)
{
    Value *x = nonzero(s, site_tensor(s, "self"));
    site_return(s, reduce(s, "sum", lower_cast(s, x, I64)));
}

/* x, 0 where it is NaN */
static Value *known(Site *s, Value *x)
{
    return dtype_float(x->type.dtype)
               ? lower_where(s, lower2(s, "eq", x, x), x, lower_like(s, 0, x))
               : x;
}

void row_nansum(Site *s)
{
    summed(s, known(s, site_tensor(s, "self")));
}

void row_nanmean(Site *s)
{
    Value *x = site_tensor(s, "self");
    DType d = site_dtype(s, "dtype", x->type.dtype);
    Value *count = reduce(s, "sum", lower_cast(s, lower2(s, "eq", x, x), I64));
    x = reduce(s, "sum", lower_cast(s, lower_cast(s, known(s, x), d), opmath_type(d)));
    x = lower2(s, "div", x, lower_cast(s, count, x->type.dtype));
    site_return(s, lower_cast(s, x, d));
}

void row_mean(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, reduce(s, "mean", lower_cast(s, x, site_dtype(s, "dtype", x->type.dtype))));
}

void row_extreme(Site *s)
{
    site_return(
        s, reduce(s, strncmp(s->row->name, "amax", 4) ? "amin" : "amax", site_tensor(s, "self")));
}

void row_max(Site *s)
{
    site_return(s, reduce(s, "amax", site_tensor(s, "self")));
}

void row_min(Site *s)
{
    site_return(s, reduce(s, "amin", site_tensor(s, "self")));
}

void row_aminmax(Site *s)
{
    Value *x = site_tensor(s, "self");
    Value *out[] = {reduce(s, "amin", x), reduce(s, "amax", x)};
    site_return_list(s, 2, out);
}

/* ---- searches ---- */

static Value *arg_of(Site *s, const char *op, Value *x, int n, const int64_t *dims)
{
    int64_t one = 1;
    if (!x->type.rank)
        return lower_reshape(s, emit1(s->b, op, IN(lower_reshape(s, x, 1, &one)), NOATTRS), 0,
                             NULL);
    return emit1(s->b, op, IN(x), ATTRS(A_INTS("dim", n, dims), A_BOOL("keepdim", keepdim(s))));
}

void row_argmax(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    const char *op = strncmp(s->row->name, "argmax", 6) ? "argmin" : "argmax";
    site_return(s, arg_of(s, op, site_tensor(s, "self"), n, dims));
}

/* The first extreme and its index: that element alone has the gradient, where amax shares it among
 * all that tie. */
void row_max_dim(Site *s)
{
    const char *op = strncmp(s->row->name, "min", 3) ? "argmax" : "argmin";
    Type t = *site_type(s, "self");
    int64_t dim = site_axis(s, "dim", t.rank), one = 1;
    Value *x = site_tensor(s, "self");
    x = t.rank ? x : lower_reshape(s, x, 1, &one);
    Value *at = emit1(s->b, op, IN(x), ATTRS(A_INTS("dim", 1, &dim), A_BOOL("keepdim", true)));
    x = emit1(s->b, "gather", IN(x, at), ATTRS(A_INT("dim", dim)));
    t = x->type;
    if (!site_type(s, "self")->rank || !keepdim(s)) {
        t.rank--;
        memmove(t.dim + dim, t.dim + dim + 1, sizeof *t.dim * (size_t)(t.rank - dim));
    }
    Value *out[] = {lower_reshape(s, x, t.rank, t.dim), lower_reshape(s, at, t.rank, t.dim)};
    site_return_list(s, 2, out);
}

/* Whether argument dim is a list without axes: here, and only here, that is not all of them. */
static bool over_none(const Site *s)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], "dim"))
            return s->arg[k].kind == FX_LIST && !s->arg[k].count;
    return false;
}

void row_any(Site *s)
{
    Value *x = site_tensor(s, "self");
    DType d = x->type.dtype == U8 ? U8 : BOOL; /* as in ATen */
    bool any = !strncmp(s->row->name, "any", 3);
    x = nonzero(s, x);
    if (over_none(s))
        d = BOOL;
    else if (type_nelem(&x->type)) {
        x = reduce(s, any ? "amax" : "amin", x);
    } else { /* there is none: as a count */
        x = lower_cast(s, any ? x : lower1(s, "logical_not", x), I64);
        x = nonzero(s, reduce(s, "sum", x));
        x = any ? x : lower1(s, "logical_not", x);
    }
    site_return(s, lower_cast(s, x, d));
}

/* ---- moments ---- */

/* The variance and the mean of self, in dtype d. */
static Node *moments_in(Site *s, DType d)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    double correction = 1;
    if (has_arg(s, "unbiased"))
        correction = site_bool(s, "unbiased");
    else if (site_has(s, "correction"))
        correction = site_real(s, "correction");
    return emit(s->b, "var_mean", IN(lower_cast(s, site_tensor(s, "self"), d)),
                ATTRS(A_INTS("dim", n, dims), A_FLOAT("correction", correction),
                      A_BOOL("keepdim", keepdim(s))));
}

static Node *moments(Site *s)
{
    return moments_in(s, site_type(s, "self")->dtype);
}

void row_var(Site *s)
{
    site_return(s, moments(s)->out[0]);
}

/* The root is of the variance before that is rounded to 16 bits. */
void row_std_mean(Site *s)
{
    DType d = site_type(s, "self")->dtype;
    Node *n = moments_in(s, opmath_type(d));
    Value *out[] = {lower_root(s, n->out[0], 2), n->out[1]};
    for (int i = 0; i < LEN(out); i++)
        out[i] = lower_cast(s, out[i], d);
    site_return_list(s, 2, out);
}

void row_std(Site *s)
{
    DType d = site_type(s, "self")->dtype;
    Value *y = lower_root(s, moments_in(s, opmath_type(d))->out[0], 2);
    site_return(s, lower_cast(s, y, d));
}

void row_var_mean(Site *s)
{
    site_return_all(s, moments(s));
}

void row_logsumexp(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower_cast(s, x, float_type(x->type.dtype));
    site_return(s, x->type.rank ? reduce(s, "logsumexp", x) : x);
}

/* (sum |x|^p)^(1/p), and its limits */
static Value *norm(Site *s, Value *x, double p)
{
    if (p == 2)
        return lower_root(s, reduce(s, "sum", lower2(s, "mul", x, x)), 2);
    x = lower1(s, "abs", x);
    if (isinf(p))
        return reduce(s, p > 0 ? "amax" : "amin", x);
    if (p == 1)
        return reduce(s, "sum", x);
    if (p == 0)
        return reduce(s, "sum", lower_cast(s, nonzero(s, x), x->type.dtype));
    x = reduce(s, "sum", lower2(s, "pow", x, lower_like(s, p, x)));
    return p > 0 ? lower_root(s, x, p) : lower2(s, "pow", x, lower_like(s, 1 / p, x));
}

/* The root of the sum of squares takes any axes; other norms are those of vectors. */
void row_linalg_norm(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    if (site_has(s, "ord") && (n ? n : site_type(s, "self")->rank) > 1)
        site_fail(s, "argument ord: norms of matrices are not supported");
    row_vector_norm(s);
}

/* 16 bits are computed in f32. */
void row_vector_norm(Site *s)
{
    const char *power = has_arg(s, "ord") ? "ord" : has_arg(s, "p") ? "p" : NULL;
    Value *x = site_tensor(s, "self");
    double p = power && site_has(s, power) ? site_real(s, power) : 2;
    DType d = float_type(x->type.dtype);
    d = has_arg(s, "dtype") ? site_dtype(s, "dtype", d) : d;
    x = lower_cast(s, lower_cast(s, x, d), opmath_type(d));
    site_return(s, lower_cast(s, norm(s, x, p), d));
}

/* ---- orders ---- */

void row_cumsum(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    x = lower_cast(s, x, site_dtype(s, "dtype", sum_type(x->type.dtype)));
    site_return(s, x->type.rank ? emit1(s->b, "cumsum", IN(x), ATTRS(A_INT("dim", axis))) : x);
}

/* self; without axes it gets one. */
static Value *with_axis(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t one = 1;
    return x->type.rank ? x : lower_reshape(s, x, 1, &one);
}

/* The outputs of n; of a self without axes the only element. */
static void return_lines(Site *s, const Node *n)
{
    const Type *t = site_type(s, "self");
    Value *out[2];
    for (int k = 0; k < 2; k++)
        out[k] = t->rank ? n->out[k] : lower_reshape(s, n->out[k], 0, NULL);
    if (strcmp(site_stem(s), "argsort") != 0)
        site_return_list(s, 2, out);
    else
        site_return(s, out[1]);
}

void row_sort(Site *s)
{
    Value *x = with_axis(s);
    return_lines(s, emit(s->b, "sort", IN(x),
                         ATTRS(A_INT("dim", site_axis(s, "dim", x->type.rank)),
                               A_BOOL("descending", site_bool(s, "descending")))));
}

void row_topk(Site *s)
{
    Value *x = with_axis(s);
    return_lines(
        s, emit(s->b, "topk", IN(x),
                ATTRS(A_INT("k", site_int(s, "k")), A_INT("dim", site_axis(s, "dim", x->type.rank)),
                      A_BOOL("largest", site_bool(s, "largest")))));
}
