/* Loops: each body has a flow of its own, whose peak the loop needs beside what is alive around it.
 *
 * A body reads its operands where they lie outside; a slice moves by a stride of the loop. An
 * iteration's part of a concatenated or stacked result is written straight to its place, if kernels
 * can write there (row-major, aligned). A sum is zeroed before the loop, and a term is added as
 * soon as it exists. A carried operand is copied before the loop, unless the carry lies over it;
 * the value that takes its place is copied there at the end of an iteration, unless it lies over
 * it, and through a temporary where it lies in another carry, or in its own in another order.
 * Memory of the graph around takes no bytes in a body, and nothing else in the body may lie over
 * it. */
#include "inside.h"

#include <string.h>

/* ---- sums ---- */

/* Adds a term to its sum: in the sum's dtype. */
static void add_term(Flow *f, int item, bool after, const FlowValue *term, int k)
{
    const Type *acc = &f->outer->item[f->loop].node->out[k]->type, *t = &term->v->type;
    Place in = term->at;
    if (acc->dtype != t->dtype) {
        in = place_made(f, item, acc);
        move_add(f, item, after, (Move){FLOW_CAST, term->v, t, acc, term->at, in, 0, -1, -1});
    }
    move_add(f, item, after, (Move){FLOW_ADD, term->v, acc, acc, in, f->end.port[k], 0, -1, -1});
}

void add_sums(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    for (int k = 0; k < x->node->nout; k++) {
        const FlowValue *y = &f->value[x->value + k];
        if (y->sum >= 0)
            add_term(f, item, true, y, y->sum);
    }
}

/* ---- a loop, as the graph around sees it ---- */

static void begin_carries(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    const Region *r = x->node->region;
    if (!x->loop.carry)
        x->loop.carry = NEWN(f->a, int, r->nin);
    for (int j = 0; j < r->nin; j++) {
        x->loop.carry[j] = -1;
        if (r->in[j].kind != PORT_CARRY)
            continue;
        const FlowValue *v = operand_value(f, x, r->in[j].arg);
        touch_add(f, item, v->at.buffer, x->before.count, 1);
        x->loop.carry[j] = move_copy(f, item, v->v, v->at).buffer;
        f->item[item].before.at[f->item[item].before.count - 1].unless_over = x->loop.carry[j];
    }
}

static void begin_results(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    const Region *r = x->node->region;
    for (int k = 0; k < r->nout; k++) {
        FlowValue *y = &f->value[x->value + k];
        const Type *t = &y->v->type;
        if (r->out[k].kind == PORT_CARRY)
            y->at = place_whole(x->loop.carry[r->out[k].carry], t);
        else if (y->at.buffer < 0)
            y->at = place_own(f, item, y);
        if (r->out[k].kind == PORT_SUM)
            move_add(f, item, false,
                     (Move){FLOW_ZERO, y->v, t, t, {.buffer = -1}, y->at, 0, -1, -1});
    }
}

/* The body's buffer for operand port j, or NULL: it does not see it. */
static Buffer *port_buffer(Flow *body, int j)
{
    const PortIn *p = &body->outer->item[body->loop].node->region->in[j];
    int i = p->at[body->tail];
    return i < 0 || p->kind == PORT_OFFSET
               ? NULL
               : &body->buffer[body->value[body->value_of[body->g->in[i].v->id]].at.buffer];
}

/* Adds the touches of the graph around that body c makes, in the loop's core step c. */
static void touch_body(Flow *f, int item, int c)
{
    const FlowItem *x = &f->item[item];
    const Region *r = x->node->region;
    int step = x->before.count + c;
    for (int j = 0; j < r->nin; j++) {
        Buffer *y = port_buffer(x->loop.body[c], j);
        if (y)
            y->counted = y->nuse > 0;
        if (y && y->counted)
            touch_port(f, item,
                       x->loop.carry[j] < 0 ? operand_value(f, x, r->in[j].arg)->at.buffer
                                            : x->loop.carry[j],
                       c);
    }
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[x->loop.body[c]->tail] >= 0)
            touch_add(f, item, f->value[x->value + k].at.buffer, step, 0);
}

