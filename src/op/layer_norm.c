/* native_layer_norm and its backward (Ba, Kiros and Hinton 2016, arXiv:1607.06450; ATen's
 * semantics).
 *
 * x has shape [rows..., normalized_shape...]; with m and r = 1 / sqrt(var + eps) of each row,
 *   y = (x - m) r w + b, and with h = (x - m) r, g = dy w, means over the row:
 *   dx = r (g - mean(g) - h mean(g h)), dw = sum over rows of dy h, db = sum over rows of dy.
 * Outputs mean and rstd have shape [rows..., 1...] and dtype f32 (f64 where x is f64). w and b, and
 * then dw and db, have x's dtype or f32.
 *
 * Numerics: the kernels compute in f32 and round results once. They add each row in LANES partial
 * sums, the variance from deviations (two loops over a row that is in cache). The mean of these is
 * what the first sum was rounded by, and corrects both (Chan, Golub and LeVeque 1983): a row of
 * equal numbers x gives b, where r |x| 2^-24 would be its error else, r up to eps^-1/2. dw and db
 * are added row by row within blocks of rows, and over the blocks in order; the blocks depend on
 * the number of rows only, not on threads. */
#include "rows.h"

enum { SHAPE, EPS };

static const AttrField attrs[] = {
    {"normalized_shape", ATTR_INTS, .required = true},
    {"eps", ATTR_FLOAT, .f = 1e-5},
    {0},
};

static const AttrField backward_attrs[] = {{"normalized_shape", ATTR_INTS, .required = true}, {0}};

/* Number of axes of operand `of` before the normalized ones, which must agree. */
static int need_lead(const Graph *g, const Node *n, int of)
{
    const Type *x = &n->in[of]->type;
    const Attr *shape = &n->attr[SHAPE];
    int lead = x->rank - (int)shape->i;
    need_float(g, n, of);
    if (shape->i < 1 || lead < 0)
        fail_node(g, n, "normalized_shape: expected 1 to %d axes, found %lld", x->rank,
                  (long long)shape->i);
    for (int d = lead; d < x->rank; d++)
        if (x->dim[d] != shape->ints[d - lead])
            fail_node(g, n,
                      "normalized_shape: expected the last axes of %s, found %lld for axis %d",
                      type_text(g->a, x), (long long)shape->ints[d - lead], d);
    return lead;
}

static Type stat_type(const Type *x, int lead)
{
    Type t = *x;
    t.dtype = stat_dtype(x->dtype);
    for (int d = lead; d < x->rank; d++)
        t.dim[d] = 1;
    return t;
}

/* The type that operand i, w, must have. */
static Type weight_type(const Node *n, int i, const Type *x, int lead)
{
    DType d = n->in[i]->type.dtype;
    return type_make(widens(x->dtype, d) ? d : x->dtype, x->rank - lead, x->dim + lead);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    int lead = need_lead(g, n, 0);
    Type w = weight_type(n, 1, x, lead);
    need_type(g, n, 1, &w);
    need_type(g, n, 2, &w);
    out[0] = *x;
    out[1] = out[2] = stat_type(x, lead);
    return 3;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[1]->type;
    int lead = need_lead(g, n, 1);
    Type w = weight_type(n, 4, x, lead), stat = stat_type(x, lead);
    need_type(g, n, 0, x);
    need_type(g, n, 2, &stat);
    need_type(g, n, 3, &stat);
    need_type(g, n, 4, &w);
    out[0] = *x;
    out[1] = out[2] = w;
    return 3;
}

/* What reaches x through the outputs mean (its gradient dmean) and rstd (drstd); either may be
 * NULL: dmean / C - drstd rstd^3 (x - mean) / C. */
