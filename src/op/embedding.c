/* embedding: rows of a table by their ids, and its backward, the scatter-add of rows (ATen's
 * semantics). Ids equal to padding_idx (-1: none) add nothing to the gradient; with
 * scale_grad_by_freq that of a row is the mean over where its id stands. An id outside of [0, V) is
 * an error of the run. The backward's result may be f32 where dy has 16 bits, by out_dtype.
 *
 * With a last operand `first`, i64[], the table, or its gradient, is the part of a larger one that
 * begins at row `first`: ids outside of it give zeros and are skipped, so that parts along V add
 * up. padding_idx counts from the first row of all. There ids are checked by `rows`, the number of
 * all rows, where it is not 0; and in a table that is padded.
 *
 * The backward's operand 2 may be `base`, of the result's type: the rows are added to it, in the
 * order of the positions, (base + dy[i]) + dy[j]; in its place only rows that some id has are
 * touched. So the gradient of a tied embedding is added to that of the head without a second table.
 *
 * The backward kernel cuts columns, not ids: once the result is cleared, or is the base, each
 * thread adds to its columns every row of dy in the order of the ids. So it is deterministic, needs
 * no atomics, and is balanced however often an id occurs; no one-hot matrix is ever formed. Sums of
 * other dtypes than f32 are formed in double, the base first, and rounded once: positions are
 * sorted by row before. */
#include "rows.h"

enum { BASE = 2 }; /* the backward's optional operand, before `first` */

enum { PADDING, BY_FREQUENCY, ROWS };
static const AttrField attrs[] = {
    {"padding_idx", ATTR_INT, .i = -1},
    {"scale_grad_by_freq", ATTR_BOOL, .i = 0},
    {"rows", ATTR_INT, .i = 0},
    {0},
};

enum { NUM_WEIGHTS, OUT_DTYPE, BACKWARD_PADDING, BACKWARD_ROWS };
static const AttrField backward_attrs[] = {
    {"num_weights", ATTR_INT, .required = true},
    {"out_dtype", ATTR_DTYPE, .i = NDTYPE},
    {"padding_idx", ATTR_INT, .i = -1},
    {"rows", ATTR_INT, .i = 0},
    {0},
};

static Value *base_of(const Node *n)
{
    return n->nin > BASE && n->in[BASE]->type.rank == 2 ? n->in[BASE] : NULL;
}

/* The operand `first`; -1: there is none. */
static int first_operand(const Node *n)
{
    return n->nin > (base_of(n) ? BASE + 1 : BASE) ? n->nin - 1 : -1;
}

static Value *first_row(const Node *n)
{
    int i = first_operand(n);
    return i < 0 ? NULL : n->in[i];
}

/* rows: of the table; all: by the attribute. In a part the number of all rows may not be known. */
static void check_padding(const Graph *g, const Node *n, int64_t padding, int64_t rows, int64_t all)
{
    Type scalar = type_make(I64, 0, NULL);
    int first = first_operand(n);
    if (first >= 0)
        need_type(g, n, first, &scalar);
    if (all < 0 || (all > rows && first < 0))
        fail_node(g, n, "rows: expected 0 to %lld, found %lld",
                  first < 0 ? (long long)rows : (long long)INT64_MAX, (long long)all);
    if (padding < -1 || (padding >= rows && first < 0))
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
    check_padding(g, n, n->attr[PADDING].i, w->dim[0], n->attr[ROWS].i);
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
    check_padding(g, n, n->attr[BACKWARD_PADDING].i, n->attr[NUM_WEIGHTS].i,
                  n->attr[BACKWARD_ROWS].i);
    out[0] = type_make(need_out_dtype(g, n, "out_dtype", dy->dtype), 2,
                       (int64_t[]){n->attr[NUM_WEIGHTS].i, dy->dim[dy->rank - 1]});
    if (base_of(n) || n->nin > BASE + 1)
        need_type(g, n, BASE, &out[0]);
    return 1;
}

