/* Arrangements of axes and parts: grids, blocks, shuffles of pixels and channels, products over any
 * axes; made of views, cat, pad and products. */
#include "lower.h"

#include <string.h>

/* ---- axes that are added ---- */

/* atleast_1d, 2d, 3d: a vector is a row of a matrix, a matrix the first of a stack after it. */
static Value *at_least(Site *s, Value *x, int rank)
{
    int64_t size[3] = {1, 1, 1};
    int have = x->type.rank;
    if (have >= rank)
        return x;
    memcpy(have == 1 && rank > 1 ? size + 1 : size, x->type.dim, sizeof *size * (size_t)have);
    return lower_reshape(s, x, rank, size);
}

void row_atleast(Site *s)
{
    int rank = s->row->name[strlen("atleast_")] - '0';
    if (s->arg[0].kind != FX_LIST) {
        site_return(s, at_least(s, site_tensor(s, "self"), rank));
        return;
    }
    int n;
    Value **x = site_tensors(s, "tensors", &n);
    for (int i = 0; i < n; i++)
        x[i] = at_least(s, x[i], rank);
    site_return_views(s, site_arg(s, "tensors"), x);
}

/* Each vector along an axis of its own; "xy" has the first two axes the other way round. */
void row_meshgrid(Site *s)
{
    int n;
    Value **x = site_tensors(s, "tensors", &n);
    bool swap = s->narg > 1 && n > 1 && !strcmp(site_text(s, "indexing"), "xy");
    Type t = {.rank = n};
    if (n < 1 || n > TN_RANK)
        site_fail(s, "argument tensors: expected 1 to %d, found %d", TN_RANK, n);
    for (int i = 0; i < n; i++) {
        int axis = swap && i < 2 ? 1 - i : i;
        if (x[i]->type.rank > 1)
            site_fail(s, "argument tensors: expected vectors, found %s",
                      type_text(s->im->a, &x[i]->type));
        t.dim[axis] = type_nelem(&x[i]->type);
    }
    for (int i = 0; i < n; i++) {
        int64_t size[TN_RANK];
        int axis = swap && i < 2 ? 1 - i : i;
        for (int d = 0; d < n; d++)
            size[d] = d == axis ? t.dim[d] : 1;
        x[i] = lower_expand(s, lower_reshape(s, x[i], n, size), &t);
    }
    site_return_views(s, site_arg(s, "tensors"), x);
}

/* ---- shuffles ---- */

static Value *permuted(Site *s, Value *x, int rank, const int64_t *dims)
{
    return emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims)));
}

/* [..., C r r, H, W] to [..., C, H r, W r], or back. */
static void pixels(Site *s, int64_t r, bool back)
{
    Value *x = site_tensor(s, "self");
    Type t = x->type;
    int64_t *last = t.dim + t.rank - 3, lead = 1; /* C, H, W */
    bool fits = t.rank >= 3 && r >= 1 && r <= INT32_MAX &&
                (back ? last[1] % r == 0 && last[2] % r == 0 : last[0] % (r * r) == 0);
    if (!fits)
        site_fail(s, "expected axes C, H, W that the factor %lld divides, found %s", (long long)r,
                  type_text(s->im->a, &t));
    for (int d = 0; d < t.rank - 3; d++)
        lead *= t.dim[d];
    if (back) {
        int64_t size[] = {lead, last[0], last[1] / r, r, last[2] / r, r};
        x = lower_reshape(s, x, LEN(size), size);
        x = permuted(s, x, LEN(size), (int64_t[]){0, 1, 3, 5, 2, 4});
    } else {
        int64_t size[] = {lead, last[0] / (r * r), r, r, last[1], last[2]};
        x = lower_reshape(s, x, LEN(size), size);
        x = permuted(s, x, LEN(size), (int64_t[]){0, 1, 4, 2, 5, 3});
    }
    last[0] = back ? site_times(s, last[0], r * r) : last[0] / (r * r);
    for (int d = 1; d < 3; d++)
        last[d] = back ? last[d] / r : site_times(s, last[d], r);
    site_return(s, lower_reshape(s, x, t.rank, t.dim));
}

void row_pixel_shuffle(Site *s)
{
    pixels(s, site_int(s, "upscale_factor"), false);
}

void row_pixel_unshuffle(Site *s)
{
    pixels(s, site_int(s, "downscale_factor"), true);
}

/* Channels [g, C / g] as [C / g, g]. */
void row_channel_shuffle(Site *s)
{
    Value *x = site_tensor(s, "self");
    Type t = x->type;
    int64_t g = site_int(s, "groups"), rest = 1;
    if (t.rank < 2 || g < 1 || t.dim[1] % g)
        site_fail(s, "argument groups: expected a divisor of axis 1 of %s, found %lld",
                  type_text(s->im->a, &t), (long long)g);
    for (int d = 2; d < t.rank; d++)
        rest *= t.dim[d];
    int64_t size[] = {t.dim[0], g, t.dim[1] / g, rest};
    x = permuted(s, lower_reshape(s, x, LEN(size), size), LEN(size), (int64_t[]){0, 2, 1, 3});
    site_return(s, lower_reshape(s, x, t.rank, t.dim));
}

