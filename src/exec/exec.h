/* exec: runs a plan, a flat list of steps in one arena for each space. A run neither allocates nor
 * searches nor reads the graph. Sections name the file that implements them. */
#ifndef TENON_EXEC_H
#define TENON_EXEC_H

#include "../comm/comm.h"
#include "../plan/plan.h"

#include <stdatomic.h>

typedef struct Trace Trace;
typedef struct Program Program;
typedef struct Collective Collective;
typedef struct Hashes Hashes;
typedef struct Late Late;

/* ---- device.c, device_NAME.c: memory and queues of a device ---- */

enum { GUARD = 65536, RUN_MESSAGE = 400, POISON = 0xFF };

/* An arena of one space, between two guard zones of GUARD bytes. */
typedef struct Memory {
    Space space;
    int number; /* of the device */
    int64_t nbytes;
    bool on_host;  /* the host may touch it */
    char *at;      /* the device's address of it, which tests alone read where it is not on_host */
    char *work_at; /* where work finds it */
    char *mapped, *hidden; /* what was mapped in this process: all of it, and for `at` alone */
    size_t nmapped, nhidden;
} Memory;

/* Something to do on a queue. Queues copy it. */
typedef struct Work {
    int (*run)(const struct Work *w, char *message); /* 0, or -1 with RUN_MESSAGE bytes of reason */
    Program *x;
    void *arg; /* valid until the queues are done */
    int step;  /* of the plan, with the iteration of each enclosing loop */
    int64_t iteration[TN_MAX_DEPTH];
    bool jumps;   /* END: iterations are left */
    int last;     /* loops from this depth on are in their last iteration */
    void *stream; /* the queue on which it runs, to a device whose kernels are only given there */
} Work;

/* The latest run of a step that others wait for. What it has belongs to the device. */
typedef struct Event {
    uint64_t recorded, done;
    void *handle;
} Event;

/* A run that a device keeps, to be repeated as a whole. */
typedef struct Recording Recording;

typedef enum { NOT_FINITE, POISONED } Unsound;

/* Random pauses of queues that have threads: one in `every` pieces of work starts up to usec later,
 * as a function of the seed. */
typedef struct Delay {
    int64_t usec, every;
    uint64_t seed;
    unsigned queues; /* bits of those that pause; 0: all */
} Delay;

/* A device's queues, open. Used by one thread at a time. */
typedef struct Queues {
    bool failed; /* what is still in the queues is not run */
    char message[RUN_MESSAGE];
    Delay delay;  /* to be changed only while nothing runs */
    Fault *fault; /* what kernels note; NULL: theirs say it themselves */
    void *ranks;  /* what DeviceRanks opened, in runs that have work of it; else NULL */
    bool left;    /* they have failed: what kernels note after that comes of it */
} Queues;

/* Operations of work on memory, by its stream and by addresses that it reaches. */
typedef struct StreamWork {
    void (*copy)(void *stream, void *to, const void *from, int64_t nbytes);
    void (*fill)(void *stream, void *to, uint8_t byte, int64_t nbytes);
    void (*store)(void *stream, int64_t *to, int64_t x);
    /* Has the host call fn(arg) when the stream is there; what the stream is given later waits
     * until it has returned. It calls nothing of the device, and may wait for other ranks. False:
     * it cannot. NULL: work runs where the stream is, and may do it itself. */
    bool (*later)(void *stream, void (*fn)(void *arg), void *arg);
    /* These wait for what the stream was given before. */
    void (*wait_for)(void *stream); /* NULL: nothing is left to wait for */
    /* The end of the last line of PLAN_ALIGN bytes of which one is another; 0: none. */
    int64_t (*high)(void *stream, const char *p, uint8_t byte, int64_t nbytes);
    /* Whether an element of t, which is of floats, is so. */
    bool (*any)(void *stream, const Tensor *t, Unsound what);
} StreamWork;

extern const StreamWork host_work; /* in the host's memory, done when it returns */

