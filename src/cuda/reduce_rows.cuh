/* Reductions over any axes as rows: those that stay are the rows, those that go a row's elements.
 * Where these are contiguous at the end, packs of float and bf16 are loaded whole; else, and of
 * other dtypes, element by element from wherever they are, for the same bits. */
#ifndef TENON_REDUCE_ROWS_CUH
#define TENON_REDUCE_ROWS_CUH

#include "row_tensor.cuh"

extern "C" {
#include "../op/reduce.h"
}

struct ReducedRows {
    TensorRows kept, gone; /* over the same data; that of `gone` as one row */
    int64_t rows;
    int n;
    bool packed; /* the axes that go are contiguous and aligned to an element */
};

/* The axes of t in `mask`. */
static inline Tensor axes_in(const Tensor *t, unsigned mask)
{
    Tensor y = {.data = t->data, .dtype = t->dtype};
    for (int d = 0; d < t->rank; d++)
        if (mask >> d & 1) {
            y.dim[y.rank] = t->dim[d];
            y.stride[y.rank++] = t->stride[d];
        }
    return y;
}

static inline ReducedRows reduced_rows(const Call *c)
{
    unsigned mask = reduce_axes(c->node);
    Tensor kept = axes_in(&c->in[0], ~mask), gone = axes_in(&c->in[0], mask);
    return {rows_of(&kept, kept.rank), rows_of(&gone, gone.rank), tensor_nelem(&kept),
            (int)tensor_nelem(&gone), tensor_contiguous(&gone)};
}

static inline bool reduced_accepts(const Call *c)
{
    Tensor gone = axes_in(&c->in[0], reduce_axes(c->node));
    return row_length_ok(tensor_nelem(&gone));
}

/* The elements `gone`, from number `first` on, of a row of `kept`: of float or bf16 and contiguous,
 * or of Any. */
template <class E> struct GoneRow {
    typedef wide_t<E> W;
    static constexpr int ahead = 64 / sizeof(Pack<E>); /* packs that are loaded together */
    const E *p;
    __device__ GoneRow(const TensorRows &kept, const TensorRows &, int64_t row, int64_t first = 0)
        : p((const E *)(const void *)kept.data + row_offset(kept, row) + first)
    {
    }
    __device__ Pack<W> load(int i, int count) const
    {
        if (count == PACK)
            return wide_pack(load_pack_across(p + i));
        Pack<W> x = {};
#pragma unroll
        for (int v = 0; v < PACK; v++)
            if (v < count)
                x.v[v] = wide(p[i + v]);
        return x;
    }
    __device__ W at(int64_t i) const
    {
        return wide(p[i]);
    }
};

/* Elements of E in rows that begin at multiples of 16 bytes. */
template <class E> struct Aligned {
};
template <class E> struct Wide<Aligned<E>> {
    typedef wide_t<E> type;
};
template <class E> struct GoneRow<Aligned<E>> : GoneRow<E> {
    using GoneRow<E>::GoneRow;
    __device__ Pack<wide_t<E>> load(int i, int count) const
    {
        return count == PACK ? wide_pack(load_pack(this->p + i)) : GoneRow<E>::load(i, count);
    }
};

/* A pack of elements from number i on. */
template <typename W>
__device__ __attribute__((noinline)) void load_gone(const char *p, const TensorRows &gone,
                                                    int64_t i, int count, Pack<W> *x)
{
#pragma unroll 1
    for (int v = 0; v < count; v++)
        x->v[v] = load_any<W>(p + row_offset(gone, i + v) * size_of(gone.dtype), gone.dtype);
}

template <typename W_> struct GoneRow<Any<W_>> {
    typedef W_ W;
    static constexpr int ahead = 1;
    const char *p;
    const TensorRows &gone;
    int64_t first;
    __device__ GoneRow(const TensorRows &kept, const TensorRows &g, int64_t row, int64_t from = 0)
        : p(kept.data + row_offset(kept, row) * size_of(kept.dtype)), gone(g), first(from)
    {
    }
    __device__ W at(int64_t i) const
    {
        return load_any<W>(p + row_offset(gone, first + i) * size_of(gone.dtype), gone.dtype);
    }
    __device__ Pack<W> load(int i, int count) const
    {
        Pack<W> x = {};
        load_gone(p, gone, first + i, count, &x);
        return x;
    }
};

template <class E, class F> static inline int by_reduced_team(int64_t n, F f)
{
    return n <= WARP_ROW    ? f(E{}, Team<WARP, 0>{})
           : n <= SHORT_ROW ? f(E{}, Team<256, 0>{})
                            : f(E{}, Team<512, 0>{});
}

/* Whether each row begins at a multiple of 16 bytes. */
static inline bool begins_aligned(const TensorRows &r)
{
    bool ok = (uintptr_t)r.data % sizeof(Quad) == 0;
    for (int d = 0; d < r.rank; d++)
        ok = ok && r.stride[d] * size_of(r.dtype) % (int)sizeof(Quad) == 0;
    return ok;
}

/* f with the type of packed elements and a team. Long rows that begin aligned, as logits do, are
 * read by half the instructions. */
template <class E, class F> static inline int by_packed(const ReducedRows &a, F f)
{
    if (a.n > SHORT_ROW && begins_aligned(a.kept))
        return f(Aligned<E>{}, Team<512, 0>{});
    return by_reduced_team<E>(a.n, f);
}

/* f with the type of elements and a team. */
template <class F> static inline int by_reduced(DType d, const ReducedRows &a, F f)
{
    if (a.packed && d == F32)
        return by_packed<float>(a, f);
    if (a.packed && d == BF16)
        return by_packed<bf16>(a, f);
    return d == F64 ? by_reduced_team<Any<double>>(a.n, f) : by_reduced_team<Any<float>>(a.n, f);
}

#endif
