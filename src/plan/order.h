/* order: which node runs when, for a low peak. Sections name the file that implements them. */
#ifndef TENON_ORDER_H
#define TENON_ORDER_H

#include "../op/op.h"

#define Flow      OrderFlow /* until order works on src/flow */
#define flow_new  order_flow_new
#define flow_peak order_flow_peak

/* ---- order.c: candidates, choice ---- */

/* Reorders g's nodes and its regions' bodies within what they depend on, so that score(g, arg), the
 * planned peak, is least: construction order on a tie, never a worse one. A node that makes the new
 * value of a parameter or state runs after the other readers of the old one; where that cannot be,
 * the order stays. score may be NULL: then the estimate below decides. Returns how many nodes of g
 * have another place than before. */
int order_graph(Graph *g, Arena *tmp, int64_t (*score)(Graph *g, void *arg), void *arg);

/* ---- flow.c: what the candidates are made from ---- */

/* Lists of numbers by row: row r is item[at[r]] .. item[at[r + 1] - 1]. */
typedef struct Rows {
    int *at, *item;
} Rows;

#define EACH_ITEM(k, rows, r) for (int k = (rows).at[r]; k < (rows).at[(r) + 1]; k++)

/* What a node may write in place: storage `to` over storage `from`, if that dies there. */
typedef struct Reuse {
    int to, from;
} Reuse;

/* Nodes by their place in g's list; a storage holds a value and all views of it. */
typedef struct Flow {
    int n, nstorage;
    Node **node;
    Rows pred, succ; /* nodes that run before, after; may repeat */
    Rows use, user;  /* storages that a node reads; nodes that read a storage */
    Rows make;       /* storages that a node makes */
    Rows reuse;      /* indices into reuses, of a node */
    Reuse *reuses;
    int64_t *nbytes; /* of a storage, rounded up as the planner does */
    bool *kept; /* storages that outlive the graph: its inputs (counted as 0 bytes) and outputs */
    int64_t *work; /* of a node: what its bodies need while it runs */
    bool cyclic;   /* no order lets every new value take its place without a copy */
    int *left;     /* scratch of flow_peak */
} Flow;

/* The flow of g. Bodies count with the estimated peak of their own list. */
Flow *flow_new(const Graph *g, Arena *tmp);

int64_t flow_estimate(const Graph *g, Arena *tmp); /* the peak of g's list as it stands */

/* The largest live sum of an order, and where and at how many places it is reached. */
typedef struct Peak {
    int64_t nbytes;
    int at, count;
} Peak;

Peak flow_peak(const Flow *f, const int *order);

/* ---- schedule.c: one order from another ---- */

typedef enum {
    RUN_STABLE, /* nodes as they stand, where what they wait for has run */
    RUN_EAGER,  /* nodes that free as much as they make at once, others as they stand */
    RUN_LEAST,  /* of the ready nodes the one that adds least */
} Rule;

/* Fills out by list scheduling from the start, or with `late` from the end. Ties go by base. */
void flow_schedule(const Flow *f, Arena *tmp, const int *base, Rule rule, bool late, int *out);

/* Fills out depth first from the nodes that no other waits for, taken as they stand in base. */
void flow_depth_first(const Flow *f, Arena *tmp, const int *base, int *out);

/* Moves groups of nodes across the peak of order as long as that lowers it. */
void flow_repair(const Flow *f, Arena *tmp, int *order);

#endif
