/* The driver: reductions, then prices and a bound, then search; before each, all variables at once,
 * which settles small problems. Where nothing fits, the limit is raised until something does. */
#include "solve.h"

#include <string.h>

/* Steps of search for a unit of effort: about a second. */
#define UNIT ((int64_t)400000000)

enum { PARTS = 4 }; /* of a unit, between reports */

typedef struct Solve {
    Arena *a, *tmp;
    const PickProblem *p;
    int effort;
    PickProgress *progress;
    void *arg;
    bool integral; /* all costs are integers */
    double digits; /* what rounding may have added to a bound */
    Dual *d;
    Search *s;
    bool proved;
} Solve;

/* ---- bounds ---- */

static void scan_costs(Solve *x, const double *cost, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isfinite(cost[i])) {
            x->integral &= cost[i] == floor(cost[i]);
            x->digits = fmax(x->digits, fabs(cost[i]));
        }
}

static int64_t matrix_size(const PickProblem *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->nedge; i++)
        n += (int64_t)pick_strategies(p, p->edge[i].u) * pick_strategies(p, p->edge[i].v);
    return n;
}

/* A bound that holds in spite of rounding; of integers, the next one. */
static double certify(const Solve *x, double bound)
{
    const double parts = 1e-12, sum = 1e-9;
    if (bound == INFINITY)
        return bound;
    double least = bound - x->digits * parts - sum * fabs(bound);
    return x->integral ? ceil(least) : least;
}

/* Some time at which even the least that the labels use is this much. */
static int64_t least_use(const PickModel *m)
{
    const PickProblem *p = m->core->problem;
    int64_t *change = NEWN(m->a, int64_t, m->ntime + 1), most = 0;
    for (const Var *x = m->core->var; x < m->core->var + m->core->nvar; x++)
        for (int i = 0; i < x->nmember; i++) {
            const Member *y = &x->member[i];
            int64_t least = INT64_MAX;
            for (int k = 0; k < x->k; k++)
                least = MIN(least, p->usage[p->first[y->node] + y->strategy[k]]);
            change[m->from[y->node]] += least;
            change[m->to[y->node]] -= least;
        }
    for (int t = 0; t < m->ntime; t++) {
        most = MAX(most, change[t]);
        change[t + 1] += change[t];
    }
    return most;
}

/* ---- phases ---- */

static void tell(const Solve *x)
{
    if (x->progress)
        x->progress(x->arg, x->s->best_cost, certify(x, x->d->bound));
}

static bool closed(const Solve *x)
{
    return x->proved || certify(x, x->d->bound) >= x->s->best_cost;
}

/* Again where a solution was beyond the limit at a time that was no row. */
static void try_whole(Solve *x)
{
    enum { NODES = 20000 };
    const double cells = 1e5;
    int nrow;
    do {
        nrow = x->s->m->nrow;
        x->proved = x->proved || search_whole(x->tmp, x->s, cells, NODES);
    } while (!closed(x) && x->s->m->nrow > nrow);
}

/* Raises the bound, for so many steps of search at most. */
static void raise_bound(Solve *x, int64_t steps)
{
    enum { STEPS = 500, REPORT = 50 };
    int64_t end = x->s->steps + steps;
    while (x->d->nstep < STEPS && x->s->steps < end && !dual_rests(x->d)) {
        dual_step(x->d, x->s);
        if (x->d->nstep % REPORT == 0)
            tell(x);
    }
    dual_finish(x->d, x->s);
    x->s->bound = x->d->bound;
    x->s->above = x->d->above;
}

/* From what message passing found, or from the best, if that is wanted or the other is forbidden.
 */
static void walk(Solve *x, bool best, int64_t steps)
{
    const Search *s = x->s;
    const int *from = x->d->t->x;
    if (s->best_cost < INFINITY && (best || !(model_cost(s->m, from) < INFINITY)))
        from = s->best;
    search_begin_run(x->s);
    forest_walk(x->tmp, x->s, from, steps);
    arena_reset(x->tmp);
    search_back_to_best(x->s);
    tell(x);
}

static void search(Solve *x)
{
    search_blocks(x->tmp, x->s, x->d->t, UNIT / PARTS);
    tell(x);
}

static void solve_small(Solve *x, int64_t end)
{
    if (!(x->s->best_cost < INFINITY))
        walk(x, false, UNIT);
    while (x->s->best_cost < INFINITY && x->s->steps < end && !closed(x))
        search(x);
}

