/* offload_pins: the nodes beside which `offload` keeps its copies, and the order edges for that.
 * Two walks over the graph fill tables that give the nearest such node in either direction; edges
 * are collected and given to their nodes at the end. Linear, but for a sort. */
#include "offload.h"

#include <stdlib.h>
#include <string.h>

/* The nodes of one graph in their present order. By place: the nearest node that computes, and the
 * nearest that computes alone, from that place towards the graph's end (from the backward on) or
 * towards its beginning, itself included; -1: none. */
typedef struct Pins {
    Node **at;
    int *place; /* by node id */
    int *next, *next_alone, *prev, *prev_alone;
} Pins;

/* An order edge: `node` runs after `after`. */
typedef struct Edge {
    Node *node, *after;
    int index;
} Edge;

typedef struct Edges {
    Arena *tmp;
    Edge *list;
    int count, cap;
} Edges;

bool offload_stands_alone(const Node *n)
{
    FusedShape s;
    if (n->op->view || !n->nin || node_transfers(n))
        return false;
    if (!node_rows(n, &s))
        s = (FusedShape){type_nelem(&n->out[0]->type), 0};
    return !node_fusible(n, &s);
}

static bool computes(const Node *n, Phase latest)
{
    return n->nin && !n->op->view && !node_transfers(n) && n->phase <= latest;
}

static Pins pins_new(const Graph *g, Arena *tmp, Phase latest)
{
    Pins p = {.at = NEWN(tmp, Node *, g->nnode), .place = NEWN(tmp, int, g->nnode)};
    int **table[] = {&p.prev, &p.prev_alone, &p.next, &p.next_alone};
    int count = 0, near[LEN(table)];
    for (int k = 0; k < LEN(table); k++) {
        *table[k] = NEWN(tmp, int, g->nnode);
        near[k] = -1;
    }
    for (Node *n = g->first; n; n = n->next) {
        bool good = computes(n, latest);
        p.place[n->id] = count;
        near[0] = good ? count : near[0];
        near[1] = good && offload_stands_alone(n) ? count : near[1];
        p.prev[count] = near[0];
        p.prev_alone[count] = near[1];
        p.at[count++] = n;
    }
    for (int k = count - 1; k >= 0; k--) {
        bool backward = p.at[k]->phase >= BACKWARD;
        p.next[k] = near[2] = backward && p.prev[k] == k ? k : near[2];
        p.next_alone[k] = near[3] = backward && p.prev_alone[k] == k ? k : near[3];
    }
    return p;
}

static Node *pins_find(const Pins *p, const Node *from, const Node *end, bool forward)
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

static void edges_add(Edges *e, Node *n, Node *after)
{
    int index = e->count; /* PUSH changes the count in the expression that reads the element */
    PUSH(e->tmp, e->list, e->count, e->cap, ((Edge){n, after, index}));
}

static int by_node(const void *p, const void *q)
{
    const Edge *x = p, *y = q;
    return x->node != y->node ? x->node->id - y->node->id : x->index - y->index;
}

static void edges_emit(Graph *g, const Edges *e)
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

/* ---- order edges ---- */

/* Keeps what was moved away from its first place. */
static void pin(const Pins *p, Edges *e, const Transfer *c)
{
    Node *host = c->node[HOST_NODE], *load = c->node[LOAD_NODE];
    Node *pin = c->deferred ? pins_find(p, host->prev, c->node[COPY_NODE], false) : NULL;
    if (pin) {
        host->phase = MAX(host->phase, pin->phase);
        edges_add(e, host, pin);
    }
    if (!c->prefetched)
        return;
    if ((pin = pins_find(p, load->next, c->node[BACK_NODE], true))) {
        load->phase = MIN(load->phase, pin->phase);
        edges_add(e, pin, load);
    }
    pin = pins_find(p, load->prev, load->in[0]->def, false);
    if (pin && pin->phase <= load->phase)
        edges_add(e, load, pin);
}

/* Keeps the copies of one direction in the order in which they stand, in which they were timed:
 * they follow one another, and one that waits for a later copy would wait for two. */
static void pin_copies(const Transfers *t, Edges *e)
{
    bool *made = NEWN(e->tmp, bool, t->s.g->nnode);
    Node *last[NPART] = {NULL};
    for (int k = 0; k < t->count; k++)
        for (int i = 0; i < 2; i++) {
            const Node *n = t->list[k].node[i ? LOAD_NODE : COPY_NODE];
            if (n)
                made[n->id] = true;
        }
    for (Node *n = t->s.g->first; n; n = n->next) {
        TransferPart part = n->op->to_host ? COPY_NODE : LOAD_NODE;
        if (!made[n->id])
            continue;
        if (last[part] && last[part]->phase <= n->phase)
            edges_add(e, n, last[part]);
        last[part] = n;
    }
}

void offload_pin(const Transfers *t, Arena *tmp)
{
    Pins p = pins_new(t->s.g, tmp, BACKWARD), state = pins_new(t->s.g, tmp, OPTIMIZER);
    Edges e = {.tmp = tmp};
    for (int k = 0; k < t->count; k++)
        pin(t->list[k].state ? &state : &p, &e, &t->list[k]);
    pin_copies(t, &e);
    edges_emit(t->s.g, &e);
}
