/* flash_attention_backward: gradients of flash_attention's q, k, v from do, its operands and
 * results. With s = scale q k^T, p = exp(s - lse) and delta = rowsum(do o):
 *
 *   dv = p^T do,   dp = do v^T,   ds = p (dp - delta) scale,   dq = ds k,   dk = ds^T q
 *
 * A mask, operand 6, is added to the scores as in the forward, or operand 6 has the starts of
 * documents. ref sums each element of a gradient
 * in double. */
#include "flash.h"

#include <math.h>

/* ---- rules ---- */

static int infer(const Graph *g, const Node *n, Type *out)
{
    Type lse = flash_lse_type(g, n, Q);
    need_type(g, n, DO, &n->in[Q]->type);
    need_type(g, n, O, &n->in[Q]->type);
    need_type(g, n, LSE, &lse);
    if (flash_has_starts(n, MASK))
        flash_check_starts(g, n, Q, MASK);
    else if (n->nin > MASK)
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
    FlashFactors x = flash_factors(f, &s, FACTOR_SUM, FACTOR_SUM, FACTOR_SUM);
    Axes *like_q[] = {&f->in[DO], &f->in[Q], &f->in[O], &f->out[DQ]};
    Axes *like_k[] = {&f->in[K], &f->in[V], &f->out[DK], &f->out[DV]};
    for (int i = 0; i < 4; i++) {
        flash_query_axes(like_q[i], &x);
        flash_key_axes(like_k[i], &x);
    }
    flash_lse_axes(&f->in[LSE], &x);
    if (flash_has_starts(n, MASK))
        flash_start_axes(&f->in[MASK], &x);
    else if (n->nin > MASK)
        flash_mask_axes(&f->in[MASK], &n->in[MASK]->type, &x);
}

/* ---- ref: each row of a gradient from all pairs it takes part in ---- */

typedef struct FlashGradRef {
    Flash f;
    const Tensor *in, *out, *mask, *starts;
} FlashGradRef;

/* p and ds of query t of head h and key j. */
static void pair(const FlashGradRef *r, int64_t b, int64_t t, int64_t h, int64_t j, double *p,
                 double *ds)
{
    const Tensor *x = r->in, *lse = &x[LSE];
    int64_t size = r->f.size, grad = flash_at(&x[DO], b, t, h);
    double s = flash_score(&r->f, &x[Q], &x[K], r->mask, b, t, h, j);
    double dp = flash_dot(&x[DO], grad, &x[V], flash_at(&x[V], b, j, h / r->f.group), size);
    double delta = flash_dot(&x[DO], grad, &x[O], flash_at(&x[O], b, t, h), size);
    double row = tensor_get(lse, tensor_index(lse, (int64_t[]){b, h, t}));
    double level = r->mask ? flash_take_level(&row, lse->dtype) : 0;
    *p = exp(s - level - row);
    *ds = *p * (dp - delta) * r->f.scale;
}

static void ref_query(const FlashGradRef *r, int64_t b, int64_t t, int64_t h, int64_t d0, int64_t n)
{
    double dq[FLASH_PART] = {0}, p, ds;
    const Tensor *k = &r->in[K], *y = &r->out[DQ];
    for (int64_t j = flash_first(r->starts, b, t); j < flash_seen(&r->f, t); j++) {
        pair(r, b, t, h, j, &p, &ds);
        flash_add_row(dq, ds, k, flash_at(k, b, j, h / r->f.group) + d0 * k->stride[3], n);
    }
    flash_set_row(y, flash_at(y, b, t, h) + d0 * y->stride[3], dq, n);
}

static void ref_key(const FlashGradRef *r, int64_t b, int64_t j, int64_t shared, int64_t d0,
                    int64_t n)
{
    double dk[FLASH_PART] = {0}, dv[FLASH_PART] = {0}, p, ds;
    const Tensor *q = &r->in[Q], *g = &r->in[DO], *y = r->out;
    for (int64_t h = shared * r->f.group; h < (shared + 1) * r->f.group; h++)
        for (int64_t t = 0; t < r->f.queries; t++) {
            if (j >= flash_seen(&r->f, t) || j < flash_first(r->starts, b, t))
                continue;
            pair(r, b, t, h, j, &p, &ds);
            flash_add_row(dk, ds, q, flash_at(q, b, t, h) + d0 * q->stride[3], n);
            flash_add_row(dv, p, g, flash_at(g, b, t, h) + d0 * g->stride[3], n);
        }
    flash_set_row(&y[DK], flash_at(&y[DK], b, j, shared) + d0 * y[DK].stride[3], dk, n);
    flash_set_row(&y[DV], flash_at(&y[DV], b, j, shared) + d0 * y[DV].stride[3], dv, n);
}

static void ref_queries(void *arg, int64_t lo, int64_t hi)
{
    const FlashGradRef *r = arg;
    int64_t heads = r->f.heads, rows = r->f.queries;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t d = 0; d < r->f.size; d += FLASH_PART)
            ref_query(r, i / heads / rows, i / heads % rows, i % heads, d,
                      MIN(FLASH_PART, r->f.size - d));
}

static void ref_keys(void *arg, int64_t lo, int64_t hi)
{
    const FlashGradRef *r = arg;
    int64_t heads = r->f.heads / r->f.group, rows = r->f.keys;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t d = 0; d < r->f.size; d += FLASH_PART)
            ref_key(r, i / heads / rows, i / heads % rows, i % heads, d,
                    MIN(FLASH_PART, r->f.size - d));
}

static int ref(Call *c)
{
    FlashGradRef r = {flash_of(c->node, Q), c->in, c->out, flash_mask(c, MASK),
                      flash_starts(c, MASK)};
    if (flash_check_documents(c, MASK))
        return -1;
    par_for(r.f.batch * r.f.queries * r.f.heads, 1, ref_queries, &r);
    par_for(r.f.batch * r.f.keys * r.f.heads / r.f.group, 1, ref_keys, &r);
    return 0;
}

const OpRules op_flash_attention_backward = {
    .math = "dq, dk, dv of flash_attention: p = exp(s - lse), ds = p (do v^T - rowsum(do o)) scale",
    .example = "f32[2, 8, 6, 4] f32[2, 8, 6, 4] f32[2, 8, 3, 4] f32[2, 8, 3, 4] "
               "f32[2, 8, 6, 4] f32[2, 6, 8]",
    .attrs = flash_attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .kernels = flash_backward_kernels,
    .ref = ref,
};
