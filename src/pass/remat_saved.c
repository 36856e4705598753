/* saved: values that must be saved in a graph that computes them again already: traced so, or
 * compiled so before. The backward then reads what was saved in place of the copy, if both are
 * provably equal (ir/number.c). What only such copies needed is dead then. Linear in the graph's
 * size. */
#include "pass.h"

/* Whether n is a copy of a value that must be saved; views go with what they show. */
static bool is_wrong(const Map *named, const Node *n)
{
    const Node *from = n->op->view ? NULL : find_original(named, n).node;
    return from && (from->policy == MUST_SAVE || region_must_save(from));
}

static bool has_wrong(const Graph *g, const Map *named)
{
    for (const Node *n = g->first; n; n = n->next)
        if (is_wrong(named, n))
            return true;
    return false;
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

static int read_saved(Graph *g, Arena *tmp, const Map *named)
{
    Node **first = graph_equals(g, tmp);
    Replace r = replace_start(g, tmp);
    int changes = 0;
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        if (!is_wrong(named, n))
            continue;
        const Node *from = find_original(named, n).node;
        const Node *inner = from->policy == MUST_SAVE ? NULL : region_must_save(from);
        if (inner && from->policy == MUST_RECOMPUTE)
            fail_node(g, inner,
                      "is must_save, but its loop is computed again as a whole: %%%s <- %%%s",
                      from->out[0]->name, inner->out[0]->name);
        if (first[n->id] != first[from->id])
            fail_node(g, n,
                      "computes %%%s again, which is must_save, from other values than it was "
                      "computed from: %%%s <- %%%s; compile the graph as it was before that",
                      from->out[0]->name, n->out[0]->name, from->out[0]->name);
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, from->out[k]);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}

int pass_saved(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = 0;
    if (!may_have(g))
        return 0;
    for (Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            changes += pass_saved(n->region->body[b], tmp, o);
    Map named = find_names(g, tmp);
    return has_wrong(g, &named) ? changes + read_saved(g, tmp, &named) : changes;
}