/* dy divided by how often each row's id stands among ids, which are of a table of `rows`. */
static Value *share(Build *b, Value *dy, Value *ids, Value *first, int64_t rows)
{
    Type t = ids->type;
    DType wide = dy->type.dtype == F64 ? F64 : F32;
    t.dim[t.rank++] = 1;
    Value *one =
        emit1(b, "expand", IN(emit_full(b, 1, wide)), ATTRS(A_INTS("size", t.rank, t.dim)));
    Value *count[] = {one, ids, first};
    count[0] = emit1(b, "embedding_dense_backward", first ? 3 : 2, count,
                     ATTRS(A_INT("num_weights", rows)));
    count[0] = emit1(b, "embedding", first ? 3 : 2, count, NOATTRS);
    Value *y = emit1(b, "div", IN(emit_cast(b, dy, wide), count[0]), NOATTRS);
    return emit_cast(b, y, dy->type.dtype);
}

static void diff(Grad *d)
{
    Value *w = d->n->in[0], *in[] = {d->dy[0], d->n->in[1], first_row(d->n)};
    if (d->need[0] && d->dy[0] && d->n->attr[BY_FREQUENCY].i)
        in[0] = share(d->b, in[0], in[1], in[2], w->type.dim[0]);
    if (d->need[0] && d->dy[0])
        d->dx[0] = emit1(d->b, "embedding_dense_backward", d->n->nin, in,
                         ATTRS(A_INT("num_weights", w->type.dim[0]),
                               A_INT("padding_idx", d->n->attr[PADDING].i),
                               A_INT("rows", d->n->attr[ROWS].i)));
}

static void backward_diff(Grad *d)
{
    Build *b = d->b;
    Value *ids = d->n->in[1], *in[] = {d->dy[0], ids, first_row(d->n)};
    int64_t padding = d->n->attr[BACKWARD_PADDING].i;
    if (base_of(d->n))
        d->dx[BASE] = d->dy[0];
    if (!d->need[0] || !d->dy[0])
        return;
    Value *rows =
        emit1(b, "embedding", in[2] ? 3 : 2, in, ATTRS(A_INT("rows", d->n->attr[BACKWARD_ROWS].i)));
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

/* In the base's place only rows that some id has are read and written. */
static Cost backward_cost(const Node *n)
{
    const Type *y = &n->out[0]->type;
    Cost c = cost_bytes(n);
    c.nflop = (double)type_nelem(&n->in[0]->type);
    if (base_of(n)) {
        double touched = MIN(c.nflop, (double)type_nelem(y)) * dtype_size(y->dtype);
        c.nread += touched - (double)type_nbytes(y);
        c.nwrite = touched;
    }
    return c;
}

/* The rows of the table, which a part must know the first of. */
static void table_factor(const Node *n, Factors *f, FactorKind kind, int64_t rows, Axes *table)
{
    if (rows == 1)
        return;
    int k = factor_new(f, kind, rows), first = first_operand(n);
    axis_add(table, 0, k);
    f->factor[k].offset = first < 0 ? NO_FACTOR : (int8_t)first;
    f->factor[k].placed = first < 0 && kind != FACTOR_REPLICATE;
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

/* Parts along the positions are sums of rows alone, to which finish() adds the base. */
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
        if (base_of(n) && !last)
            factor_partials(f, k, 1, FACTOR_SUM, FACTOR_SUM);
    }
    if (base_of(n))
        f->in[BASE] = f->out[0];
}

/* The table's row that is the part's first; NULL: the part is all of it. */
static Value *part_first(const Part *p)
{
    int k = p->f->out[0].n[0] ? p->f->out[0].f[0][0] : NO_FACTOR, first = first_operand(p->n);
    Value *start = k < 0 ? NULL : first < 0 ? part_start(p, k) : p->start[k];
    if (first < 0)
        return start;
    return start ? emit1(p->b, "add", IN(p->in[first], start), NOATTRS) : p->in[first];
}

/* Notes in attribute i how many rows there are, where a part has some of all `rows`. */
static void note_rows(const Part *p, Attr *attr, int i, int64_t own, int64_t rows)
{
    if (!attr[i].i && own < rows && first_operand(p->n) < 0)
        attr[i].i = rows;
}

static void part(Part *p)
{
    Attr *attr = part_attr(p);
    note_rows(p, attr, ROWS, p->in[0]->type.dim[0], p->n->in[0]->type.dim[0]);
    part_same(p, attr);
}

