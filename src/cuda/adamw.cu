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

/* Rounding of a parameter, of 16 bits alone. */
template <int SIZE> struct OwnRounding {
    __device__ Rounding get() const
    {
        return {};
    }
    void set(const Rounding &)
    {
    }
};
template <> struct OwnRounding<2> {
    Rounding r;
    __device__ const Rounding &get() const
    {
        return r;
    }
    void set(const Rounding &x)
    {
        r = x;
    }
};

/* A parameter of T, gradients and moments of U. */
template <typename T, typename U> struct One {
    const T *p;
    const U *g, *m, *v;
    T *p1;
    U *m1, *v1;
    double decay;
    int64_t n;
    unsigned end; /* the first chunk after */
    bool fours;
    OwnRounding<sizeof(T)> rounding;
};

enum { CHUNK = THREADS * EACH };

/* How many tensors fit into 4 KiB of arguments, */
template <typename T> constexpr int most = sizeof(T) == 2 ? 7 : 44;

/* of which all else is the same. */
template <typename T, typename U> struct Update {
    One<T, U> of[most<T>];
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

template <typename T, typename U, typename W>
__device__ static void update_one(T *p, U g, U *m, U *v, const Coefficients<W> &s, W keep,
                                  const Rounding &r, unsigned word)
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

template <typename T, typename U>
__device__ static Loaded<T, U> load_chunk(const Update<T, U> &u, int64_t chunk)
{
    int k = 0;
    for (int half = 64; half; half /= 2)
        k += k + half < u.count && chunk >= u.of[k + half - 1].end ? half : 0;
    const One<T, U> &x = u.of[k];
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
template <typename T, typename U>
static __global__ void __launch_bounds__(THREADS, resident<T, U>)
    update(__grid_constant__ const Update<T, U> u)
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
        const One<T, U> &to = u.of[x.of];
        W keep = (W)(1 - s.rate * to.decay);
        unsigned word[EACH] = {};
        const auto &r = to.rounding.get();
        rounding_words(r, x.i, to.n, word);
        for (int k = 0; k < EACH && apply; k++)
            update_one(&x.p.x[k], x.g.x[k], &x.m.x[k], &x.v.x[k], s, keep, r, word[k]);
        store_four(to.p1, x.i, to.n, to.fours, x.p);
        store_four(to.m1, x.i, to.n, to.fours, x.m);
        store_four(to.v1, x.i, to.n, to.fours, x.v);
        x = next;
    }
}

template <typename T, typename U> static One<T, U> one_of(const Call *c)
{
    One<T, U> x = {.p = data<T>(c->in[P]),
                   .g = data<U>(c->in[G]),
                   .m = data<U>(c->in[M]),
                   .v = data<U>(c->in[V]),
                   .p1 = data<T>(c->out[0]),
                   .m1 = data<U>(c->out[1]),
                   .v1 = data<U>(c->out[2]),
                   .decay = c->node->attr[DECAY].f,
                   .n = tensor_nelem(&c->in[P])};
    x.rounding.set(rounding_of(c, ROUNDING));
    x.fours = in_fours(x.p) && in_fours(x.g) && in_fours(x.m) && in_fours(x.v) && in_fours(x.p1) &&
              in_fours(x.m1) && in_fours(x.v1);
    return x;
}

template <typename T, typename U> static Update<T, U> update_of(const Call *c)
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

/* Whether a and b differ in nothing but the tensors and their decay. */
static bool alike(const Call *a, const Call *b)
{
    for (int i = LR; i <= APPLY; i++)
        if (a->in[i].data != b->in[i].data || a->in[i].dtype != b->in[i].dtype)
            return false;
    for (int i = BETA1; i <= EPS; i++)
        if (a->node->attr[i].f != b->node->attr[i].f)
            return false;
    return a->in[P].dtype == b->in[P].dtype && a->in[G].dtype == b->in[G].dtype;
}

template <typename T, typename U> static int update_some(Call *const *c, int n)
{
    static_assert(sizeof(Update<T, U>) <= 4096);
    Update<T, U> u = update_of<T, U>(c[0]);
    unsigned end = 0;
    for (int k = 0; k < n; k++) {
        One<T, U> x = one_of<T, U>(c[k]);
        if (x.n) {
            end += grid_for(x.n, CHUNK);
            x.end = end;
            u.of[u.count++] = x;
        }
    }
    if (!u.count)
        return 0;
    return LAUNCH(c[0], (update<T, U>), MIN(end, (unsigned)(BLOCKS / 4 * resident<T, U>)), THREADS,
                  0, u);
}

static int run_all(Call *const *c, int n)
{
    for (int k = 0, count; k < n; k += count) {
        int limit = dtype_size(c[k]->in[P].dtype) == 2 ? most<bf16> : most<float>;
        for (count = 1; count < limit && k + count < n && alike(c[k], c[k + count]);)
            count++;
        int bad = 0;
        BY_PARAMETER(c[k], T, U, bad = (update_some<T, U>(c + k, count)));
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
