/* Ranks that run: every rank in a thread of its own, with comm between them, to the bit: against
 * the lockstep of all ranks (ranks_plan.c), with messages delayed at random, and training on n
 * ranks that have copies (dp=n) or parts (fsdp=n) against one rank with n microbatches. Eight ranks
 * whose forms are chosen at once (--shard auto) train to one rank's losses and norms by AdamW, and
 * to its weights by SGD, within 1e-5. Without TN_LONG some of them, most for few steps; with
 * TN_QUICK one of each kind.
 * `test_ranks_run COUNT [FIRST]` runs so many random graphs alone, `test_ranks_run solved [MODEL]`
 * the models by --shard auto alone. */
#include "../../src/model/model.h"
#include "../shared/graphs.h"
#include "../shared/interp.h"
#include "../shared/race.h"
#include "../shared/ranks_run.h"
#include "../shared/spmd_made.h"
#include "../shared/test.h"

#include <math.h>

enum {
    STEPS = 20,
    FEW = 2,
    SEQ = 12,
    NGRAPH = 30,
    QUICK = 6,
    LONG = 40,
    MOST_RANKS = 8,
    NGATHER = 8,
    SHORT = 2
};

static const char *const models[] = {"gpt2-tiny", "llama-tiny"};

/* A training step of a model. */
typedef struct Job {
    const char *model, *mesh;
    int64_t rows, accumulate;
    double dropout;
    const char *reshard, *passes; /* NULL: the default */
    int steps;
    const char *optimizer; /* NULL: the default */
    double lr;             /* 0: 1e-2 */
    bool solved;           /* forms by --shard auto */
    bool divides;          /* the vocabulary is one that no mesh pads */
    /* what is made of it */
    Arena *a;
    ModelConfig config;
    Graph *whole; /* of one rank */
    Ranks ranks;
    Tensor **in[STEPS], **out[STEPS]; /* by step, rank, and input or output */
} Job;

static PassOptions options(const Job *j)
{
    PassOptions o = pass_defaults();
    o.accumulate = j->accumulate;
    o.clip = 1;
    o.weight_decay = 0.1;
    if (j->reshard)
        o.reshard = j->reshard;
    if (j->optimizer)
        o.optimizer = j->optimizer;
    return o;
}

static Graph *compile(const Job *j, const PassOptions *o)
{
    ModelOptions m = {.dropout = j->dropout};
    Graph *g = model_graph(j->a, &j->config, j->rows, SEQ, &m);
    passes_run(g, j->passes ? j->passes : "default", o, NULL, NULL);
    return g;
}

/* The graph of one rank, and those of all. */
static void make_graphs(Job *j)
{
    static const char *const rules[] = {"auto"};
    PassOptions o = options(j);
    j->config = config_read(j->a, arena_printf(j->a, "tests/ref/%s/config.json", j->model));
    if (j->divides)
        config_resize(j->a, &j->config, (j->config.vocab + 7) / 8 * 8);
    j->whole = compile(j, &o);
    o.mesh = j->mesh;
    if (j->solved)
        o.shardings = (Globs){(const char **)rules, LEN(rules)};
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, j->mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (o.rank = 0; o.rank < n; o.rank++)
        g[o.rank] = compile(j, &o);
    j->ranks = ranks_of(j->a, n, g);
}

/* ---- inputs ---- */

static void fill_param(const Job *j, const Port *p, Tensor *t)
{
    int count;
    const ModelParam *list = model_params(j->a, &j->config, &count);
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i].name, p->name))
            model_init(&list[i], 5, F32, t->data);
}

/* Labels are what follows, a few of them ignored. */
static void fill_batch(const Job *j, const Port *p, Tensor *t, int step)
{
    bool labels = !strcmp(p->v->name, "labels");
    int64_t *x = (int64_t *)(void *)t->data;
    for (int64_t i = 0; i < tensor_nelem(t); i++) {
        uint64_t at = (uint64_t)(i + labels);
        x[i] = (int64_t)(random_uniform(3, 0, (uint32_t)step, at) * (float)j->config.vocab);
        if (labels && random_uniform(3, 1, (uint32_t)step, at) < 0.2F)
            x[i] = -100;
    }
}

