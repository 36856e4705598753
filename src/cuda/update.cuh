/* Optimizers on CUDA (adamw.cu, sgd.cu) share this: elements that are read four at a time where all
 * tensors lie so, scalar operands, and how a new parameter is rounded (update.c: the same words).
 */
#ifndef TENON_UPDATE_CUH
#define TENON_UPDATE_CUH

#include "cuda.cuh"

#include "random.cuh"

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

/* ---- rounding: attributes from `first` on, operands after the op's own ---- */

enum { MOST_RUNS = 8 };

/* Where elements of a part lie in the whole parameter, and what their numbers are drawn from. */
struct Rounding {
    const int64_t *seed, *step, *start[MOST_RUNS]; /* seed NULL: to nearest */
    int64_t dim[TN_RANK], stride[TN_RANK];         /* the part's; the whole's */
    int64_t axis[MOST_RUNS], run[MOST_RUNS], span[MOST_RUNS];
    int rank, nrun;
    unsigned stream;
};

/* How many operands come before those of rounding. */
inline int own_operands(const Call *c, int first)
{
    const Attr *a = c->node->attr + first;
    return c->nin - (a[0].i < 0 ? 0 : 2 + (int)a[2].i);
}

inline Rounding rounding_of(const Call *c, int first)
{
    const Attr *a = c->node->attr + first, *extents = a + 1, *axes = a + 2, *runs = a + 3;
    const Tensor &p = c->in[0], *in = c->in + own_operands(c, first);
    Rounding r = {};
    if (a->i < 0 || dtype_size(p.dtype) != 2)
        return r;
    r.seed = data<int64_t>(in[0]);
    r.step = data<int64_t>(in[1]);
    r.stream = (unsigned)a->i;
    r.rank = p.rank;
    r.nrun = (int)axes->i;
    for (int k = 0; k < r.nrun; k++) {
        r.start[k] = data<int64_t>(in[2 + k]);
        r.axis[k] = axes->ints[k];
        r.run[k] = runs->ints[k];
        r.span[k] = a[4].ints[k];
    }
    for (int64_t d = p.rank - 1, stride = 1; d >= 0; d--) {
        r.dim[d] = p.dim[d];
        r.stride[d] = stride;
        stride *= extents->ints[d];
    }
    return r;
}

__device__ inline unsigned long long position_of(const Rounding &r, int64_t i)
{
    unsigned long long position = 0;
    for (int d = r.rank - 1; d >= 0; d--) {
        int64_t j = i % r.dim[d];
        i /= r.dim[d];
        for (int k = 0; k < r.nrun; k++)
            if (r.axis[k] == d)
                j = j / r.run[k] * r.span[k] + *r.start[k] + j % r.run[k];
        position += (unsigned long long)j * (unsigned long long)r.stride[d];
    }
    return position;
}

/* The words of elements i to i + 3 of n; nothing where r rounds to nearest. */
__device__ inline void rounding_words(const Rounding &r, int64_t i, int64_t n,
                                      unsigned (&word)[EACH])
{
    if (!r.seed || i >= n)
        return;
    Stream s = {(unsigned long long)*r.seed, r.stream, (unsigned)*r.step};
    unsigned long long first = position_of(r, i);
    if (i + EACH <= n && position_of(r, i + EACH - 1) == first + EACH - 1)
        draw_some(s, first, word);
    else
        for (int k = 0; k < EACH && i + k < n; k++)
            word[k] = draw_word(s, position_of(r, i + k));
}

/* Rounding of a parameter that is a whole, which needs less room. */
struct WholeRounding {
    const int64_t *seed, *step; /* seed NULL: to nearest */
    unsigned stream;
};

inline bool rounds_whole(const Rounding &r)
{
    int64_t size = 1;
    for (int d = r.rank - 1; d >= 0; size *= r.dim[d--])
        if (r.stride[d] != size)
            return false;
    return r.nrun == 0;
}

__device__ inline void rounding_words(const WholeRounding &r, int64_t i, int64_t n,
                                      unsigned (&word)[EACH])
{
    if (!r.seed || i >= n)
        return;
    Stream s = {(unsigned long long)*r.seed, r.stream, (unsigned)*r.step};
    if (i + EACH <= n)
        draw_some(s, (unsigned long long)i, word);
    else
        for (int k = 0; k < EACH && i + k < n; k++)
            word[k] = draw_word(s, (unsigned long long)(i + k));
}

/* x rounded to T, a word saying to which neighbour: what T has no bits for and as many bits of the
 * word are added, and the sum is cut off. */
template <typename T> struct NarrowBy {
    template <typename W> __device__ static T of(W x, unsigned)
    {
        return narrow<T>(x);
    }
};
template <> struct NarrowBy<bf16> {
    __device__ static bf16 of(float x, unsigned word)
    {
        unsigned bits = __float_as_uint(x), more = word >> 16;
        return {(unsigned short)((bits + ((bits & 0x7f800000) == 0x7f800000 ? 0 : more)) >> 16)};
    }
};
template <> struct NarrowBy<f16> {
    __device__ static f16 of(float x, unsigned word)
    {
        unsigned bits = __float_as_uint(x), sign = bits & 0x80000000, more = word >> 19;
        if ((bits & 0x7f800000) == 0x7f800000)
            return narrow<f16>(x);
        if ((bits & 0x7fffffff) < 0x38800000) { /* subnormal in f16: multiples of 2^-24 */
            double units = __uint_as_float(bits ^ sign) * 0x1p24 + (word >> 16) * 0x1p-16;
            return {(unsigned short)((unsigned)units | sign >> 16)};
        }
        return narrow<f16>(__uint_as_float((bits + more) >> 13 << 13));
    }
};

/* x as rounding says. */
template <typename T, typename R, typename W>
__device__ inline T narrow_so(const R &r, W x, unsigned word)
{
    return r.seed ? NarrowBy<T>::of(x, word) : narrow<T>(x);
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
