/* offload_pins: the nodes beside which `offload` keeps its copies, and the order edges for that.
 * Two walks over the graph fill tables that give the nearest such node in either direction; edges
 * are collected and given to their nodes at the end. Linear, but for a sort. */
#include "offload.h"

#include <stdlib.h>
#include <string.h>

bool offload_stands_alone(const Node *n)
{
    FusedShape s;
    if (n->op->view || !n->nin || node_transfers(n))
        return false;
    if (!node_rows(n, &s))
        s = (FusedShape){type_nelem(&n->out[0]->type), 0};
    return !node_fusible(n, &s);
}

static bool computes(const Node *n)
{
    return n->nin && !n->op->view && !node_transfers(n) && n->phase <= BACKWARD;
}

Pins pins_new(const Graph *g, Arena *tmp)
{
    Pins p = {.at = NEWN(tmp, Node *, g->nnode), .place = NEWN(tmp, int, g->nnode)};
    int **table[] = {&p.prev, &p.prev_alone, &p.next, &p.next_alone};
    int count = 0, near[LEN(table)];
    for (int k = 0; k < LEN(table); k++) {
        *table[k] = NEWN(tmp, int, g->nnode);
        near[k] = -1;
    }
    for (Node *n = g->first; n; n = n->next) {
        bool good = computes(n);
        p.place[n->id] = count;
        near[0] = good ? count : near[0];
        near[1] = good && offload_stands_alone(n) ? count : near[1];
        p.prev[count] = near[0];
        p.prev_alone[count] = near[1];
        p.at[count++] = n;
    }
    for (int k = count - 1; k >= 0; k--) {
        bool backward = p.at[k]->phase == BACKWARD;
        p.next[k] = near[2] = backward && p.prev[k] == k ? k : near[2];
        p.next_alone[k] = near[3] = backward && p.prev_alone[k] == k ? k : near[3];
    }
    return p;
}

Node *pins_find(const Pins *p, const Node *from, const Node *end, bool forward)
{
    if (!from)
        return NULL;
    int k = p->place[from->id], stop = end ? p->place[end->id] : -1;
    int alone = (forward ? p->next_alone : p->prev_alone)[k];
    int other = (forward ? p->next : p->prev)[k];
    if (alone >= 0 && (forward ? alone < stop : alone > stop))
        return p->at[alone];
    return other >= 0 && (forward ? other < stop : other > stop) ? p->at[other] : NULL;
}

void edges_add(Edges *e, Node *n, Node *after)
{
    int index = e->count; /* PUSH changes the count in the expression that reads the element */
    PUSH(e->tmp, e->list, e->count, e->cap, ((Edge){n, after, index}));
}

static int by_node(const void *p, const void *q)
{
    const Edge *x = p, *y = q;
    return x->node != y->node ? x->node->id - y->node->id : x->index - y->index;
}

void edges_emit(Graph *g, const Edges *e)
{
    if (e->count)
        qsort(e->list, (size_t)e->count, sizeof *e->list, by_node);
    for (int i = 0, end; i < e->count; i = end) {
        Node *n = e->list[i].node;
        for (end = i; end < e->count && e->list[end].node == n; end++)
            ;
        Node **list = NEWN(g->a, Node *, n->nafter + end - i);
        if (n->nafter)
            memcpy(list, n->after, sizeof *list * (size_t)n->nafter);
        for (int k = i; k < end; k++)
            list[n->nafter++] = e->list[k].after;
        n->after = list;
    }
}
