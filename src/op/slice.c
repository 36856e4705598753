/* slice, split: parts of a value along one axis, as views.
 *
 * slice: y = x[start : end : step] on axis `dim`, bounds clamped to the axis and negative ones
 * counted from its end, as in ATen. split: consecutive parts of the given sizes, which must add up;
 * one result for each. The gradient of slice is slice_backward (zeros around dy), that of split is
 * cat. The axis that is cut consists of runs, whose common unit may be cut again (view.h): q, k and
 * v inside an axis [3][C] along C. See view.c. */
#include "view.h"

enum { DIM, START, END, STEP, SIZES = 0, AXIS };

/* ---- slice ---- */

static const AttrField slice_attrs[] = {
    {.name = "dim", .kind = ATTR_INT},
    {.name = "start", .kind = ATTR_INT},
    {.name = "end", .kind = ATTR_INT, .i = INT64_MAX},
    {.name = "step", .kind = ATTR_INT, .i = 1},
    {0},
};

static int64_t clamp_bound(int64_t x, int64_t size)
{
    return x < -size ? 0 : x < 0 ? x + size : MIN(x, size);
}

Range slice_range(const Attr *attr, const Type *x)
{
    Range r = {.axis = axis_of(attr[DIM].i, x->rank)};
    int64_t size = x->dim[r.axis], end = clamp_bound(attr[END].i, size);
    r.step =
        MIN(attr[STEP].i, MAX(size, 2)); /* beyond it one element is taken: no stride overflows */
    r.start = clamp_bound(attr[START].i, size);
    if (end > r.start)
        r.count = (end - r.start - 1) / r.step + 1;
    return r;
}

Range need_range(const Graph *g, const Node *n, const Attr *attr, const Type *x)
{
    need_axis(g, n, attr[DIM].i, x->rank);
    if (attr[STEP].i < 1)
        fail_node(g, n, "step: expected at least 1, found %lld", (long long)attr[STEP].i);
    return slice_range(attr, x);
}

void slice_all(Attr *attr)
{
    attr[START].i = 0;
    attr[END].i = INT64_MAX;
    attr[STEP].i = 1;
}

static int slice_infer(const Graph *g, const Node *n, Type *out)
{
    Range r = need_range(g, n, n->attr, &n->in[0]->type);
    out[0] = n->in[0]->type;
    out[0].dim[r.axis] = r.count;
    return 1;
}

static void slice_diff(Grad *d)
{
    const Attr *at = d->n->attr;
    const Type *x = &d->n->in[0]->type;
    d->dx[0] = emit1(d->b, "slice_backward", IN(d->dy[0]),
                     ATTRS(A_INTS("input_sizes", x->rank, x->dim), A_INT("dim", at[DIM].i),
                           A_INT("start", at[START].i), A_INT("end", at[END].i),
                           A_INT("step", at[STEP].i)));
}

int slice_unit(const Attr *attr, const Type *x, Factors *f)
{
    Range r = slice_range(attr, x);
    if (r.step > 1)
        return NO_FACTOR;
    return unit_new(f, unit_divide(unit_divide(x->dim[r.axis], r.start), r.count));
}

void slice_part(const Part *p, const Axes *axes, const Type *x, Attr *attr)
{
    Range r = slice_range(attr, x);
    if (r.step > 1 || part_size(axes, r.axis, p->size) == x->dim[r.axis])
        return;
    attr[START].i = unit_part(p, axes, r.axis, r.start);
    attr[END].i = unit_part(p, axes, r.axis, r.start + r.count);
}

/* Operand and result axes but the one that is cut are common. */
static void cut_factors(const Node *n, Factors *f, int axis)
{
    const Type *x = &n->in[0]->type;
    for (int d = 0; d < x->rank; d++) {
        if (x->dim[d] == 1 || d == axis)
            continue;
        view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
        for (int k = 1; k < n->nout; k++)
            axis_add(&f->out[k], d, f->count - 1);
    }
}

static void slice_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    Range r = slice_range(n->attr, x);
    cut_factors(n, f, r.axis);
    int unit = slice_unit(n->attr, x, f);
    unit_axis(f, &f->in[0], r.axis, x->dim[r.axis], unit);
    unit_axis(f, &f->out[0], r.axis, r.count, unit);
}

/* A slice that takes all of an axis takes all of a part of it. */
static void part_of_slice(Part *p)
{
    Attr *attr = part_attr(p);
    if (type_equal(&p->n->in[0]->type, &p->n->out[0]->type))
        slice_all(attr);
    else
        slice_part(p, &p->f->in[0], &p->n->in[0]->type, attr);
    part_same(p, attr);
}

static Value *slice_fold(Build *b, Node *n)
{
    (void)b;
    return type_equal(&n->in[0]->type, &n->out[0]->type) ? n->in[0] : NULL;
}

static bool slice_view(const Node *n, int k, const Layout *in, Layout *out)
{
    (void)k;
    Range r = slice_range(n->attr, &n->in[0]->type);
    *out = *in;
    out->offset += r.start * in->stride[r.axis];
    out->stride[r.axis] *= r.step;
    return true;
}

