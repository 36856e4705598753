/* Activations, losses, softmax, norms, embedding, dropout: what of their ATen forms is not in our
 * ops' operands and attributes. */
#include "fx.h"

#include <math.h>
#include <string.h>

static Value *number_like(Site *s, double x, const Value *like)
{
    return lower_number(s, x, like->type.dtype);
}

static Value *times(Site *s, Value *x, double factor)
{
    return lower2(s, "mul", x, number_like(s, factor, x));
}

static Value *where(Site *s, Value *cond, Value *x, Value *y)
{
    return emit1(s->b, "where", IN(cond, x, y), NOATTRS);
}

/* ---- activations ---- */

void row_hardtanh(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower2(s, "maximum", x, number_like(s, site_real(s, "min_val"), x));
    site_return(s, lower2(s, "minimum", x, number_like(s, site_real(s, "max_val"), x)));
}

void row_leaky_relu(Site *s)
{
    Value *x = site_tensor(s, "self"), *positive = lower2(s, "gt", x, number_like(s, 0, x));
    site_return(s, where(s, positive, x, times(s, x, site_real(s, "negative_slope"))));
}

void row_leaky_relu_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *x = site_tensor(s, "self");
    Value *positive = lower2(s, "gt", x, number_like(s, 0, x));
    site_return(s, where(s, positive, dy, times(s, dy, site_real(s, "negative_slope"))));
}

/* x beta, and where it is above the threshold, beyond which softplus is x */
static Value *softplus_scaled(Site *s, Value *x, Value **linear)
{
    Value *z = times(s, x, site_real(s, "beta"));
    *linear = lower2(s, "gt", z, number_like(s, site_real(s, "threshold"), x));
    return z;
}

void row_softplus(Site *s)
{
    Value *x = site_tensor(s, "self"), *linear, *z = softplus_scaled(s, x, &linear);
    z = lower1(s, "log1p", lower1(s, "exp", z));
    z = lower2(s, "div", z, number_like(s, site_real(s, "beta"), x));
    site_return(s, where(s, linear, x, z));
}

void row_softplus_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *x = site_tensor(s, "self"), *linear;
    Value *z = softplus_scaled(s, x, &linear);
    site_return(s, where(s, linear, dy, lower2(s, "mul", dy, lower1(s, "sigmoid", z))));
}

/* x where it is positive, else alpha (exp(input_scale x) - 1); times scale */
void row_elu(Site *s)
{
    Value *x = site_tensor(s, "self"), *positive = lower2(s, "gt", x, number_like(s, 0, x));
    Value *low = lower1(s, "expm1", times(s, x, site_real(s, "input_scale")));
    x = where(s, positive, x, times(s, low, site_real(s, "alpha")));
    site_return(s, times(s, x, site_real(s, "scale")));
}

/* The halves of x along dim: a sigmoid(b) is its glu. */
static int glu_halves(Site *s, Value *x, Value **a, Value **b)
{
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t n = x->type.rank ? x->type.dim[axis] : 1;
    if (n % 2)
        site_fail(s, "argument self: expected an even size along dim, found %lld", (long long)n);
    *a = lower_slice(s, x, axis, 0, n / 2, 1);
    *b = lower1(s, "sigmoid", lower_slice(s, x, axis, n / 2, n, 1));
    return axis;
}

void row_glu(Site *s)
{
    Value *a, *b;
    glu_halves(s, site_tensor(s, "self"), &a, &b);
    site_return(s, lower2(s, "mul", a, b));
}

void row_glu_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *a, *b;
    int axis = glu_halves(s, site_tensor(s, "self"), &a, &b);
    Value *da = lower2(s, "mul", dy, b);
    Value *db = lower2(s, "sigmoid_backward", lower2(s, "mul", dy, a), b);
    site_return(s, emit1(s->b, "cat", IN(da, db), ATTRS(A_INT("dim", axis))));
}

/* log(1 + exp(-|x|)) */
static Value *log1p_exp(Site *s, Value *x)
{
    return lower1(s, "log1p", lower1(s, "exp", lower1(s, "neg", lower1(s, "abs", x))));
}

/* min(x, 0) - log(1 + exp(-|x|)); the second result is only for PyTorch's backward */
void row_log_sigmoid(Site *s)
{
    Value *x = site_tensor(s, "self");
    Value *low = lower2(s, "minimum", x, number_like(s, 0, x));
    Value *out[] = {lower2(s, "sub", low, log1p_exp(s, x)),
                    lower_full(s, 0, &(Type){.dtype = x->type.dtype, .rank = 1})};
    site_return_list(s, 2, out);
}

