/* Chooses what the backward computes again so that a step fits a limit at the least time, what goes
 * to the host's memory on a device that has one of its own, and, with --reshard auto, which
 * gathered parameters are kept.
 *
 * A choice gives each forward value a level. Plans are made of choices that do not depend on the
 * limit: of all saved, of the words of --recompute, and at several places of ladders (ladder.c):
 * for the end of the forward, for the place of the peak, and, where scopes name no blocks, without
 * any. On a device with two memories there are ladders of values that leave it too (again_away.c).
 * Small steps are planned too with one value after the other, each from the peak of the plan
 * before, and with single changes of what is best so far (again_near.c). The rest of the pipeline
 * runs on a copy of the graph, which is ordered and placed with less effort than in the end; what
 * is chosen, and all saved, is planned as it would run, or the lowest few where nothing fits.
 *
 * From the two choices next to the limit on either side a search goes on between them
 * (again_between.c): of all plans, and of each ladder's, by halves and, where scopes name no
 * blocks, along it too. The fastest is taken. Tiny steps at last choose among all sets
 * (again_all.c). Steps that are not large are searched for other limits too (again_beyond.c).
 *
 * On ranks, on devices with memory of their own, and where scopes name no blocks, there is a search
 * too where all saved fits: computing again may take less time than it hides of collectives, or
 * than fusion gains by it. Where collectives run beside computing, plans with less effort say
 * little of the time, and again_moved.c searches.
 *
 * A larger limit never gives a slower step, as each of these searches does not, but for tiny steps
 * whose sets are too many to be planned. What is computed again has the same bits, so any choice
 * gives the bits of a step that saves all. Plans are counted, not timed: the same input gives the
 * same choice. */
#include "again.h"
#include "../flow/flow.h"

#include <math.h>
#include <string.h>

enum { MOST_LADDERS = 6, PLACES = 6, LOWEST = 3, MOST_CHAIN = 3 };

static const char *const words[] = {"selective", "every=2", "full"}; /* of --recompute */

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
    bool equal = x->n == y->n && x->level == y->level && x->base == y->base;
    for (int i = 0; equal && i < x->n; i++) {
        equal = x->step[i].n == y->step[i].n;
        for (int k = 0; equal && k < x->step[i].n; k++)
            equal = x->step[i].value[k] == y->step[i].value[k];
    }
    return equal;
}

/* Adds a ladder, if there is none like it yet. */
static void add_ladder(Ladder *list, int *n, Ladder l)
{
    for (int i = 0; i < *n; i++)
        if (ladder_equal(&l, &list[i]))
            return;
    list[(*n)++] = l;
}

static Ladder ladder_of(const Decider *d, const int *block, const int64_t *weight)
{
    return ladder_new(d->keep, d->step, d->o.prices, block, weight, false);
}

/* Ladders of what is computed again. Returns how many there are. */
static int make_ladders(Decider *d, Ladder *list)
{
    int n = 0;
    int64_t *weight = weigh_peak(d, d->step);
    arena_reset(d->tmp);
    add_ladder(list, &n, ladder_of(d, d->blocks.of, NULL));
    add_ladder(list, &n, ladder_of(d, d->blocks.of, weight));
    if (!d->blocks.scoped)
        add_ladder(list, &n, ladder_of(d, NULL, NULL));
    return n;
}

/* What is computed again beside what goes to the host's memory for nothing. */
static Ladder ladder_beside(Decider *d, const Level *base)
{
    int64_t *weight = NEWN(d->keep, int64_t, d->step->nvalue);
    for (const Node *n = d->step->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            intptr_t i = (intptr_t)map_find(&d->v.number, n->out[0]->name);
            bool away = i && base[i - 1] == AWAY;
            weight[n->out[k]->id] = away ? 0 : type_nbytes(&n->out[k]->type);
        }
    Ladder l = ladder_of(d, d->blocks.of, weight);
    l.base = base;
    return l;
}

/* Adds ladders with what goes to the host's memory: of that alone, beside all saved and beside all
 * of the first ladder, and of what is computed again beside what goes for nothing. Returns how many
 * there are. */
