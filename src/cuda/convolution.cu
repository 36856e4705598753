/* convolution and convolution_backward_weight on CUDA (convolution.c has the rules), as products of
 * matrices that are not laid out: for each group
 *   map      rows: channels out;  columns: images and places;  sum over channels in and the kernel
 *   image    rows: channels in;   columns: images and places;  sum over channels out and the kernel
 *   weight   rows: channels out;  columns: channels in, kernel;  sum over images and places
 * A block has a tile of TILE x TILE elements and takes DEEP terms of their sums at a time through
 * shared memory, where elements beyond an image are 0. The weight's sums are cut by images into at
 * most SPLITS parts, which are added in order. Groups of few channels, as of depthwise
 * convolutions, have a thread for each element, and for each of the weight's a block.
 *
 * Numerics: sums in f32 (f64: double), in an order that the shapes give: terms of a map and of an
 * image ascend; those of a weight are added in parts, or by the threads of a block. Bits of an
 * image do not depend on the others beside it. */
#include "cuda.cuh"

#define class opclass
extern "C" {
#include "../op/convolution.h"
}
#undef class

enum Made { MAP, IMAGE, WEIGHT };

static constexpr int TILE = 64, DEEP = 16, EACH = 4, THREADS = 256, SPLITS = 32;
static constexpr int FEW = 8; /* rows of a group for which a tile would be nearly empty */

/* What is made of the two others, the sizes of the product that it is, and strides by channels and
 * axes of space: of weight [out, in, kernel...], of the others [batch, channel, places...]. */
struct ConvProduct {
    Conv c;
    int64_t stride[3][2 + SPACE_AXES]; /* by Made */
    const void *in[3];
    int64_t rows, cols, sums, splits;
};

/* A tensor's strides with all axes of space. */
static void fill_strides(int64_t *to, const Tensor &t)
{
    int skip = SPACE_AXES - (t.rank - 2);
    for (int d = 0; d < 2 + SPACE_AXES; d++)
        to[d] = d < 2 ? t.stride[d] : d - 2 < skip ? 0 : t.stride[d - skip];
}

static int64_t volume(const int64_t *x)
{
    return x[0] * x[1] * x[2];
}

