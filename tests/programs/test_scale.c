/* Graphs in which one value has many readers, or stands in a long chain: reading, verifying, each
 * pass and planning stay linear. Of 20,000 nodes each takes hundredths of a second; what walks the
 * readers of a value for each of them took 5 s. Processor time, which others on the machine do not
 * lengthen, against a limit that is far from both. Models of many layers are planned, and regions
 * of them listed, in a few times what their passes take. */
#include "../../src/model/model.h"
#include "../../src/chunk/chunk.h"
#include "../../src/pass/pass.h"
#include "../../src/place/place.h"
#include "../../src/plan/plan.h"
#include "../shared/test.h"

static const double LIMIT_SEC = 1.5, MOST_TIMES = 10;

typedef struct Work {
    Ctx *ctx;
    Arena *a;
    Graph *g;
    const char *name, *pass;
    void (*make)(Build *b, int count, Value **v);
    PassOptions o;
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

static void run_pass(void *arg)
{
    const Work *w = arg;
    passes_run(w->g, w->pass, &w->o, NULL, NULL);
}

static void read_text(void *arg)
{
    Work *w = arg;
    Buf b = {.a = w->a};
    graph_print(&b, w->g);
    w->g = graph_parse(w->a, b.text, "scale.tn");
    graph_verify(w->g);
}

static void make_plan(void *arg)
{
    const Work *w = arg;
    plan_make(w->a, w->g, NULL);
}

static void timed(Work *w, const char *what, void (*fn)(void *))
{
    double start = cpu_sec();
    bool good = !ctx_try(w->ctx, fn, w);
    double sec = cpu_sec() - start;
    if (!EXPECT(good))
        printf("  %s, %s: %s\n", w->name, what, w->ctx->message);
    if (!EXPECT(sec < LIMIT_SEC))
        printf("  %s, %s: %.2f s\n", w->name, what, sec);
    printf("note: %s, %s: %.3f s\n", w->name, what, sec);
}

static const struct {
    const char *name;
    void (*make)(Build *b, int count, Value **v);
} shapes[] = {{"slices", slices}, {"attributes", attributes}, {"obeyed", obeyed}, {"chain", chain}};

static void make(void *arg)
{
    Work *w = arg;
    int count = getenv("TN_QUICK") ? 1000 : 20000;
    Build b = {.g = w->g = graph_new(w->a, "scale"), .scope = ""};
    w->make(&b, count, NEWN(w->a, Value *, count));
}

/* A row for each pass that is timed, with what the others are run with before. */
static const struct {
    const char *name;
    void (*make)(Build *b, int count, Value **v);
    const char *first, *pass;
    const char *backend;
    int64_t accumulate;
} options[] = {
    {"activations", activations, "grad,remat", "offload", "emulated", 1},
    {"a weight", weight, "grad", "accumulate", "cpu", 2},
    {"a weight in a loop", weight, "grad,accumulate,cse,dce", "offload", "cpu", 2},
    {"a factor", factor, "grad,accumulate,canonicalize,cse,dce", "fuse", "cpu", 2},
    {"a factor's tanh", tanh_of_weight, "grad,accumulate,canonicalize,cse,dce", "fuse", "cpu", 2}};

static void test_options(void)
{
    static const PolicyRule all = {OFFLOAD, "*::*"};
    for (int i = 0; i < LEN(options); i++) {
        Ctx ctx = {0};
        Work w = {.ctx = &ctx, .name = options[i].name, .make = options[i].make};
        w.a = arena_new(&ctx);
        w.o = pass_defaults();
        w.o.accumulate = options[i].accumulate;
        w.o.backend = options[i].backend;
        w.o.rules = &all;
        w.o.nrules = !strcmp(options[i].backend, "emulated");
        timed(&w, "making", make);
        w.pass = options[i].first;
        timed(&w, w.pass, run_pass);
        w.pass = options[i].pass;
        timed(&w, w.pass, run_pass);
        arena_free(w.a);
        ctx_end(&ctx);
    }
}

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
        Ctx ctx = {0};
        Layers x = models[i].of;
        x.a = arena_new(&ctx);
        CHECK(x.a);
        x.count =
            getenv("TN_QUICK") ? 24 : x.count; /* of fewer, what a plan takes at least shows */
        if (!EXPECT(!ctx_try(&ctx, models[i].run, &x)))
            printf("  %s: %s\n", models[i].title, ctx.message);
        if (!EXPECT(x.planning < MOST_TIMES * x.passes))
            printf("  %s %lld layers: %.1f times the passes\n", models[i].title, (long long)x.count,
                   x.planning / x.passes);
        printf("note: %lld layers: passes %.3f s, %s %.3f s\n", (long long)x.count, x.passes,
               models[i].title, x.planning);
        arena_free(x.a);
        ctx_end(&ctx);
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

/* A region is found and made in what is around it: where each took walks of the whole graph, five
 * times the layers took 25 times as long. */
static void test_regions(void)
{
    double sec[2] = {0};
    for (int i = 0; i < 2; i++) {
        Ctx ctx = {0};
        Layers x = regions;
        x.a = arena_new(&ctx);
        CHECK(x.a);
        x.count *= i ? 5 : 1;
        if (!EXPECT(!ctx_try(&ctx, make_regions, &x)))
            printf("  regions: %s\n", ctx.message);
        EXPECT(x.passes >= (double)x.count); /* loops */
        printf("note: %lld layers: %g loops, made in %.3f s\n", (long long)x.count, x.passes,
               x.planning);
        sec[i] = x.planning;
        arena_free(x.a);
        ctx_end(&ctx);
    }
    if (!EXPECT(sec[1] < 12 * sec[0]))
        printf("  regions of five times the layers: %.1f times the seconds\n", sec[1] / sec[0]);
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
    test_options();
    test_models();
    test_waste();
    if (!getenv("TN_QUICK"))
        test_regions();
    static const char *const passes[] = {"cse",   "dce",  "grad",   "precision",
                                         "remat", "fuse", "unfuse", "canonicalize,cse,dce",
                                         "remat", "fuse", "unfuse"};
    for (int i = 0; i < LEN(shapes); i++) {
        Ctx ctx = {0};
        Work w = {
            .ctx = &ctx, .a = arena_new(&ctx), .name = shapes[i].name, .make = shapes[i].make};
        CHECK(w.a);
        w.o = pass_defaults();
        timed(&w, "making", make);
        timed(&w, "reading and verifying", read_text);
        for (int k = 0; k < LEN(passes); k++) {
            w.pass = passes[k];
            timed(&w, w.pass, run_pass);
        }
        timed(&w, "planning", make_plan);
        arena_free(w.a);
        ctx_end(&ctx);
    }
    return test_report();
}
