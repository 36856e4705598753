/* Elementary functions in f32 that compilers vectorise: no branches, no tables, no library calls,
 * no contraction, so that every instruction set and every loop tail gives the same bits. The errors
 * stated, in units of the last place (ulp), are measured against the C library in double;
 * infinities and NaN are the library's. tests/programs/test_vmath.c holds them. */
#ifndef TENON_VMATH_H
#define TENON_VMATH_H

#include "op.h"

#include <math.h>
#include <string.h>

INLINE float bits_to_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t f32_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* |x| and the sign of `sign` with the magnitude of x, without touching NaN's payload. */
INLINE float v_abs(float x)
{
    return bits_to_f32(f32_to_bits(x) & 0x7fffffff);
}

INLINE float v_copysign(float x, float sign)
{
    return bits_to_f32((f32_to_bits(x) & 0x7fffffff) | (f32_to_bits(sign) & 0x80000000));
}

/* cond ? x : y by masks: where several choices follow each other compilers would branch. */
INLINE float v_select(int cond, float x, float y)
{
    uint32_t mask = 0 - (uint32_t)cond;
    return bits_to_f32((f32_to_bits(x) & mask) | (f32_to_bits(y) & ~mask));
}

/* exp(r) for |r| <= ln2/2: Cephes expf's polynomial of degree 6. */
INLINE float v_exp_near(float r)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}

/* x within [low, high], low < 0 < high, by whole numbers: between comparisons of floats compilers
 * branch, or compute what follows twice. NaN becomes one of the two. */
INLINE float v_clamp(float x, float low, float high)
{
    int32_t bits = (int32_t)f32_to_bits(x), most = (int32_t)f32_to_bits(high);
    uint32_t below = (uint32_t)MIN(bits, most), least = f32_to_bits(low);
    return bits_to_f32(MIN(below, least));
}

/* The one nearer to 0 where both have the same sign; of NaN the other one. */
INLINE float v_nearer(float x, float y)
{
    uint32_t a = f32_to_bits(x), b = f32_to_bits(y);
    return bits_to_f32(MIN(a, b));
}

/* Adding V_WHOLE to a number far below 2^22 rounds it to an integer, which then is the difference
 * of the sum's bits and those of V_WHOLE. */
#define V_WHOLE      12582912.0f
#define V_WHOLE_BITS 0x4b400000

/* p 2^k for V_WHOLE + k and normal results. */
INLINE float v_scale(float p, float whole)
{
    return bits_to_f32(f32_to_bits(p) + (f32_to_bits(whole) << 23));
}

/* exp(x + low) = p 2^k for |x| below 110 and |low| far below 1 + |x|: returns p, and V_WHOLE + k.
 * Cody-Waite reduction by ln 2. */
INLINE float v_exp_split(float x, float low, float *whole)
{
    float t = x * 1.44269504f + V_WHOLE, k = t - V_WHOLE;
    float r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f + low;
    *whole = t;
    return v_exp_near(r);
}

/* exp(x + low) for -107 < x < 90, scaled in two steps for subnormals. */
INLINE float v_exp_sum(float x, float low)
{
    float whole, p = v_exp_split(x, low, &whole);
    int32_t n = (int32_t)(f32_to_bits(whole) - V_WHOLE_BITS), half = n >> 1;
    p = bits_to_f32(f32_to_bits(p) + ((uint32_t)half << 23));
    return p * bits_to_f32((uint32_t)(n - half + 127) << 23);
}

/* exp(x), below 1 ulp; 0 below -104, inf above 88.73, NaN stays NaN. */
INLINE float v_exp(float x)
{
    float y = v_exp_sum(v_clamp(x, -104.0f, 89.0f), 0.0f);
    return x != x ? x : y;
}

/* The same for x no greater than 0; 0 below -87.7. */
INLINE float v_exp_below(float x)
{
    float whole, p = v_exp_split(v_nearer(x, -88.0f), 0.0f, &whole);
    float y = p * bits_to_f32((f32_to_bits(whole) + 127) << 23);
    return x != x ? x : y;
}

/* e / (1 + e) for e = exp(x), below 2.5 ulp: both tails keep their accuracy. The logistic function,
 * but for NaN, where it is any number. e is held times 2^64, so that the quotient alone is rounded
 * where it is subnormal. */
