/* Products of bf16 by AMX, as far as blocks of attention need them (flash_blocks.h): sizes are
 * whole tiles. A tile is 16 rows of 64 bytes: of a 32 numbers of each of 16 rows, of b as many
 * pairs of rows, 16 columns each, of c 16 sums in f32. */
#ifndef TENON_FLASH_AMX_H
#define TENON_FLASH_AMX_H

#include "vmath.h"

enum { AMX_SIDE = 32 }; /* m, n and k are multiples of it; a panel's columns */

bool amx_has(void); /* whether this machine has the instructions and Linux grants them */

/* c[m][n] = a b, or c + a b, of a[m][k] and of b in panels: panel j, `apart` words behind the one
 * before, has columns [32 j, 32 j + 32) as [k / 2][32] of pairs, rows 2p and 2p + 1 in one word,
 * the lower first. Sums are in f32, over pairs in ascending order; subnormals are 0. */
typedef struct AmxProduct {
    float *c;
    const uint16_t *a;
    const uint32_t *b;
    int64_t ldc, lda, apart, m, n, k;
    bool adds;
} AmxProduct;

void amx_begin(void); /* of a thread, before amx_multiply(); it owns the tiles until amx_end() */
void amx_multiply(const AmxProduct *x);
void amx_end(void);

/* Panels of b = rows^T and of b = rows, from dense rows[n][size]; n and size are multiples of 32.
 * Panels of rows are `apart` words from one to the next, those of rows^T dense. */
void amx_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size);
void amx_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t n, int64_t size);
/* to[d][ld] = rows^T from the panels of rows^T. */
void amx_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size);

#endif
