/* ir: the joint graph. Values, nodes, regions, their builder, verifier and text form. */
#ifndef TENON_IR_H
#define TENON_IR_H

#include "../base/base.h"

enum {
    TN_RANK = 8,      /* greatest rank of a value */
    TN_MAX_OUT = 256, /* greatest number of outputs of a node that is not a region */
    TN_MAX_DEPTH = 4, /* greatest nesting of loops */
    TN_MAX_ATTR = 12, /* greatest number of attributes of an op */
};

/* ---- type.c ---- */

/* name, bytes, floating point? */
#define DTYPES(X)       \
    X(F64, f64, 8, 1)   \
    X(F32, f32, 4, 1)   \
    X(F16, f16, 2, 1)   \
    X(BF16, bf16, 2, 1) \
    X(I64, i64, 8, 0)   \
    X(I32, i32, 4, 0)   \
    X(U8, u8, 1, 0)     \
    X(BOOL, bool, 1, 0)

typedef enum {
#define X(id, name, size, flt) id,
    DTYPES(X)
#undef X
        NDTYPE /* none: what an attribute that need not name a dtype is by default */
} DType;

typedef struct Type {
    DType dtype;
    int rank;
    int64_t dim[TN_RANK];
} Type;

const char *dtype_name(DType d);
int dtype_size(DType d); /* bytes of one element */
bool dtype_float(DType d);
int dtype_parse(const char *name); /* the DType, or -1 */

int64_t type_nelem(const Type *t);
int64_t type_nbytes(const Type *t);
const char *type_fault(const Type *t);         /* what no type may have, or NULL */
bool type_equal(const Type *s, const Type *t); /* dtype and shape */
bool shape_equal(const Type *s, const Type *t);
Type type_make(DType d, int rank, const int64_t *dim);
const char *type_text(Arena *a, const Type *t); /* "f32[2, 8]" */

/* ---- the enumerations that text and C share: id, text ---- */

/* clang-format off */
#define PHASES(X) X(FORWARD, "forward") X(LOSS, "loss") X(BACKWARD, "backward") X(OPTIMIZER, "optimizer")
#define POLICIES(X)                                                                                \
    X(POLICY_NONE, "none")                                                                         \
    X(MUST_SAVE, "must_save")                                                                      \
    X(PREFER_SAVE, "prefer_save")                                                                  \
    X(PREFER_RECOMPUTE, "prefer_recompute")                                                        \
    X(MUST_RECOMPUTE, "must_recompute")                                                            \
    X(OFFLOAD, "offload")

/* Roles of graph inputs and outputs. named: a quoted name follows. */
#define ROLES(X)                                                                                   \
    X(ROLE_NONE, "")           /* an output without a role, an input that is only data */           \
    X(ROLE_BATCH, "batch")     /* in: data that changes each step */                                \
    X(ROLE_PARAM, "param")     /* in: named; trained weight */                                      \
    X(ROLE_STATE, "state")     /* in: named; "PARAM.m", "PARAM.v" of optimizers, else a buffer */    \
    X(ROLE_CONST, "const")     /* in: named; constant */                                            \
    X(ROLE_CACHE, "cache")     /* in: named; what one run leaves to the next: keys and values */    \
    X(ROLE_SEED, "seed")       /* in: i64[] */                                                      \
    X(ROLE_STEP, "step")       /* in: i64[], 1 in the first step */                                 \
    X(ROLE_SCALAR, "scalar")   /* in: named; "lr" and such */                                       \
    X(ROLE_LOSS, "loss")       /* out: [] */                                                        \
    X(ROLE_GRAD, "grad")       /* out: named after its parameter */                                 \
    X(ROLE_NEW, "new")         /* out: named after the param, state or cache whose storage it takes */ \
    X(ROLE_METRIC, "metric")   /* out: named */

