/* Layer norm and RMS norm: optional weights, results chosen by output_mask. */
#include "lower.h"

#include <string.h>

/* The weight or bias of a norm; where there is none, what it stands for, everywhere, in like's
 * dtype. */
static Value *norm_operand(Site *s, const char *name, double otherwise, const Value *like)
{
    Type t = {.dtype = like->type.dtype};
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

/* Mean and 1/deviation: f32 where x is narrower, but on the CPU of x's dtype if the weights are. */
static void narrow_statistics(Site *s, const Node *n)
{
    DType d = n->in[0]->type.dtype;
    for (int k = 1; k < 3 && n->in[1]->type.dtype == d && n->out[k]->type.dtype != d; k++) {
        Item *x = &s->result.item[k];
        FxTensor *wide = x->t;
        x->t = fx_fresh(s->im, lower_cast(s, n->out[k], d));
        x->t->elsewhere = wide;
    }
}

void row_layer_norm(Site *s)
{
    Value *x = site_tensor(s, "input");
    Value *w = norm_operand(s, "weight", 1, site_has(s, "bias") ? site_tensor(s, "bias") : x);
    Value *b = norm_operand(s, "bias", 0, w);
    Node *n = emit(s->b, "native_layer_norm", IN(x, w, b),
                   ATTRS(shape_attr(s), A_FLOAT("eps", site_real(s, "eps"))));
    site_return_all(s, n);
    narrow_statistics(s, n);
}

void row_layer_norm_plain(Site *s)
{
    row_layer_norm(s);
    s->result = s->result.item[0];
}

void row_layer_norm_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_out"), *x = site_tensor(s, "input");
    DType wide = x->type.dtype == F64 ? F64 : F32;
    Value *mean = lower_cast(s, site_tensor(s, "mean"), wide);
    Value *rstd = lower_cast(s, site_tensor(s, "rstd"), wide);
    Value *w = norm_operand(s, "weight", 1, x);
    return_masked(s, emit(s->b, "native_layer_norm_backward", IN(dy, x, mean, rstd, w),
                          ATTRS(shape_attr(s))));
}

/* x with the axes of normalized_shape as one, and the weight as a vector. */
static Value *last_axis(Site *s, Value *x)
{
    Type t = x->type;
    int64_t shape[TN_RANK];
    int n = site_ints(s, "normalized_shape", shape), from = t.rank - n;
    if (n < 1 || from < 0 || memcmp(t.dim + from, shape, (size_t)n * sizeof *shape) != 0)
        site_fail(s, "argument normalized_shape: expected the last axes of %s",
                  type_text(s->im->a, &t));
    for (int d = from + 1; d < t.rank; d++)
        t.dim[from] *= t.dim[d];
    return lower_reshape(s, x, from + 1, t.dim);
}

static Value *vector(Site *s, Value *w)
{
    int64_t n = type_nelem(&w->type);
    return lower_reshape(s, w, 1, &n);
}

void row_rms_norm(Site *s)
{
    Value *x = site_tensor(s, "input");
    const Type t = x->type;
    if (!dtype_float(t.dtype))
        site_fail(s, "argument input: expected floats, found %s", dtype_name(t.dtype));
    double least = opmath_type(t.dtype) == F64 ? 0x1p-52 : 0x1p-23; /* of what ATen computes in */
    double eps = site_has(s, "eps") ? site_real(s, "eps") : least;
    Value *w = vector(s, norm_operand(s, "weight", 1, x));
    x = last_axis(s, x);
    Node *n = emit(s->b, "rms_norm", IN(x, w), ATTRS(A_FLOAT("eps", eps)));
    Type stat = n->out[1]->type;
    for (; stat.rank < t.rank; stat.rank++)
        stat.dim[stat.rank] = 1;
    Value *out[] = {lower_reshape(s, n->out[0], t.rank, t.dim),
                    lower_reshape(s, n->out[1], stat.rank, stat.dim)};
    site_return_list(s, 2, out);
}

void row_rms_norm_plain(Site *s)
{
    row_rms_norm(s);
    s->result = s->result.item[0];
}

void row_rms_norm_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_out"), *x = site_tensor(s, "input");
    Value *rstd = site_tensor(s, "rstd"), *w = norm_operand(s, "weight", 1, x);
    const Type t = x->type, u = w->type;
    const Item *mask = site_arg(s, "output_mask");
    x = last_axis(s, x);
    rstd = lower_reshape(s, rstd, x->type.rank, rstd->type.dim);
    Node *n = emit(s->b, "rms_norm_backward", IN(last_axis(s, dy), x, rstd, vector(s, w)), NOATTRS);
    Value *out[] = {lower_reshape(s, n->out[0], t.rank, t.dim),
                    lower_reshape(s, n->out[1], u.rank, u.dim)};
    for (int k = 0; k < LEN(out); k++)
        out[k] = mask->count == LEN(out) && mask->item[k].i ? out[k] : NULL;
    site_return_list(s, LEN(out), out);
}

/* ---- weight norm ---- */

/* Sums of x but over the axis "dim", which is kept. */
static Value *sums_beside(Site *s, Value *x)
{
    int64_t axes[TN_RANK];
    int dim = site_axis(s, "dim", x->type.rank), n = 0;
    for (int d = 0; d < x->type.rank; d++)
        if (d != dim)
            axes[n++] = d;
    return n ? lower_reduce(s, "sum", x, n, axes, true) : x;
}

/* v g / |v|, and |v| (Salimans and Kingma 2016) */
static void weight_norm(Site *s, Value *out[2])
{
    Value *v = site_tensor(s, "v"), *g = site_tensor(s, "g");
    DType d = v->type.dtype;
    Value *x = lower_cast(s, v, opmath_type(d));
    out[1] = lower1(s, "sqrt", sums_beside(s, lower2(s, "mul", x, x)));
    Value *scale = lower2(s, "div", lower_cast(s, g, opmath_type(d)), out[1]);
    out[0] = lower_cast(s, lower2(s, "mul", x, scale), d);
}

void row_weight_norm(Site *s)
{
    Value *out[2];
    weight_norm(s, out);
    site_return(s, out[0]);
}

void row_weight_norm_interface(Site *s)
{
    Value *out[2];
    weight_norm(s, out);
    site_return_list(s, 2, out);
}

void row_weight_norm_backward(Site *s)
{
    Value *dw = site_tensor(s, "grad_w"), *v = site_tensor(s, "saved_v");
    Value *g = site_tensor(s, "saved_g"), *norm = site_tensor(s, "saved_norms");
    DType d = v->type.dtype, wide = opmath_type(d), dg_type = g->type.dtype;
    dw = lower_cast(s, dw, wide);
    v = lower_cast(s, v, wide);
    norm = lower_cast(s, norm, wide);
    Value *dg = lower2(s, "div", sums_beside(s, lower2(s, "mul", dw, v)), norm);
    Value *along = lower2(s, "mul", v, lower2(s, "div", dg, norm));
    Value *dv = lower2(s, "mul", lower2(s, "sub", dw, along),
                       lower2(s, "div", lower_cast(s, g, wide), norm));
    site_return_list(s, 2, (Value *[]){lower_cast(s, dv, d), lower_cast(s, dg, dg_type)});
}
