/* Shared by the CUDA kernels of flash attention and its backward: rows of heads, and products of
 * any dtype, size and strides. Those of bf16 on tensor cores are in flash_warps.cuh. */
#ifndef TENON_FLASH_CUH
#define TENON_FLASH_CUH

#include "cuda.cuh"

extern "C" {
#include "../op/flash.h"
}

#include <math.h>

/* ---- rows of heads ---- */

/* A [B, T, H, D] tensor; steps in elements. */
struct HeadTensor {
    char *data;
    int64_t batch, row, head, element;
    DType dtype;
    bool pieces; /* rows are whole pieces of 16 bytes, aligned */
};

static inline HeadTensor heads_of(const Tensor &t)
{
    int64_t each = 16 / dtype_size(t.dtype);
    bool pieces = (uintptr_t)t.data % 16 == 0 && t.dim[3] % each == 0 && t.stride[3] == 1;
    for (int d = 0; d < 3; d++)
        pieces = pieces && (t.dim[d] == 1 || t.stride[d] % each == 0);
    return {t.data, t.stride[0], t.stride[1], t.stride[2], t.stride[3], t.dtype, pieces};
}

/* Statistics of queries, [B, H, T] of the dtype that kernels compute in. */
struct Stats {
    char *data;
    int64_t batch, head, row;
};

static inline Stats stats_of(const Tensor &t)
{
    return {t.data, t.stride[0], t.stride[1], t.stride[2]};
}

template <typename W> __device__ inline W *stats_at(const Stats &x, int64_t b, int64_t h, int64_t i)
{
    return (W *)(void *)x.data + b * x.batch + h * x.head + i * x.row;
}

/* A mask of floats, added to scores; step 0 where one stands for all. */
struct Mask {
    const char *data; /* NULL: none */
    int64_t step[4];
    DType dtype;
};

static inline Mask mask_of(const Tensor *t)
{
    Mask m = {};
    for (int d = 0; t && d < 4; d++)
        m.step[d] = t->dim[d] == 1 ? 0 : t->stride[d];
    if (t) {
        m.data = t->data;
        m.dtype = t->dtype;
    }
    return m;
}

template <typename W> __device__ inline W load(const char *data, DType dtype, int64_t at)
{
    BY_FLOAT(dtype, T, return (W)wide(((const T *)(const void *)data)[at]));
    return 0;
}

template <typename W> __device__ inline void store(char *data, DType dtype, int64_t at, W x)
{
    BY_FLOAT(dtype, T, ((T *)(void *)data)[at] = narrow<T>(x));
}

__device__ inline int64_t heads_at(const HeadTensor &x, int64_t b, int64_t i, int64_t h)
{
    return b * x.batch + i * x.row + h * x.head;
}

template <typename W>
__device__ inline W mask_at(const Mask &x, int64_t b, int64_t h, int64_t query, int64_t key)
{
    return load<W>(x.data, x.dtype,
                   b * x.step[0] + h * x.step[1] + query * x.step[2] + key * x.step[3]);
}

/* flash_level, flash_masked_lse and flash_take_level (op/flash.h) */
template <typename W> __device__ inline W least_level()
{
    return (W)(1LL << (sizeof(W) == 8 ? FLASH_LEAST_F64 : FLASH_LEAST));
}

template <typename W> __device__ inline W level_of(W score)
{
    W x = score * -(W)FLASH_SHARE;
    int exponent;
    if (!(x >= least_level<W>()) || isinf(x))
        return score;
    frexp(x, &exponent);
    return -ldexp((W)1, (exponent - 1 < FLASH_MOST ? exponent - 1 : FLASH_MOST) + 2);
}

template <typename W> __device__ inline W masked_lse(W top, W log_sum)
{
    bool level = top <= -4 * least_level<W>();
    return level ? top - top * (log_sum / 128) : top + log_sum;
}

template <typename W> __device__ inline W take_level(W &lse)
{
    int exponent;
    if (!(lse < -2 * least_level<W>()) || isinf(lse))
        return 0;
    W share = frexp(-lse, &exponent);
    W level = -ldexp((W)1, exponent - (share == (W)0.5));
    lse = (1 - lse / level) * 128;
    return level;
}

/* ---- where the document of each query begins ---- */

static const char start_fault[] =
    "start of row %lld, position %lld: expected %lld to that position, found %lld";

/* The starts of documents in dense rows; NULL: no documents share them. */
static inline const int64_t *starts_of(const Call *c, int at)
{
    const Tensor *starts = flash_starts(c, at);
    return starts ? (const int64_t *)(const void *)starts->data : NULL;
}

static inline bool starts_dense(const Call *c, int at)
{
    const Tensor *starts = flash_starts(c, at);
    return !starts || tensor_contiguous(starts);
}

/* The first key that a query of row b sees; 0 where the start is negative, which is noted. */
__device__ inline int64_t start_at(const int64_t *starts, const Flash &f, int64_t b, int64_t query)
{
    return starts ? max(starts[b * f.queries + query], (int64_t)0) : 0;
}

enum { CHECKERS = 256 }; /* threads of one block */

/* Notes the first start, by its place, that is before that of the query before or behind its query.
 */
static __global__ void check_starts(const int64_t *starts, Flash f, Fault *fault, int step,
                                    int what)
{
    __shared__ int64_t wrong[CHECKERS];
    int64_t n = f.batch * f.queries, i = threadIdx.x;
    for (; i < n; i += CHECKERS) {
        int64_t t = i % f.queries, least = t ? starts[i - 1] : 0;
        if (starts[i] < least || starts[i] > t)
            break;
    }
    wrong[threadIdx.x] = i < n ? i : n;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int k = 1; k < CHECKERS; k++)
        i = wrong[k] < i ? wrong[k] : i;
    int64_t t = i % f.queries;
    if (i < n)
        note(fault, step, what, i / f.queries, t, t ? starts[i - 1] : 0, starts[i]);
}

