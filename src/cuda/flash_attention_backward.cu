/* flash_attention_backward on CUDA (flash_attention_backward.c has the formulas).
 *
 * Method: no sums by atomics. One kernel makes delta, rowsum(do o), for every query; then there are
 * two alike: tiles of queries walk the keys that they see and make dq; tiles of keys walk the
 * queries that see them, of all heads that share the key head, and make dk and dv. Both form the
 * scores and dp again: seven products in place of five, but no two blocks add to one element.
 * Written for `own` rows, of the block's tile, and `other` rows, that it walks:
 *
 *   own         s = own[0] other[0]^T   dp = own[1] other[1]^T   results
 *   queries     q, k                    do, v                    dq = ds k
 *   keys        k, q                    v, do                    dk = ds q, dv = p do
 *
 * p = exp(s - lse) and ds, being by own rows, are left operands of the second products where they
 * lie in registers (flash_warps.cuh). Where key heads are few, members of a group are dealt to
 * several blocks, whose dk and dv are added in order of the members by a fourth kernel.
 *
 * Kernels "groups" and "warps" (bf16), here, and "plain", in flash_backward.cuh, as in
 * flash_attention.cu, with its numerics: of bf16 p and ds are rounded to it. */
#include "flash_backward.cuh"

/* ---- warps ---- */

/* Own rows of a warp by 16 and other rows of a step by 8, such that sums and scores fit the
 * registers of `blocks` blocks a multiprocessor. */
struct WarpShape {
    int mb, nb, blocks;
};

template <int D, bool KEYS, bool GROUPS> __host__ __device__ constexpr WarpShape shape_of()
{
    if (GROUPS)
        return {1, 8, D == 64 ? 2 : 1};
    if (D == 64)
        return {2, KEYS ? 4 : 8, 2};
    return {KEYS ? 1 : 2, KEYS ? 8 : 4, 2};
}

/* When the product dp is begun: with that of the scores, when these are there, when p is used. */
enum DpWhen { WITH_SCORES, AFTER_SCORES, AFTER_P };

/* A block, and its shared memory: two tiles of own rows; for every stage two of other rows, then
 * lse and delta of these where they are queries. A group leaves the last products of a step to the
 * next one and so reads a stage while one is used and one is filled. Two blocks of one group, that
 * do not wait for each other, are faster than one of two where registers are enough for no more. */
template <int D_, bool KEYS_, bool GROUPS> struct GradientBlock {
    static constexpr int D = D_, WARPS = GROUPS && !(D == 64 && KEYS_) ? 8 : 4;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr bool AHEAD = GROUPS; /* leaves products to the next step */
    static constexpr int STAGES = AHEAD ? 3 : 2;
    static constexpr bool KEYS = KEYS_;
    /* Registers must be enough for the products in flight. */
    static constexpr DpWhen DP = !GROUPS              ? AFTER_P
                                 : (D == 64) == KEYS_ ? WITH_SCORES
                                                      : AFTER_SCORES;
    static constexpr WarpShape SHAPE = shape_of<D, KEYS, GROUPS>();
    static constexpr int MB = SHAPE.mb, NB = SHAPE.nb, OWN = 16 * MB * WARPS, OTHER = 8 * NB;
    static constexpr int OWN_BYTES = OWN * D * 2, OTHER_BYTES = OTHER * D * 2;
    static constexpr int STATS_BYTES = KEYS ? OTHER * 4 : 0, STAGE_BYTES = 2 * OTHER_BYTES;
    static constexpr int STATS = 2 * OWN_BYTES + STAGES * STAGE_BYTES; /* where they lie */
    static constexpr int BYTES = STATS + STAGES * 2 * STATS_BYTES + TILE_ALIGN;
    /* lse and delta that a lane has: of its own rows, or of other rows, its columns. */
    static constexpr int NSTAT = KEYS ? 2 * NB : 2 * MB;
};

/* The tiles that a block walks: `count` for each of some members, tile by tile. */
struct TileWalk {
    int64_t b, own_head, head; /* head: the first member's */
    int first, count, total;   /* first: of the first tile; total: over all members */
};

