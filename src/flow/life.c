/* Live ranges of buffers, results that lie over operands, and the bytes that each item adds to the
 * line.
 *
 * A buffer is alive from the first step of its defining item that touches it to the last step of
 * the last item that touches it; a cat without steps, all of whose operands are joined, touches
 * nothing. So an item's span of live bytes follows from its own touches and from the buffers that
 * it touches last; when a buffer's last item changes, two items are measured again. Each buffer
 * keeps the items that touch it in a heap, the latest first.
 *
 * A result lies over an operand if the op allows it, the operand lies row-major from its buffer's
 * start, the item reads that buffer by this operand only and without a copy, and no item touches it
 * later; it then takes as many bytes as that buffer did. The new value of a parameter may lie over
 * the old one's storage by the same rule, and what a body yields for a carry over the carry; so may
 * a carry over its first value, where nothing else reads that. Nothing else may lie over what
 * belongs to the caller, to the graph around or to the end of the graph. (Results over wider
 * operands: over_wider.c.) */
#include "inside.h"

/* ---- touches ---- */

/* Makes room for one more touch; touches that must move go to the end, with twice the room. */
static void grow_touches(Flow *f, FlowItem *x)
{
    int from = x->touch, more = 1;
    if (from + x->captouch != f->count.touch) {
        more = 2 * x->captouch + 1;
        x->touch = f->count.touch;
        x->captouch = 0;
    }
    for (; more > 0; more--, x->captouch++)
        PUSH(f->a, f->touch, f->count.touch, f->cap.touch, ((Touch){.heap = -1}));
    for (int k = 0; k < x->ntouch && from != x->touch; k++) {
        Touch *t = &f->touch[x->touch + k];
        *t = f->touch[from + k];
        f->buffer[t->buffer].latest = x->touch + k;
        if (t->heap >= 0)
            f->buffer[t->buffer].use[t->heap] = x->touch + k;
    }
}

/* Whether touch k is x's of the buffer. */
static bool is_touch(const Flow *f, const FlowItem *x, int buffer, int k)
{
    return k >= x->touch && k < x->touch + x->ntouch && f->touch[k].buffer == buffer;
}

static Touch *add_touch(Flow *f, int item, int buffer, int step, int slots)
{
    FlowItem *x = &f->item[item];
    CHECK(buffer >= 0); /* of a value that has been located */
    int k = f->buffer[buffer].latest;
    if (is_touch(f, x, buffer, k)) {
        Touch *t = &f->touch[k];
        t->first = MIN(t->first, step);
        t->last = MAX(t->last, step);
        t->slots += slots;
        return t;
    }
    if (x->ntouch == x->captouch)
        grow_touches(f, x);
    k = f->buffer[buffer].latest = x->touch + x->ntouch++;
    f->touch[k] = (Touch){item, buffer, step, step, slots, .heap = -1};
    return &f->touch[k];
}

void touch_add(Flow *f, int item, int buffer, int step, int slots)
{
    add_touch(f, item, buffer, step, slots)->other = true;
}

void touch_port(Flow *f, int item, int buffer, int c)
{
    add_touch(f, item, buffer, f->item[item].before.count + c, 1)->second += c;
}

void touch_pinned(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    int last = MAX(item_steps(x) - 1, 0);
    for (int k = 0; k < x->pinned.count; k++)
        touch_add(f, item, f->value[f->slot[x->pinned.at[k]].value].at.buffer, last, 0);
}

int buffer_first(const Flow *f, int buffer)
{
    int first = f->buffer[buffer].def;
    const FlowItem *x = &f->item[first];
    for (int k = 0; f->buffer[buffer].joined && k < x->part.count; k++)
        first = line_before(&f->line, x->part.at[k], first) ? x->part.at[k] : first;
    return first;
}

int buffer_last(const Flow *f, int buffer)
{
    const Buffer *r = &f->buffer[buffer];
    int last = r->nuse ? f->touch[r->use[0]].item : r->def;
    bool copies = r->joined && item_steps(&f->item[r->def]); /* what is not joined */
    return copies && line_before(&f->line, last, r->def) ? r->def : last;
}