static inline int run_check_starts(Call *c, const int64_t *starts, const Flash &f, int what)
{
    return starts ? LAUNCH(c, check_starts, 1, CHECKERS, 0, starts, f, c->fault, c->step, what) : 0;
}

__device__ inline bool sees(const Flash &f, int64_t query, int64_t key)
{
    return query < f.queries && key < f.keys && (!f.causal || key <= query + f.offset);
}

/* ---- products of blocks of 256 threads, 16 x 16, in f32 or f64 (any dtype, size and strides) ----
 */

enum {
    SIDE = 16,             /* threads */
    BLOCK = SIDE * SIDE,   /* of them */
    STEP = 16,             /* depth of what is in shared memory */
    EACH = 4,              /* columns of a result for a thread */
    COLUMNS = SIDE * EACH, /* of a block */
    PAD = 4,
};

__device__ inline float multiply_add(float x, float y, float z)
{
    return fmaf(x, y, z);
}
__device__ inline double multiply_add(double x, double y, double z)
{
    return fma(x, y, z);
}

/* Rows [first, n) of one head. */
struct HeadRows {
    HeadTensor x;
    int64_t b, h, first, n, size;
};

template <typename W> __device__ inline W element_of(const HeadRows &x, int64_t i, int64_t e)
{
    if (x.first + i >= x.n || e >= x.size)
        return 0;
    return load<W>(x.x.data, x.x.dtype, heads_at(x.x, x.b, x.first + i, x.h) + e * x.x.element);
}

/* c[r][k] += the sum over STEP of a[.][SIDE ROWS] b[.][SIDE COLS], the thread's ROWS x COLS. */
template <typename W, int ROWS, int COLS>
__device__ inline void multiply_step(W (&c)[ROWS][COLS], const W (*a)[SIDE * ROWS + PAD],
                                     const W (*b)[SIDE * COLS + PAD])
{
    int row = threadIdx.x / SIDE * ROWS, column = threadIdx.x % SIDE * COLS;
#pragma unroll 4
    for (int k = 0; k < STEP; k++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
                c[i][j] = multiply_add(a[k][row + i], b[k][column + j], c[i][j]);
}

/* s = x y^T of SIDE R rows each; xs and ys are free after a barrier. */
template <typename W, int R>
__device__ void plain_scores(W (&s)[R][R], const HeadRows &x, const HeadRows &y,
                             W (*xs)[SIDE * R + PAD], W (*ys)[SIDE * R + PAD])
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++)
            s[i][j] = 0;
    for (int64_t e0 = 0; e0 < x.size; e0 += STEP) {
        __syncthreads();
        for (int at = threadIdx.x; at < SIDE * R * STEP; at += BLOCK) {
            xs[at % STEP][at / STEP] = element_of<W>(x, at / STEP, e0 + at % STEP);
            ys[at % STEP][at / STEP] = element_of<W>(y, at / STEP, e0 + at % STEP);
        }
        __syncthreads();
        multiply_step(s, xs, ys);
    }
}

/* acc += p y for COLUMNS elements of y's rows from `column` on, with p[row of y][SIDE R] in shared
 * memory. */
template <typename W, int R>
__device__ void plain_values(W (&acc)[R][EACH], const W (*p)[SIDE * R + PAD], const HeadRows &y,
                             int64_t column, W (*ys)[COLUMNS + PAD])
{
    for (int j = 0; j < SIDE * R; j += STEP) {
        __syncthreads();
        for (int at = threadIdx.x; at < STEP * COLUMNS; at += BLOCK)
            ys[at / COLUMNS][at % COLUMNS] =
                element_of<W>(y, j + at / COLUMNS, column + at % COLUMNS);
        __syncthreads();
        multiply_step(acc, p + j, ys);
    }
}

/* Puts the thread's R x R block of p, turned, where plain_values() reads it. */
template <typename W, int R>
__device__ inline void put_turned(W (*to)[SIDE * R + PAD], const W (&p)[R][R])
{
    int row = threadIdx.x / SIDE * R, column = threadIdx.x % SIDE * R;
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++)
            to[column + j][row + i] = p[i][j];
}

/* The thread's rows of acc, scaled, as elements from `column` on. */
template <typename W, int R>
__device__ void plain_store(const W (&acc)[R][EACH], const W (&scale)[R], const HeadRows &y,
                            int64_t column)
{
    for (int i = 0; i < R; i++) {
        int64_t row = y.first + threadIdx.x / SIDE * R + i;
        for (int j = 0; j < EACH && row < y.n; j++) {
            int64_t e = column + threadIdx.x % SIDE * EACH + j;
            if (e < y.size)
                store<W>(y.x.data, y.x.dtype, heads_at(y.x, y.b, row, y.h) + e * y.x.element,
                         acc[i][j] * scale[i]);
        }
    }
}

/* Where a block of a plain kernel is: blockIdx.x counts tiles of rows, heads, batches; blockIdx.y
 * the columns of the result. */
struct PlainPlace {
    int64_t b, h, first, column;
};

__device__ inline PlainPlace plain_place(int64_t rows, int64_t heads, int tile)
{
    int64_t ntile = (rows + tile - 1) / tile, head = blockIdx.x / ntile;
    return {head / heads, head % heads, (int64_t)(blockIdx.x % ntile) * tile,
            (int64_t)blockIdx.y * COLUMNS};
}

static inline dim3 plain_grid(int64_t batch, int64_t rows, int64_t heads, int64_t size, int tile)
{
    return dim3((unsigned)((rows + tile - 1) / tile * heads * batch), grid_for(size, COLUMNS));
}

#endif
