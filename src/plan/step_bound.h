/* step_bound: the items of a step's bound; step_bound.c makes them and says what they are.
 * step_narrow.c finds where their graph narrows, step_sets.c what sets of them take. */
#ifndef TENON_STEP_BOUND_H
#define TENON_STEP_BOUND_H

#include "../flow/problem.h"
#include "plan.h"

enum { BY_HOST = MAX_QUEUE, BY_NETWORK, NBUSY }; /* links, behind the queues */

typedef struct BoundItem {
    const Node *node;
    int tensor;
    double sec;         /* on its way */
    double busy[NBUSY]; /* seconds of queues */
} BoundItem;

/* The items that a queue works on. */
typedef struct BoundQueue {
    int n, *item;
} BoundQueue;

/* A collective with what belongs to it: seconds of computing, and on its link. */
typedef struct BoundJob {
    double computing, moving;
} BoundJob;

typedef struct StepBound {
    const Plan *p;
    int64_t most;     /* bytes of the peak; 0: any */
    const Node *loss; /* the end of the forward, if nothing is computed again before; else NULL */
    Arena *tmp;
    const Graph *g;
    int n, *of; /* of: by value id, the item that makes it; -1: none */
    BoundItem *item;
    Lists pred, succ;
    bool *narrow;
    int middle;           /* the narrow item that ends the forward; -1: none */
    bool *kept;           /* made of nothing but the graph's kept inputs and constants */
    double *start, *rest; /* until an item begins; after it has ended */
    BoundQueue queue[NBUSY];
    double *to;    /* scratch: from an item's end to the narrow one; -1: not before it */
    int *last;     /* scratch: the collective that waits for an item; -1: none */
    double *ahead; /* scratch, by collective: seconds of computing that it waits for */
    BoundJob *job;
} StepBound;

/* Fills narrow and middle. */
void bound_narrow(StepBound *x);

/* The items of a way of the most, in order. */
int *bound_longest_way(const StepBound *x, int *count);

/* Leaves queues without items; adds one to its queues, once its start is known. */
void bound_none(StepBound *x);
void bound_add(StepBound *x, const double *start, int item);

/* The least time after which what follows a set may begin: of the items in queues with to >= 0.
 * start: when each can begin, at least; to: from its end to what follows. */
double bound_sets(const StepBound *x, const double *start, const double *to);

/* The same by computing and a link together, of all items with to >= 0, and of those that begin at
 * `from` or later. succ: the items that wait for each. */
double bound_pairs(const StepBound *x, const double *start, const double *to, double from,
                   const Lists *succ);

#endif
