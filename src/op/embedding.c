/* embedding: rows of a table by their ids, and its backward, the scatter-add of rows (ATen's
 * semantics). Ids equal to padding_idx (-1: none) add nothing to the gradient. An id outside of [0,
 * V) is an error of the run. The backward's result may be f32 where dy has 16 bits, by out_dtype.
 *
 * With an operand `first` the table, or its gradient, is the part of a larger one that begins at
 * row `first`: ids outside of it give zeros and are skipped, so that parts along V add up.
 * padding_idx counts from the first row of all.
 *
 * The backward kernel cuts columns, not ids: once the result is cleared, each thread adds to its
 * columns every row of dy in the order of the ids. So it is deterministic, needs no atomics, and is
 * balanced however often an id occurs; no one-hot matrix is ever formed. Dtypes other than f32 sums
 * of f32 and bf16 have sums in double, in a workspace. */
#include "rows.h"

enum { FIRST = 2 }; /* the optional operand */

enum { PADDING };
static const AttrField attrs[] = {{"padding_idx", ATTR_INT, .i = -1}, {0}};

enum { NUM_WEIGHTS, OUT_DTYPE, BACKWARD_PADDING };
static const AttrField backward_attrs[] = {
    {"num_weights", ATTR_INT, .required = true},
    {"out_dtype", ATTR_DTYPE, .i = NDTYPE},
    {"padding_idx", ATTR_INT, .i = -1},
    {0},
};

/* In a part the number of all rows is not known. */
static void check_padding(const Graph *g, const Node *n, int64_t padding, int64_t rows)
{
    Type scalar = type_make(I64, 0, NULL);
    if (n->nin > FIRST)
        need_type(g, n, FIRST, &scalar);
    if (padding < -1 || (padding >= rows && n->nin == FIRST))
        fail_node(g, n, "padding_idx: expected -1 to %lld, found %lld", (long long)rows - 1,
                  (long long)padding);
}

static void need_ids(const Graph *g, const Node *n, int i)
{
    DType d = n->in[i]->type.dtype;
    if (d != I64 && d != I32)
        fail_node(g, n, "operand %d: expected i64 or i32, found %s", i, dtype_name(d));
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *w = &n->in[0]->type, *ids = &n->in[1]->type;
    need_rank(g, n, 0, 2, 2);
    need_rank(g, n, 1, 0, TN_RANK - 1);
    need_ids(g, n, 1);
    check_padding(g, n, n->attr[PADDING].i, w->dim[0]);
    out[0] = *ids;
    out[0].dtype = w->dtype;
    out[0].dim[out[0].rank++] = w->dim[1];
    return 1;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *dy = &n->in[0]->type, *ids = &n->in[1]->type;
    need_float(g, n, 0);
    need_rank(g, n, 0, 1, TN_RANK);
    need_ids(g, n, 1);
    Type want = type_make(ids->dtype, dy->rank - 1, dy->dim);
    need_type(g, n, 1, &want);
    if (n->attr[NUM_WEIGHTS].i < 0)
        fail_node(g, n, "num_weights: expected at least 0, found %lld",
                  (long long)n->attr[NUM_WEIGHTS].i);
    check_padding(g, n, n->attr[BACKWARD_PADDING].i, n->attr[NUM_WEIGHTS].i);
    out[0] = type_make(need_out_dtype(g, n, "out_dtype", dy->dtype), 2,
                       (int64_t[]){n->attr[NUM_WEIGHTS].i, dy->dim[dy->rank - 1]});
    return 1;
}

static Value *first_row(const Node *n)
{
    return n->nin > FIRST ? n->in[FIRST] : NULL;
}

static void diff(Grad *d)
{
    Value *w = d->n->in[0], *in[] = {d->dy[0], d->n->in[1], first_row(d->n)};
    if (d->need[0] && d->dy[0])
        d->dx[0] = emit1(d->b, "embedding_dense_backward", d->n->nin, in,
                         ATTRS(A_INT("num_weights", w->type.dim[0]),
                               A_INT("padding_idx", d->n->attr[PADDING].i)));
}

