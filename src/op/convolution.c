/* convolution and convolution_backward_weight, over 1 to 3 axes of space; ATen's semantics.
 *
 * An image[N, G C, s...] and a map[N, G O, t...] are tied by weight[G O, C, k...] of G groups:
 *   map[n, g O + o, t] = sum over c, k of image[n, g C + c, t stride + k dilation - padding]
 *                                         weight[g O + o, c, k]
 * convolution makes the map of image and weight; transposed, the image of map and weight, whose
 * size output_padding completes. convolution_backward_weight makes the weight's gradient of image
 * and map. A bias, a number for each channel of the result, is added. Each is linear in each of its
 * operands, and the gradients of each are the other two: so all derivatives are these ops again.
 *
 * Lists of attributes have a number for each axis of space, an empty output_padding zeros.
 *
 * Numerics: sums in f32 (f32, bf16, f16), rounded once, to out_dtype. The reference
 * (convolution_ref.c) sums in double. Kernels: product/convolution_onednn.c.
 *
 * Factors: the batch, groups, and channels of each. Axes of space stay whole: a part would need the
 * rows of its neighbours under its edge (a halo). */
#include "convolution.h"

#include <string.h>

enum { STRIDE, PADDING, DILATION, TRANSPOSED, OUTPUT_PADDING, GROUPS, OUT_DTYPE };

static const AttrField attrs[] = {
    {.name = "stride", .kind = ATTR_INTS, .required = true},
    {.name = "padding", .kind = ATTR_INTS, .required = true},
    {.name = "dilation", .kind = ATTR_INTS, .required = true},
    {.name = "transposed", .kind = ATTR_BOOL},
    {.name = "output_padding", .kind = ATTR_INTS},
    {.name = "groups", .kind = ATTR_INT, .i = 1},
    {"out_dtype", ATTR_DTYPE, .i = NDTYPE},
    {0},
};

enum { KERNEL = DILATION + 1, WEIGHT_GROUPS };

static const AttrField weight_attrs[] = {
    {.name = "stride", .kind = ATTR_INTS, .required = true},
    {.name = "padding", .kind = ATTR_INTS, .required = true},
    {.name = "dilation", .kind = ATTR_INTS, .required = true},
    {.name = "kernel", .kind = ATTR_INTS, .required = true},
    {.name = "groups", .kind = ATTR_INT, .i = 1},
    {"out_dtype", ATTR_DTYPE, .i = NDTYPE},
    {0},
};

/* ---- sizes ---- */

/* The last of count numbers is that of the last axis. */
static void fill_axes(int64_t *to, int64_t count, const int64_t *x, int64_t otherwise)
{
    for (int64_t d = 0, skip = SPACE_AXES - count; d < SPACE_AXES; d++)
        to[d] = d < skip ? otherwise : x[d - skip];
}

static void fill_sizes(int64_t *to, const Type *t)
{
    fill_axes(to, t->rank - 2, t->dim + 2, 1);
}

Conv conv_make(const Type *image, const Type *map, const Type *weight, int64_t groups,
               const int64_t *stride, const int64_t *padding, const int64_t *dilation)
{
    int axes = image->rank - 2;
    Conv c = {.axes = axes,
              .batch = image->dim[0],
              .groups = groups,
              .in = weight->dim[1],
              .out = weight->dim[0] / groups};
    fill_sizes(c.image, image);
    fill_sizes(c.map, map);
    fill_sizes(c.kernel, weight);
    fill_axes(c.stride, axes, stride, 1);
    fill_axes(c.padding, axes, padding, 0);
    fill_axes(c.dilation, axes, dilation, 1);
    return c;
}

static Conv make(const Node *n, const Type *image, const Type *map, const Type *weight,
                 int64_t groups)
{
    const Attr *attr = n->attr;
    return conv_make(image, map, weight, groups, attr[STRIDE].ints, attr[PADDING].ints,
                     attr[DILATION].ints);
}

Conv conv_of(const Node *n)
{
    const Type *x = &n->in[CONV_INPUT]->type, *w = &n->in[CONV_WEIGHT]->type, *y = &n->out[0]->type;
    bool transposed = n->attr[TRANSPOSED].i;
    Conv c = make(n, transposed ? y : x, transposed ? x : y, w, n->attr[GROUPS].i);
    c.transposed = transposed;
    return c;
}

/* The gradient's type, from operands of which only the ranks are known to fit. */
static Type weight_type(const Node *n)
{
    const Type *x = &n->in[CONV_IMAGE]->type, *y = &n->in[CONV_MAP]->type;
    Type w = *x;
    w.dim[0] = y->dim[1];
    w.dim[1] = x->dim[1] / n->attr[WEIGHT_GROUPS].i;
    for (int d = 2; d < w.rank; d++)
        w.dim[d] = n->attr[KERNEL].ints[d - 2];
    return w;
}

