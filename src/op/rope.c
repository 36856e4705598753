/* Rotary position embedding in the rotate-half form (Su et al. 2021, arXiv:2104.09864).
 *
 * rope_table gives cos and sin of (offset + t) theta^(-2i/dim) for t < length, i < dim/2, computed
 * in double. rope turns each pair (x[i], x[i + D/2]) of x [B, T, H, D] by the angle of its
 * position t:
 *
 *   y[i] = x[i] cos[t, i] - x[i + D/2] sin[t, i]
 *   y[i + D/2] = x[i + D/2] cos[t, i] + x[i] sin[t, i]
 *
 * inverse turns it back, and that is the gradient. Tables of f32 serve x of 16 bits too: computed
 * in f32, rounded once. The tables are graph values, so that all layers
 * share them, and a part of the time axis asks for its own by offset. */
#include "rows.h"

enum { LENGTH, DIM, THETA, DTYPE };

static const AttrField table_attrs[] = {
    {"length", ATTR_INT, .required = true},
    {"dim", ATTR_INT, .required = true},
    {"theta", ATTR_FLOAT, .f = 10000.0},
    {"dtype", ATTR_DTYPE, .i = F32},
    {0},
};

enum { INVERSE };

static const AttrField attrs[] = {{"inverse", ATTR_BOOL, .i = false}, {0}};

static int table_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *a = n->attr;
    Type scalar = type_make(I64, 0, NULL);
    if (n->nin)
        need_type(g, n, 0, &scalar);
    if (a[LENGTH].i < 0)
        fail_node(g, n, "length: expected at least 0, found %lld", (long long)a[LENGTH].i);
    if (a[DIM].i < 2 || a[DIM].i % 2)
        fail_node(g, n, "dim: expected an even number, at least 2, found %lld",
                  (long long)a[DIM].i);
    if (!(a[THETA].f > 0))
        fail_node(g, n, "theta: expected more than 0, found %g", a[THETA].f);
    if (!dtype_float((DType)a[DTYPE].i))
        fail_node(g, n, "dtype: expected a floating-point dtype, found %s",
                  dtype_name((DType)a[DTYPE].i));
    out[0] = type_make((DType)a[DTYPE].i, 2, (int64_t[]){a[LENGTH].i, a[DIM].i / 2});
    out[1] = out[0];
    return 2;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_float(g, n, 0);
    need_rank(g, n, 0, 4, 4);
    if (x->dim[3] % 2)
        fail_node(g, n, "operand 0: expected an even last axis, found %s", type_text(g->a, x));
    DType d = n->in[1]->type.dtype;
    Type table =
        type_make(widens(x->dtype, d) ? d : x->dtype, 2, (int64_t[]){x->dim[1], x->dim[3] / 2});
    need_type(g, n, 1, &table);
    need_type(g, n, 2, &table);
    out[0] = *x;
    return 1;
}

/* Half k of v's last axis. */
static Value *half(Build *b, Value *v, int k)
{
    int64_t n = v->type.dim[3] / 2;
    return emit1(b, "slice", IN(v),
                 ATTRS(A_INT("dim", 3), A_INT("start", k * n), A_INT("end", (k + 1) * n)));
}

/* The sum over B and H of p q + r s ("add") or p q - r s ("sub"). */
static Value *table_diff(Build *b, const char *op, Value *p, Value *q, Value *r, Value *s)
{
    Value *pq = emit1(b, "mul", IN(p, q), NOATTRS), *rs = emit1(b, "mul", IN(r, s), NOATTRS);
    int64_t axes[] = {0, 2};
    return emit1(b, "sum", IN(emit1(b, op, IN(pq, rs), NOATTRS)), ATTRS(A_INTS("dim", 2, axes)));
}

static void diff(Grad *d)
{
    Value **in = d->n->in, *dy = d->dy[0];
    bool inverse = d->n->attr[INVERSE].i;
    if (!dy)
        return;
    if (d->need[0])
        d->dx[0] = emit1(d->b, "rope", IN(dy, in[1], in[2]), ATTRS(A_BOOL("inverse", !inverse)));
    if (!d->need[1] && !d->need[2])
        return;
    Value *x0 = half(d->b, in[0], 0), *x1 = half(d->b, in[0], 1);
    Value *y0 = half(d->b, dy, 0), *y1 = half(d->b, dy, 1);
    if (d->need[1])
        d->dx[1] = emit_cast(d->b, table_diff(d->b, "add", y0, x0, y1, x1), in[1]->type.dtype);
    if (d->need[2])
        d->dx[2] = emit_cast(d->b,
                             inverse ? table_diff(d->b, "sub", y0, x1, y1, x0)
                                     : table_diff(d->b, "sub", y1, x0, y0, x1),
                             in[2]->type.dtype);
}

