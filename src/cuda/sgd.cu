/* sgd on CUDA (sgd.c has the formula and its numerics): one pass, four elements a thread at a time.
 */
#include "update.cuh"

enum { DECAY, MOMENTUM, ROUNDING };
enum { P, G, LR, SCALE, APPLY, M };

static bool accepts(const Call *c)
{
    return all_contiguous(c, P, G) && all_contiguous(c, M, own_operands(c, ROUNDING) - 1);
}

/* Parameters are of T, gradients and momentum of U; m and m1 are NULL where there is none. */
template <typename T, typename U> struct Update {
    const T *p;
    const U *g, *m;
    T *p1;
    U *m1;
    Tensor lr, scale;
    const uint8_t *apply;
    const int *stop;
    int64_t n;
    bool fours;
    wide_t<U> decay, momentum;
    Rounding rounding;
};

template <typename T, typename U> static __global__ void update(Update<T, U> u)
{
    typedef wide_t<U> W;
    W lr = (W)scalar(u.lr), scale = (W)scalar(u.scale);
    bool apply = *u.apply && !stopped(u.stop);
    for (int64_t i = thread_number() * EACH; i < u.n; i += (int64_t)gridDim.x * THREADS * EACH) {
        Four<T> p = load_four(u.p, i, u.n, u.fours);
        Four<U> g = load_four(u.g, i, u.n, u.fours), m = {};
        if (u.m)
            m = load_four(u.m, i, u.n, u.fours);
        unsigned word[EACH] = {};
        rounding_words(u.rounding, i, u.n, word);
        for (int k = 0; k < EACH && apply; k++) {
            W pi = wide(p.x[k]), gi = scale * wide(g.x[k]) + u.decay * pi;
            if (u.m)
                gi = u.momentum * wide(m.x[k]) + gi;
            m.x[k] = narrow<U>(gi);
            p.x[k] = narrow_so<T>(u.rounding, pi - lr * gi, word[k]);
        }
        store_four(u.p1, i, u.n, u.fours, p);
        if (u.m)
            store_four(u.m1, i, u.n, u.fours, m);
    }
}

template <typename T, typename U> static int update_all(Call *c)
{
    const Attr *a = c->node->attr;
    bool has_m = own_operands(c, ROUNDING) > M;
    Update<T, U> u = {.p = data<T>(c->in[P]),
                      .g = data<U>(c->in[G]),
                      .m = has_m ? data<U>(c->in[M]) : NULL,
                      .p1 = data<T>(c->out[0]),
                      .m1 = has_m ? data<U>(c->out[1]) : NULL,
                      .lr = c->in[LR],
                      .scale = c->in[SCALE],
                      .apply = data<uint8_t>(c->in[APPLY]),
                      .stop = c->stop,
                      .n = tensor_nelem(&c->in[P]),
                      .decay = (wide_t<U>)a[DECAY].f,
                      .momentum = (wide_t<U>)a[MOMENTUM].f,
                      .rounding = rounding_of(c, ROUNDING)};
    u.fours = in_fours(u.p) && in_fours(u.g) && in_fours(u.m) && in_fours(u.p1) && in_fours(u.m1);
    return LAUNCH(c, (update<T, U>), grid_of(u.n), THREADS, 0, u);
}

static int run(Call *c)
{
    BY_PARAMETER(c, T, U, return (update_all<T, U>(c)));
    return 0;
}

CUDA_KERNELS(sgd) = {{.name = "sgd", .accepts = accepts, .run = run}, {}};
