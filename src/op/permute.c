/* permute, t, transpose: y[ix] = x[jx] with jx[order[k]] = ix[k]: the axes in another order. One
 * set of rules for all three; they differ in attributes and gradient. See view.c. */
#include "view.h"

enum { DIMS, DIM0 = 0, DIM1 };

/* The operand axis that each result axis is, from a node's operation and attributes. */
static void fill_order(const Node *n, int *order)
{
    int rank = n->in[0]->type.rank;
    for (int k = 0; k < rank; k++)
        order[k] = k;
    if (node_is(n, OP_permute)) {
        for (int k = 0; k < rank; k++)
            order[k] = axis_of(n->attr[DIMS].ints[k], rank);
    } else {
        bool t = node_is(n, OP_t);
        int i = t ? 0 : axis_of(n->attr[DIM0].i, rank), j = t ? 1 : axis_of(n->attr[DIM1].i, rank);
        order[i] = j;
        order[j] = i;
    }
}

static int infer_order(const Node *n, Type *out)
{
    int order[TN_RANK];
    fill_order(n, order);
    out[0] = n->in[0]->type;
    for (int k = 0; k < out[0].rank; k++)
        out[0].dim[k] = n->in[0]->type.dim[order[k]];
    return 1;
}

static void factors_order(const Node *n, Factors *f)
{
    int order[TN_RANK];
    fill_order(n, order);
    for (int k = 0; k < n->in[0]->type.rank; k++)
        view_factor(n, f, FACTOR_PARALLEL, order[k], 0, k);
}

static bool is_order(const Node *n)
{
    return node_is(n, OP_permute) || node_is(n, OP_t) || node_is(n, OP_transpose);
}

/* Removes what moves nothing; makes one permutation of two. */
static Value *fold_order(Build *b, Node *n)
{
    int order[TN_RANK], inner[TN_RANK], rank = n->in[0]->type.rank;
    bool same = true, two = is_order(n->in[0]->def);
    fill_order(n, order);
    if (two)
        fill_order(n->in[0]->def, inner);
    int64_t dims[TN_RANK];
    for (int k = 0; k < rank; k++) {
        dims[k] = two ? inner[order[k]] : order[k];
        same = same && dims[k] == k;
    }
    Value *x = two ? n->in[0]->def->in[0] : n->in[0];
    if (same)
        return x;
    return two ? emit1(b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims))) : NULL;
}

static bool view_order(const Node *n, int k, const Layout *in, Layout *out)
{
    int order[TN_RANK];
    fill_order(n, order);
    out->offset = in->offset;
    for (int d = 0; d < n->out[k]->type.rank; d++)
        out->stride[d] = in->stride[order[d]];
    return true;
}

static void source_order(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    int order[TN_RANK];
    fill_order(n, order);
    for (int d = 0; d < n->out[k]->type.rank; d++)
        from[order[d]] = ix[d];
}

static int ref_order(Call *c)
{
    return view_ref(c, source_order);
}

static const AttrField permute_attrs[] = {{.name = "dims", .kind = ATTR_INTS, .required = true},
                                          {0}};

static int permute_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *dims = &n->attr[DIMS];
    int rank = n->in[0]->type.rank;
    unsigned seen = 0;
    if (dims->i != rank)
        fail_node(g, n, "dims: expected %d axes for %s, found %lld", rank,
                  type_text(g->a, &n->in[0]->type), (long long)dims->i);
    for (int k = 0; k < rank; k++) {
        int d = need_axis(g, n, dims->ints[k], rank);
        if (seen >> d & 1)
            fail_node(g, n, "dims: expected each axis once, found axis %d twice", d);
        seen |= 1u << d;
    }
    return infer_order(n, out);
}

static void permute_diff(Grad *d)
{
    int order[TN_RANK], rank = d->n->in[0]->type.rank;
    int64_t dims[TN_RANK];
    fill_order(d->n, order);
    for (int k = 0; k < rank; k++)
        dims[order[k]] = k;
    d->dx[0] = emit1(d->b, "permute", IN(d->dy[0]), ATTRS(A_INTS("dims", rank, dims)));
}

const OpRules op_permute = {
    .math = "axis k of y is axis dims[k] of x",
    .example = "f32[2, 8, 4] dims=[0, 2, 1]",
    .attrs = permute_attrs,
    .infer = permute_infer,
    .diff = permute_diff,
    .cost = view_cost,
    .factors = factors_order,
    .fold = fold_order,
    .view = view_order,
    .kernels = view_copy,
    .ref = ref_order,
    .alias = "aten.permute.default",
};

static int t_infer(const Graph *g, const Node *n, Type *out)
{
    need_rank(g, n, 0, 2, 2);
    return infer_order(n, out);
}

static void t_diff(Grad *d)
{
    d->dx[0] = emit1(d->b, "t", IN(d->dy[0]), NOATTRS);
}

const OpRules op_t = {
    .math = "y[i, j] = x[j, i]",
    .example = "f32[4, 6]",
    .infer = t_infer,
    .diff = t_diff,
    .cost = view_cost,
    .factors = factors_order,
    .fold = fold_order,
    .view = view_order,
    .kernels = view_copy,
    .ref = ref_order,
    .alias = "aten.t.default",
};

static const AttrField transpose_attrs[] = {
    {.name = "dim0", .kind = ATTR_INT, .required = true},
    {.name = "dim1", .kind = ATTR_INT, .required = true},
    {0},
};

static int transpose_infer(const Graph *g, const Node *n, Type *out)
{
    need_axis(g, n, n->attr[DIM0].i, n->in[0]->type.rank);
    need_axis(g, n, n->attr[DIM1].i, n->in[0]->type.rank);
    return infer_order(n, out);
}

static void transpose_diff(Grad *d)
{
    d->dx[0] = emit1(d->b, "transpose", IN(d->dy[0]),
                     ATTRS(A_INT("dim0", d->n->attr[DIM0].i), A_INT("dim1", d->n->attr[DIM1].i)));
}

const OpRules op_transpose = {
    .math = "y = x with axes dim0 and dim1 exchanged",
    .example = "f32[2, 8, 4] dim0=1 dim1=2",
    .attrs = transpose_attrs,
    .infer = transpose_infer,
    .diff = transpose_diff,
    .cost = view_cost,
    .factors = factors_order,
    .fold = fold_order,
    .view = view_order,
    .kernels = view_copy,
    .ref = ref_order,
    .alias = "aten.transpose.int",
};
