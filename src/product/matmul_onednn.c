/* The kernels of mm, bmm and addmm (matmul.c), which are the ways to make a product with oneDNN's
 * (onednn.h): made once in prepare() for the call's shapes, strides and thread count, with all
 * memory that it takes in the plan; run() sets addresses and executes.
 *
 * f32: every operand whose last two axes are a matrix or a transposed matrix with a leading
 * dimension, so t, transpose, slices and fused projections need no copy. bf16: the same but dense,
 * where the processor multiplies bf16 (AVX512_BF16, AMX). Else 16-bit operands are copied as f32
 * into the workspace, multiplied there, and the result is rounded: 3 times as fast as oneDNN's own
 * emulation of bf16, and it works on every processor. Where these copies are large, tile by tile
 * (matmul_tiles.c).
 *
 * Ways (`ways` below) of one call give sums in other orders, and take more or less time by how
 * operands lie, sizes and processor; machine.def and what was measured here say which is taken.
 * As operands lie, oneDNN packs blocks of them as it goes, again for each block of rows that meets
 * a block of columns, and whole rows collide in a cache where they are a large power of 2 apart.
 * - gemm: oneDNN's packed gemm, which packs each block of both operands once, in buffers of its
 *   own. It takes operands with gaps; of a batch of one the gap after the matrix is enough. It
 *   sums in f32, in y where that is f32, else in a workspace of y's size. Fast with few rows of a,
 *   and where a is transposed, as in gradients of weights.
 * - own: b is brought into the library's own layout first; own_both: a transposed a too.
 * - rows: own, then some rows of a at a time, so that these and their sums stay in a cache; each
 *   thread has rows of its own and waits for no other.
 * - swapped: the transposed product, b' a', which is then transposed: where y has few rows, b is
 *   packed for few uses, but as the left operand it is read as it lies.
 *
 * Numerics: sums in f32, rounded once. The order of a sum depends on kernel, shapes, strides and
 * thread count alone. A [n] bias is added by the primitive after the whole sum: in f32 the same
 * bits as an add after the product. An addend of y's own type is where the sum begins or ends, as
 * the primitive likes: it lies in y before the product, copied there unless y is in its place.
 *
 * It counts in 32 bits in places, and says nothing where they do not suffice. It takes 2^32 rows
 * for 0, by which it divides, and 2^32 + 64 for 64: sizes of 2^31 and more are refused.
 * Bytes to a row of a block of operands without gaps are too many from a leading dimension of some
 * 19 million on, where it crashed or summed what lies elsewhere: such operands are given a gap,
 * with which the packed gemm takes them, that counts in 64 bits (tests/programs/test_matmul.c). */
#include "../op/matmul.h"

#include "matmul_tiles.h"
#include "onednn.h"
#include "widen.h"

#include <string.h>

enum {
    GAP = 32,             /* elements */
    FEW = 128,            /* rows at a time: at least, */
    MANY = 512,           /* and at most */
    SPARE = 64 << 20,     /* bytes of workspace that a kernel may take whatever the call, */
    SPARE_SWAP = 1 << 20, /* the transposed product, whose result lies beside the call's, */
    SPARE_SHARE = 8,      /* or such a part of the call's operands and results */
    WIDE = 32 << 20       /* and of copies of a product's operands and result in f32 */
};

/* ---- what oneDNN is told ---- */

/* oneDNN's description of t: the strides of axes of size 1 are ours to choose, so that a column or
 * a row of something larger is a matrix too. False where t is no matrix with a leading dimension.
 * With a gap a matrix is a batch of one, with a gap after it. flat: the result is one matrix; no
 * batch of one lies without a gap then, which the library would not tell from one with it. */
