/* CUDA's runtime without a GPU: memory is the host's, a stream is a thread that does in order what
 * it was given, one task of eight after a pause. An event notes how often it was recorded and how
 * often its stream has come to that. While a thread captures, what it gives to streams is kept in
 * the order in which it gives it, which is one that the graph's edges allow; a launch of the graph
 * does it in that order. Kernels are the processor's, each called by its stream with a copy of its
 * call: so a step that is given is not done, as on a GPU. */
#include "runtime_cuda.h"

#include "../../src/cuda/memory.h"
#include "../../src/exec/exec.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Task {
    struct Task *next;
    void (*run)(void *arg);
    char *arg;
} Task;

typedef struct Stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Task *first, *last; /* the first is under way, or will be */
    bool stop;
    uint64_t number, ntask; /* ntask: that had a draw for a pause */
} Stream;

typedef struct Happening {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, done;
} Happening;

typedef struct Recorded {
    Task *first, *last;
} Recorded;

static _Thread_local Recorded *capturing;
static _Atomic int ngpu = 1, delay;
static _Atomic int64_t ngraph, nlaunch, ncall;
static _Atomic uint64_t nstream;

/* ---- streams ---- */

static void pause_before(Stream *s)
{
    if (!delay)
        return;
    float share = 8 * random_uniform(s->number, 0, 0, ++s->ntask);
    if (share > 1)
        return;
    nanosleep(&(struct timespec){0, (long)(1e3F * (float)delay * share)}, NULL);
}

static Task *task_new(void (*run)(void *arg), const void *arg, uint64_t size)
{
    Task *t = calloc(1, sizeof *t);
    CHECK(t);
    t->run = run;
    t->arg = malloc(size + 1);
    CHECK(t->arg);
    memcpy(t->arg, arg, size);
    return t;
}

static void put(Task **first, Task **last, Task *t)
{
    if (*first)
        (*last)->next = t;
    else
        *first = t;
    *last = t;
}

static void *serve(void *arg)
{
    Stream *s = arg;
    par_set_threads(1);
    pthread_mutex_lock(&s->lock);
    while (s->first || !s->stop) {
        Task *t = s->first;
        if (!t) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        pause_before(s);
        t->run(t->arg);
        pthread_mutex_lock(&s->lock);
        s->first = t->next;
        pthread_cond_broadcast(&s->changed);
        free(t->arg);
        free(t);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void runtime_push(void *stream, void (*run)(void *arg), const void *arg, uint64_t size)
{
    Stream *s = stream;
    Task *t = task_new(run, arg, size);
    if (capturing) {
        put(&capturing->first, &capturing->last, t);
        return;
    }
    nlaunch++;
    pthread_mutex_lock(&s->lock);
    put(&s->first, &s->last, t);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    Stream *s = calloc(1, sizeof *s);
    CHECK(s);
    s->number = ++nstream;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    CHECK(!pthread_create(&s->thread, NULL, serve, s));
    *stream = (cudaStream_t)s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Stream *s = (Stream *)stream;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Stream *s = (Stream *)stream;
    CHECK(!capturing);
    pthread_mutex_lock(&s->lock);
    while (s->first)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Stream *s = (Stream *)stream;
    pthread_mutex_lock(&s->lock);
    bool busy = s->first;
    pthread_mutex_unlock(&s->lock);
    return busy ? cudaErrorNotReady : cudaSuccess;
}

/* ---- events ---- */

typedef struct Reach {
    Happening *e;
    uint64_t number;
} Reach;

static void reach(void *arg)
{
    Reach *r = arg;
    pthread_mutex_lock(&r->e->lock);
    r->e->done = MAX(r->e->done, r->number);
    pthread_cond_broadcast(&r->e->changed);
    pthread_mutex_unlock(&r->e->lock);
}

static void await(void *arg)
{
    Reach *r = arg;
    pthread_mutex_lock(&r->e->lock);
    while (r->e->done < r->number)
        pthread_cond_wait(&r->e->changed, &r->e->lock);
    pthread_mutex_unlock(&r->e->lock);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    Happening *e = calloc(1, sizeof *e);
    CHECK(e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *event = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Happening *e = (Happening *)event;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
    return cudaSuccess;
}

/* In a graph there are edges instead, which the order of its tasks keeps. */
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Happening *e = (Happening *)event;
    if (!capturing)
        runtime_push(stream, reach, &(Reach){e, ++e->recorded}, sizeof(Reach));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    Happening *e = (Happening *)event;
    if (!capturing)
        runtime_push(stream, await, &(Reach){e, e->recorded}, sizeof(Reach));
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)stream, (void)mode;
    CHECK(!capturing);
    capturing = calloc(1, sizeof *capturing);
    CHECK(capturing);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    (void)stream;
    *graph = (cudaGraph_t)capturing;
    capturing = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *run, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    ngraph++;
    *run = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    (void)graph; /* what runs has it */
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t run)
{
    Recorded *r = (Recorded *)run;
    for (Task *t = r->first, *next; t; t = next) {
        next = t->next;
        free(t->arg);
        free(t);
    }
    free(r);
    return cudaSuccess;
}

static void run_recorded(void *arg)
{
    Recorded *r;
    memcpy(&r, arg, sizeof r);
    for (Task *t = r->first; t; t = t->next)
        t->run(t->arg);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t stream)
{
    runtime_push(stream, run_recorded, &run, sizeof run);
    return cudaSuccess;
}

/* ---- functions of the host, copies ---- */

typedef struct HostCall {
    void (*fn)(void *arg);
    void *arg;
} HostCall;

static void call_host(void *arg)
{
    HostCall *c = arg;
    ncall++;
    c->fn(c->arg);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    runtime_push(stream, call_host, &(HostCall){fn, arg}, sizeof(HostCall));
    return cudaSuccess;
}

typedef struct Bytes {
    void *to;
    const void *from;
    size_t nbytes;
    int byte;
    int64_t number;
} Bytes;

static void copy_bytes(void *arg)
{
    Bytes *b = arg;
    memcpy(b->to, b->from, b->nbytes);
}

static void set_bytes(void *arg)
{
    Bytes *b = arg;
    memset(b->to, b->byte, b->nbytes);
}

static void store_number(void *arg)
{
    Bytes *b = arg;
    memcpy(b->to, &b->number, sizeof b->number);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    runtime_push(stream, copy_bytes, &(Bytes){.to = to, .from = from, .nbytes = n}, sizeof(Bytes));
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t stream)
{
    runtime_push(stream, set_bytes, &(Bytes){.to = to, .byte = byte, .nbytes = n}, sizeof(Bytes));
    return cudaSuccess;
}

void cuda_store(void *stream, int64_t *to, int64_t x)
{
    runtime_push(stream, store_number, &(Bytes){.to = to, .number = x}, sizeof(Bytes));
}

void cuda_high(void *stream, const void *p, uint8_t byte, int64_t nbytes, int line,
               unsigned long long *found)
{
    CHECK(line == PLAN_ALIGN);
    cudaStreamSynchronize(stream);
    *found = (unsigned long long)host_work.high(NULL, p, byte, nbytes);
}

void cuda_any(void *stream, const void *t, uint8_t poison, unsigned long long *found)
{
    cudaStreamSynchronize(stream);
    *found = host_work.any(NULL, t, poison ? POISONED : NOT_FINITE);
}

/* ---- memory and the device ---- */

static cudaError_t give_memory(void **p, size_t nbytes)
{
    *p = aligned_alloc(PLAN_ALIGN, (nbytes + PLAN_ALIGN) / PLAN_ALIGN * PLAN_ALIGN);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **p, size_t nbytes)
{
    return give_memory(p, nbytes);
}

cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned flags)
{
    (void)flags;
    return give_memory(p, nbytes);
}

