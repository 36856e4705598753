/* gather, scatter, scatter_add, scatter_amax, scatter_amin on CUDA (gather.c has the rules).
 *
 * A scatter with few indices along `dim` has a thread for each, and of those for one place one
 * thread does all. Else positions are sorted by place (index_put.cu). */
#include "index.cuh"

enum { DIM, INDEX = 1, SRC, FEW = 64 };

static int axis_of(const Call *c)
{
    int64_t dim = c->node->attr[DIM].i;
    return (int)(dim < 0 ? dim + c->in[0].rank : dim);
}

static bool accepts(const Call *)
{
    return true;
}

/* The axes of the index, without `skip`: the strides of the index, and of `x` and `y` along it, but
 * that in x along `dim` the index says where. */
static WalkOf<3> index_walk(const Call *c, const Tensor &x, const Tensor &y, int skip)
{
    const Tensor &ids = c->in[INDEX];
    WalkOf<3> w = walk_none<3>();
    for (int d = 0; d < ids.rank; d++)
        if (d != skip)
            walk_axis(&w, ids.dim[d],
                      {ids.stride[d], d == axis_of(c) ? 0 : x.stride[d], y.stride[d]});
    return w;
}

static int check(Call *c)
{
    return cuda_check_index(c, INDEX, 0, c->in[0].dim[axis_of(c)], INDEX);
}

/* ---- gather ---- */

enum { UNITS = 4 }; /* of a thread, whose loads are in flight together */

struct Gather {
    Tensor ids;
    WalkOf<3> w;
    int64_t size, stride; /* of x along `dim` */
    Fault *fault;
    int step;
};

template <typename U>
static __global__ void __launch_bounds__(THREADS)
    gather(const U *x, U *y, const __grid_constant__ Gather g)
{
    int64_t i = (int64_t)blockIdx.x * THREADS * UNITS + threadIdx.x, at[UNITS][3], id[UNITS];
    int64_t wrong = -1;
    U own[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        id[k] = -1;
        if (i + k * THREADS >= g.w.nelem)
            continue;
        walk_at(g.w, i + k * THREADS, at[k]);
        id[k] = index_at(g.ids, at[k][0]);
    }
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        if (id[k] >= 0 && id[k] < g.size)
            own[k] = x[at[k][1] + id[k] * g.stride];
        else if (i + k * THREADS < g.w.nelem)
            wrong = i + k * THREADS;
    }
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (id[k] >= 0 && id[k] < g.size)
            y[at[k][2]] = own[k];
    if (wrong >= 0)
        note_index(g.ids, g.w, wrong, 0, g.size, g.fault, g.step, INDEX);
}

static int run(Call *c)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    int dim = axis_of(c);
    Gather g = {c->in[INDEX], index_walk(c, x, y, -1), x.dim[dim], x.stride[dim], c->fault,
                c->step};
    BY_SIZE(dtype_size(x.dtype), U,
            return LAUNCH(c, (gather<U>), grid_for(g.w.nelem, (int64_t)THREADS * UNITS), THREADS, 0,
                          data<U>(x), data<U>(y), g));
    return 0;
}

CUDA_KERNELS(gather) = {{.name = "gather",
                         .accepts = accepts,
                         .run = run,
                         .strided_out = true,
                         .faults = cuda_index_faults},
                        {}};

/* ---- scatter: few indices along `dim` ---- */

struct ScatterLines {
    PutKind kind;
    Tensor ids;
    WalkOf<3> line;                  /* lines along `dim`: of the index, y and src */
    int64_t along;                   /* length of one */
    int64_t id_step, y_step, x_step; /* along `dim` */
    int64_t size;                    /* of y along `dim` */
};

static PutKind kind_of(const Call *c)
{
    if (node_is(c->node, OP_scatter_add))
        return c->out[0].dtype == BOOL ? PUT_ANY : PUT_SUM;
    return node_is(c->node, OP_scatter_amax)   ? PUT_GREATEST
           : node_is(c->node, OP_scatter_amin) ? PUT_LEAST
                                               : PUT_LAST;
}

static ScatterLines scatter_of(const Call *c)
{
    int dim = axis_of(c);
    const Tensor &ids = c->in[INDEX], &y = c->out[0], &src = c->in[SRC];
    return {.kind = kind_of(c),
            .ids = ids,
            .line = index_walk(c, y, src, dim),
            .along = ids.dim[dim],
            .id_step = ids.stride[dim],
            .y_step = y.stride[dim],
            .x_step = src.stride[dim],
            .size = y.dim[dim]};
}

