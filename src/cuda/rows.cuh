/* Functions by which a team of threads does ops along rows on one row, on CUDA. Part of what is
 * compiled at run time too: it includes element.cuh and team.cuh alone.
 *
 * A row is worked on by a team of threads (team.cuh). Elements come in packs of PACK = 8: pack p,
 * of the elements [8 p, 8 p + 8), is the thread's whose number in the team is p % threads. A thread
 * adds what its packs have in their order, a pack by halves; threads are joined by halves of a
 * warp, then by halves of the warps. So bits depend on n and the elements alone, wherever these
 * come from, and a body of `fused` has the bits of the kernels that are alone.
 *
 * NVRTC compiles all of this for the device alone: it knows no builtin of the host's compiler but
 * __builtin_bit_cast, and takes a lambda with a parameter of type `auto` for a function of the
 * host.
 *
 * Team<threads, steps, whole>: `steps` is the most packs that a thread has, 0 where that is not
 * known; where it is, values of a row can be held in an array of registers. With `whole` n is a
 * multiple of PACK. All threads of a team call the functions along rows together. What a row is
 * made of is a function of its own, x(i, count, k): the pack at element i, of which `count`
 * elements are in the row (the others are not looked at), the thread's k-th where steps is not 0.
 */
#ifndef TENON_ROWS_CUH
#define TENON_ROWS_CUH

#include "element.cuh"
#include "team.cuh"

enum {
    PACK = 8,
    GROUP = 4,       /* packs of a thread that are taken together */
    ROW_SHARED = 512 /* bytes of shared memory with which the warps of a team exchange values */
};

template <typename W> struct Pack {
    W v[PACK];
};

template <int THREADS, int STEPS, bool WHOLE = true> struct Team {
    static constexpr int threads = THREADS, steps = STEPS, held = STEPS ? STEPS : 1;
    static constexpr bool whole = WHOLE;
    int lane;     /* the thread's number */
    char *shared; /* ROW_SHARED bytes, aligned to 16, of the block */
};

/* The team of a thread of a block, and which row of the block is its own. */
template <class T> __device__ inline T team_here(char *shared)
{
    return {(int)threadIdx.x % T::threads, shared};
}
template <class T> __device__ inline int team_row()
{
    return (int)threadIdx.x / T::threads;
}

/* ---- functions of one number, by type ---- */

__device__ inline float root(float x)
{
    return sqrtf(x);
}
__device__ inline double root(double x)
{
    return sqrt(x);
}

/* exp for differences from a maximum or a log-sum-exp: to 2^-22 and, as x is rounded by the factor,
 * |x| 2^-24 of the result. What is below 2^-126 is 0. */
__device__ inline float exp_of(float x)
{
    float y = x * 1.44269504f;
#ifdef TN_SIMT
    return exp2f(y);
#else
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(y));
    return y;
#endif
}
__device__ inline double exp_of(double x)
{
    return exp(x);
}

template <typename W> __device__ constexpr W lowest()
{
    return (W)(-__builtin_bit_cast(double, 0x7ff0000000000000ull));
}

/* The greater; a NaN is passed over. */
__device__ inline float greater(float a, float b)
{
    return fmaxf(a, b);
}
__device__ inline double greater(double a, double b)
{
    return fmax(a, b);
}

/* ---- going through a row, joining what the threads have ---- */

/* f(i, count, k) for each of the thread's packs. */
template <class T, class F> __device__ inline void each_pack(const T &t, int n, F f)
{
    if constexpr (T::steps) {
#pragma unroll
        for (int k = 0; k < T::steps; k++) {
            int i = (k * T::threads + t.lane) * PACK;
            if (i < n)
                f(i, T::whole || n - i > PACK ? PACK : n - i, k);
        }
    } else {
#pragma unroll 1
        for (int i = t.lane * PACK; i < n; i += T::threads * PACK)
            f(i, n - i < PACK ? n - i : PACK, 0);
    }
}

/* f(x(i, count, k), count) for each of the thread's packs, in their order; where steps is 0 the
 * loads of G whole ones are in flight at once. */
