/* loop_wide: has bodies make in f32 what a loop adds up in f32, where the graph has 16 bits: a sum
 * over rows is then rounded once, after the loop, however many iterations it has.
 *
 * A yielded sum, a term that joins a carried sum (loop_product.c) and a product that is scaled
 * after the loop are made wide by the node that sums: by its attribute for f32 (products,
 * convolutions, a table's gradient, `sum`, nll_loss_forward), by f32 weights (norms' backward,
 * whose weights' gradients have their dtype), or by f32 zeros and values (index_put, scatter_add).
 * A node that is linear in such sums takes them wide, and a cast of them falls away. All other
 * readers of a value that is made wide read it rounded, as before. The gradients of keys and
 * values, summed over slices of queries, stay as attention makes them. Linear in the nodes inside.
 */
#include "loop_make.h"

#include <string.h>

static bool is_narrow(const Value *v)
{
    return dtype_float(v->type.dtype) && dtype_size(v->type.dtype) == 2;
}

/* The way in which a node makes a wide result. */
typedef enum {
    NOT_WIDE,
    BY_ATTR,   /* an attribute is f32 */
    BY_WEIGHT, /* its last operand is f32 */
    BY_ZEROS,  /* it adds to zeros in f32 */
    BY_SUMS    /* its operands are f32 */
} WideWay;

static const char *attr_name(const Node *n)
{
    return node_is(n, OP_sum) ? "dtype" : "out_dtype";
}

/* Whether n, which is linear in partial sums, takes them in f32 as well. */
static bool takes_sums(const Node *n)
{
    switch (n->op->class) {
    case CLASS_POINTWISE:
    case CLASS_REDUCTION:
    case CLASS_INDEX: return n->nout == 1;
    case CLASS_MOVEMENT: return !n->op->async && !n->op->wait && !n->op->to_host && n->nin > 0;
    default: return false;
    }
}

static WideWay way_of(const LoopPart *p, const Node *n)
{
    const NodeCut *how = &p->cut.node[n->id];
    bool factor = how->kind == NODE_FACTOR, product = n->op->class == CLASS_PRODUCT;
    if (n->region || n->stream >= 0 || (node_is(n, OP__to_copy) && n->nafter))
        return NOT_WIDE;
    if (n->op->view || (how->kind == NODE_LINEAR && !product && takes_sums(n)))
        return BY_SUMS;
    if (attr_index(n->op, attr_name(n)) >= 0)
        return factor || product ? BY_ATTR : NOT_WIDE;
    if (node_is(n, OP_native_layer_norm_backward) || node_is(n, OP_rms_norm_backward))
        return factor ? BY_WEIGHT : NOT_WIDE;
    if (node_is(n, OP_index_put) || node_is(n, OP_scatter_add))
        return factor && node_is_full(n->in[0]->def, 0) ? BY_ZEROS : NOT_WIDE;
    return NOT_WIDE;
}

/* ---- which values ---- */

/* By value id: how many readers of a value take it wide. */
typedef struct WideSearch {
    const LoopPart *p;
    const ProductSums *sums;
    WideSums *y;
    int *want;
} WideSearch;

static bool is_sum(const WideSearch *x, const Value *v)
{
    return is_narrow(v) && x->p->cut.value[v->id].kind == CUT_SUM;
}

/* A node that is left out of the bodies: the terms among its operands join the carry. */
static void want_terms(const WideSearch *x, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const ProductSum *s = x->sums->term[n->in[i]->id];
        x->want[n->in[i]->id] += s && s->type.dtype == F32 && is_sum(x, n->in[i]);
    }
}

static void find_node(const WideSearch *x, const int *readers, const Node *n)
{
    WideWay way = way_of(x->p, n);
    bool wide = false;
    for (int k = 0; k < n->nout; k++) {
        const Value *v = n->out[k];
        int *want = &x->want[v->id];
        *want += x->p->yielded[v->id] && is_sum(x, v);
        x->y->made[v->id] = way && *want && is_sum(x, v);
        x->y->rounded[v->id] = readers[v->id] > *want;
        wide |= x->y->made[v->id];
    }
    for (int i = 0; i < n->nin && wide && way == BY_SUMS; i++)
        x->want[n->in[i]->id] += is_sum(x, n->in[i]);
}

/* A product that is scaled after the loop, and the views that lead from it. */
static void find_product(const WideSearch *x, const int *readers, const Value *v)
{
    const Node *n = x->p->yielded[v->id] ? loop_wide_product(x->p, readers, v) : NULL;
    for (; n; v = v->def->in[0]) {
        x->y->made[v->id] = true;
        x->y->rounded[v->id] = false;
        if (v->def == n)
            return;
    }
}

WideSums wide_sums(const Graph *g, Arena *tmp, const LoopPart *p, const ProductSums *sums)
{
    WideSums y = {SPARSE(tmp, bool, g->nvalue), SPARSE(tmp, bool, g->nvalue)};
    WideSearch x = {p, sums, &y, SPARSE(tmp, int, g->nvalue)};
    const int *readers = loop_readers(g, tmp, p);
    Node *const *first = loop_nodes(g, tmp, p), *const *at = first;
    while (*at)
        at++;
    while (at-- > first && !p->narrow) {
        const Node *n = *at;
        if (sums->within[n->id])
            want_terms(&x, n);
        else
            find_node(&x, readers, n);
    }
    for (at = first; *at; at++)
        for (int k = 0; k < (*at)->nout; k++)
            find_product(&x, readers, (*at)->out[k]);
    return y;
}

bool wide_node(const WideSums *y, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (y->made[n->out[k]->id])
            return true;
    return false;
}

/* ---- parts ---- */

/* n with a result in f32. */
static const Node *with_attr(Graph *g, const Node *n)
{
    int count = op_nattr(n->op);
    Attr *attr = NEWN(g->a, Attr, count);
    Node *m = NEW(g->a, Node);
    memcpy(attr, n->attr, sizeof *attr * (size_t)count);
    attr[attr_index(n->op, attr_name(n))].i = F32;
    *m = *n;
    m->attr = attr;
    return m;
}

/* Fills `in` with what makes the result wide. */
static void widen_operands(Build *b, const Node *n, WideWay way, Value **in)
{
    Type zeros = in[0]->type;
    zeros.dtype = F32;
    for (int i = way == BY_WEIGHT ? n->nin - 1 : 0; i < n->nin && way != BY_ATTR; i++)
        if (is_narrow(n->in[i]))
            in[i] = way == BY_ZEROS && !i ? emit_zeros(b, &zeros) : emit_cast(b, in[i], F32);
}

void wide_part(const WidePart *x, const Node *n, Value **in, Value **out)
{
    const LoopPart *p = x->p;
    WideWay way = way_of(p, n);
    const Node *m = way == BY_ATTR ? with_attr(x->g, n) : n;
    widen_operands(x->b, n, way, in);
    if (node_is(n, OP__to_copy))
        out[0] = emit_cast(x->b, in[0], F32);
    else
        cut_part(x->b, m, node_factors(x->tmp, m), 1, x->cut, &p->cut.node[n->id], in, out);
    for (int k = 0; k < n->nout; k++) {
        int id = n->out[k]->id;
        x->wide[id] = x->y->made[id] ? out[k] : NULL;
        if (x->y->rounded[id])
            out[k] = emit_cast(x->b, out[k], n->out[k]->type.dtype);
    }
}
