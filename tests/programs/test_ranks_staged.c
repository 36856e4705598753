/* Ranks on the emulated device, whose kernels compute in a memory that other ranks do not reach:
 * every rank in a thread of its own, queues and messages delayed at random. Losses, gradients and
 * weights have the bits that the processor gives, parameters gathered again or kept, in
 * microbatches or at once, with values in the host's memory meanwhile; no more of either memory is
 * used than was planned, and all of that. With TN_LONG each for each model and 20 steps; with
 * TN_QUICK every second, for two steps. */
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../shared/race.h"
#include "../shared/ranks_run.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, FEW = 2, ROWS = 8, SEQ = 12 };

/* A model's step on a mesh. */
typedef struct Job {
    const char *model, *mesh, *passes, *reshard;
    int64_t accumulate;
    bool offload;
    int steps;
    uint64_t seed; /* of delays */
    /* what is made of it */
    Arena *a;
    ModelConfig config;
    Ranks cpu, emulated;
    Tensor **want; /* by step, then rank, the outputs on the processor */
} Job;

static Graph *compile(const Job *j, const PassOptions *o)
{
    Graph *g = model_graph(j->a, &j->config, ROWS, SEQ, &(ModelOptions){.dropout = 0.1});
    passes_run(g, j->passes, o, NULL, NULL);
    return g;
}

static Ranks compile_ranks(const Job *j, const char *device)
{
    static const PolicyRule moved = {OFFLOAD, "layers.*::*"};
    PassOptions o = pass_defaults();
    o.accumulate = j->accumulate;
    o.mesh = j->mesh;
    o.reshard = j->reshard;
    o.backend = device;
    if (j->offload && strcmp(device, "cpu") != 0) {
        o.rules = &moved;
        o.nrules = 1;
    }
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, j->mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (o.rank = 0; o.rank < n; o.rank++)
        g[o.rank] = compile(j, &o);
    return ranks_of(j->a, n, g);
}

/* ---- inputs ---- */

/* Of all ranks alike where they have all of it, else each some. */
static void fill_input(const Job *j, const Port *p, const void *data, int64_t n, int rank, int step)
{
    uint32_t stream = (uint32_t)hash_bytes(p->v->name, strlen(p->v->name), 7);
    bool own = p->cut || p->role == ROLE_BATCH;
    Tensor t = {.data = (char *)data, .dtype = p->v->type.dtype};
    for (int64_t i = 0; i < n; i++) {
        float u =
            random_uniform(own ? 100 + (uint64_t)rank : 1, stream, (uint32_t)step, (uint64_t)i);
        double vocab = (double)j->config.vocab;
        tensor_set(&t, i,
                   p->role == ROLE_BATCH    ? (double)(int64_t)(vocab * (double)u)
                   : p->role == ROLE_STEP   ? step + 1
                   : p->role == ROLE_SEED   ? 5
                   : p->role == ROLE_SCALAR ? 1e-2
                   : p->role == ROLE_STATE  ? 0
                                            : 0.2 * (double)u - 0.1);
    }
}

static void write_inputs(const Job *j, Program *x, int rank, int step)
{
    const Graph *g = x->plan->g;
    Arena *a = arena_new(g->ctx);
    CHECK(a);
    Tensor *in = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        in[i] = tensor_new(a, &g->in[i].v->type, 0);
        fill_input(j, &g->in[i], in[i].data, tensor_nelem(&in[i]), rank, step);
    }
    ranks_write(x, in, step == 0);
    arena_free(a);
}

/* ---- runs ---- */

static void run_cpu(Arena *a, Comm *c, void *arg)
{
    const Job *j = arg;
    int rank = comm_rank(c);
    Program *x = ranks_program(a, j->cpu.g[rank], device_at(DEVICE_cpu), c, false);
    for (int s = 0; s < j->steps; s++) {
        write_inputs(j, x, rank, s);
        ranks_step(x);
        ranks_read(x, j->want[s * j->cpu.n + rank]);
    }
}

static Program *make_emulated(Arena *a, const Job *j, Comm *c, bool check)
{
    const Graph *g = j->emulated.g[comm_rank(c)];
    Program *x = ranks_program(a, g, device_at(DEVICE_emulated), c, check);
    x->queues->delay = (Delay){.usec = 100, .every = 4, .seed = j->seed};
    return x;
}

