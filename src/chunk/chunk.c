/* chunk: runs regions of the graph in slices, by loops (chunk.h describes them).
 *
 * It makes the regions that were chosen (PassOptions.chunk_region), and those that a PATTERN=N of
 * the option names: for each value the first region that there is, in the order of candidates. A
 * region is made in every graph, body or not, that has its seed, but not inside of another region.
 *
 * Numerics: values on the border have the bits that slices give. Sums over slices are made in f32
 * (f64 for f64), or in their own dtype, slice by slice; a scale that is known only after the loop
 * multiplies the sum. */
#include "chunk.h"

#include <stdlib.h>
#include <string.h>

/* A region to be made, and the seeds that it has in the graph and in bodies, before any is made. */
typedef struct ChunkOrder {
    ChunkRegion region;
    ChunkCandidate *of;
    Graph **in;
    Value **seed;
    int nseed, capin, capseed;
} ChunkOrder;

static void find_places(Graph *g, Arena *tmp, ChunkOrder *x)
{
    Value *seed = map_find(&g->names, x->region.value);
    if (seed && seed->def && chunk_units(seed, &x->region) > 1) {
        int n = x->nseed;
        PUSH(tmp, x->in, n, x->capin, g);
        PUSH(tmp, x->seed, x->nseed, x->capseed, seed);
        return;
    }
    EACH_NODE(n, g)
        EACH_LOOP_BODY(b, n)
            find_places(n->region->body[b], tmp, x);
}

/* How much of two scopes is the same, in whole parts: 8 of "layers.3" and "layers.3.mlp". */
static size_t common_length(const char *x, size_t len, const char *y)
{
    size_t parts = 0, at = 0;
    for (; at < len && y[at] == x[at]; at++)
        parts = x[at] == '.' ? at : parts;
    bool ends = (at == len || x[at] == '.') && (!y[at] || y[at] == '.');
    return ends ? at : parts;
}

/* The scope that the nodes have in common: "layers.3.mlp". */
static const char *common_scope(Node *const *inside, Arena *a)
{
    const char *scope = (*inside)->scope;
    size_t len = strlen(scope);
    for (; *inside; inside++)
        len = common_length(scope, len, (*inside)->scope);
    return arena_strndup(a, scope, len);
}

/* A loop that is made moves nodes after it, and changes readers: lists the nodes inside of another
 * in their order, and their readers as they are now. */
static void list_again(ChunkIndex *index, Arena *tmp, const LoopPart *p)
{
    int count = 0;
    while (p->node[count])
        count++;
    index_sort(index, tmp, p->node, count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < p->node[i]->nout; k++)
            index_users(index, p->node[i]->out[k]);
}

/* Makes the region around one seed, if that is still there; returns how many loops. trial is for
 * this alone. */
static int make_at(ChunkIndex *index, Arena *trial, Value *seed, const ChunkOrder *x,
                   const PassOptions *o)
{
    Graph *g = index->g;
    if (map_find(&g->names, x->region.value) != seed) {
        x->of->made.reason = "it is in the loop of another region";
        return 0;
    }
    Grown y = chunk_grow(index, trial, seed, &x->region, o, true);
    if (y.why)
        x->of->why = arena_strdup(g->a, y.why);
    for (int l = 0; l < y.count; l++) {
        if (l)
            list_again(index, trial, &y.part[l]);
        chunk_place(g, trial, &y.part[l]);
        const char *scope = common_scope(y.inside[l], g->a);
        index_loop(index, trial, &y.part[l])->scope = scope;
        x->of->made.slices = y.part[l].slices.n + (y.part[l].slices.rest > 0);
    }
    return y.count;
}

/* ChunkIndexes of the graph and of bodies, made when the first region of each is. */
typedef struct ChunkIndexes {
    Arena *a;
    ChunkIndex **index;
    int count, cap;
} ChunkIndexes;

