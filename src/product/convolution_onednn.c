/* The kernels of convolution and convolution_backward_weight (convolution.c) but for those of
 * depthwise rows (convolution_rows.c) and products (convolution_product.c,
 * convolution_weight_product.c): oneDNN's primitives (onednn_conv.h), each for one thread and a few
 * images; threads run one each. The library likes blocks of channels; images are brought into such
 * a layout and results out of it, in workspace, a few images for each thread, the weight once for
 * all. 16-bit tensors are f32 in the workspace where this processor does not multiply them
 * (widen.h).
 *
 * - convolution: an image at a time.
 * - convolution_backward_weight: a sum over images. These are divided into blocks, whose sums lie
 *   in the workspace and are added in the order of blocks; the size of the weight and of images say
 *   how many blocks there are, and how many images are multiplied at once.
 *
 * Numerics: sums in f32, rounded once; their order depends on sizes and dtypes alone, not on the
 * number of threads. A bias is added by the primitive; to a transposed convolution's result after
 * it, in f32. */
#include "convolution_product.h"
#include "onednn_conv.h"
#include "widen.h"
#include "../op/vmath.h"

#include <string.h>

enum {
    MOST_BLOCKS = 32,      /* of images whose sums are added, */
    BLOCK_ROOM = 32 << 20, /* in so many bytes, or one block; */
    BLOCK_PIXELS = 384, /* of a map's in a block, below which to add blocks takes as long as to */
    FEW_BLOCKS = 2,     /* multiply: there are only so many blocks then */
    IMAGES_ROOM = 4 << 20, /* bytes of images that are multiplied at once, or one image */
};

/* ---- what oneDNN is told ---- */

/* A call: its convolution and tensors, by tensor. wide: it is f32 in the workspace. */
typedef struct ConvCall {
    Conv c;
    const Tensor *t[ONE_TENSORS], *bias;
    int result;
    bool wide[ONE_TENSORS];
    int64_t blocks, images; /* blocks of images, and how many images are multiplied at once */
    OneConv one;
} ConvCall;

static int64_t volume(const int64_t *x)
{
    return x[0] * x[1] * x[2];
}

static int64_t elements(const Conv *c, int tensor)
{
    return tensor == ONE_WEIGHT  ? c->groups * c->out * c->in * volume(c->kernel)
           : tensor == ONE_IMAGE ? c->groups * c->in * volume(c->image)
                                 : c->groups * c->out * volume(c->map);
}

static int64_t divisor(int64_t n, int64_t most)
{
    int64_t x = MAX(MIN(n, most), 1);
    while (n % x)
        x--;
    return x;
}

/* The largest numbers within the limits that divide the batch equally. */
static void divide_images(ConvCall *x)
{
    const int64_t size = (int64_t)sizeof(float), batch = x->c.batch;
    int64_t weight = elements(&x->c, ONE_WEIGHT) * size;
    int64_t pixels = (elements(&x->c, ONE_IMAGE) + elements(&x->c, ONE_MAP)) * size;
    x->blocks = batch;
    x->images = 1;
    if (x->result != ONE_WEIGHT)
        return;
    int64_t full = MAX(batch * volume(x->c.map) / BLOCK_PIXELS, FEW_BLOCKS);
    x->blocks = divisor(batch, MIN(MIN(BLOCK_ROOM / weight, MOST_BLOCKS), full));
    x->images = divisor(batch / x->blocks, MAX(IMAGES_ROOM, weight) / pixels);
}

