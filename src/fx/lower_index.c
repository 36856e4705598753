/* Reads and writes by index tensors. A list of indices has None for an axis that is taken whole;
 * our ops name the axes that are indexed. The shape of what a mask selects depends on data: one row
 * or number is put there by `where`, and a sum over what is selected is one of `where`; anything
 * else is refused. */
#include "lower.h"

#include <math.h>
#include <string.h>

/* Index tensors of i32 beside others of i64 are cast, as `index` takes one dtype. */
static void common_index(Site *s, Value **in, int n)
{
    bool wide = false;
    for (int i = 0; i < n; i++)
        wide |= in[i]->type.dtype == I64;
    for (int i = 0; i < n && wide; i++)
        if (in[i]->type.dtype == I32)
            in[i] = lower_cast(s, in[i], I64);
}

/* x and the index tensors of "indices" after it from `in` on; the axes in dims. */
static int indices(Site *s, Value **in, int64_t *dims)
{
    int count, n = 0;
    Value **index = site_tensors(s, "indices", &count);
    if (count > TN_RANK)
        site_fail(s, "argument indices: expected at most %d", TN_RANK);
    for (int d = 0; d < count; d++) {
        if (!index[d])
            continue;
        if (index[d]->type.dtype == BOOL || index[d]->type.dtype == U8)
            site_fail(s, "argument indices: a mask selects as many elements as data says; write "
                         "torch.where(mask, x, 0), which a sum reads as well");
        dims[n] = d;
        in[n++] = index[d];
    }
    if (!n)
        site_fail(s, "argument indices: expected at least one tensor");
    common_index(s, in, n);
    return n;
}

static Value *put(Site *s, Value *x, Value *values, int n, Value *const *index, const int64_t *dims,
                  bool accumulate)
{
    Value *in[TN_RANK + 2] = {x, lower_cast(s, values, x->type.dtype)};
    memcpy(in + 2, index, sizeof *in * (size_t)n);
    return emit1(s->b, "index_put", n + 2, in,
                 ATTRS(A_INTS("dims", n, dims), A_BOOL("accumulate", accumulate)));
}

/* Whether one mask is the only index: it is `list->item[*axis]`, after axes that are taken whole.
 */
static bool only_mask(const Item *list, int *axis)
{
    int count = 0;
    for (int d = 0; d < list->count; d++)
        if (list->item[d].kind == FX_TENSOR) {
            *axis = d;
            count++;
        }
    const Item *x = count == 1 ? &list->item[*axis] : NULL;
    return x && (x->t->type.dtype == BOOL || x->t->type.dtype == U8);
}

/* The mask as a bool of x's rank, of axes from `axis` on; those after it have size 1. */
static Value *mask_of(Site *s, const Value *x, int axis)
{
    Value *c = fx_read(s->im, site_arg(s, "indices")->item[axis].t);
    Type t = {.dtype = c->type.dtype, .rank = c->type.rank};
    for (int d = 0; d < t.rank && axis + d < x->type.rank; d++)
        t.dim[d] = x->type.dim[axis + d];
    if (axis + t.rank > x->type.rank || !shape_equal(&t, &c->type))
        site_fail(s, "argument indices: expected a mask of axes of %s from axis %d on, found %s",
                  type_text(s->im->a, &x->type), axis, type_text(s->im->a, &c->type));
    t.rank = x->type.rank - axis;
    for (int d = c->type.rank; d < t.rank; d++)
        t.dim[d] = 1;
    c = lower_reshape(s, c, t.rank, t.dim);
    return c->type.dtype == BOOL ? c : lower2(s, "ne", c, lower_like(s, 0, c));
}

/* Values for the rows that a mask of `count` axes selects, before `tail` axes: one row or number
 * for all of them, whose axis of size 1 becomes as many as the mask has. */
