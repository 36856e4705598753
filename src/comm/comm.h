/* comm: messages between the ranks of a run. A rank has one end, and that one thread, which alone
 * calls the transport: MPI, memory that threads share, or nothing where there is one rank. Jobs of
 * a group run in the order in which they were started, jobs of different groups beside each other;
 * all ranks start the jobs of a group in one order. Sections name the file that implements them. */
#ifndef TENON_COMM_H
#define TENON_COMM_H

#include "../base/base.h"

enum { COMM_MESSAGE = 400, COMM_GROUPS = 64, COMM_ROOM = 64 };

typedef struct Comm Comm;
typedef struct CommGroup CommGroup;

/* Bytes for a member of the group and from it, 0 for nothing. A rank copies the
 * bytes that it sends itself, unless both places are one. `next`: those that follow in the same
 * message; whoever sends and whoever receives it divide it alike. */
typedef struct CommPart {
    const void *send;
    void *receive;
    int64_t nsend, nreceive;
    const struct CommPart *next;
} CommPart;

static inline int64_t part_sends(const CommPart *p)
{
    int64_t nbytes = 0;
    for (; p; p = p->next)
        nbytes += p->nsend;
    return nbytes;
}

static inline int64_t part_receives(const CommPart *p)
{
    int64_t nbytes = 0;
    for (; p; p = p->next)
        nbytes += p->nreceive;
    return nbytes;
}

/* ---- transport: how bytes move; transport_mpi.c (a module for each MPI), threads.c ---- */

/* Element types that libraries can reduce themselves. */
typedef enum { COMM_F64, COMM_F32, COMM_I64, COMM_I32, NCOMM_TYPE } CommType;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN, COMM_PRODUCT, NCOMM_OP } CommOp;

/* This rank's place among all, and among those on its host. */
typedef struct CommPlace {
    int rank, size;
    int local, here; /* its number on this host, of `here` ranks */
} CommPlace;

/* Called by one thread. Those that return int: 0, or -1 with COMM_MESSAGE bytes of reason. A
 * request is gone once it was told that it is done; it comes as COMM_ROOM bytes, aligned to 16,
 * that the transport may use until then. Messages from one rank to another with one tag arrive in
 * the order in which they were sent. Nothing here waits, but open(), group() and close().
 */
enum { TRANSPORT_VERSION = 5 };
typedef enum { BEAT_NONE, BEAT_HEARD, BEAT_OVER } CommBeat;
typedef struct Transport {
    int version;      /* TRANSPORT_VERSION: a module may be an older one */
    const char *name; /* "Open MPI 4.1.4" */
    bool kills;       /* abort() ends processes, after the message, if any, on stderr */
    /* *self comes as comm_open was given it. */
    int (*open)(void **self, CommPlace *place, char *message);
    /* Sends or receives all of p as one message; p stays until that is over. */
    int (*send)(void *self, int to, int tag, const CommPart *p, void **request, char *message);
    int (*receive)(void *self, int from, int tag, const CommPart *p, void **request, char *message);
    int (*done)(void *self, void *request, bool *done, char *message);
    /* NULL: there are no reductions of the library's own. All ranks of the run call group() alike,
     * and may wait there for each other; `group` belongs to the transport. scatter: this rank's
     * part of the reduced, else all of it; count: elements of the result, which is apart from what
     * is reduced. A group has one reduction at a time. */
    int (*group)(void *self, int n, const int *rank, void **group, char *message);
    int (*reduce)(void *self, void *group, bool scatter, CommType type, CommOp op, const void *from,
                  void *to, int64_t count, void **request, char *message);
    /* Tells the next rank, around all, that this one lives, and whether the one before has told so
     * since the last call. NULL: no rank can hang alone, as its thread is one of this process. With
     * `last`, called until BEAT_OVER, nothing is under way any more once all have done so; a rank
     * that has said its last is heard at any time. */
    int (*beat)(void *self, bool last, CommBeat *heard, char *message);
    /* Ends all ranks at once, with that exit code. */
    void (*abort)(void *self, int code, const char *message);
    /* Why a rank has ended all; NULL: none has. Once it has said so nobody touches what this rank
     * sends or receives. */
    const char *(*aborted)(void *self);
    void (*close)(void *self, bool failed);
    /* Calls news(arg), on any thread and until close(), when all that is received, or all that is
     * sent, with one tag may be over, and when a rank has ended. NULL: only done() says so. */
    void (*tell)(void *self, void (*news)(void *arg), void *arg);
} Transport;

/* ---- comm.c, and engine.c, the thread ---- */

typedef struct CommOptions {
    double timeout; /* seconds after which a message that has not come, or a process of which
                     * nothing is heard, is an error; 0: never */
    int64_t delay;  /* for tests: each message is sent up to so many microseconds later */
    uint64_t seed;  /* of the delays */
    /* For tests, of a link by which a rank receives, one message after the other: seconds of a
     * message, and bytes in a second; 0: none. Reductions of a library do not see it. */
    double wait, rate;
} CommOptions;

/* timeout by the caller, the rest by TENON_COMM_DELAY=USEC[,SEED] and TENON_COMM_LINK=SEC,RATE. */
CommOptions comm_options(Ctx *ctx, double timeout);

/* This rank's end over a transport; all ranks open alike. Starts its thread, which calls open(),
 * with that self, and all else. Closed with a; with jobs under way, that ends all ranks. Where
 * there are beats, a rank parts when all do, and one whose thread is silent ends all. */
