/* A bound on the seconds of what is computed again: no choice of what is saved and what is computed
 * again that fits a limit has fewer, in any order.
 *
 * While a place of the backward runs, what is read there or later is in memory, or is computed
 * again later of what is; parameters, state, and what the place itself reads and makes lie beside
 * it. So what is in memory takes at most what the limit leaves. With a price p of a byte, the least
 * of (seconds + p bytes) over all choices, which is a minimum cut, less p times what is left, is at
 * most the seconds of any choice that fits: weak duality. The price with the largest bound is found
 * between two corners of the curve, until nothing lies between. Places are the end of the forward,
 * and the products of the backward at which most is alive.
 *
 * Only products, attention and collectives take seconds here: other nodes may be fused with readers
 * and then take none of their own. Blocks do not matter, as a choice need not respect them. */
#include "again.h"
#include "again_cut.h"

#include <math.h>
#include <string.h>

enum { MOST_STEPS = 24, PLACES = 3, MOST_TRIED = 40 /* places, from the backward's begin */ };

/* A place of the backward. */
typedef struct BoundPlace {
    const Node *node; /* NULL: the forward's end */
    double fixed;     /* bytes of what it reads and makes, but for forward values */
    double alive;     /* and with what is read then or later, if all is saved */
} BoundPlace;

/* Fills by number of the forward nodes whether the backward reads it at the node, or at one that
 * needs the node's results and so runs later in any order; NULL: anywhere. */
static void find_needed(const AgainGraph *x, Arena *tmp, const Node *node, bool *needed)
{
    bool *after = NEWN(tmp, bool, x->g->nnode), begun = !node;
    memset(needed, 0, (size_t)x->n);
    for (const Node *n = x->g->first; n; n = n->next) {
        begun |= n == node;
        bool *self = &after[n->id];
        *self = n == node || (!node && n->phase >= BACKWARD);
        for (int i = 0; begun && i < n->nin; i++)
            *self |= n->in[i]->def && after[n->in[i]->def->id];
        for (int i = 0; *self && i < n->nin && !node_aliases(n); i++) {
            int k = again_place(x, n->in[i]);
            if (k >= 0)
                needed[k] = true;
        }
    }
    arena_reset(tmp);
}

/* What a product reads of the backward, and what it makes. */
static double own_bytes(const AgainGraph *x, const Node *n)
{
    double nbytes = (double)type_nbytes(&n->out[0]->type);
    for (int i = 0; i < n->nin; i++) {
        const Node *from = x->base[n->in[i]->id];
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen |= x->base[n->in[k]->id] == from;
        if (from && from->phase >= BACKWARD && !seen)
            nbytes += (double)MIN(type_nbytes(&n->in[i]->type), type_nbytes(&from->out[0]->type));
    }
    return nbytes;
}

static double saved_bytes(const AgainGraph *x, const bool *needed)
{
    double nbytes = 0;
    for (int k = 0; k < x->n; k++)
        nbytes += needed[k] && !x->free[k] ? x->nbytes[k] : 0;
    return nbytes;
}

static bool is_plain_product(const Node *n)
{
    return n->phase == BACKWARD && (node_is(n, OP_mm) || node_is(n, OP_bmm));
}

/* The places at which most is alive, the first of them the forward's end. */
static int list_places(AgainGraph *x, Arena *tmp, BoundPlace *list)
{
    int count = 0, tried = 0;
    list[count++] = (BoundPlace){.alive = INFINITY};
    for (const Node *n = x->g->first; n && tried < MOST_TRIED; n = n->next) {
        if (!is_plain_product(n))
            continue;
        BoundPlace p = {n, own_bytes(x, n), 0};
        find_needed(x, tmp, n, x->read);
        p.alive = p.fixed + saved_bytes(x, x->read);
        tried++;
        int at = count < PLACES + 1 ? count++ : PLACES + 1;
        for (; at > 0 && p.alive > list[at - 1].alive; at--)
            if (at <= PLACES)
                list[at] = list[at - 1];
        if (at <= PLACES)
            list[at] = p;
    }
    return count;
}

/* The least seconds with at most so many bytes, or fewer. */
static double least_seconds(AgainGraph *x, double nbytes)
{
    Corner low = again_none(x), high = again_most(x);
    double bound = 0;
    if (low.nbytes <= nbytes)
        return 0;
    if (high.nbytes > nbytes)
        return high.sec;
    for (int i = 0; i < MOST_STEPS && high.nbytes < low.nbytes; i++) {
        double price = (high.sec - low.sec) / (low.nbytes - high.nbytes);
        Corner y = again_solve(x, price);
        bound = MAX(bound, y.sec + price * (y.nbytes - nbytes));
        if (y.nbytes >= low.nbytes || y.nbytes <= high.nbytes)
            break;
        *(y.nbytes > nbytes ? &low : &high) = y;
    }
    return bound;
}

static bool takes_seconds(const Node *n)
{
    return n->op->class == CLASS_PRODUCT || n->op->class == CLASS_ATTENTION ||
           n->op->class == CLASS_COLLECTIVE;
}

double again_bound(Arena *a, const Graph *g, const Machine *m, double nbytes)
{
    Arena *tmp = arena_tmp(a), *once = arena_tmp(a);
    AgainGraph x = again_graph(tmp, tmp, g, m, NULL);
    BoundPlace list[PLACES + 2];
    double bound = 0;
    for (int k = 0; k < x.n; k++)
        x.sec[k] = takes_seconds(x.at[k]) ? x.sec[k] : 0;
    for (int i = 0, n = list_places(&x, once, list); i < n; i++) {
        find_needed(&x, once, list[i].node, x.read);
        double sec = least_seconds(&x, nbytes - list[i].fixed);
        bound = MAX(bound, sec);
    }
    arena_reset(tmp);
    return bound;
}

double again_kept_bytes(const Graph *g)
{
    double nbytes = 0;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM || g->in[i].role == ROLE_STATE)
            nbytes += (double)type_nbytes(&g->in[i].v->type);
    return nbytes;
}
