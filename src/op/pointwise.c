/* Walks over broadcast and strided tensors row by row, for kernels and lanes of pointwise ops, and
 * the element loops of their references. */
#include "pointwise.h"

/* ---- the walk ---- */

static void fill_strides(int64_t *stride, const Tensor *y, const Tensor *x)
{
    for (int d = 0; d < y->rank; d++) {
        int e = d - y->rank + x->rank;
        stride[d] = e >= 0 && x->dim[e] != 1 ? x->stride[e] : 0;
    }
}

/* Whether stepping axis d of every tensor continues axis e. */
static bool continues(const Walk *w, int d, int e)
{
    for (int k = 0; k < w->count; k++)
        if (w->stride[k][d] != w->stride[k][e] * w->dim[e])
            return false;
    return true;
}

static void merge_axes(Walk *w)
{
    int last = w->rank - 1; /* axes are gathered from the right, innermost first */
    int kept = last;
    for (int d = last; d >= 0; d--) {
        if (w->dim[d] == 1)
            continue;
        if (kept < last && continues(w, d, kept + 1)) {
            w->dim[kept + 1] *= w->dim[d];
            continue;
        }
        w->dim[kept] = w->dim[d];
        for (int k = 0; k < w->count; k++)
            w->stride[k][kept] = w->stride[k][d];
        kept--;
    }
    w->rank = last - kept;
    for (int d = 0; d < w->rank; d++) {
        w->dim[d] = w->dim[kept + 1 + d];
        for (int k = 0; k < w->count; k++)
            w->stride[k][d] = w->stride[k][kept + 1 + d];
    }
}

void walk_make(Walk *w, const Tensor *y, int nin, const Tensor *in)
{
    *w = (Walk){.rank = y->rank, .count = nin + 1, .nelem = tensor_nelem(y)};
    CHECK(w->count <= WALK_MOST);
    for (int d = 0; d < y->rank; d++)
        w->dim[d] = y->dim[d];
    fill_strides(w->stride[0], y, y);
    for (int k = 0; k < nin; k++)
        fill_strides(w->stride[k + 1], y, &in[k]);
    if (w->nelem > 0)
        merge_axes(w);
    if (w->rank == 0) { /* one element */
        w->rank = 1;
        w->dim[0] = 1;
    }
}

void walk_part(const Walk *w, int64_t lo, int64_t hi, WalkRow *fn, void *arg)
{
    int inner = w->rank - 1;
    int64_t ix[TN_RANK], at[WALK_MOST], step[WALK_MOST];
    for (int64_t d = inner, i = lo; d >= 0; d--) {
        ix[d] = i % w->dim[d];
        i /= w->dim[d];
    }
    for (int k = 0; k < w->count; k++)
        step[k] = w->stride[k][inner];
    while (lo < hi) {
        int64_t n = MIN(w->dim[inner] - ix[inner], hi - lo);
        for (int k = 0; k < w->count; k++) {
            at[k] = 0;
            for (int d = 0; d <= inner; d++)
                at[k] += ix[d] * w->stride[k][d];
        }
        fn(arg, n, at, step);
        lo += n;
        ix[inner] = 0;
        next_index(inner, w->dim, ix);
    }
}

typedef struct Cutting {
    int64_t nelem;
    void (*part)(void *arg, int64_t lo, int64_t hi);
    void *arg;
} Cutting;

enum { CUT = 64, GRAIN = 256 }; /* a thread gets at least 16384 elements */

static void run_cut(void *arg, int64_t lo, int64_t hi)
{
    const Cutting *cut = arg;
    cut->part(cut->arg, lo * CUT, MIN(hi * CUT, cut->nelem));
}

void walk_par(int64_t nelem, void (*part)(void *arg, int64_t lo, int64_t hi), void *arg)
{
    Cutting cut = {nelem, part, arg};
    par_for((nelem + CUT - 1) / CUT, GRAIN, run_cut, &cut);
}

/* ---- kernels ---- */

