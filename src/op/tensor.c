/* Strided tensors element by element, and 16-bit floats by bit arithmetic (round to nearest even).
 * References are made of these: correct for every dtype and layout, not fast. */
#include "op.h"

#include <math.h>
#include <string.h>

int run_fail(Call *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->message, sizeof c->message, format, args);
    va_end(args);
    return -1;
}

int64_t tensor_nelem(const Tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->dim[d];
    return n;
}

void tensor_fill_strides(Tensor *t)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        t->stride[d] = stride;
        stride *= t->dim[d];
    }
}

bool tensor_contiguous(const Tensor *t)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->dim[d] == 0)
            return true;
        if (t->dim[d] != 1 && t->stride[d] != stride)
            return false;
        stride *= t->dim[d];
    }
    return true;
}

int64_t tensor_index(const Tensor *t, const int64_t *ix)
{
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++)
        at += ix[d] * t->stride[d];
    return at;
}

int64_t tensor_linear(const Tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->rank - 1; d >= 0; d--) {
        at += i % t->dim[d] * t->stride[d];
        i /= t->dim[d];
    }
    return at;
}

float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

uint16_t f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t x)
{
    int e = x >> 10 & 31, m = x & 1023;
    float y = e == 31 ? (m ? NAN : INFINITY)
              : e     ? ldexpf((float)(m | 1024), e - 25)
                      : ldexpf((float)m, -24);
    return x >> 15 ? -y : y;
}

uint16_t f32_to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float y = fabsf(x);
    if (isnan(x))
        return sign | 0x7e00;
    if (y >= 65520.0f)
        return sign | 0x7c00;
    int e;
    frexpf(y, &e); /* y = f * 2^e, f in [0.5, 1) */
    e = MAX(e, -13);
    float scaled = nearbyintf(ldexpf(y, 11 - e)); /* 11 significant bits */
    if (scaled >= 2048.0f) {
        scaled /= 2;
        e++;
    }
    int m = (int)scaled;
    return (uint16_t)(sign | (m < 1024 ? m : (e + 14) << 10 | (m & 1023)));
}

double tensor_get(const Tensor *t, int64_t at)
{
    switch (t->dtype) {
    case F64: return ((const double *)t->data)[at];
    case F32: return ((const float *)t->data)[at];
    case F16: return f16_to_f32(((const uint16_t *)t->data)[at]);
    case BF16: return bf16_to_f32(((const uint16_t *)t->data)[at]);
    default: return (double)tensor_int(t, at);
    }
}

int64_t tensor_int(const Tensor *t, int64_t at)
{
    switch (t->dtype) {
    case I64: return ((const int64_t *)t->data)[at];
    case I32: return ((const int32_t *)t->data)[at];
    case U8: return ((const uint8_t *)t->data)[at];
    case BOOL: return ((const uint8_t *)t->data)[at] != 0;
    default: return (int64_t)tensor_get(t, at);
    }
}

void tensor_set(const Tensor *t, int64_t at, double x)
{
    switch (t->dtype) {
    case F64: ((double *)t->data)[at] = x; break;
    case F32: ((float *)t->data)[at] = (float)x; break;
    case F16: ((uint16_t *)t->data)[at] = f32_to_f16((float)x); break;
    case BF16: ((uint16_t *)t->data)[at] = f32_to_bf16((float)x); break;
    case I64: ((int64_t *)t->data)[at] = (int64_t)x; break;
    case I32: ((int32_t *)t->data)[at] = (int32_t)(int64_t)x; break;
    case U8: ((uint8_t *)t->data)[at] = (uint8_t)(int64_t)x; break;
    case BOOL: ((uint8_t *)t->data)[at] = x != 0; break;
    case NDTYPE: break;
    }
}

bool next_index(int rank, const int64_t *dim, int64_t *ix)
{
    for (int d = rank - 1; d >= 0; d--) {
        if (++ix[d] < dim[d])
            return true;
        ix[d] = 0;
    }
    return false;
}

bool accepts_f32_contiguous(const Call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (c->in[i].dtype != F32 || !tensor_contiguous(&c->in[i]))
            return false;
    for (int k = 0; k < c->nout; k++)
        if (c->out[k].dtype != F32)
            return false;
    return true;
}
