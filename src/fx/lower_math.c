/* Functions of real numbers as compositions, each by a formula that stays accurate where the plain
 * one would cancel or overflow (Higham 2002, chapter 1; Kahan 1987). As in ATen, integers become
 * f32, and f16 and bf16 are computed in f32 and rounded once. */
#include "arith.h"

#include <math.h>
#include <string.h>

static Value *quotient(Site *s, Value *x, Value *y)
{
    return lower2(s, "div", x, y);
}

/* ---- one operand ---- */

static Value *operand(Site *s)
{
    DType d = float_type(site_type(s, "self")->dtype);
    return lower_cast(s, site_tensor(s, "self"), opmath_type(d));
}

static void result(Site *s, Value *y)
{
    site_return(s, lower_cast(s, y, float_type(site_type(s, "self")->dtype)));
}

void row_tan(Site *s)
{
    Value *x = operand(s);
    result(s, quotient(s, lower1(s, "sin", x), lower1(s, "cos", x)));
}

void row_log10(Site *s)
{
    result(s, lower_times(s, lower1(s, "log2", operand(s)), 0.30102999566398120));
}

enum { FAR = 32 }; /* from where sinh and cosh of |x| are exp(|x|) / 2 */

/* exp(a) / 2 as exp(a - FAR) exp(FAR) / 2: the difference is exact, and no part, of the slope
 * neither, is larger than the whole */
static Value *half_exp(Site *s, Value *a)
{
    return lower_times(s, lower1(s, "exp", plus(s, a, -FAR)), 0.5 * exp(FAR));
}

/* (exp(x) - exp(-x)) / 2 by expm1, which does not cancel near 0 */
static Value *near_sinh(Site *s, Value *x)
{
    Value *y = sub(s, lower1(s, "expm1", x), lower1(s, "expm1", lower1(s, "neg", x)));
    return lower_times(s, y, 0.5);
}

void row_sinh(Site *s)
{
    Value *x = operand(s), *a = lower1(s, "abs", x), *far = compare(s, "gt", a, FAR);
    Value *y = half_exp(s, where_or(s, far, a, FAR)), *below = compare(s, "lt", x, 0);
    y = lower_where(s, below, lower1(s, "neg", y), y);
    result(s, lower_where(s, far, y, near_sinh(s, unless(s, far, 0, x))));
}

/* 1 + 2 sinh(x / 2)^2, whose slope does not cancel near 0 either */
void row_cosh(Site *s)
{
    Value *x = operand(s), *a = lower1(s, "abs", x), *far = compare(s, "gt", a, FAR);
    Value *half = near_sinh(s, lower_times(s, unless(s, far, 0, x), 0.5));
    Value *y = plus(s, lower_times(s, mul(s, half, half), 2), 1);
    result(s, lower_where(s, far, half_exp(s, where_or(s, far, a, FAR)), y));
}

void row_atanh(Site *s)
{
    Value *x = operand(s);
    Value *y = sub(s, lower1(s, "log1p", x), lower1(s, "log1p", lower1(s, "neg", x)));
    result(s, lower_times(s, y, 0.5));
}

/* Whether x is so large that both inverses below are log(2 x); smaller squares do not overflow. */
static Value *is_far(Site *s, Value *x)
{
    return compare(s, "gt", x, x->type.dtype == F64 ? 1e150 : 1e15);
}

static Value *log_twice(Site *s, Value *far, Value *x)
{
    Value *ln = lower1(s, "log", lower_where(s, far, x, lower_like(s, 1, x)));
    return plus(s, ln, M_LN2);
}

/* log1p(a + a^2 / (1 + sqrt(1 + a^2))), a = |x|, with the sign of x */
void row_asinh(Site *s)
{
    Value *x = operand(s), *below = compare(s, "lt", x, 0);
    Value *a = lower_where(s, below, lower1(s, "neg", x), x); /* abs has a slope of 0 at 0 */
    Value *far = is_far(s, a), *c = unless(s, far, 0, a), *square = mul(s, c, c);
    Value *root = plus(s, lower1(s, "sqrt", plus(s, square, 1)), 1);
    Value *y = lower1(s, "log1p", add(s, c, quotient(s, square, root)));
    y = lower_where(s, far, log_twice(s, far, a), y);
    result(s, lower_where(s, below, lower1(s, "neg", y), y));
}

/* log1p(t + sqrt(t) sqrt(t + 2)), t = x - 1 */
void row_acosh(Site *s)
{
    Value *x = operand(s), *far = is_far(s, x), *t = plus(s, unless(s, far, 2, x), -1);
    Value *root = mul(s, lower1(s, "sqrt", t), lower1(s, "sqrt", plus(s, t, 2)));
    Value *y = lower1(s, "log1p", add(s, t, root));
    result(s, lower_where(s, far, log_twice(s, far, x), y));
}