static Value *stats_diff(Build *b, const Node *n, Value *dmean, Value *drstd)
{
    Value *x = n->in[0], *mean = n->out[1], *rstd = n->out[2];
    DType stat = mean->type.dtype;
    double count = (double)type_nelem(&n->in[1]->type);
    Value *sum = NULL;
    if (drstd) {
        Value *cube = emit1(b, "mul", IN(rstd, emit1(b, "mul", IN(rstd, rstd), NOATTRS)), NOATTRS);
        Value *scale = emit1(b, "mul", IN(drstd, emit_full(b, -1 / count, stat)), NOATTRS);
        Value *centered = emit1(b, "sub", IN(emit_cast(b, x, stat), mean), NOATTRS);
        sum = emit1(b, "mul", IN(emit1(b, "mul", IN(cube, scale), NOATTRS), centered), NOATTRS);
    }
    if (dmean) {
        Value *part = emit1(b, "mul", IN(dmean, emit_full(b, 1 / count, stat)), NOATTRS);
        part = emit1(b, "expand", IN(part), ATTRS(A_INTS("size", x->type.rank, x->type.dim)));
        sum = sum ? emit1(b, "add", IN(sum, part), NOATTRS) : part;
    }
    return emit_cast(b, sum, x->type.dtype);
}

static void diff(Grad *d)
{
    Node *n = d->n;
    Value *dmean = d->dy[1], *drstd = d->dy[2];
    if (d->dy[0]) {
        Node *back = emit(d->b, "native_layer_norm_backward",
                          IN(d->dy[0], n->in[0], n->out[1], n->out[2], n->in[1]),
                          ATTRS(A_INTS("normalized_shape", n->attr[SHAPE].i, n->attr[SHAPE].ints)));
        for (int i = 0; i < 3; i++)
            d->dx[i] = d->need[i] ? back->out[i] : NULL;
    }
    if (d->need[0] && (dmean || drstd)) {
        Value *part = stats_diff(d->b, n, dmean, drstd);
        d->dx[0] = d->dx[0] ? emit1(d->b, "add", IN(d->dx[0], part), NOATTRS) : part;
    }
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 7 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static Cost backward_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 14 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static int lead_axes(const Node *n)
{
    return n->in[0]->type.rank - (int)n->attr[SHAPE].i;
}

static void factors(const Node *n, Factors *f)
{
    factors_split(n, f, lead_axes(n), FACTOR_PARALLEL, "xoo", "xbb");
}

static void backward_factors(const Node *n, Factors *f)
{
    factors_split(n, f, lead_axes(n), FACTOR_SUM, "xxbbo", "xoo");
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t n = tensor_nelem(&c->in[1]), rows = axes_nelem(x, 0, lead_axes(c->node));
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < n; j++)
            mean += get_at(x, r * n + j);
        mean /= (double)n;
        for (int64_t j = 0; j < n; j++)
            var += pow(get_at(x, r * n + j) - mean, 2);
        double rstd = 1 / sqrt(var / (double)n + c->node->attr[EPS].f);
        set_at(&c->out[1], r, mean);
        set_at(&c->out[2], r, rstd);
        for (int64_t j = 0; j < n; j++)
            set_at(&c->out[0], r * n + j,
                   (get_at(x, r * n + j) - mean) * rstd * get_at(&c->in[1], j) +
                       get_at(&c->in[2], j));
    }
    return 0;
}

/* Column j of dw and db. */
static void ref_weights(Call *c, int64_t rows, int64_t n, int64_t j)
{
    double dw = 0, db = 0;
    for (int64_t r = 0; r < rows; r++) {
        double dy = get_at(&c->in[0], r * n + j);
        dw += dy * (get_at(&c->in[1], r * n + j) - get_at(&c->in[2], r)) * get_at(&c->in[3], r);
        db += dy;
    }
    set_at(&c->out[1], j, dw);
    set_at(&c->out[2], j, db);
}

static void ref_row(Call *c, int64_t r, int64_t n)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[4];
    double mean = get_at(&c->in[2], r), rstd = get_at(&c->in[3], r), sum = 0, dot = 0;
    for (int64_t j = 0; j < n; j++) {
        double g = get_at(dy, r * n + j) * get_at(w, j);
        sum += g / (double)n;
        dot += g * (get_at(x, r * n + j) - mean) * rstd / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        double g = get_at(dy, r * n + j) * get_at(w, j), h = (get_at(x, r * n + j) - mean) * rstd;
        set_at(&c->out[0], r * n + j, rstd * (g - sum - h * dot));
    }
}

static int backward_ref(Call *c)
{
    int64_t n = tensor_nelem(&c->in[4]), rows = axes_nelem(&c->in[1], 0, lead_axes(c->node));
    for (int64_t j = 0; j < n; j++)
        ref_weights(c, rows, n, j);
    for (int64_t r = 0; r < rows; r++) /* last: dx may overwrite dy or x */
        ref_row(c, r, n);
    return 0;
}