static int make_away(Decider *d, Planned none, Ladder *list, int n)
{
    if (!d->away)
        return n;
    const Planned most = plan_steps(d, &list[0], list[0].n);
    const Level *free = away_free(d, &none);
    add_ladder(list, &n, away_ladder(d, &none));
    add_ladder(list, &n, away_ladder(d, &most));
    if (free)
        add_ladder(list, &n, ladder_beside(d, free));
    return n;
}

/* ---- what is known whatever the limit is ---- */

static Front try_words(Decider *d, Planned none)
{
    Front f = {0};
    front_add(d->keep, &f, none);
    for (int i = 0; i < LEN(words); i++) {
        const Level *level = levels_of_word(d, words[i]);
        if (level)
            front_add(d->keep, &f, plan_quick(d, level, words[i]));
    }
    const Level *gathers = levels_gathers(d);
    if (gathers)
        front_add(d->keep, &f, plan_quick(d, gathers, NULL));
    return f;
}

static int block_of_step(const Decider *d, const LadderStep *s)
{
    return d->v.block[(intptr_t)map_find(&d->v.number, s->value[0]) - 1];
}

int ladder_joined(Decider *d, const Ladder *l, int parts, int *place)
{
    const double *nbytes = ladder_bytes(d, l), least = (nbytes[0] - nbytes[l->n]) / parts;
    double last = nbytes[0];
    int n = 0;
    for (int i = 1; i <= l->n; i++) {
        if (i < l->n && (block_of_step(d, &l->step[i]) > block_of_step(d, &l->step[i - 1]) ||
                         last - nbytes[i] < least))
            continue;
        place[n++] = i;
        last = nbytes[i];
    }
    return n;
}

/* The places of a ladder that are planned, of a short step as ladder_joined() finds them by
 * `parts`. Returns how many there are. */
static int find_places(Decider *d, const Ladder *l, int parts, int *place)
{
    for (int i = 1; !d->s && i <= PLACES; i++)
        place[i - 1] = l->n * i / PLACES;
    return d->s ? ladder_joined(d, l, parts, place) : PLACES;
}

static Front try_ladder(Decider *d, Planned none, const Ladder *l, int parts)
{
    Front f = {0};
    int *place = NEWN(d->keep, int, l->n + PLACES), n = find_places(d, l, parts, place);
    front_add(d->keep, &f, none);
    for (int i = l->base ? -1 : 0, last = i; i < n; i++) {
        int steps = i < 0 ? 0 : place[i];
        if (steps > last) {
            Planned x = plan_steps(d, l, steps);
            front_add(d->keep, &f, x);
            if (!d->blocks.scoped) /* which begin at saved values only if they may */
                front_add(d->keep, &f, plan_prefer(d, &x));
        }
        last = steps;
    }
    front_close(&f);
    return f;
}

/* ---- from the peak ---- */

/* The value whose byte costs least to compute again, among those that are saved and alive at x's
 * peak; -1: none is left. */