typedef struct PointwiseJob {
    const Call *c;
    RowFn *row;
    const void *arg;
    Walk walk;
} PointwiseJob;

static void run_row(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const PointwiseJob *job = arg;
    const Tensor *y = &job->c->out[0], *in = job->c->in;
    const void *x[WALK_MOST] = {0};
    for (int k = 0; k + 1 < job->walk.count; k++)
        x[k] = in[k].data + at[k + 1] * dtype_size(in[k].dtype);
    job->row(n, y->data + at[0] * dtype_size(y->dtype), x, stride + 1, job->arg);
}

static void run_part(void *arg, int64_t lo, int64_t hi)
{
    walk_part(&((PointwiseJob *)arg)->walk, lo, hi, run_row, arg);
}

/* ---- transposed operands ----
 *
 * Where an operand lies along another axis than the rows do, a row would touch one cache line for
 * each element. So the two axes are walked in tiles, and such operands are first copied, whole
 * lines of them, into a small buffer that the rows then read. */

enum { TILE_ROWS = 32, TILE_COLS = 64 };

typedef struct TileWork {
    const PointwiseJob *job;
    int axis; /* of the tile's rows; its columns are the inner axis */
    int64_t nrow, ncol;
    bool staged[WALK_MOST];
} TileWork;

static bool lies_along(const Walk *w, int k, int axis)
{
    int inner = w->rank - 1;
    return w->stride[k][inner] > 1 && w->stride[k][axis] == 1 && w->dim[axis] > 1;
}

static bool find_tiles(TileWork *t, const PointwiseJob *job)
{
    const Walk *w = &job->walk;
    bool found = false;
    *t = (TileWork){.job = job};
    for (int k = 1; k < w->count && !found; k++)
        for (int d = 0; d < w->rank - 1 && !found; d++)
            if ((found = lies_along(w, k, d)))
                t->axis = d;
    for (int k = 1; k < w->count && found; k++)
        t->staged[k] = lies_along(w, k, t->axis);
    t->nrow = (w->dim[t->axis] + TILE_ROWS - 1) / TILE_ROWS;
    t->ncol = (w->dim[w->rank - 1] + TILE_COLS - 1) / TILE_COLS;
    return found;
}

#define STAGE(bits)                                                                       \
    static void stage##bits(uint##bits##_t *to, const uint##bits##_t *from, int64_t rows, \
                            int64_t cols, int64_t stride)                                 \
    {                                                                                     \
        for (int64_t i = 0; i < cols; i++)                                                \
            for (int64_t j = 0; j < rows; j++)                                            \
                to[j * TILE_COLS + i] = from[i * stride + j];                             \
    }
STAGE(8)
STAGE(16)
STAGE(32)
STAGE(64)

static void stage(void *to, const void *from, int size, int64_t rows, int64_t cols, int64_t stride)
{
    switch (size) {
    case 1: stage8(to, from, rows, cols, stride); break;
    case 2: stage16(to, from, rows, cols, stride); break;
    case 4: stage32(to, from, rows, cols, stride); break;
    default: stage64(to, from, rows, cols, stride);
    }
}

/* Element offsets of tile i, and its first row and column. */
static void place_tile(const TileWork *t, int64_t i, int64_t *at, int64_t *row, int64_t *col)
{
    const Walk *w = &t->job->walk;
    int inner = w->rank - 1;
    *col = i % t->ncol * TILE_COLS;
    *row = i / t->ncol % t->nrow * TILE_ROWS;
    i /= t->ncol * t->nrow;
    for (int k = 0; k < w->count; k++)
        at[k] = *row * w->stride[k][t->axis] + *col * w->stride[k][inner];
    for (int d = inner - 1; d >= 0; d--) {
        if (d == t->axis)
            continue;
        for (int k = 0; k < w->count; k++)
            at[k] += i % w->dim[d] * w->stride[k][d];
        i /= w->dim[d];
    }
}

