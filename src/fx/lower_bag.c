/* embedding_bag: sums, means or maxima of the rows of a table that stand in one bag, where bag b
 * has the indices from offset b to the next one. Which bag an index is in is a running count of the
 * offsets, so that bags of any sizes have one shape. Indices that are padding count in none. A
 * maximum is gathered from where it was found first, and its gradient goes there; NaN counts as the
 * greatest, where PyTorch takes it alone where a bag begins with it. Indices behind a last offset
 * that is included are in no bag where PyTorch's kernel for sums leaves them out, and in the last
 * bag where its other kernels put them. */
#include "arith.h"

#include <math.h>
#include <string.h>

enum { BAG_SUM, BAG_MEAN, BAG_MAX };

/* x as [n, 1], beside rows */
static Value *column(Site *s, Value *x)
{
    const int64_t size[] = {x->type.dim[0], 1};
    return lower_reshape(s, x, 2, size);
}

/* [n] or [n, D] added up by index into [count] or [count, D] */
static Value *added(Site *s, Value *x, Value *at, int64_t count)
{
    const int64_t axis = 0;
    Type t = x->type;
    t.dim[0] = count;
    return emit1(s->b, "index_put", IN(lower_full(s, 0, &t), x, at),
                 ATTRS(A_INTS("dims", 1, &axis), A_BOOL("accumulate", true)));
}

static Value *taken(Site *s, Value *x, Value *at)
{
    const int64_t axis = 0;
    return emit1(s->b, "index", IN(x, at), ATTRS(A_INTS("dims", 1, &axis)));
}

static Value *line(Site *s, const char *name)
{
    Value *x = site_tensor(s, name);
    if (x->type.rank != 1 || (x->type.dtype != I64 && x->type.dtype != I32))
        site_fail(s, "argument %s: expected integers with one axis, found %s", name,
                  type_text(s->im->a, &x->type));
    return lower_cast(s, x, I64);
}

static int mode_of(Site *s)
{
    int64_t mode = site_int(s, "mode");
    if (mode < BAG_SUM || mode > BAG_MAX)
        site_fail(s, "argument mode: expected 0 (sum), 1 (mean) or 2 (max), found %lld",
                  (long long)mode);
    return (int)mode;
}

/* A negative number is one from the end of the table's rows where the overload is of that name, and
 * none elsewhere. */
static Value *is_padding(Site *s, Value *indices, int64_t rows)
{
    if (!site_has(s, "padding_idx"))
        return NULL;
    int64_t at = site_int(s, "padding_idx");
    at += at < 0 && strstr(s->row->name, ".padding_idx") ? rows : 0;
    return at < 0 ? NULL : compare(s, "eq", indices, (double)at);
}

/* Zeros where indices are padding. */
static Value *but_padding(Site *s, Value *x, Value *padding)
{
    if (!padding)
        return x;
    return unless(s, x->type.rank == 2 ? column(s, padding) : padding, 0, x);
}

static void sparse_no(Site *s)
{
    if (site_bool(s, "sparse"))
        site_fail(s, "argument sparse: expected False");
}

/* Positions in the list of indices, at which each bag has its maximum first: [bags, D]. */
static Value *first_greatest(Site *s, Value *rows, Value *bag, Value *padding, int64_t bags)
{
    int64_t n = rows->type.dim[0];
    const Type most_type = {.dtype = rows->type.dtype, .rank = 2, .dim = {bags, rows->type.dim[1]}};
    Type at_type = most_type, all = rows->type;
    at_type.dtype = all.dtype = I64;
    Value *wide = lower_expand(s, column(s, bag), &all);
    rows = unless(s, lower2(s, "ne", rows, rows), INFINITY, rows);
    if (padding)
        rows = unless(s, column(s, padding), -INFINITY, rows);
    Value *most = emit1(s->b, "scatter_amax", IN(lower_full(s, -INFINITY, &most_type), wide, rows),
                        ATTRS(A_INT("dim", 0)));
    Value *least = lower2(s, "lt", rows, taken(s, most, bag));
    if (padding)
        least = lower2(s, "logical_or", least, column(s, padding));
    Value *at = unless(s, least, (double)n, lower_expand(s, column(s, lower_count(s, n)), &all));
    at = emit1(s->b, "scatter_amin", IN(lower_full(s, (double)n, &at_type), wide, at),
               ATTRS(A_INT("dim", 0)));
    return lower2(s, "minimum", at, lower_number(s, (double)MAX(n - 1, 0), I64));
}

