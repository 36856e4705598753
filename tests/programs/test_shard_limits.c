/* Choices within limits of bytes (--shard auto --memory): the seconds of the nodes that the pass
 * leaves are the objective's, though what is chosen is seldom the best there is, and gathers twice
 * to keep less. Limits lie between the fewest bytes that may do and those of the choice without a
 * limit; the lowest is below that, where the choice keeps the fewest bytes that are found. What is
 * known of steps of the same task is found again; ranks that are threads find each solution once.
 * At the lowest limit weights are read through views: qwen3's slices of padded norms gather for the
 * forward and again for the backward, and a transpose of llama's goes on from the whole matrix. In
 * two microbatches with what is gathered kept, llama's loop takes a transpose of what all readers
 * of the weight go on from, and a transpose of gpt2's has a form that another reader had gathered.
 * At gpt2's lowest limit a product of the backward takes a slice of a whole transpose, which the
 * forward had exchanged for: it must not exchange again.
 *
 * `test_shard_limits FOLDER [MESH]` runs one model in all ways. TN_LONG=1: all models in two ways,
 * on all meshes. */
#include "../../src/model/model.h"
#include "../../src/spmd/spmd.h"
#include "../shared/gen.h"
#include "../shared/interp.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>
#include <pthread.h>

static const char *const folders[] = {"gpt2-tiny",    "llama-tiny", "llama-tied",
                                      "mistral-tiny", "qwen2-tiny", "qwen3-tiny"};
static const char *const meshes[] = {"fsdp=4,tp=2", "tp=8", "fsdp=8", "dp=2,fsdp=2,tp=2"};

/* Microbatches, and what gathered parameters become. */
static const struct {
    int64_t accumulate;
    const char *reshard;
} ways[] = {{1, "auto"}, {2, "never"}, {1, "never"}, {2, "auto"}, {2, "always"}};

enum { PARTS = 4 }; /* of the bytes between the fewest and those of the choice without a limit */

typedef struct Job {
    Arena *a;
    const char *folder, *mesh, *reshard;
    int64_t accumulate;
    bool all;        /* choices are printed */
    int first, last; /* limits */
    ShardKnown *known;
} Job;

static ShardReport choose(const Job *j, const Graph *model, PassOptions *o)
{
    ShardReport *r = NEW(j->a, ShardReport);
    *r = (ShardReport){.a = j->a, .known = j->known};
    o->shard_report = r;
    passes_run(graph_clone(j->a, model),
               "grad,precision,accumulate,optimizer,canonicalize,cse,dce,align,spmd", o, NULL,
               NULL);
    return *r;
}

/* fits: something does. */
static void check(const Job *j, const ShardReport *r, int64_t limit, bool fits)
{
    const double rounding = 1e-5; /* costs are whole nanoseconds */
    double emitted = r->emitted - r->rest;
    if (!EXPECT(fabs(emitted - r->sec) <= rounding * r->sec) ||
        !EXPECT(!fits || (r->nbytes <= limit && r->least <= limit)) ||
        !EXPECT(r->gap >= 0 && r->gap < 1))
        printf("  %s on %s, %lld microbatches, --reshard %s, within %lld: chosen %.9g s, emitted "
               "%.9g s, %lld bytes, gap %g\n",
               j->folder, j->mesh, (long long)j->accumulate, j->reshard, (long long)limit, r->sec,
               emitted, (long long)r->nbytes, r->gap);
    if (j->all)
        printf("%s on %s, %lld, %s, within %lld bytes: %lld, %.6g ms, gap %.3g, solved in %.2f s\n",
               j->folder, j->mesh, (long long)j->accumulate, j->reshard, (long long)limit,
               (long long)r->nbytes, 1e3 * r->sec, r->gap, r->solve_sec);
}

/* A step that is chosen again. */
typedef struct Again {
    const Job *j;
    const Graph *model;
    PassOptions *o;
    ShardReport r;
} Again;

static void choose_again(void *arg)
{
    Again *x = arg;
    x->r = choose(x->j, x->model, x->o);
}

/* A problem that was solved takes no search again, and has the same choice; a graph that was
 * planned is known as such, and another one is not. */
