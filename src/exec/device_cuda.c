/* cuda: a GPU by NVIDIA's runtime, which is linked statically and finds the driver when it is first
 * called. Kernels are given to a stream for each queue; run() of a kernel returns before it has
 * run. The second run of a program is captured as one CUDA graph, which it and all later ones
 * launch: a plan's addresses do not change, and scalars, which do, are copied from pinned memory in
 * each run. The first run is given step by step, as libraries load what they need when it is first
 * launched, and so are runs that are traced or checked. Messages of ranks lie in the host's memory,
 * and are sent by a function of the host that the stream, or the graph, calls (late.c).
 *
 * The arena is one cudaMalloc, the host's memory is pinned. */
#include "../cuda/memory.h"
#include "exec.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WATCH_NSEC = 20000 };

extern const DeviceRanks ranks_cuda; /* nccl_cuda.c */

typedef struct Cuda {
    Queues queues; /* first: what callers have of it */
    int number;
    cudaStream_t stream[MAX_QUEUE];
    cudaEvent_t joined[MAX_QUEUE]; /* a captured run has ended there */
    uint64_t nrun;                 /* events that an earlier one recorded do not count */
} Cuda;

struct Recording {
    cudaGraphExec_t run;           /* NULL: nothing was recorded */
    bool capturing, warm, refused; /* refused: runs are given step by step from then on */
};

/* Keeps the first error of a queue's work. */
static bool good(Cuda *c, cudaError_t e)
{
    if (e != cudaSuccess && !c->queues.failed) {
        c->queues.failed = true;
        snprintf(c->queues.message, RUN_MESSAGE, "CUDA: %s", cudaGetErrorString(e));
    }
    return e == cudaSuccess;
}

static void must(Arena *a, cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fail(arena_ctx(a), e == cudaErrorMemoryAllocation ? TN_FIT : TN_FAIL, "CUDA: %s: %s", what,
             cudaGetErrorString(e));
}

/* ---- the device and its memory ---- */

static void ready(Ctx *ctx, int number)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver)
        fail(ctx, TN_FAIL,
             "--backend cuda: expected a GPU, found none: the driver (libcuda.so.1) is missing, or "
             "older than CUDA %d",
             CUDART_VERSION / 1000);
    if (e != cudaSuccess || !count)
        fail(ctx, TN_FAIL, "--backend cuda: expected a GPU, found none: %s",
             e == cudaSuccess ? "no device" : cudaGetErrorString(e));
    if (number >= count)
        fail(ctx, TN_USAGE, "--device: expected less than %d, the number of GPUs, found %d", count,
             number);
    e = cudaSetDevice(number);
    if (e != cudaSuccess)
        fail(ctx, TN_FAIL, "--backend cuda: GPU %d: %s", number, cudaGetErrorString(e));
}

static int count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static int64_t available(void)
{
    size_t left, all;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (int64_t)left : -1;
}

static int64_t used(Queues *q)
{
    size_t left, all;
    cudaSetDevice(((Cuda *)q)->number);
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (int64_t)(all - left) : 0;
}

static void unmap(Memory *m)
{
    if (m->on_host)
        cudaFreeHost(m->mapped);
    else
        cudaFree(m->mapped);
    m->mapped = NULL;
}

static int map(Memory *m)
{
    size_t nbytes = (size_t)m->nbytes + 2 * (size_t)GUARD;
    void *p = NULL;
    m->on_host = m->space == SPACE_HOST;
    cudaSetDevice(m->number);
    cudaError_t e =
        m->on_host ? cudaHostAlloc(&p, nbytes, cudaHostAllocDefault) : cudaMalloc(&p, nbytes);
    if (e == cudaSuccess && m->on_host)
        memset(p, 0, nbytes);
    else if (e == cudaSuccess)
        e = cudaMemset(p, 0, nbytes);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize(); /* streams do not wait for that */
    m->mapped = p;
    if (e != cudaSuccess) {
        if (p)
            unmap(m);
        cudaGetLastError(); /* or the next call would report it */
        return e == cudaErrorMemoryAllocation ? ENOMEM : EIO;
    }
    m->at = m->work_at = m->mapped + GUARD;
    return 0;
}

static void free_host(void *p)
{
    cudaFreeHost(p);
}

static void *host_memory(Arena *a, int64_t nbytes)
{
    void *p;
    must(a, cudaHostAlloc(&p, (size_t)nbytes, cudaHostAllocDefault), "pinned memory");
    arena_defer(a, free_host, p);
    memset(p, 0, (size_t)nbytes);
    return p;
}

