/* sum, mean, amax, amin over the axes `dim` (none named: all), which become size 1 (keepdim) or go.
 *
 * Dtypes: sum of integers and bool is i64, of floats their own dtype; mean takes floats; amax, amin
 * any. An empty sum is 0, an empty mean NaN, an empty amax is refused. NaN wins in amax and amin.
 * The gradient of amax and amin is shared equally among elements that tie, as ATen does.
 *
 * Method of the f32 kernels: axes are split into kept and gone, each sorted by stride and merged. If
 * the axis of least stride goes, elements of a row are added in 32 lanes (rows); else whole rows
 * are added onto a strip of columns (columns). Accumulators are f64, so the error is the one
 * rounding at the end; f64 additions keep up with memory. Where there are few results, the gone
 * positions are cut into blocks, whose partial results are added in block order: sizes of blocks
 * follow from shape and strides alone, so the bits do not depend on threads. */
#include "op.h"

#include <math.h>
#include <string.h>

enum { DIM, KEEPDIM };
typedef enum { SUM, MEAN, MAXIMUM, MINIMUM } Kind;

static Kind kind_of(const Node *n)
{
    return node_is(n, "sum") ? SUM : node_is(n, "mean") ? MEAN : node_is(n, "amax") ? MAXIMUM : MINIMUM;
}

/* Bit mask of the axes that go. */
static unsigned gone_axes(const Node *n)
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

/* ---- inference ---- */

static void infer_shape(const Graph *g, const Node *n, Type *y)
{
    const Type *x = &n->in[0]->type;
    unsigned seen = 0;
    for (int i = 0; i < n->attr[DIM].i; i++) {
        int d = need_axis(g, n, n->attr[DIM].ints[i], x->rank);
        if (seen >> d & 1)
            fail_node(g, n, "dim: expected each axis once, found axis %d twice", d);
        seen |= 1u << d;
    }
    unsigned gone = gone_axes(n);
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
    infer_shape(g, n, out);
    if (!dtype_float(out[0].dtype))
        out[0].dtype = I64;
    return 1;
}

static int mean_infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    infer_shape(g, n, out);
    return 1;
}

static int extreme_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    infer_shape(g, n, out);
    for (int d = 0; d < x->rank; d++)
        if (gone_axes(n) >> d & 1 && x->dim[d] == 0)
            fail_node(g, n, "expected a size over 0 on axis %d, found %s", d, type_text(g->a, x));
    return 1;
}

/* ---- gradients ---- */

/* A value of the result's shape so that it broadcasts with the operand. */
static Value *with_axes(Build *b, const Node *n, Value *y)
{
    unsigned gone = gone_axes(n);
    if (n->attr[KEEPDIM].i || !(gone & (gone + 1))) /* leading axes broadcast by themselves */
        return y;
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (gone >> d & 1)
            y = emit1(b, "unsqueeze", IN(y), ATTRS(A_INT("dim", d)));
    return y;
}

/* Stretches y, which broadcasts with n's operand, to its shape. */
static Value *stretch(Build *b, const Node *n, Value *y)
{
    const Type *x = &n->in[0]->type;
    int64_t size[TN_RANK];
    int extra = x->rank - y->type.rank;
    for (int d = 0; d < x->rank; d++)
        size[d] = d >= extra && y->type.dim[d - extra] == x->dim[d] ? -1 : x->dim[d];
    return emit1(b, "expand", IN(y), ATTRS(A_INTS("size", x->rank, size)));
}

static void sum_diff(Grad *d)
{
    d->dx[0] = stretch(d->b, d->n, with_axes(d->b, d->n, d->dy[0]));
}

static double gone_count(const Node *n)
{
    double count = 1;
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (gone_axes(n) >> d & 1)
            count *= (double)n->in[0]->type.dim[d];
    return count;
}

static void mean_diff(Grad *d)
{
    Value *count = emit_full(d->b, gone_count(d->n), d->dy[0]->type.dtype);
    Value *share = emit1(d->b, "div", IN(d->dy[0], count), NOATTRS);
    d->dx[0] = stretch(d->b, d->n, with_axes(d->b, d->n, share));
}

