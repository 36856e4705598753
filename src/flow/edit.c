/* Edits of a flow, and their undo. An edit changes the flow only, not the graph: a caller that
 * keeps it makes the nodes. Before an item moves or is located anew its touches leave the heaps of
 * the buffers, and they enter again after; a buffer whose last item changes marks two items to be
 * measured. When the operand of a view moves, the readers of the view are located anew too. An edit
 * in a body marks the loops around it. When an operand of a loop moves, its ports alone follow, in
 * the bodies and among the loop's touches, unless it is carried. An edit is undone by its opposite,
 * the latest first. Cost: O(k log n) for k buffers and items whose place or life changes. */
#include "inside.h"

#include <string.h>

static void log_edit(Flow *f, EditKind kind, int item, int a, int b)
{
    Edit e = {f, kind, item, a, b};
    PUSH(f->a, f->edits->edit, f->edits->count, f->edits->cap, e);
    if (f->line.top < 0)
        line_build(&f->line);
    for (; f->outer; f = f->outer)
        item_mark(f->outer, f->loop);
}

static void link_operands(Flow *f, int item, bool linked)
{
    const FlowItem *x = &f->item[item];
    for (int i = 0; i < x->node->nin; i++)
        slot_link(f, x->slot + i, linked);
    for (int k = 0; k < x->pinned.count; k++)
        slot_link(f, x->pinned.at[k], linked);
}

/* An item is to be located anew; choose: and its kernel chosen, for other strides. */
static void item_moved(Flow *f, int item, bool choose)
{
    FlowItem *x = &f->item[item];
    x->rechoose |= choose;
    if (!x->moved)
        numbers_add(f->a, &f->pending.moved, item);
    x->moved = true;
}

static bool same_strides(const Place *x, const Place *y)
{
    return !memcmp(x->at.stride, y->at.stride, sizeof x->at.stride);
}

/* Whether the slot is an operand, not a value that is kept alive. */
static bool reads(const Flow *f, int slot)
{
    const FlowItem *x = &f->item[f->slot[slot].item];
    return x->node && slot >= x->slot && slot < x->slot + x->node->nin;
}

/* The slot's item reads it elsewhere now, perhaps with other strides. If the item is a loop, only
 * that operand's ports follow. */
static void slot_moved(Flow *f, int slot, bool choose)
{
    const FlowItem *x = &f->item[f->slot[slot].item];
    if (x->node && x->node->op->region == LOOP && reads(f, slot))
        numbers_add(f->a, &f->pending.shifted, slot);
    else
        item_moved(f, f->slot[slot].item, choose && reads(f, slot));
}

/* After a value has moved from `old`, with the same strides or others. */
static void relocate_readers(Flow *f, int value, const Place *old)
{
    const FlowValue *y = &f->value[value];
    bool choose = !same_strides(&y->at, old);
    for (int s = y->reader; s >= 0; s = f->slot[s].next)
        slot_moved(f, s, choose);
    if (y->yielded)
        item_moved(f, f->line.last, false);
}

static void relocate_moved(Flow *f);

/* Nodes of a loop's bodies whose operand has moved outside. */
static void relocate_bodies(const FlowItem *x)
{
    for (int c = 0; c < 2 && x->loop.body[c]; c++) {
        for (int j = 0; j < x->node->region->nin; j++) {
            Place old;
            int value = body_follow(x->loop.body[c], j, &old);
            if (value >= 0)
                relocate_readers(x->loop.body[c], value, &old);
        }
        relocate_moved(x->loop.body[c]);
    }
}

/* Has port j of the loop's bodies follow the operand. False: all of the loop is to be located anew.
 */
static bool shift_port(Flow *f, int item, int j)
{
    FlowItem *x = &f->item[item];
    bool good = x->node->region->in[j].kind != PORT_CARRY;
    for (int c = 0; c < 2 && x->loop.body[c] && good; c++) {
        Place old;
        int was = port_outer(x->loop.body[c], j), value = body_follow(x->loop.body[c], j, &old);
        if (value >= 0)
            relocate_readers(x->loop.body[c], value, &old);
        if (was >= 0)
            good = loop_shift(f, item, c, old.buffer, was);
    }
    return good;
}

/* Operands of loops that have moved. */
static void relocate_operand(Flow *f, int slot)
{
    int item = f->slot[slot].item;
    FlowItem *x = &f->item[item];
    for (int j = loop_port(f, item, slot - x->slot); j >= 0; j = loop_next_port(f, item, j))
        if (!shift_port(f, item, j)) {
            item_moved(f, item, false);
            return;
        }
    for (int c = 0; c < 2 && x->loop.body[c]; c++)
        relocate_moved(x->loop.body[c]);
    item_mark(f, item);
}

