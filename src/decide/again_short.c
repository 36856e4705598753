/* The search with a short step in place of the whole: where a step has many equal blocks, plans of
 * a few of them say what the whole needs (short_need.c), and what is chosen for a block is chosen
 * for those that it stands for. The whole step is planned with what was chosen in the end. If it
 * then does not fit, the search goes on with as much less as it is over. */
#include "again.h"

#include <string.h>

enum { MOST_WHOLE = 3 }; /* plans of the whole step */

/* ---- what a kept block stands for ---- */

static const int *weight_of(const Decider *d, const Planned *x)
{
    return x->weight ? x->weight : d->s->weight;
}

/* The kept block of a value's; -1: of none. */
static int kept_of(const Decider *d, int i)
{
    const Twin *t = map_find(&d->s->node, d->v.name[i]);
    for (int k = 0; t && k < SHORT_KEPT; k++)
        if (!strcmp(t->name[k], d->v.name[i]))
            return k;
    return -1;
}

/* The number of the same value in kept block k. */
static int twin_of(const Decider *d, int i, int k)
{
    const Twin *t = map_find(&d->s->node, d->v.name[i]);
    return (int)(intptr_t)map_find(&d->v.number, t->name[k]) - 1;
}

/* The one kept block in which the two differ; -1: they differ in others too, or in none. */
static int find_differing(const Decider *d, const Pair *p)
{
    int found = -1;
    for (int i = 0; i < d->v.n; i++) {
        if (level_at(&p->low, i) == level_at(&p->high, i))
            continue;
        int k = kept_of(d, i);
        if (k < 0 || (found >= 0 && found != k))
            return -1;
        found = k;
    }
    return found;
}

/* Whether block j of high is as block k of low. */
static bool stands_for(const Decider *d, const Pair *p, int k, int j)
{
    for (int i = 0; i < d->v.n; i++) {
        if (kept_of(d, i) != k)
            continue;
        const int twin = twin_of(d, i, j);
        if (twin < 0 || level_at(&p->high, twin) != level_at(&p->low, i))
            return false;
    }
    return true;
}

static int find_neighbour(const Decider *d, const Pair *p, int k)
{
    if (k + 1 < SHORT_KEPT && stands_for(d, p, k, k + 1))
        return k + 1;
    return k > 0 && stands_for(d, p, k, k - 1) ? k - 1 : -1;
}

static int *moved(const Decider *d, const int *weight, int from, int to, int count)
{
    int *x = NEWN(d->keep, int, SHORT_KEPT);
    memcpy(x, weight, sizeof *x * SHORT_KEPT);
    x[from] -= count;
    x[to] += count;
    return x;
}

/* The pair as one choice in which block k stands for fewer in low, its neighbour for the rest;
 * whether it is. */
static bool find_weights(const Decider *d, Pair *p, int *k, int *j)
{
    const int *low = weight_of(d, &p->low), *high = weight_of(d, &p->high);
    *k = *j = -1;
    if (p->low.level == p->high.level) {
        for (int i = 0; i < SHORT_KEPT; i++) {
            *k = low[i] < high[i] ? i : *k;
            *j = low[i] > high[i] ? i : *j;
        }
        return *k >= 0 && *j >= 0;
    }
    *k = memcmp(low, high, sizeof *low * SHORT_KEPT) ? -1 : find_differing(d, p);
    *j = *k >= 0 ? find_neighbour(d, p, *k) : -1;
    if (*j < 0)
        return false;
    p->low.level = p->high.level;
    p->low.weight = moved(d, low, *k, *j, low[*k]);
    p->low.word = NULL;
    p->low.ladder = NULL;
    return true;
}

