/* sum_squares: the squares of a tensor, added so that axis 0 may be cut anywhere: the array of the
 * whole is that of the parts added, bit for bit, in any order; norm_of: the Euclidean norm from
 * such arrays; clip_scale: the factor that brings a norm down to max_norm, min(1, max_norm / (norm
 * + 1e-6)), as PyTorch's clip_grad_norm_ has it.
 *
 * Arrays of parts are added along every axis. Along other axes than 0 a row's sum is rounded once
 * for each part (in double, relative 2^-53), so that the total differs from the whole's in its last
 * bits, but still does not depend on the order in which parts are added.
 *
 * A row is what one index of axis 0 has (of a tensor without axes the element). Its squares are
 * added in double, so that no f32 square overflows, RUN elements at a time: element j of a run goes
 * to lane j % NLANE, lanes are joined by halves. A run's sum is a number of its own that no other
 * row, layout or thread changes; its bits are split among limbs of LIMB bits,
 *
 *   sum over k < NLIMB of limb[k] * 2^(LOWEST + k * LIMB),
 *
 * and a limb only ever grows by less than 2^LIMB: no carries, so that adding arrays is adding i64,
 * for up to 2^36 runs in all, and an array may be the sum of those of several tensors. What a sum
 * has below 2^LOWEST is cut off: nothing, where elements are f32, bf16 or f16, whose least square
 * it is. From 2^HIGHEST on (f64 above 2^147 only) it counts as infinite. Infinite sums and NaN are
 * counted in two limbs of their own.
 *
 * An operand of norm_of is such an array or a tensor whose squares it adds itself: its fold takes
 * the tensor instead of the array, which then is nowhere in memory. What is to be cut is cut
 * before.
 *
 * norm_of propagates the carries, takes the root of the top 128 bits as an integer and rounds once:
 * the result is the nearest one to the root of the rows' total. A NaN gives NaN, else an infinite
 * row infinity.
 *
 * (Demmel, Nguyen: Fast Reproducible Floating-Point Summation, ARITH 2013, has the problem; the
 * accumulator is Kulisch's.) */
#include "rows.h"

#include <math.h>

enum {
    LIMB = 27,
    NLIMB = 22,
    NINFINITE = NLIMB,
    NNAN,
    LENGTH,
    LOWEST = -298,
    HIGHEST = LOWEST + NLIMB * LIMB,
    RUN = 65536,
    NLANE = 16
};

#define MASK ((UINT64_C(1) << LIMB) - 1)

/* ---- sum_squares ---- */

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    out[0] = type_make(I64, 1, (const int64_t[]){LENGTH});
    return 1;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 2 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    for (int d = 0; d < x->rank; d++)
        axis_add(&f->in[0], d, factor_new(f, FACTOR_SUM, x->dim[d]));
    axis_add(&f->out[0], 0, factor_new(f, FACTOR_REPLICATE, LENGTH));
}

/* Adds x, the sum of a run, which is no less than 0. */
static void add_run(uint64_t *sum, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff), low = MAX(exponent, 1) - 1075 - LOWEST;
    if (exponent >= 1023 + HIGHEST) {
        sum[isnan(x) ? NNAN : NINFINITE]++;
        return;
    }
    uint64_t m = (bits & ((UINT64_C(1) << 52) - 1)) | (uint64_t)(exponent > 0) << 52;
    if (low < 0) {
        m = low > -64 ? m >> -low : 0;
        low = 0;
    }
    uint64_t *limb = sum + low / LIMB;
    int shift = low % LIMB;
    limb[0] += m << shift & MASK;
    m >>= LIMB - shift;
    limb[1] += m & MASK;
    limb[2] += m >> LIMB; /* 0 where that is no limb */
}

static int64_t count_rows(const Tensor *x)
{
    return x->rank ? x->dim[0] : 1;
}

/* Adds the squares of x in plain loops. */
static void add_plain(uint64_t *sum, const Tensor *x)
{
    int64_t nrow = count_rows(x), n = nrow ? tensor_nelem(x) / nrow : 0;
    for (int64_t row = 0; row < nrow; row++)
        for (int64_t from = 0; from < n; from += RUN) {
            double lane[NLANE] = {0};
            for (int64_t j = from; j < MIN(from + RUN, n); j++)
                lane[j % NLANE] += pow(get_at(x, row * n + j), 2);
            for (int half = NLANE / 2; half; half /= 2)
                for (int l = 0; l < half; l++)
                    lane[l] += lane[l + half];
            add_run(sum, lane[0]);
        }
}

