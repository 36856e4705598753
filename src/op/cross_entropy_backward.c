/* cross_entropy_backward: the gradient of cross_entropy's loss in the logits, see there.
 *
 * With an operand `first` the logits are those of the classes from `first` on, of V = `classes` in
 * all: labels elsewhere only have their share of the softmax. Columns after the last class have
 * the gradient 0. */
#include "cross_entropy.h"

enum { CLASSES = SMOOTHING + 1, PADDING, FIRST = 5 };

static const AttrField attrs[] = {
    {"ignore_index", ATTR_INT, .i = -100},   {"z_loss", ATTR_FLOAT, .f = 0},
    {"label_smoothing", ATTR_FLOAT, .f = 0}, {"classes", ATTR_INT, .i = 0},
    {"padding", ATTR_INT, .i = 0},           {0},
};

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[1]->type;
    need_logits(g, n, 1, 4, FIRST);
    need_z_loss(g, n, n->attr[Z_LOSS].f);
    need_smoothing(g, n, n->attr[SMOOTHING].f);
    need_classes(g, n, n->attr[CLASSES].i);
    need_padding(g, n, n->attr[PADDING].i, x);
    if (n->attr[PADDING].i && (n->attr[CLASSES].i || n->nin > FIRST))
        fail_node(g, n, "padding: expected 0 where the logits are of some classes");
    Type loss = loss_type(x, 0), lse = loss_type(x, 1);
    need_type(g, n, 0, &loss);
    need_type(g, n, 3, &lse);
    out[0] = *x;
    return 1;
}

/* An exponential counts as 20 operations. */
static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 24 * (double)type_nelem(&n->in[1]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    int64_t rows = n->in[1]->type.dim[0], classes = n->in[1]->type.dim[1];
    if (rows != 1) {
        int k = factor_new(f, FACTOR_PARALLEL, rows);
        for (int i = 1; i < 4; i++)
            axis_add(&f->in[i], 0, k);
        axis_add(&f->out[0], 0, k);
    }
    if (classes != 1) {
        int k = factor_new(f, FACTOR_PARALLEL, classes);
        f->factor[k].offset = n->nin > FIRST ? FIRST : NO_FACTOR;
        f->factor[k].placed = n->nin == FIRST;
        axis_add(&f->in[1], 1, k);
        axis_add(&f->out[0], 1, k);
    }
}

/* A part of the columns knows by their number which are no classes. */
static void part(Part *p)
{
    Attr *attr = part_attr(p);
    const Axes *x = &p->f->in[1];
    int k = x->n[1] ? x->f[1][0] : -1;
    bool cut = k >= 0 && (p->start[k] || p->size[k] < p->f->factor[k].size);
    if (!attr[CLASSES].i && cut)
        attr[CLASSES].i = p->n->in[1]->type.dim[1] - attr[PADDING].i;
    attr[PADDING].i = cut ? 0 : attr[PADDING].i;
    part_same(p, attr);
}

/* The number of all classes. */
static int64_t classes_of(const Call *c)
{
    int64_t classes = c->node->attr[CLASSES].i;
    return classes ? classes : c->in[1].dim[1] - c->node->attr[PADDING].i;
}

/* How many of the columns are classes. */
static int64_t columns_of(const Call *c)
{
    return classes_within(c->in[1].dim[1], first_of(c, FIRST), classes_of(c));
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[1], *labels = &c->in[2], *lse = &c->in[3], *dx = &c->out[0];
    if (check_labels(c, labels, &c->in[4], classes_of(c)))
        return -1;
    const Attr *a = c->node->attr;
    double scale = tensor_get(&c->in[0], 0) / (double)tensor_int(&c->in[4], 0);
    double z = a[Z_LOSS].f, e = a[SMOOTHING].f;
    for (int64_t i = 0; i < x->dim[0]; i++) {
        int64_t label = label_at(labels, i), at = class_of(label, first_of(c, FIRST), x->dim[1]);
        double row = label == a[IGNORE_INDEX].i ? 0 : scale,
               s = tensor_get(lse, i * lse->stride[0]);
        int64_t n = columns_of(c);
        for (int64_t j = 0; j < x->dim[1]; j++) {
            double p = exp(tensor_get(x, i * x->stride[0] + j * x->stride[1]) - s);
            double target = (1 - e) * (j == at) + e / (double)classes_of(c);
            double grow = z > 0 ? 1 + 2 * z * s : 1;
            tensor_set(dx, i * dx->stride[0] + j * dx->stride[1],
                       row && j < n ? row * (p * grow - target) : 0);
        }
    }
    return 0;
}

/* ---- kernel: contiguous labels and lse; f32 or bf16 logits, rows of any stride ---- */

