/* network: minimum cuts of directed graphs with integer capacities. */
#ifndef TENON_NETWORK_H
#define TENON_NETWORK_H

#include "../base/base.h"

/* Arcs stand in pairs: 2 k and its reverse 2 k + 1. */
typedef struct NetworkArc {
    int to, next;     /* next: of the same vertex; -1: none */
    int64_t capacity; /* that is left */
} NetworkArc;

typedef struct CutNetwork {
    Arena *a;
    int nvertex;
    int *first; /* by vertex; -1: none */
    NetworkArc *arc;
    int narc, cap;
} CutNetwork;

CutNetwork network_new(Arena *a, int nvertex);
/* capacity: at least 0; sums of those that leave the source are below 2^62. */
void network_arc(CutNetwork *g, int from, int to, int64_t capacity);
/* Fills side[], by vertex, with whether it is on the source's side of the minimum cut that has the
 * fewest there. Uses the capacities up. Dinic's method. */
void network_cut(CutNetwork *g, int source, int sink, bool *side);

#endif
