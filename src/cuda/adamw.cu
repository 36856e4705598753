/* adamw on CUDA (adamw.c has the formula and its numerics): one pass, four elements a thread at a
 * time; many tensors are updated by one launch, whose blocks go over chunks of all of them. */
#include "update.cuh"

enum { BETA1, BETA2, EPS, DECAY, ROUNDING };
enum { P, G, M, V, LR, STEP, SCALE, APPLY };

static const char *const faults[] = {"step: expected at least 1, found %lld", NULL};

static bool accepts(const Call *c)
{
    return all_contiguous(c, P, V);
}

/* Rounding of a parameter that has more than 16 bits: to nearest. */
struct NearestRounding {
    static constexpr const int64_t *seed = NULL;
};
__device__ static void rounding_words(const NearestRounding &, int64_t, int64_t, unsigned (&)[EACH])
{
}

static void set_rounding(NearestRounding *, const Rounding &)
{
}
static void set_rounding(WholeRounding *to, const Rounding &r)
{
    *to = {r.seed, r.step, r.stream};
}
static void set_rounding(Rounding *to, const Rounding &r)
{
    *to = r;
}

/* A parameter of T, gradients and moments of U, rounding as R says. */
template <typename T, typename U, typename R> struct One {
    const T *p;
    const U *g, *m, *v;
    T *p1;
    U *m1, *v1;
    double decay;
    int64_t n;
    unsigned end; /* the first chunk after */
    bool fours;
    R rounding;
};

enum { CHUNK = THREADS * EACH };

/* Bytes of a launch's arguments. CUDA 12.1 and the driver that came with it take 32,764 where 4096
 * were the most; a driver for CUDA 13 is newer. */
#if defined(TN_SIMT) || CUDART_VERSION >= 13000
constexpr int ARGUMENTS = 32764;
#else
constexpr int ARGUMENTS = 4096;
#endif
constexpr int IN_COMMON = 512; /* at most, of them that all tensors of a launch share */

/* The number of tensors that fit into them, */
template <typename T, typename U, typename R>
constexpr int most = (ARGUMENTS - IN_COMMON) / (int)sizeof(One<T, U, R>);

/* of which all else is the same. */
template <typename T, typename U, typename R> struct Update {
    One<T, U, R> of[most<T, U, R>];
    int count;
    Tensor lr, scale;
    const int64_t *step;
    const uint8_t *apply;
    const int *stop;
    double beta1, beta2, eps;
    Fault *fault;
    int at; /* Call.step */
};

/* All elements share these. */
template <typename W> struct Coefficients {
    W scale, beta1, beta2, rest1, rest2, lr, root, eps;
    double rate; /* lr as it was given */
    bool apply;
};

__device__ static __attribute__((noinline)) double correction_of(double beta, const int64_t *step)
{
    return 1 - pow(beta, (double)*step);
}

/* By three threads of as many warps, so that none waits for another's operands. */
template <typename W, typename A>
__device__ static void fill_coefficients(const A &u, Coefficients<W> *s)
{
    if (threadIdx.x == 0) {
        s->scale = (W)scalar(u.scale);
        s->beta1 = (W)u.beta1;
        s->beta2 = (W)u.beta2;
        s->rest1 = (W)(1 - u.beta1);
        s->rest2 = (W)(1 - u.beta2);
        s->eps = (W)u.eps;
    } else if (threadIdx.x == 32) {
        s->rate = scalar(u.lr);
        s->lr = (W)(s->rate / correction_of(u.beta1, u.step));
    } else if (threadIdx.x == 64) {
        s->root = (W)(1 / sqrt(correction_of(u.beta2, u.step)));
        s->apply = *u.apply && *u.step >= 1 && !stopped(u.stop);
        if (*u.step < 1)
            note(u.fault, u.at, 0, *u.step);
    }
}

template <typename T, typename U, typename W, typename R>
__device__ static void update_one(T *p, U g, U *m, U *v, const Coefficients<W> &s, W keep,
                                  const R &r, unsigned word)
{
    W gi = s.scale * wide(g);
    W mi = s.beta1 * wide(*m) + s.rest1 * gi;
    W vi = s.beta2 * wide(*v) + s.rest2 * gi * gi;
    *m = narrow<U>(mi);
    *v = narrow<U>(vi);
    *p = narrow_so<T>(r, keep * (W)wide(*p) - s.lr * mi / (sqrt(vi) * s.root + s.eps), word);
}

/* A thread loads elements from i on of one of the tensors. */
template <typename T, typename U> struct Loaded {
    int of;
    int64_t i;
    Four<T> p;
    Four<U> g, m, v;
};

template <typename T, typename U, typename R>
__device__ static Loaded<T, U> load_chunk(const Update<T, U, R> &u, int64_t chunk)
{
    int k = 0;
    static_assert(most<T, U, R> <= 512);
    for (int half = 256; half; half /= 2)
        k += k + half < u.count && chunk >= u.of[k + half - 1].end ? half : 0;
    const One<T, U, R> &x = u.of[k];
    int64_t i = (chunk - (k ? u.of[k - 1].end : 0)) * CHUNK + threadIdx.x * EACH;
    return {k,
            i,
            load_four(x.p, i, x.n, x.fours),
            load_four(x.g, i, x.n, x.fours),
            load_four(x.m, i, x.n, x.fours),
            load_four(x.v, i, x.n, x.fours)};
}

/* Blocks of a multiprocessor, by registers. */
template <typename T, typename U>
constexpr int resident = sizeof(U) == 8   ? 2
                         : sizeof(T) == 2 ? 3
                                          : 4;