void row_log_sigmoid_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *x = site_tensor(s, "self");
    site_return(s, lower2(s, "mul", dy, lower1(s, "sigmoid", lower1(s, "neg", x))));
}

/* ---- losses ---- */

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

static Value *reduced(Site *s, Value *y)
{
    int64_t how = site_int(s, "reduction");
    if (how == REDUCE_NONE || !y->type.rank)
        return y;
    return lower_reduce(s, how == REDUCE_MEAN ? "mean" : "sum", y, 0, NULL, false);
}

/* dy as the gradient of each element of a loss like `x` */
static Value *shared(Site *s, Value *x)
{
    Value *dy = site_tensor(s, "grad_output");
    bool mean = site_int(s, "reduction") == REDUCE_MEAN;
    return mean ? times(s, dy, 1 / (double)type_nelem(&x->type)) : dy;
}

/* d^2 / (2 beta) where |d| < beta, else |d| - beta / 2 */
void row_smooth_l1_loss(Site *s)
{
    double beta = site_real(s, "beta");
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    Value *a = lower1(s, "abs", d), *y = lower2(s, "sub", a, number_like(s, beta / 2, a));
    if (beta > 0) {
        Value *square = times(s, lower2(s, "mul", a, a), 0.5 / beta);
        y = where(s, lower2(s, "lt", a, number_like(s, beta, a)), square, y);
    }
    site_return(s, reduced(s, y));
}

void row_smooth_l1_loss_backward(Site *s)
{
    double beta = site_real(s, "beta");
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    Value *slope = lower1(s, "sign", d);
    if (beta > 0) {
        Value *small = lower2(s, "lt", lower1(s, "abs", d), number_like(s, beta, d));
        slope = where(s, small, times(s, d, 1 / beta), slope);
    }
    site_return(s, lower2(s, "mul", slope, shared(s, d)));
}

/* d^2 / 2 where |d| < delta, else delta (|d| - delta / 2) */
void row_huber_loss(Site *s)
{
    double delta = site_real(s, "delta");
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    Value *a = lower1(s, "abs", d), *square = times(s, lower2(s, "mul", a, a), 0.5);
    Value *line = times(s, lower2(s, "sub", a, number_like(s, delta / 2, a)), delta);
    Value *small = lower2(s, "lt", a, number_like(s, delta, a));
    site_return(s, reduced(s, where(s, small, square, line)));
}

void row_huber_loss_backward(Site *s)
{
    double delta = site_real(s, "delta");
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    Value *slope = lower2(s, "maximum", d, number_like(s, -delta, d));
    slope = lower2(s, "minimum", slope, number_like(s, delta, d));
    site_return(s, lower2(s, "mul", slope, shared(s, d)));
}

static Value *weighted(Site *s, Value *x)
{
    Value *weight = site_find_tensor(s, "weight");
    return weight ? lower2(s, "mul", x, weight) : x;
}

/* -t log x - (1 - t) log(1 - x), no logarithm below -100 */
void row_bce(Site *s)
{
    Value *x = site_tensor(s, "self"), *t = site_tensor(s, "target");
    Value *least = number_like(s, -100, x), *one = number_like(s, 1, x);
    Value *yes = lower2(s, "maximum", lower1(s, "log", x), least);
    Value *no = lower2(s, "maximum", lower1(s, "log1p", lower1(s, "neg", x)), least);
    no = lower2(s, "mul", lower2(s, "sub", t, one), no);
    Value *y = lower2(s, "sub", no, lower2(s, "mul", t, yes));
    site_return(s, reduced(s, weighted(s, y)));
}

/* (x - t) / max(x (1 - x), 1e-12) */
void row_bce_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *t = site_tensor(s, "target");
    Value *both = lower2(s, "mul", lower2(s, "sub", number_like(s, 1, x), x), x);
    both = lower2(s, "maximum", both, number_like(s, 1e-12, x));
    Value *slope = lower2(s, "div", lower2(s, "sub", x, t), both);
    site_return(s, lower2(s, "mul", weighted(s, slope), shared(s, x)));
}

/* max(x, 0) - x t + log(1 + exp(-|x|)) */
void row_bce_with_logits(Site *s)
{
    Value *x = site_tensor(s, "self"), *weight = site_find_tensor(s, "weight");
    if (site_has(s, "pos_weight"))
        site_fail(s, "argument pos_weight: expected None");
    Value *y = lower2(s, "mul", x, site_tensor(s, "target"));
    y = lower2(s, "sub", lower2(s, "maximum", x, number_like(s, 0, x)), y);
    y = lower2(s, "add", y, log1p_exp(s, x));
    site_return(s, reduced(s, weight ? lower2(s, "mul", y, weight) : y));
}

