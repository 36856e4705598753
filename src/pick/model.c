/* The core as flat arrays, and what its labels use over time. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

/* ---- times: those at which a node begins to use something ---- */

static int compare_times(const void *x, const void *y)
{
    int64_t s = *(const int64_t *)x, t = *(const int64_t *)y;
    return (s > t) - (s < t);
}

static bool uses(const PickProblem *p, int i)
{
    int64_t most = 0;
    for (int s = p->first[i]; s < p->first[i + 1]; s++)
        most = MAX(most, p->usage[s]);
    return most > 0 && p->start[i] < p->end[i];
}

/* The first of the times that is not before t. */
static int find_time(const int64_t *time, int n, int64_t t)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (time[mid] < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void fill_times(PickModel *m)
{
    const PickProblem *p = m->core->problem;
    int64_t *time = NEWN(m->a, int64_t, p->n + 1);
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (uses(p, i))
            time[n++] = p->start[i];
    qsort(time, (size_t)n, sizeof *time, compare_times);
    for (int i = 0; i < n; i++)
        if (!m->ntime || time[m->ntime - 1] != time[i])
            time[m->ntime++] = time[i];
    m->from = NEWN(m->a, int, p->n);
    m->to = NEWN(m->a, int, p->n);
    for (int i = 0; i < p->n; i++)
        if (uses(p, i)) {
            m->from[i] = find_time(time, m->ntime, p->start[i]);
            m->to[i] = find_time(time, m->ntime, p->end[i]);
        }
}

/* Gives each time at which the variable's use may change a slot, by slot[time]; slots are -1. */
static UseSteps list_steps(const PickModel *m, const Var *x, int *slot)
{
    UseSteps s = {.time = NEWN(m->a, int, 2 * x->nmember)};
    for (int i = 0; i < x->nmember; i++) {
        int node = x->member[i].node, ends[] = {m->from[node], m->to[node]};
        for (int k = 0; k < 2 && ends[0] < ends[1]; k++)
            if (slot[ends[k]] < 0) {
                slot[ends[k]] = s.n;
                s.time[s.n++] = ends[k];
            }
    }
    s.step = NEWN(m->a, double, x->k *s.n);
    return s;
}

/* Members that follow each other in time share a step, so that a label is added in few of them. */
static UseSteps steps_of(const PickModel *m, const Var *x, int *slot)
{
    const PickProblem *p = m->core->problem;
    UseSteps s = list_steps(m, x, slot);
    for (int i = 0; i < x->nmember; i++) {
        int node = x->member[i].node;
        if (m->from[node] == m->to[node])
            continue;
        double *begin = s.step + slot[m->from[node]], *end = s.step + slot[m->to[node]];
        const int64_t *use = p->usage + p->first[node];
        for (int k = 0; k < x->k; k++) {
            begin[k * s.n] += (double)use[x->member[i].strategy[k]];
            end[k * s.n] -= (double)use[x->member[i].strategy[k]];
        }
    }
    for (int i = 0; i < s.n; i++)
        slot[s.time[i]] = -1;
    return s;
}

/* Adds a label's uses to differences from time to time. */
static void add_uses(const UseSteps *s, int label, double *step)
{
    const double *of = s->step + (int64_t)label * s->n;
    for (int i = 0; i < s->n; i++)
        step[s->time[i]] += of[i];
}

static void sum_up(double *step, int n)
{
    for (int t = 1; t < n; t++)
        step[t] += step[t - 1];
}

/* ---- making one ---- */

static void fill_vars(PickModel *m)
{
    const Core *c = m->core;
    int *slot = NEWN(m->a, int, m->ntime + 1);
    memset(slot, -1, sizeof *slot * (size_t)(m->ntime + 1));
    for (int u = 0; u < c->nvar; u++) {
        const Var *x = &c->var[u];
        if (x->k == 0)
            continue;
        UseSteps s = steps_of(m, x, slot);
        if (x->k == 1) {
            m->fixed += x->cost[0];
            add_uses(&s, 0, m->base);
        } else {
            memcpy(m->cost + m->nlabel, x->cost, sizeof(double) * (size_t)x->k);
            m->var[m->n] = u;
            m->steps[m->n] = s;
            m->nlabel += x->k;
            m->first[++m->n] = m->nlabel;
        }
    }
    sum_up(m->base, m->ntime);
}

static void index_edges(PickModel *m)
{
    m->edge_first = NEWN(m->a, int, m->n + 2);
    m->edge_of = NEWN(m->a, int, 2 * m->nedge);
    for (int e = 0; e < m->nedge; e++) {
        m->edge_first[m->edge[e].u + 2]++;
        m->edge_first[m->edge[e].v + 2]++;
    }
    for (int u = 2; u < m->n + 2; u++)
        m->edge_first[u] += m->edge_first[u - 1];
    for (int e = 0; e < m->nedge; e++) {
        m->edge_of[m->edge_first[m->edge[e].u + 1]++] = e;
        m->edge_of[m->edge_first[m->edge[e].v + 1]++] = e;
    }
}

static void transpose_into(double *t, const double *m, int rows, int columns)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            t[j * rows + i] = m[i * columns + j];
}

