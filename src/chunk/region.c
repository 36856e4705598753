/* region: from a value to what loop_make() gets: the nodes inside, the results that the graph
 * around reads, the values in whose place bodies read ones, and where the loops stand. */
#include "grow.h"

#include <string.h>

/* ---- what loop_make() gets ---- */

/* Says that the graph around needs v, which is made inside. */
static void need_outside(const Growth *x, LoopPart *p, const LoopPaths *w, const Value *v)
{
    if (x->cut.value[v->id].kind == CUT_WHOLE) {
        p->outside[v->def->id] = true;
    } else {
        p->yielded[v->id] = true;
        p->scale[v->id] = w->scale[v->id];
    }
}

/* Finds where the operands of n, a node inside, come from that no node inside makes in that cut. */
static void need_operands(const Growth *x, LoopPart *p, const LoopPaths *w, const Node *n)
{
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    growth_cuts(x, n, in, out);
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i];
        if (v->def && p->inside[v->def->id]) {
            if (!cut_equal(in[i], x->cut.value[v->id]))
                p->outside[v->def->id] = true;
        } else if (w->behind[v->id]) {
            p->one[v->id] = v;
        }
    }
}

/* Whether a reader outside of the loop has, or will have, a clone of what it reads. */
static bool reads_clone(const Closed *second, const bool *cloned, const Node *n, const Value *v)
{
    return second && cloned[v->def->id] && (second->inside[n->id] || cloned[n->id]);
}

/* Whether n, which is inside, is read around the loop, by the graph's outputs or by a node that is
 * not of the loop or is outside of it too. */
static void find_readers(const Growth *x, LoopPart *p, const LoopPaths *w, const Closed *second,
                         const bool *cloned, const Node *n)
{
    for (int k = 0; k < n->nout; k++) {
        const Value *v = n->out[k];
        bool read = x->index->output[v->id];
        for (Node **m = index_users(x->index, v); m && *m && !read; m++)
            read = p->outside[(*m)->id] && !reads_clone(second, cloned, *m, v);
        if (read)
            need_outside(x, p, w, v);
    }
}

static void find_outside(const Growth *x, LoopPart *p, int l, const Closed *c, const Closed *second,
                         const bool *cloned)
{
    p->outside = index_outside(x->index, l);
    for (int i = 0; i < c->nnode; i++)
        index_lower(x->index, l, c->node[i]);
    for (int i = c->nnode; i-- > 0;) {
        find_readers(x, p, &c->paths, second, cloned, c->node[i]);
        need_operands(x, p, &c->paths, c->node[i]);
    }
}

/* The loop stands where its last node stood. */
void chunk_place(const Graph *g, Arena *tmp, LoopPart *p)
{
    bool *after = SPARSE(tmp, bool, g->nnode);
    const Node *first = p->node[0], *last = first;
    for (Node *const *n = p->node; *n; n++)
        last = *n;
    p->before = last->next;
    for (const Node *n = first; n != p->before; n = n->next) {
        for (int i = 0; i < node_nsource(n); i++) {
            const Node *m = node_source(n, i);
            bool made = m && p->inside[m->id] && !p->outside[m->id];
            after[n->id] |= made || (m && after[m->id]);
        }
        p->after[n->id] = p->outside[n->id] && after[n->id];
    }
}

/* second: the loop that has clones of this one's nodes; NULL: none has. */
static LoopPart fill_part(const Growth *x, int l, const Closed *c, const Closed *second,
                          const bool *cloned, const ChunkRegion *r, bool narrow)
{
    LoopPart p = {.slices = slices_of(x->units, MAX(r->slices, 1)),
                  .cut = x->cut,
                  .inside = c->inside,
                  .node = c->node,
                  .user = x->index->user,
                  .output = x->index->output,
                  .more = x->index->more,
                  .after = SPARSE(x->tmp, bool, x->mostnode),
                  .yielded = SPARSE(x->tmp, bool, x->mostvalue),
                  .one = SPARSE(x->tmp, Value *, x->mostvalue),
                  .scale = SPARSE(x->tmp, Value *, x->mostvalue),
                  .sums = SUM_PRODUCT,
                  .narrow = narrow,
                  .what = "cannot be cut into slices"};
    find_outside(x, &p, l, c, second, cloned);
    return p;
}

