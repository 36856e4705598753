/* view, squeeze, unsqueeze, detach, alias; and what all view ops share (permute.c, expand.c,
 * slice.c). A view op gives the same elements under another shape. Shapes and names as in ATen; any
 * dtype; sizes of 0 are legal; no arithmetic, so the bits are the same however it is done.
 *
 * A view costs nothing if strides can address its result: the rule `view` tells. If they cannot, or
 * a reader needs it dense, the copy kernel materialises it; `cost` is that of the copy. `ref` maps
 * each result position to its source, independently of that rule.
 *
 * Factors of reshapes: both shapes are cut from the right into common divisors: [B*T, C] against
 * [B, T, H, D] has the factors B, T, H, D, and each axis is a row-major product of them. What does
 * not divide ([6, 4] against [4, 6]) must stay whole.
 *
 * squeeze drops the named axes that have size 1 and keeps the others, as ATen's squeeze.dims. */
#include "view.h"

#include <string.h>

enum { SIZE, DIM = 0 };

/* ---- what view ops share ---- */

Cost view_cost(const Node *n)
{
    double nbytes = 0;
    for (int k = 0; k < n->nout; k++)
        nbytes += (double)type_nbytes(&n->out[k]->type);
    return (Cost){.nread = nbytes, .nwrite = nbytes};
}

void view_factor_out(const Node *n, Factors *f, FactorKind kind, int k, int e)
{
    int64_t size = n->out[k]->type.dim[e];
    if (size != 1)
        axis_add(&f->out[k], e, factor_new(f, kind, size));
}

void view_factor(const Node *n, Factors *f, FactorKind kind, int i, int k, int e)
{
    if (n->out[k]->type.dim[e] == 1)
        return;
    view_factor_out(n, f, kind, k, e);
    axis_add(&f->in[0], i, f->count - 1);
}

void whole_axis(Factors *f, Axes *x, int axis, int64_t size)
{
    int k = 0;
    if (size == 1)
        return;
    while (k < f->count && (f->factor[k].kind != FACTOR_REPLICATE || f->factor[k].size != size))
        k++;
    if (k < MAX_FACTOR)
        axis_add(x, axis, k < f->count ? k : factor_new(f, FACTOR_REPLICATE, size));
}

int64_t unit_divide(int64_t unit, int64_t x)
{
    while (x) {
        int64_t rest = unit % x;
        unit = x;
        x = rest;
    }
    return unit;
}

int unit_new(Factors *f, int64_t unit)
{
    return unit > 1 ? factor_new(f, FACTOR_PARALLEL, unit) : NO_FACTOR;
}

int unit_of_runs(Factors *f, int64_t unit, int count, int64_t size)
{
    return count <= 8 || unit * count == size ? unit_new(f, unit) : NO_FACTOR;
}

void unit_axis(Factors *f, Axes *x, int axis, int64_t size, int unit)
{
    whole_axis(f, x, axis, unit == NO_FACTOR ? size : size / f->factor[unit].size);
    if (unit != NO_FACTOR)
        axis_add(x, axis, unit);
}

int64_t unit_part(const Part *p, const Axes *x, int axis, int64_t at)
{
    int unit = x->n[axis] ? x->f[axis][x->n[axis] - 1] : NO_FACTOR;
    if (unit == NO_FACTOR || p->f->factor[unit].kind != FACTOR_PARALLEL)
        return at;
    return at / p->f->factor[unit].size * p->size[unit];
}

static bool accepts_any(const Call *c)
{
    (void)c;
    return true;
}

bool view_operand(const Call *c, int k, Tensor *from)
{
    Layout in = {0}, out = {0};
    *from = c->in[0];
    memcpy(in.stride, from->stride, sizeof in.stride);
    if (!c->node->op->rules->view(c->node, k, &in, &out))
        return false;
    from->data += out.offset * dtype_size(from->dtype);
    from->rank = c->out[k].rank;
    memcpy(from->dim, c->out[k].dim, sizeof from->dim);
    memcpy(from->stride, out.stride, sizeof from->stride);
    return true;
}

