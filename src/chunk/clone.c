/* clone: finds what a second loop, mostly of the backward, computes again of the first's large
 * values. Clones of the first loop's nodes, with these as origin, join the second. Small values,
 * such as statistics of rows, are read from what the first loop yields. */
#include "grow.h"

#include <limits.h>
#include <string.h>

/* The nodes of both loops in the graph's order, up to a NULL; how many. */
static int both_nodes(const Growth *x, const Closed loop[2], Node ***list)
{
    int count = loop[0].nnode + loop[1].nnode;
    *list = NEWN(x->tmp, Node *, count + 1);
    memcpy(*list, loop[0].node, sizeof **list * (size_t)loop[0].nnode);
    memcpy(*list + loop[0].nnode, loop[1].node, sizeof **list * (size_t)loop[1].nnode);
    return growth_sort(x, *list, count);
}

int growth_find_clones(Growth *x, const Closed loop[2], bool *cloned)
{
    Node **list;
    int count = 0;
    for (int at = both_nodes(x, loop, &list); at-- > 0;) {
        const Node *n = list[at];
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

/* By id of a node that is cloned: the earliest phase of a reader in the second loop. */
static Phase *find_phases(const Growth *x, const Closed *second, const bool *cloned,
                          Node *const *list, int count)
{
    Phase *phase = SPARSE(x->tmp, Phase, x->g->nnode);
    for (int i = 0; i < count; i++)
        phase[list[i]->id] = BACKWARD;
    while (count-- > 0) {
        const Node *n = list[count];
        bool inside = second->inside[n->id];
        Phase own = inside ? n->phase : phase[n->id];
        for (int i = 0; i < n->nin && (inside || cloned[n->id]); i++)
            if (n->in[i]->def && cloned[n->in[i]->def->id])
                phase[n->in[i]->def->id] = MIN(phase[n->in[i]->def->id], own);
    }
    return phase;
}

/* n reads v: if a clone makes it, that reaches what n reaches. */
static void reach_through(Growth *x, const Value *v, const Node *n)
{
    int *enter = x->index->enter;
    if (v->def && v->def->id >= x->nnode)
        enter[v->def->id] = MIN(enter[v->def->id], enter[n->id]);
}

/* The index learns of the clones: they reach what their readers reach, what they are of does so no
 * more. */
static void index_clones(Growth *x, Node *const *node, int made, const Closed *second,
                         const bool *cloned, Node *const *list)
{
    int *enter = x->index->enter;
    for (int i = 0; i < made; i++) {
        enter[node[i]->id] = INT_MAX;
        for (int j = 0; j < node[i]->nin; j++)
            index_add_user(x->index, node[i]->in[j], node[i]);
    }
    for (; *list; list++) {
        if (cloned[(*list)->id])
            enter[(*list)->id] = INT_MAX;
        for (int j = 0; j < (*list)->nin && second->inside[(*list)->id]; j++)
            reach_through(x, (*list)->in[j], *list);
    }
    for (int i = made; i-- > 0;)
        for (int j = 0; j < node[i]->nin; j++)
            reach_through(x, node[i]->in[j], node[i]);
    if (made)
        index_place(x->index, node[0]->prev, second->node[0]);
}

void growth_clone(Growth *x, Closed loop[2], const bool *cloned)
{
    Graph *g = x->g;
    Node **list, *before = loop[1].node[0];
    int count = both_nodes(x, loop, &list), made = 0;
    const Phase *phase = find_phases(x, &loop[1], cloned, list, count);
    Node **node = NEWN(x->tmp, Node *, 2 * count + 1);
    Replace r = replace_start(g, x->tmp);
    for (int i = 0; i < count; i++) {
        Node *n = list[i];
        if (loop[1].inside[n->id])
            replace_operands(&r, n);
        if (!cloned[n->id])
            continue;
        Node *m = remat_clone(g, n, before, n->origin ? n->origin : n->out[0]->name);
        m->phase = phase[n->id];
        replace_operands(&r, m);
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, m->out[k]);
        add_clone(x, &loop[1], n, m);
        node[made++] = m;
    }
    index_clones(x, node, made, &loop[1], cloned, list);
    memcpy(node + made, loop[1].node, sizeof *node * (size_t)loop[1].nnode);
    loop[1].node = node;
    loop[1].nnode += made;
}
