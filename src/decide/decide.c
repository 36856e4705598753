/* Decides what a step needs to fit: slices (chunk_choose.c), and what the backward computes again
 * (again.c).
 *
 * Slices that were asked for by number or pattern are made, and the rest is chosen beside them.
 * With
 * --chunk auto there are none, or as few as fit, or, if slices alone do not suffice, as many as
 * make the step lowest, or as many as pay in any case. The backward then computes again what is
 * lacking. The fastest of these that fits is taken, else the lowest. */
#include "decide.h"

#include <string.h>

/* Everything that is decided of a step. */
typedef struct Setting {
    PassOptions o;
    ChunkReport chunk;
    AgainReport again;
} Setting;

/* The goal of slices where the limit is reached by computing again: as far as they pay. */
enum { AS_PAYS = 0 };

static void choose_slices(const PassWalk *w, const DecideTask *t, int64_t memory, Setting *s)
{
    ChunkTask c = {t->chunk, t->to, t->ordered, memory};
    chunk_choose(w, &c, &s->o, &s->chunk);
}

static const AgainReport *better_report(const AgainReport *p, const AgainReport *q)
{
    if (p->fits != q->fits)
        return p->fits ? p : q;
    if (p->fits)
        return p->chosen.sec <= q->chosen.sec ? p : q;
    return p->chosen.need <= q->chosen.need ? p : q;
}

static const Setting *better(const Setting *x, const Setting *y)
{
    return better_report(&x->again, &y->again) == &x->again ? x : y;
}

/* A setting with so many slices of the region that holds the peak. */
typedef struct ByNumber {
    const PassWalk *w;
    DecideTask t;
    ChunkAsked asked;
    Setting s;
} ByNumber;

static void choose_by_number(void *arg)
{
    ByNumber *x = arg;
    x->t.chunk = &x->asked;
    choose_slices(x->w, &x->t, x->t.memory, &x->s);
    again_choose(x->w, &x->t, &x->s.o, &x->s.again);
}

/* The better one of `best` and the settings of a few numbers of slices, where these can be made. */
static Setting try_numbers(const PassWalk *w, const DecideTask *t, const Setting *begin,
                           Setting best)
{
    static const char *const number[] = {"4", "8"};
    for (int i = 0; i < LEN(number); i++) {
        const char **text = NEWN(w->g->a, const char *, 1);
        *text = number[i];
        ByNumber x = {w, *t, *t->chunk, *begin};
        x.asked.mode = CHUNK_N;
        x.asked.slices = number[i][0] - '0';
        x.s.o.chunk = (Globs){text, 1};
        if (!t->chunk->npattern && !ctx_try(w->g->ctx, choose_by_number, &x) && x.s.again.fits)
            best = *better(&best, &x.s);
    }
    return best;
}

/* With --chunk auto: the best of three, and of a few numbers of slices; slices, which change bits,
 * where they are faster. */
static Setting choose_both(const PassWalk *w, const DecideTask *t, const Setting *begin)
{
    Setting none = *begin, slices = *begin, pays = *begin;
    none.o.chunk = (Globs){0};
    again_choose(w, t, &none.o, &none.again);
    if (none.again.fits && !none.again.searched)
        return none;
    choose_slices(w, t, t->memory, &slices);
    again_choose(w, t, &slices.o, &slices.again);
    Setting best = *better(&none, &slices);
    if (slices.again.searched) {
        choose_slices(w, t, AS_PAYS, &pays);
        again_choose(w, t, &pays.o, &pays.again);
        best = *better(&none, better(&slices, &pays));
    }
    return try_numbers(w, t, begin, best);
}

/* Whether what the backward computes again is to be chosen. */
static bool chooses_again(const DecideTask *t, const PassOptions *o, const char *names)
{
    return t->memory && is_auto(o->recompute) && passes_have(names, "policies") &&
           passes_have(names, "remat");
}

static void find_passes(const PassWalk *w, DecideTask *t)
{
    t->offload = passes_have(w->names, "offload");
    t->fuses = passes_have(w->names, "fuse");
    t->joins = passes_have(w->names, "bucket");
}