/* How a region's body sees an operand, and what becomes of what the body yields. */
#define PORTS(X)                                                                                   \
    X(PORT_WHOLE, "whole")   /* in: the operand itself; of fused, out: what the body yields */      \
    X(PORT_SLICE, "slice")   /* in: this iteration's part along an axis */                               \
    X(PORT_STACK, "stack")   /* in: element `iteration` of axis 0, which goes; out: the reverse; main only */ \
    X(PORT_TAIL, "tail")     /* in: the operand, seen by the tail only; out: from the tail only */   \
    X(PORT_OFFSET, "offset") /* in, no operand: i64[], iteration times step */                           \
    X(PORT_CARRY, "carry")   /* in: the operand at first, then the carried output of the iteration before; out */ \
    X(PORT_CONCAT, "concat") /* out: the iterations' parts along an axis */                              \
    X(PORT_SUM, "sum")       /* out: the sum over iterations, in iteration order, in a stated dtype */
/* clang-format on */

#define X(id, ...) id,
typedef enum { PHASES(X) NPHASE } Phase;
typedef enum { POLICIES(X) NPOLICY } Policy;
typedef enum { ROLES(X) NROLE } Role;
typedef enum { PORTS(X) NPORT } PortKind;
#undef X

const char *phase_name(Phase p);
const char *policy_name(Policy p);
const char *role_name(Role r);
bool role_named(Role r);   /* a quoted name belongs to it */
bool role_kept(Role r);    /* of inputs that stay in place from run to run */
bool role_renewed(Role r); /* of inputs whose storage an output of role new may take */
bool role_scalar(Role r);  /* step, and what the optimizer reads: set once, it stays */
const char *port_name(PortKind k);

/* ---- cuts and meshes: how loops and ranks have parts of a value ---- */

typedef enum {
    CUT_WHOLE,    /* every part has all of it, and the same */
    CUT_SLICE,    /* a part has its units of an axis */
    CUT_SUM,      /* partial: the value is the sum of the parts' values, */
    CUT_MAX,      /* ... their maximum, */
    CUT_LOGSUMEXP /* ... or their log-sum-exp */
} CutKind;

/* How one loop or mesh axis, which has `count` units, cuts a value. A sliced axis is, row-major,
 * [outer][count][inner]; a part has some of the `count` units. */
typedef struct Cut {
    CutKind kind;
    int axis;
    int64_t outer;
} Cut;

/* Whether parts have terms of the value, to be merged. */
static inline bool cut_is_partial(Cut c)
{
    return c.kind > CUT_SLICE;
}
bool cut_equal(Cut x, Cut y);                           /* mesh.c */
bool cuts_equal(int count, const Cut *x, const Cut *y); /* mesh.c */

enum {
    MAX_MESH = 4,            /* axes of a mesh */
    MESH_AXIS_MOST = 1 << 20 /* greatest size of one; a mesh has less than 2^31 ranks */
};

/* The ranks that run a graph, and which runs this one: row-major, the last axis is innermost. */
typedef struct Mesh {
    int naxes;
    const char *name[MAX_MESH];
    int64_t size[MAX_MESH];
    int64_t at[MAX_MESH]; /* this rank's coordinates */
} Mesh;

/* ---- mesh.c ---- */

/* "dp=2,fsdp=4": at rank 0. Fails with what was expected and found. */
Mesh *mesh_parse(Ctx *ctx, Arena *a, const char *text);
const char *mesh_text(Arena *a, const Mesh *m);
/* Adds an axis after the others, at coordinate 0. Returns what was expected and found, or NULL. */
const char *mesh_add(Arena *a, Mesh *m, const char *name, int64_t size);
Mesh *mesh_clone(Arena *a, const Mesh *m); /* NULL of NULL */
int64_t mesh_nranks(const Mesh *m);
void mesh_set_rank(Mesh *m, int64_t rank);
int64_t mesh_rank(const Mesh *m);
int mesh_axis(const Mesh *m, const char *name); /* -1 where absent */

/* A group of ranks is named by the mesh axes that it spans, "tp,fsdp", major first: its members
 * differ in these coordinates alone, and its order is row-major in them. */
const char *group_name(Arena *a, const Mesh *m, int naxes, const int *axes);
int group_axes(const Mesh *m, const char *group, int *axes); /* how many; -1: no such group */
int64_t group_nranks(const Mesh *m, int naxes, const int *axes);

/* In all of these `cut` has an element for each mesh axis, or is NULL: whole. */

