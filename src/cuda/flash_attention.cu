/* flash_attention on CUDA (flash_attention.c has the formula and what operand 3 may be).
 *
 * Method: online softmax over tiles of keys, as on the processor; a block has a tile of queries of
 * one head and walks the keys that any of them sees, in ascending order (Dao 2023,
 * arXiv:2307.08691). Kernel "warps", of bf16: four warps of 32 queries each, whose scores and sums
 * stay in registers; the next tiles of keys and values are copied while one is computed. Products
 * take bf16 and sum in f32, probabilities are rounded to bf16; exp is the hardware's 2^x. Kernel
 * "groups" is the same by two groups of four warps, each warp with 16 queries, where a device has
 * the groups' products (flash_warps.cuh), else "warps". Kernel "plain", of everything else: 256
 * threads that each have a small square of scores, in f32 or f64; heads of more than COLUMNS
 * elements in parts, each with scores of its own. */
#include "flash_warps.cuh"

static const char *const faults[] = {"position %lld: expected 0 to %lld", start_fault, NULL};

struct Attention {
    Flash f;
    HeadTensor q, k, v, o;
    Stats lse;
    Mask mask;
    const int64_t *position; /* NULL: none */
    const int64_t *starts;
    Fault *fault;
    int step;
    BlockOrder order;
};

static Attention attention_of(const Call *c)
{
    const Tensor *mask = flash_mask(c, 3);
    Attention x = {};
    x.f = flash_of(c->node, 0);
    x.q = heads_of(c->in[0]);
    x.k = heads_of(c->in[1]);
    x.v = heads_of(c->in[2]);
    x.o = heads_of(c->out[0]);
    x.lse = stats_of(c->out[1]);
    x.mask = mask_of(mask);
    x.starts = starts_of(c, 3);
    x.position =
        c->nin > 3 && !mask && !x.starts ? (const int64_t *)(const void *)c->in[3].data : NULL;
    x.fault = c->fault;
    x.step = c->step;
    return x;
}

/* Sets the offset where an operand has it; false, and noted, where that is out of range. */
__device__ static bool place(Attention &x)
{
    if (!x.position)
        return true;
    x.f.offset = *x.position;
    int64_t most = x.f.keys - x.f.queries;
    if (x.f.offset >= 0 && x.f.offset <= most)
        return true;
    if (threadIdx.x == 0)
        note(x.fault, x.step, 0, x.f.offset, most);
    return false;
}

/* Keys that some of the queries before `end` see. */
__device__ static int64_t seen(const Flash &f, int64_t end)
{
    int64_t most = end < f.queries ? end : f.queries;
    return f.causal ? most + f.offset : f.keys;
}

/* ---- plain ---- */