/* A sine and cosine count as 40 operations. */
static Cost table_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 40 * (double)type_nelem(&n->out[0]->type);
    return c;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 3 * (double)type_nelem(&n->in[0]->type);
    return c;
}

/* A part of the positions needs to know where it begins. */
static void table_factors(const Node *n, Factors *f)
{
    const Type *t = &n->out[0]->type;
    for (int d = 0; d < 2; d++) {
        if (t->dim[d] == 1)
            continue;
        int k = factor_new(f, d == 0 ? FACTOR_PARALLEL : FACTOR_REPLICATE, t->dim[d]);
        f->factor[k].offset = d == 0 && n->nin ? 0 : NO_FACTOR;
        f->factor[k].placed = d == 0 && !n->nin;
        axis_add(&f->out[0], d, k);
        axis_add(&f->out[1], d, k);
    }
}

static void table_part(Part *p)
{
    Attr *attr = part_attr(p);
    attr[LENGTH].i = part_dims(p)[0];
    part_same(p, attr);
}

/* The last axis is [2][D/2]; the tables have the time axis and D/2. */
static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    int64_t dim[] = {x->dim[0], x->dim[1], x->dim[2], 2, x->dim[3] / 2};
    for (int d = 0; d < 5; d++) {
        if (dim[d] == 1)
            continue;
        int k = factor_new(f, d == 3 ? FACTOR_REPLICATE : FACTOR_PARALLEL, dim[d]);
        axis_add(&f->in[0], MIN(d, 3), k);
        axis_add(&f->out[0], MIN(d, 3), k);
        for (int i = 1; i < 3; i++)
            if (d == 1 || d == 4)
                axis_add(&f->in[i], d == 4, k);
    }
}

/* ---- reference ---- */

static double frequency(const Node *n, int64_t i)
{
    return pow(n->attr[THETA].f, -2 * (double)i / (double)n->attr[DIM].i);
}

static int64_t first_position(const Call *c)
{
    return c->nin ? *(const int64_t *)c->in[0].data : 0;
}

/* Positions are numbers that a double has. Returns 0, or a failed run. */
static int check_positions(Call *c)
{
    int64_t most = ((int64_t)1 << 53) - c->out[0].dim[0], first = first_position(c);
    if (first >= -((int64_t)1 << 53) && first <= most)
        return 0;
    return run_fail(c, "offset %lld: expected -2^53 to %lld", (long long)first, (long long)most);
}

static int table_ref(Call *c)
{
    if (check_positions(c))
        return -1;
    const Tensor *cosine = &c->out[0], *sine = &c->out[1];
    for (int64_t t = 0; t < cosine->dim[0]; t++)
        for (int64_t i = 0; i < cosine->dim[1]; i++) {
            double angle = (double)(first_position(c) + t) * frequency(c->node, i);
            tensor_set(cosine, tensor_index(cosine, (int64_t[]){t, i}), cos(angle));
            tensor_set(sine, tensor_index(sine, (int64_t[]){t, i}), sin(angle));
        }
    return 0;
}

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = x->dim[3] / 2, ix[4] = {0};
    double sign = c->node->attr[INVERSE].i ? -1 : 1;
    if (!tensor_nelem(x))
        return 0;
    do {
        int64_t at = tensor_index(x, ix), to = tensor_index(y, ix), row[] = {ix[1], 0};
        for (row[1] = 0; row[1] < n; row[1]++) {
            double p = tensor_get(x, at + row[1] * x->stride[3]);
            double q = tensor_get(x, at + (row[1] + n) * x->stride[3]);
            double u = tensor_get(&c->in[1], tensor_index(&c->in[1], row));
            double v = sign * tensor_get(&c->in[2], tensor_index(&c->in[2], row));
            tensor_set(y, to + row[1] * y->stride[3], p * u - q * v);
            tensor_set(y, to + (row[1] + n) * y->stride[3], q * u + p * v);
        }
    } while (next_index(3, x->dim, ix));
    return 0;
}

