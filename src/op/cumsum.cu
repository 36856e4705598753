/* cumsum on CUDA (cumsum.c): a line along the last axis by a warp, 32 elements at a time, any other
 * by a thread, so that neighbouring threads read neighbouring lines. Sums in double, or 64 bits. */
#include "row_tensor.cuh"

enum { DIM, REVERSE };
static constexpr int THREADS = 128;

struct Lines {
    RowSet x, y;
    int64_t rows, n;
    bool reverse;
};

/* As what an element is loaded that is added in A. */
template <typename A> struct Signed {
    typedef double type;
};
template <> struct Signed<uint64_t> {
    typedef int64_t type;
};

template <typename A> struct Line {
    const char *x;
    char *y;
    DType dtype;
    int64_t xs, ys; /* bytes */
    __device__ Line(const Lines &l, int64_t row) : dtype(l.x.dtype)
    {
        int64_t size = size_of(dtype), first = l.reverse ? l.n - 1 : 0, sign = l.reverse ? -1 : 1;
        x = l.x.data + (row_offset(l.x, row) + first * l.x.step) * size;
        y = l.y.data + (row_offset(l.y, row) + first * l.y.step) * size;
        xs = sign * l.x.step * size;
        ys = sign * l.y.step * size;
    }
    __device__ A get(int64_t i) const
    {
        return (A)load_any<typename Signed<A>::type>(x + i * xs, dtype);
    }
    __device__ void put(int64_t i, A sum) const
    {
        store_any(y + i * ys, dtype, (typename Signed<A>::type)sum);
    }
};

template <typename A> __global__ void sum_lines(Lines l)
{
    int64_t row = thread_number();
    if (row >= l.rows)
        return;
    Line<A> line(l, row);
    A sum = 0;
#pragma unroll 1
    for (int64_t i = 0; i < l.n; i++) {
        sum += line.get(i);
        line.put(i, sum);
    }
}

template <typename A> __global__ void scan_lines(Lines l)
{
    int64_t row = thread_number() / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (row >= l.rows)
        return;
    Line<A> line(l, row);
    A before = 0;
#pragma unroll 1
    for (int64_t first = 0; first < l.n; first += WARP) {
        int64_t i = first + lane;
        A sum = i < l.n ? line.get(i) : (A)0;
        for (int d = 1; d < WARP; d *= 2) {
            A below = shuffle(sum, lane - d);
            sum = lane >= d ? below + sum : sum;
        }
        sum += before;
        if (i < l.n)
            line.put(i, sum);
        before = shuffle(sum, WARP - 1);
    }
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

template <typename A> static int run_as(Call *c, const Lines &l, bool scans)
{
    if (scans)
        return LAUNCH(c, scan_lines<A>, grid_for(l.rows * WARP, THREADS), THREADS, 0, l);
    return LAUNCH(c, sum_lines<A>, grid_for(l.rows, THREADS), THREADS, 0, l);
}

static int run(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t dim = c->node->attr[DIM].i;
    int axis = (int)(dim < 0 ? dim + x->rank : dim);
    Lines l = {rows_of(x, 0, axis), rows_of(&c->out[0], 0, axis),
               x->dim[axis] ? tensor_nelem(x) / x->dim[axis] : 0, x->dim[axis],
               c->node->attr[REVERSE].i != 0};
    bool scans = axis == x->rank - 1;
    return dtype_float(x->dtype) ? run_as<double>(c, l, scans) : run_as<uint64_t>(c, l, scans);
}

CUDA_KERNELS(cumsum) = {
    {.name = "cumsum_lines", .accepts = accepts, .run = run, .strided_out = true}, {}};
