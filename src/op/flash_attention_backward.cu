/* flash_attention_backward on CUDA (flash_attention_backward.c has the formulas).
 *
 * Method: no sums by atomics. One kernel makes delta, rowsum(do o), for every query; then there are
 * two alike: tiles of queries walk the keys that they see and make dq; tiles of keys walk the
 * queries that see them, of all heads that share the key head, and make dk and dv. Both form the
 * scores and dp again: seven products in place of five, but no sum in device memory and no order
 * among blocks. Written for `own` rows, of the block's tile, and `other` rows, that it walks:
 *
 *   own         s = own[0] other[0]^T   dp = own[1] other[1]^T   results
 *   queries     q, k                    do, v                    dq = ds k
 *   keys        k, q                    v, do                    dk = ds q, dv = p do
 *
 * p = exp(s - lse) and ds, being by own rows, are left operands of the second products where they
 * lie in registers (flash.cuh). Where key heads are few, members of a group are dealt to several
 * blocks, whose dk and dv are added in order of the members by a fourth kernel.
 *
 * Kernels "warps" (bf16) and "plain" as in flash_attention.cu, with its numerics: of bf16 p and ds
 * are rounded to it. */
#include "flash.cuh"

struct Gradient {
    Flash f;
    Heads own[2], other[2], out[2];
    Stats lse, delta;
    Mask mask;
    /* Of warps: */
    Order order;
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
    Heads queries[] = {heads_of(c->in[Q]), heads_of(c->in[DO])};
    Heads others[] = {heads_of(c->in[K]), heads_of(c->in[V])};
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
    x.parts = 1;
    return x;
}

/* ---- delta ---- */

enum { DELTA_ROWS = 8 };

/* A warp for each row of do and o. */
template <typename W> __global__ void make_delta(Heads grad, Heads o, Flash f, W *delta)
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

static int64_t nquery(const Flash &f)
{
    return f.batch * f.heads * f.queries;
}

static int run_delta(Call *c)
{
    Flash f = flash_of(c->node, Q);
    Heads grad = heads_of(c->in[DO]), o = heads_of(c->in[O]);
    unsigned grid = grid_for(nquery(f), DELTA_ROWS), block = 32 * DELTA_ROWS;
    if (grad.dtype == F64)
        return LAUNCH(c, make_delta<double>, grid, block, 0, grad, o, f, (double *)(void *)c->work);
    return LAUNCH(c, make_delta<float>, grid, block, 0, grad, o, f, (float *)(void *)c->work);
}

/* ---- plain ---- */

/* Own row i and other row j as a query and a key. */
struct Pair {
    int64_t query, key;
};

template <bool KEYS> __device__ static Pair pair_at(int64_t i, int64_t j)
{
    return KEYS ? Pair{j, i} : Pair{i, j};
}

/* Whether no own row of these and no other row of those see each other. */
template <bool KEYS, int TILE>
__device__ static bool apart(const Flash &f, int64_t own, int64_t other)
{
    Pair p = KEYS ? Pair{other + TILE - 1, own} : Pair{own + TILE - 1, other};
    return f.causal && p.key > p.query + f.offset;
}

/* s = exp(scale s + mask - lse), 0 where the two do not see each other. */
template <typename W, int R, bool KEYS>
__device__ static void make_p(W (&s)[R][R], const Gradient &x, const Rows &own, const Rows &other,
                              int64_t head)
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) {
            Pair at = pair_at<KEYS>(own.first + threadIdx.x / SIDE * R + i,
                                    other.first + threadIdx.x % SIDE * R + j);
            W score = s[i][j] * (W)x.f.scale;
            s[i][j] = 0;
            if (!sees(x.f, at.query, at.key))
                continue;
            if (x.mask.data)
                score += mask_at<W>(x.mask, own.b, head, at.query, at.key);
            s[i][j] = exp(score - *stats_at<W>(x.lse, own.b, head, at.query));
        }
}

