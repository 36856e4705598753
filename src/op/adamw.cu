/* adamw on CUDA (adamw.c has the formula and its numerics): one pass, four elements a thread. */
#include "cuda.cuh"

enum { BETA1, BETA2, EPS, DECAY };
enum { P, G, M, V, LR, STEP, SCALE, APPLY };
enum { THREADS = 256, EACH = 4 };

static const char *const faults[] = {"step: expected at least 1, found %lld", NULL};

static bool accepts(const Call *c)
{
    for (int i = P; i <= V; i++)
        if ((i > P && c->in[i].dtype != F32) || !tensor_contiguous(&c->in[i]))
            return false;
    return (c->in[P].dtype == F32 || c->in[P].dtype == BF16) && c->in[LR].dtype == F32 &&
           c->in[SCALE].dtype == F32;
}

struct Update {
    const float *g, *m, *v, *lr, *scale;
    const int64_t *step;
    const uint8_t *apply;
    float *m1, *v1;
    int64_t n;
    double beta1, beta2, eps, decay;
    Fault *fault;
    int at; /* Call.step */
};

/* What is the same for all elements. */
struct Coefficients {
    float scale, beta1, beta2, rest1, rest2, keep, lr, root, eps;
};

__device__ static Coefficients coefficients_of(const Update &u)
{
    double lr = *u.lr, t = (double)*u.step;
    return {.scale = *u.scale,
            .beta1 = (float)u.beta1,
            .beta2 = (float)u.beta2,
            .rest1 = (float)(1 - u.beta1),
            .rest2 = (float)(1 - u.beta2),
            .keep = (float)(1 - lr * u.decay),
            .lr = (float)(lr / (1 - pow(u.beta1, t))),
            .root = (float)(1 / sqrt(1 - pow(u.beta2, t))),
            .eps = (float)u.eps};
}

template <typename T> __global__ void update(const T *p, T *p1, Update u)
{
    __shared__ Coefficients s;
    bool apply = *u.apply;
    if (threadIdx.x == 0) {
        s = coefficients_of(u);
        if (*u.step < 1)
            note(u.fault, u.at, 0, *u.step);
    }
    __syncthreads();
    for (int k = 0; k < EACH; k++) {
        int64_t i = ((int64_t)blockIdx.x * EACH + k) * THREADS + threadIdx.x;
        if (i >= u.n)
            return;
        float m = u.m[i], v = u.v[i], x = wide(p[i]);
        if (apply) {
            float g = s.scale * u.g[i];
            m = s.beta1 * m + s.rest1 * g;
            v = s.beta2 * v + s.rest2 * g * g;
            x = s.keep * x - s.lr * m / (sqrtf(v) * s.root + s.eps);
        }
        u.m1[i] = m;
        u.v1[i] = v;
        p1[i] = narrow<T>(x);
    }
}

static int run(Call *c)
{
    const Attr *a = c->node->attr;
    int64_t n = tensor_nelem(&c->in[P]);
    unsigned grid = grid_for(n, THREADS * EACH);
    Update u = {data<float>(c->in[G]),
                data<float>(c->in[M]),
                data<float>(c->in[V]),
                data<float>(c->in[LR]),
                data<float>(c->in[SCALE]),
                data<int64_t>(c->in[STEP]),
                data<uint8_t>(c->in[APPLY]),
                data<float>(c->out[1]),
                data<float>(c->out[2]),
                n,
                a[BETA1].f,
                a[BETA2].f,
                a[EPS].f,
                a[DECAY].f,
                c->fault,
                c->step};
    if (c->in[P].dtype == F32)
        return LAUNCH(c, update<float>, grid, THREADS, 0, data<float>(c->in[P]),
                      data<float>(c->out[0]), u);
    return LAUNCH(c, update<bf16>, grid, THREADS, 0, data<bf16>(c->in[P]), data<bf16>(c->out[0]),
                  u);
}

CUDA_KERNELS(adamw) = {{.name = "adamw", .accepts = accepts, .run = run, .faults = faults}, {}};
