/* order_overlap: moves collectives apart from what waits for them, so that they run beside
 * computing, by the clock (machine/clock.c) and within a cap of bytes.
 *
 * First a reduction of several values goes to where its operands are there. Then each start at
 * whose wait the step stands still is tried in four ways, in turn, until it does not:
 *
 *   sink     its waits go down to where it has ended, or to their first readers
 *   hoist    it goes up by as much as the step stands still, with what makes its operand of saved
 *            values; half as far where that is of no use
 *   delay    nodes before it that it does not need run behind it
 *   advance  nodes behind its wait that do not need it run before the wait
 *
 * The first two prefetch parameters and let gradients go while the next block computes, the others
 * have a weight's gradient computed while the input's is on its way. A try is kept if the step
 * takes less, so that it never becomes slower, and no more bytes are alive than the cap, by
 * problem.h's exact sums; where more are alive in the first order, no more than there. Between
 * rounds gathers go up a little, if only that makes nothing worse, as what reads their results may
 * then run behind other starts. Later rounds seek further.
 *
 * The order is that of the plan's steps, on all ranks, so all start their collectives alike. No
 * value is made otherwise than before: bits stay. Bodies of loops come first, each iteration for
 * itself, as no collective crosses one.
 *
 * There are some tries for each collective. A try costs the nodes between the places where orders
 * differ, and those beside them up to where nothing is under way; one that is taken is linear.
 * Sources: PyTorch's overlap scheduling; torchtitan's prefetch of a block. */
#include "order.h"

#include <math.h>
#include <string.h>

enum {
    ROUNDS = 12, /* over all starts, at most */
    HALVES = 3,  /* tries of a shorter way up */
    AHEAD = 2,   /* times its seconds by which a gather goes up between rounds */
};

/* Seconds that are worth a move; the share of the step for which it must stand still; the share of
 * that which others should fill, and that they must. */
#define LEAST   1e-9
#define NOTED   1e-4
#define ENOUGH  0.95
#define SOME    0.1
#define ROUNDED 1e-12 /* share of the step: sums of seconds that differ by less are equal */

/* A collective that waits are for. */
typedef struct Started {
    double sec; /* alone on its link */
    const char *group;
    Group where;
    int nwait;
} Started;

/* An order in time. By node: when it begins; of a start when it ends, and for how long the step
 * stands still at its waits. */
typedef struct TimedOrder {
    double *at, *end, *stall;
    double total;
} TimedOrder;

typedef struct Overlap {
    const Problem *q;
    Arena *scratch;
    int *order, *place;
    TimedOrder now, tried;
    double *until;    /* by place: when all that is started before it has ended */
    double *sec;      /* by node, of what computes */
    int *start;       /* by node: of a wait the node that it waits for; else -1 */
    Started *started; /* by node */
    int *job;         /* by node, of the clock */
    /* the order that is tried */
    int *made;     /* by place */
    int low, high; /* places in which it differs: from low on, before high */
    bool *in;      /* by node: it is of the set that moves */
    bool *mark;    /* by node: it must stay before the set, or behind it */
    int *noted;    /* the nodes that are in or marked */
    int nnoted;
    /* bytes */
    const int64_t *beside; /* by node id of the graph: bytes that count there too; NULL: none */
    int64_t cap, most; /* most: bytes alive, at any node; cap: but where more are from the first */
    int64_t *live;     /* by place: alive before it */
    double *above;     /* by place: bytes above the cap */
    double excess;     /* above the cap, of the order */
    int *left;         /* by storage: readers that have not run; -1: not counted */
    int *counted;      /* storages of which they are counted */
    int round;
} Overlap;

static const Node *node_of_index(const Overlap *x, int i)
{
    return item_node(x->q->flow, x->q->item[i]);
}

static bool starts(const Overlap *x, int i)
{
    return x->started[i].nwait > 0;
}

static bool reduces(const Node *n)
{
    CollectiveKind k = node_collective(n);
    return k == REDUCE_SCATTER || k == ALL_REDUCE;
}

/* ---- time ---- */

static int made_at(const Overlap *x, int place)
{
    return place >= x->low && place < x->high ? x->made[place] : x->order[place];
}

