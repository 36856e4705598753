/* Pointwise ops of one operand. Floating point only, but neg, abs and sign also take integers.
 *
 * gelu is x Phi(x); with approximate="tanh" x sigmoid(2 c (x + 0.044715 x^3)), c = sqrt(2 / pi),
 * which equals ATen's 0.5 x (1 + tanh(...)) and keeps its accuracy in the negative tail.
 * The gradient of abs at 0 is 0, that of relu at 0 is 0; sign of NaN is 0.
 *
 * Kernels for f32 and bf16 (computed in f32, each result rounded), by vmath.h, for f64 and, where
 * integers are taken, i64 and i32: one function per op and row, any strides. Other dtypes run
 * through the reference. */
#include "pointwise.h"

static const AttrField gelu_attrs[] = {
    {"approximate", ATTR_STR, .s = "none"},
    {0},
};

/* ---- infer ---- */

static int gelu_infer(const Graph *g, const Node *n, Type *out)
{
    gelu_check(g, n);
    return infer_float(g, n, out);
}

/* ---- diff ---- */

static Value *apply(Grad *d, const char *op, Value *x, Value *y)
{
    return emit1(d->b, op, IN(x, y), NOATTRS);
}

static Value *map(Grad *d, const char *op, Value *x)
{
    return emit1(d->b, op, IN(x), NOATTRS);
}

static Value *constant(Grad *d, double x)
{
    return emit_full(d->b, x, d->dy[0]->type.dtype);
}

static void neg_diff(Grad *d)
{
    d->dx[0] = map(d, "neg", d->dy[0]);
}

static void abs_diff(Grad *d) /* dy sign(x) */
{
    Value *x = d->n->in[0], *dy = d->dy[0], *zero = constant(d, 0);
    Value *above = apply(d, "gt", x, zero), *below = apply(d, "lt", x, zero);
    Value *other = emit1(d->b, "where", IN(below, map(d, "neg", dy), zero), NOATTRS);
    d->dx[0] = emit1(d->b, "where", IN(above, dy, other), NOATTRS);
}

static void exp_diff(Grad *d)
{
    d->dx[0] = apply(d, "mul", d->dy[0], d->n->out[0]);
}

static void log_diff(Grad *d)
{
    d->dx[0] = apply(d, "div", d->dy[0], d->n->in[0]);
}

static void sqrt_diff(Grad *d) /* dy / (2 y) */
{
    d->dx[0] = apply(d, "div", d->dy[0], apply(d, "mul", d->n->out[0], constant(d, 2)));
}

static void rsqrt_diff(Grad *d) /* -dy y / 2 y^2: y^3 may be beyond what a dtype holds */
{
    Value *y = d->n->out[0], *half = apply(d, "mul", d->dy[0], constant(d, -0.5));
    d->dx[0] = apply(d, "mul", apply(d, "mul", half, y), apply(d, "mul", y, y));
}

static void reciprocal_diff(Grad *d) /* -dy y^2 */
{
    Value *y = d->n->out[0];
    d->dx[0] = map(d, "neg", apply(d, "mul", d->dy[0], apply(d, "mul", y, y)));
}

static void sin_diff(Grad *d)
{
    d->dx[0] = apply(d, "mul", d->dy[0], map(d, "cos", d->n->in[0]));
}

static void cos_diff(Grad *d)
{
    d->dx[0] = map(d, "neg", apply(d, "mul", d->dy[0], map(d, "sin", d->n->in[0])));
}

static void erf_diff(Grad *d) /* dy 2 / sqrt(pi) exp(-x^2) */
{
    Value *x = d->n->in[0], *bell = map(d, "exp", map(d, "neg", apply(d, "mul", x, x)));
    d->dx[0] = apply(d, "mul", apply(d, "mul", d->dy[0], constant(d, M_2_SQRTPI)), bell);
}

static void erfc_diff(Grad *d)
{
    erf_diff(d);
    d->dx[0] = map(d, "neg", d->dx[0]);
}

static void erfinv_diff(Grad *d) /* dy sqrt(pi) / 2 exp(y^2) */
{
    Value *y = d->n->out[0], *bell = map(d, "exp", apply(d, "mul", y, y));
    d->dx[0] = apply(d, "mul", apply(d, "mul", d->dy[0], constant(d, 1 / M_2_SQRTPI)), bell);
}

static void tanh_diff(Grad *d)
{
    d->dx[0] = apply(d, "tanh_backward", d->dy[0], d->n->out[0]);
}

static void sigmoid_diff(Grad *d)
{
    d->dx[0] = apply(d, "sigmoid_backward", d->dy[0], d->n->out[0]);
}

static void relu_diff(Grad *d)
{
    d->dx[0] = apply(d, "threshold_backward", d->dy[0], d->n->out[0]);
}