INLINE float v_logistic(float x)
{
    float whole, p = v_exp_split(v_clamp(x, -104.0f, 43.0f), 0.0f, &whole);
    float e = v_scale(p, whole + 64.0f);
    return e / (0x1p64f + e);
}

/* 1 / (1 + exp(-x)), below 2.5 ulp. */
INLINE float v_sigmoid(float x)
{
    float y = v_logistic(x);
    return x != x ? x : y;
}

/* tanh(x), below 1.5 ulp: an odd polynomial below 0.625 (Cephes tanhf), 1 - 2 / (exp(2|x|) + 1)
 * above. */
INLINE float v_tanh(float x)
{
    float z = x * x, p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near = x + x * z * p;
    float far = v_copysign(1.0f - 2.0f / (v_exp(2.0f * v_abs(x)) + 1.0f), x);
    return v_abs(x) < 0.625f ? near : (x != x ? x : far);
}

/* exp(-x^2 scale), scale 1/2 or 1, below 1.5 ulp, but for NaN: the square is split so that its
 * rounding is not amplified. */
INLINE float v_bell(float x, float scale)
{
    float c = v_nearer(v_abs(x), scale == 1.0f ? 10.3f : 14.6f); /* 0 from there on */
    float high = bits_to_f32(f32_to_bits(c) & 0xfffff000);       /* its square is exact */
    return v_exp_sum(-scale * high * high, -scale * ((c - high) * (c + high)));
}

/* exp(t^2) erfc(t) for 0 <= t <= 10.1: s P(1 - 2 s) with s = 3 / (3 + t), the rational map of
 * Shepherd and Laframboise (1981); P is our relative minimax fit of degree 9, error 2.1e-9. Below
 * 6 ulp, near t = 0. */
INLINE float v_erfcx(float t)
{
    float s = 3.0f / (3.0f + t), q = 1.0f - 2.0f * s, p = -1.08650652e-4f;
    p = p * q - 1.61457199e-4f;
    p = p * q + 1.02668847e-3f;
    p = p * q - 4.08606584e-4f;
    p = p * q - 8.94652949e-3f;
    p = p * q + 3.98429889e-2f;
    p = p * q - 1.03488682e-1f;
    p = p * q + 1.96742768e-1f;
    p = p * q - 2.94464828e-1f;
    p = p * q + 3.58002303e-1f;
    return s * p;
}

/* The normal distribution function at x, given e = exp(-x^2 / 2); below 8 ulp, but for NaN. */
INLINE float v_normal_cdf(float x, float e)
{
    float t = v_abs(x) * 0.707106781f;
    float tail = 0.5f * e * v_erfcx(v_nearer(t, 11.0f));
    return x < 0.0f ? tail : 1.0f - tail;
}

/* erf(x), below 2 ulp: an odd polynomial (our fit, error 1.2e-9) below 1, 1 - erfc(|x|) above. */
INLINE float v_erf(float x)
{
    float z = x * x, p = 7.85386122e-5f;
    p = p * z - 8.01019359e-4f;
    p = p * z + 5.18832768e-3f;
    p = p * z - 2.68538119e-2f;
    p = p * z + 1.12835851e-1f;
    p = p * z - 3.76126258e-1f;
    p = p * z + 1.28379166e-1f;
    float near = x + x * p, t = v_abs(x);
    float far = v_copysign(1.0f - v_bell(x, 1.0f) * v_erfcx(v_nearer(t, 11.0f)), x);
    return t < 1.0f ? near : (x != x ? x : far);
}

/* erfc(x), below 8 ulp: its tail is not cut off by 1 - erf(x). */
INLINE float v_erfc(float x)
{
    float t = v_abs(x), tail = v_bell(x, 1.0f) * v_erfcx(v_nearer(t, 11.0f));
    float y = x < 0.0f ? 2.0f - tail : tail;
    return x != x ? x : y;
}

/* log(x), below 1 ulp: x = 2^e m, m in [sqrt(1/2), sqrt(2)), polynomial of degree 9 in m - 1
 * (Cephes logf). */
INLINE float v_log(float x)
{
    bool tiny = x < 1.17549435e-38f;
    uint32_t bits = f32_to_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3;
    float e = (float)((int32_t)bits >> 23) - (tiny ? 23.0f : 0.0f);
    float f = bits_to_f32((bits & 0x7fffff) + 0x3f3504f3) - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float low = p * f * z - 2.12194440e-4f * e - 0.5f * z;
    float y = f + low + 0.693359375f * e;
    y = x == 0.0f ? -INFINITY : y;
    return x < 0.0f || x != x ? NAN : (x == INFINITY ? x : y);
}

