/* Solutions of large models: the least priced cost over forests, while the prices walk to where the
 * rows are just kept.
 *
 * A forest is drawn: variables in random order, each joined if that closes no cycle with those that
 * are in. All its variables are chosen anew at once, exactly, by messages from the leaves to the
 * roots and back; the priced cost never grows. Between forests a row that is broken gets dearer and
 * one with room to spare cheaper, so that the solutions cross the limits again and again, and each
 * one within them is offered to the search. */
#include "solve.h"

#include <string.h>

typedef struct Forest {
    Search *s;
    const PickModel *m;
    int *x;
    double *priced; /* of each label: its cost with prices */
    double *price;  /* of each row */
    double *used;
    double *value;              /* of each label: the least of its subtree, in the forest */
    int *shuffled, *root, *via; /* via: the edge to the parent, or -1 */
    int n, *order;              /* parents before their children */
    bool *in;
} Forest;

static Forest forest_new(Arena *tmp, Search *s)
{
    const PickModel *m = s->m;
    Forest f = {.s = s, .m = m, .x = NEWN(tmp, int, m->n), .priced = NEWN(tmp, double, m->nlabel)};
    f.price = NEWN(tmp, double, MOST_ROWS);
    f.used = NEWN(tmp, double, MOST_ROWS);
    f.value = NEWN(tmp, double, m->nlabel);
    f.shuffled = NEWN(tmp, int, m->n);
    f.root = NEWN(tmp, int, m->n);
    f.via = NEWN(tmp, int, m->n);
    f.order = NEWN(tmp, int, m->n);
    f.in = NEWN(tmp, bool, m->n);
    for (int u = 0; u < m->n; u++)
        f.shuffled[u] = u;
    memcpy(f.priced, m->cost, sizeof *f.priced * (size_t)m->nlabel);
    return f;
}

static void set_price(Forest *f, int r, double price)
{
    const Uses *uses = &f->m->row[r].uses;
    double more = price - f->price[r];
    for (const Use *x = uses->use; x < uses_end(uses) && more != 0; x++)
        for (int j = 0, k = model_labels(f->m, x->u); j < k; j++)
            f->priced[f->m->first[x->u] + j] += more * x->of[j];
    f->price[r] = price;
}

/* ---- a forest ---- */

static int find_root(int *root, int u)
{
    while (root[u] != u)
        u = root[u] = root[root[u]];
    return u;
}

/* Whether the variable's neighbours in the forest are all of different trees. */
static bool closes_none(Forest *f, int u)
{
    const PickModel *m = f->m;
    for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++) {
        int v = model_other(&m->edge[m->edge_of[i]], u);
        for (int j = m->edge_first[u]; f->in[v] && j < i; j++) {
            int w = model_other(&m->edge[m->edge_of[j]], u);
            if (f->in[w] && find_root(f->root, v) == find_root(f->root, w))
                return false;
        }
    }
    return true;
}

static void join(Forest *f, int u)
{
    const PickModel *m = f->m;
    f->in[u] = true;
    for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++) {
        int v = model_other(&m->edge[m->edge_of[i]], u);
        if (f->in[v])
            f->root[find_root(f->root, v)] = find_root(f->root, u);
    }
}

static void draw_forest(Forest *f)
{
    int n = f->m->n;
    memset(f->in, 0, sizeof *f->in * (size_t)n);
    for (int u = 0; u < n; u++)
        f->root[u] = u;
    for (int i = 0; i < n; i++) {
        int j = i + (int)search_draw(f->s, (uint32_t)(n - i)), u = f->shuffled[j];
        f->shuffled[j] = f->shuffled[i];
        f->shuffled[i] = u;
        if (closes_none(f, u))
            join(f, u);
    }
}

/* Lists the forest's variables from the roots on. */
static void list_forest(Forest *f)
{
    enum { UNSEEN = -2 };
    const PickModel *m = f->m;
    f->n = 0;
    for (int u = 0; u < m->n; u++)
        f->via[u] = UNSEEN;
    for (int i = 0; i < m->n; i++) {
        if (!f->in[i] || f->via[i] != UNSEEN)
            continue;
        f->via[i] = -1;
        f->order[f->n++] = i;
        for (int at = f->n - 1; at < f->n; at++)
            for (int u = f->order[at], e = m->edge_first[u]; e < m->edge_first[u + 1]; e++) {
                int v = model_other(&m->edge[m->edge_of[e]], u);
                if (!f->in[v] || f->via[v] != UNSEEN)
                    continue;
                f->via[v] = m->edge_of[e];
                f->order[f->n++] = v;
            }
    }
}

