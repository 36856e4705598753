/* The transport over MPI, a module of its own for each MPI, as the layouts of their mpi.h differ.
 * Messages are bytes in chunks, each a part, what an int counts of one, or some short parts; all
 * are sent at once and in order: MPI keeps the order of what one rank sends another with one tag.
 * Errors are returned as text, and after one of them MPI is not ended, as MPI_Finalize would wait
 * for ranks that wait for this one. Requests lie where the caller has room for them; only messages
 * of several chunks need memory. */
#include "comm.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The most bytes of a message in one call. */
#ifndef CHUNK
#define CHUNK (1 << 30)
#endif

/* The most bytes of parts that go as one: MPI moves what does not lie in a row through buffers,
 * piece by piece, whenever it is called; comm calls it now and then. */
enum { TOGETHER = CHUNK < (1 << 13) ? CHUNK : 1 << 13 };

/* The most elements that MPI reduces at a time: it holds copies of them. */
enum { PIECE = CHUNK < (1 << 18) ? CHUNK : 1 << 18 };

/* A reduction on its way: what is left begins at element `at`, of `member`'s part if scattered. */
typedef struct MpiReduction {
    bool scatter;
    CommType type;
    CommOp op;
    const char *from;
    char *to;
    int64_t count, at;
    int member;
} MpiReduction;

typedef struct MpiGroup {
    struct MpiGroup *next;
    MPI_Comm comm;
    int size;
    MpiReduction reduction; /* that there is one of at a time */
} MpiGroup;

typedef struct MpiMessage {
    MPI_Request one, *part; /* its chunks: `one`, or memory of its own */
    MpiGroup *group;        /* of a reduction; NULL: a message */
    int64_t nbytes, came;   /* of a message */
    int count, at;          /* chunks, and how many are over */
    int peer;
    bool receives;
} MpiMessage;
_Static_assert(sizeof(MpiMessage) <= COMM_ROOM, "a request has room");

/* A beat: to the next rank, and from the one before. */
typedef struct Beats {
    int before, next;
    MPI_Request in, out;
    char heard, said;  /* BEAT_LAST, in the end */
    bool left, parted; /* the one before has said its last, this one has */
} Beats;

typedef struct Mpi {
    MPI_Comm world; /* ours alone */
    bool ours;      /* MPI too: nothing else of the process has started it */
    MpiGroup *group;
    Beats beats;
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
    snprintf(message, COMM_MESSAGE, "MPI: out of memory");
    return -1;
}

/* ---- requests ---- */

static void request_drop(MpiMessage *r)
{
    if (r->part != &r->one)
        free(r->part);
}

/* It is over, by an error. */
static int request_fail(MpiMessage *r, int error, char *message)
{
    char what[80] = "reducing";
    if (!r->group)
        snprintf(what, sizeof what, "%s %lld bytes %s rank %d",
                 r->receives ? "receiving" : "sending", (long long)r->nbytes,
                 r->receives ? "from" : "to", r->peer);
    request_drop(r);
    return check(error, what, message);
}

/* ---- messages ---- */

/* Where a chunk begins. */
typedef struct MessagePlace {
    const CommPart *part;
    int64_t at;
} MessagePlace;

static int64_t part_bytes(const CommPart *p, bool receives)
{
    return receives ? p->nreceive : p->nsend;
}

/* Whether a part that follows goes with n bytes before it. */
static bool goes_along(const CommPart *p, bool receives, int64_t n)
{
    return p && n + part_bytes(p, receives) <= TOGETHER;
}

/* Moves on to where there are bytes. */
static void skip_empty(MessagePlace *p, bool receives)
{
    while (p->part && p->at == part_bytes(p->part, receives))
        *p = (MessagePlace){p->part->next, 0};
}

/* Moves on by a chunk: bytes of one part, or some short parts. Returns its bytes; 0: nothing is
 * left. */
static int64_t take_chunk(MessagePlace *p, bool receives)
{
    skip_empty(p, receives);
    if (!p->part)
        return 0;
    int64_t left = part_bytes(p->part, receives) - p->at, n = MIN(left, CHUNK);
    p->at += n;
    while (n == left && goes_along(p->part->next, receives, n)) {
        p->part = p->part->next;
        p->at = part_bytes(p->part, receives);
        left = n += p->at;
    }
    return n;
}

