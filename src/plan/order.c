/* The order of nodes, chosen for a low peak.
 *
 * Finding the best order is NP-hard, and on training graphs construction order is near it (a per
 * cent or two); what is to be gained lies in a few places: weights' updates as soon as their
 * gradients are there, constants and casts right before their reader, branches that shrink before
 * those that grow. So: a handful of orders, each n log n (schedule.c), the best of them by estimate
 * (flow.c) repaired around its peak, and those that promise to be no worse than construction order
 * planned for real, by the caller's score. The best score wins, construction order on a tie.
 *
 * Bodies of regions go first, innermost first, by estimate; all of them together are kept only if
 * the score of the whole gets better. */
#include "order.h"

#include <string.h>

enum {
    CANDIDATES = 8, /* orders made */
    PLANNED = 4,    /* of them scored for real, at most */
};

typedef struct Candidate {
    int *order;
    Peak peak;
} Candidate;

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

static void apply(Graph *g, const Flow *f, const int *order)
{
    for (int i = 0; i < f->n; i++)
        node_move(g, f->node[order[i]], NULL);
}

static Saved *save_order(Graph *g, Arena *tmp, Saved *next)
{
    Saved *s = NEW(tmp, Saved);
    *s = (Saved){next, g, NEWN(tmp, Node *, g->nnode), 0};
    for (Node *n = g->first; n; n = n->next)
        s->node[s->n++] = n;
    return s;
}

static int64_t evaluate(Graph *g, Arena *tmp, int64_t (*score)(Graph *g, void *arg), void *arg)
{
    return score ? score(g, arg) : flow_estimate(g, tmp);
}

/* ---- candidates ---- */

static bool precedes(const Candidate *x, const Candidate *y)
{
    if (x->peak.nbytes != y->peak.nbytes)
        return x->peak.nbytes < y->peak.nbytes;
    return x->peak.count < y->peak.count;
}

/* Adds an order unless it is known; the list is sorted by estimate, older ones first on a tie. */
static void add_candidate(const Flow *f, Candidate *list, int *count, int *order)
{
    Candidate x = {order, flow_peak(f, order)};
    for (int k = 0; k < *count; k++)
        if (!memcmp(list[k].order, order, sizeof(int) * (size_t)f->n))
            return;
    int at = (*count)++;
    for (; at > 0 && precedes(&x, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = x;
}

/* A list of construction order (as near to it as new values allow) and others, best estimate first.
 */
static Candidate *make_candidates(const Flow *f, Arena *tmp, int *count)
{
    Candidate *list = NEWN(tmp, Candidate, CANDIDATES);
    int *order[CANDIDATES], *stand = NEWN(tmp, int, f->n), last = CANDIDATES - 1;
    for (int k = 0; k < CANDIDATES; k++)
        order[k] = NEWN(tmp, int, f->n);
    for (int i = 0; i < f->n; i++)
        stand[i] = i;
    flow_schedule(f, tmp, stand, RUN_STABLE, false, order[0]);
    flow_schedule(f, tmp, order[0], RUN_EAGER, false, order[1]);
    flow_schedule(f, tmp, order[0], RUN_EAGER, true, order[2]);
    flow_schedule(f, tmp, order[2], RUN_EAGER, false, order[3]);
    flow_schedule(f, tmp, order[0], RUN_LEAST, false, order[4]);
    flow_schedule(f, tmp, order[4], RUN_EAGER, true, order[5]);
    flow_depth_first(f, tmp, order[0], order[6]);
    *count = 0;
    for (int k = 0; k < last; k++)
        add_candidate(f, list, count, order[k]);
    memcpy(order[last], list[0].order, sizeof(int) * (size_t)f->n);
    flow_repair(f, tmp, order[last]);
    add_candidate(f, list, count, order[last]);
    return list;
}

/* ---- bodies ---- */

static Saved *order_bodies(Graph *g, Arena *tmp, Saved *saved);

/* Takes the order of best estimate. */
static Saved *order_body(Graph *g, Arena *tmp, Saved *saved)
{
    saved = order_bodies(g, tmp, save_order(g, tmp, saved));
    Flow *f = flow_new(g, tmp);
    if (!f->cyclic) {
        int count;
        apply(g, f, make_candidates(f, tmp, &count)[0].order);
    }
    return saved;
}

/* Orders the bodies of g's regions; returns how they were, on top of saved. */
static Saved *order_bodies(Graph *g, Arena *tmp, Saved *saved)
{
    for (Node *n = g->first; n; n = n->next) {
        if (n->op->region != LOOP)
            continue;
        saved = order_body(n->region->body, tmp, saved);
        if (n->region->tail)
            saved = order_body(n->region->tail, tmp, saved);
    }
    return saved;
}

/* ---- the whole ---- */

int order_graph(Graph *g, Arena *tmp, int64_t (*score)(Graph *g, void *arg), void *arg)
{
    int64_t best = evaluate(g, tmp, score, arg);
    Saved *bodies = order_bodies(g, tmp, NULL);
    int64_t now = bodies ? evaluate(g, tmp, score, arg) : best;
    if (now >= best)
        for (Saved *s = bodies; s; s = s->next)
            relink(s->g, s->node, s->n);
    best = MIN(best, now);
    Flow *f = flow_new(g, tmp);
    if (f->cyclic || f->n < 2)
        return 0;
    int *before = NEWN(tmp, int, f->n), *chosen = before, nmoved = 0;
    for (int i = 0; i < f->n; i++)
        before[i] = i;
    Peak peak = flow_peak(f, before);
    int count;
    Candidate *list = make_candidates(f, tmp, &count);
    for (int k = 0; k < MIN(count, PLANNED) && list[k].peak.nbytes <= peak.nbytes; k++) {
        apply(g, f, list[k].order);
        now = evaluate(g, tmp, score, arg);
        if (now < best)
            chosen = list[k].order;
        best = MIN(best, now);
    }
    apply(g, f, chosen);
    for (int i = 0; i < f->n; i++)
        nmoved += chosen[i] != i;
    return nmoved;
}
