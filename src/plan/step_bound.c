/* step_bound: seconds that no schedule of a plan's graph is faster than: neither another order, nor
 * other buckets, nor more memory.
 *
 * Items are the calls of the graph, with the plan's seconds, joined by what they read alone: order
 * edges and memory do not count. A collective of several values is an item for each, which waits
 * for its own operand, and takes on its way the seconds that it would take alone. Five queues have
 * work: computing, copies out and in, and the two links, whose rate groups of ranks share
 * (clock.c). There a collective counts with its share of the seconds of one call for all of its
 * unit: those of parameters, or of gradients, of one block, op, group, dtype and direction.
 *
 * A start is at least the longest way to it. Where the graph narrows to one item, as in the
 * residual stream and at the loss (step_narrow.c), what comes before it must all be done: its start
 * is raised to the least time that sets of these items take (step_sets.c), with what follows them
 * up to this one. So seconds add up along the stream. What follows an item is found likewise, from
 * the end. The step takes at least what sets of all items do.
 *
 * Another bound is that of the schedules within some bytes. What is computed again from a batch may
 * use the time for which the forward waits, but then is alive until the backward. First nothing of
 * it may begin before the forward has ended; calls made again do not wait for their operands.
 * Whoever computes some of it earlier, in S seconds, could do so, one after the other, right behind
 * the forward, and all else S later than before. So that bound less S holds for all, and
 * step_early.c says how large S may be.
 *
 * Copies that the planner adds have seconds in the step, but are no items.
 *
 * A loop is an item with as many times the bound of its body, as its iterations follow one another;
 * it has its links' work too. O(narrow items x n); of large graphs fewer items count as
 * narrow, so that each takes about a second at most. */
#include "step_bound.h"
#include "step_early.h"

#include <string.h>

/* ---- seconds ---- */

/* Copies that flow leaves out take none. */
static double sec_of(const NodeSteps *steps, const Node *n)
{
    const Step *s = plan_node_step(steps, n);
    return s ? s->sec : 0;
}

/* ---- items ---- */

static bool communicates(const Node *n)
{
    return n->op->class == CLASS_COLLECTIVE;
}

static double moved_bytes(const Node *n, int t)
{
    return (double)MAX(type_nbytes(&n->in[t]->type), type_nbytes(&n->out[t]->type));
}

static int items_of(const Node *n)
{
    return communicates(n) ? n->nout : 1;
}

static void add_items(StepBound *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        x->of[n->out[k]->id] = communicates(n) ? x->n + k : x->n;
    for (int t = 0; t < items_of(n); t++)
        x->item[x->n++] = (BoundItem){.node = n, .tensor = t};
}

/* The nodes between two in the graph's order, of the backward or not. */
static void add_between(StepBound *x, const Node *from, const Node *to, bool backward)
{
    for (const Node *n = from; n != to; n = n->next)
        if ((n->phase == BACKWARD) == backward)
            add_items(x, n);
}

/* Items stand in an order of their edges: what the backward computes is behind the loss. */
static void number_items(StepBound *x)
{
    int count = 0;
    const Node *behind = x->loss ? x->loss->next : x->g->first;
    x->of = NEWN(x->tmp, int, x->g->nvalue);
    for (int i = 0; i < x->g->nvalue; i++)
        x->of[i] = -1;
    for (const Node *n = x->g->first; n; n = n->next)
        count += items_of(n);
    x->item = NEWN(x->tmp, BoundItem, count);
    x->n = 0;
    add_between(x, x->g->first, behind, false);
    add_between(x, x->g->first, behind, true);
    for (const Node *n = behind; n; n = n->next)
        add_items(x, n);
}

/* Fills what is made of nothing but the graph's kept inputs and constants. */
static void find_kept(StepBound *x)
{
    bool *given = NEWN(x->tmp, bool, x->g->nvalue);
    x->kept = NEWN(x->tmp, bool, x->n);
    for (int i = 0; i < x->g->nin; i++)
        given[x->g->in[i].v->id] = x->g->parent || role_kept(x->g->in[i].role);
    for (int i = 0; i < x->n; i++) {
        const Node *n = x->item[i].node;
        bool one = communicates(n);
        x->kept[i] = true;
        for (int k = one ? x->item[i].tensor : 0; k < (one ? x->item[i].tensor + 1 : n->nin); k++) {
            int of = x->of[n->in[k]->id];
            x->kept[i] &= of < 0 ? given[n->in[k]->id] : x->kept[of];
        }
    }
}