/* The angles of right triangles: their other side is sqrt(1 - x^2), by two roots, so that at 1 its
 * slope is infinite and not 0 times that. */
static Value *other_side(Site *s, Value *x)
{
    Value *one = lower_like(s, 1, x);
    return mul(s, lower1(s, "sqrt", sub(s, one, x)), lower1(s, "sqrt", add(s, one, x)));
}

void row_atan(Site *s)
{
    Value *x = operand(s);
    result(s, lower2(s, "atan2", x, lower_like(s, 1, x)));
}

void row_asin(Site *s)
{
    Value *x = operand(s);
    result(s, lower2(s, "atan2", x, other_side(s, x)));
}

void row_acos(Site *s)
{
    Value *x = operand(s);
    result(s, lower2(s, "atan2", other_side(s, x), x));
}

void row_frac(Site *s)
{
    Value *x = operand(s);
    result(s, sub(s, x, lower1(s, "trunc", x)));
}

/* floor, ceil, round, trunc: integers have nothing to lose. */
void row_round(Site *s)
{
    Value *x = site_tensor(s, "self");
    if (dtype_float(x->type.dtype))
        x = lower1(s, strcmp(site_stem(s), "fix") ? site_stem(s) : "trunc", x);
    site_return(s, x);
}

/* round(x 10^d) / 10^d; of d < 0 round(x / 10^-d) 10^-d */
void row_round_decimals(Site *s)
{
    Value *x = operand(s);
    int64_t d = site_int(s, "decimals");
    if (!dtype_float(site_type(s, "self")->dtype))
        site_fail(s, "argument self: expected floating point, found %s",
                  dtype_name(site_type(s, "self")->dtype));
    Value *ten = lower_like(s, pow(10, (double)(d < 0 ? -d : d)), x);
    Value *y = lower1(s, "round", d < 0 ? quotient(s, x, ten) : mul(s, x, ten));
    result(s, d < 0 ? mul(s, y, ten) : quotient(s, y, ten));
}

void row_relu(Site *s)
{
    Value *x = site_tensor(s, "self");
    bool real = dtype_float(x->type.dtype);
    site_return(s, real ? lower1(s, "relu", x) : lower2(s, "maximum", x, lower_like(s, 0, x)));
}

void row_sign(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, x->type.dtype == BOOL ? x : lower1(s, "sign", x));
}

static Value *false_like(Site *s, Value *x)
{
    Type t = x->type;
    t.dtype = BOOL;
    return lower_full(s, 0, &t);
}

/* Whether x is below 0 or -0: 1 / -0 is -inf. */
static Value *is_negative(Site *s, Value *x)
{
    DType d = x->type.dtype;
    if (d == BOOL)
        return false_like(s, x);
    Value *below = compare(s, "lt", x, 0);
    if (!dtype_float(d))
        return below;
    return lower2(s, "logical_or", below, compare(s, "eq", lower1(s, "reciprocal", x), -INFINITY));
}

void row_signbit(Site *s)
{
    site_return(s, is_negative(s, site_tensor(s, "self")));
}

static void infinity(Site *s, double of)
{
    Value *x = site_tensor(s, "self");
    site_return(s, dtype_float(x->type.dtype) ? compare(s, "eq", x, of) : false_like(s, x));
}

void row_isposinf(Site *s)
{
    infinity(s, INFINITY);
}

void row_isneginf(Site *s)
{
    infinity(s, -INFINITY);
}

void row_rad2deg(Site *s)
{
    result(s, lower_times(s, operand(s), 180 / M_PI));
}

void row_deg2rad(Site *s)
{
    result(s, lower_times(s, operand(s), M_PI / 180));
}

/* sin(z) / z, z = pi x; below 1, where its slope would cancel, by Taylor's series
 * 1 - w / 6 (1 - w / 20 (1 - w / 42 ...)), w = z^2, whose tenth term is below 2^-60 */
void row_sinc(Site *s)
{
    Value *z = lower_times(s, operand(s), M_PI);
    Value *near = compare(s, "lt", lower1(s, "abs", z), 1), *c = where_or(s, near, z, 0);
    Value *w = mul(s, c, c), *series = lower_like(s, 1, w);
    for (int k = 9; k > 0; k--)
        series = plus(s, lower_times(s, mul(s, w, series), -1. / (2 * k * (2 * k + 1))), 1);
    Value *far = unless(s, near, 1, z);
    far = quotient(s, lower1(s, "sin", far), far);
    result(s, lower_where(s, near, series, far));
}

