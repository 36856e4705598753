/* What optimizers share on CUDA (adamw.cu, sgd.cu): elements that are read four at a time where all
 * tensors lie so, and scalar operands. */
#ifndef TENON_UPDATE_CUH
#define TENON_UPDATE_CUH

#include "cuda.cuh"

enum { THREADS = 256, EACH = 4, BLOCKS = 528 };

template <typename T> struct alignas(EACH * sizeof(T)) Four {
    T x[EACH];
};

/* Whether x, of elements of T, lies so that four can be read at once. */
template <typename T> inline bool in_fours(const T *x)
{
    return (uint64_t)x % sizeof(Four<T>) == 0;
}

/* Elements i to i + 3 of n. */
template <typename T>
__device__ inline Four<T> load_four(const T *x, int64_t i, int64_t n, bool fours)
{
    Four<T> own = {};
    if (fours && i + EACH <= n)
        return *(const Four<T> *)(const void *)(x + i);
    for (int k = 0; k < EACH && i + k < n; k++)
        own.x[k] = x[i + k];
    return own;
}

template <typename T>
__device__ inline void store_four(T *x, int64_t i, int64_t n, bool fours, const Four<T> &own)
{
    if (fours && i + EACH <= n)
        *(Four<T> *)(void *)(x + i) = own;
    else
        for (int k = 0; k < EACH && i + k < n; k++)
            x[i + k] = own.x[k];
}

/* Blocks for n elements; each goes on with those that are a whole grid ahead, all of them about as
 * often. */
inline unsigned grid_of(int64_t n)
{
    int64_t blocks = grid_for(n, THREADS * EACH);
    return grid_for(blocks, (blocks + BLOCKS - 1) / BLOCKS + (blocks == 0));
}

/* A scalar operand of any floating-point dtype. */
__device__ inline double scalar(const Tensor &t)
{
    switch (t.dtype) {
    case F64: return *data<double>(t);
    case F32: return *data<float>(t);
    case BF16: return wide(*data<bf16>(t));
    default: return wide(*data<f16>(t));
    }
}

/* Whether operands from `first` on to `last` are contiguous. */
inline bool all_contiguous(const Call *c, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (!tensor_contiguous(&c->in[i]))
            return false;
    return true;
}

/* Calls ... with P, G the types of operands 0 and 1: equal, or G float where P has 16 bits. */
#define BY_PARAMETER(c, P, G, ...)                  \
    BY_FLOAT((c)->in[0].dtype, P, do {              \
        if ((c)->in[0].dtype == (c)->in[1].dtype) { \
            typedef P G;                            \
            __VA_ARGS__;                            \
        } else if (sizeof(P) == 2) {                \
            typedef float G;                        \
            __VA_ARGS__;                            \
        }                                           \
    } while (0))

#endif