/* dp = p (dp - delta) scale */
template <typename W, int R, bool KEYS>
__device__ static void make_ds(W (&dp)[R][R], const W (&p)[R][R], const Gradient &x,
                               const Rows &own, const Rows &other, int64_t head)
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) {
            Pair at = pair_at<KEYS>(own.first + threadIdx.x / SIDE * R + i,
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
    Rows own[2], other[2];
    for (int i = 0; i < 2; i++)
        own[i] = {x.own[i], at.b, at.h, at.first, nown, x.f.size};
    for (int64_t m = 0; m < members; m++) {
        int64_t head = KEYS ? at.h * members + m : at.h;
        for (int64_t first = 0; first < nother; first += TILE) {
            if (apart<KEYS, TILE>(x.f, at.first, first))
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

static bool accepts_plain(const Call *c)
{
    (void)c;
    return true;
}

static int64_t workspace_plain(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return nquery(flash_of(c->node, Q)) * dtype_size(c->in[LSE].dtype);
}

static int run_plain(Call *c)
{
    if (run_delta(c))
        return -1;
    return c->in[Q].dtype == F64 ? run_gradients<double, 2>(c) : run_gradients<float, 4>(c);
}

/* ---- warps ---- */

/* Tiles by the size of a head and whether own rows are keys, such that sums and scores fit the
 * registers and two blocks a multiprocessor: 16 MB own rows for each warp, OTHER other rows. */
template <int D, bool KEYS> struct Shape;
template <> struct Shape<64, false> {
    enum { MB = 2, OTHER = 64 };
};
template <> struct Shape<64, true> {
    enum { MB = 2, OTHER = 32 };
};
template <> struct Shape<128, false> {
    enum { MB = 2, OTHER = 32 };
};
template <> struct Shape<128, true> {
    enum { MB = 1, OTHER = 64 };
};

/* Shared memory: two tiles of own rows; twice two of other rows, then lse and delta of these where
 * they are queries. */
template <int D, bool KEYS> struct Room {
    enum {
        MB = Shape<D, KEYS>::MB,
        NB = Shape<D, KEYS>::OTHER / 8,
        OWN = 16 * MB * WARPS,
        OTHER = 8 * NB,
        OWN_BYTES = OWN * D * 2,
        OTHER_BYTES = OTHER * D * 2,
        STATS_BYTES = KEYS ? OTHER * 4 : 0,
        STAGE_BYTES = 2 * OTHER_BYTES + 2 * STATS_BYTES,
        BYTES = 2 * OWN_BYTES + 2 * STAGE_BYTES,
    };
};

/* What a block walks: `count` tiles for each of some members, tile by tile. */
struct Walk {
    int64_t b, own_head, head; /* head: the first member's */
    int first, count, total;   /* first: of the first tile; total: over all members */
};

template <int D, bool KEYS>
__device__ static Walk walk_of(const Gradient &x, int64_t own, int64_t at)
{
    enum { OWN = Room<D, KEYS>::OWN, OTHER = Room<D, KEYS>::OTHER };
    int64_t members = KEYS ? x.f.group / x.parts : 1, here = at / x.parts;
    int64_t nhead = KEYS ? x.f.heads / x.f.group : x.f.heads;
    int64_t end = KEYS ? x.f.queries : x.f.keys, first = 0;
    if (x.f.causal && KEYS && own > x.f.offset)
        first = (own - x.f.offset) / OTHER * OTHER;
    if (x.f.causal && !KEYS && own + OWN + x.f.offset < end)
        end = own + OWN + x.f.offset;
    Walk w = {here / nhead, here % nhead, here % nhead};
    if (KEYS)
        w.head = w.own_head * x.f.group + at % x.parts * members;
    w.first = (int)first;
    w.count = first < end ? (int)((end - first + OTHER - 1) / OTHER) : 0;
    w.total = w.count * (int)members;
    return w;
}

/* The other rows of step i of the walk into a stage. */
template <int D, bool KEYS>
__device__ static void load_stage(char *stage, const Gradient &x, const Walk &w, int i)
{
    typedef Room<D, KEYS> Room;
    int64_t head = w.head + i / w.count, n = KEYS ? x.f.queries : x.f.keys;
    Rows y = {
        x.other[0], w.b,     KEYS ? head : head / x.f.group, w.first + i % w.count * Room::OTHER,
        n,          x.f.size};
    load_tile<Room::OTHER, D>(stage, y);
    y.x = x.other[1];
    load_tile<Room::OTHER, D>(stage + Room::OTHER_BYTES, y);
    if (KEYS && threadIdx.x < 2 * Room::OTHER) {
        const Stats &s = threadIdx.x < Room::OTHER ? x.lse : x.delta;
        int64_t row = y.first + threadIdx.x % Room::OTHER;
        bool there = row < n;
        const float *from = stats_at<float>(s, w.b, head, there ? row : 0);
        copy4(stage + 2 * Room::OTHER_BYTES + 4 * threadIdx.x, (const char *)from, there);
    }
}

/* What a lane has of lse (times log2 e) and delta: of its own rows, or of other rows, its columns.
 */
template <int D, bool KEYS> struct Lane {
    enum { N = KEYS ? 2 * Room<D, KEYS>::NB : 2 * Room<D, KEYS>::MB };
    float lse[N], delta[N];
};

template <int D, bool KEYS>
__device__ static void load_own_stats(Lane<D, KEYS> &y, const Gradient &x, const Walk &w,
                                      int64_t row)
{
#pragma unroll
    for (int i = 0; i < Lane<D, KEYS>::N; i++) {
        int64_t query = row + 8 * i + lane_number() / 4;
        bool there = query < x.f.queries;
        y.lse[i] = there ? *stats_at<float>(x.lse, w.b, w.head, query) * (float)M_LOG2E : 0;
        y.delta[i] = there ? *stats_at<float>(x.delta, w.b, w.head, query) : 0;
    }
}

template <int D, bool KEYS>
__device__ static void load_other_stats(float (&y)[2 * Room<D, KEYS>::NB], const char *from)
{
#pragma unroll
    for (int n = 0; n < Room<D, KEYS>::NB; n++)
        memcpy(&y[2 * n], from + 4 * (8 * n + lane_number() % 4 * 2), 8);
}

/* -inf where a query does not see a key: own rows from `own` on are the warp's. */
template <bool KEYS, int MB, int NB>
__device__ static void hide(float (&s)[MB][NB][4], const Flash &f, int own, int other)
{
    int g = lane_number() / 4, t = lane_number() % 4;
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = own + 16 * m + 8 * half + g, keys = (int)f.keys;
            /* From where on columns are hidden, or up to where. */
            int edge = KEYS ? row - (int)f.offset : f.causal ? row + (int)f.offset + 1 : keys;
            edge = (!KEYS && keys < edge ? keys : edge) - other - 2 * t;
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (KEYS ? 8 * n + e < edge : 8 * n + e >= edge)
                        s[m][n][2 * half + e] = -INFINITY;
        }
}

/* Whether rows of these two tiles may not see each other. */
template <int D, bool KEYS> __device__ static bool hides(const Flash &f, int64_t own, int64_t other)
{
    typedef Room<D, KEYS> Room;
    if (KEYS)
        return f.causal && own + Room::OWN - 1 > other + f.offset;
    return other + Room::OTHER > f.keys || (f.causal && other + Room::OTHER - 1 > own + f.offset);
}

/* One step: sum[0] += ds other[0], of keys also sum[1] += p other[1], but for the scale. */
template <int D, bool KEYS>
__device__ static void step(float (&sum)[1 + KEYS][Room<D, KEYS>::MB][D / 8][4], const Gradient &x,
                            char *const (&own)[2], const char *stage, Lane<D, KEYS> &lane,
                            int64_t own_first, int64_t other_first)
{
    typedef Room<D, KEYS> Room;
    enum { MB = Room::MB, NB = Room::NB, OTHER = Room::OTHER };
    int row = threadIdx.x / 32 * 16 * MB;
    float p[MB][NB][4], ds[MB][NB][4], scale = (float)(x.f.scale * M_LOG2E);
    const char *stats = stage + 2 * Room::OTHER_BYTES;
    multiply_scores<D, OTHER>(p, stage, [&](uint32_t(&a)[4], int m, int k) {
        load_left<Room::OWN>(a, own[0], row + 16 * m, k);
    });
    if (hides<D, KEYS>(x.f, own_first, other_first))
        hide<KEYS>(p, x.f, (int)own_first + row, (int)other_first);
    if constexpr (KEYS)
        load_other_stats<D, KEYS>(lane.lse, stats);
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float lse =
                    KEYS ? lane.lse[2 * n + e % 2] * (float)M_LOG2E : lane.lse[2 * m + e / 2];
                p[m][n][e] = exp2_fast(fmaf(p[m][n][e], scale, -lse));
            }
    if constexpr (KEYS)
        multiply_values<D, OTHER>(sum[1], p, stage + Room::OTHER_BYTES);
    multiply_scores<D, OTHER>(ds, stage + Room::OTHER_BYTES, [&](uint32_t(&a)[4], int m, int k) {
        load_left<Room::OWN>(a, own[1], row + 16 * m, k);
    });
    if constexpr (KEYS)
        load_other_stats<D, KEYS>(lane.delta, stats + Room::STATS_BYTES);
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[m][n][e] =
                    p[m][n][e] * (ds[m][n][e] - lane.delta[KEYS ? 2 * n + e % 2 : 2 * m + e / 2]);
    multiply_values<D, OTHER>(sum[0], ds, stage);
}

/* The warp's rows of a sum as f32 where blocks share a result. */
template <int D, int MB>
__device__ static void store_part(const float (&sum)[MB][D / 8][4], float scale, float *to,
                                  const Rows &y, int64_t nhead, int row)
{
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t i = y.first + row + 16 * m + 8 * half + lane_number() / 4;
            float *at = to + ((y.b * y.n + i) * nhead + y.h) * y.size;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int column = 8 * d + lane_number() % 4 * 2 + e;
                    if (i < y.n && column < y.size)
                        at[column] = sum[m][d][2 * half + e] * scale;
                }
        }
}

