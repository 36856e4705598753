/* rewrite: shared by the files of the pass spmd (spmd.h describes it). The logical graph is that of
 * the whole step; each of its values has one or more forms in the rank's graph, a Cut for each axis
 * of the mesh. */
#ifndef TENON_SPMD_REWRITE_H
#define TENON_SPMD_REWRITE_H

#include "spmd.h"

#include <math.h>

typedef struct StepTable StepTable; /* of step_table.c */

struct Strategy;

struct SpmdGraph;

/* Who chooses how nodes are cut. pick() returns NULL for a node whose cheapest cut is to be taken,
 * as form.c prices it; took(), if it is not NULL, is told of what was taken. s: the graph or body
 * in which the node, value or loop is; NULL: the graph. A function that may return NULL may itself
 * be NULL. */
typedef struct Picker {
    struct Strategy *(*pick)(void *arg, const struct SpmdGraph *s, const Node *n);
    void (*took)(void *arg, const Node *n, struct Strategy *t);
    /* The form from which all readers of v go on, of a parameter those of a block, in the forward
     * or after it; reader NULL: an output. May return NULL. */
    const Cut *(*shared)(void *arg, const struct SpmdGraph *s, const Value *v, const Node *reader);
    /* The forms in which operand i enters a loop, and in which result k leaves it. May return
     * NULL. */
    const Cut *(*entry)(void *arg, const Node *loop, int i);
    const Cut *(*exit)(void *arg, const Node *loop, int k);
    void *arg;
} Picker;

/* Nodes of a rank's graph or body, by id from `from` to before `to`; they run so many times. */
typedef struct IdRange {
    const Graph *g;
    int from, to;
    int64_t times;
} IdRange;

/* One run of the pass. */
typedef struct Spmd {
    const PassOptions *o;
    Ctx *ctx;
    const Mesh *mesh;
    const Machine *machine;
    MeshAxisKind kind[MAX_MESH];
    PartCut cuts[MAX_MESH]; /* for src/cut: a part is one of the axis' ranks */
    bool warned;            /* a warning has said that tokens are not cut */
    bool keep;              /* gathered parameters are kept: --reshard never */
    uint64_t draw;          /* state of the generator that draws strategies; 0: the cheapest hold */
    const Picker *picker;   /* NULL: each node's cheapest cut is taken */
    bool free;              /* no steps are avoided, as all forms are chosen at once */
    double copied;          /* seconds of copies that reshards hold, beside nodes */
    double again;           /* of gathers that the backward has again, beside nodes */
    bool unpicked;          /* the picker had no choice for the node that is being emitted */
    IdRange *rest;          /* what was emitted for such nodes */
    int nrest, caprest;
    Map *tables;  /* FormTables of all choices, by type */
    Map *seconds; /* what they keep, for other choices too */
} Spmd;

/* Whether a choice of all forms counts what the backward gathers again; where only a share of what
 * computing may hide counts, that is taken to be hidden. */
static inline bool gathers_count_twice(const Spmd *x)
{
    return x->free && x->o->shard_exposed >= 1;
}

/* A form of a logical value that the rank's graph has. */
typedef struct RankForm {
    Cut cut[MAX_MESH];
    Value *v;          /* NULL: put off, its readers make it */
    const char *block; /* a gathered parameter's: only this block reads it; NULL: any reader may */
    double sec;        /* to gather it again, if it is a gathered parameter */
    double step_sec;   /* of these those of the last step */
    bool again;        /* it is gathered again: the backward goes on from it */
    struct RankForm *from; /* what the last step starts from */
    Phase phase;           /* of the first reader for which it was made */
    struct RankForm *next;
} RankForm;

enum { TOKEN_ROW, TOKEN_PLACE, NTOKEN };

/* A value of the logical graph. */
typedef struct LogicalValue {
    RankForm *form;    /* its forms; the first is the one that its node made */
    bool param;        /* a parameter, or one through casts and views */
    bool alone;        /* made of parameters and constants, without the batch */
    bool sums;         /* made of such and of sums over rows of the batch, over all data ranks */
    Sharding of;       /* that of the parameter, if `param` */
    Cut token[NTOKEN]; /* the axes along which rows of the batch lie, and tokens of a row */
    const Sharding *wanted; /* the form in which the optimizer or an output reads it; or NULL */
} LogicalValue;

