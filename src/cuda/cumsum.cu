/* cumsum on CUDA (cumsum.c). Sums in double, or 64 bits.
 *
 * Lines along the last axis: a warp has one, of which it takes 256 elements at a time through
 * shared memory, so that a lane has 8 neighbours. Along any other: a block has 32 lines side by
 * side, a warp of it 8 elements of each at a time; the warps' sums are joined in shared memory. */
#include "row_tensor.cuh"

enum { DIM, REVERSE };
static constexpr int THREADS = 128, WARPS = 16, EACH = 8, TAKEN = WARP * EACH;

struct LineSet {
    TensorRows x, y;
    int64_t rows, n;
    bool reverse;
};

/* The type in which elements of E are added: unsigned, so that integers wrap. */
template <typename W> struct WrappingSum {
    typedef double type;
};
template <> struct WrappingSum<int64_t> {
    typedef uint64_t type;
};
template <class E> using LineSum = typename WrappingSum<wide_t<E>>::type;

/* One line in the order in which it is added; of Any<W> a dtype that is known when it runs. */
template <class E> struct ScanLine {
    typedef wide_t<E> W;
    char *x, *y;
    DType from;
    int64_t xs, ys; /* bytes */
    __device__ ScanLine(const LineSet &l, int64_t row) : from(l.x.dtype)
    {
        int64_t size = size_of(from), first = l.reverse ? l.n - 1 : 0, sign = l.reverse ? -1 : 1;
        x = l.x.data + (row_offset(l.x, row) + first * l.x.step) * size;
        y = l.y.data + (row_offset(l.y, row) + first * l.y.step) * size;
        xs = sign * l.x.step * size;
        ys = sign * l.y.step * size;
    }
    __device__ W get(int64_t i) const
    {
        if constexpr (is_any<E>)
            return load_any<W>(x + i * xs, from);
        else
            return wide(*(const E *)(const void *)(x + i * xs));
    }
    __device__ void put(int64_t i, W sum) const
    {
        if constexpr (is_any<E>)
            store_any(y + i * ys, from, sum);
        else
            *(E *)(void *)(y + i * ys) = narrow<E>(sum);
    }
};

/* Makes each the sum of those up to it. */
template <typename A> __device__ static void add_up(A (&sum)[EACH])
{
#pragma unroll
    for (int k = 1; k < EACH; k++)
        sum[k] += sum[k - 1];
}

template <class E> __global__ void __launch_bounds__(WARP *WARPS) sum_lines(LineSet l)
{
    typedef LineSum<E> A;
    typedef wide_t<E> W;
    __shared__ A total[WARPS][WARP];
    int lane = (int)threadIdx.x % WARP, w = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    int64_t row = (int64_t)blockIdx.x * WARP + lane;
    ScanLine<E> line(l, row < l.rows ? row : 0);
    int64_t n = row < l.rows ? l.n : 0;
    A before = 0;
#pragma unroll 1
    for (int64_t first = 0; first < l.n; first += warps * EACH) {
        int64_t i = first + w * EACH;
        A sum[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++)
            sum[k] = i + k < n ? (A)line.get(i + k) : (A)0;
        add_up(sum);
        total[w][lane] = sum[EACH - 1];
        __syncthreads();
        A own = before;
        for (int j = 0; j < warps; j++) {
            own = j == w ? before : own;
            before += total[j][lane];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k < n)
                line.put(i + k, (W)(own + sum[k]));
    }
}

/* Element i of what a warp has taken, where lanes' neighbours fall into different banks. */
__device__ static int bank(int i)
{
    return i + i / EACH;
}

template <class E> __global__ void __launch_bounds__(THREADS, 6) scan_lines(LineSet l)
{
    typedef LineSum<E> A;
    typedef wide_t<E> W;
    __shared__ W taken[THREADS / WARP][TAKEN + WARP];
    int64_t row = thread_number() / WARP;
    int lane = (int)threadIdx.x % WARP;
    W *own = taken[threadIdx.x / WARP];
    if (row >= l.rows)
        return;
    ScanLine<E> line(l, row);
    A before = 0;
#pragma unroll 1
    for (int64_t first = 0; first < l.n; first += TAKEN) {
        W x[EACH];
        A sum[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++)
            x[k] = first + k * WARP + lane < l.n ? line.get(first + k * WARP + lane) : (W)0;
#pragma unroll
        for (int k = 0; k < EACH; k++)
            own[bank(k * WARP + lane)] = x[k];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < EACH; k++)
            sum[k] = (A)own[bank(lane * EACH + k)];
        add_up(sum);
        A all = sum[EACH - 1];
        for (int d = 1; d < WARP; d *= 2) {
            A below = shuffle(all, lane - d);
            all = lane >= d ? below + all : all;
        }
        A below = shuffle(all, lane - 1), start = before + (lane ? below : (A)0);
        before += shuffle(all, WARP - 1);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            own[bank(lane * EACH + k)] = (W)(start + sum[k]);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (first + k * WARP + lane < l.n)
                line.put(first + k * WARP + lane, own[bank(k * WARP + lane)]);
        __syncwarp();
    }
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

template <class E> static int run_as(Call *c, const LineSet &l, bool scans)
{
    if (scans)
        return LAUNCH(c, scan_lines<E>, grid_for(l.rows * WARP, THREADS), THREADS, 0, l);
    int64_t warps = MAX((int64_t)1, MIN((l.n + EACH - 1) / EACH, (int64_t)WARPS));
    return LAUNCH(c, sum_lines<E>, grid_for(l.rows, WARP), (unsigned)(WARP * warps), 0, l);
}

static int run(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t dim = c->node->attr[DIM].i;
    int axis = (int)(dim < 0 ? dim + x->rank : dim);
    LineSet l = {rows_of(x, 0, axis), rows_of(&c->out[0], 0, axis),
                 x->dim[axis] ? tensor_nelem(x) / x->dim[axis] : 0, x->dim[axis],
                 c->node->attr[REVERSE].i != 0};
    bool scans = axis == x->rank - 1;
    switch (x->dtype) {
    case F32: return run_as<float>(c, l, scans);
    case BF16: return run_as<bf16>(c, l, scans);
    default: break;
    }
    return dtype_float(x->dtype) ? run_as<Any<double>>(c, l, scans)
                                 : run_as<Any<int64_t>>(c, l, scans);
}

CUDA_KERNELS(cumsum) = {
    {.name = "cumsum_lines", .accepts = accepts, .run = run, .strided_out = true}, {}};
