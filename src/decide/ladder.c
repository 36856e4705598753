/* Ladders: which values the backward computes again, in the order in which they pay.
 *
 * A value that the backward reads is saved, which takes its bytes from the forward on, or is
 * computed again, which takes its seconds and needs its operands. At a price of p seconds a byte
 * the cheapest choice is a minimum cut with two vertices a node: AVAILABLE to the backward and
 * AGAIN, that is, computed again. Arcs from the source to AVAILABLE of what the backward reads,
 * from AVAILABLE to AGAIN (p times the bytes: it is available but not computed again, so it is
 * saved), from AGAIN to the sink (the seconds), and, without a limit, from AGAIN to AVAILABLE of
 * each operand. Sinks' arcs get relatively cheaper as p grows, so the sets that are computed again
 * are nested (Gallo, Grigoriadis and Tarjan 1989). All prices at which the set changes are found as
 * the corners of the convex curve of seconds over bytes.
 *
 * The nodes that join the set at one price are a step for each block of the model, earlier blocks
 * first: equal layers join at equal prices, and what an early layer saves would be alive longest.
 * So the first k steps are a choice, for every k. Each takes more seconds, and fewer bytes, but for
 * a value that two blocks need and only the forward reads: the first of them has it saved.
 *
 * Blocks are those of blocks.c. Values that another block's forward reads are saved, as under every
 * named policy: a block's recomputation begins there, and is not a second forward. Bytes count as
 * `weight` says: for the forward's end all do, for a place of the step those that are alive there.
 */
#include "decide.h"
#include "../plan/network.h"

#include <string.h>

enum { MOST_CUTS = 40 };

/* A graph with forward and backward in it. */
typedef struct AgainGraph {
    const Graph *g;
    Arena *a, *tmp, *cut; /* of the ladder; of this graph; of one cut */
    Node **base;          /* by value id */
    int *place;           /* by node id: its number among the nodes below; -1: it is none of them */
    const Node **at;      /* forward nodes that define memory, in order */
    const int *block;     /* by node id */
    bool *read;           /* by number: the backward reads it */
    bool *may;            /* it can be computed again */
    bool *free;           /* it takes no bytes that recomputation could spare */
    double *nbytes, *sec;
    int n;
    int cuts;
} AgainGraph;

/* A choice at one price. */
typedef struct Corner {
    bool *again; /* by number */
    double nbytes, sec;
} Corner;

/* ---- the problem ---- */

static bool is_forward(const Node *n)
{
    return n && n->phase < BACKWARD;
}

static bool is_simple(const Node *n)
{
    return n->op->region != LOOP && !node_moves(n);
}

static void number_nodes(AgainGraph *x)
{
    x->place = NEWN(x->tmp, int, x->g->nnode);
    x->at = NEWN(x->tmp, const Node *, x->g->nnode);
    for (const Node *n = x->g->first; n; n = n->next) {
        x->place[n->id] = is_forward(n) && !node_aliases(n) ? x->n : -1;
        x->at[x->n] = n;
        x->n += x->place[n->id] >= 0;
    }
}

static int place_of(const AgainGraph *x, const Value *v)
{
    const Node *n = x->base[v->id];
    return n ? x->place[n->id] : -1;
}

/* Neither a value that another block's forward reads nor an output is computed again. */
static void find_reads(AgainGraph *x)
{
    for (const Node *n = x->g->first; n; n = n->next) {
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            int k = place_of(x, n->in[i]);
            if (k < 0)
                continue;
            x->read[k] |= !is_forward(n);
            x->may[k] &= !is_forward(n) || x->block[n->id] == x->block[x->at[k]->id];
        }
    }
    for (int i = 0; i < x->g->nout; i++) {
        int k = place_of(x, x->g->out[i].v);
        if (k >= 0)
            x->free[k] = true;
    }
}

static double result_bytes(const Node *n, const int64_t *weight)
{
    double nbytes = 0;
    for (int k = 0; k < n->nout; k++)
        nbytes += weight ? (double)weight[n->out[k]->id] : (double)type_nbytes(&n->out[k]->type);
    return nbytes;
}

static AgainGraph read_graph(Arena *a, Arena *tmp, const Graph *g, const Machine *m,
                             const int *block, const int64_t *weight)
{
    AgainGraph x = {.g = g,
                    .a = a,
                    .tmp = tmp,
                    .cut = arena_tmp(tmp),
                    .base = find_view_bases(g, tmp),
                    .block = block ? block : NEWN(tmp, int, g->nnode)};
    number_nodes(&x);
    x.read = NEWN(tmp, bool, x.n);
    x.may = NEWN(tmp, bool, x.n);
    x.free = NEWN(tmp, bool, x.n);
    x.nbytes = NEWN(tmp, double, x.n);
    x.sec = NEWN(tmp, double, x.n);
    for (int k = 0; k < x.n; k++) {
        const Node *n = x.at[k];
        bool again = policy_again(n->policy);
        x.may[k] = is_simple(n) && (!n->policy || again);
        x.nbytes[k] = result_bytes(n, weight);
        x.sec[k] = again ? 0 : node_sec(m, graph_mesh(g), n);
    }
    find_reads(&x);
    return x;
}

/* ---- one price ---- */