static void silu_diff(Grad *d)
{
    d->dx[0] = apply(d, "silu_backward", d->dy[0], d->n->in[0]);
}

static void gelu_diff(Grad *d)
{
    d->dx[0] = emit1(d->b, "gelu_backward", IN(d->dy[0], d->n->in[0]),
                     ATTRS(A_STR("approximate", d->n->attr[0].s)));
}

static void expm1_diff(Grad *d) /* dy exp(x): y + 1 cancels where x is far below 0 */
{
    d->dx[0] = apply(d, "mul", d->dy[0], map(d, "exp", d->n->in[0]));
}

static void log1p_diff(Grad *d) /* dy / (x + 1) */
{
    d->dx[0] = apply(d, "div", d->dy[0], apply(d, "add", d->n->in[0], constant(d, 1)));
}

static void exp2_diff(Grad *d)
{
    d->dx[0] = apply(d, "mul", apply(d, "mul", d->dy[0], d->n->out[0]), constant(d, M_LN2));
}

static void log2_diff(Grad *d)
{
    d->dx[0] = apply(d, "div", d->dy[0], apply(d, "mul", d->n->in[0], constant(d, M_LN2)));
}

/* The gradient of a step function is zero everywhere, as in ATen: dx stays NULL. */
static void step_diff(Grad *d)
{
    (void)d;
}
#define floor_diff step_diff
#define ceil_diff  step_diff
#define round_diff step_diff
#define trunc_diff step_diff
#define sign_diff  step_diff

/* ---- fold: only what keeps every bit ---- */

static Value *neg_fold(Build *b, Node *n) /* neg(neg(x)) */
{
    (void)b;
    return node_is(n->in[0]->def, OP_neg) ? n->in[0]->def->in[0] : NULL;
}

/* ---- arithmetic of one element ---- */

INLINE double exact_gelu(double x)
{
    return x * 0.5 * erfc(-x * M_SQRT1_2);
}

INLINE double tanh_gelu(double x)
{
    return x / (1 + exp(-2 * M_SQRT1_2 * M_2_SQRTPI * x * (1 + 0.044715 * x * x)));
}

/* Newton's steps on erf(y) - x, by erfc where that would cancel, from the value in f32, near 1 from
 * exp(-y^2) / (y sqrt(pi)) = 1 - x. */
static double exact_erfinv(double x)
{
    double a = fabs(x), tail = 1 - a, y;
    if (!(a < 1))
        return a == 1 ? x * INFINITY : NAN;
    y = tail < 1e-6 ? sqrt(-log(tail)) : (double)v_erfinv((float)a);
    for (int i = 0; i < 4 && tail < 1e-6; i++)
        y = sqrt(-log(tail * y / (0.5 * M_2_SQRTPI)));
    for (int i = 0; i < 3; i++)
        y -= (a < 0.5 ? erf(y) - a : tail - erfc(y)) / M_2_SQRTPI * exp(y * y);
    return copysign(y, x);
}

INLINE float v_gelu_erf(float x)
{
    return x * v_normal_cdf(x, v_bell(x, 0.5f));
}

INLINE float v_gelu_tanh(float x)
{
    return x * v_logistic(x * (1.59576912f + 0.0713548163f * (x * x)));
}

INLINE float near_sigmoid(float x)
{
    float y = v_near_logistic2(x * 1.44269504f);
    return x != x ? x : y;
}

INLINE float near_gelu_erf(float x)
{
    return x * v_near_normal_cdf(x, v_near_bell_64(x));
}

INLINE float near_gelu_tanh(float x)
{
    return x * v_near_logistic2(x * (2.30220820f + 0.102943240f * (x * x)));
}

enum { ANGLES = 256 };

/* Angles beyond the range of v_sin, which no model has, go to the library. */
static void far_angles(int64_t n, float *y, const float *x, double (*f)(double))
{
    int near = 1;
    for (int64_t i = 0; i < n; i++)
        near &= v_abs(x[i]) <= V_SIN_MOST;
    for (int64_t i = 0; i < n && !near; i++)
        if (!(v_abs(x[i]) <= V_SIN_MOST))
            y[i] = (float)f(x[i]);
}

/* ---- kernels and constants ---- */

#define ROW(name, expr)                               \
    ROWS1(name, expr)                                 \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, FLOAT_SET(name));        \
    }

/* A row of many operations: they may be contracted, and bf16 has an expression that comes near. */
#define LONG_ROW(name, expr, near)                    \
    LONG_ROWS1(name, expr, near)                      \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, FLOAT_SET(name));        \
    }

