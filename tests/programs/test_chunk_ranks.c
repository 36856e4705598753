/* Regions in the graphs of ranks: small models on meshes, their heads and blocks whole and in
 * slices, by the interpreter in lockstep. In double all ranks together give what one process gives
 * without slices; of each weight there is one gather and one reduction, whatever the number of
 * slices. The ranks of fsdp=8 with slices have the bits of as many microbatches with slices. */
#include "../../src/model/model.h"
#include "../shared/chunk_case.h"
#include "../shared/chunk_seen.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>

enum { ROWS = 8, POSITIONS = 6, VOCAB = 512 };

/* A model on a mesh, and a seed: the first value of the op in the scope. */
typedef struct Way {
    const char *preset, *mesh, *scope, *op;
    int axis;
    int64_t loops;
} Way;

static const Way ways[] = {
    {"gpt2", "fsdp=2", "lm_head", "mm", 0, 1},
    {"gpt2", "tp=2", "lm_head", "mm", 0, 1},
    {"llama3-8b", "fsdp=2", "lm_head", "mm", 0, 1},
    {"llama3-8b", "tp=2", "lm_head", "mm", 0, 1},
    {"llama3-8b", "dp=2,fsdp=2,tp=2", "lm_head", "mm", 0, 1},
    {"llama3-8b", "fsdp=2", "layers.0.mlp", "silu", 0, 2},
    {"llama3-8b", "tp=2", "layers.0.mlp", "silu", 0, 2},
    {"llama3-8b", "tp=2", "layers.0.mlp", "silu", 1, 2},
};

static const char SIMPLE[] = "grad,canonicalize,cse,dce";

typedef struct Job {
    Arena *a;
    const Way *w;
    const char *seed;
} Job;

/* ---- graphs ---- */

static Graph *model(Arena *a, const char *preset, bool wide)
{
    ModelConfig c = graphs_small(preset);
    c.nlayer = 1;
    c.vocab = VOCAB;
    Graph *g = model_graph(a, &c, ROWS, POSITIONS, &(ModelOptions){0});
    return wide ? graphs_widen(a, g) : g;
}

static const char *find_seed(const Graph *g, const Way *w)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->op == op_find(w->op) && strstr(n->scope, w->scope))
            return n->out[0]->name;
    fail(g->ctx, TN_FAIL, "no %s in %s", w->op, w->scope);
}

static ChunkRegion region_of(const Graph *g, const Way *w)
{
    return (ChunkRegion){.value = find_seed(g, w), .cut = {CUT_SLICE, w->axis, 1}, .inner = 1};
}

static void cut(const Job *j, Graph *g, int64_t slices)
{
    ChunkRegion r = region_of(g, j->w);
    const char *why;
    chunk_case_run(g, &r, slices, "f32", &why);
    if (why)
        fail(g->ctx, TN_FAIL, "%s", why);
}

static Ranks ranks(const Job *j, bool wide, int64_t slices)
{
    PassOptions o = pass_defaults();
    o.mesh = j->w->mesh;
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, o.mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (int r = 0; r < n; r++) {
        o.rank = r;
        g[r] = model(j->a, j->w->preset, wide);
        passes_run(g[r], arena_printf(j->a, "%s,spmd", SIMPLE), &o, NULL, NULL);
        if (slices > 1)
            cut(j, g[r], slices);
    }
    return ranks_of(j->a, n, g);
}

static Tensor *inputs(Arena *a, const Graph *g)
{
    Tensor *in = graphs_inputs(a, g);
    for (int i = 0; i < g->nin; i++)
        for (int64_t e = 0; !strcmp(g->in[i].v->name, "labels") && e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, e % 5 == 3 ? -100 : (double)(e * 7 % VOCAB));
    return in;
}

/* ---- what is asked ---- */

static void check_counts(const char *name, const Graph *whole, const Graph *g)
{
    static const char *const ops[] = {"all_gather_into_tensor", "reduce_scatter_tensor",
                                      "all_to_all_single"};
    for (int i = 0; i < LEN(ops); i++)
        if (!EXPECT(chunk_seen_runs(g, ops[i]) == chunk_seen_runs(whole, ops[i])))
            printf("  %s: %lld of %s, whole %lld\n", name, (long long)chunk_seen_runs(g, ops[i]),
                   ops[i], (long long)chunk_seen_runs(whole, ops[i]));
}

/* What a way is compared with. */
typedef struct Whole {
    const char *name;
    Graph *g; /* of one process */
    const Tensor *want;
    int64_t slices;
} Whole;