/* A graph or body that is being rewritten. */
typedef struct SpmdGraph {
    Spmd *x;
    Arena *tmp;
    Graph *from, *to;
    LogicalValue *known; /* by value id of `from` */
    int cap;
    int nremade;            /* depth of nodes that are being made again for each other */
    int64_t ntoken[NTOKEN]; /* rows of the batch, tokens of a row; 0: unknown */
    struct RankLoop *loop;  /* a body's: the loop that is being made */
    int body;               /* a body's: MAIN or TAIL */
} SpmdGraph;

/* ---- spmd.c ---- */
LogicalValue *spmd_logical(SpmdGraph *s, const Value *v); /* values may have been added since */
bool spmd_data_axis(const Spmd *x, int c); /* whether axis c cuts the batch, in several parts */
/* Gives m, which stands for n, n's order edges: it runs after what stands for those nodes. */
void spmd_order(SpmdGraph *s, const Node *n, Node *m);
void spmd_nodes(SpmdGraph *s); /* emits all nodes of s->from */

/* ---- form.c ---- */

/* The price of a form: steps that are taken only if nothing else is possible, then seconds. */
typedef struct Price {
    int violations;
    double sec; /* INFINITY: it cannot be */
} Price;

#define NO_PRICE ((Price){0, INFINITY})

static inline Price price_sum(Price x, Price y)
{
    return (Price){x.violations + y.violations, x.sec + y.sec};
}

static inline bool price_is(Price x) /* that of something that can be */
{
    return x.sec < INFINITY;
}

static inline bool price_free(Price x)
{
    return !x.violations && x.sec <= 0;
}

/* The price of an impossible form, worse than all others. */
static inline bool price_less(Price x, Price y)
{
    if (!price_is(x) || !price_is(y) || x.violations == y.violations)
        return x.sec < y.sec;
    return x.violations < y.violations;
}

/* Notes that `is` has v in that form, for readers of a block or all (NULL). */
RankForm *form_add(SpmdGraph *s, const Value *v, const Cut *cut, Value *is, const char *block);
/* The price of v in that form for `reader`, from the cheapest form there is. */
Price form_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);
/* Whether a form has partial log-sum-exps. */
bool has_logsumexp(const Mesh *m, const Cut *x);
/* Seconds to bring a value of type t from one form to another, partial log-sum-exps merged before;
 * INFINITY: it cannot be. */
double edge_sec(const Spmd *x, const Type *t, const Cut *from, const Cut *to);
/* The same, by a table of the type's steps. */
double edge_sec_by(const Spmd *x, const Type *t, StepTable *steps, const Cut *from, const Cut *to);
/* The value of which v is a view, through views that can be made again in both forms; these become
 * the forms that they are made of. */
const Value *viewed_value(const Spmd *x, Arena *tmp, const Value *v, Cut *from, Cut *to);

/* The cuts by which a value's node makes it in a form, and the forms of operands that this needs.
 */
typedef struct Remake {
    Factors *f;
    NodeCut how[MAX_MESH];
    Cut (*in)[MAX_MESH];
} Remake;

/* Finds how v, which has a node, is made again in a form; false: it cannot be. */
bool remake_find(const Spmd *x, Arena *tmp, const Value *v, const Cut *need, Remake *y);
/* v in that form for `reader` (NULL: an output): there already, or emitted now. */
Value *form_get(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);

/* ---- again.c ---- */

/* Whether a reader of the backward goes on from a form that the forward gathered. */
bool form_is_again(const RankForm *h, const Node *reader);
/* Seconds that the reader pays for that, before the steps r: the form is gathered again, once for
 * all readers where a choice of all forms counts it. By recipes a reader of that very form shares
 * the gather of others. */
double form_again_sec(const Spmd *x, const RankForm *h, const Reshard *r, const Node *reader);
/* Notes that the reader goes on from the form. */
void form_note_again(SpmdGraph *s, RankForm *h, const Node *reader);

