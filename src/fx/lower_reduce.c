/* Reductions, searches, sorting. No axis named means all of them; sums of integers are i64. */
#include "fx.h"

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

void row_sum(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower_cast(s, x, site_dtype(s, "dtype", sum_type(x->type.dtype)));
    site_return(s, reduce(s, "sum", x));
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

void row_max_dim(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    bool least = !strncmp(s->row->name, "min", 3);
    Value *x = site_tensor(s, "self");
    Value *out[] = {reduce(s, least ? "amin" : "amax", x),
                    arg_of(s, least ? "argmin" : "argmax", x, n, dims)};
    site_return_list(s, 2, out);
}

void row_any(Site *s)
{
    Value *x = site_tensor(s, "self");
    const char *op = strncmp(s->row->name, "any", 3) ? "amin" : "amax";
    if (x->type.dtype != BOOL)
        x = lower2(s, "ne", x, lower_number(s, 0, x->type.dtype));
    site_return(s, reduce(s, op, x));
}

/* ---- moments ---- */

static Node *moments(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    double correction = site_has(s, "correction") ? site_real(s, "correction") : 1;
    return emit(s->b, "var_mean", IN(site_tensor(s, "self")),
                ATTRS(A_INTS("dim", n, dims), A_FLOAT("correction", correction),
                      A_BOOL("keepdim", keepdim(s))));
}

void row_var(Site *s)
{
    site_return(s, moments(s)->out[0]);
}

void row_std(Site *s)
{
    site_return(s, lower1(s, "sqrt", moments(s)->out[0]));
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
void row_vector_norm(Site *s)
{
    Value *x = site_tensor(s, "self");
    double p = site_has(s, "ord") ? site_real(s, "ord") : 2;
    bool typed = !strncmp(s->row->name, "linalg", 6);
    DType d = float_type(x->type.dtype);
    d = typed ? site_dtype(s, "dtype", d) : d;
    x = lower_cast(s, x, d);
    if (p == 2) {
        site_return(s, lower1(s, "sqrt", reduce(s, "sum", lower2(s, "mul", x, x))));
        return;
    }
    x = lower1(s, "abs", x);
    if (isinf(p)) {
        site_return(s, reduce(s, p > 0 ? "amax" : "amin", x));
    } else if (p == 1) {
        site_return(s, reduce(s, "sum", x));
    } else if (p == 0) {
        Value *some = lower2(s, "ne", x, lower_number(s, 0, d));
        site_return(s, reduce(s, "sum", lower_cast(s, some, d)));
    } else {
        x = reduce(s, "sum", lower2(s, "pow", x, lower_number(s, p, d)));
        site_return(s, lower2(s, "pow", x, lower_number(s, 1 / p, d)));
    }
}

/* ---- orders ---- */

void row_cumsum(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    x = lower_cast(s, x, site_dtype(s, "dtype", sum_type(x->type.dtype)));
    site_return(s, x->type.rank ? emit1(s->b, "cumsum", IN(x), ATTRS(A_INT("dim", axis))) : x);
}

static Node *sorted(Site *s)
{
    Value *x = site_tensor(s, "self");
    return emit(s->b, "sort", IN(x),
                ATTRS(A_INT("dim", site_axis(s, "dim", x->type.rank)),
                      A_BOOL("descending", site_bool(s, "descending"))));
}

void row_sort(Site *s)
{
    site_return_all(s, sorted(s));
}

void row_argsort(Site *s)
{
    site_return(s, sorted(s)->out[1]);
}

void row_topk(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return_all(
        s, emit(s->b, "topk", IN(x),
                ATTRS(A_INT("k", site_int(s, "k")), A_INT("dim", site_axis(s, "dim", x->type.rank)),
                      A_BOOL("largest", site_bool(s, "largest")))));
}
