/* var_mean: variance and mean over the axes `dim` (none named: all), in the operand's dtype:
 *
 *   mean = sum x / N,   var = sum (x - mean)^2 / max(N - correction, 0)
 *
 * ATen's var.correction, var_mean.correction and, by a root, std.correction; NaN where nothing is
 * divided by 0. Its gradient: dx = 2 (x - mean) dvar / (N - correction) + dmean / N.
 *
 * Numerics: two passes, both sums in double. Kernels for f32, bf16 and f64:
 * - rows, where the axes that go are the last ones and contiguous: each sum in LANES lanes;
 * - runs, where some that go are contiguous, as a channel's in a batch of images: each run in turn,
 *   in the same lanes;
 * - columns, where some that stay are, as the features of a batch of rows: each in the order of
 *   rows.
 * Other layouts go through ref. */
#include "reduce.h"
#include "rows.h"

enum { DIM, KEEPDIM, CORRECTION };

static const AttrField attrs[] = {
    {.name = "dim", .kind = ATTR_INTS},
    {.name = "keepdim", .kind = ATTR_BOOL},
    {.name = "correction", .kind = ATTR_FLOAT, .f = 1},
    {0},
};

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    reduce_infer(g, n, out);
    if (!isfinite(n->attr[CORRECTION].f))
        fail_node(g, n, "correction: expected a finite number, found %g", n->attr[CORRECTION].f);
    out[1] = out[0];
    return 2;
}

static double divisor(const Node *n)
{
    return MAX(reduce_count(n) - n->attr[CORRECTION].f, 0);
}

static void diff(Grad *d)
{
    Build *b = d->b;
    Node *n = d->n;
    DType dtype = n->in[0]->type.dtype, wide = dtype == F64 ? F64 : F32;
    Value *dx = NULL;
    if (d->dy[0]) {
        Value *from_mean = emit1(b, "sub", IN(n->in[0], reduce_stretch(b, n, n->out[1])), NOATTRS);
        Value *scale = emit_cast(b, d->dy[0], wide);
        scale = emit1(b, "mul", IN(scale, emit_full(b, 2 / divisor(n), wide)), NOATTRS);
        scale = emit_cast(b, scale, dtype);
        dx = emit1(b, "mul", IN(from_mean, reduce_stretch(b, n, scale)), NOATTRS);
    }
    if (d->dy[1]) {
        Value *share = reduce_stretch(b, n, emit_quotient(b, d->dy[1], reduce_count(n)));
        dx = dx ? emit1(b, "add", IN(dx, share), NOATTRS) : share;
    }
    d->dx[0] = dx;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 4 * (double)type_nelem(&n->in[0]->type);
    return c;
}

/* Neither output of the parts merges by a sum. */
static void factors(const Node *n, Factors *f)
{
    reduce_factors(n, f, FACTOR_REPLICATE);
}

static void ref_row(const Call *c, const Tensor *x, double *y)
{
    int64_t count = tensor_nelem(x);
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < count; j++)
        sum += get_at(x, j);
    double mean = sum / (double)count;
    for (int64_t j = 0; j < count; j++) {
        double from_mean = get_at(x, j) - mean;
        squares += from_mean * from_mean;
    }
    y[0] = squares / divisor(c->node);
    y[1] = mean;
}

static int ref(Call *c)
{
    return reduce_ref(c, ref_row);
}

/* ---- kernels ---- */

/* The mean of `runs` runs of n elements, and the sum of their squared distances from it. */
INLINE void moments(const void *x, const Rows *r, int64_t runs, int64_t n, double *y, DType d)
{
    double s[LANES] = {0}, q[LANES] = {0};
    for (int64_t k = 0; k < runs; k++) {
        const char *run = (const char *)x + row_offset(r, k) * dtype_size(d);
        EACH_LANE(n, i, lane, s[lane] += load_f64(run, i, d));
    }
    double m = y[1] = lanes_sum_f64(s) / (double)(runs * n);
    for (int64_t k = 0; k < runs; k++) {
        const char *run = (const char *)x + row_offset(r, k) * dtype_size(d);
        EACH_LANE(n, i, lane, q[lane] += (load_f64(run, i, d) - m) * (load_f64(run, i, d) - m));
    }
    y[0] = lanes_sum_f64(q);
}

/* The same of n columns over rows: mean[j], squares[j]. */
INLINE void column_moments(const void *x, const Rows *r, int64_t rows, int64_t n,
                           double *restrict mean, double *restrict squares, DType d)
{
    for (int64_t j = 0; j < n; j++)
        mean[j] = squares[j] = 0;
    for (int64_t k = 0; k < rows; k++) {
        const char *row = (const char *)x + row_offset(r, k) * dtype_size(d);
        for (int64_t j = 0; j < n; j++)
            mean[j] += load_f64(row, j, d);
    }
    for (int64_t j = 0; j < n; j++)
        mean[j] /= (double)rows;
    for (int64_t k = 0; k < rows; k++) {
        const char *row = (const char *)x + row_offset(r, k) * dtype_size(d);
        for (int64_t j = 0; j < n; j++)
            squares[j] += (load_f64(row, j, d) - mean[j]) * (load_f64(row, j, d) - mean[j]);
    }
}

