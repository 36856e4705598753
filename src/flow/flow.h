/* flow: where every value of a graph lies and how many bytes are alive at each step. It is the only
 * model of memory: lowering writes its decisions as steps; passes and the search for an order ask
 * it for peaks. Sections name the file that implements them. */
#ifndef TENON_FLOW_H
#define TENON_FLOW_H

#include "../machine/machine.h"

enum { FLOW_ALIGN = 64 }; /* sizes of storages are rounded up to it */

static inline int64_t flow_round(int64_t nbytes)
{
    return (nbytes + FLOW_ALIGN - 1) / FLOW_ALIGN * FLOW_ALIGN;
}

/* Where a tensor lies: in a root, with strides, and what an iteration of each enclosing loop adds.
 */
typedef struct Place {
    int root;  /* -1: none */
    bool part; /* where it begins may be another for each rank */
    Layout at;
    int64_t loop_stride[TN_MAX_DEPTH]; /* elements, outermost loop first */
} Place;

/* A root is memory that one item defines: a result that is no view, a copy, a sum, an input. */
typedef struct Root {
    int64_t nbytes; /* rounded up */
    int64_t room;   /* of what it lies over, or the same */
    Space space;
    int def;       /* the item that defines it */
    int outer;     /* the root of the graph around that it stands for (no bytes here), or -1 */
    int over;      /* of a result: the root in whose place it lies, an operand's, or -1; of a carry:
                      its first value's */
    int renews;    /* the root of the parameter or state whose new value this is, of the carry which
                      the next iteration reads so, or -1 */
    int if_over;   /* exists only if that root lies over what it renews; -1: always */
    bool input;    /* of the whole graph */
    bool part;     /* could be joined to a cat's result */
    bool joined;   /* of a cat's result: operands are joined to it */
    bool narrow;   /* may lie over an operand of more bytes */
    bool kept;     /* alive at the end of the graph */
    bool was_kept; /* before the last end was located anew */
    bool port;     /* of a body: an operand port's; counted: the loop's touches have it as read */
    bool counted, flipped; /* flipped: that may have changed, and it is in the body's list */
    int *use;              /* touches by other items than def, a heap: the latest first */
    int nuse, capuse;
    int latest; /* the touch that was made last */
} Root;

/* A value of the graph, or of a clone. */
typedef struct FlowValue {
    const Value *v;
    int item;
    Place at;
    int own;         /* its item's root for it, or -1: none was needed yet */
    int reader;      /* the first slot that reads it, or -1 */
    bool yielded;    /* it is an output */
    int64_t inplace; /* node_inplace of it, -1: not known yet */
    int sum; /* the result of the loop around to which it is added as soon as it exists, or -1 */
} FlowValue;

/* An operand of an item, or a value that it keeps alive. */
typedef struct Slot {
    int item, value, prev, next; /* prev, next: other slots of the value */
} Slot;

/* The first and last step of an item that touches a root; slots: operands that lie there. */
typedef struct Touch {
    int item, root, first, last, slots;
    int heap;   /* its place in root's `use`, -1: none */
    int second; /* of a loop: of slots those of ports of its second body */
    bool other; /* not only ports of a loop's bodies touch it */
} Touch;

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
    int if_over, unless_over; /* only if that root lies where it belongs, or does not; -1: always */
} Move;

/* Live bytes of a space over some items: the change, and the peak, both relative to what was alive
 * before. */
typedef struct Span {
    int64_t net, most;
} Span;

/* A node on the time line, a clone of one, or one of the two ends of the line. Its steps are the
 * moves `before`, its core (a call, or the bodies of a loop), and the moves `after`. */