static int ref(Call *c)
{
    const Tensor *y = &c->out[0];
    uint64_t sum[LENGTH] = {0};
    add_plain(sum, &c->in[0]);
    for (int k = 0; k < LENGTH; k++)
        memcpy(y->data + y->stride[0] * k * 8, &sum[k], 8);
    return 0;
}

enum { PANEL = 128, AHEAD = 4 }; /* rows; elements of a row */

/* All tasks of a call read this. A task is one run of a panel of rows. */
typedef struct SquaresJob {
    const Tensor *x;
    uint64_t *sum;
    Rows row; /* the axes of a row */
    int64_t nrow, n, step, panel, nrun;
    bool contiguous;
} SquaresJob;

/* The same for sums of several runs, which it changes: limb by limb from that of the greatest,
 * until nothing is left of any. */
KERNEL(void, add_runs, (uint64_t * sum, double *x, int64_t count), (sum, x, count))
{
    typedef uint64_t Bits __attribute__((may_alias));
    Bits *bits = (Bits *)x, most = 0, left = 1;
    const double highest = ldexp(1, HIGHEST);
    for (int64_t i = 0; i < count; i++)
        if (!(x[i] < highest)) {
            sum[isnan(x[i]) ? NNAN : NINFINITE]++;
            x[i] = 0;
        }
    for (int64_t i = 0; i < count; i++)
        most = MAX(most, bits[i]);
    int low = (int)(most >> 52) - 1023 - LOWEST, k = low / LIMB;
    if (low < 0)
        return;
    double unit = ldexp(1, -LOWEST - k * LIMB);
    for (int64_t i = 0; i < count; i++)
        x[i] *= unit;
    for (; left && k >= 0; k--) {
        int64_t limb = 0;
        left = 0;
        for (int64_t i = 0; i < count; i++) {
            int digit = (int)x[i];
            limb += digit;
            x[i] = (x[i] - digit) * (double)(MASK + 1);
            left |= bits[i];
        }
        sum[k] += (uint64_t)limb;
    }
}

INLINE void add_squares(double *s, const float *x, int64_t step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        s[i] += (double)x[i * step] * (double)x[i * step];
}

/* Runs of n elements each, which lie together, `step` apart. */
KERNEL(void, sum_runs, (const float *x, int64_t step, int64_t count, int64_t n, double *y),
       (x, step, count, n, y))
{
    for (int64_t row = 0; row < count; row++) {
        const float *from = x + row * step;
        double s[NLANE] = {0};
        int64_t i = 0;
        for (; i + NLANE <= n; i += NLANE)
            add_squares(s, from + i, 1, NLANE);
        add_squares(s, from + i, 1, n - i);
        for (int half = NLANE / 2; half; half /= 2)
            for (int l = 0; l < half; l++)
                s[l] += s[l + half];
        y[row] = s[0];
    }
}

/* Elements [from, to) of rows of any strides, each of all rows before the next: they may lie
 * together. */
KERNEL(void, sum_panel,
       (const float *x, int64_t step, int64_t count, const Rows *r, int64_t from, int64_t to,
        double *y),
       (x, step, count, r, from, to, y))
{
    double s[NLANE][PANEL];
    int nlane = (int)MIN(NLANE, to - from);
    memset(s, 0, sizeof *s * (size_t)nlane);
    for (int64_t j = from; j < to; j++) {
        const float *at = x + row_offset(r, j);
        double *lane = s[j % NLANE];
        if (step == 1 && count == PANEL) {
            fetch_ahead(at + AHEAD * r->stride[0], 0, PANEL, sizeof *at);
            add_squares(lane, at, 1, PANEL);
        } else
            add_squares(lane, at, step, count);
    }
    for (int half = NLANE / 2; half; half /= 2)
        for (int l = 0; l < half && l + half < nlane; l++)
            for (int64_t i = 0; i < count; i++)
                s[l][i] += s[l + half][i];
    memcpy(y, s[0], sizeof *y * (size_t)count);
}

