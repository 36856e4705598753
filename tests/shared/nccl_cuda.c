/* NCCL without a GPU: its functions, which src/exec/nccl_cuda.c (that this file has in itself)
 * opens, over streams of tests/shared/runtime_cuda.c, for ranks that are threads. A group of calls
 * is one task of the stream: it posts what it sends, and takes from each
 * member the oldest post that is for it, which must be as long as expected. The library's own sums
 * go from the last rank to the first, so that they have other bits than ours. An abort ends the
 * tasks of its communicator, and what others of the clique wait for. */
#include <dlfcn.h>
static void *stand_in_open(const char *name, int flags);
static void *stand_in_symbol(void *library, const char *name);
static char *stand_in_error(void);
#define dlopen             stand_in_open
#define dlsym              stand_in_symbol
#define dlerror            stand_in_error
#define cuda_merge_members give_members
#include "../../src/exec/nccl_cuda.c"
#undef dlopen
#undef dlsym
#undef dlerror
#undef cuda_merge_members
int cuda_merge_members(void *stream, const struct Node *n, int count, const void *const *x,
                       int64_t nelem, void *y, char *message, int size);

#include "nccl_stand_in.h"
#include "runtime_cuda.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_MEMBERS = 8, MOST_PARTS = 64, STOOD_SYSTEM = 2, STOOD_INTERNAL = 3, STOOD_USAGE = 5 };

/* Bytes from one member for another, until these have them. */
typedef struct Sent {
    struct Sent *next;
    const void *from;
    size_t nbytes;
    bool taken;
} Sent;

/* The communicators of one id. */
typedef struct Clique {
    struct Clique *next;
    uint64_t id;
    int n, joined;
    bool aborted;
    Sent *sent[MOST_MEMBERS][MOST_MEMBERS];
} Clique;

struct NcclCommunicator {
    Clique *clique;
    int rank, error;
    bool aborted;
    int64_t calls;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Clique *cliques;
static uint64_t last_id;
static NcclFault fault;
static NcclSeen seen;

/* ---- our sums: the kernel, run on the processor (simt.h) ---- */

enum { MOST_ADDED = 8 };

typedef struct Members {
    const Node *n;
    int count;
    const void *x[MOST_ADDED];
    int64_t nelem;
    void *y;
} Members;

/* One at a time: so is simt. */
static void merge(void *arg)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    const Members *m = arg;
    char why[RUN_MESSAGE];
    pthread_mutex_lock(&one);
    CHECK(!cuda_merge_members(NULL, m->n, m->count, m->x, m->nelem, m->y, why, sizeof why));
    pthread_mutex_unlock(&one);
}

int give_members(void *stream, const Node *n, int count, const void *const *x, int64_t nelem,
                 void *y, char *message, int size)
{
    Members m = {.n = n, .count = count, .nelem = nelem, .y = y};
    CHECK(count <= MOST_ADDED && message && size == RUN_MESSAGE);
    memcpy(m.x, x, (size_t)count * sizeof *x);
    runtime_push(stream, merge, &m, sizeof m);
    return 0;
}

/* ---- communicators ---- */

static int get_id(UniqueId *id)
{
    pthread_mutex_lock(&lock);
    uint64_t number = ++last_id;
    pthread_mutex_unlock(&lock);
    memcpy(id->internal, &number, sizeof number);
    return fault.kind == NCCL_FAULT_ID ? STOOD_SYSTEM : 0;
}

static Clique *find_clique(uint64_t id, int n)
{
    Clique *q = cliques;
    while (q && q->id != id)
        q = q->next;
    if (q)
        return q;
    q = calloc(1, sizeof *q);
    CHECK(q);
    *q = (Clique){.next = cliques, .id = id, .n = n};
    return cliques = q;
}

static int init_rank(NcclCommunicator **comm, int n, UniqueId id, int rank)
{
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    CHECK(number && n <= MOST_MEMBERS && rank >= 0 && rank < n);
    if (fault.kind == NCCL_FAULT_INIT && fault.rank == rank)
        return STOOD_SYSTEM;
    NcclCommunicator *c = calloc(1, sizeof *c);
    CHECK(c);
    pthread_mutex_lock(&lock);
    Clique *q = find_clique(number, n);
    CHECK(q->n == n);
    q->joined++;
    seen.comms++;
    pthread_cond_broadcast(&changed);
    while (q->joined % n && fault.kind != NCCL_FAULT_INIT)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    *c = (NcclCommunicator){.clique = q, .rank = rank};
    *comm = c;
    return 0;
}

