/* mm, bmm, addmm: y = a b, for each index of the batch axis where there is one; addmm adds a bias
 * that broadcasts to y. a[m, k], b[k, n], y[m, n]; one dtype.
 *
 * Method: oneDNN's matmul primitive, made once in prepare() for the call's shapes, strides and
 * thread count, with a scratchpad that is part of the plan; run() sets addresses and executes. It
 * takes every operand whose last two axes are a matrix or a transposed matrix with a leading
 * dimension, so t, transpose, slices and fused projections need no copy.
 *
 * Numerics: sums in f32 (f32, bf16), rounded once. The order of a sum depends on shapes, strides
 * and thread count alone. A [n] bias is added by the primitive after the whole sum: in f32 the same
 * bits as an add after the product. ref sums over k in ascending order in double.
 *
 * Beside the scratchpad oneDNN 2.6 keeps, measured: 1.5 MiB of code at first and up to 0.1 MiB for
 * each new shape and layout, shared by all products of that shape; 4 KiB for each product; and
 * where it falls back to its packed gemm (operands with a leading dimension beyond their extent,
 * processors without AVX-512) up to 12 MiB of buffers on 2 threads, 15 MiB on 8, while a product
 * runs.
 *
 * The gradient of an operand that is itself a transposed value is formed transposed, so that the
 * gradient of what was transposed (a weight stored [out, in]) comes out in its own layout. */
#include "op.h"

#include <oneapi/dnnl/dnnl.h>

/* ---- inference ---- */

/* Operands first and first + 1 as matrices of the given rank; fills y. */
static void infer_product(const Graph *g, const Node *n, int first, int rank, Type *y)
{
    const Type *a = &n->in[first]->type, *b = &n->in[first + 1]->type;
    for (int i = 0; i < n->nin; i++) {
        need_float(g, n, i);
        need_dtype(g, n, i, n->in[0]->type.dtype);
    }
    need_rank(g, n, first, rank, rank);
    need_rank(g, n, first + 1, rank, rank);
    if (rank == 3 && a->dim[0] != b->dim[0])
        fail_node(g, n, "operand %d: expected a batch axis of %lld as in %s, found %s", first + 1,
                  (long long)a->dim[0], type_text(g->a, a), type_text(g->a, b));
    if (a->dim[rank - 1] != b->dim[rank - 2])
        fail_node(g, n, "operand %d: expected %lld rows to multiply with %s, found %s", first + 1,
                  (long long)a->dim[rank - 1], type_text(g->a, a), type_text(g->a, b));
    *y = *a;
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
    if (node_is(n, "t"))
        return v->type.rank == 2;
    if (!node_is(n, "transpose"))
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
        d->dx[0] = grad_reduce(g, dy, &d->n->in[0]->type);
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

/* The long axis of addmm stays whole: each part would add the bias again. */
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
    int sum = axis_factor(f, first ? FACTOR_REPLICATE : FACTOR_SUM, fa, a, rank - 1);
    axis_share(fb, rank - 2, sum);
    if (!first)
        return;
    if (bias->rank == 2 && bias->dim[0] != 1)
        axis_share(&f->in[0], 0, rows);
    if (bias->rank >= 1 && bias->dim[bias->rank - 1] != 1)
        axis_share(&f->in[0], bias->rank - 1, cols);
}

/* ---- operands as matrices ---- */

/* y[b, i, j]: a batch of matrices with strides in elements. */
typedef struct Matrix {
    const Tensor *t;
    int64_t batch, rows, cols;
    int64_t stride[3];
} Matrix;

static Matrix matrix(const Tensor *t)
{
    int r = t->rank;
    Matrix x = {t,
                r == 3 ? t->dim[0] : 1,
                t->dim[r - 2],
                t->dim[r - 1],
                {r == 3 ? t->stride[0] : 0, t->stride[r - 2], t->stride[r - 1]}};
    return x;
}

