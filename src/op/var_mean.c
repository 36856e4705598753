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

static int ref(Call *c)
{
    const Tensor *x = &c->in[0];
    Tensor kept, gone;
    reduce_split(c->node, x, &kept, &gone);
    int64_t count = tensor_nelem(&gone);
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++) {
        int64_t at = tensor_linear(&kept, i);
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < count; j++)
            sum += tensor_get(x, at + tensor_linear(&gone, j));
        double mean = sum / (double)count;
        for (int64_t j = 0; j < count; j++) {
            double from_mean = tensor_get(x, at + tensor_linear(&gone, j)) - mean;
            squares += from_mean * from_mean;
        }
        set_at(&c->out[0], i, squares / divisor(c->node));
        set_at(&c->out[1], i, mean);
    }
    return 0;
}

/* ---- kernel ---- */

INLINE double load(const void *x, int64_t i, DType d)
{
    return d == F64 ? ((const double *)x)[i] : (double)v_load(x, i, d);
}

INLINE double sum_lanes(double *s)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

/* The mean of n elements, and the sum of their squared distances from it. */
INLINE void moments(const void *x, int64_t n, double *mean, double *squares, DType d)
{
    double s[LANES] = {0}, q[LANES] = {0};
    EACH_LANE(n, i, lane, s[lane] += load(x, i, d));
    double m = *mean = sum_lanes(s) / (double)n;
    EACH_LANE(n, i, lane, q[lane] += (load(x, i, d) - m) * (load(x, i, d) - m));
    *squares = sum_lanes(q);
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

static void run_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *x = &c->in[0];
    int lead = reduce_lead(c->node, x);
    Rows rows = rows_of(x, lead);
    int64_t n = axes_nelem(x, lead, x->rank);
    for (int64_t i = lo; i < hi; i++) {
        double mean = 0, squares = 0;
        (x->dtype == F32   ? moments_f32
         : x->dtype == F64 ? moments_f64
                           : moments_bf16)(element(x, row_offset(&rows, i)), n, &mean, &squares);
        tensor_set(&c->out[0], i, squares / divisor(c->node));
        tensor_set(&c->out[1], i, mean);
    }
}

static int run(Call *c)
{
    return reduce_run_rows(c, run_rows);
}

static int lead_of(const Call *c)
{
    return reduce_lead(c->node, &c->in[0]);
}

static const RowKernel row_kernel = {.in = "r", .out = "ee", .lead = lead_of, .run = run_rows};

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