static bool describe(const Tensor *t, bool flat, bool gap, OneMatrix *m)
{
    Matrix x = matrix(t);
    int64_t batch = x.stride[0], row = x.stride[1], col = x.stride[2];
    if (x.cols == 1)
        col = 1;
    if (x.rows == 1)
        row = col == 1 ? x.cols : 1;
    if (x.batch == 1 || batch == 0) {
        x.batch = 1; /* one matrix for all of the batch */
        batch = MAX(row * x.rows, col * x.cols);
    }
    if (batch < 1 || row < 1 || col < 1 || MIN(row, col) != 1)
        return false;
    if (flat && !gap)
        *m = (OneMatrix){t->dtype, 2, {x.rows, x.cols}, {row, col}, false};
    else
        *m = (OneMatrix){
            t->dtype, 3, {x.batch, x.rows, x.cols}, {batch + (gap ? GAP : 0), row, col}, false};
    return onednn_describes(m);
}

/* Whether operand 0 has the result's type: the product is added to it, there or in a copy. */
static bool adds_to(const Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    return c->nin == 3 && x->dtype == y->dtype && x->rank == 2 && x->dim[0] == y->dim[0] &&
           x->dim[1] == y->dim[1];
}

/* A bias that is one row for all rows of y, which the primitive adds. */
static bool row_bias(const Call *c)
{
    const Tensor *bias = &c->in[0], *y = &c->out[0];
    if (c->nin < 3 || adds_to(c))
        return false;
    int64_t n = y->dim[1];
    int last = bias->rank - 1;
    return bias->rank && bias->dim[last] == n && tensor_nelem(bias) == n &&
           (n == 1 || bias->stride[last] == 1);
}

/* Whether t is a matrix, or a batch of them, without gaps. Operands with a leading dimension beyond
 * their extent make bf16 products take another way, which sums in an f32 matrix of y's size:
 * copying them is less memory and no more time. */
static bool dense(const Tensor *t)
{
    Matrix x = matrix(t);
    int64_t n = x.rows * x.cols;
    return MAX(x.stride[1] * x.rows, x.stride[2] * x.cols) == n &&
           (x.batch == 1 || x.stride[0] == 0 || x.stride[0] == n);
}

/* A bias that is neither a row nor of y's type is added after the product: in f32, or it were
 * rounded twice. */
static bool accepts_bias(const Call *c)
{
    const Tensor *bias = &c->in[0], *y = &c->out[0];
    return c->nin == 2 || (y->dtype == F32 && bias->dtype == F32) || row_bias(c) || adds_to(c);
}

bool matmul_fast(DType d)
{
    return d == F32 || (d == BF16 && onednn_isa() >= ISA_BF16 && isa_bf16_pays());
}

/* Whether oneDNN takes the call as it lies, without regard to memory. */
static bool takes(const Call *c)
{
    int first = c->nin - 2;
    const Tensor *a = &c->in[first], *b = &c->in[first + 1], *y = &c->out[0];
    OneMatrix m;
    if (!tensor_nelem(a) || !tensor_nelem(b) || !matmul_fast(a->dtype) || !accepts_bias(c))
        return false;
    if (y->rank == 3 && y->dim[0] > 1 && !a->stride[0] && !b->stride[0])
        return false; /* oneDNN repeats one operand, not both */
    if (a->dtype != F32 && !(a->dtype == BF16 && dense(a) && dense(b)))
        return false;
    bool flat = matrix(y).batch == 1;
    return describe(a, flat, false, &m) && describe(b, flat, false, &m);
}

/* Whether rows or columns of an operand lie so far apart that blocks of them pass 2^31 bytes. */
static bool far_rows(const Call *c)
{
    for (int i = c->nin - 2; i <= c->nin; i++) {
        Matrix x = matrix(i < c->nin ? &c->in[i] : &c->out[0]);
        if (MAX(x.stride[1], x.stride[2]) > ONE_MOST_LEADING)
            return true;
    }
    return false;
}

