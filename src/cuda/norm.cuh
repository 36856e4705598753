/* The kernels of layer_norm.cu (RMS false) and of rms_norm.cu (RMS true).
 *
 * Forward: a row is read into registers and written once. Backward: each team goes over every so
 * many rows, writes their dx and adds to dw and db in registers; a block's teams are joined in
 * order, its sums go to c->work, and a second kernel adds those of all blocks in order. How many
 * blocks there are follows from the shape and the dtype. Rows that no registers hold, and rare
 * dtypes, are read by columns for dw and db and once more for dx. */
#ifndef TENON_NORM_CUH
#define TENON_NORM_CUH

#include "row_tensor.cuh"

/* x is operand `x`; those after it and one before it (dy) are rows like it, or contiguous. */
static bool norm_accepts(const Call *c, int lead, int x)
{
    for (int i = 0; i < c->nin; i++)
        if (i <= x ? !rows_contiguous(&c->in[i], lead) : !tensor_contiguous(&c->in[i]))
            return false;
    return row_length_ok(axes_nelem(&c->in[x], lead, c->in[x].rank));
}

enum { MULTIPROCESSORS = 128 };

/* ---- forward ---- */

enum { FRONT_THREADS = 1024 }; /* of a multiprocessor where teams have several rows */

template <typename W> struct NormOf {
    TensorRows x, w, b, y;
    W *mean, *rstd;
    int64_t rows;
    int n;
    W eps;
};

/* RMS, which needs few registers: a team's next row is in flight while it works on one. */
template <bool RMS, class T, class E> __global__ void ROW_BOUNDS(T) norm_rows(NormOf<wide_t<E>> a)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>(), step = (int64_t)gridDim.x * (blockDim.x / T::threads);
    if (r >= a.rows)
        return;
    HeldRow<T, E> x(t, a.n, RowAt<E>(a.x, r));
    WeightAt<E> w(a.w), b(a.b);
    for (; r < a.rows; r += step) {
        HeldRow<T, E> next(t, RMS ? a.n : 0, RowAt<E>(a.x, r + step < a.rows ? r + step : r));
        RowAt<E> y(a.y, r);
        Moments<W> m = {0, 0};
        if constexpr (RMS)
            m.rstd = row_rstd<W>(t, a.n, a.eps, x);
        else
            m = row_moments<W>(t, a.n, a.eps, x);
        each_pack(t, a.n, [&](int i, int count, int k) {
            Pack<W> p = x(i, count, k), q = w.load(i, count), o = {};
            if constexpr (!RMS)
                o = b.load(i, count);
#pragma unroll
            for (int v = 0; v < PACK; v++)
                p.v[v] = RMS ? rms_norm_of(p.v[v], m.rstd, q.v[v])
                             : layer_norm_of(p.v[v], m, q.v[v], o.v[v]);
            y.store(i, count, p);
        });
        if (t.lane == 0) {
            a.rstd[r] = m.rstd;
            if constexpr (!RMS)
                a.mean[r] = m.mean;
        }
        if constexpr (!RMS)
            return;
        x = next;
    }
}

/* f with a team that holds no more than rows of n elements need. */
template <class E, class F> static int by_exact_team(int64_t n, F f)
{
    if constexpr (!is_any<E>) {
        if (n <= 768)
            return f(Team<WARP, 3>{});
        if (n > WARP_ROW && n <= 2048)
            return f(Team<256, 1>{});
        if (n > 2048 && n <= 4096)
            return f(Team<256, 2>{});
    }
    return by_team<E>(n, f);
}

template <bool RMS> static int norm_run(Call *c, int lead, double eps)
{
    const Tensor *t = &c->in[0];
    int64_t n = axes_nelem(t, lead, t->rank), rows = axes_nelem(t, 0, lead);
    TensorRows x = rows_of(t, lead), y = rows_of(&c->out[0], lead), w = rows_of(&c->in[1], 0),
               b = rows_of(&c->in[RMS ? 1 : 2], 0);
    bool aligned =
        rows_aligned(x, n) && rows_aligned(y, n) && rows_aligned(w, n) && rows_aligned(b, n);
    return by_element(t->dtype, n, aligned, [&](auto e) {
        typedef decltype(e) E;
        typedef wide_t<E> W;
        NormOf<W> a = {x,    w,      b,     y, data<W>(c->out[1]), data<W>(c->out[RMS ? 1 : 2]),
                       rows, (int)n, (W)eps};
        return by_exact_team<E>(n, [&](auto team) {
            unsigned most = (unsigned)MULTIPROCESSORS * FRONT_THREADS / (unsigned)row_block(n);
            unsigned all = row_grid(rows, n), grid = RMS ? MIN(all, most) : all;
            return LAUNCH(c, (norm_rows<RMS, decltype(team), E>), grid, row_block(n), 0, a);
        });
    });
}

