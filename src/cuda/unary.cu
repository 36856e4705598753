/* Pointwise ops of one operand on CUDA (unary.c): those of lanes.cuh, and gelu. */
#include "pointwise.cuh"

#define FLOAT1(name, fast, ...)  LANE_KERNELS(name, BY_FLOAT, fast, ONE_OPERAND)
#define NUMBER1(name, fast, ...) LANE_KERNELS(name, BY_NUMBER, fast, ONE_OPERAND)
#define FLOAT2(...)
#define NUMBER2(...)
#include "lanes.cuh"

LANE_RUN(gelu_none, BY_FLOAT, RUNS, ONE_OPERAND)
LANE_RUN(gelu_tanh, BY_FLOAT, RUNS, ONE_OPERAND)

static int gelu_run(Call *c)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_run(c) : gelu_none_run(c);
}
POINTWISE_KERNELS(gelu, gelu_run);
