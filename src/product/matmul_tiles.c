/* A product of 16-bit operands where the processor multiplies f32 alone, in a workspace that does
 * not grow with the call: tiles of both operands are widened to f32, multiplied, and added to a
 * tile of sums, which is rounded once when all of k is done. A copy of whole operands in f32, as
 * the way `widened` makes (matmul_onednn.c), takes 1.5 GB for the head of an 8B model.
 *
 * One primitive of oneDNN multiplies all tiles, so they have one size: tiles at the end of an axis
 * are filled up with zeros. An operand's tile lies as the operand does, in rows or in columns, so
 * that widening reads and writes runs. Each element of an operand is widened once for some
 * hundreds of sums that it takes part in.
 *
 * Numerics: sums in f32 that begin with addmm's operand 0, rounded once. Their order depends on
 * shapes, strides and thread count alone. */
#include "../op/matmul.h"

#include "../op/vmath.h"
#include "matmul_tiles.h"
#include "onednn.h"

#include <string.h>

enum {
    SIDE = 1024, /* rows of a and columns of b of a tile, at most, */
    DEPTH = 512, /* and how much of k */
    ROUND = 16   /* elements to whose multiples a tile of several goes */
};

/* ---- which tiles ---- */

/* The sizes of tiles; in columns: a tile whose columns lie one after the other. */
typedef struct ProductTiles {
    int64_t rows, cols, depth;
    bool a_columns, b_columns;
    int64_t b, y, scratch; /* where these begin in the workspace; a is first */
} ProductTiles;

/* The size of equal parts of n, of at most `most`. */
static int64_t part_of(int64_t n, int64_t most)
{
    int64_t parts = (n + most - 1) / most, each = (n + parts - 1) / parts;
    return parts == 1 ? n : (each + ROUND - 1) / ROUND * ROUND;
}

static int64_t whole_lines(int64_t nelem)
{
    return (nelem * (int64_t)sizeof(float) + 63) / 64 * 64;
}

static ProductTiles tiling_of(const Call *c)
{
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    ProductTiles t = {.rows = part_of(y->dim[0], SIDE),
                      .cols = part_of(y->dim[1], SIDE),
                      .depth = part_of(a->dim[1], DEPTH),
                      .a_columns = a->stride[0] < a->stride[1],
                      .b_columns = b->stride[0] < b->stride[1]};
    t.b = whole_lines(t.rows * t.depth);
    t.y = t.b + whole_lines(t.depth * t.cols);
    t.scratch = t.y + whole_lines(t.rows * t.cols);
    return t;
}

static OneMatrix matrix_of(int64_t rows, int64_t cols, bool columns)
{
    OneMatrix m = {F32, 2, {rows, cols}, {cols, 1}, false};
    if (columns) {
        m.stride[0] = 1;
        m.stride[1] = rows;
    }
    return m;
}

static OneProduct product_of(const ProductTiles *t)
{
    return (OneProduct){.a = matrix_of(t->rows, t->depth, t->a_columns),
                        .b = matrix_of(t->depth, t->cols, t->b_columns),
                        .y = matrix_of(t->rows, t->cols, false),
                        .adds = true};
}

/* ---- a tile ---- */

/* Rows of a tile in f32, of `width` elements each; the tensor has nrow and ncol of them, others
 * are 0. Strides of the tensor are in elements. */
typedef struct Tile {
    float *wide;
    int64_t width, nrow, ncol;
    char *narrow;
    int64_t row, col;
    DType dtype; /* of narrow: F32, BF16 or F16 */
} Tile;

INLINE float get(const void *x, int64_t i, DType d)
{
    return d == F16 ? v_f16_to_f32(((const uint16_t *)x)[i]) : v_load(x, i, d);
}

INLINE void put(void *y, int64_t i, float x, DType d)
{
    if (d == F16)
        ((uint16_t *)y)[i] = v_f32_to_f16(x);
    else
        v_store(y, i, x, d);
}

INLINE void load_row(float *restrict to, const void *restrict from, int64_t n, int64_t step,
                     DType d)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = get(from, i * step, d);
}

KERNEL(void, load, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Tile *x = arg;
    for (int64_t r = lo; r < hi; r++) {
        float *to = x->wide + r * x->width;
        const char *from = x->narrow + r * x->row * dtype_size(x->dtype);
        int64_t n = r < x->nrow ? x->ncol : 0;
        if (x->dtype == BF16 && x->col == 1)
            load_row(to, from, n, 1, BF16);
        else if (x->dtype == F16 && x->col == 1)
            load_row(to, from, n, 1, F16);
        else
            load_row(to, from, n, x->col, x->dtype);
        memset(to + n, 0, (size_t)(x->width - n) * sizeof *to);
    }
}

