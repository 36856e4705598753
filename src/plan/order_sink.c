/* Moves what makes a large value that lies beneath the peak. A search for an order runs a node as
 * soon as it fits: a gradient of the head that fits, but whose reduction over ranks does not yet
 * fit, lies beneath the peak of every layer after it, where its operands would take less.
 *
 * A unit is such a node and those after it that alone read what the one before made, up to where
 * least is left: a gradient, its reduction and what waits for it. At the first place of the peak,
 * the units of the largest values that are there are tried. Two walks along the order tell the peak
 * for each place of a unit: of nodes before it from the unit at its last place, of nodes after it
 * from the unit at its first. It moves to the best place if the peak falls. That is repeated,
 * within a limit of tries; each is linear. */
#include "order.h"

#include <string.h>

enum {
    MOST_TRIES = 24, /* units */
    AT_ONCE = 3,     /* at a peak, at most */
    UNIT = 8,        /* nodes of a unit, at most */
};

typedef struct Sink {
    const Problem *q;
    Arena *tmp;
    int *order, *place; /* place: of a node */
    int *rest, nrest;   /* the order without a unit */
    int *left;          /* of a storage: readers that have not run */
    bool *tried;        /* of a storage: at this peak */
    int64_t peak;
    int tries;
} Sink;

typedef struct Unit {
    int node[UNIT], count;
    int first, last; /* the nodes of the rest before which it may run */
} Unit;

/* Along the rest, with a unit in it: what is alive before a node, and while it runs. */
typedef struct Along {
    int64_t *live, *most;
    int64_t before, unit; /* before the unit, and while it runs */
} Along;

static void find_places(Sink *x)
{
    for (int k = 0; k < x->q->n; k++)
        x->place[x->order[k]] = k;
}

static void start(Sink *x)
{
    for (int s = 0; s < x->q->storage.count; s++)
        x->left[s] = x->q->user.at[s + 1] - x->q->user.at[s];
}

/* Runs node i on top of `live`; returns what is alive while it runs. */
static int64_t run(Sink *x, int i, int64_t *live)
{
    Effect e = problem_effect(x->q, x->left, 1, i);
    int64_t most = *live + e.need;
    *live += e.net;
    EACH_ITEM(j, x->q->use, i)
        x->left[x->q->use.item[j]]--;
    return most;
}

/* The first place in the order that reaches the peak; -1: its ends do. */
static int peak_place(Sink *x)
{
    int64_t live = x->q->base + x->q->inputs;
    start(x);
    for (int k = 0; k < x->q->n; k++)
        if (run(x, x->order[k], &live) == x->peak)
            return k;
    return -1;
}

/* ---- units ---- */

static int64_t made_bytes(const Problem *q, int i)
{
    int64_t sum = 0;
    EACH_ITEM(k, q->make, i)
        sum += q->storage.nbytes[q->make.item[k]];
    return sum;
}

/* The node that alone reads all that node i makes, -1: there is none. */
static int only_reader(const Problem *q, int i)
{
    int reader = -1;
    EACH_ITEM(k, q->make, i) {
        int s = q->make.item[k];
        if (q->storage.kept[s] || q->user.at[s + 1] - q->user.at[s] != 1 ||
            (reader >= 0 && q->user.item[q->user.at[s]] != reader))
            return -1;
        reader = q->user.item[q->user.at[s]];
    }
    return reader;
}

/* The node that follows i in a unit, or -1. The node that waits for a reduction also reads what
 * that reads and makes. */
static int next_of(const Problem *q, int i)
{
    if (q->finish[i] >= 0)
        return q->finish[i];
    EACH_ITEM(k, q->succ, i)
        if (q->finish[q->succ.item[k]] >= 0)
            return q->succ.item[k];
    return only_reader(q, i);
}

static bool has(const Unit *u, int i)
{
    for (int k = 0; k < u->count; k++)
        if (u->node[k] == i)
            return true;
    return false;
}

/* The unit of node i, and the rest of the order. While its first and last place are sought,
 * x->place counts in the rest. */
static Unit find_unit(Sink *x, int i)
{
    const Problem *q = x->q;
    Unit u = {.count = 0};
    int least = 1;
    for (; i >= 0 && u.count < UNIT; i = next_of(q, i)) {
        u.node[u.count++] = i;
        if (made_bytes(q, i) < made_bytes(q, u.node[least - 1]) && q->finish[i] < 0)
            least = u.count;
    }
    u.count = least;
    x->nrest = 0;
    for (int k = 0; k < q->n; k++)
        if (!has(&u, x->order[k])) {
            x->place[x->order[k]] = x->nrest;
            x->rest[x->nrest++] = x->order[k];
        }
    u.last = x->nrest;
    for (int k = 0; k < u.count; k++) {
        EACH_ITEM(j, q->pred, u.node[k])
            if (!has(&u, q->pred.item[j]))
                u.first = MAX(u.first, x->place[q->pred.item[j]] + 1);
        EACH_ITEM(j, q->succ, u.node[k])
            if (!has(&u, q->succ.item[j]))
                u.last = MIN(u.last, x->place[q->succ.item[j]]);
    }
    find_places(x);
    return u;
}