/* A message; NULL without memory. */
static MpiMessage *message_new(void **request, bool receives, int peer, const CommPart *p,
                               char *message)
{
    MpiMessage *r = *request;
    *r = (MpiMessage){.peer = peer, .receives = receives};
    MessagePlace at = {p, 0};
    for (int64_t n; (n = take_chunk(&at, receives)); r->count++)
        r->nbytes += n;
    r->count = MAX(r->count, 1);
    r->part = r->count == 1 ? &r->one : calloc((size_t)r->count, sizeof *r->part);
    if (!r->part)
        no_memory(message);
    return r->part ? r : NULL;
}

/* Bytes that MPI takes as one message: in a row, or from several places by a type. */
typedef struct Chunk {
    void *at;
    int count;
    MPI_Datatype type;
} Chunk;

static char *address_of(const CommPart *p, bool receives)
{
    return receives ? p->receive : (char *)(uintptr_t)p->send;
}

/* As a type, of several parts, the first from `at` on: of one that was cut, its rest. */
static int make_type(const CommPart *p, int64_t at, bool receives, int count, MPI_Datatype *type)
{
    int *length = calloc((size_t)count, sizeof *length), error = MPI_ERR_NO_MEM;
    MPI_Aint *address = calloc((size_t)count, sizeof *address);
    for (int i = 0; length && address && i < count; i++, p = p->next, at = 0) {
        length[i] = (int)(part_bytes(p, receives) - at);
        MPI_Get_address(address_of(p, receives) + at, &address[i]);
    }
    if (length && address)
        error = MPI_Type_create_hindexed(count, length, address, MPI_BYTE, type);
    free(length);
    free(address);
    return error ? error : MPI_Type_commit(type);
}

/* The next chunk from a place on, which moves behind it. */
static int make_chunk(MessagePlace *from, bool receives, Chunk *c)
{
    skip_empty(from, receives);
    MessagePlace to = *from;
    int64_t n = take_chunk(&to, receives);
    const CommPart *first = from->part;
    int64_t at = from->at;
    int count = 1;
    for (const CommPart *p = first; p != to.part; p = p->next)
        count++;
    *from = to;
    *c = (Chunk){n ? address_of(first, receives) + at : NULL, (int)n, MPI_BYTE};
    if (count == 1)
        return MPI_SUCCESS;
    *c = (Chunk){MPI_BOTTOM, 1, MPI_BYTE};
    return make_type(first, at, receives, count, &c->type);
}

static int post_chunk(const Mpi *m, const MpiMessage *r, int tag, Chunk *c, MPI_Request *request)
{
    int error = r->receives ? MPI_Irecv(c->at, c->count, c->type, r->peer, tag, m->world, request)
                            : MPI_Isend(c->at, c->count, c->type, r->peer, tag, m->world, request);
    if (c->type != MPI_BYTE)
        MPI_Type_free(&c->type); /* once the message is over */
    return error;
}

static int post_message(const Mpi *m, MpiMessage *r, int tag, const CommPart *p, char *message)
{
    int error = MPI_SUCCESS;
    MessagePlace at = {p, 0};
    for (int i = 0; i < r->count && error == MPI_SUCCESS; i++) {
        Chunk c;
        error = make_chunk(&at, r->receives, &c);
        if (!error)
            error = post_chunk(m, r, tag, &c, &r->part[i]);
    }
    return error ? request_fail(r, error, message) : 0;
}

static int send(void *self, int to, int tag, const CommPart *p, void **request, char *message)
{
    MpiMessage *r = message_new(request, false, to, p, message);
    return r ? post_message(self, r, tag, p, message) : -1;
}

static int receive(void *self, int from, int tag, const CommPart *p, void **request, char *message)
{
    MpiMessage *r = message_new(request, true, from, p, message);
    return r ? post_message(self, r, tag, p, message) : -1;
}

