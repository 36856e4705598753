/* Factors: an op's results must follow from the results of its parts. Each factor of size over 1
 * that may be cut (all but replicate) is cut at an uneven place, and each pair of factors of small
 * problems at once; operands are gathered by the factors' coordinates wherever they stand in a
 * (merged) axis; the op's `part` builds the node or nodes of a part. A result that has the factor
 * on an axis is put together from the parts; one that does not is merged by its kind, or equal in
 * all parts where the factor is parallel; partials are merged by theirs and given to `finish`. All
 * in double, by ref. */
#include "check.h"

#include "interp.h"

#include <math.h>
#include <string.h>

enum { MOST_CUTS = 2, MOST_PAIRED = 2000 }; /* elements of a problem whose pairs are tried */

/* A run of each factor. */
typedef struct Span {
    int64_t lo[MAX_FACTOR], size[MAX_FACTOR];
} Span;

/* Cuts within each other, those with partials innermost. */
typedef struct Cuts {
    Problem *p;
    const Factors *f;
    int count, factor[MOST_CUTS];
} Cuts;

/* Values of the graph of a part. */
typedef struct Work {
    const Cuts *c;
    const Span *at;
    const Tensor *merged; /* of partials, where these are to be finished */
    Tensor *out;
    int nout;
} Work;

/* Where index ix of an axis of the span `whole` lies in the span `part` of it; -1: not in it. */
static int64_t index_in(const Axes *x, int axis, int64_t ix, const Span *whole, const Span *part)
{
    int64_t at = 0, stride = 1;
    for (int m = x->n[axis] - 1; m >= 0; m--) {
        int k = x->f[axis][m];
        int64_t own = ix % whole->size[k] + whole->lo[k] - part->lo[k];
        ix /= whole->size[k];
        if (own < 0 || own >= part->size[k])
            return -1;
        at += own * stride;
        stride *= part->size[k];
    }
    return x->n[axis] ? at : ix;
}

static bool has_factor(const Axes *x, int rank, int factor)
{
    for (int d = 0; d < rank; d++)
        for (int m = 0; m < x->n[d]; m++)
            if (x->f[d][m] == factor)
                return true;
    return false;
}

static Type part_type(const Axes *x, const Type *whole, const Span *part)
{
    Type type = *whole;
    for (int d = 0; d < whole->rank; d++)
        if (x->n[d])
            type.dim[d] = part_size(x, d, part->size);
    return type;
}

/* Copies the part's elements: out of the whole, or back into it. */
static void move_part(const Axes *x, const Tensor *whole, const Span *all, const Tensor *part,
                      const Span *some, bool back)
{
    int64_t ix[TN_RANK] = {0}, to[TN_RANK] = {0};
    if (!tensor_nelem(whole))
        return;
    do {
        bool mine = true;
        for (int d = 0; d < whole->rank; d++)
            mine = (to[d] = index_in(x, d, ix[d], all, some)) >= 0 && mine;
        if (!mine)
            continue;
        int64_t w = tensor_index(whole, ix), q = tensor_index(part, to);
        int size = dtype_size(whole->dtype);
        if (back)
            memcpy(whole->data + w * size, part->data + q * size, (size_t)size);
        else
            memcpy(part->data + q * size, whole->data + w * size, (size_t)size);
    } while (next_index(whole->rank, whole->dim, ix));
}

static Span all_of(const Factors *f)
{
    Span s = {0};
    for (int k = 0; k < f->count; k++)
        s.size[k] = f->factor[k].size;
    return s;
}

/* ---- one part ---- */

static int partials_of(const Cuts *c)
{
    const Factor *x = &c->f->factor[c->factor[c->count - 1]];
    return factor_finished(x) ? x->npartial : 0;
}

static Value *new_input(Graph *g, Tensor *data, const Tensor *x)
{
    Type type = type_make(x->dtype, x->rank, x->dim);
    data[g->nin] = *x;
    return graph_input(g, "x", type, ROLE_NONE, NULL);
}

/* Operands of the part; as finish() may see them, whole along what a single cut leaves. */
static void add_operands(const Work *w, Graph *g, Tensor *data, Value **x)
{
    const Problem *p = w->c->p;
    const Factors *f = w->c->f;
    Span all = all_of(f), some = *w->at;
    int last = w->c->factor[w->c->count - 1];
    if (w->merged && w->c->count == 1) {
        some.lo[last] = 0;
        some.size[last] = all.size[last];
    }
    for (int i = 0; i < p->wide->nin; i++) {
        Type type = part_type(&f->in[i], &p->wide->in[i]->type, &some);
        Tensor in = tensor_new(p->a, &type, 0);
        move_part(&f->in[i], &p->in64[i], &all, &in, &some, false);
        x[i] = new_input(g, data, &in);
    }
}

/* Where the part begins; of a part that begins at 0 a single cut says nothing. */
static void add_starts(const Work *w, Graph *g, Tensor *data, Value **start)
{
    Type scalar = type_make(I64, 0, NULL);
    for (int j = 0; j < w->c->count; j++) {
        int k = w->c->factor[j];
        Tensor lo = tensor_new(w->c->p->a, &scalar, 0);
        *(int64_t *)(void *)lo.data = w->at->lo[k];
        if (w->at->lo[k] || w->c->count > 1)
            start[k] = new_input(g, data, &lo);
    }
}