/* All of a loop's touches anew. */
static void touch_again(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    touches_leave(f, item);
    x->ntouch = 0;
    for (int k = 0; k < x->before.count + x->after.count; k++) {
        const Move *m = k < x->before.count ? &x->before.at[k] : &x->after.at[k - x->before.count];
        move_touch(f, item, k < x->before.count ? k : k + x->ncore, m);
    }
    for (int j = 0, step = 0; j < x->node->region->nin; j++)
        if (x->loop.carry[j] >= 0)
            touch_add(f, item, operand_value(f, x, x->node->region->in[j].arg)->at.buffer, step++,
                      1);
    for (int c = 0; c < x->ncore; c++)
        touch_body(f, item, c);
    touch_pinned(f, item);
    touches_enter(f, item);
}

void loop_retouch(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    bool good = true;
    for (int c = 0; c < x->ncore; c++) {
        Flow *b = x->loop.body[c];
        for (; b->pending.flipped.count; b->pending.flipped.count--) {
            Buffer *r = &b->buffer[b->pending.flipped.at[b->pending.flipped.count - 1]];
            bool now = r->nuse > 0;
            if (now && !r->counted)
                good &= touch_more(f, item, r->outer, c);
            else if (!now && r->counted)
                good &= touch_less(f, item, r->outer, c);
            r->counted = now;
            r->flipped = false;
        }
    }
    if (!good)
        touch_again(f, item);
}

int port_outer(Flow *body, int j)
{
    const Buffer *r = port_buffer(body, j);
    return r ? r->outer : -1;
}

int loop_next_port(const Flow *f, int item, int j)
{
    return f->item[item].loop.port_of[f->item[item].node->nin + j];
}

int loop_port(Flow *f, int item, int i)
{
    FlowItem *x = &f->item[item];
    const Region *r = x->node->region;
    if (x->loop.port_of)
        return x->loop.port_of[i];
    int n = x->node->nin;
    x->loop.port_of = NEWN(f->a, int, n + r->nin);
    memset(x->loop.port_of, 0xff, sizeof *x->loop.port_of * (size_t)(n + r->nin));
    for (int j = r->nin - 1; j >= 0; j--)
        if (r->in[j].kind != PORT_OFFSET) {
            x->loop.port_of[n + j] = x->loop.port_of[r->in[j].arg];
            x->loop.port_of[r->in[j].arg] = j;
        }
    return x->loop.port_of[i];
}

bool loop_shift(Flow *f, int item, int c, int buffer, int old)
{
    const Buffer *r = &f->item[item].loop.body[c]->buffer[buffer];
    if (r->outer == old || !r->counted)
        return true;
    return touch_more(f, item, r->outer, c) && touch_less(f, item, old, c);
}

void locate_loop(Flow *f, int item)
{
    const Region *r = f->item[item].node->region;
    begin_carries(f, item);
    begin_results(f, item);
    f->item[item].ncore = region_nbody(r);
    for (int c = 0; c < f->item[item].ncore; c++) {
        if (!f->item[item].loop.body[c])
            f->item[item].loop.body[c] = body_new(f, item, r->body[TAIL] && (c == 1) != r->reverse);
        touch_body(f, item, c);
    }
}

/* ---- a body, from inside ---- */

/* A place of the graph around, as the body sees it: `old` is where it was, or has no buffer. */
static Place from_outside(Flow *f, Place x, const Place *old)
{
    int mine = old->buffer >= 0 ? old->buffer : buffer_new(f, f->line.first, 0);
    f->buffer[mine].outer = x.buffer;
    f->buffer[mine].space = f->outer->buffer[x.buffer].space;
    x.buffer = mine;
    return x;
}

/* An iteration's part, in the body, of what lies at y outside: `part` along an axis, or an entry of
 * a stack. */
