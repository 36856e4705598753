/* Joining, repeating and rolling. */
#include "lower.h"

#include <string.h>

/* cat and stack promote. */
static const Item *tensor_list(Site *s)
{
    const Item *list = site_arg(s, "tensors");
    if (!list->count)
        site_fail(s, "argument tensors: expected at least one");
    return list;
}

/* Empty tensors of one axis count for nothing, as in PyTorch. */
void row_cat(Site *s)
{
    const Item *list = tensor_list(s);
    Item *arg = NEWN(s->im->a, Item, list->count);
    int n = 0;
    for (int i = 0; i < list->count; i++) {
        const Type *t = &list->item[i].t->type;
        if (t->rank != 1 || t->dim[0])
            arg[n++] = list->item[i];
    }
    if (!n)
        arg[n++] = list->item[0];
    Value **in = promoted_all(s, n, arg);
    site_return(
        s, emit1(s->b, "cat", n, in, ATTRS(A_INT("dim", site_axis(s, "dim", in[0]->type.rank)))));
}

void row_stack(Site *s)
{
    const Item *list = tensor_list(s);
    int n = list->count;
    Value **in = promoted_all(s, n, list->item);
    int axis = site_axis(s, "dim", in[0]->type.rank + 1);
    for (int i = 0; i < n; i++)
        in[i] = emit1(s->b, "unsqueeze", IN(in[i]), ATTRS(A_INT("dim", axis)));
    site_return(s, emit1(s->b, "cat", n, in, ATTRS(A_INT("dim", axis))));
}

/* An axis repeated r times is a pair [r, n] of axes, expanded along the first and made one again.
 */
void row_repeat(Site *s)
{
    int64_t times[TN_RANK], from[2 * TN_RANK], to[2 * TN_RANK], size[TN_RANK];
    Value *x = site_tensor(s, "self");
    int rank = site_ints(s, "repeats", times), extra = rank - x->type.rank, n = 0;
    if (extra < 0)
        site_fail(s, "argument repeats: expected at least %d, found %d", x->type.rank, rank);
    for (int d = 0; d < rank; d++) {
        int64_t dim = d < extra ? 1 : x->type.dim[d - extra];
        if (times[d] < 0)
            site_fail(s, "argument repeats: expected 0 or more, found %lld", (long long)times[d]);
        if (times[d] != 1 && dim != 1) {
            from[n] = 1;
            to[n++] = times[d];
            from[n] = to[n] = dim;
        } else {
            from[n] = dim;
            to[n] = dim == 1 ? times[d] : dim;
        }
        size[d] = site_times(s, dim, times[d]);
        n++;
    }
    if (n > TN_RANK)
        site_fail(s, "argument repeats: more than %d axes are needed on the way", TN_RANK);
    Type t = type_make(x->type.dtype, n, to);
    x = lower1(s, "clone", lower_expand(s, lower_reshape(s, x, n, from), &t));
    site_return(s, lower_reshape(s, x, rank, size));
}

static Value *flat(Site *s, Value *x)
{
    int64_t n = type_nelem(&x->type);
    return lower_reshape(s, x, 1, &n);
}

void row_repeat_interleave(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t times = site_int(s, "repeats");
    if (!site_has(s, "dim"))
        x = flat(s, x);
    int axis = site_has(s, "dim") ? site_axis(s, "dim", x->type.rank) : 0;
    if (times < 0 || !x->type.rank || x->type.rank == TN_RANK)
        site_fail(s, "expected repeats of 0 or more and 1 to %d axes", TN_RANK - 1);
    Type size = x->type, wide = x->type;
    size.dim[axis] = site_times(s, size.dim[axis], times);
    memmove(wide.dim + axis + 2, wide.dim + axis + 1,
            sizeof *wide.dim * (size_t)(wide.rank - axis - 1));
    wide.dim[axis + 1] = times;
    wide.rank++;
    x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", axis + 1)));
    x = lower1(s, "clone", lower_expand(s, x, &wide));
    site_return(s, lower_reshape(s, x, size.rank, size.dim));
}

/* How many elements there are in all, where all are repeated alike, as PyTorch 1 traces it; else
 * -1. */
static int64_t repeated_alike(const Value *repeats)
{
    const Node *n = repeats->def;
    while (n && n->nin && (n->op->view || node_is(n, OP_clone)))
        n = n->in[0]->def;
    if (!n || !node_is(n, OP_full))
        return -1;
    double all = n->attr[attr_index(n->op, "fill_value")].f * (double)type_nelem(&repeats->type);
    return all >= 0 && all < 0x1p62 ? (int64_t)all : -1;
}

/* Each element as often as `repeats` says; how many there are in all must be known. */
void row_repeat_interleave_tensor(Site *s)
{
    bool of_self = !strcmp(s->arg_name[0], "self");
    Value *repeats = site_tensor(s, "repeats");
    int64_t size =
        site_has(s, "output_size") ? site_int(s, "output_size") : repeated_alike(repeats);
    if (size < 0)
        site_fail(s,
                  "argument output_size: without it the shape of the result depends on data; give "
                  "the sum of repeats");
    Value *from = emit1(s->b, "repeat_interleave", IN(repeats), ATTRS(A_INT("output_size", size)));
    if (of_self) {
        Value *x = site_tensor(s, "self");
        if (!site_has(s, "dim"))
            x = flat(s, x);
        int64_t axis = site_has(s, "dim") ? site_axis(s, "dim", x->type.rank) : 0;
        from = emit1(s->b, "index", IN(x, from), ATTRS(A_INTS("dims", 1, &axis)));
    }
    site_return(s, from);
}

