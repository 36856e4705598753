/* The kernels of flash_attention_backward, of which "tiles" is here.
 *
 * Method: Dao et al. 2022 (arXiv:2205.14135), algorithm 4, with queries outside: a tile of queries
 * recomputes p tile by tile of keys, keeps dq^T in its workspace and adds its share of dk and dv to
 * their rows. p and dp are held transposed, queries along the lanes (flash_tile.h).
 *
 * Order: a task owns the rows of one key head in one copy of dk and dv and walks all tiles of
 * queries that are its own, one after the other. There is one copy where the key heads are enough
 * tasks; else the tiles of queries are dealt to several tasks, each with a copy, and the copies are
 * added in order. Of bf16 the copies are f32 in the workspace, where a task's own is enough if
 * there is one copy, and are rounded once into dk and dv.
 *
 * Numerics: f32, to which tiles of bf16 are converted as they are read; processors that multiply
 * bf16 have kernels for it in flash_blocks_backward.c. */
#include "flash_blocks.h"
#include "../op/rows.h"

/* ---- tasks ---- */

/* Task i: key head i / ncopy, copy i % ncopy. Slot s of nslot takes every nslot-th task. Workspace:
 * the slots', then the sums of dk and dv: of f32 the copies but the first, which is the output; of
 * bf16 [keys][padded] for each task, or for each slot where there is one copy. */
typedef struct BackwardState {
    Flash f;
    Tiles tiles;
    bool narrow; /* bf16 */
    int64_t ntask, ncopy, nslot;
    int64_t nfloat; /* of a slot's workspace */
    int64_t nsum;   /* floats of workspace for sums */
    int64_t nelem;  /* of dk */
    int64_t padded; /* floats from one row of `rows` and such to the next */
} BackwardState;

/* Workspace of a slot: q^T, do^T and dq^T [size][lanes]; q and do [lanes][padded]; p and ds
 * [keys][lanes]; a tile of dk or dv [keys][padded]; lse and delta [lanes]; of bf16 also a tile of k
 * and one of v [keys][size]. */
typedef struct Work {
    float *q_t, *do_t, *dq_t, *q, *grad, *p, *ds, *part, *lse, *delta, *k, *v;
} Work;

static Work work_of(const BackwardState *s, char *work, int64_t slot)
{
    int64_t lanes = s->tiles.width, turned = s->f.size * lanes, rows = lanes * s->padded;
    Work w;
    w.q_t = (float *)(void *)work + slot * s->nfloat;
    w.do_t = w.q_t + turned;
    w.dq_t = w.do_t + turned;
    w.q = w.dq_t + turned;
    w.grad = w.q + rows;
    w.p = w.grad + rows;
    w.ds = w.p + TILE_KEYS * lanes;
    w.part = w.ds + TILE_KEYS * lanes;
    w.lse = w.part + TILE_KEYS * s->padded;
    w.delta = w.lse + lanes;
    w.k = w.delta + lanes;
    w.v = w.k + TILE_KEYS * s->f.size;
    return w;
}

static bool accepts(const Call *c)
{
    return flash_accepts(c, 5);
}

/* So many copies that there are tasks for some threads, though key heads are few: from the sizes
 * alone, so that bits do not depend on the number of threads. */
static int64_t copies(int64_t nhead, int64_t ntile)
{
    enum { TASKS = 8 };
    return MAX(1, MIN(ntile, (TASKS + nhead - 1) / MAX(nhead, 1)));
}

static BackwardState state_of(const Call *c)
{
    BackwardState s = {.f = flash_of(c->node, Q)};
    int64_t nhead = s.f.batch * s.f.heads / s.f.group;
    s.tiles = flash_tiles(s.f.queries);
    s.padded = round_lanes(s.f.size);
    s.ncopy = copies(nhead, s.tiles.count);
    s.ntask = nhead * s.ncopy;
    s.nslot = MAX(1, MIN(par_threads(), s.ntask));
    s.nelem = nhead * s.f.keys * s.f.size;
    s.nfloat =
        s.tiles.width * (3 * s.f.size + 2 * s.padded + 2 * TILE_KEYS + 2) + TILE_KEYS * s.padded;
    s.narrow = c->out[DQ].dtype == BF16;
    s.nsum = 2 * (s.ncopy - 1) * s.nelem;
    if (s.narrow) {
        s.nfloat += round_lanes(2 * TILE_KEYS * s.f.size);
        s.nsum = 2 * (s.ncopy == 1 ? s.nslot : s.ntask) * s.f.keys * s.padded;
    }
    return s;
}

