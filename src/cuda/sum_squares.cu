/* sum_squares, norm_of and clip_scale on CUDA: the bits of sum_squares.c, which has the method.
 *
 * A run of at least NLANE elements is added by NLANE / OWN threads, OWN lanes each; a shorter one
 * by one thread. What a run gives is split among the limbs that the thread holds: WINDOW of them in
 * registers, from `base` on, moved where a sum lies beyond. Limbs are integers: in which order
 * threads add theirs, by atomics, does not show. Many tensors are added by one launch. */
#include "row_tensor.cuh"

static constexpr int LIMB = 27, NLIMB = 22, NINFINITE = NLIMB, NNAN = NLIMB + 1, LENGTH = NLIMB + 2,
                     LOWEST = -298, HIGHEST = LOWEST + NLIMB * LIMB, NLANE = 16, NDIGIT = NLIMB + 4,
                     THREADS = 128, WINDOW = 5, MOST = 96, OWN = 4, RUN_THREADS = NLANE / OWN;
static constexpr int64_t RUN = 65536, BLOCK_NELEM = 65536, LEAST_BLOCKS = 512;
static constexpr unsigned long long MASK = (1ull << LIMB) - 1;

/* ---- limbs that a thread holds ---- */

struct Limbs {
    int base; /* limb 0 of the window; -1: empty */
    unsigned long long a[WINDOW];
};

/* Limb k. */
__device__ static unsigned long long limb_at(const Limbs &l, int k)
{
    unsigned long long x = 0;
#pragma unroll
    for (int w = 0; w < WINDOW; w++)
        x = k == l.base + w ? l.a[w] : x;
    return l.base < 0 ? 0 : x;
}

__device__ static void move_window(Limbs *l, int base, unsigned long long *sum)
{
    for (int k = 0; k < NLIMB; k++)
        if (unsigned long long x = limb_at(*l, k))
            atomicAdd(&sum[k], x);
    *l = {base, {}};
}

/* Adds x, the sum of a run. */
__device__ static void add_run(Limbs *l, double x, unsigned long long *sum)
{
    unsigned long long m;
    memcpy(&m, &x, sizeof m);
    if (!m)
        return;
    int exponent = (int)(m >> 52 & 0x7ff), low = (exponent > 1 ? exponent : 1) - 1075 - LOWEST;
    if (exponent >= 1023 + HIGHEST) {
        atomicAdd(&sum[x != x ? NNAN : NINFINITE], 1ull);
        return;
    }
    m = (m & ((1ull << 52) - 1)) | (unsigned long long)(exponent > 0) << 52;
    if (low < 0) {
        m = low > -64 ? m >> -low : 0;
        low = 0;
    }
    int k = low / LIMB, shift = low % LIMB;
    unsigned long long d[3] = {m << shift & MASK, m >> (LIMB - shift) & MASK,
                               m >> (LIMB - shift) >> LIMB};
    if (l->base < 0 || k < l->base || k > l->base + WINDOW - 3)
        move_window(l, k > 0 ? k - 1 : 0, sum);
    int o = k - l->base;
#pragma unroll
    for (int w = 0; w < WINDOW; w++)
#pragma unroll
        for (int j = 0; j < 3; j++)
            l->a[w] += o + j == w ? d[j] : 0;
}

/* Adds the limbs of a block's threads to sum. */
__device__ static void add_block(const Limbs &l, unsigned long long *sum)
{
    __shared__ unsigned long long part[THREADS / WARP][NLIMB];
    int lane = (int)threadIdx.x % WARP, first = l.base < 0 ? NLIMB : l.base, last = l.base;
    for (int d = WARP / 2; d; d /= 2) {
        int other_first = shuffle_xor(first, d), other_last = shuffle_xor(last, d);
        first = MIN(first, other_first);
        last = MAX(last, other_last);
    }
    for (int k = 0; k < NLIMB; k++) {
        unsigned long long x = 0;
        if (k >= first && k < last + WINDOW) {
            x = limb_at(l, k);
            for (int d = WARP / 2; d; d /= 2)
                x += shuffle_xor(x, d);
        }
        if (lane == 0)
            part[threadIdx.x / WARP][k] = x;
    }
    __syncthreads();
    if (threadIdx.x >= NLIMB)
        return;
    unsigned long long x = 0;
    for (int w = 0; w < THREADS / WARP; w++)
        x += part[w][threadIdx.x];
    if (x)
        atomicAdd(&sum[threadIdx.x], x);
}