static int check_length(const MpiMessage *r, char *message)
{
    if (!r->receives || r->came == r->nbytes)
        return 0;
    snprintf(message, COMM_MESSAGE, "MPI: expected %lld bytes from rank %d, found %lld",
             (long long)r->nbytes, r->peer, (long long)r->came);
    return -1;
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
    MpiGroup *g = calloc(1, sizeof *g);
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

static bool is_left(const MpiGroup *g)
{
    const MpiReduction *x = &g->reduction;
    return x->scatter ? x->member < g->size : x->at < x->count;
}

/* Reduces at once what is scattered and short. */
static int scatter_all(const MpiGroup *g, MpiReduction *x, MPI_Request *request)
{
    x->member = g->size;
    return MPI_Ireduce_scatter_block(x->from, x->to, (int)x->count, type_of[x->type], op_of[x->op],
                                     g->comm, request);
}

/* Else a piece of a member's part is reduced to that member. */
static int scatter_piece(const MpiGroup *g, MpiReduction *x, MPI_Request *request)
{
    int n = (int)MIN(x->count - x->at, PIECE), size = size_of[x->type], member = x->member;
    const char *from = x->from + (member * x->count + x->at) * size;
    char *to = x->to + x->at * size;
    x->at += n;
    if (x->at == x->count) {
        x->at = 0;
        x->member++;
    }
    return MPI_Ireduce(from, to, n, type_of[x->type], op_of[x->op], member, g->comm, request);
}

static int all_piece(const MpiGroup *g, MpiReduction *x, MPI_Request *request)
{
    int64_t at = x->at * size_of[x->type];
    int n = (int)MIN(x->count - x->at, PIECE);
    x->at += n;
    return MPI_Iallreduce(x->from + at, x->to + at, n, type_of[x->type], op_of[x->op], g->comm,
                          request);
}

static int reduce_more(MpiMessage *r, char *message)
{
    MpiReduction *x = &r->group->reduction;
    const MpiGroup *g = r->group;
    r->at = 0;
    int error = !x->scatter                   ? all_piece(g, x, r->part)
                : x->count * g->size <= PIECE ? scatter_all(g, x, r->part)
                                              : scatter_piece(g, x, r->part);
    return error ? request_fail(r, error, message) : 0;
}

static int reduce(void *self, void *in, bool scatter, CommType type, CommOp op, const void *from,
                  void *to, int64_t count, void **request, char *message)
{
    (void)self;
    MpiMessage *r = *request;
    MpiGroup *g = in;
    *r = (MpiMessage){.part = &r->one, .group = g, .count = 1};
    g->reduction = (MpiReduction){scatter, type, op, from, to, count, 0, 0};
    return reduce_more(r, message);
}

/* ---- done ---- */

/* Chunk by chunk: they come in order. */
static int request_done(void *self, void *request, bool *done, char *message)
{
    (void)self;
    MpiMessage *r = request;
    *done = false;
    while (r->at < r->count) {
        MPI_Status status;
        int is_over = 0, nbytes = 0;
        int error = MPI_Test(&r->part[r->at], &is_over, &status);
        if (!error && is_over && r->receives)
            error = MPI_Get_count(&status, MPI_BYTE, &nbytes);
        if (error)
            return request_fail(r, error, message);
        if (!is_over)
            return 0;
        r->came += nbytes;
        r->at++;
    }
    if (r->group && is_left(r->group))
        return reduce_more(r, message);
    *done = true;
    request_drop(r);
    return check_length(r, message);
}

/* ---- beats ---- */

enum { BEAT_TAG = COMM_GROUPS, END_TAG, BEAT_LAST = 1 };

/* All that has come. */
static int hear(const Mpi *m, Beats *b, CommBeat *heard, char *message)
{
    int error = MPI_SUCCESS, came = true;
    while (!b->left && came && !error) {
        if (b->in == MPI_REQUEST_NULL)
            error = MPI_Irecv(&b->heard, 1, MPI_BYTE, b->before, BEAT_TAG, m->world, &b->in);
        if (!error)
            error = MPI_Test(&b->in, &came, MPI_STATUS_IGNORE);
        b->left = !error && came && b->heard == BEAT_LAST;
        *heard = !error && came ? BEAT_HEARD : *heard;
    }
    *heard = b->left ? BEAT_HEARD : *heard;
    return check(error, "hearing of other ranks", message);
}

/* One after the other: who does not listen is not sent more. */
static int tell(const Mpi *m, Beats *b, bool last, char *message)
{
    int went = false, error = MPI_Test(&b->out, &went, MPI_STATUS_IGNORE);
    if (!error && went && !b->parted) {
        b->parted = last;
        b->said = last ? BEAT_LAST : 0;
        error = MPI_Isend(&b->said, 1, MPI_BYTE, b->next, BEAT_TAG, m->world, &b->out);
    }
    return check(error, "telling another rank", message);
}

static void pause_ms(int msec)
{
    nanosleep(&(struct timespec){msec / 1000, msec % 1000 * 1000000L}, NULL);
}

/* To all other ranks: a launcher that is about to end all by itself may leave them running. */
static void tell_end(const Mpi *m, int rank, int *code)
{
    int size, went = false, left;
    MPI_Comm_size(m->world, &size);
    MPI_Request *request = malloc((size_t)size * sizeof *request);
    for (int i = 0; request && i < size; i++) {
        request[i] = MPI_REQUEST_NULL;
        if (i != rank)
            MPI_Isend(code, 1, MPI_INT, i, END_TAG, m->world, &request[i]);
    }
    for (int tries = left = 100; request && left && tries; tries--) {
        left = 0;
        for (int i = 0; i < size; i++)
            left += MPI_Test(&request[i], &went, MPI_STATUS_IGNORE) || !went;
        pause_ms(left > 0);
    }
    free(request);
}

static void abort_all(void *self, int code, const char *message)
{
    const Mpi *m = self;
    int rank = 0;
    MPI_Comm_rank(m->world, &rank);
    if (message)
        fprintf(stderr, "tenon: rank %d: %s\n", rank, message);
    tell_end(m, rank, &code);
    MPI_Abort(m->world, code);
}

/* Where a rank has ended all, the launcher ends this process too, or else it does so itself. */
static void hear_end(const Mpi *m)
{
    int came = false, code = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, END_TAG, m->world, &came, &status) || !came)
        return;
    MPI_Recv(&code, 1, MPI_INT, status.MPI_SOURCE, END_TAG, m->world, MPI_STATUS_IGNORE);
    pause_ms(1000);
    MPI_Abort(m->world, code);
}