static void run_tasks(void *arg, int64_t lo, int64_t hi)
{
    const SquaresJob *p = arg;
    uint64_t sum[LENGTH] = {0};
    double y[PANEL];
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = i / p->nrun * p->panel, count = MIN(p->panel, p->nrow - row);
        int64_t from = i % p->nrun * RUN, to = MIN(from + RUN, p->n);
        const float *x = f32(p->x) + row * p->step;
        if (p->contiguous)
            sum_runs(x + from, p->step, count, to - from, y);
        else
            sum_panel(x, p->step, count, &p->row, from, to, y);
        add_runs(sum, y, count);
    }
    for (int k = 0; k < LENGTH; k++)
        __atomic_fetch_add(&p->sum[k], sum[k], __ATOMIC_RELAXED);
}

/* Adds the squares of x, which is f32. */
static void add_f32(uint64_t *sum, const Tensor *x)
{
    SquaresJob p = {.x = x, .sum = sum, .nrow = count_rows(x)};
    Tensor row = *x;
    if (x->rank) {
        row.dim[0] = 1;
        p.step = x->stride[0];
    }
    p.row = rows_of(&row, x->rank);
    p.n = tensor_nelem(&row);
    p.nrun = (p.n + RUN - 1) / RUN;
    p.contiguous = p.n >= NLANE && rows_contiguous(x, 1);
    p.panel = p.contiguous ? MIN(PANEL, row_grain(p.n)) : PANEL;
    int64_t npanel = (p.nrow + p.panel - 1) / p.panel;
    par_for(npanel * p.nrun, row_grain(p.panel * MIN(p.n, RUN)), run_tasks, &p);
}

static bool accepts(const Call *c)
{
    return c->in[0].dtype == F32;
}

static int run(Call *c)
{
    uint64_t *sum = (uint64_t *)(void *)c->out[0].data;
    memset(sum, 0, LENGTH * sizeof *sum);
    add_f32(sum, &c->in[0]);
    return 0;
}

static const Kernel kernels[] = {{.name = "sum_squares_f32", .accepts = accepts, .run = run}, {0}};

const OpRules op_sum_squares = {
    .math = "limbs of the sum of x^2 as a fixed-point number, each row of axis 0 added in double",
    .example = "f32[4, 6]",
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
};

/* ---- norm_of ---- */

enum { DTYPE };

static const AttrField norm_attrs[] = {{"dtype", ATTR_DTYPE, .i = F32}, {0}};

static int norm_infer(const Graph *g, const Node *n, Type *out)
{
    Type sum = type_make(I64, 1, (const int64_t[]){LENGTH});
    DType d = (DType)n->attr[DTYPE].i;
    for (int i = 0; i < n->nin; i++)
        if (!dtype_float(n->in[i]->type.dtype))
            need_type(g, n, i, &sum);
    if (d != F32 && d != F64)
        fail_node(g, n, "dtype: expected f32 or f64, found %s", dtype_name(d));
    out[0] = type_make(d, 0, NULL);
    return 1;
}

static Cost norm_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    for (int i = 0; i < n->nin; i++)
        c.nflop += 2 * (double)type_nelem(&n->in[i]->type);
    return c;
}

/* norm_of(sum_squares(x)) -> norm_of(x), of each operand. */
static Value *norm_fold(Build *b, Node *n)
{
    Value **in = NEWN(b->g->a, Value *, n->nin);
    int changed = 0;
    for (int i = 0; i < n->nin; i++) {
        const Node *def = n->in[i]->def;
        bool sum = node_is(def, OP_sum_squares);
        in[i] = sum ? def->in[0] : n->in[i];
        changed += sum;
    }
    return changed
               ? emit1(b, "norm_of", n->nin, in, ATTRS(A_DTYPE("dtype", (DType)n->attr[DTYPE].i)))
               : NULL;
}

enum { NDIGIT = NLIMB + 4 }; /* an even number of bits, and room for all carries */

/* Adds limbs to digits of LIMB bits. */
static void add_digits(uint64_t *digit, const uint64_t *limb)
{
    uint64_t carry = 0;
    for (int k = 0; k < NDIGIT; k++) {
        uint64_t x = k < NLIMB ? limb[k] : 0;
        uint64_t sum = digit[k] + (x & MASK) + carry;
        digit[k] = sum & MASK;
        carry = (sum >> LIMB) + (x >> LIMB);
    }
}

/* Bits 2i and 2i + 1. */
static uint64_t bit_pair(const uint64_t *digit, int i)
{
    uint64_t x = 0;
    for (int at = 2 * i + 1; at >= MAX(2 * i, 0); at--)
        x = x << 1 | (digit[at / LIMB] >> at % LIMB & 1);
    return x;
}

