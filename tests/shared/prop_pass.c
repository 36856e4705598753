/* Passes on random graphs. Simplifying passes keep every bit of every output. grad keeps the loss,
 * and its gradients agree with finite differences along a random direction through all parameters;
 * where two step widths disagree the graph has a kink nearby, and nothing is said. */
#include "prop.h"

#include "../../src/pass/pass.h"
#include "../../src/exec/exec.h"
#include "../../src/plan/order.h"
#include "interp.h"

#include <math.h>
#include <string.h>

/* ---- simplifying ---- */

typedef struct Changes {
    int count;
} Changes;

static void take_report(void *arg, const Graph *g, const PassReport *r)
{
    (void)g;
    ((Changes *)arg)->count += r->part ? 0 : r->changes;
}

static int run_passes(Graph *g, const char *names)
{
    Changes c = {0};
    PassOptions o = pass_defaults();
    passes_run(g, names, &o, take_report, &c);
    return c.count;
}

void prop_passes(Trial *t)
{
    static const char *const simplify[] = {"canonicalize", "cse", "dce", "canonicalize,cse,dce"};
    for (int i = 0; i < LEN(simplify) && !t->failure; i++) {
        Graph *g = graph_clone(t->a, t->x->b.g);
        run_passes(g, simplify[i]);
        prop_check_values(t, g, simplify[i], 0);
        prop_strides(t, t->x->b.g, g, simplify[i]);
        int again = i < 3 ? run_passes(g, simplify[i]) : 0;
        if (again) {
            prop_show(t, simplify[i], g);
            prop_fail(t, "%s makes %d changes when run again", simplify[i], again);
        }
    }
}

void prop_order(Trial *t)
{
    Graph *g = graph_clone(t->a, t->x->b.g);
    Arena *tmp = arena_tmp(t->a);
    order_graph(g, device_at(DEVICE_cpu), machine_for(tmp, device_at(DEVICE_cpu), NULL), tmp, false,
                NULL, NULL);
    graph_verify(g);
    prop_check_values(t, g, "ordering", 0);
}

/* ---- gradients ---- */

typedef struct Direction {
    Trial *t;
    const Graph *g; /* with the loss as an output */
    int loss;       /* its index */
    double **along; /* by input: NULL, or an element each */
} Direction;

static int find_loss(const Graph *g)
{
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_LOSS)
            return i;
    CHECK(false);
    return -1;
}

static double loss_at(const Direction *d, Arena *tmp, double s)
{
    Tensor *in = NEWN(tmp, Tensor, d->g->nin), *out = NEWN(tmp, Tensor, d->g->nout);
    for (int i = 0; i < d->g->nin; i++) {
        in[i] = d->t->x->in[i];
        if (!d->along[i])
            continue;
        in[i] = tensor_copy(tmp, &in[i], F64);
        for (int64_t e = 0, n = tensor_nelem(&in[i]); e < n; e++)
            ((double *)(void *)in[i].data)[e] += s * d->along[i][e];
    }
    interp_graph(tmp, d->g, in, out);
    return tensor_get(&out[d->loss], 0);
}

static double slope(const Direction *d, double h)
{
    static const double at[4] = {-2, -1, 1, 2}, coefficient[4] = {1, -8, 8, -1};
    double sum = 0;
    Arena *tmp = arena_tmp(d->t->a);
    for (int j = 0; j < 4; j++) {
        sum += coefficient[j] * loss_at(d, tmp, at[j] * h);
        arena_reset(tmp);
    }
    return sum / (12 * h);
}

static void choose_direction(Direction *d)
{
    const Graph *g = d->g;
    d->along = NEWN(d->t->a, double *, g->nin);
    for (int i = 0; i < g->nin; i++) {
        if (g->in[i].role != ROLE_PARAM)
            continue;
        const Tensor *x = &d->t->x->in[i];
        int64_t n = tensor_nelem(x);
        d->along[i] = NEWN(d->t->a, double, n);
        for (int64_t e = 0; e < n; e++)
            d->along[i][e] = (2 * rng_uniform(d->t->x->rng) - 1) * (fabs(tensor_get(x, e)) + 1e-3);
    }
}

