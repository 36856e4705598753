/* attention: the processor's kernels of flash_attention and its backward, one file per variant,
 * both directions in it:
 *
 *   query.c    one query a head, as text is generated
 *   tiles.c    small tiles of queries and keys in f32, by vectors
 *   panels.c   blocks of bf16, by AVX512_BF16 ("panels") or by AMX ("amx", amx.c)
 *   blocks.c   blocks, by products of the library
 *
 * attention.c lists their kernels, best first, and has what all of them share; frame.c walks the
 * blocks of panels.c and blocks.c. op/flash.h has what the ops' rules share with kernels. */
#ifndef TENON_ATTENTION_H
#define TENON_ATTENTION_H

#include "../op/flash.h"
#include "../op/rows.h"
#include "../product/onednn.h"

/* ---- kernels: name, prefix of its functions, run and handles, best first ---- */

#define FORWARD_KERNELS(X)                       \
    X("query_f32", query_f32, query_run, NULL)   \
    X("query_bf16", query_bf16, query_run, NULL) \
    X("amx", amx, frame_run, NULL)               \
    X("panels", panels, frame_run, NULL)         \
    X("tiles", tiles, tiles_run, NULL)           \
    X("blocks", blocks, frame_run, blocks_handles)

#define BACKWARD_KERNELS(X)                       \
    X("amx", amx_backward, frame_run, NULL)       \
    X("panels", panels_backward, frame_run, NULL) \
    X("tiles", tiles_backward, tiles_run, NULL)   \
    X("blocks", blocks_backward, frame_run, blocks_backward_handles)

#define X(kernel, prefix, run, handles)                  \
    bool prefix##_accepts(const Call *c);                \
    int64_t prefix##_workspace(Ctx *ctx, const Call *c); \
    void prefix##_prepare(Call *c, Arena *a);
FORWARD_KERNELS(X)
BACKWARD_KERNELS(X)
#undef X
int query_run(Call *c);
int tiles_run(Call *c);
int frame_run(Call *c);
int64_t blocks_handles(const Call *c);
int64_t blocks_backward_handles(const Call *c);

/* ---- attention.c: operands, workspace, tasks ---- */

/* Whether q, k, v (backward: and do, o) are all f32 or all bf16, with stride 1 on their last axis
 * as the results [B, T, H, D], and other floating-point operands one of the two. */
bool flash_accepts(const Call *c, bool backward);

/* Row [b, i, h] of a [B, T, H, D] tensor in f32. */
INLINE float *flash_row(const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    return f32(t) + flash_at(t, b, i, h);
}

/* Rows [i, i + n) of head h as f32, *apart floats from one to the next: where they lie, or, of
 * bf16, converted into buf, which holds n rows of the head's size. */
const float *flash_load(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, float *buf,
                        int64_t *apart);
/* The way back: rows [i, i + n) of head h, rounded, from f32 ones `apart` floats apart. */
void flash_store(const Tensor *t, int64_t b, int64_t i, int64_t h, int64_t n, const float *rows,
                 int64_t apart);
/* s[j apart] = scale s[j apart] + the mask of a query and key key0 + j, or its level, less the
 * row's (0: it has none), for nkeys of them. */
void flash_add_mask(const Tensor *mask, float *s, int64_t apart, float scale, float level,
                    int64_t b, int64_t h, int64_t query, int64_t key0, int64_t nkeys);
/* The log-sum-exp of a row; a sum of 0 sees nothing. */
INLINE float flash_lse(float top, float sum, float log_sum, bool mask)
{
    float lse = mask ? (float)flash_masked_lse(top, log_sum, F32) : top + log_sum;
    return sum == 0 ? INFINITY : lse;
}

/* Backward: the level of a row, and its log-sum-exp, or what that is but for the level. */
float flash_row_level(const Call *c, int64_t b, int64_t h, int64_t query);
float flash_row_sum(const Call *c, int64_t b, int64_t h, int64_t query);
void flash_add(float *y, const float *x, int64_t n); /* y += x */
/* delta[i] = x[i] y[i] over rows of `size`, ldx and ldy apart; 16 partial sums, added in pairs. */
void flash_row_products(float *delta, const float *x, int64_t ldx, const float *y, int64_t ldy,
                        int64_t rows, int64_t size);

/* to[j][i] = scale from[i][j] for rows i of `from` and columns j; with zeros for i from rows to
 * width. */
void tile_transpose(float *to, int64_t ldto, int64_t width, const float *from, int64_t ldfrom,
                    int64_t rows, int64_t columns, float scale);