/* log2(x), below 1.5 ulp; exact for powers of 2. */
INLINE float v_log2(float x)
{
    bool tiny = x < 1.17549435e-38f;
    uint32_t bits = f32_to_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3;
    float e = (float)((int32_t)bits >> 23) - (tiny ? 23.0f : 0.0f);
    double m = (double)v_log(bits_to_f32((bits & 0x7fffff) + 0x3f3504f3));
    float y = (float)(m * 1.4426950408889634 + (double)e);
    return x > 0.0f && x < INFINITY ? y : v_log(x);
}

/* log(1 + x), below 1.5 ulp: the logarithm of the rounded sum u, plus what rounding lost over u
 * (after Goldberg 1991, theorem 4). */
INLINE float v_log1p(float x)
{
    float u = 1.0f + x, lost = x - (u - 1.0f);
    float y = v_log(u) + lost / u;
    return u > 0.0f && u < INFINITY ? (x == 0.0f ? x : y) : v_log(u);
}

/* exp(x) - 1, below 3 ulp: with u the rounded exp(x), (u - 1) x / log(u), in which the error of u
 * cancels (Kahan; Higham 2002, section 1.14.1); beyond 0.5 the difference itself. */
INLINE float v_expm1(float x)
{
    float u = v_exp(x), less = u - 1.0f;
    float near = less * (x / v_log(u));
    float y = v_abs(x) < 0.5f ? near : less;
    return u == 1.0f ? x : y;
}

/* The inverse of erf, below 12 ulp: x P(w) by w = -log(1 - x^2), near 1 by its root (Giles 2010,
 * the fits for f32). */
INLINE float v_erfinv(float x)
{
    float w = -v_log((1.0f - x) * (1.0f + x)), far = sqrtf(w) - 3.0f, near = w - 2.5f;
    float p = 2.81022636e-08f, q = -0.000200214257f;
    p = 3.43273939e-07f + p * near;
    p = -3.5233877e-06f + p * near;
    p = -4.39150654e-06f + p * near;
    p = 0.00021858087f + p * near;
    p = -0.00125372503f + p * near;
    p = -0.00417768164f + p * near;
    p = 0.246640727f + p * near;
    p = 1.50140941f + p * near;
    q = 0.000100950558f + q * far;
    q = 0.00134934322f + q * far;
    q = -0.00367342844f + q * far;
    q = 0.00573950773f + q * far;
    q = -0.0076224613f + q * far;
    q = 0.00943887047f + q * far;
    q = 1.00167406f + q * far;
    q = 2.83297682f + q * far;
    float y = (w < 5.0f ? p : q) * x;
    return v_abs(x) == 1.0f ? x * INFINITY : y;
}

/* The angle of the point (x, y), below 0.52 ulp, in double: atan of the lesser over the greater
 * coordinate by an odd polynomial (our fit, error 4.5e-10), then by octant. */
INLINE float v_atan2(float y, float x)
{
    float a = v_abs(x), b = v_abs(y);
    int steep = b > a;
    double least = steep ? a : b, most = steep ? b : a;
    double r = least == most ? (most != 0.0 ? 1.0 : 0.0) : least / most; /* 0 / 0, inf / inf */
    double z = r * r, p = 0.001057607494003086;
    p = p * z - 0.00703066975524483;
    p = p * z + 0.021912946480916233;
    p = p * z - 0.04392841146790397;
    p = p * z + 0.06685281570644816;
    p = p * z - 0.08785043305631317;
    p = p * z + 0.11050771281994035;
    p = p * z - 0.142785760257065;
    p = p * z + 0.19999558100424564;
    p = p * z - 0.33333322488912615;
    p = p * z * r + r;
    p = steep ? M_PI_2 - p : p;
    p = f32_to_bits(x) >> 31 ? M_PI - p : p;
    float angle = v_copysign((float)p, y);
    return x != x || y != y ? NAN : angle;
}

/* sin(x + quarter pi/2) for |x| up to 2^28, below 0.51 ulp, in double: Cody-Waite reduction by pi/2
 * (whose first 25 bits times the quadrant are exact), an odd and an even polynomial (our fits,
 * error 6e-11). */
