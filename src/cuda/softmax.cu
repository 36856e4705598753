/* _softmax, _log_softmax and their backward on CUDA (softmax.c has the formulas), along any axis:
 * a row that registers hold is read once and written once. */
#include "row_tensor.cuh"

enum SoftmaxKind { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD };

struct SoftmaxOf {
    TensorRows a, b, y; /* x; or dy and y */
    int64_t rows;
    int n;
};

template <class T, class E> __global__ void ROW_BOUNDS(T) softmax_rows(SoftmaxOf s, bool logs)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= s.rows)
        return;
    HeldRow<T, E> x(t, s.n, RowAt<E>(s.a, r));
    RowAt<E> y(s.y, r);
    Online<W> sum = row_online<W>(t, s.n, false, x);
    W log_sum = logs ? (W)log((double)sum.sum) : 0;
    each_pack(t, s.n, [&](int i, int count, int k) {
        Pack<W> p = x(i, count, k);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            p.v[v] = logs ? log_softmax_of(p.v[v], sum.max, log_sum) : softmax_of(p.v[v], sum);
        y.store(i, count, p);
    });
}

template <class T, class E> __global__ void softmax_backward_rows(SoftmaxOf s, bool logs)
{
    typedef wide_t<E> W;
    ROW_SHARED_MEMORY(shared);
    T t = team_here<T>(shared);
    int64_t r = row_here<T>();
    if (r >= s.rows)
        return;
    HeldRow<T, E> dy(t, s.n, RowAt<E>(s.a, r)), y(t, s.n, RowAt<E>(s.b, r));
    RowAt<E> dx(s.y, r);
    W sum = (W)(logs ? row_total(t, s.n, dy) : row_dot(t, s.n, dy, y));
    each_pack(t, s.n, [&](int i, int count, int k) {
        Pack<W> p = dy(i, count, k), q = y(i, count, k);
#pragma unroll
        for (int v = 0; v < PACK; v++)
            p.v[v] = logs ? log_softmax_gradient(p.v[v], q.v[v], sum)
                          : softmax_gradient(p.v[v], q.v[v], sum);
        dx.store(i, count, p);
    });
}

static int axis_of(const Node *n)
{
    int64_t dim = n->attr[0].i;
    return (int)(dim < 0 ? dim + n->in[0]->type.rank : dim);
}

static bool accepts(const Call *c)
{
    return row_length_ok(c->in[0].dim[axis_of(c->node)]);
}

template <SoftmaxKind WHICH> static int run(Call *c)
{
    int axis = axis_of(c->node);
    const Tensor *x = &c->in[0];
    int64_t n = x->dim[axis];
    SoftmaxOf s = {rows_of(x, 0, axis), rows_of(&c->in[c->nin - 1], 0, axis),
                   rows_of(&c->out[0], 0, axis), n ? tensor_nelem(x) / n : 0, (int)n};
    bool aligned = rows_aligned(s.a, n) && rows_aligned(s.b, n) && rows_aligned(s.y, n);
    return by_element(x->dtype, n, aligned, [&](auto e) {
        typedef decltype(e) E;
        return by_team<E>(n, [&](auto team) {
            typedef decltype(team) T;
            unsigned grid = row_grid(s.rows, n), block = (unsigned)row_block(n);
            if constexpr (WHICH == SOFTMAX || WHICH == LOG_SOFTMAX)
                return LAUNCH(c, (softmax_rows<T, E>), grid, block, 0, s, WHICH == LOG_SOFTMAX);
            else
                return LAUNCH(c, (softmax_backward_rows<T, E>), grid, block, 0, s,
                              WHICH == LOG_SOFTMAX_BACKWARD);
        });
    });
}

#define SOFTMAX_KERNELS(op, which) \
    CUDA_KERNELS(op) = {           \
        {.name = "rows", .accepts = accepts, .run = run<which>, .strided_out = true}, {}}
SOFTMAX_KERNELS(_softmax, SOFTMAX);
SOFTMAX_KERNELS(_log_softmax, LOG_SOFTMAX);
SOFTMAX_KERNELS(_softmax_backward_data, SOFTMAX_BACKWARD);
SOFTMAX_KERNELS(_log_softmax_backward_data, LOG_SOFTMAX_BACKWARD);