INLINE int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* The next n elements of a workspace, or of none, aligned to 64 bytes; *at counts the bytes. */
INLINE char *take_bytes(char *work, int64_t *at, int64_t nbytes)
{
    char *from = work ? work + *at : NULL;
    *at += round_up(nbytes, 64);
    return from;
}

INLINE float *take_floats(char *work, int64_t *at, int64_t n)
{
    return (float *)(void *)take_bytes(work, at, 4 * n);
}

/* In how many parts `count` pieces of each of `heads` heads are dealt to tasks, so that there are
 * tasks for some threads though heads are few: from the sizes alone, so that bits do not depend on
 * the number of threads. */
int64_t flash_parts(int64_t heads, int64_t count);

/* Cuts rows that documents share into pieces of at most `most` queries. A piece ends before a
 * document that does not end in it, so that those of a long document read no other's keys; two that
 * follow each other have more than `most` queries. Fills flash_ncut numbers for each row: how many
 * pieces it has, where they begin, and where the last ends. */
int64_t flash_ncut(int64_t queries, int64_t most);
void flash_cut_rows(const Tensor *starts, int64_t most, int64_t *cuts);

/* Whether piece i is one of part `which`: there and back, so that parts of causal attention cost
 * the same. */
INLINE bool flash_deals(int64_t i, int64_t parts, int64_t which)
{
    int64_t turn = i % (2 * parts);
    return MIN(turn, 2 * parts - 1 - turn) == which;
}

/* ---- exponentials, dot products ---- */

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

/* Exponentials of bf16 are powers of 2: 2^x, within 3e-6 of itself and 1 of 0, likewise; 0 below
 * -126. The polynomial is a minimax fit of our own. */
#define LOG2E 1.44269504f
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

/* The product of n elements of dtype d, in LANES partial sums. */
INLINE float row_dot(const void *x, const void *y, int64_t n, DType d)
{
    float sum[LANES] = {0};
    EACH_LANE(n, i, lane, sum[lane] += v_load(x, i, d) * v_load(y, i, d));
    return lanes_sum(sum);
}

/* ---- tiles.c: products of tiles of f32 ---- */

enum { TILE_LANES = 16 }; /* widths of tiles are multiples of it */

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

/* ---- panels.c, amx.c: products of bf16 ----
 *
 * One factor lies in panels of PANEL columns, as pairs along the axis that the product sums over:
 * two neighbours in one 32-bit word, the lower first, which is what AVX512_BF16 and AMX multiply.
 */

enum { PANEL = 32 }; /* m, n and k are multiples of it; a panel's columns */

/* c[m][n] from a[m][k] and b in panels: panel j, `apart` words after the one before, has columns
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
 * after the other. */
void panel_turn(uint32_t *to, const uint16_t *rows, int64_t n, int64_t size);
void panel_pairs(uint32_t *to, int64_t apart, const uint16_t *rows, int64_t ld, int64_t n,
                 int64_t size);
/* to[d][ld] = rows^T from the panels of rows^T. */
void panel_transpose(uint16_t *to, int64_t ld, const uint32_t *turned, int64_t n, int64_t size);

bool amx_has(void);   /* whether this machine has the instructions and Linux grants them */
void amx_begin(void); /* a thread owns the tiles from here to amx_end(), and multiplies */
void amx_multiply(const PanelProduct *x);
void amx_end(void);

/* ---- frame.c: attention by blocks of queries and keys ---- */

typedef struct Frame Frame;
typedef struct FrameBlock FrameBlock;

/* How a variant cuts: the rows of a block are 1 / share of a head's queries, within 64 and
 * most_rows; the keys that it takes at once; a unit of them; a strip, where it takes fewer at once
 * while not all its queries see them, else 0. */
typedef struct FrameCut {
    int64_t share, most_rows, keys, unit, strip;
} FrameCut;

/* A variant's steps of a task, in the order in which the frame calls them. Where one is NULL the
 * frame's own work is enough. */
typedef struct FrameSteps {
    void (*load_keys)(const FrameBlock *j, int64_t nkeys); /* after the rows of k and v */
    void (*begin)(const FrameBlock *j); /* after the rows of q and do; else y = 0 */
    /* Keys [key, key + nkeys) against the block. A status that is not 0 fails the call. */
    int (*step)(const FrameBlock *j, int64_t key, int64_t nkeys);
    void (*end)(const FrameBlock *j); /* leaves rows of o and lse, or of dq */
} FrameSteps;

