/* cross_entropy_backward on CUDA (cross_entropy_backward.c has the formula): a block for each row,
 * which it goes through once, by packs from the first address on that is aligned to 16 bytes; dx
 * may be in the place of x. */
#include "cross_entropy.cuh"

enum { CLASSES = SMOOTHING + 1, PADDING, FIRST = 5 };
static constexpr int THREADS = 512;

struct LossGrad {
    TensorRows x, dx;
    Labels labels;
    const int64_t *first; /* NULL: 0 */
    const void *dloss, *lse;
    int64_t n; /* columns */
    double z, smoothing;
};

template <typename W> struct LogitGradient {
    RowGradient<W> r;
    int64_t label; /* which class of the row, or -1 */
    int64_t n;     /* classes with a gradient: none where the row does not count */
    __device__ W operator()(W x, int64_t i) const
    {
        return i < n ? logit_gradient(r, x, i == label) : 0;
    }
};

template <typename W> __device__ inline LogitGradient<W> row_of(const LossGrad &a, int64_t row)
{
    int64_t label = a.labels.at[row * a.labels.step], first = a.first ? *a.first : 0;
    int64_t n = classes_within(a.n, first, a.labels.classes);
    return {row_gradient<W>((double)*(const W *)a.dloss, *a.labels.count,
                            (double)((const W *)a.lse)[row], a.z, a.smoothing,
                            (double)a.labels.classes),
            class_of(label, first, n), label != a.labels.ignore ? n : 0};
}

/* Rows of float and bf16; x and dx at one distance from an aligned address. */
template <class E> __global__ void gradient_rows(LossGrad a)
{
    typedef wide_t<E> W;
    constexpr int64_t step = THREADS * PACK;
    check_labels(a.labels);
    int64_t row = blockIdx.x;
    if (row >= a.labels.rows)
        return;
    LogitGradient<W> f = row_of<W>(a, row);
    const E *x = (const E *)(const void *)a.x.data + row_offset(a.x, row);
    E *dx = (E *)(void *)a.dx.data + row_offset(a.dx, row);
    int64_t head = (int64_t)((0 - (uintptr_t)x) % sizeof(Quad) / sizeof(E));
    head = head < a.n ? head : a.n;
    int64_t end = head + (a.n - head) / PACK * PACK, i = head + (int64_t)threadIdx.x * PACK;
    if (threadIdx.x < head)
        dx[threadIdx.x] = narrow<E>(f(wide(x[threadIdx.x]), threadIdx.x));
    if (end + threadIdx.x < a.n)
        dx[end + threadIdx.x] = narrow<E>(f(wide(x[end + threadIdx.x]), end + threadIdx.x));
    Pack<E> p = {}, next = {};
    if (i < end)
        p = load_pack(x + i);
    for (; i < end; i += step, p = next) {
        if (i + step < end)
            next = load_pack(x + i + step);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            p.v[v] = narrow<E>(f(wide(p.v[v]), i + v));
        store_pack(dx + i, p);
    }
}

/* Rows of any kind: an element a thread. */
template <typename W> __global__ void gradient_any(LossGrad a)
{
    check_labels(a.labels);
    int64_t row = blockIdx.x;
    if (row >= a.labels.rows)
        return;
    LogitGradient<W> f = row_of<W>(a, row);
    RowAt<Any<W>> x(a.x, row), dx(a.dx, row);
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS)
        store_any(dx.p + i * dx.step, dx.dtype, f(x.at(i), i));
}

static bool accepts(const Call *c)
{
    return rows_contiguous(&c->in[1], 1) && tensor_contiguous(&c->in[3]);
}

/* Whether a row of x and one of dx are aligned alike. */
static bool aligned_alike(const LossGrad &a)
{
    int64_t each = (int64_t)sizeof(Quad), x = a.x.rank ? a.x.stride[0] : 0,
            dx = a.dx.rank ? a.dx.stride[0] : 0;
    return (x - dx) * size_of(a.x.dtype) % each == 0 &&
           ((uintptr_t)a.x.data - (uintptr_t)a.dx.data) % (uintptr_t)each == 0;
}

static int run(Call *c)
{
    const Attr *attr = c->node->attr;
    const Tensor *x = &c->in[1];
    int64_t n = x->dim[1] - attr[PADDING].i, classes = attr[CLASSES].i ? attr[CLASSES].i : n;
    LossGrad a = {.x = rows_of(x, 1),
                  .dx = rows_of(&c->out[0], 1),
                  .labels = labels_of(c, &c->in[2], &c->in[4], classes),
                  .first = c->nin > FIRST ? data<const int64_t>(c->in[FIRST]) : NULL,
                  .dloss = c->in[0].data,
                  .lse = c->in[3].data,
                  .n = x->dim[1],
                  .z = attr[Z_LOSS].f,
                  .smoothing = attr[SMOOTHING].f};
    unsigned grid = (unsigned)MAX((int64_t)1, x->dim[0]);
    if (x->dtype == F32 && aligned_alike(a))
        return LAUNCH(c, gradient_rows<float>, grid, THREADS, 0, a);
    if (x->dtype == BF16 && aligned_alike(a))
        return LAUNCH(c, gradient_rows<bf16>, grid, THREADS, 0, a);
    if (x->dtype == F64)
        return LAUNCH(c, gradient_any<double>, grid, THREADS, 0, a);
    return LAUNCH(c, gradient_any<float>, grid, THREADS, 0, a);
}

CUDA_KERNELS(cross_entropy_backward) = {
    {.name = "cross_entropy_backward_rows", .accepts = accepts, .run = run, .faults = label_faults},
    {}};
