/* index, index_put: advanced indexing by integer tensors, as ATen's index.Tensor and index_put.
 *
 * Index tensor j, of several of one dtype that broadcast to one shape, indexes axis dims[j] of x
 * (ATen's list with None for the other axes). The axes of that shape stand in the result where the
 * indexed axes stood if those are neighbours, else in front. Negative indices count from the end;
 * others outside are an error of the run. index_put: y = x, where `values` (broadcast to the result
 * of index) are assigned or, with `accumulate`, added; of values for one place the last one stays,
 * sums are formed in row-major order (index_put.c). A mask as an index is refused: the shape would
 * depend on data.
 *
 * Kernels take any dtype and strides: the offsets that index positions stand for are computed once;
 * then runs of the axes after the indices are moved. */
#include "index.h"

#include "view.h"

enum { DIMS, ACCUMULATE, VALUES = 1 };

static const AttrField index_attrs[] = {{"dims", ATTR_INTS, .required = true}, {0}};

static const AttrField index_put_attrs[] = {
    {"dims", ATTR_INTS, .required = true},
    {"accumulate", ATTR_BOOL, .i = 0},
    {0},
};

/* ---- which axes ---- */

/* The place of x's axes and of the indices in the result. */
typedef struct IndexShape {
    int count, lead;         /* index operands, and the first of them */
    int first, rank, nblock; /* the indices' first axis in the result; its rank; how many axes */
    const int64_t *dims;
} IndexShape;

static bool indexed(const IndexShape *s, int axis)
{
    for (int j = 0; j < s->count; j++)
        if (s->dims[j] == axis)
            return true;
    return false;
}

static IndexShape shape_of(const Node *n, int lead)
{
    IndexShape s = {.count = n->nin - lead, .lead = lead, .dims = n->attr[DIMS].ints};
    for (int i = lead; i < n->nin; i++)
        s.nblock = MAX(s.nblock, n->in[i]->type.rank);
    s.rank = n->in[0]->type.rank - s.count + s.nblock;
    if (s.dims[s.count - 1] - s.dims[0] == s.count - 1)
        s.first = (int)s.dims[0];
    return s;
}

/* The result's axis that x's axis is; -1 where x is indexed. */
static int result_axis(const IndexShape *s, int axis)
{
    int kept = 0;
    for (int d = 0; d < axis; d++)
        kept += !indexed(s, d);
    return indexed(s, axis) ? -1 : kept < s->first ? kept : kept + s->nblock;
}

/* ---- infer ---- */

static void need_dims(const Graph *g, const Node *n, int lead)
{
    const Attr *dims = &n->attr[DIMS];
    int rank = n->in[0]->type.rank;
    if (dims->i != n->nin - lead)
        fail_node(g, n, "dims: expected an axis for each of %d index operands, found %lld",
                  n->nin - lead, (long long)dims->i);
    for (int j = 0; j < dims->i; j++)
        if (dims->ints[j] < (j ? dims->ints[j - 1] + 1 : 0) || dims->ints[j] >= rank)
            fail_node(g, n, "dims: expected ascending axes of %s, found %lld at %d",
                      type_text(g->a, &n->in[0]->type), (long long)dims->ints[j], j);
}

/* The type of x at the indices. */
static Type need_indices(const Graph *g, const Node *n, int lead)
{
    need_dims(g, n, lead);
    for (int i = lead; i < n->nin; i++)
        need_index(g, n, i);
    Type block = infer_broadcast(g, n, lead, n->nin - lead);
    IndexShape s = shape_of(n, lead);
    if (s.rank > TN_RANK)
        fail_node(g, n, "expected a result of rank at most %d, found %d", TN_RANK, s.rank);
    Type t = {.dtype = n->in[0]->type.dtype, .rank = s.rank};
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (!indexed(&s, d))
            t.dim[result_axis(&s, d)] = n->in[0]->type.dim[d];
    memcpy(t.dim + s.first, block.dim, sizeof *t.dim * (size_t)s.nblock);
    return t;
}

static int index_infer(const Graph *g, const Node *n, Type *out)
{
    out[0] = need_indices(g, n, 1);
    return 1;
}

