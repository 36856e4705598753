/* Inside the lowering: what lower.c (nodes, inputs, outputs) and lower_loop.c (loops) share. */
#ifndef TENON_LOWER_H
#define TENON_LOWER_H

#include "plan.h"

typedef struct Loc {
    int storage; /* -1: none yet */
    Layout at;
    int64_t turn[TN_MAX_DEPTH]; /* elements */
} Loc;

/* One graph or body while it is being lowered. */
typedef struct Frame {
    Graph *g;
    Loc *loc;          /* by value id */
    Loc *target;       /* by value id: where its value should be written; storage -1: anywhere */
    int *uses;         /* by value id */
    const Value **sum; /* by value id: the result of the loop that it is a term of, or NULL */
    int *acc;          /* by value id: that result's storage */
    int loop, depth;
} Frame;

typedef struct Lower {
    Plan *p;
    Arena *a;
    bool prepare;
    int *pending; /* by storage: uses that are still to come */
    int cappending;
    const Value **new_of; /* by value id of the top graph: the input whose storage it takes */
} Lower;

int new_storage(Lower *l, const Frame *f, const char *name, const char *scope, Category c,
                int64_t nbytes);
Step *new_step(Lower *l, StepKind kind, const Node *n); /* valid until the next one is made */
Category category_of(const Node *n);                    /* of what a node makes */
Frame new_frame(Lower *l, Graph *g, int loop, int depth);

Loc whole(int storage, const Type *t); /* all of a storage, row-major */
bool contiguous(const Type *t, const Loc *x);
Arg arg_of(const Type *t, const Loc *x);
void bind(Lower *l, Frame *f, const Value *v, Loc x);   /* v lies at x; its uses are to come */
void consume(Lower *l, const Frame *f, const Value *v); /* one of them has been */

/* Calls that are not in the graph. `from` is the node they serve, or NULL. */
void emit_copy_to(Lower *l, const Frame *f, const Node *from, const Type *t, Loc in, Loc out);
Loc copied(Lower *l, const Frame *f, const Node *from, const char *name, const Type *t, Loc in);
/* Adds the value v to the sum that lies at `sum`, and consumes v. */
void add_to_sum(Lower *l, Frame *f, const Node *n, const Value *v, const Type *acc, Loc sum);

void lower_graph(Lower *l, Frame *f); /* every node of the frame's graph */
void lower_loop(Lower *l, Frame *f, const Node *n);

#endif