template <int D, bool KEYS>
__device__ static void put_sums(const Gradient &x,
                                const float (&sum)[1 + KEYS][Room<D, KEYS>::MB][D / 8][4],
                                char *const (&tile)[2], Rows y, int64_t part)
{
    enum { MB = Room<D, KEYS>::MB, OWN = Room<D, KEYS>::OWN };
    int row = threadIdx.x / 32 * 16 * MB;
    int64_t nhead = x.f.heads / x.f.group, nelem = x.f.batch * x.f.keys * nhead * x.f.size;
#pragma unroll
    for (int i = 0; i <= KEYS; i++) {
        float factor = i ? 1.0f : (float)x.f.scale, scale[MB][2];
#pragma unroll
        for (int m = 0; m < 2 * MB; m++)
            scale[m / 2][m % 2] = factor;
        y.x = x.out[i];
        if (x.parts == 1)
            store_rows<D, OWN, MB>(sum[i], scale, tile[i], row, y);
        else if (KEYS)
            store_part<D, MB>(sum[i], factor, x.sums + (2 * part + i) * nelem, y, nhead, row);
    }
}

template <int D, bool KEYS>
__global__ void __launch_bounds__(WARP_BLOCK, 2) gradient_warps(Gradient x)
{
    typedef Room<D, KEYS> Room;
    DYNAMIC_SHARED(shared);
    char *const own[2] = {shared, shared + Room::OWN_BYTES}, *stages = shared + 2 * Room::OWN_BYTES;
    Task task = task_of(x.order);
    int64_t tile = KEYS ? task.tile : x.order.ntile - 1 - task.tile, first = tile * Room::OWN;
    Walk w = walk_of<D, KEYS>(x, first, task.head);
    Rows y = {x.own[0], w.b, w.own_head, first, KEYS ? x.f.keys : x.f.queries, x.f.size};
    float sum[1 + KEYS][Room::MB][D / 8][4] = {};
    Lane<D, KEYS> lane;
    load_tile<Room::OWN, D>(own[0], y);
    y.x = x.own[1];
    load_tile<Room::OWN, D>(own[1], y);
    if (w.total)
        load_stage<D, KEYS>(stages, x, w, 0);
    if constexpr (!KEYS)
        load_own_stats<D, KEYS>(lane, x, w, first + threadIdx.x / 32 * 16 * Room::MB);
    for (int i = 0; i < w.total; i++) {
        copies_wait();
        __syncthreads();
        if (i + 1 < w.total)
            load_stage<D, KEYS>(stages + (i + 1) % 2 * Room::STAGE_BYTES, x, w, i + 1);
        step<D, KEYS>(sum, x, own, stages + i % 2 * Room::STAGE_BYTES, lane, first,
                      w.first + i % w.count * Room::OTHER);
    }
    copies_wait();
    __syncthreads();
    put_sums<D, KEYS>(x, sum, own, y, task.head % x.parts);
}