#define MOMENTS(name, d)                                                                           \
    KERNEL(void, moments_##name,                                                                   \
           (const void *x, const Rows *r, int64_t runs, int64_t n, double *y), (x, r, runs, n, y)) \
    {                                                                                              \
        moments(x, r, runs, n, y, d);                                                              \
    }                                                                                              \
    KERNEL(void, columns_##name,                                                                   \
           (const void *x, const Rows *r, int64_t rows, int64_t n, double *mean, double *squares), \
           (x, r, rows, n, mean, squares))                                                         \
    {                                                                                              \
        column_moments(x, r, rows, n, mean, squares, d);                                           \
    }
MOMENTS(f32, F32)
MOMENTS(bf16, BF16)
MOMENTS(f64, F64)

static void row_of(const Call *c, const void *x, int64_t n, double *y)
{
    static const Rows one;
    DType d = c->in[0].dtype;
    (d == F32 ? moments_f32 : d == F64 ? moments_f64 : moments_bf16)(x, &one, 1, n, y);
    y[0] /= divisor(c->node);
}

static void run_rows(void *call, int64_t lo, int64_t hi)
{
    reduce_each_row(call, lo, hi, row_of);
}

static int run(Call *c)
{
    return reduce_run_rows(c, run_rows);
}

static const RowKernel row_kernel = {
    .in = "r", .out = "ee", .lead = reduce_row_lead, .run = run_rows};

/* ---- runs and columns ---- */

enum { STRIP = 64 }; /* columns that are summed together */

/* The axes that stay and those that go: `near` elements of one of both lie one after the other, its
 * axes from `lead` on. */
typedef struct MomentAxes {
    const Call *c;
    Tensor kept, gone;
    int lead;
    int64_t near;
} MomentAxes;

static void find_near(MomentAxes *x, const Tensor *t)
{
    x->lead = t->rank;
    while (x->lead > 0 && rows_contiguous(t, x->lead - 1))
        x->lead--;
    x->near = axes_nelem(t, x->lead, t->rank);
}

static MomentAxes axes_of(const Call *c, bool columns)
{
    MomentAxes x = {.c = c};
    reduce_split(c->node, &c->in[0], &x.kept, &x.gone);
    find_near(&x, columns ? &x.kept : &x.gone);
    return x;
}

static bool accepts_runs(const Call *c)
{
    return c->in[0].dtype != F16 && axes_of(c, false).near > 1;
}

static bool accepts_columns(const Call *c)
{
    return c->in[0].dtype != F16 && axes_of(c, true).near > 1;
}

static void put(const Call *c, int64_t i, double mean, double squares)
{
    tensor_set(&c->out[0], i, squares / divisor(c->node));
    tensor_set(&c->out[1], i, mean);
}

static void runs_part(void *arg, int64_t lo, int64_t hi)
{
    const MomentAxes *a = arg;
    const Tensor *x = &a->c->in[0];
    Rows kept = rows_of(&a->kept, a->kept.rank), gone = rows_of(&a->gone, a->lead);
    int64_t runs = axes_nelem(&a->gone, 0, a->lead);
    double y[2];
    for (int64_t i = lo; i < hi; i++) {
        const void *from = element(x, row_offset(&kept, i));
        (x->dtype == F32   ? moments_f32
         : x->dtype == F64 ? moments_f64
                           : moments_bf16)(from, &gone, runs, a->near, y);
        put(a->c, i, y[1], y[0]);
    }
}

static int run_runs(Call *c)
{
    MomentAxes x = axes_of(c, false);
    par_for(tensor_nelem(&c->out[0]), row_grain(tensor_nelem(&x.gone)), runs_part, &x);
    return 0;
}

static void columns_part(void *arg, int64_t lo, int64_t hi)
{
    const MomentAxes *a = arg;
    const Tensor *x = &a->c->in[0];
    Rows kept = rows_of(&a->kept, a->lead), gone = rows_of(&a->gone, a->gone.rank);
    int64_t strips = (a->near + STRIP - 1) / STRIP;
    double mean[STRIP], squares[STRIP];
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = i % strips * STRIP, n = MIN(STRIP, a->near - first);
        const void *from = element(x, row_offset(&kept, i / strips) + first);
        (x->dtype == F32   ? columns_f32
         : x->dtype == F64 ? columns_f64
                           : columns_bf16)(from, &gone, tensor_nelem(&a->gone), n, mean, squares);
        for (int64_t j = 0; j < n; j++)
            put(a->c, i / strips * a->near + first + j, mean[j], squares[j]);
    }
}

static int run_columns(Call *c)
{
    MomentAxes x = axes_of(c, true);
    int64_t strips = axes_nelem(&x.kept, 0, x.lead) * ((x.near + STRIP - 1) / STRIP);
    par_for(strips, row_grain(tensor_nelem(&x.gone) * MIN(x.near, STRIP)), columns_part, &x);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "rows", .accepts = reduce_accepts_rows, .run = run},
    {.name = "runs", .accepts = accepts_runs, .run = run_runs},
    {.name = "columns", .accepts = accepts_columns, .run = run_columns},
    {0}};

const OpRules op_var_mean = {
    .math = "mean = sum x / N, var = sum (x - mean)^2 / (N - correction) over the axes `dim`",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.var_mean.correction",
};
