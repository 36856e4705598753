/* grad: appends the backward to a graph with a loss: reverse-mode differentiation by each op's
 * diff, in one walk of the nodes in reverse order; linear.
 *
 * Only values that depend on a parameter through floating-point values get gradients. Contributions
 * to one value are added in the order in which they appear, so the same graph gives the same sums.
 * A parameter on which the loss does not depend gets zeros and a warning; a loss that depends on
 * none is an error. An op without diff on such a path is an error that names it. Gradients of
 * regions: grad_loop.c.
 *
 * A frozen parameter, by `freeze` or as it is none of `adapters`, is a constant: it has no gradient
 * among the outputs, and the backward stops at nodes that depend only on frozen parameters. */
#include "pass.h"

#include <string.h>

static void mark_region(const Graph *g, const Node *n, bool *need)
{
    bool *in = NEWN(g->a, bool, n->nin), *out = NEWN(g->a, bool, n->nout);
    for (int i = 0; i < n->nin; i++)
        in[i] = need[n->in[i]->id];
    grad_mark_region(n, in, NEWN(g->a, bool, n->region->nin), out);
    for (int k = 0; k < n->nout; k++)
        need[n->out[k]->id] = out[k] && dtype_float(n->out[k]->type.dtype);
}

void grad_mark(const Graph *g, bool *need)
{
    for (const Node *n = g->first; n; n = n->next) {
        bool any = false;
        for (int i = 0; i < n->nin && !stops_gradient(n); i++)
            any |= need[n->in[i]->id];
        bool loop = n->op->region == LOOP;
        if (any && loop)
            mark_region(g, n, need);
        for (int k = 0; k < n->nout && any && !loop; k++)
            need[n->out[k]->id] = dtype_float(n->out[k]->type.dtype);
    }
}

Value *grad_zero(Build *b, const Type *t)
{
    return emit1(b, "full", 0, NULL,
                 ATTRS(A_INTS("size", t->rank, t->dim), A_FLOAT("fill_value", 0),
                       A_DTYPE("dtype", t->dtype)));
}

static void add_gradient(Build *b, Value **grad, const Value *v, Value *dx)
{
    CHECK(type_equal(&v->type, &dx->type));
    Value *sum = grad[v->id];
    grad[v->id] = sum ? emit1(b, "add", IN(sum, dx), NOATTRS) : dx;
}

static void differentiate(Build *b, Node *n, Value **grad, const bool *need)
{
    Graph *g = b->g;
    Value **dy = NEWN(g->a, Value *, n->nout), **dx = NEWN(g->a, Value *, n->nin);
    bool *wanted = NEWN(g->a, bool, n->nin);
    bool reached = false, any = false;
    for (int k = 0; k < n->nout; k++)
        reached |= (dy[k] = grad[n->out[k]->id]) != NULL;
    for (int i = 0; i < n->nin; i++)
        any |= wanted[i] = need[n->in[i]->id];
    if (!reached || !any)
        return;
    b->scope = n->scope;
    if (n->op->region == LOOP) {
        grad_loop(b, n, dy, wanted, dx);
    } else {
        if (!n->op->rules->diff)
            fail_node(g, n, "cannot be differentiated");
        Grad d = {b, n, dy, wanted, dx};
        n->op->rules->diff(&d);
    }
    for (int i = 0; i < n->nin; i++)
        if (wanted[i] && dx[i])
            add_gradient(b, grad, n->in[i], dx[i]);
}

void grad_backprop(Graph *g, Node *last, Value **grad, const bool *need)
{
    Build b = {.g = g, .phase = BACKWARD};
    for (Node *n = last; n; n = n->prev)
        differentiate(&b, n, grad, need);
}

/* The gradient of %w is called %dw, where it is a value of its own. */
static void name_gradient(Graph *g, Value *dp, const Value *p, int before)
{
    const char *name = arena_printf(g->a, "d%s", p->name);
    bool taken = !dp->def || dp->def->id < before || !strcmp(dp->name, name);
    for (int i = 0; i < g->nout; i++)
        taken |= g->out[i].v == dp;
    if (!taken)
        value_rename(g, dp, graph_fresh(g, name));
}

static Value *zero_gradient(Build *b, const Port *p, const PassOptions *o)
{
    if (o->warn)
        o->warn(o->warn_arg,
                arena_printf(b->g->a,
                             "the loss does not reach parameter \"%s\": its gradient is zero",
                             p->name));
    return grad_zero(b, &p->v->type);
}

static bool trained(const Port *p, const PassOptions *o)
{
    return p->role == ROLE_PARAM && !globs_match(&o->freeze, p->name) &&
           (!o->adapters.count || globs_match(&o->adapters, p->name));
}

/* Fails unless each pattern freezes something and something is left. */
static void check_freeze(const Graph *g, Arena *tmp, const PassOptions *o)
{
    bool any = false;
    pass_check_names(g, tmp, &o->freeze, "freeze");
    for (int i = 0; i < g->nin; i++)
        any |= trained(&g->in[i], o);
    if (o->freeze.count && !any)
        fail(g->ctx, TN_USAGE, "freeze: every parameter is frozen, nothing is left to train");
}

/* The first node that ends the way from a parameter, NULL where there is none. */
static const Node *find_end(const Graph *g, const bool *need)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (need[n->in[i]->id] && stops_gradient(n))
                return n;
    return NULL;
}

/* Fails where parameters are to be trained and the loss depends on none of them. */
static void check_reached(const Graph *g, const Value *loss, const bool *need, const PassOptions *o)
{
    bool any = false;
    for (int i = 0; i < g->nin; i++)
        any |= trained(&g->in[i], o);
    if (!any || need[loss->id])
        return;
    const Node *end = find_end(g, need);
    fail(g->ctx, TN_FAIL, "the loss %%%s reaches no parameter: nothing would be trained%s%s%s%s",
         loss->name, end ? "; a gradient ends at " : "", end ? end->op->name : "", end ? " %" : "",
         end ? end->out[0]->name : "");
}

int pass_grad(Graph *g, Arena *tmp, const PassOptions *o)
{
    Value *loss = graph_find_output(g, ROLE_LOSS, NULL)->v;
    if (loss->type.rank || !dtype_float(loss->type.dtype))
        fail(g->ctx, TN_FAIL, "loss %%%s: expected a floating-point scalar, found %s", loss->name,
             type_text(g->a, &loss->type));
    check_freeze(g, tmp, o);
    Value **grad = NEWN(tmp, Value *, g->nvalue);
    bool *need = NEWN(tmp, bool, g->nvalue);
    int before = g->nnode;
    Node *last = g->last;
    Build b = {.g = g, .phase = BACKWARD};
    for (int i = 0; i < g->nin; i++)
        need[g->in[i].v->id] = trained(&g->in[i], o) && dtype_float(g->in[i].v->type.dtype);
    grad_mark(g, need);
    check_reached(g, loss, need, o);
    if (need[loss->id])
        grad[loss->id] = emit_full(&b, 1, loss->type.dtype);
    grad_backprop(g, last, grad, need);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (!trained(p, o))
            continue;
        Value *dp = grad[p->v->id] ? grad[p->v->id] : zero_gradient(&b, p, o);
        name_gradient(g, dp, p->v, before);
        graph_output(g, dp, ROLE_GRAD, p->name);
    }
    return g->nnode - before;
}
