/* flash_attention_backward: gradients of flash_attention's q, k, v from do, its operands and
 * results. With s = scale q k^T, p = exp(s - lse) and delta = rowsum(do o):
 *
 *   dv = p^T do,   dp = do v^T,   ds = p (dp - delta) scale,   dq = ds k,   dk = ds^T q
 *
 * A mask, operand 6, is added to the scores as in the forward.
 *
 * Method: Dao et al. 2022 (arXiv:2205.14135), algorithm 4, with queries outside: a tile of queries
 * recomputes p tile by tile of keys, keeps dq^T in its workspace and adds its share of dk and dv to
 * their rows. p and dp are held transposed, queries along the lanes (flash_tile.h).
 *
 * Order: a task owns the rows of one key head in one copy of dk and dv and walks all tiles of
 * queries that are its own, one after the other. There is one copy where the key heads fill the
 * threads; else the tiles of queries are dealt to several tasks, each with a copy, and the copies
 * are added in order. So bits depend on the number of threads, as those of products do, and never
 * on scheduling. Of bf16 the copies are f32 in the workspace, where a task's own is enough if there
 * is one copy, and are rounded once into dk and dv.
 *
 * Numerics: f32, also between operands and results of bf16, whose tiles are converted as they are
 * read; ref sums each element of a gradient in double. */
#include "flash_tile.h"
#include "vmath.h"

enum { DO, Q, K, V, O, LSE, MASK };
enum { DQ, DK, DV };

/* ---- rules ---- */

static int infer(const Graph *g, const Node *n, Type *out)
{
    Type lse = flash_lse_type(g, n, Q);
    need_type(g, n, DO, &n->in[Q]->type);
    need_type(g, n, O, &n->in[Q]->type);
    need_type(g, n, LSE, &lse);
    if (n->nin > MASK)
        flash_check_mask(g, n, Q, MASK);
    for (int i = DQ; i <= DV; i++)
        out[i] = n->in[Q + i]->type;
    return 3;
}

/* Five products, and about 16 operations for each score. */
static Cost cost(const Node *n)
{
    Flash f = flash_of(n, Q);
    Cost c = cost_bytes(n);
    c.nflop = flash_pairs(&f) * 10 * (double)f.size;
    return c;
}

/* dq is a sum over keys, dk and dv are sums over queries and over the heads that share a key head.
 */
static void factors(const Node *n, Factors *f)
{
    Flash s = flash_of(n, Q);
    int batch = factor_new(f, FACTOR_PARALLEL, s.batch);
    int query = factor_new(f, s.causal ? FACTOR_REPLICATE : FACTOR_SUM, s.queries);
    int key = factor_new(f, s.causal ? FACTOR_REPLICATE : FACTOR_SUM, s.keys);
    int head = factor_new(f, FACTOR_PARALLEL, s.heads / s.group);
    int member = factor_new(f, FACTOR_SUM, s.group);
    int size = factor_new(f, FACTOR_REPLICATE, s.size);
    Axes *like_q[] = {&f->in[DO], &f->in[Q], &f->in[O], &f->out[DQ]};
    Axes *like_k[] = {&f->in[K], &f->in[V], &f->out[DK], &f->out[DV]};
    for (int i = 0; i < 4; i++) {
        flash_axes(like_q[i], batch, query, head, member, size);
        flash_axes(like_k[i], batch, key, head, NO_FACTOR, size);
    }
    flash_lse_axes(&f->in[LSE], batch, head, member, query);
    if (n->nin > MASK)
        flash_mask_axes(&f->in[MASK], &n->in[MASK]->type, batch, head, member, query, key);
}

/* ---- ref: each row of a gradient from all pairs it takes part in ---- */

enum { PART = 64 };

typedef struct Ref {
    Flash f;
    const Tensor *in, *out, *mask;
} Ref;

/* p and ds of query t of head h and key j. */
static void pair(const Ref *r, int64_t b, int64_t t, int64_t h, int64_t j, double *p, double *ds)
{
    const Tensor *x = r->in, *lse = &x[LSE];
    int64_t size = r->f.size, shared = h / r->f.group;
    int64_t query = flash_at(&x[Q], b, t, h), key = flash_at(&x[K], b, j, shared);
    int64_t grad = flash_at(&x[DO], b, t, h);
    double s = r->f.scale * flash_dot(&x[Q], query, &x[K], key, size) +
               (r->mask ? flash_mask_at(r->mask, b, h, t, j) : 0);
    double dp = flash_dot(&x[DO], grad, &x[V], flash_at(&x[V], b, j, shared), size);
    double delta = flash_dot(&x[DO], grad, &x[O], flash_at(&x[O], b, t, h), size);
    *p = exp(s - tensor_get(lse, b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2]));
    *ds = *p * (dp - delta) * r->f.scale;
}

