/* Padding by the tensor's own elements: reflected without the edge, the edge repeated, or around
 * from the other side. Each axis is its two borders and the tensor in between, joined; its gradient
 * is the middle's, and what the borders got, added where they came from. */
#include "lower.h"

#include <string.h>

/* How a border is made. */
typedef enum { REFLECT, REPLICATE, CIRCULAR } PadMode;

/* The borders of an axis. */
typedef struct PadAxis {
    int axis;
    int64_t before, after, n; /* n: elements between them */
} PadAxis;

static Value *flipped(Site *s, Value *x, int axis)
{
    int64_t dim = axis;
    return emit1(s->b, "flip", IN(x), ATTRS(A_INTS("dims", 1, &dim)));
}

/* The border of n elements at the end of an axis, or at its beginning. */
static Value *border(Site *s, Value *x, int axis, int64_t n, bool end, PadMode mode)
{
    const int64_t size = x->type.dim[axis];
    Type t = x->type;
    t.dim[axis] = n;
    switch (mode) {
    case REFLECT: {
        int64_t at = end ? size - 1 - n : 1;
        return flipped(s, lower_slice(s, x, axis, at, at + n, 1), axis);
    }
    case REPLICATE: {
        int64_t at = end ? size - 1 : 0;
        return lower_expand(s, lower_slice(s, x, axis, at, at + 1, 1), &t);
    }
    default: {
        int64_t at = end ? 0 : size - n;
        return lower_slice(s, x, axis, at, at + n, 1);
    }
    }
}

static Value *pad_axis(Site *s, Value *x, PadAxis p, PadMode mode)
{
    Value *part[3];
    int n = 0;
    if (p.before)
        part[n++] = border(s, x, p.axis, p.before, false, mode);
    part[n++] = x;
    if (p.after)
        part[n++] = border(s, x, p.axis, p.after, true, mode);
    return n == 1 ? x : emit1(s->b, "cat", (size_t)n, part, ATTRS(A_INT("dim", p.axis)));
}

/* x on elements from `at` on of an axis of n, zeros elsewhere. */
static Value *among_zeros(Site *s, Value *x, int axis, int64_t at, int64_t n)
{
    int64_t pad[2 * TN_RANK] = {0};
    int last = 2 * (x->type.rank - 1 - axis);
    pad[last] = at;
    pad[last + 1] = n - at - x->type.dim[axis];
    return emit1(s->b, "constant_pad_nd", IN(x), ATTRS(A_INTS("pad", last + 2, pad)));
}

/* What a border's gradient is among the elements between. */
static Value *from_border(Site *s, Value *dy, PadAxis p, bool end, PadMode mode)
{
    int64_t n = end ? p.after : p.before, at = end ? p.before + p.n : 0, axis = p.axis;
    Value *d = lower_slice(s, dy, p.axis, at, at + n, 1);
    if (mode == REPLICATE)
        return among_zeros(s, lower_reduce(s, "sum", d, 1, &axis, true), p.axis, end ? p.n - 1 : 0,
                           p.n);
    return among_zeros(s, flipped(s, d, p.axis), p.axis, end ? p.n - 1 - n : 1, p.n);
}

static Value *pad_axis_backward(Site *s, Value *dy, PadAxis p, PadMode mode)
{
    Value *dx = lower_slice(s, dy, p.axis, p.before, p.before + p.n, 1);
    if (p.before)
        dx = lower2(s, "add", dx, from_border(s, dy, p, false, mode));
    if (p.after)
        dx = lower2(s, "add", dx, from_border(s, dy, p, true, mode));
    return dx;
}

/* The borders that a list names, of the last axis first; returns of how many axes. */
static int borders(Site *s, const char *list, const Type *t, PadMode mode, PadAxis *p)
{
    int64_t pad[TN_RANK];
    int n = site_ints(s, list, pad) / 2;
    if (n > t->rank)
        site_fail(s, "argument %s: expected at most %d axes, found %d", list, t->rank, n);
    for (int k = 0; k < n; k++) {
        int axis = t->rank - 1 - k;
        int64_t size = t->dim[axis], most = mode == REFLECT    ? size - 1
                                            : mode == CIRCULAR ? size
                                            : size             ? INT64_MAX
                                                               : 0;
        p[k] = (PadAxis){axis, pad[2 * k], pad[2 * k + 1], size};
        for (int i = 0; i < 2; i++)
            if (pad[2 * k + i] < 0 || pad[2 * k + i] > most)
                site_fail(s, "argument %s: expected 0 to %lld for axis %d of %lld elements, found "
                             "%lld",
                          list, (long long)most, axis, (long long)size,
                          (long long)pad[2 * k + i]);
    }
    return n;
}

static void pad_all(Site *s, const char *list, PadMode mode)
{
    PadAxis p[TN_RANK];
    Value *x = site_tensor(s, "self");
    int n = borders(s, list, &x->type, mode, p);
    for (int k = 0; k < n; k++)
        x = pad_axis(s, x, p[k], mode);
    site_return(s, x);
}

static void pad_all_backward(Site *s, PadMode mode)
{
    PadAxis p[TN_RANK];
    Value *dy = site_tensor(s, "grad_output");
    for (int k = borders(s, "padding", site_type(s, "self"), mode, p) - 1; k >= 0; k--)
        dy = pad_axis_backward(s, dy, p[k], mode);
    site_return(s, dy);
}

void row_pad(Site *s)
{
    static const char *const modes[] = {
        [REFLECT] = "reflect", [REPLICATE] = "replicate", [CIRCULAR] = "circular"};
    const char *mode = site_text(s, "mode");
    Item zero = {.kind = FX_FLOAT}, value = site_has(s, "value") ? *site_arg(s, "value") : zero;
    for (int i = 0; i < LEN(modes); i++)
        if (!strcmp(mode, modes[i])) {
            pad_all(s, "pad", (PadMode)i);
            return;
        }
    if (strcmp(mode, "constant") != 0)
        site_fail(s, "argument mode: expected constant, reflect, replicate or circular, found "
                     "\"%s\"",
                  mode);
    s->result = lower_call(s, "constant_pad_nd.default", 3, (Item[]){s->arg[0], s->arg[1], value});
}

void row_reflection_pad(Site *s)
{
    pad_all(s, "padding", REFLECT);
}

void row_reflection_pad_backward(Site *s)
{
    pad_all_backward(s, REFLECT);
}

void row_replication_pad(Site *s)
{
    pad_all(s, "padding", REPLICATE);
}

void row_replication_pad_backward(Site *s)
{
    pad_all_backward(s, REPLICATE);
}
