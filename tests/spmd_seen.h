/* spmd_seen: which ways to cut nodes the pass spmd had and took. */
#ifndef TENON_TEST_SPMD_SEEN_H
#define TENON_TEST_SPMD_SEEN_H

#include "../src/cut/cut.h"

/* A way to cut an op: whole, along factors of a kind, or linear in a set of operands. */
typedef struct WayCount {
    const char *name; /* "mm sum" */
    int64_t could, did;
} WayCount;

typedef struct Seen {
    Arena *a;            /* for the names */
    const int64_t *size; /* of the mesh's axes */
    Map way;             /* WayCount */
    WayCount **list;
    int count, cap;
} Seen;

/* PassOptions.spmd_seen; `seen` is a Seen. */
void seen_node(void *seen, const Node *n, const NodeCut *how, int naxes);

/* Prints ways that were taken less than `least` times although they could be that often times 20;
 * returns how many. */
int seen_report(const Seen *s, int64_t least, bool all);

#endif
