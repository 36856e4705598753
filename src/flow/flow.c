/* Builds the flow of a graph, and gives its peak: one item for each node, in list order, between
 * the two ends of the line. The first end defines the inputs and copies outputs that are inputs,
 * before anything is overwritten. The last end copies outputs that do not lie as the caller reads
 * them, then moves new values that could not be written in place of the old ones. Linear but for
 * heaps of touches. */
#include "inside.h"

#include <string.h>

/* ---- items and values ---- */

static int value_new(Flow *f, const Value *v, int item)
{
    FlowValue y = {.v = v,
                   .item = item,
                   .at = {.buffer = -1},
                   .own = -1,
                   .reader = -1,
                   .inplace = -1,
                   .sum = -1};
    PUSH(f->a, f->value, f->count.value, f->cap.value, y);
    return f->count.value - 1;
}

/* Takes the lists of a dropped item, so that tries that are undone do not add memory each time. */
static void take_room(FlowItem *x, const FlowItem *old)
{
    x->touch = old->touch;
    x->captouch = old->captouch;
    x->before = (Moves){.at = old->before.at, .cap = old->before.cap};
    x->after = (Moves){.at = old->after.at, .cap = old->after.cap};
    x->call.copied = old->call.copied;
    x->call.capcopied = old->call.capcopied;
    x->made = (ItemMade){.buffer = old->made.buffer, .cap = old->made.cap};
    x->pinned = (NumberList){.at = old->pinned.at, .cap = old->pinned.cap};
}

int item_new(Flow *f, const Node *n)
{
    FlowItem x = {.node = n, .slot = f->count.slot, .value = f->count.value, .call.like = -1};
    if (f->count.item < f->cap.item)
        take_room(&x, &f->item[f->count.item]);
    for (int i = 0; n && i < n->nin; i++) {
        Slot s = {f->count.item, -1, -1, -1};
        PUSH(f->a, f->slot, f->count.slot, f->cap.slot, s);
    }
    for (int k = 0; n && k < n->nout; k++)
        value_new(f, n->out[k], f->count.item);
    line_add(&f->line, f->a, f->count.item);
    PUSH(f->a, f->item, f->count.item, f->cap.item, x);
    return f->count.item - 1;
}

void slot_link(Flow *f, int slot, bool linked)
{
    Slot *s = &f->slot[slot];
    int *first = &f->value[s->value].reader;
    if (linked) {
        s->prev = -1;
        s->next = *first;
        *first = slot;
        if (s->next >= 0)
            f->slot[s->next].prev = slot;
    } else {
        *(s->prev < 0 ? first : &f->slot[s->prev].next) = s->next;
        if (s->next >= 0)
            f->slot[s->next].prev = s->prev;
    }
}

static void add_nodes(Flow *f)
{
    Graph *g = f->g;
    f->line.first = item_new(f, NULL);
    f->item_of = NEWN(f->a, int, g->nnode);
    f->value_of = NEWN(f->a, int, g->nvalue);
    f->nid = g->nvalue;
    for (int i = 0; i < g->nin; i++)
        f->value_of[g->in[i].v->id] = value_new(f, g->in[i].v, f->line.first);
    for (Node *n = g->first; n; n = n->next) {
        int item = f->item_of[n->id] = item_new(f, n);
        for (int k = 0; k < n->nout; k++)
            f->value_of[n->out[k]->id] = f->item[item].value + k;
        for (int i = 0; i < n->nin; i++) {
            int slot = f->item[item].slot + i;
            f->slot[slot].value = f->value_of[n->in[i]->id];
            slot_link(f, slot, true);
        }
    }
    for (int i = 0; i < g->nout; i++)
        f->value[f->value_of[g->out[i].v->id]].yielded = true;
    f->line.last = item_new(f, NULL);
}

/* ---- the ends of the line of a whole graph ---- */