static int destroy(NcclCommunicator *c)
{
    pthread_mutex_lock(&lock);
    seen.destroyed++;
    pthread_mutex_unlock(&lock);
    free(c);
    return 0;
}

/* Not freed: tasks of its stream may still read it. */
static int abort_comm(NcclCommunicator *c)
{
    pthread_mutex_lock(&lock);
    seen.aborted++;
    c->aborted = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int async_error(NcclCommunicator *c, int *error)
{
    pthread_mutex_lock(&lock);
    *error = c->error;
    pthread_mutex_unlock(&lock);
    return 0;
}

static const char *error_string(int result)
{
    static const char *const text[] = {[0] = "no error",
                                       [STOOD_SYSTEM] = "unhandled system error",
                                       [STOOD_INTERNAL] = "internal error",
                                       [STOOD_USAGE] = "invalid usage"};
    return result >= 0 && result < LEN(text) && text[result] ? text[result] : "unknown";
}

/* ---- tasks of streams ---- */

typedef struct Piece {
    const void *from;
    void *to;
    size_t nbytes;
    int peer;
} Piece;

/* Runs a group of calls, and then sums of what has come, if it is a reduction. */
typedef struct Moves {
    NcclCommunicator *comm;
    int npiece;
    Piece piece[MOST_PARTS];
    bool reduces, scatter;
    NcclType type;
    NcclOp op;
    const char *from;
    char *to;
    size_t count;
} Moves;

static bool is_over(const NcclCommunicator *c)
{
    return c->aborted;
}

/* Locked. */
static void post(Moves *m, Sent *s)
{
    for (int i = 0; i < m->npiece; i++) {
        const Piece *p = &m->piece[i];
        if (!p->from)
            continue;
        s[i] = (Sent){.from = p->from, .nbytes = p->nbytes};
        Sent **last = &m->comm->clique->sent[m->comm->rank][p->peer];
        while (*last)
            last = &(*last)->next;
        *last = &s[i];
    }
    pthread_cond_broadcast(&changed);
}

/* Locked, but while it copies: others' posts stay until they are taken. */
static void take(Moves *m, const Piece *p)
{
    NcclCommunicator *c = m->comm;
    Sent **first = &c->clique->sent[p->peer][c->rank];
    while (!*first && !is_over(c))
        pthread_cond_wait(&changed, &lock);
    if (is_over(c))
        return;
    Sent *s = *first;
    *first = s->next;
    if (s->nbytes == p->nbytes)
        memcpy(p->to, s->from, s->nbytes);
    else
        c->error = STOOD_USAGE;
    s->taken = true;
    pthread_cond_broadcast(&changed);
}

/* Locked: takes its own posts back where it was aborted, so that nobody reads its stack. */
static void end_posts(Moves *m, Sent *s)
{
    NcclCommunicator *c = m->comm;
    for (int i = 0; i < m->npiece; i++) {
        if (!m->piece[i].from)
            continue;
        while (!s[i].taken && !is_over(c))
            pthread_cond_wait(&changed, &lock);
        Sent **at = &c->clique->sent[c->rank][m->piece[i].peer];
        while (!s[i].taken && *at && *at != &s[i])
            at = &(*at)->next;
        if (!s[i].taken && *at)
            *at = s[i].next;
    }
}

static int type_bytes(NcclType t)
{
    return t == NCCL_FLOAT32 || t == NCCL_INT32 ? 4 : t == NCCL_INT8 ? 1 : 8;
}

static double merged(NcclOp op, double y, double x)
{
    return op == NCCL_SUM    ? y + x
           : op == NCCL_PROD ? y * x
           : op == NCCL_MAX  ? fmax(y, x)
                             : fmin(y, x);
}

/* From the last rank to the first. */
static void add_up(const Moves *m, const char *all, size_t at)
{
    static const DType type[] = {
        [NCCL_INT32] = I32, [NCCL_INT64] = I64, [NCCL_FLOAT32] = F32, [NCCL_FLOAT64] = F64};
    int n = m->comm->clique->n;
    size_t total = m->scatter ? m->count * (size_t)n : m->count;
    Tensor x = {.data = (char *)(uintptr_t)all, .dtype = type[m->type]};
    Tensor y = {.data = m->to, .dtype = type[m->type]};
    for (size_t i = 0; i < m->count; i++) {
        double sum = tensor_get(&x, (int64_t)((size_t)(n - 1) * total + at + i));
        for (int r = n - 2; r >= 0; r--) {
            sum = merged(m->op, sum, tensor_get(&x, (int64_t)((size_t)r * total + at + i)));
            sum = m->type == NCCL_FLOAT32 ? (float)sum : sum;
        }
        tensor_set(&y, (int64_t)i, sum);
    }
}

static void move_all(Moves *m)
{
    Sent sent[MOST_PARTS];
    pthread_mutex_lock(&lock);
    post(m, sent);
    for (int i = 0; i < m->npiece; i++)
        if (m->piece[i].to)
            take(m, &m->piece[i]);
    end_posts(m, sent);
    pthread_mutex_unlock(&lock);
}

static void run_reduction(Moves *m)
{
    int n = m->comm->clique->n, me = m->comm->rank;
    size_t size = m->count * (size_t)type_bytes(m->type) * (size_t)(m->scatter ? n : 1);
    char *all = malloc(size * (size_t)n + 1);
    CHECK(all);
    memcpy(all + (size_t)me * size, m->from, size);
    m->npiece = 0;
    for (int i = 0; i < n; i++)
        if (i != me)
            m->piece[m->npiece++] = (Piece){m->from, all + (size_t)i * size, size, i};
    move_all(m);
    if (!is_over(m->comm))
        add_up(m, all, m->scatter ? m->count * (size_t)me : 0);
    free(all);
}

static void run_moves(void *arg)
{
    Moves *m = arg;
    pthread_mutex_lock(&lock);
    int64_t call = m->comm->calls++;
    bool hit = fault.rank == m->comm->rank && call >= fault.call;
    if (fault.kind == NCCL_FAULT_ASYNC && hit)
        m->comm->error = STOOD_INTERNAL;
    pthread_mutex_unlock(&lock);
    if (fault.kind == NCCL_FAULT_HANG && hit) /* it does nothing until it is aborted */
        m->npiece = 0;
    pthread_mutex_lock(&lock);
    while (fault.kind == NCCL_FAULT_HANG && hit && !is_over(m->comm))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (is_over(m->comm))
        return;
    if (m->reduces)
        run_reduction(m);
    else
        move_all(m);
}

/* ---- calls ---- */

static _Thread_local struct {
    int depth;
    Moves moves;
    cudaStream_t stream;
} open_group;

static int group_start(void)
{
    CHECK(!open_group.depth++);
    open_group.moves = (Moves){0};
    return 0;
}

static int group_end(void)
{
    CHECK(!--open_group.depth);
    Moves *m = &open_group.moves;
    if (m->npiece)
        runtime_push(open_group.stream, run_moves, m, sizeof *m);
    pthread_mutex_lock(&lock);
    seen.groups++;
    bool fails = fault.kind == NCCL_FAULT_CALL && m->comm && m->comm->rank == fault.rank &&
                 seen.groups >= fault.call;
    pthread_mutex_unlock(&lock);
    return fails ? STOOD_SYSTEM : 0;
}

static int add_piece(NcclCommunicator *c, Piece p, cudaStream_t stream)
{
    Moves *m = &open_group.moves;
    CHECK(open_group.depth && m->npiece < MOST_PARTS && p.peer != c->rank && stream);
    m->comm = c;
    m->piece[m->npiece++] = p;
    open_group.stream = stream;
    return 0;
}

static int send_to(const void *from, size_t n, NcclType type, int peer, NcclCommunicator *c,
                   cudaStream_t stream)
{
    return add_piece(c, (Piece){from, NULL, n * (size_t)type_bytes(type), peer}, stream);
}

static int receive_from(void *to, size_t n, NcclType type, int peer, NcclCommunicator *c,
                        cudaStream_t stream)
{
    return add_piece(c, (Piece){NULL, to, n * (size_t)type_bytes(type), peer}, stream);
}

static int give_reduction(Moves m, cudaStream_t stream)
{
    m.reduces = true;
    pthread_mutex_lock(&lock);
    seen.reductions++;
    pthread_mutex_unlock(&lock);
    runtime_push(stream, run_moves, &m, sizeof m);
    return 0;
}

static int all_reduce(const void *from, void *to, size_t n, NcclType type, NcclOp op,
                      NcclCommunicator *c, cudaStream_t stream)
{
    return give_reduction(
        (Moves){.comm = c, .type = type, .op = op, .from = from, .to = to, .count = n}, stream);
}

static int reduce_scatter(const void *from, void *to, size_t n, NcclType type, NcclOp op,
                          NcclCommunicator *c, cudaStream_t stream)
{
    return give_reduction(
        (Moves){
            .comm = c, .type = type, .op = op, .from = from, .to = to, .count = n, .scatter = true},
        stream);
}

typedef struct Gather {
    NcclCommunicator *c;
    const char *from;
    char *to;
    size_t nbytes;
} Gather;

static void run_gather(void *arg)
{
    Gather *g = arg;
    Moves m = {.comm = g->c};
    for (int i = 0; i < g->c->clique->n; i++)
        if (i != g->c->rank)
            m.piece[m.npiece++] = (Piece){g->from, g->to + (size_t)i * g->nbytes, g->nbytes, i};
    char *own = g->to + (size_t)g->c->rank * g->nbytes;
    if (own != g->from)
        memcpy(own, g->from, g->nbytes);
    run_moves(&m);
}

static int all_gather(const void *from, void *to, size_t n, NcclType type, NcclCommunicator *c,
                      cudaStream_t stream)
{
    Gather g = {c, from, to, n * (size_t)type_bytes(type)};
    pthread_mutex_lock(&lock);
    seen.gathers++;
    pthread_mutex_unlock(&lock);
    runtime_push(stream, run_gather, &g, sizeof g);
    return 0;
}

/* ---- the library ---- */

static char *stand_in_error(void)
{
    static char why[] = "it is not there";
    return why;
}

static void *stand_in_open(const char *name, int flags)
{
    return fault.kind == NCCL_FAULT_MISSING || !flags || strcmp(name, "libnccl.so.2") != 0
               ? NULL
               : &last_id;
}

static void *stand_in_symbol(void *library, const char *name)
{
    static const struct {
        const char *name;
        void (*f)(void);
    } list[] = {
        {"ncclGetUniqueId", (void (*)(void))get_id},
        {"ncclCommInitRank", (void (*)(void))init_rank},
        {"ncclCommDestroy", (void (*)(void))destroy},
        {"ncclCommAbort", (void (*)(void))abort_comm},
        {"ncclCommGetAsyncError", (void (*)(void))async_error},
        {"ncclGetErrorString", (void (*)(void))error_string},
        {"ncclGroupStart", (void (*)(void))group_start},
        {"ncclGroupEnd", (void (*)(void))group_end},
        {"ncclSend", (void (*)(void))send_to},
        {"ncclRecv", (void (*)(void))receive_from},
        {"ncclAllReduce", (void (*)(void))all_reduce},
        {"ncclReduceScatter", (void (*)(void))reduce_scatter},
        {"ncclAllGather", (void (*)(void))all_gather},
    };
    void *found = NULL;
    for (int i = 0; i < LEN(list) && library; i++)
        if (!strcmp(name, list[i].name))
            memcpy(&found, &list[i].f, sizeof found);
    return found;
}

void nccl_fault(NcclFault f)
{
    pthread_mutex_lock(&lock);
    fault = f;
    pthread_mutex_unlock(&lock);
}

NcclSeen nccl_seen(void)
{
    pthread_mutex_lock(&lock);
    NcclSeen s = seen;
    pthread_mutex_unlock(&lock);
    return s;
}