static Value *masked_values(Site *s, Value *v, int count, int tail)
{
    int64_t size[2 * TN_RANK];
    int at = v->type.rank - tail - 1, rank = 0; /* at: the axis of what is selected */
    if (at < 0)
        return v;
    if (v->type.dim[at] != 1)
        site_fail(s,
                  "argument values: a mask selects as many rows as data says; expected one row "
                  "or number for all of them, found %s",
                  type_text(s->im->a, &v->type));
    for (int d = 0; d < v->type.rank; d++)
        for (int k = 0; k < (d == at ? count : 1); k++)
            size[rank++] = v->type.dim[d];
    if (rank > TN_RANK)
        site_fail(s, "argument values: expected at most %d axes", TN_RANK - count + 1);
    return lower_reshape(s, v, rank, size);
}

/* A mask with one row or number is where. */
static bool put_mask(Site *s, Value *x, Value *values)
{
    const Item *list = site_arg(s, "indices");
    int axis = 0;
    if (!only_mask(list, &axis))
        return false;
    Value *c = mask_of(s, x, axis);
    int count = list->item[axis].t->type.rank;
    values = masked_values(s, values, count, x->type.rank - axis - count);
    values = lower_cast(s, values, x->type.dtype);
    if (site_bool(s, "accumulate"))
        values = lower2(s, "add", x, values);
    Value *y = lower_where(s, c, values, x);
    if (!shape_equal(&y->type, &x->type))
        site_fail(s, "argument values: expected them to fit in %s", type_text(s->im->a, &x->type));
    site_return(s, y);
    return true;
}

/* The elements that a mask selects, for a sum over it: zeros elsewhere, the mask's axes as one. */
static bool select_by_mask(Site *s, Value *x)
{
    const Item *list = site_arg(s, "indices");
    int axis = 0, count;
    if (!only_mask(list, &axis))
        return false;
    count = list->item[axis].t->type.rank;
    Value *y = lower_where(s, mask_of(s, x, axis), x, lower_like(s, 0, x));
    Type t = {.rank = x->type.rank - count + 1};
    if (t.rank > TN_RANK)
        site_fail(s, "argument self: expected at most %d axes", TN_RANK - 1);
    for (int d = 0; d < t.rank; d++)
        t.dim[d] = d < axis ? x->type.dim[d] : d > axis ? x->type.dim[d + count - 1] : 1;
    for (int d = 0; d < count; d++)
        t.dim[axis] *= x->type.dim[axis + d];
    y = lower_reshape(s, y, t.rank, t.dim);
    s->result = (Item){.kind = FX_SELECTED, .t = fx_fresh(s->im, y), .i = axis};
    return true;
}

void row_index(Site *s)
{
    Value *in[TN_RANK + 1] = {site_tensor(s, "self")};
    int64_t dims[TN_RANK];
    if (select_by_mask(s, in[0]))
        return;
    int n = indices(s, in + 1, dims);
    site_return(s, emit1(s->b, "index", n + 1, in, ATTRS(A_INTS("dims", n, dims))));
}

/* Whether the one index is the order of a sort along the only axis, a permutation: then every row
 * of self is overwritten, and what it was is not read. */
static bool overwrites(Site *s)
{
    const Item *list = site_arg(s, "indices");
    const Type *x = site_type(s, "self");
    if (list->count != 1 || list->item[0].kind != FX_TENSOR || site_bool(s, "accumulate"))
        return false;
    const Value *i = fx_peek(s->im, list->item[0].t);
    return i->def && node_is(i->def, OP_sort) && i == i->def->out[1] && i->type.rank == 1 &&
           x->rank >= 1 && i->type.dim[0] == x->dim[0];
}

void row_index_put(Site *s)
{
    Value *values = site_tensor(s, "values"), *index[TN_RANK];
    Value *x = overwrites(s) ? fx_peek(s->im, site_storage(s, "self")) : site_tensor(s, "self");
    int64_t dims[TN_RANK];
    if (put_mask(s, x, values))
        return;
    int n = indices(s, index, dims);
    site_return(s, put(s, x, values, n, index, dims, site_bool(s, "accumulate")));
}

