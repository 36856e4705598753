/* order: which node runs when, for a low peak. Sections name the file that implements them. */
#ifndef TENON_ORDER_H
#define TENON_ORDER_H

#include "../flow/flow.h"

/* ---- order.c: candidates, choice ---- */

/* Reorders g's nodes and its regions' bodies within what they depend on, so that score(g, arg), the
 * planned peak (the flow's or more), is least: construction order on a tie, never a worse one. A
 * node that makes the new value of a parameter or state runs after the other readers of the old
 * one; where that cannot be, the order stays. score may be NULL: then the peak of the flow decides.
 * Returns how many nodes of g have another place than before. */
int order_graph(Graph *g, const Device *d, const Machine *m, Arena *tmp,
                int64_t (*score)(Graph *g, void *arg), void *arg);

/* ---- order_problem.c: what an order is chosen for ---- */

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

/* The part of a flow that depends on the order of its nodes. Nodes are numbered by their place in
 * the graph's list; storages are roots that nodes define, and inputs that die at their last reader.
 */
typedef struct Problem {
    const Flow *flow;
    int n, nstorage;
    int *item;         /* of a node: its item in the flow */
    Lists pred, succ;  /* nodes that run before, after; may repeat */
    Lists dep, depend; /* the same without the readers of old values: what holds in any order */
    Lists use, user;   /* storages that a node touches; nodes that touch a storage */
    Lists make;        /* storages that a node makes */
    Lists reuse;       /* indices into reuses, of a storage that may lie over another; by operand */
    Reuse *reuses;
    int *used;         /* by entry of use: the last step of the node that touches it */
    int *first, *last; /* by entry of make: the steps of the node from, to which it does */
    int64_t *nbytes;   /* of a storage */
    int *def;          /* of a storage: a node, -1: it is an input */
    bool *kept;        /* of a storage: it is there at the end */
    bool *aside;       /* of a node: it touches another space, too */
    int *finish;       /* of a reduction over ranks: the node that waits for it; else -1 */
    int *begin;        /* of that node: the reduction; else -1 */
    bool *part;        /* of a storage: it could be made inside of a cat's result */
    int *over;         /* of a storage: the old value in whose place it lies, or -1 */
    int64_t base;      /* alive throughout */
    int64_t inputs;    /* those that die */
    int64_t ends;      /* the peak before the first node and after the last */
    bool cyclic;       /* no order lets every new value take its place without a copy */
    int64_t *change;   /* scratch of problem_effect */
} Problem;

/* Bodies count with the peak of their present order. */
Problem *problem_new(Flow *f, Arena *tmp);

/* What running a node adds to the live sum: `need` while it runs, `net` after it. */
typedef struct Effect {
    int64_t need, net;
} Effect;

/* The effect of node i. left[s] - own is the number of nodes after it that touch storage s. */
Effect problem_effect(const Problem *q, const int *left, int own, int i);

/* The same of node i, a reduction, and the node that waits for it, one right behind the other. */
Effect problem_pair_effect(const Problem *q, int *left, int i);

int64_t problem_peak(const Problem *q, Arena *tmp, const int *order);

/* ---- order_search.c: an order within a limit ---- */

/* Fills out with an order of the least peak that is found between `least`, a bound, and `most`
 * (INT64_MAX: any), from the start or with `late` from the end, preferring the order of base;
 * false: none is found. */
bool order_search(const Problem *q, Arena *tmp, const int *base, bool late, int64_t least,
                  int64_t most, int *out);

/* Fills out with base, changed so that every node runs as late as it can. */
void order_late(const Problem *q, Arena *tmp, const int *base, int *out);

/* Fills out with base in depth-first order: each node follows the nodes that only it waits for, so
 * values are close to their readers, and a weight's update to its gradient. */
void order_depth_first(const Problem *q, Arena *tmp, const int *base, int *out);

/* ---- order_pull.c: reductions behind what they reduce ---- */

/* Fills out with order, in which reductions over ranks that leave no more alive than before, and
 * what waits for them, run as soon as they can without a higher peak; false: they do already. */
bool order_pull(const Problem *q, Arena *tmp, const int *order, int *out);

/* ---- order_bound.c: a lower bound for every order ---- */

/* A bound on the peak of any order of the graph and its bodies. */
int64_t order_bound(Flow *f, Arena *tmp);

/* The same for the nodes of q, where bodies stay as they are; order is the best known. */
int64_t problem_bound(const Problem *q, Arena *tmp, const int *order);

#endif
