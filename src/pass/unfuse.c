/* unfuse: replaces each fused node by the nodes of its body, in its place: the inverse of fuse. The
 * nodes have kept their phase, policy, scope and origin in the body; a policy of the fused node
 * that must be obeyed, or that only it has, goes to all of them. A loss that was joined to its
 * gradient may have recomputed operands by now; then its phase is backward. Passes that do not know
 * fused nodes run after it. Bodies of loops are searched too. Linear. */
#include "pass.h"

#include "../machine/machine.h"

#include <string.h>

/* Gives the policy of the whole to what it is made of, constants aside. */
static void hand_down(const Graph *g, Node *n)
{
    bool own = false;
    EACH_FUSED(m, n)
        own |= m->policy != POLICY_NONE;
    EACH_FUSED(m, n)
        if (m->nin && (!own || policy_must(n->policy)) && !policy_merge(&m->policy, n->policy))
            fail_node(g, m, "is %s, but the node that it is part of is %s: %%%s in %%%s",
                      policy_name(m->policy), policy_name(n->policy), m->out[0]->name,
                      n->out[0]->name);
}

static void take_apart(Graph *g, Arena *tmp, Node *n, Replace *r)
{
    const Graph *body = n->region->body[MAIN];
    Value **outer = NEWN(tmp, Value *, body->nvalue);
    Node *before = n->next;
    hand_down(g, n);
    node_unlink(g, n);
    for (int i = 0; i < body->nin; i++)
        outer[body->in[i].v->id] = n->in[i];
    for (const Node *m = body->first; m; m = m->next) {
        Build b = build_like(g, before, m);
        Value **in = NEWN(tmp, Value *, m->nin);
        for (int i = 0; i < m->nin; i++) {
            in[i] = outer[m->in[i]->id];
            b.phase = in[i]->def ? MAX(b.phase, in[i]->def->phase) : b.phase;
        }
        Node *made = emit_like(&b, m, in, NULL, "");
        for (int k = 0; k < m->nout; k++)
            outer[m->out[k]->id] = made->out[k];
    }
    for (int k = 0; k < n->nout; k++)
        replace_with(r, n, k, outer[body->out[k].v->id]);
}

/* Whether a node of the backward has nodes of the forward, as a loss with its gradient. */
static bool is_mixed(const Node *n)
{
    bool mixed = false;
    EACH_FUSED(m, n)
        mixed |= n->phase >= BACKWARD && m->phase < BACKWARD;
    return mixed;
}

/* Which fused nodes: all, the mixed ones, or those with a key of a list. */
typedef struct Which {
    enum { ALL, MIXED, KEYS } what;
    const char *const *key;
    int count;
} Which;

static bool is_meant(Arena *tmp, const Node *n, const Which *which)
{
    const char *own = which->what == KEYS ? node_key(tmp, n) : "";
    bool listed = false;
    for (int i = 0; i < which->count; i++)
        listed |= !strcmp(own, which->key[i]);
    return which->what == ALL || (which->what == MIXED ? is_mixed(n) : listed);
}

static int unfuse(Graph *g, Arena *tmp, const Which *which)
{
    int changes = 0;
    Replace r = replace_start(g, tmp);
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        EACH_LOOP_BODY(b, n)
            changes += unfuse(n->region->body[b], tmp, which);
        if (n->op->region != FUSED || !is_meant(tmp, n, which))
            continue;
        take_apart(g, tmp, n, &r);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}

int graph_unfuse_mixed(Graph *g, Arena *tmp)
{
    return unfuse(g, tmp, &(Which){.what = MIXED});
}

int graph_unfuse(Graph *g, Arena *tmp, int count, const char *const *key)
{
    return unfuse(g, tmp, &(Which){KEYS, key, count});
}

int pass_unfuse(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return unfuse(g, tmp, &(Which){.what = ALL});
}