/* Indices where a mask may hide some that lie outside: brought inside. */
static int inside(Site *s, const Value *x, Value **index, int64_t *dims)
{
    int n = indices(s, index, dims);
    for (int k = 0; k < n; k++) {
        DType d = index[k]->type.dtype;
        double size = (double)x->type.dim[dims[k] < x->type.rank ? dims[k] : 0];
        index[k] = lower2(s, "maximum", index[k], lower_number(s, -size, d));
        index[k] = lower2(s, "minimum", index[k], lower_number(s, size - 1, d));
    }
    return n;
}

void row_masked_index(Site *s)
{
    Value *in[TN_RANK + 1] = {site_tensor(s, "self")};
    int64_t dims[TN_RANK];
    int n = inside(s, in[0], in + 1, dims);
    Value *y = emit1(s->b, "index", n + 1, in, ATTRS(A_INTS("dims", n, dims)));
    Value *fill = lower_number(s, site_real(s, "fill"), y->type.dtype);
    site_return(s, emit1(s->b, "where", IN(site_tensor(s, "mask"), y, fill), NOATTRS));
}

void row_masked_index_put(Site *s)
{
    Value *x = site_tensor(s, "self"), *values = site_tensor(s, "values"), *index[TN_RANK];
    int64_t dims[TN_RANK];
    int n = inside(s, x, index, dims);
    Value *zero = lower_number(s, 0, values->type.dtype);
    values = emit1(s->b, "where", IN(site_tensor(s, "mask"), values, zero), NOATTRS);
    site_return(s, put(s, x, values, n, index, dims, true));
}

/* x; without axes it gets one. */
static Value *with_axis(Site *s, Value *x)
{
    int64_t one = 1;
    return x->type.rank ? x : lower_reshape(s, x, 1, &one);
}

static Value *index_list(Site *s)
{
    return with_axis(s, site_tensor(s, "index"));
}

void row_index_select(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t dim = site_axis(s, "dim", x->type.rank);
    Value *y =
        emit1(s->b, "index", IN(with_axis(s, x), index_list(s)), ATTRS(A_INTS("dims", 1, &dim)));
    site_return(s, x->type.rank ? y : lower_reshape(s, y, 0, NULL));
}

static void put_along(Site *s, Value *source, bool accumulate)
{
    Value *x = site_tensor(s, "self"), *i = index_list(s);
    int64_t dim = site_axis(s, "dim", x->type.rank);
    Value *y = put(s, with_axis(s, x), source, 1, &i, &dim, accumulate);
    site_return(s, lower_reshape(s, y, x->type.rank, x->type.dim));
}

void row_index_add(Site *s)
{
    Value *source = site_tensor(s, "source");
    double alpha = site_real(s, "alpha");
    if (alpha != 1)
        source = lower2(s, "mul", source, lower_number(s, alpha, source->type.dtype));
    put_along(s, source, true);
}

void row_index_copy(Site *s)
{
    put_along(s, site_tensor(s, "source"), false);
}

/* The value where the index says: one number for all. */
void row_index_fill(Site *s)
{
    put_along(s, promoted(s, site_arg(s, "value"), site_type(s, "self")->dtype), false);
}

/* ---- take and put: as of one axis ---- */

static Value *flat(Site *s, Value *x)
{
    int64_t n = type_nelem(&x->type);
    return lower_reshape(s, x, 1, &n);
}

void row_take(Site *s)
{
    Value *x = flat(s, site_tensor(s, "self")), *i = site_tensor(s, "index");
    int64_t dim = 0;
    Value *y = emit1(s->b, "index", IN(x, flat(s, i)), ATTRS(A_INTS("dims", 1, &dim)));
    site_return(s, lower_reshape(s, y, i->type.rank, i->type.dim));
}