static Tensor input(const Job *j, const Port *p, int step)
{
    Tensor t = tensor_new(j->a, &p->v->type, 0);
    if (p->role == ROLE_PARAM)
        fill_param(j, p, &t);
    else if (p->role == ROLE_BATCH)
        fill_batch(j, p, &t, step);
    else if (p->role == ROLE_STEP)
        tensor_set(&t, 0, step + 1);
    else if (p->role == ROLE_SCALAR)
        tensor_set(&t, 0, j->lr > 0 ? j->lr : 1e-2);
    else if (p->role == ROLE_SEED)
        *(int64_t *)(void *)t.data = 7;
    return t;
}

static Tensor *inputs(const Job *j, int step)
{
    Tensor *in = NEWN(j->a, Tensor, j->whole->nin);
    for (int i = 0; i < j->whole->nin; i++)
        in[i] = input(j, &j->whole->in[i], step);
    return in;
}

/* ---- against the lockstep ---- */

static void run_lockstep(Job *j)
{
    Fleet *fleet = fleet_make(&j->ranks, true);
    for (int s = 0; s < j->steps; s++) {
        j->in[s] = ranks_inputs(&j->ranks, j->whole, inputs(j, s));
        fleet_write(fleet, j->in[s], s == 0);
        fleet_run(fleet);
        j->out[s] = fleet_read(fleet, j->a);
    }
}

static void compare_rank(Arena *a, Comm *c, void *arg)
{
    const Job *j = arg;
    int rank = comm_rank(c);
    const Graph *g = j->ranks.g[rank];
    Program *x = ranks_program(a, g, NULL, c, true);
    Tensor *out = ranks_outputs(a, g);
    for (int s = 0; s < j->steps; s++) {
        ranks_write(x, j->in[s][rank], s == 0);
        ranks_step(x);
        ranks_read(x, out);
        for (int k = 0; k < g->nout; k++)
            if (!tensor_same_bits(&out[k], &j->out[s][rank][k]))
                fail(arena_ctx(a), TN_FAIL, "step %d, output %%%s: other bits than in lockstep", s,
                     g->out[k].v->name);
    }
    if (x->not_finite)
        fail(arena_ctx(a), TN_FAIL, "%%%s is not finite", x->not_finite->out[0]->name);
}

/* No more memory than was planned, and all of that. */
static void measure_rank(Arena *a, Comm *c, void *arg)
{
    static const uint8_t patterns[] = {0x5a, 0xa5};
    const Job *j = arg;
    int rank = comm_rank(c);
    Program *x = ranks_program(a, j->ranks.g[rank], NULL, c, false);
    int64_t high = 0, peak = x->plan->space[SPACE_MAIN].peak;
    for (int i = 0; i < LEN(patterns); i++) {
        program_fill(x, patterns[i]);
        ranks_write(x, j->in[0][rank], true);
        ranks_step(x);
        high = MAX(high, program_high(x, SPACE_MAIN, patterns[i]));
    }
    if (high != peak)
        fail(arena_ctx(a), TN_FAIL, "planned are %lld bytes, measured %lld", (long long)peak,
             (long long)high);
}

static void test_model(void *arg)
{
    static const CommOptions delays[] = {{.delay = 0}, {.delay = 300, .seed = 1}};
    Job *j = arg;
    make_graphs(j);
    run_lockstep(j);
    for (int i = j->steps < STEPS; i < LEN(delays); i++) {
        const char *why = ranks_threads(j->a, j->ranks.n, &delays[i], compare_rank, j);
        if (!EXPECT(!why))
            printf("  %s on %s, accumulate %lld: %s\n", j->model, j->mesh, (long long)j->accumulate,
                   why);
    }
    const char *why =
        j->steps == STEPS ? ranks_threads(j->a, j->ranks.n, &delays[0], measure_rank, j) : NULL;
    if (!EXPECT(!why))
        printf("  %s on %s: %s\n", j->model, j->mesh, why);
}

/* ---- against one rank with a microbatch for each ---- */

static void keep_rank(Arena *a, Comm *c, void *arg)
{
    const Job *j = arg;
    int rank = comm_rank(c);
    Program *x = ranks_program(a, j->ranks.g[rank], NULL, c, false);
    for (int s = 0; s < j->steps; s++) {
        ranks_write(x, j->in[s][rank], s == 0);
        ranks_step(x);
        ranks_read(x, j->out[s][rank]);
    }
}

