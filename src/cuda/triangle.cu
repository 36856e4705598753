/* triu and tril on CUDA (triangle.c): bits of one size, any strides; runs of 16 bytes where rows of
 * a matrix consist of them, of which those that are 0 are not read. */
#include "pointwise.cuh"

enum { DIAGONAL, SHIFT = 1 };

struct Triangle {
    int64_t rows, columns, diagonal; /* columns in runs */
    Divisor by_rows, by_columns;
    const int64_t *shift; /* or NULL */
    bool upper;
};

/* The sum, at the end of the range where it is beyond that. */
__device__ static int64_t clamped_sum(int64_t a, int64_t b)
{
    int64_t sum = (int64_t)((uint64_t)a + (uint64_t)b);
    bool beyond = (a < 0) == (b < 0) && (sum < 0) != (a < 0);
    return !beyond ? sum : a < 0 ? INT64_MIN : INT64_MAX;
}

/* i / n for a position i. */
__device__ static int64_t quotient(const Positions &s, int64_t i, int64_t n, const Divisor &by)
{
    return s.narrow ? (int64_t)by.quotient((uint32_t)i) : i / n;
}

/* Each position of s is a run of V elements. */
template <int V, typename T>
__global__ void __launch_bounds__(BLOCK) triangle(Positions s, Triangle t, T *y, const T *x)
{
    int64_t i = thread_number(), at[2];
    if (i >= s.nelem || stopped(s.stop))
        return;
    int64_t diagonal = clamped_sum(t.diagonal, t.shift ? *t.shift : 0);
    int64_t row = quotient(s, i, t.columns, t.by_columns),
            matrix = quotient(s, row, t.rows, t.by_rows);
    int64_t above = (i - row * t.columns) * V - (row - matrix * t.rows);
    locate(s, i, at);
    RunOf<T, V> p = {};
    if (t.upper ? above + V - 1 >= diagonal : above <= diagonal)
        p = *(const RunOf<T, V> *)(x + at[1]);
#pragma unroll
    for (int v = 0; v < V; v++)
        p.v[v] = (t.upper ? above + v >= diagonal : above + v <= diagonal) ? p.v[v] : T(0);
    *(RunOf<T, V> *)(y + at[0]) = p;
}

template <int V, typename T> static int run_by(Call *c, const Walk &w, Triangle t)
{
    Positions s = positions_of(c, &w);
    t.columns /= V;
    if (s.narrow && s.nelem) {
        t.by_rows = divisor_of(t.rows);
        t.by_columns = divisor_of(t.columns);
    }
    return LAUNCH(c, (triangle<V, T>), grid_for(w.nelem, BLOCK), BLOCK, 0, s, t, data<T>(c->out[0]),
                  data<const T>(c->in[0]));
}

template <typename T> static int run_of(Call *c, const Triangle &t)
{
    constexpr int V = 16 / sizeof(T);
    Walk w;
    walk_make(&w, &c->out[0], 1, c->in);
    if (!w.nelem || t.columns % V || !run_fits(&w, 0, V, sizeof(T), c->out[0].data) ||
        !w.stride[1][w.rank - 1] || !run_fits(&w, 1, V, sizeof(T), c->in[0].data))
        return run_by<1, T>(c, w, t);
    walk_by(&w, V);
    return run_by<V, T>(c, w, t);
}

static int run(Call *c)
{
    const Tensor &x = c->in[0];
    Triangle t = {.rows = x.dim[x.rank - 2],
                  .columns = x.dim[x.rank - 1],
                  .diagonal = c->node->attr[DIAGONAL].i,
                  .shift = c->nin > SHIFT ? data<int64_t>(c->in[SHIFT]) : NULL,
                  .upper = node_is(c->node, OP_triu)};
    switch (dtype_size(x.dtype)) {
    case 1: return run_of<uint8_t>(c, t);
    case 2: return run_of<uint16_t>(c, t);
    case 4: return run_of<uint32_t>(c, t);
    default: return run_of<uint64_t>(c, t);
    }
}

POINTWISE_KERNELS(triu, run);
POINTWISE_KERNELS(tril, run);