bool pair_weigh(Decider *d, Pair *p)
{
    Pair x = *p;
    int k, j;
    if (!d->s || !p->high.level || !find_weights(d, &x, &k, &j))
        return false;
    *p = x;
    const int *low = weight_of(d, &x.low), *high = weight_of(d, &x.high);
    const int half = (high[k] - low[k]) / 2;
    if (half < 1)
        return false;
    Planned y = {.level = x.high.level, .prefer = x.high.prefer};
    y.weight = moved(d, high, k, j, half);
    plan_weighed(d, &y);
    return pair_take(d, p, &y, 1);
}

/* ---- the whole step ---- */

/* The kept block that stands for one of the equal blocks. */
static int stand_in(const int *weight, int block)
{
    int k = 0;
    for (int end = weight[0]; k < SHORT_KEPT - 1 && block >= end; end += weight[k])
        k++;
    return k;
}

/* What was chosen for the short step e, for the whole step d. */
static Planned whole_of(Decider *d, const Decider *e, const Planned *x)
{
    Planned y = {.word = x->word, .need = x->need, .peak = x->peak, .sec = x->sec};
    if (x->word)
        y.level = levels_of_word(d, x->word);
    if (x->word || !x->level)
        return y;
    const int *weight = weight_of(e, x);
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int i = 0; i < d->v.n; i++) {
        const Twin *t = map_find(&e->s->node, d->v.name[i]);
        const char *name = t ? t->name[stand_in(weight, t->block)] : d->v.name[i];
        const intptr_t of = (intptr_t)map_find(&e->v.number, name);
        level[i] = of ? level_at(x, (int)of - 1) : SAVED;
    }
    y.level = level;
    y.prefer = x->prefer;
    return y;
}

/* The better one: that fits, else that needs less; then the faster. */
static bool is_better(const Decider *d, const Planned *x, const Planned *y)
{
    const bool fits = plan_fits(d, x);
    if (fits != plan_fits(d, y))
        return fits;
    return fits ? x->sec < y->sec : x->need < y->need;
}

/* Plans what the short step's search has chosen for so many bytes; returns by how much more the
 * whole step needs than was thought. */
static int64_t search_within(Decider *d, Decider *e, int64_t memory)
{
    DecideTask task = *d->task;
    task.memory = memory;
    e->task = &task;
    e->r->nfront = 0;
    again_search(e);
    Planned x = whole_of(d, e, &e->r->chosen);
    const int64_t thought = x.need;
    if (x.level || x.word)
        plan_full(d, &x);
    else
        x = d->r->none;
    if (x.need >= 0 && (!d->r->chosen.level || is_better(d, &x, &d->r->chosen)))
        d->r->chosen = x;
    return x.need - thought;
}

static void take_front(Decider *d, const Decider *e)
{
    AgainReport *r = d->r;
    for (int i = 0; i < e->r->nfront; i++)
        PUSH(r->a, r->front, r->nfront, r->capfront, whole_of(d, e, &e->r->front[i]));
    r->nplanned += e->r->nplanned;
}

bool again_search_short(Decider *d)
{
    Short s;
    if (d->loops || d->s || !d->blocks.scoped || !short_make(d->keep, d->g, d->o.prices, &s))
        return false;
    AgainReport r = {.a = d->r->a, .memory = d->r->memory};
    Decider e = {.w = d->w,
                 .task = d->task,
                 .known = d->known,
                 .r = &r,
                 .g = s.g,
                 .keep = d->keep,
                 .tmp = d->tmp,
                 .o = d->o,
                 .reserve = INT64_MAX,
                 .s = &s};
    e.gathers.a = e.seen.a = d->keep;
    if (!again_begin(&e))
        return false;
    plan_full(&e, &r.none);
    int64_t goal = d->task->memory;
    for (int i = 0; i < MOST_WHOLE; i++) {
        const int64_t more = search_within(d, &e, goal);
        if (plan_fits(d, &d->r->chosen) || more <= 0 || goal - more < 1)
            break;
        goal = MIN(goal - 1, d->task->memory - more);
    }
    take_front(d, &e);
    return true;
}