template <int G = GROUP, class T, class X, class F>
__device__ inline void each_loaded(const T &t, int n, X x, F f)
{
    if constexpr (T::steps) {
        each_pack(t, n, [&](int i, int count, int k) { f(x(i, count, k), count); });
    } else {
        constexpr int step = T::threads * PACK;
        int last = n - PACK, rest = n % PACK;
#pragma unroll 1
        for (int i = t.lane * PACK; i <= last; i += G * step) {
            decltype(x(0, 0, 0)) p[G];
#pragma unroll
            for (int k = 0; k < G; k++)
                p[k] = x(i + k * step <= last ? i + k * step : i, PACK, 0);
#pragma unroll
            for (int k = 0; k < G; k++)
                if (i + k * step <= last)
                    f(p[k], PACK);
        }
        if (rest && n / PACK % T::threads == t.lane)
            f(x(n - rest, rest, 0), rest);
    }
}

/* x of the lane `from` of the warp. */
template <class X> __device__ inline X shuffle(X x, int from)
{
    static_assert(sizeof(X) % sizeof(unsigned) == 0);
    unsigned w[sizeof(X) / sizeof(unsigned)];
    memcpy(w, &x, sizeof x);
#pragma unroll
    for (unsigned k = 0; k < sizeof w / sizeof *w; k++)
        w[k] = __shfl_sync(0xffffffffu, w[k], from);
    memcpy(&x, w, sizeof x);
    return x;
}
template <class X> __device__ inline X shuffle_xor(X x, int d)
{
    return shuffle(x, ((int)threadIdx.x % WARP) ^ d);
}

/* Joins the team's x by join(a, b), which commutes; the same in all threads. */
template <class T, class X, class F> __device__ inline X team_join(const T &t, X x, F join)
{
#pragma unroll
    for (int d = WARP / 2; d; d /= 2)
        x = join(x, shuffle_xor(x, d));
    if constexpr (T::threads > WARP) {
        constexpr int warps = T::threads / WARP;
        static_assert(warps * sizeof(X) <= ROW_SHARED);
        X *all = (X *)(void *)t.shared;
        __syncthreads(); /* all have read what was there */
        if (t.lane % WARP == 0)
            all[t.lane / WARP] = x;
        __syncthreads();
        x = all[t.lane % warps];
#pragma unroll
        for (int d = warps / 2; d; d /= 2)
            x = join(x, shuffle_xor(x, d));
    }
    return x;
}

template <typename W> struct Two {
    W a, b;
};

template <class T, typename W> __device__ inline W team_sum(const T &t, W x)
{
    return team_join(t, x, [](W a, W b) { return a + b; });
}
template <class T, typename W> __device__ inline Two<W> team_sum(const T &t, Two<W> x)
{
    return team_join(t, x, [](Two<W> p, Two<W> q) { return Two<W>{p.a + q.a, p.b + q.b}; });
}