static int64_t nbytes_work(const BackwardState *s)
{
    return (s->nslot * s->nfloat + s->nsum) * (int64_t)sizeof(float);
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    BackwardState s = state_of(c);
    return nbytes_work(&s);
}

static void prepare(Call *c, Arena *a)
{
    BackwardState *s = c->state = NEW(a, BackwardState);
    *s = state_of(c);
}

/* delta[i] = do[i] o[i] over rows of `size`; 16 partial sums, added in pairs. */
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

/* p: scores to probabilities; ds: dp to ds. */
KERNEL_FMA(void, score_grads, (const Work *w, int64_t nkeys, int64_t lanes, float scale),
           (w, nkeys, lanes, scale))
{
    for (int64_t i = 0; i < lanes; i += TILE_LANES)
        for (int64_t j = 0; j < nkeys; j++)
            for (int l = 0; l < TILE_LANES; l++) {
                int64_t at = j * lanes + i + l;
                float p = tile_exp(w->p[at] - w->lse[i + l]);
                w->p[at] = p;
                w->ds[at] = p * (w->ds[at] - w->delta[i + l]) * scale;
            }
}

static void copy_rows(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                      int64_t size)
{
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * ldto, from + i * ldfrom, sizeof *to * (size_t)size);
        memset(to + i * ldto + size, 0, sizeof *to * (size_t)(ldto - size));
    }
}

/* A task's sums of dk or dv: rows of keys, `apart` floats from one to the next. */
typedef struct Sums {
    float *rows;
    int64_t apart;
} Sums;

/* A tile's queries of head h: [query, query + n); of tile_keys also its keys. */
typedef struct BackwardJob {
    const Call *c;
    const BackwardState *s;
    const Work *w;
    Sums dk, dv;
    int64_t b, h, query, n, lanes;
    int64_t key, nkeys;
} BackwardJob;

/* Rows [key, key + nkeys) of dk or dv += a b, a[nkeys][n] of the tile, b[n][padded]. Rows that are
 * no multiple of the lanes go through a tile of their own. */
static void add_product(const BackwardJob *j, Sums sums, const float *a, const float *b)
{
    const BackwardState *s = j->s;
    bool direct = s->narrow || s->padded == s->f.size;
    float *rows = sums.rows + j->key * sums.apart, *part = j->w->part;
    TileProduct x = {.c = direct ? rows : part,
                     .ldc = direct ? sums.apart : s->padded,
                     .a = a,
                     .lda = j->lanes,
                     .b = b,
                     .ldb = s->padded,
                     .m = j->nkeys,
                     .n = s->padded,
                     .k = j->n,
                     .into = direct ? TILE_ADD : TILE_SET};
    tile_multiply(&x);
    for (int64_t i = 0; i < j->nkeys && !direct; i++)
        for (int64_t d = 0; d < s->f.size; d++)
            rows[i * sums.apart + d] += part[i * s->padded + d];
}

/* q^T, which is scaled, do^T and their rows. */
static void load_rows(const BackwardJob *j)
{
    const Work *w = j->w;
    const Tensor *from[] = {&j->c->in[Q], &j->c->in[DO]};
    float *turned[] = {w->q_t, w->do_t}, *rows[] = {w->q, w->grad};
    for (int i = 0; i < 2; i++) {
        int64_t apart;
        const float *x = flash_load(from[i], j->b, j->query, j->h, j->n, w->part, &apart);
        tile_transpose(turned[i], j->lanes, j->lanes, x, apart, j->n, j->s->f.size,
                       i ? 1 : (float)j->s->f.scale);
        copy_rows(rows[i], j->s->padded, x, apart, j->n, j->s->f.size);
    }
}

