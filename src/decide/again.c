/* Chooses what the backward computes again so that a step fits a limit at the least time.
 *
 * Plans are made of choices that do not depend on the limit: of nothing computed again, of the
 * words of --recompute, and at several places of two ladders (ladder.c), for the end of the forward
 * and for the place of the peak. The rest of the pipeline runs on a copy of the graph, which is
 * ordered and placed with less effort than in the end; what is chosen, and nothing computed again,
 * is planned as it would run, or the lowest few where nothing fits. A search along each ladder
 * finds the first place that fits, and bisects the number of steps between it and the one before.
 * The fastest is taken of these and the words that fit.
 *
 * So a larger limit never gives a slower step. The places of a ladder at which plans are made are
 * the same for all limits, but for those that another undercuts in both bytes and seconds; where
 * two limits part in the bisection, the larger one goes to the lower half, which is nowhere slower,
 * as only choices between their neighbours in seconds are taken. What is computed again has the
 * same bits, so any choice gives the bits of a step that saves all. Plans are counted, not timed:
 * the same input gives the same choice. */
#include "decide.h"
#include "../flow/flow.h"

#include <stdlib.h>
#include <string.h>

enum { NLADDER = 2, PLACES = 6, NO_LADDER = -1, LOWEST = 3 };

typedef struct Decider {
    const PassWalk *w;
    const DecideTask *task;
    AgainReport *r;
    Graph *g;          /* as the passes will have it */
    Arena *keep, *tmp; /* of the choice; of one plan */
    PassOptions o;     /* of plans */
    Ladder ladder[NLADDER];
    int nladder;
} Decider;

/* ---- the step's graph ---- */

/* The graph, g or a loop's body in it, that has most nodes of forward and backward both; NULL: none
 * has. */
static Graph *find_step(Graph *g)
{
    Graph *best = NULL;
    bool forward = false, backward = false;
    for (Node *n = g->first; n; n = n->next) {
        forward |= n->phase < BACKWARD;
        backward |= node_in_backward(n);
        EACH_LOOP_BODY(b, n) {
            Graph *inner = find_step(n->region->body[b]);
            best = inner && (!best || inner->nnode > best->nnode) ? inner : best;
        }
    }
    return forward && backward ? g : best;
}

/* Gives nodes of these names the policy, in all bodies that have them. */
static void apply_names(Graph *g, const Map *names)
{
    for (Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            apply_names(n->region->body[b], names);
        if (n->phase < BACKWARD && n->nout && !n->policy && map_find(names, n->out[0]->name))
            n->policy = PREFER_RECOMPUTE;
    }
}

static void apply_steps(Graph *g, Arena *tmp, const Ladder *l, int steps)
{
    Map names = {.a = tmp};
    for (int i = 0; i < steps; i++)
        for (int k = 0; k < l->step[i].n; k++)
            map_put(&names, l->step[i].value[k], (void *)l);
    apply_names(g, &names);
}

/* ---- plans ---- */

typedef struct PlanTry {
    Decider *d;
    Planned *x;
    bool quick; /* else as it would run */
} PlanTry;

static void plan_choice(void *arg)
{
    const PlanTry *t = arg;
    Decider *d = t->d;
    Planned *x = t->x;
    Graph *g = graph_clone(d->tmp, d->g);
    PassOptions o = d->o;
    PlanFor to = d->task->to;
    if (x->word)
        o.recompute = x->word;
    else if (x->steps)
        apply_steps(g, d->tmp, &d->ladder[x->ladder], x->steps);
    to.quick = t->quick;
    Plan *p = trial_plan(d->tmp, d->w, g, &o, &to, d->task->ordered);
    x->need = plan_least(p);
    x->sec = p->est.step;
}

static void plan_it(Decider *d, Planned *x, bool quick)
{
    PlanTry t = {d, x, quick};
    if (ctx_try(d->g->ctx, plan_choice, &t))
        x->need = -1; /* a word that names no block */
    arena_reset(d->tmp);
    d->r->nplanned++;
}

static Planned plan_quick(Decider *d, Planned x)
{
    plan_it(d, &x, true);
    return x;
}

static Planned plan_steps(Decider *d, int ladder, int steps)
{
    return plan_quick(d, (Planned){.ladder = ladder, .steps = steps});
}

static bool fits(const Decider *d, const Planned *x)
{
    return x->need >= 0 && x->need <= d->task->memory;
}

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

static void make_ladders(Decider *d)
{
    Graph *g = graph_clone(d->keep, d->g);
    policy_gathers(g, d->tmp, &d->o);
    policy_rules(g, d->tmp, d->o.rules, d->o.nrules);
    arena_reset(d->tmp);
    Graph *step = find_step(g);
    if (!step)
        return;
    int64_t *weight = weigh_peak(d, step);
    arena_reset(d->tmp);
    d->ladder[0] = ladder_new(d->keep, step, d->o.prices, NULL);
    d->ladder[1] = ladder_new(d->keep, step, d->o.prices, weight);
    d->nladder = ladder_equal(&d->ladder[0], &d->ladder[1]) ? 1 : NLADDER;
}

/* ---- fronts ---- */

/* Choices by seconds upward and bytes downward. */
typedef struct Front {
    Planned *x;
    int n, cap;
} Front;

static int compare_time(const void *x, const void *y)
{
    const Planned *p = x, *q = y;
    if (p->sec != q->sec)
        return p->sec < q->sec ? -1 : 1;
    return (p->need > q->need) - (p->need < q->need);
}

