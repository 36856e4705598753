/* accumulate: wraps forward, loss and backward in one loop over K microbatches.
 *
 * Every value is in one of three states with respect to the rows of the batch inputs (axis 0):
 *   WHOLE    does not depend on them;
 *   ROWS     has them, major, on one axis (of B * inner elements), so a turn computes its part;
 *   PARTIAL  is a sum over them, so the turns' values are added.
 * The states follow from each op's factors; an op that needs all rows at once, or that is not linear
 * in a partial sum, makes the pass fail and name it. WHOLE nodes stay before the loop (views and
 * constants are made again inside; one that meets rows axis by axis is sliced), and so does count_labels: labels that count are counted over the
 * whole step. Random ops get the turn's global offset, so masks do not depend on K. The last turn is
 * a body of its own where K does not divide B. Sums are in f32 (f64 for f64): numerics change only by
 * the order of these sums. */
#include "pass.h"

#include <string.h>

typedef enum { WHOLE, ROWS, PARTIAL } State;

typedef struct Cut {
    State state;
    int axis;
    int64_t inner; /* elements of the axis for one row */
} Cut;

typedef struct Accumulate {
    Graph *g;
    Arena *tmp;
    int64_t rows, part, turns, rest; /* B, rows of a main turn, main turns, rows of the tail */
    Cut *cut;      /* by value id */
    int *factor;   /* by node id: the factor that carries the rows, or -1 */
    bool *outside; /* by node id: stays before the loop */
    Region *r;
    Value **in;
    int nin, capin, capport, capout;
    int *port;     /* by value id: the port that gives it, or a random result's offset, or -1 */
    int *sliced;   /* by value id: the port that slices a WHOLE value, or -1 */
} Accumulate;

/* ---- states ---- */

static int row_factor(const Accumulate *s, const Node *n, const Factors *f)
{
    int found = -1;
    for (int i = 0; i < n->nin; i++) {
        const Cut *c = &s->cut[n->in[i]->id];
        if (c->state != ROWS)
            continue;
        const Axes *x = &f->in[i];
        int k = x->n[c->axis] ? x->f[c->axis][0] : -1;
        if (k < 0 && s->rows == 1)
            continue;
        if (k < 0 || (found >= 0 && k != found) || f->factor[k].size % s->rows ||
            (f->factor[k].kind == FACTOR_REPLICATE && !n->op->random)) /* add_cut gives its offset */
            fail_node(s->g, n, "cannot be cut into microbatches: operand %d is needed whole", i);
        found = k;
    }
    return found;
}

static void cut_result(Accumulate *s, const Node *n, const Factors *f, int factor, int k)
{
    Cut *c = &s->cut[n->out[k]->id];
    const Axes *x = &f->out[k];
    for (int d = 0; d < n->out[k]->type.rank; d++)
        for (int i = 0; i < x->n[d]; i++) {
            if (x->f[d][i] != factor)
                continue;
            if (i)
                fail_node(s->g, n, "cannot be cut into microbatches: rows are not major on axis %d", d);
            *c = (Cut){ROWS, d, n->out[k]->type.dim[d] / s->rows};
            return;
        }
    if (f->factor[factor].kind != FACTOR_SUM)
        fail_node(s->g, n, "cannot be cut into microbatches: result %d is not a sum over rows", k);
    c->state = PARTIAL;
}

/* A node that reads partial sums must be linear in them. */
static void pass_partial(Accumulate *s, const Node *n, int npartial)
{
    bool product = n->op->linear || node_is(n, "mul");
    bool first = node_is(n, "div") && npartial == 1 && s->cut[n->in[0]->id].state == PARTIAL;
    bool sum = n->op->linear && npartial == n->nin;
    if (!(sum || first || (product && npartial == 1 && !node_is(n, "add") && !node_is(n, "sub"))))
        fail_node(s->g, n, "cannot be cut into microbatches: not linear in a sum over rows");
    for (int k = 0; k < n->nout; k++)
        s->cut[n->out[k]->id].state = PARTIAL;
}