template <typename GradientBlock>
__device__ static TileWalk walk_of(const Gradient &x, int64_t own, int64_t at)
{
    constexpr int OWN = GradientBlock::OWN, OTHER = GradientBlock::OTHER;
    constexpr bool KEYS = GradientBlock::KEYS;
    int64_t members = KEYS ? x.f.group / x.parts : 1, here = at / x.parts;
    int64_t nhead = KEYS ? x.f.heads / x.f.group : x.f.heads;
    int64_t end = KEYS ? x.f.queries : x.f.keys, first = 0;
    if (x.f.causal && KEYS && own > x.f.offset)
        first = (own - x.f.offset) / OTHER * OTHER;
    if (x.f.causal && !KEYS && own + OWN + x.f.offset < end)
        end = own + OWN + x.f.offset;
    TileWalk w = {here / nhead, here % nhead, here % nhead};
    if (KEYS)
        w.head = w.own_head * x.f.group + at % x.parts * members;
    w.first = (int)first;
    w.count = first < end ? (int)((end - first + OTHER - 1) / OTHER) : 0;
    w.total = w.count * (int)members;
    return w;
}

/* The other rows from `first` on of a member into a stage. */
template <typename GradientBlock>
__device__ static void load_stage(char *stage, char *stats, const Gradient &x, const TileWalk &w,
                                  int member, int first)
{
    constexpr bool KEYS = GradientBlock::KEYS;
    constexpr int OTHER = GradientBlock::OTHER;
    int64_t head = w.head + member, n = KEYS ? x.f.queries : x.f.keys;
    HeadRows y = {x.other[0], w.b, KEYS ? head : head / x.f.group, first, n, x.f.size};
    load_tile<OTHER, GradientBlock::D, GradientBlock::THREADS>(stage, y);
    y.x = x.other[1];
    load_tile<OTHER, GradientBlock::D, GradientBlock::THREADS>(stage + GradientBlock::OTHER_BYTES,
                                                               y);
    if (KEYS && threadIdx.x < 2 * OTHER) {
        const Stats &s = threadIdx.x < OTHER ? x.lse : x.delta;
        int64_t row = y.first + threadIdx.x % OTHER;
        bool there = row < n;
        const float *from = stats_at<float>(s, w.b, head, there ? row : 0);
        copy4(stats + 4 * threadIdx.x, (const char *)from, there);
    }
}

/* lse, times log2 e, and delta of the lane's own rows, `row` on, which are queries. */
template <int N>
__device__ static void load_own_stats(float (&lse)[N], float (&delta)[N], const Gradient &x,
                                      const TileWalk &w, int64_t row)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t query = row + 8 * i + lane_number() / 4;
        bool there = query < x.f.queries;
        lse[i] = there ? *stats_at<float>(x.lse, w.b, w.head, query) * (float)M_LOG2E : 0;
        delta[i] = there ? *stats_at<float>(x.delta, w.b, w.head, query) : 0;
    }
}

/* Those of the lane's columns, from shared memory. */
template <int N> __device__ static void load_other_stats(float (&y)[N], const char *from)
{
#pragma unroll
    for (int n = 0; n < N; n += 2)
        memcpy(&y[n], __builtin_assume_aligned(from + 4 * (4 * n + lane_number() % 4 * 2), 8), 8);
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
template <typename GradientBlock>
__device__ static bool hides(const Flash &f, int64_t own, int64_t other)
{
    if (GradientBlock::KEYS)
        return f.causal && own + GradientBlock::OWN - 1 > other + f.offset;
    return other + GradientBlock::OTHER > f.keys ||
           (f.causal && other + GradientBlock::OTHER - 1 > own + f.offset);
}

/* p from scores; lse times log2 e, of columns (KEYS) without. */
template <bool KEYS, int MB, int NB, int N>
__device__ static void make_p(float (&p)[MB][NB][4], const float (&lse)[N], float scale)
{
#pragma unroll
    for (int i = 0; i < 4 * MB * NB; i++) {
        int m = i / 4 / NB, n = i / 4 % NB, e = i % 4;
        float base = KEYS ? lse[2 * n + e % 2] * (float)M_LOG2E : lse[2 * m + e / 2];
        p[m][n][e] = exp2_fast(fmaf(p[m][n][e], scale, -base));
    }
}

/* dp = p (dp - delta) */
template <bool KEYS, int MB, int NB, int N>
__device__ static void make_ds(float (&dp)[MB][NB][4], const float (&p)[MB][NB][4],
                               const float (&delta)[N])
{
#pragma unroll
    for (int i = 0; i < 4 * MB * NB; i++) {
        int m = i / 4 / NB, n = i / 4 % NB, e = i % 4;
        dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - delta[KEYS ? 2 * n + e % 2 : 2 * m + e / 2]);
    }
}

