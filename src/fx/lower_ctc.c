/* Connectionist temporal classification (Graves et al. 2006): the probability of all alignments of
 * frames with the labels, each of which may stand for several frames and has blanks around it. In a
 * row of 2 S + 1 places, blanks between labels, alpha[t, l] is the logarithm of the probability of
 * all beginnings that are at place l in frame t:
 *   alpha[t, l] = log sum of exp alpha[t - 1, l], [l - 1] and, where two labels differ, [l - 2]
 *                 + log_probs[t, label l]
 * Each frame is nodes of its own. Lengths are data: frames behind an example's last and places
 * behind its labels are computed and not read. LOW stands for the logarithm of 0, as the gradient
 * of a log of sums of none is no number.
 *
 * Gradients are those of the nodes, and as in PyTorch exp(log_probs) more, which is nothing behind
 * a log-softmax. The backward alone is by beta, the same recursion from the end: a row of an
 * example is read from its own last frame and place. An example whose labels do not fit in its
 * frames has the loss inf, and gradients of 0, where PyTorch's without zero_infinity are NaN. */
#include "arith.h"

#include <math.h>
#include <string.h>

#define LOW -1e30

enum { MOST_FRAMES = 2048 };

/* frames, examples, classes; places; the label of each place [N, L], and what is added to a step of
 * two places: 0 or LOW. lengths: of frames and labels, [N]. */
typedef struct Ctc {
    Value *log_probs, *label, *skip, *frames, *labels;
    int64_t t, n, c, l;
} Ctc;

static Value *counted(Site *s, int64_t n, int rank, const int64_t *shape)
{
    return lower_reshape(s, lower_count(s, n), rank, shape);
}

static Value *joined(Site *s, int n, Value **x, int64_t axis)
{
    return emit1(s->b, "cat", n, x, ATTRS(A_INT("dim", axis)));
}

static Value *bounded(Site *s, Value *x, int64_t least, int64_t most)
{
    x = lower2(s, "maximum", x, lower_like(s, (double)least, x));
    return lower2(s, "minimum", x, lower_like(s, (double)most, x));
}

/* Lengths, a tensor or a list of integers, as [N]. */
static Value *lengths(Site *s, const char *name, int64_t n)
{
    const Item *x = site_arg(s, name);
    if (x->kind == FX_TENSOR) {
        Value *v = lower_cast(s, site_tensor(s, name), I64);
        if (!v->type.rank && n == 1)
            v = lower_reshape(s, v, 1, &n);
        if (v->type.rank != 1 || v->type.dim[0] != n)
            site_fail(s, "argument %s: expected %lld lengths, found %s", name, (long long)n,
                      type_text(s->im->a, &v->type));
        return v;
    }
    if (x->count != n || !n)
        site_fail(s, "argument %s: expected %lld lengths, found %d", name, (long long)n, x->count);
    const int64_t one = 1;
    Value **each = NEWN(s->im->a, Value *, n);
    for (int64_t i = 0; i < n; i++)
        each[i] = lower_fill(s, &x->item[i], &(Type){.dtype = I64, .rank = 1, .dim = {one}});
    return n == 1 ? each[0] : joined(s, (int)n, each, 0);
}

/* Labels as [N, S]: in one list they stand one example after the other, and S is their number. */
static Value *labels_of(Site *s, const Ctc *x)
{
    Value *y = lower_cast(s, site_tensor(s, "targets"), I64);
    if (y->type.rank == 2 && y->type.dim[0] == x->n)
        return y;
    if (y->type.rank != 1)
        site_fail(s, "argument targets: expected labels of %lld examples, found %s",
                  (long long)x->n, type_text(s->im->a, &y->type));
    const int64_t all = y->type.dim[0], column[] = {x->n, 1}, row[] = {1, all}, axis = 0;
    if (!all)
        return lower_reshape(s, y, 2, (const int64_t[]){x->n, 0});
    Value *end = emit1(s->b, "cumsum", IN(x->labels), ATTRS(A_INT("dim", 0)));
    Value *begin = lower_reshape(s, sub(s, end, x->labels), 2, column);
    Value *at = bounded(s, add(s, begin, counted(s, all, 2, row)), 0, all - 1);
    return emit1(s->b, "index", IN(y, at), ATTRS(A_INTS("dims", 1, &axis)));
}

