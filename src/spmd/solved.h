/* solved: shared by the files that choose how all nodes are cut at once, by solving a problem of
 * src/pick: flat (a loop's nodes among the others), equal (which nodes are equal), pin (forms that
 * are asked for), units (where values may be cut), strategies (the legal ways to cut a node), price
 * (what they cost), shard_problem, shard_emitted (the seconds of a solution), shard_bytes and
 * shard_beside (what they keep in memory), explain (what is told of a choice) and solved (the
 * driver). */
#ifndef TENON_SPMD_SOLVED_H
#define TENON_SPMD_SOLVED_H

#include "rewrite.h"

#include "../pick/pick.h"

/* ---- units.c: where values may be cut, whoever cuts them ---- */

/* An axis of a value, or a factor of a node, below so many of its elements. */
typedef struct CutUnit {
    int at;
    int64_t outer;
} CutUnit;

typedef struct CutUnits {
    CutUnit *list;
    int count, cap;
} CutUnits;

/* ---- strategies.c ---- */

typedef struct StrategyList {
    Strategy **list;
    int count, cap;
} StrategyList;

/* The legal ways to cut n over all mesh axes, whatever forms its operands have: along units of its
 * factors, several axes within one unit in both orders, linear in partial operands, and whole. */
StrategyList strategies_list(const Spmd *x, Arena *a, const Node *n, const Factors *f,
                             const CutUnits *units);
/* The forms that an input of type t may have, as strategies with one result. */
StrategyList strategies_of_input(const Spmd *x, Arena *a, const Type *t, const CutUnits *units);

/* ---- flat.c ---- */

typedef enum {
    FLAT_NODE,  /* a node of the graph, or of a loop's body */
    FLAT_ENTRY, /* stands for how a value enters a loop: it costs nothing, and is not partial */
    FLAT_SUM    /* stands for what adds a result up over a loop's iterations */
} FlatKind;

typedef struct FlatNode {
    FlatKind kind;
    const Node *loop; /* in which it runs; NULL: in none */
    const char *name; /* by which the walk asks for it; NULL: not at all */
} FlatNode;

/* A graph with the nodes of its loops' bodies among the others. Inputs and outputs are as they
 * were. */
typedef struct FlatGraph {
    const Graph *g;
    FlatNode *node; /* by id; none if the graph has no loops */
    Map value;      /* by name: that by which the walk asks for it, if it is another one */
    int cap;
} FlatGraph;

/* Fails where a loop has other ports than accumulate gives it, a tail or a loop within. */
FlatGraph *flat_graph(const Graph *g, Arena *a);
FlatNode flat_node(const FlatGraph *y, const Node *n);
const char *flat_value(const FlatGraph *y, const Value *v); /* its name for the walk */
/* Names by which the walk asks: for a value or node in a loop (NULL: in none), for the form in
 * which operand i enters it, and for that in which result k leaves it. */
const char *flat_name(Arena *a, const Node *loop, const char *name);
const char *flat_entry(Arena *a, const Node *loop, int i);
const char *flat_exit(Arena *a, const Node *loop, int k);

/* ---- pin.c ---- */

/* A form that the first result of some nodes must have. */
typedef struct Pin {
    const char *option, *text;
    Cut cut[MAX_MESH];
    bool *of; /* by node id */
} Pin;

typedef struct PinList {
    Pin **pin;
    int count;
} PinList;

/* Fails where a pin cannot be read, or matches nothing. */
PinList pins_parse(const Graph *g, Arena *a, const Mesh *m, const char *option, const Globs *texts);
/* Fails where a pin contradicts later ones on all that it matches. */
void pins_check(const Graph *g, const PinList *list, int naxes);
const Pin *pin_of(const PinList *list, const Node *n); /* the last that matches, or NULL */

/* ---- equal.c: nodes and ports that are to be cut alike ---- */

/* Nodes of equal op, attributes, types and place in equal blocks; or parameters of equal names but
 * for the blocks' numbers, with their state, gradients and new values; or one other port. */
typedef struct EqualClass {
    const Node *n;              /* the first of them; NULL: ports */
    const char *name;           /* of the first port */
    const Cut *fixed;           /* the form that a port must have; NULL: any */
    const int64_t *least_units; /* of a port, as in its Sharding */
    const Pin *pin;             /* the form that a first result must have; NULL: any */
    Type type;                  /* of a port */
    bool skipped;               /* its operands' forms and its seconds are no part of the problem */
    FlatKind kind;
    const Node *loop; /* in which its nodes run; NULL: in none */
    int64_t times;    /* how often they run in a step */
    int count;        /* of nodes, or parameters */
    Factors *f;
    CutUnits units; /* of factors; of a port: of its axes */
    StrategyList list;
    double *sec; /* by strategy, of one node */
} EqualClass;

/* The results of a class' nodes. */
typedef struct ValueClass {
    int of, result; /* of which class it is which result */
    Type type;
    CutUnits units;
    struct FormTable *forms;
    double *remade; /* of what readers make again: seconds from form to form; NAN: not known */
    int nremade;    /* forms when it was made: all */
} ValueClass;

typedef struct Reading {
    int reader, operand; /* of a class; operand -1: a port */
} Reading;

/* Values of a class that equal readers read, in one block if they are parameters: a view of one
 * reads it in each block that reads the view. */
typedef struct ReadGroup {
    int value, count; /* of a ValueClass, so many */
    bool param;       /* parameters, or parameters through casts and views */
    int shared;       /* which ShardProblem.shared it is; -1: it has one reader */
    int nread;
    Reading *read;
} ReadGroup;

/* keep: what is gathered of parameters is kept for readers of all blocks. twice: what a block's
 * backward reads is gathered again. */