/* ---- backward ---- */

/* Operands dy, x, [mean,] rstd, w. */
typedef struct NormBackward {
    int lead, w;
    int64_t rows, n, nblock;
} NormBackward;

enum { BACK_ROW = 8192 }; /* that leaves registers for dw and db */

/* Rows of n elements of `size` bytes: threads of a team, packs that each has of a row; teams of a
 * block, blocks of a multiprocessor. Where a thread has one pack it holds little, so that many
 * warps hide what each waits for. */
struct BackShape {
    int team, packs, teams, blocks;
};
__host__ __device__ constexpr BackShape back_shape(int64_t n, int size)
{
    return n <= 256    ? BackShape{32, 1, 8, 3}
           : n <= 512  ? BackShape{64, 1, 4, 3}
           : n <= 768  ? BackShape{96, 1, 3, size == 2 ? 3 : 2}
           : n <= 1024 ? BackShape{128, 1, 2, 3}
           : n <= 2048 ? BackShape{256, 1, 1, 3}
           : n <= 4096 ? BackShape{256, 2, 1, 2}
                       : BackShape{256, 4, 1, 2};
}

static NormBackward norm_backward_of(const Call *c, int lead, int w)
{
    const Tensor *x = &c->in[1];
    NormBackward k = {
        .lead = lead, .w = w, .rows = axes_nelem(x, 0, lead), .n = axes_nelem(x, lead, x->rank)};
    BackShape s = back_shape(k.n, (int)dtype_size(x->dtype));
    k.nblock = MIN((int64_t)MULTIPROCESSORS * s.blocks, (k.rows + s.teams - 1) / s.teams);
    return k;
}

template <typename W> struct NormGrad {
    TensorRows dy, x, w, dx;
    const W *mean, *rstd; /* mean: unused by RMS */
    W *part;              /* [block][dw, db][n] */
    int64_t rows;
    int n;
};

/* A block's sums of dw and db: its teams add theirs in order. */
template <bool RMS, class T>
__device__ inline void join_teams(const T &t, int n, const Pack<float> *dw, const Pack<float> *db,
                                  float *sum, float *part)
{
    int teams = (int)blockDim.x / T::threads;
    for (int turn = 0; turn < teams; turn++) {
        float *to = turn == teams - 1 ? part : sum;
        if (team_row<T>() == turn)
            each_pack(t, n, [&](int i, int count, int k) {
#pragma unroll
                for (int v = 0; v < PACK; v++) {
                    if (v >= count)
                        continue;
                    to[i + v] = dw[k].v[v] + (turn ? sum[i + v] : 0);
                    if constexpr (!RMS)
                        to[n + i + v] = db[k].v[v] + (turn ? sum[n + i + v] : 0);
                }
            });
        if (teams > 1)
            __syncthreads();
    }
}

/* An address in shared memory, in 32 bits where there is a GPU. */
#ifdef TN_SIMT
typedef char *SharedAt;
__device__ inline SharedAt shared_at(void *p)
{
    return (char *)p;
}
#else
typedef unsigned SharedAt;
__device__ inline SharedAt shared_at(void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
#endif

/* Copies 16 bytes to shared memory; there, for the thread itself, after copies_wait(). */
__device__ inline void copy_begin(SharedAt to, const void *from)
{
#ifdef TN_SIMT
    memcpy(to, from, sizeof(Quad));
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ inline Quad fetch(SharedAt from)
{
    Quad q;
#ifdef TN_SIMT
    memcpy(&q, from, sizeof q);
#else
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3])
                 : "r"(from));