static void find_state(Accumulate *s, const Node *n)
{
    int nrows = 0, npartial = 0;
    s->factor[n->id] = -1;
    for (int i = 0; i < n->nin; i++) {
        nrows += s->cut[n->in[i]->id].state == ROWS;
        npartial += s->cut[n->in[i]->id].state == PARTIAL;
    }
    if ((nrows || npartial) && n->region)
        fail_node(s->g, n, "cannot be cut into microbatches: it is a region");
    if (node_is(n, "count_labels") || (!nrows && !npartial)) {
        s->outside[n->id] = true;
    } else if (npartial) {
        if (nrows)
            fail_node(s->g, n, "cannot be cut into microbatches: mixes rows with a sum over rows");
        pass_partial(s, n, npartial);
    } else {
        Factors *f = node_factors(s->tmp, n);
        int factor = row_factor(s, n, f);
        if (factor < 0)
            fail_node(s->g, n, "cannot be cut into microbatches: a batch of one row");
        s->factor[n->id] = factor;
        for (int k = 0; k < n->nout; k++)
            cut_result(s, n, f, factor, k);
    }
}

static void find_states(Accumulate *s)
{
    Graph *g = s->g;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_BATCH)
            continue;
        if (!p->v->type.rank || (s->rows && p->v->type.dim[0] != s->rows))
            fail(g->ctx, TN_FAIL, "accumulate: batch input %%%s: expected %lld rows, found %s",
                 p->v->name, (long long)s->rows, type_text(g->a, &p->v->type));
        s->rows = p->v->type.dim[0];
        s->cut[p->v->id] = (Cut){ROWS, 0, 1};
    }
    for (const Node *n = g->first; n; n = n->next)
        find_state(s, n);
    bool *needed = NEWN(s->tmp, bool, g->nnode); /* what count_labels reads is computed twice */
    for (Node *n = g->last; n; n = n->prev)
        if (s->outside[n->id] || needed[n->id])
            for (int i = 0; i < n->nin; i++)
                if (n->in[i]->def)
                    needed[n->in[i]->def->id] = true;
    for (Node *n = g->first; n; n = n->next)
        s->outside[n->id] |= needed[n->id];
}

static void find_turns(Accumulate *s, int64_t count)
{
    if (!s->rows)
        fail(s->g->ctx, TN_USAGE, "accumulate: the graph has no batch input");
    s->part = (s->rows + count - 1) / count;
    s->turns = s->rows / s->part;
    s->rest = s->rows % s->part;
    if (s->turns + (s->rest > 0) != count)
        fail(s->g->ctx, TN_USAGE, "accumulate: %lld rows in %lld turns of %lld leave a turn empty",
             (long long)s->rows, (long long)count, (long long)s->part);
}

/* ---- bodies ---- */

/* The axis of WHOLE operand i that goes with the rows of the others, or -1. */
static int row_axis(Accumulate *s, const Node *n, int i)
{
    const Value *v = n->in[i];
    if (s->factor[n->id] < 0 || s->cut[v->id].state != WHOLE)
        return -1;
    const Axes *x = &node_factors(s->tmp, n)->in[i];
    for (int d = 0; d < v->type.rank; d++)
        for (int k = 0; k < x->n[d]; k++) {
            if (x->f[d][k] != s->factor[n->id])
                continue;
            if (k)
                fail_node(s->g, n, "cannot be cut into microbatches: rows are not major in operand %d", i);
            return d;
        }
    return -1;
}

static bool made_inside(const Accumulate *s, const Node *n)
{
    return s->cut[n->out[0]->id].state != WHOLE || n->op->view || node_is(n, "full");
}

static int add_port(Accumulate *s, PortIn p, Value *v)
{
    p.arg = -1;
    if (v) {
        p.arg = s->nin;
        PUSH(s->g->a, s->in, s->nin, s->capin, v);
    }
    PUSH(s->g->a, s->r->in, s->r->nin, s->capport, p);
    return s->r->nin - 1;
}

/* Body inputs have the same index as their port: every port here is seen by both bodies. */
static void add_input(Accumulate *s, Value *v)
{
    if (s->port[v->id] >= 0)
        return;
    int index = s->r->nin;
    PortKind kind = s->cut[v->id].state == ROWS ? PORT_SLICE : PORT_WHOLE;
    s->port[v->id] = add_port(s, (PortIn){.kind = kind, .main = index, .tail = s->rest ? index : -1}, v);
}

static void add_offset(Accumulate *s, const Node *n)
{
    const Cut *c = &s->cut[n->in[0]->id];
    int index = s->r->nin;
    s->port[n->out[0]->id] = add_port(s, (PortIn){.kind = PORT_OFFSET, .main = index,
                                                  .tail = s->rest ? index : -1,
                                                  .step = s->part * c->inner}, NULL);
}

