/* Pointwise ops of two operands, broadcast by numpy's rule, of equal dtype.
 *
 * Arithmetic wraps on integers, powers too. maximum and minimum give NaN where either operand is
 * NaN; where the operands are equal each gets half of the gradient (as PyTorch does). The
 * *_backward ops are ATen's: operand 0 is the gradient of the result, operand 1 what the forward op
 * kept (x or its result y).
 *
 * Kernels for f32 and bf16 (computed in f32, each result rounded), by vmath.h, for f64 and, of
 * arithmetic, i64 and i32: one function per op and row, any strides, so the result of an element
 * does not depend on where it lies. Other dtypes run through the reference. */
#include "pointwise.h"

enum { THRESHOLD }; /* its attribute */

static const AttrField gelu_backward_attrs[] = {
    {"approximate", ATTR_STR, .s = "none"},
    {0},
};
static const AttrField threshold_backward_attrs[] = {
    {"threshold", ATTR_FLOAT, .f = 0.0},
    {0},
};

/* ---- infer ---- */

static int gelu_backward_infer(const Graph *g, const Node *n, Type *out)
{
    gelu_check(g, n);
    return infer_float(g, n, out);
}

/* ---- diff ---- */

static Value *apply(Build *b, const char *op, Value *x, Value *y)
{
    return emit1(b, op, IN(x, y), NOATTRS);
}

static Value *neg(Build *b, Value *x)
{
    return emit1(b, "neg", IN(x), NOATTRS);
}

static Value *where(Build *b, Value *cond, Value *x, Value *y)
{
    return emit1(b, "where", IN(cond, x, y), NOATTRS);
}

static void add_diff(Grad *d)
{
    for (int i = 0; i < 2; i++)
        if (d->need[i])
            d->dx[i] = grad_reduce(d->b, d->dy[0], &d->n->in[i]->type);
}

static void sub_diff(Grad *d)
{
    add_diff(d);
    if (d->need[1])
        d->dx[1] = neg(d->b, d->dx[1]);
}

static void mul_diff(Grad *d)
{
    for (int i = 0; i < 2; i++)
        if (d->need[i])
            d->dx[i] = grad_reduce(d->b, apply(d->b, "mul", d->dy[0], d->n->in[1 - i]),
                                   &d->n->in[i]->type);
}

static void div_diff(Grad *d) /* da = dy / b, db = -dy / b y */
{
    Build *b = d->b;
    Value *da = apply(b, "div", d->dy[0], d->n->in[1]);
    if (d->need[0])
        d->dx[0] = grad_reduce(b, da, &d->n->in[0]->type);
    if (d->need[1])
        d->dx[1] = neg(b, grad_reduce(b, apply(b, "mul", da, d->n->out[0]), &d->n->in[1]->type));
}

/* da = dy b a^(b-1), 0 where b = 0; db = dy y log a, 0 where a = 0 <= b: y is 0 for any such b */
static void pow_diff(Grad *d)
{
    Build *b = d->b;
    Value *x = d->n->in[0], *e = d->n->in[1], *y = d->n->out[0], *dy = d->dy[0];
    Value *zero = emit_full(b, 0, x->type.dtype);
    if (d->need[0]) {
        Value *less = apply(b, "sub", e, emit_full(b, 1, x->type.dtype));
        Value *slope = apply(b, "mul", e, apply(b, "pow", x, less));
        slope = where(b, apply(b, "eq", e, zero), zero, slope);
        d->dx[0] = grad_reduce(b, apply(b, "mul", dy, slope), &x->type);
    }
    if (d->need[1]) {
        Value *flat = apply(b, "logical_and", apply(b, "eq", x, zero), apply(b, "ge", e, zero));
        Value *slope = apply(b, "mul", y, emit1(b, "log", IN(x), NOATTRS));
        slope = where(b, flat, zero, slope);
        d->dx[1] = grad_reduce(b, apply(b, "mul", dy, slope), &e->type);
    }
}

/* da = dy b / (a^2 + b^2), db = -dy a / (a^2 + b^2); 0 at the origin, as in ATen */
static void atan2_diff(Grad *d)
{
    Build *b = d->b;
    Value *y = d->n->in[0], *x = d->n->in[1];
    Value *square = apply(b, "add", apply(b, "mul", y, y), apply(b, "mul", x, x));
    Value *zero = emit_full(b, 0, d->dy[0]->type.dtype), *origin = apply(b, "eq", square, zero);
    Value *share = where(b, origin, zero, apply(b, "div", d->dy[0], square));
    if (d->need[0])
        d->dx[0] = grad_reduce(b, apply(b, "mul", share, x), &y->type);
    if (d->need[1])
        d->dx[1] = neg(b, grad_reduce(b, apply(b, "mul", share, y), &x->type));
}