/* dy where x = y, shared equally among the elements that tie. */
static void extreme_diff(Grad *d)
{
    Build *b = d->b;
    Value *x = d->n->in[0], *y = with_axes(b, d->n, d->n->out[0]);
    const Attr *dim = &d->n->attr[DIM];
    Value *is = emit1(b, "eq", IN(x, y), NOATTRS);
    is = emit1(b, "_to_copy", IN(is), ATTRS(A_DTYPE("dtype", x->type.dtype)));
    Value *ties = emit1(b, "sum", IN(is), ATTRS(A_INTS("dim", dim->i, dim->ints), A_BOOL("keepdim", 1)));
    Value *share = emit1(b, "div", IN(with_axes(b, d->n, d->dy[0]), ties), NOATTRS);
    d->dx[0] = emit1(b, "mul", IN(is, share), NOATTRS);
}

/* ---- cost, factors ---- */

static Cost cost(const Node *n)
{
    const Type *x = &n->in[0]->type, *y = &n->out[0]->type;
    return (Cost){(double)type_nelem(x), (double)type_nbytes(x), (double)type_nbytes(y)};
}

/* The mean of parts is not a merge by sum: its axes stay whole; so do amin's, for want of a kind. */
static void factors(const Node *n, Factors *f)
{
    static const FactorKind merge[] = {[SUM] = FACTOR_SUM, [MEAN] = FACTOR_REPLICATE,
                                       [MAXIMUM] = FACTOR_MAX, [MINIMUM] = FACTOR_REPLICATE};
    const Type *x = &n->in[0]->type;
    unsigned gone = gone_axes(n);
    for (int d = 0, k = 0; d < x->rank; d++) {
        bool goes = gone >> d & 1;
        if (x->dim[d] != 1) {
            int i = factor_new(f, goes ? merge[kind_of(n)] : FACTOR_PARALLEL, x->dim[d]);
            axis_add(&f->in[0], d, i);
            if (!goes)
                axis_add(&f->out[0], k, i);
        }
        k += !goes || n->attr[KEEPDIM].i;
    }
}

/* ---- reference ---- */

/* The operand's kept and its gone axes, as two tensors over the same data. */
static void split_axes(const Node *n, const Tensor *x, Tensor *kept, Tensor *gone)
{
    unsigned mask = gone_axes(n);
    *kept = *gone = *x;
    kept->rank = gone->rank = 0;
    for (int d = 0; d < x->rank; d++) {
        Tensor *t = mask >> d & 1 ? gone : kept;
        t->dim[t->rank] = x->dim[d];
        t->stride[t->rank++] = x->stride[d];
    }
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
        tensor_set(y, to, kind_of(n) == MEAN ? sum / (double)count : sum);
    else
        store_int(y, to, isum);
}

/* Whether the element at i comes before the one at k. NaN comes first. */
static bool beats(Kind kind, const Tensor *x, int64_t i, int64_t k)
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
        if (beats(kind_of(n), x, from, best))
            best = from;
    }
    memcpy(y->data + to * size, x->data + best * size, (size_t)size);
}

static int ref(Call *c)
{
    Tensor kept, gone;
    split_axes(c->node, &c->in[0], &kept, &gone);
    bool adds = kind_of(c->node) <= MEAN;
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++)
        (adds ? ref_sum : ref_extreme)(c->node, &c->in[0], tensor_linear(&kept, i), &gone,
                                       &c->out[0], tensor_linear(&c->out[0], i));
    return 0;
}

/* ---- f32 kernels ---- */

enum { LANES = 32, STRIP = 2048, FEW = 16, BLOCK_ROWS = 256, BLOCK_MOST = 32, BLOCK_RUN = 1 << 15 };

typedef struct Axis {
    int64_t dim, xs, ys; /* size, strides in operand and result */
} Axis;

