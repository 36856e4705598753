/* index, index_put on CUDA (index.c has the rules): the offset in x that each position of the
 * indices stands for is computed once; then what lies at it is moved, in units of up to 16 bytes,
 * or put in order (index_put.cu). */
#include "index.cuh"

enum { DIMS, ACCUMULATE, VALUES = 1 };

/* ---- which axes ---- */

/* Operand 0's axes and the indices in the result. */
struct IndexedAxes {
    int count, lead;   /* index operands, and the first of them */
    int first, nblock; /* the indices' first axis in the result, and how many axes they have */
    const int64_t *dims;
};

static bool indexed(const IndexedAxes &s, int axis)
{
    for (int j = 0; j < s.count; j++)
        if (s.dims[j] == axis)
            return true;
    return false;
}

static IndexedAxes shape_of(const Call *c, int lead)
{
    IndexedAxes s = {.count = c->nin - lead, .lead = lead, .dims = c->node->attr[DIMS].ints};
    for (int i = lead; i < c->nin; i++)
        s.nblock = s.nblock > c->in[i].rank ? s.nblock : c->in[i].rank;
    if (s.dims[s.count - 1] - s.dims[0] == s.count - 1)
        s.first = (int)s.dims[0];
    return s;
}

/* The indices' axes, row-major. */
static Tensor block_of(const Call *c, const IndexedAxes &s)
{
    Tensor b = {};
    b.rank = s.nblock;
    for (int e = 0; e < s.nblock; e++) {
        b.dim[e] = 1;
        for (int i = s.lead; i < c->nin; i++) {
            int d = e - s.nblock + c->in[i].rank;
            if (d >= 0 && c->in[i].dim[d] != 1)
                b.dim[e] = c->in[i].dim[d];
        }
    }
    tensor_fill_strides(&b);
    return b;
}

/* ---- offsets ---- */

struct Indices {
    int count;
    Tensor block, id[TN_RANK];
    int64_t size[TN_RANK], stride[TN_RANK]; /* of the indexed axes */
};

static Indices indices_of(const Call *c, const IndexedAxes &s, const Tensor &x)
{
    Indices r = {.count = s.count, .block = block_of(c, s)};
    for (int j = 0; j < s.count; j++) {
        r.id[j] = c->in[s.lead + j];
        r.size[j] = x.dim[s.dims[j]];
        r.stride[j] = x.stride[s.dims[j]];
    }
    return r;
}

/* The offset that position p stands for; false: an index is out of range. */
__device__ static bool find_offset(const Indices &r, int64_t p, int64_t *offset)
{
    *offset = 0;
    for (int j = 0; j < r.count; j++) {
        int64_t id = index_at(r.id[j], offset_of(r.block, r.id[j], p));
        id += id < 0 ? r.size[j] : 0;
        if (id < 0 || id >= r.size[j])
            return false;
        *offset += id * r.stride[j];
    }
    return true;
}

static __global__ void fill_offsets(Indices r, int64_t *offset, int64_t count)
{
    int64_t p = thread_number();
    if (p < count && !find_offset(r, p, &offset[p]))
        offset[p] = 0; /* reads an element that is there, if any is: the run has failed */
}

static __global__ void fill_items(Indices r, SortItem *item, int64_t count)
{
    int64_t p = thread_number(), offset;
    if (p < count)
        item[p] = {find_offset(r, p, &offset) ? (uint64_t)offset : (uint64_t)NOWHERE, (uint64_t)p};
}

static int check_indices(Call *c, const IndexedAxes &s)
{
    for (int j = 0; j < s.count; j++) {
        int64_t size = c->in[0].dim[s.dims[j]];
        if (cuda_check_index(c, s.lead + j, -size, size, s.lead + j))
            return -1;
    }
    return 0;
}

/* ---- index ---- */

static bool accepts(const Call *)
{
    return true;
}

static int64_t index_workspace(Ctx *, const Call *c)
{
    Tensor block = block_of(c, shape_of(c, 1));
    return tensor_nelem(&block) * (int64_t)sizeof(int64_t);
}

/* Walks the result: in x, in y, and in the positions of the indices. */
static WalkOf<3> result_walk(const Call *c, const IndexedAxes &s)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    Tensor block = block_of(c, s);
    WalkOf<3> w = walk_none<3>();
    for (int e = 0, d = 0; e < y.rank; e++) {
        int b = e - s.first;
        if (b >= 0 && b < s.nblock) {
            walk_axis(&w, y.dim[e], {0, y.stride[e], block.stride[b]});
            continue;
        }
        while (indexed(s, d))
            d++;
        walk_axis(&w, y.dim[e], {x.stride[d++], y.stride[e], 0});
    }
    return w;
}

