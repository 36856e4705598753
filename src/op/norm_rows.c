/* The kernels along rows of layer_norm and rms_norm, forward and backward, and the reference of the
 * backward. `centered` says that it is layer_norm: a row's mean is subtracted, b is added. It is a
 * constant in each compiled row, as dtypes are.
 *
 * Numerics: layer_norm.c has the sums of a row. dw and db are added row by row within blocks of
 * rows, then over the blocks in order; blocks depend on the number of rows only, not on threads. */
#include "norm.h"

Type norm_stat_type(const Type *x, int lead)
{
    Type t = *x;
    t.dtype = stat_dtype(x->dtype);
    for (int d = lead; d < x->rank; d++)
        t.dim[d] = 1;
    return t;
}

Type norm_weight_type(const Node *n, int i, const Type *x, int lead)
{
    DType d = n->in[i]->type.dtype;
    return type_make(widens(x->dtype, d) ? d : x->dtype, x->rank - lead, x->dim + lead);
}

static bool centered(const Call *c)
{
    return c->nout == 3;
}

int norm_lead(const Call *c)
{
    return c->in[0].rank - c->in[1].rank;
}

static int backward_lead(const Call *c)
{
    return c->in[1].rank - c->in[c->nin - 1].rank;
}

/* ---- reference of the backward ---- */

static double ref_mean(const Call *c, int64_t r)
{
    return centered(c) ? get_at(&c->in[2], r) : 0;
}

/* Column j of dw and db. */
static void ref_weights(Call *c, int64_t rows, int64_t n, int64_t j)
{
    double dw = 0, db = 0;
    for (int64_t r = 0; r < rows; r++) {
        double dy = get_at(&c->in[0], r * n + j), x = get_at(&c->in[1], r * n + j);
        dw += dy * (x - ref_mean(c, r)) * get_at(&c->in[c->nin - 2], r);
        db += dy;
    }
    set_at(&c->out[1], j, dw);
    if (centered(c))
        set_at(&c->out[2], j, db);
}

static void ref_row(Call *c, int64_t r, int64_t n)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[c->nin - 1];
    double mean = ref_mean(c, r), rstd = get_at(&c->in[c->nin - 2], r), sum = 0, dot = 0;
    for (int64_t j = 0; j < n; j++) {
        double g = get_at(dy, r * n + j) * get_at(w, j);
        sum += centered(c) ? g / (double)n : 0;
        dot += g * (get_at(x, r * n + j) - mean) * rstd / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        double g = get_at(dy, r * n + j) * get_at(w, j), h = (get_at(x, r * n + j) - mean) * rstd;
        set_at(&c->out[0], r * n + j, rstd * (g - sum - h * dot));
    }
}

int norm_backward_ref(Call *c)
{
    int64_t n = tensor_nelem(&c->in[c->nin - 1]);
    int64_t rows = axes_nelem(&c->in[1], 0, backward_lead(c));
    for (int64_t j = 0; j < n; j++)
        ref_weights(c, rows, n, j);
    for (int64_t r = 0; r < rows; r++) /* last: dx may overwrite dy or x */
        ref_row(c, r, n);
    return 0;
}

/* ---- forward ---- */

/* The first nrows operands are rows; w and all others are contiguous. */
static bool accepts(const Call *c, int nrows, int lead, DType w)
{
    for (int i = 0; i < c->nin; i++)
        if (i < nrows ? !rows_contiguous(&c->in[i], lead) : !tensor_contiguous(&c->in[i]))
            return false;
    return rows_dtypes(c->in[0].dtype, w);
}

bool norm_accepts(const Call *c)
{
    return accepts(c, 1, norm_lead(c), c->in[1].dtype);
}

/* `next` is the row after it, or NULL. */
typedef struct NormRow {
    const void *x, *w, *b, *next;
    void *y;
    float *mean, *rstd;
    int64_t n;
    float eps;
    bool past; /* the caches */
} NormRow;

/* Fills the row's statistics. */
INLINE void row_moments(const NormRow *row, DType d, bool center, float *mean, float *rstd)
{
    const void *x = row->x;
    float s[LANES] = {0}, q[LANES] = {0}, o[LANES] = {0};
    int64_t n = row->n;
    if (!center) {
        EACH_LANE(n, i, j, s[j] += v_load(x, i, d) * v_load(x, i, d));
        *rstd = 1 / sqrtf(lanes_sum(s) / (float)n + row->eps);
        return;
    }
    EACH_LANE(n, i, j, s[j] += v_load(x, i, d));
    float m = lanes_sum(s) / (float)n;
    EACH_LANE(n, i, j, {
        float distance = v_load(x, i, d) - m;
        o[j] += distance;
        q[j] += distance * distance;
    });
    float off = lanes_sum(o) / (float)n, var = lanes_sum(q) / (float)n - off * off;
    *rstd = 1 / sqrtf((var < 0 ? 0 : var) + row->eps); /* NaN stays NaN */
    *mean = m + off;
}

