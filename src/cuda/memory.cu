/* Storing, and looking for values and bytes, in the memory of a GPU (exec/cuda.h). Looking is for
 * checks and measuring. */
#include "cuda.cuh"
#include "rows.cuh"

extern "C" {
#include "memory.h"
}

enum { THREADS = 256, MOST_BLOCKS = 4096 }; /* enough to fill a GPU */

__global__ static void store(int64_t *to, int64_t x)
{
    *to = x;
}

extern "C" void cuda_store(void *stream, int64_t *to, int64_t x)
{
    [[maybe_unused]] Call c = {.stream = stream};
    (void)LAUNCH(&c, store, 1, 1, 0, to, x);
}

static unsigned grid_of(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

/* The greatest x of a block, which all of its threads bring, to *found: one atomic of the block, as
 * each takes its turn at that address. */
__device__ static void note_most(unsigned long long *found, unsigned long long x)
{
    __shared__ __align__(16) char shared[ROW_SHARED];
    const auto t = team_here<Team<THREADS, 0>>(shared);
    x = team_join(t, x, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
    if (!t.lane && x)
        atomicMax(found, x);
}

__device__ static bool other(uint8_t x, uint8_t y)
{
    return x != y;
}
__device__ static bool other(const Quad &x, const Quad &y)
{
    return (x.w[0] ^ y.w[0]) | (x.w[1] ^ y.w[1]) | (x.w[2] ^ y.w[2]) | (x.w[3] ^ y.w[3]);
}

/* Each thread looks at every (number of threads)th piece of P. */
template <typename P>
__global__ static void high(const P *p, P same, int64_t npiece, int64_t line,
                            unsigned long long *found)
{
    int64_t last = -1;
    for (int64_t i = thread_number(); i < npiece; i += (int64_t)gridDim.x * blockDim.x)
        last = other(p[i], same) ? i : last;
    note_most(found, last < 0 ? 0 : (last * (int64_t)sizeof(P) / line + 1) * line);
}

template <typename P>
static void look(void *stream, const void *p, uint8_t byte, int64_t nbytes, int line,
                 unsigned long long *found)
{
    [[maybe_unused]] Call c = {.stream = stream};
    P same;
    int64_t npiece = nbytes / line * line / (int64_t)sizeof(P);
    memset(&same, byte, sizeof same);
    (void)LAUNCH(&c, (high<P>), grid_of(npiece), THREADS, 0, (const P *)p, same, npiece, line,
                 found);
}

extern "C" void cuda_high(void *stream, const void *p, uint8_t byte, int64_t nbytes, int line,
                          unsigned long long *found)
{
    bool whole = !((uintptr_t)p % sizeof(Quad)) && !(line % (int)sizeof(Quad));
    (whole ? look<Quad> : look<uint8_t>)(stream, p, byte, nbytes, line, found);
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
    bool here = false;
    for (int64_t i = thread_number(); i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const char *p = t.data + offset_of(t, t, i) * size;
        here |= poison ? poisoned(p, size, poison) : not_finite(p, t.dtype);
    }
    note_most(found, here);
}

extern "C" void cuda_any(void *stream, const void *t, uint8_t poison, unsigned long long *found)
{
    [[maybe_unused]] Call c = {.stream = stream};
    const Tensor *x = (const Tensor *)t;
    int64_t n = tensor_nelem(x);
    (void)LAUNCH(&c, any, grid_of(n), THREADS, 0, *x, n, dtype_size(x->dtype), poison, found);
}