typedef struct FlowItem {
    const Node *node; /* NULL: the ends */
    int slot, value;  /* the first of its operands, of its results */
    int touch, ntouch, captouch;
    Move *before, *after;
    int nbefore, ncore, nafter, capbefore, capafter;
    const Kernel *kernel; /* of a call; NULL: the reference */
    bool chosen;          /* the kernel is that for the operands' strides */
    int like;             /* the item that it is to run as (alike.c), or -1 */
    bool alike;           /* it does: its operands are copied to lie as those of that item */
    bool *copied;         /* by operand: it is read from a copy, by a move of `before` */
    int capcopied;
    int64_t work;         /* bytes of the call's workspace */
    struct Flow *body[2]; /* of a loop: in the order in which they run; [1] may be NULL */
    int *carry;           /* of a loop: by operand port, the root that is carried, or -1 */
    int *port_of; /* of a loop: by operand the first port that is of it, then by port the next one,
                     or -1; NULL: not asked yet */
    int *made, nmade, mostmade, capmade; /* roots of its moves, and last of a collective's
                                            workspace: in use; ever, to be reused */
    int *held, nheld, capheld; /* slots of values whose storage it keeps alive without reading */
    int *part, npart, cappart; /* of a cat: items that write joined operands */
    bool moved, rechoose;      /* it is to be located anew, or its kernel chosen too */
    bool gone, dirty, retouch; /* retouch: bodies may read other operands than they did */
    /* line.c */
    int prev, next;
    int64_t label;                       /* ascends along the line */
    int up, low, high;                   /* tree over the line */
    Span own[MAX_SPACE], all[MAX_SPACE]; /* of the item; of its subtree */
} FlowItem;

/* What an edit did, for undo. */
typedef enum {
    EDIT_CLONE,
    EDIT_MOVE,   /* a: the item that it stood before */
    EDIT_REMOVE, /* the same */
    EDIT_REWIRE, /* item: the slot; a: the value it read */
    EDIT_HOLD,   /* a: the slot */
    EDIT_FREE,   /* the same */
    EDIT_YIELD,  /* item: a value's id in the graph; a, b: the values that were and are it */
} EditKind;

typedef struct Edit {
    struct Flow *f;
    EditKind kind;
    int item, a, b;
} Edit;

typedef struct Edits {
    Edit *edit;
    int count, cap;
} Edits;

typedef struct Flow {
    Arena *a;
    Graph *g;
    const Device *device;
    const Machine *machine; /* which names kernels */
    int nspace;             /* of the device */
    struct Flow *outer;     /* of a body: the flow around it, and the loop there */
    int loop, depth;
    bool tail;
    FlowItem *item;
    int nitem, capitem;
    FlowValue *value;
    int nvalue, capvalue;
    Slot *slot;
    int nslot, capslot;
    Root *root;
    int nroot, caproot;
    Touch *touch;
    int ntouch, captouch;
    int *item_of;  /* by node id of the graph */
    int *value_of; /* by value id of the graph, of which there were nid */
    int nid;
    int first, last; /* the ends of the line */
    int top;         /* of the tree; -1: not made */
    int asked;       /* how often for sums along the line, without the tree */
    int64_t unread;  /* bytes of inputs that nothing reads: alive in the first step */
    int *renewed; /* by value id: the root of the input, or carry, whose new value it is, or -1 */
    int *owner;   /* by output: the root of the input that it must end in, or -1 */
    Place *port;  /* of a body, by result of the loop: where this iteration's part of it belongs; of
                     the whole graph, by output: where it lies before it moves to its owner */
    int *copy_of; /* by output: the root it moves to where its own lies over an input, or -1 */
    int *was_port; /* by output, twice: the roots of both before the end was located anew */
    int *dirty, ndirty, capdirty;
    int *moved, nmoved, capmoved;       /* items that are to be located anew */
    int *shifted, nshifted, capshifted; /* slots: operands of loops that have moved */
    int *flipped, nflipped, capflipped; /* of a body: roots of ports that are read now or no more */
    Edits *edits;                       /* shared with bodies */
    Tensor *tensor;                     /* scratch of calls */
    int captensor;
    int64_t *change; /* scratch of measure: by space, then step */
    int capchange;
} Flow;

/* ---- flow.c: from a graph ---- */

/* The flow of g in its present order on a device, bodies included; lives in a. m says which kernels
 * run; NULL: that by which the device is priced. Linear but for heaps. */
Flow *flow_new(Graph *g, const Device *d, const Machine *m, Arena *a);

