/* Kernels of pointwise ops on CUDA, by a function of the elements at one position (lane.cuh).
 *
 * The axes of result and operands are merged (walk_make); a thread then has one position, or a run
 * of up to 8 where the innermost axis allows that. Where an operand lies along another axis
 * than the result, blocks walk square tiles of the two axes and such operands pass through shared
 * memory, so that both sides are touched by whole lines. */
#ifndef TENON_POINTWISE_CUH
#define TENON_POINTWISE_CUH

#include "cuda.cuh"
#include "lane.cuh"

extern "C" {
#include "../op/pointwise.h"
}

enum { BLOCK = 256, SIDE = 32, OPERANDS = 3 };

/* ---- positions ---- */

/* n / d for n below 2^31 by a product (Granlund and Montgomery 1994). */
struct Divisor {
    uint32_t factor, shift;
    __device__ uint32_t quotient(uint32_t n) const
    {
        return ((uint32_t)((uint64_t)n * factor >> 32) + n) >> shift;
    }
};

/* A Walk as kernels read it: tensor 0 is the result. */
struct Positions {
    int rank;
    bool narrow; /* below 2^31 positions */
    int64_t nelem, dim[TN_RANK], stride[OPERANDS + 1][TN_RANK];
    Divisor by[TN_RANK];
    const int *stop; /* Call.stop */
};

inline Divisor divisor_of(int64_t d)
{
    uint32_t shift = 0;
    while ((int64_t)1 << shift < d)
        shift++;
    uint64_t rest = ((uint64_t)1 << shift) - (uint64_t)d;
    return {(uint32_t)((rest << 32) / (uint64_t)d + 1), shift};
}

inline Positions positions_of(const Call *c, const Walk *w)
{
    Positions s = {
        .rank = w->rank, .narrow = w->nelem <= INT32_MAX, .nelem = w->nelem, .stop = c->stop};
    CHECK(w->count <= OPERANDS + 1);
    for (int d = 0; d < w->rank; d++) {
        s.dim[d] = w->dim[d];
        if (s.narrow && w->dim[d])
            s.by[d] = divisor_of(w->dim[d]);
        for (int k = 0; k < w->count; k++)
            s.stride[k][d] = w->stride[k][d];
    }
    return s;
}

/* The element offset of each tensor at position i. */
template <int N> __device__ inline void locate(const Positions &s, int64_t i, int64_t (&at)[N])
{
    for (int k = 0; k < N; k++)
        at[k] = 0;
#pragma unroll 1
    for (int d = s.rank - 1; d > 0; d--) {
        int64_t q = s.narrow ? (int64_t)s.by[d].quotient((uint32_t)i) : i / s.dim[d];
        for (int k = 0; k < N; k++)
            at[k] += (i - q * s.dim[d]) * s.stride[k][d];
        i = q;
    }
    for (int k = 0; k < N; k++)
        at[k] += i * s.stride[k][0];
}

/* Numbers<0, 1, ..., N - 1>, by which the operands of a kernel are counted. */
template <int... K> struct OperandNumbers {
};
template <int N, int... K> struct CountTo : CountTo<N - 1, N - 1, K...> {
};
template <int... K> struct CountTo<0, K...> {
    typedef OperandNumbers<K...> type;
};

/* ---- runs: V elements of the innermost axis ---- */

template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) RunOf {
    T v[V];
};

/* V elements, which are one element again and again where the step is 0. */
template <int V, typename T> __device__ inline RunOf<T, V> load(const T *x, int64_t step)
{
    if constexpr (V > 1)
        if (step == 0) {
            RunOf<T, V> p;
            for (int j = 0; j < V; j++)
                p.v[j] = *x;
            return p;
        }
    return *(const RunOf<T, V> *)x;
}

template <int V, typename Y, typename F, typename... X>
__device__ inline RunOf<Y, V> map(F f, const RunOf<X, V> &...x)
{
    RunOf<Y, V> y;
    for (int j = 0; j < V; j++)
        y.v[j] = f(x.v[j]...);
    return y;
}

