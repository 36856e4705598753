/* dropout, native_dropout and rand_like on CUDA (dropout.c has the rules): the processor's masks
 * and numbers, bit for bit.
 *
 * A thread has 16 bytes of elements whose positions are neighbours, or one element. It draws words
 * by four where its elements are whole blocks of four, else one by one. */
#include "index.cuh"

#include "random.cuh"

#include <math.h>

enum { P, AXES, EXTENTS };
enum { FIRST_OFFSET = 3 }; /* operands: x, seed, step, offsets */

static const char *const faults[] = {"offset %lld of axis %lld: expected %lld to %lld", NULL};

/* The source of masks: scalar operands, and x's place in the whole tensor. */
struct MaskSource {
    const int64_t *seed, *step, *offset[TN_RANK];
    int64_t stride[TN_RANK], most[TN_RANK], axis[TN_RANK]; /* of the axes that have offsets */
    int count;
    unsigned stream, least;
    double scale;
    Fault *fault;
    int at; /* Call.step */
};

/* Which offset operand belongs to axis d, or -1. */
static int offset_of(const Attr *attr, int d)
{
    for (int i = 0; i < attr[AXES].i; i++)
        if (attr[AXES].ints[i] == d)
            return i;
    return -1;
}

/* Also walks x: the elements of x, and positions. y lies row-major. `a` has axes and extents after
 * p, which numbers without one do not read. */
static MaskSource draw_of(const Call *c, const Attr *a, WalkOf<2> *w)
{
    const Tensor &x = c->in[0];
    MaskSource r = {.seed = data<int64_t>(c->in[1]), .step = data<int64_t>(c->in[2])};
    int64_t stride[TN_RANK];
    for (int64_t d = x.rank - 1, size = 1; d >= 0; d--) {
        int i = offset_of(a, (int)d);
        stride[d] = size;
        size *= i < 0 ? x.dim[d] : a[EXTENTS].ints[i];
    }
    r.count = (int)a[AXES].i;
    for (int i = 0; i < r.count; i++) {
        int64_t d = a[AXES].ints[i];
        r.offset[i] = data<int64_t>(c->in[FIRST_OFFSET + i]);
        r.stride[i] = stride[d];
        r.most[i] = a[EXTENTS].ints[i] - x.dim[d];
        r.axis[i] = d;
    }
    *w = walk_none<2>();
    for (int d = 0; d < x.rank; d++)
        walk_axis(w, x.dim[d], {x.stride[d], stride[d]});
    r.stream = (unsigned)c->node->stream;
    r.fault = c->fault;
    r.at = c->step;
    return r;
}

/* The position of x's first element. */
__device__ static uint64_t first_position(const MaskSource &r)
{
    uint64_t first = 0;
    for (int i = 0; i < r.count; i++)
        first += (uint64_t)*r.offset[i] * (uint64_t)r.stride[i];
    return first;
}

__device__ static void check_offsets(const MaskSource &r)
{
    for (int i = 0; i < r.count; i++)
        if (*r.offset[i] < 0 || *r.offset[i] > r.most[i]) {
            note(r.fault, r.at, 0, *r.offset[i], r.axis[i], 0, r.most[i]);
            return;
        }
}

template <typename T, int N> struct alignas(N * sizeof(T)) Some {
    T x[N];
};

/* w walks N elements at a time; mask may be NULL. */
template <typename T, int N>
static __global__ void drop(const Some<T, N> *x, Some<T, N> *y, Some<uint8_t, N> *mask, WalkOf<2> w,
                            MaskSource r)
{
    int64_t i = thread_number(), at[2];
    if (i == 0)
        check_offsets(r);
    if (i >= w.nelem)
        return;
    walk_at(w, i, at);
    Some<T, N> own = x[at[0]];
    Some<uint8_t, N> kept;
    unsigned word[N];
    Stream s = {(unsigned long long)*r.seed, r.stream, (unsigned)*r.step};
    draw_some(s, first_position(r) + (uint64_t)at[1] * N, word);
    for (int k = 0; k < N; k++) {
        kept.x[k] = word_kept(word[k], r.least);
        own.x[k] = lane_dropout(own.x[k], word[k], r.least, r.scale);
    }
    y[i] = own;
    if (mask)
        mask[i] = kept;
}

static bool accepts(const Call *)
{
    return true;
}

template <typename T, int N> static int drop_some(Call *c, const WalkOf<2> &w, const MaskSource &r)
{
    typedef Some<T, N> S;
    S *x = (S *)(void *)c->in[0].data, *y = (S *)(void *)c->out[0].data;
    Some<uint8_t, N> *mask = c->nout == 2 ? (Some<uint8_t, N> *)(void *)c->out[1].data : NULL;
    return LAUNCH(c, (drop<T, N>), grid_for(w.nelem, THREADS), THREADS, 0, x, y, mask, w, r);
}

template <typename T> static int drop_dtype(Call *c)
{
    WalkOf<2> w;
    MaskSource r = draw_of(c, c->node->attr, &w);
    r.least = (unsigned)ceil(c->node->attr[P].f * 0x1p24);
    r.scale = 1 / (1 - c->node->attr[P].f);
    WalkOf<2> units = w;
    uint64_t common = (uint64_t)c->in[0].data | (uint64_t)c->out[0].data;
    if (c->nout == 2) /* of one byte for each element */
        common |= (uint64_t)c->out[1].data * sizeof(T);
    if (walk_units(&units, 2, sizeof(T), common) == 16)
        return drop_some<T, 16 / sizeof(T)>(c, units, r);
    return drop_some<T, 1>(c, w, r);
}

static int run(Call *c)
{
    BY_FLOAT(c->in[0].dtype, T, return drop_dtype<T>(c));
    return 0;
}

/* ---- uniform numbers ---- */

/* A thread has four elements of y. */
template <typename T> static __global__ void draw(T *y, WalkOf<2> w, MaskSource r)
{
    int64_t i = thread_number() * 4, at[2];
    if (i == 0)
        check_offsets(r);
    Stream s = {(unsigned long long)*r.seed, r.stream, (unsigned)*r.step};
    for (int k = 0; k < 4 && i + k < w.nelem; k++) {
        walk_at(w, i + k, at);
        unsigned word = draw_word(s, first_position(r) + (uint64_t)at[1]);
        y[i + k] = (T)((float)(word >> 8) * 0x1p-24f);
    }
}

static bool rand_accepts(const Call *c)
{
    return c->out[0].dtype == F32 || c->out[0].dtype == F64;
}

static int rand_run(Call *c)
{
    WalkOf<2> w;
    MaskSource r = draw_of(c, c->node->attr - 1, &w);
    unsigned grid = grid_for((w.nelem + 3) / 4, THREADS);
    if (c->out[0].dtype == F32)
        return LAUNCH(c, draw<float>, grid, THREADS, 0, data<float>(c->out[0]), w, r);
    return LAUNCH(c, draw<double>, grid, THREADS, 0, data<double>(c->out[0]), w, r);
}

CUDA_KERNELS(rand_like) = {
    {.name = "numbers", .accepts = rand_accepts, .run = rand_run, .faults = faults}, {}};
CUDA_KERNELS(dropout) = {{.name = "dropout", .accepts = accepts, .run = run, .faults = faults}, {}};
CUDA_KERNELS(native_dropout) = {
    {.name = "dropout", .accepts = accepts, .run = run, .faults = faults}, {}};
