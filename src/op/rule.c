/* Helpers for the rules of ops: checks with messages, broadcasting, factors. */
#include "op.h"

#include <math.h>
#include <string.h>

/* ---- inference ---- */

Type infer_broadcast(const Graph *g, const Node *n, int first, int count)
{
    Type t = n->in[first]->type;
    for (int i = first + 1; i < first + count; i++) {
        const Type *u = &n->in[i]->type;
        if (u->dtype != t.dtype)
            fail_node(g, n, "operand %d: expected %s, found %s", i, dtype_name(t.dtype),
                      dtype_name(u->dtype));
        Type w = t.rank >= u->rank ? t : *u;
        for (int d = 1; d <= MIN(t.rank, u->rank); d++) {
            int64_t x = t.dim[t.rank - d], y = u->dim[u->rank - d];
            if (x != y && x != 1 && y != 1)
                fail_node(g, n, "operand %d: expected a shape that broadcasts with %s, found %s", i,
                          type_text(g->a, &t), type_text(g->a, u));
            w.dim[w.rank - d] = x == 1 ? y : x;
        }
        t = w;
    }
    return t;
}

void need_float(const Graph *g, const Node *n, int i)
{
    if (!dtype_float(n->in[i]->type.dtype))
        fail_node(g, n, "operand %d: expected a floating-point dtype, found %s", i,
                  dtype_name(n->in[i]->type.dtype));
}

void need_rank(const Graph *g, const Node *n, int i, int least, int most)
{
    int rank = n->in[i]->type.rank;
    if (rank < least || rank > most)
        fail_node(g, n, "operand %d: expected rank %d%s%.0d, found %s", i, least,
                  most > least ? " to " : "", most > least ? most : 0,
                  type_text(g->a, &n->in[i]->type));
}

void need_dtype(const Graph *g, const Node *n, int i, DType d)
{
    if (n->in[i]->type.dtype != d)
        fail_node(g, n, "operand %d: expected %s, found %s", i, dtype_name(d),
                  dtype_name(n->in[i]->type.dtype));
}

void need_type(const Graph *g, const Node *n, int i, const Type *t)
{
    if (!type_equal(&n->in[i]->type, t))
        fail_node(g, n, "operand %d: expected %s, found %s", i, type_text(g->a, t),
                  type_text(g->a, &n->in[i]->type));
}

bool widens(DType from, DType to)
{
    return to == from || (to == F32 && (from == BF16 || from == F16));
}

DType need_out_dtype(const Graph *g, const Node *n, const char *name, DType from)
{
    DType to = (DType)n->attr[attr_index(n->op, name)].i;
    if (to == NDTYPE)
        return from;
    if (!widens(from, to))
        fail_node(g, n, "%s: expected %s%s, found %s", name, dtype_name(from),
                  dtype_size(from) == 2 ? " or f32" : "", dtype_name(to));
    return to;
}

void need_number(const Graph *g, const Node *n, const char *name, double x, DType d)
{
    const double most = d == U8 ? 0x1p8 : d == I32 ? 0x1p31 : 0x1p63;
    const double least = d == U8 ? -most + 1 : -most;
    if (!dtype_float(d) && !(x >= least && x < most && x == floor(x)))
        fail_node(g, n, "%s: expected an integer that %s has, found %.17g", name, dtype_name(d), x);
}

void need_positive(const Graph *g, const Node *n, const char *name, double x)
{
    if (!(x >= 0 && x < INFINITY))
        fail_node(g, n, "%s: expected a finite number, at least 0, found %g", name, x);
}

int need_axis(const Graph *g, const Node *n, int64_t dim, int rank)
{
    if (rank == 0)
        fail_node(g, n, "dim: expected a tensor with axes, found one without");
    if (dim < -rank || dim >= rank)
        fail_node(g, n, "dim: expected -%d to %d, found %lld", rank, rank - 1, (long long)dim);
    return (int)(dim < 0 ? dim + rank : dim);
}

/* ---- gradients ---- */

Value *grad_reduce(Build *b, Value *dy, const Type *t)
{
    int64_t axes[TN_RANK];
    int naxes = 0, extra = dy->type.rank - t->rank;
    for (int d = 0; d < dy->type.rank; d++)
        if (d < extra || (t->dim[d - extra] == 1 && dy->type.dim[d] != 1))
            axes[naxes++] = d;
    if (naxes)
        dy = emit1(b, "sum", IN(dy), ATTRS(A_INTS("dim", naxes, axes), A_BOOL("keepdim", 1)));
    if (extra)
        dy = emit1(b, "view", IN(dy), ATTRS(A_INTS("size", t->rank, t->dim)));
    return dy;
}