/* log x - log(1 - x), whose slope is 1 / x + 1 / (1 - x) at 0 and 1 too, of x brought between eps
 * and 1 - eps; as in ATen eps, where it is above 1/2, comes first */
void row_logit(Site *s)
{
    Value *x = operand(s);
    if (site_has(s, "eps")) {
        double eps = site_real(s, "eps");
        Value *below = compare(s, "lt", x, eps), *above = compare(s, "gt", x, 1 - eps);
        x = unless(s, below, eps, unless(s, above, 1 - eps, x));
    }
    Value *other = lower1(s, "log", sub(s, lower_like(s, 1, x), x));
    result(s, sub(s, lower1(s, "log", x), other));
}

/* dy / (x (1 - x)), 0 where x is not between eps and 1 - eps; without eps NaN outside of [0, 1] */
void row_logit_backward(Site *s)
{
    Value *x = operand(s), *dy = lower_cast(s, site_tensor(s, "grad_output"), x->type.dtype);
    double eps = site_has(s, "eps") ? site_real(s, "eps") : 0;
    Value *dx = quotient(s, dy, mul(s, x, sub(s, lower_like(s, 1, x), x)));
    Value *above = compare(s, "ge", x, eps), *below = compare(s, "le", x, 1 - eps);
    Value *outside = lower_like(s, site_has(s, "eps") ? 0 : NAN, x);
    result(s, lower_where(s, lower2(s, "logical_and", above, below), dx, outside));
}

/* -x log x, 0 at 0, -inf below */
void row_entr(Site *s)
{
    Value *x = operand(s), *positive = compare(s, "gt", x, 0), *zero = compare(s, "eq", x, 0);
    Value *c = where_or(s, positive, x, 1), *y = lower1(s, "neg", mul(s, c, lower1(s, "log", c)));
    Value *steep = lower1(s, "sqrt", where_or(s, zero, x, 1)); /* at 0 it is 0, of infinite slope */
    Value *other = lower_where(s, zero, steep, lower2(s, "add", x, lower_like(s, -INFINITY, x)));
    result(s, lower_where(s, positive, y, other));
}

static double greatest(DType d)
{
    switch (d) {
    case F64: return 0x1.fffffffffffffp1023;
    case F32: return 0x1.fffffep127;
    case BF16: return 0x1.fep127;
    default: return 65504;
    }
}

static Value *nan_to(Site *s, Value *x, double y)
{
    return lower_where(s, lower2(s, "eq", x, x), x, lower_like(s, y, x));
}

void row_nan_to_num(Site *s)
{
    Value *x = site_tensor(s, "self");
    DType d = x->type.dtype;
    if (!dtype_float(d)) {
        site_return(s, x);
        return;
    }
    double high = site_has(s, "posinf") ? site_real(s, "posinf") : greatest(d);
    double low = site_has(s, "neginf") ? site_real(s, "neginf") : -greatest(d);
    Value *y = nan_to(s, x, site_has(s, "nan") ? site_real(s, "nan") : 0);
    y = lower_where(s, compare(s, "eq", x, INFINITY), lower_like(s, high, x), y);
    site_return(s, lower_where(s, compare(s, "eq", x, -INFINITY), lower_like(s, low, x), y));
}

/* ---- two operands ---- */

typedef struct OperandPair {
    DType d; /* of the result */
    Value *x, *y;
} OperandPair;

static OperandPair pair(Site *s)
{
    OperandPair p = {.d = float_type(result_type_of(s, 2))};
    p.x = lower_cast(s, promoted(s, &s->arg[0], p.d), opmath_type(p.d));
    p.y = lower_cast(s, promoted(s, &s->arg[1], p.d), opmath_type(p.d));
    return p;
}

static void pair_result(Site *s, const OperandPair *p, Value *y)
{
    site_return(s, lower_cast(s, y, p->d));
}

/* x log y, 0 where x is 0 (NaN where y is); ATen's kernel rounds the logarithm too */
void row_xlogy(Site *s)
{
    DType d = float_type(result_type_of(s, 2));
    Value *x = promoted(s, &s->arg[0], d), *y = promoted(s, &s->arg[1], d);
    Value *endless = compare(s, "eq", y, INFINITY), *none = compare(s, "eq", x, 0);
    endless = lower2(s, "logical_or", compare(s, "le", y, 0), endless);
    none = lower2(s, "logical_and", none, endless);
    site_return(s, mul(s, x, lower1(s, "log", unless(s, none, 1, y))));
}

/* log(b^x + b^y) = max + log(1 + b^-|x - y|) to base b, whose logarithm is 1 / factor; of equal
 * infinities that itself */