/* Maximum or sum over the 16 threads of a row. */
template <typename W> __device__ static W row_max(W x)
{
    for (int apart = SIDE / 2; apart; apart /= 2)
        x = fmax(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

template <typename W> __device__ static W row_sum(W x)
{
    for (int apart = SIDE / 2; apart; apart /= 2)
        x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

/* Scores to scaled and masked ones. */
template <typename W, int R>
__device__ static void mask_scores(W (&s)[R][R], const Attention &x, const HeadRows &q,
                                   const HeadRows &k)
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) {
            int64_t query = q.first + threadIdx.x / SIDE * R + i;
            int64_t key = k.first + threadIdx.x % SIDE * R + j;
            s[i][j] *= (W)x.f.scale;
            if (!sees(x.f, query, key) || key < start_at(x.starts, x.f, q.b, query))
                s[i][j] = -INFINITY;
            else if (x.mask.data)
                s[i][j] = level_of(s[i][j] + mask_at<W>(x.mask, q.b, q.h, query, key));
        }
}

/* s = exp(s - new top); sums and values so far are brought to the new top. */
template <typename W, int R>
__device__ static void soften(W (&s)[R][R], W (&top)[R], W (&sum)[R], W (&acc)[R][EACH])
{
    for (int i = 0; i < R; i++) {
        W most = s[i][0], part = 0;
        for (int j = 1; j < R; j++)
            most = fmax(most, s[i][j]);
        most = fmax(top[i], row_max(most));
        W base = most == -(W)INFINITY ? 0 : most, alpha = exp(top[i] - base);
        for (int j = 0; j < R; j++)
            part += s[i][j] = exp(s[i][j] - base);
        top[i] = most;
        sum[i] = sum[i] * alpha + row_sum(part);
        for (int j = 0; j < EACH; j++)
            acc[i][j] *= alpha;
    }
}

/* The log-sum-exp of a row; a sum of 0 sees nothing. */
template <typename W> __device__ static W row_lse(const Attention &x, W top, W sum)
{
    W lse = x.mask.data ? masked_lse(top, (W)log(sum)) : top + log(sum);
    return sum == 0 ? (W)INFINITY : lse;
}

template <typename W, int R>
__device__ static void put_results(const Attention &x, const HeadRows &q, int64_t column,
                                   const W (&top)[R], const W (&sum)[R], const W (&acc)[R][EACH])
{
    W scale[R];
    for (int i = 0; i < R; i++) {
        int64_t query = q.first + threadIdx.x / SIDE * R + i;
        scale[i] = sum[i] == 0 ? 0 : 1 / sum[i]; /* 0: sees nothing */
        if (query < q.n && column == 0 && threadIdx.x % SIDE == 0)
            *stats_at<W>(x.lse, q.b, q.h, query) = row_lse(x, top[i], sum[i]);
    }
    plain_store(acc, scale, {x.o, q.b, q.h, q.first, q.n, q.size}, column);
}

template <typename W, int R> __global__ void __launch_bounds__(BLOCK) attend_plain(Attention x)
{
    constexpr int TILE = SIDE * R;
    __shared__ W xs[STEP][TILE + PAD], ys[STEP][TILE + PAD], p[TILE][TILE + PAD];
    __shared__ W vs[STEP][COLUMNS + PAD];
    W s[R][R], top[R], sum[R] = {}, acc[R][EACH] = {};
    if (!place(x))
        return;
    PlainPlace at = plain_place(x.f.queries, x.f.heads, TILE);
    HeadRows q = {x.q, at.b, at.h, at.first, x.f.queries, x.f.size};
    HeadRows k = {x.k, at.b, at.h / x.f.group, 0, x.f.keys, x.f.size}, v = k;
    v.x = x.v;
    for (int i = 0; i < R; i++)
        top[i] = -INFINITY;
    k.first = v.first = start_at(x.starts, x.f, at.b, q.first); /* of none of them before */
    for (int64_t end = seen(x.f, q.first + TILE); k.first < end; k.first = v.first += TILE) {
        plain_scores<W, R>(s, q, k, xs, ys);
        mask_scores<W, R>(s, x, q, k);
        soften<W, R>(s, top, sum, acc);
        put_turned<W, R>(p, s);
        plain_values<W, R>(acc, p, v, at.column, vs);
    }
    put_results<W, R>(x, q, at.column, top, sum, acc);
}

static bool accepts_plain(const Call *c)
{
    return starts_dense(c, 3);
}

static int run_plain(Call *c)
{
    constexpr int R64 = 2, R32 = 4;
    Attention x = attention_of(c);
    const Flash *f = &x.f;
    if (run_check_starts(c, x.starts, *f, 1))
        return -1;
    if (x.q.dtype == F64)
        return LAUNCH(c, (attend_plain<double, R64>),
                      plain_grid(f->batch, f->queries, f->heads, f->size, SIDE * R64), BLOCK, 0, x);
    return LAUNCH(c, (attend_plain<float, R32>),
                  plain_grid(f->batch, f->queries, f->heads, f->size, SIDE * R32), BLOCK, 0, x);
}

/* ---- warps, and groups of them ---- */

/* Sizes of a block: HELD parts of the queries' operands stay in registers, BLOCKS a multiprocessor.
 */
template <int D, bool GROUPS> struct QueryBlock {
    static constexpr int WARPS = GROUPS ? 8 : 4, THREADS = 32 * WARPS, MB = GROUPS ? 1 : 2;
    static constexpr int QUERIES = 16 * MB * WARPS, KEYS = GROUPS && D == 128 ? 128 : 64;
    static constexpr int NB = KEYS / 8, HELD = D == 64 && !GROUPS ? D / 16 : 1;
    static constexpr int BLOCKS = GROUPS && D == 128 ? 1 : 2;
    static constexpr int TILE = KEYS * D * 2, STAGES = GROUPS ? 3 : 2; /* of keys and values */
    static constexpr int BYTES = QUERIES * D * 2 + 2 * STAGES * TILE + TILE_ALIGN;
};

/* A lane's state of its rows m, half: 16 m + 8 half + g. */
template <int MB> struct Running {
    float top[MB][2], sum[MB][2];
};

/* -inf where a query does not see a key; the warp's rows begin at `row`. */
template <int MB, int NB>
__device__ static void hide(float (&s)[MB][NB][4], const Flash &f, int row, int key)
{
    int g = lane_number() / 4, t = lane_number() % 4;
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = row + 16 * m + 8 * half + g, keys = (int)f.keys;
            int end = f.causal ? query + (int)f.offset + 1 : keys;
            end = (end < keys ? end : keys) - key - 2 * t;
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e >= end)
                        s[m][n][2 * half + e] = -INFINITY;
        }
}

