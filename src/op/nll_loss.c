/* nll_loss_forward and nll_loss_backward, ATen's negative log-likelihood of x[N, C],
 * log-probabilities of C classes, for the classes target i64[N], where the weight w of a class is 1
 * but for weight[C]:
 *
 *   reduction 0: loss[i] = -w[t] x[i, t], t = target[i];  total_weight = 0
 *   reduction 2: loss = sum of them;                      total_weight = sum of w[t]
 *   reduction 1: loss = that sum / total_weight, NaN where nothing counts
 *   dx[i, t] = -w[t] dloss, / total_weight for reduction 1; 0 elsewhere
 *
 * Rows whose target is ignore_index count as 0; any other target outside of [0, C) is an error of
 * the run. Operands: x, target [, weight]; and dloss, x, target, total_weight [, weight]. Where x
 * has 16 bits, the loss and total_weight may be f32, by out_dtype, and so may what the backward
 * reads of them. The backward reads x's type alone. The weights have no gradient, as in ATen.
 *
 * Numerics: sums in double, row after row. The forward reads one element a row, so its reference
 * is its kernel; the backward's clears rows in parallel and sets one element in each. */
#include "op.h"

#include <math.h>
#include <string.h>

enum { REDUCTION, IGNORE_INDEX, OUT_DTYPE };
enum { DLOSS, X, TARGET, TOTAL, WEIGHT }; /* of the backward */

static const AttrField attrs[] = {
    {"reduction", ATTR_INT, .i = REDUCE_MEAN},
    {"ignore_index", ATTR_INT, .i = -100},
    {"out_dtype", ATTR_DTYPE, .i = NDTYPE},
    {0},
};

static const AttrField backward_attrs[] = {
    {"reduction", ATTR_INT, .i = REDUCE_MEAN},
    {"ignore_index", ATTR_INT, .i = -100},
    {0},
};

/* x is operand i, target the next, the weights operand w where there are so many. Returns the type
 * of the loss. */
static Type need_operands(const Graph *g, const Node *n, int i, int w)
{
    int64_t reduction = n->attr[REDUCTION].i;
    const Type *x = &n->in[i]->type;
    need_float(g, n, i);
    need_rank(g, n, i, 2, 2);
    Type target = type_make(I64, 1, x->dim), weight = type_make(x->dtype, 1, x->dim + 1);
    need_type(g, n, i + 1, &target);
    if (w < n->nin)
        need_type(g, n, w, &weight);
    if (reduction < REDUCE_NONE || reduction > REDUCE_SUM)
        fail_node(g, n, "reduction: expected 0 (none), 1 (mean) or 2 (sum), found %lld",
                  (long long)reduction);
    return type_make(x->dtype, reduction == REDUCE_NONE, x->dim);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    out[0] = need_operands(g, n, 0, 2);
    out[0].dtype = need_out_dtype(g, n, "out_dtype", out[0].dtype);
    out[1] = type_make(out[0].dtype, 0, NULL);
    return 2;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    Type loss = need_operands(g, n, X, WEIGHT);
    if (widens(loss.dtype, n->in[DLOSS]->type.dtype))
        loss.dtype = n->in[DLOSS]->type.dtype;
    Type total = type_make(loss.dtype, 0, NULL);
    need_type(g, n, DLOSS, &loss);
    need_type(g, n, TOTAL, &total);
    out[0] = n->in[X]->type;
    return 1;
}

static void diff(Grad *d)
{
    Node *n = d->n;
    if (d->dy[1])
        fail_node(d->b->g, n, "has no gradient through its output 1, the total weight");
    if (n->nin == 3 && d->need[2])
        fail_node(d->b->g, n, "has no gradient for its operand 2, the weights");
    Value *in[] = {d->dy[0], n->in[0], n->in[1], n->out[1], n->nin == 3 ? n->in[2] : NULL};
    d->dx[0] = emit1(d->b, "nll_loss_backward", n->nin + 2, in,
                     ATTRS(A_INT("reduction", n->attr[REDUCTION].i),
                           A_INT("ignore_index", n->attr[IGNORE_INDEX].i)));
}

static Cost cost(const Node *n)
{
    double rows = (double)n->in[0]->type.dim[0];
    double nbytes = (double)(type_nbytes(&n->out[0]->type) + type_nbytes(&n->out[1]->type));
    return (Cost){2 * rows, 16 * rows, nbytes};
}

static Cost backward_cost(const Node *n)
{
    double rows = (double)n->in[X]->type.dim[0];
    return (Cost){2 * rows, 16 * rows, (double)type_nbytes(&n->out[0]->type)};
}

static void axis(Factors *f, FactorKind kind, int64_t size, Axes *const *x, const int *at)
{
    if (size == 1)
        return;
    int k = factor_new(f, kind, size);
    for (int i = 0; x[i]; i++)
        axis_add(x[i], at[i], k);
}

static void factors(const Node *n, Factors *f)
{
    int64_t reduction = n->attr[REDUCTION].i;
    const Type *x = &n->in[0]->type;
    Axes *loss = reduction == REDUCE_NONE ? &f->out[0] : NULL;
    axis(f, reduction == REDUCE_NONE ? FACTOR_PARALLEL : FACTOR_SUM, x->dim[0],
         (Axes *[]){&f->in[0], &f->in[1], loss, NULL}, (int[]){0, 0, 0});
    if (f->count && reduction == REDUCE_MEAN)
        factor_partials(f, 0, 2, FACTOR_SUM, FACTOR_SUM);
    axis(f, FACTOR_REPLICATE, x->dim[1],
         (Axes *[]){&f->in[0], n->nin == 3 ? &f->in[2] : NULL, NULL}, (int[]){1, 0});
}

