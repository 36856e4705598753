/* problem: what an order of nodes is chosen for. Implemented in problem.c. */
#ifndef TENON_FLOW_PROBLEM_H
#define TENON_FLOW_PROBLEM_H

#include "flow.h"

/* Lists of numbers in one array: list r is item[at[r]] .. item[at[r + 1] - 1]. */
typedef struct Lists {
    int *at, *item;
} Lists;

#define EACH_ITEM(k, lists, r) for (int k = (lists).at[r]; k < (lists).at[(r) + 1]; k++)

/* A node's result `to` may lie over its operand number `slot`, `from`, if that dies there; slot -1:
 * a loop's carry over its first value. */
typedef struct Reuse {
    int to, from, slot;
} Reuse;

/* Storages: buffers that nodes define, and inputs that die at their last reader. */
typedef struct OrderStorages {
    int count;
    int64_t *nbytes;
    int *def;   /* a node, -1: it is an input */
    bool *kept; /* it is there at the end */
    bool *part; /* it could be made inside of a cat's result */
    int *over;  /* the old value in whose place it lies, or -1 */
} OrderStorages;

/* The part of a flow that depends on the order of its nodes. Nodes are numbered by their place in
 * the graph's list. */
typedef struct Problem {
    Flow *flow;
    int n;
    int *item;   /* of a node: its item in the flow */
    bool *aside; /* of a node: it touches another space, too */
    int *finish; /* of a reduction over ranks: the node that waits for it; else -1 */
    int *begin;  /* of that node: the reduction; else -1 */
    OrderStorages storage;
    Lists pred, succ;  /* nodes that run before, after; may repeat */
    Lists dep, depend; /* the same without the readers of old values: what holds in any order */
    Lists use, user;   /* storages that a node touches; nodes that touch a storage */
    Lists make;        /* storages that a node makes */
    Lists reuse;       /* indices into reuses, of a storage that may lie over another; by operand */
    Reuse *reuses;
    int *used;         /* by entry of use: the last step of the node that touches it */
    int *first, *last; /* by entry of make: the steps of the node from, to which it does */
    int64_t base;      /* alive throughout */
    int64_t inputs;    /* those that die */
    int64_t ends;      /* the peak before the first node and after the last */
    bool cyclic;       /* no order lets every new value take its place without a copy */
    int64_t *change;   /* scratch of problem_effect */
} Problem;

/* join_cat.c: marks, for problem_new, what could be joined to a cat's result in some order of
 * nodes. */
void flow_mark_parts(Flow *f);

/* Bodies count with the peak of their present order. */
Problem *problem_new(Flow *f, Arena *tmp);

/* The bytes that running a node adds to the live sum: `need` while it runs, `net` after it. */
typedef struct Effect {
    int64_t need, net;
} Effect;

/* The effect of node i. left[s] - own is the number of nodes after it that touch storage s. */
Effect problem_effect(const Problem *q, const int *left, int own, int i);

/* The same of node i, a reduction, and the node that waits for it, one right after the other. */
Effect problem_pair_effect(const Problem *q, int *left, int i);

int64_t problem_peak(const Problem *q, Arena *tmp, const int *order);

/* The steps of node i, and the bytes that it needs in one of them besides storages: workspace, or
 * its body's peak. */
int problem_steps(const Problem *q, int i);
int64_t problem_core_bytes(const Problem *q, int i, int step);
/* The number of the body that node i runs in a step, or -1. */
int problem_body(const Problem *q, int i, int step);

#endif