static Ctc ctc_of(Site *s)
{
    Ctc x = {.log_probs = site_tensor(s, "log_probs")};
    if (x.log_probs->type.rank == 2) { /* a single example */
        const Type *two = &x.log_probs->type;
        const int64_t size[] = {two->dim[0], 1, two->dim[1]};
        x.log_probs = lower_reshape(s, x.log_probs, 3, size);
    }
    const Type *t = &x.log_probs->type;
    if (t->rank != 3 || !dtype_float(t->dtype) || !t->dim[0] || t->dim[0] > MOST_FRAMES)
        site_fail(
            s,
            "argument log_probs: expected [frames, batch, classes] of 1 to %d frames, each of "
            "which is nodes of its own, found %s",
            MOST_FRAMES, type_text(s->im->a, t));
    x.t = t->dim[0];
    x.n = t->dim[1];
    x.c = t->dim[2];
    x.frames = lengths(s, "input_lengths", x.n);
    x.labels = lengths(s, "target_lengths", x.n);
    Value *label = labels_of(s, &x);
    int64_t count = label->type.dim[1];
    x.l = 2 * count + 1;
    const int64_t pairs[] = {x.n, count, 1}, all[] = {x.n, x.l - 1};
    const Type blanks = {.dtype = I64, .rank = 3, .dim = {x.n, count, 1}};
    const Type last = {.dtype = I64, .rank = 2, .dim = {x.n, 1}};
    double blank = (double)site_int(s, "blank");
    Value *both[] = {lower_full(s, blank, &blanks), lower_reshape(s, label, 3, pairs)};
    Value *ends[] = {lower_reshape(s, joined(s, 2, both, 2), 2, all), lower_full(s, blank, &last)};
    x.label = bounded(s, joined(s, 2, ends, 1), 0, x.c - 1);
    return x;
}

/* LOW where a step of two places would leave out a label or a needed blank; label: [N, L] */
static Value *skips(Site *s, const Ctc *x, Value *label)
{
    const int64_t before[] = {2, 0};
    DType d = x->log_probs->type.dtype;
    Value *other = emit1(s->b, "constant_pad_nd", IN(label),
                         ATTRS(A_INTS("pad", 2, before), A_FLOAT("value", -1)));
    other = lower_slice(s, other, 1, 0, x->l, 1);
    return lower_where(s, lower2(s, "ne", label, other), lower_number(s, 0, d),
                       lower_number(s, LOW, d));
}

/* alpha as [T, N, L], of the logarithms of the places' probabilities, [T, N, L] */
static Value *recursion(Site *s, const Ctc *x, Value *place, Value *skip)
{
    const int64_t before[] = {2, 0}, row[] = {1, x->l}, one[] = {1, x->n, x->l}, axis = 2;
    const int64_t each[] = {x->n, x->l, 1}, plain[] = {x->n, x->l};
    Value **all = NEWN(s->im->a, Value *, x->t);
    Value *begins = compare(s, "lt", counted(s, x->l, 2, row), 2), *a = NULL;
    for (int64_t t = 0; t < x->t; t++) {
        Value *p = lower_reshape(s, lower_slice(s, place, 0, t, t + 1, 1), 2, plain);
        if (a) {
            Value *wide = emit1(s->b, "constant_pad_nd", IN(a),
                                ATTRS(A_INTS("pad", 2, before), A_FLOAT("value", LOW)));
            Value *from[] = {a, lower_slice(s, wide, 1, 1, x->l + 1, 1),
                             add(s, lower_slice(s, wide, 1, 0, x->l, 1), skip)};
            for (int i = 0; i < LEN(from); i++)
                from[i] = lower_reshape(s, from[i], 3, each);
            a = add(s, lower_reduce(s, "logsumexp", joined(s, LEN(from), from, 2), 1, &axis, false),
                    p);
        } else {
            a = where_or(s, begins, p, LOW);
        }
        all[t] = lower_reshape(s, a, 3, one);
    }
    return x->t == 1 ? all[0] : joined(s, (int)x->t, all, 0);
}