/* ---- products and blocks ---- */

/* x with the axes `dims` last (or first), as a matrix; the sizes of the others go to `rest`. */
static Value *as_matrix(Site *s, Value *x, const char *name, bool last, Type *rest)
{
    int64_t dims[TN_RANK], order[TN_RANK], size[2] = {1, 1};
    int n = site_ints(s, name, dims), rank = x->type.rank, free = 0;
    bool taken[TN_RANK] = {0};
    for (int i = 0; i < n; i++) {
        int64_t d = dims[i] + (dims[i] < 0 ? rank : 0);
        if (d < 0 || d >= rank || taken[d])
            site_fail(s, "argument %s: expected different axes below %d", name, rank);
        taken[d] = true;
        order[last ? rank - n + i : i] = d;
        size[last] *= x->type.dim[d];
    }
    for (int d = 0; d < rank; d++) {
        if (taken[d])
            continue;
        if (rest->rank == TN_RANK)
            site_fail(s, "expected at most %d axes of the result", TN_RANK);
        order[last ? free : n + free] = d;
        free++;
        rest->dim[rest->rank++] = x->type.dim[d];
        size[!last] *= x->type.dim[d];
    }
    return lower_reshape(s, rank ? permuted(s, x, rank, order) : x, 2, size);
}

void row_tensordot(Site *s)
{
    Type t = {0};
    Value *x = as_matrix(s, site_tensor(s, "self"), "dims_self", true, &t);
    Value *y = as_matrix(s, site_tensor(s, "other"), "dims_other", false, &t);
    Item pair[] = {{.kind = FX_TENSOR, .t = fx_fresh(s->im, x)},
                   {.kind = FX_TENSOR, .t = fx_fresh(s->im, y)}};
    Value *z = fx_read(s->im, lower_call(s, "mm.default", 2, pair).t);
    site_return(s, lower_reshape(s, z, t.rank, t.dim));
}

/* Every element of x times all of y: axes of x and y in turn, then joined. */
void row_kron(Site *s)
{
    Value **both = promoted_all(s, 2, s->arg);
    int rank = MAX(both[0]->type.rank, both[1]->type.rank);
    int64_t size[TN_RANK], of[TN_RANK];
    if (2 * rank > TN_RANK)
        site_fail(s, "expected at most %d axes", TN_RANK / 2);
    for (int d = 0; d < rank; d++)
        size[d] = 1;
    for (int i = 0; i < 2; i++) {
        int missing = rank - both[i]->type.rank;
        for (int d = 0; d < rank; d++) {
            int64_t n = d < missing ? 1 : both[i]->type.dim[d - missing];
            of[2 * d + i] = n;
            of[2 * d + 1 - i] = 1;
            size[d] *= n;
        }
        both[i] = lower_reshape(s, both[i], 2 * rank, of);
    }
    site_return(s, lower_reshape(s, lower2(s, "mul", both[0], both[1]), rank, size));
}

/* Matrices along the diagonal of zeros: each is padded to all columns, then they are joined. */
void row_block_diag(Site *s)
{
    const Item *list = site_arg(s, "tensors");
    Value **x = promoted_all(s, list->count, list->item);
    int64_t columns = 0, before = 0;
    for (int i = 0; i < list->count; i++) {
        if (x[i]->type.rank > 2)
            site_fail(s, "argument tensors: expected at most 2 axes, found %s",
                      type_text(s->im->a, &x[i]->type));
        x[i] = at_least(s, x[i], 2);
        columns += x[i]->type.dim[1];
    }
    for (int i = 0; i < list->count; i++) {
        int64_t n = x[i]->type.dim[1], pad[] = {before, columns - before - n};
        x[i] = emit1(s->b, "constant_pad_nd", IN(x[i]), ATTRS(A_INTS("pad", 2, pad)));
        before += n;
    }
    if (!list->count)
        site_fail(s, "argument tensors: expected at least one");
    site_return(s, emit1(s->b, "cat", (size_t)list->count, x, ATTRS(A_INT("dim", 0))));
}

/* The product of the matrices from left to right. */
void row_multi_dot(Site *s)
{
    const Item *list = site_arg(s, s->arg_name[0]);
    if (!list->count)
        site_fail(s, "argument %s: expected at least one", s->arg_name[0]);
    Item x = list->item[0];
    for (int i = 1; i < list->count; i++)
        x = lower_call(s, "matmul.default", 2, (Item[]){x, list->item[i]});
    s->result = x;
}
