/* Included by the texts of bodies of `fused`, which are compiled at run time (fused_text.c writes
 * them, fused_cuda.c compiles): a thread's neighbouring elements, in as few accesses as possible.
 */
#ifndef TENON_FUSED_CUH
#define TENON_FUSED_CUH

#include "lane.cuh"
#include "random.cuh"
#include "rows.cuh"

/* V neighbours, a power of two. */
template <typename T, int V> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Neighbours {
    T v[V];
};

/* At an address that is a multiple of 16 bytes, or of all V. */
template <int V, typename T> __device__ inline Neighbours<T, V> load(const T *from)
{
    return *(const Neighbours<T, V> *)from;
}
template <typename T, int V> __device__ inline void store(T *to, const Neighbours<T, V> &x)
{
    *(Neighbours<T, V> *)to = x;
}

/* The same of the first `count` elements, at any address, `stride` apart; 0: one element. */
template <int V, typename T>
__device__ inline Neighbours<T, V> load(const T *from, long long stride, int count = V)
{
    Neighbours<T, V> x = {};
#pragma unroll
    for (int k = 0; k < V; k++)
        if (k < count)
            x.v[k] = from[k * stride];
    return x;
}
template <typename T, int V>
__device__ inline void store(T *to, const Neighbours<T, V> &x, long long stride, int count = V)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        if (k < count)
            to[k * stride] = x.v[k];
}

/* Fault (op.h), and note() of it (cuda.cuh), which texts cannot include. */
struct NotedFault {
    int noted, step, what;
    long long value[4];
    int *stop;
};

/* Notes an offset of a dropout that is out of range, as the fault 0 of call `at`. */
__device__ inline void check_offset(void *fault, int at, long long offset, long long axis,
                                    long long most)
{
    NotedFault *f = (NotedFault *)fault;
    if ((offset >= 0 && offset <= most) || *(volatile int *)&f->noted || atomicCAS(&f->noted, 0, 1))
        return;
    if (f->stop)
        *(volatile int *)f->stop = 1;
    f->step = at;
    f->what = 0;
    f->value[0] = offset;
    f->value[1] = axis;
    f->value[2] = 0;
    f->value[3] = most;
}

/* Whether the block's threads, which all call this, must leave everything as it is (Call.stop). */
__device__ inline bool all_stopped(const int *stop)
{
    return stop && __syncthreads_or(*(const volatile int *)stop);
}

template <typename... P> __device__ inline bool aligned(const P *...p)
{
    return ((size_t(0) | ... | (size_t)p) & 15) == 0;
}

/* The pack with which functions along rows compute. */
template <typename W, typename T> __device__ inline Pack<W> packed(const Neighbours<T, PACK> &x)
{
    Pack<W> y;
#pragma unroll
    for (int k = 0; k < PACK; k++)
        y.v[k] = (W)wide(x.v[k]);
    return y;
}

#endif
