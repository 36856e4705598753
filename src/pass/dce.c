/* dce: removes nodes that no output needs. One walk backwards marks what is needed, outputs first; a
 * node that only an order edge names goes. A region stays while any result is used; its results that
 * no one reads go, with what only they need in the bodies. */
#include "pass.h"

static int sweep(Graph *g, Arena *tmp);

static int drop_results(Graph *g, Node *n, const bool *used)
{
    Region *r = n->region;
    int kept = 0, before = n->nout;
    for (int k = 0; k < before; k++) {
        if (!used[n->out[k]->id] && r->out[k].kind != PORT_CARRY) {
            map_del(&g->names, n->out[k]->name);
            continue;
        }
        n->out[kept] = n->out[k];
        n->out[kept]->index = kept;
        r->out[kept++] = r->out[k];
    }
    n->nout = r->nout = kept;
    return before - kept;
}

/* Body outputs that no result port names go; the ports' indices are renewed. */
static void drop_yields(Region *r, bool tail)
{
    Graph *body = tail ? r->tail : r->body;
    if (!body)
        return;
    int kept = 0;
    for (int i = 0; i < body->nout; i++) {
        bool used = false;
        for (int k = 0; k < r->nout; k++) {
            int *at = tail ? &r->out[k].tail : &r->out[k].main;
            if (*at == i) {
                *at = kept;
                used = true;
            }
        }
        if (used)
            body->out[kept++] = body->out[i];
    }
    body->nout = kept;
}

static int prune_region(Graph *g, Node *n, const bool *used, Arena *tmp)
{
    Region *r = n->region;
    int changes = drop_results(g, n, used);
    drop_yields(r, false);
    drop_yields(r, true);
    changes += sweep(r->body, tmp);
    return changes + (r->tail ? sweep(r->tail, tmp) : 0);
}

static void drop_edges_to_removed(Graph *g, const bool *removed)
{
    EACH_NODE (n, g) {
        int kept = 0;
        for (int i = 0; i < n->nafter; i++)
            if (!removed[n->after[i]->id])
                n->after[kept++] = n->after[i];
        n->nafter = kept;
    }
}

static int sweep(Graph *g, Arena *tmp)
{
    bool *used = NEWN(tmp, bool, g->nvalue), *removed = NEWN(tmp, bool, g->nnode);
    int changes = 0;
    for (int i = 0; i < g->nout; i++)
        used[g->out[i].v->id] = true;
    for (Node *n = g->last, *prev; n; n = prev) {
        prev = n->prev;
        bool needed = false;
        for (int k = 0; k < n->nout; k++)
            needed |= used[n->out[k]->id];
        if (!needed) {
            node_unlink(g, n);
            removed[n->id] = true;
            changes++;
            continue;
        }
        if (n->region)
            changes += prune_region(g, n, used, tmp);
        for (int i = 0; i < n->nin; i++)
            used[n->in[i]->id] = true;
    }
    drop_edges_to_removed(g, removed);
    return changes;
}

int pass_dce(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return sweep(g, tmp);
}