static void choice_diff(Grad *d, const char *wins)
{
    Build *b = d->b;
    Value *x = d->n->in[0], *y = d->n->in[1], *dy = d->dy[0];
    Value *half = apply(b, "mul", dy, emit_full(b, 0.5, dy->type.dtype));
    Value *zero = emit_full(b, 0, dy->type.dtype);
    Value *tied = where(b, apply(b, "eq", x, y), half, zero);
    for (int i = 0; i < 2; i++)
        if (d->need[i])
            d->dx[i] =
                grad_reduce(b, where(b, apply(b, wins, d->n->in[i], d->n->in[1 - i]), dy, tied),
                            &d->n->in[i]->type);
}

static void maximum_diff(Grad *d)
{
    choice_diff(d, "gt");
}

static void minimum_diff(Grad *d)
{
    choice_diff(d, "lt");
}

/* ---- fold: only what keeps every bit ---- */

static Value *div_fold(Build *b, Node *n) /* x / 1 */
{
    (void)b;
    return node_is_full(n->in[1]->def, 1) && type_equal(&n->in[0]->type, &n->out[0]->type)
               ? n->in[0]
               : NULL;
}

static Value *mul_fold(Build *b, Node *n) /* x 1, 1 x */
{
    if (node_is_full(n->in[0]->def, 1) && type_equal(&n->in[1]->type, &n->out[0]->type))
        return n->in[1];
    return div_fold(b, n);
}

/* ---- arithmetic of one element ---- */

/* clang-format off */
#define WRAP(op) (int64_t)((uint64_t)a op (uint64_t)b)
/* clang-format on */

/* For a negative exponent 1 / a^|b| cut to an integer, as in ATen: 0 unless a is 1 or -1. */
static int64_t power(int64_t a, int64_t b)
{
    uint64_t y = 1, x = (uint64_t)a;
    if (b < 0)
        return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
    for (; b; b >>= 1, x *= x)
        y *= b & 1 ? x : 1;
    return (int64_t)y;
}

/* gelu'(x): Phi(x) + x phi(x), or with s = sigmoid(2 u), u = c (x + 0.044715 x^3):
 * s + x s (1 - s) 2 u'. */
static double gelu_slope_f64(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * (0.5 * M_SQRT1_2 * M_2_SQRTPI);
}

static double gelu_tanh_slope_f64(double x)
{
    double c = 2 * M_SQRT1_2 * M_2_SQRTPI;
    double e = exp(-c * x * (1 + 0.044715 * x * x)), s = 1 / (1 + e);
    return s + x * s * (1 - s) * c * (1 + 3 * 0.044715 * x * x);
}

INLINE float gelu_slope_f32(float x)
{
    float e = v_bell(x, 0.5f);
    return v_normal_cdf(x, e) + x * (e * 0.398942280f);
}

INLINE float near_gelu_slope(float x)
{
    float e = v_near_bell_64(x);
    return v_near_normal_cdf(x, e) + x * (e * 0x1.988454p-66f);
}

/* The slope, given x^2 and the sigmoid. Far out s is 0 or 1, and (1 - s) z must not be 0 inf. */
INLINE float gelu_tanh_slope(float x, float z, float s)
{
    return s + x * (s * (1.0f - s)) * (1.59576912f + 0.214064449f * z);
}

INLINE float gelu_tanh_slope_f32(float x)
{
    float z = v_nearer(x * x, 400.0f);
    return gelu_tanh_slope(x, z, v_logistic(x * (1.59576912f + 0.0713548163f * z)));
}

INLINE float near_gelu_tanh_slope(float x)
{
    float z = v_nearer(x * x, 400.0f);
    return gelu_tanh_slope(x, z, v_near_logistic2(x * (2.30220820f + 0.102943240f * z)));
}

INLINE double silu_slope_f64(double x)
{
    double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

INLINE float silu_slope(float x, float s)
{
    return s * (1.0f + x * (1.0f - s));
}

/* ---- kernels and constants ---- */

#define ROW(name, expr)                               \
    ROWS2(name, expr)                                 \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, FLOAT_SET(name));        \
    }

