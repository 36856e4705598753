/* Cross-entropy of logits [N, V] against integer labels [N], a mean over the rows that count.
 *
 *   lse[i] = log sum over j of exp(x[i, j])
 *   loss = sum over rows with label != ignore_index of (lse[i] - x[i, label[i]]) / count
 *   dx[i, j] = dloss / count (exp(x[i, j] - lse[i]) - [j == label[i]]), 0 in ignored rows
 *
 * With label smoothing e (Szegedy et al. 2016, arXiv:1512.00567; as in
 * torch.nn.functional.cross_entropy) the target is 1 - e at the label and e / V everywhere more;
 * with z-loss z (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 5) a row's loss has z lse^2
 * more, so that logits do not drift:
 *
 *   loss = sum of (lse - (1 - e) x[label] - e mean(x[i]) + z lse^2) / count
 *   dx = dloss / count (exp(x - lse) (1 + 2 z lse) - (1 - e) [j == label] - e / V)
 *
 * count is an operand (count_labels), because a row's share is one over the labels of the whole
 * step, however the step is cut into microbatches. loss and lse are f32 (f64 where x is f64).
 *
 * The last `padding` columns are no classes: what is in them does not matter, and their gradient is
 * 0. They are there so that rows are aligned for products and the cut of columns is even
 * (pass/align.c).
 *
 * Where the classes are cut, cross_entropy_part has those from `first` on; there are V = `classes`
 * in all. In rows that count it gives (columns after the last class do not matter; with none
 * before it lse is -inf)
 *
 *   target = ((1 - e) x[label] if label is among them) + e / V sum(x),   lse = log sum exp(x)
 *
 * and the loss follows from the sum of the targets and the log-sum-exp of the lses.
 *
 * Numerics: a row is read once, in blocks that stay in cache, with a running maximum (Milakov and
 * Gimelshein 2018, arXiv:1805.02867); a block is added in LANES partial sums, blocks and rows in
 * double and in order. The softmax is never stored: backward makes it from logits and lse, in the
 * logits' place where the plan says so. No fused body has to give the same bits as these kernels,
 * so their products and sums may be contracted. */
#include "cross_entropy.h"

static const AttrField count_attrs[] = {{"ignore_index", ATTR_INT, .i = -100}, {0}};

static const AttrField attrs[] = {
    {"ignore_index", ATTR_INT, .i = -100},
    {"z_loss", ATTR_FLOAT, .f = 0},
    {"label_smoothing", ATTR_FLOAT, .f = 0},
    {"padding", ATTR_INT, .i = 0},
    {0},
};

enum { PADDING = SMOOTHING + 1 };
enum { PART_SMOOTHING = 1, PART_CLASSES, PART_FIRST = 3 };

static const AttrField part_attrs[] = {
    {"ignore_index", ATTR_INT, .i = -100},
    {"label_smoothing", ATTR_FLOAT, .f = 0},
    {"classes", ATTR_INT, .i = 0},
    {0},
};

static int count_infer(const Graph *g, const Node *n, Type *out)
{
    need_dtype(g, n, 0, I64);
    out[0] = type_make(I64, 0, NULL);
    return 1;
}

Type loss_type(const Type *x, int rank)
{
    return type_make(stat_dtype(x->dtype), rank, x->dim);
}

void need_logits(const Graph *g, const Node *n, int i, int count, int first)
{
    need_float(g, n, i);
    need_rank(g, n, i, 2, 2);
    Type labels = type_make(I64, 1, n->in[i]->type.dim), scalar = type_make(I64, 0, NULL);
    need_type(g, n, i + 1, &labels);
    need_type(g, n, count, &scalar);
    if (n->nin > first)
        need_type(g, n, first, &scalar);
}

void need_smoothing(const Graph *g, const Node *n, double smoothing)
{
    if (!(smoothing >= 0 && smoothing <= 1))
        fail_node(g, n, "label_smoothing: expected 0 to 1, found %g", smoothing);
}

void need_z_loss(const Graph *g, const Node *n, double z)
{
    if (!(z >= 0 && z < INFINITY))
        fail_node(g, n, "z_loss: expected at least 0, found %g", z);
}

void need_classes(const Graph *g, const Node *n, int64_t classes)
{
    if (classes < 0)
        fail_node(g, n, "classes: expected at least 0, found %lld", (long long)classes);
}

