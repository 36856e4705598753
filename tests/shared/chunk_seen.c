/* What the pass chunk has made of a graph: by the graph before and after it alone. */
#include "chunk_seen.h"

#include "graphs.h"

#include <string.h>

int chunk_seen_loops(const Graph *g)
{
    return graphs_count(g, "loop");
}

/* The node whose first result is called so; NULL: none. */
static const Node *find_named(const Graph *g, const char *name)
{
    const Value *v = map_find(&g->names, name);
    return v ? v->def : NULL;
}

static bool reads_alike(const Node *n, const Node *m)
{
    bool alike = n->op == m->op && n->phase == m->phase && n->nin == m->nin;
    for (int i = 0; i < n->nin && alike; i++)
        alike = !strcmp(n->in[i]->name, m->in[i]->name);
    return alike;
}

/* Names become free and are taken again, and bodies have their own: only the graph where the value
 * stood counts, and a node of the same operands. */
bool chunk_seen_whole(const Graph *g, const Graph *before, const ChunkRegion *r)
{
    const Value *was = map_find(&before->names, r->value), *now = map_find(&g->names, r->value);
    bool whole = was && was->def && !was->def->op->view && chunk_units(was, r) > 1 && now &&
                 now->def && type_equal(&now->type, &was->type) && reads_alike(now->def, was->def);
    for (const Node *n = was ? NULL : before->first; n && !whole; n = n->next) {
        const Node *m = n->op->region == LOOP ? find_named(g, n->out[0]->name) : NULL;
        for (int b = 0; m && m->op->region == LOOP && b < region_nbody(n->region); b++)
            whole |= chunk_seen_whole(m->region->body[b], n->region->body[b], r);
    }
    return whole;
}

int64_t chunk_seen_runs(const Graph *g, const char *op)
{
    int64_t count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count += n->op == op_find(op);
        EACH_LOOP_BODY(b, n)
            count += region_times(n->region, b) * chunk_seen_runs(n->region->body[b], op);
    }
    return count;
}

int chunk_seen_again(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count += n->origin && n->op->class == CLASS_PRODUCT;
        EACH_LOOP_BODY(b, n)
            count += chunk_seen_again(n->region->body[b]);
    }
    return count;
}

/* Whether g, without bodies, makes or is given the value as large as it was. */
static bool kept(const Graph *g, const Graph *before, const char *name)
{
    const Value *v = map_find(&before->names, name), *now = map_find(&g->names, name);
    return !v || !v->def || (now && type_equal(&now->type, &v->type));
}

ChunkPeak chunk_seen_peak(Arena *a, Graph *before, Graph *g)
{
    const Plan *p = graphs_plan(a, graph_clone(a, before)), *q = graphs_plan(a, graph_clone(a, g));
    ChunkPeak x = {.before = p->space[SPACE_MAIN].peak, .after = q->space[SPACE_MAIN].peak};
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (storage_alive(s, p->space[SPACE_MAIN].peak_step) && !s->persistent &&
            !kept(g, before, s->name))
            x.sliced += s->nbytes;
    }
    return x;
}
