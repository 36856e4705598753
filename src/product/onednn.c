/* oneDNN's C interface, of 2.6 and of 3.x: its matmul primitive, and the reorder that brings an
 * operand into the layout that matmul likes best. Versions differ in how memory is described (by a
 * structure of the caller's or by a handle) and a primitive is (in two steps or one); here a
 * description of memory is a pointer for both.
 *
 * Only oneDNN's description of a primitive tells its scratchpad and layouts. It is made once for
 * all products of a context that are described alike, by threads, and what it said is remembered.
 *
 * Beside the scratchpad it keeps, measured in 2.6.3 and 3.2.0 (2 threads): code, 0.08 and 0.11 MiB
 * for each new shape and layout, shared by all products of that shape; 4.3 KiB for each product,
 * 7.3 where it packs; and where it takes its packed gemm (operands with gaps, processors without
 * AVX-512) buffers while a product runs, seldom given back: over 48 products of f32 30 and 14 MiB
 * on one thread, 46 and 52 on 2, 44 and 56 on 4, of bf16 17 and 21, 34 and 35, 37 and 31. */
#include "library.h"

#include <string.h>
#include <sys/mman.h>

/* ---- where versions differ ---- */

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t describe(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, LiesThere a,
                              LiesThere b, LiesThere bias, LiesThere y, dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(desc, engine, a, b, bias, y, attr);
}

static dnnl_status_t add_to_result(dnnl_post_ops_t then)
{
    return dnnl_post_ops_append_sum(then, 1, 0, dnnl_data_type_undef);
}

#else

static dnnl_status_t describe(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, LiesThere a,
                              LiesThere b, LiesThere bias, LiesThere y, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, a, b, bias, y);
    return s ? s : dnnl_primitive_desc_create(desc, &d, attr, engine, NULL);
}

static dnnl_status_t add_to_result(dnnl_post_ops_t then)
{
    return dnnl_post_ops_append_sum(then, 1);
}

#endif

/* ---- the library ---- */

const char *onednn_version(char text[ONE_VERSION])
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, ONE_VERSION, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

unsigned onednn_isa_bits(void)
{
    return (unsigned)dnnl_get_effective_cpu_isa();
}

static const dnnl_cpu_isa_t isa_table[] = {
    [ISA_BASE] = dnnl_cpu_isa_sse41,          [ISA_AVX2] = dnnl_cpu_isa_avx2,
    [ISA_AVX512] = dnnl_cpu_isa_avx512_core,  [ISA_BF16] = dnnl_cpu_isa_avx512_core_bf16,
    [ISA_AMX] = dnnl_cpu_isa_avx512_core_amx,
};

Isa onednn_isa(void)
{
    unsigned has = onednn_isa_bits();
    int i = ISA_AMX;
    while (i > ISA_BASE && (has & isa_table[i]) != isa_table[i])
        i--;
    return (Isa)i;
}

/* At load, as the library takes a limit only before it is used. */
__attribute__((constructor)) static void limit(void)
{
    int most = isa_asked();
    if (most >= ISA_BASE)
        dnnl_set_max_cpu_isa(isa_table[most]);
}

OneKeeps onednn_keeps(void)
{
    const int64_t mib = 1 << 20;
    return (OneKeeps){.once = (DNNL_VERSION_MAJOR >= 3 ? 20 : 16) * mib,
                      .each_thread = (onednn_isa() >= ISA_AVX512 ? 2 : 8) * mib,
                      .each_run = 8 << 10,
                      .each_twin = 4 << 10,
                      .gemm = 16 * mib,
                      .gemm_threads = 2};
}

/* ---- descriptions ---- */

/* The strides of a row or a column that is the only one are ours to choose. The library takes two
 * descriptions for equal that differ in these alone, and gives what it keeps of one for the other,
 * though it is of other bytes: so there is only one. */
