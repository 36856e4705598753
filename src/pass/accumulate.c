/* accumulate: wraps forward, loss and backward in one loop over K microbatches.
 *
 * The batch inputs are cut along axis 0, with its rows as units, and the cuts are followed forward,
 * node by node (cut/transfer_cuts.c). A value is whole, a slice of rows, or a partial sum over
 * rows; a value that depends on such a sum but not on single rows is made after the loop. A node
 * whose parts give other sums than its results (a mean) is first replaced by the nodes of these
 * sums and those of the results. The pass fails, naming the op, if an op needs all rows at once, or
 * mixes rows with a sum over rows, which would need a second loop.
 *
 * The bodies hold the parts of nodes that are cut (cut/part_node.c, cut/loop_cuts.c). Whole nodes
 * stay before the loop, except constants, which the bodies recompute; a whole value of which a part
 * needs rows is sliced. Labels are counted over the whole step, before the loop; so is every sum
 * over rows of the batch alone, without parameters, that rows are mixed with, as by the gradient of
 * a loss that is divided by a mask's sum. Nodes after the loop run once, on the sums. Sums of sums
 * (a parameter that is used twice) are added within the iteration, so that the loop holds one
 * accumulator; views of sums are emitted wherever they are read. The last iteration has a body of
 * its own, the tail, if K does not divide the rows.
 *
 * Numerics: iterations are summed in f32 (f64 for f64), in order; nothing else changes. Linear, but
 * for the search of operands among ports and one more walk for each node that is replaced. */
#include "loop_make.h"

#include <string.h>

static const char what[] = "cannot be cut into microbatches";

/* ---- rows and iterations ---- */

static Slices find_batch(const Graph *g, const PassOptions *o)
{
    int64_t rows = -1, count = o->accumulate;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_BATCH)
            continue;
        if (!p->v->type.rank)
            fail(g->ctx, TN_FAIL,
                 "accumulate: batch input %%%s: expected an axis of rows, found %s", p->v->name,
                 type_text(g->a, &p->v->type));
        if (rows >= 0 && p->v->type.dim[0] != rows)
            fail(g->ctx, TN_FAIL, "accumulate: batch input %%%s: expected %lld rows, found %s",
                 p->v->name, (long long)rows, type_text(g->a, &p->v->type));
        rows = p->v->type.dim[0];
    }
    if (rows <= 0)
        fail(g->ctx, TN_USAGE, "accumulate: the graph has no batch input with rows");
    Slices s = slices_of(rows, count);
    if (s.n + (s.rest > 0) != count)
        fail(g->ctx, TN_USAGE,
             "accumulate: %lld rows in %lld iterations of %lld leave an iteration empty",
             (long long)rows, (long long)count, (long long)s.part);
    if (o->filled)
        s.filled = (o->filled + count - 1) / count;
    return s;
}

/* ---- how rows cut the graph ---- */

typedef struct States {
    GraphCut cut;
    bool *after; /* by value id */
    bool *alone; /* by value id: made of the batch and constants, without parameters */
} States;

/* Values that are made of the batch alone and whole, before the loop; by id. */
typedef struct Early {
    bool *is;
    int count;
} Early;

typedef enum { DONE, EXPOSE, AGAIN } Found;

static bool is_early(const Early *e, const Value *v)
{
    return v->id < e->count && e->is[v->id];
}

static bool all_alone(const States *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (!s->alone[n->in[i]->id])
            return false;
    return true;
}

/* v is to be early, and the sums that it is made of. */
static void make_early(const Graph *g, Arena *tmp, const States *s, Early *e, const Value *v)
{
    if (e->count < g->nvalue) {
        bool *more = NEWN(tmp, bool, g->nvalue);
        if (e->count)
            memcpy(more, e->is, sizeof *more * (size_t)e->count);
        *e = (Early){more, g->nvalue};
    }
    if (e->is[v->id] || !v->def || (s->cut.value[v->id].kind == CUT_SLICE))
        return;
    for (int k = 0; k < v->def->nout; k++)
        e->is[v->def->out[k]->id] = true;
    for (int i = 0; i < v->def->nin; i++)
        make_early(g, tmp, s, e, v->def->in[i]);
}

