/* inside: the structs of a flow, and the functions that its files share. Only files of src/flow,
 * and tests that compare flows, include it. Sections name the file that implements them. */
#ifndef TENON_FLOW_INSIDE_H
#define TENON_FLOW_INSIDE_H

#include "layout.h"
#include "steps.h"

/* A list of numbers: of items, slots or buffers. */
typedef struct NumberList {
    int *at, count, cap;
} NumberList;

static inline void numbers_add(Arena *a, NumberList *x, int i)
{
    PUSH(a, x->at, x->count, x->cap, i);
}

/* A buffer is memory that one item defines: a result that is no view, a copy, a sum, an input. */
typedef struct Buffer {
    int64_t nbytes; /* rounded up */
    int64_t room;   /* of what it lies over, or the same */
    Space space;
    int def;     /* the item that defines it */
    int outer;   /* the buffer of the graph around that it stands for (no bytes here), or -1 */
    int over;    /* of a result: the buffer in whose place it lies, an operand's, or -1; of a carry:
                    its first value's */
    int renews;  /* the buffer of the parameter or state whose new value this is, of the carry which
                    the next iteration reads so, or -1 */
    int if_over; /* exists only if that buffer lies over what it renews; -1: always */
    bool input;  /* of the whole graph */
    bool part;   /* could be joined to a cat's result */
    bool joined; /* of a cat's result: operands are joined to it */
    bool over_wider; /* may lie over an operand of more bytes */
    bool kept;       /* alive at the end of the graph */
    bool was_kept;   /* before the last end was located anew */
    bool port;       /* of a body: an operand port's; counted: the loop's touches have it as read */
    bool counted, flipped; /* flipped: that may have changed, and it is in the body's list */
    int *use;              /* touches by other items than def, a heap: the latest first */
    int nuse, capuse;
    int latest; /* the touch that was made last */
} Buffer;

/* A value of the graph, or of a clone. */
typedef struct FlowValue {
    const Value *v;
    int item;
    Place at;
    int own;         /* its item's buffer for it, or -1: none was needed yet */
    int reader;      /* the first slot that reads it, or -1 */
    bool yielded;    /* it is an output */
    int64_t inplace; /* node_inplace of it, -1: not known yet */
    int sum; /* the result of the loop around to which it is added as soon as it exists, or -1 */
} FlowValue;

/* An operand of an item, or a value that it keeps alive. */
typedef struct Slot {
    int item, value, prev, next; /* prev, next: other slots of the value */
} Slot;

/* The first and last step of an item that touches a buffer; slots: operands that lie there. */
typedef struct Touch {
    int item, buffer, first, last, slots;
    int heap;   /* its place in buffer's `use`, -1: none */
    int second; /* of a loop: of slots those of ports of its second body */
    bool other; /* not only ports of a loop's bodies touch it */
} Touch;

typedef struct Moves {
    Move *at;
    int count, cap;
} Moves;

/* How the call of an item runs. */
typedef struct ItemCall {
    const Kernel *kernel; /* NULL: the reference */
    bool chosen;          /* the kernel is that for the operands' strides */
    int like;             /* the item that it is to run as (alike.c), or -1 */
    bool alike;           /* it does: its operands are copied to lie as those of that item */
    bool *copied;         /* by operand: it is read from a copy, by a move of `before` */
    int capcopied;
    int64_t work; /* bytes of workspace */
} ItemCall;

/* A loop, as the graph around sees it. */
typedef struct ItemLoop {
    struct Flow *body[2]; /* in the order in which they run; [1] may be NULL */
    int *carry;           /* by operand port, the buffer that is carried, or -1 */
    int *port_of; /* by operand the first port that is of it, then by port the next one, or -1;
                     NULL: not asked yet */
} ItemLoop;

/* Buffers of an item's moves, and last of a collective's workspace: `count` of them in use, `most`
 * made so far, to be reused. */
typedef struct ItemMade {
    int *buffer, count, most, cap;
} ItemMade;

/* A node on the time line, a clone of one, or one of the two ends of the line. Its steps are the
 * moves `before`, its core (a call, or the bodies of a loop), and the moves `after`. */
typedef struct FlowItem {
    const Node *node; /* NULL: the ends */
    int slot, value;  /* the first of its operands, of its results */
    int touch, ntouch, captouch;
    Moves before, after;
    int ncore;
    ItemCall call;
    ItemLoop loop;
    ItemMade made;
    NumberList pinned;         /* slots of values whose storage it keeps alive without reading */
    NumberList part;           /* of a cat: items that write joined operands */
    bool moved, rechoose;      /* it is to be located anew, or its kernel chosen too */
    bool gone, dirty, retouch; /* retouch: bodies may read other operands than they did */
} FlowItem;

/* Live bytes of a space over some items: the change, and the peak, both relative to what was alive
 * before. */
typedef struct Span {
    int64_t net, most;
} Span;