/* The index of the input whose storage output o takes, or -1. */
static int renewed_input(const Map *renewed, const Port *o)
{
    const int *i = o->role == ROLE_NEW && o->name ? map_find(renewed, o->name) : NULL;
    return i ? *i : -1;
}

/* The copy to the host's memory for which v's node waits, or NULL. */
static const Node *copied_to_host(const Value *v)
{
    const Node *n = v->def && v->def->op->wait ? v->def->in[0]->def : NULL;
    return n && n->op->to_host ? n : NULL;
}

static void list_renewed(Flow *f)
{
    const Graph *g = f->g;
    Map input = {.a = f->a};
    int *index = NEWN(f->a, int, g->nin);
    for (int i = g->nin - 1; i >= 0; i--) { /* of equal names the first */
        index[i] = i;
        if (role_renewed(g->in[i].role))
            map_put(&input, g->in[i].name, &index[i]);
    }
    f->end.renewed = NEWN(f->a, int, g->nvalue);
    f->end.owner = NEWN(f->a, int, g->nout);
    for (int v = 0; v < g->nvalue; v++)
        f->end.renewed[v] = -1;
    for (int i = 0; i < g->nout; i++) {
        int in = renewed_input(&input, &g->out[i]);
        f->end.owner[i] = in < 0 ? -1 : f->value[f->value_of[g->in[in].v->id]].at.buffer;
        if (in < 0)
            continue;
        f->end.renewed[g->out[i].v->id] = f->end.owner[i];
        const Node *copy = copied_to_host(g->out[i].v);
        if (copy)
            f->end.renewed[copy->out[0]->id] = f->end.owner[i];
    }
}

static void locate_start(Flow *f)
{
    const Graph *g = f->g;
    f->end.port = NEWN(f->a, Place, g->nout);
    f->end.copy_of = NEWN(f->a, int, g->nout);
    f->end.was_port = NEWN(f->a, int, 2 * g->nout);
    for (int i = 0; i < g->nout; i++)
        f->end.port[i].buffer = f->end.copy_of[i] = -1;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        int buffer = buffer_new(f, f->line.first, type_nbytes(&p->v->type));
        f->buffer[buffer].input = true;
        if (p->host && f->nspace > 1)
            f->buffer[buffer].space = SPACE_HOST;
        f->buffer[buffer].kept = role_kept(p->role) || role_scalar(p->role);
        f->value[f->value_of[p->v->id]].at = place_whole(buffer, &p->v->type);
        touch_add(f, f->line.first, buffer, 0, 0);
    }
    for (int i = 0; i < g->nout; i++) {
        const FlowValue *v = &f->value[f->value_of[g->out[i].v->id]];
        if (!v->v->def)
            f->end.port[i] = move_copy(f, f->line.first, v->v, v->at);
    }
    f->item[f->line.first].ncore = 1; /* the inputs are there */
    list_renewed(f);
}

static void keep(Flow *f, int buffer, bool kept)
{
    if (buffer >= 0 && !f->buffer[buffer].input)
        f->buffer[buffer].kept = kept;
}

/* The last item that touches a buffer is measured anew if the buffer is now kept and was not, or
 * the reverse. */
static void mark_kept(Flow *f, int buffer)
{
    if (buffer < 0 || f->buffer[buffer].input ||
        f->buffer[buffer].kept == f->buffer[buffer].was_kept)
        return;
    f->buffer[buffer].was_kept = f->buffer[buffer].kept;
    item_mark(f, buffer_last(f, buffer));
}

