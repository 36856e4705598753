/* spmd_prepare: rewrites what ranks need otherwise than it stands, while the graph is still whole.
 *
 * norms   norm_of takes limb arrays (op/sum_squares.c), which ranks add: one array for all
 * gradients that are cut alike, so that one reduction of 24 numbers makes the norm. narrow
 * Parameters are cast to the dtype of computation where they are stored, so that gathers move no
 * more: a cast behind the embedding goes before it, which keeps bits; what reads a parameter in its
 * own dtype, as norms do, reads it rounded. pad     Inputs whose axes the mesh does not divide
 * (spmd_pad.c). hoist   With --reshard never casts of parameters go before the loops that read
 * them. */
#include "spmd.h"

#include <string.h>

/* ---- norms ---- */

/* By value id: the axes of the mesh that cut the parameter whose gradient it is. */
static unsigned *find_masks(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    unsigned *mask = NEWN(tmp, unsigned, g->nvalue);
    for (const Node *n = g->last; n; n = n->prev) {
        if (n->op->class == CLASS_OPTIMIZER && n->nin > 1 && !n->in[0]->def)
            for (int c = 0; c < m->naxes; c++)
                mask[n->in[1]->id] |= (unsigned)(in[n->in[0]->index].cut[c].kind == CUT_SLICE) << c;
        if (n->op->view)
            mask[n->in[0]->id] |= mask[n->out[0]->id];
    }
    return mask;
}

/* The sum of the limb arrays of some tensors. */
static Value *sum_arrays(Build *b, Value *const *x, int count)
{
    const int64_t zero[] = {0};
    Value **row = NEWN(b->g->a, Value *, count);
    for (int i = 0; i < count; i++) {
        row[i] = emit1(b, "sum_squares", IN(x[i]), NOATTRS);
        if (count == 1)
            return row[i];
        row[i] = emit1(b, "unsqueeze", IN(row[i]), ATTRS(A_INT("dim", 0)));
    }
    Value *all = emit1(b, "cat", count, row, ATTRS(A_INT("dim", 0)));
    return emit1(b, "sum", IN(all), ATTRS(A_INTS("dim", 1, zero)));
}

static void unfold_norm(Graph *g, Arena *tmp, const Mesh *m, const unsigned *mask, Node *n)
{
    Value **in = NEWN(tmp, Value *, n->nin), **group = NEWN(tmp, Value *, n->nin);
    Build b = build_like(g, n, n);
    int nin = 0;
    for (unsigned axes = 0; axes < 1U << m->naxes; axes++) {
        int count = 0;
        for (int i = 0; i < n->nin; i++)
            if (dtype_float(n->in[i]->type.dtype) && mask[n->in[i]->id] == axes)
                group[count++] = n->in[i];
        if (count)
            in[nin++] = sum_arrays(&b, group, count);
    }
    for (int i = 0; i < n->nin; i++)
        if (!dtype_float(n->in[i]->type.dtype))
            in[nin++] = n->in[i];
    n->in = NEWN(g->a, Value *, nin);
    memcpy(n->in, in, sizeof *in * (size_t)nin);
    n->nin = nin;
}

static void unfold_norms(Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    const unsigned *mask = find_masks(g, tmp, m, in);
    EACH_NODE(n, g)
        if (node_is(n, OP_norm_of))
            unfold_norm(g, tmp, m, mask, n);
}

/* ---- narrow ---- */

/* What each input of a graph or body is: a parameter that is gathered to be read. */
typedef struct Gathered {
    bool *is; /* by index of the input */
    int nin;
} Gathered;

/* The dtype to which all readers of n cast its result; NDTYPE: there is none. */
static DType cast_by_readers(const Graph *g, const Node *n)
{
    DType d = NDTYPE;
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v == n->out[0])
            return NDTYPE;
    for (const Node *m = n->next; m; m = m->next)
        for (int i = 0; i < m->nin; i++) {
            if (m->in[i] != n->out[0])
                continue;
            if (!node_is(m, OP__to_copy) || (d != NDTYPE && m->out[0]->type.dtype != d))
                return NDTYPE;
            d = m->out[0]->type.dtype;
        }
    return d;
}

/* The cast of w to d that stands before `end`, or NULL. */
static Value *find_cast(const Graph *g, const Value *w, DType d, const Node *end)
{
    for (const Node *n = g->first; n && n != end; n = n->next)
        if (node_is(n, OP__to_copy) && n->in[0] == w && n->out[0]->type.dtype == d &&
            n->phase == FORWARD)
            return n->out[0];
    return NULL;
}

