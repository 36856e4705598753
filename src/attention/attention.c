/* Code that all variants of attention share: the operands that they take, rows in f32, masks,
 * transposes, parts of tasks; and the lists of their kernels. */
#include "attention.h"

/* ---- operands ---- */

bool flash_accepts(const Call *c, bool backward)
{
    DType d = c->in[0].dtype;
    int count = backward ? LSE : 3; /* q, k and v, or do to o */
    const Tensor *starts = flash_starts(c, backward ? MASK : 3);
    if (starts && !tensor_contiguous(starts))
        return false;
    for (int i = 0; i < c->nin; i++)
        if (i < count ? c->in[i].dtype != d : c->in[i].dtype == F64 || c->in[i].dtype == F16)
            return false;
    for (int i = 0; i < count; i++)
        if (c->in[i].dim[3] != 1 && c->in[i].stride[3] != 1)
            return false;
    for (int k = 0; k < c->nout; k++)
        if (c->out[k].rank == 4 && c->out[k].dim[3] != 1 && c->out[k].stride[3] != 1)
            return false;
    return d == F32 || d == BF16;
}

KERNEL(void, widen, (float *restrict to, const uint16_t *from, int64_t n), (to, from, n))
{
    for (int64_t i = 0; i < n; i++)
        to[i] = v_bf16_to_f32(from[i]);
}

KERNEL(void, narrow, (uint16_t *restrict to, const float *from, int64_t n), (to, from, n))
{
    for (int64_t i = 0; i < n; i++)
        to[i] = v_f32_to_bf16(from[i]);
}

const float *flash_load(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, float *buf,
                        int64_t *apart)
{
    int64_t size = t->dim[3];
    const uint16_t *rows = element(t, flash_at(t, b, i, h));
    *apart = t->dtype == F32 ? t->stride[1] : size;
    if (t->dtype == F32)
        return flash_row(t, b, i, h);
    for (int64_t j = 0; j < n; j++)
        widen(buf + j * size, rows + j * t->stride[1], size);
    return buf;
}

void flash_store(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, const float *rows,
                 int64_t apart)
{
    uint16_t *to = element(t, flash_at(t, b, i, h));
    for (int64_t j = 0; j < n; j++)
        narrow(to + j * t->stride[1], rows + j * apart, t->dim[3]);
}

/* flash_level of f32 */
INLINE float leveled(float score)
{
    float x = score * -(float)FLASH_SHARE;
    if (!(x >= (float)(1 << FLASH_LEAST)) || x == INFINITY)
        return score;
    uint32_t exponent = f32_to_bits(x) >> 23;
    return -bits_to_f32((MIN(exponent, FLASH_MOST + 127) + 2) << 23);
}

void flash_add_mask(const Tensor *mask, float *s, int64_t apart, float scale, float level,
                    int64_t b, int64_t h, int64_t query, int64_t key0, int64_t nkeys)
{
    int64_t stride[4];
    flash_mask_strides(mask, stride);
    const char *from = element(mask, b * stride[0] + h * stride[1] + query * stride[2]);
    for (int64_t j = 0; j < nkeys; j++)
        s[j * apart] =
            leveled(scale * s[j * apart] + v_load(from, (key0 + j) * stride[3], mask->dtype)) -
            level;
}

static float row_lse(const Call *c, int64_t b, int64_t h, int64_t query, float *level)
{
    const Tensor *lse = &c->in[LSE];
    double x = f32(lse)[tensor_index(lse, (int64_t[]){b, h, query})];
    *level = flash_has_mask(c->node, MASK) ? (float)flash_take_level(&x, F32) : 0;
    return (float)x;
}

float flash_row_level(const Call *c, int64_t b, int64_t h, int64_t query)
{
    float level;
    row_lse(c, b, h, query, &level);
    return level;
}

float flash_row_sum(const Call *c, int64_t b, int64_t h, int64_t query)
{
    float level;
    return row_lse(c, b, h, query, &level);
}

