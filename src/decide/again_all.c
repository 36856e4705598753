/* All choices of a tiny step; of one with blocks, which has ladders along them, if it is tinier.
 * Sets of large values that are computed again are listed, but for those with a value that neither
 * the backward nor others of the set need, and bounds of their bytes: what is read at a place that
 * every order has, or later, and not computed again lies in memory there (again_bound.c).
 *
 * Where a choice fits, sets whose bound does too are planned by the seconds of their nodes, those
 * first that differ from it in few values, then those that would fit if they needed as much beyond
 * their bounds as it does; first with less effort; of those that need little more than the limit,
 * or less, as they would run, until no set that follows can be faster than the fastest that fits:
 * no plan takes less than its set was listed with. Where nothing fits, the lowest few, all that the
 * backward reads, and a few drawn sets are changed by one value or two as long as that lowers them;
 * then sets are planned by their bounds, until none that follows can be lower. All end after so
 * many plans. */
#include "again.h"

#include <math.h>
#include <stdlib.h>

enum {
    MOST_TINY = 32,   /* values of a tiny step */
    MOST_VALUES = 20, /* of sets */
    MOST_PLACES = 16, /* at which bytes are bounded */
    SMALL = 256,      /* this part of the largest value's bytes is small */
    MOST_SETS = 400,  /* planned with less effort; half of them as they would run */
    MOST_FEW = 160,   /* of these, that differ little from what is chosen */
    MOST_LOWER = 200, /* planned on one way down */
    NEAR = 8,         /* this part of the limit above it is near */
    TAKEN = 4,        /* sets that are lowered beside what is chosen */
};

/* The values of sets, by bit. */
typedef struct Needs {
    int n, value[64];
    uint64_t read, operand[64];    /* what the backward reads; what makes a value */
    double fixed[MOST_PLACES];     /* by place: bytes that no set changes */
    double saved[MOST_PLACES][64]; /* and those of a value that is not computed again */
    int nplace;
} Needs;

typedef struct Set {
    uint64_t again;
    double sec;    /* of its nodes */
    double nbytes; /* that it takes at least, beside parameters and state */
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

/* Fills what lies in memory at places that every order has. */
static void find_places(const Decider *d, const int *bit, Needs *x)
{
    BoundAlive alive[MOST_PLACES] = {{0}};
    x->nplace = again_alive(d->keep, d->step, d->o.prices, alive, MOST_PLACES);
    for (int p = 0; p < x->nplace; p++) {
        x->fixed[p] = alive[p].fixed;
        for (int k = 0; k < alive[p].n; k++) {
            const BoundSaved *s = &alive[p].saved[k];
            intptr_t i = (intptr_t)map_find(&d->v.number, s->name);
            if (i && bit[i - 1] >= 0)
                x->saved[p][bit[i - 1]] = s->nbytes;
            else
                x->fixed[p] += s->nbytes;
        }
    }
}

static Needs find_needs(const Decider *d)
{
    Needs x = {0};
    int *bit = NEWN(d->keep, int, d->v.n);
    Node **base = find_view_bases(d->step, d->keep);
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
    find_places(d, bit, &x);
    return x;
}

/* The part of the set that the backward needs, directly or for others of it. */
static uint64_t needed_of(const Needs *x, uint64_t again)
{
    uint64_t seen = 0, next = x->read & again;
    while (next) {
        int k = __builtin_ctzll(next);
        seen |= UINT64_C(1) << k;
        next = (next | (x->operand[k] & again)) & ~seen;
    }
    return seen;
}

/* The bytes that the set takes at least, at the place where it takes most. */
static double set_bytes(const Needs *x, uint64_t again)
{
    double most = 0;
    for (int p = 0; p < x->nplace; p++) {
        double nbytes = x->fixed[p];
        for (int k = 0; k < x->n; k++)
            nbytes += again >> k & 1 ? 0 : x->saved[p][k];
        most = fmax(most, nbytes);
    }
    return most;
}

static int by_sec(const void *x, const void *y)
{
    const Set *p = x, *q = y;
    if (p->sec != q->sec)
        return p->sec < q->sec ? -1 : 1;
    return (p->again > q->again) - (p->again < q->again);
}

static int by_bytes(const void *x, const void *y)
{
    const Set *p = x, *q = y;
    if (p->nbytes != q->nbytes)
        return p->nbytes < q->nbytes ? -1 : 1;
    return by_sec(x, y);
}

/* The sets that take less than `sec` seconds, and may take at most so many bytes; they live in
 * d->keep. */
static int list_sets(const Decider *d, const Needs *needs, double most, double nbytes, Set **list)
{
    int n = 0, cap = 0;
    *list = NULL;
    for (uint64_t again = 1; again < UINT64_C(1) << needs->n; again++) {
        Set x = {.again = again};
        for (uint64_t left = again; left && x.sec < most; left &= left - 1)
            x.sec += d->v.sec[needs->value[__builtin_ctzll(left)]];
        if (x.sec >= most || needed_of(needs, again) != again)
            continue;
        x.nbytes = set_bytes(needs, again);
        if (x.nbytes <= nbytes)
            PUSH(d->keep, *list, n, cap, x);
    }
    return n;
}

static const Level *levels_of_set(const Decider *d, const Needs *needs, uint64_t again)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int k = 0; k < needs->n; k++)
        level[needs->value[k]] = again >> k & 1 ? AGAIN : SAVED;
    return level;
}

