/* Ranks whose GPUs talk by NCCL. Its library (libnccl.so.2, of NVIDIA) is opened when the first
 * program that needs it joins; what of its interface is used is declared here, after its public
 * documentation (docs.nvidia.com/deeplearning/nccl/user-guide, version 2). A group of ranks has a
 * communicator and a stream, which all programs of a rank share. The id by which a communicator's
 * ranks find each other goes by comm, which those who open one call alike.
 *
 * A collective begins on its group's stream when the stream of kernels has come to its step, and
 * the step of its wait has the stream of kernels wait for its end: so it runs beside what lies
 * between, and both may be captured in a graph. Its rounds are those of comm (exec/collective.c):
 * what members exchange are sends and receives that NCCL has as one group; what they add up in our
 * order a kernel does (src/cuda/collective.cu); what `fast` leaves to the library NCCL reduces.
 *
 * All ranks give the collectives of all their groups in one order, that of the plan, as NCCL wants
 * of communicators that are in use at once.
 *
 * NCCL's calls return at once, and what a stream has been given ends never where a rank does not
 * come. So while a rank waits for its streams it looks whether others have failed, whether NCCL
 * has, and for how long nothing has ended; then it aborts its communicators, which frees the
 * streams, and the run fails. */
#include "../cuda/memory.h"
#include "exec.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

/* ---- NCCL's interface ---- */

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, UNIQUE_ID_BYTES = 128 };

typedef struct NcclCommunicator NcclCommunicator; /* ncclComm_t is a pointer to one */
typedef struct UniqueId {
    char internal[UNIQUE_ID_BYTES];
} UniqueId;

typedef enum {
    NCCL_INT8 = 0,
    NCCL_INT32 = 2,
    NCCL_INT64 = 4,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64
} NcclType;
typedef enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN } NcclOp;

/* Function, arguments. */
#define FUNCTIONS(F)                                                                               \
    F(GetUniqueId, (UniqueId * id))                                                                \
    F(CommInitRank, (NcclCommunicator * *comm, int n, UniqueId id, int rank))                      \
    F(CommDestroy, (NcclCommunicator * comm))                                                      \
    F(CommAbort, (NcclCommunicator * comm))                                                        \
    F(CommGetAsyncError, (NcclCommunicator * comm, int *error))                                    \
    F(GroupStart, (void))                                                                          \
    F(GroupEnd, (void))                                                                            \
    F(Send, (const void *from, size_t count, NcclType type, int peer, NcclCommunicator *comm,      \
             cudaStream_t stream))                                                                 \
    F(Recv, (void *to, size_t count, NcclType type, int peer, NcclCommunicator *comm,              \
             cudaStream_t stream))                                                                 \
    F(AllReduce, (const void *from, void *to, size_t count, NcclType type, NcclOp op,              \
                  NcclCommunicator *comm, cudaStream_t stream))                                    \
    F(ReduceScatter, (const void *from, void *to, size_t count, NcclType type, NcclOp op,          \
                      NcclCommunicator *comm, cudaStream_t stream))                                \
    F(AllGather, (const void *from, void *to, size_t count, NcclType type, NcclCommunicator *comm, \
                  cudaStream_t stream))

typedef struct NcclLibrary {
#define MEMBER(name, arguments) int(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
    const char *(*GetErrorString)(int result);
} NcclLibrary;

/* ---- what a rank has of it ---- */

/* A group's communicator. */
typedef struct NcclGroup {
    struct NcclGroup *next;
    int n, member;
    int *rank;
    NcclCommunicator *comm;
    cudaStream_t stream;
} NcclGroup;

typedef struct Nccl {
    Comm *c;
    int number; /* of the GPU */
    NcclLibrary library;
    NcclGroup *group;
    bool aborted;
    double since; /* when a caller began to wait for the streams; 0: none does */
} Nccl;

static int check_nccl(const Nccl *x, int result, const char *what, char *message)
{
    if (result == NCCL_SUCCESS)
        return 0;
    snprintf(message, RUN_MESSAGE, "NCCL: %s: %s", what, x->library.GetErrorString(result));
    return -1;
}

static int check_cuda(cudaError_t e, char *message)
{
    if (e == cudaSuccess)
        return 0;
    snprintf(message, RUN_MESSAGE, "CUDA: %s", cudaGetErrorString(e));
    return -1;
}

/* 0, or the code of the failure. */
static Code open_library(NcclLibrary *l, char *message)
{
    void *from = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!from) {
        snprintf(message, RUN_MESSAGE,
                 "--gpu-comm nccl: expected NVIDIA's library NCCL, found none: %.200s; --gpu-comm "
                 "host needs none",
                 dlerror());
        return TN_USAGE;
    }
    struct {
        const char *name;
        void *to;
    } list[] = {
#define NAMED(name, arguments) {"nccl" #name, &l->name},
        FUNCTIONS(NAMED)
#undef NAMED
            {"ncclGetErrorString", &l->GetErrorString},
    };
    for (int i = 0; i < LEN(list); i++) {
        void *f = dlsym(from, list[i].name);
        if (!f) {
            snprintf(message, RUN_MESSAGE,
                     "libnccl.so.2: expected version 2.7 or newer, found no %s", list[i].name);
            return TN_FAIL;
        }
        memcpy(list[i].to, &f, sizeof f);
    }
    return TN_OK;
}

