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

/* How much more j can cost than i by an edge, at most; INFINITY: more than `enough`. */
static double most_more(EdgeRow i, EdgeRow j, double enough)
{
    double most = -INFINITY;
    for (int k = 0; k < i.n && most <= enough; k++)
        if (i.at[k * i.stride] < INFINITY)
            most = fmax(most, j.at[k * j.stride] - i.at[k * i.stride]);
    return most <= enough ? most : INFINITY;
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

/* The cost of label j beyond that of i, by an edge whose other end has label k. */
static double more_with(const Core *c, const CoreEdge *e, int u, int i, int j, int k)
{
    EdgeRow ri = row_of(c, e, u, i), rj = row_of(c, e, u, j);
    return rj.at[k * rj.stride] - ri.at[k * ri.stride];
}

/* Fills what each label costs more than i where i is at its best, with labels best[e] at the other
 * ends: of what it can cost more that is the least. */
static void fill_more(const Core *c, int u, int i, int *best, double *more)
{
    const Var *x = &c->var[u];
    for (int j = 0; j < x->k; j++)
        more[j] = x->cost[j] - x->cost[i];
    for (int e = 0; e < x->nedge; e++) {
        const CoreEdge *edge = &c->edge[x->edge[e]];
        const EdgeRow row = row_of(c, edge, u, i), first = row_of(c, edge, u, 0);
        best[e] = least_at(row);
        const double own = row.at[best[e] * row.stride], *at = first.at + best[e] * first.stride;
        const int stride = edge->u == u ? first.n : 1; /* from label to label of u */
        for (int j = 0; j < x->k; j++)
            more[j] += at[(int64_t)j * stride] - own;
    }
}

/* more: of fill_more. It becomes what j can cost more edge by edge, as long as that is nothing. */
static bool dominates(const Core *c, int u, int j, int i, const int *best, double more)
{
    const Var *x = &c->var[u];
    if (!(more <= 0) || !uses_no_more(c, x, i, j))
        return false;
    for (int e = 0; e < x->nedge && more <= 0; e++) {
        const CoreEdge *edge = &c->edge[x->edge[e]];
        more -= more_with(c, edge, u, i, j, best[e]);
        more += most_more(row_of(c, edge, u, i), row_of(c, edge, u, j), -more);
    }
    return more <= 0;
}

/* Whether label i stands for the strategies that are kept. */
static bool is_kept(const Core *c, const Var *x, int i)
{
    for (int m = 0; m < x->nmember; m++)
        if (!c->kept || x->member[m].strategy[i] != c->kept[x->member[m].node])
            return false;
    return true;
}

/* Those of the labels of u that go; NULL: none. */
static bool *find_dominated(const Core *c, int u)
{
    const Var *x = &c->var[u];
    int *best = NEWN(c->a, int, x->nedge);
    double *more = NEWN(c->a, double, x->k);
    bool *dead = NEWN(c->a, bool, x->k), any = false;
    for (int i = 0; i < x->k; i++) {
        if (is_kept(c, x, i))
            continue;
        fill_more(c, u, i, best, more);
        for (int j = 0; j < x->k && !dead[i]; j++)
            dead[i] = j != i && !dead[j] && dominates(c, u, j, i, best, more[j]);
        any |= dead[i];
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
