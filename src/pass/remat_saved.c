/* saved: obeys must_save in a graph that already recomputes the value, as it was traced or compiled
 * so: readers of the clone read the original instead, if both are provably equal (ir/number.c),
 * else it is an error. Nodes that only such clones needed are dead then. Readers of a gather read
 * an earlier one of the forward that brings the same and must be saved. Linear. */
#include "pass.h"

/* A wait goes with what it waits for. */
static bool is_saved(const Node *n)
{
    const Node *made = n->op->wait && n->in[0]->def ? n->in[0]->def : n;
    return made->policy == MUST_SAVE || region_must_save(n);
}

static int read_saved(Graph *g, Arena *tmp)
{
    Replace r = replace_start(g, tmp);
    Node **equal = NULL;
    int changes = 0;
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        const Node *from = n->op->view ? NULL : find_original(g, n);
        if (!from || !is_saved(from))
            continue;
        region_check_save(g, from);
        equal = equal ? equal : graph_equals(g, tmp);
        if (equal[n->id] != equal[from->id])
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

/* Reads gathers that are kept instead of later ones of the same. */
static int read_kept(Graph *g, Arena *tmp)
{
    Replace r = replace_start(g, tmp);
    Node **equal = graph_equals(g, tmp), **kept = NEWN(tmp, Node *, g->nnode);
    int changes = 0;
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        const Node *gather = n->op->wait ? n->in[0]->def : NULL;
        if (!gather || !node_is(gather, OP_all_gather_into_tensor))
            continue;
        Node **first = &kept[equal[n->id]->id];
        if (*first) {
            for (int k = 0; k < n->nout; k++)
                replace_with(&r, n, k, (*first)->out[k]);
            changes++;
        } else if (gather->phase < BACKWARD && gather->policy == MUST_SAVE) {
            *first = n;
        }
    }
    replace_outputs(&r, g);
    return changes;
}

int pass_saved(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = 0;
    bool clones = false, saved = false, gathers = false;
    for (Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            changes += pass_saved(n->region->body[b], tmp, o);
        clones |= n->origin && n->phase >= BACKWARD;
        saved |= n->policy == MUST_SAVE || region_must_save(n);
        gathers |= node_is(n, OP_all_gather_into_tensor) && n->policy == MUST_SAVE;
    }
    changes += gathers ? read_kept(g, tmp) : 0;
    return clones && saved ? changes + read_saved(g, tmp) : changes;
}