INLINE void store_row(void *restrict to, const float *restrict from, int64_t n, DType d)
{
    for (int64_t i = 0; i < n; i++)
        put(to, i, from[i], d);
}

KERNEL(void, store, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Tile *x = arg;
    for (int64_t r = lo; r < hi; r++) {
        const float *from = x->wide + r * x->width;
        char *to = x->narrow + r * x->row * dtype_size(x->dtype);
        if (x->dtype == BF16)
            store_row(to, from, x->ncol, BF16);
        else
            store_row(to, from, x->ncol, x->dtype);
    }
}

/* The tile of rows from i and columns from j on of t, a matrix; where it lies in columns, these are
 * the tile's rows. */
static Tile tile_of(const Matrix *t, int64_t i, int64_t j, int64_t rows, int64_t cols, bool columns,
                    char *wide)
{
    int64_t nrow = MIN(rows, t->rows - i), ncol = MIN(cols, t->cols - j);
    int64_t row = t->stride[1], col = t->stride[2];
    return (Tile){.wide = (float *)(void *)wide,
                  .width = columns ? rows : cols,
                  .nrow = columns ? ncol : nrow,
                  .ncol = columns ? nrow : ncol,
                  .narrow = (char *)t->t->data + (i * row + j * col) * dtype_size(t->t->dtype),
                  .row = columns ? col : row,
                  .col = columns ? row : col,
                  .dtype = t->t->dtype};
}

/* Loads all `rows` of a tile. */
static void load_all(Tile x, int64_t rows)
{
    par_for(rows, MAX(1, 16384 / x.width), load, &x);
}

/* ---- the kernel ---- */

bool matmul_tiles_accepts(const Call *c)
{
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    return y->rank == 2 && (a->dtype == BF16 || a->dtype == F16) && tensor_nelem(a) &&
           tensor_nelem(b);
}

int64_t matmul_tiles_workspace(Ctx *ctx, const Call *c)
{
    matmul_check_sizes(ctx, c);
    ProductTiles t = tiling_of(c);
    OneProduct p = product_of(&t);
    return t.scratch + onednn_room(ctx, c->node, &p).scratch;
}

void matmul_tiles_prepare(Call *c, Arena *a)
{
    ProductTiles t = tiling_of(c);
    OneProduct p = product_of(&t);
    c->state = onednn_make(a, c->node, &p);
}

/* Sums of the tile of y from row i and column j on, with what they are added to. */
static int sum_tile(const Call *c, const ProductTiles *t, int64_t i, int64_t j)
{
    Matrix a = matrix(&c->in[c->nin - 2]), b = matrix(&c->in[c->nin - 1]), y = matrix(&c->out[0]);
    char *sums = c->work + t->y;
    int status = 0;
    if (c->nin == 3) {
        Matrix addend = bias_matrix(&c->in[0], &y);
        load_all(tile_of(&addend, i, j, t->rows, t->cols, false, sums), t->rows);
    } else {
        memset(sums, 0, (size_t)(t->rows * t->cols) * sizeof(float));
    }
    for (int64_t k = 0; k < a.cols && !status; k += t->depth) {
        load_all(tile_of(&a, i, k, t->rows, t->depth, t->a_columns, c->work),
                 t->a_columns ? t->depth : t->rows);
        if (i == 0 || t->depth < a.cols) /* else it is there from the rows before */
            load_all(tile_of(&b, k, j, t->depth, t->cols, t->b_columns, c->work + t->b),
                     t->b_columns ? t->cols : t->depth);
        status = onednn_run(c->state, c->work, c->work + t->b, NULL, sums, c->work + t->scratch);
    }
    return status;
}

int matmul_tiles_run(Call *c)
{
    ProductTiles t = tiling_of(c);
    Matrix y = matrix(&c->out[0]);
    for (int64_t j = 0; j < y.cols; j += t.cols)
        for (int64_t i = 0; i < y.rows; i += t.rows) {
            int status = sum_tile(c, &t, i, j);
            if (status)
                return run_fail(c, "oneDNN product failed (status %d)", status);
            Tile x = tile_of(&y, i, j, t.rows, t.cols, false, c->work + t.y);
            par_for(x.nrow, MAX(1, 16384 / x.width), store, &x);
        }
    return 0;
}
