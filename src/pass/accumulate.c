/* accumulate: wraps forward, loss and backward in one loop over K microbatches.
 *
 * The batch inputs are cut along axis 0, with its rows as units, and the cuts are followed forward,
 * node by node (cut/transfer.c). A value is whole, a slice of rows, or a partial sum over rows; a
 * value that depends on such a sum but not on single rows is `late`. A node whose parts give other
 * sums than its results (a mean) is first replaced by the nodes of these sums and those of the
 * results. The pass fails, naming the op, if an op needs all rows at once, or mixes rows with a sum
 * over rows, which would need a second loop.
 *
 * The bodies hold the parts of nodes that are cut (cut/part.c, cut/loop.c). Whole nodes stay before
 * the loop, except constants, which the bodies recompute; a whole value of which a part needs rows
 * is sliced. Labels are counted over the whole step, before the loop. Late nodes run once, after
 * the loop, on the sums. Sums of sums (a parameter that is used twice) are added within the
 * iteration, so that the loop holds one accumulator; views of sums are emitted wherever they are
 * read. The last iteration has a body of its own, the tail, if K does not divide the rows.
 *
 * Numerics: iterations are summed in f32 (f64 for f64), in order; nothing else changes. Linear, but
 * for the search of operands among ports and one more walk for each node that is replaced. */
#include "pass.h"

#include "../cut/cut.h"

#include <string.h>

/* ---- rows and iterations ---- */

typedef struct Batch {
    int64_t rows, part, n, rest; /* all; of an iteration; iterations; rows of the tail */
    int64_t filled; /* of an iteration: those before padding, by which positions count */
} Batch;

static Batch find_batch(const Graph *g, int64_t count)
{
    Batch b = {0};
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_BATCH)
            continue;
        if (!p->v->type.rank || (b.rows && p->v->type.dim[0] != b.rows))
            fail(g->ctx, TN_FAIL, "accumulate: batch input %%%s: expected %lld rows, found %s",
                 p->v->name, (long long)b.rows, type_text(g->a, &p->v->type));
        b.rows = p->v->type.dim[0];
    }
    if (!b.rows)
        fail(g->ctx, TN_USAGE, "accumulate: the graph has no batch input with rows");
    b.part = b.rows / count + (b.rows % count > 0);
    b.n = b.rows / b.part;
    b.rest = b.rows % b.part;
    if (b.n + (b.rest > 0) != count)
        fail(g->ctx, TN_USAGE,
             "accumulate: %lld rows in %lld iterations of %lld leave an iteration empty",
             (long long)b.rows, (long long)count, (long long)b.part);
    return b;
}

/* ---- how rows cut the graph ---- */

typedef struct States {
    GraphCut cut;
    bool *late; /* by value id */
} States;

