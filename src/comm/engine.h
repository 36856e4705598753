/* engine: what an end is made of, for its two halves: what callers see of it (comm.c) and its
 * thread (engine.c). */
#ifndef TENON_COMM_ENGINE_H
#define TENON_COMM_ENGINE_H

#include "comm.h"

typedef enum {
    MESSAGE_NONE, /* there is none, or it is over */
    MESSAGE_LATER,
    MESSAGE_POSTED,
    MESSAGE_ON_LINK
} MessageState;

typedef struct CommMessage {
    MessageState state;
    void *request;
    double due; /* when it is sent, or has passed the link */
    _Alignas(16) char room[COMM_ROOM];
} CommMessage;

struct CommGroup {
    Comm *c;
    int id, n, member;
    int *rank;
    int nuser;             /* arenas that have it */
    void *library;         /* the transport's */
    CommJob *first, *last; /* started */
    int nwaiting;          /* callers of comm_wait */
    double waiting;        /* since when there are any */
    CommJob *current;      /* the thread's: the first */
    double moved;          /* the thread's: when anything of it last came or began */
};

/* Requests of callers to the thread, but for jobs. */
typedef enum {
    ASK_NOTHING,
    ASK_LIBRARY, /* what the transport has of a group */
    ASK_DROP,    /* to touch no job's memory any more */
    ASK_END      /* to end all ranks */
} Ask;

/* The job of comm_max and the like. */
typedef struct SmallJob {
    CommJob job;
    CommRound round;
    CommPart *part;
    int64_t *number;
} SmallJob;

typedef struct CommAsked {
    Ask kind;
    CommGroup *group;
    int code;                  /* of ASK_END */
    char reason[COMM_MESSAGE]; /* of ASK_DROP and ASK_END */
} CommAsked;

/* The thread's own. */
typedef struct EngineState {
    char why[COMM_MESSAGE];
    CommCount came;
    uint64_t nsent;
    double moved, due; /* when anything last did, and the next clock's end */
    bool crowded;      /* there are more ranks here than cores: looks take them from others */
    bool asks;         /* something is under way of which only the transport knows when it ends */
    double link;       /* until when it is taken */
    double patience;   /* until when a caller may say why this rank has failed */
    double looked;     /* when it last did */
    double resumed;    /* when it did so again after this process had not run */
    double beat;       /* when the next rank is to hear of this one */
    double heard;      /* when this one last heard of the one before */
} EngineState;

struct Comm {
    const Transport *t; /* NULL: one rank, or no thread */
    void *self;
    CommOptions options;
    CommPlace place;
    Arena *a;    /* in which it is */
    void *other; /* comm_own */
    CommGroup group[COMM_GROUPS];
    SmallJob small;
    EngineState own;
    pthread_t thread;
    pid_t process;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;  /* for the thread: there is something new */
    pthread_cond_t done;  /* for the others: a job, or what was asked, is */
    bool opened, stop;
    bool failed;  /* nothing of what waits, or will, comes any more: `message` says why */
    bool ended;   /* on all ranks */
    bool news;    /* since the thread last looked */
    bool listens; /* without a job, too, it is to notice that another rank has ended all */
    const volatile int *stopping; /* NULL: nothing asks for it */
    CommAsked asked;
    char message[COMM_MESSAGE];
    CommCount count;
};

void *engine_serve(void *comm); /* the thread */
void engine_tell(Comm *c);      /* that there is something new; locked */
/* Copies what a rank sends itself in an exchange. */
void engine_copy_own(const CommGroup *g, const CommRound *r);

#endif