static double *transpose(Arena *a, const double *m, int rows, int columns)
{
    double *t = NEWN(a, double, rows *columns);
    transpose_into(t, m, rows, columns);
    return t;
}

static void add_edge(PickModel *m, int u, int v, const double *costs)
{
    const int ku = model_labels(m, u), kv = model_labels(m, v);
    ModelEdge *e = &m->edge[m->nedge++];
    *e = (ModelEdge){.u = u, .v = v, .m = costs, .t = transpose(m->a, costs, ku, kv)};
    edge_find_alike(m->a, e, ku, kv);
}

static void fill_edges(PickModel *m)
{
    const Core *c = m->core;
    int *at = NEWN(m->a, int, c->nvar);
    for (int u = 0; u < m->n; u++)
        at[m->var[u]] = u;
    m->edge = NEWN(m->a, ModelEdge, c->nedge);
    for (int e = 0; e < c->nedge; e++) {
        const CoreEdge *x = &c->edge[e];
        if (x->u >= 0)
            add_edge(m, at[x->u], at[x->v], x->m);
    }
    index_edges(m);
}

static void count_steps(PickModel *m)
{
    enum { MEMBER = 10, TIME = 3 };
    for (int e = 0; e < m->nedge; e++)
        m->sweep_steps += (int64_t)model_labels(m, m->edge[e].u) * model_labels(m, m->edge[e].v);
    for (int u = 0; u < m->n; u++)
        m->sweep_steps += (int64_t)MEMBER * (1 + m->core->var[m->var[u]].nmember);
    m->sweep_steps += (int64_t)TIME * m->ntime + 2 * m->nlabel;
}

PickModel *model_new(Arena *a, Core *c)
{
    PickModel *m = NEW(a, PickModel);
    int nlabel = 0;
    for (int u = 0; u < c->nvar; u++)
        nlabel += c->var[u].k;
    *m = (PickModel){.a = a, .core = c, .limit = (double)c->problem->limit};
    m->var = NEWN(a, int, c->nvar);
    m->first = NEWN(a, int, c->nvar + 1);
    m->cost = NEWN(a, double, nlabel);
    fill_times(m);
    m->steps = NEWN(a, UseSteps, c->nvar);
    m->base = NEWN(a, double, m->ntime + 1);
    m->load = NEWN(a, double, m->ntime + 1);
    m->is_row = NEWN(a, bool, m->ntime);
    fill_vars(m);
    fill_edges(m);
    m->uses = NEWN(a, Uses, m->n);
    count_steps(m);
    return m;
}

static void drop_steps(UseSteps *s, int k, const bool *dead)
{
    double *to = s->step;
    for (int j = 0; j < k; j++)
        if (!dead[j]) {
            memmove(to, s->step + (int64_t)j * s->n, sizeof *to * (size_t)s->n);
            to += s->n;
        }
}

