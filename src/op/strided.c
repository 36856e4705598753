/* diagonal, unfold, as_strided: views whose elements lie at other strides of the operand. ATen's
 * semantics, but that as_strided counts in the row-major elements of x, whatever x's own layout is:
 * what ATen's does for a contiguous tensor. Any dtype.
 *
 * unfold and as_strided may show an element several times. One gradient serves all three: the same
 * view of the positions 0, 1, 2, ... says where each element of dy is added (index_put). */
#include "index.h"

#include "view.h"

/* ---- what they share ---- */

static void diff(Grad *d)
{
    Build *b = d->b;
    const Type *x = &d->n->in[0]->type;
    int64_t count = type_nelem(x), shown = type_nelem(&d->dy[0]->type);
    Type flat = type_make(x->dtype, 1, &count);
    Value *at = emit_positions(b, x);
    at = emit_named(b, d->n->op, 1, &at, d->n->attr, NULL, -1, NULL, -1)->out[0];
    at = emit1(b, "view", IN(at), ATTRS(A_INTS("size", 1, &shown)));
    Value *dy = emit1(b, "view", IN(d->dy[0]), ATTRS(A_INTS("size", 1, &shown)));
    Value *dx = emit1(b, "index_put", IN(emit_zeros(b, &flat), dy, at),
                      ATTRS(A_INTS("dims", 1, (int64_t[]){0}), A_BOOL("accumulate", 1)));
    d->dx[0] = emit1(b, "view", IN(dx), ATTRS(A_INTS("size", x->rank, x->dim)));
}

/* ---- diagonal ---- */

enum { OFFSET, DIM1, DIM2 };

static const AttrField diagonal_attrs[] = {
    {"offset", ATTR_INT, .i = 0},
    {"dim1", ATTR_INT, .i = 0},
    {"dim2", ATTR_INT, .i = 1},
    {0},
};

/* Row i + row of axis dim1 and i + column of axis dim2, for i < count. */
typedef struct Diagonal {
    int dim1, dim2;
    int64_t row, column, count;
} Diagonal;

static Diagonal diagonal_of(const Node *n)
{
    const Type *x = &n->in[0]->type;
    Diagonal d = {.dim1 = axis_of(n->attr[DIM1].i, x->rank),
                  .dim2 = axis_of(n->attr[DIM2].i, x->rank)};
    int64_t rows = x->dim[d.dim1], columns = x->dim[d.dim2], offset = n->attr[OFFSET].i;
    d.row = offset < 0 ? -MAX(offset, -rows) : 0;
    d.column = offset > 0 ? MIN(offset, columns) : 0;
    d.count = MIN(rows - d.row, columns - d.column);
    return d;
}

static int diagonal_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_rank(g, n, 0, 2, TN_RANK);
    if (need_axis(g, n, n->attr[DIM1].i, x->rank) == need_axis(g, n, n->attr[DIM2].i, x->rank))
        fail_node(g, n, "dim1, dim2: expected different axes, found %lld and %lld",
                  (long long)n->attr[DIM1].i, (long long)n->attr[DIM2].i);
    Diagonal v = diagonal_of(n);
    out[0] = (Type){.dtype = x->dtype};
    for (int d = 0; d < x->rank; d++)
        if (d != v.dim1 && d != v.dim2)
            out[0].dim[out[0].rank++] = x->dim[d];
    out[0].dim[out[0].rank++] = v.count;
    return 1;
}

/* The diagonal's axes are whole; the others come first, in their order. */
static void diagonal_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    Diagonal v = diagonal_of(n);
    for (int d = 0, e = 0; d < x->rank; d++)
        if (d == v.dim1 || d == v.dim2)
            whole_axis(f, &f->in[0], d, x->dim[d]);
        else
            view_factor(n, f, FACTOR_PARALLEL, d, 0, e++);
    whole_axis(f, &f->out[0], x->rank - 2, v.count);
}