/* The queries' rows, lse and delta. */
static void load(const BackwardJob *j)
{
    const Work *w = j->w;
    const Tensor *x = j->c->in, *lse = &x[LSE];
    int64_t apart, other;
    load_rows(j);
    const float *grad = flash_load(&x[DO], j->b, j->query, j->h, j->n, w->part, &apart);
    const float *o = flash_load(&x[O], j->b, j->query, j->h, j->n, w->k, &other);
    row_products(w->delta, grad, apart, o, other, j->n, j->s->f.size);
    const float *from =
        f32(lse) + j->b * lse->stride[0] + j->h * lse->stride[1] + j->query * lse->stride[2];
    for (int64_t i = 0; i < j->lanes; i++) {
        w->lse[i] = i < j->n ? from[i * lse->stride[2]] : 0;
        w->delta[i] = i < j->n ? w->delta[i] : 0;
    }
}

/* Rows [query, query + n) of dq from dq^T. */
static void put_rows(const BackwardJob *j)
{
    const Tensor *dq = &j->c->out[DQ];
    int64_t size = dq->dim[3], apart = dq->dtype == F32 ? dq->stride[1] : size;
    float *rows = dq->dtype == F32 ? flash_row(dq, j->b, j->query, j->h) : j->w->part;
    tile_transpose(rows, apart, size, j->w->dq_t, j->lanes, size, j->n, 1);
    if (dq->dtype != F32)
        flash_store(dq, j->b, j->query, j->h, j->n, rows, size);
}

/* ---- the products of a tile ---- */

/* Scores into p, dp into ds; `rows` are of k or v. */
static void multiply(const BackwardJob *j, float *to, const float *rows, int64_t apart,
                     const float *turned)
{
    TileProduct x = {.c = to,
                     .ldc = j->lanes,
                     .a = rows,
                     .lda = apart,
                     .b = turned,
                     .ldb = j->lanes,
                     .m = j->nkeys,
                     .n = j->lanes,
                     .k = j->s->f.size};
    tile_multiply(&x);
}

static void mask_scores(const BackwardJob *j)
{
    const Tensor *mask = flash_mask(j->c, MASK);
    if (mask)
        tile_add_mask(mask, j->w->p, j->b, j->h, j->key, j->nkeys, j->query, j->n, j->lanes);
    tile_mask(&j->s->f, j->w->p, j->key, j->nkeys, j->query, j->lanes);
}

static void tile_keys(const BackwardJob *j)
{
    const Flash *f = &j->s->f;
    const Work *w = j->w;
    int64_t shared = j->h / f->group, apart, other;
    const float *k = flash_load(&j->c->in[K], j->b, j->key, shared, j->nkeys, w->k, &apart);
    const float *v = flash_load(&j->c->in[V], j->b, j->key, shared, j->nkeys, w->v, &other);
    multiply(j, w->p, k, apart, w->q_t);
    multiply(j, w->ds, v, other, w->do_t);
    mask_scores(j);
    score_grads(w, j->nkeys, j->lanes, (float)f->scale);
    add_product(j, j->dk, w->ds, w->q);
    add_product(j, j->dv, w->p, w->grad);
    TileProduct x = {.c = w->dq_t,
                     .ldc = j->lanes,
                     .a = k,
                     .lda = apart,
                     .b = w->ds,
                     .ldb = j->lanes,
                     .m = f->size,
                     .n = j->lanes,
                     .k = j->nkeys,
                     .turned = true,
                     .into = j->key ? TILE_ADD : TILE_SET};
    tile_multiply(&x);
}

/* The tile's queries against all keys that they see. */
static void tile(BackwardJob *j)
{
    int64_t seen = flash_seen(&j->s->f, j->query + j->n - 1);
    load(j);
    for (j->key = 0; j->key < seen; j->key += TILE_KEYS) {
        j->nkeys = MIN(TILE_KEYS, seen - j->key);
        tile_keys(j);
    }
    put_rows(j);
}

/* ---- tasks and their sums ---- */

/* The sums of result k, dk or dv, of task i, run in a slot. The first copy in f32 is the result. */
static Sums sums_of(const Call *c, const BackwardState *s, int64_t slot, int64_t i, int k)
{
    int64_t copy = i % s->ncopy, head = i / s->ncopy, heads = s->f.heads / s->f.group;
    float *work = (float *)(void *)c->work + s->nslot * s->nfloat;
    const Tensor *y = &c->out[k];
    if (s->narrow)
        return (Sums){work + (2 * (s->ncopy == 1 ? slot : i) + k - DK) * s->f.keys * s->padded,
                      s->padded};
    if (copy == 0)
        return (Sums){flash_row(y, head / heads, 0, head % heads), y->stride[1]};
    work += (2 * (copy - 1) + k - DK) * s->nelem;
    return (Sums){work + (head / heads * s->f.keys * heads + head % heads) * s->f.size,
                  heads * s->f.size};
}