__device__ static int64_t quotient(int64_t i, int64_t n)
{
    return (uint64_t)(i | n) >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* A place among those of `size`, and before all of them the index of a channel or an image. */
struct Place {
    int64_t first, at[SPACE_AXES];
};

__device__ static Place place_of(int64_t i, const int64_t *size)
{
    Place p;
    for (int d = SPACE_AXES - 1; d >= 0; d--) {
        int64_t rest = quotient(i, size[d]);
        p.at[d] = i - rest * size[d];
        i = rest;
    }
    p.first = i;
    return p;
}

/* The image's element under place k of the kernel at place t of the map, or none: -1. */
__device__ static int64_t image_at(const ConvProduct &x, int64_t n, int64_t channel,
                                   const int64_t *t, const int64_t *k)
{
    int64_t at = n * x.stride[IMAGE][0] + channel * x.stride[IMAGE][1];
    for (int d = 0; d < SPACE_AXES; d++) {
        int64_t s = t[d] * x.c.stride[d] + k[d] * x.c.dilation[d] - x.c.padding[d];
        if (s < 0 || s >= x.c.image[d])
            return -1;
        at += s * x.stride[IMAGE][2 + d];
    }
    return at;
}

/* The map's element whose kernel's place k lies over place s of the image, or none: -1. */
__device__ static int64_t map_at(const ConvProduct &x, int64_t n, int64_t channel, const int64_t *s,
                                 const int64_t *k)
{
    int64_t at = n * x.stride[MAP][0] + channel * x.stride[MAP][1];
    for (int d = 0; d < SPACE_AXES; d++) {
        int64_t over = s[d] + x.c.padding[d] - k[d] * x.c.dilation[d];
        if (over < 0)
            return -1;
        int64_t t = quotient(over, x.c.stride[d]);
        if (t * x.c.stride[d] != over || t >= x.c.map[d])
            return -1;
        at += t * x.stride[MAP][2 + d];
    }
    return at;
}

__device__ static int64_t plain_at(const int64_t *stride, int64_t i, int64_t j, const int64_t *at)
{
    int64_t x = i * stride[0] + j * stride[1];
    for (int d = 0; d < SPACE_AXES; d++)
        x += at[d] * stride[2 + d];
    return x;
}

/* Element (row, term) of the first matrix of group g; term: a channel and a place of the kernel, or
 * an image and a place of the map. */
template <typename T, int MADE>
__device__ static wide_t<T> first_of(const ConvProduct &x, int64_t g, int64_t row,
                                     const Place &term)
{
    const Conv &c = x.c;
    if (MADE == WEIGHT)
        return wide(
            ((const T *)x.in[MAP])[plain_at(x.stride[MAP], term.first, g * c.out + row, term.at)]);
    int64_t out = g * c.out + (MADE == MAP ? row : term.first);
    return wide(((const T *)x.in[WEIGHT])[plain_at(x.stride[WEIGHT], out,
                                                   MADE == MAP ? term.first : row, term.at)]);
}

/* Element (term, column) of the second matrix; column: an image and a place of the result, or a
 * channel and a place of the kernel. */
template <typename T, int MADE>
__device__ static wide_t<T> second_of(const ConvProduct &x, int64_t g, const Place &term,
                                      const Place &column)
{
    const Conv &c = x.c;
    int64_t at = MADE == MAP ? image_at(x, column.first, g * c.in + term.first, column.at, term.at)
                 : MADE == IMAGE
                     ? map_at(x, column.first, g * c.out + term.first, column.at, term.at)
                     : image_at(x, term.first, g * c.in + column.first, term.at, column.at);
    return at < 0 ? 0 : wide(((const T *)x.in[MADE == IMAGE ? MAP : IMAGE])[at]);
}

template <int MADE> __device__ static const int64_t *term_size(const ConvProduct &x)
{
    return MADE == WEIGHT ? x.c.map : x.c.kernel;
}

template <int MADE> __device__ static const int64_t *column_size(const ConvProduct &x)
{
    return MADE == MAP ? x.c.map : MADE == IMAGE ? x.c.image : x.c.kernel;
}

/* Where a row and a column of group g lie in the result. */
template <int MADE>
__device__ static int64_t result_at(const ConvProduct &x, int64_t g, int64_t row,
                                    const Place &column)
{
    if (MADE == WEIGHT)
        return plain_at(x.stride[WEIGHT], g * x.c.out + row, column.first, column.at);
    int64_t channel = g * (MADE == MAP ? x.c.out : x.c.in) + row;
    return plain_at(x.stride[MADE], column.first, channel, column.at);
}

/* A result of dtype U, to which a bias for each channel may be added. */
template <typename U> struct ConvResult {
    U *y;
    const void *bias;
    int64_t bias_step;
    DType bias_type;
};

template <typename W> __device__ static W bias_at(const void *bias, DType d, int64_t i)
{
    switch (d) {
    case F64: return (W)((const double *)bias)[i];
    case BF16: return (W)wide(((const bf16 *)bias)[i]);
    case F16: return (W)wide(((const f16 *)bias)[i]);
    default: return (W)((const float *)bias)[i];
    }
}

template <int MADE, typename U, typename W>
__device__ static void put(const ConvProduct &x, const ConvResult<U> &r, int64_t g, int64_t row,
                           const Place &column, W sum)
{
    if (MADE != WEIGHT && r.bias) {
        int64_t at = (g * (MADE == MAP ? x.c.out : x.c.in) + row) * r.bias_step;
        sum += bias_at<W>(r.bias, r.bias_type, at);
    }
    r.y[result_at<MADE>(x, g, row, column)] = narrow<U>(sum);
}

/* ---- tiles ---- */

/* blockIdx: tiles of columns, tiles of rows, groups and parts of sums. A part's terms are whole
 * images; with parts, r.y is [splits, groups, rows, cols]. */
template <typename T, typename U, int MADE>
static __global__ void __launch_bounds__(THREADS) tiles(ConvProduct x, ConvResult<U> r)
{
    typedef wide_t<T> W;
    __shared__ W a[DEEP][TILE], b[DEEP][TILE];
    int id = (int)threadIdx.x;
    int64_t g = blockIdx.z / x.splits, split = blockIdx.z % x.splits;
    int64_t each = (x.sums + x.splits - 1) / x.splits;
    if (MADE == WEIGHT && x.splits > 1) {
        int64_t places = x.c.map[0] * x.c.map[1] * x.c.map[2];
        each = (x.c.batch + x.splits - 1) / x.splits * places;
    }
    int64_t lo = split * each, hi = lo + each < x.sums ? lo + each : x.sums;
    int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
    int64_t col = col0 + id % TILE;
    Place column = place_of(col < x.cols ? col : 0, column_size<MADE>(x));
    int across = id % (TILE / EACH), down = id / (TILE / EACH);
    W sum[EACH][EACH] = {};
#pragma unroll 1
    for (int64_t k0 = lo; k0 < hi; k0 += DEEP) {
#pragma unroll
        for (int j = 0; j < DEEP * TILE / THREADS; j++) {
            int k = id / TILE + j * (THREADS / TILE);
            bool there = k0 + k < hi && col < x.cols;
            Place term = place_of(there ? k0 + k : 0, term_size<MADE>(x));
            b[k][id % TILE] = there ? second_of<T, MADE>(x, g, term, column) : (W)0;
        }
        Place term = place_of(k0 + id % DEEP < hi ? k0 + id % DEEP : 0, term_size<MADE>(x));
#pragma unroll
        for (int j = 0; j < DEEP * TILE / THREADS; j++) {
            int m = id / DEEP + j * (THREADS / DEEP);
            bool there = k0 + id % DEEP < hi && row0 + m < x.rows;
            a[id % DEEP][m] = there ? first_of<T, MADE>(x, g, row0 + m, term) : (W)0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] =
                        fma_of(a[k][down * EACH + i], b[k][across + j * (TILE / EACH)], sum[i][j]);
        __syncthreads();
    }
    for (int j = 0; j < EACH; j++) {
        int64_t p = col0 + across + j * (TILE / EACH);
        if (p >= x.cols)
            continue;
        Place own = place_of(p, column_size<MADE>(x));
        for (int i = 0; i < EACH; i++) {
            int64_t m = row0 + down * EACH + i;
            if (m >= x.rows)
                continue;
            if (MADE == WEIGHT && x.splits > 1)
                r.y[((split * x.c.groups + g) * x.rows + m) * x.cols + p] = narrow<U>(sum[i][j]);
            else
                put<MADE>(x, r, g, m, own, sum[i][j]);
        }
    }
}

/* The sum of the parts, in order. */
template <typename W, typename U>
static __global__ void add_parts(ConvProduct x, const W *part, ConvResult<U> r)
{
    int64_t i = thread_number(), all = x.c.groups * x.rows * x.cols;
    if (i >= all)
        return;
    W sum = 0;
    for (int64_t k = 0; k < x.splits; k++)
        sum += part[k * all + i];
    int64_t line = quotient(i, x.cols), g = quotient(line, x.rows);
    put<WEIGHT>(x, r, g, line - g * x.rows, place_of(i - line * x.cols, x.c.kernel), sum);
}

/* ---- groups of few channels ---- */

/* A thread has one element. */
template <typename T, typename U, int MADE>
static __global__ void elements(ConvProduct x, ConvResult<U> r)
{
    int64_t i = thread_number();
    if (i >= x.c.groups * x.rows * x.cols)
        return;
    int64_t line = quotient(i, x.cols), g = quotient(line, x.rows), row = line - g * x.rows;
    Place column = place_of(i - line * x.cols, column_size<MADE>(x));
    wide_t<T> sum = 0;
    for (int64_t k = 0; k < x.sums; k++) {
        Place term = place_of(k, term_size<MADE>(x));
        sum =
            fma_of(first_of<T, MADE>(x, g, row, term), second_of<T, MADE>(x, g, term, column), sum);
    }
    put<MADE>(x, r, g, row, column, sum);
}

/* A block has one element of the weight, each thread every THREADS-th term of its sum. */
template <typename T, typename U>
static __global__ void __launch_bounds__(THREADS) weight_elements(ConvProduct x, ConvResult<U> r)
{
    typedef wide_t<T> W;
    __shared__ W own[THREADS];
    int id = (int)threadIdx.x;
    int64_t i = blockIdx.x, line = quotient(i, x.cols), g = quotient(line, x.rows);
    int64_t row = line - g * x.rows;
    Place column = place_of(i - line * x.cols, x.c.kernel);
    W sum = 0;
    for (int64_t k = id; k < x.sums; k += THREADS) {
        Place term = place_of(k, x.c.map);
        sum = fma_of(first_of<T, WEIGHT>(x, g, row, term), second_of<T, WEIGHT>(x, g, term, column),
                     sum);
    }
    own[id] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (id < half)
            own[id] += own[id + half];
    }
    if (id == 0)
        put<WEIGHT>(x, r, g, row, column, own[0]);
}