static void tell(ConvCall *x)
{
    const Conv *c = &x->c;
    OneConv *y = &x->one;
    bool fast = matmul_fast(x->t[ONE_IMAGE]->dtype) && matmul_fast(x->t[ONE_MAP]->dtype);
    *y = (OneConv){.result = x->result,
                   .axes = MAX(c->axes, 2),
                   .batch = x->images,
                   .groups = c->groups,
                   .in = c->in,
                   .out = c->out,
                   .has_bias = x->bias && x->result == ONE_MAP};
    for (int d = 0; d < SPACE_AXES; d++) {
        y->image[d] = c->image[d];
        y->kernel[d] = c->kernel[d];
        y->map[d] = c->map[d];
        y->stride[d] = c->stride[d];
        y->dilation[d] = c->dilation[d];
        y->before[d] = c->padding[d];
        y->after[d] = (c->map[d] - 1) * c->stride[d] + c->dilation[d] * (c->kernel[d] - 1) + 1 -
                      c->image[d] - c->padding[d];
    }
    for (int i = 0; i < ONE_TENSORS; i++) {
        DType d = x->t[i]->dtype;
        bool summed = i == x->result && (i == ONE_WEIGHT || (i == ONE_IMAGE && x->bias));
        x->wide[i] = dtype_size(d) == 2 && (!fast || (summed && i == ONE_IMAGE));
        y->plain[i] = x->wide[i] ? F32 : d;
        y->own[i] = summed ? F32 : y->plain[i];
        if (i != ONE_WEIGHT && x->images > 1)
            y->next[i] = x->wide[i] ? elements(c, i) : x->t[i]->stride[0];
    }
}

static ConvCall call_of(const Call *c)
{
    ConvCall x = {.bias = NULL};
    if (node_is(c->node, OP_convolution)) {
        x.c = conv_of(c->node);
        x.result = x.c.transposed ? ONE_IMAGE : ONE_MAP;
        x.t[x.c.transposed ? ONE_MAP : ONE_IMAGE] = &c->in[CONV_INPUT];
        x.t[ONE_WEIGHT] = &c->in[CONV_WEIGHT];
        x.t[x.result] = &c->out[0];
        x.bias = c->nin > CONV_BIAS ? &c->in[CONV_BIAS] : NULL;
    } else {
        x.c = conv_weight_of(c->node);
        x.result = ONE_WEIGHT;
        x.t[ONE_IMAGE] = &c->in[CONV_IMAGE];
        x.t[ONE_MAP] = &c->in[CONV_MAP];
        x.t[ONE_WEIGHT] = &c->out[0];
    }
    return x;
}

static void complete(ConvCall *x)
{
    divide_images(x);
    tell(x);
}

/* The library has no map that ends a step before the image does. */
static bool accepts(const Call *c)
{
    ConvCall x = call_of(c);
    for (int i = 0; i < ONE_TENSORS; i++) {
        const Tensor *t = x.t[i];
        if ((t->dtype != F32 && dtype_size(t->dtype) != 2) || !tensor_nelem(t) ||
            elements(&x.c, i) > ONE_MOST_SIZE || !conv_lies(t, i == ONE_WEIGHT))
            return false;
    }
    for (int d = 0; d < SPACE_AXES; d++)
        if ((x.c.map[d] - 1) * x.c.stride[d] + x.c.dilation[d] * (x.c.kernel[d] - 1) + 1 +
                x.c.stride[d] <=
            x.c.image[d] + x.c.padding[d])
            return false;
    return true;
}

/* ---- workspace ---- */

/* Parts of the workspace: for all, from `slot` on for each slot, and then sums of blocks. own and
 * wide of images and maps are within a slot. */
typedef struct ConvRoom {
    OneConvRoom one;
    int64_t own[ONE_TENSORS], wide[ONE_TENSORS], bias, scratch, slot, each, sums, sum, end;
    int64_t nslot;
} ConvRoom;

static int64_t take(int64_t *at, int64_t nbytes)
{
    int64_t from = *at;
    *at += (nbytes + 63) / 64 * 64;
    return from;
}

static int64_t wide_nbytes(const ConvCall *x, int tensor)
{
    int64_t count = tensor == ONE_WEIGHT ? 1 : x->images;
    return x->wide[tensor] ? elements(&x->c, tensor) * count * (int64_t)sizeof(float) : 0;
}

