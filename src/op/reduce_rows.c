/* The kernels of sum, mean, amax, amin (reduce.c) for floats but f16, i32 and bool: what f64 holds
 * exactly.
 *
 * Axes are split into kept and gone ones, each sorted by operand stride and merged where they lie
 * as one. If the axis of least stride goes, the elements of a row are added in LANES lanes (rows);
 * else, or where such rows are shorter than that, whole rows are added onto a strip of columns
 * (columns).
 *
 * Accumulators are f64: the error is the one rounding at the end, and f64 additions keep up with
 * memory, but of bf16: there TOGETHER rows are first added in f32, which rounds only what is 2^13
 * times less than the greatest of them. Where there are few results, the gone positions are cut
 * into blocks, whose partial results are added in block order. Blocks follow from shape and strides
 * alone, so bits do not depend on threads. Memory: work holds one f64 for each block and result. */
#include "reduce.h"
#include "rows.h"

enum {
    TOGETHER = 8,
    STRIP = 2048,
    FEW = 16,
    BLOCK_ROWS = 256,
    BLOCK_MOST = 32,
    BLOCK_RUN = 1 << 15
};

typedef struct ReduceAxis {
    int64_t dim, xs, ys; /* size, strides in operand and result */
} ReduceAxis;

/* Axes by falling operand stride. Where columns are added, the last kept axis is `column`. */
typedef struct RowReduction {
    ReduceKind kind;
    ReduceAxis kept[TN_RANK], gone[TN_RANK], column;
    int nkept, ngone;
    int64_t outer, count;          /* positions of kept, of gone */
    int64_t block, nblock, nstrip; /* gone positions in one block; blocks; strips of columns */
    bool rows;
    DType from, to; /* of operand and result */
    int64_t size;   /* bytes of an element of the operand */
    const char *x;
    char *y;
    double *partial; /* [outer][nblock][column.dim] */
} RowReduction;

typedef struct ReducePosition {
    int64_t ix[TN_RANK], x, y;
} ReducePosition;

static ReducePosition position_at(const ReduceAxis *axis, int n, int64_t i)
{
    ReducePosition w = {.x = 0};
    for (int d = n - 1; d >= 0; d--) {
        w.ix[d] = i % axis[d].dim;
        i /= axis[d].dim;
        w.x += w.ix[d] * axis[d].xs;
        w.y += w.ix[d] * axis[d].ys;
    }
    return w;
}

static void position_next(ReducePosition *w, const ReduceAxis *axis, int n)
{
    for (int d = n - 1; d >= 0; d--) {
        w->x += axis[d].xs;
        if (++w->ix[d] < axis[d].dim)
            return;
        w->x -= axis[d].xs * axis[d].dim;
        w->ix[d] = 0;
    }
}

INLINE double start(ReduceKind kind)
{
    return kind == MAXIMUM ? -(double)INFINITY : kind == MINIMUM ? (double)INFINITY : 0;
}

INLINE double join(ReduceKind kind, double a, double x)
{
    if (kind == MAXIMUM)
        return x > a || x != x ? x : a;
    if (kind == MINIMUM)
        return x < a || x != x ? x : a;
    return a + x;
}

