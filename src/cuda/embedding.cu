/* embedding and its backward on CUDA (embedding.c has the rules).
 *
 * Backward: pairs of row and position are sorted, so that those of one row stand in the order of
 * their positions. Then each block adds up what a tile of TILE pairs stands for. It writes rows
 * whose pairs are all in the tile; of rows that go on in a neighbour, at most one from before and
 * one into the next, it leaves the sums in the workspace, and these are added last, in order. The
 * sum of a row's first pairs begins with the base. Other blocks clear rows that no id has, or copy
 * the base's. How sums are cut depends on the ids alone: the same bits at any time. Sums of 16-bit
 * values are formed in f32 and rounded once. */
#include "index.cuh"

enum { BASE = 2 }; /* the backward's optional operand, before `first` */

static const Tensor *base_of(const Call *c)
{
    return c->nin > BASE && c->in[BASE].rank == 2 ? &c->in[BASE] : NULL;
}

/* The row with which a part of a table begins; NULL: it is the whole. */
static const Tensor *first_of(const Call *c)
{
    return c->nin > (base_of(c) ? BASE + 1 : BASE) ? &c->in[c->nin - 1] : NULL;
}

static const char *const faults[] = {"id %lld at position %lld: expected %lld to %lld", NULL};

/* The ids, and the rows of the table that there are. */
struct Ids {
    Tensor id;
    WalkOf<1> at;
    const int64_t *first; /* row of the whole table; NULL: it is the whole */
    int64_t rows;
};

static Ids ids_of(const Call *c, int64_t rows)
{
    const Tensor &id = c->in[1], *first = first_of(c);
    return {
        .id = id, .at = walk_of(id), .first = first ? data<int64_t>(*first) : NULL, .rows = rows};
}

/* Which of the rows position i has; NOWHERE: none of them. */
__device__ static int64_t row_of(const Ids &s, int64_t i)
{
    int64_t id = index_at(s.id, walk_at(s.at, i));
    uint64_t row = (uint64_t)id - (uint64_t)(s.first ? *s.first : 0);
    return row < (uint64_t)s.rows ? (int64_t)row : NOWHERE;
}

/* Ids of a part of which no number of all rows is known may be anywhere. */
static int check_ids(Call *c, int64_t rows)
{
    const int64_t all = c->node->attr[attr_index(c->node->op, "rows")].i;
    return !all && first_of(c) ? 0 : cuda_check_index(c, 1, 0, all ? all : rows, 0);
}

/* ---- embedding ---- */

static bool accepts(const Call *)
{
    return true;
}

/* Walks the result: in one row of the table, in the result, and in the positions. */
static WalkOf<3> result_walk(const Call *c)
{
    const Tensor &w = c->in[0], &y = c->out[0];
    Tensor ids = c->in[1];
    WalkOf<3> r = walk_none<3>();
    tensor_fill_strides(&ids);
    for (int d = 0; d < ids.rank; d++)
        walk_axis(&r, ids.dim[d], {0, y.stride[d], ids.stride[d]});
    walk_axis(&r, w.dim[1], {w.stride[1], y.stride[y.rank - 1], 0});
    return r;
}

enum { UNITS = 2 }; /* that a thread has */

template <typename U>
static __global__ void take_rows(const U *w, int64_t stride, U *y, WalkOf<3> r, Ids s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS * UNITS + threadIdx.x, at[UNITS][3];
    U own[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        if (i + k * THREADS >= r.nelem)
            continue;
        walk_at(r, i + k * THREADS, at[k]);
        int64_t row = row_of(s, at[k][2]);
        own[k] = row < 0 ? U{} : w[row * stride + at[k][0]];
    }
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (i + k * THREADS < r.nelem)
            y[at[k][1]] = own[k];
}

static int run(Call *c)
{
    const Tensor &w = c->in[0], &y = c->out[0];
    WalkOf<3> r = result_walk(c);
    int64_t size = dtype_size(w.dtype), step = w.stride[0] * size;
    int64_t unit = walk_units(&r, 2, size, (uint64_t)w.data | (uint64_t)y.data | (uint64_t)step);
    Ids s = ids_of(c, w.dim[0]);
    if (check_ids(c, w.dim[0]))
        return -1;
    BY_SIZE(unit, U,
            return LAUNCH(c, (take_rows<U>), grid_for(r.nelem, (int64_t)THREADS * UNITS), THREADS,
                          0, data<U>(w), step / unit, data<U>(y), r, s));
    return 0;
}