static OneMatrix plain(const OneMatrix *m)
{
    OneMatrix x = *m;
    int row = m->rank - 2, col = m->rank - 1;
    if (x.dim[col] == 1)
        x.stride[col] = 1;
    if (x.dim[row] == 1)
        x.stride[row] = x.stride[col] == 1 ? x.dim[col] : 1;
    return x;
}

static dnnl_status_t lies(Lies *x, const OneMatrix *m, bool own)
{
    OneMatrix p = plain(m);
    dnnl_data_type_t dtype = m->dtype == F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_dims_t dim, stride;
    CHECK(m->dtype == F32 || m->dtype == BF16);
    memcpy(dim, p.dim, sizeof p.dim);
    memcpy(stride, p.stride, sizeof p.stride);
    return own ? lies_any(x, m->rank, dim, dtype) : lies_new(x, m->rank, dim, dtype, stride);
}

bool onednn_describes(const OneMatrix *m)
{
    Lies x = NULL;
    dnnl_status_t s = lies(&x, m, false);
    lies_drop(x);
    return s == dnnl_success || s == dnnl_out_of_memory; /* of which whoever makes it will say */
}

enum { A, B, NOPERAND };

/* A product as the library is told, and its answer, while one is described. pack: of operands in
 * its own layout; NULL where that is how they lie. */
typedef struct ProductForm {
    Lies from[NOPERAND], to[NOPERAND], y, bias;
    dnnl_primitive_desc_t product, pack[NOPERAND];
} ProductForm;

static void drop_form(ProductForm *f)
{
    drop_desc(f->product);
    lies_drop(f->y);
    lies_drop(f->bias);
    for (int i = 0; i < NOPERAND; i++) {
        drop_desc(f->pack[i]);
        lies_drop(f->from[i]);
        lies_drop(f->to[i]);
    }
}

dnnl_status_t onednn_attr(dnnl_primitive_attr_t *attr)
{
    dnnl_status_t s = dnnl_primitive_attr_create(attr);
    if (!s)
        s = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    return s ? s : dnnl_primitive_attr_set_fpmath_mode(*attr, dnnl_fpmath_mode_strict);
}

static dnnl_status_t describe_product(ProductForm *f, const OneProduct *p, dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t then = NULL;
    dnnl_status_t s = onednn_attr(&attr);
    if (!s && p->adds)
        s = dnnl_post_ops_create(&then);
    if (!s && p->adds)
        s = add_to_result(then);
    if (!s && p->adds)
        s = dnnl_primitive_attr_set_post_ops(attr, then);
    if (!s)
        s = describe(&f->product, engine, f->to[A], f->to[B], f->bias, f->y, attr);
    if (then)
        dnnl_post_ops_destroy(then);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

static LiesThere operand(const_dnnl_primitive_desc_t product, int i)
{
    return dnnl_primitive_desc_query_md(product, i == A ? dnnl_query_src_md : dnnl_query_weights_md,
                                        0);
}

static dnnl_status_t describe_pack(ProductForm *f, int i, dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_memory_desc_equal(f->from[i], operand(f->product, i)))
        return dnnl_success;
    dnnl_status_t s = onednn_attr(&attr);
    if (!s)
        s = dnnl_reorder_primitive_desc_create(&f->pack[i], f->from[i], engine,
                                               operand(f->product, i), engine, attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

int onednn_begin(bool alone)
{
    int nthread = par_threads();
    if (alone && nthread > 1)
        par_set_threads(1);
    return nthread;
}

void onednn_end(int nthread)
{
    if (par_threads() != nthread)
        par_set_threads(nthread);
}

dnnl_status_t onednn_create(dnnl_primitive_t *x, const_dnnl_primitive_desc_t desc, bool alone)
{
    int nthread = onednn_begin(alone);
    dnnl_status_t s = dnnl_primitive_create(x, desc);
    onednn_end(nthread);
    return s;
}

int onednn_execute(dnnl_stream_t stream, dnnl_primitive_t primitive, bool alone, int nargs,
                   const dnnl_exec_arg_t *args)
{
    int nthread = onednn_begin(alone);
    dnnl_status_t s = dnnl_primitive_execute(primitive, stream, nargs, args);
    s = s ? s : dnnl_stream_wait(stream);
    onednn_end(nthread);
    return (int)s;
}

int onednn_reorder(dnnl_stream_t stream, dnnl_primitive_t primitive, bool alone,
                   const OneReorder *memory, const void *from, void *to, void *scratch)
{
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, memory->from},
                              {DNNL_ARG_TO, memory->to},
                              {DNNL_ARG_SCRATCHPAD, memory->scratch}};
    const void *at[] = {from, to, scratch};
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < LEN(args) && !s; i++)
        s = set(args[i].memory, at[i]);
    return s ? (int)s : onednn_execute(stream, primitive, alone, LEN(args), args);
}