static void run_tile(const TileWork *t, int64_t i)
{
    const PointwiseJob *job = t->job;
    const Walk *w = &job->walk;
    _Alignas(64) char buffer[WALK_MOST][TILE_ROWS * TILE_COLS * sizeof(int64_t)];
    int64_t at[WALK_MOST], step[WALK_MOST], row, col;
    int inner = w->rank - 1;
    place_tile(t, i, at, &row, &col);
    int64_t rows = MIN(TILE_ROWS, w->dim[t->axis] - row);
    int64_t cols = MIN(TILE_COLS, w->dim[inner] - col);
    for (int k = 1; k < w->count; k++) {
        const Tensor *x = &job->c->in[k - 1];
        int size = dtype_size(x->dtype);
        step[k] = t->staged[k] ? 1 : w->stride[k][inner];
        if (t->staged[k])
            stage(buffer[k], x->data + at[k] * size, size, rows, cols, w->stride[k][inner]);
    }
    for (int64_t j = 0; j < rows; j++) {
        const Tensor *y = &job->c->out[0];
        const void *x[WALK_MOST] = {0};
        for (int k = 1; k < w->count; k++) {
            const Tensor *in = &job->c->in[k - 1];
            int64_t offset = at[k] + j * w->stride[k][t->axis];
            const char *from = t->staged[k] ? buffer[k] : in->data;
            x[k - 1] = from + (t->staged[k] ? j * TILE_COLS : offset) * dtype_size(in->dtype);
        }
        int64_t to = at[0] + j * w->stride[0][t->axis];
        job->row(cols, y->data + to * dtype_size(y->dtype), x, step + 1, job->arg);
    }
}

static void run_tiles(void *arg, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        run_tile(arg, i);
}

/* ---- results whose last axis is apart ----
 *
 * As the last column of a cat is: row functions have none, so their rows go through a buffer. */

typedef struct Apart {
    const PointwiseJob *job;
    RowFn *row;
    const void *arg;
    int64_t step; /* elements */
} Apart;

static void apart_row(int64_t n, void *out, const void *const *in, const int64_t *s,
                      const void *arg)
{
    enum { PART = 256 };
    const Apart *a = arg;
    const Call *c = a->job->c;
    _Alignas(64) char buffer[PART * sizeof(int64_t)];
    int64_t size = dtype_size(c->out[0].dtype);
    for (int64_t lo = 0; lo < n; lo += PART) {
        const void *x[WALK_MOST] = {0};
        for (int k = 0; k + 1 < a->job->walk.count; k++)
            x[k] = (const char *)in[k] + lo * s[k] * dtype_size(c->in[k].dtype);
        a->row(MIN(PART, n - lo), buffer, x, s, a->arg);
        copy_run((char *)out + lo * a->step * size, buffer, MIN(PART, n - lo), a->step * size, size,
                 size);
    }
}

int pointwise_run(Call *c, int nin, RowFn *row, const void *arg)
{
    PointwiseJob job = {.c = c, .row = row, .arg = arg};
    TileWork tiles;
    walk_make(&job.walk, &c->out[0], nin, c->in);
    int inner = job.walk.rank - 1;
    Apart apart = {&job, row, arg, job.walk.stride[0][inner]};
    if (job.walk.dim[inner] > 1 && apart.step != 1) {
        job.row = apart_row;
        job.arg = &apart;
    }
    if (job.walk.nelem > 0 && find_tiles(&tiles, &job)) {
        int64_t tile = job.walk.dim[tiles.axis] * job.walk.dim[job.walk.rank - 1];
        int64_t outer = job.walk.nelem / tile;
        par_for(outer * tiles.nrow * tiles.ncol, 4, run_tiles, &tiles);
    } else {
        walk_par(job.walk.nelem, run_part, &job);
    }
    return 0;
}

bool lane_is(LaneFn *l, RowFn *row)
{
    l->row = row;
    return row;
}