/* Axes by falling operand stride. The last kept axis is `width` columns, 1 where rows are added. */
typedef struct Plan {
    Kind kind;
    Axis kept[TN_RANK], gone[TN_RANK], column;
    int nkept, ngone;
    int64_t outer, count;         /* positions of kept, of gone */
    int64_t block, nblock, nstrip; /* gone positions in one block; blocks; strips of columns */
    bool rows;
    const float *x;
    float *y;
    double *partial; /* [outer][nblock][width] */
} Plan;

typedef struct Walk {
    int64_t ix[TN_RANK], x, y;
} Walk;

static Walk walk_at(const Axis *axis, int n, int64_t i)
{
    Walk w = {.x = 0};
    for (int d = n - 1; d >= 0; d--) {
        w.ix[d] = i % axis[d].dim;
        i /= axis[d].dim;
        w.x += w.ix[d] * axis[d].xs;
        w.y += w.ix[d] * axis[d].ys;
    }
    return w;
}

static void walk_next(Walk *w, const Axis *axis, int n)
{
    for (int d = n - 1; d >= 0; d--) {
        w->x += axis[d].xs;
        if (++w->ix[d] < axis[d].dim)
            return;
        w->x -= axis[d].xs * axis[d].dim;
        w->ix[d] = 0;
    }
}

INLINE double start(Kind kind)
{
    return kind == MAXIMUM ? -(double)INFINITY : kind == MINIMUM ? (double)INFINITY : 0;
}

INLINE double join(Kind kind, double a, double x)
{
    if (kind == MAXIMUM)
        return x > a || x != x ? x : a;
    if (kind == MINIMUM)
        return x < a || x != x ? x : a;
    return a + x;
}