/* Whether another index from `lo` to `hi` of the line is the same. */
__device__ static bool occurs(const ScatterLines &s, int64_t line, int64_t lo, int64_t hi,
                              int64_t id)
{
    for (int64_t j = lo; j < hi; j++)
        if (index_at(s.ids, line + j * s.id_step) == id)
            return true;
    return false;
}

template <typename T>
static __global__ void scatter_few(const T *x, T *y, ScatterLines s, const int *stop)
{
    int64_t i = thread_number(), j = quotient(i, s.line.nelem), at[3];
    if (j >= s.along || stopped(stop))
        return;
    walk_at(s.line, i - j * s.line.nelem, at);
    int64_t id = index_at(s.ids, at[0] + j * s.id_step);
    bool last = s.kind == PUT_LAST;
    if (id < 0 || id >= s.size || occurs(s, at[0], last ? j + 1 : 0, last ? s.along : j, id))
        return;
    T *to = y + at[1] + id * s.y_step, best = *to;
    auto sum = wide(best);
    for (; j < s.along; j++) {
        if (index_at(s.ids, at[0] + j * s.id_step) != id)
            continue;
        T own = x[at[2] + j * s.x_step];
        if (s.kind == PUT_SUM)
            sum = put_sum(sum, wide(own));
        else
            best = put_other(s.kind, best, own);
    }
    *to = s.kind == PUT_SUM ? narrow<T>(sum) : best;
}

static bool few(const Call *c)
{
    return c->in[INDEX].dim[axis_of(c)] <= FEW;
}

static int run_few(Call *c)
{
    ScatterLines s = scatter_of(c);
    if (check(c) || cuda_copy_operand(c))
        return -1;
    BY_DTYPE(c->out[0].dtype, T,
             return LAUNCH(c, (scatter_few<T>), grid_for(s.line.nelem * s.along, THREADS), THREADS,
                           0, data<T>(c->in[SRC]), data<T>(c->out[0]), s, c->stop));
    return 0;
}

/* ---- scatter: many ---- */

static __global__ void fill_items(Tensor ids, WalkOf<3> w, SortItem *item, int64_t size,
                                  int64_t stride)
{
    int64_t i = thread_number(), at[3];
    if (i >= w.nelem)
        return;
    walk_at(w, i, at);
    int64_t id = index_at(ids, at[0]);
    bool fits = id >= 0 && id < size;
    item[i] = {fits ? (uint64_t)(at[1] + id * stride) : (uint64_t)NOWHERE, (uint64_t)i};
}

static int64_t workspace(Ctx *, const Call *c)
{
    return cuda_put_nwork(tensor_nelem(&c->in[INDEX]));
}

static int run_sorted(Call *c)
{
    const Tensor &ids = c->in[INDEX], &y = c->out[0], &src = c->in[SRC];
    WalkOf<3> w = index_walk(c, y, src, -1);
    Put p = {kind_of(c), walk_none<1>(), walk_none<2>()};
    int dim = axis_of(c);
    for (int d = 0; d < ids.rank; d++)
        walk_axis(&p.at, ids.dim[d], {src.stride[d]});
    if (check(c) || cuda_copy_operand(c))
        return -1;
    if (LAUNCH(c, fill_items, grid_for(w.nelem, THREADS), THREADS, 0, ids, w,
               (SortItem *)(void *)c->work, y.dim[dim], y.stride[dim]))
        return -1;
    return cuda_put_sorted(c, p, src);
}

#define SCATTER_KERNELS                                                                       \
    {                                                                                         \
        {.name = "scatter_few", .accepts = few, .run = run_few, .faults = cuda_index_faults}, \
            {.name = "scatter_sorted",                                                        \
             .accepts = accepts,                                                              \
             .workspace = workspace,                                                          \
             .run = run_sorted,                                                               \
             .faults = cuda_index_faults},                                                    \
            {},                                                                               \
    }
CUDA_KERNELS(scatter) = SCATTER_KERNELS;
CUDA_KERNELS(scatter_add) = SCATTER_KERNELS;
CUDA_KERNELS(scatter_amax) = SCATTER_KERNELS;
CUDA_KERNELS(scatter_amin) = SCATTER_KERNELS;