/* ---- calls ---- */

static ConvProduct product_of(const Call *c, Made *made)
{
    bool weight = node_is(c->node, OP_convolution_backward_weight);
    ConvProduct x = {};
    x.c = weight ? conv_weight_of(c->node) : conv_of(c->node);
    const Tensor *t[3] = {};
    *made = weight ? WEIGHT : x.c.transposed ? IMAGE : MAP;
    t[*made] = &c->out[0];
    if (weight) {
        t[IMAGE] = &c->in[CONV_IMAGE];
        t[MAP] = &c->in[CONV_MAP];
    } else {
        t[x.c.transposed ? MAP : IMAGE] = &c->in[CONV_INPUT];
        t[WEIGHT] = &c->in[CONV_WEIGHT];
    }
    for (int i = 0; i < 3; i++) {
        fill_strides(x.stride[i], *t[i]);
        x.in[i] = t[i]->data;
    }
    int64_t kernel = volume(x.c.kernel), places = volume(x.c.map);
    x.rows = *made == IMAGE ? x.c.in : x.c.out;
    x.cols = weight ? x.c.in * kernel : x.c.batch * (*made == MAP ? places : volume(x.c.image));
    x.sums = weight ? x.c.batch * places : (*made == MAP ? x.c.in : x.c.out) * kernel;
    x.splits = weight && x.rows >= FEW ? MAX((int64_t)1, MIN(x.c.batch, (int64_t)SPLITS)) : 1;
    return x;
}

