/* Small kernels that use what simt.h has, for test_simt.c. */
#include "../../src/cuda/cuda.cuh"

/* to[i] of a block: the sum of all threads before i by shuffles, then over warps. Threads from n on
 * end at once. */
__global__ static void scan(int *to, int n)
{
    __shared__ int sums[32];
    DYNAMIC_SHARED(mem);
    int *all = (int *)mem, i = threadIdx.x, x = i, lane = i % 32;
    if (i >= n)
        return;
    for (int d = 1; d < 32; d *= 2) {
        int y = __shfl_up_sync(0xffffffff, x, d);
        x += lane >= d ? y : 0;
    }
    if (lane == 31)
        sums[i / 32] = x;
    __syncthreads();
    for (int w = 0; w < i / 32; w++)
        x += sums[w];
    all[i] = x;
    __syncthreads();
    to[blockIdx.x * n + i] = all[n - 1 - i];
}

extern "C" void cuda_try_scan(int *to, int blocks, int threads, int n)
{
    LAUNCH(NULL, scan, blocks, threads, n * sizeof(int), to, n);
}

/* Half warps by themselves; votes of all. */
__global__ static void halves(int *to)
{
    int me = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), x = me;
    unsigned half = me % 32 < 16 ? 0xffffu : 0xffff0000u;
    for (int i = 0; i < (half == 0xffff ? 3 : 1); i++)
        for (int d = 8; d; d /= 2)
            x = max(x, __shfl_xor_sync(half, x, d));
    to[me] = x + 1000 * __syncthreads_count(me % 3 == 0) +
             100000 * __popc(__ballot_sync(0xffffffff, me & 1));
}

extern "C" void cuda_try_halves(int *to)
{
    LAUNCH(NULL, halves, 1, dim3(8, 4, 2), 0, to);
}

/* A neighbour's value without a barrier: right in one order only. */
__global__ static void races(int *to)
{
    __shared__ int all[64];
    all[threadIdx.x] = threadIdx.x;
    to[threadIdx.x] = all[threadIdx.x ? threadIdx.x - 1 : 0];
}

extern "C" void cuda_try_races(int *to)
{
    LAUNCH(NULL, races, 1, 64, 0, to);
}

__global__ static void waits(int *to)
{
    __shared__ int unset;
    *to = unset;
    if (threadIdx.x < 3)
        __syncwarp();
    else
        __syncthreads();
}

extern "C" void cuda_try_waits(int *to)
{
    LAUNCH(NULL, waits, 1, 5, 0, to);
}
