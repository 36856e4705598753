/* Finds equal nodes by value numbering: two nodes are equal if their op, attributes, stream and
 * operands' numbers are, and their regions node by node. An op of trait IDENTITY (detach, alias)
 * keeps its operand's number. By hashing, linear. */
#include "ir.h"

typedef struct Numbering {
    int *of; /* by value id */
    Node **table;
    int cap;
    Arena *tmp;
} Numbering;

static uint64_t hash_node(const Numbering *x, const Node *n)
{
    uint64_t h = attrs_hash(n);
    if (n->region)
        h = hash_bytes(&n->region->n, sizeof n->region->n, h);
    for (int i = 0; i < n->nin; i++)
        h = hash_bytes(&x->of[n->in[i]->id], sizeof(int), h);
    return h;
}

/* ---- regions ---- */

static bool regions_equal(const Region *r, const Region *s, Arena *tmp);

/* Graphs of the same nodes in the same order. */
static bool bodies_equal(const Graph *g, const Graph *h, Arena *tmp)
{
    if (!g || !h || g->nin != h->nin || g->nout != h->nout)
        return g == h;
    const Value **same = NEWN(tmp, const Value *, g->nvalue); /* by value id of g: of h */
    for (int i = 0; i < g->nin; i++)
        same[g->in[i].v->id] = h->in[i].v;
    const Node *n = g->first, *m = h->first;
    for (; n && m; n = n->next, m = m->next) {
        if (!attrs_equal(n, m) || n->nin != m->nin || n->nout != m->nout ||
            (n->region && !regions_equal(n->region, m->region, tmp)))
            return false;
        for (int i = 0; i < n->nin; i++)
            if (same[n->in[i]->id] != m->in[i])
                return false;
        for (int k = 0; k < n->nout; k++)
            same[n->out[k]->id] = m->out[k];
    }
    bool equal = !n && !m;
    for (int i = 0; i < g->nout && equal; i++)
        equal = same[g->out[i].v->id] == h->out[i].v;
    return equal;
}

static bool regions_equal(const Region *r, const Region *s, Arena *tmp)
{
    bool equal = r->n == s->n && r->reverse == s->reverse && r->nin == s->nin && r->nout == s->nout;
    for (int j = 0; j < r->nin && equal; j++)
        equal = r->in[j].kind == s->in[j].kind && r->in[j].arg == s->in[j].arg &&
                r->in[j].at[MAIN] == s->in[j].at[MAIN] && r->in[j].at[TAIL] == s->in[j].at[TAIL] &&
                r->in[j].axis == s->in[j].axis && r->in[j].step == s->in[j].step;
    for (int k = 0; k < r->nout && equal; k++)
        equal = r->out[k].kind == s->out[k].kind && r->out[k].at[MAIN] == s->out[k].at[MAIN] &&
                r->out[k].at[TAIL] == s->out[k].at[TAIL] && r->out[k].axis == s->out[k].axis &&
                r->out[k].dtype == s->out[k].dtype && r->out[k].carry == s->out[k].carry;
    return equal && bodies_equal(r->body[MAIN], s->body[MAIN], tmp) &&
           bodies_equal(r->body[TAIL], s->body[TAIL], tmp);
}

/* ---- nodes ---- */

static bool equal(const Numbering *x, const Node *n, const Node *m)
{
    if (!attrs_equal(n, m) || n->nin != m->nin || n->nout != m->nout)
        return false;
    for (int i = 0; i < n->nin; i++)
        if (x->of[n->in[i]->id] != x->of[m->in[i]->id])
            return false;
    return !n->region || regions_equal(n->region, m->region, x->tmp);
}

static Node *find_or_put(Numbering *x, Node *n)
{
    int i = (int)(hash_node(x, n) & (uint64_t)(x->cap - 1));
    while (x->table[i] && !equal(x, n, x->table[i]))
        i = (i + 1) & (x->cap - 1);
    return x->table[i] ? x->table[i] : (x->table[i] = n);
}

Node **graph_equals(const Graph *g, Arena *tmp)
{
    Node **first = NEWN(tmp, Node *, g->nnode);
    Numbering x = {.of = NEWN(tmp, int, g->nvalue), .cap = 16, .tmp = tmp};
    while (x.cap < 2 * g->nnode)
        x.cap *= 2;
    x.table = NEWN(tmp, Node *, x.cap);
    for (int i = 0; i < g->nvalue; i++)
        x.of[i] = i;
    for (Node *n = g->first; n; n = n->next) {
        first[n->id] = find_or_put(&x, n);
        for (int k = 0; k < n->nout; k++)
            x.of[n->out[k]->id] = x.of[(n->op->identity ? n->in[0] : first[n->id]->out[k])->id];
    }
    return first;
}
