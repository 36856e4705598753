/* One element of every pointwise op on CUDA, as a function. Kernels call it, and it is the text
 * that bodies of `fused` are compiled with at run time: it includes element.cuh and lanes.cuh
 * alone.
 *
 *     lane_NAME<T>(operands, attributes)            lane_add<bf16>(a, b)
 *     lane_NAME_VARIANT<T>(...)                     lane_gelu_tanh<float>(x)
 *     lane__to_copy<From, To>(x)
 *
 * T is the type of the operands: double, float, bf16, f16, long long, int, unsigned char, bool; the
 * variant is the value of an attribute that is a string. Floats are computed in double for f64,
 * else in float, and rounded once; integers wrap. Formulas and rules for NaN and ties are those of
 * binary.c, divide.c, compare.c, bitwise.c, unary.c and cast.c; elementary functions are CUDA's, of
 * at most 5 ulp in float. A divisor that is the integer 0 gives 0: who calls notes the fault. */
#ifndef TENON_LANE_CUH
#define TENON_LANE_CUH

#include "element.cuh"

/* ---- what CUDA has and C++ has not ---- */

#ifdef TN_SIMT
/* Newton's steps on erf(y) - x, by erfc where that would cancel. */
inline double erfinv(double x)
{
    double a = fabs(x), tail = 1 - a, y;
    if (!(a < 1))
        return a == 1 ? x * (double)INFINITY : (double)NAN;
    y = a < 0.9 ? a : sqrt(-log(tail));
    for (int i = 0; i < 60; i++)
        y -= (a < 0.5 ? erf(y) - a : tail - erfc(y)) / M_2_SQRTPI * exp(y * y);
    return copysign(y, x);
}
inline float erfinv(float x)
{
    return (float)erfinv((double)x);
}
inline float __double2float_rd(double x)
{
    float y = (float)x;
    return (double)y > x ? nextafterf(y, -INFINITY) : y;
}
#endif

/* ---- definitions by an expression ---- */

/* A lane of floats: x, or a and b, and the expression have the type W, float or double. */
#define FLOAT_LANE1(name, expr)                          \
    template <typename T> __device__ T lane_##name(T x_) \
    {                                                    \
        typedef wide_t<T> W;                             \
        const W x = wide(x_);                            \
        return narrow<T>((W)(expr));                     \
    }
#define FLOAT_LANE2(name, expr)                                \
    template <typename T> __device__ T lane_##name(T a_, T b_) \
    {                                                          \
        typedef wide_t<T> W;                                   \
        const W a = wide(a_), b = wide(b_);                    \
        return narrow<T>((W)(expr));                           \
    }

/* A lane of floats and of integers, in which `ints` is computed. */
#define NUMBER_LANE1(name, expr, ints)                   \
    template <typename T> __device__ T lane_##name(T x_) \
    {                                                    \
        if constexpr (is_floating<T>) {                  \
            typedef wide_t<T> W;                         \
            const W x = wide(x_);                        \
            return narrow<T>((W)(expr));                 \
        } else {                                         \
            const long long x = x_;                      \
            return (T)(ints);                            \
        }                                                \
    }
#define NUMBER_LANE2(name, expr, ints)                         \
    template <typename T> __device__ T lane_##name(T a_, T b_) \
    {                                                          \
        if constexpr (is_floating<T>) {                        \
            typedef wide_t<T> W;                               \
            const W a = wide(a_), b = wide(b_);                \
            return narrow<T>((W)(expr));                       \
        } else {                                               \
            const long long a = a_, b = b_;                    \
            return (T)(ints);                                  \
        }                                                      \
    }

/* clang-format off */
#define WRAPPED(a, op, b) ((unsigned long long)(a) op (unsigned long long)(b))
/* clang-format on */

/* ---- one operand and two (unary.c, binary.c) ---- */

/* a^b, wrapped; for a negative b 1 / a^|b| cut to an integer. */
__device__ inline long long power(long long a, long long b)
{
    unsigned long long y = 1, x = (unsigned long long)a;
    if (b < 0)
        return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
    for (; b; b >>= 1, x *= x)
        y *= b & 1 ? x : 1;
    return (long long)y;
}

