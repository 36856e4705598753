/* Pools over 1 to 3 axes of space, by other ops; lower_adaptive.c has those whose result's sizes
 * are given. A mean of windows is a convolution of each channel with ones, divided by how many
 * elements count, in f32 for 16 bits. A maximum is gathered from where argmax finds it in the
 * windows, which are a view of the padded image, so that of equal elements the first has the
 * gradient, as in PyTorch (of several NaN too, where PyTorch takes the last); its windows lie in
 * memory for argmax, each element once for each window that has it. */
#include "lower.h"

#include "../op/convolution.h"

#include <math.h>
#include <string.h>

typedef struct Pool {
    int axes;
    bool single; /* no batch: there is one of 1 */
    int64_t kernel[TN_RANK], stride[TN_RANK], padding[TN_RANK], dilation[TN_RANK];
    int64_t places[SPACE_AXES]; /* of the result */
    bool beyond;                /* by ceil_mode the last window ends behind the padding */
} Pool;

static void read_list(Site *s, const char *name, int axes, int64_t *x)
{
    int count = site_ints(s, name, x);
    if (count != axes && count != 1)
        site_fail(s, "argument %s: expected %d integers, found %d", name, axes, count);
    int64_t least = strcmp(name, "padding") ? 1 : 0;
    for (int d = 0; d < axes; d++) {
        x[d] = x[count == 1 ? 0 : d];
        if (x[d] < least || x[d] > INT32_MAX)
            site_fail(s, "argument %s: expected %lld to %d, found %lld", name, (long long)least,
                      INT32_MAX, (long long)x[d]);
    }
}

static int64_t span(const Pool *p, int d)
{
    return p->dilation[d] * (p->kernel[d] - 1) + 1;
}

/* By ceil_mode a window more, that begins in the image or before it; a window that is larger than
 * the padded image is all of that. */
static void count_places(Site *s, Pool *p, const Type *t)
{
    bool ceil = site_bool(s, "ceil_mode");
    for (int d = 0; d < p->axes; d++) {
        int64_t size = t->dim[2 + d], room = size + 2 * p->padding[d] - span(p, d);
        bool one = ceil && room < 0 && room > -p->stride[d] && p->dilation[d] == 1;
        if ((room < 0 && !one) || 2 * p->padding[d] > span(p, d))
            site_fail(s, "expected windows of at most the padded size and paddings of at most half "
                         "a window");
        if (one) {
            p->kernel[d] = size + 2 * p->padding[d];
            room = 0;
        }
        int64_t floor = room / p->stride[d] + 1;
        bool more = ceil && room % p->stride[d] && floor * p->stride[d] < size + p->padding[d];
        p->places[d] = floor + more;
        p->beyond = p->beyond || more;
    }
}

/* Reads the arguments of a pool; *x becomes a batch. */
static Pool read_pool(Site *s, int axes, Value **x, bool dilated)
{
    Pool p = {.axes = axes, .single = (*x)->type.rank == axes + 1};
    if (p.single)
        *x = emit1(s->b, "unsqueeze", IN(*x), ATTRS(A_INT("dim", 0)));
    if ((*x)->type.rank != axes + 2 || !dtype_float((*x)->type.dtype))
        site_fail(s, "expected floats with %d axes of space, found %s", axes,
                  type_text(s->im->a, &(*x)->type));
    read_list(s, "kernel_size", axes, p.kernel);
    read_list(s, "padding", axes, p.padding);
    bool given = site_has(s, "stride") && site_ints(s, "stride", p.stride) > 0;
    if (given)
        read_list(s, "stride", axes, p.stride);
    else
        memcpy(p.stride, p.kernel, sizeof p.stride);
    for (int d = 0; d < axes; d++)
        p.dilation[d] = 1;
    if (dilated)
        read_list(s, "dilation", axes, p.dilation);
    count_places(s, &p, &(*x)->type);
    return p;
}

static Value *unbatched(Site *s, const Pool *p, Value *y)
{
    return p->single ? emit1(s->b, "squeeze", IN(y), ATTRS(A_INTS("dim", 1, (int64_t[]){0}))) : y;
}

static int axes_named(const Site *s)
{
    const char *digit = strpbrk(s->row->name, "123");
    return *digit - '0';
}

/* ---- means ---- */

/* Ones as a kernel for each of `channels`. */
static Value *ones_kernel(Site *s, const Pool *p, int64_t channels, DType d)
{
    Type w = {.dtype = d, .rank = 2 + p->axes, .dim = {channels, 1}};
    memcpy(w.dim + 2, p->kernel, sizeof *w.dim * (size_t)p->axes);
    return lower_full(s, 1, &w);
}

static Value *window_sums(Site *s, const Pool *p, Value *x)
{
    int64_t channels = x->type.dim[1];
    return emit1(s->b, "convolution", IN(x, ones_kernel(s, p, channels, x->type.dtype)),
                 ATTRS(A_INTS("stride", p->axes, p->stride), A_INTS("padding", p->axes, p->padding),
                       A_INTS("dilation", p->axes, p->dilation), A_INT("groups", channels)));
}