void matmul_check_sizes(Ctx *ctx, const Call *c)
{
    static const char *const names[] = {"batch", "M: rows", "N: columns",
                                        "K: columns of operand a"};
    Matrix y = matrix(&c->out[0]), x = matrix(&c->in[c->nin - 2]);
    int64_t size[] = {y.batch, y.rows, y.cols, x.cols};
    for (int i = 0; i < LEN(size); i++)
        if (size[i] > ONE_MOST_SIZE)
            fail(ctx, TN_FAIL,
                 "%s %%%s: expected sizes of at most %d, which oneDNN counts to, found %lld (%s)%s",
                 c->node->op->name, c->node->out[0]->name, ONE_MOST_SIZE, (long long)size[i],
                 names[i],
                 i < 2 ? "; of a model's command a smaller batch would do, or --accumulate" : "");
    if (y.batch > 1 && far_rows(c))
        fail(ctx, TN_FAIL,
             "%s %%%s: expected rows of at most %d elements in a batch of matrices, found operands "
             "with longer ones",
             c->node->op->name, c->node->out[0]->name, ONE_MOST_LEADING);
}

/* ---- ways ---- */

enum { GEMM = 1, OWN_A = 2, OWN_B = 4, ROWS = 8, SWAP = 16 };

/* The rows at a time, of those that m can be cut into equally, with which the threads are done
 * first; of these the most. m: there is nothing to cut. */
static int64_t rows_of(int64_t m)
{
    int64_t nthread = par_threads(), best = m, least = INT64_MAX;
    for (int64_t rows = MIN(MANY, m / 2); rows >= FEW; rows--) {
        int64_t done = (m / rows + nthread - 1) / nthread * rows;
        if (m % rows || done >= least)
            continue;
        best = rows;
        least = done;
    }
    return best;
}

/* Among how many threads a call's rows are divided: 1 where oneDNN divides it. */
static int64_t slots_of(const Call *c, int how)
{
    int64_t m = c->in[c->nin - 2].dim[0];
    return how & ROWS ? MIN(par_threads(), m / rows_of(m)) : 1;
}

static int64_t nbytes_of(const Tensor *t)
{
    return tensor_nelem(t) * dtype_size(t->dtype);
}

/* Bytes that a kernel takes, nearly, beside those of the call as it lies. */
static int64_t spare(const Call *c, int how)
{
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    int64_t nbytes = 0;
    if (how & OWN_A)
        nbytes += nbytes_of(a);
    if (how & OWN_B)
        nbytes += nbytes_of(how & SWAP ? a : b);
    if (how & SWAP)
        nbytes += nbytes_of(y);
    if ((how & GEMM) && y->dtype != F32)
        nbytes += tensor_nelem(y) * (int64_t)sizeof(float);
    return nbytes;
}

static bool spares(const Call *c, int how)
{
    int64_t all = nbytes_of(&c->out[0]);
    for (int i = c->nin - 2; i < c->nin; i++)
        all += nbytes_of(&c->in[i]);
    return spare(c, how) <= MAX(how & SWAP ? SPARE_SWAP : SPARE, all / SPARE_SHARE);
}

/* Whether a is brought into another layout by becoming the library's own: it likes rows. */
static bool turns(const Tensor *a)
{
    return a->stride[0] == 1 && a->dim[1] > 1 && a->dim[0] > 1;
}

static bool accepts(const Call *c, int how)
{
    const Tensor *a = &c->in[c->nin - 2], *y = &c->out[0];
    if (!takes(c))
        return false;
    if (!how)
        return true;
    if (y->rank != 2 || far_rows(c) || !spares(c, how))
        return false;
    if ((how & OWN_A) && !turns(a))
        return false;
    if ((how & ROWS) && rows_of(a->dim[0]) == a->dim[0])
        return false;
    return !(how & SWAP) || c->nin == 2 || (adds_to(c) && y->dtype == F32);
}

static OneMatrix turned(const OneMatrix *m)
{
    return (OneMatrix){m->dtype, 2, {m->dim[1], m->dim[0]}, {m->stride[1], m->stride[0]}, false};
}

/* y' = b' a': y' is row-major. */
static OneProduct swapped(const OneProduct *p)
{
    OneMatrix y = {p->y.dtype, 2, {p->y.dim[1], p->y.dim[0]}, {p->y.dim[0], 1}, false};
    return (OneProduct){.a = turned(&p->b), .b = turned(&p->a), .y = y};
}

/* Whether the packed gemm runs it: asked for, or as nothing else takes such rows. */
static bool packed(const Call *c, int how)
{
    return (how & GEMM) || far_rows(c);
}

