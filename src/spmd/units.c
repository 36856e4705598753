/* units: finds where values may be cut, whoever cuts them: an axis below so many of its elements.
 *
 * An axis of a value may hold several factors of the nodes around it: rows and tokens are one axis
 * of a product's operand, and q, k and v of a weight. A cut of tokens there lies below the rows. So
 * every node's factors are followed through the graph, forward and backward, until nothing new is
 * found; what one node can be cut along, its neighbours get as a unit if they can be cut so too.
 * CutUnits that no mesh axis divides are left out. Linear in readings, times units and rounds. */
#include "solved.h"

enum { MOST_UNITS = 8, ROUNDS = 12 };

typedef struct UnitFinder {
    EqualGraph *e;
    const Spmd *x;
    Arena *tmp;
    bool changed;
} UnitFinder;

/* Whether some mesh axis can cut `size` elements below `outer` of them; none cuts 0 elements. */
static bool can_cut(const Spmd *x, int64_t size, int64_t outer)
{
    for (int c = 0; size && outer && c < x->mesh->naxes; c++)
        if (x->cuts[c].count > 1 && size % (outer * x->cuts[c].count) == 0)
            return true;
    return false;
}

static void add(UnitFinder *y, CutUnits *u, int at, int64_t outer, int64_t size)
{
    for (int i = 0; i < u->count; i++)
        if (u->list[i].at == at && u->list[i].outer == outer)
            return;
    if (u->count == MOST_UNITS || !can_cut(y->x, size, outer))
        return;
    PUSH(y->e->a, u->list, u->count, u->cap, ((CutUnit){at, outer}));
    y->changed = true;
}

static void add_to_value(UnitFinder *y, int value, Cut cut)
{
    ValueClass *v = &y->e->value[value];
    if (cut.kind == CUT_SLICE)
        add(y, &v->units, cut.axis, cut.outer, v->type.dim[cut.axis]);
}

/* Hands a class' units on to its results, and to one value that it reads. */
static void tell_results(UnitFinder *y, const EqualClass *q, int first)
{
    Cut *in = NEWN(y->tmp, Cut, q->n->nin), *out = NEWN(y->tmp, Cut, q->n->nout);
    for (int u = 0; u < q->units.count; u++) {
        NodeCut how = {
            .kind = NODE_FACTOR, .factor = q->units.list[u].at, .outer = q->units.list[u].outer};
        cut_fill(q->n, q->f, &how, in, out);
        for (int k = 0; k < q->n->nout; k++)
            add_to_value(y, first + k, out[k]);
    }
}

static void tell_operand(UnitFinder *y, const EqualClass *q, int i, int value)
{
    Cut *in = NEWN(y->tmp, Cut, q->n->nin), *out = NEWN(y->tmp, Cut, q->n->nout);
    for (int u = 0; u < q->units.count; u++) {
        NodeCut how = {
            .kind = NODE_FACTOR, .factor = q->units.list[u].at, .outer = q->units.list[u].outer};
        cut_fill(q->n, q->f, &how, in, out);
        add_to_value(y, value, in[i]);
    }
}

/* Hands a value's units on to a class that reads it, or makes it. */
static void hear(UnitFinder *y, EqualClass *q, int i, int k, int value)
{
    Cut *cut = NEWN(y->tmp, Cut, MAX(q->n->nin, q->n->nout));
    const CutUnits *u = &y->e->value[value].units;
    NodeCut how;
    CutStop stop;
    for (int j = 0; j < u->count; j++) {
        Cut *at = &cut[i >= 0 ? i : k];
        *at = (Cut){CUT_SLICE, u->list[j].at, u->list[j].outer};
        if ((i >= 0 ? cut_forward(q->n, q->f, 1, cut, &how, &stop)
                    : cut_backward(q->n, q->f, 1, cut, &how, &stop)) &&
            how.kind == NODE_FACTOR)
            add(y, &q->units, how.factor, how.outer, q->f->factor[how.factor].size);
        *at = (Cut){.kind = CUT_WHOLE};
    }
}

static void add_own(UnitFinder *y, EqualClass *q)
{
    for (int k = 0; k < q->f->count; k++)
        if (q->f->factor[k].kind != FACTOR_REPLICATE && q->f->factor[k].size > 1)
            add(y, &q->units, k, 1, q->f->factor[k].size);
}

static void hear_all(UnitFinder *y)
{
    EqualGraph *e = y->e;
    for (int i = 0; i < e->ngroup; i++)
        for (int j = 0; j < e->group[i].nread; j++) {
            const Reading *r = &e->group[i].read[j];
            EqualClass *q = &e->class[r->reader];
            if (!q->n)
                continue;
            hear(y, q, r->operand, -1, e->group[i].value);
            tell_operand(y, q, r->operand, e->group[i].value);
        }
    for (int v = 0; v < e->nvalue; v++)
        if (e->class[e->value[v].of].n)
            hear(y, &e->class[e->value[v].of], -1, e->value[v].result, v);
    for (int v = 0; v < e->nvalue; v++) {
        EqualClass *q = &e->class[e->value[v].of];
        if (q->n && e->value[v].result == 0)
            tell_results(y, q, v);
    }
}

