/* Reductions that keep the least cost, and what the strategies use:
 *
 *   consistency   a label goes if an edge forbids it with every label of the other end;
 *   dropping      an edge whose costs are a sum of a part for each end is added to both ends' costs
 *                 (constant edges, and those of variables with one label, are such);
 *   contraction   if each label of u allows one label of v, u decides v: v becomes part of u.
 *
 * They follow each other until nothing changes. Each contraction takes a variable away and each
 * other change a label or an edge, so they end. What is left is a small core: a few hundred
 * variables where tens of thousands of nodes came in (Sharding problems are mostly copies of forms
 * along a graph). */
#include "core.h"

#include <string.h>

/* ---- consistency ---- */

typedef struct DeadLabels {
    bool **dead;
    bool any;
} DeadLabels;

/* Whether label i of u has no label left at the other end. */
static bool unsupported(const Core *c, const CoreEdge *e, int u, int i, const bool *dead_other)
{
    int kv = c->var[e->v].k, other = c->var[edge_other(e, u)].k;
    int stride = e->u == u ? 1 : kv;
    const double *m = e->m + (e->u == u ? i * kv : i);
    for (int j = 0; j < other; j++)
        if (m[j * stride] < INFINITY && !(dead_other && dead_other[j]))
            return false;
    return true;
}

/* DeadLabels labels of u that the edge does not support; whether there were any. */
static bool revise(Core *c, DeadLabels *x, const CoreEdge *e, int u)
{
    bool any = false;
    const Var *var = &c->var[u];
    for (int i = 0; i < var->k; i++) {
        if ((x->dead[u] && x->dead[u][i]) || !unsupported(c, e, u, i, x->dead[edge_other(e, u)]))
            continue;
        if (!x->dead[u])
            x->dead[u] = NEWN(c->a, bool, var->k);
        any = x->dead[u][i] = true;
    }
    x->any |= any;
    return any;
}

typedef struct EdgeQueue {
    Arena *a;
    int *item;
    int n, cap;
    bool *in;
} EdgeQueue;

static void enqueue(EdgeQueue *q, int e)
{
    if (!q->in[e]) {
        q->in[e] = true;
        PUSH(q->a, q->item, q->n, q->cap, e);
    }
}

static void enqueue_var(EdgeQueue *q, const Core *c, int u)
{
    for (int i = 0; i < c->var[u].nedge; i++)
        enqueue(q, c->var[u].edge[i]);
}

static bool make_consistent(Core *c)
{
    DeadLabels x = {NEWN(c->a, bool *, c->nvar), false};
    EdgeQueue q = {.a = c->a, .in = NEWN(c->a, bool, c->nedge)};
    for (int i = c->nedge; i-- > 0;)
        if (c->edge[i].u >= 0)
            enqueue(&q, i);
    while (q.n) {
        int at = q.item[--q.n];
        const CoreEdge *e = &c->edge[at];
        q.in[at] = false;
        if (revise(c, &x, e, e->u))
            enqueue_var(&q, c, e->u);
        if (revise(c, &x, e, e->v))
            enqueue_var(&q, c, e->v);
    }
    if (x.any)
        core_drop_labels(c, x.dead);
    return x.any;
}

/* ---- dropping ---- */

static bool separable(const double *m, int ku, int kv)
{
    for (int i = 0; i < ku; i++)
        for (int j = 0; j < kv; j++) {
            double x = m[i * kv + j];
            if (x == INFINITY || x - m[i * kv] != m[j] - m[0])
                return false;
        }
    return true;
}

static bool drop_separable(Core *c, int at)
{
    CoreEdge *e = &c->edge[at];
    Var *u = &c->var[e->u], *v = &c->var[e->v];
    if (!separable(e->m, u->k, v->k))
        return false;
    for (int i = 0; i < u->k; i++)
        u->cost[i] += e->m[i * v->k];
    for (int j = 0; j < v->k; j++)
        v->cost[j] += e->m[j] - e->m[0];
    core_drop_edge(c, at);
    return true;
}

/* ---- contraction ---- */

/* The only label that each label of u allows at the other end, in to; false where one allows more,
 * or none. */
static bool functional(const Core *c, const CoreEdge *e, int u, int *to)
{
    int kv = c->var[e->v].k, other = c->var[edge_other(e, u)].k;
    const int64_t stride = e->u == u ? 1 : kv;
    for (int i = 0; i < c->var[u].k; i++) {
        const double *m = e->m + (e->u == u ? (int64_t)i * kv : i);
        to[i] = -1;
        for (int j = 0; j < other; j++)
            if (m[j * stride] < INFINITY) {
                if (to[i] >= 0)
                    return false;
                to[i] = j;
            }
        if (to[i] < 0)
            return false;
    }
    return true;
}

