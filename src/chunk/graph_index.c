/* graph_index: what chunk knows of the nodes of a graph. Filled in two walks of the graph, once; a
 * loop that is made changes what is near it: the nodes between its first and its place, and the
 * readers of its results. */
#include "graph_index.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define GAP ((int64_t)1 << 20) /* between places */

/* ---- places ---- */

typedef struct PlacedNode {
    int64_t place;
    Node *n;
} PlacedNode;

static int by_place(const void *a, const void *b)
{
    const PlacedNode *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

int index_sort(const ChunkIndex *x, Arena *tmp, Node **list, int count)
{
    PlacedNode *p = NEWN(tmp, PlacedNode, count);
    int n = 0;
    for (int i = 0; i < count; i++)
        p[i] = (PlacedNode){x->place[list[i]->id], list[i]};
    if (count)
        qsort(p, (size_t)count, sizeof *p, by_place);
    for (int i = 0; i < count; i++)
        if (!n || list[n - 1] != p[i].n)
            list[n++] = p[i].n;
    list[n] = NULL;
    return n;
}

void index_place(ChunkIndex *x, const Node *from, const Node *to)
{
    int64_t count = 1, low = from ? x->place[from->id] : 0;
    for (const Node *n = from ? from->next : x->g->first; n != to; n = n->next)
        count++;
    int64_t gap = to ? (x->place[to->id] - low) / count : GAP;
    if (!gap) { /* no room: all are placed again */
        from = to = NULL;
        low = 0;
        gap = GAP;
    }
    for (const Node *n = from ? from->next : x->g->first; n != to; n = n->next)
        x->place[n->id] = low += gap;
}

/* ---- readers ---- */

void index_add_user(ChunkIndex *x, const Value *v, Node *n)
{
    int *count = &x->nuser[v->id], *cap = &x->capuser[v->id];
    if (*count + 2 > *cap) {
        *cap = 2 * *count + 4;
        Node **more = NEWN(x->a, Node *, *cap);
        if (*count)
            memcpy(more, x->user[v->id], sizeof *more * (size_t)*count);
        x->user[v->id] = more;
    }
    x->user[v->id][(*count)++] = n;
    x->user[v->id][*count] = NULL;
    x->stale[v->id] = true;
}

static bool reads(const Node *n, const Value *v)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == v)
            return true;
    return false;
}

Node **index_users(ChunkIndex *x, const Value *v)
{
    Node **user = x->user[v->id];
    if (!x->stale[v->id])
        return user;
    int count = 0;
    for (Node **n = user; *n; n++)
        if (x->place[(*n)->id] != GONE && reads(*n, v))
            user[count++] = *n;
    x->nuser[v->id] = index_sort(x, x->a, user, count);
    x->stale[v->id] = false;
    return user;
}

static void mark_operands(ChunkIndex *x, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        x->stale[n->in[i]->id] = x->user[n->in[i]->id] != NULL;
}

/* ---- paths ---- */

static void fill_leave(ChunkIndex *x, const Node *n)
{
    for (int i = 0; i < node_nsource(n); i++)
        if (node_source(n, i))
            x->leave[n->id] = MAX(x->leave[n->id], x->leave[node_source(n, i)->id]);
}

static void fill_enter(ChunkIndex *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        for (Node **m = x->user[n->out[k]->id]; m && *m; m++)
            if (x->place[(*m)->id] != GONE)
                x->enter[n->id] = MIN(x->enter[n->id], x->enter[(*m)->id]);
}

/* Positions along the longest path. */
static void find_longest(ChunkIndex *x)
{
    int *depth = NEWN(x->a, int, x->g->nnode);
    const Node *last = NULL, *next;
    for (const Node *n = x->g->first; n; n = n->next) {
        depth[n->id] = 1;
        x->enter[n->id] = INT_MAX;
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->def)
                depth[n->id] = MAX(depth[n->id], depth[n->in[i]->def->id] + 1);
        last = !last || depth[n->id] > depth[last->id] ? n : last;
    }
    for (; last; last = next) {
        x->enter[last->id] = x->leave[last->id] = depth[last->id];
        next = NULL;
        for (int i = 0; i < last->nin; i++)
            if (last->in[i]->def && depth[last->in[i]->def->id] == depth[last->id] - 1)
                next = last->in[i]->def;
    }
    for (const Node *n = x->g->first; n; n = n->next)
        fill_leave(x, n);
    for (const Node *n = x->g->last; n; n = n->prev)
        fill_enter(x, n);
}

/* ---- a graph ---- */