void row_roll(Site *s)
{
    int64_t shifts[TN_RANK], dims[TN_RANK];
    Value *x = site_tensor(s, "self");
    Type t = x->type;
    int n = site_ints(s, "shifts", shifts), m = site_ints(s, "dims", dims);
    if (m == 0) {
        x = flat(s, x);
        dims[m++] = 0;
    }
    if (n != m)
        site_fail(s, "argument dims: expected %d, found %d", n, m);
    for (int i = 0; i < n; i++) {
        int rank = x->type.rank, axis = (int)(dims[i] < 0 ? dims[i] + rank : dims[i]);
        if (axis < 0 || axis >= rank)
            site_fail(s, "argument dims: expected an axis, found %lld", (long long)dims[i]);
        int64_t size = x->type.dim[axis], shift = size ? (shifts[i] % size + size) % size : 0;
        if (!shift)
            continue;
        Value *tail = lower_slice(s, x, axis, size - shift, size, 1);
        Value *lead = lower_slice(s, x, axis, 0, size - shift, 1);
        x = emit1(s->b, "cat", IN(tail, lead), ATTRS(A_INT("dim", axis)));
    }
    site_return(s, lower_reshape(s, x, t.rank, t.dim));
}

void row_flip(Site *s)
{
    int64_t dims[TN_RANK];
    int n = site_ints(s, "dims", dims);
    site_return(s, emit1(s->b, "flip", IN(site_tensor(s, "self")), ATTRS(A_INTS("dims", n, dims))));
}

/* ---- quarter turns ---- */

void row_rot90(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t dims[TN_RANK], turns = (site_int(s, "k") % 4 + 4) % 4;
    if (site_ints(s, "dims", dims) != 2)
        site_fail(s, "argument dims: expected two axes");
    if (turns)
        x = emit1(s->b, "flip", IN(x),
                  ATTRS(A_INTS("dims", turns == 2 ? 2 : 1, dims + (turns == 1))));
    if (turns % 2)
        x = emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", dims[0]), A_INT("dim1", dims[1])));
    site_return(s, x);
}

/* a x b along an axis of 3: a[1, 2, 0] b[2, 0, 1] - a[2, 0, 1] b[1, 2, 0] */
static Value *turned(Site *s, Value *x, int axis, int64_t by)
{
    Value *first = lower_slice(s, x, axis, 0, by, 1);
    return emit1(s->b, "cat", IN(lower_slice(s, x, axis, by, 3, 1), first),
                 ATTRS(A_INT("dim", axis)));
}

void row_cross(Site *s)
{
    Value **both = promoted_all(s, 2, s->arg), *x = both[0], *y = both[1];
    int axis = site_axis(s, "dim", x->type.rank);
    if (!shape_equal(&x->type, &y->type) || !x->type.rank || x->type.dim[axis] != 3)
        site_fail(s,
                  "expected two tensors of one shape with 3 elements on axis %d, found %s and %s",
                  axis, type_text(s->im->a, &x->type), type_text(s->im->a, &y->type));
    Value *left = lower2(s, "mul", turned(s, x, axis, 1), turned(s, y, axis, 2));
    Value *right = lower2(s, "mul", turned(s, x, axis, 2), turned(s, y, axis, 1));
    site_return(s, lower2(s, "sub", left, right));
}

/* fliplr, flipud: the second axis or the first */
void row_flip_axis(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t axis = !strcmp(site_stem(s), "fliplr");
    if (axis >= x->type.rank)
        site_fail(s, "argument self: expected at least rank %d, found %s", (int)axis + 1,
                  type_text(s->im->a, &x->type));
    site_return(s, emit1(s->b, "flip", IN(x), ATTRS(A_INTS("dims", 1, &axis))));
}

/* x with `prepend` before and `append` after it, less itself one place on, n times */
void row_diff(Site *s)
{
    Value *x = site_tensor(s, "self"), *before = site_find_tensor(s, "prepend");
    Value *behind = site_find_tensor(s, "append");
    int64_t n = site_int(s, "n");
    int axis = site_axis(s, "dim", x->type.rank);
    if (n < 0 || n > 1000 || !x->type.rank)
        site_fail(s, "expected axes and n of 0 to 1000, found %s and %lld",
                  type_text(s->im->a, &x->type), (long long)n);
    if (before)
        x = emit1(s->b, "cat", IN(before, x), ATTRS(A_INT("dim", axis)));
    if (behind)
        x = emit1(s->b, "cat", IN(x, behind), ATTRS(A_INT("dim", axis)));
    for (; n && x->type.dim[axis]; n--) {
        int64_t last = x->type.dim[axis] - 1;
        Value *next = lower_slice(s, x, axis, 1, last + 1, 1);
        const char *op = x->type.dtype == BOOL ? "ne" : "sub";
        x = lower2(s, op, next, lower_slice(s, x, axis, 0, last, 1));
    }
    site_return(s, x);
}