/* What the ranks have made, put together. */
static void run_ranks(Job *j)
{
    CommOptions none = {0};
    for (int s = 0; s < j->steps; s++) {
        j->in[s] = ranks_inputs(&j->ranks, j->whole, inputs(j, s));
        j->out[s] = NEWN(j->a, Tensor *, j->ranks.n);
        for (int i = 0; i < j->ranks.n; i++)
            j->out[s][i] = ranks_outputs(j->a, j->ranks.g[i]);
    }
    const char *why = ranks_threads(j->a, j->ranks.n, &none, keep_rank, j);
    if (why)
        fail(arena_ctx(j->a), TN_FAIL, "%s", why);
}

/* How far x is off of y, of y's largest magnitude. */
static double distance(const Tensor *x, const Tensor *y)
{
    double most = interp_largest(y), far = 0;
    for (int64_t e = 0; e < tensor_nelem(y); e++)
        far = fmax(far, fabs(tensor_get(x, e) - tensor_get(y, e)));
    return far > 0 ? far / most : 0;
}

/* Rounding turns an update of AdamW around where a gradient is almost zero: of its steps losses and
 * norms are compared. */
static const char *why_far(const Job *j, const Port *p, const Tensor *got, const Tensor *want)
{
    const double tolerance = 1e-5;
    double far = distance(got, want);
    bool asked = j->optimizer || p->role != ROLE_NEW;
    if (!asked || far <= tolerance)
        return NULL;
    return arena_printf(j->a, "output %%%s is %g off of one rank's", p->v->name, far);
}

static void compare_step(Job *j, int step, const Tensor *want)
{
    Tensor *got = NEWN(j->a, Tensor, j->whole->nout);
    const char *why = ranks_together(&j->ranks, j->whole, j->out[step], got);
    for (int k = 0; k < j->whole->nout && !why; k++) {
        const Port *p = &j->whole->out[k];
        if (j->solved)
            why = why_far(j, p, &got[k], &want[k]);
        else if (!tensor_same_bits(&got[k], &want[k]))
            why = arena_printf(j->a, "output %%%s has other bits than with one rank", p->v->name);
    }
    if (why)
        fail(arena_ctx(j->a), TN_FAIL, "step %d: %s", step, why);
}

static void test_promise(void *arg)
{
    Job *j = arg;
    PassOptions o = options(j);
    j->divides = isa_level() < ISA_AVX512;
    make_graphs(j);
    run_ranks(j);
    if (!j->solved)
        o.accumulate = j->ranks.n;
    Graph *one = compile(j, &o);
    Program *x = program_make(j->a, plan_ordered(j->a, one, NULL), false, 0);
    for (int s = 0; s < j->steps; s++) {
        Tensor *want = ranks_outputs(j->a, one);
        ranks_write(x, inputs(j, s), s == 0);
        ranks_step(x);
        ranks_read(x, want);
        compare_step(j, s, want);
    }
}

