/* cse: merges nodes with equal op, attributes, stream and operands if phase and origin are equal too:
 * a recomputed value has an origin or a later phase, and must never be merged with the first one.
 * The first node's scope stays; two policies that both say something different are not merged.
 * Hashing, one walk: operands are renamed before users are seen. Regions are not merged; their bodies
 * are searched on their own. */
#include "pass.h"

#include <string.h>

static uint64_t hash_node(const Node *n)
{
    uint64_t h = hash_bytes(&n->op, sizeof n->op, (uint64_t)n->phase);
    for (int i = 0; i < n->nin; i++)
        h = hash_bytes(&n->in[i]->id, sizeof n->in[i]->id, h);
    return h;
}

static bool same_text(const char *s, const char *t)
{
    return s == t || (s && t && !strcmp(s, t));
}

static bool mergeable(const Node *n, const Node *m)
{
    if (n->nin != m->nin || n->phase != m->phase || !same_text(n->origin, m->origin) ||
        n->nafter || m->nafter || !attrs_equal(n, m))
        return false;
    if (n->policy != m->policy && n->policy && m->policy)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != m->in[i])
            return false;
    return true;
}

/* The node equal to n that the table holds, or n itself, put there. */
static Node *find_or_put(Node **table, int cap, Node *n)
{
    int i = (int)(hash_node(n) & (uint64_t)(cap - 1));
    while (table[i] && !mergeable(n, table[i]))
        i = (i + 1) & (cap - 1);
    return table[i] ? table[i] : (table[i] = n);
}

static void rename_operands(Node *n, Value **now, Node **node_now)
{
    for (int i = 0; i < n->nin; i++)
        if (now[n->in[i]->id])
            n->in[i] = now[n->in[i]->id];
    for (int i = 0; i < n->nafter; i++)
        if (node_now[n->after[i]->id])
            n->after[i] = node_now[n->after[i]->id];
}

static int merge(Graph *g, Arena *tmp)
{
    int changes = 0, cap = 16;
    while (cap < 2 * g->nnode)
        cap *= 2;
    Node **table = NEWN(tmp, Node *, cap), **node_now = NEWN(tmp, Node *, g->nnode);
    Value **now = NEWN(tmp, Value *, g->nvalue);
    EACH_NODE (n, g) {
        rename_operands(n, now, node_now);
        if (n->region) {
            changes += merge(n->region->body, tmp);
            changes += n->region->tail ? merge(n->region->tail, tmp) : 0;
            continue;
        }
        Node *same = find_or_put(table, cap, n);
        if (same == n)
            continue;
        for (int k = 0; k < n->nout; k++)
            now[n->out[k]->id] = same->out[k];
        node_now[n->id] = same;
        same->policy = same->policy ? same->policy : n->policy;
        node_unlink(g, n);
        changes++;
    }
    for (int i = 0; i < g->nout; i++)
        if (now[g->out[i].v->id])
            g->out[i].v = now[g->out[i].v->id];
    return changes;
}

int pass_cse(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return merge(g, tmp);
}
