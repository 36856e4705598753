/* A lower bound on the peak of any order, by minimum cuts.
 *
 * In every order node x runs at some moment. The nodes that have run by then form a lower set: with
 * a node it has all that the node depends on. It contains what x depends on, but neither x nor what
 * depends on x. Alive at that moment is each storage whose defining node has run and that is kept
 * or still has a reader to come. The least sum of these over all such sets is a closure problem,
 * that is, a minimum cut: nodes that have run are on the source's side, and a storage costs its
 * bytes if its defining node is there and a reader is not. This sum, plus what x itself needs,
 * bounds the peak of every order. A pair of nodes bounds it too: one of x and y runs first while
 * the other has not run, so the lesser of the two cuts is a bound. The answer is the largest bound
 * over nodes and pairs.
 *
 * Nodes are tried from the largest live sum in a known order downwards, until that sum is no more
 * than the bound found. Any flow is a bound, so work may stop at any time (CUT_WORK). To stay a
 * bound, results over operands count as if all of these could die, and a storage that could be
 * joined to a cat counts nothing while the cat runs: before that it has its bytes, be it inside of
 * the cat's result. A new value that is defined before all readers of the old one have run takes
 * its bytes until they have.
 *
 * The maximum flow (network.c) is over the nodes that may be on either side. Closures as cuts:
 * Picard 1976; cuts as bounds for memory: Kayaaslan et al. 2018. */
#include "network.h"
#include "order.h"

#include <stdlib.h>
#include <string.h>

enum {
    CUT_NODES = 200,    /* nodes tried, at most */
    CUT_WORK = 1 << 24, /* nodes, operands and arcs passed in all, at most */
    PAIR_NODES = 8,     /* nodes tried as the first of a pair, and of each kind as the second */
};

enum { FREE, BEFORE, AFTER };

typedef struct BoundCut {
    const Problem *q;
    Arena *tmp;
    const int64_t
        *body; /* of a node, twice: what its bodies need in any order; NULL: as they are */
    unsigned char *side; /* of a node */
    int *vertex;         /* of a free node */
    Network net;         /* with what is left of CUT_WORK */
} BoundCut;

/* ---- the network of a node ---- */

/* Puts node i and all nodes that `with` leads to from it on that side. */
static void mark(BoundCut *c, const Lists *with, int i, int side)
{
    int n = 0;
    c->side[c->net.queue[n++] = i] = (unsigned char)side;
    for (int k = 0; k < n; k++)
        EACH_ITEM(j, *with, c->net.queue[k])
            if (c->side[with->item[j]] == FREE)
                c->side[c->net.queue[n++] = with->item[j]] = (unsigned char)side;
}

/* The arcs of dependence; x, y (unless -1) and what depends on them have not run. */
static void begin_network(BoundCut *c, int x, int y, bool ran)
{
    const Problem *q = c->q;
    memset(c->side, FREE, (size_t)q->n);
    mark(c, &q->dep, x, BEFORE);
    mark(c, &q->depend, x, AFTER);
    c->side[x] = ran ? BEFORE : AFTER;
    if (y >= 0)
        mark(c, &q->depend, y, AFTER);
    network_clear(&c->net);
    for (int i = 0; i < q->n; i++)
        if (c->side[i] == FREE)
            c->vertex[i] = network_vertices(&c->net, 1);
    for (int i = 0; i < q->n; i++)
        EACH_ITEM(k, q->dep, i)
            if (c->side[i] == FREE && c->side[q->dep.item[k]] == FREE)
                network_arc(&c->net, c->vertex[i], c->vertex[q->dep.item[k]], NETWORK_ENDLESS);
    c->net.left -= q->n + q->dep.at[q->n];
}

/* Whether s could be made inside of the result of node i, a cat, and so needs nothing beside it. */
static bool inside_of(const BoundCut *c, int s, int i)
{
    const Problem *q = c->q;
    return c->body && q->storage.part[s] && q->user.at[s] < q->user.at[s + 1] &&
           q->user.item[q->user.at[s]] == i;
}

/* The storage whose place s takes, or else s, costs the bytes of s if the defining node of s has
 * run and another reader has not. Returns what s costs in any case. */