static void backward_diff(Grad *d)
{
    Build *b = d->b;
    Value *ids = d->n->in[1], *in[] = {d->dy[0], ids, first_row(d->n)};
    int64_t padding = d->n->attr[BACKWARD_PADDING].i;
    if (!d->need[0] || !d->dy[0])
        return;
    Value *rows = emit1(b, "embedding", d->n->nin, in, NOATTRS);
    if (padding >= 0) {
        Value *is =
            emit1(b, "eq", IN(ids, emit_full(b, (double)padding, ids->type.dtype)), NOATTRS);
        is = emit1(b, "unsqueeze", IN(is), ATTRS(A_INT("dim", -1)));
        rows = emit1(b, "where", IN(is, emit_full(b, 0, rows->type.dtype), rows), NOATTRS);
    }
    d->dx[0] = emit_cast(b, rows, d->n->in[0]->type.dtype);
}

/* Only the rows that are looked up are read. */
static Cost cost(const Node *n)
{
    double nbytes = (double)type_nbytes(&n->out[0]->type);
    return (Cost){.nread = nbytes + (double)type_nbytes(&n->in[1]->type), .nwrite = nbytes};
}

static Cost backward_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = (double)type_nelem(&n->in[0]->type);
    return c;
}

/* The rows of the table, which a part must know the first of. */
static void table_factor(const Node *n, Factors *f, FactorKind kind, int64_t rows, Axes *table)
{
    if (rows == 1)
        return;
    int k = factor_new(f, kind, rows);
    axis_add(table, 0, k);
    f->factor[k].offset = n->nin > FIRST ? FIRST : NO_FACTOR;
    f->factor[k].placed = n->nin == FIRST && kind != FACTOR_REPLICATE;
}

/* Booleans are not added. */
static void factors(const Node *n, Factors *f)
{
    const Type *y = &n->out[0]->type, *w = &n->in[0]->type;
    table_factor(n, f, w->dtype == BOOL ? FACTOR_REPLICATE : FACTOR_SUM, w->dim[0], &f->in[0]);
    for (int d = 0; d < y->rank; d++) {
        if (y->dim[d] == 1)
            continue;
        int k = factor_new(f, FACTOR_PARALLEL, y->dim[d]);
        bool last = d == y->rank - 1;
        axis_add(&f->in[last ? 0 : 1], last ? 1 : d, k);
        axis_add(&f->out[0], d, k);
    }
}

static void backward_factors(const Node *n, Factors *f)
{
    const Type *dy = &n->in[0]->type;
    table_factor(n, f, FACTOR_PARALLEL, n->attr[NUM_WEIGHTS].i, &f->out[0]);
    for (int d = 0; d < dy->rank; d++) {
        if (dy->dim[d] == 1)
            continue;
        bool last = d == dy->rank - 1;
        int k = factor_new(f, last ? FACTOR_PARALLEL : FACTOR_SUM, dy->dim[d]);
        axis_add(&f->in[0], d, k);
        axis_add(last ? &f->out[0] : &f->in[1], last ? 1 : d, k);
    }
}

static void backward_part(Part *p)
{
    Attr *attr = part_attr(p);
    attr[NUM_WEIGHTS].i = part_dims(p)[0];
    part_same(p, attr);
}

/* Which of `rows` rows from `first` on an id is, or -1. */
static int64_t row_of(int64_t id, int64_t first, int64_t rows)
{
    uint64_t row = (uint64_t)id - (uint64_t)first;
    return row < (uint64_t)rows ? (int64_t)row : -1;
}

static int64_t first_of(const Call *c)
{
    return c->nin > FIRST ? tensor_int(&c->in[FIRST], 0) : 0;
}

