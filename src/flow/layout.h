/* layout: the strides that values will have, for passes that must keep bits and for places. They
 * follow from types and views alone. Implemented in layout.c. */
#ifndef TENON_FLOW_LAYOUT_H
#define TENON_FLOW_LAYOUT_H

#include "../op/op.h"

Layout layout_row_major(const Type *t);

/* Fills where view n's result k lies in its operand. False: strides cannot express that, and *to is
 * where it lies in a row-major copy of the operand. */
bool layout_view(const Node *n, int k, const Layout *from, Layout *to);

/* From where a stack lies to where its first entry does. */
void layout_unstack(Layout *x);

/* The state of a pass in one graph or body. */
typedef struct Layouts {
    Arena *tmp;
    Layout *at; /* by value id, of inputs and of what was added */
    int cap, nread;
    bool *read; /* by value id, of the values at the start: an op reads its strides */
} Layouts;

Layouts layout_start(const Graph *g, Arena *tmp);
Layouts layout_start_body(Layouts *outer, const Node *n, bool tail, Arena *tmp);
void layout_add(Layouts *x, const Node *n); /* n's results, its operands' being known */
/* Whether `now`, of one type with `old`, may be read in its place. */
bool layout_keeps(Layouts *x, const Value *old, const Value *now);

#endif
