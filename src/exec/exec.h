/* exec: runs a plan, a flat list of steps in one arena. A run neither allocates nor searches nor
 * reads the graph. Sections name the file that implements them. */
#ifndef TENON_EXEC_H
#define TENON_EXEC_H

#include "../plan/plan.h"

typedef struct Trace Trace;

typedef struct Program {
    Plan *plan;
    char *arena;  /* plan->peak bytes, aligned to 4096 */
    char *mapped; /* what was mapped: the arena between guard zones */
    size_t nmapped;
    int64_t nbytes; /* of the arena: the peak, or more for programs that share it */
    char *scalar;   /* by input, PLAN_ALIGN bytes each: where seed, step and scalars are set */
    bool check;     /* poison dead buffers, watch guards, look for values that are not finite */
    int *dying, *dying_at;  /* check: storages by the step that they die after */
    const Node *not_finite; /* check: the first node of the last run with such a result */
    char message[400];      /* why the last run failed */
    Trace *trace;           /* NULL: no run is recorded */
} Program;

/* Maps an arena of at least `nbytes` (and the plan's peak) and fills in what does not change. The
 * program lives in a, unmapped with it. Fails where the memory cannot be mapped. */
Program *program_make(Arena *a, Plan *p, bool check, int64_t nbytes);

/* Turns checks on or off from the next run on; a program in another's arena has none. */
void program_check(Program *x, Arena *a, bool on);

/* A program in the arena of another, with which it shares the persistent part; host must outlive
 * it. Fails if the plan's persistent part differs or its peak is above the host's arena. */
Program *program_share(Arena *a, Plan *p, Program *host);

/* Runs the plan once. Returns 0, or -1 with the node and the reason in message. Allocates nothing.
 */
int program_run(Program *x);

/* The memory of an input or output; valid as long as the program. For seed, step and scalars it is
 * outside of the arena, and each run copies them in: they stay set whatever overwrites the arena.
 */
void *program_data(const Program *x, const PlanPort *port);
const PlanPort *program_find_input(const Program *x, Role role, const char *name);
const PlanPort *program_find_output(const Program *x, Role role, const char *name);

/* For measuring: fills everything but the persistent part, before inputs are written; after the run
 * finds the end of the last 64-byte line that has changed. */
void program_fill(Program *x, uint8_t pattern);
int64_t program_high(const Program *x, uint8_t pattern);

int64_t rss_peak_bytes(void);

/* ---- finite.c ---- */

/* The number of n contiguous values that are NaN or infinite; 0 of integers. */
int64_t count_not_finite(DType dtype, const void *data, int64_t n);

/* ---- trace.c: the time of each call ---- */

/* A trace with memory for that many runs of the plan, or for the most events that are kept. The
 * clock is now_sec or cpu_sec. */
Trace *trace_new(Arena *a, const Plan *p, int64_t nruns, double (*clock)(void));
void trace_next(Trace *t, int64_t number); /* the next run is recorded, under this number */
bool trace_begin(Trace *t);                /* whether this run is; t may be NULL */
void trace_end(Trace *t);
/* Step i of the plan has run since `start`; iteration: of its loop, before it. */
void trace_step(Trace *t, const Plan *p, int i, int64_t iteration, bool jumped, double start);
double trace_now(const Trace *t);
int64_t trace_runs(const Trace *t);                         /* that were recorded to their end */
int64_t trace_count(const Trace *t);                        /* events that were recorded */
int trace_call(const Trace *t, int64_t event, double *sec); /* its step of the plan; -1: no call */
/* Operations and bytes of a step of the plan; of a step that the planner added, bytes only. */
Cost step_cost(const Step *s);
/* Adds the recorded events as JSON in the trace-event format. */
void trace_print(Buf *b, const Trace *t, const Plan *p);

/* ---- calls.c: recorded calls by group ---- */

/* What bounds a call: for calls bound by memory, the stream that reads and writes alike. */
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
    int64_t ncalls, nsec;
    double *sec; /* ascending */
} CallTimes;

/* Distinct calls in the order of the plan; returns how many. */
int trace_calls(Arena *a, const Trace *t, const Plan *p, CallTimes **calls);

/* ---- limit.c: the most that this machine can do ---- */

/* y[m, n] = a[m, k] b[k, n], f32 or bf16. */
typedef struct Product {
    DType in, out;
    int64_t m, k, n;
} Product;

/* Median seconds of a product alone through the library in the fastest of plain, transposed and
 * packed layouts. tmp is reset. */
double product_sec(Arena *tmp, const Product *p, double (*clock)(void));
/* Bytes read and written per second by the fastest stream of each kind, past the caches. */
void stream_rates(Arena *tmp, double (*clock)(void), double rate[NSTREAM]);
double median_sec(double *sec, int n); /* sorts them; 0 of none */

#endif
