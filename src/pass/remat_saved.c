/* Values that must be saved in a graph that computes them again already: traced so, or compiled so
 * before. The backward then reads what was saved in place of the copy, if both are provably equal
 * (ir/number.c). What only such copies needed goes with them. Linear in the graph's size. */
#include "pass.h"

/* Whether n is a copy of a value that must be saved; views go with what they show. */
static bool must_not_be(const Node *n, const Node *from)
{
    return from && from->policy == MUST_SAVE && !n->op->view;
}

_Noreturn static void refuse(const Graph *g, const Node *n, const Node *copy, const Node *from)
{
    fail_node(g, n,
              "computes %%%s again, which is must_save, %s: %%%s <- %%%s; compile the graph as it "
              "was before that",
              from->out[0]->name,
              copy != n   ? "in the body of a fused node, which unfuse takes apart"
              : n->region ? "in a region of its own"
                          : "from other values than it was computed from",
              copy->out[0]->name, from->out[0]->name);
}

static void check_body(const Graph *g, const Map *named, const Node *n)
{
    for (const Node *m = n->region->body->first; m; m = m->next) {
        const Node *from = m->nin ? find_original(named, m).whole : NULL;
        if (must_not_be(m, from))
            refuse(g, n, m, from);
    }
}

/* Whether there can be any: a value that must be saved, and a copy or a body. */
static bool may_have(const Graph *g)
{
    bool copies = false, saved = false;
    for (const Node *n = g->first; n; n = n->next) {
        copies |= n->region || (n->origin && n->phase >= BACKWARD);
        saved |= n->region || n->policy == MUST_SAVE;
    }
    return copies && saved;
}

int remat_saved(Graph *g, Arena *tmp)
{
    if (!may_have(g))
        return 0;
    Map named = find_names(g, tmp);
    Node **first = graph_equals(g, tmp);
    Replace r = replace_start(g, tmp);
    int changes = 0;
    EACH_NODE(n, g)
    {
        for (int t = 0; t < 2 && n->op->region == LOOP; t++)
            if (region_body(n->region, t))
                changes += remat_saved(region_body(n->region, t), tmp);
        if (n->phase >= BACKWARD && n->op->region == FUSED)
            check_body(g, &named, n);
        replace_operands(&r, n);
        const Node *from = find_original(&named, n).whole;
        if (!must_not_be(n, from))
            continue;
        if (first[n->id] != first[from->id])
            refuse(g, n, n, from);
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, from->out[k]);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}