/* Element i goes to lane i % LANES; lanes are joined by halves. */
INLINE double join_run(Kind kind, const float *x, int64_t n, int64_t stride)
{
    double acc[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        acc[l] = start(kind);
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            acc[l] = join(kind, acc[l], (double)x[(i + l) * stride]);
    for (int l = 0; i < n; i++, l++)
        acc[l] = join(kind, acc[l], (double)x[i * stride]);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            acc[l] = join(kind, acc[l], acc[l + half]);
    return acc[0];
}

/* Adds four rows, in order, onto the strip. */
INLINE void join_rows(Kind kind, double *acc, const float *const row[4], int64_t n, int64_t stride)
{
    const float *p = row[0], *q = row[1], *r = row[2], *s = row[3];
    for (int64_t j = 0; j < n; j++) {
        double a = join(kind, acc[j], (double)p[j * stride]);
        a = join(kind, a, (double)q[j * stride]);
        a = join(kind, a, (double)r[j * stride]);
        acc[j] = join(kind, a, (double)s[j * stride]);
    }
}


#define JOIN(name, kind)                                                                           \
    KERNEL static double run_##name(const float *x, int64_t n, int64_t stride)                     \
    {                                                                                              \
        return stride == 1 ? join_run(kind, x, n, 1) : join_run(kind, x, n, stride);               \
    }                                                                                              \
    KERNEL static void rows_##name(double *acc, const float *const row[4], int64_t n, int64_t stride) \
    {                                                                                              \
        if (stride == 1)                                                                           \
            join_rows(kind, acc, row, n, 1);                                                       \
        else                                                                                       \
            join_rows(kind, acc, row, n, stride);                                                  \
    }
JOIN(sum, SUM)
JOIN(max, MAXIMUM)
JOIN(min, MINIMUM)

static double any_run(Kind kind, const float *x, int64_t n, int64_t stride)
{
    return (kind == MAXIMUM ? run_max : kind == MINIMUM ? run_min : run_sum)(x, n, stride);
}

static void any_rows(Kind kind, double *acc, const float *const row[4], int64_t n, int64_t stride)
{
    (kind == MAXIMUM ? rows_max : kind == MINIMUM ? rows_min : rows_sum)(acc, row, n, stride);
}

static double join_any(Kind kind, double a, double x)
{
    return kind == MAXIMUM ? join(MAXIMUM, a, x) : kind == MINIMUM ? join(MINIMUM, a, x) : a + x;
}

static void finish(const Plan *p, float *y, double acc)
{
    *y = (float)(p->kind == MEAN ? acc / (double)p->count : acc);
}

/* The gone positions [lo, hi) of one result, run by run along the last gone axis. */
static double block_of_rows(const Plan *p, const float *x, int64_t lo, int64_t hi)
{
    double acc = start(p->kind);
    int n = p->ngone - 1;
    int64_t len = n < 0 ? 1 : p->gone[n].dim, stride = n < 0 ? 1 : p->gone[n].xs, at = lo % len;
    Walk w = walk_at(p->gone, MAX(n, 0), lo / len);
    for (int64_t i = lo; i < hi; at = 0) {
        int64_t run = MIN(len - at, hi - i);
        acc = join_any(p->kind, acc, any_run(p->kind, x + w.x + at * stride, run, stride));
        walk_next(&w, p->gone, n);
        i += run;
    }
    return acc;
}

/* The gone positions [lo, hi) of n columns. */
static void block_of_columns(const Plan *p, const float *x, int64_t lo, int64_t hi, int64_t n,
                             double *acc)
{
    Walk w = walk_at(p->gone, p->ngone, lo);
    const float *row[4];
    int held = 0;
    for (int64_t j = 0; j < n; j++)
        acc[j] = start(p->kind);
    for (int64_t i = lo; i < hi; i++) {
        row[held++] = x + w.x;
        walk_next(&w, p->gone, p->ngone);
        if (held == 4) {
            any_rows(p->kind, acc, row, n, p->column.xs);
            held = 0;
        }
    }
    for (int i = 0; i < held; i++)
        for (int64_t j = 0; j < n; j++)
            acc[j] = join_any(p->kind, acc[j], (double)row[i][j * p->column.xs]);
}

/* One task is one block of one strip of one outer position. */
static void run_tasks(void *arg, int64_t lo, int64_t hi)
{
    const Plan *p = arg;
    double acc[STRIP];
    for (int64_t i = lo; i < hi; i++) {
        int64_t strip = i % p->nstrip, block = i / p->nstrip % p->nblock, o = i / p->nstrip / p->nblock;
        Walk w = walk_at(p->kept, p->nkept, o);
        int64_t first = block * p->block, last = MIN(first + p->block, p->count);
        int64_t j0 = strip * STRIP, n = MIN(STRIP, p->column.dim - j0);
        if (p->rows)
            acc[0] = block_of_rows(p, p->x + w.x, first, last);
        else
            block_of_columns(p, p->x + w.x + j0 * p->column.xs, first, last, n, acc);
        if (p->nblock > 1)
            memcpy(p->partial + (o * p->nblock + block) * p->column.dim + j0, acc,
                   (size_t)n * sizeof *acc);
        else
            for (int64_t j = 0; j < n; j++)
                finish(p, p->y + w.y + (j0 + j) * p->column.ys, acc[j]);
    }
}

/* Joins the blocks' partial results, in block order. */
static void join_blocks(void *arg, int64_t lo, int64_t hi)
{
    const Plan *p = arg;
    for (int64_t i = lo; i < hi; i++) {
        int64_t o = i / p->column.dim, j = i % p->column.dim;
        const double *from = p->partial + o * p->nblock * p->column.dim + j;
        double acc = from[0];
        for (int64_t k = 1; k < p->nblock; k++)
            acc = join_any(p->kind, acc, from[k * p->column.dim]);
        finish(p, p->y + walk_at(p->kept, p->nkept, o).y + j * p->column.ys, acc);
    }
}

/* Inserts an axis so that operand strides fall; merges axes that lie as one in both tensors. */
static int add_axis(Axis *axis, int n, int64_t dim, int64_t xs, int64_t ys)
{
    int at = n;
    if (dim == 1)
        return n;
    for (; at > 0 && axis[at - 1].xs < xs; at--)
        axis[at] = axis[at - 1];
    axis[at] = (Axis){dim, xs, ys};
    return n + 1;
}

static int merge_axes(Axis *axis, int n)
{
    int m = 0;
    for (int d = 0; d < n; d++) {
        Axis *last = &axis[m - 1], x = axis[d];
        if (m && last->xs == x.xs * x.dim && last->ys == x.ys * x.dim)
            *last = (Axis){last->dim * x.dim, x.xs, x.ys};
        else
            axis[m++] = x;
    }
    return m;
}

static void fill_axes(Plan *p, const Call *c)
{
    unsigned mask = gone_axes(c->node);
    const Tensor *x = &c->in[0];
    int64_t ys = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (mask >> d & 1) {
            p->ngone = add_axis(p->gone, p->ngone, x->dim[d], x->stride[d], 0);
        } else {
            p->nkept = add_axis(p->kept, p->nkept, x->dim[d], x->stride[d], ys);
            ys *= x->dim[d];
        }
    }
    p->nkept = merge_axes(p->kept, p->nkept);
    p->ngone = merge_axes(p->gone, p->ngone);
}

