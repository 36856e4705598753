/* Products of panels by tiles of AMX. c = a b; a tile is 16 rows of 64 bytes. A tile of `a` is
 * 16 rows of 32 numbers, one of `b` 16 pairs of rows of 16 columns, one of `c` 16 x 16 sums in f32.
 * Each instruction multiplies 16 rows of 32 numbers by 32 rows of 16 and adds to 16 x 16 sums, in
 * 16 cycles. A block of 2 x 2 tiles of c loads four tiles for four of them, which is as fast as the
 * first cache gives them; so panels of b, which all rows of a meet, should lie there.
 */
#include "attention.h"

bool amx_has(void)
{
    return isa_level() >= ISA_AMX;
}

#ifdef TN_X86
#include <immintrin.h>
#define TARGET __attribute__((target("amx-tile,amx-bf16")))

/* Palette 1: 8 tiles of 16 rows of 64 bytes. */
typedef struct AmxConfig {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} AmxConfig;

TARGET void amx_begin(void)
{
    AmxConfig config = {.palette = 1};
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

KERNEL(void, scale_row, (float *restrict c, const float *alpha), (c, alpha))
{
    for (int j = 0; j < PANEL; j++)
        c[j] *= alpha[j];
}

/* 32 rows of c and of a, and panel b. */
TARGET static void block(const PanelProduct *x, float *c, const uint16_t *a, const uint32_t *b)
{
    size_t lda = 2 * (size_t)x->lda, ldb = 4 * PANEL, ldc = 4 * (size_t)x->ldc;
    const uint16_t *a1 = a + 16 * x->lda;
    float *c1 = c + 16 * x->ldc;
    if (x->into != TILE_SET) {
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
    for (int64_t p = 0; p < x->k; p += PANEL, b += PANEL * PANEL / 2) {
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

void amx_multiply(const PanelProduct *x)
{
    for (int64_t j = 0; j < x->n / PANEL; j++)
        for (int64_t i = 0; i < x->m; i += PANEL) {
            float *c = x->c + i * x->ldc + j * PANEL;
            for (int r = 0; r < PANEL && x->into == TILE_SCALE; r++)
                scale_row(c + r * x->ldc, x->alpha + j * PANEL);
            block(x, c, x->a + i * x->lda, x->b + j * x->apart);
        }
}

#else

void amx_begin(void)
{
    CHECK(amx_has());
}

void amx_end(void)
{
}

void amx_multiply(const PanelProduct *x)
{
    (void)x;
    CHECK(amx_has());
}

#endif
