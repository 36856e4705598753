/* reach.h: what nodes of a region tell nodes outside that read it, by any path; for close.c. */
#ifndef TENON_CHUNK_REACH_H
#define TENON_CHUNK_REACH_H

#include "grow.h"

/* Each node of a region says a number; a node outside has the largest of those that reach it. */
typedef struct Reach {
    const Growth *x;
    Node *const *node; /* of the region, in order */
    int count;         /* of those that have been added */
    int *said;         /* by id of a node of the region */
    int *known;        /* by id of others: 1 + its number */
    int *most, *enter; /* of node i and those before: the largest, and the first position on the
                          index's path that one of those reaches which said it */
} Reach;

Reach reach_start(const Growth *x, Node *const *node, int count);
/* Adds the next node, with what it says: at least 0. */
void reach_add(Reach *r, int number);
/* The number of a node that is not of the region; of the region, all before it have been added. */
int reach_of(Reach *r, const Node *m);

#endif
