/* count_labels, cross_entropy and cross_entropy_part on CUDA (cross_entropy.c has the formulas).
 *
 * A row of logits is read once, with a running maximum and sum in each thread, and once more where
 * labels are smoothed, for its sum. Loads are of 16 bytes wherever rows begin: those of an odd
 * number of classes do not at multiples of 16. Rows' losses go to c->work in double and are added
 * in a fixed order by one block. */
#include "cross_entropy.cuh"

static constexpr int COUNT_THREADS = 1024, SUM_THREADS = 1024;

/* ---- count_labels ---- */

static bool count_accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

static __global__ void count_labels(const int64_t *x, int64_t n, int64_t ignore, int64_t *y)
{
    __shared__ int64_t part[WARP];
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < n; i += COUNT_THREADS)
        count += x[i] != ignore;
    for (int d = WARP / 2; d; d /= 2)
        count += shuffle_xor(count, d);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = count;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int k = 1; k < COUNT_THREADS / WARP; k++)
        count += part[k];
    *y = count;
}

static int count_run(Call *c)
{
    return LAUNCH(c, count_labels, 1, COUNT_THREADS, 0, data<const int64_t>(c->in[0]),
                  tensor_nelem(&c->in[0]), c->node->attr[IGNORE_INDEX].i, data<int64_t>(c->out[0]));
}

CUDA_KERNELS(count_labels) = {
    {.name = "count_labels_i64", .accepts = count_accepts, .run = count_run}, {}};

/* ---- cross_entropy and its parts ---- */

enum { PADDING = SMOOTHING + 1 };
enum { PART_SMOOTHING = 1, PART_CLASSES, PART_FIRST = 3 };

struct Loss {
    TensorRows x, row; /* rows, and the elements of one */
    Labels labels;
    const int64_t *first; /* NULL: 0 */
    int n;
    double z, smoothing;
    void *lse, *target; /* target: of parts, else NULL */
    double *loss;       /* of each row, where target is NULL */
};

/* One thread ends a row: `total` is the row's sum where labels are smoothed, `own` the logit at the
 * label, or 0. */
template <typename W>
__device__ inline void end_row(const Loss &a, int64_t r, Online<W> s, double total, bool counts,
                               double own)
{
    double lse = online_log(s, false), each = a.smoothing / (double)a.labels.classes;
    double target = (1 - a.smoothing) * own;
    if (a.smoothing > 0)
        target += each * total;
    ((W *)a.lse)[r] = (W)lse;
    if (a.target)
        ((W *)a.target)[r] = counts ? (W)target : 0;
    else
        a.loss[r] = counts ? lse - target + (a.z > 0 ? a.z * lse * lse : 0) : 0;
}

/* The element at the label is loaded while the row is. */
template <class T, class E> __global__ void ROW_BOUNDS(T) loss_rows(Loss a)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    check_labels(a.labels);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.labels.rows)
        return;
    GoneRow<E> x(a.x, a.row, r);
    auto get = [&](int i, int count, int) { return x.load(i, count); };
    int64_t label = a.labels.at[r * a.labels.step];
    bool counts = label != a.labels.ignore;
    int64_t first = a.first ? *a.first : 0;
    int n = (int)classes_within(a.n, first, a.labels.classes);
    int64_t at = counts ? class_of(label, first, n) : -1;
    double own = at >= 0 ? (double)x.at(at) : 0;
    Online<W> s = row_online<W>(t, n, false, get);
    double total = a.smoothing > 0 ? row_total(t, n, get) : 0;
    if (t.lane == 0)
        end_row(a, r, s, total, counts, own);
}

/* The sum of n doubles by one block, over count. */
static __global__ void loss_sum(const double *part, int64_t n, const int64_t *count, Tensor y)
{
    __shared__ double warp[WARP];
    double s = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS)
        s += part[i];
    for (int d = WARP / 2; d; d /= 2)
        s += shuffle_xor(s, d);
    if (threadIdx.x % WARP == 0)
        warp[threadIdx.x / WARP] = s;
    __syncthreads();
    s = warp[threadIdx.x % WARP];
    for (int d = WARP / 2; d; d /= 2)
        s += shuffle_xor(s, d);
    if (threadIdx.x == 0)
        store_any(y.data, y.dtype, s / (double)*count);
}

static bool accepts(const Call *c)
{
    return rows_contiguous(&c->in[0], 1) && row_length_ok(c->in[0].dim[1]);
}

static int launch_rows(Call *c, const Loss &a)
{
    ReducedRows rows = {a.x, a.row, a.labels.rows, a.n, true};
    return by_reduced(a.x.dtype, rows, [&](auto e, auto t) {
        return LAUNCH(c, (loss_rows<decltype(t), decltype(e)>), logits_grid(rows.rows, a.n),
                      row_block(a.n), 0, a);
    });
}

static Loss loss_of(Call *c, int64_t n, int64_t classes)
{
    return {.x = rows_of(&c->in[0], 1),
            .row = {{1, {n}, {1}}, c->in[0].data, c->in[0].dtype, 1},
            .labels = labels_of(c, &c->in[1], &c->in[2], classes),
            .n = (int)n};
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return c->in[0].dim[0] * (int64_t)sizeof(double);
}

static int run(Call *c)
{
    const Attr *attr = c->node->attr;
    int64_t n = c->in[0].dim[1] - attr[PADDING].i;
    Loss a = loss_of(c, n, n);
    a.z = attr[Z_LOSS].f;
    a.smoothing = attr[SMOOTHING].f;
    a.lse = c->out[1].data;
    a.loss = (double *)(void *)c->work;
    return launch_rows(c, a) ||
           LAUNCH(c, loss_sum, 1, SUM_THREADS, 0, a.loss, a.labels.rows, a.labels.count, c->out[0]);
}

CUDA_KERNELS(cross_entropy) = {{.name = "cross_entropy_rows",
                                .accepts = accepts,
                                .workspace = workspace,
                                .run = run,
                                .faults = label_faults},
                               {}};

static int part_run(Call *c)
{
    const Attr *attr = c->node->attr;
    int64_t classes = attr[PART_CLASSES].i ? attr[PART_CLASSES].i : c->in[0].dim[1];
    Loss a = loss_of(c, c->in[0].dim[1], classes);
    a.smoothing = attr[PART_SMOOTHING].f;
    a.first = c->nin > PART_FIRST ? data<const int64_t>(c->in[PART_FIRST]) : NULL;
    a.target = c->out[0].data;
    a.lse = c->out[1].data;
    return launch_rows(c, a);
}

CUDA_KERNELS(cross_entropy_part) = {{.name = "cross_entropy_part_rows",
                                     .accepts = accepts,
                                     .run = part_run,
                                     .faults = label_faults},
                                    {}};