static Value *places(Site *s, const Ctc *x)
{
    const int64_t one[] = {1, x->n, x->l};
    const Type all = {.dtype = I64, .rank = 3, .dim = {x->t, x->n, x->l}};
    Value *at = lower_expand(s, lower_reshape(s, x->label, 3, one), &all);
    return emit1(s->b, "gather", IN(x->log_probs, at), ATTRS(A_INT("dim", 2)));
}

/* Elements of [T, N, L] at frames, examples and places. */
static Value *at(Site *s, Value *x, Value *t, Value *n, Value *l)
{
    static const int64_t dims[] = {0, 1, 2};
    return emit1(s->b, "index", IN(x, t, n, l), ATTRS(A_INTS("dims", 3, dims)));
}

/* ---- the loss ---- */

/* The logarithm of the probability of each example's labels, [N]. */
static Value *total(Site *s, const Ctc *x, Value *alpha)
{
    static const int64_t axis = 1;
    const int64_t column[] = {x->n, 1};
    Value *n = counted(s, x->n, 1, &x->n);
    Value *t = bounded(s, plus(s, x->frames, -1), 0, x->t - 1);
    Value *l = bounded(s, lower_times(s, x->labels, 2), 0, x->l - 1);
    Value *blank = at(s, alpha, t, n, l);
    Value *label = at(s, alpha, t, n, bounded(s, plus(s, l, -1), 0, x->l - 1));
    label = where_or(s, compare(s, "gt", l, 0), label, LOW);
    Value *ends[] = {lower_reshape(s, blank, 2, column), lower_reshape(s, label, 2, column)};
    return lower_reduce(s, "logsumexp", joined(s, 2, ends, 1), 1, &axis, false);
}

/* Which frames of each example there are: [T, N, 1] */
static Value *are_frames(Site *s, const Ctc *x)
{
    const int64_t column[] = {x->t, 1, 1}, row[] = {1, x->n, 1};
    return lower2(s, "lt", counted(s, x->t, 3, column), lower_reshape(s, x->frames, 3, row));
}

/* 0, whose gradient is that of the sum of exp(log_probs). */
static Value *of_probabilities(Site *s, const Ctc *x)
{
    static const int64_t axes[] = {0, 2};
    Value *p = where_or(s, are_frames(s, x), lower1(s, "exp", x->log_probs), 0);
    Value *sum = lower_reduce(s, "sum", p, 2, axes, false);
    return sub(s, sum, lower_alias(s, sum, "stop"));
}

static Value *losses(Site *s, const Ctc *x, Value *alpha)
{
    Value *loss = lower1(s, "neg", total(s, x, alpha));
    Value *never = compare(s, "gt", loss, -LOW / 2), *empty = compare(s, "eq", x->frames, 0);
    Value *none =
        where_or(s, compare(s, "gt", x->labels, 0), lower_full(s, INFINITY, &loss->type), 0);
    loss = add(s, loss, of_probabilities(s, x));
    return lower_where(s, empty, none, unless(s, never, INFINITY, loss));
}

/* The second result is what the backward reads. ATen's has as many places as the most labels of an
 * example need. */
void row_ctc(Site *s)
{
    static const int64_t order[] = {1, 0, 2};
    Ctc x = ctc_of(s);
    Value *alpha = recursion(s, &x, places(s, &x), skips(s, &x, x.label));
    Value *out[] = {losses(s, &x, alpha),
                    emit1(s->b, "permute", IN(alpha), ATTRS(A_INTS("dims", 3, order)))};
    site_return_list(s, 2, out);
    s->result.item[1].t->optional = true;
}

/* As PyTorch composes it: a mean is of losses by their numbers of labels. */
void row_ctc_loss(Site *s)
{
    Ctc x = ctc_of(s);
    int64_t how = site_int(s, "reduction");
    Value *y = losses(s, &x, recursion(s, &x, places(s, &x), skips(s, &x, x.label)));
    if (site_bool(s, "zero_infinity"))
        y = unless(s, compare(s, "eq", y, INFINITY), 0, y);
    if (how == REDUCE_MEAN) {
        Value *count = lower2(s, "maximum", x.labels, lower_number(s, 1, I64));
        y = lower2(s, "div", y, lower_cast(s, count, y->type.dtype));
    }
    if (how != REDUCE_NONE)
        y = lower_reduce(s, how == REDUCE_MEAN ? "mean" : "sum", y, 0, NULL, false);
    else if (site_type(s, "log_probs")->rank == 2)
        y = lower_reshape(s, y, 0, NULL);
    site_return(s, y);
}