#define NUMBER_ROW(name, expr)                        \
    ROWS1(name, expr)                                 \
    INT_ROWS1(name)                                   \
    static bool name##_lane(const Call *c, LaneFn *l) \
    {                                                 \
        return lane_of(l, c, NUMBER_SET(name));       \
    }

/* The same for v_sin and v_cos, by blocks, since y may overwrite the angles that are seen twice. */
#define ROW_OF_ANGLES(name)                                                               \
    KERNEL(void, name##_block, (int64_t n, float *y, const float *x), (n, y, x))          \
    {                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                   \
            y[i] = v_##name(x[i]);                                                        \
    }                                                                                     \
    static void name##_row(int64_t n, void *out, const void *const *in, const int64_t *s, \
                           const void *arg)                                               \
    {                                                                                     \
        DType d = (DType) * (const int64_t *)arg;                                         \
        float y[ANGLES], x[ANGLES];                                                       \
        for (int64_t lo = 0; lo < n; lo += ANGLES) {                                      \
            int64_t m = MIN(ANGLES, n - lo);                                              \
            for (int64_t i = 0; i < m; i++)                                               \
                x[i] = v_load(in[0], (lo + i) * s[0], d);                                 \
            name##_block(m, y, x);                                                        \
            far_angles(m, y, x, name);                                                    \
            for (int64_t i = 0; i < m; i++)                                               \
                v_store(out, lo + i, y[i], d);                                            \
        }                                                                                 \
    }                                                                                     \
    ROW1(name##_f64, double, double, name##_of(x))                                        \
    static bool name##_lane(const Call *c, LaneFn *l)                                     \
    {                                                                                     \
        RowSet set = {name##_row, name##_row, name##_f64, NULL, NULL};                    \
        l->arg.i64[0] = c->in[0].dtype;                                                   \
        return lane_of(l, c, set);                                                        \
    }

/* The reference in double and, where it has one, in integers, and the cost. */
#define REF(name, expr, ints, nflop)               \
    static double name##_of(double x)              \
    {                                              \
        return expr;                               \
    }                                              \
    static int name##_ref(Call *c)                 \
    {                                              \
        return pointwise_ref1(c, name##_of, ints); \
    }                                              \
    static Cost name##_cost(const Node *n)         \
    {                                              \
        return pointwise_cost(n, nflop);           \
    }

/* clang-format off */
#define RULES(name, mathematics, infers, ...)                                                      \
    const OpRules op_##name = {                                                                    \
        .math = mathematics, .example = "f32[4, 6]", .infer = infers, .diff = name##_diff,         \
        .cost = name##_cost, .inplace = {1}, .ref = name##_ref,                                    \
        .lane = name##_lane, .kernels = lane_kernels, __VA_ARGS__}

static int64_t neg_of_int(int64_t x)
{
    return (int64_t)(0 - (uint64_t)x);
}

static int64_t abs_of_int(int64_t x)
{
    return x < 0 ? neg_of_int(x) : x;
}

static int64_t sign_of_int(int64_t x)
{
    return (x > 0) - (x < 0);
}

/*  name        in double          in i64   operations */
REF(neg,        -x,                neg_of_int,  1)
REF(abs,        fabs(x),           abs_of_int,  1)
REF(sign,       (x > 0) - (x < 0), sign_of_int, 1)
REF(floor,      floor(x),          NULL,    1)
REF(ceil,       ceil(x),           NULL,    1)
REF(round,      nearbyint(x),      NULL,    1)
REF(trunc,      trunc(x),          NULL,    1)
REF(exp,        exp(x),            NULL,    20)
REF(expm1,      expm1(x),          NULL,    50)
REF(exp2,       exp2(x),           NULL,    60)
REF(log,        log(x),            NULL,    25)
REF(log1p,      log1p(x),          NULL,    30)
REF(log2,       log2(x),           NULL,    27)
REF(sqrt,       sqrt(x),           NULL,    1)
REF(rsqrt,      1 / sqrt(x),       NULL,    2)
REF(reciprocal, 1 / x,             NULL,    1)
REF(sin,        sin(x),            NULL,    25)
REF(cos,        cos(x),            NULL,    25)
REF(erf,        erf(x),            NULL,    65)
REF(erfc,       erfc(x),           NULL,    60)
REF(erfinv,     exact_erfinv(x),   NULL,    60)
REF(tanh,       tanh(x),           NULL,    40)
REF(sigmoid,    1 / (1 + exp(-x)), NULL,    23)
REF(relu,       x < 0 ? 0 : x,     NULL,    1)
REF(silu,       x / (1 + exp(-x)), NULL,    24)
REF(gelu_erf,   exact_gelu(x),     NULL,    50)
REF(gelu_tanh,  tanh_gelu(x),      NULL,    28)

NUMBER_ROW(neg, -x)
NUMBER_ROW(abs, v_abs(x))
NUMBER_ROW(sign, (float)((x > 0.0f) - (x < 0.0f)))
ROW(floor,      floorf(x))
ROW(ceil,       ceilf(x))
ROW(round,      nearbyintf(x))
ROW(trunc,      truncf(x))
LONG_ROW(exp,       v_exp(x),                 v_exp(x))
ROW(expm1,      v_expm1(x))
ROW(exp2,       v_pow(2.0f, x))
ROW(log,        v_log(x))
ROW(log1p,      v_log1p(x))
ROW(log2,       v_log2(x))
ROW(sqrt,       sqrtf(x))
ROW(rsqrt,      1.0f / sqrtf(x))
ROW(reciprocal, 1.0f / x)
ROW(erf,        v_erf(x))
ROW(erfc,       v_erfc(x))
ROW(erfinv,     v_erfinv(x))
ROW_OF_ANGLES(sin)
ROW_OF_ANGLES(cos)
LONG_ROW(tanh,      v_tanh(x),                v_tanh(x))
LONG_ROW(sigmoid,   v_sigmoid(x),             near_sigmoid(x))
ROW(relu,       x < 0.0f ? 0.0f : x)
LONG_ROW(silu,      x * v_logistic(x),        x * v_near_logistic2(x * 1.44269504f))
LONG_ROW(gelu_erf,  v_gelu_erf(x),            near_gelu_erf(x))
LONG_ROW(gelu_tanh, v_gelu_tanh(x),           near_gelu_tanh(x))

RULES(neg, "y = -x", infer_number, .fold = neg_fold, .alias = "aten.neg.default");
RULES(abs, "y = |x|", infer_number, .alias = "aten.abs.default");
RULES(sign, "y = 1 where x > 0, -1 where x < 0, else 0", infer_number,
      .alias = "aten.sign.default aten.sgn.default");
RULES(floor, "y = greatest integer not above x", infer_float, .alias = "aten.floor.default");
RULES(ceil, "y = least integer not below x", infer_float, .alias = "aten.ceil.default");
RULES(round, "y = nearest integer, of two the even one", infer_float,
      .alias = "aten.round.default");
RULES(trunc, "y = x without its fraction", infer_float,
      .alias = "aten.trunc.default aten.fix.default");
RULES(expm1, "y = exp(x) - 1", infer_float, .alias = "aten.expm1.default");
RULES(exp2, "y = 2^x", infer_float, .alias = "aten.exp2.default");
RULES(log1p, "y = log(1 + x)", infer_float, .alias = "aten.log1p.default");
RULES(log2, "y = log(x) / log(2)", infer_float, .alias = "aten.log2.default");
RULES(exp, "y = exp(x)", infer_float, .alias = "aten.exp.default");
RULES(log, "y = log(x)", infer_float, .alias = "aten.log.default");
RULES(sqrt, "y = sqrt(x)", infer_float, .alias = "aten.sqrt.default");
RULES(rsqrt, "y = 1 / sqrt(x)", infer_float, .alias = "aten.rsqrt.default");
RULES(reciprocal, "y = 1 / x", infer_float, .alias = "aten.reciprocal.default");
RULES(sin, "y = sin(x)", infer_float, .alias = "aten.sin.default");
RULES(cos, "y = cos(x)", infer_float, .alias = "aten.cos.default");
RULES(erf, "y = erf(x)", infer_float, .alias = "aten.erf.default");
RULES(erfc, "y = 1 - erf(x)", infer_float, .alias = "aten.erfc.default");
RULES(erfinv, "y with erf(y) = x", infer_float, .alias = "aten.erfinv.default");
RULES(tanh, "y = tanh(x)", infer_float, .alias = "aten.tanh.default");
RULES(sigmoid, "y = 1 / (1 + exp(-x))", infer_float, .alias = "aten.sigmoid.default");
RULES(relu, "y = max(x, 0)", infer_float, .alias = "aten.relu.default");
RULES(silu, "y = x sigmoid(x)", infer_float, .alias = "aten.silu.default");
/* clang-format on */

/* ---- gelu ---- */

static Cost gelu_cost(const Node *n)
{
    return gelu_by_tanh(n) ? gelu_tanh_cost(n) : gelu_erf_cost(n);
}

static int gelu_ref(Call *c)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_ref(c) : gelu_erf_ref(c);
}

static bool gelu_lane(const Call *c, LaneFn *l)
{
    return gelu_by_tanh(c->node) ? gelu_tanh_lane(c, l) : gelu_erf_lane(c, l);
}

RULES(gelu, "y = x Phi(x)", gelu_infer, .attrs = gelu_attrs, .alias = "aten.gelu.default");