_Noreturn static void refuse(const Graph *g, const Node *n, const char *why)
{
    fail_node(g, n, "cannot be cut into microbatches: %s", why);
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

/* False: n is to be exposed first. */
static bool find_state(const Graph *g, Arena *tmp, States *s, const Node *n)
{
    int rows = -1, sum = -1;
    for (int i = 0; i < n->nin; i++) {
        int v = n->in[i]->id;
        rows = s->cut.value[v].kind == CUT_SLICE ? i : rows;
        sum = s->cut.value[v].kind == CUT_SUM || s->late[v] ? i : sum;
    }
    if (rows >= 0 && sum >= 0)
        refuse(g, n,
               arena_printf(tmp, "it mixes rows with a sum over rows, operand %d (%%%s)", sum,
                            n->in[sum]->name));
    if (rows >= 0 && !n->op->counts)
        return cut_rows(g, tmp, s, n);
    bool partial = sum >= 0 && stays_partial(s, n);
    if (partial)
        s->cut.node[n->id] = (NodeCut){.kind = NODE_LINEAR, .partial = ~0ULL, .merge = CUT_SUM};
    for (int k = 0; k < n->nout; k++) {
        s->cut.value[n->out[k]->id] = (Cut){.kind = partial ? CUT_SUM : CUT_WHOLE};
        s->late[n->out[k]->id] = sum >= 0 && !partial;
    }
    return true;
}

static States find_states(Graph *g, Arena *tmp, int64_t rows)
{
    for (;;) {
        States s = {{rows, NEWN(tmp, Cut, g->nvalue), NEWN(tmp, NodeCut, g->nnode)},
                    NEWN(tmp, bool, g->nvalue)};
        Node *n = g->first;
        for (int i = 0; i < g->nin; i++)
            if (g->in[i].role == ROLE_BATCH)
                s.cut.value[g->in[i].v->id] = (Cut){CUT_SLICE, 0, 1};
        while (n && find_state(g, tmp, &s, n))
            n = n->next;
        if (!n)
            return s;
        node_expose(g, tmp, n);
    }
}

/* The cuts that n's parts need of its operands. */
static const Cut *operand_cuts(Arena *tmp, const States *s, const Node *n)
{
    Cut *in = NEWN(tmp, Cut, n->nin), *out = NEWN(tmp, Cut, n->nout);
    const NodeCut *how = &s->cut.node[n->id];
    if (how->kind == NODE_FACTOR)
        cut_fill(n, node_factors(tmp, n), how, in, out);
    else
        for (int i = 0; i < n->nin; i++)
            in[i] = s->cut.value[n->in[i]->id];
    return in;
}

/* ---- before, inside and after the loop ---- */

typedef struct Positions {
    bool *before, *inside, *after; /* by node id; none: nowhere */
    bool *yielded;                 /* by value id: a result of the loop */
} Positions;

static bool is_whole(const States *s, const Value *v)
{
    return s->cut.value[v->id].kind == CUT_WHOLE && !s->late[v->id];
}

/* Whether the bodies compute v, which one of their nodes needs cut as `need`. */
static bool made_inside(const States *s, const Value *v, Cut need)
{
    return v->def &&
           (!is_whole(s, v) || (v->def->op->class == CLASS_CREATION && need.kind == CUT_WHOLE));
}

/* Finds the places of nodes, backwards from the outputs, which are needed outside of the loop. */
static Positions find_places(const Graph *g, Arena *tmp, const States *s)
{
    bool *wanted = NEWN(tmp, bool, g->nvalue), *needed = NEWN(tmp, bool, g->nvalue);
    Positions p = {NEWN(tmp, bool, g->nnode), NEWN(tmp, bool, g->nnode), NEWN(tmp, bool, g->nnode),
                   NEWN(tmp, bool, g->nvalue)};
    for (int i = 0; i < g->nout; i++)
        wanted[g->out[i].v->id] = true;
    for (const Node *n = g->last; n; n = n->prev) {
        const Value *first = n->out[0];
        const Cut *need = operand_cuts(tmp, s, n);
        bool later = s->late[first->id] || (s->cut.value[first->id].kind == CUT_SUM && n->op->view);
        p.before[n->id] |= is_whole(s, first) && s->cut.node[n->id].kind == NODE_WHOLE;
        for (int k = 0; k < n->nout; k++) {
            int id = n->out[k]->id;
            p.after[n->id] |= wanted[id] && later;
            p.yielded[id] = wanted[id] && !later && !p.before[n->id];
            p.inside[n->id] |= needed[id] || p.yielded[id];
        }
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            wanted[v->id] |= p.after[n->id];
            needed[v->id] |= p.inside[n->id] && made_inside(s, v, need[i]);
            if (v->def && p.before[n->id])
                p.before[v->def->id] = true;
        }
    }
    return p;
}

/* An order edge must not cross the border of the loop. */
static void check_order(const Graph *g, const Positions *p)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nafter; i++) {
            int m = n->after[i]->id;
            bool in = p->inside[n->id] && !p->inside[m];
            bool out = (p->before[n->id] || p->after[n->id]) && !p->before[m] && !p->after[m];
            if (in || out || (p->before[n->id] && p->after[m]))
                refuse(g, n,
                       arena_printf(g->a, "its order after %%%s crosses the loop",
                                    n->after[i]->out[0]->name));
        }
}

/* ---- bodies ---- */

