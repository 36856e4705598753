/* simt: the words of CUDA for a C++ compiler, so that kernels of *.cu run on the processor. They
 * are compiled with -DTN_SIMT -include tests/shared/simt.h; simt.c runs them.
 *
 * Blocks run one after the other, the threads of a block in turns: each goes on until it waits for
 * others or ends. A kernel that counts on others having gone on without waiting for them fails
 * under one of the orders of simt_order(). Shared memory begins as bytes 0xff in each block. */
#ifndef TENON_TEST_SIMT_H
#define TENON_TEST_SIMT_H

#ifdef __cplusplus
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#else
#include "../../src/base/base.h"
#endif

typedef struct SimtIndex {
    unsigned x, y, z;
} SimtIndex;

extern SimtIndex threadIdx, blockIdx, blockDim, gridDim;
extern long simt_natomic; /* atomics so far */
extern long simt_nlaunch; /* launches */

enum { SIMT_BYTES = 128 }; /* at most, that a lane publishes */

/* In which order threads and blocks go. */
enum { SIMT_FORWARD, SIMT_BACKWARD, SIMT_SHUFFLED };
void simt_order(int order);

/* Calls fn(arg) once for each thread of the grid. */
void simt_run(SimtIndex grid, SimtIndex block, size_t nbytes_shared, const char *name,
              void (*fn)(void *arg), void *arg);
char *simt_shared(void); /* the block's dynamic shared memory */

/* Waits for all threads of the block that have not ended; what they brought: any, all, how many are
 * not 0. */
typedef struct SimtVotes {
    int any, all, count;
} SimtVotes;
SimtVotes simt_barrier(int vote);

/* Waits for all lanes of `mask`, which must come with the same mask, kind and nbytes, and gives
 * what they published: 32 times nbytes, of lanes that are not there bytes 0xff. It lasts until the
 * lane's next call. kind: a number for each function that is made of this. */
const char *simt_exchange(unsigned mask, int kind, const void *mine, int nbytes);
unsigned simt_active(void); /* the lanes of the warp that have not ended */
int simt_lane(void);

#ifdef __cplusplus
}

/* ---- words ---- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __builtin_assume(x) ((void)0)
/* In the program's thread-local storage, which simt_run() finds and fills. */
#define __shared__ static __thread

struct dim3 : SimtIndex {
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : SimtIndex{x_, y_, z_}
    {
    }
};
static constexpr int warpSize = 32;

template <typename F>
static inline void simt_launch(dim3 grid, dim3 block, size_t shared, const char *name, F f)
{
    simt_run(
        grid, block, shared, name, [](void *arg) { (*(F *)arg)(); }, &f);
}

typedef void *cudaStream_t;
typedef int cudaError_t;
enum { cudaSuccess, cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
template <typename K> static inline cudaError_t cudaFuncSetAttribute(K, int, int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t)
{
    memset(to, byte, n);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int, cudaStream_t)
{
    memcpy(to, from, n);
    return cudaSuccess;
}
static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t)
{
    return "";
}

/* ---- vectors ---- */

#define SIMT_VECTOR(T, name, align2, align4)                 \
    struct name##1                                           \
    {                                                        \
        T x;                                                 \
    };                                                       \
    struct alignas(align2) name##2                           \
    {                                                        \
        T x, y;                                              \
    };                                                       \
    struct name##3                                           \
    {                                                        \
        T x, y, z;                                           \
    };                                                       \
    struct alignas(align4) name##4                           \
    {                                                        \
        T x, y, z, w;                                        \
    };                                                       \
    static inline name##2 make_##name##2(T x, T y)           \
    {                                                        \
        return {x, y};                                       \
    }                                                        \
    static inline name##4 make_##name##4(T x, T y, T z, T w) \
    {                                                        \
        return {x, y, z, w};                                 \
    }
SIMT_VECTOR(char, char, 2, 4)
SIMT_VECTOR(unsigned char, uchar, 2, 4)
SIMT_VECTOR(short, short, 4, 8)
SIMT_VECTOR(unsigned short, ushort, 4, 8)
SIMT_VECTOR(int, int, 8, 16)
SIMT_VECTOR(unsigned, uint, 8, 16)
SIMT_VECTOR(long long, longlong, 16, 16)
SIMT_VECTOR(unsigned long long, ulonglong, 16, 16)
SIMT_VECTOR(float, float, 8, 16)
SIMT_VECTOR(double, double, 16, 16)

