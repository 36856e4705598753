/* Dinic's algorithm (1970): as long as the sink can be reached, flow goes along shortest paths
 * until each of them is blocked. O(V^2 E) at worst. It does not recurse: paths may be as long as a
 * model.
 */
#include "network.h"

#include <string.h>

Network network_new(Arena *a, int most, int64_t left)
{
    Network c = {.a = a, .left = left};
    c.first = NEWN(a, int, most);
    c.now = NEWN(a, int, most);
    c.level = NEWN(a, int, most);
    c.queue = NEWN(a, int, most);
    network_clear(&c);
    return c;
}

void network_clear(Network *c)
{
    c->nvertex = c->narc = 0;
    network_vertices(c, 2);
}

int network_vertices(Network *c, int count)
{
    int first = c->nvertex;
    while (c->nvertex < first + count)
        c->first[c->nvertex++] = -1;
    return first;
}

static void half_arc(Network *c, int from, int to, int64_t capacity)
{
    NetworkArc x = {to, c->first[from], capacity};
    c->first[from] = c->narc;
    PUSH(c->a, c->arc, c->narc, c->cap, x);
}

void network_arc(Network *c, int from, int to, int64_t capacity)
{
    half_arc(c, from, to, capacity);
    half_arc(c, to, from, 0);
}

/* Fills each vertex's number of arcs from the source, -1 where it is not reached; false: the sink
 * is not. */
static bool fill_levels(Network *c)
{
    int n = 0;
    for (int v = 0; v < c->nvertex; v++)
        c->level[v] = -1;
    c->level[c->queue[n++] = NETWORK_SOURCE] = 0;
    for (int k = 0; k < n; k++)
        for (int e = c->first[c->queue[k]]; e >= 0; e = c->arc[e].next, c->left--)
            if (c->arc[e].capacity > 0 && c->level[c->arc[e].to] < 0)
                c->level[c->queue[n++] = c->arc[e].to] = c->level[c->queue[k]] + 1;
    return c->level[NETWORK_SINK] >= 0;
}

/* The capacity of one more path, found depth first; queue holds its arcs. */
static int64_t push_path(Network *c)
{
    int depth = 0, v = NETWORK_SOURCE;
    while (v != NETWORK_SINK) {
        int e = c->now[v];
        c->left--;
        if (e < 0 && !depth)
            return 0;
        if (e < 0) { /* no way on from here */
            v = c->arc[c->queue[--depth] ^ 1].to;
            c->now[v] = c->arc[c->now[v]].next;
        } else if (c->arc[e].capacity > 0 && c->level[c->arc[e].to] == c->level[v] + 1) {
            c->queue[depth++] = e;
            v = c->arc[e].to;
        } else {
            c->now[v] = c->arc[e].next;
        }
    }
    int64_t flow = INT64_MAX;
    for (int k = 0; k < depth; k++)
        flow = MIN(flow, c->arc[c->queue[k]].capacity);
    for (int k = 0; k < depth; k++) {
        c->arc[c->queue[k]].capacity -= flow;
        c->arc[c->queue[k] ^ 1].capacity += flow;
    }
    return flow;
}

int64_t network_flow(Network *c)
{
    int64_t sum = 0;
    while (c->left > 0 && fill_levels(c)) {
        memcpy(c->now, c->first, sizeof *c->now * (size_t)c->nvertex);
        for (int64_t flow; c->left > 0 && (flow = push_path(c));)
            sum += flow;
    }
    return sum;
}

bool network_side(const Network *c, int vertex)
{
    return c->level[vertex] >= 0;
}