Value *emit_full(Build *b, double x, DType d)
{
    return emit1(b, "full", 0, NULL,
                 ATTRS(A_INTS("size", 0, NULL), A_FLOAT("fill_value", x), A_DTYPE("dtype", d)));
}

Value *emit_zeros(Build *b, const Type *t)
{
    return emit1(b, "full", 0, NULL,
                 ATTRS(A_INTS("size", t->rank, t->dim), A_FLOAT("fill_value", 0),
                       A_DTYPE("dtype", t->dtype)));
}

Value *emit_quotient(Build *b, Value *v, double x)
{
    const DType d = v->type.dtype, wide = d == F64 ? F64 : F32;
    v = emit_cast(b, v, wide);
    return emit_cast(b, emit1(b, "div", IN(v, emit_full(b, x, wide)), NOATTRS), d);
}

Value *emit_cast(Build *b, Value *v, DType d)
{
    return v->type.dtype == d ? v : emit1(b, "_to_copy", IN(v), ATTRS(A_DTYPE("dtype", d)));
}

/* ---- cost ---- */

Cost cost_bytes(const Node *n)
{
    Cost c = {0};
    for (int i = 0; i < n->nin; i++)
        c.nread += (double)type_nbytes(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        c.nwrite += (double)type_nbytes(&n->out[k]->type);
    return c;
}

/* ---- factors ---- */

int factor_new(Factors *f, FactorKind kind, int64_t size)
{
    CHECK(f->count < MAX_FACTOR);
    f->factor[f->count] = (Factor){.kind = kind, .size = size, .offset = NO_FACTOR};
    return f->count++;
}

void axis_add(Axes *x, int axis, int factor)
{
    CHECK(x->n[axis] < MAX_MERGE);
    x->f[axis][x->n[axis]++] = (int8_t)factor;
}

void factor_partials(Factors *f, int factor, int count, FactorKind first, FactorKind second)
{
    f->factor[factor].npartial = count;
    f->factor[factor].partial[0] = first;
    f->factor[factor].partial[1] = second;
}

void factors_elementwise(const Node *n, Factors *f)
{
    const Type *y = &n->out[0]->type;
    for (int d = 0; d < y->rank; d++) {
        if (y->dim[d] == 1)
            continue;
        int k = factor_new(f, FACTOR_PARALLEL, y->dim[d]);
        for (int o = 0; o < n->nout; o++)
            axis_add(&f->out[o], d, k);
        for (int i = 0; i < n->nin; i++) {
            int e = d - y->rank + n->in[i]->type.rank;
            if (e >= 0 && n->in[i]->type.dim[e] == y->dim[d])
                axis_add(&f->in[i], e, k);
        }
    }
}

static void give_axis(const Node *n, Factors *f, const Type *t, int d, int k)
{
    for (int i = 0; i < n->nin; i++)
        if (shape_equal(&n->in[i]->type, t))
            axis_add(&f->in[i], d, k);
    for (int o = 0; o < n->nout; o++)
        if (shape_equal(&n->out[o]->type, t))
            axis_add(&f->out[o], d, k);
}

void factors_rows(const Node *n, Factors *f, unsigned whole)
{
    const Type *t = &n->in[0]->type;
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] != 1)
            give_axis(
                n, f, t, d,
                factor_new(f, whole >> d & 1 ? FACTOR_REPLICATE : FACTOR_PARALLEL, t->dim[d]));
}

/* Which axis of an operand of this letter is axis d of operand 0, or -1. */
static int letter_axis(char letter, int d, int lead)
{
    switch (letter) {
    case 'x': return d;
    case 'b': return d < lead ? d : -1;
    case 'o': return d < lead ? -1 : d - lead;
    default: return -1;
    }
}

void factors_split(const Node *n, Factors *f, int lead, FactorKind kind, const char *in,
                   const char *out)
{
    const Type *t = &n->in[0]->type;
    for (int d = 0; d < t->rank; d++) {
        if (t->dim[d] == 1)
            continue;
        int k = factor_new(f, d < lead ? kind : FACTOR_REPLICATE, t->dim[d]), axis;
        for (int i = 0; i < n->nin; i++)
            if ((axis = letter_axis(in[i], d, lead)) >= 0)
                axis_add(&f->in[i], axis, k);
        for (int o = 0; o < n->nout; o++)
            if ((axis = letter_axis(out[o], d, lead)) >= 0)
                axis_add(&f->out[o], axis, k);
    }
}

