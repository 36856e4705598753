/* Triangular systems, Cholesky's factorization and inverses, by halves: a matrix [A 0; B D] is
 * solved as x1 = A^-1 y1, x2 = D^-1 (y2 - B x1), down to rows of one element, so that nearly all of
 * the work is products (Golub and Van Loan, 4.2.6). Gradients are those of the nodes. An inverse is
 * found by Gauss and Jordan with the greatest pivot of each column. All are for sizes up to a few
 * hundred: a matrix of n rows takes some multiple of n nodes.
 *
 * Distances between rows are norms of differences. */
#include "arith.h"

#include <math.h>
#include <string.h>

enum { MOST_ROWS = 256, MOST_PIVOTS = 64 };

/* ---- blocks of matrices [B, n, m] ---- */

static Value *rows(Site *s, Value *x, int64_t from, int64_t to)
{
    return lower_slice(s, x, 1, from, to, 1);
}

static Value *block(Site *s, Value *x, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    return lower_slice(s, rows(s, x, r0, r1), 2, c0, c1, 1);
}

static Value *turned(Site *s, Value *x)
{
    return emit1(s->b, "transpose", IN(x), ATTRS(A_INT("dim0", 1), A_INT("dim1", 2)));
}

static Value *above(Site *s, Value *x, Value *y)
{
    return emit1(s->b, "cat", IN(x, y), ATTRS(A_INT("dim", 1)));
}

/* [..., n, m] as [B, n, m] */
static Value *as_batch(Site *s, Value *x)
{
    const Type *t = &x->type;
    int64_t size[] = {1, t->dim[t->rank - 2], t->dim[t->rank - 1]};
    for (int d = 0; d < t->rank - 2; d++)
        size[0] *= t->dim[d];
    return lower_reshape(s, x, 3, size);
}

/* A matrix of rank 2 or more, whose rows are few; square where it must be. */
static Value *matrix(Site *s, const char *name, bool square, int64_t most)
{
    Value *x = site_tensor(s, name);
    const Type *t = &x->type;
    bool fits = t->rank >= 2 && dtype_float(t->dtype) && dtype_size(t->dtype) > 2;
    if (!fits || (square && t->dim[t->rank - 1] != t->dim[t->rank - 2]))
        site_fail(s, "argument %s: expected %smatrices of f32 or f64, found %s", name,
                  square ? "square " : "", type_text(s->im->a, t));
    if (square && t->dim[t->rank - 1] > most)
        site_fail(s,
                  "argument %s: expected at most %lld rows, each of which is nodes of its own, "
                  "found %s",
                  name, (long long)most, type_text(s->im->a, t));
    return x;
}

/* ---- triangular systems ---- */

/* x with l x = y for a lower triangle l. */
static Value *solve_lower(Site *s, Value *l, Value *y, bool unit)
{
    int64_t n = l->type.dim[1], half = n / 2;
    if (n <= 1)
        return unit || !n ? y : lower2(s, "div", y, l);
    Value *x1 = solve_lower(s, block(s, l, 0, half, 0, half), rows(s, y, 0, half), unit);
    Value *under = lower2(s, "bmm", block(s, l, half, n, 0, half), x1);
    Value *y2 = sub(s, rows(s, y, half, n), under);
    return above(s, x1, solve_lower(s, block(s, l, half, n, half, n), y2, unit));
}

static Value *reversed(Site *s, Value *x, int count)
{
    static const int64_t dims[] = {1, 2};
    return emit1(s->b, "flip", IN(x), ATTRS(A_INTS("dims", count, dims)));
}

/* An upper triangle is a lower one with rows and columns from the last. */
static Value *solve_triangle(Site *s, Value *a, Value *y, bool upper, bool unit)
{
    if (!upper)
        return solve_lower(s, a, y, unit);
    return reversed(s, solve_lower(s, reversed(s, a, 2), reversed(s, y, 1), unit), 1);
}

