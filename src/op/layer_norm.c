/* native_layer_norm and its backward (Ba, Kiros and Hinton 2016, arXiv:1607.06450; ATen's
 * semantics).
 *
 * x has shape [rows..., normalized_shape...]; with m and r = 1 / sqrt(var + eps) of each row,
 *   y = (x - m) r w + b, and with h = (x - m) r, g = dy w, means over the row:
 *   dx = r (g - mean(g) - h mean(g h)), dw = sum over rows of dy h, db = sum over rows of dy.
 * Outputs mean and rstd have shape [rows..., 1...] and dtype f32 (f64 where x is f64). w and b, and
 * then dw and db, have x's dtype or f32.
 *
 * Numerics: the kernels compute in f32 and round results once. They add each row in LANES partial
 * sums, the variance from deviations (two loops over a row that is in cache). The mean of these is
 * what the first sum was rounded by, and corrects both (Chan, Golub and LeVeque 1983): a row of
 * equal numbers x gives b, where r |x| 2^-24 would be its error else, r up to eps^-1/2. dw and db
 * are added by blocks of rows (norm_rows.c). */
#include "norm.h"

enum { SHAPE, EPS };

static const AttrField attrs[] = {
    {"normalized_shape", ATTR_INTS, .required = true},
    {"eps", ATTR_FLOAT, .f = 1e-5},
    {0},
};

static const AttrField backward_attrs[] = {{"normalized_shape", ATTR_INTS, .required = true}, {0}};

/* Number of axes of operand `of` before the normalized ones, which must agree. */
static int need_lead(const Graph *g, const Node *n, int of)
{
    const Type *x = &n->in[of]->type;
    const Attr *shape = &n->attr[SHAPE];
    int lead = x->rank - (int)shape->i;
    need_float(g, n, of);
    if (shape->i < 1 || lead < 0)
        fail_node(g, n, "normalized_shape: expected 1 to %d axes, found %lld", x->rank,
                  (long long)shape->i);
    for (int d = lead; d < x->rank; d++)
        if (x->dim[d] != shape->ints[d - lead])
            fail_node(g, n,
                      "normalized_shape: expected the last axes of %s, found %lld for axis %d",
                      type_text(g->a, x), (long long)shape->ints[d - lead], d);
    return lead;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    int lead = need_lead(g, n, 0);
    Type w = norm_weight_type(n, 1, x, lead);
    need_type(g, n, 1, &w);
    need_type(g, n, 2, &w);
    need_positive(g, n, "eps", n->attr[EPS].f);
    out[0] = *x;
    out[1] = out[2] = norm_stat_type(x, lead);
    return 3;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[1]->type;
    int lead = need_lead(g, n, 1);
    Type w = norm_weight_type(n, 4, x, lead), stat = norm_stat_type(x, lead);
    need_type(g, n, 0, x);
    need_type(g, n, 2, &stat);
    need_type(g, n, 3, &stat);
    need_type(g, n, 4, &w);
    out[0] = *x;
    out[1] = out[2] = w;
    return 3;
}

/* The gradient of x through the outputs mean (of gradient dmean) and rstd (drstd); either may be
 * NULL: dmean / C - drstd rstd^3 (x - mean) / C. */
static Value *stats_diff(Build *b, const Node *n, Value *dmean, Value *drstd)
{
    Value *x = n->in[0], *mean = n->out[1], *rstd = n->out[2];
    DType stat = mean->type.dtype;
    double count = (double)type_nelem(&n->in[1]->type);
    Value *sum = NULL;
    if (drstd) {
        Value *cube = emit1(b, "mul", IN(rstd, emit1(b, "mul", IN(rstd, rstd), NOATTRS)), NOATTRS);
        Value *scale = emit1(b, "mul", IN(drstd, emit_full(b, -1 / count, stat)), NOATTRS);
        Value *centered = emit1(b, "sub", IN(emit_cast(b, x, stat), mean), NOATTRS);
        sum = emit1(b, "mul", IN(emit1(b, "mul", IN(cube, scale), NOATTRS), centered), NOATTRS);
    }
    if (dmean) {
        Value *part = emit1(b, "mul", IN(dmean, emit_full(b, 1 / count, stat)), NOATTRS);
        part = emit1(b, "expand", IN(part), ATTRS(A_INTS("size", x->type.rank, x->type.dim)));
        sum = sum ? emit1(b, "add", IN(sum, part), NOATTRS) : part;
    }
    return emit_cast(b, sum, x->type.dtype);
}