/* dk and dv from the sums of `parts` blocks, in order. */
__global__ void add_parts(Gradient x, int64_t nelem)
{
    int64_t i = thread_number(), size = x.f.size, nhead = x.f.heads / x.f.group;
    if (i >= 2 * nelem)
        return;
    float sum = 0;
    for (int64_t part = 0; part < x.parts; part++)
        sum += x.sums[2 * part * nelem + i];
    const Heads &y = x.out[i / nelem];
    i %= nelem;
    int64_t row = i / size / nhead;
    int64_t at = heads_at(y, row / x.f.keys, row % x.f.keys, i / size % nhead);
    store<float>(y.data, y.dtype, at + i % size * y.element, sum);
}

static bool accepts_warps(const Call *c)
{
    return warps_accept(c, Q) && c->nin == MASK;
}

static int tile_of(const Flash &f, bool keys)
{
    if (f.size <= 64)
        return keys ? (int)Room<64, true>::OWN : (int)Room<64, false>::OWN;
    return keys ? (int)Room<128, true>::OWN : (int)Room<128, false>::OWN;
}

static int64_t ntile_of(const Flash &f, bool keys)
{
    int tile = tile_of(f, keys);
    return ((keys ? f.keys : f.queries) + tile - 1) / tile;
}

/* So many that there are some blocks for each place on a large device. */
static int64_t parts_of(const Flash &f)
{
    enum { BLOCKS = 1024 };
    int64_t blocks = f.batch * f.heads / f.group * ntile_of(f, true), parts = 1;
    while (blocks && parts < f.group && blocks * parts < BLOCKS)
        for (parts++; f.group % parts;)
            parts++;
    return parts;
}