/* ---- tensors ---- */

struct Squares {
    const char *data;
    int64_t n, runs; /* elements of a row; runs of all rows */
    int dtype, block_runs;
    unsigned end; /* the first block after */
};

struct SquaresBatch {
    int count;
    Squares of[MOST];
};

template <typename T> __device__ static double square_to(double s, const T *p)
{
    double x = (double)wide(*p);
    return sizeof(T) == sizeof(double) ? s + x * x : fma(x, x, s); /* the product is exact */
}

template <typename T> struct alignas(OWN * sizeof(T) < 16 ? OWN * sizeof(T) : 16) Owned {
    T x[OWN];
};

/* The sums of lanes OWN q to OWN (q + 1) of a run of n elements at p; whole: these are loaded at
 * once. */
template <typename T>
__device__ static void lane_sums(const T *p, int q, int64_t n, bool whole, double (&s)[OWN])
{
    int64_t i = OWN * q;
    if (whole) {
#pragma unroll 8
        for (; i < n; i += NLANE) {
            Owned<T> own = *(const Owned<T> *)(const void *)(p + i);
#pragma unroll
            for (int k = 0; k < OWN; k++)
                s[k] = square_to(s[k], &own.x[k]);
        }
    } else {
        for (; i < n; i += NLANE)
            for (int k = 0; k < OWN; k++)
                if (i + k < n)
                    s[k] = square_to(s[k], p + i + k);
    }
}