static int index_put_infer(const Graph *g, const Node *n, Type *out)
{
    Type t = need_indices(g, n, 2);
    const Type *v = &n->in[VALUES]->type;
    bool fits = v->dtype == t.dtype && v->rank <= t.rank;
    for (int d = 1; fits && d <= v->rank; d++)
        fits = v->dim[v->rank - d] == t.dim[t.rank - d] || v->dim[v->rank - d] == 1;
    if (!fits)
        fail_node(g, n, "operand 1: expected a shape that broadcasts to %s, found %s",
                  type_text(g->a, &t), type_text(g->a, v));
    out[0] = n->in[0]->type;
    return 1;
}

/* ---- diff ---- */

/* `op` on the given operands and n's indices. */
static Value *emit_indexed(Grad *d, int lead, Value *x, Value *values, bool accumulate)
{
    const Node *n = d->n;
    Value *in[2 + TN_RANK] = {x, values};
    int count = n->nin - lead, at = values ? 2 : 1;
    memcpy(in + at, n->in + lead, sizeof *in * (size_t)count);
    AttrArg dims = A_INTS("dims", count, n->attr[DIMS].ints);
    if (!values)
        return emit1(d->b, "index", at + count, in, ATTRS(dims));
    return emit1(d->b, "index_put", at + count, in, ATTRS(dims, A_BOOL("accumulate", accumulate)));
}

static void index_diff(Grad *d)
{
    if (d->need[0])
        d->dx[0] = emit_indexed(d, 1, emit_zeros(d->b, &d->n->in[0]->type), d->dy[0], true);
}

static void index_put_diff(Grad *d)
{
    bool add = d->n->attr[ACCUMULATE].i;
    Value *dy = d->dy[0];
    if (d->need[0])
        d->dx[0] = add ? dy : emit_indexed(d, 2, dy, emit_full(d->b, 0, dy->type.dtype), false);
    if (!d->need[VALUES])
        return;
    Value *dv = emit_indexed(d, 2, dy, NULL, false);
    if (!add) {
        Type whole = dy->type;
        whole.dtype = I64;
        Value *at = emit_positions(d->b, &dv->type);
        Value *kept = emit_indexed(d, 2, emit_zeros(d->b, &whole), at, false);
        dv = emit_kept(d->b, emit_indexed(d, 2, kept, NULL, false), at, dv);
    }
    d->dx[VALUES] = grad_reduce(d->b, dv, &d->n->in[VALUES]->type);
}

/* ---- cost ---- */

/* Only what is indexed is read of x. */
static Cost index_cost(const Node *n)
{
    Cost c = {.nwrite = (double)type_nbytes(&n->out[0]->type)};
    c.nread = c.nwrite;
    for (int i = 1; i < n->nin; i++)
        c.nread += (double)type_nbytes(&n->in[i]->type);
    return c;
}

static Cost index_put_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = n->attr[ACCUMULATE].i ? (double)type_nelem(&n->in[VALUES]->type) : 0;
    return c;
}

/* ---- factors: the indexed axes stay whole ---- */

static void x_factors(const Node *n, Factors *f, const IndexShape *s, Axes *y)
{
    const Type *x = &n->in[0]->type;
    for (int d = 0; d < x->rank; d++) {
        if (x->dim[d] == 1)
            continue;
        if (indexed(s, d)) {
            whole_axis(f, &f->in[0], d, x->dim[d]);
            continue;
        }
        int k = factor_new(f, FACTOR_PARALLEL, x->dim[d]);
        axis_add(&f->in[0], d, k);
        axis_add(y, result_axis(s, d), k);
    }
}

/* The block's axis that axis d of an operand of rank `rank` is, by broadcasting. */
static int block_axis(const IndexShape *s, int rank, int d)
{
    return s->first + s->nblock - rank + d;
}

/* The size of axis e of the result, which is one of the indices'. */
static int64_t block_size(const Node *n, const IndexShape *s, int e)
{
    int64_t size = 1;
    for (int i = s->lead; i < n->nin; i++) {
        const Type *t = &n->in[i]->type;
        int d = e - block_axis(s, t->rank, 0);
        if (d >= 0 && t->dim[d] != 1)
            size = t->dim[d];
    }
    return size;
}