static void backward_part(Part *p)
{
    Attr *attr = part_attr(p);
    const int64_t rows = attr[NUM_WEIGHTS].i;
    attr[NUM_WEIGHTS].i = part_dims(p)[0];
    note_rows(p, attr, BACKWARD_ROWS, attr[NUM_WEIGHTS].i, rows);
    if (!p->partials) {
        part_same(p, attr);
        return;
    }
    DType d = p->n->in[0]->type.dtype;
    Value *in[] = {p->in[0], p->in[1], part_first(p)};
    attr[OUT_DTYPE].i = dtype_size(d) == 2 ? F32 : d;
    part_with(p, attr, in[2] ? 3 : 2, in);
}

/* Rounded once, as in the whole. */
static void backward_finish(Part *p, Value *const *merged)
{
    Value *base = emit_cast(p->b, p->in[BASE], merged[0]->type.dtype);
    Value *y = emit1(p->b, "add", IN(base, merged[0]), NOATTRS);
    p->out[0] = emit_cast(p->b, y, p->n->out[0]->type.dtype);
}

/* Which of `rows` rows from `first` on an id is, or -1. */
static int64_t row_of(int64_t id, int64_t first, int64_t rows)
{
    uint64_t row = (uint64_t)id - (uint64_t)first;
    return row < (uint64_t)rows ? (int64_t)row : -1;
}

static int64_t first_of(const Call *c)
{
    int i = first_operand(c->node);
    return i < 0 ? 0 : tensor_int(&c->in[i], 0);
}

/* Fails unless every id is in [0, all), or [0, rows) where this is all; ids of a part of which
 * nothing more is known may be anywhere. */
