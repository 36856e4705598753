/* logsumexp: y = log sum exp(x) over the axes `dim` (none named: all); -inf of nothing, as in ATen.
 * Its gradient: dx = dy exp(x - y).
 *
 * Numerics: y = m + log sum exp(x - m) with m = max x (0 where that is infinite), the sum in
 * double. Kernel: rows of f32 and bf16 (exponentials by vmath.h) and f64, where the axes that go
 * are the last ones and contiguous; other layouts go through ref. */
#include "reduce.h"
#include "rows.h"

static const AttrField attrs[] = {
    {.name = "dim", .kind = ATTR_INTS},
    {.name = "keepdim", .kind = ATTR_BOOL},
    {0},
};

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    reduce_infer(g, n, out);
    return 1;
}

static void diff(Grad *d)
{
    Build *b = d->b;
    Value *y = reduce_stretch(b, d->n, d->n->out[0]), *dy = reduce_stretch(b, d->n, d->dy[0]);
    Value *below = emit1(b, "sub", IN(d->n->in[0], y), NOATTRS);
    d->dx[0] = emit1(b, "mul", IN(emit1(b, "exp", IN(below), NOATTRS), dy), NOATTRS);
}

/* A maximum, a difference, an exponential (20), a sum. */
static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 23 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    reduce_factors(n, f, FACTOR_LOGSUMEXP);
}

static void ref_row(const Call *c, const Tensor *x, double *y)
{
    int64_t count = tensor_nelem(x);
    double m = -INFINITY, sum = 0;
    (void)c;
    for (int64_t j = 0; j < count; j++)
        m = fmax(m, get_at(x, j));
    m = isinf(m) ? 0 : m;
    for (int64_t j = 0; j < count; j++)
        sum += exp(get_at(x, j) - m);
    *y = count ? m + log(sum) : -INFINITY;
}

static int ref(Call *c)
{
    return reduce_ref(c, ref_row);
}

/* ---- kernel ---- */

/* The greatest of n elements that are no NaN, 0 where it is infinite. */
INLINE double row_max(const void *x, int64_t n, DType d)
{
    double m[LANES];
    for (int l = 0; l < LANES; l++)
        m[l] = -INFINITY;
    EACH_LANE(n, i, lane, double e = load_f64(x, i, d); m[lane] = e > m[lane] ? e : m[lane]);
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return isinf(m[0]) ? 0 : m[0];
}

INLINE double row_lse(const void *x, int64_t n, DType d)
{
    double s[LANES] = {0}, m = row_max(x, n, d);
    float low = (float)m;
    if (d == F64)
        EACH_LANE(n, i, lane, s[lane] += exp(((const double *)x)[i] - m));
    else
        EACH_LANE(n, i, lane, s[lane] += (double)v_exp(v_load(x, i, d) - low));
    return m + log(lanes_sum_f64(s));
}

#define ROW_LSE(name, d)                                     \
    KERNEL(double, name, (const void *x, int64_t n), (x, n)) \
    {                                                        \
        return row_lse(x, n, d);                             \
    }
ROW_LSE(lse_f32, F32)
ROW_LSE(lse_bf16, BF16)
ROW_LSE(lse_f64, F64)

static void row_of(const Call *c, const void *x, int64_t n, double *y)
{
    DType d = c->in[0].dtype;
    *y = d == F32 ? lse_f32(x, n) : d == F64 ? lse_f64(x, n) : lse_bf16(x, n);
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
    .in = "r", .out = "e", .lead = reduce_row_lead, .run = run_rows};

static const Kernel kernels[] = {{.name = "rows", .accepts = reduce_accepts_rows, .run = run}, {0}};

const OpRules op_logsumexp = {
    .math = "y = log sum exp(x) over the axes `dim` (all where none is named)",
    .example = "f32[2, 8, 4] dim=[1] keepdim=true",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.logsumexp.default",
};