template <int V, typename F, typename Y, typename... X, int... K>
__device__ inline void run_at(const Positions &s, F f, Y *y, OperandNumbers<K...>, const X *...x)
{
    int64_t i = thread_number(), at[1 + sizeof...(X)];
    if (i >= s.nelem || stopped(s.stop))
        return;
    locate(s, i, at);
    *(RunOf<Y, V> *)(y + at[0]) =
        map<V, Y>(f, load<V>(x + at[1 + K], s.stride[1 + K][s.rank - 1])...);
}

template <int V, typename F, typename Y, typename... X>
__global__ void __launch_bounds__(BLOCK) runs(Positions s, F f, Y *y, const X *...x)
{
    run_at<V>(s, f, y, typename CountTo<sizeof...(X)>::type(), x...);
}

/* ---- tiles ---- */

/* The axis of a tile's rows and the innermost, its columns; Positions has the other axes. */
struct TileAxes {
    int64_t nrow, ncol;    /* sizes */
    unsigned down, across; /* tiles along each */
    int64_t row[OPERANDS + 1], col[OPERANDS + 1];
    bool staged[OPERANDS + 1]; /* lies along the rows */
    bool packed[OPERANDS + 1]; /* is read, or written, in packs along its own axis */
};

/* How many elements of a tile's line a lane has: a line is 128 bytes or more. */
template <typename... T> constexpr int tile_pack()
{
    int n = 1;
    ((n = (int)sizeof(T) > n ? (int)sizeof(T) : n), ...);
    return n == 1 ? 4 : n < 8 ? 2 : 1;
}

/* The elements of a tile that one thread has: of every LINES-th line, V along the line. */
enum { LINES = BLOCK / SIDE };
template <typename T, int V> struct TileShare {
    RunOf<T, V> line[V * SIDE / LINES];
};

/* Where element v of a lane is in its line: neighbours if the lane has a pack. */
template <int V> __device__ inline int place(bool packed, int v)
{
    int lane = threadIdx.x % SIDE;
    return packed ? lane * V + v : lane + v * SIDE;
}

/* The thread's part of an operand: `length` and `lines` are what there is of the tile; elements of
 * a line are `step` apart, lines `next`. by_pack: a lane has neighbours; packed: loads them as a
 * pack. */
template <int V, typename T>
__device__ inline TileShare<T, V> fetch(const T *x, int length, int lines, int64_t step,
                                        int64_t next, bool by_pack, bool packed)
{
    TileShare<T, V> p;
    int line = threadIdx.x / SIDE;
    x += line * next + place<V>(by_pack, 0) * step;
    int64_t apart = by_pack ? step : step * SIDE;
    next *= LINES;
    if (packed) {
        bool in = place<V>(true, 0) < length;
#pragma unroll
        for (int n = 0; n < V * SIDE / LINES; n++, x += next)
            if (in && line + n * LINES < lines)
                p.line[n] = *(const RunOf<T, V> *)x;
        return p;
    }
#pragma unroll
    for (int n = 0; n < V * SIDE / LINES; n++, x += next)
#pragma unroll
        for (int v = 0; v < V; v++)
            if (place<V>(by_pack, v) < length && line + n * LINES < lines)
                p.line[n].v[v] = x[v * apart];
    return p;
}

/* A tile whose lines are along the rows; their ends keep columns from falling into one bank. */
template <int K, int V, typename T> struct alignas(16) Staging {
    static constexpr int side = V * SIDE, length = side + (sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1);
    T line[side][length];
};
template <int K, int V, typename T> __device__ inline Staging<K, V, T> &staging()
{
    __shared__ Staging<K, V, T> s;
    return s;
}