static bool later(const Flow *f, int x, int y)
{
    return line_before(&f->line, f->touch[y].item, f->touch[x].item);
}

static void put(Flow *f, Buffer *r, int at, int touch)
{
    r->use[at] = touch;
    f->touch[touch].heap = at;
}

static void sift(Flow *f, Buffer *r, int at, int touch)
{
    for (; at > 0 && later(f, touch, r->use[(at - 1) / 2]); at = (at - 1) / 2)
        put(f, r, at, r->use[(at - 1) / 2]);
    for (int k; (k = 2 * at + 1) < r->nuse; at = k) {
        k += k + 1 < r->nuse && later(f, r->use[k + 1], r->use[k]);
        if (!later(f, r->use[k], touch))
            break;
        put(f, r, at, r->use[k]);
    }
    put(f, r, at, touch);
}

/* The body begins or ceases to touch a buffer of the graph around. */
static void retouch(Flow *f, int buffer)
{
    item_mark(f->outer, f->loop);
    if (!f->buffer[buffer].port || f->buffer[buffer].flipped)
        return;
    f->buffer[buffer].flipped = true;
    numbers_add(f->a, &f->pending.flipped, buffer);
    f->outer->item[f->loop].retouch = true;
}

/* Marks the item that touches r last, unless it is the defining one and r outlives it anyway. */
static void mark_last(Flow *f, const Buffer *r, int item)
{
    if (item != r->def || (!r->kept && r->outer < 0))
        item_mark(f, item);
}

static void enter(Flow *f, int touch)
{
    Buffer *r = &f->buffer[f->touch[touch].buffer];
    if (r->def == f->touch[touch].item)
        return;
    int last = buffer_last(f, f->touch[touch].buffer);
    PUSH(f->a, r->use, r->nuse, r->capuse, touch);
    sift(f, r, r->nuse - 1, touch);
    if (r->outer >= 0 && r->nuse == 1)
        retouch(f, f->touch[touch].buffer);
    if (r->use[0] == touch)
        mark_last(f, r, last);
}

static void leave(Flow *f, int touch)
{
    Buffer *r = &f->buffer[f->touch[touch].buffer];
    int at = f->touch[touch].heap;
    if (at < 0)
        return;
    f->touch[touch].heap = -1;
    int moved = r->use[--r->nuse];
    if (moved != touch)
        sift(f, r, at, moved);
    if (r->outer >= 0 && r->nuse == 0)
        retouch(f, f->touch[touch].buffer);
    if (at == 0)
        mark_last(f, r, buffer_last(f, f->touch[touch].buffer));
}

void touches_enter(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        enter(f, k);
    item_mark(f, item);
}

void touches_leave(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    for (int k = x->touch; k < x->touch + x->ntouch; k++)
        leave(f, k);
}

/* The item's touch of a buffer that it does not define, which is then the latest, or -1. */
static int find_touch(Flow *f, int item, int buffer)
{
    Buffer *r = &f->buffer[buffer];
    if (is_touch(f, &f->item[item], buffer, r->latest))
        return r->latest;
    for (int i = 0; i < r->nuse; i++)
        if (f->touch[r->use[i]].item == item)
            return r->latest = r->use[i];
    return -1;
}

bool touch_more(Flow *f, int item, int buffer, int c)
{
    bool is = find_touch(f, item, buffer) >= 0;
    if (f->buffer[buffer].def == item)
        return false;
    touch_port(f, item, buffer, c);
    if (!is)
        enter(f, f->buffer[buffer].latest);
    item_mark(f, item);
    return true;
}

bool touch_less(Flow *f, int item, int buffer, int c)
{
    FlowItem *x = &f->item[item];
    int k = find_touch(f, item, buffer), last = x->touch + x->ntouch - 1;
    if (k < 0 || f->touch[k].other)
        return false;
    Touch *t = &f->touch[k];
    t->slots--;
    t->second -= c;
    t->first = x->before.count + (t->second == t->slots);
    t->last = x->before.count + (t->second > 0);
    item_mark(f, item);
    if (t->slots)
        return true;
    leave(f, k);
    *t = f->touch[last];
    x->ntouch--;
    f->buffer[t->buffer].latest = k;
    if (t->heap >= 0)
        f->buffer[t->buffer].use[t->heap] = k;
    return true;
}