void need_padding(const Graph *g, const Node *n, int64_t padding, const Type *x)
{
    if (padding < 0 || (padding && padding >= x->dim[1]))
        fail_node(g, n, "padding: expected 0 to %lld, found %lld", (long long)x->dim[1] - 1,
                  (long long)padding);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_logits(g, n, 0, 2, n->nin);
    need_z_loss(g, n, n->attr[Z_LOSS].f);
    need_smoothing(g, n, n->attr[SMOOTHING].f);
    need_padding(g, n, n->attr[PADDING].i, x);
    out[0] = loss_type(x, 0);
    out[1] = loss_type(x, 1);
    return 2;
}

static int part_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_logits(g, n, 0, 2, PART_FIRST);
    need_smoothing(g, n, n->attr[PART_SMOOTHING].f);
    need_classes(g, n, n->attr[PART_CLASSES].i);
    out[0] = out[1] = loss_type(x, 1);
    return 2;
}

/* The gradient of the logits through the output lse: dlse exp(x - lse). */
static Value *lse_diff(Build *b, const Node *n, Value *dlse)
{
    Value *x = n->in[0], *lse = n->out[1];
    DType stat = lse->type.dtype;
    int64_t column[] = {x->type.dim[0], 1}, pad[] = {0, n->attr[PADDING].i};
    if (pad[1])
        x = emit1(b, "slice", IN(x),
                  ATTRS(A_INT("dim", 1), A_INT("start", 0), A_INT("end", x->type.dim[1] - pad[1])));
    Value *row = emit1(b, "view", IN(lse), ATTRS(A_INTS("size", 2, column)));
    Value *scale = emit1(b, "view", IN(dlse), ATTRS(A_INTS("size", 2, column)));
    Value *below = emit1(b, "sub", IN(emit_cast(b, x, stat), row), NOATTRS);
    Value *softmax = emit1(b, "exp", IN(below), NOATTRS);
    Value *dx = emit_cast(b, emit1(b, "mul", IN(softmax, scale), NOATTRS), x->type.dtype);
    return pad[1] ? emit1(b, "constant_pad_nd", IN(dx), ATTRS(A_INTS("pad", 2, pad))) : dx;
}

static void diff(Grad *d)
{
    Node *n = d->n;
    if (!d->need[0])
        return;
    if (d->dy[0])
        d->dx[0] = emit1(d->b, "cross_entropy_backward",
                         IN(d->dy[0], n->in[0], n->in[1], n->out[1], n->in[2]),
                         ATTRS(A_INT("ignore_index", n->attr[IGNORE_INDEX].i),
                               A_FLOAT("z_loss", n->attr[Z_LOSS].f),
                               A_FLOAT("label_smoothing", n->attr[SMOOTHING].f),
                               A_INT("padding", n->attr[PADDING].i)));
    if (d->dy[1]) {
        Value *part = lse_diff(d->b, n, d->dy[1]);
        d->dx[0] = d->dx[0] ? emit1(d->b, "add", IN(d->dx[0], part), NOATTRS) : part;
    }
}

/* An exponential counts as 20 operations. */
static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 23 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static void count_factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[0]->type.rank, FACTOR_SUM, "x", ".");
}

/* The rows, of one `kind`, and the classes, whose parts give partials; finish() compares labels
 * with ignore_index as `full` has it. */
static void factors_of(const Node *n, Factors *f, FactorKind kind, const char *out)
{
    const Type *x = &n->in[0]->type;
    factors_split(n, f, 1, kind, "xb..", out);
    int64_t ignore = n->attr[IGNORE_INDEX].i;
    if (x->dim[1] == 1 || ignore < -((int64_t)1 << 53) || ignore > (int64_t)1 << 53)
        return;
    Factor *classes = &f->factor[f->in[0].f[1][0]];
    classes->kind = FACTOR_SUM;
    classes->offset = n->nin > PART_FIRST ? PART_FIRST : NO_FACTOR;
    classes->placed = n->nin == PART_FIRST;
    factor_partials(f, f->in[0].f[1][0], 2, FACTOR_SUM, FACTOR_LOGSUMEXP);
}

static void factors(const Node *n, Factors *f)
{
    factors_of(n, f, FACTOR_SUM, ".b");
}

static void part_factors(const Node *n, Factors *f)
{
    factors_of(n, f, FACTOR_PARALLEL, "bb");
    for (int k = 0; k < f->count; k++)
        f->factor[k].results = f->factor[k].npartial > 0;
}

