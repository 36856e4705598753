/* The search with a short step in place of the whole: where a step has many equal blocks, plans of
 * a few of them say what the whole needs (short_need.c), and what is chosen for a block is chosen
 * for those that it stands for. The whole step is planned with what was chosen in the end. If it
 * then does not fit, the search goes on with as much less as it is over. */
#include "again.h"

#include <string.h>

enum {
    MOST_WHOLE = 3, /* plans of the whole step */
    CLOSE = 1000,   /* the part of a step's seconds that less effort may be off */
};

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

/* A mixture: the first blocks as in high, the first of them as in `first`, the last one as in
 * `last`, the others and the rest of the step as in low; begin: what inputs make before the first
 * block is computed again. */
typedef struct Mixture {
    const Planned *low, *high, *first, *last;
    bool begin;
} Mixture;

static const Level *mixed(const Decider *d, Mixture m)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int i = 0; i < d->v.n; i++) {
        const int k = kept_of(d, i);
        const Planned *of = !k                    ? m.first
                            : k < SHORT_KEPT / 2  ? m.high
                            : k == SHORT_KEPT - 1 ? m.last
                                                  : m.low;
        level[i] = m.begin && d->v.begin[i] ? AGAIN : level_at(of, i);
    }
    return level;
}

/* The last block's values as in low, but for the largest, which is saved: it would be computed
 * again where as much is alive. */
static Planned without_largest(const Decider *d, const Planned *low)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    int64_t most = 0;
    for (int i = 0; i < d->v.n; i++)
        if (kept_of(d, i) == SHORT_KEPT - 1 && level_at(low, i) == AGAIN)
            most = MAX(most, d->v.nbytes[i]);
    for (int i = 0; i < d->v.n; i++)
        level[i] = d->v.nbytes[i] < most ? level_at(low, i) : SAVED;
    return (Planned){.level = level};
}

/* Plans m; whether it is better than x, which it then is. */
static bool try_mixture(Decider *d, Mixture m, Planned *x)
{
    const Planned y = plan_mixed(d, mixed(d, m));
    const bool better = !planned_first(d, x, &y);
    *x = better ? y : *x;
    return better;
}

static bool is_on(const Front *f, const Planned *x)
{
    bool on = false;
    for (int i = 0; f && i < f->n; i++)
        on |= f->x[i].level == x->level && f->x[i].word == x->word;
    return on;
}

/* The better of x and of what is the same for all blocks, as it is or with what is tried of a
 * mixture's last block and of the step's begin. */
static Planned try_even(Decider *d, const Planned *even, Planned x)
{
    if (!even->level || (d->g->mesh && d->task->to.overlap))
        return x;
    const Planned last = without_largest(d, even);
    x = planned_better(d, x, *even);
    try_mixture(d, (Mixture){even, even, even, &last, true}, &x);
    return x;
}

