/* Helpers for lowering: emit the nodes of which rows of aten.def consist. */
#include "lower.h"

#include <math.h>

Value *lower1(Site *s, const char *op, Value *x)
{
    return emit1(s->b, op, IN(x), NOATTRS);
}

Value *lower2(Site *s, const char *op, Value *x, Value *y)
{
    return emit1(s->b, op, IN(x, y), NOATTRS);
}

Value *lower_alias(Site *s, Value *x, const char *gradient)
{
    return emit1(s->b, "alias", IN(x), ATTRS(A_STR("gradient", gradient)));
}

/* x as PyTorch stores it in dtype d: integers towards zero, bool nonzero. */
static double as_dtype(Site *s, double x, DType d)
{
    if (dtype_float(d))
        return x;
    if (d == BOOL)
        return x != 0;
    if (!(fabs(x) < 0x1p63))
        site_fail(s, "%g does not fit in %s", x, dtype_name(d));
    return trunc(x);
}

Value *lower_full(Site *s, double x, const Type *t)
{
    return emit1(s->b, "full", 0, NULL,
                 ATTRS(A_INTS("size", t->rank, t->dim),
                       A_FLOAT("fill_value", as_dtype(s, x, t->dtype)),
                       A_DTYPE("dtype", t->dtype)));
}

Value *lower_count(Site *s, int64_t n)
{
    return emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
}

Value *lower_number(Site *s, double x, DType d)
{
    return lower_full(s, x, &(Type){.dtype = d});
}

/* full's fill_value is a double, arange's start an integer: it makes those that a double cannot. */
static Value *whole_number(Site *s, int64_t i)
{
    int64_t step = i > 0 ? -1 : 1; /* i + step cannot overflow */
    Value *x = emit1(s->b, "arange", 0, NULL,
                     ATTRS(A_INT("start", i), A_INT("end", i + step), A_INT("step", step),
                           A_DTYPE("dtype", I64)));
    return lower_reshape(s, x, 0, NULL);
}

Value *lower_fill(Site *s, const Item *x, const Type *t)
{
    bool beyond = x->kind == FX_INT && t->dtype == I64 && (x->i > 1LL << 53 || x->i < -(1LL << 53));
    if (beyond)
        return lower_expand(s, whole_number(s, x->i), t);
    return lower_full(s, x->kind == FX_FLOAT ? x->f : (double)x->i, t);
}

Value *lower_like(Site *s, double x, const Value *like)
{
    return lower_number(s, x, like->type.dtype);
}

Value *lower_times(Site *s, Value *x, double factor)
{
    return lower2(s, "mul", x, lower_like(s, factor, x));
}

Value *lower_where(Site *s, Value *cond, Value *x, Value *y)
{
    return emit1(s->b, "where", IN(cond, x, y), NOATTRS);
}

Value *lower_root(Site *s, Value *x, double p)
{
    Value *zero = lower_like(s, 0, x), *none = lower2(s, "eq", x, zero);
    Value *y = lower_where(s, none, lower_like(s, 1, x), x);
    y = p == 2 ? lower1(s, "sqrt", y) : lower2(s, "pow", y, lower_like(s, 1 / p, y));
    return lower_where(s, none, zero, y);
}

Value *lower_cast(Site *s, Value *x, DType d)
{
    return emit_cast(s->b, x, d);
}

Value *lower_reshape(Site *s, Value *x, int rank, const int64_t *size)
{
    Type t = type_make(x->type.dtype, rank, size);
    return type_equal(&t, &x->type) ? x
                                    : emit1(s->b, "view", IN(x), ATTRS(A_INTS("size", rank, size)));
}

Value *lower_expand(Site *s, Value *x, const Type *t)
{
    return shape_equal(&x->type, t)
               ? x
               : emit1(s->b, "expand", IN(x), ATTRS(A_INTS("size", t->rank, t->dim)));
}

Value *lower_slice(Site *s, Value *x, int axis, int64_t start, int64_t end, int64_t step)
{
    return emit1(
        s->b, "slice", IN(x),
        ATTRS(A_INT("dim", axis), A_INT("start", start), A_INT("end", end), A_INT("step", step)));
}

Value *lower_reduce(Site *s, const char *op, Value *x, int naxes, const int64_t *axes, bool keep)
{
    return emit1(s->b, op, IN(x), ATTRS(A_INTS("dim", naxes, axes), A_BOOL("keepdim", keep)));
}

/* ---- another overload ---- */

Item item_int(int64_t i)
{
    return (Item){.kind = FX_INT, .i = i, .f = (double)i};
}

Item item_ints(Site *s, int n, const int64_t *i)
{
    Item x = {.kind = FX_LIST, .count = n, .item = NEWN(s->im->a, Item, n + 1)};
    for (int k = 0; k < n; k++)
        x.item[k] = item_int(i[k]);
    return x;
}

Item lower_call(Site *s, const char *overload, int n, const Item *arg)
{
    const char *key[6] = {0};
    Expr call = {.kind = EX_CALL, .count = n, .key = key};
    CHECK(n <= LEN(key));
    call.s = arena_printf(s->im->a, "torch.ops.aten.%s", overload);
    return fx_call(s->im, &call, arg);
}
