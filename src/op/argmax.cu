/* argmax and argmin on CUDA (sort.c has the order): the axes that go are a row, of which a team
 * finds the first of the best keys. */
#include "reduce_rows.cuh"

/* A key whose unsigned order is that of sort.c, the best the greatest. */
struct Best {
    uint64_t key;
    int64_t index;
};

__device__ static uint64_t key_of(double x, bool greatest)
{
    const uint64_t top = (uint64_t)1 << 63;
    uint64_t key;
    x += 0.0; /* of -0 makes 0 */
    if (x != x)
        return UINT64_MAX;
    memcpy(&key, &x, sizeof key);
    key = key & top ? ~key : key | top;
    return greatest ? key : ~key;
}
__device__ static uint64_t key_of(int64_t x, bool greatest)
{
    uint64_t key = (uint64_t)x ^ (uint64_t)1 << 63;
    return greatest ? key : ~key;
}

__device__ static Best better(Best a, Best b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index) ? a : b;
}

template <typename W> struct Exact {
    typedef double type;
};
template <> struct Exact<int64_t> {
    typedef int64_t type;
};

template <class T, class E> __global__ void best_rows(ReducedRows a, bool greatest, int64_t *y)
{
    typedef typename Exact<wide_t<E>>::type X;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.rows)
        return;
    GoneRow<E> x(a.kept, a.gone, r);
    Best best = {0, INT64_MAX};
    each_pack(t, a.n, [&](int i, int count, int) {
        auto p = x.load(i, count);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            if (v < count)
                best = better(best, {key_of((X)p.v[v], greatest), i + v});
    });
    best = team_join(t, best, better);
    if (t.lane == 0)
        y[r] = best.index;
}

static int run(Call *c)
{
    ReducedRows a = reduced_rows(c);
    bool greatest = node_is(c->node, OP_argmax);
    auto launch = [&](auto e, auto t) {
        return LAUNCH(c, (best_rows<decltype(t), decltype(e)>), row_grid(a.rows, a.n),
                      row_block(a.n), 0, a, greatest, data<int64_t>(c->out[0]));
    };
    if (!dtype_float(c->in[0].dtype))
        return by_reduced_team<Any<int64_t>>(a.n, launch);
    return by_reduced(c->in[0].dtype, a, launch);
}

CUDA_KERNELS(argmax) = {{.name = "rows", .accepts = reduced_accepts, .run = run}, {}};
CUDA_KERNELS(argmin) = {{.name = "rows", .accepts = reduced_accepts, .run = run}, {}};
