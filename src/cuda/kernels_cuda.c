/* The table of CUDA kernels by op: the list cuda_NAME of each op that has one. It is C, as nothing
 * of it runs on the device: so a new row of op.def has nvcc compile that op's kernels alone. */
#include "../op/op.h"

#define OP(n, ...) extern const Kernel cuda_##n[] __attribute__((weak, visibility("hidden")));
#include "../op/op.def"
#undef OP

extern const Kernel *const cuda_kernels[];
#define OP(n, ...) cuda_##n,
const Kernel *const cuda_kernels[] = {
#include "../op/op.def"
};
