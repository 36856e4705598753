/* Plans of random graphs. In double: what the executor computes in its arena, over the strides that
 * the planner chose, is what the interpreter computes with a buffer for each value, bit for bit;
 * by the references, since kernels of f64 may add in another order (test_op compares them). Dead
 * buffers are poisoned, the arena's ends are guarded. A second step in the same arena, over what
 * the first left there, gives the same. */
#include "prop.h"

#include "../../src/exec/exec.h"
#include "../../src/pass/pass.h"
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
    if (p->space[SPACE_MAIN].bound > p->space[SPACE_MAIN].peak)
        prop_fail(t, "the plan's peak %lld is below its lower bound %lld",
                  (long long)p->space[SPACE_MAIN].peak, (long long)p->space[SPACE_MAIN].bound);
    if (p->order_bound > p->space[SPACE_MAIN].bound)
        prop_fail(t, "the plan's lower bound %lld is below that of any order, %lld",
                  (long long)p->space[SPACE_MAIN].bound, (long long)p->order_bound);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->offset < 0 || s->offset % PLAN_ALIGN ||
            (s->end > s->start && s->offset + s->nbytes > p->space[SPACE_MAIN].peak))
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
    Plan *p = plan_make(t->a, g, NULL);
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

/* ---- strides ---- */

/* Named after its node's first result, below the names of its loops. */
typedef struct NamedCall {
    const char *name;
    const Step *step;
} NamedCall;

typedef struct Calls {
    Map by_name; /* Step */
    NamedCall *call;
    int count, cap;
} Calls;

/* Copies that the planner adds aside: they serve the calls. */
static Calls list_calls(Arena *a, const Plan *p, bool by_origin)
{
    Calls c = {.by_name = {.a = a}};
    const char *path = "";
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        const Node *n = s->node;
        if (s->kind == STEP_LOOP)
            path = arena_printf(a, "%s%s%s/", path, n->out[0]->name,
                                s->first == n->region->n ? " tail" : "");
        if (s->kind == STEP_END) { /* back to before the name that it ends with */
            size_t len = strlen(path) - 1;
            while (len && path[len - 1] != '/')
                len--;
            path = arena_strndup(a, path, len);
        }
        if (s->kind != STEP_CALL || s->copy)
            continue;
        const char *of = by_origin && n->origin ? n->origin : n->out[0]->name;
        const char *name = arena_printf(a, "%s%s", path, of);
        map_put(&c.by_name, name, (void *)s);
        PUSH(a, c.call, c.count, c.cap, ((NamedCall){name, s}));
    }
    return c;
}

/* What has no elements has no strides. */
static bool same_strides(const Call *x, const Call *y)
{
    bool same = x->nin == y->nin;
    for (int i = 0; i < x->nin && same; i++)
        for (int d = 0; d < x->in[i].rank && tensor_nelem(&x->in[i]); d++)
            same = same && (x->in[i].dim[d] < 2 || x->in[i].stride[d] == y->in[i].stride[d]);
    return same;
}

void prop_strides(Trial *t, const Graph *before, const Graph *after, const char *passes)
{
    Calls x = list_calls(t->a, plan_make(t->a, graph_clone(t->a, before), NULL), false);
    Calls y = list_calls(t->a, plan_make(t->a, graph_clone(t->a, after), NULL), true);
    for (int i = 0; i < y.count && !t->failure; i++) {
        const Step *s = y.call[i].step, *from = map_find(&x.by_name, y.call[i].name);
        OpClass class = s->node->op->class;
        bool any = class == CLASS_POINTWISE || class == CLASS_MOVEMENT; /* the bits are the same */
        if (any || s->node->op->view || !from || from->node->op != s->node->op ||
            (same_strides(&from->call, &s->call) && from->kernel == s->kernel))
            continue;
        prop_show(t, passes, after);
        prop_fail(t, "after %s: %s %%%s reads other strides, or runs by %s, not %s", passes,
                  s->node->op->name, y.call[i].name, s->kernel ? s->kernel->name : "ref",
                  from->kernel ? from->kernel->name : "ref");
    }
}

/* ---- f32 ---- */

