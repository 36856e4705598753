/* step_early: how much of what is computed again a schedule can compute before the forward has
 * ended, in given memory. Implemented in step_early.c; step_bound.c asks. */
#ifndef TENON_STEP_EARLY_H
#define TENON_STEP_EARLY_H

#include "../flow/problem.h"

/* Items stand in an order of their edges, which are those of data. */
typedef struct EarlyItems {
    const Graph *g;
    int n;
    const Node **node; /* by item; of a collective each result is an item */
    const int *of;     /* by value id: the item that makes it; -1: none */
    Lists pred, succ;
    const double *sec;
    const bool *again; /* it computes again, in the backward */
    int loss;          /* the item with which the forward ends */
    const int *stream; /* items of which each needs the one before */
    int nstream;
} EarlyItems;

/* Seconds, at least as many as all items together take that compute again, or need what does, and
 * begin before the loss has ended: where never more than `room` bytes are alive, beside what is
 * always. */
double early_sec(const EarlyItems *x, Arena *tmp, int64_t room);

#endif