/* x and y are of dtype d, w and b of dtype e. */
INLINE void norm_row(const NormRow *row, DType d, DType e, bool center)
{
    _Alignas(64) float buffer[CHUNK];
    const void *x = row->x, *w = row->w, *b = row->b;
    float m = 0, r;
    row_moments(row, d, center, &m, &r);
    *row->rstd = r;
    if (center)
        *row->mean = m;
    for (int64_t at = 0; at < row->n; at += CHUNK) {
        int64_t len = MIN(CHUNK, row->n - at);
        char *y = (char *)row->y + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : y;
        fetch_ahead(row->next, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++) {
            float h = (center ? v_load(x, at + i, d) - m : v_load(x, at + i, d)) * r;
            h *= v_load(w, at + i, e);
            v_store(to, i, center ? h + v_load(b, at + i, e) : h, d);
        }
        if (row->past)
            stream_store(y, buffer, len * dtype_size(d));
    }
}

#define NORM_ROW(name, d, e, center)                    \
    KERNEL_FMA(void, name, (const NormRow *row), (row)) \
    {                                                   \
        norm_row(row, d, e, center);                    \
    }
NORM_ROW(layer_f32, F32, F32, true)
NORM_ROW(layer_mixed, BF16, F32, true)
NORM_ROW(layer_bf16, BF16, BF16, true)
NORM_ROW(rms_f32, F32, F32, false)
NORM_ROW(rms_mixed, BF16, F32, false)
NORM_ROW(rms_bf16, BF16, BF16, false)

static void norm_part(const Call *c, int64_t lo, int64_t hi, bool past)
{
    const Tensor *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    bool center = centered(c);
    Rows rows = rows_of(x, norm_lead(c));
    NormRow row = {.w = w->data,
                   .b = center ? c->in[2].data : NULL,
                   .n = tensor_nelem(w),
                   .eps = (float)c->node->attr[center ? 1 : 0].f,
                   .past = past};
    for (int64_t r = lo; r < hi; r++) {
        row.x = element(x, row_offset(&rows, r));
        row.next = past && r + 1 < hi ? element(x, row_offset(&rows, r + 1)) : NULL;
        row.y = element(y, r * row.n);
        row.mean = f32(&c->out[1]) + r;
        row.rstd = f32(&c->out[c->nout - 1]) + r;
        (center ? ROWS_BY_DTYPE(x->dtype, w->dtype, layer)
                : ROWS_BY_DTYPE(x->dtype, w->dtype, rms))(&row);
    }
    if (past)
        stream_end();
}

void norm_rows(void *call, int64_t lo, int64_t hi)
{
    norm_part(call, lo, hi, false);
}

static void norm_rows_past(void *call, int64_t lo, int64_t hi)
{
    norm_part(call, lo, hi, true);
}

int norm_run(Call *c)
{
    par_for(tensor_nelem(&c->out[1]), row_grain(tensor_nelem(&c->in[1])),
            tensor_past(&c->out[0], &c->in[0]) ? norm_rows_past : norm_rows, c);
    return 0;
}

/* ---- backward ---- */

/* Partial sums of dw, and after them of db, lie in the workspace, `width` numbers for each block
 * of rows. */
typedef struct NormBlocks {
    const Call *c;
    Rows dy, x;
    int64_t n, width, rows, block, nblock;
} NormBlocks;

static NormBlocks backward_of(const Call *c)
{
    int lead = backward_lead(c);
    NormBlocks k = {.c = c, .dy = rows_of(&c->in[0], lead), .x = rows_of(&c->in[1], lead)};
    k.n = tensor_nelem(&c->in[c->nin - 1]);
    k.width = centered(c) ? 2 * k.n : k.n;
    k.rows = axes_nelem(&c->in[1], 0, lead);
    k.block = row_block(k.rows);
    k.nblock = (k.rows + k.block - 1) / k.block;
    return k;
}

bool norm_backward_accepts(const Call *c)
{
    return accepts(c, 2, backward_lead(c), c->in[c->nin - 1].dtype);
}

int64_t norm_backward_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    NormBlocks k = backward_of(c);
    return k.nblock * k.width * (int64_t)sizeof(float);
}

/* A row of the backward, as that of the forward. */
typedef struct NormBackRow {
    const void *dy, *x, *w, *next_dy, *next_x;
    void *dx;
    float *dw, *db;
    float mean, rstd;
    int64_t n;
    bool past;
} NormBackRow;

