/* The kernels of mm, bmm and addmm (matmul.c): oneDNN's product (onednn.h), made once in prepare()
 * for the call's shapes, strides and thread count, with a scratchpad that is part of the plan;
 * run() sets addresses and executes.
 *
 * f32: every operand whose last two axes are a matrix or a transposed matrix with a leading
 * dimension, so t, transpose, slices and fused projections need no copy. bf16: the same but dense,
 * where the processor multiplies bf16 (AVX512_BF16, AMX). Else 16-bit operands are copied as f32
 * into the workspace, multiplied there, and the result is rounded: 3 times as fast as oneDNN's own
 * emulation of bf16, and it works on every processor.
 *
 * Numerics: sums in f32, rounded once. The order of a sum depends on shapes, strides and thread
 * count alone. A [n] bias is added by the primitive after the whole sum: in f32 the same bits as an
 * add after the product. An addend of y's own type is where the sum begins or ends, as the
 * primitive likes: it lies in y before the product, copied there unless y is in its place.
 *
 * It counts in 32 bits in places, and says nothing where they do not suffice. Of 2^32 rows 0 are
 * left, by which it divides, and of 2^32 + 64 it multiplies 64: sizes of 2^31 and more are refused.
 * Bytes to a row of a block of operands without gaps are too many from a leading dimension of some
 * 19 million on, where it crashed or summed what lies elsewhere: such operands are given a gap,
 * with which the packed gemm takes them, that counts in 64 bits (tests/test_matmul.c). */
#include "matmul.h"

#include "onednn.h"
#include "vmath.h"

/* ---- what oneDNN is told ---- */

/* oneDNN's description of t: the strides of axes of size 1 are ours to choose, so that a column or
 * a row of something larger is a matrix too. False where t is no matrix with a leading dimension.
 * As for `packed`, a matrix is a batch of one, with a gap behind it. */
static bool describe(const Tensor *t, bool packed, OneMatrix *m)
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
    if (t->rank == 2 && !packed)
        *m = (OneMatrix){t->dtype, 2, {x.rows, x.cols}, {row, col}, false};
    else
        *m = (OneMatrix){
            t->dtype, 3, {x.batch, x.rows, x.cols}, {batch + (packed ? 32 : 0), row, col}, false};
    return onednn_describes(m);
}

/* Whether operand 0 has the result's type: the product is added to it, in its place or in a copy.
 */
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
    return d == F32 || (d == BF16 && onednn_isa() >= ONE_BF16);
}

static bool accepts(const Call *c)
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
    return describe(a, false, &m) && describe(b, false, &m);
}

/* Whether the rows or columns of an operand are so far apart that blocks of them are beyond 2^31
 * bytes. */
static bool far_rows(const Call *c)
{
    for (int i = c->nin - 2; i <= c->nin; i++) {
        Matrix x = matrix(i < c->nin ? &c->in[i] : &c->out[0]);
        if (MAX(x.stride[1], x.stride[2]) > ONE_MOST_LEADING)
            return true;
    }
    return false;
}

static void check_sizes(Ctx *ctx, const Call *c)
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

/* Whether a product of bf16 is better made by oneDNN's packed gemm than by what it prefers, which
 * reads transposed operands and odd leading dimensions slowly: gradients of weights by 3 to 17 % on
 * one thread, of a head of 50,257 columns by 12 and 26 % (Zen 4). The gemm sums in f32, in y where
 * that is f32, else in a workspace, which must be small beside the operands. Not measured with AMX.
 *
 * oneDNN takes it for operands with gaps; of a batch of one the gap behind the matrix is enough. */
static bool packed(const Call *c)
{
    if (far_rows(c))
        return true;
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    if ((c->nin > 2 && !adds_to(c)) || a->dtype != BF16 || y->rank != 2 || onednn_isa() >= ONE_AMX)
        return false;
    return y->dtype == F32 || 32 * tensor_nelem(y) <= tensor_nelem(a) + tensor_nelem(b);
}

/* The call as a product: with the bias that the primitive adds, or added to what lies in y. */
static OneProduct product_of(Ctx *ctx, const Call *c)
{
    int first = c->nin - 2;
    OneProduct p = {.has_bias = row_bias(c), .adds = adds_to(c)};
    check_sizes(ctx, c);
    bool pack = packed(c);
    CHECK(describe(&c->in[first], pack, &p.a) && describe(&c->in[first + 1], pack, &p.b) &&
          describe(&c->out[0], pack, &p.y));
    if (p.has_bias) {
        int64_t n = c->out[0].dim[1];
        p.bias = (OneMatrix){
            c->in[0].dtype, pack ? 3 : 2, {1, pack ? 1 : n, n}, {n, pack ? n : 1, 1}, false};
    }
    return p;
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    OneProduct p = product_of(ctx, c);
    return onednn_room(ctx, c->node, &p).scratch;
}

