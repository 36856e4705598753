/* gather, scatter, scatter_add, scatter_amax, scatter_amin: an index for every element, along one
 * axis, as ATen's (amax and amin: scatter_reduce).
 *
 * gather: y[i, j, k] = x[i, index[i, j, k], k] for dim = 1, of the index's shape. scatter: y = x,
 * but y[i, index[i, j, k], k] = src[i, j, k]; scatter_add adds, scatter_amax and scatter_amin keep
 * the greatest or least (NaN wins), whose gradient the elements that tie share equally, those of x
 * too. x, index and src have one rank, of at least 1; the index may be smaller than src on any
 * axis, and than x on all but `dim`. An index outside of [0, size) is an error of the run: unlike
 * those of `index`, ATen's do not wrap. The last one along `dim` of several elements
 * for one place stays; sums are formed in that order (index_put.c).
 *
 * Kernels take any dtype and strides. The last axis is the inner loop; scatters are cut into strips
 * of it, and each walks `dim` in order. */
#include "index.h"

#include "pointwise.h"
#include "view.h"

enum { DIM, INDEX = 1, SRC };

static const AttrField attrs[] = {{"dim", ATTR_INT, .required = true}, {0}};

static int axis(const Node *n)
{
    return axis_of(n->attr[DIM].i, n->in[0]->type.rank);
}

/* ---- infer ---- */

/* Operand 1 is an index that fits in operand i, but on axis `any`. */
static void need_fit(const Graph *g, const Node *n, int i, int any)
{
    const Type *ids = &n->in[INDEX]->type, *t = &n->in[i]->type;
    bool fits = ids->rank == t->rank;
    for (int d = 0; fits && d < t->rank; d++)
        fits = d == any || ids->dim[d] <= t->dim[d];
    if (!fits)
        fail_node(g, n, "operand 1: expected at most the sizes of operand %d%s, %s, found %s", i,
                  any < 0 ? "" : " beside `dim`", type_text(g->a, t), type_text(g->a, ids));
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_rank(g, n, 0, 1, TN_RANK);
    need_index(g, n, INDEX);
    need_fit(g, n, 0, need_axis(g, n, n->attr[DIM].i, n->in[0]->type.rank));
    out[0] = n->in[INDEX]->type;
    out[0].dtype = n->in[0]->type.dtype;
    return 1;
}

static int scatter_infer(const Graph *g, const Node *n, Type *out)
{
    infer(g, n, out);
    out[0] = n->in[0]->type;
    need_dtype(g, n, SRC, out[0].dtype);
    need_fit(g, n, SRC, -1);
    return 1;
}

/* ---- diff ---- */

static Value *emit_dim(Grad *d, const char *op, int nin, Value *const *in)
{
    return emit1(d->b, op, nin, in, ATTRS(A_INT("dim", d->n->attr[DIM].i)));
}

static void diff(Grad *d)
{
    if (d->need[0])
        d->dx[0] = emit_dim(d, "scatter_add",
                            IN(emit_zeros(d->b, &d->n->in[0]->type), d->n->in[INDEX], d->dy[0]));
}

/* Zeros after v up to the shape of t. */
static Value *pad_to(Build *b, Value *v, const Type *t)
{
    for (int d = 0; d < t->rank; d++) {
        Type wide = v->type;
        wide.dim[d] = t->dim[d];
        if (v->type.dim[d] < t->dim[d])
            v = emit1(b, "slice_backward", IN(v),
                      ATTRS(A_INTS("input_sizes", wide.rank, wide.dim), A_INT("dim", d),
                            A_INT("end", v->type.dim[d])));
    }
    return v;
}

static void scatter_add_diff(Grad *d)
{
    if (d->need[0])
        d->dx[0] = d->dy[0];
    if (d->need[SRC])
        d->dx[SRC] = pad_to(d->b, emit_dim(d, "gather", IN(d->dy[0], d->n->in[INDEX])),
                            &d->n->in[SRC]->type);
}

