/* Copies of nodes (origin) run as their originals do: by the same kernel, on operands that lie
 * likewise, so that a value that is computed again has the same bits. Copies that passes make do so
 * already: they read the original's operands or copies of them, and the kernel is a function of the
 * call. In a graph that was written or traced an operand may lie otherwise: the planner then copies
 * it first, to lie as the original's.
 *
 * An operand whose elements overlap in memory (expand, unfold) cannot be written so: it is read as
 * it lies. The bits of pointwise ops and movements, fused or not, depend on no strides. An original
 * in another graph, such as another loop's body, is not looked for.
 *
 * Runs last, before operands of cats are joined, on a flow that is not edited any more. Linear. */
#include "inside.h"

/* Whether bits may depend on how operands lie. */
static bool is_bound(const Node *n)
{
    OpClass c = n->op->class;
    return n->op->region == NO_REGION && !node_aliases(n) && !op_starts(n->op) &&
           c != CLASS_POINTWISE && c != CLASS_MOVEMENT;
}

static bool is_same_call(const Node *n, const Node *m)
{
    if (!attrs_equal(n, m) || n->nin != m->nin || n->nout != m->nout)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (!type_equal(&n->in[i]->type, &m->in[i]->type))
            return false;
    for (int k = 0; k < n->nout; k++)
        if (!type_equal(&n->out[k]->type, &m->out[k]->type))
            return false;
    return true;
}

Node *node_origin(const Graph *g, const Node *n)
{
    const Value *v = n->origin ? map_find(&g->names, n->origin) : NULL;
    return v ? v->def : NULL;
}

/* The node of this graph that n is a copy of, through copies, itself none; NULL: there is none. */
static const Node *find_first(const Graph *g, const Node *n)
{
    enum { MOST = 256 }; /* origins written by hand may form a ring */
    for (int i = 0; i < MOST && n && n->origin; i++)
        n = node_origin(g, n);
    return n && n->origin ? NULL : n;
}

static bool reads_alike(Flow *f, int item, int other)
{
    const FlowItem *x = &f->item[item], *y = &f->item[other];
    bool alike = x->call.kernel == y->call.kernel;
    for (int i = 0; i < x->node->nin && alike; i++) {
        Tensor s = operand_tensor(f, x, i), t = operand_tensor(f, y, i);
        alike = tensors_alike(&s, &t);
    }
    return alike;
}

static void make_alike(Flow *f, int item)
{
    const Node *n = f->item[item].node, *m = n && n->origin ? find_first(f->g, n) : NULL;
    if (!m || m == n || !is_bound(n) || !is_same_call(n, m) || !f->item[item].ncore)
        return;
    int other = f->item_of[m->id];
    if (f->item[other].gone || reads_alike(f, item, other))
        return;
    f->item[item].call.like = other;
    item_relocate(f, item);
}

void flow_alike(Flow *f)
{
    for (int i = f->line.first; i >= 0; i = f->line.at[i].next) {
        for (int c = 0; c < 2 && f->item[i].loop.body[c]; c++) {
            flow_alike(f->item[i].loop.body[c]);
            item_mark(f, i);
        }
        make_alike(f, i);
    }
    flow_settle(f);
}