/* ---- waiting and voting ---- */

#define SIMT_ALL 0xffffffffu

/* What lies in memory may have changed behind a wait. */
static inline void simt_fence()
{
    asm volatile("" ::: "memory");
}
static inline void __threadfence()
{
    simt_fence();
}
static inline void __threadfence_block()
{
    simt_fence();
}
static inline void __threadfence_system()
{
    simt_fence();
}
static inline SimtVotes simt_vote(int vote)
{
    simt_fence();
    SimtVotes v = simt_barrier(vote);
    simt_fence();
    return v;
}
static inline void __syncthreads()
{
    simt_vote(0);
}
static inline int __syncthreads_or(int x)
{
    return simt_vote(x).any;
}
static inline int __syncthreads_and(int x)
{
    return simt_vote(x).all;
}
static inline int __syncthreads_count(int x)
{
    return simt_vote(x).count;
}

enum { SIMT_SYNC, SIMT_SHUFFLE, SIMT_BALLOT, SIMT_OWN /* and up: other files' */ };

/* What each lane of `mask` brought, by lane; to be read before the lane's next exchange. */
template <typename T> static inline const T *simt_all(unsigned mask, int kind, const T &mine)
{
    static_assert(sizeof(T) <= SIMT_BYTES);
    simt_fence();
    const char *all = simt_exchange(mask, kind, &mine, sizeof mine);
    simt_fence();
    return (const T *)(const void *)all;
}
static inline void __syncwarp(unsigned mask = SIMT_ALL)
{
    simt_all(mask, SIMT_SYNC, 0);
}
template <typename T> static inline T simt_from(unsigned mask, T x, int lane, bool inside)
{
    const T *all = simt_all(mask, SIMT_SHUFFLE, x);
    return inside ? all[lane] : x;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    return simt_from(mask, x, (simt_lane() & -width) + (from & (width - 1)), true);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int other, int width = 32)
{
    int lane = simt_lane() ^ other;
    return simt_from(mask, x, lane, lane < (simt_lane() & -width) + width);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int lane = simt_lane() + (int)by;
    return simt_from(mask, x, lane, lane < (simt_lane() & -width) + width);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int lane = simt_lane() - (int)by;
    return simt_from(mask, x, lane, lane >= (simt_lane() & -width));
}
static inline unsigned __ballot_sync(unsigned mask, int x)
{
    const unsigned *all = simt_all(mask, SIMT_BALLOT, (unsigned)(x != 0));
    unsigned set = 0;
    for (int i = 0; i < 32; i++)
        if (all[i] == 1)
            set |= 1u << i;
    return set;
}
static inline int __any_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) != 0;
}
static inline int __all_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, !x) == 0;
}
static inline unsigned __activemask()
{
    return simt_active();
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    const T *all = simt_all(mask, SIMT_BALLOT, x);
    unsigned set = 0;
    for (int i = 0; i < 32; i++)
        if ((mask & simt_active()) >> i & 1 && all[i] == x)
            set |= 1u << i;
    return set;
}
#define SIMT_REDUCE(name, T, join)                             \
    static inline T __reduce_##name##_sync(unsigned mask, T x) \
    {                                                          \
        const T *all = simt_all(mask, SIMT_SHUFFLE, x);        \
        T y = x;                                               \
        for (int i = 0; i < 32; i++)                           \
            if (mask >> i & 1 && i != simt_lane())             \
                y = join;                                      \
        return y;                                              \
    }
SIMT_REDUCE(add, unsigned, y + all[i])
SIMT_REDUCE(add, int, y + all[i])
SIMT_REDUCE(max, unsigned, y > all[i] ? y : all[i])
SIMT_REDUCE(max, int, y > all[i] ? y : all[i])
SIMT_REDUCE(min, unsigned, y < all[i] ? y : all[i])
SIMT_REDUCE(min, int, y < all[i] ? y : all[i])
SIMT_REDUCE(or, unsigned, y | all[i])
SIMT_REDUCE(and, unsigned, y &all[i])

/* ---- atomics: threads change places at waits only; they are counted ---- */