/* Elements of the padded image that windows reach beyond its padding, by axis. */
static int64_t beyond(const Pool *p, const Type *x, int d)
{
    int64_t end = (p->places[d] - 1) * p->stride[d] + span(p, d);
    return MAX(end - x->dim[2 + d] - 2 * p->padding[d], 0);
}

/* x with its padding in memory, of `value`, and zeros up to where windows end. */
static Value *in_borders(Site *s, const Pool *p, Value *x, double value)
{
    int64_t pad[2][2 * SPACE_AXES] = {{0}, {0}};
    for (int d = 0; d < p->axes; d++) {
        int at = 2 * (p->axes - 1 - d);
        pad[0][at] = pad[0][at + 1] = p->padding[d];
        pad[1][at + 1] = beyond(p, &x->type, d);
    }
    for (int i = 0; i < 2; i++)
        x = emit1(s->b, "constant_pad_nd", IN(x),
                  ATTRS(A_INTS("pad", 2 * p->axes, pad[i]), A_FLOAT("value", i ? 0 : value)));
    return x;
}

/* Sums of windows of x; those that end behind the padding need it in memory. */
static Value *all_sums(Site *s, const Pool *p, Value *x, double value)
{
    if (!p->beyond && !value)
        return window_sums(s, p, x);
    Pool bare = *p;
    memset(bare.padding, 0, sizeof bare.padding);
    return window_sums(s, &bare, in_borders(s, p, x, value));
}

/* The divisor of each window's sum: a number, or the elements that count. */
static Value *divisor(Site *s, const Pool *p, const Type *x)
{
    double all = 1;
    bool padded = false;
    for (int d = 0; d < p->axes; d++) {
        all *= (double)p->kernel[d];
        padded = padded || p->padding[d];
    }
    bool given = p->axes > 1 && site_has(s, "divisor_override");
    bool counts = site_bool(s, "count_include_pad");
    if (given && !site_int(s, "divisor_override"))
        site_fail(s, "argument divisor_override: expected another number than 0");
    if (given)
        return lower_number(s, site_real(s, "divisor_override"), x->dtype);
    if (!p->beyond && (counts || !padded))
        return lower_number(s, all, x->dtype);
    Type one = *x;
    one.dim[0] = one.dim[1] = 1;
    return all_sums(s, p, lower_full(s, 1, &one), counts && padded);
}

void row_avg_pool(Site *s)
{
    Value *x = site_tensor(s, "self");
    DType d = x->type.dtype;
    Pool p = read_pool(s, axes_named(s), &x, false);
    x = lower_cast(s, x, opmath_type(d));
    Value *y = lower2(s, "div", all_sums(s, &p, x, 0), divisor(s, &p, &x->type));
    site_return(s, lower_cast(s, unbatched(s, &p, y), d));
}

/* dy, each element over all of its window. */
static Value *spread(Site *s, const Pool *p, Value *dy, const Type *x)
{
    Type map = dy->type;
    Value *w = ones_kernel(s, p, x->dim[1], x->dtype);
    Conv c = conv_make(x, &map, &w->type, x->dim[1], p->stride, p->padding, p->dilation);
    return conv_image(s->b, &c, dy, w);
}

/* The same where windows may end behind the padding. */
static Value *spread_all(Site *s, const Pool *p, Value *dy, const Type *x)
{
    Pool bare = *p;
    Type wide = *x;
    if (!p->beyond)
        return spread(s, p, dy, x);
    memset(bare.padding, 0, sizeof bare.padding);
    for (int d = 0; d < p->axes; d++)
        wide.dim[2 + d] += 2 * p->padding[d] + beyond(p, x, d);
    Value *dx = spread(s, &bare, dy, &wide);
    for (int d = 0; d < p->axes; d++)
        dx = lower_slice(s, dx, 2 + d, p->padding[d], p->padding[d] + x->dim[2 + d], 1);
    return dx;
}

void row_avg_pool_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *dy = site_tensor(s, "grad_output");
    Pool p = read_pool(s, axes_named(s), &x, false);
    Type t = x->type;
    t.dtype = opmath_type(t.dtype);
    if (p.single)
        dy = emit1(s->b, "unsqueeze", IN(dy), ATTRS(A_INT("dim", 0)));
    dy = lower2(s, "div", lower_cast(s, dy, t.dtype), divisor(s, &p, &t));
    dy = unbatched(s, &p, spread_all(s, &p, dy, &t));
    site_return(s, lower_cast(s, dy, x->type.dtype));
}

/* ---- maxima ---- */

