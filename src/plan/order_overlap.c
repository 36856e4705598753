/* order_overlap: moves collectives apart from what waits for them, so that they run beside
 * computing, by the clock (machine/clock.c) and within a cap of bytes.
 *
 * First a reduction of several values goes to where its operands are there. Then each start at
 * whose wait the step stands still is tried in these ways, in turn, until it does not:
 *
 *   sink     its waits go down to where it has ended, or to their first readers
 *   hoist    it goes up by as much as the step stands still, with what makes its operand of saved
 *            values; half as far where that is of no use
 *   fill     nodes before it that it does not need run behind it (delay), or nodes behind its wait
 *            that do not need it run before the wait (advance)
 *
 * The first two prefetch parameters and let gradients go while the next block computes, the last
 * has a weight's gradient computed while the input's is on its way. The nearest nodes often run
 * beside another collective already. So fills differ in how much they seek and in how many of the
 * nearest they leave, and the one of which the step takes the least is made. A try is kept if the
 * step takes less, so that it never becomes slower, and no more bytes are alive than the cap, by
 * problem.h's exact sums; where more are alive in the first order, no more than there. Between
 * rounds gathers go up a little, if only that makes nothing worse, as what reads their results may
 * then run behind other starts. Later rounds seek further.
 *
 * Each choice forecloses others. So the search runs several times, of which the first rounds make
 * the nearest fill alone, none, one, two or all that help, and the fastest order is taken. Nearest
 * fills count the seconds of collectives that they pass, and so stay near. The rounds with which
 * several searches begin run once. Every other search runs where the step's seconds are but
 * compared with others'. Where the step is to be below a rival's seconds, and is far above them
 * after some rounds, the search ends.
 *
 * What a start's tries come to depends on the places that they read and on those that a try times
 * anew. Where none of these has changed since tries were of no use, they are not made again.
 *
 * The order is that of the plan's steps, on all ranks, so all start their collectives alike. No
 * value is made otherwise than before: bits stay. Bodies of loops come first, each iteration for
 * itself, as no collective crosses one.
 *
 * There are some tries for each collective; order_tries.c says what they cost.
 * Sources: PyTorch's overlap scheduling; torchtitan's prefetch of a block. */
#include "overlap.h"

#include <math.h>
#include <string.h>

enum {
    ROUNDS = 12, /* over all starts, at most */
    HALVES = 3,  /* tries of a shorter way up */
    FILLS = 3,   /* of a start in a round, at most */
    LEAVES = 4,  /* times that the nearest are left */
    AHEAD = 2,   /* times its seconds by which a gather goes up between rounds */
    BEGUN = 3,   /* rounds, after which a search gains little */
};

/* Seconds that are worth a move; the share of the step for which it must stand still; the share of
 * that which others must fill. */
#define LEAST 1e-9
#define NOTED 1e-4
#define SOME  0.1

/* The times of its rival's seconds that a step then takes which will not be below them. */
#define BEHIND 1.1

static bool reduces(const Node *n)
{
    CollectiveKind k = node_collective(n);
    return k == REDUCE_SCATTER || k == ALL_REDUCE;
}

/* ---- sets ---- */

static void mark_sources(Overlap *x, int i)
{
    EACH_ITEM(k, x->q->pred, i)
        overlap_note(x, x->q->pred.item[k], x->mark);
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
    overlap_clear(x);
    overlap_note(x, start, x->in);
    EACH_ITEM(k, x->q->succ, start)
        if (x->start[x->q->succ.item[k]] == start)
            overlap_note(x, x->q->succ.item[k], x->in);
    EACH_ITEM(k, x->q->pred, start)
        before = MAX(before, x->place[x->q->pred.item[k]] + 1);
    if (before == x->place[start])
        return;
    overlap_move_set(x, before);
    overlap_try(x, 0);
}

/* ---- sink ---- */

/* The place behind a wait where its collective has ended, or its first reader's. */
static int sunk_place(Overlap *x, int wait)
{
    int first = x->q->n, k = x->place[wait] + 1;
    EACH_ITEM(j, x->q->succ, wait)
        first = MIN(first, x->place[x->q->succ.item[j]]);
    while (k < first && x->now.at[x->order[k]] < x->now.end[x->start[wait]])
        k++;
    overlap_see(x, MIN(k, x->q->n - 1));
    return k;
}