/* Whether an item computes again what a batch makes. */
static bool again(const StepBound *x, int i)
{
    const Node *n = x->item[i].node;
    return n->origin && n->phase == BACKWARD && !communicates(n) && !n->op->wait && !n->op->view &&
           !x->kept[i];
}

/* Whether an item is a call made again, which may be anywhere if nothing is computed early. */
static bool floats(const StepBound *x, int i)
{
    const Node *n = x->item[i].node;
    return communicates(n) && n->origin && n->phase == BACKWARD;
}

/* Calls see(x, of, reader) for each item that an item reads. */
static void each_edge(StepBound *x, void (*see)(StepBound *x, int of, int reader))
{
    for (int i = 0; i < x->n; i++) {
        const Node *n = x->item[i].node;
        bool one = communicates(n);
        if (x->loss && floats(x, i))
            continue;
        if (x->loss && again(x, i))
            see(x, x->of[x->loss->out[0]->id], i);
        for (int k = one ? x->item[i].tensor : 0; k < (one ? x->item[i].tensor + 1 : n->nin); k++)
            if (x->of[n->in[k]->id] >= 0)
                see(x, x->of[n->in[k]->id], i);
    }
}

static void count_edge(StepBound *x, int of, int reader)
{
    x->succ.at[of + 1]++;
    x->pred.at[reader + 1]++;
}

static void put_edge(StepBound *x, int of, int reader)
{
    x->succ.item[x->succ.at[of]++] = reader;
    x->pred.item[x->pred.at[reader]++] = of;
}

/* The ends of lists become their beginnings again, once all is put. */
static void shift(int *at, int n)
{
    memmove(at + 1, at, sizeof *at * (size_t)n);
    at[0] = 0;
}

static void link_items(StepBound *x)
{
    x->pred.at = NEWN(x->tmp, int, x->n + 1);
    x->succ.at = NEWN(x->tmp, int, x->n + 1);
    each_edge(x, count_edge);
    for (int i = 0; i < x->n; i++) {
        x->pred.at[i + 1] += x->pred.at[i];
        x->succ.at[i + 1] += x->succ.at[i];
    }
    x->pred.item = NEWN(x->tmp, int, x->pred.at[x->n] + 1);
    x->succ.item = NEWN(x->tmp, int, x->succ.at[x->n] + 1);
    each_edge(x, put_edge);
    shift(x->pred.at, x->n);
    shift(x->succ.at, x->n);
}

static void link_all(StepBound *x)
{
    number_items(x);
    find_kept(x);
    link_items(x);
}

/* ---- units ---- */

/* Collectives that one call could make. */
typedef struct BoundUnit {
    double sec, nbytes; /* of the calls that there are; of all values */
    int count;
} BoundUnit;

/* Whether nothing but updates, and what hands it on to them, reads an item. */
static bool *made_for_updates(const StepBound *x)
{
    bool *update = NEWN(x->tmp, bool, x->n);
    for (int i = x->n - 1; i >= 0; i--) {
        const Node *n = x->item[i].node;
        bool hands_on = communicates(n) || n->op->wait || n->op->view || n->op->copy ||
                        n->op->class == CLASS_POINTWISE || n->op->class == CLASS_MOVEMENT;
        update[i] = n->phase > BACKWARD || hands_on;
        EACH_ITEM(k, x->succ, i)
            update[i] &= update[x->succ.item[k]];
    }
    return update;
}

static const char *text_attr(const Node *n, const char *name)
{
    int i = attr_index(n->op, name);
    return i < 0 ? "" : n->attr[i].s;
}

/* Items with equal keys are of one unit. */
static const char *unit_key(const StepBound *x, int i, bool parameter)
{
    const Node *n = x->item[i].node;
    Block b = block_of(n->scope);
    return arena_printf(x->tmp, "%s %s %s %d %d %d %.*s", n->op->name, text_attr(n, "group"),
                        text_attr(n, "reduce_op"), (int)n->in[0]->type.dtype,
                        (int)MAX(n->phase, BACKWARD), parameter, b.len, n->scope);
}

static bool reduces(const Node *n)
{
    CollectiveKind k = node_collective(n);
    return k == REDUCE_SCATTER || k == ALL_REDUCE;
}

