/* Steps that PyTorch traced (tests/fx) and no recipe knows, cut by `--shard auto` on 8 ranks: all
 * results of the ranks in lockstep, in double, are those of one rank within 1e-12 of the largest
 * magnitude, and each node that no axis can cut is told. Links are so fast that small nodes are cut
 * too.
 *
 * `test_shard_imported CASE MESH` runs one of them. */
#include "../../src/fx/fx.h"
#include "../../src/io/io.h"
#include "../../src/spmd/spmd.h"
#include "../shared/interp.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>

static const double TOLERANCE = 1e-12;

/* A step, and the inputs that are its parameters. */
typedef struct Imported {
    const char *name, *params;
    bool quick; /* in make test: with parameters, on the first mesh */
} Imported;

static const Imported steps[] = {
    {"bert_even", "arg?_1,arg??_1", true},      {"t5", "arg?_1,arg??_1", false},
    {"moe_even", "arg1_1,arg2_1,arg3_1", true}, {"moe_even_dispatch", "arg1_1,arg2_1,arg3_1", true},
    {"bert_mlm", "arg?_1,arg??_1", false},      {"moe_grouped", "up_1,down_1", false},
    {"llama_gqa", "arg?_1,arg??_1", false}};
static const char *const meshes[] = {"fsdp=4,tp=2", "tp=8", "dp=2,fsdp=2,tp=2"};

typedef struct Job {
    Arena *a;
    const Imported *of;
    const char *mesh;
    bool params; /* inputs are told to be parameters, so that their forms are chosen too */
} Job;

static void explain(const Job *j, const char *what)
{
    printf("  %s%s on %s: %s\n", j->of->name, j->params ? " with parameters" : "", j->mesh, what);
}

static Graph *import(const Job *j, const TensorFile *f)
{
    const char **name = NEWN(j->a, const char *, f->count), *summary;
    Type *type = NEWN(j->a, Type, f->count);
    const char *path = arena_printf(j->a, "tests/fx/%s/graph.txt", j->of->name);
    size_t len;
    for (int i = 0; i < f->count; i++) {
        name[i] = f->entry[i].name;
        type[i] = f->entry[i].type;
    }
    FxOptions o = {.ninput = f->count,
                   .name = name,
                   .type = type,
                   .origin = "the case",
                   .params = j->params ? j->of->params : NULL};
    return graph_wide(j->a, fx_import(j->a, file_read(j->a, path, &len), path, &o, &summary));
}

static Tensor *read_inputs(const Job *j, const TensorFile *f, const Graph *g)
{
    Tensor *in = NEWN(j->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++)
        for (int k = 0; k < f->count; k++)
            if (!strcmp(f->entry[k].name, g->in[i].v->name)) {
                in[i] = tensor_new(j->a, &g->in[i].v->type, 0);
                tensors_read(f, &f->entry[k], in[i].dtype, true, in[i].data);
            }
    return in;
}

static void compare(const Job *j, const Graph *g, const Tensor *got, const Tensor *want)
{
    for (int k = 0; k < g->nout; k++) {
        double most = fmax(1e-3, interp_largest(&want[k])), far = 0;
        for (int64_t e = 0; e < tensor_nelem(&want[k]); e++) {
            double d = fabs(tensor_get(&got[k], e) - tensor_get(&want[k], e));
            far = isnan(d) ? INFINITY : fmax(far, d);
        }
        if (!EXPECT(far <= TOLERANCE * most))
            explain(j, arena_printf(j->a, "%%%s is %g off of %g", g->out[k].v->name, far, most));
    }
}

/* Counts the nodes that the choice cuts, and checks what is told of those that nothing can cut. */
static void check_report(const Job *j, const Graph *one, const Graph *rank, const ShardReport *r)
{
    int cut = 0, uncut = 0;
    for (int i = 0; i < r->nform; i++) {
        cut += strcmp(r->form[i].form, "whole") != 0;
        uncut += r->form[i].uncut;
        if (!EXPECT(!r->form[i].uncut || !strcmp(r->form[i].form, "whole")))
            explain(j, r->form[i].node);
    }
    if (!EXPECT(r->solved && r->gap >= 0 && r->gap < 0.1))
        explain(j, arena_printf(j->a, "gap %g", r->gap));
    if (!EXPECT(cut >= 2)) /* links are fast */
        explain(j, "nothing is cut");
    if (getenv("TN_SHOW"))
        printf("%s%s on %s: %d forms cut, %d nodes that cannot be, of %d; %d nodes of a rank\n",
               j->of->name, j->params ? " with parameters" : "", j->mesh, cut, uncut, one->nnode,
               rank->nnode);
}

static void run(void *arg)
{
    const Job *j = arg;
    static const char *const rules[] = {"auto"};
    PassOptions o = pass_defaults();
    TensorFile *f =
        tensors_open(j->a, arena_printf(j->a, "tests/fx/%s/inputs.safetensors", j->of->name));
    Graph *whole = import(j, f);
    o.mesh = j->mesh;
    o.machine = "tests/seeds/machine/fast_links.machine";
    o.shardings = (Globs){(const char **)rules, 1};
    pass_target(&o, j->a);
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, o.mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (int i = 0; i < n; i++) {
        ShardReport r = {.a = j->a};
        o.rank = i;
        o.shard_report = &r;
        g[i] = graph_clone(j->a, whole);
        passes_run(g[i], "canonicalize,cse,dce,align,spmd", &o, NULL, NULL);
        if (!i)
            check_report(j, whole, g[0], &r);
    }
    Ranks ranks = ranks_of(j->a, n, g);
    Tensor *in = read_inputs(j, f, whole), *want = NEWN(j->a, Tensor, whole->nout);
    Tensor *got = NEWN(j->a, Tensor, whole->nout);
    interp_graph(j->a, whole, in, want);
    const char *why = ranks_together(
        &ranks, whole, ranks_interpret(&ranks, ranks_inputs(&ranks, whole, in), NULL), got);
    if (EXPECT(!why))
        compare(j, whole, got, want);
    else
        explain(j, why);
}

static void test(const Imported *of, const char *mesh, bool params)
{
    Ctx ctx = {0};
    Job j = {arena_new(&ctx), of, mesh, params};
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, run, &j) == TN_OK))
        explain(&j, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

int main(int argc, char **argv)
{
    bool all = getenv("TN_LONG") || argc > 1;
    par_set_threads(1); /* all is small */
    for (int i = 0; i < LEN(steps); i++)
        for (int k = 0; k < LEN(meshes); k++) {
            if ((argc > 1 && strcmp(argv[1], steps[i].name) != 0) ||
                (argc > 2 && strcmp(argv[2], meshes[k]) != 0))
                continue;
            for (int params = 0; params < 2; params++)
                if (all || (steps[i].quick && !k && params))
                    test(&steps[i], meshes[k], params);
        }
    return test_report();
}