static ChunkIndex *index_of(ChunkIndexes *x, Graph *g)
{
    for (int i = 0; i < x->count; i++)
        if (x->index[i]->g == g)
            return x->index[i];
    PUSH(x->a, x->index, x->count, x->cap, index_new(g, x->a));
    return x->index[x->count - 1];
}

static int make_loops(ChunkIndexes *indexes, Arena *trial, const ChunkOrder *x,
                      const PassOptions *o)
{
    int count = 0;
    x->of->region.slices = x->region.slices;
    for (int i = 0; i < x->nseed && x->region.slices > 1; i++) {
        count += make_at(index_of(indexes, x->in[i]), trial, x->seed[i], x, o);
        arena_reset(trial);
    }
    return count;
}

static bool same_region(const ChunkRegion *x, const ChunkRegion *y)
{
    return !strcmp(x->value, y->value) && chunk_alike(x, y);
}

/* The candidates around one value, in their order. */
typedef struct ChunkAround {
    int *candidate; /* by their numbers */
    int count, cap;
    int64_t size; /* the largest of those that patterns may mean */
} ChunkAround;

static void add_around(Map *around, const ChunkReport *r, int i)
{
    const ChunkCandidate *c = &r->candidate[i];
    ChunkAround *x = map_find(around, c->region.value);
    if (!x) {
        x = NEW(around->a, ChunkAround);
        map_put(around, c->region.value, x);
    }
    PUSH(around->a, x->candidate, x->count, x->cap, i);
    x->size = chunk_nameable(c) ? MAX(x->size, c->size) : x->size;
}

/* By names of values. */
static Map find_around(Arena *tmp, const ChunkReport *r)
{
    Map around = {.a = tmp};
    for (int i = 0; i < r->ncandidate; i++)
        add_around(&around, r, i);
    return around;
}

/* The candidate that a region is of; one of its own if the list has none. */
static ChunkCandidate *candidate_of(ChunkReport *r, Map *around, const ChunkRegion *region)
{
    const ChunkAround *x = map_find(around, region->value);
    for (int i = 0; x && i < x->count; i++)
        if (same_region(&r->candidate[x->candidate[i]].region, region))
            return &r->candidate[x->candidate[i]];
    ChunkCandidate c = {.region = *region, .scope = "", .op = ""};
    PUSH(r->a, r->candidate, r->ncandidate, r->cap, c);
    add_around(around, r, r->ncandidate - 1);
    return &r->candidate[r->ncandidate - 1];
}

static ChunkOrder order_of(Graph *g, Arena *tmp, const ChunkRegion *region, ChunkCandidate *of)
{
    ChunkOrder x = {.region = *region, .of = of};
    find_places(g, tmp, &x);
    return x;
}

/* A candidate as patterns name it: by how much, and what the last of them asks. */
typedef struct Named {
    ChunkCandidate *c;
    double share;
    int64_t slices;
} Named;

/* Whether another region around the same value slices more. */
static bool is_lesser(const Map *around, const ChunkCandidate *c)
{
    const ChunkAround *x = map_find(around, c->region.value);
    return x->size > c->size;
}

static bool find_named(const ChunkAsked *asked, const Map *around, ChunkCandidate *c, bool *found,
                       Named *x)
{
    *x = (Named){.c = c};
    for (int i = 0; i < asked->npattern; i++) {
        double share = chunk_named(c, asked->pattern[i].pattern);
        if (share < CHUNK_NAMED)
            continue;
        found[i] |= !c->region.cheap || asked->pattern[i].slices == 1;
        x->share = share;
        x->slices = asked->pattern[i].slices;
    }
    return x->slices && chunk_nameable(c) && !is_lesser(around, c);
}