static void diff(Grad *d)
{
    Node *n = d->n;
    Value *dmean = d->dy[1], *drstd = d->dy[2];
    if (d->dy[0]) {
        Node *back = emit(d->b, "native_layer_norm_backward",
                          IN(d->dy[0], n->in[0], n->out[1], n->out[2], n->in[1]),
                          ATTRS(A_INTS("normalized_shape", n->attr[SHAPE].i, n->attr[SHAPE].ints)));
        for (int i = 0; i < 3; i++)
            d->dx[i] = d->need[i] ? back->out[i] : NULL;
    }
    if (d->need[0] && (dmean || drstd)) {
        Value *part = stats_diff(d->b, n, dmean, drstd);
        d->dx[0] = d->dx[0] ? emit1(d->b, "add", IN(d->dx[0], part), NOATTRS) : part;
    }
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 7 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static Cost backward_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 14 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static int lead_axes(const Node *n)
{
    return n->in[0]->type.rank - (int)n->attr[SHAPE].i;
}

static void factors(const Node *n, Factors *f)
{
    factors_split(n, f, lead_axes(n), FACTOR_PARALLEL, "xoo", "xbb");
}

static void backward_factors(const Node *n, Factors *f)
{
    factors_split(n, f, lead_axes(n), FACTOR_SUM, "xxbbo", "xoo");
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t n = tensor_nelem(&c->in[1]), rows = axes_nelem(x, 0, lead_axes(c->node));
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < n; j++)
            mean += get_at(x, r * n + j);
        mean /= (double)n;
        for (int64_t j = 0; j < n; j++)
            var += pow(get_at(x, r * n + j) - mean, 2);
        double rstd = 1 / sqrt(var / (double)n + c->node->attr[EPS].f);
        set_at(&c->out[1], r, mean);
        set_at(&c->out[2], r, rstd);
        for (int64_t j = 0; j < n; j++)
            set_at(&c->out[0], r * n + j,
                   (get_at(x, r * n + j) - mean) * rstd * get_at(&c->in[1], j) +
                       get_at(&c->in[2], j));
    }
    return 0;
}

/* ---- kernels ---- */

static const Kernel kernels[] = {
    {.name = "layer_norm_rows", .accepts = norm_accepts, .run = norm_run},
    {0},
};

static const RowKernel row_kernel = {
    .in = "raa", .out = "ree", .lead = norm_lead, .run = norm_rows};

static const Kernel backward_kernels[] = {
    {.name = "layer_norm_backward_rows",
     .accepts = norm_backward_accepts,
     .workspace = norm_backward_workspace,
     .run = norm_backward_run},
    {0},
};

const OpRules op_native_layer_norm = {
    .math = "y = (x - mean(x)) rstd(x) w + b over the last axes; also mean and rstd",
    .example = "f32[2, 8, 4] f32[4] f32[4] normalized_shape=[4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.native_layer_norm.default",
};

const OpRules op_native_layer_norm_backward = {
    .math = "dx = rstd (dy w - mean(dy w) - h mean(dy w h)), h = (x - mean) rstd; dw = sum dy h; "
            "db = sum dy",
    .example = "f32[2, 8, 4] f32[2, 8, 4] f32[2, 8, 1] f32[2, 8, 1] f32[4] normalized_shape=[4]",
    .attrs = backward_attrs,
    .infer = backward_infer,
    .cost = backward_cost,
    .factors = backward_factors,
    .inplace = {1 | 2},
    .kernels = backward_kernels,
    .ref = norm_backward_ref,
    .alias = "aten.native_layer_norm_backward.default",
};
