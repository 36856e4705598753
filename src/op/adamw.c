/* adamw: Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), one pass
 * over a parameter and its two moments, in PyTorch's form:
 *   g' = scale g;  m' = beta1 m + (1 - beta1) g';  v' = beta2 v + (1 - beta2) g'^2
 *   p' = p (1 - lr weight_decay) - lr / (1 - beta1^t) m' / (sqrt(v' / (1 - beta2^t)) + eps)
 * with t = step, 1 in the first one. scale is the clipping factor; where apply is false (a step
 * that is skipped) all three are returned as they were.
 *
 * p may have 16 bits where g, m and v are f32.
 *
 * Numerics: the coefficients in double, each element in the dtype of g (f32 for g of 16 bits); p'
 * is rounded into its dtype as update.c says, stochastically or to nearest even.
 */
#include "update.h"

enum { BETA1, BETA2, EPS, DECAY, ROUNDING };

static const AttrField attrs[] = {
    {"beta1", ATTR_FLOAT, .f = 0.9},
    {"beta2", ATTR_FLOAT, .f = 0.95},
    {"eps", ATTR_FLOAT, .f = 1e-8},
    {"weight_decay", ATTR_FLOAT, .f = 0.1},
    ROUNDING_FIELDS,
    {0},
};

enum { P, G, M, V, LR, STEP, SCALE, APPLY };

static void need_beta(const Graph *g, const Node *n, int i, const char *name)
{
    if (!(n->attr[i].f >= 0 && n->attr[i].f < 1))
        fail_node(g, n, "%s: expected at least 0 and less than 1, found %g", name, n->attr[i].f);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, P);
    Type t = n->in[P]->type;
    if (widens(t.dtype, n->in[G]->type.dtype))
        t.dtype = n->in[G]->type.dtype;
    for (int i = G; i <= V; i++)
        need_type(g, n, i, &t);
    for (int i = LR; i <= APPLY; i++)
        need_rank(g, n, i, 0, 0);
    need_float(g, n, LR);
    need_float(g, n, SCALE);
    need_dtype(g, n, STEP, I64);
    need_dtype(g, n, APPLY, BOOL);
    need_beta(g, n, BETA1, "beta1");
    need_beta(g, n, BETA2, "beta2");
    need_positive(g, n, "eps", n->attr[EPS].f);
    need_positive(g, n, "weight_decay", n->attr[DECAY].f);
    if (n->nin - rounding_operands(n, ROUNDING) != APPLY + 1)
        fail_node(g, n, "expected %d operands, and seed, step and starts for rounding, found %d",
                  APPLY + 1, n->nin);
    rounding_infer(g, n, ROUNDING);
    out[0] = n->in[P]->type;
    out[1] = out[2] = t;
    return 3;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = 15 * (double)type_nelem(&n->in[P]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    rounding_factors(n, f, ROUNDING, "xxxx....");
}

static void part_of(Part *p)
{
    rounding_part(p, ROUNDING);
}

static int check_step(Call *c)
{
    int64_t t = tensor_int(&c->in[STEP], 0);
    return t >= 1 ? 0 : run_fail(c, "step: expected at least 1, found %lld", (long long)t);
}

/* ---- reference ---- */

/* One element: x is p, m, v. */
static void ref_update(const Call *c, double x[3], double g)
{
    const Attr *a = c->node->attr;
    double lr = tensor_get(&c->in[LR], 0), t = tensor_get(&c->in[STEP], 0);
    x[1] = a[BETA1].f * x[1] + (1 - a[BETA1].f) * g;
    x[2] = a[BETA2].f * x[2] + (1 - a[BETA2].f) * g * g;
    double mhat = x[1] / (1 - pow(a[BETA1].f, t)), vhat = x[2] / (1 - pow(a[BETA2].f, t));
    x[0] = x[0] - lr * a[DECAY].f * x[0] - lr * mhat / (sqrt(vhat) + a[EPS].f);
}

static int ref(Call *c)
{
    static const int old[] = {P, M, V};
    bool apply = tensor_int(&c->in[APPLY], 0);
    int64_t count = tensor_nelem(&c->in[P]);
    Rounding r = rounding_of(c, ROUNDING);
    if (check_step(c))
        return -1;
    for (int64_t i = 0; i < count; i++) {
        double x[3], g = get_at(&c->in[G], i);
        for (int k = 0; k < 3; k++)
            x[k] = get_at(&c->in[old[k]], i);
        if (apply) {
            ref_update(c, x, g * tensor_get(&c->in[SCALE], 0));
            x[0] = rounding_ref(&r, i, x[0], c->out[0].dtype);
        }
        for (int k = 0; k < 3; k++)
            set_at(&c->out[k], i, x[k]);
    }
    return 0;
}

/* ---- kernel: f32 gradient and moments ---- */

/* Gradient and state are f32, or all is bf16. */
static bool accepts(const Call *c)
{
    DType p = c->in[P].dtype, d = c->in[G].dtype;
    for (int i = P; i <= V; i++)
        if ((i > P && c->in[i].dtype != d) || !tensor_contiguous(&c->in[i]))
            return false;
    return d == F32 ? p == F32 || p == BF16 : d == BF16 && p == BF16;
}

