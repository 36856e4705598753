/* rope and rope_table on CUDA (rope.c): a thread turns 16 bytes of a head's first half with those
 * of its second, or one pair; the table is computed in double, element by element. */
#include "pointwise.cuh"

enum { LENGTH, DIM, THETA };
enum { INVERSE };

/* ---- rope ---- */

/* Strides of B, T, H and the last axis. */
struct Heads {
    int64_t time, heads, half;                            /* sizes; the half in runs */
    int64_t npair, x[4], y[4], cosine[2], sine[2], apart; /* elements between the halves of x */
    int64_t apart_y;
    bool inverse;
};

template <int V, typename T, typename C>
__global__ void __launch_bounds__(BLOCK)
    turn(Heads s, T *y, const T *x, const C *cosine, const C *sine)
{
    typedef wide_t<T> W;
    int64_t n = thread_number();
    if (n >= s.npair)
        return;
    int64_t i = n % s.half * V, h = n / s.half % s.heads, row = n / s.half / s.heads;
    int64_t t = row % s.time, b = row / s.time;
    x += b * s.x[0] + t * s.x[1] + h * s.x[2] + i * s.x[3];
    y += b * s.y[0] + t * s.y[1] + h * s.y[2] + i * s.y[3];
    Pack<T, V> p = load<V>(x, 1), q = load<V>(x + s.apart, 1), p1, q1;
    Pack<C, V> u = load<V>(cosine + t * s.cosine[0] + i * s.cosine[1], 1);
    Pack<C, V> v = load<V>(sine + t * s.sine[0] + i * s.sine[1], 1);
    for (int j = 0; j < V; j++) {
        W a = wide(p.v[j]), c = wide(q.v[j]), cos_j = wide(u.v[j]), sin_j = wide(v.v[j]);
        sin_j = s.inverse ? -sin_j : sin_j;
        p1.v[j] = narrow<T>(a * cos_j - c * sin_j);
        q1.v[j] = narrow<T>(c * cos_j + a * sin_j);
    }
    *(Pack<T, V> *)y = p1;
    *(Pack<T, V> *)(y + s.apart_y) = q1;
}

static Heads heads_of(const Call *c, int64_t V)
{
    const Tensor &x = c->in[0], &y = c->out[0];
    Heads s = {.time = x.dim[1], .heads = x.dim[2], .half = x.dim[3] / 2 / V};
    s.inverse = c->node->attr[INVERSE].i;
    s.npair = x.dim[0] * s.time * s.heads * s.half;
    memcpy(s.x, x.stride, sizeof s.x);
    memcpy(s.y, y.stride, sizeof s.y);
    memcpy(s.cosine, c->in[1].stride, sizeof s.cosine);
    memcpy(s.sine, c->in[2].stride, sizeof s.sine);
    s.apart = x.dim[3] / 2 * x.stride[3];
    s.apart_y = x.dim[3] / 2 * y.stride[3];
    return s;
}

/* Whether each run of V elements along t's last axis is one access. */
static bool by_runs(const Tensor &t, int64_t V)
{
    int last = t.rank - 1;
    for (int d = 0; d < last; d++)
        if (t.stride[d] % V)
            return false;
    return t.stride[last] == 1 && (uintptr_t)t.data % 16 == 0;
}

template <int V, typename T, typename C> static int turn_by(Call *c)
{
    Heads s = heads_of(c, V);
    return LAUNCH(c, (turn<V, T, C>), grid_for(s.npair, BLOCK), BLOCK, 0, s, data<T>(c->out[0]),
                  data<const T>(c->in[0]), data<const C>(c->in[1]), data<const C>(c->in[2]));
}

template <typename T> static int turn_runs(Call *c)
{
    constexpr int V = 16 / (int)sizeof(T);
    bool runs = c->in[0].dim[3] / 2 % V == 0 && by_runs(c->out[0], V);
    for (int i = 0; i < 3; i++)
        runs = runs && by_runs(c->in[i], V);
    return runs ? turn_by<V, T, float>(c) : turn_by<1, T, float>(c);
}

static int run(Call *c)
{
    DType x = c->in[0].dtype, table = c->in[1].dtype;
    switch (x) {
    case F64: return turn_by<1, double, double>(c);
    case F32: return turn_runs<float>(c);
    case BF16: return table == F32 ? turn_runs<bf16>(c) : turn_by<1, bf16, bf16>(c);
    default: return table == F32 ? turn_by<1, f16, float>(c) : turn_by<1, f16, f16>(c);
    }
}
POINTWISE_KERNELS(rope, run);

/* ---- rope_table ---- */

static const char *const faults[] = {"offset %lld: expected -2^53 to %lld", NULL};

struct Table {
    const int64_t *offset; /* or NULL: 0 */
    int64_t length, half;
    double theta, dim;
    Fault *fault;
    int step;
};

template <typename T> __global__ void table(Table a, T *cosine, T *sine)
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
    Table a = {.offset = c->nin ? data<int64_t>(c->in[0]) : NULL,
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
