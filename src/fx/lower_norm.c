/* Layer norm and RMS norm: weights that are left out, results by output_mask. */
#include "fx.h"

/* The weight or bias of a norm; where there is none, what it stands for, everywhere. */
static Value *norm_operand(Site *s, const char *name, double otherwise, const Value *x)
{
    Type t = {.dtype = x->type.dtype};
    if (site_has(s, name))
        return site_tensor(s, name);
    t.rank = site_ints(s, "normalized_shape", t.dim);
    return lower_expand(s, lower_number(s, otherwise, t.dtype), &t);
}

static AttrArg shape_attr(Site *s)
{
    int64_t *shape = NEWN(s->im->a, int64_t, TN_RANK);
    int n = site_ints(s, "normalized_shape", shape);
    return A_INTS("normalized_shape", n, shape);
}

/* The results whose bit of output_mask is set; None for the others. */
static void return_masked(Site *s, const Node *n)
{
    const Item *mask = site_arg(s, "output_mask");
    Value *out[4] = {0};
    for (int k = 0; k < mask->count && k < n->nout && k < LEN(out); k++)
        out[k] = mask->item[k].i ? n->out[k] : NULL;
    site_return_list(s, MIN(mask->count, LEN(out)), out);
}

void row_layer_norm(Site *s)
{
    Value *x = site_tensor(s, "input");
    Value *w = norm_operand(s, "weight", 1, x), *b = norm_operand(s, "bias", 0, x);
    site_return_all(s, emit(s->b, "native_layer_norm", IN(x, w, b),
                            ATTRS(shape_attr(s), A_FLOAT("eps", site_real(s, "eps")))));
}

void row_layer_norm_plain(Site *s)
{
    row_layer_norm(s);
    s->result = s->result.item[0];
}

void row_layer_norm_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_out"), *x = site_tensor(s, "input");
    Value *mean = site_tensor(s, "mean"), *rstd = site_tensor(s, "rstd");
    Value *w = norm_operand(s, "weight", 1, x);
    return_masked(s, emit(s->b, "native_layer_norm_backward", IN(dy, x, mean, rstd, w),
                          ATTRS(shape_attr(s))));
}

static void check_last_axis(Site *s)
{
    if (site_arg(s, "normalized_shape")->count > 1)
        site_fail(s, "argument normalized_shape: expected the last axis alone");
}

void row_rms_norm(Site *s)
{
    static const double epsilon[] = {
        [F64] = 0x1p-52, [F32] = 0x1p-23, [F16] = 0x1p-10, [BF16] = 0x1p-7};
    Value *x = site_tensor(s, "input");
    check_last_axis(s);
    if (!dtype_float(x->type.dtype))
        site_fail(s, "argument input: expected floats, found %s", dtype_name(x->type.dtype));
    double eps = site_has(s, "eps") ? site_real(s, "eps") : epsilon[x->type.dtype];
    Value *w = norm_operand(s, "weight", 1, x);
    site_return_all(s, emit(s->b, "rms_norm", IN(x, w), ATTRS(A_FLOAT("eps", eps))));
}

void row_rms_norm_plain(Site *s)
{
    row_rms_norm(s);
    s->result = s->result.item[0];
}

void row_rms_norm_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_out"), *x = site_tensor(s, "input");
    check_last_axis(s);
    return_masked(s, emit(s->b, "rms_norm_backward",
                          IN(dy, x, site_tensor(s, "rstd"), norm_operand(s, "weight", 1, x)),
                          NOATTRS));
}