/* The type of the whole of which ranks have `local` parts that are cut so. */
Type cut_whole_type(const Type *local, const Mesh *m, const Cut *cut);
/* The same of the part: `t` must divide. */
Type cut_local_type(const Type *t, const Mesh *m, const Cut *cut);
/* "shard(0: 3, tp, fsdp) partial(sum: dp)", "" where whole. A whole number in the list of an axis
 * is the size of what lies between the mesh axes around it, major first. */
const char *cuts_text(Arena *a, const Mesh *m, const Cut *cut);
/* The mesh axes that cut an axis of a value, major first; how many. */
int cuts_of_axis(const Mesh *m, const Cut *cut, int axis, int *axes);
Cut *cuts_clone(Arena *a, const Mesh *m, const Cut *cut);
/* The fault of cuts of ranks' parts of type `local` (what was expected and found), or NULL. */
const char *cuts_fault(Arena *a, const Mesh *m, const Type *local, const Cut *cut);
const char *cut_merge_name(CutKind kind); /* "sum", "max", "logsumexp"; NULL: no partial */

/* ---- part_runs.c ---- */

/* Elements, row-major: n of a rank's part from `local` on, and where they are in the whole; whole
 * -1: after an end of the whole, padding. */
typedef struct PartRun {
    int64_t local, whole, n;
} PartRun;
typedef void SeePartRun(void *arg, PartRun r);

/* Calls see for all runs of this rank's part, in the part's order. real: the whole's type, of which
 * axes may be shorter than the parts together; cut NULL: the part is all of it. */
void part_each_run(Arena *tmp, const Type *local, const Mesh *m, const Cut *cut, const Type *real,
                   SeePartRun *see, void *arg);

/* Indices [first, end) of an axis of the whole, which lie together in one part. */
typedef struct PartSpan {
    int64_t first, end;
    int64_t rank;  /* what it adds to the number of the rank that has them */
    int64_t local; /* index of the first along that rank's axis */
} PartSpan;

/* Maps elements of a whole to ranks: to the first one of those that have the same. */
typedef struct PartMap {
    Type local, whole; /* whole: without padding; inner axes that nothing cuts are one */
    int64_t nspan[TN_RANK];
    PartSpan *span[TN_RANK]; /* by axis */
} PartMap;
PartMap part_map(Arena *a, const Type *local, const Mesh *m, const Cut *cut, const Type *real);

/* n elements of the whole from `whole` on, which a rank has from `local` on. */
typedef struct PartPiece {
    int64_t whole, n, rank, local;
} PartPiece;
typedef void SeePartPiece(void *arg, PartPiece p);
/* Calls see for all pieces of elements [first, first + n) of the whole, in its order. */
void part_each_piece(const PartMap *p, int64_t first, int64_t n, SeePartPiece *see, void *arg);

/* ---- attributes ---- */

/* clang-format off */
typedef enum { ATTR_END, ATTR_INT, ATTR_FLOAT, ATTR_BOOL, ATTR_STR, ATTR_INTS, ATTR_DTYPE } AttrKind;
/* clang-format on */

/* One row of an op's attribute table: required, optional (else absent), or of the default below. */
typedef struct AttrField {
    const char *name;
    AttrKind kind;
    bool required, optional;
    int64_t i; /* default of INT, BOOL, DTYPE */
    double f;
    const char *s;
} AttrField;

/* The value of one attribute; which member counts follows from the field's kind. */
typedef struct Attr {
    bool absent; /* no member counts */
    int64_t i;   /* INT, BOOL, DTYPE; for INTS the count */
    double f;
    const char *s;
    const int64_t *ints;
} Attr;

/* An attribute as the builder takes it: a name and a value. A list ends with a zero element. */
typedef struct AttrArg {
    const char *name;
    AttrKind kind;
    Attr a;
} AttrArg;
#define A_INT(n, v)         ((AttrArg){(n), ATTR_INT, {.i = (v)}})
#define A_BOOL(n, v)        ((AttrArg){(n), ATTR_BOOL, {.i = (v)}})
#define A_DTYPE(n, v)       ((AttrArg){(n), ATTR_DTYPE, {.i = (v)}})
#define A_FLOAT(n, v)       ((AttrArg){(n), ATTR_FLOAT, {.f = (v)}})
#define A_STR(n, v)         ((AttrArg){(n), ATTR_STR, {.s = (v)}})
#define A_INTS(n, count, v) ((AttrArg){(n), ATTR_INTS, {.i = (count), .ints = (v)}})
#define ATTRS(...)          ((const AttrArg[]){__VA_ARGS__, {0}})
#define NOATTRS             NULL