static ConvRoom room_of(Ctx *ctx, const Call *c, const ConvCall *x)
{
    ConvRoom r = {.one = onednn_conv_room(ctx, c->node, &x->one)};
    int64_t at = 0, in = 0;
    bool sums = x->result == ONE_WEIGHT;
    r.nslot = MIN(par_threads(), x->blocks);
    r.wide[ONE_WEIGHT] = take(&at, wide_nbytes(x, ONE_WEIGHT));
    r.own[ONE_WEIGHT] = take(&at, sums ? 0 : r.one.own[ONE_WEIGHT]);
    r.bias = take(&at, x->bias ? x->bias->dim[0] * (int64_t)sizeof(float) : 0);
    r.scratch = take(&at, r.one.weight);
    r.slot = at;
    take(&in, r.one.scratch);
    for (int i = 0; i < ONE_TENSORS; i++) {
        if (i == ONE_WEIGHT)
            continue;
        r.own[i] = take(&in, r.one.own[i]);
        r.wide[i] = take(&in, wide_nbytes(x, i));
    }
    r.sum = take(&in, sums && x->c.batch > x->blocks * x->images ? r.one.made : 0);
    r.each = in;
    at += r.each * r.nslot;
    r.sums = take(&at, sums ? (r.one.made + 63) / 64 * 64 * x->blocks : 0);
    r.end = at;
    return r;
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    ConvCall x = call_of(c);
    complete(&x);
    return room_of(ctx, c, &x).end;
}

typedef struct PreparedConv {
    ConvRoom room;
    OneConvRun **run;
    int *status; /* of each slot */
} PreparedConv;

static void prepare(Call *c, Arena *a)
{
    ConvCall x = call_of(c);
    complete(&x);
    PreparedConv *m = c->state = NEW(a, PreparedConv);
    m->room = room_of(arena_ctx(a), c, &x);
    CHECK(m->room.end == c->nbytes_work);
    m->status = NEWN(a, int, m->room.nslot);
    m->run = NEWN(a, OneConvRun *, m->room.nslot);
    for (int64_t i = 0; i < m->room.nslot; i++)
        m->run[i] =
            i ? onednn_conv_twin(a, c->node, m->run[0]) : onednn_conv_make(a, c->node, &x.one);
}

/* Bytes of the library's: a convolution has up to three reorders beside it. */
static int64_t handles(const Call *c)
{
    ConvCall x = call_of(c);
    complete(&x);
    OneKeeps keeps = onednn_keeps();
    return 2 * (keeps.each_run + (MIN(par_threads(), x.blocks) - 1) * keeps.each_twin);
}

/* The library unfolds images of some sizes and multiplies them by its packed gemm. */
static bool gemm(const Call *c)
{
    (void)c;
    return true;
}

/* ---- one call ---- */

typedef struct ConvRunning {
    const ConvCall *x;
    const PreparedConv *m;
    char *work;
    const void *weight; /* as it is multiplied */
} ConvRunning;

static char *slot_at(const ConvRunning *r, int64_t slot, int64_t part)
{
    return r->work + r->m->room.slot + slot * r->m->room.each + part;
}

/* Images as f32, without gaps between them. */
static void widen_images(const ConvRunning *r, int i, const char *from, float *to)
{
    const Tensor *t = r->x->t[i];
    int64_t n = elements(&r->x->c, i);
    for (int64_t k = 0; k < r->x->images; k++) {
        const char *at = from + k * t->stride[0] * dtype_size(t->dtype);
        widen_load(&(Widen){to + k * n, (uint16_t *)(uintptr_t)at, t->dtype}, 0, n);
    }
}

/* Sets *at to where tensor i of the images from `first` on is multiplied. */
static int bring(const ConvRunning *r, int64_t slot, int i, int64_t first, void **at)
{
    const ConvRoom *room = &r->m->room;
    const Tensor *t = r->x->t[i];
    char *from = t->data + first * t->stride[0] * dtype_size(t->dtype);
    if (r->x->wide[i]) {
        char *wide = slot_at(r, slot, room->wide[i]);
        widen_images(r, i, from, (float *)(void *)wide);
        from = wide;
    }
    *at = from;
    if (!room->one.own[i])
        return 0;
    *at = slot_at(r, slot, room->own[i]);
    return onednn_conv_move(r->m->run[slot], i, from, *at, slot_at(r, slot, 0));
}

static void add_bias(const ConvRunning *r, float *y)
{
    const Conv *c = &r->x->c;
    const float *bias = (const float *)(const void *)(r->work + r->m->room.bias);
    int64_t n = volume(c->image);
    for (int64_t k = 0; k < c->groups * c->in; k++)
        for (int64_t i = 0; i < n; i++)
            y[k * n + i] += bias[k];
}

