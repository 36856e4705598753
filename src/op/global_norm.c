/* global_norm: the Euclidean norm of all operands together; clip_scale: the factor that brings a
 * norm down to max_norm, min(1, max_norm / (norm + 1e-6)), as PyTorch's clip_grad_norm_ has it.
 *
 * Numerics: squares and sums in double, so that no f32 square overflows; blocks of BLOCK elements
 * are added apart, in LANES partial sums, and then in order: independent of threads. A NaN stays
 * NaN. The order of elements is that of memory, so any dense layout (a transposed gradient) is read
 * in place. */
#include "rows.h"

#include <math.h>

enum { BLOCK = 65536 };

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    for (int i = 1; i < n->nin; i++)
        need_dtype(g, n, i, n->in[0]->type.dtype);
    out[0] = type_make(stat_dtype(n->in[0]->type.dtype), 0, NULL);
    return 1;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 2; /* the root */
    for (int i = 0; i < n->nin; i++)
        c.nflop += 2 * (double)type_nelem(&n->in[i]->type);
    return c;
}

static int ref(Call *c)
{
    double sum = 0;
    for (int i = 0; i < c->nin; i++) {
        int64_t count = tensor_nelem(&c->in[i]);
        for (int64_t j = 0; j < count; j++)
            sum += pow(get_at(&c->in[i], j), 2);
    }
    tensor_set(&c->out[0], 0, sqrt(sum));
    return 0;
}

/* Whether the elements fill one run of memory, in any order of axes. */
static bool dense(const Tensor *t)
{
    int64_t filled = 1, count = tensor_nelem(t);
    bool more = true;
    while (more && filled < count) {
        more = false;
        for (int d = 0; d < t->rank && !more; d++)
            if (t->dim[d] > 1 && t->stride[d] == filled) {
                filled *= t->dim[d];
                more = true;
            }
    }
    return filled >= count;
}

static bool accepts(const Call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (c->in[i].dtype != F32 || !dense(&c->in[i]))
            return false;
    return true;
}

static int64_t count_blocks(const Tensor *t)
{
    return (tensor_nelem(t) + BLOCK - 1) / BLOCK;
}

/* One double for each block of each operand. */
static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    int64_t nblock = 0;
    for (int i = 0; i < c->nin; i++)
        nblock += count_blocks(&c->in[i]);
    return nblock * (int64_t)sizeof(double);
}

KERNEL static double sum_squares(const float *x, int64_t n)
{
    double s[LANES] = {0}, sum = 0;
    EACH_LANE(n, i, j, s[j] += (double)x[i] * (double)x[i]);
    for (int j = 0; j < LANES; j++)
        sum += s[j];
    return sum;
}

/* Blocks lo to hi of all operands' blocks in a row. */
static void sum_blocks(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    int64_t first = 0; /* of operand i */
    for (int i = 0; i < c->nin && first < hi; i++) {
        int64_t nblock = count_blocks(&c->in[i]), count = tensor_nelem(&c->in[i]);
        for (int64_t b = MAX(lo - first, 0); b < MIN(nblock, hi - first); b++)
            ((double *)c->work)[first + b] =
                sum_squares(f32(&c->in[i]) + b * BLOCK, MIN(BLOCK, count - b * BLOCK));
        first += nblock;
    }
}

static int run(Call *c)
{
    int64_t nblock = 0;
    double sum = 0;
    for (int i = 0; i < c->nin; i++)
        nblock += count_blocks(&c->in[i]);
    par_for(nblock, 1, sum_blocks, c);
    for (int64_t b = 0; b < nblock; b++)
        sum += ((const double *)c->work)[b];
    *f32(&c->out[0]) = (float)sqrt(sum);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "global_norm_f32", .accepts = accepts, .workspace = workspace, .run = run}, {0}};

const OpRules op_global_norm = {
    .math = "the square root of the sum of squares over all operands",
    .example = "f32[4, 6] f32[6]",
    .infer = infer,
    .cost = cost,
    .kernels = kernels,
    .ref = ref,
};

/* ---- clip_scale ---- */

enum { MAX_NORM };

static const AttrField scale_attrs[] = {{"max_norm", ATTR_FLOAT, .required = true}, {0}};

static int scale_infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    need_rank(g, n, 0, 0, 0);
    if (!(n->attr[MAX_NORM].f > 0))
        fail_node(g, n, "max_norm: expected more than 0, found %g", n->attr[MAX_NORM].f);
    out[0] = n->in[0]->type;
    return 1;
}

static Cost scale_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 3;
    return c;
}

static int scale_ref(Call *c)
{
    double scale = c->node->attr[MAX_NORM].f / (tensor_get(&c->in[0], 0) + 1e-6);
    tensor_set(&c->out[0], 0, scale >= 1 ? 1 : scale); /* NaN stays NaN */
    return 0;
}

static int scale_run(Call *c)
{
    float most = (float)c->node->attr[MAX_NORM].f, norm = *f32(&c->in[0]) + 1e-6f;
    *f32(&c->out[0]) = norm <= most ? 1.0f : most / norm;
    return 0;
}

static const Kernel scale_kernels[] = {
    {.name = "clip_scale_f32", .accepts = accepts_f32_contiguous, .run = scale_run}, {0}};

const OpRules op_clip_scale = {
    .math = "min(1, max_norm / (norm + 1e-6))",
    .example = "f32[] max_norm=1.0",
    .attrs = scale_attrs,
    .infer = scale_infer,
    .cost = scale_cost,
    .kernels = scale_kernels,
    .ref = scale_ref,
};
