/* Plans of random graphs. In double: what the executor computes in its arena, over the strides that
 * the planner chose, is what the interpreter computes with a buffer for each value, bit for bit;
 * by the references, since kernels of f64 may add in another order (test_op compares them). Dead
 * buffers are poisoned, the arena's ends are guarded. A second step in the same arena, over what
 * the first left there, gives the same. */
#include "prop.h"

#include "../src/exec/exec.h"
#include "../src/pass/pass.h"
#include "interp.h"

#include <math.h>
#include <string.h>

static void write_inputs(const Program *x, const Tensor *in)
{
    for (int i = 0; i < x->plan->nin; i++)
        memcpy(program_data(x, &x->plan->in[i]), in[i].data, (size_t)tensor_nbytes(&in[i]));
}

static void compare(Trial *t, const Program *x, const Tensor *want, const char *when)
{
    for (int i = 0; i < x->plan->nout; i++) {
        Tensor got = want[i];
        got.data = program_data(x, &x->plan->out[i]);
        const char *how = prop_differ(t->a, &got, &want[i], 0);
        if (how)
            prop_fail(t, "executed, %s: output %d: %s", when, i, how);
    }
}

static void check_plan(Trial *t, const Plan *p, const Graph *g)
{
    if (p->nin != g->nin || p->nout != g->nout)
        prop_fail(t, "the plan has %d inputs, %d outputs, the graph %d, %d", p->nin, p->nout,
                  g->nin, g->nout);
    if (p->bound > p->peak)
        prop_fail(t, "the plan's peak %lld is below its lower bound %lld", (long long)p->peak,
                  (long long)p->bound);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->offset < 0 || s->offset % PLAN_ALIGN ||
            (s->end > s->start && s->offset + s->nbytes > p->peak))
            prop_fail(t, "buffer %d lies at %lld", i, (long long)s->offset);
    }
}

static void use_references(Plan *p)
{
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && p->step[i].node->op->rules->ref)
            p->step[i].kernel = NULL;
}

void prop_plan(Trial *t, Graph *g, const Tensor *in, const Tensor *want)
{
    Plan *p = plan_make(t->a, g, 0);
    check_plan(t, p, g);
    if (t->failure)
        return;
    use_references(p);
    Program *x = program_make(t->a, p, true, 0);
    for (int step = 0; step < 2 && !t->failure; step++) {
        write_inputs(x, in);
        if (program_run(x))
            prop_fail(t, "executed: %s", x->message);
        else
            compare(t, x, want, step ? "second step" : "first step");
    }
}

/* ---- f32 ---- */

static const double NOISE = 1e-6;
/* Noise on its operands does not show what rounding does inside an op: a norm over a row of equal
 * numbers multiplies the rounding of their mean by 1 / sqrt(eps). */
static const double INSIDE = 150;
/* What f32 may overflow to on the way to a result. */
static const double HUGE_F32 = 1e30;

/* The graph with f32 in place of f64: by its text. */
static Graph *narrow(Trial *t, const Graph *g)
{
    Buf b = {.a = t->a};
    graph_print(&b, g);
    for (char *at = b.text; (at = strstr(at, "f64"));)
        memcpy(at, "f32", 3);
    return graph_parse(t->a, b.text, "narrow.tn");
}

typedef struct Narrow {
    Trial *t;
    const Program *x;
    Tensor *noisy[2]; /* results in double under noise */
} Narrow;

static double distance(const Tensor *x, const Tensor *y)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++)
        most = fmax(most, fabs(tensor_get(x, i) - tensor_get(y, i)));
    return most;
}

/* ---- fused ---- */

static bool same_bits(const Tensor *x, const Tensor *y)
{
    int64_t size = dtype_size(x->dtype);
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++) {
        bool nan = dtype_float(x->dtype) && isnan(tensor_get(x, i)) && isnan(tensor_get(y, i));
        if (!nan && memcmp(x->data + i * size, y->data + i * size, (size_t)size))
            return false;
    }
    return true;
}

/* Numbers of one element each: those that a node of several reads are all there at once. */
static int count_constants(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count += !n->nin && type_nelem(&n->out[0]->type) == 1;
        if (n->op->region == LOOP)
            count += count_constants(n->region->body) +
                     (n->region->tail ? count_constants(n->region->tail) : 0);
    }
    return count;
}

/* Ops along rows in bodies of `fused`. */
static int count_rows(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next)
        for (const Node *m = n->op->region == FUSED ? n->region->body->first : NULL; m; m = m->next)
            count += m->op->rules->rows != NULL;
    return count;
}

static int run_pass(Graph *g, const char *name)
{
    PassOptions o = pass_defaults();
    int before = g->nnode;
    passes_run(g, name, &o, NULL, NULL);
    return g->nnode - before;
}