/* The sum of a pack's first `count` elements. */
template <typename W> __device__ inline W pack_sum(const Pack<W> &p, int count)
{
    W s[PACK];
#pragma unroll
    for (int v = 0; v < PACK; v++)
        s[v] = v < count ? p.v[v] : (W)0;
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* The sum of f(i, count, k)'s elements over the row. */
template <typename W, class T, class F> __device__ inline W row_sum(const T &t, int n, F f)
{
    W s = 0;
    each_pack(t, n, [&](int i, int count, int k) { s += pack_sum<W>(f(i, count, k), count); });
    return team_sum(t, s);
}

/* ---- reductions: sum, mean, amax, amin ---- */

enum { ROW_SUM, ROW_MAX, ROW_MIN };

/* A is double or long long, which holds what elements are. NaN wins. */
template <typename A> __device__ inline A reduce_start(int kind)
{
    if constexpr (is_floating<A>)
        return kind == ROW_SUM ? (A)0 : kind == ROW_MAX ? lowest<A>() : -lowest<A>();
    else
        return kind == ROW_SUM ? 0 : kind == ROW_MAX ? -0x7fffffffffffffff - 1 : 0x7fffffffffffffff;
}
template <typename A> __device__ inline A reduce_join(int kind, A a, A b)
{
    if (kind == ROW_SUM) {
        if constexpr (is_floating<A>)
            return a + b;
        else
            return (A)((unsigned long long)a + (unsigned long long)b); /* wraps */
    }
    if (a != a || b != b)
        return a != a ? a : b;
    return kind == ROW_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

/* Reduces a row in A, which holds the greatest and the least of a pack as its elements are. */
template <typename A, int G = GROUP, class T, class X>
__device__ inline A row_reduce(const T &t, int n, int kind, X x)
{
    A acc = reduce_start<A>(kind);
    if (kind == ROW_SUM)
        each_loaded<G>(t, n, x, [&](const decltype(x(0, 0, 0)) &p, int count) {
#pragma unroll
            for (int v = 0; v < PACK; v++)
                if (v < count)
                    acc = reduce_join(ROW_SUM, acc, (A)p.v[v]);
        });
    else
        each_loaded<G>(t, n, x, [&](const decltype(x(0, 0, 0)) &p, int count) {
            auto best = p.v[0];
#pragma unroll
            for (int v = 1; v < PACK; v++)
                if (v < count)
                    best = reduce_join(kind, best, p.v[v]);
            acc = reduce_join(kind, acc, (A)best);
        });
    return team_join(t, acc, [=](A a, A b) { return reduce_join(kind, a, b); });
}

/* ---- log-sum-exp, as it grows ---- */

/* sum = sum of exp(x - max); a maximum of -inf counts as 0. */
template <typename W> struct Online {
    W max, sum;
};

template <typename W> __device__ inline W online_base(W max, bool any)
{
    return max == lowest<W>() || (any && max == -lowest<W>()) ? 0 : max;
}
template <typename W> __device__ inline W online_scale(W from, W to)
{
    return from == to ? (W)1 : exp_of(from - to);
}
template <typename W> __device__ inline Online<W> online_join(Online<W> a, Online<W> b)
{
    W m = greater(a.max, b.max);
    return {m, a.sum * online_scale(a.max, m) + b.sum * online_scale(b.max, m)};
}
template <typename W> __device__ inline W pack_max(W m, const Pack<W> &p, int count = PACK)
{
#pragma unroll
    for (int v = 0; v < PACK; v++)
        m = v < count ? greater(m, p.v[v]) : m;
    return m;
}
template <typename W> __device__ inline W pack_exp_sum(Pack<W> p, W base, int count = PACK)
{
#pragma unroll
    for (int v = 0; v < PACK; v++)
        p.v[v] = exp_of(p.v[v] - base);
    return pack_sum(p, count);
}
/* With the packs of a group more; what the row lacks of it is -inf. any: a maximum of inf counts as
 * 0 too, so that the sum is inf. */
template <int N, typename W>
__device__ inline void online_add(Online<W> *s, const Pack<W> (&p)[N], bool any)
{
    W m = s->max;
#pragma unroll
    for (int k = 0; k < N; k++)
        m = pack_max(m, p[k]);
    if (m > s->max)
        s->sum *= online_scale(s->max, m);
    s->max = m;
#pragma unroll
    for (int k = 0; k < N; k++)
        s->sum += pack_exp_sum(p[k], online_base(m, any));
}

/* A thread takes GROUP of its packs at a time, whose loads are all in flight before the first is
 * waited for. */
template <typename W, class T, class X>
__device__ inline Online<W> row_online(const T &t, int n, bool any, X x)
{
    static_assert(T::steps <= GROUP);
    Online<W> s = {lowest<W>(), 0};
    if constexpr (T::steps) {
        each_pack(t, n,
                  [&](int i, int count, int k) { s.max = pack_max(s.max, x(i, count, k), count); });
        W base = online_base(s.max, any);
        each_pack(t, n, [&](int i, int count, int k) {
            s.sum += pack_exp_sum(x(i, count, k), base, count);
        });
    } else {
        constexpr int step = T::threads * PACK;
        Pack<W> p[GROUP];
        int i = t.lane * PACK;
#pragma unroll 1
        for (; i + (GROUP - 1) * step + PACK <= n; i += GROUP * step) {
#pragma unroll
            for (int k = 0; k < GROUP; k++)
                p[k] = x(i + k * step, PACK, 0);
            online_add(&s, p, any);
        }
#pragma unroll
        for (int k = 0; k < GROUP; k++, i += step) {
            if (i < n)
                p[k] = x(i, n - i < PACK ? n - i : PACK, 0);
#pragma unroll
            for (int v = 0; v < PACK; v++)
                p[k].v[v] = i + v < n ? p[k].v[v] : lowest<W>();
        }
        online_add(&s, p, any);
    }
    return team_join(t, s, [](Online<W> a, Online<W> b) { return online_join(a, b); });
}

/* Its logarithm: by lane 0, or by all. */
template <typename W> __device__ inline double online_log(Online<W> s, bool any)
{
    return (double)online_base(s.max, any) + log((double)s.sum);
}

/* ---- softmax.c: y of an element, from what its row has ---- */

template <typename W> __device__ inline W softmax_of(W x, Online<W> s)
{
    return exp_of(x - s.max) / s.sum;
}
template <typename W> __device__ inline W log_softmax_of(W x, W max, W logs)
{
    return x - max - logs;
}
template <typename W> __device__ inline W softmax_gradient(W dy, W y, W dot)
{
    return y * (dy - dot);
}
template <typename W> __device__ inline W log_softmax_gradient(W dy, W y, W sum)
{
    return dy - exp_of(y) * sum;
}
/* The sum of f(element) over the row, in double. */
template <int G = GROUP, class T, class X, class F>
__device__ inline double row_total(const T &t, int n, X x, F f)
{
    double s = 0;
    each_loaded<G>(t, n, x, [&](const decltype(x(0, 0, 0)) &p, int count) {
        Pack<double> y;
#pragma unroll
        for (int v = 0; v < PACK; v++)
            y.v[v] = f((double)p.v[v]);
        s += pack_sum(y, count);
    });
    return team_sum(t, s);
}
template <class T, class X> __device__ inline double row_total(const T &t, int n, X x)
{
    return row_total(t, n, x, [](double y) { return y; });
}
/* The sum of a(...) b(...) over the row, in double. */
template <class T, class A, class B> __device__ inline double row_dot(const T &t, int n, A a, B b)
{
    return row_sum<double>(t, n, [&](int i, int count, int k) {
        auto p = a(i, count, k);
        auto q = b(i, count, k);
        Pack<double> y;
#pragma unroll
        for (int v = 0; v < PACK; v++)
            y.v[v] = (double)p.v[v] * (double)q.v[v];
        return y;
    });
}

/* ---- layer_norm.c, rms_norm.c ---- */

template <typename W> struct Moments {
    W mean, rstd;
};

template <typename W, class T, class X>
__device__ inline Moments<W> row_moments(const T &t, int n, W eps, X x)
{
    W mean = row_sum<W>(t, n, x) / (W)n;
    Two<W> s = {0, 0};
    each_pack(t, n, [&](int i, int count, int k) {
        Pack<W> p = x(i, count, k), q;
#pragma unroll
        for (int v = 0; v < PACK; v++) {
            p.v[v] -= mean;
            q.v[v] = p.v[v] * p.v[v];
        }
        s.a += pack_sum(p, count);
        s.b += pack_sum(q, count);
    });
    s = team_sum(t, s);
    W off = s.a / (W)n, var = s.b / (W)n - off * off;
    return {mean + off, 1 / root((var < 0 ? 0 : var) + eps)};
}
template <typename W> __device__ inline W layer_norm_of(W x, Moments<W> m, W w, W b)
{
    return (x - m.mean) * m.rstd * w + b;
}

template <typename W, class T, class X> __device__ inline W row_rstd(const T &t, int n, W eps, X x)
{
    W s = row_sum<W>(t, n, [&](int i, int count, int k) {
        Pack<W> p = x(i, count, k);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            p.v[v] *= p.v[v];
        return p;
    });
    return 1 / root(s / (W)n + eps);
}
template <typename W> __device__ inline W rms_norm_of(W x, W rstd, W w)
{
    return x * rstd * w;
}

/* h = (x - mean) rstd. RMS: mean is 0. */
template <bool RMS, typename W> __device__ inline W norm_input(W x, Moments<W> m)
{
    return (RMS ? x : x - m.mean) * m.rstd;
}

/* The sums of g = dy w, and of g h, of a pack. RMS: the first is not formed. The even and the odd
 * elements are added apart, in their order, so that a sum waits for fewer others. */
template <bool RMS, typename W>
__device__ inline Two<W> pack_norm_sums(const Pack<W> &dy, const Pack<W> &x, const Pack<W> &w,
                                        Moments<W> m, int count = PACK)
{
    Two<W> s[2] = {};
#pragma unroll
    for (int v = 0; v < PACK; v++) {
        W g = v < count ? dy.v[v] * w.v[v] : (W)0,
          h = v < count ? norm_input<RMS>(x.v[v], m) : (W)0;
        if constexpr (!RMS)
            s[v % 2].a += g;
        s[v % 2].b = fma_of(g, h, s[v % 2].b);
    }
    return {s[0].a + s[1].a, s[0].b + s[1].b};
}
/* The means of these over a row. */
template <bool RMS, typename W, class T, class D, class X, class V>
__device__ inline Two<W> row_norm_sums(const T &t, int n, Moments<W> m, D dy, X x, V w)
{
    Two<W> s = {0, 0};
    each_pack(t, n, [&](int i, int count, int k) {
        Two<W> p = pack_norm_sums<RMS>(dy(i, count, k), x(i, count, k), w(i, count, k), m, count);
        s = {s.a + p.a, s.b + p.b};
    });
    if constexpr (RMS)
        s.b = team_sum(t, s.b);
    else
        s = team_sum(t, s);
    return {s.a / (W)n, s.b / (W)n};
}
template <bool RMS, typename W>
__device__ inline W norm_gradient(W dy, W h, W w, Moments<W> m, Two<W> mean)
{
    W g = fma_of(-h, mean.b, RMS ? dy * w : dy * w - mean.a);
    return m.rstd * g;
}

/* ---- cross_entropy.c ---- */

/* Which of n classes from `first` on a label is, or -1. */
__device__ inline long long class_of(long long label, long long first, long long n)
{
    unsigned long long at = (unsigned long long)label - (unsigned long long)first;
    return at < (unsigned long long)n ? (long long)at : -1;
}

/* How many of n columns, the first of which is class `first`, are some of all classes. */
__device__ inline long long classes_within(long long n, long long first, long long classes)
{
    long long left = classes - first;
    return first < 0 ? n : first >= classes ? 0 : n < left ? n : left;
}

/* Constants of a row: dx = (exp(x - lse) grow - target) scale. */
template <typename W> struct RowGradient {
    W lse, grow, target, other, scale; /* target: at the label; other: everywhere else */
};
template <typename W>
__device__ inline RowGradient<W> row_gradient(double dloss, long long total, double lse, double z,
                                              double smoothing, double classes)
{
    double other = smoothing / classes;
    return {(W)lse, z > 0 ? (W)(1 + 2 * z * lse) : (W)1, (W)(1 - smoothing + other), (W)other,
            (W)(dloss / (double)total)};
}
template <typename W>
__device__ inline W logit_gradient(const RowGradient<W> &r, W x, bool at_label)
{
    return (exp_of(x - r.lse) * r.grow - (at_label ? r.target : r.other)) * r.scale;
}

/* The first of n labels, `step` apart, that is neither `ignore` nor in [0, classes), or n; called
 * by all threads of a block. */
template <typename L>
__device__ inline long long first_wrong_label(const L *label, long long step, long long n,
                                              long long ignore, long long classes)
{
    __shared__ long long found[WARP];
    int warps = ((int)blockDim.x + WARP - 1) / WARP;
    long long first = n;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        long long l = label[i * step];
        if (l != ignore && (l < 0 || l >= classes) && i < first)
            first = i;
    }
    for (int d = WARP / 2; d; d /= 2) {
        long long other = shuffle_xor(first, d);
        first = other < first ? other : first;
    }
    if (threadIdx.x % WARP == 0)
        found[threadIdx.x / WARP] = first;
    __syncthreads();
    for (int k = 0; k < warps; k++)
        first = found[k] < first ? found[k] : first;
    __syncthreads();
    return first;
}

/* ---- packs in memory ---- */

struct alignas(16) Quad {
    unsigned w[4];
};

/* A whole pack at an address that is aligned to 16 bytes. */
template <typename T> __device__ inline Pack<T> load_pack(const T *p)
{
    constexpr int quads = sizeof(Pack<T>) / sizeof(Quad);
    Quad q[quads];
    Pack<T> x;
#pragma unroll
    for (int k = 0; k < quads; k++)
        q[k] = ((const Quad *)(const void *)p)[k];
    memcpy(&x, q, sizeof x);
    return x;
}
template <typename T> __device__ inline void store_pack(T *p, const Pack<T> &x)
{
    constexpr int quads = sizeof(Pack<T>) / sizeof(Quad);
    Quad q[quads];
    memcpy(q, &x, sizeof x);
#pragma unroll
    for (int k = 0; k < quads; k++)
        ((Quad *)(void *)p)[k] = q[k];
}

#ifdef TN_SIMT
#define READS_AROUND __attribute__((no_sanitize_address))
#else
#define READS_AROUND
#endif

/* The same at an address that is aligned to an element, by loads of 16 bytes: of what lies around
 * the pack what is not its own is dropped. Without branches, so that the loads of several packs are
 * in flight together. */
template <typename T> __device__ READS_AROUND inline Pack<T> load_pack_across(const T *p)
{
    constexpr int quads = sizeof(Pack<T>) / sizeof(Quad), words = quads * 4;
    unsigned shift = (unsigned)(unsigned long long)p % sizeof(Quad), w[words + 4];
    const Quad *from = (const Quad *)(const void *)((const char *)p - shift);
    Pack<T> x;
#pragma unroll
    for (int k = 0; k <= quads; k++) {
        Quad q = from[k < quads || shift ? k : quads - 1];
        memcpy(w + k * 4, &q, sizeof q);
    }
#pragma unroll
    for (int j = 0; j < words + 2; j++)
        w[j] = shift & 8 ? w[j + 2] : w[j];
#pragma unroll
    for (int j = 0; j < words + 1; j++)
        w[j] = shift & 4 ? w[j + 1] : w[j];
    if constexpr (sizeof(T) == 2)
#pragma unroll
        for (int j = 0; j < words; j++)
            w[j] = shift & 2 ? __byte_perm(w[j], w[j + 1], 0x5432) : w[j];
    memcpy(&x, w, sizeof x);
    return x;
}

template <typename T> __device__ inline Pack<wide_t<T>> wide_pack(const Pack<T> &x)
{
    Pack<wide_t<T>> y;
#pragma unroll
    for (int v = 0; v < PACK; v++)
        y.v[v] = wide(x.v[v]);
    return y;
}
/* bf16 comes in words of two: an instruction for each element. */
__device__ inline Pack<float> wide_pack(const Pack<bf16> &x)
{
    unsigned w[PACK / 2];
    Pack<float> y;
    memcpy(w, &x, sizeof x);
#pragma unroll
    for (int v = 0; v < PACK; v++)
        y.v[v] = __builtin_bit_cast(float, v % 2 ? w[v / 2] & 0xffff0000u : w[v / 2] << 16);
    return y;
}
template <typename T, typename W> __device__ inline Pack<T> narrow_pack(const Pack<W> &x)
{
    Pack<T> y;
#pragma unroll
    for (int v = 0; v < PACK; v++)
        y.v[v] = narrow<T>(x.v[v]);
    return y;
}

#endif
