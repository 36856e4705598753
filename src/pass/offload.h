/* offload: shared by offload.c and offload_pins.c. */
#ifndef TENON_OFFLOAD_H
#define TENON_OFFLOAD_H

#include "pass.h"

/* Whether n computes something, in a call that no body of `fused` takes in. */
bool offload_stands_alone(const Node *n);

/* How a value is read: itself and, of one that is no view, what views it. */
typedef struct Reads {
    Value *base;
    int first; /* place of its first reader in the backward, after `last`; none: the graph's end */
    /* of bases: */
    int last;         /* place of the last other node that needs it */
    bool later;       /* the backward reads it */
    bool output;      /* of the graph or body */
    Value *host;      /* itself in the host's memory, by an earlier pass */
    const char *kept; /* why it must stay, or NULL */
} Reads;

/* A graph before any copy is made. */
typedef struct OffloadSource {
    Graph *g;
    int count, nnode, nvalue;
    Node **at;   /* by place in the graph's order */
    int *place;  /* by node id */
    Reads *read; /* by value id */
    /* by place: */
    bool *later;        /* the node reads what the host may have had */
    int *above, *below; /* the nearest node that stands alone: itself, or before it (-1: none) and
                           after it (count: none) */
} OffloadSource;

typedef enum { COPY_NODE, HOST_NODE, LOAD_NODE, BACK_NODE, NPART } TransferPart;

/* A value that is moved. Places are those before which a node stands. */
typedef struct Transfer {
    Value *x;
    int copied, turn;          /* place of copy; its number among the copies */
    int least, freed;          /* of host: the first possible, and where the copy is done */
    int needed;                /* of back, and of load before it is moved */
    int begun, loaded;         /* of load: where its copy begins in time, and where it stands */
    Node *node[NPART];         /* copy, host: NULL by an earlier compilation */
    bool deferred, prefetched; /* host, load were moved */
} Transfer;

typedef struct Transfers {
    OffloadSource s;
    double times; /* that the graph runs */
    Transfer *list;
    int count, cap;
} Transfers;

/* Keeps what was moved away from its first place, and copies in their order, by order edges. */
void offload_pin(const Transfers *t, Arena *tmp);

#endif
