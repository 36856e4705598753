/* Elementary functions of op/vmath.h against the C library in double: the greatest error, in units
 * of the last place of the f32 result, over floats of every exponent and both signs, with
 * infinities and NaN; powers and angles over pairs; casts to half precision, and back, against
 * tensor.c. */
#include "../../src/op/vmath.h"
#include "../shared/test.h"

enum { STEP = 4099, QUICK = 40009, PAIRS = 300000 }; /* every STEP-th float; odd */

static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

static double bell_of(double x)
{
    return exp(-0.5 * x * x);
}

static double normal_of(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

/* By bisection, against erfc near 1. */
static double erfinv_of(double x)
{
    double low = 0, high = 10, a = fabs(x);
    if (!(a < 1))
        return a == 1 ? x * INFINITY : NAN;
    for (int i = 0; i < 200 && a > 0; i++) {
        double mid = 0.5 * (low + high);
        bool below = a < 0.5 ? erf(mid) < a : erfc(mid) > 1 - a;
        low = below ? mid : low;
        high = below ? high : mid;
    }
    return copysign(a > 0 ? low : 0, x);
}

/* Functions whose result for NaN is any number are used so that NaN comes from elsewhere. */
INLINE float v_half_bell(float x)
{
    return x != x ? x : v_bell(x, 0.5f);
}

INLINE float v_normal(float x)
{
    return x != x ? x : v_normal_cdf(x, v_bell(x, 0.5f));
}

/* NAME_f32 as it is, and NAME_fma as compilers may contract it. */
#define NAMED(name)                               \
    static float name##_f32(float x)              \
    {                                             \
        return name(x);                           \
    }                                             \
    KERNEL_FMA(float, name##_fma, (float x), (x)) \
    {                                             \
        return name(x);                           \
    }
NAMED(v_exp)
NAMED(v_log)
NAMED(v_expm1)
NAMED(v_log1p)
NAMED(v_log2)
NAMED(v_sigmoid)
NAMED(v_tanh)
NAMED(v_erf)
NAMED(v_erfc)
NAMED(v_erfinv)
NAMED(v_sin)
NAMED(v_cos)
NAMED(v_half_bell)
NAMED(v_normal)

/* clang-format off */
#define BOTH(name) {name##_f32, name##_fma}
static const struct {
    const char *name;
    float (*f[2])(float);
    double (*of)(double);
    double most, ulp; /* |x| up to `most`; the bound that vmath.h states */
} functions[] = {
    {"exp",     BOTH(v_exp),       exp,        INFINITY, 1},
    {"log",     BOTH(v_log),       log,        INFINITY, 1},
    {"expm1",   BOTH(v_expm1),     expm1,      INFINITY, 3},
    {"log1p",   BOTH(v_log1p),     log1p,      INFINITY, 1.5},
    {"log2",    BOTH(v_log2),      log2,       INFINITY, 1.5},
    {"sigmoid", BOTH(v_sigmoid),   sigmoid_of, INFINITY, 2.5},
    {"tanh",    BOTH(v_tanh),      tanh,       INFINITY, 1.5},
    {"erf",     BOTH(v_erf),       erf,        INFINITY, 2},
    {"erfc",    BOTH(v_erfc),      erfc,       INFINITY, 8},
    {"erfinv",  BOTH(v_erfinv),    erfinv_of,  INFINITY, 12},
    {"bell",    BOTH(v_half_bell), bell_of,    INFINITY, 1.5},
    {"normal",  BOTH(v_normal),    normal_of,  INFINITY, 8},
    {"sin",     BOTH(v_sin),       sin,        V_SIN_MOST, 0.51},
    {"cos",     BOTH(v_cos),       cos,        V_SIN_MOST, 0.51},
};
/* clang-format on */

/* |got - want| in units of the last place of an f32 near want; infinite where one is not a number
 * or beyond f32 and the other is not. */
static double ulps(float got, double want)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (fabs(want) >= 0x1.ffffffp127 || isinf(got))
        return isinf(got) && fabs(want) >= 0x1.fffffep127 && (got > 0) == (want > 0) ? 0 : INFINITY;
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, MAX(e - 24, -149));
}

