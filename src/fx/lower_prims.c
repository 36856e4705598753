/* PyTorch's primitives (torch.ops.prims), which its decompositions leave: ATen's ops without type
 * promotion, broadcasting and axes of -1. Those that are the ATen op of their name have no row. */
#include "lower.h"

#include <string.h>

/* Quotients of integers are cut towards zero. */
void row_prim_div(Site *s)
{
    if (dtype_float(result_type_of(s, 2))) {
        s->result = lower_call(s, "div.Tensor", 2, s->arg);
        return;
    }
    Value **x = promoted_all(s, 2, s->arg);
    site_return(s, lower2(s, "trunc_divide", x[0], x[1]));
}

void row_prim_copy(Site *s)
{
    site_return(s, lower1(s, "clone", site_tensor(s, "self")));
}

void row_view_of(Site *s)
{
    const Type *t = site_type(s, "self");
    s->result =
        lower_call(s, "view.default", 2, (Item[]){s->arg[0], item_ints(s, t->rank, t->dim)});
}

/* The axis `dim` as two, the first of outer_length. */
void row_split_dim(Site *s)
{
    int64_t outer = site_int(s, "outer_length");
    const Type *t = site_type(s, "self");
    int axis = site_axis(s, "dim", t->rank);
    if (outer < 1 || !t->rank || t->dim[axis] % outer)
        site_fail(s, "argument outer_length: expected a divisor of axis %d of %s, found %lld", axis,
                  type_text(s->im->a, t), (long long)outer);
    Item sizes = item_ints(s, 2, (int64_t[]){outer, t->dim[axis] / outer});
    s->result = lower_call(s, "unflatten.int", 3, (Item[]){s->arg[0], s->arg[1], sizes});
}

/* Axis d of self is axis dims[d] of the shape, along which it may broadcast. */
void row_broadcast_in_dim(Site *s)
{
    int64_t shape[TN_RANK], dims[TN_RANK], size[TN_RANK];
    Value *x = site_tensor(s, "self");
    int rank = site_ints(s, "shape", shape), n = site_ints(s, "dims", dims);
    if (n != x->type.rank)
        site_fail(s, "argument dims: expected %d axes, found %d", x->type.rank, n);
    for (int d = 0; d < rank; d++)
        size[d] = 1;
    for (int d = 0; d < n; d++) {
        if (dims[d] < 0 || dims[d] >= rank || (d && dims[d] <= dims[d - 1]))
            site_fail(s, "argument dims: expected rising axes below %d", rank);
        size[dims[d]] = x->type.dim[d];
    }
    Type t = type_make(x->type.dtype, rank, shape);
    site_return(s, lower_expand(s, lower_reshape(s, x, rank, size), &t));
}

/* ---- reductions: their result has the dtype of self, or output_dtype ---- */

static Item reduced(Site *s, const char *overload, int n, const Item *arg)
{
    DType d = site_dtype(s, "output_dtype", site_type(s, "self")->dtype);
    Item y = lower_call(s, overload, n, arg);
    return (Item){.kind = FX_TENSOR, .t = fx_fresh(s->im, lower_cast(s, fx_read(s->im, y.t), d))};
}

/* The axes that go, from the last on; all where none are named. */
static int axes(Site *s, int64_t *dims)
{
    int rank = site_type(s, "self")->rank, n = site_has(s, "dim") ? site_ints(s, "dim", dims) : 0;
    bool gone[TN_RANK] = {0};
    for (int i = 0; i < n; i++) {
        if (dims[i] < 0 || dims[i] >= rank)
            site_fail(s, "argument dim: expected axes below %d, found %lld", rank,
                      (long long)dims[i]);
        gone[dims[i]] = true;
    }
    int count = 0;
    for (int d = rank - 1; d >= 0; d--)
        if (gone[d] || !n)
            dims[count++] = d;
    return count;
}

void row_prim_reduce(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    const char *op = strchr(s->row->name, '.') + 1;
    Item x = s->arg[0], none = {.kind = FX_BOOL};
    if (strncmp(op, "prod", 4) != 0) {
        const char *overload = strncmp(op, "sum", 3) ? op : "sum.dim_IntList";
        s->result = reduced(s, overload, 3, (Item[]){x, item_ints(s, n, dims), none});
        return;
    }
    for (int i = 0; i < n; i++)
        x = lower_call(s, "prod.dim_int", 3, (Item[]){x, item_int(dims[i]), none});
    s->result = reduced(s, "positive.default", 1, &x);
}

void row_prim_var(Site *s)
{
    int64_t dims[TN_RANK];
    int n = axes(s, dims);
    const char *key[] = {NULL, NULL, "correction"};
    Expr call = {.kind = EX_CALL, .s = "torch.ops.aten.var.correction", .count = 3, .key = key};
    Item arg[] = {s->arg[0], item_ints(s, n, dims), *site_arg(s, "correction")};
    DType d = site_dtype(s, "output_dtype", site_type(s, "self")->dtype);
    Value *y = fx_read(s->im, fx_call(s->im, &call, arg).t);
    site_return(s, lower_cast(s, y, d));
}