static int64_t add_cost(BoundCut *c, int s)
{
    const Problem *q = c->q;
    int def = q->storage.def[s], old = q->storage.over[s], of = old < 0 ? s : old, nfree = 0,
        last = -1;
    int side = def < 0 ? BEFORE : c->side[def];
    bool kept = old < 0 && q->storage.kept[s];
    if (!q->storage.nbytes[s] || side == AFTER)
        return 0;
    EACH_ITEM(k, q->user, of) {
        int i = q->user.item[k];
        kept |= i != def && c->side[i] == AFTER;
        nfree += i != def && c->side[i] == FREE;
        last = i != def && c->side[i] == FREE ? i : last;
    }
    if (kept && side == BEFORE)
        return q->storage.nbytes[s];
    int from = side == BEFORE ? NETWORK_SOURCE : c->vertex[def];
    if (kept) {
        network_arc(&c->net, from, NETWORK_SINK, q->storage.nbytes[s]);
    } else if (nfree == 1) {
        network_arc(&c->net, from, c->vertex[last], q->storage.nbytes[s]);
    } else if (nfree) {
        int v = network_vertices(&c->net, 1);
        network_arc(&c->net, from, v, q->storage.nbytes[s]);
        EACH_ITEM(k, q->user, of)
            if (q->user.item[k] != def && c->side[q->user.item[k]] == FREE)
                network_arc(&c->net, v, c->vertex[q->user.item[k]], NETWORK_ENDLESS);
    }
    return 0;
}

/* The least that is alive when x runs, or has just run, beside what only x itself needs. */
static int64_t least_alive(BoundCut *c, int x, int y, bool ran)
{
    int64_t sum = c->q->base;
    begin_network(c, x, y, ran);
    for (int s = 0; s < c->q->storage.count; s++)
        sum += inside_of(c, s, x) ? 0 : add_cost(c, s);
    c->net.left -= c->q->user.at[c->q->storage.count];
    return sum + network_flow(&c->net);
}

/* Bytes that a result, entry k of q->make, adds in a step to the cut, which has all kept and read
 * results of its node if that counts as run (ran). */
static int64_t made_bytes(const Problem *q, int k, int step, bool ran)
{
    int s = q->make.item[k];
    bool may_lie_over = q->reuse.at[s] < q->reuse.at[s + 1];
    int first = q->first[k] + may_lie_over;
    bool unread = !q->storage.kept[s] && q->user.at[s] == q->user.at[s + 1];
    bool alive = first <= step && (!unread || step <= q->last[k]);
    return q->storage.over[s] >= 0 ? 0 : (alive - (ran && !unread)) * q->storage.nbytes[s];
}

/* The least that node i needs in its largest step beside what the cut has. */
static int64_t own_bytes(const BoundCut *c, int i, bool ran)
{
    const Problem *q = c->q;
    int64_t most = INT64_MIN;
    for (int step = 0; step < problem_steps(q, i); step++) {
        int body = c->body ? problem_body(q, i, step) : -1;
        int64_t sum = body < 0 ? problem_core_bytes(q, i, step) : c->body[2 * i + body];
        EACH_ITEM(k, q->make, i)
            sum += made_bytes(q, k, step, ran);
        EACH_ITEM(k, q->use, i)
            if (!ran && q->used[k] < step && !q->storage.kept[q->use.item[k]] &&
                !inside_of(c, q->use.item[k], i))
                sum -= q->storage.nbytes[q->use.item[k]];
        most = MAX(most, sum);
    }
    return most;
}

/* The least live sum in some step of x, if y, unless that is -1, has not run. */
static int64_t least_at(BoundCut *c, int x, int y)
{
    int64_t sum = least_alive(c, x, y, false) + own_bytes(c, x, false);
    if (problem_steps(c->q, x) > 1) {
        int64_t ran = least_alive(c, x, y, true) + own_bytes(c, x, true);
        sum = MAX(sum, ran);
    }
    return sum;
}

/* ---- all nodes ---- */

typedef struct NodeSum {
    int64_t key;
    int node, at;
} NodeSum;

static int compare(const void *x, const void *y)
{
    const NodeSum *s = x, *t = y;
    return s->key != t->key ? (s->key < t->key ? 1 : -1) : s->at - t->at;
}