/* The lanes' sums joined by halves, for the first thread of a run. */
__device__ static double join_lanes(double (&s)[OWN])
{
    for (int d = RUN_THREADS / 2; d; d /= 2)
        for (int k = 0; k < OWN; k++)
            s[k] += shuffle_xor(s[k], d);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* The sum of a run of n < NLANE elements, its lanes joined by halves. */
template <typename T> __device__ static double short_sum(const T *p, int n)
{
    double s[NLANE];
    if (n == 1)
        return square_to(0, p);
#pragma unroll
    for (int l = 0; l < NLANE; l++)
        s[l] = l < n ? square_to(0, p + l) : 0;
#pragma unroll
    for (int half = NLANE / 2; half; half /= 2)
#pragma unroll
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

template <typename T>
__device__ static void add_runs(const Squares &q, int64_t block, Limbs *l, unsigned long long *sum)
{
    const T *data = (const T *)(const void *)q.data;
    int64_t end = MIN(q.runs, (block + 1) * q.block_runs);
    if (q.n < NLANE) {
#pragma unroll 4
        for (int64_t r = block * q.block_runs + threadIdx.x; r < end; r += THREADS)
            add_run(l, short_sum(data + r * q.n, (int)q.n), sum);
        return;
    }
    int lane = (int)threadIdx.x % RUN_THREADS;
    int64_t nrun = (q.n + RUN - 1) / RUN;
    bool whole = q.n % OWN == 0 && (uintptr_t)data % alignof(Owned<T>) == 0;
    for (int64_t first = block * q.block_runs; first < end; first += THREADS / RUN_THREADS) {
        int64_t r = first + threadIdx.x / RUN_THREADS, at = r % nrun * RUN;
        double s[OWN] = {};
        if (r < end)
            lane_sums(data + r / nrun * q.n + at, lane, MIN(RUN, q.n - at), whole, s);
        double x = join_lanes(s);
        if (lane == 0)
            add_run(l, x, sum);
    }
}

static __global__ void add_tensors(SquaresBatch b, unsigned long long *sum)
{
    Limbs l = {-1, {}};
    int k = 0;
    for (int half = 64; half; half /= 2)
        k += k + half <= b.count && blockIdx.x >= b.of[k + half - 1].end ? half : 0;
    const Squares &q = b.of[k];
    int64_t block = blockIdx.x - (k ? b.of[k - 1].end : 0);
    switch (q.dtype) {
    case F32: add_runs<float>(q, block, &l, sum); break;
    case F64: add_runs<double>(q, block, &l, sum); break;
    case BF16: add_runs<bf16>(q, block, &l, sum); break;
    default: add_runs<f16>(q, block, &l, sum);
    }
    __syncwarp();
    add_block(l, sum);
}

static __global__ void clear(unsigned long long *x, int n)
{
    if ((int)threadIdx.x < n)
        x[threadIdx.x] = 0;
}

static Squares squares_of(const Tensor *x)
{
    int64_t nrow = x->rank ? x->dim[0] : 1;
    Squares q = {.data = x->data, .n = nrow ? tensor_nelem(x) / nrow : 0, .dtype = x->dtype};
    const int each = q.n < NLANE ? THREADS : THREADS / RUN_THREADS; /* that a block has at once */
    q.runs = nrow * ((q.n + RUN - 1) / RUN);
    q.block_runs = (int)MIN(BLOCK_NELEM / MAX((int64_t)1, MIN(q.n, RUN)), q.runs / LEAST_BLOCKS);
    q.block_runs = MAX(1, q.block_runs);
    q.block_runs = (q.block_runs + each - 1) / each * each;
    q.end = grid_for(q.runs, q.block_runs);
    return q;
}

/* Adds the squares of those of the tensors that are of floats. */
static int add_all(Call *c, const Tensor *x, int count, unsigned long long *sum)
{
    SquaresBatch b = {};
    for (int i = 0; i < count; i++) {
        Squares q = dtype_float(x[i].dtype) ? squares_of(&x[i]) : Squares{};
        if (q.end) {
            q.end += b.count ? b.of[b.count - 1].end : 0;
            b.of[b.count++] = q;
        }
        if (b.count == MOST || (b.count && i == count - 1)) {
            if (LAUNCH(c, add_tensors, (unsigned)b.of[b.count - 1].end, THREADS, 0, b, sum))
                return -1;
            b.count = 0;
        }
    }
    return 0;
}

/* ---- sum_squares ---- */

static bool accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

static int run(Call *c)
{
    unsigned long long *sum = data<unsigned long long>(c->out[0]);
    return LAUNCH(c, clear, 1, WARP, 0, sum, LENGTH) || add_all(c, c->in, 1, sum);
}

CUDA_KERNELS(sum_squares) = {{.name = "sum_squares", .accepts = accepts, .run = run}, {}};

/* ---- norm_of: c->work has the sum of the tensors', then digits and two flags ---- */

struct Total {
    unsigned long long sum[LENGTH], digit[NDIGIT], infinite, nan;
};

struct Arrays {
    int count;
    const unsigned long long *of[MOST];
};

/* Adds limbs to digits of LIMB bits. */
__device__ static void add_digits(Total *t, const unsigned long long *limb)
{
    unsigned long long carry = 0;
    for (int k = 0; k < NDIGIT; k++) {
        unsigned long long x = k < NLIMB ? limb[k] : 0, s = t->digit[k] + (x & MASK) + carry;
        t->digit[k] = s & MASK;
        carry = (s >> LIMB) + (x >> LIMB);
    }
    t->infinite |= limb[NINFINITE];
    t->nan |= limb[NNAN];
}

static __global__ void add_arrays(Arrays b, Total *t)
{
    for (int i = 0; i < b.count; i++)
        add_digits(t, b.of[i]);
}

/* Bits 2i and 2i + 1. */
__device__ static unsigned long long bit_pair(const unsigned long long *digit, int i)
{
    unsigned long long x = 0;
    for (int at = 2 * i + 1; at >= MAX(2 * i, 0); at--)
        x = x << 1 | (digit[at / LIMB] >> at % LIMB & 1);
    return x;
}

/* Whether any bit below that numbered `end` is set. */
__device__ static bool any_below(const unsigned long long *digit, int end)
{
    unsigned long long any = 0;
    for (int k = 0; k < NDIGIT && k * LIMB < end; k++)
        any |= end - k * LIMB < LIMB ? digit[k] & ((1ull << (end - k * LIMB)) - 1) : digit[k];
    return any;
}

/* root_of() of sum_squares.c, which begins where the first bit may be. */
__device__ static double root_of(const unsigned long long *digit, bool f64)
{
    int top = NDIGIT - 1, nbit = f64 ? 55 : 52;
    while (top >= 0 && !digit[top])
        top--;
    if (top < 0)
        return 0;
    int i = MIN(((top + 1) * LIMB + 1) / 2, NDIGIT * LIMB / 2) - 1;
    unsigned long long square_root = 0, rest = 0;
    for (; !(square_root >> nbit); i--) {
        unsigned long long one = square_root << 2 | 1;
        rest = rest << 2 | bit_pair(digit, i);
        square_root = square_root << 1 | (rest >= one);
        rest -= rest >= one ? one : 0;
    }
    bool more = rest || any_below(digit, 2 * (i + 1));
    return ldexp((double)(square_root | more), i + 1 + LOWEST / 2);
}

enum { NWORD = sizeof(Total) / sizeof(unsigned long long) };

/* One of NWORD threads computes; all fetch the words, for which it would wait one by one. */
static __global__ void norm_end(const Total *t, Tensor y)
{
    __shared__ Total own;
    ((unsigned long long *)&own)[threadIdx.x] = ((const unsigned long long *)t)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x)
        return;
    add_digits(&own, own.sum);
    double x = own.nan        ? (double)NAN
               : own.infinite ? (double)INFINITY
                              : root_of(own.digit, y.dtype == F64);
    store_any(y.data, y.dtype, x);
}

static bool norm_accepts(const Call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (!tensor_contiguous(&c->in[i]))
            return false;
    return true;
}

static int64_t norm_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    (void)c;
    return sizeof(Total);
}