KERNEL(void, add, (float *restrict y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

void flash_add(float *y, const float *x, int64_t n)
{
    add(y, x, n);
}

KERNEL_FMA(void, row_products,
           (float *delta, const float *x, int64_t ldx, const float *y, int64_t ldy, int64_t rows,
            int64_t size),
           (delta, x, ldx, y, ldy, rows, size))
{
    for (int64_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float sum[TILE_LANES] = {0};
        int64_t d = 0;
        for (; d + TILE_LANES <= size; d += TILE_LANES)
            for (int l = 0; l < TILE_LANES; l++)
                sum[l] += x[d + l] * y[d + l];
        for (; d < size; d++)
            sum[d % TILE_LANES] += x[d] * y[d];
        for (int half = TILE_LANES / 2; half; half /= 2)
            for (int l = 0; l < half; l++)
                sum[l] += sum[l + half];
        delta[i] = sum[0];
    }
}

void flash_row_products(float *delta, const float *x, int64_t ldx, const float *y, int64_t ldy,
                        int64_t rows, int64_t size)
{
    row_products(delta, x, ldx, y, ldy, rows, size);
}

int64_t flash_parts(int64_t heads, int64_t count)
{
    enum { TASKS = 8 };
    return MAX(1, MIN(count, (TASKS + heads - 1) / MAX(heads, 1)));
}

/* Where the piece that begins at a query ends: before a document that does not end in it either. */
static int64_t piece_end(const Tensor *starts, int64_t b, int64_t query, int64_t most)
{
    int64_t queries = starts->dim[1], end = MIN(query + most, queries);
    int64_t begun = end < queries ? flash_first(starts, b, end) : end;
    return begun > query ? begun : end;
}

int64_t flash_ncut(int64_t queries, int64_t most)
{
    return 2 * ((queries + most - 1) / most) + 3;
}

void flash_cut_rows(const Tensor *starts, int64_t most, int64_t *cuts)
{
    int64_t queries = starts->dim[1], ncut = flash_ncut(queries, most);
    for (int64_t b = 0; b < starts->dim[0]; b++, cuts += ncut) {
        cuts[0] = cuts[1] = 0;
        for (int64_t at = 0; at < queries; cuts[1 + ++cuts[0]] = at)
            at = piece_end(starts, b, at, most);
    }
}

/* ---- transposes ---- */

typedef float FloatQuad __attribute__((vector_size(16), aligned(4), may_alias));

/* to[0..3][0..3] = scale * transposed from[0..3][0..3] */
INLINE void transpose4(float *to, int64_t ldto, const float *from, int64_t ldfrom, float scale)
{
    FloatQuad r0 = *(const FloatQuad *)from, r1 = *(const FloatQuad *)(from + ldfrom);
    FloatQuad r2 = *(const FloatQuad *)(from + 2 * ldfrom),
              r3 = *(const FloatQuad *)(from + 3 * ldfrom);
    FloatQuad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    FloatQuad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    FloatQuad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    FloatQuad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(FloatQuad *)to = scale * __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(FloatQuad *)(to + ldto) = scale * __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(FloatQuad *)(to + 2 * ldto) = scale * __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(FloatQuad *)(to + 3 * ldto) = scale * __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

void tile_transpose(float *to, int64_t ldto, int64_t width, const float *from, int64_t ldfrom,
                    int64_t rows, int64_t columns, float scale)
{
    int64_t rows4 = rows & ~(int64_t)3, columns4 = columns & ~(int64_t)3;
    for (int64_t i = 0; i < rows4; i += 4)
        for (int64_t j = 0; j < columns4; j += 4)
            transpose4(to + j * ldto + i, ldto, from + i * ldfrom + j, ldfrom, scale);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < rows4 ? columns4 : 0; j < columns; j++)
            to[j * ldto + i] = scale * from[i * ldfrom + j];
    for (int64_t j = 0; j < columns && rows < width; j++)
        for (int64_t i = rows; i < width; i++)
            to[j * ldto + i] = 0;
}

/* ---- kernels ---- */

#define X(kernel, prefix, runs, made) \
    {.name = kernel,                  \
     .accepts = prefix##_accepts,     \
     .workspace = prefix##_workspace, \
     .handles = made,                 \
     .prepare = prefix##_prepare,     \
     .run = runs,                     \
     .strided_out = true},
const Kernel flash_kernels[] = {FORWARD_KERNELS(X){0}};
const Kernel flash_backward_kernels[] = {BACKWARD_KERNELS(X){0}};
#undef X
