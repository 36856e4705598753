/* replace: helpers of passes that rewrite graphs: a table of values that replace others. The
 * operands of a node are renamed when a walk reaches the node, outputs at the end; an order edge
 * follows the value that replaces the node's first result. Also the phase of a region after its
 * bodies changed.
 */
#include "pass.h"

Replace replace_start(const Graph *g, Arena *tmp)
{
    return (Replace){SPARSE(tmp, Value *, g->nvalue), SPARSE(tmp, Node *, g->nnode), g->nvalue,
                     g->nnode};
}

void replace_with(Replace *r, const Node *n, int k, Value *v)
{
    r->value[n->out[k]->id] = v;
    if (k == 0)
        r->node[n->id] = v->def;
}

static Value *standing_for(const Replace *r, Value *v)
{
    return v->id < r->nvalue && r->value[v->id] ? r->value[v->id] : v;
}

bool replace_operands(const Replace *r, Node *n)
{
    bool changed = false;
    for (int i = 0; i < n->nin; i++) {
        Value *v = standing_for(r, n->in[i]);
        changed |= v != n->in[i];
        n->in[i] = v;
    }
    for (int i = 0; i < n->nafter; i++)
        if (n->after[i]->id < r->nnode && r->node[n->after[i]->id])
            n->after[i] = r->node[n->after[i]->id];
    return changed;
}

void replace_outputs(const Replace *r, Graph *g)
{
    for (int i = 0; i < g->nout; i++)
        g->out[i].v = standing_for(r, g->out[i].v);
}

int earliest_phase(const Graph *g, int phase)
{
    for (const Node *n = g->first; n; n = n->next) {
        phase = MIN(phase, (int)n->phase);
        EACH_BODY(b, n)
            phase = earliest_phase(n->region->body[b], phase);
    }
    return phase;
}

static int latest_phase(const Graph *g)
{
    int phase = -1;
    for (const Node *n = g ? g->first : NULL; n; n = n->next)
        phase = MAX(phase, (int)n->phase);
    return phase;
}

/* The last node of a body has no reader there that could be of an earlier phase. */
static void raise_last(Region *r, Phase phase)
{
    Node *n = r->body[MAIN]->last ? r->body[MAIN]->last
              : r->body[TAIL]     ? r->body[TAIL]->last
                                  : NULL;
    if (!n)
        return;
    n->phase = phase;
    if (n->region)
        raise_last(n->region, phase);
}

void region_fit_phase(Node *n)
{
    Region *r = n->region;
    int inside = MAX(latest_phase(r->body[MAIN]), latest_phase(r->body[TAIL])), phase = inside;
    for (int i = 0; i < n->nin; i++)
        phase = MAX(phase, n->in[i]->def ? (int)n->in[i]->def->phase : 0);
    for (int i = 0; i < n->nafter; i++)
        phase = MAX(phase, (int)n->after[i]->phase);
    if (inside < 0)
        return; /* nodes without a node inside may have any phase */
    n->phase = (Phase)phase;
    if (phase > inside)
        raise_last(r, n->phase);
}

void node_expose(Graph *g, Arena *tmp, Node *n)
{
    Factors *f = node_factors(tmp, n);
    int64_t *size = NEWN(tmp, int64_t, MAX_FACTOR);
    Value *partial[MAX_PARTIAL], **out = NEWN(tmp, Value *, n->nout);
    Replace r = replace_start(g, tmp);
    Build b = build_like(g, n, n);
    for (int k = 0; k < f->count; k++)
        size[k] = f->factor[k].size;
    Part p = {.b = &b,
              .n = n,
              .f = f,
              .size = size,
              .start = NEWN(tmp, Value *, MAX_FACTOR),
              .in = n->in,
              .partials = true,
              .out = partial};
    node_part(&p);
    p.out = out;
    n->op->rules->finish(&p, partial);
    for (int k = 0; k < n->nout; k++)
        replace_with(&r, n, k, out[k]);
    node_unlink(g, n);
    for (int k = 0; k < n->nout; k++)
        value_rename(g, out[k], n->out[k]->name);
    EACH_NODE(m, g)
        replace_operands(&r, m);
    replace_outputs(&r, g);
}
