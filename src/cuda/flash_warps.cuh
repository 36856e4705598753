/* Products of bf16 on tensor cores, for flash attention and its backward: tiles in shared memory,
 * and their products by warps or by groups of four of them.
 *
 * A warp's product is mma.sync m16n8k16 with sums in f32. With g = lane / 4 and t = lane % 4 (PTX
 * ISA, "Matrix fragments for mma.m16n8k16") a lane holds, of a sum of 16 rows and 8 columns,
 * columns 2t and 2t + 1 of row g as elements 0 and 1, and those of row g + 8 as elements 2 and 3.
 * Two such sums side by side, rounded, are the left operand of the next product, so that
 * probabilities never leave registers.
 *
 * Hopper's wgmma computes 64 rows by four warps, of which each has 16 in the same places, and reads
 * tiles as they lie. Kernels are written once: where MB, the 16 rows of a warp, is 1 and there is
 * no wgmma, its products are the warps'. */
#ifndef TENON_FLASH_WARPS_CUH
#define TENON_FLASH_WARPS_CUH

#include "flash.cuh"

/* s times f.turn, after which scores are to be scaled by what is above 0 (flash.h). */
template <int MB, int NB> __device__ inline void turn_scores(float (&s)[MB][NB][4], const Flash &f)
{
    if (f.turn == 1)
        return;
#pragma unroll
    for (int i = 0; i < 4 * MB * NB; i++)
        s[i / 4 / NB][i / 4 % NB][i % 4] *= (float)f.turn;
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

struct TileOperands {
    uint32_t a[4], b[2];
};

__device__ inline void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    TileOperands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const TileOperands *of = simt_all(SIMT_ALL, SIMT_MATRICES, mine);
    int g = simt_lane() / 4, t = simt_lane() % 4;
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++) {
            const TileOperands *left = &of[4 * g + k % 8 / 2];
            const TileOperands *right = &of[4 * (2 * t + e % 2) + k % 8 / 2];
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

/* ---- products by warp groups: wgmma, of Hopper alone ---- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WARP_GROUPS 1

/* Describes a tile (below) from `at` on, as wgmma reads it: swizzled rows of 128 bytes, eight of
 * them 1024 bytes apart from the next eight; `panel`: bytes from one panel to the next, where it
 * reads two.
 */
__device__ inline uint64_t describe(const char *at, int panel)
{
    uint64_t where = (uint32_t)__cvta_generic_to_shared(at) >> 4 & 0x3fff;
    return where | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define SUMS_1(io, c, n)  io "f"(c[n][0]), io "f"(c[n][1]), io "f"(c[n][2]), io "f"(c[n][3])
#define SUMS_2(io, c, n)  SUMS_1(io, c, n), SUMS_1(io, c, n + 1)
#define SUMS_4(io, c, n)  SUMS_2(io, c, n), SUMS_2(io, c, n + 2)
#define SUMS_8(io, c, n)  SUMS_4(io, c, n), SUMS_4(io, c, n + 4)
#define SUMS_16(io, c, n) SUMS_8(io, c, n), SUMS_8(io, c, n + 8)

#define PRODUCT_8(io, c, a, b, add)                                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                       \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "     \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
                 "%31}, %32, %33, add, 1, 1, 0, 0;\n}"                                         \
                 : SUMS_8(io, c, 0)                                                            \
                 : "l"(a), "l"(b), "n"(add))
#define PRODUCT_16(io, c, a, b, add)                                                           \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "                      \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "     \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
                 "%31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
                 "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
                 "%61, %62, %63}, %64, %65, add, 1, 1, 0, 0;\n}"                               \
                 : SUMS_16(io, c, 0)                                                           \
                 : "l"(a), "l"(b), "n"(add))

/* c[64][8 n] = a[64][16] b^T, or added, by rows of a and of b; asynchronous. What is only written
 * is no operand: nothing may set it while other products are in flight. */
template <bool ADD> __device__ inline void group_multiply(float (&c)[8][4], uint64_t a, uint64_t b)
{
    if (ADD)
        PRODUCT_8("+", c, a, b, 1);
    else
        PRODUCT_8("=", c, a, b, 0);
}
template <bool ADD> __device__ inline void group_multiply(float (&c)[16][4], uint64_t a, uint64_t b)
{
    if (ADD)
        PRODUCT_16("+", c, a, b, 1);
    else
        PRODUCT_16("=", c, a, b, 0);
}

