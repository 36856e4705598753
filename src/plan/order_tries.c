/* order_tries: an order of nodes, and orders that are tried in its place, by the clock
 * (machine/clock.c) and by problem.h's exact sums of bytes. A try costs the nodes between the
 * places where the orders differ, and those beside them up to where nothing is under way; one that
 * is taken is linear. */
#include "overlap.h"
#include "../flow/steps.h"

#include <math.h>
#include <string.h>

#define ROUNDED 1e-12 /* share of the step: sums of seconds that differ by less are equal */

const Node *overlap_node(const Overlap *x, int i)
{
    return item_node(x->q->flow, x->q->item[i]);
}

bool overlap_starts(const Overlap *x, int i)
{
    return x->begins[i];
}

/* ---- time ---- */

static int made_at(const Overlap *x, int place)
{
    return place >= x->low && place < x->high ? x->made[place] : x->order[place];
}

/* Runs node i at `now`; returns when computing goes on. from: the place from which on time is told;
 * what was started before it has ended there. */
static double time_node(Overlap *x, TimedOrder *t, Clock *c, int i, int from, double now)
{
    int start = x->start[i];
    t->at[i] = now;
    if (x->begins[i]) {
        const Started *s = &x->started[i];
        t->stall[i] = 0;
        x->job[i] = clock_start(c, s->group, &s->where, now, s->sec);
        x->begun[x->nbegun++] = i;
        return now;
    }
    if (start < 0 || x->place[start] < from)
        return now + (start < 0 ? x->sec[i] : 0);
    t->end[start] = clock_end(c, x->job[start]);
    t->stall[start] += MAX(0, t->end[start] - now);
    return MAX(now, t->end[start]);
}

/* The last place up to `place` where nothing is under way. */
static int quiet_place(const Overlap *x, int place)
{
    while (place > 0 && x->until[place] > x->now.at[x->order[place]])
        place--;
    return place;
}

/* When the order that is tried ends, by the time from the place on. Behind what differs, nothing
 * changes but for a shift once nothing is under way in either order: *settled is where. */
static double time_from(Overlap *x, TimedOrder *t, int from, int *settled)
{
    Clock *c = clock_new(x->scratch);
    double now = from ? x->now.at[x->order[from]] : 0, total = -1;
    int k = from;
    x->nbegun = 0;
    for (; k < x->q->n && total < 0; k++) {
        double was = x->now.at[x->order[k]];
        if (k >= x->high && x->until[k] <= was && clock_idle(c, now))
            total = x->now.total + (now - was);
        else
            now = time_node(x, t, c, made_at(x, k), from, now);
    }
    *settled = total < 0 ? x->q->n : k - 1;
    for (int j = 0; j < x->nbegun; j++) /* waits may be behind it */
        t->end[x->begun[j]] = clock_end(c, x->job[x->begun[j]]);
    arena_reset(x->scratch);
    return total < 0 ? now : total;
}

