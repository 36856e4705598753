/* The strides that values will have, and the values whose strides matter.
 *
 * The results of nodes are row-major; a view has the strides that follow from its operand's, or
 * those of a row-major copy if strides cannot express it. The order of
 * additions in a product or a sum may depend on the strides of its operands, so a rewrite must keep
 * the strides of every value that an op which is not pointwise reads, directly or through views: it
 * asks layout_keeps. Linear in the graph, for each depth of loops. */
#include "layout.h"

#include <string.h>

Layout layout_row_major(const Type *t)
{
    Layout x = {0};
    Tensor shape = {.rank = t->rank};
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    tensor_fill_strides(&shape);
    memcpy(x.stride, shape.stride, sizeof x.stride);
    return x;
}

bool layout_view(const Node *n, int k, const Layout *from, Layout *to)
{
    if (n->op->rules->view(n, k, from, to))
        return true;
    Layout copy = layout_row_major(&n->in[0]->type);
    bool good = n->op->rules->view(n, k, &copy, to);
    CHECK(good);
    return false;
}

void layout_unstack(Layout *x)
{
    memmove(x->stride, x->stride + 1, sizeof *x->stride * (TN_RANK - 1));
}

/* ---- who reads strides ---- */

static void mark_loop(const Node *n, bool *read, Arena *tmp);

/* Fills read[], by value id. */
static void mark_read(const Graph *g, bool *read, Arena *tmp)
{
    for (const Node *n = g->last; n; n = n->prev) {
        bool all = !n->op->view && n->op->class != CLASS_POINTWISE && n->op->region != LOOP;
        for (int k = 0; k < n->nout; k++)
            all |= n->op->view && read[n->out[k]->id];
        for (int i = 0; i < n->nin && all; i++)
            read[n->in[i]->id] = true;
        if (n->op->region == LOOP)
            mark_loop(n, read, tmp);
    }
}

static void mark_loop(const Node *n, bool *read, Arena *tmp)
{
    const Region *r = n->region;
    for (int t = 0; t < region_nbody(r); t++) {
        const Graph *body = r->body[t];
        bool *inside = NEWN(tmp, bool, body->nvalue);
        mark_read(body, inside, tmp);
        for (int j = 0; j < r->nin; j++) {
            int i = r->in[j].at[t];
            if (i >= 0 && r->in[j].arg >= 0)
                read[n->in[r->in[j].arg]->id] |= inside[body->in[i].v->id];
        }
    }
}

/* ---- where values lie ---- */

static Layout *slot(Layouts *x, const Value *v)
{
    if (v->id >= x->cap) {
        int cap = 2 * v->id + 16;
        Layout *at = NEWN(x->tmp, Layout, cap);
        if (x->cap)
            memcpy(at, x->at, sizeof *at * (size_t)x->cap);
        x->at = at;
        x->cap = cap;
    }
    return &x->at[v->id];
}

void layout_add(Layouts *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++) {
        Layout y = layout_row_major(&n->out[k]->type);
        if (n->op->view) {
            Layout from = *slot(x, n->in[0]);
            layout_view(n, k, &from, &y);
        }
        *slot(x, n->out[k]) = y;
    }
}

Layouts layout_start(const Graph *g, Arena *tmp)
{
    Layouts x = {.tmp = tmp, .nread = g->nvalue, .read = NEWN(tmp, bool, g->nvalue)};
    mark_read(g, x.read, tmp);
    for (int i = 0; i < g->nin; i++)
        *slot(&x, g->in[i].v) = layout_row_major(&g->in[i].v->type);
    return x;
}

Layouts layout_start_body(Layouts *outer, const Node *n, bool tail, Arena *tmp)
{
    const Region *r = n->region;
    const Graph *body = r->body[tail];
    Layouts x = layout_start(body, tmp);
    for (int j = 0; j < r->nin; j++) {
        const PortIn *p = &r->in[j];
        int i = p->at[tail];
        if (i < 0 || p->kind == PORT_OFFSET || p->kind == PORT_CARRY)
            continue;
        Layout y = *slot(outer, n->in[p->arg]);
        if (p->kind == PORT_STACK)
            layout_unstack(&y);
        *slot(&x, body->in[i].v) = y;
    }
    return x;
}

bool layout_keeps(Layouts *x, const Value *old, const Value *now)
{
    Layout a = *slot(x, old), b = *slot(x, now);
    if (old->id >= x->nread || !x->read[old->id])
        return true;
    for (int d = 0; d < old->type.rank; d++)
        if (old->type.dim[d] > 1 && a.stride[d] != b.stride[d])
            return false;
    return true;
}
