/* Views become chains of our view ops, each with one operand, so that a write through a view can be
 * carried back to its base (functionalize.c). */
#include "lower.h"

#include <string.h>

/* `size` with its one -1 replaced by the size that follows. */
static int known_size(Site *s, const char *name, const Value *x, int64_t *size)
{
    int rank = site_ints(s, name, size), guess = -1;
    int64_t known = 1;
    for (int d = 0; d < rank; d++)
        if (size[d] == -1 && guess >= 0)
            site_fail(s, "argument %s: expected at most one -1, found another on axis %d", name, d);
        else if (size[d] == -1)
            guess = d;
        else if (__builtin_mul_overflow(known, size[d], &known))
            site_fail(s, "argument %s: too large", name);
    if (guess >= 0 && known > 0)
        size[guess] = type_nelem(&x->type) / known;
    return rank;
}

typedef enum { VIEWS, COPIES, UNKNOWN } Reshaping;

/* Whether PyTorch makes y, which is t in another shape, as a view; whole: only of rows. */
static Reshaping reshaping(const FxTensor *t, const Value *y, bool whole)
{
    Layout at, next = {0};
    bool known = fx_layout(t, &at);
    if (!type_nelem(&t->type) || (!whole && type_equal(&t->type, &y->type)))
        return VIEWS;
    if (whole)
        return !known ? UNKNOWN : fx_row_major(t) ? VIEWS : COPIES;
    for (int d = 0; d < t->type.rank && !known; d++)
        at.stride[d] = d + 1; /* strides of which no two axes become one */
    bool views = y->def->op->rules->view(y->def, 0, &at, &next);
    return views ? VIEWS : known ? COPIES : UNKNOWN;
}

/* Returns self in another shape, a copy where its strides allow no view. */
static void return_reshaped(Site *s, int rank, const int64_t *size, bool whole)
{
    const Item *self = &s->arg[0];
    Value *y = lower_reshape(s, site_tensor(s, "self"), rank, size);
    Reshaping how = self->kind == FX_TENSOR && s->viewed ? reshaping(self->t, y, whole) : VIEWS;
    if (how == COPIES) {
        s->viewed = false;
        site_tensor(s, "self"); /* it is read now */
    }
    site_return(s, y);
    if (how == UNKNOWN)
        fx_doubt(s->im, s->result.t);
}

void row_view(Site *s)
{
    int64_t size[TN_RANK];
    Value *x = site_tensor(s, "self");
    int rank = known_size(s, "size", x, size);
    site_return(s, emit1(s->b, "view", IN(x), ATTRS(A_INTS("size", rank, size))));
}

/* The bits as another dtype; of complex tensors see complex.c. */
void row_view_dtype(Site *s)
{
    const Type *t = site_type(s, "self");
    if (site_dtype(s, "dtype", t->dtype) != t->dtype)
        site_fail(s, "argument dtype: bits cannot be read as another dtype, expected torch's %s",
                  dtype_name(t->dtype));
    site_return(s, lower_reshape(s, site_tensor(s, "self"), t->rank, t->dim));
}

void row_reshape(Site *s)
{
    int64_t size[TN_RANK];
    int rank = known_size(s, "shape", site_tensor(s, "self"), size);
    return_reshaped(s, rank, size, false);
}

void row_reshape_as(Site *s)
{
    const Type *t = site_type(s, "other");
    return_reshaped(s, t->rank, t->dim, false);
}

void row_ravel(Site *s)
{
    int64_t n = type_nelem(site_type(s, "self"));
    return_reshaped(s, 1, &n, true);
}

void row_view_as(Site *s)
{
    const Type *t = site_type(s, "other");
    site_return(s, lower_reshape(s, site_tensor(s, "self"), t->rank, t->dim));
}

void row_flatten(Site *s)
{
    Value *x = site_tensor(s, "self");
    int first = site_axis(s, "start_dim", x->type.rank), rank = 0;
    int last = site_axis(s, "end_dim", x->type.rank);
    int64_t size[TN_RANK + 1];
    if (first > last)
        site_fail(s, "argument end_dim: expected an axis after start_dim");
    for (int d = 0; d < x->type.rank; d++)
        if (d > first && d <= last)
            size[rank - 1] *= x->type.dim[d];
        else
            size[rank++] = x->type.dim[d];
    if (!x->type.rank)
        size[rank++] = 1;
    return_reshaped(s, rank, size, false);
}