/* 2^x to 2 ulp, and 1 / x to 1 ulp for x in [1, inf]; what is below 2^-126 is 0. */
__device__ inline float exp2_near(float x)
{
#ifdef TN_SIMT
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
__device__ inline float reciprocal_near(float x)
{
#ifdef TN_SIMT
    return 1 / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* 1 / (1 + exp(-x)) for results of T: accurate in both tails; for 16 bits by four instructions, to
 * 2^-16 of the result where that is above 2^-126, else 0. */
template <typename T, typename W> __device__ inline W logistic(W x)
{
    if constexpr (sizeof(T) == 2) {
        return reciprocal_near(1 + exp2_near(-1.44269504f * x));
    } else {
        W e = exp(-fabs(x)), top = x < 0 ? e : W(1);
        if constexpr (sizeof(T) == 8)
            return top / (1 + e);
        else
            return __fdividef(top, 1 + e);
    }
}

/* gelu by tanh is x logistic(x (C + D x^2)): C = 2 sqrt(2 / pi), D = 0.044715 C. */
template <typename W> constexpr W gelu_c = W(1.5957691216057308);
template <typename W> constexpr W gelu_d = W(0.071354816272600248);

/* exp(-x^2 / 2), with what rounding takes from the square. */
__device__ inline float bell(float x)
{
    float c = fabs(x) > 15 ? 15.0f : fabs(x), z = c * c; /* 0 from there on */
    float e = exp(-0.5f * z);
    return fmaf(e, -0.5f * fmaf(c, c, -z), e);
}
__device__ inline double bell(double x)
{
    return exp(-0.5 * x * x);
}

/* The normal distribution function at x, e = bell(x); below 10 ulp, by the method of v_erfcx in
 * vmath.h, where the fit is from. */
__device__ inline float normal_cdf(float x, float e)
{
    float c = fabs(x) > 15 ? 15.0f : fabs(x);
    float s = __fdividef(3.0f, fmaf(c, 0.707106781f, 3.0f)), q = fmaf(-2.0f, s, 1.0f);
    float p = -1.08650652e-4f;
    p = fmaf(p, q, -1.61457199e-4f);
    p = fmaf(p, q, 1.02668847e-3f);
    p = fmaf(p, q, -4.08606584e-4f);
    p = fmaf(p, q, -8.94652949e-3f);
    p = fmaf(p, q, 3.98429889e-2f);
    p = fmaf(p, q, -1.03488682e-1f);
    p = fmaf(p, q, 1.96742768e-1f);
    p = fmaf(p, q, -2.94464828e-1f);
    p = fmaf(p, q, 3.58002303e-1f);
    float tail = 0.5f * e * (s * p);
    return x < 0 ? tail : 1 - tail;
}
__device__ inline double normal_cdf(double x, double)
{
    return normcdf(x);
}

template <typename W> __device__ inline W gelu_none_slope(W x)
{
    W e = bell(x);
    return normal_cdf(x, e) + x * (e * W(0.3989422804014327));
}

template <typename T, typename W> __device__ inline W gelu_tanh_of(W x)
{
    return x * logistic<T>(x * fma_of(gelu_d<W>, x * x, gelu_c<W>));
}

template <typename T, typename W> __device__ inline W gelu_tanh_slope(W x)
{
    W z = x * x;
    z = z > 400 ? W(400) : z; /* far out s is 0 or 1, and (1 - s) z must not be 0 inf */
    W s = logistic<T>(x * fma_of(gelu_d<W>, z, gelu_c<W>));
    return fma_of(x * (s * (1 - s)), fma_of(3 * gelu_d<W>, z, gelu_c<W>), s);
}

template <typename T, typename W> __device__ inline W silu_slope(W x)
{
    W s = logistic<T>(x);
    return s * fma_of(x, 1 - s, W(1));
}

FLOAT_LANE1(gelu_none, x *normal_cdf(x, bell(x)))
FLOAT_LANE1(gelu_tanh, gelu_tanh_of<T>(x))
FLOAT_LANE2(gelu_backward_none, a *gelu_none_slope(b))
FLOAT_LANE2(gelu_backward_tanh, a *gelu_tanh_slope<T>(b))

#define FLOAT1(name, fast, expr)        FLOAT_LANE1(name, expr)
#define FLOAT2(name, fast, expr)        FLOAT_LANE2(name, expr)
#define NUMBER1(name, fast, expr, ints) NUMBER_LANE1(name, expr, ints)
#define NUMBER2(name, fast, expr, ints) NUMBER_LANE2(name, expr, ints)
#include "lanes.cuh"

/* The greatest float not above the threshold decides the same for floats. */
template <typename T> __device__ T lane_threshold_backward(T dy, T x, double threshold)
{
    if constexpr (sizeof(T) == 8)
        return x <= threshold ? 0 : dy;
    else
        return wide(x) <= __double2float_rd(threshold) ? narrow<T>(0.0f) : dy;
}

/* ---- division to integers (divide.c) ---- */

template <typename W> __device__ inline W remainder_of(W a, W b)
{
    W r = fmod(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

template <typename W> __device__ inline W floor_of(W a, W b)
{
    W r = fmod(a, b), q = (a - r) / b - W(r != 0 && (b < 0) != (r < 0));
    return b == 0 ? a / b : q == 0 ? copysign(W(0), a / b) : rint(q);
}

/* The quotient towards 0, and what it leaves. */
__device__ inline long long quotient(long long a, long long b)
{
    return b == 0 ? 0 : b == -1 ? (long long)WRAPPED(0, -, a) : a / b;
}
__device__ inline long long rest(long long a, long long b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}
/* Whether that quotient is above a / b. */
__device__ inline bool above(long long a, long long b)
{
    return rest(a, b) != 0 && (b < 0) != (rest(a, b) < 0);
}

/* clang-format off */
NUMBER_LANE2(floor_divide, floor_of(a, b),     quotient(a, b) - above(a, b))
NUMBER_LANE2(trunc_divide, trunc(a / b),       quotient(a, b))
NUMBER_LANE2(remainder,    remainder_of(a, b), rest(a, b) + (above(a, b) ? b : 0))
NUMBER_LANE2(fmod,         fmod(a, b),         rest(a, b))
/* clang-format on */

/* ---- comparisons, logic, choice (compare.c) ---- */

#define COMPARE_LANE(name, op)                                  \
    template <typename T> __device__ bool lane_##name(T a, T b) \
    {                                                           \
        return wide(a) op wide(b);                              \
    }
COMPARE_LANE(eq, ==)
COMPARE_LANE(ne, !=)
COMPARE_LANE(lt, <)
COMPARE_LANE(le, <=)
COMPARE_LANE(gt, >)
COMPARE_LANE(ge, >=)

template <typename T> __device__ T lane_logical_and(T a, T b)
{
    return a && b;
}
template <typename T> __device__ T lane_logical_or(T a, T b)
{
    return a || b;
}
template <typename T> __device__ T lane_logical_not(T x)
{
    return !x;
}

template <typename T> __device__ bool lane_isfinite(T x)
{
    return wide(x) - wide(x) == 0;
}

template <typename T> __device__ T lane_where(bool condition, T a, T b)
{
    return condition ? a : b;
}

/* ---- bits (bitwise.c) ---- */

template <typename T> __device__ T lane_bitwise_and(T a, T b)
{
    return a & b;
}
template <typename T> __device__ T lane_bitwise_or(T a, T b)
{
    return a | b;
}
template <typename T> __device__ T lane_bitwise_xor(T a, T b)
{
    return a ^ b;
}
template <typename T> __device__ T lane_bitwise_not(T x)
{
    return (T)~x;
}
template <> __device__ inline bool lane_bitwise_not(bool x)
{
    return !x;
}

/* ---- casts (cast.c): f64 to 16 bits by way of float ---- */

template <typename From, typename To> __device__ To lane__to_copy(From x)
{
    return narrow<To>(wide(x));
}

#endif
