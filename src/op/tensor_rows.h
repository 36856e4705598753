/* A tensor as rows along its last axes, for kernels in C (rows.h) and in CUDA (row_tensor.cuh). */
#ifndef TENON_TENSOR_ROWS_H
#define TENON_TENSOR_ROWS_H

#include "op.h"

#ifdef __CUDACC__
#define ON_BOTH __host__ __device__ static inline
#else
#define ON_BOTH static inline
#endif

/* The axes that count a tensor's rows, of any strides, merged where these allow. */
typedef struct Rows {
    int rank;
    int64_t dim[TN_RANK], stride[TN_RANK];
} Rows;

/* The axes of t before `lead`, without the axis `row` (-1: with all). */
static inline Rows row_axes(const Tensor *t, int lead, int row)
{
    Rows r = {0};
    for (int d = 0; d < lead; d++) {
        int last = r.rank - 1;
        if (d == row || t->dim[d] == 1)
            continue;
        if (r.rank && r.stride[last] == t->stride[d] * t->dim[d]) {
            r.dim[last] *= t->dim[d];
            r.stride[last] = t->stride[d];
        } else {
            r.dim[r.rank] = t->dim[d];
            r.stride[r.rank++] = t->stride[d];
        }
    }
    return r;
}

/* Whether the axes from `lead` on are one contiguous run. */
static inline bool rows_contiguous(const Tensor *t, int lead)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= lead; d--) {
        if (t->dim[d] != 1 && t->stride[d] != stride)
            return false;
        stride *= t->dim[d];
    }
    return true;
}

/* Element offset of row i. */
ON_BOTH int64_t row_offset(const Rows *r, int64_t i)
{
    int64_t at = 0;
    for (int d = r->rank - 1; d > 0; d--) {
        at += i % r->dim[d] * r->stride[d];
        i /= r->dim[d];
    }
    return r->rank ? at + i * r->stride[0] : 0;
}

/* Number of elements of the axes [from, to). */
static inline int64_t axes_nelem(const Tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= t->dim[d];
    return n;
}

/* The dtype of statistics of rows (means, log-sum-exp) of elements of dtype d. */
static inline DType stat_dtype(DType d)
{
    return d == F64 ? F64 : F32;
}

#endif
