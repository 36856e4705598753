/* Activations and their gradients by the formulas of ATen's kernels, as compositions of pointwise
 * ops. As there, f16 and bf16 are computed in f32 and rounded once. */
#include "arith.h"

#include <math.h>

static Value *operand(Site *s, const char *name)
{
    Value *x = site_tensor(s, name);
    return dtype_float(x->type.dtype) && dtype_size(x->type.dtype) == 2 ? lower_cast(s, x, F32) : x;
}

static void result(Site *s, Value *y)
{
    site_return(s, lower_cast(s, y, site_type(s, "self")->dtype));
}

/* With a slope of 0 at both ends, as ATen's; maximum and minimum have halves there. */
static Value *clamped(Site *s, Value *x, double low, double high)
{
    x = unless(s, compare(s, "le", x, low), low, x);
    return unless(s, compare(s, "ge", x, high), high, x);
}

/* ---- bounded ---- */

void row_hardtanh(Site *s)
{
    Value *x = operand(s, "self");
    result(s, clamped(s, x, site_real(s, "min_val"), site_real(s, "max_val")));
}

void row_relu6(Site *s)
{
    result(s, clamped(s, operand(s, "self"), 0, 6));
}

/* dy where low < x < high */
static Value *inside(Site *s, Value *dy, Value *x, double low, double high)
{
    Value *above = compare(s, "gt", x, low), *below = compare(s, "lt", x, high);
    return where_or(s, lower2(s, "logical_and", above, below), dy, 0);
}

void row_hardtanh_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    result(s, inside(s, dy, x, site_real(s, "min_val"), site_real(s, "max_val")));
}

void row_hardsigmoid(Site *s)
{
    Value *x = clamped(s, operand(s, "self"), -3, 3);
    result(s, lower_times(s, plus(s, x, 3), 1. / 6));
}

void row_hardsigmoid_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    result(s, inside(s, lower_times(s, dy, 1. / 6), x, -3, 3));
}

/* x hardsigmoid(x) */
void row_hardswish(Site *s)
{
    Value *x = operand(s, "self"), *part = plus(s, clamped(s, x, -3, 3), 3);
    result(s, lower_times(s, lower2(s, "mul", x, part), 1. / 6));
}

/* dy (x / 3 + 1 / 2) between -3 and 3, dy above */
void row_hardswish_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    Value *slope = plus(s, lower_times(s, x, 1. / 3), 0.5);
    Value *dx = lower_where(s, compare(s, "lt", x, 3), lower2(s, "mul", dy, slope), dy);
    result(s, lower_where(s, compare(s, "le", x, -3), lower_like(s, 0, dy), dx));
}

/* ---- shifted, cut ---- */

void row_threshold(Site *s)
{
    Value *x = operand(s, "self"), *low = compare(s, "le", x, site_real(s, "threshold"));
    result(s, lower_where(s, low, lower_like(s, site_real(s, "value"), x), x));
}

/* Whether -lambd <= x <= lambd, where both shrinks are 0. */
static Value *small(Site *s, Value *x)
{
    double bound = site_real(s, "lambd");
    return lower2(s, "logical_and", compare(s, "ge", x, -bound), compare(s, "le", x, bound));
}

void row_hardshrink(Site *s)
{
    Value *x = operand(s, "self");
    result(s, lower_where(s, small(s, x), lower_like(s, 0, x), x));
}

/* x - lambd above lambd, x + lambd below -lambd */
void row_softshrink(Site *s)
{
    double bound = site_real(s, "lambd");
    Value *x = operand(s, "self"), *above = compare(s, "gt", x, bound);
    Value *y = lower_where(s, above, plus(s, x, -bound), plus(s, x, bound));
    result(s, lower_where(s, small(s, x), lower_like(s, 0, x), y));
}

static void shrink_backward(Site *s, Value *dy)
{
    result(s, lower_where(s, small(s, operand(s, "self")), lower_like(s, 0, dy), dy));
}

