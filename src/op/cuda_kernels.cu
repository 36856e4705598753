/* The table of CUDA kernels by op: the list cuda_NAME of each op that has one. */
#include "cuda.cuh"

#define OP(n, ...) extern "C" const Kernel cuda_##n[] __attribute__((weak, visibility("hidden")));
#include "op.def"
#undef OP

extern "C" const Kernel *const cuda_kernels[];
#define OP(n, ...) cuda_##n,
const Kernel *const cuda_kernels[] = {
#include "op.def"
};
