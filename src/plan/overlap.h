/* overlap: an order of nodes with collectives under way, in which sets of nodes are moved by trial:
 * the seconds of a step by the clock, and the bytes that are alive. Implemented in order_tries.c.
 */
#ifndef TENON_OVERLAP_H
#define TENON_OVERLAP_H

#include "order.h"

/* A collective that waits are for. */
typedef struct Started {
    double sec; /* alone on its link */
    const char *group;
    Group where;
    int nwait;
} Started;

/* An order in time. By node: when it begins; of a start when it ends, and for how long the step
 * stands still at its waits. */
typedef struct TimedOrder {
    double *at, *end, *stall;
    double total;
} TimedOrder;

/* Tries of a start that were of no use, and the places on which that depends. */
typedef struct Vain {
    int taken;       /* orders that had been taken by then; -1: there are none */
    int first, last; /* places */
    uint64_t *set;   /* sets of nodes, as numbers */
    int nset, capset;
} Vain;

typedef struct Overlap {
    const Problem *q;
    Arena *tmp, *scratch; /* of all; of one try */
    int *order, *place;
    TimedOrder now, tried;
    double *until;    /* by place: when all that is started before it has ended */
    double *sec;      /* by node, of what computes */
    int *start;       /* by node: of a wait the node that it waits for; else -1 */
    Started *started; /* by node */
    bool *begins;     /* by node: some wait is for it */
    int *begun;       /* starts of the order that is tried, in the places that are timed anew */
    int nbegun;
    int *job; /* by node, of the clock */
    /* the order that is tried */
    int *made;     /* by place */
    int low, high; /* places in which it differs: from low on, before high */
    bool *in;      /* by node: it is of the set that moves */
    bool *mark;    /* by node: it must stay before the set, or behind it */
    int *noted;    /* the nodes that are in or marked */
    int nnoted;
    /* bytes */
    const int64_t *beside; /* by node id of the graph: bytes that count there too; NULL: none */
    int64_t cap, most; /* most: bytes alive, at any node; cap: but where more are from the first */
    int64_t *live;     /* by place: alive before it */
    double *above;     /* by place: bytes above the cap */
    double excess;     /* above the cap, of the order */
    int *left;         /* by storage: readers that have not run; -1: not counted */
    int *counted;      /* storages of which they are counted */
    int64_t lacking;   /* bytes that a try lacked at least, of those refused for bytes alone */
    /* what was of no use */
    int ntaken;
    int *changed;    /* by place: how many orders had been taken when it last changed */
    int first, last; /* places that were read since overlap_begin() */
    Vain *vain, *up; /* by start: of what fills its time; of going up between rounds */
    int round;
    bool near;    /* the nearest fill alone is tried */
    double rival; /* seconds that the step is to be below; 0: none */
    bool told;    /* half of the searches suffice */
} Overlap;

/* joined: q's flow with cats joined, whose copies take no time. */
Overlap *overlap_new(const Problem *q, const Flow *joined, const Machine *m, Arena *tmp);

/* Another with x's order, seconds and bytes. */
Overlap *overlap_like(const Overlap *x, Arena *tmp);
void overlap_copy(Overlap *to, const Overlap *from);

/* Fills the first order, its seconds and bytes. At most `more` bytes more than its peak may be
 * alive. */
void overlap_measure(Overlap *x, int64_t more);

const Node *overlap_node(const Overlap *x, int i);

/* Whether node i begins a collective that another node waits for. */
bool overlap_starts(const Overlap *x, int i);

/* Puts node i into a set, `in` or `mark`; both are empty after clear. */
void overlap_note(Overlap *x, int i, bool *set);
void overlap_clear(Overlap *x);

/* Makes of the order one in which the set `in` stands before what is at place `before`. */
void overlap_move_set(Overlap *x, int before);

/* Seconds less that the order that was made takes; -1: less than `least`, or more is above the cap.
 */
double overlap_gain(Overlap *x, double least);

/* Makes it the order: always; or if it gains so much. */
void overlap_take(Overlap *x);
bool overlap_try(Overlap *x, double least);

/* Begins a visit of a start: whether what was of no use in v still is. */
bool overlap_begin(Overlap *x, int start, Vain *v);
/* Notes that what is tried depends on a place. */
void overlap_see(Overlap *x, int place);
/* Ends it. */
void overlap_end(Overlap *x, Vain *v, bool moved);

#endif
