/* The bound of a step: on a graph small enough to be reckoned by hand; in all orders of another,
 * each within its own peak; of random graphs of ranks, with collectives joined by chance too, never
 * above the step of any of their plans, with and without overlap. TN_LONG: more graphs. */
#include "../shared/test.h"

#include "../../src/plan/plan.h"
#include "../shared/spmd_made.h"

#include <math.h>

enum { NGRAPH = 300, LONG = 30, QUICK = 60 };

#define SLACK 1e-9 /* of sums in another order */

static Ctx ctx;

/* ---- by hand ---- */

/* The stream narrows at %x1 and %x2; %a runs beside the first gather, %g beside the second. */
static const char *const text =
    "tenon 1\n"
    "graph g mesh(fsdp=2) at(0) (%x: f32[4096, 4096] batch, %w: f32[2048, 4096] param \"w\",\n"
    "  %v: f32[2048, 4096] param \"v\") {\n"
    "  %p: f32[4096, 4096] = all_gather_into_tensor(%w, group_size=2, group=\"fsdp\")\n"
    "  %w1: f32[4096, 4096] = wait_tensor(%p, %w)\n"
    "  %q: f32[4096, 4096] = all_gather_into_tensor(%v, group_size=2, group=\"fsdp\")\n"
    "  %v1: f32[4096, 4096] = wait_tensor(%q, %v)\n"
    "  %x1: f32[4096, 4096] = mm(%x, %x)\n"
    "  %x2: f32[4096, 4096] = mm(%x1, %w1)\n"
    "  %x3: f32[4096, 4096] = mm(%x2, %v1)\n"
    "  return %x3\n"
    "}\n";

static void by_hand(void *arg)
{
    Arena *a = arg;
    PlanFor to = {.machine = machine_get(a, "h100", 1), .overlap = true};
    const Plan *p = plan_make(a, graph_parse(a, text, "text"), &to);
    double gather = 0, product = 0;
    for (int i = 0; i < p->nstep; i++) {
        gather = MAX(gather, p->step[i].node->op->class == CLASS_COLLECTIVE ? p->step[i].sec : 0);
        product = MAX(product, p->step[i].node->op->class == CLASS_PRODUCT ? p->step[i].sec : 0);
    }
    /* both gathers, as one call or as two, come before the last product; the first before two */
    double both = 2 * gather + product, bound = plan_step_bound(p, arena_tmp(a), 0);
    EXPECT(gather > 0 && product > 0);
    EXPECT(bound <= MAX(both, MAX(3 * product, gather + 2 * product)) * (1 + SLACK));
    EXPECT(bound >= MAX(3 * product, gather + 2 * product) * (1 - SLACK));
    EXPECT(bound >= 0.9 * both);
}

/* The clone could be computed while the forward waits for the gather, where there is memory. */
static const char *const again =
    "tenon 1\n"
    "graph g mesh(fsdp=16, tp=8) at(0, 0) (%x: bf16[4096, 4096] batch, %w: bf16[256, 4096] param "
    "\"w\") {\n"
    "  %p: bf16[4096, 4096] = all_gather_into_tensor(%w, group_size=16, group=\"fsdp\")\n"
    "  %w1: bf16[4096, 4096] = wait_tensor(%p, %w)\n"
    "  %x1: bf16[4096, 4096] = mm(%x, %x)\n"
    "  %c: bf16[4096, 4096] = mm(%x, %x) backward origin=%x1\n"
    "  %x2: bf16[4096, 4096] = mm(%x1, %w1)\n"
    "  %d: bf16[4096, 4096] = mm(%x2, %c) backward\n"
    "  return %d\n"
    "}\n";

static void again_by_hand(void *arg)
{
    Arena *a = arg;
    PlanFor to = {.machine = machine_get(a, "h100", 1), .overlap = true};
    const Plan *p = plan_make(a, graph_parse(a, again, "text"), &to);
    const int64_t matrix = INT64_C(4096) * 4096 * 2, kept = p->space[SPACE_MAIN].persistent;
    double gather = p->est.by_class[CLASS_COLLECTIVE];
    double product = p->est.by_class[CLASS_PRODUCT] / 4;
    double any = plan_step_bound(p, arena_tmp(a), 0);
    EXPECT(gather > product);
    EXPECT(fabs(any - MAX(4 * product, gather + 2 * product)) < SLACK * any);
    /* at the second product %x1, %w1 and %x2 are alive, and either %x or %c */
    double four = plan_step_bound(p, arena_tmp(a), kept + 4 * matrix);
    EXPECT(fabs(four - any) < SLACK * any);
}