static bool diagonal_view(const Node *n, int k, const Layout *in, Layout *out)
{
    (void)k;
    Diagonal v = diagonal_of(n);
    int rank = n->in[0]->type.rank, e = 0;
    out->offset = in->offset;
    if (v.count)
        out->offset += v.row * in->stride[v.dim1] + v.column * in->stride[v.dim2];
    for (int d = 0; d < rank; d++)
        if (d != v.dim1 && d != v.dim2)
            out->stride[e++] = in->stride[d];
    out->stride[e] = in->stride[v.dim1] + in->stride[v.dim2];
    return true;
}

static void diagonal_source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    (void)k;
    Diagonal v = diagonal_of(n);
    int rank = n->in[0]->type.rank;
    for (int d = 0, e = 0; d < rank; d++)
        from[d] = d == v.dim1   ? ix[rank - 2] + v.row
                  : d == v.dim2 ? ix[rank - 2] + v.column
                                : ix[e++];
}

static int diagonal_ref(Call *c)
{
    return view_ref(c, diagonal_source);
}

const OpRules op_diagonal = {
    .math = "y[..., i] = x[..., i + row, ..., i + column, ...], offset = column - row",
    .example = "f32[2, 4, 6] offset=1 dim1=1 dim2=2",
    .attrs = diagonal_attrs,
    .infer = diagonal_infer,
    .diff = diff,
    .cost = view_cost,
    .factors = diagonal_factors,
    .view = diagonal_view,
    .kernels = view_copy,
    .ref = diagonal_ref,
    .alias = "aten.diagonal.default",
};

/* ---- unfold ---- */

enum { DIMENSION, WINDOW, STEP };

static const AttrField unfold_attrs[] = {
    {"dimension", ATTR_INT, .required = true},
    {"size", ATTR_INT, .required = true},
    {"step", ATTR_INT, .required = true},
    {0},
};

static int unfold_axis(const Node *n)
{
    return axis_of(n->attr[DIMENSION].i, n->in[0]->type.rank);
}

static int unfold_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_rank(g, n, 0, 1, TN_RANK - 1);
    int axis = need_axis(g, n, n->attr[DIMENSION].i, x->rank);
    int64_t size = n->attr[WINDOW].i, step = n->attr[STEP].i;
    if (size < 1 || size > x->dim[axis])
        fail_node(g, n, "size: expected 1 to %lld, found %lld", (long long)x->dim[axis],
                  (long long)size);
    if (step < 1)
        fail_node(g, n, "step: expected at least 1, found %lld", (long long)step);
    out[0] = *x;
    out[0].dim[axis] = (x->dim[axis] - size) / step + 1;
    out[0].dim[out[0].rank++] = size;
    return 1;
}

static void unfold_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type, *y = &n->out[0]->type;
    int axis = unfold_axis(n);
    for (int d = 0; d < x->rank; d++)
        if (d != axis)
            view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
    whole_axis(f, &f->in[0], axis, x->dim[axis]);
    whole_axis(f, &f->out[0], axis, y->dim[axis]);
    whole_axis(f, &f->out[0], x->rank, y->dim[x->rank]);
}

static bool unfold_view(const Node *n, int k, const Layout *in, Layout *out)
{
    (void)k;
    int axis = unfold_axis(n);
    *out = *in;
    out->stride[n->in[0]->type.rank] = in->stride[axis];
    out->stride[axis] *= MIN(n->attr[STEP].i, n->in[0]->type.dim[axis]); /* beyond: one window */
    return true;
}

static void unfold_source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    (void)k;
    int rank = n->in[0]->type.rank, axis = unfold_axis(n);
    memcpy(from, ix, sizeof *from * (size_t)rank);
    from[axis] = ix[axis] * n->attr[STEP].i + ix[rank];
}

static int unfold_ref(Call *c)
{
    return view_ref(c, unfold_source);
}

const OpRules op_unfold = {
    .math = "y[..., i, ..., j] = x[..., i step + j, ...], j < size, i on axis `dimension`",
    .example = "f32[4, 10] dimension=1 size=4 step=2",
    .attrs = unfold_attrs,
    .infer = unfold_infer,
    .diff = diff,
    .cost = view_cost,
    .factors = unfold_factors,
    .view = unfold_view,
    .kernels = view_copy,
    .ref = unfold_ref,
    .alias = "aten.unfold.default",
};

