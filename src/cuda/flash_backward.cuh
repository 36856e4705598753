/* The CUDA kernels of flash_attention_backward share this (flash_attention_backward.cu has the
 * method): their operands and delta; and kernel "plain", of any dtype, size and strides. */
#ifndef TENON_FLASH_BACKWARD_CUH
#define TENON_FLASH_BACKWARD_CUH

#include "flash_warps.cuh"

struct Gradient {
    Flash f;
    HeadTensor own[2], other[2], out[2];
    Stats lse, delta;
    Mask mask;
    const int64_t *starts; /* NULL: none */
    /* Kernels by warps read these: */
    BlockOrder order;
    int64_t parts; /* blocks to which a group's members are dealt */
    float *sums;   /* their dk and dv, where parts is not 1: [parts][2][batch][keys][heads][size] */
};

/* delta, [B, H, T], is the first of the workspace. */
static Stats delta_of(const Call *c)
{
    const int64_t *dim = c->in[LSE].dim;
    return {c->work, dim[1] * dim[2], dim[2], 1};
}

static Gradient gradient_of(const Call *c, bool keys)
{
    HeadTensor queries[] = {heads_of(c->in[Q]), heads_of(c->in[DO])};
    HeadTensor others[] = {heads_of(c->in[K]), heads_of(c->in[V])};
    Gradient x = {};
    x.f = flash_of(c->node, Q);
    for (int i = 0; i < 2; i++) {
        x.own[i] = keys ? others[i] : queries[i];
        x.other[i] = keys ? queries[i] : others[i];
        x.out[i] = heads_of(c->out[keys ? DK + i : DQ]);
    }
    x.lse = stats_of(c->in[LSE]);
    x.delta = delta_of(c);
    x.mask = mask_of(flash_mask(c, MASK));
    x.starts = starts_of(c, MASK);
    x.parts = 1;
    return x;
}

/* ---- delta ---- */

enum {
    DELTA_ROWS = 8,   /* of a block that has a warp for each */
    DELTA_FLIGHT = 4, /* rows of a thread, where they are pieces */
};

__host__ __device__ static int64_t nquery(const Flash &f)
{
    return f.batch * f.heads * f.queries;
}

/* A warp for each row of do and o. */
template <typename W> __global__ void make_delta(HeadTensor grad, HeadTensor o, Flash f, W *delta)
{
    int64_t i = (int64_t)blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    if (i >= f.batch * f.heads * f.queries)
        return;
    int64_t b = i / f.queries / f.heads, h = i / f.queries % f.heads, t = i % f.queries;
    int64_t at[] = {heads_at(grad, b, t, h), heads_at(o, b, t, h)};
    W sum = 0;
    for (int64_t e = threadIdx.x % 32; e < f.size; e += 32)
        sum = multiply_add(load<W>(grad.data, grad.dtype, at[0] + e * grad.element),
                           load<W>(o.data, o.dtype, at[1] + e * o.element), sum);
    for (int apart = 16; apart; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % 32 == 0)
        delta[i] = sum;
}

/* The same of bf16 in pieces, LANES of a warp for a row, a piece each. Blocks take rows as they lie
 * in memory, a thread several whose loads are in flight together. */
