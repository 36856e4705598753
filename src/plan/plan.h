/* plan: from a graph to a flat list of kernel calls whose every byte has an address. */
#ifndef TENON_PLAN_H
#define TENON_PLAN_H

#include "../flow/flow.h"
#include "../chunk/chunk.h"

enum { PLAN_ALIGN = FLOW_ALIGN }; /* sizes and offsets in the arena are multiples of it */

#define CATEGORIES(X)                \
    X(CAT_PARAM, "parameters")       \
    X(CAT_STATE, "optimizer")        \
    X(CAT_GRAD, "gradients")         \
    X(CAT_ACTIVATION, "activations") \
    X(CAT_RECOMPUTE, "recompute")    \
    X(CAT_WORK, "workspace")         \
    X(CAT_INPUT, "inputs")           \
    X(CAT_OTHER, "other")
#define X(id, text) id,
typedef enum { CATEGORIES(X) NCATEGORY } Category;
#undef X
const char *category_name(Category c);

/* A buffer: what values that share memory lie in. */
typedef struct Storage {
    const char *name, *scope; /* of the value it was made for */
    Category category;
    Space space;
    int64_t nbytes;  /* rounded up */
    int64_t offset;  /* in its space's arena */
    int start, end;  /* steps during which it is alive, half-open */
    int loop;        /* the LOOP step in whose iterations it lives, -1: the whole step */
    bool persistent; /* parameters, optimizer state, caches: first in the arena, always alive */
} Storage;

/* The place of a call's tensor. */
typedef struct Arg {
    int storage;
    int64_t offset; /* bytes from the storage's start */
    int64_t
        loop_stride[TN_MAX_DEPTH]; /* bytes per iteration of the enclosing loops, outermost first */
} Arg;

typedef enum {
    STEP_CALL,   /* a kernel */
    STEP_LOOP,   /* begins iterations first, first + by, ... (count of them); END is at `end` */
    STEP_END,    /* jumps back while iterations are left */
    STEP_ZERO,   /* fills arg[0] with zero bytes */
    STEP_OFFSET, /* stores iteration * by as i64 in arg[0] */
} StepKind;

/* In the order in which steps are given to their queues. */
typedef struct Step {
    StepKind kind;
    Queue queue;
    int *wait, nwait; /* steps of other queues whose latest run has ended before this one begins */
    bool awaited;     /* another step waits for it */
    const Node *node; /* what it comes from; copies have a node of their own */
    bool copy;        /* put in by the planner */
    const Kernel *kernel; /* CALL; NULL: the op's ref */
    Call call;            /* without data and state, which each program has of its own */
    Arg *arg; /* inputs, then outputs; LOOP: all outer storages that its iterations touch */
    int narg;
    int work;  /* storage of the workspace, or -1 */
    int depth; /* LOOP, END: nesting of the loop, from 0; OFFSET: of the loop it counts in */
    int end;   /* LOOP: step index of its END; END: of its LOOP */
    int64_t first, count; /* LOOP: iteration to begin with, and how many */
    int64_t by;           /* LOOP: from an iteration to the next; OFFSET: factor of the iteration */
    int64_t nbytes;       /* ZERO, OFFSET: what it fills */
    double sec;           /* of one run, by the plan's machine; LOOP, END: 0 */
    double exposed; /* of a collective: how long nothing runs beside it, in all runs together */
} Step;

/* An input or output of the graph, in memory. */
typedef struct PlanPort {
    const char *name, *value;
    Role role;
    Type type;
    int storage;    /* contiguous, at its start */
    const Cut *cut; /* for each axis of the graph's mesh: what this rank has of it; NULL: all */
} PlanPort;

/* An arena. */
typedef struct PlanSpace {
    int64_t peak, bound; /* its bytes; the largest sum of live bytes */
    int peak_step;       /* where the bound is reached */
    int64_t persistent;  /* its first part, what others keep there included */
} PlanSpace;

/* Seconds of one step, by the plan's machine. */
typedef struct Estimate {
    double step;             /* from its first call to the end of its last */
    double added;            /* of calls that compute again */
    double by_class[NCLASS]; /* of calls; fused nodes count as what is in their bodies */
    bool communicates;       /* there are collectives */
    double exposed;          /* of these, what nothing hides: the step stands still */
} Estimate;

struct Plan;

/* The bytes beside the peak in which collectives are moved, in eighths of what they are without a
 * limit, and one. */
enum { ROOM_NONE = 1, ROOM_LITTLE = 2, ROOM_HALF = 5, ROOM_USUAL = 9 };