/* ---- lowering.c ---- */

static inline bool cut_slices(const Cut *c)
{
    return c->kind == CUT_SLICE;
}

/* The place of the units of n ranks: on an axis [above][n][rest], with `before` elements in front,
 * those of axes further left included. */
typedef struct RankUnits {
    int axis;
    int64_t above, rest, before;
} RankUnits;

/* The change that a step makes to a rank's tensor; units that it does not move are zero. */
typedef struct Lowering {
    int64_t n;
    Type part;           /* that each rank sends or gets */
    RankUnits cut, join; /* of the slices that the step makes, and of those that it joins */
    bool before, after;  /* copies: of the operand, of the result */
    bool strided;        /* so lies the result */
} Lowering;

/* v: a rank's type before the step. */
Lowering step_lower(const Mesh *m, const Type *v, const ReshardStep *s);
Type step_result(const Lowering *w, const ReshardStep *s); /* after it */

/* ---- step_table.c ---- */

/* A step between two forms; `left`: its result lies with strides. */
typedef struct StepSec {
    bool known, possible, left;
    double sec;
} StepSec;

StepTable *step_table(Arena *a); /* for the forms of one type */
/* The number of a mesh axis' cut; a form's is their sum. -1: there are too many. */
int64_t step_cut(StepTable *y, Cut c, int axis);
/* A step whose operand lies with strides or not; to be filled if it is not known. */
StepSec *step_find(StepTable *y, int64_t from, int64_t to, bool strided);

/* ---- reshard.c ---- */

/* Seconds of the steps that reshard_find() finds; INFINITY: there are none. */
double reshard_sec(const Machine *machine, const Mesh *m, const Type *t, StepTable *steps,
                   const Cut *from, const Cut *to);

/* ---- token.c ---- */

/* Fill LogicalValue.token: for the inputs of a graph, */
void token_inputs(SpmdGraph *s);
/* ... for the inputs of body t of loop n, */
void token_body(SpmdGraph *inner, SpmdGraph *outer, const Node *n, int t);
/* ... for result k of loop n, whose body yields v for it, */
void token_leave(SpmdGraph *outer, SpmdGraph *inner, const Node *n, int k, const Value *v);
/* ... and for the results of another node. */
void token_results(SpmdGraph *s, const Node *n, const Factors *f);
/* Whether factor k of n holds rows of the batch or their tokens. */
bool token_factor(SpmdGraph *s, const Node *n, const Factors *f, int k);

/* ---- choose.c ---- */

/* How a node runs on the ranks: the cut of each mesh axis, and the forms of operands and results
 * that follow, by operand or result and mesh axis. */
typedef struct Strategy {
    NodeCut how[MAX_MESH];
    Cut (*in)[MAX_MESH], (*out)[MAX_MESH];
    Cut *row;               /* room for one axis' cuts of operands and results */
    bool merges;            /* parts make partials that must be merged before they are results */
    Price price;            /* as far as it was asked for */
    struct Strategy **part; /* if it merges: of the nodes that then stand for it, in their order */
    int npart, cappart;
} Strategy;

/* Room for n's strategy. */
Strategy strategy_room(Arena *a, const Node *n);
/* Fills the forms that follow from t->how; whether the node and all its values can be cut so. */
bool strategy_fill(const Spmd *x, const Node *n, const Factors *f, Strategy *t);

Strategy *strategy_choose(SpmdGraph *s, const Node *n, const Factors *f);
uint64_t spmd_draw(uint64_t *state); /* the next number of a generator */

/* ---- solved.c ---- */

/* Chooses how all of g is cut, with in[] and out[] as far as they are ruled. */
struct Solution *solved_choose(const Graph *g, Arena *a, const Spmd *x, const Sharding *in,
                               const Sharding *out);
bool solved_better(const struct Solution *y, const struct Solution *z); /* y is better than z */
/* Fills the forms of inputs and outputs that are not ruled. The picker's choices are found by the
 * names of results. */