static void replicate_axes(Factors *f, Axes *x, const Type *t)
{
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] != 1 && f->count < MAX_FACTOR)
            axis_add(x, d, factor_new(f, FACTOR_REPLICATE, t->dim[d]));
}

void factors_whole(const Node *n, Factors *f)
{
    for (int i = 0; i < n->nin; i++)
        replicate_axes(f, &f->in[i], &n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        replicate_axes(f, &f->out[k], &n->out[k]->type);
}

static void whole_axis(Factors *f, Axes *x, int64_t size)
{
    if (size != 1)
        axis_add(x, 0, factor_new(f, FACTOR_REPLICATE, size));
}

void factors_inner(const Node *n, Factors *f)
{
    const Type *t = &n->out[0]->type;
    for (int i = 0; i < n->nin && t->rank; i++)
        whole_axis(f, &f->in[i], n->in[i]->type.dim[0]);
    if (t->rank)
        whole_axis(f, &f->out[0], t->dim[0]);
    for (int d = 1; d < t->rank; d++) {
        int k = factor_new(f, FACTOR_PARALLEL, t->dim[d]);
        for (int i = 0; i < n->nin; i++)
            axis_add(&f->in[i], d, k);
        axis_add(&f->out[0], d, k);
    }
}

Factors *node_factors(Arena *a, const Node *n)
{
    Factors *f = NEW(a, Factors);
    f->in = NEWN(a, Axes, n->nin);
    f->out = NEWN(a, Axes, n->nout);
    if (n->op->rules->factors) {
        n->op->rules->factors(n, f);
    } else if (n->op->class == CLASS_POINTWISE) {
        factors_elementwise(n, f);
    } else {
        factors_whole(n, f);
    }
    return f;
}

/* ---- parts ---- */

Attr *part_attr(const Part *p)
{
    int count = op_nattr(p->n->op);
    Attr *attr = NEWN(p->b->g->a, Attr, count);
    return count ? memcpy(attr, p->n->attr, sizeof *attr * (size_t)count) : attr;
}

void part_with(Part *p, const Attr *attr, int nin, Value *const *in)
{
    const Node *n = p->n;
    const char **names = graph_fresh_results(p->b->g, n, "");
    Node *m =
        emit_named(p->b, n->op, nin, in, attr ? attr : n->attr, NULL, n->stream, names, n->nout);
    memcpy(p->out, m->out, sizeof *p->out * (size_t)n->nout);
}

Value *part_start(const Part *p, int factor)
{
    if (p->start[factor] || p->size[factor] >= p->f->factor[factor].size)
        return p->start[factor];
    return emit_full(p->b, 0, I64);
}

void part_same(Part *p, const Attr *attr)
{
    int nin = p->n->nin;
    Value **in = NEWN(p->b->g->a, Value *, nin + p->f->count);
    for (int i = 0; i < nin; i++)
        in[i] = p->in[i];
    for (int k = 0; k < p->f->count; k++) {
        const Factor *x = &p->f->factor[k];
        Value *start = x->placed ? part_start(p, k) : p->start[k];
        if (x->offset >= 0 && start)
            in[x->offset] = emit1(p->b, "add", IN(in[x->offset], start), NOATTRS);
        else if (x->placed && start)
            in[nin++] = start;
    }
    part_with(p, attr, nin, in);
}

int64_t part_size(const Axes *x, int axis, const int64_t *size)
{
    int64_t dim = 1;
    for (int i = 0; i < x->n[axis]; i++)
        dim *= size[x->f[axis][i]];
    return dim;
}

int64_t *part_dims(const Part *p)
{
    int rank = p->n->out[0]->type.rank;
    int64_t *dim = NEWN(p->b->g->a, int64_t, rank);
    for (int d = 0; d < rank; d++)
        dim[d] = part_size(&p->f->out[0], d, p->size);
    return dim;
}

void part_shape(Part *p, int index)
{
    Attr *attr = part_attr(p);
    attr[index].i = p->n->out[0]->type.rank;
    attr[index].ints = part_dims(p);
    part_same(p, attr);
}

void node_part(Part *p)
{
    if (p->n->op->rules->part)
        p->n->op->rules->part(p);
    else
        part_same(p, NULL);
}