/* from: the place from which on time is told; what was started before it has ended there. */
static void time_node(const Overlap *x, TimedOrder *t, Clock *c, int i, int from)
{
    int start = x->start[i];
    const Started *s = &x->started[i];
    double now = t->at[i] = clock_at(c, QUEUE_COMPUTE);
    if (starts(x, i)) {
        t->stall[i] = 0;
        x->job[i] = clock_start(c, s->group, &s->where, now, s->sec);
    } else if (start >= 0 && x->place[start] >= from) {
        t->end[start] = clock_end(c, x->job[start]);
        t->stall[start] += MAX(0, t->end[start] - now);
        clock_run(c, QUEUE_COMPUTE, t->end[start], 0);
    } else {
        clock_run(c, QUEUE_COMPUTE, 0, start < 0 ? x->sec[i] : 0);
    }
}

/* The last place up to `place` where nothing is under way. */
static int quiet_place(const Overlap *x, int place)
{
    while (place > 0 && x->until[place] > x->now.at[x->order[place]])
        place--;
    return place;
}

/* When the order that is tried ends, by the time from the place on; `whole`: all is told. Behind
 * what differs, nothing changes but for a shift once nothing is under way in either order. */
static double time_from(const Overlap *x, TimedOrder *t, int from, bool whole)
{
    Clock *c = clock_new(x->scratch);
    double total = -1;
    if (from)
        clock_run(c, QUEUE_COMPUTE, x->now.at[x->order[from]], 0);
    for (int k = from; k < x->q->n && total < 0; k++) {
        double was = x->now.at[x->order[k]];
        if (!whole && k >= x->high && x->until[k] <= was && clock_idle(c))
            total = x->now.total + (clock_at(c, QUEUE_COMPUTE) - was);
        else
            time_node(x, t, c, made_at(x, k), from);
    }
    total = total < 0 ? clock_last(c) : total;
    arena_reset(x->scratch);
    return total;
}

/* Fills when what was started before the places has ended. */
static void find_ends(Overlap *x)
{
    double until = 0;
    for (int k = 0; k < x->q->n; k++) {
        x->until[k] = until;
        if (starts(x, x->order[k]))
            until = MAX(until, x->now.end[x->order[k]]);
    }
}

/* ---- bytes ---- */

/* Readers that run at `low` or later, where the order that is tried first differs. */
static void count_left(Overlap *x, int s, int *ncounted)
{
    if (x->left[s] >= 0)
        return;
    x->left[s] = 0;
    EACH_ITEM(j, x->q->user, s)
        x->left[s] += x->place[x->q->user.item[j]] >= x->low;
    x->counted[(*ncounted)++] = s;
}

static int64_t beside_of(const Overlap *x, int i)
{
    return x->beside ? x->beside[node_of_index(x, i)->id] : 0;
}

/* Bytes above the cap of the order that is tried, summed over its nodes; where it differs from the
 * order, live and above become its own if `keep`. *most: the most bytes alive there. */
static double excess_of(Overlap *x, int64_t *most, bool keep)
{
    const Problem *q = x->q;
    int ncounted = 0;
    int64_t live = x->live[x->low];
    double excess = x->excess;
    *most = q->ends;
    for (int k = x->low; k < x->high; k++) {
        int i = x->made[k];
        EACH_ITEM(j, q->use, i)
            count_left(x, q->use.item[j], &ncounted);
        EACH_ITEM(j, q->make, i)
            count_left(x, q->make.item[j], &ncounted);
        Effect e = problem_effect(q, x->left, 1, i);
        const int64_t alive = live + e.need + beside_of(x, i);
        double above = (double)MAX(0, alive - x->cap);
        excess += above - x->above[k];
        *most = MAX(*most, alive);
        x->live[k] = keep ? live : x->live[k];
        x->above[k] = keep ? above : x->above[k];
        live += e.net;
        EACH_ITEM(j, q->use, i)
            x->left[q->use.item[j]]--;
    }
    for (int j = 0; j < ncounted; j++)
        x->left[x->counted[j]] = -1;
    return excess;
}

/* ---- tries ---- */

static void take_made(Overlap *x, int from)
{
    const size_t all = sizeof *x->now.at * (size_t)x->q->n;
    memcpy(x->tried.at, x->now.at, all);
    memcpy(x->tried.end, x->now.end, all);
    memcpy(x->tried.stall, x->now.stall, all);
    x->tried.total = time_from(x, &x->tried, from, true);
    TimedOrder was = x->now;
    x->now = x->tried;
    x->tried = was;
    for (int k = x->low; k < x->high; k++) {
        x->order[k] = x->made[k];
        x->place[x->order[k]] = k;
    }
    find_ends(x);
}