void row_mse_loss(Site *s)
{
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    site_return(s, reduced(s, lower2(s, "mul", d, d)));
}

void row_mse_loss_backward(Site *s)
{
    Value *d = lower2(s, "sub", site_tensor(s, "self"), site_tensor(s, "target"));
    site_return(s, lower2(s, "mul", times(s, d, 2), shared(s, d)));
}

static const AttrArg *nll_attrs(Site *s)
{
    AttrArg *a = NEWN(s->im->a, AttrArg, 3);
    a[0] = A_INT("reduction", site_int(s, "reduction"));
    a[1] = A_INT("ignore_index", site_int(s, "ignore_index"));
    return a;
}

/* x and target of one sample as a batch of one */
static void batch(Site *s, Value **x, Value **target)
{
    if ((*x)->type.rank != 1)
        return;
    int64_t one[] = {1, (*x)->type.dim[0]};
    *x = lower_reshape(s, *x, 2, one);
    *target = lower_reshape(s, *target, 1, one);
}

void row_nll_loss_forward(Site *s)
{
    Value *in[] = {site_tensor(s, "self"), site_tensor(s, "target"), site_find_tensor(s, "weight")};
    bool single = in[0]->type.rank == 1;
    batch(s, &in[0], &in[1]);
    Node *n = emit(s->b, "nll_loss_forward", in[2] ? 3 : 2, in, nll_attrs(s));
    Value *out[] = {single ? lower_reshape(s, n->out[0], 0, NULL) : n->out[0], n->out[1]};
    site_return_list(s, 2, out);
}

void row_nll_loss_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *target = site_tensor(s, "target");
    Value *dy = site_tensor(s, "grad_output"), *weight = site_find_tensor(s, "weight");
    Type t = x->type;
    int64_t one = 1;
    batch(s, &x, &target);
    if (t.rank == 1 && site_int(s, "reduction") == REDUCE_NONE)
        dy = lower_reshape(s, dy, 1, &one);
    Value *in[] = {dy, x, target, site_tensor(s, "total_weight"), weight};
    Value *dx = emit1(s->b, "nll_loss_backward", weight ? 5 : 4, in, nll_attrs(s));
    site_return(s, lower_reshape(s, dx, t.rank, t.dim));
}

/* x [N, C, H, W] and target [N, H, W] as rows: [N H W, C] and [N H W] */
static void rows_of(Site *s, Value **x, Value **target)
{
    const Type *t = &(*x)->type, *u = &(*target)->type;
    const int64_t n[] = {t->dim[0], t->dim[2], t->dim[3]}, order[] = {0, 2, 3, 1};
    Type want = type_make(u->dtype, LEN(n), n);
    if (t->rank != 4 || !type_equal(u, &want))
        site_fail(s, "expected self [N, C, H, W] and target [N, H, W], found %s and %s",
                  type_text(s->im->a, t), type_text(s->im->a, u));
    const int64_t size[] = {n[0] * n[1] * n[2], t->dim[1]};
    *x = emit1(s->b, "permute", IN(*x), ATTRS(A_INTS("dims", LEN(order), order)));
    *x = lower_reshape(s, *x, 2, size);
    *target = lower_reshape(s, *target, 1, size);
}

void row_nll_loss2d_forward(Site *s)
{
    Value *in[] = {site_tensor(s, "self"), site_tensor(s, "target"), site_find_tensor(s, "weight")};
    Type t = in[1]->type;
    rows_of(s, &in[0], &in[1]);
    Node *n = emit(s->b, "nll_loss_forward", in[2] ? 3 : 2, in, nll_attrs(s));
    Value *loss = n->out[0];
    if (loss->type.rank)
        loss = lower_reshape(s, loss, t.rank, t.dim);
    site_return_list(s, 2, (Value *[]){loss, n->out[1]});
}