/* All waits go behind the first place that one of them can reach. */
static bool sink(Overlap *x, int start)
{
    int to = x->q->n;
    overlap_clear(x);
    EACH_ITEM(k, x->q->succ, start) {
        int wait = x->q->succ.item[k];
        if (x->start[wait] != start)
            continue;
        overlap_note(x, wait, x->in);
        to = MIN(to, sunk_place(x, wait));
    }
    if (to <= x->place[first_wait(x, start)] + 1)
        return false;
    for (int k = 0; k < x->nnoted; k++) /* those that are behind it stay */
        x->in[x->noted[k]] = x->place[x->noted[k]] < to;
    overlap_move_set(x, to);
    return overlap_try(x, LEAST);
}

/* ---- hoist ---- */

/* Whether a node may go up with the start that reads what it makes. */
static bool goes_along(const Overlap *x, int i)
{
    const Node *n = overlap_node(x, i);
    return !overlap_starts(x, i) && !n->region && !n->op->barrier && n->phase < OPTIMIZER &&
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
    overlap_clear(x);
    overlap_note(x, start, x->in);
    mark_sources(x, start);
    for (; k > 0 && x->now.at[x->order[k]] > until; k--) {
        int i = x->order[k - 1];
        if (!x->mark[i])
            continue;
        if (!goes_along(x, i))
            break;
        overlap_note(x, i, x->in);
        mark_sources(x, i);
    }
    overlap_see(x, MAX(k - 1, 0));
    return k;
}

static bool hoist_by(Overlap *x, int start, double sec, double less)
{
    int before = hoisted_place(x, start, sec);
    if (before >= x->place[start])
        return false;
    overlap_move_set(x, before);
    return overlap_try(x, less);
}

static bool hoist(Overlap *x, int start)
{
    double sec = x->now.stall[start];
    bool done = false;
    for (int i = 0; i < HALVES && !done; i++, sec /= 2)
        done = hoist_by(x, start, sec, LEAST);
    return done;
}

/* ---- fill ---- */

/* How far a fill seeks nodes to run while the step stands still. */
typedef struct Seek {
    double most;  /* seconds that are enough */
    double far;   /* seconds of others that are passed, at most */
    int from;     /* the place from which on it seeks; what lies nearer stays */
    double found; /* seconds */
} Seek;

static bool seeks(const Seek *s, double passed)
{
    return s->found < s->most && passed < s->far;
}

static int found_place(const Overlap *x, int start, const Seek *s, int to)
{
    return s->found <= SOME * x->now.stall[start] ? -1 : to;
}

/* Finds nodes before the start that it does not need, to run behind it. Returns the place of the
 * furthest; -1: there are too few. No more than the nearest search passes starts. */
static int delay(Overlap *x, int start, Seek *s)
{
    double passed = 0;
    int to = -1, k = s->from;
    for (s->found = 0; k >= 0 && seeks(s, passed); k--) {
        int i = x->order[k];
        bool begins = x->begins[i], stays = x->mark[i] || begins;
        if (x->near && begins && !x->mark[i])
            break;
        *(stays ? &passed : &s->found) += !x->near && begins ? 0 : x->sec[i];
        if (stays)
            mark_sources(x, i);
        else
            overlap_note(x, i, x->in);
        to = !stays && x->sec[i] > 0 ? k : to;
    }
    overlap_see(x, MAX(k, 0));
    return found_place(x, start, s, to);
}

/* The same with nodes behind the wait that do not need it, to run before it. */
static int advance(Overlap *x, int start, Seek *s)
{
    double passed = 0;
    int to = -1, k = s->from;
    for (s->found = 0; k < x->q->n && seeks(s, passed); k++) {
        int i = x->order[k];
        bool begins = x->begins[i], stays = x->start[i] == start || reads_marked(x, i);
        *(stays ? &passed : &s->found) += !x->near && begins ? 0 : x->sec[i];
        overlap_note(x, i, stays ? x->mark : x->in);
        to = !stays && x->sec[i] > 0 ? k : to;
    }
    overlap_see(x, MIN(k, x->q->n - 1));
    return found_place(x, start, s, to);
}

typedef int Side(Overlap *, int, Seek *);

/* Makes an order with what a side has found. */
static void move_found(Overlap *x, int start, Side *side)
{
    overlap_move_set(x, side == delay ? x->place[start] + 1 : x->place[first_wait(x, start)]);
}

static const double shares[] = {0.95, 0.5, 0.25}; /* of the time for which the step stands still */

/* A way to fill, and what the step takes less then. */
typedef struct Fill {
    Side *side;
    int share, leave;
    double gain;
} Fill;

