/* Dominated labels: label i of a variable goes if another one, j, costs no more whatever its
 * neighbours are, and no member uses more with it: a solution with i can take j instead (dead-end
 * elimination; Goldstein, 1994). */
#include "core.h"

/* What an edge costs with label i of u, for label k of the other end: at[k * stride]. */
typedef struct EdgeRow {
    const double *at;
    int stride, n;
} EdgeRow;

static EdgeRow row_of(const Core *c, const CoreEdge *e, int u, int i)
{
    int kv = c->var[e->v].k, ku = c->var[e->u].k;
    return e->u == u ? (EdgeRow){e->m + (int64_t)i * kv, 1, kv} : (EdgeRow){e->m + i, kv, ku};
}

static int least_at(EdgeRow r)
{
    int least = 0;
    for (int k = 1; k < r.n; k++)
        if (r.at[k * r.stride] < r.at[least * r.stride])
            least = k;
    return least;
}

/* How much more j can cost than i by an edge, at most. */
static double most_more(EdgeRow i, EdgeRow j)
{
    double most = -INFINITY;
    for (int k = 0; k < i.n; k++)
        if (i.at[k * i.stride] < INFINITY)
            most = fmax(most, j.at[k * j.stride] - i.at[k * i.stride]);
    return most;
}

static bool uses_no_more(const Core *c, const Var *x, int i, int j)
{
    const PickProblem *p = c->problem;
    for (int m = 0; m < x->nmember && p->limit < PICK_MOST; m++) {
        int node = x->member[m].node, first = p->first[node];
        if (p->start[node] < p->end[node] &&
            p->usage[first + x->member[m].strategy[j]] > p->usage[first + x->member[m].strategy[i]])
            return false;
    }
    return true;
}

/* Where label i is at its best, with labels best[e] at the other ends: what j costs more there. */
static double more_at_best(const Core *c, int u, int j, int i, const int *best)
{
    const Var *x = &c->var[u];
    double more = x->cost[j] - x->cost[i];
    for (int e = 0; e < x->nedge; e++) {
        const CoreEdge *edge = &c->edge[x->edge[e]];
        EdgeRow ri = row_of(c, edge, u, i), rj = row_of(c, edge, u, j);
        more += rj.at[best[e] * rj.stride] - ri.at[best[e] * ri.stride];
    }
    return more;
}

static bool dominates(const Core *c, int u, int j, int i, const int *best)
{
    const Var *x = &c->var[u];
    if (more_at_best(c, u, j, i, best) > 0 || !uses_no_more(c, x, i, j))
        return false;
    double more = x->cost[j] - x->cost[i];
    for (int e = 0; e < x->nedge; e++) {
        const CoreEdge *edge = &c->edge[x->edge[e]];
        more += most_more(row_of(c, edge, u, i), row_of(c, edge, u, j));
    }
    return more <= 0;
}

static bool is_dominated(const Core *c, int u, int i, const bool *dead, const int *best)
{
    for (int j = 0; j < c->var[u].k; j++)
        if (j != i && !dead[j] && dominates(c, u, j, i, best))
            return true;
    return false;
}

/* Those of the labels of u that go; NULL: none. */
static bool *find_dominated(const Core *c, int u)
{
    const Var *x = &c->var[u];
    int *best = NEWN(c->a, int, x->nedge);
    bool *dead = NEWN(c->a, bool, x->k), any = false;
    for (int i = 0; i < x->k; i++) {
        for (int e = 0; e < x->nedge; e++)
            best[e] = least_at(row_of(c, &c->edge[x->edge[e]], u, i));
        any |= dead[i] = is_dominated(c, u, i, dead, best);
    }
    return any ? dead : NULL;
}

bool core_drop_dominated(Core *c)
{
    bool any = false, **dead = NEWN(c->a, bool *, c->nvar);
    for (int u = 0; u < c->nvar; u++)
        any |= c->var[u].k > 1 && (dead[u] = find_dominated(c, u));
    if (any)
        core_drop_labels(c, dead);
    return any;
}
