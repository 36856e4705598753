/* close: makes one loop of a region, or two.
 *
 * The nodes fall into levels: a node that depends on a result of level l through nodes outside of
 * the region is of level l + 1. Neighbouring levels become one loop if all nodes on paths between
 * them can be cut too. A path may lead over a value of one element that is known only when all
 * slices are (a later scale of the loss): bodies then read 1 in its place, everything made of it
 * must be linear in it, and what leaves the loop is multiplied by it. More than two loops are
 * refused. Linear in the graph for each try. */
#include "reach.h"

#include <string.h>

enum { MOST_LEVELS = 8 };

/* ---- levels ---- */

/* The least level of n's readers; its own if one of them is not of the region. */
static int readers_level(const Growth *x, const Node *n, const int *level)
{
    int least = MOST_LEVELS;
    for (int k = 0; k < n->nout; k++)
        for (Node **m = index_users(x->index, n->out[k]); m && *m; m++)
            least = MIN(least, x->joined[(*m)->id] ? level[(*m)->id] : level[n->id]);
    return least == MOST_LEVELS ? level[n->id] : least;
}

/* By node id: the level of a node of the region. A node that only a later level reads is of that
 * level, such as what the backward alone needs of the forward. */
static int *find_levels(const Growth *x)
{
    int *level = SPARSE(x->tmp, int, x->g->nnode);
    Reach r = reach_start(x, x->queue, x->nqueue);
    for (int k = 0; k < x->nqueue; k++) {
        const Node *n = x->queue[k];
        for (int i = 0; i < node_nsource(n); i++) {
            const Node *m = node_source(n, i);
            int from = !m ? 0 : x->joined[m->id] ? level[m->id] : reach_of(&r, m);
            level[n->id] = MAX(level[n->id], from);
        }
        reach_add(&r, level[n->id] + 1);
    }
    for (int i = x->nqueue; i-- > 0;) {
        const Node *n = x->queue[i];
        level[n->id] = MAX(level[n->id], readers_level(x, n, level));
    }
    return level;
}

/* ---- one loop: the nodes on paths out of it and back ---- */

/* Whether no result of n is cut: then it is made around the loop as well. */
static bool makes_whole(const Growth *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (x->cut.value[n->out[k]->id].kind != CUT_WHOLE)
            return false;
    return true;
}

/* Looks at the nodes from `first` to before `end`: all nodes on paths are among them. */
static LoopPaths find_paths(const Growth *x, const Node *first, const Node *end)
{
    const bool *inside = x->joined;
    LoopPaths w = {SPARSE(x->tmp, bool, x->mostnode), SPARSE(x->tmp, bool, x->mostnode),
                   SPARSE(x->tmp, bool, x->mostvalue), SPARSE(x->tmp, Value *, x->mostvalue)};
    for (const Node *n = first; n != end; n = n->next)
        for (int i = 0; i < node_nsource(n); i++) {
            const Node *m = node_source(n, i);
            w.after[n->id] |= m && ((inside[m->id] && !makes_whole(x, m)) || w.after[m->id]);
        }
    const Node *last = end ? end->prev : x->g->last;
    for (const Node *n = last; n != first->prev; n = n->prev)
        for (int i = 0; i < node_nsource(n); i++) {
            const Node *m = node_source(n, i);
            if (m)
                w.before[m->id] |= inside[n->id] || w.before[n->id];
        }
    return w;
}

/* Whether v is a constant 0, which is a multiple of anything. */
static bool is_zero(const Value *v)
{
    const Node *n = v->def;
    while (n && (n->op->view || n->op->copy) && n->in[0]->def)
        n = n->in[0]->def;
    return node_is_full(n, 0);
}

/* Whether n is linear in the operands that are scaled, and perhaps in those more that are 0. Of
 * more operands than a set of op_linear has bits all must be one or the other. */
static bool is_linear(const Node *n, const bool *scaled)
{
    uint64_t some = 0, zeros = 0;
    bool all = true;
    for (int i = 0; i < n->nin; i++) {
        bool zero = !scaled[i] && is_zero(n->in[i]);
        all &= scaled[i] || zero;
        some |= i < 63 && scaled[i] ? 1ULL << i : 0;
        zeros |= i < 63 && zero ? 1ULL << i : 0;
    }
    if (n->nin > 63)
        return all && op_linear(n, UINT64_MAX);
    return op_linear(n, some) || (zeros && op_linear(n, some | zeros));
}

/* *scale: the value after the loop that multiplies n's results, or NULL. False: n is not linear in
 * it, or reads values after the loop otherwise. */