/* The root of the digits' number in units of 2^LOWEST, bit by bit: as many bits as rounding to d
 * by the caller needs, the last one set where any below is (round to odd). */
static double root_of(const uint64_t *digit, DType d)
{
    int i = NDIGIT * LIMB / 2 - 1, nbit = d == F64 ? 55 : 52;
    uint64_t root = 0, rest = 0, any = 0;
    for (int k = 0; k < NDIGIT; k++)
        any |= digit[k];
    if (!any)
        return 0;
    for (; !(root >> nbit); i--) {
        uint64_t one = root << 2 | 1;
        rest = rest << 2 | bit_pair(digit, i);
        root = root << 1 | (rest >= one);
        rest -= rest >= one ? one : 0;
    }
    for (int k = i; k >= 0; k--)
        rest |= bit_pair(digit, k);
    return ldexp((double)(root | (rest > 0)), i + 1 + LOWEST / 2);
}

static int norm_by(Call *c, void (*add)(uint64_t *sum, const Tensor *x))
{
    uint64_t digit[NDIGIT] = {0}, ninfinite = 0, nnan = 0;
    for (int i = 0; i < c->nin; i++) {
        const Tensor *x = &c->in[i];
        uint64_t sum[LENGTH] = {0};
        if (x->dtype == I64)
            for (int k = 0; k < LENGTH; k++)
                memcpy(&sum[k], x->data + x->stride[0] * k * 8, 8);
        else
            add(sum, x);
        add_digits(digit, sum);
        ninfinite |= sum[NINFINITE];
        nnan |= sum[NNAN];
    }
    Tensor *y = &c->out[0];
    double norm = nnan ? (double)NAN : ninfinite ? (double)INFINITY : root_of(digit, y->dtype);
    if (y->dtype == F32)
        *f32(y) = (float)norm;
    else
        memcpy(y->data, &norm, sizeof norm);
    return 0;
}

static int norm_ref(Call *c)
{
    return norm_by(c, add_plain);
}

static int norm_run(Call *c)
{
    return norm_by(c, add_f32);
}

static bool norm_accepts(const Call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (c->in[i].dtype != F32 && c->in[i].dtype != I64)
            return false;
    return true;
}

static const Kernel norm_kernels[] = {{.name = "norm_of", .accepts = norm_accepts, .run = norm_run},
                                      {0}};

const OpRules op_norm_of = {
    .math = "the square root of the total of all operands' squares, of i64[24] their sum_squares",
    .example = "f32[4, 6] i64[24]",
    .attrs = norm_attrs,
    .infer = norm_infer,
    .cost = norm_cost,
    .fold = norm_fold,
    .kernels = norm_kernels,
    .ref = norm_ref,
};

/* ---- clip_scale ---- */

enum { MAX_NORM };

static const AttrField scale_attrs[] = {{"max_norm", ATTR_FLOAT, .required = true}, {0}};

static int scale_infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    need_rank(g, n, 0, 0, 0);
    if (!(n->attr[MAX_NORM].f > 0))
        fail_node(g, n, "max_norm: expected more than 0, found %g", n->attr[MAX_NORM].f);
    out[0] = n->in[0]->type;
    return 1;
}

static Cost scale_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 3;
    return c;
}

static int scale_ref(Call *c)
{
    double scale = c->node->attr[MAX_NORM].f / (tensor_get(&c->in[0], 0) + 1e-6);
    tensor_set(&c->out[0], 0, scale >= 1 ? 1 : scale); /* NaN stays NaN */
    return 0;
}

static int scale_run(Call *c)
{
    float most = (float)c->node->attr[MAX_NORM].f, norm = *f32(&c->in[0]) + 1e-6f;
    *f32(&c->out[0]) = norm <= most ? 1.0f : most / norm;
    return 0;
}

static const Kernel scale_kernels[] = {
    {.name = "clip_scale_f32", .accepts = accepts_f32_contiguous, .run = scale_run}, {0}};

const OpRules op_clip_scale = {
    .math = "min(1, max_norm / (norm + 1e-6))",
    .example = "f32[] max_norm=1.0",
    .attrs = scale_attrs,
    .infer = scale_infer,
    .cost = scale_cost,
    .kernels = scale_kernels,
    .ref = scale_ref,
};
