/* The transport over MPI, a module of its own for each MPI, as the layouts of their mpi.h differ.
 * Messages are bytes in chunks that an int counts, all sent at once and in order: MPI keeps the
 * order of what one rank sends another with one tag. Errors are returned as text, and after one of
 * them MPI is not ended, as MPI_Finalize would wait for ranks that wait for this one. Requests are
 * kept for the next ones, so that a step allocates none. */
#include "comm.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* The most bytes of a message in one call. */
#ifndef CHUNK
#define CHUNK (1 << 30)
#endif

/* The most elements that MPI reduces at a time: it holds copies of them. */
enum { PIECE = CHUNK < (1 << 18) ? CHUNK : 1 << 18 };

typedef struct Group {
    struct Group *next;
    MPI_Comm comm;
    int size;
} Group;

/* A reduction on its way: what is left begins at element `at`, of `member`'s part if scattered. */
typedef struct Reduction {
    const Group *group; /* NULL: the request is no reduction */
    bool scatter;
    CommType type;
    CommOp op;
    const char *from;
    char *to;
    int64_t count, at;
    int member;
} Reduction;

typedef struct Request {
    struct Request *next;
    Reduction reduction;
    bool receives;
    int peer; /* of a message */
    int64_t nbytes;
    int count, cap; /* calls of MPI */
    MPI_Request *part;
    MPI_Status *status;
} Request;

typedef struct Mpi {
    MPI_Comm world; /* ours alone */
    bool ours;      /* MPI too: nothing else of the process has started it */
    Request *spare;
    Group *group;
} Mpi;

/* ---- errors ---- */

/* MPICH's texts have several lines. */
static void one_line(char *text)
{
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    for (size_t n = strlen(text); n && text[n - 1] == ' '; n--)
        text[n - 1] = 0;
}

/* 0, or -1 with the reason. */
static int check(int error, const char *what, char *message)
{
    if (error == MPI_SUCCESS)
        return 0;
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    one_line(text);
    snprintf(message, COMM_MESSAGE, "MPI: %s: %.300s", what, text);
    return -1;
}

static int no_memory(char *message)
{
    snprintf(message, COMM_MESSAGE, "MPI: no memory for a request");
    return -1;
}

/* ---- requests ---- */

static void request_free(Request *r)
{
    free(r->part);
    free(r->status);
    free(r);
}

/* One of `count` calls to be made; NULL where there is no memory. */
static Request *request_get(Mpi *m, int64_t count)
{
    Request *r = m->spare;
    if (r)
        m->spare = r->next;
    else if (!(r = calloc(1, sizeof *r)))
        return NULL;
    if (count > r->cap) {
        free(r->part);
        free(r->status);
        r->part = calloc((size_t)count, sizeof *r->part);
        r->status = calloc((size_t)count, sizeof *r->status);
        r->cap = r->part && r->status ? (int)count : 0;
    }
    r->count = 0;
    r->receives = false;
    r->reduction.group = NULL;
    if (r->cap >= count)
        return r;
    request_free(r);
    return NULL;
}

static void request_keep(Mpi *m, Request *r)
{
    r->next = m->spare;
    m->spare = r;
}

/* It is over, by an error. */
static int request_fail(Mpi *m, Request *r, int error, char *message)
{
    char what[80] = "reducing";
    if (!r->reduction.group)
        snprintf(what, sizeof what, "%s %lld bytes %s rank %d",
                 r->receives ? "receiving" : "sending", (long long)r->nbytes,
                 r->receives ? "from" : "to", r->peer);
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < r->count; i++)
        if (r->status[i].MPI_ERROR != MPI_SUCCESS && r->status[i].MPI_ERROR != MPI_ERR_PENDING)
            error = r->status[i].MPI_ERROR;
    request_keep(m, r);
    return check(error, what, message);
}

static int check_length(const Request *r, char *message)
{
    int64_t nbytes = 0;
    for (int i = 0; i < r->count; i++) {
        int n = 0;
        if (check(MPI_Get_count(&r->status[i], MPI_BYTE, &n), "the length of a message", message))
            return -1;
        nbytes += n;
    }
    if (nbytes == r->nbytes)
        return 0;
    snprintf(message, COMM_MESSAGE, "MPI: expected %lld bytes from rank %d, found %lld",
             (long long)r->nbytes, r->peer, (long long)nbytes);
    return -1;
}

/* ---- messages ---- */

static int64_t chunks_of(int64_t count)
{
    return MAX((count + CHUNK - 1) / CHUNK, 1);
}

