/* sum, mean, amax, amin over the axes `dim` (none named: all), which become size 1 (keepdim) or go.
 *
 * Dtypes: sum of integers and bool is i64, of floats their own dtype, or by `dtype` f32 of 16 bits;
 * mean takes floats; amax, amin any. An empty sum is 0, an empty mean NaN, an empty amax is
 * refused. NaN wins in amax and amin. The gradient of amax and amin is shared equally among
 * elements that tie, as ATen does. Numerics: sums are formed in f64 (i64) and rounded once. Kernels
 * are in reduce_rows.c. */
#include "reduce.h"
#include "rows.h"

#include <math.h>
#include <string.h>

enum { DIM, KEEPDIM, DTYPE };

ReduceKind reduce_kind(const Node *n)
{
    extern const OpId OP_sum, OP_mean, OP_amax, OP_amin;
    static const OpId *const ops[] = {&OP_sum, &OP_mean, &OP_amax, &OP_amin};
    int kind = SUM;
    while (!node_of(n, ops[kind]))
        kind++;
    return (ReduceKind)kind;
}

unsigned reduce_axes(const Node *n)
{
    int rank = n->in[0]->type.rank;
    unsigned gone = n->attr[DIM].i ? 0 : (1u << rank) - 1;
    for (int i = 0; i < n->attr[DIM].i; i++) {
        int64_t d = n->attr[DIM].ints[i];
        gone |= 1u << (d < 0 ? d + rank : d);
    }
    return gone;
}

static const AttrField attrs[] = {
    {.name = "dim", .kind = ATTR_INTS},
    {.name = "keepdim", .kind = ATTR_BOOL},
    {0},
};

static const AttrField sum_attrs[] = {
    {.name = "dim", .kind = ATTR_INTS},
    {.name = "keepdim", .kind = ATTR_BOOL},
    {.name = "dtype", .kind = ATTR_DTYPE, .i = NDTYPE},
    {0},
};

/* ---- inference ---- */

void reduce_infer(const Graph *g, const Node *n, Type *y)
{
    const Type *x = &n->in[0]->type;
    unsigned seen = 0;
    for (int i = 0; i < n->attr[DIM].i; i++) {
        int d = need_axis(g, n, n->attr[DIM].ints[i], x->rank);
        if (seen >> d & 1)
            fail_node(g, n, "dim: expected each axis once, found axis %d twice", d);
        seen |= 1u << d;
    }
    unsigned gone = reduce_axes(n);
    *y = (Type){.dtype = x->dtype};
    for (int d = 0; d < x->rank; d++) {
        if (!(gone >> d & 1))
            y->dim[y->rank++] = x->dim[d];
        else if (n->attr[KEEPDIM].i)
            y->dim[y->rank++] = 1;
    }
}

static int sum_infer(const Graph *g, const Node *n, Type *out)
{
    reduce_infer(g, n, out);
    out[0].dtype = need_out_dtype(g, n, "dtype", dtype_float(out[0].dtype) ? out[0].dtype : I64);
    return 1;
}

static int mean_infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    reduce_infer(g, n, out);
    return 1;
}

static int extreme_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    reduce_infer(g, n, out);
    for (int d = 0; d < x->rank; d++)
        if (reduce_axes(n) >> d & 1 && x->dim[d] == 0)
            fail_node(g, n, "expected a size over 0 on axis %d, found %s", d, type_text(g->a, x));
    return 1;
}

/* ---- gradients ---- */

/* A value of the result's shape so that it broadcasts with the operand. */
static Value *with_axes(Build *b, const Node *n, Value *y)
{
    unsigned gone = reduce_axes(n);
    if (n->attr[KEEPDIM].i || !(gone & (gone + 1))) /* leading axes broadcast by themselves */
        return y;
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (gone >> d & 1)
            y = emit1(b, "unsqueeze", IN(y), ATTRS(A_INT("dim", d)));
    return y;
}

