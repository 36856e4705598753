/* Helpers of kernels along rows: a tensor as rows of contiguous elements, and reductions in a fixed
 * number of lanes (partial sums), which compilers vectorise without changing the order of
 * additions: the same bits on every instruction set and for every partition of the rows. */
#ifndef TENON_ROWS_H
#define TENON_ROWS_H

#include "tensor_rows.h"
#include "vmath.h"

enum { LANES = 32 }; /* two vectors of AVX-512, so that one addition does not wait for the last */

/* Runs the statement for each element `at` of n, in lane `lane` = at % LANES: whole groups of
 * LANES, then the rest. Lanes must not depend on each other. */
#define EACH_LANE(n, at, lane, ...) EACH_LANE_AND(n, at, lane, (void)0, __VA_ARGS__)

/* The same, and `ahead` before each group, whose first element is `group`. */
#define EACH_LANE_AND(n, at, lane, ahead, ...)         \
    do {                                               \
        int64_t group = 0;                             \
        for (; group + LANES <= (n); group += LANES) { \
            ahead;                                     \
            INDEPENDENT                                \
            for (int lane = 0; lane < LANES; lane++) { \
                const int64_t at = group + lane;       \
                __VA_ARGS__;                           \
            }                                          \
        }                                              \
        for (int lane = 0; lane < (n)-group; lane++) { \
            const int64_t at = group + lane;           \
            __VA_ARGS__;                               \
        }                                              \
    } while (0)

/* ---- long rows of large tensors ----
 *
 * A row is gone through more than once, and while it is in the cache memory has nothing to do: so
 * the next one is fetched meanwhile, and results go past the caches where they are too large for
 * them. */

enum { CHUNK = 256 }; /* elements, a multiple of LANES */

/* Elements [at, at + n) of size bytes, into the second cache; nothing where row is NULL. */
INLINE void fetch_ahead(const void *row, int64_t at, int64_t n, int size)
{
    for (int64_t i = 0; i < n * size && row; i += 64)
        __builtin_prefetch((const char *)row + at * size + i, 0, 2);
}

/* A group of LANES of them. */
INLINE void fetch_group(const void *row, int64_t at, int size)
{
    for (int i = 0; i < LANES * size; i += 64)
        __builtin_prefetch((const char *)row + at * size + i, 0, 2);
}

/* The elements of a tensor known to be f32. */
INLINE float *f32(const Tensor *t)
{
    return (float *)(void *)t->data;
}

/* The element of t at an offset. */
INLINE void *element(const Tensor *t, int64_t at)
{
    return t->data + at * dtype_size(t->dtype);
}

/* Kernels for f32 rows, bf16 rows beside f32 weights, and bf16 alone: FN_f32, FN_mixed, FN_bf16. */
#define ROWS_BY_DTYPE(x, w, fn) ((x) == F32 ? fn##_f32 : (w) == F32 ? fn##_mixed : fn##_bf16)
INLINE bool rows_dtypes(DType x, DType w)
{
    return x == F32 ? w == F32 : x == BF16 && (w == F32 || w == BF16);
}

/* For references: the element at row-major position i, any dtype and strides. */
INLINE double get_at(const Tensor *t, int64_t i)
{
    return tensor_get(t, tensor_linear(t, i));
}

INLINE void set_at(const Tensor *t, int64_t i, double x)
{
    tensor_set(t, tensor_linear(t, i), x);
}

/* The rows of a tensor, any strides: leading axes, merged where their strides allow. */
INLINE Rows rows_of(const Tensor *t, int lead)
{
    return row_axes(t, lead, -1);
}

/* Rows of n elements that make a part worth a thread. */
INLINE int64_t row_grain(int64_t n)
{
    return MAX(1, 16384 / MAX(n, 1));
}

/* Rows in a block whose sum over rows is formed apart: at least 16, at most 64 blocks. */
INLINE int64_t row_block(int64_t rows)
{
    return MAX(16, (rows + 63) / 64);
}

/* y[j] = sum over r of x[r * stride + j], in the order of r. */
INLINE void rows_sum(const float *x, int64_t rows, int64_t stride, float *restrict y, int64_t n)
{
    memset(y, 0, sizeof *y * (size_t)n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            y[j] += x[r * stride + j];
}

/* The same for columns [lo, hi) of x into those of a row y in f32 or bf16. */
INLINE void rows_sum_to(const Tensor *y, const float *x, int64_t rows, int64_t stride, int64_t lo,
                        int64_t hi)
{
    enum { STRIP = 256 };
    float strip[STRIP];
    if (y->dtype == F32) {
        rows_sum(x + lo, rows, stride, f32(y) + lo, hi - lo);
        return;
    }
    for (; lo < hi; lo += STRIP) {
        int64_t n = MIN(STRIP, hi - lo);
        rows_sum(x + lo, rows, stride, strip, n);
        for (int64_t j = 0; j < n; j++)
            v_store(y->data, lo + j, strip[j], y->dtype);
    }
}

/* The sum of LANES partial sums, by halves, of which the last two stay in registers. */
INLINE float lanes_sum(const float *s)
{
    typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));
    const Quad *q = (const Quad *)s;
    Quad sum = ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
    sum += __builtin_shufflevector(sum, sum, 2, 3, 2, 3);
    return sum[0] + sum[1];
}

/* The same in double; s is overwritten. */
INLINE double lanes_sum_f64(double *s)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

/* Element i, exactly; not of I64, U8 and F16. */
INLINE double load_f64(const void *x, int64_t i, DType d)
{
    switch (d) {
    case F64: return ((const double *)x)[i];
    case I32: return ((const int32_t *)x)[i];
    case BOOL: return ((const uint8_t *)x)[i] != 0;
    default: return (double)v_load(x, i, d);
    }
}

/* Whether y, which may be in the place of x, is better written past the caches. */
INLINE bool tensor_past(const Tensor *y, const Tensor *x)
{
    return y->data != x->data && stream_worth(tensor_nelem(y) * dtype_size(y->dtype));
}

#endif