/* ---- as_strided ---- */

enum { SIZE, STRIDE, STORAGE_OFFSET };

static const AttrField as_strided_attrs[] = {
    {"size", ATTR_INTS, .required = true},
    {"stride", ATTR_INTS, .required = true},
    {"storage_offset", ATTR_INT, .i = 0},
    {0},
};

static int as_strided_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *size = &n->attr[SIZE], *stride = &n->attr[STRIDE];
    int64_t last = n->attr[STORAGE_OFFSET].i, most = type_nelem(&n->in[0]->type), step;
    if (size->i != stride->i || size->i > TN_RANK)
        fail_node(g, n, "size, stride: expected one each for at most %d axes, found %lld and %lld",
                  TN_RANK, (long long)size->i, (long long)stride->i);
    bool legal = last >= 0, overflow = false;
    for (int d = 0; d < size->i; d++) {
        legal = legal && size->ints[d] >= 0 && stride->ints[d] >= 0;
        overflow |= __builtin_mul_overflow(MAX(size->ints[d], 1) - 1, stride->ints[d], &step) ||
                    __builtin_add_overflow(last, step, &last);
    }
    if (!legal)
        fail_node(g, n, "size, stride, storage_offset: expected none below 0");
    out[0] = type_make(n->in[0]->type.dtype, (int)size->i, size->ints);
    if (type_nelem(&out[0]) && (overflow || last >= most))
        fail_node(g, n, "size, stride, storage_offset: expected elements below %lld, found %lld",
                  (long long)most, (long long)last);
    return 1;
}

/* Only where the operand's elements lie in row-major order. */
static bool as_strided_view(const Node *n, int k, const Layout *in, Layout *out)
{
    const Type *x = &n->in[0]->type, *y = &n->out[k]->type;
    Tensor t = {.dtype = x->dtype, .rank = x->rank};
    memcpy(t.dim, x->dim, sizeof t.dim);
    memcpy(t.stride, in->stride, sizeof t.stride);
    if (!tensor_contiguous(&t))
        return false;
    out->offset = in->offset + (type_nelem(y) ? n->attr[STORAGE_OFFSET].i : 0);
    for (int d = 0; d < y->rank; d++)
        out->stride[d] = n->attr[STRIDE].ints[d];
    return true;
}

static void as_strided_source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    const Type *x = &n->in[0]->type;
    int64_t at = n->attr[STORAGE_OFFSET].i;
    for (int d = 0; d < n->out[k]->type.rank; d++)
        at += ix[d] * n->attr[STRIDE].ints[d];
    for (int d = x->rank - 1; d >= 0; d--) {
        from[d] = at % x->dim[d];
        at /= x->dim[d];
    }
}

static int as_strided_ref(Call *c)
{
    return view_ref(c, as_strided_source);
}

static bool as_strided_accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

static int as_strided_run(Call *c)
{
    const Tensor *y = &c->out[0];
    Tensor x = *y;
    for (int d = 0; d < x.rank; d++)
        x.stride[d] = c->node->attr[STRIDE].ints[d];
    x.data = c->in[0].data;
    if (tensor_nelem(y))
        x.data += c->node->attr[STORAGE_OFFSET].i * dtype_size(y->dtype);
    strided_copy(y, &x);
    return 0;
}

static const Kernel as_strided_kernels[] = {
    {.name = "copy", .accepts = as_strided_accepts, .run = as_strided_run}, {0}};

const OpRules op_as_strided = {
    .math = "y[i, j, ...] = element storage_offset + i stride[0] + j stride[1] + ... of x",
    .example = "f32[4, 6] size=[3, 2] stride=[6, 2] storage_offset=1",
    .attrs = as_strided_attrs,
    .infer = as_strided_infer,
    .diff = diff,
    .cost = view_cost,
    .view = as_strided_view,
    .kernels = as_strided_kernels,
    .ref = as_strided_ref,
    .alias = "aten.as_strided.default",
};