template <int K, int V, typename T>
__device__ inline TileShare<T, V> fetch_operand(const TileAxes &t, int rows, int cols, const T *x)
{
    if (t.staged[K])
        return fetch<V>(x, rows, cols, 1, t.col[K], t.packed[K], t.packed[K]);
    return fetch<V>(x, cols, rows, t.col[K], t.row[K], t.packed[0], t.packed[0] && t.packed[K]);
}

/* All lanes store: what lies beyond the tensor is not read. */
template <int K, int V, typename T>
__device__ inline void stage(const TileAxes &t, TileShare<T, V> &p)
{
    if (!t.staged[K])
        return;
    int line = threadIdx.x / SIDE;
    T *to = staging<K, V, T>().line[line];
    constexpr int next = LINES * Staging<K, V, T>::length;
    if (sizeof(T) < 4 && t.packed[K]) {
#pragma unroll
        for (int n = 0; n < V * SIDE / LINES; n++)
            *(RunOf<T, V> *)(to + n * next + place<V>(true, 0)) = p.line[n];
        return;
    }
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int n = 0; n < V * SIDE / LINES; n++)
            to[n * next + place<V>(t.packed[K], v)] = p.line[n].v[v];
}

/* A thread's part of a staged operand along the columns. */
template <int K, int V, typename T>
__device__ inline void unstage(const TileAxes &t, TileShare<T, V> &p)
{
    if (!t.staged[K])
        return;
#pragma unroll
    for (int v = 0; v < V; v++) {
        const T *from = staging<K, V, T>().line[place<V>(t.packed[0], v)] + threadIdx.x / SIDE;
#pragma unroll
        for (int n = 0; n < V * SIDE / LINES; n++)
            p.line[n].v[v] = from[n * LINES];
    }
}

/* All loads of the tile are in flight before the first is waited for. */
template <int V, typename F, typename Y, int... K, typename... X>
__device__ inline void combine(const TileAxes &t, int rows, int cols, F f, Y *y,
                               OperandNumbers<K...>, TileShare<X, V>... x)
{
    (stage<1 + K, V>(t, x), ...);
    __syncthreads();
    (unstage<1 + K, V>(t, x), ...);
    int line = threadIdx.x / SIDE;
    int64_t next = LINES * t.row[0];
    y += line * t.row[0] + place<V>(t.packed[0], 0) * t.col[0];
    if (t.packed[0]) {
        bool in = place<V>(true, 0) < cols;
#pragma unroll
        for (int n = 0; n < V * SIDE / LINES; n++, y += next)
            if (in && line + n * LINES < rows)
                *(RunOf<Y, V> *)y = map<V, Y>(f, x.line[n]...);
        return;
    }
#pragma unroll
    for (int n = 0; n < V * SIDE / LINES; n++, y += next)
#pragma unroll
        for (int v = 0; v < V; v++)
            if (place<V>(false, v) < cols && line + n * LINES < rows)
                y[v * SIDE * t.col[0]] = f(x.line[n].v[v]...);
}

template <int V, typename F, typename Y, typename... X, int... K>
__device__ inline void tile_at(const Positions &s, const TileAxes &t, F f, Y *y,
                               OperandNumbers<K...> numbers, const X *...x)
{
    constexpr int side = V * SIDE;
    unsigned b = blockIdx.x,
             line = b / t.across; /* 64-bit divisions would cost a third of it all */
    int64_t at[1 + sizeof...(X)], col = (int64_t)(b - line * t.across) * side;
    int64_t row = (int64_t)(line % t.down) * side;
    int rows = (int)min(t.nrow - row, (int64_t)side), cols = (int)min(t.ncol - col, (int64_t)side);
    if (stopped(s.stop))
        rows = 0; /* the block's threads meet all the same */
    locate(s, line / t.down, at);
    for (int k = 0; k <= (int)sizeof...(X); k++)
        at[k] += row * t.row[k] + col * t.col[k];
    combine<V>(t, rows, cols, f, y + at[0], numbers,
               fetch_operand<1 + K, V>(t, rows, cols, x + at[1 + K])...);
}

