/* cse: common subexpression elimination. Merges nodes with equal op, attributes, stream, phase,
 * origin and operands (in any order if the op commutes). As a recomputed node has an origin or a
 * later phase, it is not merged with its original; with o->dedupe_recompute it is: then a node is
 * merged with an equal one of the same or an earlier phase. The first node's scope stays. A
 * policy that must be obeyed wins over another, then prefer_save. Two forward nodes with policies
 * that must be obeyed are not merged, even if the policies are equal, else compiling again could
 * merge more. Nodes that order edges make wait are not merged either, nor are regions; the bodies
 * of loops are searched, each by itself. Clones of a merged node become clones of the one that
 * stays.
 *
 * merge: the same of clones alone, with their like only. A graph that had clones before remat made
 * its own may need less with both or with one of them: merged where the peak after `repeat` is then
 * lower, which is tried on copies of the graph.
 *
 * One walk with a hash table, linear: operands are renamed before nodes are compared, so equal
 * trees merge from the leaves on. */
#include "../flow/flow.h"
#include "pass.h"

#include <string.h>

static bool swapped(const Node *n)
{
    return n->op->commutes && n->nin == 2 && n->in[0]->id > n->in[1]->id;
}

/* The key by which equal nodes are found. */
static uint64_t hash_node(const Node *n, bool dedupe)
{
    uint64_t h = attrs_hash(n);
    if (!dedupe)
        h = hash_bytes(&n->phase, sizeof n->phase, h);
    if (!dedupe && n->origin)
        h = hash_bytes(n->origin, strlen(n->origin), h);
    bool swap = swapped(n);
    for (int i = 0; i < n->nin; i++) {
        int id = n->in[swap ? 1 - i : i]->id;
        h = hash_bytes(&id, sizeof id, h);
    }
    return h;
}

static bool same_operands(const Node *n, const Node *m)
{
    bool swap = swapped(n) != swapped(m);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != m->in[swap ? 1 - i : i])
            return false;
    return true;
}

/* Each block has its own collectives: a result that several shared would live from the first to the
 * last of them. */
static bool same_readers(const Node *n, const Node *m)
{
    Block b = block_of(n->scope), c = block_of(m->scope);
    return n->op->class != CLASS_COLLECTIVE ||
           (b.len || c.len ? block_equal(&b, &c) : !strcmp(n->scope, m->scope));
}

/* Whether n computes what m, an earlier node, does, and may read it in time. */
static bool equal(const Node *n, const Node *m, bool dedupe)
{
    bool same_origin =
        n->origin == m->origin || (n->origin && m->origin && !strcmp(n->origin, m->origin));
    bool same_time = same_origin && n->phase == m->phase;
    return n->nin == m->nin && (same_time || (dedupe && m->phase <= n->phase)) &&
           attrs_equal(n, m) && same_operands(n, m) && same_readers(n, m);
}

/* The node that n may be merged with, or n itself, put into the table. If the policies of both must
 * be obeyed, both stay, and nodes that are equal to n are merged with the one in the table. */
static Node *find_or_put(Node **table, int cap, Node *n, bool dedupe)
{
    if (n->nafter || node_is_barrier(n))
        return n;
    int i = (int)(hash_node(n, dedupe) & (uint64_t)(cap - 1));
    while (table[i] && !equal(n, table[i], dedupe))
        i = (i + 1) & (cap - 1);
    const Node *m = table[i];
    if (!m)
        table[i] = n;
    else if (n->phase < BACKWARD && policy_must(n->policy) && policy_must(m->policy))
        return n;
    return table[i];
}

/* A clone of a merged node becomes one of the node that stays. */
static void rename_origin(const Map *merged, Node *n)
{
    const Node *same = n->origin ? map_find(merged, n->origin) : NULL;
    n->origin = same ? same->out[0]->name : n->origin;
    EACH_FUSED(m, n)
        rename_origin(merged, m);
}

/* clones: of clones alone. */
static int merge_equal(Graph *g, Arena *tmp, bool dedupe, bool clones)
{
    int changes = 0, cap = 16;
    Map merged = {.a = tmp};
    while (cap < 2 * g->nnode)
        cap *= 2;
    Node **table = NEWN(tmp, Node *, cap);
    Replace r = replace_start(g, tmp);
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        rename_origin(&merged, n);
        EACH_LOOP_BODY(b, n)
            changes += merge_equal(n->region->body[b], tmp, dedupe, clones);
        if (n->region || node_copies_memory(n) || (clones && !n->origin))
            continue;
        Node *same = find_or_put(table, cap, n, dedupe);
        if (same == n)
            continue;
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, same->out[k]);
        if (n->phase < BACKWARD)
            policy_merge(&same->policy, n->policy);
        map_put(&merged, n->out[0]->name, same);
        node_unlink(g, n);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}

int pass_cse(Graph *g, Arena *tmp, const PassOptions *o)
{
    return merge_equal(g, tmp, o->dedupe_recompute, false);
}

static int64_t peak_after_repeat(Graph *g, Arena *tmp, const PassOptions *o)
{
    pass_repeat(g, tmp, o);
    return flow_peak(pass_flow(g, o, tmp));
}

int pass_merge(Graph *g, Arena *tmp, const PassOptions *o)
{
    Graph *merged = graph_clone(tmp, g);
    if (!merge_equal(merged, tmp, false, true))
        return 0;
    Graph *apart = graph_clone(tmp, g);
    if (peak_after_repeat(merged, tmp, o) >= peak_after_repeat(apart, tmp, o))
        return 0;
    return merge_equal(g, tmp, false, true);
}