Conv conv_weight_of(const Node *n)
{
    Type w = weight_type(n);
    return make(n, &n->in[CONV_IMAGE]->type, &n->in[CONV_MAP]->type, &w, n->attr[WEIGHT_GROUPS].i);
}

/* ---- inference ---- */

static void need_list(const Graph *g, const Node *n, const char *name, const Attr *x, int axes,
                      int64_t least)
{
    if (x->i != axes)
        fail_node(g, n, "%s: expected %d numbers, one for each axis of space, found %lld", name,
                  axes, (long long)x->i);
    for (int d = 0; d < x->i; d++)
        if (x->ints[d] < least || x->ints[d] > INT32_MAX)
            fail_node(g, n, "%s: expected numbers from %lld to %d, found %lld", name,
                      (long long)least, INT32_MAX, (long long)x->ints[d]);
}

/* Checks the steps, and that operands 0 and 1 are floats of one dtype and of one rank, with sizes
 * of which no sum overflows. */
static void need_steps(const Graph *g, const Node *n)
{
    int axes = n->in[0]->type.rank - 2;
    need_float(g, n, 0);
    need_dtype(g, n, 1, n->in[0]->type.dtype);
    need_rank(g, n, 0, 3, 2 + SPACE_AXES);
    need_rank(g, n, 1, axes + 2, axes + 2);
    need_list(g, n, "stride", &n->attr[STRIDE], axes, 1);
    need_list(g, n, "padding", &n->attr[PADDING], axes, 0);
    need_list(g, n, "dilation", &n->attr[DILATION], axes, 1);
    for (int i = 0; i < 2; i++)
        for (int d = 2; d < axes + 2; d++)
            if (n->in[i]->type.dim[d] > INT32_MAX)
                fail_node(g, n, "operand %d: expected axes of space of at most %d, found %s", i,
                          INT32_MAX, type_text(g->a, &n->in[i]->type));
}

static void need_groups(const Graph *g, const Node *n, int64_t groups, int i, int axis)
{
    int64_t size = n->in[i]->type.dim[axis];
    if (groups < 1 || size % groups)
        fail_node(g, n, "groups: expected a divisor of the %lld channels of operand %d, found %lld",
                  (long long)size, i, (long long)groups);
}

static void need_size(const Graph *g, const Node *n, int i, int axis, int64_t size,
                      const char *what)
{
    if (n->in[i]->type.dim[axis] != size)
        fail_node(g, n, "operand %d: expected %lld on axis %d, %s, found %s", i, (long long)size,
                  axis, what, type_text(g->a, &n->in[i]->type));
}

/* How many places of the image the kernel reaches over, and with all steps of the map. */
static int64_t span(const Conv *c, int d)
{
    return c->dilation[d] * (c->kernel[d] - 1) + 1;
}

static int64_t reach(const Conv *c, int d)
{
    return (c->map[d] - 1) * c->stride[d] - 2 * c->padding[d] + span(c, d);
}

static int64_t map_size(const Graph *g, const Node *n, const Conv *c, int d)
{
    int64_t padded = c->image[d] + 2 * c->padding[d];
    if (c->kernel[d] < 1 || padded < span(c, d))
        fail_node(g, n,
                  "expected a kernel of at least 1 and at most the padded image, found %lld over "
                  "%lld",
                  (long long)(c->kernel[d] < 1 ? 0 : span(c, d)), (long long)padded);
    return (padded - span(c, d)) / c->stride[d] + 1;
}

/* Places of the image beyond what the map reaches; a convolution leaves fewer than a step. */
static void need_rest(const Graph *g, const Node *n, const Conv *c, int d, int64_t rest)
{
    if (rest < 0 || (rest && rest >= MAX(c->stride[d], c->dilation[d])))
        fail_node(g, n,
                  "expected an image that ends 0 to %lld places behind the map's last (less than "
                  "stride or dilation), found %lld",
                  (long long)MAX(c->stride[d], c->dilation[d]) - 1, (long long)rest);
}

/* As ATen refuses images and maps without places, whatever the padding. */
static void need_space(const Graph *g, const Node *n, int i)
{
    const Type *x = &n->in[i]->type;
    for (int d = 2; d < x->rank; d++)
        if (x->dim[d] < 1)
            fail_node(g, n,
                      "operand %d: expected a size of 1 or more on each axis of space, found %s", i,
                      type_text(g->a, x));
}