/* An item's place on the time line, and in a tree over it. */
typedef struct LineItem {
    int prev, next;
    int64_t label;                       /* ascends along the line */
    int up, low, high;                   /* in the tree */
    Span own[MAX_SPACE], all[MAX_SPACE]; /* of the item; of its subtree */
} LineItem;

typedef struct FlowLine {
    LineItem *at; /* by item */
    int cap;
    int nspace;
    int first, last; /* the ends */
    int top;         /* of the tree; -1: not made */
    int asked;       /* how often for sums along the line, without the tree */
} FlowLine;

/* An edit, as undo needs it. */
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

/* Values that the ends of the line define and copy. */
typedef struct FlowEnds {
    int *renewed; /* by value id: the buffer of the input, or carry, whose new value it is, or -1 */
    int *owner;   /* by output: the buffer of the input that it must end in, or -1 */
    Place *port;  /* of a body, by result of the loop: where this iteration's part of it belongs; of
                     the whole graph, by output: where it lies before it moves to its owner */
    int *copy_of; /* by output: the buffer it moves to where its own lies over an input, or -1 */
    int *was_port;  /* by output, twice: the buffers of both before the end was located anew */
    int64_t unread; /* bytes of inputs that nothing reads: alive in the first step */
} FlowEnds;

/* Work that edits have left. */
typedef struct FlowPending {
    NumberList dirty;   /* items to be measured */
    NumberList moved;   /* items to be located anew */
    NumberList shifted; /* slots: operands of loops that have moved */
    NumberList flipped; /* of a body: buffers of ports that are read now or no more */
} FlowPending;

/* Room for a call's tensors, and for the changes of bytes that measuring adds up, by space, then
 * step. */
typedef struct FlowScratch {
    Tensor *tensor;
    int captensor;
    int64_t *change;
    int capchange;
} FlowScratch;

typedef struct FlowCounts {
    int item, value, slot, buffer, touch;
} FlowCounts;

struct Flow {
    Arena *a;
    Graph *g;
    const Device *device;
    const Machine *machine; /* which names kernels */
    int nspace;             /* of the device */
    struct Flow *outer;     /* of a body: the flow around it, and the loop there */
    int loop, depth;
    bool tail;
    FlowItem *item;
    FlowValue *value;
    Slot *slot;
    Buffer *buffer;
    Touch *touch;
    FlowCounts count, cap; /* of these five */
    int *item_of;          /* by node id of the graph */
    int *value_of;         /* by value id of the graph, of which there were nid */
    int nid;
    FlowLine line;
    FlowEnds end;
    FlowPending pending;
    FlowScratch scratch;
    Edits *edits; /* shared with bodies */
};

static inline const FlowValue *operand_value(const Flow *f, const FlowItem *x, int i)
{
    return &f->value[f->slot[x->slot + i].value];
}

/* ---- edit.c ---- */

/* Locates a value's defining item and readers anew, after it has moved from `old`. */
void place_changed(Flow *f, int value, const Place *old);

void item_relocate(Flow *f,
                   int item); /* chooses its kernel anew, and where all lies that follows */

/* ---- locate.c: places, kernels, copies: what does not depend on the order ---- */

Place place_whole(int buffer, const Type *t);     /* all of a buffer, row-major */
bool place_direct(const Type *t, const Place *x); /* row-major from the buffer's start */
bool place_equal(const Place *x, const Place *y);
bool place_same(const Type *t, const Place *x, const Place *y);
int buffer_new(Flow *f, int def, int64_t nbytes); /* in SPACE_MAIN */
/* Adds a move before the item's core or after it, and the touches of what it reads and writes. */
void move_add(Flow *f, int item, bool after, Move m);
void move_touch(Flow *f, int item, int step, const Move *m);
/* All of a new buffer for a move of the item. An item that is located anew reuses its buffers in
 * order, so that undo restores them. */
Place place_made(Flow *f, int item, const Type *t);
Place place_own(Flow *f, int item, FlowValue *y); /* the buffer of a result, and all of it */
/* Adds a copy of `v` from `in` to such a buffer; returns its place. */
Place move_copy(Flow *f, int item, const Value *v, Place in);
void choose_as(Flow *f, int item, int other); /* the kernel of another, from the same operands */
/* How a call's kernel sees operand i: as it lies, or a copy of it. */
Tensor operand_tensor(const Flow *f, const FlowItem *x, int i);
bool tensors_alike(const Tensor *s, const Tensor *t); /* of one shape: of equal strides */
/* The asynchronous copy or collective that a wait waits for; NULL: x is no such wait. */
const FlowItem *item_started(const Flow *f, const FlowItem *x);
/* The place where an item that has not copied operand i reads it; a wait reads it where it was sent
 * from. */
const Place *item_reads(const Flow *f, const FlowItem *x, int i);
void item_locate(Flow *f, int item); /* fills places, moves, kernel and touches of a node's item */

