/* rms_norm and its backward (Zhang and Sennrich 2019, arXiv:1910.07467), over the last axis.
 *
 * With r = 1 / sqrt(mean(x^2) + eps) of each row of C elements, y = x r w, and with g = dy w:
 *   dx = r (g - h mean(g h)), h = x r, dw = sum over rows of dy h.
 * Output rstd has shape [rows..., 1] and dtype f32 (f64 where x is f64). w and dw have x's dtype or
 * f32.
 *
 * Numerics: as in layer_norm.c: in f32, LANES partial sums in a row, blocks of rows for dw. */
#include "rows.h"

enum { EPS };

static const AttrField attrs[] = {{"eps", ATTR_FLOAT, .f = 1e-5}, {0}};

static Type stat_type(const Type *x)
{
    Type t = *x;
    t.dtype = stat_dtype(x->dtype);
    t.dim[x->rank - 1] = 1;
    return t;
}

/* The type that operand i, w, must have. */
static Type weight_type(const Node *n, int i, const Type *x)
{
    DType d = n->in[i]->type.dtype;
    return type_make(widens(x->dtype, d) ? d : x->dtype, 1, x->dim + x->rank - 1);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_float(g, n, 0);
    need_rank(g, n, 0, 1, TN_RANK);
    Type w = weight_type(n, 1, x);
    need_type(g, n, 1, &w);
    out[0] = *x;
    out[1] = stat_type(x);
    return 2;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[1]->type;
    need_float(g, n, 1);
    need_rank(g, n, 1, 1, TN_RANK);
    Type w = weight_type(n, 3, x), stat = stat_type(x);
    need_type(g, n, 0, x);
    need_type(g, n, 2, &stat);
    need_type(g, n, 3, &w);
    out[0] = *x;
    out[1] = w;
    return 2;
}

/* What reaches x through the output rstd: -drstd rstd^3 x / C. */
static Value *stats_diff(Build *b, const Node *n, Value *drstd)
{
    Value *x = n->in[0], *rstd = n->out[1];
    DType stat = rstd->type.dtype;
    double count = (double)n->in[1]->type.dim[0];
    Value *cube = emit1(b, "mul", IN(rstd, emit1(b, "mul", IN(rstd, rstd), NOATTRS)), NOATTRS);
    Value *scale = emit1(b, "mul", IN(drstd, emit_full(b, -1 / count, stat)), NOATTRS);
    Value *row = emit1(b, "mul", IN(cube, scale), NOATTRS);
    return emit_cast(b, emit1(b, "mul", IN(row, emit_cast(b, x, stat)), NOATTRS), x->type.dtype);
}

static void diff(Grad *d)
{
    Node *n = d->n;
    if (d->dy[0]) {
        Node *back =
            emit(d->b, "rms_norm_backward", IN(d->dy[0], n->in[0], n->out[1], n->in[1]), NOATTRS);
        for (int i = 0; i < 2; i++)
            d->dx[i] = d->need[i] ? back->out[i] : NULL;
    }
    if (d->need[0] && d->dy[1]) {
        Value *part = stats_diff(d->b, n, d->dy[1]);
        d->dx[0] = d->dx[0] ? emit1(d->b, "add", IN(d->dx[0], part), NOATTRS) : part;
    }
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 4 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static Cost backward_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 10 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[0]->type.rank - 1, FACTOR_PARALLEL, "xo", "xb");
}

static void backward_factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[0]->type.rank - 1, FACTOR_SUM, "xxbo", "xo");
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t n = c->in[1].dim[0], rows = tensor_nelem(&c->out[1]);
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t j = 0; j < n; j++)
            square += pow(get_at(x, r * n + j), 2) / (double)n;
        double rstd = 1 / sqrt(square + c->node->attr[EPS].f);
        set_at(&c->out[1], r, rstd);
        for (int64_t j = 0; j < n; j++)
            set_at(&c->out[0], r * n + j, get_at(x, r * n + j) * rstd * get_at(&c->in[1], j));
    }
    return 0;
}

static void ref_weight(Call *c, int64_t rows, int64_t n, int64_t j)
{
    double dw = 0;
    for (int64_t r = 0; r < rows; r++)
        dw += get_at(&c->in[0], r * n + j) * get_at(&c->in[1], r * n + j) * get_at(&c->in[2], r);
    set_at(&c->out[1], j, dw);
}

static void ref_row(Call *c, int64_t r, int64_t n)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[3];
    double rstd = get_at(&c->in[2], r), dot = 0;
    for (int64_t j = 0; j < n; j++)
        dot += get_at(dy, r * n + j) * get_at(w, j) * get_at(x, r * n + j) * rstd / (double)n;
    for (int64_t j = 0; j < n; j++) {
        double g = get_at(dy, r * n + j) * get_at(w, j), h = get_at(x, r * n + j) * rstd;
        set_at(&c->out[0], r * n + j, rstd * (g - h * dot));
    }
}