static BoundCut *cut_new(const Problem *q, Arena *tmp, const int64_t *body)
{
    BoundCut *c = NEW(tmp, BoundCut);
    *c = (BoundCut){.q = q, .tmp = tmp, .body = body};
    c->side = NEWN(tmp, unsigned char, q->n);
    c->vertex = NEWN(tmp, int, q->n);
    c->net = network_new(tmp, q->n + q->storage.count + 2, CUT_WORK);
    return c;
}

/* The bytes that node i reads and makes. */
static int64_t weight(const Problem *q, int i)
{
    int64_t sum = 0;
    EACH_ITEM(k, q->make, i)
        sum += q->storage.nbytes[q->make.item[k]];
    EACH_ITEM(k, q->use, i)
        sum += q->storage.nbytes[q->use.item[k]];
    return sum;
}

/* The nodes of a known order, those of the largest live sums first, and those that keep most. */
static void fill_steps(const Problem *q, const int *order, int *left, NodeSum *by_live,
                       NodeSum *by_weight)
{
    int64_t live = q->base + q->inputs;
    for (int s = 0; s < q->storage.count; s++)
        left[s] = q->user.at[s + 1] - q->user.at[s];
    for (int k = 0; k < q->n; k++) {
        int i = order[k];
        Effect e = problem_effect(q, left, 1, i);
        by_live[k] = (NodeSum){live + e.need, i, k};
        by_weight[k] = (NodeSum){weight(q, i), i, k};
        live += e.net;
        EACH_ITEM(j, q->use, i)
            left[q->use.item[j]]--;
    }
    qsort(by_live, (size_t)q->n, sizeof *by_live, compare);
    qsort(by_weight, (size_t)q->n, sizeof *by_weight, compare);
}

/* A bound by pairs of x with the first nodes of a list that run after it and need not. */
static int64_t bound_pairs(BoundCut *c, NodeSum x, const NodeSum *list, int64_t best)
{
    const Problem *q = c->q;
    bool *waits = NEWN(c->tmp, bool, q->n);
    memset(c->side, FREE, (size_t)q->n);
    mark(c, &q->depend, x.node, AFTER);
    for (int i = 0; i < q->n; i++)
        waits[i] = c->side[i] == AFTER;
    for (int j = 0, n = 0; j < q->n && n < PAIR_NODES && c->net.left > 0 && best < x.key; j++) {
        int y = list[j].node;
        if (list[j].at <= x.at || waits[y])
            continue;
        n++;
        int64_t first = least_at(c, x.node, y);
        if (first > best)
            best = MAX(best, MIN(first, least_at(c, y, x.node)));
    }
    return best;
}

static int64_t bound(const Problem *q, Arena *tmp, const int *order, const int64_t *body, int npair)
{
    NodeSum *step = NEWN(tmp, NodeSum, q->n), *heavy = NEWN(tmp, NodeSum, q->n);
    fill_steps(q, order, NEWN(tmp, int, q->storage.count), step, heavy);
    BoundCut *c = cut_new(q, tmp, body);
    int64_t best = q->ends;
    for (int k = 0; k < MIN(q->n, CUT_NODES) && step[k].key > best && c->net.left > 0; k++) {
        int64_t now = least_at(c, step[k].node, -1);
        best = MAX(best, now);
    }
    for (int k = 0; k < MIN(q->n, npair) && step[k].key > best && c->net.left > 0; k++)
        best = bound_pairs(c, step[k], step, bound_pairs(c, step[k], heavy, best));
    return best;
}

int64_t problem_bound(const Problem *q, Arena *tmp, const int *order, bool quick)
{
    return bound(q, tmp, order, NULL, quick ? 0 : PAIR_NODES);
}

int64_t order_bound(Flow *f, Arena *tmp)
{
    flow_mark_parts(f);
    Problem *q = problem_new(f, tmp);
    int *order = NEWN(tmp, int, q->n);
    int64_t *body = NEWN(tmp, int64_t, 2 * q->n);
    for (int i = 0; i < q->n; i++) {
        order[i] = i;
        for (int c = 0; c < 2; c++) {
            Flow *inner = item_body(f, q->item[i], c);
            body[2 * i + c] = inner ? order_bound(inner, tmp) : 0;
        }
    }
    return bound(q, tmp, order, body, PAIR_NODES);
}