static void check_type(const Work *w, int k, const Type *found)
{
    Arena *a = w->c->p->a;
    Type want = part_type(&w->c->f->out[k], &w->c->p->wide->out[k]->type, w->at);
    if (!type_equal(&want, found))
        fail(arena_ctx(a), TN_FAIL, "output %d is %s, by the factors it is %s", k,
             type_text(a, found), type_text(a, &want));
}

/* What makes partials is cut itself where n is replaced by it and finish(): it needs no finish().
 */
static void check_partial(const Work *w, const Value *v)
{
    const Factors *f = v->def ? node_factors(w->c->p->a, v->def) : NULL;
    for (int k = 0; f && k < f->count; k++)
        if (factor_finished(&f->factor[k]))
            fail(arena_ctx(w->c->p->a), TN_FAIL, "partials are made by %s, which has partials",
                 v->def->op->name);
}

static void run_part(void *arg)
{
    Work *w = arg;
    const Node *n = w->c->p->wide;
    Arena *a = w->c->p->a;
    Graph *g = graph_new(a, "part");
    Build b = {.g = g};
    int npartial = partials_of(w->c);
    Tensor *data = NEWN(a, Tensor, n->nin + MOST_CUTS + MAX_PARTIAL);
    Value **x = NEWN(a, Value *, n->nin), **out = NEWN(a, Value *, MAX(n->nout, MAX_PARTIAL)),
          **start = NEWN(a, Value *, MAX_FACTOR), *merged[MAX_PARTIAL];
    add_operands(w, g, data, x);
    add_starts(w, g, data, start);
    Part p = {&b, n, w->c->f, w->at->size, start, x, npartial > 0, out};
    for (int j = 0; j < npartial && w->merged; j++)
        merged[j] = new_input(g, data, &w->merged[j]);
    if (w->merged)
        n->op->rules->finish(&p, merged);
    else
        node_part(&p);
    w->nout = npartial && !w->merged ? npartial : n->nout;
    for (int k = 0; k < w->nout; k++) {
        if (w->merged || !npartial)
            check_type(w, k, &out[k]->type);
        else
            check_partial(w, out[k]);
        graph_output(g, out[k], ROLE_NONE, NULL);
    }
    graph_verify(g);
    w->out = NEWN(a, Tensor, w->nout);
    interp_graph(a, g, data, w->out);
}

/* ---- putting together ---- */

static double merge_two(FactorKind kind, double x, double y)
{
    double most = isnan(x) || isnan(y) ? NAN : fmax(x, y);
    if (kind == FACTOR_SUM)
        return x + y;
    if (kind == FACTOR_MAX || isinf(most))
        return most;
    return most + log(exp(x - most) + exp(y - most));
}

static void merge_all(FactorKind kind, const Tensor *to, const Tensor *x)
{
    for (int64_t i = 0, n = tensor_nelem(to); i < n; i++)
        tensor_set(to, i, merge_two(kind, tensor_get(to, i), tensor_get(x, i)));
}

/* Result k of the part `some` into that of `all`. */
static void merge_result(const Work *all, const Work *some, int factor, int k)
{
    Problem *p = all->c->p;
    const Axes *x = &all->c->f->out[k];
    const Factor *f = &all->c->f->factor[factor];
    FactorKind kind = f->results ? f->partial[k] : f->kind;
    const char *how = NULL;
    if (has_factor(x, p->wide->out[k]->type.rank, factor)) {
        if (!all->out[k].data) {
            Type type = part_type(x, &p->wide->out[k]->type, all->at);
            all->out[k] = tensor_new(p->a, &type, 0xff);
        }
        move_part(x, &all->out[k], all->at, &some->out[k], some->at, true);
    } else if (!all->out[k].data) {
        all->out[k] = some->out[k];
    } else if (kind == FACTOR_PARALLEL) {
        how = tensor_differs(p->a, &some->out[k], &all->out[k], 1e-12);
    } else {
        merge_all(kind, &all->out[k], &some->out[k]);
    }
    if (how)
        miss(p, "factor %d (parallel) is not on output %d, yet parts differ: %s", factor, k, how);
}

static void merge(Work *all, const Work *some, int factor)
{
    const Factor *x = &all->c->f->factor[factor];
    Arena *a = all->c->p->a;
    if (!all->out)
        all->out = NEWN(a, Tensor, some->nout);
    all->nout = some->nout;
    for (int k = 0; k < all->nout; k++) {
        if (!factor_finished(x))
            merge_result(all, some, factor, k);
        else if (!all->out[k].data)
            all->out[k] = tensor_copy(a, &some->out[k], some->out[k].dtype);
        else
            merge_all(x->partial[k], &all->out[k], &some->out[k]);
    }
}

