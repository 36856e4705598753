/* canonicalize: applies each op's fold until nothing changes: detach, identity views and slices,
 * transpose pairs and what else an op's file names. Folds keep bits. A fold replaces a node by a value
 * that lies before it, so one walk sees the results of earlier folds; walks repeat while anything
 * changed. Each fold removes a node or shortens a chain of views, so they end. */
#include "pass.h"

static int fold_graph(Graph *g, Arena *tmp)
{
    int changes = 0, before = g->nvalue; /* what folds emit is looked at in the next walk */
    Value **now = NEWN(tmp, Value *, before);
    EACH_NODE (n, g) {
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->id < before && now[n->in[i]->id])
                n->in[i] = now[n->in[i]->id];
        if (n->region) {
            changes += fold_graph(n->region->body, tmp);
            changes += n->region->tail ? fold_graph(n->region->tail, tmp) : 0;
        }
        if (!n->op->rules->fold || n->out[0]->id >= before)
            continue;
        Build b = {.g = g, .before = n, .phase = n->phase, .policy = n->policy, .scope = n->scope,
                   .origin = n->origin};
        Value *v = n->op->rules->fold(&b, n);
        if (!v || v == n->out[0])
            continue;
        CHECK(type_equal(&v->type, &n->out[0]->type));
        now[n->out[0]->id] = v;
        changes++;
    }
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v->id < before && now[g->out[i].v->id])
            g->out[i].v = now[g->out[i].v->id];
    return changes;
}

int pass_canonicalize(Graph *g, Arena *tmp, const PassOptions *o)
{
    int total = 0, changes;
    while ((changes = fold_graph(g, tmp)) > 0) {
        total += changes;
        pass_dce(g, tmp, o);
    }
    return total;
}
