/* Softmax, embedding: the forms that ATen's calls have and our ops do not. */
#include "lower.h"

#include <math.h>
#include <string.h>

/* ---- softmax ---- */

static Value *along(Site *s, const char *op, int n, Value **in)
{
    int rank = in[0]->type.rank;
    int64_t dim = site_axis(s, "dim", rank), one = 1;
    for (int i = 0; i < n && rank == 0; i++)
        in[i] = lower_reshape(s, in[i], 1, &one);
    Value *y = emit1(s->b, op, n, in, ATTRS(A_INT("dim", dim)));
    return rank ? y : lower_reshape(s, y, 0, NULL);
}

static const char *softmax_op(const Site *s)
{
    return strstr(s->row->name, "log") ? "_log_softmax" : "_softmax";
}

void row_softmax(Site *s)
{
    Value *x = site_tensor(s, "self");
    if (site_bool(s, "half_to_float"))
        x = lower_cast(s, x, F32);
    site_return(s, along(s, softmax_op(s), 1, &x));
}

void row_softmax_int(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower_cast(s, x, site_dtype(s, "dtype", float_type(x->type.dtype)));
    site_return(s, along(s, softmax_op(s), 1, &x));
}

/* Rows of -inf alone are replaced before the softmax: its own gradient of them is NaN, which a
 * selection after it would not take away. */
Value *lower_safe_softmax(Site *s, Value *x, int64_t dim)
{
    if (type_nelem(&x->type) == 0)
        return emit1(s->b, "_softmax", IN(x), ATTRS(A_INT("dim", dim)));
    Value *zero = lower_like(s, 0, x), *most = lower_reduce(s, "amax", x, 1, &dim, true);
    Value *masked = lower2(s, "eq", most, lower_like(s, -INFINITY, x));
    Value *y =
        emit1(s->b, "_softmax", IN(lower_where(s, masked, zero, x)), ATTRS(A_INT("dim", dim)));
    return lower_where(s, masked, zero, y);
}

void row_safe_softmax(Site *s)
{
    Value *x = site_tensor(s, "self");
    Type t = x->type;
    int axis = site_axis(s, "dim", t.rank);
    x = lower_cast(s, x, site_dtype(s, "dtype", float_type(t.dtype)));
    Value *y = lower_safe_softmax(
        s, lower_reshape(s, x, MAX(t.rank, 1), t.rank ? t.dim : (int64_t[]){1}), axis);
    site_return(s, lower_reshape(s, y, t.rank, t.dim));
}

void row_softmax_backward(Site *s)
{
    Value *in[] = {site_tensor(s, "grad_output"), site_tensor(s, "output")};
    const char *op = arena_printf(s->im->a, "%s_backward_data", softmax_op(s));
    DType d = site_dtype(s, "input_dtype", in[0]->type.dtype);
    site_return(s, lower_cast(s, along(s, op, 2, in), d));
}

/* ---- embedding ---- */

/* padding_idx, where there is one. */
static AttrArg padding(Site *s)
{
    int64_t i = site_int(s, "padding_idx");
    if (i < 0)
        return (AttrArg){0};
    return A_INT("padding_idx", i);
}

void row_embedding(Site *s)
{
    Value *w = site_tensor(s, "weight"), *ids = site_tensor(s, "indices");
    if (site_bool(s, "sparse"))
        site_fail(s, "argument sparse: expected False");
    site_return(s, emit1(s->b, "embedding", IN(w, ids),
                         ATTRS(A_BOOL("scale_grad_by_freq", site_bool(s, "scale_grad_by_freq")),
                               padding(s))));
}

static Value *added_by_id(Site *s, Value *dy, Value *ids)
{
    return emit1(s->b, "embedding_dense_backward", IN(dy, ids),
                 ATTRS(A_INT("num_weights", site_int(s, "num_weights")), padding(s)));
}

/* How often each id stands among them, beside ids: [..., 1] */
static Value *frequencies(Site *s, Value *ids)
{
    Type t = ids->type;
    t.dtype = F32;
    t.dim[t.rank++] = 1;
    Value *count = added_by_id(s, lower_full(s, 1, &t), ids);
    return emit1(s->b, "embedding", IN(count, ids), NOATTRS);
}

/* scale_grad_by_freq: a row's gradient is the mean over where its id stands. */
static void embedding_backward(Site *s, Value *dy)
{
    Value *ids = site_tensor(s, "indices");
    if (site_bool(s, "scale_grad_by_freq")) {
        if (ids->type.rank == TN_RANK)
            site_fail(s, "argument indices: expected at most %d axes", TN_RANK - 1);
        Value *count = lower_cast(s, frequencies(s, ids), dy->type.dtype);
        Value *least = lower2(s, "maximum", count, lower_like(s, 1, count)); /* 0: padding */
        dy = lower2(s, "div", dy, least);
    }
    site_return(s, added_by_id(s, dy, ids));
}

void row_embedding_dense_backward(Site *s)
{
    embedding_backward(s, site_tensor(s, "grad_output"));
}

void row_embedding_backward(Site *s)
{
    if (site_bool(s, "sparse"))
        site_fail(s, "argument sparse: expected False");
    embedding_backward(s, site_tensor(s, "grad"));
}
