/* Storing, and looking for values and bytes, in the memory of a GPU (exec/cuda.h). Looking is for
 * checks and measuring. */
#include "../op/cuda.cuh"

extern "C" {
#include "cuda.h"
}

enum { THREADS = 256, MOST_BLOCKS = 65536 };

__global__ static void store(int64_t *to, int64_t x)
{
    *to = x;
}

extern "C" void cuda_store(void *stream, int64_t *to, int64_t x)
{
    store<<<1, 1, 0, (cudaStream_t)stream>>>(to, x);
}

static unsigned grid_of(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

/* Each thread looks at every (number of threads)th line. */
__global__ static void high(const uint8_t *p, uint8_t byte, int64_t nline, int line,
                            unsigned long long *found)
{
    unsigned long long end = 0;
    for (int64_t i = thread_number(); i < nline; i += (int64_t)gridDim.x * blockDim.x)
        for (int k = 0; k < line; k++)
            if (p[i * line + k] != byte)
                end = (i + 1) * line;
    if (end)
        atomicMax(found, end);
}

extern "C" void cuda_high(void *stream, const void *p, uint8_t byte, int64_t nbytes, int line,
                          unsigned long long *found)
{
    int64_t nline = nbytes / line;
    if (nline)
        high<<<grid_of(nline), THREADS, 0, (cudaStream_t)stream>>>((const uint8_t *)p, byte, nline,
                                                                   line, found);
}

__device__ static bool not_finite(const char *p, DType d)
{
    switch (d) {
    case F64: return !isfinite(*(const double *)p);
    case F32: return !isfinite(*(const float *)p);
    case BF16: return !isfinite(wide(*(const bf16 *)p));
    default: return !isfinite(wide(*(const f16 *)p));
    }
}

__device__ static bool poisoned(const char *p, int size, uint8_t poison)
{
    for (int k = 0; k < size; k++)
        if ((uint8_t)p[k] != poison)
            return false;
    return true;
}

__global__ static void any(Tensor t, int64_t n, int size, uint8_t poison, unsigned long long *found)
{
    for (int64_t i = thread_number(); i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const char *p = t.data + offset_of(t, t, i) * size;
        if (poison ? poisoned(p, size, poison) : not_finite(p, t.dtype))
            *found = 1;
    }
}

extern "C" void cuda_any(void *stream, const void *t, uint8_t poison, unsigned long long *found)
{
    const Tensor *x = (const Tensor *)t;
    int64_t n = tensor_nelem(x);
    if (n)
        any<<<grid_of(n), THREADS, 0, (cudaStream_t)stream>>>(*x, n, dtype_size(x->dtype), poison,
                                                              found);
}