/* ---- its best labels ---- */

static void add_row(const PickModel *m, const ModelEdge *e, int u, int label, double *value)
{
    const double *row = model_edge_row(m, e, u, label);
    for (int j = 0, k = model_labels(m, u); j < k; j++)
        value[j] += row[j];
}

/* The costs of u's labels with all neighbours that are not in the forest. */
static void begin_value(Forest *f, int u)
{
    const PickModel *m = f->m;
    double *value = f->value + m->first[u];
    memcpy(value, f->priced + m->first[u], sizeof *value * (size_t)model_labels(m, u));
    for (int i = m->edge_first[u]; i < m->edge_first[u + 1]; i++) {
        const ModelEdge *e = &m->edge[m->edge_of[i]];
        int v = model_other(e, u);
        if (!f->in[v])
            add_row(m, e, u, f->x[v], value);
    }
}

/* Adds to the parent's values the least that u's subtree costs with each of its labels. */
static void send_up(Forest *f, int u)
{
    const PickModel *m = f->m;
    const ModelEdge *e = &m->edge[f->via[u]];
    int v = model_other(e, u), k = model_labels(m, v);
    double *least = f->s->scratch, *to = f->value + m->first[v];
    model_message(m, e, v, 1, f->value + m->first[u], least);
    for (int j = 0; j < k; j++)
        to[j] += least[j];
}

static void choose(Forest *f, int u)
{
    const PickModel *m = f->m;
    double *value = f->value + m->first[u];
    if (f->via[u] >= 0) {
        const ModelEdge *e = &m->edge[f->via[u]];
        add_row(m, e, u, f->x[model_other(e, u)], value);
    }
    f->x[u] = model_least(value, model_labels(m, u));
}

static void descend(Forest *f)
{
    draw_forest(f);
    list_forest(f);
    for (int i = 0; i < f->n; i++)
        begin_value(f, f->order[i]);
    for (int i = f->n; i-- > 0;)
        if (f->via[f->order[i]] >= 0)
            send_up(f, f->order[i]);
    for (int i = 0; i < f->n; i++)
        choose(f, f->order[i]);
}

/* ---- the walk ---- */

/* A row should be kept with some margin: more of it while no solution is within the limits. */
static void move_prices(Forest *f, double margin, double up, double down)
{
    const PickModel *m = f->m;
    double mean = 0;
    for (int r = 0; r < m->nrow; r++)
        mean += f->price[r] / m->nrow;
    model_read_used(m, f->used);
    for (int r = 0; r < m->nrow; r++) {
        double over = (f->used[r] - m->row[r].room) / fmax(m->limit, 1) + margin;
        double price = f->price[r];
        if (over > 0)
            set_price(f, r, price * (1 + up * fmin(1, 50 * over)) + mean * up / 10);
        else if (over < -0.005)
            set_price(f, r, price * (1 - down * fmin(1, -10 * over)));
    }
}

void forest_walk(Arena *tmp, Search *s, const int *x, int64_t steps)
{
    const double first = 0.15, slowly = 1.5, falls = 3.5;
    const double more = 1e-4, less = 0.5;
    double margin = 0;
    Forest f = forest_new(tmp, s);
    memcpy(f.x, x, sizeof *x * (size_t)s->m->n);
    for (int r = 0; r < s->m->nrow; r++)
        set_price(&f, r, s->guide[r]);
    for (int64_t begin = s->steps; s->steps < begin + steps;) {
        double done = (double)(s->steps - begin) / (double)steps;
        descend(&f);
        descend(&f);
        s->steps += s->m->sweep_steps; /* a forest has less than half of the edges */
        bool better = search_offer(s, f.x);
        margin = better ? margin * less : s->cost < INFINITY ? margin : margin + more;
        move_prices(&f, margin, first * exp(-slowly * done), first * exp(-falls * done));
    }
}
