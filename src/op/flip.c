/* flip: reverses the order of elements along the axes `dims`. Any dtype; a copy from negative
 * strides, so bits are kept. It is its own gradient. */
#include "view.h"

enum { DIMS };

static const AttrField attrs[] = {{"dims", ATTR_INTS, .required = true}, {0}};

/* Bit d: axis d is reversed. */
static unsigned reversed(const Node *n)
{
    unsigned set = 0;
    for (int i = 0; i < n->attr[DIMS].i; i++)
        set |= 1u << axis_of(n->attr[DIMS].ints[i], n->in[0]->type.rank);
    return set;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    unsigned seen = 0;
    for (int i = 0; i < n->attr[DIMS].i; i++) {
        int d = need_axis(g, n, n->attr[DIMS].ints[i], n->in[0]->type.rank);
        if (seen >> d & 1)
            fail_node(g, n, "dims: expected different axes, found %d again", d);
        seen |= 1u << d;
    }
    out[0] = n->in[0]->type;
    return 1;
}

static void diff(Grad *d)
{
    const Attr *dims = &d->n->attr[DIMS];
    d->dx[0] = emit1(d->b, "flip", IN(d->dy[0]), ATTRS(A_INTS("dims", dims->i, dims->ints)));
}

static void factors(const Node *n, Factors *f)
{
    factors_rows(n, f, reversed(n));
}

/* No axis of more than one element; or twice the same ones. */
static Value *fold(Build *b, Node *n)
{
    (void)b;
    const Node *before = n->in[0]->def;
    unsigned set = reversed(n);
    if (node_is(before, OP_flip) && reversed(before) == set)
        return before->in[0];
    for (int d = 0; d < n->out[0]->type.rank; d++)
        if (set >> d & 1 && n->out[0]->type.dim[d] > 1)
            return NULL;
    return n->in[0];
}

static void source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    const Type *y = &n->out[k]->type;
    for (int d = 0; d < y->rank; d++)
        from[d] = reversed(n) >> d & 1 ? y->dim[d] - 1 - ix[d] : ix[d];
}

static int ref(Call *c)
{
    return view_ref(c, source);
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int run(Call *c)
{
    Tensor x = c->in[0];
    for (int d = 0; d < x.rank && tensor_nelem(&x); d++)
        if (reversed(c->node) >> d & 1) {
            x.data += (x.dim[d] - 1) * x.stride[d] * dtype_size(x.dtype);
            x.stride[d] = -x.stride[d];
        }
    strided_copy(&c->out[0], &x);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "copy", .accepts = accepts, .run = run, .strided_out = true}, {0}};

const OpRules op_flip = {
    .math = "y[..., i, ...] = x[..., size - 1 - i, ...] on the axes `dims`",
    .example = "f32[4, 6] dims=[1]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost_bytes,
    .factors = factors,
    .fold = fold,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.flip.default",
};