static void scatter_diff(Grad *d)
{
    Build *b = d->b;
    Value *dy = d->dy[0], *ids = d->n->in[INDEX];
    const Type *t = &ids->type;
    if (d->need[0]) {
        Value *zero = emit1(b, "expand", IN(emit_full(b, 0, dy->type.dtype)),
                            ATTRS(A_INTS("size", t->rank, t->dim)));
        d->dx[0] = emit_dim(d, "scatter", IN(dy, ids, zero));
    }
    if (d->need[SRC]) {
        Type whole = dy->type;
        whole.dtype = I64;
        Value *at = emit_positions(b, t);
        Value *kept = emit_dim(d, "scatter", IN(emit_zeros(b, &whole), ids, at));
        kept = emit_dim(d, "gather", IN(kept, ids));
        Value *ds = emit_kept(b, kept, at, emit_dim(d, "gather", IN(dy, ids)));
        d->dx[SRC] = pad_to(b, ds, &d->n->in[SRC]->type);
    }
}

static Value *emit_same(Build *b, Value *x, Value *y)
{
    return emit_cast(b, emit1(b, "eq", IN(x, y), NOATTRS), x->type.dtype);
}

/* dy where x or src is y, shared equally among all that went to one place and are. 16 bits do not
 * hold every number of these. */
static void extreme_diff(Grad *d)
{
    Build *b = d->b;
    const DType own = d->dy[0]->type.dtype, wide = dtype_size(own) == 2 ? F32 : own;
    Value *y = d->n->out[0], *ids = d->n->in[INDEX], *src = d->n->in[SRC];
    for (int k = 0; k < ids->type.rank; k++)
        if (ids->type.dim[k] < src->type.dim[k])
            src =
                emit1(b, "slice", IN(src), ATTRS(A_INT("dim", k), A_INT("end", ids->type.dim[k])));
    Value *x_is = emit_same(b, d->n->in[0], y);
    Value *src_is = emit_same(b, src, emit_dim(d, "gather", IN(y, ids)));
    Value *ties =
        emit_dim(d, "scatter_add", IN(emit_cast(b, x_is, wide), ids, emit_cast(b, src_is, wide)));
    Value *share = emit1(b, "div", IN(emit_cast(b, d->dy[0], wide), ties), NOATTRS);
    share = emit_cast(b, share, own);
    if (d->need[0])
        d->dx[0] = emit1(b, "mul", IN(x_is, share), NOATTRS);
    if (d->need[SRC])
        d->dx[SRC] =
            pad_to(b, emit1(b, "mul", IN(src_is, emit_dim(d, "gather", IN(share, ids))), NOATTRS),
                   &d->n->in[SRC]->type);
}

/* ---- cost: of x only what is looked up is read ---- */

static Cost cost(const Node *n)
{
    double nbytes = (double)type_nbytes(&n->out[0]->type);
    return (Cost){.nread = nbytes + (double)type_nbytes(&n->in[INDEX]->type), .nwrite = nbytes};
}

static Cost scatter_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = node_is(n, OP_scatter) ? 0 : (double)type_nelem(&n->in[INDEX]->type);
    return c;
}

/* ---- factors ---- */

/* Axes beside `dim` that are equal in all operands are common. */
static bool common(const Node *n, int d)
{
    for (int i = 1; i < n->nin; i++)
        if (n->in[i]->type.dim[d] != n->in[0]->type.dim[d])
            return false;
    return d != axis(n);
}

static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type, *y = &n->out[0]->type;
    for (int d = 0; d < x->rank; d++) {
        if (y->dim[d] != 1) {
            bool cut = d == axis(n) || common(n, d);
            int k = factor_new(f, cut ? FACTOR_PARALLEL : FACTOR_REPLICATE, y->dim[d]);
            axis_add(&f->in[INDEX], d, k);
            axis_add(&f->out[0], d, k);
            if (common(n, d))
                axis_add(&f->in[0], d, k);
        }
        if (!common(n, d))
            whole_axis(f, &f->in[0], d, x->dim[d]);
    }
}

/* How parts of the index are merged: what is assigned, or the least, is not. */
static FactorKind index_kind(const Node *n)
{
    bool whole = n->in[INDEX]->type.dim[axis(n)] == n->in[SRC]->type.dim[axis(n)];
    if (whole && node_is(n, OP_scatter_amax))
        return FACTOR_MAX;
    return whole && node_is(n, OP_scatter_add) && n->in[0]->type.dtype != BOOL ? FACTOR_SUM
                                                                               : FACTOR_REPLICATE;
}