/* The shape of both batches together, broadcast. */
static Type batch_of(Site *s, const Type *a, const Type *b)
{
    Type t = {.dtype = a->dtype, .rank = MAX(a->rank, b->rank)};
    for (int d = 1; d <= t.rank - 2; d++) {
        int64_t m = d + 2 <= a->rank ? a->dim[a->rank - 2 - d] : 1;
        int64_t n = d + 2 <= b->rank ? b->dim[b->rank - 2 - d] : 1;
        if (m != n && m != 1 && n != 1)
            site_fail(s, "expected batches that broadcast, found %s and %s", type_text(s->im->a, a),
                      type_text(s->im->a, b));
        t.dim[t.rank - 2 - d] = m == 1 ? n : m;
    }
    return t;
}

static Value *in_batch(Site *s, Value *x, Type t)
{
    t.dim[t.rank - 2] = x->type.dim[x->type.rank - 2];
    t.dim[t.rank - 1] = x->type.dim[x->type.rank - 1];
    return as_batch(s, lower_expand(s, x, &t));
}

/* left: a x = y, else x a = y */
static void return_solved(Site *s, Value *a, Value *y, bool upper, bool left, bool unit)
{
    Type t = batch_of(s, &a->type, &y->type);
    int64_t n = a->type.dim[a->type.rank - 1], across = y->type.rank - (left ? 2 : 1);
    if (a->type.dtype != y->type.dtype || y->type.dim[across] != n)
        site_fail(s, "expected systems of %lld equations, found %s and %s", (long long)n,
                  type_text(s->im->a, &a->type), type_text(s->im->a, &y->type));
    Value *x, *wide = in_batch(s, y, t);
    a = in_batch(s, a, t);
    if (left)
        x = solve_triangle(s, a, wide, upper, unit);
    else
        x = turned(s, solve_triangle(s, turned(s, a), turned(s, wide), !upper, unit));
    t.dim[t.rank - 2] = y->type.dim[y->type.rank - 2];
    t.dim[t.rank - 1] = y->type.dim[y->type.rank - 1];
    site_return(s, lower_reshape(s, x, t.rank, t.dim));
}

void row_solve_triangular(Site *s)
{
    Value *a = matrix(s, "self", true, MOST_ROWS), *y = matrix(s, "B", false, 0);
    return_solved(s, a, y, site_bool(s, "upper"), site_bool(s, "left"),
                  site_bool(s, "unitriangular"));
}

/* The older form: x with A x = self, and A. */
void row_triangular_solve(Site *s)
{
    Value *y = matrix(s, "self", false, 0), *a = matrix(s, "A", true, MOST_ROWS);
    bool upper = site_bool(s, "upper"), transposed = site_bool(s, "transpose");
    Value *m = a;
    int rank = a->type.rank;
    if (transposed)
        m = emit1(s->b, "transpose", IN(a),
                  ATTRS(A_INT("dim0", rank - 2), A_INT("dim1", rank - 1)));
    return_solved(s, m, y, upper != transposed, true, site_bool(s, "unitriangular"));
    Value *x = fx_read(s->im, s->result.t);
    site_return_list(s, 2, (Value *[]){x, a});
}

/* ---- Cholesky ---- */

/* x without what lies above its diagonal */
static Value *lower_part(Site *s, Value *x, int64_t n)
{
    Value *at[2];
    const int64_t column[] = {n, 1};
    for (int i = 0; i < 2; i++)
        at[i] = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    Value *kept = lower2(s, "ge", lower_reshape(s, at[0], 2, column), at[1]);
    return where_or(s, kept, x, 0);
}

/* The lower triangle l with l l^T = a: of a its lower triangle alone is read. */
static Value *factor(Site *s, Value *a)
{
    int64_t n = a->type.dim[1], half = n / 2;
    if (n <= 1)
        return n ? lower1(s, "sqrt", a) : a;
    Value *l1 = factor(s, block(s, a, 0, half, 0, half));
    Value *under = turned(s, block(s, a, half, n, 0, half)); /* l2 = a2 l1^-T */
    Value *l2 = turned(s, solve_lower(s, l1, under, false));
    Value *rest = sub(s, block(s, a, half, n, half, n), lower2(s, "bmm", l2, turned(s, l2)));
    Type zero = l1->type;
    zero.dim[2] = n - half;
    Value *top = emit1(s->b, "cat", IN(l1, lower_full(s, 0, &zero)), ATTRS(A_INT("dim", 2)));
    Value *low = emit1(s->b, "cat", IN(l2, factor(s, rest)), ATTRS(A_INT("dim", 2)));
    return above(s, top, low);
}

