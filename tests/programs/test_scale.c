/* Graphs in which one value has many readers, or stands in a long chain: reading, verifying, each
 * pass and planning stay linear. Of 20,000 nodes each takes hundredths of a second; what walks the
 * readers of a value for each of them took 5 s. Models of many layers are planned, and regions of
 * them listed, in a few times what their passes take. Each bound is a ratio of processor seconds of
 * the same process, as processors differ, and fails where the least of three tries passes it, as
 * others on the machine lengthen some. */
#include <math.h>

#include "../../src/model/model.h"
#include "../../src/chunk/chunk.h"
#include "../../src/pass/pass.h"
#include "../../src/place/place.h"
#include "../../src/plan/plan.h"
#include "../shared/test.h"

enum { MOST_STEPS = 16, TRIES = 3 };

/* Eight times the nodes take 8 times the seconds where all is linear, up to 20 where caches no
 * longer hold them, and 64 where something is quadratic. Less than SHORT_SEC is not judged. */
static const double MOST_GROWTH = 32, SHORT_SEC = 0.3, MOST_TIMES = 10;

/* A kind of graph and what is done to it, each timed: "making", "reading", "planning" or passes. */
typedef struct Row {
    const char *name;
    void (*make)(Build *b, int count, Value **v);
    const char *backend;
    int64_t accumulate;
    const char *steps[MOST_STEPS];
} Row;

typedef struct Work {
    const Row *row;
    Arena *a;
    Graph *g;
    const char *step;
    PassOptions o;
    int count;
} Work;

/* ---- graphs ---- */

static Value *square(Build *b, int64_t rows)
{
    Type t = type_make(F32, 2, (int64_t[]){rows, 4});
    Value *x = graph_input(b->g, "x", t, ROLE_PARAM, "x");
    return emit1(b, "mul", IN(x, x), NOATTRS);
}

static void finish(Build *b, int count, Value **v)
{
    Value *all = emit1(b, "cat", count, v, NOATTRS);
    b->phase = LOSS;
    graph_output(b->g, emit1(b, "sum", IN(all), NOATTRS), ROLE_LOSS, NULL);
}

/* Slices of one value. */
static void slices(Build *b, int count, Value **v)
{
    Value *y = square(b, count);
    for (int i = 0; i < count; i++)
        v[i] = emit1(b, "slice", IN(y), ATTRS(A_INT("start", i), A_INT("end", i + 1)));
    finish(b, count, v);
}

/* Ops with another attribute each. */
static void attributes(Build *b, int count, Value **v)
{
    Value *y = square(b, 4);
    for (int i = 0; i < count; i++)
        v[i] = emit1(b, "constant_pad_nd", IN(y),
                     ATTRS(A_INTS("pad", 2, ((int64_t[]){0, 1})), A_FLOAT("value", i)));
    finish(b, count, v);
}

/* Equal nodes of which none may go, and copies of one value. */
static void obeyed(Build *b, int count, Value **v)
{
    Value *y = square(b, 4);
    for (int i = 0; i < count; i++) {
        b->policy = i % 2 ? MUST_SAVE : POLICY_NONE;
        b->origin = i % 2 ? NULL : arena_printf(b->g->a, "origin%d", i);
        v[i] = emit1(b, "tanh", IN(y), NOATTRS);
    }
    b->policy = POLICY_NONE;
    b->origin = NULL;
    finish(b, count, v);
}

/* Views of views. */
static void chain(Build *b, int count, Value **v)
{
    int64_t n = 32, half[] = {4, 8};
    v[0] = emit1(b, "t", IN(square(b, 8)), NOATTRS);
    for (int i = 1; i < count; i++)
        v[0] = emit1(b, "view", 1, v,
                     i % 2 ? ATTRS(A_INTS("size", 1, &n)) : ATTRS(A_INTS("size", 2, half)));
    finish(b, 1, v);
}

/* Activations that the backward reads, each of its own. */
static void activations(Build *b, int count, Value **v)
{
    v[0] = square(b, 4);
    for (int i = 1; i < count; i++)
        v[0] = emit1(b, "tanh", 1, v, NOATTRS);
    finish(b, 1, v);
}

/* A weight that a quarter of the nodes read; of rows of a batch. */
static void weight(Build *b, int count, Value **v)
{
    Type t = type_make(F32, 2, (int64_t[]){4, 4});
    Value *w = graph_input(b->g, "w", t, ROLE_PARAM, "w");
    v[0] = graph_input(b->g, "x", t, ROLE_BATCH, NULL);
    for (int i = 0; i < count / 4; i++)
        v[0] = emit1(b, "mm", IN(v[0], w), NOATTRS);
    b->phase = LOSS;
    graph_output(b->g, emit1(b, "mean", 1, v, NOATTRS), ROLE_LOSS, NULL);
}

