/* What layer_norm.cu and rms_norm.cu share: their kernels, of which RMS says which they are.
 *
 * Forward: a row is read into registers and written once. Backward: each team goes over every so
 * many rows, writes their dx and adds to dw and db in registers; a block's teams are joined in
 * order, its sums go to c->work, and a second kernel adds those of all blocks in order. How many
 * blocks there are follows from the shape. Rows that no registers hold, and rare dtypes, are read
 * by columns for dw and db and once more for dx. */
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

/* ---- forward ---- */

template <typename W> struct NormOf {
    RowSet x, w, b, y;
    W *mean, *rstd;
    int64_t rows;
    int n;
    W eps;
};

template <bool RMS, class T, class E> __global__ void norm_rows(NormOf<wide_t<E>> a)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.rows)
        return;
    HeldRow<T, E> x(t, a.n, RowAt<E>(a.x, r));
    WeightAt<E> w(a.w), b(a.b);
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
    RowSet x = rows_of(t, lead), y = rows_of(&c->out[0], lead), w = rows_of(&c->in[1], 0),
           b = rows_of(&c->in[RMS ? 1 : 2], 0);
    bool aligned =
        rows_aligned(x, n) && rows_aligned(y, n) && rows_aligned(w, n) && rows_aligned(b, n);
    return by_element(t->dtype, n, aligned, [&](auto e) {
        typedef decltype(e) E;
        typedef wide_t<E> W;
        NormOf<W> a = {x,    w,      b,     y, data<W>(c->out[1]), data<W>(c->out[RMS ? 1 : 2]),
                       rows, (int)n, (W)eps};
        return by_exact_team<E>(n, [&](auto team) {
            return LAUNCH(c, (norm_rows<RMS, decltype(team), E>), row_grid(rows, n), row_block(n),
                          0, a);
        });
    });
}

/* ---- backward ---- */

/* Operands dy, x, [mean,] rstd, w. */
typedef struct NormBackward {
    int lead, w;
    int64_t rows, n, nblock;
} NormBackward;

enum {
    BACK_ROW = 8192, /* that leaves registers for dw and db */
    MULTIPROCESSORS = 128
};

/* Threads of a multiprocessor: more where each has one pack of a row. */
__host__ __device__ constexpr int back_threads(int64_t n)
{
    return n > WARP_ROW && n <= 2048 ? 768 : 512;
}

static NormBackward norm_backward_of(const Call *c, int lead, int w)
{
    const Tensor *x = &c->in[1];
    NormBackward k = {
        .lead = lead, .w = w, .rows = axes_nelem(x, 0, lead), .n = axes_nelem(x, lead, x->rank)};
    k.nblock = MIN((int64_t)MULTIPROCESSORS * back_threads(k.n) / row_block(k.n),
                   (k.rows + row_count(k.n) - 1) / row_count(k.n));
    return k;
}

