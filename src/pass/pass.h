/* pass: rewrites of the graph. pass.def is the pipelines; NAME.c is one pass. */
#ifndef TENON_PASS_H
#define TENON_PASS_H

#include "../cut/cut.h"
#include "../machine/machine.h"

/* Properties of graphs that passes need or give; a set of them is a sum. */
enum {
#define PROPERTY(name, ...) BIT_##name,
#include "pass.def"
    NPROPERTY
};
enum {
#define PROPERTY(name, ...) name = 1 << BIT_##name,
#include "pass.def"
};

/* A policy for all nodes of the forward whose scope and op match "SCOPE::OP", two patterns. */
typedef struct PolicyRule {
    Policy policy;
    const char *pattern;
} PolicyRule;

/* How a node with a policy is treated. */
typedef struct Decision {
    bool unused;    /* the backward does not read its results, so there was nothing to decide */
    bool recompute; /* else it is saved, */
    bool offload;   /* in the host's memory */
    Policy policy;  /* as asked for */
    bool honoured;
    const char *node, *scope, *reason;
    int64_t nbytes; /* of its results */
    double sec;     /* to compute it or to copy it there and back, in all iterations around it */
} Decision;

/* Another form of a value that ranks make from one that they have. */
typedef struct ReshardNote {
    const char *value, *from, *to; /* forms as texts have them, "whole" */
    const char *steps;             /* "all_reduce tp, slice fsdp" */
    const char *reader, *scope;    /* for which node; "" and "": for an output */
    const char *made;              /* the value that the rank's graph has then */
    double nbytes, sec;            /* all steps' */
} ReshardNote;

/* The option by which a node got a policy that nobody gave it by name. */
typedef struct PolicySource {
    Policy policy;
    const char *option; /* "--recompute full" */
} PolicySource;

/* A node that `fuse` left apart. */
typedef struct FuseNote {
    const char *node, *scope, *op, *reason;
} FuseNote;

typedef struct Decisions {
    Arena *a;
    Map source; /* by the node's name: PolicySource */
    bool all;   /* of values without a policy too */
    Decision *list;
    int count, cap;
    ReshardNote *reshard;
    int nreshard, capreshard;
    bool fuses; /* `fuse` ran */
    FuseNote *apart;
    int napart, capapart;
} Decisions;

/* A step that was planned with a choice of forms. */
typedef struct ShardTry {
    double exposed;      /* as below; 0: by the recipes */
    int64_t limit;       /* of the bytes that the choice counts; 0: none */
    double sec;          /* by the clock; 0: not planned */
    double objective;    /* the choice's seconds, all collectives in full; 0: not known */
    int64_t nbytes;      /* that it needs */
    int64_t kept, least; /* that the choice has counted; no choice counts less than `least` */
    const char *decided; /* by which it was planned; NULL: it was decided anew */
} ShardTry;

enum { MOST_SHARD_TRIES = 10 };

/* The form in which nodes that are cut alike read a result, or which several readers share. */
typedef struct ShardReading {
    const char *reader, *scope; /* of the first of them; "": the form is made once for readers */
    const char *from, *form;    /* the form from which it is made, and that which is read */
    const char *steps;          /* "all_reduce tp, slice fsdp"; "" where both are the same */
    int node;                   /* of which ShardForm the reader is; -1: of none */
    double nbytes, sec;         /* of these steps, of one value */
} ShardReading;

/* Another form, and what the objective is more with it, all else chosen again. */
typedef struct ShardOther {
    const char *form;
    double sec; /* INFINITY: nothing goes with it */
} ShardOther;

/* The form that equal nodes, or equal parameters, give their first result. */
typedef struct ShardForm {
    const char *node, *scope, *form; /* of the first of `count` */
    Phase phase;
    bool port;  /* a parameter, or another input or output */
    bool uncut; /* a node that no axis of the mesh can cut: whole on all ranks */
    int count;
    double sec; /* of one of them */
    ShardReading *reading;
    ShardOther *other;
    int nreading, capreading, nother, capother;
} ShardForm;

/* The step with one more pin. */
typedef struct ShardWhatIf {
    const char *pin;
    double objective; /* of the choice with it; INFINITY: nothing was found */
    double sec;       /* by the clock; 0: not planned; INFINITY: no step with it fits */
} ShardWhatIf;

/* What is known of steps of one task with several forms, by who plans them one after the other. */
typedef struct ShardKnown {
    Arena *a;
    Map solved;  /* by problem: its solution (solved.c) */
    Map seconds; /* by type and mesh: between forms (form_table.c) */
    bool stops;  /* spmd fails where it has made the graph of a step that was planned */
    uint64_t seen[MOST_SHARD_TRIES]; /* of these */
    int nseen;
    uint64_t hash; /* of the last graph that was made where it stops, and which of those it is; -1:
                      none */
    int twin;
    bool scarce; /* a setting did not fit with the fewest bytes, nor has one since */
} ShardKnown;

