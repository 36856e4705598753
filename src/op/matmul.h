/* The products' rules and reference (matmul.c) share this with their kernels (matmul_onednn.c,
 * matmul_tiles.c, matmul_after.c). */
#ifndef TENON_MATMUL_H
#define TENON_MATMUL_H

#include "op.h"

extern const Kernel matmul_kernels[], matmul_batch_kernels[];

/* y[b, i, j]: a batch of matrices with strides in elements. */
typedef struct Matrix {
    const Tensor *t;
    int64_t batch, rows, cols;
    int64_t stride[3];
} Matrix;

INLINE Matrix matrix(const Tensor *t)
{
    int r = t->rank;
    Matrix x = {t,
                r == 3 ? t->dim[0] : 1,
                t->dim[r - 2],
                t->dim[r - 1],
                {r == 3 ? t->stride[0] : 0, t->stride[r - 2], t->stride[r - 1]}};
    return x;
}

/* The bias as a matrix of y's shape: stride 0 along the axes it broadcasts over. */
INLINE Matrix bias_matrix(const Tensor *bias, const Matrix *y)
{
    Matrix x = {bias, 1, y->rows, y->cols, {0}};
    for (int d = 1; d <= bias->rank; d++)
        x.stride[3 - d] = bias->dim[bias->rank - d] == 1 ? 0 : bias->stride[bias->rank - d];
    return x;
}

/* Fails where sizes are beyond what oneDNN counts to, whichever kernel takes the call. */
void matmul_check_sizes(Ctx *ctx, const Call *c);

/* ---- matmul_after.c ---- */

/* Adds operand 0 of addmm to the result. f32. */
void matmul_add_bias(const Call *c);
/* The transposed product, at `from`, into the result; adds: added to it. */
void matmul_turn_back(const Call *c, bool adds, char *from);

#endif