/* While coefficients are computed the first elements are on their way, then always the next. */
template <typename T, typename U, typename R>
static __global__ void __launch_bounds__(THREADS, resident<T, U>)
    update(__grid_constant__ const Update<T, U, R> u)
{
    typedef wide_t<U> W;
    __shared__ Coefficients<W> s;
    int64_t chunk = blockIdx.x, end = u.of[u.count - 1].end;
    Loaded<T, U> x = load_chunk(u, chunk);
    fill_coefficients(u, &s);
    __syncthreads();
    bool apply = s.apply;
    for (; chunk < end; chunk += gridDim.x) {
        Loaded<T, U> next = load_chunk(u, chunk + gridDim.x);
        const One<T, U, R> &to = u.of[x.of];
        W keep = (W)(1 - s.rate * to.decay);
        unsigned word[EACH] = {};
        const R &r = to.rounding;
        rounding_words(r, x.i, to.n, word);
        for (int k = 0; k < EACH && apply; k++)
            update_one(&x.p.x[k], x.g.x[k], &x.m.x[k], &x.v.x[k], s, keep, r, word[k]);
        store_four(to.p1, x.i, to.n, to.fours, x.p);
        store_four(to.m1, x.i, to.n, to.fours, x.m);
        store_four(to.v1, x.i, to.n, to.fours, x.v);
        x = next;
    }
}

template <typename T, typename U, typename R> static One<T, U, R> one_of(const Call *c)
{
    One<T, U, R> x = {.p = data<T>(c->in[P]),
                      .g = data<U>(c->in[G]),
                      .m = data<U>(c->in[M]),
                      .v = data<U>(c->in[V]),
                      .p1 = data<T>(c->out[0]),
                      .m1 = data<U>(c->out[1]),
                      .v1 = data<U>(c->out[2]),
                      .decay = c->node->attr[DECAY].f,
                      .n = tensor_nelem(&c->in[P])};
    set_rounding(&x.rounding, rounding_of(c, ROUNDING));
    x.fours = in_fours(x.p) && in_fours(x.g) && in_fours(x.m) && in_fours(x.v) && in_fours(x.p1) &&
              in_fours(x.m1) && in_fours(x.v1);
    return x;
}

template <typename T, typename U, typename R> static Update<T, U, R> update_of(const Call *c)
{
    const Attr *a = c->node->attr;
    return {.lr = c->in[LR],
            .scale = c->in[SCALE],
            .step = data<int64_t>(c->in[STEP]),
            .apply = data<uint8_t>(c->in[APPLY]),
            .stop = c->stop,
            .beta1 = a[BETA1].f,
            .beta2 = a[BETA2].f,
            .eps = a[EPS].f,
            .fault = c->fault,
            .at = c->step};
}

template <typename T, typename U, typename R> static int update_some(Call *const *c, int n)
{
    static_assert(sizeof(Update<T, U, R>) <= ARGUMENTS);
    Update<T, U, R> u = update_of<T, U, R>(c[0]);
    unsigned end = 0;
    for (int k = 0; k < n; k++) {
        One<T, U, R> x = one_of<T, U, R>(c[k]);
        if (x.n) {
            end += grid_for(x.n, CHUNK);
            x.end = end;
            u.of[u.count++] = x;
        }
    }
    if (!u.count)
        return 0;
    return LAUNCH(c[0], (update<T, U, R>), MIN(end, (unsigned)(BLOCKS / 4 * resident<T, U>)),
                  THREADS, 0, u);
}

static bool whole(const Call *c)
{
    return rounds_whole(rounding_of(c, ROUNDING));
}

/* Whether a and b differ in nothing but the tensors and their decay. */
static bool alike(const Call *a, const Call *b)
{
    for (int i = LR; i <= APPLY; i++)
        if (a->in[i].data != b->in[i].data || a->in[i].dtype != b->in[i].dtype)
            return false;
    for (int i = BETA1; i <= EPS; i++)
        if (a->node->attr[i].f != b->node->attr[i].f)
            return false;
    return a->stop == b->stop && a->in[P].dtype == b->in[P].dtype &&
           a->in[G].dtype == b->in[G].dtype && whole(a) == whole(b);
}

/* By as many launches as it takes. */
template <typename T, typename U, typename R> static int update_each(Call *const *c, int n)
{
    int bad = 0;
    for (int k = 0; k < n && !bad; k += most<T, U, R>)
        bad = update_some<T, U, R>(c + k, MIN(n - k, (most<T, U, R>)));
    return bad;
}

template <typename T, typename U> static int update_alike(Call *const *c, int n)
{
    if constexpr (sizeof(T) > 2)
        return update_each<T, U, NearestRounding>(c, n);
    else
        return whole(c[0]) ? update_each<T, U, WholeRounding>(c, n)
                           : update_each<T, U, Rounding>(c, n);
}

static int run_all(Call *const *c, int n)
{
    for (int k = 0, count; k < n; k += count) {
        for (count = 1; k + count < n && alike(c[k], c[k + count]);)
            count++;
        int bad = 0;
        BY_PARAMETER(c[k], T, U, bad = (update_alike<T, U>(c + k, count)));
        if (bad)
            return bad;
    }
    return 0;
}

static int run(Call *c)
{
    Call *one[] = {c};
    return run_all(one, 1);
}

CUDA_KERNELS(adamw) = {
    {.name = "adamw", .accepts = accepts, .run = run, .run_all = run_all, .faults = faults}, {}};