/* ---- kernels: rows with any strides, each row contiguous ---- */

static bool accepts(const Call *c)
{
    for (int i = 1; i < c->nin; i++)
        if (!tensor_contiguous(&c->in[i]))
            return false;
    return rows_dtypes(c->in[0].dtype, c->in[1].dtype) &&
           rows_contiguous(&c->in[0], lead_axes(c->node));
}

/* A row of the forward; `next` is the one after it, or NULL. */
typedef struct Row {
    const void *x, *w, *b, *next;
    void *y;
    float *mean, *rstd;
    int64_t n;
    float eps;
    bool past; /* the caches */
} Row;

/* x and y are of dtype d, w and b of dtype e. */
INLINE void norm_row(const Row *row, DType d, DType e)
{
    _Alignas(64) float buffer[CHUNK];
    const void *x = row->x, *w = row->w, *b = row->b;
    float s[LANES] = {0}, q[LANES] = {0}, o[LANES] = {0};
    int64_t n = row->n;
    EACH_LANE(n, i, j, s[j] += v_load(x, i, d));
    float m = lanes_sum(s) / (float)n;
    EACH_LANE(n, i, j, {
        float centered = v_load(x, i, d) - m;
        o[j] += centered;
        q[j] += centered * centered;
    });
    float off = lanes_sum(o) / (float)n, var = lanes_sum(q) / (float)n - off * off;
    float r = 1 / sqrtf((var < 0 ? 0 : var) + row->eps); /* NaN stays NaN */
    m += off;
    *row->mean = m;
    *row->rstd = r;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = MIN(CHUNK, n - at);
        char *y = (char *)row->y + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : y;
        fetch_ahead(row->next, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++)
            v_store(to, i,
                    (v_load(x, at + i, d) - m) * r * v_load(w, at + i, e) + v_load(b, at + i, e),
                    d);
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
    Rows rows = rows_of(x, lead_axes(c->node));
    Row row = {.w = w->data,
               .b = c->in[2].data,
               .n = tensor_nelem(w),
               .eps = (float)c->node->attr[EPS].f,
               .past = past};
    for (int64_t r = lo; r < hi; r++) {
        row.x = element(x, row_offset(&rows, r));
        row.next = past && r + 1 < hi ? element(x, row_offset(&rows, r + 1)) : NULL;
        row.y = element(y, r * row.n);
        row.mean = f32(&c->out[1]) + r;
        row.rstd = f32(&c->out[2]) + r;
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
    par_for(tensor_nelem(&c->out[1]), row_grain(tensor_nelem(&c->in[1])),
            tensor_past(&c->out[0], &c->in[0]) ? norm_rows_past : norm_rows, c);
    return 0;
}

static const Kernel kernels[] = {{.name = "layer_norm_rows", .accepts = accepts, .run = run}, {0}};

static int lead_of(const Call *c)
{
    return lead_axes(c->node);
}

static const RowKernel row_kernel = {.in = "raa", .out = "ree", .lead = lead_of, .run = norm_rows};

/* Partial sums of dw and db, one pair for each block of rows, lie in the workspace. */
typedef struct Backward {
    const Call *c;
    Rows dy, x;
    int64_t n, rows, block, nblock;
} Backward;

static Backward backward_of(const Call *c)
{
    int lead = lead_axes(c->node);
    Backward k = {.c = c, .dy = rows_of(&c->in[0], lead), .x = rows_of(&c->in[1], lead)};
    k.n = tensor_nelem(&c->in[4]);
    k.rows = axes_nelem(&c->in[1], 0, lead);
    k.block = row_block(k.rows);
    k.nblock = (k.rows + k.block - 1) / k.block;
    return k;
}

static bool backward_accepts(const Call *c)
{
    int lead = lead_axes(c->node);
    for (int i = 2; i < c->nin; i++)
        if (!tensor_contiguous(&c->in[i]))
            return false;
    return rows_dtypes(c->in[1].dtype, c->in[4].dtype) && rows_contiguous(&c->in[0], lead) &&
           rows_contiguous(&c->in[1], lead);
}

static int64_t backward_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    Backward k = backward_of(c);
    return 2 * k.nblock * k.n * (int64_t)sizeof(float);
}

