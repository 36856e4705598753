/* Models whose forms are chosen all at once (--shard auto), on meshes of 8 ranks: gradients and a
 * training step of all ranks in lockstep, in double, are those of one rank within 1e-12 of the
 * largest magnitude, and the nodes that the pass leaves take what the choice says. So are those
 * of choices within a limit of bytes, in microbatches with dropout, and with loops over slices.
 * Models of true size have their prices alone, without TN_LONG of four blocks.
 *
 * `test_shard_models FOLDER MESH` runs one model on one mesh. */
#include "../../src/model/model.h"
#include "../../src/spmd/spmd.h"
#include "../shared/chunk_seen.h"
#include "../shared/gen.h"
#include "../shared/interp.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>

enum { ROWS = 8, TOKENS = 8, FEW_LAYERS = 4 };

static const double TOLERANCE = 1e-12;

static const char *const folders[] = {"gpt2-tiny",    "llama-tiny", "llama-tied",
                                      "mistral-tiny", "qwen2-tiny", "qwen3-tiny"};
static const char *const meshes[] = {"fsdp=4,tp=2", "dp=2,fsdp=2,tp=2", "tp=8", "fsdp=8"};

typedef struct Job {
    Arena *a;
    const char *folder, *mesh, *passes;
    const struct Priced *priced; /* NULL: it is run */
    int accumulate;
    double dropout;
    const char *reshard;
    const char *chunk; /* NULL: nothing runs in slices */
    bool limited;      /* within half of the bytes above the least that the choice may need */
} Job;

static Tensor *draw_inputs(const Job *j, const Graph *g, int64_t vocabulary)
{
    Tensor *in = NEWN(j->a, Tensor, g->nin);
    Rng r = {1, 0};
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        in[i] = tensor_new(j->a, &p->v->type, 0);
        for (int64_t e = 0, n = tensor_nelem(&in[i]); e < n; e++)
            tensor_set(&in[i], e,
                       p->role == ROLE_BATCH    ? (double)rng_below(&r, vocabulary)
                       : p->role == ROLE_PARAM  ? rng_uniform(&r) - 0.5
                       : p->role == ROLE_STATE  ? 1e-3 * rng_uniform(&r)
                       : p->role == ROLE_STEP   ? 2
                       : p->role == ROLE_SCALAR ? 1e-3
                                                : 0);
    }
    return in;
}

static void compare(const Job *j, const Graph *g, const Tensor *got, const Tensor *want)
{
    for (int k = 0; k < g->nout; k++) {
        double most = fmax(1e-3, interp_largest(&want[k])), far = 0;
        for (int64_t e = 0; e < tensor_nelem(&want[k]); e++)
            far = fmax(far, fabs(tensor_get(&got[k], e) - tensor_get(&want[k], e)));
        if (!EXPECT(far <= TOLERANCE * most))
            printf("  %s, %s on %s: %%%s is %g off of %g\n", j->folder, j->passes, j->mesh,
                   g->out[k].v->name, far, most);
    }
}

static void check_report(const Job *j, const ShardReport *r)
{
    const double rounding = 1e-5; /* costs are whole nanoseconds */
    double emitted = r->emitted - r->rest;
    double gap = j->limited ? 1 : 1e-3; /* within a limit any that is certified */
    bool good = r->solved && r->gap >= 0 && r->gap <= gap &&
                fabs(emitted - r->sec) <= rounding * r->sec && r->rest <= 0.1 * r->sec;
    if (!EXPECT(good))
        printf("  %s, %s on %s: chosen %.9g s, gap %g, emitted %.9g s\n", j->folder, j->passes,
               j->mesh, r->sec, r->gap, emitted);
}

/* A limit that the choice without one goes beyond. */
static int64_t find_limit(const Job *j, const Graph *model, PassOptions o)
{
    ShardReport r = {.a = j->a};
    o.shard_report = &r;
    passes_run(graph_clone(j->a, model), j->passes, &o, NULL, NULL);
    if (!EXPECT(r.nbytes > r.least))
        printf("  %s on %s: chosen are the fewest bytes\n", j->folder, j->mesh);
    return r.least + (r.nbytes - r.least) / 2;
}

static void run(void *arg)
{
    const Job *j = arg;
    static const char *const rules[] = {"auto"};
    PassOptions o = pass_defaults();
    o.accumulate = j->accumulate;
    PassOptions one = o;
    ModelOptions how = {.dropout = j->dropout};
    ModelConfig c = config_read(j->a, arena_printf(j->a, "tests/ref/%s/config.json", j->folder));
    const Graph *model =
        graph_wide(j->a, model_graph(j->a, &c, ROWS * j->accumulate, TOKENS, &how));
    Graph *whole = graph_clone(j->a, model);
    passes_run(whole, j->passes, &one, NULL, NULL);
    o.mesh = j->mesh;
    o.reshard = j->reshard;
    o.shardings = (Globs){(const char **)rules, 1};
    if (j->chunk)
        o.chunk = (Globs){(const char **)&j->chunk, 1};
    if (j->limited)
        o.shard_memory = find_limit(j, model, o);
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, o.mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (int i = 0; i < n; i++) {
        ShardReport r = {.a = j->a};
        o.rank = i;
        o.shard_report = &r;
        g[i] = graph_clone(j->a, model);
        passes_run(g[i], j->passes, &o, NULL, NULL);
        check_report(j, &r);
        if (!EXPECT(!j->limited || (r.least <= o.shard_memory && r.nbytes <= o.shard_memory)))
            printf("  %s on %s: %lld bytes within %lld\n", j->folder, j->mesh, (long long)r.nbytes,
                   (long long)o.shard_memory);
        if (!EXPECT(!j->chunk || chunk_seen_loops(g[i]) > (j->accumulate > 1)))
            printf("  %s on %s: nothing runs in slices\n", j->folder, j->mesh);
    }
    Ranks ranks = ranks_of(j->a, n, g);
    Tensor *in = draw_inputs(j, whole, c.vocab), *want = NEWN(j->a, Tensor, whole->nout);
    Tensor *got = NEWN(j->a, Tensor, whole->nout);
    interp_graph(j->a, whole, in, want);
    const char *why = ranks_together(
        &ranks, whole, ranks_interpret(&ranks, ranks_inputs(&ranks, whole, in), NULL), got);
    if (EXPECT(!why))
        compare(j, whole, got, want);
    else
        printf("  %s, %s on %s: %s\n", j->folder, j->passes, j->mesh, why);
}

