/* cat, cat_ring, slice_backward: values laid side by side along one axis.
 *
 * cat: operands of one dtype, equal in every axis but `dim`. slice_backward: zeros of the shape
 * input_sizes with dy where slice with the same dim, start, end, step took its elements: the
 * gradient of slice. cat_ring: operands of one type, along axis 0, of which the first has place
 * `first` and those behind the last place follow from the beginning: a rank has the parts of its
 * ring in the order in which they come to it, and its own place says where they belong. Any dtype,
 * any strides; bits are moved, none computed. Operands of cat that lie in their places of its
 * result stay there. Parts have some of the unit of the axis of `dim` (view.h). */
#include "view.h"

#include <string.h>

enum { DIM, INPUT_SIZES = 0, RANGE };

/* Copies x to where the result's axis begins at start, every step-th place, if it is not there. */
static void place(const Tensor *y, const Tensor *x, int axis, int64_t start, int64_t step)
{
    Tensor to = *x;
    to.data = y->data + start * y->stride[axis] * dtype_size(y->dtype);
    memcpy(to.stride, y->stride, sizeof to.stride);
    to.stride[axis] *= step;
    if (to.data != x->data)
        strided_copy(&to, x);
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

/* The same element by element, by the definition. */
static void place_each(const Tensor *y, const Tensor *x, int axis, int64_t start, int64_t step)
{
    int64_t ix[TN_RANK] = {0}, size = dtype_size(x->dtype);
    if (tensor_nelem(x) == 0)
        return;
    do {
        int64_t to[TN_RANK];
        memcpy(to, ix, sizeof to);
        to[axis] = start + ix[axis] * step;
        memcpy(y->data + tensor_index(y, to) * size, x->data + tensor_index(x, ix) * size,
               (size_t)size);
    } while (next_index(x->rank, x->dim, ix));
}

/* Result axes but `axis`, which consists of runs, are common to all operands. */
static void factors_beside(const Node *n, Factors *f, int axis)
{
    const Type *y = &n->out[0]->type;
    for (int d = 0; d < y->rank; d++) {
        if (d == axis || y->dim[d] == 1)
            continue;
        view_factor_out(n, f, FACTOR_PARALLEL, 0, d);
        for (int i = 0, k = f->count - 1; i < n->nin; i++)
            axis_add(&f->in[i], d, k);
    }
}

static void runs_axis(const Node *n, Factors *f, int axis, int unit)
{
    unit_axis(f, &f->out[0], axis, n->out[0]->type.dim[axis], unit);
    for (int i = 0; i < n->nin; i++)
        unit_axis(f, &f->in[i], axis, n->in[i]->type.dim[axis], unit);
}

/* ---- cat ---- */

static const AttrField cat_attrs[] = {{.name = "dim", .kind = ATTR_INT}, {0}};

int cat_axis(const Node *n)
{
    if (node_is(n, OP_cat_ring))
        return 0;
    if (!node_is(n, OP_cat))
        return -1;
    return axis_of(n->attr[DIM].i, n->in[0]->type.rank);
}

/* The operand that lies at this place of the result. */
static int operand_at(const Node *n, int place)
{
    if (!node_is(n, OP_cat_ring))
        return place;
    int at = place - (int)(n->attr[0].i % n->nin);
    return at < 0 ? at + n->nin : at;
}

int64_t cat_start(const Node *n, int i)
{
    int64_t start = 0;
    const int axis = cat_axis(n);
    for (int k = 0; operand_at(n, k) != i; k++)
        start += n->in[operand_at(n, k)]->type.dim[axis];
    return start;
}

static int cat_infer(const Graph *g, const Node *n, Type *out)
{
    int axis = need_axis(g, n, n->attr[DIM].i, n->in[0]->type.rank);
    out[0] = n->in[0]->type;
    for (int i = 1; i < n->nin; i++) {
        Type want = n->in[0]->type;
        const Type *x = &n->in[i]->type;
        if (x->rank == want.rank)
            want.dim[axis] = x->dim[axis];
        if (!type_equal(x, &want))
            fail_node(g, n, "operand %d: expected %s with any size on axis %d, found %s", i,
                      type_text(g->a, &want), axis, type_text(g->a, x));
        out[0].dim[axis] += x->dim[axis];
    }
    return 1;
}

static void cat_diff(Grad *d)
{
    int axis = cat_axis(d->n);
    int64_t start = 0, end;
    for (int k = 0; k < d->n->nin; k++, start = end) {
        int i = operand_at(d->n, k);
        end = start + d->n->in[i]->type.dim[axis];
        if (d->need[i])
            d->dx[i] = emit1(d->b, "slice", IN(d->dy[0]),
                             ATTRS(A_INT("dim", axis), A_INT("start", start), A_INT("end", end)));
    }
}

static void cat_factors(const Node *n, Factors *f)
{
    int axis = cat_axis(n);
    int64_t unit = 0;
    for (int i = 0; i < n->nin; i++)
        unit = unit_divide(unit, n->in[i]->type.dim[axis]);
    factors_beside(n, f, axis);
    runs_axis(n, f, axis, unit_of_runs(f, unit, n->nin, n->out[0]->type.dim[axis]));
}

/* One operand alone; all the parts of a split put together again. */
static Value *cat_fold(Build *b, Node *n)
{
    (void)b;
    const Node *split = n->in[0]->def;
    if (n->nin == 1)
        return n->in[0];
    if (!node_is(split, OP_split) || split->nout != n->nin)
        return NULL;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != split->out[i])
            return NULL;
    int64_t dim = split->attr[attr_index(split->op, "dim")].i;
    return axis_of(dim, split->in[0]->type.rank) == cat_axis(n) ? split->in[0] : NULL;
}

