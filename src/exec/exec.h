/* exec: runs a plan. One arena, one flat list of steps; no allocation, no search, no graph in a
 * step. */
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

/* Checks from the next run on, or no more; a program in another's arena has none. */
void program_check(Program *x, Arena *a, bool on);

/* A program in the arena of another, whose persistent part it shares; host must outlive it. Fails
 * where the plan's persistent part is another or its peak is larger than the host's arena. */
Program *program_share(Arena *a, Plan *p, Program *host);

/* One step. Returns 0, or -1 with the node and the reason in message. Allocates nothing. */
int program_run(Program *x);

/* The memory of an input or output; valid as long as the program. Of seed, step and scalars it is
 * outside of the arena, from where each run copies them: they stay set whatever else is in there.
 */
void *program_data(const Program *x, const PlanPort *port);
const PlanPort *program_find_input(const Program *x, Role role, const char *name);
const PlanPort *program_find_output(const Program *x, Role role, const char *name);

/* Measuring: fill everything but the persistent part before the inputs are written, and find the
 * end of the last 64-byte line that has changed after the run. */
void program_fill(Program *x, uint8_t pattern);
int64_t program_high(const Program *x, uint8_t pattern);

int64_t rss_peak_bytes(void);

/* ---- finite.c ---- */

/* Of n values in a row; 0 of integers. */
int64_t count_not_finite(DType dtype, const void *data, int64_t n);

/* ---- trace.c: what each call took ---- */

/* Memory for that many runs of the plan, or for as many events as are kept at most. Times are read
 * from the clock, now_sec or cpu_sec. */
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
/* Operations and bytes of a step of the plan; of what the planner put in, bytes alone. */
Cost step_cost(const Step *s);
/* What was recorded, as JSON in the trace-event format. */
void trace_print(Buf *b, const Trace *t, const Plan *p);

/* ---- calls.c: what was recorded, summed up ---- */

/* What bounds a call; of what memory bounds, the stream that reads and writes as it does. */
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

/* ---- limit.c: what this machine can do at most ---- */

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
