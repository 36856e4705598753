/* sgd: stochastic gradient descent, one pass over a parameter and, with momentum, its one state, in
 * PyTorch's form (torch.optim.SGD without dampening, not Nesterov's):
 *   g' = scale g + weight_decay p;  m' = momentum m + g';  p' = p - lr m'
 * and without m, p' = p - lr g'. Weight decay is L2: it is added to the gradient (after clipping,
 * which is scale) and so passes through the momentum. m is 0 before the first step. Where apply is
 * false (a step that is skipped) all is returned as it was.
 *
 * p may have 16 bits where g and m are f32.
 *
 * Numerics: each element in the dtype of g (f32 for g of 16 bits); p' is rounded to nearest even
 * into its dtype: an update below half a unit of p's last place is lost.
 */
#include "rows.h"

enum { DECAY, MOMENTUM };

static const AttrField attrs[] = {
    {"weight_decay", ATTR_FLOAT, .f = 0},
    {"momentum", ATTR_FLOAT, .f = 0},
    {0},
};

enum { P, G, LR, SCALE, APPLY, M };

static int infer(const Graph *g, const Node *n, Type *out)
{
    bool has_m = n->nin > M;
    double momentum = n->attr[MOMENTUM].f;
    need_float(g, n, P);
    Type t = n->in[P]->type;
    if (widens(t.dtype, n->in[G]->type.dtype))
        t.dtype = n->in[G]->type.dtype;
    need_type(g, n, G, &t);
    for (int i = LR; i <= APPLY; i++)
        need_rank(g, n, i, 0, 0);
    need_float(g, n, LR);
    need_float(g, n, SCALE);
    need_dtype(g, n, APPLY, BOOL);
    if (has_m)
        need_type(g, n, M, &t);
    if (!(momentum >= 0 && momentum < 1))
        fail_node(g, n, "momentum: expected at least 0 and less than 1, found %g", momentum);
    if (momentum > 0 && !has_m)
        fail_node(g, n, "momentum %g: expected operand %d with the momentum so far", momentum, M);
    out[0] = n->in[P]->type;
    out[1] = t;
    return has_m ? 2 : 1;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = (n->nin > M ? 7 : 5) * (double)type_nelem(&n->in[P]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    factors_split(n, f, n->in[P]->type.rank, FACTOR_PARALLEL, "xx...x", "xx");
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Attr *a = c->node->attr;
    double lr = tensor_get(&c->in[LR], 0), scale = tensor_get(&c->in[SCALE], 0);
    bool apply = tensor_int(&c->in[APPLY], 0), has_m = c->nin > M;
    int64_t count = tensor_nelem(&c->in[P]);
    for (int64_t i = 0; i < count; i++) {
        double p = get_at(&c->in[P], i), m = has_m ? get_at(&c->in[M], i) : 0;
        if (apply) {
            m = a[MOMENTUM].f * m + scale * get_at(&c->in[G], i) + a[DECAY].f * p;
            p -= lr * m;
        }
        set_at(&c->out[0], i, p);
        if (has_m)
            set_at(&c->out[1], i, m);
    }
    return 0;
}

/* ---- kernel: f32 gradient and momentum ---- */

static bool accepts(const Call *c)
{
    bool m = c->nin <= M || (c->in[M].dtype == F32 && tensor_contiguous(&c->in[M]));
    return m && (c->in[P].dtype == F32 || c->in[P].dtype == BF16) && c->in[G].dtype == F32 &&
           tensor_contiguous(&c->in[P]) && tensor_contiguous(&c->in[G]);
}

/* What is the same for all elements of a step. */
typedef struct Coefficients {
    Call *c;
    float lr, scale, decay, momentum;
} Coefficients;

/* p and p1 are of dtype d; m and m1 are NULL where there is no momentum. */
INLINE void update(const void *p, const float *g, const float *m, void *p1, float *m1, int64_t n,
                   const Coefficients *step, DType d)
{
    const Coefficients s = *step;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float pi = v_load(p, i, d), gi = s.scale * g[i] + s.decay * pi;
        if (m)
            m1[i] = gi = s.momentum * m[i] + gi;
        v_store(p1, i, pi - s.lr * gi, d);
    }
}

/* Whether there is momentum is known to the compiler in each loop. */
#define UPDATE(name, d)                                                                    \
    KERNEL(void, name,                                                                     \
           (const void *p, const float *g, const float *m, void *p1, float *m1, int64_t n, \
            const Coefficients *s),                                                        \
           (p, g, m, p1, m1, n, s))                                                        \
    {                                                                                      \
        if (m)                                                                             \
            update(p, g, m, p1, m1, n, s, d);                                              \
        else                                                                               \
            update(p, g, NULL, p1, NULL, n, s, d);                                         \
    }

UPDATE(update_f32, F32)
UPDATE(update_bf16, BF16)

static void update_part(void *arg, int64_t lo, int64_t hi)
{
    const Coefficients *s = arg;
    const Tensor *in = s->c->in, *out = s->c->out;
    bool has_m = s->c->nin > M;
    (in[P].dtype == F32 ? update_f32 : update_bf16)(
        element(&in[P], lo), f32(&in[G]) + lo, has_m ? f32(&in[M]) + lo : NULL,
        element(&out[0], lo), has_m ? f32(&out[1]) + lo : NULL, hi - lo, s);
}

static void keep_part(void *arg, int64_t lo, int64_t hi)
{
    static const int old[] = {P, M};
    const Coefficients *s = arg;
    for (int k = 0; k < s->c->nout; k++)
        memmove(element(&s->c->out[k], lo), element(&s->c->in[old[k]], lo),
                (size_t)((hi - lo) * dtype_size(s->c->out[k].dtype)));
}

static int run(Call *c)
{
    const Attr *a = c->node->attr;
    Coefficients s = {.c = c,
                      .lr = (float)tensor_get(&c->in[LR], 0),
                      .scale = (float)tensor_get(&c->in[SCALE], 0),
                      .decay = (float)a[DECAY].f,
                      .momentum = (float)a[MOMENTUM].f};
    par_for(tensor_nelem(&c->in[P]), 16384, tensor_int(&c->in[APPLY], 0) ? update_part : keep_part,
            &s);
    return 0;
}

static const Kernel kernels[] = {{.name = "sgd_rows", .accepts = accepts, .run = run}, {0}};

const OpRules op_sgd = {
    .math = "g' = scale g + wd p; m' = momentum m + g' (or g' without m); p' = p - lr m'",
    .example = "f32[4, 6] f32[4, 6] f32[] f32[] bool[] f32[4, 6] momentum=0.9",
    .attrs = attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .inplace = {1 << P, 1 << M},
    .kernels = kernels,
    .ref = ref,
};