/* Fills f, of which what was made is to be dropped even if this fails. */
static dnnl_status_t form(ProductForm *f, const OneProduct *p, dnnl_engine_t engine)
{
    const OneMatrix *in[] = {&p->a, &p->b};
    dnnl_status_t s = lies(&f->y, &p->y, false);
    if (!s && p->has_bias)
        s = lies(&f->bias, &p->bias, false);
    for (int i = 0; i < NOPERAND && !s; i++) {
        s = lies(&f->to[i], in[i], in[i]->own);
        if (!s && in[i]->own)
            s = lies(&f->from[i], in[i], false);
    }
    int nthread = onednn_begin(p->alone);
    if (!s)
        s = describe_product(f, p, engine);
    onednn_end(nthread);
    for (int i = 0; i < NOPERAND && !s; i++)
        if (in[i]->own)
            s = describe_pack(f, i, engine);
    return s;
}

static OneRoom room_of(const ProductForm *f)
{
    OneRoom room = {.scratch = size_of(scratch_of(f->product))};
    int64_t *own[] = {&room.a, &room.b};
    for (int i = 0; i < NOPERAND; i++) {
        if (!f->pack[i])
            continue;
        *own[i] = size_of(operand(f->product, i));
        room.scratch = MAX(room.scratch, size_of(scratch_of(f->pack[i])));
    }
    return room;
}

/* ---- what is remembered in a context ---- */

void onednn_need(dnnl_status_t status, Ctx *ctx, const Node *n, const char *what)
{
    if (status != dnnl_success)
        fail(ctx, TN_FAIL, "%s%s%s: oneDNN cannot make its %s (status %d)",
             n ? n->op->name : "product", n ? " %" : "", n ? n->out[0]->name : "", what,
             (int)status);
}

static void drop_engine(void *what)
{
    dnnl_engine_t *engine = what;
    if (*engine)
        dnnl_engine_destroy(*engine);
}

dnnl_engine_t onednn_engine(Ctx *ctx, const Node *n)
{
    static const char key[] = "onednn engine";
    dnnl_engine_t *engine = memo_find(ctx, key, sizeof key);
    if (!engine) {
        engine = NEW(memo_arena(ctx), dnnl_engine_t);
        arena_defer(memo_arena(ctx), drop_engine, engine);
        memo_put(ctx, key, sizeof key, engine);
    }
    if (isa_asked() >= ISA_BASE && (int)onednn_isa() > isa_asked())
        fail(ctx, TN_USAGE, "TN_ISA=%s: oneDNN was in use before this library was loaded",
             isa_name((Isa)isa_asked()));
    if (!*engine)
        onednn_need(dnnl_engine_create(engine, dnnl_cpu, 0), ctx, n, "engine");
    return *engine;
}

/* All that the answer depends on, without gaps: a key. */
typedef struct Question {
    char what[16];
    int64_t nthread, alone, adds;
    struct {
        int64_t dtype, rank, own, dim[3], stride[3];
    } of[4];
} Question;

typedef struct Answer {
    dnnl_status_t status;
    OneRoom room;
} Answer;