/* ---- kernels: f32 tables ---- */

static bool table_accepts(const Call *c)
{
    return c->out[0].dtype == F32;
}

/* The frequencies lie in the workspace. */
static int64_t table_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return c->out[0].dim[1] * (int64_t)sizeof(double);
}

static void table_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const double *freq = (const double *)c->work;
    int64_t n = c->out[0].dim[1];
    for (int64_t t = lo; t < hi; t++)
        for (int64_t i = 0; i < n; i++) {
            double angle = (double)(first_position(c) + t) * freq[i];
            (f32(&c->out[0]))[t * n + i] = (float)cos(angle);
            (f32(&c->out[1]))[t * n + i] = (float)sin(angle);
        }
}

static int table_run(Call *c)
{
    if (check_positions(c))
        return -1;
    int64_t n = c->out[0].dim[1];
    for (int64_t i = 0; i < n; i++)
        ((double *)c->work)[i] = frequency(c->node, i);
    par_for(c->out[0].dim[0], MAX(1, 512 / n), table_rows, c);
    return 0;
}

static const Kernel table_kernels[] = {{.name = "rope_table_f32",
                                        .accepts = table_accepts,
                                        .workspace = table_workspace,
                                        .run = table_run},
                                       {0}};

/* x and y with any strides but a contiguous last axis: slices of a fused projection are read and
 * made in place. */
static bool accepts(const Call *c)
{
    DType d = c->in[0].dtype;
    return (d == F32 || d == BF16) && c->in[1].dtype == F32 && rows_contiguous(&c->in[0], 3) &&
           rows_contiguous(&c->out[0], 3) && tensor_contiguous(&c->in[1]) &&
           tensor_contiguous(&c->in[2]);
}

/* One head of one position: x and y are of dtype d. */
INLINE void turn(const void *x, void *y, int64_t n, const float *c, const float *s, float sign,
                 DType d)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float a = v_load(x, i, d), b = v_load(x, i + n, d), v = sign * s[i];
        v_store(y, i, a * c[i] - b * v, d);
        v_store(y, i + n, b * c[i] + a * v, d);
    }
}

KERNEL(void, turn_f32,
       (const void *x, void *y, int64_t n, const float *c, const float *s, float sign),
       (x, y, n, c, s, sign))
{
    turn(x, y, n, c, s, sign, F32);
}

KERNEL(void, turn_bf16,
       (const void *x, void *y, int64_t n, const float *c, const float *s, float sign),
       (x, y, n, c, s, sign))
{
    turn(x, y, n, c, s, sign, BF16);
}

static void turn_positions(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Rows rows = rows_of(x, 2), to_rows = rows_of(y, 2);
    int64_t heads = x->dim[2], n = x->dim[3] / 2;
    float sign = c->node->attr[INVERSE].i ? -1.0f : 1.0f;
    for (int64_t i = lo; i < hi; i++) {
        int64_t t = i % x->dim[1], from = row_offset(&rows, i), to = row_offset(&to_rows, i);
        for (int64_t h = 0; h < heads; h++)
            (x->dtype == F32 ? turn_f32 : turn_bf16)(
                element(x, from + h * x->stride[2]), element(y, to + h * y->stride[2]), n,
                f32(&c->in[1]) + t * n, f32(&c->in[2]) + t * n, sign);
    }
}

static int run(Call *c)
{
    const int64_t *dim = c->in[0].dim;
    par_for(dim[0] * dim[1], row_grain(dim[2] * dim[3]), turn_positions, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "rope_rows", .accepts = accepts, .run = run, .strided_out = true}, {0}};

const OpRules op_rope_table = {
    .math = "cos and sin of (offset + t) theta^(-2i/dim), t < length, i < dim/2",
    .example = "i64[] length=8 dim=4",
    .attrs = table_attrs,
    .infer = table_infer,
    .cost = table_cost,
    .factors = table_factors,
    .part = table_part,
    .kernels = table_kernels,
    .ref = table_ref,
};

const OpRules op_rope = {
    .math = "y[i] = x[i] cos - x[i+D/2] sin, y[i+D/2] = x[i+D/2] cos + x[i] sin; inverse: -sin",
    .example = "f32[2, 8, 3, 4] f32[8, 2] f32[8, 2]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .kernels = kernels,
    .ref = ref,
};
