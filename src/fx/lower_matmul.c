/* Matrix products that are not mm, bmm or a plain addmm. */
#include "lower.h"

#include <string.h>

/* beta c + alpha y; a factor of 1 is left out, and c where beta is 0 */
static Value *scaled_sum(Site *s, Value *c, Value *y)
{
    double beta = site_real(s, "beta"), alpha = site_real(s, "alpha");
    DType d = y->type.dtype;
    if (alpha != 1)
        y = lower2(s, "mul", y, lower_number(s, alpha, d));
    if (beta == 0)
        return y;
    if (beta != 1)
        c = lower2(s, "mul", c, lower_number(s, beta, d));
    return lower2(s, "add", c, y);
}

/* A product of matrices: op "mm" or "bmm". Integers are multiplied and summed, [.., m, k, 1] with
 * [.., 1, k, n]. */
static Value *product(Site *s, const char *op, Value *x, Value *y)
{
    DType d = x->type.dtype;
    if (dtype_float(d) || d == BOOL)
        return lower2(s, op, x, y);
    int64_t rank = x->type.rank, k = rank - 1;
    if (rank != y->type.rank || x->type.dim[rank - 1] != y->type.dim[rank - 2])
        site_fail(s, "expected matrices that can be multiplied, found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &y->type));
    x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", rank)));
    y = emit1(s->b, "unsqueeze", IN(y), ATTRS(A_INT("dim", rank - 2)));
    x = lower_reduce(s, "sum", lower2(s, "mul", x, y), 1, &k, false);
    return lower_cast(s, x, d);
}

void row_mm(Site *s)
{
    site_return(s, product(s, "mm", site_tensor(s, "self"), site_tensor(s, "mat2")));
}

void row_bmm(Site *s)
{
    site_return(s, product(s, "bmm", site_tensor(s, "self"), site_tensor(s, "mat2")));
}

void row_addmm(Site *s)
{
    Value *c = site_tensor(s, "self"), *x = site_tensor(s, "mat1"), *y = site_tensor(s, "mat2");
    bool plain =
        site_real(s, "beta") == 1 && site_real(s, "alpha") == 1 && dtype_float(x->type.dtype);
    site_return(s, plain ? emit1(s->b, "addmm", IN(c, x, y), NOATTRS)
                         : scaled_sum(s, c, product(s, "mm", x, y)));
}

void row_baddbmm(Site *s)
{
    Value *y = product(s, "bmm", site_tensor(s, "batch1"), site_tensor(s, "batch2"));
    site_return(s, scaled_sum(s, site_tensor(s, "self"), y));
}

/* Sums of the products of a batch: as one product of wide matrices. */
void row_addbmm(Site *s)
{
    Value *x = site_tensor(s, "batch1"), *y = site_tensor(s, "batch2");
    if (x->type.rank != 3 || y->type.rank != 3)
        site_fail(s, "expected two batches of matrices, found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &y->type));
    const int64_t *p = x->type.dim, *q = y->type.dim;
    int64_t wide[] = {p[1], p[0] * p[2]}, high[] = {q[0] * q[1], q[2]};
    x = emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", 0), A_INT("dim1", 1)));
    x = lower_reshape(s, x, 2, wide);
    y = product(s, "mm", x, lower_reshape(s, y, 2, high));
    site_return(s, scaled_sum(s, site_tensor(s, "self"), y));
}

static Value *column(Site *s, Value *x)
{
    int64_t size[] = {x->type.dim[0], 1};
    return lower_reshape(s, x, 2, size);
}

static Value *row(Site *s, Value *x)
{
    int64_t size[] = {1, x->type.dim[0]};
    return lower_reshape(s, x, 2, size);
}

/* A product with vectors as matrices; their axes of size 1 go. */
static Value *vector_product(Site *s, Value *x, Value *y)
{
    int64_t size[2];
    int rank = 0;
    if (x->type.rank > 1)
        size[rank++] = x->type.dim[0];
    if (y->type.rank > 1)
        size[rank++] = y->type.dim[1];
    Value *z =
        product(s, "mm", x->type.rank > 1 ? x : row(s, x), y->type.rank > 1 ? y : column(s, y));
    return lower_reshape(s, z, rank, size);
}

static void need_vector(Site *s, const char *name, int rank)
{
    const Type *t = site_type(s, name);
    if (t->rank != rank)
        site_fail(s, "argument %s: expected rank %d, found %s", name, rank, type_text(s->im->a, t));
}

void row_mv(Site *s)
{
    need_vector(s, "self", 2);
    need_vector(s, "vec", 1);
    site_return(s, vector_product(s, site_tensor(s, "self"), site_tensor(s, "vec")));
}

void row_addmv(Site *s)
{
    need_vector(s, "mat", 2);
    need_vector(s, "vec", 1);
    Value *y = vector_product(s, site_tensor(s, "mat"), site_tensor(s, "vec"));
    site_return(s, scaled_sum(s, site_tensor(s, "self"), y));
}

void row_addr(Site *s)
{
    need_vector(s, "vec1", 1);
    need_vector(s, "vec2", 1);
    Value *y = lower2(s, "mul", column(s, site_tensor(s, "vec1")), site_tensor(s, "vec2"));
    site_return(s, scaled_sum(s, site_tensor(s, "self"), y));
}

void row_dot(Site *s)
{
    need_vector(s, s->arg_name[0], 1);
    need_vector(s, s->arg_name[1], 1);
    Value *x = site_tensor(s, s->arg_name[0]);
    site_return(s, vector_product(s, x, site_tensor(s, s->arg_name[1])));
}

/* x[..., m, k] y[k, n] as one product */
static Value *flat_product(Site *s, Value *x, Value *y)
{
    Type t = x->type;
    int64_t size[] = {-1, t.dim[t.rank - 1]};
    size[0] = 1;
    for (int d = 0; d < t.rank - 1; d++)
        size[0] *= t.dim[d];
    Value *z = product(s, "mm", lower_reshape(s, x, 2, size), y);
    t.dim[t.rank - 1] = y->type.dim[1];
    return lower_reshape(s, z, t.rank, t.dim);
}

/* The operand of a batched product, its leading axes broadcast to `lead` and made one. */
static Value *batch(Site *s, Value *x, const Type *lead, int64_t count)
{
    Type t = *lead;
    int rank = x->type.rank;
    memcpy(t.dim + t.rank, x->type.dim + rank - 2, 2 * sizeof *t.dim);
    t.rank += 2;
    int64_t size[] = {count, t.dim[t.rank - 2], t.dim[t.rank - 1]};
    return lower_reshape(s, lower_expand(s, x, &t), 3, size);
}

static Value *batched_product(Site *s, Value *x, Value *y)
{
    Type lead = {.dtype = x->type.dtype, .rank = MAX(x->type.rank, y->type.rank) - 2};
    int64_t count = 1;
    for (int d = 1; d <= lead.rank; d++) {
        int i = x->type.rank - 2 - d, k = y->type.rank - 2 - d;
        int64_t m = i >= 0 ? x->type.dim[i] : 1, n = k >= 0 ? y->type.dim[k] : 1;
        lead.dim[lead.rank - d] = m == 1 ? n : m;
        count *= m == 1 ? n : m;
    }
    Value *z = product(s, "bmm", batch(s, x, &lead, count), batch(s, y, &lead, count));
    Type t = lead;
    t.dim[t.rank++] = z->type.dim[1];
    t.dim[t.rank++] = z->type.dim[2];
    return lower_reshape(s, z, t.rank, t.dim);
}

/* A vector times a batch of matrices, or one times a vector: as a matrix of one row or column. */
static Value *batch_of_vectors(Site *s, Value *x, Value *y)
{
    bool row = x->type.rank == 1;
    Value **v = row ? &x : &y;
    int64_t n = (*v)->type.dim[0], size[] = {row ? 1 : n, row ? n : 1};
    *v = lower_reshape(s, *v, 2, size);
    Value *z = row ? batched_product(s, x, y) : flat_product(s, x, y);
    Type t = z->type;
    t.rank--;
    if (row)
        t.dim[t.rank - 1] = t.dim[t.rank];
    return lower_reshape(s, z, t.rank, t.dim);
}

static Value *matmul(Site *s, Value *x, Value *y)
{
    int m = x->type.rank, n = y->type.rank;
    if (m <= 2 && n <= 2)
        return m == 2 && n == 2 ? product(s, "mm", x, y) : vector_product(s, x, y);
    if (n == 2)
        return flat_product(s, x, y);
    return m == 1 || n == 1 ? batch_of_vectors(s, x, y) : batched_product(s, x, y);
}

void row_matmul(Site *s)
{
    Value *x = site_tensor(s, "self"), *y = site_tensor(s, "other");
    if (x->type.rank < 1 || y->type.rank < 1)
        site_fail(s, "expected tensors with axes");
    site_return(s, matmul(s, x, y));
}

/* A weight of one axis is one feature, which is no axis of the result. */
void row_linear(Site *s)
{
    Value *x = site_tensor(s, "input"), *w = site_tensor(s, "weight"), *y;
    Value *b = site_find_tensor(s, "bias");
    if (x->type.rank < 1)
        site_fail(s, "argument input: expected a tensor with axes");
    if (w->type.rank == 1) {
        y = matmul(s, x, w);
    } else {
        need_vector(s, "weight", 2);
        y = flat_product(s, x, lower1(s, "t", w));
    }
    site_return(s, b ? lower2(s, "add", y, b) : y);
}

/* z[.., ..] = the products of the last axes of x and y */
void row_inner(Site *s)
{
    Value *x = site_tensor(s, "self"), *y = site_tensor(s, "other");
    Type t = x->type, u = y->type;
    if (!t.rank || !u.rank || t.rank + u.rank - 2 > TN_RANK ||
        t.dim[t.rank - 1] != u.dim[u.rank - 1])
        site_fail(s, "expected tensors with equal last axes, found %s and %s",
                  type_text(s->im->a, &t), type_text(s->im->a, &u));
    int64_t k = t.dim[t.rank - 1], rows = 1, columns = 1;
    for (int d = 0; d < t.rank - 1; d++)
        rows *= t.dim[d];
    for (int d = 0; d < u.rank - 1; d++)
        columns *= u.dim[d];
    x = lower_reshape(s, x, 2, (int64_t[]){rows, k});
    y = lower1(s, "t", lower_reshape(s, y, 2, (int64_t[]){columns, k}));
    memcpy(t.dim + t.rank - 1, u.dim, sizeof *t.dim * (size_t)(u.rank - 1));
    site_return(s, lower_reshape(s, product(s, "mm", x, y), t.rank + u.rank - 2, t.dim));
}

/* ---- products of groups of rows ---- */

/* [group, ...]: x for each group with 0 outside of it; the groups cut the axis `axis` and end at
 * offs. */
static Value *in_groups(Site *s, Value *x, int axis)
{
    Value *end = lower_cast(s, site_tensor(s, "offs"), I64);
    if (end->type.rank != 1 || x->type.rank != 2)
        site_fail(s, "expected a matrix and offs [groups], found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &end->type));
    int64_t n = x->type.dim[axis], groups = end->type.dim[0], row[] = {1, 1, 1};
    const int64_t column[] = {groups, 1, 1}, one = 1;
    row[1 + axis] = n;
    Value *start = emit1(s->b, "cat",
                         IN(lower_full(s, 0, &(Type){.dtype = I64, .rank = 1, .dim = {one}}),
                            lower_slice(s, end, 0, 0, groups - 1, 1)),
                         ATTRS(A_INT("dim", 0)));
    Value *at = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    at = lower_reshape(s, at, 3, row);
    Value *inside =
        lower2(s, "logical_and", lower2(s, "ge", at, lower_reshape(s, start, 3, column)),
               lower2(s, "lt", at, lower_reshape(s, end, 3, column)));
    return lower_where(s, inside, x, lower_like(s, 0, x));
}

static Value *swapped(Site *s, Value *x)
{
    int rank = x->type.rank;
    return emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", rank - 2), A_INT("dim1", rank - 1)));
}

/* Rows of x by the matrix of their group: x[m, k], w[groups, k, n]. One product of x's groups
 * beside each other. */
static Value *rows_by_group(Site *s, Value *x, Value *w)
{
    const int64_t order[] = {1, 0, 2};
    int64_t m = x->type.dim[0], all = w->type.dim[0] * w->type.dim[1];
    Value *wide = emit1(s->b, "permute", IN(in_groups(s, x, 0)), ATTRS(A_INTS("dims", 3, order)));
    wide = lower_reshape(s, wide, 2, (int64_t[]){m, type_nelem(&wide->type) / MAX(m, 1)});
    return lower2(s, "mm", wide, lower_reshape(s, w, 2, (int64_t[]){all, w->type.dim[2]}));
}

/* x[m, k] w[k, n] of the groups of k, [groups, m, n] */
static Value *sums_by_group(Site *s, Value *x, Value *w)
{
    Value *each = in_groups(s, x, 1);
    int64_t groups = each->type.dim[0], m = x->type.dim[0], k = x->type.dim[1];
    Value *y = lower2(s, "mm", lower_reshape(s, each, 2, (int64_t[]){groups * m, k}), w);
    return lower_reshape(s, y, 3, (int64_t[]){groups, m, y->type.dim[1]});
}

void row_grouped_mm(Site *s)
{
    Value *x = site_tensor(s, "self"), *w = site_tensor(s, "mat2"), *y;
    int m = x->type.rank, n = w->type.rank;
    if (site_has(s, "bias") || site_has(s, "offs") != (m == 2 || n == 2) || m < 2 || n < 2)
        site_fail(s, "expected matrices or batches of them, offs where there is a matrix, no bias");
    if (m == 2 && n == 2)
        y = sums_by_group(s, x, w);
    else if (m == 2)
        y = rows_by_group(s, x, w);
    else if (n == 2)
        y = swapped(s, rows_by_group(s, swapped(s, w), swapped(s, x)));
    else
        y = lower2(s, "bmm", x, w);
    site_return(s, lower_cast(s, y, site_dtype(s, "out_dtype", y->type.dtype)));
}

static void need_groups(Site *s, const Value *x, const Value *w)
{
    if (x->type.rank != 2 || w->type.rank != 3 || x->type.dim[1] != w->type.dim[1])
        site_fail(s, "expected rows [m, k] and matrices [groups, k, n], found %s and %s",
                  type_text(s->im->a, &x->type), type_text(s->im->a, &w->type));
}

/* Rows by the matrix of their group: transformers calls it where PyTorch compiles. */
void row_grouped_rows(Site *s)
{
    Value *x = site_tensor(s, "self"), *w = site_tensor(s, "mat2");
    need_groups(s, x, w);
    site_return(s, rows_by_group(s, x, w));
}

void row_grouped_rows_backward(Site *s)
{
    Value *x = site_tensor(s, "self"), *w = site_tensor(s, "mat2");
    Value *dy = site_tensor(s, "grad_output");
    need_groups(s, x, w);
    Value *dx = rows_by_group(s, dy, swapped(s, w));
    site_return_list(s, 2, (Value *[]){dx, sums_by_group(s, swapped(s, x), dy)});
}
