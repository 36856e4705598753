/* adamw on CUDA (adamw.c has the formula and its numerics): one pass, four elements a thread at a
 * time. */
#include "update.cuh"

enum { BETA1, BETA2, EPS, DECAY, ROUNDING };
enum { P, G, M, V, LR, STEP, SCALE, APPLY };

static const char *const faults[] = {"step: expected at least 1, found %lld", NULL};

static bool accepts(const Call *c)
{
    return all_contiguous(c, P, V);
}

/* Parameters are of T, gradients and moments of U. */
template <typename T, typename U> struct Update {
    const T *p;
    const U *g, *m, *v;
    T *p1;
    U *m1, *v1;
    Tensor lr, scale;
    const int64_t *step;
    const uint8_t *apply;
    int64_t n;
    bool fours;
    double beta1, beta2, eps, decay;
    Rounding rounding;
    Fault *fault;
    int at; /* Call.step */
};

/* What is the same for all elements. */
template <typename W> struct Coefficients {
    W scale, beta1, beta2, rest1, rest2, keep, lr, root, eps;
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
        double lr = scalar(u.lr);
        s->keep = (W)(1 - lr * u.decay);
        s->lr = (W)(lr / correction_of(u.beta1, u.step));
    } else if (threadIdx.x == 64) {
        s->root = (W)(1 / sqrt(correction_of(u.beta2, u.step)));
        if (*u.step < 1)
            note(u.fault, u.at, 0, *u.step);
    }
}

template <typename T, typename U, typename W>
__device__ static void update_one(T *p, U g, U *m, U *v, const Coefficients<W> &s,
                                  const Rounding &r, unsigned word)
{
    W gi = s.scale * wide(g);
    W mi = s.beta1 * wide(*m) + s.rest1 * gi;
    W vi = s.beta2 * wide(*v) + s.rest2 * gi * gi;
    *m = narrow<U>(mi);
    *v = narrow<U>(vi);
    *p = narrow_so<T>(r, s.keep * (W)wide(*p) - s.lr * mi / (sqrt(vi) * s.root + s.eps), word);
}

/* What a thread has of each tensor. */
template <typename T, typename U> struct Loaded {
    Four<T> p;
    Four<U> g, m, v;
};

template <typename T, typename U>
__device__ static Loaded<T, U> load_all(const Update<T, U> &u, int64_t i)
{
    return {load_four(u.p, i, u.n, u.fours), load_four(u.g, i, u.n, u.fours),
            load_four(u.m, i, u.n, u.fours), load_four(u.v, i, u.n, u.fours)};
}

/* While coefficients are computed the first elements are on their way, then always the next. */
template <typename T, typename U> static __global__ void update(Update<T, U> u)
{
    __shared__ Coefficients<wide_t<U>> s;
    int64_t i = thread_number() * EACH, step = (int64_t)gridDim.x * THREADS * EACH;
    Loaded<T, U> x = load_all(u, i);
    bool apply = *u.apply;
    fill_coefficients(u, &s);
    __syncthreads();
    for (; i < u.n; i += step) {
        Loaded<T, U> next = load_all(u, i + step);
        unsigned word[EACH] = {};
        rounding_words(u.rounding, i, u.n, word);
        for (int k = 0; k < EACH && apply; k++)
            update_one(&x.p.x[k], x.g.x[k], &x.m.x[k], &x.v.x[k], s, u.rounding, word[k]);
        store_four(u.p1, i, u.n, u.fours, x.p);
        store_four(u.m1, i, u.n, u.fours, x.m);
        store_four(u.v1, i, u.n, u.fours, x.v);
        x = next;
    }
}

template <typename T, typename U> static int update_all(Call *c)
{
    const Attr *a = c->node->attr;
    Update<T, U> u = {.p = data<T>(c->in[P]),
                      .g = data<U>(c->in[G]),
                      .m = data<U>(c->in[M]),
                      .v = data<U>(c->in[V]),
                      .p1 = data<T>(c->out[0]),
                      .m1 = data<U>(c->out[1]),
                      .v1 = data<U>(c->out[2]),
                      .lr = c->in[LR],
                      .scale = c->in[SCALE],
                      .step = data<int64_t>(c->in[STEP]),
                      .apply = data<uint8_t>(c->in[APPLY]),
                      .n = tensor_nelem(&c->in[P]),
                      .beta1 = a[BETA1].f,
                      .beta2 = a[BETA2].f,
                      .eps = a[EPS].f,
                      .decay = a[DECAY].f,
                      .rounding = rounding_of(c, ROUNDING),
                      .fault = c->fault,
                      .at = c->step};
    u.fours = in_fours(u.p) && in_fours(u.g) && in_fours(u.m) && in_fours(u.v);
    return LAUNCH(c, (update<T, U>), grid_of(u.n), THREADS, 0, u);
}

static int run(Call *c)
{
    BY_PARAMETER(c, T, U, return (update_all<T, U>(c)));
    return 0;
}

CUDA_KERNELS(adamw) = {{.name = "adamw", .accepts = accepts, .run = run, .faults = faults}, {}};
