/* network: maximum flows and minimum cuts of directed graphs with whole capacities. */
#ifndef TENON_NETWORK_H
#define TENON_NETWORK_H

#include "../base/base.h"

enum { NETWORK_SOURCE, NETWORK_SINK }; /* vertices that every network has */

/* A capacity that no cut need pay. Sums of all others from the source must be below it. */
static const int64_t NETWORK_ENDLESS = INT64_MAX / 4;

/* Arcs stand in pairs: 2 k and its reverse 2 k + 1. */
typedef struct NetworkArc {
    int to, next;     /* next: of the same vertex; -1: none */
    int64_t capacity; /* that is left */
} NetworkArc;

typedef struct Network {
    Arena *a;
    int *first; /* by vertex: its first arc; -1: none */
    int *now, *level, *queue;
    int nvertex;
    NetworkArc *arc;
    int narc, cap;
    int64_t left; /* arcs that may still be passed */
} Network;

/* A network in a, with room for `most` vertices. A flow ends early once `left` arcs are passed. */
Network network_new(Arena *a, int most, int64_t left);
void network_clear(Network *c);              /* of all vertices but source and sink, and all arcs */
int network_vertices(Network *c, int count); /* adds them, returns the first */
void network_arc(Network *c, int from, int to, int64_t capacity);
/* The maximum flow, or less where it ended early. Uses the capacities up. */
int64_t network_flow(Network *c);
/* After a maximum flow: whether the vertex is on the source's side of the minimum cut that has the
 * fewest vertices there. */
bool network_side(const Network *c, int vertex);

#endif
