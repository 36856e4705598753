/* What strategies cost and use, counted anew from the problem. */
#include "pick.h"

#include <stdlib.h>

typedef struct UsageChange {
    int64_t time, more;
} UsageChange;

/* By time; what ends comes before what begins then. */
static int compare_changes(const void *x, const void *y)
{
    const UsageChange *c = x, *d = y;
    if (c->time != d->time)
        return c->time < d->time ? -1 : 1;
    return (c->more > d->more) - (c->more < d->more);
}

static void find_peak(Arena *tmp, const PickProblem *p, const int *strategy, PickCheck *c)
{
    UsageChange *change = NEWN(tmp, UsageChange, 2 * (size_t)p->n);
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        int64_t usage = p->usage[p->first[i] + strategy[i]];
        if (p->start[i] >= p->end[i])
            continue;
        change[n++] = (UsageChange){p->start[i], usage};
        change[n++] = (UsageChange){p->end[i], -usage};
    }
    qsort(change, (size_t)n, sizeof *change, compare_changes);
    int64_t used = 0;
    for (int i = 0; i < n; i++) {
        used += change[i].more;
        if (used > c->peak) {
            c->peak = used;
            c->time = change[i].time;
        }
    }
}

static void add_cost(PickCheck *c, double cost)
{
    if (isfinite(cost))
        c->cost += cost;
    else
        c->forbidden++;
}

PickCheck pick_check(Arena *tmp, const PickProblem *p, const int *strategy)
{
    PickCheck c = {0};
    for (int i = 0; i < p->n; i++)
        add_cost(&c, p->cost[p->first[i] + strategy[i]]);
    for (int i = 0; i < p->nedge; i++) {
        const PickEdge *e = &p->edge[i];
        add_cost(
            &c,
            p->matrix[e->at + (int64_t)strategy[e->u] * pick_strategies(p, e->v) + strategy[e->v]]);
    }
    find_peak(tmp, p, strategy, &c);
    return c;
}

bool pick_fits(const PickProblem *p, const PickCheck *c)
{
    return !c->forbidden && c->peak <= p->limit;
}