/* [N, C, places..., elements]: the windows of x, padded with -inf. */
static Value *windows(Site *s, const Pool *p, Value *x)
{
    int64_t pad[2 * SPACE_AXES];
    for (int d = 0; d < p->axes; d++) {
        int64_t end = (p->places[d] - 1) * p->stride[d] + span(p, d) - p->padding[d];
        pad[2 * (p->axes - 1 - d)] = p->padding[d];
        pad[2 * (p->axes - 1 - d) + 1] = MAX(end - x->type.dim[2 + d], 0);
    }
    x = emit1(s->b, "constant_pad_nd", IN(x),
              ATTRS(A_INTS("pad", 2 * p->axes, pad), A_FLOAT("value", -INFINITY)));
    for (int d = 0; d < p->axes; d++) {
        x = emit1(s->b, "unfold", IN(x),
                  ATTRS(A_INT("dimension", 2 + d), A_INT("size", span(p, d)),
                        A_INT("step", p->stride[d])));
        if (p->dilation[d] > 1)
            x = lower_slice(s, x, x->type.rank - 1, 0, INT64_MAX, p->dilation[d]);
    }
    Type t = x->type;
    for (int d = 3 + p->axes; d < t.rank; d++)
        t.dim[2 + p->axes] *= t.dim[d];
    return lower_reshape(s, x, 3 + p->axes, t.dim);
}

/* Places in the image of places in windows: both count in rows. The first
 * element of a window of -inf alone is of the padding; its place is that of the first in the image,
 * axis by axis. */
static Value *image_places(Site *s, const Pool *p, Value *in_window, const Type *x)
{
    Value *flat = NULL;
    for (int d = p->axes - 1; d >= 0; d--) {
        int64_t shape[SPACE_AXES] = {p->places[d], 1, 1}, below = 1;
        Value *k = lower2(s, "remainder", in_window, lower_number(s, (double)p->kernel[d], I64));
        in_window =
            lower2(s, "floor_divide", in_window, lower_number(s, (double)p->kernel[d], I64));
        int64_t first = -p->padding[d], step = p->stride[d];
        Value *start =
            emit1(s->b, "arange", 0, NULL,
                  ATTRS(A_INT("start", first), A_INT("step", step),
                        A_INT("end", first + p->places[d] * step), A_DTYPE("dtype", I64)));
        start = lower_reshape(s, start, p->axes - d, shape);
        if (p->padding[d]) {
            Value *before = lower_number(s, (double)p->dilation[d], I64);
            before = lower_times(s, lower2(s, "floor_divide", start, before), -1);
            k = lower2(s, "maximum", k, before);
        }
        k = lower2(s, "add", lower_times(s, k, (double)p->dilation[d]), start);
        for (int e = d + 1; e < p->axes; e++)
            below *= x->dim[2 + e];
        k = lower_times(s, k, (double)below);
        flat = flat ? lower2(s, "add", flat, k) : k;
    }
    return flat;
}

/* x as [N, C, all of space] */
static Value *flat_space(Site *s, Value *x)
{
    int64_t size[3] = {x->type.dim[0], x->type.dim[1], 1};
    for (int d = 2; d < x->type.rank; d++)
        size[2] *= x->type.dim[d];
    return lower_reshape(s, x, 3, size);
}

/* The maxima and, by number in rows, where they are. */
static void max_pool(Site *s, Value *out[2])
{
    Value *x = site_tensor(s, "self");
    Pool p = read_pool(s, axes_named(s), &x, true);
    Value *at = lower_reduce(s, "argmax", windows(s, &p, x), 1, (int64_t[]){-1}, false);
    at = image_places(s, &p, at, &x->type);
    Value *y =
        emit1(s->b, "gather", IN(flat_space(s, x), flat_space(s, at)), ATTRS(A_INT("dim", 2)));
    out[0] = unbatched(s, &p, lower_reshape(s, y, at->type.rank, at->type.dim));
    out[1] = unbatched(s, &p, at);
}

void row_max_pool(Site *s)
{
    Value *out[2];
    max_pool(s, out);
    site_return(s, out[0]);
}

void row_max_pool_indices(Site *s)
{
    Value *out[2];
    max_pool(s, out);
    site_return_list(s, 2, out);
}

void row_max_pool_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *dy = site_tensor(s, "grad_output");
    Value *at = site_tensor(s, "indices");
    const Type t = x->type;
    int axes = axes_named(s);
    bool single = t.rank == axes + 1;
    Value *in[] = {x, dy, at};
    for (int i = 0; i < LEN(in); i++) {
        if (in[i]->type.rank != t.rank || (!single && t.rank != axes + 2))
            site_fail(s, "expected %d axes of space, found %s", axes,
                      type_text(s->im->a, &in[i]->type));
        if (single)
            in[i] = emit1(s->b, "unsqueeze", IN(in[i]), ATTRS(A_INT("dim", 0)));
        in[i] = flat_space(s, in[i]);
    }
    Value *zeros = lower_full(s, 0, &in[0]->type);
    Value *dx = emit1(s->b, "scatter_add", IN(zeros, in[2], in[1]), ATTRS(A_INT("dim", 2)));
    site_return(s, lower_reshape(s, dx, t.rank, t.dim));
}
