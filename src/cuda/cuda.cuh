/* Shared by kernels in .cu: the op's types, elements of 16 bits, launching, notes of faults.
 *
 * NAME.cu holds the CUDA kernels of the ops of NAME.c. Those of an op are a list
 *     CUDA_KERNELS(sgd) = {{.name = "sgd", .accepts = accepts, .run = run}, {}};
 * like that of the processor: accepts() and workspace() are asked without a device; run() launches
 * on c->stream and returns; nothing is allocated, waited for or read on the host. A scalar operand
 * is read by the kernel. Same call, same bits: no atomics whose order shows. A kernel notes what
 * is wrong with its data (note()), and the run fails after it; kernels that come later and renew
 * parameters or state leave them as they are (stopped()), as the processor, which stops there.
 *
 * Products are not contracted to fma (-fmad=false), so that a function gives the same bits wherever
 * it is compiled into; write fma() where it is meant.
 *
 * With TN_SIMT the same files are compiled for the processor, where tests run the threads of a
 * block in turn (tests/shared/simt.h, which the compiler is told to include first). */
#ifndef TENON_CUDA_CUH
#define TENON_CUDA_CUH

#ifndef TN_SIMT
#include <cuda_runtime.h>
#endif

#define _Noreturn [[noreturn]]
#define class opclass /* a word of C++ */
extern "C" {
#include "../op/op.h"
}
#undef class
#undef _Noreturn

#include "element.cuh"

#define CUDA_KERNELS(op)                 \
    extern "C" const Kernel cuda_##op[]; \
    const Kernel cuda_##op[]

/* ---- elements: element.cuh ---- */

/* Statements with T as the type of a dtype's elements: BY_DTYPE(d, T, return run<T>(c)). */
#define AS_TYPE(dtype, type, T, ...) \
    case dtype: {                    \
        typedef type T;              \
        __VA_ARGS__;                 \
    } break;
#define AS_FLOATS(T, ...)                \
    AS_TYPE(F64, double, T, __VA_ARGS__) \
    AS_TYPE(F32, float, T, __VA_ARGS__)  \
    AS_TYPE(BF16, bf16, T, __VA_ARGS__)  \
    AS_TYPE(F16, f16, T, __VA_ARGS__)
#define AS_INTEGERS(T, ...)               \
    AS_TYPE(I64, int64_t, T, __VA_ARGS__) \
    AS_TYPE(I32, int32_t, T, __VA_ARGS__) \
    AS_TYPE(U8, uint8_t, T, __VA_ARGS__)
#define BY_TYPES(dtype, cases)     \
    do {                           \
        switch (dtype) {           \
            cases default : break; \
        }                          \
    } while (0)
#define BY_FLOAT(dtype, T, ...)   BY_TYPES(dtype, AS_FLOATS(T, __VA_ARGS__))
#define BY_INTEGER(dtype, T, ...) BY_TYPES(dtype, AS_INTEGERS(T, __VA_ARGS__))
#define BY_NUMBER(dtype, T, ...) \
    BY_TYPES(dtype, AS_FLOATS(T, __VA_ARGS__) AS_INTEGERS(T, __VA_ARGS__))
#define BY_DTYPE(dtype, T, ...)                                           \
    BY_TYPES(dtype, AS_FLOATS(T, __VA_ARGS__) AS_INTEGERS(T, __VA_ARGS__) \
                        AS_TYPE(BOOL, uint8_t, T, __VA_ARGS__))

/* A unit that moves 16 bytes at once. */
struct alignas(16) Unit16 {
    uint64_t half[2];
};

/* ---- launching ---- */

#ifdef TN_SIMT
#define LAUNCH(c, kernel, grid, block, shared, ...) \
    (simt_launch(dim3(grid), dim3(block), shared, #kernel, [&] { kernel(__VA_ARGS__); }), 0)
#else
static inline int launched(Call *c)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? 0 : run_fail(c, "CUDA: %s", cudaGetErrorString(e));
}
/* kernel(...) over a grid, which may be empty, of blocks with `shared` bytes of dynamic shared
 * memory; the value of run(). A kernel that is a template stands in parentheses. */
#define LAUNCH(c, kernel, grid, block, shared, ...)                                        \
    (grid_empty(dim3(grid))                                                                \
         ? 0                                                                               \
         : (kernel<<<(grid), (block), (shared), (cudaStream_t)(c)->stream>>>(__VA_ARGS__), \
            launched(c)))
static inline bool grid_empty(dim3 g)
{
    return !g.x || !g.y || !g.z;
}
#endif

/* Names the block's dynamic shared memory, a char array that is aligned to 16 bytes. */
#ifdef TN_SIMT
#define DYNAMIC_SHARED(name) char *const name = simt_shared()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#endif

/* Blocks for n items of which each takes `per`. */
static inline unsigned grid_for(int64_t n, int64_t per)
{
    return (unsigned)((n + per - 1) / per);
}

/* The thread's number in a grid of one axis. */
__device__ inline int64_t thread_number()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Notes the first fault of a run; what: which of the kernel's faults. f is memory of the host,
 * where an atomic takes a microsecond, one after the other: a thread that sees a note leaves it
 * alone. */
__device__ inline void note(Fault *f, int step, int what, long long a, long long b = 0,
                            long long c = 0, long long d = 0)
{
    if (*(volatile int *)&f->noted || atomicCAS(&f->noted, 0, 1))
        return;
    if (f->stop)
        *(volatile int *)f->stop = 1;
    f->step = step;
    f->what = what;
    f->value[0] = a;
    f->value[1] = b;
    f->value[2] = c;
    f->value[3] = d;
}

/* Whether a call must leave what outlives the run as it is (Call.stop): a kernel before it has
 * noted a fault. */
__device__ inline bool stopped(const int *stop)
{
    return stop && *(const volatile int *)stop;
}

/* ---- tensors in kernels: passed by value ---- */

template <typename T> __host__ __device__ inline T *data(const Tensor &t)
{
    return (T *)(void *)t.data;
}

/* The element offset in x of the row-major position i of a result of y's shape, to which x is
 * broadcast. */
__device__ inline int64_t offset_of(const Tensor &y, const Tensor &x, int64_t i)
{
    int64_t at = 0;
    for (int d = y.rank - 1; d >= 0; d--) {
        int64_t ix = i % y.dim[d];
        int e = d - y.rank + x.rank;
        i /= y.dim[d];
        if (e >= 0 && x.dim[e] != 1)
            at += ix * x.stride[e];
    }
    return at;
}

#endif