/* The conditions under which a plan is made. */
typedef struct PlanFor {
    const Device *device;   /* NULL: cpu */
    int number;             /* of the device, where there are several */
    const Machine *machine; /* by which it is priced; NULL: this processor */
    int64_t
        persistent[MAX_SPACE]; /* the persistent part takes at least so many bytes: what another
                                  plan that shares the arena keeps there; caches lie after them */
    int64_t
        reserve;    /* the library's is at least so many bytes, of which another plan has the use */
    int64_t limit;  /* bytes that it should need at most, with its reserve; 0: none. If it needs
                       little more, orders are compared in another way too */
    bool lowest;    /* if it needs more, it is that of the fewest bytes, whatever the limit is */
    bool overlap;   /* collectives may be moved to run beside computing, if that takes no more than
                       the limit; without a limit, than what is alive of two more blocks' */
    int room;       /* in how many bytes, ROOM_NONE to ROOM_USUAL; orders of large graphs are then
                       judged by live bytes, and placed with a tenth of the effort, as
                       several are planned. 0: as limit says */
    double rival;   /* seconds of another step, in whose place this one is taken if it is faster:
                       where it seems not, moving collectives ends. 0: there is none */
    double beat;    /* seconds: the plan is of no use unless it takes fewer; then its addresses may
                       waste bytes. 0: it is */
    int64_t enough; /* of a plan that is one of several: bytes, with its reserve, within which its
                       addresses are good enough; where it needs more in any case, all are. 0: the
                       fewest are sought */
    bool loose;     /* its addresses may waste bytes */
    bool quick;     /* rough, but placed, with less effort: orders are judged by live bytes, and no
                       fused node is taken apart */
    bool moved;     /* quick, but with the collectives moved as without that */
    bool tried;     /* only whether it needs at most the limit is asked: any order that does is
                       taken, and if none is found it is as quick */
    const struct PlanBeside *beside; /* what counts beside the plan's bytes where collectives are
                                        moved; NULL: nothing */
    bool rough; /* not to be run: order_bound is 0, and addresses waste bytes, or are left out where
                   no wait follows from them */
    bool unbounded; /* order_bound is left 0, for plan_fill_bound() */
} PlanFor;

/* Whether plans of one graph are one under both. */
bool plan_for_equal(const PlanFor *x, const PlanFor *y);

/* Bytes that a plan lacks of another for which it stands. */
typedef struct PlanBeside {
    /* Fills, by node id, what is alive beside p's bytes where the node runs; returns how much
     * higher than p's own the peak of both is. */
    int64_t (*fill)(void *arg, const struct Plan *p, int64_t *beside);
    void *arg;
} PlanBeside;

/* Immutable once it is made: many programs may run it at once. */
typedef struct Plan {
    Graph *g;
    const Device *device;
    int number;  /* of the device: a run's business, not in the hash */
    int nthread; /* of kernels: workspaces are for that number, and every run takes it */
    const Machine *machine;
    Estimate est;
    PlanSpace space[MAX_SPACE];
    Step *step;
    int nstep;
    Storage *storage;
    int nstorage;
    PlanPort *in, *out;
    int nin, nout;
    int64_t overlap_cap; /* the peak that overlapping collectives was allowed; 0: they are not */
    int64_t order_bound; /* no order of the graph has a lower peak, of SPACE_MAIN */
    int64_t workspace;   /* largest workspace */
    int64_t reserve;     /* what libraries allocate by themselves for one program */
    int64_t handles;     /* of that, what each further program adds */
    int64_t by_category[NCATEGORY]; /* alive in SPACE_MAIN where its bound is reached */
    int ncopies;
    double sec; /* what planning took */
} Plan;

/* Lowers g as it is ordered, fills liveness and addresses. The plan lives in a. `to` NULL: a plan
 * of its own on cpu. */
Plan *plan_make(Arena *a, Graph *g, const PlanFor *to);

/* The same, where to->overlap says so with the collectives moved, in a copy of g. */
Plan *plan_overlapped(Arena *a, Graph *g, const PlanFor *to);

/* The steps of g as ordered, with live ranges and bounds: only what is kept has an address, and
 * nothing is estimated. `to` is complete. */
Plan *plan_measured(Arena *a, Graph *g, const PlanFor *to);

/* The largest sum of live bytes in SPACE_MAIN of the graph as ordered, without placement. */
int64_t plan_bound(Graph *g, const Device *d);

/* The bytes that libraries keep for a step in each program: its part of Plan.handles. */
int64_t plan_step_handles(const Step *s);

/* Bytes of the persistent part that belong to another plan; always alive. */
int64_t plan_kept_by_others(const Plan *p);

