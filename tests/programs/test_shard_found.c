/* Layouts of the literature that `--shard auto` finds by itself on H100, by the objective, each
 * with what its alternative costs more, all else chosen again: copies of parameters where nothing
 * is updated; parts of them where AdamW updates them, as a part's update takes less; parts of
 * parameters and of the batch over one axis (FSDP, Rajbhandari et al. 2020, arXiv:1910.02054);
 * heads and features over tp (Megatron, Shoeybi et al. 2019, arXiv:1909.08053) for 70 billion
 * parameters; the attention's output projection cut along tokens where a rank has 16,384 of them.
 *
 * `test_shard_found NAME` runs one of them. */
#include "../../src/model/model.h"
#include "../../src/spmd/spmd.h"
#include "../shared/test.h"

#include <math.h>

typedef struct Found {
    const char *name, *model;
    int64_t rows, tokens;
    const char *mesh;
    bool update;              /* with AdamW */
    const char *at, *scope;   /* a parameter, or the op of a node of the forward and its scope */
    const char *form, *other; /* other: of a node a pin of it, in layer 0 alone */
} Found;

static const char *const down = "model.layers.0.mlp.down_proj.weight";

static const Found layouts[] = {
    {"copies", "llama3-1b", 64, 4096, "fsdp=8", false, NULL, NULL, "whole", "shard(0: fsdp)"},
    {"parts", "llama3-1b", 64, 4096, "fsdp=8", true, NULL, NULL, "shard(0: fsdp)", "whole"},
    {"fsdp", "llama3-8b", 64, 8192, "fsdp=8", true, "mm", "layers.0.mlp.down_proj",
     "shard(0: fsdp)", "mm_6=1:fsdp"},
    {"megatron", "llama3-70b", 8, 8192, "dp=8,tp=8", true, "mm", "layers.0.mlp.down_proj",
     "shard(0: dp) partial(sum: tp)", "mm_6=0:dp,tp"},
    {"tokens", "llama3-8b", 16, 8192, "fsdp=8,tp=8", true, "mm", "layers.0.self_attn.o_proj",
     "shard(0: fsdp, tp)", "mm_3=0:fsdp;1:tp"},
};

typedef struct Job {
    Arena *a;
    const Found *of;
} Job;

static void choose(const Job *j, ShardReport *r)
{
    static const char *const rules[] = {"auto"};
    const Found *l = j->of;
    Graph *g = model_graph(j->a, config_preset(l->model), l->rows, l->tokens, &(ModelOptions){0});
    Decisions d = {.a = j->a, .all = !l->at};
    const char *what_if[] = {l->other};
    PassOptions o = pass_defaults();
    o.mesh = l->mesh;
    o.machine = "h100";
    o.dtype = BF16;
    o.shardings = (Globs){(const char **)rules, 1};
    o.reshard = "never"; /* none is gathered again */
    o.what_if = (Globs){what_if, l->at ? 1 : 0};
    o.decisions = &d;
    o.shard_report = r;
    pass_target(&o, j->a);
    passes_run(g,
               l->update ? "grad,precision,accumulate,optimizer,canonicalize,cse,dce,align,spmd"
                         : "grad,precision,accumulate,canonicalize,cse,dce,align,spmd",
               &o, NULL, NULL);
}

static const ShardForm *find(const ShardReport *r, const Found *l)
{
    for (int i = 0; i < r->nform; i++) {
        const ShardForm *f = &r->form[i];
        if (!l->at ? f->port && !strcmp(f->node, down)
                   : !strncmp(f->node, l->at, strlen(l->at)) && !strcmp(f->scope, l->scope) &&
                         f->phase == FORWARD)
            return f;
    }
    return NULL;
}

static void run(void *arg)
{
    const Job *j = arg;
    const Found *l = j->of;
    ShardReport r = {.a = j->a};
    choose(j, &r);
    const ShardForm *f = find(&r, l);
    if (!EXPECT(f && !strcmp(f->form, l->form))) {
        printf("  %s: expected %s, found %s, objective %.3f ms, gap %g\n", l->name, l->form,
               f ? f->form : "nothing", 1e3 * r.sec, r.gap);
        return;
    }
    double more = r.nwhat_if ? r.what_if[0].objective - r.sec : NAN;
    for (int i = 0; i < f->nother; i++)
        if (!strcmp(f->other[i].form, l->other))
            more = f->other[i].sec;
    if (!EXPECT(more > 0 && more < INFINITY))
        printf("  %s: instead %s: %g s\n", l->name, l->other, more);
    printf("%-9s %-10s %-11s %8.3f ms with %s as %s; %.3f ms more as %s; gap %g\n", l->name,
           l->model, l->mesh, 1e3 * r.sec, l->at ? l->scope : down, l->form, 1e3 * more, l->other,
           r.gap);
}

static void test(const Found *l)
{
    Ctx ctx = {0};
    Job j = {arena_new(&ctx), l};
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, run, &j) == TN_OK))
        printf("  %s: %s\n", l->name, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

int main(int argc, char **argv)
{
    par_set_threads(1);
    for (int i = 0; i < LEN(layouts); i++)
        if (argc < 2 || !strcmp(argv[1], layouts[i].name))
            test(&layouts[i]);
    return test_report();
}
