/* spmd_seen: which ways to cut nodes the pass spmd had and took. */
#ifndef TENON_TEST_SPMD_SEEN_H
#define TENON_TEST_SPMD_SEEN_H

#include "../../src/cut/cut.h"

/* A way to cut an op: whole, along factors of a kind, or linear in a set of operands; or two such
 * ways of any op at once, by two axes. */
typedef struct WayCount {
    const char *name;    /* "mm sum", "two axes: parallel, sum" */
    const char *without; /* why no graph has the op; NULL: graphs have it */
    bool linear;         /* in some operands: which must be partial, and seldom are */
    int64_t could, did;
} WayCount;

typedef struct Seen {
    Arena *a;            /* for the names */
    const int64_t *size; /* of the mesh's axes */
    Map way;             /* WayCount */
    WayCount **list;
    int count, cap;
} Seen;

/* Rows for all ways to cut an op's example, so that what is never met is seen too. */
void seen_expect(Seen *s, const Node *example, const char *without);

/* PassOptions.spmd_seen; `seen` is a Seen. */
void seen_node(void *seen, const Node *n, const NodeCut *how, int naxes);

/* Whether some way to cut the op was taken less than `least` times. */
bool seen_short(const Seen *s, const Op *op, int64_t least);

/* Prints ways that were taken less than `least` times although they could be, and those that could
 * never be, with the reason; `all`: every way. Returns how many of the first there are that could
 * be 20 times as often and are not linear. */
int seen_report(const Seen *s, int64_t least, bool all);

#endif
