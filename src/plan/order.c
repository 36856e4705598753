/* Orders nodes for a low peak.
 *
 * Finding the best order is NP-hard, and on training graphs construction order is close to it. The
 * gains lie in a few places: updates of weights as soon as their gradients exist, the head's weight
 * gradient away from the peak, branches that shrink before those that grow. Method: a search
 * (order_search.c) for an order within a limit, from the end and from the start, with the least
 * limit for which it succeeds, between a bound on any order (order_bound.c) and the peak of
 * construction order. Searches prefer depth first, whose buffers can be placed without loss more
 * often. Peaks are the flow's, to the byte; the caller's score adds what placement costs. The best
 * score wins, construction order on a tie: the result is never worse.
 *
 * At the same score, reductions over ranks follow what they reduce (order_pull.c). In an order that
 * is final but for that, what makes large values beneath the peak moves to where that lowers the
 * score (order_sink.c).
 *
 * Bodies of regions are ordered first, innermost first; their orders are kept only if the score of
 * the whole improves. */
#include "order.h"

enum {
    CANDIDATES = 5, /* orders made */
    SCORED = 2,     /* of them, at most */
};

typedef struct Ordered {
    int *order;
    int64_t peak;
} Ordered;

/* ---- lists of nodes ---- */

typedef struct Saved {
    struct Saved *next;
    Graph *g;
    Node **node;
    int n;
} Saved;

static void relink(Graph *g, Node *const *node, int n)
{
    for (int i = 0; i < n; i++)
        node_move(g, node[i], NULL);
}

static void apply(const Problem *q, const int *order)
{
    for (int i = 0; i < q->n; i++)
        node_move(flow_graph(q->flow), (Node *)item_node(q->flow, q->item[order[i]]), NULL);
}

static Saved *save_order(Graph *g, Arena *tmp, Saved *next)
{
    Saved *s = NEW(tmp, Saved);
    *s = (Saved){next, g, NEWN(tmp, Node *, g->nnode), 0};
    for (Node *n = g->first; n; n = n->next)
        s->node[s->n++] = n;
    return s;
}

/* ---- candidates ---- */

/* The list is sorted by peak, older ones first on a tie. */
static void add_candidate(Ordered *list, int *count, Ordered x)
{
    int at = (*count)++;
    for (; at > 0 && x.peak < list[at - 1].peak; at--)
        list[at] = list[at - 1];
    list[at] = x;
}

/* Whether the nodes may run as they stand: new values after all readers of the old ones. */
static bool stands(const Problem *q)
{
    for (int i = 0; i < q->n; i++)
        EACH_ITEM(k, q->pred, i)
            if (q->pred.item[k] > i)
                return false;
    return true;
}

/* Construction order, where new values allow it, and what searches find below it. */
static Ordered *make_candidates(const Problem *q, Arena *tmp, bool quick, int *count)
{
    Ordered *list = NEWN(tmp, Ordered, CANDIDATES);
    int *stand = NEWN(tmp, int, q->n);
    for (int i = 0; i < q->n; i++)
        stand[i] = i;
    *count = 0;
    if (stands(q))
        add_candidate(list, count, (Ordered){stand, problem_peak(q, tmp, stand)});
    int64_t least = problem_bound(q, tmp, stand, quick);
    int *deep = NEWN(tmp, int, q->n), *lazy = NEWN(tmp, int, q->n);
    order_depth_first(q, tmp, stand, deep);
    order_alap(q, tmp, stand, lazy);
    for (int t = 0; t < 4; t++) {
        Ordered x = {NEWN(tmp, int, q->n), 0};
        if (!order_search(q, tmp, t < 2 ? deep : lazy, t % 2 == 0, quick, least,
                          *count ? list[0].peak : INT64_MAX, x.order))
            continue;
        x.peak = problem_peak(q, tmp, x.order);
        add_candidate(list, count, x);
    }
    return list;
}

/* ---- bodies ---- */

/* Orders the bodies of f's loops; returns how they were, on top of saved. */
static Saved *order_bodies(Flow *f, Arena *tmp, bool quick, Saved *saved)
{
    for (int i = 0; i < flow_nitem(f); i++)
        for (int c = 0; item_body(f, i, c); c++) {
            Flow *body = item_body(f, i, c);
            saved = order_bodies(body, tmp, quick, save_order(flow_graph(body), tmp, saved));
            Problem *q = problem_new(body, tmp);
            int count = 0;
            if (!q->cyclic)
                apply(q, make_candidates(q, tmp, quick, &count)[0].order);
        }
    if (saved)
        flow_reorder(f);
    return saved;
}

