/* Two graphs on the same random inputs: floats are standard normal, scaled by a tenth for
 * parameters and made positive for second moments; integers are 0 or 1, so that they are valid as
 * indices; step is 1; lr is 0.001. A graph that computes indices from its inputs may refuse such
 * integers: then all of them are 1 (a mask of which nothing is masked), then 0. */
#include "api.h"

#include <math.h>
#include <string.h>

typedef struct Compare {
    tn_graph *a, *b;
    Arena *tmp; /* plans and programs */
    uint64_t seed;
    double worst;
    const char *where;
} Compare;

typedef enum { BITS, ONES, ZEROS, NDRAW } Draw;

static double value_for(const PlanPort *p, Draw draw, uint64_t seed, int stream, int64_t i)
{
    if (p->role == ROLE_STEP)
        return 1;
    if (p->role == ROLE_SCALAR)
        return 1e-3;
    if (!dtype_float(p->type.dtype))
        return draw == BITS ? random_uniform(seed, (uint32_t)stream, 0, (uint64_t)i) < 0.5f
                            : draw == ONES;
    double x = random_normal(seed, (uint32_t)stream, 0, (uint64_t)i);
    return p->role == ROLE_STATE ? fabs(0.01 * x) : p->role == ROLE_PARAM ? 0.1 * x : x;
}

/* The first n elements. */
static void fill_input(const Program *x, const PlanPort *p, int64_t n, Draw draw, uint64_t seed,
                       int stream)
{
    Tensor t = {.data = program_data(x, p), .dtype = p->type.dtype, .rank = p->type.rank};
    for (int64_t i = 0; i < n; i++)
        tensor_set(&t, i, value_for(p, draw, seed, stream, i));
}

/* What is large is filled by repeating its beginning. */
void tn_program_random(tn_program *x, uint64_t seed)
{
    if (!GIVEN(args_owner(x), x))
        return;
    enum { BLOCK = 1 << 16 };
    for (int i = 0; i < x->x->plan->nin; i++) {
        const PlanPort *p = &x->x->plan->in[i];
        int64_t n = type_nelem(&p->type), size = dtype_size(p->type.dtype);
        fill_input(x->x, p, MIN(n, BLOCK), BITS, seed, i);
        char *data = program_data(x->x, p);
        for (int64_t at = BLOCK; at < n; at += BLOCK)
            memcpy(data + at * size, data, (size_t)(MIN(BLOCK, n - at) * size));
    }
}

static const PlanPort *same_port(const PlanPort *ports, int count, const PlanPort *p, int index)
{
    for (int i = 0; i < count; i++) {
        bool named = p->name ? ports[i].name && !strcmp(ports[i].name, p->name) : i == index;
        if (ports[i].role == p->role && named && type_equal(&ports[i].type, &p->type))
            return &ports[i];
    }
    return NULL;
}

static void compare_output(Compare *c, const Program *x, const Program *y, int i)
{
    const PlanPort *p = &x->plan->out[i];
    const PlanPort *q = same_port(y->plan->out, y->plan->nout, p, i);
    Ctx *ctx = x->plan->g->ctx;
    if (!q)
        fail(ctx, TN_FAIL, "output %d (%%%s): the second graph has none like it", i, p->value);
    Tensor s = {.data = program_data(x, p), .dtype = p->type.dtype, .rank = 1};
    Tensor t = {.data = program_data(y, q), .dtype = q->type.dtype, .rank = 1};
    double most = 0, diff = 0;
    for (int64_t k = 0; k < type_nelem(&p->type); k++) {
        double u = tensor_get(&s, k), v = tensor_get(&t, k);
        if (memcmp(&u, &v, sizeof u) && !(isnan(u) && isnan(v)))
            diff = isfinite(u - v) ? fmax(diff, fabs(u - v)) : INFINITY;
        most = isfinite(u) ? fmax(most, fabs(u)) : most;
    }
    double relative = diff > 0 ? diff / (most > 0 ? most : 1) : 0;
    if (relative > c->worst || !c->where) {
        c->worst = relative;
        c->where = arena_strdup(c->a->h.a, p->name ? p->name : p->value);
    }
}

static Program *prepare(Arena *a, Graph *g)
{
    return program_make(a, plan_make(a, g, 0), false, 0);
}

static void fill_both(const Compare *c, const Program *x, const Program *y, Draw draw)
{
    for (int i = 0; i < x->plan->nin; i++) {
        const PlanPort *p = &x->plan->in[i];
        const PlanPort *q = same_port(y->plan->in, y->plan->nin, p, i);
        if (!q)
            fail(c->a->g->ctx, TN_FAIL, "input %%%s: the second graph has none like it", p->value);
        fill_input(x, p, type_nelem(&p->type), draw, c->seed, i);
        memcpy(program_data(y, q), program_data(x, p), (size_t)type_nbytes(&p->type));
    }
}

static void compare(void *arg)
{
    Compare *c = arg;
    Ctx *ctx = c->a->g->ctx;
    Program *x = prepare(c->tmp, c->a->g), *y = prepare(c->tmp, c->b->g);
    if (x->plan->nin != y->plan->nin || x->plan->nout != y->plan->nout)
        fail(ctx, TN_FAIL, "the graphs have %d and %d inputs, %d and %d outputs", x->plan->nin,
             y->plan->nin, x->plan->nout, y->plan->nout);
    bool runs = false;
    for (int draw = BITS; draw < NDRAW && !runs; draw++) {
        fill_both(c, x, y, (Draw)draw);
        runs = !program_run(x);
    }
    if (!runs)
        fail(
            ctx, TN_FAIL,
            "no inputs that are drawn let the first graph run (integers 0 or 1, all 1, all 0): %s; "
            "compare what run makes of inputs of your own",
            x->message);
    if (program_run(y))
        fail(ctx, TN_FAIL, "the second graph fails where the first runs: %s", y->message);
    for (int i = 0; i < x->plan->nout; i++)
        compare_output(c, x, y, i);
}

int tn_graph_compare(tn_graph *a, tn_graph *b, uint64_t seed, double *worst, const char **where)
{
    if (!GIVEN(args_owner(a), a, b, worst, where) || !args_kin(__func__, a, b))
        return TN_CODE_USAGE;
    Compare c = {a, b, NULL, seed, 0, NULL};
    int code = try_aside(a->h.owner, &c.tmp, compare, &c);
    *worst = c.worst;
    *where = c.where;
    return code;
}
