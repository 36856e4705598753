/* Collectives beside computing: Llama-3 8B on two meshes, faster than without and within the cap;
 * small models under limits, never slower, never above; on planned arenas the bits of the
 * interpreter, in one order on all ranks. TN_LONG: more models. */
#include "../shared/test.h"

#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../../src/plan/plan.h"
#include "../shared/graphs.h"
#include "../shared/ranks.h"

#include <math.h>

static Ctx ctx;

typedef struct Trial {
    const char *preset, *mesh, *recompute, *bucket;
    int64_t batch, seq, accumulate;
    bool small;
    Arena *a;
} Trial;

static PassOptions options_of(const Trial *x)
{
    PassOptions o = pass_defaults();
    o.dtype = x->small ? F32 : BF16;
    o.mesh = x->mesh;
    o.recompute = x->recompute;
    o.accumulate = x->accumulate;
    o.machine = "h100";
    o.bucket = x->bucket;
    return o;
}

static Graph *compile(const Trial *x, int64_t rank)
{
    PassOptions o = options_of(x);
    ModelConfig c = x->small ? graphs_small(x->preset) : *config_preset(x->preset);
    o.rank = rank;
    Graph *g = model_graph(x->a, &c, x->batch, x->seq, NULL);
    passes_run(g, "default", &o, NULL, NULL);
    return g;
}

static Plan *planned(const Trial *x, const Graph *g, bool overlap, int64_t limit)
{
    PlanFor to = {.machine = machine_get(x->a, "h100", 1), .overlap = overlap, .limit = limit};
    return plan_ordered(x->a, graph_clone(x->a, g), &to);
}

static int64_t peak(const Plan *p)
{
    return p->space[SPACE_MAIN].peak;
}

/* ---- Llama-3 8B ---- */

/* No collective is exposed for longer than it takes; all together as long as the step waits. */
static void test_exposed(const Plan *p)
{
    double all = 0, work = 0;
    bool less = true;
    for (int i = 0; i < p->nstep; i++) {
        bool moves = p->step[i].kind == STEP_CALL && p->step[i].node->op->class == CLASS_COLLECTIVE;
        less &= p->step[i].exposed <= p->step[i].sec * (1 + 1e-9);
        all += p->step[i].exposed;
        work += moves ? 0 : p->step[i].sec;
    }
    EXPECT(less);
    EXPECT(fabs(work + all - p->est.step) < 1e-9 * p->est.step);
}

static void test_8b(Trial *x, double most, double share)
{
    const Graph *g = compile(x, 0);
    Plan *off = planned(x, g, false, 0), *on = planned(x, g, true, 0);
    EXPECT(!off->overlap_cap && on->overlap_cap > peak(off) && peak(on) <= on->overlap_cap);
    EXPECT(on->est.step < most);
    test_exposed(off);
    test_exposed(on);
    EXPECT(on->est.exposed < share * off->est.exposed);
    EXPECT(fabs(on->est.by_class[CLASS_COLLECTIVE] - off->est.by_class[CLASS_COLLECTIVE]) < 1e-9);
    printf("note: test_overlap: %s: %.1f ms and %.0f MiB, %.1f ms and %.0f MiB without\n", x->mesh,
           1e3 * on->est.step, (double)peak(on) / 0x1p20, 1e3 * off->est.step,
           (double)peak(off) / 0x1p20);
}

static void run_8b(void *arg)
{
    Trial *x = arg;
    if (x->batch == 32) {
        test_8b(x, 0.292, 0.27);
        EXPECT(peak(planned(x, compile(x, 0), true, 0)) <= 6 * (INT64_C(1) << 30));
    } else {
        test_8b(x, 0.380, 0.06);
    }
}

/* ---- small models ---- */

/* The collectives and what waits for them, in the order of the steps. */
static const char *sequence(Arena *a, const Plan *p)
{
    Buf b = {.a = a};
    for (int i = 0; i < p->nstep; i++) {
        const Node *n = p->step[i].node;
        if (p->step[i].kind == STEP_CALL && n->nin && (n->op->wait || op_starts(n->op)))
            buf_printf(&b, "%s %%%s\n", n->op->name, n->out[0]->name);
    }
    return b.text;
}

static void expect_limits(const Trial *x, const Graph *g, const Plan *off)
{
    for (int i = 0; i < 4; i++) {
        int64_t limit = plan_least(off) + i * i * (int64_t)4096;
        const Plan *p = planned(x, g, true, limit);
        EXPECT(plan_least(p) <= limit && p->est.step <= off->est.step);
    }
}