static void task(const Call *c, const BackwardState *s, const Work *w, int64_t slot, int64_t i)
{
    const Flash *f = &s->f;
    int64_t which = i % s->ncopy, shared = i / s->ncopy % (f->heads / f->group);
    int64_t b = i / s->ncopy / (f->heads / f->group);
    Sums dk = sums_of(c, s, slot, i, DK), dv = sums_of(c, s, slot, i, DV);
    size_t nbytes = sizeof(float) * (size_t)(s->narrow ? s->padded : f->size);
    for (int64_t j = 0; j < f->keys; j++) {
        memset(dk.rows + j * dk.apart, 0, nbytes);
        memset(dv.rows + j * dv.apart, 0, nbytes);
    }
    for (int64_t h = shared * f->group; h < (shared + 1) * f->group; h++)
        for (int64_t t = 0; t < s->tiles.count; t++) {
            int64_t turn = t % (2 * s->ncopy), query = t * s->tiles.width;
            BackwardJob j = {
                c, s, w, dk, dv, b, h, query, .n = MIN(s->tiles.width, f->queries - query)};
            j.lanes = round_lanes(j.n);
            if (MIN(turn, 2 * s->ncopy - 1 - turn) == which) /* there and back: even sums */
                tile(&j);
        }
    if (s->narrow && s->ncopy == 1) {
        flash_store(&c->out[DK], b, 0, shared, f->keys, dk.rows, dk.apart);
        flash_store(&c->out[DV], b, 0, shared, f->keys, dv.rows, dv.apart);
    }
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const BackwardState *s = c->state;
    for (int64_t slot = lo; slot < hi; slot++) {
        Work w = work_of(s, c->work, slot);
        for (int64_t i = slot; i < s->ntask; i += s->nslot)
            task(c, s, &w, slot, i);
    }
}

/* ---- the copies' sums ---- */

KERNEL(void, add_row, (float *restrict y, const float *x, int64_t n), (y, x, n))
{
    for (int64_t d = 0; d < n; d++)
        y[d] += x[d];
}

/* Rows lo to hi of dk or dv, by heads: those of the first copy get the others' added. */
static void add_rows(const Call *c, int k, int64_t lo, int64_t hi)
{
    const BackwardState *s = c->state;
    int64_t heads = s->f.heads / s->f.group, keys = s->f.keys;
    while (lo < hi) {
        int64_t head = lo / keys, key = lo % keys, n = MIN(keys - key, hi - lo);
        Sums to = sums_of(c, s, 0, head * s->ncopy, k);
        float *rows = to.rows + key * to.apart;
        for (int64_t which = 1; which < s->ncopy; which++) {
            Sums from = sums_of(c, s, 0, head * s->ncopy + which, k);
            for (int64_t i = 0; i < n; i++)
                add_row(rows + i * to.apart, from.rows + (key + i) * from.apart, s->f.size);
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

static int run(Call *c)
{
    const BackwardState *s = c->state;
    par_for(s->nslot, 1, slots, c);
    if (s->ncopy > 1)
        par_for(s->nelem / s->f.size, row_grain(s->f.size), add_copies, c);
    return 0;
}

const Kernel flash_backward_kernels[] = {
    {.name = "amx",
     .accepts = flash_amx_backward_accepts,
     .workspace = flash_amx_backward_workspace,
     .prepare = flash_amx_backward_prepare,
     .run = flash_blocks_backward_run,
     .strided_out = true},
    {.name = "panels",
     .accepts = flash_panels_backward_accepts,
     .workspace = flash_panels_backward_workspace,
     .prepare = flash_panels_backward_prepare,
     .run = flash_blocks_backward_run,
     .strided_out = true},
    {.name = "tiles",
     .accepts = accepts,
     .workspace = workspace,
     .prepare = prepare,
     .run = run,
     .strided_out = true},
    {.name = "blocks",
     .accepts = flash_blocks_backward_accepts,
     .workspace = flash_blocks_backward_workspace,
     .handles = flash_blocks_backward_handles,
     .prepare = flash_blocks_backward_prepare,
     .run = flash_blocks_backward_run,
     .strided_out = true},
    {0},
};