/* How spmd has chosen all forms at once (--shard auto). */
typedef struct ShardReport {
    Arena *a;          /* for lists; set by who wants the report */
    ShardKnown *known; /* likewise; NULL: nothing is */
    bool unpriced;     /* forms need no prices of others; set by who wants the report */
    bool asks; /* the last pin is asked about, and may hold instead of others; set by them too */
    bool solved;
    double sec;     /* of the choice */
    double gap;     /* no choice that cuts equal blocks alike is better than by this part */
    double exposed; /* the share of gathers of parameters and reductions of gradients that counts */
    double emitted; /* seconds of the nodes and copies that the pass has left */
    double products; /* of products, convolutions and attention, in the fastest forms: of no choice
                        they take less */
    double rest;     /* of these those that are no part of the choice: the sums of a norm */
    double build_sec, solve_sec; /* CPU seconds that it took */
    int nclass, nvariable, nedge;
    ShardForm *form; /* in the order of the graph, ports first */
    int nform, capform;
    int npriced, nopen; /* forms whose others have prices; and those for which there was no time */
    ShardWhatIf *what_if;
    int nwhat_if;
    int64_t nbytes, least; /* that the choice keeps, as it counts them, and every choice */
    ShardTry tried[MOST_SHARD_TRIES]; /* those among which the clock has chosen */
    int ntried, taken;
} ShardReport;

/* The user's options, as far as passes read them: a member for each row of options.def that a pass
 * may read, by its kind. */
/* clang-format off */
#define MEMBER_FLAG(field)   bool field;
#define MEMBER_SWITCH(field) bool field;
#define MEMBER_INT(field)    int64_t field;
#define MEMBER_AUTO(field)   int64_t field;
#define MEMBER_REAL(field)   double field;
#define MEMBER_WORD(field)   const char *field;
#define MEMBER_TEXT(field)   const char *field;
#define MEMBER_IN(field)     const char *field;
#define MEMBER_DTYPE(field)  DType field; /* F32, BF16 */
#define MEMBER_LIST(field)   Globs field;
#define MEMBER_RULES(field)  const PolicyRule *field; int n##field; /* the later one wins */
/* clang-format on */
typedef struct PassOptions {
#define PASS_OPTION(name, field, kind, ...) MEMBER_##kind(field)
#define INNER_OPTION                        PASS_OPTION
#include "../base/options.def"
    /* For what graphs are compiled; pass_target() finds both by `backend` and `machine`. */
    const Device *device;
    const Machine *prices; /* says what kernels run, and for how long */
    Decisions *decisions;  /* where `remat` and `offload` add theirs; may be NULL */
    /* chunk.h: the regions that `chunk` makes, besides those that the option `chunk` names; and
     * where it tells its candidates, may be NULL. */
    const struct ChunkRegion *chunk_region;
    int nchunk_region;
    struct ChunkReport *chunk_report;
    ShardReport *shard_report; /* may be NULL */
    /* Called for each node that spmd cuts, with how each mesh axis does; for tests; may be NULL. */
    void (*spmd_seen)(void *arg, const Node *n, const NodeCut *how, int naxes);
    void *spmd_arg;
    void (*warn)(void *arg, const char *message); /* may be NULL */
    void *warn_arg;
} PassOptions;

PassOptions pass_defaults(void);
/* Finds o->device and o->prices, once for all passes; the machine lives in a. Whoever begins a list
 * of passes may leave it to passes_begin(). */
void pass_target(PassOptions *o, Arena *a);
/* The flow (flow.h) of g on that device. */
struct Flow *pass_flow(Graph *g, const PassOptions *o, Arena *a);

/* A pass returns how many changes it made. The manager resets tmp after every pass. */
typedef int PassFn(Graph *g, Arena *tmp, const PassOptions *o);

/* A pass keeps the properties that it does not remove. */
typedef struct Pass {
    const char *name, *what;
    unsigned needs, gives, removes;
    PassFn *run;
} Pass;

/* A list of passes for one purpose; `other` is run on graphs that have a backward already. */
typedef struct Pipeline {
    char letter; /* marks the rows that it runs */
    const char *name, *other, *what;
    unsigned starts; /* the properties of graphs that it is for */
} Pipeline;