/* Records a run, to repeat it as a whole. */
typedef struct Recorder {
    Recording *(*make)(Arena *a);
    /* False where r holds a run, which has then been given; else what is given until end() is
     * recorded and given. */
    bool (*begin)(Queues *q, Recording *r);
    /* False where that could not be: nothing has run, and r records nothing any more; it must be
     * given once more. */
    bool (*end)(Queues *q, Recording *r);
} Recorder;

/* Makes on a stream what a round of comm makes on its thread (CommRound.call). 0, or -1 with the
 * reason. */
typedef int DeviceSum(void *arg, void *stream, char *message);

/* Collectives between the memories of devices, by a library of theirs. Functions that return int:
 * 0, or -1 with RUN_MESSAGE bytes of reason. Work that wait() lets run may be captured. */
typedef struct DeviceRanks {
    void *(*open)(Comm *c, int number);              /* once for each rank; fails */
    void *(*group)(void *ranks, const CommGroup *g); /* all ranks of the run call it alike; fails */
    /* Gives the job's rounds to the group's stream, behind what `stream` was given. */
    int (*start)(void *ranks, void *group, void *stream, const CommJob *j, DeviceSum *sum,
                 const Event *begun, const Event *ended, char *message);
    int (*wait)(void *stream, const Event *ended,
                char *message); /* has `stream` wait for its end */
    /* y = what the reduction n makes of the members' elements x[i], in that order. */
    int (*sum)(void *stream, const Node *n, int count, const void *const *x, int64_t nelem, void *y,
               char *message);
    /* While streams are waited for: -1: nothing ends any more, and streams were freed. */
    int (*watch)(void *ranks, char *message);
    void (*watched)(void *ranks); /* they have ended */
} DeviceRanks;

/* The running half of a Device: device_NAME.c ends with one. */
typedef struct Driver {
    /* Fails where the device of that number cannot be used; NULL: it always can. */
    void (*ready)(Ctx *ctx, int number);
    int (*count)(void);         /* how many devices there are; NULL: their numbers mean nothing */
    int64_t (*available)(void); /* bytes that a map() of SPACE_MAIN can have; -1: unknown */
    int64_t (*used)(Queues *q); /* bytes in use of the device's memory; NULL: it is the host's */
    int (*map)(Memory *m);      /* m->nbytes of m->space; returns 0 or an errno */
    void (*unmap)(Memory *m);
    /* Host memory from which work copies; NULL: any will do. */
    void *(*host_memory)(Arena *a, int64_t nbytes);
    Queues *(*open)(Arena *a, int number); /* closed with a */
    /* Makes an event that will be recorded; NULL: there is nothing to make. */
    void (*event)(Arena *a, Event *e);
    /* Gives a queue its next work. False: earlier work has failed. */
    bool (*launch)(Queues *q, Queue to, const Work *w);
    void (*record)(Queues *q, Queue in, Event *e); /* after what it was given so far */
    void (*wait)(Queues *q, Queue in, Event *e);   /* for the latest record; none: not at all */
    int (*finish)(Queues *q, char *message);       /* waits for all; the first error, or 0 */
    const Recorder *recorder;                      /* NULL: each run gives its steps anew */
    const DeviceRanks *ranks;                      /* NULL: ranks talk in the host's memory alone */
    const StreamWork *work;
} Driver;

/* driver_cuda is absent from programs that are linked without it: its address is then NULL. */
#define DEVICE_DRIVER(n, ...) extern const Driver driver_##n __attribute__((weak));
DEVICES(DEVICE_DRIVER)
#undef DEVICE_DRIVER
const Driver *driver_of(const Device *d);
/* Gives, of `count` devices of a host, that of its rank `local`, where the first rank has `first`
 * and those after it take the next ones, around. */
int device_of_rank(int first, int local, int count);

/* Maps nbytes that the host can touch, with guard zones, `edge` bytes before and after them that
 * nobody can touch. Returns 0 or an errno. */
