/* repeat: splits live ranges of clones by recomputing again. `remat` makes one clone of a node,
 * before its first reader in the backward, for all readers. If a later reader is far away and the
 * clone raises the peak in between, readers after the peak get a second clone, and the first dies
 * before the peak.
 *
 * Method: while a clone is alive at the peak of the flow without being used there, its live range
 * is split: a new clone is made for the readers after the peak. It reads values that are alive
 * there, or further clones, or keeps saved values alive. Each split is tried on the flow and stays
 * if everything that it adds remains below the peak. At the end the longest prefix of splits is
 * kept that lowers the peak by repeat_gain bytes or a thousandth, and by a greater share than it
 * adds to the graph's operations; second clones take no more operations than the first ones. If a
 * loop is at the peak, its bodies are treated in the same way. Loops and collectives have no second
 * clones.
 *
 * Clones are tried largest first, in at most ROUNDS rounds: at first only splits that pay by
 * themselves, then any. A try costs the readers that it changes, times log n. A clone's origin is
 * the clone before it, so that cse does not merge them. */
#include "../flow/flow.h"
#include "pass.h"

#include <math.h>
#include <stdlib.h>

enum {
    ROUNDS = 16,
    MOST_AGAIN = 16, /* clones made for one split */
    MOST_TIMES = 32, /* clones of a node */
};

/* The clones that were made so far, by the splits that stay. */
typedef struct Repeat {
    Flow *f;
    Arena *tmp;
    int *left;            /* by node id: how many more clones it may get */
    int *again, capagain; /* by item: the next clone of the same node on the line, -1: none */
    double nflop;         /* that second clones may still cost */
} Repeat;

/* The split that is being tried. */
typedef struct RangeSplit {
    int place; /* the item before which clones are made */
    int low;   /* the first item that the split may add bytes to */
    int made[MOST_AGAIN], from[MOST_AGAIN], nmade; /* clones, and the items that they clone */
    double cost;
} RangeSplit;

/* ---- clones and their readers ---- */

static bool is_view(const Flow *f, int item)
{
    return item_node(f, item) && item_node(f, item)->op->view;
}

/* The base of v if that is a view, or v. */
static int view_base(const Flow *f, int v)
{
    while (is_view(f, value_item(f, v)))
        v = item_operand(f, value_item(f, v), 0);
    return v;
}

/* The latest clone of `item`, or the item itself, before the split's place: one of the split's, or
 * the last before it. */
static int clone_at(const Repeat *r, const RangeSplit *c, int item)
{
    for (int k = 0; k < c->nmade; k++)
        if (item_node(r->f, c->made[k]) == item_node(r->f, item))
            return c->made[k];
    while (r->again[item] >= 0 && flow_before(r->f, r->again[item], c->place))
        item = r->again[item];
    return item;
}

static bool repeatable(const Repeat *r, int item)
{
    const Node *n = item_node(r->f, item);
    return n && r->left[n->id] > 0;
}

static double flops(const Node *n)
{
    double sum = 0;
    if (!n->region)
        return node_cost(n).nflop;
    EACH_BODY(b, n)
        for (const Node *m = n->region->body[b]->first; m; m = m->next)
            sum += flops(m) * (double)region_times(n->region, b);
    return sum;
}

/* ---- one split ---- */

static int clone_again(const Repeat *r, RangeSplit *c, int item);

/* The same view as v, of the value `base`. */
static int view_of(Flow *f, const RangeSplit *c, int v, int base)
{
    int item = value_item(f, v);
    if (!is_view(f, item))
        return base;
    int from = view_of(f, c, item_operand(f, item, 0), base), index = value_in_graph(f, v)->index;
    for (int u = value_use(f, from); u >= 0; u = use_next(f, u))
        if (item_node(f, use_item(f, u)) == item_node(f, item) &&
            flow_before(f, use_item(f, u), c->place))
            return item_result(f, use_item(f, u), index);
    int clone = flow_clone(f, item, c->place);
    flow_rewire(f, clone, 0, from);
    return item_result(f, clone, index);
}

/* The value to read at the place instead of v: v if it is alive there or cannot be cloned, else of
 * a new clone. -1: too many clones. */
static int value_at(const Repeat *r, RangeSplit *c, int v)
{
    Flow *f = r->f;
    int base = view_base(f, v), index = value_in_graph(f, base)->index, item = value_item(f, base);
    if (item == flow_first(f))
        return v;
    int latest = clone_at(r, c, item);
    int last = value_last(f, item_result(f, latest, index));
    if (flow_before(f, last, c->place)) {
        if (!repeatable(r, latest))
            c->low = flow_before(f, last, c->low) ? last : c->low;
        else if ((latest = clone_again(r, c, latest)) < 0)
            return -1;
    }
    return latest == item ? v : view_of(f, c, v, item_result(f, latest, index));
}