/* The bias as a matrix of y's shape: stride 0 along the axes it broadcasts over. */
static Matrix bias_matrix(const Tensor *bias, const Matrix *y)
{
    Matrix x = {bias, 1, y->rows, y->cols, {0}};
    for (int d = 1; d <= bias->rank; d++)
        x.stride[3 - d] = bias->dim[bias->rank - d] == 1 ? 0 : bias->stride[bias->rank - d];
    return x;
}

/* ---- ref: tiles of y, so that each element of a and b is converted once per tile ---- */

enum { TILE = 32, DEPTH = 64 };

typedef struct Ref {
    Matrix a, b, y, bias;
    bool has_bias;
} Ref;

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

KERNEL static void multiply_tile(double *restrict y, const double *restrict a,
                                 const double *restrict b)
{
    for (int i = 0; i < TILE; i++)
        for (int k = 0; k < DEPTH; k++)
            for (int j = 0; j < TILE; j++)
                y[i * TILE + j] += a[i * DEPTH + k] * b[k * TILE + j];
}

static void ref_tile(const Ref *r, int64_t batch, int64_t row, int64_t col)
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
    const Ref *r = arg;
    int64_t across = (r->y.cols + TILE - 1) / TILE, down = (r->y.rows + TILE - 1) / TILE;
    for (int64_t i = lo; i < hi; i++)
        ref_tile(r, i / across / down, i / across % down * TILE, i % across * TILE);
}

static int ref(Call *c)
{
    int first = c->nin - 2;
    Ref r = {.a = matrix(&c->in[first]),
             .b = matrix(&c->in[first + 1]),
             .y = matrix(&c->out[0]),
             .has_bias = first};
    if (first)
        r.bias = bias_matrix(&c->in[0], &r.y);
    int64_t across = (r.y.cols + TILE - 1) / TILE, down = (r.y.rows + TILE - 1) / TILE;
    par_for(r.y.batch * across * down, 1, ref_tiles, &r);
    return 0;
}

/* ---- oneDNN ---- */

/* What prepare() makes. Each program has its own engine and stream: they hold no threads and no
 * cache, so nothing here is global. */
typedef struct Product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, y, scratch;
} Product;

