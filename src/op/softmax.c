/* _softmax, _log_softmax over one axis, and their backward.
 *
 *   softmax:      y = exp(x - m) / s,       m = max x, s = sum exp(x - m)
 *   log-softmax:  y = (x - m) - log s
 *   backward:     dx = y (dy - sum dy y)    from y, so that x need not be kept
 *                 dx = dy - exp(y) sum dy   of log-softmax
 *
 * Shapes and names as in ATen; operands and result have one floating-point type. A row of -inf
 * alone gives NaN, as there. The f32 kernels take rows along a last axis of stride 1, add in 16
 * lanes of f64 and may overwrite an operand; other axes go through ref. */
#include "rows.h"
#include "vmath.h"

#include <math.h>

enum { DIM };

static int axis_of(const Node *n)
{
    int64_t dim = n->attr[DIM].i;
    return (int)(dim < 0 ? dim + n->in[0]->type.rank : dim);
}

static const AttrField attrs[] = {{.name = "dim", .kind = ATTR_INT, .required = true}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    need_axis(g, n, n->attr[DIM].i, n->in[0]->type.rank);
    for (int i = 1; i < n->nin; i++)
        need_type(g, n, i, &n->in[0]->type);
    out[0] = n->in[0]->type;
    return 1;
}

static void diff_by(Grad *d, const char *backward)
{
    d->dx[0] =
        emit1(d->b, backward, IN(d->dy[0], d->n->out[0]), ATTRS(A_INT("dim", d->n->attr[DIM].i)));
}

static void softmax_diff(Grad *d)
{
    diff_by(d, "_softmax_backward_data");
}

static void log_softmax_diff(Grad *d)
{
    diff_by(d, "_log_softmax_backward_data");
}

/* Per element: a maximum, a difference, an exponential (10), a sum, a scaling; or about as much. */
static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 14 * (double)type_nelem(&n->out[0]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    factors_rows(n, f, 1u << axis_of(n));
}

/* ---- reference: fn computes one row ---- */

/* Elements of a row: at + j * stride. */
typedef struct SoftmaxLine {
    const Tensor *t;
    int64_t at, stride;
} SoftmaxLine;

static double get(SoftmaxLine l, int64_t j)
{
    return tensor_get(l.t, l.at + j * l.stride);
}

static void set(SoftmaxLine l, int64_t j, double x)
{
    tensor_set(l.t, l.at + j * l.stride, x);
}

static SoftmaxLine line_at(const Tensor *t, int axis, int64_t i)
{
    Tensor first = *t;
    first.dim[axis] = 1;
    return (SoftmaxLine){t, tensor_linear(&first, i), t->stride[axis]};
}

static int ref_by(Call *c, void (*row)(SoftmaxLine y, SoftmaxLine a, SoftmaxLine b, int64_t n))
{
    int axis = axis_of(c->node);
    int64_t n = c->out[0].dim[axis];
    for (int64_t i = 0; n && i < tensor_nelem(&c->out[0]) / n; i++)
        row(line_at(&c->out[0], axis, i), line_at(&c->in[0], axis, i),
            line_at(&c->in[c->nin - 1], axis, i), n);
    return 0;
}

static double ref_max(SoftmaxLine x, int64_t n)
{
    double m = get(x, 0);
    for (int64_t j = 1; j < n; j++)
        m = fmax(m, get(x, j));
    return m;
}

static double ref_sum_exp(SoftmaxLine x, double m, int64_t n)
{
    double s = 0;
    for (int64_t j = 0; j < n; j++)
        s += exp(get(x, j) - m);
    return s;
}

static void ref_softmax_row(SoftmaxLine y, SoftmaxLine x, SoftmaxLine unused, int64_t n)
{
    (void)unused;
    double m = ref_max(x, n), s = ref_sum_exp(x, m, n);
    for (int64_t j = 0; j < n; j++)
        set(y, j, exp(get(x, j) - m) / s);
}

static int ref_softmax(Call *c)
{
    return ref_by(c, ref_softmax_row);
}

