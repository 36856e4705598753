/* The reduced problem as data: made of a problem, with labels and edges that can be taken out. */
#include "core.h"

#include <string.h>

int core_find_edge(const Core *c, int u, int v)
{
    if (c->var[u].nedge > c->var[v].nedge)
        return core_find_edge(c, v, u);
    for (int i = 0; i < c->var[u].nedge; i++) {
        const CoreEdge *e = &c->edge[c->var[u].edge[i]];
        if (e->u >= 0 && edge_other(e, u) == v)
            return c->var[u].edge[i];
    }
    return -1;
}

static void unlink_edge(Var *x, int e)
{
    int i = 0;
    while (x->edge[i] != e)
        i++;
    x->edge[i] = x->edge[--x->nedge];
}

void core_drop_edge(Core *c, int e)
{
    CoreEdge *x = &c->edge[e];
    unlink_edge(&c->var[x->u], e);
    unlink_edge(&c->var[x->v], e);
    x->u = -1;
}

/* ---- from a problem ---- */

/* A node that has the strategies of another one is no variable of its own. */
static void join_same(Core *c, int i)
{
    Var *x = &c->var[c->problem->same[i]];
    Member member = {i, x->member->strategy};
    PUSH(c->a, x->member, x->nmember, x->member_cap, member);
}

static void fill_var(Core *c, int i)
{
    const PickProblem *p = c->problem;
    if (p->same && p->same[i] >= 0) {
        join_same(c, i);
        return;
    }
    int k = pick_strategies(p, i);
    int *label = NEWN(c->a, int, k);
    Var *x = &c->var[i];
    x->cost = NEWN(c->a, double, k);
    for (int s = 0; s < k; s++)
        if (isfinite(p->cost[p->first[i] + s])) {
            label[x->k] = s;
            x->cost[x->k++] = p->cost[p->first[i] + s];
        }
    c->empty |= !x->k;
    Member member = {i, label};
    PUSH(c->a, x->member, x->nmember, x->member_cap, member);
}

/* An edge of a node with itself is part of the node's cost. */
static void fold_loop(Core *c, const PickEdge *e)
{
    Var *x = &c->var[e->u];
    int k = pick_strategies(c->problem, e->u);
    for (int i = 0; i < x->k; i++)
        x->cost[i] += c->problem->matrix[e->at + (int64_t)x->member->strategy[i] * (k + 1)];
}

/* Adds an edge's costs to those of the edge e, whose ends may be the other way round. */
static void add_matrix(Core *c, CoreEdge *e, const PickEdge *from)
{
    const Var *u = &c->var[e->u], *v = &c->var[e->v];
    const double *m = c->problem->matrix + from->at;
    const int *iu = u->member->strategy, *iv = v->member->strategy;
    int stride = pick_strategies(c->problem, from->v);
    bool turned = from->u != e->u;
    for (int i = 0; i < u->k; i++)
        for (int j = 0; j < v->k; j++)
            e->m[i * v->k + j] +=
                turned ? m[(int64_t)iv[j] * stride + iu[i]] : m[(int64_t)iu[i] * stride + iv[j]];
}

static void add_edge(Core *c, const PickEdge *from)
{
    int at = core_find_edge(c, from->u, from->v);
    if (at < 0) {
        at = c->nedge++;
        Var *u = &c->var[from->u], *v = &c->var[from->v];
        c->edge[at] =
            (CoreEdge){from->u, from->v, SPARSE(c->a, double, (int64_t)u->k * v->k), false};
        PUSH(c->a, u->edge, u->nedge, u->edge_cap, at);
        PUSH(c->a, v->edge, v->nedge, v->edge_cap, at);
    }
    add_matrix(c, &c->edge[at], from);
}

