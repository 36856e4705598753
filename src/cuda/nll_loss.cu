/* nll_loss_forward and nll_loss_backward on CUDA (nll_loss.c has the formulas). One block is the
 * forward: it reads one element of each row and adds in double, in a fixed order. The backward
 * clears all rows and sets one element of each. */
#include "row_tensor.cuh"

enum { REDUCTION, IGNORE_INDEX };
enum { DLOSS, X, TARGET, TOTAL, WEIGHT }; /* of the backward */
static constexpr int THREADS = 1024, CLEAR_THREADS = 256, CLEAR_EACH = 8;

static const char *const faults[] = {"target %lld at row %lld: expected 0 to %lld, or %lld", NULL};

/* A tensor with one axis, or none. */
struct Vector {
    char *data;
    DType dtype;
    int64_t step; /* bytes */
};

static Vector vector_of(const Tensor *t)
{
    if (!t)
        return {};
    return {t->data, t->dtype, t->rank ? t->stride[0] * size_of(t->dtype) : 0};
}

__device__ static double get(const Vector &v, int64_t i)
{
    return load_any<double>(v.data + i * v.step, v.dtype);
}

struct Targets {
    const int64_t *at;
    int64_t step, rows, classes, ignore;
    Vector weight; /* data NULL: 1 */
    Fault *fault;
    int plan_step;
};

static Targets targets_of(const Call *c, const Tensor *x, const Tensor *target,
                          const Tensor *weight)
{
    return {data<const int64_t>(*target),  target->stride[0], x->dim[0], x->dim[1],
            c->node->attr[IGNORE_INDEX].i, vector_of(weight), c->fault,  c->step};
}

/* The class of row i, or -1 where it does not count. */
__device__ static int64_t class_at(const Targets &t, int64_t i)
{
    int64_t label = t.at[i * t.step];
    return label == t.ignore ? -1 : class_of(label, 0, t.classes);
}

__device__ static double weight_at(const Targets &t, int64_t label)
{
    return t.weight.data ? get(t.weight, label) : 1;
}

/* By the first block, whose threads all call it. */
__device__ static void check_targets(const Targets &t)
{
    if (blockIdx.x)
        return;
    int64_t wrong = first_wrong_label(t.at, t.step, t.rows, t.ignore, t.classes);
    if (threadIdx.x == 0 && wrong < t.rows)
        note(t.fault, t.plan_step, 0, t.at[wrong * t.step], wrong, t.classes - 1, t.ignore);
}

static __global__ void forward(Targets t, Vector x, int64_t column, Vector loss, Vector total,
                               int reduction)
{
    __shared__ Two<double> warp[WARP];
    auto add = [](Two<double> p, Two<double> q) { return Two<double>{p.a + q.a, p.b + q.b}; };
    Two<double> s = {0, 0};
    check_targets(t);
    for (int64_t i = threadIdx.x; i < t.rows; i += THREADS) {
        int64_t label = class_at(t, i);
        double w = label < 0 ? 0 : weight_at(t, label), term = 0;
        if (label >= 0)
            term = -w * load_any<double>(x.data + i * x.step + label * column, x.dtype);
        if (reduction == REDUCE_NONE)
            store_any(loss.data + i * loss.step, loss.dtype, term);
        s = add(s, {term, w});
    }
    for (int d = WARP / 2; d; d /= 2)
        s = add(s, shuffle_xor(s, d));
    if (threadIdx.x % WARP == 0)
        warp[threadIdx.x / WARP] = s;
    __syncthreads();
    s = warp[threadIdx.x % WARP];
    for (int d = WARP / 2; d; d /= 2)
        s = add(s, shuffle_xor(s, d));
    if (threadIdx.x)
        return;
    if (reduction != REDUCE_NONE)
        store_any(loss.data, loss.dtype, reduction == REDUCE_MEAN ? s.a / s.b : s.a);
    store_any(total.data, total.dtype, reduction == REDUCE_NONE ? 0 : s.b);
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int run(Call *c)
{
    const Tensor *x = &c->in[0];
    Targets t = targets_of(c, x, &c->in[1], c->nin == 3 ? &c->in[2] : NULL);
    return LAUNCH(c, forward, 1, THREADS, 0, t, vector_of(x), x->stride[1] * size_of(x->dtype),
                  vector_of(&c->out[0]), vector_of(&c->out[1]), (int)c->node->attr[REDUCTION].i);
}

CUDA_KERNELS(nll_loss_forward) = {
    {.name = "nll_loss", .accepts = accepts, .run = run, .faults = faults}, {}};

/* ---- backward ---- */

/* n bytes, of which whole quads are set as such. */
static __global__ void clear(char *p, int64_t n)
{
    int64_t head = (int64_t)((0 - (uintptr_t)p) % sizeof(Quad));
    head = MIN(head, n);
    int64_t quads = (n - head) / (int64_t)sizeof(Quad), tail = head + quads * (int64_t)sizeof(Quad);
    Quad *q = (Quad *)(void *)(p + head);
    for (int k = 0; k < CLEAR_EACH; k++) {
        int64_t i = ((int64_t)blockIdx.x * CLEAR_EACH + k) * CLEAR_THREADS + threadIdx.x;
        if (i < quads)
            q[i] = {};
    }
    if (blockIdx.x)
        return;
    if (threadIdx.x < head)
        p[threadIdx.x] = 0;
    if (tail + threadIdx.x < n)
        p[tail + threadIdx.x] = 0;
}

static __global__ void set_rows(Targets t, Vector dy, Vector total, bool mean, Tensor dx)
{
    check_targets(t);
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, label;
    if (i >= t.rows || (label = class_at(t, i)) < 0)
        return;
    double slope = get(dy, i), over = mean ? get(total, 0) : 1;
    store_any(dx.data + (i * dx.stride[0] + label * dx.stride[1]) * size_of(dx.dtype), dx.dtype,
              -weight_at(t, label) * slope / over);
}

static int backward_run(Call *c)
{
    const Tensor *dx = &c->out[0];
    int64_t n = tensor_nelem(dx) * size_of(dx->dtype);
    Targets t = targets_of(c, dx, &c->in[TARGET], c->nin > WEIGHT ? &c->in[WEIGHT] : NULL);
    unsigned grid = grid_for(n, (int64_t)sizeof(Quad) * CLEAR_THREADS * CLEAR_EACH);
    return LAUNCH(c, clear, grid, CLEAR_THREADS, 0, dx->data, n) ||
           LAUNCH(c, set_rows, grid_for(t.rows, THREADS), THREADS, 0, t, vector_of(&c->in[DLOSS]),
                  vector_of(&c->in[TOTAL]), c->node->attr[REDUCTION].i == REDUCE_MEAN, *dx);
}

CUDA_KERNELS(nll_loss_backward) = {
    {.name = "nll_loss_backward", .accepts = accepts, .run = backward_run, .faults = faults}, {}};