INLINE float v_sin_quarter(float x, int quarter)
{
    double k = ((double)x * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;
    double r = (double)x - k * 1.57079631090164184570 - k * 1.58932547735281966916e-08;
    double z = r * r, s = 2.7171489497302066e-06, c = 2.4372635823711996e-05;
    s = s * z - 0.00019839177936006061;
    s = s * z + 0.0083333286887515845;
    s = s * z - 0.16666666630431617;
    s = s * z * r + r;
    c = c * z - 0.0013886528667680538;
    c = c * z + 0.041666613217114637;
    c = c * z - 0.49999999571381037;
    c = c * z + 1.0;
    int32_t n = (int32_t)k + quarter;
    double y = n & 1 ? c : s;
    return (float)(n & 2 ? -y : y);
}

enum { V_SIN_MOST = 1 << 28 };

INLINE float v_sin(float x)
{
    return v_sin_quarter(x, 0);
}

INLINE float v_cos(float x)
{
    return v_sin_quarter(x, 1);
}

/* 2^(b log2 a) for a > 0, in double: log2 by the odd series in (m - 1) / (m + 1), 2^f by a
 * polynomial of degree 7 (our fits, errors 4e-12 and 4e-11). */
INLINE double v_pow_positive(double a, double b)
{
    uint64_t bits;
    memcpy(&bits, &a, sizeof bits);
    bits -= 0x3fe6a09e667f3bcd; /* sqrt(1/2) */
    double e = (double)(int32_t)((int64_t)bits >> 52), m;
    bits = (bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.34073009636679125;
    p = p * z + 0.41167271946050848;
    p = p * z + 0.57708358496226064;
    p = p * z + 0.96179667334172825;
    p = p * z + 2.8853900817900864;
    double t = b * (p * s + e);
    t = t < -200.0 ? -200.0 : t; /* beyond what f32 holds, either way */
    t = t > 200.0 ? 200.0 : t;
    double k = (t + 6755399441055744.0) - 6755399441055744.0, f = t - k;
    p = 1.5201901358601736e-05;
    p = p * f + 0.00015469317319335919;
    p = p * f + 0.0013333922854350164;
    p = p * f + 0.0096180271727327148;
    p = p * f + 0.055504103528340093;
    p = p * f + 0.24022651198774754;
    p = p * f + 0.69314718072871562;
    p = p * f + 1.0;
    bits = (uint64_t)(int64_t)((int32_t)k + 1023) << 52;
    memcpy(&m, &bits, sizeof m);
    return p * m;
}

/* pow(a, b), below 0.51 ulp, with C's rules for zeros, infinities, NaN and negative a. */
INLINE float v_pow(float a, float b)
{
    float c = v_abs(b) > 1e9f ? 1e9f : b; /* an even integer, as any f32 from 2^24 on */
    double whole = ((double)c + 6755399441055744.0) - 6755399441055744.0;
    double pairs = ((double)c * 0.5 + 6755399441055744.0) - 6755399441055744.0;
    int integer = whole == (double)c, odd = integer & (pairs != (double)c * 0.5);
    int zero = a == 0.0f, endless = v_abs(a) == INFINITY, one = v_abs(a) == 1.0f;
    float y = (float)v_pow_positive(v_abs(a), b);
    y = v_select(zero | endless, v_select(zero ^ (b > 0.0f), INFINITY, 0.0f), y);
    y = v_select((a < 0.0f) & !integer & !endless, NAN, y);
    y = v_select(odd, v_copysign(y, a), y);
    y = v_select((a != a) | (b != b), NAN, y);
    y = v_select(one & (v_abs(b) == INFINITY), 1.0f, y);
    return v_select((a == 1.0f) | (b == 0.0f), 1.0f, y);
}

/* ---- for results that are rounded to bf16 ----
 *
 * Relative errors below 2^-12.5, a sixteenth of bf16's ulp or less, for fewer operations. */

/* 2^f for |f| <= 1/2: our relative minimax fit, error 7.5e-5. */
INLINE float v_near_exp2_part(float f)
{
    float p = 0.05517167f;
    p = p * f + 0.24261114f;
    p = p * f + 0.69326099f;
    return p * f + 0.99992807f;
}

/* 2^(t + 64) for -190 < t < 61. */
INLINE float v_near_exp2_64(float t)
{
    float whole = t + V_WHOLE;
    return v_scale(v_near_exp2_part(t - (whole - V_WHOLE)), whole + 64.0f);
}

/* exp(x) for x up to 88; 0 below -87.7, NaN stays NaN. */
INLINE float v_near_exp(float x)
{
    float t = v_clamp(x * 1.44269504f, -127.0f, 127.0f), whole = t + V_WHOLE;
    float y = v_near_exp2_part(t - (whole - V_WHOLE));
    y = y * bits_to_f32((f32_to_bits(whole) + 127) << 23);
    return x != x ? x : y;
}

/* v_logistic(t ln 2). */
INLINE float v_near_logistic2(float t)
{
    float e = v_near_exp2_64(v_clamp(t, -189.0f, 60.0f));
    return e / (0x1p64f + e);
}

/* exp(-x^2 / 2) 2^64 for x of bf16, whose square is exact. */
INLINE float v_near_bell_64(float x)
{
    return v_near_exp2_64(v_nearer(x * x * -0.721347520f, -189.0f));
}

/* v_normal_cdf(), given e 2^64: the tail by s P(s), s = 2.7 / (2.7 + |x|), P our relative minimax
 * fit of degree 4, error 3.7e-5. */
INLINE float v_near_normal_cdf(float x, float e)
{
    float s = 2.7f / (2.7f + v_abs(x)), p = -0.09005388f;
    p = p * s + 0.20846501f;
    p = p * s + 0.07730446f;
    p = p * s + 0.15720067f;
    p = p * s + 0.14710078f;
    float tail = e * 0x1p-64f * (s * p);
    return x < 0.0f ? tail : 1.0f - tail;
}

/* The conversions of tensor.c without branches. */
INLINE float v_bf16_to_f32(uint16_t x)
{
    return bits_to_f32((uint32_t)x << 16);
}

INLINE uint16_t v_f32_to_bf16(float x)
{
    uint32_t bits = f32_to_bits(x);
    uint32_t y = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? bits >> 16 | 0x40 : y);
}

/* The bits of x rounded to bf16, ties away from 0, in their upper half. Exact enough for what only
 * comes near; NaN must be one of arithmetic on bf16, which does not overflow. */
INLINE uint32_t v_near_bf16(float x)
{
    return f32_to_bits(x) + 0x8000;
}

/* Two neighbours of a row of bf16, so that loops read and write them without shuffles. */
typedef uint32_t BfPair __attribute__((may_alias, aligned(2)));
INLINE float pair_first(BfPair x)
{
    return bits_to_f32(x << 16);
}
INLINE float pair_second(BfPair x)
{
    return bits_to_f32(x & 0xffff0000);
}
INLINE BfPair near_pair(float first, float second)
{
    return v_near_bf16(first) >> 16 | (v_near_bf16(second) & 0xffff0000);
}

INLINE uint16_t v_f32_to_f16(float x)
{
    uint32_t bits = f32_to_bits(x), sign = bits >> 16 & 0x8000, u = bits & 0x7fffffff;
    uint32_t normal = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
    uint32_t tiny = f32_to_bits(bits_to_f32(u) + 0.5f) - 0x3f000000; /* rounds at 2^-24 */
    uint32_t y = u < 0x38800000 ? tiny : normal;
    y = u >= 0x477ff000 ? 0x7c00 : y;
    return (uint16_t)(sign | (u > 0x7f800000 ? 0x7e00 : y));
}

INLINE float v_f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, u = x & 0x7fff;
    float scaled = bits_to_f32(u << 13) * 0x1p112f; /* subnormals too */
    uint32_t y = u > 0x7c00 ? 0x7fc00000 : u == 0x7c00 ? 0x7f800000 : f32_to_bits(scaled);
    return bits_to_f32(sign | y);
}

/* Element i of an array of f32 or bf16, as f32, and back. Loops that inline them with a constant d
 * vectorise. */
INLINE float v_load(const void *x, int64_t i, DType d)
{
    return d == BF16 ? v_bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

INLINE void v_store(void *y, int64_t i, float x, DType d)
{
    if (d == BF16)
        ((uint16_t *)y)[i] = v_f32_to_bf16(x);
    else
        ((float *)y)[i] = x;
}

#endif
