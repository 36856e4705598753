/* The search between two choices, one that does not fit and a slower one that does.
 *
 * Plans depend on the two alone: that which lies between them on a ladder; else half of the
 * blocks in which they differ as in the one, the rest as in the other; where they differ in one
 * block, half of its values; of small steps at last the slower one without one value, or with
 * another in its place. The next two are those of all these that lie next to the limit on either
 * side.
 *
 * So a larger limit never gives a slower step: as long as two limits have the same two choices they
 * get the same plans, and where they part the larger one goes on with the faster two. Therefore
 * nothing is taken that is faster than the first of the two. Halves of a front's next two may be
 * faster than their first, but not than the one before it: whoever has that pair has these too. */
#include "again.h"

#include <stdlib.h>
#include <string.h>

enum {
    NEAR_ROUNDS = 2,
    WIDE = 4,       /* pairs whose halves are tried */
    MOST_NEAR = 12, /* plans in one round */
};

/* ---- fronts ---- */

static int compare_time(const void *x, const void *y)
{
    const Planned *p = x, *q = y;
    if (p->sec != q->sec)
        return p->sec < q->sec ? -1 : 1;
    return (p->need > q->need) - (p->need < q->need);
}

void front_add(Arena *a, Front *f, Planned x)
{
    if (x.need >= 0)
        PUSH(a, f->x, f->n, f->cap, x);
}

void front_close(Front *f)
{
    int n = 1;
    qsort(f->x + 1, (size_t)(f->n - 1), sizeof *f->x, compare_time);
    for (int i = 1; i < f->n; i++)
        if (f->x[i].need < f->x[n - 1].need)
            f->x[n++] = f->x[i];
    f->n = n;
}

int front_find(const Decider *d, const Front *f)
{
    int i = 0;
    while (i < f->n - 1 && !plan_fits(d, &f->x[i]))
        i++;
    return i;
}

bool pair_take(const Decider *d, Pair *p, const Planned *x, int n)
{
    Front f = {0};
    front_add(d->keep, &f, p->low);
    for (int i = 0; i < n; i++)
        if (x[i].sec >= p->low.sec && x[i].sec < p->high.sec)
            front_add(d->keep, &f, x[i]);
    front_close(&f);
    bool any = f.n > 1;
    PUSH(d->keep, f.x, f.n, f.cap, p->high);
    int i = front_find(d, &f);
    p->high = f.x[i];
    p->low = f.x[i - 1];
    return any;
}

/* ---- the middle ---- */

static bool differs(const Pair *p, int i)
{
    return level_at(&p->low, i) != level_at(&p->high, i);
}

static int count_values(const Decider *d, const Pair *p)
{
    int count = 0;
    for (int i = 0; i < d->v.n; i++)
        count += differs(p, i);
    return count;
}

/* A number for each value in which the two differ: that of its block among those in which they do,
 * or, if there is one such block, its own. Returns how many there are. */
static int number_parts(const Decider *d, const Pair *p, int *part)
{
    int *number = NEWN(d->tmp, int, d->step->nnode + 1), nblock = 0, nvalue = 0;
    for (int i = 0; i < d->v.n; i++)
        if (differs(p, i) && !number[d->v.block[i] - NO_BLOCK])
            number[d->v.block[i] - NO_BLOCK] = ++nblock;
    for (int i = 0; i < d->v.n; i++)
        part[i] = nblock > 1 ? number[d->v.block[i] - NO_BLOCK] - 1 : differs(p, i) ? nvalue++ : 0;
    return nblock > 1 ? nblock : nvalue;
}

const Level *levels_middle(const Decider *d, const Pair *p, bool second)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    int *part = NEWN(d->tmp, int, d->v.n), n = number_parts(d, p, part);
    for (int i = 0; i < d->v.n; i++) {
        bool high = second ? part[i] >= n / 2 : part[i] < n / 2;
        level[i] = level_at(differs(p, i) && high ? &p->high : &p->low, i);
    }
    arena_reset(d->tmp);
    return n > 1 ? level : NULL;
}

/* Whether it may help that a block begins at saved values only if it may: scopes' blocks do in any
 * case, so it would help large steps little. */
static bool prefers(const Decider *d)
{
    return !d->blocks.scoped || is_small(d);
}

/* Plans the levels, and where it may help as preferred ones too; returns how many plans these are.
 */
static int plan_both(Decider *d, const Level *level, Planned x[2])
{
    x[0] = plan_quick(d, level, NULL);
    if (!prefers(d))
        return 1;
    x[1] = plan_prefer(d, &x[0]);
    return 2;
}

static bool search_steps(Decider *d, Pair *p)
{
    const Ladder *l = p->high.ladder;
    bool same = l && (p->low.ladder == l || (!p->low.level && !l->base));
    same &= p->along || !(p->low.prefer || p->high.prefer);
    if (!same || p->high.steps - p->low.steps < 2)
        return false;
    const int steps = p->low.steps + (p->high.steps - p->low.steps) / 2;
    const Planned of = {.level = levels_of_steps(d, l, steps), .ladder = l, .steps = steps};
    Planned x = p->low.prefer && p->high.prefer ? plan_prefer(d, &of) : plan_steps(d, l, steps);
    return pair_take(d, p, &x, 1);
}

