/* A lower bound on a model without limits: sequential tree-reweighted message passing.
 *
 * Costs move between variables and edges such that every solution's sum stays; the sum of the least
 * cost of each variable and each edge is a bound at any time. A pass visits variables in order.
 * Each takes from its edges to earlier ones, for each of its labels, the least cost that the edge
 * has with it, and gives equal parts of what it then has to its edges to later ones. The bound
 * never falls from pass to pass. Source: Kolmogorov, "Convergent tree-reweighted message passing
 * for energy minimization" (2006), in the form of "A new look at reweighted message passing"
 * (2015). A pass is linear in the sizes of the edges' matrices.
 *
 * Prices on the use of rows join the costs; with what the rows' room is worth taken away, the bound
 * is one on all solutions within the limits, whatever the prices are (a Lagrangian bound). */
#include "solve.h"

#include <string.h>

Trws *trws_new(Arena *a, const PickModel *m)
{
    Trws *t = NEW(a, Trws);
    *t = (Trws){.a = a, .m = m, .bound = -INFINITY};
    t->kept = NEWN(a, double, m->nlabel);
    memcpy(t->kept, m->cost, sizeof *t->kept * (size_t)m->nlabel);
    t->side = NEWN(a, double *, 2 * m->nedge);
    for (int e = 0; e < m->nedge; e++) {
        t->side[2 * e] = NEWN(a, double, model_labels(m, m->edge[e].u));
        t->side[2 * e + 1] = NEWN(a, double, model_labels(m, m->edge[e].v));
    }
    t->sum = NEWN(a, double, m->nlabel);
    t->found = NEWN(a, double, m->nlabel);
    t->x = NEWN(a, int, m->n);
    t->price = NEWN(a, double, MOST_ROWS);
    return t;
}

static void keep_living(double *x, int n, const bool *dead)
{
    double *to = x;
    for (int i = 0; i < n; i++)
        if (!dead[i])
            *to++ = x[i];
}

void trws_drop(Trws *t, const bool *dead)
{
    const PickModel *m = t->m;
    for (int e = 0; e < m->nedge; e++) {
        int u = m->edge[e].u, v = m->edge[e].v;
        keep_living(t->side[2 * e], model_labels(m, u), dead + m->first[u]);
        keep_living(t->side[2 * e + 1], model_labels(m, v), dead + m->first[v]);
    }
    keep_living(t->kept, m->nlabel, dead);
    memset(t->x, 0, sizeof *t->x * (size_t)m->n);
}

void trws_set_price(Trws *t, int row, double price)
{
    const Uses *uses = &t->m->row[row].uses;
    double more = price - t->price[row];
    for (const Use *x = uses->use; x < uses_end(uses) && more != 0; x++)
        for (int j = 0, k = model_labels(t->m, x->u); j < k; j++)
            t->kept[t->m->first[x->u] + j] += more * x->of[j];
    t->price[row] = price;
}

/* The least that an edge costs with each label of u, in least[]. */
static void fill_least(const Trws *t, int at, int u, double *restrict least)
{
    const PickModel *m = t->m;
    const ModelEdge *e = &m->edge[at];
    bool second = e->u != u;
    const double *own = t->side[2 * at + second], *other = t->side[2 * at + !second];
    model_message(m, e, u, -1, other, least);
    for (int i = 0, k = model_labels(m, u); i < k; i++)
        least[i] -= own[i];
}

static void take(Trws *t, int at, int u)
{
    double *kept = t->kept + t->m->first[u], *least = t->found;
    double *own = t->side[2 * at + (t->m->edge[at].u != u)];
    fill_least(t, at, u, least);
    for (int i = 0, k = model_labels(t->m, u); i < k; i++) {
        kept[i] += least[i];
        own[i] += least[i] < INFINITY ? least[i] : 0; /* a label that is out stays out here */
    }
}

static void give(Trws *t, int at, int u, double part)
{
    const double *kept = t->kept + t->m->first[u];
    double *own = t->side[2 * at + (t->m->edge[at].u != u)];
    for (int i = 0, k = model_labels(t->m, u); i < k; i++)
        own[i] -= kept[i] < INFINITY ? part * kept[i] : 0;
}

/* Adds what the edge costs with the label that its other end has. */
static void add_chosen(Trws *t, int at, int u)
{
    const ModelEdge *e = &t->m->edge[at];
    bool second = e->u != u;
    int j = t->x[model_other(e, u)];
    const double *row = model_edge_row(t->m, e, u, j), *own = t->side[2 * at + second];
    double less = t->side[2 * at + !second][j];
    for (int i = 0, k = model_labels(t->m, u); i < k; i++)
        t->sum[i] += row[i] - less - own[i];
}

static void visit(Trws *t, int u, bool forward)
{
    const PickModel *m = t->m;
    int k = model_labels(m, u), nlater = 0, nearlier = 0;
    double *kept = t->kept + m->first[u];
    memcpy(t->sum, kept, sizeof *kept * (size_t)k);
    for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++) {
        int at = m->edge_of[i];
        bool later = (model_other(&m->edge[at], u) > u) == forward;
        nlater += later;
        nearlier += !later;
        if (!later) {
            add_chosen(t, at, u);
            take(t, at, u);
        }
    }
    t->x[u] = model_least(t->sum, k);
    double part = nlater ? 1.0 / MAX(nlater, nearlier) : 0;
    for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++)
        if ((model_other(&m->edge[m->edge_of[i]], u) > u) == forward)
            give(t, m->edge_of[i], u, part);
    for (int i = 0; i < k && nlater; i++)
        kept[i] = kept[i] < INFINITY ? kept[i] * (1 - part * nlater) : INFINITY;
}

void trws_pass(Trws *t, bool forward)
{
    const PickModel *m = t->m;
    double sum = m->fixed;
    for (int i = 0; i < m->n; i++)
        visit(t, forward ? i : m->n - 1 - i, forward);
    for (int u = 0; u < m->n; u++) {
        const double *kept = t->kept + m->first[u];
        sum += kept[model_least(kept, model_labels(m, u))];
    }
    for (int r = 0; r < m->nrow; r++)
        sum -= t->price[r] * m->row[r].room;
    t->bound = sum;
}

/* After a pass the least cost of every edge is 0. */
void trws_fill_above(Trws *t, double *above)
{
    const PickModel *m = t->m;
    for (int u = 0; u < m->n; u++) {
        double *to = above + m->first[u];
        const double *kept = t->kept + m->first[u];
        int k = model_labels(m, u);
        memcpy(to, kept, sizeof *to * (size_t)k);
        for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++) {
            fill_least(t, m->edge_of[i], u, t->found);
            for (int j = 0; j < k; j++)
                to[j] += t->found[j];
        }
        double least = kept[model_least(kept, k)];
        for (int j = 0; j < k; j++)
            to[j] -= least;
    }
}
