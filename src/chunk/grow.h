/* grow: a region while it is found; shared by grow.c, close.c, clone.c and region.c. */
#ifndef TENON_CHUNK_GROW_H
#define TENON_CHUNK_GROW_H

#include "chunk.h"
#include "graph_index.h"

typedef struct Growth {
    Graph *g;
    ChunkIndex *index; /* of g */
    Arena *tmp;
    const Value *seed;
    int64_t least, units;
    bool cheap;   /* results of the forward's products are on the border, however large */
    GraphCut cut; /* of the nodes that have joined, and of their results */
    bool *joined; /* by node id */
    Cut *want;    /* by value id: how a reader needs a value whose definer may join */
    const Factors **factors; /* by node id, once asked for */
    Node **queue;
    int nqueue;
    int nnode;               /* of the graph before there are clones */
    int mostnode, mostvalue; /* sizes of these arrays, with room for what chunk adds to the graph */
    const char *why;         /* the last node that could not join, and why */
} Growth;

/* Whether v is sliced, if the cut reaches it. */
static inline bool is_large(const Growth *x, const Value *v)
{
    return type_nelem(&v->type) >= x->least && !(x->cheap && chunk_costly(v));
}

static inline bool is_made(const Growth *x, const Value *v)
{
    return v->def && x->joined[v->def->id];
}

/* ---- grow.c ---- */

Growth growth_start(ChunkIndex *index, Arena *tmp, Value *seed, const ChunkRegion *r);
/* Sorts nodes by their places in the graph, and leaves out what is there twice. Returns how many
 * there are; a NULL follows the last, for which there must be room. */
int growth_sort(const Growth *x, Node **list, int count);
/* Has nodes join from the seed's on; false: the seed cannot be sliced, `why` says why. */
bool growth_grow(Growth *x);
const Factors *growth_factors(const Growth *x, const Node *n);
/* Notes why n cannot be in the region; returns false. */
bool growth_refuse(Growth *x, const Node *n, const char *why);
/* Finds how n is cut, and the cuts of operands and results that follow; false, with the reason: it
 * cannot be. */
bool growth_how(Growth *x, const Node *n, NodeCut *how, Cut *in, Cut *out);
bool growth_join(Growth *x, Node *n); /* the same, and n joins the region */
/* The cuts that n, which has joined, needs and gives. */
void growth_cuts(const Growth *x, const Node *n, Cut *in, Cut *out);
/* Whether these cuts agree with those known of n's operands and wanted of its results. A whole
 * operand always agrees, as readers can slice it. */
bool growth_agrees(Growth *x, const Node *n, const Cut *in, const Cut *out);

/* ---- close.c ---- */

/* How the graph around a loop hangs together with it, over any number of nodes. */
typedef struct LoopPaths {
    bool *after,
        *before;   /* by node id: it reads what the loop makes; the loop reads what it makes */
    bool *behind;  /* by value id: made outside, of what the loop makes, so after it */
    Value **scale; /* by value id, inside: the value after the loop that multiplies it; or NULL */
} LoopPaths;

/* A loop of a region. */
typedef struct Closed {
    bool *inside; /* by node id; NULL: there can be no such loop */
    Node **node;  /* the nodes inside, in the graph's order, up to a NULL */
    int nnode;
    LoopPaths paths;
} Closed;

/* Divides the region among at most two loops, the first as large as possible, each with all nodes
 * on paths that leave it and come back. Returns how many; 0: it cannot, x->why says why. */
int growth_close(Growth *x, Closed loop[2]);

/* ---- clone.c ---- */

/* Marks, by node id, the nodes of the first loop whose large values the second reads, and the nodes
 * that these need. Returns how many; -1: one of them cannot be repeated. */
int growth_find_clones(Growth *x, const Closed loop[2], bool *cloned);
/* Clones the marked nodes; the clones join the second loop, before its nodes. */
void growth_clone(Growth *x, Closed loop[2], const bool *cloned);

#endif