/* The bytes that a choice needs at least, if it saves no more than the values do that low has saved
 * and it computes again. */
static int64_t least_need(const Decider *d, const Planned *low, const Level *level)
{
    enum { PART = 8, BESIDE = 1 << 20 }; /* beside those of the first results */
    int64_t saved = 0;
    for (int i = 0; i < d->v.n; i++)
        saved += level[i] == AGAIN && level_at(low, i) == SAVED ? d->v.nbytes[i] : 0;
    return low->need - saved - saved / PART - BESIDE;
}

/* Whether the choice cannot fit, which then need not be planned: it takes the place of p's first.
 */
static bool skip_far(Decider *d, Pair *p, const Level *level)
{
    const int64_t need = least_need(d, &p->low, level);
    if (!d->shorter || !is_long(d) || d->away || need <= d->task->memory)
        return false;
    p->low.level = level;
    p->low.need = need;
    p->low.ladder = NULL;
    return true;
}

static bool search_middle(Decider *d, Pair *p)
{
    for (int second = 0; second < 2; second++) {
        const Level *level = levels_middle(d, p, second);
        if (!level)
            return false;
        if (skip_far(d, p, level))
            return true;
        Planned x[2] = {0};
        if (pair_take(d, p, x, plan_both(d, level, x)))
            return true;
    }
    return false;
}

/* Adds to f the halves of its choices i - 1 and i, if they are not faster than i - WIDE. */
static void add_halves(Decider *d, Front *f, const Front *of, int i)
{
    const Pair p = {.low = of->x[i - 1], .high = of->x[i]};
    const double least = of->x[MAX(i - WIDE, 0)].sec;
    for (int second = 0; second < 2; second++) {
        const Level *level = levels_middle(d, &p, second);
        if (!level)
            return;
        Planned x[2] = {0};
        for (int k = 0, n = plan_both(d, level, x); k < n; k++)
            if (x[k].sec >= least)
                front_add(d->keep, f, x[k]);
    }
}

void front_widen(Decider *d, Front *f)
{
    Front to = {0};
    const int at = front_find(d, f);
    for (int i = 0; i < f->n; i++)
        front_add(d->keep, &to, f->x[i]);
    for (int i = MAX(at, 1); i < MIN(at + WIDE, f->n); i++)
        add_halves(d, &to, f, i);
    front_close(&to);
    *f = to;
}

/* ---- single values ---- */

/* A value that is no longer computed again, and one that is in its place. */
typedef struct Swap {
    int out, in; /* in: -1: none */
    double gain;
} Swap;

static int compare_gain(const void *x, const void *y)
{
    const Swap *p = x, *q = y;
    if (p->gain != q->gain)
        return p->gain > q->gain ? -1 : 1;
    return p->out != q->out ? p->out - q->out : p->in - q->in;
}

/* The changes of high that gain most, by the seconds of the nodes alone, and save fewer bytes more
 * than low does, by those of the values alone. */
static int list_swaps(const Decider *d, const Pair *p, Swap **list)
{
    int n = 0, cap = 0;
    const Values *v = &d->v;
    const Planned *high = &p->high;
    *list = NULL;
    for (int i = 0; i < v->n; i++)
        for (int k = -1; k < v->n && level_at(high, i) == AGAIN; k++) {
            double gain = v->sec[i] - (k < 0 ? 0 : v->sec[k]);
            int64_t saved = v->nbytes[i] - (k < 0 ? 0 : v->nbytes[k]);
            if (gain > 0 && saved < p->low.need - high->need &&
                (k < 0 || level_at(high, k) == SAVED))
                PUSH(d->tmp, *list, n, cap, ((Swap){i, k, gain}));
        }
    if (n)
        qsort(*list, (size_t)n, sizeof **list, compare_gain);
    return n;
}

static bool search_near(Decider *d, Pair *p)
{
    Swap *list;
    const Level *level[MOST_NEAR];
    Planned x[MOST_NEAR] = {0};
    int n = MIN(list_swaps(d, p, &list), MOST_NEAR);
    for (int i = 0; i < n; i++)
        level[i] = levels_changed(d, &p->high, list[i].out, list[i].in);
    arena_reset(d->tmp);
    for (int i = 0; i < n; i++)
        x[i] = plan_quick(d, level[i], NULL);
    return pair_take(d, p, x, n);
}

/* ---- both ---- */

void pair_search(Decider *d, Pair *p, double enough)
{
    if (p->high.level && !p->high.prefer && prefers(d)) {
        const Planned x = plan_prefer(d, &p->high);
        pair_take(d, p, &x, 1);
    }
    while (p->low.sec < enough && count_values(d, p) > 1 &&
           (search_steps(d, p) || search_middle(d, p)))
        continue;
    for (int i = 0; i < NEAR_ROUNDS && is_small(d) && p->low.sec < enough; i++)
        if (!search_near(d, p))
            return;
}