/* ---- its backward ---- */

/* x[T, N, L] with each example's frames and places in reverse; the rest is anything. */
static Value *reversed(Site *s, const Ctc *x, Value *y)
{
    const int64_t frames[] = {x->t, 1, 1}, examples[] = {1, x->n, 1}, row[] = {1, 1, x->l};
    Value *t = plus(s, lower_reshape(s, x->frames, 3, examples), -1);
    Value *l = lower_times(s, lower_reshape(s, x->labels, 3, examples), 2);
    t = bounded(s, sub(s, t, counted(s, x->t, 3, frames)), 0, x->t - 1);
    l = bounded(s, sub(s, l, counted(s, x->l, 3, row)), 0, x->l - 1);
    return at(s, y, t, counted(s, x->n, 3, examples), l);
}

/* [N, L] of labels in reverse */
static Value *reversed_labels(Site *s, const Ctc *x)
{
    static const int64_t axis = 1;
    const int64_t column[] = {x->n, 1}, row[] = {1, x->l};
    Value *l = lower_times(s, lower_reshape(s, x->labels, 2, column), 2);
    l = bounded(s, sub(s, l, counted(s, x->l, 2, row)), 0, x->l - 1);
    return emit1(s->b, "gather", IN(x->label, l), ATTRS(A_INT("dim", axis)));
}

void row_ctc_backward(Site *s)
{
    static const int64_t order[] = {1, 0, 2};
    Ctc x = ctc_of(s);
    const int64_t examples[] = {1, x.n, 1}, row[] = {1, 1, x.l}, one[] = {1, x.n, x.l};
    const Type all = {.dtype = I64, .rank = 3, .dim = {x.t, x.n, x.l}};
    Value *place = places(s, &x), *loss = site_tensor(s, "neg_log_likelihood");
    Value *alpha =
        emit1(s->b, "permute", IN(site_tensor(s, "log_alpha")), ATTRS(A_INTS("dims", 3, order)));
    if (alpha->type.dim[2] > x.l)
        site_fail(s, "argument log_alpha: expected at most %lld places, found %s", (long long)x.l,
                  type_text(s->im->a, &alpha->type));
    if (alpha->type.dim[2] < x.l) { /* PyTorch's, of the most labels that an example has */
        const int64_t more[] = {0, x.l - alpha->type.dim[2]};
        alpha = emit1(s->b, "constant_pad_nd", IN(alpha),
                      ATTRS(A_INTS("pad", 2, more), A_FLOAT("value", LOW)));
    }
    Value *skip = skips(s, &x, reversed_labels(s, &x));
    Value *beta = reversed(s, &x, recursion(s, &x, reversed(s, &x, place), skip));
    Value *path = add(s, sub(s, add(s, alpha, beta), place), lower_reshape(s, loss, 3, examples));
    Value *last = lower_times(s, lower_reshape(s, x.labels, 3, examples), 2);
    Value *within = lower2(s, "le", counted(s, x.l, 3, row), last);
    path = where_or(s, within, lower1(s, "exp", path), 0);
    Value *labels = lower_expand(s, lower_reshape(s, x.label, 3, one), &all);
    Value *expected =
        emit1(s->b, "scatter_add", IN(lower_full(s, 0, &x.log_probs->type), labels, path),
              ATTRS(A_INT("dim", 2)));
    Value *dx = sub(s, lower1(s, "exp", x.log_probs), expected);
    dx = mul(s, dx, lower_reshape(s, site_tensor(s, "grad"), 3, examples));
    dx = where_or(s, are_frames(s, &x), dx, 0);
    dx = unless(s, lower_reshape(s, compare(s, "eq", loss, INFINITY), 3, examples), 0, dx);
    site_return(s, dx);
}
