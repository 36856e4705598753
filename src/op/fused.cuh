/* What the texts of bodies of `fused` are compiled with at run time (fused_text.c makes them, and
 * fused_cuda.c compiles): a thread's neighbouring elements, in as few accesses as possible. */
#ifndef TENON_FUSED_CUH
#define TENON_FUSED_CUH

#include "lane.cuh"

/* V neighbours, a power of two. */
template <typename T, int V> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Pack {
    T e[V];
};

/* At an address that is a multiple of 16 bytes, or of all V. */
template <int V, typename T> __device__ inline Pack<T, V> load(const T *from)
{
    return *(const Pack<T, V> *)from;
}
template <typename T, int V> __device__ inline void store(T *to, const Pack<T, V> &x)
{
    *(Pack<T, V> *)to = x;
}

/* The same of elements at any address that are `stride` apart; 0: one element V times. */
template <int V, typename T> __device__ inline Pack<T, V> load(const T *from, long long stride)
{
    Pack<T, V> x;
    for (int k = 0; k < V; k++)
        x.e[k] = from[k * stride];
    return x;
}
template <typename T, int V>
__device__ inline void store(T *to, const Pack<T, V> &x, long long stride)
{
    for (int k = 0; k < V; k++)
        to[k * stride] = x.e[k];
}

template <typename... P> __device__ inline bool aligned(const P *...p)
{
    return ((size_t(0) | ... | (size_t)p) & 15) == 0;
}

#endif
