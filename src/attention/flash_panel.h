/* Products of bf16 by AVX512_BF16 or AMX, as far as blocks of attention need them
 * (flash_blocks.h). One factor lies in panels of PANEL columns, as pairs along the axis that the
 * product sums over: two neighbours in one 32-bit word, the lower first, which is what both
 * instruction sets multiply. */
#ifndef TENON_FLASH_PANEL_H
#define TENON_FLASH_PANEL_H

#include "flash_tile.h"

enum { PANEL = 32 }; /* m, n and k are multiples of it; a panel's columns */

/* c[m][n] from a[m][k] and b in panels: panel j, `apart` words behind the one before, has columns
 * [32 j, 32 j + 32) as [k / 2][32] of pairs. Sums are in f32, to c or 0 over pairs in ascending
 * order; subnormals are 0. */
typedef struct PanelProduct {
    float *c;
    const uint16_t *a;
    const uint32_t *b;
    const float *alpha; /* TILE_SCALE */
    int64_t ldc, lda, apart, m, n, k;
    TileInto into;
} PanelProduct;

bool panel_has(void); /* whether this machine has AVX512_BF16 */
void panel_multiply(const PanelProduct *x);

/* Panels of b = rows^T and of b = rows, from rows[n][size]; n and size are multiples of PANEL. The
 * first are dense, of dense rows. The others, of rows `ld` numbers apart, begin `apart` words one
 * behind the other. */
void panel_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size);
void panel_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t ld, int64_t n,
                 int64_t size);
/* to[d][ld] = rows^T from the panels of rows^T. */
void panel_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size);

#endif
