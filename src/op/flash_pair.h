/* Tiles of bf16 as pairs along the axis that a product sums over, two neighbours in one 32-bit
 * word, the lower first: what AVX512_BF16 multiplies (flash_pair.c). */
#ifndef TENON_FLASH_PAIR_H
#define TENON_FLASH_PAIR_H

#include "flash_tile.h"

/* Whether this machine has the instructions; without them tiles of bf16 are converted to f32. */
bool pair_has(void);
/* Whether q, k and v (operands `first` on) are bf16 that can be read as pairs. */
bool pair_accepts(const Call *c, int first);

/* c[m][n] from a, and b[k / 2][n] of pairs; rows lie ldc, lda, ldb apart. a is [m][k] of bf16, or,
 * turned, [k / 2][m] of pairs. k is even and n a multiple of TILE_LANES. Sums are in f32, over
 * pairs in ascending order; TILE_SET scales them. Bits are the instructions': subnormals are 0. */
typedef struct PairProduct {
    float *c;
    const void *a;
    const uint32_t *b;
    const float *alpha; /* TILE_SCALE */
    int64_t ldc, lda, ldb, m, n, k;
    float scale; /* TILE_SET */
    bool turned;
    TileInto into;
} PairProduct;

void pair_multiply(const PairProduct *x);

/* Rows [i, i + n) of head h, `size` long. As pairs along the row, turned: to[p][j] has elements 2p
 * and 2p + 1 of row j, zeros for j from n to width. As pairs of rows: to[p][d] has element d of
 * rows 2p and 2p + 1, zeros beyond n and from size to width; (n + 1) / 2 rows are written. */
void pair_turn(uint32_t *to, const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n,
               int64_t width);
void pair_rows(uint32_t *to, const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n,
               int64_t width);

/* Two floats rounded to nearest even. A NaN stays one, unless its payload is all ones. */
INLINE uint32_t pair_of(float low, float high)
{
    uint32_t x = f32_to_bits(low), y = f32_to_bits(high);
    x += 0x7fff + (x >> 16 & 1);
    y += 0x7fff + (y >> 16 & 1);
    return x >> 16 | (y & 0xffff0000);
}

#endif
