/* Shared on CUDA by kernels that read and write by index tensors; see index.cuh.
 *
 * Several elements may be put to one place. Positions are sorted by place, those for one place in
 * row-major order, and one thread puts all that go to an element: the last one stays, or the sum is
 * formed, in that order, 16-bit values in f32 with one rounding. */
#include "index.cuh"

/* ---- checks ---- */

#define INDEX_FAULT(i) "index %lld at position %lld of operand " #i ": expected %lld to %lld"
const char *const cuda_index_faults[] = {
    INDEX_FAULT(0), INDEX_FAULT(1), INDEX_FAULT(2), INDEX_FAULT(3), INDEX_FAULT(4), INDEX_FAULT(5),
    INDEX_FAULT(6), INDEX_FAULT(7), INDEX_FAULT(8), INDEX_FAULT(9), NULL,
};

static __global__ void check_index(const __grid_constant__ Tensor ids,
                                   const __grid_constant__ WalkOf<1> at, int64_t least,
                                   int64_t size, Fault *fault, int step, int what)
{
    int64_t i = thread_number();
    if (i >= at.nelem)
        return;
    int64_t id = index_at(ids, walk_at(at, i));
    if (id < least || id >= size)
        note_index(ids, at, i, least, size, fault, step, what);
}

int cuda_check_index(Call *c, int i, int64_t least, int64_t size, int what)
{
    WalkOf<1> at = walk_of(c->in[i]);
    return LAUNCH(c, check_index, grid_for(at.nelem, THREADS), THREADS, 0, c->in[i], at, least,
                  size, c->fault, c->step, what);
}

/* ---- copy ---- */

template <typename U>
static __global__ void copy_units(const U *x, U *y, WalkOf<2> w, const int *stop)
{
    int64_t i = thread_number(), at[2];
    if (i >= w.nelem || stopped(stop))
        return;
    walk_at(w, i, at);
    y[at[1]] = x[at[0]];
}

int cuda_copy_operand(Call *c)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    WalkOf<2> w = walk_none<2>();
    if (x.data == y.data)
        return 0;
    for (int d = 0; d < x.rank; d++)
        walk_axis(&w, x.dim[d], {x.stride[d], y.stride[d]});
    int64_t unit = walk_units(&w, 2, dtype_size(x.dtype), (uint64_t)x.data | (uint64_t)y.data);
    BY_SIZE(unit, U,
            return LAUNCH(c, (copy_units<U>), grid_for(w.nelem, THREADS), THREADS, 0, data<U>(x),
                          data<U>(y), w, c->stop));
    return 0;
}

/* ---- put ---- */

int64_t cuda_put_nwork(int64_t count)
{
    return 2 * count * (int64_t)sizeof(SortItem);
}

/* The thread of a place's first position, or, where the last stays, of the last, puts. */
template <typename T>
static __global__ void put_sorted(const SortItem *item, const T *x, T *y, Put p, int64_t columns,
                                  const int *stop)
{
    int64_t i = thread_number(), k = quotient(i, columns), at[2], last = p.at.nelem - 1;
    if (k > last || item[k].key == (uint64_t)NOWHERE || stopped(stop))
        return;
    uint64_t place = item[k].key;
    if (p.kind == PUT_LAST ? k < last && item[k + 1].key == place
                           : k > 0 && item[k - 1].key == place)
        return;
    walk_at(p.column, i - k * columns, at);
    T *to = y + place + at[0];
    const T *from = x + at[1];
    if (p.kind == PUT_SUM) {
        auto sum = wide(*to);
        for (; k <= last && item[k].key == place; k++)
            sum = put_sum(sum, wide(from[walk_at(p.at, (int64_t)item[k].position)]));
        *to = narrow<T>(sum);
    } else {
        T best = *to;
        for (; k <= last && item[k].key == place; k++)
            best = put_other(p.kind, best, from[walk_at(p.at, (int64_t)item[k].position)]);
        *to = best;
    }
}

int cuda_put_sorted(Call *c, const Put &p, const Tensor &source)
{
    int64_t count = p.at.nelem, columns = p.column.nelem;
    SortItem *items = (SortItem *)(void *)c->work, *sorted = items;
    if (count * columns == 0)
        return 0;
    if (cuda_sort_pairs(c, items, items + count, 1, count, &sorted))
        return -1;
    BY_DTYPE(source.dtype, T,
             return LAUNCH(c, (put_sorted<T>), grid_for(count * columns, THREADS), THREADS, 0,
                           sorted, data<T>(source), data<T>(c->out[0]), p, columns, c->stop));
    return 0;
}