static int beat(void *self, bool last, CommBeat *heard, char *message)
{
    Mpi *m = self;
    Beats *b = &m->beats;
    *heard = BEAT_NONE;
    hear_end(m);
    if (hear(m, b, heard, message) || tell(m, b, last, message))
        return -1;
    if (b->left && b->parted && b->out == MPI_REQUEST_NULL)
        *heard = BEAT_OVER;
    return 0;
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

static int find_place(Mpi *m, CommPlace *p, char *message)
{
    MPI_Comm host;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (check(MPI_Comm_dup(MPI_COMM_WORLD, &m->world), "copying the world", message))
        return -1;
    MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->world, &p->rank);
    MPI_Comm_size(m->world, &p->size);
    if (check(MPI_Comm_split_type(m->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
              "finding the ranks of this host", message))
        return -1;
    MPI_Comm_rank(host, &p->local);
    MPI_Comm_size(host, &p->here);
    m->beats = (Beats){.before = (p->rank + p->size - 1) % p->size,
                       .next = (p->rank + 1) % p->size,
                       .in = MPI_REQUEST_NULL,
                       .out = MPI_REQUEST_NULL};
    return check(MPI_Comm_free(&host), "finding the ranks of this host", message);
}

static int open_mpi(void **self, CommPlace *place, char *message)
{
    Mpi *m = calloc(1, sizeof *m);
    if (!m)
        return no_memory(message);
    if (start(m, message) || find_place(m, place, message)) {
        free(m);
        return -1;
    }
    *self = m;
    return 0;
}

/* Others end this process. */
static const char *aborted(void *self)
{
    (void)self;
    return NULL;
}

static void close_mpi(void *self, bool failed)
{
    Mpi *m = self;
    for (MpiGroup *g = m->group, *next; g; g = next) {
        next = g->next;
        if (!failed)
            MPI_Comm_free(&g->comm);
        free(g);
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
    .name = NAME,
    .kills = true,
    .open = open_mpi,
    .send = send,
    .receive = receive,
    .done = request_done,
    .group = group,
    .reduce = reduce,
    .beat = beat,
    .abort = abort_all,
    .aborted = aborted,
    .close = close_mpi,
};