template <int V, typename F, typename Y, typename... X>
__global__ void __launch_bounds__(BLOCK) tiles(Positions s, TileAxes t, F f, Y *y, const X *...x)
{
    tile_at<V>(s, t, f, y, typename CountTo<sizeof...(X)>::type(), x...);
}

inline bool lies_along(const Walk *w, int k, int axis)
{
    return w->dim[axis] > 1 && w->stride[k][axis] == 1 && w->stride[k][w->rank - 1] > 1;
}

/* Whether tensor k has packs of V elements along `axis`, in which all of it is divided. */
inline bool lies_in_packs(const Walk *w, int k, int axis, int64_t V, int64_t size,
                          const void *place)
{
    if (w->dim[axis] % V || w->stride[k][axis] != 1)
        return false;
    for (int d = 0; d < w->rank; d++)
        if (d != axis && w->stride[k][d] % V)
            return false;
    return (uintptr_t)place % (uintptr_t)(V * size) == 0;
}

/* Takes the two axes out of w, of tiles with V elements a lane; false where no operand lies across
 * the result. size, place: of the tensors. */
inline bool find_tiles(Walk *w, TileAxes *t, int V, const int64_t *size, const void *const *place)
{
    int inner = w->rank - 1, axis = -1, rank = 0;
    for (int k = 1; k < w->count && axis < 0; k++)
        for (int d = 0; d < inner && axis < 0; d++)
            axis = lies_along(w, k, d) ? d : -1;
    if (axis < 0)
        return false;
    *t = {.nrow = w->dim[axis], .ncol = w->dim[inner]};
    t->down = grid_for(t->nrow, V * SIDE);
    t->across = grid_for(t->ncol, V * SIDE);
    for (int k = 0; k < w->count; k++) {
        t->row[k] = w->stride[k][axis];
        t->col[k] = w->stride[k][inner];
        t->staged[k] = k > 0 && lies_along(w, k, axis);
        t->packed[k] = lies_in_packs(w, k, t->staged[k] ? axis : inner, V, size[k], place[k]);
    }
    for (int d = 0; d < inner; d++) {
        if (d == axis)
            continue;
        w->dim[rank] = w->dim[d];
        for (int k = 0; k < w->count; k++)
            w->stride[k][rank] = w->stride[k][d];
        rank++;
    }
    w->nelem /= t->nrow * t->ncol;
    w->rank = MAX(rank, 1);
    if (rank == 0)
        w->dim[0] = 1;
    return true;
}

/* ---- running ---- */

/* Whether V elements of w's innermost axis are one access of tensor k, of that size and place. */
inline bool run_fits(const Walk *w, int k, int64_t V, int64_t size, const void *place)
{
    int inner = w->rank - 1;
    if (w->dim[inner] % V)
        return false;
    if (k > 0 && w->stride[k][inner] == 0)
        return true;
    for (int d = 0; d < inner; d++)
        if (w->stride[k][d] % V)
            return false;
    return w->stride[k][inner] == 1 && (uintptr_t)place % (uintptr_t)MIN(16, V * size) == 0;
}

/* Makes w one of runs of V elements. */
inline void walk_by(Walk *w, int64_t V)
{
    int inner = w->rank - 1;
    w->dim[inner] /= V;
    w->nelem /= V;
    for (int k = 0; k < w->count; k++)
        w->stride[k][inner] *= V;
}

/* How the kernels of a function are made: each costs time to compile. */
enum { RUNS = 1, TILES = 2 };

/* Elements of a run of 16 bytes of the least of the types, at most 8. */
template <typename... T> constexpr int run_size()
{
    int n = 1;
    ((n = 16 / (int)sizeof(T) > n ? 16 / (int)sizeof(T) : n), ...);
    return n < 8 ? n : 8;
}

