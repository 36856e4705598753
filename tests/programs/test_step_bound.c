/* The bound of a step: on a graph small enough to be reckoned by hand; of random graphs of ranks,
 * with collectives joined by chance too, never above the step of any of their plans, with and
 * without overlap. TN_LONG: more graphs. */
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
    double both = 2 * gather + product, bound = plan_step_bound(p, arena_tmp(a), false);
    EXPECT(gather > 0 && product > 0);
    EXPECT(bound <= MAX(both, MAX(3 * product, gather + 2 * product)) * (1 + SLACK));
    EXPECT(bound >= MAX(3 * product, gather + 2 * product) * (1 - SLACK));
    EXPECT(bound >= 0.9 * both);
}

/* The clone could be computed while the forward waits for the gather. */
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
    double gather = p->est.by_class[CLASS_COLLECTIVE];
    double product = p->est.by_class[CLASS_PRODUCT] / 4;
    double early = plan_step_bound(p, arena_tmp(a), false);
    double late = plan_step_bound(p, arena_tmp(a), true);
    EXPECT(gather > product);
    EXPECT(fabs(early - MAX(4 * product, gather + 2 * product)) < SLACK * early);
    EXPECT(fabs(late - (gather + 3 * product)) < SLACK * late);
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
    EXPECT(fabs(plan_step_bound(p, arena_tmp(a), false) - products) < SLACK * products);
    EXPECT(p->est.step > products);
}

/* ---- random graphs ---- */

typedef struct Totals {
    int count, refused, tight, late;
    double worst;
} Totals;

/* Whether nothing is computed again before the forward has ended. */
static bool is_late(const Plan *p)
{
    const Node *end = p->g->first;
    bool late = true;
    for (const Node *n = p->g->first; n; n = n->next)
        end = n->phase <= LOSS ? n : end;
    for (const Node *n = p->g->first; n != end; n = n->next)
        late &= !n->origin;
    return late;
}

/* The bounds of schedules that compute again in the backward differ from the others in some. */
static void expect_late(Trial *t, const Plan *p, double bound, Totals *sum, const char *what)
{
    double late = plan_step_bound(p, arena_tmp(t->a), true);
    if (!(late >= bound * (1 - SLACK)))
        trial_fail(t, "%s: the bound in the backward is %.9g, of any %.9g", what, late, bound);
    if (is_late(p) && !(late <= p->est.step * (1 + SLACK)))
        trial_fail(t, "%s: the bound in the backward is %.9g, the step %.9g", what, late,
                   p->est.step);
    sum->late += is_late(p) && late > bound * (1 + SLACK);
}

static void expect_bound(Trial *t, const Graph *g, Totals *sum, const char *what)
{
    const Machine *m = machine_get(t->a, rng_below(&t->rng, 2) ? "h100" : "avx512_bf16", 1);
    double bound[2], step[2];
    for (int i = 0; i < 2; i++) {
        PlanFor to = {.machine = m, .overlap = i == 1};
        const Plan *p = plan_ordered(t->a, graph_clone(t->a, g), &to);
        step[i] = p->est.step;
        bound[i] = plan_step_bound(p, arena_tmp(t->a), false);
        expect_late(t, p, bound[i], sum, what);
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
    EXPECT(!ctx_try(&ctx, long_stream, a));
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();
    for (int i = first; i < count; i++)
        try_one(&lib, (uint64_t)i, &done, &sum);
    printf("note: test_step_bound: %d plans, of which %d take at most their bound / 0.95, and %d "
           "compute "
           "again with a bound of their own; %d meshes refused\n",
           sum.count, sum.tight, sum.late, sum.refused);
    EXPECT(argc > 1 || (sum.count > count / 2 && 20 * sum.tight > sum.count));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
