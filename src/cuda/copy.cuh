/* Moving the elements of strided tensors on CUDA. */
#ifndef TENON_COPY_CUH
#define TENON_COPY_CUH

#include "cuda.cuh"

/* Moves the bits of every element of `from` to `to`: same shape and dtype, any strides, no overlap;
 * nothing where both begin at the same place. The value of run(). */
extern "C" int cuda_copy(Call *c, const Tensor *to, const Tensor *from);

/* Sets every element to x, rounded to the dtype. */
extern "C" int cuda_fill(Call *c, const Tensor *to, double x);

/* Makes t elements lo, lo + step, ... of an axis. */
static inline void narrow_axis(Tensor *t, int axis, int64_t lo, int64_t count, int64_t step)
{
    if (count > 0)
        t->data += lo * t->stride[axis] * dtype_size(t->dtype);
    t->dim[axis] = count;
    t->stride[axis] *= step;
}

/* Sets to x what lies before and after elements [lo, hi) of an axis, and makes t these. */
static inline int fill_beside(Call *c, Tensor *t, int axis, int64_t lo, int64_t hi, double x)
{
    Tensor before = *t, behind = *t;
    narrow_axis(&before, axis, 0, lo, 1);
    narrow_axis(&behind, axis, hi, t->dim[axis] - hi, 1);
    narrow_axis(t, axis, lo, hi - lo, 1);
    int e = cuda_fill(c, &before, x);
    return e ? e : cuda_fill(c, &behind, x);
}

#endif