/* The gradients' inner product with the direction, and the sum of its terms' sizes. */
static double analytic(const Direction *d, const Graph *g, const Tensor *out, double *size)
{
    double sum = 0;
    *size = 0;
    for (int i = 0; i < d->g->nin; i++) {
        if (!d->along[i])
            continue;
        const Port *dp = graph_find_output(g, ROLE_GRAD, d->g->in[i].name);
        CHECK(dp);
        const Tensor *dx = &out[dp - g->out];
        for (int64_t e = 0, n = tensor_nelem(dx); e < n; e++) {
            double term = tensor_get(dx, e) * d->along[i][e];
            sum += term;
            *size += fabs(term);
        }
    }
    return sum;
}

static void run_grad(void *g)
{
    run_passes(g, "grad");
}

/* False where an op refuses by name: it has no gradient through one of its results. */
static bool has_gradient(Graph *g)
{
    if (!ctx_try(g->ctx, run_grad, g))
        return true;
    if (!strstr(g->ctx->message, "has no gradient through"))
        fail_again(g->ctx, "grad: ");
    return false;
}

/* A view of a parameter stands in the forward, which reads it or not, and the backward multiplies
 * it: with bf16 products nothing before reads the parameter in bf16. */
static void add_late_product(Graph *g, Rng *r)
{
    Build b = {.g = g, .before = g->first, .phase = FORWARD, .scope = ""};
    for (int i = 0; i < g->nin; i++) {
        Value *v = g->in[i].v;
        if (g->in[i].role != ROLE_PARAM || v->type.rank != 2 || v->type.dim[0] < 2)
            continue;
        int64_t part[2] = {1, v->type.dim[0] - 1};
        if (rng_chance(r, 0.5))
            v = emit1(&b, "slice", IN(v), ATTRS(A_INT("start", 1)));
        else
            v = emit(&b, "split", IN(v), ATTRS(A_INTS("split_sizes", 2, part)))->out[1];
        if (rng_chance(r, 0.5))
            graph_output(g, emit1(&b, "exp", IN(v), NOATTRS), ROLE_NONE, NULL);
        b = (Build){.g = g, .phase = BACKWARD, .scope = ""};
        Value *turned = emit1(&b, "t", IN(v), NOATTRS);
        graph_output(g, emit1(&b, "mm", IN(v, turned), NOATTRS), ROLE_NONE, NULL);
        return;
    }
}

void prop_gradient(Trial *t)
{
    Graph *g = graph_clone(t->a, t->x->b.g);
    Direction d = {t, t->x->b.g, find_loss(t->x->b.g), NULL};
    if (!has_gradient(g)) {
        ++*t->skipped;
        return;
    }
    prop_show(t, "grad", g);
    Tensor *out = NEWN(t->a, Tensor, g->nout);
    interp_graph(t->a, g, t->x->in, out);
    const char *how = prop_differ(t->a, &out[d.loss], &t->want[d.loss], 0);
    if (how)
        prop_fail(t, "after grad: loss: %s", how);
    choose_direction(&d);
    double size, got = analytic(&d, g, out, &size);
    double wide = slope(&d, 1e-4), narrow = slope(&d, 5e-5),
           loss = fabs(tensor_get(&out[d.loss], 0));
    double bound = 1e-6 * size + 1e-10 * (loss + 1);
    if (!(fabs(wide - narrow) <= bound) || !isfinite(size)) {
        ++*t->skipped;
        return;
    }
    ++*t->compared;
    if (!(fabs(got - narrow) <= 10 * bound))
        prop_fail(t, "grad: along a direction %.12g, by differences %.12g and %.12g", got, wide,
                  narrow);
    Graph *h = graph_clone(t->a, g);
    run_passes(h, "canonicalize,cse,dce");
    Tensor *again = NEWN(t->a, Tensor, h->nout);
    interp_graph(t->a, h, t->x->in, again);
    for (int i = 0; i < g->nout; i++)
        if ((how = prop_differ(t->a, &again[i], &out[i], 0)))
            prop_fail(t, "grad, then canonicalize,cse,dce: output %d: %s", i, how);
    prop_strides(t, g, h, "canonicalize,cse,dce");
    prop_plan(t, g, t->x->in, out);
    prop_plan(t, h, t->x->in, out);
    add_late_product(h, t->x->rng);
    prop_fused(t, h);
    prop_remat(t, g, out);
}

