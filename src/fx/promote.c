/* PyTorch's type promotion: torch.result_type and torch.promote_types on the dtypes that we have.
 * Operands fall in three classes, tensors with axes, tensors without, Python's numbers; a class
 * counts against those before it only where its category (bool, integer, float) is higher. A Python
 * float is f32 (the default dtype), a Python integer i64. Source: PyTorch, "Tensor Attributes". */
#include "lower.h"

#include <string.h>

typedef enum { CAT_NONE, CAT_BOOL, CAT_INT, CAT_FLOAT } Category;

static Category category(DType d)
{
    return d == NDTYPE ? CAT_NONE : d == BOOL ? CAT_BOOL : dtype_float(d) ? CAT_FLOAT : CAT_INT;
}

DType promote(DType s, DType t)
{
    if (s == t || t == NDTYPE)
        return s;
    if (s == NDTYPE || category(t) > category(s))
        return t;
    if (category(s) > category(t))
        return s;
    if (category(s) == CAT_FLOAT && dtype_size(s) == 2 && dtype_size(t) == 2)
        return F32; /* f16 and bf16 */
    return dtype_size(s) > dtype_size(t) ? s : t;
}

static DType combine(DType above, DType below)
{
    return category(below) > category(above) ? promote(above, below) : above;
}

DType result_type(Site *s, int count, const Item *const *arg)
{
    DType axes = NDTYPE, none = NDTYPE, number = NDTYPE;
    for (int i = 0; i < count; i++) {
        const Item *x = arg[i];
        switch (x->kind) {
        case FX_TENSOR:
            if (x->t->type.rank)
                axes = promote(axes, x->t->type.dtype);
            else
                none = promote(none, x->t->type.dtype);
            break;
        case FX_BOOL: number = promote(number, BOOL); break;
        case FX_INT: number = promote(number, I64); break;
        case FX_FLOAT: number = promote(number, F32); break;
        default: site_fail(s, "expected tensors or numbers, found something else");
        }
    }
    return combine(combine(axes, none), number);
}

DType result_type_of(Site *s, int count)
{
    const Item *arg[FX_MAX_ARG];
    for (int i = 0; i < count; i++)
        arg[i] = &s->arg[i];
    return result_type(s, count, arg);
}

Value *promoted(Site *s, const Item *arg, DType d)
{
    if (arg->kind == FX_TENSOR)
        return lower_cast(s, fx_read(s->im, arg->t), d);
    return lower_fill(s, arg, &(Type){.dtype = d});
}

Value **promoted_all(Site *s, int count, const Item *arg)
{
    const Item **each = NEWN(s->im->a, const Item *, count + 1);
    Value **v = NEWN(s->im->a, Value *, count + 1);
    for (int i = 0; i < count; i++)
        each[i] = &arg[i];
    DType d = result_type(s, count, each);
    for (int i = 0; i < count; i++)
        v[i] = promoted(s, &arg[i], d);
    return v;
}

DType float_type(DType d)
{
    return dtype_float(d) ? d : F32;
}

DType opmath_type(DType d)
{
    return dtype_float(d) && dtype_size(d) == 2 ? F32 : d;
}

DType sum_type(DType d)
{
    return dtype_float(d) ? d : I64;
}

int torch_dtype(const char *name)
{
    static const char *const names[][2] = {
        {"float64", "f64"}, {"double", "f64"}, {"float32", "f32"},   {"float", "f32"},
        {"float16", "f16"}, {"half", "f16"},   {"bfloat16", "bf16"}, {"int64", "i64"},
        {"long", "i64"},    {"int32", "i32"},  {"int", "i32"},       {"uint8", "u8"},
        {"bool", "bool"},
    };
    if (strncmp(name, "torch.", 6))
        return -1;
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(name + 6, names[i][0]))
            return dtype_parse(names[i][1]);
    return -1;
}
