/* Random edits of flows, and what they are compared by. The graph of an edited flow is made by the
 * ordinary builder; its own flow, made from scratch, has the same items in the same order, whose
 * spans of bytes must be equal one by one. */
#include "flow_edits.h"

#include <string.h>

/* ---- the graph of a flow ---- */

static void fill_graph(Graph *to, const Flow *f);

static Region *loop_region(Graph *to, const FlowItem *x)
{
    Region *r = NEW(to->a, Region);
    *r = *x->node->region;
    for (int c = 0; c < 2 && x->loop.body[c]; c++) {
        Graph *body = graph_body(to);
        r->body[x->loop.body[c]->tail] = body;
        fill_graph(body, x->loop.body[c]);
    }
    return r;
}

static void add_node(Graph *to, const Flow *f, const FlowItem *x, Value **value)
{
    Node n = *x->node;
    Value **in = NEWN(to->a, Value *, n.nin);
    Build b = {.g = to};
    for (int i = 0; i < n.nin; i++) {
        in[i] = value[f->slot[x->slot + i].value];
        CHECK(in[i]);
    }
    if (n.op->region == LOOP)
        n.region = loop_region(to, x);
    else if (n.region)
        n.region = region_clone(to, n.region);
    Node *made = emit_clone(&b, &n, in);
    for (int k = 0; k < n.nout; k++)
        value[x->value + k] = made->out[k];
}

static void fill_graph(Graph *to, const Flow *f)
{
    const Graph *g = f->g;
    Value **value = NEWN(to->a, Value *, f->count.value);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        value[f->value_of[p->v->id]] = graph_input(to, p->v->name, p->v->type, p->role, p->name);
    }
    for (int i = f->line.at[f->line.first].next; i != f->line.last; i = f->line.at[i].next)
        add_node(to, f, &f->item[i], value);
    for (int i = 0; i < g->nout; i++)
        graph_output(to, value[f->value_of[g->out[i].v->id]], g->out[i].role, g->out[i].name);
}

Graph *edited_graph(Arena *a, const Flow *f)
{
    Graph *g = graph_new(a, f->g->name);
    g->mesh = f->g->mesh;
    fill_graph(g, f);
    return g;
}

/* ---- comparing ---- */

void flow_put_holds(const Flow *f, Flow *to)
{
    int *pair = NEWN(to->a, int, f->count.item);
    for (int i = f->line.first, j = to->line.first; i >= 0;
         i = f->line.at[i].next, j = to->line.at[j].next)
        pair[i] = j;
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        const FlowItem *x = &f->item[i];
        for (int c = 0; c < 2 && x->loop.body[c]; c++)
            flow_put_holds(x->loop.body[c], to->item[pair[i]].loop.body[c]);
        for (int k = 0; k < x->pinned.count; k++) {
            int held = f->slot[x->pinned.at[k]].value, made = f->value[held].item;
            int value = to->item[pair[made]].value + held - f->item[made].value;
            flow_hold(to, pair[i], value);
        }
    }
}

static const char *item_name(const FlowItem *x)
{
    return !x->node ? "an end" : x->node->nout ? x->node->out[0]->name : x->node->op->name;
}

static const char *peaks_differ(Arena *a, Flow *x, Flow *y)
{
    for (int s = 0; s < MAX_SPACE; s++) {
        int64_t found = flow_space_peak(x, (Space)s), expected = flow_space_peak(y, (Space)s);
        if (found != expected)
            return arena_printf(a, "peak %lld of space %d, expected %lld", (long long)found, s,
                                (long long)expected);
    }
    return NULL;
}

const char *flow_differ(Arena *a, Flow *x, Flow *y)
{
    const char *peaks = peaks_differ(a, x, y);
    int i = x->line.first, j = y->line.first;
    for (; i >= 0 && j >= 0; i = x->line.at[i].next, j = y->line.at[j].next) {
        const FlowItem *p = &x->item[i], *q = &y->item[j];
        const Span *found = x->line.at[i].own, *expected = y->line.at[j].own;
        for (int s = 0; s < MAX_SPACE; s++)
            if (memcmp(&found[s], &expected[s], sizeof found[s]))
                return arena_printf(
                    a, "%s (item %d), space %d: net %lld, most %lld, expected %lld, %lld",
                    item_name(p), i, s, (long long)found[s].net, (long long)found[s].most,
                    (long long)expected[s].net, (long long)expected[s].most);
        for (int c = 0; c < 2; c++) {
            const char *how =
                p->loop.body[c] ? flow_differ(a, p->loop.body[c], q->loop.body[c]) : NULL;
            if (how)
                return arena_printf(a, "in %s: %s", item_name(p), how);
        }
    }
    return i == j ? peaks : "the lines are of other lengths";
}