static void index_factor(const Node *n, Factors *f, int64_t size)
{
    if (size == 1)
        return;
    int k = factor_new(f, index_kind(n), size);
    axis_add(&f->in[INDEX], axis(n), k);
    axis_add(&f->in[SRC], axis(n), k);
    if (node_is(n, OP_scatter_add))
        put_factor(n, f, k);
}

static void scatter_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    bool merged = index_kind(n) != FACTOR_REPLICATE;
    for (int d = 0; d < x->rank; d++)
        if (common(n, d)) {
            view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
            for (int i = 1; i < 3 && x->dim[d] != 1; i++)
                axis_add(&f->in[i], d, f->count - 1);
        } else {
            whole_axis(f, &f->out[0], d, x->dim[d]);
            for (int i = 0; i < (merged && d == axis(n) ? 1 : 3); i++)
                whole_axis(f, &f->in[i], d, n->in[i]->type.dim[d]);
        }
    if (merged)
        index_factor(n, f, n->in[INDEX]->type.dim[axis(n)]);
}

static void scatter_add_part(Part *p)
{
    put_part(p, SRC);
}

/* ---- references ---- */

/* The offset in t, which has x's shape, that element p of the index stands for. */
static int64_t place(const Call *c, const Tensor *t, int64_t p)
{
    const Tensor *ids = &c->in[INDEX];
    int64_t ix[TN_RANK], id = tensor_int(ids, tensor_linear(ids, p));
    for (int d = ids->rank - 1; d >= 0; d--) {
        ix[d] = p % ids->dim[d];
        p /= ids->dim[d];
    }
    ix[axis(c->node)] = id;
    return tensor_index(t, ix);
}

static int check(Call *c)
{
    return check_index(c, INDEX, 0, c->in[0].dim[axis(c->node)]);
}

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (check(c))
        return -1;
    for (int64_t p = 0; p < tensor_nelem(y); p++)
        move_element(y, tensor_linear(y, p), x, place(c, x, p));
    return 0;
}

static int64_t target(const Call *c, int64_t p)
{
    return place(c, &c->out[0], p);
}

/* The part of src that the index covers. */
static Tensor covered(const Call *c)
{
    Tensor src = c->in[SRC];
    memcpy(src.dim, c->in[INDEX].dim, sizeof src.dim);
    return src;
}

static bool adds(const Call *c)
{
    return node_is(c->node, OP_scatter_add);
}

static int scatter_ref(Call *c)
{
    Tensor src = covered(c);
    return check(c) ? -1 : put_ref(c, adds(c), &src, target);
}

/* Whether element i of x goes before element k of y. */
static bool beats(const Call *c, const Tensor *x, int64_t i, const Tensor *y, int64_t k)
{
    bool least = node_is(c->node, OP_scatter_amin);
    if (!dtype_float(x->dtype))
        return least ? tensor_int(x, i) < tensor_int(y, k) : tensor_int(x, i) > tensor_int(y, k);
    double a = tensor_get(x, i), b = tensor_get(y, k);
    return a != a || (least ? a < b : a > b);
}

static int extreme_ref(Call *c)
{
    const Tensor src = covered(c), *x = &c->in[0], *y = &c->out[0];
    if (check(c))
        return -1;
    for (int64_t p = 0; p < tensor_nelem(y); p++)
        move_element(y, tensor_linear(y, p), x, tensor_linear(x, p));
    for (int64_t p = 0; p < tensor_nelem(&src); p++)
        if (beats(c, &src, tensor_linear(&src, p), y, target(c, p)))
            move_element(y, target(c, p), &src, tensor_linear(&src, p));
    return 0;
}

/* ---- kernels ---- */

static bool accepts(const Call *c)
{
    int last = c->out[0].rank - 1;
    return rows_contiguous(&c->out[0], last);
}

/* x as the index walks it: along `dim` the index says where, so its own stride is 0. */
static Tensor walked(const Call *c, const Tensor *x)
{
    Tensor t = *x;
    memcpy(t.dim, c->in[INDEX].dim, sizeof t.dim);
    t.stride[axis(c->node)] = 0;
    return t;
}

/* ---- gather: rows of the last axis ---- */

