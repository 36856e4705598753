/* slice_scatter, constant_pad_nd: a value set into another, or into a frame of one number.
 *
 * slice_scatter: y = x, but y[start : end : step] = src on axis `dim`, bounds as in slice.
 * constant_pad_nd: pad = [before, after] of the last axis, then of the one before it, and so on;
 * negative numbers cut elements off. ATen's semantics, any dtype; bits are moved. */
#include "index.h"

#include "view.h"

#include <math.h>

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

/* ---- slice_scatter ---- */

enum { DIM, SRC = 1 };

static const AttrField slice_scatter_attrs[] = {
    {.name = "dim", .kind = ATTR_INT},
    {.name = "start", .kind = ATTR_INT},
    {.name = "end", .kind = ATTR_INT, .i = INT64_MAX},
    {.name = "step", .kind = ATTR_INT, .i = 1},
    {0},
};

static int slice_scatter_infer(const Graph *g, const Node *n, Type *out)
{
    Range r = need_range(g, n, n->attr, &n->in[0]->type);
    Type want = n->in[0]->type;
    want.dim[r.axis] = r.count;
    need_type(g, n, SRC, &want);
    out[0] = n->in[0]->type;
    return 1;
}

static void slice_scatter_diff(Grad *d)
{
    const Attr *at = d->n->attr;
    const AttrArg *range = ATTRS(A_INT("dim", at[0].i), A_INT("start", at[1].i),
                                 A_INT("end", at[2].i), A_INT("step", at[3].i));
    if (d->need[0])
        d->dx[0] = emit1(d->b, "slice_scatter",
                         IN(d->dy[0], emit_zeros(d->b, &d->n->in[SRC]->type)), range);
    if (d->need[SRC])
        d->dx[SRC] = emit1(d->b, "slice", IN(d->dy[0]), range);
}

static void slice_scatter_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    Range r = slice_range(n->attr, x);
    for (int d = 0; d < x->rank; d++) {
        if (d == r.axis || x->dim[d] == 1)
            continue;
        view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
        axis_add(&f->in[SRC], d, f->count - 1);
    }
    int unit = slice_unit(n->attr, x, f);
    unit_axis(f, &f->in[0], r.axis, x->dim[r.axis], unit);
    unit_axis(f, &f->out[0], r.axis, x->dim[r.axis], unit);
    unit_axis(f, &f->in[SRC], r.axis, r.count, unit);
}

static void slice_scatter_part(Part *p)
{
    Attr *attr = part_attr(p);
    slice_part(p, &p->f->in[0], &p->n->in[0]->type, attr);
    part_same(p, attr);
}

/* All of x is replaced, or nothing. */
static Value *slice_scatter_fold(Build *b, Node *n)
{
    (void)b;
    if (type_equal(&n->in[SRC]->type, &n->out[0]->type))
        return n->in[SRC];
    return type_nelem(&n->in[SRC]->type) ? NULL : n->in[0];
}

static int slice_scatter_ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0], *src = &c->in[SRC];
    Range r = slice_range(c->node->attr, &c->node->in[0]->type);
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        int64_t at = ix[r.axis] - r.start, from[TN_RANK];
        memcpy(from, ix, sizeof from);
        from[r.axis] = at / r.step;
        if (at >= 0 && at % r.step == 0 && from[r.axis] < r.count)
            move_element(y, tensor_index(y, ix), src, tensor_index(src, from));
        else if (x->data != y->data)
            move_element(y, tensor_index(y, ix), x, tensor_index(x, ix));
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

static int slice_scatter_run(Call *c)
{
    const Tensor *y = &c->out[0];
    Range r = slice_range(c->node->attr, &c->node->in[0]->type);
    Tensor to = *y;
    if (tensor_nelem(y) == 0)
        return 0;
    if (y->data != c->in[0].data)
        strided_copy(y, &c->in[0]);
    to.dim[r.axis] = r.count;
    to.stride[r.axis] *= r.step;
    if (r.count)
        to.data += r.start * y->stride[r.axis] * dtype_size(y->dtype);
    strided_copy(&to, &c->in[SRC]);
    return 0;
}

static const Kernel slice_scatter_kernels[] = {
    {.name = "copy", .accepts = accepts, .run = slice_scatter_run, .strided_out = true}, {0}};

const OpRules op_slice_scatter = {
    .math = "y = x; y[start : end : step] = src on axis `dim`",
    .example = "f32[4, 8] f32[4, 4] dim=1 start=2 end=6",
    .attrs = slice_scatter_attrs,
    .infer = slice_scatter_infer,
    .diff = slice_scatter_diff,
    .cost = cost_bytes,
    .factors = slice_scatter_factors,
    .part = slice_scatter_part,
    .fold = slice_scatter_fold,
    .inplace = {1},
    .kernels = slice_scatter_kernels,
    .ref = slice_scatter_ref,
    .alias = "aten.slice_scatter.default",
};

