/* sort, topk, argmax, argmin on CUDA (sort.c has the order).
 *
 * An element becomes an item, a key whose unsigned order is that order and its position, so that no
 * two items are equal and any sort is a stable one: in 64 bits together where the dtype has at most
 * 32, else as a pair. Tiles are sorted in shared memory by a bitonic network; then runs are merged
 * two by two, or, of a line alone and short, all at once: each item finds its place by the number
 * of smaller ones in the other runs (binary search). topk sorts whole lines too. As many lines as
 * LINES_AT_ONCE items make are sorted at a time, in the same workspace.
 *
 * argmax and argmin read a line once, by a group of threads: the first of equals, a NaN before all.
 */
#include "index.cuh"

/* ---- tiles ---- */

enum { TILE = 2048, SORT_THREADS = 512, LINES_AT_ONCE = 1 << 24 };

__device__ static void set_last(uint64_t *x)
{
    *x = UINT64_MAX;
}

__device__ static void set_last(SortItem *x)
{
    *x = {UINT64_MAX, UINT64_MAX};
}

template <typename T> __device__ static void order(T *x, int i, int j, bool rising)
{
    T a = x[i], b = x[j];
    if ((b < a) == rising) {
        x[i] = b;
        x[j] = a;
    }
}

/* Waits for the step before: up to a distance of 32 a warp has all that it needs itself. */
__device__ static void wait_for(int size, int step)
{
    if (step > 32 || (step == 32 && size > 64))
        __syncthreads();
    else
        __syncwarp();
}