void model_drop(PickModel *m, const bool *dead)
{
    Core *c = m->core;
    const bool **of = (const bool **)NEWN(m->a, bool *, c->nvar);
    for (int u = 0; u < m->n; u++) {
        of[m->var[u]] = dead + m->first[u];
        drop_steps(&m->steps[u], model_labels(m, u), dead + m->first[u]);
    }
    core_drop_labels(c, (bool *const *)of);
    m->nlabel = 0;
    for (int u = 0; u < m->n; u++) {
        const Var *x = &c->var[m->var[u]];
        memcpy(m->cost + m->nlabel, x->cost, sizeof(double) * (size_t)x->k);
        m->first[u] = m->nlabel;
        m->nlabel += x->k;
    }
    m->first[m->n] = m->nlabel;
    for (ModelEdge *e = m->edge; e < m->edge + m->nedge; e++) {
        const int ku = model_labels(m, e->u), kv = model_labels(m, e->v);
        transpose_into(e->t, e->m, ku, kv);
        edge_find_alike(m->a, e, ku, kv);
    }
    m->sweep_steps = 0;
    count_steps(m);
}

/* ---- solutions ---- */

double model_cost(const PickModel *m, const int *x)
{
    double sum = m->fixed;
    for (int u = 0; u < m->n; u++)
        sum += m->cost[m->first[u] + x[u]];
    for (const ModelEdge *e = m->edge; e < m->edge + m->nedge; e++)
        sum += e->m[x[e->u] * model_labels(m, e->v) + x[e->v]];
    return sum;
}

static void set_strategies(const Var *x, int label, int *strategy)
{
    for (int i = 0; i < x->nmember; i++)
        strategy[x->member[i].node] = x->member[i].strategy[label];
}

void model_strategies(const PickModel *m, const int *x, int *strategy)
{
    for (int u = 0; u < m->core->nvar; u++)
        if (m->core->var[u].k == 1)
            set_strategies(&m->core->var[u], 0, strategy);
    for (int u = 0; u < m->n; u++)
        set_strategies(&m->core->var[m->var[u]], x[u], strategy);
}

static bool stands_for(const Var *x, int label, const int *strategy)
{
    for (int i = 0; i < x->nmember; i++)
        if (strategy[x->member[i].node] != x->member[i].strategy[label])
            return false;
    return true;
}

bool model_labels_of(const PickModel *m, const int *strategy, int *x)
{
    bool all = true;
    for (int u = 0; u < m->n; u++) {
        const Var *var = &m->core->var[m->var[u]];
        int label = 0;
        while (label < var->k && !stands_for(var, label, strategy))
            label++;
        if (label < var->k)
            x[u] = label;
        else
            all = false;
    }
    return all;
}

/* ---- limits ---- */

/* Returns the time of the largest use. */
static int fill_load(const PickModel *m, const int *x)
{
    int peak = 0;
    double sum = 0, most = -INFINITY;
    memset(m->load, 0, sizeof(double) * (size_t)(m->ntime + 1));
    for (int u = 0; u < m->n; u++)
        add_uses(&m->steps[u], x[u], m->load);
    for (int t = 0; t < m->ntime; t++) {
        sum += m->load[t];
        m->load[t] = sum + m->base[t];
        if (m->load[t] > most) {
            most = m->load[t];
            peak = t;
        }
    }
    return peak;
}

int model_peak(const PickModel *m, const int *x, double *over)
{
    int peak = fill_load(m, x);
    *over = m->load[peak] - m->limit;
    return peak;
}

/* What the variable's labels use at a time; whether they use anything. */
static bool add_use_at(const PickModel *m, const Var *x, int time, double *use)
{
    const PickProblem *p = m->core->problem;
    bool any = false;
    for (int i = 0; i < x->nmember; i++) {
        int node = x->member[i].node;
        if (time < m->from[node] || time >= m->to[node])
            continue;
        any = true;
        for (int k = 0; k < x->k; k++)
            use[k] += (double)p->usage[p->first[node] + x->member[i].strategy[k]];
    }
    return any;
}

