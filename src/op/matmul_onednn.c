/* The kernels of mm, bmm and addmm (matmul.c): oneDNN's matmul primitive, made once in prepare()
 * for the call's shapes, strides and thread count, with a scratchpad that is part of the plan;
 * run() sets addresses and executes. How large the scratchpad is oneDNN says by a description of
 * the primitive, once for all calls of a context that are described alike.
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
 * Beside the scratchpad oneDNN 2.6 keeps, measured: 1.5 MiB of code at first and up to 0.1 MiB for
 * each new shape and layout, shared by all products of that shape; 4 KiB for each product; and
 * where it falls back to its packed gemm (operands with a leading dimension beyond their extent,
 * processors without AVX-512) up to 12 MiB of buffers on 2 threads, 15 MiB on 8, while a product
 * runs.
 *
 * It counts in 32 bits in places, and says nothing where they do not suffice. Of 2^32 rows 0 are
 * left, by which it divides, and of 2^32 + 64 it multiplies 64: sizes of 2^31 and more are refused.
 * Bytes to a row of a block of operands without gaps are too many from a leading dimension of some
 * 19 million on, where it crashed or summed what lies elsewhere: such operands are given a gap,
 * with which the packed gemm takes them, that counts in 64 bits (tests/test_matmul.c). */
#include "matmul.h"

#include "vmath.h"

#include <oneapi/dnnl/dnnl.h>
#include <sys/mman.h>

enum { MOST_LEADING = 1 << 23 };

/* ---- what oneDNN is told ---- */

static dnnl_data_type_t type_of(const Tensor *t)
{
    return t->dtype == F32 ? dnnl_f32 : dnnl_bf16;
}

/* oneDNN's description of t: the strides of axes of size 1 are ours to choose, so that a column or
 * a row of something larger is a matrix too. False where t is no matrix with a leading dimension.
 * As for `packed`, a matrix is a batch of one, with a gap behind it. */
static bool describe(const Tensor *t, bool packed, dnnl_memory_desc_t *md)
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
    dnnl_data_type_t dtype = type_of(t);
    dnnl_dims_t dim2 = {x.rows, x.cols}, stride2 = {row, col};
    dnnl_dims_t dim3 = {x.batch, x.rows, x.cols}, stride3 = {batch + (packed ? 32 : 0), row, col};
    return (t->rank == 2 && !packed
                ? dnnl_memory_desc_init_by_strides(md, 2, dim2, dtype, stride2)
                : dnnl_memory_desc_init_by_strides(md, 3, dim3, dtype, stride3)) == dnnl_success;
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
    dnnl_cpu_isa_t has = dnnl_get_effective_cpu_isa(), core = dnnl_cpu_isa_avx512_core_bf16;
    return d == F32 || (d == BF16 && (has & core) == core);
}

static bool accepts(const Call *c)
{
    int first = c->nin - 2;
    const Tensor *a = &c->in[first], *b = &c->in[first + 1], *y = &c->out[0];
    dnnl_memory_desc_t md;
    if (!tensor_nelem(a) || !tensor_nelem(b) || !matmul_fast(a->dtype) || !accepts_bias(c))
        return false;
    if (y->rank == 3 && y->dim[0] > 1 && !a->stride[0] && !b->stride[0])
        return false; /* oneDNN repeats one operand, not both */
    if (a->dtype != F32 && !(a->dtype == BF16 && dense(a) && dense(b)))
        return false;
    return describe(a, false, &md) && describe(b, false, &md);
}

/* Whether the rows or columns of an operand are so far apart that blocks of them are beyond 2^31
 * bytes. */