static void cat_by(const Call *c, void (*put)(const Tensor *y, const Tensor *x, int axis,
                                              int64_t start, int64_t step))
{
    int axis = cat_axis(c->node);
    int64_t start = 0;
    for (int k = 0; k < c->nin; k++) {
        const Tensor *x = &c->in[operand_at(c->node, k)];
        put(&c->out[0], x, axis, start, 1);
        start += x->dim[axis];
    }
}

static int cat_ref(Call *c)
{
    cat_by(c, place_each);
    return 0;
}

static int cat_run(Call *c)
{
    cat_by(c, place);
    return 0;
}

static const Kernel cat_kernels[] = {
    {.name = "copy", .accepts = accepts, .run = cat_run, .strided_out = true}, {0}};

const OpRules op_cat = {
    .math = "y = x0, x1, ... side by side along axis `dim`",
    .example = "f32[4, 2] f32[4, 6] dim=1",
    .attrs = cat_attrs,
    .infer = cat_infer,
    .diff = cat_diff,
    .cost = cost_bytes,
    .factors = cat_factors,
    .fold = cat_fold,
    .kernels = cat_kernels,
    .ref = cat_ref,
    .alias = "aten.cat.default",
};

/* ---- cat_ring ---- */

static const AttrField ring_attrs[] = {{.name = "first", .kind = ATTR_INT}, {0}};

static int ring_infer(const Graph *g, const Node *n, Type *out)
{
    need_rank(g, n, 0, 1, TN_RANK);
    if (n->attr[0].i < 0 || n->attr[0].i >= n->nin)
        fail_node(g, n, "first: expected 0 to %d, found %lld", n->nin - 1, (long long)n->attr[0].i);
    for (int i = 1; i < n->nin; i++)
        need_type(g, n, i, &n->in[0]->type);
    out[0] = n->in[0]->type;
    if (__builtin_mul_overflow(out[0].dim[0], n->nin, &out[0].dim[0]))
        fail_node(g, n, "too large");
    return 1;
}

const OpRules op_cat_ring = {
    .math = "y = x0, x1, ... along axis 0, x0 in place `first`, the last around to place 0",
    .example = "f32[4, 2] f32[4, 2] first=1",
    .attrs = ring_attrs,
    .infer = ring_infer,
    .diff = cat_diff,
    .cost = cost_bytes,
    .factors = factors_inner,
    .kernels = cat_kernels,
    .ref = cat_ref,
};

