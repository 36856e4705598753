/* flash_attention: o = softmax(scale q k^T + causal mask) v and its log-sum-exp per query, without
 * the matrix of scores. q[B, T, H, D], k and v[B, S, Hkv, D], o as q, lse[B, H, T] f32 (f64 where q
 * is f64). Head h reads key head h / (H / Hkv). Causal: query t sees keys up to t + S - T. scale 0
 * stands for 1 / sqrt(D).
 *
 * For generation k and v are caches of S positions of which the first are filled, and operand 3,
 * position i64[] in [0, S - T], takes the place of S - T: query t sees keys up to position + t.
 *
 * Else operand 3 may be a mask of floats that are added to the scaled scores, as ATen's attn_mask:
 * [B, H, T, S], any size 1 in place of the whole. A query that sees nothing (-inf all along) gives
 * zeros, as in ATen, and a log-sum-exp of +inf, so that its weights exp(s - lse) are 0. The mask's
 * gradient is formed by products of whole matrices, for as many key heads as heads.
 *
 * Method of "tiles": online softmax over tiles (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao
 * et al. 2022, arXiv:2205.14135). A task is one tile of queries of one head; it walks the tiles of
 * keys that any of them sees, keeping per query the maximum m and the sum l of exp(s - m), and o^T
 * scaled to m. Scores are held transposed, queries along the lanes (flash_tile.h), so q alone is
 * transposed and k, v are read by their strides: slices of a fused projection need no copy.
 *
 * Numerics: f32, to which tiles of bf16 are converted as they are read; every element in a fixed
 * order of keys, whatever the threads. Processors that multiply bf16 have kernels for it: "panels"
 * and "amx" (flash_panels.c), "blocks" (flash_blocks.c). ref: two passes in double, maximum and
 * sum, then values. */
#include "../attention/flash_blocks.h"
#include "rows.h"

/* ---- rules ---- */

static int infer(const Graph *g, const Node *n, Type *out)
{
    Type scalar = type_make(I64, 0, NULL);
    out[1] = flash_lse_type(g, n, 0);
    bool mask = flash_has_mask(n, 3);
    if (mask)
        flash_check_mask(g, n, 0, 3);
    else if (n->nin == 4)
        need_type(g, n, 3, &scalar);
    if (n->nin == 4 && !mask && !n->attr[FLASH_CAUSAL].i)
        fail_node(g, n, "operand 3: a position is for causal attention");
    out[0] = n->in[0]->type;
    return 2;
}

