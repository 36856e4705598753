/* loop_make: makes a loop of nodes of a graph, over slices of their values. accumulate and chunk
 * choose the nodes and their cuts; bodies, ports and the graph around are made alike for both. */
#ifndef TENON_LOOP_MAKE_H
#define TENON_LOOP_MAKE_H

#include "../cut/cut.h"
#include "pass.h"

/* Units (rows) by iteration: `n` iterations of `part` units, and a tail of `rest` (0: none). */
typedef struct Slices {
    int64_t units, part, n, rest;
    int64_t filled; /* of an iteration: those before padding, by which positions count */
} Slices;

/* How the loop adds up a value that the graph around reads. */
typedef enum {
    SUM_ADD,     /* each iteration makes its value, which PORT_SUM adds */
    SUM_PRODUCT, /* a product adds itself (addmm) to a carry; other values as SUM_ADD */
} SumKind;

/* Nodes that are to run as a loop. Arrays are by id of the graph's nodes and values. */
typedef struct LoopPart {
    Slices slices;
    GraphCut cut; /* of the nodes inside, and of what they make; what is made outside is whole */
    bool *inside; /* nodes: the bodies compute them */
    Node **node;  /* NULL, or the same in the graph's order, up to a NULL: then no other node goes
                     or, before the first, is `after`, and no order edge crosses the loop */
    Node ***user; /* NULL, or by value id: what reads those that are yielded, up to a NULL */
    const int *output; /* NULL, or by value id: 1 + the first of the graph's outputs that it is */
    const int *more;   /* then: by output, 1 + the next that is the same value */
    bool *outside; /* nodes: the graph around computes them, too or alone; in place or `after` */
    bool *after;   /* nodes of `outside` that run after the loop, as they read its results */
    bool *yielded; /* values made inside that are results of the loop: slices or sums */
    Value **one;   /* NULL, or values read inside in whose place bodies read ones (the value itself
                      says its type) */
    Value **scale; /* NULL, or by what a yielded value is multiplied after the loop (a value of one
                      element) */
    SumKind sums;
    bool narrow;  /* sums in their own dtype; else in f32 (f64 for f64) */
    Node *before; /* the loop is put before this node and nodes `after` follow it; NULL: at the end
                   */
    const char *what; /* the pass, for messages: "cannot be cut into microbatches" */
} LoopPart;

/* Makes the loop: an operand that is made inside, cut as its reader needs it, is read there; any
 * other through a port. Nodes from `before` on read its results, too. Returns the loop. Fails,
 * naming the node, where a slice or result cannot be [outer][count][inner] of an axis as it would
 * have too many axes, and where the caller's arrays do not fit together: what is yielded is neither
 * slices nor a sum, a node before the loop reads what it makes, a body what is made after it. */
Node *loop_make(Graph *g, Arena *tmp, const LoopPart *p);

/* ---- loop_part.c ---- */

/* At most `count` slices, as even as they can be: the last may be shorter. */
Slices slices_of(int64_t units, int64_t count);
/* The units of an iteration with body t. */
int64_t loop_units(const LoopPart *p, int t);
/* The type of what an iteration with body t has of a value of type `type`. */
Type loop_part_type(const LoopPart *p, const Type *type, Cut c, int t);
/* The cuts that n's parts need of its operands. */
const Cut *loop_needs(Arena *tmp, const GraphCut *c, const Node *n);
/* The dtype in which the loop adds values of dtype d. */
DType loop_sum_dtype(const LoopPart *p, DType d);
/* The nodes inside in the graph's order, up to a NULL. */
Node *const *loop_nodes(const Graph *g, Arena *tmp, const LoopPart *p);
/* Whether nothing computes v once the loop is made. */
bool loop_drops(const LoopPart *p, const Value *v);
/* By value id: the number of readers inside, operands counted; a result of the loop counts as one
 * more. */
const int *loop_readers(const Graph *g, Arena *tmp, const LoopPart *p);

/* v with the dimensions of a type. */
Value *loop_view(Build *b, Value *v, const Type *to);
/* t with the axis split in [outer][rest]. */
Type loop_split_type(const Type *t, int axis, int64_t outer);
/* The product that makes v, a result of slices that are scaled after the loop, with nothing but
 * views between: they are rounded only there, if they are of 16 bits. NULL: there is none. */
const Node *loop_wide_product(const LoopPart *p, const int *readers, const Value *v);
/* By node id: whether it makes a scale from results of nodes inside. */
bool *loop_scales(const Graph *g, Arena *tmp, const LoopPart *p, Node *const *inside);

/* ---- loop_product.c: sums to which products add themselves ---- */

/* A yielded sum, or one of which it is a view or cast, that the loop carries. */
typedef struct ProductSum {
    Type type;           /* carried */
    const Node *product; /* one of them */
    const Node **view;   /* from what is carried to what is yielded; casts apart */
    int nview;
    Value *now[NBODY]; /* the carried value while a body is made */
} ProductSum;

typedef struct ProductSums {
    ProductSum **result; /* by id of a yielded value: it is carried so */
    ProductSum **within; /* by node id: a product of a sum, or a node that leads from there to it */
    ProductSum **term;   /* by value id: a term of a sum that is no product with one reader */
} ProductSums;

/* Finds the sums of p that are carried: those with an mm as a term, directly or through casts and
 * additions, that nothing else reads, after these through views of one operand. */
ProductSums product_sums(const Graph *g, Arena *tmp, const LoopPart *p);

/* ---- loop_wide.c: what bodies make in f32 of 16 bits ---- */

/* By value id. */
typedef struct WideSums {
    bool *made;    /* bodies make it in f32, where the graph has 16 bits */
    bool *rounded; /* then: a node inside reads it in the graph's dtype */
} WideSums;

/* Finds them, given the sums that are carried. */
WideSums wide_sums(const Graph *g, Arena *tmp, const LoopPart *p, const ProductSums *sums);
/* Whether a result of n is made wide. */
bool wide_node(const WideSums *y, const Node *n);

/* Where the part of a node goes that makes a wide result. */
typedef struct WidePart {
    const WideSums *y;
    const LoopPart *p;
    Graph *g; /* of the loop */
    Arena *tmp;
    Build *b; /* the body */
    const PartCut *cut;
    Value **wide; /* by value id: filled with what is made wide */
} WidePart;

/* Emits n's part. in: its operands, wide where they are made so; changed. out: its results, as
 * nodes read them that take them in the graph's dtype. */
void wide_part(const WidePart *x, const Node *n, Value **in, Value **out);

/* ---- loop_results.c: what reads the results of the loop ---- */

/* A loop that is in the graph, and what it yields. */
typedef struct LoopMade {
    Graph *g;
    Arena *tmp;
    const LoopPart *p;
    Node *loop;
    Value **result; /* of the graph before, by result of the loop */
    int nresult;
    const ProductSums *sums;
    Node *const *inside; /* nodes, in order, up to a NULL */
    Node *first;         /* of the graph: those before it read no result, nor are `after` */
    const bool *trails;  /* by node id: it does not run before the loop */
    int nnode, nvalue;   /* of the graph before */
} LoopMade;

/* Has the graph read the loop's results, and puts nodes `after` behind it. Fails, naming the node,
 * where a result's scale is not made before what reads it, or an output is not yielded. */
void loop_read_results(const LoopMade *x);

#endif
