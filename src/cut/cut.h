/* cut: how a graph runs in parts. A loop (parts in time) or an axis of a mesh of ranks (parts in
 * space) cuts each value in one of a few ways; how a node is cut follows from its op's factors and
 * linear sets. accumulate, chunking and sharding use the same rule and differ in what they choose.
 * Sections name the file that implements them. */
#ifndef TENON_CUT_H
#define TENON_CUT_H

#include "../op/op.h"

/* ---- transfer_cuts.c: from the cuts of operands to those of results, and back ---- */

typedef enum { NODE_WHOLE, NODE_FACTOR, NODE_LINEAR, NODE_LOOP } NodeCutKind;

/* How one loop or mesh axis cuts a node. */
typedef struct NodeCut {
    NodeCutKind kind;
    int factor; /* FACTOR: it is, row-major, [outer][count][inner] */
    int64_t outer;
    uint64_t
        partial; /* LINEAR: bit i: operand i is partial (bit 63: all from there on); others whole */
    CutKind merge;
    struct GraphCut *body[2]; /* LOOP: of the main body and of the tail */
} NodeCut;

/* Why a cut stops at a node: the reason, and the operand or result concerned (-1: none). */
typedef struct CutStop {
    const char *why;
    int operand, result;
} CutStop;

/* Finds how n is cut from the cuts of its operands. False, with the reason, if these do not agree.
 * A whole operand may have to be sliced: cut_fill says how. f: n's factors. */
bool cut_forward(const Node *n, const Factors *f, int64_t count, const Cut *in, NodeCut *how,
                 CutStop *stop);
/* Finds how n is cut from the cuts of its results that are not whole; if several ways lead to a
 * partial result, by the first of the op's linear sets. */
bool cut_backward(const Node *n, const Factors *f, int64_t count, const Cut *out, NodeCut *how,
                  CutStop *stop);
/* Whether n can be cut so into `count` units; cut_together is to be asked too. */
bool cut_legal(const Node *n, const Factors *f, int64_t count, const NodeCut *how, CutStop *stop);
/* Fills the cuts that operands must have and results then have if n, not a loop, is cut so. */
void cut_fill(const Node *n, const Factors *f, const NodeCut *how, Cut *in, Cut *out);

/* How parts of a factor of that kind are merged; CUT_WHOLE: they need not be. */
CutKind cut_merge(FactorKind k);

/* "it needs all of operand 1 (%x)" */
const char *cut_stop_text(Arena *a, const Node *n, const CutStop *stop);

/* ---- part_node.c: the node of a part ---- */

enum { MAX_CUT = 8 }; /* loops and mesh axes that cut one graph at once */

/* The share of a part in one loop or mesh axis: `units` of its `count` units. start() gives where
 * they begin, in steps of so many elements, as an i64[] value that b's graph can read. */
typedef struct PartCut {
    int64_t count, units;
    Value *(*start)(void *arg, Build *b, int64_t step);
    void *arg;
} PartCut;

/* Whether several loops and mesh axes, or one, can cut n at once, each as how[c] says and legally
 * alone: for all the parts' units. */
bool cut_together(const Factors *f, int ncut, const PartCut *cuts, const NodeCut *how,
                  CutStop *stop);

/* Whether a value of type t can have these cuts at once. */
bool cut_value_legal(const Type *t, int ncut, const PartCut *cuts, const Cut *cut);
/* The part's type of a value that is cut so by ncut loops and mesh axes. */
Type cut_type(const Type *t, int ncut, const PartCut *cuts, const Cut *cut);

/* The number of partials that n's parts make, to be merged before finish() makes the results, and
 * how each is merged; 0: the parts make results. */
int cut_partials(const Factors *f, int ncut, const NodeCut *how, CutKind *merge);

/* Emits n's part, a loop's bodies included, on the operands in[]: out[] gets the results, or the
 * partials. b has n's phase, scope and so on. */
void cut_part(Build *b, const Node *n, const Factors *f, int ncut, const PartCut *cuts,
              const NodeCut *how, Value *const *in, Value **out);
/* Emits the results from merged partials. */
void cut_finish(Build *b, const Node *n, const Factors *f, int ncut, const PartCut *cuts,
                const NodeCut *how, Value *const *in, Value *const *merged, Value **out);

/* ---- part_graph.c ---- */

/* Every value and node of a graph or body, cut by one loop or mesh axis. */
typedef struct GraphCut {
    int64_t count;
    Cut *value;    /* by value id */
    NodeCut *node; /* by node id */
} GraphCut;

/* Follows the cuts of the inputs, in c->value, through g. False, with the node and the reason, if
 * they stop. */
bool cut_graph(const Graph *g, Arena *tmp, const GraphCut *c, const Node **at, CutStop *stop);

/* Whether several cuts, or one, each followed alone, can cut g at once. graph[c] NULL: cut c leaves
 * all whole. */
bool cut_graph_together(const Graph *g, Arena *tmp, int ncut, const PartCut *cuts,
                        const GraphCut *const *graph, CutStop *stop);

/* Emits the part of g, with outputs, into `to`, which has the inputs. now[], by g's value ids, has
 * the values of the inputs and gets all others. */
void cut_graph_part(const Graph *g, Graph *to, Arena *tmp, int ncut, const PartCut *cuts,
                    const GraphCut *const *graph, Value **now);

/* ---- loop_cuts.c: the same for loops, by their ports ---- */

/* The cut of what bodies see through port j, from that of the operand; and of result k from that of
 * what a body yields. False, with the reason, if the port takes apart or joins what is cut. */
bool cut_enter(const Region *r, int j, Cut c, Cut *inside, CutStop *stop);
bool cut_leave(const Region *r, int k, Cut c, Cut *outside, CutStop *stop);

bool cut_loop_forward(const Node *n, Arena *tmp, int64_t count, const Cut *in, NodeCut *how,
                      Cut *out, CutStop *stop);
bool cut_loop_together(const Node *n, Arena *tmp, int ncut, const PartCut *cuts, const NodeCut *how,
                       CutStop *stop);
void cut_loop_part(Build *b, const Node *n, Arena *tmp, int ncut, const PartCut *cuts,
                   const NodeCut *how, Value *const *in, Value **out);

#endif
