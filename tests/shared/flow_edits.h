/* flow_edits: random edits of a flow, the graph that an edited flow describes, and how two flows
 * differ. What test_flow.c and bench/flow.c share. */
#ifndef TENON_TEST_FLOW_EDITS_H
#define TENON_TEST_FLOW_EDITS_H

#include "../../src/flow/inside.h"
#include "gen.h"

/* The graph that f describes: its items in the order of the line, bodies as they are now. */
Graph *edited_graph(Arena *a, const Flow *f);

/* Puts what f's items keep alive, bodies included, on `to`, the flow of f's graph. */
void flow_put_holds(const Flow *f, Flow *to);

/* Where two flows whose items correspond, in order, differ in bytes; or NULL. */
const char *flow_differ(Arena *a, Flow *x, Flow *y);

/* What may not change by an edit that is undone: order, spans, last readers, bodies. */
const char *flow_state(Arena *a, Flow *f);

/* What does not hold of the line: labels ascend, sums of the tree are those of the list; or NULL.
 */
const char *flow_line_fault(Arena *a, Flow *f);

typedef enum {
    TRY_CLONE,
    TRY_MOVE,
    TRY_REMOVE,
    TRY_REWIRE,
    TRY_REPLACE,
    TRY_HOLD,
    TRY_KINDS
} TryKind;

/* An edit that may be made. Choosing changes nothing. */
typedef struct Try {
    TryKind kind;
    Flow *f;
    int item, before, slot, value; /* before, of REPLACE: the value that goes */
    bool free;                     /* of HOLD: take one back */
} Try;

typedef struct Chooser {
    Rng *r;
    double inside; /* the chance that an edit is made in a body of a loop */
} Chooser;

/* Chooses an edit of that kind in f or a body; false: found none. */
bool try_choose(const Chooser *c, Flow *f, TryKind kind, Try *t);
void try_make(const Try *t);

#endif