/* x[B, T, H, D] as [B H, T, D]. */
static Value *by_heads(Build *b, Value *x)
{
    const int64_t *dim = x->type.dim, size[] = {dim[0] * dim[2], dim[1], dim[3]};
    x = emit1(b, "transpose", IN(x), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
    return emit1(b, "view", IN(x), ATTRS(A_INTS("size", 3, size)));
}

/* x y^T for each head, as [B, H, T, S] of dtype d. */
static Value *scores_of(Build *b, Value *x, Value *y, const Flash *f, DType d)
{
    int64_t size[] = {f->batch, f->heads, f->queries, f->keys};
    y = emit1(b, "transpose", IN(by_heads(b, y)), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
    Value *s = emit1(b, "bmm", IN(by_heads(b, x), y), NOATTRS);
    return emit_cast(b, emit1(b, "view", IN(s), ATTRS(A_INTS("size", 4, size))), d);
}

/* p (do v^T - rowsum(do o)) with p = exp(scale q k^T + mask - lse), summed to the mask's shape. */
static Value *mask_diff(Grad *grad)
{
    Build *b = grad->b;
    Node *n = grad->n;
    Flash f = flash_of(n, 0);
    Value *mask = n->in[3], *lse = n->out[1], *dy = grad->dy[0];
    DType d = lse->type.dtype;
    if (f.group != 1 || f.causal)
        fail_node(b->g, n,
                  "has a gradient for its mask only where it is not causal, and has as "
                  "many key heads as heads");
    Value *s = emit1(
        b, "mul", IN(scores_of(b, n->in[0], n->in[1], &f, d), emit_full(b, f.scale, d)), NOATTRS);
    s = emit1(b, "add", IN(s, emit_cast(b, mask, d)), NOATTRS);
    s = emit1(b, "sub", IN(s, emit1(b, "unsqueeze", IN(lse), ATTRS(A_INT("dim", 3)))), NOATTRS);
    Value *p = emit1(b, "exp", IN(s), NOATTRS), *dp = scores_of(b, dy, n->in[2], &f, d);
    Value *delta = emit1(b, "mul", IN(emit_cast(b, dy, d), emit_cast(b, n->out[0], d)), NOATTRS);
    delta = emit1(b, "sum", IN(delta),
                  ATTRS(A_INTS("dim", 1, ((int64_t[]){3})), A_BOOL("keepdim", true)));
    delta = emit1(b, "transpose", IN(delta), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
    Value *ds = emit1(b, "mul", IN(p, emit1(b, "sub", IN(dp, delta), NOATTRS)), NOATTRS);
    return emit_cast(b, grad_reduce(b, ds, &mask->type), mask->type.dtype);
}

static void diff(Grad *d)
{
    Node *n = d->n;
    bool mask = flash_has_mask(n, 3);
    if (d->dy[1])
        fail_node(d->b->g, n, "has no gradient through its output 1, the log-sum-exp");
    if (n->nin == 4 && !mask)
        fail_node(d->b->g, n, "has no gradient where it is given a position");
    Value *in[] = {
        d->dy[0], n->in[0], n->in[1], n->in[2], n->out[0], n->out[1], mask ? n->in[3] : NULL};
    Node *back = emit(d->b, "flash_attention_backward", 6 + mask, in,
                      ATTRS(A_BOOL("causal", n->attr[FLASH_CAUSAL].i),
                            (AttrArg){"scale", ATTR_FLOAT, n->attr[FLASH_SCALE]}));
    for (int i = 0; i < 3; i++)
        d->dx[i] = d->need[i] ? back->out[i] : NULL;
    if (mask && d->need[3])
        d->dx[3] = mask_diff(d);
}

/* Two products, and about 16 operations for each score's softmax. */
static Cost cost(const Node *n)
{
    Flash f = flash_of(n, 0);
    Cost c = cost_bytes(n);
    c.nflop = flash_pairs(&f) * 4 * (double)f.size;
    return c;
}

/* A causal mask ties queries and keys to their places: both axes stay whole. Without it parts of
 * the keys merge by their log-sum-exp. */
static void factors(const Node *n, Factors *f)
{
    Flash s = flash_of(n, 0);
    int batch = factor_new(f, FACTOR_PARALLEL, s.batch);
    int query = factor_new(f, s.causal ? FACTOR_REPLICATE : FACTOR_PARALLEL, s.queries);
    int key = factor_new(f, s.causal ? FACTOR_REPLICATE : FACTOR_LOGSUMEXP, s.keys);
    int head = factor_new(f, FACTOR_PARALLEL, s.heads / s.group);
    int member = factor_new(f, FACTOR_PARALLEL, s.group);
    int size = factor_new(f, FACTOR_REPLICATE, s.size);
    flash_axes(&f->in[0], batch, query, head, member, size);
    flash_axes(&f->in[1], batch, key, head, NO_FACTOR, size);
    flash_axes(&f->in[2], batch, key, head, NO_FACTOR, size);
    flash_axes(&f->out[0], batch, query, head, member, size);
    flash_lse_axes(&f->out[1], batch, head, member, query);
    if (flash_has_mask(n, 3))
        flash_mask_axes(&f->in[3], &n->in[3]->type, batch, head, member, query, key);
}

/* ---- ref ---- */

typedef struct Ref {
    Flash f;
    const Tensor *q, *k, *v, *o, *lse, *mask;
} Ref;

static double score(const Ref *r, int64_t b, int64_t t, int64_t h, int64_t j)
{
    double dot = flash_dot(r->q, flash_at(r->q, b, t, h), r->k,
                           flash_at(r->k, b, j, h / r->f.group), r->f.size);
    return r->f.scale * dot + (r->mask ? flash_mask_at(r->mask, b, h, t, j) : 0);
}

static void ref_row(const Ref *r, int64_t b, int64_t t, int64_t h)
{
    enum { PART = 2048 }; /* for larger heads, probabilities are computed for each part */
    int64_t seen = flash_seen(&r->f, t);
    double first = score(r, b, t, h, 0), top = first; /* without a mask every query sees key 0 */
    for (int64_t j = 1; j < seen; j++)
        top = fmax(top, score(r, b, t, h, j));
    top = isinf(top) ? 0 : top;
    double sum = exp(first - top);
    for (int64_t j = 1; j < seen; j++)
        sum += exp(score(r, b, t, h, j) - top);
    double lse = sum == 0 ? INFINITY : top + log(sum);
    tensor_set(r->lse, b * r->lse->stride[0] + h * r->lse->stride[1] + t * r->lse->stride[2], lse);
    for (int64_t d0 = 0; d0 < r->f.size; d0 += PART) {
        int64_t width = MIN(PART, r->f.size - d0), step = r->v->stride[3];
        double o[PART];
        for (int64_t d = 0; d < width; d++)
            o[d] = 0;
        for (int64_t j = 0; j < seen; j++) {
            double p = sum == 0 ? 0 : exp(score(r, b, t, h, j) - top) / sum;
            int64_t at = flash_at(r->v, b, j, h / r->f.group) + d0 * step;
            for (int64_t d = 0; d < width; d++)
                o[d] += p * tensor_get(r->v, at + d * step);
        }
        for (int64_t d = 0; d < width; d++)
            tensor_set(r->o, flash_at(r->o, b, t, h) + (d0 + d) * r->o->stride[3], o[d]);
    }
}

static void ref_rows(void *arg, int64_t lo, int64_t hi)
{
    const Ref *r = arg;
    for (int64_t i = lo; i < hi; i++)
        ref_row(r, i / r->f.heads / r->f.queries, i / r->f.heads % r->f.queries, i % r->f.heads);
}

static int ref(Call *c)
{
    Ref r = {flash_of(c->node, 0), &c->in[0],  &c->in[1],       &c->in[2],
             &c->out[0],           &c->out[1], flash_mask(c, 3)};
    if (flash_place(c, &r.f))
        return -1;
    par_for(r.f.batch * r.f.queries * r.f.heads, 1, ref_rows, &r);
    return 0;
}

/* ---- tiles ---- */

/* The tasks are pairs of tiles from both ends of a head's queries, so that causal ones cost the
 * same; slot s of nslot takes every nslot-th pair and has its own workspace. */
typedef struct FlashState {
    Flash f;
    Tiles tiles;
    int nslot;
    int64_t npair, nfloat; /* pairs of a head; floats of workspace of a slot */
} FlashState;

/* One tile's workspace: [size][lanes], [keys][lanes] or [lanes]; for bf16 also rows in f32. */
typedef struct Work {
    float *q, *o, *s, *top, *sum, *alpha, *rows;
} Work;

static Work work_of(const FlashState *s, char *work, int64_t slot)
{
    int64_t lanes = s->tiles.width;
    Work w;
    w.q = (float *)(void *)work + slot * s->nfloat;
    w.o = w.q + s->f.size * lanes;
    w.s = w.o + s->f.size * lanes;
    w.top = w.s + TILE_KEYS * lanes;
    w.sum = w.top + lanes;
    w.alpha = w.sum + lanes;
    w.rows = w.alpha + lanes;
    return w;
}

static bool accepts(const Call *c)
{
    return flash_accepts(c, 3);
}

static FlashState state_of(const Call *c)
{
    FlashState s = {.f = flash_of(c->node, 0)};
    s.tiles = flash_tiles(s.f.queries);
    s.npair = (s.tiles.count + 1) / 2;
    s.nslot = (int)MAX(1, MIN(par_threads(), s.f.batch * s.f.heads * s.npair));
    s.nfloat = s.tiles.width * (2 * s.f.size + TILE_KEYS + 3);
    if (c->in[0].dtype == BF16)
        s.nfloat += round_lanes(TILE_KEYS * s.f.size);
    return s;
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    FlashState s = state_of(c);
    return s.nslot * s.nfloat * (int64_t)sizeof(float);
}

static void prepare(Call *c, Arena *a)
{
    FlashState *s = c->state = NEW(a, FlashState);
    *s = state_of(c);
}

/* s = exp(s - new top), the sums and the factor alpha that brings what was summed before to the new
 * top. Four keys at a time; rows beyond nkeys are -inf. */
KERNEL_FMA(void, softmax, (const Work *w, int64_t nkeys, int64_t lanes), (w, nkeys, lanes))
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

KERNEL(void, divide, (const Work *w, int64_t size, int64_t lanes), (w, size, lanes))
{
    for (int64_t i = 0; i < lanes; i++)
        w->alpha[i] = w->sum[i] == 0 ? 0.0f : 1.0f / w->sum[i]; /* 0: sees nothing */
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < lanes; i++)
            w->o[d * lanes + i] *= w->alpha[i];
}

/* Rows [query, query + n) of o from o^T. */
static void put_rows(const Work *w, const Tensor *o, int64_t b, int64_t query, int64_t h, int64_t n,
                     int64_t lanes)
{
    int64_t size = o->dim[3];
    if (o->dtype == F32) {
        tile_transpose(flash_row(o, b, query, h), o->stride[1], size, w->o, lanes, size, n, 1);
        return;
    }
    tile_transpose(w->rows, size, size, w->o, lanes, size, n, 1);
    flash_store(o, b, query, h, n, w->rows, size);
}

/* A tile's queries of head h: [query, query + n). */
typedef struct FlashJob {
    const Call *c;
    const FlashState *s;
    const Work *w;
    int64_t b, h, query, n, lanes;
} FlashJob;

static void load_queries(const FlashJob *j)
{
    const Work *w = j->w;
    const Tensor *q = &j->c->in[0];
    int64_t apart;
    const float *rows = flash_load(q, j->b, j->query, j->h, j->n, w->rows, &apart);
    tile_transpose(w->q, j->lanes, j->lanes, rows, apart, j->n, q->dim[3], (float)j->s->f.scale);
    for (int64_t i = 0; i < j->lanes; i++) {
        w->top[i] = -INFINITY;
        w->sum[i] = 0;
    }
}

/* s of keys [key, key + nkeys). */
static void multiply_keys(const FlashJob *j, int64_t key, int64_t nkeys)
{
    const Flash *f = &j->s->f;
    const Tensor *k = &j->c->in[1];
    int64_t shared = j->h / f->group, apart;
    const float *rows = flash_load(k, j->b, key, shared, nkeys, j->w->rows, &apart);
    TileProduct x = {.c = j->w->s,
                     .ldc = j->lanes,
                     .a = rows,
                     .lda = apart,
                     .b = j->w->q,
                     .ldb = j->lanes,
                     .m = nkeys,
                     .n = j->lanes,
                     .k = f->size};
    tile_multiply(&x);
}

/* o^T = o^T alpha + v^T s of these keys. */
static void add_values(const FlashJob *j, int64_t key, int64_t nkeys)
{
    const Flash *f = &j->s->f;
    const Tensor *v = &j->c->in[2];
    int64_t shared = j->h / f->group, apart;
    TileInto into = key ? TILE_SCALE : TILE_SET;
    const float *rows = flash_load(v, j->b, key, shared, nkeys, j->w->rows, &apart);
    TileProduct x = {.c = j->w->o,
                     .ldc = j->lanes,
                     .a = rows,
                     .lda = apart,
                     .b = j->w->s,
                     .ldb = j->lanes,
                     .alpha = j->w->alpha,
                     .m = f->size,
                     .n = j->lanes,
                     .k = nkeys,
                     .turned = true,
                     .into = into};
    tile_multiply(&x);
}

static void tile(const FlashJob *j)
{
    const Flash *f = &j->s->f;
    const Work *w = j->w;
    const Tensor *mask = flash_mask(j->c, 3);
    int64_t lanes = j->lanes, query = j->query, seen = flash_seen(f, query + j->n - 1);
    load_queries(j);
    for (int64_t key = 0; key < seen; key += TILE_KEYS) {
        int64_t nkeys = MIN(TILE_KEYS, seen - key);
        multiply_keys(j, key, nkeys);
        if (mask)
            tile_add_mask(mask, w->s, j->b, j->h, key, nkeys, query, j->n, lanes);
        tile_mask(f, w->s, key, nkeys, query, lanes);
        softmax(w, nkeys, lanes);
        add_values(j, key, nkeys);
    }
    divide(w, f->size, lanes);
    put_rows(w, &j->c->out[0], j->b, query, j->h, j->n, lanes);
    const Tensor *lse = &j->c->out[1];
    float *to = f32(lse) + tensor_index(lse, (int64_t[]){j->b, j->h, query});
    for (int64_t i = 0; i < j->n; i++)
        to[i * lse->stride[2]] = w->sum[i] == 0 ? INFINITY : w->top[i] + logf(w->sum[i]);
}

static void slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const FlashState *s = c->state;
    int64_t ntask = s->f.batch * s->f.heads * s->npair, last = s->tiles.count - 1;
    for (int64_t slot = lo; slot < hi; slot++) {
        Work w = work_of(s, c->work, slot);
        for (int64_t i = slot; i < ntask; i += s->nslot) {
            int64_t head = i / s->npair, pair[] = {i % s->npair, last - i % s->npair};
            for (int e = 0; e < (pair[0] == pair[1] ? 1 : 2); e++) {
                int64_t query = pair[e] * s->tiles.width;
                FlashJob j = {c,
                              s,
                              &w,
                              head / s->f.heads,
                              head % s->f.heads,
                              query,
                              .n = MIN(s->tiles.width, s->f.queries - query)};
                j.lanes = round_lanes(j.n);
                tile(&j);
            }
        }
    }
}

static int run(Call *c)
{
    FlashState *s = c->state;
    if (flash_place(c, &s->f))
        return -1;
    par_for(s->nslot, 1, slots, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "query_f32",
     .accepts = flash_query_accepts_f32,
     .workspace = flash_query_workspace,
     .prepare = flash_query_prepare,
     .run = flash_query_run,
     .strided_out = true},
    {.name = "query_bf16",
     .accepts = flash_query_accepts_bf16,
     .workspace = flash_query_workspace,
     .prepare = flash_query_prepare,
     .run = flash_query_run,
     .strided_out = true},
    {.name = "amx",
     .accepts = flash_amx_accepts,
     .workspace = flash_amx_workspace,
     .prepare = flash_amx_prepare,
     .run = flash_panels_run,
     .strided_out = true},
    {.name = "panels",
     .accepts = flash_panels_accepts,
     .workspace = flash_panels_workspace,
     .prepare = flash_panels_prepare,
     .run = flash_panels_run,
     .strided_out = true},
    {.name = "tiles",
     .accepts = accepts,
     .workspace = workspace,
     .prepare = prepare,
     .run = run,
     .strided_out = true},
    {.name = "blocks",
     .accepts = flash_blocks_accepts,
     .workspace = flash_blocks_workspace,
     .handles = flash_blocks_handles,
     .prepare = flash_blocks_prepare,
     .run = flash_blocks_run,
     .strided_out = true},
    {0},
};

const OpRules op_flash_attention = {
    .math = "o = softmax(scale q k^T) v over the keys that a query sees; lse = its log-sum-exp",
    .example = "f32[2, 8, 6, 4] f32[2, 8, 3, 4] f32[2, 8, 3, 4]",
    .attrs = flash_attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
};
