/* Tiles of AMX: each instruction multiplies 16 rows of 32 numbers by 32 rows of 16 and adds to 16 x
 * 16 sums, in 16 cycles. A block of 2 x 2 tiles of c loads four tiles for four of them, which is as
 * fast as the first cache gives them; so panels of b, which all rows of a meet, should lie there.
 */
#include "flash_amx.h"

bool amx_has(void)
{
    return isa_level() >= ISA_AMX;
}

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

void amx_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size)
{
    const uint32_t *from = (const uint32_t *)(const void *)rows;
    int64_t npair = size / 2;
    for (int64_t j = 0; j < n; j += AMX_SIDE, to += AMX_SIDE * npair)
        for (int64_t p = 0; p < npair; p += 4)
            for (int64_t i = 0; i < AMX_SIDE; i += 4)
                turn4(to + p * AMX_SIDE + i, AMX_SIDE, from + (j + i) * npair + p, npair);
}

KERNEL(void, join_rows, (uint32_t *restrict to, const uint16_t *low, const uint16_t *high),
       (to, low, high))
{
    for (int d = 0; d < AMX_SIDE; d++)
        to[d] = low[d] | (uint32_t)high[d] << 16;
}

void amx_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t n, int64_t size)
{
    for (int64_t d = 0; d < size; d += AMX_SIDE, to += apart)
        for (int64_t p = 0; p < n / 2; p++) {
            const uint16_t *low = rows + 2 * p * size + d;
            join_rows(to + p * AMX_SIDE, low, low + size);
        }
}

KERNEL(void, part_pairs, (uint16_t *restrict low, uint16_t *restrict high, const uint32_t *from),
       (low, high, from))
{
    for (int i = 0; i < AMX_SIDE; i++) {
        low[i] = (uint16_t)from[i];
        high[i] = (uint16_t)(from[i] >> 16);
    }
}

void amx_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size)
{
    for (int64_t j = 0; j < n; j += AMX_SIDE)
        for (int64_t p = 0; p < size / 2; p++, turned += AMX_SIDE)
            part_pairs(to + 2 * p * ld + j, to + (2 * p + 1) * ld + j, turned);
}

/* ---- products ---- */

#ifdef TN_X86
#include <immintrin.h>
#define TARGET __attribute__((target("amx-tile,amx-bf16")))

/* Palette 1: 8 tiles of 16 rows of 64 bytes. */
typedef struct Config {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Config;

TARGET void amx_begin(void)
{
    Config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* all of it, not its first word alone */
    _tile_loadconfig(&config);
}

TARGET void amx_end(void)
{
    _tile_release();
}

/* Rows [row, row + 32) of panel b and its columns of c. */
TARGET static void block(const AmxProduct *x, float *c, const uint16_t *a, const uint32_t *b)
{
    size_t lda = 2 * (size_t)x->lda, ldb = 4 * AMX_SIDE, ldc = 4 * (size_t)x->ldc;
    const uint16_t *a1 = a + 16 * x->lda;
    float *c1 = c + 16 * x->ldc;
    if (x->adds) {
        _tile_loadd(0, c, ldc);
        _tile_loadd(1, c + 16, ldc);
        _tile_loadd(2, c1, ldc);
        _tile_loadd(3, c1 + 16, ldc);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < x->k; p += AMX_SIDE, b += AMX_SIDE * AMX_SIDE / 2) {
        _tile_loadd(4, a + p, lda);
        _tile_loadd(6, b, ldb);
        _tile_loadd(7, b + 16, ldb);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a1 + p, lda);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ldc);
    _tile_stored(1, c + 16, ldc);
    _tile_stored(2, c1, ldc);
    _tile_stored(3, c1 + 16, ldc);
}

void amx_multiply(const AmxProduct *x)
{
    for (int64_t j = 0; j < x->n / AMX_SIDE; j++)
        for (int64_t i = 0; i < x->m; i += AMX_SIDE)
            block(x, x->c + i * x->ldc + j * AMX_SIDE, x->a + i * x->lda, x->b + j * x->apart);
}

#else

void amx_begin(void)
{
    CHECK(amx_has());
}

void amx_end(void)
{
}

void amx_multiply(const AmxProduct *x)
{
    (void)x;
    CHECK(amx_has());
}

#endif