/* ---- all orders of a small graph ---- */

/* Two values are computed again, one of which the other needs. N and M stand for sizes. */
static const char *const orders =
    "tenon 1\n"
    "graph g mesh(fsdp=16, tp=8) at(0, 0) (%x: bf16[N, N] batch, %w: bf16[M, N] param \"w\") {\n"
    "  %p: bf16[N, N] = all_gather_into_tensor(%w, group_size=16, group=\"fsdp\")\n"
    "  %w1: bf16[N, N] = wait_tensor(%p, %w)\n"
    "  %x1: bf16[N, N] = mm(%x, %w1)\n"
    "  %y: bf16[N, N] = mm(%x, %x)\n"
    "  %z: bf16[N, N] = gelu(%y)\n"
    "  %x2: bf16[N, N] = mm(%z, %x1)\n"
    "  %c: bf16[N, N] = mm(%x, %x) backward origin=%y\n"
    "  %e: bf16[N, N] = gelu(%c) backward origin=%z\n"
    "  %d: bf16[N, N] = mm(%x2, %e) backward\n"
    "  %f: bf16[N, N] = mm(%d, %x) backward\n"
    "  return %f\n"
    "}\n";

enum { MOST_NODES = 16 };

typedef struct Orders {
    Arena *a;
    PlanFor to;
    const Graph *g;
    Node *node[MOST_NODES]; /* in the order that is tried */
    int n, count, tight, below;
    double least, bound; /* the fastest order's step; the bound of any */
} Orders;

/* The bound within an order's own peak is below its step; `tight`: it is near, though that of any
 * memory is not. */
static void see_order(Orders *x)
{
    Arena *tmp = arena_tmp(x->a);
    Graph *g = graph_clone(tmp, x->g);
    Node *node[MOST_NODES];
    int i = 0;
    for (Node *n = g->first; n; n = n->next)
        node[i++] = n;
    for (i = 0; i < x->n; i++)
        for (int k = 0; k < x->n; k++)
            if (!strcmp(node[k]->out[0]->name, x->node[i]->out[0]->name))
                node_move(g, node[k], NULL);
    const Plan *p = plan_make(tmp, g, &x->to);
    double any = plan_step_bound(p, tmp, 0), within = plan_memory_bound(p, tmp);
    x->count++;
    x->least = x->count > 1 ? MIN(x->least, p->est.step) : p->est.step;
    x->bound = any;
    x->below += any <= within * (1 + SLACK) && within <= p->est.step * (1 + SLACK);
    x->tight += within > any * (1 + SLACK) && within >= 0.95 * p->est.step;
    arena_reset(tmp);
}

static bool is_ready(const Orders *x, const Node *n, int done)
{
    bool ready = true;
    for (int k = 0; k < n->nin; k++) {
        bool made = !n->in[k]->def;
        for (int i = 0; i < done && !made; i++)
            made = n->in[k]->def == x->node[i];
        ready &= made;
    }
    return ready;
}

/* Tries all orders that begin with the first `done` nodes. */
static void each_order(Orders *x, int done)
{
    if (done == x->n)
        see_order(x);
    for (int i = done; i < x->n; i++) {
        Node *n = x->node[i];
        if (!is_ready(x, n, done))
            continue;
        x->node[i] = x->node[done];
        x->node[done] = n;
        each_order(x, done + 1);
        x->node[done] = x->node[i];
        x->node[i] = n;
    }
}

static const char *sized(Arena *a, const char *form, int size)
{
    Buf b = {.a = a};
    for (; *form; form++)
        if (*form == 'N' || *form == 'M')
            buf_printf(&b, "%d", *form == 'N' ? size : size / 16);
        else
            buf_printf(&b, "%c", *form);
    return b.text;
}