cudaError_t cudaMallocAsync(void **p, size_t nbytes, cudaStream_t stream)
{
    (void)stream;
    return give_memory(p, nbytes);
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

static void free_bytes(void *arg)
{
    free(((Bytes *)arg)->to);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    runtime_push(stream, free_bytes, &(Bytes){.to = p}, sizeof(Bytes));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int byte, size_t nbytes)
{
    memset(p, byte, nbytes);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = *all = (size_t)1 << 34;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = ngpu;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int number)
{
    return number < ngpu ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e ? "stood in for" : "no error";
}

/* ---- kernels ---- */

enum { MOST_OPS = 1024, MOST_WAYS_OF_ONE = 15, REFERENCE = 15 };

typedef struct LaterCall {
    Call call;
    int way;
    Tensor tensor[]; /* its operands and results */
} LaterCall;

static void run_later(void *arg)
{
    LaterCall *l = arg;
    l->call.in = l->tensor;
    l->call.out = l->tensor + l->call.nin;
    const Op *op = l->call.node->op;
    if (l->way == REFERENCE ? op->rules->ref(&l->call)
                            : op_kernels(op, KERNELS_CPU)[l->way].run(&l->call))
        *l->call.fault = (Fault){.noted = 1, .step = l->call.step};
}

static const char *const faults[] = {"it has failed"};

static int give_call(Call *c, int way)
{
    size_t nin = (size_t)c->nin, nout = (size_t)c->nout;
    size_t size = sizeof(LaterCall) + (nin + nout) * sizeof(Tensor);
    LaterCall *l = malloc(size);
    CHECK(l);
    l->call = *c;
    l->way = way;
    memcpy(l->tensor, c->in, nin * sizeof *c->in);
    memcpy(l->tensor + nin, c->out, nout * sizeof *c->out);
    runtime_push(c->stream, run_later, l, size);
    free(l);
    return 0;
}

#define EACH_WAY(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define GIVE(way)                  \
    static int give_##way(Call *c) \
    {                              \
        return give_call(c, way);  \
    }
EACH_WAY(GIVE)
#define GIVER(way) give_##way,
static int (*const givers[])(Call *) = {EACH_WAY(GIVER)};

/* By id of the op: of the device cuda. */
const Kernel *cuda_kernels[MOST_OPS];
static Kernel kernels[MOST_OPS][MOST_WAYS_OF_ONE + 2];

static bool takes_all(const Call *c)
{
    return c->node->op->rules->ref;
}

void runtime_kernels(void)
{
    CHECK(op_count <= MOST_OPS);
    for (int i = 0; i < op_count; i++) {
        const Kernel *k = op_kernels(&op_table[i], KERNELS_CPU);
        int w = 0;
        for (; k && k[w].name; w++) {
            CHECK(w < MOST_WAYS_OF_ONE);
            kernels[i][w] = k[w];
            kernels[i][w].run = givers[w];
            kernels[i][w].run_all = NULL;
            kernels[i][w].faults = faults;
        }
        kernels[i][w] = (Kernel){
            .name = "reference", .accepts = takes_all, .run = givers[REFERENCE], .faults = faults};
        cuda_kernels[i] = kernels[i];
    }
}

/* ---- what tests ask and say ---- */

void runtime_delay(int usec)
{
    delay = usec;
}

void runtime_count(int count)
{
    ngpu = count;
}

RuntimeSeen runtime_seen(void)
{
    return (RuntimeSeen){ngraph, nlaunch, ncall};
}
