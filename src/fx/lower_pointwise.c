/* Pointwise overloads: operands are cast to the result's dtype by PyTorch's promotion, numbers
 * become 0-dimensional constants, alpha and value become factors. A composition rounds where
 * PyTorch's own composition does. */
#include "lower.h"

#include <math.h>
#include <string.h>

/* Argument i in the dtype of the result. */
static Value *operand(Site *s, int i, DType d)
{
    return promoted(s, &s->arg[i], d);
}

/* The same in the dtype that ATen's kernels of several steps work in: f32 for 16 bits. */
static Value *opened(Site *s, int i, DType d)
{
    return lower_cast(s, operand(s, i, d), opmath_type(d));
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
    DType d = result_type_of(s, 2);
    Value *x = operand(s, 0, d);
    site_return(s, arithmetic(s, op, x, operand(s, 1, d)));
}

void row_binary(Site *s)
{
    binary(s, site_stem(s));
}

/* A number, or a tensor without axes. */
static bool bare(const Item *x)
{
    return x->kind != FX_TENSOR || !x->t->type.rank;
}

/* x, where it is bare not rounded to 16 bits first. */
static Value *unrounded(Site *s, int i, DType d)
{
    return bare(&s->arg[i]) ? operand(s, i, opmath_type(d)) : opened(s, i, d);
}

/* Products and quotients by something bare take it unrounded and round their result alone; ATen's
 * sums do not. */
static void scaled(Site *s, const char *op, DType d)
{
    bool open = opmath_type(d) != d && bare(&s->arg[1]);
    Value *x = open ? unrounded(s, 0, d) : operand(s, 0, d);
    Value *y = arithmetic(s, op, x, open ? unrounded(s, 1, d) : operand(s, 1, d));
    site_return(s, lower_cast(s, y, d));
}

void row_scaled(Site *s)
{
    scaled(s, site_stem(s), result_type_of(s, 2));
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
    DType d = result_type_of(s, 2);
    Value *x = operand(s, 0, d), *y = operand(s, 1, d);
    double alpha = site_real(s, "alpha");
    if (d != BOOL)
        y = times(s, y, alpha);
    else if (!alpha)
        y = lower2(s, "bitwise_and", y, lower_number(s, 0, BOOL));
    site_return(s, arithmetic(s, site_stem(s), x, y));
}

void row_rsub(Site *s)
{
    DType d = result_type_of(s, 2);
    Value *x = operand(s, 0, d), *y = operand(s, 1, d);
    site_return(s, lower2(s, "sub", y, times(s, x, site_real(s, "alpha"))));
}

void row_div(Site *s)
{
    scaled(s, "div", float_type(result_type_of(s, 2)));
}

void row_div_mode(Site *s)
{
    const char *mode = site_has(s, "rounding_mode") ? site_text(s, "rounding_mode") : "";
    DType d = result_type_of(s, 2);
    if (!*mode) {
        row_div(s);
    } else if (!strcmp(mode, "floor")) {
        scaled(s, "floor_divide", d);
    } else if (strcmp(mode, "trunc") != 0) {
        site_fail(s, "argument rounding_mode: expected \"floor\" or \"trunc\", found \"%s\"", mode);
    } else if (!dtype_float(d)) {
        binary(s, "trunc_divide");
    } else {
        Value *x = unrounded(s, 0, d);
        x = lower1(s, "trunc", lower2(s, "div", x, unrounded(s, 1, d)));
        site_return(s, lower_cast(s, x, d));
    }
}

/* 1 / x^2 with ATen's bits; at 0 and infinity by pow, whose slope is no 0 times infinity. */
static Value *over_square(Site *s, Value *x)
{
    Value *end = lower2(s, "eq", lower1(s, "abs", x), lower_like(s, INFINITY, x));
    end = lower2(s, "logical_or", end, lower2(s, "eq", x, lower_like(s, 0, x)));
    Value *one = lower_like(s, 1, x), *c = lower_where(s, end, one, x);
    Value *other = lower2(s, "pow", lower_where(s, end, x, one), lower_like(s, -2, x));
    return lower_where(s, end, other, lower1(s, "reciprocal", lower2(s, "mul", c, c)));
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
    if (e == -2 && dtype_float(d))
        return over_square(s, x);
    if (e == 0)
        return lower_full(s, 1, &x->type);
    return lower2(s, "pow", x, lower_number(s, e, d));
}

void row_pow(Site *s)
{
    DType d = result_type_of(s, 2);
    if (s->arg[1].kind == FX_TENSOR) {
        binary(s, "pow");
        return;
    }
    site_return(s, power(s, operand(s, 0, d), site_real(s, "exponent")));
}

void row_square(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = x->type.dtype == BOOL ? lower_cast(s, x, I64) : x;
    site_return(s, lower2(s, "mul", x, x));
}

/* self other + addend; rounded twice, where PyTorch's may round once */
void row_fma(Site *s)
{
    DType d = result_type_of(s, 3);
    Value *x = lower2(s, "mul", opened(s, 0, d), opened(s, 1, d));
    site_return(s, lower_cast(s, lower2(s, "add", x, opened(s, 2, d)), d));
}

