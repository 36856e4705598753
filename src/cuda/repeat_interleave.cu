/* repeat_interleave on CUDA (repeat_interleave.c has the rules): one block adds the counts up; then
 * each element of the result finds the last position that begins at or before it. */
#include "index.cuh"

enum { SCAN = 1024 };

static const char *const faults[] = {
    "index %lld at position %lld of operand 0: expected %lld to %lld",
    "repeats: expected a sum of %lld, found more, at position %lld",
    "repeats: expected a sum of %lld, found %lld", NULL};

/* Counts of a thread, or of all before it: numbers that would pass the result's size stop there. */
__device__ static int64_t sum_to(int64_t a, int64_t b, int64_t most)
{
    return a > most - b ? most : a + b;
}

/* Notes a count that is negative, or else where the sum becomes greater than `size`, or else is not
 * it: by the one thread that knows of all. */
__device__ static void check_counts(const Tensor &x, const int64_t *begin, int64_t sum,
                                    int64_t size, Fault *fault, int step)
{
    int64_t n = x.dim[0], at = 0;
    while (at < n && index_at(x, at * x.stride[0]) >= 0)
        at++;
    if (at < n) {
        note(fault, step, 0, index_at(x, at * x.stride[0]), at, 0, INT64_MAX - 1);
    } else if (sum > size) {
        for (at = n - 1; at > 0 && begin[at] > size; at--)
            ;
        note(fault, step, 1, size, at);
    } else if (sum < size) {
        note(fault, step, 2, size, sum);
    }
}

/* begin[i]: the sum of the counts before position i, at most size + 1. Each thread adds a run of
 * positions up. */
static __global__ void add_counts(Tensor x, int64_t *begin, int64_t size, Fault *fault, int step)
{
    __shared__ int64_t sum[SCAN];
    __shared__ int negative;
    int64_t n = x.dim[0], each = (n + SCAN - 1) / SCAN, lo = threadIdx.x * each;
    int64_t hi = lo + each < n ? lo + each : n, own = 0;
    if (threadIdx.x == 0)
        negative = 0;
    __syncthreads();
    for (int64_t i = lo; i < hi; i++) {
        int64_t count = index_at(x, i * x.stride[0]);
        if (count < 0)
            negative = 1;
        begin[i] = own;
        own = sum_to(own, count < 0 ? 0 : count > size ? size + 1 : count, size + 1);
    }
    sum[threadIdx.x] = own;
    for (int step_by = 1; step_by < SCAN; step_by *= 2) {
        __syncthreads();
        int64_t before = (int)threadIdx.x >= step_by ? sum[threadIdx.x - step_by] : 0;
        __syncthreads();
        sum[threadIdx.x] = sum_to(sum[threadIdx.x], before, size + 1);
    }
    __syncthreads();
    int64_t before = threadIdx.x ? sum[threadIdx.x - 1] : 0;
    for (int64_t i = lo; i < hi; i++)
        begin[i] = sum_to(begin[i], before, size + 1);
    __syncthreads();
    if (threadIdx.x == 0 && (negative || sum[SCAN - 1] != size))
        check_counts(x, begin, sum[SCAN - 1], size, fault, step);
}

template <typename T>
static __global__ void fill_repeats(const int64_t *begin, int64_t n, T *y, int64_t size)
{
    int64_t i = thread_number(), lo = 0;
    if (i >= size)
        return;
    for (int64_t left = n; left > 0;) {
        int64_t half = left / 2;
        bool behind = begin[lo + half] <= i;
        lo += behind ? half + 1 : 0;
        left = behind ? left - half - 1 : half;
    }
    y[i] = (T)(lo - 1);
}

static int64_t workspace(Ctx *, const Call *c)
{
    return c->in[0].dim[0] * (int64_t)sizeof(int64_t);
}

static bool accepts(const Call *)
{
    return true;
}

static int run(Call *c)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    int64_t *begin = (int64_t *)(void *)c->work, size = y.dim[0];
    if (LAUNCH(c, add_counts, 1, SCAN, 0, x, begin, size, c->fault, c->step))
        return -1;
    if (y.dtype == I64)
        return LAUNCH(c, fill_repeats<int64_t>, grid_for(size, THREADS), THREADS, 0, begin,
                      x.dim[0], data<int64_t>(y), size);
    return LAUNCH(c, fill_repeats<int32_t>, grid_for(size, THREADS), THREADS, 0, begin, x.dim[0],
                  data<int32_t>(y), size);
}

CUDA_KERNELS(repeat_interleave) = {{.name = "repeat_interleave",
                                    .accepts = accepts,
                                    .workspace = workspace,
                                    .run = run,
                                    .faults = faults},
                                   {}};