/* Whether a plan of so many bytes would be one of the set that was listed: it is near. */
static bool is_near(const Planned *x, int64_t nbytes)
{
    return x->need >= 0 && x->need <= nbytes + nbytes / NEAR;
}

/* The set of what is chosen, without what nothing needs. */
static uint64_t set_of(const Decider *d, const Needs *needs)
{
    uint64_t set = 0;
    for (int k = 0; k < needs->n; k++)
        if (level_at(&d->r->chosen, needs->value[k]) == AGAIN)
            set |= UINT64_C(1) << k;
    return needed_of(needs, set);
}

/* The sets of a list that are planned. */
typedef struct Wanted {
    double nbytes; /* by their bounds they take at most so many */
    uint64_t from; /* from which they differ in so many values at most */
    int changed, most;
    bool slow; /* those of most seconds come first */
} Wanted;

static bool is_wanted(const Wanted *w, const Set *x)
{
    return x->nbytes <= w->nbytes && __builtin_popcountll(x->again ^ w->from) <= w->changed;
}

/* Plans sets of the list, which is by seconds, in turn; whether one is faster than what is chosen,
 * which it then is. */
static bool try_listed(Decider *d, const Needs *needs, const Set *list, int n, Wanted w)
{
    Planned *best = &d->r->chosen;
    const double none = d->r->none.sec;
    bool any = false;
    for (int k = 0, sets = 0, near = 0; k < n && sets < w.most && near < w.most / 2; k++) {
        const Set *s = &list[w.slow ? n - 1 - k : k];
        if (none + s->sec >= best->sec || !is_wanted(&w, s))
            continue;
        sets++;
        Planned x = plan_quick(d, levels_of_set(d, needs, s->again), NULL);
        if (!is_near(&x, d->task->memory))
            continue;
        near++;
        if (!plan_may_fit(d, &x, d->task->memory))
            continue;
        plan_full(d, &x);
        const bool better = plan_fits(d, &x) && x.sec < best->sec;
        *best = better ? x : *best;
        any |= better;
    }
    return any;
}

/* Plans sets by seconds; what is chosen fits. First come those that differ from it in few values,
 * then those that fit if they need as much beyond their bounds as it does. */
static void try_sets(Decider *d, const Needs *needs)
{
    enum { FEW = 3 };
    const Planned *best = &d->r->chosen;
    const double left = again_left(d, d->task->memory);
    Set *list;
    const int n = list_sets(d, needs, best->sec - d->r->none.sec, left, &list);
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_sec);
    Wanted few = {left, 0, FEW, MOST_FEW, false}, all = {left, 0, 64, MOST_SETS, false}, slow;
    do {
        few.from = set_of(d, needs);
        slow = few;
        slow.slow = true;
    } while (try_listed(d, needs, list, n, few) || try_listed(d, needs, list, n, slow));
    Wanted likely = all;
    likely.nbytes -= again_left(d, best->need) - set_bytes(needs, few.from);
    try_listed(d, needs, list, n, likely);
    try_listed(d, needs, list, n, all);
}

/* Takes x, planned with less effort, if its plan is lower; whether it is. */
static bool take_lower(Decider *d, Planned x)
{
    const int64_t need = d->r->chosen.need;
    if (!is_near(&x, need) || !plan_may_fit(d, &x, need - 1))
        return false;
    plan_full(d, &x);
    if (x.need < 0 || x.need >= d->r->chosen.need)
        return false;
    d->r->chosen = x;
    return true;
}