void row_hardshrink_backward(Site *s)
{
    shrink_backward(s, operand(s, "grad_out"));
}

void row_softshrink_backward(Site *s)
{
    shrink_backward(s, operand(s, "grad_output"));
}

/* ---- with a slope below zero ---- */

static Value *leaky(Site *s, Value *x, Value *y, double slope)
{
    return lower_where(s, compare(s, "gt", x, 0), y, lower_times(s, y, slope));
}

void row_leaky_relu(Site *s)
{
    Value *x = operand(s, "self");
    result(s, leaky(s, x, x, site_real(s, "negative_slope")));
}

/* The same of the result, whose sign is the operand's. */
void row_leaky_relu_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    result(s, leaky(s, x, dy, site_real(s, "negative_slope")));
}

/* Without training it is leaky_relu; in training its slopes are random. */
static double rrelu_slope(Site *s)
{
    if (site_bool(s, "training"))
        site_fail(s, "argument training: expected False: its slopes are PyTorch's random numbers");
    return (site_real(s, "lower") + site_real(s, "upper")) / 2;
}

void row_rrelu(Site *s)
{
    Value *x = operand(s, "self");
    result(s, leaky(s, x, x, rrelu_slope(s)));
}

void row_rrelu_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    result(s, leaky(s, x, dy, rrelu_slope(s)));
}

static Value *prelu(Site *s, Value *x, Value *w)
{
    return lower_where(s, compare(s, "gt", x, 0), x, lower2(s, "mul", w, x));
}

/* The weight broadcasts already. */
void row_prelu_kernel(Site *s)
{
    result(s, prelu(s, operand(s, "self"), operand(s, "weight")));
}

/* One slope, or one for each of axis 1. */
void row_prelu(Site *s)
{
    Value *x = operand(s, "self"), *w = operand(s, "weight");
    int64_t n = type_nelem(&w->type), size[] = {1, n, 1, 1, 1, 1, 1, 1};
    if (n != 1 && (x->type.rank < 2 || x->type.dim[1] != n))
        site_fail(s, "argument weight: expected one or as many as axis 1 of self, found %lld",
                  (long long)n);
    result(s, prelu(s, x, lower_reshape(s, w, n == 1 ? 0 : x->type.rank, size)));
}

void row_prelu_kernel_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self"), *w = operand(s, "weight");
    Value *positive = compare(s, "gt", x, 0);
    Value *dx = lower_where(s, positive, dy, lower2(s, "mul", w, dy));
    Value *dw = lower_where(s, positive, lower_like(s, 0, x), lower2(s, "mul", x, dy));
    DType d = site_type(s, "self")->dtype;
    site_return_list(s, 2, (Value *[]){lower_cast(s, dx, d), lower_cast(s, dw, d)});
}

/* ---- exponentials ---- */

/* scale x where x is positive, else scale alpha (exp(input_scale x) - 1) */
static void elu(Site *s, double alpha, double scale, double input_scale)
{
    Value *x = operand(s, "self"), *positive = compare(s, "gt", x, 0);
    Value *low = lower_times(s, unless(s, positive, 0, x), input_scale);
    low = lower_times(s, lower1(s, "expm1", low), alpha * scale);
    result(s, lower_where(s, positive, lower_times(s, x, scale), low));
}

void row_elu(Site *s)
{
    elu(s, site_real(s, "alpha"), site_real(s, "scale"), site_real(s, "input_scale"));
}

void row_celu(Site *s)
{
    double alpha = site_real(s, "alpha");
    if (alpha == 0)
        site_fail(s, "argument alpha: expected a number other than 0");
    elu(s, alpha, 1, 1 / alpha);
}

/* Klambauer et al., "Self-Normalizing Neural Networks", 2017: alpha and scale. */
void row_selu(Site *s)
{
    elu(s, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1);
}