/* Tells oneDNN what to multiply: with the bias that it adds, or added to y; of some rows, the
 * first. */
static OneProduct product_of(Ctx *ctx, const Call *c, int how)
{
    int first = c->nin - 2;
    OneProduct p = {.has_bias = row_bias(c), .adds = adds_to(c), .alone = how & ROWS};
    matmul_check_sizes(ctx, c);
    bool gap = packed(c, how), flat = matrix(&c->out[0]).batch == 1;
    CHECK(describe(&c->in[first], flat, gap, &p.a) &&
          describe(&c->in[first + 1], flat, gap, &p.b) && describe(&c->out[0], flat, gap, &p.y));
    if (p.has_bias) {
        int64_t n = c->out[0].dim[1];
        p.bias = (OneMatrix){
            c->in[0].dtype, gap ? 3 : 2, {1, gap ? 1 : n, n}, {n, gap ? n : 1, 1}, false};
    }
    if (how & SWAP)
        p = swapped(&p);
    if (how & ROWS)
        p.a.dim[0] = p.y.dim[0] = rows_of(p.a.dim[0]);
    p.a.own = how & OWN_A;
    p.b.own = how & OWN_B;
    return p;
}

/* The parts of the workspace, from the scratchpads on; `end` is its size. */
typedef struct Room {
    int64_t scratch;      /* bytes of each slot's */
    int64_t a, b, y, end; /* a, b: in the library's own layout, where that is another */
    bool packs_a, packs_b;
} Room;

static int64_t whole_lines(int64_t nbytes)
{
    return (nbytes + 63) / 64 * 64;
}

static Room room_of(Ctx *ctx, const Call *c, int how)
{
    OneProduct p = product_of(ctx, c, how);
    OneRoom x = onednn_room(ctx, c->node, &p);
    Room r = {.scratch = whole_lines(x.scratch), .packs_a = x.a, .packs_b = x.b};
    r.a = r.scratch * slots_of(c, how);
    r.b = r.a + whole_lines(x.a);
    r.y = r.b + whole_lines(x.b);
    r.end = r.y + (how & SWAP ? nbytes_of(&c->out[0]) : 0);
    return r;
}

static int64_t workspace(Ctx *ctx, const Call *c, int how)
{
    return room_of(ctx, c, how).end;
}

/* Made by prepare(): a run for each slot, which takes every nslot-th of some pieces of a's rows,
 * whose first bytes and those of their results are next_a and next_y apart. */
typedef struct PreparedRuns {
    bool swap;
    Room room;
    OneRun **run;
    int *status; /* of each slot */
    int64_t nslot, pieces, next_a, next_y;
} PreparedRuns;

static void prepare(Call *c, Arena *a, int how)
{
    Ctx *ctx = arena_ctx(a);
    OneProduct p = product_of(ctx, c, how);
    const Tensor *x = &c->in[c->nin - 2], *y = &c->out[0];
    int64_t rows = how & ROWS ? p.a.dim[0] : 0;
    PreparedRuns *m = c->state = NEW(a, PreparedRuns);
    *m = (PreparedRuns){.swap = how & SWAP,
                        .room = room_of(ctx, c, how),
                        .nslot = slots_of(c, how),
                        .pieces = rows ? x->dim[0] / rows : 1,
                        .next_a = rows * x->stride[x->rank - 2] * dtype_size(x->dtype),
                        .next_y = rows * y->stride[y->rank - 2] * dtype_size(y->dtype)};
    CHECK(m->room.end == c->nbytes_work);
    m->status = NEWN(a, int, m->nslot);
    m->run = NEWN(a, OneRun *, m->nslot);
    for (int64_t i = 0; i < m->nslot; i++)
        m->run[i] = i ? onednn_twin(a, c->node, m->run[0]) : onednn_make(a, c->node, &p);
}

/* Bytes of the library's for each slot beside the first, whose are those of any product. */
static int64_t handles(const Call *c, int how)
{
    OneKeeps keeps = onednn_keeps();
    return keeps.each_run + (slots_of(c, how) - 1) * keeps.each_twin;
}

