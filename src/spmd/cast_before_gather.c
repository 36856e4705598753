/* cast_before_gather: casts parameters to the dtype of computation where they are stored, before
 * they are gathered, so that gathers move no more than they must.
 *
 * A cast after an embedding goes before it, which keeps every bit. A node that reads a parameter
 * in its own dtype, as norms do, gets it rounded to that of computation: the stored part is cast,
 * gathered and cast back. Quadratic in parameters times nodes, which is little. */
#include "rewrite.h"

#include <string.h>

bool is_gathered(const Gathered *p, const Value *v)
{
    return !v->def && v->index < p->nin && p->is[v->index];
}

Gathered graph_gathered(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    Gathered p = {NEWN(tmp, bool, g->nin), g->nin};
    for (int i = 0; i < g->nin; i++)
        for (int c = 0; c < m->naxes && g->in[i].role == ROLE_PARAM; c++)
            p.is[i] |= in[i].cut[c].kind == CUT_SLICE && !in[i].computed_sharded[c];
    return p;
}

Gathered body_gathered(const Gathered *p, Arena *tmp, const Node *n, int t)
{
    const Region *r = n->region;
    Gathered y = {NEWN(tmp, bool, r->body[t]->nin), r->body[t]->nin};
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_WHOLE && r->in[j].at[t] >= 0)
            y.is[r->in[j].at[t]] = is_gathered(p, n->in[r->in[j].arg]);
    return y;
}

/* ---- casts ---- */

Value *find_cast(const Graph *g, const Value *w, DType d, const Node *end)
{
    for (const Node *n = g->first; n && n != end; n = n->next)
        if (node_is(n, OP__to_copy) && n->in[0] == w && n->out[0]->type.dtype == d &&
            n->phase == FORWARD)
            return n->out[0];
    return NULL;
}

static Value *emit_forward_cast(Graph *g, Node *before, Value *v, DType d)
{
    Build b = build_like(g, before, before);
    b.phase = FORWARD;
    b.origin = NULL;
    b.policy = POLICY_NONE;
    return emit_cast(&b, v, d);
}

/* w in dtype d for all readers, at the beginning of the graph. */
static Value *stored_as(Graph *g, Value *w, DType d, const Node *reader)
{
    Value *there = find_cast(g, w, d, NULL);
    if (!there) {
        there = emit_forward_cast(g, g->first, w, d);
        there->def->scope = reader->scope;
    }
    node_move(g, there->def, g->first == there->def ? g->first->next : g->first);
    return there;
}

/* w rounded to d, in its own dtype, before its first reader. */
static Value *rounded_to(Graph *g, Value *w, DType d, Node *reader)
{
    Value *narrow = stored_as(g, w, d, reader);
    Value *there = find_cast(g, narrow, w->type.dtype, reader);
    return there ? there : emit_forward_cast(g, reader, narrow, w->type.dtype);
}

/* ---- readers ---- */

/* The dtype to which all readers of n cast its result; NDTYPE: there is none. */
static DType cast_by_readers(const Graph *g, const Node *n)
{
    DType d = NDTYPE;
    for (const Node *m = n->next; m; m = m->next)
        for (int i = 0; i < m->nin; i++) {
            if (m->in[i] != n->out[0])
                continue;
            if (!node_is(m, OP__to_copy) || (d != NDTYPE && m->out[0]->type.dtype != d))
                return NDTYPE;
            d = m->out[0]->type.dtype;
        }
    return graph_is_output(g, n->out[0]) ? NDTYPE : d;
}

/* Looks up a cast table instead of casting what is looked up; false: not every reader casts. */
static bool narrow_embedding(Graph *g, Arena *tmp, const Gathered *p, Node *n)
{
    DType d = node_is(n, OP_embedding) && is_gathered(p, n->in[0]) ? cast_by_readers(g, n) : NDTYPE;
    if (d == NDTYPE || dtype_size(d) >= dtype_size(n->in[0]->type.dtype))
        return false;
    Build b = build_like(g, n, n);
    Replace r = replace_start(g, tmp);
    Value **in = NEWN(tmp, Value *, n->nin);
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    in[0] = stored_as(g, in[0], d, n);
    Value *y = emit_like(&b, n, in, NULL, "_narrow")->out[0];
    EACH_NODE(m, g)
        if (m->nin && m->in[0] == n->out[0])
            replace_with(&r, m, 0, y);
    EACH_NODE(m, g)
        replace_operands(&r, m);
    replace_outputs(&r, g);
    return true;
}

/* Whether n computes with its operand i, in a wider dtype than d. */
static bool reads_wide(const Node *n, int i, DType d)
{
    const Value *w = n->in[i];
    return n->phase < OPTIMIZER && !n->region && !node_is(n, OP__to_copy) && !n->op->view &&
           dtype_float(w->type.dtype) && dtype_size(w->type.dtype) > dtype_size(d);
}

void spmd_narrow_embeddings(Graph *g, Arena *tmp, const Gathered *p)
{
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(t, n) {
            Gathered inner = body_gathered(p, tmp, n, t);
            spmd_narrow_embeddings(n->region->body[t], tmp, &inner);
        }
        narrow_embedding(g, tmp, p, n);
    }
}

void spmd_cast_before_gather(Graph *g, Arena *tmp, const Gathered *p, DType d)
{
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(t, n) {
            Gathered inner = body_gathered(p, tmp, n, t);
            spmd_cast_before_gather(n->region->body[t], tmp, &inner, d);
        }
        if (narrow_embedding(g, tmp, p, n) || d == F32)
            continue;
        for (int i = 0; i < n->nin; i++)
            if (is_gathered(p, n->in[i]) && reads_wide(n, i, d))
                n->in[i] = rounded_to(g, n->in[i], d, n);
    }
}