/* ---- the whole ---- */

static int64_t evaluate(Flow *f, int64_t (*score)(Graph *g, void *arg), void *arg)
{
    if (score)
        return score(flow_graph(f), arg);
    flow_reorder(f);
    return flow_peak(f);
}

int order_graph(Graph *g, const Device *d, const Machine *m, Arena *tmp, bool quick,
                int64_t (*score)(Graph *g, void *arg), void *arg)
{
    Flow *f = flow_new(g, d, m, tmp);
    int64_t peak = flow_peak(f), best = evaluate(f, score, arg);
    Saved *bodies = order_bodies(f, tmp, quick, NULL);
    Problem *q = problem_new(f, tmp);
    int *stand = NEWN(tmp, int, q->n), *chosen = NULL, count = 1, nmoved = 0;
    Ordered as_is = {stand, peak}, *list = &as_is;
    for (int i = 0; i < q->n; i++)
        stand[i] = i;
    if (!q->cyclic)
        list = make_candidates(q, tmp, quick, &count);
    for (int k = 0; k < MIN(count, SCORED) && list[k].peak < best; k++) {
        if (list[k].order == stand && !bodies)
            continue;
        apply(q, list[k].order);
        int64_t now = evaluate(f, score, arg);
        if (now < best)
            chosen = list[k].order;
        best = MIN(best, now);
    }
    for (Saved *s = chosen ? NULL : bodies; s; s = s->next)
        relink(s->g, s->node, s->n);
    chosen = chosen ? chosen : stand;
    apply(q, chosen);
    int *pulled = NEWN(tmp, int, q->n);
    if (!q->cyclic && order_pull(q, tmp, chosen, pulled)) {
        apply(q, pulled);
        if (evaluate(f, score, arg) <= best)
            chosen = pulled;
        apply(q, chosen);
    }
    for (int i = 0; i < q->n; i++)
        nmoved += chosen[i] != i;
    return nmoved;
}

/* Whether an order of at most `most` that the k'th search finds is good; g has it then. */
static bool search_good(const Problem *q, Arena *tmp, int k, int64_t most,
                        bool (*good)(Graph *g, void *arg), void *arg)
{
    int *stand = NEWN(tmp, int, q->n), *base = NEWN(tmp, int, q->n), *out = NEWN(tmp, int, q->n);
    for (int i = 0; i < q->n; i++)
        stand[i] = i;
    if (k < 2)
        order_depth_first(q, tmp, stand, base);
    else
        order_alap(q, tmp, stand, base);
    if (!order_search_within(q, tmp, base, k % 2 == 0, most, out))
        return false;
    apply(q, out);
    flow_reorder(q->flow);
    if (flow_peak(q->flow) <= most && good(flow_graph(q->flow), arg))
        return true;
    apply(q, stand);
    return false;
}

bool order_within(Graph *g, const Device *d, const Machine *m, Arena *tmp, int64_t most,
                  bool (*good)(Graph *g, void *arg), void *arg)
{
    Flow *f = flow_new(g, d, m, tmp);
    if (flow_peak(f) <= most && good(g, arg))
        return true;
    const Problem *q = problem_new(f, tmp);
    if (q->cyclic)
        return false;
    int *stand = NEWN(tmp, int, q->n);
    for (int i = 0; i < q->n; i++)
        stand[i] = i;
    if (problem_bound(q, tmp, stand, true) > most)
        return false;
    for (int k = 0; k < 4; k++)
        if (search_good(q, tmp, k, most, good, arg))
            return true;
    return false;
}

void order_lower(Graph *g, const Device *d, const Machine *m, Arena *tmp,
                 int64_t (*score)(Graph *g, void *arg), void *arg)
{
    Flow *f = flow_new(g, d, m, tmp);
    Problem *q = problem_new(f, tmp);
    int *stand = NEWN(tmp, int, q->n), *sunk = NEWN(tmp, int, q->n);
    for (int i = 0; i < q->n; i++)
        stand[i] = i;
    if (q->cyclic || !stands(q) || !order_sink(q, tmp, stand, sunk))
        return;
    int64_t best = evaluate(f, score, arg);
    apply(q, sunk);
    if (evaluate(f, score, arg) >= best)
        apply(q, stand);
}
