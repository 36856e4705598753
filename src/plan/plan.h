/* plan: from a graph to a flat list of kernel calls whose every byte has an address. */
#ifndef TENON_PLAN_H
#define TENON_PLAN_H

#include "../flow/flow.h"
#include "../pass/pass.h"

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
    int64_t nbytes;  /* rounded up */
    int64_t offset;  /* in the arena */
    int start, end;  /* steps during which it is alive, half-open */
    int loop;        /* the LOOP step in whose iterations it lives, -1: the whole step */
    bool persistent; /* parameters, optimizer state, caches: first in the arena, always alive */
} Storage;

/* Where a tensor of a call lies. */
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

typedef struct Step {
    StepKind kind;
    const Node *node;     /* what it comes from; copies have a node of their own */
    bool copy;            /* put in by the planner */
    const Kernel *kernel; /* CALL; NULL: the op's ref */
    Call call;
    Arg *arg; /* inputs, then outputs; LOOP: all outer storages that its iterations touch */
    int narg;
    int work;       /* storage of the workspace, or -1 */
    int depth, end; /* LOOP: nesting from 0, step index of its END; END: of its LOOP */
    int64_t first, count, by;
    int64_t nbytes; /* ZERO */
} Step;

/* An input or output of the graph, in memory. */
typedef struct PlanPort {
    const char *name, *value;
    Role role;
    Type type;
    int storage; /* contiguous, at its start */
} PlanPort;

typedef struct Plan {
    Graph *g;
    Step *step;
    int nstep, capstep;
    Storage *storage;
    int nstorage, capstorage;
    PlanPort *in, *out;
    int nin, nout;
    int64_t persistent_nbytes;      /* the arena's first part, what others keep there included */
    int64_t peak, bound;            /* arena bytes; largest sum of live bytes */
    int64_t order_bound;            /* no order of the graph has a lower peak */
    int64_t workspace;              /* largest workspace */
    int64_t reserve;                /* what libraries allocate by themselves */
    int64_t by_category[NCATEGORY]; /* alive where the bound is reached */
    int peak_step;
    int ncopies;
    double sec; /* what planning took */
} Plan;

/* Lowers g as it is ordered, fills liveness and addresses. The plan lives in a. The persistent part
 * takes at least `persistent` bytes, what another plan that shares the arena keeps there, and
 * caches lie behind them. */
Plan *plan_make(Arena *a, Graph *g, int64_t persistent);

/* The largest sum of live bytes of the graph as ordered, without placement or library handles. */
int64_t plan_bound(Graph *g);

/* Orders g for the least peak (order.c), then plan_make. */
Plan *plan_ordered(Arena *a, Graph *g, int64_t persistent);

/* order.h */
int order_graph(Graph *g, Arena *tmp, int64_t (*score)(Graph *g, void *arg), void *arg);

/* ---- lower.c ---- */
/* prepare false: without the handles of libraries. */
Plan *plan_lower(Arena *a, Flow *f, bool prepare);

/* ---- live.c ---- */
void plan_live(Plan *p);    /* fills start and end of every storage */
void plan_measure(Plan *p); /* fills bound, by_category, peak_step, workspace */
int64_t plan_live_bytes(const Plan *p, int step); /* alive at a step */

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

/* What is saved for the backward and what is computed again, as the graph says. */
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

/* ---- report.c ---- */
void plan_print(Buf *b, const Plan *p); /* the breakdown people read */
/* Parameters that have the optimizer and the weight decay in common, or that are frozen. */
typedef struct ParamGroup {
    const Op *op; /* NULL: frozen */
    double decay;
    int ntensor;
    int64_t nelem;
} ParamGroup;

int plan_groups(Arena *a, const Plan *p, ParamGroup **groups); /* how many; the frozen ones last */
void plan_print_steps(Buf *b, const Plan *p); /* every call, copies and addresses */
uint64_t plan_hash(const Plan *p);
int64_t plan_least(const Plan *p); /* bytes --memory must at least be */

/* ---- compare.c ---- */

typedef enum { FIGURE_BYTES, FIGURE_GFLOP, FIGURE_COUNT } FigureKind;

/* A number in which plans are compared, of each of two. */
typedef struct Figure {
    const char *title;
    FigureKind kind;
    double value[2];
} Figure;

/* Two plans beside each other; what is nothing in both is left out. Returns how many. */
int plan_figures(Arena *a, const Plan *const p[2], Figure **list);
/* The same as text, `side` says what each has of its own. */
void plan_compare(Buf *b, const Plan *const p[2], const char *const side[2]);

#endif