/* The largest sum of live bytes in SPACE_MAIN, inputs and outputs included. */
int64_t flow_peak(Flow *f);
int flow_peak_item(Flow *f); /* the first item that reaches it; an end of the line if no other */
int64_t flow_space_peak(Flow *f, Space s); /* the same of a space; 0 where the device has it not */

int64_t flow_most(Flow *f, int from, int to); /* flow_peak() while items from ... to run */

/* The root in which output i of the whole graph ends. */
int flow_output(const Flow *f, int i);

/* Takes over the order of the graph's list, in which nodes have only moved. */
void flow_reorder(Flow *f);

/* ---- cat.c ---- */

/* Joins operands of cats to their results where that raises no peak. The flow cannot be edited
 * afterwards. */
void flow_join(Flow *f);
void flow_mark_parts(Flow *f); /* marks the roots that it could join in some order of nodes */

/* ---- alike.c ---- */

/* Lets copies of nodes read operands that lie as the originals' do, and run by their kernels. The
 * flow cannot be edited afterwards. */
void flow_alike(Flow *f);

/* ---- narrow.c ---- */

/* Puts results over wider operands where that lowers a peak. Neither can the flow be edited
 * afterwards. */
void flow_narrow(Flow *f);
/* Whether it could put the item's result there: over its operand 0. */
bool item_may_narrow(Flow *f, int item);

/* ---- edit.c ---- */

/* Each costs O(k log n) for k roots and items whose place or live range changes. */

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

/* Locates a value's defining item and readers anew, after it has moved from `old`. */
void place_changed(Flow *f, int value, const Place *old);

void item_relocate(Flow *f,
                   int item); /* chooses its kernel anew, and where all lies that follows */

int flow_mark(const Flow *f);
void flow_undo(Flow *f, int mark); /* takes back all edits since */

/* ---- locate.c: places, kernels, copies: what does not depend on the order ---- */

Place place_whole(int root, const Type *t);       /* all of a root, row-major */
bool place_direct(const Type *t, const Place *x); /* row-major from the root's start */
bool place_contiguous(const Type *t, const Place *x);
bool place_equal(const Place *x, const Place *y);
bool place_same(const Type *t, const Place *x, const Place *y);
Tensor tensor_at(const Type *t, const Place *x);
int root_new(Flow *f, int def, int64_t nbytes); /* in SPACE_MAIN */
/* Adds a move before the item's core or after it, and the touches of what it reads and writes. */
void move_add(Flow *f, int item, bool after, Move m);
void move_touch(Flow *f, int item, int step, const Move *m);
/* All of a new root for a move of the item. An item that is located anew reuses its roots in order,
 * so that undo restores them. */
Place place_made(Flow *f, int item, const Type *t);
Place place_own(Flow *f, int item, FlowValue *y); /* the root of a result, and all of it */
/* Adds a copy of `v` from `in` to such a root; returns its place. */
Place move_copy(Flow *f, int item, const Value *v, Place in);
void choose_as(Flow *f, int item, int other); /* the kernel of another, from the same operands */
/* How a call's kernel sees operand i: as it lies, or a copy of it. */
Tensor item_operand(const Flow *f, const FlowItem *x, int i);
bool tensors_alike(const Tensor *s, const Tensor *t); /* of one shape: of equal strides */
/* What a wait waits for, an asynchronous copy or a collective; NULL: another item, or nothing. */
const FlowItem *item_started(const Flow *f, const FlowItem *x);
/* Where the item, which reads no copies of its own, reads operand i: a wait what was sent. */
const Place *item_reads(const Flow *f, const FlowItem *x, int i);
void item_locate(Flow *f, int item); /* fills places, moves, kernel and touches of a node's item */

/* ---- loop.c: bodies ---- */

void locate_loop(Flow *f, int item);
/* Updates the loop's touches after its bodies began or ceased to read operands. */
void loop_retouch(Flow *f, int item);
int port_outer(Flow *body, int j); /* the root around that its root for port j stands for, or -1 */
/* The first port of operand i, the next of the same operand; -1: none. */
int loop_port(Flow *f, int item, int i);
int loop_next_port(const Flow *f, int item, int j);
/* Updates the loop's touches after body c's root for an operand port has come to stand for another
 * root than `old`. False: all of the loop is to be located anew. */