static void compare_fused(Trial *t, Graph *g, const Tensor *in)
{
    Program *x = program_make(t->a, plan_make(t->a, g, 0), true, 0);
    write_inputs(x, in);
    if (program_run(x))
        return; /* an index from a float may have been rounded out of its range */
    Graph *fused = graph_clone(t->a, g);
    t->fused[NODES] += run_pass(fused, "fuse");
    t->fused[ALONG_ROWS] += count_rows(fused);
    t->fused[GRAPHS]++;
    prop_show(t, "fuse", fused);
    Program *y = program_make(t->a, plan_make(t->a, fused, 0), true, 0);
    write_inputs(y, in);
    if (program_run(y))
        prop_fail(t, "fused: %s", y->message);
    t->fused[RAISED] += y->plan->peak > x->plan->peak + count_constants(g) * PLAN_ALIGN;
    for (int i = 0; i < g->nout && !t->failure; i++) {
        Tensor one = {.dtype = g->out[i].v->type.dtype, .rank = g->out[i].v->type.rank}, two;
        memcpy(one.dim, g->out[i].v->type.dim, sizeof one.dim);
        two = one;
        one.data = program_data(x, &x->plan->out[i]);
        two.data = program_data(y, &y->plan->out[i]);
        if (!same_bits(&one, &two))
            prop_fail(t, "fused: output %d has other bits", i);
    }
    run_pass(fused, "unfuse");
    if (graph_count(fused) != graph_count(g))
        prop_fail(t, "unfuse gives %d nodes, there were %d", graph_count(fused), graph_count(g));
}

enum { FUSED_SEEDS = 1500 }; /* of these and their gradients some 2,000 graphs are compared */

void prop_fused(Trial *t, const Graph *from)
{
    for (int low = 0; low < 2 && !t->failure && t->seed < FUSED_SEEDS; low++) {
        Graph *g = narrow(t, from);
        Tensor *in = NEWN(t->a, Tensor, g->nin);
        PassOptions o = pass_defaults();
        o.dtype = low ? BF16 : F32;
        passes_run(g, "precision", &o, NULL, NULL);
        for (int i = 0; i < g->nin; i++)
            in[i] = tensor_copy(t->a, &t->x->in[i], g->in[i].v->type.dtype);
        compare_fused(t, g, in);
    }
}

static void run_noisy(void *arg)
{
    Narrow *w = arg;
    Trial *t = w->t;
    for (int k = 0; k < 2; k++) {
        w->noisy[k] = NEWN(t->a, Tensor, t->x->b.g->nout);
        interp_noisy(t->a, t->x->b.g, t->x->in, NOISE, (uint64_t)k, w->noisy[k]);
    }
}

/* The largest magnitude of an element, at least 1: constants have no noise but are rounded as well,
 * and terms of that size may cancel to what is exactly 0 in double. */
static double size_of(const Tensor *x)
{
    double most = 1;
    for (int64_t i = 0, n = tensor_nelem(x); i < n; i++)
        most = fmax(most, fabs(tensor_get(x, i)));
    return most;
}

static bool all_finite(const Tensor *t)
{
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++)
        if (!isfinite(tensor_get(t, i)))
            return false;
    return true;
}

static void compare_narrow(const Narrow *w, int i)
{
    const Tensor *want = &w->t->want[i];
    if (!dtype_float(want->dtype) || !all_finite(want) || !all_finite(&w->noisy[0][i]) ||
        !all_finite(&w->noisy[1][i]))
        return;
    Tensor got = *want;
    got.data = program_data(w->x, &w->x->plan->out[i]);
    got.dtype = F32;
    if (size_of(want) > HUGE_F32 || size_of(&w->noisy[0][i]) > HUGE_F32)
        return;
    double bound = INSIDE * fmax(distance(&w->noisy[0][i], want), distance(&w->noisy[1][i], want)) +
                   NOISE * size_of(want);
    double far = distance(&got, want);
    if (!all_finite(&got) || far > bound + 1e-30)
        prop_fail(w->t, "executed in f32: output %d is %g from double; noise explains %g", i, far,
                  bound);
}

void prop_narrow(Trial *t)
{
    Graph *g = narrow(t, t->x->b.g);
    Tensor *in = NEWN(t->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++)
        in[i] = tensor_copy(t->a, &t->x->in[i], g->in[i].v->type.dtype);
    Plan *p = plan_make(t->a, g, 0);
    Program *x = program_make(t->a, p, true, 0);
    write_inputs(x, in);
    if (program_run(x))
        return; /* an index from a float may have been rounded out of its range */
    Narrow w = {t, x, {NULL}};
    if (ctx_try(g->ctx, run_noisy, &w))
        return;
    for (int i = 0; i < p->nout; i++)
        compare_narrow(&w, i);
}