static void check_function(int i, int k, uint32_t step)
{
    double worst = 0;
    float at = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += step) {
        float x = bits_to_f32((uint32_t)bits);
        if (fabs(x) > functions[i].most)
            continue;
        double e = ulps(functions[i].f[k](x), functions[i].of(x));
        if (e > worst) {
            worst = e;
            at = x;
        }
    }
    if (!EXPECT(worst <= functions[i].ulp))
        printf("  %s%s: %g ulp at %a, expected at most %g\n", functions[i].name,
               k ? ", contracted" : "", worst, at, functions[i].ulp);
}

static void check_ends(void)
{
    const float ends[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-126f};
    for (int i = 0; i < LEN(functions); i++)
        for (int j = 0; j < LEN(ends); j++)
            for (int k = 0; k < 2; k++)
                if (!(fabs(ends[j]) > functions[i].most))
                    EXPECT(ulps(functions[i].f[k](ends[j]), functions[i].of(ends[j])) <= 1);
}

static float v_below(float x)
{
    return v_exp_below(-v_abs(x));
}

static float below_of(float x)
{
    double y = exp(-fabs((double)x));
    return y < 0x1p-126 ? 0 : (float)y;
}

/* exp of what is not above 0, which has no subnormal results. */
static void check_below(uint32_t step)
{
    int differ = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += step) {
        float x = bits_to_f32((uint32_t)bits);
        differ += fabsf(v_below(x) - below_of(x)) > 0x1p-23f * below_of(x) + 0x1p-126f;
        differ += isnan(x) != isnan(v_below(x));
    }
    EXPECT(differ == 0);
}

/* ---- what comes near enough for bf16 ---- */

INLINE float v_near_sigmoid(float x)
{
    return v_near_logistic2(x * 1.44269504f);
}

INLINE float v_near_normal(float x)
{
    return v_near_normal_cdf(x, v_near_bell_64(x));
}

INLINE float v_near_bell(float x)
{
    return v_near_bell_64(x) * 0x1p-64f;
}

INLINE float v_near_exp_below(float x)
{
    return v_near_exp(-v_abs(x));
}

static double below(double x)
{
    return exp(-fabs(x));
}
NAMED(v_near_exp_below)
NAMED(v_near_sigmoid)
NAMED(v_near_normal)
NAMED(v_near_bell)

/* clang-format off */
static const struct {
    const char *name;
    float (*f[2])(float);
    double (*of)(double);
} nears[] = {
    {"near exp",     BOTH(v_near_exp_below), below},
    {"near sigmoid", BOTH(v_near_sigmoid), sigmoid_of},
    {"near normal",  BOTH(v_near_normal),  normal_of},
    {"near bell",    BOTH(v_near_bell),    bell_of},
};
/* clang-format on */

/* A sixteenth of bf16's ulp near x is 2^12 ulp of f32. */
static void check_near(int i, int k)
{
    for (uint32_t bits = 0; bits < 1 << 16; bits++) {
        float x = v_bf16_to_f32((uint16_t)bits);
        double want = nears[i].of(x), e = isnan(x) ? 0 : ulps(nears[i].f[k](x), want);
        if (!(e <= 0x1p12) && fabs(want) >= 0x1p-125) {
            EXPECT(e <= 0x1p12);
            printf("  %s: %g ulp at %a\n", nears[i].name, e, x);
            return;
        }
    }
}

/* Ties away from 0, and NaN stays one. */
static void check_near_rounding(void)
{
    int differ = 0;
    for (uint32_t bits = 0; bits < 1 << 16; bits++) {
        float x = v_bf16_to_f32((uint16_t)bits), y = x * 1.0001f;
        float z = v_bf16_to_f32((uint16_t)(v_near_bf16(y) >> 16));
        differ += isnan(x) ? !isnan(z) : z != bf16_to_f32(f32_to_bf16(y));
        differ += !isnan(x) && v_near_bf16(bits_to_f32(bits << 16 | 0x8000)) >> 16 != bits + 1;
    }
    EXPECT(differ == 0);
}