/* dx of a row; its parts of dw and db are added. dy, x and dx are of dtype d, w of dtype e. */
INLINE void backward_row(const NormBackRow *row, DType d, DType e, bool center)
{
    _Alignas(64) float buffer[CHUNK];
    const void *dy = row->dy, *x = row->x, *w = row->w;
    float *restrict dw = row->dw, *restrict db = row->db;
    float mean = row->mean, rstd = row->rstd, s[LANES] = {0}, q[LANES] = {0};
    int64_t n = row->n;
    EACH_LANE_AND(n, i, j, fetch_group(row->next_dy, group, dtype_size(d)), {
        float y = v_load(dy, i, d);
        float h = (center ? v_load(x, i, d) - mean : v_load(x, i, d)) * rstd, part = y * h;
        dw[i] += part;
        if (center) {
            float g = y * v_load(w, i, e);
            db[i] += y;
            s[j] += g;
            q[j] += g * h;
        } else {
            q[j] += part * v_load(w, i, e);
        }
    });
    float least = center ? rstd * (lanes_sum(s) / (float)n) : 0;
    float slope = rstd * (lanes_sum(q) / (float)n);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = MIN(CHUNK, n - at);
        char *dx = (char *)row->dx + at * dtype_size(d);
        void *to = row->past ? (void *)buffer : dx;
        fetch_ahead(row->next_x, at, len, dtype_size(d));
        INDEPENDENT
        for (int64_t i = 0; i < len; i++) {
            float g = v_load(dy, at + i, d) * v_load(w, at + i, e) * rstd;
            float h = (center ? v_load(x, at + i, d) - mean : v_load(x, at + i, d)) * rstd;
            v_store(to, i, (center ? g - least : g) - h * slope, d);
        }
        if (row->past)
            stream_store(dx, buffer, len * dtype_size(d));
    }
}

#define BACKWARD_ROW(name, d, e, center)                    \
    KERNEL_FMA(void, name, (const NormBackRow *row), (row)) \
    {                                                       \
        backward_row(row, d, e, center);                    \
    }
BACKWARD_ROW(layer_backward_f32, F32, F32, true)
BACKWARD_ROW(layer_backward_mixed, BF16, F32, true)
BACKWARD_ROW(layer_backward_bf16, BF16, BF16, true)
BACKWARD_ROW(rms_backward_f32, F32, F32, false)
BACKWARD_ROW(rms_backward_mixed, BF16, F32, false)
BACKWARD_ROW(rms_backward_bf16, BF16, BF16, false)

static void backward_block(const NormBlocks *k, int64_t b, bool past)
{
    const Call *c = k->c;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *w = &c->in[c->nin - 1];
    bool center = centered(c);
    int64_t end = MIN(k->rows, (b + 1) * k->block);
    float *dw = (float *)c->work + b * k->width;
    NormBackRow row = {.w = w->data, .dw = dw, .db = dw + k->n, .n = k->n, .past = past};
    memset(dw, 0, sizeof(float) * (size_t)k->width);
    for (int64_t r = b * k->block; r < end; r++) {
        bool next = past && r + 1 < end;
        row.dy = element(dy, row_offset(&k->dy, r));
        row.x = element(x, row_offset(&k->x, r));
        row.next_dy = element(dy, row_offset(&k->dy, r + next));
        row.next_x = next ? element(x, row_offset(&k->x, r + 1)) : NULL;
        row.dx = element(&c->out[0], r * k->n);
        row.mean = center ? f32(&c->in[2])[r] : 0;
        row.rstd = f32(&c->in[c->nin - 2])[r];
        (center ? ROWS_BY_DTYPE(x->dtype, w->dtype, layer_backward)
                : ROWS_BY_DTYPE(x->dtype, w->dtype, rms_backward))(&row);
    }
}

static void backward_blocks(void *arg, int64_t lo, int64_t hi)
{
    const NormBlocks *k = arg;
    const Tensor *in = k->c->in, *dx = &k->c->out[0];
    bool past = tensor_past(dx, &in[0]) && tensor_past(dx, &in[1]);
    for (int64_t b = lo; b < hi; b++)
        backward_block(k, b, past);
    if (past)
        stream_end();
}

static void add_blocks(void *arg, int64_t lo, int64_t hi)
{
    const NormBlocks *k = arg;
    const float *part = (const float *)k->c->work;
    for (int i = 1; i < k->c->nout; i++)
        rows_sum_to(&k->c->out[i], part + (i - 1) * k->n, k->nblock, k->width, lo, hi);
}

int norm_backward_run(Call *c)
{
    NormBlocks k = backward_of(c);
    par_for(k.nblock, row_grain(k.block * k.n), backward_blocks, &k);
    par_for(k.n, row_grain(k.nblock), add_blocks, &k);
    return 0;
}