/* The bag that each index is in: as many offsets as stand at it or before it, less one. */
static Value *bags_of(Site *s, Value *offsets, int64_t n)
{
    Type ones = offsets->type;
    Value *begun = added(s, lower_full(s, 1, &ones), offsets, n + 1);
    Value *count = emit1(s->b, "cumsum", IN(begun), ATTRS(A_INT("dim", 0)));
    return plus(s, lower_slice(s, count, 0, 0, n, 1), -1);
}

/* Marks what counts in no bag: padding, and what is behind an offset more than bags, if one is
 * given. *bag stays within the bags. */
static Value *left_out(Site *s, Value **bag, Value *padding, int64_t bags, bool last, DType d)
{
    Value *in = *bag;
    *bag = last ? lower2(s, "minimum", in, lower_number(s, (double)bags - 1, I64)) : in;
    bool other = padding || mode_of(s) != BAG_SUM || d == F64;
    return last && !other ? compare(s, "ge", in, (double)bags) : padding;
}

void row_embedding_bag(Site *s)
{
    Value *w = site_tensor(s, "weight"), *indices = line(s, "indices");
    Value *offsets = line(s, "offsets"), *factor = site_find_tensor(s, "per_sample_weights");
    int mode = mode_of(s);
    bool last = site_bool(s, "include_last_offset");
    int64_t n = indices->type.dim[0], bags = offsets->type.dim[0] - last;
    sparse_no(s);
    if (bags < 1 || w->type.rank != 2 || (factor && mode != BAG_SUM))
        site_fail(s, "expected a table, one bag or more, and weights of samples for sums alone");
    Value *all = bags_of(s, offsets, n), *bag = all;
    Value *padding = is_padding(s, indices, w->type.dim[0]);
    padding = left_out(s, &bag, padding, bags, last, w->type.dtype);
    Value *one = lower_full(s, 1, &indices->type);
    Value *size = added(s, but_padding(s, one, padding), bag, bags), *most = NULL, *y;
    Value *rows = emit1(s->b, "embedding", IN(w, indices),
                        ATTRS(A_BOOL("scale_grad_by_freq", site_bool(s, "scale_grad_by_freq"))));
    if (mode == BAG_MAX && n) {
        Value *at = first_greatest(s, lower_alias(s, rows, "stop"), bag, padding, bags);
        const int64_t flat = type_nelem(&at->type);
        Value *some = column(s, compare(s, "gt", size, 0));
        y = emit1(s->b, "gather", IN(rows, at), ATTRS(A_INT("dim", 0)));
        y = where_or(s, some, y, 0);
        most = taken(s, indices, lower_reshape(s, at, 1, &flat));
        most = lower_reshape(s, most, 2, at->type.dim);
    } else {
        if (factor)
            rows = mul(s, rows, column(s, factor));
        y = added(s, but_padding(s, rows, padding), bag, bags);
        if (mode == BAG_MEAN)
            y = lower2(s, "div", y,
                       column(s, lower_cast(s, lower2(s, "maximum", size, lower_number(s, 1, I64)),
                                            y->type.dtype)));
    }
    if (mode == BAG_MAX && !most) {
        Type none = y->type;
        none.dtype = I64;
        most = lower_full(s, 0, &none);
    }
    if (last) { /* ATen keeps the last offset a place */
        const int64_t more[] = {0, 1};
        size = emit1(s->b, "constant_pad_nd", IN(size), ATTRS(A_INTS("pad", 2, more)));
    }
    Value *out[] = {y, all, size, most ? most : size};
    for (int i = 1; i < 4; i++)
        out[i] = lower_cast(s, out[i], site_type(s, "indices")->dtype);
    site_return_list(s, 4, out);
    for (int i = 1; i < 4; i++)
        s->result.item[i].t->optional = true;
}

