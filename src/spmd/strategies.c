/* strategies: lists the legal ways to cut a node over all axes of the mesh, whatever forms its
 * operands have.
 *
 * An axis leaves the node whole, cuts it along a unit of one of its factors (units.c), or passes on
 * operands that are partial, where the op is linear in them. Where several axes cut within one
 * unit, the first of the mesh lies outermost, or the last: which one decides over which axis a part
 * can be gathered in one piece. What src/cut allows is listed. Linear in the combinations, which
 * are choices to the power of axes. */
#include "solved.h"

#include <string.h>

enum { MOST_WAYS = 64, FEW_OPERANDS = 6 };

/* How an axis may cut, and within which unit; -1: in none. */
typedef struct AxisWays {
    NodeCut way[MOST_WAYS];
    int unit[MOST_WAYS];
    int count;
} AxisWays;

typedef struct Lister {
    const Spmd *x;
    Arena *a;
    AxisWays axis[MAX_MESH];
    int at[MAX_MESH]; /* the combination: the way of each axis */
} Lister;

static void add_way(AxisWays *w, NodeCut how, int unit)
{
    if (w->count == MOST_WAYS)
        return;
    w->way[w->count] = how;
    w->unit[w->count++] = unit;
}

/* ---- the ways of an axis ---- */

static void add_linear(AxisWays *w, const Node *n, uint64_t partial)
{
    if (op_linear(n, partial))
        add_way(w, (NodeCut){.kind = NODE_LINEAR, .partial = partial, .merge = CUT_SUM}, -1);
}

/* One operand partial, two, or all. */
static void add_linears(AxisWays *w, const Node *n)
{
    int few = n->nin <= FEW_OPERANDS ? n->nin : 0;
    for (int i = 0; i < few; i++)
        for (int k = i; k < few; k++)
            add_linear(w, n, UINT64_C(1) << i | UINT64_C(1) << k);
    if (n->nin > 2 && n->nin < 64)
        add_linear(w, n, (UINT64_C(1) << n->nin) - 1);
}

static void find_ways(Lister *y, int c, const Node *n, const Factors *f, const CutUnits *units)
{
    AxisWays *w = &y->axis[c];
    CutStop stop;
    w->count = 0;
    add_way(w, (NodeCut){.kind = NODE_WHOLE}, -1);
    if (y->x->cuts[c].count == 1)
        return;
    for (int u = 0; u < units->count; u++) {
        NodeCut how = {
            .kind = NODE_FACTOR, .factor = units->list[u].at, .outer = units->list[u].outer};
        if (cut_legal(n, f, y->x->cuts[c].count, &how, &stop))
            add_way(w, how, u);
    }
    add_linears(w, n);
}

/* ---- combinations ---- */

static bool next(Lister *y)
{
    for (int c = 0; c < y->x->mesh->naxes; c++) {
        if (++y->at[c] < y->axis[c].count)
            return true;
        y->at[c] = 0;
    }
    return false;
}

/* Below how many elements of its unit's place axis c cuts, if the axes that cut within the unit lie
 * in the mesh's order or the reverse. */
static int64_t outer_of(const Lister *y, int c, bool reverse, int64_t outer)
{
    int unit = y->axis[c].unit[y->at[c]];
    for (int d = 0; d < y->x->mesh->naxes; d++)
        if (d != c && (d < c) != reverse && y->axis[d].unit[y->at[d]] == unit)
            outer *= y->x->cuts[d].count;
    return outer;
}

static bool shares_unit(const Lister *y)
{
    for (int c = 0; c < y->x->mesh->naxes; c++)
        for (int d = 0; d < c; d++)
            if (y->axis[c].unit[y->at[c]] >= 0 &&
                y->axis[c].unit[y->at[c]] == y->axis[d].unit[y->at[d]])
                return true;
    return false;
}

StrategyList strategies_list(const Spmd *x, Arena *a, const Node *n, const Factors *f,
                             const CutUnits *units)
{
    Lister *y = NEW(a, Lister);
    StrategyList list = {0};
    Strategy t = strategy_room(a, n);
    *y = (Lister){.x = x, .a = a};
    for (int c = 0; c < x->mesh->naxes; c++)
        find_ways(y, c, n, f, units);
    do {
        for (int reverse = 0; reverse < (shares_unit(y) ? 2 : 1); reverse++) {
            for (int c = 0; c < x->mesh->naxes; c++) {
                t.how[c] = y->axis[c].way[y->at[c]];
                if (t.how[c].kind == NODE_FACTOR)
                    t.how[c].outer = outer_of(y, c, reverse, t.how[c].outer);
            }
            if (!strategy_fill(x, n, f, &t))
                continue;
            Strategy *kept = NEW(a, Strategy);
            *kept = t;
            PUSH(a, list.list, list.count, list.cap, kept);
            t = strategy_room(a, n);
        }
    } while (next(y));
    return list;
}

/* ---- inputs ---- */

/* The axes of a value as factors of a node without operands. */
static void find_input_ways(Lister *y, int c, const Type *t, const CutUnits *units)
{
    AxisWays *w = &y->axis[c];
    w->count = 0;
    add_way(w, (NodeCut){.kind = NODE_WHOLE}, -1);
    for (int u = 0; u < units->count && y->x->cuts[c].count > 1; u++) {
        CutUnit unit = units->list[u];
        if (t->dim[unit.at] % (unit.outer * y->x->cuts[c].count) == 0)
            add_way(w, (NodeCut){.kind = NODE_FACTOR, .factor = unit.at, .outer = unit.outer}, u);
    }
}

StrategyList strategies_of_input(const Spmd *x, Arena *a, const Type *t, const CutUnits *units)
{
    Lister *y = NEW(a, Lister);
    StrategyList list = {0};
    *y = (Lister){.x = x, .a = a};
    for (int c = 0; c < x->mesh->naxes; c++)
        find_input_ways(y, c, t, units);
    do {
        for (int reverse = 0; reverse < (shares_unit(y) ? 2 : 1); reverse++) {
            Cut cut[MAX_MESH] = {{.kind = CUT_WHOLE}};
            for (int c = 0; c < x->mesh->naxes; c++) {
                NodeCut how = y->axis[c].way[y->at[c]];
                if (how.kind == NODE_FACTOR)
                    cut[c] = (Cut){CUT_SLICE, how.factor, outer_of(y, c, reverse, how.outer)};
            }
            if (!cut_value_legal(t, x->mesh->naxes, x->cuts, cut))
                continue;
            Strategy *kept = NEW(a, Strategy);
            kept->in = kept->out = arena_alloc(a, sizeof(Cut[MAX_MESH]));
            memcpy(kept->out[0], cut, sizeof cut);
            PUSH(a, list.list, list.count, list.cap, kept);
        }
    } while (next(y));
    return list;
}