_Noreturn static void refuse(const Graph *g, const Node *n, const char *why)
{
    fail_node(g, n, "%s: %s", what, why);
}

/* Whether all operands are partial sums, so that adding them in the iteration keeps one
 * accumulator. */
static bool stays_partial(const States *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (s->cut.value[n->in[i]->id].kind != CUT_SUM)
            return false;
    return (n->op->view || (n->op->class == CLASS_POINTWISE && n->nin > 1)) &&
           op_linear(n, (1ULL << n->nin) - 1);
}

/* Cuts n, which reads rows. False if its parts must be merged before they give results:
 * node_expose().
 */
static bool cut_rows(const Graph *g, Arena *tmp, States *s, const Node *n)
{
    Cut *in = NEWN(tmp, Cut, n->nin), *out = NEWN(tmp, Cut, n->nout);
    NodeCut *how = &s->cut.node[n->id];
    PartCut part = {.count = s->cut.count, .units = s->cut.count};
    CutStop stop;
    bool merged = false;
    for (int i = 0; i < n->nin; i++)
        in[i] = s->cut.value[n->in[i]->id];
    if (n->op->region == LOOP) {
        if (!cut_loop_forward(n, tmp, s->cut.count, in, how, out, &stop) ||
            !cut_loop_together(n, tmp, 1, &part, how, &stop))
            refuse(g, n, cut_stop_text(tmp, n, &stop));
    } else {
        Factors *f = node_factors(tmp, n);
        if (!cut_forward(n, f, s->cut.count, in, how, &stop) ||
            !cut_together(f, 1, &part, how, &stop))
            refuse(g, n, cut_stop_text(tmp, n, &stop));
        cut_fill(n, f, how, in, out);
        merged = cut_partials(f, 1, how, NULL);
    }
    for (int k = 0; k < n->nout; k++) {
        if (!merged && out[k].kind != CUT_SLICE && out[k].kind != CUT_SUM)
            refuse(g, n, arena_printf(tmp, "result %d is neither rows nor a sum over rows", k));
        s->cut.value[n->out[k]->id] = out[k];
    }
    return !merged;
}

static Found find_state(const Graph *g, Arena *tmp, States *s, Early *e, const Node *n)
{
    int rows = -1, sum = -1;
    bool alone = n->stream < 0 && !n->region && all_alone(s, n);
    for (int k = 0; k < n->nout; k++)
        s->alone[n->out[k]->id] = alone;
    if (is_early(e, n->out[0]))
        return DONE;
    for (int i = 0; i < n->nin; i++) {
        int v = n->in[i]->id;
        rows = s->cut.value[v].kind == CUT_SLICE ? i : rows;
        sum = s->cut.value[v].kind == CUT_SUM || s->after[v] ? i : sum;
    }
    if (rows >= 0 && sum >= 0 && s->alone[n->in[sum]->id]) {
        make_early(g, tmp, s, e, n->in[sum]);
        return AGAIN;
    }
    if (rows >= 0 && sum >= 0)
        refuse(g, n,
               arena_printf(tmp, "it mixes rows with a sum over rows, operand %d (%%%s)", sum,
                            n->in[sum]->name));
    if (rows >= 0 && !n->op->counts)
        return cut_rows(g, tmp, s, n) ? DONE : EXPOSE;
    bool partial = sum >= 0 && stays_partial(s, n);
    if (partial)
        s->cut.node[n->id] = (NodeCut){.kind = NODE_LINEAR, .partial = ~0ULL, .merge = CUT_SUM};
    for (int k = 0; k < n->nout; k++) {
        s->cut.value[n->out[k]->id] = (Cut){.kind = partial ? CUT_SUM : CUT_WHOLE};
        s->after[n->out[k]->id] = sum >= 0 && !partial;
    }
    return DONE;
}