static Place iteration_place(const Flow *f, Place y, PortKind kind, int axis, const Port *part)
{
    if (kind == PORT_SLICE || kind == PORT_CONCAT)
        y.loop_stride[f->depth - 1] = y.at.stride[axis] * part->v->type.dim[axis];
    if (kind == PORT_STACK) {
        y.loop_stride[f->depth - 1] = y.at.stride[0];
        layout_unstack(&y.at);
    }
    return y;
}

/* The place of operand port j, outside, in an iteration of the body. */
static Place input_place(const Flow *f, int j)
{
    const FlowItem *x = &f->outer->item[f->loop];
    const Region *r = x->node->region;
    const PortIn *p = &r->in[j];
    const FlowValue *v = &f->outer->value[f->outer->slot[x->slot + p->arg].value];
    Place y = v->at;
    if (p->kind == PORT_CARRY)
        y = place_whole(x->loop.carry[j], &v->v->type);
    return iteration_place(f, y, p->kind, p->axis, &r->body[MAIN]->in[p->at[MAIN]]);
}

static Place offset_place(Flow *f, const Value *v, int64_t by)
{
    Place y = place_whole(buffer_new(f, f->line.first, 8), &v->type);
    Move m = {FLOW_OFFSET, v, &v->type, &v->type, {.buffer = -1}, y, by, -1, -1};
    move_add(f, f->line.first, false, m);
    return y;
}

/* The place of an iteration's part of result k, outside. */
static Place part_place(const Flow *f, int k)
{
    const FlowItem *x = &f->outer->item[f->loop];
    const Region *r = x->node->region;
    const PortOut *p = &r->out[k];
    return iteration_place(f, f->outer->value[x->value + k].at, p->kind, p->axis,
                           &r->body[MAIN]->out[p->at[MAIN]]);
}

static bool writable(const Place *y, const Type *t)
{
    bool aligned = true;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        aligned &= y->loop_stride[d] * dtype_size(t->dtype) % FLOW_ALIGN == 0;
    return aligned && place_contiguous(t, y);
}

/* Has the value that the body yields for result k added to its sum, or made in its place, as soon
 * as it exists. */
static void set_target(Flow *f, const PortOut *p, int k)
{
    FlowValue *y = &f->value[f->value_of[f->g->out[p->at[f->tail]].v->id]];
    const Node *n = f->item[y->item].node;
    bool made_here = n && !node_aliases(n) && n->op->region != LOOP;
    if (p->kind == PORT_SUM && n && y->sum < 0)
        y->sum = k;
    else if (made_here && p->kind != PORT_SUM && p->kind != PORT_CARRY && y->at.buffer < 0 &&
             writable(&f->end.port[k], &y->v->type))
        y->at = f->end.port[k];
}

int body_follow(Flow *f, int j, Place *old)
{
    const PortIn *p = &f->outer->item[f->loop].node->region->in[j];
    int i = p->at[f->tail];
    if (i < 0 || p->kind == PORT_OFFSET)
        return -1;
    int value = f->value_of[f->g->in[i].v->id];
    Place *at = &f->value[value].at;
    *old = *at;
    *at = from_outside(f, input_place(f, j), old);
    f->buffer[at->buffer].port = true;
    return place_equal(at, old) ? -1 : value;
}

/* Fills `renewed`: what is yielded for a carry that the body reads. */
static void list_carried(Flow *f)
{
    const Region *r = f->outer->item[f->loop].node->region;
    f->end.renewed = NEWN(f->a, int, f->nid);
    memset(f->end.renewed, 0xff, sizeof *f->end.renewed * (size_t)f->nid);
    for (int k = r->nout - 1; k >= 0; k--) { /* of equal values the first */
        const PortOut *p = &r->out[k];
        int i = p->kind == PORT_CARRY ? r->in[p->carry].at[f->tail] : -1;
        if (i >= 0 && p->at[f->tail] >= 0)
            f->end.renewed[f->g->out[p->at[f->tail]].v->id] =
                f->value[f->value_of[f->g->in[i].v->id]].at.buffer;
    }
}

