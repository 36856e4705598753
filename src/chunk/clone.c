/* clone: a second loop, mostly of the backward, computes again what it reads of the first's
 * large values: clones of the first's nodes, with their names as origin, join it. Small values, as
 * statistics of rows, are read from what the first loop yields. */
#include "grow.h"

int growth_find_clones(Growth *x, const Closed loop[2], bool *cloned)
{
    int count = 0;
    for (const Node *n = x->g->last; n; n = n->prev) {
        if (!loop[1].inside[n->id] && !cloned[n->id])
            continue;
        if (cloned[n->id] && (n->op->class == CLASS_COLLECTIVE || n->op->region || n->nafter)) {
            growth_refuse(x, n,
                          n->nafter ? "a second loop would have to repeat it in its order"
                                    : "a second loop would have to repeat it");
            return -1;
        }
        count += cloned[n->id];
        for (int i = 0; i < n->nin; i++) {
            const Node *m = n->in[i]->def;
            if (m && loop[0].inside[m->id] && !loop[1].inside[m->id] && is_large(x, n->in[i]))
                cloned[m->id] = true;
        }
    }
    return count;
}

/* Adds a node's copy, with its cuts, to the second loop. */
static void add_clone(Growth *x, Closed *second, const Node *n, Node *m)
{
    CHECK(m->id < x->mostnode && m->out[n->nout - 1]->id < x->mostvalue);
    second->inside[m->id] = true;
    x->cut.node[m->id] = x->cut.node[n->id];
    for (int k = 0; k < n->nout; k++)
        x->cut.value[m->out[k]->id] = x->cut.value[n->out[k]->id];
}

/* By node id of what is cloned: the earliest phase of a reader in the second loop. */
static Phase *find_phases(const Growth *x, const Closed *second, const bool *cloned)
{
    Phase *phase = NEWN(x->tmp, Phase, x->g->nnode);
    for (int i = 0; i < x->g->nnode; i++)
        phase[i] = BACKWARD;
    for (const Node *n = x->g->last; n; n = n->prev) {
        bool inside = second->inside[n->id];
        Phase own = inside ? n->phase : phase[n->id];
        for (int i = 0; i < n->nin && (inside || cloned[n->id]); i++)
            if (n->in[i]->def && cloned[n->in[i]->def->id])
                phase[n->in[i]->def->id] = MIN(phase[n->in[i]->def->id], own);
    }
    return phase;
}

void growth_clone(Growth *x, Closed *second, const bool *cloned)
{
    Graph *g = x->g;
    const Phase *phase = find_phases(x, second, cloned);
    Node *before = g->first;
    while (!second->inside[before->id])
        before = before->next;
    Replace r = replace_start(g, x->tmp);
    EACH_NODE(n, g) {
        if (n->id >= r.nnode)
            continue;
        if (second->inside[n->id])
            replace_operands(&r, n);
        if (!cloned[n->id])
            continue;
        Node *m = remat_clone(g, n, before, n->origin ? n->origin : n->out[0]->name);
        m->phase = phase[n->id];
        replace_operands(&r, m);
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, m->out[k]);
        add_clone(x, second, n, m);
    }
}