/* sum[d] += w x[at + d] */
static void add_row(double *sum, double w, const Tensor *x, int64_t at, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        sum[d] += w * tensor_get(x, at + d * x->stride[3]);
}

static void put_row(const Tensor *y, int64_t at, const double *sum, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        tensor_set(y, at + d * y->stride[3], sum[d]);
}

static void ref_query(const Ref *r, int64_t b, int64_t t, int64_t h, int64_t d0, int64_t n)
{
    double dq[PART] = {0}, p, ds;
    const Tensor *k = &r->in[K], *y = &r->out[DQ];
    for (int64_t j = 0; j < flash_seen(&r->f, t); j++) {
        pair(r, b, t, h, j, &p, &ds);
        add_row(dq, ds, k, flash_at(k, b, j, h / r->f.group) + d0 * k->stride[3], n);
    }
    put_row(y, flash_at(y, b, t, h) + d0 * y->stride[3], dq, n);
}

static void ref_key(const Ref *r, int64_t b, int64_t j, int64_t shared, int64_t d0, int64_t n)
{
    double dk[PART] = {0}, dv[PART] = {0}, p, ds;
    const Tensor *q = &r->in[Q], *g = &r->in[DO], *y = r->out;
    for (int64_t h = shared * r->f.group; h < (shared + 1) * r->f.group; h++)
        for (int64_t t = 0; t < r->f.queries; t++) {
            if (j >= flash_seen(&r->f, t))
                continue;
            pair(r, b, t, h, j, &p, &ds);
            add_row(dk, ds, q, flash_at(q, b, t, h) + d0 * q->stride[3], n);
            add_row(dv, p, g, flash_at(g, b, t, h) + d0 * g->stride[3], n);
        }
    put_row(&y[DK], flash_at(&y[DK], b, j, shared) + d0 * y[DK].stride[3], dk, n);
    put_row(&y[DV], flash_at(&y[DV], b, j, shared) + d0 * y[DV].stride[3], dv, n);
}

static void ref_queries(void *arg, int64_t lo, int64_t hi)
{
    const Ref *r = arg;
    int64_t heads = r->f.heads, rows = r->f.queries;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t d = 0; d < r->f.size; d += PART)
            ref_query(r, i / heads / rows, i / heads % rows, i % heads, d,
                      MIN(PART, r->f.size - d));
}

static void ref_keys(void *arg, int64_t lo, int64_t hi)
{
    const Ref *r = arg;
    int64_t heads = r->f.heads / r->f.group, rows = r->f.keys;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t d = 0; d < r->f.size; d += PART)
            ref_key(r, i / heads / rows, i / heads % rows, i % heads, d, MIN(PART, r->f.size - d));
}

static int ref(Call *c)
{
    Ref r = {flash_of(c->node, Q), c->in, c->out, flash_mask(c, MASK)};
    par_for(r.f.batch * r.f.queries * r.f.heads, 1, ref_queries, &r);
    par_for(r.f.batch * r.f.keys * r.f.heads / r.f.group, 1, ref_keys, &r);
    return 0;
}

/* ---- tiles in f32 ---- */

/* Task i: key head i / ncopy, copy i % ncopy. Slot s of nslot takes every nslot-th task. Workspace:
 * the slots', then the sums of dk and dv: of f32 the copies but the first, which is the output; of
 * bf16 [keys][padded] for each task, or for each slot where there is one copy. */
typedef struct State {
    Flash f;
    Tiles tiles;
    bool narrow; /* bf16 */
    int64_t ntask, ncopy, nslot;
    int64_t nfloat; /* of a slot's workspace */
    int64_t nelem;  /* of dk */
    int64_t padded; /* floats from one row of `rows` and such to the next */
} State;

/* Workspace of a slot: q^T, do^T and dq^T [size][lanes]; q and do [lanes][padded]; p and ds
 * [keys][lanes]; a tile of dk or dv [keys][padded]; lse and delta [lanes]; of bf16 also a tile of k
 * and one of v [keys][size]. */
