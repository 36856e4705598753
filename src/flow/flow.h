/* flow: where every value of a graph lies and how many bytes are alive when. The one model of
 * memory: lowering writes its decisions down as steps, passes and orders ask it for peaks. Sections
 * name the file that implements them. */
#ifndef TENON_FLOW_H
#define TENON_FLOW_H

#include "../op/op.h"

enum { FLOW_ALIGN = 64 }; /* sizes of storages are rounded up to it */

static inline int64_t flow_round(int64_t nbytes)
{
    return (nbytes + FLOW_ALIGN - 1) / FLOW_ALIGN * FLOW_ALIGN;
}

/* Where a tensor lies: in a root, with strides, and what an iteration of each enclosing loop adds.
 */
typedef struct Place {
    int root; /* -1: none */
    Layout at;
    int64_t loop_stride[TN_MAX_DEPTH]; /* elements, outermost loop first */
} Place;

/* A root is memory made by one item: a result that is no view, a copy, a sum, an input. */
typedef struct Root {
    int64_t nbytes; /* rounded up */
    int64_t room;   /* of what it lies over, or the same */
    int maker;      /* item */
    int outer;      /* the root of the graph around that it is, or -1: it takes no bytes here */
    int over;       /* of a result: the root in whose place it lies, an operand's, or -1 */
    int renews;     /* the root of the parameter or state whose new value this is, or -1 */
    int if_over;    /* it is there only if that root lies over what it renews; -1: always */
    bool input;     /* of the whole graph */
    bool part;      /* it could be made inside of a cat */
    bool joined;    /* of a cat: operands are made inside of it */
    bool kept;      /* to the end and beyond */
    bool was_kept;  /* before the last end was located anew */
    int *use;       /* touches by other items than the maker, a heap: the latest first */
    int nuse, capuse;
    int latest; /* the touch that was made last */
} Root;

/* A value of the graph, or of a clone. */
typedef struct FlowValue {
    const Value *v;
    int item;
    Place at;
    int own;         /* the root that its item makes for it, or -1: it has not needed one */
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
    int heap; /* its place in root's `use`, -1: none */
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
    int if_over, unless_over; /* only if that root lies over an input, or does not; -1: always */
} Move;

/* Live bytes over some items: what they change, and the most above what was alive before. */
typedef struct Span {
    int64_t net, most;
} Span;

/* A node on the time line, a clone of one, or one of the two ends of the line. Its steps are
 * `before`, then its core (a call, or the bodies of a loop), then `after`. */
typedef struct FlowItem {
    const Node *node; /* NULL: the ends */
    int slot, value;  /* the first of its operands, of its results */
    int touch, ntouch, captouch;
    Move *before, *after;
    int nbefore, ncore, nafter, capbefore, capafter;
    const Kernel *kernel; /* of a call; NULL: the reference */
    bool chosen;          /* the kernel is that for the operands' strides */
    bool *copied;         /* by operand: it is read from a copy, by a move of `before` */
    int capcopied;
    int64_t work;         /* bytes of the call's workspace */
    struct Flow *body[2]; /* of a loop: in the order in which they run; [1] may be NULL */
    int *carry;           /* of a loop: by operand port, the root that is carried, or -1 */
    int *made, nmade, mostmade, capmade; /* roots of its moves: now; ever, to be taken again */
    int *held, nheld, capheld; /* slots of values whose storage it keeps alive without reading */
    int *part, npart, cappart; /* of a cat: items that make operands inside its result */
    bool moved, rechoose;      /* it is to be located anew, or its kernel chosen too */
    bool gone, dirty, retouch; /* retouch: bodies read other operands than they did */
    /* line.c */
    int prev, next;
    int64_t label;     /* ascends along the line */
    int up, low, high; /* tree over the line */
    Span own, all;     /* of the item; of its subtree */
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
    struct Flow *outer; /* of a body: the flow around it, and the loop there */
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
    int64_t unread;  /* bytes of inputs that nothing reads: alive in the first step */
    int *renewed;    /* by value id: the root of the input whose new value it is, or -1 */
    int *owner;      /* by output: the root of the input to which it belongs at last, or -1 */
    Place *port;  /* of a body, by result of the loop: where this iteration's part of it belongs; of
                     the whole graph, by output: where it lies before it moves to its owner */
    int *copy_of; /* by output: the root it moves to where its own lies over an input, or -1 */
    int *was_port; /* by output, twice: the roots of both before the end was located anew */
    int *dirty, ndirty, capdirty;
    int *moved, nmoved, capmoved; /* items that are to be located anew */
    Edits *edits;                 /* shared with bodies */
    Tensor *tensor;               /* scratch of calls */
    int captensor;
    int64_t *change; /* scratch of measure */
    int capchange;
} Flow;

/* ---- flow.c: from a graph ---- */

/* The flow of g as it is ordered, bodies included; lives in a. Linear but for heaps. */
Flow *flow_new(Graph *g, Arena *a);

/* The largest sum of live bytes, everything of the graph included. */
int64_t flow_peak(Flow *f);
int flow_peak_item(Flow *f); /* where it is reached first; an end of the line: nowhere else */

int64_t flow_most(Flow *f, int from, int to); /* the most while these items and all between run */

/* The root in which output i of the whole graph is found at last. */
int flow_output(const Flow *f, int i);

/* Sets the order of the line to that of the graph's list, whose nodes have only moved. */
void flow_reorder(Flow *f);

