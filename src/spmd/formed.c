/* formed: decides which weights that the graph forms before a loop are formed in its bodies.
 *
 * A formed weight is made of parameters and constants alone, element by element: a sum of two
 * parameters, parts of several joined. If each rank can make its part from the parts that it
 * stores, the weight stays before the loop and is gathered in it. If parameters must be gathered
 * for it (two that are cut along different axes, one that broadcasts, a slice of one), it goes into
 * a loop over forward and backward, which would keep the gathered parameter otherwise. There every
 * iteration computes it, so only small trees go: at most FORMED_NODES nodes without views, whose
 * operands and results have at most FORMED_TIMES the weight's bytes. Views of one parameter always
 * go. Linear. */
#include "rewrite.h"

#include <string.h>

/* ---- formed values ---- */

static bool may_form(const Node *n)
{
    OpClass class = n->op->class;
    return (class == CLASS_POINTWISE || class == CLASS_MOVEMENT || class == CLASS_CREATION) &&
           !n->op->async && !n->op->wait && !n->region && n->stream < 0 && !n->nafter;
}

/* Finds how axis c cuts n where its operands are cut as they are; false: they do not agree. */
static bool find_cut(const FormedSet *x, const Node *n, const Factors *f, int c, NodeCut *how)
{
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    bool any = false;
    CutStop stop;
    for (int i = 0; i < n->nin; i++) {
        in[i] = x->of[n->in[i]->id].cut[c];
        any |= in[i].kind != CUT_WHOLE;
    }
    *how = (NodeCut){.kind = NODE_WHOLE};
    if (!any)
        return true;
    if (!cut_forward(n, f, x->cuts[c].count, in, how, &stop) ||
        !cut_legal(n, f, x->cuts[c].count, how, &stop))
        return false;
    cut_fill(n, f, how, in, out);
    bool all = true;
    for (int k = 0; k < n->nout; k++) {
        x->of[n->out[k]->id].cut[c] = out[k];
        all &= out[k].kind == CUT_SLICE;
    }
    return all;
}

/* Whether ranks make their parts of n's results of the parts that they have of its operands. */
static bool is_apart(const FormedSet *x, const Node *n)
{
    NodeCut how[MAX_MESH];
    Factors *f = node_factors(x->tmp, n);
    CutStop stop;
    for (int i = 0; i < n->nin; i++)
        if (!x->of[n->in[i]->id].apart)
            return false;
    for (int c = 0; c < x->naxes; c++)
        if (!find_cut(x, n, f, c, &how[c]))
            return false;
    return cut_together(f, x->naxes, x->cuts, how, &stop) && !cut_partials(f, x->naxes, how, NULL);
}

static void fill_node(const FormedSet *x, const Node *n)
{
    Formed y = {.alone = may_form(n)};
    for (int i = 0; i < n->nin; i++) {
        y.alone &= x->of[n->in[i]->id].alone;
        y.gathers |= x->of[n->in[i]->id].gathers;
    }
    y.gathers &= y.alone;
    for (int k = 0; k < n->nout; k++)
        x->of[n->out[k]->id] = y;
    y.apart = y.alone && (!x->drawn || n->nin < 2 || !y.gathers) && is_apart(x, n);
    for (int k = 0; k < n->nout; k++)
        x->of[n->out[k]->id].apart = y.apart;
}

FormedSet formed_fill(const Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m,
                      const Sharding *in, const Gathered *p)
{
    FormedSet x = {.tmp = tmp,
                   .of = NEWN(tmp, Formed, g->nvalue),
                   .nvalue = g->nvalue,
                   .naxes = m->naxes,
                   .drawn = o->spmd_choice};
    for (int c = 0; c < m->naxes; c++)
        x.cuts[c] = (PartCut){.count = m->size[c], .units = 1};
    for (int i = 0; i < g->nin; i++) {
        Formed *y = &x.of[g->in[i].v->id];
        y->alone = y->apart = g->in[i].role == ROLE_PARAM;
        y->gathers = is_gathered(p, g->in[i].v);
        for (int c = 0; c < m->naxes && y->alone; c++)
            y->cut[c] = in[i].cut[c];
    }
    for (const Node *n = g->first; n; n = n->next)
        fill_node(&x, n);
    return x;
}

/* ---- what goes into a loop ---- */

/* Whether v is made of one gathered parameter by at least one view. A cast alone does not count: a
 * rank casts the part that it stores. */
static bool is_viewed(const FormedSet *x, const Value *v)
{
    bool moved = false;
    if (!v->def || v->def->op->copy)
        return false;
    while (v->def && v->def->nin == 1 &&
           (v->def->op->view || v->def->op->class == CLASS_POINTWISE)) {
        moved |= v->def->op->view;
        v = v->def->in[0];
    }
    return moved && !v->def && x->of[v->id].gathers;
}

/* The values that go into the loop for a weight. */
typedef struct Tree {
    const Value *seen[4 * FORMED_NODES];
    int nseen, nnode;
    int64_t nbytes;
} Tree;

/* Adds v, and the values of which the loop makes it. False: they are too many. */
static bool add_tree(const FormedSet *x, const Value *v, Tree *t)
{
    const Formed *y = &x->of[v->id];
    bool inside = v->def && ((y->gathers && !y->apart) || is_viewed(x, v));
    for (int i = 0; i < t->nseen; i++)
        if (t->seen[i] == v)
            return true;
    if (t->nseen == LEN(t->seen) || t->nnode == FORMED_NODES)
        return false;
    t->seen[t->nseen++] = v;
    if (!inside || !v->def->op->view) {
        t->nbytes += type_nbytes(&v->type);
        t->nnode += inside;
    }
    for (int i = 0; inside && i < v->def->nin; i++)
        if (!add_tree(x, v->def->in[i], t))
            return false;
    return true;
}

bool formed_goes_in(FormedSet *x, const Node *loop, const Value *v)
{
    Tree t = {.nseen = 0};
    if (v->id >= x->nvalue || !v->def)
        return false;
    Formed *y = &x->of[v->id];
    if (is_viewed(x, v) || y->inside)
        return true;
    if (!y->gathers || y->apart || loop->phase < BACKWARD || node_in_backward(loop))
        return false;
    return add_tree(x, v, &t) && t.nbytes <= FORMED_TIMES * type_nbytes(&v->type);
}

void formed_put_in(FormedSet *x, const Value *v)
{
    for (int i = 0; i < v->def->nin; i++) {
        Formed *y = &x->of[v->def->in[i]->id];
        y->inside |= v->def->in[i]->def && y->gathers && !y->apart;
    }
}