static int run_small(const Trial *x)
{
    int n = (int)mesh_nranks(mesh_parse(&ctx, x->a, x->mesh));
    Graph **g = NEWN(x->a, Graph *, n);
    const char *first = NULL;
    Plan *off = NULL, *on = NULL;
    for (int r = 0; r < n; r++) {
        g[r] = compile(x, r);
        off = planned(x, g[r], false, 0);
        on = planned(x, g[r], true, 0);
        const char *now = sequence(x->a, on);
        EXPECT(!first || !strcmp(now, first));
        first = now;
    }
    CHECK(on && off);
    EXPECT(on->est.step <= off->est.step && peak(on) <= MAX(on->overlap_cap, peak(off)));
    EXPECT(plan_memory_bound(on, arena_tmp(x->a)) <= on->est.step * (1 + 1e-9));
    EXPECT(plan_step_bound(off, arena_tmp(x->a), 0) <= on->est.step * (1 + 1e-9));
    expect_limits(x, g[n - 1], off);
    return on->overlap_cap > 0;
}

/* What planned arenas give, in the plan's order, is what the interpreter gives in the graph's. */
static void compare_bits(const Trial *x)
{
    PassOptions o = options_of(x);
    ModelConfig c = graphs_small(x->preset);
    Graph *whole = model_graph(x->a, &c, x->batch, x->seq, NULL);
    passes_run(whole, "unfuse,grad,precision,accumulate,optimizer,canonicalize,cse,dce", &o, NULL,
               NULL);
    int n = (int)mesh_nranks(mesh_parse(&ctx, x->a, o.mesh)), differ = 0;
    Graph **g = NEWN(x->a, Graph *, n);
    for (o.rank = 0; o.rank < n; o.rank++) {
        g[o.rank] = graph_clone(x->a, whole);
        passes_run(g[o.rank], "spmd,remat,bucket", &o, NULL, NULL);
    }
    Ranks ranks = ranks_of(x->a, n, g);
    Tensor **in = ranks_inputs(&ranks, whole, graphs_inputs(x->a, whole));
    Tensor **want = ranks_interpret(&ranks, in, NULL);
    Tensor **got = ranks_execute(&ranks, device_at(DEVICE_cpu), in);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < whole->nout; i++)
            differ +=
                memcmp(got[r][i].data, want[r][i].data, (size_t)tensor_nbytes(&want[r][i])) != 0;
    EXPECT(!differ);
}

static int nmoved;

static void try_small(void *arg)
{
    const Trial *x = arg;
    nmoved += run_small(x);
    compare_bits(x);
}

static void try(void (*run)(void *), Trial x)
{
    x.a = arena_new(&ctx);
    CHECK(x.a);
    if (!EXPECT(!ctx_try(&ctx, run, &x)))
        printf("  %s %s %s: %s\n", x.preset, x.mesh, x.recompute, ctx.message);
    arena_free(x.a);
}

int main(void)
{
    static const char *const presets[] = {"gpt2", "llama3-1b"}, *const buckets[] = {"off", "block"};
    static const char *const meshes[] = {"fsdp=2,tp=2", "dp=2,fsdp=2", "fsdp=4"};
    static const char *const recompute[] = {"none", "full"};
    int count = 0;
    par_set_threads(1);                         /* all is small */
    const int step = getenv("TN_LONG") ? 1 : 5; /* has no factor in common with what varies */
    for (int i = 0; i < 24; i += step, count++)
        try(try_small, (Trial){.preset = presets[i % 2],
                               .mesh = meshes[i / 2 % 3],
                               .recompute = recompute[i / 6 % 2],
                               .bucket = buckets[i / 12],
                               .batch = 8,
                               .seq = 4,
                               .accumulate = 1 + i / 3 % 2,
                               .small = true});
    printf("note: test_overlap: of %d small models %d have collectives beside computing\n", count,
           nmoved);
    EXPECT(nmoved > count / 2);
    Trial large = {
        .preset = "llama3-8b", .recompute = "selective", .bucket = "block", .accumulate = 1};
    large.mesh = "fsdp=16,tp=8", large.batch = 32, large.seq = 8192;
    if (!getenv("TN_QUICK")) /* minutes under sanitizers */
        try(run_8b, large);
    large.mesh = "fsdp=128", large.batch = 128, large.seq = 4096;
    if (!getenv("TN_QUICK"))
        try(run_8b, large);
    ctx_end(&ctx);
    return test_report();
}
