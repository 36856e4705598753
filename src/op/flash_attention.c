/* flash_attention: o = softmax(scale q k^T + causal mask) v and its log-sum-exp per query, without
 * the matrix of scores. q[B, T, H, D], k and v[B, S, Hkv, D], o as q, lse[B, H, T] f32 (f64 where q
 * is f64). Head h reads key head h / (H / Hkv). Causal: query t sees keys up to t + S - T. No scale
 * stands for 1 / sqrt(D).
 *
 * For generation k and v are caches of S positions of which the first are filled, and operand 3,
 * position i64[] in [0, S - T], takes the place of S - T: query t sees keys up to position + t.
 *
 * Where several documents share a row, one after the other, operand 3 may be starts, i64[B, T]: for
 * each query the key at which its document begins, before which it sees none. Kernels leave out
 * blocks of keys that no query of a block sees, so that the time falls with the documents' squares,
 * but for blocks at their borders; the estimate, which does not know them, is of one document.
 *
 * Else operand 3 may be a mask of floats that are added to the scaled scores, as ATen's attn_mask:
 * [B, H, T, S], any size 1 in place of the whole. A query that sees nothing (-inf all along) gives
 * zeros, as in ATen, and a log-sum-exp of +inf, so that its weights exp(s - lse) are 0. One that
 * sees only keys that finite numbers mask (-1e9) gives their mean, as in ATen in f32; scores that
 * low count by levels (flash.h). The mask's
 * gradient is formed by products of whole matrices, for as many key heads as heads.
 *
 * ref: two passes in double, maximum and sum, then values. */
#include "flash.h"

#include <math.h>

/* ---- rules ---- */

static int infer(const Graph *g, const Node *n, Type *out)
{
    Type scalar = type_make(I64, 0, NULL);
    out[1] = flash_lse_type(g, n, 0);
    bool mask = flash_has_mask(n, 3);
    bool starts = flash_has_starts(n, 3);
    if (mask)
        flash_check_mask(g, n, 0, 3);
    else if (starts)
        flash_check_starts(g, n, 0, 3);
    else if (n->nin == 4)
        need_type(g, n, 3, &scalar);
    if (n->nin == 4 && !mask && !starts && !n->attr[FLASH_CAUSAL].i)
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

/* exp(s - lse) over the last axis; where lse has a level, which s has not, a row's softmax. */
static Value *weights_of(Build *b, Value *s, Value *lse)
{
    DType d = s->type.dtype;
    AttrArg last[] = {A_INTS("dim", 1, ((int64_t[]){3})), A_BOOL("keepdim", true)};
    lse = emit1(b, "unsqueeze", IN(lse), ATTRS(A_INT("dim", 3)));
    Value *least = emit_full(b, -2 * flash_least_level(d), d);
    Value *level = emit1(b, "lt", IN(lse, least), NOATTRS);
    Value *top = emit1(b, "amax", IN(s), ATTRS(last[0], last[1]));
    top = emit1(b, "where", IN(level, top, lse), NOATTRS);
    Value *p = emit1(b, "exp", IN(emit1(b, "sub", IN(s, top), NOATTRS)), NOATTRS);
    Value *sum = emit1(b, "sum", IN(p), ATTRS(last[0], last[1]));
    sum = emit1(b, "where", IN(level, sum, emit_full(b, 1, d)), NOATTRS);
    return emit1(b, "div", IN(p, sum), NOATTRS);
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
    Value *p = weights_of(b, s, lse), *dp = scores_of(b, dy, n->in[2], &f, d);
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
    bool mask = flash_has_mask(n, 3), starts = flash_has_starts(n, 3);
    if (d->dy[1])
        fail_node(d->b->g, n, "has no gradient through its output 1, the log-sum-exp");
    if (n->nin == 4 && !mask && !starts)
        fail_node(d->b->g, n, "has no gradient where it is given a position");
    Value *in[] = {d->dy[0],
                   n->in[0],
                   n->in[1],
                   n->in[2],
                   n->out[0],
                   n->out[1],
                   n->nin == 4 ? n->in[3] : NULL};
    Node *back = emit(d->b, "flash_attention_backward", 6 + (n->nin == 4), in,
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
    FlashFactors x = flash_factors(f, &s, FACTOR_PARALLEL, FACTOR_LOGSUMEXP, FACTOR_PARALLEL);
    flash_query_axes(&f->in[0], &x);
    flash_key_axes(&f->in[1], &x);
    flash_key_axes(&f->in[2], &x);
    flash_query_axes(&f->out[0], &x);
    flash_lse_axes(&f->out[1], &x);
    if (flash_has_mask(n, 3))
        flash_mask_axes(&f->in[3], &n->in[3]->type, &x);
    if (flash_has_starts(n, 3))
        flash_start_axes(&f->in[3], &x);
}

/* ---- ref ---- */

typedef struct FlashRef {
    Flash f;
    const Tensor *q, *k, *v, *o, *lse, *mask, *starts;
} FlashRef;

static double score(const FlashRef *r, int64_t b, int64_t t, int64_t h, int64_t j)
{
    return flash_score(&r->f, r->q, r->k, r->mask, b, t, h, j);
}

static void ref_row(const FlashRef *r, int64_t b, int64_t t, int64_t h)
{
    int64_t seen = flash_seen(&r->f, t), begin = flash_first(r->starts, b, t);
    double first = score(r, b, t, h, begin), top = first; /* that every query sees without a mask */
    for (int64_t j = begin + 1; j < seen; j++)
        top = fmax(top, score(r, b, t, h, j));
    top = isinf(top) ? 0 : top;
    double sum = exp(first - top);
    for (int64_t j = begin + 1; j < seen; j++)
        sum += exp(score(r, b, t, h, j) - top);
    double lse = r->mask ? flash_masked_lse(top, log(sum), r->lse->dtype) : top + log(sum);
    tensor_set(r->lse, tensor_index(r->lse, (int64_t[]){b, h, t}), sum == 0 ? INFINITY : lse);
    for (int64_t d = 0; d < r->f.size; d += FLASH_PART) {
        int64_t width = MIN(FLASH_PART, r->f.size - d);
        double o[FLASH_PART] = {0};
        for (int64_t j = begin; j < seen; j++) {
            double p = sum == 0 ? 0 : exp(score(r, b, t, h, j) - top) / sum;
            int64_t at = flash_at(r->v, b, j, h / r->f.group) + d * r->v->stride[3];
            flash_add_row(o, p, r->v, at, width);
        }
        flash_set_row(r->o, flash_at(r->o, b, t, h) + d * r->o->stride[3], o, width);
    }
}

static void ref_rows(void *arg, int64_t lo, int64_t hi)
{
    const FlashRef *r = arg;
    for (int64_t i = lo; i < hi; i++)
        ref_row(r, i / r->f.heads / r->f.queries, i / r->f.heads % r->f.queries, i % r->f.heads);
}

static int ref(Call *c)
{
    FlashRef r = {flash_of(c->node, 0), &c->in[0],  &c->in[1],        &c->in[2],
                  &c->out[0],           &c->out[1], flash_mask(c, 3), flash_starts(c, 3)};
    if (flash_place(c, &r.f))
        return -1;
    par_for(r.f.batch * r.f.queries * r.f.heads, 1, ref_rows, &r);
    return 0;
}

const OpRules op_flash_attention = {
    .math = "o = softmax(scale q k^T) v over the keys that a query sees; lse = its log-sum-exp",
    .example = "f32[2, 8, 6, 4] f32[2, 8, 3, 4] f32[2, 8, 3, 4]",
    .attrs = flash_attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = flash_kernels,
    .ref = ref,
};