void row_nll_loss2d_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *target = site_tensor(s, "target");
    Value *dy = site_tensor(s, "grad_output"), *weight = site_find_tensor(s, "weight");
    const int64_t *n = x->type.dim, order[] = {0, 3, 1, 2};
    const int64_t size[] = {n[0], n[2], n[3], n[1]};
    rows_of(s, &x, &target);
    if (dy->type.rank)
        dy = lower_reshape(s, dy, 1, target->type.dim);
    Value *in[] = {dy, x, target, site_tensor(s, "total_weight"), weight};
    Value *dx = emit1(s->b, "nll_loss_backward", weight ? 5 : 4, in, nll_attrs(s));
    dx = lower_reshape(s, dx, LEN(size), size);
    site_return(s, emit1(s->b, "permute", IN(dx), ATTRS(A_INTS("dims", LEN(order), order))));
}

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

/* The softmax whose rows of -inf alone are 0, where softmax's are NaN. */
void row_safe_softmax(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t dim = site_axis(s, "dim", x->type.rank);
    x = lower_cast(s, x, site_dtype(s, "dtype", float_type(x->type.dtype)));
    Value *y = along(s, "_softmax", 1, &(Value *){x});
    if (type_nelem(&x->type) == 0) {
        site_return(s, y);
        return;
    }
    Value *most = x->type.rank ? lower_reduce(s, "amax", x, 1, &dim, true) : x;
    Value *masked = lower2(s, "eq", most, number_like(s, -INFINITY, x));
    site_return(s, where(s, masked, number_like(s, 0, x), y));
}

void row_softmax_backward(Site *s)
{
    Value *in[] = {site_tensor(s, "grad_output"), site_tensor(s, "output")};
    const char *op = arena_printf(s->im->a, "%s_backward_data", softmax_op(s));
    DType d = site_dtype(s, "input_dtype", in[0]->type.dtype);
    site_return(s, lower_cast(s, along(s, op, 2, in), d));
}

/* ---- norms ---- */

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

void row_rms_norm_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_out"), *x = site_tensor(s, "input");
    check_last_axis(s);
    return_masked(s, emit(s->b, "rms_norm_backward",
                          IN(dy, x, site_tensor(s, "rstd"), norm_operand(s, "weight", 1, x)),
                          NOATTRS));
}

/* ---- embedding ---- */

/* padding_idx, where there is one; scaling by frequency is refused. */
static AttrArg padding(Site *s)
{
    int64_t i = site_int(s, "padding_idx");
    if (site_bool(s, "scale_grad_by_freq"))
        site_fail(s, "argument scale_grad_by_freq: expected False");
    if (i < 0)
        return (AttrArg){0};
    return A_INT("padding_idx", i);
}

void row_embedding(Site *s)
{
    Value *w = site_tensor(s, "weight"), *ids = site_tensor(s, "indices");
    if (site_bool(s, "sparse"))
        site_fail(s, "argument sparse: expected False");
    site_return(s, emit1(s->b, "embedding", IN(w, ids), ATTRS(padding(s))));
}

void row_embedding_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *ids = site_tensor(s, "indices");
    site_return(s, emit1(s->b, "embedding_dense_backward", IN(dy, ids),
                         ATTRS(A_INT("num_weights", site_int(s, "num_weights")), padding(s))));
}

/* ---- dropout: our random numbers, by the graph's seed; the step is 1 ---- */

static Value *seed(Site *s)
{
    Graph *g = s->im->g;
    Port *p = graph_find_input(g, ROLE_SEED, NULL);
    return p ? p->v : graph_input(g, "seed", (Type){.dtype = I64}, ROLE_SEED, NULL);
}

static Node *dropped(Site *s, Value *x, double p)
{
    Value *step = lower_number(s, 1, I64);
    return emit_stream(s->b, "native_dropout", IN(x, seed(s), step), ATTRS(A_FLOAT("p", p)),
                       s->im->nstream++);
}

void row_native_dropout(Site *s)
{
    Value *x = site_tensor(s, "input");
    double p = site_real(s, "p");
    bool train = !site_has(s, "train") || site_bool(s, "train");
    if (train && p > 0) {
        site_return_all(s, dropped(s, x, p));
        return;
    }
    Type mask = x->type;
    mask.dtype = BOOL;
    Value *all[] = {x, lower_full(s, 1, &mask)};
    site_return_list(s, 2, all);
}

void row_native_dropout_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *mask = site_tensor(s, "mask");
    site_return(s, where(s, mask, times(s, dy, site_real(s, "scale")), number_like(s, 0, dy)));
}

void row_bernoulli(Site *s)
{
    const Type *t = site_type(s, "self");
    Type ones = *t;
    ones.dtype = F32;
    Value *x = lower_expand(s, lower_number(s, 1, F32), &ones);
    Node *n = dropped(s, x, 1 - site_real(s, "p"));
    site_return(s, lower_cast(s, n->out[1], t->dtype));
}
