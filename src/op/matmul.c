/* mm, bmm, addmm: y = a b, for each index of the batch axis where there is one; addmm adds a bias
 * that broadcasts to y. a[m, k], b[k, n], y[m, n]; a and b of one dtype. Where that has 16 bits, y
 * (by out_dtype, as in ATen) and the bias may be f32. A bias of y's type may be overwritten by y:
 * so a loop adds products up.
 *
 * Numerics: sums in f32 (f32, bf16, f16), the bias added, rounded once. ref sums over k in
 * ascending order in double. Kernels: matmul_onednn.c.
 *
 * The gradient of an operand that is itself a transposed value is formed transposed, so that the
 * gradient of what was transposed (a weight stored [out, in]) comes out in its own layout. */
#include "matmul.h"

static const AttrField attrs[] = {{"out_dtype", ATTR_DTYPE, .i = NDTYPE}, {0}};

/* ---- inference ---- */

/* Operands first and first + 1 as matrices of the given rank; fills y. */
static void infer_product(const Graph *g, const Node *n, int first, int rank, Type *y)
{
    const Type *a = &n->in[first]->type, *b = &n->in[first + 1]->type;
    need_float(g, n, first);
    need_dtype(g, n, first + 1, a->dtype);
    need_rank(g, n, first, rank, rank);
    need_rank(g, n, first + 1, rank, rank);
    if (rank == 3 && a->dim[0] != b->dim[0])
        fail_node(g, n, "operand %d: expected a batch axis of %lld as in %s, found %s", first + 1,
                  (long long)a->dim[0], type_text(g->a, a), type_text(g->a, b));
    if (a->dim[rank - 1] != b->dim[rank - 2])
        fail_node(g, n, "operand %d: expected %lld rows to multiply with %s, found %s", first + 1,
                  (long long)a->dim[rank - 1], type_text(g->a, a), type_text(g->a, b));
    *y = *a;
    y->dtype = need_out_dtype(g, n, "out_dtype", a->dtype);
    y->dim[rank - 1] = b->dim[rank - 1];
}

static int infer_mm(const Graph *g, const Node *n, Type *out)
{
    infer_product(g, n, 0, 2, out);
    return 1;
}

static int infer_bmm(const Graph *g, const Node *n, Type *out)
{
    infer_product(g, n, 0, 3, out);
    return 1;
}

static int infer_addmm(const Graph *g, const Node *n, Type *out)
{
    infer_product(g, n, 1, 2, out);
    const Type *bias = &n->in[0]->type;
    if (!widens(n->in[1]->type.dtype, bias->dtype))
        need_dtype(g, n, 0, n->in[1]->type.dtype);
    need_rank(g, n, 0, 0, 2);
    for (int d = 1; d <= bias->rank; d++) {
        int64_t size = bias->dim[bias->rank - d];
        if (size != 1 && size != out->dim[2 - d])
            fail_node(g, n, "operand 0: expected a shape that broadcasts to %s, found %s",
                      type_text(g->a, out), type_text(g->a, bias));
    }
    return 1;
}

/* ---- gradient ---- */

/* Whether v is made by swapping the last two axes. */
static bool transposed(const Value *v)
{
    const Node *n = v->def;
    if (node_is(n, OP_t))
        return v->type.rank == 2;
    if (!node_is(n, OP_transpose))
        return false;
    int rank = v->type.rank;
    int64_t x = n->attr[attr_index(n->op, "dim0")].i, y = n->attr[attr_index(n->op, "dim1")].i;
    x += x < 0 ? rank : 0;
    y += y < 0 ? rank : 0;
    return x != y && MIN(x, y) == rank - 2;
}