/* A parameter is cut as its readers can be, its state as it is. */
static void fill_inputs(UnitFinder *y)
{
    EqualGraph *e = y->e;
    for (int v = 0; v < e->nvalue; v++) {
        EqualClass *q = &e->class[e->value[v].of];
        const CutUnits *u = &e->value[v].units;
        for (int j = 0; j < u->count && !q->n; j++)
            if (u->list[j].at < q->type.rank)
                add(y, &q->units, u->list[j].at, u->list[j].outer, q->type.dim[u->list[j].at]);
    }
}

/* ---- units that lead nowhere ---- */

/* Whether class q, cut along some unit of its own, has that cut of operand i, or of result k. */
static bool has_cut(UnitFinder *y, const EqualClass *q, int i, int k, Cut cut)
{
    if (!q->n || q->skipped)
        return true;
    Cut *in = NEWN(y->tmp, Cut, q->n->nin), *out = NEWN(y->tmp, Cut, q->n->nout);
    for (int u = 0; u < q->units.count; u++) {
        NodeCut how = {
            .kind = NODE_FACTOR, .factor = q->units.list[u].at, .outer = q->units.list[u].outer};
        cut_fill(q->n, q->f, &how, in, out);
        if (cut_equal(i >= 0 ? in[i] : out[k], cut))
            return true;
    }
    return false;
}

/* Whether what makes the operand, or all that reads the result, could not go on with a cut. */
static bool leads_nowhere(UnitFinder *y, int class, const Cut *in, const Cut *out)
{
    const EqualGraph *e = y->e;
    bool wanted[TN_MAX_OUT] = {0}, asked[TN_MAX_OUT] = {0};
    for (int g = 0; g < e->ngroup; g++) {
        const ReadGroup *r = &e->group[g];
        const ValueClass *v = &e->value[r->value];
        for (int j = 0; j < r->nread; j++) {
            const Reading *x = &r->read[j];
            if (x->reader == class && x->operand >= 0 && in[x->operand].kind == CUT_SLICE &&
                !has_cut(y, &e->class[v->of], -1, v->result, in[x->operand]))
                return true;
            if (v->of != class || out[v->result].kind != CUT_SLICE)
                continue;
            asked[v->result] = true;
            wanted[v->result] |= has_cut(y, &e->class[x->reader], x -> operand, -1, out[v->result]);
        }
    }
    for (int k = 0; k < e->class[class].n->nout; k++)
        if (asked[k] && !wanted[k])
            return true;
    return false;
}

/* Drops units that lie below others of their place (one head's numbers, say) where a neighbour has
 * no such unit: they would be cut there only to be gathered at once. */
static void drop_units(UnitFinder *y)
{
    EqualGraph *e = y->e;
    for (int c = 0; c < e->nclass; c++) {
        EqualClass *q = &e->class[c];
        int count = 0;
        for (int u = 0; u < q->units.count && q->n; u++) {
            CutUnit unit = q->units.list[u];
            NodeCut how = {.kind = NODE_FACTOR, .factor = unit.at, .outer = unit.outer};
            Cut *in = NEWN(y->tmp, Cut, q->n->nin), *out = NEWN(y->tmp, Cut, q->n->nout);
            cut_fill(q->n, q->f, &how, in, out);
            bool below = unit.outer > 1;
            for (int i = 0; i < q->n->nin; i++)
                below |= in[i].kind == CUT_SLICE && in[i].outer > 1;
            for (int k = 0; k < q->n->nout; k++)
                below |= out[k].kind == CUT_SLICE && out[k].outer > 1;
            if (below && leads_nowhere(y, c, in, out)) {
                y->changed = true;
                continue;
            }
            q->units.list[count++] = unit;
        }
        if (q->n)
            q->units.count = count;
    }
}

void equal_fill_units(EqualGraph *e, const Spmd *x)
{
    UnitFinder y = {e, x, arena_new(x->ctx), true};
    CHECK(y.tmp);
    for (int i = 0; i < e->nclass; i++)
        if (e->class[i].n && !e->class[i].skipped)
            add_own(&y, &e->class[i]);
    for (int round = 0; round < ROUNDS && y.changed; round++) {
        y.changed = false;
        hear_all(&y);
    }
    y.changed = true;
    for (int round = 0; round < ROUNDS && y.changed; round++) {
        y.changed = false;
        drop_units(&y);
        arena_reset(y.tmp);
    }
    fill_inputs(&y);
    arena_free(y.tmp);
}
