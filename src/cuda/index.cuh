/* Shared by the CUDA kernels that read and write by index tensors, and by dropout and sorts with
 * them: walks over several tensors, moving of elements in large units, checks of indices, and
 * stable sorts of keys, by which several elements for one place are put there in order. */
#ifndef TENON_INDEX_CUH
#define TENON_INDEX_CUH

#include "cuda.cuh"

enum { THREADS = 256 };

/* ---- walks ---- */

/* The axes of one shape with the strides of N tensors; axes that lie as one in all are merged. */
template <int N> struct WalkOf {
    int rank;
    int64_t nelem, dim[TN_RANK], stride[N][TN_RANK];
};

template <int N> inline WalkOf<N> walk_none()
{
    WalkOf<N> w = {};
    w.nelem = 1;
    return w;
}

/* Adds an axis, inner to those before it. */
template <int N> inline void walk_axis(WalkOf<N> *w, int64_t dim, const int64_t (&stride)[N])
{
    bool merged = w->rank > 0;
    for (int k = 0; k < N && merged; k++)
        merged = w->stride[k][w->rank - 1] == stride[k] * dim;
    w->nelem *= dim;
    if (dim == 1)
        return;
    int d = merged ? w->rank - 1 : w->rank++;
    w->dim[d] = merged ? w->dim[d] * dim : dim;
    for (int k = 0; k < N; k++)
        w->stride[k][d] = stride[k];
}

/* Over all axes of t but `skip`. */
inline WalkOf<1> walk_of(const Tensor &t, int skip = -1)
{
    WalkOf<1> w = walk_none<1>();
    for (int d = 0; d < t.rank; d++)
        if (d != skip)
            walk_axis(&w, t.dim[d], {t.stride[d]});
    return w;
}

