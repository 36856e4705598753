/* Edits of a flow, and their undo. An edit changes the flow alone, not the graph: whoever keeps it
 * makes the nodes. An item's touches leave the heaps of the roots before it moves or is located
 * anew, and enter them after; roots whose last item that changes mark two items to be measured. A
 * view whose operand changes takes its readers along, as they lie elsewhere now. An edit in a body
 * marks the loops around it. Every edit is undone by its opposite, the latest first. */
#include "flow.h"

static void log_edit(Flow *f, EditKind kind, int item, int a)
{
    Edit e = {f, kind, item, a};
    PUSH(f->a, f->edits->edit, f->edits->count, f->edits->cap, e);
    if (f->top < 0)
        line_build(f);
    for (; f->outer; f = f->outer)
        item_mark(f->outer, f->loop);
}

static void link_operands(Flow *f, int item, bool linked)
{
    const FlowItem *x = &f->item[item];
    for (int i = 0; i < x->node->nin; i++)
        slot_link(f, x->slot + i, linked);
}

static void relocate(Flow *f, int item);

static void relocate_readers(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    bool yields = false;
    for (int k = 0; k < x->node->nout; k++) {
        const FlowValue *y = &f->value[x->value + k];
        yields |= y->yielded;
        for (int s = y->reader; s >= 0; s = f->slot[s].next)
            relocate(f, f->slot[s].item);
    }
    if (yields)
        relocate(f, f->last);
}

static void relocate(Flow *f, int item)
{
    const Node *n = f->item[item].node;
    touches_leave(f, item);
    if (n)
        item_locate(f, item);
    else
        end_locate(f);
    touches_enter(f, item);
    if (n && (n->op->view || n->op->region == LOOP))
        relocate_readers(f, item);
}

/* ---- one edit each, without a log ---- */

static void move(Flow *f, int item, int before)
{
    touches_leave(f, item);
    line_remove(f, item);
    line_insert(f, item, before);
    touches_enter(f, item);
}

static void take(Flow *f, int item)
{
    link_operands(f, item, false);
    touches_leave(f, item);
    line_remove(f, item);
    f->item[item].gone = true;
}

static void put_back(Flow *f, int item, int before)
{
    f->item[item].gone = false;
    link_operands(f, item, true);
    line_insert(f, item, before);
    touches_enter(f, item);
}

static void rewire(Flow *f, int slot, int value)
{
    slot_link(f, slot, false);
    f->slot[slot].value = value;
    slot_link(f, slot, true);
    relocate(f, f->slot[slot].item);
}

static void hold(Flow *f, int item, int value)
{
    FlowItem *x = &f->item[item];
    PUSH(f->a, x->held, x->nheld, x->capheld, value);
    relocate(f, item);
}

static void let_go(Flow *f, int item, int value)
{
    FlowItem *x = &f->item[item];
    int k = x->nheld - 1;
    while (k >= 0 && x->held[k] != value)
        k--;
    CHECK(k >= 0);
    x->held[k] = x->held[--x->nheld];
    relocate(f, item);
}

/* Forgets a clone that was made last of all that is left. */
static void drop(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    if (item < f->nitem - 1)
        return;
    while (f->nroot && f->root[f->nroot - 1].maker == item)
        f->nroot--;
    while (f->ntouch && f->touch[f->ntouch - 1].item == item)
        f->ntouch--;
    f->nslot = x->slot;
    f->nvalue = x->value;
    f->nitem--;
}

/* ---- edits ---- */

int flow_clone(Flow *f, int from, int before)
{
    int item = item_new(f, f->item[from].node);
    for (int i = 0; i < f->item[item].node->nin; i++)
        f->slot[f->item[item].slot + i].value = f->slot[f->item[from].slot + i].value;
    log_edit(f, EDIT_CLONE, item, 0);
    link_operands(f, item, true);
    line_insert(f, item, before);
    item_locate(f, item);
    touches_enter(f, item);
    return item;
}

void flow_move(Flow *f, int item, int before)
{
    log_edit(f, EDIT_MOVE, item, f->item[item].next);
    if (before != item)
        move(f, item, before);
}

void flow_remove(Flow *f, int item)
{
    for (int k = 0; k < f->item[item].node->nout; k++)
        CHECK(f->value[f->item[item].value + k].reader < 0);
    log_edit(f, EDIT_REMOVE, item, f->item[item].next);
    take(f, item);
}

void flow_rewire(Flow *f, int item, int i, int value)
{
    int slot = f->item[item].slot + i;
    log_edit(f, EDIT_REWIRE, slot, f->slot[slot].value);
    rewire(f, slot, value);
}

void flow_hold(Flow *f, int item, int value)
{
    log_edit(f, EDIT_HOLD, item, value);
    hold(f, item, value);
}

void flow_free(Flow *f, int item, int value)
{
    log_edit(f, EDIT_FREE, item, value);
    let_go(f, item, value);
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
    case EDIT_HOLD: let_go(f, e->item, e->a); break;
    case EDIT_FREE: hold(f, e->item, e->a); break;
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
