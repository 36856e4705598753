/* Pointwise functions of one number and their gradients in f32, against the C library in double:
 * imported from PyTorch's call, differentiated, compiled, run over numbers of every size and both
 * signs, with those around which a formula may cancel. PyTorch's calls name the ops of op.def too,
 * so a row stands for the op and its diff. An op of one floating-point operand that has none yet is
 * noted: what its lines in tests/op say of it is then all.
 *
 * What is allowed is a share of the exact value, beside it a distance where the formula is ATen's
 * and cancels there too (1 - y^2 of a tanh near 1, say), or where a root of the function lies. */
#include "../../include/tenon.h"
#include "../shared/folder.h"

#include "../../src/op/op.h"

#include <math.h>

enum { SPREAD = 3000, EVEN = 2000, MOST = SPREAD + EVEN + 100 };

/* ---- the functions and their derivatives, in double ---- */

#define FN(name, y, dy)                  \
    static double name##_value(double x) \
    {                                    \
        (void)x;                         \
        return y;                        \
    }                                    \
    static double name##_slope(double x) \
    {                                    \
        (void)x;                         \
        return dy;                       \
    }

/* By bisection, of erfc where erf would cancel. */
static double inverse_erf(double x)
{
    double low = 0, high = 10, size = fabs(x);
    if (!(size < 1))
        return size == 1 ? x * INFINITY : NAN;
    if (size < 1e-8)
        return x / M_2_SQRTPI;
    for (int i = 0; i < 100; i++) {
        double mid = 0.5 * (low + high);
        bool below = size < 0.5 ? erf(mid) < size : erfc(mid) > 1 - size;
        low = below ? mid : low;
        high = below ? high : mid;
    }
    return copysign(low, x);
}

/* By recurrence up to 20 and the asymptotic series; left of 1/2 by reflection. */
static double psi(double x)
{
    double y = 0;
    if (x < 0.5) {
        double turn = x - nearbyint(x);
        return psi(1 - x) - M_PI / tan(M_PI * turn);
    }
    for (; x < 20; x++)
        y -= 1 / x;
    double w = 1 / (x * x);
    return y + log(x) - 0.5 / x - w * (1. / 12 - w * (1. / 120 - w * (1. / 252 - w / 240)));
}