/* Takes the order that was made, if it takes `less` seconds less and no more above the cap. */
static bool try_made(Overlap *x, double less)
{
    int64_t most;
    if (x->low >= x->high)
        return false;
    const int from = quiet_place(x, x->low);
    if (!(time_from(x, &x->tried, from, false) <= x->now.total * (1 + ROUNDED) - less))
        return false;
    double excess = excess_of(x, &most, false);
    if (excess > x->excess || most > x->most)
        return false;
    x->excess = excess_of(x, &most, true);
    take_made(x, from);
    return true;
}

/* ---- sets that move ---- */

static void clear_sets(Overlap *x)
{
    for (int k = 0; k < x->nnoted; k++)
        x->in[x->noted[k]] = x->mark[x->noted[k]] = false;
    x->nnoted = 0;
}

static void note(Overlap *x, int i, bool *set)
{
    if (!x->in[i] && !x->mark[i])
        x->noted[x->nnoted++] = i;
    set[i] = true;
}

/* Makes of the order one in which the set stands before what is at place `before`. */
static void move_set(Overlap *x, int before)
{
    int count;
    x->low = x->high = before;
    for (int k = 0; k < x->nnoted; k++) {
        int place = x->place[x->noted[k]];
        x->low = x->in[x->noted[k]] ? MIN(x->low, place) : x->low;
        x->high = x->in[x->noted[k]] ? MAX(x->high, place + 1) : x->high;
    }
    count = x->low;
    for (int k = x->low; k < before; k++)
        if (!x->in[x->order[k]])
            x->made[count++] = x->order[k];
    for (int k = x->low; k < x->high; k++)
        if (x->in[x->order[k]])
            x->made[count++] = x->order[k];
    for (int k = before; k < x->high; k++)
        if (!x->in[x->order[k]])
            x->made[count++] = x->order[k];
}

static void mark_sources(Overlap *x, int i)
{
    EACH_ITEM(k, x->q->pred, i)
        note(x, x->q->pred.item[k], x->mark);
}

static bool reads_marked(const Overlap *x, int i)
{
    bool reads = false;
    EACH_ITEM(k, x->q->pred, i)
        reads |= x->mark[x->q->pred.item[k]];
    return reads;
}

static int first_wait(const Overlap *x, int start)
{
    int first = -1;
    EACH_ITEM(k, x->q->succ, start) {
        int i = x->q->succ.item[k];
        if (x->start[i] == start && (first < 0 || x->place[i] < x->place[first]))
            first = i;
    }
    return first;
}

/* ---- where its operands are there ---- */

/* The search for an order leaves reductions anywhere beneath the peak; order_pull.c knows of those
 * of one value. */
static void pull(Overlap *x, int start)
{
    int before = 0;
    clear_sets(x);
    note(x, start, x->in);
    EACH_ITEM(k, x->q->succ, start)
        if (x->start[x->q->succ.item[k]] == start)
            note(x, x->q->succ.item[k], x->in);
    EACH_ITEM(k, x->q->pred, start)
        before = MAX(before, x->place[x->q->pred.item[k]] + 1);
    if (before == x->place[start])
        return;
    move_set(x, before);
    try_made(x, 0);
}

/* ---- sink ---- */

/* The place behind a wait where its collective has ended, or its first reader's. */
static int sunk_place(const Overlap *x, int wait)
{
    int first = x->q->n, k = x->place[wait] + 1;
    EACH_ITEM(j, x->q->succ, wait)
        first = MIN(first, x->place[x->q->succ.item[j]]);
    while (k < first && x->now.at[x->order[k]] < x->now.end[x->start[wait]])
        k++;
    return k;
}

/* All waits go behind the first place that one of them can reach. */
static bool sink(Overlap *x, int start)
{
    int to = x->q->n;
    clear_sets(x);
    EACH_ITEM(k, x->q->succ, start) {
        int wait = x->q->succ.item[k];
        if (x->start[wait] != start)
            continue;
        note(x, wait, x->in);
        to = MIN(to, sunk_place(x, wait));
    }
    if (to <= x->place[first_wait(x, start)] + 1)
        return false;
    for (int k = 0; k < x->nnoted; k++) /* those that are behind it stay */
        x->in[x->noted[k]] = x->place[x->noted[k]] < to;
    move_set(x, to);
    return try_made(x, LEAST);
}

/* ---- hoist ---- */