/* ---- the op table: one row's comparable columns; op/op.c has the table and the functions ---- */

struct OpRules; /* op/op.h: what is particular to an op */
typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Value Value;
typedef struct Region Region;

/* The bodies that an op owns. LOOP: one that runs in iterations, perhaps with a tail. FUSED: one
 * that runs once, part by part of its values: all ports are whole, input i is operand i. */
typedef enum { NO_REGION, LOOP, FUSED } RegionKind;

#define OP_CLASSES(X)                                                                          \
    X(CLASS_PRODUCT, "product")         /* of matrices */                                      \
    X(CLASS_CONVOLUTION, "convolution") /* products with the windows of an image */            \
    X(CLASS_ATTENTION, "attention")     /* products and softmax in one */                      \
    X(CLASS_POINTWISE, "pointwise")     /* element by element of operands that broadcast */    \
    X(CLASS_NORM, "norm")               /* rows normalised, softmax too */                     \
    X(CLASS_REDUCTION, "reduction")     /* sums and extremes along axes, running ones too */   \
    X(CLASS_MOVEMENT, "movement")       /* elements elsewhere, left out or joined */           \
    X(CLASS_INDEX, "index")             /* elements where an index says; orders of elements */ \
    X(CLASS_LOSS, "loss")               /* of labels */                                        \
    X(CLASS_POSITION, "position")       /* rotations by position */                            \
    X(CLASS_CREATION, "creation")       /* made from attributes, and where a part begins */    \
    X(CLASS_RANDOM, "random")           /* has a stream of random numbers */                   \
    X(CLASS_OPTIMIZER, "optimizer")     /* parameters, their state and gradients' norm */      \
    X(CLASS_COLLECTIVE, "collective")   /* needs the other ranks */                            \
    X(CLASS_REGION, "region")           /* owns bodies */

typedef enum {
#define X(id, name) id,
    OP_CLASSES(X)
#undef X
} OpClass;

/* A row of op/op.def, where the columns are explained. */
typedef struct Op {
    const char *name;
    int id;                  /* its row of op.def: for ops and what is above them, not for ir */
    int nin_least, nin_most; /* -1: any number */
    int nout;                /* -1: attributes or bodies say */
    OpClass class;
    bool commutes, view, identity, copy, counts, async, to_host, wait, barrier;
    const char *linear; /* op/op.h's op_linear reads it */
    const char *bf16;   /* the pass precision does */
    RegionKind region;
    const struct OpRules *rules;
} Op;

/* Whether it only begins what is done beside the kernels: wait_tensor alone reads what it makes. */
static inline bool op_starts(const Op *op)
{
    return op->async || op->class == CLASS_COLLECTIVE;
}
const char *class_name(OpClass c);
const Op *op_find(const char *name);          /* NULL where unknown */
const Op *op_get(Ctx *ctx, const char *name); /* fails, naming the nearest op */
const AttrField *op_attrs(const Op *op);      /* ends with ATTR_END; never NULL */
const char *op_takes(Arena *a, const Op *op); /* how many inputs: "2", "2 to 3", "2 or more" */
int op_infer(const Graph *g, const Node *n, Type *out); /* number of outputs */

/* ---- graph.c ---- */

struct Value {
    int id;           /* dense in its graph: an index into arrays of g->nvalue elements */
    int index;        /* which output of def, or which input of the graph */
    Node *def;        /* NULL for an input of the graph or body */
    const char *name; /* unique in its graph, without % */
    Type type;
};