static int backward_ref(Call *c)
{
    int64_t n = c->in[3].dim[0], rows = tensor_nelem(&c->in[2]);
    for (int64_t j = 0; j < n; j++)
        ref_weight(c, rows, n, j);
    for (int64_t r = 0; r < rows; r++) /* last: dx may overwrite dy or x */
        ref_row(c, r, n);
    return 0;
}

/* ---- kernels: rows with any strides, each row contiguous ---- */

/* The first nrows operands are rows, w is the last. */
static bool accepts_rows(const Call *c, int nrows)
{
    for (int i = 0; i < c->nin; i++)
        if (i < nrows ? !rows_contiguous(&c->in[i], c->in[0].rank - 1)
                      : !tensor_contiguous(&c->in[i]))
            return false;
    return rows_dtypes(c->in[0].dtype, c->in[c->nin - 1].dtype);
}

static bool accepts(const Call *c)
{
    return accepts_rows(c, 1);
}

/* A row of the forward; `next` is the one after it, or NULL. */
typedef struct Row {
    const void *x, *w, *next;
    void *y;
    float *rstd;
    int64_t n;
    float eps;
    bool past; /* the caches */
} Row;

/* x and y are of dtype d, w of dtype e. */
INLINE void norm_row(const Row *row, DType d, DType e)
{
    _Alignas(64) float buffer[CHUNK];
    const void *x = row->x, *w = row->w;
    float s[LANES] = {0};
    int64_t n = row->n;
    EACH_LANE(n, i, j, s[j] += v_load(x, i, d) * v_load(x, i, d));
    float r = 1 / sqrtf(lanes_sum(s) / (float)n + row->eps);
    *row->rstd = r;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = MIN(CHUNK, n - at);
        char *y = (char *)row->y + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : y;
        fetch_ahead(row->next, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++)
            v_store(to, i, v_load(x, at + i, d) * r * v_load(w, at + i, e), d);
        if (row->past)
            stream_store(y, buffer, len * dtype_size(d));
    }
}

#define NORM_ROW(name, d, e)                        \
    KERNEL_FMA(void, name, (const Row *row), (row)) \
    {                                               \
        norm_row(row, d, e);                        \
    }
NORM_ROW(norm_f32, F32, F32)
NORM_ROW(norm_mixed, BF16, F32)
NORM_ROW(norm_bf16, BF16, BF16)

static void norm_part(const Call *c, int64_t lo, int64_t hi, bool past)
{
    const Tensor *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    Rows rows = rows_of(x, x->rank - 1);
    Row row = {.w = w->data, .n = w->dim[0], .eps = (float)c->node->attr[EPS].f, .past = past};
    for (int64_t r = lo; r < hi; r++) {
        row.x = element(x, row_offset(&rows, r));
        row.next = past && r + 1 < hi ? element(x, row_offset(&rows, r + 1)) : NULL;
        row.y = element(y, r * row.n);
        row.rstd = f32(&c->out[1]) + r;
        ROWS_BY_DTYPE(x->dtype, w->dtype, norm)(&row);
    }
    if (past)
        stream_end();
}

static void norm_rows(void *arg, int64_t lo, int64_t hi)
{
    norm_part(arg, lo, hi, false);
}

static void norm_rows_past(void *arg, int64_t lo, int64_t hi)
{
    norm_part(arg, lo, hi, true);
}

static int run(Call *c)
{
    par_for(tensor_nelem(&c->out[1]), row_grain(c->in[1].dim[0]),
            tensor_past(&c->out[0], &c->in[0]) ? norm_rows_past : norm_rows, c);
    return 0;
}

static const Kernel kernels[] = {{.name = "rms_norm_rows", .accepts = accepts, .run = run}, {0}};

static int lead_of(const Call *c)
{
    return c->in[0].rank - 1;
}

static const RowKernel row_kernel = {.in = "ra", .out = "re", .lead = lead_of, .run = norm_rows};

/* Partial sums of dw, one for each block of rows, lie in the workspace. */
typedef struct Backward {
    const Call *c;
    Rows dy, x;
    int64_t n, rows, block, nblock;
} Backward;

static Backward backward_of(const Call *c)
{
    int lead = c->in[0].rank - 1;
    Backward k = {.c = c, .dy = rows_of(&c->in[0], lead), .x = rows_of(&c->in[1], lead)};
    k.n = c->in[3].dim[0];
    k.rows = tensor_nelem(&c->in[2]);
    k.block = row_block(k.rows);
    k.nblock = (k.rows + k.block - 1) / k.block;
    return k;
}

