/* Scaled dot-product attention. ATen's tensors are [B, H, T, D], our op's [B, T, H, D]: the
 * transposed views of operands and results are free. What does not change values (philox seeds of
 * no dropout, sequence lengths) is None in the result. */
#include "fx.h"

#include <math.h>
#include <string.h>

static Value *swapped(Site *s, Value *x)
{
    if (x->type.rank != 4)
        site_fail(s, "expected operands [B, H, T, D], found %s", type_text(s->im->a, &x->type));
    return emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
}

static Value *operand(Site *s, const char *name)
{
    return swapped(s, site_tensor(s, name));
}

/* causal and scale, where the call means what ours does. */
static const AttrArg *attention_attrs(Site *s)
{
    const Type *q = site_type(s, "query"), *k = site_type(s, "key");
    bool causal = site_bool(s, "is_causal");
    if (site_real(s, "dropout_p") > 0)
        site_fail(s,
                  "argument dropout_p: expected 0: dropout inside of attention is not supported");
    if (causal && q->rank == 4 && k->rank == 4 && q->dim[2] != k->dim[2])
        site_fail(s, "argument is_causal: expected as many keys as queries, found %lld and %lld",
                  (long long)k->dim[2], (long long)q->dim[2]);
    AttrArg *a = NEWN(s->im->a, AttrArg, 3);
    a[0] = A_BOOL("causal", causal);
    a[1] = A_FLOAT("scale", site_has(s, "scale") ? site_real(s, "scale") : 0);
    return a;
}

/* The mask as our op takes it: added to scores, rank 4; a bool one says what is seen. NULL: none.
 */
static Value *mask(Site *s, const char *name)
{
    Value *m = name ? site_find_tensor(s, name) : NULL;
    if (!m)
        return NULL;
    DType d = site_type(s, "query")->dtype;
    if (m->type.dtype == BOOL)
        m = emit1(s->b, "where", IN(m, lower_number(s, 0, d), lower_number(s, -INFINITY, d)),
                  NOATTRS);
    Type t = {.dtype = m->type.dtype, .rank = 4};
    int extra = 4 - m->type.rank;
    if (extra < 0)
        site_fail(s, "argument %s: expected at most 4 axes", name);
    for (int k = 0; k < 4; k++)
        t.dim[k] = k < extra ? 1 : m->type.dim[k - extra];
    return lower_reshape(s, m, 4, t.dim);
}

/* (o, lse), and None up to `count` */
static void forward(Site *s, const char *mask_name, int count)
{
    Value *out[9] = {0};
    Value *in[] = {operand(s, "query"), operand(s, "key"), operand(s, "value"), mask(s, mask_name)};
    Node *n = emit(s->b, "flash_attention", in[3] ? 4 : 3, in, attention_attrs(s));
    out[0] = swapped(s, n->out[0]);
    out[1] = n->out[1];
    site_return_list(s, count, out);
}

static void backward(Site *s, const char *mask_name, int count)
{
    Value *out[4] = {0};
    Value *in[] = {operand(s, "grad_out"), operand(s, "query"), operand(s, "key"),
                   operand(s, "value"),    operand(s, "out"),   site_tensor(s, "logsumexp"),
                   mask(s, mask_name)};
    Node *n = emit(s->b, "flash_attention_backward", in[6] ? 7 : 6, in, attention_attrs(s));
    for (int i = 0; i < 3; i++)
        out[i] = swapped(s, n->out[i]);
    site_return_list(s, count, out);
}

void row_attention_cpu(Site *s)
{
    forward(s, "attn_mask", 2);
}

void row_attention_cpu_backward(Site *s)
{
    backward(s, strstr(s->row->name, "for_cpu") ? "attn_mask" : NULL, 3);
}

void row_attention_flash(Site *s)
{
    forward(s, NULL, 9);
}

void row_attention_efficient(Site *s)
{
    forward(s, "attn_bias", 4);
}

void row_attention_efficient_backward(Site *s)
{
    backward(s, "attn_bias", 4);
}

void row_attention_plain(Site *s)
{
    forward(s, "attn_mask", 2);
    s->result = s->result.item[0];
}