static void add_slice(Accumulate *s, Value *v, int axis)
{
    if (s->sliced[v->id] >= 0 && s->r->in[s->sliced[v->id]].axis != axis)
        fail(s->g->ctx, TN_FAIL, "accumulate: %%%s is cut along two axes", v->name);
    if (s->sliced[v->id] >= 0)
        return;
    int index = s->r->nin;
    s->sliced[v->id] = add_port(s, (PortIn){.kind = PORT_SLICE, .axis = axis, .main = index,
                                            .tail = s->rest ? index : -1}, v);
}

static void need_inside(Accumulate *s, bool *inside, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i];
        if (v->def && made_inside(s, v->def) && row_axis(s, n, i) < 0)
            inside[v->def->id] = true;
    }
}

/* Which nodes the bodies hold: what outputs need of rows and sums, backwards. */
static bool *find_inside(Accumulate *s)
{
    Graph *g = s->g;
    bool *inside = NEWN(s->tmp, bool, g->nnode);
    for (int i = 0; i < g->nout; i++)
        if (s->cut[g->out[i].v->id].state != WHOLE && g->out[i].v->def)
            inside[g->out[i].v->def->id] = true;
    for (Node *n = g->last; n; n = n->prev)
        if (inside[n->id])
            need_inside(s, inside, n);
    for (Node *n = g->first; n; n = n->next) {
        if (!inside[n->id])
            continue;
        for (int i = 0; i < n->nin; i++) {
            int axis = row_axis(s, n, i);
            if (axis >= 0)
                add_slice(s, n->in[i], axis);
            else if (!n->in[i]->def || !inside[n->in[i]->def->id])
                add_input(s, n->in[i]);
        }
        if (n->op->random && s->factor[n->id] >= 0)
            add_offset(s, n);
    }
    return inside;
}

static Attr *part_attrs(Accumulate *s, const Node *n, int64_t rows)
{
    Arena *a = s->g->a;
    Attr *attr = NEWN(a, Attr, op_nattr(n->op));
    memcpy(attr, n->attr, sizeof *attr * (size_t)op_nattr(n->op));
    if (s->factor[n->id] < 0 || !n->op->rules->part)
        return attr;
    Factors *f = node_factors(s->tmp, n);
    int64_t size[MAX_FACTOR];
    for (int i = 0; i < f->count; i++)
        size[i] = f->factor[i].size;
    size[s->factor[n->id]] = size[s->factor[n->id]] / s->rows * rows;
    n->op->rules->part(n, f, size, attr, a);
    return attr;
}

static const int64_t *append(Arena *a, const Attr *list, int64_t x)
{
    int64_t *longer = NEWN(a, int64_t, list->i + 1);
    if (list->i)
        memcpy(longer, list->ints, sizeof *longer * (size_t)list->i);
    longer[list->i] = x;
    return longer;
}

/* A random op draws by position in the whole step's tensor: one more cut axis with its offset. */
static void add_cut(Accumulate *s, const Node *n, Attr *attr)
{
    const Cut *c = &s->cut[n->in[0]->id];
    Attr *axes = &attr[attr_index(n->op, "axes")], *extents = &attr[attr_index(n->op, "extents")];
    axes->ints = append(s->g->a, axes, c->axis);
    axes->i++;
    extents->ints = append(s->g->a, extents, n->in[0]->type.dim[c->axis]);
    extents->i++;
}

static Node *copy_node(Accumulate *s, Graph *body, const Node *n, Value **now, int64_t rows)
{
    bool cut = n->op->random && s->factor[n->id] >= 0;
    int nin = n->nin + cut;
    Value **in = NEWN(s->tmp, Value *, nin);
    for (int i = 0; i < n->nin; i++)
        in[i] = row_axis(s, n, i) < 0 ? now[n->in[i]->id] : body->in[s->sliced[n->in[i]->id]].v;
    Attr *attr = part_attrs(s, n, rows);
    if (cut) {
        in[n->nin] = body->in[s->port[n->out[0]->id]].v;
        add_cut(s, n, attr);
    }
    const char **names = NEWN(s->tmp, const char *, n->nout);
    for (int k = 0; k < n->nout; k++)
        names[k] = graph_fresh(body, n->out[k]->name);
    Build b = {.g = body, .phase = n->phase, .policy = n->policy, .scope = n->scope,
               .origin = n->origin};
    return emit_named(&b, n->op, nin, in, attr, NULL, n->stream, names, n->nout);
}

