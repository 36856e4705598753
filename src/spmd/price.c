/* price: what a strategy costs, and what another form does, as the walk would emit them.
 *
 * A strategy's price is that of the nodes that the walk leaves for a graph of the node alone whose
 * inputs have the forms that the strategy needs: start values, slices of masks and collectives that
 * merge partials are in it. The walk is told the strategy; if the node's partials are merged, what
 * it takes for the nodes that then stand for it is noted as parts of the strategy, so that they can
 * be taken again. Linear in the nodes that are left. */
#include "solved.h"

#include <math.h>
#include <string.h>

typedef struct Pricing {
    Spmd x;
    PassOptions o;
    Arena *a, *tmp;
    const Node *n, *inside; /* the node, and the one that stands for it in the graph alone */
    Strategy *t;
    double sec;
} Pricing;

static Strategy *pick_told(void *arg, const SpmdGraph *s, const Node *n)
{
    const Pricing *p = arg;
    (void)s;
    return n == p->inside ? p->t : NULL;
}

static Strategy *copy_strategy(Arena *a, const Strategy *t)
{
    Strategy *y = NEW(a, Strategy);
    *y = (Strategy){.merges = t->merges};
    memcpy(y->how, t->how, sizeof y->how);
    return y;
}

static void note_part(void *arg, const Node *n, Strategy *t)
{
    Pricing *p = arg;
    Strategy *of = p->t;
    if (n != p->inside && of->merges)
        PUSH(p->a, of->part, of->npart, of->cappart, copy_strategy(p->a, t));
}

/* A graph of the node alone. */
static Graph *graph_alone(Pricing *p, SpmdGraph *s)
{
    const Node *n = p->n;
    Graph *g = graph_new(p->tmp, "alone");
    Value **in = NEWN(p->tmp, Value *, n->nin);
    s->to = graph_new(p->tmp, "part");
    s->from = g;
    for (int i = 0; i < n->nin; i++) {
        const Type *t = &n->in[i]->type;
        const char *name = arena_printf(p->tmp, "x%d", i);
        in[i] = graph_input(g, name, *t, ROLE_NONE, NULL);
        Type local = cut_local_type(t, p->x.mesh, p->t->in[i]);
        form_add(s, in[i], p->t->in[i], graph_input(s->to, name, local, ROLE_NONE, NULL), NULL);
    }
    Build b = {.g = g, .phase = n->phase, .scope = n->scope};
    Node *m = emit_clone(&b, n, in);
    p->inside = m;
    for (int k = 0; k < m->nout; k++)
        graph_output(g, m->out[k], ROLE_NONE, NULL);
    return g;
}

/* The form from which readers of a result go on: the first, or that in which its partial
 * log-sum-exps were merged for another one of the node's results. */
static const RankForm *result_form(SpmdGraph *s, const Value *v)
{
    const RankForm *first = spmd_logical(s, v)->form;
    for (const RankForm *h = first; h; h = h->next)
        if (!has_logsumexp(s->x->mesh, h->cut))
            return h;
    return first;
}

static void price(void *arg)
{
    Pricing *p = arg;
    SpmdGraph s = {.x = &p->x, .tmp = p->tmp};
    const Graph *g = graph_alone(p, &s);
    spmd_nodes(&s);
    p->sec = p->x.copied;
    for (const Node *n = s.to->first; n; n = n->next)
        p->sec += node_sec(p->x.machine, p->x.mesh, n);
    for (int k = 0; k < g->nout; k++) {
        const RankForm *h = result_form(&s, g->out[k].v);
        memcpy(p->t->out[k], h->cut, sizeof(Cut) * (size_t)p->x.mesh->naxes);
    }
}

double strategy_price(const Pricer *r, const Node *n, Strategy *t)
{
    Pricing p = {
        .x = *r->x, .o = *r->x->o, .a = r->a, .tmp = r->tmp, .n = n, .t = t, .sec = INFINITY};
    const Picker told = {.pick = pick_told, .took = note_part, .arg = &p};
    p.o.decisions = NULL;
    p.o.spmd_seen = NULL;
    p.o.warn = NULL;
    p.x.o = &p.o;
    p.x.picker = &told;
    p.x.copied = 0;
    bool failed = ctx_try(p.x.ctx, price, &p) != TN_OK;
    arena_reset(r->tmp);
    return failed ? INFINITY : p.sec;
}
