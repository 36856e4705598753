/* chunk: runs regions of the graph in slices, by loops.
 *
 * The regions are those that the driver chose (PassOptions.chunk_region), and for each PATTERN=N of
 * the option those of the values that it names: the first region of each value that there is one
 * of, in the order of candidates. chunk_find.c lists candidates, chunk_grow.c finds a region's
 * nodes, loop_make.c makes the loops. A region is made in every graph, body or not, that has its
 * seed and is in no such body itself.
 *
 * Numerics: values on the border have the bits that slices give; sums over slices are made in f32
 * (f64 for f64), or in their own dtype, slice by slice; a late scale is multiplied last. */
#include "chunk.h"

#include <string.h>

/* Makes a region around a value; how many loops. */
static int make_region(Graph *g, Arena *tmp, Value *seed, const ChunkRegion *r,
                       const PassOptions *o, ChunkCandidate *c)
{
    Grown y = chunk_grow(g, tmp, seed, r, o, true);
    if (y.why) {
        c->why = arena_strdup(g->a, y.why);
        return 0;
    }
    for (int l = 0; l < y.count; l++) {
        chunk_place(g, tmp, &y.part[l]);
        loop_make(g, tmp, &y.part[l]);
        c->taken = y.part[l].slices.n + (y.part[l].slices.rest > 0);
    }
    return y.count;
}

static int make_in(Graph *g, Arena *tmp, const ChunkRegion *r, const PassOptions *o,
                   ChunkCandidate *c)
{
    Value *seed = map_find(&g->names, r->value);
    if (seed && seed->def && chunk_units(seed, r) > 1)
        return r->slices > 1 ? make_region(g, tmp, seed, r, o, c) : 0;
    int count = 0;
    EACH_NODE(n, g)
        EACH_LOOP_BODY(b, n)
            count += make_in(n->region->body[b], tmp, r, o, c);
    return count;
}

static bool same_region(const ChunkRegion *x, const ChunkRegion *y)
{
    return !strcmp(x->value, y->value) && cut_equal(x->cut, y->cut) && x->inner == y->inner &&
           x->all == y->all;
}

/* The candidate that a region is of; one of its own if the list has none. */
static ChunkCandidate *candidate_of(ChunkReport *r, const ChunkRegion *region)
{
    for (int i = 0; i < r->ncandidate; i++)
        if (same_region(&r->candidate[i].region, region))
            return &r->candidate[i];
    ChunkCandidate c = {.region = *region, .scope = "", .op = ""};
    PUSH(r->a, r->candidate, r->ncandidate, r->cap, c);
    return &r->candidate[r->ncandidate - 1];
}

static int make(Graph *g, Arena *tmp, const ChunkRegion *region, const PassOptions *o,
                ChunkReport *r)
{
    ChunkCandidate *c = candidate_of(r, region);
    c->region.slices = region->slices;
    int count = make_in(g, tmp, region, o, c);
    if (!count && o->warn && region->slices > 1)
        o->warn(o->warn_arg, arena_printf(tmp, "chunk: %%%s is not cut: %s", region->value,
                                          c->why ? c->why : "the graph has it no longer whole"));
    return count;
}

/* The slices that the last pattern which names it asks of a candidate; 0: none does. */
static int64_t asked_of(const ChunkAsked *asked, const ChunkCandidate *c, bool *found)
{
    int64_t slices = 0;
    for (int i = 0; i < asked->npattern; i++)
        if (chunk_named(c, asked->pattern[i].pattern)) {
            slices = asked->pattern[i].slices;
            found[i] = true;
        }
    return slices;
}

/* Whether no other candidate in the scope would slice more, of those before it as much. */
static bool best_of_scope(const ChunkReport *r, int count, int at)
{
    const ChunkCandidate *c = &r->candidate[at];
    for (int i = 0; i < count; i++) {
        const ChunkCandidate *d = &r->candidate[i];
        if (!d->why && !d->region.all && !strcmp(c->scope, d->scope) &&
            (d->size > c->size || (d->size == c->size && i < at)))
            return false;
    }
    return !c->why && !c->region.all;
}

static int make_named(Graph *g, Arena *tmp, const ChunkAsked *asked, const PassOptions *o,
                      ChunkReport *r)
{
    bool *found = NEWN(tmp, bool, asked->npattern);
    int count = 0, listed = r->ncandidate;
    for (int i = 0; i < listed; i++) {
        ChunkRegion region = r->candidate[i].region;
        region.slices = asked_of(asked, &r->candidate[i], found);
        if (region.slices > 1 && best_of_scope(r, listed, i))
            count += make(g, tmp, &region, o, r);
    }
    for (int i = 0; i < asked->npattern; i++)
        if (!found[i])
            fail(g->ctx, TN_USAGE,
                 "chunk \"%s\": names none of the values that could be cut; plan --explain lists "
                 "them",
                 asked->pattern[i].text);
    return count;
}

int pass_chunk(Graph *g, Arena *tmp, const PassOptions *o)
{
    ChunkAsked asked = chunk_asked(tmp, &o->chunk);
    ChunkReport own = {.a = tmp}, *r = o->chunk_report ? o->chunk_report : &own;
    int count = 0;
    if (o->chunk_report || asked.npattern)
        chunk_find(g, tmp, o, r);
    for (int i = 0; i < o->nchunk_region; i++)
        count += make(g, tmp, &o->chunk_region[i], o, r);
    if (asked.npattern)
        count += make_named(g, tmp, &asked, o, r);
    return count;
}
