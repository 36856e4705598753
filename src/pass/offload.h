/* offload: what offload.c and offload_pins.c share. */
#ifndef TENON_OFFLOAD_H
#define TENON_OFFLOAD_H

#include "pass.h"

/* Whether n computes something, in a call that no body of `fused` takes in. */
bool offload_stands_alone(const Node *n);

/* By place, of the nodes of one graph as they stand now: the nearest that computes, and that
 * computes alone: itself, or one on the way to the graph's end (where only the backward counts) or
 * to its beginning; -1: none. */
typedef struct Pins {
    Node **at;
    int *place; /* by node id */
    int *next, *next_alone, *prev, *prev_alone;
} Pins;

/* A node runs after another one. */
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