/* Parts of a mean are sums, which keep what 16 bits would round. */
static void part(Part *p)
{
    Attr *attr = part_attr(p);
    DType d = p->in[0]->type.dtype;
    if (p->partials) {
        attr[REDUCTION].i = REDUCE_SUM;
        if (dtype_size(d) == 2)
            attr[OUT_DTYPE].i = F32;
    }
    part_same(p, attr);
}

static void finish(Part *p, Value *const *merged)
{
    const Node *n = p->n;
    Value *mean = emit1(p->b, "div", IN(merged[0], merged[1]), NOATTRS);
    p->out[0] = emit_cast(p->b, mean, n->out[0]->type.dtype);
    p->out[1] = emit_cast(p->b, merged[1], n->out[1]->type.dtype);
}

static void backward_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[X]->type;
    Axes *loss = n->attr[REDUCTION].i == REDUCE_NONE ? &f->in[DLOSS] : NULL;
    axis(f, FACTOR_PARALLEL, x->dim[0],
         (Axes *[]){&f->in[X], &f->in[TARGET], &f->out[0], loss, NULL}, (int[]){0, 0, 0, 0});
    axis(f, FACTOR_REPLICATE, x->dim[1],
         (Axes *[]){&f->in[X], &f->out[0], n->nin > WEIGHT ? &f->in[WEIGHT] : NULL, NULL},
         (int[]){1, 1, 0});
}

/* ---- ref ---- */

/* The class of row i, or -1 where it does not count; -2 after a failed run. */
static int64_t class_of(Call *c, const Tensor *target, int64_t i, int64_t classes)
{
    int64_t t = tensor_int(target, i * target->stride[0]);
    if (t == c->node->attr[IGNORE_INDEX].i)
        return -1;
    if (t >= 0 && t < classes)
        return t;
    run_fail(c, "target %lld at row %lld: expected 0 to %lld, or %lld", (long long)t, (long long)i,
             (long long)classes - 1, (long long)c->node->attr[IGNORE_INDEX].i);
    return -2;
}

static double weight_of(const Tensor *weight, int64_t t)
{
    return weight ? tensor_get(weight, t * weight->stride[0]) : 1;
}

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *weight = c->nin == 3 ? &c->in[2] : NULL, *loss = &c->out[0];
    int64_t reduction = c->node->attr[REDUCTION].i;
    double sum = 0, total = 0;
    for (int64_t i = 0; i < x->dim[0]; i++) {
        int64_t t = class_of(c, &c->in[1], i, x->dim[1]);
        if (t < -1)
            return -1;
        double w = t < 0 ? 0 : weight_of(weight, t);
        double term = t < 0 ? 0 : -w * tensor_get(x, i * x->stride[0] + t * x->stride[1]);
        if (reduction == REDUCE_NONE)
            tensor_set(loss, i * loss->stride[0], term);
        sum += term;
        total += w;
    }
    if (reduction != REDUCE_NONE)
        tensor_set(loss, 0, reduction == REDUCE_MEAN ? sum / total : sum);
    tensor_set(&c->out[1], 0, reduction == REDUCE_NONE ? 0 : total);
    return 0;
}

/* Sets the one element of each row. */
static int set_rows(Call *c)
{
    const Tensor *dy = &c->in[DLOSS], *dx = &c->out[0];
    const Tensor *weight = c->nin > WEIGHT ? &c->in[WEIGHT] : NULL;
    bool mean = c->node->attr[REDUCTION].i == REDUCE_MEAN;
    double total = mean ? tensor_get(&c->in[TOTAL], 0) : 1;
    for (int64_t i = 0; i < dx->dim[0]; i++) {
        int64_t t = class_of(c, &c->in[TARGET], i, dx->dim[1]);
        double slope = tensor_get(dy, dy->rank ? i * dy->stride[0] : 0);
        if (t < -1)
            return -1;
        if (t >= 0)
            tensor_set(dx, i * dx->stride[0] + t * dx->stride[1],
                       -weight_of(weight, t) * slope / total);
    }
    return 0;
}

static int backward_ref(Call *c)
{
    const Tensor *dx = &c->out[0];
    for (int64_t i = 0; i < tensor_nelem(dx); i++)
        tensor_set(dx, tensor_linear(dx, i), 0);
    return set_rows(c);
}

/* ---- kernel ---- */

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static void clear(void *arg, int64_t lo, int64_t hi)
{
    const Tensor *dx = &((const Call *)arg)->out[0];
    int64_t row = dx->dim[1] * dtype_size(dx->dtype);
    memset(dx->data + lo * row, 0, (size_t)((hi - lo) * row));
}

static int backward_run(Call *c)
{
    const Tensor *dx = &c->out[0];
    par_for(dx->dim[0], MAX(1, 65536 / MAX(dx->dim[1], 1)), clear, c);
    return set_rows(c);
}

static const Kernel backward_kernels[] = {{.name = "rows", .accepts = accepts, .run = backward_run},
                                          {0}};

const OpRules op_nll_loss_forward = {
    .math = "loss = mean (reduction 1), sum (2) or each (0) of -weight[t] x[i, t], t = target[i]",
    .example = "f32[4, 6] i64[4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = part,
    .finish = finish,
    .ref = ref,
    .alias = "aten.nll_loss_forward.default",
};

const OpRules op_nll_loss_backward = {
    .math = "dx[i, t] = -weight[t] dloss (/ total_weight for reduction 1), t = target[i]; else 0",
    .example = "f32[] f32[4, 6] i64[4] f32[]",
    .attrs = backward_attrs,
    .infer = backward_infer,
    .cost = backward_cost,
    .factors = backward_factors,
    .kernels = backward_kernels,
    .ref = backward_ref,
    .alias = "aten.nll_loss_backward.default",
};
