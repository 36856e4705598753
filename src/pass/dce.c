/* dce: dead code elimination. Removes nodes that no output needs, by marking backwards from the
 * outputs and from barriers; order edges keep nothing, and those to removed nodes are removed.
 * Linear for each depth of loops, but for carried results.
 *
 * A region stays if any of its results is needed. Its unread results are removed, with the ports
 * and the nodes in its bodies that only they need. A carried result is also needed if needed nodes
 * of the bodies read the carry; so marking starts at the results that are read and repeats while a
 * carry is added. A region that stays for a barrier in its bodies keeps its first result, as it
 * must have one. A fused node also keeps a result that exists only after its last row (a loss) if
 * its body computes it for another result. */
#include "pass.h"

/* ---- marking ---- */

static bool any_used(const Node *n, const bool *used)
{
    for (int k = 0; k < n->nout; k++)
        if (used[n->out[k]->id])
            return true;
    return false;
}

static bool is_needed(const Node *n, const bool *used)
{
    return node_is_barrier(n) || any_used(n, used);
}

static void mark_operands(const Node *n, bool *used, Arena *tmp);

/* Extends used[] (by value id) from the values it marks to all that they are computed from. */
static void mark_graph(const Graph *g, bool *used, Arena *tmp)
{
    for (const Node *n = g->last; n; n = n->prev)
        if (is_needed(n, used))
            mark_operands(n, used, tmp);
}

/* Marks the ports of a region that its wanted results need, and in wanted[] the results that a body
 * of `fused` computes in any case. */
static void mark_ports(const Node *n, bool *wanted, bool *port, Arena *tmp)
{
    const Region *r = n->region;
    for (int t = 0; t < region_nbody(r); t++) {
        const Graph *body = r->body[t];
        bool *used = NEWN(tmp, bool, body->nvalue);
        for (int k = 0; k < r->nout; k++) {
            int i = r->out[k].at[t];
            if (i >= 0 && wanted[k])
                used[body->out[i].v->id] = true;
        }
        mark_graph(body, used, tmp);
        for (int j = 0; j < r->nin; j++) {
            int i = r->in[j].at[t];
            port[j] |= i >= 0 && used[body->in[i].v->id];
        }
        for (int k = 0; n->op->region == FUSED && k < r->nout; k++) {
            const Value *v = body->out[r->out[k].at[MAIN]].v;
            wanted[k] |= fused_made_last(v) && any_used(v->def, used);
        }
    }
}

/* The same, until no carried result is added; a carried result needs its operand. */
static void mark_region(const Node *n, const bool *used, bool *wanted, bool *port, Arena *tmp)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++)
        wanted[k] = used[n->out[k]->id];
    wanted[0] |= !any_used(n, used);
    for (bool again = true; again;) {
        again = false;
        mark_ports(n, wanted, port, tmp);
        for (int k = 0; k < r->nout; k++) {
            if (r->out[k].kind != PORT_CARRY || wanted[k] == port[r->out[k].carry])
                continue;
            again |= !wanted[k];
            wanted[k] = port[r->out[k].carry] = true;
        }
    }
}

static void mark_operands(const Node *n, bool *used, Arena *tmp)
{
    if (!n->region) {
        for (int i = 0; i < n->nin; i++)
            used[n->in[i]->id] = true;
        return;
    }
    bool *port = NEWN(tmp, bool, n->region->nin), *wanted = NEWN(tmp, bool, n->region->nout);
    mark_region(n, used, wanted, port, tmp);
    for (int j = 0; j < n->region->nin; j++)
        if (port[j] && n->region->in[j].arg >= 0)
            used[n->in[n->region->in[j].arg]->id] = true;
}

/* ---- regions ---- */

/* Numbers what is kept: now[i] becomes its index. Returns how many are. */
static int renumber(const bool *keep, int count, int *now)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        now[i] = keep[i] ? kept++ : -1;
    return kept;
}