/* A reshape without strides is a dense copy in the operand's own shape. */
static int run_copy(Call *c)
{
    for (int k = 0; k < c->nout; k++) {
        Tensor to = c->out[k], from;
        if (!view_operand(c, k, &from)) {
            to.rank = from.rank;
            memcpy(to.dim, from.dim, sizeof to.dim);
            tensor_fill_strides(&to);
        }
        strided_copy(&to, &from);
    }
    return 0;
}

const Kernel view_copy[] = {{.name = "copy", .accepts = accepts_any, .run = run_copy}, {0}};

static void copy_element(const Tensor *y, int64_t to, const Tensor *x, int64_t from)
{
    int64_t size = dtype_size(x->dtype);
    memcpy(y->data + to * size, x->data + from * size, (size_t)size);
}

int view_ref(Call *c, ViewSource *source)
{
    for (int k = 0; k < c->nout; k++) {
        const Tensor *y = &c->out[k];
        int64_t ix[TN_RANK] = {0}, from[TN_RANK] = {0};
        if (tensor_nelem(y) == 0)
            continue;
        do {
            source(c->node, k, ix, from);
            copy_element(y, tensor_index(y, ix), &c->in[0], tensor_index(&c->in[0], from));
        } while (next_index(y->rank, y->dim, ix));
    }
    return 0;
}

/* ---- reshapes: row-major order stays ---- */

static int ref_reshape(Call *c)
{
    for (int64_t i = 0; i < tensor_nelem(&c->out[0]); i++)
        copy_element(&c->out[0], tensor_linear(&c->out[0], i), &c->in[0],
                     tensor_linear(&c->in[0], i));
    return 0;
}

static bool is_reshape(const Node *n)
{
    return node_is(n, OP_view) || node_is(n, OP_squeeze) || node_is(n, OP_unsqueeze);
}

/* The value that a chain of reshapes starts from. */
static Value *reshape_source(Value *x)
{
    while (is_reshape(x->def))
        x = x->def->in[0];
    return x;
}

/* Reshapes that come back to the shape they started from. */
static Value *fold_reshape(Build *b, Node *n)
{
    (void)b;
    Value *x = reshape_source(n->in[0]);
    if (type_equal(&x->type, &n->out[0]->type))
        return x;
    return type_equal(&n->in[0]->type, &n->out[0]->type) ? n->in[0] : NULL;
}

/* Operand axes that lie as one are a run; result axes are taken from the right, each from within
 * one run. False where a result axis would span two runs. */
static bool reshape_strides(const Type *t, const int64_t *stride, const Type *u, int64_t *out)
{
    int e = u->rank - 1, d = t->rank - 1;
    int64_t step = 1;
    while (d >= 0 && type_nelem(t)) {
        int64_t run = t->dim[d];
        step = stride[d--];
        for (; d >= 0 && run > 1 && (t->dim[d] == 1 || stride[d] == step * run); d--)
            run *= t->dim[d];
        for (; run > 1; e--) {
            if (run % u->dim[e])
                return false;
            out[e] = step;
            step *= u->dim[e];
            run /= u->dim[e];
        }
    }
    for (; e >= 0; e--) {
        out[e] = step;
        step *= u->dim[e];
    }
    return true;
}

static bool view_reshape(const Node *n, int k, const Layout *in, Layout *out)
{
    out->offset = in->offset;
    return reshape_strides(&n->in[0]->type, in->stride, &n->out[k]->type, out->stride);
}

/* ---- view ---- */

static const AttrField view_attrs[] = {{.name = "size", .kind = ATTR_INTS, .required = true}, {0}};