/* ---- what lies over what ---- */

/* Bytes that a buffer takes by itself. */
int64_t buffer_bytes(const Flow *f, const Buffer *r)
{
    if (r->outer >= 0 || (r->renews >= 0 && r->over == r->renews))
        return 0;
    return r->if_over < 0 || !buffer_bytes(f, &f->buffer[r->if_over]) ? r->room : 0;
}

static bool alike(const Node *n, const Type *x, const Type *y)
{
    return n->op->region == FUSED ? x->dtype == y->dtype && type_nelem(x) == type_nelem(y)
                                  : type_equal(x, y);
}

bool item_may_take(const Flow *f, int item, int k, int i)
{
    const FlowItem *x = &f->item[item];
    const FlowValue *from = operand_value(f, x, i), *to = &f->value[x->value + k];
    const Buffer *r = &f->buffer[from->at.buffer], *y = &f->buffer[to->at.buffer];
    bool renews = y->renews == from->at.buffer && !from->v->def;
    return !x->call.copied[i] && r->kept <= renews && (!r->input || renews) &&
           (r->outer < 0 || renews) && place_direct(&from->v->type, &from->at);
}

bool item_may_lie_over(const Flow *f, int item, int k, int i)
{
    const FlowItem *x = &f->item[item];
    const FlowValue *from = operand_value(f, x, i), *to = &f->value[x->value + k];
    return (f->buffer[to->at.buffer].over_wider || alike(x->node, &from->v->type, &to->v->type)) &&
           item_may_take(f, item, k, i);
}

bool carry_may_lie_over(const Flow *f, int item, int j)
{
    const FlowItem *x = &f->item[item];
    const PortIn *p = &x->node->region->in[j];
    const FlowValue *from = operand_value(f, x, p->arg);
    const Buffer *r = &f->buffer[from->at.buffer];
    return p->kind == PORT_CARRY && !r->kept && !r->input && r->outer < 0 &&
           r->space == SPACE_MAIN && place_direct(&from->v->type, &from->at);
}

bool item_reads_last(const Flow *f, int item, int buffer)
{
    return buffer_last(f, buffer) == item && f->touch[f->buffer[buffer].use[0]].slots == 1;
}

unsigned flow_inplace(Flow *f, int item, int k)
{
    FlowValue *y = &f->value[f->item[item].value + k];
    if (y->inplace < 0) /* remembered: for a body it takes a search of all nodes */
        y->inplace = node_inplace(f->item[item].node, k);
    return (unsigned)y->inplace;
}

static void set_over(Flow *f, int buffer, int over)
{
    Buffer *y = &f->buffer[buffer];
    int64_t old = buffer_bytes(f, y);
    y->over = over;
    y->room = over < 0 ? y->nbytes : f->buffer[over].room;
    if (buffer_bytes(f, y) != old)
        item_mark(f, buffer_last(f, buffer));
}

/* Fills `over` of a loop's carries. */
static void fill_carries(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    for (int j = 0; j < x->node->region->nin; j++) {
        if (x->loop.carry[j] < 0)
            continue;
        int from = operand_value(f, x, x->node->region->in[j].arg)->at.buffer;
        bool over = carry_may_lie_over(f, item, j) && item_reads_last(f, item, from);
        set_over(f, x->loop.carry[j], over ? from : -1);
    }
}

/* Fills `over` of the item's results. */
static void fill_over(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    if (!x->node || node_aliases(x->node))
        return;
    if (x->node->op->region == LOOP) {
        fill_carries(f, item);
        return;
    }
    unsigned taken = 0;
    for (int k = 0; k < x->node->nout; k++) {
        const FlowValue *to = &f->value[x->value + k];
        if (f->buffer[to->at.buffer].def != item)
            continue;
        int over = -1;
        unsigned mask = flow_inplace(f, item, k) & ~taken;
        for (int i = 0; i < MIN(x->node->nin, 32) && mask >> i; i++)
            if ((mask >> i & 1) && item_may_lie_over(f, item, k, i) &&
                item_reads_last(f, item, operand_value(f, x, i)->at.buffer)) {
                taken |= 1u << i;
                over = operand_value(f, x, i)->at.buffer;
                break;
            }
        set_over(f, to->at.buffer, over);
    }
}