/* y = f(x...) over w, whose tensor 0 is y. */
template <int MADE, typename F, typename Y, typename... X>
int walk_run(Call *c, Walk w, F f, Y *y, const X *...x)
{
    constexpr int V = (MADE & RUNS) != 0 ? run_size<Y, X...>() : 1;
    if (w.nelem == 0)
        return 0;
    int k = 0;
    bool fits =
        V > 1 && run_fits(&w, 0, V, sizeof(Y), y) && (run_fits(&w, ++k, V, sizeof(X), x) && ...);
    if (fits) {
        walk_by(&w, V);
        return LAUNCH(c, (runs<V, F, Y, X...>), grid_for(w.nelem, BLOCK), BLOCK, 0,
                      positions_of(c, &w), f, y, x...);
    }
    if constexpr ((MADE & TILES) != 0) {
        constexpr int pack = tile_pack<Y, X...>();
        TileAxes t;
        const int64_t size[] = {sizeof(Y), sizeof(X)...};
        const void *const place[] = {y, x...};
        if (find_tiles(&w, &t, pack, size, place))
            return LAUNCH(c, (tiles<pack, F, Y, X...>), grid_for(w.nelem * t.down * t.across, 1),
                          BLOCK, 0, positions_of(c, &w), t, f, y, x...);
    }
    return LAUNCH(c, (runs<1, F, Y, X...>), grid_for(w.nelem, BLOCK), BLOCK, 0, positions_of(c, &w),
                  f, y, x...);
}

template <int MADE, typename Y, typename... X, typename F, int... K>
int operands_run(Call *c, F f, OperandNumbers<K...>)
{
    Walk w;
    walk_make(&w, &c->out[0], sizeof...(X), c->in);
    return walk_run<MADE>(c, w, f, data<Y>(c->out[0]), data<const X>(c->in[K])...);
}

/* Result 0 by f from the first operands, of element types Y and X. */
template <int MADE, typename Y, typename... X, typename F> int pointwise(Call *c, F f)
{
    return operands_run<MADE, Y, X...>(c, f, typename CountTo<sizeof...(X)>::type());
}

inline bool accepts_all(const Call *c)
{
    (void)c;
    return true;
}

/* The list of an op whose kernel takes whatever the op does. */
#define POINTWISE_KERNELS(op, function, ...)     \
    CUDA_KERNELS(op) = {{.name = "lanes",        \
                         .accepts = accepts_all, \
                         .run = function,        \
                         .strided_out = true,    \
                         __VA_ARGS__},           \
                        {}}

/* The lane of a name as a function that takes what it is given. */
#define LANE(name)                                                        \
    struct Lane_##name {                                                  \
        template <typename... X> __device__ auto operator()(X... x) const \
        {                                                                 \
            return lane_##name(x...);                                     \
        }                                                                 \
    };

/* NAME_run() of lane_NAME, whose result and operands have one dtype: what pointwise() makes is
 * `fast` for F32 and BF16, and one element a thread for the other dtypes of `by`. TYPES(T) lists
 * the type of the result and of each operand. */
#define ONE_OPERAND(T)  T, T
#define TWO_OPERANDS(T) T, T, T
#define RUN_BY_DTYPE(by, fast, TYPES, f)                       \
    do {                                                       \
        DType d = c->out[0].dtype;                             \
        if (d == F32)                                          \
            return pointwise<fast, TYPES(float)>(c, f);        \
        if (d == BF16)                                         \
            return pointwise<fast, TYPES(bf16)>(c, f);         \
        by(d, T, return (pointwise<0, TYPES(T)>(c, f)));       \
        return run_fail(c, "no kernel for %s", dtype_name(d)); \
    } while (0)
#define LANE_RUN(name, by, fast, TYPES)               \
    LANE(name)                                        \
    static int name##_run(Call *c)                    \
    {                                                 \
        RUN_BY_DTYPE(by, fast, TYPES, Lane_##name()); \
    }
#define LANE_KERNELS(name, by, fast, TYPES) \
    LANE_RUN(name, by, fast, TYPES)         \
    POINTWISE_KERNELS(name, name##_run);

#endif