static void count_users(ChunkIndex *x)
{
    const Graph *g = x->g;
    for (Node *n = g->first; n; n = n->next) {
        for (int i = 0; i < n->nin; i++)
            x->capuser[n->in[i]->id]++;
        if (n->nafter)
            PUSH(x->a, x->edged, x->nedged, x->capedged, n);
    }
    for (int v = 0; v < g->nvalue; v++)
        x->user[v] = x->capuser[v] ? NEWN(x->a, Node *, ++x->capuser[v]) : NULL;
    for (Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            x->user[n->in[i]->id][x->nuser[n->in[i]->id]++] = n;
}

static void fill(ChunkIndex *x)
{
    const Graph *g = x->g;
    Arena *a = x->a;
    x->mostnode = 4 * g->nnode + 2000;
    x->mostvalue = 4 * g->nvalue + 2000;
    x->user = SPARSE(a, Node **, x->mostvalue);
    x->nuser = SPARSE(a, int, x->mostvalue);
    x->capuser = SPARSE(a, int, x->mostvalue);
    x->stale = SPARSE(a, bool, x->mostvalue);
    x->place = SPARSE(a, int64_t, x->mostnode);
    x->output = SPARSE(a, int, x->mostvalue);
    x->more = NEWN(a, int, g->nout);
    x->enter = SPARSE(a, int, x->mostnode);
    x->leave = SPARSE(a, int, x->mostnode);
    for (int l = 0; l < 2; l++) {
        x->outside[l] = NEWN(a, bool, x->mostnode);
        memset(x->outside[l], true, (size_t)x->mostnode * sizeof *x->outside[l]);
    }
    for (int i = g->nout; i-- > 0;) {
        x->more[i] = x->output[g->out[i].v->id];
        x->output[g->out[i].v->id] = i + 1;
    }
    index_place(x, NULL, NULL);
    count_users(x);
    find_longest(x);
}

ChunkIndex *index_new(Graph *g, Arena *a)
{
    ChunkIndex *x = NEW(a, ChunkIndex);
    *x = (ChunkIndex){.g = g, .a = a};
    fill(x);
    return x;
}

void index_reserve(ChunkIndex *x)
{
    if (2 * x->g->nnode + 1000 <= x->mostnode && 2 * x->g->nvalue + 1000 <= x->mostvalue)
        return;
    *x = (ChunkIndex){.g = x->g, .a = x->a};
    fill(x);
}

/* ---- a loop ---- */

bool *index_outside(ChunkIndex *x, int l)
{
    while (x->nlowered[l])
        x->outside[l][x->lowered[l][--x->nlowered[l]]] = true;
    return x->outside[l];
}

void index_lower(ChunkIndex *x, int l, const Node *n)
{
    x->outside[l][n->id] = false;
    PUSH(x->a, x->lowered[l], x->nlowered[l], x->caplowered[l], n->id);
}

/* Follows the readers of v, a result of the loop: they read a value that was made since. */
static void follow_result(ChunkIndex *x, const Value *v, int nvalue)
{
    for (Node **n = x->user[v->id]; n && *n; n++)
        for (int i = 0; i < (*n)->nin && x->place[(*n)->id] != GONE; i++)
            if ((*n)->in[i]->id >= nvalue)
                index_add_user(x, (*n)->in[i], *n);
    int first = x->output[v->id];
    if (first) {
        x->output[x->g->out[first - 1].v->id] = first;
        x->output[v->id] = 0;
    }
}

static void drop_nodes(ChunkIndex *x, const LoopPart *p)
{
    int count = 0;
    for (Node *const *n = p->node; *n; n++) {
        mark_operands(x, *n);
        if (!p->outside[(*n)->id])
            x->place[(*n)->id] = GONE;
    }
    for (int i = 0; i < x->nedged; i++)
        if (x->place[x->edged[i]->id] != GONE)
            x->edged[count++] = x->edged[i];
    x->nedged = count;
}

Node *index_loop(ChunkIndex *x, Arena *tmp, const LoopPart *p)
{
    const Graph *g = x->g;
    int nnode = g->nnode, nvalue = g->nvalue;
    Node *before = p->node[0]->prev;
    Node *loop = loop_make(x->g, tmp, p);
    Node *first = before ? before->next : g->first, *last = p->before ? p->before->prev : g->last;
    CHECK(g->nnode <= x->mostnode && g->nvalue <= x->mostvalue);
    drop_nodes(x, p);
    for (Node *n = first; n != p->before; n = n->next) {
        if (n->id >= nnode)
            for (int i = 0; i < n->nin; i++)
                index_add_user(x, n->in[i], n);
        else if (p->after[n->id])
            mark_operands(x, n);
    }
    index_place(x, before, p->before);
    for (Node *const *n = p->node; *n; n++)
        for (int k = 0; k < (*n)->nout; k++)
            if (p->yielded[(*n)->out[k]->id])
                follow_result(x, (*n)->out[k], nvalue);
    for (const Node *n = first; n != p->before; n = n->next)
        if (n->id >= nnode)
            fill_leave(x, n);
    for (const Node *n = last; n != before; n = n->prev)
        if (n->id >= nnode) {
            x->enter[n->id] = INT_MAX;
            fill_enter(x, n);
        }
    return loop;
}