static Value *cholesky(Site *s)
{
    Value *x = matrix(s, "self", true, MOST_ROWS), *a = as_batch(s, x);
    int64_t n = a->type.dim[1];
    bool upper = site_bool(s, "upper");
    if (upper)
        a = turned(s, a);
    Value *l = factor(s, a);
    l = lower_part(s, l, n);
    return lower_reshape(s, upper ? turned(s, l) : l, x->type.rank, x->type.dim);
}

void row_cholesky(Site *s)
{
    site_return(s, cholesky(s));
}

/* l, and 0 for "it is one": where it is none the numbers are NaN. */
void row_cholesky_ex(Site *s)
{
    Type t = *site_type(s, "self");
    Value *l = cholesky(s);
    t.rank -= 2;
    t.dtype = I32;
    site_return_list(s, 2, (Value *[]){l, lower_full(s, 0, &t)});
}

/* ---- inverses ---- */

/* Index of the row, of those from k on, with the greatest |element| in column k: i64[B, 1, 1] */
static Value *pivot(Site *s, Value *x, int64_t k)
{
    const int64_t dim = 1;
    Value *column = lower1(s, "abs", block(s, x, k, x->type.dim[1], k, k + 1));
    return plus(s, lower_reduce(s, "argmax", column, 1, &dim, true), (double)k);
}

/* Rows k and p[b] exchanged, by the order in which they are gathered. */
static Value *exchanged(Site *s, Value *x, int64_t k, Value *p)
{
    const int64_t n = x->type.dim[1], column[] = {1, n, 1};
    Value *row = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    row = lower_reshape(s, row, 3, column);
    Value *from = lower_where(s, lower2(s, "eq", row, p), lower_number(s, (double)k, I64), row);
    from = lower_where(s, compare(s, "eq", row, (double)k), p, from);
    Type t = x->type;
    t.dtype = I64;
    return emit1(s->b, "gather", IN(x, lower_expand(s, from, &t)), ATTRS(A_INT("dim", 1)));
}

/* [a y] to [1 a^-1 y], column by column. */
static Value *eliminated(Site *s, Value *x)
{
    const int64_t n = x->type.dim[1], width = x->type.dim[2], column[] = {1, n, 1};
    Value *row = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    row = lower_reshape(s, row, 3, column);
    for (int64_t k = 0; k < n; k++) {
        x = exchanged(s, x, k, pivot(s, x, k));
        Value *own = block(s, x, k, k + 1, 0, width), *at = block(s, x, k, k + 1, k, k + 1);
        own = lower2(s, "div", own, at);
        Value *others = sub(s, x, mul(s, block(s, x, 0, n, k, k + 1), own));
        x = lower_where(s, compare(s, "eq", row, (double)k), own, others);
    }
    return lower_slice(s, x, 2, n, width, 1);
}

static Value *beside(Site *s, Value *a, Value *y)
{
    return emit1(s->b, "cat", IN(a, y), ATTRS(A_INT("dim", 2)));
}

static Value *identity(Site *s, const Value *a)
{
    const int64_t n = a->type.dim[1], column[] = {n, 1};
    Value *at[2];
    for (int i = 0; i < 2; i++)
        at[i] = emit1(s->b, "arange", 0, NULL, ATTRS(A_INT("end", n), A_DTYPE("dtype", I64)));
    Value *one = lower2(s, "eq", lower_reshape(s, at[0], 2, column), at[1]);
    return lower_expand(s, lower_cast(s, one, a->type.dtype), &a->type);
}