static bool find_scale(Growth *x, const LoopPaths *w, const Node *n, Value **scale)
{
    bool *scaled = NEWN(x->tmp, bool, n->nin);
    *scale = NULL;
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i], *by = is_made(x, v) ? w->scale[v->id] : w->behind[v->id] ? v : NULL;
        if (!by)
            continue;
        if (type_nelem(&by->type) != 1)
            return growth_refuse(x, n,
                                 arena_printf(x->tmp,
                                              "it reads %%%s, which is known only behind the loop",
                                              by->name));
        if (*scale && *scale != by)
            return growth_refuse(x, n,
                                 arena_printf(x->tmp, "it reads two later scales, %%%s and %%%s",
                                              (*scale)->name, by->name));
        *scale = by;
        scaled[i] = true;
    }
    return !*scale || is_linear(n, scaled) ||
           growth_refuse(
               x, n, arena_printf(x->tmp, "it is not linear in the later %%%s", (*scale)->name));
}

/* A value as large as what is sliced is for a region of its own. */
static bool makes_large(const Growth *x, const Node *n)
{
    for (int k = 0; k < n->nout && !node_aliases(n); k++)
        if (is_large(x, n->out[k]))
            return true;
    return false;
}

static bool reads_made(const Growth *x, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (is_made(x, n->in[i]))
            return true;
    return false;
}

/* Fills x->want for values on the paths that are made only of values after the loop: the cuts that
 * their readers need. */
static void want_on_paths(Growth *x, const LoopPaths *w, const Node *first, Node *last)
{
    for (Node *n = last; n != first->prev; n = n->prev) {
        bool inside = x->joined[n->id], between = !inside && w->after[n->id] && w->before[n->id];
        Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
        NodeCut how;
        if (!inside && !between)
            continue;
        if (inside)
            growth_cuts(x, n, in, out);
        else if (reads_made(x, n) || !growth_how(x, n, &how, in, out))
            continue;
        for (int i = 0; i < n->nin; i++) {
            const Node *m = n->in[i]->def;
            if (in[i].kind == CUT_SLICE && m && !x->joined[m->id] && w->after[m->id])
                x->want[n->in[i]->id] = in[i];
        }
    }
}

/* Has the nodes on paths between those of x->joined join, or leaves them after the loop. False: a
 * node inside needs one that is left. */
static bool close_paths(Growth *x, LoopPaths *w, Node *first, Node *last)
{
    want_on_paths(x, w, first, last);
    for (Node *n = first; n != last->next; n = n->next) {
        Value *scale = NULL;
        bool inside = x->joined[n->id], between = w->after[n->id] && w->before[n->id];
        bool good = (inside || between) && find_scale(x, w, n, &scale);
        if (inside && !good)
            return false;
        if (between && good && !inside)
            inside = (scale || reads_made(x, n)) && !makes_large(x, n) && growth_join(x, n);
        for (int k = 0; k < n->nout; k++) {
            w->scale[n->out[k]->id] = inside ? scale : NULL;
            w->behind[n->out[k]->id] = !inside && w->after[n->id];
        }
    }
    return true;
}

/* Whether n has what it needs: slices of a whole value are read from the graph around, which must
 * have it before the loop. */
static bool has_operands(Growth *x, const LoopPaths *w, const Node *n)
{
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    growth_cuts(x, n, in, out);
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        if (is_made(x, v) && w->scale[v->id] && !cut_equal(in[i], x->cut.value[v->id]))
            return growth_refuse(x, n,
                                 arena_printf(x->tmp,
                                              "it needs a part of %%%s, which is known only "
                                              "behind the loop",
                                              v->name));
    }
    return growth_agrees(x, n, in, out);
}

/* Whether what waits for n, if n runs beside the kernels, is inside with it. */
static bool is_awaited(Growth *x, const Node *n)
{
    for (int k = 0; k < n->nout && op_starts(n->op); k++)
        for (Node **m = index_users(x->index, n->out[k]); m && *m; m++)
            if (!x->joined[(*m)->id])
                return growth_refuse(x, n, "it is waited for outside");
    return true;
}

/* Whether all readers inside have what they need, and no order or wait crosses the loop. */
static bool is_sound(Growth *x, const Closed *c)
{
    Node **list = NEWN(x->tmp, Node *, c->nnode + x->index->nedged + 1);
    memcpy(list, c->node, sizeof *list * (size_t)c->nnode);
    if (x->index->nedged)
        memcpy(list + c->nnode, x->index->edged, sizeof *list * (size_t)x->index->nedged);
    growth_sort(x, list, c->nnode + x->index->nedged);
    for (; *list; list++) {
        const Node *n = *list;
        bool inside = x->joined[n->id];
        if (inside && (!has_operands(x, &c->paths, n) || !is_awaited(x, n)))
            return false;
        for (int i = 0; i < n->nafter; i++)
            if (x->joined[n->after[i]->id] != inside)
                return growth_refuse(x, n, "its order after another node crosses the loop");
    }
    return true;
}

/* Nodes that depend on a region's, but are neither of it nor known before it. */
typedef struct NodesBehind {
    const Growth *y;
    Reach r; /* 1: it is after the loop, or between */
    bool *seen;
    const Node **node;
    int count, cap;
} NodesBehind;