bool lane_of(LaneFn *l, const Call *c, RowSet set)
{
    DType d = c->in[0].dtype;
    for (int i = 1; i < c->nin; i++)
        if (c->in[i].dtype != d)
            return false;
    return lane_is(l, d == F32    ? set.f32
                      : d == BF16 ? set.bf16
                      : d == F64  ? set.f64
                      : d == I64  ? set.i64
                      : d == I32  ? set.i32
                                  : NULL);
}

static bool lane_accepts(const Call *c)
{
    return c->node->op->rules->lane(c, &(LaneFn){0});
}

int lane_run(Call *c)
{
    LaneFn l = {0};
    CHECK(c->node->op->rules->lane(c, &l));
    return pointwise_run(c, c->nin, l.row, &l.arg);
}

const Kernel lane_kernels[] = {
    {.name = "rows", .accepts = lane_accepts, .run = lane_run, .strided_out = true}, {0}};

/* ---- references ---- */

int64_t broadcast_at(const Tensor *y, const Tensor *x, const int64_t *ix)
{
    int64_t at = 0;
    for (int d = 0; d < x->rank; d++)
        if (x->dim[d] != 1)
            at += ix[d + y->rank - x->rank] * x->stride[d];
    return at;
}

void tensor_set_int(const Tensor *t, int64_t at, int64_t x)
{
    switch (t->dtype) {
    case I64: ((int64_t *)t->data)[at] = x; break;
    case I32: ((int32_t *)t->data)[at] = (int32_t)x; break;
    case U8: ((uint8_t *)t->data)[at] = (uint8_t)x; break;
    case BOOL: ((uint8_t *)t->data)[at] = x != 0; break;
    default: tensor_set(t, at, (double)x);
    }
}

int pointwise_ref1(Call *c, double (*f)(double), int64_t (*i)(int64_t))
{
    const Tensor *y = &c->out[0], *x = &c->in[0];
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        int64_t at = broadcast_at(y, y, ix), from = broadcast_at(y, x, ix);
        if (dtype_float(x->dtype))
            tensor_set(y, at, f(tensor_get(x, from)));
        else
            tensor_set_int(y, at, i(tensor_int(x, from)));
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

int pointwise_ref2(Call *c, double (*f)(double, double), int64_t (*i)(int64_t, int64_t))
{
    const Tensor *y = &c->out[0], *a = &c->in[0], *b = &c->in[1];
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        int64_t at = broadcast_at(y, y, ix);
        int64_t p = broadcast_at(y, a, ix), q = broadcast_at(y, b, ix);
        if (dtype_float(a->dtype))
            tensor_set(y, at, f(tensor_get(a, p), tensor_get(b, q)));
        else
            tensor_set_int(y, at, i(tensor_int(a, p), tensor_int(b, q)));
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* ---- rules ---- */

int infer_float(const Graph *g, const Node *n, Type *out)
{
    for (int i = 0; i < n->nin; i++)
        need_float(g, n, i);
    out[0] = infer_broadcast(g, n, 0, n->nin);
    return 1;
}

int infer_number(const Graph *g, const Node *n, Type *out)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->type.dtype == BOOL)
            fail_node(g, n, "operand %d: expected numbers, found bool", i);
    out[0] = infer_broadcast(g, n, 0, n->nin);
    return 1;
}

bool gelu_by_tanh(const Node *n)
{
    return !strcmp(n->attr[0].s, "tanh");
}

void gelu_check(const Graph *g, const Node *n)
{
    if (!gelu_by_tanh(n) && strcmp(n->attr[0].s, "none"))
        fail_node(g, n, "approximate: expected \"none\" or \"tanh\", found \"%s\"", n->attr[0].s);
}

Cost pointwise_cost(const Node *n, double nflop)
{
    Cost c = {.nflop = nflop * (double)type_nelem(&n->out[0]->type),
              .nwrite = (double)type_nbytes(&n->out[0]->type)};
    for (int i = 0; i < n->nin; i++)
        c.nread += (double)type_nbytes(&n->in[i]->type);
    return c;
}