static void drop(void *what)
{
    Product *p = what;
    dnnl_memory_t memory[] = {p->a, p->b, p->bias, p->y, p->scratch};
    for (int i = 0; i < LEN(memory); i++)
        if (memory[i])
            dnnl_memory_destroy(memory[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    if (p->desc)
        dnnl_primitive_desc_destroy(p->desc);
    if (p->attr)
        dnnl_primitive_attr_destroy(p->attr);
    if (p->stream)
        dnnl_stream_destroy(p->stream);
    if (p->engine)
        dnnl_engine_destroy(p->engine);
}

/* oneDNN's description of t: the strides of axes of size 1 are ours to choose, so that a column or
 * a row of something larger is a matrix too. False where t is no matrix with a leading dimension.
 */
static bool describe(const Tensor *t, dnnl_memory_desc_t *md)
{
    Matrix x = matrix(t);
    int64_t batch = x.stride[0], row = x.stride[1], col = x.stride[2];
    if (x.cols == 1)
        col = 1;
    if (x.rows == 1)
        row = col == 1 ? x.cols : 1;
    if (x.batch == 1 || batch == 0) {
        x.batch = 1; /* one matrix for all of the batch */
        batch = MAX(row * x.rows, col * x.cols);
    }
    if (batch < 1 || row < 1 || col < 1 || MIN(row, col) != 1)
        return false;
    dnnl_data_type_t dtype = t->dtype == F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_dims_t dim2 = {x.rows, x.cols}, stride2 = {row, col};
    dnnl_dims_t dim3 = {x.batch, x.rows, x.cols}, stride3 = {batch, row, col};
    return (t->rank == 2
                ? dnnl_memory_desc_init_by_strides(md, 2, dim2, dtype, stride2)
                : dnnl_memory_desc_init_by_strides(md, 3, dim3, dtype, stride3)) == dnnl_success;
}

/* A bias that is one row for all rows of y, which the primitive adds. */
static bool row_bias(const Tensor *bias, const Tensor *y)
{
    int64_t n = y->dim[1];
    int last = bias->rank - 1;
    return bias->rank && bias->dim[last] == n && tensor_nelem(bias) == n &&
           (n == 1 || bias->stride[last] == 1);
}

/* Whether oneDNN multiplies bf16 here in one pass. Operands with a leading dimension beyond their
 * extent take another way, which sums in an f32 matrix of y's size and runs at a fraction of the
 * rate: copying them is less memory and less time. */
static bool accepts_bf16(const Call *c)
{
    dnnl_cpu_isa_t core = dnnl_cpu_isa_avx512_core;
    int first = c->nin - 2;
    for (int i = first; i < c->nin; i++) {
        Matrix x = matrix(&c->in[i]);
        if (MAX(x.stride[1] * x.rows, x.stride[2] * x.cols) != x.rows * x.cols)
            return false;
        if (x.batch > 1 && x.stride[0] != 0 && x.stride[0] != x.rows * x.cols)
            return false;
    }
    /* any other bias is added after the product, and the sum would be rounded twice */
    return (dnnl_get_effective_cpu_isa() & core) == core &&
           (!first || row_bias(&c->in[0], &c->out[0]));
}

static bool accepts(const Call *c)
{
    int first = c->nin - 2;
    const Tensor *a = &c->in[first], *b = &c->in[first + 1], *y = &c->out[0];
    dnnl_memory_desc_t md;
    if (!tensor_nelem(a) || !tensor_nelem(b))
        return false;
    if (y->rank == 3 && y->dim[0] > 1 && !a->stride[0] && !b->stride[0])
        return false; /* oneDNN repeats one operand, not both */
    if (y->dtype != F32 && !(y->dtype == BF16 && accepts_bf16(c)))
        return false;
    return describe(a, &md) && describe(b, &md);
}

static void need(dnnl_status_t status, const Call *c, Arena *a, const char *what)
{
    if (status != dnnl_success)
        fail(arena_ctx(a), TN_FAIL, "%s %%%s: oneDNN cannot make its %s (status %d)",
             c->node->op->name, c->node->out[0]->name, what, (int)status);
}

/* The primitive's description: f32 sums whatever the environment says, scratchpad in the plan. */
static void prepare_desc(Product *p, const Call *c, Arena *a, const dnnl_memory_desc_t *md,
                         const dnnl_memory_desc_t *bias)
{
    dnnl_matmul_desc_t desc;
    need(dnnl_matmul_desc_init(&desc, &md[0], &md[1], bias, &md[2]), c, a, "description");
    need(dnnl_primitive_attr_create(&p->attr), c, a, "attributes");
    need(dnnl_primitive_attr_set_scratchpad_mode(p->attr, dnnl_scratchpad_mode_user), c, a,
         "scratchpad mode");
    need(dnnl_primitive_attr_set_fpmath_mode(p->attr, dnnl_fpmath_mode_strict), c, a,
         "precision mode");
    need(dnnl_primitive_desc_create(&p->desc, &desc, p->attr, p->engine, NULL), c, a,
         "primitive description");
    need(dnnl_primitive_create(&p->primitive, p->desc), c, a, "primitive");
}

static void prepare_memory(Product *p, const Call *c, Arena *a, const dnnl_memory_desc_t *md,
                           const dnnl_memory_desc_t *bias)
{
    dnnl_memory_t *memory[] = {&p->a, &p->b, &p->y};
    for (int i = 0; i < LEN(memory); i++)
        need(dnnl_memory_create(memory[i], &md[i], p->engine, DNNL_MEMORY_NONE), c, a, "memory");
    if (bias)
        need(dnnl_memory_create(&p->bias, bias, p->engine, DNNL_MEMORY_NONE), c, a, "memory");
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    need(dnnl_memory_create(&p->scratch, scratch, p->engine, DNNL_MEMORY_NONE), c, a, "memory");
}

static void prepare(Call *c, Arena *a)
{
    int first = c->nin - 2;
    bool inside = first && row_bias(&c->in[0], &c->out[0]);
    dnnl_memory_desc_t md[3], bias;
    Product *p = c->state = NEW(a, Product);
    arena_defer(a, drop, p);
    CHECK(describe(&c->in[first], &md[0]) && describe(&c->in[first + 1], &md[1]) &&
          describe(&c->out[0], &md[2]));
    if (inside) {
        dnnl_dims_t dim = {1, c->out[0].dim[1]}, stride = {dim[1], 1};
        need(dnnl_memory_desc_init_by_strides(&bias, 2, dim, md[2].data_type, stride), c, a,
             "bias description");
    }
    need(dnnl_engine_create(&p->engine, dnnl_cpu, 0), c, a, "engine");
    need(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags), c, a, "stream");
    prepare_desc(p, c, a, md, inside ? &bias : NULL);
    prepare_memory(p, c, a, md, inside ? &bias : NULL);
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    c->nbytes_work = (int64_t)dnnl_memory_desc_get_size(scratch);
}

typedef struct Add {
    float *y;
    Matrix bias;
} Add;

static void add_rows(void *arg, int64_t lo, int64_t hi)
{
    const Add *x = arg;
    for (int64_t i = lo; i < hi; i++) {
        const float *bias = (const float *)x->bias.t->data + i * x->bias.stride[1];
        for (int64_t j = 0; j < x->bias.cols; j++)
            x->y[i * x->bias.cols + j] += bias[j * x->bias.stride[2]];
    }
}

static int run(Call *c)
{
    const Product *p = c->state;
    int first = c->nin - 2;
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a},     {DNNL_ARG_WEIGHTS, p->b},
        {DNNL_ARG_DST, p->y},     {DNNL_ARG_SCRATCHPAD, p->scratch},
        {DNNL_ARG_BIAS, p->bias},
    };
    void *data[] = {c->in[first].data, c->in[first + 1].data, c->out[0].data, c->work,
                    c->in[0].data};
    int nargs = p->bias ? 5 : 4;
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < nargs && !status; i++)
        status = dnnl_memory_set_data_handle(args[i].memory, data[i]);
    if (!status)
        status = dnnl_primitive_execute(p->primitive, p->stream, nargs, args);
    if (!status)
        status = dnnl_stream_wait(p->stream);
    if (status)
        return run_fail(c, "oneDNN product failed (status %d)", (int)status);
    if (first && !p->bias) {
        Matrix y = matrix(&c->out[0]);
        Add x = {(float *)c->out[0].data, bias_matrix(&c->in[0], &y)};
        par_for(y.rows, MAX(1, 16384 / MAX(y.cols, 1)), add_rows, &x);
    }
    return 0;
}

static const Kernel kernels[] = {{"onednn", accepts, prepare, run}, {0}};

/* ---- the ops ---- */

const OpRules op_mm = {
    .math = "y[i, j] = sum_k a[i, k] b[k, j]",
    .example = "f32[4, 6] f32[6, 5]",
    .infer = infer_mm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.mm.default",
};

const OpRules op_bmm = {
    .math = "y[b, i, j] = sum_k a[b, i, k] b[b, k, j]",
    .example = "f32[2, 4, 6] f32[2, 6, 5]",
    .infer = infer_bmm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.bmm.default",
};

const OpRules op_addmm = {
    .math = "y[i, j] = bias[i, j] + sum_k a[i, k] b[k, j]",
    .example = "f32[5] f32[4, 6] f32[6, 5]",
    .infer = infer_addmm,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.addmm.default",
};
