/* The products and transposes of attention's tiles, each instruction set that this machine has, and
 * those of panels of bf16, against plain loops in double: every remainder of rows and columns,
 * every way to join the result, and nothing written beside it. The exponential functions of tiles.
 * Where rows that documents share are cut. */
#include "../../src/attention/attention.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 1 << 15 };

static int passed, failed;

static void fill(float *x, int n, uint64_t stream)
{
    for (int i = 0; i < n; i++)
        x[i] = 2 * random_uniform(7, (uint32_t)stream, 0, (uint64_t)i) - 1;
}

static void count(bool good, const char *what, int lanes, const int64_t size[3])
{
    passed += good;
    failed += !good;
    if (!good)
        printf("%s, %d lanes, %dx%dx%d: wrong\n", what, lanes, (int)size[0], (int)size[1],
               (int)size[2]);
}

static double want(const TileProduct *x, const float *old, int64_t i, int64_t j)
{
    double sum = x->into == TILE_SET ? 0 : old[i * x->ldc + j];
    if (x->into == TILE_SCALE)
        sum *= x->alpha[j];
    for (int64_t p = 0; p < x->k; p++)
        sum += (double)(x->turned ? x->a[p * x->lda + i] : x->a[i * x->lda + p]) *
               x->b[p * x->ldb + j];
    return sum;
}

static bool product_right(int lanes, TileProduct *x, float *c)
{
    static float old[LARGEST];
    bool good = true;
    fill(c, LARGEST, 3);
    fill(old, LARGEST, 3);
    x->c = c;
    if (!tile_multiply_by(lanes, x))
        return true;
    for (int64_t at = 0; at < LARGEST; at++) {
        int64_t i = at / x->ldc, j = at % x->ldc;
        if (i < x->m && j < x->n)
            good = good && fabs(c[at] - want(x, old, i, j)) < 1e-6 * (double)(x->k + 4);
        else
            good = good && c[at] == old[at];
    }
    return good;
}