/* The largest storage not tried that is there at place `at`; -1. */
static int find_beneath(const Sink *x, int at)
{
    const Problem *q = x->q;
    const OrderStorages *s = &q->storage;
    int found = -1;
    for (int k = 0; k < s->count; k++) {
        if (s->def[k] < 0 || x->tried[k] || s->kept[k] || s->over[k] >= 0 ||
            s->nbytes[k] <= (found < 0 ? 0 : s->nbytes[found]) || x->place[s->def[k]] > at)
            continue;
        bool alive = x->place[s->def[k]] == at;
        for (int j = q->user.at[k]; j < q->user.at[k + 1] && !alive; j++)
            alive = x->place[q->user.item[j]] >= at;
        found = alive ? k : found;
    }
    return found;
}

/* ---- places ---- */

/* Walks along the rest, with the unit before its node `at`. */
static Along walk(Sink *x, const Unit *u, int at)
{
    Along w = {.live = NEWN(x->tmp, int64_t, x->nrest), .most = NEWN(x->tmp, int64_t, x->nrest)};
    int64_t live = x->q->base + x->q->inputs;
    start(x);
    for (int k = 0; k <= x->nrest; k++) {
        w.before = k == at ? live : w.before;
        for (int j = 0; k == at && j < u->count; j++) {
            int64_t most = run(x, u->node[j], &live);
            w.unit = MAX(w.unit, most);
        }
        if (k == x->nrest)
            break;
        w.live[k] = live;
        w.most[k] = run(x, x->rest[k], &live);
    }
    return w;
}

/* The node of the rest before which the unit makes the least peak, the first on a tie. */
static int best_place(Sink *x, const Unit *u, int64_t *least)
{
    Along early = walk(x, u, u->first), late = walk(x, u, u->last);
    int64_t *after = NEWN(x->tmp, int64_t, x->nrest + 1), most = x->q->ends;
    int found = u->first;
    for (int k = x->nrest - 1; k >= u->first; k--)
        after[k] = MAX(after[k + 1], early.most[k]);
    *least = INT64_MAX;
    for (int k = 0; k <= u->last; k++) {
        int64_t before = k == u->last ? late.before : late.live[k];
        int64_t peak = MAX(MAX(most, after[k]), before + late.unit - late.before);
        if (k >= u->first && peak < *least) {
            *least = peak;
            found = k;
        }
        most = k < u->last ? MAX(most, late.most[k]) : most;
    }
    return found;
}

static void put(Sink *x, const Unit *u, int at, int *out)
{
    memcpy(out, x->rest, sizeof *out * (size_t)at);
    memcpy(out + at, u->node, sizeof *out * (size_t)u->count);
    memcpy(out + at + u->count, x->rest + at, sizeof *out * (size_t)(x->nrest - at));
}

/* Moves the unit of node i if the peak falls. */
static bool move_unit(Sink *x, int i)
{
    Unit u = find_unit(x, i);
    int64_t least;
    int *order = NEWN(x->tmp, int, x->q->n);
    if (u.first >= u.last)
        return false;
    x->tries--;
    int at = best_place(x, &u, &least);
    if (least >= x->peak)
        return false;
    put(x, &u, at, order);
    least = problem_peak(x->q, x->tmp, order);
    if (least >= x->peak)
        return false;
    x->peak = least;
    memcpy(x->order, order, sizeof *order * (size_t)x->q->n);
    find_places(x);
    return true;
}

static bool sink_one(Sink *x)
{
    int at = peak_place(x);
    memset(x->tried, 0, sizeof *x->tried * (size_t)x->q->storage.count);
    for (int k = 0; at >= 0 && k < AT_ONCE && x->tries > 0; k++) {
        int s = find_beneath(x, at);
        if (s < 0)
            return false;
        x->tried[s] = true;
        if (move_unit(x, x->q->storage.def[s]))
            return true;
    }
    return false;
}

bool order_sink(const Problem *q, Arena *tmp, const int *order, int *out)
{
    Sink x = {.q = q, .tmp = arena_tmp(tmp), .order = out, .tries = MOST_TRIES};
    bool moved = false;
    memcpy(out, order, sizeof *out * (size_t)q->n);
    x.peak = problem_peak(q, tmp, order);
    x.place = NEWN(tmp, int, q->n);
    x.rest = NEWN(tmp, int, q->n);
    x.left = NEWN(tmp, int, q->storage.count);
    x.tried = NEWN(tmp, bool, q->storage.count);
    find_places(&x);
    while (sink_one(&x)) {
        moved = true;
        arena_reset(x.tmp);
    }
    arena_reset(x.tmp);
    return moved;
}