static void ref_log_softmax_row(SoftmaxLine y, SoftmaxLine x, SoftmaxLine unused, int64_t n)
{
    (void)unused;
    double m = ref_max(x, n), s = ref_sum_exp(x, m, n);
    for (int64_t j = 0; j < n; j++)
        set(y, j, get(x, j) - m - log(s));
}

static int ref_log_softmax(Call *c)
{
    return ref_by(c, ref_log_softmax_row);
}

static void ref_softmax_backward_row(SoftmaxLine dx, SoftmaxLine dy, SoftmaxLine y, int64_t n)
{
    double dot = 0;
    for (int64_t j = 0; j < n; j++)
        dot += get(dy, j) * get(y, j);
    for (int64_t j = 0; j < n; j++)
        set(dx, j, get(y, j) * (get(dy, j) - dot));
}

static int ref_softmax_backward(Call *c)
{
    return ref_by(c, ref_softmax_backward_row);
}

static void ref_log_softmax_backward_row(SoftmaxLine dx, SoftmaxLine dy, SoftmaxLine y, int64_t n)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += get(dy, j);
    for (int64_t j = 0; j < n; j++)
        set(dx, j, get(dy, j) - exp(get(y, j)) * sum);
}

static int ref_log_softmax_backward(Call *c)
{
    return ref_by(c, ref_log_softmax_backward_row);
}

/* ---- f32 kernels: y, or dx, may be the very array of an operand ---- */

INLINE float row_max(const float *x, int64_t n)
{
    float m[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        m[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            m[l] = x[i + l] > m[l] ? x[i + l] : m[l];
    for (int l = 0; i < n; i++, l++)
        m[l] = x[i] > m[l] ? x[i] : m[l];
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return m[0];
}

/* The terms of a row's sum. */
typedef enum { TERM, EXP, PRODUCT } Term;

INLINE double term(Term what, float a, float b)
{
    return what == EXP ? (double)v_exp(a - b) : what == PRODUCT ? (double)a * (double)b : (double)a;
}

/* Element i goes to lane i % LANES; b is an array for PRODUCT, its first element for EXP. */
INLINE double row_sum(Term what, const float *a, const float *b, int64_t n)
{
    double s[LANES] = {0};
    int64_t i = 0, step = what == PRODUCT;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            s[l] += term(what, a[i + l], b[step * (i + l)]);
    for (int l = 0; i < n; i++, l++)
        s[l] += term(what, a[i], b[step * i]);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

KERNEL(void, softmax_row, (float *y, const float *x, const float *unused, int64_t n),
       (y, x, unused, n))
{
    (void)unused;
    float m = row_max(x, n);
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = v_exp(x[i] - m);
    float scale = (float)(1 / row_sum(TERM, y, y, n));
    for (int64_t i = 0; i < n; i++)
        y[i] *= scale;
}

KERNEL(void, log_softmax_row, (float *y, const float *x, const float *unused, int64_t n),
       (y, x, unused, n))
{
    (void)unused;
    float m = row_max(x, n), logs = (float)log(row_sum(EXP, x, &m, n));
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - m - logs;
}

KERNEL(void, softmax_backward_row, (float *dx, const float *dy, const float *y, int64_t n),
       (dx, dy, y, n))
{
    float dot = (float)row_sum(PRODUCT, dy, y, n);
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - dot);
}

KERNEL(void, log_softmax_backward_row, (float *dx, const float *dy, const float *y, int64_t n),
       (dx, dy, y, n))
{
    float sum = (float)row_sum(TERM, dy, dy, n);
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] - v_exp(y[i]) * sum;
}

typedef struct SoftmaxJob {
    void (*row)(float *y, const float *a, const float *b, int64_t n);
    float *y;
    const float *a, *b;
    Rows ry, ra, rb;
    int64_t n;
} SoftmaxJob;

static void run_rows(void *arg, int64_t lo, int64_t hi)
{
    const SoftmaxJob *j = arg;
    for (int64_t i = lo; i < hi; i++)
        j->row(j->y + row_offset(&j->ry, i), j->a + row_offset(&j->ra, i),
               j->b + row_offset(&j->rb, i), j->n);
}

typedef void SoftmaxRow(float *y, const float *a, const float *b, int64_t n);

static SoftmaxJob job_of(const Call *c, SoftmaxRow *row)
{
    const Tensor *a = &c->in[0], *b = &c->in[c->nin - 1];
    int last = a->rank - 1;
    return (SoftmaxJob){row,
                        (float *)c->out[0].data,
                        (const float *)a->data,
                        (const float *)b->data,
                        rows_of(&c->out[0], last),
                        rows_of(a, last),
                        rows_of(b, last),
                        a->dim[last]};
}

static int run_by(Call *c, SoftmaxRow *row)
{
    SoftmaxJob j = job_of(c, row);
    if (j.n)
        par_for(axes_nelem(&c->in[0], 0, c->in[0].rank - 1), row_grain(j.n), run_rows, &j);
    return 0;
}

static bool accepts(const Call *c)
{
    int last = c->in[0].rank - 1;
    if (axis_of(c->node) != last)
        return false;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i].dtype != F32 || !rows_contiguous(&c->in[i], last))
            return false;
    return rows_contiguous(&c->out[0], last);
}