/* ---- one product ---- */

/* Brings an operand that lies at x into the library's own layout, at `own`; sets x to where it then
 * lies. */
static int pack(const Call *c, bool of_b, const char **x, int64_t own)
{
    const PreparedRuns *m = c->state;
    const char *from = *x;
    *x = c->work + own;
    return onednn_pack(m->run[0], of_b, from, c->work + own, c->work);
}

/* Operands where they are multiplied, and the result. */
typedef struct Pieces {
    const Call *c;
    const char *a, *b;
    char *y;
} Pieces;

static void run_slots(void *arg, int64_t lo, int64_t hi)
{
    const Pieces *x = arg;
    const PreparedRuns *m = x->c->state;
    for (int64_t s = lo; s < hi; s++) {
        m->status[s] = 0;
        for (int64_t i = s; i < m->pieces && !m->status[s]; i += m->nslot)
            m->status[s] = onednn_run(m->run[s], x->a + i * m->next_a, x->b, x->c->in[0].data,
                                      x->y + i * m->next_y, x->c->work + s * m->room.scratch);
    }
}

/* Packs what is to be packed, and multiplies. Returns 0, or the library's status. */
static int multiply(const Call *c)
{
    const PreparedRuns *m = c->state;
    const Tensor *in = &c->in[c->nin - 2], *y = &c->out[0];
    Pieces x = {c, in[m->swap].data, in[!m->swap].data, m->swap ? c->work + m->room.y : y->data};
    int status = m->room.packs_a ? pack(c, false, &x.a, m->room.a) : 0;
    if (m->room.packs_b && !status)
        status = pack(c, true, &x.b, m->room.b);
    if (status)
        return status;
    par_for(m->nslot, 1, run_slots, &x);
    for (int64_t s = 0; s < m->nslot && !status; s++)
        status = m->status[s];
    if (m->swap && !status)
        matmul_turn_back(c, adds_to(c), x.y);
    return status;
}

static int run(Call *c)
{
    if (adds_to(c) && c->in[0].data != c->out[0].data)
        strided_copy(&c->out[0], &c->in[0]);
    int status = multiply(c);
    if (status)
        return run_fail(c, "oneDNN product failed (status %d)", status);
    if (c->nin == 3 && !row_bias(c) && !adds_to(c))
        matmul_add_bias(c);
    return 0;
}

/* ---- 16-bit operands in f32 ---- */

/* The call with f32 tensors of the same layouts in place of 16-bit ones. They lie in the workspace,
 * before the primitive's scratchpad; what the product is added to, where the result does. */
typedef struct WideCall {
    Call c;
    Tensor in[3], out[1];
    int64_t nbytes;
} WideCall;

/* Elements of memory that t spans, a batch of one repeated matrix once. */
static int64_t span(const Tensor *t)
{
    return t->rank == 3 && t->stride[0] == 0 ? t->dim[1] * t->dim[2] : tensor_nelem(t);
}

static void place(WideCall *w, Tensor *t)
{
    if (t->dtype == F32)
        return;
    t->dtype = F32;
    t->data = w->c.work ? w->c.work + w->nbytes : NULL;
    w->nbytes += (span(t) * (int64_t)sizeof(float) + 63) / 64 * 64;
}

static void widen(WideCall *w, const Call *c)
{
    *w = (WideCall){.c = *c};
    memcpy(w->in, c->in, sizeof *c->in * (size_t)c->nin);
    w->out[0] = c->out[0];
    w->c.in = w->in;
    w->c.out = w->out;
    bool adds = adds_to(c);
    for (int i = adds; i < c->nin; i++)
        place(w, &w->in[i]);
    place(w, &w->out[0]);
    if (adds && c->in[0].dtype != F32)
        w->in[0] = w->out[0];
    w->c.work = c->work ? c->work + w->nbytes : NULL;
}