static int64_t image_size(const Graph *g, const Node *n, const Conv *c, int d, int64_t more)
{
    if (c->kernel[d] < 1 || reach(c, d) + more < 1)
        fail_node(g, n, "expected a result of size 1 or more on each axis of space, found %lld",
                  (long long)(c->kernel[d] < 1 ? 0 : reach(c, d) + more));
    need_rest(g, n, c, d, more);
    return reach(c, d) + more;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[CONV_INPUT]->type, *w = &n->in[CONV_WEIGHT]->type;
    int64_t groups = n->attr[GROUPS].i, more[SPACE_AXES];
    bool transposed = n->attr[TRANSPOSED].i;
    need_steps(g, n);
    if (n->attr[OUTPUT_PADDING].i)
        need_list(g, n, "output_padding", &n->attr[OUTPUT_PADDING], x->rank - 2, 0);
    need_groups(g, n, groups, CONV_INPUT, 1);
    need_groups(g, n, groups, CONV_WEIGHT, 0);
    need_space(g, n, CONV_INPUT);
    if (transposed)
        need_size(g, n, CONV_WEIGHT, 0, x->dim[1], "the input's channels");
    else
        need_size(g, n, CONV_WEIGHT, 1, x->dim[1] / groups, "the input's channels of a group");
    Conv c = make(n, x, x, w, groups); /* of which one is not known yet */
    const Attr *padding = &n->attr[OUTPUT_PADDING];
    fill_axes(more, padding->i, padding->ints, 0);
    *out = *x;
    out->dtype = need_out_dtype(g, n, "out_dtype", x->dtype);
    out->dim[1] = transposed ? w->dim[1] * groups : w->dim[0];
    for (int d = SPACE_AXES - c.axes, i = 2; d < SPACE_AXES; d++, i++)
        out->dim[i] = transposed ? image_size(g, n, &c, d, more[d]) : map_size(g, n, &c, d);
    if (n->nin > CONV_BIAS) {
        if (!widens(x->dtype, n->in[CONV_BIAS]->type.dtype))
            need_dtype(g, n, CONV_BIAS, x->dtype);
        need_rank(g, n, CONV_BIAS, 1, 1);
        need_size(g, n, CONV_BIAS, 0, out->dim[1], "the result's channels");
    }
    return 1;
}

static int weight_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[CONV_IMAGE]->type;
    int64_t groups = n->attr[WEIGHT_GROUPS].i;
    need_steps(g, n);
    need_groups(g, n, groups, CONV_IMAGE, 1);
    need_groups(g, n, groups, CONV_MAP, 1);
    need_space(g, n, CONV_IMAGE);
    need_size(g, n, CONV_MAP, 0, x->dim[0], "the image's batch");
    need_list(g, n, "kernel", &n->attr[KERNEL], x->rank - 2, 1);
    Conv c = conv_weight_of(n);
    *out = weight_type(n);
    out->dtype = need_out_dtype(g, n, "out_dtype", x->dtype);
    for (int d = SPACE_AXES - c.axes; d < SPACE_AXES; d++) {
        map_size(g, n, &c, d);
        need_rest(g, n, &c, d, c.image[d] - reach(&c, d));
    }
    return 1;
}

/* ---- gradient ---- */

/* The differences between the ops that belong to one convolution. */
static Value *emit_convolution(Build *b, const Conv *c, Value *x, Value *w, bool transposed,
                               const int64_t *output_padding)
{
    int skip = SPACE_AXES - c->axes;
    return emit1(b, "convolution", IN(x, w),
                 ATTRS(A_INTS("stride", c->axes, c->stride + skip),
                       A_INTS("padding", c->axes, c->padding + skip),
                       A_INTS("dilation", c->axes, c->dilation + skip),
                       A_BOOL("transposed", transposed),
                       A_INTS("output_padding", transposed ? c->axes : 0, output_padding),
                       A_INT("groups", c->groups)));
}

Value *conv_image(Build *b, const Conv *c, Value *map, Value *w)
{
    int64_t more[SPACE_AXES];
    int skip = SPACE_AXES - c->axes;
    for (int d = skip; d < SPACE_AXES; d++)
        more[d - skip] = c->image[d] - reach(c, d);
    return emit_convolution(b, c, map, w, true, more);
}

Value *conv_map(Build *b, const Conv *c, Value *image, Value *w)
{
    int skip = SPACE_AXES - c->axes;
    Value *y = emit_convolution(b, c, image, w, false, NULL);
    for (int d = skip, i = 2; d < SPACE_AXES; d++, i++)
        if (y->type.dim[i] > c->map[d])
            y = emit1(b, "slice", IN(y), ATTRS(A_INT("dim", i), A_INT("end", c->map[d])));
    return y;
}

