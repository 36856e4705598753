/* The variants "panels" and "amx": products of panels of bf16, by AVX512_BF16 or by AMX (amx.c), on
 * blocks of queries and keys (frame.c). Scores lie by rows of keys, queries along the lanes, so
 * that the maximum and sum of a query need no sum across a vector and probabilities come out as the
 * panels that the second product reads:
 *
 *   s = k q^T,  o^T = o^T alpha + v^T p
 *
 * Backward, of the five products four read p and ds as they lie:
 *
 *   s = k q^T,  dp = v do^T,  dk += ds q,  dv += p do,  dq^T += k^T ds
 *
 * Numerics: as of "blocks" (blocks.c); products sum over pairs in ascending order.
 *
 * AVX512_BF16: each instruction multiplies 16 pairs by a pair and adds both products to 16 sums in
 * f32, twice what f32 does. 12 rows of a panel keep their sums in registers; for each pair two
 * vectors of b and 12 pairs of a are loaded, which is half of what the first cache gives while they
 * are multiplied. */
#include "attention.h"

#include <math.h>

/* ---- operands ---- */

typedef uint32_t WordQuad __attribute__((vector_size(16), aligned(4), may_alias));

/* to[0..3][0..3] = transposed from[0..3][0..3], words */
INLINE void turn4(uint32_t *to, int64_t ldto, const uint32_t *from, int64_t ldfrom)
{
    WordQuad r0 = *(const WordQuad *)from, r1 = *(const WordQuad *)(from + ldfrom);
    WordQuad r2 = *(const WordQuad *)(from + 2 * ldfrom),
             r3 = *(const WordQuad *)(from + 3 * ldfrom);
    WordQuad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    WordQuad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    WordQuad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    WordQuad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(WordQuad *)to = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(WordQuad *)(to + ldto) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(WordQuad *)(to + 2 * ldto) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(WordQuad *)(to + 3 * ldto) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

void panel_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size)
{
    const uint32_t *from = (const uint32_t *)(const void *)rows;
    int64_t npair = size / 2;
    for (int64_t j = 0; j < n; j += PANEL, to += PANEL * npair)
        for (int64_t p = 0; p < npair; p += 4)
            for (int64_t i = 0; i < PANEL; i += 4)
                turn4(to + p * PANEL + i, PANEL, from + (j + i) * npair + p, npair);
}

KERNEL(void, join_rows, (uint32_t *restrict to, const uint16_t *low, const uint16_t *high),
       (to, low, high))
{
    for (int d = 0; d < PANEL; d++)
        to[d] = low[d] | (uint32_t)high[d] << 16;
}

void panel_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t ld, int64_t n,
                 int64_t size)
{
    for (int64_t d = 0; d < size; d += PANEL, to += apart)
        for (int64_t p = 0; p < n / 2; p++) {
            const uint16_t *low = rows + 2 * p * ld + d;
            join_rows(to + p * PANEL, low, low + ld);
        }
}

KERNEL(void, part_pairs, (uint16_t *restrict low, uint16_t *restrict high, const uint32_t *from),
       (low, high, from))
{
    for (int i = 0; i < PANEL; i++) {
        low[i] = (uint16_t)from[i];
        high[i] = (uint16_t)(from[i] >> 16);
    }
}

void panel_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size)
{
    for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t p = 0; p < size / 2; p++, turned += PANEL)
            part_pairs(to + 2 * p * ld + j, to + (2 * p + 1) * ld + j, turned);
}

/* ---- products ---- */

#ifdef TN_X86
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { ROWS = 12, WIDTH = 16, VECTORS = PANEL / WIDTH };

TARGET INLINE __m512 before(const PanelProduct *x, const float *c, const float *alpha)
{
    if (x->into == TILE_SET)
        return _mm512_setzero_ps();
    __m512 old = _mm512_loadu_ps(c);
    return x->into == TILE_ADD ? old : _mm512_mul_ps(old, _mm512_loadu_ps(alpha));
}

/* nrow rows of c and of a, and panel b. */
TARGET INLINE void multiply_rows(const PanelProduct *x, float *c, const uint16_t *a,
                                 const uint32_t *b, const float *alpha, int nrow)
{
    __m512 sum[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            sum[i][j] = before(x, c + i * x->ldc + j * WIDTH, alpha + j * WIDTH);
    for (int64_t p = 0; p < x->k; p += 2, b += PANEL) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + WIDTH);
#pragma GCC unroll 12
        for (int i = 0; i < nrow; i++) {
            int pair;
            memcpy(&pair, a + i * x->lda + p, sizeof pair);
            __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], factor, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], factor, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < nrow; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            _mm512_storeu_ps(c + i * x->ldc + j * WIDTH, sum[i][j]);
}