static const double NOISE = 1e-6;
/* A step of floor, of a comparison, is seen where a draw of the noise lies beyond it. Draws come in
 * pairs of opposite signs: one of a pair is on the step's side, and beyond it unless less than the
 * rounding that f32 does. That is 2^-24, 6 % of the noise: two pairs miss 1 step in 280. */
enum { PAIRS = 2, DRAWS = 2 * PAIRS };
/* Noise on its operands does not show what rounding does inside an op: a norm over a row of equal
 * numbers multiplies the rounding of their mean by 1 / sqrt(eps). */
static const double INSIDE = 150;
/* What f32 may overflow to on the way to a result. */
static const double HUGE_F32 = 1e30;

Graph *prop_f32(Trial *t, const Graph *g)
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
    const Graph *g;       /* in f32 */
    const Tensor *in;     /* its inputs */
    Tensor *noisy[DRAWS]; /* results in double under noise */
    Tensor *rounded;      /* of ref, each rounded to f32 */
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
        EACH_LOOP_BODY(b, n)
            count += count_constants(n->region->body[b]);
    }
    return count;
}

/* Ops along rows in bodies of `fused`. */
static int count_rows(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next)
        EACH_FUSED(m, n)
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

void prop_same_bits(Trial *t, Graph *g, const Tensor *in, const Program *run, int without)
{
    Program *y = program_make(t->a, plan_make(t->a, g, NULL), true, 0);
    write_inputs(y, in);
    if (program_run(y))
        prop_fail(t, "run: %s", y->message);
    for (int i = 0; i < g->nout && !t->failure; i++) {
        const Type *type = &g->out[i].v->type;
        Tensor one = {.dtype = type->dtype, .rank = type->rank}, two;
        memcpy(one.dim, type->dim, sizeof one.dim);
        two = one;
        one.data = program_data(run, &run->plan->out[i + (without >= 0 && i >= without)]);
        two.data = program_data(y, &y->plan->out[i]);
        if (!same_bits(&one, &two))
            prop_fail(t, "run: output %d has other bits", i);
    }
}

/* The planner takes fused nodes apart only where that lowers the peak of what the search for an
 * order finds; what moves after it may make both equal. low: the peak. */
static void check_taken_apart(Trial *t, const Graph *fused, const Graph *planned, int64_t low)
{
    const Device *d = device_at(DEVICE_cpu);
    PlanFor to = {.device = d, .machine = machine_for(t->a, d, NULL)};
    if (graph_count(planned) == graph_count(fused))
        return;
    int64_t whole = plan_searched(t->a, graph_clone(t->a, fused), &to)->space[SPACE_MAIN].peak;
    t->fused[APART]++;
    if (low > whole)
        prop_fail(t, "taking fused nodes apart: peak %lld, before %lld", (long long)low,
                  (long long)whole);
}

/* Whether fused nodes cost memory although the planner takes apart those that it finds to. */
static bool raises(Trial *t, const Graph *apart, const Graph *fused)
{
    Graph *planned = graph_clone(t->a, fused);
    int64_t off = plan_ordered(t->a, graph_clone(t->a, apart), NULL)->space[SPACE_MAIN].peak;
    int64_t on = plan_ordered(t->a, planned, NULL)->space[SPACE_MAIN].peak;
    check_taken_apart(t, fused, planned, on);
    return on > off + off / 1024 + count_constants(apart) * PLAN_ALIGN;
}

static void compare_fused(Trial *t, Graph *g, const Tensor *in)
{
    Program *x = program_make(t->a, plan_make(t->a, graph_clone(t->a, g), NULL), true, 0);
    write_inputs(x, in);
    if (program_run(x))
        return; /* an index from a float may have been rounded out of its range */
    Graph *fused = graph_clone(t->a, g);
    t->fused[NODES] += run_pass(fused, "fuse");
    t->fused[ALONG_ROWS] += count_rows(fused);
    t->fused[GRAPHS]++;
    prop_show(t, "fuse", fused);
    prop_same_bits(t, fused, in, x, -1);
    prop_parts(t, fused);
    t->fused[RAISED] += raises(t, g, fused);
    run_pass(fused, "unfuse");
    if (graph_count(fused) != graph_count(g))
        prop_fail(t, "unfuse gives %d nodes, there were %d", graph_count(fused), graph_count(g));
    if (!t->failure)
        prop_compiled(t, g, in, x);
}