CUDA_KERNELS(embedding) = {{.name = "embedding_units",
                            .accepts = accepts,
                            .run = run,
                            .strided_out = true,
                            .faults = faults},
                           {}};

/* ---- backward ---- */

enum { TILE = 32, AHEAD = 4, ROWS = 32, COLUMN_THREADS = 128, BACKWARD_PADDING = 2 };

/* A row and a position in 64 bits; positions that add nothing have a row after all others. */
__device__ static int64_t pair_row(uint64_t pair)
{
    return (int64_t)(pair >> 32);
}

__device__ static int64_t pair_position(uint64_t pair)
{
    return (int64_t)(pair & UINT32_MAX);
}

static __global__ void fill_pairs(Ids s, int64_t padding, uint64_t *pair)
{
    int64_t i = thread_number();
    if (i >= s.at.nelem)
        return;
    int64_t row = row_of(s, i);
    if (index_at(s.id, walk_at(s.at, i)) == padding)
        row = NOWHERE;
    pair[i] = (uint64_t)(row < 0 ? s.rows : row) << 32 | (uint64_t)i;
}

/* Everything that is summed: of D, to sums in W, to results of R. */
template <typename D, typename R> struct GradientSums {
    typedef wide_t<R> W;
    const uint64_t *pair;
    const D *dy;
    WalkOf<1> at; /* where rows of dy begin */
    int64_t step; /* from column to column of them */
    bool aligned; /* dy is read 16 bytes at a time */
    W *part;      /* of each tile: the sum from before, and that into the next */
    R *dw;
    const R *base; /* NULL: none */
    int64_t base_row, base_step;
    int64_t count, n, rows, tiles;
};

/* Elements that a thread has side by side. */
template <typename D> struct ColumnPack {
    static constexpr int64_t EACH = 16 / sizeof(D);
    alignas(16) D x[EACH];
};

template <typename D, typename R>
__device__ static void load_columns(const GradientSums<D, R> &s, int64_t k, int64_t column,
                                    ColumnPack<D> *to)
{
    const D *row = s.dy + walk_at(s.at, pair_position(s.pair[k]));
    if (s.aligned) {
        *(Unit16 *)(void *)to = *(const Unit16 *)(const void *)(row + column);
        return;
    }
    for (int e = 0; e < ColumnPack<D>::EACH; e++)
        to->x[e] = column + e < s.n ? row[(column + e) * s.step] : D{};
}

template <typename T, typename W, int N>
__device__ static void store_columns(T *row, int64_t column, int64_t n, const W (&sum)[N])
{
    alignas(16) T x[N];
    for (int e = 0; e < N; e++)
        x[e] = narrow<T>(sum[e]);
    if (n % N == 0 && (uint64_t)row % 16 == 0)
        for (int u = 0; u < (int)(sizeof x / 16); u++)
            ((Unit16 *)(void *)(row + column))[u] = ((const Unit16 *)(const void *)x)[u];
    else
        for (int e = 0; e < N; e++)
            if (column + e < n)
                row[column + e] = x[e];
}

/* Row of pair k, or one that no pair has. */
template <typename D, typename R>
__device__ static int64_t row_at(const GradientSums<D, R> &s, int64_t k)
{
    return k < 0 || k >= s.count ? NOWHERE : pair_row(s.pair[k]);
}

/* The sum of pairs lo to k - 1, of one row, of the tile [first, end) goes to its place. */
template <typename D, typename R, int N>
__device__ static void put_run(const GradientSums<D, R> &s, int64_t first, int64_t lo, int64_t k,
                               int64_t column, const typename GradientSums<D, R>::W (&sum)[N])
{
    int64_t row = pair_row(s.pair[lo]), tile = first / TILE;
    if (row == s.rows)
        return;
    if (lo == first && row_at(s, first - 1) == row)
        store_columns(s.part + 2 * tile * s.n, column, s.n, sum);
    else if (k == first + TILE && row_at(s, k) == row)
        store_columns(s.part + (2 * tile + 1) * s.n, column, s.n, sum);
    else
        store_columns(s.dw + row * s.n, column, s.n, sum);
}