TARGET static void multiply(const PanelProduct *x)
{
    for (int64_t j = 0; j < x->n / PANEL; j++) {
        float *c = x->c + j * PANEL;
        const float *alpha = x->alpha + (x->into == TILE_SCALE ? j * PANEL : 0);
        const uint32_t *b = x->b + j * x->apart;
        int64_t i = 0;
        for (; i + ROWS <= x->m; i += ROWS)
            multiply_rows(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, ROWS);
        for (; i + 8 <= x->m; i += 8)
            multiply_rows(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, 8);
        for (; i < x->m; i += 4)
            multiply_rows(x, c + i * x->ldc, x->a + i * x->lda, b, alpha, 4);
    }
}

bool panel_has(void)
{
    return isa_level() >= ISA_BF16;
}

void panel_multiply(const PanelProduct *x)
{
    multiply(x);
}

#else

bool panel_has(void)
{
    return false;
}

void panel_multiply(const PanelProduct *x)
{
    (void)x;
    CHECK(panel_has());
}

#endif

/* ---- workspace ---- */

/* A slot's own: panels of q^T, and o^T or dq^T; v^T (backward: k^T) by blocks of keys, and panels
 * of a unit of them. Forward: alpha of each row. Backward: panels of do^T, q, do and ds. */
typedef struct Panels {
    uint32_t *q_t, *turned, *grad_t, *q_pairs, *grad_pairs, *ds_pairs;
    uint16_t *keys_t;
    float *y_t, *alpha;
} Panels;

static uint32_t *take_words(char *work, int64_t *at, int64_t n)
{
    return (uint32_t *)(void *)take_bytes(work, at, 4 * n);
}

static Panels take_panels(const Frame *s, char *work, int64_t *nbytes)
{
    int64_t keys = s->steps * s->unit, words = s->rows * s->size / 2;
    Panels p = {0};
    *nbytes = 0;
    p.q_t = take_words(work, nbytes, words);
    p.y_t = take_floats(work, nbytes, s->rows * s->size);
    p.keys_t =
        (uint16_t *)(void *)take_bytes(work, nbytes, round_up(s->padded, keys) * s->size * 2);
    if (!s->by->backward) {
        p.turned = take_words(work, nbytes, s->unit * s->size / 2);
        p.alpha = take_floats(work, nbytes, s->rows);
        return p;
    }
    p.turned = (uint32_t *)(void *)p.y_t; /* free until a block begins */
    p.grad_t = take_words(work, nbytes, words);
    p.q_pairs = take_words(work, nbytes, words);
    p.grad_pairs = take_words(work, nbytes, words);
    p.ds_pairs = take_words(work, nbytes, s->rows * keys / 2);
    return p;
}

static int64_t own(const Frame *s)
{
    int64_t nbytes;
    take_panels(s, NULL, &nbytes);
    return nbytes;
}

static Panels panels_of(const FrameBlock *j)
{
    int64_t nbytes;
    return take_panels(j->s, j->w.own, &nbytes);
}

static uint16_t *halves(char *rows)
{
    return (uint16_t *)(void *)rows;
}

/* v^T, backward k^T, of the first n keys, block by block. */
static void load_keys(const FrameBlock *j, int64_t n)
{
    const Frame *s = j->s;
    Panels p = panels_of(j);
    int64_t most = s->steps * s->unit;
    for (int64_t u = 0, key = 0; u < frame_units(s, n); u++, key += s->unit) {
        const uint16_t *rows = halves(j->w.k) + key * s->size;
        if (!s->by->backward) {
            frame_load_unit(s, &j->c->in[2], j->b, j->head, n, u, j->w.v);
            rows = halves(j->w.v);
        }
        panel_turn(p.turned, rows, s->unit, s->size);
        panel_transpose(p.keys_t + key / most * most * s->size + key % most, most, p.turned,
                        s->unit, s->size);
    }
}

/* ---- products of a block ---- */

/* to = rows q^T or rows do^T of keys [key, key + width), and the block's rows from `blind` on. */
static void multiply_keys(const FrameBlock *j, float *to, char *rows, const uint32_t *turned,
                          int64_t key, int64_t width, int64_t blind)
{
    const Frame *s = j->s;
    s->by->multiply(&(PanelProduct){.c = to + blind,
                                    .a = halves(rows) + key * s->size,
                                    .b = turned + blind * s->size / 2,
                                    .ldc = s->rows,
                                    .lda = s->size,
                                    .apart = s->size * PANEL / 2,
                                    .m = width,
                                    .n = j->rows - blind,
                                    .k = s->size});
}

