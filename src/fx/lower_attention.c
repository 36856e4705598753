/* Scaled dot-product attention. ATen's tensors are [B, H, T, D], our op's [B, T, H, D]; the
 * transposed views of operands and results cost nothing. ATen aligns a causal mask with the first
 * query and key, our op with the last: the same with as many keys as queries, else it becomes an
 * explicit mask. Values of another width than queries: the narrower of both get zeros after, which
 * add nothing to scores, and columns of the result that are left out. Results that do not affect
 * values (philox seeds without dropout, sequence lengths) are None. */
#include "lower.h"

#include <math.h>
#include <string.h>

enum { LSE_BLOCK = 32 }; /* ATen's efficient attention pads queries of its logsumexp to this */

static Value *swapped(Site *s, Value *x)
{
    if (x->type.rank != 4)
        site_fail(s, "expected operands [B, H, T, D], found %s", type_text(s->im->a, &x->type));
    return emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
}

/* One attention; all operands are [B, H, T, D]. */
typedef struct AttentionCall {
    Value *q, *k, *v, *mask;
    bool causal;
    Attr scale; /* absent: 1 / sqrt(D) */
} AttentionCall;

/* Added to scores, rank 4; a bool one says what is seen. */
static Value *mask_of(Site *s, Value *m, DType d)
{
    if (m->type.dtype == BOOL)
        m = lower_where(s, m, lower_number(s, 0, d), lower_number(s, -INFINITY, d));
    Type t = {.dtype = m->type.dtype, .rank = 4};
    int extra = 4 - m->type.rank;
    if (extra < 0)
        site_fail(s, "expected a mask of at most 4 axes, found %s", type_text(s->im->a, &m->type));
    for (int k = 0; k < 4; k++)
        t.dim[k] = k < extra ? 1 : m->type.dim[k - extra];
    return lower_reshape(s, m, 4, t.dim);
}

/* Query t sees keys up to t. */
static Value *triangle(Site *s, int64_t nquery, int64_t nkey, DType d)
{
    Value *at[2];
    const int64_t n[] = {nquery, nkey}, column[] = {nquery, 1};
    for (int i = 0; i < 2; i++)
        at[i] = lower_count(s, n[i]);
    return mask_of(s, lower2(s, "ge", lower_reshape(s, at[0], 2, column), at[1]), d);
}

static Attr scale_of(Site *s)
{
    Attr scale = {.absent = !site_has(s, "scale")};
    if (!scale.absent)
        scale.f = site_real(s, "scale");
    return scale;
}

static AttentionCall ask(Site *s, const char *mask_name)
{
    AttentionCall a = {
        .q = site_tensor(s, "query"), .k = site_tensor(s, "key"), .v = site_tensor(s, "value")};
    Value *mask = mask_name ? site_find_tensor(s, mask_name) : NULL;
    if (site_real(s, "dropout_p") > 0)
        site_fail(s,
                  "argument dropout_p: expected 0: dropout inside of attention is not supported");
    a.causal = site_bool(s, "is_causal");
    a.scale = scale_of(s);
    a.mask = mask ? mask_of(s, mask, a.q->type.dtype) : NULL;
    return a;
}

/* causal and a mask as our op takes them; rank 4 is checked before. */
static void settle(Site *s, AttentionCall *a)
{
    int64_t nquery = a->q->type.dim[2], nkey = a->k->type.dim[2];
    if (!a->causal || (nquery == nkey && !a->mask))
        return;
    Value *seen = triangle(s, nquery, nkey, a->q->type.dtype);
    a->mask = a->mask ? lower2(s, "add", a->mask, seen) : seen;
    a->causal = false;
}

static const AttrArg *attrs(Site *s, const AttentionCall *a)
{
    AttrArg *x = NEWN(s->im->a, AttrArg, 3);
    x[0] = A_BOOL("causal", a->causal);
    x[1] = (AttrArg){"scale", ATTR_FLOAT, a->scale};
    return x;
}

/* [B, H, T, D] with zeros after the last axis up to `width` */
static Value *as_wide(Site *s, Value *x, int64_t width)
{
    const int64_t pad[] = {0, x->type.rank == 4 ? width - x->type.dim[3] : 0};
    return pad[1] > 0 ? emit1(s->b, "constant_pad_nd", IN(x), ATTRS(A_INTS("pad", 2, pad))) : x;
}