/* Whether y is below x: by its bytes, or by how many places have as many. */
static bool is_lower(const Planned *y, const Planned *x)
{
    if (y->need < 0 || y->need != x->need)
        return y->need >= 0 && y->need < x->need;
    return y->crowd < x->crowd * (1 - 1e-9);
}

/* Changes x by value i, and each other one behind it, or by none but i; whether that lowers it. */
static bool lower_by(Decider *d, Planned *x, int i, bool pairs, int most)
{
    for (int k = pairs ? i + 1 : i; k < (pairs ? d->v.n : i + 1) && d->r->nplanned < most; k++) {
        const Planned y = plan_quick(d, levels_changed(d, x, i, k), NULL);
        if (is_lower(&y, x)) {
            *x = y;
            return true;
        }
    }
    return false;
}

/* Changes x by one value or two as long as that lowers its plan with less effort. */
static void lower_from(Decider *d, Planned x, int most)
{
    take_lower(d, x);
    for (bool again = x.need >= 0; again;) {
        again = false;
        for (int i = 0; i < d->v.n; i++)
            again |= lower_by(d, &x, i, false, most);
        for (int i = 0; i < d->v.n && !again; i++)
            again = lower_by(d, &x, i, true, most);
    }
    take_lower(d, x);
}

/* A set of what the backward may compute again, drawn: each value by the same chance, which grows
 * from one set to the next. */
static uint64_t draw_set(const Needs *needs, int i)
{
    uint64_t set = 0;
    for (int k = 0; k < needs->n; k++)
        if (random_uniform(1, 0, (uint32_t)i, (uint64_t)k) < (float)(i % 8 + 1) / 9)
            set |= UINT64_C(1) << k;
    return set;
}

/* Puts x among the n lowest, at most TAKEN; returns how many these are. */
static int keep_low(Planned *low, int n, Planned x)
{
    int at = n;
    if (x.need < 0)
        return n;
    for (; at > 0 && is_lower(&x, &low[at - 1]); at--)
        low[at] = low[at - 1];
    low[at] = x;
    return MIN(n + 1, TAKEN);
}

/* Lowers what is chosen, and the lowest of the front, of drawn sets, and of all that the backward
 * reads. */
static void lower(Decider *d, const Needs *needs)
{
    enum { DRAWN = 32, LOWEST = 3 };
    const AgainReport *r = d->r;
    Planned low[TAKEN + 1];
    int n = 0;
    lower_from(d, r->chosen, r->nplanned + MOST_LOWER);
    for (int i = 0; i <= DRAWN && !plan_fits(d, &r->chosen); i++) {
        const uint64_t set = i ? draw_set(needs, i) : needs->read;
        n = keep_low(low, n, plan_quick(d, levels_of_set(d, needs, set), NULL));
    }
    for (int i = MAX(r->nfront - LOWEST, 0); i < r->nfront; i++)
        n = keep_low(low, n, plan_quick(d, r->front[i].level, r->front[i].word));
    for (int i = 0; i < n && !plan_fits(d, &r->chosen); i++)
        lower_from(d, low[i], r->nplanned + MOST_LOWER);
}

/* Plans sets by bounds of their bytes. */
static void try_lowest(Decider *d, const Needs *needs)
{
    const int most = d->r->nplanned + MOST_LOWER;
    Set *list;
    int n = list_sets(d, needs, INFINITY, again_left(d, d->r->chosen.need), &list);
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_bytes);
    for (int i = 0; i < n && d->r->nplanned < most && !plan_fits(d, &d->r->chosen) &&
                    list[i].nbytes < again_left(d, d->r->chosen.need);
         i++)
        take_lower(d, plan_quick(d, levels_of_set(d, needs, list[i].again), NULL));
}

bool again_tiny(const Decider *d)
{
    return d->v.n <= MOST_TINY && !d->away && !d->g->mesh && !d->loops;
}

void choose_of_all(Decider *d)
{
    if (!again_tiny(d))
        return;
    const Needs needs = find_needs(d);
    if (d->blocks.scoped && needs.n > MOST_VALUES)
        return;
    if (!plan_fits(d, &d->r->chosen))
        lower(d, &needs);
    if (!plan_fits(d, &d->r->chosen) && needs.n <= MOST_VALUES)
        try_lowest(d, &needs);
    if (plan_fits(d, &d->r->chosen) && needs.n <= MOST_VALUES)
        try_sets(d, &needs);
}
