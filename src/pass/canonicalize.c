/* canonicalize: applies each op's fold until nothing changes. Folds remove detach, alias, identity
 * views and slices, pairs of transposes and whatever else an op's file defines. A replacement lies
 * before its node, so one walk sees the results of earlier folds; walks repeat while anything
 * changes, and dead nodes are removed in between. It terminates, as each fold makes a node dead or
 * shortens a chain of views. Each walk is linear, bodies of loops included.
 *
 * Invariants: every element keeps its bits. A replacement has the strides of the node that it
 * replaces unless only pointwise ops read it, as a product over other strides may add in another
 * order (flow/layout.c). The replacement takes over the node's policy; if both have one that must
 * be obeyed, the node stays. Nodes that end gradients stay while the graph has a loss but no
 * gradients yet, as `grad` reads them. */
#include "pass.h"
#include "../flow/layout.h"

static bool takes_policy(const Value *v, const Node *n)
{
    Node *def = v->def;
    while (def && def->op->view)
        def = def->in[0]->def;
    if (!def || n->phase >= BACKWARD)
        return true;
    return !(policy_binds(def) && policy_must(n->policy)) && policy_merge(&def->policy, n->policy);
}

/* The value that replaces n's only result, or NULL; l has the layouts of n's operands and results.
 */
static Value *fold(Graph *g, Node *n, bool keep_ends, Layouts *l)
{
    if (!n->op->rules->fold || n->nout != 1 || (keep_ends && ends_gradient(n)))
        return NULL;
    Node *before = n->prev;
    Build b = {.g = g,
               .before = n,
               .phase = n->phase,
               .policy = n->policy,
               .scope = n->scope,
               .origin = n->origin};
    Value *v = n->op->rules->fold(&b, n);
    if (!v || v == n->out[0])
        return NULL;
    CHECK(type_equal(&v->type, &n->out[0]->type));
    for (Node *m = before ? before->next : g->first; m != n; m = m->next)
        layout_add(l, m);
    if (layout_keeps(l, n->out[0], v) && takes_policy(v, n))
        return v;
    while (n->prev != before)
        node_unlink(g, n->prev);
    return NULL;
}

static int fold_graph(Graph *g, Arena *tmp, bool keep_ends, Layouts l)
{
    int changes = 0;
    Replace r = replace_start(g, tmp);
    EACH_NODE(n, g) { /* what folds emit stands before n and is looked at in the next walk */
        replace_operands(&r, n);
        layout_add(&l, n);
        EACH_LOOP_BODY(t, n)
            changes +=
                fold_graph(n->region->body[t], tmp, keep_ends, layout_start_body(&l, n, t, tmp));
        Value *v = fold(g, n, keep_ends, &l);
        if (!v)
            continue;
        replace_with(&r, n, 0, v);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}

/* An output `new` alone does not tell: a forward that writes to an input in place has it too. */
static bool differentiated(const Graph *g)
{
    return graph_find_output(g, ROLE_GRAD, NULL) ||
           (graph_find_output(g, ROLE_NEW, NULL) && graph_has_backward(g));
}

int pass_canonicalize(Graph *g, Arena *tmp, const PassOptions *o)
{
    bool keep_ends = graph_find_output(g, ROLE_LOSS, NULL) && !differentiated(g);
    int total = 0, changes;
    (void)o;
    while ((changes = fold_graph(g, tmp, keep_ends, layout_start(g, tmp))) > 0) {
        total += changes;
        graph_prune(g, tmp); /* what is dead would seem to read its operands' strides */
    }
    return total;
}