/* c[64][8 n] += a[64][16] b[16][8 n], a from registers; asynchronous. */
__device__ inline void group_multiply_turned(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
                 : SUMS_8("+", c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void group_multiply_turned(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
                 : SUMS_16("+", c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Around products of warps of MB times 16 rows, of which those with MB 1 are a group's. Before a
 * batch whose registers other instructions have written: */
template <int MB> __device__ inline void group_begin()
{
    if (MB == 1)
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Ends a batch. */
template <int MB> __device__ inline void group_commit()
{
    if (MB == 1)
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits for all batches but the last LEFT. */
template <int MB, int LEFT> __device__ inline void group_wait()
{
    if (MB == 1)
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Keeps what reads the sums of a batch after the wait for it. */
template <int MB, int NB> __device__ inline void group_settle(float (&c)[MB][NB][4])
{
#pragma unroll
    for (int i = 0; MB == 1 && i < 4 * NB; i++)
        asm volatile("" : "+f"(c[0][i / 4][i % 4])::"memory");
}
/* Before the barrier after which products read what this thread has copied. */
template <int MB> __device__ inline void group_publish()
{
    if (MB == 1)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
template <int MB> __device__ inline void group_begin()
{
}
template <int MB> __device__ inline void group_commit()
{
}
template <int MB, int LEFT> __device__ inline void group_wait()
{
}
template <int MB, int NB> __device__ inline void group_settle(float (&)[MB][NB][4])
{
}
template <int MB> __device__ inline void group_publish()
{
}
#endif

/* ---- tiles ---- */

__device__ inline int lane_number()
{
    return threadIdx.x % 32;
}

/* The block's dynamic shared memory at a multiple of TILE_ALIGN, which is to be added to its size.
 */
enum { TILE_ALIGN = 1024 };
__device__ inline char *tiles_from(char *shared)
{
#ifdef TN_SIMT
    uintptr_t at = (uintptr_t)shared;
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
#endif
    return shared + (-at & (TILE_ALIGN - 1));
}

/* The byte of a 16-byte piece in a tile of ROWS rows: panels of 64 elements, 128 bytes a row, one
 * after the other; the pieces of a row are exchanged by its number, so that eight rows' pieces lie
 * in different banks. */
template <int ROWS> __device__ inline int piece_at(int row, int piece)
{
    return ((piece >> 3) * ROWS + row) * 128 + ((piece ^ row) & 7) * 16;
}

/* Elements of a row where it is not aligned, zeros after the first n. */
__device__ inline void gather_piece(char *to, const uint16_t *from, int64_t step, int n)
{
    uint16_t x[8];
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = e < n ? from[e * step] : 0;
    memcpy(__builtin_assume_aligned(to, 16), x, 16);
}

/* Rows [x.first, x.first + ROWS) with D elements, zeros outside of x, into a tile; asynchronous. */
template <int ROWS, int D, int THREADS>
__device__ inline void load_tile(char *tile, const HeadRows &x)
{
    constexpr int PIECES = D / 8, APART = THREADS / PIECES;
    static_assert(APART % 8 == 0, "a thread's pieces are exchanged alike");
    int piece = threadIdx.x % PIECES, row0 = threadIdx.x / PIECES, left = (int)x.size - 8 * piece;
    int rows = x.n - x.first < ROWS ? (int)(x.n - x.first) : ROWS;
    const char *head = x.x.data + 2 * heads_at(x.x, x.b, x.first, x.h);
    const char *from = head + 2 * (row0 * x.x.row + 8 * piece * x.x.element);
    char *to = tile + piece_at<ROWS>(row0, piece);
    rows = left > 0 ? rows : 0;
    if (x.x.pieces) {
#pragma unroll
        for (int row = row0; row < row0 + ROWS; row += APART, to += 128 * APART) {
            copy16(to, row < rows ? from : x.x.data, row < rows);
            from += 2 * APART * x.x.row;
        }
        return;
    }
#pragma unroll 1
    for (int row = row0; row < ROWS; row += APART, to += 128 * APART) {
        gather_piece(to, (const uint16_t *)(const void *)from, x.x.element, row < rows ? left : 0);
        from += 2 * APART * x.x.row;
    }
}

/* A lane's part of rows [row, row + 16) and elements [16 k, 16 k + 16) as a left operand. */
template <int ROWS>
__device__ inline void load_left(uint32_t (&a)[4], const char *tile, int row, int k)
{
    int lane = lane_number();
    load_matrices(a, tile + piece_at<ROWS>(row + lane % 16, 2 * k + lane / 16));
}

/* s[16 MB][8 NB] = x y^T of the warp's rows of a tile, `row` on, and the first 8 NB of another. Of
 * HELD k the left operand is in held[k]. */
template <int D, int XROWS, int YROWS, int HELD, int MB, int NB>
__device__ inline void multiply_scores(float (&s)[MB][NB][4], const char *xs, int row,
                                       const uint32_t (&held)[HELD][MB][4], const char *ys)
{
#ifdef WARP_GROUPS
    if constexpr (MB == 1) {
        xs += row / 64 * 64 * 128;
        group_multiply<false>(s[0], describe(xs, 16), describe(ys, 16));
#pragma unroll
        for (int k = 1; k < D / 16; k++)
            group_multiply<true>(s[0], describe(xs + k / 4 * XROWS * 128 + k % 4 * 32, 16),
                                 describe(ys + k / 4 * YROWS * 128 + k % 4 * 32, 16));
        return;
    }
#endif
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
            if (HELD > 1)
                memcpy(a[m], held[k % HELD][m], sizeof a[m]);
            else
                load_left<XROWS>(a[m], xs, row + 16 * m, k);
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

/* p, rounded, as the left operand of products with NB / 2 times 16 rows. */
template <int MB, int NB>
__device__ inline void make_left(uint32_t (&a)[NB / 2][MB][4], const float (&p)[MB][NB][4])
{
#pragma unroll
    for (int k = 0; k < NB; k++)
#pragma unroll
        for (int m = 0; m < MB; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                a[k / 2][m][k % 2 * 2 + half] = pair_of(p[m][k][2 * half], p[m][k][2 * half + 1]);
}

/* acc[16 MB][D] += p[16 MB][16 KB] y */
template <int D, int YROWS, int MB, int KB>
__device__ inline void multiply_values(float (&acc)[MB][D / 8][4], const uint32_t (&p)[KB][MB][4],
                                       const char *ys)
{
#ifdef WARP_GROUPS
    if constexpr (MB == 1) {
#pragma unroll
        for (int k = 0; k < KB; k++)
            group_multiply_turned(acc[0], p[k][0], describe(ys + k * 16 * 128, YROWS * 128));
        return;
    }
#endif
    int lane = lane_number();
#pragma unroll
    for (int k = 0; k < KB; k++)
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t b[4];
            load_matrices_turned(b, ys + piece_at<YROWS>(16 * k + lane % 16, d + lane / 16));
#pragma unroll
            for (int m = 0; m < MB; m++) {
                multiply_matrices(acc[m][d], p[k][m], b[0], b[1]);
                multiply_matrices(acc[m][d + 1], p[k][m], b[2], b[3]);
            }
        }
}

/* The warp's rows of acc, scaled by scale[m][half], into rows `row` on of a tile that no other warp
 * reads, and from there to y. */
template <int D, int ROWS, int MB>
__device__ inline void store_rows(const float (&acc)[MB][D / 8][4], const float (&scale)[MB][2],
                                  char *tile, int row, const HeadRows &y)
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
                char *to = tile + piece_at<ROWS>(row + 16 * m + 8 * half + lane / 4, d);
                memcpy(__builtin_assume_aligned(to + lane % 4 * 4, 4), &two, 4);
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
struct BlockOrder {
    int64_t nhead, ntile, section;
};

static inline BlockOrder order_of(int64_t nhead, int64_t ntile, int64_t nbytes_head)
{
    enum { CACHE = 16 << 20 };
    int64_t fit = CACHE / (nbytes_head > 0 ? nbytes_head : 1);
    return {nhead, ntile, fit > 1 ? fit : 1};
}

struct Task {
    int64_t head, tile; /* tile 0 is the longest */
};

__device__ inline Task task_of(const BlockOrder &o)
{
    int64_t each = o.section * o.ntile, section = blockIdx.x / each, at = blockIdx.x % each;
    int64_t left = o.nhead - section * o.section, here = left < o.section ? left : o.section;
    return {section * o.section + at % here, at / here};
}

/* Whether the device has wgmma. */
static inline bool has_groups()
{
#ifdef TN_SIMT
    return true;
#else
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
#endif
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