/* A variant in one direction: by products of the library, or of panels. */
typedef struct FrameVariant {
    bool backward;
    FrameCut cut;
    const FrameSteps *steps;
    /* The library: its products, of a block and n keys. */
    OneProduct (*describe)(const Frame *s, int which, int64_t nkeys);
    int nproduct;
    /* Panels: their product, and bytes of a slot's workspace beside FrameWork. */
    void (*multiply)(const PanelProduct *x);
    int64_t (*own)(const Frame *s);
} FrameVariant;

struct Frame {
    Flash f;
    const FrameVariant *by;
    DType dtype;
    int64_t size;          /* of a head as it is copied; zeros to whole panels */
    int64_t queries, rows; /* of a block; rows are padded to whole vectors */
    int64_t count, parts;  /* blocks; tasks of a key head, among which they are dealt */
    int64_t ncut;          /* of a row that documents share; 0: blocks have the same queries */
    unsigned used;         /* bit u - 1: some block meets just u units of keys, at its end */
    int64_t unit, steps, padded; /* keys: of a unit; units of a block; all, to whole units */
    int64_t strip;               /* keys that a block takes where not all its queries see them */
    int64_t ntask, nslot;        /* slot s runs every nslot-th task and has its own workspace */
    int64_t nbytes, nown;        /* of a slot's workspace; of which at its end the variant's own */
};

/* A slot's: rows of q and do; keys and values of a head (panels forward: one unit of values);
 * scores s and dp = v do^T of a block; p and ds of bf16, else in their place; o or dq in f32; of
 * each row the maximum and the sum, the log-sum-exp and rowsum(do o). The other direction's are
 * NULL. */
typedef struct FrameWork {
    char *q, *grad, *k, *v, *p, *ds, *own;
    float *s, *dp, *y, *top, *sum, *lse, *delta;
} FrameWork;

/* A block of queries of the group of heads that read key head `head`. */
struct FrameBlock {
    const Call *c;
    const Frame *s;
    FrameWork w;
    OneRun **run;   /* products of u units of keys: run[which steps + u - 1] */
    float *dk, *dv; /* the task's sums */
    const Tensor *mask, *starts;
    float factor; /* that scores are multiplied by before a mask is added */
    float scale;  /* and what they are multiplied by then: factor, or 1 where there is a mask */
    int64_t b, head;
    int64_t query, n, rows; /* the block's first query; its rows, without padding and with it */
    int64_t first;          /* the unit of keys from which on some of them see */
};

/* The functions of a Kernel that is a variant in one direction. */
bool frame_accepts(const Call *c, const FrameVariant *by);
int64_t frame_workspace(Ctx *ctx, const Call *c, const FrameVariant *by);
int64_t frame_handles(const Call *c, const FrameVariant *by); /* measured */
void frame_prepare(Call *c, Arena *a, const FrameVariant *by);

/* Defines them under the Kernel's prefix; `has` says whether the machine and the dtype are the
 * variant's. */
#define FRAME_KERNEL(prefix, by, has)                   \
    bool prefix##_accepts(const Call *c)                \
    {                                                   \
        return (has) && frame_accepts(c, by);           \
    }                                                   \
    int64_t prefix##_workspace(Ctx *ctx, const Call *c) \
    {                                                   \
        return frame_workspace(ctx, c, by);             \
    }                                                   \
    void prefix##_prepare(Call *c, Arena *a)            \
    {                                                   \
        frame_prepare(c, a, by);                        \
    }

INLINE int64_t frame_units(const Frame *s, int64_t nkeys)
{
    return (nkeys + s->unit - 1) / s->unit;
}

/* The rows of a block before the first that sees a key. */
int64_t frame_unseen(const FrameBlock *j, int64_t key);
/* The rows of a block up to those of documents that begin after a key; all where there are none. */
int64_t frame_ended(const FrameBlock *j, int64_t key);
/* Copies unit u of the first n keys of a head, with zeros after. */
void frame_load_unit(const Frame *s, const Tensor *t, int64_t b, int64_t head, int64_t n, int64_t u,
                     char *to);
/* Adds the mask to the scores of keys [key, key + nkeys) and rows from `first` on, which lie `step`
 * floats from row to row and `apart` from key to key. */
void frame_add_mask(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t first, int64_t step,
                    int64_t apart);
/* Backward, scores by rows of keys: p and ds of keys [key, key + nkeys) and the rows from `first`
 * on; zeros for keys after, up to `width`, and for queries before the first that sees a key. */
void frame_score_grads(const FrameBlock *j, int64_t key, int64_t nkeys, int64_t width,
                       int64_t first);

#endif
