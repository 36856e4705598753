/* Ranks on the device cuda (src/exec/device_cuda.c, late.c), where there is no GPU: its runtime is
 * stood in for (tests/shared/runtime_cuda.c), whose streams do later what they are given. Steps of
 * a model on meshes have the bits that the processor gives, run step by step, captured, repeated
 * and checked; a rank that fails ends the runs of the others, with its message; ranks that are
 * threads are refused, so that here they are said to be processes. Which GPU a rank takes.
 * TN_LONG=1: more meshes. */
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../shared/ranks_run.h"
#include "../shared/runtime_cuda.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 5, ROWS = 8, SEQ = 12, MOST_RANKS = 4 };

typedef struct Job {
    const char *mesh;
    int64_t accumulate;
    bool check;
    int fails; /* the rank that does; -1: none */
    /* what is made of it */
    Arena *a;
    ModelConfig config;
    Ranks cpu, cuda;
    Tensor **want; /* by step, then rank, the outputs on the processor */
    CommShared *shared;
    char failed[MOST_RANKS][COMM_MESSAGE];
} Job;

static Ranks compile_ranks(const Job *j, const char *device)
{
    PassOptions o = pass_defaults();
    o.accumulate = j->accumulate;
    o.mesh = j->mesh;
    o.backend = device;
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, j->mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (o.rank = 0; o.rank < n; o.rank++) {
        g[o.rank] = model_graph(j->a, &j->config, ROWS, SEQ, &(ModelOptions){.dropout = 0.1});
        passes_run(g[o.rank], "default", &o, NULL, NULL);
    }
    return ranks_of(j->a, n, g);
}

static double input_value(const Job *j, const Port *p, float u, int step)
{
    switch (p->role) {
    case ROLE_BATCH: return (double)(int64_t)((double)j->config.vocab * (double)u);
    case ROLE_STEP: return step + 1;
    case ROLE_SEED: return 5;
    case ROLE_SCALAR: return 1e-2;
    case ROLE_STATE: return 0;
    default: return 0.2 * (double)u - 0.1;
    }
}

static void write_inputs(const Job *j, Program *x, int rank, int step)
{
    const Graph *g = x->plan->g;
    Arena *a = arena_new(g->ctx);
    CHECK(a);
    Tensor *in = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        bool own = p->cut || p->role == ROLE_BATCH;
        uint32_t stream = (uint32_t)hash_bytes(p->v->name, strlen(p->v->name), 7);
        in[i] = tensor_new(a, &p->v->type, 0);
        for (int64_t k = 0; k < tensor_nelem(&in[i]); k++) {
            float u =
                random_uniform(own ? 100 + (uint64_t)rank : 1, stream, (uint32_t)step, (uint64_t)k);
            tensor_set(&in[i], k, input_value(j, p, u, step));
        }
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
    for (int s = 0; s < STEPS; s++) {
        write_inputs(j, x, rank, s);
        ranks_step(x);
        ranks_read(x, j->want[s * j->cpu.n + rank]);
    }
}

static void run_cuda(Arena *a, Comm *c, Job *j)
{
    int rank = comm_rank(c);
    Program *x = ranks_program(a, j->cuda.g[rank], device_at(DEVICE_cuda), c, j->check);
    const Graph *g = x->plan->g;
    Tensor *out = ranks_outputs(a, g);
    for (int s = 0; s < STEPS; s++) {
        write_inputs(j, x, rank, s);
        if (s == STEPS - 1 && rank == j->fails)
            fail(arena_ctx(a), TN_FAIL, "the GPU is on fire");
        ranks_step(x);
        ranks_read(x, out);
        for (int k = 0; k < g->nout; k++)
            if (!tensor_same_bits(&out[k], &j->want[s * j->cpu.n + rank][k]))
                fail(arena_ctx(a), TN_FAIL,
                     "step %d, output %%%s: other bits than on the processor", s,
                     g->out[k].v->name);
    }
}

/* ---- ranks as if they were processes ---- */

typedef struct Process {
    Job *j;
    int rank;
    pthread_t thread;
    Arena *a;
    Comm *c;
    Transport t;
} Process;

static void run_rank(void *arg)
{
    Process *p = arg;
    void *self;
    const CommOptions o = {.timeout = 20, .delay = 200, .seed = 3};
    p->t = *comm_threads(p->j->shared, p->rank, &self);
    p->t.kills = true;
    p->c = comm_open(p->a, &p->t, self, &o);
    run_cuda(p->a, p->c, p->j);
}

static void *begin_rank(void *arg)
{
    Process *p = arg;
    Ctx ctx = {0};
    par_set_threads(1);
    p->a = arena_new(&ctx);
    CHECK(p->a);
    if (ctx_try(&ctx, run_rank, p)) {
        snprintf(p->j->failed[p->rank], COMM_MESSAGE, "%.300s", ctx.message);
        if (p->c)
            comm_abort(p->c, TN_FAIL, ctx.message);
    }
    arena_free(p->a);
    ctx_end(&ctx);
    return NULL;
}

static void run_processes(Job *j)
{
    Process p[MOST_RANKS];
    j->shared = comm_shared(j->a, j->cuda.n);
    for (int i = 0; i < j->cuda.n; i++) {
        p[i] = (Process){.j = j, .rank = i};
        CHECK(!pthread_create(&p[i].thread, NULL, begin_rank, &p[i]));
    }
    for (int i = 0; i < j->cuda.n; i++)
        pthread_join(p[i].thread, NULL);
}

