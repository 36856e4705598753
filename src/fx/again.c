/* What an imported graph computes again. Tracers write down what activation checkpointing made the
 * program do: the forward's calls once more in the backward, as if they were others. A backward
 * node that is equal to a forward one gets it as its origin, so that what `remat` makes and what
 * was traced look alike: neither is merged with the original, and both count as recomputation.
 *
 * By numbering values: two nodes are equal if op, attributes and the numbers of their operands are;
 * detach changes no number. Views and what has no operands cost nothing and get no origin. Linear.
 */
#include "fx.h"

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
    if (!attrs_equal(n, m) || n->nin != m->nin || n->nout != m->nout || n->op->random || n->region)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (x->of[n->in[i]->id] != x->of[m->in[i]->id])
            return false;
    return true;
}

/* The first node equal to n, which may be n. */
static Node *find_or_put(Numbers *x, Node *n)
{
    int i = (int)(hash_node(x, n) & (uint64_t)(x->cap - 1));
    while (x->table[i] && !equal(x, n, x->table[i]))
        i = (i + 1) & (x->cap - 1);
    return x->table[i] ? x->table[i] : (x->table[i] = n);
}

int fx_mark_again(Importer *im)
{
    Graph *g = im->g;
    Numbers x = {.of = NEWN(im->a, int, g->nvalue), .cap = 16};
    int count = 0;
    while (x.cap < 2 * g->nnode)
        x.cap *= 2;
    x.table = NEWN(im->a, Node *, x.cap);
    for (int i = 0; i < g->nvalue; i++)
        x.of[i] = i;
    for (Node *n = g->first; n; n = n->next) {
        Node *m = find_or_put(&x, n);
        bool same = node_is(n, "detach");
        for (int k = 0; k < n->nout; k++)
            x.of[n->out[k]->id] = x.of[(same ? n->in[0] : m->out[k])->id];
        if (m->phase >= BACKWARD || n->phase < BACKWARD || n->op->view || !n->nin)
            continue;
        n->origin = m->out[0]->name;
        count++;
    }
    return count;
}