void row_elu_backward(Site *s)
{
    double scale = site_real(s, "scale"), input_scale = site_real(s, "input_scale");
    double low = site_real(s, "alpha") * scale;
    Value *dy = operand(s, "grad_output"), *x = site_tensor(s, "self_or_result"), *slope;
    DType d = x->type.dtype;
    x = lower_cast(s, x, dy->type.dtype);
    if (site_bool(s, "is_result"))
        slope = lower_times(s, plus(s, x, low), input_scale);
    else
        slope = lower_times(s, lower1(s, "exp", lower_times(s, x, input_scale)), input_scale * low);
    Value *dx = lower_where(s, compare(s, "gt", x, 0), lower_times(s, dy, scale),
                            lower2(s, "mul", dy, slope));
    site_return(s, lower_cast(s, dx, d));
}

/* x beta, and where it is above the threshold, beyond which softplus is x */
static Value *softplus_scaled(Site *s, Value *x, Value **linear)
{
    Value *z = lower_times(s, x, site_real(s, "beta"));
    *linear = compare(s, "gt", z, site_real(s, "threshold"));
    return z;
}

void row_softplus(Site *s)
{
    Value *x = operand(s, "self"), *linear, *z = softplus_scaled(s, x, &linear);
    z = lower1(s, "log1p", lower1(s, "exp", unless(s, linear, 0, z)));
    z = lower2(s, "div", z, lower_like(s, site_real(s, "beta"), x));
    result(s, lower_where(s, linear, x, z));
}

void row_softplus_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self"), *linear;
    Value *z = softplus_scaled(s, x, &linear);
    result(s, lower_where(s, linear, dy, lower2(s, "mul", dy, lower1(s, "sigmoid", z))));
}

/* tanh(log(1 + exp(x))), which is 1 beyond 40 */
static Value *mish_gate(Site *s, Value *x)
{
    Value *near = unless(s, compare(s, "gt", x, 40), 40, x);
    return lower1(s, "tanh", lower1(s, "log1p", lower1(s, "exp", near)));
}

void row_mish(Site *s)
{
    Value *x = operand(s, "self");
    result(s, lower2(s, "mul", x, mish_gate(s, x)));
}

/* dy (t + x sigmoid(x) (1 - t^2)), t the gate */
void row_mish_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self"), *t = mish_gate(s, x);
    Value *slope = lower2(s, "tanh_backward", lower2(s, "mul", x, lower1(s, "sigmoid", x)), t);
    result(s, lower2(s, "mul", dy, lower2(s, "add", t, slope)));
}

Value *lower_exp_abs(Site *s, Value *x)
{
    return lower1(s, "exp", lower1(s, "neg", lower1(s, "abs", x)));
}

/* min(x, 0) - log(1 + exp(-|x|)). The second result is what ATen keeps for its backward: on the
 * CPU exp(-|x|), elsewhere, and in traces of fake tensors, nothing. */
void row_log_sigmoid(Site *s)
{
    Value *x = site_tensor(s, "self"), *buffer = lower_exp_abs(s, x);
    Value *low = lower2(s, "minimum", x, lower_like(s, 0, x));
    site_return_list(s, 2, (Value *[]){lower2(s, "sub", low, lower1(s, "log1p", buffer)), buffer});
    s->result.item[1].t->optional = true;
}

void row_log_sigmoid_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *x = operand(s, "self");
    result(s, lower2(s, "mul", dy, lower1(s, "sigmoid", lower1(s, "neg", x))));
}

/* ---- gates ---- */

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
    glu_halves(s, operand(s, "self"), &a, &b);
    result(s, lower2(s, "mul", a, b));
}

void row_glu_backward(Site *s)
{
    Value *dy = operand(s, "grad_output"), *a, *b;
    int axis = glu_halves(s, operand(s, "self"), &a, &b);
    Value *da = lower2(s, "mul", dy, b);
    Value *db = lower2(s, "sigmoid_backward", lower2(s, "mul", dy, a), b);
    result(s, emit1(s->b, "cat", IN(da, db), ATTRS(A_INT("dim", axis))));
}