/* v with its last two axes swapped: where v is made so, what it was made from. */
static Value *swap(Build *b, Value *v)
{
    if (transposed(v))
        return v->def->in[0];
    if (v->type.rank == 2)
        return emit1(b, "t", IN(v), NOATTRS);
    return emit1(b, "transpose", IN(v), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
}

static Value *multiply(Build *b, Value *x, Value *y)
{
    return emit1(b, x->type.rank == 2 ? "mm" : "bmm", IN(x, y), NOATTRS);
}

static void diff(Grad *d)
{
    int first = d->n->nin - 2;
    Build *g = d->b;
    Value *a = d->n->in[first], *b = d->n->in[first + 1], *dy = d->dy[0];
    if (first && d->need[0])
        d->dx[0] = emit_cast(g, grad_reduce(g, dy, &d->n->in[0]->type), d->n->in[0]->type.dtype);
    dy = emit_cast(g, dy, a->type.dtype);
    if (d->need[first])
        d->dx[first] =
            transposed(a) ? swap(g, multiply(g, b, swap(g, dy))) : multiply(g, dy, swap(g, b));
    if (d->need[first + 1])
        d->dx[first + 1] =
            transposed(b) ? swap(g, multiply(g, swap(g, dy), a)) : multiply(g, swap(g, a), dy);
}

/* ---- cost ---- */

static Cost cost(const Node *n)
{
    const Type *a = &n->in[n->nin - 2]->type, *y = &n->out[0]->type;
    double nelem = (double)type_nelem(y);
    Cost c = {.nflop = 2 * nelem * (double)a->dim[a->rank - 1] + (n->nin == 3 ? nelem : 0),
              .nwrite = (double)type_nbytes(y)};
    for (int i = 0; i < n->nin; i++)
        c.nread += (double)type_nbytes(&n->in[i]->type);
    return c;
}

/* ---- factors ---- */

static int axis_factor(Factors *f, FactorKind kind, Axes *x, const Type *t, int axis)
{
    if (t->dim[axis] == 1)
        return NO_FACTOR;
    int k = factor_new(f, kind, t->dim[axis]);
    axis_add(x, axis, k);
    return k;
}

static void axis_share(Axes *x, int axis, int factor)
{
    if (factor != NO_FACTOR)
        axis_add(x, axis, factor);
}

/* Parts of addmm along the sum are products, of which finish() adds the bias to the sum. */
static void factors(const Node *n, Factors *f)
{
    int first = n->nin - 2, rank = n->out[0]->type.rank;
    const Type *a = &n->in[first]->type, *b = &n->in[first + 1]->type, *bias = &n->in[0]->type;
    Axes *fa = &f->in[first], *fb = &f->in[first + 1], *fy = &f->out[0];
    if (rank == 3) {
        int batch = axis_factor(f, FACTOR_PARALLEL, fa, a, 0);
        axis_share(fb, 0, batch);
        axis_share(fy, 0, batch);
    }
    int rows = axis_factor(f, FACTOR_PARALLEL, fa, a, rank - 2);
    axis_share(fy, rank - 2, rows);
    int cols = axis_factor(f, FACTOR_PARALLEL, fb, b, rank - 1);
    axis_share(fy, rank - 1, cols);
    int sum = axis_factor(f, FACTOR_SUM, fa, a, rank - 1);
    axis_share(fb, rank - 2, sum);
    if (!first)
        return;
    if (sum != NO_FACTOR)
        factor_partials(f, sum, 1, FACTOR_SUM, FACTOR_SUM);
    if (bias->rank == 2 && bias->dim[0] != 1)
        axis_share(&f->in[0], 0, rows);
    if (bias->rank >= 1 && bias->dim[bias->rank - 1] != 1)
        axis_share(&f->in[0], bias->rank - 1, cols);
}

static void addmm_part(Part *p)
{
    DType d = p->n->in[1]->type.dtype;
    if (p->partials)
        p->out[0] = emit1(p->b, "mm", IN(p->in[1], p->in[2]),
                          ATTRS(A_DTYPE("out_dtype", dtype_size(d) == 2 ? F32 : d)));
    else
        part_same(p, NULL);
}

/* Rounded once, as in the whole. */
static void addmm_finish(Part *p, Value *const *merged)
{
    Value *bias = emit_cast(p->b, p->in[0], merged[0]->type.dtype);
    Value *y = emit1(p->b, "add", IN(merged[0], bias), NOATTRS);
    p->out[0] = emit_cast(p->b, y, p->n->out[0]->type.dtype);
}

/* ---- ref: tiles of y, so that each element of a and b is converted once per tile ---- */

enum { TILE = 32, DEPTH = 64 };

typedef struct MatmulRef {
    Matrix a, b, y, bias;
    bool has_bias;
} MatmulRef;

/* to[i][j] = x[batch, row + i, col + j] as double, zero outside of the matrix. */
static void load(double *to, int height, int width, const Matrix *x, int64_t batch, int64_t row,
                 int64_t col)
{
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++)
            to[i * width + j] =
                row + i < x->rows && col + j < x->cols
                    ? tensor_get(x->t, batch * x->stride[0] + (row + i) * x->stride[1] +
                                           (col + j) * x->stride[2])
                    : 0;
}