/* Finds anew where an item's values lie. */
static void relocate_item(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    const Node *n = x->node;
    Place old = n && node_aliases(n) ? f->value[x->value].at : (Place){0};
    x->call.chosen &= !x->rechoose;
    x->moved = x->rechoose = false;
    touches_leave(f, item);
    if (n)
        item_locate(f, item);
    else
        end_locate(f);
    touches_enter(f, item);
    if (n && n->op->region == LOOP)
        relocate_bodies(x);
    if (n && op_starts(n->op)) /* a wait touches what it has made */
        for (int k = 0; k < n->nout; k++)
            relocate_readers(f, x->value + k, &f->value[x->value + k].at);
    if (!n || !node_aliases(n) || place_equal(&f->value[x->value].at, &old))
        return;
    for (int k = 0; k < n->nout; k++) /* if one result of a view moves, all do */
        relocate_readers(f, x->value + k, &old);
}

static void relocate_moved(Flow *f)
{
    while (f->pending.moved.count || f->pending.shifted.count) {
        if (f->pending.shifted.count)
            relocate_operand(f, f->pending.shifted.at[--f->pending.shifted.count]);
        else
            relocate_item(f, f->pending.moved.at[--f->pending.moved.count]);
    }
}

static void relocate(Flow *f, int item, bool choose)
{
    item_moved(f, item, choose);
    relocate_moved(f);
}

void place_changed(Flow *f, int value, const Place *old)
{
    relocate(f, f->value[value].item, true);
    relocate_readers(f, value, old);
    relocate_moved(f);
}

void item_relocate(Flow *f, int item)
{
    relocate(f, item, true);
}

/* ---- one edit each, without a log ---- */

static void move(Flow *f, int item, int before)
{
    touches_leave(f, item);
    line_remove(&f->line, item);
    line_insert(&f->line, item, before);
    touches_enter(f, item);
}

static void take(Flow *f, int item)
{
    link_operands(f, item, false);
    touches_leave(f, item);
    line_remove(&f->line, item);
    f->item[item].gone = true;
}

static void put_back(Flow *f, int item, int before)
{
    f->item[item].gone = false;
    link_operands(f, item, true);
    line_insert(&f->line, item, before);
    touches_enter(f, item);
}

static void rewire(Flow *f, int slot, int value)
{
    bool choose = !same_strides(&f->value[value].at, &f->value[f->slot[slot].value].at);
    slot_link(f, slot, false);
    f->slot[slot].value = value;
    slot_link(f, slot, true);
    slot_moved(f, slot, choose);
    relocate_moved(f);
}

static void hold(Flow *f, int item, int slot)
{
    FlowItem *x = &f->item[item];
    numbers_add(f->a, &x->pinned, slot);
    slot_link(f, slot, true);
    relocate(f, item, false);
}

static void let_go(Flow *f, int item, int slot)
{
    FlowItem *x = &f->item[item];
    int k = x->pinned.count - 1;
    while (k >= 0 && x->pinned.at[k] != slot)
        k--;
    CHECK(k >= 0);
    slot_link(f, slot, false);
    x->pinned.at[k] = x->pinned.at[--x->pinned.count];
    relocate(f, item, false);
}

static int *grown(Arena *a, const int *of, int old, int now)
{
    int *new = NEWN(a, int, now);
    memset(new, 0xff, sizeof *new *(size_t)now);
    return memcpy(new, of, sizeof *new *(size_t)old);
}

/* Room for the values of nodes that the graph did not have when the flow was made. */
static void grow_ids(Flow *f)
{
    if (f->g->nvalue <= f->nid)
        return;
    int old = f->nid;
    f->nid = 2 * f->g->nvalue;
    f->value_of = grown(f->a, f->value_of, old, f->nid);
    if (f->end.renewed)
        f->end.renewed = grown(f->a, f->end.renewed, old, f->nid);
}

/* After a value may have come to lie elsewhere than at `old`. */
static void relocate_value(Flow *f, int value, Place old)
{
    relocate(f, f->value[value].item, false);
    if (!place_equal(&f->value[value].at, &old))
        relocate_readers(f, value, &old);
    relocate_moved(f);
}

static void set_renews(Flow *f, int buffer, int input)
{
    if (buffer < 0)
        return;
    f->buffer[buffer].renews = input;
    item_mark(f, buffer_last(f, buffer));
}

/* The output `id` of the graph is now `to` instead of `from`, and has that one's place in a loop's
 * result, or its right to the place of an input. */
static void yield_by(Flow *f, int id, int from, int to)
{
    FlowValue *x = &f->value[from], *y = &f->value[to];
    Place was_x = x->at, was_y = y->at;
    f->value_of[id] = to;
    x->yielded = false;
    y->yielded = true;
    if (f->outer) {
        x->at.buffer = y->at.buffer = x->sum = y->sum = -1;
        set_targets(f, id);
    }
    if (f->end.renewed[id] >= 0) {
        set_renews(f, x->own, -1);
        set_renews(f, y->own, f->end.renewed[id]);
    }
    /* In the order of the line: the later one's node may read the earlier one. */
    bool later = line_before(&f->line, y->item, x->item);
    relocate_value(f, later ? to : from, later ? was_y : was_x);
    relocate_value(f, later ? from : to, later ? was_x : was_y);
    relocate(f, f->line.last, false);
}