static bool far_rows(const Call *c)
{
    for (int i = c->nin - 2; i <= c->nin; i++) {
        Matrix x = matrix(i < c->nin ? &c->in[i] : &c->out[0]);
        if (MAX(x.stride[1], x.stride[2]) > MOST_LEADING)
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
        if (size[i] > INT32_MAX)
            fail(ctx, TN_FAIL,
                 "%s %%%s: expected sizes of at most %d, which oneDNN counts to, found %lld (%s)%s",
                 c->node->op->name, c->node->out[0]->name, INT32_MAX, (long long)size[i], names[i],
                 i < 2 ? "; of a model's command a smaller batch would do, or --accumulate" : "");
    if (y.batch > 1 && far_rows(c))
        fail(ctx, TN_FAIL,
             "%s %%%s: expected rows of at most %d elements in a batch of matrices, found operands "
             "with longer ones",
             c->node->op->name, c->node->out[0]->name, MOST_LEADING);
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
    dnnl_cpu_isa_t amx = dnnl_cpu_isa_avx512_core_amx;
    if ((c->nin > 2 && !adds_to(c)) || a->dtype != BF16 || y->rank != 2 ||
        (dnnl_get_effective_cpu_isa() & amx) == amx)
        return false;
    return y->dtype == F32 || 32 * tensor_nelem(y) <= tensor_nelem(a) + tensor_nelem(b);
}

static void need(dnnl_status_t status, Ctx *ctx, const Call *c, const char *what)
{
    if (status != dnnl_success)
        fail(ctx, TN_FAIL, "%s %%%s: oneDNN cannot make its %s (status %d)", c->node->op->name,
             c->node->out[0]->name, what, (int)status);
}

/* What oneDNN is told of a product: operands, result, and the bias that it adds, or that the result
 * is added to what lies there. */
typedef struct Form {
    dnnl_memory_desc_t a, b, y, bias;
    bool has_bias, adds;
} Form;

static Form form_of(Ctx *ctx, const Call *c)
{
    int first = c->nin - 2;
    Form f = {.has_bias = row_bias(c), .adds = adds_to(c)};
    check_sizes(ctx, c);
    bool pack = packed(c);
    CHECK(describe(&c->in[first], pack, &f.a) && describe(&c->in[first + 1], pack, &f.b) &&
          describe(&c->out[0], pack, &f.y));
    if (f.has_bias) {
        int64_t n = c->out[0].dim[1];
        dnnl_dims_t dim = {1, pack ? 1 : n, n}, stride = {n, pack ? n : 1, 1};
        need(dnnl_memory_desc_init_by_strides(&f.bias, pack ? 3 : 2, dim, type_of(&c->in[0]),
                                              stride),
             ctx, c, "bias description");
    }
    return f;
}

/* ---- the workspace ---- */

static void drop_engine(void *what)
{
    dnnl_engine_t *engine = what;
    if (*engine)
        dnnl_engine_destroy(*engine);
}

/* oneDNN describes nothing without an engine: all of a context share one, which holds no threads
 * and no cache. */
static dnnl_engine_t get_engine(Ctx *ctx, const Call *c)
{
    static const char key[] = "onednn engine";
    dnnl_engine_t *engine = memo_find(ctx, key, sizeof key);
    if (!engine) {
        engine = NEW(memo_arena(ctx), dnnl_engine_t);
        arena_defer(memo_arena(ctx), drop_engine, engine);
        memo_put(ctx, key, sizeof key, engine);
    }
    if (!*engine)
        need(dnnl_engine_create(engine, dnnl_cpu, 0), ctx, c, "engine");
    return *engine;
}

/* The primitive's description: f32 sums whatever the environment says, scratchpad in the plan. */
static void make_desc(Ctx *ctx, const Call *c, const Form *f, dnnl_primitive_desc_t *desc)
{
    dnnl_engine_t engine = get_engine(ctx, c);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t then = NULL;
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, &f->a, &f->b, f->has_bias ? &f->bias : NULL, &f->y);
    if (!s)
        s = dnnl_primitive_attr_create(&attr);
    if (!s)
        s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!s)
        s = dnnl_primitive_attr_set_fpmath_mode(attr, dnnl_fpmath_mode_strict);
    if (!s && f->adds)
        s = dnnl_post_ops_create(&then);
    if (!s && f->adds)
        s = dnnl_post_ops_append_sum(then, 1);
    if (!s && f->adds)
        s = dnnl_primitive_attr_set_post_ops(attr, then);
    if (!s)
        s = dnnl_primitive_desc_create(desc, &d, attr, engine, NULL);
    if (then)
        dnnl_post_ops_destroy(then);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    need(s, ctx, c, "primitive description");
}

static const dnnl_memory_desc_t *scratch_of(dnnl_primitive_desc_t desc)
{
    return dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
}

/* All that a scratchpad depends on, without gaps: a key. */
typedef struct Question {
    char what[16];
    int64_t nthread, adds;
    struct {
        int64_t dtype, rank, dim[3], stride[3];
    } of[4];
} Question;