Value *reduce_stretch(Build *b, const Node *n, Value *y)
{
    const Type *x = &n->in[0]->type;
    int64_t size[TN_RANK];
    y = with_axes(b, n, y);
    int extra = x->rank - y->type.rank;
    for (int d = 0; d < x->rank; d++)
        size[d] = d >= extra && y->type.dim[d - extra] == x->dim[d] ? -1 : x->dim[d];
    return emit1(b, "expand", IN(y), ATTRS(A_INTS("size", x->rank, size)));
}

static void sum_diff(Grad *d)
{
    Value *dy = emit_cast(d->b, d->dy[0], d->n->in[0]->type.dtype);
    d->dx[0] = reduce_stretch(d->b, d->n, dy);
}

double reduce_count(const Node *n)
{
    double count = 1;
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (reduce_axes(n) >> d & 1)
            count *= (double)n->in[0]->type.dim[d];
    return count;
}

static void mean_diff(Grad *d)
{
    d->dx[0] = reduce_stretch(d->b, d->n, emit_quotient(d->b, d->dy[0], reduce_count(d->n)));
}

/* dy where x = y, shared equally among the elements that tie. 16 bits do not hold every number of
 * these. */
static void extreme_diff(Grad *d)
{
    Build *b = d->b;
    Value *x = d->n->in[0], *y = with_axes(b, d->n, d->n->out[0]);
    const Attr *dim = &d->n->attr[DIM];
    const DType own = x->type.dtype, wide = dtype_size(own) == 2 ? F32 : own;
    const AttrArg over = A_INTS("dim", dim->i, dim->ints), keep = A_BOOL("keepdim", 1);
    Value *is = emit1(b, "eq", IN(x, y), NOATTRS);
    is = emit1(b, "_to_copy", IN(is), ATTRS(A_DTYPE("dtype", own)));
    Value *ties = wide == own ? emit1(b, "sum", IN(is), ATTRS(over, keep))
                              : emit1(b, "sum", IN(is), ATTRS(over, keep, A_DTYPE("dtype", wide)));
    Value *dy = emit_cast(b, with_axes(b, d->n, d->dy[0]), wide);
    Value *share = emit_cast(b, emit1(b, "div", IN(dy, ties), NOATTRS), own);
    d->dx[0] = emit1(b, "mul", IN(is, share), NOATTRS);
}

/* ---- cost, factors ---- */

static Cost cost(const Node *n)
{
    const Type *x = &n->in[0]->type, *y = &n->out[0]->type;
    return (Cost){(double)type_nelem(x), (double)type_nbytes(x), (double)type_nbytes(y)};
}

void reduce_factors(const Node *n, Factors *f, FactorKind kind)
{
    const Type *x = &n->in[0]->type;
    unsigned gone = reduce_axes(n);
    for (int d = 0, k = 0; d < x->rank; d++) {
        bool goes = gone >> d & 1;
        if (x->dim[d] != 1) {
            int i = factor_new(f, goes ? kind : FACTOR_PARALLEL, x->dim[d]);
            axis_add(&f->in[0], d, i);
            for (int o = 0; o < n->nout && !goes; o++)
                axis_add(&f->out[o], k, i);
        }
        k += !goes || n->attr[KEEPDIM].i;
    }
}

static void factors(const Node *n, Factors *f)
{
    static const FactorKind merge[] = {
        [SUM] = FACTOR_SUM, [MEAN] = FACTOR_SUM, [MAXIMUM] = FACTOR_MAX, [MINIMUM] = FACTOR_MAX};
    ReduceKind kind = reduce_kind(n);
    reduce_factors(n, f, merge[kind]);
    for (int k = 0; k < f->count; k++)
        if (f->factor[k].kind != FACTOR_PARALLEL && (kind == MEAN || kind == MINIMUM))
            factor_partials(f, k, 1, merge[kind], merge[kind]);
}

/* Parts of a mean are sums, which keep what 16 bits would round. */
static void mean_part(Part *p)
{
    const Attr *attr = p->n->attr;
    DType d = p->in[0]->type.dtype;
    if (p->partials)
        p->out[0] = emit1(p->b, "sum", IN(p->in[0]),
                          ATTRS(A_INTS("dim", attr[DIM].i, attr[DIM].ints),
                                A_BOOL("keepdim", attr[KEEPDIM].i),
                                A_DTYPE("dtype", dtype_size(d) == 2 ? F32 : d)));
    else
        part_same(p, NULL);
}