/* s = 2^(scale (s - new top)), scale with log2 e in it; sums, of this lane's columns alone, are
 * brought to the new top, as values are to be by `alphas`. */
template <int MB, int NB>
__device__ static void soften(float (&s)[MB][NB][4], Running<MB> &r, float (&alphas)[MB][2],
                              float scale)
{
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = r.top[m][half], part = 0;
#pragma unroll
            for (int n = 0; n < NB; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale;
            float alpha = alphas[m][half] = exp2_fast(fmaf(r.top[m][half], scale, -base));
            r.top[m][half] = most;
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    part += s[m][n][e] = exp2_fast(fmaf(s[m][n][e], scale, -base));
            r.sum[m][half] = fmaf(r.sum[m][half], alpha, part);
        }
}

template <int MB, int DB>
__device__ static void scale_rows(float (&acc)[MB][DB][4], const float (&by)[MB][2])
{
#pragma unroll
    for (int i = 0; i < 4 * MB * DB; i++)
        acc[i / 4 / DB][i / 4 % DB][i % 4] *= by[i / 4 / DB][i % 4 / 2];
}

/* The warp's o and lse; `row`: its first in the tile. */
template <int D, int QUERIES, int MB>
__device__ static void put_results(const Attention &x, const HeadRows &q, const Running<MB> &r,
                                   const float (&acc)[MB][D / 8][4], char *tile, int row)
{
    float scale[MB][2];
    int lane = lane_number();
#pragma unroll
    for (int m = 0; m < MB; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            int64_t query = q.first + row + 16 * m + 8 * half + lane / 4;
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            scale[m][half] = sum == 0 ? 0 : 1 / sum;
            if (lane % 4 == 0 && query < q.n)
                *stats_at<float>(x.lse, q.b, q.h, query) =
                    sum == 0 ? INFINITY : r.top[m][half] * (float)x.f.above + logf(sum);
        }
    store_rows<D, QUERIES, MB>(acc, scale, tile, row, {x.o, q.b, q.h, q.first, q.n, q.size});
}

/* Keys and values from x.first on into a stage. */
template <typename QueryBlock, int D>
__device__ static void load_stage(char *stage, const Attention &x, HeadRows rows)
{
    rows.x = x.k;
    load_tile<QueryBlock::KEYS, D, QueryBlock::THREADS>(stage, rows);
    rows.x = x.v;
    load_tile<QueryBlock::KEYS, D, QueryBlock::THREADS>(stage + QueryBlock::TILE, rows);
}

