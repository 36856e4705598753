/* Inputs and outputs of programs, copied in and out; a program's error becomes the context's, with
 * which a run ends. */
#include "train.h"

#include <math.h>
#include <string.h>

static int tell(tn_context *ctx, const tn_program *x, int code)
{
    return code ? tn_context_fail(ctx, code, "%s", tn_program_error(x)) : 0;
}

bool port_there(tn_program *x, const char *name)
{
    tn_port p;
    return !tn_program_port(x, name, &p);
}

int port_put(tn_context *ctx, tn_program *x, const char *name, const void *data, int64_t nbytes)
{
    return port_there(x, name) ? tell(ctx, x, tn_program_write(x, name, data, nbytes)) : 0;
}

int port_put_number(tn_context *ctx, tn_program *x, const char *name, double value)
{
    tn_port p;
    const float single = (float)value;
    if (tn_program_port(x, name, &p))
        return 0;
    return strcmp(p.dtype, "f64") != 0 ? port_put(ctx, x, name, &single, sizeof single)
                                       : port_put(ctx, x, name, &value, sizeof value);
}

/* A number of the upper half of an f32's bits. */
static double bf16_number(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* A number of a sign, 5 bits of exponent and 10 of fraction. */
static double f16_number(uint16_t x)
{
    const int exponent = x >> 10 & 31, fraction = x & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return x >> 15 ? -size : size;
}

double port_number(tn_program *x, const char *name)
{
    tn_port p;
    union {
        uint16_t half;
        float f32;
        double f64;
        int64_t i64;
    } number;
    if (tn_program_port(x, name, &p) || p.nbytes > (int64_t)sizeof number ||
        tn_program_read(x, name, &number, p.nbytes))
        return NAN;
    if (!strcmp(p.dtype, "f32") && p.nbytes == sizeof number.f32)
        return (double)number.f32;
    if (!strcmp(p.dtype, "f64") && p.nbytes == sizeof number.f64)
        return number.f64;
    if (!strcmp(p.dtype, "bf16") && p.nbytes == sizeof number.half)
        return bf16_number(number.half);
    if (!strcmp(p.dtype, "f16") && p.nbytes == sizeof number.half)
        return f16_number(number.half);
    return !strcmp(p.dtype, "i64") && p.nbytes == sizeof number.i64 ? (double)number.i64 : NAN;
}

int port_run(tn_context *ctx, tn_program *x)
{
    return tell(ctx, x, tn_program_run(x));
}
