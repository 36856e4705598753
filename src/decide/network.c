/* Dinic's method: as long as the sink can be reached, flow goes along shortest paths until each of
 * them is blocked. O(V^2 E) at worst; graphs of recomputation have short paths, and few lengths of
 * them. No recursion: paths may be as long as a model. */
#include "network.h"

#include <string.h>

CutNetwork network_new(Arena *a, int nvertex)
{
    CutNetwork g = {.a = a, .nvertex = nvertex, .first = NEWN(a, int, nvertex)};
    for (int v = 0; v < nvertex; v++)
        g.first[v] = -1;
    return g;
}

static void half_arc(CutNetwork *g, int from, int to, int64_t capacity)
{
    NetworkArc x = {to, g->first[from], capacity};
    g->first[from] = g->narc;
    PUSH(g->a, g->arc, g->narc, g->cap, x);
}

void network_arc(CutNetwork *g, int from, int to, int64_t capacity)
{
    half_arc(g, from, to, capacity);
    half_arc(g, to, from, 0);
}

/* What a search of paths keeps. */
typedef struct PathLevels {
    int *level; /* by vertex: arcs from the source; -1: not reached */
    int *at;    /* by vertex: the arc to be tried next */
    int *queue; /* vertices, then the arcs of the path */
} PathLevels;

/* Fills the levels; false: the sink is not reached. */
static bool find_levels(const CutNetwork *g, PathLevels *l, int source, int sink)
{
    int head = 0, tail = 0;
    for (int v = 0; v < g->nvertex; v++)
        l->level[v] = -1;
    l->level[source] = 0;
    l->queue[tail++] = source;
    while (head < tail) {
        int v = l->queue[head++];
        for (int k = g->first[v]; k >= 0; k = g->arc[k].next) {
            const NetworkArc *x = &g->arc[k];
            if (!x->capacity || l->level[x->to] >= 0)
                continue;
            l->level[x->to] = l->level[v] + 1;
            l->queue[tail++] = x->to;
        }
    }
    return l->level[sink] >= 0;
}

/* The next arc of v that leads one level on; -1: none. */
static int next_arc(const CutNetwork *g, PathLevels *l, int v)
{
    int *k = &l->at[v];
    while (*k >= 0 && (!g->arc[*k].capacity || l->level[g->arc[*k].to] != l->level[v] + 1))
        *k = g->arc[*k].next;
    return *k;
}

/* Sends along a path of `depth` arcs what fits; returns how many of its first arcs are not full. */
static int send(CutNetwork *g, const int *path, int depth)
{
    int64_t most = INT64_MAX;
    int open = depth;
    for (int i = 0; i < depth; i++)
        most = MIN(most, g->arc[path[i]].capacity);
    for (int i = depth - 1; i >= 0; i--) {
        g->arc[path[i]].capacity -= most;
        g->arc[path[i] ^ 1].capacity += most;
        open = g->arc[path[i]].capacity ? open : i;
    }
    return open;
}

/* Sends flow until every path of the present levels is blocked. */
static void block(CutNetwork *g, PathLevels *l, int source, int sink)
{
    int depth = 0, v = source, *path = l->queue;
    memcpy(l->at, g->first, sizeof *l->at * (size_t)g->nvertex);
    for (;;) {
        int k = v == sink ? -1 : next_arc(g, l, v);
        if (k >= 0) {
            path[depth++] = k;
            v = g->arc[k].to;
        } else if (v == sink) {
            depth = send(g, path, depth);
            v = g->arc[path[depth] ^ 1].to;
        } else if (depth) {
            v = g->arc[path[--depth] ^ 1].to;
            l->at[v] = g->arc[l->at[v]].next; /* a dead end */
        } else {
            return;
        }
    }
}

void network_cut(CutNetwork *g, int source, int sink, bool *side)
{
    PathLevels l = {NEWN(g->a, int, g->nvertex), NEWN(g->a, int, g->nvertex),
                    NEWN(g->a, int, g->nvertex)};
    while (find_levels(g, &l, source, sink))
        block(g, &l, source, sink);
    for (int v = 0; v < g->nvertex; v++)
        side[v] = l.level[v] >= 0;
}
