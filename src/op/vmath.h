/* Elementary functions in f32 that compilers vectorise: no branches, no tables, no library calls, no
 * contraction, so that every instruction set and every loop tail gives the same bits. */
#ifndef TENON_VMATH_H
#define TENON_VMATH_H

#include "op.h"

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

/* exp(x), below 2 ulp; 0 below -104, inf above 88.73, NaN stays NaN. Cody-Waite reduction by ln 2,
 * a polynomial of degree 6 on [-ln2/2, ln2/2] (Cephes expf), scaled in two steps for subnormals. */
INLINE float v_exp(float x)
{
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float k = (c * 1.44269504f + 12582912.0f) - 12582912.0f; /* to nearest integer */
    float r = c - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t n = (int32_t)k, half = n >> 1;
    p = p * bits_to_f32((uint32_t)(half + 127) << 23);
    return p * bits_to_f32((uint32_t)(n - half + 127) << 23);
}

#endif