/* A row of many operations: they may be contracted, and bf16 has an expression that comes near. */
#define LONG_ROW(name, expr, near)                    \
    LONG_ROWS2(name, expr, near)                      \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, FLOAT_SET(name));        \
    }

#define NUMBER_ROW(name, expr)                        \
    ROWS2(name, expr)                                 \
    INT_ROWS2(name)                                   \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, NUMBER_SET(name));       \
    }

/* The reference in double and, where it has one, in integers, and the cost. */
#define REF(name, expr, ints, nflop)               \
    static double name##_of(double a, double b)    \
    {                                              \
        return expr;                               \
    }                                              \
    static int name##_ref(Call *c)                 \
    {                                              \
        return pointwise_ref2(c, name##_of, ints); \
    }                                              \
    static Cost name##_cost(const Node *n)         \
    {                                              \
        return pointwise_cost(n, nflop);           \
    }

#define INTS(name, expr)                               \
    static int64_t name##_of_int(int64_t a, int64_t b) \
    {                                                  \
        return expr;                                   \
    }

/* clang-format off */
#define RULES(name, mathematics, operands, infers, ...)                                            \
    const OpRules op_##name = {                                                                    \
        .math = mathematics, .example = operands, .infer = infers, .cost = name##_cost,            \
        .inplace = {3}, .lane = name##_lane, .kernels = lane_kernels,                              \
        .ref = name##_ref, __VA_ARGS__}

INTS(add,     WRAP(+))
INTS(sub,     WRAP(-))
INTS(mul,     WRAP(*))
INTS(pow,     power(a, b))
INTS(maximum, a > b ? a : b)
INTS(minimum, a < b ? a : b)

/*  name              in double                   in i64       operations */
REF(add,              a + b,                      add_of_int,     1)
REF(sub,              a - b,                      sub_of_int,     1)
REF(mul,              a * b,                      mul_of_int,     1)
REF(div,              a / b,                      NULL,        1)
REF(pow,              pow(a, b),                  pow_of_int,     60)
REF(atan2,            atan2(a, b),                NULL,        40)
REF(maximum,          a > b || a != a ? a : b,    maximum_of_int, 1)
REF(minimum,          a < b || a != a ? a : b,    minimum_of_int, 1)
REF(silu_backward,    a * silu_slope_f64(b),      NULL,        25)
REF(tanh_backward,    a * (1 - b) * (1 + b),      NULL,        3)
REF(sigmoid_backward, a * (1 - b) * b,            NULL,        3)

NUMBER_ROW(add,     a + b)
NUMBER_ROW(sub,     a - b)
NUMBER_ROW(mul,     a * b)
ROW(div,              a / b)
NUMBER_ROW(pow,     v_pow(a, b))
ROW(atan2,            v_atan2(a, b))
NUMBER_ROW(maximum, a > b || a != a ? a : b)
NUMBER_ROW(minimum, a < b || a != a ? a : b)
LONG_ROW(silu_backward, a * silu_slope(b, v_logistic(b)),
         a * silu_slope(b, v_near_logistic2(b * 1.44269504f)))
ROW(tanh_backward,    a * ((1.0f - b) * (1.0f + b)))
ROW(sigmoid_backward, a * (1.0f - b) * b)

RULES(add, "y = a + b", "f32[4, 6] f32[6]", infer_number, .diff = add_diff,
      .alias = "aten.add.Tensor aten.add.Scalar");
RULES(sub, "y = a - b", "f32[4, 6] f32[6]", infer_number, .diff = sub_diff,
      .alias = "aten.sub.Tensor aten.sub.Scalar");
RULES(mul, "y = a b", "f32[4, 6] f32[6]", infer_number, .diff = mul_diff, .fold = mul_fold,
      .alias = "aten.mul.Tensor aten.mul.Scalar");
RULES(div, "y = a / b", "f32[4, 6] f32[6]", infer_float, .diff = div_diff, .fold = div_fold,
      .alias = "aten.div.Tensor aten.div.Scalar");
RULES(pow, "y = a^b", "f32[4, 6] f32[6]", infer_number, .diff = pow_diff,
      .alias = "aten.pow.Tensor_Tensor aten.pow.Tensor_Scalar aten.pow.Scalar");
RULES(atan2, "y = the angle of the point (b, a)", "f32[4, 6] f32[6]", infer_float,
      .diff = atan2_diff, .alias = "aten.atan2.default");
RULES(maximum, "y = max(a, b)", "f32[4, 6] f32[6]", infer_number, .diff = maximum_diff,
      .alias = "aten.maximum.default aten.max.other");
RULES(minimum, "y = min(a, b)", "f32[4, 6] f32[6]", infer_number, .diff = minimum_diff,
      .alias = "aten.minimum.default aten.min.other");
RULES(silu_backward, "dx = dy s (1 + x (1 - s)), s = sigmoid(x)", "f32[4, 6] f32[4, 6]",
      infer_float, .alias = "aten.silu_backward.default");
RULES(tanh_backward, "dx = dy (1 - y^2)", "f32[4, 6] f32[4, 6]", infer_float,
      .alias = "aten.tanh_backward.default");
RULES(sigmoid_backward, "dx = dy y (1 - y)", "f32[4, 6] f32[4, 6]", infer_float,
      .alias = "aten.sigmoid_backward.default");

/* ---- gelu_backward ---- */

REF(gelu_erf_backward,  a * gelu_slope_f64(b),      NULL, 45)
REF(gelu_tanh_backward, a * gelu_tanh_slope_f64(b), NULL, 35)
LONG_ROW(gelu_erf_backward,  a * gelu_slope_f32(b),      a * near_gelu_slope(b))
LONG_ROW(gelu_tanh_backward, a * gelu_tanh_slope_f32(b), a * near_gelu_tanh_slope(b))
/* clang-format on */

static Cost gelu_backward_cost(const Node *n)
{
    return gelu_by_tanh(n) ? gelu_tanh_backward_cost(n) : gelu_erf_backward_cost(n);
}

static int gelu_backward_ref(Call *c)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_backward_ref(c) : gelu_erf_backward_ref(c);
}