/* Fills p's order_bound, where its plan was made without. */
void plan_fill_bound(Plan *p, const PlanFor *to);

/* The bytes that --memory must at least be: the peak and the library's reserve. */
int64_t plan_least(const Plan *p);

/* Orders g for the least peak (order.c), then plan_make. Fused nodes that raise it are taken apart,
 * with a limit only if the plan does not fit otherwise. With a limit or a room g is left as it is,
 * and the plan has a copy. */
Plan *plan_ordered(Arena *a, Graph *g, const PlanFor *to);
/* The same of the nodes as they are. */
Plan *plan_searched(Arena *a, Graph *g, const PlanFor *to);

/* ---- addresses.c ---- */

/* Placements made so far, so that equal buffers are not placed twice. They live in a. */
typedef struct Placements Placements;
Placements *placements_new(Arena *a);
/* Gives the storages that are not kept their addresses. known: NULL, or what is looked up first and
 * added to; a placement found in it that took less effort goes on from there. most: the peak within
 * which little effort is enough; 0: none is. */
void plan_place(Plan *p, int effort, int64_t most, Placements *known);
/* The same, where a peak of so many bytes is good enough, or, if none is possible, any. */
void plan_place_enough(Plan *p, int effort, int64_t enough);

/* ---- overlapped.c ---- */

/* p, or a faster plan of the same nodes, whose collectives run beside computing. `to` is complete.
 */
Plan *plan_overlap(Arena *a, Plan *p, const PlanFor *to, Placements *known);

/* ---- plan.c ---- */

/* As plan_make(), without a bound. most: as of plan_place(). `to` is complete. */
Plan *plan_placed(Arena *a, Graph *g, const PlanFor *to, int64_t most, Placements *known);

/* Whether g is a large step that is planned several times to choose among the plans: orders are
 * then judged by live bytes alone, and addresses may waste some. */
bool plan_is_one_of_many(const Graph *g, const PlanFor *to);

/* Orders g for the least score: the peak, to which what placement wastes is added once more. Orders
 * that score above `most` are not placed; INT64_MAX if there are no others. `to` is complete. */
int64_t plan_score(Graph *g, const PlanFor *to, Placements *known, int64_t most);

/* ---- apart.c ---- */
/* Takes apart, in g, fused nodes without which the plan of g would have a lower peak; whether there
 * were any. score: of g as it is (plan_score). `to` is complete. */
bool plan_take_apart(Graph *g, int64_t score, const PlanFor *to, Placements *known);

/* ---- lower.c ---- */
Plan *plan_lower(Arena *a, Flow *f);

/* ---- queue.c ---- */

enum { SPACE_SHIFT = 62 };

/* Bytes of all spaces, half-open: the space's number << SPACE_SHIFT, and the offset in its arena.
 */
typedef struct ByteRange {
    uint64_t low, high;
} ByteRange;

/* The bytes between the first and the last that an argument touches in any iteration of the loops
 * around (steps, outermost first); t NULL: `nbytes` of them, without gaps. */
ByteRange arg_bytes(const Plan *p, const Arg *a, const Tensor *t, int64_t nbytes, const int *loop,
                    int depth);

/* Bytes that a step touches; of a wait, which computes nothing, none as written, but for what a
 * collective has received. */
typedef void StepAccess(void *arg, int step, int storage, ByteRange b, bool write);

/* Calls see for each operand, result and workspace of step i, and for what it fills itself; loop:
 * the steps of the loops around it, outermost first. */
void step_each_access(const Plan *p, int i, const int *loop, int depth, StepAccess *see, void *arg);
/* The same of all steps, in their order. */
void plan_each_access(const Plan *p, StepAccess *see, void *arg);

bool plan_one_queue(const Plan *p); /* then no step waits for another */
/* Fills which steps of other queues each step waits for, from the addresses; a: the plan's. */
void plan_waits(Plan *p, Arena *a);

/* ---- live.c ---- */
void plan_live(Plan *p);    /* fills start and end of every storage */
void plan_measure(Plan *p); /* fills bound, by_category, peak_step, workspace */
static inline bool storage_alive(const Storage *s, int step)
{
    return s->start <= step && step < s->end;
}

/* ---- estimate.c ---- */
void plan_estimate(Plan *p, Arena *tmp); /* fills est and Step.sec */
/* The calls of nodes, for look-ups. */
typedef struct NodeStep {
    const Node *node;
    const Step *step;
} NodeStep;

typedef struct NodeSteps {
    NodeStep *list;
    int count;
} NodeSteps;