/* Members that every walk reads are the first 64 bytes, as graphs are larger than caches. */
struct Node {
    int id; /* dense in its graph: indexes arrays of g->nnode elements; gaps after removal */
    int nin, nout;
    Phase phase;
    const Op *op;
    Value **in, **out;
    Node *prev, *next; /* the order of construction, which is a valid order of execution */
    Region *region;    /* NULL but for ops that own a body */
    Attr *attr;        /* one for each field of the op's attribute table, in its order */
    Policy policy;
    int nafter;
    Node **after;       /* extra order edges: these nodes run before this one */
    const char *scope;  /* "" or "layers.3.attn" */
    const char *origin; /* NULL, or the name of the value (output 0) that this node is a copy of */
    int64_t stream;     /* of random ops; -1 for the others */
    int line, column;   /* in the text it came from; 0 where none */
};

typedef struct Port { /* an input or output of a graph */
    Value *v;
    Role role;
    const char *name;  /* of roles that are named, else NULL */
    const char **tied; /* further names of a param, then NULL; NULL: none */
    const Cut *cut;    /* for each mesh axis: what this rank has of it; NULL: all */
    bool host;         /* a state that lies in the host's memory, where that is another */
    int line, column;  /* in the text it came from; 0 where none */
} Port;

struct Graph {
    Ctx *ctx;
    Arena *a;
    const char *name;
    const char *file; /* where it was read from, for messages; may be NULL */
    Graph *parent;    /* of a body: the graph of the node that owns it */
    const Mesh *mesh; /* NULL: one rank runs it; of a body NULL too */
    Port *in, *out;   /* for a body only .v counts */
    int nin, nout, capin, capout;
    Node *first, *last;
    int nnode, nvalue; /* one more than the greatest id */
    Map names;         /* value name -> Value* */
};

/* The bodies of a region: of all iterations, and of a shorter one at the end. */
enum { MAIN, TAIL, NBODY };

/* A body sees operands through ports. Port j of `in` is input at[b] of body b (an index into its
 * graph's in[], -1 where it does not see the port). Operand `arg` indexes the node's in[] (-1 for
 * offset). Port j of `out` belongs to the node's out[j]. */
typedef struct PortIn {
    PortKind kind;
    int arg, at[NBODY];
    int axis;     /* slice */
    int64_t step; /* offset: what one iteration adds */
} PortIn;

typedef struct PortOut {
    PortKind kind;
    int at[NBODY]; /* indices into the bodies' out[] */
    int axis;      /* concat */
    DType dtype;   /* sum */
    int carry;     /* carry: the index of the carry port of `in` that takes it */
} PortOut;

struct Region {
    int64_t n;    /* iterations of the main body, at least 1 */
    bool reverse; /* tail first, then n-1 down to 0 */
    int nin, nout;
    PortIn *in;
    PortOut *out;
    Graph *body[NBODY]; /* body[TAIL] is NULL where none */
};

/* The nodes that run before n, by number: of its operands (NULL: an input), then of order edges. */
static inline int node_nsource(const Node *n)
{
    return n->nin + n->nafter;
}
static inline Node *node_source(const Node *n, int i)
{
    return i < n->nin ? n->in[i]->def : n->after[i - n->nin];
}

/* How many bodies a region has; none: not a region. */
static inline int region_nbody(const Region *r)
{
    return !r ? 0 : r->body[TAIL] ? 2 : 1;
}

/* How often body b runs. */
static inline int64_t region_times(const Region *r, int b)
{
    return b == TAIL ? 1 : r->n;
}

/* The bodies of a node, if it has any; of a loop only; the nodes that a fused node is made of. */
#define EACH_BODY(b, n) for (int b = 0; b < region_nbody((n)->region); b++)
#define EACH_LOOP_BODY(b, n) \
    for (int b = 0; (n)->op->region == LOOP && b < region_nbody((n)->region); b++)
#define EACH_FUSED(m, n) \
    for (Node *m = (n)->op->region == FUSED ? (n)->region->body[MAIN]->first : NULL; m; m = m->next)

/* The scope of the node that makes v; of a fused node's result that of the node in its body. */
const char *value_scope(const Value *v);

