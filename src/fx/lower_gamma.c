/* The logarithm of the gamma function and its derivative, in f64.
 *
 * By Stirling's series (Abramowitz and Stegun 6.1.41, 6.3.18) at z >= 8, where four terms err by
 * less than 1e-11: below, z = x + 8 and the recurrence takes the steps back. Left of 1/2 by
 * reflection, lgamma(x) = log(pi / |sin(pi x)|) - lgamma(1 - x), digamma(x) = digamma(1 - x) - pi /
 * tan(pi x). In f64 because lgamma crosses 0 where its parts do not. */
#include "arith.h"

#include <float.h>
#include <math.h>

enum { STEPS = 8 };

/* c[0] + c[1] w + ... */
static Value *polynomial(Site *s, Value *w, int n, const double *c)
{
    Value *p = lower_times(s, w, c[n - 1]);
    for (int i = n - 2; i > 0; i--)
        p = mul(s, plus(s, p, c[i]), w);
    return plus(s, p, c[0]);
}

static Value *operand(Site *s)
{
    return lower_cast(s, site_tensor(s, "self"), F64);
}

static void result(Site *s, Value *y)
{
    site_return(s, lower_cast(s, y, float_type(site_type(s, "self")->dtype)));
}

/* Values of self that both need. */
typedef struct Gamma {
    Value *x;       /* where the result is wanted of it, else 1: whose slopes are finite */
    Value *left;    /* whether x < 1/2 */
    Value *u;       /* x or 1 - x: at least 1/2 */
    Value *stepped; /* whether u < STEPS */
    Value *z;       /* u or u + STEPS */
    Value *w;       /* 1 / z^2 */
} Gamma;

/* Whether x is 0, -1, -2, ... or -inf. */
static Value *is_pole(Site *s, Value *x)
{
    Value *whole = lower2(s, "eq", x, lower1(s, "floor", x));
    return lower2(s, "logical_and", whole, lower2(s, "le", x, lower_like(s, 0, x)));
}

static Gamma gamma_of(Site *s, Value *x, Value *unwanted)
{
    Gamma g = {.x = unless(s, unwanted, 1, x)};
    g.left = lower2(s, "lt", g.x, lower_like(s, 0.5, g.x));
    g.u = lower_where(s, g.left, sub(s, lower_like(s, 1, g.x), g.x), g.x);
    g.stepped = lower2(s, "lt", g.u, lower_like(s, STEPS, g.u));
    g.z = lower_where(s, g.stepped, plus(s, g.u, STEPS), g.u);
    g.w = lower1(s, "reciprocal", mul(s, g.z, g.z));
    return g;
}

/* x less the nearest integer, whose sines and tangents of pi are its own but for the sign; where
 * they are not wanted, of 1/4 */
static Value *angle(Site *s, const Gamma *g)
{
    Value *x = where_or(s, g->left, g->x, 0.25);
    return lower_times(s, sub(s, x, lower1(s, "round", x)), M_PI);
}

/* At poles infinity, with the slope that ATen has: infinite at 0, by its sign, elsewhere NaN. */
static Value *pole_of_lgamma(Site *s, Value *x)
{
    Value *zero = compare(s, "eq", x, 0), *one = lower_like(s, 1, x);
    Value *finite = lower2(s, "maximum", x, lower_like(s, -DBL_MAX, x));
    Value *scale = where_or(s, zero, one, 0);
    return lower1(s, "neg", lower1(s, "log", mul(s, finite, scale)));
}

/* (z - 1/2) log z - z + log(2 pi) / 2 + (1/12 - w / 360 + ...) / z - log(u (u + 1) ...) */
void row_lgamma(Site *s)
{
    static const double series[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680};
    Value *x = operand(s), *pole = is_pole(s, x), *end = compare(s, "eq", x, INFINITY);
    Gamma g = gamma_of(s, x, lower2(s, "logical_or", pole, end));
    Value *ln = lower1(s, "log", g.z);
    Value *y = sub(s, mul(s, plus(s, g.z, -0.5), ln), g.z);
    y = plus(s, y, 0.91893853320467274);
    y = add(s, y, lower2(s, "div", polynomial(s, g.w, LEN(series), series), g.z));
    Value *first = where_or(s, g.stepped, g.u, 1), *product = first;
    for (int k = 1; k < STEPS; k++)
        product = mul(s, product, plus(s, first, k));
    y = lower_where(s, g.stepped, sub(s, y, lower1(s, "log", product)), y);
    Value *sine = lower1(s, "abs", lower1(s, "sin", angle(s, &g)));
    Value *other = sub(s, lower_like(s, log(M_PI), y), add(s, lower1(s, "log", sine), y));
    y = lower_where(s, g.left, other, y);
    Value *one = lower2(s, "eq", g.x, lower_like(s, 1, y));
    Value *root = lower2(s, "logical_or", one, lower2(s, "eq", g.x, lower_like(s, 2, y)));
    Value *error = where_or(s, root, lower1(s, "detach", y), 0); /* all there is at the roots */
    y = sub(s, y, error);
    y = lower_where(s, pole, pole_of_lgamma(s, where_or(s, pole, x, 0.5)), y);
    result(s, lower_where(s, end, mul(s, x, x), y));
}

/* log z - 1 / (2 z) - w (1/12 - w / 120 + ...) - 1 / u - 1 / (u + 1) ... */
void row_digamma(Site *s)
{
    static const double series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240};
    Value *x = operand(s), *pole = is_pole(s, x);
    Gamma g = gamma_of(s, x, pole);
    Value *half = lower_times(s, lower1(s, "reciprocal", g.z), 0.5);
    Value *y = sub(s, lower1(s, "log", g.z), half);
    y = sub(s, y, mul(s, g.w, polynomial(s, g.w, LEN(series), series)));
    Value *back = lower1(s, "reciprocal", g.u);
    for (int k = 1; k < STEPS; k++)
        back = add(s, back, lower1(s, "reciprocal", plus(s, g.u, k)));
    y = lower_where(s, g.stepped, sub(s, y, back), y);
    Value *at = angle(s, &g),
          *tangent = lower2(s, "div", lower1(s, "sin", at), lower1(s, "cos", at));
    Value *other = sub(s, y, lower2(s, "div", lower_like(s, M_PI, y), tangent));
    y = lower_where(s, g.left, other, y);
    Value *zero = compare(s, "eq", x, 0); /* where it is infinite, by its sign */
    Value *at_zero = lower1(s, "neg", lower1(s, "reciprocal", where_or(s, zero, x, 1)));
    result(s, lower_where(s, pole, where_or(s, zero, at_zero, NAN), y));
}