/* The same by elements: the weight's gradient is a chain of sums, and what the backward computes of
 * the weight alone stands before the loop, which has a port for each. */
static void elements(Build *b, int count, Value **v, const char *op)
{
    Type t = type_make(F32, 2, (int64_t[]){4, 4});
    Value *w = graph_input(b->g, "w", t, ROLE_PARAM, "w");
    v[0] = graph_input(b->g, "x", t, ROLE_BATCH, NULL);
    for (int i = 0; i < count / 4; i++)
        v[0] = emit1(b, "mul", IN(v[0], op ? emit1(b, op, IN(w), NOATTRS) : w), NOATTRS);
    b->phase = LOSS;
    graph_output(b->g, emit1(b, "mean", 1, v, NOATTRS), ROLE_LOSS, NULL);
}

static void factor(Build *b, int count, Value **v)
{
    elements(b, count, v, NULL);
}

static void tanh_of_weight(Build *b, int count, Value **v)
{
    elements(b, count, v, "tanh");
}

/* ---- what is timed ---- */

static void make(Work *w)
{
    Build b = {.g = w->g = graph_new(w->a, "scale"), .scope = ""};
    w->row->make(&b, w->count, NEWN(w->a, Value *, w->count));
}

static void read_text(Work *w)
{
    Buf b = {.a = w->a};
    graph_print(&b, w->g);
    w->g = graph_parse(w->a, b.text, "scale.tn");
    graph_verify(w->g);
}

static void run_step(void *arg)
{
    Work *w = arg;
    if (!strcmp(w->step, "making"))
        make(w);
    else if (!strcmp(w->step, "reading"))
        read_text(w);
    else if (!strcmp(w->step, "planning"))
        plan_make(w->a, w->g, NULL);
    else
        passes_run(w->g, w->step, &w->o, NULL, NULL);
}

/* Does a row's steps to a graph of `count` nodes; least[i] becomes the least seconds of step i. */
static void time_steps(const Row *row, int count, double *least)
{
    static const PolicyRule all = {OFFLOAD, "*::*"};
    Ctx ctx = {0};
    Work w = {.row = row, .a = arena_new(&ctx), .o = pass_defaults(), .count = count};
    CHECK(w.a);
    w.o.accumulate = row->accumulate;
    w.o.backend = row->backend;
    w.o.rules = &all;
    w.o.nrules = !strcmp(row->backend, "emulated");
    for (int i = 0; row->steps[i]; i++) {
        w.step = row->steps[i];
        double start = cpu_sec();
        if (!EXPECT(!ctx_try(&ctx, run_step, &w)))
            printf("  %s, %s: %s\n", row->name, w.step, ctx.message);
        least[i] = fmin(least[i], cpu_sec() - start);
    }
    arena_free(w.a);
    ctx_end(&ctx);
}

static bool grows_little(double few, double many)
{
    return many < SHORT_SEC || many < MOST_GROWTH * few;
}

static void time_row(const Row *row)
{
    const int count = getenv("TN_QUICK") ? 1000 : 20000;
    double few[MOST_STEPS], many[MOST_STEPS];
    for (int i = 0; i < MOST_STEPS; i++)
        few[i] = many[i] = INFINITY;
    bool good = false;
    for (int try = 0; try < TRIES && !good; try++) {
        time_steps(row, count / 8, few);
        time_steps(row, count, many);
        good = true;
        for (int i = 0; row->steps[i]; i++)
            good &= grows_little(few[i], many[i]);
    }
    for (int i = 0; row->steps[i]; i++) {
        if (!EXPECT(grows_little(few[i], many[i])))
            printf("  %s, %s: eight times the nodes take %.1f times the seconds\n", row->name,
                   row->steps[i], many[i] / few[i]);
        printf("note: %s, %s: %.3f s, of an eighth %.3f s\n", row->name, row->steps[i], many[i],
               few[i]);
    }
}

/* clang-format off */
#define ALL_STEPS                                                                                  \
    {"making", "reading", "cse", "dce", "grad", "precision", "remat", "fuse", "unfuse",            \
     "canonicalize,cse,dce", "remat", "fuse", "unfuse", "planning"}
/* clang-format on */

