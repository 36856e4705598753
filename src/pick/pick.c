/* The driver: reductions, then prices and a bound, then search; first a thorough search of all at
 * once, which settles small problems. */
#include "solve.h"

#include <string.h>

/* Steps of search for a unit of effort: about a second. */
#define UNIT ((int64_t)400000000)

typedef struct Solve {
    Arena *a, *tmp;
    const PickProblem *p;
    int effort;
    PickProgress *progress;
    void *arg;
    bool integral; /* all costs are integers */
    double digits; /* what rounding may have added to a bound */
    PickModel *m;
    Dual *d;
    Search *s;
    bool proved;
} Solve;

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
    const double parts = 1e-12;
    double least = bound - x->digits * parts - 1000 * parts * fabs(bound);
    return x->integral ? ceil(least) : least;
}

static void find_prices(Solve *x)
{
    enum { STEPS = 500 };
    for (int i = 0; i < STEPS; i++)
        dual_step(x->d, x->s);
    dual_finish(x->d, x->s);
    x->s->bound = x->d->bound;
    x->s->above = x->d->above;
}

static bool closed(const Solve *x)
{
    return x->proved || certify(x, x->d->bound) >= x->s->best_cost;
}

/* Some time at which even the least that the labels use is this much. */
static int64_t least_use(const Core *c)
{
    (void)c;
    return 0;
}

static void solve(Solve *x)
{
    enum { PARTS = 4, NODES = 20000 };
    const double cells = 1e5;
    x->proved = search_whole(x->tmp, x->s, cells, NODES);
    if (closed(x))
        return;
    find_prices(x);
    x->proved = search_whole(x->tmp, x->s, cells, NODES);
    for (int i = 0; i < x->effort * PARTS && !closed(x) && x->s->cost < INFINITY; i++) {
        search_blocks(x->tmp, x->s, UNIT / PARTS);
        if (x->progress)
            x->progress(x->arg, x->s->best_cost, certify(x, x->d->bound));
    }
}

static void begin(Solve *x, const Core *c)
{
    x->m = model_new(x->a, c);
    x->d = dual_new(x->a, x->m);
    x->s = search_new(x->a, x->m, 1);
    x->s->guide = x->d->price;
    x->s->bound = -INFINITY;
    scan_costs(x, x->p->cost, x->p->first[x->p->n]);
    scan_costs(x, x->p->matrix, matrix_size(x->p));
}

PickResult pick(Arena *a, const PickProblem *p, int effort, PickProgress *progress, void *arg,
                int *strategy)
{
    Solve x = {.a = a,
               .tmp = arena_tmp(a),
               .p = p,
               .effort = effort,
               .progress = progress,
               .arg = arg,
               .integral = true};
    Core *c = core_new(a, p);
    core_reduce(c);
    memset(strategy, 0, sizeof *strategy * (size_t)p->n);
    if (c->empty)
        return (PickResult){.cost = INFINITY, .bound = INFINITY, .proved = true, .forbidden = true};
    begin(&x, c);
    solve(&x);
    PickResult r = {.bound = certify(&x, x.d->bound), .proved = closed(&x), .steps = x.s->steps};
    model_strategies(x.m, x.s->best, strategy);
    PickCheck check = pick_check(x.tmp, p, strategy);
    r.feasible = x.s->best_cost < INFINITY;
    CHECK(!r.feasible || pick_fits(p, &check));
    r.cost = check.cost;
    r.found = check.peak;
    r.least = least_use(c);
    if (r.proved && r.feasible)
        r.bound = r.cost;
    return r;
}
