/* triu and tril on CUDA (triangle.c): bits of one size, any strides. */
#include "pointwise.cuh"

enum { DIAGONAL, SHIFT = 1 };

struct Triangle {
    int64_t rows, columns, diagonal;
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

template <typename T>
__global__ void __launch_bounds__(BLOCK) triangle(Positions s, Triangle t, T *y, const T *x)
{
    int64_t i = thread_number(), at[2];
    if (i >= s.nelem)
        return;
    int64_t diagonal = clamped_sum(t.diagonal, t.shift ? *t.shift : 0);
    int64_t above = i % t.columns - i / t.columns % t.rows;
    locate(s, i, at);
    y[at[0]] = (t.upper ? above >= diagonal : above <= diagonal) ? x[at[1]] : T(0);
}

template <typename T> static int run_of(Call *c, const Triangle &t)
{
    Walk w;
    walk_make(&w, &c->out[0], 1, c->in);
    return LAUNCH(c, (triangle<T>), grid_for(w.nelem, BLOCK), BLOCK, 0, positions_of(&w), t,
                  data<T>(c->out[0]), data<const T>(c->in[0]));
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