static int check_ids(Call *c, int64_t rows)
{
    const Tensor *ids = &c->in[1];
    Rows at = rows_of(ids, ids->rank);
    const int64_t all = c->node->attr[attr_index(c->node->op, "rows")].i;
    const int64_t count = all || first_operand(c->node) < 0 ? tensor_nelem(ids) : 0;
    rows = all ? all : rows;
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

/* To `sum` the column j of those rows of dy is added whose id is that of row i, from i on. */
static double ref_sum(const Tensor *dy, const Tensor *ids, int64_t i, int64_t j, double sum)
{
    int64_t count = tensor_nelem(ids), id = tensor_int(ids, tensor_linear(ids, i));
    for (int64_t k = i; k < count; k++)
        if (tensor_int(ids, tensor_linear(ids, k)) == id)
            sum += get_at(dy, k * dy->dim[dy->rank - 1] + j);
    return sum;
}

static bool stands_before(const Tensor *ids, int64_t i)
{
    int64_t id = tensor_int(ids, tensor_linear(ids, i));
    for (int64_t k = 0; k < i; k++)
        if (tensor_int(ids, tensor_linear(ids, k)) == id)
            return true;
    return false;
}

/* Each id where it stands first. */
static int backward_ref(Call *c)
{
    const Tensor *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    int64_t n = dw->dim[1];
    if (check_ids(c, dw->dim[0]))
        return -1;
    for (int64_t i = 0; i < dw->dim[0] * n; i++)
        set_at(dw, i, base_of(c->node) ? get_at(&c->in[BASE], i) : 0);
    for (int64_t i = 0; i < tensor_nelem(ids); i++) {
        int64_t id = tensor_int(ids, tensor_linear(ids, i));
        int64_t row = row_of(id, first_of(c), dw->dim[0]);
        if (row < 0 || id == c->node->attr[BACKWARD_PADDING].i || stands_before(ids, i))
            continue;
        for (int64_t j = 0; j < n; j++)
            set_at(dw, row * n + j, ref_sum(dy, ids, i, j, get_at(dw, row * n + j)));
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

KERNEL(void, add_row, (float *restrict y, const void *x, int64_t n, DType d), (y, x, n, d))
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
    memset(c->out[0].data + lo, 0, (size_t)(hi - lo));
}

/* The result is what the rows are added to: zeros, or the base. */
static void begin_sums(Call *c)
{
    if (!base_of(c->node))
        par_for(tensor_nelem(&c->out[0]) * dtype_size(c->out[0].dtype), 1 << 18, clear, c);
    else if (c->in[BASE].data != c->out[0].data)
        strided_copy(&c->out[0], &c->in[BASE]);
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
    begin_sums(c);
    par_for((n + STRIP - 1) / STRIP, row_grain(STRIP * count), add_columns, c);
    return 0;
}

/* Any other dtypes and strides: sums in double, rounded once. Positions are sorted by row first:
 * those of row r are position[r ? end[r - 1] : 0] to position[end[r]]. */
typedef struct RowSums {
    const Call *c;
    int64_t *end, *position;
} RowSums;

static bool sums_accepts(const Call *c)
{
    (void)c;
    return true;
}

static int64_t sums_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return (c->out[0].dim[0] + 1 + tensor_nelem(&c->in[1])) * (int64_t)sizeof(int64_t);
}

/* The row that position i adds to, or -1. */
static int64_t added_row(const Call *c, const Rows *at, int64_t i)
{
    int64_t id = tensor_int(&c->in[1], row_offset(at, i));
    return id == c->node->attr[BACKWARD_PADDING].i ? -1 : row_of(id, first_of(c), c->out[0].dim[0]);
}

/* By counting, so that the positions of a row ascend. */
static void sort_positions(const RowSums *s)
{
    const Call *c = s->c;
    int64_t rows = c->out[0].dim[0], count = tensor_nelem(&c->in[1]), row;
    Rows at = rows_of(&c->in[1], c->in[1].rank);
    memset(s->end, 0, sizeof *s->end * (size_t)(rows + 1));
    for (int64_t i = 0; i < count; i++)
        if ((row = added_row(c, &at, i)) >= 0)
            s->end[row + 1]++;
    for (row = 0; row < rows; row++)
        s->end[row + 1] += s->end[row];
    for (int64_t i = 0; i < count; i++)
        if ((row = added_row(c, &at, i)) >= 0)
            s->position[s->end[row]++] = i;
}

/* Columns [from, from + width) of a row, to which positions lo to hi are added. */
static void sum_row(const RowSums *s, const Rows *at, int64_t row, int64_t lo, int64_t hi,
                    int64_t from, int64_t width)
{
    const Tensor *dy = &s->c->in[0], *dw = &s->c->out[0];
    int64_t step = dy->stride[dy->rank - 1];
    double sum[STRIP];
    for (int64_t j = 0; j < width; j++)
        sum[j] = tensor_get(dw, row * dw->dim[1] + from + j);
    for (int64_t k = lo; k < hi; k++)
        for (int64_t j = 0; j < width; j++)
            sum[j] += tensor_get(dy, row_offset(at, s->position[k]) + (from + j) * step);
    for (int64_t j = 0; j < width; j++)
        tensor_set(dw, row * dw->dim[1] + from + j, sum[j]);
}

/* Strips lo to hi of columns. */
static void sum_columns(void *arg, int64_t lo, int64_t hi)
{
    const RowSums *s = arg;
    const Tensor *dy = &s->c->in[0], *dw = &s->c->out[0];
    Rows at = rows_of(dy, dy->rank - 1);
    for (int64_t row = 0, k = 0; row < dw->dim[0]; k = s->end[row++])
        for (int64_t from = lo * STRIP; k < s->end[row] && from < MIN(dw->dim[1], hi * STRIP);
             from += STRIP)
            sum_row(s, &at, row, k, s->end[row], from, MIN(STRIP, dw->dim[1] - from));
}

static int sums_run(Call *c)
{
    int64_t *work = (int64_t *)(void *)c->work, n = c->out[0].dim[1];
    RowSums s = {c, work, work + c->out[0].dim[0] + 1};
    if (check_ids(c, c->out[0].dim[0]))
        return -1;
    begin_sums(c);
    sort_positions(&s);
    par_for((n + STRIP - 1) / STRIP, row_grain(STRIP * tensor_nelem(&c->in[1])), sum_columns, &s);
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
    .part = part,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.embedding.default",
};

const OpRules op_embedding_dense_backward = {
    .math =
        "dw[v, :] = base[v, :] + sum of dy[i, :] over all i with ids[i] = v; of a part: first + v",
    .example = "f32[2, 8, 4] i64[2, 8] num_weights=10",
    .attrs = backward_attrs,
    .infer = backward_infer,
    .diff = backward_diff,
    .cost = backward_cost,
    .factors = backward_factors,
    .part = backward_part,
    .finish = backward_finish,
    .inplace = {1 << BASE},
    .kernels = backward_kernels,
    .ref = backward_ref,
    .alias = "aten.embedding_dense_backward.default",
};