#define GATHER(T)                   \
    for (int64_t k = 0; k < n; k++) \
        ((T *)(void *)y)[k] =       \
            ((const T *)(const void *)x)[index_at(ids, at + k * step) * stride + k * xs];
KERNEL(void, gather_row,
       (char *y, const char *x, int64_t xs, int64_t stride, const Tensor *ids, int64_t at,
        int64_t step, int64_t n, int size),
       (y, x, xs, stride, ids, at, step, n, size))
{
    switch (size) {
    case 1: GATHER(uint8_t) break;
    case 2: GATHER(uint16_t) break;
    case 4: GATHER(uint32_t) break;
    default: GATHER(uint64_t) break;
    }
}

static void gather_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *ids = &c->in[INDEX], *y = &c->out[0];
    Tensor x = walked(c, &c->in[0]);
    int last = y->rank - 1, size = dtype_size(y->dtype);
    int64_t n = y->dim[last], stride = c->in[0].stride[axis(c->node)];
    Rows x_at = rows_of(&x, last), id_at = rows_of(ids, last), y_at = rows_of(y, last);
    for (int64_t i = lo; i < hi; i++)
        gather_row(element(y, row_offset(&y_at, i)), element(&x, row_offset(&x_at, i)),
                   x.stride[last], stride, ids, row_offset(&id_at, i), ids->stride[last], n, size);
}

static int run(Call *c)
{
    const Tensor *y = &c->out[0];
    if (check(c))
        return -1;
    par_for(axes_nelem(y, 0, y->rank - 1), row_grain(y->dim[y->rank - 1]), gather_rows, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "gather_rows", .accepts = accepts, .run = run, .strided_out = true}, {0}};

/* ---- scatter: strips of the last axis, in order along `dim` ---- */

/* A tensor's rows without `dim` and the last axis, and the steps along these. */
typedef struct ScatterTensor {
    Rows rows;
    int64_t along, step;
} ScatterTensor;

typedef struct Scattering {
    ScatterTensor y, ids, src;
    const Tensor *index;
    const char *data; /* of src */
    int64_t stride;   /* of y along `dim` */
    int64_t along;    /* positions along `dim`; 1 where that is the last axis */
    int64_t n, width; /* the last axis, and what of it is a strip */
    int64_t strips, size;
    Target target;
    int order; /* of the extreme that is kept: 1 the greatest, -1 the least; 0: none */
} Scattering;

static ScatterTensor side_of(const Tensor *t, int dim)
{
    int last = t->rank - 1;
    Tensor outer = tensor_axes(t, 0, last);
    if (dim < last)
        outer = tensor_without(&outer, dim);
    return (ScatterTensor){rows_of(&outer, outer.rank), t->stride[dim], t->stride[last]};
}

/* Elements of type T, which GET makes numbers of. */
#define KEEP(T, GET)                                                      \
    for (int64_t k = 0; k < n; k++) {                                     \
        T *y = (T *)(void *)s->target.data + to + k * s->y.step +         \
               index_at(s->index, at + k * s->ids.step) * s->stride;      \
        T x = ((const T *)(const void *)s->data)[from + k * s->src.step]; \
        bool wins = s->order > 0 ? GET(x) > GET(*y) : GET(x) < GET(*y);   \
        *y = wins || GET(x) != GET(x) ? x : *y;                           \
    }

static void keep_strip(const Scattering *s, int64_t to, int64_t at, int64_t from, int64_t n)
{
    switch (s->target.dtype) {
    case F64: KEEP(double, ) break;
    case F32: KEEP(float, ) break;
    case F16: KEEP(uint16_t, f16_to_f32) break;
    case BF16: KEEP(uint16_t, bf16_to_f32) break;
    case I64: KEEP(int64_t, ) break;
    case I32: KEEP(int32_t, ) break;
    default: KEEP(uint8_t, ) break;
    }
}

static void put_strip(const Scattering *s, int64_t to, int64_t at, int64_t from, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        put_run(&s->target,
                to + k * s->y.step + index_at(s->index, at + k * s->ids.step) * s->stride, 1,
                s->data + (from + k * s->src.step) * s->size, 1, 1);
}

