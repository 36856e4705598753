/* Ranks on the device cuda (src/exec/device_cuda.c, late.c), where there is no GPU: its runtime is
 * stood in for (tests/shared/runtime_cuda.c), whose streams do later what they are given. Steps of
 * a model on meshes have the bits that the processor gives, run step by step, captured, repeated
 * and checked, through the host's memory and by NCCL (src/exec/nccl_cuda.c), which is stood in for
 * too (tests/shared/nccl_cuda.c); NCCL's own sums are near. So have all collectives, and the kernel
 * of our sums. A rank that fails or does not come, a call or a communicator of NCCL that fails, end
 * the runs of all, with the rank and the reason. Ranks that are threads are refused, so that here
 * they are said to be processes. A rank takes the GPU of its number. TN_LONG=1: one mesh more. */
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../shared/nccl_stand_in.h"
#include "../shared/ranks_run.h"
#include "../shared/runtime_cuda.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALL = -1, STEPS = 5, ROWS = 8, SEQ = 12, MOST_RANKS = 4 };

/* Ranks do this instead of their last step: one fails; all but one do not come. */
typedef enum { GO_ON, FAIL, STAY_AWAY } Deed;

typedef struct Job {
    const char *mesh;
    int64_t accumulate;
    const char *comm; /* --gpu-comm */
    const char *text; /* a graph of rank %d; NULL: a model's step */
    bool check, fast;
    Deed deed;
    int fails;        /* the rank whose reason ends all, or ALL */
    const char *says; /* that, or a part of it, which rank 0 has; NULL: none fails */
    double timeout;   /* 0: a long one */
    NcclFault fault;
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
    o.gpu_comm = j->comm;
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(j->a), j->a, j->mesh));
    Graph **g = NEWN(j->a, Graph *, n);
    for (o.rank = 0; o.rank < n; o.rank++) {
        g[o.rank] = j->text
                        ? graph_parse(j->a, arena_printf(j->a, j->text, o.rank), "text")
                        : model_graph(j->a, &j->config, ROWS, SEQ, &(ModelOptions){.dropout = 0.1});
        passes_run(g[o.rank], j->text ? "stage" : "default", &o, NULL, NULL);
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

static bool is_near(const Tensor *x, const Tensor *y)
{
    bool all = true;
    for (int64_t i = 0; i < tensor_nelem(x); i++) {
        double d = tensor_get(x, i) - tensor_get(y, i);
        all &= d * d <= 1e-8 * (1 + tensor_get(y, i) * tensor_get(y, i));
    }
    return all;
}

static Program *make_cuda(Arena *a, const Job *j, Comm *c)
{
    PlanFor to = {.overlap = true, .device = device_at(DEVICE_cuda)};
    Graph *g = graph_clone(a, j->cuda.g[comm_rank(c)]);
    Program *x = program_make(a, plan_ordered(a, g, &to), j->check, 0);
    program_join(x, a, c, j->fast);
    program_library(x, arena_ctx(a));
    program_fill(x, POISON);
    return x;
}

/* Fails, by itself or once another rank has. */
static void do_deed(Arena *a, Comm *c, Deed deed)
{
    char why[COMM_MESSAGE] = "";
    if (deed == FAIL)
        fail(arena_ctx(a), TN_FAIL, "the GPU is on fire");
    for (int msec = 0; msec < 20000 && !comm_failed(c, why); msec++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    fail(arena_ctx(a), TN_FAIL, "%s", why);
}

static void run_cuda(Arena *a, Comm *c, Job *j)
{
    int rank = comm_rank(c);
    Program *x = make_cuda(a, j, c);
    const Graph *g = x->plan->g;
    Tensor *out = ranks_outputs(a, g);
    for (int s = 0; s < STEPS; s++) {
        write_inputs(j, x, rank, s);
        if (s == STEPS - 1 && j->deed && (rank == j->fails) == (j->deed == FAIL))
            do_deed(a, c, j->deed);
        ranks_step(x);
        ranks_read(x, out);
        for (int k = 0; k < g->nout; k++)
            if (!(j->fast ? is_near : tensor_same_bits)(&out[k], &j->want[s * j->cpu.n + rank][k]))
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
    const CommOptions o = {
        .timeout = p->j->timeout > 0 ? p->j->timeout : 20, .delay = 200, .seed = 3};
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

/* The failing rank has the reason, the others it with that rank's number. */
static void expect_failed(const Job *j)
{
    char others[COMM_MESSAGE];
    if (j->fails == ALL) {
        EXPECT(strstr(j->failed[0], j->says) && *j->failed[1]);
        return;
    }
    snprintf(others, sizeof others, "rank %d: %s", j->fails, j->says ? j->says : "");
    for (int i = 0; i < j->cuda.n; i++) {
        const char *want = !j->says ? "" : i == j->fails ? j->says : others;
        if (!EXPECT(!strcmp(j->failed[i], want)))
            printf("  %s by %s: rank %d: expected \"%s\", found \"%s\"\n", j->mesh, j->comm, i,
                   want, j->failed[i]);
    }
}

/* By which calls of NCCL its collectives went. */
static void expect_calls(const Job *j, const NcclSeen *before)
{
    NcclSeen now = nccl_seen();
    bool nccl = !strcmp(j->comm, "nccl");
    EXPECT((now.gathers > before->gathers) == nccl);
    EXPECT((now.groups > before->groups) == (nccl && !j->fast && j->cuda.n > 1));
    EXPECT((now.reductions > before->reductions) == j->fast);
    EXPECT((now.comms > before->comms) == nccl);
    EXPECT(now.comms - before->comms == now.destroyed - before->destroyed);
    EXPECT(now.aborted == before->aborted);
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
    NcclSeen library = nccl_seen();
    bool host = !strcmp(j->comm, "host");
    nccl_fault(j->fault);
    run_processes(j);
    nccl_fault((NcclFault){0});
    RuntimeSeen after = runtime_seen();
    expect_failed(j);
    if (!j->says) {
        expect_calls(j, &library);
        EXPECT(after.graphs - before.graphs == (j->check ? 0 : j->cuda.n));
        EXPECT((after.called > before.called) == (host && !j->check));
    }
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

/* ---- the kernel of our sums ---- */

int cuda_merge_members(void *stream, const Node *n, int count, const void *const *x, int64_t nelem,
                       void *y, char *message, int size);

enum { NELEM = 700, MEMBERS = 5 };

static const Node *reduction(Arena *a, DType d, const char *op)
{
    const char *t = dtype_name(d);
    const char *text =
        arena_printf(a,
                     "tenon 1\ngraph g mesh(tp=%d) at(0) (%%x: %s[%d] batch partial(sum: tp)) {\n"
                     "  %%y: %s[%d] = all_reduce(%%x, reduce_op=\"%s\", group=\"tp\")\n"
                     "  %%w: %s[%d] = wait_tensor(%%y, %%x)\n  return %%w\n}\n",
                     MEMBERS, t, NELEM, t, NELEM, op, t, NELEM);
    return graph_parse(a, text, "reduction")->first;
}

static double random_value(DType d, int problem, int member, int64_t i)
{
    double u = random_uniform(9, (uint32_t)problem, (uint32_t)member, (uint64_t)i);
    return d == BOOL ? u > 0.7 : dtype_float(d) ? 3 * u - 1 : (int)(40 * u);
}

static void try_sum(Arena *a, int problem, DType d, const char *op)
{
    char why[RUN_MESSAGE];
    const Node *n = reduction(a, d, op);
    const void *from[MEMBERS];
    Tensor y[2];
    for (int m = 0; m < MEMBERS; m++) {
        Tensor x = tensor_new(a, &n->in[0]->type, 0);
        from[m] = x.data;
        for (int64_t i = 0; i < NELEM; i++)
            tensor_set(&x, i, random_value(d, problem, m, i));
    }
    for (int i = 0; i < 2; i++)
        y[i] = tensor_new(a, &n->in[0]->type, 0);
    collective_reduce(n, MEMBERS, from, NELEM, y[0].data);
    EXPECT(!cuda_merge_members(NULL, n, MEMBERS, from, NELEM, y[1].data, why, sizeof why));
    if (!EXPECT(tensor_same_bits(&y[0], &y[1])))
        printf("  %s of %s\n", op, dtype_name(d));
}

static void try_sums(void *arg)
{
    static const char *const op[] = {"sum", "avg", "max", "min", "product"};
    static const DType dtype[] = {F64, F32, BF16, F16, I64, I32, U8, BOOL};
    Arena *a = arg;
    char why[RUN_MESSAGE];
    for (int k = 0; k < LEN(op) * LEN(dtype); k++)
        try_sum(a, k, dtype[k / LEN(op)], op[k % LEN(op)]);
    EXPECT(cuda_merge_members(NULL, reduction(a, F32, "sum"), 300, NULL, 1, NULL, why, sizeof why));
    EXPECT(strstr(why, "expected a group of at most 256 GPUs, found 300"));
}

static void test_sums(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CHECK(a);
    if (!EXPECT(!ctx_try(&ctx, try_sums, a)))
        printf("  %s\n", ctx.message);
    arena_free(a);
    ctx_end(&ctx);
}

/* ---- all jobs ---- */

static const char all_ops[] =
    "tenon 1\n"
    "graph g mesh(tp=3) at(%d) (%%x: f32[6, 4] batch partial(sum: tp), "
    "%%n: i64[5] batch partial(sum: tp)) {\n"
    "  %%a: f32[6, 4] = all_reduce(%%x, reduce_op=\"sum\", group=\"tp\")\n"
    "  %%a1: f32[6, 4] = wait_tensor(%%a, %%x)\n"
    "  %%b: i64[5] = all_reduce(%%n, reduce_op=\"max\", group=\"tp\")\n"
    "  %%b1: i64[5] = wait_tensor(%%b, %%n)\n"
    "  %%g: f32[18, 4] = all_gather_into_tensor(%%x, group_size=3, group=\"tp\")\n"
    "  %%g1: f32[18, 4] = wait_tensor(%%g, %%x)\n"
    "  %%s: f32[2, 4] = reduce_scatter_tensor(%%x, reduce_op=\"avg\", group_size=3, group=\"tp\")\n"
    "  %%s1: f32[2, 4] = wait_tensor(%%s, %%x)\n"
    "  %%t: f32[6, 4] = all_to_all_single(%%x, group=\"tp\")\n"
    "  %%t1: f32[6, 4] = wait_tensor(%%t, %%x)\n"
    "  %%c: f32[6, 4] = broadcast(%%x, src=1, group=\"tp\")\n"
    "  %%c1: f32[6, 4] = wait_tensor(%%c, %%x)\n"
    "  %%p: f32[6, 4] = permute_tensor(%%x, shift=1, group=\"tp\")\n"
    "  %%p1: f32[6, 4] = wait_tensor(%%p, %%x)\n"
    "  return %%a1, %%b1, %%g1, %%s1, %%t1, %%c1, %%p1\n"
    "}\n";

static const char one_rank[] =
    "tenon 1\n"
    "graph g mesh(tp=1) at(%d) (%%x: f32[6, 4] batch) {\n"
    "  %%a: f32[6, 4] = all_reduce(%%x, reduce_op=\"sum\", group=\"tp\")\n"
    "  %%a1: f32[6, 4] = wait_tensor(%%a, %%x)\n"
    "  %%s: f32[6, 4] = reduce_scatter_tensor(%%x, reduce_op=\"max\", group_size=1, group=\"tp\")\n"
    "  %%s1: f32[6, 4] = wait_tensor(%%s, %%x)\n"
    "  return %%a1, %%s1\n"
    "}\n";

/* Jobs that give what the processor gives. */
static void test_bits(const char *comm)
{
    const Job one = {.mesh = "fsdp=2", .accumulate = 1, .comm = comm};
    Job j = one;
    try_job(j, run_job);
    j.check = true;
    try_job(j, run_job);
    j = one;
    j.mesh = "dp=2,fsdp=2";
    j.accumulate = 2;
    try_job(j, run_job);
    j = one;
    j.mesh = "tp=3";
    j.text = all_ops;
    try_job(j, run_job);
    j.mesh = "tp=1";
    j.text = one_rank;
    try_job(j, run_job);
    j = one;
    j.mesh = "fsdp=2,tp=2";
    if (getenv("TN_LONG"))
        try_job(j, run_job);
}

static void test_failures(void)
{
    static const struct {
        const char *comm;
        Deed deed;
        int fails;
        NcclFault fault;
        double timeout;
        const char *says;
    } failure[] = {
        {"host", FAIL, 1, {0}, 0, "the GPU is on fire"},
        {"nccl", FAIL, 1, {0}, 0, "the GPU is on fire"},
        {"nccl", STAY_AWAY, 0, {0}, 1, "collectives have not ended for 1 s: a rank has not come"},
        {"nccl", GO_ON, ALL, {NCCL_FAULT_ID, 0, 0}, 0, "an id: unhandled system error"},
        {"nccl", GO_ON, ALL, {NCCL_FAULT_MISSING, 0, 0}, 0, "expected NVIDIA's library NCCL"},
        {"nccl",
         GO_ON,
         1,
         {NCCL_FAULT_INIT, 1, 0},
         0,
         "NCCL: a communicator: unhandled system error"},
        {"nccl", GO_ON, 0, {NCCL_FAULT_CALL, 0, 9}, 0, "NCCL: an exchange: unhandled system error"},
        {"nccl", GO_ON, 1, {NCCL_FAULT_ASYNC, 1, 12}, 0, "NCCL: a collective: internal error"},
    };
    for (int i = 0; i < LEN(failure); i++) {
        Job j = {.mesh = "fsdp=2", .accumulate = 1, .comm = failure[i].comm};
        j.deed = failure[i].deed;
        j.fails = failure[i].fails;
        j.fault = failure[i].fault;
        j.timeout = failure[i].timeout;
        j.says = failure[i].says;
        try_job(j, run_job);
    }
}

int main(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                        "SLURM_PROCID"};
    const Job threads = {.mesh = "fsdp=2", .accumulate = 1, .comm = "host"};
    const Job fast = {.mesh = "fsdp=2", .accumulate = 1, .comm = "nccl", .fast = true};
    for (int i = 0; i < LEN(names); i++)
        unsetenv(names[i]);
    par_set_threads(1);
    runtime_kernels();
    runtime_delay(50);
    test_number();
    test_local();
    test_sums();
    try_job(threads, refuse_threads);
    test_bits("host");
    test_bits("nccl");
    try_job(fast, run_job);
    test_failures();
    return test_report();
}