/* Ends all that is under way of it on this rank: streams go on. */
static void abort_groups(Nccl *x)
{
    for (NcclGroup *g = x->group; g && !x->aborted; g = g->next)
        if (g->comm)
            x->library.CommAbort(g->comm);
    x->aborted = true;
}

static void close_groups(void *arg)
{
    Nccl *x = arg;
    char why[COMM_MESSAGE];
    if (comm_failed(x->c, why))
        abort_groups(x);
    for (NcclGroup *g = x->group; g; g = g->next) {
        if (!x->aborted && g->comm)
            x->library.CommDestroy(g->comm);
        cudaStreamDestroy(g->stream);
    }
}

/* All ranks fail where one does: the others would wait for it. */
static void fail_together(Comm *c, Ctx *ctx, Code code, const char *what, char why[RUN_MESSAGE])
{
    char heard[COMM_MESSAGE];
    int64_t any = code;
    int bad = comm_max(c, &any, 1, heard);
    if (code)
        fail(ctx, code, "%s", why);
    if (bad)
        fail(ctx, TN_FAIL, "%s", heard);
    if (any)
        fail(ctx, (Code)any, "NCCL: another rank has no %s", what);
}

static void *open_nccl(Comm *c, int number)
{
    Arena *a;
    void **own = comm_own(c, &a);
    char why[RUN_MESSAGE] = "";
    Nccl *x = *own;
    if (x)
        return x;
    x = NEW(a, Nccl);
    *x = (Nccl){.c = c, .number = number};
    fail_together(c, arena_ctx(a), open_library(&x->library, why), "library", why);
    arena_defer(a, close_groups, x);
    return *own = x;
}

/* ---- groups ---- */

/* The id that the group's first member has made. All ranks call it alike, those of other groups of
 * the same kind beside them. */
static UniqueId share_id(Nccl *x, Arena *a, const CommGroup *g)
{
    UniqueId mine = {{0}}, *all = NEWN(a, UniqueId, comm_size(x->c));
    char why[RUN_MESSAGE] = "";
    int bad = comm_member(g) ? 0 : check_nccl(x, x->library.GetUniqueId(&mine), "an id", why);
    fail_together(x->c, arena_ctx(a), bad ? TN_FAIL : TN_OK, "id", why);
    if (comm_gather(x->c, &mine, sizeof mine, all, false, why))
        fail(arena_ctx(a), TN_FAIL, "%s", why);
    return all[comm_group_rank(g, 0)];
}

static NcclGroup *find_made(const Nccl *x, const CommGroup *g)
{
    for (NcclGroup *m = x->group; m; m = m->next) {
        bool same = m->n == comm_group_size(g);
        for (int i = 0; same && i < m->n; i++)
            same = m->rank[i] == comm_group_rank(g, i);
        if (same)
            return m;
    }
    return NULL;
}

static void *make_group(void *nccl, const CommGroup *g)
{
    Nccl *x = nccl;
    NcclGroup *m = find_made(x, g);
    Arena *a;
    comm_own(x->c, &a);
    Ctx *ctx = arena_ctx(a);
    char why[RUN_MESSAGE] = "";
    if (m)
        return m;
    m = NEW(a, NcclGroup);
    *m = (NcclGroup){.n = comm_group_size(g), .member = comm_member(g)};
    m->rank = NEWN(a, int, m->n);
    for (int i = 0; i < m->n; i++)
        m->rank[i] = comm_group_rank(g, i);
    UniqueId id = share_id(x, a, g);
    cudaSetDevice(x->number);
    if (check_cuda(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking), why))
        fail(ctx, TN_FAIL, "%s", why);
    m->next = x->group;
    x->group = m;
    int bad = check_nccl(x, x->library.CommInitRank(&m->comm, m->n, id, m->member),
                         "a communicator", why);
    if (bad) { /* the others wait for this rank within NCCL */
        comm_abort(x->c, TN_FAIL, why);
        fail(ctx, TN_FAIL, "%s", why);
    }
    return m;
}

/* ---- rounds ---- */

/* Copies that a rank sends itself. */
static int copy_own(const NcclGroup *g, const CommRound *r, char *message)
{
    int bad = 0;
    for (const CommPart *p = &r->part[g->member]; p && !bad; p = p->next)
        if (p->nsend && p->send != p->receive)
            bad = check_cuda(cudaMemcpyAsync(p->receive, p->send, (size_t)p->nsend,
                                             cudaMemcpyDeviceToDevice, g->stream),
                             message);
    return bad;
}