template <int LANES>
__global__ void __launch_bounds__(BLOCK)
    make_delta_pieces(HeadTensor grad, HeadTensor o, Flash f, float *delta)
{
    constexpr int ROWS = DELTA_FLIGHT, APART = BLOCK / LANES;
    int piece = threadIdx.x % LANES, n = (int)nquery(f), heads = (int)f.heads;
    int queries = (int)f.queries, first = blockIdx.x * ROWS * APART + threadIdx.x / LANES;
    uint4 x[ROWS] = {}, y[ROWS] = {};
    int64_t to[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int i = first + r * APART, row = i / heads, h = i % heads, b = row / queries;
        int t = row % queries;
        to[r] = ((int64_t)b * heads + h) * queries + t;
        if (i >= n || 8 * piece >= f.size)
            continue;
        int64_t at[] = {heads_at(grad, b, t, h) + 8 * piece, heads_at(o, b, t, h) + 8 * piece};
        x[r] = *(const uint4 *)(const void *)(grad.data + 2 * at[0]);
        y[r] = *(const uint4 *)(const void *)(o.data + 2 * at[1]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
        bf16 u[8], v[8];
        memcpy(u, &x[r], sizeof u);
        memcpy(v, &y[r], sizeof v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(wide(u[e]), wide(v[e]), sum);
#pragma unroll
        for (int apart = LANES / 2; apart; apart /= 2)
            sum += __shfl_xor_sync(~0u, sum, apart);
        if (piece == 0 && first + r * APART < n)
            delta[to[r]] = sum;
    }
}

template <int LANES>
static int run_delta_pieces(Call *c, const HeadTensor &grad, const HeadTensor &o, Flash f)
{
    constexpr int ROWS = DELTA_FLIGHT;
    unsigned grid = grid_for(nquery(f), ROWS * BLOCK / LANES);
    return LAUNCH(c, make_delta_pieces<LANES>, grid, BLOCK, 0, grad, o, f,
                  (float *)(void *)c->work);
}

static int run_delta(Call *c)
{
    Flash f = flash_of(c->node, Q);
    HeadTensor grad = heads_of(c->in[DO]), o = heads_of(c->in[O]);
    unsigned grid = grid_for(nquery(f), DELTA_ROWS), block = 32 * DELTA_ROWS;
    if (grad.dtype == F64)
        return LAUNCH(c, make_delta<double>, grid, block, 0, grad, o, f, (double *)(void *)c->work);
    if (grad.dtype == BF16 && grad.pieces && o.pieces && f.size <= 128 && nquery(f) < 1 << 30)
        return f.size <= 64 ? run_delta_pieces<8>(c, grad, o, f)
                            : run_delta_pieces<16>(c, grad, o, f);
    return LAUNCH(c, make_delta<float>, grid, block, 0, grad, o, f, (float *)(void *)c->work);
}

/* ---- plain ---- */

/* Own row i and other row j as a query and a key. */
struct QueryKey {
    int64_t query, key;
};

template <bool KEYS> __device__ static QueryKey pair_at(int64_t i, int64_t j)
{
    return KEYS ? QueryKey{j, i} : QueryKey{i, j};
}

/* Whether no own row of these and no other row of those, of row b, see each other. */
template <bool KEYS, int TILE>
__device__ static bool apart(const Gradient &x, int64_t b, int64_t own, int64_t other)
{
    QueryKey last = pair_at<KEYS>(own + TILE - 1, other + TILE - 1);
    QueryKey first = pair_at<KEYS>(own, other);
    return (x.f.causal && first.key > last.query + x.f.offset) ||
           start_at(x.starts, x.f, b, first.query) > last.key;
}

/* s = exp(scale s + mask - lse), 0 where the two do not see each other. */
template <typename W, int R, bool KEYS>
__device__ static void make_p(W (&s)[R][R], const Gradient &x, const HeadRows &own,
                              const HeadRows &other, int64_t head)
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) {
            QueryKey at = pair_at<KEYS>(own.first + threadIdx.x / SIDE * R + i,
                                        other.first + threadIdx.x % SIDE * R + j);
            W score = s[i][j] * (W)x.f.scale;
            s[i][j] = 0;
            if (!sees(x.f, at.query, at.key) || at.key < start_at(x.starts, x.f, own.b, at.query))
                continue;
            W lse = *stats_at<W>(x.lse, own.b, head, at.query);
            if (x.mask.data) {
                score = level_of(score + mask_at<W>(x.mask, own.b, head, at.query, at.key));
                score -= take_level(lse);
            }
            s[i][j] = exp(score - lse);
        }
}