/* Fills the unit of each item, NULL: it has none. */
static BoundUnit **find_units(const StepBound *x)
{
    BoundUnit **unit = NEWN(x->tmp, BoundUnit *, x->n);
    bool *update = made_for_updates(x);
    Map of = {.a = x->tmp};
    for (int i = 0; i < x->n; i++) {
        const Node *n = x->item[i].node;
        if (!communicates(n) || !(reduces(n) ? update[i] && n->phase == BACKWARD : x->kept[i]))
            continue;
        const char *key = unit_key(x, i, !reduces(n));
        if (!(unit[i] = map_find(&of, key))) {
            unit[i] = NEW(x->tmp, BoundUnit);
            map_put(&of, key, unit[i]);
        }
        unit[i]->nbytes += moved_bytes(n, x->item[i].tensor);
        unit[i]->count++;
    }
    return unit;
}

/* ---- work ---- */

static double loop_bound(const StepBound *x, const NodeSteps *steps, BoundItem *it);

static double call_sec(const StepBound *x, const Node *n, Group where, double nbytes)
{
    return collective_sec(x->p->machine, node_collective(n), where, nbytes);
}

static void fill_collective(const StepBound *x, BoundItem *it, const BoundUnit *unit, double sec)
{
    const Node *n = it->node;
    Group where = node_group(x->p->machine, graph_mesh(x->g), n);
    double own = moved_bytes(n, it->tensor), all = 0;
    for (int t = 0; t < n->nout; t++)
        all += moved_bytes(n, t);
    double busy = all > 0 ? sec * own / all : sec / n->nout; /* of values without elements */
    it->sec = n->nout > 1 ? MIN(sec, call_sec(x, n, where, own)) : sec;
    if (unit && unit->nbytes > 0)
        busy = MIN(busy, call_sec(x, n, where, unit->nbytes) * own / unit->nbytes);
    it->busy[where.nodes > 1 ? BY_NETWORK : BY_HOST] = busy;
}

static void fill_items(StepBound *x, const NodeSteps *steps)
{
    BoundUnit **unit = find_units(x);
    bool queues = device_nspace(x->p->device) > 1;
    for (int i = 0; i < x->n; i++) {
        BoundItem *it = &x->item[i];
        double sec = sec_of(steps, it->node);
        if (communicates(it->node)) {
            fill_collective(x, it, unit[i], sec);
            continue;
        }
        it->sec = it->node->op->region == LOOP ? loop_bound(x, steps, it) : sec;
        it->busy[queues ? node_queue(it->node) : QUEUE_COMPUTE] = it->sec;
    }
}

/* ---- starts ---- */

/* The bound of all items before an end, and of those that begin with the forward's end. */
static double sets_sec(const StepBound *x, const double *start, const double *to,
                       const Lists *after)
{
    const int loss = x->loss ? x->of[x->loss->out[0]->id] : x->middle;
    double pairs = bound_pairs(x, start, to, loss < 0 ? 0 : start[loss], after);
    return MAX(bound_sets(x, start, to), pairs);
}

/* The least start of a narrow item, by all that comes before it; back: the same from the end. */
static double raised(const StepBound *x, int item, const double *start, bool back)
{
    const Lists *after = back ? &x->pred : &x->succ;
    for (int i = 0; i < x->n; i++)
        x->to[i] = -1;
    for (int i = item; i >= 0 && i < x->n; i += back ? 1 : -1)
        EACH_ITEM(k, *after, i) {
            int j = after->item[k];
            if (j == item)
                x->to[i] = MAX(x->to[i], 0);
            else if (x->to[j] >= 0)
                x->to[i] = MAX(x->to[i], x->to[j] + x->item[j].sec);
        }
    x->to[item] = -1;
    return sets_sec(x, start, x->to, after);
}

/* Whether an item waits for narrow ones alone: it begins when they have ended. */
static bool follows(const StepBound *x, int i, const Lists *before)
{
    bool all = before->at[i] < before->at[i + 1];
    EACH_ITEM(e, *before, i)
        all &= x->narrow[before->item[e]];
    return all;
}

/* Fills when each item can begin; back: how long the step goes on after it. */
static void fill_starts(StepBound *x, double *start, bool back)
{
    const Lists *before = back ? &x->succ : &x->pred;
    bound_none(x);
    for (int k = 0; k < x->n; k++) {
        int i = back ? x->n - 1 - k : k;
        EACH_ITEM(e, *before, i)
            start[i] = MAX(start[i], start[before->item[e]] + x->item[before->item[e]].sec);
        if (x->narrow[i] && !follows(x, i, before))
            start[i] = MAX(start[i], raised(x, i, start, back));
        bound_add(x, start, i);
    }
}