static void all_orders(void *arg)
{
    Arena *a = arg;
    for (int size = 1024; size <= 8192; size *= 2) {
        Orders x = {.a = a, .to = {.machine = machine_get(a, "h100", 1)}};
        x.g = graph_parse(a, sized(a, orders, size), "orders");
        for (Node *n = x.g->first; n; n = n->next)
            x.node[x.n++] = n;
        each_order(&x, 0);
        EXPECT(x.count > 100 && x.below == x.count);
        printf("note: test_step_bound: %d orders of a graph of %d rows, %d of which take at most "
               "their bound in their memory / 0.95\n",
               x.count, size, x.tight);
        EXPECT(size < 4096 || x.tight > 0);
    }
}

/* %g could be reduced while %s is computed, but then %s's reduction comes behind it. */
static const char *const tails =
    "tenon 1\n"
    "graph g mesh(fsdp=16, tp=8) at(0, 0) (%x: bf16[N, N] batch, %v: bf16[N, M] batch) {\n"
    "  %d1: bf16[N, N] = mm(%x, %x)\n"
    "  %d2: bf16[N, N] = mm(%d1, %x)\n"
    "  %g: bf16[N, N] = mm(%d2, %x)\n"
    "  %r: bf16[M, N] = reduce_scatter_tensor(%g, reduce_op=\"sum\", group_size=16, "
    "group=\"fsdp\")\n"
    "  %e: bf16[M, N] = wait_tensor(%r, %g)\n"
    "  %s: bf16[N, M] = mm(%d1, %v) @\"layers.0\"\n"
    "  %t: bf16[M, M] = reduce_scatter_tensor(%s, reduce_op=\"sum\", group_size=16, "
    "group=\"fsdp\") @\"layers.0\"\n"
    "  %f: bf16[M, M] = wait_tensor(%t, %s) @\"layers.0\"\n"
    "  return %e, %f\n"
    "}\n";

static void all_tails(void *arg)
{
    Arena *a = arg;
    for (int size = 2048; size <= 16384; size *= 2) {
        Orders x = {.a = a, .to = {.machine = machine_get(a, "h100", 1)}};
        x.g = graph_parse(a, sized(a, tails, size), "tails");
        for (Node *n = x.g->first; n; n = n->next)
            x.node[x.n++] = n;
        each_order(&x, 0);
        EXPECT(x.count == 35 && x.below == x.count);
        EXPECT(x.bound >= 0.999 * x.least);
        printf("note: test_step_bound: the fastest of %d orders of a graph of %d rows takes %.3f "
               "of their bound\n",
               x.count, size, x.least / x.bound);
    }
}

/* ---- a long stream ---- */

/* So long that some of its items are left out. The gather is behind all but the last of them. */
static void long_stream(void *arg)
{
    enum { LONG_STREAM = 4000 };
    Arena *a = arg;
    Buf b = {.a = a};
    buf_add(&b,
            "tenon 1\ngraph g mesh(fsdp=2) at(0) (%x0: f32[64, 64] batch, %w: f32[32, 64] param "
            "\"w\") {\n");
    for (int i = 0; i < LONG_STREAM; i++)
        buf_printf(&b, "  %%x%d: f32[64, 64] = mm(%%x%d, %%x%d)\n", i + 1, i, i);
    buf_printf(&b,
               "  %%p: f32[64, 64] = all_gather_into_tensor(%%w, group_size=2, group=\"fsdp\")\n"
               "  %%q: f32[64, 64] = wait_tensor(%%p, %%w)\n"
               "  %%y: f32[64, 64] = mm(%%x%d, %%q)\n  return %%y\n}\n",
               (int)LONG_STREAM);
    PlanFor to = {.machine = machine_get(a, "h100", 1)};
    const Plan *p = plan_make(a, graph_parse(a, b.text, "text"), &to);
    double products = p->est.by_class[CLASS_PRODUCT];
    EXPECT(fabs(plan_step_bound(p, arena_tmp(a), 0) - products) < SLACK * products);
    EXPECT(p->est.step > products);
}

/* ---- random graphs ---- */

