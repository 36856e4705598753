/* What the backward computes again at one price of a saved byte.
 *
 * A value that the backward reads is saved, which takes its bytes from the forward on, or is
 * computed again, which takes its seconds and needs its operands. At a price of p seconds a byte
 * the cheapest choice is a minimum cut with two vertices a node: AVAILABLE to the backward and
 * AGAIN, that is, computed again. Arcs from the source to AVAILABLE of what the backward reads,
 * from AVAILABLE to AGAIN (p times the bytes: it is available but not computed again, so it is
 * saved), from AGAIN to the sink (the seconds), and, without a limit, from AGAIN to AVAILABLE of
 * each operand. Values that another block's forward reads are saved. */
#include "again_cut.h"
#include "../pass/pass.h"
#include "../plan/network.h"

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

int again_place(const AgainGraph *x, const Value *v)
{
    const Node *n = x->base[v->id];
    return n ? x->place[n->id] : -1;
}

/* Neither a value that another block's forward reads nor an output is computed again. */
static void find_reads(AgainGraph *x)
{
    for (const Node *n = x->g->first; n; n = n->next) {
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            int k = again_place(x, n->in[i]);
            if (k < 0)
                continue;
            x->read[k] |= !is_forward(n);
            x->may[k] &= !is_forward(n) || x->block[n->id] == x->block[x->at[k]->id];
        }
    }
    for (int i = 0; i < x->g->nout; i++) {
        int k = again_place(x, x->g->out[i].v);
        if (k >= 0)
            x->free[k] = true;
    }
}

static double result_bytes(const Node *n)
{
    double nbytes = 0;
    for (int k = 0; k < n->nout; k++)
        nbytes += (double)type_nbytes(&n->out[k]->type);
    return nbytes;
}

AgainGraph again_graph(Arena *a, Arena *tmp, const Graph *g, const Machine *m, const int *block)
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
        x.nbytes[k] = result_bytes(n);
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
            int from = again_place(x, x->at[k]->in[i]);
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

Corner again_solve(AgainGraph *x, double price)
{
    double all = total(x->sec, x->n) + price * total(x->nbytes, x->n);
    Network c = cut_of_price(x->cut, x, price, MAX(all, 1e-30) * 0x1p-50);
    network_flow(&c);
    Corner corner = corner_of(x, &c);
    arena_reset(x->cut);
    x->cuts++;
    return corner;
}

Corner again_none(const AgainGraph *x)
{
    Corner none = {.again = NEWN(x->a, bool, x->n)};
    for (int k = 0; k < x->n; k++)
        none.nbytes += x->read[k] && !x->free[k] ? x->nbytes[k] : 0;
    return none;
}

Corner again_most(AgainGraph *x)
{
    return again_solve(x, 1e3 * total(x->sec, x->n) / MAX(total(x->nbytes, x->n), 1));
}
