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

static const Setting *better(const Setting *x, const Setting *y)
{
    const AgainReport *p = &x->again, *q = &y->again;
    if (p->fits != q->fits)
        return p->fits ? x : y;
    if (p->fits)
        return p->chosen.sec <= q->chosen.sec ? x : y;
    return p->chosen.need <= q->chosen.need ? x : y;
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
    return t->memory && (!o->recompute || !strcmp(o->recompute, "auto")) &&
           passes_have(names, "policies") && passes_have(names, "remat");
}

static void find_passes(const PassWalk *w, DecideTask *t)
{
    t->offload = passes_have(w->names, "offload");
    t->fuses = passes_have(w->names, "fuse");
    t->joins = passes_have(w->names, "bucket");
}

void decide(PassWalk *w, const DecideTask *task, PassOptions *o, const Decided *to)
{
    DecideTask with = *task, *t = &with;
    find_passes(w, &with);
    bool slices =
        (t->chunk->mode != CHUNK_OFF || t->chunk->npattern) && passes_have(w->names, "chunk");
    bool again = chooses_again(t, o, w->names);
    const char *stop = passes_have(w->names, "chunk") ? "chunk" : "policies";
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
    if (slices && again && t->chunk->mode == CHUNK_AUTO) {
        s = choose_both(w, t, &s);
    } else {
        if (slices)
            choose_slices(w, t, t->memory, &s);
        if (again && !before)
            again_choose(w, t, &s.o, &s.again);
    }
    *o = s.o;
    *to->chunk = s.chunk;
    *to->again = s.again;
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

void decide_curve(PassWalk *w, const DecideTask *t, PassOptions *o, Arena *a, DecideCurve *c,
                  void (*tell)(void *arg, int done, int all), void *arg)
{
    DecideTask x = *t;
    Ctx *ctx = arena_ctx(a);
    AgainKnown known = {.of.a = arena_tmp(a)};
    AgainReport least = {.a = known.of.a};
    x.memory = NO_MEMORY;
    x.known = &known;
    find_passes(w, &x);
    if (!chooses_again(&x, o, w->names))
        fail(ctx, TN_USAGE, "a curve needs --recompute auto, and the passes policies and remat");
    if (!passes_until(w, passes_have(w->names, "chunk") ? "chunk" : "policies"))
        fail(ctx, TN_USAGE, "a curve needs the pass policies");
    arena_keep_blocks(known.of.a);
    ChunkReport slices = {.a = a};
    Setting s = {.o = *o, .chunk = slices};
    if (t->chunk->mode != CHUNK_OFF || t->chunk->npattern)
        choose_slices(w, &x, 0, &s);
    choose_within(w, x, &s.o, NO_MEMORY, &least);
    c->least = least.chosen.need;
    c->most = least.none.need;
    c->point = NEWN(a, AgainReport, c->n);
    for (int i = 0; i < c->n; i++) {
        c->point[i].a = a;
        int64_t memory = c->least + (int64_t)((double)(c->most - c->least) * i / MAX(c->n - 1, 1));
        choose_within(w, x, &s.o, MAX(memory, NO_MEMORY), &c->point[i]);
        if (tell)
            tell(arg, i + 1, c->n);
    }
    arena_reset(known.of.a);
}