/* The indices' axes, which are axes of y. */
static void block_factors(const Node *n, Factors *f, const IndexShape *s, FactorKind kind, Axes *y)
{
    for (int e = s->first; e < s->first + s->nblock; e++) {
        int64_t size = block_size(n, s, e);
        if (size == 1)
            continue;
        int k = factor_new(f, kind, size);
        axis_add(y, e, k);
        for (int i = s->lead; i < n->nin; i++) {
            const Type *t = &n->in[i]->type;
            int d = e - block_axis(s, t->rank, 0);
            if (d >= 0 && t->dim[d] != 1)
                axis_add(&f->in[i], d, k);
        }
        if (kind == FACTOR_SUM)
            put_factor(n, f, k);
    }
}

static void index_factors(const Node *n, Factors *f)
{
    IndexShape s = shape_of(n, 1);
    x_factors(n, f, &s, &f->out[0]);
    block_factors(n, f, &s, FACTOR_PARALLEL, &f->out[0]);
}

/* Axes of x that are not indexed, and the values' where these have them. What is added may be added
 * in parts; of what is assigned the last stays. */
static void index_put_factors(const Node *n, Factors *f)
{
    IndexShape s = shape_of(n, 2);
    const Type *v = &n->in[VALUES]->type;
    Axes result = {0};
    x_factors(n, f, &s, &result);
    f->out[0] = f->in[0];
    bool adds = n->attr[ACCUMULATE].i && v->dtype != BOOL;
    block_factors(n, f, &s, adds ? FACTOR_SUM : FACTOR_REPLICATE, &result);
    for (int d = 0; d < v->rank; d++) {
        int e = s.rank - v->rank + d;
        if (v->dim[d] != 1 && result.n[e])
            axis_add(&f->in[VALUES], d, result.f[e][0]);
    }
}

static void index_put_part(Part *p)
{
    put_part(p, VALUES);
}

/* ---- what references and kernels share ---- */

static int check_indices(Call *c, const IndexShape *s)
{
    for (int j = 0; j < s->count; j++) {
        int64_t size = c->in[0].dim[s->dims[j]];
        if (check_index(c, s->lead + j, -size, size))
            return -1;
    }
    return 0;
}

/* t, which broadcasts to axes of the given sizes, with those axes. */
static Tensor broadcast(const Tensor *t, int rank, const int64_t *dim)
{
    Tensor s = {.data = t->data, .dtype = t->dtype, .rank = rank};
    memcpy(s.dim, dim, sizeof *dim * (size_t)rank);
    for (int d = 0, e = rank - t->rank; d < t->rank; d++)
        s.stride[e + d] = t->dim[d] == 1 ? 0 : t->stride[d];
    return s;
}

/* The shape of x at the indices, as a tensor without data. */
static Tensor result_of(const Call *c, const IndexShape *s)
{
    Tensor r = {.rank = s->rank};
    for (int d = 0; d < c->in[0].rank; d++)
        if (!indexed(s, d))
            r.dim[result_axis(s, d)] = c->in[0].dim[d];
    for (int e = 0; e < s->nblock; e++) {
        int64_t *dim = &r.dim[s->first + e];
        *dim = 1;
        for (int i = s->lead; i < c->nin; i++) {
            int d = e - s->nblock + c->in[i].rank;
            if (d >= 0 && c->in[i].dim[d] != 1)
                *dim = c->in[i].dim[d];
        }
    }
    return r;
}

/* ---- references ---- */

/* The index into x of position ix of the result. */
static void source(const Call *c, const IndexShape *s, const int64_t *ix, int64_t *from)
{
    for (int d = 0, j = 0; d < c->in[0].rank; d++) {
        if (!indexed(s, d)) {
            from[d] = ix[result_axis(s, d)];
            continue;
        }
        const Tensor *t = &c->in[s->lead + j++];
        int64_t at = 0;
        for (int e = 0; e < t->rank; e++)
            at += t->dim[e] == 1 ? 0 : ix[block_axis(s, t->rank, e)] * t->stride[e];
        from[d] = tensor_int(t, at);
        from[d] += from[d] < 0 ? c->in[0].dim[d] : 0;
    }
}

static int index_ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    IndexShape s = shape_of(c->node, 1);
    int64_t ix[TN_RANK] = {0}, from[TN_RANK] = {0};
    if (check_indices(c, &s))
        return -1;
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        source(c, &s, ix, from);
        move_element(y, tensor_index(y, ix), x, tensor_index(x, from));
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