static bool accepts(const Call *c)
{
    return logits_accepted(&c->in[1]) && tensor_contiguous(&c->in[3]);
}

/* Constants of a row: dx = (exp(x - lse) grow - target) scale. Without z-loss and smoothing
 * grow is 1, other 0 and target 1, and the bits are those of the plain formula. */
typedef struct RowGrad {
    float lse, grow, target, other, scale; /* target: at the label; other: everywhere else */
} RowGrad;

/* Near enough for bf16. */
INLINE float near_grad(float x, const RowGrad *r)
{
    return (v_near_exp(x - r->lse) * r->grow - r->other) * r->scale;
}

/* label: which of the n classes, or -1. */
INLINE void backward_row(const void *x, void *dx, int64_t n, int64_t label, const RowGrad *row,
                         DType d)
{
    const RowGrad r = *row;
    float at_label = 0;
    if (label >= 0)
        at_label = (v_exp(v_load(x, label, d) - r.lse) * r.grow - r.target) * r.scale;
    const BfPair *pair = x;
    int64_t pairs = d == BF16 ? n / 2 : 0;
    INDEPENDENT
    for (int64_t i = 0; i < pairs; i++)
        ((BfPair *)dx)[i] =
            near_pair(near_grad(pair_first(pair[i]), &r), near_grad(pair_second(pair[i]), &r));
    INDEPENDENT
    for (int64_t i = 2 * pairs; i < n; i++) {
        float g = d == BF16 ? near_grad(v_load(x, i, BF16), &r)
                            : (v_exp(v_load(x, i, F32) - r.lse) * r.grow - r.other) * r.scale;
        v_store(dx, i, g, d);
    }
    if (label >= 0)
        v_store(dx, label, at_label, d);
}

KERNEL_FMA(void, backward_f32,
           (const void *x, void *dx, int64_t n, int64_t label, const RowGrad *row),
           (x, dx, n, label, row))
{
    backward_row(x, dx, n, label, row, F32);
}

KERNEL_FMA(void, backward_bf16,
           (const void *x, void *dx, int64_t n, int64_t label, const RowGrad *row),
           (x, dx, n, label, row))
{
    backward_row(x, dx, n, label, row, BF16);
}

static void backward_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *x = &c->in[1];
    const Attr *a = c->node->attr;
    int64_t n = columns_of(c), pad = x->dim[1] - n, first = first_of(c, FIRST);
    double dloss = *f32(&c->in[0]), z = a[Z_LOSS].f, e = a[SMOOTHING].f,
           other = e / (double)classes_of(c);
    RowGrad r = {.target = (float)(1 - e + other),
                 .other = (float)other,
                 .scale = (float)(dloss / (double)*(const int64_t *)c->in[4].data)};
    r.scale = r.scale != r.scale ? NAN : r.scale; /* v_near_bf16 takes no other */
    for (int64_t i = lo; i < hi; i++) {
        int64_t label = label_at(&c->in[2], i);
        void *dx = element(&c->out[0], i * x->dim[1]);
        memset(element(&c->out[0], i * x->dim[1] + n), 0, (size_t)(pad * dtype_size(x->dtype)));
        r.lse = (f32(&c->in[3]))[i];
        r.lse = r.lse != r.lse ? NAN : r.lse;
        r.grow = z > 0 ? (float)(1 + 2 * z * (double)r.lse) : 1;
        if (label == a[IGNORE_INDEX].i)
            memset(dx, 0, (size_t)(n * dtype_size(x->dtype)));
        else
            (x->dtype == F32 ? backward_f32 : backward_bf16)(element(x, i * x->stride[0]), dx, n,
                                                             class_of(label, first, n), &r);
    }
}

static int start(Call *c)
{
    return check_labels(c, &c->in[2], &c->in[4], classes_of(c));
}

static int run(Call *c)
{
    if (start(c))
        return -1;
    par_for(c->in[1].dim[0], row_grain(c->in[1].dim[1]), backward_rows, c);
    return 0;
}

static const RowKernel backward_row_kernel = {
    .in = "araeaa", .out = "r", .lead = logits_lead, .run = backward_rows, .start = start};

static const Kernel kernels[] = {
    {.name = "cross_entropy_backward_rows", .accepts = accepts, .run = run},
    {0},
};

const OpRules op_cross_entropy_backward = {
    .math = "dx = dloss / count (exp(x - lse) (1 + 2 z lse) - (1-e) onehot(label) - e / V), 0 in "
            "rows that do not count",
    .example = "f32[] f32[16, 10] i64[16] f32[16] i64[]",
    .attrs = attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .part = part,
    .inplace = {2},
    .rows = &backward_row_kernel,
    .kernels = kernels,
    .ref = ref,
};