static void mean_finish(Part *p, Value *const *merged)
{
    Value *count = emit_full(p->b, reduce_count(p->n), merged[0]->type.dtype);
    Value *y = emit1(p->b, "div", IN(merged[0], count), NOATTRS);
    p->out[0] = emit_cast(p->b, y, p->n->out[0]->type.dtype);
}

/* x with its order reversed, exactly. */
static Value *reversed(Build *b, Value *x)
{
    return emit1(b, dtype_float(x->type.dtype) ? "neg" : "bitwise_not", IN(x), NOATTRS);
}

/* The least is the greatest of what is reversed. */
static void minimum_part(Part *p)
{
    const Attr *attr = p->n->attr;
    if (p->partials)
        p->out[0] = emit1(
            p->b, "amax", IN(reversed(p->b, p->in[0])),
            ATTRS(A_INTS("dim", attr[DIM].i, attr[DIM].ints), A_BOOL("keepdim", attr[KEEPDIM].i)));
    else
        part_same(p, NULL);
}

static void minimum_finish(Part *p, Value *const *merged)
{
    p->out[0] = reversed(p->b, merged[0]);
}

int reduce_lead(const Node *n, const Tensor *x)
{
    unsigned gone = reduce_axes(n), all = (1u << x->rank) - 1;
    int lead = 0;
    while (lead < x->rank && !(gone >> lead & 1))
        lead++;
    Tensor last = {.rank = x->rank - lead};
    memcpy(last.dim, x->dim + lead, sizeof *last.dim * (size_t)last.rank);
    memcpy(last.stride, x->stride + lead, sizeof *last.stride * (size_t)last.rank);
    return gone == (all >> lead << lead) && tensor_contiguous(&last) ? lead : -1;
}

bool reduce_accepts_rows(const Call *c)
{
    return c->in[0].dtype != F16 && reduce_lead(c->node, &c->in[0]) >= 0;
}

int reduce_run_rows(Call *c, void (*rows)(void *, int64_t, int64_t))
{
    par_for(tensor_nelem(&c->out[0]), row_grain((int64_t)reduce_count(c->node)), rows, c);
    return 0;
}

int reduce_row_lead(const Call *c)
{
    return reduce_lead(c->node, &c->in[0]);
}

void reduce_each_row(const Call *c, int64_t lo, int64_t hi,
                     void (*row)(const Call *c, const void *x, int64_t n, double *y))
{
    const Tensor *x = &c->in[0];
    int lead = reduce_row_lead(c);
    Rows rows = rows_of(x, lead);
    int64_t n = axes_nelem(x, lead, x->rank);
    double y[ROW_RESULTS] = {0};
    for (int64_t i = lo; i < hi; i++) {
        row(c, element(x, row_offset(&rows, i)), n, y);
        for (int k = 0; k < c->nout; k++)
            tensor_set(&c->out[k], i, y[k]);
    }
}

/* ---- reference ---- */

void reduce_split(const Node *n, const Tensor *x, Tensor *kept, Tensor *gone)
{
    unsigned mask = reduce_axes(n);
    *kept = *gone = *x;
    kept->rank = gone->rank = 0;
    for (int d = 0; d < x->rank; d++) {
        Tensor *t = mask >> d & 1 ? gone : kept;
        t->dim[t->rank] = x->dim[d];
        t->stride[t->rank++] = x->stride[d];
    }
}

int reduce_ref(Call *c, void (*row)(const Call *c, const Tensor *x, double *y))
{
    Tensor kept, gone;
    double y[ROW_RESULTS] = {0};
    reduce_split(c->node, &c->in[0], &kept, &gone);
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++) {
        gone.data = element(&c->in[0], tensor_linear(&kept, i));
        row(c, &gone, y);
        for (int k = 0; k < c->nout; k++)
            set_at(&c->out[k], i, y[k]);
    }
    return 0;
}