bool loop_shift(Flow *f, int item, int c, int root, int old);
/* Moves a body's value of operand port j to where the operand lies now. Returns it if it moved
 * (from `old`), else -1. */
int body_follow(Flow *f, int j, Place *old);
void set_targets(Flow *f, int id); /* where a value that the body yields goes */
void locate_body_start(Flow *f);   /* where the body's inputs lie and its results go */
void locate_body_end(Flow *f);     /* the moves at the end of an iteration */
void add_sums(Flow *f, int item);  /* results that are added to sums as soon as they exist */

/* ---- flow.c: from a graph ---- */

Flow *flow_body(Flow *outer, int item, bool tail);
int item_new(Flow *f, const Node *n);
void slot_link(Flow *f, int slot, bool linked); /* to the readers of its value, or from them */
void end_locate(Flow *f); /* fills places, moves and touches of the last end */

/* ---- life.c: touches, what lies over what, bytes ---- */

void touch_add(Flow *f, int item, int root, int step, int slots);
/* The same of a port of body c, which reads the root; and, of an item whose touches are in the
 * heaps, one port more or less. False: the root is touched otherwise too, and it cannot be told
 * how. */
void touch_port(Flow *f, int item, int root, int c);
bool touch_more(Flow *f, int item, int root, int c);
bool touch_less(Flow *f, int item, int root, int c);
void touch_held(Flow *f, int item);    /* touches of what the item keeps alive */
void touches_enter(Flow *f, int item); /* into the heaps of roots; out of them */
void touches_leave(Flow *f, int item);
int root_first(const Flow *f, int root); /* the item that touches it first: its own, or a part's */
int root_last(const Flow *f, int root);  /* the item that touches it last */
unsigned flow_inplace(Flow *f, int item, int k); /* node_inplace of the item's result k */
int64_t root_bytes(const Flow *f, const Root *r);
/* Whether result k of an item, in a root of its own, may lie over operand i, provided that the item
 * reads that operand's root only there and is the last to touch it. */
bool item_may_lie_over(const Flow *f, int item, int k, int i);
/* Whether result k could, were it of the operand's type. */
bool item_may_take(const Flow *f, int item, int k, int i);
/* Whether the item is the last to touch the root, and reads it by one operand. */
bool item_reads_last(const Flow *f, int item, int root);
/* The same of a loop's operand port j: whether the carry may lie over its first value. */
bool carry_may_lie_over(const Flow *f, int item, int j);
/* Bytes that the item needs in a space, in a step, besides roots: workspace, or its body's peak. */
int64_t item_core_bytes(const FlowItem *x, Space s, int step);
static inline int item_steps(const FlowItem *x)
{
    return x->nbefore + x->ncore + x->nafter;
}
/* Bytes of workspace that only its call needs: a collective's is one of `made`, until the wait. */
static inline int64_t item_work(const FlowItem *x)
{
    return x->node && op_starts(x->node->op) ? 0 : flow_round(x->work);
}
bool move_is(const Flow *f, const Move *m); /* whether its condition holds */
/* Fills own, and what its results lie over; returns whether own is another now. */
bool item_measure(Flow *f, int item);
void item_mark(Flow *f, int item); /* to be measured */
void flow_settle(Flow *f);         /* measures what is marked */

/* ---- line.c: the order of items, and sums along it ---- */

void line_insert(Flow *f, int item, int before);
void line_remove(Flow *f, int item);
void line_build(Flow *f);            /* the tree */
void line_update(Flow *f, int item); /* after a change of its span, or below it in the tree */
int line_peak(const Flow *f);        /* the first item that reaches the largest sum, by the tree */
void line_relabel(Flow *f);          /* evenly, along the list */
static inline bool line_before(const Flow *f, int x, int y)
{
    return f->item[x].label < f->item[y].label;
}

#endif
