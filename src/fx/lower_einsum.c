/* einsum: operands are joined from left to right, each pair by one batched product. Axes carry
 * labels: letters, and for an ellipsis numbers from the right. A label that two operands share and
 * that is needed later is an axis of the batch, one that is not is summed in the product. */
#include "lower.h"

#include <ctype.h>
#include <string.h>

enum { ELLIPSIS = 128, MOST_LABELS = ELLIPSIS + TN_RANK };

typedef struct Term {
    Value *x;
    int n, label[TN_RANK];
} Term;

static int find(const Term *t, int label)
{
    for (int d = 0; d < t->n; d++)
        if (t->label[d] == label)
            return d;
    return -1;
}

static void add(Site *s, Term *t, int label)
{
    if (t->n == TN_RANK)
        site_fail(s, "expected at most %d axes", TN_RANK);
    t->label[t->n++] = label;
}

/* Labels of n characters; an ellipsis stands for `dots` axes. */
static Term labels(Site *s, const char *text, int n, int dots)
{
    Term t = {0};
    for (int i = 0; i < n; i++) {
        if (isalpha((unsigned char)text[i])) {
            add(s, &t, text[i]);
        } else if (i + 3 <= n && !strncmp(text + i, "...", 3)) {
            for (int k = dots - 1; k >= 0; k--)
                add(s, &t, ELLIPSIS + k);
            i += 2;
        } else if (text[i] != ' ') {
            site_fail(s, "argument equation: unexpected \"%c\"", text[i]);
        }
    }
    return t;
}

/* How many axes the ellipsis of an operand of this rank stands for; 0 where it has none. */
static int ellipsis(const char *text, int n, int rank)
{
    int letters = 0, dots = 0;
    for (int i = 0; i < n; i++) {
        letters += isalpha((unsigned char)text[i]) != 0;
        dots += text[i] == '.';
    }
    return dots ? MAX(rank - letters, 0) : 0;
}

static Value *along(Site *s, const char *op, Value *x, const char *name, int n, const int64_t *dims)
{
    return emit1(s->b, op, IN(x), ATTRS(A_INTS(name, n, dims)));
}

/* Axes that have one label become their diagonal. */
static void merge_repeated(Site *s, Term *t)
{
    for (int i = 0; i < t->n; i++)
        for (int j = i + 1; j < t->n; j++) {
            int label = t->label[i];
            if (label != t->label[j])
                continue;
            t->x = emit1(s->b, "diagonal", IN(t->x), ATTRS(A_INT("dim1", i), A_INT("dim2", j)));
            memmove(t->label + j, t->label + j + 1, (size_t)(t->n - j - 1) * sizeof *t->label);
            memmove(t->label + i, t->label + i + 1, (size_t)(t->n - i - 2) * sizeof *t->label);
            t->label[--t->n - 1] = label;
            i = -1;
            break;
        }
}

/* Sums axes whose label is neither kept nor in `other`; whether there were such. */
static bool sum_alone(Site *s, Term *t, const bool *keep, const Term *other)
{
    int64_t dims[TN_RANK];
    int n = 0, left = 0;
    for (int d = 0; d < t->n; d++)
        if (keep[t->label[d]] || (other && find(other, t->label[d]) >= 0))
            t->label[left++] = t->label[d];
        else
            dims[n++] = d;
    t->n = left;
    if (n)
        t->x = lower_reduce(s, "sum", t->x, n, dims, false);
    return n > 0;
}

/* Axes of size 1 become as large as the other operand's. */
static void broadcast(Site *s, Term *t, const Term *other)
{
    Type want = t->x->type;
    for (int d = 0; d < t->n; d++) {
        int k = find(other, t->label[d]);
        if (k >= 0 && want.dim[d] == 1)
            want.dim[d] = other->x->type.dim[k];
    }
    t->x = lower_expand(s, t->x, &want);
}

/* t's axes in the order of `to`, which has all of them. */
static Value *in_order(Site *s, const Term *t, const Term *to)
{
    int64_t dims[TN_RANK];
    bool moved = false;
    for (int d = 0; d < to->n; d++) {
        dims[d] = find(t, to->label[d]);
        moved |= dims[d] != d;
    }
    return moved ? along(s, "permute", t->x, "dims", to->n, dims) : t->x;
}

/* t as [batch, rows, columns], axes by their labels; what each is made of has `size`. */
static Value *as_matrix(Site *s, const Term *t, const Term *batch, const Term *row,
                        const Term *column)
{
    const Term *part[] = {batch, row, column};
    Term order = {0};
    int64_t size[] = {1, 1, 1};
    for (int i = 0; i < LEN(part); i++)
        for (int d = 0; d < part[i]->n; d++) {
            add(s, &order, part[i]->label[d]);
            size[i] *= t->x->type.dim[find(t, part[i]->label[d])];
        }
    return lower_reshape(s, in_order(s, t, &order), LEN(size), size);
}