enum { UNITS = 4 }; /* of a thread, whose loads are in flight together */

template <typename U>
static __global__ void __launch_bounds__(THREADS)
    take(const U *x, U *y, WalkOf<3> w, const int64_t *offset, int64_t elements)
{
    int64_t i = (int64_t)blockIdx.x * THREADS * UNITS + threadIdx.x, at[UNITS][3];
    U own[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (i + k * THREADS < w.nelem) {
            walk_at(w, i + k * THREADS, at[k]);
            own[k] = x[at[k][0] + quotient(offset[at[k][2]], elements)];
        }
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (i + k * THREADS < w.nelem)
            y[at[k][1]] = own[k];
}

static int index_run(Call *c)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    IndexedAxes s = shape_of(c, 1);
    Indices r = indices_of(c, s, x);
    int64_t count = tensor_nelem(&r.block), *offset = (int64_t *)(void *)c->work;
    WalkOf<3> w = result_walk(c, s);
    uint64_t common = (uint64_t)x.data | (uint64_t)y.data;
    for (int j = 0; j < r.count; j++)
        common |= (uint64_t)(r.stride[j] * dtype_size(x.dtype));
    if (check_indices(c, s))
        return -1;
    if (tensor_nelem(&x) == 0)
        return 0;
    if (LAUNCH(c, fill_offsets, grid_for(count, THREADS), THREADS, 0, r, offset, count))
        return -1;
    int64_t unit = walk_units(&w, 2, dtype_size(x.dtype), common);
    BY_SIZE(unit, U,
            return LAUNCH(c, (take<U>), grid_for(w.nelem, (int64_t)THREADS * UNITS), THREADS, 0,
                          data<U>(x), data<U>(y), w, offset, unit / dtype_size(x.dtype)));
    return 0;
}

CUDA_KERNELS(index) = {{.name = "index_units",
                        .accepts = accepts,
                        .workspace = index_workspace,
                        .run = index_run,
                        .strided_out = true,
                        .faults = cuda_index_faults},
                       {}};

/* ---- index_put ---- */

static int64_t index_put_workspace(Ctx *, const Call *c)
{
    Tensor block = block_of(c, shape_of(c, 2));
    return cuda_put_nwork(tensor_nelem(&block));
}

/* The stride of axis e, of `rank`, of what v broadcasts to. */
static int64_t broadcast_stride(const Tensor &v, int rank, int e)
{
    int d = e - rank + v.rank;
    return d < 0 || v.dim[d] == 1 ? 0 : v.stride[d];
}

static Put put_of(const Call *c, const IndexedAxes &s, const Tensor &block)
{
    const Tensor &y = c->out[0], &v = c->in[VALUES];
    int rank = y.rank - s.count + s.nblock;
    PutKind add = v.dtype == BOOL ? PUT_ANY : PUT_SUM;
    Put p = {c->node->attr[ACCUMULATE].i ? add : PUT_LAST, walk_none<1>(), walk_none<2>()};
    for (int e = 0, d = 0; e < rank; e++) {
        int b = e - s.first;
        int64_t stride = broadcast_stride(v, rank, e);
        if (b >= 0 && b < s.nblock) {
            walk_axis(&p.at, block.dim[b], {stride});
            continue;
        }
        while (indexed(s, d))
            d++;
        walk_axis(&p.column, y.dim[d], {y.stride[d], stride});
        d++;
    }
    return p;
}

static int index_put_run(Call *c)
{
    IndexedAxes s = shape_of(c, 2);
    Indices r = indices_of(c, s, c->out[0]);
    int64_t count = tensor_nelem(&r.block);
    if (check_indices(c, s) || cuda_copy_operand(c))
        return -1;
    if (LAUNCH(c, fill_items, grid_for(count, THREADS), THREADS, 0, r, (SortItem *)(void *)c->work,
               count))
        return -1;
    return cuda_put_sorted(c, put_of(c, s, r.block), c->in[VALUES]);
}

CUDA_KERNELS(index_put) = {{.name = "index_put_sorted",
                            .accepts = accepts,
                            .workspace = index_put_workspace,
                            .run = index_put_run,
                            .faults = cuda_index_faults},
                           {}};
