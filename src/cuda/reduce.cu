/* sum, mean, amax, amin on CUDA (reduce.c has the rules), of any dtype, axes and strides.
 *
 * Accumulators are double, or i64 for integers. If the axis of least stride goes, a team adds a row
 * (rows.cuh); else a block adds rows onto 256 columns: warp w of it takes every 8th row, a thread a
 * pack of columns. Where there are few results, what goes is cut into blocks, whose results, in
 * c->work, a second kernel joins in a fixed order. All follows from shape and strides. */
#include "reduce_rows.cuh"

static constexpr int WARPS = 8, STRIP = WARP * (int)PACK, FEW = 16, MANY = 528, LEAST_ROWS = 64;
static constexpr int64_t BLOCK_RUN = 1 << 15, MOST_RUNS = 2048;

struct AxisReduction {
    TensorRows x, y;                      /* kept axes but the column's, in operand and result */
    TensorRows gone;                      /* one row */
    int64_t column, xs, ys;               /* how many, and their strides */
    int64_t count;                        /* gone positions */
    int64_t outer, block, nblock, nstrip; /* kept positions; positions in a block; blocks; strips */
    int kind;
    bool rows, mean;
    void *partial; /* [outer][nblock][column] */
};

/* ---- the plan ---- */

static int kind_of(const Node *n)
{
    return node_is(n, OP_amax) ? ROW_MAX : node_is(n, OP_amin) ? ROW_MIN : ROW_SUM;
}

/* The axis of `mask` with the least stride in x, the last one of such; -1: none of size over 1. */
static int least_axis(const Tensor *x, unsigned mask)
{
    int least = -1;
    for (int d = 0; d < x->rank; d++)
        if (mask >> d & 1 && x->dim[d] != 1 && (least < 0 || x->stride[d] <= x->stride[least]))
            least = d;
    return least;
}

static void fill_kept(AxisReduction *p, const Call *c, unsigned gone)
{
    const Tensor *x = &c->in[0];
    Tensor kept = axes_in(x, ~gone), to = kept;
    int column = p->rows ? -1 : least_axis(&kept, ~0u);
    tensor_fill_strides(&to);
    to.data = c->out[0].data;
    to.dtype = c->out[0].dtype;
    p->column = p->xs = p->ys = 1;
    if (column >= 0) {
        p->column = kept.dim[column];
        p->xs = kept.stride[column];
        p->ys = to.stride[column];
        kept.dim[column] = to.dim[column] = 1;
    }
    p->outer = tensor_nelem(&kept);
    p->x = {{}, x->data, x->dtype, 1};
    p->y = {{}, to.data, to.dtype, 1};
    for (int d = 0; d < kept.rank; d++)
        if (kept.dim[d] != 1) {
            p->x.dim[p->x.rank] = p->y.dim[p->y.rank] = kept.dim[d];
            p->x.stride[p->x.rank++] = kept.stride[d];
            p->y.stride[p->y.rank++] = to.stride[d];
        }
}

static void fill_blocks(AxisReduction *p)
{
    int64_t teams = p->outer * p->nstrip, most = 1;
    if (p->rows && (p->outer < FEW || !row_length_ok(p->count)))
        most = MIN(MOST_RUNS, (p->count + BLOCK_RUN - 1) / BLOCK_RUN);
    else if (!p->rows && teams && teams < MANY)
        most = MIN(MANY / teams, (p->count + LEAST_ROWS - 1) / LEAST_ROWS);
    p->block = MAX((int64_t)1, (p->count + MAX(most, (int64_t)1) - 1) / MAX(most, (int64_t)1));
    if (p->rows) /* blocks begin with a pack */
        p->block = (p->block + PACK - 1) / PACK * PACK;
    p->nblock = MAX((int64_t)1, (p->count + p->block - 1) / p->block);
}

static AxisReduction plan(const Call *c)
{
    const Tensor *x = &c->in[0];
    unsigned mask = reduce_axes(c->node);
    Tensor gone = axes_in(x, mask);
    int least_gone = least_axis(x, mask), least_kept = least_axis(x, ~mask);
    AxisReduction p = {.kind = kind_of(c->node), .mean = node_is(c->node, OP_mean)};
    p.gone = rows_of(&gone, gone.rank);
    p.count = tensor_nelem(&gone);
    p.rows = least_kept < 0 || (least_gone >= 0 && x->stride[least_gone] < x->stride[least_kept]);
    fill_kept(&p, c, mask);
    p.nstrip = p.rows ? 1 : (p.column + STRIP - 1) / STRIP;
    fill_blocks(&p);
    return p;
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    AxisReduction p = plan(c);
    return p.nblock > 1 ? p.outer * p.nblock * p.column * (int64_t)sizeof(double) : 0;
}