static bool gelu_backward_lane(const Call *c, LaneFn *l)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_backward_lane(c, l) : gelu_erf_backward_lane(c, l);
}

RULES(gelu_backward, "dx = dy gelu'(x)", "f32[4, 6] f32[4, 6]", gelu_backward_infer,
      .attrs = gelu_backward_attrs, .alias = "aten.gelu_backward.default");

/* ---- threshold_backward: NaN in x lets dy through, as in ATen ---- */

static int threshold_backward_ref(Call *c)
{
    const Tensor *y = &c->out[0], *dy = &c->in[0], *x = &c->in[1];
    double threshold = c->node->attr[THRESHOLD].f;
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        bool stop = tensor_get(x, broadcast_at(y, x, ix)) <= threshold;
        double slope = stop ? 0 : tensor_get(dy, broadcast_at(y, dy, ix));
        tensor_set(y, broadcast_at(y, y, ix), slope);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* arg: the threshold, and the greatest f32 not above it, which decides the same for f32 and bf16.
 */
#define THRESHOLD_ROW(name, Mx, T, k, get, put)                                              \
    KERNEL(void, name,                                                                       \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
           (n, out, in, s, arg))                                                             \
    {                                                                                        \
        const Mx *p = in[0], *q = in[1];                                                     \
        Mx *y = out;                                                                         \
        const T t = (T)((const double *)arg)[k];                                             \
        if (s[0] == 1 && s[1] == 1)                                                          \
            LANES2(T, get(p[i]), get(q[i]), put, b <= t ? 0 : a)                             \
        else                                                                                 \
            LANES2(T, get(p[i * s[0]]), get(q[i * s[1]]), put, b <= t ? 0 : a)               \
    }
THRESHOLD_ROW(threshold_f32, float, float, 1, , )
THRESHOLD_ROW(threshold_bf16, uint16_t, float, 1, v_bf16_to_f32, v_f32_to_bf16)
THRESHOLD_ROW(threshold_f64, double, double, 0, , )

static bool threshold_backward_lane(const Call *c, LaneFn *l)
{
    double threshold = c->node->attr[THRESHOLD].f;
    float t = (float)threshold;
    t = (double)t > threshold ? nextafterf(t, -INFINITY) : t;
    l->arg.f64[0] = threshold;
    l->arg.f64[1] = t;
    return lane_of(l, c, FLOAT_SET(threshold));
}

static Cost threshold_backward_cost(const Node *n)
{
    return pointwise_cost(n, 1);
}

RULES(threshold_backward, "dx = dy where x > threshold, else 0", "f32[4, 6] f32[4, 6]", infer_float,
      .attrs = threshold_backward_attrs, .alias = "aten.threshold_backward.default");