static void check_known(const Job *of, const Graph *model, PassOptions *o, const ShardReport *r)
{
    ShardKnown known = {.a = of->a, .solved.a = of->a, .seconds.a = of->a, .stops = true};
    Job j = *of;
    Again x = {&j, model, o, {0}};
    j.known = &known;
    const int64_t limit = o->shard_memory;
    EXPECT(ctx_try(arena_ctx(of->a), choose_again, &x) == TN_OK && known.twin == -1);
    known.seen[0] = 0;
    known.seen[1] = known.hash;
    known.nseen = 2;
    const int solved = known.solved.count;
    EXPECT(ctx_try(arena_ctx(of->a), choose_again, &x) == TN_FAIL && known.twin == 1);
    EXPECT(known.solved.count == solved && solved > 0);
    o->shard_memory = 0;
    EXPECT(ctx_try(arena_ctx(of->a), choose_again, &x) == TN_OK && known.twin == -1);
    EXPECT(known.solved.count > solved);
    o->shard_memory = limit;
    known.stops = false;
    EXPECT(ctx_try(arena_ctx(of->a), choose_again, &x) == TN_OK);
    EXPECT(x.r.sec == r->sec && x.r.nbytes == r->nbytes && x.r.gap == r->gap &&
           x.r.emitted == r->emitted && x.r.least == r->least);
    o->shard_report = NULL;
}

static void run(void *arg)
{
    const Job *j = arg;
    static const char *const rules[] = {"auto"};
    PassOptions o = pass_defaults();
    ModelConfig c = config_read(j->a, arena_printf(j->a, "tests/ref/%s/config.json", j->folder));
    const Graph *model = graph_wide(j->a, model_graph(j->a, &c, 8, 8, &(ModelOptions){0}));
    o.mesh = j->mesh;
    o.reshard = j->reshard;
    o.accumulate = j->accumulate;
    o.shardings = (Globs){(const char **)rules, 1};
    const ShardReport free = choose(j, model, &o);
    check(j, &free, free.nbytes, true);
    for (int i = j->first; i <= j->last; i++) {
        o.shard_memory = free.least + (free.nbytes - free.least) / PARTS * i - !i;
        const ShardReport r = choose(j, model, &o);
        check(j, &r, o.shard_memory, i > 0);
        if (i == PARTS / 2)
            check_known(j, model, &o, &r);
    }
}

static void test(Job j, int way)
{
    Ctx ctx = {0};
    j.a = arena_new(&ctx);
    j.accumulate = ways[way].accumulate;
    j.reshard = ways[way].reshard;
    CHECK(j.a);
    if (!EXPECT(ctx_try(&ctx, run, &j) == TN_OK))
        printf("  %s on %s: %s\n", j.folder, j.mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

enum { LONG_WAYS = 2 };

int main(int argc, char **argv)
{
    bool all = getenv("TN_LONG") || argc > 1;
    par_set_threads(1);
    if (!all) {
        test((Job){.folder = "qwen2-tiny", .mesh = "fsdp=4,tp=2", .first = 2, .last = 2}, 0);
        test((Job){.folder = "qwen3-tiny", .mesh = "tp=8"}, 0);
        test((Job){.folder = "llama-tiny", .mesh = "fsdp=4,tp=2"}, 0);
        test((Job){.folder = "llama-tiny", .mesh = "fsdp=4,tp=2"}, 1);
        test((Job){.folder = "gpt2-tiny", .mesh = "dp=2,fsdp=2,tp=2"}, 0);
        test((Job){.folder = "gpt2-tiny", .mesh = "dp=2,fsdp=2,tp=2", .first = 1, .last = 1}, 1);
        return test_report();
    }
    for (int i = 0; i < LEN(folders); i++)
        for (int k = 0; k < LEN(meshes); k++)
            for (int w = 0; w < (argc > 1 ? LEN(ways) : LONG_WAYS); w++)
                if ((strcmp(meshes[k], "fsdp=8") != 0 || ways[w].accumulate == 1) && /* 8 rows */
                    (argc < 2 || !strcmp(argv[1], folders[i])) &&
                    (argc < 3 || !strcmp(argv[2], meshes[k])))
                    test((Job){.folder = folders[i],
                               .mesh = meshes[k],
                               .all = true,
                               .last = PARTS - 1},
                         w);
    return test_report();
}
