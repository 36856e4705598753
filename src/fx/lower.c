/* Help for lowering: the nodes that rows of aten.def are made of. */
#include "fx.h"

#include <math.h>

Value *lower1(Site *s, const char *op, Value *x)
{
    return emit1(s->b, op, IN(x), NOATTRS);
}

Value *lower2(Site *s, const char *op, Value *x, Value *y)
{
    return emit1(s->b, op, IN(x, y), NOATTRS);
}

/* What PyTorch stores of x in dtype d: integers towards zero, bool nonzero. */
static double stored(Site *s, double x, DType d)
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
                       A_FLOAT("fill_value", stored(s, x, t->dtype)), A_DTYPE("dtype", t->dtype)));
}

Value *lower_number(Site *s, double x, DType d)
{
    return lower_full(s, x, &(Type){.dtype = d});
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