/* Makes the decisions of a step, beginning with s. */
static void choose(const PassWalk *w, const DecideTask *t, bool slices, bool again, Setting *s)
{
    if (slices && again && t->chunk->mode == CHUNK_AUTO) {
        *s = choose_both(w, t, s);
        return;
    }
    if (slices)
        choose_slices(w, t, t->memory, s);
    if (again)
        again_choose(w, t, &s->o, &s->again);
}

/* ---- gathers before loops ---- */

/* Whether parameters that are all kept are gathered once, before the loop of microbatches: then
 * spmd must know it, as it makes another graph. */
static bool may_hoist(const PassWalk *w, const PassOptions *o)
{
    return o->mesh && o->accumulate > 1 && is_auto(o->reshard) && passes_have(w->names, "spmd");
}

/* A copy of a step that has just begun, where decisions are made, with such an --reshard. */
typedef struct Resharded {
    PassWalk at;
    PassOptions o;
    const char *stop;
    bool stops;
} Resharded;

static void run_resharded(void *arg)
{
    Resharded *x = arg;
    x->stops = passes_until(&x->at, x->stop);
}

/* False: there is none. */
static bool reshard(Arena *a, const PassWalk *w, const PassOptions *o, const char *word,
                    const char *stop, Resharded *x)
{
    *x = (Resharded){.o = trial_options(o), .stop = stop};
    x->o.reshard = word;
    x->at = passes_fork(w, graph_clone(a, w->g), &x->o);
    x->at.o = &x->o;
    return !ctx_try(w->g->ctx, run_resharded, x) && x->stops;
}

/* Whether a loop of g gathers. */
static bool loop_gathers(const Graph *g, bool inside)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (inside && node_is(n, OP_all_gather_into_tensor))
            return true;
        EACH_LOOP_BODY(b, n)
            if (loop_gathers(n->region->body[b], true))
                return true;
    }
    return false;
}

/* Whether the step is better with all gathered parameters kept; r: what is decided of the better
 * one. False, with r as it was: both are one. */
static bool keeps_all(const PassWalk *w, const DecideTask *t, const PassOptions *o, bool slices,
                      const char *stop, AgainReport *r)
{
    static const char *const word[] = {"auto", "never"};
    Arena *keep = arena_tmp(w->g->a);
    DecideTask alone = *t; /* a plan would not outlive its graph */
    Resharded x[2];
    Setting s[2];
    bool ok = true;
    alone.keeps = false;
    arena_keep_blocks(keep);
    for (int i = 0; i < 2 && ok; i++) {
        ok = reshard(keep, w, o, word[i], stop, &x[i]) && (i || loop_gathers(x[i].at.g, false));
        s[i] = (Setting){.o = x[i].o, .chunk.a = keep, .again.a = r->a};
        if (ok)
            choose(&x[i].at, &alone, slices, true, &s[i]);
    }
    const Setting *best = ok ? better(&s[0], &s[1]) : NULL;
    if (best)
        *r = best->again;
    arena_reset(keep);
    return best == &s[1];
}

void decide(PassWalk *w, const DecideTask *task, PassOptions *o, const Decided *to)
{
    DecideTask with = *task, *t = &with;
    find_passes(w, &with);
    bool slices =
        (t->chunk->mode != CHUNK_OFF || t->chunk->npattern) && passes_have(w->names, "chunk");
    bool again = chooses_again(t, o, w->names), hoists = again && may_hoist(w, o);
    with.keeps &= t->chunk->mode != CHUNK_AUTO; /* which decides several times */
    const char *stop = passes_have(w->names, "chunk") ? "chunk" : "policies";
    const bool told = t->decided && *t->decided;
    AgainReport known = {.a = to->again->a};
    if (hoists && (told ? again_hoisted(t->decided) : keeps_all(w, t, o, slices, stop, &known)))
        o->reshard = "never";
    if ((!slices && !again) || !passes_until(w, stop))
        return;
    Arena *keep = arena_tmp(w->g->a);
    arena_keep_blocks(keep);
    Setting s = {.o = *o, .chunk = *to->chunk, .again = *to->again};
    bool before = again && t->decided && t->chunk->mode != CHUNK_AUTO &&
                  again_replay(t->decided, w->g, &s.again);
    if (again && t->decided && *t->decided && !before && t->chunk->mode != CHUNK_AUTO && o->warn)
        o->warn(o->warn_arg,
                "what was decided before is not of this step, or damaged: it is decided anew");
    s.again.memory = before ? t->memory : 0;
    if (known.none.need && !slices)
        s.again = known;
    else
        choose(w, t, slices, again && !before, &s);
    *o = s.o;
    *to->chunk = s.chunk;
    *to->again = s.again;
    to->again->hoisted = hoists && !strcmp(o->reshard ? o->reshard : "", "never");
    again_apply(to->again, w->g, o);
    arena_reset(keep);
}