/* Fills w->out with the results of the cuts from `level` on, in the span w->at. */
static void run_cuts(Work *w, int level)
{
    const Cuts *c = w->c;
    if (level == MOST_CUTS || level == c->count) {
        run_part(w);
        return;
    }
    int k = c->factor[level];
    int64_t size = w->at->size[k], at[3] = {0, MAX(size / 3, 1), size};
    Span some = *w->at;
    for (int j = 0; j < 2; j++) {
        some.lo[k] = w->at->lo[k] + at[j];
        some.size[k] = at[j + 1] - at[j];
        Work part = {.c = c, .at = &some};
        run_cuts(&part, level + 1);
        merge(w, &part, k);
    }
    bool outermost = !level || !factor_finished(&c->f->factor[c->factor[level - 1]]);
    if (factor_finished(&c->f->factor[k]) && outermost) {
        for (int j = level; j < c->count; j++)
            some.size[c->factor[j]] = 1; /* finish() reads it of other factors only */
        Work last = {.c = c, .at = &some, .merged = w->out};
        run_part(&last);
        w->out = last.out;
        w->nout = last.nout;
    }
}

static void run_all(void *arg)
{
    run_cuts(arg, 0);
}

static const char *cuts_text(const Cuts *c)
{
    Arena *a = c->p->a;
    const char *text = "";
    for (int j = 0; j < c->count; j++)
        text = arena_printf(a, "%s%sfactor %d of size %lld", text, j ? ", " : "", c->factor[j],
                            (long long)c->f->factor[c->factor[j]].size);
    return text;
}

static void cut(const Cuts *c)
{
    Problem *p = c->p;
    Span all = all_of(c->f);
    Work w = {.c = c, .at = &all};
    if (ctx_try(p->g->ctx, run_all, &w)) {
        miss(p, "%s: %s", cuts_text(c), p->g->ctx->message);
        return;
    }
    for (int k = 0; k < p->wide->nout; k++) {
        const char *how = tensor_differs(p->a, &w.out[k], &p->out64[k], 1e-12);
        if (how)
            miss(p, "%s: output %d from the parts: %s", cuts_text(c), k, how);
    }
}

/* ---- the rule itself ---- */

static void check_axes(Problem *p, const Factors *f, const Axes *x, const Type *t, const char *what,
                       int i)
{
    for (int d = 0; d < t->rank; d++) {
        int64_t product = 1;
        for (int m = 0; m < x->n[d]; m++)
            product *= f->factor[x->f[d][m]].size;
        if (product != t->dim[d] && (x->n[d] || t->dim[d] > 1))
            miss(p, "factors of axis %d of %s %d have the product %lld, its size is %lld", d, what,
                 i, (long long)product, (long long)t->dim[d]);
    }
}

static void check_offset(Problem *p, const Factors *f, int k)
{
    int i = f->factor[k].offset;
    if (i < 0)
        return;
    const Type *t = i < p->wide->nin ? &p->wide->in[i]->type : NULL;
    if (!t || t->dtype != I64 || t->rank)
        miss(p, "factor %d: its offset operand %d is not i64[]", k, i);
}

/* Of parts along a log-sum-exp, results other than it would be weighted by each other's sums. */
static bool may_cut(const Node *n, const Factor *x)
{
    bool alone = x->kind != FACTOR_LOGSUMEXP || x->npartial || n->nout == 1;
    return x->size > 1 && x->kind != FACTOR_REPLICATE && alone;
}

/* Two merges of different kinds do not commute: these are no pair. */
static bool may_pair(const Factor *x, const Factor *y)
{
    return x->kind == FACTOR_PARALLEL || y->kind == FACTOR_PARALLEL || x->kind == y->kind;
}

static void cut_pairs(Problem *p, const Factors *f)
{
    double nelem = 0;
    for (int i = 0; i < p->n->nin; i++)
        nelem += (double)type_nelem(&p->n->in[i]->type);
    for (int k = 0; k < p->n->nout; k++)
        nelem += (double)type_nelem(&p->n->out[k]->type);
    for (int k = 0; k < f->count && nelem < MOST_PAIRED; k++)
        for (int j = 0; j < f->count; j++) {
            const Factor *x = &f->factor[j], *y = &f->factor[k];
            bool ends = factor_finished(x), inner = ends == factor_finished(y) ? j < k : !ends;
            if (inner && may_cut(p->n, x) && may_cut(p->n, y) && may_pair(x, y) && !p->nmiss)
                cut(&(Cuts){p, f, 2, {j, k}});
        }
}

void check_factors(Problem *p)
{
    const Node *n = p->wide;
    const Factors *f = node_factors(p->a, n);
    int before = p->nmiss;
    for (int i = 0; i < n->nin; i++)
        check_axes(p, f, &f->in[i], &n->in[i]->type, "operand", i);
    for (int k = 0; k < n->nout; k++)
        check_axes(p, f, &f->out[k], &n->out[k]->type, "output", k);
    for (int k = 0; k < f->count; k++)
        check_offset(p, f, k);
    if (p->c->nosplit || p->nmiss != before)
        return;
    for (int k = 0; k < f->count && p->nmiss == before; k++)
        if (may_cut(n, &f->factor[k]))
            cut(&(Cuts){p, f, 1, {k}});
    if (p->nmiss == before)
        cut_pairs(p, f);
}
