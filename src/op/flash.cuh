/* What the CUDA kernels of flash attention and its backward share: rows of heads, tiles of bf16 in
 * shared memory, and their products by warps on tensor cores.
 *
 * A warp's product is mma.sync m16n8k16 with sums in f32. Where lanes hold what, by g = lane / 4
 * and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"): of a sum of 16 rows and 8
 * columns elements 0 and 1 are columns 2t and 2t + 1 of row g, elements 2 and 3 those of row g + 8.
 * Two such sums side by side, rounded, are the left operand of the next product, so that
 * probabilities never leave registers. */
#ifndef TENON_FLASH_CUH
#define TENON_FLASH_CUH

#include "cuda.cuh"

extern "C" {
#include "flash.h"
}

#include <math.h>

/* ---- rows of heads ---- */

/* A [B, T, H, D] tensor; steps in elements. */
struct Heads {
    char *data;
    int64_t batch, row, head, element;
    DType dtype;
    bool pieces; /* rows are whole pieces of 16 bytes, aligned */
};

static inline Heads heads_of(const Tensor &t)
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

__device__ inline int64_t heads_at(const Heads &x, int64_t b, int64_t i, int64_t h)
{
    return b * x.batch + i * x.row + h * x.head;
}

template <typename W>
__device__ inline W mask_at(const Mask &x, int64_t b, int64_t h, int64_t query, int64_t key)
{
    return load<W>(x.data, x.dtype,
                   b * x.step[0] + h * x.step[1] + query * x.step[2] + key * x.step[3]);
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
struct Rows {
    Heads x;
    int64_t b, h, first, n, size;
};

template <typename W> __device__ inline W element_of(const Rows &x, int64_t i, int64_t e)
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

/* s = x y^T of SIDE R rows each; xs and ys are free behind a barrier. */
template <typename W, int R>
__device__ void plain_scores(W (&s)[R][R], const Rows &x, const Rows &y, W (*xs)[SIDE * R + PAD],
                             W (*ys)[SIDE * R + PAD])
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
__device__ void plain_values(W (&acc)[R][EACH], const W (*p)[SIDE * R + PAD], const Rows &y,
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
__device__ void plain_store(const W (&acc)[R][EACH], const W (&scale)[R], const Rows &y,
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

/* ---- instructions ---- */

#ifdef TN_SIMT
enum { SIMT_ROWS = SIMT_OWN, SIMT_MATRICES };

__device__ inline float element_at(uint32_t pair, int i)
{
    return wide(bf16{(uint16_t)(pair >> 16 * i)});
}

__device__ inline void load_matrices(uint32_t (&r)[4], const char *row)
{
    int lane = simt_lane();
    const char *const *rows = simt_all(SIMT_ALL, SIMT_ROWS, row);
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], rows[8 * i + lane / 4] + lane % 4 * 4, 4);
}

__device__ inline void load_matrices_turned(uint32_t (&r)[4], const char *row)
{
    int lane = simt_lane();
    const char *const *rows = simt_all(SIMT_ALL, SIMT_ROWS, row);
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 2; e++)
            memcpy((char *)&r[i] + 2 * e, rows[8 * i + lane % 4 * 2 + e] + lane / 4 * 2, 2);
}

struct Operands {
    uint32_t a[4], b[2];
};

__device__ inline void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    Operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const Operands *of = simt_all(SIMT_ALL, SIMT_MATRICES, mine);
    int g = simt_lane() / 4, t = simt_lane() % 4;
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++) {
            const Operands *left = &of[4 * g + k % 8 / 2];
            const Operands *right = &of[4 * (2 * t + e % 2) + k % 8 / 2];
            c[e] +=
                element_at(left->a[k / 8 * 2 + e / 2], k % 2) * element_at(right->b[k / 8], k % 2);
        }
}

__device__ inline void copy16(char *to, const char *from, bool there)
{
    memset(to, 0, 16);
    memcpy(to, from, there ? 16 : 0);
}
__device__ inline void copy4(char *to, const char *from, bool there)
{
    memset(to, 0, 4);
    memcpy(to, from, there ? 4 : 0);
}
__device__ inline void copies_wait()
{
}

__device__ inline float exp2_fast(float x)
{
    return exp2f(x);
}