/* ---- slice_backward ---- */

static const AttrField slice_backward_attrs[] = {
    {.name = "input_sizes", .kind = ATTR_INTS, .required = true},
    {.name = "dim", .kind = ATTR_INT},
    {.name = "start", .kind = ATTR_INT},
    {.name = "end", .kind = ATTR_INT, .i = INT64_MAX},
    {.name = "step", .kind = ATTR_INT, .i = 1},
    {0},
};

static int slice_backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *sizes = &n->attr[INPUT_SIZES];
    if (sizes->i > TN_RANK)
        fail_node(g, n, "input_sizes: expected at most %d axes, found %lld", TN_RANK,
                  (long long)sizes->i);
    out[0] = type_make(n->in[0]->type.dtype, (int)sizes->i, sizes->ints);
    for (int d = 0; d < out[0].rank; d++)
        if (out[0].dim[d] < 0)
            fail_node(g, n, "input_sizes: expected sizes, found %lld", (long long)out[0].dim[d]);
    Type want = out[0];
    Range r = need_range(g, n, n->attr + RANGE, &want);
    want.dim[r.axis] = r.count;
    need_type(g, n, 0, &want);
    return 1;
}

static Range range(const Node *n)
{
    return slice_range(n->attr + RANGE, &n->out[0]->type);
}

static void slice_backward_diff(Grad *d)
{
    const Attr *at = d->n->attr + RANGE;
    d->dx[0] = emit1(d->b, "slice", IN(d->dy[0]),
                     ATTRS(A_INT("dim", at[0].i), A_INT("start", at[1].i), A_INT("end", at[2].i),
                           A_INT("step", at[3].i)));
}

static bool is_all(const Node *n)
{
    return type_equal(&n->in[0]->type, &n->out[0]->type);
}

static void slice_backward_factors(const Node *n, Factors *f)
{
    int axis = range(n).axis;
    factors_beside(n, f, axis);
    runs_axis(n, f, axis, slice_unit(n->attr + RANGE, &n->out[0]->type, f));
}

static void slice_backward_part(Part *p)
{
    Attr *attr = part_attr(p);
    attr[INPUT_SIZES].ints = part_dims(p);
    if (is_all(p->n))
        slice_all(attr + RANGE);
    else
        slice_part(p, &p->f->out[0], &p->n->out[0]->type, attr + RANGE);
    part_same(p, attr);
}

static Value *slice_backward_fold(Build *b, Node *n)
{
    (void)b;
    return is_all(n) ? n->in[0] : NULL;
}

static int slice_backward_ref(Call *c)
{
    Range r = range(c->node);
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++)
        tensor_set(&c->out[0], tensor_linear(&c->out[0], i), 0);
    place_each(&c->out[0], &c->in[0], r.axis, r.start, r.step);
    return 0;
}

static int slice_backward_run(Call *c)
{
    Range r = range(c->node);
    Tensor zero = c->out[0];
    zero.data = (char[8]){0};
    memset(zero.stride, 0, sizeof zero.stride);
    strided_copy(&c->out[0], &zero);
    place(&c->out[0], &c->in[0], r.axis, r.start, r.step);
    return 0;
}

static const Kernel slice_backward_kernels[] = {
    {.name = "copy", .accepts = accepts, .run = slice_backward_run, .strided_out = true}, {0}};

const OpRules op_slice_backward = {
    .math = "dx = 0 of the shape input_sizes; dx[start : end : step] = dy on axis `dim`",
    .example = "f32[4, 4] input_sizes=[4, 8] dim=1 start=2 end=6",
    .attrs = slice_backward_attrs,
    .infer = slice_backward_infer,
    .diff = slice_backward_diff,
    .cost = cost_bytes,
    .factors = slice_backward_factors,
    .part = slice_backward_part,
    .fold = slice_backward_fold,
    .kernels = slice_backward_kernels,
    .ref = slice_backward_ref,
    .alias = "aten.slice_backward.default",
};