template <typename W> struct NormGrad {
    RowSet dy, x, w, dx;
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

/* Copies 16 bytes to shared memory; there, for the thread itself, after copies_end(). */
__device__ inline void copy_begin(Quad *to, const void *from)
{
#ifdef TN_SIMT
    memcpy(to, from, sizeof *to);
#else
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
#endif
}
__device__ inline void copies_end()
{
#ifndef TN_SIMT
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* Where a thread's packs of two rows, the next of dy and of x, are on their way to. */
template <class T, class E, int THREADS> struct Ahead {
    static constexpr int quads = sizeof(Pack<E>) / sizeof(Quad), each = T::held * quads,
                         nquad = 2 * each * THREADS;
    static constexpr bool on = nquad * sizeof(Quad) <= 40 << 10; /* of what any block may have */
    Quad *at;
    __device__ Quad *slot(int which, int k, int q) const
    {
        return at + (which * each + k * quads + q) * THREADS + threadIdx.x;
    }
    __device__ void begin(const T &t, int n, int which, const E *row) const
    {
        each_pack(t, n, [&](int i, int, int k) {
#pragma unroll
            for (int q = 0; q < quads; q++)
                copy_begin(slot(which, k, q), (const Quad *)(const void *)(row + i) + q);
        });
    }
    __device__ Pack<E> pack(int which, int k) const
    {
        Quad q[quads];
        Pack<E> x;
#pragma unroll
        for (int j = 0; j < quads; j++)
            q[j] = *slot(which, k, j);
        memcpy(&x, q, sizeof x);
        return x;
    }
};

/* While a row is worked on, the team's next one is on its way to shared memory, if that has room.
 */
template <bool RMS, class T, class E, int THREADS>
__global__ void __launch_bounds__(THREADS, back_threads(T::threads *T::held *PACK) / THREADS)
    norm_backward_rows(NormGrad<float> a)
{
    typedef Ahead<T, E, THREADS> Next;
    constexpr int nsum = T::threads == WARP ? 2 * WARP_ROW / 4 : 1;
    ROW_SHARED_MEMORY(shared);
    __shared__ Quad memory[Next::on && Next::nquad > nsum ? Next::nquad : nsum];
    T t = team_here<T>(shared);
    WeightAt<E> w(a.w);
    Next next = {memory};
    Pack<float> dw[T::held] = {}, db[T::held] = {};
    int64_t step = (int64_t)gridDim.x * (THREADS / T::threads), r = row_here<T>();
    auto begin = [&](int64_t row) {
        if (Next::on && row < a.rows) {
            next.begin(t, a.n, 0, RowAt<E>(a.dy, row).p);
            next.begin(t, a.n, 1, RowAt<E>(a.x, row).p);
        }
    };
    begin(r);
    for (; r < a.rows; r += step) {
        Pack<E> held_dy[T::held], held_x[T::held];
        Moments<float> m = {RMS ? 0 : a.mean[r], a.rstd[r]};
        copies_end();
        each_pack(t, a.n, [&](int i, int, int k) {
            held_dy[k] = Next::on ? next.pack(0, k) : RowAt<E>(a.dy, r).raw(i, PACK);
            held_x[k] = Next::on ? next.pack(1, k) : RowAt<E>(a.x, r).raw(i, PACK);
        });
        begin(r + step);
        RowAt<E> dx(a.dx, r);
        auto dy = [&](int, int, int k) { return wide_pack(held_dy[k]); };
        auto x = [&](int, int, int k) { return wide_pack(held_x[k]); };
        Two<float> mean = row_norm_sums<RMS>(
            t, a.n, m, dy, x, [&](int i, int count, int) { return w.load(i, count); });
        each_pack(t, a.n, [&](int i, int count, int k) {
            Pack<float> p = dy(i, count, k), q = x(i, count, k), s = w.load(i, count), y;
#pragma unroll
            for (int v = 0; v < PACK; v++) {
                y.v[v] = norm_gradient<RMS>(p.v[v], q.v[v], s.v[v], m, mean);
                dw[k].v[v] += p.v[v] * ((RMS ? q.v[v] : q.v[v] - m.mean) * m.rstd);
                if constexpr (!RMS)
                    db[k].v[v] += p.v[v];
            }
            dx.store(i, count, y);
        });
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
            p.v[v] = norm_gradient<RMS>(p.v[v], q.v[v], s.v[v], m, mean);
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

template <int N> struct Threads {
    static constexpr int value = N;
};

/* f with a team and the threads of a block, for rows of n elements that are held. */
template <class F> static int by_held_team(int64_t n, F f)
{
    if (n <= 768)
        return f(Team<WARP, 3>{}, Threads<128>{});
    if (n <= WARP_ROW)
        return f(Team<WARP, 4>{}, Threads<128>{});
    if (n <= 2048)
        return f(Team<256, 1>{}, Threads<256>{});
    if (n <= 4096)
        return f(Team<256, 2>{}, Threads<256>{});
    return f(Team<256, 4>{}, Threads<256>{});
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

template <bool RMS> static int norm_backward_held(Call *c, const NormBackward &k)
{
    NormGrad<float> a = norm_grad<RMS, float>(c, k);
    return by_held_team(k.n, [&](auto team, auto threads) {
        typedef decltype(team) T;
        constexpr int block = threads.value;
        if (c->in[1].dtype == F32)
            return LAUNCH(c, (norm_backward_rows<RMS, T, float, block>), (unsigned)k.nblock, block,
                          0, a);
        return LAUNCH(c, (norm_backward_rows<RMS, T, bf16, block>), (unsigned)k.nblock, block, 0,
                      a);
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
    const Tensor *x = &c->in[1];
    return (x->dtype == F32 || x->dtype == BF16) && k.n <= BACK_ROW &&
           rows_aligned(rows_of(&c->in[0], k.lead), k.n) && rows_aligned(rows_of(x, k.lead), k.n) &&
           rows_aligned(rows_of(&c->out[0], k.lead), k.n) &&
           rows_aligned(rows_of(&c->in[k.w], 0), k.n);
}

template <bool RMS> static int norm_backward_run(Call *c, const NormBackward &k)
{
    if (c->in[1].dtype == F64)
        return norm_backward_any<RMS, double>(c, k) || norm_backward_sums<RMS, double>(c, k);
    return (norm_backward_aligned(c, k) ? norm_backward_held<RMS>(c, k)
                                        : norm_backward_any<RMS, float>(c, k)) ||
           norm_backward_sums<RMS, float>(c, k);
}

#endif