void row_put(Site *s)
{
    Value *x = site_tensor(s, "self"), *i = flat(s, site_tensor(s, "index"));
    int64_t dim = 0;
    Value *y = put(s, flat(s, x), flat(s, site_tensor(s, "source")), 1, &i, &dim,
                   site_bool(s, "accumulate"));
    site_return(s, lower_reshape(s, y, x->type.rank, x->type.dim));
}

/* ---- gather and scatter; tensors without axes get one ---- */

void row_gather(Site *s)
{
    Value *x = site_tensor(s, "self"), *i = site_tensor(s, "index");
    int64_t dim = site_axis(s, "dim", x->type.rank);
    Value *y =
        emit1(s->b, "gather", IN(with_axis(s, x), with_axis(s, i)), ATTRS(A_INT("dim", dim)));
    site_return(s, lower_reshape(s, y, i->type.rank, i->type.dim));
}

/* gather, of operands that broadcast but for the axis; without one of their elements in order. */
void row_take_along_dim(Site *s)
{
    Value *x = site_tensor(s, "self"), *i = site_tensor(s, "indices");
    if (!site_has(s, "dim")) {
        x = flat(s, x);
        i = flat(s, i);
    }
    int64_t dim = site_has(s, "dim") ? site_axis(s, "dim", x->type.rank) : 0;
    if (x->type.rank != i->type.rank || !x->type.rank)
        site_fail(s, "argument indices: expected the rank of self, found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &i->type));
    Type from = x->type, at = i->type;
    for (int d = 0; d < at.rank; d++)
        if (d != dim)
            from.dim[d] = at.dim[d] = at.dim[d] == 1 ? from.dim[d] : at.dim[d];
    x = lower_expand(s, x, &from);
    site_return(s, emit1(s->b, "gather", IN(x, lower_expand(s, i, &at)), ATTRS(A_INT("dim", dim))));
}

/* The gradient of a running extreme: dy goes to the elements that won. */
void row_cummaxmin_backward(Site *s)
{
    Value *x = site_tensor(s, "input"), *dy = with_axis(s, site_tensor(s, "grad"));
    Value *i = with_axis(s, site_tensor(s, "indices"));
    int64_t dim = site_axis(s, "dim", x->type.rank);
    Value *dx = lower_full(s, 0, &dy->type);
    dx = emit1(s->b, "scatter_add", IN(dx, i, dy), ATTRS(A_INT("dim", dim)));
    site_return(s, lower_reshape(s, dx, x->type.rank, x->type.dim));
}

/* The values to scatter: "src", or one number everywhere. */
static Value *scattered(Site *s)
{
    Type t = *site_type(s, "index");
    t.dtype = site_type(s, "self")->dtype;
    if (!strcmp(s->arg_name[3], "value"))
        return lower_fill(s, site_arg(s, "value"), &t);
    return site_tensor(s, "src");
}

static Value *scatter(Site *s, const char *op, Value *x, Value *src)
{
    Value *i = site_tensor(s, "index");
    int64_t dim = site_axis(s, "dim", x->type.rank);
    Value *y = emit1(s->b, op, IN(with_axis(s, x), with_axis(s, i), with_axis(s, src)),
                     ATTRS(A_INT("dim", dim)));
    return lower_reshape(s, y, x->type.rank, x->type.dim);
}

void row_scatter(Site *s)
{
    const char *op = strncmp(s->row->name, "scatter_add", 11) ? "scatter" : "scatter_add";
    site_return(s, scatter(s, op, site_tensor(s, "self"), scattered(s)));
}

/* Takes `add` alone of the older reductions. */
void row_scatter_add(Site *s)
{
    if (strcmp(site_text(s, "reduce"), "add") != 0)
        site_fail(s, "argument reduce: expected \"add\", found \"%s\"", site_text(s, "reduce"));
    site_return(s, scatter(s, "scatter_add", site_tensor(s, "self"), scattered(s)));
}

/* How often each element of self is written, and `once` more. */
static Value *visits(Site *s, double once)
{
    Type t = *site_type(s, "self"), ones = *site_type(s, "index");
    t.dtype = ones.dtype = I64;
    return scatter(s, "scatter_add", lower_full(s, once, &t), lower_full(s, 1, &ones));
}

/* The least or greatest value of a dtype. */
static Value *bound(Site *s, DType d, bool least)
{
    if (dtype_float(d))
        return lower_number(s, least ? -INFINITY : INFINITY, d);
    if (d == I64)
        return lower_fill(s, &(Item){.kind = FX_INT, .i = least ? INT64_MIN : INT64_MAX},
                          &(Type){.dtype = d});
    double top = d == I32 ? INT32_MAX : d == U8 ? UINT8_MAX : 1;
    return lower_number(s, !least ? top : d == I32 ? INT32_MIN : 0, d);
}

/* Products of what is written to each place: of the places along the axis, beside each source,
 * those that are not its own have 1. */
static Value *scatter_product(Site *s, bool with)
{
    enum { MOST = 1 << 26 };
    Value *x = with_axis(s, site_tensor(s, "self")), *i = with_axis(s, site_tensor(s, "index"));
    Value *src = with_axis(s, site_tensor(s, "src"));
    int axis = site_axis(s, "dim", x->type.rank), rank = x->type.rank;
    int64_t n = x->type.dim[axis], column[TN_RANK];
    Type wide = i->type;
    if (rank == TN_RANK || i->type.rank != rank || src->type.rank != rank)
        site_fail(s, "expected tensors of one rank of at most %d", TN_RANK - 1);
    for (int d = 0; d < rank; d++) {
        if (d != axis && i->type.dim[d] != x->type.dim[d])
            site_fail(s,
                      "argument reduce: a product is for an index of self's sizes on all axes "
                      "but %d, found %s",
                      axis, type_text(s->im->a, &i->type));
        src = lower_slice(s, src, d, 0, i->type.dim[d], 1);
        column[d + (d > axis)] = 1;
    }
    column[axis] = n;
    column[axis + 1] = 1;
    if (site_times(s, type_nelem(&wide), n) > MOST)
        site_fail(s, "argument reduce: a product is for at most %d pairs of a source and a place",
                  MOST);
    Value *place = lower_reshape(s, lower_count(s, n), rank + 1, column);
    i = emit1(s->b, "unsqueeze", IN(i), ATTRS(A_INT("dim", axis)));
    src =
        emit1(s->b, "unsqueeze", IN(lower_cast(s, src, x->type.dtype)), ATTRS(A_INT("dim", axis)));
    Value *own = lower2(s, "eq", i, place);
    src = lower_where(s, own, src, lower_like(s, 1, src));
    Item args[] = {{.kind = FX_TENSOR, .t = fx_fresh(s->im, src)}, item_int(axis + 1)};
    Value *y = fx_read(s->im, lower_call(s, "prod.dim_int", 2, args).t);
    y = lower_cast(s, y, x->type.dtype);
    if (!with) {
        const int64_t dim = axis + 1;
        Value *some = lower_reduce(s, "amax", lower_cast(s, own, I32), 1, &dim, false);
        x = lower_where(s, lower2(s, "ne", some, lower_number(s, 0, I32)), lower_like(s, 1, x), x);
    }
    y = lower2(s, "mul", x, y);
    const Type *t = site_type(s, "self");
    return lower_reshape(s, y, t->rank, t->dim);
}

/* The reduction of what is written to each place, with what is there or without it where something
 * is written. Equal extremes share the gradient; PyTorch gives what was there a share even where it
 * is left out. */
void row_scatter_reduce(Site *s)
{
    static const char *const names[] = {"sum", "mean", "amax", "amin", "prod"};
    enum { SUM, MEAN, AMAX, AMIN, PROD } how = SUM;
    Value *x = site_tensor(s, "self");
    DType d = x->type.dtype;
    bool with = site_bool(s, "include_self");
    while (how < LEN(names) && strcmp(site_text(s, "reduce"), names[how]))
        how++;
    if (how == LEN(names))
        site_fail(s,
                  "argument reduce: expected \"sum\", \"mean\", \"amax\", \"amin\" or \"prod\", "
                  "found \"%s\"",
                  site_text(s, "reduce"));
    if (how == PROD) {
        site_return(s, scatter_product(s, with));
        return;
    }
    bool adds = how <= MEAN;
    if (!with) {
        Value *none = lower2(s, "eq", visits(s, 0), lower_number(s, 0, I64));
        x = lower_where(s, none, x, adds ? lower_like(s, 0, x) : bound(s, d, how == AMAX));
    }
    const char *op = adds ? "scatter_add" : how == AMAX ? "scatter_amax" : "scatter_amin";
    Value *y = scatter(s, op, x, site_tensor(s, "src"));
    if (how == MEAN) {
        Value *count = lower2(s, "maximum", visits(s, with), lower_number(s, 1, I64));
        y = lower2(s, dtype_float(d) ? "div" : "floor_divide", y, lower_cast(s, count, d));
    }
    site_return(s, y);
}

/* scatter_reduce, whose index is one for whole rows of the source. */
void row_index_reduce(Site *s)
{
    const Type *t = site_type(s, "source");
    int axis = site_axis(s, "dim", t->rank);
    Value *i = index_list(s);
    Type one = {.dtype = i->type.dtype, .rank = t->rank}, all = *t;
    for (int d = 0; d < t->rank; d++)
        one.dim[d] = d == axis ? i->type.dim[0] : 1;
    all.dtype = one.dtype;
    i = lower_expand(s, lower_reshape(s, i, one.rank, one.dim), &all);
    s->arg[2] = (Item){.kind = FX_TENSOR, .t = fx_fresh(s->im, i)};
    s->arg_name[3] = "src"; /* as the schema of scatter_reduce has it */
    row_scatter_reduce(s);
}

/* ---- masked_scatter ---- */

/* A selected place takes the source's element whose index is the number of such places before. */
static Value *source_places(Site *s, const Type *t)
{
    Value *m = site_tensor(s, "mask");
    Type all = *t;
    all.dtype = m->type.dtype;
    m = flat(s, lower_expand(s, m, &all));
    Value *count = emit1(s->b, "cumsum", IN(lower_cast(s, m, I64)), ATTRS(A_INT("dim", 0)));
    Value *before = lower2(s, "sub", count, lower_number(s, 1, I64));
    return lower2(s, "maximum", before, lower_number(s, 0, I64));
}

/* The shape that x and a mask have together, in x's dtype. */
static Type masked_type(const Type *x, const Type *mask)
{
    Type t = *x;
    t.rank = MAX(x->rank, mask->rank);
    for (int d = 1; d <= t.rank; d++) {
        int64_t n = d <= x->rank ? x->dim[x->rank - d] : 1;
        t.dim[t.rank - d] = n == 1 && d <= mask->rank ? mask->dim[mask->rank - d] : n;
    }
    return t;
}

/* self, and where the mask says the source's elements in their order; a source of too few is
 * reported when the step runs. */
void row_masked_scatter(Site *s)
{
    Value *x = site_tensor(s, "self"), *source = flat(s, site_tensor(s, "source"));
    Value *m = site_tensor(s, "mask");
    const Type both = masked_type(&x->type, &m->type);
    x = lower_expand(s, x, &both);
    const int64_t axis = 0;
    if (!type_nelem(&source->type) || m->type.dtype != BOOL)
        site_fail(s, "expected a mask of bool and a source with elements, found %s and %s",
                  type_text(s->im->a, &m->type), type_text(s->im->a, &source->type));
    Value *y = emit1(s->b, "index", IN(source, source_places(s, &x->type)),
                     ATTRS(A_INTS("dims", 1, &axis)));
    y = lower_reshape(s, y, x->type.rank, x->type.dim);
    site_return(s, lower_where(s, m, lower_cast(s, y, x->type.dtype), x));
}

/* The gradient of the source. */
void row_masked_scatter_backward(Site *s)
{
    Value *dy = site_tensor(s, "grad_output"), *m = site_tensor(s, "mask");
    Type t = {.dtype = dy->type.dtype}, line = {.dtype = dy->type.dtype, .rank = 1};
    const int64_t axis = 0;
    t.rank = site_ints(s, "sizes", t.dim);
    line.dim[0] = type_nelem(&t);
    Value *given = flat(s, lower_where(s, m, dy, lower_like(s, 0, dy)));
    Value *at = source_places(s, &dy->type);
    at = lower2(s, "minimum", at, lower_number(s, (double)MAX(line.dim[0] - 1, 0), I64));
    Value *dx = lower_full(s, 0, &line);
    dx = put(s, dx, given, 1, &at, &axis, true);
    site_return(s, lower_reshape(s, dx, t.rank, t.dim));
}

/* The indices of the first `size` elements that are not 0, row by row; behind the last the fill
 * value. Each such element's row-major position is put where the number of those before it says. */
void row_nonzero_static(Site *s)
{
    Value *x = site_tensor(s, "self"), *index[TN_RANK];
    const int64_t n = type_nelem(&x->type), size = site_int(s, "size"), axis = 0,
                  column[] = {size, 1};
    const int rank = x->type.rank;
    if (size < 0 || !rank || !n || !size)
        site_fail(s, "expected axes, elements and a size of at least 1, found %s and %lld",
                  type_text(s->im->a, &x->type), (long long)size);
    Value *found = flat(s, lower2(s, "ne", x, lower_like(s, 0, x)));
    Value *count = emit1(s->b, "cumsum", IN(lower_cast(s, found, I64)), ATTRS(A_INT("dim", 0)));
    Value *most = lower_number(s, (double)size, I64);
    Value *to = lower2(s, "sub", count, lower_number(s, 1, I64));
    to = lower_where(s, found, lower2(s, "minimum", to, most), most); /* behind the last */
    Value *at = lower_count(s, n);
    const Type places = {.dtype = I64, .rank = 1, .dim = {size + 1}};
    at = put(s, lower_full(s, -1, &places), at, 1, &to, &axis, false);
    at = lower_slice(s, at, 0, 0, size, 1);
    Value *none = lower2(s, "lt", at, lower_number(s, 0, I64));
    for (int d = rank - 1; d >= 0; d--) {
        Value *length = lower_number(s, (double)x->type.dim[d], I64);
        Value *i = lower2(s, "remainder", at, length);
        at = lower2(s, "floor_divide", at, length);
        i = lower_where(s, none, lower_number(s, (double)site_int(s, "fill_value"), I64), i);
        index[d] = lower_reshape(s, i, 2, column);
    }
    site_return(s, rank == 1 ? index[0] : emit1(s->b, "cat", rank, index, ATTRS(A_INT("dim", 1))));
}

void row_one_hot(Site *s)
{
    Value *x = site_tensor(s, "self");
    Type t = x->type, one = x->type;
    if (site_int(s, "num_classes") < 1 || t.rank == TN_RANK)
        site_fail(
            s, "argument num_classes: without it the shape of the result depends on data; give the "
               "number of classes");
    t.dim[t.rank++] = site_int(s, "num_classes");
    one.dim[one.rank++] = 1;
    Value *zeros = lower_full(s, 0, &t), *ones = lower_expand(s, lower_number(s, 1, t.dtype), &one);
    Value *i = lower_reshape(s, x, one.rank, one.dim);
    site_return(s, emit1(s->b, "scatter", IN(zeros, i, ones), ATTRS(A_INT("dim", t.rank - 1))));
}