/* ---- kernels ---- */

/* The type in which elements of E are added. */
template <typename W> struct ReducedSum {
    typedef double type;
};
template <> struct ReducedSum<int64_t> {
    typedef int64_t type;
};
template <class E> using Sum = typename ReducedSum<wide_t<E>>::type;

/* Result j of columns, at outer position o. */
template <typename A>
__device__ static void finish(const AxisReduction &p, int64_t o, int64_t j, A acc)
{
    char *y = p.y.data + (row_offset(p.y, o) + j * p.ys) * size_of(p.y.dtype);
    if (p.mean)
        store_any(y, p.y.dtype, (double)acc / (double)p.count);
    else
        store_any(y, p.y.dtype, acc);
}

template <typename A>
__device__ static void end_block(const AxisReduction &p, int64_t o, int64_t block, int64_t j, A acc)
{
    if (p.nblock > 1)
        ((A *)p.partial)[(o * p.nblock + block) * p.column + j] = acc;
    else
        finish(p, o, j, acc);
}

template <class T, class E> __global__ void ROW_BOUNDS(T) reduce_rows(AxisReduction p)
{
    typedef Sum<E> A;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>(), o = r / p.nblock, block = r % p.nblock, lo = block * p.block;
    if (o >= p.outer)
        return;
    GoneRow<E> x(p.x, p.gone, o, lo);
    int64_t n = MIN(p.block, p.count - lo);
    auto get = [&](int i, int count, int) { return x.load(i, count); };
    A acc = row_reduce<A, GoneRow<E>::ahead>(t, (int)n, p.kind, get);
    if (t.lane == 0)
        end_block(p, o, block, 0, acc);
}

/* The thread's packs of its columns, from element `at` on, of every WARPS-th of the gone positions
 * lo to hi, go to add() in their order. */