/* Computes, for a part of the classes, what merging needs. */
static void part(Part *p)
{
    const Attr *attr = p->n->attr;
    if (!p->partials) {
        part_same(p, NULL);
        return;
    }
    Value *in[] = {p->in[0], p->in[1], p->in[2], part_start(p, p->f->in[0].f[1][0])};
    Node *n = emit(p->b, "cross_entropy_part", in[3] ? 4 : 3, in,
                   ATTRS(A_INT("ignore_index", attr[IGNORE_INDEX].i),
                         A_FLOAT("label_smoothing", attr[SMOOTHING].f),
                         A_INT("classes", p->n->in[0]->type.dim[1] - attr[PADDING].i)));
    p->out[0] = n->out[0];
    p->out[1] = n->out[1];
}

static void finish(Part *p, Value *const *merged)
{
    Build *b = p->b;
    Value *target = merged[0], *lse = merged[1];
    const Attr *attr = p->n->attr;
    DType d = lse->type.dtype;
    Value *loss = emit1(b, "sub", IN(lse, target), NOATTRS);
    if (attr[Z_LOSS].f > 0) {
        Value *z = emit1(b, "mul", IN(emit_full(b, attr[Z_LOSS].f, d), lse), NOATTRS);
        loss = emit1(b, "add", IN(loss, emit1(b, "mul", IN(z, lse), NOATTRS)), NOATTRS);
    }
    Value *ignored = emit_full(b, (double)attr[IGNORE_INDEX].i, I64);
    ignored = emit1(b, "eq", IN(p->in[1], ignored), NOATTRS);
    loss = emit1(b, "where", IN(ignored, emit_full(b, 0, d), loss), NOATTRS);
    loss = emit1(b, "sum", IN(loss), NOATTRS);
    p->out[0] = emit1(b, "div", IN(loss, emit_cast(b, p->in[2], d)), NOATTRS);
    p->out[1] = lse;
}

static void part_part(Part *p)
{
    Attr *attr = part_attr(p);
    int64_t all = p->n->in[0]->type.dim[1];
    if (!attr[PART_CLASSES].i && part_size(&p->f->in[0], 1, p->size) != all)
        attr[PART_CLASSES].i = all;
    part_same(p, attr);
}

/* ---- labels ---- */

int check_labels(Call *c, const Tensor *labels, const Tensor *count, int64_t classes)
{
    int64_t ignore = c->node->attr[IGNORE_INDEX].i, total = *(const int64_t *)count->data;
    if (total < 1)
        return run_fail(c, "count: expected at least 1 label that is not %lld, found %lld",
                        (long long)ignore, (long long)total);
    for (int64_t i = 0; i < labels->dim[0]; i++) {
        int64_t label = label_at(labels, i);
        if (label != ignore && (label < 0 || label >= classes))
            return run_fail(c, "label %lld at position %lld: expected 0 to %lld, or %lld",
                            (long long)label, (long long)i, (long long)classes - 1,
                            (long long)ignore);
    }
    return 0;
}

/* The number of all classes, of which a part's are some. */
static int64_t part_classes(const Call *c)
{
    int64_t classes = c->node->attr[PART_CLASSES].i;
    return classes ? classes : c->in[0].dim[1];
}

/* The logits of those that a part has. */
static Tensor part_logits(const Call *c)
{
    Tensor x = c->in[0];
    x.dim[1] = classes_within(x.dim[1], first_of(c, PART_FIRST), part_classes(c));
    return x;
}

/* ---- reference ---- */

static int count_ref(Call *c)
{
    int64_t n = tensor_nelem(&c->in[0]), count = 0;
    for (int64_t i = 0; i < n; i++)
        count += get_at(&c->in[0], i) != (double)c->node->attr[IGNORE_INDEX].i;
    *(int64_t *)c->out[0].data = count;
    return 0;
}

static double ref_lse(const Tensor *x, int64_t i)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < x->dim[1]; j++)
        max = fmax(max, tensor_get(x, i * x->stride[0] + j * x->stride[1]));
    double base = max == -INFINITY ? 0 : max;
    for (int64_t j = 0; j < x->dim[1]; j++)
        sum += exp(tensor_get(x, i * x->stride[0] + j * x->stride[1]) - base);
    return base + log(sum);
}

/* The loss of row i, which counts. */
static double ref_loss(const Attr *a, const Tensor *x, int64_t i, int64_t label, double lse)
{
    const int64_t row = i * x->stride[0], classes = x->dim[1];
    double e = a[SMOOTHING].f, z = a[Z_LOSS].f, loss = lse + (z > 0 ? z * lse * lse : 0);
    loss -= (1 - e) * tensor_get(x, row + label * x->stride[1]);
    for (int64_t j = 0; j < classes && e > 0; j++)
        loss -= e / (double)classes * tensor_get(x, row + j * x->stride[1]);
    return loss;
}

