/* logsumexp on CUDA (logsumexp.c has the formula): any axes; a row is read once. */
#include "reduce_rows.cuh"

template <class T, class E> __global__ void ROW_BOUNDS(T) lse_rows(ReducedRows a, Tensor y)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.rows)
        return;
    GoneRow<E> x(a.kept, a.gone, r);
    Online<W> s =
        row_online<W>(t, a.n, true, [&](int i, int count, int) { return x.load(i, count); });
    if (t.lane == 0)
        store_any(y.data + r * size_of(y.dtype), y.dtype,
                  a.n ? online_log(s, true) : (double)-INFINITY);
}

static int run(Call *c)
{
    ReducedRows a = reduced_rows(c);
    return by_reduced(c->in[0].dtype, a, [&](auto e, auto t) {
        return LAUNCH(c, (lse_rows<decltype(t), decltype(e)>), row_grid(a.rows, a.n),
                      row_block(a.n), 0, a, c->out[0]);
    });
}

CUDA_KERNELS(logsumexp) = {{.name = "rows", .accepts = reduced_accepts, .run = run}, {}};
