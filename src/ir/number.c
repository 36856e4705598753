/* Which nodes are equal, by numbering values: two nodes are if op, attributes, stream and the
 * numbers of their operands are. detach changes no number; a node with a region has its own. By
 * hashing, linear. */
#include "ir.h"

#include <string.h>

typedef struct Numbers {
    int *of; /* by value id */
    Node **table;
    int cap;
} Numbers;

static uint64_t hash_node(const Numbers *x, const Node *n)
{
    uint64_t h = hash_bytes(&n->op, sizeof n->op, (uint64_t)n->nin);
    for (int i = 0; i < n->nin; i++)
        h = hash_bytes(&x->of[n->in[i]->id], sizeof(int), h);
    return h;
}

static bool equal(const Numbers *x, const Node *n, const Node *m)
{
    if (!attrs_equal(n, m) || n->nin != m->nin || n->nout != m->nout || n->region)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (x->of[n->in[i]->id] != x->of[m->in[i]->id])
            return false;
    return true;
}

static Node *find_or_put(Numbers *x, Node *n)
{
    int i = (int)(hash_node(x, n) & (uint64_t)(x->cap - 1));
    while (x->table[i] && !equal(x, n, x->table[i]))
        i = (i + 1) & (x->cap - 1);
    return x->table[i] ? x->table[i] : (x->table[i] = n);
}

Node **graph_equals(const Graph *g, Arena *tmp)
{
    Node **first = NEWN(tmp, Node *, g->nnode);
    Numbers x = {.of = NEWN(tmp, int, g->nvalue), .cap = 16};
    while (x.cap < 2 * g->nnode)
        x.cap *= 2;
    x.table = NEWN(tmp, Node *, x.cap);
    for (int i = 0; i < g->nvalue; i++)
        x.of[i] = i;
    for (Node *n = g->first; n; n = n->next) {
        bool same = !strcmp(n->op->name, "detach");
        first[n->id] = find_or_put(&x, n);
        for (int k = 0; k < n->nout; k++)
            x.of[n->out[k]->id] = x.of[(same ? n->in[0] : first[n->id]->out[k])->id];
    }
    return first;
}
