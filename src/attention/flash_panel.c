/* Panels of pairs, and their products by AVX512_BF16: each instruction multiplies 16 pairs by a
 * pair and adds both products to 16 sums in f32, twice what f32 does. A block of 12 rows and a
 * panel keeps its sums in registers; for each pair it loads two vectors of b and 12 pairs of a,
 * which is half of what the first cache gives while they are multiplied. */
#include "flash_panel.h"

/* ---- panels ---- */

typedef uint32_t Quad __attribute__((vector_size(16), aligned(4), may_alias));

/* to[0..3][0..3] = transposed from[0..3][0..3], words */
INLINE void turn4(uint32_t *to, int64_t ldto, const uint32_t *from, int64_t ldfrom)
{
    Quad r0 = *(const Quad *)from, r1 = *(const Quad *)(from + ldfrom);
    Quad r2 = *(const Quad *)(from + 2 * ldfrom), r3 = *(const Quad *)(from + 3 * ldfrom);
    Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    Quad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    Quad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(Quad *)to = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(Quad *)(to + ldto) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(Quad *)(to + 2 * ldto) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(Quad *)(to + 3 * ldto) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

void panel_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size)
{
    const uint32_t *from = (const uint32_t *)(const void *)rows;
    int64_t npair = size / 2;
    for (int64_t j = 0; j < n; j += PANEL, to += PANEL * npair)
        for (int64_t p = 0; p < npair; p += 4)
            for (int64_t i = 0; i < PANEL; i += 4)
                turn4(to + p * PANEL + i, PANEL, from + (j + i) * npair + p, npair);
}

KERNEL(void, join_rows, (uint32_t *restrict to, const uint16_t *low, const uint16_t *high),
       (to, low, high))
{
    for (int d = 0; d < PANEL; d++)
        to[d] = low[d] | (uint32_t)high[d] << 16;
}

void panel_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t ld, int64_t n,
                 int64_t size)
{
    for (int64_t d = 0; d < size; d += PANEL, to += apart)
        for (int64_t p = 0; p < n / 2; p++) {
            const uint16_t *low = rows + 2 * p * ld + d;
            join_rows(to + p * PANEL, low, low + ld);
        }
}

KERNEL(void, part_pairs, (uint16_t *restrict low, uint16_t *restrict high, const uint32_t *from),
       (low, high, from))
{
    for (int i = 0; i < PANEL; i++) {
        low[i] = (uint16_t)from[i];
        high[i] = (uint16_t)(from[i] >> 16);
    }
}

void panel_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size)
{
    for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t p = 0; p < size / 2; p++, turned += PANEL)
            part_pairs(to + 2 * p * ld + j, to + (2 * p + 1) * ld + j, turned);
}

/* ---- products ---- */

#ifdef TN_X86
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { ROWS = 12, WIDTH = 16, VECTORS = PANEL / WIDTH };

TARGET INLINE __m512 before(const PanelProduct *x, const float *c, const float *alpha)
{
    if (x->into == TILE_SET)
        return _mm512_setzero_ps();
    __m512 old = _mm512_loadu_ps(c);
    return x->into == TILE_ADD ? old : _mm512_mul_ps(old, _mm512_loadu_ps(alpha));
}

/* nrow rows of c and of a, and panel b. */
TARGET INLINE void block(const PanelProduct *x, float *c, const uint16_t *a, const uint32_t *b,
                         const float *alpha, int nrow)
{
    __m512 sum[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            sum[i][j] = before(x, c + i * x->ldc + j * WIDTH, alpha + j * WIDTH);
    for (int64_t p = 0; p < x->k; p += 2, b += PANEL) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + WIDTH);
#pragma GCC unroll 12
        for (int i = 0; i < nrow; i++) {
            int pair;
            memcpy(&pair, a + i * x->lda + p, sizeof pair);
            __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], factor, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], factor, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            _mm512_storeu_ps(c + i * x->ldc + j * WIDTH, sum[i][j]);
}

TARGET static void multiply(const PanelProduct *x)
{
    for (int64_t j = 0; j < x->n / PANEL; j++) {
        float *c = x->c + j * PANEL;
        const float *alpha = x->alpha + (x->into == TILE_SCALE ? j * PANEL : 0);
        const uint32_t *b = x->b + j * x->apart;
        int64_t i = 0;
        for (; i + ROWS <= x->m; i += ROWS)
            block(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, ROWS);
        for (; i + 8 <= x->m; i += 8)
            block(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, 8);
        for (; i < x->m; i += 4)
            block(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, 4);
    }
}

bool panel_has(void)
{
    return isa_level() >= ISA_BF16;
}

void panel_multiply(const PanelProduct *x)
{
    multiply(x);
}

#else

bool panel_has(void)
{
    return false;
}

void panel_multiply(const PanelProduct *x)
{
    (void)x;
    CHECK(panel_has());
}

#endif