static int lead_of(const Call *c)
{
    return c->in[0].rank - 1;
}

/* The kernel STEM_kernels of STEM_row, and STEM_rows: the same some rows at a time. */
#define KERNEL_OF(stem, operands)                                                           \
    static int run_##stem(Call *c)                                                          \
    {                                                                                       \
        return run_by(c, stem##_row);                                                       \
    }                                                                                       \
    static void rows_##stem(void *call, int64_t lo, int64_t hi)                             \
    {                                                                                       \
        SoftmaxJob j = job_of(call, stem##_row);                                            \
        run_rows(&j, lo, hi);                                                               \
    }                                                                                       \
    static const Kernel stem##_kernels[] = {                                                \
        {.name = "rows", .accepts = accepts, .run = run_##stem, .strided_out = true}, {0}}; \
    static const RowKernel stem##_rows = {                                                  \
        .in = operands, .out = "r", .lead = lead_of, .run = rows_##stem}
KERNEL_OF(softmax, "r");
KERNEL_OF(log_softmax, "r");
KERNEL_OF(softmax_backward, "rr");
KERNEL_OF(log_softmax_backward, "rr");

/* ---- the ops ---- */

const OpRules op__softmax = {
    .math = "y = exp(x - max x) / sum exp(x - max x) along axis `dim`",
    .example = "f32[4, 6] dim=1",
    .attrs = attrs,
    .infer = infer,
    .diff = softmax_diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &softmax_rows,
    .kernels = softmax_kernels,
    .ref = ref_softmax,
    .alias = "aten._softmax.default aten.softmax.int",
};

const OpRules op__softmax_backward_data = {
    .math = "dx = y (dy - sum dy y) along axis `dim`, y = softmax x",
    .example = "f32[4, 6] f32[4, 6] dim=1",
    .attrs = attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .inplace = {3},
    .rows = &softmax_backward_rows,
    .kernels = softmax_backward_kernels,
    .ref = ref_softmax_backward,
    .alias = "aten._softmax_backward_data.default",
};

const OpRules op__log_softmax = {
    .math = "y = x - max x - log sum exp(x - max x) along axis `dim`",
    .example = "f32[4, 6] dim=1",
    .attrs = attrs,
    .infer = infer,
    .diff = log_softmax_diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &log_softmax_rows,
    .kernels = log_softmax_kernels,
    .ref = ref_log_softmax,
    .alias = "aten._log_softmax.default aten.log_softmax.int",
};

const OpRules op__log_softmax_backward_data = {
    .math = "dx = dy - exp(y) sum dy along axis `dim`, y = log softmax x",
    .example = "f32[4, 6] f32[4, 6] dim=1",
    .attrs = attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .inplace = {3},
    .rows = &log_softmax_backward_rows,
    .kernels = log_softmax_backward_kernels,
    .ref = ref_log_softmax_backward,
    .alias = "aten._log_softmax_backward_data.default",
};
