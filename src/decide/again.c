/* Chooses what the backward computes again so that a step fits a limit at the least time.
 *
 * A choice is a set of forward values. Plans are made of choices that do not depend on the limit:
 * of none, of the words of --recompute, and at several places of ladders (ladder.c): for the end of
 * the forward, for the place of the peak, and, where scopes name no blocks, without any. Small
 * steps are planned too with one value after the other, each from the peak of the plan before. The
 * rest of the pipeline runs on a copy of the graph, which is ordered and placed with less effort
 * than in the end; what is chosen, and nothing computed again, is planned as it would run, or the
 * lowest few where nothing fits.
 *
 * From the two choices next to the limit on either side a search goes on between them
 * (again_between.c): of all plans, and of each ladder's. The fastest is taken.
 *
 * So a larger limit never gives a slower step, as each of these searches does not. What is computed
 * again has the same bits, so any choice gives the bits of a step that saves all. Plans are
 * counted, not timed: the same input gives the same choice. */
#include "again.h"
#include "../flow/flow.h"

enum { MOST_LADDERS = 3, PLACES = 6, LOWEST = 3, MOST_CHAIN = 3 };
enum { TINY_STEP = 32, TINY_PLANS = 200 };

/* ---- ladders ---- */

/* By value id of g: its bytes where it is alive at the peak, else 0. */
static int64_t *weigh_peak(Decider *d, Graph *g)
{
    Flow *f = pass_flow(g, &d->o, d->tmp);
    int64_t *alive = NEWN(d->keep, int64_t, g->nvalue);
    flow_alive(f, flow_peak_item(f), alive);
    return alive;
}

static bool ladder_equal(const Ladder *x, const Ladder *y)
{
    bool equal = x->n == y->n;
    for (int i = 0; equal && i < x->n; i++) {
        equal = x->step[i].n == y->step[i].n;
        for (int k = 0; equal && k < x->step[i].n; k++)
            equal = x->step[i].value[k] == y->step[i].value[k];
    }
    return equal;
}

/* Adds a ladder, if there is none like it yet. */
static void add_ladder(Decider *d, Ladder *list, int *n, const int *block, const int64_t *weight)
{
    Ladder l = ladder_new(d->keep, d->step, d->o.prices, block, weight);
    for (int i = 0; i < *n; i++)
        if (ladder_equal(&l, &list[i]))
            return;
    list[(*n)++] = l;
}

/* Returns how many there are. */
static int make_ladders(Decider *d, Ladder *list)
{
    int n = 0;
    int64_t *weight = weigh_peak(d, d->step);
    arena_reset(d->tmp);
    add_ladder(d, list, &n, d->blocks.of, NULL);
    add_ladder(d, list, &n, d->blocks.of, weight);
    if (!d->blocks.scoped)
        add_ladder(d, list, &n, NULL, NULL);
    return n;
}

/* ---- what is known whatever the limit is ---- */

static Front try_words(Decider *d, Planned none)
{
    static const char *const word[] = {"selective", "every=2", "full"};
    Front f = {0};
    front_add(d->keep, &f, none);
    for (int i = 0; i < LEN(word); i++) {
        const bool *again = set_of_word(d, word[i]);
        if (again)
            front_add(d->keep, &f, plan_quick(d, again, word[i]));
    }
    return f;
}

static Front try_ladder(Decider *d, Planned none, const Ladder *l)
{
    Front f = {0};
    front_add(d->keep, &f, none);
    for (int i = 1, last = 0; i <= PLACES; i++) {
        int steps = l->n * i / PLACES;
        if (steps > last) {
            Planned x = plan_steps(d, l, steps);
            front_add(d->keep, &f, x);
            if (!d->blocks.scoped) /* which begin at saved values only if they may */
                front_add(d->keep, &f, plan_prefer(d, x.again));
        }
        last = steps;
    }
    front_close(&f);
    return f;
}

/* Plans x with value i changed, and value k too. */
static void try_changed(Decider *d, Front *f, const Planned *x, int i, int k)
{
    if (d->nseen < TINY_PLANS)
        front_add(d->keep, f, plan_quick(d, set_changed(d, x, i, k), NULL));
}

/* Adds what each on the front of a tiny step comes to with one value changed, or two taken out, and
 * does so again. */
static void try_neighbours(Decider *d, Front *f)
{
    for (int last = -1; d->v.n <= TINY_STEP && d->nseen != last;) {
        last = d->nseen;
        for (int x = 0, n = f->n; x < n; x++)
            for (int i = 0; i < d->v.n; i++)
                for (int k = set_has(f->x[x].again, i) ? 0 : i; k <= i; k++)
                    if (k == i || set_has(f->x[x].again, k))
                        try_changed(d, f, &f->x[x], i, k);
        front_close(f);
    }
}

/* ---- from the peak ---- */

/* The value whose byte costs least to compute again, among those that are saved and alive at x's
 * peak; -1: none is left. */
static int cheapest_alive(const Decider *d, const Planned *x, const bool *excluded)
{
    int best = -1;
    double least = 0;
    for (int i = 0; i < d->v.n; i++) {
        if (!x->alive || !x->alive[i] || set_has(x->again, i) || excluded[i])
            continue;
        double price = d->v.sec[i] / (double)x->alive[i];
        if (best < 0 || price < least) {
            best = i;
            least = price;
        }
    }
    return best;
}

/* Adds the choices on a way down from none: each has one value more computed again, the cheapest of
 * those at the peak of the one before. Values that lower it only together are a chain; that of one
 * that leads nowhere is left. */
