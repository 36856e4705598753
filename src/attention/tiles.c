/* The variant "tiles": small tiles of queries and keys, by vectors in f32.
 *
 * Method: online softmax over tiles (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al.
 * 2022, arXiv:2205.14135, algorithm 4 with queries outside for the backward). A tile of queries of
 * one head walks the tiles of keys that any of them sees. Forward, it keeps per query the maximum m
 * and the sum l of exp(s - m), and o^T scaled to m. Backward, it recomputes p, keeps dq^T in its
 * workspace and adds its share of dk and dv to their rows. Scores, p and dp are held transposed,
 * queries along the lanes, so that everything per query (maximum, sum, mask) is elementwise in
 * vectors, q (and do) alone is transposed, and k, v are read by their strides: slices of a fused
 * projection need no copy.
 *
 * Tiles begin where long documents do (flash_cut_rows): which queries a tile has is found for each
 * row before the tasks run.
 *
 * Tasks: forward, pairs of tiles from both ends of a head's queries, so that causal ones cost the
 * same. Backward, a task owns the rows of one key head in one copy of dk and dv and walks all tiles
 * of queries that are its own, one after the other. There is one copy where the key heads are
 * enough tasks; else the tiles of queries are dealt to several tasks, each with a copy, and the
 * copies are added in order. Copies of bf16 are f32 in the workspace, where a task's own is
 * enough if there is one copy, and are rounded once into dk and dv.
 *
 * Numerics: f32, to which tiles of bf16 are converted as they are read; every element in a fixed
 * order of keys, whatever the threads. Processors that multiply bf16 have panels.c. */
#include "attention.h"

#include <math.h>

/* ---- products ---- */

/* Vectors wider than the instruction set's are slow, narrower ones too: one variant for each. */
#if defined(TN_X86) && !defined(__clang__)
#define X86_VARIANTS 1
#define LANES        16
#define ROWS         8
#define COLUMNS      3
#define NAME(x)      x##16
#define TARGET       __attribute__((target("arch=x86-64-v4"), optimize("fp-contract=fast")))
#include "tile.h"

#define LANES   8
#define ROWS    4
#define COLUMNS 3
#define NAME(x) x##8
#define TARGET  __attribute__((target("arch=x86-64-v3"), optimize("fp-contract=fast")))
#include "tile.h"
#endif

#define LANES   4
#define ROWS    4
#define COLUMNS 2
#define NAME(x) x##4
#define TARGET
#include "tile.h"

bool tile_multiply_by(int lanes, const TileProduct *x)
{
#ifdef X86_VARIANTS
    if (lanes == 16 && isa_level() >= ISA_AVX512) {
        multiply16(x);
        return true;
    }
    if (lanes == 8 && isa_level() >= ISA_AVX2) {
        multiply8(x);
        return true;
    }
#endif
    if (lanes == 4)
        multiply4(x);
    return lanes == 4;
}

void tile_multiply(const TileProduct *x)
{
    for (int lanes = 16; !tile_multiply_by(lanes, x);)
        lanes /= 2;
}

/* ---- sizes and workspace ---- */

enum {
    TILE_QUERIES = 48, /* most queries of a tile */
    TILE_KEYS = 64,    /* most keys of a tile; a multiple of 4 */
};

/* Slot s of nslot takes every nslot-th task: task i is part i % parts of head i / parts, a pair of
 * tiles of a head's queries, backward a copy of a key head's sums. Workspace: the slots'; where
 * documents share rows, their cuts; then the sums of dk and dv: of f32 the copies but the first,
 * which is the output; of bf16 [keys][padded] for each task, or for each slot where there is one
 * copy. */
typedef struct TileState {
    Flash f;
    bool backward, narrow; /* narrow: bf16 */
    int64_t count, width;  /* tiles of queries, the last perhaps narrower */
    int64_t ncut;          /* of a row that documents share; 0: none do */
    int64_t parts, ntask, nslot;
    int64_t nbytes; /* of a slot's workspace */
    int64_t nsum;   /* floats of workspace for sums */
    int64_t padded; /* floats from one row of `q` and such to the next */
} TileState;

/* Workspace of a slot. Both: q^T and o^T or dq^T [size][lanes]; scores, then p [keys][lanes];
 * `rows` of bf16 in f32, backward also a tile of dk or dv [keys][padded]. Forward: [lanes] each.
 * Backward: do^T [size][lanes]; q and do [lanes][padded]; ds [keys][lanes]; lse and delta [lanes];
 * of bf16 a tile of k and one of v [keys][size]. */