#endif
    return q;
}
/* Closes the group of copies that a thread has begun; waits for all but its latest N groups. */
__device__ inline void copies_group()
{
#ifndef TN_SIMT
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ inline void copies_wait()
{
#ifndef TN_SIMT
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Where a thread's packs of rows of dy and x are in flight to: with several stages later rows
 * come while one is read from there, with one the row is in registers meanwhile, with none there is
 * no room. */
template <class T, class E, int THREADS> struct Ahead {
    static constexpr int quads = sizeof(Pack<E>) / sizeof(Quad), each = T::held * quads,
                         nquad = 2 * each * THREADS, most = (40 << 10) / (int)sizeof(Quad) / nquad,
                         stages = most < 3 ? most : 3, stage_bytes = nquad * (int)sizeof(Quad);
    /* From a thread's first place of a stage to quad q of its pack k of dy (0) or x (1). */
    __host__ __device__ static constexpr int slot(int which, int k, int q)
    {
        return (which * each + k * quads + q) * THREADS * (int)sizeof(Quad);
    }
    __device__ static int after(int stage) /* in bytes from the first */
    {
        return stage == (stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
    }
    __device__ static Pack<E> pack(SharedAt at, int which, int k)
    {
        Quad q[quads];
        Pack<E> x;
#pragma unroll
        for (int j = 0; j < quads; j++)
            q[j] = fetch(at + slot(which, k, j));
        memcpy(&x, q, sizeof x);
        return x;
    }
};

/* The sum over a team, some warps of the block, whose threads all call this; `slot` has room for
 * the block's warps and is another one than in the call before. */
template <class T> __device__ inline Two<float> sum_of_team(Two<float> x, Two<float> *slot)
{
    auto add = [](Two<float> a, Two<float> b) { return Two<float>{a.a + b.a, a.b + b.b}; };
    constexpr int warps = T::threads / WARP;
#pragma unroll
    for (int d = WARP / 2; d; d /= 2)
        x = add(x, shuffle_xor(x, d));
    if constexpr (warps > 1) {
        if (threadIdx.x % WARP == 0)
            slot[threadIdx.x / WARP] = x;
        __syncthreads();
        slot += team_row<T>() * warps;
        x = slot[0];
#pragma unroll
        for (int k = 1; k < warps; k++)
            x = add(x, slot[k]);
    }
    return x;
}

/* A thread's place in rows of a set that has one axis, from which on it goes by `step` rows. */
template <class E> struct RowWalk {
    E *at;
    int64_t apart;
    __device__ RowWalk(const TensorRows &x, int64_t row, int64_t step, int column)
        : at((E *)(void *)x.data + row * x.stride[0] + column), apart(step * x.stride[0])
    {
    }
    __device__ void next()
    {
        at += apart;
    }
};

template <class E, int N> struct BackTeam {
    static constexpr BackShape shape = back_shape(N, sizeof(E));
    static constexpr int threads = shape.team * shape.teams;
    typedef Team<shape.team, shape.packs> T;
};

/* Rows of up to N elements. The next ones are in flight to shared memory, if that has room. */
template <bool RMS, class E, int N>
__global__ void __launch_bounds__(BackTeam<E, N>::threads, BackTeam<E, N>::shape.blocks)
    norm_backward_rows(NormGrad<float> a)
{
    typedef typename BackTeam<E, N>::T T;
    constexpr int THREADS = BackTeam<E, N>::threads, teams = BackTeam<E, N>::shape.teams;
    typedef Ahead<T, E, THREADS> Next;
    constexpr int stages = Next::stages, nsum = teams > 1 ? 2 * N / 4 : 1,
                  apart = T::threads * PACK,
                  nquad = stages * Next::nquad > nsum ? stages * Next::nquad : nsum;
    __shared__ Quad memory[nquad];
    __shared__ Two<float> sums[2][THREADS / WARP];
    T t = team_here<T>(NULL);
    WeightAt<E> w(a.w);
    Pack<float> dw[T::held] = {}, db[T::held] = {}, weight = {};
    int64_t step = (int64_t)gridDim.x * teams, block = (int64_t)blockIdx.x * teams,
            first = block + team_row<T>();
    int turns = (int)((a.rows - block + step - 1) / step), column = t.lane * PACK,
        count = first < a.rows ? (int)((a.rows - first + step - 1) / step) : 0, at = 0, to = 0;
    float per = 1 / (float)a.n;
    const float *mean = a.mean + first, *rstd = a.rstd + first;
    RowWalk<const E> dy_next(a.dy, first, step, column), x_next(a.x, first, step, column);
    RowWalk<E> dx(a.dx, first, step, column);
    SharedAt own = shared_at(&memory[threadIdx.x]);
    auto begin = [&](int turn) {
        if (turn < count)
            each_pack(t, a.n, [&](int, int, int k) {
#pragma unroll
                for (int q = 0; q < Next::quads; q++) {
                    int i = k * apart + q * (int)(sizeof(Quad) / sizeof(E));
                    copy_begin(own + to + Next::slot(0, k, q), dy_next.at + i);
                    copy_begin(own + to + Next::slot(1, k, q), x_next.at + i);
                }
            });
        copies_group();
        to = Next::after(to);
        dy_next.next();
        x_next.next();
    };
    auto moments = [&](int turn) {
        Moments<float> m = {0, 0};
        if (turn < count)
            m = {RMS ? 0 : *mean, *rstd};
        mean += step;
        rstd += step;
        return m;
    };
#pragma unroll
    for (int k = 0; k < (stages > 1 ? stages - 1 : stages); k++)
        begin(k);
    if (T::held == 1 && column < a.n)
        weight = w.load(column, PACK);
    Moments<float> m = moments(0);
    for (int turn = 0; turn < turns; turn++) {
        Pack<E> dy[T::held], x[T::held];
        Moments<float> after = moments(turn + 1);
        Two<float> s = {0, 0};
        int n = turn < count ? a.n : 0;
        if constexpr (stages > 1) {
            copies_wait<stages - 2>();
            begin(turn + stages - 1);
        } else {
            copies_wait<0>();
        }
        each_pack(t, n, [&](int, int, int k) {
            dy[k] = stages ? Next::pack(own + at, 0, k) : load_pack(dy_next.at + k * apart);
            x[k] = stages ? Next::pack(own + at, 1, k) : load_pack(x_next.at + k * apart);
        });
        if constexpr (stages < 2) {
            if (stages)
                begin(turn + 1);
            else
                dy_next.next(), x_next.next();
        }
        auto weight_at = [&](int i) { return T::held == 1 ? weight : w.load(i, PACK); };
        each_pack(t, n, [&](int i, int, int k) {
            Two<float> p = pack_norm_sums<RMS>(wide_pack(dy[k]), wide_pack(x[k]), weight_at(i), m);
            s = {s.a + p.a, s.b + p.b};
        });
        s = sum_of_team<T>(s, sums[turn % 2]);
        s = {s.a * per, s.b * per};
        each_pack(t, n, [&](int i, int, int k) {
            Pack<float> d = wide_pack(dy[k]), q = wide_pack(x[k]), p = weight_at(i), y;
#pragma unroll
            for (int v = 0; v < PACK; v++) {
                float h = norm_input<RMS>(q.v[v], m);
                y.v[v] = norm_gradient<RMS>(d.v[v], h, p.v[v], m, s);
                dw[k].v[v] = fmaf(d.v[v], h, dw[k].v[v]);
                if constexpr (!RMS)
                    db[k].v[v] += d.v[v];
            }
            store_pack(dx.at + k * apart, narrow_pack<E>(y));
        });
        dx.next();
        m = after;
        at = Next::after(at);
    }
    __syncthreads(); /* no team reads its next row any more */
    join_teams<RMS>(t, a.n, dw, db, (float *)(void *)memory,
                    a.part + (int64_t)blockIdx.x * (RMS ? 1 : 2) * a.n);
}

/* dx alone. */
template <bool RMS, class T, class E> __global__ void norm_backward_dx(NormGrad<wide_t<E>> a)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.rows)
        return;
    WeightAt<E> w(a.w);
    RowAt<E> dy(a.dy, r), x(a.x, r), dx(a.dx, r);
    Moments<W> m = {RMS ? 0 : a.mean[r], a.rstd[r]};
    Two<W> mean = row_norm_sums<RMS>(
        t, a.n, m, [&](int i, int count, int) { return dy.load(i, count); },
        [&](int i, int count, int) { return x.load(i, count); },
        [&](int i, int count, int) { return w.load(i, count); });
    each_pack(t, a.n, [&](int i, int count, int) {
        Pack<W> p = dy.load(i, count), q = x.load(i, count), s = w.load(i, count);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            p.v[v] = norm_gradient<RMS>(p.v[v], norm_input<RMS>(q.v[v], m), s.v[v], m, mean);
        dx.store(i, count, p);
    });
}

/* A column of dw and db, of every gridDim.y-th row. */
template <bool RMS, typename W> __global__ void norm_columns(NormGrad<W> a)
{
    int64_t j = thread_number();
    W dw = 0, db = 0, *part = a.part + (int64_t)blockIdx.y * (RMS ? 1 : 2) * a.n;
    if (j >= a.n)
        return;
    for (int64_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
        W dy = RowAt<Any<W>>(a.dy, r).at(j), x = RowAt<Any<W>>(a.x, r).at(j);
        dw += dy * ((RMS ? x : x - a.mean[r]) * a.rstd[r]);
        db += dy;
    }
    part[j] = dw;
    if constexpr (!RMS)
        part[a.n + j] = db;
}

/* The sums over blocks of m columns; of those the first n are dw's. A block has 32 columns; warp g
 * first adds the blocks g, g + 32, ... of all of them. */
template <typename W>
__global__ void norm_sums(const W *part, int64_t nblock, int64_t m, int64_t n, Tensor dw, Tensor db)
{
    __shared__ W group[WARP][WARP + 1];
    int lane = (int)threadIdx.x % WARP, g = (int)threadIdx.x / WARP;
    int64_t j = (int64_t)blockIdx.x * WARP + lane;
    W s = 0;
    int64_t last = j < m ? nblock : 0;
#pragma unroll 8
    for (int64_t b = g; b < last; b += WARP)
        s += part[b * m + j];
    group[g][lane] = s;
    __syncthreads();
    s = group[lane][g];
    for (int d = WARP / 2; d; d /= 2)
        s += shuffle_xor(s, d);
    j = (int64_t)blockIdx.x * WARP + g;
    if (lane || j >= m)
        return;
    const Tensor &y = j < n ? dw : db;
    store_any(y.data + (j < n ? j : j - n) * size_of(y.dtype), y.dtype, s);
}

template <int N> struct Most {
    static constexpr int value = N;
};

/* f with the most elements of rows whose BackShape is that of rows of n. */
template <class F> static int by_back_row(int64_t n, F f)
{
    return n <= 256    ? f(Most<256>{})
           : n <= 512  ? f(Most<512>{})
           : n <= 768  ? f(Most<768>{})
           : n <= 1024 ? f(Most<1024>{})
           : n <= 2048 ? f(Most<2048>{})
           : n <= 4096 ? f(Most<4096>{})
                       : f(Most<BACK_ROW>{});
}

template <bool RMS> static int64_t norm_backward_work(NormBackward k, DType d)
{
    return k.nblock * (RMS ? 1 : 2) * k.n * size_of(stat_dtype(d));
}

template <bool RMS, typename W> static NormGrad<W> norm_grad(const Call *c, const NormBackward &k)
{
    return {rows_of(&c->in[0], k.lead),
            rows_of(&c->in[1], k.lead),
            rows_of(&c->in[k.w], 0),
            rows_of(&c->out[0], k.lead),
            data<W>(c->in[2]),
            data<W>(c->in[RMS ? 2 : 3]),
            (W *)(void *)c->work,
            k.rows,
            (int)k.n};
}

template <bool RMS, class E> static int norm_backward_held(Call *c, const NormBackward &k)
{
    NormGrad<float> a = norm_grad<RMS, float>(c, k);
    return by_back_row(k.n, [&](auto most) {
        constexpr int N = most.value;
        return LAUNCH(c, (norm_backward_rows<RMS, E, N>), (unsigned)k.nblock,
                      (BackTeam<E, N>::threads), 0, a);
    });
}

/* dw and db first: dx may overwrite dy or x. */
template <bool RMS, typename W> static int norm_backward_any(Call *c, const NormBackward &k)
{
    NormGrad<W> a = norm_grad<RMS, W>(c, k);
    if (LAUNCH(c, (norm_columns<RMS, W>), dim3(grid_for(k.n, 256), (unsigned)k.nblock), 256, 0, a))
        return -1;
    return by_team<Any<W>>(k.n, [&](auto t) {
        return LAUNCH(c, (norm_backward_dx<RMS, decltype(t), Any<W>>), row_grid(k.rows, k.n),
                      row_block(k.n), 0, a);
    });
}

template <bool RMS, typename W> static int norm_backward_sums(Call *c, const NormBackward &k)
{
    int64_t m = (RMS ? 1 : 2) * k.n;
    return LAUNCH(c, (norm_sums<W>), grid_for(m, WARP), WARP * WARP, 0,
                  (const W *)(const void *)c->work, k.nblock, m, k.n, c->out[1],
                  c->out[RMS ? 1 : 2]);
}

static bool norm_backward_aligned(const Call *c, const NormBackward &k)
{
    const Tensor *x = &c->in[1], *rows[] = {&c->in[0], x, &c->out[0]};
    for (const Tensor *t : rows) {
        TensorRows r = rows_of(t, k.lead);
        if (r.rank > 1 || !rows_aligned(r, k.n))
            return false;
    }
    return (x->dtype == F32 || x->dtype == BF16) && k.n <= BACK_ROW &&
           rows_aligned(rows_of(&c->in[k.w], 0), k.n);
}

template <bool RMS> static int norm_backward_run(Call *c, const NormBackward &k)
{
    if (c->in[1].dtype == F64)
        return norm_backward_any<RMS, double>(c, k) || norm_backward_sums<RMS, double>(c, k);
    int bad = !norm_backward_aligned(c, k) ? norm_backward_any<RMS, float>(c, k)
              : c->in[1].dtype == F32      ? norm_backward_held<RMS, float>(c, k)
                                           : norm_backward_held<RMS, bf16>(c, k);
    return bad || norm_backward_sums<RMS, float>(c, k);
}

#endif
