/* offload: shared by offload.c, offload_state.c and offload_pins.c. */
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
    int *above, *below; /* one more than places: the nearest node that stands alone: itself, or
                           before it (-1: none) and after it (count: none) */
} OffloadSource;

typedef enum { COPY_NODE, HOST_NODE, LOAD_NODE, BACK_NODE, NPART } TransferPart;

/* A value that is moved; of a state (offload_state.c) its old value, which is only loaded, or its
 * new one, which is only copied out. Places are those before which a node stands. */
typedef struct Transfer {
    Value *x;
    const char *scope; /* of its copies */
    Phase phase;       /* of those that are not for the backward */
    bool state;
    Value *old;        /* of a new value the old one, in whose place it goes; NULL: it is none */
    int copied, turn;  /* place of copy; its number among the copies */
    int least, freed;  /* of host: the first possible, and where the copy is done */
    int needed;        /* of back, and of load before it is moved */
    int begun, loaded; /* of load: where its copy begins in time, and where it stands */
    Node *node[NPART]; /* copy, host: NULL by an earlier compilation */
    bool deferred, prefetched; /* host, load were moved */
} Transfer;

typedef struct Transfers {
    OffloadSource s;
    double times; /* that the graph runs */
    Transfer *list;
    int count, cap;
} Transfers;

/* Whether a rule moves the optimizer's state. */
bool offload_wants_state(const PassOptions *o);
/* Marks the states that go to the host's memory; returns how many were not there. Fails where there
 * is no state, or no such memory. */
int offload_take_states(Graph *g, Arena *tmp, const PassOptions *o);
/* Moves updates to where they cost the least memory. */
void offload_order_updates(Graph *g, Arena *tmp, const PassOptions *o);
/* Adds a decision to a list, which may be NULL. */
void offload_tell(Decisions *list, Decision d);
/* Adds the transfers of states, and tells them; makes nodes and outputs read what was moved. */
void offload_list_states(Transfers *t, Arena *tmp, const PassOptions *o);
void offload_redirect_states(const Transfers *t, Arena *tmp);

/* Keeps what was moved away from its first place, and copies in their order, by order edges. */
void offload_pin(const Transfers *t, Arena *tmp);

#endif