/* Clones `item` before the place; returns the clone, or -1: too many. */
static int clone_again(const Repeat *r, RangeSplit *c, int item)
{
    Flow *f = r->f;
    const Node *n = item_node(f, item);
    int *operand = NEWN(r->tmp, int, n->nin);
    for (int i = 0; i < n->nin; i++)
        if ((operand[i] = value_at(r, c, item_operand(f, item, i))) < 0)
            return -1;
    if (c->nmade == MOST_AGAIN)
        return -1;
    int clone = flow_clone(f, item, c->place);
    for (int i = 0; i < n->nin; i++)
        if (operand[i] != item_operand(f, clone, i))
            flow_rewire(f, clone, i, operand[i]);
    c->cost += flops(n);
    c->from[c->nmade] = item;
    c->made[c->nmade++] = clone;
    return clone;
}

/* Whether an item from the place on reads a result of a view, through views or directly. */
static bool read_after(const Flow *f, int item, int place)
{
    for (int k = 0; k < item_node(f, item)->nout; k++)
        for (int u = value_use(f, item_result(f, item, k)); u >= 0; u = use_next(f, u)) {
            int reader = use_item(f, u);
            if (!flow_before(f, reader, place) ||
                (is_view(f, reader) && read_after(f, reader, place)))
                return true;
        }
    return false;
}

/* Makes readers of v from the place on read `now`. */
static void hand_over(Flow *f, int v, int now, int place)
{
    for (int u = value_use(f, v), next; u >= 0; u = next) {
        int item = use_item(f, u), i = use_operand(f, u);
        next = use_next(f, u);
        if (!flow_before(f, item, place)) {
            flow_rewire(f, item, i, now);
        } else if (is_view(f, item) && read_after(f, item, place)) {
            int clone = flow_clone(f, item, place);
            flow_rewire(f, clone, 0, now);
            for (int k = 0; k < item_node(f, item)->nout; k++)
                hand_over(f, item_result(f, item, k), item_result(f, clone, k), place);
        }
    }
}

/* Room for all items. */
static void grow(Repeat *r)
{
    while (r->capagain < flow_nitem(r->f)) {
        int old = r->capagain;
        r->again = arena_grow(r->tmp, r->again, old, &r->capagain, sizeof *r->again);
        for (int i = old; i < r->capagain; i++)
            r->again[i] = -1;
    }
}

static void commit(Repeat *r, const RangeSplit *c)
{
    grow(r);
    for (int k = 0; k < c->nmade; k++) {
        r->again[c->made[k]] = r->again[c->from[k]];
        r->again[c->from[k]] = c->made[k];
        r->left[item_node(r->f, c->made[k])->id]--;
    }
    r->nflop -= c->cost;
}

/* Splits the live range of an item's clone at the peak, if that lowers the peak there and what is
 * added stays below it, for at most `worth` operations per byte. */
static bool try_split(Repeat *r, int item, double worth)
{
    Flow *f = r->f;
    int peak = flow_peak_item(f), undo = flow_mark(f);
    int64_t height = flow_peak(f);
    RangeSplit c = {.place = peak, .low = peak};
    int latest = clone_at(r, &c, item);
    if (!flow_before(f, latest, peak) || !repeatable(r, item))
        return false;
    c.place = item_next_touch(f, latest, peak);
    if (c.place < 0)
        return false;
    int clone = clone_again(r, &c, latest);
    if (clone >= 0 && c.cost <= MIN(r->nflop, worth * (double)item_made_bytes(f, latest))) {
        for (int k = 0; k < item_node(f, item)->nout; k++)
            hand_over(f, item_result(f, latest, k), item_result(f, clone, k), c.place);
        if (flow_most(f, c.low, c.place) < height && flow_peak(f) <= height) {
            commit(r, &c);
            return true;
        }
    }
    flow_undo(f, undo);
    return false;
}

/* ---- all splits ---- */

typedef struct SizedClone {
    int64_t nbytes;
    int item;
} SizedClone;

static int by_size(const void *x, const void *y)
{
    const SizedClone *s = x, *t = y;
    return s->nbytes != t->nbytes ? (s->nbytes < t->nbytes ? 1 : -1) : s->item - t->item;
}

/* Fills the candidates, the largest first; *all: the graph's operations. */
static SizedClone *find_candidates(Repeat *r, int *count, double *all)
{
    const Flow *f = r->f;
    SizedClone *list = NEWN(r->tmp, SizedClone, flow_nitem(f));
    *count = 0;
    *all = 1;
    for (int i = flow_next(f, flow_first(f)); i != flow_last(f); i = flow_next(f, i)) {
        double nflop = is_view(f, i) ? 0 : flops(item_node(f, i));
        *all += nflop;
        if (!repeatable(r, i))
            continue;
        r->nflop += nflop;
        list[(*count)++] = (SizedClone){item_made_bytes(f, i), i};
    }
    qsort(list, (size_t)*count, sizeof *list, by_size);
    return list;
}