/* Finds where output i lies, and copies it if it must. */
static void locate_output(Flow *f, int i)
{
    const Port *p = &f->g->out[i];
    const FlowValue *v = &f->value[f->value_of[p->v->id]];
    Place x = v->v->def ? v->at : f->end.port[i];
    const Buffer *r = &f->buffer[x.buffer];
    int renews = r->renews;
    if (!place_direct(&v->v->type, &x) || (r->input && x.buffer != f->end.owner[i])) {
        f->end.port[i] = move_copy(f, f->line.last, v->v, x);
        keep(f, f->end.port[i].buffer, f->end.owner[i] < 0);
        return;
    }
    f->end.port[i] = x;
    if (f->end.owner[i] >= 0)
        return;
    keep(f, x.buffer, true);
    if (renews < 0)
        return;
    Place copy = move_copy(f, f->line.last, v->v, x);
    FlowItem *last = &f->item[f->line.last];
    last->before.at[last->before.count - 1].if_over = x.buffer;
    f->buffer[copy.buffer].if_over = x.buffer;
    keep(f, copy.buffer, true);
    f->end.copy_of[i] = copy.buffer;
}

static void locate_end(Flow *f)
{
    const Graph *g = f->g;
    for (int i = 0; i < g->nout; i++) {
        keep(f, f->end.was_port[2 * i] = f->end.port[i].buffer, false);
        keep(f, f->end.was_port[2 * i + 1] = f->end.copy_of[i], false);
        f->end.copy_of[i] = -1;
    }
    for (int i = 0; i < g->nout; i++)
        locate_output(f, i);
    for (int i = 0; i < g->nout; i++) {
        mark_kept(f, f->end.was_port[2 * i]);
        mark_kept(f, f->end.was_port[2 * i + 1]);
        mark_kept(f, f->end.port[i].buffer);
        mark_kept(f, f->end.copy_of[i]);
    }
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        Place in = f->end.port[i];
        if (f->end.owner[i] < 0 || in.buffer == f->end.owner[i])
            continue;
        bool own = f->buffer[in.buffer].renews == f->end.owner[i];
        Place out = place_whole(f->end.owner[i], &v->type);
        move_add(f, f->line.last, false,
                 (Move){FLOW_COPY, v, &v->type, &v->type, in, out, 0, -1, own ? in.buffer : -1});
    }
}

int flow_output(const Flow *f, int i)
{
    if (f->end.owner[i] >= 0)
        return f->end.owner[i];
    int own = f->end.port[i].buffer, copy = f->end.copy_of[i];
    return copy >= 0 && !buffer_bytes(f, &f->buffer[own]) ? copy : own;
}

/* ---- the flow ---- */

/* Links the items in the order of the graph's list. */
static void link_items(Flow *f)
{
    int at = f->line.first;
    f->line.at[at].prev = -1;
    for (const Node *n = f->g->first; n; n = n->next) {
        int item = f->item_of[n->id];
        f->line.at[at].next = item;
        f->line.at[item].prev = at;
        at = item;
    }
    f->line.at[at].next = f->line.last;
    f->line.at[f->line.last].prev = at;
    f->line.at[f->line.last].next = -1;
    line_relabel(&f->line);
}

/* Fills the heaps of buffers: touches in falling order are one. */
static void fill_heaps(Flow *f)
{
    for (int r = 0; r < f->count.buffer; r++)
        f->buffer[r].nuse = 0;
    for (int i = f->line.last; i >= 0; i = f->line.at[i].prev)
        for (int k = f->item[i].touch; k < f->item[i].touch + f->item[i].ntouch; k++) {
            Buffer *r = &f->buffer[f->touch[k].buffer];
            f->touch[k].heap = r->def == i ? -1 : r->nuse;
            if (r->def != i)
                PUSH(f->a, r->use, r->nuse, r->capuse, k);
        }
}

/* Measures every item of the line, as it is linked. */
static void measure_all(Flow *f)
{
    link_items(f);
    fill_heaps(f);
    f->line.top = -1;
    f->pending.dirty.count = 0;
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        f->item[i].dirty = false;
        item_measure(f, i);
    }
}