static int cheapest_alive(const Decider *d, const Planned *x, const bool *excluded)
{
    int best = -1;
    double least = 0;
    for (int i = 0; i < d->v.n; i++) {
        if (!x->alive || !x->alive[i] || level_at(x, i) != SAVED || excluded[i])
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
    for (int chain = 0; is_small(d);) {
        int i = chain < MOST_CHAIN ? cheapest_alive(d, &at, excluded) : -1;
        if (i < 0 && !chain)
            return;
        if (i < 0) {
            for (int k = 0; k < d->v.n; k++)
                excluded[k] |= level_at(&at, k) != level_at(&low, k);
            at = low;
            chain = 0;
            continue;
        }
        at = plan_quick(d, levels_changed(d, &at, i, i), NULL);
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
    return (Pair){.low = f->x[i ? i - 1 : 0], .high = f->x[i]};
}

bool planned_first(const Decider *d, const Planned *x, const Planned *y)
{
    const bool fit = plan_fits(d, x);
    if (fit != plan_fits(d, y))
        return fit;
    return fit ? x->sec < y->sec || (x->sec == y->sec && x->need <= y->need) : x->need <= y->need;
}

Planned planned_better(const Decider *d, Planned x, Planned y)
{
    return planned_first(d, &x, &y) ? x : y;
}

/* The best of two choices, and of what lies between them. */
static Planned search_pair(Decider *d, Pair p, Planned best)
{
    best = planned_better(d, best, p.high);
    if (!plan_fits(d, &p.high) || plan_fits(d, &p.low))
        return best;
    pair_search(d, &p, best.sec);
    return planned_better(d, best, p.high);
}

enum { PARTS = 64, FEW_PARTS = 8 }; /* of the bytes of a short step's ladder */

/* Fills the front of all that does not depend on the limit, and those of ladders; returns how many
 * these are. */
static int make_fronts(Decider *d, Planned none, int parts, Front *all, Front *one)
{
    Ladder *l = NEWN(d->keep, Ladder, MOST_LADDERS);
    *all = try_words(d, none);
    const int n = make_away(d, none, l, make_ladders(d, l));
    for (int k = 0; k < n; k++) {
        one[k] = try_ladder(d, none, &l[k], parts);
        for (int i = 1; i < one[k].n; i++)
            front_add(d->keep, all, one[k].x[i]);
    }
    try_peaks(d, all, none);
    front_close(all);
    if (is_small(d))
        front_improve(d, all);
    return n;
}

Front again_front(Decider *d)
{
    const Planned none = plan_quick(d, NULL, NULL);
    Front all = {0}, one[MOST_LADDERS];
    if (none.need >= 0)
        make_fronts(d, none, FEW_PARTS, &all, one);
    return all;
}

/* The best of x and of mixtures of a short step's choices, and of these with what changes of equal
 * blocks add to them. */
static Planned mix_twice(Decider *d, Front *f, Planned x)
{
    Front before = {0};
    const Planned once = mix_blocks(d, f, NULL, x), plain = d->plain;
    if (again_moves(d))
        return once;
    for (int i = 0; i < f->n; i++)
        front_add(d->keep, &before, f->x[i]);
    front_improve(d, f);
    const Planned twice = mix_blocks(d, f, &before, once);
    if (twice.level == once.level && twice.weight == once.weight)
        d->plain = plain;
    return twice;
}

static Planned choose(Decider *d)
{
    AgainReport *r = d->r;
    const Planned none = plan_quick(d, NULL, NULL);
    if (none.need < 0) /* no memory is left for plans */
        return r->none;
    Front all, one[MOST_LADDERS];
    const int n = make_fronts(d, none, PARTS, &all, one);
    Front wide = all;
    if (!d->s)
        front_widen(d, &wide);
    Planned best = none;
    for (int i = 0; i < wide.n; i++) /* on ranks, one that is faster than all saved */
        best = planned_better(d, best, wide.x[i]);
    if (d->s)
        best = mix_twice(d, &all, best);
    else
        best = search_pair(d, pair_of(d, &wide), best);
    for (int k = 0; k < n && !d->s; k++) {
        Pair p = pair_of(d, &one[k]);
        best = search_pair(d, p, best);
        p.along = !d->blocks.scoped;
        if (p.along)
            best = search_pair(d, p, best);
    }
    for (int i = 0; i < all.n; i++)
        PUSH(r->a, r->front, r->nfront, r->capfront, all.x[i]);
    return best;
}

/* Plans `full` as it would run, which may need less than the lowest by tries. */
static void choose_full(Decider *d)
{
    const char *full = words[LEN(words) - 1];
    Decider *e = d->shorter ? d->shorter : d;
    const Level *level = levels_of_word(e, full);
    Planned x = level ? plan_quick(e, level, full) : (Planned){.need = -1};
    if (x.need < 0 || again_far(d, &x))
        return;
    x = (Planned){.word = full, .level = levels_of_word(d, full)};
    plan_full(d, &x);
    if (x.need >= 0)
        d->r->chosen = planned_better(d, x, d->r->chosen);
}

/* Where nothing fits: of the lowest few, planned as they would run, the lowest. */
static void choose_lowest(Decider *d)
{
    AgainReport *r = d->r;
    const Planned chosen = r->chosen;
    for (int i = MAX(r->nfront - LOWEST, 1); i < r->nfront; i++) {
        Planned x = r->front[i];
        if (x.level == chosen.level || again_far(d, &x))
            continue; /* it is planned, or needs too much */
        plan_full(d, &x);
        if (x.need >= 0)
            r->chosen = planned_better(d, x, r->chosen);
    }
    choose_full(d);
}

/* Fills the list that the pipeline gets of the choice; its names live in the report's arena. */
static void fill_nodes(Decider *d)
{
    AgainReport *r = d->r;
    const Planned *x = &r->chosen;
    for (int i = 0; !x->word && i < d->v.n; i++) {
        const Policy p = value_policy(d, x, i);
        if (p)
            PUSH(r->a, r->node, r->nnode, r->capnode,
                 ((NodePolicy){arena_strdup(r->a, d->v.name[i]), p}));
        r->nagain += policy_again(p); /* gathers are made again, not computed */
        r->naway += level_at(x, i) == AWAY;
        r->nkept += p == MUST_SAVE;
    }
}

/* Lets the gathers of parameters be chosen: they have the policy that --reshard gave them. */
static void open_gathers(Decider *d, const Graph *step, const Policy *before)
{
    for (Node *n = step->first; n; n = n->next)
        if (n->phase < BACKWARD && node_is(n, OP_all_gather_into_tensor) && !before[n->id] &&
            n->policy == MUST_RECOMPUTE) {
            map_put(&d->gathers, n->out[0]->name, n);
            n->policy = POLICY_NONE;
        }
}

bool again_begin(Decider *d)
{
    Graph *g = graph_clone(d->keep, d->g), *step = find_step(g);
    if (!step)
        return false;
    Policy *before = NEWN(d->keep, Policy, step->nnode);
    for (const Node *n = step->first; n; n = n->next)
        before[n->id] = n->policy;
    policy_gathers(g, d->tmp, &d->o);
    if (is_auto(d->o.reshard))
        open_gathers(d, step, before);
    policy_rules(g, d->tmp, d->o.rules, d->o.nrules);
    arena_reset(d->tmp);
    d->away = d->task->offload && !device_is_host(d->task->to.device);
    d->step = step;
    read_values(d);
    return true;
}

/* A bound on what is computed again is none where values can go elsewhere, or get smaller, or where
 * computing may take no time beside collectives. */
static bool has_bound(const Decider *d)
{
    const ChunkAsked *chunk = d->task->chunk;
    return chunk->mode == CHUNK_OFF && !chunk->npattern && !d->away &&
           !(d->g->mesh && d->task->to.overlap);
}

static double bound_of(const Decider *d)
{
    const BoundFor to = {again_left(d, d->r->memory), d->task->fuses, d->task->joins};
    return has_bound(d) ? again_bound(d->keep, d->step, d->o.prices, &to) : NAN;
}

/* Whether x, of a short step, cannot be the best: it does not fit, or what it computes takes longer
 * than the chosen one. */
static bool is_worse(Decider *d, const Planned *x)
{
    const Planned quick = plan_quick(d, x->level, x->word);
    return !plan_fits(d, &quick) ||
           (plan_fits(d, &d->r->chosen) && quick.sec - quick.shown >= d->r->chosen.sec);
}

static void consider_full(Decider *d, Planned x)
{
    if (d->s && is_worse(d, &x))
        return;
    plan_full(d, &x);
    if (x.need >= 0)
        d->r->chosen = planned_better(d, d->r->chosen, x);
}

double again_left(const Decider *d, int64_t nbytes)
{
    const int64_t reserve = d->reserve < INT64_MAX ? d->reserve : 0; /* no plan has told it */
    return (double)(nbytes - reserve) - again_kept_bytes(d->g);
}

/* Plans a few others as they would run too, where they seem faster than the chosen one is. */
static void choose_real(Decider *d)
{
    enum { MOST_REAL = 4 };
    const AgainReport *r = d->r;
    for (int i = 0, n = 0; i < r->nfront && n < MOST_REAL; i++) {
        const Planned *x = &r->front[i];
        if (!plan_fits(d, x) || x->sec >= r->chosen.sec || (!x->level && !x->word))
            continue;
        consider_full(d, *x);
        n++;
    }
}

void again_search(Decider *d)
{
    AgainReport *r = d->r;
    if (again_large(d) && choose_large(d))
        return;
    r->chosen = choose(d);
    if (again_far(d, &r->chosen) && !again_tiny(d))
        return; /* nothing fits, and no set is left to look at */
    plan_full(d, &r->chosen);
    choose_real(d);
    if (!plan_fits(d, &r->chosen))
        choose_lowest(d);
    choose_of_all(d);
    choose_finish(d);
}

void again_find(Decider *d)
{
    AgainReport *r = d->r;
    const bool moved = again_moves(d);
    r->nfront = 0;
    r->chosen = r->none;
    if (!(moved && again_search_moved(d)) && !again_search_short(d))
        again_search(d);
    if (d->shorter && !plan_fits(d, &r->chosen))
        choose_lowest(d);
    if (plan_fits(d, &r->none)) /* which less effort may not have seen */
        r->chosen = planned_better(d, r->none, r->chosen);
}

static void search(Decider *d)
{
    AgainReport *r = d->r;
    r->searched = true;
    again_find(d);
    if (plan_fits(d, &r->chosen))
        again_find_faster(d);
    else
        again_find_least(d);
    r->fits = plan_fits(d, &r->chosen);
    r->bound = bound_of(d);
    if (again_moves(d) && !plan_fits(d, &r->none)) /* in what memory the limit leaves */
        plan_told(d, &r->none);
}

/* Plans the choices that are told as they would run: tries leave out that collectives run beside
 * computing. */
static void tell_front(Decider *d)
{
    AgainReport *r = d->r;
    Front f = {0};
    for (int i = 0; i < r->nfront; i++) {
        Planned x = r->front[i];
        (plan_fits(d, &x) ? plan_full : plan_unlimited)(d, &x);
        front_add(d->keep, &f, x);
    }
    if (f.n)
        front_close(&f);
    r->nfront = f.n;
    for (int i = 0; i < f.n; i++)
        r->front[i] = f.x[i];
}

Decider again_new(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r)
{
    Decider d = {.w = w, .task = t, .r = r, .g = w->g, .o = trial_options(o), .reserve = INT64_MAX};
    d.gathers.a = d.keep = arena_tmp(w->g->a);
    d.tmp = arena_tmp(r->a);
    d.known = t->known;
    if (!d.known) {
        d.known = NEW(d.keep, AgainKnown);
        d.known->of.a = d.keep;
    }
    r->memory = t->memory;
    memset(r->made, 0, sizeof r->made);
    r->none = (Planned){0};
    return d;
}

void again_choose(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r)
{
    Decider d = again_new(w, t, o, r);
    bool values = again_begin(&d), moved = values && again_moves(&d);
    r->none.room = moved ? ROOM_USUAL : 0;
    if (!(values && again_misfits(&d, &r->none)))
        plan_full(&d, &r->none);
    r->bound = has_bound(&d) ? 0 : NAN;
    r->fits = plan_fits(&d, &r->none);
    r->chosen = r->none;
    const bool fused = t->fuses && !device_is_host(t->to.device);
    const bool always = d.g->mesh || (values && (fused || !d.blocks.scoped) && !t->to.quick);
    if ((!r->fits || always) && r->none.need >= 0 && values)
        search(&d);
    if (d.g->mesh && r->searched && o->decisions && o->decisions->all)
        tell_front(&d);
    fill_nodes(&d);
    arena_reset(d.keep);
    arena_reset(d.tmp);
}

void again_apply(const AgainReport *r, Graph *g, PassOptions *o)
{
    Arena *tmp = arena_tmp(g->a);
    if (r->chosen.word)
        o->recompute = r->chosen.word;
    apply_policies(g, tmp, r->node, r->nnode);
    arena_reset(tmp);
}
