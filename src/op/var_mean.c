/* var_mean: variance and mean over the axes `dim` (none named: all), in the operand's dtype:
 *
 *   mean = sum x / N,   var = sum (x - mean)^2 / max(N - correction, 0)
 *
 * ATen's var.correction, var_mean.correction and, by a root, std.correction; NaN where nothing is
 * divided by 0. Its gradient: dx = 2 (x - mean) dvar / (N - correction) + dmean / N.
 *
 * Numerics: two passes, both sums in double. Kernel: rows of f32, bf16 and f64 where the axes that
 * go are the last ones and contiguous, each sum in LANES lanes; other layouts go through ref. */
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
    DType dtype = n->in[0]->type.dtype;
    Value *dx = NULL;
    if (d->dy[0]) {
        Value *from_mean = emit1(b, "sub", IN(n->in[0], reduce_stretch(b, n, n->out[1])), NOATTRS);
        Value *scale = emit1(b, "mul", IN(d->dy[0], emit_full(b, 2 / divisor(n), dtype)), NOATTRS);
        dx = emit1(b, "mul", IN(from_mean, reduce_stretch(b, n, scale)), NOATTRS);
    }
    if (d->dy[1]) {
        Value *share = emit1(b, "div", IN(d->dy[1], emit_full(b, reduce_count(n), dtype)), NOATTRS);
        share = reduce_stretch(b, n, share);
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

/* ---- kernel ---- */

/* The mean of n elements, and the sum of their squared distances from it. */
INLINE void moments(const void *x, int64_t n, double *mean, double *squares, DType d)
{
    double s[LANES] = {0}, q[LANES] = {0};
    EACH_LANE(n, i, lane, s[lane] += load_f64(x, i, d));
    double m = *mean = lanes_sum_f64(s) / (double)n;
    EACH_LANE(n, i, lane, q[lane] += (load_f64(x, i, d) - m) * (load_f64(x, i, d) - m));
    *squares = lanes_sum_f64(q);
}

#define MOMENTS(name, d)                                                          \
    KERNEL(void, name, (const void *x, int64_t n, double *mean, double *squares), \
           (x, n, mean, squares))                                                 \
    {                                                                             \
        moments(x, n, mean, squares, d);                                          \
    }
MOMENTS(moments_f32, F32)
MOMENTS(moments_bf16, BF16)
MOMENTS(moments_f64, F64)

static void row_of(const Call *c, const void *x, int64_t n, double *y)
{
    DType d = c->in[0].dtype;
    (d == F32 ? moments_f32 : d == F64 ? moments_f64 : moments_bf16)(x, n, &y[1], &y[0]);
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

static const Kernel kernels[] = {{.name = "rows", .accepts = reduce_accepts_rows, .run = run}, {0}};

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
