/* Pointwise overloads: operands in the result's dtype by PyTorch's promotion, numbers as constants
 * without axes, alpha and value as factors. Compositions round as PyTorch's kernels do where those
 * are compositions themselves. */
#include "fx.h"

#include <math.h>
#include <string.h>

/* The op that an overload is named after: "add" of "add.Tensor". */
static const char *stem(Site *s)
{
    const char *name = s->row->name;
    return arena_strndup(s->im->a, name, strcspn(name, "."));
}

static DType type_of_all(Site *s, int count)
{
    const Item *arg[FX_MAX_ARG];
    for (int i = 0; i < count; i++)
        arg[i] = &s->arg[i];
    return result_type(s, count, arg);
}

static Value *operand(Site *s, int i, DType d)
{
    return promoted(s, &s->arg[i], d);
}

/* The op of bools that does what `op` does of 0 and 1; itself where there is none. */
static const char *of_bools(const char *op)
{
    static const char *const ops[][2] = {
        {"add", "logical_or"},
        {"mul", "logical_and"},
        {"maximum", "logical_or"},
        {"minimum", "logical_and"},
    };
    for (int i = 0; i < LEN(ops); i++)
        if (!strcmp(op, ops[i][0]))
            return ops[i][1];
    return op;
}

static Value *arithmetic(Site *s, const char *op, Value *x, Value *y)
{
    return lower2(s, x->type.dtype == BOOL ? of_bools(op) : op, x, y);
}

static void binary(Site *s, const char *op)
{
    DType d = type_of_all(s, 2);
    Value *x = operand(s, 0, d);
    site_return(s, arithmetic(s, op, x, operand(s, 1, d)));
}

void row_binary(Site *s)
{
    binary(s, stem(s));
}

void row_maximum(Site *s)
{
    binary(s, "maximum");
}

void row_minimum(Site *s)
{
    binary(s, "minimum");
}

void row_bitwise_and(Site *s)
{
    binary(s, "bitwise_and");
}

void row_bitwise_or(Site *s)
{
    binary(s, "bitwise_or");
}

/* x times the number, x itself for 1 */
static Value *times(Site *s, Value *x, double factor)
{
    return factor == 1 ? x : lower2(s, "mul", x, lower_number(s, factor, x->type.dtype));
}

/* x + alpha y, x - alpha y */
void row_add(Site *s)
{
    DType d = type_of_all(s, 2);
    Value *x = operand(s, 0, d), *y = operand(s, 1, d);
    if (d != BOOL)
        y = times(s, y, site_real(s, "alpha"));
    site_return(s, arithmetic(s, stem(s), x, y));
}

void row_rsub(Site *s)
{
    DType d = type_of_all(s, 2);
    Value *x = operand(s, 0, d), *y = operand(s, 1, d);
    site_return(s, lower2(s, "sub", y, times(s, x, site_real(s, "alpha"))));
}

void row_div(Site *s)
{
    DType d = float_type(type_of_all(s, 2));
    Value *x = operand(s, 0, d);
    site_return(s, lower2(s, "div", x, operand(s, 1, d)));
}

void row_div_mode(Site *s)
{
    const char *mode = site_has(s, "rounding_mode") ? site_text(s, "rounding_mode") : "";
    DType d = type_of_all(s, 2);
    if (!*mode) {
        row_div(s);
    } else if (!strcmp(mode, "floor")) {
        binary(s, "floor_divide");
    } else if (strcmp(mode, "trunc") != 0) {
        site_fail(s, "argument rounding_mode: expected \"floor\" or \"trunc\", found \"%s\"", mode);
    } else if (!dtype_float(d)) {
        binary(s, "trunc_divide");
    } else {
        binary(s, "div");
        site_return(s, lower1(s, "trunc", s->result.t->v));
    }
}

/* Exponents that have an op of their own keep its accuracy and speed, as in PyTorch. */
static Value *power(Site *s, Value *x, double e)
{
    DType d = x->type.dtype;
    if (e == 2)
        return lower2(s, "mul", x, x);
    if (e == 3)
        return lower2(s, "mul", lower2(s, "mul", x, x), x);
    if (e == 1)
        return x;
    if (e == 0.5 && dtype_float(d))
        return lower1(s, "sqrt", x);
    if (e == -0.5 && dtype_float(d))
        return lower1(s, "rsqrt", x);
    if (e == -1 && dtype_float(d))
        return lower1(s, "reciprocal", x);
    if (e == 0)
        return lower_full(s, 1, &x->type);
    return lower2(s, "pow", x, lower_number(s, e, d));
}

void row_pow(Site *s)
{
    DType d = type_of_all(s, 2);
    if (s->arg[1].kind == FX_TENSOR) {
        binary(s, "pow");
        return;
    }
    site_return(s, power(s, operand(s, 0, d), site_real(s, "exponent")));
}

void row_square(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, lower2(s, "mul", x, x));
}

/* self other + addend; rounded twice, where PyTorch's may round once */
void row_fma(Site *s)
{
    DType d = type_of_all(s, 3);
    Value *x = lower2(s, "mul", operand(s, 0, d), operand(s, 1, d));
    site_return(s, lower2(s, "add", x, operand(s, 2, d)));
}

void row_addcmul(Site *s)
{
    DType d = type_of_all(s, 3);
    Value *x = operand(s, 0, d), *y = lower2(s, "mul", operand(s, 1, d), operand(s, 2, d));
    site_return(s, lower2(s, "add", x, times(s, y, site_real(s, "value"))));
}

