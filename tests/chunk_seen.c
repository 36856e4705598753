/* What the pass chunk has made of a graph: by the graph before and after it alone. */
#include "chunk_seen.h"

#include "graphs.h"

#include <string.h>

int chunk_seen_loops(const Graph *g)
{
    return graphs_count(g, "loop");
}

/* Marks the types of a value in g and its bodies in a list. */
static void add_types(const Graph *g, const char *value, Arena *a, Type **type, int *count,
                      int *cap)
{
    const Value *v = map_find(&g->names, value);
    if (v && v->def)
        PUSH(a, *type, *count, *cap, v->type);
    for (const Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            add_types(n->region->body[b], value, a, type, count, cap);
}

bool chunk_seen_whole(const Graph *g, const Graph *before, const char *value)
{
    Type *was = NULL, *now = NULL;
    int nwas = 0, nnow = 0, cap[2] = {0, 0};
    bool whole = false;
    add_types(before, value, g->a, &was, &nwas, &cap[0]);
    add_types(g, value, g->a, &now, &nnow, &cap[1]);
    CHECK(nwas > 0);
    for (int i = 0; i < nwas; i++)
        for (int k = 0; k < nnow; k++)
            whole |= type_equal(&was[i], &now[k]);
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