void row_permute(Site *s)
{
    int64_t dims[TN_RANK];
    int n = site_ints(s, "dims", dims);
    Value *x = site_tensor(s, "self");
    site_return(s, emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", n, dims))));
}

/* t of a vector is the vector. */
void row_t(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, x->type.rank < 2 ? x : lower1(s, "t", x));
}

void row_transpose(Site *s)
{
    Value *x = site_tensor(s, "self");
    int d = site_axis(s, "dim0", x->type.rank), e = site_axis(s, "dim1", x->type.rank);
    site_return(s, x->type.rank < 2 ? x
                                    : emit1(s->b, "transpose", IN(x),
                                            ATTRS(A_INT("dim0", d), A_INT("dim1", e))));
}

void row_expand(Site *s)
{
    int64_t size[TN_RANK];
    int n = site_ints(s, "size", size);
    Value *x = site_tensor(s, "self");
    site_return(s, emit1(s->b, "expand", IN(x), ATTRS(A_INTS("size", n, size))));
}

void row_expand_as(Site *s)
{
    site_return(s, lower_expand(s, site_tensor(s, "self"), site_type(s, "other")));
}

void row_slice(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t start = site_has(s, "start") ? site_int(s, "start") : 0;
    int64_t end = site_has(s, "end") ? site_int(s, "end") : INT64_MAX;
    site_return(s, lower_slice(s, x, axis, start, end, site_int(s, "step")));
}

/* Element `index` of an axis as a range of one. */
static int64_t element(Site *s, const Type *t, int axis)
{
    int64_t i = site_int(s, "index"), n = t->rank ? t->dim[axis] : 0;
    if (i < -n || i >= n)
        site_fail(s, "argument index: expected -%lld to %lld, found %lld", (long long)n,
                  (long long)n - 1, (long long)i);
    return i < 0 ? i + n : i;
}

static Value *squeezed(Site *s, Value *x, int axis)
{
    int64_t dim = axis;
    return emit1(s->b, "squeeze", IN(x), ATTRS(A_INTS("dim", 1, &dim)));
}

void row_select(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t i = element(s, &x->type, axis);
    site_return(s, squeezed(s, lower_slice(s, x, axis, i, i + 1, 1), axis));
}

void row_narrow(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t start = site_int(s, "start"), n = x->type.rank ? x->type.dim[axis] : 0;
    start += start < 0 ? n : 0;
    if (start < 0 || site_int(s, "length") < 0 || start > n - site_int(s, "length"))
        site_fail(s, "expected a part of axis %d, which has %lld", axis, (long long)n);
    site_return(s, lower_slice(s, x, axis, start, start + site_int(s, "length"), 1));
}

/* ---- several parts ---- */

static Node *split(Site *s, Value *x, int axis, int64_t count, const int64_t *sizes)
{
    return emit(s->b, "split", IN(x),
                ATTRS(A_INTS("split_sizes", count, sizes), A_INT("dim", axis)));
}

/* Parts of `each`, the last with what is left. */
static Node *split_even(Site *s, Value *x, int axis, int64_t each)
{
    int64_t n = x->type.dim[axis], count = MAX(site_parts(n, each), 1);
    if (count > TN_MAX_OUT)
        site_fail(s, "expected at most %d parts, found %lld", TN_MAX_OUT, (long long)count);
    int64_t sizes[TN_MAX_OUT];
    for (int64_t i = 0; i < count; i++)
        sizes[i] = MIN(each, n - i * each);
    return split(s, x, axis, count, sizes);
}

void row_split(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t each = site_int(s, "split_size");
    if (each < 1 || !x->type.rank)
        site_fail(s, "argument split_size: expected 1 or more, of a tensor with axes");
    site_return_all(s, split_even(s, x, axis, each));
}

void row_split_with_sizes(Site *s)
{
    Value *x = site_tensor(s, "self");
    const Item *sizes = site_arg(s, "split_sizes");
    int64_t size[TN_MAX_OUT];
    if (sizes->kind != FX_LIST || sizes->count > TN_MAX_OUT)
        site_fail(s, "argument split_sizes: expected at most %d sizes", TN_MAX_OUT);
    for (int i = 0; i < sizes->count; i++)
        size[i] = sizes->item[i].i;
    site_return_all(s, split(s, x, site_axis(s, "dim", x->type.rank), sizes->count, size));
}

