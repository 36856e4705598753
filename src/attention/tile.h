/* The register-blocked product of tiles for one width of vectors, included by tiles.c once for
 * each: LANES floats in a vector, blocks of ROWS rows and COLUMNS vectors whose sums fill the
 * registers, NAME(x) the names made here, TARGET the instruction set.
 *
 * Method: an outer product per k: COLUMNS loads from b, ROWS broadcasts from a, ROWS * COLUMNS
 * multiply-adds, nothing else; after Goto and van de Geijn, "Anatomy of high-performance matrix
 * multiplication", ACM TOMS 34(3), 2008. Tiles lie in the first or second cache, so nothing is
 * packed. */

typedef float NAME(Vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Rows [row, row + nrow) and vectors [column, column + LANES * ncol) of c. The counts are constants
 * where it is inlined. */
INLINE void NAME(block)(const TileProduct *x, int64_t row, int64_t column, int nrow, int ncol,
                        bool turned)
{
    NAME(Vector) sum[ROWS][3], b[3];
    int64_t step = turned ? x->lda : 1, apart = turned ? 1 : x->lda, k = x->k, ldb = x->ldb;
    const float *a = x->a + row * apart, *from = x->b + column;
#pragma GCC unroll 8
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++)
            sum[i][j] = (NAME(Vector)){0};
    for (int64_t p = 0; p < k; p++) {
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++)
            b[j] = *(const NAME(Vector) *)(from + p * ldb + LANES * j);
#pragma GCC unroll 8
        for (int i = 0; i < nrow; i++) {
            float factor = a[p * step + i * apart];
#pragma GCC unroll 3
            for (int j = 0; j < ncol; j++)
                sum[i][j] += factor * b[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 3
        for (int j = 0; j < ncol; j++) {
            NAME(Vector) *c = (NAME(Vector) *)(x->c + (row + i) * x->ldc + column + LANES * j);
            if (x->into == TILE_SCALE)
                sum[i][j] += *c * *(const NAME(Vector) *)(x->alpha + column + LANES * j);
            else if (x->into == TILE_ADD)
                sum[i][j] += *c;
            *c = sum[i][j];
        }
}

INLINE void NAME(columns)(const TileProduct *x, int64_t column, int ncol, bool turned)
{
    int64_t row = 0, m = x->m;
    for (; row + ROWS <= m; row += ROWS)
        NAME(block)(x, row, column, ROWS, ncol, turned);
    if (ROWS > 4 && row + 4 <= m) {
        NAME(block)(x, row, column, 4, ncol, turned);
        row += 4;
    }
    for (; row < m; row++)
        NAME(block)(x, row, column, 1, ncol, turned);
}

/* The columns in blocks of nearly equal numbers of vectors. */
TARGET static void NAME(multiply)(const TileProduct *x)
{
    int64_t vectors = x->n / LANES, blocks = (vectors + COLUMNS - 1) / COLUMNS;
    for (int64_t j = 0; j < blocks; j++) {
        int64_t lo = vectors * j / blocks, ncol = vectors * (j + 1) / blocks - lo;
        switch (2 * ncol + x->turned) {
        case 2: NAME(columns)(x, LANES * lo, 1, false); break;
        case 3: NAME(columns)(x, LANES * lo, 1, true); break;
        case 4: NAME(columns)(x, LANES * lo, 2, false); break;
        case 5: NAME(columns)(x, LANES * lo, 2, true); break;
        case 6: NAME(columns)(x, LANES * lo, 3, false); break;
        case 7: NAME(columns)(x, LANES * lo, 3, true); break;
        }
    }
}

#undef LANES
#undef ROWS
#undef COLUMNS
#undef NAME
#undef TARGET
