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
    for (const Node *n = g->first; n; n = n->next)
        if (n->op->class == CLASS_OPTIMIZER && n->nin > 1 && !n->in[0]->def)
            for (int c = 0; c < m->naxes; c++)
                mask[n->in[1]->id] |= (unsigned)(in[n->in[0]->index].cut[c].kind == CUT_SLICE) << c;
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

/* w in dtype d where it is stored: one cast for all readers. */
static Value *stored_as(Graph *g, Value *w, DType d, const Node *reader, Map *casts)
{
    Value *v = map_find(casts, w->name);
    if (v && v->type.dtype == d)
        return v;
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

/* ---- hoist ---- */

/* Before the loop n: the cast that a body's node m makes of what it sees whole. */
static void hoist_cast(Graph *g, Arena *tmp, Node *n, int t, Node *m)
{
    Region *r = n->region;
    Graph *body = r->body[t];
    for (int j = 0; j < r->nin; j++) {
        if (r->in[j].kind != PORT_WHOLE || r->in[j].at[t] != m->in[0]->index)
            continue;
        Build b = build_like(g, n, m);
        Value *v = emit_cast(&b, n->in[r->in[j].arg], m->out[0]->type.dtype);
        Replace p = replace_start(body, tmp);
        PortIn *ports = NEWN(g->a, PortIn, r->nin + 1);
        Value **in = NEWN(g->a, Value *, n->nin + 1);
        memcpy(ports, r->in, sizeof *ports * (size_t)r->nin);
        memcpy(in, n->in, sizeof *in * (size_t)n->nin);
        PortIn port = {.kind = PORT_WHOLE, .arg = n->nin, .at = {-1, -1}};
        for (int s = 0; s < region_nbody(r); s++) {
            Graph *to = r->body[s];
            port.at[s] = to->nin;
            Value *seen = graph_input(to, graph_fresh(to, v->name), v->type, ROLE_NONE, NULL);
            if (s == t)
                replace_with(&p, m, 0, seen);
        }
        ports[r->nin] = port;
        in[n->nin] = v;
        r->in = ports;
        n->in = in;
        r->nin++;
        n->nin++;
        EACH_NODE(k, body)
            replace_operands(&p, k);
        replace_outputs(&p, body);
        node_unlink(body, m);
        return;
    }
}

static void hoist_casts(Graph *g, Arena *tmp, const Gathered *p)
{
    EACH_NODE(n, g)
        EACH_LOOP_BODY(t, n) {
            Gathered inner = body_gathered(p, tmp, n, t);
            EACH_NODE(m, n->region->body[t])
                if (node_is(m, OP__to_copy) && is_gathered(&inner, m->in[0]))
                    hoist_cast(g, tmp, n, t, m);
        }
}

void spmd_prepare(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                  const Sharding *out)
{
    Gathered p = graph_gathered(g, tmp, m, in);
    spmd_pad(g, tmp, m, in, out);
    unfold_norms(g, tmp, m, in);
    narrow(g, tmp, &p, o->dtype);
    if (o->reshard && !strcmp(o->reshard, "never"))
        hoist_casts(g, tmp, &p);
}