static void slice_source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    Range r = slice_range(n->attr, &n->in[0]->type);
    for (int d = 0; d < n->out[k]->type.rank; d++)
        from[d] = d == r.axis ? r.start + ix[d] * r.step : ix[d];
}

static int slice_ref(Call *c)
{
    return view_ref(c, slice_source);
}

const OpRules op_slice = {
    .math = "y = x[start : end : step] on axis `dim`",
    .example = "f32[4, 8] dim=1 start=2 end=6",
    .attrs = slice_attrs,
    .infer = slice_infer,
    .diff = slice_diff,
    .cost = view_cost,
    .factors = slice_factors,
    .part = part_of_slice,
    .fold = slice_fold,
    .view = slice_view,
    .kernels = view_copy,
    .ref = slice_ref,
    .alias = "aten.slice.Tensor",
};

/* ---- split ---- */

static const AttrField split_attrs[] = {
    {.name = "split_sizes", .kind = ATTR_INTS, .required = true},
    {.name = "dim", .kind = ATTR_INT},
    {0},
};

static int split_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *sizes = &n->attr[SIZES];
    const Type *x = &n->in[0]->type;
    int axis = need_axis(g, n, n->attr[AXIS].i, x->rank);
    int64_t left = x->dim[axis];
    if (sizes->i < 1 || sizes->i > TN_MAX_OUT)
        fail_node(g, n, "split_sizes: expected 1 to %d sizes, found %lld", TN_MAX_OUT,
                  (long long)sizes->i);
    for (int k = 0; k < sizes->i; k++) {
        out[k] = *x;
        out[k].dim[axis] = sizes->ints[k];
        if (sizes->ints[k] < 0 || sizes->ints[k] > left)
            fail_node(g, n, "split_sizes: expected sizes of sum %lld, found %lld at %d",
                      (long long)x->dim[axis], (long long)sizes->ints[k], k);
        left -= sizes->ints[k];
    }
    if (left)
        fail_node(g, n, "split_sizes: expected sizes of sum %lld, found %lld",
                  (long long)x->dim[axis], (long long)(x->dim[axis] - left));
    return (int)sizes->i;
}

static void split_diff(Grad *d)
{
    Value *dy[TN_MAX_OUT];
    for (int k = 0; k < d->n->nout; k++)
        dy[k] = d->dy[k] ? d->dy[k] : emit_zeros(d->b, &d->n->out[k]->type);
    d->dx[0] = emit1(d->b, "cat", d->n->nout, dy, ATTRS(A_INT("dim", d->n->attr[AXIS].i)));
}

static void split_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    const Attr *sizes = &n->attr[SIZES];
    int axis = axis_of(n->attr[AXIS].i, x->rank);
    int64_t common = 0;
    for (int k = 0; k < n->nout; k++)
        common = unit_divide(common, sizes->ints[k]);
    cut_factors(n, f, axis);
    int unit = unit_of_runs(f, common, n->nout, x->dim[axis]);
    unit_axis(f, &f->in[0], axis, x->dim[axis], unit);
    for (int k = 0; k < n->nout; k++)
        unit_axis(f, &f->out[k], axis, sizes->ints[k], unit);
}

static void split_part(Part *p)
{
    Attr *attr = part_attr(p);
    int axis = axis_of(attr[AXIS].i, p->n->in[0]->type.rank);
    int64_t *sizes = NEWN(p->b->g->a, int64_t, p->n->nout);
    for (int k = 0; k < p->n->nout; k++)
        sizes[k] = unit_part(p, &p->f->out[k], axis, attr[SIZES].ints[k]);
    attr[SIZES].ints = sizes;
    part_same(p, attr);
}

static Value *split_fold(Build *b, Node *n)
{
    (void)b;
    return n->nout == 1 ? n->in[0] : NULL;
}

static int64_t split_start(const Node *n, int k)
{
    int64_t start = 0;
    for (int i = 0; i < k; i++)
        start += n->attr[SIZES].ints[i];
    return start;
}

static bool split_view(const Node *n, int k, const Layout *in, Layout *out)
{
    int axis = axis_of(n->attr[AXIS].i, n->in[0]->type.rank);
    *out = *in;
    out->offset += split_start(n, k) * in->stride[axis];
    return true;
}

static void split_source(const Node *n, int k, const int64_t *ix, int64_t *from)
{
    int axis = axis_of(n->attr[AXIS].i, n->in[0]->type.rank);
    for (int d = 0; d < n->out[k]->type.rank; d++)
        from[d] = ix[d] + (d == axis ? split_start(n, k) : 0);
}

static int split_ref(Call *c)
{
    return view_ref(c, split_source);
}

const OpRules op_split = {
    .math = "y0, y1, ... = consecutive parts of x, of the given sizes, on axis `dim`",
    .example = "f32[4, 12] split_sizes=[8, 4] dim=1",
    .attrs = split_attrs,
    .infer = split_infer,
    .diff = split_diff,
    .cost = view_cost,
    .factors = split_factors,
    .part = split_part,
    .fold = split_fold,
    .view = split_view,
    .kernels = view_copy,
    .ref = split_ref,
    .alias = "aten.split_with_sizes.default",
};
