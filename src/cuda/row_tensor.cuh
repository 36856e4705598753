/* Kernels along rows share, beyond what rows.cuh does with one row: rows of tensors of any strides
 * and dtype, the choice of a team, a grid over rows.
 *
 * Kernels are compiled for rows of float and bf16 that registers hold and that are aligned to 16
 * bytes, and once more for rows of Any<W>: of any dtype, length and strides, computed in W. Both
 * give the same bits. */
#ifndef TENON_ROW_TENSOR_CUH
#define TENON_ROW_TENSOR_CUH

#include "cuda.cuh"
#include "rows.cuh"

extern "C" {
#include "../op/tensor_rows.h"
}

/* A tensor's rows; elements of a row are `step` apart. */
struct TensorRows : Rows {
    char *data;
    DType dtype;
    int64_t step;
};

template <typename W> struct Any {
    typedef W type;
};
template <typename W> struct Wide<Any<W>> {
    typedef W type;
};
template <class E> constexpr bool is_any = false;
template <typename W> constexpr bool is_any<Any<W>> = true;

/* The rows of t along its axes from `lead` on, which are one run of even steps; or, where `axis`
 * is not -1, along that axis alone. */
static inline TensorRows rows_of(const Tensor *t, int lead, int axis = -1)
{
    Rows r = row_axes(t, axis >= 0 ? t->rank : lead, axis);
    return {r, t->data, t->dtype, axis >= 0 ? t->stride[axis] : 1};
}

/* Row lengths that kernels count in int, all packs of a team included. */
static inline bool row_length_ok(int64_t n)
{
    return n < 1 << 30;
}

__device__ inline int64_t row_offset(const Rows &r, int64_t i)
{
    return row_offset(&r, i);
}

/* ---- one element of any dtype ---- */

__host__ __device__ inline int size_of(DType d)
{
    return d == F64 || d == I64 ? 8 : d == F32 || d == I32 ? 4 : d == BF16 || d == F16 ? 2 : 1;
}
template <typename W> __device__ __attribute__((noinline)) W load_any(const char *p, DType d)
{
    switch (d) {
    case F64: return (W) * (const double *)(const void *)p;
    case F32: return (W) * (const float *)(const void *)p;
    case BF16: return (W)wide(*(const bf16 *)(const void *)p);
    case F16: return (W)wide(*(const f16 *)(const void *)p);
    case I64: return (W) * (const int64_t *)(const void *)p;
    case I32: return (W) * (const int32_t *)(const void *)p;
    default: return (W) * (const uint8_t *)(const void *)p;
    }
}
template <typename W> __device__ __attribute__((noinline)) void store_any(char *p, DType d, W x)
{
    switch (d) {
    case F64: *(double *)(void *)p = (double)x; break;
    case F32: *(float *)(void *)p = (float)x; break;
    case BF16: *(bf16 *)(void *)p = narrow<bf16>((float)x); break;
    case F16: *(f16 *)(void *)p = narrow<f16>((float)x); break;
    case I64: *(int64_t *)(void *)p = (int64_t)x; break;
    case I32: *(int32_t *)(void *)p = (int32_t)x; break;
    default: *(uint8_t *)(void *)p = (uint8_t)x;
    }
}

/* A pack of `count` elements, `step` bytes apart. Not inlined, as those above: rare rows need no
 * code of their own in each kernel. */
template <typename W>
__device__ __attribute__((noinline)) void load_apart(const char *p, DType d, int64_t step,
                                                     int count, Pack<W> *x)
{
#pragma unroll 1
    for (int v = 0; v < count; v++)
        x->v[v] = load_any<W>(p + v * step, d);
}
template <typename W>
__device__ __attribute__((noinline)) void store_apart(char *p, DType d, int64_t step, int count,
                                                      const Pack<W> *x)
{
#pragma unroll 1
    for (int v = 0; v < count; v++)
        store_any(p + v * step, d, x->v[v]);
}

/* ---- one row: raw() are packs as in memory, load() what is computed with ---- */

template <class E> struct RowAt {
    typedef wide_t<E> W;
    typedef Pack<E> Raw;
    E *p;
    __device__ RowAt(const TensorRows &x, int64_t row) : p((E *)(void *)x.data + row_offset(x, row))
    {
    }
    __device__ Raw raw(int i, int) const
    {
        return load_pack(p + i);
    }
    __device__ static Pack<W> wide(const Raw &x)
    {
        return wide_pack(x);
    }
    __device__ Pack<W> load(int i, int count) const
    {
        return wide_pack(raw(i, count));
    }
    __device__ void store(int i, int, const Pack<W> &x) const
    {
        store_pack(p + i, narrow_pack<E>(x));
    }
    __device__ W at(int64_t i) const
    {
        return ::wide(p[i]);
    }
};

