/* Searches for larger limits than the one that is asked for.
 *
 * A search goes by plans with less effort, which need more than the plans of the same choices as
 * they would run. So a choice that fits as it would run may lie beyond the limit by its try, where
 * the search for a somewhat larger limit finds it. Such searches are made for a few limits, a part
 * of the arena above what is asked for. Where nothing fits, one search is made above the least that
 * is found, and more as long as that gets lower. Their tries are mostly known; what they choose is
 * planned within the limit. So the least does not depend on the limit.
 *
 * They are left out of steps whose plans take long, of those for which a short one stands, which
 * are planned as they would run until they fit, and of tiny ones, which choose among all sets. */
#include "again.h"

enum {
    MOST_NODES = 1000, /* of steps that are searched so */
    MOST_LOWER = 3,    /* times that the least gets lower */
};

static const int parts[] = {128, 64, 32}; /* of the arena, above the limit */

static bool is_searched(const Decider *d)
{
    return d->step->nnode <= MOST_NODES && !d->shorter && !again_tiny(d);
}

static DecideTask *task_within(const Decider *d, int64_t memory)
{
    DecideTask *t = NEW(d->keep, DecideTask);
    *t = *d->task;
    t->memory = memory;
    return t;
}

/* The choice of the search for a limit, as it would run within the one that is asked for. need -1:
 * nothing else. */
static Planned find_within(Decider *d, int64_t memory)
{
    AgainReport *r = d->r;
    const DecideTask *task = d->task;
    d->task = task_within(d, memory);
    again_find(d);
    d->task = task;
    Planned x = r->chosen;
    if (!x.level && !x.word)
        return (Planned){.need = -1}; /* all saved */
    plan_full(d, &x);
    return x;
}

/* Puts x in its place by bytes downward. */
static void add_to_front(AgainReport *r, Planned x)
{
    PUSH(r->a, r->front, r->nfront, r->capfront, x);
    for (int i = r->nfront - 1; i > 0 && r->front[i - 1].need < r->front[i].need; i--) {
        r->front[i] = r->front[i - 1];
        r->front[i - 1] = x;
    }
}

/* Takes the best of what is chosen and of what the first searches above so many bytes find; whether
 * it is another. The front stays, with that. */
static bool take_beyond(Decider *d, int64_t above, int searches)
{
    AgainReport *r = d->r;
    Planned best = r->chosen, *front = r->front;
    const int nfront = r->nfront, capfront = r->capfront;
    const int64_t arena = best.peak;
    bool any = false;
    r->front = NULL;
    r->nfront = r->capfront = 0;
    for (int i = 0; i < searches; i++) {
        const Planned x = find_within(d, above + arena / parts[i]);
        const bool better = x.need >= 0 && !planned_first(d, &best, &x);
        best = better ? x : best;
        any |= better;
    }
    r->chosen = best;
    r->front = front;
    r->nfront = nfront;
    r->capfront = capfront;
    if (any)
        add_to_front(r, best);
    return any;
}

void again_find_faster(Decider *d)
{
    if (is_searched(d) && d->r->chosen.sec > d->r->none.sec)
        take_beyond(d, d->task->memory, LEN(parts));
}

void again_find_least(Decider *d)
{
    AgainReport *r = d->r;
    const DecideTask *task = d->task;
    d->task = task_within(d, NO_MEMORY);
    if (task->memory > NO_MEMORY)
        again_find(d);
    bool lower = is_searched(d) && take_beyond(d, r->chosen.need, 1);
    for (int i = 0; i < MOST_LOWER && lower; i++)
        lower = take_beyond(d, r->chosen.need, LEN(parts));
    d->task = task;
    if (!plan_fits(d, &r->chosen) || !is_searched(d))
        return;
    Planned x = r->chosen;
    plan_full(d, &x);
    r->chosen = planned_better(d, x, r->chosen);
}