/* An image's result from where it was made to where it belongs. */
static int finish(const ConvRunning *r, int64_t slot, int64_t image, const char *made)
{
    const ConvRoom *room = &r->m->room;
    int i = r->x->result;
    const Tensor *t = r->x->t[i];
    char *y = t->data + image * t->stride[0] * dtype_size(t->dtype);
    char *plain = r->x->wide[i] ? slot_at(r, slot, room->wide[i]) : y;
    int status = 0;
    if (room->one.own[i])
        status = onednn_conv_move(r->m->run[slot], i, made, plain, slot_at(r, slot, 0));
    if (!status && i == ONE_IMAGE && r->x->bias)
        add_bias(r, (float *)(void *)plain);
    if (!status && r->x->wide[i])
        widen_store(&(Widen){(float *)(void *)plain, (uint16_t *)(void *)y, t->dtype}, 0,
                    elements(&r->x->c, i));
    return status;
}

static int run_image(const ConvRunning *r, int64_t slot, int64_t image)
{
    const ConvRoom *room = &r->m->room;
    int made = r->x->result, read = made == ONE_MAP ? ONE_IMAGE : ONE_MAP;
    const Tensor *t = r->x->t[made];
    void *at[ONE_TENSORS] = {[ONE_WEIGHT] = (void *)(uintptr_t)r->weight};
    int status = bring(r, slot, read, image, &at[read]);
    at[made] = room->one.own[made] ? slot_at(r, slot, room->own[made])
               : r->x->wide[made]  ? slot_at(r, slot, room->wide[made])
                                   : t->data + image * t->stride[0] * dtype_size(t->dtype);
    if (!status)
        status = onednn_conv_run(r->m->run[slot], at, r->work + room->bias, slot_at(r, slot, 0));
    return status ? status : finish(r, slot, image, at[made]);
}

static void run_images(void *arg, int64_t lo, int64_t hi)
{
    const ConvRunning *r = arg;
    const PreparedConv *m = r->m;
    for (int64_t s = lo; s < hi; s++) {
        m->status[s] = 0;
        for (int64_t i = s; i < r->x->c.batch && !m->status[s]; i += m->room.nslot)
            m->status[s] = run_image(r, s, i);
    }
}

/* The weight where it is multiplied. */
static int bring_weight(ConvRunning *r)
{
    const ConvRoom *room = &r->m->room;
    const Tensor *w = r->x->t[ONE_WEIGHT];
    const char *from = w->data;
    if (r->x->wide[ONE_WEIGHT]) {
        char *wide = r->work + room->wide[ONE_WEIGHT];
        Widen all = {(float *)(void *)wide, (uint16_t *)(void *)w->data, w->dtype};
        par_for(elements(&r->x->c, ONE_WEIGHT), 16384, widen_load, &all);
        from = wide;
    }
    r->weight = from;
    if (!room->one.own[ONE_WEIGHT])
        return 0;
    r->weight = r->work + room->own[ONE_WEIGHT];
    return onednn_conv_move(r->m->run[0], ONE_WEIGHT, from, r->work + room->own[ONE_WEIGHT],
                            r->work + room->scratch);
}

static int run_slots(const ConvRunning *r, void (*fn)(void *, int64_t, int64_t))
{
    const PreparedConv *m = r->m;
    int status = 0;
    par_for(m->room.nslot, 1, fn, (void *)(uintptr_t)r);
    for (int64_t s = 0; s < m->room.nslot && !status; s++)
        status = m->status[s];
    return status;
}

static int answer(Call *c, int status)
{
    return status ? run_fail(c, "oneDNN convolution failed (status %d)", status) : 0;
}

static int run(Call *c)
{
    ConvCall x = call_of(c);
    complete(&x);
    ConvRunning r = {&x, c->state, c->work, NULL};
    float *bias = (float *)(void *)(c->work + r.m->room.bias);
    for (int64_t i = 0; x.bias && i < x.bias->dim[0]; i++)
        bias[i] = (float)tensor_get(x.bias, i * x.bias->stride[0]);
    int status = bring_weight(&r);
    return answer(c, status ? status : run_slots(&r, run_images));
}

/* ---- sums over images ---- */

KERNEL(void, add_to, (float *restrict y, const float *restrict x, int64_t n), (y, x, n))
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

void conv_add(float *y, const float *x, int64_t n)
{
    add_to(y, x, n);
}

static char *block_at(const ConvRunning *r, int64_t block)
{
    return r->work + r->m->room.sums + block * ((r->m->room.one.made + 63) / 64 * 64);
}