static void front_add(Arena *a, Front *f, Planned x)
{
    if (x.need >= 0)
        PUSH(a, f->x, f->n, f->cap, x);
}

/* Keeps the first, and what needs fewer bytes than all that are faster. */
static void front_close(Front *f)
{
    int n = 1;
    qsort(f->x + 1, (size_t)(f->n - 1), sizeof *f->x, compare_time);
    for (int i = 1; i < f->n; i++)
        if (f->x[i].need < f->x[n - 1].need)
            f->x[n++] = f->x[i];
    f->n = n;
}

/* Adds what y has but for its first. */
static void front_join(Arena *a, Front *f, const Front *y)
{
    for (int i = f->n > 0; i < y->n; i++)
        front_add(a, f, y->x[i]);
}

/* Between low, which does not fit, and high, which does: the fewest steps that are found to fit. */
static Planned refine(Decider *d, int ladder, Planned low, Planned high)
{
    int first = low.steps, last = high.steps;
    while (last - first > 1) {
        int middle = first + (last - first) / 2;
        Planned x = plan_steps(d, ladder, middle);
        bool between = x.need >= 0 && x.sec >= low.sec && x.sec < high.sec;
        if (between && fits(d, &x)) {
            high = x;
            last = middle;
        } else {
            low = between ? x : low;
            first = middle;
        }
    }
    return high;
}

/* The better one: that fits, else that needs less; then the faster. */
static Planned better(const Decider *d, Planned x, Planned y)
{
    bool fit = fits(d, &x);
    if (y.need < 0 || fit != fits(d, &y))
        return y.need < 0 || fit ? x : y;
    return (fit ? compare_time(&x, &y) <= 0 : x.need <= y.need) ? x : y;
}

/* The best of a front; of a ladder's, what lies between its places too. */
static Planned best_of(Decider *d, const Front *f, int ladder)
{
    int i = 0;
    while (i < f->n - 1 && !fits(d, &f->x[i]))
        i++;
    bool between = ladder >= 0 && i && fits(d, &f->x[i]);
    return between ? refine(d, ladder, f->x[i - 1], f->x[i]) : f->x[i];
}

static Front try_words(Decider *d, Planned none)
{
    static const char *const word[] = {"selective", "every=2", "full"};
    Front f = {0};
    front_add(d->keep, &f, none);
    for (int i = 0; i < LEN(word); i++)
        front_add(d->keep, &f, plan_quick(d, (Planned){.ladder = NO_LADDER, .word = word[i]}));
    front_close(&f);
    return f;
}

static Front try_ladder(Decider *d, Planned none, int ladder)
{
    Front f = {0};
    front_add(d->keep, &f, none);
    for (int i = 1, last = 0; i <= PLACES; i++) {
        int steps = d->ladder[ladder].n * i / PLACES;
        if (steps > last)
            front_add(d->keep, &f, plan_steps(d, ladder, steps));
        last = steps;
    }
    front_close(&f);
    return f;
}

/* ---- the choice ---- */

/* Of none, the words and the ladders, what fits at the least time; else the lowest. */
static Planned choose(Decider *d)
{
    AgainReport *r = d->r;
    const Planned none = plan_quick(d, (Planned){.ladder = NO_LADDER});
    if (none.need < 0) /* no memory is left for plans */
        return r->none;
    Front all = {0}, f = try_words(d, none);
    Planned best = best_of(d, &f, NO_LADDER);
    front_join(r->a, &all, &f);
    make_ladders(d);
    for (int l = 0; l < d->nladder; l++) {
        f = try_ladder(d, none, l);
        best = better(d, best, best_of(d, &f, l));
        front_join(r->a, &all, &f);
    }
    front_close(&all);
    r->front = all.x;
    r->nfront = all.n;
    return best;
}

static bool is_same(const Planned *x, const Planned *y)
{
    return x->ladder == y->ladder && x->steps == y->steps && x->word == y->word;
}

/* The names of the nodes of the ladder's steps that were chosen. */
static void fill_values(Decider *d)
{
    AgainReport *r = d->r;
    const Ladder *l = &d->ladder[MAX(r->chosen.ladder, 0)];
    for (int i = 0; !r->chosen.word && i < r->chosen.steps; i++)
        for (int k = 0; k < l->step[i].n; k++)
            PUSH(r->a, r->value, r->nvalue, r->capvalue, arena_strdup(r->a, l->step[i].value[k]));
}

void again_choose(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r)
{
    Decider d = {.w = w, .task = t, .r = r, .g = w->g, .o = trial_options(o)};
    d.keep = arena_tmp(w->g->a);
    d.tmp = arena_tmp(w->g->a);
    r->memory = t->memory;
    r->none = (Planned){.ladder = NO_LADDER};
    plan_it(&d, &r->none, false);
    r->fits = fits(&d, &r->none);
    r->chosen = r->none;
    if (!r->fits && r->none.need >= 0) {
        r->searched = true;
        r->chosen = choose(&d);
        plan_it(&d, &r->chosen, false);
        bool near = !fits(&d, &r->chosen);
        const Planned chosen = r->chosen;
        for (int i = MAX(r->nfront - LOWEST, 0); near && i < r->nfront; i++) {
            Planned x = r->front[i];
            if (is_same(&x, &chosen) || is_same(&x, &r->none))
                continue; /* it is planned */
            plan_it(&d, &x, false);
            r->chosen = better(&d, x, r->chosen);
        }
        r->fits = fits(&d, &r->chosen);
        fill_values(&d);
    }
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
    apply_names(g, &names);
    arena_reset(tmp);
}