KERNEL(void, multiply_tile,
       (double *restrict y, const double *restrict a, const double *restrict b), (y, a, b))
{
    for (int i = 0; i < TILE; i++)
        for (int k = 0; k < DEPTH; k++)
            for (int j = 0; j < TILE; j++)
                y[i * TILE + j] += a[i * DEPTH + k] * b[k * TILE + j];
}

static void ref_tile(const MatmulRef *r, int64_t batch, int64_t row, int64_t col)
{
    double y[TILE * TILE] = {0}, a[TILE * DEPTH], b[DEPTH * TILE];
    for (int64_t k = 0; k < r->a.cols; k += DEPTH) {
        load(a, TILE, DEPTH, &r->a, batch, row, k);
        load(b, DEPTH, TILE, &r->b, batch, k, col);
        multiply_tile(y, a, b);
    }
    if (r->has_bias) {
        load(a, TILE, TILE, &r->bias, 0, row, col);
        for (int i = 0; i < TILE * TILE; i++)
            y[i] += a[i];
    }
    for (int i = 0; i < TILE && row + i < r->y.rows; i++)
        for (int j = 0; j < TILE && col + j < r->y.cols; j++)
            tensor_set(r->y.t,
                       batch * r->y.stride[0] + (row + i) * r->y.stride[1] +
                           (col + j) * r->y.stride[2],
                       y[i * TILE + j]);
}

static void ref_tiles(void *arg, int64_t lo, int64_t hi)
{
    const MatmulRef *r = arg;
    int64_t across = (r->y.cols + TILE - 1) / TILE, down = (r->y.rows + TILE - 1) / TILE;
    for (int64_t i = lo; i < hi; i++)
        ref_tile(r, i / across / down, i / across % down * TILE, i % across * TILE);
}

static int ref(Call *c)
{
    int first = c->nin - 2;
    MatmulRef r = {.a = matrix(&c->in[first]),
                   .b = matrix(&c->in[first + 1]),
                   .y = matrix(&c->out[0]),
                   .has_bias = first};
    if (first)
        r.bias = bias_matrix(&c->in[0], &r.y);
    int64_t across = (r.y.cols + TILE - 1) / TILE, down = (r.y.rows + TILE - 1) / TILE;
    par_for(r.y.batch * across * down, 1, ref_tiles, &r);
    return 0;
}

/* ---- the ops ---- */

const OpRules op_mm = {
    .math = "y[i, j] = sum_k a[i, k] b[k, j]",
    .example = "f32[4, 6] f32[6, 5]",
    .attrs = attrs,
    .infer = infer_mm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = matmul_kernels,
    .ref = ref,
    .alias = "aten.mm.default aten.mm.dtype",
};

const OpRules op_bmm = {
    .math = "y[b, i, j] = sum_k a[b, i, k] b[b, k, j]",
    .example = "f32[2, 4, 6] f32[2, 6, 5]",
    .attrs = attrs,
    .infer = infer_bmm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = matmul_batch_kernels,
    .ref = ref,
    .alias = "aten.bmm.default aten.bmm.dtype",
};

const OpRules op_addmm = {
    .math = "y[i, j] = bias[i, j] + sum_k a[i, k] b[k, j]",
    .example = "f32[5] f32[4, 6] f32[6, 5]",
    .attrs = attrs,
    .infer = infer_addmm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = addmm_part,
    .finish = addmm_finish,
    .inplace = {1},
    .kernels = matmul_kernels,
    .ref = ref,
    .alias = "aten.addmm.default aten.addmm.dtype",
};