static bool accepts_wide(const Call *c, int how)
{
    int first = c->nin - 2;
    DType d = c->in[first].dtype;
    if ((d != BF16 && d != F16) || !dense(&c->in[first]) || !dense(&c->in[first + 1]))
        return false;
    if (first && c->in[0].dtype != F32 && !tensor_contiguous(&c->in[0]))
        return false;
    WideCall w;
    widen(&w, c);
    return (w.nbytes <= WIDE || c->out[0].rank == 3) && accepts(&w.c, how);
}

static int64_t workspace_wide(Ctx *ctx, const Call *c, int how)
{
    WideCall w;
    widen(&w, c);
    return w.nbytes + workspace(ctx, &w.c, how);
}

static void prepare_wide(Call *c, Arena *a, int how)
{
    WideCall w;
    widen(&w, c);
    w.c.nbytes_work = c->nbytes_work - w.nbytes;
    prepare(&w.c, a, how);
    c->state = w.c.state;
}

static void convert(const Tensor *wide, const Tensor *narrow, void (*fn)(void *, int64_t, int64_t))
{
    Widen x = {(float *)wide->data, (uint16_t *)narrow->data, narrow->dtype};
    if (narrow->dtype != F32)
        par_for(span(narrow), 16384, fn, &x);
}

static int run_wide(Call *c)
{
    WideCall w;
    widen(&w, c);
    for (int i = 0; i < c->nin; i++)
        convert(&w.in[i], &c->in[i], widen_load);
    if (run(&w.c)) {
        memcpy(c->message, w.c.message, sizeof c->message);
        return -1;
    }
    convert(&w.out[0], &c->out[0], widen_store);
    return 0;
}

/* ---- all ways ---- */

/* name of the functions, kernel, of widened operands or not, how */
#define PLAIN_WAYS(X)            \
    X(as_it_lies, "onednn", , 0) \
    X(widened, "onednn_widened", _wide, 0)

#define OTHER_WAYS(X)                                    \
    X(gemm, "onednn_gemm", , GEMM)                       \
    X(own, "onednn_own", , OWN_B)                        \
    X(own_both, "onednn_own_both", , OWN_A | OWN_B)      \
    X(rows, "onednn_rows", , OWN_B | ROWS)               \
    X(swapped, "onednn_swapped", , SWAP)                 \
    X(swapped_own, "onednn_swapped_own", , SWAP | OWN_B) \
    X(widened_gemm, "onednn_widened_gemm", _wide, GEMM)  \
    X(widened_own, "onednn_widened_own", _wide, OWN_B)   \
    X(widened_swapped, "onednn_widened_swapped", _wide, SWAP)

#define X(way, kernel, wide, how)                           \
    static bool way##_accepts(const Call *c)                \
    {                                                       \
        return accepts##wide(c, how);                       \
    }                                                       \
    static int64_t way##_workspace(Ctx *ctx, const Call *c) \
    {                                                       \
        return workspace##wide(ctx, c, how);                \
    }                                                       \
    static void way##_prepare(Call *c, Arena *a)            \
    {                                                       \
        prepare##wide(c, a, how);                           \
    }                                                       \
    static bool way##_gemm(const Call *c)                   \
    {                                                       \
        return packed(c, how);                              \
    }                                                       \
    static int64_t way##_handles(const Call *c)             \
    {                                                       \
        return handles(c, how);                             \
    }
PLAIN_WAYS(X)
OTHER_WAYS(X)
#undef X

#define X(way, kernel, wide, how)  \
    {.name = kernel,               \
     .accepts = way##_accepts,     \
     .workspace = way##_workspace, \
     .prepare = way##_prepare,     \
     .gemm = way##_gemm,           \
     .handles = way##_handles,     \
     .run = run##wide},
const Kernel matmul_kernels[] = {PLAIN_WAYS(X){.name = "onednn_tiles",
                                               .accepts = matmul_tiles_accepts,
                                               .workspace = matmul_tiles_workspace,
                                               .prepare = matmul_tiles_prepare,
                                               .run = matmul_tiles_run},
                                 OTHER_WAYS(X){0}};
const Kernel matmul_batch_kernels[] = {PLAIN_WAYS(X){0}};
#undef X
