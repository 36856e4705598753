/* Paddings by the operand's own elements, and windows as columns. Each padded axis is parts of the
 * operand side by side: reflected ones are flipped, replicated ones expanded, circular ones are
 * slices of the other end. Gradients add the parts back to where they came from. Windows (im2col)
 * are views of the padded image in another order of axes; col2im adds them up again. */
#include "arith.h"

#include <string.h>

typedef enum { REFLECT, REPLICATE, CIRCULAR } Border;

enum { SPACE = 3 };

/* ---- paddings ---- */

static Value *flipped(Site *s, Value *x, int axis)
{
    const int64_t dim = axis;
    return emit1(s->b, "flip", IN(x), ATTRS(A_INTS("dims", 1, &dim)));
}

/* The border of `count` elements before (or behind) x along an axis. */
static Value *border(Site *s, Value *x, int axis, int64_t count, bool behind, Border kind)
{
    int64_t n = x->type.dim[axis], start = behind ? 0 : n - count;
    Type t = x->type;
    t.dim[axis] = count;
    if (kind == REFLECT)
        start = behind ? n - 1 - count : 1;
    if (kind == REPLICATE)
        start = behind ? n - 1 : 0;
    x = lower_slice(s, x, axis, start, start + (kind == REPLICATE ? 1 : count), 1);
    return kind == REPLICATE ? lower_expand(s, x, &t) : kind == REFLECT ? flipped(s, x, axis) : x;
}

static void check_border(Site *s, const Type *t, int axis, const int64_t *pad, Border kind)
{
    static const char *const most[] = {"less than all of the axis", "elements that it has",
                                       "at most all of the axis"};
    int64_t n = t->dim[axis], limit = kind == REFLECT ? n - 1 : kind == CIRCULAR ? n : INT32_MAX;
    for (int i = 0; i < 2; i++)
        if (n < 1 || pad[i] > limit || pad[i] < -n)
            site_fail(s, "expected to pad axis %d of %s by %s, found %lld", axis,
                      type_text(s->im->a, t), most[kind], (long long)pad[i]);
}

static Value *padded(Site *s, Value *x, int axis, const int64_t *pad, Border kind)
{
    Value *part[3];
    int n = 0;
    check_border(s, &x->type, axis, pad, kind);
    int64_t from = pad[0] < 0 ? -pad[0] : 0, to = x->type.dim[axis] + (pad[1] < 0 ? pad[1] : 0);
    if (pad[0] > 0)
        part[n++] = border(s, x, axis, pad[0], false, kind);
    part[n++] = lower_slice(s, x, axis, from, to, 1);
    if (pad[1] > 0)
        part[n++] = border(s, x, axis, pad[1], true, kind);
    return n > 1 ? emit1(s->b, "cat", n, part, ATTRS(A_INT("dim", axis))) : part[0];
}

/* x, `before` and `behind` zeros around it along an axis */
static Value *zeros_around(Site *s, Value *x, int axis, int64_t before, int64_t behind)
{
    int64_t pad[2 * TN_RANK] = {0};
    int last = x->type.rank - 1;
    pad[2 * (last - axis)] = before;
    pad[2 * (last - axis) + 1] = behind;
    return before || behind ? emit1(s->b, "constant_pad_nd", IN(x),
                                    ATTRS(A_INTS("pad", 2 * (last - axis + 1), pad)))
                            : x;
}

/* The gradient of what a border was made of, which has n elements along the axis. */
static Value *border_back(Site *s, Value *dy, int axis, int64_t n, bool behind, Border kind)
{
    const int64_t count = dy->type.dim[axis], dim = axis;
    if (kind == REPLICATE)
        dy = lower_reduce(s, "sum", dy, 1, &dim, true);
    else
        dy = flipped(s, dy, axis);
    int64_t size = dy->type.dim[axis], start = behind ? n - size : 0;
    if (kind == REFLECT)
        start = behind ? n - 1 - count : 1;
    return zeros_around(s, dy, axis, start, n - start - size);
}

static Value *padded_back(Site *s, Value *dy, int axis, int64_t n, const int64_t *pad, Border kind)
{
    int64_t left = pad[0] > 0 ? pad[0] : 0, right = pad[1] > 0 ? pad[1] : 0;
    int64_t all = dy->type.dim[axis];
    if (all != n + pad[0] + pad[1])
        site_fail(s, "expected %lld elements on axis %d of the gradient, found %lld",
                  (long long)(n + pad[0] + pad[1]), axis, (long long)all);
    Value *dx = lower_slice(s, dy, axis, left, all - right, 1);
    dx = zeros_around(s, dx, axis, left - pad[0], right - pad[1]);
    if (left)
        dx = add(s, dx, border_back(s, lower_slice(s, dy, axis, 0, left, 1), axis, n, false, kind));
    if (right)
        dx =
            add(s, dx,
                border_back(s, lower_slice(s, dy, axis, all - right, all, 1), axis, n, true, kind));
    return dx;
}