static void round_all(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

/* A product of panels against plain sums: exact in double up to the order of 2 k roundings. */
static bool panels_right(int64_t m, int64_t n, int64_t k, TileInto into)
{
    static float a[LARGEST], b[LARGEST], c[LARGEST], old[LARGEST], alpha[128];
    static uint16_t a_half[LARGEST], b_half[LARGEST];
    static uint32_t panels[LARGEST];
    int64_t lda = k + 4, ldc = n + 3, ldb = n + 2, apart = k / 2 * PANEL + 32;
    fill(a, LARGEST, 1);
    fill(b, LARGEST, 2);
    fill(c, LARGEST, 3);
    fill(old, LARGEST, 3);
    fill(alpha, LEN(alpha), 4);
    round_all(a, LARGEST);
    round_all(b, LARGEST);
    for (int i = 0; i < LARGEST; i++) {
        a_half[i] = f32_to_bf16(a[i]);
        b_half[i] = f32_to_bf16(b[i]);
    }
    panel_pairs(panels, apart, b_half, ldb, k, n);
    panel_multiply(&(PanelProduct){c, a_half, panels, alpha, ldc, lda, apart, m, n, k, into});
    bool good = true;
    for (int64_t at = 0; at < LARGEST; at++) {
        int64_t i = at / ldc, j = at % ldc;
        double sum = into == TILE_SET ? 0 : old[at];
        if (i >= m || j >= n) {
            good = good && c[at] == old[at];
            continue;
        }
        sum *= into == TILE_SCALE ? alpha[j] : 1;
        for (int64_t p = 0; p < k; p++)
            sum += (double)a[i * lda + p] * b[p * ldb + j];
        good = good && fabs(c[at] - sum) < 1e-6 * (double)(k + 4);
    }
    return good;
}

/* Of size m, n, k; 6 ways. */
static TileProduct product_of(const float *a, const float *b, const float *alpha,
                              const int64_t *size, int how)
{
    return (TileProduct){.a = a,
                         .b = b,
                         .alpha = alpha,
                         .ldc = size[1] + 5,
                         .lda = 71,
                         .ldb = size[1] + 3,
                         .m = size[0],
                         .n = size[1],
                         .k = size[2],
                         .turned = how % 2,
                         .into = (TileInto)(how / 2)};
}

static void panels(void)
{
    static const int64_t rows[] = {4, 8, 12, 32, 64}, columns[] = {32, 64, 96},
                         depth[] = {2, 32, 64};
    for (int i = 0; i < LEN(rows) * LEN(columns) * LEN(depth) * 3 && panel_has(); i++) {
        int64_t size[] = {rows[i % LEN(rows)], columns[i / LEN(rows) % LEN(columns)],
                          depth[i / LEN(rows) / LEN(columns) % LEN(depth)]};
        TileInto into = (TileInto)(i / (LEN(rows) * LEN(columns) * LEN(depth)));
        count(panels_right(size[0], size[1], size[2], into), "panels", 16, size);
    }
    if (!panel_has())
        printf("products of panels: not tested, this processor has none\n");
}

/* Panels of rows^T have what those of the transposed rows have, and give them back. */
static void turned_panels(void)
{
    enum { SIZE = 96 };
    static uint16_t rows[SIZE * SIZE], columns[SIZE * SIZE], back[SIZE * SIZE];
    static uint32_t turned[SIZE * SIZE / 2], pairs[SIZE * SIZE / 2];
    for (int64_t n = PANEL; n <= SIZE; n += PANEL)
        for (int64_t size = PANEL; size <= SIZE; size += PANEL) {
            for (int64_t i = 0; i < n * size; i++) {
                rows[i] = (uint16_t)(i * 7919);
                columns[i % size * n + i / size] = rows[i];
            }
            panel_turn(turned, rows, n, size);
            panel_pairs(pairs, size / 2 * PANEL, columns, n, size, n);
            panel_transpose(back, n, turned, n, size);
            size_t nbytes = sizeof *rows * (size_t)(n * size);
            count(!memcmp(turned, pairs, nbytes) && !memcmp(back, columns, nbytes), "turned panels",
                  16, (int64_t[]){n, size, 0});
        }
}

/* tile_exp over what scores less their maximum are. */
static void exponentials(void)
{
    double worst = 0;
    for (double x = -87.3; x < 1; x += 1.0 / 1024 + 1e-5) {
        double y = exp((double)(float)x);
        double error = fabs((double)tile_exp((float)x) - y) / (y * 0x1p-23);
        worst = error > worst ? error : worst;
    }
    bool good = worst < 1 && tile_exp(-INFINITY) == 0 && tile_exp(-1e30f) == 0 &&
                tile_exp(0) == 1 && isnan(tile_exp(NAN));
    passed += good;
    failed += !good;
    if (!good)
        printf("tile_exp: %.2f ulp\n", worst);
    worst = 0;
    for (double x = -126; x < 1; x += 1.0 / 1024 + 1e-5) {
        double y = exp2((double)(float)x), error = fabs((double)tile_exp2((float)x) - y) / y;
        worst = error > worst ? error : worst;
    }
    good = worst < 3e-6 && tile_exp2(-INFINITY) == 0 && tile_exp2(-1e30f) == 0 &&
           tile_exp2(0) == 1 && isnan(tile_exp2(NAN)) && isnan(bf16_to_f32(tile_half(NAN))) &&
           bf16_to_f32(tile_half(-1.00390626f)) == -1.0078125f && tile_half(-INFINITY) == 0xff80;
    passed += good;
    failed += !good;
    if (!good)
        printf("tile_exp2: within %.2g\n", worst);
}

static void products(void)
{
    static float a[LARGEST], b[LARGEST], c[LARGEST], alpha[128];
    static const int64_t rows[] = {1, 3, 4, 7, 8, 13, 64}, columns[] = {16, 32, 48, 64, 112},
                         depth[] = {1, 5, 64};
    fill(a, LARGEST, 1);
    fill(b, LARGEST, 2);
    fill(alpha, LEN(alpha), 4);
    for (int i = 0; i < LEN(rows) * LEN(columns) * LEN(depth) * 6; i++) {
        int64_t size[] = {rows[i % LEN(rows)], columns[i / LEN(rows) % LEN(columns)],
                          depth[i / LEN(rows) / LEN(columns) % LEN(depth)]};
        int how = i / (LEN(rows) * LEN(columns) * LEN(depth));
        TileProduct x = product_of(a, b, alpha, size, how);
        for (int lanes = 4; lanes <= 16; lanes *= 2)
            count(product_right(lanes, &x, c), "product", lanes, size);
    }
}

static void transposes(void)
{
    static float from[LARGEST], to[LARGEST];
    fill(from, LARGEST, 1);
    for (int i = 0; i < 20 * 20; i++) {
        int64_t rows = 1 + i / 20, columns = 1 + i % 20, width = rows + i % 3;
        fill(to, LARGEST, 2);
        tile_transpose(to, 30, width, from, 25, rows, columns, 0.5f);
        bool good = true;
        for (int64_t j = 0; j < 21; j++)
            for (int64_t l = 0; l < 30; l++) {
                float old = 2 * random_uniform(7, 2, 0, (uint64_t)(j * 30 + l)) - 1;
                float expected = j >= columns || l >= width ? old
                                 : l < rows                 ? 0.5f * from[l * 25 + j]
                                                            : 0;
                good = good && to[j * 30 + l] == expected;
            }
        count(good, "transpose", 4, (int64_t[]){rows, columns, width});
    }
}

/* Documents of random lengths, some of one token as padding has them. */
static void draw_starts(int64_t *starts, int n, uint64_t stream)
{
    for (int t = 0, next = 0, begin = 0; t < n; t++) {
        if (t == next) {
            double u = random_uniform(7, (uint32_t)stream, 1, (uint64_t)t);
            begin = t;
            next = t + 1 + (u < 0.2 ? 0 : (int)(u * u * 90));
        }
        starts[t] = begin;
    }
}

/* Pieces have all queries once and at most so many, and where one ends within a document, this has
 * begun with it or before it. */
static bool cuts_right(const int64_t *starts, const int64_t *cuts, int64_t n, int64_t most)
{
    int64_t count = cuts[0];
    bool good = cuts[1] == 0 && cuts[1 + count] == n && 2 + count <= flash_ncut(n, most);
    for (int64_t i = 1; i <= count; i++) {
        int64_t begin = cuts[i], end = cuts[1 + i];
        good = good && end > begin && end <= begin + most;
        good = good && (end == n || starts[end] == end || starts[end] <= begin);
        good = good && (end == n || starts[end] == end || end == begin + most);
        good = good && (i == count || cuts[2 + i] > begin + most);
    }
    return good;
}

static void cuts(void)
{
    enum { MOST = 200, ROWS = 2 };
    static int64_t starts[ROWS * MOST], cut[ROWS * (2 * MOST + 3)];
    for (int n = 1; n <= MOST; n += 7)
        for (int64_t most = 1; most <= 64; most += 21)
            for (uint64_t stream = 0; stream < 8; stream++) {
                Tensor t = {.data = (char *)starts, .dtype = I64, .rank = 2, .dim = {ROWS, n}};
                t.stride[0] = n;
                t.stride[1] = 1;
                for (int b = 0; b < ROWS; b++)
                    draw_starts(starts + b * n, n, 2 * stream + (uint64_t)b);
                flash_cut_rows(&t, most, cut);
                for (int b = 0; b < ROWS; b++)
                    count(cuts_right(starts + b * n, cut + b * flash_ncut(n, most), n, most),
                          "cuts", (int)stream, (int64_t[]){b, n, most});
            }
}

int main(void)
{
    cuts();
    products();
    panels();
    turned_panels();
    exponentials();
    transposes();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