/* dp by own rows, before the scale; asynchronous where products are a group's. */
template <typename GradientBlock>
__device__ static void start_dp(float (&dp)[GradientBlock::MB][GradientBlock::NB][4],
                                const char *own, const char *other)
{
    constexpr int MB = GradientBlock::MB;
    uint32_t none[1][MB][4];
    group_begin<MB>();
    multiply_scores<GradientBlock::D, GradientBlock::OWN, GradientBlock::OTHER>(
        dp, own + GradientBlock::OWN_BYTES, threadIdx.x / 32 * 16 * MB, none, other);
    group_commit<MB>();
}

/* One step: sum[0] += ds other[0], of keys also sum[1] += p other[1], but for the scale. Products
 * of groups go on beside what does not need them, those into sums until the next step's scores. */
template <typename GradientBlock>
__device__ static void
step(float (&sum)[1 + GradientBlock::KEYS][GradientBlock::MB][GradientBlock::D / 8][4],
     const Gradient &x, float scale, const char *own, const char *stage, const char *stats,
     float (&lse)[GradientBlock::NSTAT], float (&delta)[GradientBlock::NSTAT], int64_t own_first,
     int64_t other_first)
{
    constexpr int D = GradientBlock::D, MB = GradientBlock::MB, NB = GradientBlock::NB,
                  OWN = GradientBlock::OWN, OTHER = GradientBlock::OTHER;
    constexpr bool KEYS = GradientBlock::KEYS;
    int row = threadIdx.x / 32 * 16 * MB;
    float p[MB][NB][4], ds[MB][NB][4];
    uint32_t left[NB / 2][MB][4], none[1][MB][4], right[NB / 2][MB][4];
    const char *other[] = {stage, stage + GradientBlock::OTHER_BYTES};
    group_begin<MB>();
    multiply_scores<D, OWN, OTHER>(p, own, row, none, other[0]);
    group_commit<MB>();
    if (GradientBlock::DP == WITH_SCORES)
        start_dp<GradientBlock>(ds, own, other[1]);
    group_wait<MB, GradientBlock::DP == WITH_SCORES>();
    group_settle(p);
    if (GradientBlock::DP == AFTER_SCORES)
        start_dp<GradientBlock>(ds, own, other[1]);
    turn_scores(p, x.f);
    if (hides<GradientBlock>(x.f, own_first, other_first))
        hide<KEYS>(p, x.f, (int)own_first + row, (int)other_first);
    if (KEYS)
        load_other_stats(lse, stats);
    make_p<KEYS>(p, lse, scale);
    if constexpr (KEYS) {
        make_left(left, p);
        group_begin<MB>();
        multiply_values<D, OTHER>(sum[1], left, other[1]);
        group_commit<MB>();
    }
    if (GradientBlock::DP == AFTER_P)
        start_dp<GradientBlock>(ds, own, other[1]);
    group_wait<MB, GradientBlock::DP != AFTER_P && KEYS>();
    group_settle(ds);
    if (KEYS)
        load_other_stats(delta, stats + GradientBlock::STATS_BYTES);
    make_ds<KEYS>(ds, p, delta);
    make_left(right, ds);
    group_begin<MB>();
    multiply_values<D, OTHER>(sum[0], right, other[0]);
    group_commit<MB>();
    if (!GradientBlock::AHEAD)
        group_wait<MB, 0>();
}

