/* The seconds that computing a node again takes in any plan, for the bound (again_bound.c).
 *
 * Products, attention and collectives take their own. Other nodes may be fused (pass/fuse.c), and
 * share a call and what it reads. A clone is fused with clones that read what it reads or makes, or
 * make what it reads, these with further ones, and with nodes of the backward that read them; but
 * only with nodes before the first node outside that reads one of them. A node of such a set of
 * forward nodes counts if only nodes which are not fused read it in the forward, and one of these
 * reads it in the backward before a node that may be fused reads any of the set. A call of clones
 * alone then writes that value. It is written in the forward too, whatever is saved. So it takes at
 * least the memory traffic of the value, and of its part of what the clones read. If it is alone in
 * its set, it takes all of its seconds. All others may take none.
 *
 * Gathers of what is made of parameters may be joined. Such a one takes its part of the cheapest of
 * calls. */
#include "again_price.h"

#include <limits.h>
#include <math.h>

typedef struct LeastPricer {
    AgainGraph *x;
    const Machine *m;
    int *set;              /* by number: one nearer to that which names the set; itself: it does */
    int *size, *early;     /* by number of that: how many there are, and where the first node of the
                              backward stands that may be fused and reads one of them */
    int *reads;            /* by number: where the backward reads it first */
    const Value **written; /* by number: what is read there by one that is not fused; NULL: one that
                              may be is first */
    int *beside;           /* by value id, of inputs: a node of the forward that may be fused and
                              reads as many elements of it as it makes, and one; 0: none does */
    int *readers, *joins;  /* by number: how many nodes of the forward that may be fused read it,
                              and one of them; -1: none does */
    bool *stays;           /* by number: one that is not fused reads it in the forward */
    double *part;          /* by number: bytes that each reader reads for it at least */
} LeastPricer;

static double value_bytes(const Value *v)
{
    return (double)type_nbytes(&v->type);
}

static bool takes_seconds(const Node *n)
{
    return n->op->class == CLASS_PRODUCT || n->op->class == CLASS_ATTENTION ||
           n->op->class == CLASS_CONVOLUTION || n->op->class == CLASS_COLLECTIVE;
}

/* ---- sets ---- */

static int set_of(const LeastPricer *p, int k)
{
    while (p->set[k] != k)
        k = p->set[k] = p->set[p->set[k]];
    return k;
}

static void unite(LeastPricer *p, int k, int j)
{
    const int to = set_of(p, k), from = set_of(p, j);
    if (to == from)
        return;
    p->set[from] = to;
    p->size[to] += p->size[from];
    p->early[to] = MIN(p->early[to], p->early[from]);
}

/* Two nodes may be fused that read the same input. */
static void read_input(LeastPricer *p, const Node *n, const Value *v)
{
    const int self = p->x->place[n->id];
    if (takes_seconds(n) || self < 0 || type_nelem(&v->type) != type_nelem(&n->out[0]->type))
        return;
    if (p->beside[v->id])
        unite(p, self, p->beside[v->id] - 1);
    p->beside[v->id] = self + 1;
}

/* A node of the forward reads number k. */
static void read_again(LeastPricer *p, const Node *n, int k)
{
    const int self = p->x->place[n->id];
    if (takes_seconds(n) || self < 0) {
        p->stays[k] = true;
        return;
    }
    if (!takes_seconds(p->x->at[k]))
        unite(p, self, k);
    if (p->joins[k] >= 0)
        unite(p, self, p->joins[k]);
    p->readers[k] += p->joins[k] != self;
    p->joins[k] = self;
}

static void find_sets(LeastPricer *p)
{
    for (int k = 0; k < p->x->n; k++) {
        p->set[k] = k;
        p->size[k] = 1;
        p->early[k] = p->reads[k] = INT_MAX;
        p->joins[k] = -1;
    }
    int at = 0;
    for (const Node *n = p->x->g->first; n; n = n->next, at++)
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            const int k = again_place(p->x, n->in[i]);
            if (k < 0 && n->phase < BACKWARD)
                read_input(p, n, n->in[i]);
            if (k < 0)
                continue;
            if (n->phase < BACKWARD) {
                read_again(p, n, k);
                continue;
            }
            if (p->reads[k] == INT_MAX) {
                p->reads[k] = at;
                p->written[k] = takes_seconds(n) ? n->in[i] : NULL;
            }
            const int set = set_of(p, k);
            if (!takes_seconds(n))
                p->early[set] = MIN(p->early[set], at);
        }
}

/* ---- traffic ---- */