void row_chunk(Site *s)
{
    Value *x = site_tensor(s, "self");
    int axis = site_axis(s, "dim", x->type.rank);
    int64_t chunks = site_int(s, "chunks");
    if (chunks < 1 || !x->type.rank)
        site_fail(s, "argument chunks: expected 1 or more, of a tensor with axes");
    site_return_all(s, split_even(s, x, axis, MAX(site_parts(x->type.dim[axis], chunks), 1)));
}

/* As many parts as a number says, the first of them longer, or parts that end where a list says;
 * hsplit, vsplit and dsplit name the axis by their letter. */
void row_tensor_split(Site *s)
{
    Value *x = site_tensor(s, "self");
    const char letter = *s->row->name;
    const Item *how = &s->arg[1];
    int axis = letter == 't'   ? site_axis(s, "dim", x->type.rank)
               : letter == 'd' ? 2
                               : letter == 'h';
    axis -= letter == 'h' && x->type.rank == 1;
    int64_t count = how->kind == FX_INT ? how->i : how->count + 1, sizes[TN_MAX_OUT], at = 0;
    if (axis >= x->type.rank || count < 1 || count > TN_MAX_OUT)
        site_fail(s, "argument %s: expected 1 to %d parts of axis %d", s->arg_name[1], TN_MAX_OUT,
                  axis);
    int64_t n = x->type.dim[axis];
    for (int64_t i = 0; i < count; i++) {
        int64_t end = i == count - 1 ? n : how->kind == FX_INT ? 0 : how->item[i].i;
        end = MIN(MAX(end < 0 ? end + n : end, at), n);
        sizes[i] = how->kind == FX_INT ? n / count + (i < n % count) : end - at;
        at += sizes[i];
    }
    site_return_all(s, split(s, x, axis, count, sizes));
}

void row_unbind(Site *s)
{
    Value *x = site_tensor(s, "self"), *part[TN_MAX_OUT];
    int axis = site_axis(s, "dim", x->type.rank);
    if (!x->type.rank || x->type.dim[axis] < 1)
        site_fail(s, "argument self: expected a tensor with elements on the axis");
    Node *n = split_even(s, x, axis, 1);
    for (int k = 0; k < n->nout; k++)
        part[k] = squeezed(s, n->out[k], axis);
    site_return_list(s, n->nout, part);
}

/* ---- axes of size 1, and the rest ---- */

void row_squeeze(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t dims[TN_RANK];
    int n = 0;
    if (s->narg > 1)
        n = site_ints(s, "dim", dims);
    else
        for (; n < x->type.rank; n++)
            dims[n] = n;
    if (!x->type.rank)
        n = 0;
    site_return(s, emit1(s->b, "squeeze", IN(x), ATTRS(A_INTS("dim", n, dims))));
}

void row_unsqueeze(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", site_int(s, "dim")))));
}

void row_itself(Site *s)
{
    site_return(s, site_tensor(s, "self"));
}

void row_detach(Site *s)
{
    site_return(s, lower1(s, "detach", site_tensor(s, "self")));
}

/* alias_copy always passes the gradient: beside it there is detach_copy. */
void row_alias(Site *s)
{
    Value *x = site_tensor(s, "self");
    s->im->gradients.nalias += !s->copied;
    site_return(s, s->copied ? x : lower_alias(s, x, s->im->gradients.alias));
}

void row_diagonal(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(
        s, emit1(s->b, "diagonal", IN(x),
                 ATTRS(A_INT("offset", site_int(s, "offset")), A_INT("dim1", site_int(s, "dim1")),
                       A_INT("dim2", site_int(s, "dim2")))));
}

void row_unfold(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(
        s, emit1(s->b, "unfold", IN(x),
                 ATTRS(A_INT("dimension", site_int(s, "dimension")),
                       A_INT("size", site_int(s, "size")), A_INT("step", site_int(s, "step")))));
}