typedef struct TileBuffers {
    float *q_t, *y_t, *s, *rows;
    float *top, *sum, *alpha;
    float *do_t, *q, *grad, *ds, *lse, *delta, *k, *v;
} TileBuffers;

static TileBuffers work_of(const TileState *s, char *work, int64_t *nbytes)
{
    int64_t lanes = s->width, turned = s->f.size * lanes, scores = TILE_KEYS * lanes;
    int64_t keys = s->narrow ? TILE_KEYS * s->f.size : 0, rows = lanes * s->padded;
    TileBuffers w = {0};
    *nbytes = 0;
    w.q_t = take_floats(work, nbytes, turned);
    w.y_t = take_floats(work, nbytes, turned);
    w.s = take_floats(work, nbytes, scores);
    w.rows = take_floats(work, nbytes, s->backward ? TILE_KEYS * s->padded : keys);
    if (!s->backward) {
        w.top = take_floats(work, nbytes, lanes);
        w.sum = take_floats(work, nbytes, lanes);
        w.alpha = take_floats(work, nbytes, lanes);
        w.k = w.v = w.rows; /* one after the other */
        return w;
    }
    w.do_t = take_floats(work, nbytes, turned);
    w.q = take_floats(work, nbytes, rows);
    w.grad = take_floats(work, nbytes, rows);
    w.ds = take_floats(work, nbytes, scores);
    w.lse = take_floats(work, nbytes, lanes);
    w.delta = take_floats(work, nbytes, lanes);
    w.k = take_floats(work, nbytes, keys);
    w.v = take_floats(work, nbytes, keys);
    return w;
}

static int64_t round_lanes(int64_t n)
{
    return round_up(n, TILE_LANES);
}

static TileState state_of(const Call *c, bool backward)
{
    TileState s = {.f = flash_of(c->node, backward ? Q : 0), .backward = backward};
    const Flash *f = &s.f;
    int64_t heads = backward ? f->batch * f->heads / f->group : f->batch * f->heads;
    int64_t count = (f->queries + TILE_QUERIES - 1) / TILE_QUERIES;
    s.width = round_lanes((f->queries + count - 1) / MAX(count, 1));
    s.count = count ? (f->queries + s.width - 1) / s.width : 0;
    s.narrow = c->in[0].dtype == BF16;
    s.ncut = flash_starts(c, backward ? MASK : 3) ? flash_ncut(f->queries, s.width) : 0;
    s.padded = round_lanes(f->size);
    s.parts = backward ? flash_parts(heads, s.count) : (s.count + 1) / 2;
    s.ntask = heads * s.parts;
    s.nslot = MAX(1, MIN(par_threads(), s.ntask));
    if (backward && s.narrow)
        s.nsum = 2 * (s.parts == 1 ? s.nslot : s.ntask) * f->keys * s.padded;
    else if (backward)
        s.nsum = 2 * (s.parts - 1) * heads * f->keys * f->size;
    work_of(&s, NULL, &s.nbytes);
    return s;
}

/* Bytes of the workspace before the sums. */
static int64_t before_sums(const TileState *s)
{
    return s->nslot * s->nbytes + round_up(s->f.batch * s->ncut * (int64_t)sizeof(int64_t), 64);
}

/* Those of row b; NULL: tiles have the same width. */
static int64_t *cuts_of(const Call *c, int64_t b)
{
    const TileState *s = c->state;
    int64_t *cuts = (int64_t *)(void *)(c->work + s->nslot * s->nbytes);
    return s->ncut ? cuts + b * s->ncut : NULL;
}

/* tiles_accepts, tiles_workspace, tiles_prepare; tiles_backward_accepts, tiles_backward_workspace,
 * tiles_backward_prepare. */
#define X(prefix, backward)                                       \
    bool prefix##_accepts(const Call *c)                          \
    {                                                             \
        return flash_accepts(c, backward);                        \
    }                                                             \
    int64_t prefix##_workspace(Ctx *ctx, const Call *c)           \
    {                                                             \
        (void)ctx;                                                \
        TileState s = state_of(c, backward);                      \
        return before_sums(&s) + s.nsum * (int64_t)sizeof(float); \
    }                                                             \
    void prefix##_prepare(Call *c, Arena *a)                      \
    {                                                             \
        TileState *s = c->state = NEW(a, TileState);              \
        *s = state_of(c, backward);                               \
    }
