/* The driver: reductions, then prices and a bound, then search; before each, all variables at once,
 * which settles small problems. Where nothing fits, the limit is raised until something does. */
#include "solve.h"

#include <string.h>

/* Steps of search for a unit of effort: about a second. */
#define UNIT ((int64_t)400000000)

enum { PARTS = 8 }; /* of a unit, between reports */

typedef struct Solve {
    Arena *a, *tmp;
    const PickProblem *p;
    int effort;
    PickProgress *progress;
    void *arg;
    bool integral; /* all costs are integers */
    double digits; /* what rounding may have added to a bound */
    Core *c;
    double known; /* a bound that holds */
    double most;  /* no choice that is not forbidden costs more */
    Dual *d;
    Search *s;
    SearchRoom *room;
    int64_t begun; /* the steps when the search began */
    bool proved;
    bool near; /* it has labels near a bound of the problem alone */
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

/* The best bound that is known. */
static double bound_of(const Solve *x)
{
    return fmax(x->known, certify(x, x->d->bound));
}

/* By node: the least that one of its strategies uses. */
static int64_t *least_of_all(Arena *a, const PickProblem *p)
{
    int64_t *least = NEWN(a, int64_t, p->n);
    for (int i = 0; i < p->n; i++) {
        least[i] = p->usage[p->first[i]];
        for (int k = p->first[i]; k < p->first[i + 1]; k++)
            least[i] = MIN(least[i], p->usage[k]);
    }
    return least;
}

/* The same of the labels that are left. */
static int64_t *least_of_labels(Arena *a, const Core *c)
{
    const PickProblem *p = c->problem;
    int64_t *least = NEWN(a, int64_t, p->n);
    for (const Var *x = c->var; x < c->var + c->nvar; x++)
        for (int i = 0; i < x->nmember; i++) {
            const Member *y = &x->member[i];
            least[y->node] = INT64_MAX;
            for (int k = 0; k < x->k; k++)
                least[y->node] = MIN(least[y->node], p->usage[p->first[y->node] + y->strategy[k]]);
        }
    return least;
}

/* Some time at which even the least of the nodes is this much. */
static int64_t least_use(const PickModel *m, const int64_t *least)
{
    const PickProblem *p = m->core->problem;
    int64_t *change = NEWN(m->a, int64_t, m->ntime + 1), most = 0;
    for (int i = 0; i < p->n; i++) {
        change[m->from[i]] += least[i];
        change[m->to[i]] -= least[i];
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
        x->progress(x->arg, x->s->best_cost, bound_of(x));
}

/* Nothing is cheaper than the best; or nothing fits, as prices of the rows raise the bound above
 * what any choice costs. */
static bool closed(const Solve *x)
{
    return x->proved || bound_of(x) >= x->s->best_cost || x->d->bound > x->most;
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
    while (x->d->nstep < STEPS && x->s->steps < end && !dual_rests(x->d) && !closed(x)) {
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

/* Whether the search has found nothing better for half of the steps that it may take, and there is
 * little to be found. */
static bool rests(const Solve *x)
{
    const double little = 0.01;
    int64_t since = MAX(x->begun, x->s->best_steps);
    return !x->near && x->s->steps - since >= x->effort * UNIT / 2 &&
           x->s->best_cost - bound_of(x) <= little * fabs(x->s->best_cost);
}

static void solve_small(Solve *x, int64_t end)
{
    enum { SWEEPS = 1000 };
    if (!(x->s->best_cost < INFINITY))
        walk(x, false, MIN(UNIT, SWEEPS * x->s->m->sweep_steps));
    while (x->s->best_cost < INFINITY && x->s->steps < end && !closed(x) && !rests(x))
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
    for (bool on = false; s->best_cost < INFINITY && s->steps < end && !closed(x) && !rests(x);
         on = !on) {
        walk(x, on, MIN(LONG * UNIT, end - s->steps));
        for (int i = 0; i < PARTS && s->steps < end && !closed(x) && !rests(x); i++)
            search(x);
    }
}

/* ---- fewer labels ---- */

/* The sum of the largest costs of all labels and pairs. */
static double most_cost(const PickModel *m)
{
    double sum = m->fixed;
    for (int u = 0; u < m->n; u++) {
        double most = -INFINITY;
        for (int i = m->first[u]; i < m->first[u + 1]; i++)
            most = fmax(most, m->cost[i]);
        sum += most;
    }
    for (const ModelEdge *e = m->edge; e < m->edge + m->nedge; e++) {
        double most = -INFINITY;
        for (int64_t i = 0, n = (int64_t)model_labels(m, e->u) * model_labels(m, e->v); i < n; i++)
            most = e->m[i] < INFINITY ? fmax(most, e->m[i]) : most;
        sum += most;
    }
    return sum + 1e-9 * fabs(sum) + 1;
}

static void begin(Solve *x, Core *c)
{
    int64_t steps = x->s ? x->s->steps : 0;
    x->c = c;
    PickModel *m = model_new(x->a, c);
    x->d = dual_new(x->a, m);
    x->s = search_new(x->a, m, x->room);
    x->s->guide = x->d->price;
    x->s->steps = steps;
    x->most = most_cost(m);
}

/* Offers the strategies of another model of the problem. */
static void offer_strategies(Solve *x, const int *strategy)
{
    int *label = NEWN(x->a, int, x->s->m->n);
    if (model_labels_of(x->s->m, strategy, label))
        search_offer(x->s, label);
}

/* Marks labels that are more than `keep` above the bound, those of `best` excepted (NULL: none is);
 * returns how many stay. By variable of the core. */
static int mark_dead(Solve *x, double keep, const int *best, bool **dead)
{
    const PickModel *m = x->s->m;
    int left = 0;
    for (int u = 0; u < m->n; u++) {
        int k = model_labels(m, u);
        const double *above = x->d->above + m->first[u];
        dead[m->var[u]] = NEWN(x->a, bool, k);
        int least = model_least(above, k);
        for (int j = 0; j < k; j++) {
            bool stays = above[j] <= keep || j == least || (best && j == best[u]);
            dead[m->var[u]][j] = !stays;
            left += stays;
        }
    }
    return left;
}

/* Whether label i of u has no label left at the other end of an edge. */
static bool is_alone(const PickModel *m, const ModelEdge *e, int u, int i, const bool *dead)
{
    const bool *other = dead + m->first[model_other(e, u)];
    for (int j = 0, k = model_labels(m, model_other(e, u)); j < k; j++)
        if (!other[j] && model_pair(m, e, u, i, j) < INFINITY)
            return false;
    return true;
}

/* Marks what has no label left at an end of u's edges; whether there was any. */
static bool mark_alone(const PickModel *m, int u, bool *dead)
{
    bool any = false;
    for (int i = 0, k = model_labels(m, u); i < k; i++)
        for (int e = m->edge_first[u]; e < m->edge_first[u + 1] && !dead[m->first[u] + i]; e++)
            if (is_alone(m, &m->edge[m->edge_of[e]], u, i, dead))
                any = dead[m->first[u] + i] = true;
    return any;
}

static void mark_all_alone(const PickModel *m, bool *dead)
{
    bool any = true;
    while (any) {
        any = false;
        for (int u = 0; u < m->n; u++)
            any |= mark_alone(m, u, dead);
    }
}

/* Labels that cannot be part of anything cheaper than the best go. */
static void drop_labels(Solve *x)
{
    PickModel *m = x->s->m;
    int nlabel = m->nlabel;
    double part = x->integral ? 1 - 1e-3 : 0, sum = 1e-9 * fabs(x->d->bound) + x->digits * 1e-12;
    if (!(x->s->best_cost < INFINITY) || m->nrow)
        return;
    bool **of = NEWN(x->a, bool *, x->c->nvar), *dead = NEWN(x->a, bool, nlabel);
    int left = mark_dead(x, x->s->best_cost - part - x->d->bound + sum, x->s->best, of);
    if (left > nlabel - nlabel / 16)
        return;
    for (int u = 0; u < m->n; u++)
        memcpy(dead + m->first[u], of[m->var[u]], sizeof *dead * (size_t)model_labels(m, u));
    mark_all_alone(m, dead);
    x->known = bound_of(x);
    trws_drop(x->d->t, dead);
    search_drop(x->s, dead);
    model_drop(m, dead);
}

static void solve(Solve *x);

/* The labels that are the least far above the bound, so many for each variable on average. */
static double near_labels(Solve *x, int each)
{
    const PickModel *m = x->s->m;
    bool **dead = NEWN(x->a, bool *, x->c->nvar);
    double low = 0, high = fabs(x->d->bound);
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (mark_dead(x, middle, NULL, dead) > each * m->n)
            high = middle;
        else
            low = middle;
    }
    return low;
}

/* Solves the problem of the labels that are near the bound, and takes what that finds. */
static void solve_near(Solve *x, int each)
{
    Solve y = *x;
    int *strategy = NEWN(x->a, int, x->p->n);
    bool **dead = NEWN(x->a, bool *, x->c->nvar);
    const int *best = x->s->best_cost < INFINITY ? x->s->best : NULL;
    mark_dead(x, near_labels(x, each), best, dead);
    Core *c = core_without(x->a, x->c, dead);
    core_reduce(c);
    if (c->empty)
        return;
    y.progress = NULL;
    y.effort = 0;
    y.known = -INFINITY;
    y.proved = false;
    y.near = true;
    begin(&y, c);
    solve(&y);
    x->s->steps = y.s->steps;
    if (!(y.s->best_cost < INFINITY))
        return;
    model_strategies(y.s->m, y.s->best, strategy);
    offer_strategies(x, strategy);
    tell(x);
}

/* Raises the bound, looks for solutions near it and drops what is too far above it, in turns. */
static void narrow(Solve *x)
{
    enum { ROUNDS = 12, SWEEPS = 30, EACH = 3 };
    for (int i = 0; i < ROUNDS && !closed(x) && !x->s->m->nrow; i++) {
        int64_t few = MIN(UNIT / 40, UNIT / 2560 << i); /* a small problem is soon solved */
        int64_t steps = MAX(few, 2 * SWEEPS * x->s->m->sweep_steps);
        raise_bound(x, steps);
        if (!x->near && !closed(x))
            solve_near(x, EACH << MIN(i, 3));
        if (!closed(x))
            drop_labels(x);
    }
}

static void solve(Solve *x)
{
    try_whole(x);
    if (closed(x))
        return;
    narrow(x);
    if (closed(x))
        return;
    raise_bound(x, x->near ? UNIT / 8 : UNIT);
    try_whole(x);
    x->begun = x->s->steps;
    int64_t end = x->s->steps + (x->near ? UNIT / 8 : x->effort * UNIT);
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
    PickResult r = {.proved = closed(x), .steps = s->steps};
    model_strategies(s->m, s->best, strategy);
    PickCheck check = pick_check(x->tmp, x->p, strategy);
    r.feasible = s->best_cost < INFINITY;
    CHECK(!r.feasible || pick_fits(x->p, &check));
    r.cost = r.feasible ? check.cost : INFINITY;
    r.found = r.feasible ? check.peak : 0;
    r.bound = r.proved ? r.cost : fmin(bound_of(x), r.cost);
    r.least = least_use(s->m, r.feasible ? least_of_all(x->a, x->p) /* labels went for their cost */
                                         : least_of_labels(x->a, x->c));
    if (!r.feasible && r.proved)
        r.least = MAX(r.least, x->p->limit + 1);
    return r;
}

/* Reduces the problem and makes its model, which has labels for the strategies `from` (NULL: for
 * none); false: every choice is forbidden. */
static bool begin_problem(Solve *x, const int *from)
{
    Core *c = core_new(x->a, x->p);
    c->kept = from;
    core_reduce(c);
    if (c->empty)
        return false;
    begin(x, c);
    scan_costs(x, x->p->cost, x->p->first[x->p->n]);
    scan_costs(x, x->p->matrix, matrix_size(x->p));
    return true;
}

static Solve solve_of(Arena *a, const PickProblem *p, int effort)
{
    SearchRoom *room = NEW(a, SearchRoom);
    room->a = a;
    return (Solve){.a = a,
                   .tmp = arena_tmp(a),
                   .p = p,
                   .room = room,
                   .effort = effort,
                   .integral = true,
                   .known = -INFINITY};
}

/* The bytes that nodes use at least at some time, whatever the others do. */
static int64_t least_alone(Arena *tmp, const PickProblem *p)
{
    int *strategy = NEWN(tmp, int, p->n);
    for (int i = 0; i < p->n; i++)
        for (int k = 1; k < pick_strategies(p, i); k++)
            if (p->usage[p->first[i] + k] < p->usage[p->first[i] + strategy[i]])
                strategy[i] = k;
    return pick_check(tmp, p, strategy).peak;
}

/* With the limit that the problem has, from strategies on (NULL: from none). */
static PickResult pick_within(Solve *x, const int *from, int *strategy)
{
    memset(strategy, 0, sizeof *strategy * (size_t)x->p->n);
    const int64_t alone = x->p->limit < PICK_MOST ? least_alone(x->a, x->p) : 0;
    if (alone > x->p->limit)
        return (PickResult){.cost = INFINITY, .bound = INFINITY, .proved = true, .least = alone};
    if (!begin_problem(x, from))
        return (PickResult){.cost = INFINITY, .bound = INFINITY, .proved = true, .forbidden = true};
    const int64_t least = least_use(x->s->m, least_of_labels(x->a, x->c));
    if (least > x->p->limit)
        return (PickResult){.cost = INFINITY, .bound = INFINITY, .proved = true, .least = least};
    if (from)
        offer_strategies(x, from);
    solve(x);
    return finish(x, strategy);
}

static PickResult try_limit(Arena *a, const PickProblem *p, int64_t limit, int effort,
                            const int *from, int *strategy)
{
    PickProblem q = *p;
    Arena *tmp = arena_tmp(a);
    Solve x = solve_of(tmp, &q, effort);
    q.limit = limit;
    PickResult r = pick_within(&x, from, strategy);
    arena_reset(tmp);
    return r;
}

/* ---- the least limit ---- */

/* Whether something within that limit is found; strategy gets it. Messages and prices go on from
 * those of the limit before. */
static bool find_within(Solve *x, int64_t limit, int *strategy)
{
    enum { SWEEPS = 500 };
    const int64_t steps = MIN(UNIT, SWEEPS * x->s->m->sweep_steps), end = x->s->steps + steps;
    search_forget(x->s);
    model_set_limit(x->s->m, (double)limit);
    dual_again(x->d);
    x->proved = false;
    while (x->s->steps < end && !dual_rests(x->d) && !closed(x) && !(x->s->best_cost < INFINITY))
        dual_step(x->d, x->s);
    if (!closed(x) && !(x->s->best_cost < INFINITY)) {
        dual_finish(x->d, x->s);
        x->s->bound = x->d->bound;
        x->s->above = x->d->above;
        try_whole(x);
    }
    if (!closed(x) && !(x->s->best_cost < INFINITY))
        walk(x, false, steps);
    if (x->s->best_cost < INFINITY)
        model_strategies(x->s->m, x->s->best, strategy);
    return x->s->best_cost < INFINITY;
}

/* The problem with what labels use, over all times, as their costs: what is cheap then is what fits
 * little room, and far more labels dominate others and more edges decide nothing. */
static PickProblem problem_of_use(Arena *a, const PickProblem *p)
{
    PickProblem q = *p;
    const int64_t n = matrix_size(p);
    double *cost = NEWN(a, double, p->first[p->n]), *matrix = SPARSE(a, double, n);
    for (int i = 0; i < p->n; i++) {
        const int to = p->first[p->same && p->same[i] >= 0 ? p->same[i] : i];
        for (int k = 0; k < pick_strategies(p, i); k++)
            cost[to + k] +=
                p->cost[p->first[i] + k] < INFINITY
                    ? (double)p->usage[p->first[i] + k] * (double)(p->end[i] - p->start[i])
                    : INFINITY;
    }
    for (int64_t i = 0; i < n; i++)
        matrix[i] = p->matrix[i] < INFINITY ? 0 : INFINITY;
    q.cost = cost;
    q.matrix = matrix;
    return q;
}

/* Moves the limit down from what r found as far as something fits, to within a part in NEAR. */
static void move_down(Arena *a, const PickProblem *p, PickResult *r, int *strategy)
{
    enum { TRIES = 40, NEAR = 4000 };
    PickProblem q = *p; /* its limit, which is one, is not read again */
    Solve x = solve_of(a, &q, 0);
    int *other = NEWN(a, int, p->n);
    if (!begin_problem(&x, NULL))
        return;
    r->least = MAX(r->least, least_use(x.s->m, least_of_labels(a, x.c)));
    int64_t low = MAX(r->least, p->limit + 1); /* nothing was found below */
    for (int i = 0; i < TRIES && low < r->found - r->found / NEAR; i++) {
        int64_t middle = low + (r->found - low) / 2;
        if (find_within(&x, middle, other)) {
            r->found = pick_check(x.tmp, p, other).peak;
            memcpy(strategy, other, sizeof *other * (size_t)p->n);
        } else {
            low = middle + 1;
            r->least = closed(&x) ? MAX(r->least, low) : r->least;
        }
        arena_reset(x.tmp);
    }
}

/* Finds the fewest bytes, as far as a few tries do, and what is cheap within them. */
static void find_least(Arena *a, const PickProblem *p, int effort, PickResult *r, int *strategy)
{
    const PickProblem use = problem_of_use(a, p);
    int *from = NEWN(a, int, p->n);
    const PickResult any = try_limit(a, &use, PICK_MOST, 0, NULL, from);
    r->forbidden = !any.feasible;
    r->proved = r->forbidden ? any.proved : r->proved;
    if (r->forbidden)
        return;
    r->found = any.found;
    move_down(a, &use, r, from);
    const PickResult last = try_limit(a, p, r->found, effort, from, strategy);
    CHECK(last.feasible);
    r->found = last.found;
    r->found_cost = last.cost;
    r->found_bound = last.bound;
    r->proved |= r->least > p->limit;
}

PickResult pick(Arena *a, const PickProblem *p, int effort, PickProgress *progress, void *arg,
                int *strategy)
{
    Solve x = solve_of(a, p, effort);
    x.progress = progress;
    x.arg = arg;
    arena_keep_blocks(a);
    PickResult r = pick_within(&x, NULL, strategy);
    if (!r.feasible && !(r.proved && r.forbidden))
        find_least(a, p, effort, &r, strategy);
    return r;
}