static int view_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *size = &n->attr[SIZE];
    const Type *x = &n->in[0]->type;
    int64_t known = 1, all = type_nelem(x);
    int guess = -1;
    if (size->i > TN_RANK)
        fail_node(g, n, "size: expected at most %d axes, found %lld", TN_RANK, (long long)size->i);
    Type y = type_make(x->dtype, (int)size->i, size->ints);
    for (int d = 0; d < y.rank; d++) {
        if (y.dim[d] == -1 && guess < 0)
            guess = d;
        else if (y.dim[d] < 0)
            fail_node(g, n, "size: expected sizes and at most one -1, found %lld on axis %d",
                      (long long)y.dim[d], d);
        else if (__builtin_mul_overflow(known, y.dim[d], &known))
            fail_node(g, n, "size: too large");
    }
    if (guess >= 0 && (known == 0 || all % known))
        fail_node(g, n, "size: no size for -1 on axis %d makes %lld elements of %s", guess,
                  (long long)all, type_text(g->a, x));
    if (guess >= 0)
        y.dim[guess] = all / known;
    else if (known != all)
        fail_node(g, n, "size: expected %lld elements as in %s, found %s", (long long)all,
                  type_text(g->a, x), type_text(g->a, &y));
    out[0] = y;
    return 1;
}

/* dy in the operand's shape; axis 0 is left to inference, so that a graph can be resized. */
static void view_diff(Grad *d)
{
    Type t = d->n->in[0]->type;
    if (t.rank && type_nelem(&t))
        t.dim[0] = -1;
    d->dx[0] = emit1(d->b, "view", IN(d->dy[0]), ATTRS(A_INTS("size", t.rank, t.dim)));
}

/* How far the factoring has come in one of the two shapes. */
typedef struct Factoring {
    const Type *t;
    Axes axes;    /* factors, minor first until turned round */
    int d;        /* axis in work; -1 past the end */
    int64_t left; /* of its size */
} Factoring;

static Factoring side_of(const Type *t)
{
    return (Factoring){.t = t, .d = t->rank, .left = 1};
}

/* Goes on to the next axis to the left that has a size. */
static void side_next(Factoring *s)
{
    while (s->left == 1 && --s->d >= 0)
        s->left = s->t->dim[s->d];
}

static void side_take(Factoring *s, int factor, int64_t size)
{
    axis_add(&s->axes, s->d, factor);
    s->left /= size;
}

/* The rest of a group whose axes do not divide: whole, up to where both sides have as much. */
static void take_whole(Factors *f, Factoring *s, Factoring *t)
{
    int64_t m = 1, k = 1;
    do {
        Factoring *less = m <= k ? s : t;
        side_next(less);
        int64_t size = less->left;
        *(less == s ? &m : &k) *= size;
        side_take(less, factor_new(f, FACTOR_REPLICATE, size), size);
    } while (m != k);
}

static void turn_round(Axes *to, const Axes *from)
{
    for (int d = 0; d < TN_RANK; d++)
        for (int i = from->n[d] - 1; i >= 0; i--)
            axis_add(to, d, from->f[d][i]);
}

static void factors_reshape(const Node *n, Factors *f)
{
    Factoring s = side_of(&n->in[0]->type), t = side_of(&n->out[0]->type);
    if (type_nelem(s.t) == 0) { /* nothing to divide: each axis on its own */
        for (int d = 0; d < s.t->rank; d++)
            axis_add(&f->in[0], d, factor_new(f, FACTOR_REPLICATE, s.t->dim[d]));
        for (int d = 0; d < t.t->rank; d++)
            axis_add(&f->out[0], d, factor_new(f, FACTOR_REPLICATE, t.t->dim[d]));
        return;
    }
    for (;;) {
        side_next(&s);
        side_next(&t);
        if (s.d < 0 && t.d < 0)
            break;
        int64_t size = MIN(s.left, t.left);
        if (s.left % size || t.left % size) {
            take_whole(f, &s, &t);
        } else {
            int x = factor_new(f, FACTOR_PARALLEL, size);
            side_take(&s, x, size);
            side_take(&t, x, size);
        }
    }
    turn_round(&f->in[0], &s.axes);
    turn_round(&f->out[0], &t.axes);
}

static void view_part(Part *p)
{
    part_shape(p, SIZE);
}