static bool backward_accepts(const Call *c)
{
    return accepts_rows(c, 2);
}

static int64_t backward_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    Backward k = backward_of(c);
    return k.nblock * k.n * (int64_t)sizeof(float);
}

/* A row of the backward, as that of the forward. */
typedef struct BackRow {
    const void *dy, *x, *w, *next_dy, *next_x;
    void *dx;
    float *dw;
    float rstd;
    int64_t n;
    bool past;
} BackRow;

/* dx of a row; its part of dw is added. dy, x and dx are of dtype d, w of dtype e. */
INLINE void backward_row(const BackRow *row, DType d, DType e)
{
    _Alignas(64) float buffer[CHUNK];
    const void *dy = row->dy, *x = row->x, *w = row->w;
    float *restrict dw = row->dw, rstd = row->rstd, s[LANES] = {0};
    int64_t n = row->n;
    EACH_LANE_AND(n, i, j, fetch_group(row->next_dy, group, dtype_size(d)), {
        float part = v_load(dy, i, d) * (v_load(x, i, d) * rstd);
        dw[i] += part;
        s[j] += part * v_load(w, i, e);
    });
    float slope = rstd * (lanes_sum(s) / (float)n);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = MIN(CHUNK, n - at);
        char *dx = (char *)row->dx + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : dx;
        fetch_ahead(row->next_x, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++) {
            float g = v_load(dy, at + i, d) * v_load(w, at + i, e);
            v_store(to, i, g * rstd - v_load(x, at + i, d) * rstd * slope, d);
        }
        if (row->past)
            stream_store(dx, buffer, len * dtype_size(d));
    }
}

#define BACKWARD_ROW(name, d, e)                        \
    KERNEL_FMA(void, name, (const BackRow *row), (row)) \
    {                                                   \
        backward_row(row, d, e);                        \
    }
BACKWARD_ROW(backward_f32, F32, F32)
BACKWARD_ROW(backward_mixed, BF16, F32)
BACKWARD_ROW(backward_bf16, BF16, BF16)

static void backward_block(const Backward *k, int64_t b, bool past)
{
    const Call *c = k->c;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[3];
    int64_t end = MIN(k->rows, (b + 1) * k->block);
    BackRow row = {.w = w->data, .dw = (float *)c->work + b * k->n, .n = k->n, .past = past};
    memset(row.dw, 0, sizeof(float) * (size_t)k->n);
    for (int64_t r = b * k->block; r < end; r++) {
        bool next = past && r + 1 < end;
        row.dy = element(dy, row_offset(&k->dy, r));
        row.x = element(x, row_offset(&k->x, r));
        row.next_dy = element(dy, row_offset(&k->dy, r + next));
        row.next_x = next ? element(x, row_offset(&k->x, r + 1)) : NULL;
        row.dx = element(&c->out[0], r * k->n);
        row.rstd = f32(&c->in[2])[r];
        ROWS_BY_DTYPE(x->dtype, w->dtype, backward)(&row);
    }
}

static void backward_blocks(void *arg, int64_t lo, int64_t hi)
{
    const Backward *k = arg;
    const Tensor *in = k->c->in, *dx = &k->c->out[0];
    bool past = tensor_past(dx, &in[0]) && tensor_past(dx, &in[1]);
    for (int64_t b = lo; b < hi; b++)
        backward_block(k, b, past);
    if (past)
        stream_end();
}

static void add_blocks(void *arg, int64_t lo, int64_t hi)
{
    const Backward *k = arg;
    rows_sum_to(&k->c->out[1], (const float *)k->c->work, k->nblock, k->n, lo, hi);
}

static int backward_run(Call *c)
{
    Backward k = backward_of(c);
    par_for(k.nblock, row_grain(k.block * k.n), backward_blocks, &k);
    par_for(k.n, row_grain(k.nblock), add_blocks, &k);
    return 0;
}

static const Kernel backward_kernels[] = {
    {.name = "rms_norm_backward_rows",
     .accepts = backward_accepts,
     .workspace = backward_workspace,
     .run = backward_run},
    {0},
};

const OpRules op_rms_norm = {
    .math = "y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps) over the last axis; also rstd",
    .example = "f32[2, 8, 4] f32[4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
};

const OpRules op_rms_norm_backward = {
    .math = "dx = rstd (dy w - h mean(dy w h)), h = x rstd; dw = sum dy h",
    .example = "f32[2, 8, 4] f32[2, 8, 4] f32[2, 8, 1] f32[4]",
    .infer = backward_infer,
    .cost = backward_cost,
    .factors = backward_factors,
    .inplace = {1 | 2},
    .kernels = backward_kernels,
    .ref = backward_ref,
};