/* The loop under construction. A port is added, to both bodies, when the first node needs it: input
 * j of a body is port j. */
typedef struct Loop {
    Graph *g;
    const Batch *batch;
    Region *r;
    Value **in;
    int nin, capin, capport, capout;
} Loop;

/* The input of body t by a port like p for v (NULL: none). */
static Value *body_input(Loop *x, PortIn p, Value *v, int t)
{
    Region *r = x->r;
    for (int j = 0; j < r->nin; j++) {
        const PortIn *q = &r->in[j];
        if (q->kind == p.kind && q->axis == p.axis && q->step == p.step &&
            (q->arg < 0 ? NULL : x->in[q->arg]) == v)
            return r->body[t]->in[j].v;
    }
    p.arg = v ? x->nin : -1;
    for (int b = 0; b < region_nbody(r); b++) {
        Type type = v ? v->type : type_make(I64, 0, NULL);
        if (p.kind == PORT_SLICE)
            type.dim[p.axis] =
                type.dim[p.axis] / x->batch->rows * (b == TAIL ? x->batch->rest : x->batch->part);
        graph_input(r->body[b], graph_fresh(r->body[b], v ? v->name : "offset"), type, ROLE_NONE,
                    NULL);
        p.at[b] = r->nin;
    }
    if (v)
        PUSH(x->g->a, x->in, x->nin, x->capin, v);
    PUSH(x->g->a, r->in, r->nin, x->capport, p);
    return r->body[t]->in[r->nin - 1].v;
}

/* The body's input for an operand from outside. */
static Value *operand_input(Loop *x, const Node *n, Value *v, Cut need, int t)
{
    PortIn p = {.kind = need.kind == CUT_SLICE ? PORT_SLICE : PORT_WHOLE, .at = {-1, -1}};
    if (need.kind == CUT_SLICE && need.outer != 1)
        refuse(x->g, n, arena_printf(x->g->a, "rows are not major in operand %%%s", v->name));
    p.axis = need.kind == CUT_SLICE ? need.axis : 0;
    return body_input(x, p, v, t);
}

typedef struct Iteration {
    Loop *loop;
    int t;
} Iteration;

static Value *start(void *arg, Build *b, int64_t step)
{
    const Iteration *x = arg;
    (void)b;
    return body_input(
        x->loop,
        (PortIn){.kind = PORT_OFFSET, .at = {-1, -1}, .step = step * x->loop->batch->filled}, NULL,
        x->t);
}