Value *conv_weight(Build *b, const Conv *c, Value *image, Value *map)
{
    int skip = SPACE_AXES - c->axes;
    return emit1(b, "convolution_backward_weight", IN(image, map),
                 ATTRS(A_INTS("stride", c->axes, c->stride + skip),
                       A_INTS("padding", c->axes, c->padding + skip),
                       A_INTS("dilation", c->axes, c->dilation + skip),
                       A_INTS("kernel", c->axes, c->kernel + skip), A_INT("groups", c->groups)));
}

static void diff(Grad *d)
{
    Conv c = conv_of(d->n);
    Build *b = d->b;
    Value *x = d->n->in[CONV_INPUT], *w = d->n->in[CONV_WEIGHT], *dy = d->dy[0];
    if (d->n->nin > CONV_BIAS && d->need[CONV_BIAS]) {
        int64_t axes[1 + SPACE_AXES] = {0};
        for (int i = 1; i <= c.axes; i++)
            axes[i] = i + 1;
        Value *sum = emit1(b, "sum", IN(dy), ATTRS(A_INTS("dim", c.axes + 1, axes)));
        d->dx[CONV_BIAS] = emit_cast(b, sum, d->n->in[CONV_BIAS]->type.dtype);
    }
    dy = emit_cast(b, dy, x->type.dtype);
    if (d->need[CONV_INPUT])
        d->dx[CONV_INPUT] = c.transposed ? conv_map(b, &c, dy, w) : conv_image(b, &c, dy, w);
    if (d->need[CONV_WEIGHT])
        d->dx[CONV_WEIGHT] = c.transposed ? conv_weight(b, &c, dy, x) : conv_weight(b, &c, x, dy);
}

static void weight_diff(Grad *d)
{
    Conv c = conv_weight_of(d->n);
    Value *x = d->n->in[CONV_IMAGE], *y = d->n->in[CONV_MAP];
    Value *dw = emit_cast(d->b, d->dy[0], x->type.dtype);
    if (d->need[CONV_IMAGE])
        d->dx[CONV_IMAGE] = conv_image(d->b, &c, y, dw);
    if (d->need[CONV_MAP])
        d->dx[CONV_MAP] = conv_map(d->b, &c, x, dw);
}

/* ---- cost ---- */

static double product_of(const int64_t *x)
{
    return (double)x[0] * (double)x[1] * (double)x[2];
}

/* A multiplication and an addition for each place of the kernel at each place of the map. */
static double flops(const Conv *c)
{
    return 2 * (double)c->batch * (double)c->groups * (double)c->in * (double)c->out *
           product_of(c->map) * product_of(c->kernel);
}

static Cost cost(const Node *n)
{
    Conv conv = conv_of(n);
    Cost c = cost_bytes(n);
    c.nflop = flops(&conv) + (n->nin > CONV_BIAS ? (double)type_nelem(&n->out[0]->type) : 0);
    return c;
}

static Cost weight_cost(const Node *n)
{
    Conv conv = conv_weight_of(n);
    Cost c = cost_bytes(n);
    c.nflop = flops(&conv);
    return c;
}

/* ---- factors ---- */

typedef struct ConvFactors {
    int batch, groups, in, out;
} ConvFactors;

static int factor(Factors *f, FactorKind kind, int64_t size)
{
    return size == 1 ? NO_FACTOR : factor_new(f, kind, size);
}

static void axis(Axes *x, int d, int first, int second)
{
    if (first != NO_FACTOR)
        axis_add(x, d, first);
    if (second != NO_FACTOR)
        axis_add(x, d, second);
}

static void space_axes(Factors *f, Axes *x, const Type *t)
{
    for (int d = 2; d < t->rank; d++)
        axis(x, d, factor(f, FACTOR_REPLICATE, t->dim[d]), NO_FACTOR);
}

static ConvFactors conv_factors(Factors *f, const Conv *c, FactorKind batch, FactorKind in,
                                FactorKind out)
{
    return (ConvFactors){
        .batch = factor(f, batch, c->batch),
        .groups = factor(f, FACTOR_PARALLEL, c->groups),
        .in = factor(f, in, c->in),
        .out = factor(f, out, c->out),
    };
}

static void pixel_axes(Factors *f, Axes *x, const Type *t, const ConvFactors *k, int channels)
{
    axis(x, 0, k->batch, NO_FACTOR);
    axis(x, 1, k->groups, channels);
    space_axes(f, x, t);
}

