/* The library's convolution primitives and the reorders of their tensors (library.h). Each tensor
 * is described as the library likes it best; only that description tells its size. What a
 * description said is remembered in the context, as that of a product is. */
#include "onednn_conv.h"

#include "library.h"

#include <string.h>

enum { NDESC = ONE_TENSORS + 1, BIAS = ONE_TENSORS };

/* A convolution as the library is told, and its answer, while it is described. move: NULL where a
 * tensor lies as the library likes it. */
typedef struct ConvForm {
    Lies plain[NDESC], own[ONE_TENSORS];
    dnnl_primitive_desc_t conv, move[ONE_TENSORS];
} ConvForm;

static void drop_form(ConvForm *f)
{
    drop_desc(f->conv);
    for (int i = 0; i < NDESC; i++)
        lies_drop(f->plain[i]);
    for (int i = 0; i < ONE_TENSORS; i++) {
        lies_drop(f->own[i]);
        drop_desc(f->move[i]);
    }
}

/* ---- descriptions ---- */

static dnnl_data_type_t type_of(int64_t dtype)
{
    CHECK(dtype == F32 || dtype == BF16);
    return dtype == F32 ? dnnl_f32 : dnnl_bf16;
}

/* The library's axes of a tensor; of one group the weight has no axis of groups. */
static int axes_of(const OneConv *c, int tensor, dnnl_dim_t *dim)
{
    const int64_t *space[ONE_TENSORS] = {c->image, c->kernel, c->map};
    int rank = 0;
    if (tensor == ONE_WEIGHT) {
        if (c->groups > 1)
            dim[rank++] = c->groups;
        dim[rank++] = c->out;
        dim[rank++] = c->in;
    } else {
        dim[rank++] = c->batch;
        dim[rank++] = c->groups * (tensor == ONE_IMAGE ? c->in : c->out);
    }
    for (int64_t d = ONE_SPACE - c->axes; d < ONE_SPACE; d++)
        dim[rank++] = space[tensor][d];
    return rank;
}

static dnnl_status_t describe_tensor(ConvForm *f, const OneConv *c, int i)
{
    dnnl_dims_t dim = {0}, stride = {0};
    int rank = axes_of(c, i, dim);
    stride[rank - 1] = 1;
    for (int d = rank - 2; d >= 0; d--)
        stride[d] = stride[d + 1] * dim[d + 1];
    if (i != ONE_WEIGHT && c->batch > 1)
        stride[0] = c->next[i];
    dnnl_status_t s = lies_new(&f->plain[i], rank, dim, type_of(c->plain[i]), stride);
    return s ? s : lies_any(&f->own[i], rank, dim, type_of(c->own[i]));
}

static dnnl_status_t describe_bias(ConvForm *f, const OneConv *c)
{
    dnnl_dims_t dim = {c->groups * c->out}, stride = {1};
    return lies_new(&f->plain[BIAS], 1, dim, dnnl_f32, stride);
}

/* The library's lists: of the axes that are there; dilations begin at 0. */
typedef struct ConvSteps {
    dnnl_dims_t stride, dilation, before, after;
} ConvSteps;

static ConvSteps steps_of(const OneConv *c)
{
    ConvSteps x = {{0}, {0}, {0}, {0}};
    for (int64_t d = ONE_SPACE - c->axes, i = 0; d < ONE_SPACE; d++, i++) {
        x.stride[i] = c->stride[d];
        x.dilation[i] = c->dilation[d] - 1;
        x.before[i] = c->before[d];
        x.after[i] = c->after[d];
    }
    return x;
}

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t describe(ConvForm *f, const OneConv *c, dnnl_engine_t e,
                              dnnl_primitive_attr_t attr)
{
    const ConvSteps x = steps_of(c);
    LiesThere image = f->own[ONE_IMAGE], weight = f->own[ONE_WEIGHT], map = f->own[ONE_MAP];
    if (c->result == ONE_MAP)
        return dnnl_convolution_forward_primitive_desc_create(
            &f->conv, e, dnnl_forward_inference, dnnl_convolution_direct, image, weight,
            f->plain[BIAS], map, x.stride, x.dilation, x.before, x.after, attr);
    if (c->result == ONE_IMAGE)
        return dnnl_convolution_backward_data_primitive_desc_create(
            &f->conv, e, dnnl_convolution_direct, image, weight, map, x.stride, x.dilation,
            x.before, x.after, NULL, attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(
        &f->conv, e, dnnl_convolution_direct, image, weight, NULL, map, x.stride, x.dilation,
        x.before, x.after, NULL, attr);
}

#else

static dnnl_status_t describe(ConvForm *f, const OneConv *c, dnnl_engine_t e,
                              dnnl_primitive_attr_t attr)
{
    const ConvSteps x = steps_of(c);
    LiesThere image = f->own[ONE_IMAGE], weight = f->own[ONE_WEIGHT], map = f->own[ONE_MAP];
    dnnl_convolution_desc_t d;
    dnnl_status_t s;
    if (c->result == ONE_MAP)
        s = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_inference, dnnl_convolution_direct, image, weight, f->plain[BIAS], map,
            x.stride, x.dilation, x.before, x.after);
    else if (c->result == ONE_IMAGE)
        s = dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, image,
                                                             weight, map, x.stride, x.dilation,
                                                             x.before, x.after);
    else
        s = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, image,
                                                                weight, NULL, map, x.stride,
                                                                x.dilation, x.before, x.after);
    return s ? s : dnnl_primitive_desc_create(&f->conv, &d, attr, e, NULL);
}