static int ref(Call *c)
{
    const Tensor x = without_padding(&c->in[0], c->node->attr[PADDING].i), *labels = &c->in[1];
    double loss = 0;
    if (check_labels(c, labels, &c->in[2], x.dim[1]))
        return -1;
    for (int64_t i = 0; i < x.dim[0]; i++) {
        double lse = ref_lse(&x, i);
        int64_t label = label_at(labels, i);
        tensor_set(&c->out[1], i * c->out[1].stride[0], lse);
        if (label != c->node->attr[IGNORE_INDEX].i)
            loss += ref_loss(c->node->attr, &x, i, label, lse);
    }
    tensor_set(&c->out[0], 0, loss / (double)tensor_int(&c->in[2], 0));
    return 0;
}

static int part_ref(Call *c)
{
    const Tensor x = part_logits(c), *labels = &c->in[1];
    const Attr *a = c->node->attr;
    double e = a[PART_SMOOTHING].f, each = e / (double)part_classes(c);
    if (check_labels(c, labels, &c->in[2], part_classes(c)))
        return -1;
    for (int64_t i = 0; i < x.dim[0]; i++) {
        int64_t row = i * x.stride[0], label = label_at(labels, i), j;
        bool counts = label != a[IGNORE_INDEX].i;
        double target = 0;
        for (j = 0; j < x.dim[1] && e > 0 && counts; j++)
            target += each * tensor_get(&x, row + j * x.stride[1]);
        if (counts && (j = class_of(label, first_of(c, PART_FIRST), x.dim[1])) >= 0)
            target += (1 - e) * tensor_get(&x, row + j * x.stride[1]);
        tensor_set(&c->out[0], i * c->out[0].stride[0], target);
        tensor_set(&c->out[1], i * c->out[1].stride[0], ref_lse(&x, i));
    }
    return 0;
}

/* ---- kernels: contiguous labels; f32 or bf16 logits, rows of any stride ---- */

static bool count_accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

KERNEL(int64_t, count_other, (const int64_t *x, int64_t n, int64_t ignore), (x, n, ignore))
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += x[i] != ignore;
    return count;
}

static int count_run(Call *c)
{
    *(int64_t *)c->out[0].data = count_other(
        (const int64_t *)c->in[0].data, tensor_nelem(&c->in[0]), c->node->attr[IGNORE_INDEX].i);
    return 0;
}

static const Kernel count_kernels[] = {
    {.name = "count_labels_i64", .accepts = count_accepts, .run = count_run}, {0}};

bool logits_accepted(const Tensor *x)
{
    return (x->dtype == F32 || x->dtype == BF16) && rows_contiguous(x, 1);
}

static bool accepts(const Call *c)
{
    return logits_accepted(&c->in[0]);
}

/* One double for each row: its part of the loss. */
static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return c->in[0].dim[0] * (int64_t)sizeof(double);
}

enum { BLOCK = 1024 };

INLINE float block_max(const float *x, int64_t n)
{
    float s[LANES];
    for (int j = 0; j < LANES; j++)
        s[j] = -INFINITY;
    EACH_LANE(n, i, j, s[j] = x[i] > s[j] ? x[i] : s[j]);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            s[j] = s[j + half] > s[j] ? s[j + half] : s[j];
    return s[0];
}

INLINE float block_sum(const float *x, int64_t n, float max)
{
    float s[LANES] = {0};
    EACH_LANE(n, i, j, s[j] += v_exp_below(x[i] - max));
    return lanes_sum(s);
}

INLINE float block_total(const float *x, int64_t n)
{
    float s[LANES] = {0};
    EACH_LANE(n, i, j, s[j] += x[i]);
    return lanes_sum(s);
}

/* log sum exp(x), -inf where all are; a NaN anywhere gives NaN. Blocks of bf16 are converted.
 * total, unless NULL, gets the sum of x. */
KERNEL_FMA(double, row_lse, (const void *x, int64_t n, DType d, double *total), (x, n, d, total))
{
    float max = -INFINITY, wide[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t len = MIN(BLOCK, n - i);
        const float *block = d == F32 ? (const float *)x + i : wide;
        for (int64_t j = 0; j < len && d != F32; j++)
            wide[j] = v_load(x, i + j, BF16);
        float top = block_max(block, len);
        if (top > max) {
            sum *= exp((double)max - (double)top);
            max = top;
        }
        sum += (double)block_sum(block, len, max == -INFINITY ? 0 : max);
        if (total)
            *total += (double)block_total(block, len);
    }
    return (max == -INFINITY ? 0 : (double)max) + log(sum);
}

