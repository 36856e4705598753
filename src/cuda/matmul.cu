/* The products on CUDA: first cuBLASLt's (matmul_cuda.c), which take all that training needs, the
 * choice of its heuristic and after it what that offers else; then a plain tiled one for what that
 * refuses: empty operands, strides that are no leading dimension, batches beyond 65535, a bias of
 * f32 that is more than one row beside 16 bits. The plain one takes every dtype and stride. It sums
 * in ascending order in f32 (f64 in f64) by fma, adds the bias and rounds once. */
#include "cuda.cuh"

extern "C" {
#include "matmul_cuda.h"
}

enum { TILE = 16, MOST_BLOCKS = 1 << 30 };

/* A Matrix as kernels take it. */
struct MatrixView {
    char *data;
    DType dtype;
    int64_t stride[3];
};

static MatrixView view_of(const Matrix &x)
{
    return {x.t->data, x.t->dtype, {x.stride[0], x.stride[1], x.stride[2]}};
}

template <typename W> __device__ static W get(const MatrixView &x, int64_t at)
{
    BY_FLOAT(x.dtype, T, return (W)wide(((const T *)(const void *)x.data)[at]));
    return 0;
}

template <typename W> __device__ static void put(const MatrixView &x, int64_t at, W value)
{
    BY_FLOAT(x.dtype, T, ((T *)(void *)x.data)[at] = narrow<T>(value));
}

struct ProductShape {
    int64_t batch, rows, cols, depth;
};

/* One element of the result a thread. Operands have the dtype T. */
template <typename T>
__global__ static void multiply(MatrixView a, MatrixView b, MatrixView bias, MatrixView y,
                                ProductShape s)
{
    typedef wide_t<T> W;
    __shared__ W as[TILE][TILE + 1], bs[TILE][TILE + 1];
    const T *x = (const T *)(const void *)a.data, *z = (const T *)(const void *)b.data;
    int64_t across = (s.cols + TILE - 1) / TILE, down = (s.rows + TILE - 1) / TILE;
    int i = threadIdx.y, j = threadIdx.x;
    for (int64_t tile = blockIdx.x; tile < s.batch * across * down; tile += gridDim.x) {
        int64_t batch = tile / across / down;
        int64_t row = tile / across % down * TILE + i, col = tile % across * TILE + j;
        W sum = 0;
        for (int64_t k = 0; k < s.depth; k += TILE) {
            as[i][j] =
                row < s.rows && k + j < s.depth
                    ? wide(x[batch * a.stride[0] + row * a.stride[1] + (k + j) * a.stride[2]])
                    : 0;
            bs[i][j] =
                col < s.cols && k + i < s.depth
                    ? wide(z[batch * b.stride[0] + (k + i) * b.stride[1] + col * b.stride[2]])
                    : 0;
            __syncthreads();
            for (int l = 0; l < TILE; l++)
                sum = fma(as[i][l], bs[l][j], sum);
            __syncthreads();
        }
        if (row >= s.rows || col >= s.cols)
            continue;
        if (bias.data)
            sum += get<W>(bias, row * bias.stride[1] + col * bias.stride[2]);
        put(y, batch * y.stride[0] + row * y.stride[1] + col * y.stride[2], sum);
    }
}

static bool accepts(const Call *c)
{
    return dtype_float(c->in[0].dtype);
}

static int run(Call *c)
{
    int first = c->nin - 2;
    Matrix a = matrix(&c->in[first]), b = matrix(&c->in[first + 1]), y = matrix(&c->out[0]);
    MatrixView bias = first ? view_of(bias_matrix(&c->in[0], &y)) : MatrixView{};
    ProductShape s = {y.batch, y.rows, y.cols, a.cols};
    int64_t tiles = y.batch * ((y.rows + TILE - 1) / TILE) * ((y.cols + TILE - 1) / TILE);
    BY_FLOAT(a.t->dtype, T,
             return LAUNCH(c, multiply<T>, (unsigned)MIN(tiles, MOST_BLOCKS), dim3(TILE, TILE), 0,
                           view_of(a), view_of(b), bias, view_of(y), s));
    return run_fail(c, "a product of dtype %s", dtype_name(a.t->dtype));
}

#ifdef TN_SIMT
#define LIBRARY
#else
/* ---- for cuBLASLt ---- */

enum { THREADS = 256 };

__global__ static void spread(MatrixView bias, MatrixView y, int64_t rows, int64_t cols)
{
    for (int64_t i = thread_number(); i < rows * cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t at = i / cols * bias.stride[1] + i % cols * bias.stride[2];
        if (bias.dtype == F64)
            put(y, i, get<double>(bias, at));
        else
            put(y, i, get<float>(bias, at));
    }
}

extern "C" int matmul_spread_bias(Call *c, void *to, int64_t rows)
{
    Matrix y = matrix(&c->out[0]);
    MatrixView at = {(char *)to, c->out[0].dtype, {}};
    unsigned grid = (unsigned)MIN((rows * y.cols + THREADS - 1) / THREADS, MOST_BLOCKS);
    return LAUNCH(c, spread, grid, THREADS, 0, view_of(bias_matrix(&c->in[0], &y)), at, rows,
                  y.cols);
}

#define CANDIDATE(suffix)                  \
    {.name = "cublaslt" #suffix,           \
     .accepts = matmul_lt_accepts,         \
     .workspace = matmul_lt_workspace,     \
     .prepare = matmul_lt_prepare##suffix, \
     .own = matmul_lt_own,                 \
     .run = matmul_lt_run},
#define OTHER(n) CANDIDATE(_##n)
#define LIBRARY  CANDIDATE() MATMUL_LT_OTHERS(OTHER)
#endif
#define TILES                                           \
    {                                                   \
        .name = "tiles", .accepts = accepts, .run = run \
    }

CUDA_KERNELS(mm) = {LIBRARY TILES, {}};
CUDA_KERNELS(bmm) = {LIBRARY TILES, {}};
CUDA_KERNELS(addmm) = {LIBRARY TILES, {}};
