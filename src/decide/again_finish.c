/* The last steps of the search in a small step in which nothing is fused: values that need not be
 * computed again are saved, and cheaper ones take the place of others.
 *
 * First each value that is computed again is saved, the one of most seconds first: those that only
 * others of the set needed go with it. Then a value that is saved takes the place of one or two,
 * or two do, those first that gain most by the seconds of their nodes. A change is judged by a plan
 * with less effort, and by whether an order within the limit is found; it is taken if the plan as
 * it would run fits and is faster, and all begins again from there. It ends where no change is
 * better, or after so many plans. A larger limit may so give a slower step. */
#include "again.h"

#include <stdlib.h>

enum {
    MOST_TRIES = 120,     /* changes that are planned */
    MOST_NODES = 1 << 13, /* nodes of all their plans together */
    MOST_SWAPS = 60,      /* changes of two or three values from one choice */
    NEAR = 8,             /* this part of the limit above it is near */
};

typedef struct Finish {
    Decider *d;
    int left; /* changes that may be planned */
} Finish;

/* A change: values that are saved from then on, and some that are computed again. */
typedef struct Exchange {
    int out[2], in[2]; /* -1: none */
    double gain;       /* seconds of nodes */
    int number;        /* in the list */
} Exchange;

typedef struct Exchanges {
    Exchange *x;
    int n, cap;
} Exchanges;

static int by_gain(const void *x, const void *y)
{
    const Exchange *p = x, *q = y;
    if (p->gain != q->gain)
        return p->gain > q->gain ? -1 : 1;
    return p->number - q->number;
}

static const Level *changed(const Decider *d, const Exchange *c)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int i = 0; i < d->v.n; i++)
        level[i] = level_at(&d->r->chosen, i);
    for (int k = 0; k < LEN(c->out); k++) {
        if (c->out[k] >= 0)
            level[c->out[k]] = SAVED;
        if (c->in[k] >= 0)
            level[c->in[k]] = AGAIN;
    }
    return level;
}

/* Whether the change makes what is chosen faster, which then has it. */
static bool take(Finish *f, const Exchange *c)
{
    Decider *d = f->d;
    Planned *best = &d->r->chosen;
    const int64_t memory = d->task->memory;
    f->left--;
    Planned x = plan_quick(d, changed(d, c), NULL);
    const bool near = x.need >= 0 && x.need <= memory + memory / NEAR;
    if (!near || x.sec >= best->sec || !plan_may_fit(d, &x, memory))
        return false;
    plan_full(d, &x);
    if (!plan_fits(d, &x) || x.sec >= best->sec)
        return false;
    *best = x;
    return true;
}

/* ---- changes ---- */

static bool is_again(const Decider *d, int i)
{
    return level_at(&d->r->chosen, i) == AGAIN;
}

static bool is_saved(const Decider *d, int i)
{
    return level_at(&d->r->chosen, i) == SAVED;
}

/* The values that are computed again, those of most seconds first; returns how many. */
static int list_drops(const Decider *d, Exchange *list)
{
    int n = 0;
    for (int i = 0; i < d->v.n; i++)
        if (is_again(d, i))
            list[n] = (Exchange){{i, -1}, {-1, -1}, d->v.sec[i], n}, n++;
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_gain);
    return n;
}

/* Saves what need not be computed again. */
static void drop(Finish *f)
{
    Decider *d = f->d;
    Exchange *list = NEWN(d->keep, Exchange, d->v.n);
    for (bool any = true; any;) {
        any = false;
        for (int k = 0, n = list_drops(d, list); k < n && f->left > 0; k++)
            any |= is_again(d, list[k].out[0]) && take(f, &list[k]);
    }
}

/* Whether a change from what is chosen gains seconds, and, if two values are computed again in the
 * place of others, may save no more bytes than the limit has left, by those of the values. */
static bool may_gain(const Decider *d, Exchange *c)
{
    int64_t more = d->r->chosen.need - d->task->memory;
    c->gain = 0;
    for (int k = 0; k < LEN(c->out); k++) {
        c->gain += c->out[k] < 0 ? 0 : d->v.sec[c->out[k]];
        c->gain -= c->in[k] < 0 ? 0 : d->v.sec[c->in[k]];
        more += c->out[k] < 0 ? 0 : d->v.nbytes[c->out[k]];
        more -= c->in[k] < 0 ? 0 : d->v.nbytes[c->in[k]];
    }
    return c->gain > 0 && (c->in[1] < 0 || more <= 0);
}

/* Lists the changes of value `in`, and i for k, that gain seconds; -1: none. */
static void list_swaps_of(const Decider *d, int in, int second, Exchanges *to)
{
    for (int i = 0; i < d->v.n; i++)
        for (int k = i; k < d->v.n && is_again(d, i); k++) {
            Exchange c = {{i, k > i ? k : -1}, {in, second}, 0, to->n};
            if (is_again(d, k) && may_gain(d, &c))
                PUSH(d->tmp, to->x, to->n, to->cap, c);
        }
}

/* All changes of one value for one or two, or of two for these, that gain seconds. */
static Exchanges list_swaps(const Decider *d, bool two)
{
    Exchanges list = {0};
    for (int in = 0; in < d->v.n; in++) {
        if (!is_saved(d, in))
            continue;
        if (!two)
            list_swaps_of(d, in, -1, &list);
        for (int k = in + 1; k < d->v.n && two; k++)
            if (is_saved(d, k))
                list_swaps_of(d, in, k, &list);
    }
    if (list.n)
        qsort(list.x, (size_t)list.n, sizeof *list.x, by_gain);
    return list;
}

/* Whether a swap was taken. */
static bool swap(Finish *f, bool two)
{
    Decider *d = f->d;
    Exchange first[MOST_SWAPS];
    const Exchanges list = list_swaps(d, two);
    const int n = MIN(list.n, MOST_SWAPS);
    for (int k = 0; k < n; k++)
        first[k] = list.x[k];
    arena_reset(d->tmp);
    for (int k = 0; k < n && f->left > 0; k++)
        if (take(f, &first[k]))
            return true;
    return false;
}

void choose_finish(Decider *d)
{
    Finish f = {d, MIN(MOST_TRIES, MOST_NODES / MAX(d->g->nnode, 1))};
    if (!is_small(d) || !plan_is_order(d) || !plan_fits(d, &d->r->chosen))
        return;
    do
        drop(&f);
    while (f.left > 0 && (swap(&f, false) || swap(&f, true)));
}