__device__ inline uint32_t pair_of(float low, float high)
{
    return narrow<bf16>(low).bits | (uint32_t)narrow<bf16>(high).bits << 16;
}
#else
/* Four matrices of 8 x 8, of which this lane gives the address of row lane % 8 of matrix lane / 8,
 * and gets elements 2t and 2t + 1 of row g of each. */
__device__ inline void load_matrices(uint32_t (&r)[4], const char *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same, and gets elements g of rows 2t and 2t + 1. */
__device__ inline void load_matrices_turned(uint32_t (&r)[4], const char *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* c[16][8] += a[16][16] b[16][8] */
__device__ inline void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes, or 4, into shared memory, zeros where `there` is false; there after copies_wait(). */
__device__ inline void copy16(char *to, const char *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ inline void copy4(char *to, const char *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}
__device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 2^x, 0 far below. */
__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline uint32_t pair_of(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
#endif

/* ---- tiles ---- */

enum { WARPS = 4, WARP_BLOCK = 32 * WARPS };

__device__ inline int lane_number()
{
    return threadIdx.x % 32;
}

/* The byte of a 16-byte piece in a tile of ROWS rows: panels of 64 elements, 128 bytes a row, one
 * behind the other; the pieces of a row are exchanged by its number, so that eight rows' pieces lie
 * in different banks. */
template <int ROWS> __device__ inline int piece_at(int row, int piece)
{
    return ((piece >> 3) * ROWS + row) * 128 + ((piece ^ row) & 7) * 16;
}

/* Elements of a row where it is not aligned, zeros behind the first n. */
__device__ inline void gather_piece(char *to, const uint16_t *from, int64_t step, int n)
{
    uint16_t x[8];
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = e < n ? from[e * step] : 0;
    memcpy(__builtin_assume_aligned(to, 16), x, 16);
}

/* Rows [x.first, x.first + ROWS) with D elements, zeros outside of x, into a tile; asynchronous. */
template <int ROWS, int D> __device__ inline void load_tile(char *tile, const Rows &x)
{
    constexpr int PIECES = D / 8, APART = WARP_BLOCK / PIECES;
    int piece = threadIdx.x % PIECES, row0 = threadIdx.x / PIECES, left = (int)x.size - 8 * piece;
    const char *head = x.x.data + 2 * heads_at(x.x, x.b, x.first, x.h);
    const char *from = head + 2 * (row0 * x.x.row + 8 * piece * x.x.element);
    if (x.x.pieces) {
#pragma unroll
        for (int row = row0; row < row0 + ROWS; row += APART) {
            bool there = x.first + row < x.n && left > 0;
            copy16(tile + piece_at<ROWS>(row, piece), there ? from : x.x.data, there);
            from += 2 * APART * x.x.row;
        }
        return;
    }
#pragma unroll 1
    for (int row = row0; row < ROWS; row += APART) {
        gather_piece(tile + piece_at<ROWS>(row, piece), (const uint16_t *)(const void *)from,
                     x.x.element, x.first + row < x.n ? left : 0);
        from += 2 * APART * x.x.row;
    }
}

/* What a lane needs of rows [row, row + 16) and elements [16 k, 16 k + 16) as a left operand. */
template <int ROWS>
__device__ inline void load_left(uint32_t (&a)[4], const char *tile, int row, int k)
{
    int lane = lane_number();
    load_matrices(a, tile + piece_at<ROWS>(row + lane % 16, 2 * k + lane / 16));
}

/* s[16 MB][8 NB] = x y^T, x's operands by left(a, m, k), y the first 8 NB rows of a tile. */
template <int D, int YROWS, int MB, int NB, typename Left>
__device__ inline void multiply_scores(float (&s)[MB][NB][4], const char *ys, Left left)
{
    int lane = lane_number();
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[MB][4], b[4];
#pragma unroll
        for (int m = 0; m < MB; m++)
            left(a[m], m, k);
#pragma unroll
        for (int n = 0; n < NB; n += 2) {
            load_matrices(
                b, ys + piece_at<YROWS>(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < MB; m++) {
                multiply_matrices(s[m][n], a[m], b[0], b[1]);
                multiply_matrices(s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* acc[16 MB][D] += p[16 MB][8 NB] y, p rounded. */
template <int D, int YROWS, int MB, int NB>
__device__ inline void multiply_values(float (&acc)[MB][D / 8][4], const float (&p)[MB][NB][4],
                                       const char *ys)
{
    int lane = lane_number();
#pragma unroll
    for (int k = 0; k < NB; k += 2) {
        uint32_t a[MB][4], b[4];
#pragma unroll
        for (int m = 0; m < MB; m++) {
            a[m][0] = pair_of(p[m][k][0], p[m][k][1]);
            a[m][1] = pair_of(p[m][k][2], p[m][k][3]);
            a[m][2] = pair_of(p[m][k + 1][0], p[m][k + 1][1]);
            a[m][3] = pair_of(p[m][k + 1][2], p[m][k + 1][3]);
        }
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            load_matrices_turned(b, ys + piece_at<YROWS>(8 * k + lane % 16, d + lane / 16));
#pragma unroll
            for (int m = 0; m < MB; m++) {
                multiply_matrices(acc[m][d], a[m], b[0], b[1]);
                multiply_matrices(acc[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The warp's rows of acc, scaled by scale[m][half], into rows `row` on of a tile that no other warp
 * reads, and from there to y. */
template <int D, int ROWS, int MB>
__device__ inline void store_rows(const float (&acc)[MB][D / 8][4], const float (&scale)[MB][2],
                                  char *tile, int row, const Rows &y)
{
    constexpr int PIECES = D / 8;
    int lane = lane_number();
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                const float *x = &acc[m][d][2 * half];
                uint32_t two = pair_of(x[0] * scale[m][half], x[1] * scale[m][half]);
                memcpy(tile + piece_at<ROWS>(row + 16 * m + 8 * half + lane / 4, d) + lane % 4 * 4,
                       &two, 4);
            }
    __syncwarp();
    int piece = lane % PIECES, left = (int)y.size - 8 * piece;
#pragma unroll 1
    for (int i = row + lane / PIECES; i < row + 16 * MB; i += 32 / PIECES) {
        if (y.first + i >= y.n)
            continue;
        const char *from = tile + piece_at<ROWS>(i, piece);
        int64_t at = heads_at(y.x, y.b, y.first + i, y.h) + 8 * piece * y.x.element;
        if (y.x.pieces && left > 0)
            *(uint4 *)(void *)(y.x.data + 2 * at) = *(const uint4 *)(const void *)from;
        for (int e = 0; !y.x.pieces && e < 8 && e < left; e++)
            memcpy(y.x.data + 2 * (at + e * y.x.element), from + 2 * e, 2);
    }
}

/* ---- the order of blocks ---- */

/* Blocks are tiles of `nhead` heads. Sections of heads whose rows fit the second cache follow each
 * other; within one the longest tiles of all its heads come first. */
struct Order {
    int64_t nhead, ntile, section;
};

static inline Order order_of(int64_t nhead, int64_t ntile, int64_t nbytes_head)
{
    enum { CACHE = 16 << 20 };
    int64_t fit = CACHE / (nbytes_head > 0 ? nbytes_head : 1);
    return {nhead, ntile, fit > 1 ? fit : 1};
}

struct Task {
    int64_t head, tile; /* tile 0 is the longest */
};

__device__ inline Task task_of(const Order &o)
{
    int64_t each = o.section * o.ntile, section = blockIdx.x / each, at = blockIdx.x % each;
    int64_t left = o.nhead - section * o.section, here = left < o.section ? left : o.section;
    return {section * o.section + at % here, at / here};
}

/* Whether warps can do it: bf16 whose heads are not too large, no mask. */
static inline bool warps_accept(const Call *c, int first)
{
    const Tensor *q = &c->in[first], *k = &c->in[first + 1];
    return q->dtype == BF16 && q->dim[3] <= 128 && q->dim[1] < 1 << 30 && k->dim[1] < 1 << 30;
}

/* Lets blocks of the kernel have so much dynamic shared memory. */
template <typename Kernel> static inline void allow_shared(Kernel *kernel, int nbytes)
{
#ifdef TN_SIMT
    (void)kernel;
    (void)nbytes;
#else
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, nbytes);
#endif
}

#endif