/* A view of self's storage, whose strides must be known. */
void row_as_strided(Site *s)
{
    const Item *self = site_arg(s, "self");
    int64_t size[TN_RANK], stride[TN_RANK], offset;
    int rank = site_ints(s, "size", size), nstride = site_ints(s, "stride", stride);
    if (self->kind != FX_TENSOR)
        site_fail(s, "argument self: expected a tensor");
    FxTensor *base = self->t;
    while (base->base)
        base = base->base;
    Value *x = fx_memory(s->im, base);
    if (!x)
        site_fail(s, "the strides of what self is a view of are not known, or leave gaps; "
                     "print_readable(include_stride=True) tells them");
    offset =
        site_has(s, "storage_offset") ? site_int(s, "storage_offset") : fx_offset(s->im, self->t);
    s->arg[0].t = base; /* that is what the result is a view of */
    if (!s->viewed)
        fx_read(s->im, base);
    site_return(s, emit1(s->b, "as_strided", IN(x),
                         ATTRS(A_INTS("size", rank, size), A_INTS("stride", nstride, stride),
                               A_INT("storage_offset", offset))));
}

/* Other strides for the memory of self itself: only those that it has. Adaptive pooling of an image
 * whose channels lie innermost says them again of its mean, which lies row by row but for axes of
 * size 1, though a graph without strides does not tell. */
void row_as_strided_self(Site *s)
{
    const Type t = *site_type(s, "self");
    const Item *self = site_arg(s, "self");
    int64_t size[TN_RANK], stride[TN_RANK], next = 1;
    int rank = site_ints(s, "size", size), nstride = site_ints(s, "stride", stride);
    bool same = rank == t.rank && nstride == t.rank && !site_has(s, "storage_offset");
    for (int d = t.rank - 1; d >= 0 && same; d--) {
        same = size[d] == t.dim[d] && (size[d] == 1 || stride[d] == next);
        next *= size[d];
    }
    Value *x = site_tensor(s, "self");
    if (!same || (!node_is(x->def, OP_mean) && fx_memory(s->im, self->t) != x))
        site_fail(s, "expected the size and the strides that self has, row by row");
    site_return(s, x);
}

/* ---- diagonals and parts written back ---- */

/* The positions of a diagonal's elements in a tensor of type t. */
static Value *diagonal_positions(Site *s, const Type *t)
{
    const AttrArg *a =
        ATTRS(A_INT("offset", site_int(s, "offset")), A_INT("dim1", site_int(s, "dim1")),
              A_INT("dim2", site_int(s, "dim2")));
    return emit1(s->b, "diagonal", IN(fx_positions(s->im, t)), a);
}

static Value *zeros(Site *s, const Value *like)
{
    Type t = {.dtype = like->type.dtype};
    t.rank = site_ints(s, "input_sizes", t.dim);
    return lower_full(s, 0, &t);
}

void row_diagonal_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *x = zeros(s, dy);
    site_return(s, fx_scatter(s->im, "scatter", x, diagonal_positions(s, &x->type), dy));
}

void row_diagonal_scatter(Site *s)
{
    Value *x = site_tensor(s, "self"), *y = site_tensor(s, "src");
    y = lower_cast(s, y, x->type.dtype);
    site_return(s, fx_scatter(s->im, "scatter", x, diagonal_positions(s, &x->type), y));
}

/* Zeros, with the last axis of x on a diagonal of axes dim1 and dim2, which are new. */
void row_diag_embed(Site *s)
{
    Value *x = site_tensor(s, "self");
    Type t = {.dtype = x->type.dtype, .rank = x->type.rank + 1};
    int64_t offset = site_int(s, "offset");
    if (x->type.rank < 1 || t.rank > TN_RANK)
        site_fail(s, "argument self: expected 1 to %d axes", TN_RANK - 1);
    int d = site_axis(s, "dim1", t.rank), e = site_axis(s, "dim2", t.rank);
    if (d == e)
        site_fail(s, "argument dim2: expected another axis than dim1");
    for (int k = 0, from = 0; k < t.rank; k++)
        t.dim[k] = k == d || k == e
                       ? x->type.dim[x->type.rank - 1] + (offset < 0 ? -offset : offset)
                       : x->type.dim[from++];
    Value *y = lower_full(s, 0, &t);
    site_return(s, fx_scatter(s->im, "scatter", y, diagonal_positions(s, &t), x));
}

/* Elements that windows share get the sum. */
void row_unfold_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_in"), *x = zeros(s, dy);
    const AttrArg *a =
        ATTRS(A_INT("dimension", site_int(s, "dim")), A_INT("size", site_int(s, "size")),
              A_INT("step", site_int(s, "step")));
    Value *at = emit1(s->b, "unfold", IN(fx_positions(s->im, &x->type)), a);
    site_return(s, fx_scatter(s->im, "scatter_add", x, at, dy));
}