static void scatter_strips(void *arg, int64_t lo, int64_t hi)
{
    const Scattering *s = arg;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = i / s->strips, first = i % s->strips * s->width;
        int64_t to = row_offset(&s->y.rows, row) + first * s->y.step;
        int64_t at = row_offset(&s->ids.rows, row) + first * s->ids.step;
        int64_t from = row_offset(&s->src.rows, row) + first * s->src.step;
        for (int64_t j = 0; j < s->along; j++)
            (s->order ? keep_strip : put_strip)(
                s, to, at + j * s->ids.along, from + j * s->src.along, MIN(s->width, s->n - first));
    }
}

static int64_t scatter_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return put_nwork(c, adds(c));
}

static int scatter_run(Call *c)
{
    const Tensor *ids = &c->in[INDEX];
    int dim = axis(c->node), last = ids->rank - 1;
    Tensor y = walked(c, &c->out[0]), src = covered(c);
    if (check(c))
        return -1;
    Scattering s = {.y = side_of(&y, dim), .ids = side_of(ids, dim), .src = side_of(&src, dim)};
    s.index = ids;
    s.data = src.data;
    s.stride = c->out[0].stride[dim];
    s.along = dim == last ? 1 : ids->dim[dim];
    s.n = ids->dim[last];
    s.width = dim == last ? MAX(s.n, 1) : PUT_STRIP;
    s.strips = (s.n + s.width - 1) / s.width;
    s.size = dtype_size(src.dtype);
    s.target = put_begin(c, adds(c), c->work);
    s.order = node_is(c->node, OP_scatter_amax) - node_is(c->node, OP_scatter_amin);
    int64_t rows = tensor_nelem(ids) ? tensor_nelem(ids) / s.n / s.along : 0;
    par_for(rows * s.strips, row_grain(s.along * MIN(s.n, s.width)), scatter_strips, &s);
    put_end(c, &s.target);
    return 0;
}

static const Kernel scatter_kernels[] = {
    {.name = "scatter_strips",
     .accepts = accepts,
     .workspace = scatter_workspace,
     .run = scatter_run},
    {0},
};

const OpRules op_gather = {
    .math = "y[i, j, k] = x[i, index[i, j, k], k], for dim = 1",
    .example = "f32[4, 10] i64[4, 3] dim=1",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.gather.default",
};

const OpRules op_scatter = {
    .math = "y = x; y[i, index[i, j, k], k] = src[i, j, k], for dim = 1",
    .example = "f32[4, 10] i64[4, 3] f32[4, 3] dim=1",
    .attrs = attrs,
    .infer = scatter_infer,
    .diff = scatter_diff,
    .cost = scatter_cost,
    .factors = scatter_factors,
    .inplace = {1},
    .kernels = scatter_kernels,
    .ref = scatter_ref,
    .alias = "aten.scatter.src",
};

const OpRules op_scatter_add = {
    .math = "y = x; y[i, index[i, j, k], k] += src[i, j, k], for dim = 1",
    .example = "f32[4, 10] i64[4, 3] f32[4, 3] dim=1",
    .attrs = attrs,
    .infer = scatter_infer,
    .diff = scatter_add_diff,
    .cost = scatter_cost,
    .factors = scatter_factors,
    .part = scatter_add_part,
    .finish = put_finish,
    .inplace = {1},
    .kernels = scatter_kernels,
    .ref = scatter_ref,
    .alias = "aten.scatter_add.default",
};

const OpRules op_scatter_amax = {
    .math = "y = x; y[i, index[i, j, k], k] = max(y there, src[i, j, k]), for dim = 1",
    .example = "f32[4, 10] i64[4, 3] f32[4, 3] dim=1",
    .attrs = attrs,
    .infer = scatter_infer,
    .diff = extreme_diff,
    .cost = scatter_cost,
    .factors = scatter_factors,
    .inplace = {1},
    .kernels = scatter_kernels,
    .ref = extreme_ref,
};

const OpRules op_scatter_amin = {
    .math = "y = x; y[i, index[i, j, k], k] = min(y there, src[i, j, k]), for dim = 1",
    .example = "f32[4, 10] i64[4, 3] f32[4, 3] dim=1",
    .attrs = attrs,
    .infer = scatter_infer,
    .diff = extreme_diff,
    .cost = scatter_cost,
    .factors = scatter_factors,
    .inplace = {1},
    .kernels = scatter_kernels,
    .ref = extreme_ref,
};