/* Whether a node may go up with the start that reads what it makes. */
static bool goes_along(const Overlap *x, int i)
{
    const Node *n = node_of_index(x, i);
    return !starts(x, i) && !n->region && !n->op->barrier && n->phase < OPTIMIZER &&
           (n->op->view || n->op->copy || n->op->class == CLASS_MOVEMENT ||
            n->op->class == CLASS_POINTWISE || n->op->class == CLASS_NORM ||
            n->op->class == CLASS_CREATION);
}

/* Fills the set with a start and what goes along; returns the place before which it may stand, no
 * further up than where the step is `sec` seconds before it. */
static int hoisted_place(Overlap *x, int start, double sec)
{
    int k = x->place[start];
    double until = x->now.at[start] - sec;
    clear_sets(x);
    note(x, start, x->in);
    mark_sources(x, start);
    for (; k > 0 && x->now.at[x->order[k]] > until; k--) {
        int i = x->order[k - 1];
        if (!x->mark[i])
            continue;
        if (!goes_along(x, i))
            break;
        note(x, i, x->in);
        mark_sources(x, i);
    }
    return k;
}

static bool hoist_by(Overlap *x, int start, double sec, double less)
{
    int before = hoisted_place(x, start, sec);
    if (before >= x->place[start])
        return false;
    move_set(x, before);
    return try_made(x, less);
}

static bool hoist(Overlap *x, int start)
{
    double sec = x->now.stall[start];
    bool done = false;
    for (int i = 0; i < HALVES && !done; i++, sec /= 2)
        done = hoist_by(x, start, sec, LEAST);
    return done;
}

/* ---- delay, advance ---- */

/* Whether others are to be sought further: they have not found enough to run meanwhile, nor passed
 * much that cannot. */
static bool seeks(const Overlap *x, int start, double found, double passed)
{
    double stall = x->now.stall[start];
    return found < ENOUGH * stall && passed < (1 + x->round) * stall;
}

static bool delay(Overlap *x, int start)
{
    double found = 0, passed = 0;
    clear_sets(x);
    mark_sources(x, start);
    for (int k = x->place[start] - 1; k >= 0 && seeks(x, start, found, passed); k--) {
        int i = x->order[k];
        if (!x->mark[i] && starts(x, i))
            break;
        *(x->mark[i] ? &passed : &found) += x->sec[i];
        if (x->mark[i])
            mark_sources(x, i);
        else
            note(x, i, x->in);
    }
    if (found <= SOME * x->now.stall[start])
        return false;
    move_set(x, x->place[start] + 1);
    return try_made(x, LEAST);
}

static bool advance(Overlap *x, int start)
{
    int wait = first_wait(x, start);
    double found = 0, passed = 0;
    clear_sets(x);
    for (int k = x->place[wait]; k < x->q->n && seeks(x, start, found, passed); k++) {
        int i = x->order[k];
        note(x, i, x->start[i] == start || reads_marked(x, i) ? x->mark : x->in);
        *(x->mark[i] ? &passed : &found) += x->sec[i];
    }
    if (found <= SOME * x->now.stall[start])
        return false;
    move_set(x, x->place[wait]);
    return try_made(x, LEAST);
}

/* ---- a graph ---- */

/* Until the step does not stand still at its waits. */
static bool move_start(Overlap *x, int start)
{
    static bool (*const ways[])(Overlap *, int) = {sink, hoist, delay, advance};
    bool moved = false;
    for (int i = 0; i < LEN(ways) && x->now.stall[start] > NOTED * x->now.total; i++)
        moved |= ways[i](x, start);
    return moved;
}

static void move_all(Overlap *x)
{
    int n = x->q->n;
    bool moved = true;
    for (int i = 0; i < n; i++)
        if (x->started[i].nwait > 1 && reduces(node_of_index(x, i)))
            pull(x, i);
    for (x->round = 0; x->round < ROUNDS && moved; x->round++) {
        moved = false;
        for (int i = 0; i < n && x->round; i++)
            if (starts(x, i) && !reduces(node_of_index(x, i)))
                hoist_by(x, i, AHEAD * x->started[i].sec, 0);
        for (int i = 0; i < n; i++)
            moved |= starts(x, i) && move_start(x, i);
    }
}

static void fill_node(Overlap *x, const Machine *m, const Mesh *mesh, int i, const int *number)
{
    const Node *n = node_of_index(x, i), *from = node_waits_for(n);
    x->start[i] = from ? number[from->id] : -1;
    x->sec[i] = node_sec(m, mesh, n);
    if (from)
        x->started[x->start[i]].nwait++;
    if (n->op->class == CLASS_COLLECTIVE)
        x->started[i] =
            (Started){x->sec[i], n->attr[attr_index(n->op, "group")].s, node_group(m, mesh, n), 0};
}