#define SIMT_ATOMIC(name, result)                                             \
    template <typename T, typename U> static inline T atomic##name(T *p, U u) \
    {                                                                         \
        T old = *p, x = (T)u;                                                 \
        simt_natomic++;                                                       \
        *p = (T)(result);                                                     \
        return old;                                                           \
    }
SIMT_ATOMIC(Add, old + x)
SIMT_ATOMIC(Sub, old - x)
SIMT_ATOMIC(Exch, x)
SIMT_ATOMIC(Min, old < x ? old : x)
SIMT_ATOMIC(Max, old > x ? old : x)
SIMT_ATOMIC(And, old &x)
SIMT_ATOMIC(Or, old | x)
SIMT_ATOMIC(Xor, old ^ x)
SIMT_ATOMIC(Inc, old >= x ? 0 : old + 1)
SIMT_ATOMIC(Dec, old == 0 || old > x ? x : old - 1)
template <typename T, typename U, typename V> static inline T atomicCAS(T *p, U expected, V x)
{
    T old = *p;
    simt_natomic++;
    if (old == (T)expected)
        *p = (T)x;
    return old;
}

/* ---- loads and stores with hints ---- */

#define SIMT_LOAD(name)                                          \
    template <typename T> static inline T __ld##name(const T *p) \
    {                                                            \
        return *p;                                               \
    }
SIMT_LOAD(g)
SIMT_LOAD(cs)
SIMT_LOAD(cg)
SIMT_LOAD(ca)
SIMT_LOAD(cv)
SIMT_LOAD(lu)
#define SIMT_STORE(name)                                           \
    template <typename T> static inline void __st##name(T *p, T x) \
    {                                                              \
        *p = x;                                                    \
    }
SIMT_STORE(cs)
SIMT_STORE(cg)
SIMT_STORE(wb)
SIMT_STORE(wt)

/* ---- arithmetic ---- */

template <typename T, typename U> static inline T simt_bits(U x)
{
    T y;
    static_assert(sizeof x == sizeof y);
    memcpy(&y, &x, sizeof y);
    return y;
}
#define SIMT_CAST(name, T, U)   \
    static inline T name(U x)   \
    {                           \
        return simt_bits<T>(x); \
    }
SIMT_CAST(__float_as_int, int, float)
SIMT_CAST(__int_as_float, float, int)
SIMT_CAST(__float_as_uint, unsigned, float)
SIMT_CAST(__uint_as_float, float, unsigned)
SIMT_CAST(__double_as_longlong, long long, double)
SIMT_CAST(__longlong_as_double, double, long long)

#define SIMT_FN(T, name, ...) \
    static inline T name      \
    {                         \
        return __VA_ARGS__;   \
    }
