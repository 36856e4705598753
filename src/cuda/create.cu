/* full and arange on CUDA (create.c). */
#include "copy.cuh"
#include "pointwise.cuh"

enum { FILL_VALUE = 1 };
enum { START, END, STEP };

static int full_run(Call *c)
{
    return cuda_fill(c, &c->out[0], c->node->attr[FILL_VALUE].f);
}
POINTWISE_KERNELS(full, full_run);

/* ---- arange ---- */

/* y[i] = start + (first + i) step, wrapped where no whole has such elements. */
template <typename T>
__global__ void arange(Tensor y, const int64_t *first, uint64_t start, uint64_t step)
{
    int64_t i = thread_number();
    uint64_t at = (first ? (uint64_t)*first : 0) + (uint64_t)i;
    if (i < y.dim[0])
        data<T>(y)[i * y.stride[0]] = lane__to_copy<int64_t, T>((int64_t)(start + at * step));
}

static int arange_run(Call *c)
{
    const Tensor &y = c->out[0];
    const Attr *a = c->node->attr;
    const int64_t *first = c->nin ? data<int64_t>(c->in[0]) : NULL;
    BY_NUMBER(y.dtype, T,
              return LAUNCH(c, (arange<T>), grid_for(y.dim[0], BLOCK), BLOCK, 0, y, first,
                            (uint64_t)a[START].i, (uint64_t)a[STEP].i));
    return run_fail(c, "no kernel for %s", dtype_name(y.dtype));
}
POINTWISE_KERNELS(arange, arange_run);