static Flow *flow_start(Graph *g, const Device *d, const Machine *m, Arena *a)
{
    Flow *f = NEW(a, Flow);
    *f = (Flow){.a = a, .g = g, .device = d, .machine = m, .nspace = device_nspace(d)};
    f->line = (FlowLine){.nspace = f->nspace, .top = -1};
    add_nodes(f);
    return f;
}

void end_locate(Flow *f)
{
    FlowItem *x = &f->item[f->line.last];
    x->ntouch = x->before.count = x->made.count = 0;
    if (f->outer)
        locate_body_end(f);
    else
        locate_end(f);
    touch_pinned(f, f->line.last);
}

static void locate_all(Flow *f)
{
    if (f->outer)
        locate_body_start(f);
    else
        locate_start(f);
    for (const Node *n = f->g->first; n; n = n->next)
        item_locate(f, f->item_of[n->id]);
    end_locate(f);
    measure_all(f);
}

Flow *flow_new(Graph *g, const Device *d, const Machine *m, Arena *a)
{
    CHECK(m);
    Flow *f = flow_start(g, d, m, a);
    f->edits = NEW(a, Edits);
    locate_all(f);
    return f;
}

Flow *body_new(Flow *outer, int item, bool tail)
{
    const Region *r = outer->item[item].node->region;
    Flow *f = flow_start(r->body[tail], outer->device, outer->machine, outer->a);
    f->outer = outer;
    f->loop = item;
    f->depth = outer->depth + 1;
    f->tail = tail;
    f->edits = outer->edits;
    locate_all(f);
    return f;
}

void flow_reorder(Flow *f)
{
    for (int i = 0; i < f->count.item; i++)
        for (int c = 0; c < 2; c++)
            if (f->item[i].loop.body[c])
                flow_reorder(f->item[i].loop.body[c]);
    measure_all(f);
}

/* ---- the peak ---- */

static bool has_steps(const FlowItem *x)
{
    return x->node && item_steps(x);
}

/* Bytes alive in the first step, without inputs that nothing reads. */
static int64_t first_live(Flow *f)
{
    int item = f->line.first;
    int64_t live = f->line.at[item].own[SPACE_MAIN].net;
    if (f->item[item].before.count)
        return 0;
    while (item >= 0 && !has_steps(&f->item[item]) && !f->item[item].before.count)
        item = f->line.at[item].next;
    if (item < 0)
        return 0;
    item_measure(f, item);
    const FlowItem *x = &f->item[item];
    return live + f->scratch.change[0] + (x->before.count ? 0 : item_work(x));
}

enum { SCANS = 4 }; /* of the line: for more sums along it the tree is made */

static Span whole_span(Flow *f, Space space)
{
    flow_settle(f);
    if (f->line.top < 0 && f->line.asked++ >= SCANS)
        line_build(&f->line);
    if (f->line.top >= 0)
        return f->line.at[f->line.top].all[space];
    Span s = {0, 0};
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        s.most = MAX(s.most, s.net + f->line.at[i].own[space].most);
        s.net += f->line.at[i].own[space].net;
    }
    return s;
}

int64_t flow_peak(Flow *f)
{
    int64_t most = whole_span(f, SPACE_MAIN).most;
    return f->end.unread ? MAX(most, first_live(f) + f->end.unread) : most;
}

int64_t flow_space_peak(Flow *f, Space s)
{
    return s == SPACE_MAIN ? flow_peak(f) : (int)s < f->nspace ? whole_span(f, s).most : 0;
}

int64_t flow_most(Flow *f, int from, int to)
{
    flow_settle(f);
    if (f->line.top < 0)
        line_build(&f->line);
    return line_most(&f->line, from, to);
}

int flow_peak_item(Flow *f)
{
    int64_t most = whole_span(f, SPACE_MAIN).most, live = 0;
    if (f->line.top >= 0)
        return line_peak(&f->line);
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        const Span *own = &f->line.at[i].own[SPACE_MAIN];
        if (live + own->most == most)
            return i;
        live += own->net;
    }
    return f->line.first;
}