/* now[]: by value id of the graph, of the body. */
static void part_node(Loop *x, Arena *tmp, const States *s, const Node *n, int t, Value **now)
{
    Graph *body = x->r->body[t];
    Iteration it = {x, t};
    PartCut cut = {x->batch->rows, t == TAIL ? x->batch->rest : x->batch->part, start, &it};
    const NodeCut *how = &s->cut.node[n->id];
    const Cut *need = operand_cuts(tmp, s, n);
    Value **in = NEWN(tmp, Value *, n->nin), **out = NEWN(tmp, Value *, n->nout);
    Build b = build_like(body, NULL, n);
    for (int i = 0; i < n->nin; i++)
        in[i] = made_inside(s, n->in[i], need[i]) ? now[n->in[i]->id]
                                                  : operand_input(x, n, n->in[i], need[i], t);
    if (how->kind == NODE_LOOP)
        cut_loop_part(&b, n, tmp, 1, &cut, how, in, out);
    else
        cut_part(&b, n, node_factors(tmp, n), 1, &cut, how, in, out);
    for (int k = 0; k < n->nout; k++)
        now[n->out[k]->id] = out[k];
    Node *m = out[0]->def;
    m->after = NEWN(x->g->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        m->after[m->nafter++] = now[n->after[i]->out[0]->id]->def;
}

static void make_body(Loop *x, Arena *tmp, const States *s, const Positions *p, int t)
{
    Value **now = NEWN(tmp, Value *, x->g->nvalue);
    for (const Node *n = x->g->first; n; n = n->next) {
        if (!p->inside[n->id])
            continue;
        part_node(x, tmp, s, n, t, now);
        for (int k = 0; k < n->nout; k++)
            if (p->yielded[n->out[k]->id])
                graph_output(x->r->body[t], now[n->out[k]->id], ROLE_NONE, NULL);
    }
}

static void find_results(Loop *x, const States *s, const Positions *p)
{
    Region *r = x->r;
    for (const Node *n = x->g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            const Value *v = n->out[k];
            const Cut *c = &s->cut.value[v->id];
            if (!p->yielded[v->id])
                continue;
            if (c->kind == CUT_SLICE && c->outer != 1)
                refuse(x->g, n, arena_printf(x->g->a, "rows are not major in result %d", k));
            DType d = v->type.dtype;
            PortOut o = {.kind = c->kind == CUT_SLICE ? PORT_CONCAT : PORT_SUM,
                         .axis = c->axis,
                         .at = {r->nout, x->batch->rest ? r->nout : -1},
                         .dtype = dtype_float(d) && d != F64 ? F32 : d};
            PUSH(x->g->a, r->out, r->nout, x->capout, o);
        }
    if (!r->nout)
        fail(x->g->ctx, TN_FAIL, "accumulate: no output depends on a batch input");
}

/* ---- the graph around the loop ---- */

/* Removes nodes that no longer run outside of the loop; old[] and names[] get the values that the
 * loop yields instead. */
static void take_apart(Graph *g, const Positions *p, Value **old, const char **names)
{
    int count = 0;
    EACH_NODE(n, g) {
        if (!p->before[n->id] && !p->after[n->id])
            node_unlink(g, n);
        for (int k = 0; k < n->nout; k++)
            if (p->yielded[n->out[k]->id]) {
                names[count] = n->out[k]->name;
                old[count++] = n->out[k];
            }
    }
}

/* Moves nodes that read the loop's results after it; now[], by id, has what replaces a value. */
static void move_behind(Graph *g, const Positions *p, const Node *loop, Value *const *now)
{
    EACH_NODE(n, g) {
        if (n == loop)
            return;
        if (!p->after[n->id])
            continue;
        node_move(g, n, NULL);
        for (int i = 0; i < n->nin; i++)
            if (now[n->in[i]->id])
                n->in[i] = now[n->in[i]->id];
        n->phase = MAX(n->phase, loop->phase);
        if (n->region)
            region_fit_phase(n);
    }
}

static void rebuild(const Loop *x, Arena *tmp, const Positions *p)
{
    Graph *g = x->g;
    const char **names = NEWN(tmp, const char *, x->r->nout);
    Value **now = NEWN(tmp, Value *, g->nvalue), **old = NEWN(tmp, Value *, x->r->nout);
    take_apart(g, p, old, names);
    Build b = {.g = g};
    const Op *op = op_get(g->ctx, "loop");
    Node *loop =
        emit_named(&b, op, x->nin, x->in, attrs_make(g, op, NULL), x->r, -1, names, x->r->nout);
    region_fit_phase(loop);
    b.phase = loop->phase;
    for (int k = 0; k < loop->nout; k++)
        now[old[k]->id] = emit_cast(&b, loop->out[k], old[k]->type.dtype);
    move_behind(g, p, loop, now);
    for (int i = 0; i < g->nout; i++)
        if (now[g->out[i].v->id])
            g->out[i].v = now[g->out[i].v->id];
}

int pass_accumulate(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->accumulate <= 1)
        return 0;
    Batch batch = find_batch(g, o->accumulate);
    batch.filled = o->filled ? (o->filled + o->accumulate - 1) / o->accumulate : batch.part;
    States s = find_states(g, tmp, batch.rows);
    Positions p = find_places(g, tmp, &s);
    check_order(g, &p);
    Region *r = NEW(g->a, Region);
    *r = (Region){.n = batch.n, .body = {graph_body(g), batch.rest ? graph_body(g) : NULL}};
    Loop x = {.g = g, .batch = &batch, .r = r};
    find_results(&x, &s, &p);
    for (int t = 0; t < region_nbody(r); t++)
        make_body(&x, tmp, &s, &p, t);
    rebuild(&x, tmp, &p);
    return 1;
}