static Question question_of(const OneProduct *p)
{
    const OneMatrix *m[] = {&p->a, &p->b, &p->y, &p->bias};
    Question q = {
        .what = "onednn matmul", .nthread = par_threads(), .alone = p->alone, .adds = p->adds};
    for (int i = 0; i < 3 + p->has_bias; i++) {
        OneMatrix x = plain(m[i]);
        q.of[i].dtype = x.dtype;
        q.of[i].rank = x.rank;
        q.of[i].own = x.own;
        memcpy(q.of[i].dim, x.dim, sizeof *x.dim * (size_t)x.rank);
        memcpy(q.of[i].stride, x.stride, sizeof *x.stride * (size_t)x.rank);
    }
    return q;
}

static const Answer *ask(Ctx *ctx, const Node *n, const OneProduct *p)
{
    Question q = question_of(p);
    Answer *x = memo_find(ctx, &q, sizeof q);
    if (x)
        return x;
    dnnl_engine_t engine = onednn_engine(ctx, n);
    x = NEW(memo_arena(ctx), Answer);
    ProductForm f = {.y = NULL};
    x->status = form(&f, p, engine);
    if (!x->status)
        x->room = room_of(&f);
    drop_form(&f);
    if (x->status == dnnl_out_of_memory)
        onednn_need(x->status, ctx, n, "primitive description");
    memo_put(ctx, &q, sizeof q, x);
    return x;
}

bool onednn_has(Ctx *ctx, const OneProduct *p)
{
    return ask(ctx, NULL, p)->status == dnnl_success;
}

OneRoom onednn_room(Ctx *ctx, const Node *n, const OneProduct *p)
{
    const Answer *x = ask(ctx, n, p);
    onednn_need(x->status, ctx, n, "primitive description");
    return x->room;
}

/* ---- one product ---- */

/* Primitives, which may run in several threads at once. They keep a description of their own, which
 * those made alike share. */
typedef struct MadeProduct {
    dnnl_primitive_t product, pack[NOPERAND];
    bool has_bias, alone;
} MadeProduct;

enum { SLOT_A, SLOT_B, SLOT_Y, SLOT_SCRATCH, SLOT_BIAS, NSLOT };

/* The part with addresses, which runs in one thread at a time. from, scratch: of packing. */
struct OneRun {
    const MadeProduct *made;
    dnnl_stream_t stream;
    dnnl_memory_t memory[NSLOT], from[NOPERAND], scratch[NOPERAND];
};

static void drop_made(void *what)
{
    MadeProduct *x = what;
    drop_primitive(x->product);
    for (int i = 0; i < NOPERAND; i++)
        drop_primitive(x->pack[i]);
}

static void drop_run(void *what)
{
    OneRun *x = what;
    for (int i = 0; i < NSLOT; i++)
        drop_memory(x->memory[i]);
    for (int i = 0; i < NOPERAND; i++) {
        drop_memory(x->from[i]);
        drop_memory(x->scratch[i]);
    }
    if (x->stream)
        dnnl_stream_destroy(x->stream);
}

void onednn_check_room(Ctx *ctx, const Node *n)
{
    const size_t room = (size_t)16 << 20;
    void *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail(ctx, TN_FAIL, "%s%s%s: out of memory: oneDNN may need %zu bytes beside the plan",
             n ? n->op->name : "product", n ? " %" : "", n ? n->out[0]->name : "", room);
    munmap(p, room);
}

static LiesThere there(const_dnnl_primitive_desc_t desc, int slot)
{
    static const struct {
        dnnl_query_t what;
        int index;
    } of[NSLOT] = {[SLOT_A] = {dnnl_query_src_md, 0},
                   [SLOT_B] = {dnnl_query_weights_md, 0},
                   [SLOT_Y] = {dnnl_query_dst_md, 0},
                   [SLOT_SCRATCH] = {dnnl_query_scratchpad_md, 0},
                   [SLOT_BIAS] = {dnnl_query_weights_md, 1}};
    return dnnl_primitive_desc_query_md(desc, of[slot].what, of[slot].index);
}

