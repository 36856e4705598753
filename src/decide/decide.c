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

/* With --chunk auto: the best of three; slices, which change bits, where they are faster. */
static Setting choose_both(const PassWalk *w, const DecideTask *t, const Setting *begin)
{
    Setting none = *begin, slices = *begin, pays = *begin;
    none.o.chunk = (Globs){0};
    again_choose(w, t, &none.o, &none.again);
    choose_slices(w, t, t->memory, &slices);
    again_choose(w, t, &slices.o, &slices.again);
    if (!slices.again.searched)
        return *better(&none, &slices);
    choose_slices(w, t, AS_PAYS, &pays);
    again_choose(w, t, &pays.o, &pays.again);
    return *better(&none, better(&slices, &pays));
}

/* Whether what the backward computes again is to be chosen. */
static bool chooses_again(const DecideTask *t, const PassOptions *o, const char *names)
{
    return t->memory && (!o->recompute || !strcmp(o->recompute, "auto")) &&
           passes_have(names, "policies") && passes_have(names, "remat");
}

void decide(PassWalk *w, const DecideTask *t, PassOptions *o, const Decided *to)
{
    bool slices =
        (t->chunk->mode != CHUNK_OFF || t->chunk->npattern) && passes_have(w->names, "chunk");
    bool again = chooses_again(t, o, w->names);
    const char *stop = passes_have(w->names, "chunk") ? "chunk" : "policies";
    if ((!slices && !again) || !passes_until(w, stop))
        return;
    Arena *keep = arena_tmp(w->g->a);
    arena_keep_blocks(keep);
    Setting s = {.o = *o, .chunk = *to->chunk, .again = *to->again};
    if (slices && again && t->chunk->mode == CHUNK_AUTO) {
        s = choose_both(w, t, &s);
    } else {
        if (slices)
            choose_slices(w, t, t->memory, &s);
        if (again)
            again_choose(w, t, &s.o, &s.again);
    }
    *o = s.o;
    *to->chunk = s.chunk;
    *to->again = s.again;
    again_apply(to->again, w->g, o);
    arena_reset(keep);
}