static int exchange_with(const Nccl *x, const NcclGroup *g, const CommPart *part, int peer)
{
    int result = NCCL_SUCCESS;
    for (const CommPart *p = part; p && !result; p = p->next) {
        if (p->nsend)
            result =
                x->library.Send(p->send, (size_t)p->nsend, NCCL_INT8, peer, g->comm, g->stream);
        if (p->nreceive && !result)
            result = x->library.Recv(p->receive, (size_t)p->nreceive, NCCL_INT8, peer, g->comm,
                                     g->stream);
    }
    return result;
}

/* For each tensor. */
static int gather(const Nccl *x, const NcclGroup *g, const CommRound *r, char *message)
{
    const CommPart *first = &r->part[0];
    int bad = 0;
    for (const CommPart *p = &r->part[g->member]; p && !bad; p = p->next, first = first->next)
        if (p->nsend)
            bad = check_nccl(x,
                             x->library.AllGather(p->send, first->receive, (size_t)p->nsend,
                                                  NCCL_INT8, g->comm, g->stream),
                             "a gather", message);
    return bad;
}

static int exchange(const Nccl *x, const NcclGroup *g, const CommRound *r, char *message)
{
    int result = x->library.GroupStart();
    for (int k = 1; k < g->n && !result; k++) {
        int peer = (g->member + k) % g->n;
        result = exchange_with(x, g, &r->part[peer], peer);
    }
    int ended = x->library.GroupEnd();
    int bad = check_nccl(x, result ? result : ended, "an exchange", message);
    return bad ? bad : copy_own(g, r, message);
}

static int reduce(const Nccl *x, const NcclGroup *g, const CommRound *r, char *message)
{
    static const NcclType type[NCOMM_TYPE] = {[COMM_F64] = NCCL_FLOAT64,
                                              [COMM_F32] = NCCL_FLOAT32,
                                              [COMM_I64] = NCCL_INT64,
                                              [COMM_I32] = NCCL_INT32};
    static const NcclOp op[NCOMM_OP] = {[COMM_SUM] = NCCL_SUM,
                                        [COMM_MAX] = NCCL_MAX,
                                        [COMM_MIN] = NCCL_MIN,
                                        [COMM_PRODUCT] = NCCL_PROD};
    int result = (r->scatter ? x->library.ReduceScatter : x->library.AllReduce)(
        r->from, r->to, (size_t)r->count, type[r->type], op[r->op], g->comm, g->stream);
    return check_nccl(x, result, "a reduction", message);
}

/* ---- a collective ---- */

static int start(void *nccl, void *group, void *stream, const CommJob *j, DeviceSum *sum,
                 const Event *begun, const Event *ended, char *message)
{
    Nccl *x = nccl;
    const NcclGroup *g = group;
    int bad = 0;
    if (x->aborted) {
        snprintf(message, RUN_MESSAGE, "NCCL: its communicators were aborted");
        return -1;
    }
    bad = check_cuda(cudaEventRecord(begun->handle, stream), message) ||
          check_cuda(cudaStreamWaitEvent(g->stream, begun->handle, 0), message);
    for (int i = 0; i < j->nround && !bad; i++) {
        const CommRound *r = &j->round[i];
        bad = r->kind == ROUND_EXCHANGE ? (r->gathers ? gather : exchange)(x, g, r, message)
              : r->kind == ROUND_REDUCE ? reduce(x, g, r, message)
                                        : sum(r->arg, g->stream, message);
    }
    return bad || check_cuda(cudaEventRecord(ended->handle, g->stream), message) ? -1 : 0;
}

static int wait(void *stream, const Event *ended, char *message)
{
    return check_cuda(cudaStreamWaitEvent(stream, ended->handle, 0), message);
}

static int sum(void *stream, const Node *n, int count, const void *const *x, int64_t nelem, void *y,
               char *message)
{
    return cuda_merge_members(stream, n, count, x, nelem, y, message, RUN_MESSAGE);
}

/* ---- while a rank waits ---- */

static int find_error(const Nccl *x, char *message)
{
    for (NcclGroup *g = x->group; g && g->comm && !x->aborted; g = g->next) {
        int error = NCCL_SUCCESS;
        int result = x->library.CommGetAsyncError(g->comm, &error);
        error = result ? result : error;
        if (error && error != NCCL_IN_PROGRESS)
            return check_nccl(x, error, "a collective", message);
    }
    return 0;
}

static int watch(void *nccl, char *message)
{
    Nccl *x = nccl;
    double now = now_sec(), most = comm_timeout(x->c);
    x->since = x->since > 0 ? x->since : now;
    int bad = comm_failed(x->c, message) || find_error(x, message) ? -1 : 0;
    if (!bad && most > 0 && now - x->since > most && !x->aborted) {
        snprintf(message, RUN_MESSAGE, "collectives have not ended for %.4g s: a rank has not come",
                 most);
        bad = -1;
    }
    if (bad)
        abort_groups(x);
    return bad;
}

static void watched(void *nccl)
{
    ((Nccl *)nccl)->since = 0;
}

const DeviceRanks ranks_cuda = {
    .open = open_nccl,
    .group = make_group,
    .start = start,
    .wait = wait,
    .sum = sum,
    .watch = watch,
    .watched = watched,
};