/* Forgets a clone, the latest of what is left. */
static void drop(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    if (item < f->count.item - 1)
        return;
    while (f->count.buffer && f->buffer[f->count.buffer - 1].def == item)
        f->count.buffer--;
    if (f->count.slot == x->slot + x->node->nin)
        f->count.slot = x->slot;
    f->count.value = x->value;
    f->count.item--;
}

/* ---- edits ---- */

/* A new item, whose operands are set, takes its place. */
static int join_line(Flow *f, int item, int before)
{
    log_edit(f, EDIT_CLONE, item, 0, 0);
    link_operands(f, item, true);
    line_insert(&f->line, item, before);
    item_locate(f, item);
    touches_enter(f, item);
    return item;
}

int flow_clone(Flow *f, int from, int before)
{
    int item = item_new(f, f->item[from].node);
    for (int i = 0; i < f->item[item].node->nin; i++)
        f->slot[f->item[item].slot + i].value = f->slot[f->item[from].slot + i].value;
    choose_as(f, item, from);
    return join_line(f, item, before);
}

int flow_insert(Flow *f, const Node *n, int before)
{
    grow_ids(f);
    int item = item_new(f, n);
    for (int i = 0; i < n->nin; i++)
        f->slot[f->item[item].slot + i].value = f->value_of[n->in[i]->id];
    for (int k = 0; k < n->nout; k++)
        f->value_of[n->out[k]->id] = f->item[item].value + k;
    return join_line(f, item, before);
}

void flow_replace(Flow *f, int old, int now)
{
    for (int s = f->value[old].reader, next; s >= 0; s = next) {
        next = f->slot[s].next;
        flow_rewire(f, f->slot[s].item, s - f->item[f->slot[s].item].slot, now);
    }
    for (int i = 0; i < f->g->nout; i++)
        if (f->value[old].yielded && f->value_of[f->g->out[i].v->id] == old) {
            log_edit(f, EDIT_YIELD, f->g->out[i].v->id, old, now);
            yield_by(f, f->g->out[i].v->id, old, now);
        }
}

void flow_move(Flow *f, int item, int before)
{
    log_edit(f, EDIT_MOVE, item, f->line.at[item].next, 0);
    if (before != item)
        move(f, item, before);
}

void flow_remove(Flow *f, int item)
{
    for (int k = 0; k < f->item[item].node->nout; k++)
        CHECK(f->value[f->item[item].value + k].reader < 0);
    log_edit(f, EDIT_REMOVE, item, f->line.at[item].next, 0);
    take(f, item);
}

void flow_rewire(Flow *f, int item, int i, int value)
{
    int slot = f->item[item].slot + i;
    log_edit(f, EDIT_REWIRE, slot, f->slot[slot].value, 0);
    rewire(f, slot, value);
}

void flow_hold(Flow *f, int item, int value)
{
    Slot s = {item, value, -1, -1};
    PUSH(f->a, f->slot, f->count.slot, f->cap.slot, s);
    log_edit(f, EDIT_HOLD, item, f->count.slot - 1, 0);
    hold(f, item, f->count.slot - 1);
}

/* The slot stays, as earlier edits may name it when they are undone. */
void flow_free(Flow *f, int item, int value)
{
    const FlowItem *x = &f->item[item];
    int k = 0;
    while (k < x->pinned.count && f->slot[x->pinned.at[k]].value != value)
        k++;
    CHECK(k < x->pinned.count);
    log_edit(f, EDIT_FREE, item, x->pinned.at[k], 0);
    let_go(f, item, x->pinned.at[k]);
}

int flow_mark(const Flow *f)
{
    return f->edits->count;
}

static void undo(Flow *f, const Edit *e)
{
    switch (e->kind) {
    case EDIT_CLONE: take(f, e->item), drop(f, e->item); break;
    case EDIT_MOVE: move(f, e->item, e->a); break;
    case EDIT_REMOVE: put_back(f, e->item, e->a); break;
    case EDIT_REWIRE: rewire(f, e->item, e->a); break;
    case EDIT_HOLD: let_go(f, e->item, e->a), f->count.slot -= e->a == f->count.slot - 1; break;
    case EDIT_FREE: hold(f, e->item, e->a); break;
    case EDIT_YIELD: yield_by(f, e->item, e->b, e->a); break;
    }
    for (; f->outer; f = f->outer)
        item_mark(f->outer, f->loop);
}

void flow_undo(Flow *f, int mark)
{
    Edits *x = f->edits;
    while (x->count > mark) {
        Edit e = x->edit[--x->count];
        undo(e.f, &e);
    }
}