/* ---- models of true size: prices alone ---- */

typedef struct Priced {
    const char *model;
    int64_t rows, tokens;
    const char *mesh, *reshard;
    DType dtype;
    int accumulate;
} Priced;

static const Priced priced[] = {
    {"llama3-1b", 16, 2048, "dp=2,tp=4", "auto", BF16,
     1},                                                /* the embedding is cast, then looked up */
    {"gpt2", 16, 1024, "fsdp=4,tp=2", "never", F32, 1}, /* the backward reads what is kept */
    {"llama3-1b", 32, 1024, "fsdp=4,tp=2", "always", BF16, 4}, /* bodies gather and look up */
    {"llama3-1b", 32, 1024, "dp=2,fsdp=4", "never", BF16, 4},  /* gathered before the loop */
    {"gpt2", 32, 1024, "fsdp=4,tp=2", "auto", F32, 2},
};

/* Whether an embedding reads a table that was cast before it was gathered. */
static bool reads_narrow(const ShardReport *r)
{
    for (int i = 0; i < r->nform; i++)
        if (!strncmp(r->form[i].node, "embedding ", 10) && strstr(r->form[i].node, "_narrow"))
            return true;
    return false;
}

static void price(void *arg)
{
    const Job *j = arg;
    const Priced *x = j->priced;
    static const char *const rules[] = {"auto"};
    PassOptions o = pass_defaults();
    ShardReport r = {.a = j->a};
    ModelConfig c = *config_preset(x->model);
    if (!getenv("TN_LONG"))
        c.nlayer = FEW_LAYERS;
    Graph *g = model_graph(j->a, &c, x->rows, x->tokens, &(ModelOptions){0});
    o.mesh = x->mesh;
    o.machine = "h100";
    o.dtype = x->dtype;
    o.reshard = x->reshard;
    o.accumulate = x->accumulate;
    o.shardings = (Globs){(const char **)rules, 1};
    o.shard_report = &r;
    passes_run(g, j->passes, &o, NULL, NULL);
    check_report(j, &r);
    if (!EXPECT(x->dtype == F32 || reads_narrow(&r)))
        printf("  %s on %s: the embedding reads its table in f32\n", x->model, x->mesh);
}

/* ---- tests ---- */

static void test_priced(const Priced *x)
{
    Ctx ctx = {0};
    Job j = {arena_new(&ctx),
             x->model,
             x->mesh,
             "grad,precision,accumulate,optimizer,canonicalize,cse,dce,align,spmd",
             x,
             1,
             0,
             x->reshard,
             NULL,
             false};
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, price, &j) == TN_OK))
        printf("  %s on %s: %s\n", x->model, x->mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

static void test(Job j)
{
    Ctx ctx = {0};
    j.a = arena_new(&ctx);
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, run, &j) == TN_OK))
        printf("  %s, %s on %s: %s\n", j.folder, j.passes, j.mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

/* Tries a model on a mesh in several ways; limits, which take long to solve, on one mesh of each.
 * Not all: one way of each model. */
static void test_ways(int i, int k, bool all)
{
    const Job first = {.folder = folders[i],
                       .mesh = meshes[k],
                       .passes = "default",
                       .accumulate = 1,
                       .reshard = "auto"};
    Job j = first;
    j.passes = "gradients";
    if (all || i == 1 || i == 5)
        test(j);
    j = first;
    if (all || i % 2 == 0)
        test(j);
    j.chunk = "lm_head=2";
    if (all || i == 3)
        test(j);
    j.accumulate = 2;
    j.dropout = 0.1;
    j.limited = k == i % LEN(meshes);
    if (all)
        test(j);
}

int main(int argc, char **argv)
{
    bool all = getenv("TN_LONG") || argc > 1;
    par_set_threads(1); /* all is small */
    for (int i = 0; i < LEN(priced); i++)
        if (argc < 2 || !strcmp(argv[1], priced[i].model))
            test_priced(&priced[i]);
    for (int i = 0; i < LEN(folders); i++)
        for (int k = 0; k < LEN(meshes); k++) {
            bool asked = argc > 1 ? !strcmp(argv[1], folders[i]) : all || (i + k) % 4 == 0;
            if (!asked || (argc > 2 && strcmp(argv[2], meshes[k]) != 0))
                continue;
            test_ways(i, k, all);
        }
    return test_report();
}
