/* Losses and their gradients, in every reduction. */
#include "lower.h"

static Value *reduced(Site *s, Value *y)
{
    int64_t how = site_int(s, "reduction");
    if (how == REDUCE_NONE || !y->type.rank)
        return y;
    return lower_reduce(s, how == REDUCE_MEAN ? "mean" : "sum", y, 0, NULL, false);
}

/* The argument in the dtype that self and target promote to. */
static Value *common(Site *s, const char *name)
{
    const Item *arg[] = {site_arg(s, "self"), site_arg(s, "target")};
    return promoted(s, site_arg(s, name), result_type(s, LEN(arg), arg));
}

/* self - target */
static Value *difference(Site *s)
{
    return lower2(s, "sub", common(s, "self"), common(s, "target"));
}

/* A result that ATen gives in the dtype of self, whatever it is computed in. */
static void return_own(Site *s, Value *y)
{
    site_return(s, lower_cast(s, y, site_type(s, "self")->dtype));
}

/* dy as the gradient of each element of a loss like `x` */
static Value *shared(Site *s, Value *x)
{
    Value *dy = lower_cast(s, site_tensor(s, "grad_output"), x->type.dtype);
    bool mean = site_int(s, "reduction") == REDUCE_MEAN;
    return mean ? lower_times(s, dy, 1 / (double)type_nelem(&x->type)) : dy;
}

/* d^2 / (2 beta) where |d| < beta, else |d| - beta / 2 */
void row_smooth_l1_loss(Site *s)
{
    double beta = site_real(s, "beta");
    Value *d = difference(s);
    Value *a = lower1(s, "abs", d), *y = lower2(s, "sub", a, lower_like(s, beta / 2, a));
    if (beta > 0) {
        Value *square = lower_times(s, lower2(s, "mul", a, a), 0.5 / beta);
        y = lower_where(s, lower2(s, "lt", a, lower_like(s, beta, a)), square, y);
    }
    site_return(s, reduced(s, y));
}

void row_smooth_l1_loss_backward(Site *s)
{
    double beta = site_real(s, "beta");
    Value *d = difference(s);
    Value *slope = lower1(s, "sign", d);
    if (beta > 0) {
        Value *small = lower2(s, "lt", lower1(s, "abs", d), lower_like(s, beta, d));
        slope = lower_where(s, small, lower_times(s, d, 1 / beta), slope);
    }
    return_own(s, lower2(s, "mul", slope, shared(s, d)));
}

/* d^2 / 2 where |d| < delta, else delta (|d| - delta / 2) */
void row_huber_loss(Site *s)
{
    double delta = site_real(s, "delta");
    Value *d = difference(s);
    Value *a = lower1(s, "abs", d), *square = lower_times(s, lower2(s, "mul", a, a), 0.5);
    Value *line = lower_times(s, lower2(s, "sub", a, lower_like(s, delta / 2, a)), delta);
    Value *small = lower2(s, "lt", a, lower_like(s, delta, a));
    return_own(s, reduced(s, lower_where(s, small, square, line)));
}

void row_huber_loss_backward(Site *s)
{
    double delta = site_real(s, "delta");
    Value *d = difference(s);
    Value *slope = lower2(s, "maximum", d, lower_like(s, -delta, d));
    slope = lower2(s, "minimum", slope, lower_like(s, delta, d));
    return_own(s, lower2(s, "mul", slope, shared(s, d)));
}

static Value *weighted(Site *s, Value *x)
{
    Value *weight = site_find_tensor(s, "weight");
    return weight ? lower2(s, "mul", x, lower_cast(s, weight, x->type.dtype)) : x;
}

/* log x as op(z), at least -100, and its slope at most 1e12, as that of bce_backward: below 1e-12 a
 * line through the value. */
static Value *bounded_log(Site *s, const char *op, Value *z, Value *x)
{
    Value *near = lower2(s, "lt", x, lower_like(s, 1e-12, x));
    Value *log = lower1(s, op, lower_where(s, near, lower_like(s, 1, z), z));
    Value *value = lower1(s, "detach", lower1(s, op, z)), *at = lower1(s, "detach", x);
    value = lower2(s, "maximum", value, lower_like(s, -100, x));
    Value *line = lower_times(s, lower2(s, "sub", x, at), 1e12);
    return lower_where(s, near, lower2(s, "add", value, line), log);
}