/* dp = p (dp - delta) scale */
template <typename W, int R, bool KEYS>
__device__ static void make_ds(W (&dp)[R][R], const W (&p)[R][R], const Gradient &x,
                               const HeadRows &own, const HeadRows &other, int64_t head)
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) {
            QueryKey at = pair_at<KEYS>(own.first + threadIdx.x / SIDE * R + i,
                                        other.first + threadIdx.x % SIDE * R + j);
            W delta = at.query < x.f.queries ? *stats_at<W>(x.delta, own.b, head, at.query) : 0;
            dp[i][j] = p[i][j] * (dp[i][j] - delta) * (W)x.f.scale;
        }
}

template <typename W, int R, bool KEYS>
__global__ void __launch_bounds__(BLOCK) gradient_plain(Gradient x)
{
    constexpr int TILE = SIDE * R;
    __shared__ W xs[STEP][TILE + PAD], ys[STEP][TILE + PAD], turned[TILE][TILE + PAD];
    __shared__ W vs[STEP][COLUMNS + PAD];
    W p[R][R], ds[R][R], sum[1 + KEYS][R][EACH] = {}, one[R];
    int64_t nown = KEYS ? x.f.keys : x.f.queries, nother = KEYS ? x.f.queries : x.f.keys;
    int64_t members = KEYS ? x.f.group : 1;
    PlainPlace at = plain_place(nown, KEYS ? x.f.heads / x.f.group : x.f.heads, TILE);
    HeadRows own[2], other[2];
    for (int i = 0; i < 2; i++)
        own[i] = {x.own[i], at.b, at.h, at.first, nown, x.f.size};
    for (int64_t m = 0; m < members; m++) {
        int64_t head = KEYS ? at.h * members + m : at.h;
        for (int64_t first = 0; first < nother; first += TILE) {
            if (apart<KEYS, TILE>(x, at.b, at.first, first))
                continue;
            for (int i = 0; i < 2; i++)
                other[i] = {x.other[i], at.b,   KEYS ? head : head / x.f.group,
                            first,      nother, x.f.size};
            plain_scores<W, R>(p, own[0], other[0], xs, ys);
            make_p<W, R, KEYS>(p, x, own[0], other[0], head);
            plain_scores<W, R>(ds, own[1], other[1], xs, ys);
            make_ds<W, R, KEYS>(ds, p, x, own[0], other[0], head);
            if (KEYS) {
                put_turned<W, R>(turned, p);
                plain_values<W, R>(sum[KEYS], turned, other[1], at.column, vs);
                __syncthreads();
            }
            put_turned<W, R>(turned, ds);
            plain_values<W, R>(sum[0], turned, other[0], at.column, vs);
        }
    }
    for (int i = 0; i < R; i++)
        one[i] = 1;
    for (int i = 0; i <= KEYS; i++)
        plain_store(sum[i], one, {x.out[i], at.b, at.h, at.first, nown, x.f.size}, at.column);
}

template <typename W, int R> static int run_gradients(Call *c)
{
    Gradient x = gradient_of(c, false), y = gradient_of(c, true);
    const Flash *f = &x.f;
    int failed = LAUNCH(c, (gradient_plain<W, R, false>),
                        plain_grid(f->batch, f->queries, f->heads, f->size, SIDE * R), BLOCK, 0, x);
    return failed ? failed
                  : LAUNCH(c, (gradient_plain<W, R, true>),
                           plain_grid(f->batch, f->keys, f->heads / f->group, f->size, SIDE * R),
                           BLOCK, 0, y);
}

static const char *const starts_faults[] = {start_fault, NULL};

static bool accepts_plain(const Call *c)
{
    return starts_dense(c, MASK);
}

static int64_t workspace_plain(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return nquery(flash_of(c->node, Q)) * dtype_size(c->in[LSE].dtype);
}

static int run_plain(Call *c)
{
    if (run_check_starts(c, starts_of(c, MASK), flash_of(c->node, Q), 0) || run_delta(c))
        return -1;
    return c->in[Q].dtype == F64 ? run_gradients<double, 2>(c) : run_gradients<float, 4>(c);
}

#endif