/* The first elements of the last axis */
static Value *as_narrow(Site *s, Value *x, int64_t width)
{
    return x->type.dim[3] > width ? lower_slice(s, x, 3, 0, width, 1) : x;
}

/* Makes query, key and value equally wide; returns that width. */
static int64_t widen(Site *s, AttentionCall *a)
{
    if (a->q->type.rank != 4 || a->v->type.rank != 4)
        return 0; /* refused where the axes are swapped */
    int64_t own = a->q->type.dim[3], width = MAX(own, a->v->type.dim[3]);
    if (width > own && a->scale.absent)
        a->scale = (Attr){.f = 1 / sqrt((double)own)};
    if (a->k->type.rank == 4 && a->k->type.dim[3] == own)
        a->k = as_wide(s, a->k, width);
    a->q = as_wide(s, a->q, width);
    a->v = as_wide(s, a->v, width);
    return width;
}

/* o and its logsumexp [B, H, T] */
static Value *attend(Site *s, AttentionCall *a, Value **lse)
{
    int64_t width = a->v->type.dim[3];
    widen(s, a);
    Value *in[] = {swapped(s, a->q), swapped(s, a->k), swapped(s, a->v), NULL};
    settle(s, a);
    in[3] = a->mask;
    Node *n = emit(s->b, "flash_attention", in[3] ? 4 : 3, in, attrs(s, a));
    *lse = n->out[1];
    return as_narrow(s, swapped(s, n->out[0]), width);
}

/* (dq, dk, dv), and None up to `count` */
static void backward(Site *s, AttentionCall *a, Value *lse, int count)
{
    const int64_t own[] = {a->q->type.dim[3], a->k->type.dim[3], a->v->type.dim[3]};
    int64_t width = widen(s, a);
    Value *out[4] = {0};
    Value *in[] = {swapped(s, as_wide(s, site_tensor(s, "grad_out"), width)),
                   swapped(s, a->q),
                   swapped(s, a->k),
                   swapped(s, a->v),
                   swapped(s, as_wide(s, site_tensor(s, "out"), width)),
                   lse,
                   NULL};
    settle(s, a);
    in[6] = a->mask;
    Node *n = emit(s->b, "flash_attention_backward", in[6] ? 7 : 6, in, attrs(s, a));
    for (int i = 0; i < 3; i++)
        out[i] = as_narrow(s, swapped(s, n->out[i]), own[i]);
    site_return_list(s, count, out);
}

/* ---- on the CPU ---- */

void row_attention_cpu(Site *s)
{
    AttentionCall a = ask(s, "attn_mask");
    Value *out[2];
    out[0] = attend(s, &a, &out[1]);
    site_return_list(s, 2, out);
}

void row_attention_cpu_backward(Site *s)
{
    AttentionCall a = ask(s, "attn_mask");
    backward(s, &a, site_tensor(s, "logsumexp"), 3);
}

/* ---- flash attention, cuDNN's ---- */

/* Refuses shapes for which these kernels differ in what causal means. */
static void check_square(Site *s)
{
    const Type *q = site_type(s, "query"), *k = site_type(s, "key");
    if (site_bool(s, "is_causal") && q->rank == 4 && k->rank == 4 && q->dim[2] != k->dim[2])
        site_fail(s, "argument is_causal: expected as many keys as queries, found %lld and %lld",
                  (long long)k->dim[2], (long long)q->dim[2]);
}

/* o, logsumexp, None but for the longest sequences */
static void return_flash(Site *s, const AttentionCall *a, Value *o, Value *lse)
{
    Value *out[9] = {o, lse};
    site_return_list(s, LEN(out), out);
    for (int i = 0; i < 2; i++) {
        int64_t n = (i ? a->k : a->q)->type.dim[2];
        s->result.item[4 + i] = (Item){.kind = FX_INT, .i = n, .f = (double)n};
    }
}