/* Fills when what was started before the places from `from` on has ended. */
static void find_ends(Overlap *x, int from)
{
    double until = from ? x->until[from] : 0;
    for (int k = from; k < x->q->n; k++) {
        x->until[k] = until;
        if (overlap_starts(x, x->order[k]))
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
    return x->beside ? x->beside[overlap_node(x, i)->id] : 0;
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

double overlap_gain(Overlap *x, double least)
{
    int64_t most;
    int settled, from;
    if (x->low >= x->high)
        return -1;
    from = quiet_place(x, x->low);
    double total = time_from(x, &x->tried, from, &settled);
    overlap_see(x, from);
    overlap_see(x, MIN(settled, x->q->n - 1));
    if (!(total <= x->now.total * (1 + ROUNDED) - least))
        return -1;
    bool fits = excess_of(x, &most, false) <= x->excess && most <= x->most;
    if (!fits)
        x->lacking = MIN(x->lacking, most - x->most);
    return fits ? MAX(0, x->now.total - total) : -1;
}

void overlap_take(Overlap *x)
{
    int64_t most;
    int settled, from = quiet_place(x, x->low);
    x->excess = excess_of(x, &most, true);
    double total = time_from(x, &x->tried, from, &settled), shift = total - x->now.total;
    for (int k = x->low; k < x->high; k++) {
        x->order[k] = x->made[k];
        x->place[x->order[k]] = k;
    }
    for (int k = from; k < x->q->n; k++) {
        int i = x->order[k];
        bool told = k < settled;
        x->now.at[i] = told ? x->tried.at[i] : x->now.at[i] + shift;
        x->now.end[i] = told ? x->tried.end[i] : x->now.end[i] + shift;
        x->now.stall[i] = told ? x->tried.stall[i] : x->now.stall[i];
    }
    x->now.total = total;
    find_ends(x, from);
    x->ntaken++;
    for (int k = from; k < settled; k++)
        x->changed[k] = x->ntaken;
}

bool overlap_try(Overlap *x, double least)
{
    bool good = overlap_gain(x, least) >= 0;
    if (good)
        overlap_take(x);
    return good;
}

/* ---- sets that move ---- */

void overlap_clear(Overlap *x)
{
    for (int k = 0; k < x->nnoted; k++)
        x->in[x->noted[k]] = x->mark[x->noted[k]] = false;
    x->nnoted = 0;
}

void overlap_note(Overlap *x, int i, bool *set)
{
    if (!x->in[i] && !x->mark[i])
        x->noted[x->nnoted++] = i;
    set[i] = true;
}

void overlap_move_set(Overlap *x, int before)
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

/* ---- what is of no use ---- */

void overlap_see(Overlap *x, int place)
{
    x->first = MIN(x->first, place);
    x->last = MAX(x->last, place);
}

bool overlap_begin(Overlap *x, int start, Vain *v)
{
    bool same = v->taken >= 0;
    for (int k = v->first; same && k <= v->last; k++)
        same = x->changed[k] <= v->taken;
    v->nset = same ? v->nset : 0;
    x->first = same ? v->first : x->place[start];
    x->last = same ? v->last : x->place[start];
    EACH_ITEM(k, x->q->succ, start)
        if (x->start[x->q->succ.item[k]] == start)
            overlap_see(x, x->place[x->q->succ.item[k]]);
    return same;
}

void overlap_end(Overlap *x, Vain *v, bool moved)
{
    v->taken = moved ? -1 : x->ntaken;
    v->first = x->first;
    v->last = x->last;
}

/* ---- the first order ---- */

/* Equal names at one address: the clock compares that first. */
static const char *one_name(Map *names, const char *name)
{
    const char *first = map_find(names, name);
    if (!first)
        map_put(names, name, (void *)name);
    return first ? first : name;
}

/* joined: the flow in which copies that nobody makes are left out. */
static void fill_node(Overlap *x, const Flow *joined, const Machine *m, int i, const int *number,
                      Map *names)
{
    const Mesh *mesh = graph_mesh(flow_graph(joined));
    const Node *n = overlap_node(x, i), *from = node_waits_for(n);
    x->start[i] = from ? number[from->id] : -1;
    x->sec[i] = item_ncore(joined, x->q->item[i]) ? node_sec(m, mesh, n) : 0;
    if (from) {
        x->started[x->start[i]].nwait++;
        x->begins[x->start[i]] = true;
    }
    if (n->op->class == CLASS_COLLECTIVE)
        x->started[i] = (Started){x->sec[i], one_name(names, n->attr[attr_index(n->op, "group")].s),
                                  node_group(m, mesh, n), 0};
}

static void first_order(Overlap *x)
{
    for (int i = 0; i < x->q->n; i++)
        x->order[i] = x->place[i] = x->made[i] = i;
}

static TimedOrder timed_new(Arena *tmp, int n)
{
    return (TimedOrder){NEWN(tmp, double, n), NEWN(tmp, double, n), NEWN(tmp, double, n), 0};
}

Overlap *overlap_new(const Problem *q, const Flow *joined, const Machine *m, Arena *tmp)
{
    Overlap *x = NEW(tmp, Overlap);
    *x = (Overlap){.q = q, .tmp = tmp, .scratch = arena_tmp(tmp)};
    const Graph *g = flow_graph(q->flow);
    int *number = NEWN(tmp, int, g->nnode);
    Map names = {.a = tmp};
    x->order = NEWN(tmp, int, q->n);
    x->place = NEWN(tmp, int, q->n);
    x->made = NEWN(tmp, int, q->n);
    x->now = timed_new(tmp, q->n);
    x->tried = timed_new(tmp, q->n);
    x->sec = NEWN(tmp, double, q->n);
    x->start = NEWN(tmp, int, q->n);
    x->started = NEWN(tmp, Started, q->n);
    x->begins = NEWN(tmp, bool, q->n);
    x->begun = NEWN(tmp, int, q->n);
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
        number[overlap_node(x, i)->id] = i;
        fill_node(x, joined, m, i, number, &names);
    }
    for (int k = 0; k < q->storage.count; k++)
        x->left[k] = -1;
    x->changed = NEWN(tmp, int, q->n);
    x->vain = NEWN(tmp, Vain, q->n);
    x->up = NEWN(tmp, Vain, q->n);
    return x;
}

Overlap *overlap_like(const Overlap *x, Arena *tmp)
{
    Overlap *y = NEW(tmp, Overlap);
    const int n = x->q->n;
    *y = *x;
    y->order = NEWN(tmp, int, n);
    y->now = timed_new(tmp, n);
    y->until = NEWN(tmp, double, n);
    y->live = NEWN(tmp, int64_t, n);
    y->above = NEWN(tmp, double, n);
    overlap_copy(y, x);
    return y;
}

void overlap_copy(Overlap *to, const Overlap *from)
{
    const size_t n = (size_t)to->q->n;
    memcpy(to->order, from->order, n * sizeof *to->order);
    memcpy(to->now.at, from->now.at, n * sizeof *to->now.at);
    memcpy(to->now.end, from->now.end, n * sizeof *to->now.end);
    memcpy(to->now.stall, from->now.stall, n * sizeof *to->now.stall);
    memcpy(to->until, from->until, n * sizeof *to->until);
    memcpy(to->live, from->live, n * sizeof *to->live);
    memcpy(to->above, from->above, n * sizeof *to->above);
    to->now.total = from->now.total;
    to->excess = from->excess;
    for (size_t k = 0; k < n; k++) {
        to->place[to->order[k]] = (int)k;
        to->vain[k].taken = to->up[k].taken = -1;
    }
}

void overlap_measure(Overlap *x, int64_t more)
{
    int64_t most;
    int settled;
    first_order(x);
    x->low = 0;
    x->high = x->q->n;
    x->live[0] = x->q->base + x->q->inputs;
    x->excess = 0;
    x->lacking = INT64_MAX;
    memset(x->above, 0, sizeof *x->above * (size_t)x->q->n);
    if (x->beside) {
        excess_of(x, &most, false);
        x->cap = most + more;
    } else {
        x->cap = problem_peak(x->q, x->scratch, x->order) + more;
    }
    x->excess = excess_of(x, &most, true);
    x->most = MAX(most, x->cap);
    x->now.total = time_from(x, &x->now, 0, &settled);
    find_ends(x, 0);
}
