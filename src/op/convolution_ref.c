/* The reference of convolution and convolution_backward_weight: each element's sum in double, over
 * channels or images, and for each over places of the kernel or the map in ascending order. */
#include "convolution.h"

typedef struct ConvRef {
    Conv c;
    const Tensor *image, *map, *weight, *bias;
} ConvRef;

/* The offset of a tensor's element [first, second, at...]. */
static int64_t element(const ConvRef *r, const Tensor *t, int64_t first, int64_t second,
                       const int64_t *at)
{
    int64_t x = first * t->stride[0] + second * t->stride[1];
    for (int d = SPACE_AXES - r->c.axes, i = 2; d < SPACE_AXES; d++, i++)
        x += at[d] * t->stride[i];
    return x;
}

/* The place of the image under place k of the kernel at place t of the map; false: beyond it. */
static bool image_place(const Conv *c, const int64_t *t, const int64_t *k, int64_t *s)
{
    bool inside = true;
    for (int d = 0; d < SPACE_AXES; d++) {
        s[d] = t[d] * c->stride[d] + k[d] * c->dilation[d] - c->padding[d];
        inside = inside && s[d] >= 0 && s[d] < c->image[d];
    }
    return inside;
}

/* The place of the map whose kernel's place k lies over place s of the image; false: none. */
static bool map_place(const Conv *c, const int64_t *s, const int64_t *k, int64_t *t)
{
    for (int d = 0; d < SPACE_AXES; d++) {
        int64_t x = s[d] + c->padding[d] - k[d] * c->dilation[d];
        t[d] = x / c->stride[d];
        if (x < 0 || x % c->stride[d] || t[d] >= c->map[d])
            return false;
    }
    return true;
}

static double product_at(const ConvRef *r, const Tensor *x, int64_t at, int64_t n, int64_t i,
                         const int64_t *place)
{
    return tensor_get(x, element(r, x, n, i, place)) * tensor_get(r->weight, at);
}

static double map_sum(const ConvRef *r, int64_t n, int64_t o, const int64_t *t)
{
    const Conv *c = &r->c;
    double sum = 0;
    for (int64_t i = 0; i < c->in; i++) {
        int64_t k[SPACE_AXES] = {0}, s[SPACE_AXES];
        do {
            if (image_place(c, t, k, s))
                sum += product_at(r, r->image, element(r, r->weight, o, i, k), n,
                                  o / c->out * c->in + i, s);
        } while (next_index(SPACE_AXES, c->kernel, k));
    }
    return sum;
}

static double image_sum(const ConvRef *r, int64_t n, int64_t channel, const int64_t *s)
{
    const Conv *c = &r->c;
    int64_t first = channel / c->in * c->out;
    double sum = 0;
    for (int64_t o = first; o < first + c->out; o++) {
        int64_t k[SPACE_AXES] = {0}, t[SPACE_AXES];
        do {
            if (map_place(c, s, k, t))
                sum += product_at(r, r->map, element(r, r->weight, o, channel % c->in, k), n, o, t);
        } while (next_index(SPACE_AXES, c->kernel, k));
    }
    return sum;
}

static double weight_sum(const ConvRef *r, int64_t o, int64_t i, const int64_t *k)
{
    const Conv *c = &r->c;
    double sum = 0;
    for (int64_t n = 0; n < c->batch; n++) {
        int64_t t[SPACE_AXES] = {0}, s[SPACE_AXES];
        do {
            if (image_place(c, t, k, s))
                sum += tensor_get(r->map, element(r, r->map, n, o, t)) *
                       tensor_get(r->image, element(r, r->image, n, o / c->out * c->in + i, s));
        } while (next_index(SPACE_AXES, c->map, t));
    }
    return sum;
}

/* All elements of one pair of indices on y's first two axes. */
static void ref_pair(const ConvRef *r, const Tensor *y, int64_t i, int64_t j)
{
    const int64_t *size = y == r->map ? r->c.map : y == r->image ? r->c.image : r->c.kernel;
    double bias = r->bias ? tensor_get(r->bias, j * r->bias->stride[0]) : 0;
    int64_t at[SPACE_AXES] = {0};
    do {
        double sum = y == r->map     ? map_sum(r, i, j, at)
                     : y == r->image ? image_sum(r, i, j, at)
                                     : weight_sum(r, i, j, at);
        tensor_set(y, element(r, y, i, j, at), sum + bias);
    } while (next_index(SPACE_AXES, size, at));
}

typedef struct ConvTask {
    const ConvRef *r;
    const Tensor *y;
} ConvTask;

static void ref_pairs(void *arg, int64_t lo, int64_t hi)
{
    const ConvTask *x = arg;
    for (int64_t i = lo; i < hi; i++)
        ref_pair(x->r, x->y, i / x->y->dim[1], i % x->y->dim[1]);
}

static int run_ref(const ConvRef *r, const Tensor *y)
{
    if (tensor_nelem(y))
        par_for(y->dim[0] * y->dim[1], 1, ref_pairs, &(ConvTask){r, y});
    return 0;
}

int conv_ref(Call *c)
{
    ConvRef r = {.c = conv_of(c->node), .weight = &c->in[CONV_WEIGHT]};
    r.bias = c->nin > CONV_BIAS ? &c->in[CONV_BIAS] : NULL;
    r.image = r.c.transposed ? &c->out[0] : &c->in[CONV_INPUT];
    r.map = r.c.transposed ? &c->in[CONV_INPUT] : &c->out[0];
    return run_ref(&r, &c->out[0]);
}

int conv_weight_ref(Call *c)
{
    ConvRef r = {.c = conv_weight_of(c->node), &c->in[CONV_IMAGE], &c->in[CONV_MAP], &c->out[0]};
    return run_ref(&r, &c->out[0]);
}