/* A place in the order of all pipelines; rows of one group stand together. */
typedef struct PassRow {
    const char *group, *title; /* "remat", "remat.dce" */
    const Pass *pass;
    const char *in; /* letters of pipelines */
} PassRow;

typedef struct PassTable {
    const Pipeline *pipeline;
    const PassRow *row;
    int npipeline, nrow;
} PassTable;

extern const PassTable pass_table;

#define PASS(name, ...) PassFn pass_##name;
#include "pass.def"

/* Whether a pipeline has the row. */
bool pass_row_in(const PassRow *row, const Pipeline *p);

/* The names of a set of properties, separated by commas; "-" if it is empty. */
const char *pass_properties(Arena *a, unsigned set);

/* The fault in the order of a table's rows; NULL: there is none. A pass in a pipeline may need only
 * properties that the pipeline's graphs have or an earlier pass gives; a pass in a group that runs
 * alone, only properties that can be seen in a graph or the group gives before. */
const char *pass_fault(Arena *a, const PassTable *t);

/* Whether a list of pipelines, groups and passes has a pass or group. */
bool passes_have(const char *names, const char *pass);
/* The same for a graph as it stands: one that has a backward already, or gets it from an earlier
 * name, goes through other pipelines. */
bool passes_have_of(const Graph *g, const char *names, const char *pass);

/* A pass or group that has run. */
typedef struct PassReport {
    const char *name;
    bool part; /* one row of a group of several; a report on the group follows */
    int changes;
    double sec;
} PassReport;

typedef void PassAfter(void *arg, const Graph *g, const PassReport *r);

/* Runs pipelines, groups and passes in order (names separated by commas). Checks the properties of
 * passes and verifies the graph after each. after may be NULL; else it is called when each row has
 * run, and after a group of several once more. */
void passes_run(Graph *g, const char *names, const PassOptions *o, PassAfter *after, void *arg);

/* A list of passes that has been run up to some row. */
typedef struct PassWalk {
    Graph *g;
    Arena *tmp;
    const PassOptions *o;
    PassAfter *after; /* NULL at first */
    void *arg;
    const char *names;        /* still to be read */
    const Pipeline *pipeline; /* that runs now; NULL: a group or pass does */
    int row, end;             /* the rows of it that are to run */
    bool alone;               /* a pass that is named by itself */
    bool trial;               /* what has run here will run again: graphs are not verified */
    unsigned recorded;        /* properties that cannot be seen in a graph */
    unsigned seen;            /* those that it was seen to have */
    bool looked;              /* they are those of g as it is */
    PassReport group;         /* on the rows of the present group that have run */
} PassWalk;

PassWalk passes_begin(Graph *g, const char *names, const PassOptions *o);
/* The passes that w has not run yet, for g, a copy of its graph, with other options: a trial. */
PassWalk passes_fork(const PassWalk *w, Graph *g, const PassOptions *o);
/* Runs rows until the pass `stop` is the next one, and returns true; false: all have run. NULL: no
 * pass stops it. */
bool passes_until(PassWalk *w, const char *stop);

/* Fails where a pattern matches no parameter of the graph; `what` names the option. */
void pass_check_names(const Graph *g, Arena *tmp, const Globs *p, const char *what);

/* Whether g has nodes of the backward or the optimizer. */
bool graph_has_backward(const Graph *g);

/* ---- replace.c: values that stand for others while a pass walks a graph ---- */

typedef struct Replace {
    Value **value;     /* by value id: what stands for it; NULL: itself */
    Node **node;       /* by node id, for order edges */
    int nvalue, nnode; /* at the start: what is newer stands for itself */
} Replace;

Replace replace_start(const Graph *g, Arena *tmp);
void replace_with(Replace *r, const Node *n, int k, Value *v); /* v stands for n's result k */
bool replace_operands(const Replace *r, Node *n); /* order edges too; whether an operand changed */
void replace_outputs(const Replace *r, Graph *g);

/* Replaces n by nodes that make its partials and nodes that make its results from these, all still
 * uncut, so that each can be cut like any node. */
void node_expose(Graph *g, Arena *tmp, Node *n);

/* Sets a region node's phase to the latest in its bodies, or to a later one that its operands have,
 * which its last nodes then get. */
void region_fit_phase(Node *n);
/* The earliest phase of a node of g, bodies included; `phase` if that is earlier. */
int earliest_phase(const Graph *g, int phase);

/* Removes nodes, results and ports that no output needs, as dce does, and returns how many. Passes
 * may call it between their walks. */
int graph_prune(Graph *g, Arena *tmp); /* dce.c */