/* Walks the keys [0, end), of which all queries see the first `clear`. */
template <int D>
__device__ static void walk(const Attention &x, const HeadRows &q, char *qs, Running<2> &r,
                            float (&acc)[2][D / 8][4], int end, int clear)
{
    typedef QueryBlock<D, false> QueryBlock;
    HeadRows k = {x.k, q.b, q.h / x.f.group, 0, x.f.keys, x.f.size};
    int row = threadIdx.x / 32 * 16 * QueryBlock::MB;
    float s[QueryBlock::MB][QueryBlock::NB][4], alphas[QueryBlock::MB][2],
        scale = (float)(x.f.above * M_LOG2E);
    uint32_t held[QueryBlock::HELD][QueryBlock::MB][4], p[QueryBlock::NB / 2][QueryBlock::MB][4];
    char *stage = qs + QueryBlock::QUERIES * D * 2, *next = stage + 2 * QueryBlock::TILE, *free;
    load_stage<QueryBlock, D>(stage, x, k);
    for (int at = 0; at < end; at += QueryBlock::KEYS, free = stage, stage = next, next = free) {
        copies_wait();
        __syncthreads();
        k.first = at + QueryBlock::KEYS;
        if (k.first < end)
            load_stage<QueryBlock, D>(next, x, k);
        for (int i = 0; QueryBlock::HELD > 1 && at == 0 && i < QueryBlock::HELD * QueryBlock::MB;
             i++)
            load_left<QueryBlock::QUERIES>(held[i / QueryBlock::MB][i % QueryBlock::MB], qs,
                                           row + 16 * (i % QueryBlock::MB), i / QueryBlock::MB);
        multiply_scores<D, QueryBlock::QUERIES, QueryBlock::KEYS>(s, qs, row, held, stage);
        turn_scores(s, x.f);
        if (at + QueryBlock::KEYS > clear)
            hide(s, x.f, (int)q.first + row, at);
        soften(s, r, alphas, scale);
        scale_rows(acc, alphas);
        make_left(p, s);
        multiply_values<D, QueryBlock::KEYS>(acc, p, stage + QueryBlock::TILE);
    }
}

/* The same by groups. Products with values go on beside the softmax of the next tile, whose scores
 * are queued before them; one stage more keeps what they read. */
template <int D>
__device__ static void walk(const Attention &x, const HeadRows &q, char *qs, Running<1> &r,
                            float (&acc)[1][D / 8][4], int end, int clear)
{
    typedef QueryBlock<D, true> QueryBlock;
    HeadRows k = {x.k, q.b, q.h / x.f.group, 0, x.f.keys, x.f.size};
    int row = threadIdx.x / 32 * 16, at = 0;
    float s[1][QueryBlock::NB][4], alphas[1][2], scale = (float)(x.f.above * M_LOG2E);
    uint32_t none[1][1][4], p[QueryBlock::NB / 2][1][4];
    char *stages = qs + QueryBlock::QUERIES * D * 2, *stage = stages, *before = NULL, *next;
    load_stage<QueryBlock, D>(stage, x, k);
    do {
        next = stage == stages + 4 * QueryBlock::TILE ? stages : stage + 2 * QueryBlock::TILE;
        copies_wait();
        group_publish<1>();
        __syncthreads();
        k.first = at + QueryBlock::KEYS;
        if (k.first < end)
            load_stage<QueryBlock, D>(next, x, k);
        group_begin<1>();
        multiply_scores<D, QueryBlock::QUERIES, QueryBlock::KEYS>(s, qs, row, none, stage);
        group_commit<1>();
        if (before) {
            group_begin<1>();
            multiply_values<D, QueryBlock::KEYS>(acc, p, before + QueryBlock::TILE);
            group_commit<1>();
            group_wait<1, 1>();
        } else
            group_wait<1, 0>();
        group_settle(s);
        turn_scores(s, x.f);
        if (at + QueryBlock::KEYS > clear)
            hide(s, x.f, (int)q.first + row, at);
        soften(s, r, alphas, scale);
        group_wait<1, 0>();
        group_settle(acc);
        scale_rows(acc, alphas);
        make_left(p, s);
        before = stage;
        stage = next;
    } while ((at += QueryBlock::KEYS) < end);
    group_begin<1>();
    multiply_values<D, QueryBlock::KEYS>(acc, p, before + QueryBlock::TILE);
    group_commit<1>();
    group_wait<1, 0>();
    group_settle(acc);
}