static void store_int(const Tensor *y, int64_t at, int64_t x)
{
    memcpy(y->data + at * 8, &x, 8);
}

static void ref_sum(const Node *n, const Tensor *x, int64_t at, const Tensor *gone, const Tensor *y,
                    int64_t to)
{
    double sum = 0;
    int64_t isum = 0, count = tensor_nelem(gone);
    for (int64_t j = 0; j < count; j++) {
        int64_t from = at + tensor_linear(gone, j);
        if (dtype_float(x->dtype))
            sum += tensor_get(x, from);
        else
            isum = (int64_t)((uint64_t)isum + (uint64_t)tensor_int(x, from)); /* wraps */
    }
    if (dtype_float(x->dtype))
        tensor_set(y, to, reduce_kind(n) == MEAN ? sum / (double)count : sum);
    else
        store_int(y, to, isum);
}

/* Whether the element at i comes before the one at k. NaN comes first. */
static bool beats(ReduceKind kind, const Tensor *x, int64_t i, int64_t k)
{
    if (!dtype_float(x->dtype)) {
        int64_t a = tensor_int(x, i), b = tensor_int(x, k);
        return kind == MAXIMUM ? a > b : a < b;
    }
    double a = tensor_get(x, i), b = tensor_get(x, k);
    return isnan(a) ? !isnan(b) : kind == MAXIMUM ? a > b : a < b;
}

static void ref_extreme(const Node *n, const Tensor *x, int64_t at, const Tensor *gone,
                        const Tensor *y, int64_t to)
{
    int64_t best = at, size = dtype_size(x->dtype);
    for (int64_t j = 1; j < tensor_nelem(gone); j++) {
        int64_t from = at + tensor_linear(gone, j);
        if (beats(reduce_kind(n), x, from, best))
            best = from;
    }
    memcpy(y->data + to * size, x->data + best * size, (size_t)size);
}

static int ref(Call *c)
{
    Tensor kept, gone;
    reduce_split(c->node, &c->in[0], &kept, &gone);
    bool adds = reduce_kind(c->node) <= MEAN;
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++)
        (adds ? ref_sum : ref_extreme)(c->node, &c->in[0], tensor_linear(&kept, i), &gone,
                                       &c->out[0], tensor_linear(&c->out[0], i));
    return 0;
}

/* ---- the ops ---- */

const OpRules op_sum = {
    .math = "y = sum of x over the axes `dim` (all where none is named)",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = sum_attrs,
    .infer = sum_infer,
    .diff = sum_diff,
    .cost = cost,
    .factors = factors,
    .rows = &reduce_row_kernel,
    .kernels = reduce_kernels,
    .ref = ref,
    .alias = "aten.sum.default aten.sum.dim_IntList",
};

const OpRules op_mean = {
    .math = "y = sum of x over the axes `dim` / their number of elements",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = attrs,
    .infer = mean_infer,
    .diff = mean_diff,
    .cost = cost,
    .factors = factors,
    .part = mean_part,
    .finish = mean_finish,
    .rows = &reduce_row_kernel,
    .kernels = reduce_kernels,
    .ref = ref,
    .alias = "aten.mean.default aten.mean.dim",
};

const OpRules op_amax = {
    .math = "y = greatest x over the axes `dim`; its gradient is shared equally among ties",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = attrs,
    .infer = extreme_infer,
    .diff = extreme_diff,
    .cost = cost,
    .factors = factors,
    .rows = &reduce_row_kernel,
    .kernels = reduce_kernels,
    .ref = ref,
    .alias = "aten.amax.default aten.max.default",
};

const OpRules op_amin = {
    .math = "y = least x over the axes `dim`; its gradient is shared equally among ties",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = attrs,
    .infer = extreme_infer,
    .diff = extreme_diff,
    .cost = cost,
    .factors = factors,
    .part = minimum_part,
    .finish = minimum_finish,
    .rows = &reduce_row_kernel,
    .kernels = reduce_kernels,
    .ref = ref,
    .alias = "aten.amin.default aten.min.default",
};