/* self + value tensor1 op tensor2, in ATen's order */
static void add_product(Site *s, const char *op, DType d)
{
    Value *x = opened(s, 0, d), *y = times(s, opened(s, 1, d), site_real(s, "value"));
    y = lower2(s, op, y, opened(s, 2, d));
    site_return(s, lower_cast(s, lower2(s, "add", x, y), d));
}

void row_addcmul(Site *s)
{
    add_product(s, "mul", result_type_of(s, 3));
}

void row_addcdiv(Site *s)
{
    add_product(s, "div", float_type(result_type_of(s, 3)));
}

/* From the nearer end: x + w (y - x) where |w| < 0.5, else y - (y - x) (1 - w). */
void row_lerp(Site *s)
{
    DType d = result_type_of(s, 2);
    Value *x = opened(s, 0, d), *y = opened(s, 1, d), *w = unrounded(s, 2, d);
    Value *diff = lower2(s, "sub", y, x);
    Value *one = lower_like(s, 1, w);
    bool number = s->arg[2].kind != FX_TENSOR;
    double weight = number ? site_real(s, "weight") : 0;
    Value *low = NULL, *high = NULL;
    if (!number || fabs(weight) < 0.5)
        low = lower2(s, "add", x, lower2(s, "mul", w, diff));
    if (!number || fabs(weight) >= 0.5)
        high = lower2(s, "sub", y, lower2(s, "mul", diff, lower2(s, "sub", one, w)));
    if (low && high) {
        Value *near = lower2(s, "lt", lower1(s, "abs", w), lower_like(s, 0.5, w));
        low = lower_where(s, near, low, high);
    }
    site_return(s, lower_cast(s, low ? low : high, d));
}

/* ---- bits moved: x 2^n, and floor(x / 2^n), in i64, which holds what smaller ones lose ---- */

static void shift(Site *s, bool left)
{
    DType d = result_type_of(s, 2);
    d = d == BOOL ? I64 : d;
    if (dtype_float(d))
        site_fail(s, "expected integers, found %s", dtype_name(d));
    int bits = 8 * dtype_size(d);
    Value *x = lower_cast(s, operand(s, 0, d), I64), *n = lower_cast(s, operand(s, 1, d), I64);
    Value *zero = lower_like(s, 0, n), *two = lower_like(s, 2, n), *y;
    Value *below = lower2(s, "lt", n, zero), *above = lower2(s, "ge", n, lower_like(s, bits, n));
    Value *beyond = lower2(s, "logical_or", below, above);
    if (left) {
        y = lower_where(s, beyond, zero, lower2(s, "mul", x, lower2(s, "pow", two, n)));
    } else { /* in two steps: i64 does not have 2^63 */
        n = lower_where(s, beyond, lower_like(s, MIN(bits, 63), n), n);
        Value *most = lower2(s, "minimum", n, lower_like(s, 62, n));
        y = lower2(s, "floor_divide", x, lower2(s, "pow", two, most));
        y = lower2(s, "floor_divide", y, lower2(s, "pow", two, lower2(s, "sub", n, most)));
    }
    site_return(s, lower_cast(s, y, d));
}

void row_shift_left(Site *s)
{
    shift(s, true);
}

void row_shift_right(Site *s)
{
    shift(s, false);
}

void row_bitwise_xor(Site *s)
{
    binary(s, "bitwise_xor");
}

/* ---- logic ---- */

static Value *as_bool(Site *s, Value *x)
{
    DType d = x->type.dtype;
    return d == BOOL ? x : lower2(s, "ne", x, lower_number(s, 0, d));
}

void row_logical(Site *s)
{
    const char *op = site_stem(s);
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

/* A bound below 0 is none for u8. */
static bool holds_all_above(const Item *x, DType d)
{
    return d == U8 && x->kind == FX_INT && x->i < 0;
}

/* max(x, bound) or min(x, bound), NaN where the bound is. At a number's bound the slope of x is 0,
 * as in ATen; at a tensor's it and the tensor have half each, as in ATen too. */
static Value *bounded(Site *s, bool low, Value *x, Value *bound, const Item *number)
{
    if (number->kind == FX_TENSOR)
        return lower2(s, low ? "maximum" : "minimum", x, bound);
    Value *holds = lower2(s, low ? "le" : "ge", x, bound);
    if (isnan(number->f))
        holds = lower2(s, "logical_or", holds, lower2(s, "ne", bound, bound));
    return lower_where(s, holds, bound, x);
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
    for (int i = 1; i < s->narg; i++) {
        bool low = !strcmp(s->arg_name[i], "min");
        if (s->arg[i].kind != FX_NONE && !(low && holds_all_above(&s->arg[i], d)))
            x = bounded(s, low, x, operand(s, i, d), &s->arg[i]);
    }
    site_return(s, x);
}

/* ---- one operand ---- */

void row_unary_float(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, lower1(s, site_stem(s), lower_cast(s, x, float_type(x->type.dtype))));
}