template <int D, bool GROUPS>
__global__ void __launch_bounds__(QueryBlock<D, GROUPS>::THREADS, QueryBlock<D, GROUPS>::BLOCKS)
    attend_warps(Attention x)
{
    typedef QueryBlock<D, GROUPS> QueryBlock;
    DYNAMIC_SHARED(shared);
    char *qs = tiles_from(shared);
    if (!place(x))
        return;
    Task task = task_of(x.order);
    HeadRows q = {x.q,
                  task.head / x.f.heads,
                  task.head % x.f.heads,
                  (x.order.ntile - 1 - task.tile) * QueryBlock::QUERIES,
                  x.f.queries,
                  x.f.size};
    float acc[QueryBlock::MB][D / 8][4] = {};
    Running<QueryBlock::MB> r;
    for (int i = 0; i < 2 * QueryBlock::MB; i++) {
        r.top[i / 2][i % 2] = -INFINITY;
        r.sum[i / 2][i % 2] = 0;
    }
    load_tile<QueryBlock::QUERIES, D, QueryBlock::THREADS>(qs, q);
    int end = (int)seen(x.f, q.first + QueryBlock::QUERIES);
    if (end > 0)
        walk<D>(x, q, qs, r, acc, end, (int)seen(x.f, q.first + 1));
    copies_wait();
    __syncthreads(); /* products of all warps of a group have read the queries */
    put_results<D, QueryBlock::QUERIES>(x, q, r, acc, qs, threadIdx.x / 32 * 16 * QueryBlock::MB);
}

static bool accepts_warps(const Call *c)
{
    return warps_accept(c, 0) && !flash_mask(c, 3) && !flash_starts(c, 3);
}

static void prepare_warps(Call *c, Arena *a)
{
    (void)c;
    (void)a;
    allow_shared(attend_warps<64, false>, QueryBlock<64, false>::BYTES);
    allow_shared(attend_warps<128, false>, QueryBlock<128, false>::BYTES);
}

static void prepare_groups(Call *c, Arena *a)
{
    prepare_warps(c, a);
    if (!has_groups())
        return;
    allow_shared(attend_warps<64, true>, QueryBlock<64, true>::BYTES);
    allow_shared(attend_warps<128, true>, QueryBlock<128, true>::BYTES);
}

template <int D, bool GROUPS> static int run_size(Call *c)
{
    typedef QueryBlock<D, GROUPS> QueryBlock;
    Attention x = attention_of(c);
    const Flash *f = &x.f;
    x.order =
        order_of(f->batch * f->heads, (f->queries + QueryBlock::QUERIES - 1) / QueryBlock::QUERIES,
                 4 * f->keys * f->size / f->group);
    unsigned grid = (unsigned)(x.order.nhead * x.order.ntile);
    return LAUNCH(c, (attend_warps<D, GROUPS>), grid, QueryBlock::THREADS, QueryBlock::BYTES, x);
}

static int run_warps(Call *c)
{
    return c->in[0].dim[3] <= 64 ? run_size<64, false>(c) : run_size<128, false>(c);
}

static int run_groups(Call *c)
{
    if (!has_groups())
        return run_warps(c);
    return c->in[0].dim[3] <= 64 ? run_size<64, true>(c) : run_size<128, true>(c);
}

CUDA_KERNELS(flash_attention) = {{.name = "groups",
                                  .accepts = accepts_warps,
                                  .prepare = prepare_groups,
                                  .run = run_groups,
                                  .strided_out = true,
                                  .faults = faults},
                                 {.name = "warps",
                                  .accepts = accepts_warps,
                                  .prepare = prepare_warps,
                                  .run = run_warps,
                                  .strided_out = true,
                                  .faults = faults},
                                 {.name = "plain",
                                  .accepts = accepts_plain,
                                  .run = run_plain,
                                  .strided_out = true,
                                  .faults = faults},
                                 {}};