#endif

/* The primitive's names of a tensor, as a description and as an argument. */
static dnnl_query_t query_of(int64_t result, int tensor)
{
    static const dnnl_query_t read[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                        dnnl_query_dst_md},
                              made[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md,
                                        dnnl_query_diff_dst_md};
    bool gradient = result != ONE_MAP && (tensor == result || tensor == ONE_MAP);
    return gradient ? made[tensor] : read[tensor];
}

static int argument_of(int64_t result, int tensor)
{
    static const int read[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                     made[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
    bool gradient = result != ONE_MAP && (tensor == result || tensor == ONE_MAP);
    return gradient ? made[tensor] : read[tensor];
}

static LiesThere own_of(const_dnnl_primitive_desc_t conv, int64_t result, int tensor)
{
    return dnnl_primitive_desc_query_md(conv, query_of(result, tensor), 0);
}

static dnnl_status_t describe_move(ConvForm *f, const OneConv *c, int i, dnnl_engine_t e,
                                   dnnl_primitive_attr_t attr)
{
    LiesThere own = own_of(f->conv, c->result, i), plain = f->plain[i];
    if (dnnl_memory_desc_equal(plain, own))
        return dnnl_success;
    bool made = i == c->result;
    int nthread = onednn_begin(i != ONE_WEIGHT);
    dnnl_status_t s = dnnl_reorder_primitive_desc_create(&f->move[i], made ? own : plain, e,
                                                         made ? plain : own, e, attr);
    onednn_end(nthread);
    return s;
}

/* Fills f, of which what was made is to be dropped even if this fails. */
static dnnl_status_t form(ConvForm *f, const OneConv *c, dnnl_engine_t e)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = onednn_attr(&attr);
    for (int i = 0; i < ONE_TENSORS && !s; i++)
        s = describe_tensor(f, c, i);
    if (!s && c->has_bias)
        s = describe_bias(f, c);
    int nthread = onednn_begin(true);
    if (!s)
        s = describe(f, c, e, attr);
    onednn_end(nthread);
    for (int i = 0; i < ONE_TENSORS && !s; i++)
        s = describe_move(f, c, i, e, attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

static OneConvRoom room_of(const ConvForm *f, const OneConv *c)
{
    OneConvRoom r = {.scratch = size_of(scratch_of(f->conv)),
                     .made = size_of(own_of(f->conv, c->result, (int)c->result))};
    for (int i = 0; i < ONE_TENSORS; i++) {
        if (!f->move[i])
            continue;
        int64_t *scratch = i == ONE_WEIGHT ? &r.weight : &r.scratch;
        *scratch = MAX(*scratch, size_of(scratch_of(f->move[i])));
        r.own[i] = size_of(own_of(f->conv, c->result, i));
    }
    return r;
}

/* ---- what is remembered ---- */

typedef struct ConvQuestion {
    char what[16];
    int64_t nthread;
    OneConv c;
} ConvQuestion;

typedef struct ConvAnswer {
    dnnl_status_t status;
    OneConvRoom room;
} ConvAnswer;

OneConvRoom onednn_conv_room(Ctx *ctx, const Node *n, const OneConv *c)
{
    ConvQuestion q = {.what = "onednn conv", .nthread = par_threads(), .c = *c};
    ConvAnswer *x = memo_find(ctx, &q, sizeof q);
    if (!x) {
        dnnl_engine_t e = onednn_engine(ctx, n);
        ConvForm f = {.conv = NULL};
        x = NEW(memo_arena(ctx), ConvAnswer);
        x->status = form(&f, c, e);
        if (!x->status)
            x->room = room_of(&f, c);
        drop_form(&f);
        if (x->status != dnnl_out_of_memory)
            memo_put(ctx, &q, sizeof q, x);
    }
    onednn_need(x->status, ctx, n, "primitive description");
    return x->room;
}

/* ---- one convolution ---- */

typedef struct MadeConv {
    int64_t result;
    dnnl_primitive_t conv, move[ONE_TENSORS];
    bool has_bias;
} MadeConv;

enum { SLOT_SCRATCH = ONE_TENSORS, SLOT_BIAS, NSLOT };

/* from, to, scratch: of bringing a tensor into another layout. */
struct OneConvRun {
    const MadeConv *made;
    dnnl_stream_t stream;
    dnnl_memory_t memory[NSLOT];
    dnnl_memory_t from[ONE_TENSORS], to[ONE_TENSORS], scratch[ONE_TENSORS];
};

static void drop_made(void *what)
{
    MadeConv *x = what;
    drop_primitive(x->conv);
    for (int i = 0; i < ONE_TENSORS; i++)
        drop_primitive(x->move[i]);
}

static void drop_run(void *what)
{
    OneConvRun *x = what;
    for (int i = 0; i < NSLOT; i++)
        drop_memory(x->memory[i]);
    for (int i = 0; i < ONE_TENSORS; i++) {
        drop_memory(x->from[i]);
        drop_memory(x->to[i]);
        drop_memory(x->scratch[i]);
    }
    if (x->stream)
        dnnl_stream_destroy(x->stream);
}

static dnnl_status_t new_memory(dnnl_memory_t *x, const_dnnl_primitive_desc_t desc,
                                dnnl_query_t what, int index, dnnl_engine_t e)
{
    return dnnl_memory_create(x, dnnl_primitive_desc_query_md(desc, what, index), e,
                              DNNL_MEMORY_NONE);
}

static dnnl_status_t make_memory(OneConvRun *x, dnnl_engine_t e)
{
    const MadeConv *made = x->made;
    const_dnnl_primitive_desc_t desc;
    dnnl_status_t s = dnnl_primitive_get_primitive_desc(made->conv, &desc);
    for (int i = 0; i < ONE_TENSORS && !s; i++)
        s = new_memory(&x->memory[i], desc, query_of(made->result, i), 0, e);
    if (!s)
        s = new_memory(&x->memory[SLOT_SCRATCH], desc, dnnl_query_scratchpad_md, 0, e);
    if (!s && made->has_bias)
        s = new_memory(&x->memory[SLOT_BIAS], desc, dnnl_query_weights_md, 1, e);
    for (int i = 0; i < ONE_TENSORS && !s; i++) {
        if (!made->move[i])
            continue;
        s = dnnl_primitive_get_primitive_desc(made->move[i], &desc);
        if (!s)
            s = new_memory(&x->from[i], desc, dnnl_query_src_md, 0, e);
        if (!s)
            s = new_memory(&x->to[i], desc, dnnl_query_dst_md, 0, e);
        if (!s)
            s = new_memory(&x->scratch[i], desc, dnnl_query_scratchpad_md, 0, e);
    }
    return s;
}

static OneConvRun *run_of(Arena *a, const Node *n, const MadeConv *made)
{
    Ctx *ctx = arena_ctx(a);
    dnnl_engine_t e = onednn_engine(ctx, n);
    OneConvRun *x = NEW(a, OneConvRun);
    arena_defer(a, drop_run, x);
    x->made = made;
    onednn_need(dnnl_stream_create(&x->stream, e, dnnl_stream_default_flags), ctx, n, "stream");
    onednn_need(make_memory(x, e), ctx, n, "memory");
    return x;
}

/* found: what it takes, as it is made. */
static dnnl_status_t make_primitives(MadeConv *x, const OneConv *c, dnnl_engine_t e,
                                     OneConvRoom *found)
{
    ConvForm f = {.conv = NULL};
    dnnl_status_t s = form(&f, c, e);
    if (!s)
        *found = room_of(&f, c);
    if (!s)
        s = onednn_create(&x->conv, f.conv, true);
    for (int i = 0; i < ONE_TENSORS && !s; i++)
        if (f.move[i])
            s = onednn_create(&x->move[i], f.move[i], i != ONE_WEIGHT);
    drop_form(&f);
    return s;
}

OneConvRun *onednn_conv_make(Arena *a, const Node *n, const OneConv *c)
{
    Ctx *ctx = arena_ctx(a);
    OneConvRoom room = onednn_conv_room(ctx, n, c), found = {0};
    MadeConv *x = NEW(a, MadeConv);
    arena_defer(a, drop_made, x);
    x->result = c->result;
    x->has_bias = c->has_bias;
    onednn_check_room(ctx, n);
    onednn_need(make_primitives(x, c, onednn_engine(ctx, n), &found), ctx, n, "primitive");
    CHECK(!memcmp(&found, &room, sizeof room));
    return run_of(a, n, x);
}

OneConvRun *onednn_conv_twin(Arena *a, const Node *n, const OneConvRun *run)
{
    return run_of(a, n, run->made);
}

int onednn_conv_move(OneConvRun *x, int tensor, const void *from, void *to, void *scratch)
{
    const OneReorder memory = {x->from[tensor], x->to[tensor], x->scratch[tensor]};
    return onednn_reorder(x->stream, x->made->move[tensor], tensor != ONE_WEIGHT, &memory, from, to,
                          scratch);
}

int onednn_conv_run(OneConvRun *x, void *const *at, const void *bias, void *scratch)
{
    dnnl_exec_arg_t args[NSLOT];
    int nargs = x->made->has_bias ? NSLOT : NSLOT - 1;
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < nargs && !s; i++) {
        int what = i == SLOT_SCRATCH ? DNNL_ARG_SCRATCHPAD
                   : i == SLOT_BIAS  ? DNNL_ARG_BIAS
                                     : argument_of(x->made->result, i);
        args[i] = (dnnl_exec_arg_t){what, x->memory[i]};
        s = set(x->memory[i], i == SLOT_SCRATCH ? scratch : i == SLOT_BIAS ? bias : at[i]);
    }
    return s ? (int)s : onednn_execute(x->stream, x->made->conv, true, nargs, args);
}