X(tiles, false)
X(tiles_backward, true)
#undef X

/* ---- a tile of queries ---- */

/* A task's sums of dk or dv: rows of keys, `apart` floats from one to the next. */
typedef struct TileSums {
    float *rows;
    int64_t apart;
} TileSums;

/* A tile's queries of head h, [query, query + n), and keys of it. */
typedef struct TileJob {
    const Call *c;
    const TileState *s;
    const TileBuffers *w;
    TileSums dk, dv;
    int64_t b, h, query, n, lanes;
    int64_t first, key, nkeys; /* first: the key from which on some query of the tile sees */
} TileJob;

/* The queries' rows of t, and turned times scale. */
static const float *load_rows(const TileJob *j, const Tensor *t, float *turned, float scale,
                              int64_t *apart)
{
    const float *rows = flash_load(t, j->b, j->query, j->h, j->n, j->w->rows, apart);
    tile_transpose(turned, j->lanes, j->lanes, rows, *apart, j->n, j->s->f.size, scale);
    return rows;
}

/* The keys' rows of k or v. */
static const float *load_keys(const TileJob *j, const Tensor *t, float *buf, int64_t *apart)
{
    return flash_load(t, j->b, j->key, j->h / j->s->f.group, j->nkeys, buf, apart);
}

/* to = rows turned: scores, or dp. */
static void multiply_keys(const TileJob *j, float *to, const float *rows, int64_t apart,
                          const float *turned)
{
    tile_multiply(&(TileProduct){.c = to,
                                 .ldc = j->lanes,
                                 .a = rows,
                                 .lda = apart,
                                 .b = turned,
                                 .ldb = j->lanes,
                                 .m = j->nkeys,
                                 .n = j->lanes,
                                 .k = j->s->f.size});
}

/* o^T = o^T alpha + v^T p, or dq^T += k^T ds; the first keys set it. */
static void multiply_turned(const TileJob *j, const float *rows, int64_t apart, const float *b)
{
    TileInto into = j->s->backward ? TILE_ADD : TILE_SCALE;
    tile_multiply(&(TileProduct){.c = j->w->y_t,
                                 .ldc = j->lanes,
                                 .a = rows,
                                 .lda = apart,
                                 .b = b,
                                 .ldb = j->lanes,
                                 .alpha = j->w->alpha,
                                 .m = j->s->f.size,
                                 .n = j->lanes,
                                 .k = j->nkeys,
                                 .turned = true,
                                 .into = j->key > j->first ? into : TILE_SET});
}

/* -inf for keys before the document of a query. */
static void mask_documents(const TileJob *j, const Tensor *starts)
{
    for (int64_t i = 0; i < j->n && starts; i++) {
        int64_t blind = MIN(j->nkeys, flash_first(starts, j->b, j->query + i) - j->key);
        for (int64_t r = 0; r < blind; r++)
            j->w->s[r * j->lanes + i] = -INFINITY;
    }
}

/* Adds the mask to scores; -inf where a query does not see a key, and in rows past nkeys up to a
 * multiple of 4. */
static void mask_scores(const TileJob *j)
{
    const Flash *f = &j->s->f;
    const int extra = j->s->backward ? MASK : 3;
    const Tensor *mask = flash_mask(j->c, extra);
    float *s = j->w->s;
    int64_t lanes = j->lanes;
    for (int64_t i = 0; i < j->n && mask; i++) {
        float level = j->s->backward ? flash_row_level(j->c, j->b, j->h, j->query + i) : 0;
        flash_add_mask(mask, s + i, lanes, 1, level, j->b, j->h, j->query + i, j->key, j->nkeys);
    }
    for (int64_t r = 0; r < j->nkeys && f->causal; r++) {
        int64_t blind = MIN(lanes, j->key + r - f->offset - j->query);
        for (int64_t i = 0; i < blind; i++)
            s[r * lanes + i] = -INFINITY;
    }
    mask_documents(j, flash_starts(j->c, extra));
    for (int64_t i = j->nkeys * lanes; i < round_up(j->nkeys, 4) * lanes; i++)
        s[i] = -INFINITY;
}

/* The queries' rows of o or dq from y^T. */
static void put_rows(const TileJob *j)
{
    const Tensor *y = &j->c->out[0];
    int64_t size = y->dim[3], apart = j->s->narrow ? size : y->stride[1];
    float *rows = j->s->narrow ? j->w->rows : flash_row(y, j->b, j->query, j->h);
    tile_transpose(rows, apart, size, j->w->y_t, j->lanes, size, j->n, 1);
    if (j->s->narrow)
        flash_store(y, j->b, j->query, j->h, j->n, rows, size);
}

