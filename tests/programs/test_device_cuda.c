/* The device cuda where there is no GPU: its driver (src/exec/device_cuda.c, which this file has in
 * itself) on functions that stand in for CUDA's runtime, in the host's memory, with kernels on the
 * processor (simt.h). A failure gives its memory back; a recording that cannot be is done without;
 * after a fault that a kernel has noted nothing is renewed. */
#include "../../src/exec/device_cuda.c"

#include "../../src/machine/machine.h"
#include "../shared/simt.h"
#include "../shared/test.h"

/* ---- what stands in for CUDA's runtime: all is done at once, also what is captured ---- */

static int nmapped, ninstantiated, nlaunched;
static cudaError_t memset_gives, synchronize_gives, capture_gives, instantiate_gives, launch_gives,
    last;

/* As CUDA's functions it keeps the last error. */
static cudaError_t give(cudaError_t e)
{
    last = e ? e : last;
    return e;
}

static cudaError_t map_host(void **p, size_t n)
{
    *p = aligned_alloc(256, (n + 255) / 256 * 256);
    nmapped += *p != NULL;
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t unmap_host(void *p)
{
    nmapped -= p != NULL;
    free(p);
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    (void)stream;
    fn(arg);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

const DeviceRanks ranks_cuda = {.open = NULL}; /* no rank has another here */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device ? give(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = *all = (size_t)1 << 30;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    return map_host(p, n);
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    return map_host(p, n);
}

cudaError_t cudaFree(void *p)
{
    return unmap_host(p);
}

cudaError_t cudaFreeHost(void *p)
{
    return unmap_host(p);
}

cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s)
{
    (void)s;
    return map_host(p, n);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    (void)s;
    return unmap_host(p);
}

cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    memset(p, byte, n);
    return give(memset_gives);
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
    (void)s;
    memset(p, byte, n);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k,
                            cudaStream_t s)
{
    (void)k, (void)s;
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return give(synchronize_gives);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    *s = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)s, (void)e, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    *e = NULL;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e, (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s, (void)mode;
    return give(capture_gives);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    (void)s;
    *g = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    static char made;
    (void)g, (void)flags;
    ninstantiated++;
    *x = instantiate_gives ? NULL : (cudaGraphExec_t)(void *)&made;
    return give(instantiate_gives);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    (void)x, (void)s;
    nlaunched += !launch_gives;
    return give(launch_gives);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    (void)g;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    (void)x;
    return cudaSuccess;
}

/* ---- memory ---- */

static void test_map(void)
{
    static const struct {
        cudaError_t clears, waits;
        int want;
    } tries[] = {{cudaSuccess, cudaSuccess, 0},
                 {cudaErrorLaunchFailure, cudaSuccess, EIO},
                 {cudaErrorMemoryAllocation, cudaSuccess, ENOMEM},
                 {cudaSuccess, cudaErrorMemoryAllocation, ENOMEM}};
    for (int i = 0; i < LEN(tries); i++) {
        Memory m = {.space = SPACE_MAIN, .nbytes = 4096};
        memset_gives = tries[i].clears;
        synchronize_gives = tries[i].waits;
        EXPECT(map(&m) == tries[i].want);
        EXPECT(nmapped == !tries[i].want && !last);
        if (!tries[i].want)
            unmap(&m);
        EXPECT(nmapped == 0);
    }
    memset_gives = synchronize_gives = cudaSuccess;
}

/* ---- programs ---- */

/* Both renewals need what the ids name. */
static const char text[] =
    "tenon 1\n"
    "graph t(%w: f32[3, 4] param \"w\", %r: f32[3, 4] state \"r\", %ids: i64[3] batch, "
    "%lr: f32[] scalar \"lr\", %s: f32[] batch, %b: bool[] batch) {\n"
    "  %e: f32[3, 4] = embedding(%w, %ids)  forward\n"
    "  %r.new: f32[3, 4] = add(%r, %e)  forward\n"
    "  %w.new: f32[3, 4] = sgd(%w, %e, %lr, %s, %b)  optimizer\n"
    "  return %e, new \"w\" %w.new, new \"r\" %r.new\n}\n";

enum { IDS = 2, SCALE = 4, APPLY }; /* inputs */

static const int64_t good_ids[3] = {0, 1, 2}, bad_ids[3] = {0, 7, 2};

typedef struct Run {
    Arena *a;
    Program *x;
    float w[12], r[12], e[12];
} Run;

static void put(const Run *t, Role role, const char *name, const void *from, int64_t nbytes)
{
    const PlanPort *p = program_find_input(t->x, role, name);
    EXPECT(p && !program_write(t->x, p, 0, nbytes, from));
}

static void get(Run *t)
{
    Program *x = t->x;
    EXPECT(!program_read(x, program_find_input(x, ROLE_PARAM, "w"), 0, sizeof t->w, t->w));
    EXPECT(!program_read(x, program_find_input(x, ROLE_STATE, "r"), 0, sizeof t->r, t->r));
    EXPECT(!program_read(x, &x->plan->out[0], 0, sizeof t->e, t->e));
}

