/* What the products on CUDA share: those by cuBLASLt (matmul_cuda.c, in C) and those by kernels of
 * our own (matmul.cu). */
#ifndef TENON_MATMUL_CUDA_H
#define TENON_MATMUL_CUDA_H

#include "matmul.h"

/* The members of a Kernel. */
bool matmul_lt_accepts(const Call *c);
int64_t matmul_lt_workspace(Ctx *ctx, const Call *c);
void matmul_lt_prepare(Call *c, Arena *a);
int matmul_lt_run(Call *c);

/* Writes the bias of c, operand 0, as so many rows of c's result at `to`, in the result's dtype. Of
 * run(): returns as it does. */
int matmul_spread_bias(Call *c, void *to, int64_t rows);

#endif