static int64_t put_target(const Call *c, int64_t p)
{
    IndexShape s = shape_of(c->node, 2);
    Tensor r = result_of(c, &s);
    int64_t ix[TN_RANK] = {0}, to[TN_RANK] = {0};
    for (int d = r.rank - 1; d >= 0; d--) {
        ix[d] = p % r.dim[d];
        p /= r.dim[d];
    }
    source(c, &s, ix, to);
    return tensor_index(&c->out[0], to);
}

static int index_put_ref(Call *c)
{
    IndexShape s = shape_of(c->node, 2);
    Tensor r = result_of(c, &s), v = broadcast(&c->in[VALUES], r.rank, r.dim);
    if (check_indices(c, &s))
        return -1;
    return put_ref(c, c->node->attr[ACCUMULATE].i, &v, put_target);
}

/* ---- kernels: any dtype, any strides ---- */

/* A tensor's axes before, at and after the indices. The last one after, or all of them where they
 * lie as one in all tensors, is a run. */
typedef struct IndexTensor {
    Rows lead, block, tail;
    int64_t step; /* from element to element of a run */
    char *data;
} IndexTensor;

typedef struct Indexed {
    IndexTensor x, r;               /* what is indexed; the result, or the values */
    int64_t lead, block, tail, run; /* how many of each */
    const int64_t *offset;          /* in x, of each position of the indices */
    int64_t strips;                 /* index_put: parts of a run */
    int64_t size;                   /* bytes of an element */
    Target target;
} Indexed;

static IndexTensor side_of(const Tensor *t, int from, int to, bool whole)
{
    Tensor block = tensor_axes(t, from, to), tail = tensor_axes(t, to, t->rank);
    Rows flat = rows_of(&tail, tail.rank);
    IndexTensor s = {
        .lead = rows_of(t, from), .block = rows_of(&block, block.rank), .data = t->data};
    if (whole)
        s.step = flat.rank ? flat.stride[0] : 1;
    else {
        s.tail = rows_of(&tail, tail.rank - 1);
        s.step = tail.stride[tail.rank - 1];
    }
    return s;
}

static bool one_run(const Tensor *t, int from)
{
    Tensor tail = tensor_axes(t, from, t->rank);
    return rows_of(&tail, tail.rank).rank <= 1;
}

static Indexed indexed_of(const Tensor *x, const Tensor *r, const IndexShape *s)
{
    Tensor rest = *x;
    for (int j = s->count - 1; j >= 0; j--)
        rest = tensor_without(&rest, (int)s->dims[j]);
    int end = s->first + s->nblock;
    bool whole = one_run(&rest, s->first) && one_run(r, end);
    Indexed w = {.x = side_of(&rest, s->first, s->first, whole),
                 .r = side_of(r, s->first, end, whole),
                 .lead = axes_nelem(r, 0, s->first),
                 .block = axes_nelem(r, s->first, end),
                 .size = dtype_size(x->dtype)};
    w.run = whole ? axes_nelem(r, end, r->rank) : r->dim[r->rank - 1];
    w.tail = whole ? 1 : axes_nelem(r, end, r->rank - 1);
    return w;
}

/* The offset in x that each position of the indices stands for. */
static void fill_offsets(const Call *c, const IndexShape *s, const Tensor *x, const Tensor *r,
                         int64_t *offset)
{
    int64_t count = axes_nelem(r, s->first, s->first + s->nblock);
    if (!count)
        return;
    memset(offset, 0, sizeof *offset * (size_t)count);
    for (int j = 0; j < s->count; j++) {
        Tensor t = broadcast(&c->in[s->lead + j], s->nblock, r->dim + s->first);
        Rows at = rows_of(&t, t.rank);
        int64_t size = x->dim[s->dims[j]], stride = x->stride[s->dims[j]];
        for (int64_t p = 0; p < count; p++) {
            int64_t id = index_at(&t, row_offset(&at, p));
            offset[p] += (id < 0 ? id + size : id) * stride;
        }
    }
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int64_t nbytes_offsets(const Call *c, const IndexShape *s)
{
    Tensor r = result_of(c, s);
    return ((int64_t)sizeof(int64_t) * axes_nelem(&r, s->first, s->first + s->nblock) + 63) / 64 *
           64;
}

static int64_t index_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    IndexShape s = shape_of(c->node, 1);
    return nbytes_offsets(c, &s);
}