typedef struct Work {
    float *q_t, *do_t, *dq_t, *q, *grad, *p, *ds, *part, *lse, *delta, *k, *v;
} Work;

static Work work_of(const State *s, char *work, int64_t slot)
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

/* The fewest copies whose tasks share out evenly among the threads, or so many that the rest does
 * not matter; one where the key heads already do. */
static int64_t copies(int64_t nhead, int64_t ntile, int64_t threads)
{
    int64_t n = 1;
    while (n < ntile && nhead * n < 8 * threads && nhead * n % threads)
        n++;
    return n;
}

static void prepare(Call *c, Arena *a)
{
    State *s = c->state = NEW(a, State);
    s->f = flash_of(c->node, Q);
    int64_t nhead = s->f.batch * s->f.heads / s->f.group;
    s->tiles = flash_tiles(s->f.queries);
    s->padded = round_lanes(s->f.size);
    s->ncopy = copies(nhead, s->tiles.count, par_threads());
    s->ntask = nhead * s->ncopy;
    s->nslot = MAX(1, MIN(par_threads(), s->ntask));
    s->nelem = nhead * s->f.keys * s->f.size;
    s->nfloat = s->tiles.width * (3 * s->f.size + 2 * s->padded + 2 * TILE_KEYS + 2) +
                TILE_KEYS * s->padded;
    int64_t sums = 2 * (s->ncopy - 1) * s->nelem;
    s->narrow = c->out[DQ].dtype == BF16;
    if (s->narrow) {
        s->nfloat += round_lanes(2 * TILE_KEYS * s->f.size);
        sums = 2 * (s->ncopy == 1 ? s->nslot : s->ntask) * s->f.keys * s->padded;
    }
    c->nbytes_work = (s->nslot * s->nfloat + sums) * (int64_t)sizeof(float);
}