/* A number of a node that is far from the others'. */
static uint64_t spread(int i)
{
    const uint64_t x = ((uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

/* Whether the set that was found for a side is another than those before. */
static bool is_new(Overlap *x, Vain *v, Side *side)
{
    uint64_t set = side == delay;
    for (int k = 0; k < x->nnoted; k++)
        if (x->in[x->noted[k]])
            set += spread(x->noted[k]);
    for (int i = 0; i < v->nset; i++)
        if (v->set[i] == set)
            return false;
    PUSH(x->tmp, v->set, v->nset, v->capset, set);
    return true;
}

static Seek seek_first(Overlap *x, int start, Side *side, int share)
{
    const double stall = x->now.stall[start];
    const bool before = side == delay;
    overlap_clear(x);
    if (before)
        mark_sources(x, start);
    return (Seek){shares[share] * stall, (1 + x->round) * stall,
                  before ? x->place[start] - 1 : x->place[first_wait(x, start)], 0};
}

/* Goes on behind the place `to`: what was found up to there stays. */
static void seek_next(Overlap *x, Side *side, Seek *s, int to)
{
    for (int k = 0, n = x->nnoted; k < n; k++) {
        const int i = x->noted[k];
        if (!x->in[i])
            continue;
        x->in[i] = false;
        x->mark[i] = true;
        if (side == delay)
            mark_sources(x, i);
    }
    s->from = side == delay ? to - 1 : to + 1;
    s->far *= 2;
}

/* Finds the best on one side of a start, if it is better. A share of which all is found that a
 * larger one finds would find the same. */
static void seek_fill(Overlap *x, int start, Side *side, Fill *best)
{
    double most = INFINITY;
    for (int i = 0; i < (x->near ? 1 : LEN(shares)); i++) {
        Seek s = seek_first(x, start, side, i);
        if (most < s.most)
            continue;
        most = 0;
        for (int k = 0; k < (x->near ? 1 : LEAVES); k++) {
            int to = side(x, start, &s);
            most = MAX(most, s.found);
            if (to < 0)
                break;
            if (is_new(x, &x->vain[start], side)) {
                move_found(x, start, side);
                double gain = overlap_gain(x, LEAST);
                *best = gain > best->gain ? (Fill){side, i, k, gain} : *best;
            }
            seek_next(x, side, &s, to);
        }
    }
}

/* Finds it once more. */
static void find_fill(Overlap *x, int start, const Fill *f)
{
    Seek s = seek_first(x, start, f->side, f->share);
    for (int k = 0, to = f->side(x, start, &s); k < f->leave; k++, to = f->side(x, start, &s))
        seek_next(x, f->side, &s, to);
    move_found(x, start, f->side);
}

/* Makes the best fill of those on the sides, if one is of use. */
static bool fill_best(Overlap *x, int start, Side *const *side, int n)
{
    Fill best = {.gain = 0};
    for (int i = 0; i < n; i++)
        seek_fill(x, start, side[i], &best);
    if (!best.side)
        return false;
    find_fill(x, start, &best);
    overlap_take(x);
    x->vain[start].nset = 0;
    return true;
}

static bool stands_still(const Overlap *x, int start)
{
    return x->now.stall[start] > NOTED * x->now.total;
}

/* The nearest on each side once; or several times the best of both sides. */
static bool fill(Overlap *x, int start)
{
    static Side *const sides[] = {delay, advance};
    bool moved = false;
    for (int i = 0; x->near && i < LEN(sides); i++)
        moved |= stands_still(x, start) && fill_best(x, start, &sides[i], 1);
    for (int i = 0; !x->near && i < FILLS && stands_still(x, start); i++) {
        if (!fill_best(x, start, sides, LEN(sides)))
            break;
        moved = true;
    }
    return moved;
}

/* ---- a graph ---- */

/* Until the step does not stand still at its waits. */
static bool move_start(Overlap *x, int start)
{
    Vain *v = &x->vain[start];
    if (!stands_still(x, start))
        return false;
    const bool vain = overlap_begin(x, start, v);
    bool moved = !vain && sink(x, start);
    moved |= !vain && stands_still(x, start) && hoist(x, start);
    moved |= fill(x, start);
    overlap_end(x, v, moved);
    return moved;
}

static void move_up(Overlap *x, int start)
{
    Vain *v = &x->up[start];
    if (!overlap_begin(x, start, v))
        overlap_end(x, v, hoist_by(x, start, AHEAD * x->started[start].sec, 0));
}

static bool move_round(Overlap *x)
{
    bool moved = false;
    for (int i = 0; i < x->q->n && x->round; i++)
        if (overlap_starts(x, i) && !reduces(overlap_node(x, i)))
            move_up(x, i);
    for (int i = 0; i < x->q->n; i++)
        moved |= overlap_starts(x, i) && move_start(x, i);
    return moved;
}

static bool is_behind(const Overlap *x, double sec)
{
    return x->rival > 0 && sec > BEHIND * x->rival;
}

static void move_rounds(Overlap *x)
{
    bool moved = true;
    x->near = false;
    for (x->round = 0; x->round < ROUNDS && moved; x->round++)
        moved = move_round(x) && !(x->round >= BEGUN && is_behind(x, x->now.total));
}

/* The order of the fewest seconds that searches have found. */
typedef struct BestOrder {
    int *order;
    double least;
} BestOrder;

/* Goes on from the order `from`. */
static void search_on(Overlap *x, const Overlap *from, BestOrder *best)
{
    overlap_copy(x, from);
    move_rounds(x);
    if (x->now.total < best->least)
        memcpy(best->order, x->order, sizeof *best->order * (size_t)x->q->n);
    best->least = MIN(best->least, x->now.total);
}

/* The searches, each from where so many rounds of the nearest fills have led. */
static void search_all(Overlap *x, Arena *tmp, BestOrder *best)
{
    static const int near[] = {0, 1, 2, ROUNDS};
    const int by = x->told ? 2 : 1;
    bool moved = true;
    for (int i = 0; i < x->q->n; i++)
        if (x->started[i].nwait > 1 && reduces(overlap_node(x, i)))
            pull(x, i);
    Overlap *from = overlap_like(x, tmp);
    for (int i = 0, round = 0; i < LEN(near) && moved && !(i && is_behind(x, best->least));
         i += by) {
        overlap_copy(x, from);
        x->near = true;
        for (; round < near[i] && moved; round++) {
            x->round = round;
            moved = move_round(x);
        }
        overlap_copy(from, x);
        search_on(x, from, best);
    }
}

/* The seconds of the step in another order, which the graph then has; INFINITY: none takes less. */
static double overlap_problem(const Problem *q, const Flow *joined, const Machine *m, Arena *tmp,
                              OverlapBytes *b, int64_t more)
{
    Overlap *x = overlap_new(q, joined, m, tmp);
    x->beside = b->beside;
    x->rival = b->rival;
    x->told = b->told;
    Graph *g = flow_graph(q->flow);
    Node **node = NEWN(tmp, Node *, q->n);
    BestOrder best = {NEWN(tmp, int, q->n), INFINITY};
    overlap_measure(x, more);
    const double before = x->now.total;
    search_all(x, tmp, &best);
    b->lacking = MIN(b->lacking, x->excess > 0 ? 0 : x->lacking);
    if (best.least >= before)
        return INFINITY;
    for (int k = 0; k < q->n; k++)
        node[k] = (Node *)overlap_node(x, best.order[k]);
    for (int k = 0; k < q->n; k++)
        node_move(g, node[k], NULL);
    return best.least;
}

static bool has_collective(const Problem *q)
{
    bool has = false;
    for (int i = 0; i < q->n; i++)
        has |= item_node(q->flow, q->item[i])->op->class == CLASS_COLLECTIVE;
    return has;
}

/* joined: the same with cats joined; of it comes the peak beside which b->more bytes may be alive.
 * Returns the seconds as order_overlap(); 0 where but bodies have moved. */
static double overlap_flow(Flow *f, Flow *joined, const Machine *m, Arena *tmp, OverlapBytes *b)
{
    bool moved = false;
    const int64_t cap = MIN(flow_peak(f), flow_peak(joined)) + b->more;
    OverlapBytes inner = {.more = b->more, .lacking = b->lacking};
    for (int i = flow_first(f); i >= 0; i = flow_next(f, i))
        for (int c = 0; item_body(f, i, c); c++)
            moved |= overlap_flow(item_body(f, i, c), item_body(joined, i, c), m, tmp, &inner) <
                     INFINITY;
    b->lacking = inner.lacking;
    if (moved)
        flow_reorder(f);
    const Problem *q = problem_new(f, tmp);
    double sec = INFINITY;
    if (!q->cyclic && has_collective(q))
        sec = overlap_problem(q, joined, m, tmp, b, cap - flow_peak(f));
    return moved ? 0 : sec;
}

double order_overlap(Graph *g, const Device *d, const Machine *m, Arena *tmp, OverlapBytes *b)
{
    Flow *joined = flow_new(g, d, m, tmp);
    flow_alike(joined);
    flow_join(joined);
    flow_lay_over_wider(joined);
    b->lacking = INT64_MAX;
    return overlap_flow(flow_new(g, d, m, tmp), joined, m, tmp, b);
}