static Value *inverse(Site *s, const char *name)
{
    Value *x = matrix(s, name, true, MOST_PIVOTS), *a = as_batch(s, x);
    a = eliminated(s, beside(s, a, identity(s, a)));
    return lower_reshape(s, a, x->type.rank, x->type.dim);
}

void row_inverse(Site *s)
{
    site_return(s, inverse(s, s->arg_name[0]));
}

/* The inverse, and 0 for "it has one". */
void row_inv_ex(Site *s)
{
    Type t = *site_type(s, "A");
    Value *x = inverse(s, "A");
    t.rank -= 2;
    t.dtype = I32;
    site_return_list(s, 2, (Value *[]){x, lower_full(s, 0, &t)});
}

/* ---- distances ---- */

/* Differences of rows: [..., P, M] and [..., R, M] as [..., P, R, M] */
static Value *differences(Site *s, Value *x, Value *y)
{
    int rank = x->type.rank;
    if (rank < 2 || y->type.rank < 2 || rank == TN_RANK || y->type.rank == TN_RANK ||
        x->type.dim[rank - 1] != y->type.dim[y->type.rank - 1])
        site_fail(s, "expected rows of one width, found %s and %s", type_text(s->im->a, &x->type),
                  type_text(s->im->a, &y->type));
    x = emit1(s->b, "unsqueeze", IN(x), ATTRS(A_INT("dim", rank - 1)));
    y = emit1(s->b, "unsqueeze", IN(y), ATTRS(A_INT("dim", y->type.rank - 2)));
    return sub(s, x, y);
}

/* (sum_m |d|^p)^(1/p) */
static Value *norms(Site *s, Value *d, double p)
{
    const int64_t last = d->type.rank - 1;
    if (p == 0)
        return lower_reduce(s, "sum", lower_cast(s, compare(s, "ne", d, 0), d->type.dtype), 1,
                            &last, false);
    Value *x = p == 2 ? mul(s, d, d) : lower1(s, "abs", d);
    if (p != 1 && p != 2 && isfinite(p))
        x = lower2(s, "pow", x, lower_like(s, p, x));
    x = lower_reduce(s, isfinite(p) ? "sum" : "amax", x, 1, &last, false);
    return p == 1 || !isfinite(p) ? x : lower_root(s, x, p);
}

void row_cdist(Site *s)
{
    Value *d = differences(s, site_tensor(s, "x1"), site_tensor(s, "x2"));
    double p = strstr(s->row->name, "euclidean") ? 2 : site_real(s, "p");
    if (!(p >= 0))
        site_fail(s, "argument p: expected 0 or more, found %g", p);
    site_return(s, norms(s, d, p));
}

/* The slope of a distance in the first rows; 0 where the rows are equal. */
void row_cdist_backward(Site *s)
{
    Value *d = differences(s, site_tensor(s, "x1"), site_tensor(s, "x2"));
    Value *g = site_tensor(s, "grad"), *far = site_tensor(s, "cdist"), *slope;
    double p = site_real(s, "p");
    const int64_t at = d->type.rank - 2;
    int last = d->type.rank - 1;
    g = emit1(s->b, "unsqueeze", IN(g), ATTRS(A_INT("dim", last)));
    far = emit1(s->b, "unsqueeze", IN(far), ATTRS(A_INT("dim", last)));
    Value *none = compare(s, "eq", far, 0), *size = lower1(s, "abs", d);
    if (p == 0) {
        slope = lower_times(s, d, 0);
    } else if (p == 1) {
        slope = lower1(s, "sign", d);
    } else if (!isfinite(p)) {
        slope =
            mul(s, lower1(s, "sign", d), lower_cast(s, lower2(s, "eq", size, far), d->type.dtype));
    } else {
        Value *ratio = lower2(s, "div", size, unless(s, none, 1, far));
        Value *zero = compare(s, "eq", size, 0);
        ratio = lower2(s, "pow", unless(s, zero, 1, ratio), lower_like(s, p - 1, d));
        slope = mul(s, lower1(s, "sign", d), ratio);
    }
    slope = unless(s, none, 0, slope);
    site_return(s, lower_reduce(s, "sum", mul(s, g, slope), 1, &at, false));
}
