/* Random numbers: ours, by the graph's seed and step, a stream for each call. Uniform numbers
 * have 24 bits, as many as PyTorch's in f32, or those that bf16 and f16 hold below 1; the others
 * are functions of them (Box and Muller 1958 for normal ones). */
#include "arith.h"

#include <math.h>
#include <string.h>

/* The input seed or step; a step of which nothing else is read is 1 until it is set. */
static Value *source(Site *s, Role role)
{
    Graph *g = s->im->g;
    Port *p = graph_find_input(g, role, NULL);
    return p ? p->v : graph_input(g, role_name(role), (Type){.dtype = I64}, role, NULL);
}

/* ---- dropout ---- */

static Node *dropped(Site *s, Value *x, double p)
{
    Value *seed = source(s, ROLE_SEED), *step = source(s, ROLE_STEP);
    return emit_stream(s->b, "native_dropout", IN(x, seed, step), ATTRS(A_FLOAT("p", p)),
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
    site_return(
        s, lower_where(s, mask, lower_times(s, dy, site_real(s, "scale")), lower_like(s, 0, dy)));
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

/* ---- numbers ---- */

/* Uniform in [0, 1), f32. */
static Value *uniform(Site *s, const Type *t)
{
    Type x = *t;
    x.dtype = F32;
    Value *like = lower_expand(s, lower_number(s, 0, F32), &x);
    Value *seed = source(s, ROLE_SEED), *step = source(s, ROLE_STEP);
    return emit_stream(s->b, "rand_like", IN(like, seed, step), NOATTRS, s->im->nstream++)->out[0];
}

/* The same in t's dtype. */
static Value *uniform_in(Site *s, const Type *t)
{
    Value *u = uniform(s, t);
    if (dtype_size(t->dtype) == 2) {
        double steps = t->dtype == BF16 ? 0x1p8 : 0x1p11;
        u = lower_times(s, lower1(s, "floor", lower_times(s, u, steps)), 1 / steps);
    }
    return lower_cast(s, u, t->dtype);
}

/* -ln(1 - u), exponentially distributed */
static Value *exponential(Site *s, const Type *t)
{
    Value *rest = plus(s, lower_times(s, uniform(s, t), -1), 1);
    return lower1(s, "neg", lower1(s, "log", rest));
}

static Value *normal(Site *s, const Type *t)
{
    Value *radius = lower1(s, "sqrt", lower_times(s, exponential(s, t), 2));
    Value *angle = lower_times(s, uniform(s, t), 2 * acos(-1.0));
    return mul(s, radius, lower1(s, "cos", angle));
}

static Type of_floats(Site *s, Type t)
{
    if (!dtype_float(t.dtype))
        site_fail(s, "expected floats, found %s", type_text(s->im->a, &t));
    return t;
}

void row_rand(Site *s)
{
    Type t = of_floats(s, lower_wanted(s, strstr(site_stem(s), "like"), F32));
    bool is_normal = strstr(site_stem(s), "randn") != NULL;
    site_return(s, is_normal ? lower_cast(s, normal(s, &t), t.dtype) : uniform_in(s, &t));
}

void row_uniform(Site *s)
{
    Type t = of_floats(s, *site_type(s, "self"));
    double from = site_real(s, "from"), to = site_real(s, "to");
    if (!(from <= to))
        site_fail(s, "expected from <= to, found %g and %g", from, to);
    site_return(s, plus(s, lower_times(s, uniform_in(s, &t), to - from), from));
}

void row_normal(Site *s)
{
    Type t = of_floats(s, *site_type(s, "self"));
    Value *x = lower_times(s, normal(s, &t), site_real(s, "std"));
    site_return(s, lower_cast(s, plus(s, x, site_real(s, "mean")), t.dtype));
}

void row_exponential(Site *s)
{
    Type t = of_floats(s, *site_type(s, "self"));
    double rate = site_real(s, "lambd");
    if (!(rate > 0))
        site_fail(s, "argument lambd: expected more than 0, found %g", rate);
    site_return(s, lower_cast(s, lower_times(s, exponential(s, &t), 1 / rate), t.dtype));
}

/* low + floor(u (high - low)) */
void row_randint(Site *s)
{
    enum { MOST = 1 << 24 };
    bool from_low = strstr(s->row->name, ".low") != NULL;
    int64_t low = from_low ? site_int(s, "low") : 0, high = site_int(s, "high");
    Type t = lower_wanted(s, strstr(site_stem(s), "like"), I64);
    if (low >= high || high - low > MOST || low < -MOST || high > MOST)
        site_fail(s, "expected low < high, both of at most 2^24, found %lld and %lld",
                  (long long)low, (long long)high);
    Value *x = lower1(s, "floor", lower_times(s, uniform(s, &t), (double)(high - low)));
    site_return(s, lower_cast(s, plus(s, x, (double)low), t.dtype));
}