static void print_state(Buf *b, Flow *f)
{
    for (int s = 0; s < MAX_SPACE; s++)
        buf_printf(b, "%lld ", (long long)flow_space_peak(f, (Space)s));
    buf_add(b, "{");
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        const FlowItem *x = &f->item[i];
        int nvalue = x->node ? x->node->nout : i == f->line.first ? f->g->nin : 0;
        buf_printf(b, "\n%d %s", i, item_name(x));
        for (int s = 0; s < MAX_SPACE; s++)
            buf_printf(b, " %lld %lld", (long long)f->line.at[i].own[s].net,
                       (long long)f->line.at[i].own[s].most);
        buf_add(b, ":");
        for (int k = 0; k < nvalue; k++)
            buf_printf(b, " %d", buffer_last(f, f->value[x->value + k].at.buffer));
        for (int c = 0; c < 2 && x->loop.body[c]; c++)
            print_state(b, x->loop.body[c]);
    }
    buf_add(b, "}\n");
}

const char *flow_state(Arena *a, Flow *f)
{
    Buf b = {.a = a};
    print_state(&b, f);
    return b.text;
}

static Span sum_list(const Flow *f, int space)
{
    Span s = {0, 0};
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        s.most = MAX(s.most, s.net + f->line.at[i].own[space].most);
        s.net += f->line.at[i].own[space].net;
    }
    return s;
}

/* Visits a subtree in order; returns the item that was last. */
static int walk_tree(const Flow *f, int top, int last, int *count, bool *good)
{
    const LineItem *x = &f->line.at[top];
    if (x->low >= 0) {
        *good &= f->line.at[x->low].up == top;
        last = walk_tree(f, x->low, last, count, good);
    }
    *good &= x->prev == last;
    ++*count;
    if (x->high < 0)
        return top;
    *good &= f->line.at[x->high].up == top;
    return walk_tree(f, x->high, top, count, good);
}

const char *flow_line_fault(Arena *a, Flow *f)
{
    int count = 0, found = 0;
    bool good = true;
    flow_settle(f);
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next)
        count++;
    for (int i = f->line.first; i != f->line.last; i = f->line.at[i].next)
        if (f->line.at[i].label >= f->line.at[f->line.at[i].next].label)
            return arena_printf(a, "labels of items %d and %d", i, f->line.at[i].next);
    if (f->line.top < 0)
        return NULL;
    int last = walk_tree(f, f->line.top, -1, &found, &good);
    if (!good || last != f->line.last || found != count)
        return arena_printf(a, "the tree has %d of %d items, or not in order", found, count);
    for (int s = 0; s < f->nspace; s++) {
        Span sum = sum_list(f, s);
        if (memcmp(&sum, &f->line.at[f->line.top].all[s], sizeof sum))
            return "the tree's sum is not the list's";
    }
    return NULL;
}

/* ---- choosing edits ---- */

static bool is_node(const Flow *f, int item)
{
    return f->item[item].node && !f->item[item].gone;
}

static int any_item(const Flow *f, Rng *r)
{
    for (int k = 0; k < 20; k++) {
        int item = (int)rng_below(r, f->count.item);
        if (is_node(f, item))
            return item;
    }
    return -1;
}

static int later(const Flow *f, int x, int y)
{
    return line_before(&f->line, x, y) ? y : x;
}

/* The latest item whose value this one reads or keeps alive. */
static int last_definer(const Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    int last = f->line.first;
    for (int i = 0; i < x->node->nin; i++)
        last = later(f, last, f->value[f->slot[x->slot + i].value].item);
    for (int k = 0; k < x->pinned.count; k++)
        last = later(f, last, f->value[f->slot[x->pinned.at[k]].value].item);
    return last;
}

static int first_reader(const Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    int first = f->line.last;
    for (int k = 0; k < x->node->nout; k++)
        for (int s = f->value[x->value + k].reader; s >= 0; s = f->slot[s].next)
            first = line_before(&f->line, f->slot[s].item, first) ? f->slot[s].item : first;
    return first;
}

/* An item behind low and not behind high: often a near one. */
static int place_between(const Flow *f, Rng *r, int low, int high)
{
    for (int k = 0; k < 8; k++) {
        int item = any_item(f, r);
        if (item >= 0 && line_before(&f->line, low, item) && !line_before(&f->line, high, item))
            return item;
    }
    int item = f->line.at[low].next;
    for (int64_t k = rng_below(r, 16); k > 0 && item != high; k--)
        item = f->line.at[item].next;
    return item;
}

static bool choose_move(const Chooser *c, const Flow *f, Try *t)
{
    t->item = any_item(f, c->r);
    if (t->item < 0)
        return false;
    int high = t->kind == TRY_CLONE ? f->line.last : first_reader(f, t->item);
    t->before = place_between(f, c->r, last_definer(f, t->item), high);
    return true;
}

static bool read_or_yielded(const Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    for (int k = 0; k < x->node->nout; k++)
        if (f->value[x->value + k].reader >= 0 || f->value[x->value + k].yielded)
            return true;
    return false;
}