/* The paddings of the last axes of x, from the last on; returns how many axes. */
static int read_padding(Site *s, const char *name, const Type *x, int64_t *pad)
{
    int count = site_ints(s, name, pad) / 2;
    if (site_ints(s, name, pad) % 2 || count < 1 || count > SPACE || count >= x->rank)
        site_fail(s, "argument %s: expected pairs for 1 to %d axes of %s", name, SPACE,
                  type_text(s->im->a, x));
    return count;
}

static void return_padded(Site *s, const char *name, Border kind)
{
    Value *x = site_tensor(s, "self");
    int64_t pad[TN_RANK];
    int count = read_padding(s, name, &x->type, pad);
    for (int k = 0; k < count; k++)
        x = padded(s, x, x->type.rank - 1 - k, pad + 2 * k, kind);
    site_return(s, x);
}

static Border border_of(Site *s)
{
    return strncmp(site_stem(s), "reflection", 10) ? REPLICATE : REFLECT;
}

void row_border(Site *s)
{
    return_padded(s, "padding", border_of(s));
}

void row_border_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    const Type *t = site_type(s, "self");
    Border kind = border_of(s);
    int64_t pad[TN_RANK];
    int count = read_padding(s, "padding", t, pad);
    if (dy->type.rank != t->rank)
        site_fail(s, "argument grad_output: expected %d axes, found %s", t->rank,
                  type_text(s->im->a, &dy->type));
    for (int k = count - 1; k >= 0; k--) {
        int axis = t->rank - 1 - k;
        check_border(s, t, axis, pad + 2 * k, kind);
        dy = padded_back(s, dy, axis, t->dim[axis], pad + 2 * k, kind);
    }
    site_return(s, dy);
}

/* Any mode. */
void row_pad(Site *s)
{
    static const char *const names[] = {"reflect", "replicate", "circular"};
    const char *mode = site_text(s, "mode");
    for (int kind = 0; kind < LEN(names); kind++)
        if (!strcmp(mode, names[kind])) {
            return_padded(s, "pad", (Border)kind);
            return;
        }
    if (strcmp(mode, "constant") != 0)
        site_fail(s,
                  "argument mode: expected \"constant\", \"reflect\", \"replicate\" or "
                  "\"circular\", found \"%s\"",
                  mode);
    Item zero = {.kind = FX_FLOAT}, value = site_has(s, "value") ? *site_arg(s, "value") : zero;
    s->result = lower_call(s, "constant_pad_nd.default", 3, (Item[]){s->arg[0], s->arg[1], value});
}

/* ---- windows as columns ---- */

typedef struct ImageColumns {
    bool single; /* no batch */
    int64_t kernel[2], dilation[2], padding[2], stride[2], places[2];
} ImageColumns;

static void read_pair(Site *s, const char *name, int64_t least, int64_t *x)
{
    int64_t all[TN_RANK];
    int count = site_ints(s, name, all);
    for (int d = 0; d < 2; d++) {
        x[d] = all[count == 1 ? 0 : d];
        if ((count != 1 && count != 2) || x[d] < least || x[d] > INT32_MAX)
            site_fail(s, "argument %s: expected two numbers from %lld to %d", name,
                      (long long)least, INT32_MAX);
    }
}

static int64_t span(const ImageColumns *c, int d)
{
    return c->dilation[d] * (c->kernel[d] - 1) + 1;
}

static ImageColumns read_columns(Site *s, const int64_t *size, bool single)
{
    ImageColumns c = {.single = single};
    read_pair(s, "kernel_size", 1, c.kernel);
    read_pair(s, "dilation", 1, c.dilation);
    read_pair(s, "padding", 0, c.padding);
    read_pair(s, "stride", 1, c.stride);
    for (int d = 0; d < 2; d++) {
        int64_t room = size[d] + 2 * c.padding[d] - span(&c, d);
        if (room < 0)
            site_fail(s, "expected windows of at most the padded size");
        c.places[d] = room / c.stride[d] + 1;
    }
    return c;
}