static double psi_slope(double x)
{
    double y = 0;
    if (x < 0.5) {
        double c = M_PI / sin(M_PI * (x - nearbyint(x)));
        return c * c - psi_slope(1 - x);
    }
    for (; x < 20; x++)
        y += 1 / (x * x);
    double w = 1 / (x * x);
    return y + 1 / x + w / 2 + w / x * (1. / 6 - w * (1. / 30 - w * (1. / 42 - w / 30)));
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double bell(double x)
{
    return exp(-0.5 * x * x) * 0.5 * M_SQRT1_2 * M_2_SQRTPI;
}

static double normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* (cos(pi x) - sinc(x)) / x, by its series near 0 */
static double sinc_slope_of(double x)
{
    double z = M_PI * x;
    if (fabs(z) < 0.02)
        return -M_PI * z / 3 * (1 - z * z / 10 * (1 - z * z / 28));
    return (cos(z) - sin(z) / z) / x;
}

static double tanh_gelu_slope(double x)
{
    double c = 2 * M_SQRT1_2 * M_2_SQRTPI, u = c * x * (1 + 0.044715 * x * x);
    return sigmoid(u) + x * sigmoid(u) * sigmoid(-u) * c * (1 + 3 * 0.044715 * x * x);
}

#define SELU_A 1.6732632423543772848170429916717
#define SELU_S 1.0507009873554804934193349852946

FN(neg, -x, -1)
FN(abs, fabs(x), (x > 0) - (x < 0))
FN(sign, (x > 0) - (x < 0), 0)
FN(floor, floor(x), 0)
FN(ceil, ceil(x), 0)
FN(round, nearbyint(x), 0)
FN(trunc, trunc(x), 0)
FN(frac, x - trunc(x), 1)
FN(exp, exp(x), exp(x))
FN(exp2, exp2(x), exp2(x) * M_LN2)
FN(expm1, expm1(x), exp(x))
FN(log, log(x), 1 / x)
FN(log2, log2(x), 1 / x / M_LN2)
FN(log10, log10(x), 1 / x / M_LN10)
FN(log1p, log1p(x), 1 / (1 + x))
FN(sqrt, sqrt(x), 0.5 / sqrt(x))
FN(rsqrt, 1 / sqrt(x), -0.5 / sqrt(x) / x)
FN(reciprocal, 1 / x, -1 / x / x)
FN(sin, sin(x), cos(x))
FN(cos, cos(x), -sin(x))
FN(tan, tan(x), 1 / cos(x) / cos(x))
FN(sinh, sinh(x), cosh(x))
FN(cosh, cosh(x), sinh(x))
FN(tanh, tanh(x), 1 / cosh(x) / cosh(x))
FN(asinh, asinh(x), 1 / hypot(x, 1))
FN(acosh, acosh(x), 1 / sqrt(x - 1) / sqrt(x + 1))
FN(atanh, atanh(x), 1 / ((1 - x) * (1 + x)))
FN(asin, asin(x), 1 / sqrt((1 - x) * (1 + x)))
FN(acos, acos(x), -1 / sqrt((1 - x) * (1 + x)))
FN(atan, atan(x), 1 / (1 + x * x))
FN(erf, erf(x), M_2_SQRTPI *exp(-x *x))
FN(erfc, erfc(x), -M_2_SQRTPI *exp(-x *x))
FN(erfinv, inverse_erf(x), exp(inverse_erf(x) * inverse_erf(x)) / M_2_SQRTPI)
FN(sigmoid, sigmoid(x), sigmoid(x) * sigmoid(-x))
FN(relu, x<0 ? 0 : x, x> 0)
FN(silu, x *sigmoid(x), sigmoid(x) * (1 + x * sigmoid(-x)))
FN(gelu, x *normal(x), normal(x) + x * bell(x))
FN(gelu_tanh, x *sigmoid(2 * M_SQRT1_2 * M_2_SQRTPI * x * (1 + 0.044715 * x * x)),
   tanh_gelu_slope(x))
FN(sinc, x == 0 ? 1 : sin(M_PI * x) / (M_PI * x), sinc_slope_of(x))
FN(degrees, x * 180 / M_PI, 180 / M_PI)
FN(radians, x *M_PI / 180, M_PI / 180)
FN(entr, x > 0 ? -x * log(x) : x == 0 ? 0 : -INFINITY, x > 0 ? -log(x) - 1 : INFINITY)
FN(logit, log(x) - log1p(-x), 1 / x / (1 - x))
FN(logit_eps, logit_value(clamp(x, 0.125, 0.875)), fabs(x - 0.5) > 0.375 ? 0 : logit_slope(x))
FN(logit_wide, x < 0.6 ? log(1.5) : -log(1.5), 0)
FN(lgamma, lgamma(x), psi(x))
FN(digamma, psi(x), psi_slope(x))
FN(elu, x > 0 ? x : expm1(x), x > 0 ? 1 : exp(x))
FN(celu, x > 0 ? x : 2 * expm1(x / 2), x > 0 ? 1 : exp(x / 2))
FN(selu, SELU_S *(x > 0 ? x : SELU_A * expm1(x)), SELU_S *(x > 0 ? 1 : SELU_A * exp(x)))
FN(softplus, softplus(x), sigmoid(x))
FN(softplus_beta, softplus(2 * x) / 2, sigmoid(2 * x))
FN(mish, x *tanh(softplus(x)),
   tanh(softplus(x)) + x * sigmoid(x) / cosh(softplus(x)) / cosh(softplus(x)))
FN(log_sigmoid, -softplus(-x), sigmoid(-x))
FN(hardswish, x *clamp(x + 3, 0, 6) / 6, x <= -3 ? 0 : x < 3 ? x / 3 + 0.5 : 1)
FN(hardsigmoid, clamp(x + 3, 0, 6) / 6, x > -3 && x < 3 ? 1. / 6 : 0)
FN(hardtanh, clamp(x, -1, 1), x > -1 && x < 1)
FN(relu6, clamp(x, 0, 6), x > 0 && x < 6)
FN(leaky, x > 0 ? x : 0.01 * x, x > 0 ? 1 : 0.01)
FN(hardshrink, fabs(x) <= 0.5 ? 0 : x, fabs(x) > 0.5)
FN(softshrink, x > 0.5 ? x - 0.5 : x < -0.5 ? x + 0.5 : 0, fabs(x) > 0.5)
FN(nan_to_num, x, 1)
FN(square, x *x, 2 * x)

/* ---- the table ---- */

/* Shares and distances allowed, in 2^-24; */
#define ALL  -3.4e38, 3.4e38
#define HALF 1.2e-38, 3.4e38
#define UNIT -1, 1

/* clang-format off */
typedef struct Row {
    const char *call; /* of x */
    double (*value)(double), (*slope)(double);
    double low, high;              /* of x */
    double share, distance;        /* allowed of the value */
    double dshare, ddistance;      /* of the slope */
    double root;                   /* a number to look around, 0 too */
} Row;

#define F(name) name##_value, name##_slope
static const Row rows[] = {
    {"neg.default(x)",               F(neg),         ALL,    0, 0,      0, 0,    1},
    {"abs.default(x)",               F(abs),         ALL,    0, 0,      0, 0,    1},
    {"sign.default(x)",              F(sign),        ALL,    0, 0,      0, 0,    1},
    {"floor.default(x)",             F(floor),       ALL,    0, 0,      0, 0,    1},
    {"ceil.default(x)",              F(ceil),        ALL,    0, 0,      0, 0,    1},
    {"round.default(x)",             F(round),       ALL,    0, 0,      0, 0,    0.5},
    {"trunc.default(x)",             F(trunc),       ALL,    0, 0,      0, 0,    1},
    {"frac.default(x)",              F(frac),        ALL,    0, 0,      0, 0,    1},
    {"exp.default(x)",               F(exp),         -87, 200,          4, 0,    4, 0,     1},
    {"exp2.default(x)",              F(exp2),        -126, 200,         4, 0,    4, 0,     1},
    {"expm1.default(x)",             F(expm1),       -87, 200,          8, 0,    8, 0,     0.5},
    {"log.default(x)",               F(log),         HALF,   4, 0,      4, 0,    1},
    {"log2.default(x)",              F(log2),        HALF,   4, 0,      4, 0,    1},
    {"log10.default(x)",             F(log10),       HALF,   8, 0,      8, 0,    1},
    {"log1p.default(x)",             F(log1p),       -1, 3.4e38,        4, 0,    4, 0,     -1},
    {"sqrt.default(x)",              F(sqrt),        HALF,   2, 0,      4, 0,    1},
    {"rsqrt.default(x)",             F(rsqrt),       HALF,   4, 0,      8, 0,    1},
    {"reciprocal.default(x)",        F(reciprocal),  ALL,    2, 0,      4, 0,    1},
    {"sin.default(x)",               F(sin),         -1e8, 1e8,         2, 0,    2, 0,     1},
    {"cos.default(x)",               F(cos),         -1e8, 1e8,         2, 0,    2, 0,     1},
    {"tan.default(x)",               F(tan),         -1e4, 1e4,         8, 0,    8, 0,     1.5707},
    {"sinh.default(x)",              F(sinh),        -89.4, 89.4,       8, 0,    8, 0,     32},
    {"cosh.default(x)",              F(cosh),        -89.4, 89.4,       16, 0,   8, 0,     32},
    {"tanh.default(x)",              F(tanh),        ALL,    4, 0,      8, 8,    0.625},
    {"asinh.default(x)",             F(asinh),       ALL,    8, 0,      8, 0,    1},
    {"acosh.default(x)",             F(acosh),       1, 3.4e38,         8, 0,    16, 0,    1},
    {"atanh.default(x)",             F(atanh),       -0.9999999, 0.9999999, 8, 0, 8, 0,    1},
    {"asin.default(x)",              F(asin),        UNIT,   8, 0,      16, 0,   1},
    {"acos.default(x)",              F(acos),        UNIT,   8, 0,      16, 0,   1},
    {"atan.default(x)",              F(atan),        ALL,    4, 0,      8, 0,    1},
    {"erf.default(x)",               F(erf),         ALL,    4, 0,      256, 0,  1},
    {"erfc.default(x)",              F(erfc),        -100, 9,           32, 0,   256, 0,   1},
    {"erfinv.default(x)",            F(erfinv),      UNIT,   32, 0,     512, 0,  0.999},
    {"sigmoid.default(x)",           F(sigmoid),     -87, 3.4e38,       8, 0,    8, 4,     1},
    {"relu.default(x)",              F(relu),        ALL,    0, 0,      0, 0,    1},
    {"silu.default(x)",              F(silu),        -80, 3.4e38,       8, 0,    8, 16,    -1.278},
    {"gelu.default(x)",              F(gelu),        -12, 3.4e38,       32, 0,   32, 16,   -0.75},
    {"gelu.default(x, approximate = 'tanh')", F(gelu_tanh), -9, 3e38,   256, 0,  256, 32,  -0.75},
    {"sinc.default(x)",              F(sinc),        -1e3, 1e3,         4, 8,    8, 64,    1},
    {"rad2deg.default(x)",           F(degrees),     -1e36, 1e36,       2, 0,    2, 0,     1},
    {"deg2rad.default(x)",           F(radians),     ALL,    2, 0,      2, 0,    1},
    {"special_entr.default(x)",      F(entr),        0, 1e36,           8, 0,    8, 8,     1},
    {"logit.default(x)",             F(logit),       1e-37, 0.9999999,  8, 4,    8, 0,     0.5},
    {"logit.default(x, 0.125)",      F(logit_eps),   -10, 10,           8, 4,    8, 0,     0.5},
    {"logit.default(x, 0.6)",        F(logit_wide),  -10, 10,           8, 0,    0, 0,     0.5},
    {"lgamma.default(x)",            F(lgamma),      1e-30, 1e36,       8, 8,    8, 8,     2},
    {"lgamma.default(x)",            F(lgamma),      -29.5, -0.5,       8, 8,    8, 8,     -2.457},
    {"digamma.default(x)",           F(digamma),     1e-18, 1e36,       8, 8,    64, 8,    1.4616},
    {"digamma.default(x)",           F(digamma),     -29.5, -0.5,       8, 8,    64, 8,    -0.504},
    {"elu.default(x)",               F(elu),         -80, 3.4e38,       8, 0,    8, 0,     1},
    {"celu.default(x, 2)",           F(celu),        -160, 3.4e38,      8, 0,    8, 0,     1},
    {"selu.default(x)",              F(selu),        -80, 3e38,         8, 0,    8, 0,     1},
    {"softplus.default(x)",          F(softplus),    -87, 3.4e38,       8, 0,    8, 0,     20},
    {"softplus.default(x, 2)",       F(softplus_beta), -43, 1e38,       8, 0,    8, 0,     10},
    {"mish.default(x)",              F(mish),        -80, 3.4e38,       16, 0,   16, 16,   -1.19},
    {"log_sigmoid.default(x)",       F(log_sigmoid), -3.4e38, 87,       8, 0,    8, 4,     1},
    {"hardswish.default(x)",         F(hardswish),   -1e30, 5e37,       4, 0,    8, 8,     3},
    {"hardsigmoid.default(x)",       F(hardsigmoid), ALL,    4, 2,      4, 0,    3},
    {"hardtanh.default(x)",          F(hardtanh),    ALL,    0, 0,      0, 0,    0.5},
    {"relu6.default(x)",             F(relu6),       ALL,    0, 0,      0, 0,    3},
    {"leaky_relu.default(x)",        F(leaky),       ALL,    2, 0,      2, 0,    1},
    {"hardshrink.default(x)",        F(hardshrink),  ALL,    0, 0,      0, 0,    1},
    {"softshrink.default(x)",        F(softshrink),  ALL,    2, 0,      0, 0,    1},
    {"nan_to_num.default(x)",        F(nan_to_num),  ALL,    0, 0,      0, 0,    1},
    {"square.default(x)",            F(square),      ALL,    2, 0,      2, 0,    1},
};
/* clang-format on */

/* ---- numbers to try ---- */

/* Of every exponent between low and high, evenly between -30 and 30 there, around 0 and the root.
 */
static int fill(const Row *r, float *x)
{
    int n = 0;
    x[n++] = (float)r->low;
    x[n++] = (float)r->high;
    x[n++] = 0;
    for (int i = 0; i < SPREAD; i++) {
        float size = (float)exp(-80 + 168. * i / SPREAD);
        x[n++] = i % 2 ? size : -size;
    }
    for (int i = 0; i < EVEN; i++)
        x[n++] = (float)(-30.007 + 60. * i / EVEN); /* no integers: those left of 0 may be poles */
    for (int i = 0; i < 20; i++) {
        float step = (float)ldexp(1, -i - 3);
        x[n++] = (float)r->root + step;
        x[n++] = (float)r->root - step;
    }
    for (int i = 1; i <= 9; i++)
        x[n++] = (float)i;
    x[n++] = (float)r->root;
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (x[i] >= (float)r->low && x[i] <= (float)r->high)
            x[kept++] = x[i];
    return kept;
}

/* ---- one function ---- */

static tn_context *tn;

static bool ok(const char *call, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s\n", call, tn_error(tn));
    return code == TN_CODE_OK;
}

/* How far got is beyond what is allowed, in units of that; what f32 cannot hold is any infinity. */
static double excess(double got, double want, double share, double distance)
{
    double unit = ldexp(1, -24), allowed = unit * (share * fabs(want) + distance);
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (fabs(want) > 3.4e38)
        return fabs(got) > 3.3e38 && (got > 0) == (want > 0) ? 0 : INFINITY;
    double error = fabs(got - want);
    return error <= 1.2e-38 ? 0 : error / (allowed > 0 ? allowed : 1e-300);
}

static void compare(const Row *r, const char *what, int n, const float *x, const float *got,
                    double (*of)(double), double share, double distance)
{
    double worst = 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        double e = excess(got[i], of(x[i]), share, distance);
        if (e > worst) {
            worst = e;
            at = i;
        }
    }
    if (!EXPECT(worst <= 1))
        printf("  %s: %s at %.9g: %.9g, expected %.9g: %.3g of what is allowed\n", r->call, what,
               x[at], got[at], of(x[at]), worst);
}