/* w in dtype d where it is stored: one cast for all readers. */
static Value *stored_as(Graph *g, Value *w, DType d, const Node *reader, Map *casts)
{
    Value *v = map_find(casts, w->name), *there = v ? NULL : find_cast(g, w, d, NULL);
    if (v && v->type.dtype == d)
        return v;
    if (there) {
        node_move(g, there->def, g->first);
        map_put(casts, w->name, there);
        return there;
    }
    Build b = build_like(g, g->first, reader);
    b.phase = FORWARD;
    b.origin = NULL;
    b.policy = POLICY_NONE;
    v = emit_cast(&b, w, d);
    map_put(casts, w->name, v);
    return v;
}

/* The embedding of w cast to d instead of its result; casts of that are its readers. */
static void narrow_embedding(Graph *g, Arena *tmp, Node *n, DType d, Map *casts)
{
    Build b = build_like(g, n, n);
    Replace r = replace_start(g, tmp);
    Value **in = NEWN(tmp, Value *, n->nin);
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    in[0] = stored_as(g, in[0], d, n, casts);
    Value *y = emit_like(&b, tmp, n, in, NULL, "_narrow")->out[0];
    EACH_NODE(m, g)
        if (m->nin && m->in[0] == n->out[0])
            replace_with(&r, m, 0, y);
    EACH_NODE(m, g)
        replace_operands(&r, m);
    replace_outputs(&r, g);
}

static bool reads_wide(const Node *n, int i, DType d)
{
    const Value *w = n->in[i];
    return n->phase < OPTIMIZER && !n->region && !node_is(n, OP__to_copy) && !n->op->view &&
           dtype_float(w->type.dtype) && dtype_size(w->type.dtype) > dtype_size(d);
}

static bool is_gathered(const Gathered *p, const Value *v)
{
    return !v->def && v->index < p->nin && p->is[v->index];
}

static Gathered body_gathered(const Gathered *p, Arena *tmp, const Node *n, int t)
{
    const Region *r = n->region;
    Gathered y = {NEWN(tmp, bool, r->body[t]->nin), r->body[t]->nin};
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_WHOLE && r->in[j].at[t] >= 0)
            y.is[r->in[j].at[t]] = is_gathered(p, n->in[r->in[j].arg]);
    return y;
}

/* d: the dtype of computation. */
static void narrow(Graph *g, Arena *tmp, const Gathered *p, DType d)
{
    Map casts = {.a = tmp}, wide = {.a = tmp};
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(t, n) {
            Gathered inner = body_gathered(p, tmp, n, t);
            narrow(n->region->body[t], tmp, &inner, d);
        }
        DType to =
            node_is(n, OP_embedding) && is_gathered(p, n->in[0]) ? cast_by_readers(g, n) : NDTYPE;
        if (to != NDTYPE && dtype_size(to) < dtype_size(n->in[0]->type.dtype)) {
            narrow_embedding(g, tmp, n, to, &casts);
            continue;
        }
        for (int i = 0; i < n->nin; i++) {
            Value *w = n->in[i], *v;
            if (d == F32 || !is_gathered(p, w) || !reads_wide(n, i, d))
                continue;
            v = map_find(&wide, w->name);
            if (!v) {
                Build b = build_like(g, n, n);
                b.phase = FORWARD;
                b.policy = POLICY_NONE;
                b.origin = NULL;
                v = emit_cast(&b, stored_as(g, w, d, n, &casts), w->type.dtype);
                map_put(&wide, w->name, v);
            }
            n->in[i] = v;
        }
    }
}

static Gathered graph_gathered(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    Gathered p = {NEWN(tmp, bool, g->nin), g->nin};
    for (int i = 0; i < g->nin; i++)
        for (int c = 0; c < m->naxes && g->in[i].role == ROLE_PARAM; c++)
            p.is[i] |= in[i].cut[c].kind == CUT_SLICE && !in[i].held[c];
    return p;
}

/* ---- ports of loops ---- */