static dnnl_status_t make_memory(OneRun *x, dnnl_engine_t engine)
{
    const_dnnl_primitive_desc_t desc;
    dnnl_status_t s = dnnl_primitive_get_primitive_desc(x->made->product, &desc);
    for (int i = 0; i < NSLOT - !x->made->has_bias && !s; i++)
        s = dnnl_memory_create(&x->memory[i], there(desc, i), engine, DNNL_MEMORY_NONE);
    for (int i = 0; i < NOPERAND && !s; i++) {
        if (!x->made->pack[i])
            continue;
        s = dnnl_primitive_get_primitive_desc(x->made->pack[i], &desc);
        if (!s)
            s = dnnl_memory_create(&x->from[i], there(desc, SLOT_A), engine, DNNL_MEMORY_NONE);
        if (!s)
            s = dnnl_memory_create(&x->scratch[i], there(desc, SLOT_SCRATCH), engine,
                                   DNNL_MEMORY_NONE);
    }
    return s;
}

static OneRun *run_of(Arena *a, const Node *n, const MadeProduct *made)
{
    Ctx *ctx = arena_ctx(a);
    dnnl_engine_t engine = onednn_engine(ctx, n);
    OneRun *x = NEW(a, OneRun);
    arena_defer(a, drop_run, x);
    x->made = made;
    onednn_need(dnnl_stream_create(&x->stream, engine, dnnl_stream_default_flags), ctx, n,
                "stream");
    onednn_need(make_memory(x, engine), ctx, n, "memory");
    return x;
}

/* found: what it takes, as it is made. */
static dnnl_status_t make_primitive(MadeProduct *x, const OneProduct *p, dnnl_engine_t engine,
                                    OneRoom *found)
{
    ProductForm f = {.y = NULL};
    dnnl_status_t s = form(&f, p, engine);
    if (!s)
        *found = room_of(&f);
    if (!s)
        s = onednn_create(&x->product, f.product, p->alone);
    for (int i = 0; i < NOPERAND && !s; i++)
        if (f.pack[i])
            s = dnnl_primitive_create(&x->pack[i], f.pack[i]);
    drop_form(&f);
    return s;
}

OneRun *onednn_make(Arena *a, const Node *n, const OneProduct *p)
{
    Ctx *ctx = arena_ctx(a);
    OneRoom room = onednn_room(ctx, n, p), found = {0};
    dnnl_engine_t engine = onednn_engine(ctx, n);
    MadeProduct *x = NEW(a, MadeProduct);
    arena_defer(a, drop_made, x);
    x->has_bias = p->has_bias;
    x->alone = p->alone;
    onednn_check_room(ctx, n);
    onednn_need(make_primitive(x, p, engine, &found), ctx, n, "primitive");
    CHECK(!memcmp(&found, &room, sizeof room));
    return run_of(a, n, x);
}

OneRun *onednn_twin(Arena *a, const Node *n, const OneRun *run)
{
    return run_of(a, n, run->made);
}

int onednn_pack(OneRun *x, bool of_b, const void *data, void *own, void *scratch)
{
    const OneReorder memory = {x->from[of_b], x->memory[of_b ? SLOT_B : SLOT_A], x->scratch[of_b]};
    return onednn_reorder(x->stream, x->made->pack[of_b], false, &memory, data, own, scratch);
}

int onednn_run(OneRun *x, const void *a, const void *b, const void *bias, void *y, void *scratch)
{
    static const int what[NSLOT] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                    DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};
    const void *at[NSLOT] = {a, b, y, scratch, bias};
    dnnl_exec_arg_t args[NSLOT];
    int nargs = x->memory[SLOT_BIAS] ? NSLOT : NSLOT - 1;
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < nargs && !s; i++) {
        args[i] = (dnnl_exec_arg_t){what[i], x->memory[i]};
        s = set(x->memory[i], at[i]);
    }
    return s ? (int)s : onednn_execute(x->stream, x->made->product, x->made->alone, nargs, args);
}