template <typename W_> struct RowAt<Any<W_>> {
    typedef W_ W;
    typedef Pack<W> Raw;
    char *p;
    DType dtype;
    int64_t step; /* bytes */
    __device__ RowAt(const TensorRows &x, int64_t row)
        : p(x.data + row_offset(x, row) * size_of(x.dtype)), dtype(x.dtype),
          step(x.step * size_of(x.dtype))
    {
    }
    __device__ Raw raw(int i, int count) const
    {
        Raw x = {};
        load_apart(p + i * step, dtype, step, count, &x);
        return x;
    }
    __device__ static Pack<W> wide(const Raw &x)
    {
        return x;
    }
    __device__ Pack<W> load(int i, int count) const
    {
        return raw(i, count);
    }
    __device__ void store(int i, int count, const Pack<W> &x) const
    {
        store_apart(p + i * step, dtype, step, count, &x);
    }
    __device__ W at(int64_t i) const
    {
        return load_any<W>(p + i * step, dtype);
    }
};

/* Weights beside rows of E: one row, which is as wide as these, or f32. */
template <class E> struct WeightAt {
    typedef wide_t<E> W;
    const char *p;
    bool wide;
    __device__ WeightAt(const TensorRows &x) : p(x.data), wide(x.dtype == F32)
    {
    }
    __device__ Pack<W> load(int i, int) const
    {
        return wide ? load_pack((const W *)(const void *)p + i)
                    : wide_pack(load_pack((const E *)(const void *)p + i));
    }
};
template <typename W> struct WeightAt<Any<W>> : RowAt<Any<W>> {
    __device__ WeightAt(const TensorRows &x) : RowAt<Any<W>>(x, 0)
    {
    }
};

/* A row in registers, where the team's steps say that it fits; else it is read each time. */
template <class T, class E> struct HeldRow {
    typedef wide_t<E> W;
    RowAt<E> row;
    typename RowAt<E>::Raw pack[T::held];
    __device__ HeldRow(const T &t, int n, const RowAt<E> &r) : row(r)
    {
        if constexpr (T::steps)
            each_pack(t, n, [&](int i, int count, int k) { pack[k] = row.raw(i, count); });
    }
    __device__ Pack<W> operator()(int i, int count, int k) const
    {
        if constexpr (T::steps)
            return RowAt<E>::wide(pack[k]);
        else
            return row.load(i, count);
    }
};

/* ---- launching ---- */

/* Whether packs of the rows, of n elements, are aligned to 16 bytes. */
static inline bool rows_aligned(const TensorRows &r, int64_t n)
{
    bool ok = n % PACK == 0 && r.step == 1 && (uintptr_t)r.data % sizeof(Quad) == 0;
    for (int d = 0; d < r.rank; d++)
        ok = ok && r.stride[d] * size_of(r.dtype) % (int)sizeof(Quad) == 0;
    return ok;
}

/* f with the type of rows of n elements of a dtype: held where all of them are aligned. */
template <class F> static inline int by_element(DType d, int64_t n, bool aligned, F f)
{
    bool held = aligned && n <= HELD_ROW;
    if (held && d == F32)
        return f((float)0);
    if (held && d == BF16)
        return f(bf16{});
    return d == F64 ? f(Any<double>{}) : f(Any<float>{});
}

/* f with a team for rows of n elements of type E. */
template <class E, class F> static inline int by_team(int64_t n, F f)
{
    constexpr int steps = is_any<E> ? 0 : 4;
    return n <= WARP_ROW    ? f(Team<WARP, steps>{})
           : n <= SHORT_ROW ? f(Team<256, steps>{})
                            : f(Team<512, steps>{});
}

static inline unsigned row_grid(int64_t rows, int64_t n)
{
    return grid_for(rows, row_count(n));
}

/* Bounds of a kernel whose blocks are row_block() threads. */
#define ROW_BOUNDS(T) __launch_bounds__(T::threads == WARP ? row_block(0) : T::threads)

/* The row of a thread of a kernel whose blocks are row_block() threads. */
template <class T> __device__ inline int64_t row_here()
{
    return (int64_t)blockIdx.x * (blockDim.x / T::threads) + team_row<T>();
}

#define ROW_SHARED_MEMORY(name) __shared__ __align__(16) char name[ROW_SHARED]

#endif
