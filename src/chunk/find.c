/* find: lists the values that hold the peak and the regions that would slice them.
 *
 * flow says which values are alive at the peak of the graph that the pass is given, or of a loop's
 * body if the peak is there. Larger values come first; a value that the region of a larger one
 * slices already gets none of its own. Every axis is tried that the factors of the definer know;
 * if an axis has sequences and tokens in its rows, the sequences alone. For the largest value a
 * region of all that the cut reaches is tried too: a loop over microbatches. Values of the forward
 * that no product makes, such as activations, are tried again with a region that makes no product
 * twice (cheap). Equal values of other blocks (op, type, scope but for the block's number) are
 * members of the same group. Values smaller than a fraction of the peak are left out, and so are
 * cheap regions beyond a number of groups. */
#include "chunk.h"

#include "../flow/flow.h"
#include "../pass/block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SEEDS = 12,
    MOST_CHEAP = 4,    /* groups of cheap regions */
    LEAST_SHARE = 200, /* a seed has at least this share of the peak: 1/200 */
};

/* A value of the graph that may be a seed. */
typedef struct Seed {
    Value *v;
    const char *key;
    int64_t alive;      /* of the first of a group: bytes at the peak of all */
    bool covered;       /* likewise: the region of another slices one of them */
    struct Seed *first; /* of its group, in the graph's order */
    struct Seed *next;  /* of its group */
} Seed;

typedef struct Find {
    Graph *g;
    ChunkIndex *index;
    Arena *tmp, *trial;
    const PassOptions *o;
    ChunkReport *r;
    int64_t batch;          /* rows of the batch inputs, 0: none */
    int64_t *alive;         /* by value id: bytes at the peak */
    bool *sliced;           /* by value id: the region of a candidate slices it */
    Seed **seed, **seed_of; /* the second by value id */
    Map member;             /* seeds by their keys and the numbers of their blocks */
    int nseed, capseed, ngroup;
} Find;

/* ---- groups ---- */

/* Equal for values that are the same in each block. count: of place_key(). */
static const char *key_of(Find *x, Map *count, const Value *v)
{
    const Node *n = v->def;
    return place_key(x->tmp, count, n->scope, 1,
                     arena_printf(x->tmp, "%s %s %d %d", n->op->name, type_text(x->tmp, &v->type),
                                  v->index, (int)n->phase));
}

static const char *member_name(const Find *x, const Seed *s, Block b)
{
    return arena_printf(x->tmp, "%s %lld", s->key, (long long)b.number);
}

static void add_seed(Find *x, Map *group, Map *count, Value *v)
{
    Seed *s = NEW(x->tmp, Seed);
    *s = (Seed){.v = v, .key = key_of(x, count, v)};
    Seed *first = map_find(group, s->key);
    if (first) {
        s->next = first->next;
        first->next = s;
    } else {
        map_put(group, s->key, s);
        first = s;
    }
    s->first = first;
    first->alive += x->alive[v->id];
    x->seed_of[v->id] = s;
    map_put(&x->member, member_name(x, s, block_of(v->def->scope)), s);
    PUSH(x->tmp, x->seed, x->nseed, x->capseed, s);
}

static int by_alive(const void *a, const void *b)
{
    const Seed *x = *(Seed *const *)a, *y = *(Seed *const *)b;
    int64_t bytes[] = {type_nbytes(&x->v->type), type_nbytes(&y->v->type)};
    return x->alive != y->alive   ? (x->alive < y->alive) - (x->alive > y->alive)
           : bytes[0] != bytes[1] ? (bytes[0] < bytes[1]) - (bytes[0] > bytes[1])
                                  : (x->v->id > y->v->id) - (x->v->id < y->v->id);
}

/* Whether n's result is a gradient of a parameter if its operands are terms of one. */
static bool adds_gradients(const Node *n)
{
    return node_is(n, OP_add) || n->op->copy || node_aliases(n);
}

/* By value id: results, gradients of parameters and their terms, which stay whole for the
 * optimizer; a result of a loop's body may be one. */