static void add_to_row(PickModel *m, int r, int u, double *use)
{
    Row *row = &m->row[r];
    Uses *uses = &m->uses[u];
    double least = INFINITY;
    Use to = {u, r, 0, use};
    for (int k = 0; k < model_labels(m, u); k++)
        least = fmin(least, use[k]);
    for (int k = 0; k < model_labels(m, u); k++)
        to.most = fmax(to.most, use[k] -= least);
    row->room -= least;
    if (to.most > 0) {
        PUSH(m->a, row->uses.use, row->uses.n, row->uses.cap, to);
        PUSH(m->a, uses->use, uses->n, uses->cap, to);
    }
}

static void add_row(PickModel *m, int time)
{
    int r = m->nrow++, most = 0;
    m->is_row[time] = true;
    m->row[r] = (Row){.time = time, .room = m->limit - m->base[time]};
    for (int u = 0; u < m->n; u++)
        most = MAX(most, model_labels(m, u));
    double *use = NEWN(m->a, double, most);
    for (int u = 0; u < m->n; u++)
        if (add_use_at(m, &m->core->var[m->var[u]], time, use)) {
            add_to_row(m, r, u, use);
            use = NEWN(m->a, double, most);
        }
}

/* What a row's variables use is what there is at its time less what none of them can do without. */
void model_fill_used(const PickModel *m, const int *x, double *used)
{
    if (m->nrow)
        fill_load(m, x);
    model_read_used(m, used);
}

void model_read_used(const PickModel *m, double *used)
{
    for (int r = 0; r < m->nrow; r++)
        used[r] = m->load[m->row[r].time] - m->limit + m->row[r].room;
}

void model_set_limit(PickModel *m, double limit)
{
    for (int r = 0; r < m->nrow; r++)
        m->row[r].room += limit - m->limit;
    m->limit = limit;
}

enum { HILLS = 4 };

/* Times that follow each other, at all of which the use is above the limit. */
typedef struct Hill {
    int peak;
    bool has_row;
} Hill;

/* Puts a hill among the highest, in descending order; the earlier first where two are as high. */
static int add_hill(const PickModel *m, Hill *hill, int n, Hill x)
{
    int i = MIN(n, HILLS - 1);
    if (n == HILLS && m->load[hill[i].peak] >= m->load[x.peak])
        return n;
    for (; i > 0 && m->load[hill[i - 1].peak] < m->load[x.peak]; i--)
        hill[i] = hill[i - 1];
    hill[i] = x;
    return MIN(n + 1, HILLS);
}

/* The highest hills; how many. */
static int find_hills(const PickModel *m, Hill *hill)
{
    int n = 0;
    for (int t = 0; t < m->ntime; t++) {
        if (!(m->load[t] > m->limit))
            continue;
        Hill x = {t, m->is_row[t]};
        for (; t + 1 < m->ntime && m->load[t + 1] > m->limit; t++) {
            x.peak = m->load[t + 1] > m->load[x.peak] ? t + 1 : x.peak;
            x.has_row |= m->is_row[t + 1];
        }
        n = add_hill(m, hill, n, x);
    }
    return n;
}

bool model_fits(PickModel *m, const int *x)
{
    Hill hill[HILLS];
    double over;
    if (!m->ntime)
        return true;
    model_peak(m, x, &over);
    if (over <= 0)
        return true;
    for (int i = 0, n = find_hills(m, hill); i < n; i++)
        if (!hill[i].has_row && m->nrow < MOST_ROWS)
            add_row(m, hill[i].peak);
    return false;
}

int model_least(const double *x, int n)
{
    int least = 0;
    for (int i = 1; i < n; i++)
        if (x[i] < x[least])
            least = i;
    return least;
}
