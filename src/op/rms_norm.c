/* rms_norm and its backward (Zhang and Sennrich 2019, arXiv:1910.07467), over the last axis.
 *
 * With r = 1 / sqrt(mean(x^2) + eps) of each row of C elements, y = x r w, and with g = dy w:
 *   dx = r (g - h mean(g h)), h = x r, dw = sum over rows of dy h.
 * Output rstd has shape [rows..., 1] and dtype f32 (f64 where x is f64). w and dw have x's dtype or
 * f32.
 *
 * Numerics: as in layer_norm.c, with one sum in a row. */
#include "norm.h"

enum { EPS };

static const AttrField attrs[] = {{"eps", ATTR_FLOAT, .f = 1e-5}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    need_float(g, n, 0);
    need_rank(g, n, 0, 1, TN_RANK);
    Type w = norm_weight_type(n, 1, x, x->rank - 1);
    need_type(g, n, 1, &w);
    need_positive(g, n, "eps", n->attr[EPS].f);
    out[0] = *x;
    out[1] = norm_stat_type(x, x->rank - 1);
    return 2;
}

static int backward_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[1]->type;
    need_float(g, n, 1);
    need_rank(g, n, 1, 1, TN_RANK);
    Type w = norm_weight_type(n, 3, x, x->rank - 1), stat = norm_stat_type(x, x->rank - 1);
    need_type(g, n, 0, x);
    need_type(g, n, 2, &stat);
    need_type(g, n, 3, &w);
    out[0] = *x;
    out[1] = w;
    return 2;
}

/* The gradient of x through the output rstd: -drstd rstd^3 x / C. */
static Value *stats_diff(Build *b, const Node *n, Value *drstd)
{
    Value *x = n->in[0], *rstd = n->out[1];
    DType stat = rstd->type.dtype;
    double count = (double)n->in[1]->type.dim[0];
    Value *cube = emit1(b, "mul", IN(rstd, emit1(b, "mul", IN(rstd, rstd), NOATTRS)), NOATTRS);
    Value *scale = emit1(b, "mul", IN(drstd, emit_full(b, -1 / count, stat)), NOATTRS);
    Value *row = emit1(b, "mul", IN(cube, scale), NOATTRS);
    return emit_cast(b, emit1(b, "mul", IN(row, emit_cast(b, x, stat)), NOATTRS), x->type.dtype);
}

static void diff(Grad *d)
{
    Node *n = d->n;
    if (d->dy[0]) {
        Node *back =
            emit(d->b, "rms_norm_backward", IN(d->dy[0], n->in[0], n->out[1], n->in[1]), NOATTRS);
        for (int i = 0; i < 2; i++)
            d->dx[i] = d->need[i] ? back->out[i] : NULL;
    }
    if (d->need[0] && d->dy[1]) {
        Value *part = stats_diff(d->b, n, d->dy[1]);
        d->dx[0] = d->dx[0] ? emit1(d->b, "add", IN(d->dx[0], part), NOATTRS) : part;
    }
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 4 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static Cost backward_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 10 * (double)type_nelem(&n->in[0]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[0]->type.rank - 1, FACTOR_PARALLEL, "xo", "xb");
}

static void backward_factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[0]->type.rank - 1, FACTOR_SUM, "xxbo", "xo");
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t n = c->in[1].dim[0], rows = tensor_nelem(&c->out[1]);
    for (int64_t r = 0; r < rows; r++) {
        double square = n ? 0 : NAN;
        for (int64_t j = 0; j < n; j++)
            square += pow(get_at(x, r * n + j), 2) / (double)n;
        double rstd = 1 / sqrt(square + c->node->attr[EPS].f);
        set_at(&c->out[1], r, rstd);
        for (int64_t j = 0; j < n; j++)
            set_at(&c->out[0], r * n + j, get_at(x, r * n + j) * rstd * get_at(&c->in[1], j));
    }
    return 0;
}

/* ---- kernels ---- */

static const Kernel kernels[] = {
    {.name = "rms_norm_rows", .accepts = norm_accepts, .run = norm_run},
    {0},
};

static const RowKernel row_kernel = {.in = "ra", .out = "re", .lead = norm_lead, .run = norm_rows};

static const Kernel backward_kernels[] = {
    {.name = "rms_norm_backward_rows",
     .accepts = norm_backward_accepts,
     .workspace = norm_backward_workspace,
     .run = norm_backward_run},
    {0},
};

const OpRules op_rms_norm = {
    .math = "y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps) over the last axis; also rstd",
    .example = "f32[2, 8, 4] f32[4]",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .rows = &row_kernel,
    .kernels = kernels,
    .ref = ref,
};

const OpRules op_rms_norm_backward = {
    .math = "dx = rstd (dy w - h mean(dy w h)), h = x rstd; dw = sum dy h",
    .example = "f32[2, 8, 4] f32[2, 8, 4] f32[2, 8, 1] f32[4]",
    .infer = backward_infer,
    .cost = backward_cost,
    .factors = backward_factors,
    .inplace = {1 | 2},
    .kernels = backward_kernels,
    .ref = norm_backward_ref,
};