/* All elements of a step share these. */
typedef struct Coefficients {
    Call *c;
    float scale, beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float keep;                              /* what weight decay leaves: 1 - lr weight_decay */
    float lr, root, eps;                     /* lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
    Rounding rounding;
} Coefficients;

static Coefficients coefficients_of(Call *c)
{
    const Attr *a = c->node->attr;
    double lr = tensor_get(&c->in[LR], 0), t = tensor_get(&c->in[STEP], 0);
    return (Coefficients){
        .c = c,
        .scale = (float)tensor_get(&c->in[SCALE], 0),
        .beta1 = (float)a[BETA1].f,
        .beta2 = (float)a[BETA2].f,
        .rest1 = (float)(1 - a[BETA1].f),
        .rest2 = (float)(1 - a[BETA2].f),
        .keep = (float)(1 - lr * a[DECAY].f),
        .lr = (float)(lr / (1 - pow(a[BETA1].f, t))),
        .root = (float)(1 / sqrt(1 - pow(a[BETA2].f, t))),
        .eps = (float)a[EPS].f,
        .rounding = rounding_of(c, ROUNDING),
    };
}

/* p and p1 are of dtype d, the others of gd; word: of each element, or NULL: p1 is rounded to
 * nearest. */
INLINE void update(const void *p, const void *g, const void *m, const void *v, void *p1, void *m1,
                   void *v1, int64_t n, const Coefficients *step, const uint32_t *word, DType d,
                   DType gd)
{
    const Coefficients s = *step;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float gi = s.scale * v_load(g, i, gd);
        float mi = s.beta1 * v_load(m, i, gd) + s.rest1 * gi;
        float vi = s.beta2 * v_load(v, i, gd) + s.rest2 * gi * gi;
        v_store(m1, i, mi, gd);
        v_store(v1, i, vi, gd);
        float pi = s.keep * v_load(p, i, d) - s.lr * mi / (sqrtf(vi) * s.root + s.eps);
        if (word)
            store_rounded(p1, i, pi, word[i]);
        else
            v_store(p1, i, pi, d);
    }
}

/* Whether there are words is known to the compiler in each loop. */
#define UPDATE(name, d, gd, word)                                                           \
    KERNEL(void, name,                                                                      \
           (const void *p, const void *g, const void *m, const void *v, void *p1, void *m1, \
            void *v1, int64_t n, const Coefficients *step, const uint32_t *words),          \
           (p, g, m, v, p1, m1, v1, n, step, words))                                        \
    {                                                                                       \
        (void)words;                                                                        \
        update(p, g, m, v, p1, m1, v1, n, step, word, d, gd);                               \
    }

UPDATE(update_f32, F32, F32, NULL)
UPDATE(update_mixed, BF16, F32, NULL)
UPDATE(update_mixed_rounded, BF16, F32, words)
UPDATE(update_bf16, BF16, BF16, NULL)
UPDATE(update_bf16_rounded, BF16, BF16, words)

typedef void UpdateFn(const void *p, const void *g, const void *m, const void *v, void *p1,
                      void *m1, void *v1, int64_t n, const Coefficients *step,
                      const uint32_t *words);

static void update_run(const void *arg, int64_t lo, int64_t n, const uint32_t *words)
{
    const Coefficients *s = arg;
    const Tensor *in = s->c->in, *out = s->c->out;
    bool wide = in[G].dtype == F32;
    UpdateFn *fn = in[P].dtype == F32 ? update_f32
                   : words            ? (wide ? update_mixed_rounded : update_bf16_rounded)
                                      : (wide ? update_mixed : update_bf16);
    fn(element(&in[P], lo), element(&in[G], lo), element(&in[M], lo), element(&in[V], lo),
       element(&out[0], lo), element(&out[1], lo), element(&out[2], lo), n, s, words);
}

static void update_part(void *arg, int64_t lo, int64_t hi)
{
    const Coefficients *s = arg;
    update_walk(&s->rounding, lo, hi, update_run, s);
}

static void keep_part(void *arg, int64_t lo, int64_t hi)
{
    static const int old[] = {P, M, V};
    const Coefficients *s = arg;
    for (int k = 0; k < 3; k++)
        memmove(element(&s->c->out[k], lo), element(&s->c->in[old[k]], lo),
                (size_t)((hi - lo) * dtype_size(s->c->out[k].dtype)));
}

static int run(Call *c)
{
    Coefficients s = coefficients_of(c);
    if (check_step(c))
        return -1;
    par_for(tensor_nelem(&c->in[P]), 16384, tensor_int(&c->in[APPLY], 0) ? update_part : keep_part,
            &s);
    return 0;
}

static const Kernel kernels[] = {{.name = "adamw_rows", .accepts = accepts, .run = run}, {0}};

const OpRules op_adamw = {
    .math = "m' = b1 m + (1-b1) g; v' = b2 v + (1-b2) g^2; p' = p (1 - lr wd) - lr mhat / "
            "(sqrt(vhat) + eps)",
    .example = "f32[4, 6] f32[4, 6] f32[4, 6] f32[4, 6] f32[] i64[] f32[] bool[]",
    .attrs = attrs,
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .part = part_of,
    .inplace = {1 << P, 1 << M, 1 << V},
    .kernels = kernels,
    .ref = ref,
};