/* self, and src where a view of these sizes and strides shows it; self lies row by row. */
void row_as_strided_scatter(Site *s)
{
    const Item *self = site_arg(s, "self");
    Value *x = site_tensor(s, "self"), *src = site_tensor(s, "src");
    int64_t size[TN_RANK], stride[TN_RANK];
    int rank = site_ints(s, "size", size), nstride = site_ints(s, "stride", stride);
    int64_t offset = site_has(s, "storage_offset") ? site_int(s, "storage_offset") : 0;
    Value *memory = self->kind == FX_TENSOR && !self->t->base ? fx_memory(s->im, self->t) : x;
    if (rank != nstride || (memory && !type_equal(&memory->type, &x->type)))
        site_fail(s, "argument stride: expected one for each size, and self row by row");
    Value *at = emit1(s->b, "as_strided", IN(fx_positions(s->im, &x->type)),
                      ATTRS(A_INTS("size", rank, size), A_INTS("stride", nstride, stride),
                            A_INT("storage_offset", offset)));
    site_return(s, fx_scatter(s->im, "scatter", x, at, src));
}

void row_trace(Site *s)
{
    Value *x = emit1(s->b, "diagonal", IN(site_tensor(s, "self")), NOATTRS);
    x = lower_cast(s, x, sum_type(x->type.dtype));
    site_return(s, lower_reduce(s, "sum", x, 0, NULL, false));
}

static Value *placed(Site *s, Value *x, int axis, int64_t start, int64_t end, int64_t step)
{
    int64_t sizes[TN_RANK];
    int rank = site_ints(s, "input_sizes", sizes);
    return emit1(s->b, "slice_backward", IN(x),
                 ATTRS(A_INTS("input_sizes", rank, sizes), A_INT("dim", axis),
                       A_INT("start", start), A_INT("end", end), A_INT("step", step)));
}

void row_slice_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    site_return(s, placed(s, dy, site_axis(s, "dim", dy->type.rank), site_int(s, "start"),
                          site_int(s, "end"), site_int(s, "step")));
}

void row_select_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output");
    Type t = {0};
    t.rank = site_ints(s, "input_sizes", t.dim);
    int axis = site_axis(s, "dim", t.rank);
    int64_t i = element(s, &t, axis);
    dy = emit1(s->b, "unsqueeze", IN(dy), ATTRS(A_INT("dim", axis)));
    site_return(s, placed(s, dy, axis, i, i + 1, 1));
}

/* self with src as a slice; of an empty tensor that slice is written then. */
static void return_scattered(Site *s, Value *src, int axis, int64_t start, int64_t end,
                             int64_t step)
{
    const Item *self = site_arg(s, "self");
    FxTensor *y = self->kind == FX_TENSOR ? fx_copy_empty(s->im, self->t) : NULL;
    if (y) {
        FxTensor *part = fx_view(s->im, y, lower_slice(s, y->v, axis, start, end, step));
        if (!type_equal(&part->type, &src->type))
            site_fail(s, "argument src: expected %s, found %s", type_text(s->im->a, &part->type),
                      type_text(s->im->a, &src->type));
        fx_write(s->im, part, src);
        s->result = (Item){.kind = FX_TENSOR, .t = y};
        fx_peek(s->im, y);
        return;
    }
    const AttrArg *at =
        ATTRS(A_INT("dim", axis), A_INT("start", start), A_INT("end", end), A_INT("step", step));
    site_return(s, emit1(s->b, "slice_scatter", IN(site_tensor(s, "self"), src), at));
}

void row_slice_scatter(Site *s)
{
    int axis = site_axis(s, "dim", site_type(s, "self")->rank);
    int64_t start = site_has(s, "start") ? site_int(s, "start") : 0;
    int64_t end = site_has(s, "end") ? site_int(s, "end") : INT64_MAX;
    return_scattered(s, site_tensor(s, "src"), axis, start, end, site_int(s, "step"));
}

void row_select_scatter(Site *s)
{
    const Type *t = site_type(s, "self");
    int axis = site_axis(s, "dim", t->rank);
    int64_t i = element(s, t, axis);
    Value *src = emit1(s->b, "unsqueeze", IN(site_tensor(s, "src")), ATTRS(A_INT("dim", axis)));
    return_scattered(s, src, axis, i, i + 1, 1);
}