static const Row rows[] = {
    {"slices", slices, "cpu", 1, ALL_STEPS},
    {"attributes", attributes, "cpu", 1, ALL_STEPS},
    {"obeyed", obeyed, "cpu", 1, ALL_STEPS},
    {"chain", chain, "cpu", 1, ALL_STEPS},
    {"activations", activations, "emulated", 1, {"making", "grad,remat", "offload"}},
    {"a weight", weight, "cpu", 2, {"making", "grad", "accumulate"}},
    {"a weight in a loop", weight, "cpu", 2, {"making", "grad,accumulate,cse,dce", "offload"}},
    {"a factor", factor, "cpu", 2, {"making", "grad,accumulate,canonicalize,cse,dce", "fuse"}},
    {"a factor's tanh",
     tanh_of_weight,
     "cpu",
     2,
     {"making", "grad,accumulate,canonicalize,cse,dce", "fuse"}},
};

/* ---- models ---- */

typedef struct Layers {
    Arena *a;
    const char *mesh, *recompute;
    int64_t count, width, intermediate, rows, tokens;
    double passes, planning; /* processor seconds */
    int64_t steps, waste;    /* of placement */
} Layers;

static Graph *make_layers(const Layers *x, const PassOptions *o, const char *passes)
{
    ModelConfig c = *config_preset("llama3-8b");
    ModelOptions none = {0};
    c.nlayer = x->count;
    c.hidden = x->width;
    c.nhead = MAX(x->width / 128, 4);
    c.nkv = MIN(c.nhead, 8);
    c.head_dim = x->width / c.nhead;
    c.intermediate = x->intermediate;
    Graph *g = model_graph(x->a, &c, x->rows, x->tokens, &none);
    passes_run(g, passes, o, NULL, NULL);
    return g;
}

static void plan_layers(void *arg)
{
    Layers *x = arg;
    PassOptions o = pass_defaults();
    o.dtype = BF16;
    o.mesh = x->mesh;
    o.recompute = x->recompute;
    o.machine = "h100";
    double start = cpu_sec();
    Graph *g = make_layers(x, &o, "default");
    PlanFor to = {.machine = machine_get(x->a, "h100", 1)};
    double middle = cpu_sec();
    plan_ordered(x->a, g, &to);
    x->passes = middle - start;
    x->planning = cpu_sec() - middle;
}

/* Buffers of the plan of a model in the order of its nodes, placed by greedy orders alone. */
static void place_layers(void *arg)
{
    Layers *x = arg;
    PassOptions o = pass_defaults();
    o.dtype = BF16;
    o.mesh = x->mesh;
    o.recompute = x->recompute;
    o.machine = "h100";
    Graph *g = make_layers(x, &o, "default");
    PlanFor to = {.device = device_at(DEVICE_cpu), .machine = machine_get(x->a, "h100", 1)};
    const Plan *p = plan_measured(x->a, g, &to);
    PlaceBuf *b = NEWN(x->a, PlaceBuf, p->nstorage);
    int n = 0;
    for (int i = 0; i < p->nstorage; i++)
        if (!p->storage[i].persistent)
            b[n++] = (PlaceBuf){p->storage[i].start, p->storage[i].end, p->storage[i].nbytes, 0};
    PlaceResult r = place(x->a, b, n, 0, 0);
    x->steps = r.steps;
    x->waste = r.peak - r.bound;
}

static void list_candidates(void *arg)
{
    Layers *x = arg;
    PassOptions o = pass_defaults();
    ChunkReport r = {.a = x->a};
    double start = cpu_sec();
    Graph *g = make_layers(x, &o, "grad,optimizer,cse,dce");
    double middle = cpu_sec();
    pass_target(&o, x->a);
    chunk_find(g, x->a, &o, &r);
    x->passes = middle - start;
    x->planning = cpu_sec() - middle;
}

/* Planning and passes of a model of many layers. Where fused nodes were tried apart and placement
 * searched, planning took thirty times what the passes take; and so the list of candidates, where
 * regions that go from layer to layer were filled for each. */
static const struct {
    void (*run)(void *arg);
    const char *title;
    Layers of;
} models[] = {
    {plan_layers,
     "planning",
     {.mesh = "fsdp=64,tp=8",
      .recompute = "none",
      .count = 126,
      .width = 16384,
      .intermediate = 53248,
      .rows = 64,
      .tokens = 4096}},
    {plan_layers,
     "planning",
     {.mesh = "fsdp=64",
      .recompute = "full",
      .count = 128,
      .width = 4096,
      .intermediate = 14336,
      .rows = 64,
      .tokens = 4096}},
    {list_candidates,
     "listing",
     {.count = 120, .width = 128, .intermediate = 256, .rows = 4, .tokens = 64}},
};