static Value *log_add(Site *s, const char *power, double factor, Value *x, Value *y)
{
    Value *most = lower2(s, "maximum", x, y);
    Value *less = lower1(s, "neg", lower1(s, "abs", sub(s, x, y)));
    Value *more = lower1(s, "log1p", lower1(s, power, less));
    more = add(s, most, factor == 1 ? more : lower_times(s, more, factor));
    Value *same = lower2(s, "eq", x, y), *finite = lower1(s, "isfinite", x);
    same = lower2(s, "logical_and", same, lower1(s, "logical_not", finite));
    return lower_where(s, same, x, more);
}

Value *lower_logaddexp(Site *s, Value *x, Value *y)
{
    return log_add(s, "exp", 1, x, y);
}

void row_logaddexp(Site *s)
{
    OperandPair p = pair(s);
    pair_result(s, &p, lower_logaddexp(s, p.x, p.y));
}

void row_logaddexp2(Site *s)
{
    OperandPair p = pair(s);
    pair_result(s, &p, log_add(s, "exp2", 1 / M_LN2, p.x, p.y));
}

void row_atan2(Site *s)
{
    OperandPair p = pair(s);
    pair_result(s, &p, lower2(s, "atan2", p.x, p.y));
}

void row_copysign(Site *s)
{
    OperandPair p = pair(s);
    Value *size = lower1(s, "abs", p.x);
    pair_result(s, &p, lower_where(s, is_negative(s, p.y), lower1(s, "neg", size), size));
}

/* max sqrt(1 + (min / max)^2) of the absolute values */
void row_hypot(Site *s)
{
    OperandPair p = pair(s);
    Value *x = lower1(s, "abs", p.x), *y = lower1(s, "abs", p.y);
    Value *most = lower2(s, "maximum", x, y),
          *ratio = quotient(s, lower2(s, "minimum", x, y), most);
    Value *size = mul(s, most, lower1(s, "sqrt", plus(s, mul(s, ratio, ratio), 1)));
    Value *plain = lower2(s, "logical_or", compare(s, "eq", most, 0), /* where the ratio is NaN */
                          compare(s, "eq", most, INFINITY));
    pair_result(s, &p, lower_where(s, plain, most, size));
}

/* The other operand where one is NaN. */
static void extreme_known(Site *s, const char *op)
{
    DType d = result_type_of(s, 2);
    Value *x = promoted(s, &s->arg[0], d), *y = promoted(s, &s->arg[1], d);
    if (d == BOOL) {
        site_return(s, lower2(s, strcmp(op, "maximum") ? "logical_and" : "logical_or", x, y));
        return;
    }
    Value *z = lower2(s, op, x, y);
    if (dtype_float(d)) {
        z = lower_where(s, lower2(s, "eq", y, y), z, x);
        z = lower_where(s, lower2(s, "eq", x, x), z, y);
    }
    site_return(s, z);
}

void row_fmax(Site *s)
{
    extreme_known(s, "maximum");
}

void row_fmin(Site *s)
{
    extreme_known(s, "minimum");
}

/* 0 where self < 0, values where it is 0, else 1 */
void row_heaviside(Site *s)
{
    Value *x = site_tensor(s, "self"), *values = site_tensor(s, "values");
    if (x->type.dtype != values->type.dtype || x->type.dtype == BOOL)
        site_fail(s, "expected two tensors of numbers of one dtype, found %s and %s",
                  dtype_name(x->type.dtype), dtype_name(values->type.dtype));
    Value *y = lower_cast(s, compare(s, "gt", x, 0), x->type.dtype);
    site_return(s, lower_where(s, compare(s, "eq", x, 0), values, y));
}

/* |x - y| <= atol + |rtol y|, of finite ones; or equal; or both NaN where that counts */
void row_isclose(Site *s)
{
    DType d = result_type_of(s, 2);
    Value *x = promoted(s, &s->arg[0], d), *y = promoted(s, &s->arg[1], d);
    Value *same = lower2(s, "eq", x, y);
    if (dtype_float(d) && site_bool(s, "equal_nan")) {
        Value *nan = lower2(s, "logical_and", lower2(s, "ne", x, x), lower2(s, "ne", y, y));
        same = lower2(s, "logical_or", same, nan);
    }
    DType wide = dtype_float(d) ? d : F32;
    x = lower_cast(s, x, wide);
    y = lower_cast(s, y, wide);
    Value *least =
        plus(s, lower1(s, "abs", lower_times(s, y, site_real(s, "rtol"))), site_real(s, "atol"));
    Value *distance = lower1(s, "abs", sub(s, x, y));
    Value *close =
        lower2(s, "logical_and", lower1(s, "isfinite", distance), lower2(s, "le", distance, least));
    site_return(s, lower2(s, "logical_or", same, close));
}