static void weight_axes(Factors *f, Axes *x, const Type *t, const ConvFactors *k)
{
    axis(x, 0, k->groups, k->out);
    axis(x, 1, k->in, NO_FACTOR);
    space_axes(f, x, t);
}

/* Channels of the operand are summed. Parts of a sum with a bias are convolutions without it, to
 * whose sum finish() adds it. */
static void factors(const Node *n, Factors *f)
{
    Conv c = conv_of(n);
    FactorKind in = c.transposed ? FACTOR_PARALLEL : FACTOR_SUM;
    FactorKind out = c.transposed ? FACTOR_SUM : FACTOR_PARALLEL;
    ConvFactors k = conv_factors(f, &c, FACTOR_PARALLEL, in, out);
    int summed = c.transposed ? k.out : k.in, made = c.transposed ? k.in : k.out;
    pixel_axes(f, &f->in[CONV_INPUT], &n->in[CONV_INPUT]->type, &k, summed);
    weight_axes(f, &f->in[CONV_WEIGHT], &n->in[CONV_WEIGHT]->type, &k);
    pixel_axes(f, &f->out[0], &n->out[0]->type, &k, made);
    if (n->nin > CONV_BIAS) {
        axis(&f->in[CONV_BIAS], 0, k.groups, made);
        if (summed != NO_FACTOR)
            factor_partials(f, summed, 1, FACTOR_SUM, FACTOR_SUM);
    }
}

static void weight_factors(const Node *n, Factors *f)
{
    Conv c = conv_weight_of(n);
    ConvFactors k = conv_factors(f, &c, FACTOR_SUM, FACTOR_PARALLEL, FACTOR_PARALLEL);
    pixel_axes(f, &f->in[CONV_IMAGE], &n->in[CONV_IMAGE]->type, &k, k.in);
    pixel_axes(f, &f->in[CONV_MAP], &n->in[CONV_MAP]->type, &k, k.out);
    weight_axes(f, &f->out[0], &n->out[0]->type, &k);
}

/* The attributes of a part, which has fewer groups where these are cut. */
static Attr *part_groups(Part *p, int attribute)
{
    Attr *attr = part_attr(p);
    if (attr[attribute].i > 1)
        attr[attribute].i = p->size[p->f->in[0].f[1][0]];
    return attr;
}

static void part(Part *p)
{
    Attr *attr = part_groups(p, GROUPS);
    if (!p->partials) {
        part_same(p, attr);
        return;
    }
    DType d = p->in[CONV_INPUT]->type.dtype;
    attr[OUT_DTYPE].i = dtype_size(d) == 2 ? F32 : d;
    part_with(p, attr, 2, p->in);
}

/* Rounded once, as in the whole. */
static void finish(Part *p, Value *const *merged)
{
    Value *bias = emit_cast(p->b, p->in[CONV_BIAS], merged[0]->type.dtype);
    int64_t shape[1 + SPACE_AXES] = {bias->type.dim[0], 1, 1, 1};
    bias = emit1(p->b, "view", IN(bias), ATTRS(A_INTS("size", merged[0]->type.rank - 1, shape)));
    Value *y = emit1(p->b, "add", IN(merged[0], bias), NOATTRS);
    p->out[0] = emit_cast(p->b, y, p->n->out[0]->type.dtype);
}

static void weight_part(Part *p)
{
    part_same(p, part_groups(p, WEIGHT_GROUPS));
}

/* ---- the ops ---- */

const OpRules op_convolution = {
    .math = "y[n, o, t] = bias[o] + sum_{c, k} x[n, c, t stride + k dilation - padding] w[o, c, k]",
    .example = "f32[2, 4, 6, 5] f32[8, 2, 3, 3] f32[8] stride=[1, 1] padding=[1, 1] "
               "dilation=[1, 1] groups=2",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = part,
    .finish = finish,
    .kernels = convolution_kernels,
    .ref = conv_ref,
};

const OpRules op_convolution_backward_weight = {
    .math = "dw[o, c, k] = sum_{n, t} dy[n, o, t] x[n, c, t stride + k dilation - padding]",
    .example = "f32[2, 4, 6, 5] f32[2, 8, 6, 5] stride=[1, 1] padding=[1, 1] dilation=[1, 1] "
               "kernel=[3, 3] groups=2",
    .attrs = weight_attrs,
    .infer = weight_infer,
    .diff = weight_diff,
    .cost = weight_cost,
    .factors = weight_factors,
    .part = weight_part,
    .kernels = convolution_weight_kernels,
    .ref = conv_weight_ref,
};
