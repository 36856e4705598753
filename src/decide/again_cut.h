/* again_cut: what the backward computes again at one price of a saved byte, as a minimum cut. */
#ifndef TENON_AGAIN_CUT_H
#define TENON_AGAIN_CUT_H

#include "../machine/machine.h"

/* A graph with forward and backward in it. */
typedef struct AgainGraph {
    const Graph *g;
    Arena *a, *tmp, *cut; /* of the ladder; of this graph; of one cut */
    Node **base;          /* by value id */
    int *place;           /* by node id: its number among the nodes below; -1: it is none of them */
    const Node **at;      /* forward nodes that define memory, in order */
    const int *block;     /* by node id */
    bool *read;           /* by number: the backward reads it */
    bool *may;            /* it can be computed again */
    bool *free;           /* it takes no bytes that recomputation could spare */
    double *nbytes, *sec;
    int n;
    int cuts;
} AgainGraph;

/* A choice at one price. */
typedef struct Corner {
    bool *again; /* by number */
    double nbytes, sec;
} Corner;

/* Whoever asks may change nbytes and sec. block: by node id; NULL: all nodes are one. */
AgainGraph again_graph(Arena *a, Arena *tmp, const Graph *g, const Machine *m, const int *block);
/* The number of the node that defines v's memory; -1: none does. */
int again_place(const AgainGraph *x, const Value *v);
/* The choice with the least seconds and `price` times the bytes. */
Corner again_solve(AgainGraph *x, double price);
/* Of nothing computed again, and of as much as pays at any price. */
Corner again_none(const AgainGraph *x);
Corner again_most(AgainGraph *x);

#endif