/* Leaves those splits in the flow that lower its peak by enough. */
static void find_splits(Repeat *r, int64_t enough)
{
    double all;
    int count, good = flow_mark(r->f);
    SizedClone *list = find_candidates(r, &count, &all);
    const int64_t shared = flow_peak(r->f);
    int64_t least = shared;
    const double nflop = r->nflop;
    double worth = all / (double)shared;
    bool split = count > 0;
    for (int round = 0; round < ROUNDS && split; round++) {
        split = false;
        for (int i = 0; i < count; i++) {
            if (!try_split(r, list[i].item, worth))
                continue;
            split = true;
            if (flow_peak(r->f) >= least)
                continue;
            least = flow_peak(r->f);
            double gain = (double)(shared - least) / (double)shared;
            if (shared - least >= MIN(enough, shared / 1000) && gain > (nflop - r->nflop) / all)
                good = flow_mark(r->f);
        }
        if (!split && worth < HUGE_VAL) {
            worth = HUGE_VAL;
            split = true;
        }
    }
    flow_undo(r->f, good);
}

/* ---- the graph ---- */

/* Makes the node of an item that is a clone, before the next item's node. */
static Node *make_node(Graph *g, const Node *n, Node *before, const Value *latest)
{
    bool again =
        !n->op->view || n->origin || n->phase < BACKWARD; /* not the backward's own views */
    return remat_clone(g, n, before, again ? latest->name : NULL);
}

/* Applies the flow's changes to the graph; returns how many nodes were cloned, views aside. */
static int apply(const Flow *f, Arena *tmp, int nold)
{
    Graph *g = flow_graph(f);
    int made = 0;
    Value **value = NEWN(tmp, Value *, flow_nvalue(f)), **latest = NEWN(tmp, Value *, g->nvalue);
    Node **now = NEWN(tmp, Node *, flow_nitem(f)), *next = g->first;
    for (int i = 0; i < flow_nvalue(f); i++)
        value[i] = (Value *)value_in_graph(f, i);
    for (int i = flow_next(f, flow_first(f)); i != flow_last(f); i = flow_next(f, i)) {
        const Node *n = item_node(f, i);
        Value **last = &latest[n->out[0]->id];
        now[i] = i < nold ? next : make_node(g, n, next, *last ? *last : n->out[0]);
        next = now[i]->next;
        made += i >= nold && !n->op->view;
        for (int j = 0; j < n->nin; j++)
            now[i]->in[j] = value[item_operand(f, i, j)];
        for (int k = 0; k < n->nout; k++)
            value[item_result(f, i, k)] = now[i]->out[k];
        *last = n->op->view ? n->out[0] : now[i]->out[0];
    }
    return made;
}

/* By node id, how often a node may be cloned again: clones whose original has a policy of
 * recomputing, or is gone. */
static int *find_clones(const Graph *g, Arena *tmp)
{
    int *left = NEWN(tmp, int, g->nnode);
    for (const Node *n = g->first; n; n = n->next) {
        const Node *from = find_original(g, n);
        bool clone = n->phase == BACKWARD && n->origin && (!from || policy_again(from->policy));
        bool may = !node_aliases(n) && n->op->region != LOOP && n->op->class != CLASS_COLLECTIVE;
        left[n->id] = clone && may && !n->nafter ? MOST_TIMES : 0;
    }
    return left;
}

static int repeat(Flow *f, Arena *tmp, int64_t enough)
{
    Repeat r = {.f = f, .tmp = tmp, .left = find_clones(flow_graph(f), tmp)};
    int nold = flow_nitem(f), count = 0;
    grow(&r);
    find_splits(&r, enough);
    int peak = flow_peak_item(f);
    if (flow_nitem(f) > nold)
        count += apply(f, tmp, nold);
    for (int c = 0; item_body(f, peak, c); c++)
        count += repeat(item_body(f, peak, c), tmp, enough);
    return count;
}

/* Whether it is worth to make the flow. */
static bool has_clone(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n && !found; n = n->next) {
        found = n->origin != NULL;
        EACH_LOOP_BODY(b, n)
            found |= has_clone(n->region->body[b]);
    }
    return found;
}

int pass_repeat(Graph *g, Arena *tmp, const PassOptions *o)
{
    return has_clone(g) ? repeat(pass_flow(g, o, tmp), tmp, o->repeat_gain) : 0;
}