static void run_emulated(Arena *a, Comm *c, void *arg)
{
    const Job *j = arg;
    int rank = comm_rank(c);
    Program *x = make_emulated(a, j, c, true);
    const Graph *g = x->plan->g;
    Tensor *out = ranks_outputs(a, g);
    for (int s = 0; s < j->steps; s++) {
        write_inputs(j, x, rank, s);
        ranks_step(x);
        ranks_read(x, out);
        for (int k = 0; k < g->nout; k++)
            if (!tensor_same_bits(&out[k], &j->want[s * j->cpu.n + rank][k]))
                fail(arena_ctx(a), TN_FAIL,
                     "step %d, output %%%s: other bits than on the processor", s,
                     g->out[k].v->name);
    }
    if (x->not_finite)
        fail(arena_ctx(a), TN_FAIL, "%%%s is not finite", x->not_finite->out[0]->name);
}

static void measure(Arena *a, Comm *c, void *arg)
{
    static const uint8_t patterns[] = {0x5a, 0xa5};
    const Job *j = arg;
    Program *x = make_emulated(a, j, c, false);
    int64_t high[MAX_SPACE] = {0};
    for (int i = 0; i < LEN(patterns); i++) {
        program_fill(x, patterns[i]);
        write_inputs(j, x, comm_rank(c), 0);
        ranks_step(x);
        for (int s = 0; s < MAX_SPACE; s++)
            high[s] = MAX(high[s], program_high(x, (Space)s, patterns[i]));
    }
    for (int s = 0; s < MAX_SPACE; s++)
        if (high[s] != x->plan->space[s].peak)
            fail(arena_ctx(a), TN_FAIL, "space %d: planned are %lld bytes, measured %lld", s,
                 (long long)x->plan->space[s].peak, (long long)high[s]);
}

/* ---- one job ---- */

static void expect_ranks(const Job *j, const CommOptions *o, RankFn *fn)
{
    const char *why = ranks_threads(j->a, j->cpu.n, o, fn, (void *)j);
    if (!EXPECT(!why))
        printf("  %s on %s, %s, reshard %s, accumulate %lld, offload %d: %s\n", j->model, j->mesh,
               j->passes, j->reshard, (long long)j->accumulate, j->offload, why);
}

static void run_job(void *arg)
{
    Job *j = arg;
    const CommOptions none = {0}, delayed = {.delay = 300, .seed = j->seed};
    j->config = config_read(j->a, arena_printf(j->a, "tests/ref/%s/config.json", j->model));
    j->cpu = compile_ranks(j, "cpu");
    j->emulated = compile_ranks(j, "emulated");
    j->want = NEWN(j->a, Tensor *, j->steps * j->cpu.n);
    for (int i = 0; i < j->steps * j->cpu.n; i++)
        j->want[i] = ranks_outputs(j->a, j->cpu.g[i % j->cpu.n]);
    expect_ranks(j, &none, run_cpu);
    expect_ranks(j, &delayed, run_emulated);
    expect_ranks(j, &none, measure);
}

static void try_job(Job j)
{
    Ctx ctx = {0};
    j.a = arena_new(&ctx);
    CHECK(j.a);
    if (!EXPECT(!ctx_try(&ctx, run_job, &j)))
        printf("  %s on %s: %s\n", j.model, j.mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

int main(void)
{
    static const char *const models[] = {"gpt2-tiny", "llama-tiny"};
    static const struct {
        const char *mesh, *passes, *reshard;
        int64_t accumulate;
        bool offload;
    } ways[] = {
        {"fsdp=4", "default", "always", 1, false},     {"fsdp=4", "gradients", "always", 1, false},
        {"fsdp=4", "default", "never", 2, false},      {"fsdp=4", "default", "always", 1, true},
        {"fsdp=2,tp=2", "default", "always", 2, true}, {"dp=2", "gradients", "always", 1, false},
    };
    const bool all = getenv("TN_LONG"), quick = !all && getenv("TN_QUICK");
    par_set_threads(1); /* all is small */
    for (int i = 0; i < LEN(models) * LEN(ways); i++) {
        int w = i / LEN(models);
        if ((!all && i % LEN(models) != w % LEN(models)) || (quick && w % 2))
            continue;
        try_job((Job){.model = models[i % LEN(models)],
                      .mesh = ways[w].mesh,
                      .passes = ways[w].passes,
                      .reshard = ways[w].reshard,
                      .accumulate = ways[w].accumulate,
                      .offload = ways[w].offload,
                      .steps = all || (w == 0 && !quick) ? STEPS : FEW,
                      .seed = (uint64_t)i});
    }
    return test_report();
}
