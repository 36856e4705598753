/* steps: the decisions of a flow, as lowering writes them down. Implemented in locate.c and ask.c.
 */
#ifndef TENON_FLOW_STEPS_H
#define TENON_FLOW_STEPS_H

#include "flow.h"

/* The place of a tensor: a buffer, strides, and what an iteration of each enclosing loop adds. */
typedef struct Place {
    int buffer; /* -1: none */
    bool part;  /* where it begins may be another for each rank */
    Layout at;
    int64_t loop_stride[TN_MAX_DEPTH]; /* elements, outermost loop first */
} Place;

bool place_contiguous(const Type *t, const Place *x);
Tensor tensor_at(const Type *t, const Place *x);

typedef enum {
    FLOW_COPY,   /* of `in` to `out` */
    FLOW_CAST,   /* the same, to the dtype of a sum */
    FLOW_ADD,    /* `in` to the sum at `out` */
    FLOW_ZERO,   /* `out` */
    FLOW_OFFSET, /* the iteration times `by` to `out` */
} MoveKind;

/* A step that is not in the graph. */
typedef struct Move {
    MoveKind kind;
    const Value *v;        /* what is moved; NULL: none */
    const Type *type, *to; /* of in, of out */
    Place in, out;
    int64_t by;
    int if_over,
        unless_over; /* only if that buffer lies where it belongs, or does not; -1: always */
} Move;

/* Buffers go by numbers below flow_nbuffer. A buffer is memory that one item defines. */
int flow_nbuffer(const Flow *f);
int buffer_outer(const Flow *f, int buffer); /* the buffer of the graph around that it is, or -1 */
int buffer_over(const Flow *f, int buffer);  /* the buffer in whose place it lies, or -1 */
Space buffer_space(const Flow *f, int buffer);
int64_t buffer_nbytes(const Flow *f, int buffer);

/* A body's loop (NULL: no body), its depth (the whole graph has 0), and whether it is the last,
 * shorter part. */
const Node *flow_loop(const Flow *f);
int flow_depth(const Flow *f);
bool flow_tail(const Flow *f);

int flow_output(const Flow *f, int i); /* the buffer in which output i of the whole graph ends */

const Place *value_place(const Flow *f, int value);
/* Steps of an item: moves before its core, the core (a call, or one step for each body of a loop),
 * moves after it. */
const Move *item_moves(const Flow *f, int item, bool after, int *count);
bool move_is(const Flow *f, const Move *m); /* whether its condition holds */
int item_ncore(const Flow *f, int item);
const Kernel *item_kernel(const Flow *f, int item); /* NULL: the reference */
/* Fills where its call reads each operand: as it lies, or the copy that a move has made. */
void item_read_places(const Flow *f, int item, const Place **at);
/* Bytes of the call's workspace; *node: whose it is, *buffer: where it lies, -1: lowering makes it.
 * A wait has the workspace of the collective that it waits for. */
int64_t item_workspace(const Flow *f, int item, const Node **node, int *buffer);
/* The value for which the memory of result k is named: the result, or what it is a part of. */
const Value *item_names(const Flow *f, int item, int k);
int item_carry(const Flow *f, int item,
               int j); /* of a loop: the buffer of operand port j's carry */
/* The buffers that a loop's body number c touches, *count of them. */
int *item_touched(const Flow *f, int item, int c, Arena *a, int *count);

#endif
