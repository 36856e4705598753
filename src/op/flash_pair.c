/* Products of tiles of bf16 by AVX512_BF16: each instruction multiplies 16 pairs by a pair and adds
 * both products to 16 sums in f32, twice what f32 does. The blocks are those of flash_block.h. */
#include "flash_pair.h"

#include "rows.h"

/* ---- pairs from rows ---- */

static const uint16_t *narrow_row(const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    return element(t, flash_at(t, b, i, h));
}

bool pair_accepts(const Call *c, int first)
{
    for (int i = first; i < first + 3; i++)
        if (c->in[i].dtype != BF16 || c->in[i].dim[3] % 2)
            return false;
    return pair_has();
}

void pair_turn(uint32_t *to, const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n,
               int64_t width)
{
    int64_t npair = t->dim[3] / 2;
    for (int64_t j = 0; j < n; j++) {
        const uint16_t *from = narrow_row(t, b, i + j, h);
        for (int64_t p = 0; p < npair; p++)
            to[p * width + j] = from[2 * p] | (uint32_t)from[2 * p + 1] << 16;
    }
    for (int64_t p = 0; p < npair && n < width; p++)
        memset(to + p * width + n, 0, sizeof *to * (size_t)(width - n));
}

KERNEL(void, join_rows,
       (uint32_t *restrict to, const uint16_t *low, const uint16_t *high, int64_t n),
       (to, low, high, n))
{
    for (int64_t d = 0; d < n; d++)
        to[d] = low[d] | (uint32_t)high[d] << 16;
}

void pair_rows(uint32_t *to, const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n,
               int64_t width)
{
    int64_t size = t->dim[3];
    for (int64_t j = 0; j < n; j += 2, to += width) {
        const uint16_t *low = narrow_row(t, b, i + j, h);
        if (j + 1 < n)
            join_rows(to, low, narrow_row(t, b, i + j + 1, h), size);
        for (int64_t d = 0; d < size && j + 1 == n; d++)
            to[d] = low[d];
        memset(to + size, 0, sizeof *to * (size_t)(width - size));
    }
}

/* ---- products ---- */

#ifdef TN_X86
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { ROWS = 8, COLUMNS = 3 };

/* Two neighbours of a, 2-byte aligned. */
typedef uint32_t Pair __attribute__((aligned(2), may_alias));

/* Rows [row, row + nrow) and vectors [column, column + 16 ncol) of c. */
TARGET INLINE void block(const PairProduct *x, int64_t row, int64_t column, int nrow, int ncol,
                         bool turned)
{
    __m512 sum[ROWS][COLUMNS];
    __m512bh b[COLUMNS];
    int64_t step = turned ? 4 * x->lda : 4, apart = turned ? 4 : 2 * x->lda, npair = x->k / 2;
    const char *a = (const char *)x->a + row * apart;
    const uint32_t *from = x->b + column;
#pragma GCC unroll 8
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++)
            sum[i][j] = _mm512_setzero_ps();
    for (int64_t p = 0; p < npair; p++) {
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++)
            b[j] = (__m512bh)_mm512_loadu_si512(from + p * x->ldb + TILE_LANES * j);
#pragma GCC unroll 8
        for (int i = 0; i < nrow; i++) {
            const Pair *pair = (const Pair *)(const void *)(a + p * step + i * apart);
            __m512bh factor = (__m512bh)_mm512_set1_epi32((int)*pair);
#pragma GCC unroll 3
            for (int j = 0; j < ncol; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], factor, b[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++) {
            float *c = x->c + (row + i) * x->ldc + column + TILE_LANES * j;
            __m512 y = sum[i][j], old = x->into == TILE_SET ? y : _mm512_loadu_ps(c);
            if (x->into == TILE_SET)
                y = _mm512_mul_ps(y, _mm512_set1_ps(x->scale));
            else if (x->into == TILE_ADD)
                y = _mm512_add_ps(y, old);
            else
                y = _mm512_fmadd_ps(old, _mm512_loadu_ps(x->alpha + column + TILE_LANES * j), y);
            _mm512_storeu_ps(c, y);
        }
}

TARGET INLINE void columns(const PairProduct *x, int64_t column, int ncol, bool turned)
{
    int64_t row = 0, m = x->m;
    for (; row + ROWS <= m; row += ROWS)
        block(x, row, column, ROWS, ncol, turned);
    for (; row + 4 <= m; row += 4)
        block(x, row, column, 4, ncol, turned);
    for (; row < m; row++)
        block(x, row, column, 1, ncol, turned);
}

TARGET static void multiply(const PairProduct *x)
{
    int64_t vectors = x->n / TILE_LANES, blocks = (vectors + COLUMNS - 1) / COLUMNS;
    for (int64_t j = 0; j < blocks; j++) {
        int64_t lo = vectors * j / blocks, ncol = vectors * (j + 1) / blocks - lo;
        switch (2 * ncol + x->turned) {
        case 2: columns(x, TILE_LANES * lo, 1, false); break;
        case 3: columns(x, TILE_LANES * lo, 1, true); break;
        case 4: columns(x, TILE_LANES * lo, 2, false); break;
        case 5: columns(x, TILE_LANES * lo, 2, true); break;
        case 6: columns(x, TILE_LANES * lo, 3, false); break;
        case 7: columns(x, TILE_LANES * lo, 3, true); break;
        }
    }
}

bool pair_has(void)
{
    return isa_level() >= ISA_BF16;
}

void pair_multiply(const PairProduct *x)
{
    multiply(x);
}

#else

bool pair_has(void)
{
    return false;
}

void pair_multiply(const PairProduct *x)
{
    (void)x;
    CHECK(pair_has());
}

#endif