/* A row of the backward, as that of the forward. */
typedef struct BackRow {
    const void *dy, *x, *w, *next_dy, *next_x;
    void *dx;
    float *dw, *db;
    float mean, rstd;
    int64_t n;
    bool past;
} BackRow;

/* dx of a row; its parts of dw and db are added. dy, x and dx are of dtype d, w of dtype e. */
INLINE void backward_row(const BackRow *row, DType d, DType e)
{
    _Alignas(64) float buffer[CHUNK];
    const void *dy = row->dy, *x = row->x, *w = row->w;
    float *restrict dw = row->dw, *restrict db = row->db;
    float mean = row->mean, rstd = row->rstd, s[LANES] = {0}, q[LANES] = {0};
    int64_t n = row->n;
    EACH_LANE_AND(n, i, j, fetch_group(row->next_dy, group, dtype_size(d)), {
        float y = v_load(dy, i, d), h = (v_load(x, i, d) - mean) * rstd, g = y * v_load(w, i, e);
        dw[i] += y * h;
        db[i] += y;
        s[j] += g;
        q[j] += g * h;
    });
    float least = rstd * (lanes_sum(s) / (float)n);
    float slope = rstd * (lanes_sum(q) / (float)n);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = MIN(CHUNK, n - at);
        char *dx = (char *)row->dx + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : dx;
        fetch_ahead(row->next_x, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++) {
            float g = v_load(dy, at + i, d) * v_load(w, at + i, e);
            v_store(to, i, (g * rstd - least) - (v_load(x, at + i, d) - mean) * rstd * slope, d);
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
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[4];
    int64_t end = MIN(k->rows, (b + 1) * k->block);
    float *dw = (float *)c->work + 2 * b * k->n;
    BackRow row = {.w = w->data, .dw = dw, .db = dw + k->n, .n = k->n, .past = past};
    memset(dw, 0, sizeof(float) * 2 * (size_t)k->n);
    for (int64_t r = b * k->block; r < end; r++) {
        bool next = past && r + 1 < end;
        row.dy = element(dy, row_offset(&k->dy, r));
        row.x = element(x, row_offset(&k->x, r));
        row.next_dy = element(dy, row_offset(&k->dy, r + next));
        row.next_x = next ? element(x, row_offset(&k->x, r + 1)) : NULL;
        row.dx = element(&c->out[0], r * k->n);
        row.mean = f32(&c->in[2])[r];
        row.rstd = f32(&c->in[3])[r];
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
    const float *part = (float *)k->c->work;
    rows_sum_to(&k->c->out[1], part, k->nblock, 2 * k->n, lo, hi);
    rows_sum_to(&k->c->out[2], part + k->n, k->nblock, 2 * k->n, lo, hi);
}

static int backward_run(Call *c)
{
    Backward k = backward_of(c);
    par_for(k.nblock, row_grain(k.block * k.n), backward_blocks, &k);
    par_for(k.n, row_grain(k.nblock), add_blocks, &k);
    return 0;
}

static const Kernel backward_kernels[] = {
    {.name = "layer_norm_backward_rows",
     .accepts = backward_accepts,
     .workspace = backward_workspace,
     .run = backward_run},
    {0},
};

const OpRules op_native_layer_norm = {
    .math = "y = (x - mean(x)) rstd(x) w + b over the last axes; also mean and rstd",
    .example = "f32[2, 8, 4] f32[4] f32[4] normalized_shape=[4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.native_layer_norm.default",
};

const OpRules op_native_layer_norm_backward = {
    .math = "dx = rstd (dy w - mean(dy w) - h mean(dy w h)), h = (x - mean) rstd; dw = sum dy h; "
            "db = sum dy",
    .example = "f32[2, 8, 4] f32[2, 8, 4] f32[2, 8, 1] f32[2, 8, 1] f32[4] normalized_shape=[4]",
    .attrs = backward_attrs,
    .infer = backward_infer,
    .cost = backward_cost,
    .factors = backward_factors,
    .inplace = {1 | 2},
    .kernels = backward_kernels,
    .ref = backward_ref,
    .alias = "aten.native_layer_norm_backward.default",
};