/* All steps of a walk that has some; own rows are in flight. */
template <typename GradientBlock>
__device__ static void
walk(float (&sum)[1 + GradientBlock::KEYS][GradientBlock::MB][GradientBlock::D / 8][4],
     const Gradient &x, const TileWalk &w, char *own, float (&lse)[GradientBlock::NSTAT],
     float (&delta)[GradientBlock::NSTAT], int64_t own_first)
{
    char *stage = own + 2 * GradientBlock::OWN_BYTES, *stats = own + GradientBlock::STATS;
    int at = 0, first = w.first, end = first + w.count * GradientBlock::OTHER, member = 0;
    float scale = (float)(x.f.above * M_LOG2E);
    load_stage<GradientBlock>(stage, stats, x, w, 0, first);
    for (int i = w.total; i > 0; i--) {
        int next = at + 1 < GradientBlock::STAGES ? at + 1 : 0, here = first;
        copies_wait();
        group_publish<GradientBlock::MB>();
        __syncthreads();
        first += GradientBlock::OTHER;
        if (first == end) {
            first = w.first;
            member++;
        }
        if (i > 1)
            load_stage<GradientBlock>(stage + next * GradientBlock::STAGE_BYTES,
                                      stats + next * 2 * GradientBlock::STATS_BYTES, x, w, member,
                                      first);
        step<GradientBlock>(sum, x, scale, own, stage + at * GradientBlock::STAGE_BYTES,
                            stats + at * 2 * GradientBlock::STATS_BYTES, lse, delta, own_first,
                            here);
        at = next;
    }
    group_wait<GradientBlock::MB, 0>();
#pragma unroll
    for (int i = 0; i <= GradientBlock::KEYS; i++)
        group_settle(sum[i]);
}

/* The warp's rows of a sum as f32 where blocks share a result. */
template <int D, int MB>
__device__ static void store_part(const float (&sum)[MB][D / 8][4], float scale, float *to,
                                  const HeadRows &y, int64_t nhead, int row)
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

template <typename GradientBlock>
__device__ static void
put_sums(const Gradient &x,
         const float (&sum)[1 + GradientBlock::KEYS][GradientBlock::MB][GradientBlock::D / 8][4],
         char *tiles, HeadRows y, int64_t part)
{
    constexpr int D = GradientBlock::D, MB = GradientBlock::MB;
    int row = threadIdx.x / 32 * 16 * MB;
    int64_t nhead = x.f.heads / x.f.group, nelem = x.f.batch * x.f.keys * nhead * x.f.size;
#pragma unroll
    for (int i = 0; i <= GradientBlock::KEYS; i++) {
        float factor = i ? 1.0f : (float)x.f.scale, scale[MB][2];
#pragma unroll
        for (int m = 0; m < 2 * MB; m++)
            scale[m / 2][m % 2] = factor;
        y.x = x.out[i];
        if (x.parts == 1)
            store_rows<D, GradientBlock::OWN, MB>(sum[i], scale,
                                                  tiles + i * GradientBlock::OWN_BYTES, row, y);
        else if (GradientBlock::KEYS)
            store_part<D, MB>(sum[i], factor, x.sums + (2 * part + i) * nelem, y, nhead, row);
    }
}

template <typename GradientBlock>
__global__ void __launch_bounds__(GradientBlock::THREADS, GradientBlock::SHAPE.blocks)
    gradient_warps(Gradient x)
{
    DYNAMIC_SHARED(shared);
    char *own = tiles_from(shared);
    Task task = task_of(x.order);
    int64_t tile = GradientBlock::KEYS ? task.tile : x.order.ntile - 1 - task.tile,
            first = tile * GradientBlock::OWN;
    TileWalk w = walk_of<GradientBlock>(x, first, task.head);
    HeadRows y = {x.own[0], w.b, w.own_head, first, GradientBlock::KEYS ? x.f.keys : x.f.queries,
                  x.f.size};
    float sum[1 + GradientBlock::KEYS][GradientBlock::MB][GradientBlock::D / 8]
             [4] = {},
           lse[GradientBlock::NSTAT], delta[GradientBlock::NSTAT];
    load_tile<GradientBlock::OWN, GradientBlock::D, GradientBlock::THREADS>(own, y);
    y.x = x.own[1];
    load_tile<GradientBlock::OWN, GradientBlock::D, GradientBlock::THREADS>(
        own + GradientBlock::OWN_BYTES, y);
    if (!GradientBlock::KEYS)
        load_own_stats(lse, delta, x, w, first + threadIdx.x / 32 * 16 * GradientBlock::MB);
    if (w.total > 0)
        walk<GradientBlock>(sum, x, w, own, lse, delta, first);
    copies_wait();
    __syncthreads();
    put_sums<GradientBlock>(x, sum, own, y, task.head % x.parts);
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
    const HeadTensor &y = x.out[i / nelem];
    i %= nelem;
    int64_t row = i / size / nhead;
    int64_t at = heads_at(y, row / x.f.keys, row % x.f.keys, i / size % nhead);
    store<float>(y.data, y.dtype, at + i % size * y.element, sum);
}

