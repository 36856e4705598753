/* Ladders: which values the backward computes again, in the order in which they pay.
 *
 * At each price of a saved byte the cheapest choice is a minimum cut (again_cut.c). The arcs of
 * seconds get relatively cheaper as the price grows, so the sets that are computed again are nested
 * (Gallo, Grigoriadis and Tarjan 1989). All prices at which the set changes are found as the
 * corners of the convex curve of seconds over bytes.
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
#include "again_cut.h"

enum { MOST_CUTS = 40 };

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
    Corner y = more ? again_solve(x, price) : low;
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
    add_between(x, &c, again_none(x), again_most(x));
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

static double weigh(const Node *n, const int64_t *weight)
{
    double nbytes = 0;
    for (int k = 0; k < n->nout; k++)
        nbytes += (double)weight[n->out[k]->id];
    return nbytes;
}

Ladder ladder_new(Arena *a, const Graph *g, const Machine *m, const int *block,
                  const int64_t *weight, bool hidden)
{
    Arena *tmp = arena_tmp(a);
    Ladder l = {.level = AGAIN};
    AgainGraph x = again_graph(a, tmp, g, m, block);
    for (int k = 0; weight && k < x.n; k++)
        x.nbytes[k] = weigh(x.at[k], weight);
    for (int k = 0; hidden && k < x.n; k++)
        x.sec[k] = x.at[k]->op->class == CLASS_COLLECTIVE ? 0 : x.sec[k];
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