int memory_map(Memory *m, size_t edge);
void memory_unmap(Memory *m);
/* Maps by the driver what is unmapped with a. Returns 0 or an errno. */
int memory_own(Arena *a, const Driver *d, Memory *m);
int64_t memory_available(void); /* that the system can give without swapping; -1: it does not say */
/* Ends a run: 0, or -1 with the message of what has failed, which is then forgotten. */
int queues_end(Queues *q, char *message);

/* ---- exec.c: programs ---- */

/* A plan that is being run. All that a run changes is the program's own, so that several programs
 * of one plan may run at once, each in a thread of its own. */
struct Program {
    const Plan *plan;
    const Driver *driver;
    Queues *queues;            /* its own, or those of the program whose arena it shares */
    Memory *memory[MAX_SPACE]; /* likewise; NULL: it needs none there */
    char *base[MAX_SPACE];     /* where work finds them */
    char **bound;              /* by storage: memory of the caller's in its place, or NULL */
    uint64_t *reach;           /* by storage: bytes from its start that steps touch */
    Event *event;              /* by step; in the end that of the run's start */
    Recording *recording;      /* NULL: runs are not recorded */
    Call *call;                /* by step: the plan's, with data, workspace and state */
    int *joined;               /* by step that has a run_all: how many from there on run as one; 0:
                                  an earlier one runs it; NULL: no step has one */
    Call **together;           /* room for their calls */
    char *scalar; /* by input, PLAN_ALIGN bytes each: where seed, step and scalars are set */
    const struct Program *host; /* whose arena it has, and what is bound there; NULL: its own */
    int *host_storage;          /* by storage: the host's, where it is an input of both, or -1 */
    bool check; /* poison dead buffers, watch guards, look for values that are not finite */
    /* check: what dies with step i is dying[dying_at[i + 1]] to before dying[dying_at[i]] */
    struct Dying *dying;
    int ndying, capdying, *dying_at;
    _Atomic(const Node *) not_finite; /* check: a node of the last run with such a result, the first
                                         of its queue */
    char message[RUN_MESSAGE];        /* why the last run failed */
    Comm *comm;                       /* NULL: collectives are refused */
    Collective *collective;           /* by step: of collectives and their waits */
    void *ranks;                      /* what DeviceRanks opened; NULL: no collective is its */
    Late *late;                       /* NULL: collectives run where their steps do */
    Hashes *hashes;                   /* NULL: results are not hashed */
    Trace *trace;                     /* NULL: no run is recorded */
    bool traced;                      /* this run is */
};

/* Maps arenas, that of SPACE_MAIN of at least `nbytes` (and the plan's peak), opens the device's
 * queues, and fills in what does not change. The program lives in a, unmapped with it. Fails where
 * the memory cannot be mapped. */
Program *program_make(Arena *a, const Plan *p, bool check, int64_t nbytes);

/* Turns checks on or off from the next run on; a program in another's arena has none. */
void program_check(Program *x, Arena *a, bool on);

/* A program in the arena of another, with which it shares the persistent part; host must outlive
 * it. Fails if the plan's persistent part differs or its peak is above the host's arena. */
Program *program_share(Arena *a, const Plan *p, Program *host);

/* The memory that is bound in the place of a storage, or of the host's that is the same input; or
 * NULL. */
static inline char *program_bound(const Program *x, int storage)
{
    for (; x->host && storage >= 0; x = x->host)
        storage = x->host_storage[storage];
    return storage < 0 ? NULL : x->bound[storage];
}

/* Where work finds a storage. */
static inline char *program_storage(const Program *x, int storage)
{
    const Storage *s = &x->plan->storage[storage];
    char *bound = program_bound(x, storage);
    return bound ? bound : x->base[s->space] + s->offset;
}

/* From the next run on an input or output lies at data, NULL: in the arena again. Returns NULL, or
 * why it cannot. */
const char *program_bind(Program *x, const PlanPort *port, void *data);

/* The memory of an input or output; valid as long as the program. NULL where the host cannot touch
 * it. For seed, step and scalars it is outside of the arena, and each run copies them in: they stay
 * set whatever overwrites the arena. */
