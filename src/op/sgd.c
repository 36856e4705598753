/* sgd: stochastic gradient descent, one pass over a parameter and, with momentum, its one state, in
 * PyTorch's form (torch.optim.SGD without dampening, not Nesterov's):
 *   g' = scale g + weight_decay p;  m' = momentum m + g';  p' = p - lr m'
 * and without m, p' = p - lr g'. Weight decay is L2: it is added to the gradient (after clipping,
 * which is scale) and so passes through the momentum. m is 0 before the first step. Where apply is
 * false (a step that is skipped) all is returned as it was.
 *
 * p may have 16 bits where g and m are f32.
 *
 * Numerics: each element in the dtype of g (f32 for g of 16 bits); p' is rounded into its dtype as
 * update.c says, stochastically or to nearest even.
 */
#include "update.h"

enum { DECAY, MOMENTUM, ROUNDING };

static const AttrField attrs[] = {
    {"weight_decay", ATTR_FLOAT, .f = 0},
    {"momentum", ATTR_FLOAT, .f = 0},
    ROUNDING_FIELDS,
    {0},
};

enum { P, G, LR, SCALE, APPLY, M };

static bool has_momentum(const Node *n)
{
    return n->nin - rounding_operands(n, ROUNDING) > M;
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    bool has_m = has_momentum(n);
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
    need_positive(g, n, "weight_decay", n->attr[DECAY].f);
    if (momentum > 0 && !has_m)
        fail_node(g, n, "momentum %g: expected operand %d with the momentum so far", momentum, M);
    if (n->nin - rounding_operands(n, ROUNDING) != (has_m ? M + 1 : M))
        fail_node(g, n,
                  "expected %d or %d operands, and seed, step and starts for rounding, found %d", M,
                  M + 1, n->nin);
    rounding_infer(g, n, ROUNDING);
    out[0] = n->in[P]->type;
    out[1] = t;
    return has_m ? 2 : 1;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = (has_momentum(n) ? 7 : 5) * (double)type_nelem(&n->in[P]->type);
    return c;
}

static void factors(const Node *n, Factors *f)
{
    rounding_factors(n, f, ROUNDING, "xx...x");
}

static void part_of(Part *p)
{
    rounding_part(p, ROUNDING);
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Attr *a = c->node->attr;
    double lr = tensor_get(&c->in[LR], 0), scale = tensor_get(&c->in[SCALE], 0);
    bool apply = tensor_int(&c->in[APPLY], 0), has_m = has_momentum(c->node);
    int64_t count = tensor_nelem(&c->in[P]);
    Rounding r = rounding_of(c, ROUNDING);
    for (int64_t i = 0; i < count; i++) {
        double p = get_at(&c->in[P], i), m = has_m ? get_at(&c->in[M], i) : 0;
        if (apply) {
            m = a[MOMENTUM].f * m + scale * get_at(&c->in[G], i) + a[DECAY].f * p;
            p = rounding_ref(&r, i, p - lr * m, c->out[0].dtype);
        }
        set_at(&c->out[0], i, p);
        if (has_m)
            set_at(&c->out[1], i, m);
    }
    return 0;
}

/* ---- kernel: gradient and momentum of f32, or in bf16 as the parameter ---- */

static bool is_of(const Tensor *t, DType d)
{
    return t->dtype == d && tensor_contiguous(t);
}

static bool accepts(const Call *c)
{
    DType p = c->in[P].dtype, d = c->in[G].dtype;
    return (d == F32 ? p == F32 || p == BF16 : d == BF16 && p == BF16) && is_of(&c->in[P], p) &&
           is_of(&c->in[G], d) && (!has_momentum(c->node) || is_of(&c->in[M], d));
}

/* All elements of a step share these. */
typedef struct SgdCoefficients {
    Call *c;
    float lr, scale, decay, momentum;
    Rounding rounding;
} SgdCoefficients;

/* p and p1 are of dtype d, g, m and m1 of gd; m and m1 are NULL where there is no momentum; word:
 * of each element, or NULL: p1 is rounded to nearest. */
INLINE void update(const void *p, const void *g, const void *m, void *p1, void *m1, int64_t n,
                   const SgdCoefficients *step, const uint32_t *word, DType d, DType gd)
{
    const SgdCoefficients s = *step;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float pi = v_load(p, i, d), gi = s.scale * v_load(g, i, gd) + s.decay * pi;
        if (m) {
            gi = s.momentum * v_load(m, i, gd) + gi;
            v_store(m1, i, gi, gd);
        }
        if (word)
            store_rounded(p1, i, pi - s.lr * gi, word[i]);
        else
            v_store(p1, i, pi - s.lr * gi, d);
    }
}

/* Whether there are momentum and words is known to the compiler in each loop. */
#define UPDATE(name, d, gd, word)                                                       \
    KERNEL(void, name,                                                                  \
           (const void *p, const void *g, const void *m, void *p1, void *m1, int64_t n, \
            const SgdCoefficients *s, const uint32_t *words),                           \
           (p, g, m, p1, m1, n, s, words))                                              \
    {                                                                                   \
        (void)words;                                                                    \
        if (m)                                                                          \
            update(p, g, m, p1, m1, n, s, word, d, gd);                                 \
        else                                                                            \
            update(p, g, NULL, p1, NULL, n, s, word, d, gd);                            \
    }

UPDATE(update_f32, F32, F32, NULL)
UPDATE(update_mixed, BF16, F32, NULL)
UPDATE(update_mixed_rounded, BF16, F32, words)
UPDATE(update_bf16, BF16, BF16, NULL)
UPDATE(update_bf16_rounded, BF16, BF16, words)

typedef void UpdateFn(const void *p, const void *g, const void *m, void *p1, void *m1, int64_t n,
                      const SgdCoefficients *s, const uint32_t *words);

static void update_run(const void *arg, int64_t lo, int64_t n, const uint32_t *words)
{
    const SgdCoefficients *s = arg;
    const Tensor *in = s->c->in, *out = s->c->out;
    bool wide = in[G].dtype == F32, has_m = has_momentum(s->c->node);
    UpdateFn *fn = in[P].dtype == F32 ? update_f32
                   : words            ? (wide ? update_mixed_rounded : update_bf16_rounded)
                                      : (wide ? update_mixed : update_bf16);
    fn(element(&in[P], lo), element(&in[G], lo), has_m ? element(&in[M], lo) : NULL,
       element(&out[0], lo), has_m ? element(&out[1], lo) : NULL, n, s, words);
}

static void update_part(void *arg, int64_t lo, int64_t hi)
{
    const SgdCoefficients *s = arg;
    update_walk(&s->rounding, lo, hi, update_run, s);
}

static void keep_part(void *arg, int64_t lo, int64_t hi)
{
    static const int old[] = {P, M};
    const SgdCoefficients *s = arg;
    for (int k = 0; k < s->c->nout; k++)
        memmove(element(&s->c->out[k], lo), element(&s->c->in[old[k]], lo),
                (size_t)((hi - lo) * dtype_size(s->c->out[k].dtype)));
}

static int run(Call *c)
{
    const Attr *a = c->node->attr;
    SgdCoefficients s = {.c = c,
                         .lr = (float)tensor_get(&c->in[LR], 0),
                         .scale = (float)tensor_get(&c->in[SCALE], 0),
                         .decay = (float)a[DECAY].f,
                         .momentum = (float)a[MOMENTUM].f,
                         .rounding = rounding_of(c, ROUNDING)};
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
    .part = part_of,
    .inplace = {1 << P, 1 << M},
    .kernels = kernels,
    .ref = ref,
};