/* ---- queues ---- */

static void close_queues(void *arg)
{
    Cuda *c = arg;
    for (int i = 0; i < MAX_QUEUE; i++) {
        if (c->stream[i])
            cudaStreamDestroy(c->stream[i]);
        if (c->joined[i])
            cudaEventDestroy(c->joined[i]);
    }
}

static void free_device(void *p)
{
    cudaFree(p);
}

/* Kernels note faults here; a word on the device says whether one has, as they would read the
 * host's slowly. */
static Fault *open_fault(Arena *a)
{
    Fault *f = host_memory(a, sizeof *f);
    void *stop;
    must(a, cudaMalloc(&stop, sizeof *f->stop), "memory");
    arena_defer(a, free_device, stop);
    f->stop = stop;
    return f;
}

static Queues *open_queues(Arena *a, int number)
{
    Cuda *c = NEW(a, Cuda);
    c->number = number;
    c->queues.fault = open_fault(a);
    arena_defer(a, close_queues, c);
    for (int i = 0; i < MAX_QUEUE; i++) {
        must(a, cudaStreamCreateWithFlags(&c->stream[i], cudaStreamNonBlocking), "stream");
        must(a, cudaEventCreateWithFlags(&c->joined[i], cudaEventDisableTiming), "event");
    }
    return &c->queues;
}

static void drop_event(void *e)
{
    cudaEventDestroy(e);
}

static void event(Arena *a, Event *e)
{
    cudaEvent_t made;
    must(a, cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "event");
    e->handle = made;
    arena_defer(a, drop_event, made);
}

static bool launch(Queues *q, Queue to, const Work *w)
{
    Cuda *c = (Cuda *)q;
    Work here = *w;
    here.stream = c->stream[to];
    cudaSetDevice(c->number); /* a thread's own; costs nothing where it is so already */
    if (!q->failed)
        q->failed = w->run(&here, q->message);
    return !q->failed;
}

static void record(Queues *q, Queue in, Event *e)
{
    Cuda *c = (Cuda *)q;
    e->recorded = c->nrun;
    good(c, cudaEventRecord(e->handle, c->stream[in]));
}

static void wait(Queues *q, Queue in, Event *e)
{
    Cuda *c = (Cuda *)q;
    if (e->handle && e->recorded == c->nrun)
        good(c, cudaStreamWaitEvent(c->stream[in], e->handle, 0));
}

/* Until the stream is done, or ranks have failed, which frees it. */
static void await_ranks(Cuda *c, cudaStream_t stream)
{
    bool failed = false;
    while (!failed && cudaStreamQuery(stream) == cudaErrorNotReady) {
        char why[RUN_MESSAGE];
        failed = ranks_cuda.watch(c->queues.ranks, why);
        if (failed && !c->queues.failed)
            memcpy(c->queues.message, why, RUN_MESSAGE);
        c->queues.failed |= failed;
        c->queues.left |= failed;
        nanosleep(&(struct timespec){.tv_nsec = WATCH_NSEC}, NULL);
    }
}

static int finish(Queues *q, char *message)
{
    Cuda *c = (Cuda *)q;
    for (int i = 0; i < MAX_QUEUE; i++) {
        if (q->ranks)
            await_ranks(c, c->stream[i]);
        good(c, cudaStreamSynchronize(c->stream[i]));
    }
    if (q->ranks)
        ranks_cuda.watched(q->ranks);
    good(c, cudaGetLastError());
    c->nrun++;
    cudaGetLastError(); /* or a later run would meet it */
    return queues_end(q, message);
}

/* ---- recordings ---- */

static void drop_recording(void *arg)
{
    const Recording *r = arg;
    if (r->run)
        cudaGraphExecDestroy(r->run);
}

static Recording *recording(Arena *a)
{
    Recording *r = NEW(a, Recording);
    arena_defer(a, drop_recording, r);
    return r;
}

/* As if nothing had been recorded, from now on: a graph takes memory, which there may not be, when
 * it is made and when it is launched. A run that fails for another reason says so when it is given
 * step by step. */
static void refuse(Cuda *c, Recording *r)
{
    if (r->run)
        cudaGraphExecDestroy(r->run);
    r->run = NULL;
    r->refused = true;
    c->queues.failed = false;
    c->nrun++; /* events count only if they are recorded from now on */
    cudaGetLastError();
}