/* ---- constant_pad_nd ---- */

enum { PAD, VALUE };

static const AttrField pad_attrs[] = {
    {"pad", ATTR_INTS, .required = true},
    {"value", ATTR_FLOAT, .f = 0},
    {0},
};

static const int64_t MAX_PAD = 1LL << 62; /* a position and a padding add up */

/* The padding before (side 0) or after (side 1) axis d. */
static int64_t pad_at(const Node *n, int d, int side)
{
    const Attr *pad = &n->attr[PAD];
    int i = 2 * (n->in[0]->type.rank - 1 - d) + side;
    return i < pad->i ? pad->ints[i] : 0;
}

static int pad_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    const Attr *pad = &n->attr[PAD];
    double value = n->attr[VALUE].f;
    if (pad->i % 2 || pad->i > 2 * x->rank)
        fail_node(g, n, "pad: expected two numbers for at most %d axes, found %lld", x->rank,
                  (long long)pad->i);
    need_number(g, n, "value", value, x->dtype);
    for (int i = 0; i < pad->i; i++)
        if (pad->ints[i] < -MAX_PAD || pad->ints[i] > MAX_PAD)
            fail_node(g, n, "pad: expected numbers of at most 2^62, found %lld",
                      (long long)pad->ints[i]);
    out[0] = *x;
    for (int d = 0; d < x->rank; d++) {
        int64_t *dim = &out[0].dim[d];
        if (__builtin_add_overflow(*dim, pad_at(n, d, 0), dim) ||
            __builtin_add_overflow(*dim, pad_at(n, d, 1), dim) || *dim < 0)
            fail_node(g, n, "pad: expected a size of 0 or more on axis %d, found %lld%+lld%+lld", d,
                      (long long)x->dim[d], (long long)pad_at(n, d, 0), (long long)pad_at(n, d, 1));
    }
    return 1;
}

static void pad_diff(Grad *d)
{
    int64_t back[2 * TN_RANK];
    int count = (int)d->n->attr[PAD].i;
    for (int i = 0; i < count; i++)
        back[i] = -d->n->attr[PAD].ints[i];
    d->dx[0] = emit1(d->b, "constant_pad_nd", IN(d->dy[0]), ATTRS(A_INTS("pad", count, back)));
}

static void pad_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    for (int d = 0; d < x->rank; d++)
        if (pad_at(n, d, 0) || pad_at(n, d, 1)) {
            whole_axis(f, &f->in[0], d, x->dim[d]);
            whole_axis(f, &f->out[0], d, n->out[0]->type.dim[d]);
        } else {
            view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
        }
}

static Value *pad_fold(Build *b, Node *n)
{
    (void)b;
    for (int i = 0; i < n->attr[PAD].i; i++)
        if (n->attr[PAD].ints[i])
            return NULL;
    return n->in[0];
}

static int pad_ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t ix[TN_RANK] = {0}, from[TN_RANK];
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        bool inside = true;
        for (int d = 0; d < x->rank; d++) {
            from[d] = ix[d] - pad_at(c->node, d, 0);
            inside = inside && from[d] >= 0 && from[d] < x->dim[d];
        }
        if (inside)
            move_element(y, tensor_index(y, ix), x, tensor_index(x, from));
        else
            tensor_set(y, tensor_index(y, ix), c->node->attr[VALUE].f);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* Fills y, then copies what is kept of x over it. */
static int pad_run(Call *c)
{
    Tensor x = c->in[0], y = c->out[0], one = y;
    char value[8];
    one.data = value;
    memset(one.stride, 0, sizeof one.stride);
    tensor_set(&one, 0, c->node->attr[VALUE].f);
    strided_copy(&y, &one);
    for (int d = 0; d < x.rank; d++) {
        int64_t before = pad_at(c->node, d, 0), after = pad_at(c->node, d, 1);
        x.dim[d] += MIN(before, 0) + MIN(after, 0);
        if (x.dim[d] <= 0)
            return 0;
        x.data += MAX(-before, 0) * x.stride[d] * dtype_size(x.dtype);
        y.data += MAX(before, 0) * y.stride[d] * dtype_size(y.dtype);
        y.dim[d] = x.dim[d];
    }
    strided_copy(&y, &x);
    return 0;
}

static const Kernel pad_kernels[] = {
    {.name = "copy", .accepts = accepts, .run = pad_run, .strided_out = true}, {0}};

const OpRules op_constant_pad_nd = {
    .math = "y = x with pad[0] elements `value` before and pad[1] behind its last axis, and so on",
    .example = "f32[4, 6] pad=[1, 2]",
    .attrs = pad_attrs,
    .infer = pad_infer,
    .diff = pad_diff,
    .cost = cost_bytes,
    .factors = pad_factors,
    .fold = pad_fold,
    .kernels = pad_kernels,
    .ref = pad_ref,
    .alias = "aten.constant_pad_nd.default",
};