/* ---- spans ---- */

/* Whether a buffer lies over what it renews, or a carry over its first value. */
static bool lies_there(const Buffer *r)
{
    return r->over >= 0 && (r->renews < 0 || r->over == r->renews);
}

bool move_is(const Flow *f, const Move *m)
{
    if (m->if_over >= 0)
        return lies_there(&f->buffer[m->if_over]);
    return m->unless_over < 0 || !lies_there(&f->buffer[m->unless_over]);
}

int64_t item_core_bytes(const FlowItem *x, Space s, int step)
{
    int core = step - x->before.count;
    return core < 0 || core >= x->ncore ? 0
           : x->loop.body[0]            ? flow_space_peak(x->loop.body[core], s)
           : s == SPACE_MAIN            ? item_work(x)
                                        : 0;
}

/* Adds up the changes of a space. */
static Span add_up(const int64_t *change, int nstep, const FlowItem *x, Space space)
{
    Span s = {0, 0};
    for (int k = 0; k <= nstep; k++) {
        s.net += change[k];
        s.most = k < nstep ? MAX(s.most, s.net + item_core_bytes(x, space, k)) : s.most;
    }
    return s;
}

/* Counts inputs that nothing reads: alive in the first step, here if the end has a step itself. */
static void count_unread(Flow *f)
{
    const FlowItem *x = &f->item[f->line.first];
    f->end.unread = 0;
    for (int k = x->touch; k < x->touch + x->ntouch && !x->before.count; k++) {
        const Buffer *r = &f->buffer[f->touch[k].buffer];
        f->end.unread += r->kept || r->nuse ? 0 : r->nbytes;
    }
}

bool item_measure(Flow *f, int item)
{
    if (item == f->line.first && !f->outer)
        count_unread(f);
    fill_over(f, item);
    FlowItem *x = &f->item[item];
    int nstep = MAX(item_steps(x), 1), room = nstep + 2;
    while (f->scratch.capchange < f->nspace * room)
        f->scratch.change = arena_grow(f->a, f->scratch.change, f->scratch.capchange,
                                       &f->scratch.capchange, sizeof *f->scratch.change);
    for (int k = 0; k < f->nspace * room; k++)
        f->scratch.change[k] = 0;
    for (int k = x->touch; k < x->touch + x->ntouch; k++) {
        const Touch *t = &f->touch[k];
        const Buffer *r = &f->buffer[t->buffer];
        int64_t nbytes = buffer_bytes(f, r), *change = f->scratch.change + (int)r->space * room;
        if (buffer_first(f, t->buffer) == item)
            change[r->over >= 0 ? t->first + 1 : t->first] += nbytes;
        if (!r->kept && buffer_last(f, t->buffer) == item)
            change[t->last + 1] -= nbytes;
    }
    bool changed = false;
    for (int s = 0; s < f->nspace; s++) {
        Span own = add_up(f->scratch.change + s * room, nstep, x, (Space)s);
        Span *old = &f->line.at[item].own[s];
        changed |= own.net != old->net || own.most != old->most;
        *old = own;
    }
    return changed;
}

void item_mark(Flow *f, int item)
{
    if (f->item[item].dirty || f->item[item].gone)
        return;
    f->item[item].dirty = true;
    numbers_add(f->a, &f->pending.dirty, item);
}

void flow_settle(Flow *f)
{
    while (f->pending.dirty.count) {
        int item = f->pending.dirty.at[--f->pending.dirty.count];
        if (item >= f->count.item || !f->item[item].dirty)
            continue; /* a clone that was dropped */
        f->item[item].dirty = false;
        if (f->item[item].gone)
            continue;
        if (f->item[item].retouch)
            loop_retouch(f, item);
        f->item[item].retouch = f->item[item].dirty = false;
        if (item_measure(f, item))
            line_update(&f->line, item);
    }
}