Comm *comm_open(Arena *a, const Transport *t, void *self, const CommOptions *o);
Comm *comm_alone(Arena *a); /* of one rank: no thread */
int comm_rank(const Comm *c);
int comm_size(const Comm *c);
int comm_here(const Comm *c); /* ranks on this host */
int comm_local(
    const Comm *c); /* this one's number among them: the launcher's, or the transport's */
/* Whether ranks are threads of one process. */
bool comm_is_threads(const Comm *c);
double comm_timeout(const Comm *c);
/* Whether nothing comes any more, with the reason; from the first call on the thread notices while
 * it has no job, too, that another rank has ended all. */
bool comm_failed(Comm *c, char *message);
/* A place for what another library has of these ranks, NULL at first; and an arena that lives as
 * long as c. */
void **comm_own(Comm *c, Arena **a);
/* Names where a request to stop is noted, until c goes: once *stop is not 0, a rank may be silent
 * for seconds only. */
void comm_stop_by(Comm *c, const volatile int *stop);

/* The group of these ranks, this one among them, in their order, which is the members'. All ranks
 * of a group make it alike, with one `id` below COMM_GROUPS, which no two groups of a rank share; 0
 * is that of all ranks. A group that is made again is the same one. Waits for nobody. Jobs under
 * way when a goes end all ranks: what they read and write must go later. */
CommGroup *comm_group(Comm *c, Arena *a, int id, int n, const int *rank);
/* Makes what the group's reductions by the library need, if it is not there. All ranks of the run
 * do so for their groups in one order, with no job under way, and wait for each other: none may
 * have failed before. */
void comm_library(CommGroup *g, Ctx *ctx);
/* The id of the group of these ranks that there is or was, or one that none has; -1: all have. The
 * same on all ranks that make and drop their groups in one order. */
int comm_group_id(const Comm *c, int n, const int *rank);
CommGroup *comm_world(Comm *c);
int comm_group_size(const CommGroup *g);
int comm_group_rank(const CommGroup *g, int member);
int comm_member(const CommGroup *g);   /* this rank's place in it */
bool comm_reduces(const CommGroup *g); /* whether the library can, after comm_library() */

typedef enum {
    ROUND_EXCHANGE, /* part[], by member */
    ROUND_CALL,     /* call() on comm's thread: what makes something of what came */
    ROUND_REDUCE    /* by the library */
} RoundKind;

typedef struct CommRound {
    RoundKind kind;
    CommPart *part;
    /* Makes slice i, from 0 on; true: that was the last. Between slices comm serves other groups,
     * and ranks hear that this one lives. */
    bool (*call)(void *arg, int64_t i);
    void *arg;
    bool scatter;
    CommType type;
    CommOp op;
    const void *from;
    void *to;
    int64_t count; /* of the result */
    /* In an exchange: each member's bytes to all, in a row, for libraries that have that. */
    bool gathers;
} CommRound;

/* One collective: rounds, each after the one before. Made once, started often, never while it runs;
 * the caller may change its rounds in between. */
typedef struct CommJob {
    CommGroup *group;
    const char *what; /* for messages: "all_gather %x" */
    CommRound *round;
    int nround;
    bool patient; /* it may take as long as it takes, while all ranks are heard of */
    /* comm's own */
    struct CommJob *next;
    int at, left;  /* the round, and its messages that are not over */
    int64_t slice; /* of its call, the next one */
    bool running, posted;
    struct CommMessage *message;
} CommJob;

void comm_prepare(Arena *a, CommJob *j);           /* memory for its messages */
void comm_start(Comm *c, CommJob *j);              /* allocates nothing, waits for nothing */
int comm_wait(Comm *c, CommJob *j, char *message); /* 0, or -1 with COMM_MESSAGE bytes of reason */

/* Among all ranks, at once. Return 0 or -1 with the reason. */
int comm_max(Comm *c, int64_t *x, int n, char *message); /* elementwise, in place; n up to 64 */
int comm_gather(Comm *c, const void *mine, int64_t nbytes, void *all, bool patient, char *message);
/* Exchanges bytes with each rank; part is by rank. */
int comm_exchange(Comm *c, const CommPart *part, bool patient, char *message);

/* Ends all ranks, whose waits then fail with "rank N: " and that message. Where that kills
 * processes, the message is on stderr first, and this does not return. Not to be called by a round.
 */
void comm_abort(Comm *c, int code, const char *message);

/* Counts until now. */
typedef struct CommCount {
    int64_t nreceived, nmessage; /* bytes and messages from other ranks */
    int64_t nlook;               /* of the thread at what is under way, when a job last ended */
    double waited;               /* seconds that callers of comm_wait did nothing else */
} CommCount;
CommCount comm_count(Comm *c);

/* ---- threads.c: ranks in one process ---- */

typedef struct CommShared CommShared; /* what they share */
CommShared *comm_shared(Arena *a, int n);
/* A transport of rank `rank`, for comm_open; safe to be called by each rank's own thread. */
const Transport *comm_threads(CommShared *s, int rank, void **self);

/* ---- launch.c: who started this process, and the module of its MPI ---- */

/* By the launcher's environment: how many ranks it has started; 0: there was none. */
int comm_launched(void);
/* Whether this process is the first of them on this host; true where there was none. */
bool comm_launched_first(void);
/* By the same: this process's number among the ranks of its host; -1: the launcher says none. */
int comm_launched_local(void);
/* Loads the module; fails where there is none for that MPI, with what to install: alike on all
 * ranks of a host, which is TN_USAGE. */
const Transport *comm_mpi(Ctx *ctx);
/* The MPIs that there are modules of, none of which it loads. */
enum { COMM_MODULES = 2 };
int comm_modules(const char *name[static COMM_MODULES]);

#endif