/* Fails unless every id is in [0, rows); ids of a part may be anywhere. */
static int check_ids(Call *c, int64_t rows)
{
    const Tensor *ids = &c->in[1];
    Rows at = rows_of(ids, ids->rank);
    int64_t count = c->nin > FIRST ? 0 : tensor_nelem(ids);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = tensor_int(ids, row_offset(&at, i));
        if (id < 0 || id >= rows)
            return run_fail(c, "id %lld at position %lld: expected 0 to %lld", (long long)id,
                            (long long)i, (long long)rows - 1);
    }
    return 0;
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *w = &c->in[0], *ids = &c->in[1], *y = &c->out[0];
    int64_t n = w->dim[1], count = tensor_nelem(ids);
    if (check_ids(c, w->dim[0]))
        return -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = row_of(tensor_int(ids, tensor_linear(ids, i)), first_of(c), w->dim[0]);
        for (int64_t j = 0; j < n; j++)
            set_at(y, i * n + j, row < 0 ? 0 : get_at(w, row * n + j));
    }
    return 0;
}

/* The sum of column j of the rows of dy, from row i on, whose id is that of row i. */
static double ref_sum(const Tensor *dy, const Tensor *ids, int64_t i, int64_t j)
{
    int64_t count = tensor_nelem(ids), id = tensor_int(ids, tensor_linear(ids, i));
    double sum = 0;
    for (int64_t k = i; k < count; k++)
        if (tensor_int(ids, tensor_linear(ids, k)) == id)
            sum += get_at(dy, k * dy->dim[dy->rank - 1] + j);
    return sum;
}

/* From the last row to the first: the first of an id has all of its rows. */
static int backward_ref(Call *c)
{
    const Tensor *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    int64_t n = dw->dim[1];
    if (check_ids(c, dw->dim[0]))
        return -1;
    for (int64_t i = 0; i < dw->dim[0] * n; i++)
        set_at(dw, i, 0);
    for (int64_t i = tensor_nelem(ids) - 1; i >= 0; i--) {
        int64_t id = tensor_int(ids, tensor_linear(ids, i));
        int64_t row = row_of(id, first_of(c), dw->dim[0]);
        for (int64_t j = 0; j < n && row >= 0 && id != c->node->attr[BACKWARD_PADDING].i; j++)
            set_at(dw, row * n + j, ref_sum(dy, ids, i, j));
    }
    return 0;
}

/* ---- kernels: a table of any dtype, rows of any stride ---- */

static bool accepts(const Call *c)
{
    return rows_contiguous(&c->in[0], 1) && rows_contiguous(&c->out[0], c->in[1].rank);
}

static void copy_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *w = &c->in[0], *ids = &c->in[1];
    Rows at = rows_of(ids, ids->rank), to = rows_of(&c->out[0], ids->rank);
    int64_t size = dtype_size(w->dtype), nbytes = w->dim[1] * size, first = first_of(c);
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = row_of(tensor_int(ids, row_offset(&at, i)), first, w->dim[0]);
        char *y = c->out[0].data + row_offset(&to, i) * size;
        if (row < 0)
            memset(y, 0, (size_t)nbytes);
        else
            memcpy(y, w->data + row * w->stride[0] * size, (size_t)nbytes);
    }
}

static int run(Call *c)
{
    if (check_ids(c, c->in[0].dim[0]))
        return -1;
    par_for(tensor_nelem(&c->in[1]), row_grain(c->in[0].dim[1]), copy_rows, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "embedding_rows", .accepts = accepts, .run = run, .strided_out = true}, {0}};

static bool backward_accepts(const Call *c)
{
    DType d = c->in[0].dtype;
    return (d == F32 || d == BF16) && c->out[0].dtype == F32 &&
           rows_contiguous(&c->in[0], c->in[0].rank - 1);
}

KERNEL static void add_row(float *restrict y, const void *x, int64_t n, DType d)
{
    if (d == BF16)
        for (int64_t i = 0; i < n; i++)
            y[i] += v_load(x, i, BF16);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] += v_load(x, i, F32);
}

