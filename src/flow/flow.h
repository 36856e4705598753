/* flow: where every value of a graph lies and how many bytes are alive at each step. It is the only
 * model of memory: lowering writes its decisions as steps; passes and the search for an order ask
 * it for peaks. Its structs stay inside (inside.h); lowering also reads steps.h, the search for an
 * order problem.h. Sections name the file that implements them. */
#ifndef TENON_FLOW_H
#define TENON_FLOW_H

#include "../machine/machine.h"

enum { FLOW_ALIGN = 64 }; /* sizes of storages are rounded up to it */

static inline int64_t flow_round(int64_t nbytes)
{
    return (nbytes + FLOW_ALIGN - 1) / FLOW_ALIGN * FLOW_ALIGN;
}

/* The flow of a graph, or of a loop's body. Items (nodes, clones of nodes, and the two ends of the
 * time line) and values go by numbers, which edits do not change. */
typedef struct Flow Flow;

/* ---- flow.c: from a graph, and peaks ---- */

/* The flow of g in its present order on a device, bodies included; lives in a. m says which kernels
 * run. Linear but for heaps. */
Flow *flow_new(Graph *g, const Device *d, const Machine *m, Arena *a);

/* Takes over the order of the graph's list, in which nodes have only moved. */
void flow_reorder(Flow *f);

/* The largest sum of live bytes in SPACE_MAIN, inputs and outputs included. */
int64_t flow_peak(Flow *f);
int flow_peak_item(Flow *f); /* the first item that reaches it; an end of the line if no other */
int64_t flow_space_peak(Flow *f, Space s); /* the same of a space; 0 where the device has it not */

int64_t flow_most(Flow *f, int from, int to); /* flow_peak() while items from ... to run */

/* ---- ask.c: the line, its items and their values ---- */

Graph *flow_graph(const Flow *f);
const Device *flow_device(const Flow *f);

int flow_first(const Flow *f); /* the ends of the line */
int flow_last(const Flow *f);
int flow_next(const Flow *f, int item); /* along the line; -1 after its ends */
int flow_prev(const Flow *f, int item);
bool flow_before(const Flow *f, int x, int y); /* whether item x stands before y */

int flow_nitem(const Flow *f); /* new items and values get the next numbers */
int flow_nvalue(const Flow *f);

int flow_item(const Flow *f, const Node *n);      /* of a node of the graph */
const Node *item_node(const Flow *f, int item);   /* NULL: an end of the line */
bool item_gone(const Flow *f, int item);          /* removed from the line */
Flow *item_body(const Flow *f, int item, int c);  /* of a loop, that which runs as c-th, or NULL */
int item_operand(const Flow *f, int item, int i); /* values */
int item_result(const Flow *f, int item, int k);
int64_t item_made_bytes(const Flow *f, int item); /* of the memory of its results */

int flow_value(const Flow *f, const Value *v); /* of a value of the graph */
const Value *value_in_graph(const Flow *f, int value);
int value_item(const Flow *f, int value);       /* which defines it */
bool values_share(const Flow *f, int x, int y); /* whether both lie in the same memory */
/* The item that touches the value's memory last; the end where it is alive then. */
int value_last(const Flow *f, int value);
/* The first item after `at` that touches the memory of the item's results; -1: none, or `at`
 * touches it too, or it is alive at the end. */
int item_next_touch(const Flow *f, int item, int at);
/* Fills alive[], by value id of the graph, with the bytes of values that are alive at the item,
 * each in memory of its own; of others it fills 0. */
void flow_alive(const Flow *f, int item, int64_t *alive);

/* An operand that reads a value, and the next one; -1: none. */
int value_use(const Flow *f, int value);
int use_next(const Flow *f, int use);
int use_item(const Flow *f, int use);
int use_operand(const Flow *f, int use); /* its index among the item's operands */

/* ---- edit.c ---- */

/* Each costs O(k log n) for k buffers and items whose place or live range changes. */

/* A clone of `item` before `before`, with the same operands; returns it. */
int flow_clone(Flow *f, int item, int before);
int flow_insert(Flow *f, const Node *n, int before); /* a node that was added to the graph */
/* Readers of `old`, outputs included, read `now`, which has the same type and is no output. */
void flow_replace(Flow *f, int old, int now);
void flow_move(Flow *f, int item, int before);
void flow_remove(Flow *f, int item); /* nothing reads its results */
/* Operand number i of `item` becomes `value`, which has the same type. */
void flow_rewire(Flow *f, int item, int i, int value);
/* Keeps the storage of `value` alive until `item`, as if that read it; flow_free undoes it. */
void flow_hold(Flow *f, int item, int value);
void flow_free(Flow *f, int item, int value);

int flow_mark(const Flow *f);
void flow_undo(Flow *f, int mark); /* takes back all edits since */

/* ---- what a plan does to the finished flow, in this order: no edit may follow ---- */

/* check_spaces.c: refuses a graph whose values do not lie where the device's kernels and copies
 * need them.
 */
void flow_check_spaces(const Flow *f);
/* alike.c: lets copies of nodes read operands that lie as the originals' do, and run by their
 * kernels. */
void flow_alike(Flow *f);
/* The node of g that n names as its origin; NULL: none, or it is gone. */
Node *node_origin(const Graph *g, const Node *n);
/* join_cat.c: joins operands of cats to their results where that raises no peak. */
void flow_join(Flow *f);
/* over_wider.c: puts results over wider operands where that lowers a peak. */
void flow_lay_over_wider(Flow *f);

#endif