NodeSteps plan_node_steps(Arena *a, const Plan *p);
const Step *plan_node_step(const NodeSteps *s, const Node *n); /* NULL: nothing runs for it */
const char *sec_text(Arena *a, double sec);                    /* "1.234 s", "12.3 ms" */
const char *estimate_shares(Arena *a, const Estimate *e); /* of classes: "81.2 % product, ..." */

/* ---- timeline.c: when steps run ---- */

typedef enum SpanKind {
    SPAN_CALL,       /* a call's queue runs it */
    SPAN_COLLECTIVE, /* a group's queue does */
    SPAN_EXPOSED,    /* a call's queue stands still for a collective */
    SPAN_LATER,      /* iterations of a loop that are not followed */
} SpanKind;

typedef struct PlanSpan {
    SpanKind kind;
    int step; /* of what is exposed the collective's, of iterations the LOOP */
    double start, end;
} PlanSpan;

/* In the order in which they are begun. */
typedef struct PlanSpans {
    Arena *a; /* in which the list lies */
    PlanSpan *list;
    int count, cap;
} PlanSpans;

/* Returns how long the step takes, by the seconds of its steps. exposed: zeros, by step; filled for
 * collectives. spans: NULL, or with an arena. */
double plan_times(const Plan *p, Arena *tmp, double *exposed, PlanSpans *spans);
/* The step before `wait`, of a wait_tensor, that starts the collective for which it waits; -1: it
 * waits for none. */
int plan_find_start(const Plan *p, int wait);

/* ---- step_bound.c ---- */

/* Seconds: no schedule of the plan's graph is faster, in any order and buckets, whose peak is at
 * most so many bytes; 0: any. */
double plan_step_bound(const Plan *p, Arena *tmp, int64_t most);
/* The same of the bytes that the plan could have. */
double plan_memory_bound(const Plan *p, Arena *tmp);

/* ---- scope.c ---- */

/* Bytes of a scope: of a block, or of all outside of blocks that begin with the same name. */
typedef struct ScopeBytes {
    const char *scope;
    int64_t first; /* the block's number, -1: none */
    int count;     /* as many blocks in a row are alike, and the bytes are those of each */
    int64_t peak;  /* alive at the peak */
    int64_t by_category[NCATEGORY]; /* of that */
    int64_t saved;                  /* made by the forward, read by the backward */
    int64_t recomputed;
} ScopeBytes;

/* Values saved for the backward and values computed again, as the graph says. */
typedef struct Breakdown {
    ScopeBytes *row;
    int nrow;
    int nsaved, nrecomputed; /* values; in a body once for all iterations */
    int64_t saved, recomputed;
    double nflop, added_nflop; /* of the step; of them those of copies */
} Breakdown;

Breakdown *plan_breakdown(Arena *a, const Plan *p);
const char *scope_title(Arena *a, const ScopeBytes *x); /* "layers.0-10" */
/* By index of g's inputs: the scope of the first node that reads it; state has its parameter's. */
const char **plan_input_scopes(Arena *a, const Graph *g);

/* ---- collectives.c ---- */

#define COLLECTIVE_ROLES(X)         \
    X(FOR_PARAMETER, "parameter")   \
    X(FOR_ACTIVATION, "activation") \
    X(FOR_GRADIENT, "gradient")     \
    X(FOR_NORM, "norm") /* of the gradient */
#define X(id, text) id,
typedef enum { COLLECTIVE_ROLES(X) } CollectiveRole;
#undef X
const char *collective_role(CollectiveRole r);

/* Collectives of a step that are alike; those of loops count in all iterations. */
typedef struct CollectiveRow {
    CollectiveKind kind;
    const char
        *group; /* of a value that goes over several groups one after the other, all of them */
    DType dtype;
    Phase phase; /* FORWARD also for LOSS */
    CollectiveRole role;
    int64_t count, calls; /* of values; of calls, several of which may be made of one value */
    double nbytes, sec;   /* that this rank receives; estimated */
    double exposed;       /* of these seconds, beside which nothing runs */
} CollectiveRow;

int plan_collectives(Arena *a, const Plan *p, CollectiveRow **rows); /* how many */

/* Ranks that collectives name, and where they are by the plan's machine. */
typedef struct RankGroup {
    const char *name;
    int64_t ranks; /* 0: not known */
    Group where;
} RankGroup;

int plan_rank_groups(Arena *a, const Plan *p, RankGroup **groups);

/* ---- hash.c ---- */

uint64_t plan_hash(const Plan *p);       /* of all ranks of a mesh the same */
uint64_t plan_hash_steps(const Plan *p); /* the same without the machine */

#endif