/* ---- forward ---- */

static void begin(const TileJob *j)
{
    int64_t apart;
    load_rows(j, &j->c->in[0], j->w->q_t, (float)j->s->f.scale, &apart);
    for (int64_t i = 0; i < j->lanes; i++) {
        j->w->top[i] = -INFINITY;
        j->w->sum[i] = 0;
    }
}

/* s = exp(s - new top), the sums and the factor alpha that brings what was summed before to the new
 * top. Four keys at a time; rows beyond nkeys are -inf. */
KERNEL_FMA(void, softmax, (const TileBuffers *w, int64_t nkeys, int64_t lanes), (w, nkeys, lanes))
{
    for (int64_t i = 0; i < lanes; i += TILE_LANES) {
        float *s = w->s + i, top[TILE_LANES], base[TILE_LANES], sum[TILE_LANES] = {0};
        memcpy(top, w->top + i, sizeof top);
        for (int64_t j = 0; j < nkeys; j += 4)
            for (int l = 0; l < TILE_LANES; l++) {
                const float *x = s + j * lanes + l;
                float y = MAX(x[0], x[lanes]), z = MAX(x[2 * lanes], x[3 * lanes]);
                y = MAX(y, z);
                top[l] = MAX(top[l], y);
            }
        for (int l = 0; l < TILE_LANES; l++) /* nothing seen yet: exp(-inf - 0) */
            base[l] = top[l] == -INFINITY ? 0.0f : top[l];
        for (int64_t j = 0; j < nkeys; j += 4) {
            float *x = s + j * lanes;
            INDEPENDENT
            for (int l = 0; l < TILE_LANES; l++) {
                float p0 = tile_exp(x[l] - base[l]), p1 = tile_exp(x[lanes + l] - base[l]);
                float p2 = tile_exp(x[2 * lanes + l] - base[l]);
                float p3 = tile_exp(x[3 * lanes + l] - base[l]);
                x[l] = p0;
                x[lanes + l] = p1;
                x[2 * lanes + l] = p2;
                x[3 * lanes + l] = p3;
                sum[l] += (p0 + p1) + (p2 + p3);
            }
        }
        for (int l = 0; l < TILE_LANES; l++) {
            w->alpha[i + l] = tile_exp(w->top[i + l] - base[l]);
            w->sum[i + l] = w->sum[i + l] * w->alpha[i + l] + sum[l];
            w->top[i + l] = top[l];
        }
    }
}

static void step(const TileJob *j)
{
    const TileBuffers *w = j->w;
    int64_t apart;
    const float *k = load_keys(j, &j->c->in[1], w->k, &apart);
    multiply_keys(j, w->s, k, apart, w->q_t);
    mask_scores(j);
    softmax(w, j->nkeys, j->lanes);
    const float *v = load_keys(j, &j->c->in[2], w->v, &apart);
    multiply_turned(j, v, apart, w->s);
}

KERNEL(void, divide, (const TileBuffers *w, int64_t size, int64_t lanes), (w, size, lanes))
{
    for (int64_t i = 0; i < lanes; i++)
        w->alpha[i] = w->sum[i] == 0 ? 0.0f : 1.0f / w->sum[i]; /* 0: sees nothing */
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < lanes; i++)
            w->y_t[d * lanes + i] *= w->alpha[i];
}

static void end(const TileJob *j)
{
    const TileBuffers *w = j->w;
    const Tensor *lse = &j->c->out[1];
    float *to = f32(lse) + tensor_index(lse, (int64_t[]){j->b, j->h, j->query});
    bool mask = flash_has_mask(j->c->node, 3);
    divide(w, j->s->f.size, j->lanes);
    for (int64_t i = 0; i < j->n; i++)
        to[i * lse->stride[2]] = flash_lse(w->top[i], w->sum[i], logf(w->sum[i]), mask);
}

/* ---- backward ---- */

static void copy_rows(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                      int64_t size)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * ldto, from + i * ldfrom, sizeof *to * (size_t)size);
        memset(to + i * ldto + size, 0, sizeof *to * (size_t)(ldto - size));
    }
}