/* y^T of the rows from `blind` on and keys_t b, b panels of keys [key, key + width). */
static void multiply_turned(const FrameBlock *j, const Panels *p, const uint32_t *b, int64_t key,
                            int64_t width, int64_t blind, TileInto into)
{
    const Frame *s = j->s;
    int64_t most = s->steps * s->unit;
    s->by->multiply(&(PanelProduct){.c = p->y_t + blind,
                                    .a = p->keys_t + key / most * most * s->size + key % most,
                                    .b = b,
                                    .alpha = into == TILE_SCALE ? p->alpha + blind : NULL,
                                    .ldc = s->rows,
                                    .lda = most,
                                    .apart = width * PANEL / 2,
                                    .m = s->size,
                                    .n = j->rows - blind,
                                    .k = width,
                                    .into = into});
}

/* The rows of the block that see none of the keys from `key` on, in whole panels. */
static int64_t blind_rows(const FrameBlock *j, int64_t key)
{
    return frame_unseen(j, key) / PANEL * PANEL;
}

/* ---- forward ---- */

/* Writes p = 2^(scale (s - top)) of `width` keys, rows of s `rows` floats apart, into the panel of
 * the PANEL queries from `first` on; their new top and sum, and the factor alpha that brings what
 * was summed before to that top. */
KERNEL_FMA(void, softmax,
           (uint32_t * p, const FrameWork *w, float *alpha, int64_t first, int64_t rows,
            int64_t width, float scale),
           (p, w, alpha, first, rows, width, scale))
{
    const float *s = w->s + first;
    float most[PANEL], base[PANEL], sum[PANEL] = {0};
    for (int l = 0; l < PANEL; l++)
        most[l] = s[l];
    for (int64_t i = 1; i < width; i++)
        for (int l = 0; l < PANEL; l++)
            most[l] = MAX(most[l], s[i * rows + l]);
    for (int l = 0; l < PANEL; l++) {
        float top = MAX(w->top[first + l], most[l]);
        base[l] = top == -INFINITY ? 0.0f : top; /* nothing seen yet: 2^(-inf - 0) */
        alpha[first + l] = tile_exp2(scale * (w->top[first + l] - base[l]));
        w->top[first + l] = top;
    }
    for (int64_t i = 0; i < width; i += 2, p += PANEL) {
        const float *low = s + i * rows, *high = low + rows;
        INDEPENDENT
        for (int l = 0; l < PANEL; l++) {
            float p0 = tile_exp2(scale * (low[l] - base[l]));
            float p1 = tile_exp2(scale * (high[l] - base[l]));
            sum[l] += p0 + p1;
            p[l] = tile_half(p0) | (uint32_t)tile_half(p1) << 16;
        }
    }
    for (int l = 0; l < PANEL; l++)
        w->sum[first + l] = w->sum[first + l] * alpha[first + l] + sum[l];
}

/* o^T by its sums, and the log-sum-exp. */
KERNEL(void, divide,
       (const FrameWork *w, const Panels *p, int64_t size, int64_t rows, int64_t apart,
        float scale),
       (w, p, size, rows, apart, scale))
{
    for (int64_t i = 0; i < rows; i++) {
        float sum = w->sum[i];
        p->alpha[i] = sum == 0 ? 0.0f : 1.0f / sum; /* 0: sees nothing */
        w->lse[i] = sum == 0 ? INFINITY : scale * w->top[i] + v_log(sum);
    }
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < rows; i++)
            p->y_t[d * apart + i] *= p->alpha[i];
}

static void begin(const FrameBlock *j)
{
    panel_turn(panels_of(j).q_t, halves(j->w.q), j->rows, j->s->size);
}

/* Scores of keys [key, key + nkeys), of `width` with padding, and the rows from `blind` on: the
 * mask is added, what is not seen is -inf. */
static void mask(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t width, int64_t blind)
{
    const Frame *s = j->s;
    frame_add_mask(j, key, nkeys, blind, 1, s->rows);
    for (int64_t i = 0; i < width; i++) {
        int64_t end = i < nkeys ? frame_unseen(j, key + i) : j->rows;
        for (int64_t r = blind; r < end; r++)
            j->w.s[i * s->rows + r] = -INFINITY;
        for (int64_t r = MAX(end, frame_ended(j, key + i)); r < j->rows; r++)
            j->w.s[i * s->rows + r] = -INFINITY;
    }
}

static int step(const FrameBlock *j, int64_t key, int64_t nkeys)
{
    const Frame *s = j->s;
    const FrameWork *w = &j->w;
    Panels p = panels_of(j);
    uint32_t *to = (uint32_t *)(void *)w->p;
    int64_t width = frame_units(s, nkeys) * s->unit, blind = blind_rows(j, key);
    multiply_keys(j, w->s, w->k, p.q_t, key, width, blind);
    mask(j, key, nkeys, width, blind);
    for (int64_t r = blind; r < j->rows; r += PANEL)
        softmax(to + r * width / 2, w, p.alpha, r, s->rows, width, j->scale * LOG2E);
    multiply_turned(j, &p, to + blind * width / 2, key, width, blind,
                    key > j->first ? TILE_SCALE : TILE_SET);
    return 0;
}

