/* Convolutions: each is one node, and each gradient is one. A single image becomes a batch of one.
 * The padding "same" whose sides differ pads the image before. */
#include "lower.h"

#include "../op/convolution.h"

#include <string.h>

typedef struct ConvLists {
    int64_t stride[TN_RANK], padding[TN_RANK], dilation[TN_RANK], output_padding[TN_RANK];
} ConvLists;

/* A list with a number for each of `axes`; one number stands for all. */
static void read_list(Site *s, const char *name, int axes, int64_t *x)
{
    int count = site_ints(s, name, x);
    if (count != axes && count != 1)
        site_fail(s, "argument %s: expected %d integers, found %d", name, axes, count);
    for (int d = count; d < axes; d++)
        x[d] = x[0];
}

static ConvLists read_lists(Site *s, int axes, bool padding, bool output_padding)
{
    ConvLists x = {{0}, {0}, {0}, {0}};
    read_list(s, "stride", axes, x.stride);
    read_list(s, "dilation", axes, x.dilation);
    if (padding)
        read_list(s, "padding", axes, x.padding);
    if (output_padding)
        read_list(s, "output_padding", axes, x.output_padding);
    return x;
}

/* The axes of space of the weight. */
static int space_of(Site *s)
{
    int axes = site_type(s, "weight")->rank - 2;
    if (axes < 1 || axes > SPACE_AXES)
        site_fail(s, "argument weight: expected 1 to %d axes of space, found %s", SPACE_AXES,
                  type_text(s->im->a, site_type(s, "weight")));
    return axes;
}

static Value *emit_one(Site *s, Value *x, int axes, const ConvLists *l, bool transposed)
{
    Value *w = site_tensor(s, "weight"), *bias = site_find_tensor(s, "bias");
    Value *in[] = {x, w, bias};
    return emit1(s->b, "convolution", bias ? 3 : 2, in,
                 ATTRS(A_INTS("stride", axes, l->stride), A_INTS("padding", axes, l->padding),
                       A_INTS("dilation", axes, l->dilation), A_BOOL("transposed", transposed),
                       A_INTS("output_padding", transposed ? axes : 0, l->output_padding),
                       A_INT("groups", site_int(s, "groups"))));
}

/* Returns the convolution of x, a batch or one image. */
static void return_one(Site *s, Value *x, int axes, const ConvLists *l, bool transposed)
{
    bool single = x->type.rank == axes + 1;
    if (single)
        x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", 0)));
    Value *y = emit_one(s, x, axes, l, transposed);
    if (single)
        y = emit1(s->b, "squeeze", IN(y), ATTRS(A_INTS("dim", 1, (int64_t[]){0})));
    site_return(s, y);
}

void row_convolution(Site *s)
{
    int axes = space_of(s);
    bool transposed = site_bool(s, "transposed");
    ConvLists l = read_lists(s, axes, true, transposed);
    return_one(s, site_tensor(s, "input"), axes, &l, transposed);
}

void row_conv(Site *s)
{
    int axes = space_of(s);
    ConvLists l = read_lists(s, axes, true, false);
    return_one(s, site_tensor(s, "input"), axes, &l, false);
}

void row_conv_transposed(Site *s)
{
    int axes = space_of(s);
    ConvLists l = read_lists(s, axes, true, true);
    return_one(s, site_tensor(s, "input"), axes, &l, true);
}

/* padding "same" keeps sizes where the stride is 1: half of what the kernel reaches further is
 * before the image, the greater half after it. */
void row_conv_padding(Site *s)
{
    int axes = space_of(s);
    ConvLists l = read_lists(s, axes, false, false);
    Value *x = site_tensor(s, "input");
    const Type *w = site_type(s, "weight");
    const char *padding = site_text(s, "padding");
    int64_t more[2 * SPACE_AXES] = {0};
    bool same = !strcmp(padding, "same"), uneven = false;
    if (!same && strcmp(padding, "valid") != 0)
        site_fail(s, "argument padding: expected \"same\" or \"valid\", found \"%s\"", padding);
    for (int d = 0; d < axes && same; d++) {
        int64_t all = l.dilation[d] * (w->dim[2 + d] - 1);
        if (l.stride[d] != 1)
            site_fail(s, "argument stride: expected 1 with padding \"same\", found %lld",
                      (long long)l.stride[d]);
        l.padding[d] = all / 2;
        more[2 * (axes - 1 - d) + 1] = all % 2;
        uneven = uneven || all % 2;
    }
    if (uneven)
        x = emit1(s->b, "constant_pad_nd", IN(x), ATTRS(A_INTS("pad", 2 * axes, more)));
    return_one(s, x, axes, &l, false);
}

void row_convolution_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *x = site_tensor(s, "input");
    Value *w = site_tensor(s, "weight"), *dx[3] = {0};
    const Item *mask = site_arg(s, "output_mask");
    int axes = space_of(s);
    int64_t groups = site_int(s, "groups"), sum[1 + SPACE_AXES] = {0};
    bool transposed = site_bool(s, "transposed");
    ConvLists l = read_lists(s, axes, true, transposed);
    if (x->type.rank != axes + 2 || dy->type.rank != axes + 2 || groups < 1 || mask->count != 3)
        site_fail(s, "expected batches, groups and a mask of 3, found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &dy->type));
    Value *image = transposed ? dy : x, *map = transposed ? x : dy;
    Conv c = conv_make(&image->type, &map->type, &w->type, groups, l.stride, l.padding, l.dilation);
    for (int d = 0; d < axes; d++)
        sum[1 + d] = 2 + d;
    if (mask->item[0].i)
        dx[0] = transposed ? conv_map(s->b, &c, dy, w) : conv_image(s->b, &c, dy, w);
    if (mask->item[1].i)
        dx[1] = conv_weight(s->b, &c, image, map);
    if (mask->item[2].i)
        dx[2] = lower_reduce(s, "sum", dy, axes + 1, sum, false);
    site_return_list(s, 3, dx);
}