static bool compile(const char *call, const char *type, int n, tn_graph **g, tn_plan **p,
                    tn_program **x)
{
    const char *path = in_dir("graph.py"), *summary;
    char shapes[40];
    tn_options o = tn_options_default();
    tn_fx_options fx = {.shapes = shapes, .loss = "s", .params = "x"};
    FILE *f = fopen(path, "w");
    CHECK(f);
    fprintf(f,
            "def forward(self, x):\n    y = torch.ops.aten.%s\n"
            "    s = torch.ops.aten.sum.default(y)\n    return (s, y)\n",
            call);
    fclose(f);
    snprintf(shapes, sizeof shapes, "x=%s[%d]", type, n);
    return ok(call, tn_graph_import_fx(tn, path, &fx, g, &summary)) &&
           ok(call, tn_graph_passes(*g, "grad,canonicalize,cse,dce,fuse", &o, NULL, NULL)) &&
           ok(call, tn_plan_new(*g, &o, 0, p)) && ok(call, tn_program_new(*p, &o, x));
}

static bool copy_out(const char *call, tn_program *x, const char *name, void *to)
{
    void *data;
    int64_t nbytes;
    if (!ok(call, tn_program_data(x, name, &data, &nbytes)))
        return false;
    memcpy(to, data, (size_t)nbytes);
    return true;
}