typedef struct GatherHow {
    bool keep, twice;
} GatherHow;

typedef struct EqualGraph {
    Arena *a;
    const FlatGraph *flat;
    const Graph *g; /* of `flat` */
    GatherHow how;
    EqualClass *class;
    ValueClass *value;
    ReadGroup *group;
    int nclass, capclass, nvalue, capvalue, ngroup, capgroup;
    int *of_node, *of_value; /* by id: class of a node, value class of a value */
    int *of_in, *of_out;     /* by port: its class */
    bool *param;             /* by value id: a parameter, or one through casts and views */
    int *of_group;           /* by value id: the group of its readers; -1: none, or `param` */
    Map by_name;             /* 1 + group, by the value's name, of parameters with their block */
} EqualGraph;

/* in, out: what the forms of ports are, or must be where they are `ruled`. What differs in its pin
 * is not equal. */
EqualGraph *equal_find(const FlatGraph *flat, Arena *a, const Mesh *m, const Sharding *in,
                       const Sharding *out, const PinList *pins, GatherHow how);
/* The group of the readers of a value of that flat_name(), of a parameter's those that gather it
 * with this one (NULL: an output), which is in that loop; -1: none. */
int equal_group(const EqualGraph *e, Arena *tmp, const char *value, const Node *reader,
                const Node *loop, bool param);
/* Fills the units of all classes and values. */
void equal_fill_units(EqualGraph *e, const Spmd *x);

/* ---- price.c ---- */

typedef struct Pricer {
    const Spmd *x;
    Arena *a, *tmp; /* tmp: reset with each price */
} Pricer;

/* Seconds of the nodes that the walk leaves for n where it is cut as t says and has its operands in
 * these forms. Fills the forms of t's results, and t's parts where it merges. INFINITY: it cannot
 * be cut so. */
double strategy_price(const Pricer *p, const Node *n, Strategy *t);

/* ---- form_table.c ---- */

/* The forms of values of one type that a choice comes to. */
typedef struct FormTable {
    Arena *a;
    Type type;
    Cut (*form)[MAX_MESH];
    int count, cap, capnumber;
    int *number; /* of each form, among those that are kept */
    struct KeptForms *kept;
} FormTable;

FormTable *form_table(const Spmd *x, Arena *a, const Type *t);
int form_number(const Spmd *x, FormTable *t, const Cut *cut);
/* Seconds of the steps between two forms, which are then known; INFINITY: there are none. */
double form_sec(const Spmd *x, FormTable *t, int from, int to);
double form_cuts_sec(const Spmd *x, FormTable *t, const Cut *from, const Cut *to);
double *form_new_seconds(Arena *a, int count); /* count x count, all NAN */

/* ---- shard_problem.c ---- */

/* The form from which all readers of a group go on: the maker's, or one that is made once. */
typedef struct SharedForm {
    int group, count;
    const int *form; /* by strategy: of the value's FormTable */
} SharedForm;

typedef struct EdgeNote {
    bool hidden;           /* computing may hide it, so that it counts in part */
    bool shared;           /* from a shared form */
    int group;             /* whose values it brings to another form; -1: none */
    const Reading *reader; /* which needs that form; NULL: it is a shared one */
} EdgeNote;

/* A graph's problem: first a node for each class, then one for each shared form, whose strategies
 * are the forms that it may be. Costs are in units of PROBLEM_UNIT seconds, and whole. */
typedef struct ShardProblem {
    PickProblem pick;
    EqualGraph *e;
    SharedForm *shared;
    int nshared, capshared;
    EdgeNote *of_edge;
    int capof_edge;
} ShardProblem;

#define PROBLEM_UNIT 1e-9

ShardProblem *shard_problem(EqualGraph *e, const Pricer *p);
/* ---- shard_emitted.c ---- */

/* Seconds of a solution, all edges in full. A reader that needs the form that was made takes that,
 * while the problem has it go on from the shared form: there it may cost more, never less. */
double shard_problem_sec(const ShardProblem *p, const Spmd *x, const int *strategy);

/* ---- shard_beside.c ---- */

/* A node of the problem for an operand that is read at a moment of the step. Its strategies are the
 * forms that the reader may need, as they are there, then the sizes of those that are made beside
 * what is there. */
typedef struct Beside {
    int node, moment;
    int from, reader; /* nodes of the problem: whose strategy says which form is there; a class */
    const Value *value;
    int operand, count, nsize; /* count: of forms */
    const Cut **form;
    int64_t *size;
} Beside;

typedef struct BesideList {
    Beside *list;
    int count, cap;
} BesideList;

/* Whether a rank has a form in the memory of another one: it is the same, or a slice of it. */
bool shard_is_there(const Mesh *m, const Cut *from, const Cut *to);
/* Adds such nodes to the problem, for what is no parameter, with edges that cost nothing and tie
 * them to the forms. node[]: of each moment. The list is in tmp. */
BesideList shard_beside(ShardProblem *p, const Spmd *x, Arena *tmp, int nmoment,
                        const Node *const *node);

/* ---- shard_bytes.c ---- */

int64_t shard_nbytes(const Spmd *x, const Type *t, const Cut *cut); /* of a rank's part */

/* Fills the usage of the problem's nodes, in bytes of a rank; times are moments of the step. Adds
 * nodes that have the strategies of others. */
void shard_bytes(ShardProblem *p, const Spmd *x);

/* ---- explain.c ---- */

/* Fills y's forms: those of a solution, and their readers; what other forms cost if `prices`. */
void solved_explain(const Spmd *x, Arena *a, const ShardProblem *p, const PickResult *r,
                    const int *strategy, bool prices, ShardReport *y);

#endif