/* Rows of q, which is scaled where it is turned, and of do; lse and delta. */
static void begin_backward(const TileJob *j)
{
    const TileBuffers *w = j->w;
    const Tensor *x = j->c->in;
    int64_t apart, other, size = j->s->f.size;
    const float *rows = load_rows(j, &x[Q], w->q_t, (float)j->s->f.scale, &apart);
    copy_rows(w->q, j->s->padded, rows, apart, j->n, size);
    rows = load_rows(j, &x[DO], w->do_t, 1, &apart);
    copy_rows(w->grad, j->s->padded, rows, apart, j->n, size);
    const float *o = flash_load(&x[O], j->b, j->query, j->h, j->n, w->k, &other);
    flash_row_products(w->delta, rows, apart, o, other, j->n, size);
    for (int64_t i = 0; i < j->lanes; i++) {
        w->lse[i] = i < j->n ? flash_row_sum(j->c, j->b, j->h, j->query + i) : 0;
        w->delta[i] = i < j->n ? w->delta[i] : 0;
    }
}

/* s: scores to p; ds: dp to ds. */
KERNEL_FMA(void, score_grads, (const TileBuffers *w, int64_t nkeys, int64_t lanes, float scale),
           (w, nkeys, lanes, scale))
{
    for (int64_t i = 0; i < lanes; i += TILE_LANES)
        for (int64_t j = 0; j < nkeys; j++)
            for (int l = 0; l < TILE_LANES; l++) {
                int64_t at = j * lanes + i + l;
                float p = tile_exp(w->s[at] - w->lse[i + l]);
                w->s[at] = p;
                w->ds[at] = p * (w->ds[at] - w->delta[i + l]) * scale;
            }
}

/* The keys' rows of dk or dv += a b, a[nkeys][n] of the tile, b[n][padded]. Rows that are no
 * multiple of the lanes go through a tile of their own. */
static void add_product(const TileJob *j, TileSums sums, const float *a, const float *b)
{
    const TileState *s = j->s;
    bool direct = s->narrow || s->padded == s->f.size;
    float *rows = sums.rows + j->key * sums.apart, *part = j->w->rows;
    tile_multiply(&(TileProduct){.c = direct ? rows : part,
                                 .ldc = direct ? sums.apart : s->padded,
                                 .a = a,
                                 .lda = j->lanes,
                                 .b = b,
                                 .ldb = s->padded,
                                 .m = j->nkeys,
                                 .n = s->padded,
                                 .k = j->n,
                                 .into = direct ? TILE_ADD : TILE_SET});
    for (int64_t i = 0; i < j->nkeys && !direct; i++)
        for (int64_t d = 0; d < s->f.size; d++)
            rows[i * sums.apart + d] += part[i * s->padded + d];
}

static void step_backward(const TileJob *j)
{
    const TileBuffers *w = j->w;
    int64_t apart, other;
    const float *k = load_keys(j, &j->c->in[K], w->k, &apart);
    const float *v = load_keys(j, &j->c->in[V], w->v, &other);
    multiply_keys(j, w->s, k, apart, w->q_t);
    multiply_keys(j, w->ds, v, other, w->do_t);
    mask_scores(j);
    score_grads(w, j->nkeys, j->lanes, (float)j->s->f.scale);
    add_product(j, j->dk, w->ds, w->q);
    add_product(j, j->dv, w->s, w->grad);
    multiply_turned(j, k, apart, w->ds);
}

/* The sums of result k, dk or dv, of task i, run in a slot. The first copy in f32 is the result. */
static TileSums sums_of(const Call *c, int64_t slot, int64_t i, int k)
{
    const TileState *s = c->state;
    int64_t copy = i % s->parts, head = i / s->parts, heads = s->f.heads / s->f.group;
    int64_t size = s->f.size, keys = s->f.keys, which = k - DK;
    float *work = (float *)(void *)(c->work + before_sums(s));
    const Tensor *y = &c->out[k];
    if (s->narrow)
        return (TileSums){work + (2 * (s->parts == 1 ? slot : i) + which) * keys * s->padded,
                          s->padded};
    if (copy == 0)
        return (TileSums){flash_row(y, head / heads, 0, head % heads), y->stride[1]};
    work += (2 * (copy - 1) + which) * s->ntask / s->parts * keys * size;
    return (TileSums){work + (head / heads * keys * heads + head % heads) * size, heads * size};
}