/* [N, C, H, W] as its windows [N, C, places H, places W, kernel H, kernel W] */
static Value *windows(Site *s, const ImageColumns *c, Value *x)
{
    const int64_t pad[] = {c->padding[1], c->padding[1], c->padding[0], c->padding[0]};
    x = emit1(s->b, "constant_pad_nd", IN(x), ATTRS(A_INTS("pad", 4, pad)));
    for (int d = 0; d < 2; d++) {
        x = emit1(s->b, "unfold", IN(x),
                  ATTRS(A_INT("dimension", 2 + d), A_INT("size", span(c, d)),
                        A_INT("step", c->stride[d])));
        if (c->dilation[d] > 1)
            x = lower_slice(s, x, x->type.rank - 1, 0, INT64_MAX, c->dilation[d]);
    }
    return x;
}

void row_im2col(Site *s)
{
    static const int64_t order[] = {0, 1, 4, 5, 2, 3};
    Value *x = site_tensor(s, "self");
    bool single = x->type.rank == 3;
    if (single)
        x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", 0)));
    if (x->type.rank != 4)
        site_fail(s, "argument self: expected an image or a batch of them, found %s",
                  type_text(s->im->a, &x->type));
    ImageColumns c = read_columns(s, x->type.dim + 2, single);
    const int64_t channels = x->type.dim[1] * c.kernel[0] * c.kernel[1];
    const int64_t size[] = {x->type.dim[0], channels, c.places[0] * c.places[1]};
    Value *y = emit1(s->b, "permute", IN(windows(s, &c, x)), ATTRS(A_INTS("dims", 6, order)));
    site_return(s, lower_reshape(s, y, single ? 2 : 3, size + single));
}

/* The sum of the windows at each place of the padded image, whose padding is left out. */
static Value *summed(Site *s, const ImageColumns *c, Value *y, const int64_t *size)
{
    const int64_t n = y->type.dim[0], channels = y->type.dim[1];
    const int64_t wide[] = {n, channels, size[0] + 2 * c->padding[0], size[1] + 2 * c->padding[1]};
    for (int d = 1; d >= 0; d--) { /* y: [N, C, places..., kernels...] */
        int last = y->type.rank - 1;
        Type t = y->type;
        t.dim[last] = span(c, d);
        if (c->dilation[d] > 1)
            y = emit1(s->b, "slice_backward", IN(y),
                      ATTRS(A_INTS("input_sizes", t.rank, t.dim), A_INT("dim", last),
                            A_INT("start", 0), A_INT("end", INT64_MAX),
                            A_INT("step", c->dilation[d])));
        t.rank--;
        memcpy(t.dim + 2, wide + 2, sizeof *wide * 2);
        if (d == 1) { /* the places of axis 2 and their kernels stay */
            t.dim[2] = c->places[0];
            t.dim[4] = c->kernel[0];
        }
        Item args[] = {{.kind = FX_TENSOR, .t = fx_fresh(s->im, y)},
                       item_ints(s, t.rank, t.dim),
                       item_int(2 + d),
                       item_int(span(c, d)),
                       item_int(c->stride[d])};
        y = fx_read(s->im, lower_call(s, "unfold_backward.default", LEN(args), args).t);
    }
    for (int d = 0; d < 2; d++)
        y = lower_slice(s, y, 2 + d, c->padding[d], c->padding[d] + size[d], 1);
    return y;
}

void row_col2im(Site *s)
{
    static const int64_t order[] = {0, 1, 4, 5, 2, 3};
    Value *x = site_tensor(s, "self");
    bool single = x->type.rank == 2;
    int64_t size[2];
    if (single)
        x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", 0)));
    read_pair(s, "output_size", 1, size);
    ImageColumns c = read_columns(s, size, single);
    int64_t each = c.kernel[0] * c.kernel[1];
    if (x->type.rank != 3 || x->type.dim[1] % each || x->type.dim[2] != c.places[0] * c.places[1])
        site_fail(s,
                  "argument self: expected columns of %lld elements for each channel at %lld "
                  "places, found %s",
                  (long long)each, (long long)(c.places[0] * c.places[1]),
                  type_text(s->im->a, &x->type));
    const int64_t split[] = {x->type.dim[0], x->type.dim[1] / each, c.kernel[0],
                             c.kernel[1],    c.places[0],           c.places[1]};
    x = emit1(s->b, "permute", IN(lower_reshape(s, x, 6, split)), ATTRS(A_INTS("dims", 6, order)));
    Value *y = summed(s, &c, x, size);
    site_return(s, single ? emit1(s->b, "squeeze", IN(y), ATTRS(A_INTS("dim", 1, (int64_t[]){0})))
                          : y);
}