static TimedOrder timed_new(Arena *tmp, int n)
{
    return (TimedOrder){NEWN(tmp, double, n), NEWN(tmp, double, n), NEWN(tmp, double, n), 0};
}

static Overlap *overlap_new(const Problem *q, const Machine *m, Arena *tmp)
{
    Overlap *x = NEW(tmp, Overlap);
    *x = (Overlap){.q = q, .scratch = arena_tmp(tmp)};
    const Graph *g = flow_graph(q->flow);
    int *number = NEWN(tmp, int, g->nnode);
    x->order = NEWN(tmp, int, q->n);
    x->place = NEWN(tmp, int, q->n);
    x->made = NEWN(tmp, int, q->n);
    x->now = timed_new(tmp, q->n);
    x->tried = timed_new(tmp, q->n);
    x->sec = NEWN(tmp, double, q->n);
    x->start = NEWN(tmp, int, q->n);
    x->started = NEWN(tmp, Started, q->n);
    x->job = NEWN(tmp, int, q->n);
    x->until = NEWN(tmp, double, q->n);
    x->noted = NEWN(tmp, int, q->n);
    x->live = NEWN(tmp, int64_t, q->n);
    x->above = NEWN(tmp, double, q->n);
    x->left = NEWN(tmp, int, q->storage.count);
    x->counted = NEWN(tmp, int, q->storage.count);
    x->in = NEWN(tmp, bool, q->n);
    x->mark = NEWN(tmp, bool, q->n);
    for (int i = 0; i < q->n; i++) {
        x->order[i] = x->place[i] = x->made[i] = i;
        number[node_of_index(x, i)->id] = i;
        fill_node(x, m, graph_mesh(g), i, number);
    }
    for (int k = 0; k < q->storage.count; k++)
        x->left[k] = -1;
    return x;
}

/* Fills time and bytes of the order with which it begins. */
static void measure(Overlap *x, int64_t more)
{
    int64_t most;
    x->high = x->q->n;
    x->live[0] = x->q->base + x->q->inputs;
    if (x->beside) {
        excess_of(x, &most, false);
        x->cap = most + more;
    } else {
        x->cap = problem_peak(x->q, x->scratch, x->order) + more;
    }
    x->excess = excess_of(x, &most, true);
    x->most = MAX(most, x->cap);
    x->now.total = time_from(x, &x->now, 0, true);
    find_ends(x);
}

/* Whether the step takes less in another order, which the graph then has. */
static bool overlap_problem(const Problem *q, const Machine *m, Arena *tmp, int64_t more,
                            const int64_t *beside)
{
    Overlap *x = overlap_new(q, m, tmp);
    x->beside = beside;
    Graph *g = flow_graph(q->flow);
    Node **node = NEWN(tmp, Node *, q->n);
    measure(x, more);
    double before = x->now.total;
    move_all(x);
    if (x->now.total >= before)
        return false;
    for (int k = 0; k < q->n; k++)
        node[k] = (Node *)node_of_index(x, x->order[k]);
    for (int k = 0; k < q->n; k++)
        node_move(g, node[k], NULL);
    return true;
}

static bool has_collective(const Problem *q)
{
    bool has = false;
    for (int i = 0; i < q->n; i++)
        has |= item_node(q->flow, q->item[i])->op->class == CLASS_COLLECTIVE;
    return has;
}

static bool overlap_flow(Flow *f, const Machine *m, Arena *tmp, int64_t more, const int64_t *beside)
{
    bool moved = false;
    int64_t cap = flow_peak(f) + more;
    for (int i = flow_first(f); i >= 0; i = flow_next(f, i))
        for (int c = 0; item_body(f, i, c); c++)
            moved |= overlap_flow(item_body(f, i, c), m, tmp, more, NULL);
    if (moved)
        flow_reorder(f);
    more = cap - flow_peak(f);
    const Problem *q = problem_new(f, tmp);
    if (!q->cyclic && has_collective(q))
        moved |= overlap_problem(q, m, tmp, more, beside);
    return moved;
}

bool order_overlap(Graph *g, const Device *d, const Machine *m, Arena *tmp, int64_t more,
                   const int64_t *beside)
{
    return overlap_flow(flow_new(g, d, m, tmp), m, tmp, more, beside);
}
