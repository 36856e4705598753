/* var_mean on CUDA (var_mean.c has the formula): any axes; both sums in double. */
#include "reduce_rows.cuh"

template <class T, class E>
__global__ void ROW_BOUNDS(T) moment_rows(ReducedRows a, double correction, Tensor var, Tensor mean)
{
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= a.rows)
        return;
    GoneRow<E> x(a.kept, a.gone, r);
    auto get = [&](int i, int count, int) { return x.load(i, count); };
    constexpr int G = GoneRow<E>::ahead;
    double m = row_total<G>(t, a.n, get, [](double y) { return y; }) / (double)a.n;
    double squares = row_total<G>(t, a.n, get, [=](double y) { return (y - m) * (y - m); });
    if (t.lane)
        return;
    double divisor = (double)a.n - correction;
    store_any(var.data + r * size_of(var.dtype), var.dtype, squares / (divisor > 0 ? divisor : 0));
    store_any(mean.data + r * size_of(mean.dtype), mean.dtype, m);
}

static int run(Call *c)
{
    ReducedRows a = reduced_rows(c);
    return by_reduced(c->in[0].dtype, a, [&](auto e, auto t) {
        return LAUNCH(c, (moment_rows<decltype(t), decltype(e)>), row_grid(a.rows, a.n),
                      row_block(a.n), 0, a, c->node->attr[2].f, c->out[0], c->out[1]);
    });
}

CUDA_KERNELS(var_mean) = {{.name = "rows", .accepts = reduced_accepts, .run = run}, {}};