static double edge_cost(const Core *c, const CoreEdge *e, int u, int i, int j)
{
    const int64_t kv = c->var[e->v].k;
    return e->u == u ? e->m[i * kv + j] : e->m[j * kv + i];
}

/* The edge between v and w becomes one between u and w, or part of the one that there is. */
static void move_edge(Core *c, int at, int v, int u, const int *to)
{
    CoreEdge *e = &c->edge[at];
    int w = edge_other(e, v), there = core_find_edge(c, u, w);
    const int64_t kw = c->var[w].k;
    double *m = NEWN(c->a, double, c->var[u].k *kw);
    for (int i = 0; i < c->var[u].k; i++)
        for (int j = 0; j < kw; j++)
            m[i * kw + j] = edge_cost(c, e, v, to[i], j) +
                            (there < 0 ? 0 : edge_cost(c, &c->edge[there], u, i, j));
    core_drop_edge(c, at);
    if (there >= 0)
        core_drop_edge(c, there);
    *e = (CoreEdge){u, w, m, false};
    PUSH(c->a, c->var[u].edge, c->var[u].nedge, c->var[u].edge_cap, at);
    PUSH(c->a, c->var[w].edge, c->var[w].nedge, c->var[w].edge_cap, at);
}

static void move_members(Core *c, Var *from, Var *x, const int *to)
{
    for (int m = 0; m < from->nmember; m++) {
        int *label = NEWN(c->a, int, x->k);
        for (int i = 0; i < x->k; i++)
            label[i] = from->member[m].strategy[to[i]];
        Member member = {from->member[m].node, label};
        PUSH(c->a, x->member, x->nmember, x->member_cap, member);
    }
}

static void contract(Core *c, int at, int u, int v, const int *to)
{
    CoreEdge *e = &c->edge[at];
    Var *x = &c->var[u], *from = &c->var[v];
    for (int i = 0; i < x->k; i++)
        x->cost[i] += from->cost[to[i]] + edge_cost(c, e, u, i, to[i]);
    move_members(c, from, x, to);
    core_drop_edge(c, at);
    while (from->nedge)
        move_edge(c, from->edge[from->nedge - 1], v, u, to);
    *from = (Var){0};
}

static int weight(const Core *c, int u)
{
    return c->var[u].nedge + c->var[u].nmember;
}

/* Whether v, which u decides, can be contracted into it: no edge's matrix gets beyond a size. */
static bool contractible(const Core *c, int u, int v)
{
    enum { MOST = 1 << 24 };
    bool small = true;
    for (int i = 0; i < c->var[v].nedge && small; i++) {
        const int w = edge_other(&c->edge[c->var[v].edge[i]], v);
        small = w == u || (int64_t)c->var[u].k * c->var[w].k <= MOST;
    }
    return small;
}

/* Contracts where it can: the end with less into the other if both decide each other. */
static int contract_edge(Core *c, int at)
{
    CoreEdge *e = &c->edge[at];
    int u = e->u, v = e->v;
    if (weight(c, u) < weight(c, v)) {
        u = e->v;
        v = e->u;
    }
    int *to = NEWN(c->a, int, MAX(c->var[u].k, c->var[v].k));
    bool first = functional(c, e, u, to);
    if (first && contractible(c, u, v)) {
        contract(c, at, u, v, to);
        return u;
    }
    bool second = functional(c, e, v, to);
    if (second && contractible(c, v, u)) {
        contract(c, at, v, u, to);
        return v;
    }
    e->stays = !first && !second;
    return -1;
}

static bool shorten(Core *c)
{
    bool any = false;
    EdgeQueue q = {.a = c->a, .in = NEWN(c->a, bool, c->nedge)};
    for (int i = c->nedge; i-- > 0;)
        if (c->edge[i].u >= 0)
            enqueue(&q, i);
    while (q.n) {
        int at = q.item[--q.n], u;
        q.in[at] = false;
        if (c->edge[at].u < 0 || c->edge[at].stays)
            continue;
        if (drop_separable(c, at))
            any = true;
        else if ((u = contract_edge(c, at)) >= 0) {
            any = true;
            enqueue_var(&q, c, u);
        }
    }
    return any;
}

static void settle(Core *c)
{
    do
        make_consistent(c);
    while (!c->empty && shorten(c));
}

void core_reduce(Core *c)
{
    enum { ROUNDS = 4 };
    if (!c->empty)
        settle(c);
    for (int i = 0; i < ROUNDS && !c->empty && core_drop_dominated(c); i++)
        settle(c);
}