static void make(Run *t)
{
    const Device *d = device_at(DEVICE_cuda);
    Graph *g = graph_parse(t->a, text, "t");
    PlanFor to = {.device = d, .machine = machine_get(t->a, "h100", 1)};
    t->x = program_make(t->a, plan_make(t->a, g, &to), false, 0);
    for (int i = 0; i < 12; i++) {
        t->w[i] = (float)(i + 1);
        t->r[i] = 1;
    }
    put(t, ROLE_PARAM, "w", t->w, sizeof t->w);
    put(t, ROLE_STATE, "r", t->r, sizeof t->r);
}

/* Inputs do not last longer than a run. */
static int run_with(const Run *t, const int64_t *ids)
{
    float lr = 0.5F, one = 1;
    bool apply = true;
    const PlanPort *in = t->x->plan->in;
    EXPECT(!program_write(t->x, &in[IDS], 0, sizeof good_ids, ids));
    EXPECT(!program_write(t->x, &in[SCALE], 0, sizeof one, &one));
    EXPECT(!program_write(t->x, &in[APPLY], 0, sizeof apply, &apply));
    put(t, ROLE_SCALAR, "lr", &lr, sizeof lr);
    return program_run(t->x);
}

/* w halves with each run, r gets what w was. */
static void expect_runs(Run *t, int n)
{
    get(t);
    for (int i = 0; i < 12; i++) {
        float w = (float)(i + 1), r = 1;
        for (int k = 0; k < n; k++, w /= 2)
            r += w;
        if (!EXPECT(t->w[i] == w && t->r[i] == r)) {
            printf("  element %d after %d runs: w %g, r %g\n", i, n, (double)t->w[i],
                   (double)t->r[i]);
            return;
        }
    }
}

/* The first run is given step by step; the second would be recorded. */
static void test_fault(void *arg)
{
    Run *t = arg;
    make(t);
    EXPECT(run_with(t, bad_ids));
    EXPECT(strstr(t->x->message, "embedding %e: id 7 at position 1: expected 0 to 2"));
    expect_runs(t, 0);
    EXPECT(run_with(t, bad_ids) && strstr(t->x->message, "id 7"));
    expect_runs(t, 0);
}

static void test_refused(void *arg)
{
    Run *t = arg;
    ninstantiated = nlaunched = 0;
    instantiate_gives = cudaErrorMemoryAllocation;
    make(t);
    EXPECT(!run_with(t, good_ids));
    expect_runs(t, 1);
    /* what is captured runs here too: the second run counts twice */
    for (int i = 0; i < 3; i++)
        EXPECT(!run_with(t, good_ids));
    expect_runs(t, 5);
    EXPECT(ninstantiated == 1 && nlaunched == 0 && !last);
    EXPECT(run_with(t, bad_ids) && strstr(t->x->message, "id 7"));
    expect_runs(t, 5);
    EXPECT(!run_with(t, good_ids));
    expect_runs(t, 6);
    instantiate_gives = cudaSuccess;
}

/* The same where no capture begins, and where what was recorded is not launched any more. */
static void test_not_begun(void *arg)
{
    Run *t = arg;
    ninstantiated = nlaunched = 0;
    capture_gives = cudaErrorMemoryAllocation;
    make(t);
    for (int i = 0; i < 3; i++)
        EXPECT(!run_with(t, good_ids));
    capture_gives = cudaSuccess;
    EXPECT(!run_with(t, good_ids));
    expect_runs(t, 4);
    EXPECT(ninstantiated == 0 && nlaunched == 0 && !last);
}

static void test_not_launched(void *arg)
{
    Run *t = arg;
    ninstantiated = nlaunched = 0;
    make(t);
    for (int i = 0; i < 2; i++)
        EXPECT(!run_with(t, good_ids));
    launch_gives = cudaErrorMemoryAllocation;
    EXPECT(!run_with(t, good_ids));
    launch_gives = cudaSuccess;
    EXPECT(!run_with(t, good_ids));
    expect_runs(t, 4);
    EXPECT(ninstantiated == 1 && nlaunched == 1 && !last);
}

static void test_recorded(void *arg)
{
    Run *t = arg;
    ninstantiated = nlaunched = 0;
    make(t);
    for (int i = 0; i < 4; i++)
        EXPECT(!run_with(t, good_ids));
    EXPECT(ninstantiated == 1 && nlaunched == 3);
    expect_runs(t, 2);
}

static void each(void (*fn)(void *arg))
{
    Ctx ctx = {0};
    Run t = {.a = arena_new(&ctx)};
    if (!EXPECT(!ctx_try(&ctx, fn, &t)))
        printf("  %s\n", ctx.message);
    arena_free(t.a);
    ctx_end(&ctx);
    EXPECT(nmapped == 0);
}

int main(void)
{
    simt_order(SIMT_FORWARD);
    test_map();
    each(test_fault);
    each(test_refused);
    each(test_not_begun);
    each(test_not_launched);
    each(test_recorded);
    return test_report();
}
