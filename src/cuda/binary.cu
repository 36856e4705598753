/* Pointwise ops of two operands on CUDA (binary.c). */
#include "pointwise.cuh"

enum { THRESHOLD }; /* its attribute */

/* f(a, b) of the dtypes of models by runs, of others one element a thread. */
#define RUN_BY(by, made, f)                                    \
    do {                                                       \
        DType d = c->out[0].dtype;                             \
        if (d == F32)                                          \
            return pointwise<made, float, float, float>(c, f); \
        if (d == BF16)                                         \
            return pointwise<made, bf16, bf16, bf16>(c, f);    \
        by(d, T, return (pointwise<0, T, T, T>(c, f)));        \
        return run_fail(c, "no kernel for %s", dtype_name(d)); \
    } while (0)

#define BINARY(name, by, made)           \
    LANE(name)                           \
    static int name##_run(Call *c)       \
    {                                    \
        RUN_BY(by, made, Lane_##name()); \
    }
#define BINARY_OP(name, by, made) \
    BINARY(name, by, made)        \
    POINTWISE_KERNELS(name, name##_run);

BINARY_OP(add, BY_NUMBER, RUNS | TILES)
BINARY_OP(sub, BY_NUMBER, RUNS)
BINARY_OP(mul, BY_NUMBER, RUNS | TILES)
BINARY_OP(div, BY_FLOAT, RUNS)
BINARY_OP(pow, BY_NUMBER, RUNS)
BINARY_OP(atan2, BY_FLOAT, 0)
BINARY_OP(maximum, BY_NUMBER, RUNS)
BINARY_OP(minimum, BY_NUMBER, RUNS)
BINARY_OP(silu_backward, BY_FLOAT, RUNS)
BINARY_OP(tanh_backward, BY_FLOAT, RUNS)
BINARY_OP(sigmoid_backward, BY_FLOAT, RUNS)

/* ---- by attributes ---- */

BINARY(gelu_backward_none, BY_FLOAT, RUNS)
BINARY(gelu_backward_tanh, BY_FLOAT, RUNS)

static int gelu_backward_run(Call *c)
{
    return gelu_by_tanh(c->node) ? gelu_backward_tanh_run(c) : gelu_backward_none_run(c);
}
POINTWISE_KERNELS(gelu_backward, gelu_backward_run);

struct Threshold {
    double threshold;
    template <typename T> __device__ T operator()(T dy, T x) const
    {
        return lane_threshold_backward(dy, x, threshold);
    }
};

static int threshold_backward_run(Call *c)
{
    RUN_BY(BY_FLOAT, RUNS, Threshold{c->node->attr[THRESHOLD].f});
}
POINTWISE_KERNELS(threshold_backward, threshold_backward_run);