static void prepare(Call *c, Arena *a)
{
    OneProduct p = product_of(arena_ctx(a), c);
    CHECK(onednn_room(arena_ctx(a), c->node, &p).scratch == c->nbytes_work);
    c->state = onednn_make(a, c->node, &p);
}

/* ---- one product ---- */

typedef struct Add {
    float *y;
    Matrix bias;
} Add;

static void add_rows(void *arg, int64_t lo, int64_t hi)
{
    const Add *x = arg;
    for (int64_t i = lo; i < hi; i++) {
        const float *bias = (const float *)x->bias.t->data + i * x->bias.stride[1];
        for (int64_t j = 0; j < x->bias.cols; j++)
            x->y[i * x->bias.cols + j] += bias[j * x->bias.stride[2]];
    }
}

static int run(Call *c)
{
    int first = c->nin - 2;
    if (adds_to(c) && c->in[0].data != c->out[0].data)
        strided_copy(&c->out[0], &c->in[0]);
    int status = onednn_run(c->state, c->in[first].data, c->in[first + 1].data, c->in[0].data,
                            c->out[0].data, c->work);
    if (status)
        return run_fail(c, "oneDNN product failed (status %d)", status);
    if (first && !row_bias(c) && !adds_to(c)) {
        Matrix y = matrix(&c->out[0]);
        Add x = {(float *)c->out[0].data, bias_matrix(&c->in[0], &y)};
        par_for(y.rows, MAX(1, 16384 / MAX(y.cols, 1)), add_rows, &x);
    }
    return 0;
}

/* ---- 16-bit operands in f32 ---- */

/* The call with f32 tensors of the same layouts in place of 16-bit ones. They lie in the workspace,
 * before the primitive's scratchpad; what the product is added to, where the result does. */
typedef struct Wide {
    Call c;
    Tensor in[3], out[1];
    int64_t nbytes;
} Wide;

/* Elements of memory that t spans, a batch of one repeated matrix once. */
static int64_t span(const Tensor *t)
{
    return t->rank == 3 && t->stride[0] == 0 ? t->dim[1] * t->dim[2] : tensor_nelem(t);
}

static void place(Wide *w, Tensor *t)
{
    if (t->dtype == F32)
        return;
    t->dtype = F32;
    t->data = w->c.work ? w->c.work + w->nbytes : NULL;
    w->nbytes += (span(t) * (int64_t)sizeof(float) + 63) / 64 * 64;
}

static void widen(Wide *w, const Call *c)
{
    *w = (Wide){.c = *c};
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

static bool accepts_wide(const Call *c)
{
    int first = c->nin - 2;
    DType d = c->in[first].dtype;
    if ((d != BF16 && d != F16) || !dense(&c->in[first]) || !dense(&c->in[first + 1]))
        return false;
    if (first && c->in[0].dtype != F32 && !tensor_contiguous(&c->in[0]))
        return false;
    Wide w;
    widen(&w, c);
    return accepts(&w.c);
}

static int64_t workspace_wide(Ctx *ctx, const Call *c)
{
    Wide w;
    widen(&w, c);
    return w.nbytes + workspace(ctx, &w.c);
}

static void prepare_wide(Call *c, Arena *a)
{
    Wide w;
    widen(&w, c);
    w.c.nbytes_work = c->nbytes_work - w.nbytes;
    prepare(&w.c, a);
    c->state = w.c.state;
}

typedef struct Convert {
    float *wide;
    uint16_t *narrow;
    DType dtype;
} Convert;

KERNEL static void load(void *arg, int64_t lo, int64_t hi)
{
    const Convert *x = arg;
    float *restrict to = x->wide;
    if (x->dtype == BF16)
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_bf16_to_f32(x->narrow[i]);
    else
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f16_to_f32(x->narrow[i]);
}

KERNEL static void store(void *arg, int64_t lo, int64_t hi)
{
    const Convert *x = arg;
    uint16_t *restrict to = x->narrow;
    if (x->dtype == BF16)
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f32_to_bf16(x->wide[i]);
    else
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f32_to_f16(x->wide[i]);
}

static void convert(const Tensor *wide, const Tensor *narrow, void (*fn)(void *, int64_t, int64_t))
{
    Convert x = {(float *)wide->data, (uint16_t *)narrow->data, narrow->dtype};
    if (narrow->dtype != F32)
        par_for(span(narrow), 16384, fn, &x);
}

static int run_wide(Call *c)
{
    Wide w;
    widen(&w, c);
    for (int i = 0; i < c->nin; i++)
        convert(&w.in[i], &c->in[i], load);
    if (run(&w.c)) {
        memcpy(c->message, w.c.message, sizeof c->message);
        return -1;
    }
    convert(&w.out[0], &c->out[0], store);
    return 0;
}

const Kernel matmul_kernels[] = {
    {.name = "onednn", .accepts = accepts, .workspace = workspace, .prepare = prepare, .run = run},
    {.name = "onednn_widened",
     .accepts = accepts_wide,
     .workspace = workspace_wide,
     .prepare = prepare_wide,
     .run = run_wide},
    {0},
};
