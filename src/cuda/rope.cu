/* rope and rope_table on CUDA (rope.c): a thread turns 16 bytes of a head's first half with those
 * of its second, or one pair; the table is computed in double, element by element. */
#include "pointwise.cuh"

enum { LENGTH, DIM, THETA };
enum { INVERSE };

/* ---- rope: operands 0, 1, 2 are x, cos, sin ---- */

/* s is the pairs, in runs of V: the first half of y, that of x, and the tables. */
template <int V, typename T, typename C>
__global__ void __launch_bounds__(BLOCK)
    turn(Positions s, int64_t half_y, int64_t half_x, bool inverse, T *y, const T *x,
         const C *cosine, const C *sine)
{
    typedef wide_t<T> W;
    int64_t i = thread_number(), at[4];
    if (i >= s.nelem)
        return;
    locate(s, i, at);
    RunOf<T, V> p = load<V>(x + at[1], 1), q = load<V>(x + at[1] + half_x, 1), p1, q1;
    RunOf<C, V> u = load<V>(cosine + at[2], 1), v = load<V>(sine + at[3], 1);
    for (int j = 0; j < V; j++) {
        W a = wide(p.v[j]), b = wide(q.v[j]), c = wide(u.v[j]);
        W d = inverse ? -wide(v.v[j]) : wide(v.v[j]);
        p1.v[j] = narrow<T>(a * c - b * d);
        q1.v[j] = narrow<T>(b * c + a * d);
    }
    *(RunOf<T, V> *)(y + at[0]) = p1;
    *(RunOf<T, V> *)(y + at[0] + half_y) = q1;
}

/* The walk over all pairs; tables [T, D / 2] are [T, 1, D / 2] to it. */
static Walk pairs_of(const Call *c)
{
    Tensor y = c->out[0], in[3] = {c->in[0], c->in[1], c->in[2]};
    int64_t half = y.dim[3] / 2;
    Walk w;
    y.dim[3] = in[0].dim[3] = half;
    for (int i = 1; i < 3; i++) {
        in[i].rank = 3;
        in[i].dim[1] = 1;
        in[i].dim[2] = half;
        in[i].stride[2] = in[i].stride[1];
    }
    walk_make(&w, &y, 3, in);
    return w;
}

template <int V, typename T, typename C> static int turn_by(Call *c, const Walk &w)
{
    const Tensor &y = c->out[0], &x = c->in[0];
    int64_t half = x.dim[3] / 2;
    return LAUNCH(c, (turn<V, T, C>), grid_for(w.nelem, BLOCK), BLOCK, 0, positions_of(c, &w),
                  half * y.stride[3], half * x.stride[3], c->node->attr[INVERSE].i, data<T>(y),
                  data<const T>(x), data<const C>(c->in[1]), data<const C>(c->in[2]));
}

/* By runs of 16 bytes, where all of the tensors allow that: the halves are multiples of them. */
template <int V, typename T, typename C> static int turn_runs(Call *c)
{
    Walk w = pairs_of(c);
    bool runs = w.nelem && c->in[0].dim[3] / 2 % V == 0 &&
                run_fits(&w, 0, V, sizeof(T), c->out[0].data) &&
                run_fits(&w, 1, V, sizeof(T), c->in[0].data);
    for (int i = 1; i < 3; i++)
        runs =
            runs && w.stride[i + 1][w.rank - 1] && run_fits(&w, i + 1, V, sizeof(C), c->in[i].data);
    if (!runs || V == 1)
        return turn_by<1, T, C>(c, w);
    walk_by(&w, V);
    return turn_by<V, T, C>(c, w);
}

static int run(Call *c)
{
    DType x = c->in[0].dtype, table = c->in[1].dtype;
    switch (x) {
    case F64: return turn_runs<1, double, double>(c);
    case F32: return turn_runs<4, float, float>(c);
    case BF16: return table == F32 ? turn_runs<8, bf16, float>(c) : turn_runs<1, bf16, bf16>(c);
    default: return table == F32 ? turn_runs<1, f16, float>(c) : turn_runs<1, f16, f16>(c);
    }
}
POINTWISE_KERNELS(rope, run);

/* ---- rope_table ---- */

static const char *const faults[] = {"offset %lld: expected -2^53 to %lld", NULL};

struct RopeTable {
    const int64_t *offset; /* or NULL: 0 */
    int64_t length, half;
    double theta, dim;
    Fault *fault;
    int step;
};

template <typename T> __global__ void table(RopeTable a, T *cosine, T *sine)
{
    int64_t n = thread_number(), first = a.offset ? *a.offset : 0;
    int64_t bound = (int64_t)1 << 53;
    if (first < -bound || first > bound - a.length) {
        note(a.fault, a.step, 0, first, bound - a.length);
        return;
    }
    if (n >= a.length * a.half)
        return;
    int64_t i = n % a.half;
    double angle = (double)(first + n / a.half) * pow(a.theta, -2 * (double)i / a.dim);
    cosine[n] = narrow<T>((wide_t<T>)cos(angle));
    sine[n] = narrow<T>((wide_t<T>)sin(angle));
}

/* One block at least, which checks the offset. */
static int table_run(Call *c)
{
    const Tensor &y = c->out[0];
    const Attr *attr = c->node->attr;
    RopeTable a = {.offset = c->nin ? data<int64_t>(c->in[0]) : NULL,
                   .length = y.dim[0],
                   .half = y.dim[1],
                   .theta = attr[THETA].f,
                   .dim = (double)attr[DIM].i,
                   .fault = c->fault,
                   .step = c->step};
    unsigned grid = grid_for(MAX(a.length * a.half, 1), BLOCK);
    BY_FLOAT(y.dtype, T,
             return LAUNCH(c, (table<T>), grid, BLOCK, 0, a, data<T>(y), data<T>(c->out[1])));
    return run_fail(c, "no kernel for %s", dtype_name(y.dtype));
}
CUDA_KERNELS(rope_table) = {
    {.name = "rope_table", .accepts = accepts_all, .run = table_run, .faults = faults}, {}};
