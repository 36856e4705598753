/* expand: y[..., i, ...] = x[..., 0, ...] on axes of size 1, and new leading axes; -1 keeps an
 * axis. As a view it has stride 0 on the stretched axes. Its gradient is the sum over them. See
 * view.c. */
#include "view.h"

enum { SIZE };

static const AttrField attrs[] = {{.name = "size", .kind = ATTR_INTS, .required = true}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *size = &n->attr[SIZE];
    const Type *x = &n->in[0]->type;
    int extra = (int)size->i - x->rank;
    if (extra < 0 || size->i > TN_RANK)
        fail_node(g, n, "size: expected %d to %d axes, found %lld", x->rank, TN_RANK,
                  (long long)size->i);
    out[0] = type_make(x->dtype, (int)size->i, size->ints);
    for (int d = 0; d < out[0].rank; d++) {
        int64_t *y = &out[0].dim[d], old = d < extra ? 1 : x->dim[d - extra];
        if (*y == -1 && d >= extra)
            *y = old;
        if (*y < 0 || (*y != old && old != 1))
            fail_node(g, n, "size: expected %lld%s on axis %d, found %lld", (long long)old,
                      old == 1 ? " or a new size" : "", d, (long long)*y);
    }
    return 1;
}

static void diff(Grad *d)
{
    d->dx[0] = grad_reduce(d->b, d->dy[0], &d->n->in[0]->type);
}

static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type, *y = &n->out[0]->type;
    int extra = y->rank - x->rank;
    for (int d = 0; d < y->rank; d++)
        if (d >= extra && x->dim[d - extra] == y->dim[d])
            view_factor(n, f, FACTOR_PARALLEL, d - extra, 0, d);
        else
            view_factor_out(n, f, FACTOR_PARALLEL, 0, d);
}

static void part(Part *p)
{
    part_shape(p, SIZE);
}

/* Removes what stretches nothing; makes one of two. */
static Value *fold(Build *b, Node *n)
{
    Value *x = n->in[0];
    const Type *y = &n->out[0]->type;
    if (type_equal(&x->type, y))
        return x;
    if (!node_is(x->def, OP_expand))
        return NULL;
    return emit1(b, "expand", IN(x->def->in[0]), ATTRS(A_INTS("size", y->rank, y->dim)));
}

static bool view(const Node *n, int k, const Layout *in, Layout *out)
{
    const Type *x = &n->in[0]->type, *y = &n->out[k]->type;
    int extra = y->rank - x->rank;
    out->offset = in->offset;
    for (int d = 0; d < y->rank; d++) {
        bool kept = d >= extra && x->dim[d - extra] == y->dim[d];
        out->stride[d] = kept ? in->stride[d - extra] : 0;
    }
    return true;
}

static void source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    const Type *x = &n->in[0]->type;
    int extra = n->out[k]->type.rank - x->rank;
    for (int d = 0; d < x->rank; d++)
        from[d] = x->dim[d] == 1 ? 0 : ix[d + extra];
}

static int ref(Call *c)
{
    return view_ref(c, source);
}

const OpRules op_expand = {
    .math = "y[..., i, ...] = x[..., 0, ...] on axes of size 1 and new leading axes (-1 keeps)",
    .example = "f32[8, 1] size=[2, 8, 4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = view_cost,
    .factors = factors,
    .part = part,
    .fold = fold,
    .view = view,
    .kernels = view_copy,
    .ref = ref,
    .alias = "aten.expand.default",
};