static int vertex(int place, bool again)
{
    return 2 + 2 * place + again;
}

/* Capacities in whole units, so that cuts are exact. */
static Network cut_of_price(Arena *tmp, const AgainGraph *x, double price, double unit)
{
    Network c = network_new(tmp, 2 + 2 * x->n, INT64_MAX);
    network_vertices(&c, 2 * x->n);
    for (int k = 0; k < x->n; k++) {
        if (x->free[k])
            continue;
        if (x->read[k])
            network_arc(&c, NETWORK_SOURCE, vertex(k, false), NETWORK_ENDLESS);
        if (!x->may[k]) {
            network_arc(&c, vertex(k, false), NETWORK_SINK, (int64_t)(price * x->nbytes[k] / unit));
            continue;
        }
        network_arc(&c, vertex(k, false), vertex(k, true), (int64_t)(price * x->nbytes[k] / unit));
        network_arc(&c, vertex(k, true), NETWORK_SINK, (int64_t)(x->sec[k] / unit));
        for (int i = 0; i < x->at[k]->nin; i++) {
            int from = place_of(x, x->at[k]->in[i]);
            if (from >= 0)
                network_arc(&c, vertex(k, true), vertex(from, false), NETWORK_ENDLESS);
        }
    }
    return c;
}

/* The bytes saved and the seconds of a side of a cut. */
static Corner corner_of(const AgainGraph *x, const Network *cut)
{
    Corner c = {.again = NEWN(x->a, bool, x->n)};
    for (int k = 0; k < x->n; k++) {
        bool available = network_side(cut, vertex(k, false)) && !x->free[k];
        c.again[k] = available && x->may[k] && network_side(cut, vertex(k, true));
        c.nbytes += available && !c.again[k] ? x->nbytes[k] : 0;
        c.sec += c.again[k] ? x->sec[k] : 0;
    }
    return c;
}

static double total(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static Corner solve(AgainGraph *x, double price)
{
    double all = total(x->sec, x->n) + price * total(x->nbytes, x->n);
    Network c = cut_of_price(x->cut, x, price, MAX(all, 1e-30) * 0x1p-50);
    network_flow(&c);
    Corner corner = corner_of(x, &c);
    arena_reset(x->cut);
    x->cuts++;
    return corner;
}

/* ---- all prices ---- */

typedef struct Curve {
    Corner *corner;
    int n, cap;
} Curve;

/* Adds the corners between two of them, by bytes downward, and the second. */
static void add_between(AgainGraph *x, Curve *c, Corner low, Corner high)
{
    double price = (high.sec - low.sec) / MAX(low.nbytes - high.nbytes, 1);
    bool more = high.nbytes < low.nbytes && x->cuts < MOST_CUTS;
    Corner y = more ? solve(x, price) : low;
    double gain = (low.sec + price * low.nbytes) - (y.sec + price * y.nbytes);
    if (more && gain > 1e-9 * high.sec && y.nbytes < low.nbytes && y.nbytes > high.nbytes) {
        add_between(x, c, low, y);
        add_between(x, c, y, high);
    } else {
        PUSH(x->a, c->corner, c->n, c->cap, high);
    }
}

static Curve find_curve(AgainGraph *x)
{
    Curve c = {0};
    Corner none = {.again = NEWN(x->a, bool, x->n)};
    for (int k = 0; k < x->n; k++)
        none.nbytes += x->read[k] && !x->free[k] ? x->nbytes[k] : 0;
    double sec = total(x->sec, x->n), nbytes = total(x->nbytes, x->n);
    add_between(x, &c, none, solve(x, 1e3 * sec / MAX(nbytes, 1)));
    return c;
}

/* ---- steps ---- */

static void add_name(Arena *a, LadderStep *s, const Node *n)
{
    PUSH(a, s->value, s->n, s->cap, n->out[0]->name);
}

/* A step for each block that has what joins, in the order of the blocks. */
static void add_steps(const AgainGraph *x, Ladder *l, const bool *joins)
{
    /* by a block's number, and one: the number of its step, and one */
    int *step = NEWN(x->tmp, int, x->g->nnode + 2);
    for (int k = 0; k < x->n; k++) {
        if (!joins[k])
            continue;
        int *s = &step[x->block[x->at[k]->id] - NO_BLOCK];
        if (!*s) {
            PUSH(x->a, l->step, l->n, l->cap, (LadderStep){0});
            *s = l->n;
        }
        add_name(x->a, &l->step[*s - 1], x->at[k]);
    }
}

Ladder ladder_new(Arena *a, const Graph *g, const Machine *m, const int *block,
                  const int64_t *weight)
{
    Arena *tmp = arena_tmp(a);
    Ladder l = {0};
    AgainGraph x = read_graph(a, tmp, g, m, block, weight);
    Curve c = find_curve(&x);
    bool *joined = NEWN(tmp, bool, x.n), *joins = NEWN(tmp, bool, x.n);
    for (int i = 0; i < c.n; i++) {
        for (int k = 0; k < x.n; k++) {
            joins[k] = c.corner[i].again[k] && !joined[k] && !policy_again(x.at[k]->policy);
            joined[k] |= joins[k];
        }
        add_steps(&x, &l, joins);
    }
    arena_reset(tmp);
    return l;
}