void row_attention_flash(Site *s)
{
    AttentionCall a = ask(s, NULL);
    Value *lse, *o;
    check_square(s);
    o = attend(s, &a, &lse);
    return_flash(s, &a, o, lse);
}

void row_attention_flash_backward(Site *s)
{
    AttentionCall a = ask(s, NULL);
    check_square(s);
    backward(s, &a, site_tensor(s, "logsumexp"), 3);
}

/* Its logsumexp is [B, H, T, 1]. */
void row_attention_cudnn(Site *s)
{
    AttentionCall a = ask(s, "attn_bias");
    Value *lse, *o;
    check_square(s);
    o = attend(s, &a, &lse);
    return_flash(s, &a, o, emit1(s->b, "unsqueeze", IN(lse), ATTRS(A_INT("dim", 3))));
}

void row_attention_cudnn_backward(Site *s)
{
    AttentionCall a = ask(s, "attn_bias");
    Value *lse = site_tensor(s, "logsumexp");
    check_square(s);
    backward(s, &a, lower_reshape(s, lse, 3, lse->type.dim), 3);
}

/* ---- memory-efficient attention ---- */

/* Its logsumexp has room for blocks of queries, or none. */
void row_attention_efficient(Site *s)
{
    AttentionCall a = ask(s, "attn_bias");
    Value *out[4] = {0};
    out[0] = attend(s, &a, &out[1]);
    int64_t n = out[1]->type.dim[2], more = (LSE_BLOCK - n % LSE_BLOCK) % LSE_BLOCK;
    const int64_t pad[] = {0, more};
    if (!site_bool(s, "compute_log_sumexp"))
        out[1] = lower_slice(s, out[1], 2, 0, 0, 1);
    else if (more)
        out[1] = emit1(s->b, "constant_pad_nd", IN(out[1]),
                       ATTRS(A_INTS("pad", 2, pad), A_FLOAT("value", INFINITY)));
    site_return_list(s, LEN(out), out);
}

void row_attention_efficient_backward(Site *s)
{
    AttentionCall a = ask(s, "attn_bias");
    Value *lse = site_tensor(s, "logsumexp");
    const Item *wanted = site_arg(s, "grad_input_mask");
    if (wanted->count > 3 && wanted->item[3].i && a.mask)
        site_fail(s, "argument grad_input_mask: the gradient of attn_bias is not supported");
    int64_t n = a.q->type.rank == 4 ? a.q->type.dim[2] : 0;
    if (lse->type.rank == 3 && lse->type.dim[2] > n)
        lse = lower_slice(s, lse, 2, 0, n, 1);
    backward(s, &a, lse, 4);
}

/* ---- before dispatch ---- */

/* [..., H, T, D] as [B, H, T, D]; axes that are missing are of size 1. */
static Value *in_four(Site *s, Value *x)
{
    const Type *t = &x->type;
    int64_t size[4] = {1, 1, 1, 1};
    if (t->rank < 2)
        site_fail(s, "expected operands [..., T, D], found %s", type_text(s->im->a, t));
    for (int d = 0; d < t->rank; d++) {
        int k = d + 4 - t->rank;
        size[MAX(k, 0)] *= t->dim[d];
    }
    return lower_reshape(s, x, 4, size);
}

/* A mask beside more than four axes: whole on those before the last three. */
static Value *mask_in_four(Site *s, Value *m, const Type *q)
{
    Type t = *q;
    if (m->type.rank <= 4 && q->rank <= 4)
        return m;
    t.dtype = m->type.dtype;
    if (m->type.rank > q->rank)
        site_fail(s, "argument attn_mask: expected at most %d axes", MAX(q->rank, 4));
    for (int d = 1; d <= 3; d++) {
        int64_t n = d <= m->type.rank ? m->type.dim[m->type.rank - d] : 1;
        t.dim[t.rank - d] = n;
    }
    return in_four(s, lower_expand(s, m, &t));
}