/* -t log x - (1 - t) log(1 - x), no logarithm below -100 */
void row_bce(Site *s)
{
    Value *x = common(s, "self"), *t = common(s, "target");
    Value *one = lower_like(s, 1, x);
    Value *yes = bounded_log(s, "log", x, x);
    Value *no = bounded_log(s, "log1p", lower1(s, "neg", x), lower2(s, "sub", one, x));
    no = lower2(s, "mul", lower2(s, "sub", t, one), no);
    Value *y = lower2(s, "sub", no, lower2(s, "mul", t, yes));
    return_own(s, reduced(s, weighted(s, y)));
}

/* (x - t) / max(x (1 - x), 1e-12) */
void row_bce_backward(Site *s)
{
    Value *x = common(s, "self"), *t = common(s, "target");
    Value *both = lower2(s, "mul", lower2(s, "sub", lower_like(s, 1, x), x), x);
    both = lower2(s, "maximum", both, lower_like(s, 1e-12, x));
    Value *slope = lower2(s, "div", lower2(s, "sub", x, t), both);
    return_own(s, lower2(s, "mul", weighted(s, slope), shared(s, x)));
}

/* log(1 + exp(-|x|)) + max(-x, 0), rounded to the dtype of x as ATen does */
static Value *minus_log_sigmoid(Site *s)
{
    DType own = site_type(s, "self")->dtype;
    Value *x = lower_cast(s, site_tensor(s, "self"), opmath_type(float_type(own)));
    Value *y = lower2(s, "maximum", lower1(s, "neg", x), lower_like(s, 0, x));
    y = lower2(s, "add", y, lower1(s, "log1p", lower_exp_abs(s, x)));
    return lower_cast(s, lower_cast(s, y, own), common(s, "self")->type.dtype);
}

/* (1 - t) x + (1 + (pos_weight - 1) t) (log(1 + exp(-|x|)) + max(-x, 0)) */
void row_bce_with_logits(Site *s)
{
    Value *x = common(s, "self"), *t = common(s, "target");
    Value *more = site_find_tensor(s, "pos_weight"), *one = lower_like(s, 1, t);
    Value *y = minus_log_sigmoid(s);
    if (more) {
        more = lower_cast(s, more, t->type.dtype);
        more = lower2(s, "mul", lower2(s, "sub", more, lower_like(s, 1, more)), t);
        y = lower2(s, "mul", y, lower2(s, "add", more, lower_like(s, 1, more)));
    }
    y = lower2(s, "add", lower2(s, "mul", lower2(s, "sub", one, t), x), y);
    site_return(s, reduced(s, weighted(s, y)));
}

void row_mse_loss(Site *s)
{
    Value *d = difference(s);
    site_return(s, reduced(s, lower2(s, "mul", d, d)));
}

void row_mse_loss_backward(Site *s)
{
    Value *d = difference(s);
    return_own(s, lower2(s, "mul", lower_times(s, d, 2), shared(s, d)));
}

/* log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)), z = -t x */
void row_soft_margin_loss(Site *s)
{
    Value *x = common(s, "self"), *z = lower2(s, "mul", lower1(s, "neg", common(s, "target")), x);
    Value *y = lower2(s, "maximum", z, lower_like(s, 0, z));
    return_own(s, reduced(s, lower2(s, "add", y, lower1(s, "log1p", lower_exp_abs(s, z)))));
}

/* -t sigmoid(-t x) */
void row_soft_margin_loss_backward(Site *s)
{
    Value *x = common(s, "self"), *t = lower1(s, "neg", common(s, "target"));
    Value *slope = lower2(s, "mul", t, lower1(s, "sigmoid", lower2(s, "mul", t, x)));
    return_own(s, lower2(s, "mul", slope, shared(s, x)));
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