static int norm_run(Call *c)
{
    Total *t = (Total *)(void *)c->work;
    Arrays b = {};
    if (LAUNCH(c, clear, 1, NWORD, 0, t->sum, NWORD) || add_all(c, c->in, c->nin, t->sum))
        return -1;
    for (int i = 0; i < c->nin; i++) {
        if (c->in[i].dtype == I64)
            b.of[b.count++] = data<unsigned long long>(c->in[i]);
        if (b.count == MOST || (b.count && i == c->nin - 1)) {
            if (LAUNCH(c, add_arrays, 1, 1, 0, b, t))
                return -1;
            b.count = 0;
        }
    }
    return LAUNCH(c, norm_end, 1, NWORD, 0, t, c->out[0]);
}

CUDA_KERNELS(norm_of) = {
    {.name = "norm_of", .accepts = norm_accepts, .workspace = norm_workspace, .run = norm_run}, {}};

/* ---- clip_scale ---- */

static bool scale_accepts(const Call *c)
{
    (void)c;
    return true;
}

static __global__ void clip_scale(Tensor x, Tensor y, double most)
{
    if (x.dtype == F32) {
        float norm = *data<float>(x) + 1e-6f;
        *data<float>(y) = norm <= (float)most ? 1.0f : (float)most / norm;
        return;
    }
    double scale = most / (load_any<double>(x.data, x.dtype) + 1e-6);
    store_any(y.data, y.dtype, scale >= 1 ? 1 : scale); /* NaN stays NaN */
}

static int scale_run(Call *c)
{
    return LAUNCH(c, clip_scale, 1, 1, 0, c->in[0], c->out[0], c->node->attr[0].f);
}

CUDA_KERNELS(clip_scale) = {{.name = "clip_scale", .accepts = scale_accepts, .run = scale_run}, {}};