Planned mix_blocks(Decider *d, const Front *f, const Front *before, Planned x)
{
    enum { BEFORE = 4, BEHIND = 2, MORE = 5 }; /* of the front, around the limit */
    Mixture best = {0};
    int at = 0;
    d->plain = x;
    while (at < f->n && !plan_fits(d, &f->x[at]))
        at++;
    if (at < f->n)
        x = try_even(d, &f->x[at], x);
    for (int j = at; j < MIN(at + BEHIND, f->n); j++)
        for (int i = MAX(at - BEFORE, 0); i < at; i++) {
            const Planned *low = &f->x[i], *high = &f->x[j];
            const Mixture m = {low, high, high, low, false};
            if (is_on(before, low) && is_on(before, high))
                continue;
            best = try_mixture(d, m, &x) ? m : best;
        }
    if (!best.low)
        return x;
    /* the last block has its own alive beside all that is saved */
    Mixture m = best;
    for (int i = MAX(at - BEFORE, 0); i < MIN(at + BEHIND, f->n); i++) {
        m.last = &f->x[i];
        if (m.last != best.low)
            try_mixture(d, m, &x);
    }
    d->plain = x;
    if (d->g->mesh && d->task->to.overlap)
        return x; /* tries do not say what collectives take beside another block */
    /* one block may be any on the front, as blocks as in high are few sizes */
    const Planned most = without_largest(d, best.low);
    m.last = &most;
    m.begin = true;
    for (int i = MAX(at - BEFORE, 0); i < MIN(at + MORE, f->n); i++) {
        m.first = &f->x[i];
        best = try_mixture(d, m, &x) ? m : best;
    }
    best.begin = false;
    try_mixture(d, best, &x);
    return x;
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

Planned again_whole(Decider *d, const Decider *e, const Planned *x)
{
    Planned y = {.word = x->word, .room = x->room, .need = x->need, .peak = x->peak, .sec = x->sec};
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

/* Searches by values between x, which a mixture of blocks stands for, and the one with a block less
 * as in the slower one; returns x where nothing is better. The short one tells both of large steps.
 */
static Planned refine(Decider *d, Decider *e, const Planned *from, const Planned *x)
{
    int fewer[SHORT_KEPT];
    if (!from->weight || from->weight[SHORT_KEPT / 2 - 1] < 2 ||
        (d->g->mesh && d->task->to.overlap))
        return *x;
    memcpy(fewer, from->weight, sizeof fewer);
    fewer[SHORT_KEPT / 2 - 1]--;
    fewer[SHORT_KEPT / 2]++;
    Planned less = {.level = from->level, .weight = fewer};
    if (is_long(d))
        plan_weighed(e, &less);
    if (less.need < 0)
        return *x;
    Pair p = {.low = again_whole(d, e, &less), .high = *x};
    if (!is_long(d)) {
        p.low = plan_quick(d, p.low.level, NULL);
        p.high = plan_quick(d, x->level, NULL);
    }
    if (plan_fits(d, &p.low))
        return p.low;
    if (plan_fits(d, &p.high))
        pair_search(d, &p, p.high.sec);
    return p.high;
}

/* The refined mixture without an odd block, which may be the better one after that; x: there is
 * none beside. */
static Planned refine_plain(Decider *d, Decider *e, Planned x)
{
    if (!e->plain.weight || e->plain.level == e->r->chosen.level)
        return x;
    const Planned plain = again_whole(d, e, &e->plain);
    return refine(d, e, &e->plain, &plain);
}

static void take_whole(Decider *d, Planned x)
{
    if (x.need >= 0)
        d->r->chosen = planned_better(d, d->r->chosen, x);
}

/* Plans what the short step's search has chosen for so many bytes; returns by how much more the
 * whole step needs than was thought. */
static int64_t search_within(Decider *d, Decider *e, int64_t memory)
{
    DecideTask *task = NEW(d->keep, DecideTask);
    *task = *d->task;
    task->memory = memory;
    e->task = task;
    e->r->nfront = 0;
    again_search(e);
    Planned x = again_whole(d, e, &e->r->chosen);
    const int64_t thought = x.need;
    if (again_far(d, &x)) {
        e->task = d->task;
        d->r->chosen = x;
        return 0;
    }
    const Planned odd = refine(d, e, &e->r->chosen, &x), plain = refine_plain(d, e, odd);
    const bool first = planned_first(d, &odd, &plain);
    Planned other = first ? plain : odd;
    x = first ? odd : plain;
    e->task = d->task;
    if (x.level || x.word)
        plan_full(d, &x);
    else
        x = d->r->none;
    take_whole(d, x);
    if (plan_fits(d, &other) && other.sec <= x.sec + x.sec / CLOSE) {
        plan_full(d, &other);
        take_whole(d, other);
    }
    return x.need - thought;
}

void again_take_front(Decider *d, const Decider *e)
{
    AgainReport *r = d->r;
    for (int i = 0; i < e->r->nfront; i++)
        PUSH(r->a, r->front, r->nfront, r->capfront, again_whole(d, e, &e->r->front[i]));
    r->nplanned += e->r->nplanned;
}

Decider *again_shorter(Decider *d)
{
    if (d->shorter) {
        d->shorter->task = d->task;
        return d->shorter;
    }
    Short *s = NEW(d->keep, Short);
    const bool whole = !d->loops && !d->step->parent && d->blocks.scoped;
    /* Copies to the host's memory run beside other blocks, of which a short step has few. */
    const bool away = device_nspace(d->task->to.device) > 1;
    if (d->s || !whole || away || !short_make(d->keep, d->g, d->o.prices, s))
        return NULL;
    Decider *e = NEW(d->keep, Decider);
    *e = (Decider){.w = d->w,
                   .task = d->task,
                   .known = d->known,
                   .r = NEW(d->keep, AgainReport),
                   .g = s->g,
                   .keep = d->keep,
                   .tmp = arena_tmp(d->keep),
                   .o = d->o,
                   .reserve = INT64_MAX,
                   .s = s};
    e->r->a = d->r->a;
    e->r->memory = d->r->memory;
    e->gathers.a = d->keep;
    return d->shorter = again_begin(e) ? e : NULL;
}

bool again_far(const Decider *d, const Planned *x)
{
    enum { PART = 16 }; /* of the limit, for what less effort may be off */
    const int64_t memory = d->task->memory;
    return memory > NO_MEMORY && x->need > memory + memory / PART;
}

bool again_misfits(Decider *d, Planned *none)
{
    Decider *e = again_shorter(d);
    if (!e && !again_large(d))
        return false;
    *none = plan_quick(e ? e : d, NULL, NULL);
    return again_far(d, none);
}

/* Takes the first of e's front that fits, if it seems faster than what is chosen is: a mixture that
 * seemed to be the faster one need not be, once the whole step is planned. */
static void take_first(Decider *d, const Decider *e)
{
    const AgainReport *r = e->r;
    int i = 0;
    while (i < r->nfront && !plan_fits(d, &r->front[i]))
        i++;
    if (i == r->nfront || r->front[i].sec >= d->r->chosen.sec || !r->front[i].level)
        return;
    Planned x = again_whole(d, e, &r->front[i]);
    plan_full(d, &x);
    take_whole(d, x);
}

bool again_search_short(Decider *d)
{
    Decider *e = again_shorter(d);
    if (!e)
        return false;
    e->r->none = plan_quick(e, NULL, NULL);
    if (!again_far(d, &e->r->none))
        plan_full(e, &e->r->none);
    int64_t goal = d->task->memory;
    for (int i = 0; i < MOST_WHOLE; i++) {
        const int64_t more = search_within(d, e, goal);
        if (plan_fits(d, &d->r->chosen) || more <= 0 || goal - more < 1)
            break;
        goal = MIN(goal - 1, d->task->memory - more);
    }
    take_first(d, e);
    again_take_front(d, e);
    return true;
}
