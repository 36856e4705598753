/* offload: shared by offload.c and offload_pins.c. */
#ifndef TENON_OFFLOAD_H
#define TENON_OFFLOAD_H

#include "pass.h"

/* Whether n computes something, in a call that no body of `fused` takes in. */
bool offload_stands_alone(const Node *n);

/* The nodes of one graph in their present order. By place: the nearest node that computes, and the
 * nearest that computes alone, from that place towards the graph's end (in the backward only) or
 * towards its beginning, itself included; -1: none. */
typedef struct Pins {
    Node **at;
    int *place; /* by node id */
    int *next, *next_alone, *prev, *prev_alone;
} Pins;

/* An order edge: `node` runs after `after`. */
typedef struct Edge {
    Node *node, *after;
    int index;
} Edge;

typedef struct Edges {
    Arena *tmp;
    Edge *list;
    int count, cap;
} Edges;

/* The tables of a graph, in tmp. */
Pins pins_new(const Graph *g, Arena *tmp);
/* The next node from `from` on, before `end`, that computes alone, or if none does, computes. */
Node *pins_find(const Pins *p, const Node *from, const Node *end, bool forward);

/* Notes that n runs after another node. */
void edges_add(Edges *e, Node *n, Node *after);
/* Gives the nodes of g the edges that were noted. */
void edges_emit(Graph *g, const Edges *e);

#endif