static int run_block(const ConvRunning *r, int64_t slot, int64_t block)
{
    const ConvRoom *room = &r->m->room;
    int64_t count = r->x->c.batch / r->x->blocks, first = block * count;
    int status = 0;
    for (int64_t i = 0; i < count && !status; i += r->x->images) {
        void *at[ONE_TENSORS] = {[ONE_WEIGHT] =
                                     i ? slot_at(r, slot, room->sum) : block_at(r, block)};
        status = bring(r, slot, ONE_IMAGE, first + i, &at[ONE_IMAGE]);
        if (!status)
            status = bring(r, slot, ONE_MAP, first + i, &at[ONE_MAP]);
        if (!status)
            status = onednn_conv_run(r->m->run[slot], at, NULL, slot_at(r, slot, 0));
        if (!status && i)
            add_to((float *)(void *)block_at(r, block), (const float *)at[ONE_WEIGHT],
                   room->one.made / (int64_t)sizeof(float));
    }
    return status;
}

static void run_blocks(void *arg, int64_t lo, int64_t hi)
{
    const ConvRunning *r = arg;
    const PreparedConv *m = r->m;
    for (int64_t s = lo; s < hi; s++) {
        m->status[s] = 0;
        for (int64_t i = s; i < r->x->blocks && !m->status[s]; i += m->room.nslot)
            m->status[s] = run_block(r, s, i);
    }
}

static void add_blocks(void *arg, int64_t lo, int64_t hi)
{
    const ConvRunning *r = arg;
    float *y = (float *)(void *)block_at(r, 0);
    for (int64_t b = 1; b < r->x->blocks; b++)
        add_to(y + lo, (const float *)(const void *)block_at(r, b) + lo, hi - lo);
}

/* The sum of all blocks, from the library's layout, rounded. */
static int finish_weight(const ConvRunning *r)
{
    const ConvRoom *room = &r->m->room;
    const Tensor *w = r->x->t[ONE_WEIGHT];
    int64_t n = elements(&r->x->c, ONE_WEIGHT);
    bool wide = r->x->wide[ONE_WEIGHT];
    char *plain = wide ? r->work + room->wide[ONE_WEIGHT] : w->data;
    int status = 0;
    if (room->one.own[ONE_WEIGHT])
        status = onednn_conv_move(r->m->run[0], ONE_WEIGHT, block_at(r, 0), plain,
                                  r->work + room->scratch);
    else
        memcpy(plain, block_at(r, 0), (size_t)n * sizeof(float));
    Widen all = {(float *)(void *)plain, (uint16_t *)(void *)w->data, w->dtype};
    if (!status && wide)
        par_for(n, 16384, widen_store, &all);
    return status;
}

static int weight_run(Call *c)
{
    ConvCall x = call_of(c);
    complete(&x);
    ConvRunning r = {&x, c->state, c->work, NULL};
    int status = run_slots(&r, run_blocks);
    if (!status)
        par_for(r.m->room.one.made / (int64_t)sizeof(float), 16384, add_blocks, &r);
    return answer(c, status ? status : finish_weight(&r));
}

#define ONEDNN(run_it)                                                                    \
    {                                                                                     \
        .name = "onednn", .accepts = accepts, .workspace = workspace, .prepare = prepare, \
        .handles = handles, .gemm = gemm, .run = (run_it)                                 \
    }

const Kernel convolution_kernels[] = {
    {.name = "rows", .accepts = conv_rows_accepts, .run = conv_rows_run},
    {.name = "product",
     .accepts = conv_product_accepts,
     .workspace = conv_product_workspace,
     .prepare = conv_product_prepare,
     .handles = conv_product_handles,
     .gemm = gemm,
     .run = conv_product_run},
    ONEDNN(run),
    {0}};
const Kernel convolution_weight_kernels[] = {
    {.name = "rows", .accepts = conv_rows_weight_accepts, .run = conv_rows_weight_run},
    {.name = "product",
     .accepts = conv_weight_product_accepts,
     .workspace = conv_weight_product_workspace,
     .prepare = conv_weight_product_prepare,
     .handles = conv_weight_product_handles,
     .gemm = gemm,
     .run = conv_weight_product_run},
    ONEDNN(weight_run),
    {0}};