/* y and dx of n numbers each, f32 or f64 as x is; a reduction has one y. */
static bool run(const char *call, const char *type, int n, const void *x, void *y, void *dx)
{
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *program = NULL;
    void *in;
    int64_t nbytes;
    bool done = compile(call, type, n, &g, &p, &program) &&
                ok(call, tn_program_data(program, "x", &in, &nbytes));
    if (done) {
        memcpy(in, x, (size_t)nbytes);
        done = ok(call, tn_program_run(program)) && copy_out(call, program, "out1", y) &&
               copy_out(call, program, "grad.x", dx);
    }
    tn_program_free(program);
    tn_plan_free(p);
    tn_graph_free(g);
    return done;
}

static void test_rows(void)
{
    float x[MOST], y[MOST], dx[MOST];
    for (int i = 0; i < LEN(rows); i++) {
        const Row *r = &rows[i];
        int n = fill(r, x);
        if (!run(r->call, "f32", n, x, y, dx))
            continue;
        compare(r, "value", n, x, y, r->value, r->share, r->distance);
        compare(r, "slope", n, x, dx, r->slope, r->dshare, r->ddistance);
    }
}

/* ---- at the edges, as PyTorch has it ---- */

#define SINH_500 7.017961089264188e216

static const struct {
    const char *call;
    double x[3], slope[3];
} edges[] = {
    {"clamp.default(x, 0, 1)", {0, 1, 0.5f}, {0, 0, 1}},
    {"clamp.default(x, 0)", {0, 1, -1}, {0, 1, 0}},
    {"clamp_max.default(x, 1)", {1, 2, INFINITY}, {0, 0, 0}},
    {"linalg_vector_norm.default(x)", {0, 0, 0}, {0, 0, 0}},
    {"linalg_vector_norm.default(x, 3)", {0, 0, 0}, {0, 0, 0}},
    {"std.default(x)", {2, 2, 2}, {0, 0, 0}},
    {"ones_like.default(x); y = torch.ops.aten.soft_margin_loss.default(x, y, 0)",
     {-1000, 0, 1000},
     {-1, -0.5f, 0}},
    {"ones_like.default(x); y = torch.ops.aten.binary_cross_entropy.default(x, y, None, 0)",
     {0, 1, 0.5f},
     {-1e12f, -1, -2}}, /* at 1 PyTorch has 0 */
    {"zeros_like.default(x); y = torch.ops.aten.binary_cross_entropy.default(x, y, None, 0)",
     {0, 1, 0.5f},
     {1, 1e12f, 2}}, /* at 0 PyTorch has 0 */
    {"zeros_like.default(x); y = torch.ops.aten.xlogy.Tensor(x, y)", {0, 0, 0}, {0, 0, 0}},
    {"full_like.default(x, 2); y = torch.ops.aten.xlogy.Tensor(x, y)",
     {0, 1, -1},
     {M_LN2, M_LN2, M_LN2}},
    {"lgamma.default(x)", {0, -0.0, INFINITY}, {-INFINITY, INFINITY, INFINITY}},
    {"lgamma.default(x)", {-1, -2, -INFINITY}, {NAN, NAN, NAN}},
    {"digamma.default(x)", {0, -0.0, 1}, {INFINITY, INFINITY, M_PI *M_PI / 6}},
    {"logit.default(x)", {0, 1, 0.5}, {INFINITY, INFINITY, 4}},
    {"logit.default(x, 0)", {0, 1, 0.5}, {INFINITY, INFINITY, 4}},
    {"logit.default(x, 0)", {-1, 2, 0.5}, {0, 0, 4}},
    {"zeros_like.default(x); y = torch.ops.aten.atan2.default(x, y)", {0, -0.0, 1}, {0, 0, 0}},
    {"zeros_like.default(x); y = torch.ops.aten.atan2.default(y, x)", {0, -0.0, 1}, {0, 0, 0}},
    {"pow.Tensor_Scalar(x, -0.5)", {0, 1, INFINITY}, {-INFINITY, -0.5, 0}},
    {"pow.Tensor_Scalar(x, -1)", {0, -0.0, INFINITY}, {-INFINITY, -INFINITY, 0}},
    {"pow.Tensor_Scalar(x, -2)", {0, -0.0, INFINITY}, {-INFINITY, INFINITY, 0}},
    {"pow.Tensor_Scalar(x, -2)", {1, -2, 1e4}, {-2, 0.25, -2e-12}},
    {"pow.Tensor_Scalar(x, -3)", {0, -0.0, INFINITY}, {-INFINITY, -INFINITY, 0}},
    {"cosh.default(x)", {89, -89, 500}, {2.2448063889081578e38, -2.2448063889081578e38, SINH_500}},
    {"cosh.default(x)", {-500, INFINITY, 0}, {-SINH_500, INFINITY, 0}},
    {"sinh.default(x)", {500, -INFINITY, 0}, {SINH_500, INFINITY, 1}},
    {"sinh.default(x); y = torch.ops.aten.log.default(y)", {89, 40, 1}, {1, 1, 1.3130352854993312}},
};