static Request *message_new(Mpi *m, bool receives, int peer, int64_t nbytes, char *message)
{
    Request *r = request_get(m, chunks_of(nbytes));
    if (!r) {
        no_memory(message);
        return NULL;
    }
    r->receives = receives;
    r->peer = peer;
    r->nbytes = nbytes;
    return r;
}

static int send(void *self, int to, int tag, const void *p, int64_t nbytes, void **request,
                char *message)
{
    Mpi *m = self;
    Request *r = *request = message_new(m, false, to, nbytes, message);
    int error = MPI_SUCCESS;
    for (int64_t i = 0; r && i < chunks_of(nbytes) && error == MPI_SUCCESS; i++)
        error = MPI_Isend((const char *)p + i * CHUNK, (int)MIN(nbytes - i * CHUNK, CHUNK),
                          MPI_BYTE, to, tag, m->world, &r->part[r->count++]);
    return !r ? -1 : error ? request_fail(m, r, error, message) : 0;
}

static int receive(void *self, int from, int tag, void *p, int64_t nbytes, void **request,
                   char *message)
{
    Mpi *m = self;
    Request *r = *request = message_new(m, true, from, nbytes, message);
    int error = MPI_SUCCESS;
    for (int64_t i = 0; r && i < chunks_of(nbytes) && error == MPI_SUCCESS; i++)
        error = MPI_Irecv((char *)p + i * CHUNK, (int)MIN(nbytes - i * CHUNK, CHUNK), MPI_BYTE,
                          from, tag, m->world, &r->part[r->count++]);
    return !r ? -1 : error ? request_fail(m, r, error, message) : 0;
}

/* ---- reductions ---- */

static const MPI_Datatype type_of[] = {
    [COMM_F64] = MPI_DOUBLE,
    [COMM_F32] = MPI_FLOAT,
    [COMM_I64] = MPI_INT64_T,
    [COMM_I32] = MPI_INT32_T,
};
static const int size_of[] = {[COMM_F64] = 8, [COMM_F32] = 4, [COMM_I64] = 8, [COMM_I32] = 4};
static const MPI_Op op_of[] = {
    [COMM_SUM] = MPI_SUM,
    [COMM_MAX] = MPI_MAX,
    [COMM_MIN] = MPI_MIN,
    [COMM_PRODUCT] = MPI_PROD,
};

/* Every rank is in one of the groups that a call makes, so that the first member names it. */
static int group(void *self, int n, const int *rank, void **out, char *message)
{
    Mpi *m = self;
    int mine, at = 0;
    MPI_Comm_rank(m->world, &mine);
    while (at < n && rank[at] != mine)
        at++;
    Group *g = calloc(1, sizeof *g);
    if (!g)
        return no_memory(message);
    g->size = n;
    if (check(MPI_Comm_split(m->world, rank[0], at, &g->comm), "making a group", message)) {
        free(g);
        return -1;
    }
    MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    g->next = m->group;
    m->group = g;
    *out = g;
    return 0;
}

static bool is_left(const Reduction *x)
{
    return x->scatter ? x->member < x->group->size : x->at < x->count;
}

/* What is scattered and short, at once. */
static int scatter_all(Reduction *x, MPI_Request *request)
{
    x->member = x->group->size;
    return MPI_Ireduce_scatter_block(x->from, x->to, (int)x->count, type_of[x->type], op_of[x->op],
                                     x->group->comm, request);
}

/* Else a piece of a member's part is reduced to that member. */
static int scatter_piece(Reduction *x, MPI_Request *request)
{
    int n = (int)MIN(x->count - x->at, PIECE), size = size_of[x->type], member = x->member;
    const char *from = x->from + (member * x->count + x->at) * size;
    char *to = x->to + x->at * size;
    x->at += n;
    if (x->at == x->count) {
        x->at = 0;
        x->member++;
    }
    return MPI_Ireduce(from, to, n, type_of[x->type], op_of[x->op], member, x->group->comm,
                       request);
}

static int all_piece(Reduction *x, MPI_Request *request)
{
    int64_t at = x->at * size_of[x->type];
    int n = (int)MIN(x->count - x->at, PIECE);
    x->at += n;
    return MPI_Iallreduce(x->from + at, x->to + at, n, type_of[x->type], op_of[x->op],
                          x->group->comm, request);
}

static int reduce_more(Mpi *m, Request *r, char *message)
{
    Reduction *x = &r->reduction;
    r->count = 1;
    int error = !x->scatter                          ? all_piece(x, r->part)
                : x->count * x->group->size <= PIECE ? scatter_all(x, r->part)
                                                     : scatter_piece(x, r->part);
    return error ? request_fail(m, r, error, message) : 0;
}