#define __expf   expf
#define __exp10f exp10f
#define __logf   logf
#define __log2f  log2f
#define __log10f log10f
#define __sinf   sinf
#define __cosf   cosf
#define __tanf   tanf
#define __powf   powf
SIMT_FN(float, __fdividef(float x, float y), x / y)
SIMT_FN(float, __fdiv_rn(float x, float y), x / y)
SIMT_FN(float, __fadd_rn(float x, float y), x + y)
SIMT_FN(float, __fsub_rn(float x, float y), x - y)
SIMT_FN(float, __fmul_rn(float x, float y), x *y)
SIMT_FN(float, __fmaf_rn(float x, float y, float z), fmaf(x, y, z))
SIMT_FN(float, __frcp_rn(float x), 1 / x)
SIMT_FN(float, __fsqrt_rn(float x), sqrtf(x))
SIMT_FN(float, __frsqrt_rn(float x), (float)(1 / sqrt((double)x)))
SIMT_FN(float, __saturatef(float x), x > 0 ? x < 1 ? x : 1 : 0)
SIMT_FN(double, __dadd_rn(double x, double y), x + y)
SIMT_FN(double, __dsub_rn(double x, double y), x - y)
SIMT_FN(double, __dmul_rn(double x, double y), x *y)
SIMT_FN(double, __ddiv_rn(double x, double y), x / y)
SIMT_FN(double, __fma_rn(double x, double y, double z), fma(x, y, z))
SIMT_FN(double, __drcp_rn(double x), 1 / x)
SIMT_FN(double, __dsqrt_rn(double x), sqrt(x))
SIMT_FN(float, rsqrtf(float x), 1 / sqrtf(x))
SIMT_FN(double, rsqrt(double x), 1 / sqrt(x))
SIMT_FN(float, sinpif(float x), (float)sin(M_PI *x))
SIMT_FN(float, cospif(float x), (float)cos(M_PI *x))
SIMT_FN(double, sinpi(double x), sin(M_PI *x))
SIMT_FN(double, cospi(double x), cos(M_PI *x))
SIMT_FN(double, normcdf(double x), 0.5 * erfc(-x * M_SQRT1_2))
SIMT_FN(float, normcdff(float x), (float)normcdf(x))
SIMT_FN(float, fdividef(float x, float y), x / y)
SIMT_FN(int, __float2int_rn(float x), (int)rintf(x))
SIMT_FN(int, __float2int_rz(float x), (int)x)
SIMT_FN(int, __float2int_rd(float x), (int)floorf(x))
SIMT_FN(long long, __float2ll_rn(float x), llrintf(x))
SIMT_FN(long long, __double2ll_rn(double x), llrint(x))
SIMT_FN(float, __int2float_rn(int x), (float)x)
SIMT_FN(float, __uint2float_rn(unsigned x), (float)x)
SIMT_FN(float, __ll2float_rn(long long x), (float)x)
SIMT_FN(float, __double2float_rn(double x), (float)x)
SIMT_FN(int, __popc(unsigned x), __builtin_popcount(x))
SIMT_FN(int, __popcll(unsigned long long x), __builtin_popcountll(x))
SIMT_FN(int, __clz(int x), x ? __builtin_clz((unsigned)x) : 32)
SIMT_FN(int, __clzll(long long x), x ? __builtin_clzll((unsigned long long)x) : 64)
SIMT_FN(int, __ffs(int x), __builtin_ffs(x))
SIMT_FN(int, __ffsll(long long x), __builtin_ffsll(x))
SIMT_FN(int, __mulhi(int x, int y), (int)((long long)x *y >> 32))
SIMT_FN(unsigned, __umulhi(unsigned x, unsigned y), (unsigned)((unsigned long long)x *y >> 32))
SIMT_FN(unsigned long long, __umul64hi(unsigned long long x, unsigned long long y),
        (unsigned long long)((unsigned __int128)x *y >> 64))
SIMT_FN(unsigned, __funnelshift_l(unsigned lo, unsigned hi, unsigned by),
        (unsigned)(((unsigned long long)hi << 32 | lo) << (by & 31) >> 32))
SIMT_FN(unsigned, __funnelshift_r(unsigned lo, unsigned hi, unsigned by),
        (unsigned)(((unsigned long long)hi << 32 | lo) >> (by & 31)))

static inline unsigned long long __brevll(unsigned long long x)
{
    unsigned long long y = 0;
    for (int i = 0; i < 64; i++)
        y |= (x >> i & 1) << (63 - i);
    return y;
}
static inline unsigned __brev(unsigned x)
{
    return (unsigned)(__brevll(x) >> 32);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which)
{
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++)
        z |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return z;
}

/* min and max of CUDA: a NaN gives way, integers of two types meet as in C. */
#define SIMT_MIN(T, less, more)   \
    static inline T min(T x, T y) \
    {                             \
        return less;              \
    }                             \
    static inline T max(T x, T y) \
    {                             \
        return more;              \
    }
SIMT_MIN(float, fminf(x, y), fmaxf(x, y))
SIMT_MIN(double, fmin(x, y), fmax(x, y))
SIMT_MIN(int, x<y ? x : y, x> y ? x : y)
SIMT_MIN(unsigned, x<y ? x : y, x> y ? x : y)
SIMT_MIN(long, x<y ? x : y, x> y ? x : y)
SIMT_MIN(unsigned long, x<y ? x : y, x> y ? x : y)
SIMT_MIN(long long, x<y ? x : y, x> y ? x : y)
SIMT_MIN(unsigned long long, x<y ? x : y, x> y ? x : y)
template <typename T, typename U> static inline auto min(T x, U y) -> decltype(x + y)
{
    decltype(x + y) a = x, b = y;
    return min(a, b);
}
template <typename T, typename U> static inline auto max(T x, U y) -> decltype(x + y)
{
    decltype(x + y) a = x, b = y;
    return max(a, b);
}

static inline void __trap()
{
    abort();
}
static inline void __nanosleep(unsigned)
{
}

#endif /* __cplusplus */
#endif
