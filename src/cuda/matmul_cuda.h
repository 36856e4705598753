/* Shared by the products on CUDA: those by cuBLASLt (matmul_cuda.c, in C) and those by kernels of
 * our own (matmul.cu). */
#ifndef TENON_MATMUL_CUDA_H
#define TENON_MATMUL_CUDA_H

#include "../op/matmul.h"

/* Kernels by cuBLASLt: the candidates of its heuristic, in its order. After the first, `cublaslt`,
 * those for which X stands, `cublaslt_2` and so on. */
enum { MATMUL_LT_WAYS = 8 };
#define MATMUL_LT_OTHERS(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

/* The members of a Kernel. */
bool matmul_lt_accepts(const Call *c);
int64_t matmul_lt_workspace(Ctx *ctx, const Call *c);
void matmul_lt_prepare(Call *c, Arena *a);
#define X(n) void matmul_lt_prepare_##n(Call *c, Arena *a);
MATMUL_LT_OTHERS(X)
#undef X
bool matmul_lt_own(const Call *c);
int matmul_lt_run(Call *c);

/* Writes the bias of c, operand 0, as so many rows of c's result at `to`, in the result's dtype. Of
 * run(): returns as it does. */
int matmul_spread_bias(Call *c, void *to, int64_t rows);

#endif