void row_addcdiv(Site *s)
{
    DType d = float_type(type_of_all(s, 3));
    Value *x = operand(s, 0, d), *y = lower2(s, "div", operand(s, 1, d), operand(s, 2, d));
    site_return(s, lower2(s, "add", x, times(s, y, site_real(s, "value"))));
}

/* From the nearer end: x + w (y - x) where |w| < 0.5, else y - (y - x) (1 - w). */
void row_lerp(Site *s)
{
    DType d = type_of_all(s, 2);
    Value *x = operand(s, 0, d), *y = operand(s, 1, d), *w = operand(s, 2, d);
    Value *diff = lower2(s, "sub", y, x);
    Value *one = lower_number(s, 1, d);
    bool number = s->arg[2].kind != FX_TENSOR;
    double weight = number ? site_real(s, "weight") : 0;
    Value *low = NULL, *high = NULL;
    if (!number || fabs(weight) < 0.5)
        low = lower2(s, "add", x, lower2(s, "mul", w, diff));
    if (!number || fabs(weight) >= 0.5)
        high = lower2(s, "sub", y, lower2(s, "mul", diff, lower2(s, "sub", one, w)));
    if (low && high) {
        Value *near = lower2(s, "lt", lower1(s, "abs", w), lower_number(s, 0.5, d));
        low = emit1(s->b, "where", IN(near, low, high), NOATTRS);
    }
    site_return(s, low ? low : high);
}

/* ---- logic ---- */

static Value *as_bool(Site *s, Value *x)
{
    DType d = x->type.dtype;
    return d == BOOL ? x : lower2(s, "ne", x, lower_number(s, 0, d));
}

void row_logical(Site *s)
{
    const char *op = stem(s);
    Value *x = as_bool(s, site_tensor(s, "self"));
    if (!strcmp(op, "logical_not")) {
        site_return(s, lower1(s, op, x));
        return;
    }
    Value *y = as_bool(s, site_tensor(s, "other"));
    site_return(s, lower2(s, strcmp(op, "logical_xor") ? op : "ne", x, y));
}

void row_isnan(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, lower2(s, "ne", x, x));
}

static Value *all_bool(Site *s, bool y, const Value *like)
{
    Type t = like->type;
    t.dtype = BOOL;
    return lower_full(s, y, &t);
}

/* Integers are finite. */
void row_isfinite(Site *s)
{
    Value *x = site_tensor(s, "self");
    bool real = dtype_float(x->type.dtype);
    site_return(s, real ? lower1(s, "isfinite", x) : all_bool(s, true, x));
}

void row_isinf(Site *s)
{
    Value *x = site_tensor(s, "self");
    if (!dtype_float(x->type.dtype)) {
        site_return(s, all_bool(s, false, x));
        return;
    }
    Value *inf = lower_number(s, INFINITY, x->type.dtype);
    site_return(s, lower2(s, "eq", lower1(s, "abs", x), inf));
}

void row_where(Site *s)
{
    const Item *arg[] = {&s->arg[1], &s->arg[2]};
    DType d = result_type(s, 2, arg);
    Value *c = as_bool(s, site_tensor(s, "condition"));
    Value *x = operand(s, 1, d), *y = operand(s, 2, d);
    site_return(s, emit1(s->b, "where", IN(c, x, y), NOATTRS));
}

void row_masked_fill(Site *s)
{
    Value *x = site_tensor(s, "self"), *mask = as_bool(s, site_tensor(s, "mask"));
    Value *value = promoted(s, site_arg(s, "value"), x->type.dtype);
    site_return(s, emit1(s->b, "where", IN(mask, value, x), NOATTRS));
}

/* clamp, clamp_min, clamp_max: the bounds that are there count for the dtype. */
void row_clamp(Site *s)
{
    const Item *arg[3];
    int count = 0;
    for (int i = 0; i < s->narg; i++)
        if (s->arg[i].kind != FX_NONE)
            arg[count++] = &s->arg[i];
    DType d = result_type(s, count, arg);
    Value *x = operand(s, 0, d);
    for (int i = 1; i < s->narg; i++)
        if (s->arg[i].kind != FX_NONE)
            x = lower2(s, strcmp(s->arg_name[i], "min") ? "minimum" : "maximum", x,
                       operand(s, i, d));
    site_return(s, x);
}

/* ---- one operand ---- */

void row_unary_float(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, lower1(s, stem(s), lower_cast(s, x, float_type(x->type.dtype))));
}

void row_tan(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower_cast(s, x, float_type(x->type.dtype));
    site_return(s, lower2(s, "div", lower1(s, "sin", x), lower1(s, "cos", x)));
}

/* x log y, 0 where x is 0 (NaN where y is) */
void row_xlogy(Site *s)
{
    DType d = float_type(type_of_all(s, 2));
    Value *x = operand(s, 0, d), *y = operand(s, 1, d), *zero = lower_number(s, 0, d);
    Value *product = lower2(s, "mul", x, lower1(s, "log", y));
    Value *known = lower2(s, "eq", y, y), *none = lower2(s, "eq", x, zero);
    none = lower2(s, "logical_and", known, none);
    site_return(s, emit1(s->b, "where", IN(none, zero, product), NOATTRS));
}