/* Bytes that a group of clones with n reads for it at least, if others have their parts. */
static double read_bytes(const LeastPricer *p, const Node *n)
{
    double nbytes = 0;
    for (int i = 0; i < n->nin; i++) {
        const int k = again_place(p->x, n->in[i]);
        bool seen = k < 0;
        for (int j = 0; j < i; j++)
            seen |= again_place(p->x, n->in[j]) == k;
        nbytes += seen ? 0 : fmin(p->part[k], value_bytes(n->in[i]));
    }
    return nbytes;
}

/* What is read is in memory, or of a clone in the group, which then reads for it. */
static void find_parts(LeastPricer *p)
{
    for (int k = 0; k < p->x->n; k++) {
        const Node *n = p->x->at[k];
        const bool fusible = !takes_seconds(n);
        double nbytes = p->x->nbytes[k];
        if (fusible)
            nbytes = fmin(nbytes, read_bytes(p, n));
        p->part[k] = nbytes / MAX(p->readers[k] + (fusible && p->stays[k]), 1);
    }
}

/* Seconds of the traffic in a call of several nodes, but for the call itself. */
static double traffic_sec(const Machine *m, double nread, double nwrite)
{
    const double call = cost_sec(m, CLASS_REGION, F32, &(Cost){0});
    const double sec = cost_sec(m, CLASS_REGION, F32, &(Cost){0, nread, nwrite});
    return m->gpu ? (sec > call ? sec : 0) : sec - call;
}

static double fused_sec(const LeastPricer *p, int k)
{
    const int set = set_of(p, k);
    if (!p->written[k] || !p->stays[k] || p->readers[k] || p->early[set] < p->reads[k])
        return 0;
    if (p->size[set] == 1)
        return p->x->sec[k];
    if (p->m->known.count) /* calls of several nodes may take any seconds */
        return 0;
    const double nread = read_bytes(p, p->x->at[k]);
    return fmin(p->x->sec[k], traffic_sec(p->m, nread, value_bytes(p->written[k])));
}

static void price_fused(AgainGraph *x, const Machine *m)
{
    LeastPricer p = {.x = x,
                     .m = m,
                     .set = NEWN(x->tmp, int, x->n),
                     .size = NEWN(x->tmp, int, x->n),
                     .early = NEWN(x->tmp, int, x->n),
                     .reads = NEWN(x->tmp, int, x->n),
                     .written = NEWN(x->tmp, const Value *, x->n),
                     .beside = NEWN(x->tmp, int, x->g->nvalue),
                     .readers = NEWN(x->tmp, int, x->n),
                     .joins = NEWN(x->tmp, int, x->n),
                     .stays = NEWN(x->tmp, bool, x->n),
                     .part = NEWN(x->tmp, double, x->n)};
    find_sets(&p);
    find_parts(&p);
    for (int k = 0; k < x->n; k++)
        if (!takes_seconds(x->at[k]))
            x->sec[k] = fused_sec(&p, k);
}

/* ---- gathers ---- */

/* By value id: made of parameters, state and constants alone. */
static bool *find_kept(const Graph *g, Arena *tmp)
{
    bool *kept = NEWN(tmp, bool, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        kept[g->in[i].v->id] = role_kept(g->in[i].role);
    for (const Node *n = g->first; n; n = n->next) {
        bool all = n->op->class != CLASS_RANDOM;
        for (int i = 0; i < n->nin; i++)
            all &= kept[n->in[i]->id];
        for (int k = 0; k < n->nout; k++)
            kept[n->out[k]->id] = all;
    }
    return kept;
}

/* The part that a gather has in one call of several, at most of all, where that takes less. */
static double joined_sec(const AgainGraph *x, const Machine *m, const Node *n, double all)
{
    const Group group = node_group(m, graph_mesh(x->g), n);
    const double own = value_bytes(n->out[0]);
    double least = INFINITY;
    for (double nbytes = own; nbytes < 2 * all; nbytes *= 2) {
        const double whole = fmin(nbytes, fmax(all, own));
        least = fmin(least, collective_sec(m, ALL_GATHER, group, whole) / whole);
    }
    return least < INFINITY ? least * own : 0;
}

static void price_joined(AgainGraph *x, const Machine *m)
{
    const bool *kept = find_kept(x->g, x->tmp);
    double all = 0;
    for (int k = 0; k < x->n; k++)
        if (node_is(x->at[k], OP_all_gather_into_tensor))
            all += value_bytes(x->at[k]->out[0]);
    for (int k = 0; k < x->n; k++)
        if (node_is(x->at[k], OP_all_gather_into_tensor) && kept[x->at[k]->out[0]->id])
            x->sec[k] = fmin(x->sec[k], joined_sec(x, m, x->at[k], all));
}

void again_price(AgainGraph *x, const Machine *m, bool fused, bool joined)
{
    if (fused)
        price_fused(x, m);
    if (joined)
        price_joined(x, m);
}