static void test_models(void)
{
    for (int i = 0; i < LEN(models); i++) {
        Layers x = models[i].of;
        for (int try = 0; try < TRIES && (!try || x.planning >= MOST_TIMES * x.passes); try++) {
            Ctx ctx = {0};
            x.a = arena_new(&ctx);
            CHECK(x.a);
            x.count =
                getenv("TN_QUICK") ? 24 : x.count; /* of fewer, what a plan takes at least shows */
            if (!EXPECT(!ctx_try(&ctx, models[i].run, &x)))
                printf("  %s: %s\n", models[i].title, ctx.message);
            arena_free(x.a);
            ctx_end(&ctx);
        }
        if (!EXPECT(x.planning < MOST_TIMES * x.passes))
            printf("  %s %lld layers: %.1f times the passes\n", models[i].title, (long long)x.count,
                   x.planning / x.passes);
        printf("note: %lld layers: passes %.3f s, %s %.3f s\n", (long long)x.count, x.passes,
               models[i].title, x.planning);
    }
}

/* Makes a region in each layer: seconds go to x->planning. */
static void make_regions(void *arg)
{
    Layers *x = arg;
    PassOptions o = pass_defaults();
    ChunkReport r = {.a = x->a};
    Graph *g = make_layers(x, &o, "grad,optimizer,cse,dce");
    pass_target(&o, x->a);
    chunk_find(g, x->a, &o, &r);
    ChunkRegion *region = NEWN(x->a, ChunkRegion, r.ncandidate);
    for (int i = 0, group = -1; i < r.ncandidate; i++) {
        const ChunkCandidate *c = &r.candidate[i];
        bool members = i + 1 < r.ncandidate && r.candidate[i + 1].group == c->group;
        group = group < 0 && members && !c->why ? c->group : group;
        region[o.nchunk_region] = c->region;
        region[o.nchunk_region].slices = 2;
        o.nchunk_region += c->group == group;
    }
    o.chunk_region = region;
    double start = cpu_sec();
    passes_run(g, "chunk", &o, NULL, NULL);
    x->planning = cpu_sec() - start;
    x->passes = 0;
    for (const Node *n = g->first; n; n = n->next)
        x->passes += n->op->region == LOOP;
}

static const Layers regions = {
    .count = 40, .width = 128, .intermediate = 512, .rows = 4, .tokens = 64};

static void time_regions(int64_t layers, double *least)
{
    Ctx ctx = {0};
    Layers x = regions;
    x.a = arena_new(&ctx);
    CHECK(x.a);
    x.count = layers;
    if (!EXPECT(!ctx_try(&ctx, make_regions, &x)))
        printf("  regions: %s\n", ctx.message);
    EXPECT(x.passes >= (double)x.count); /* loops */
    *least = fmin(*least, x.planning);
    arena_free(x.a);
    ctx_end(&ctx);
}

/* A region is found and made in what is around it: where each took walks of the whole graph, five
 * times the layers took 25 times as long. */
static void test_regions(void)
{
    double few = INFINITY, many = INFINITY;
    for (int try = 0; try < TRIES && (!try || many >= 12 * few); try++) {
        time_regions(regions.count, &few);
        time_regions(5 * regions.count, &many);
    }
    printf("note: regions of %lld layers made in %.3f s, of five times as many in %.3f s\n",
           (long long)regions.count, few, many);
    EXPECT(many < 12 * few);
}

/* Where a plan wastes bytes, all greedy orders are tried. Twice the layers take little more than
 * twice the steps; they took four times as many where each buffer visited all alive with it. */
static void test_waste(void)
{
    int64_t steps[2] = {0};
    for (int k = 0; k < 2; k++) {
        Ctx ctx = {0};
        Layers x = {.mesh = "fsdp=16,tp=8",
                    .recompute = "full",
                    .count = 40 << k,
                    .width = 8192,
                    .intermediate = 28672,
                    .rows = 64,
                    .tokens = 4096};
        x.a = arena_new(&ctx);
        CHECK(x.a);
        EXPECT(!ctx_try(&ctx, place_layers, &x));
        EXPECT(x.waste > 0); /* else take another model */
        steps[k] = x.steps;
        arena_free(x.a);
        ctx_end(&ctx);
    }
    printf("note: placement of 40 layers: %.1f million steps, of 80: %.1f\n",
           (double)steps[0] / 1e6, (double)steps[1] / 1e6);
    EXPECT(steps[1] < 3 * steps[0]);
}

int main(void)
{
    for (int i = 0; i < LEN(rows); i++)
        time_row(&rows[i]);
    test_models();
    test_waste();
    if (!getenv("TN_QUICK"))
        test_regions();
    return test_report();
}