static Value *view_fold(Build *b, Node *n)
{
    Value *x = fold_reshape(b, n);
    if (x)
        return x;
    x = reshape_source(n->in[0]);
    if (x == n->in[0])
        return NULL;
    return emit1(b, "view", IN(x), ATTRS(A_INTS("size", n->attr[SIZE].i, n->attr[SIZE].ints)));
}

const OpRules op_view = {
    .math = "y = x, row-major, in the shape `size` (one -1 is inferred)",
    .example = "f32[2, 8, 4] size=[-1, 4]",
    .attrs = view_attrs,
    .infer = view_infer,
    .diff = view_diff,
    .cost = view_cost,
    .factors = factors_reshape,
    .part = view_part,
    .fold = view_fold,
    .view = view_reshape,
    .kernels = view_copy,
    .ref = ref_reshape,
    .alias = "aten.view.default aten._unsafe_view.default aten.reshape.default",
};

/* ---- squeeze, unsqueeze ---- */

static const AttrField squeeze_attrs[] = {{.name = "dim", .kind = ATTR_INTS, .required = true},
                                          {0}};

/* Bit mask of the axes that go: those named that have size 1. */
static unsigned squeezed(const Node *n)
{
    const Type *x = &n->in[0]->type;
    unsigned gone = 0;
    for (int i = 0; i < n->attr[DIM].i; i++) {
        int d = axis_of(n->attr[DIM].ints[i], x->rank);
        if (x->dim[d] == 1)
            gone |= 1u << d;
    }
    return gone;
}

static int squeeze_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    for (int i = 0; i < n->attr[DIM].i; i++)
        need_axis(g, n, n->attr[DIM].ints[i], x->rank);
    unsigned gone = squeezed(n);
    out[0] = (Type){.dtype = x->dtype};
    for (int d = 0; d < x->rank; d++)
        if (!(gone >> d & 1))
            out[0].dim[out[0].rank++] = x->dim[d];
    return 1;
}

static void squeeze_diff(Grad *d)
{
    unsigned gone = squeezed(d->n);
    d->dx[0] = d->dy[0];
    for (int i = 0; i < d->n->in[0]->type.rank; i++)
        if (gone >> i & 1)
            d->dx[0] = emit1(d->b, "unsqueeze", IN(d->dx[0]), ATTRS(A_INT("dim", i)));
}

/* A named axis that is kept for its size stays whole: a part of size 1 would vanish. */
static void squeeze_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    unsigned gone = squeezed(n), named = 0;
    for (int i = 0; i < n->attr[DIM].i; i++)
        named |= 1u << axis_of(n->attr[DIM].ints[i], x->rank);
    for (int d = 0, k = 0; d < x->rank; d++) {
        if (gone >> d & 1)
            continue;
        view_factor(n, f, named >> d & 1 ? FACTOR_REPLICATE : FACTOR_PARALLEL, d, 0, k++);
    }
}

const OpRules op_squeeze = {
    .math = "y = x without those axes of `dim` that have size 1",
    .example = "f32[2, 1, 4] dim=[1]",
    .attrs = squeeze_attrs,
    .infer = squeeze_infer,
    .diff = squeeze_diff,
    .cost = view_cost,
    .factors = squeeze_factors,
    .fold = fold_reshape,
    .view = view_reshape,
    .kernels = view_copy,
    .ref = ref_reshape,
    .alias = "aten.squeeze.dims",
};

static const AttrField unsqueeze_attrs[] = {{.name = "dim", .kind = ATTR_INT, .required = true},
                                            {0}};

static int unsqueeze_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_rank(g, n, 0, 0, TN_RANK - 1);
    int axis = need_axis(g, n, n->attr[DIM].i, x->rank + 1);
    out[0] = (Type){.dtype = x->dtype, .rank = x->rank + 1};
    for (int k = 0; k < out[0].rank; k++)
        out[0].dim[k] = k == axis ? 1 : x->dim[k - (k > axis)];
    return 1;
}

