/* The kernel of convolutions whose kernel is one element, of stride 1 and one group, as half of a
 * residual network's are: the map is the weight, [out, in], times the image, [in, pixels], and the
 * image is the transposed weight times the map. Both are multiplied as they lie, without the
 * layouts that the library's convolution wants. An image at a time on one thread; threads run one
 * each, so that bits depend neither on their number nor on the batch. In f32 a bias lies in the
 * result before the product is added to it; in 16 bits, where it would be rounded twice, it is left
 * to the library's convolution.
 *
 * Numerics: sums in f32, rounded once. */
#include "convolution_product.h"

#include "onednn.h"
#include "widen.h"

enum { FEW_PIXELS = 128 }; /* below which the library's gradient of images is the faster */

bool conv_lies(const Tensor *t, bool whole)
{
    int64_t next = 1;
    for (int d = t->rank - 1; d >= (whole ? 0 : 1); d--) {
        if (t->dim[d] > 1 && t->stride[d] != next)
            return false;
        next *= t->dim[d];
    }
    return whole || t->dim[0] == 1 || t->stride[0] >= next;
}

int64_t conv_pixels(const Conv *c)
{
    return c->image[0] * c->image[1] * c->image[2];
}

/* adds: to what lies in y. */
static OneProduct product_of(const Conv *c, DType d, bool adds)
{
    int64_t rows = c->transposed ? c->in : c->out, sums = c->transposed ? c->out : c->in;
    int64_t n = conv_pixels(c);
    OneProduct p = {.alone = true, .adds = adds};
    p.a = (OneMatrix){d, 2, {rows, sums}, {c->in, 1}, false};
    if (c->transposed)
        p.a.stride[0] = 1, p.a.stride[1] = c->in;
    p.b = (OneMatrix){d, 2, {sums, n}, {n, 1}, false};
    p.y = (OneMatrix){d, 2, {rows, n}, {n, 1}, false};
    return p;
}

bool conv_is_product(const Conv *c)
{
    int64_t n = conv_pixels(c), most = MAX(c->in, c->out);
    bool one = c->groups == 1 && c->batch > 0 && MIN(c->in, c->out) > 1 && n > 1;
    for (int d = 0; d < SPACE_AXES; d++)
        one = one && c->kernel[d] == 1 && c->stride[d] == 1 && c->image[d] == c->map[d] &&
              c->padding[d] == 0;
    return one && n <= ONE_MOST_LEADING && most <= ONE_MOST_LEADING &&
           (!c->transposed || n >= FEW_PIXELS);
}

bool conv_product_accepts(const Call *c)
{
    const Tensor *x = &c->in[CONV_INPUT], *w = &c->in[CONV_WEIGHT], *y = &c->out[0];
    DType d = y->dtype;
    Conv conv = conv_of(c->node);
    return (c->nin <= CONV_BIAS || d == F32) && (d == F32 || (d == BF16 && matmul_fast(d))) &&
           x->dtype == d && w->dtype == d && conv_lies(x, false) && conv_lies(w, true) &&
           conv_lies(y, false) && conv_is_product(&conv);
}

/* Bytes of workspace of one slot. */
static int64_t slot_nbytes(Ctx *ctx, const Call *c, const Conv *conv)
{
    OneProduct p = product_of(conv, c->out[0].dtype, c->nin > CONV_BIAS);
    return (onednn_room(ctx, c->node, &p).scratch + 63) / 64 * 64;
}

static int64_t slots(const Conv *c)
{
    return MIN(par_threads(), c->batch);
}

int64_t conv_product_workspace(Ctx *ctx, const Call *c)
{
    Conv conv = conv_of(c->node);
    return slots(&conv) * slot_nbytes(ctx, c, &conv);
}

typedef struct ConvProduct {
    int64_t nslot, each; /* each: bytes of a slot's workspace */
    OneRun **run;
    int *status; /* of each slot */
} ConvProduct;

void conv_product_prepare(Call *c, Arena *a)
{
    Conv conv = conv_of(c->node);
    OneProduct p = product_of(&conv, c->out[0].dtype, c->nin > CONV_BIAS);
    ConvProduct *m = c->state = NEW(a, ConvProduct);
    m->nslot = slots(&conv);
    m->each = slot_nbytes(arena_ctx(a), c, &conv);
    m->run = NEWN(a, OneRun *, m->nslot);
    m->status = NEWN(a, int, m->nslot);
    for (int64_t i = 0; i < m->nslot; i++)
        m->run[i] = i ? onednn_twin(a, c->node, m->run[0]) : onednn_make(a, c->node, &p);
}

int64_t conv_product_handles(const Call *c)
{
    Conv conv = conv_of(c->node);
    OneKeeps keeps = onednn_keeps();
    return keeps.each_run + (slots(&conv) - 1) * keeps.each_twin;
}

/* Each row of an image's result is its channel's bias, to which the product is added. */
static void put_bias(const Call *c, char *at)
{
    const Tensor *bias = &c->in[CONV_BIAS], *y = &c->out[0];
    const int64_t channels = y->dim[1], n = tensor_nelem(y) / (y->dim[0] * channels);
    float *row = (float *)(void *)at;
    for (int64_t k = 0; k < channels; k++, row += n) {
        const float b = (float)tensor_get(bias, k * bias->stride[0]);
        for (int64_t i = 0; i < n; i++)
            row[i] = b;
    }
}

static void run_slots(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const ConvProduct *m = c->state;
    const Tensor *x = &c->in[CONV_INPUT], *y = &c->out[0];
    int64_t size = dtype_size(y->dtype);
    for (int64_t s = lo; s < hi; s++) {
        m->status[s] = 0;
        for (int64_t i = s; i < x->dim[0] && !m->status[s]; i += m->nslot) {
            char *to = y->data + i * y->stride[0] * size;
            if (c->nin > CONV_BIAS)
                put_bias(c, to);
            m->status[s] =
                onednn_run(m->run[s], c->in[CONV_WEIGHT].data, x->data + i * x->stride[0] * size,
                           NULL, to, c->work + s * m->each);
        }
    }
}

int conv_product_run(Call *c)
{
    const ConvProduct *m = c->state;
    int status = 0;
    par_for(m->nslot, 1, run_slots, c);
    for (int64_t s = 0; s < m->nslot && !status; s++)
        status = m->status[s];
    return status ? run_fail(c, "oneDNN product failed (status %d)", status) : 0;
}
