/* The search for steps of so many nodes that many plans would take long.
 *
 * One ladder is made, for the end of the forward. Its steps make rungs, which spare about equal
 * bytes; rungs do not depend on the limit. The first rung that fits is taken: what plans need falls
 * from rung to rung nearly as the saved bytes do, so a secant through the two next to the limit
 * finds it with two or three plans. As both it and the rung before it are planned, a larger limit
 * never gives a later rung. Where some more plans can be made, a search goes on between these two
 * (again_between.c). In huge steps the first guess is half a rung further, so that it mostly fits,
 * and the rung before one that fits is not planned where, by what it saves more, it does not. */
#include "again.h"
#include "again_cut.h"

enum {
    LARGE_STEP = 4000, /* nodes */
    HUGE_STEP = 30000, /* for which only few plans can be made */
    RUNGS = 128,
    MOST_SECANT = 4, /* plans; then halves */
    MOST_FULL = 3,   /* rungs that are planned as they would run */
};

bool again_large(const Decider *d)
{
    return !d->s && !d->away && !d->g->mesh && d->step->nnode > LARGE_STEP;
}

/* The first `steps[i]` steps of a ladder, and the bytes that are saved then. The rung 0 has all
 * saved. */
typedef struct Rungs {
    Ladder ladder;
    int steps[RUNGS + 1];
    double nbytes[RUNGS + 1];
    int n; /* without that one */
    bool huge;
} Rungs;

/* ---- rungs ---- */

/* What is saved while more and more is computed again. */
typedef struct Saving {
    AgainGraph *x;
    bool *again, *needed; /* by number */
    double nbytes;
} Saving;

static double saved_bytes(const Saving *s, int k)
{
    return s->needed[k] && !s->again[k] && !s->x->free[k] ? s->x->nbytes[k] : 0;
}

static Saving saving_new(AgainGraph *x)
{
    Saving s = {x, NEWN(x->tmp, bool, x->n), NEWN(x->tmp, bool, x->n), 0};
    for (int k = 0; k < x->n; k++) {
        s.needed[k] = x->read[k];
        s.nbytes += saved_bytes(&s, k);
    }
    return s;
}

static void need_operands(Saving *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const int k = again_place(s->x, n->in[i]);
        if (k < 0 || s->needed[k])
            continue;
        s->needed[k] = true;
        s->nbytes += saved_bytes(s, k);
    }
}

/* number: by name, and one. */
static void take_step(Saving *s, const LadderStep *step, const Map *number)
{
    for (int i = 0; i < step->n; i++) {
        const int k = (int)(intptr_t)map_find(number, step->value[i]) - 1;
        s->nbytes -= saved_bytes(s, k);
        s->again[k] = true;
    }
    for (int i = 0; i < step->n; i++)
        need_operands(s, s->x->at[(intptr_t)map_find(number, step->value[i]) - 1]);
}

const double *ladder_bytes(Decider *d, const Ladder *l)
{
    AgainGraph x = again_graph(d->keep, d->tmp, d->step, d->o.prices, d->blocks.of);
    Saving s = saving_new(&x);
    Map number = {.a = d->tmp};
    double *nbytes = NEWN(d->keep, double, l->n + 1);
    for (int k = 0; k < x.n; k++)
        if (x.at[k]->nout)
            map_put(&number, x.at[k]->out[0]->name, (void *)(intptr_t)(k + 1));
    nbytes[0] = s.nbytes;
    for (int i = 0; i < l->n; i++) {
        take_step(&s, &l->step[i], &number);
        nbytes[i + 1] = s.nbytes;
    }
    arena_reset(d->tmp);
    return nbytes;
}

static Rungs make_rungs(Decider *d)
{
    Rungs r = {.ladder = ladder_new(d->keep, d->step, d->o.prices, d->blocks.of, NULL, false),
               .huge = d->step->nnode > HUGE_STEP};
    const double *nbytes = ladder_bytes(d, &r.ladder);
    const double each = (nbytes[0] - nbytes[r.ladder.n]) / RUNGS;
    r.nbytes[0] = nbytes[0];
    for (int i = 1; i <= r.ladder.n; i++)
        if (i == r.ladder.n || (r.n < RUNGS - 1 && nbytes[i] <= nbytes[0] - (r.n + 1) * each)) {
            r.steps[++r.n] = i;
            r.nbytes[r.n] = nbytes[i];
        }
    return r;
}

