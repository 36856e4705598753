/* Pointwise ops of one operand on CUDA (unary.c). */
#include "pointwise.cuh"

/* f(x) of the dtypes of models by runs, of others one element a thread. */
#define UNARY(name, by, made)                                       \
    LANE(name)                                                      \
    static int name##_run(Call *c)                                  \
    {                                                               \
        DType d = c->out[0].dtype;                                  \
        if (d == F32)                                               \
            return pointwise<made, float, float>(c, Lane_##name()); \
        if (d == BF16)                                              \
            return pointwise<made, bf16, bf16>(c, Lane_##name());   \
        by(d, T, return (pointwise<0, T, T>(c, Lane_##name())));    \
        return run_fail(c, "no kernel for %s", dtype_name(d));      \
    }
#define UNARY_OP(name, by, made) \
    UNARY(name, by, made)        \
    POINTWISE_KERNELS(name, name##_run);

UNARY_OP(neg, BY_NUMBER, RUNS)
UNARY_OP(abs, BY_NUMBER, RUNS)
UNARY_OP(sign, BY_NUMBER, RUNS)
UNARY_OP(floor, BY_FLOAT, RUNS)
UNARY_OP(ceil, BY_FLOAT, RUNS)
UNARY_OP(round, BY_FLOAT, RUNS)
UNARY_OP(trunc, BY_FLOAT, RUNS)
UNARY_OP(exp, BY_FLOAT, RUNS)
UNARY_OP(expm1, BY_FLOAT, RUNS)
UNARY_OP(exp2, BY_FLOAT, RUNS)
UNARY_OP(log, BY_FLOAT, RUNS)
UNARY_OP(log1p, BY_FLOAT, RUNS)
UNARY_OP(log2, BY_FLOAT, RUNS)
UNARY_OP(sqrt, BY_FLOAT, RUNS)
UNARY_OP(rsqrt, BY_FLOAT, RUNS)
UNARY_OP(reciprocal, BY_FLOAT, RUNS)
UNARY_OP(sin, BY_FLOAT, 0)
UNARY_OP(cos, BY_FLOAT, 0)
UNARY_OP(erf, BY_FLOAT, RUNS)
UNARY_OP(erfc, BY_FLOAT, RUNS)
UNARY_OP(erfinv, BY_FLOAT, 0)
UNARY_OP(tanh, BY_FLOAT, RUNS)
UNARY_OP(sigmoid, BY_FLOAT, RUNS)
UNARY_OP(relu, BY_FLOAT, RUNS)
UNARY_OP(silu, BY_FLOAT, RUNS)

UNARY(gelu_none, BY_FLOAT, RUNS)
UNARY(gelu_tanh, BY_FLOAT, RUNS)

static int gelu_run(Call *c)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_run(c) : gelu_none_run(c);
}
POINTWISE_KERNELS(gelu, gelu_run);