/* ---- cat.c ---- */

/* Has operands of cats made inside their results where no peak rises by it. The last thing that is
 * done to a flow: it is edited no more. */
void flow_join(Flow *f);
void flow_mark_parts(Flow *f); /* the roots that it could put there, in some order */

/* ---- edit.c ---- */

/* Each costs O(k log n), k the storages and items whose place or life changes. */

/* A second making of what `item` is, before `before`, from the same operands; returns it. */
int flow_clone(Flow *f, int item, int before);
int flow_insert(Flow *f, const Node *n, int before); /* a node that the graph has got since */
/* Who reads `old`, as an output too, reads `now`, which has the same type and is no output. */
void flow_replace(Flow *f, int old, int now);
void flow_move(Flow *f, int item, int before);
void flow_remove(Flow *f, int item); /* nothing reads its results */
/* Operand number i of `item` is `value`, which has the same type. */
void flow_rewire(Flow *f, int item, int i, int value);
/* The storage of `value` stays until `item` as if that read it; flow_free takes that back. */
void flow_hold(Flow *f, int item, int value);
void flow_free(Flow *f, int item, int value);

/* After the value has been put elsewhere than at `old`: its maker and readers are located anew. */
void place_changed(Flow *f, int value, const Place *old);

int flow_mark(const Flow *f);
void flow_undo(Flow *f, int mark); /* takes back all edits since */

/* ---- locate.c: places, kernels, copies: what does not depend on the order ---- */

Place place_whole(int root, const Type *t);       /* all of a root, row-major */
bool place_direct(const Type *t, const Place *x); /* row-major from the root's start */
bool place_contiguous(const Type *t, const Place *x);
bool place_equal(const Place *x, const Place *y);
bool place_same(const Type *t, const Place *x, const Place *y);
Tensor tensor_at(const Type *t, const Place *x);
int root_new(Flow *f, int maker, int64_t nbytes);
/* Adds a move before the item's core or after it, and the touches of what it reads and writes. */
void move_add(Flow *f, int item, bool after, Move m);
void move_touch(Flow *f, int item, int step, const Move *m);
/* A root of the item's moves, and all of it. Located anew, an item has the same ones in order, so
 * that undo finds again what it left. */
Place place_made(Flow *f, int item, const Type *t);
Place place_own(Flow *f, int item, FlowValue *y); /* the root of a result, and all of it */
/* A move of `v` from `in` to such a root; returns that. */
Place move_copy(Flow *f, int item, const Value *v, Place in);
void choose_as(Flow *f, int item, int other); /* the kernel of another, from the same operands */
void item_locate(Flow *f, int item); /* fills places, moves, kernel and touches of a node's item */

/* ---- loop.c: bodies ---- */

void locate_loop(Flow *f, int item);
/* After its bodies have come to read an operand, or ceased to. */
void loop_touch(Flow *f, int item);
/* Puts a body's value of operand port j where that lies now; returns it where this is elsewhere
 * than it was, at `old`, else -1. */
int body_follow(Flow *f, int j, Place *old);
void set_targets(Flow *f, int id); /* what becomes of a value of the graph that the body yields */
void locate_body_start(Flow *f);   /* what a body sees, and where its results belong */
void locate_body_end(Flow *f);     /* what an iteration does at last */
void add_sums(Flow *f, int item);  /* results that are added to sums as soon as they exist */

/* ---- flow.c: from a graph ---- */

Flow *flow_body(Flow *outer, int item, bool tail);
int item_new(Flow *f, const Node *n);
void slot_link(Flow *f, int slot, bool linked); /* to the readers of its value, or from them */
void end_locate(Flow *f); /* fills places, moves and touches of the last end */

/* ---- life.c: touches, what lies over what, bytes ---- */

void touch_add(Flow *f, int item, int root, int step, int slots);
void touch_held(Flow *f, int item);    /* touches of what the item keeps alive */
void touches_enter(Flow *f, int item); /* into the heaps of roots, and out of them */
void touches_leave(Flow *f, int item);
int root_first(const Flow *f,
               int root);               /* the item that touches it first: its maker, or a part's */
int root_last(const Flow *f, int root); /* the item that touches it last */
unsigned flow_inplace(Flow *f, int item, int k); /* node_inplace of the item's result k */
int64_t root_bytes(const Flow *f, const Root *r);
/* Whether result k of an item, in a root of its own, may lie over operand i if the item reads that
 * root by this operand only and is the last to touch it. */
bool item_may_lie_over(const Flow *f, int item, int k, int i);
/* What the item needs in a step besides roots: workspace, or its body's peak. */
int64_t item_core_bytes(const FlowItem *x, int step);
bool move_is(const Flow *f, const Move *m); /* whether its condition holds */
void item_measure(Flow *f, int item);       /* fills own, and what its results lie over */
void item_mark(Flow *f, int item);          /* to be measured */
void flow_settle(Flow *f);                  /* measures what is marked */

/* ---- line.c: the order of items, and sums along it ---- */

void line_insert(Flow *f, int item, int before);
void line_remove(Flow *f, int item);
void line_build(Flow *f);            /* the tree */
void line_update(Flow *f, int item); /* after a change of its span */
int line_peak(const Flow *f);        /* by the tree: where the largest sum is reached first */
void line_relabel(Flow *f);          /* evenly, along the list */
static inline bool line_before(const Flow *f, int x, int y)
{
    return f->item[x].label < f->item[y].label;
}

#endif