void *program_data(const Program *x, const PlanPort *port);
/* Whether that is memory that the host can touch. */
bool program_on_host(const Program *x, const PlanPort *port);
/* Copy bytes [at, at + nbytes) of an input or output to the host, and from there. Return 0, or -1
 * with the reason in message. They allocate nothing. */
int program_read(Program *x, const PlanPort *port, int64_t at, int64_t nbytes, void *to);
int program_write(Program *x, const PlanPort *port, int64_t at, int64_t nbytes, const void *from);
const PlanPort *program_find_input(const Program *x, Role role, const char *name);
const PlanPort *program_find_output(const Program *x, Role role, const char *name);

/* For measuring: fills everything but the persistent part, before inputs are written; after the run
 * finds the end of the last 64-byte line of a space that has changed. */
void program_fill(Program *x, uint8_t pattern);
int64_t program_high(Program *x, Space space, uint8_t pattern);

int64_t rss_peak_bytes(void);

/* ---- run.c ---- */

/* Runs the plan once, with its number of threads: gives every step to its queue, and returns when
 * all queues are done. Returns 0, or -1 with the node and the reason in message. Allocates nothing,
 * and changes nothing but the program. */
int program_run(Program *x);
/* Whether each run copies the input in from x->scalar. */
bool port_set_once(const PlanPort *port);

/* ---- join.c: calls that run as one ---- */

void join_prepare(Program *x, Arena *a);

/* ---- collective.c: collectives as jobs of the rank's comm ---- */

/* Lets the program's collectives run, each as jobs made ready here; c outlives the program. All
 * ranks join alike, and none waits for another, so that one may fail alone. fast: reductions are
 * the library's, where it has them, after program_library(). Fails where the mesh has another
 * number of ranks. */
void program_join(Program *x, Arena *a, Comm *c, bool fast);
/* Makes what the library needs for its reductions, or the device's for its collectives: all ranks
 * together, once all have joined. */
void program_library(Program *x, Ctx *ctx);
/* Step i, a collective or the wait for one; its call has its addresses. 0, or -1 with the reason.
 */
int collective_step(Program *x, int i, const Call *c, char *message);
/* Whether step i, one of these, is the business of the device's own library. */
bool collective_on_device(const Program *x, int i);

/* ---- late.c: collectives that a stream comes to later than they are given ---- */

void late_prepare(Program *x, Arena *a); /* of a program that joins; where its device has streams */
void late_begin(Program *x);             /* a run gives its steps anew */
/* Gives the stream a step as collective_step has it. 0, or -1 with the reason. */
int late_give(Program *x, void *stream, int step, const Call *c, char *message);
/* After a run, which was bad or 0: -1, with the reason in x->message, where one of them failed. */
int late_end(Program *x, int bad);

/* ---- hash_results.c: for debugging ---- */

/* Has runs write a hash of every result, to a file that docs/formats.md says; closed with a. */
void program_hash(Program *x, Arena *a, const char *path);
void hash_run(Program *x);     /* another run begins */
void hash_step(const Work *w); /* after a step, on its queue */

/* ---- check_steps.c ---- */

void check_prepare(Program *x, Arena *a); /* guards, and which storages die when */
/* After a step, on its queue: results are finite, guards are whole; what died is poisoned. */
int check_step(const Work *w, char *message);

/* ---- finite.c ---- */

/* The number of n contiguous values that are NaN or infinite; 0 of integers. */
int64_t count_not_finite(DType dtype, const void *data, int64_t n);

/* ---- trace.c: the time of each call ---- */

/* A trace with memory for that many runs of the plan, or for the most slices that are kept. The
 * clock is now_sec or cpu_sec. */