/* One piece after the other: a group has one reduction at a time. */
static int reduce(void *self, void *in, bool scatter, CommType type, CommOp op, const void *from,
                  void *to, int64_t count, void **request, char *message)
{
    Request *r = request_get(self, 1);
    if (!r)
        return no_memory(message);
    *request = r;
    r->reduction = (Reduction){in, scatter, type, op, from, to, count, 0, 0};
    return reduce_more(self, r, message);
}

/* ---- done ---- */

static int request_done(void *self, void *request, bool *done, char *message)
{
    Request *r = request;
    int flag = 0;
    int error = MPI_Testall(r->count, r->part, &flag, r->status);
    *done = false;
    if (error)
        return request_fail(self, r, error, message);
    if (!flag)
        return 0;
    if (r->reduction.group && is_left(&r->reduction))
        return reduce_more(self, r, message);
    *done = true;
    request_keep(self, r);
    return r->receives ? check_length(r, message) : 0;
}

/* ---- open, close ---- */

/* MPI on this thread; where the process has it already, it must let other threads call it. */
static int start(Mpi *m, char *message)
{
    int is_on = 0, is_over = 0, level = MPI_THREAD_SINGLE, least = MPI_THREAD_FUNNELED;
    MPI_Finalized(&is_over);
    if (is_over) {
        snprintf(message, COMM_MESSAGE, "MPI: this process has ended it; it starts once only");
        return -1;
    }
    MPI_Initialized(&is_on);
    m->ours = !is_on;
    if (is_on) {
        least = MPI_THREAD_MULTIPLE;
        MPI_Query_thread(&level);
    } else if (check(MPI_Init_thread(NULL, NULL, least, &level), "starting", message))
        return -1;
    if (level >= least)
        return 0;
    snprintf(message, COMM_MESSAGE,
             "MPI: expected threads at level %d (%s) or above, found level %d", least,
             is_on ? "MPI_THREAD_MULTIPLE, as this process had started MPI before"
                   : "MPI_THREAD_FUNNELED",
             level);
    return -1;
}

static int find_place(Mpi *m, int *rank, int *size, int *here, char *message)
{
    MPI_Comm host;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (check(MPI_Comm_dup(MPI_COMM_WORLD, &m->world), "copying the world", message))
        return -1;
    MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->world, rank);
    MPI_Comm_size(m->world, size);
    if (check(MPI_Comm_split_type(m->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
              "finding the ranks of this host", message))
        return -1;
    MPI_Comm_size(host, here);
    return check(MPI_Comm_free(&host), "finding the ranks of this host", message);
}

static int open_mpi(void **self, int *rank, int *size, int *here, char *message)
{
    Mpi *m = calloc(1, sizeof *m);
    if (!m)
        return no_memory(message);
    if (start(m, message) || find_place(m, rank, size, here, message)) {
        free(m);
        return -1;
    }
    *self = m;
    return 0;
}

/* Nobody else can say why, as MPI_Abort does not return. */
static void abort_all(void *self, int code, const char *message)
{
    Mpi *m = self;
    int rank = 0;
    MPI_Comm_rank(m->world, &rank);
    if (message)
        fprintf(stderr, "tenon: rank %d: %s\n", rank, message);
    MPI_Abort(m->world, code);
}

/* Others end this process by a signal. */
static const char *aborted(void *self)
{
    (void)self;
    return NULL;
}

static void close_mpi(void *self, bool failed)
{
    Mpi *m = self;
    for (Group *g = m->group, *next; g; g = next) {
        next = g->next;
        if (!failed)
            MPI_Comm_free(&g->comm);
        free(g);
    }
    for (Request *r = m->spare, *next; r; r = next) {
        next = r->next;
        request_free(r);
    }
    if (!failed) {
        MPI_Comm_free(&m->world);
        if (m->ours)
            MPI_Finalize();
    }
    free(m);
}

/* The MPI whose mpi.h this was compiled with. */
#define TEXT(x)    TEXT_OF(x)
#define TEXT_OF(x) #x
#if defined(OMPI_MAJOR_VERSION)
#define NAME \
    "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION)
#elif defined(MPICH_VERSION)
#define NAME "MPICH " MPICH_VERSION
#else
#define NAME "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION)
#endif

__attribute__((visibility("default"))) const Transport tenon_transport = {
    .version = TRANSPORT_VERSION,
    .kills = true,
    .name = NAME,
    .open = open_mpi,
    .send = send,
    .receive = receive,
    .done = request_done,
    .group = group,
    .reduce = reduce,
    .abort = abort_all,
    .aborted = aborted,
    .close = close_mpi,
};