/* ---- loop_memory.c: bodies ---- */

void locate_loop(Flow *f, int item);
/* Updates the loop's touches after its bodies began or ceased to read operands. */
void loop_retouch(Flow *f, int item);
int port_outer(Flow *body,
               int j); /* the buffer around that its buffer for port j stands for, or -1 */
/* The first port of operand i, the next of the same operand; -1: none. */
int loop_port(Flow *f, int item, int i);
int loop_next_port(const Flow *f, int item, int j);
/* Updates the loop's touches after body c's buffer for an operand port has come to stand for
 * another buffer than `old`. False: all of the loop is to be located anew. */
bool loop_shift(Flow *f, int item, int c, int buffer, int old);
/* Moves a body's value of operand port j to where the operand lies now. Returns it if it moved
 * (from `old`), else -1. */
int body_follow(Flow *f, int j, Place *old);
void set_targets(Flow *f, int id); /* where a value that the body yields goes */
void locate_body_start(Flow *f);   /* where the body's inputs lie and its results go */
void locate_body_end(Flow *f);     /* the moves at the end of an iteration */
void add_sums(Flow *f, int item);  /* results that are added to sums as soon as they exist */

/* ---- flow.c: from a graph ---- */

Flow *body_new(Flow *outer, int item, bool tail);
int item_new(Flow *f, const Node *n);
void slot_link(Flow *f, int slot, bool linked); /* to the readers of its value, or from them */
void end_locate(Flow *f); /* fills places, moves and touches of the last end */

/* ---- life.c: touches, what lies over what, bytes ---- */

void touch_add(Flow *f, int item, int buffer, int step, int slots);
/* The same of a port of body c, which reads the buffer; and, of an item whose touches are in the
 * heaps, one port more or less. False: the buffer is touched otherwise too, and it cannot be told
 * how. */
void touch_port(Flow *f, int item, int buffer, int c);
bool touch_more(Flow *f, int item, int buffer, int c);
bool touch_less(Flow *f, int item, int buffer, int c);
void touch_pinned(Flow *f, int item);  /* touches of what the item keeps alive */
void touches_enter(Flow *f, int item); /* into the heaps of buffers; out of them */
void touches_leave(Flow *f, int item);
int buffer_first(const Flow *f,
                 int buffer); /* the item that touches it first: its own, or a part's */
int buffer_last(const Flow *f, int buffer);      /* the item that touches it last */
unsigned flow_inplace(Flow *f, int item, int k); /* node_inplace of the item's result k */
int64_t buffer_bytes(const Flow *f, const Buffer *r);
/* Whether result k of an item, in a buffer of its own, may lie over operand i, provided that the
 * item reads that operand's buffer only there and is the last to touch it. */
bool item_may_lie_over(const Flow *f, int item, int k, int i);
/* Whether result k could, were it of the operand's type. */
bool item_may_take(const Flow *f, int item, int k, int i);
/* Whether the item is the last to touch the buffer, and reads it by one operand. */
bool item_reads_last(const Flow *f, int item, int buffer);
/* The same of a loop's operand port j: whether the carry may lie over its first value. */
bool carry_may_lie_over(const Flow *f, int item, int j);
/* Bytes that the item needs in a space, in a step, besides buffers: workspace, or its body's peak.
 */
int64_t item_core_bytes(const FlowItem *x, Space s, int step);
static inline int item_steps(const FlowItem *x)
{
    return x->before.count + x->ncore + x->after.count;
}
/* Bytes of workspace that only its call needs: a collective's is one of `made`, until the wait. */
static inline int64_t item_work(const FlowItem *x)
{
    return x->node && op_starts(x->node->op) ? 0 : flow_round(x->call.work);
}
/* Fills own, and what its results lie over; returns whether own is another now. */
bool item_measure(Flow *f, int item);
void item_mark(Flow *f, int item); /* to be measured */
void flow_settle(Flow *f);         /* measures what is marked */

/* ---- over_wider.c ---- */

/* Whether the item's result could be put over its operand 0, which is wider. */
bool item_may_lie_over_wider(Flow *f, int item);

/* ---- line.c: the order of items, and sums along it ---- */

void line_add(FlowLine *l, Arena *a, int item); /* room for an item, which is not on the line yet */
void line_insert(FlowLine *l, int item, int before);
void line_remove(FlowLine *l, int item);
void line_build(FlowLine *l);            /* the tree */
void line_update(FlowLine *l, int item); /* after a change of its span, or below it in the tree */
int line_peak(const FlowLine *l); /* the first item that reaches the largest sum, by the tree */
int64_t line_most(const FlowLine *l, int from,
                  int to);      /* the largest sum from ... to, by the tree */
void line_relabel(FlowLine *l); /* evenly, along the list */
static inline bool line_before(const FlowLine *l, int x, int y)
{
    return l->at[x].label < l->at[y].label;
}

#endif