/* The candidate that patterns name most comes first; among equals the one that slices most. */
static int by_share(const void *a, const void *b)
{
    const Named *x = a, *y = b;
    return x->share != y->share       ? (x->share < y->share) - (x->share > y->share)
           : x->c->size != y->c->size ? (x->c->size < y->c->size) - (x->c->size > y->c->size)
                                      : (x->c > y->c) - (x->c < y->c);
}

/* Orders for the candidates that patterns name. If several slice the same values, only the first is
 * made: its values are gone then. */
static int order_named(Graph *g, Arena *tmp, const ChunkAsked *asked, ChunkReport *r,
                       ChunkOrder *list)
{
    bool *found = NEWN(tmp, bool, asked->npattern);
    Named *named = NEWN(tmp, Named, r->ncandidate);
    Map around = find_around(tmp, r);
    int count = 0;
    for (int i = 0; i < r->ncandidate; i++)
        count += find_named(asked, &around, &r->candidate[i], found, &named[count]);
    for (int i = 0; i < asked->npattern; i++)
        if (!found[i])
            fail(g->ctx, TN_USAGE,
                 "chunk \"%s\": names none of the values that could be cut; plan --explain lists "
                 "them",
                 asked->pattern[i].text);
    if (count)
        qsort(named, (size_t)count, sizeof *named, by_share);
    for (int i = 0; i < count; i++) {
        ChunkRegion region = named[i].c->region;
        region.slices = named[i].slices;
        list[i] = order_of(g, tmp, &region, named[i].c);
    }
    return count;
}

/* Orders for what the driver chose. */
static int order_chosen(Graph *g, Arena *tmp, const PassOptions *o, ChunkReport *r,
                        ChunkOrder *list)
{
    Map around = find_around(tmp, r);
    for (int i = 0; i < o->nchunk_region; i++)
        candidate_of(r, &around,
                     &o->chunk_region[i]); /* the list is complete before any is pointed to */
    for (int i = 0; i < o->nchunk_region; i++)
        list[i] =
            order_of(g, tmp, &o->chunk_region[i], candidate_of(r, &around, &o->chunk_region[i]));
    return o->nchunk_region;
}

/* Whether regions are asked for, by the option or by the driver. */
static bool any_asked(const ChunkAsked *asked, const PassOptions *o)
{
    bool any = asked->mode != CHUNK_OFF || asked->npattern;
    for (int i = 0; i < o->nchunk_region; i++)
        any |= o->chunk_region[i].slices > 1;
    return any;
}

/* A copy of g in a, as g would be if regions were asked for. */
static Graph *with_losses(Arena *a, const Graph *g, Arena *tmp)
{
    Graph *h = graph_clone(a, g);
    loss_counts(h, tmp);
    return h;
}

int pass_chunk(Graph *g, Arena *tmp, const PassOptions *o)
{
    ChunkAsked asked = chunk_asked(tmp, &o->chunk);
    ChunkReport own = {.a = tmp}, *r = o->chunk_report ? o->chunk_report : &own;
    bool any = any_asked(&asked, o);
    int changes = any ? loss_counts(g, tmp) : 0;
    if ((o->chunk_report || asked.npattern) && !r->ncandidate) /* the driver may have found them */
        chunk_find(any ? g : with_losses(r->a, g, tmp), tmp, o, r);
    ChunkOrder *list = NEWN(tmp, ChunkOrder, o->nchunk_region + r->ncandidate);
    Arena *trial = arena_tmp(tmp);
    ChunkIndexes indexes = {.a = tmp};
    int loops = 0, count = order_chosen(g, tmp, o, r, list);
    count += asked.npattern ? order_named(g, tmp, &asked, r, list + count) : 0;
    for (int i = 0; i < count; i++) {
        int made = make_loops(&indexes, trial, &list[i], o);
        if (!made && list[i].of->why && o->warn)
            o->warn(o->warn_arg, arena_printf(tmp, "chunk: %%%s is not cut: %s",
                                              list[i].region.value, list[i].of->why));
        loops += made;
    }
    return changes + loops;
}