/* ---- recomputation ---- */

static const char compile[] = "canonicalize,cse,dce,remat,fuse";
static const double SCATTERED = 0.6; /* of the nodes have a policy */

void prop_policies(Graph *g, Rng *r, double chance)
{
    int count = 0;
    for (Node *n = g->first; n; n = n->next) {
        n->scope = arena_printf(g->a, "layers.%d", count++ / 6);
        if (n->phase <= BACKWARD && rng_chance(r, chance))
            n->policy = (Policy)rng_below(r, OFFLOAD); /* cpu refuses that; test_offload draws it */
        EACH_LOOP_BODY(b, n)
            prop_policies(n->region->body[b], r, chance);
    }
}

typedef struct Remat {
    Graph *g;
    const char *passes;
    PolicyRule rule[2];
    int nrule;
} Remat;

/* With second copies for any gain: all is small. */
static void run_remat(void *arg)
{
    const Remat *x = arg;
    PassOptions o = pass_defaults();
    o.repeat_gain = 0;
    o.rules = x->rule;
    o.nrules = x->nrule;
    passes_run(x->g, x->passes, &o, NULL, NULL);
}

/* Whether it ran; what excludes each other may refuse to. */
static bool may_run(const Remat *x)
{
    static const char *const refusals[] = {"but its base is", "with the whole loop",
                                           "computed again as a whole", "matches nothing"};
    if (!ctx_try(x->g->ctx, run_remat, (void *)x))
        return true;
    for (int i = 0; i < LEN(refusals); i++)
        if (strstr(x->g->ctx->message, refusals[i]))
            return false;
    fail_again(x->g->ctx, "remat: ");
}

static int count_copies(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count += n->origin != NULL;
        if (n->region)
            count += count_copies(n->region->body[MAIN]);
    }
    return count;
}

static void check_outputs(Trial *t, const Graph *g, const Tensor *want)
{
    Tensor *got = NEWN(t->a, Tensor, g->nout);
    interp_graph(t->a, g, t->x->in, got);
    for (int i = 0; i < g->nout; i++) {
        const char *how = prop_differ(t->a, &got[i], &want[i], 0);
        if (how)
            prop_fail(t, "remat: output %d: %s", i, how);
    }
}

/* Rules for what is anywhere in the graph, of which the later one may say the contrary. They must
 * be obeyed. */
static void draw_rules(Remat *x, Rng *r)
{
    Node *n = x->g->first;
    for (int left = (int)rng_below(r, x->g->nnode); n && left; left--)
        n = n->next;
    x->nrule = n ? (int)rng_below(r, 3) : 0;
    for (int i = 0; i < x->nrule; i++) {
        x->rule[i].policy = rng_chance(r, 0.5) ? MUST_SAVE : MUST_RECOMPUTE;
        x->rule[i].pattern = arena_printf(x->g->a, "%s::%s", i ? n->scope : "*", n->op->name);
    }
}

/* What was compiled can be compiled again, taken apart and compiled: the results keep their bits.
 */
static void compile_again(Trial *t, Remat *x, const Tensor *want)
{
    static const char *const passes[] = {compile, compile, "unfuse", "cse,dce", compile};
    for (int i = 0; i < LEN(passes) && !t->failure; i++) {
        x->passes = passes[i];
        x->nrule = i ? 0 : x->nrule;
        run_remat(x);
        prop_show(t, passes[i], x->g);
        if (want)
            check_outputs(t, x->g, want);
    }
}

static void check_twice(Trial *t, const Graph *from, const Tensor *want)
{
    Remat x = {.g = graph_clone(t->a, from), .passes = compile};
    prop_policies(x.g, t->x->rng, SCATTERED);
    draw_rules(&x, t->x->rng);
    prop_show(t, "policies", x.g);
    if (!may_run(&x))
        return;
    check_outputs(t, x.g, want);
    prop_show(t, "once", x.g);
    compile_again(t, &x, want);
}

