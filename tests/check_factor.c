/* Factors: an op's results must follow from the results of its parts. Each factor of size over 1
 * that may be cut (parallel, sum, max) is cut at an uneven place; operands are gathered by the
 * factor's coordinate wherever it stands in a (merged) axis, sizes in attributes are rewritten by
 * the op's `part`, offset operands get the part's start. A result that has the factor on an axis is
 * put together from the parts; one that does not is the parts' sum or maximum, or equal in all
 * parts where the factor is parallel. All in double, by ref. */
#include "check.h"

#include "interp.h"

#include <math.h>
#include <string.h>

typedef struct Piece {
    Problem *p;
    const Factors *f;
    int factor;     /* the one being cut */
    int64_t lo, hi; /* this part of it */
    Tensor *out;
} Piece;

/* Where coordinate `ix` of an axis stands on the cut factor; -1 where the axis does not have it.
 * The axis' index without that factor's coordinate replaced is rebuilt by factor_put. */
static int64_t factor_coordinate(const Factors *f, const Axes *x, int axis, int factor, int64_t ix)
{
    for (int m = x->n[axis] - 1; m >= 0; m--) {
        int64_t size = f->factor[x->f[axis][m]].size;
        if (x->f[axis][m] == factor)
            return ix % size;
        ix /= size;
    }
    return -1;
}

/* The index on the part's axis of an element whose factor coordinate lies in [lo, hi). */
static int64_t part_coordinate(const Piece *t, const Axes *x, int axis, int64_t ix)
{
    int64_t at = 0, stride = 1;
    for (int m = x->n[axis] - 1; m >= 0; m--) {
        int k = x->f[axis][m];
        int64_t size = t->f->factor[k].size, own = ix % size;
        ix /= size;
        if (k == t->factor) {
            own -= t->lo;
            size = t->hi - t->lo;
        }
        at += own * stride;
        stride *= size;
    }
    return at;
}

static bool has_factor(const Axes *x, int rank, int factor)
{
    for (int d = 0; d < rank; d++)
        for (int m = 0; m < x->n[d]; m++)
            if (x->f[d][m] == factor)
                return true;
    return false;
}

static Type part_type(const Piece *t, const Axes *x, const Type *whole)
{
    Type type = *whole;
    for (int d = 0; d < whole->rank; d++)
        for (int m = 0; m < x->n[d]; m++)
            if (x->f[d][m] == t->factor)
                type.dim[d] = type.dim[d] / t->f->factor[t->factor].size * (t->hi - t->lo);
    return type;
}

/* Copies the part's elements: out of the whole, or back into it. */
static void move_part(const Piece *t, const Axes *x, const Tensor *whole, const Tensor *part,
                      bool back)
{
    int64_t ix[TN_RANK] = {0}, to[TN_RANK] = {0};
    if (!tensor_nelem(whole))
        return;
    do {
        bool mine = true;
        for (int d = 0; d < whole->rank; d++) {
            int64_t at = factor_coordinate(t->f, x, d, t->factor, ix[d]);
            mine = mine && (at < 0 || (at >= t->lo && at < t->hi));
            to[d] = x->n[d] ? part_coordinate(t, x, d, ix[d]) : ix[d];
        }
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

/* ---- one part ---- */

static const int64_t *part_sizes(const Piece *t, Arena *a)
{
    int64_t *size = NEWN(a, int64_t, MAX_FACTOR);
    for (int k = 0; k < t->f->count; k++)
        size[k] = k == t->factor ? t->hi - t->lo : t->f->factor[k].size;
    return size;
}

static void run_part(void *arg)
{
    Piece *t = arg;
    const Node *n = t->p->wide;
    Arena *a = t->p->a;
    Graph *g = graph_new(a, "part");
    Build b = {.g = g};
    Value **x = NEWN(a, Value *, n->nin);
    Tensor *in = NEWN(a, Tensor, n->nin);
    for (int i = 0; i < n->nin; i++) {
        Type type = part_type(t, &t->f->in[i], &n->in[i]->type);
        x[i] = graph_input(g, "x", type, ROLE_NONE, NULL);
        in[i] = tensor_new(a, &type, 0);
        move_part(t, &t->f->in[i], &t->p->in64[i], &in[i], false);
        if (t->f->factor[t->factor].offset == i)
            *(int64_t *)(void *)in[i].data += t->lo;
    }
    Value **out = NEWN(a, Value *, n->nout), **start = NEWN(a, Value *, MAX_FACTOR);
    Part p = {&b, n, t->f, part_sizes(t, a), start, x, t->f->factor[t->factor].npartial > 0, out};
    node_part(&p);
    Node *m = out[0]->def;
    for (int k = 0; k < n->nout; k++) {
        Type want = part_type(t, &t->f->out[k], &n->out[k]->type);
        if (!type_equal(&want, &m->out[k]->type))
            fail(g->ctx, TN_FAIL, "output %d is %s, by the factors it is %s", k,
                 type_text(a, &m->out[k]->type), type_text(a, &want));
    }
    t->out = NEWN(a, Tensor, n->nout);
    interp_node(a, g, m, in, t->out);
}

/* ---- putting together ---- */

static void merge_element(FactorKind kind, const Tensor *sum, int64_t i, double x)
{
    double y = tensor_get(sum, i);
    tensor_set(sum, i, kind == FACTOR_SUM ? y + x : fmax(y, x));
}

static void merge(const Piece *t, int k, const Tensor *whole, bool first)
{
    FactorKind kind = t->f->factor[t->factor].kind;
    const char *how = NULL;
    if (has_factor(&t->f->out[k], whole->rank, t->factor))
        move_part(t, &t->f->out[k], whole, &t->out[k], true);
    else if (first)
        tensor_assign(whole, &t->out[k]);
    else if (kind == FACTOR_PARALLEL)
        how = tensor_differs(t->p->a, &t->out[k], whole, 1e-12);
    else
        for (int64_t i = 0, n = tensor_nelem(whole); i < n; i++)
            merge_element(kind, whole, i, tensor_get(&t->out[k], i));
    if (how)
        miss(t->p, "factor %d (parallel) is not on output %d, yet parts differ: %s", t->factor, k,
             how);
}

static void cut(Problem *p, const Factors *f, int factor)
{
    const Node *n = p->wide;
    int64_t size = f->factor[factor].size, at[3] = {0, MAX(size / 3, 1), size};
    Tensor *whole = NEWN(p->a, Tensor, n->nout);
    for (int k = 0; k < n->nout; k++)
        whole[k] = tensor_new(p->a, &n->out[k]->type, 0xff);
    for (int j = 0; j < 2; j++) {
        Piece t = {p, f, factor, at[j], at[j + 1], NULL};
        if (ctx_try(p->g->ctx, run_part, &t)) {
            miss(p, "factor %d, part %lld to %lld of %lld: %s", factor, (long long)t.lo,
                 (long long)t.hi, (long long)size, p->g->ctx->message);
            return;
        }
        for (int k = 0; k < n->nout; k++)
            merge(&t, k, &whole[k], j == 0);
    }
    for (int k = 0; k < n->nout; k++) {
        const char *how = tensor_differs(p->a, &whole[k], &p->out64[k], 1e-12);
        if (how)
            miss(p, "factor %d of size %lld: output %d from the parts: %s", factor, (long long)size,
                 k, how);
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
    for (int k = 0; k < f->count && p->nmiss == before && !p->c->nosplit; k++) {
        FactorKind kind = f->factor[k].kind;
        if (f->factor[k].size > 1 && kind != FACTOR_REPLICATE && kind != FACTOR_LOGSUMEXP)
            cut(p, f, k);
    }
}