static States find_states(Graph *g, Arena *tmp, int64_t rows)
{
    Early e = {0};
    for (;;) {
        States s = {{rows, NEWN(tmp, Cut, g->nvalue), NEWN(tmp, NodeCut, g->nnode)},
                    NEWN(tmp, bool, g->nvalue),
                    NEWN(tmp, bool, g->nvalue)};
        Found found = DONE;
        Node *n = g->first;
        for (int i = 0; i < g->nin; i++) {
            if (g->in[i].role == ROLE_BATCH)
                s.cut.value[g->in[i].v->id] = (Cut){CUT_SLICE, 0, 1};
            s.alone[g->in[i].v->id] = g->in[i].role != ROLE_PARAM;
        }
        while (n && (found = find_state(g, tmp, &s, &e, n)) == DONE)
            n = n->next;
        if (!n)
            return s;
        if (found == EXPOSE)
            node_expose(g, tmp, n);
    }
}

/* ---- before, inside and after the loop ---- */

static bool is_whole(const States *s, const Value *v)
{
    return s->cut.value[v->id].kind == CUT_WHOLE && !s->after[v->id];
}

/* Whether the bodies compute v, which one of their nodes needs cut as `need`. */
static bool made_inside(const States *s, const Value *v, Cut need)
{
    return v->def &&
           (!is_whole(s, v) || (v->def->op->class == CLASS_CREATION && need.kind == CUT_WHOLE));
}

/* Finds the places of nodes, backwards from the outputs, which are needed outside of the loop. */
static void find_places(const Graph *g, Arena *tmp, const States *s, LoopPart *p)
{
    bool *wanted = NEWN(tmp, bool, g->nvalue), *needed = NEWN(tmp, bool, g->nvalue);
    p->inside = NEWN(tmp, bool, g->nnode);
    p->outside = NEWN(tmp, bool, g->nnode);
    p->after = NEWN(tmp, bool, g->nnode);
    p->yielded = NEWN(tmp, bool, g->nvalue);
    for (int i = 0; i < g->nout; i++)
        wanted[g->out[i].v->id] = true;
    for (const Node *n = g->last; n; n = n->prev) {
        const Value *first = n->out[0];
        const Cut *need = loop_needs(tmp, &s->cut, n);
        bool later =
            s->after[first->id] || (s->cut.value[first->id].kind == CUT_SUM && n->op->view);
        bool before =
            p->outside[n->id] || (is_whole(s, first) && s->cut.node[n->id].kind == NODE_WHOLE);
        for (int k = 0; k < n->nout; k++) {
            int id = n->out[k]->id;
            p->after[n->id] |= wanted[id] && later;
            p->yielded[id] = wanted[id] && !later && !before;
            p->inside[n->id] |= needed[id] || p->yielded[id];
        }
        p->outside[n->id] = before || p->after[n->id];
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            wanted[v->id] |= p->after[n->id];
            needed[v->id] |= p->inside[n->id] && made_inside(s, v, need[i]);
            if (v->def && before)
                p->outside[v->def->id] = true;
        }
    }
}

static void check_results(const Graph *g, const LoopPart *p)
{
    for (int i = 0; i < g->nvalue; i++)
        if (p->yielded[i])
            return;
    fail(g->ctx, TN_FAIL, "accumulate: no output depends on a batch input");
}

int pass_accumulate(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->accumulate <= 1)
        return 0;
    Slices slices = find_batch(g, o);
    loss_counts(g, tmp);
    States s = find_states(g, tmp, slices.units);
    LoopPart p = {.slices = slices, .cut = s.cut, .what = what};
    find_places(g, tmp, &s, &p);
    check_results(g, &p);
    loop_make(g, tmp, &p);
    return 1;
}