/* ---- a graph ---- */

/* The node with which the forward ends: the last of it where most items of the step follow one
 * another. */
static const Node *find_loss(const StepBound *x)
{
    int count, *way = bound_longest_way(x, &count);
    while (count && x->item[way[count - 1]].node->phase > LOSS)
        count--;
    return count ? x->item[way[count - 1]].node : NULL;
}

/* Seconds of what is computed again before the forward has ended, at most. */
static double early(const StepBound *x)
{
    StepBound free = *x; /* from the edges to the loss */
    free.loss = NULL;
    link_items(&free);
    const Node **node = NEWN(x->tmp, const Node *, x->n);
    double *sec = NEWN(x->tmp, double, x->n);
    bool *late = NEWN(x->tmp, bool, x->n);
    for (int i = 0; i < x->n; i++) {
        node[i] = x->item[i].node;
        sec[i] = floats(x, i) ? 0 : x->item[i].sec;
        late[i] = again(x, i);
    }
    EarlyItems items = {
        x->g, x->n, node, x->of, free.pred, free.succ, sec, late, x->of[x->loss->out[0]->id],
        NULL, 0};
    items.stream = bound_longest_way(&free, &items.nstream);
    return early_sec(&items, x->tmp, x->most - x->p->space[SPACE_MAIN].persistent);
}

/* In any order, or with nothing computed again before the loss. Adds the work of queues. */
static double items_bound(StepBound *x, const NodeSteps *steps, double *busy)
{
    link_all(x);
    fill_items(x, steps);
    bound_narrow(x);
    x->start = NEWN(x->tmp, double, x->n);
    x->rest = NEWN(x->tmp, double, x->n);
    x->to = NEWN(x->tmp, double, x->n);
    x->last = NEWN(x->tmp, int, x->n);
    x->ahead = NEWN(x->tmp, double, x->n);
    x->job = NEWN(x->tmp, BoundJob, x->n + 1);
    for (int q = 0; q < NBUSY; q++)
        x->queue[q].item = NEWN(x->tmp, int, x->n);
    fill_starts(x, x->start, false);
    fill_starts(x, x->rest, true);
    double bound = bound_sets(x, x->rest, x->start);
    bound_none(x);
    for (int i = 0; i < x->n; i++)
        bound_add(x, x->start, i);
    bound = MAX(bound, sets_sec(x, x->start, x->rest, &x->succ));
    for (int i = 0; i < x->n; i++) {
        bound = MAX(bound, x->start[i] + x->item[i].sec + x->rest[i]);
        for (int q = 0; q < NBUSY; q++)
            busy[q] += x->item[i].busy[q];
    }
    return bound;
}

static double graph_bound(const Plan *p, const Graph *g, const NodeSteps *steps, Arena *tmp,
                          int64_t most, double *busy)
{
    StepBound x = {.p = p, .g = g, .tmp = tmp, .most = most};
    double again[NBUSY] = {0}, bound = items_bound(&x, steps, busy);
    if (!most || !(x.loss = find_loss(&x)))
        return bound;
    double late = items_bound(&x, steps, again);
    return MAX(bound, late - early(&x));
}

/* Its iterations', one after the other; adds their work to the item. */
static double loop_bound(const StepBound *x, const NodeSteps *steps, BoundItem *it)
{
    double sec = 0;
    EACH_BODY(b, it->node) {
        double busy[NBUSY] = {0}, times = (double)region_times(it->node->region, b);
        sec += times * graph_bound(x->p, it->node->region->body[b], steps, x->tmp, x->most, busy);
        for (int q = 0; q < NBUSY; q++)
            it->busy[q] += times * busy[q];
    }
    return sec;
}

double plan_step_bound(const Plan *p, Arena *tmp, int64_t most)
{
    NodeSteps steps = plan_node_steps(tmp, p);
    double busy[NBUSY] = {0};
    bool one = device_nspace(p->device) == 1;
    return graph_bound(p, p->g, &steps, tmp, one ? most : 0, busy);
}

double plan_memory_bound(const Plan *p, Arena *tmp)
{
    return plan_step_bound(p, tmp, MAX(p->space[SPACE_MAIN].peak, p->overlap_cap));
}
