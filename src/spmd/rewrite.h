/* spmd: what the files of the pass share. A logical graph, which is whole, is rewritten node by
 * node into the graph of one rank. A value of the logical graph has one or more forms in the
 * rank's: what the rank has of it, a Cut for each axis of the mesh. */
#ifndef TENON_SPMD_REWRITE_H
#define TENON_SPMD_REWRITE_H

#include "spmd.h"

/* What holds for the whole pass. */
typedef struct Spmd {
    const PassOptions *o;
    Ctx *ctx;
    const Mesh *mesh;
    const Machine *machine;
    MeshAxisKind kind[MAX_MESH];
    PartCut cuts[MAX_MESH]; /* for src/cut: a part is one of the axis' ranks */
    bool warned;            /* that tokens are not cut */
    bool keep;              /* gathered parameters are kept: --reshard never */
    uint64_t draw;          /* strategies are drawn by this state and not chosen; 0: chosen */
} Spmd;

/* A form of a logical value that the rank's graph has. */
typedef struct RankForm {
    Cut cut[MAX_MESH];
    Value *v;          /* NULL: it is made where it is read */
    const char *block; /* of a gathered parameter: whose readers alone may read it; NULL: all */
    double sec;        /* of a gathered parameter: what gathering it again takes */
    Phase phase;       /* of the reader for which it was made first */
    struct RankForm *next;
} RankForm;

enum { TOKEN_ROW, TOKEN_PLACE, NTOKEN };

/* What is known of a logical value beside its forms. */
typedef struct LogicalValue {
    RankForm *form;         /* the one that its node made first */
    bool param;             /* a parameter, or one through casts and views */
    bool alone;             /* it is made of parameters and constants, without the batch */
    bool sums;              /* ... or of sums over rows of the batch, over all data ranks */
    Sharding of;            /* of a parameter: its own, of which held and stored are read */
    Cut token[NTOKEN];      /* along which axis the batch's rows lie, and the tokens of a row */
    const Sharding *wanted; /* in what form the optimizer or an output reads it; NULL: unknown */
} LogicalValue;

/* A graph or body that is being rewritten. */
typedef struct SpmdGraph {
    Spmd *x;
    Arena *tmp;
    Graph *from, *to;
    LogicalValue *known; /* by value id of `from` */
    int cap;
    int nremade;            /* nodes that are being made again for each other */
    int64_t ntoken[NTOKEN]; /* rows of the batch, tokens of a row; 0: unknown */
    struct RankLoop *loop;  /* of a body: the loop that is being made */
    int body;               /* of a body: MAIN or TAIL */
} SpmdGraph;

/* ---- spmd.c ---- */
LogicalValue *spmd_logical(SpmdGraph *s,
                           const Value *v); /* grows the table for nodes that were added */
bool spmd_data_axis(const Spmd *x, int c);  /* c cuts the batch, in more than one part */
/* m stands for n: it runs after what stands for the nodes that n runs after. */
void spmd_order(SpmdGraph *s, const Node *n, Node *m);
void spmd_nodes(SpmdGraph *s); /* emits all nodes of s->from */

/* ---- form.c ---- */
RankForm *form_add(SpmdGraph *s, const Value *v, const Cut *cut, Value *is, const char *block);
/* Seconds until `reader` has v in that form, by the forms there are. */
double form_sec(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);
/* v in that form for that node: found, or emitted. */
Value *form_get(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);

/* ---- token.c ---- */

/* Finds where the tokens of the batch lie in inputs of a graph, */
void token_inputs(SpmdGraph *s);
/* ... in the inputs of a loop's body, */
void token_body(SpmdGraph *inner, SpmdGraph *outer, const Node *n, int t);
/* ... in result k of a loop, of which the body yields v, */
void token_leave(SpmdGraph *outer, SpmdGraph *inner, const Node *n, int k, const Value *v);
/* ... and in another node's results. */
void token_results(SpmdGraph *s, const Node *n, const Factors *f);
/* Whether factor k of n holds rows of the batch or their tokens. */
bool token_factor(SpmdGraph *s, const Node *n, const Factors *f, int k);

/* ---- choose.c ---- */

/* How a node runs on the ranks: how each mesh axis cuts it, and the forms of what it reads and
 * makes, by operand or result and mesh axis. */
typedef struct Strategy {
    NodeCut how[MAX_MESH];
    Cut (*in)[MAX_MESH], (*out)[MAX_MESH];
    bool merges; /* parts make partials, which the node's finish() needs merged */
    double sec;
} Strategy;

Strategy *strategy_choose(SpmdGraph *s, const Node *n, const Factors *f);

/* ---- loop.c ---- */
void loop_rewrite(SpmdGraph *s, const Node *n);
/* In a body: an operand of the loop that its bodies read whole, in that form made before the loop;
 * NULL: v is none. */
Value *loop_hoist(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);

/* ---- prepare.c ---- */

/* Rewrites what is to be cut otherwise than it stands: norms of gradients, casts behind gathers,
 * axes that do not divide. in, out: of the graph's ports. */
void spmd_prepare(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                  const Sharding *out);

/* ---- narrow.c ---- */

/* Which inputs of a graph or body are parameters that are gathered to be read. */
typedef struct Gathered {
    bool *is; /* by index of the input */
    int nin;  /* inputs that are newer are none */
} Gathered;

Gathered graph_gathered(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in);
Gathered body_gathered(const Gathered *p, Arena *tmp, const Node *n, int t);
bool is_gathered(const Gathered *p, const Value *v);
/* The first cast of w to d in the forward before `end` (NULL: anywhere), or NULL. */
Value *find_cast(const Graph *g, const Value *w, DType d, const Node *end);
/* d: the dtype of computation. */
void spmd_narrow(Graph *g, Arena *tmp, const Gathered *p, DType d);

/* ---- formed.c ---- */

/* What is known of a value before loops. */
typedef struct Formed {
    bool alone;   /* it is made of parameters and constants, element by element */
    bool gathers; /* ... of parameters that are gathered, among them */
    bool apart;   /* ranks make their parts of it of what they store: cut[] */
    bool inside;  /* a loop needs it for what goes into it */
    Cut cut[MAX_MESH];
} Formed;

typedef struct FormedSet {
    Arena *tmp;
    Formed *of; /* by value id */
    int nvalue; /* values that are newer are not formed */
    PartCut cuts[MAX_MESH];
    int naxes;
    bool drawn; /* strategies are drawn: of several operands ranks may gather any */
} FormedSet;

FormedSet formed_fill(const Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m,
                      const Sharding *in, const Gathered *p);
/* Whether v, which bodies of the loop see whole, is to be made there. */
bool formed_goes_in(FormedSet *x, const Node *loop, const Value *v);
/* v is made there, and so what it is made of, as far as ranks do not make that of what they store.
 */
void formed_put_in(FormedSet *x, const Value *v);

/* ---- ports.c ---- */

/* keep: --reshard never. */
void spmd_ports(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                const Gathered *p, bool keep);

/* ---- pad.c ---- */

/* Pads inputs whose axes the mesh does not divide, and what takes their place. */
void spmd_pad(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
              const Sharding *out);

#endif