static void check_together(const Whole *x, const char *how, const Ranks *k, Tensor *const *out)
{
    Tensor *got = NEWN(k->a, Tensor, x->g->nout);
    const char *why = ranks_together(k, x->g, out, got);
    if (!EXPECT(!why))
        printf("  %s in %lld slices, %s: %s\n", x->name, (long long)x->slices, how, why);
    for (int i = 0; i < x->g->nout && !why; i++) {
        double error = graphs_distance(&got[i], &x->want[i]);
        if (!EXPECT(error <= 1e-12))
            printf("  %s in %lld slices, %s: output %%%s is off by %.3g\n", x->name,
                   (long long)x->slices, how, x->g->out[i].v->name, error);
    }
}

static void run_slices(const Job *j, Whole *x, const Ranks *whole, const Tensor *in)
{
    Ranks k = ranks(j, true, x->slices);
    Tensor **part = ranks_inputs(&k, x->g, in);
    int64_t loops = chunk_seen_loops(k.g[0]) - chunk_seen_loops(whole->g[0]);
    check_together(x, "interpreted", &k, ranks_interpret(&k, part, NULL));
    Fleet *fleet = fleet_make(&k, false);
    fleet_write(fleet, part, true);
    fleet_run(fleet);
    check_together(x, "on planned arenas", &k, fleet_read(fleet, j->a));
    if (!EXPECT(loops == j->w->loops))
        printf("  %s in %lld slices: expected %lld loops, found %lld\n", x->name,
               (long long)x->slices, (long long)j->w->loops, (long long)loops);
    check_counts(x->name, whole->g[0], k.g[0]);
}

static void run_way(void *arg)
{
    static const int64_t slices[] = {2, 3, 8};
    const Job *j = arg;
    const Way *w = j->w;
    Whole x = {.g = model(j->a, w->preset, true)};
    PassOptions o = pass_defaults();
    x.name = arena_printf(j->a, "%s on %s, %s::%s axis %d", w->preset, w->mesh, w->scope, w->op,
                          w->axis);
    passes_run(x.g, SIMPLE, &o, NULL, NULL);
    Tensor *in = inputs(j->a, x.g);
    x.want = graphs_interpret(j->a, x.g, in);
    Ranks whole = ranks(j, true, 1);
    for (int i = 0; i < LEN(slices); i++) {
        x.slices = slices[i];
        run_slices(j, &x, &whole, in);
    }
}

/* ---- ranks and microbatches ---- */

/* In f32: what ranks add up is what iterations do, in the same order. */
static void run_alike(void *arg)
{
    Job *j = arg;
    Graph *g = model(j->a, j->w->preset, false);
    PassOptions o = pass_defaults();
    o.accumulate = ROWS;
    passes_run(g, "grad,accumulate,canonicalize,cse,dce", &o, NULL, NULL);
    Graph *body = NULL;
    for (const Node *n = g->first; n && !body; n = n->next)
        body = n->op->region == LOOP ? n->region->body[MAIN] : NULL;
    CHECK(body);
    ChunkRegion r = region_of(body, j->w);
    const char *why;
    chunk_case_run(g, &r, 3, "f32", &why);
    Graph *whole = model(j->a, j->w->preset, false);
    o.accumulate = 1;
    passes_run(whole, SIMPLE, &o, NULL, NULL);
    Tensor *in = inputs(j->a, g), *want = graphs_interpret(j->a, g, in);
    Ranks k = ranks(j, false, 3);
    Tensor **part = ranks_inputs(&k, whole, in), *got = NEWN(j->a, Tensor, g->nout);
    const char *apart = ranks_together(&k, whole, ranks_interpret(&k, part, NULL), got);
    if (!EXPECT(!why && !apart))
        printf("  %s: %s\n", j->w->mesh, why ? why : apart);
    for (int i = 0; i < g->nout && !apart; i++) {
        int at = graphs_output(whole, g, i);
        if (!EXPECT(at >= 0 && tensor_same_bits(&got[at], &want[i])))
            printf("  %s of %s: output %%%s has other bits than %d microbatches\n", j->w->mesh,
                   j->w->preset, g->out[i].v->name, ROWS);
    }
}

static void try(const Way *w, void (*run)(void *))
{
    Ctx ctx = {0};
    Job j = {.a = arena_new(&ctx), .w = w};
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, run, &j) == TN_OK))
        printf("  %s on %s, %s::%s axis %d: %s\n", w->preset, w->mesh, w->scope, w->op, w->axis,
               ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

int main(void)
{
    static const Way alike[] = {{"gpt2", "fsdp=8", "lm_head", "mm", 0, 1},
                                {"llama3-8b", "fsdp=8", "lm_head", "mm", 0, 1}};
    par_set_threads(1); /* all is small */
    for (int i = 0; i < LEN(ways); i++)
        try(&ways[i], run_way);
    for (int i = 0; i < LEN(alike); i++)
        try(&alike[i], run_alike);
    return test_report();
}