Picker *solved_picker(const struct Solution *s, const Spmd *x, Sharding *in, Sharding *out);

/* ---- loop_forms.c ---- */
void loop_rewrite(SpmdGraph *s, const Node *n);
int64_t loop_times(const SpmdGraph *s);  /* how often s runs in a step: 1, or iterations */
const Node *loop_of(const SpmdGraph *s); /* the loop whose body s is; NULL: it is the graph */
/* The operand that s, a body, sees whole as its input v; NULL: v is none. */
Value *loop_operand(const SpmdGraph *s, const Value *v);
/* Makes v, an input of s->loop's body that is a whole operand of the loop, in that form before the
 * loop, for all iterations; returns the body's input for it. NULL: v is no such input. */
Value *loop_hoist(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);

/* ---- prepare.c ---- */

/* Rewrites the whole graph so that the walk can cut it: moves casts before gathers and gathered
 * parameters to where they are read, makes norms sums. in: the inputs' shardings. */
void spmd_prepare(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in);
/* The same where all is chosen at once: before the choice, */
void spmd_prepare_choice(Graph *g, Arena *tmp, const Spmd *x, const Sharding *in);
/* ... and after it: norms are sums of what was chosen to be alike. */
void spmd_prepare_chosen(Graph *g, Arena *tmp, const Spmd *x);

/* ---- cast_before_gather.c ---- */

/* The inputs of a graph or body that are parameters which readers gather. */
typedef struct Gathered {
    bool *is; /* by index of the input */
    int nin;  /* inputs added later are none */
} Gathered;

Gathered graph_gathered(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in);
Gathered body_gathered(const Gathered *p, Arena *tmp, const Node *n, int t);
bool is_gathered(const Gathered *p, const Value *v);
/* The first cast of w to d in the forward before `end` (NULL: anywhere), or NULL. */
Value *find_cast(const Graph *g, const Value *w, DType d, const Node *end);
/* Looks up cast tables instead of casting what is looked up, in bodies too. */
void spmd_narrow_embeddings(Graph *g, Arena *tmp, const Gathered *p);
/* Casts gathered parameters before the gather, where d, the dtype of computation, is narrower. */
void spmd_cast_before_gather(Graph *g, Arena *tmp, const Gathered *p, DType d);

/* ---- formed.c ---- */

/* A value before loops that may be a weight formed of parameters. */
typedef struct Formed {
    bool alone;   /* it is made of parameters and constants, element by element */
    bool gathers; /* ... among them parameters that are gathered */
    bool apart;   /* each rank makes its part, cut[], from the parts that it stores */
    bool inside;  /* a value that goes into a loop needs it there */
    Cut cut[MAX_MESH];
} Formed;

typedef struct FormedSet {
    Arena *tmp;
    Formed *of; /* by value id */
    int nvalue; /* values added later are not formed */
    PartCut cuts[MAX_MESH];
    int naxes;
    bool drawn; /* strategies are drawn: ranks may gather any of several operands */
} FormedSet;

FormedSet formed_fill(const Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m,
                      const Sharding *in, const Gathered *p);
/* Whether the bodies of the loop are to make v, which they see whole. */
bool formed_goes_in(FormedSet *x, const Node *loop, const Value *v);
/* Notes that they do: they then make its operands too, unless ranks make parts of these from what
 * they store. */
void formed_put_in(FormedSet *x, const Value *v);

/* ---- ports.c ---- */

/* Moves casts and formed weights into loops, or, if gathered parameters are kept, before them. */
void spmd_ports(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                const Gathered *p, bool keep);

/* ---- pad.c ---- */

/* Pads inputs whose axes the mesh does not divide, and the outputs that take their place. */
void spmd_pad(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
              const Sharding *out);
/* Says in in[] into how many parts a parameter's form must cut what is padded, so that a form of
 * its own needs just this padding; false: no parameter of g is padded. */
bool spmd_pad_asks(Graph *g, Arena *tmp, const Graph *padded, Sharding *in);
bool spmd_pad_used(const Type *t, const Mesh *m, const int64_t *least_units, const Cut *cut);

#endif