Core *core_new(Arena *a, const PickProblem *p)
{
    Core *c = NEW(a, Core);
    *c = (Core){.a = a, .problem = p, .nvar = p->n};
    c->var = NEWN(a, Var, p->n);
    c->edge = NEWN(a, CoreEdge, p->nedge);
    for (int i = 0; i < p->n; i++)
        fill_var(c, i);
    for (int i = 0; i < p->nedge && !c->empty; i++)
        if (p->edge[i].u == p->edge[i].v)
            fold_loop(c, &p->edge[i]);
        else
            add_edge(c, &p->edge[i]);
    return c;
}

/* ---- fewer labels ---- */

static void keep_columns(CoreEdge *e, int ku, int kv, const bool *du, const bool *dv)
{
    double *to = e->m;
    e->stays = false;
    for (int i = 0; i < ku; i++)
        for (int j = 0; j < kv && !(du && du[i]); j++)
            if (!dv || !dv[j])
                *to++ = e->m[i * kv + j];
}

static void keep_labels(Core *c, Var *x, const bool *dead)
{
    int k = 0;
    for (int i = 0; i < x->k; i++)
        if (!dead[i])
            x->cost[k++] = x->cost[i];
    for (int m = 0; m < x->nmember; m++) {
        int *label = NEWN(c->a, int, k), n = 0;
        for (int i = 0; i < x->k; i++)
            if (!dead[i])
                label[n++] = x->member[m].strategy[i];
        x->member[m].strategy = label;
    }
    x->k = k;
    c->empty |= !k;
}

void core_drop_labels(Core *c, bool *const *dead)
{
    for (int i = 0; i < c->nedge; i++) {
        CoreEdge *e = &c->edge[i];
        if (e->u >= 0 && (dead[e->u] || dead[e->v]))
            keep_columns(e, c->var[e->u].k, c->var[e->v].k, dead[e->u], dead[e->v]);
    }
    for (int u = 0; u < c->nvar; u++)
        if (dead[u])
            keep_labels(c, &c->var[u], dead[u]);
}

static Var copy_var(Arena *a, const Var *from)
{
    Var x = *from;
    x.cost = NEWN(a, double, x.k);
    x.member = NEWN(a, Member, x.nmember);
    x.edge = NEWN(a, int, x.nedge);
    x.member_cap = x.nmember;
    x.edge_cap = x.nedge;
    if (x.k)
        memcpy(x.cost, from->cost, sizeof *x.cost * (size_t)x.k);
    if (x.nmember)
        memcpy(x.member, from->member, sizeof *x.member * (size_t)x.nmember);
    if (x.nedge)
        memcpy(x.edge, from->edge, sizeof *x.edge * (size_t)x.nedge);
    return x;
}

/* The costs of an edge between labels that are not dead. */
static double *copy_columns(Arena *a, const CoreEdge *e, int ku, int kv, const bool *du,
                            const bool *dv)
{
    int nu = 0, nv = 0;
    for (int i = 0; i < ku; i++)
        nu += !du || !du[i];
    for (int j = 0; j < kv; j++)
        nv += !dv || !dv[j];
    double *m = SPARSE(a, double, nu *nv), *to = m;
    for (int i = 0; i < ku; i++)
        for (int j = 0; j < kv && !(du && du[i]); j++)
            if (!dv || !dv[j])
                *to++ = e->m[i * kv + j];
    return m;
}

Core *core_without(Arena *a, const Core *c, bool *const *dead)
{
    Core *y = NEW(a, Core);
    *y = *c;
    y->a = a;
    y->var = NEWN(a, Var, c->nvar);
    y->edge = NEWN(a, CoreEdge, c->nedge);
    for (int i = 0; i < c->nedge; i++) {
        const CoreEdge *e = &c->edge[i];
        y->edge[i] = *e;
        y->edge[i].stays &= e->u >= 0 && !dead[e->u] && !dead[e->v];
        if (e->u >= 0)
            y->edge[i].m =
                copy_columns(a, e, c->var[e->u].k, c->var[e->v].k, dead[e->u], dead[e->v]);
    }
    for (int u = 0; u < c->nvar; u++) {
        y->var[u] = copy_var(a, &c->var[u]);
        if (dead[u])
            keep_labels(y, &y->var[u], dead[u]);
    }
    return y;
}