void locate_body_start(Flow *f)
{
    const Region *r = f->outer->item[f->loop].node->region;
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[f->tail];
        if (i >= 0 && r->in[j].kind == PORT_OFFSET) {
            const Value *v = f->g->in[i].v;
            f->value[f->value_of[v->id]].at = offset_place(f, v, r->in[j].step);
        }
        Place none;
        body_follow(f, j, &none);
    }
    list_carried(f);
    f->end.port = NEWN(f->a, Place, r->nout);
    for (int k = 0; k < r->nout; k++)
        f->end.port[k] = from_outside(f, part_place(f, k), &(Place){.buffer = -1});
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[f->tail] >= 0)
            set_target(f, &r->out[k], k);
}

void set_targets(Flow *f, int id)
{
    const Region *r = f->outer->item[f->loop].node->region;
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[f->tail];
        if (i >= 0 && f->g->out[i].v->id == id)
            set_target(f, &r->out[k], k);
    }
}

/* The same place, whichever of the body's buffers names it. */
static Place outside(const Flow *f, Place x)
{
    x.buffer = f->buffer[x.buffer].outer >= 0 ? -2 - f->buffer[x.buffer].outer : x.buffer;
    return x;
}

static bool same_outside(const Flow *f, const Type *t, const Place *x, const Place *y)
{
    Place a = outside(f, *x), b = outside(f, *y);
    return place_same(t, &a, &b);
}

/* Whether a value that is carried on as `carry` lies in a carry that may be written before it. */
static bool in_other_carry(const Flow *f, const Type *t, const Place *at, int carry,
                           const Place *to)
{
    const FlowItem *x = &f->outer->item[f->loop];
    const Region *r = x->node->region;
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_CARRY && x->loop.carry[j] == f->buffer[at->buffer].outer &&
            (j != carry || !same_outside(f, t, at, to)))
            return true;
    return false;
}

/* Whether a buffer has what is carried on as result k, so that it may lie in its place. */
static bool renews_carry(const Flow *f, const Region *r, int k, int buffer)
{
    int i = r->out[k].kind == PORT_CARRY ? r->in[r->out[k].carry].at[f->tail] : -1;
    return i >= 0 && f->buffer[buffer].renews == f->value[f->value_of[f->g->in[i].v->id]].at.buffer;
}

void locate_body_end(Flow *f)
{
    const Region *r = f->outer->item[f->loop].node->region;
    Place *carried = NEWN(f->a, Place, r->nout);
    for (int k = 0; k < r->nout; k++) {
        const PortOut *p = &r->out[k];
        if (p->at[f->tail] < 0)
            continue;
        const FlowValue *v = &f->value[f->value_of[f->g->out[p->at[f->tail]].v->id]];
        const Type *t = &v->v->type;
        if (p->kind == PORT_SUM) {
            if (v->sum != k)
                add_term(f, f->line.last, false, v, k);
        } else if (p->kind == PORT_CARRY) {
            carried[k] = v->at;
            if (in_other_carry(f, t, &v->at, p->carry, &f->end.port[k]))
                carried[k] = move_copy(f, f->line.last, v->v, v->at);
        } else if (!same_outside(f, t, &v->at, &f->end.port[k])) {
            Move m = {FLOW_COPY, v->v, t, t, v->at, f->end.port[k], 0, -1, -1};
            move_add(f, f->line.last, false, m);
        }
    }
    for (int k = 0; k < r->nout; k++) {
        const Value *v = f->outer->item[f->loop].node->out[k];
        Move m = {FLOW_COPY, v, &v->type, &v->type, carried[k], f->end.port[k], 0, -1, -1};
        if (renews_carry(f, r, k, carried[k].buffer))
            m.unless_over = carried[k].buffer;
        if (r->out[k].kind == PORT_CARRY && r->out[k].at[f->tail] >= 0 &&
            !same_outside(f, &v->type, &carried[k], &f->end.port[k]))
            move_add(f, f->line.last, false, m);
    }
}