static bool *find_gradients(const Graph *g, Arena *tmp)
{
    bool *gradient = NEWN(tmp, bool, g->nvalue), *other = NEWN(tmp, bool, g->nvalue);
    for (int i = 0; i < g->nout; i++)
        gradient[g->out[i].v->id] = g->parent || g->out[i].role == ROLE_GRAD;
    for (const Node *n = g->last; n; n = n->prev) {
        bool term = adds_gradients(n) && gradient[n->out[0]->id] && !other[n->out[0]->id];
        for (int i = 0; i < n->nin; i++) {
            gradient[n->in[i]->id] |= term || n->phase >= OPTIMIZER;
            other[n->in[i]->id] |= !term && n->phase < OPTIMIZER;
        }
    }
    for (int v = 0; v < g->nvalue; v++)
        gradient[v] &= !other[v];
    for (int i = 0; i < g->nout; i++)
        gradient[g->out[i].v->id] = true;
    return gradient;
}

/* By value id: whether it is made of parameters and constants alone, as a cast of a weight. */
static bool *find_weights(const Graph *g, Arena *tmp)
{
    bool *weight = NEWN(tmp, bool, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        weight[g->in[i].v->id] = g->in[i].role == ROLE_PARAM;
    for (const Node *n = g->first; n; n = n->next) {
        bool alone = n->nin && !n->op->region && n->op->class != CLASS_RANDOM;
        for (int i = 0; i < n->nin; i++)
            alone &= weight[n->in[i]->id] || (n->in[i]->def && !n->in[i]->def->nin);
        for (int k = 0; k < n->nout; k++)
            weight[n->out[k]->id] = alone;
    }
    return weight;
}

static void find_seeds(Find *x)
{
    const bool *gradient = find_gradients(x->g, x->tmp), *weight = find_weights(x->g, x->tmp);
    Map group = {.a = x->tmp}, count = {.a = x->tmp};
    x->seed_of = NEWN(x->tmp, Seed *, x->g->nvalue);
    x->member = (Map){.a = x->tmp};
    for (const Node *n = x->g->first; n; n = n->next)
        for (int k = 0; k < n->nout && n->phase < OPTIMIZER && !node_aliases(n); k++)
            if (!n->op->region && n->op->class != CLASS_COLLECTIVE && !node_transfers(n) &&
                !gradient[n->out[k]->id] && !weight[n->out[k]->id])
                add_seed(x, &group, &count, n->out[k]);
    if (x->nseed)
        qsort(x->seed, (size_t)x->nseed, sizeof *x->seed, by_alive);
}

/* ---- a candidate ---- */

/* index: the number of a place by its name, for one candidate. */
static void add_place(ChunkReport *r, Map *index, ChunkCandidate *c, ChunkPlace place)
{
    int *at = map_find(index, place.name);
    if (at) {
        c->place[*at].nbytes += place.nbytes;
        return;
    }
    at = NEW(index->a, int);
    *at = c->nplace;
    map_put(index, place.name, at);
    PUSH(r->a, c->place, c->nplace, c->capplace, place);
}

/* Fills the values that the region slices, their places, and their bytes at the peak. */
static void fill_values(Find *x, const Grown *y, ChunkCandidate *c)
{
    Arena *a = x->r->a;
    Map index = {.a = x->trial};
    int cap = 0;
    for (int l = 0; l < y->count; l++)
        for (Node **at = y->inside[l]; *at; at++)
            for (int k = 0; k < (*at)->nout; k++) {
                const Node *n = *at;
                int id = n->out[k]->id;
                if (y->part[l].cut.value[id].kind != CUT_SLICE || y->part[l].yielded[id])
                    continue;
                PUSH(a, c->values, c->nvalue, cap, arena_strdup(a, n->out[k]->name));
                x->sliced[id] = true;
                if (!c->region.all)
                    add_place(x->r, &index, c,
                              (ChunkPlace){arena_printf(a, "%s::%s", n->scope, n->op->name),
                                           node_aliases(n) ? 0 : type_nbytes(&n->out[k]->type)});
                c->nbytes += x->alive[id];
            }
}

static void fill_scopes(Find *x, const Grown *y, ChunkCandidate *c)
{
    Map seen = {.a = x->trial};
    Buf b = {.a = x->r->a};
    for (int l = 0; l < y->count; l++)
        for (Node **n = y->inside[l]; *n; n++)
            if (*(*n)->scope && !map_find(&seen, (*n)->scope)) {
                map_put(&seen, (*n)->scope, *n);
                buf_printf(&b, "%s%s", b.len ? ", " : "", (*n)->scope);
            }
    c->scopes = b.len ? b.text : "";
}

/* Whether a result is a sum over slices, or is multiplied only after the loop. */
static bool changes_bits(const LoopPart *p, const Value *v)
{
    return p->yielded[v->id] && (p->cut.value[v->id].kind == CUT_SUM || p->scale[v->id]);
}

/* Whether all results have the bits that the whole has; products may be other ones. */
static bool keeps_bits(const Grown *y)
{
    for (int l = 0; l < y->count; l++)
        for (Node **n = y->inside[l]; *n; n++)
            for (int k = 0; k < (*n)->nout; k++)
                if ((*n)->op->class == CLASS_PRODUCT || (*n)->op->class == CLASS_CONVOLUTION ||
                    changes_bits(&y->part[l], (*n)->out[k]))
                    return false;
    return true;
}

static ChunkCandidate *push(Find *x, Value *v, ChunkRegion region)
{
    ChunkReport *r = x->r;
    ChunkCandidate c = {.region = region,
                        .scope = arena_strdup(r->a, v->def->scope),
                        .op = v->def->op->name,
                        .units = chunk_units(v, &region),
                        .group = x->ngroup};
    c.region.value = arena_strdup(r->a, v->name);
    PUSH(r->a, r->candidate, r->ncandidate, r->cap, c);
    return &r->candidate[r->ncandidate - 1];
}

/* The place in the member's block that another has in its own. */
static const char *place_like(Arena *a, const char *place, Block own, Block member)
{
    bool inside =
        own.len && !strncmp(place, own.scope, (size_t)own.len) && strchr(".:", place[own.len]);
    return inside ? arena_printf(a, "%.*s%s", member.len, member.scope, place + own.len) : place;
}

/* Fills the values that another member's region slices: those alike in that member's block. */
static void fill_member(Find *x, const ChunkCandidate *like, ChunkCandidate *c)
{
    int cap = 0;
    for (int i = 0; i < like->nvalue; i++) {
        const Value *v = map_find(&x->g->names, like->values[i]);
        const Seed *own = x->seed_of[v->id];
        const Seed *s = own && block_of(v->def->scope).len
                            ? map_find(&x->member, member_name(x, own, block_of(c->scope)))
                            : NULL;
        if (s)
            PUSH(x->r->a, c->values, c->nvalue, cap, arena_strdup(x->r->a, s->v->name));
    }
}

/* The other members of the group have regions alike: they are tried when they are made. */
static void push_members(Find *x, const Seed *s, int first)
{
    for (const Seed *m = s->next; m; m = m->next) {
        Map index = {.a = x->trial};
        ChunkCandidate *c = push(x, m->v, x->r->candidate[first].region);
        const ChunkCandidate *like = &x->r->candidate[first];
        c->member = true;
        c->group = like->group;
        c->nnode = like->nnode;
        c->size = like->size;
        c->loops = like->loops;
        c->bits = like->bits;
        c->nbytes = x->alive[m->v->id];
        c->scopes = c->scope;
        fill_member(x, like, c);
        for (int i = 0; i < like->nplace; i++)
            add_place(x->r, &index, c,
                      (ChunkPlace){place_like(x->r->a, like->place[i].name, block_of(like->scope),
                                              block_of(c->scope)),
                                   like->place[i].nbytes});
    }
}

/* Marks the groups of which a region slices a member. */
static void cover(Find *x)
{
    for (int i = 0; i < x->nseed; i++)
        if (x->sliced[x->seed[i]->v->id])
            x->seed[i]->first->covered = true;
}

/* Tries a region around s; whether there is one. */
static bool try_region(Find *x, const Seed *s, ChunkRegion region)
{
    int first = x->r->ncandidate;
    ChunkCandidate *c = push(x, s->v, region);
    Grown y = chunk_grow(x->index, x->trial, s->v, &region, x->o, false);
    if (y.why) {
        c->why = arena_strdup(x->r->a, y.why);
    } else {
        c->nnode = y.nnode;
        c->size = y.nbytes;
        c->loops = y.count;
        c->bits = keeps_bits(&y);
        fill_values(x, &y, c);
        fill_scopes(x, &y, c);
        cover(x);
        if (!region.all && !region.cheap)
            push_members(x, s, first);
    }
    arena_reset(x->trial);
    x->ngroup++;
    return !y.why;
}

/* ---- the axes of a seed ---- */

static ChunkRegion region_of(const Type *t, int axis, int64_t outer, int64_t units, bool cheap)
{
    return (ChunkRegion){
        .cut = {CUT_SLICE, axis, outer}, .inner = t->dim[axis] / (outer * units), .cheap = cheap};
}

/* With values half as large as the seed; if that reaches too far, with those as large alone. */
static bool try_reaches(Find *x, const Seed *s, ChunkRegion region)
{
    int at = x->r->ncandidate, group = x->ngroup;
    if (try_region(x, s, region))
        return true;
    region.large = true;
    if (!try_region(x, s, region)) {
        x->r->ncandidate = at + 1;
        x->ngroup = group + 1;
        return false;
    }
    return true;
}

static bool same_values(const ChunkCandidate *x, const ChunkCandidate *y)
{
    bool same = cut_equal(x->region.cut, y->region.cut) && x->nvalue == y->nvalue;
    for (int i = 0; same && i < x->nvalue; i++)
        same = !strcmp(x->values[i], y->values[i]);
    return same;
}

/* Whether there is such a region around the next of s's group too, if there is a next. */
static bool next_is_alike(Find *x, const Seed *s, const ChunkRegion *region)
{
    bool alike = !s->next || !chunk_grow(x->index, x->trial, s->next->v, region, x->o, false).why;
    arena_reset(x->trial);
    return alike;
}

/* A region that makes no product twice. Not listed where it makes nothing twice, where another is
 * the same, and where others of the group have none: around a norm it may reach from layer to
 * layer. */
static bool try_cheap(Find *x, const Seed *s, ChunkRegion region)
{
    int at = x->r->ncandidate, group = x->ngroup;
    bool found =
        try_region(x, s, region) && x->r->candidate[at].loops > 1 && next_is_alike(x, s, &region);
    for (int i = 0; i < at && found; i++)
        found = !same_values(&x->r->candidate[i], &x->r->candidate[at]);
    if (found) { /* of a region that is not listed, members would be many, each as large */
        push_members(x, s, at);
        arena_reset(x->trial);
    } else {
        x->r->ncandidate = at;
        x->ngroup = group;
    }
    return found;
}

static bool try_cut(Find *x, const Seed *s, ChunkRegion region)
{
    return region.cheap ? try_cheap(x, s, region) : try_reaches(x, s, region);
}

static void try_axis(Find *x, const Seed *s, int axis, const Factors *f, bool cheap)
{
    const Type *t = &s->v->type;
    const Axes *axes = &f->out[s->v->index];
    int64_t outer = 1;
    bool found = false;
    for (int j = 0; j < axes->n[axis]; j++) {
        int64_t units = f->factor[axes->f[axis][j]].size;
        if (units > 1)
            found |= try_cut(x, s, region_of(t, axis, outer, units, cheap));
        outer *= units;
    }
    if (!found && axis == 0 && x->batch > 1 && t->dim[0] > x->batch && t->dim[0] % x->batch == 0)
        try_cut(x, s, region_of(t, 0, 1, x->batch, cheap));
}

static void try_seed(Find *x, const Seed *s, bool cheap)
{
    Arena *tmp = x->tmp;
    const Factors *f = node_factors(tmp, s->v->def);
    for (int d = 0; d < s->v->type.rank; d++)
        if (s->v->type.dim[d] > 1)
            try_axis(x, s, d, f, cheap);
}

/* The region of all that a cut of the rows reaches. */
static void try_microbatches(Find *x)
{
    for (int i = 0; i < x->nseed && x->batch > 1; i++) {
        const Seed *s = x->seed[i];
        const Type *t = &s->v->type;
        if (s->first == s && t->rank && t->dim[0] && t->dim[0] % x->batch == 0) {
            ChunkRegion region = region_of(t, 0, 1, x->batch, false);
            region.all = true;
            try_region(x, s, region);
            return;
        }
    }
}

/* ---- values that no product makes ---- */

static bool slices_value(const ChunkCandidate *c, const char *name)
{
    for (int i = 0; i < c->nvalue; i++)
        if (!strcmp(c->values[i], name))
            return true;
    return false;
}

/* Whether s is of the forward, made by no product, and no cheap region slices it yet. */
static bool may_be_cheap(const Find *x, const Seed *s)
{
    bool may = s->v->def->phase == FORWARD && !chunk_costly(s->v);
    for (int i = 0; i < x->r->ncandidate && may; i++) {
        const ChunkCandidate *c = &x->r->candidate[i];
        may = !c->region.cheap || !slices_value(c, s->v->name);
    }
    return may;
}

/* Tries cheap regions around what is alive at the peak with at least so many bytes, with all of its
 * group, until some are found. */
static void try_activations(Find *x, int64_t least)
{
    int first = x->ngroup;
    for (int i = 0, tried = 0; i < x->nseed && tried < MOST_SEEDS; i++) {
        const Seed *s = x->seed[i];
        if (s->first != s || s->alive < least || !may_be_cheap(x, s))
            continue;
        try_seed(x, s, true);
        tried++;
        if (x->ngroup - first >= MOST_CHEAP)
            return;
    }
}

/* ---- what patterns name ---- */

static bool is_named(const Value *v, const char *pattern)
{
    return chunk_named(&(ChunkCandidate){.scope = v->def->scope, .op = v->def->op->name}, pattern) >
           0;
}

/* Tries the largest values that a pattern names, however small, if it names no candidate yet. */
static void try_named(Find *x, const char *pattern)
{
    int tried = 0;
    for (int i = 0; i < x->r->ncandidate; i++)
        if (chunk_nameable(&x->r->candidate[i]) &&
            chunk_named(&x->r->candidate[i], pattern) >= CHUNK_NAMED)
            return;
    for (int i = 0; i < x->nseed && tried < MOST_SEEDS; i++) {
        const Seed *s = x->seed[i];
        if (s->first != s || !is_named(s->v, pattern))
            continue;
        int from = x->r->ncandidate;
        try_seed(x, s, false);
        tried++;
        for (int j = from; j < x->r->ncandidate; j++)
            if (!x->r->candidate[j].why)
                return;
    }
}

/* ---- a graph, and the body in which its peak is ---- */

static int64_t batch_rows(const Graph *g)
{
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_BATCH && g->in[i].v->type.rank)
            return g->in[i].v->type.dim[0];
    return 0;
}