/* Adds a whole port for v; input[] gets what each body sees there. */
static void add_port(Graph *g, Node *n, Value *v, Value **input)
{
    Region *r = n->region;
    PortIn *ports = NEWN(g->a, PortIn, r->nin + 1);
    Value **in = NEWN(g->a, Value *, n->nin + 1);
    memcpy(ports, r->in, sizeof *ports * (size_t)r->nin);
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    ports[r->nin] = (PortIn){.kind = PORT_WHOLE, .arg = n->nin, .at = {-1, -1}};
    in[n->nin] = v;
    EACH_BODY(t, n) {
        Graph *body = r->body[t];
        ports[r->nin].at[t] = body->nin;
        input[t] = graph_input(body, graph_fresh(body, v->name), v->type, ROLE_NONE, NULL);
    }
    r->in = ports;
    r->nin++;
    n->in = in;
    n->nin++;
}

static void replace_in(Graph *body, Value *old, Value *now)
{
    EACH_NODE(m, body)
        for (int i = 0; i < m->nin; i++)
            if (m->in[i] == old && m != now->def)
                m->in[i] = now;
    for (int i = 0; i < body->nout; i++)
        if (body->out[i].v == old)
            body->out[i].v = now;
}

/* The whole port through which body t sees its input v; NULL: another kind. */
static const PortIn *whole_port(const Node *n, int t, const Value *v)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_WHOLE && r->in[j].at[t] == v->index)
            return &r->in[j];
    return NULL;
}

/* The inputs through which all bodies see v whole: of the port there is, so that a parameter and
 * its views have one form, or of a new one. */
static void see_whole(Graph *g, Node *n, Value *v, Value **input)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++) {
        bool all = r->in[j].kind == PORT_WHOLE && n->in[r->in[j].arg] == v;
        EACH_BODY(t, n)
            all = all && r->in[j].at[t] >= 0;
        if (!all)
            continue;
        EACH_BODY(t, n)
            input[t] = r->body[t]->in[r->in[j].at[t]].v;
        return;
    }
    add_port(g, n, v, input);
}

/* Casts that bodies make of parameters go before the loop. */
static void hoist_casts(Graph *g, Arena *tmp, const Gathered *p, Node *n)
{
    EACH_LOOP_BODY(t, n) {
        Graph *body = n->region->body[t];
        Gathered inner = body_gathered(p, tmp, n, t);
        EACH_NODE(m, body) {
            Value *seen[NBODY];
            const PortIn *port = node_is(m, OP__to_copy) && is_gathered(&inner, m->in[0])
                                     ? whole_port(n, t, m->in[0])
                                     : NULL;
            if (!port)
                continue;
            Build b = build_like(g, n, m);
            Value *w = n->in[port->arg], *cast = find_cast(g, w, m->out[0]->type.dtype, n);
            see_whole(g, n, cast ? cast : emit_cast(&b, w, m->out[0]->type.dtype), seen);
            replace_in(body, m->out[0], seen[t]);
            node_unlink(body, m);
        }
    }
}

/* Whether v is a view of a parameter that is gathered, perhaps of a cast of one. */
static bool views_parameter(const Gathered *p, const Value *v)
{
    if (!v->def || !v->def->op->view)
        return false;
    while (v->def && v->def->nin == 1 && (v->def->op->view || v->def->op->copy))
        v = v->def->in[0];
    return is_gathered(p, v);
}

/* Views of parameters go from before the loop into the bodies that read them, so that what they
 * need is gathered there. */
static void sink_views(Graph *g, Arena *tmp, const Gathered *p, Node *n)
{
    for (int j = 0; j < n->region->nin; j++) { /* ports are added while it runs */
        const PortIn port = n->region->in[j];
        Value *v = port.kind == PORT_WHOLE ? n->in[port.arg] : NULL, *seen[NBODY];
        if (!v || !views_parameter(p, v) || v->def->nout > 1)
            continue;
        see_whole(g, n, v->def->in[0], seen);
        EACH_BODY(t, n) {
            Graph *body = n->region->body[t];
            if (port.at[t] < 0)
                continue;
            Build b = build_like(body, body->first, v->def);
            Node *m = emit_like(&b, tmp, v->def, &seen[t], NULL, "");
            replace_in(body, body->in[port.at[t]].v, m->out[0]);
        }
    }
}

void spmd_prepare(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                  const Sharding *out)
{
    Gathered p = graph_gathered(g, tmp, m, in);
    spmd_pad(g, tmp, m, in, out);
    unfold_norms(g, tmp, m, in);
    narrow(g, tmp, &p, o->dtype);
    bool keep = o->reshard && !strcmp(o->reshard, "never");
    EACH_NODE(n, g) {
        if (n->op->region == LOOP && keep)
            hoist_casts(g, tmp, &p, n);
        else if (n->op->region == LOOP)
            sink_views(g, tmp, &p, n);
    }
}