static void take_runs(void *arg, int64_t lo, int64_t hi)
{
    const Indexed *w = arg;
    for (int64_t i = lo; i < hi; i++) {
        int64_t p = i / w->tail % w->block, l = i / w->tail / w->block;
        int64_t from =
            row_offset(&w->x.lead, l) + w->offset[p] + row_offset(&w->x.tail, i % w->tail);
        put_run(&w->target, i * w->run, 1, w->x.data + from * w->size, w->x.step, w->run);
    }
}

static int index_run(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    IndexShape s = shape_of(c->node, 1);
    if (check_indices(c, &s))
        return -1;
    fill_offsets(c, &s, x, y, (int64_t *)(void *)c->work);
    Indexed w = indexed_of(x, y, &s);
    w.offset = (const int64_t *)(const void *)c->work;
    w.target = (Target){y->data, y->dtype, false};
    if (w.run)
        par_for(w.lead * w.block * w.tail, row_grain(w.run), take_runs, &w);
    return 0;
}

static const Kernel index_kernels[] = {
    {.name = "index_runs", .accepts = accepts, .workspace = index_workspace, .run = index_run},
    {0}};

static int64_t index_put_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    IndexShape s = shape_of(c->node, 2);
    return nbytes_offsets(c, &s) + put_nwork(c, c->node->attr[ACCUMULATE].i);
}

/* One unit is a strip of a run at every position of the indices, in their order. */
static void put_strips(void *arg, int64_t lo, int64_t hi)
{
    const Indexed *w = arg;
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = i % w->strips * PUT_STRIP, n = MIN(PUT_STRIP, w->run - first);
        int64_t t = i / w->strips % w->tail, l = i / w->strips / w->tail;
        int64_t to = row_offset(&w->x.lead, l) + row_offset(&w->x.tail, t) + first * w->x.step;
        int64_t from = row_offset(&w->r.lead, l) + row_offset(&w->r.tail, t) + first * w->r.step;
        for (int64_t p = 0; p < w->block; p++)
            put_run(&w->target, to + w->offset[p], w->x.step,
                    w->r.data + (from + row_offset(&w->r.block, p)) * w->size, w->r.step, n);
    }
}

static int index_put_run(Call *c)
{
    const Tensor *y = &c->out[0];
    IndexShape s = shape_of(c->node, 2);
    Tensor r = result_of(c, &s), v = broadcast(&c->in[VALUES], r.rank, r.dim);
    if (check_indices(c, &s))
        return -1;
    fill_offsets(c, &s, y, &r, (int64_t *)(void *)c->work);
    Indexed w = indexed_of(y, &v, &s);
    w.offset = (const int64_t *)(const void *)c->work;
    w.strips = (w.run + PUT_STRIP - 1) / PUT_STRIP;
    w.target = put_begin(c, c->node->attr[ACCUMULATE].i, c->work + nbytes_offsets(c, &s));
    par_for(w.lead * w.tail * w.strips, row_grain(MIN(w.run, PUT_STRIP) * w.block), put_strips, &w);
    put_end(c, &w.target);
    return 0;
}

static const Kernel index_put_kernels[] = {
    {.name = "index_put_strips",
     .accepts = accepts,
     .workspace = index_put_workspace,
     .run = index_put_run},
    {0},
};

const OpRules op_index = {
    .math = "y = x[..., i0, i1, ...], index operand j on axis dims[j]",
    .example = "f32[4, 10, 6] i64[2, 3] dims=[1]",
    .attrs = index_attrs,
    .infer = index_infer,
    .diff = index_diff,
    .cost = index_cost,
    .factors = index_factors,
    .kernels = index_kernels,
    .ref = index_ref,
    .alias = "aten.index.Tensor aten._unsafe_index.Tensor",
};

const OpRules op_index_put = {
    .math = "y = x; y[..., i0, i1, ...] = values, or += with accumulate",
    .example = "f32[10, 6] f32[3, 6] i64[3] dims=[0] accumulate=true",
    .attrs = index_put_attrs,
    .infer = index_put_infer,
    .diff = index_put_diff,
    .cost = index_put_cost,
    .factors = index_put_factors,
    .part = index_put_part,
    .finish = put_finish,
    .inplace = {1},
    .kernels = index_put_kernels,
    .ref = index_put_ref,
    .alias = "aten.index_put.default aten._unsafe_index_put.default",
};
