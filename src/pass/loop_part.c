/* loop_part: answers about a loop before it is made: slices, dtypes of sums, readers, scales.
 * Linear in a node's operands and ports. */
#include "loop_make.h"

Slices slices_of(int64_t units, int64_t count)
{
    Slices s = {.units = units, .part = units / count + (units % count > 0)};
    CHECK(s.part > 0);
    s.n = units / s.part;
    s.rest = units % s.part;
    s.filled = s.part;
    return s;
}

int64_t loop_units(const LoopPart *p, int t)
{
    return t == TAIL ? p->slices.rest : p->slices.part;
}

Type loop_part_type(const LoopPart *p, const Type *type, Cut c, int t)
{
    PartCut cut = {.count = p->slices.units, .units = loop_units(p, t)};
    return cut_type(type, 1, &cut, &c);
}

/* The cut of an operand of which bodies see c through port p: cut_enter() the other way. */
static Cut cut_before(const Region *r, const PortIn *p, Cut c)
{
    if (c.kind == CUT_SLICE && p->kind == PORT_STACK)
        c.axis++;
    else if (c.kind == CUT_SLICE && p->kind == PORT_SLICE && p->axis == c.axis)
        c.outer *= r->n;
    return c;
}

static void fill_loop(const Node *n, const NodeCut *how, Cut *in)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++) {
        const PortIn *p = &r->in[j];
        int t = p->at[MAIN] >= 0 ? MAIN : TAIL;
        if (p->arg >= 0)
            in[p->arg] = cut_before(r, p, how->body[t]->value[r->body[t]->in[p->at[t]].v->id]);
    }
}

const Cut *loop_needs(Arena *tmp, const GraphCut *c, const Node *n)
{
    Cut *in = NEWN(tmp, Cut, n->nin), *out = NEWN(tmp, Cut, n->nout);
    const NodeCut *how = &c->node[n->id];
    if (how->kind == NODE_LOOP)
        fill_loop(n, how, in);
    else
        cut_fill(n, how->kind == NODE_FACTOR ? node_factors(tmp, n) : NULL, how, in, out);
    return in;
}

DType loop_sum_dtype(const LoopPart *p, DType d)
{
    return p->narrow || !dtype_float(d) || d == F64 ? d : F32;
}

Node *const *loop_nodes(const Graph *g, Arena *tmp, const LoopPart *p)
{
    if (p->node)
        return p->node;
    Node **list = NEWN(tmp, Node *, g->nnode + 1);
    int count = 0;
    for (Node *n = g->first; n; n = n->next)
        if (p->inside[n->id])
            list[count++] = n;
    return list;
}

Value *loop_view(Build *b, Value *v, const Type *to)
{
    return emit1(b, "view", IN(v), ATTRS(A_INTS("size", to->rank, to->dim)));
}

bool loop_drops(const LoopPart *p, const Value *v)
{
    return v->def && !p->outside[v->def->id];
}

const int *loop_readers(const Graph *g, Arena *tmp, const LoopPart *p)
{
    int *readers = SPARSE(tmp, int, g->nvalue);
    for (Node *const *at = loop_nodes(g, tmp, p); *at; at++) {
        const Node *n = *at;
        for (int i = 0; i < n->nin; i++)
            readers[n->in[i]->id]++;
        for (int k = 0; k < n->nout; k++)
            readers[n->out[k]->id] += p->yielded[n->out[k]->id];
    }
    return readers;
}

Type loop_split_type(const Type *t, int axis, int64_t outer)
{
    Type s = *t;
    for (int d = s.rank++; d > axis; d--)
        s.dim[d] = s.dim[d - 1];
    s.dim[axis] = outer;
    s.dim[axis + 1] = t->dim[axis] / outer;
    return s;
}

const Node *loop_wide_product(const LoopPart *p, const int *readers, const Value *v)
{
    if (p->narrow || !p->scale || !p->scale[v->id] || p->cut.value[v->id].kind != CUT_SLICE)
        return NULL;
    while (v->def->op->view && v->def->nin == 1 && readers[v->id] == 1 && v->def->in[0]->def)
        v = v->def->in[0];
    const Node *n = v->def;
    bool product = node_is(n, OP_mm) || node_is(n, OP_bmm) || node_is(n, OP_addmm);
    return product && readers[v->id] == 1 && dtype_size(v->type.dtype) == 2 ? n : NULL;
}

bool *loop_scales(const Graph *g, Arena *tmp, const LoopPart *p, Node *const *inside)
{
    bool *makes = SPARSE(tmp, bool, g->nnode);
    for (Node *const *n = inside; *n && p->scale; n++)
        for (int k = 0; k < (*n)->nout; k++) {
            const Value *scale = p->scale[(*n)->out[k]->id];
            if (scale && scale->def)
                makes[scale->def->id] = true;
        }
    return makes;
}