static bool accepts_warps(const Call *c)
{
    return warps_accept(c, Q) && c->nin == MASK;
}

/* So many that there are some blocks for each place on a large device; more would only add sums. */
static int64_t parts_of(const Flash &f)
{
    enum { BLOCKS = 512, TILE = 128 };
    int64_t blocks = f.batch * (f.heads / f.group) * ((f.keys + TILE - 1) / TILE), parts = 1;
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

template <bool GROUPS> static void allow()
{
    allow_shared(gradient_warps<GradientBlock<64, false, GROUPS>>,
                 GradientBlock<64, false, GROUPS>::BYTES);
    allow_shared(gradient_warps<GradientBlock<64, true, GROUPS>>,
                 GradientBlock<64, true, GROUPS>::BYTES);
    allow_shared(gradient_warps<GradientBlock<128, false, GROUPS>>,
                 GradientBlock<128, false, GROUPS>::BYTES);
    allow_shared(gradient_warps<GradientBlock<128, true, GROUPS>>,
                 GradientBlock<128, true, GROUPS>::BYTES);
}

static void prepare_warps(Call *c, Arena *a)
{
    (void)c;
    (void)a;
    allow<false>();
    if (has_groups())
        allow<true>();
}

template <typename GradientBlock> static int run_side(Call *c)
{
    constexpr bool KEYS = GradientBlock::KEYS;
    Gradient x = gradient_of(c, KEYS);
    const Flash &f = x.f;
    x.parts = KEYS ? parts_of(f) : 1;
    x.sums = (float *)(void *)(c->work + delta_bytes(f));
    int64_t nhead = KEYS ? f.batch * (f.heads / f.group) * x.parts : f.batch * f.heads;
    int64_t each = KEYS ? f.queries * f.group / x.parts : f.keys / f.group;
    int64_t ntile = ((KEYS ? f.keys : f.queries) + GradientBlock::OWN - 1) / GradientBlock::OWN;
    x.order = order_of(nhead, ntile, 4 * each * f.size);
    unsigned grid = (unsigned)(nhead * ntile);
    int failed = LAUNCH(c, gradient_warps<GradientBlock>, grid, GradientBlock::THREADS,
                        GradientBlock::BYTES, x);
    if (failed || x.parts == 1)
        return failed;
    int64_t nelem = nelem_keys(f);
    return LAUNCH(c, add_parts, grid_for(2 * nelem, BLOCK), BLOCK, 0, x, nelem);
}

template <bool KEYS, bool GROUPS> static int run_size(Call *c)
{
    if (c->in[Q].dim[3] <= 64)
        return run_side<GradientBlock<64, KEYS, GROUPS>>(c);
    return run_side<GradientBlock<128, KEYS, GROUPS>>(c);
}

template <bool GROUPS> static int run_both(Call *c)
{
    return run_delta(c) || run_size<false, GROUPS>(c) || run_size<true, GROUPS>(c) ? -1 : 0;
}

static int run_groups(Call *c)
{
    return has_groups() ? run_both<true>(c) : run_both<false>(c);
}

CUDA_KERNELS(flash_attention_backward) = {{.name = "groups",
                                           .accepts = accepts_warps,
                                           .workspace = workspace_warps,
                                           .prepare = prepare_warps,
                                           .run = run_groups,
                                           .strided_out = true},
                                          {.name = "warps",
                                           .accepts = accepts_warps,
                                           .workspace = workspace_warps,
                                           .prepare = prepare_warps,
                                           .run = run_both<false>,
                                           .strided_out = true},
                                          {.name = "plain",
                                           .accepts = accepts_plain,
                                           .workspace = workspace_plain,
                                           .run = run_plain,
                                           .strided_out = true,
                                           .faults = starts_faults},
                                          {}};
