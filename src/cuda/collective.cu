/* Collectives on CUDA (op/collective.c): what they need of memory. As calls they begin what the
 * rank's comm does (exec/collective.c), in the host's memory, to which pass stage copies; or what
 * NCCL does, between memories of GPUs. Then members' elements are added here, to the bits of the
 * processor: in the order of members, sums from zero, in f32 (of f64 in f64, of integers in i64),
 * rounded once. */
#include "cuda.cuh"

extern "C" {
#include "memory.h"
}

#include <string.h>

enum { THREADS = 256, MOST_MEMBERS = 256 };

typedef enum { SUM, AVG, LARGER, SMALLER, PRODUCT } Reduction;

/* The members' data: by value, as kernels take it. */
struct Members {
    const void *x[MOST_MEMBERS];
};

/* The type of sums: of integers i64, else that of kernels. */
template <typename T, bool floating> struct Sum {
    typedef int64_t type;
};
template <typename T> struct Sum<T, true> {
    typedef wide_t<T> type;
};

/* The next member's element x to that of those before, y; integers wrap, a NaN stays. */
template <typename S> __device__ static S add(S y, S x)
{
    return y + x;
}
template <> __device__ int64_t add(int64_t y, int64_t x)
{
    return (int64_t)((uint64_t)y + (uint64_t)x);
}
template <typename S> __device__ static S multiply(S y, S x)
{
    return y * x;
}
template <> __device__ int64_t multiply(int64_t y, int64_t x)
{
    return (int64_t)((uint64_t)y * (uint64_t)x);
}

template <typename S> __device__ static S merge(Reduction op, S y, S x)
{
    switch (op) {
    case LARGER: return (y < x) | ((x != x) & (y == y)) ? x : y;
    case SMALLER: return (x < y) | ((x != x) & (y == y)) ? x : y;
    case PRODUCT: return multiply(y, x);
    default: return add(y, x);
    }
}

template <typename T>
__global__ static void merge_members(Members m, int count, Reduction op, bool truth, int64_t n,
                                     T *to)
{
    typedef typename Sum<T, is_floating<T>>::type S;
    int64_t i = thread_number();
    if (i >= n)
        return;
    bool sums = op == SUM || op == AVG;
    S y = sums ? S(0) : S(wide(((const T *)m.x[0])[i]));
    for (int k = sums ? 0 : 1; k < count; k++)
        y = merge(op, y, S(wide(((const T *)m.x[k])[i])));
    if (op == AVG)
        y /= S(count);
    to[i] = truth ? narrow<T>(S(y != S(0))) : narrow<T>(y);
}

static Reduction reduction_of(const Node *n)
{
    static const char *const names[] = {"sum", "avg", "max", "min", "product"};
    const char *op = n->attr[attr_index(n->op, "reduce_op")].s;
    int i = 0;
    while (strcmp(op, names[i]))
        i++;
    return (Reduction)i;
}

template <typename T>
static int merge_as(Call *c, const Node *n, int count, const void *const *x, int64_t nelem, void *y)
{
    Members m;
    memcpy(m.x, x, (size_t)count * sizeof *x);
    return LAUNCH(c, (merge_members<T>), grid_for(nelem, THREADS), THREADS, 0, m, count,
                  reduction_of(n), n->in[0]->type.dtype == BOOL, nelem, (T *)y);
}

extern "C" int cuda_merge_members(void *stream, const Node *n, int count, const void *const *x,
                                  int64_t nelem, void *y, char *message, int size)
{
    Call c = {};
    c.stream = stream;
    if (count > MOST_MEMBERS) {
        snprintf(message, (size_t)size, "%s: expected a group of at most %d GPUs, found %d",
                 n->op->name, (int)MOST_MEMBERS, count);
        return -1;
    }
    int bad = -1;
    BY_DTYPE(n->in[0]->type.dtype, T, bad = merge_as<T>(&c, n, count, x, nelem, y));
    if (bad)
        snprintf(message, (size_t)size, "%s", c.message);
    return bad;
}

static bool accepts(const Call *c)
{
    bool all = true;
    for (int i = 0; i < c->nin; i++)
        all &= tensor_contiguous(&c->in[i]);
    return all;
}

#define MOVES                                                               \
    {                                                                       \
        {.name = "ranks", .accepts = accepts, .run = collective_alone}, {}, \
    }
#define REDUCES                            \
    {                                      \
        {.name = "ranks",                  \
         .accepts = accepts,               \
         .workspace = collective_received, \
         .run = collective_alone},         \
            {},                            \
    }

CUDA_KERNELS(all_reduce) = REDUCES;
CUDA_KERNELS(reduce_scatter_tensor) = REDUCES;
CUDA_KERNELS(all_gather_into_tensor) = MOVES;
CUDA_KERNELS(all_to_all_single) = MOVES;
CUDA_KERNELS(broadcast) = MOVES;
CUDA_KERNELS(permute_tensor) = MOVES;