static Question question_of(const Form *f)
{
    const dnnl_memory_desc_t *md[] = {&f->a, &f->b, &f->y, &f->bias};
    Question q = {.what = "onednn matmul", .nthread = par_threads(), .adds = f->adds};
    for (int i = 0; i < 3 + f->has_bias; i++) {
        q.of[i].dtype = md[i]->data_type;
        q.of[i].rank = md[i]->ndims;
        for (int d = 0; d < md[i]->ndims; d++) {
            q.of[i].dim[d] = md[i]->dims[d];
            q.of[i].stride[d] = md[i]->format_desc.blocking.strides[d];
        }
    }
    return q;
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    Form f = form_of(ctx, c);
    Question q = question_of(&f);
    int64_t *nbytes = memo_find(ctx, &q, sizeof q);
    if (nbytes)
        return *nbytes;
    nbytes = NEW(memo_arena(ctx), int64_t);
    dnnl_primitive_desc_t desc;
    make_desc(ctx, c, &f, &desc);
    *nbytes = (int64_t)dnnl_memory_desc_get_size(scratch_of(desc));
    dnnl_primitive_desc_destroy(desc);
    memo_put(ctx, &q, sizeof q, nbytes);
    return *nbytes;
}

/* ---- one primitive ---- */

/* What prepare() makes. */
typedef struct Primitive {
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, y, scratch;
} Primitive;

static void drop(void *what)
{
    Primitive *p = what;
    dnnl_memory_t memory[] = {p->a, p->b, p->bias, p->y, p->scratch};
    for (int i = 0; i < LEN(memory); i++)
        if (memory[i])
            dnnl_memory_destroy(memory[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    if (p->desc)
        dnnl_primitive_desc_destroy(p->desc);
    if (p->stream)
        dnnl_stream_destroy(p->stream);
}

static void make_memory(Primitive *p, Ctx *ctx, const Call *c, const Form *f)
{
    dnnl_engine_t engine = get_engine(ctx, c);
    const dnnl_memory_desc_t *md[] = {&f->a, &f->b, &f->y, scratch_of(p->desc), &f->bias};
    dnnl_memory_t *memory[] = {&p->a, &p->b, &p->y, &p->scratch, &p->bias};
    for (int i = 0; i < 4 + f->has_bias; i++)
        need(dnnl_memory_create(memory[i], md[i], engine, DNNL_MEMORY_NONE), ctx, c, "memory");
}

/* Where oneDNN cannot map its code it crashes, so that there is room is tried before. */
static void check_room(Ctx *ctx, const Call *c)
{
    const size_t room = (size_t)16 << 20;
    void *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail(ctx, TN_FAIL, "%s %%%s: out of memory: oneDNN may need %zu bytes beside the plan",
             c->node->op->name, c->node->out[0]->name, room);
    munmap(p, room);
}

static void prepare(Call *c, Arena *a)
{
    Ctx *ctx = arena_ctx(a);
    Primitive *p = c->state = NEW(a, Primitive);
    arena_defer(a, drop, p);
    Form f = form_of(ctx, c);
    check_room(ctx, c);
    make_desc(ctx, c, &f, &p->desc);
    CHECK((int64_t)dnnl_memory_desc_get_size(scratch_of(p->desc)) == c->nbytes_work);
    need(dnnl_stream_create(&p->stream, get_engine(ctx, c), dnnl_stream_default_flags), ctx, c,
         "stream");
    need(dnnl_primitive_create(&p->primitive, p->desc), ctx, c, "primitive");
    make_memory(p, ctx, c, &f);
}

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
    const Primitive *p = c->state;
    int first = c->nin - 2;
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a},     {DNNL_ARG_WEIGHTS, p->b},
        {DNNL_ARG_DST, p->y},     {DNNL_ARG_SCRATCHPAD, p->scratch},
        {DNNL_ARG_BIAS, p->bias},
    };
    void *data[] = {c->in[first].data, c->in[first + 1].data, c->out[0].data, c->work,
                    c->in[0].data};
    int nargs = p->bias ? 5 : 4;
    dnnl_status_t status = dnnl_success;
    if (adds_to(c) && c->in[0].data != c->out[0].data)
        strided_copy(&c->out[0], &c->in[0]);
    for (int i = 0; i < nargs && !status; i++)
        status = dnnl_memory_set_data_handle(args[i].memory, data[i]);
    if (!status)
        status = dnnl_primitive_execute(p->primitive, p->stream, nargs, args);
    if (!status)
        status = dnnl_stream_wait(p->stream);
    if (status)
        return run_fail(c, "oneDNN product failed (status %d)", (int)status);
    if (first && !p->bias && !adds_to(c)) {
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