typedef struct Totals {
    int count, refused, tight, within;
    double worst;
} Totals;

/* Within their peak's bytes no plan is faster than that bound. */
static void expect_within(Trial *t, const Plan *p, double any, Totals *sum, const char *what)
{
    double within = plan_step_bound(p, arena_tmp(t->a), p->space[SPACE_MAIN].peak);
    if (!(any <= within * (1 + SLACK) && within <= p->est.step * (1 + SLACK)))
        trial_fail(t, "%s: the bound in its memory is %.9g, of any %.9g, the step %.9g", what,
                   within, any, p->est.step);
    sum->within += within > any * (1 + SLACK);
}

static void expect_bound(Trial *t, const Graph *g, Totals *sum, const char *what)
{
    const Machine *m = machine_get(t->a, rng_below(&t->rng, 2) ? "h100" : "avx512_bf16", 1);
    double bound[2], step[2];
    for (int i = 0; i < 2; i++) {
        PlanFor to = {.machine = m, .overlap = i == 1};
        const Plan *p = plan_ordered(t->a, graph_clone(t->a, g), &to);
        step[i] = p->est.step;
        bound[i] = plan_step_bound(p, arena_tmp(t->a), 0);
        expect_within(t, p, bound[i], sum, what);
    }
    for (int i = 0; i < 4; i++)
        if (!(bound[i / 2] <= step[i % 2] * (1 + SLACK)))
            trial_fail(t, "%s: the bound with%s overlap is %.9g, the step with%s is %.9g", what,
                       i / 2 ? "" : "out", bound[i / 2], i % 2 ? "" : "out", step[i % 2]);
    sum->count++;
    sum->tight += bound[1] >= 0.95 * step[1];
}

typedef struct Try {
    Trial t;
    Totals *sum;
} Try;

static void run_trial(void *arg)
{
    Try *x = arg;
    Trial *t = &x->t;
    int joined = 0;
    trial_graph(t);
    trial_mesh(t);
    trial_ask(t);
    if (!trial_ranks(t)) {
        x->sum->refused++;
        return;
    }
    Ranks other = ranks_bucketed(&t->ranks, t->rng.seed, &joined);
    expect_bound(t, t->ranks.g[0], x->sum, "the graph");
    if (joined)
        expect_bound(t, other.g[0], x->sum, "with joined collectives");
}

static void try_one(Library *lib, uint64_t seed, Counts *done, Totals *sum)
{
    Arena *a = arena_new(&ctx);
    CHECK(a);
    Try x = {.t = {.a = a, .lib = lib, .rng = {seed, 0}, .done = done}, .sum = sum};
    x.t.sums.a = a;
    if (ctx_try(&ctx, run_trial, &x))
        trial_fail(&x.t, "%s", ctx.message);
    if (!EXPECT(!x.t.failure))
        printf("random graph %llu: %s\n", (unsigned long long)seed, x.t.failure);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Arena *a = arena_new(&ctx);
    Library lib;
    Counts done = {0};
    Totals sum = {0};
    int first = argc > 1 ? atoi(argv[1]) : 0;
    int count = argc > 1             ? first + 1
                : getenv("TN_LONG")  ? NGRAPH * LONG
                : getenv("TN_QUICK") ? QUICK
                                     : NGRAPH;
    par_set_threads(1); /* all is small */
    CHECK(a);
    EXPECT(!ctx_try(&ctx, by_hand, a));
    EXPECT(!ctx_try(&ctx, again_by_hand, a));
    EXPECT(!ctx_try(&ctx, all_orders, a));
    EXPECT(!ctx_try(&ctx, all_tails, a));
    EXPECT(!ctx_try(&ctx, long_stream, a));
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();
    for (int i = first; i < count; i++)
        try_one(&lib, (uint64_t)i, &done, &sum);
    printf(
        "note: test_step_bound: %d plans, of which %d take at most their bound / 0.95, and %d have "
        "another in their memory; %d meshes refused\n",
        sum.count, sum.tight, sum.within, sum.refused);
    EXPECT(argc > 1 || (sum.count > count / 2 && 20 * sum.tight > sum.count));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
