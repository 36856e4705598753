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

double port_number(tn_program *x, const char *name)
{
    tn_port p;
    union {
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
    return !strcmp(p.dtype, "i64") && p.nbytes == sizeof number.i64 ? (double)number.i64 : NAN;
}

int port_run(tn_context *ctx, tn_program *x)
{
    return tell(ctx, x, tn_program_run(x));
}
