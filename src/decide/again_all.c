/* All choices of a tiny step; of one with blocks, which has ladders along them, if it is tinier.
 * Sets of large values that are computed again are listed by the seconds of their nodes, but for
 * those with a value that neither the backward nor others of the set need. They are planned in that
 * order, first with less effort; of those that need little more than the limit, or less, as they
 * would run, until no set that follows can be faster than the fastest that fits: no plan takes less
 * than its set was listed with. Where nothing fits, the lowest is first changed by one value or two
 * as long as that lowers it. Both end after so many plans. */
#include "again.h"

#include <stdlib.h>

enum {
    MOST_TINY = 32,   /* values of a tiny step */
    MOST_VALUES = 20, /* of sets */
    SMALL = 256,      /* this part of the largest value's bytes is small */
    MOST_SETS = 400,  /* planned with less effort */
    MOST_FULL = 200,  /* planned as they would run */
    NEAR = 8,         /* this part of the limit above it is near */
};

/* The values of sets, by bit. */
typedef struct Needs {
    int n, value[64];
    uint64_t read, operand[64]; /* what the backward reads; what makes a value */
} Needs;

typedef struct Set {
    uint64_t again;
    double sec; /* of its nodes */
} Set;

static uint64_t bit_of(const Decider *d, Node **base, const int *bit, const Value *v)
{
    const Node *n = base[v->id];
    intptr_t i = n && n->nout ? (intptr_t)map_find(&d->v.number, n->out[0]->name) : 0;
    return i && bit[i - 1] >= 0 ? UINT64_C(1) << bit[i - 1] : 0;
}

/* Values that are small beside others are saved. */
static void number_bits(const Decider *d, Needs *x, int *bit)
{
    int64_t most = 0;
    for (int i = 0; i < d->v.n; i++)
        most = MAX(most, d->v.nbytes[i]);
    for (int i = 0; i < d->v.n; i++) {
        bool large = d->v.nbytes[i] >= most / SMALL && x->n < LEN(x->value);
        bit[i] = large ? x->n : -1;
        if (large)
            x->value[x->n++] = i;
    }
}

static Needs find_needs(const Decider *d)
{
    Needs x = {0};
    int *bit = NEWN(d->tmp, int, d->v.n);
    Node **base = find_view_bases(d->step, d->tmp);
    number_bits(d, &x, bit);
    for (const Node *n = d->step->first; n; n = n->next) {
        uint64_t self = n->nout && n->phase < BACKWARD ? bit_of(d, base, bit, n->out[0]) : 0;
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            if (n->phase >= BACKWARD)
                x.read |= bit_of(d, base, bit, n->in[i]);
            else if (self)
                x.operand[__builtin_ctzll(self)] |= bit_of(d, base, bit, n->in[i]);
        }
    }
    arena_reset(d->tmp);
    return x;
}

/* Whether the backward needs all of the set, directly or for others of it. */
static bool is_needed(const Needs *x, uint64_t again)
{
    uint64_t seen = 0, next = x->read & again;
    while (next) {
        int k = __builtin_ctzll(next);
        seen |= UINT64_C(1) << k;
        next = (next | (x->operand[k] & again)) & ~seen;
    }
    return seen == again;
}

static int by_sec(const void *x, const void *y)
{
    const Set *p = x, *q = y;
    if (p->sec != q->sec)
        return p->sec < q->sec ? -1 : 1;
    return (p->again > q->again) - (p->again < q->again);
}

/* The sets that take less than `most` seconds, by these; they live in d->keep. */
static int list_sets(const Decider *d, const Needs *needs, double most, Set **list)
{
    int n = 0, cap = 0;
    *list = NULL;
    for (uint64_t again = 1; again < UINT64_C(1) << needs->n; again++) {
        double sec = 0;
        for (uint64_t left = again; left && sec < most; left &= left - 1)
            sec += d->v.sec[needs->value[__builtin_ctzll(left)]];
        if (sec < most && is_needed(needs, again))
            PUSH(d->keep, *list, n, cap, ((Set){again, sec}));
    }
    if (n)
        qsort(*list, (size_t)n, sizeof **list, by_sec);
    return n;
}

static const Level *levels_of_set(const Decider *d, const Needs *needs, uint64_t again)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int k = 0; k < needs->n; k++)
        level[needs->value[k]] = again >> k & 1 ? AGAIN : SAVED;
    return level;
}

/* Whether its plan would be one of the set that was listed. */
static bool is_near(const Decider *d, const Planned *x)
{
    return x->need >= 0 && x->need <= d->task->memory + d->task->memory / NEAR;
}

static void try_sets(Decider *d)
{
    Planned *best = &d->r->chosen;
    const double none = d->r->none.sec;
    const Needs needs = find_needs(d);
    Set *list;
    int n = 0, nfull = 0;
    if (needs.n <= MOST_VALUES)
        n = list_sets(d, &needs, best->sec - none, &list);
    for (int i = 0; i < MIN(n, MOST_SETS) && nfull < MOST_FULL; i++) {
        if (none + list[i].sec >= best->sec)
            return;
        Planned x = plan_quick(d, levels_of_set(d, &needs, list[i].again), NULL);
        if (!is_near(d, &x))
            continue;
        nfull++;
        plan_full(d, &x);
        if (plan_fits(d, &x) && x.sec < best->sec)
            *best = x;
    }
}

/* Whether the plan with values i and k changed is lower, which is then chosen. */
static bool try_lower(Decider *d, int i, int k)
{
    Planned x = plan_quick(d, levels_changed(d, &d->r->chosen, i, k), NULL);
    if (!is_near(d, &x))
        return false;
    plan_full(d, &x);
    if (x.need < 0 || x.need >= d->r->chosen.need)
        return false;
    d->r->chosen = x;
    return true;
}

static void lower(Decider *d)
{
    const int most = d->r->nplanned + MOST_SETS;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < d->v.n && !again; i++)
            for (int k = i; k < d->v.n && !again; k++)
                if (!plan_fits(d, &d->r->chosen) && d->r->nplanned < most)
                    again = try_lower(d, i, k);
    }
}

void choose_of_all(Decider *d)
{
    const int most = d->blocks.scoped ? MOST_VALUES : MOST_TINY;
    if (d->v.n > most || d->away || d->g->mesh || d->loops)
        return;
    if (!plan_fits(d, &d->r->chosen))
        lower(d);
    if (plan_fits(d, &d->r->chosen))
        try_sets(d);
}