void prop_fused(Trial *t, const Graph *from)
{
    for (int low = 0; low < 2 && !t->failure; low++) {
        Graph *g = prop_f32(t, from);
        Tensor *in = NEWN(t->a, Tensor, g->nin);
        PassOptions o = pass_defaults();
        o.dtype = low ? BF16 : F32;
        passes_run(g, "precision", &o, NULL, NULL);
        for (int i = 0; i < g->nin; i++)
            in[i] = tensor_copy(t->a, &t->x->in[i], g->in[i].v->type.dtype);
        compare_fused(t, g, in);
    }
}

double prop_rounding(Trial *t, const Graph *g, const Tensor *want, int i)
{
    double most = 0;
    Tensor *out = NEWN(t->a, Tensor, g->nout);
    for (int k = 0; k < DRAWS; k++) {
        double noise = NOISE * 0x1p-29; /* what NOISE is to f32 this is to double */
        interp_noisy(t->a, g, t->x->in, k % 2 ? -noise : noise, (uint64_t)k / 2, out);
        most = fmax(most, distance(&out[i], want));
    }
    return INSIDE * most;
}

static void run_noisy(void *arg)
{
    Narrow *w = arg;
    Trial *t = w->t;
    for (int k = 0; k < DRAWS; k++) {
        w->noisy[k] = NEWN(t->a, Tensor, t->x->b.g->nout);
        interp_noisy(t->a, t->x->b.g, t->x->in, k % 2 ? -NOISE : NOISE, (uint64_t)k / 2,
                     w->noisy[k]);
    }
    w->rounded = NEWN(t->a, Tensor, w->g->nout);
    interp_graph(t->a, w->g, w->in, w->rounded);
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

static bool tame(const Tensor *t)
{
    return all_finite(t) && size_of(t) <= HUGE_F32;
}

static void compare_narrow(const Narrow *w, int i)
{
    const Tensor *want = &w->t->want[i];
    double most = 0;
    if (!dtype_float(want->dtype) || !tame(want))
        return;
    for (int k = 0; k < DRAWS; k++) {
        if (!tame(&w->noisy[k][i]))
            return;
        most = fmax(most, distance(&w->noisy[k][i], want));
    }
    Tensor got = *want;
    got.data = program_data(w->x, &w->x->plan->out[i]);
    got.dtype = F32;
    double bound = INSIDE * most + NOISE * size_of(want);
    double far = distance(&got, want);
    if (!all_finite(&got) && !all_finite(&w->rounded[i]))
        return; /* a variance of equal numbers is 0 in f32, and not in double; then it divides */
    if (!all_finite(&got) || far > bound + 1e-30)
        prop_fail(w->t, "executed in f32: output %d is %g from double; noise explains %g", i, far,
                  bound);
}

/* Whether a float becomes a bool: what is 0 in double need not be in f32, and no noise shows that.
 */
static bool asks_for_zero(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (node_is(n, OP__to_copy) && dtype_float(n->in[0]->type.dtype) &&
            n->out[0]->type.dtype == BOOL)
            return true;
        EACH_LOOP_BODY(b, n)
            if (asks_for_zero(n->region->body[b]))
                return true;
    }
    return false;
}

void prop_narrow(Trial *t)
{
    if (asks_for_zero(t->x->b.g))
        return;
    Graph *g = prop_f32(t, t->x->b.g);
    Tensor *in = NEWN(t->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++)
        in[i] = tensor_copy(t->a, &t->x->in[i], g->in[i].v->type.dtype);
    Plan *p = plan_make(t->a, g, NULL);
    Program *x = program_make(t->a, p, true, 0);
    write_inputs(x, in);
    if (program_run(x))
        return; /* an index from a float may have been rounded out of its range */
    Narrow w = {.t = t, .x = x, .g = prop_f32(t, t->x->b.g), .in = in};
    if (ctx_try(g->ctx, run_noisy, &w))
        return;
    for (int i = 0; i < p->nout; i++)
        compare_narrow(&w, i);
}