/* ---- a region ---- */

int64_t chunk_units(const Value *seed, const ChunkRegion *r)
{
    const Type *t = &seed->type;
    int64_t unit = r->cut.outer * r->inner; /* 0: of an axis of size 0 */
    bool has = unit && r->cut.axis < t->rank && t->dim[r->cut.axis] % unit == 0;
    return has ? t->dim[r->cut.axis] / unit : 0;
}

bool chunk_alike(const ChunkRegion *x, const ChunkRegion *y)
{
    return cut_equal(x->cut, y->cut) && x->inner == y->inner && x->all == y->all &&
           x->large == y->large && x->cheap == y->cheap;
}

bool chunk_costly(const Value *v)
{
    const Node *n = v->def;
    return n && n->phase == FORWARD &&
           (n->op->class == CLASS_PRODUCT || n->op->class == CLASS_ATTENTION ||
            n->op->class == CLASS_CONVOLUTION);
}

static void fill_parts(const Growth *x, Grown *y, const Closed *loop, const bool *cloned,
                       const ChunkRegion *r, const PassOptions *o)
{
    bool narrow = chunk_narrow(x->g->ctx, o->chunk_accumulate);
    for (int l = 0; l < y->count; l++) {
        y->part[l] =
            fill_part(x, l, &loop[l], l + 1 < y->count ? &loop[1] : NULL, cloned, r, narrow);
        y->inside[l] = loop[l].node;
    }
}

/* Whether the loop of these nodes reads a slice of anything. */
static bool reads_slices(const Growth *x, const LoopPart *p, Node *const *inside)
{
    for (; *inside; inside++) {
        const Node *n = *inside;
        Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
        growth_cuts(x, n, in, out);
        for (int i = 0; i < n->nin; i++)
            if (in[i].kind == CUT_SLICE && !(n->in[i]->def && p->inside[n->in[i]->def->id]))
                return true;
    }
    return false;
}

static bool yields(const LoopPart *p, Node *const *inside)
{
    for (; *inside; inside++)
        for (int k = 0; k < (*inside)->nout; k++)
            if (p->yielded[(*inside)->out[k]->id])
                return true;
    return false;
}

/* Counts nodes, and the bytes that are sliced: values inside that are no views and not yielded. */
static void count_bytes(const Growth *x, Grown *y)
{
    for (int l = 0; l < y->count; l++)
        for (Node **n = y->inside[l]; *n; n++)
            for (int k = 0; k < (*n)->nout; k++) {
                const Value *v = (*n)->out[k];
                bool whole = x->cut.value[v->id].kind != CUT_SLICE || y->part[l].yielded[v->id];
                y->nbytes += whole || node_aliases(*n) ? 0 : type_nbytes(&v->type);
                y->nnode += k == 0;
            }
}

Grown chunk_grow(ChunkIndex *index, Arena *tmp, Value *seed, const ChunkRegion *r,
                 const PassOptions *o, bool clone)
{
    Growth x = growth_start(index, tmp, seed, r);
    Closed loop[2];
    Grown y = {0};
    if (index->output[seed->id])
        return (Grown){.why = "the graph returns it whole"};
    if (!growth_grow(&x) || !(y.count = growth_close(&x, loop)))
        return (Grown){.why = x.why ? x.why : "nothing computes it"};
    bool *cloned = SPARSE(tmp, bool, x.mostnode);
    int clones = y.count == 2 ? growth_find_clones(&x, loop, cloned) : 0;
    if (clones < 0)
        return (Grown){.why = x.why};
    fill_parts(&x, &y, loop, cloned, r, o);
    for (int l = 0; l < y.count; l++)
        if (!yields(&y.part[l], y.inside[l]))
            return (Grown){.why = "nothing outside needs what it makes"};
    for (int l = 0; l < y.count; l++)
        if (!reads_slices(&x, &y.part[l], y.inside[l]))
            return (Grown){.why = "it is made of constants alone"};
    if (clones && clone) {
        growth_clone(&x, loop, cloned);
        fill_parts(&x, &y, loop, cloned, r, o);
    }
    count_bytes(&x, &y);
    y.nnode += clone ? 0 : clones;
    return y;
}
