/* Edits of a flow, and their undo. An edit changes the flow alone, not the graph: whoever keeps it
 * makes the nodes. An item's touches leave the heaps of the roots before it moves or is located
 * anew, and enter them after; roots whose last item that changes mark two items to be measured. A
 * view whose operand changes takes its readers along, as they lie elsewhere now. An edit in a body
 * marks the loops around it. Every edit is undone by its opposite, the latest first. */
#include "flow.h"

#include <string.h>

static void log_edit(Flow *f, EditKind kind, int item, int a, int b)
{
    Edit e = {f, kind, item, a, b};
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
    if (f->renewed)
        f->renewed = grown(f->a, f->renewed, old, f->nid);
}

/* The output `id` of the graph is `to` instead of `from`: that has its place in a loop's result, or
 * its right to the place of an input. */
static void yield_by(Flow *f, int id, int from, int to)
{
    FlowValue *x = &f->value[from], *y = &f->value[to];
    FlowValue old = *x;
    f->value_of[id] = to;
    x->yielded = y->yielded;
    y->yielded = old.yielded;
    x->sum = y->sum;
    y->sum = old.sum;
    if (f->root[x->at.root].outer >= 0 || f->root[y->at.root].outer >= 0) {
        x->at = y->at;
        y->at = old.at;
    }
    Root *r = &f->root[x->at.root], *s = &f->root[y->at.root];
    int renews = r->renews;
    r->renews = s->renews;
    s->renews = renews;
    relocate(f, f->value[from].item);
    relocate(f, f->value[to].item);
    relocate(f, f->last);
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
    log_edit(f, EDIT_CLONE, item, 0, 0);
    link_operands(f, item, true);
    line_insert(f, item, before);
    item_locate(f, item);
    touches_enter(f, item);
    return item;
}

int flow_insert(Flow *f, const Node *n, int before)
{
    grow_ids(f);
    int item = item_new(f, n);
    for (int i = 0; i < n->nin; i++)
        f->slot[f->item[item].slot + i].value = f->value_of[n->in[i]->id];
    for (int k = 0; k < n->nout; k++)
        f->value_of[n->out[k]->id] = f->item[item].value + k;
    log_edit(f, EDIT_CLONE, item, 0, 0);
    link_operands(f, item, true);
    line_insert(f, item, before);
    item_locate(f, item);
    touches_enter(f, item);
    return item;
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
    log_edit(f, EDIT_MOVE, item, f->item[item].next, 0);
    if (before != item)
        move(f, item, before);
}

void flow_remove(Flow *f, int item)
{
    for (int k = 0; k < f->item[item].node->nout; k++)
        CHECK(f->value[f->item[item].value + k].reader < 0);
    log_edit(f, EDIT_REMOVE, item, f->item[item].next, 0);
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
    log_edit(f, EDIT_HOLD, item, value, 0);
    hold(f, item, value);
}

void flow_free(Flow *f, int item, int value)
{
    log_edit(f, EDIT_FREE, item, value, 0);
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