static void try_job(Job j, void (*test)(void *))
{
    Ctx ctx = {0};
    j.a = arena_new(&ctx);
    CHECK(j.a);
    if (!EXPECT(!ctx_try(&ctx, test, &j)))
        printf("  %s on %s: %s\n", j.model, j.mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

/* ---- what is received ---- */

/* A forward, which gathers each parameter once (a tied one too: --reshard never), and what comes
 * out, the logits of SHORT tokens. */
typedef struct Gather {
    ModelConfig config;
    int64_t nbytes; /* of parameters that each rank receives */
    Arena *a;
    Graph *g[NGATHER];
} Gather;

static void make_gather(Gather *x)
{
    PassOptions o = pass_defaults();
    o.mesh = "fsdp=8";
    o.reshard = "never";
    for (o.rank = 0; o.rank < NGATHER; o.rank++) {
        x->g[o.rank] = model_logits(x->a, &x->config, NGATHER, SHORT);
        passes_run(x->g[o.rank], "forward", &o, NULL, NULL);
    }
}

static void count_received(Arena *a, Comm *c, void *arg)
{
    const Gather *x = arg;
    Program *p = ranks_program(a, x->g[comm_rank(c)], NULL, c, false);
    program_fill(p, 0); /* token 0 */
    for (int64_t i = 1; i <= 2; i++) {
        ranks_step(p);
        int64_t logits = (NGATHER - 1) * SHORT * x->config.vocab * 4;
        int64_t found = comm_count(c).nreceived, want = i * (x->nbytes + logits);
        if (found != want)
            fail(arena_ctx(a), TN_FAIL, "%lld bytes received by run %lld, expected %lld",
                 (long long)found, (long long)i, (long long)want);
    }
}

static void run_gather(void *arg)
{
    Gather *x = arg;
    make_gather(x);
    const char *why = ranks_threads(x->a, NGATHER, &(CommOptions){.delay = 0}, count_received, x);
    if (why)
        fail(arena_ctx(x->a), TN_FAIL, "%s", why);
}

static void try_gather(const ModelConfig *c, int64_t nbytes)
{
    Ctx ctx = {0};
    Gather x = {.config = *c, .nbytes = nbytes, .a = arena_new(&ctx)};
    CHECK(x.a);
    if (!EXPECT(!ctx_try(&ctx, run_gather, &x)))
        printf("  gathers of %lld features: %s\n", (long long)c->hidden, ctx.message);
    arena_free(x.a);
    ctx_end(&ctx);
}

/* The others' seven parts of eight of every parameter, whose first axis is padded. */
static void test_received(void)
{
    ModelConfig c = graphs_small("gpt2");
    /* embeddings, the last norm; of 2 layers: norms, attention, the feed-forward */
    int64_t layer = 4 * 64 + 64 * 192 + 192 + 64 * 64 + 64 + 64 * 128 + 128 + 128 * 64 + 64;
    int64_t count = 104 * 64 + 32 * 64 + 2 * 64 + 2 * layer;
    c.vocab = 97;
    try_gather(&c, count * 4 / 8 * 7);
    if (getenv("TN_LONG"))
        try_gather(config_preset("gpt2"), 435558144);
}

/* ---- random graphs ---- */

typedef struct Random {
    Trial t;
    Ranks ranks; /* with collectives joined and moved */
    const Device *device;
    Tensor **in, **want; /* by rank; want: of lockstep */
} Random;

static void compare_random(Arena *a, Comm *c, void *arg)
{
    const Random *r = arg;
    int rank = comm_rank(c);
    const Graph *g = r->ranks.g[rank];
    Program *x = ranks_program(a, g, r->device, c, true);
    Tensor *out = ranks_outputs(a, g);
    ranks_write(x, r->in[rank], true);
    ranks_step(x);
    ranks_read(x, out);
    for (int k = 0; k < g->nout; k++)
        if (!tensor_same_bits(&out[k], &r->want[rank][k]))
            fail(arena_ctx(a), TN_FAIL, "output %%%s: other bits than in lockstep",
                 g->out[k].v->name);
}

/* What lockstep gives with a call for each collective, none of them moved. */
static Tensor **run_whole(const Random *r, const Ranks *whole)
{
    Fleet *fleet = fleet_make_on(whole, r->device, true, false);
    fleet_write(fleet, r->in, true);
    fleet_run(fleet);
    return fleet_read(fleet, r->t.a);
}

/* On cpu, or with a memory of the device's own. */
static void try_random(void *arg)
{
    Random *r = arg;
    Trial *t = &r->t;
    int joined = 0;
    CommOptions o = {.delay = rng_below(&t->rng, 200), .seed = t->rng.seed};
    bool two = rng_chance(&t->rng, 0.3);
    trial_graph(t);
    do
        trial_mesh(t);
    while (mesh_nranks(t->mesh) > MOST_RANKS);
    trial_ask(t);
    if (!trial_ranks(t))
        return;
    Ranks whole = two ? ranks_staged(&t->ranks) : t->ranks;
    Ranks bucketed = ranks_bucketed(&t->ranks, t->rng.seed, &joined);
    r->ranks = two ? ranks_staged(&bucketed) : bucketed;
    r->device = device_at(two ? DEVICE_emulated : DEVICE_cpu);
    r->in = ranks_inputs(&t->ranks, t->g, t->in);
    r->want = run_whole(r, &whole);
    const char *why = ranks_threads(t->a, t->ranks.n, &o, compare_random, r);
    if (why)
        trial_fail(t, "on %s: %s", r->device->name, why);
    t->done->run++;
    t->done->staged += two;
    t->done->bucketed += joined > 0;
    t->done->three_axes += t->mesh->naxes > 2;
}

static void test_random(Library *lib, int first, int count)
{
    Counts done = {0};
    for (int i = first; i < first + count; i++) {
        Ctx ctx = {0};
        Random r = {.t = {.lib = lib, .rng = {(uint64_t)i, 0}, .done = &done}};
        r.t.a = r.t.sums.a = arena_new(&ctx);
        CHECK(r.t.a);
        if (ctx_try(&ctx, try_random, &r))
            trial_fail(&r.t, "%s", ctx.message);
        if (!EXPECT(!r.t.failure))
            printf("  random graph %d: %s\n", i, r.t.failure);
        arena_free(r.t.a);
        ctx_end(&ctx);
    }
    printf("note: %lld random graphs run by ranks, %lld of them on two memories, %lld with joined "
           "collectives, %lld on three axes\n",
           (long long)done.run, (long long)done.staged, (long long)done.bucketed,
           (long long)done.three_axes);
    EXPECT(done.run > 3 * count / 4 && done.staged > count / 10);
    EXPECT(done.run >= 1000 || count < LONG * NGRAPH);
    EXPECT(done.bucketed >= count / 20 && done.three_axes >= count / 20);
}

/* ---- what is run ---- */

/* How many of so many are run: all with TN_LONG. Every fifth comes next, and so all kinds soon. */
static int share_of(int all, int some)
{
    return getenv("TN_LONG") ? all : getenv("TN_QUICK") ? 2 : some;
}

static int steps_of(int number, int share)
{
    bool few = number % share || getenv("TN_QUICK");
    return few && !getenv("TN_LONG") ? FEW : STEPS;
}

static void test_models(void)
{
    static const char *const meshes[] = {"fsdp=8", "dp=2,fsdp=2,tp=2", "fsdp=4,tp=2"};
    int all = LEN(models) * LEN(meshes) * 2;
    for (int k = 0; k < share_of(all, 4); k++) {
        int i = 5 * k % all;
        try_job((Job){.model = models[i % LEN(models)],
                      .mesh = meshes[i / LEN(models) % LEN(meshes)],
                      .rows = 16,
                      .steps = steps_of(k, 4),
                      .accumulate = 1 + i / (LEN(models) * LEN(meshes)),
                      .dropout = 0.1},
                test_model);
    }
}

static void test_promises(void)
{
    static const char *const meshes[] = {"dp=2", "dp=4", "dp=8", "fsdp=2", "fsdp=4", "fsdp=8"};
    static const char *const passes[] = {"gradients", "default"};
    int all = LEN(models) * LEN(meshes) * LEN(passes);
    for (int k = 0; k < share_of(all, 7); k++) {
        int i = 5 * k % all;
        try_job((Job){.model = models[i % LEN(models)],
                      .mesh = meshes[i / LEN(models) % LEN(meshes)],
                      .rows = 16,
                      .steps = steps_of(k, 4),
                      .passes = passes[i / (LEN(models) * LEN(meshes))],
                      .accumulate = 1,
                      .dropout = 0.1},
                test_promise);
    }
}

/* Models on meshes of 8 ranks, trained by both optimizers; or the first by SGD alone. only: NULL,
 * or a model. */
static void test_solved(const char *only)
{
    static const struct {
        const char *model, *mesh;
    } ways[] = {{"llama-tiny", "fsdp=8"},      {"gpt2-tiny", "dp=2,fsdp=2,tp=2"},
                {"llama-tied", "fsdp=4,tp=2"}, {"mistral-tiny", "dp=2,tp=4"},
                {"qwen2-tiny", "tp=8"},        {"qwen3-tiny", "fsdp=4,tp=2"}};
    const bool all = getenv("TN_LONG");
    for (int i = 0; i < LEN(ways); i++)
        for (int sgd = 0; sgd < 2; sgd++) {
            bool asked = only ? !strcmp(only, ways[i].model) : all || (i == 0 && sgd);
            if (asked)
                try_job((Job){.model = ways[i].model,
                              .mesh = ways[i].mesh,
                              .rows = 16,
                              .steps = all ? STEPS : SHORT,
                              .accumulate = 1 + (all && i % 2 == 0),
                              .optimizer = sgd ? "sgd" : NULL,
                              .lr = sgd ? 0.1 : 1e-3,
                              .solved = true},
                        test_promise);
        }
}

int main(int argc, char **argv)
{

    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Library lib;
    int count = getenv("TN_LONG") ? LONG * NGRAPH : getenv("TN_QUICK") ? QUICK : NGRAPH;
    par_set_threads(1); /* all is small */
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();

    if (argc > 1 && !strcmp(argv[1], "solved")) {
        test_solved(argc > 2 ? argv[2] : NULL);
        return test_report();
    }
    test_random(&lib, argc > 2 ? atoi(argv[2]) : 0, argc > 1 ? atoi(argv[1]) : count);
    if (argc > 1)
        return test_report();
    test_received();
    arena_free(a);
    ctx_end(&ctx);
    test_promises();
    test_models();
    test_solved(NULL);
    return test_report();
}