Graph *graph_new(Arena *a, const char *name);
Graph *graph_body(Graph *parent);       /* an empty graph for a region's body, same arena */
const Mesh *graph_mesh(const Graph *g); /* of a body that of the graph around it; NULL: none */
int graph_depth(const Graph *g);        /* 1, and one more for each region around it */

Value *graph_input(Graph *g, const char *name, Type t, Role role, const char *role_name);
Value *graph_input_like(Graph *g, const Port *p, const Type *t); /* t NULL: as p; no cut */
void graph_output(Graph *g, Value *v, Role role, const char *role_name);
Port *graph_find_input(const Graph *g, Role role, const char *name); /* name may be NULL */
Port *graph_find_output(const Graph *g, Role role, const char *name);
bool graph_is_output(const Graph *g, const Value *v);
Map graph_named(const Port *p, int count, Role role, Arena *tmp); /* of that role, by name */
/* The parameter, of those by name, whose state has this name: "PARAM.m"; NULL: it is a buffer. */
Value *graph_state_param(const Map *params, const char *state);

/* A new value name: `stem`, or stem_1, stem_2, ... where taken. */
const char *graph_fresh(Graph *g, const char *stem);
/* New names for results like n's, with a suffix; no two are equal. */
const char **graph_fresh_results(Graph *g, const Node *n, const char *suffix);
void value_rename(Graph *g, Value *v, const char *name); /* CHECKs that the name is free */

bool node_is_barrier(const Node *n); /* no node moves across it, or a body of it has such a one */
void node_unlink(Graph *g, Node *n); /* out of the list; names become free */
void node_move(Graph *g, Node *n, Node *before);  /* before NULL: to the end */
Graph *graph_clone(Arena *a, const Graph *g);     /* same names, ids and order */
Region *region_clone(Graph *to, const Region *r); /* for a node of the graph `to` */
int graph_count(const Graph *g);                  /* nodes, bodies' nodes once each included */
uint64_t graph_hash(const Graph *g);              /* of the printed text */

/* Compares op, attributes, stream and presence of a region, not the operands. */
bool attrs_equal(const Node *n, const Node *m);
uint64_t attrs_hash(const Node *n); /* equal where these are */

/* By node id: the first equal node, which may be the node itself. */
Node **graph_equals(const Graph *g, Arena *tmp); /* number.c */