/* ---- gradients ---- */

/* The table's, of which `bag` says where each index is; last: a last offset was included. */
static void table_gradient(Site *s, Value *bag, bool last)
{
    Value *dy = site_tensor(s, "grad"), *indices = line(s, "indices");
    Value *size = line(s, "bag_size"), *factor = site_find_tensor(s, "per_sample_weights");
    int64_t n = indices->type.dim[0], rows = site_int(s, "num_weights"), bags = dy->type.dim[0];
    int mode = mode_of(s);
    if (site_bool(s, "scale_grad_by_freq"))
        site_fail(s, "argument scale_grad_by_freq: expected False in a backward");
    if (mode == BAG_MAX) {
        const Type t = {.dtype = dy->type.dtype, .rank = 2, .dim = {rows, dy->type.dim[1]}};
        size = lower_slice(s, size, 0, 0, bags, 1);
        dy = where_or(s, column(s, compare(s, "gt", size, 0)), dy, 0);
        Value *at = lower_cast(s, site_tensor(s, "maximum_indices"), I64);
        at = lower2(s, "maximum", at, lower_number(s, 0, I64));
        site_return(s, emit1(s->b, "scatter_add", IN(lower_full(s, 0, &t), at, dy),
                             ATTRS(A_INT("dim", 0))));
        return;
    }
    Value *padding = is_padding(s, indices, rows);
    bag = lower_slice(s, bag, 0, 0, n, 1);
    padding = left_out(s, &bag, padding, bags, last, dy->type.dtype);
    if (mode == BAG_MEAN) {
        size = added(s, but_padding(s, lower_full(s, 1, &indices->type), padding), bag, bags);
        size = lower2(s, "maximum", size, lower_number(s, 1, I64));
        dy = lower2(s, "div", dy, column(s, lower_cast(s, size, dy->type.dtype)));
    }
    Value *each = taken(s, dy, bag);
    if (factor)
        each = mul(s, each, column(s, factor));
    site_return(s, added(s, but_padding(s, each, padding), indices, rows));
}

void row_embedding_bag_backward(Site *s)
{
    sparse_no(s);
    bool last = site_type(s, "offsets")->dim[0] > site_type(s, "grad")->dim[0];
    table_gradient(s, bags_of(s, line(s, "offsets"), site_type(s, "indices")->dim[0]), last);
}

void row_embedding_bag_dense_backward(Site *s)
{
    bool last = site_type(s, "bag_size")->dim[0] > site_type(s, "grad")->dim[0];
    table_gradient(s, line(s, "offset2bag"), last);
}

/* The gradient of each sample's weight: its row by the gradient of its bag. */
void row_embedding_bag_weights_backward(Site *s)
{
    static const int64_t axis = 1;
    Value *dy = site_tensor(s, "grad"), *w = site_tensor(s, "weight");
    Value *indices = line(s, "indices");
    if (mode_of(s) != BAG_SUM)
        site_fail(s, "argument mode: expected 0, as samples have weights in sums alone");
    int64_t bags = dy->type.dim[0];
    bool last = site_type(s, "offsets")->dim[0] > bags;
    Value *bag = bags_of(s, line(s, "offsets"), indices->type.dim[0]);
    Value *padding = is_padding(s, indices, 0);
    padding = left_out(s, &bag, padding, bags, last, dy->type.dtype);
    Value *y = mul(s, taken(s, dy, bag), taken(s, w, indices));
    site_return(s, but_padding(s, lower_reduce(s, "sum", y, 1, &axis, false), padding));
}