static void clear(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    memset(f32(&c->out[0]) + lo, 0, sizeof(float) * (size_t)(hi - lo));
}

enum { STRIP = 16 }; /* columns, one line of the cache */

/* Strips lo to hi of columns. */
static void add_columns(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    Rows at = rows_of(dy, dy->rank - 1), id_at = rows_of(ids, ids->rank);
    int64_t n = dw->dim[1], from = lo * STRIP, width = MIN(n, hi * STRIP) - from;
    float *y = f32(dw) + from;
    int64_t count = tensor_nelem(ids), padding = c->node->attr[BACKWARD_PADDING].i;
    int64_t first = first_of(c);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = tensor_int(ids, row_offset(&id_at, i)), row = row_of(id, first, dw->dim[0]);
        if (row >= 0 && id != padding)
            add_row(y + row * n, element(dy, row_offset(&at, i) + from), width, dy->dtype);
    }
}

static int backward_run(Call *c)
{
    if (check_ids(c, c->out[0].dim[0]))
        return -1;
    int64_t n = c->out[0].dim[1], count = tensor_nelem(&c->in[1]);
    par_for(c->out[0].dim[0] * n, 65536, clear, c);
    par_for((n + STRIP - 1) / STRIP, row_grain(STRIP * count), add_columns, c);
    return 0;
}

/* Any other dtypes and strides: sums in double, rounded once, of a strip of columns at a time. */
static bool sums_accepts(const Call *c)
{
    (void)c;
    return true;
}

static int64_t sums_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return c->out[0].dim[0] * MIN(c->out[0].dim[1], STRIP) * (int64_t)sizeof(double);
}

/* Columns from `from` on. */
static void sum_strip(const Call *c, int64_t from, int64_t width)
{
    const Tensor *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    int64_t n = dw->dim[1], rows = dw->dim[0], padding = c->node->attr[BACKWARD_PADDING].i;
    double *sum = (double *)(void *)c->work;
    memset(sum, 0, sizeof *sum * (size_t)(rows * width));
    for (int64_t i = 0, count = tensor_nelem(ids); i < count; i++) {
        int64_t id = tensor_int(ids, tensor_linear(ids, i)), row = row_of(id, first_of(c), rows);
        for (int64_t j = 0; j < width && row >= 0 && id != padding; j++)
            sum[row * width + j] += get_at(dy, i * n + from + j);
    }
    for (int64_t id = 0; id < rows; id++)
        for (int64_t j = 0; j < width; j++)
            set_at(dw, id * n + from + j, sum[id * width + j]);
}

static int sums_run(Call *c)
{
    int64_t n = c->out[0].dim[1];
    if (check_ids(c, c->out[0].dim[0]))
        return -1;
    for (int64_t from = 0; from < n && c->out[0].dim[0]; from += STRIP)
        sum_strip(c, from, MIN(STRIP, n - from));
    return 0;
}

static const Kernel backward_kernels[] = {
    {.name = "embedding_backward_columns", .accepts = backward_accepts, .run = backward_run},
    {.name = "embedding_backward_sums",
     .accepts = sums_accepts,
     .workspace = sums_workspace,
     .run = sums_run},
    {0},
};

const OpRules op_embedding = {
    .math = "y[i, :] = w[ids[i], :]; of a part of the table: w[ids[i] - first, :], 0 outside of it",
    .example = "f32[10, 4] i64[2, 8]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.embedding.default",
};

const OpRules op_embedding_dense_backward = {
    .math = "dw[v, :] = sum of dy[i, :] over all i with ids[i] = v; of a part: first + v",
    .example = "f32[2, 8, 4] i64[2, 8] num_weights=10",
    .attrs = backward_attrs,
    .infer = backward_infer,
    .diff = backward_diff,
    .cost = backward_cost,
    .factors = backward_factors,
    .part = backward_part,
    .kernels = backward_kernels,
    .ref = backward_ref,
    .alias = "aten.embedding_dense_backward.default",
};