static Term product(Site *s, Term a, Term b, const bool *keep)
{
    Term batch = {0}, inner = {0}, left = {0}, right = {0}, y = {0};
    Type t = {.dtype = a.x->type.dtype};
    sum_alone(s, &a, keep, &b);
    sum_alone(s, &b, keep, &a);
    broadcast(s, &a, &b);
    broadcast(s, &b, &a);
    for (int d = 0; d < a.n; d++) {
        bool both = find(&b, a.label[d]) >= 0;
        add(s, !both ? &left : keep[a.label[d]] ? &batch : &inner, a.label[d]);
    }
    for (int d = 0; d < b.n; d++)
        if (find(&a, b.label[d]) < 0)
            add(s, &right, b.label[d]);
    const Term *part[] = {&batch, &left, &right};
    for (int i = 0; i < LEN(part); i++)
        for (int d = 0; d < part[i]->n; d++) {
            const Term *from = i < 2 ? &a : &b;
            add(s, &y, part[i]->label[d]);
            t.dim[y.n - 1] = from->x->type.dim[find(from, part[i]->label[d])];
        }
    Value *z = lower2(s, "bmm", as_matrix(s, &a, &batch, &left, &inner),
                      as_matrix(s, &b, &batch, &inner, &right));
    y.x = lower_reshape(s, z, y.n, t.dim);
    return y;
}

/* Without "->": the ellipsis, then letters that stand once, in order. */
static Term implied(Site *s, const Term *term, int n, int dots)
{
    Term out = labels(s, "...", 3, dots);
    for (int c = 0; c < ELLIPSIS; c++) {
        int count = 0;
        for (int i = 0; i < n; i++)
            for (int d = 0; d < term[i].n; d++)
                count += term[i].label[d] == c;
        if (count == 1)
            add(s, &out, c);
    }
    return out;
}

/* The operands with their labels; *rest is what follows them, *dots the longest ellipsis. */
static Term *operands(Site *s, int *n, const char **rest, int *dots)
{
    Value **x = site_tensors(s, "tensors", n);
    Term *term = NEWN(s->im->a, Term, *n + 1);
    const char *p = site_text(s, "equation");
    *dots = 0;
    for (int i = 0; i < *n; i++) {
        int length = (int)strcspn(p, ",-"), rank = x[i]->type.rank;
        int here = ellipsis(p, length, rank);
        term[i] = labels(s, p, length, here);
        term[i].x = x[i];
        if (term[i].n != rank || (p[length] == ',') != (i + 1 < *n))
            site_fail(s, "argument equation: expected %d operands, this one with %d axes", *n,
                      rank);
        *dots = MAX(*dots, here);
        p += length + (p[length] == ',');
    }
    *rest = p;
    return term;
}

void row_einsum(Site *s)
{
    int n, dots;
    const char *rest;
    bool summed = false;
    Term *term = operands(s, &n, &rest, &dots), out;
    if (n < 1 || (*rest && strncmp(rest, "->", 2) != 0))
        site_fail(s, "argument equation: expected operands, then \"->\" or the end");
    out = *rest ? labels(s, rest + 2, (int)strlen(rest + 2), dots) : implied(s, term, n, dots);
    for (int i = 0; i < n; i++)
        merge_repeated(s, &term[i]);
    Term y = term[0];
    for (int i = 1; i <= n; i++) {
        bool keep[MOST_LABELS] = {0};
        for (int d = 0; d < out.n; d++)
            keep[out.label[d]] = true;
        for (int k = i + 1; k < n; k++)
            for (int d = 0; d < term[k].n; d++)
                keep[term[k].label[d]] = true;
        if (i < n)
            y = product(s, y, term[i], keep);
        else
            summed = sum_alone(s, &y, keep, NULL);
    }
    for (int d = 0; d < out.n; d++)
        if (find(&y, out.label[d]) < 0)
            site_fail(s, "argument equation: no operand has the axis \"%c\" of the result",
                      out.label[d] < ELLIPSIS ? out.label[d] : '.');
    if (out.n != y.n)
        site_fail(s, "argument equation: an axis stands twice in the result");
    Value *result = in_order(s, &y, &out);
    if (n == 1 && !summed) { /* ATen's is a view */
        site_return_views(s, site_arg(s, "tensors"), &result);
        s->result = s->result.item[0];
    } else {
        site_return(s, result);
    }
}