/* i / n where neither is negative. */
__host__ __device__ inline int64_t quotient(int64_t i, int64_t n)
{
    return (uint64_t)(i | n) >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* The element offsets of row-major position i. */
template <int N>
__host__ __device__ inline void walk_at(const WalkOf<N> &w, int64_t i, int64_t (&at)[N])
{
    for (int k = 0; k < N; k++)
        at[k] = 0;
    for (int d = w.rank - 1; d >= 0; d--) {
        int64_t rest = d ? quotient(i, w.dim[d]) : 0, ix = i - rest * w.dim[d];
        for (int k = 0; k < N; k++)
            at[k] += ix * w.stride[k][d];
        i = rest;
    }
}

__host__ __device__ inline int64_t walk_at(const WalkOf<1> &w, int64_t i)
{
    int64_t at[1];
    walk_at(w, i, at);
    return at[0];
}

/* ---- moving elements: in units of up to 16 bytes ---- */

/* Whether in elements of `size` bytes all tensors but those from `moved` on, which do not move
 * along the last axis, can be walked in units of `unit` bytes. */
template <int N> inline bool walk_fits(const WalkOf<N> &w, int moved, int64_t size, int64_t unit)
{
    int last = w.rank - 1;
    if (unit == size || last < 0)
        return unit == size;
    if (w.dim[last] * size % unit)
        return false;
    for (int k = 0; k < N; k++) {
        if (w.stride[k][last] != (k < moved))
            return false;
        for (int d = 0; d < last && k < moved; d++)
            if (w.stride[k][d] * size % unit)
                return false;
    }
    return true;
}

/* Turns elements of `size` bytes into units, of which w's first `moved` tensors consist, the others
 * being the same for all of a unit. `common` has a bit for all that must be a multiple of a unit's
 * bytes: addresses and steps. Returns the bytes. */
template <int N> inline int64_t walk_units(WalkOf<N> *w, int moved, int64_t size, uint64_t common)
{
    int64_t unit = 16;
    while (unit > size && ((common & (uint64_t)(unit - 1)) || !walk_fits(*w, moved, size, unit)))
        unit /= 2;
    if (unit <= size)
        return size;
    w->dim[w->rank - 1] /= unit / size;
    w->nelem /= unit / size;
    for (int k = 0; k < moved; k++)
        for (int d = 0; d < w->rank - 1; d++)
            w->stride[k][d] /= unit / size;
    return unit;
}

/* Calls ... with U an unsigned type of that many bytes. */
#define BY_SIZE(nbytes, U, ...) \
    do {                        \
        switch (nbytes) {       \
        case 1: {               \
            typedef uint8_t U;  \
            __VA_ARGS__;        \
        } break;                \
        case 2: {               \
            typedef uint16_t U; \
            __VA_ARGS__;        \
        } break;                \
        case 4: {               \
            typedef uint32_t U; \
            __VA_ARGS__;        \
        } break;                \
        case 8: {               \
            typedef uint64_t U; \
            __VA_ARGS__;        \
        } break;                \
        default: {              \
            typedef Unit16 U;   \
            __VA_ARGS__;        \
        } break;                \
        }                       \
    } while (0)

/* ---- indices ---- */

__device__ inline int64_t index_at(const Tensor &t, int64_t at)
{
    return t.dtype == I64 ? data<int64_t>(t)[at] : data<int32_t>(t)[at];
}

/* Notes the first index that is not in [least, size), by who found that number i is not one: so it
 * does not matter who does. Tensor 0 of the walk is the index. */
template <int N>
__device__ __attribute__((noinline)) void note_index(const Tensor &ids, const WalkOf<N> &w,
                                                     int64_t i, int64_t least, int64_t size,
                                                     Fault *fault, int step, int what)
{
    int64_t p = 0, at[N], id;
    for (;; p++) {
        walk_at(w, p, at);
        id = index_at(ids, at[0]);
        if (p == i || id < least || id >= size)
            break;
    }
    note(fault, step, what, id, p, least, size - 1);
}

/* Launches a check of operand i: each of its elements is in [least, size). The first that is not is
 * noted as fault number `what`: itself, its position, least and size - 1. */
extern "C" int cuda_check_index(Call *c, int i, int64_t least, int64_t size, int what);
/* Number i is of operand i. */
extern "C" const char *const cuda_index_faults[];

/* ---- sorts (sort.cu) ---- */

/* An item to be sorted: no two are equal. */
struct SortItem {
    uint64_t key;
    uint64_t position;
};
__host__ __device__ inline bool operator<(const SortItem &a, const SortItem &b)
{
    return a.key < b.key || (a.key == b.key && a.position < b.position);
}

/* Launches sorts of lines of n items each: *sorted is where they are then, items or tmp. */
extern "C" int cuda_sort_pairs(Call *c, SortItem *items, SortItem *tmp, int64_t lines, int64_t n,
                               SortItem **sorted);
extern "C" int cuda_sort_words(Call *c, uint64_t *items, uint64_t *tmp, int64_t lines, int64_t n,
                               uint64_t **sorted);

/* ---- several elements for one place (index_put.cu) ---- */

typedef enum { PUT_LAST, PUT_SUM, PUT_ANY, PUT_GREATEST, PUT_LEAST } PutKind;

/* Output 0 of contiguous elements begins as operand 0. */
extern "C" int cuda_copy_operand(Call *c);

/* Bytes of workspace to put `count` positions. */
extern "C" int64_t cuda_put_nwork(int64_t count);

/* Puts elements of a source to output 0 by positions. */
struct Put {
    PutKind kind;
    WalkOf<1> at;     /* the positions in the source */
    WalkOf<2> column; /* the elements at one position: in output 0 and in the source */
};
enum { NOWHERE = -1 };

/* At the beginning of c->work, of cuda_put_nwork() bytes, is an item for each position: where in
 * output 0 its first element goes (NOWHERE: none does), and its number. */
extern "C" int cuda_put_sorted(Call *c, const Put &p, const Tensor &source);

/* y after x was put to it. */
template <typename T> __device__ inline T put_sum(T y, T x)
{
    if constexpr (sizeof(T) == sizeof(int32_t) && (T)0.5 == 0)
        return (T)((uint32_t)y + (uint32_t)x);
    else if constexpr ((T)0.5 == 0)
        return (T)((uint64_t)y + (uint64_t)x);
    else
        return y + x;
}

template <typename T> __device__ inline T put_other(PutKind kind, T y, T x)
{
    auto a = wide(y), b = wide(x);
    switch (kind) {
    case PUT_GREATEST: return b > a || b != b ? x : y;
    case PUT_LEAST: return b < a || b != b ? x : y;
    case PUT_ANY: return b != 0 || a != 0 ? narrow<T>(1) : y;
    default: return x;
    }
}

#endif