template <typename D, typename R>
__device__ static R base_at(const GradientSums<D, R> &s, int64_t row, int64_t column)
{
    return s.base && row < s.rows && column < s.n ? s.base[row * s.base_row + column * s.base_step]
                                                  : R{};
}

/* The first value of the sum of pairs from k on, which are of this row. */
template <typename D, typename R, int N>
__device__ static void begin_sum(const GradientSums<D, R> &s, int64_t k, int64_t row,
                                 int64_t column, typename GradientSums<D, R>::W (&sum)[N])
{
    bool begins = row_at(s, k - 1) != row;
    for (int e = 0; e < N; e++)
        sum[e] = begins ? (typename GradientSums<D, R>::W)wide(base_at(s, row, column + e)) : 0;
}

/* Adds up the pairs of a tile, some columns. */
template <typename D, typename R>
__device__ static void add_tile(const GradientSums<D, R> &s, int64_t first, int64_t column)
{
    constexpr int N = ColumnPack<D>::EACH;
    typedef typename GradientSums<D, R>::W W;
    int64_t end = first + TILE < s.count ? first + TILE : s.count, lo = first;
    int64_t row = pair_row(s.pair[first]);
    W sum[N];
    begin_sum(s, first, row, column, sum);
    for (int64_t k = first; k < end; k += AHEAD) {
        ColumnPack<D> ahead[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (k + a < end)
                load_columns(s, k + a, column, &ahead[a]);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (k + a >= end)
                break;
            if (pair_row(s.pair[k + a]) != row) {
                put_run(s, first, lo, k + a, column, sum);
                lo = k + a;
                row = pair_row(s.pair[lo]);
                begin_sum(s, lo, row, column, sum);
            }
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += (W)wide(ahead[a].x[e]);
        }
    }
    put_run(s, first, lo, end, column, sum);
}

/* The first pair whose row is not less. */
template <typename D, typename R>
__device__ static int64_t find_row(const GradientSums<D, R> &s, int64_t row)
{
    int64_t lo = 0;
    for (int64_t left = s.count; left > 0;) {
        int64_t half = left / 2;
        bool less = pair_row(s.pair[lo + half]) < row;
        lo += less ? half + 1 : 0;
        left = less ? left - half - 1 : half;
    }
    return lo;
}

/* Makes those of ROWS rows that no pair has: zeros, or the base's. */
template <typename D, typename R>
__device__ static void fill_rows(const GradientSums<D, R> &s, int64_t first)
{
    __shared__ bool has[ROWS];
    int64_t end = first + ROWS < s.rows ? first + ROWS : s.rows;
    constexpr int64_t EACH = 16 / sizeof(R);
    if (threadIdx.x < ROWS)
        has[threadIdx.x] = row_at(s, find_row(s, first + threadIdx.x)) == first + threadIdx.x;
    __syncthreads();
    for (int64_t row = first; row < end; row++) {
        R *to = s.dw + row * s.n;
        if (has[row - first])
            continue;
        if (s.n % EACH == 0 && (uint64_t)to % 16 == 0 && !s.base)
            for (int64_t i = threadIdx.x; i < s.n / EACH; i += blockDim.x)
                ((Unit16 *)(void *)to)[i] = {};
        else
            for (int64_t i = threadIdx.x; i < s.n; i += blockDim.x)
                to[i] = base_at(s, row, i);
    }
}

/* Blocks of tiles, then, but in the base's place, blocks of rows. */
template <typename D, typename R> static __global__ void add_tiles(GradientSums<D, R> s)
{
    constexpr int64_t EACH = ColumnPack<D>::EACH;
    if (blockIdx.x >= s.tiles)
        fill_rows(s, (int64_t)(blockIdx.x - s.tiles) * ROWS);
    else
        for (int64_t i = threadIdx.x * EACH; i < s.n; i += COLUMN_THREADS * EACH)
            add_tile(s, (int64_t)blockIdx.x * TILE, i);
}