static bool accepts(const Call *c)
{
    Made made;
    ConvProduct x = product_of(c, &made);
    return x.c.groups * x.splits <= 65535 && x.rows <= 65535 * (int64_t)TILE &&
           x.cols <= INT32_MAX && x.c.groups * x.rows * x.cols <= INT32_MAX * (int64_t)THREADS &&
           (made != WEIGHT || x.c.groups * x.rows * x.cols <= INT32_MAX);
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    Made made;
    ConvProduct x = product_of(c, &made);
    (void)ctx;
    int64_t each = c->in[0].dtype == F64 ? 8 : 4;
    return x.splits > 1 ? x.splits * x.c.groups * x.rows * x.cols * each : 0;
}

template <typename U> static ConvResult<U> result_of(const Call *c)
{
    ConvResult<U> r = {data<U>(c->out[0]), NULL, 0, F32};
    if (node_is(c->node, OP_convolution) && c->nin > CONV_BIAS) {
        r.bias = c->in[CONV_BIAS].data;
        r.bias_step = c->in[CONV_BIAS].stride[0];
        r.bias_type = c->in[CONV_BIAS].dtype;
    }
    return r;
}

template <typename T, typename U, int MADE> static int run_made(Call *c, const ConvProduct &x)
{
    ConvResult<U> r = result_of<U>(c);
    int64_t all = x.c.groups * x.rows * x.cols;
    dim3 grid(grid_for(x.cols, TILE), grid_for(x.rows, TILE), (unsigned)(x.c.groups * x.splits));
    if (x.rows < FEW && MADE == WEIGHT)
        return LAUNCH(c, (weight_elements<T, U>), (unsigned)all, THREADS, 0, x, r);
    if (x.rows < FEW)
        return LAUNCH(c, (elements<T, U, MADE>), grid_for(all, THREADS), THREADS, 0, x, r);
    if (x.splits == 1)
        return LAUNCH(c, (tiles<T, U, MADE>), grid, THREADS, 0, x, r);
    typedef wide_t<T> W;
    ConvResult<W> parts = {(W *)(void *)c->work, NULL, 0, F32};
    int status = LAUNCH(c, (tiles<T, W, MADE>), grid, THREADS, 0, x, parts);
    return status ? status
                  : LAUNCH(c, (add_parts<W, U>), grid_for(all, THREADS), THREADS, 0, x,
                           (const W *)parts.y, r);
}

template <typename T, typename U> static int run_as(Call *c)
{
    Made made;
    ConvProduct x = product_of(c, &made);
    switch (made) {
    case MAP: return run_made<T, U, MAP>(c, x);
    case IMAGE: return run_made<T, U, IMAGE>(c, x);
    default: return run_made<T, U, WEIGHT>(c, x);
    }
}

static int run(Call *c)
{
    if (c->out[0].dtype == F32)
        BY_FLOAT(c->in[0].dtype, T, return run_as<T, float>(c));
    BY_FLOAT(c->out[0].dtype, T, return run_as<T, T>(c));
    return 0;
}

CUDA_KERNELS(convolution) = {
    {.name = "product", .accepts = accepts, .run = run, .strided_out = true}, {}};
CUDA_KERNELS(convolution_backward_weight) = {{.name = "product",
                                              .accepts = accepts,
                                              .workspace = workspace,
                                              .run = run,
                                              .strided_out = true},
                                             {}};