static int64_t positions(const Axis *axis, int n)
{
    int64_t count = 1;
    for (int d = 0; d < n; d++)
        count *= axis[d].dim;
    return count;
}

static void fill_plan(Plan *p, const Call *c)
{
    fill_axes(p, c);
    p->kind = kind_of(c->node);
    p->count = positions(p->gone, p->ngone);
    if (p->count == 0)
        p->ngone = 0;
    Axis gone = p->ngone ? p->gone[p->ngone - 1] : (Axis){0};
    p->rows = !p->nkept || (gone.dim >= LANES && gone.xs < p->kept[p->nkept - 1].xs);
    p->column = p->rows ? (Axis){1, 1, 1} : p->kept[--p->nkept];
    p->outer = positions(p->kept, p->nkept);
    p->nstrip = (p->column.dim + STRIP - 1) / STRIP;
    p->block = p->rows ? BLOCK_RUN : MAX(BLOCK_ROWS, (p->count + BLOCK_MOST - 1) / BLOCK_MOST);
    if (p->outer * p->nstrip >= FEW || p->count == 0)
        p->block = MAX(p->count, 1);
    p->nblock = MAX((p->count + p->block - 1) / p->block, 1);
}

static void prepare(Call *c, Arena *a)
{
    Plan *p = NEW(a, Plan);
    fill_plan(p, c);
    c->state = p;
    c->nbytes_work = p->nblock > 1 ? p->outer * p->nblock * p->column.dim * (int64_t)sizeof(double) : 0;
}

static int run(Call *c)
{
    Plan p = *(const Plan *)c->state;
    p.x = (const float *)c->in[0].data;
    p.y = (float *)c->out[0].data;
    p.partial = (double *)c->work;
    int64_t task = MAX(1, MIN(STRIP, p.column.dim) * MIN(p.block, p.count));
    if (p.outer * p.column.dim == 0)
        return 0;
    par_for(p.outer * p.nblock * p.nstrip, 1 + (1 << 14) / task, run_tasks, &p);
    if (p.nblock > 1)
        par_for(p.outer * p.column.dim, 1024, join_blocks, &p);
    return 0;
}

static bool accepts(const Call *c)
{
    return c->in[0].dtype == F32;
}

static const Kernel kernels[] = {{"f32", accepts, prepare, run}, {0}};

/* ---- the ops ---- */

const OpRules op_sum = {
    .math = "y = sum of x over the axes `dim` (all where none is named)",
    .attrs = attrs,
    .infer = sum_infer,
    .diff = sum_diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.sum.default aten.sum.dim_IntList",
};

const OpRules op_mean = {
    .math = "y = sum of x over the axes `dim` / their number of elements",
    .attrs = attrs,
    .infer = mean_infer,
    .diff = mean_diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.mean.default aten.mean.dim",
};

const OpRules op_amax = {
    .math = "y = greatest x over the axes `dim`; its gradient is shared equally among ties",
    .attrs = attrs,
    .infer = extreme_infer,
    .diff = extreme_diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.amax.default aten.max.default",
};

const OpRules op_amin = {
    .math = "y = least x over the axes `dim`; its gradient is shared equally among ties",
    .attrs = attrs,
    .infer = extreme_infer,
    .diff = extreme_diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.amin.default aten.min.default",
};