/* Sorts runs of `width` items, a power of two, of lines of n; a line has `tiles` of them. */
template <typename T>
static __global__ void sort_tiles(T *items, int64_t n, int64_t tiles, int width)
{
    __shared__ T x[TILE];
    int64_t first = blockIdx.x % tiles * width;
    T *from = items + blockIdx.x / tiles * n + first;
    int count = n - first < width ? (int)(n - first) : width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        if (i < count)
            x[i] = from[i];
        else
            set_last(&x[i]);
    __syncthreads();
    for (int size = 2; size <= width; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            wait_for(size, step);
            for (int k = threadIdx.x; k < width / 2; k += blockDim.x) {
                int i = k / step * 2 * step + k % step;
                order(x, i, i + step, (i & size) == 0);
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        from[i] = x[i];
}

/* ---- merges ---- */

/* How many of n sorted items are less than x. */
template <typename T> __device__ static int64_t number_less(const T *items, int64_t n, T x)
{
    int64_t lo = 0;
    while (n > 0) {
        int64_t half = n / 2;
        if (items[lo + half] < x) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return lo;
}

/* Merges runs of `width` items two by two. */
template <typename T>
static __global__ void merge_runs(const T *items, T *to, int64_t n, int64_t width, int64_t total)
{
    int64_t at = thread_number();
    if (at >= total)
        return;
    int64_t line = quotient(at, n) * n, i = at - line;
    int64_t own = i / width * width, pair = i / (2 * width) * 2 * width;
    int64_t other = own == pair ? own + width : pair;
    int64_t left = other >= n ? 0 : n - other < width ? n - other : width;
    T x = items[at];
    to[line + pair + (i - own) + number_less(items + line + other, left, x)] = x;
}

/* Merges all runs of `width` items of one line; `ways`, a power of two up to 32, is at least their
 * number. */
template <typename T>
static __global__ void merge_all(const T *items, T *to, int64_t n, int64_t width, int ways)
{
    int64_t at = thread_number() / ways, first = thread_number() % ways * width;
    T x = items[at < n ? at : n - 1];
    int64_t left = first >= n ? 0 : n - first < width ? n - first : width;
    int before = (int)number_less(items + first, left, x);
    for (int step = ways / 2; step > 0; step /= 2)
        before += __shfl_xor_sync(0xffffffff, before, step);
    if (at < n && first == 0)
        to[before] = x;
}

enum { LATENCY = 1 << 16 }; /* up to so many items */

template <typename T>
static int sort_lines(Call *c, T *items, T *tmp, int64_t lines, int64_t n, T **sorted)
{
    int width = 2, ways = 1;
    while (width < TILE && width < n)
        width *= 2;
    int64_t tiles = (n + width - 1) / width, total = lines * n, run = width;
    unsigned threads = width / 2 < 32 ? 32 : width / 2 < SORT_THREADS ? width / 2 : SORT_THREADS;
    int bad =
        LAUNCH(c, (sort_tiles<T>), (unsigned)(lines * tiles), threads, 0, items, n, tiles, width);
    *sorted = items;
    while (ways < tiles)
        ways *= 2;
    if (lines == 1 && tiles > 1 && n <= LATENCY) {
        *sorted = tmp;
        return bad ? bad
                   : LAUNCH(c, (merge_all<T>), grid_for(n * ways, THREADS), THREADS, 0, items, tmp,
                            n, run, ways);
    }
    for (; run < n && !bad; run *= 2) {
        T *to = *sorted == items ? tmp : items;
        bad = LAUNCH(c, (merge_runs<T>), grid_for(total, THREADS), THREADS, 0, *sorted, to, n, run,
                     total);
        *sorted = to;
    }
    return bad;
}

int cuda_sort_pairs(Call *c, SortItem *items, SortItem *tmp, int64_t lines, int64_t n,
                    SortItem **sorted)
{
    return sort_lines(c, items, tmp, lines, n, sorted);
}

int cuda_sort_words(Call *c, uint64_t *items, uint64_t *tmp, int64_t lines, int64_t n,
                    uint64_t **sorted)
{
    return sort_lines(c, items, tmp, lines, n, sorted);
}

/* ---- keys ---- */

__device__ static uint64_t float_key(uint64_t bits, uint64_t top)
{
    return bits & top ? ~bits & (top | (top - 1)) : bits | top;
}

/* -0 has the key of 0, NaN the greatest. */
__device__ static uint64_t key_of(double x)
{
    uint64_t bits;
    x += 0.0;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? UINT64_MAX : float_key(bits, 1ull << 63);
}

__device__ static uint64_t key_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? UINT32_MAX : float_key(bits, 1u << 31);
}

__device__ static uint64_t key_of(int64_t x)
{
    return (uint64_t)x ^ 1ull << 63;
}

__device__ static uint64_t key_of(int32_t x)
{
    return (uint32_t)x ^ 1u << 31;
}

__device__ static uint64_t key_of(uint8_t x)
{
    return x;
}

__device__ static void make_item(uint64_t *item, uint64_t key, int64_t position, bool falling)
{
    *item = (falling ? ~key : key) << 32 | (uint64_t)position;
}

__device__ static void make_item(SortItem *item, uint64_t key, int64_t position, bool falling)
{
    *item = {falling ? ~key : key, (uint64_t)position};
}

__device__ static int64_t position_of(uint64_t item)
{
    return (int64_t)(item & UINT32_MAX);
}

__device__ static int64_t position_of(const SortItem &item)
{
    return (int64_t)item.position;
}

/* ---- lines of a tensor ---- */

/* Lines [first, first + count) of n elements, of which `kept` are results. */
struct SortLines {
    WalkOf<1> x, y;         /* where lines begin */
    int64_t x_step, y_step; /* from element to element */
    int64_t n, kept, first, count;
    bool falling;
};

template <typename T, typename I>
static __global__ void make_items(const T *x, I *items, SortLines l)
{
    int64_t at = thread_number();
    if (at >= l.count * l.n)
        return;
    int64_t line = quotient(at, l.n), i = at - line * l.n;
    T own = x[walk_at(l.x, l.first + line) + i * l.x_step];
    make_item(&items[at], key_of(wide(own)), i, l.falling);
}

template <typename T, typename I>
static __global__ void take_sorted(const T *x, const I *items, T *y, int64_t *index, SortLines l)
{
    int64_t at = thread_number();
    if (at >= l.count * l.kept)
        return;
    int64_t line = quotient(at, l.kept), i = at - line * l.kept;
    int64_t own = position_of(items[line * l.n + i]);
    int64_t to = walk_at(l.y, l.first + line) + i * l.y_step;
    y[to] = x[walk_at(l.x, l.first + line) + own * l.x_step];
    index[to] = own;
}

/* ---- sort and topk ---- */

enum { SORT_DIM, DESCENDING, TOPK_DIM = 1, LARGEST };

static SortLines lines_of(const Call *c)
{
    const Attr *a = c->node->attr;
    const Tensor &x = c->in[0], &y = c->out[0];
    bool sorts = node_is(c->node, OP_sort);
    int64_t dim = a[sorts ? SORT_DIM : TOPK_DIM].i;
    int axis = (int)(dim < 0 ? dim + x.rank : dim);
    return {.x = walk_of(x, axis),
            .y = walk_of(y, axis),
            .x_step = x.stride[axis],
            .y_step = y.stride[axis],
            .n = x.dim[axis],
            .kept = y.dim[axis],
            .falling = a[sorts ? DESCENDING : LARGEST].i != 0};
}

static int64_t lines_at_once(const SortLines &l)
{
    int64_t most = l.n < LINES_AT_ONCE ? LINES_AT_ONCE / (l.n ? l.n : 1) : 1;
    return l.x.nelem < most ? l.x.nelem : most;
}

static bool is_wide(const Call *c)
{
    return dtype_size(c->in[0].dtype) == 8;
}

static int64_t nbytes_items(const Call *c, const SortLines &l)
{
    int64_t size = is_wide(c) ? sizeof(SortItem) : sizeof(uint64_t);
    return (lines_at_once(l) * l.n * size + 63) / 64 * 64;
}

static int64_t workspace(Ctx *, const Call *c)
{
    return 2 * nbytes_items(c, lines_of(c));
}

static bool accepts(const Call *c)
{
    return lines_of(c).n < UINT32_MAX;
}

template <typename T, typename I> static int sort_some(Call *c, const SortLines &l)
{
    I *items = (I *)(void *)c->work;
    I *tmp = (I *)(void *)(c->work + nbytes_items(c, l)), *sorted = items;
    const T *x = data<T>(c->in[0]);
    int bad =
        LAUNCH(c, (make_items<T, I>), grid_for(l.count * l.n, THREADS), THREADS, 0, x, items, l);
    if (bad || sort_lines(c, items, tmp, l.count, l.n, &sorted))
        return -1;
    return LAUNCH(c, (take_sorted<T, I>), grid_for(l.count * l.kept, THREADS), THREADS, 0, x,
                  sorted, data<T>(c->out[0]), data<int64_t>(c->out[1]), l);
}

template <typename T> static int sort_dtype(Call *c, const SortLines &l)
{
    if constexpr (sizeof(T) == 8)
        return sort_some<T, SortItem>(c, l);
    else
        return sort_some<T, uint64_t>(c, l);
}

static int run(Call *c)
{
    SortLines l = lines_of(c);
    int64_t lines = l.x.nelem, step = lines_at_once(l);
    if (tensor_nelem(&c->out[0]) == 0)
        return 0;
    for (l.first = 0; l.first < lines; l.first += step) {
        l.count = lines - l.first < step ? lines - l.first : step;
        int bad = 0;
        BY_DTYPE(c->in[0].dtype, T, bad = sort_dtype<T>(c, l));
        if (bad)
            return bad;
    }
    return 0;
}

CUDA_KERNELS(sort) = {
    {.name = "sort_merge", .accepts = accepts, .workspace = workspace, .run = run}, {}};
CUDA_KERNELS(topk) = {
    {.name = "sort_merge", .accepts = accepts, .workspace = workspace, .run = run}, {}};

/* ---- argmax and argmin: a group of threads for each line ---- */

enum { ARG_DIM, SEEN = 8, SEARCHED = 4 };

struct ExtremeSearch {
    WalkOf<1> row, line;
    int width; /* threads of a group, a power of two */
    bool greatest;
};

/* An element as key_of has it, but NaN before all; complemented for the least. */
template <typename W> __device__ static uint64_t merit(W x, bool greatest)
{
    bool nan = x != x;
    uint64_t key = key_of(x);
    return greatest || nan ? key : ~key & (sizeof(W) == 8 ? UINT64_MAX : UINT32_MAX);
}

__device__ static void keep_best(SortItem *x, const SortItem &y)
{
    if (y.key > x->key || (y.key == x->key && y.position < x->position))
        *x = y;
}

template <typename W> __device__ static bool beats(W x, W best, bool greatest)
{
    return best == best && (x != x || (greatest ? x > best : x < best));
}

/* The best of elements first, first + width, ... of n, which at() gives: SEEN of them are in
 * flight at a time. */
template <typename W, class F>
__device__ static SortItem search(int64_t first, int64_t n, int width, bool greatest, F at)
{
    if (first >= n)
        return {0, UINT64_MAX};
    W best = at(first), seen[SEEN];
    int64_t position = first;
    int64_t i = first + width;
    auto see = [&](W x, int64_t j) {
        bool better = beats(x, best, greatest);
        best = better ? x : best;
        position = better ? j : position;
    };
#pragma unroll 1
    for (; i + (SEEN - 1) * width < n; i += SEEN * width) {
#pragma unroll
        for (int k = 0; k < SEEN; k++)
            seen[k] = at(i + k * width);
#pragma unroll
        for (int k = 0; k < SEEN; k++)
            see(seen[k], i + k * width);
    }
#pragma unroll 1
    for (; i < n; i += width)
        see(at(i), i);
    return {merit(best, greatest), (uint64_t)position};
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, SEARCHED)
    search_lines(const T *x, int64_t *y, ExtremeSearch s)
{
    __shared__ SortItem best[THREADS];
    int lane = (int)threadIdx.x % s.width;
    int64_t row = thread_number() / s.width;
    int64_t n = row < s.row.nelem ? s.line.nelem : 0, step = s.line.stride[0][0];
    typedef wide_t<T> W;
    SortItem own;
    x += n ? walk_at(s.row, row) : 0;
    if (s.line.rank == 1)
        own = search<W>(lane, n, s.width, s.greatest, [=](int64_t i) { return wide(x[i * step]); });
    else
        own = search<W>(lane, n, s.width, s.greatest,
                        [&](int64_t i) { return wide(x[walk_at(s.line, i)]); });
    best[threadIdx.x] = own;
    for (int step = s.width / 2; step > 0; step /= 2) {
        __syncthreads();
        if (lane < step)
            keep_best(&best[threadIdx.x], best[threadIdx.x + step]);
    }
    if (lane == 0 && row < s.row.nelem)
        y[row] = (int64_t)best[threadIdx.x].position;
}

static ExtremeSearch search_of(const Call *c)
{
    const Attr &dim = c->node->attr[ARG_DIM];
    const Tensor &x = c->in[0];
    ExtremeSearch s = {.line = walk_of(x), .width = 1, .greatest = node_is(c->node, OP_argmax)};
    s.row = walk_none<1>();
    if (dim.i) {
        int axis = (int)(dim.ints[0] < 0 ? dim.ints[0] + x.rank : dim.ints[0]);
        s.row = walk_of(x, axis);
        s.line = walk_none<1>();
        walk_axis(&s.line, x.dim[axis], {x.stride[axis]});
    }
    /* Lines side by side are read by neighbours where they are many. */
    bool many = s.row.nelem >= 1 << 16 && (s.line.rank != 1 || s.line.stride[0][0] != 1);
    while (s.width < THREADS && s.width * 4 < s.line.nelem && !many)
        s.width *= 2;
    return s;
}

static bool arg_accepts(const Call *)
{
    return true;
}

static int arg_run(Call *c)
{
    ExtremeSearch s = search_of(c);
    BY_DTYPE(c->in[0].dtype, T,
             return LAUNCH(c, (search_lines<T>), grid_for(s.row.nelem * s.width, THREADS), THREADS,
                           0, data<T>(c->in[0]), data<int64_t>(c->out[0]), s));
    return 0;
}

CUDA_KERNELS(argmax) = {{.name = "arg_lines", .accepts = arg_accepts, .run = arg_run}, {}};
CUDA_KERNELS(argmin) = {{.name = "arg_lines", .accepts = arg_accepts, .run = arg_run}, {}};