static void find_in(Flow *f, Arena *tmp, const PassOptions *o, int64_t peak, ChunkReport *r)
{
    int item = flow_peak_item(f);
    Find x = {.g = flow_graph(f),
              .index = index_new(flow_graph(f), tmp),
              .tmp = tmp,
              .trial = arena_tmp(tmp),
              .o = o,
              .r = r,
              .batch = batch_rows(flow_graph(f)),
              .ngroup = r->ncandidate ? r->candidate[r->ncandidate - 1].group + 1 : 0};
    x.alive = NEWN(tmp, int64_t, x.g->nvalue);
    flow_alive(f, item, x.alive);
    x.sliced = NEWN(tmp, bool, x.g->nvalue);
    ChunkAsked asked = chunk_asked(tmp, &o->chunk);
    find_seeds(&x);
    for (int i = 0, tried = 0; i < x.nseed && tried < MOST_SEEDS; i++)
        if (x.seed[i]->first == x.seed[i] && !x.seed[i]->covered &&
            type_nbytes(&x.seed[i]->v->type) >= peak / LEAST_SHARE) {
            try_seed(&x, x.seed[i], false);
            tried++;
        }
    try_activations(&x, peak / LEAST_SHARE);
    try_microbatches(&x);
    for (int i = 0; i < asked.npattern; i++)
        try_named(&x, asked.pattern[i].pattern);
    if (item_body(f, item, MAIN))
        find_in(item_body(f, item, MAIN), tmp, o, peak, r);
}

void chunk_find(Graph *g, Arena *tmp, const PassOptions *o, ChunkReport *r)
{
    Flow *f = pass_flow(g, o, tmp);
    find_in(f, tmp, o, flow_peak(f), r);
}

static bool matches(const char *pattern, const char *place)
{
    return globs_match(&(Globs){&pattern, 1}, place);
}

bool chunk_nameable(const ChunkCandidate *c)
{
    return !c->why && !c->region.all && !c->region.cheap;
}

double chunk_named(const ChunkCandidate *c, const char *pattern)
{
    char text[300], seed[300];
    snprintf(text, sizeof text, "%.290s%s", pattern, strstr(pattern, "::") ? "" : "::*");
    snprintf(seed, sizeof seed, "%.200s::%.90s", c->scope, c->op);
    double named = 0, all = 0;
    for (int i = 0; i < c->nplace; i++) {
        all += (double)c->place[i].nbytes;
        named += matches(text, c->place[i].name) ? (double)c->place[i].nbytes : 0;
    }
    double share = all ? named / all : 0;
    return matches(text, seed) ? MAX(share, CHUNK_NAMED) : share;
}