static void unsqueeze_diff(Grad *d)
{
    int64_t axis = axis_of(d->n->attr[DIM].i, d->n->out[0]->type.rank);
    d->dx[0] = emit1(d->b, "squeeze", IN(d->dy[0]), ATTRS(A_INTS("dim", 1, &axis)));
}

static void unsqueeze_factors(const Node *n, Factors *f)
{
    int rank = n->out[0]->type.rank, axis = axis_of(n->attr[DIM].i, rank);
    for (int k = 0; k < rank; k++)
        if (k != axis)
            view_factor(n, f, FACTOR_PARALLEL, k - (k > axis), 0, k);
}

const OpRules op_unsqueeze = {
    .math = "y = x with a new axis of size 1 at `dim`",
    .example = "f32[2, 4] dim=1",
    .attrs = unsqueeze_attrs,
    .infer = unsqueeze_infer,
    .diff = unsqueeze_diff,
    .cost = view_cost,
    .factors = unsqueeze_factors,
    .fold = fold_reshape,
    .view = view_reshape,
    .kernels = view_copy,
    .ref = ref_reshape,
    .alias = "aten.unsqueeze.default",
};

/* ---- detach, alias: the operand itself ---- */

static int same_infer(const Graph *g, const Node *n, Type *out)
{
    (void)g;
    out[0] = n->in[0]->type;
    return 1;
}

/* Only for a graph that is not to be differentiated any more: canonicalize sees to that. */
static Value *same_fold(Build *b, Node *n)
{
    (void)b;
    return n->in[0];
}

/* No gradient passes: its gradient is zero. */
static void detach_diff(Grad *d)
{
    (void)d;
}

const OpRules op_detach = {
    .math = "y = x; no gradient passes (folded away once gradients are built)",
    .example = "f32[4, 6]",
    .infer = same_infer,
    .diff = detach_diff,
    .cost = view_cost,
    .factors = factors_elementwise,
    .fold = same_fold,
    .view = view_reshape,
    .kernels = view_copy,
    .ref = ref_reshape,
    .alias = "aten.detach.default",
};

enum { GRADIENT = 0 };

static const AttrField alias_attrs[] = {{.name = "gradient", .kind = ATTR_STR, .required = true},
                                        {0}};

static bool gradient_is(const Node *n, const char *s)
{
    return !strcmp(n->attr[GRADIENT].s, s);
}

static int alias_infer(const Graph *g, const Node *n, Type *out)
{
    if (!gradient_is(n, "pass") && !gradient_is(n, "stop") && !gradient_is(n, "unknown"))
        fail_node(g, n, "gradient: expected \"pass\", \"stop\" or \"unknown\", found \"%s\"",
                  n->attr[GRADIENT].s);
    return same_infer(g, n, out);
}

static void alias_diff(Grad *d)
{
    if (gradient_is(d->n, "unknown"))
        fail_node(d->b->g, d->n,
                  "whether a gradient passes is not known: PyTorch writes both x[:] and x.detach() "
                  "as alias; expected gradient=\"pass\" or \"stop\" here, as import fx gives it "
                  "with --alias pass or --alias stop");
    if (gradient_is(d->n, "pass"))
        d->dx[0] = d->dy[0];
}

bool ends_gradient(const Node *n)
{
    return node_is(n, OP_detach) || (node_is(n, OP_alias) && !gradient_is(n, "pass"));
}

bool stops_gradient(const Node *n)
{
    return node_is(n, OP_detach) || (node_is(n, OP_alias) && gradient_is(n, "stop"));
}

const OpRules op_alias = {
    .math = "y = x; `gradient` says whether one passes: pass, stop, or unknown, an error of grad",
    .example = "f32[4, 6] gradient=\"pass\"",
    .attrs = alias_attrs,
    .infer = alias_infer,
    .diff = alias_diff,
    .cost = view_cost,
    .factors = factors_elementwise,
    .fold = same_fold,
    .view = view_reshape,
    .kernels = view_copy,
    .ref = ref_reshape,
};