/* Of those too large for f32. */
static const struct {
    const char *call;
    double x, slope;
} large[] = {
    {"cosh.default(x)", 710, 1.1169973830808557e308},
    {"sinh.default(x)", -710, 1.1169973830808557e308},
    {"sinh.default(x); y = torch.ops.aten.log.default(y)", 710, 1},
};

/* Infinities are their sign's, zeros either's. */
static bool near(double got, double want)
{
    return got == want || (isnan(got) && isnan(want)) ||
           (isfinite(got) && isfinite(want) && fabs(got - want) <= ldexp(fabs(want), -22));
}

static void expect_near(const char *call, const char *type, double x, double got, double want)
{
    if (!EXPECT(near(got, want)))
        printf("  %s: slope at %s %g: %g, expected %g\n", call, type, x, got, want);
}

static void test_edges(void)
{
    for (int i = 0; i < LEN(edges); i++) {
        const double *x = edges[i].x, *slope = edges[i].slope;
        float from[] = {(float)x[0], (float)x[1], (float)x[2]}, y[3], dx[3];
        double y64[3], dx64[3];
        if (!run(edges[i].call, "f32", 3, from, y, dx) ||
            !run(edges[i].call, "f64", 3, x, y64, dx64))
            continue;
        for (int k = 0; k < 3; k++) {
            expect_near(edges[i].call, "f32", x[k], dx[k], (float)slope[k]);
            expect_near(edges[i].call, "f64", x[k], dx64[k], slope[k]);
        }
    }
}

static void test_large(void)
{
    double y, dx;
    for (int i = 0; i < LEN(large); i++)
        if (run(large[i].call, "f64", 1, &large[i].x, &y, &dx))
            expect_near(large[i].call, "f64", large[i].x, dx, large[i].slope);
}

/* ---- ops without a row ---- */

static bool has_row(const char *op)
{
    size_t len = strlen(op);
    for (int i = 0; i < LEN(rows); i++)
        if (!strncmp(rows[i].call, op, len) && rows[i].call[len] == '.')
            return true;
    return false;
}

/* One operand, which is floating point and has a derivative. */
static bool is_function(const Op *op)
{
    return op->class == CLASS_POINTWISE && op->nin_least == 1 && op->nin_most == 1 &&
           op->rules->diff && !op->copy;
}

static void note_ops(void)
{
    for (int i = 0; i < op_count; i++)
        if (is_function(&op_table[i]) && !has_row(op_table[i].name))
            printf("note: %s has no row\n", op_table[i].name);
}

int main(void)
{
    static void (*const tests[])(void) = {test_rows, test_edges, test_large, note_ops};
    tn = tn_context_new();
    int code = test_in_folder(tests, LEN(tests));
    tn_context_free(tn);
    return code;
}