static Graph *make_body(Accumulate *s, const bool *inside, int64_t rows)
{
    Graph *body = graph_body(s->g);
    Value **now = NEWN(s->tmp, Value *, s->g->nvalue);
    for (int j = 0; j < s->r->nin; j++) {
        const PortIn *p = &s->r->in[j];
        Type t = p->arg < 0 ? type_make(I64, 0, NULL) : s->in[p->arg]->type;
        if (p->kind == PORT_SLICE)
            t.dim[p->axis] = t.dim[p->axis] / s->rows * rows;
        Value *v = graph_input(body, p->arg < 0 ? "offset" : s->in[p->arg]->name, t, ROLE_NONE, NULL);
        if (p->arg >= 0 && s->port[s->in[p->arg]->id] == j)
            now[s->in[p->arg]->id] = v;
    }
    for (const Node *n = s->g->first; n; n = n->next) {
        if (!inside[n->id])
            continue;
        Node *m = copy_node(s, body, n, now, rows);
        for (int k = 0; k < n->nout; k++)
            now[n->out[k]->id] = m->out[k];
    }
    for (int i = 0; i < s->g->nout; i++) {
        Value *v = s->g->out[i].v;
        if (s->cut[v->id].state != WHOLE && v->def)
            graph_output(body, now[v->id], ROLE_NONE, NULL);
    }
    return body;
}

static void add_results(Accumulate *s)
{
    int index = 0;
    for (int i = 0; i < s->g->nout; i++) {
        Value *v = s->g->out[i].v;
        const Cut *c = &s->cut[v->id];
        if (c->state == WHOLE || !v->def)
            continue;
        PortOut o = {.kind = c->state == ROWS ? PORT_CONCAT : PORT_SUM, .main = index,
                     .tail = s->rest ? index : -1, .axis = c->axis,
                     .dtype = v->type.dtype == F64 ? F64 : F32};
        PUSH(s->g->a, s->r->out, s->r->nout, s->capout, o);
        index++;
    }
}

/* ---- the pass ---- */

static void replace_outputs(Accumulate *s, Build *b, Node *loop)
{
    Graph *g = s->g;
    for (int i = 0, k = 0; i < g->nout; i++) {
        Value *v = g->out[i].v;
        if (s->cut[v->id].state == WHOLE || !v->def)
            continue;
        Value *w = loop->out[k++];
        if (w->type.dtype != v->type.dtype)
            w = emit1(b, "_to_copy", IN(w), ATTRS(A_DTYPE("dtype", v->type.dtype)));
        g->out[i].v = w;
    }
}

static Accumulate start(Graph *g, Arena *tmp)
{
    Accumulate s = {.g = g, .tmp = tmp, .r = NEW(g->a, Region)};
    s.cut = NEWN(tmp, Cut, g->nvalue);
    s.factor = NEWN(tmp, int, g->nnode);
    s.outside = NEWN(tmp, bool, g->nnode);
    s.port = NEWN(tmp, int, g->nvalue);
    s.sliced = NEWN(tmp, int, g->nvalue);
    for (int i = 0; i < g->nvalue; i++)
        s.port[i] = s.sliced[i] = -1;
    return s;
}

int pass_accumulate(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->accumulate <= 1)
        return 0;
    Accumulate s = start(g, tmp);
    find_states(&s);
    find_turns(&s, o->accumulate);
    const bool *inside = find_inside(&s);
    s.r->n = s.turns;
    s.r->body = make_body(&s, inside, s.part);
    s.r->tail = s.rest ? make_body(&s, inside, s.rest) : NULL;
    add_results(&s);
    Build b = {.g = g};
    for (const Node *n = s.r->body->first; n; n = n->next)
        b.phase = MAX(b.phase, n->phase);
    Node *loop = emit_loop(&b, s.nin, s.in, s.r);
    replace_outputs(&s, &b, loop);
    EACH_NODE (n, g)
        if (n != loop && n->id < loop->id && !s.outside[n->id])
            node_unlink(g, n);
    return 1;
}