static void find_behind(NodesBehind *x, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const Node *m = n->in[i]->def;
        if (!m || x->y->joined[m->id] || x->seen[m->id] || type_nelem(&n->in[i]->type) == 1 ||
            !reach_of(&x->r, m))
            continue;
        x->seen[m->id] = true;
        PUSH(x->y->tmp, x->node, x->count, x->cap, m);
    }
}

/* Whether a loop of y's nodes must fail: one of them needs a value after the loop of more than one
 * element, made by nodes that cannot join, as all that they read of the loop leads to such a value
 * too. Walks from the loop's operands back, the nearest first: once, mostly not far, where a trial
 * takes several walks. */
static bool is_hopeless(const Growth *y, Node *const *node, int count)
{
    NodesBehind x = {
        .y = y, .r = reach_start(y, node, count), .seen = SPARSE(y->tmp, bool, y->mostnode)};
    for (int k = 0; k < count; k++) {
        bool after = !makes_whole(y, node[k]);
        for (int i = 0; i < node_nsource(node[k]) && !after; i++) {
            const Node *m = node_source(node[k], i);
            after = m && (y->joined[m->id] ? x.r.said[m->id] : reach_of(&x.r, m));
        }
        reach_add(&x.r, after);
    }
    for (int k = 0; k < count; k++)
        find_behind(&x, node[k]);
    for (int k = 0; k < x.count; k++) {
        if (x.node[k]->op->region || makes_large(y, x.node[k]))
            return true;
        find_behind(&x, x.node[k]);
    }
    return false;
}

/* Whether a node must run after one of the region, beside what reads say. */
static bool has_order(const Growth *x)
{
    for (int i = 0; i < x->index->nedged; i++)
        for (int j = 0; j < x->index->edged[i]->nafter; j++)
            if (x->joined[x->index->edged[i]->after[j]->id])
                return true;
    return false;
}

/* Closes a loop of one level. No path of reads leaves it and comes back: the nodes after would be
 * of the next level. */
static bool close_level(Growth *y, Closed *c)
{
    c->paths.behind = SPARSE(y->tmp, bool, y->mostvalue);
    c->paths.scale = SPARSE(y->tmp, Value *, y->mostvalue);
    return is_sound(y, c);
}

/* Closes a loop of several levels, with the nodes between them. */
static bool close_levels(Growth *y, Closed *c)
{
    Cut *want = SPARSE(y->tmp, Cut, y->mostvalue);
    memcpy(want, y->want, sizeof *want * (size_t)y->g->nvalue);
    y->want = want;
    Node *first = c->node[0], *last = c->node[c->nnode - 1];
    c->paths = find_paths(y, first, last->next);
    if (!close_paths(y, &c->paths, first, last))
        return false;
    memcpy(y->queue + y->nqueue, c->node, sizeof *c->node * (size_t)c->nnode);
    c->nnode = growth_sort(y, y->queue, y->nqueue + c->nnode);
    c->node = y->queue;
    return is_sound(y, c);
}

/* Makes one loop of the nodes of levels low ... high, if there can be one. */
static Closed close_loop(Growth *x, const int *level, int low, int high)
{
    Growth y = *x;
    y.joined = SPARSE(x->tmp, bool, x->mostnode);
    y.queue = SPARSE(x->tmp, Node *, x->g->nnode + x->nqueue + 1);
    y.nqueue = 0;
    Closed c = {.inside = y.joined, .node = NEWN(x->tmp, Node *, x->nqueue + 1)};
    for (int i = 0; i < x->nqueue; i++) {
        Node *n = x->queue[i];
        if (level[n->id] < low || level[n->id] > high)
            continue;
        y.joined[n->id] = true;
        c.node[c.nnode++] = n;
    }
    bool good = low == high && !has_order(x)
                    ? close_level(&y, &c)
                    : (low == high || !is_hopeless(&y, c.node, c.nnode)) && close_levels(&y, &c);
    if (!good)
        c.inside = NULL;
    x->why = y.why;
    return c;
}

int growth_close(Growth *x, Closed loop[2])
{
    Node *seed = x->queue[0];
    x->nqueue = growth_sort(x, x->queue, x->nqueue);
    const int *level = find_levels(x);
    int last = 0, low = 0, count = 0;
    for (int i = 0; i < x->nqueue; i++)
        last = MAX(last, level[x->queue[i]->id]);
    if (last >= MOST_LEVELS)
        return growth_refuse(x, seed, "it would take many loops after each other");
    while (low <= last) {
        int high = last;
        Closed c = close_loop(x, level, low, high);
        while (!c.inside && high > low)
            c = close_loop(x, level, low, --high);
        if (!c.inside)
            return 0;
        if (count == 2)
            return growth_refuse(x, seed, "it would take three loops after each other");
        loop[count++] = c;
        low = high + 1;
    }
    return count;
}