Trace *trace_new(Arena *a, const Plan *p, int64_t nruns, double (*clock)(void));
void trace_next(Trace *t, int64_t number); /* the next run is recorded, under this number */
bool trace_begin(Trace *t);                /* whether this run is; t may be NULL */
void trace_end(Trace *t, bool good);       /* good false: the run has failed, and does not count */
/* Step i of the plan has run since `start`, on its queue; iteration: of its loop, before it. */
void trace_step(Trace *t, const Plan *p, int i, int64_t iteration, bool jumped, double start);
double trace_now(const Trace *t);
int64_t trace_runs(const Trace *t);                         /* that were recorded to their end */
int64_t trace_count(const Trace *t);                        /* slices that were recorded */
int trace_call(const Trace *t, int64_t slice, double *sec); /* its step of the plan; -1: no call */
/* Operations and bytes of a step of the plan; of a step that the planner added, bytes only. */
Cost step_cost(const Step *s);
/* Adds the recorded slices as JSON in the trace-event format. */
void trace_print(Buf *b, const Trace *t, const Plan *p);

/* ---- trace_groups.c: recorded calls by group ---- */

/* The bound of a call: for calls bound by memory, the stream that reads and writes alike. */
typedef enum {
    LIMIT_READ,   /* reads far more than it writes */
    LIMIT_COPY,   /* writes about what it reads to elsewhere */
    LIMIT_ADD,    /* reads more than it writes to elsewhere */
    LIMIT_UPDATE, /* writes where it reads */
    NSTREAM,
    LIMIT_PRODUCT = NSTREAM,
    LIMIT_ATTENTION,
} LimitKind;

/* Calls of one op and kernel on operands of the same dtypes, shapes and strides. */
typedef struct CallTimes {
    const char *op, *kernel; /* op: "zero" and "copy" are the planner's */
    const char *tensors;     /* "f32[4,6], f32[6,5] strides [1,6] -> f32[4,5]" */
    LimitKind limit;
    DType dtype; /* of the first operand; of products those multiplied */
    Cost cost;   /* of one call */
    int step;    /* of the plan, the first of them */
    int64_t ncalls, nsec;
    double *sec; /* ascending */
} CallTimes;

/* Distinct calls in the order of the plan; returns how many. */
int trace_calls(Arena *a, const Trace *t, const Plan *p, CallTimes **calls);

/* ---- time_ways.c: the ways of a call ---- */

/* A kernel of a step's op that accepts its call as it lies. */
typedef struct WayTime {
    const Kernel *kernel;
    bool taken; /* by the plan */
    double sec; /* of one run, alone: the median of `runs`; negative: it failed, or another kernel
                   stands in for it */
    int runs;
} WayTime;

enum { MOST_WAYS = 32 };

/* How many ways a step of a plan has, 0 of what is no kernel's: collectives, copies between
 * memories, what only the reference does. */
int way_count(const Plan *p, int step);
/* Times them all on the plan's device, in turns until `most` seconds have gone, and each at least
 * once; returns how many. Operands, workspaces and queues are tmp's, which is not reset. */
int way_times(Arena *tmp, const Plan *p, int step, double most, double (*clock)(void),
              WayTime way[MOST_WAYS]);

/* ---- ceiling.c: the most that this machine can do ---- */

/* y[m, n] = a[m, k] b[k, n], f32 or bf16. */
typedef struct Product {
    DType in, out;
    int64_t m, k, n;
} Product;

/* Median seconds of a product alone through the library in the fastest of plain, transposed and
 * packed layouts. tmp is reset. */
double product_sec(Arena *tmp, const Product *p, double (*clock)(void));
/* Four arrays that no cache holds; NULL without memory. */
typedef struct Stream Stream;
Stream *stream_new(void);
void stream_free(Stream *s);
/* Bytes read and written per second by the fastest stream of each kind over them. */
void stream_rates(const Stream *s, double (*clock)(void), double rate[NSTREAM]);
double median_sec(double *sec, int n); /* sorts them; 0 of none */

/* ---- device_ceiling.c: the most that a device beside the host can do ---- */

/* The same on the device of a plan; the operands of the product have its result's dtype. */
double device_product_sec(Arena *tmp, const Plan *like, const Product *p, double (*clock)(void));
void device_stream_rates(Arena *tmp, const Plan *like, double (*clock)(void), double rate[NSTREAM]);

#endif