/* delta[i] = do[i] o[i] over rows of `size`; 16 partial sums, added in pairs. */
KERNEL_FMA static void row_products(float *delta, const float *x, int64_t ldx, const float *y,
                                    int64_t ldy, int64_t rows, int64_t size)
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
KERNEL_FMA static void score_grads(const Work *w, int64_t nkeys, int64_t lanes, float scale)
{
    for (int64_t i = 0; i < lanes; i += TILE_LANES)
        for (int64_t j = 0; j < nkeys; j++)
            for (int l = 0; l < TILE_LANES; l++) {
                int64_t at = j * lanes + i + l;
                float p = v_exp(w->p[at] - w->lse[i + l]);
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

/* Rows [key, key + nkeys) of dk or dv += a b, a[nkeys][n] of the tile, b[n][padded]. Rows that are
 * no multiple of the lanes go through a tile of their own. */
static void add_product(const State *s, const Work *w, float *rows, int64_t apart, const float *a,
                        int64_t lda, const float *b, int64_t nkeys, int64_t n)
{
    bool direct = s->narrow || s->padded == s->f.size;
    TileProduct x = {.c = direct ? rows : w->part,
                     .ldc = direct ? apart : s->padded,
                     .a = a,
                     .lda = lda,
                     .b = b,
                     .ldb = s->padded,
                     .m = nkeys,
                     .n = s->padded,
                     .k = n,
                     .into = direct ? TILE_ADD : TILE_SET};
    tile_multiply(&x);
    for (int64_t j = 0; j < nkeys && !direct; j++)
        for (int64_t d = 0; d < s->f.size; d++)
            rows[j * apart + d] += w->part[j * s->padded + d];
}

/* q^T (scaled), do^T, their rows, lse and delta of queries [query, query + n). */
static void load(const Call *c, const State *s, const Work *w, int64_t b, int64_t h, int64_t query,
                 int64_t n)
{
    int64_t lanes = round_lanes(n), size = s->f.size, apart;
    const Tensor *x = c->in, *lse = &x[LSE];
    const float *rows = flash_load(&x[Q], b, query, h, n, w->part, &apart);
    tile_transpose(w->q_t, lanes, lanes, rows, apart, n, size, (float)s->f.scale);
    copy_rows(w->q, s->padded, rows, apart, n, size);
    rows = flash_load(&x[DO], b, query, h, n, w->part, &apart);
    tile_transpose(w->do_t, lanes, lanes, rows, apart, n, size, 1);
    copy_rows(w->grad, s->padded, rows, apart, n, size);
    rows = flash_load(&x[O], b, query, h, n, w->part, &apart);
    row_products(w->delta, w->grad, s->padded, rows, apart, n, size);
    const float *from = (const float *)(const void *)lse->data + b * lse->stride[0] +
                        h * lse->stride[1] + query * lse->stride[2];
    for (int64_t i = 0; i < lanes; i++) {
        w->lse[i] = i < n ? from[i * lse->stride[2]] : 0;
        w->delta[i] = i < n ? w->delta[i] : 0;
    }
}

/* Rows [query, query + n) of dq from dq^T. */
static void put_rows(const Work *w, const Tensor *dq, int64_t b, int64_t query, int64_t h,
                     int64_t n, int64_t lanes)
{
    int64_t size = dq->dim[3];
    if (dq->dtype == F32) {
        tile_transpose(flash_row(dq, b, query, h), dq->stride[1], size, w->dq_t, lanes, size, n, 1);
        return;
    }
    tile_transpose(w->part, size, size, w->dq_t, lanes, size, n, 1);
    flash_store(dq, b, query, h, n, w->part, size);
}

/* A task's sums of dk and dv: rows of keys, `apart` floats from one to the next. */
typedef struct Sums {
    float *dk, *dv;
    int64_t apart;
} Sums;

/* Queries [query, query + n) of head h against all keys that they see. */
static void tile(const Call *c, const State *s, const Work *w, const Sums *sums, int64_t b,
                 int64_t h, int64_t query, int64_t n)
{
    const Flash *f = &s->f;
    const Tensor *mask = flash_mask(c, MASK);
    int64_t lanes = round_lanes(n), seen = flash_seen(f, query + n - 1), shared = h / f->group;
    int64_t kapart, vapart;
    load(c, s, w, b, h, query, n);
    for (int64_t key = 0; key < seen; key += TILE_KEYS) {
        int64_t nkeys = MIN(TILE_KEYS, seen - key), at = key * sums->apart;
        const float *krow = flash_load(&c->in[K], b, key, shared, nkeys, w->k, &kapart);
        const float *vrow = flash_load(&c->in[V], b, key, shared, nkeys, w->v, &vapart);
        TileProduct x = {.c = w->p,
                         .ldc = lanes,
                         .a = krow,
                         .lda = kapart,
                         .b = w->q_t,
                         .ldb = lanes,
                         .m = nkeys,
                         .n = lanes,
                         .k = f->size};
        tile_multiply(&x);
        TileProduct y = {.c = w->ds,
                         .ldc = lanes,
                         .a = vrow,
                         .lda = vapart,
                         .b = w->do_t,
                         .ldb = lanes,
                         .m = nkeys,
                         .n = lanes,
                         .k = f->size};
        tile_multiply(&y);
        if (mask)
            tile_add_mask(mask, w->p, b, h, key, nkeys, query, n, lanes);
        tile_mask(f, w->p, key, nkeys, query, lanes);
        score_grads(w, nkeys, lanes, (float)f->scale);
        add_product(s, w, sums->dk + at, sums->apart, w->ds, lanes, w->q, nkeys, n);
        add_product(s, w, sums->dv + at, sums->apart, w->p, lanes, w->grad, nkeys, n);
        TileProduct z = {.c = w->dq_t,
                         .ldc = lanes,
                         .a = krow,
                         .lda = kapart,
                         .b = w->ds,
                         .ldb = lanes,
                         .m = f->size,
                         .n = lanes,
                         .k = nkeys,
                         .turned = true,
                         .into = key ? TILE_ADD : TILE_SET};
        tile_multiply(&z);
    }
    put_rows(w, &c->out[DQ], b, query, h, n, lanes);
}

/* Copy `which` of dk and dv in f32: the outputs, or in the workspace with the same strides. */
static void copy_of(const Call *c, const State *s, int64_t which, float *copy[2])
{
    float *extra = (float *)(void *)c->work + s->nslot * s->nfloat;
    for (int i = 0; i < 2; i++)
        copy[i] =
            which ? extra + (2 * (which - 1) + i) * s->nelem : (float *)(void *)c->out[DK + i].data;
}

/* The sums of task i, of key head `shared` of row b, run in a slot. */
static Sums sums_of(const Call *c, const State *s, int64_t slot, int64_t i, int64_t b,
                    int64_t shared)
{
    const Tensor *dk = &c->out[DK];
    int64_t nelem = s->f.keys * s->padded, at = flash_at(dk, b, 0, shared);
    float *copy[2];
    if (s->narrow) {
        copy[0] = (float *)(void *)c->work + s->nslot * s->nfloat +
                  2 * (s->ncopy == 1 ? slot : i) * nelem;
        return (Sums){copy[0], copy[0] + nelem, s->padded};
    }
    copy_of(c, s, i % s->ncopy, copy);
    return (Sums){copy[0] + at, copy[1] + at, dk->stride[1]};
}

static void task(const Call *c, const State *s, const Work *w, int64_t slot, int64_t i)
{
    const Flash *f = &s->f;
    int64_t which = i % s->ncopy, shared = i / s->ncopy % (f->heads / f->group);
    int64_t b = i / s->ncopy / (f->heads / f->group);
    Sums sums = sums_of(c, s, slot, i, b, shared);
    size_t nbytes = sizeof(float) * (size_t)(s->narrow ? s->padded : f->size);
    for (int64_t j = 0; j < f->keys; j++) {
        memset(sums.dk + j * sums.apart, 0, nbytes);
        memset(sums.dv + j * sums.apart, 0, nbytes);
    }
    for (int64_t h = shared * f->group; h < (shared + 1) * f->group; h++)
        for (int64_t t = 0; t < s->tiles.count; t++) {
            int64_t turn = t % (2 * s->ncopy), query = t * s->tiles.width;
            if (MIN(turn, 2 * s->ncopy - 1 - turn) == which) /* there and back: even sums */
                tile(c, s, w, &sums, b, h, query, MIN(s->tiles.width, f->queries - query));
        }
    if (s->narrow && s->ncopy == 1) {
        flash_store(&c->out[DK], b, 0, shared, f->keys, sums.dk, sums.apart);
        flash_store(&c->out[DV], b, 0, shared, f->keys, sums.dv, sums.apart);
    }
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *s = c->state;
    for (int64_t slot = lo; slot < hi; slot++) {
        Work w = work_of(s, c->work, slot);
        for (int64_t i = slot; i < s->ntask; i += s->nslot)
            task(c, s, &w, slot, i);
    }
}

/* ---- the copies' sums ---- */

static void add_copies(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *s = c->state;
    for (int64_t which = 1; which < s->ncopy; which++) {
        float *to[2], *from[2];
        copy_of(c, s, 0, to);
        copy_of(c, s, which, from);
        for (int e = 0; e < 2; e++)
            for (int64_t i = lo; i < hi; i++)
                to[e][i] += from[e][i];
    }
}

/* Of bf16, keys lo to hi of all heads: rows of the first copy get those of the others added. */
static void add_keys(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const State *s = c->state;
    int64_t heads = s->f.heads / s->f.group, keys = s->f.keys;
    for (int64_t i = lo; i < hi; i++) {
        int64_t b = i / keys / heads, shared = i / keys % heads, key = i % keys;
        Sums to = sums_of(c, s, 0, i / keys * s->ncopy, b, shared);
        float *dk = to.dk + key * to.apart, *dv = to.dv + key * to.apart;
        for (int64_t which = 1; which < s->ncopy; which++) {
            Sums from = sums_of(c, s, 0, i / keys * s->ncopy + which, b, shared);
            for (int64_t d = 0; d < s->f.size; d++) {
                dk[d] += from.dk[key * to.apart + d];
                dv[d] += from.dv[key * to.apart + d];
            }
        }
        flash_store(&c->out[DK], b, key, shared, 1, dk, to.apart);
        flash_store(&c->out[DV], b, key, shared, 1, dv, to.apart);
    }
}

static int run(Call *c)
{
    const State *s = c->state;
    par_for(s->nslot, 1, slots, c);
    if (s->ncopy > 1 && s->narrow)
        par_for(s->nelem / s->f.size, MAX(1, 16384 / s->f.size), add_keys, c);
    else if (s->ncopy > 1)
        par_for(s->nelem, 16384, add_copies, c);
    return 0;
}

static const Kernel kernels[] = {{"tiles", accepts, prepare, run}, {0}};

const OpRules op_flash_attention_backward = {
    .math = "dq, dk, dv of flash_attention: p = exp(s - lse), ds = p (do v^T - rowsum(do o)) scale",
    .example = "f32[2, 8, 6, 4] f32[2, 8, 6, 4] f32[2, 8, 3, 4] f32[2, 8, 3, 4] "
               "f32[2, 8, 6, 4] f32[2, 6, 8]",
    .attrs = flash_attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
};