/* ---- several limits ---- */

static void choose_within(const PassWalk *w, DecideTask t, const PassOptions *o, int64_t memory,
                          AgainReport *r)
{
    t.memory = memory;
    again_choose(w, &t, o, r);
}

/* Fails as the step's own plan does, where r says that there is none with all saved. */
static void check_planned(const PassWalk *w, const DecideTask *t, const PassOptions *o,
                          const AgainReport *r)
{
    Arena *tmp = arena_tmp(r->a);
    const PassOptions all = trial_options(o);
    PlanFor to = t->to;
    to.quick = true;
    if (r->none.need < 0)
        trial_plan(tmp, w, graph_clone(tmp, w->g), &all, &to, t->ordered);
    arena_reset(tmp);
    if (r->none.need < 0) /* memory lacked, and does no longer */
        fail(w->g->ctx, TN_FAIL, "no memory is left for a plan of the step");
}

void decide_curve(PassWalk *w, const DecideTask *t, PassOptions *o, Arena *a, DecideCurve *c,
                  void (*tell)(void *arg, int done, int all), void *arg)
{
    DecideTask x = *t;
    Ctx *ctx = arena_ctx(a);
    AgainKnown known = {.of.a = arena_tmp(a)};
    AgainReport least = {.a = known.of.a}, other = least;
    x.memory = NO_MEMORY;
    x.known = &known;
    find_passes(w, &x);
    DecideTask y = x;
    if (!chooses_again(&x, o, w->names))
        fail(ctx, TN_USAGE, "a curve needs --recompute auto, and the passes policies and remat");
    const char *stop = passes_have(w->names, "chunk") ? "chunk" : "policies";
    Resharded kept;
    bool hoists = t->chunk->mode == CHUNK_OFF && !t->chunk->npattern && may_hoist(w, o) &&
                  reshard(a, w, o, "never", stop, &kept);
    if (!passes_until(w, stop))
        fail(ctx, TN_USAGE, "a curve needs the pass policies");
    arena_keep_blocks(known.of.a);
    ChunkReport slices = {.a = a};
    Setting s = {.o = *o, .chunk = slices};
    if (t->chunk->mode != CHUNK_OFF || t->chunk->npattern)
        choose_slices(w, &x, 0, &s);
    choose_within(w, x, &s.o, NO_MEMORY, &least);
    check_planned(w, &x, &s.o, &least);
    if (hoists) {
        y.known = &(AgainKnown){.of.a = known.of.a};
        choose_within(&kept.at, y, &kept.o, NO_MEMORY, &other);
        hoists = other.none.need >= 0;
    }
    c->least = MIN(least.chosen.need, hoists ? other.chosen.need : INT64_MAX);
    c->most = MAX(least.none.need, other.none.need);
    c->point = NEWN(a, AgainReport, c->n);
    for (int i = 0; i < c->n; i++) {
        c->point[i].a = a;
        int64_t memory = c->least + (int64_t)((double)(c->most - c->least) * i / MAX(c->n - 1, 1));
        choose_within(w, x, &s.o, MAX(memory, NO_MEMORY), &c->point[i]);
        check_planned(w, &x, &s.o, &c->point[i]);
        if (hoists) {
            AgainReport point = {.a = a, .hoisted = true};
            choose_within(&kept.at, y, &kept.o, MAX(memory, NO_MEMORY), &point);
            c->point[i] = *better_report(&c->point[i], &point);
        }
        if (tell)
            tell(arg, i + 1, c->n);
    }
    arena_reset(known.of.a);
}