static AttentionCall ask_any_rank(Site *s)
{
    Value *q = site_tensor(s, "query"), *mask = site_find_tensor(s, "attn_mask");
    const Type *t = &q->type;
    if (site_real(s, "dropout_p") > 0)
        site_fail(s,
                  "argument dropout_p: expected 0: dropout inside of attention is not supported");
    AttentionCall a = {.q = in_four(s, q),
                       .k = in_four(s, site_tensor(s, "key")),
                       .v = in_four(s, site_tensor(s, "value"))};
    a.mask = mask ? mask_of(s, mask_in_four(s, mask, t), t->dtype) : NULL;
    a.causal = site_bool(s, "is_causal");
    a.scale = scale_of(s);
    return a;
}

/* The last axes of a result beside the leading ones of query */
static Value *like_query(Site *s, Value *y)
{
    Type t = *site_type(s, "query");
    t.dim[t.rank - 1] = y->type.dim[3];
    return lower_reshape(s, y, t.rank, t.dim);
}

void row_attention_plain(Site *s)
{
    AttentionCall a = ask_any_rank(s);
    Value *lse;
    site_return(s, like_query(s, attend(s, &a, &lse)));
}

/* [B, heads, T, D] as [B heads, T, D], each of its own heads repeated to fill them */
static Value *by_head(Site *s, Value *x, int64_t heads)
{
    const int64_t *n = x->type.dim, each = n[1] ? heads / n[1] : 0;
    const int64_t size[] = {n[0], n[1], 1, n[2], n[3]}, flat[] = {n[0] * heads, n[2], n[3]};
    Type t = type_make(x->type.dtype, LEN(size), size);
    t.dim[2] = each;
    if (each * n[1] != heads)
        site_fail(s, "expected heads of key and value that divide query's %lld, found %lld",
                  (long long)heads, (long long)n[1]);
    return lower_reshape(s, lower_expand(s, lower_reshape(s, x, LEN(size), size), &t), 3, flat);
}

Value *lower_scores(Site *s, Value *q, Value *k, Attr scale)
{
    const int64_t heads = q->type.dim[1], *n = q->type.dim;
    const int64_t size[] = {n[0], heads, n[2], k->type.dim[2]};
    double factor = !scale.absent ? scale.f : 1 / sqrt((double)n[3]);
    q = lower_times(s, by_head(s, q, heads), factor);
    k = by_head(s, k, heads);
    k = emit1(s->b, "transpose", IN(k), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
    return lower_reshape(s, lower2(s, "bmm", q, k), 4, size);
}

Value *lower_weighted(Site *s, Value *weight, Value *v)
{
    const int64_t *n = weight->type.dim;
    const int64_t o[] = {n[0], n[1], n[2], v->type.dim[3]};
    Value *flat = lower_reshape(s, weight, 3, (int64_t[]){n[0] * n[1], n[2], n[3]});
    return lower_reshape(s, lower2(s, "bmm", flat, by_head(s, v, n[1])), 4, o);
}

/* The scores become weights, which are a result. A bool mask is added as the numbers 1 and 0: what
 * is seen has become -inf elsewhere before. */
void row_attention_math(Site *s)
{
    AttentionCall a = ask_any_rank(s);
    Value *mask = site_find_tensor(s, "attn_mask");
    if (mask && mask->type.dtype == BOOL)
        a.mask =
            mask_of(s, lower_cast(s, mask_in_four(s, mask, site_type(s, "query")), a.q->type.dtype),
                    a.q->type.dtype);
    if (site_has(s, "dropout_mask"))
        site_fail(s, "argument dropout_mask: expected None");
    if (a.causal)
        a.mask = triangle(s, a.q->type.dim[2], a.k->type.dim[2], a.q->type.dtype);
    Value *score = lower_scores(s, a.q, a.k, a.scale);
    score = a.mask ? lower2(s, "add", score, a.mask) : score;
    Value *weight = lower_safe_softmax(s, score, 3), *y = lower_weighted(s, weight, a.v);
    site_return_list(s, 2, (Value *[]){like_query(s, y), like_query(s, weight)});
}

/* ---- flex_attention ---- */

Value *lower_mask(Site *s, Value *seen, DType d)
{
    return mask_of(s, seen, d);
}

Value *lower_attention(Site *s, Value *const qkv[3], Value *mask, bool causal, Attr scale,
                       Value **lse)
{
    AttentionCall a = {qkv[0], qkv[1], qkv[2], mask, causal, scale};
    return attend(s, &a, lse);
}
