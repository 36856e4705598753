/* Finds recomputation in an imported graph. Under activation checkpointing a tracer records the
 * forward's calls a second time in the backward, as unrelated calls. A backward node that is equal
 * to a forward one gets it as its origin, so that traced clones and those of `remat` look alike:
 * neither is merged with its original, and both count as recomputation.
 *
 * Views and nodes without operands cost nothing and get no origin; nor does a clone of a node that
 * nothing else needs, as that is computed once. Linear. */
#include "fx.h"

/* By node id: whether an output needs it. */
static bool *find_needed(const Graph *g, Arena *tmp)
{
    bool *needed = NEWN(tmp, bool, g->nnode);
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v->def)
            needed[g->out[i].v->def->id] = true;
    for (const Node *n = g->last; n; n = n->prev)
        for (int i = 0; i < n->nin && needed[n->id]; i++)
            if (n->in[i]->def)
                needed[n->in[i]->def->id] = true;
    return needed;
}

int fx_mark_again(Importer *im)
{
    Node **first = graph_equals(im->g, im->a);
    const bool *needed = find_needed(im->g, im->a);
    int count = 0;
    for (Node *n = im->g->first; n; n = n->next) {
        const Node *m = first[n->id];
        if (m->phase >= BACKWARD || n->phase < BACKWARD || n->op->view || !n->nin || !needed[m->id])
            continue;
        n->origin = m->out[0]->name;
        count++;
    }
    return count;
}