#define EACH_NODE(n, g) \
    for (Node *n = (g)->first, *n##_next; n && (n##_next = n->next, 1); n = n##_next)

/* ---- build.c: the builder, also for models and gradients ---- */

typedef struct Build {
    Graph *g;
    Node *before; /* new nodes go before this one; NULL: at the end */
    Phase phase;
    Policy policy;
    const char *scope;
    const char *origin;
    int line, column; /* for messages: where in a text the node stands; 0 where nowhere */
} Build;

#define IN(...) \
    (int)(sizeof((Value *[]){__VA_ARGS__}) / sizeof(Value *)), ((Value *[]){__VA_ARGS__})

/* Appends a node: looks the op up, checks operands and attributes, infers output types. Fails with
 * the op, expected and found. Output names come from the op's name. emit1() returns out[0]. */
Node *emit(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs);
Value *emit1(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs);
Node *emit_stream(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs,
                  int64_t stream); /* a random op */

/* A clone of n with other operands: n's attributes, stream, phase, policy, scope and origin. */
Node *emit_clone(Build *b, const Node *n, Value *const *in);

/* A builder before a node (NULL: at the end) of nodes with n's phase, policy, scope and place. */
Build build_like(Graph *g, Node *before, const Node *n);
/* A node as n with other operands and a region of its own; its results get fresh names. */
Node *emit_like(Build *b, const Node *n, Value *const *in, Region *r, const char *suffix);

/* A region node; the region's bodies are complete, operands are in port order of `arg`. */
Node *emit_loop(Build *b, int nin, Value *const *in, Region *r);
/* The region of a body that runs once: input i of the body is operand i, output k result k. */
Region *region_whole(Graph *body);

/* The scope "outer.inner" ("inner" where outer is empty). */
const char *scope_join(Arena *a, const char *outer, const char *inner);

/* The same with names for the outputs, for a parser; count may be -1 (any). */
Node *emit_named(Build *b, const Op *op, int nin, Value *const *in, const Attr *attr, Region *r,
                 int64_t stream, const char *const *names, int count);

/* Attributes from text such as "dim=[1], keepdim=true". */
Attr *attrs_parse(Graph *g, const Op *op, const char *text);
/* Attributes from name/value pairs, defaults filled in; fails for unknown or missing names. */
Attr *attrs_make(Graph *g, const Op *op, const AttrArg *args);

/* ---- region.c ---- */

/* Output types of a region node from its bodies and operands; fails where ports do not fit. */
int region_infer(const Graph *g, const Node *n, Type *out);
/* Fails where n is a loop in g and loops around it are TN_MAX_DEPTH already. */
void region_need_depth(const Graph *g, const Node *n);
/* The type that body b sees through port j, given the operand's. */
Type region_input_type(const Graph *g, const Node *n, int j, int b);

/* ---- errors that name a node ---- */

/* "op %name (FILE:LINE:COLUMN): message" */
_Noreturn void fail_node(const Graph *g, const Node *n, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- verify.c ---- */

/* Every rule of docs/formats.md, bodies included; fails with the node and the rule. */
void graph_verify(const Graph *g);

/* ---- print.c, parse.c: the .tn text ---- */

void graph_print(Buf *b, const Graph *g);
void attr_print(Buf *b, AttrKind kind, const Attr *a);
bool attr_default(const AttrField *f, const Attr *a); /* its text says nothing of it */
void type_print(Buf *b, const Type *t);

/* Parses one graph, unverified; file is for messages. Fails with its line, expected and found. */
Graph *graph_parse(Arena *a, const char *text, const char *file);

/* ---- lex.c: the tokens of .tn text ---- */

/* VALUE is %name, WORD a keyword, op or attribute; PUNCT is one of ( ) [ ] { } , : = @ and ->. */
typedef enum { TOK_END, TOK_VALUE, TOK_WORD, TOK_INT, TOK_FLOAT, TOK_STRING, TOK_PUNCT } TokenKind;

typedef struct Token {
    TokenKind kind;
    const char *begin; /* in the text, len bytes */
    int len, line, column;
    const char *s; /* VALUE: the name without %; WORD, PUNCT: itself; STRING: its content */
    int64_t i;     /* INT */
    double f;      /* INT, FLOAT */
} Token;

typedef struct Lexer {
    Arena *a;
    const char *file, *at, *line_begin;
    int line;
    Token t; /* the current token */
} Lexer;

void lex_start(Lexer *x, Arena *a, const char *text, const char *file); /* t is the first token */
void lex_next(Lexer *x);
/* "FILE:LINE:COLUMN: message", the position is t's. */
_Noreturn void lex_fail(const Lexer *x, const Token *t, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "expected WHAT, found the current token" */
_Noreturn void lex_expected(const Lexer *x, const char *what);

bool lex_at(const Lexer *x, const char *s); /* whether the current token is this WORD or PUNCT */
bool lex_take(Lexer *x, const char *s);     /* the same, and goes past it */
void lex_need(Lexer *x, const char *s);     /* goes past it, or fails */
Token lex_token(Lexer *x, TokenKind kind, const char *what);
Token lex_dotted(Lexer *x, const char *what); /* a WORD that may have dots */
int64_t lex_int(Lexer *x, const char *what, int64_t least, int64_t most);
/* The index in [first, count) of the current word, which is taken then, or -1. */
int lex_enum(Lexer *x, const char *const *names, int first, int count);
DType lex_dtype(Lexer *x);
Type lex_type(Lexer *x);
Attr lex_attr(Lexer *x, AttrKind kind); /* the text that attr_print writes */
/* parse.c: as attrs_parse, where x stands. any: whether some may; at_op: where one is missing. */
Attr *lex_attrs(Lexer *x, Graph *g, const Op *op, const Token *at_op, bool any);

/* ---- parse_mesh.c ---- */

Mesh *lex_mesh(Lexer *x);                     /* "mesh(tp=2) at(0)"; NULL where none stands */
const Cut *lex_cuts(Lexer *x, const Mesh *m); /* the text of cuts_text; NULL where none stands */

#endif