static bool begin(Queues *q, Recording *r)
{
    Cuda *c = (Cuda *)q;
    cudaSetDevice(c->number);
    if (r->run) {
        if (good(c, cudaGraphLaunch(r->run, c->stream[QUEUE_COMPUTE])))
            return false;
        refuse(c, r);
    } else if (r->warm && !r->refused) {
        r->capturing = good(
            c, cudaStreamBeginCapture(c->stream[QUEUE_COMPUTE], cudaStreamCaptureModeThreadLocal));
        if (!r->capturing)
            refuse(c, r);
    }
    r->warm = true;
    return true;
}

/* The other streams, which the run's start has drawn into the capture, join that of kernels. */
static bool end(Queues *q, Recording *r)
{
    Cuda *c = (Cuda *)q;
    cudaGraph_t graph = NULL;
    if (!r->capturing)
        return true;
    for (int i = QUEUE_COMPUTE + 1; i < MAX_QUEUE; i++)
        if (good(c, cudaEventRecord(c->joined[i], c->stream[i])))
            good(c, cudaStreamWaitEvent(c->stream[QUEUE_COMPUTE], c->joined[i], 0));
    good(c, cudaStreamEndCapture(c->stream[QUEUE_COMPUTE], &graph));
    cudaGraphExec_t made;
    if (!q->failed && good(c, cudaGraphInstantiate(&made, graph, 0))) {
        r->run = made;
        good(c, cudaGraphLaunch(r->run, c->stream[QUEUE_COMPUTE]));
    }
    if (graph)
        cudaGraphDestroy(graph);
    bool given = !q->failed;
    r->capturing = false;
    if (!given)
        refuse(c, r);
    return given;
}

static const Recorder recorder = {.make = recording, .begin = begin, .end = end};

/* ---- work ---- */

static void copy(void *stream, void *to, const void *from, int64_t nbytes)
{
    cudaMemcpyAsync(to, from, (size_t)nbytes, cudaMemcpyDefault, stream);
}

static void fill(void *stream, void *to, uint8_t byte, int64_t nbytes)
{
    cudaMemsetAsync(to, byte, (size_t)nbytes, stream);
}

/* A node of the host where the stream is being captured. */
static bool later(void *stream, void (*fn)(void *arg), void *arg)
{
    return cudaLaunchHostFunc(stream, fn, arg) == cudaSuccess;
}

static void wait_for(void *stream)
{
    cudaStreamSynchronize(stream);
}

/* A check of memory leaves its finding in a number on the GPU, which is copied to one that the host
 * reaches. Each thread has its own. */
typedef struct Finding {
    unsigned long long *there, *here;
} Finding;

static bool look(Finding *l, void *stream)
{
    static _Thread_local unsigned long long *here;
    if (!here && cudaHostAlloc((void **)&here, sizeof *here, cudaHostAllocDefault))
        return false;
    l->here = here;
    return !cudaMallocAsync((void **)&l->there, sizeof *l->there, stream) &&
           !cudaMemsetAsync(l->there, 0, sizeof *l->there, stream);
}

static unsigned long long found(const Finding *l, void *stream)
{
    cudaMemcpyAsync(l->here, l->there, sizeof *l->here, cudaMemcpyDeviceToHost, stream);
    cudaFreeAsync(l->there, stream);
    return cudaStreamSynchronize(stream) ? 0 : *l->here;
}

static int64_t high(void *stream, const char *p, uint8_t byte, int64_t nbytes)
{
    Finding l;
    if (!look(&l, stream))
        return 0;
    cuda_high(stream, p, byte, nbytes, PLAN_ALIGN, l.there);
    return (int64_t)found(&l, stream);
}

static bool any(void *stream, const Tensor *t, Unsound what)
{
    Finding l;
    if (!look(&l, stream))
        return false;
    cuda_any(stream, t, what == POISONED ? POISON : 0, l.there);
    return found(&l, stream);
}

static const StreamWork work = {.copy = copy,
                                .fill = fill,
                                .store = cuda_store,
                                .later = later,
                                .wait_for = wait_for,
                                .high = high,
                                .any = any};

const Driver driver_cuda = {
    .ready = ready,
    .count = count,
    .available = available,
    .used = used,
    .map = map,
    .unmap = unmap,
    .host_memory = host_memory,
    .open = open_queues,
    .event = event,
    .launch = launch,
    .record = record,
    .wait = wait,
    .finish = finish,
    .recorder = &recorder,
    .ranks = &ranks_cuda,
    .work = &work,
};