/* Element i goes to lane i % LANES; lanes are joined by halves. */
INLINE double join_run(ReduceKind kind, const void *x, int64_t n, int64_t stride, DType d)
{
    double acc[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        acc[l] = start(kind);
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            acc[l] = join(kind, acc[l], load_f64(x, (i + l) * stride, d));
    for (int l = 0; i < n; i++, l++)
        acc[l] = join(kind, acc[l], load_f64(x, i * stride, d));
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            acc[l] = join(kind, acc[l], acc[l + half]);
    return acc[0];
}

/* Adds TOGETHER rows, in order, onto the strip. */
INLINE void join_together(ReduceKind kind, double *restrict acc, const void *const row[TOGETHER],
                          int64_t n, int64_t stride, DType d)
{
    const void *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
    const void *r4 = row[4], *r5 = row[5], *r6 = row[6], *r7 = row[7];
    for (int64_t j = 0; j < n; j++) {
        double a = join(kind, acc[j], load_f64(r0, j * stride, d));
        a = join(kind, a, load_f64(r1, j * stride, d));
        a = join(kind, a, load_f64(r2, j * stride, d));
        a = join(kind, a, load_f64(r3, j * stride, d));
        a = join(kind, a, load_f64(r4, j * stride, d));
        a = join(kind, a, load_f64(r5, j * stride, d));
        a = join(kind, a, load_f64(r6, j * stride, d));
        acc[j] = join(kind, a, load_f64(r7, j * stride, d));
    }
}

/* The sum of TOGETHER rows of bf16, in f32, onto the strip. */
INLINE void add_together(double *restrict acc, const void *const row[TOGETHER], int64_t n,
                         int64_t stride)
{
    const float part =
        1.0f / TOGETHER; /* of each, exactly: then no sum of finite values overflows */
    const uint16_t *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
    const uint16_t *r4 = row[4], *r5 = row[5], *r6 = row[6], *r7 = row[7];
    for (int64_t j = 0; j < n; j++) {
        int64_t i = j * stride;
        float a = part * v_bf16_to_f32(r0[i]) + part * v_bf16_to_f32(r1[i]);
        float b = part * v_bf16_to_f32(r2[i]) + part * v_bf16_to_f32(r3[i]);
        float c = part * v_bf16_to_f32(r4[i]) + part * v_bf16_to_f32(r5[i]);
        float e = part * v_bf16_to_f32(r6[i]) + part * v_bf16_to_f32(r7[i]);
        acc[j] += TOGETHER * (double)((a + b) + (c + e));
    }
}

/* Joins at most TOGETHER rows to the strip. */
INLINE void join_rows(ReduceKind kind, double *restrict acc, const void *const *row, int count,
                      int64_t n, int64_t stride, DType d)
{
    if (count == TOGETHER && kind == SUM && d == BF16)
        add_together(acc, row, n, stride);
    else if (count == TOGETHER)
        join_together(kind, acc, row, n, stride, d);
    else
        for (int i = 0; i < count; i++)
            for (int64_t j = 0; j < n; j++)
                acc[j] = join(kind, acc[j], load_f64(row[i], j * stride, d));
}

#define JOIN(name, kind, d)                                                                \
    KERNEL(double, run_##name, (const void *x, int64_t n, int64_t stride), (x, n, stride)) \
    {                                                                                      \
        return stride == 1 ? join_run(kind, x, n, 1, d) : join_run(kind, x, n, stride, d); \
    }                                                                                      \
    KERNEL(void, rows_##name,                                                              \
           (double *acc, const void *const *row, int count, int64_t n, int64_t stride),    \
           (acc, row, count, n, stride))                                                   \
    {                                                                                      \
        if (stride == 1)                                                                   \
            join_rows(kind, acc, row, count, n, 1, d);                                     \
        else                                                                               \
            join_rows(kind, acc, row, count, n, stride, d);                                \
    }
#define JOINS(name, d)           \
    JOIN(sum_##name, SUM, d)     \
    JOIN(max_##name, MAXIMUM, d) \
    JOIN(min_##name, MINIMUM, d)
JOINS(f32, F32)
JOINS(bf16, BF16)
JOINS(f64, F64)
JOINS(i32, I32)
JOINS(bool, BOOL)

typedef struct Joins {
    double (*run)(const void *x, int64_t n, int64_t stride);
    void (*rows)(double *acc, const void *const *row, int count, int64_t n, int64_t stride);
} Joins;

#define KINDS(name)                                                                            \
    {                                                                                          \
        [SUM] = {run_sum_##name, rows_sum_##name}, [MEAN] = {run_sum_##name, rows_sum_##name}, \
        [MAXIMUM] = {run_max_##name, rows_max_##name},                                         \
        [MINIMUM] = {run_min_##name, rows_min_##name},                                         \
    }
static const Joins joins[][4] = {[F32] = KINDS(f32),
                                 [BF16] = KINDS(bf16),
                                 [F64] = KINDS(f64),
                                 [I32] = KINDS(i32),
                                 [BOOL] = KINDS(bool)};

static const Joins *joins_of(const RowReduction *p)
{
    return &joins[p->from][p->kind];
}

/* n results side by side: acc / count. */
KERNEL(void, finish_floats, (char *y, const double *acc, int64_t n, double count, DType d),
       (y, acc, n, count, d))
{
    if (d == F32)
        for (int64_t j = 0; j < n; j++)
            ((float *)y)[j] = (float)(acc[j] / count);
    else
        for (int64_t j = 0; j < n; j++)
            ((uint16_t *)y)[j] = v_f32_to_bf16((float)(acc[j] / count));
}

/* n results, `stride` elements apart. */
static void finish(const RowReduction *p, int64_t at, int64_t stride, const double *acc, int64_t n)
{
    Tensor to = {.data = p->y, .dtype = p->to};
    double count = p->kind == MEAN ? (double)p->count : 1;
    if ((p->to == F32 || p->to == BF16) && (stride == 1 || n == 1))
        finish_floats(p->y + at * dtype_size(p->to), acc, n, count, p->to);
    else
        for (int64_t j = 0; j < n; j++)
            tensor_set(&to, at + j * stride, acc[j] / count);
}

/* The gone positions [lo, hi) of one result, run by run along the last gone axis. */
static double block_of_rows(const RowReduction *p, const char *x, int64_t lo, int64_t hi)
{
    double acc = start(p->kind);
    int n = p->ngone - 1;
    int64_t len = n < 0 ? 1 : p->gone[n].dim, stride = n < 0 ? 1 : p->gone[n].xs, at = lo % len;
    ReducePosition w = position_at(p->gone, MAX(n, 0), lo / len);
    for (int64_t i = lo; i < hi; at = 0) {
        int64_t run = MIN(len - at, hi - i);
        const char *from = x + (w.x + at * stride) * p->size;
        acc = join(p->kind, acc, joins_of(p)->run(from, run, stride));
        position_next(&w, p->gone, n);
        i += run;
    }
    return acc;
}

/* The gone positions [lo, hi) of n columns. */
static void block_of_columns(const RowReduction *p, const char *x, int64_t lo, int64_t hi,
                             int64_t n, double *acc)
{
    ReducePosition w = position_at(p->gone, p->ngone, lo);
    const void *row[TOGETHER];
    int count = 0;
    for (int64_t j = 0; j < n; j++)
        acc[j] = start(p->kind);
    for (int64_t i = lo; i < hi; i++) {
        row[count++] = x + w.x * p->size;
        position_next(&w, p->gone, p->ngone);
        if (count == TOGETHER || i + 1 == hi) {
            joins_of(p)->rows(acc, row, count, n, p->column.xs);
            count = 0;
        }
    }
}

/* One task is one block of one strip of one outer position. */
static void run_tasks(void *arg, int64_t lo, int64_t hi)
{
    const RowReduction *p = arg;
    double acc[STRIP];
    for (int64_t i = lo; i < hi; i++) {
        int64_t strip = i % p->nstrip, block = i / p->nstrip % p->nblock,
                o = i / p->nstrip / p->nblock;
        ReducePosition w = position_at(p->kept, p->nkept, o);
        int64_t first = block * p->block, last = MIN(first + p->block, p->count);
        int64_t j0 = strip * STRIP, n = MIN(STRIP, p->column.dim - j0);
        if (p->rows)
            acc[0] = block_of_rows(p, p->x + w.x * p->size, first, last);
        else
            block_of_columns(p, p->x + (w.x + j0 * p->column.xs) * p->size, first, last, n, acc);
        if (p->nblock > 1)
            memcpy(p->partial + (o * p->nblock + block) * p->column.dim + j0, acc,
                   (size_t)n * sizeof *acc);
        else
            finish(p, w.y + j0 * p->column.ys, p->column.ys, acc, n);
    }
}

/* Joins the blocks' partial results, in block order, a strip of neighbours at a time. */
static void join_blocks(void *arg, int64_t lo, int64_t hi)
{
    const RowReduction *p = arg;
    double acc[STRIP];
    for (int64_t i = lo, n; i < hi; i += n) {
        int64_t o = i / p->column.dim, j = i % p->column.dim;
        const double *from = p->partial + o * p->nblock * p->column.dim + j;
        n = MIN(MIN(STRIP, p->column.dim - j), hi - i);
        memcpy(acc, from, (size_t)n * sizeof *acc);
        for (int64_t k = 1; k < p->nblock; k++)
            joins[F64][p->kind].rows(acc, &(const void *){from + k * p->column.dim}, 1, n, 1);
        finish(p, position_at(p->kept, p->nkept, o).y + j * p->column.ys, p->column.ys, acc, n);
    }
}

/* Inserts an axis so that operand strides fall; merges axes that lie as one in both tensors. */
static int add_axis(ReduceAxis *axis, int n, int64_t dim, int64_t xs, int64_t ys)
{
    int at = n;
    if (dim == 1)
        return n;
    for (; at > 0 && axis[at - 1].xs < xs; at--)
        axis[at] = axis[at - 1];
    axis[at] = (ReduceAxis){dim, xs, ys};
    return n + 1;
}

static int merge_axes(ReduceAxis *axis, int n)
{
    int m = 0;
    for (int d = 0; d < n; d++) {
        ReduceAxis *last = &axis[MAX(m, 1) - 1], x = axis[d];
        if (m && last->xs == x.xs * x.dim && last->ys == x.ys * x.dim)
            *last = (ReduceAxis){last->dim * x.dim, x.xs, x.ys};
        else
            axis[m++] = x;
    }
    return m;
}

static void fill_axes(RowReduction *p, const Call *c)
{
    unsigned mask = reduce_axes(c->node);
    const Tensor *x = &c->in[0];
    int64_t ys = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (mask >> d & 1) {
            p->ngone = add_axis(p->gone, p->ngone, x->dim[d], x->stride[d], 0);
        } else {
            p->nkept = add_axis(p->kept, p->nkept, x->dim[d], x->stride[d], ys);
            ys *= x->dim[d];
        }
    }
    p->nkept = merge_axes(p->kept, p->nkept);
    p->ngone = merge_axes(p->gone, p->ngone);
}

static int64_t positions(const ReduceAxis *axis, int n)
{
    int64_t count = 1;
    for (int d = 0; d < n; d++)
        count *= axis[d].dim;
    return count;
}

static void fill_plan(RowReduction *p, const Call *c)
{
    *p = (RowReduction){.kind = reduce_kind(c->node)};
    fill_axes(p, c);
    p->from = c->in[0].dtype;
    p->to = c->out[0].dtype;
    p->size = dtype_size(p->from);
    p->count = positions(p->gone, p->ngone);
    if (p->count == 0)
        p->ngone = 0;
    ReduceAxis gone = p->ngone ? p->gone[p->ngone - 1] : (ReduceAxis){0};
    p->rows = !p->nkept || (gone.dim >= LANES && gone.xs < p->kept[p->nkept - 1].xs);
    p->column = p->rows ? (ReduceAxis){1, 1, 1} : p->kept[--p->nkept];
    p->outer = positions(p->kept, p->nkept);
    p->nstrip = (p->column.dim + STRIP - 1) / STRIP;
    p->block = p->rows ? BLOCK_RUN : MAX(BLOCK_ROWS, (p->count + BLOCK_MOST - 1) / BLOCK_MOST);
    if (p->outer * p->nstrip >= FEW || p->count == 0)
        p->block = MAX(p->count, 1);
    p->nblock = MAX((p->count + p->block - 1) / p->block, 1);
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    RowReduction p;
    fill_plan(&p, c);
    return p.nblock > 1 ? p.outer * p.nblock * p.column.dim * (int64_t)sizeof(double) : 0;
}

static void prepare(Call *c, Arena *a)
{
    RowReduction *p = NEW(a, RowReduction);
    fill_plan(p, c);
    c->state = p;
}

static int run(Call *c)
{
    RowReduction p = *(const RowReduction *)c->state;
    p.x = c->in[0].data;
    p.y = c->out[0].data;
    p.partial = (double *)c->work;
    int64_t task = MAX(1, MIN(STRIP, p.column.dim) * MIN(p.block, p.count));
    if (p.outer * p.column.dim == 0)
        return 0;
    par_for(p.outer * p.nblock * p.nstrip, 1 + (1 << 14) / task, run_tasks, &p);
    if (p.nblock > 1)
        par_for(p.outer * p.column.dim, 1024, join_blocks, &p);
    return 0;
}

static int lead_of(const Call *c)
{
    RowReduction p;
    fill_plan(&p, c);
    return p.rows && p.nblock == 1 ? reduce_lead(c->node, &c->in[0]) : -1;
}

/* A task is a row: there is one strip, and one block. */
static void run_rows(void *call, int64_t lo, int64_t hi)
{
    const Call *c = call;
    RowReduction p = *(const RowReduction *)c->state;
    p.x = c->in[0].data;
    p.y = c->out[0].data;
    run_tasks(&p, lo, hi);
}

const RowKernel reduce_row_kernel = {.in = "r", .out = "e", .lead = lead_of, .run = run_rows};

static bool accepts(const Call *c)
{
    DType d = c->in[0].dtype;
    if (d == I32)
        return tensor_nelem(&c->in[0]) <= 1 << 22; /* sums below 2^53 */
    return d == F32 || d == BF16 || d == F64 || d == BOOL;
}

const Kernel reduce_kernels[] = {
    {.name = "rows", .accepts = accepts, .workspace = workspace, .prepare = prepare, .run = run},
    {0}};