static bool power_differs(float a, float b)
{
    double want = pow(a, b);
    float got = v_pow(a, b);
    bool sign = isnan(want) || !signbit(got) == !signbit(want);
    if (ulps(got, want) <= 0.51 && sign)
        return false;
    printf("  pow(%a, %a): %a, expected %a\n", a, b, got, want);
    return true;
}

static void check_powers(void)
{
    const float ends[] = {0,        -0.0f,       1,   -1,     INFINITY,  -INFINITY, NAN,
                          2,        -2,          3,   -3,     0.5f,      1e30,      16777215,
                          16777216, -8388607.5f, 2.5, 1e-40f, 1.0000001f};
    for (int i = 0; i < LEN(ends); i++)
        for (int j = 0; j < LEN(ends); j++)
            EXPECT(!power_differs(ends[i], ends[j]));
    int differ = 0;
    for (uint64_t i = 0; i < PAIRS && differ < 5; i++) {
        float u = random_uniform(1, 0, 0, i), v = random_uniform(1, 1, 0, i);
        differ += power_differs(exp2f(250 * u - 125), (v - 0.5f) * (i % 2 ? 300 : 4));
        differ += power_differs(8 * u - 8, floorf(40 * v) - 20);
    }
    EXPECT(differ == 0);
}

static bool angle_differs(float y, float x)
{
    double want = atan2(y, x);
    float got = v_atan2(y, x);
    if (ulps(got, want) <= 0.52 && (isnan(want) || !signbit(got) == !signbit(want)))
        return false;
    printf("  atan2(%a, %a): %a, expected %a\n", y, x, got, want);
    return true;
}

static void check_angles(void)
{
    const float ends[] = {0, -0.0f, 1, -1, INFINITY, -INFINITY, NAN, 1e30f, -1e-40f, 3};
    for (int i = 0; i < LEN(ends); i++)
        for (int j = 0; j < LEN(ends); j++)
            EXPECT(!angle_differs(ends[i], ends[j]));
    int differ = 0;
    for (uint64_t i = 0; i < PAIRS && differ < 5; i++) {
        float u = random_uniform(1, 0, 0, i), v = random_uniform(1, 1, 0, i);
        differ += angle_differs(u - 0.5f, v - 0.5f);
        differ += angle_differs(exp2f(60 * u - 30), i % 2 ? exp2f(60 * v - 30) : -1);
    }
    EXPECT(differ == 0);
}

static void check_casts(uint32_t step)
{
    int differ = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += step) {
        float x = bits_to_f32((uint32_t)bits);
        differ +=
            !isnan(x) && (v_f32_to_f16(x) != f32_to_f16(x) || v_f32_to_bf16(x) != f32_to_bf16(x));
    }
    EXPECT(differ == 0);
    for (int i = 0; i < 1 << 16; i++) {
        float x = v_f16_to_f32((uint16_t)i), y = f16_to_f32((uint16_t)i);
        differ += isnan(y) ? !isnan(x) : f32_to_bits(x) != f32_to_bits(y);
    }
    EXPECT(differ == 0);
    EXPECT(isnan(f16_to_f32(v_f32_to_f16(NAN))) && isnan(bf16_to_f32(v_f32_to_bf16(NAN))));
}

int main(void)
{
    uint32_t step = getenv("TN_QUICK") ? QUICK : STEP;
    for (int i = 0; i < 2 * LEN(functions); i++)
        check_function(i / 2, i % 2, step);
    for (int i = 0; i < 2 * LEN(nears); i++)
        check_near(i / 2, i % 2);
    check_near_rounding();
    check_ends();
    check_below(step);
    check_powers();
    check_angles();
    check_casts(step);
    return test_report();
}