static void end(const FrameBlock *j)
{
    const Frame *s = j->s;
    Panels p = panels_of(j);
    divide(&j->w, &p, s->size, j->rows, s->rows, j->scale);
    for (int64_t i = 0; i < j->n && j->mask; i++)
        j->w.lse[i] = flash_lse(j->scale * j->w.top[i], j->w.sum[i], v_log(j->w.sum[i]), j->mask);
    tile_transpose(j->w.y, s->size, s->size, p.y_t, s->rows, s->size, j->n, 1);
}

/* ---- backward ---- */

static void begin_backward(const FrameBlock *j)
{
    const Frame *s = j->s;
    Panels p = panels_of(j);
    uint16_t *rows[] = {halves(j->w.q), halves(j->w.grad)};
    uint32_t *turned[] = {p.q_t, p.grad_t}, *pairs[] = {p.q_pairs, p.grad_pairs};
    for (int i = 0; i < 2; i++) {
        panel_turn(turned[i], rows[i], j->rows, s->size);
        panel_pairs(pairs[i], s->rows * PANEL / 2, rows[i], s->size, j->rows, s->size);
    }
    memset(p.y_t, 0, sizeof(float) * (size_t)(s->rows * s->size));
}

/* sums += x^T of the rows from `blind` on and keys [key, key + width), times their q or do. */
static void add_rows(const FrameBlock *j, float *sums, char *x, const uint32_t *pairs, int64_t key,
                     int64_t width, int64_t blind)
{
    const Frame *s = j->s;
    s->by->multiply(&(PanelProduct){.c = sums + key * s->size,
                                    .a = halves(x) + blind,
                                    .b = pairs + blind * PANEL / 2,
                                    .ldc = s->size,
                                    .lda = s->rows,
                                    .apart = s->rows * PANEL / 2,
                                    .m = width,
                                    .n = s->size,
                                    .k = j->rows - blind,
                                    .into = TILE_ADD});
}

static int step_backward(const FrameBlock *j, int64_t key, int64_t nkeys)
{
    const Frame *s = j->s;
    const FrameWork *w = &j->w;
    Panels p = panels_of(j);
    int64_t width = frame_units(s, nkeys) * s->unit, blind = blind_rows(j, key);
    multiply_keys(j, w->s, w->k, p.q_t, key, width, blind);
    multiply_keys(j, w->dp, w->v, p.grad_t, key, width, blind);
    frame_score_grads(j, key, nkeys, width, blind);
    panel_pairs(p.ds_pairs, width * PANEL / 2, halves(w->ds) + blind, s->rows, width,
                j->rows - blind);
    add_rows(j, j->dk, w->ds, p.q_pairs, key, width, blind);
    add_rows(j, j->dv, w->p, p.grad_pairs, key, width, blind);
    multiply_turned(j, &p, p.ds_pairs, key, width, blind, TILE_ADD);
    return 0;
}

static void end_backward(const FrameBlock *j)
{
    const Frame *s = j->s;
    tile_transpose(j->w.y, s->size, s->size, panels_of(j).y_t, s->rows, s->size, j->n, 1);
}

/* ---- kernels ---- */

static const FrameSteps forward = {load_keys, begin, step, end};
static const FrameSteps backward = {load_keys, begin_backward, step_backward, end_backward};

static const FrameVariant vectors = {
    .steps = &forward, .own = own, .multiply = panel_multiply, .cut = {1, 64, 512, 32, 32}};
static const FrameVariant vectors_backward = {.backward = true,
                                              .steps = &backward,
                                              .own = own,
                                              .multiply = panel_multiply,
                                              .cut = {1, 128, 128, 32, 32}};
static const FrameVariant tiles = {
    .steps = &forward, .own = own, .multiply = amx_multiply, .cut = {8, 256, 512, 64, 0}};
static const FrameVariant tiles_backward = {.backward = true,
                                            .steps = &backward,
                                            .own = own,
                                            .multiply = amx_multiply,
                                            .cut = {8, 256, 256, 64, 0}};

/* panels_accepts, panels_workspace, panels_prepare; panels_backward_accepts, ...; amx_accepts, ...;
 * amx_backward_accepts, amx_backward_workspace, amx_backward_prepare. */
FRAME_KERNEL(panels, &vectors, panel_has() && isa_bf16_pays() && c->in[0].dtype == BF16)
FRAME_KERNEL(panels_backward, &vectors_backward,
             panel_has() && isa_bf16_pays() && c->in[0].dtype == BF16)
FRAME_KERNEL(amx, &tiles, amx_has() && c->in[0].dtype == BF16)
FRAME_KERNEL(amx_backward, &tiles_backward, amx_has() && c->in[0].dtype == BF16)