/* Takes apart fused nodes that have nodes of the forward and of the backward. */
int graph_unfuse_mixed(Graph *g, Arena *tmp); /* unfuse.c */
/* Takes apart the fused nodes whose node_key() is one of these. */
int graph_unfuse(Graph *g, Arena *tmp, int count, const char *const *key);

/* ---- split.c ---- */

/* One half of a step, in a: the forward with the loss, or the backward with the optimizer. Values
 * that the second reads of the first are outputs and inputs without a role. Fails for a loop over
 * both. */
Graph *graph_split(Arena *a, Arena *tmp, const Graph *whole, bool backward);

/* ---- policy.c, policy_gather.c, policy_named.c, policy_rule.c ---- */

/* Set the policies of nodes by one of o->recompute and o->rule; return how many changed. Fail where
 * no block has the name's policy, or a rule matches nothing. */
int policy_named(Graph *g, Arena *tmp, const char *name);
/* A warning, in a, where a name that is no error means less than its user may think; NULL: none. */
const char *policy_named_doubt(const Graph *g, Arena *a, const char *name);
int policy_rules(Graph *g, Arena *tmp, const PolicyRule *rule, int nrule);
/* Whether a rule is "offload state", which names no nodes. */
bool policy_rule_is_state(const PolicyRule *rule);

/* The limit of what goes into a loop for a weight that it reads, formed of gathered parameters
 * (spmd/formed.c): nodes without views, and bytes that they read and make, over the weight's. */
enum { FORMED_NODES = 16, FORMED_TIMES = 16 };

/* Whether gathered parameters are kept for the backward: --reshard never. */
bool gathers_are_kept(const PassOptions *o);
/* Gives gathers of parameters the policy for that, where they have none. */
int policy_gathers(Graph *g, Arena *tmp, const PassOptions *o);
/* Fails where that cannot be obeyed, when all policies are given. */
void policy_check_gathers(Graph *g, Arena *tmp, const PassOptions *o);

/* Merges two policies of a node into *p: must_ wins over prefer_, prefer_save over
 * prefer_recompute. False, with *p unchanged, if both must be obeyed and differ. */
bool policy_merge(Policy *p, Policy more);
bool policy_must(Policy p);       /* not prefer_ */
bool policy_binds(const Node *n); /* it has one of those, or as a fused node a part of it has */
bool policy_again(Policy p);      /* recompute */

/* A node in the bodies of loop n that must be saved, so that the whole loop is; NULL: none. */
const Node *region_must_save(const Node *n);
/* Fails if there is such a node and the loop must be recomputed. */
void region_check_save(const Graph *g, const Node *n);

/* The repeated part of a model that a scope lies in: "layers.3" of "layers.3.attn". */
typedef struct Block {
    const char *scope;
    int len;        /* of the block's name at its beginning; 0: in no block */
    int64_t number; /* -1: in no block */
} Block;

Block block_of(const char *scope);
bool block_equal(const Block *x, const Block *y);

/* By value id: the node that defines the value's base, through views; NULL: an input. */
Node **find_view_bases(const Graph *g, Arena *tmp);

/* The node that defines the base of v, in the body if it is fused; NULL: an input. */
Node *defining_node(const Value *v);

/* The forward node that backward node n clones, directly or through other clones; NULL: there is
 * none any more. */
Node *find_original(const Graph *g, const Node *n);

/* ---- remat.c ---- */

/* Whether n belongs to the backward. A loop over more than that has a backward of its own. */
bool node_in_backward(const Node *n);

/* A backward clone of n with n's operands. */
Node *remat_clone(Graph *g, const Node *n, Node *before, const char *origin);

/* ---- grad.c and grad_loop.c share these ---- */

/* The gradients dx[i] of a region node's operands (NULL: none) from those of its results. */
void grad_loop(Build *b, Node *n, Value **dy, const bool *need, Value **dx);

/* Appends gradients to g, walking back from `last`. grad[] and need[] are indexed by value id and
 * as long as g->nvalue when called; grad[] holds the seeds, and afterwards every needed gradient.
 */
void grad_backprop(Graph *g, Node *last, Value **grad, const bool *need);

/* Extends need[] (by value id) from what it marks to all that depends on it in floating point. */
void grad_mark(const Graph *g, bool *need);

/* Which results of a region depend on marked operands; inside: the same for its bodies' inputs. */
void grad_mark_region(const Node *n, const bool *need_in, bool *need_port, bool *need_out);

Value *grad_zero(Build *b, const Type *t);

/* ---- loss_count.c ---- */

/* Has losses of log-probabilities read the number of their labels, or the sum of these' weights,
 * from before any region, as a region would make it only at its end. Returns how many changes. */
int loss_counts(Graph *g, Arena *tmp);

#endif