static void drop_results(Graph *g, Node *n, const bool *wanted, int *now)
{
    Region *r = n->region;
    int kept = renumber(wanted, n->nout, now);
    for (int k = 0; k < n->nout; k++) {
        if (!wanted[k]) {
            map_del(&g->names, n->out[k]->name);
            continue;
        }
        n->out[now[k]] = n->out[k];
        n->out[now[k]]->index = now[k];
        r->out[now[k]] = r->out[k];
    }
    n->nout = r->nout = kept;
}

static void drop_ports(Region *r, const bool *port, int *now)
{
    int kept = renumber(port, r->nin, now);
    for (int j = 0; j < r->nin; j++)
        if (port[j])
            r->in[now[j]] = r->in[j];
    r->nin = kept;
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].kind == PORT_CARRY)
            r->out[k].carry = now[r->out[k].carry];
}

/* Operands that no port names any more. */
static void drop_operands(Node *n, bool *named, int *now)
{
    Region *r = n->region;
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].arg >= 0)
            named[r->in[j].arg] = true;
    int kept = renumber(named, n->nin, now);
    for (int i = 0; i < n->nin; i++)
        if (named[i])
            n->in[now[i]] = n->in[i];
    n->nin = kept;
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].arg >= 0)
            r->in[j].arg = now[r->in[j].arg];
}

/* A body's inputs that no port names any more. */
static void drop_inputs(Region *r, bool tail, bool *named, int *now)
{
    Graph *body = r->body[tail];
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[tail];
        if (i >= 0)
            named[i] = true;
    }
    int kept = renumber(named, body->nin, now);
    for (int i = 0; i < body->nin; i++) {
        if (!named[i]) {
            map_del(&body->names, body->in[i].v->name);
            continue;
        }
        body->in[now[i]] = body->in[i];
        body->in[now[i]].v->index = now[i];
    }
    body->nin = kept;
    for (int j = 0; j < r->nin; j++) {
        int *i = &r->in[j].at[tail];
        *i = *i < 0 ? -1 : now[*i];
    }
}

static void drop_outputs(Region *r, bool tail, bool *named, int *now)
{
    Graph *body = r->body[tail];
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[tail];
        if (i >= 0)
            named[i] = true;
    }
    int kept = renumber(named, body->nout, now);
    for (int i = 0; i < body->nout; i++)
        if (named[i])
            body->out[now[i]] = body->out[i];
    body->nout = kept;
    for (int k = 0; k < r->nout; k++) {
        int *i = &r->out[k].at[tail];
        *i = *i < 0 ? -1 : now[*i];
    }
}

/* ---- the pass ---- */

static int sweep(Graph *g, Arena *tmp);

static int sweep_body(Region *r, bool tail, Arena *tmp)
{
    Graph *body = r->body[tail];
    if (!body)
        return 0;
    int most = MAX(body->nin, body->nout), *now = NEWN(tmp, int, most);
    drop_inputs(r, tail, NEWN(tmp, bool, most), now);
    drop_outputs(r, tail, NEWN(tmp, bool, most), now);
    return sweep(body, tmp);
}

static int prune_region(Graph *g, Node *n, const bool *used, Arena *tmp)
{
    Region *r = n->region;
    int before = r->nin + r->nout, most = MAX(n->nin, before), *now = NEWN(tmp, int, most);
    bool *wanted = NEWN(tmp, bool, r->nout), *port = NEWN(tmp, bool, r->nin);
    mark_region(n, used, wanted, port, tmp);
    drop_results(g, n, wanted, now);
    drop_ports(r, port, now);
    drop_operands(n, NEWN(tmp, bool, n->nin), now);
    int changes = before - r->nin - r->nout;
    changes += sweep_body(r, false, tmp) + sweep_body(r, true, tmp);
    region_fit_phase(n);
    return changes;
}

static void drop_edges_to_removed(Graph *g, const bool *removed)
{
    EACH_NODE(n, g) {
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
        if (!is_needed(n, used)) {
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

int graph_prune(Graph *g, Arena *tmp)
{
    return sweep(g, tmp);
}

int pass_dce(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return graph_prune(g, tmp);
}