template <class E, class F>
__device__ static void each_row(const AxisReduction &p, int64_t at, int64_t lo, int64_t hi,
                                int count, F add)
{
    typedef wide_t<E> W;
    if constexpr (is_any<E>) {
#pragma unroll 1
        for (int64_t i = lo; i < hi; i += WARPS) {
            Pack<W> x = {};
            int64_t from = at + row_offset(p.gone, i);
            load_apart(p.x.data + from * size_of(p.x.dtype), p.x.dtype, p.xs * size_of(p.x.dtype),
                       count, &x);
            add(x);
        }
    } else if (p.gone.rank > 1) {
#pragma unroll 1
        for (int64_t i = lo; i < hi; i += WARPS)
            add(wide_pack(
                load_pack((const E *)(const void *)p.x.data + at + row_offset(p.gone, i))));
    } else { /* 64 bytes in flight */
        constexpr int AHEAD = 64 / sizeof(Pack<E>);
        const E *from = (const E *)(const void *)p.x.data + at + lo * p.gone.stride[0];
        int64_t step = WARPS * p.gone.stride[0];
        int left = (int)((hi - lo + WARPS - 1) / WARPS);
#pragma unroll 1
        for (; left > 0; left -= AHEAD, from += AHEAD * step) {
            Pack<E> x[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (k < left)
                    x[k] = load_pack(from + k * step);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (k < left)
                    add(wide_pack(x[k]));
        }
    }
}

template <class E> __global__ void __launch_bounds__(WARP *WARPS, 4) reduce_columns(AxisReduction p)
{
    typedef Sum<E> A;
    __shared__ A sums[WARPS][STRIP];
    int64_t strip = blockIdx.x % p.nstrip, block = blockIdx.x / p.nstrip % p.nblock,
            o = blockIdx.x / p.nstrip / p.nblock;
    int lane = (int)threadIdx.x % WARP, w = (int)threadIdx.x / WARP;
    int64_t j = strip * STRIP + lane * PACK, at = row_offset(p.x, o) + j * p.xs;
    int64_t left = p.column - j, hi = MIN(p.count, (block + 1) * p.block);
    int count = (int)MIN(left, (int64_t)PACK);
    A acc[PACK];
#pragma unroll
    for (int v = 0; v < PACK; v++)
        acc[v] = reduce_start<A>(p.kind);
    auto add = [&](auto join) {
        each_row<E>(p, at, block * p.block + w, hi, count, [&](const Pack<wide_t<E>> &x) {
#pragma unroll
            for (int v = 0; v < PACK; v++)
                acc[v] = join(acc[v], (A)x.v[v]);
        });
    };
    if (count > 0 && p.kind == ROW_SUM)
        add([](A a, A b) { return reduce_join(ROW_SUM, a, b); });
    else if (count > 0)
        add([&](A a, A b) { return reduce_join(p.kind, a, b); });
#pragma unroll
    for (int v = 0; v < PACK; v++)
        sums[w][lane * PACK + v] = acc[v];
    __syncthreads();
    j = strip * STRIP + threadIdx.x;
    if (j >= p.column)
        return;
    A all = sums[0][threadIdx.x];
    for (int k = 1; k < WARPS; k++)
        all = reduce_join(p.kind, all, sums[k][threadIdx.x]);
    end_block(p, o, block, j, all);
}

/* Joins the blocks' results of 32 columns: warp w first those of the blocks w, w + 32, ... */
template <typename A> __global__ void join_blocks(AxisReduction p)
{
    __shared__ A group[WARP][WARP + 1];
    int64_t strips = (p.column + WARP - 1) / WARP, o = blockIdx.x / strips,
            first = blockIdx.x % strips * WARP;
    int lane = (int)threadIdx.x % WARP, w = (int)threadIdx.x / WARP;
    const A *from = (const A *)p.partial + o * p.nblock * p.column + first + lane;
    A acc = reduce_start<A>(p.kind);
    if (first + lane < p.column) {
#pragma unroll 8
        for (int64_t b = w; b < p.nblock; b += WARP)
            acc = reduce_join(p.kind, acc, from[b * p.column]);
    }
    group[w][lane] = acc;
    __syncthreads();
    acc = group[lane][w];
    for (int d = WARP / 2; d; d /= 2)
        acc = reduce_join(p.kind, acc, shuffle_xor(acc, d));
    if (lane == 0 && first + w < p.column)
        finish(p, o, first + w, acc);
}

/* ---- launching ---- */

/* Whether a column is alone a pack of an aligned run. */
static bool columns_aligned(const AxisReduction &p)
{
    return p.xs == 1 && p.column % PACK == 0 && rows_aligned(p.x, p.column) &&
           rows_aligned(p.gone, p.column);
}

template <class E> static int run_as(Call *c, const AxisReduction &p)
{
    if (p.rows) {
        int64_t n = MIN(p.block, p.count), rows = p.outer * p.nblock;
        if (by_reduced_team<E>(n, [&](auto, auto t) {
                return LAUNCH(c, (reduce_rows<decltype(t), E>), row_grid(rows, n), row_block(n), 0,
                              p);
            }))
            return -1;
    } else if (LAUNCH(c, reduce_columns<E>, (unsigned)(p.outer * p.nblock * p.nstrip), WARP * WARPS,
                      0, p))
        return -1;
    if (p.nblock == 1)
        return 0;
    unsigned grid = (unsigned)(p.outer * ((p.column + WARP - 1) / WARP));
    return LAUNCH(c, join_blocks<Sum<E>>, grid, WARP * WARP, 0, p);
}

static int run(Call *c)
{
    AxisReduction p = plan(c);
    DType d = c->in[0].dtype;
    p.partial = c->work;
    if (p.outer * p.column == 0)
        return 0;
    bool packed = p.rows ? p.gone.rank == 0 || (p.gone.rank == 1 && p.gone.stride[0] == 1)
                         : columns_aligned(p);
    if (!dtype_float(d))
        return run_as<Any<int64_t>>(c, p);
    if (packed && d == F32)
        return run_as<float>(c, p);
    if (packed && d == BF16)
        return run_as<bf16>(c, p);
    return run_as<Any<double>>(c, p);
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

#define REDUCE_KERNELS(op)                                                                        \
    CUDA_KERNELS(op) = {{.name = "rows", .accepts = accepts, .workspace = workspace, .run = run}, \
                        {}}
REDUCE_KERNELS(sum);
REDUCE_KERNELS(mean);
REDUCE_KERNELS(amax);
REDUCE_KERNELS(amin);