/* Adds the sums of the row with which the tile ends, if it begins there and goes on. */
template <typename D, typename R> static __global__ void add_parts(GradientSums<D, R> s)
{
    typedef typename GradientSums<D, R>::W W;
    int64_t tile = blockIdx.x, first = tile * TILE, next = first + TILE;
    int64_t column = (int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x;
    int64_t row = row_at(s, next - 1);
    if (row < 0 || row == s.rows || row_at(s, next) != row || row_at(s, first - 1) == row ||
        column >= s.n)
        return;
    W sum = s.part[(2 * tile + 1) * s.n + column];
    do {
        tile++;
        sum += s.part[2 * tile * s.n + column];
        next += TILE;
    } while (row_at(s, next - 1) == row && row_at(s, next) == row);
    s.dw[row * s.n + column] = narrow<R>(sum);
}

static int64_t tiles_of(const Call *c)
{
    return (tensor_nelem(&c->in[1]) + TILE - 1) / TILE;
}

static int64_t nbytes_pairs(const Call *c)
{
    return tiles_of(c) * TILE * (int64_t)sizeof(uint64_t);
}

static int64_t backward_workspace(Ctx *, const Call *c)
{
    int64_t size = c->out[0].dtype == F64 ? sizeof(double) : sizeof(float);
    return 2 * nbytes_pairs(c) + 2 * tiles_of(c) * c->out[0].dim[1] * size;
}

static bool backward_accepts(const Call *c)
{
    return tensor_nelem(&c->in[1]) < UINT32_MAX && c->out[0].dim[0] < UINT32_MAX &&
           c->out[0].dim[1] < (int64_t)COLUMN_THREADS << 15;
}

template <typename D, typename R> static int add_rows(Call *c, const uint64_t *pair)
{
    const Tensor &dy = c->in[0], &dw = c->out[0], *base = base_of(c);
    int last = dy.rank - 1;
    int64_t rows = dw.dim[0], n = dw.dim[1], tiles = tiles_of(c);
    GradientSums<D, R> s = {.pair = pair,
                            .dy = data<D>(dy),
                            .at = walk_of(dy, last),
                            .step = dy.stride[last],
                            .part = (wide_t<R> *)(void *)(c->work + 2 * nbytes_pairs(c)),
                            .dw = data<R>(dw),
                            .base = base ? data<R>(*base) : NULL,
                            .base_row = base ? base->stride[0] : 0,
                            .base_step = base ? base->stride[1] : 0,
                            .count = tensor_nelem(&c->in[1]),
                            .n = n,
                            .rows = rows,
                            .tiles = tiles};
    WalkOf<1> units = walk_none<1>();
    for (int d = 0; d <= last; d++)
        walk_axis(&units, dy.dim[d], {dy.stride[d]});
    s.aligned =
        n % ColumnPack<D>::EACH == 0 && walk_units(&units, 1, sizeof(D), (uint64_t)dy.data) == 16;
    int64_t grid = tiles + (base && base->data == dw.data ? 0 : grid_for(rows, ROWS));
    if (n == 0 || grid == 0)
        return 0;
    if (LAUNCH(c, (add_tiles<D, R>), (unsigned)grid, COLUMN_THREADS, 0, s))
        return -1;
    return LAUNCH(c, (add_parts<D, R>), dim3((unsigned)tiles, grid_for(n, COLUMN_THREADS)),
                  COLUMN_THREADS, 0, s);
}

static int backward_run(Call *c)
{
    Ids s = ids_of(c, c->out[0].dim[0]);
    int64_t padding = c->node->attr[BACKWARD_PADDING].i, count = s.at.nelem;
    uint64_t *pair = (uint64_t *)(void *)c->work, *sorted = pair;
    uint64_t *tmp = (uint64_t *)(void *)(c->work + nbytes_pairs(c));
    if (check_ids(c, s.rows))
        return -1;
    if (LAUNCH(c, fill_pairs, grid_for(count, THREADS), THREADS, 0, s, padding, pair))
        return -1;
    if (count && cuda_sort_words(c, pair, tmp, 1, count, &sorted))
        return -1;
    bool same = c->in[0].dtype == c->out[0].dtype;
    switch (c->in[0].dtype) {
    case F64: return add_rows<double, double>(c, sorted);
    case F32: return add_rows<float, float>(c, sorted);
    case BF16: return same ? add_rows<bf16, bf16>(c, sorted) : add_rows<bf16, float>(c, sorted);
    default: return same ? add_rows<f16, f16>(c, sorted) : add_rows<f16, float>(c, sorted);
    }
}

CUDA_KERNELS(embedding_dense_backward) = {{.name = "embedding_backward_sorted",
                                           .accepts = backward_accepts,
                                           .workspace = backward_workspace,
                                           .run = backward_run,
                                           .faults = faults},
                                          {}};