/* The last ones are most often clones that nothing reads yet. */
static bool choose_remove(const Chooser *c, const Flow *f, Try *t)
{
    for (int k = 0; k < 40; k++) {
        t->item = k < 20 ? f->count.item - 1 - (int)rng_below(c->r, MIN(f->count.item, 64))
                         : any_item(f, c->r);
        if (t->item >= 0 && is_node(f, t->item) && !read_or_yielded(f, t->item))
            return true;
    }
    return false;
}

static bool can_read(const Flow *f, int item, int value, const Type *type)
{
    const FlowValue *v = &f->value[value];
    return !f->item[v->item].gone && line_before(&f->line, v->item, item) &&
           type_equal(&v->v->type, type);
}

/* Its original or a clone of it, or any value of its type. */
static bool choose_rewire(const Chooser *c, const Flow *f, Try *t)
{
    t->item = any_item(f, c->r);
    if (t->item < 0 || !f->item[t->item].node->nin)
        return false;
    t->slot = (int)rng_below(c->r, f->item[t->item].node->nin);
    int old = f->slot[f->item[t->item].slot + t->slot].value;
    const Value *v = f->value[old].v;
    for (int k = 0; k < 40; k++) {
        bool recent = k < 20;
        t->value = recent ? f->count.value - 1 - (int)rng_below(c->r, MIN(f->count.value, 256))
                          : (int)rng_below(c->r, f->count.value);
        if (t->value != old && (!recent || f->value[t->value].v == v) &&
            can_read(f, t->item, t->value, &v->type))
            return true;
    }
    t->value = f->value_of[v->id];
    return t->value != old && can_read(f, t->item, t->value, &v->type);
}

/* Of two values of one type the one that is no output, where it is made before all readers of the
 * other. */
static bool choose_replace(const Chooser *c, const Flow *f, Try *t)
{
    for (int k = 0; k < 40; k++) {
        t->value = f->count.value - 1 -
                   (int)rng_below(c->r, MIN(f->count.value, k < 20 ? 32 : f->count.value));
        const FlowValue *now = &f->value[t->value];
        t->before = k < 20 ? f->value_of[now->v->id] : (int)rng_below(c->r, f->count.value);
        const FlowValue *old = &f->value[t->before];
        t->item = old->item;
        if (old != now && !now->yielded && is_node(f, old->item) && is_node(f, now->item) &&
            type_equal(&old->v->type, &now->v->type) &&
            line_before(&f->line, now->item, first_reader(f, old->item)))
            return true;
    }
    return false;
}

static bool choose_hold(const Chooser *c, const Flow *f, Try *t)
{
    t->item = rng_chance(c->r, 0.05) ? f->line.last : any_item(f, c->r);
    if (t->item < 0)
        return false;
    const FlowItem *x = &f->item[t->item];
    t->free = x->pinned.count && rng_chance(c->r, 0.8);
    t->value = t->free ? f->slot[x->pinned.at[rng_below(c->r, x->pinned.count)]].value
                       : (int)rng_below(c->r, f->count.value);
    const FlowValue *v = &f->value[t->value];
    return t->free || (!f->item[v->item].gone && line_before(&f->line, v->item, t->item));
}

/* A body of a loop of f, or of a loop in it; f itself where there is none. */
static Flow *any_body(const Chooser *c, Flow *f)
{
    for (int k = 0; k < 10 && rng_chance(c->r, c->inside); k++) {
        int item = any_item(f, c->r);
        const FlowItem *x = item < 0 ? NULL : &f->item[item];
        if (!x || !x->loop.body[0])
            continue;
        f = x->loop.body[x->loop.body[1] && rng_chance(c->r, 0.5)];
    }
    return f;
}

bool try_choose(const Chooser *c, Flow *f, TryKind kind, Try *t)
{
    *t = (Try){.kind = kind, .f = any_body(c, f)};
    return kind == TRY_REMOVE    ? choose_remove(c, t->f, t)
           : kind == TRY_REWIRE  ? choose_rewire(c, t->f, t)
           : kind == TRY_REPLACE ? choose_replace(c, t->f, t)
           : kind == TRY_HOLD    ? choose_hold(c, t->f, t)
                                 : choose_move(c, t->f, t);
}

void try_make(const Try *t)
{
    switch (t->kind) {
    case TRY_CLONE: flow_clone(t->f, t->item, t->before); break;
    case TRY_MOVE: flow_move(t->f, t->item, t->before); break;
    case TRY_REMOVE: flow_remove(t->f, t->item); break;
    case TRY_REWIRE: flow_rewire(t->f, t->item, t->slot, t->value); break;
    case TRY_HOLD: (t->free ? flow_free : flow_hold)(t->f, t->item, t->value); break;
    case TRY_REPLACE: flow_replace(t->f, t->before, t->value); break;
    case TRY_KINDS: break;
    }
}