static void expect_failed(const Job *j)
{
    char want[80];
    snprintf(want, sizeof want, "rank %d: the GPU is on fire", j->fails);
    for (int i = 0; i < j->cuda.n; i++) {
        const char *expected = j->fails < 0 ? "" : i == j->fails ? want + 8 : want;
        if (!EXPECT(!strcmp(j->failed[i], expected)))
            printf("  %s: rank %d: expected \"%s\", found \"%s\"\n", j->mesh, i, expected,
                   j->failed[i]);
    }
}

static void run_job(void *arg)
{
    Job *j = arg;
    const CommOptions none = {0};
    j->config = config_read(j->a, "tests/ref/gpt2-tiny/config.json");
    j->cpu = compile_ranks(j, "cpu");
    j->cuda = compile_ranks(j, "cuda");
    j->want = NEWN(j->a, Tensor *, STEPS * j->cpu.n);
    for (int i = 0; i < STEPS * j->cpu.n; i++)
        j->want[i] = ranks_outputs(j->a, j->cpu.g[i % j->cpu.n]);
    const char *why = ranks_threads(j->a, j->cpu.n, &none, run_cpu, j);
    if (!EXPECT(!why))
        printf("  %s on the processor: %s\n", j->mesh, why);
    RuntimeSeen before = runtime_seen();
    run_processes(j);
    RuntimeSeen after = runtime_seen();
    expect_failed(j);
    EXPECT(after.graphs - before.graphs == (j->check ? 0 : j->cuda.n));
    EXPECT((after.called > before.called) == !j->check);
}

/* Ranks that are threads, which CUDA may call back one after the other. */
static void run_threads(Arena *a, Comm *c, void *arg)
{
    const Job *j = arg;
    ranks_program(a, j->cuda.g[comm_rank(c)], device_at(DEVICE_cuda), c, false);
}

static void refuse_threads(void *arg)
{
    Job *j = arg;
    const CommOptions none = {0};
    j->config = config_read(j->a, "tests/ref/gpt2-tiny/config.json");
    j->cuda = compile_ranks(j, "cuda");
    const char *why = ranks_threads(j->a, j->cuda.n, &none, run_threads, j);
    if (!EXPECT(why && strstr(why, "ranks on device cuda are processes, found threads of one")))
        printf("  %s\n", why ? why : "");
}

static void try_job(Job j, void (*run)(void *job))
{
    Ctx ctx = {0};
    j.a = arena_new(&ctx);
    CHECK(j.a);
    if (!EXPECT(!ctx_try(&ctx, run, &j)))
        printf("  %s: %s\n", j.mesh, ctx.message);
    arena_free(j.a);
    ctx_end(&ctx);
}

/* ---- which GPU ---- */

static void test_number(void)
{
    static const struct {
        int first, local, count, want;
    } gpu[] = {
        {0, 0, 8, 0}, {0, 5, 8, 5}, {2, 3, 8, 5}, {6, 3, 8, 1},
        {0, 1, 1, 0}, {0, 7, 4, 3}, {8, 1, 8, 8}, /* refused, as it is of one rank */
        {1, 1, 0, 1},
    };
    for (int i = 0; i < LEN(gpu); i++)
        EXPECT(device_of_rank(gpu[i].first, gpu[i].local, gpu[i].count) == gpu[i].want);
}

static void test_local(void)
{
    static const struct {
        const char *name[4], *value[4];
        int want;
    } started[] = {
        {{"OMPI_COMM_WORLD_LOCAL_RANK"}, {"1"}, -1}, /* no launcher */
        {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
         {"5", "8", "1"},
         1},
        {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"5", "8"}, -1},
        {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "SLURM_LOCALID"}, {"5", "8", "3", "0"}, 3},
        {{"PMI_RANK", "PMI_SIZE", "SLURM_LOCALID"}, {"5", "8", "0"}, -1},
        {{"PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"}, {"5", "8", "2"}, 2},
        {{"PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"}, {"5", "8", "6"}, 6},
        {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, {"5", "8", "2x"}, -1},
        {{"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}, {"5", "8", "4"}, 4},
    };
    for (int i = 0; i < LEN(started); i++) {
        for (int k = 0; k < 4 && started[i].name[k]; k++)
            setenv(started[i].name[k], started[i].value[k], 1);
        if (!EXPECT(comm_launched_local() == started[i].want))
            printf("  %d: %d\n", i, comm_launched_local());
        for (int k = 0; k < 4 && started[i].name[k]; k++)
            unsetenv(started[i].name[k]);
    }
}

int main(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                        "SLURM_PROCID"};
    const Job none = {.mesh = "fsdp=2", .accumulate = 1, .fails = -1};
    for (int i = 0; i < LEN(names); i++)
        unsetenv(names[i]);
    par_set_threads(1);
    runtime_kernels();
    runtime_delay(50);
    test_number();
    test_local();
    Job j = none;
    try_job(j, run_job);
    try_job(j, refuse_threads);
    j.check = true;
    try_job(j, run_job);
    j = none;
    j.fails = 1;
    try_job(j, run_job);
    j = none;
    j.mesh = "dp=2,fsdp=2";
    j.accumulate = 2;
    try_job(j, run_job);
    j.mesh = "fsdp=2,tp=2";
    if (getenv("TN_LONG"))
        try_job(j, run_job);
    return test_report();
}
