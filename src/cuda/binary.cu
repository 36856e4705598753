/* Pointwise ops of two operands on CUDA (binary.c): those of lanes.cuh, and by attributes. */
#include "pointwise.cuh"

enum { THRESHOLD }; /* its attribute */

#define FLOAT1(...)
#define NUMBER1(...)
#define FLOAT2(name, fast, ...)  LANE_KERNELS(name, BY_FLOAT, fast, TWO_OPERANDS)
#define NUMBER2(name, fast, ...) LANE_KERNELS(name, BY_NUMBER, fast, TWO_OPERANDS)
#include "lanes.cuh"

/* ---- by attributes ---- */

LANE_RUN(gelu_backward_none, BY_FLOAT, RUNS, TWO_OPERANDS)
LANE_RUN(gelu_backward_tanh, BY_FLOAT, RUNS, TWO_OPERANDS)

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
    RUN_BY_DTYPE(BY_FLOAT, RUNS, TWO_OPERANDS, Threshold{c->node->attr[THRESHOLD].f});
}
POINTWISE_KERNELS(threshold_backward, threshold_backward_run);
