/* graph_index.h: what chunk knows of the nodes of a graph, filled once and followed as loops are
 * made: what reads a value, which node is before which, outputs, and some of the paths from node to
 * node.
 */
#ifndef TENON_GRAPH_INDEX_H
#define TENON_GRAPH_INDEX_H

#include "../pass/loop_make.h"

enum { GONE = -1 }; /* the place of a node that has been taken out */

/* A node that `enter` says reaches a position of one long path through the graph reaches every node
 * of which `leave` says that the same position or a later one reaches it: without a walk, as that
 * may go from a layer's forward through all later layers to its backward. The positions stay as
 * they are when parts of the path have become loops: what reached a node before does so then. */
typedef struct ChunkIndex {
    Graph *g;
    Arena *a;
    int mostnode,
        mostvalue; /* sizes of arrays by id, with room for what a region adds to the graph */
    Node ***user;  /* by value id: its readers, up to a NULL; NULL: none */
    int *nuser, *capuser;
    bool *stale;    /* by value id: index_users() is to sort them, and drop those that are gone */
    int64_t *place; /* by node id: grows along the graph */
    int *output;    /* by value id: 1 + the first of the graph's outputs that it is */
    int *more;      /* by output: 1 + the next that is the same value */
    Node **edged;   /* the nodes with order edges */
    int *enter, *leave; /* by node id: the first position that it reaches, INT_MAX: none; the last
                           one that reaches it, 0: none */
    bool *outside[2];   /* LoopPart.outside: all true but for the nodes of the last region */
    int *lowered[2], nlowered[2], caplowered[2]; /* those */
    int nedged, capedged;
} ChunkIndex;

/* The index of g as it is now, in a, which must live as long as it. */
ChunkIndex *index_new(Graph *g, Arena *a);
/* Makes room for what a region adds to the graph. */
void index_reserve(ChunkIndex *x);
/* The readers of v, in the graph's order, up to a NULL; NULL: there are none. */
Node **index_users(ChunkIndex *x, const Value *v);
void index_add_user(ChunkIndex *x, const Value *v, Node *n);
/* Sorts nodes by their places, and leaves out what is there twice. Returns how many there are; a
 * NULL follows the last, for which there must be room. */
int index_sort(const ChunkIndex *x, Arena *tmp, Node **list, int count);
/* Places the nodes from after `from` (NULL: from the first) up to `to` (NULL: to the end). */
void index_place(ChunkIndex *x, const Node *from, const Node *to);
/* LoopPart.outside of loop l: all true. Until it is asked for again, index_lower() alone clears it.
 */
bool *index_outside(ChunkIndex *x, int l);
void index_lower(ChunkIndex *x, int l, const Node *n);
/* Makes the loop, and follows what becomes of the graph. */
Node *index_loop(ChunkIndex *x, Arena *tmp, const LoopPart *p);

#endif