/* In turns a long walk, from the best or from what message passing found, and blocks. */
static void solve_large(Solve *x, int64_t end)
{
    enum { LONG = 2 };
    const Search *s = x->s;
    if (x->effort || !(s->best_cost < INFINITY))
        walk(x, false, UNIT);
    if (s->steps < end && !closed(x))
        raise_bound(x, UNIT);
    for (bool on = false; s->best_cost < INFINITY && s->steps < end && !closed(x); on = !on) {
        walk(x, on, MIN(LONG * UNIT, end - s->steps));
        for (int i = 0; i < PARTS && s->steps < end && !closed(x); i++)
            search(x);
    }
}

static void solve(Solve *x)
{
    try_whole(x);
    if (closed(x))
        return;
    raise_bound(x, UNIT);
    try_whole(x);
    int64_t end = x->s->steps + x->effort * UNIT;
    if (closed(x))
        return;
    if (search_is_small(x->s))
        solve_small(x, end);
    else
        solve_large(x, end);
}

/* ---- results ---- */

static PickResult finish(Solve *x, int *strategy)
{
    const Search *s = x->s;
    PickResult r = {.proved = closed(x), .steps = s->steps, .least = least_use(s->m)};
    model_strategies(s->m, s->best, strategy);
    PickCheck check = pick_check(x->tmp, x->p, strategy);
    r.feasible = s->best_cost < INFINITY;
    CHECK(!r.feasible || pick_fits(x->p, &check));
    r.cost = r.feasible ? check.cost : INFINITY;
    r.found = r.feasible ? check.peak : 0;
    r.bound = r.proved ? r.cost : fmin(certify(x, x->d->bound), r.cost);
    if (!r.feasible && r.proved)
        r.least = MAX(r.least, x->p->limit + 1);
    return r;
}

/* With the limit that the problem has. */
static PickResult pick_within(Arena *a, const PickProblem *p, int effort, PickProgress *progress,
                              void *arg, int *strategy)
{
    Solve x = {a, arena_tmp(a), p, effort, progress, arg, true, 0, NULL, NULL, false};
    Core *c = core_new(a, p);
    core_reduce(c);
    memset(strategy, 0, sizeof *strategy * (size_t)p->n);
    if (c->empty)
        return (PickResult){.cost = INFINITY, .bound = INFINITY, .proved = true, .forbidden = true};
    PickModel *m = model_new(a, c);
    x.d = dual_new(a, m);
    x.s = search_new(a, m);
    x.s->guide = x.d->price;
    scan_costs(&x, p->cost, p->first[p->n]);
    scan_costs(&x, p->matrix, matrix_size(p));
    solve(&x);
    return finish(&x, strategy);
}

static PickResult try_limit(Arena *a, const PickProblem *p, int64_t limit, int *strategy)
{
    PickProblem q = *p;
    Arena *tmp = arena_tmp(a);
    q.limit = limit;
    PickResult r = pick_within(tmp, &q, 0, NULL, NULL, strategy);
    arena_reset(tmp);
    return r;
}

/* Finds a limit within which something fits, and moves it down as far as a few tries find. */
static void find_least(Arena *a, const PickProblem *p, PickResult *r, int *strategy)
{
    enum { TRIES = 40 };
    PickResult any = try_limit(a, p, PICK_MOST, strategy);
    int64_t low = MAX(r->least, p->limit + 1); /* nothing was found below */
    int *other = NEWN(a, int, p->n);
    r->found = any.found;
    r->forbidden = !any.feasible;
    r->proved = r->forbidden ? any.proved : r->proved;
    for (int i = 0; i < TRIES && any.feasible && low < r->found; i++) {
        int64_t middle = low + (r->found - low) / 2;
        PickResult next = try_limit(a, p, middle, other);
        if (next.feasible) {
            r->found = next.found;
            memcpy(strategy, other, sizeof *other * (size_t)p->n);
        } else {
            low = middle + 1;
            r->least = MAX(r->least, next.least);
        }
    }
    r->proved |= r->least > p->limit;
}

PickResult pick(Arena *a, const PickProblem *p, int effort, PickProgress *progress, void *arg,
                int *strategy)
{
    PickResult r = pick_within(a, p, effort, progress, arg, strategy);
    if (!r.feasible && !(r.proved && r.forbidden))
        find_least(a, p, &r, strategy);
    return r;
}
