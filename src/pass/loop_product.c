/* loop_product: finds the sums of a loop to which products can add themselves.
 *
 * A yielded sum leads through casts and views of one operand to the value that is carried, and from
 * there through casts and additions to its terms. A product, and each node between, must have one
 * reader, as bodies then do not compute it: a product adds itself by addmm where it stands; any
 * other term is added where it is made. The views follow after the loop, on the whole sum. Casts
 * are left out except the last one: a product is rounded only in the dtype that is carried. Terms
 * are added in the order of their nodes. A sum without such a product is left alone. Linear in the
 * graph. */
#include "loop_make.h"

enum { MAX_DEPTH = 64 }; /* additions within each other */

/* A sum under trial. */
typedef struct Try {
    const Graph *g;
    Arena *tmp;
    const LoopPart *p;
    const ProductSums *known;
    const int *readers; /* by value id: within the bodies, and results of the loop */
    const Node **within;
    const Value **term;
    const Node *product; /* one of them */
    const Type *base;
    DType dtype; /* carried */
    int nwithin, nterm, capwithin, capterm;
    bool good;
} Try;

/* Whether v's node can be left out of the bodies, as only one node reads it. */
static bool within(const Try *x, const Value *v)
{
    const Node *n = v->def;
    return n && n->nout == 1 && !n->nafter && x->readers[v->id] == 1 &&
           x->p->cut.value[v->id].kind == CUT_SUM && dtype_float(v->type.dtype);
}

static bool is_cast(const Node *n)
{
    return node_is(n, OP__to_copy) && dtype_float(n->in[0]->type.dtype);
}

static void find_terms(Try *x, const Value *v, int depth)
{
    const Node *n = v->def;
    bool alone = within(x, v), product = alone && node_is(n, OP_mm);
    bool sum = alone && depth < MAX_DEPTH && node_is(n, OP_add) &&
               type_equal(&n->in[0]->type, &v->type) && type_equal(&n->in[1]->type, &v->type);
    if (!product && !sum && !(alone && is_cast(n))) {
        x->good &= !x->known->term[v->id];
        for (int i = 0; i < x->nterm; i++)
            x->good &= x->term[i] != v;
        PUSH(x->tmp, x->term, x->nterm, x->capterm, v);
        return;
    }
    PUSH(x->tmp, x->within, x->nwithin, x->capwithin, n);
    if (product) {
        x->good &= widens(n->in[0]->type.dtype, x->dtype);
        x->product = n;
        return;
    }
    for (int i = 0; i < n->nin; i++)
        find_terms(x, n->in[i], depth + 1);
}

/* The dtype of the first product below v, if only casts and views are between; else v's. */
static DType product_dtype(const Value *v)
{
    while (v->def && (v->def->op->view || is_cast(v->def)))
        v = v->def->in[0];
    return node_is(v->def, OP_mm) ? v->def->in[0]->type.dtype : v->type.dtype;
}

/* How the yielded value v is carried; NULL: it is not. */
static ProductSum *find_sum(Try *x, const Value *v)
{
    ProductSum *s = NEW(x->tmp, ProductSum);
    const Node **view = NULL;
    int cap = 0;
    x->dtype = loop_sum_dtype(x->p, v->type.dtype);
    if (!widens(product_dtype(v), x->dtype)) /* `narrow`, of a product that is not */
        x->dtype = product_dtype(v);
    while (within(x, v) && v->def->nin == 1 && (v->def->op->view || is_cast(v->def))) {
        if (v->def->op->view)
            PUSH(x->tmp, view, s->nview, cap, v->def);
        PUSH(x->tmp, x->within, x->nwithin, x->capwithin, v->def);
        v = v->def->in[0];
    }
    find_terms(x, v, 0);
    if (!x->good || !x->product)
        return NULL;
    s->type = v->type;
    s->type.dtype = x->dtype;
    s->product = x->product;
    s->view = NEWN(x->tmp, const Node *, s->nview);
    for (int i = 0; i < s->nview; i++)
        s->view[i] = view[s->nview - 1 - i];
    return s;
}

ProductSums product_sums(const Graph *g, Arena *tmp, const LoopPart *p)
{
    ProductSums known = {SPARSE(tmp, ProductSum *, g->nvalue), SPARSE(tmp, ProductSum *, g->nnode),
                         SPARSE(tmp, ProductSum *, g->nvalue)};
    const int *readers = p->sums == SUM_PRODUCT ? loop_readers(g, tmp, p) : NULL;
    for (Node *const *at = loop_nodes(g, tmp, p); *at && readers; at++) {
        const Node *n = *at;
        const Value *v = n->out[0];
        if (n->nout != 1 || !p->yielded[v->id])
            continue;
        Try x = {g, tmp, p, &known, readers, .good = true};
        ProductSum *s = find_sum(&x, v);
        known.result[v->id] = s;
        for (int i = 0; i < x.nwithin && s; i++)
            known.within[x.within[i]->id] = s;
        for (int i = 0; i < x.nterm && s; i++)
            known.term[x.term[i]->id] = s;
    }
    return known;
}