static void loss_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Attr *a = c->node->attr;
    const Tensor x = without_padding(&c->in[0], a[PADDING].i);
    const double z = a[Z_LOSS].f, e = a[SMOOTHING].f, each = e / (double)x.dim[1];
    for (int64_t i = lo; i < hi; i++) {
        const void *row = element(&x, i * x.stride[0]);
        double total = 0, lse = row_lse(row, x.dim[1], x.dtype, e > 0 ? &total : NULL), loss = 0;
        int64_t label = label_at(&c->in[1], i);
        if (label != a[IGNORE_INDEX].i)
            loss = lse - (1 - e) * (double)v_load(row, label, x.dtype) - each * total +
                   (z > 0 ? z * lse * lse : 0);
        (f32(&c->out[1]))[i] = (float)lse;
        ((double *)c->work)[i] = loss;
    }
}

static int loss_start(Call *c)
{
    return check_labels(c, &c->in[1], &c->in[2], c->in[0].dim[1] - c->node->attr[PADDING].i);
}

static int loss_finish(Call *c)
{
    const double *part = (const double *)c->work;
    double loss = 0;
    for (int64_t i = 0; i < c->in[0].dim[0]; i++)
        loss += part[i];
    *f32(&c->out[0]) = (float)(loss / (double)*(const int64_t *)c->in[2].data);
    return 0;
}

static int run(Call *c)
{
    if (loss_start(c))
        return -1;
    par_for(c->in[0].dim[0], row_grain(c->in[0].dim[1]), loss_rows, c);
    return loss_finish(c);
}

int logits_lead(const Call *c)
{
    (void)c;
    return 1;
}

static const RowKernel row_kernel = {.in = "raa",
                                     .out = "fe",
                                     .lead = logits_lead,
                                     .run = loss_rows,
                                     .start = loss_start,
                                     .finish = loss_finish};

static const Kernel kernels[] = {
    {.name = "cross_entropy_rows", .accepts = accepts, .workspace = workspace, .run = run}, {0}};

static void part_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor x = part_logits(c);
    const Attr *a = c->node->attr;
    const double e = a[PART_SMOOTHING].f, each = e / (double)part_classes(c);
    int64_t first = first_of(c, PART_FIRST);
    for (int64_t i = lo; i < hi; i++) {
        const void *row = element(&x, i * x.stride[0]);
        double total = 0, lse = row_lse(row, x.dim[1], x.dtype, e > 0 ? &total : NULL);
        int64_t label = label_at(&c->in[1], i), at = class_of(label, first, x.dim[1]);
        double target = at < 0 ? 0 : (1 - e) * (double)v_load(row, at, x.dtype);
        (f32(&c->out[0]))[i] = label == a[IGNORE_INDEX].i ? 0.0f : (float)(target + each * total);
        (f32(&c->out[1]))[i] = (float)lse;
    }
}

static int part_check(Call *c)
{
    return check_labels(c, &c->in[1], &c->in[2], part_classes(c));
}

static int part_run(Call *c)
{
    if (part_check(c))
        return -1;
    par_for(c->in[0].dim[0], row_grain(c->in[0].dim[1]), part_rows, c);
    return 0;
}

static const RowKernel part_row_kernel = {
    .in = "raaa", .out = "ee", .lead = logits_lead, .run = part_rows, .start = part_check};

static const Kernel part_kernels[] = {
    {.name = "cross_entropy_part_rows", .accepts = accepts, .run = part_run}, {0}};

const OpRules op_count_labels = {
    .math = "the number of labels that are not ignore_index",
    .example = "i64[16]",
    .attrs = count_attrs,
    .infer = count_infer,
    .factors = count_factors,
    .kernels = count_kernels,
    .ref = count_ref,
};

const OpRules op_cross_entropy = {
    .math = "loss = sum over counted rows of (lse - (1-e) x[label] - e mean(x) + z lse^2) / count, "
            "lse = log sum exp(x); also lse",
    .example = "f32[16, 10] i64[16] i64[]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .part = part,
    .finish = finish,
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
};

const OpRules op_cross_entropy_part = {
    .math = "of some classes, from first on: target = ((1-e) x[label - first] if there) + e/V "
            "sum(x), 0 "
            "in rows that do not count; lse = log sum exp(x)",
    .example = "f32[16, 10] i64[16] i64[] i64[] classes=20",
    .attrs = part_attrs,
    .infer = part_infer,
    .cost = cost,
    .factors = part_factors,
    .part = part_part,
    .rows = &part_row_kernel,
    .kernels = part_kernels,
    .ref = part_ref,
};