static void try_peaks(Decider *d, Front *f, Planned none)
{
    Planned low = none, at = none;
    bool *excluded = NEWN(d->keep, bool, d->v.n);
    for (int chain = 0; d->v.n <= SMALL_STEP;) {
        int i = chain < MOST_CHAIN ? cheapest_alive(d, &at, excluded) : -1;
        if (i < 0 && !chain)
            return;
        if (i < 0) {
            for (int k = 0; k < d->v.n; k++)
                excluded[k] |= set_has(at.again, k) && !set_has(low.again, k);
            at = low;
            chain = 0;
            continue;
        }
        at = plan_quick(d, set_changed(d, &at, i, i), NULL);
        front_add(d->keep, f, at);
        bool lower = at.need >= 0 && at.need < low.need;
        chain = lower ? 0 : chain + 1;
        low = lower ? at : low;
    }
}

/* ---- the search ---- */

static Pair pair_of(const Decider *d, const Front *f)
{
    int i = front_find(d, f);
    return (Pair){f->x[i ? i - 1 : 0], f->x[i]};
}

/* The better one: that fits, else that needs less; then the faster. */
static Planned better(const Decider *d, Planned x, Planned y)
{
    bool fit = plan_fits(d, &x);
    if (fit != plan_fits(d, &y))
        return fit ? x : y;
    bool first = fit ? x.sec < y.sec || (x.sec == y.sec && x.need <= y.need) : x.need <= y.need;
    return first ? x : y;
}

/* The best of a front, and what lies between it and the one before. */
static Planned search_front(Decider *d, const Front *f, Planned best)
{
    Pair p = pair_of(d, f);
    best = better(d, best, p.high);
    if (!plan_fits(d, &p.high) || plan_fits(d, &p.low))
        return best;
    pair_search(d, &p, best.sec);
    return better(d, best, p.high);
}

static Planned choose(Decider *d)
{
    AgainReport *r = d->r;
    read_values(d);
    const Planned none = plan_quick(d, NULL, NULL);
    if (none.need < 0) /* no memory is left for plans */
        return r->none;
    Ladder l[MOST_LADDERS];
    Front all = try_words(d, none), one[MOST_LADDERS];
    int n = make_ladders(d, l);
    for (int k = 0; k < n; k++) {
        one[k] = try_ladder(d, none, &l[k]);
        for (int i = 1; i < one[k].n; i++)
            front_add(d->keep, &all, one[k].x[i]);
    }
    try_peaks(d, &all, none);
    front_close(&all);
    try_neighbours(d, &all);
    Front wide = all;
    front_widen(d, &wide);
    Planned best = search_front(d, &wide, none);
    for (int k = 0; k < n; k++)
        best = search_front(d, &one[k], best);
    for (int i = 0; i < all.n; i++)
        PUSH(r->a, r->front, r->nfront, r->capfront, all.x[i]);
    return best;
}

/* Where nothing fits: of the lowest few, planned as they would run, the lowest. */
static void choose_lowest(Decider *d)
{
    AgainReport *r = d->r;
    const Planned chosen = r->chosen;
    for (int i = MAX(r->nfront - LOWEST, 1); i < r->nfront; i++) {
        Planned x = r->front[i];
        if (x.again == chosen.again)
            continue; /* it is planned */
        plan_full(d, &x);
        if (x.need >= 0)
            r->chosen = better(d, x, r->chosen);
    }
}

/* The names of the values that were chosen. */
static void fill_values(Decider *d)
{
    AgainReport *r = d->r;
    const Planned *x = &r->chosen;
    for (int i = 0; !x->word && i < d->v.n; i++)
        if (set_has(x->again, i))
            PUSH(r->a, r->value, r->nvalue, r->capvalue, arena_strdup(r->a, d->v.name[i]));
}

static void search(Decider *d)
{
    AgainReport *r = d->r;
    Graph *g = graph_clone(d->keep, d->g);
    policy_gathers(g, d->tmp, &d->o);
    policy_rules(g, d->tmp, d->o.rules, d->o.nrules);
    arena_reset(d->tmp);
    if (!(d->step = find_step(g)))
        return;
    r->searched = true;
    r->chosen = choose(d);
    plan_full(d, &r->chosen);
    if (!plan_fits(d, &r->chosen))
        choose_lowest(d);
    r->fits = plan_fits(d, &r->chosen);
    double left = (double)(r->memory - d->reserve) - again_kept_bytes(d->g);
    const ChunkAsked *chunk = d->task->chunk;
    if (chunk->mode == CHUNK_OFF && !chunk->npattern) /* slices make values smaller */
        r->bound = again_bound(d->keep, d->step, d->o.prices, left);
    fill_values(d);
}

void again_choose(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r)
{
    Decider d = {.w = w, .task = t, .r = r, .g = w->g, .o = trial_options(o), .reserve = INT64_MAX};
    d.seen.a = d.keep = arena_tmp(w->g->a);
    d.tmp = arena_tmp(w->g->a);
    d.known = t->known ? t->known : &(AgainKnown){.of.a = d.keep};
    r->memory = t->memory;
    r->none = (Planned){0};
    plan_full(&d, &r->none);
    r->fits = plan_fits(&d, &r->none);
    r->chosen = r->none;
    if (!r->fits && r->none.need >= 0)
        search(&d);
    arena_reset(d.keep);
    arena_reset(d.tmp);
}

void again_apply(const AgainReport *r, Graph *g, PassOptions *o)
{
    Arena *tmp = arena_tmp(g->a);
    Map names = {.a = tmp};
    for (int i = 0; i < r->nvalue; i++)
        map_put(&names, r->value[i], (void *)r);
    if (r->chosen.word)
        o->recompute = r->chosen.word;
    const Graph *step = r->nvalue ? find_step(g) : NULL;
    if (step)
        apply_names(g, &names, set_policy(step, &r->chosen));
    arena_reset(tmp);
}