/* Rows lo to hi of dk or dv, by heads: those of the first copy get the others' added. */
static void add_rows(const Call *c, int k, int64_t lo, int64_t hi)
{
    const TileState *s = c->state;
    int64_t heads = s->f.heads / s->f.group, keys = s->f.keys;
    while (lo < hi) {
        int64_t head = lo / keys, key = lo % keys, n = MIN(keys - key, hi - lo);
        TileSums to = sums_of(c, 0, head * s->parts, k);
        float *rows = to.rows + key * to.apart;
        for (int64_t copy = 1; copy < s->parts; copy++) {
            TileSums from = sums_of(c, 0, head * s->parts + copy, k);
            for (int64_t i = 0; i < n; i++)
                flash_add(rows + i * to.apart, from.rows + (key + i) * from.apart, s->f.size);
        }
        if (s->narrow)
            flash_store(&c->out[k], head / heads, key, head % heads, n, rows, to.apart);
        lo += n;
    }
}

static void add_copies(void *arg, int64_t lo, int64_t hi)
{
    add_rows(arg, DK, lo, hi);
    add_rows(arg, DV, lo, hi);
}

/* ---- tasks ---- */

/* Tile t of j's head against all keys that its queries see: starts of documents never fall, so that
 * the first query's is the least. */
static void tile(TileJob *j, int64_t t)
{
    const TileState *s = j->s;
    const int64_t *cuts = cuts_of(j->c, j->b);
    j->query = cuts ? cuts[1 + t] : t * s->width;
    j->n = cuts ? cuts[2 + t] - j->query : MIN(s->width, s->f.queries - j->query);
    j->lanes = round_lanes(j->n);
    int64_t seen = flash_seen(&s->f, j->query + j->n - 1);
    j->first = flash_first(flash_starts(j->c, s->backward ? MASK : 3), j->b, j->query);
    (s->backward ? begin_backward : begin)(j);
    for (j->key = j->first; j->key < seen; j->key += TILE_KEYS) {
        j->nkeys = MIN(TILE_KEYS, seen - j->key);
        (s->backward ? step_backward : step)(j);
    }
    if (!s->backward)
        end(j);
    put_rows(j);
}

static void task(TileJob *j, int64_t part)
{
    const TileState *s = j->s;
    int64_t count = s->ncut ? *cuts_of(j->c, j->b) : s->count;
    for (int64_t t = 0; t < count; t++)
        if (flash_deals(t, s->parts, part))
            tile(j, t);
}

static void task_backward(TileJob *j, int64_t part, bool stores)
{
    const TileState *s = j->s;
    const Flash *f = &s->f;
    const Tensor *out = j->c->out;
    size_t nbytes = sizeof(float) * (size_t)(s->narrow ? s->padded : f->size);
    int64_t head = j->h;
    for (int64_t i = 0; i < f->keys; i++) {
        memset(j->dk.rows + i * j->dk.apart, 0, nbytes);
        memset(j->dv.rows + i * j->dv.apart, 0, nbytes);
    }
    for (j->h = head * f->group; j->h < (head + 1) * f->group; j->h++)
        task(j, part);
    if (stores) {
        flash_store(&out[DK], j->b, 0, head, f->keys, j->dk.rows, j->dk.apart);
        flash_store(&out[DV], j->b, 0, head, f->keys, j->dv.rows, j->dv.apart);
    }
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const TileState *s = c->state;
    int64_t heads = s->backward ? s->f.heads / s->f.group : s->f.heads, nbytes;
    for (int64_t slot = lo; slot < hi; slot++) {
        TileBuffers w = work_of(s, c->work + slot * s->nbytes, &nbytes);
        for (int64_t i = slot; i < s->ntask; i += s->nslot) {
            int64_t head = i / s->parts, part = i % s->parts;
            TileJob j = {.c = c, .s = s, .w = &w, .b = head / heads, .h = head % heads};
            if (!s->backward) {
                task(&j, part);
                continue;
            }
            j.dk = sums_of(c, slot, i, DK);
            j.dv = sums_of(c, slot, i, DV);
            task_backward(&j, part, s->narrow && s->parts == 1);
        }
    }
}

int tiles_run(Call *c)
{
    TileState *s = c->state;
    if (s->backward ? flash_check_documents(c, MASK) : flash_place(c, &s->f))
        return -1;
    if (s->ncut)
        flash_cut_rows(flash_starts(c, s->backward ? MASK : 3), s->width, cuts_of(c, 0));
    par_for(s->nslot, 1, slots, c);
    if (s->backward && s->parts > 1)
        par_for(s->ntask / s->parts * s->f.keys, row_grain(s->f.size), add_copies, c);
    return 0;
}