/* ---- the search ---- */

/* The rung between two at which plans may begin to fit; need: by rung. The one behind the last is
 * not planned. */
static int guess(const Rungs *r, const int64_t *need, int low, int high, int64_t memory)
{
    const bool both = high <= r->n;
    const double fall = both ? (double)(need[low] - need[high]) : 1;
    const double slope = both && fall > 0 ? (r->nbytes[low] - r->nbytes[high]) / fall : 1;
    const double more = both || !r->huge ? 0 : (r->nbytes[0] - r->nbytes[r->n]) / (2 * r->n);
    const double goal = r->nbytes[low] - slope * (double)(need[low] - memory) - more;
    int i = low + 1;
    while (i < high - 1 && r->nbytes[i] > goal)
        i++;
    return i;
}

/* Whether the rung before one that fits does not, by what it saves more. */
static bool surely_first(const Rungs *r, const int64_t *need, int rung, int64_t memory)
{
    enum { PART = 16 }; /* of what it saves more, for what plans may be off */
    if (!r->huge || rung > r->n)
        return false;
    const double more = r->nbytes[rung - 1] - r->nbytes[rung];
    return (double)(need[rung] - memory) + more > more / PART;
}

/* A rung as a choice. Where scopes name no blocks, preferring does what demanding does, and lets
 * nodes be fused that are computed again and that are not. */
static Planned rung_of(Decider *d, const Rungs *r, int i)
{
    return (Planned){.level = levels_of_steps(d, &r->ladder, r->steps[i]),
                     .ladder = &r->ladder,
                     .steps = r->steps[i],
                     .prefer = !d->blocks.scoped};
}

static Planned rung_quick(Decider *d, const Rungs *r, int i)
{
    const Planned x = rung_of(d, r, i);
    return x.prefer ? plan_prefer(d, &x) : plan_steps(d, &r->ladder, r->steps[i]);
}

/* Plans a rung: as it would run, unless another order is to be found then. */
static Planned plan_rung(Decider *d, const Rungs *r, int i)
{
    Planned x = rung_of(d, r, i);
    if (d->task->ordered)
        return rung_quick(d, r, i);
    plan_full(d, &x);
    return x;
}

/* Takes what a search between the rung and the one before finds, if it is faster. */
static void refine(Decider *d, const Rungs *r, int i)
{
    Planned *best = &d->r->chosen;
    Pair p = {.low = rung_quick(d, r, i - 1), .high = rung_quick(d, r, i), .along = true};
    const bool prefer = p.high.prefer;
    if (plan_fits(d, &p.low) || !plan_fits(d, &p.high))
        return;
    pair_search(d, &p, p.high.sec);
    Planned x = {.level = p.high.level, .prefer = p.high.prefer};
    if (p.high.steps == r->steps[i] && p.high.prefer == prefer)
        return;
    plan_full(d, &x);
    if (plan_fits(d, &x) && x.sec < best->sec)
        *best = x;
}

bool choose_large(Decider *d)
{
    AgainReport *report = d->r;
    const Rungs r = make_rungs(d);
    Planned *x = NEWN(d->keep, Planned, r.n + 2);
    int64_t *need = NEWN(d->keep, int64_t, r.n + 2);
    const int64_t memory = d->task->memory;
    int low = 0, high = r.n + 1;
    need[0] = report->none.need;
    for (int tries = 0; high - low > 1 && !surely_first(&r, need, high, memory); tries++) {
        const int i = tries < MOST_SECANT ? guess(&r, need, low, high, memory) : (low + high) / 2;
        x[i] = plan_rung(d, &r, i);
        if (x[i].need < 0)
            return false; /* no memory is left for plans */
        need[i] = x[i].need;
        *(plan_fits(d, &x[i]) ? &high : &low) = i;
    }
    for (int i = high, fulls = 0; i <= r.n && fulls < MOST_FULL; i++, fulls++) {
        if (!x[i].level)
            x[i] = plan_rung(d, &r, i);
        if (d->task->ordered)
            plan_full(d, &x[i]);
        report->chosen = x[i];
        if (!plan_fits(d, &x[i]))
            continue;
        if (!r.huge)
            refine(d, &r, i);
        return true;
    }
    return false;
}