/* Removes the loss from the outputs; false where it is the only one. */
static bool drop_loss(Graph *g, int at)
{
    if (at < 0 || g->nout < 2)
        return false;
    memmove(g->out + at, g->out + at + 1, sizeof *g->out * (size_t)(--g->nout - at));
    return true;
}

void prop_compiled(Trial *t, const Graph *from, const Tensor *in, const Program *run)
{
    const Port *loss = graph_find_output(from, ROLE_LOSS, NULL);
    int at = loss ? (int)(loss - from->out) : -1;
    Graph *tagged = graph_clone(t->a, from);
    prop_policies(tagged, t->x->rng, SCATTERED);
    prop_show(t, "policies", tagged);
    for (int late = 0; late < 2 && !t->failure; late++) {
        Remat x = {.g = graph_clone(t->a, tagged), .passes = late ? "fuse,remat" : compile};
        if (!may_run(&x))
            return; /* what is fused first may hide that policies exclude each other */
        prop_show(t, "compiled", x.g);
        Graph *g = graph_clone(t->a, x.g);
        compile_again(t, &x, NULL);
        prop_same_bits(t, x.g, in, run, -1);
        x = (Remat){.g = g, .passes = "dce"};
        if (!drop_loss(g, at))
            return;
        run_remat(&x);
        compile_again(t, &x, NULL);
        prop_same_bits(t, x.g, in, run, at);
    }
}

void prop_remat(Trial *t, const Graph *from, const Tensor *want)
{
    Remat x = {.g = graph_clone(t->a, from), .passes = "remat"};
    check_twice(t, from, want);
    run_passes(x.g, "canonicalize,cse,dce");
    prop_policies(x.g, t->x->rng, SCATTERED);
    prop_show(t, "policies", x.g);
    if (!may_run(&x))
        return;
    prop_show(t, "remat", x.g);
    *t->recomputed += count_copies(x.g);
    check_outputs(t, x.g, want);
    prop_strides(t, from, x.g, "canonicalize,cse,dce,remat");
    prop_plan(t, graph_clone(t->a, x.g), t->x->in, want);
    run_passes(x.g, "canonicalize,cse,dce,remat");
    prop_show(t, "again", x.g);
    check_outputs(t, x.g, want);
}

/* ---- microbatches ---- */

/* Iterations that leave none empty: their number follows from the rows of one. */
static int64_t choose_iterations(Rng *r, int64_t rows)
{
    int64_t part = 1 + rng_below(r, rows - 1);
    return (rows + part - 1) / part;
}

static bool tensors_near(const Tensor *x, const Tensor *y, double bound)
{
    bool near = dtype_float(y->dtype);
    for (int64_t i = 0, n = tensor_nelem(y); i < n && near; i++)
        near = fabs(tensor_get(x, i) - tensor_get(y, i)) <= bound;
    return near;
}

/* Terms of a gradient may be large and cancel, to 0 where what follows does not change by a shift:
 * then their rounding counts, not the sum's size. */
void prop_rows(Trial *t, int64_t rows)
{
    Graph *g = graph_clone(t->a, t->x->b.g);
    run_passes(g, "grad");
    const Graph *whole = graph_clone(t->a, g);
    Tensor *want = NEWN(t->a, Tensor, g->nout), *got = NEWN(t->a, Tensor, g->nout);
    interp_graph(t->a, g, t->x->in, want);
    PassOptions o = pass_defaults();
    o.accumulate = choose_iterations(t->x->rng, rows);
    passes_run(g, "accumulate", &o, NULL, NULL);
    prop_show(t, "accumulate", g);
    interp_graph(t->a, g, t->x->in, got);
    for (int i = 0; i < g->nout; i++) {
        const char *how = prop_differ(t->a, &got[i], &want[i], 1e-12);
        if (how && !tensors_near(&got[i], &want[i], prop_rounding(t, whole, &want[i], i)))
            prop_fail(t, "accumulate in %lld iterations: output %d: %s", (long long)o.accumulate, i,
                      how);
    }
    prop_plan(t, g, t->x->in, got);
    prop_remat(t, g, got);
}