/* Bytes of delta, before what else is in the workspace. */
static int64_t delta_bytes(const Flash &f)
{
    return (nquery(f) * 4 + 63) / 64 * 64;
}

static int64_t nelem_keys(const Flash &f)
{
    return f.batch * f.keys * (f.heads / f.group) * f.size;
}

static int64_t workspace_warps(Ctx *ctx, const Call *c)
{
    (void)ctx;
    Flash f = flash_of(c->node, Q);
    int64_t parts = parts_of(f);
    return delta_bytes(f) + (parts == 1 ? 0 : parts * 2 * nelem_keys(f) * 4);
}

static void prepare_warps(Call *c, Arena *a)
{
    (void)c;
    (void)a;
    allow_shared(gradient_warps<64, false>, Room<64, false>::BYTES);
    allow_shared(gradient_warps<64, true>, Room<64, true>::BYTES);
    allow_shared(gradient_warps<128, false>, Room<128, false>::BYTES);
    allow_shared(gradient_warps<128, true>, Room<128, true>::BYTES);
}

template <bool KEYS> static int run_side(Call *c)
{
    Gradient x = gradient_of(c, KEYS);
    const Flash &f = x.f;
    x.parts = KEYS ? parts_of(f) : 1;
    x.sums = (float *)(void *)(c->work + delta_bytes(f));
    int64_t nhead = KEYS ? f.batch * f.heads / f.group * x.parts : f.batch * f.heads;
    int64_t each = KEYS ? f.queries * f.group / x.parts : f.keys / f.group;
    x.order = order_of(nhead, ntile_of(f, KEYS), 4 * each * f.size);
    unsigned grid = (unsigned)(nhead * x.order.ntile);
    int failed =
        f.size <= 64
            ? LAUNCH(c, (gradient_warps<64, KEYS>), grid, WARP_BLOCK, (Room<64, KEYS>::BYTES), x)
            : LAUNCH(c, (gradient_warps<128, KEYS>), grid, WARP_BLOCK, (Room<128, KEYS>::BYTES), x);
    if (failed || x.parts == 1)
        return failed;
    int64_t nelem = nelem_keys(f);
    return LAUNCH(c, add_parts, grid_for(2 * nelem, BLOCK), BLOCK, 0, x, nelem);
}

static int run_warps(Call *c)
{
    return run_delta(c) || run_side<false>(c) || run_side<true>(c) ? -1 : 0;
}

CUDA_KERNELS(flash_attention_backward) = {{.name = "warps",
                                           .accepts = accepts_warps,
                                           .workspace = workspace_warps,
                                           .prepare = prepare_warps,
                                           .run = run_warps,
                                           .strided_out = true},
                                          {.name = "plain",
                                           .accepts = accepts_plain,
                                           .workspace = workspace_plain,
                                           .run = run_plain,
                                           .strided_out = true},
                                          {}};
