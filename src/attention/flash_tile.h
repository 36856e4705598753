/* What flash attention and its backward share: problem sizes, and small dense products and
 * transposes on tiles of f32 (flash_tile.c). A tile keeps queries along its rows' lanes, so that
 * everything per query (maximum, sum, mask) is elementwise in vectors and keys and values are read
 * where they lie. */
#ifndef TENON_FLASH_TILE_H
#define TENON_FLASH_TILE_H

#include "../op/flash.h"
#include "../op/vmath.h"

enum {
    TILE_LANES = 16,   /* widths of tiles are multiples of it */
    TILE_QUERIES = 48, /* most queries of a tile */
    TILE_KEYS = 64,    /* most keys of a tile; a multiple of 4 */
};

/* Whether the first `count` operands are all f32 or all bf16, with stride 1 on their last axis as
 * the results [B, T, H, D], and other floating-point ones one of the two. */
bool flash_accepts(const Call *c, int count);

/* Adds the factors of [batch, row, head, size] to an operand's axes; member (of the group of heads
 * that share a key head) may be NO_FACTOR. */
void flash_axes(Axes *x, int batch, int row, int head, int member, int size);
void flash_lse_axes(Axes *x, int batch, int head, int member, int query);
void flash_mask_axes(Axes *x, const Type *mask, int batch, int head, int member, int query,
                     int key);

/* The offset of row [b, i, h]. */
INLINE int64_t flash_at(const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    return b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

/* For ref: the product of `size` elements of two rows. */
double flash_dot(const Tensor *x, int64_t at, const Tensor *y, int64_t other, int64_t size);

/* ---- flash_query.c: the kernels for one query a head ---- */

bool flash_query_accepts_f32(const Call *c);
bool flash_query_accepts_bf16(const Call *c);
int64_t flash_query_workspace(Ctx *ctx, const Call *c);
void flash_query_prepare(Call *c, Arena *a);
int flash_query_run(Call *c);

/* ---- flash_backward.c: the kernels of the backward ---- */

extern const Kernel flash_backward_kernels[];

/* ---- queries in tiles ---- */

/* count tiles of `width` queries each, the last perhaps shorter. */
typedef struct Tiles {
    int64_t count, width;
} Tiles;
Tiles flash_tiles(int64_t queries);

INLINE int64_t round_lanes(int64_t n)
{
    return (n + TILE_LANES - 1) / TILE_LANES * TILE_LANES;
}

/* Row [b, i, h] of a [B, T, H, D] tensor. */
INLINE float *flash_row(const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    return (float *)(void *)t->data + b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

/* Rows [i, i + n) of head h as f32, *apart floats from one to the next: where they lie, or, of
 * bf16, converted into buf, which holds n rows of the head's size. */
const float *flash_load(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, float *buf,
                        int64_t *apart);
/* The way back: rows [i, i + n) of head h, rounded, from f32 ones `apart` floats apart. */
void flash_store(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, const float *rows,
                 int64_t apart);

/* exp(x), below 1 ulp, of x that is not far above 0, as scores less their maximum are; 0 below
 * -87.3, NaN stays NaN. The exponent is taken from the bits of the rounded multiple of ln 2. */
INLINE float tile_exp(float x)
{
    float c = x < -88.0f ? -88.0f : x;
    float k = c * 1.44269504f + 12583039.0f; /* 1.5 2^23 + 127 */
    float n = k - 12583039.0f, r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    return v_exp_near(r) * bits_to_f32(f32_to_bits(k) << 23);
}

/* 2^x, within 3e-6 of itself and 1 of 0, likewise; 0 below -126: for what is rounded to bf16. The
 * polynomial is a minimax fit of our own. */
INLINE float tile_exp2(float x)
{
    float c = x < -127.0f ? -127.0f : x;
    float k = c + 12583039.0f, r = c - (k - 12583039.0f);
    float p = 9.582853038e-3f;
    p = p * r + 5.590642468e-2f;
    p = p * r + 2.402409861e-1f;
    p = p * r + 6.931241934e-1f;
    return (p * r + 1.0f) * bits_to_f32(f32_to_bits(k) << 23);
}

/* x rounded to bf16, halves away from 0. A NaN stays one, unless its payload is all ones. */
INLINE uint16_t tile_half(float x)
{
    return (uint16_t)((f32_to_bits(x) + 0x8000) >> 16);
}

/* s[j][i] = -inf where query query0 + i does not see key key0 + j, and in rows past nkeys up to a
 * multiple of 4. */
void tile_mask(const Flash *f, float *s, int64_t key0, int64_t nkeys, int64_t query0,
               int64_t lanes);

/* s[j][i] += the mask of query query0 + i, for n of them, and key key0 + j. */
void tile_add_mask(const Tensor *mask, float *s, int64_t b, int64_t h, int64_t key0, int64_t nkeys,
                   int64_t query0, int64_t n, int64_t lanes);

/* s[j apart] = scale s[j apart] + the mask of a query and key key0 + j, for nkeys of them. */
void flash_add_mask(const Tensor *mask, float *s, int64_t apart, float scale, int64_t b, int64_t h,
                    int64_t query, int64_t key0, int64_t nkeys);

/* ---- products ---- */

typedef enum {
    TILE_SET,   /* c = a b */
    TILE_ADD,   /* c += a b */
    TILE_SCALE, /* c = c alpha + a b, alpha one factor for each column */
} TileInto;

/* c[m][n] from a[m][k] (a[k][m] where turned) and b[k][n]; rows lie ldc, lda, ldb apart. n is a
 * multiple of TILE_LANES. Each element is summed over k in ascending order, from 0, then joined
 * with c. */
typedef struct TileProduct {
    float *c;
    const float *a, *b, *alpha;
    int64_t ldc, lda, ldb, m, n, k;
    bool turned;
    TileInto into;
} TileProduct;

void tile_multiply(const TileProduct *x);
/* The same by vectors of 16, 8 or 4 floats; false where this machine has none so wide. */
bool tile_multiply_by(int lanes, const TileProduct *x);

/* to[j][i] = scale from[i][j] for rows i of `from` and columns j; with zeros for i from rows to
 * width. */
void tile_transpose(float *to, int64_t ldto, int64_t width, const float *from, int64_t ldfrom,
                    int64_t rows, int64_t columns, float scale);

#endif
