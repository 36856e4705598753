/* precision: computes in bf16, as mixed precision training does (Micikevicius et al. 2018,
 * arXiv:1710.03740; bf16 needs no loss scaling: Kalamkar et al. 2019, arXiv:1905.12322). A training
 * step is rewritten after grad, so that the dtype of each gradient is decided here, not by a cast's
 * derivative. Every change of dtype is a _to_copy node.
 *
 * With dtype bf16 the column bf16 of op.def says how each op takes its operands (PyTorch's autocast
 * has three of these rules, on other lists): products in bf16; pointwise ops, views, norms, rope,
 * attention and dropout in the widest dtype of their operands, which in a model's graph is bf16,
 * while parameters and constants that bf16 holds adapt; every other op in f32 as written. Within
 * ops, statistics of norms and softmax, sums and the loss are in f32 or better. Logits are bf16,
 * with f32 log-sum-exp and loss, and so is their gradient, in their place: f32 logits would be the
 * largest value of a step, and would be rounded for the next product anyhow.
 *
 * Parameters, their gradients, the optimizer's state and the optimizer stay in f32; products and
 * sums form gradients in f32 from bf16 operands (out_dtype). A parameter that products read is cast
 * once per step, in the phase of its first reader, before views, so that a weight and its transpose
 * share one cast; accumulate leaves casts before its loop. Embedding tables, norm weights and
 * biases are read in f32.
 *
 * With param_dtype bf16 parameters, but for `adapters`, are inputs, and new ones outputs, in bf16;
 * their gradients and state stay f32. With dtype f32 beside it they are widened once per step.
 *
 * Outputs keep their dtypes; new parameters have that of the old. Values of f64 and f16 are left
 * alone. Bodies of loops are rewritten separately, with unchanged ports. A wide copy of a bf16
 * activation is recomputed in the backward rather than saved. Linear. Numerics: each bf16 result is
 * rounded once, relative error 2^-9. */
#include "pass.h"

#include <string.h>

enum { EARLY, LATE, NPART }; /* forward and loss; backward and optimizer */

/* One graph or body. Arrays are by id of the values that were there at the start. */
typedef struct Precision {
    Graph *g;
    Arena *tmp;
    DType dtype;
    int nvalue, changes;
    bool *weight; /* a parameter, or a view of one */
    bool *soft;   /* f32 only because its op reads f32: its readers may take it in bf16 */
    bool *exact; /* must not be rounded: it goes into an f32 output (a gradient) and nowhere else */
    int *uses;
    Value **narrow, **wide[NPART]; /* copies made so far */
} Precision;

/* ---- what must not be rounded ---- */

/* Letters of the column bf16. */
enum { NARROW = 'n', COMMON = 'c', WIDE = 'w', SOFT = 's', RESULT = 'r' };

static bool is_product(const Node *n)
{
    return strchr(n->op->bf16, NARROW);
}

/* How n takes its operand i. If only parameters are bf16, every op computes wide. */
static char letter(const Precision *s, const Node *n, int i)
{
    const char *letters = n->op->bf16;
    if (s->dtype == F32 && (is_product(n) || strchr(letters, COMMON)))
        return WIDE;
    return letters[MIN(i, (int)strlen(letters) - 1)];
}

/* The index of the attribute that names the dtype of a sum, which it need not, or -1. */
static int sum_dtype(const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++)
        if (f[i].kind == ATTR_DTYPE && !f[i].required && f[i].i == NDTYPE)
            return i;
    return -1;
}

/* Whether n passes values on, so that its operands are as exact as its result. */
static bool passes_on(const Precision *s, const Node *n)
{
    return s->dtype == BF16 && n->op->bf16[0] == COMMON && !n->op->bf16[1] && n->nout == 1 &&
           sum_dtype(n) < 0;
}

static void find_exact(Precision *s)
{
    Graph *g = s->g;
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            s->uses[n->in[i]->id]++;
    for (int i = 0; i < g->nout; i++)
        s->uses[g->out[i].v->id]++;
    for (int i = 0; i < g->nout; i++)
        s->exact[g->out[i].v->id] = s->uses[g->out[i].v->id] == 1;
    for (const Node *n = g->last; n; n = n->prev)
        for (int i = 0; i < n->nin && s->exact[n->out[0]->id] && passes_on(s, n); i++)
            s->exact[n->in[i]->id] |= s->uses[n->in[i]->id] == 1;
}

/* ---- copies ---- */

static bool is_cast(const Value *v)
{
    return v->type.dtype == F32 || v->type.dtype == BF16;
}

static Value *as(Precision *s, Build *b, Value *v, DType d);

static void name_after(Graph *g, Value *copy, const Value *v)
{
    const char *name = arena_printf(g->a, "%s.%s", v->name, dtype_name(copy->type.dtype));
    value_rename(g, copy, graph_fresh(g, name));
}

/* The node that made a view of a weight, on the weight in dtype d, for a reader in b's phase: all
 * its results at once. */
static void view_as(Precision *s, Build *b, const Node *n, DType d, Value **copies)
{
    Value *from = as(s, b, n->in[0], d);
    Node *m = emit_clone(b, n, &from);
    m->phase = b->phase;
    m->policy = m->phase < BACKWARD ? m->policy : POLICY_NONE;
    for (int k = 0; k < n->nout; k++) {
        copies[n->out[k]->id] = m->out[k];
        name_after(b->g, m->out[k], n->out[k]);
    }
}

static Value *cast(Build *b, Value *v, DType d)
{
    Graph *g = b->g;
    Value *y;
    if (node_is(v->def, OP_full)) {
        Attr *attr = NEWN(g->a, Attr, op_nattr(v->def->op));
        memcpy(attr, v->def->attr, sizeof *attr * (size_t)op_nattr(v->def->op));
        attr[attr_index(v->def->op, "dtype")].i = d;
        y = emit_named(b, v->def->op, 0, NULL, attr, NULL, -1, NULL, -1)->out[0];
    } else {
        y = emit1(b, "_to_copy", IN(v), ATTRS(A_DTYPE("dtype", d)));
    }
    name_after(g, y, v);
    return y;
}

/* A copy that was made for a reader of a later phase is one for `phase` too. */
static void move_to_phase(const Value *copy, Phase phase)
{
    for (Node *n = copy->def; n && n->phase > phase; n = n->nin ? n->in[0]->def : NULL)
        n->phase = phase;
}

/* v in dtype d: itself, or a copy that stands before the first node that needed it. */
static Value *as(Precision *s, Build *b, Value *v, DType d)
{
    bool shared = d == BF16 || s->weight[v->id] || b->phase <= LOSS;
    Value **copies = d == BF16 ? s->narrow : s->wide[shared ? EARLY : LATE];
    if (v->type.dtype == d)
        return v;
    if (copies[v->id]) {
        move_to_phase(copies[v->id], b->phase);
        return copies[v->id];
    }
    s->changes++;
    if (s->weight[v->id] && v->def)
        view_as(s, b, v->def, d, copies);
    else
        copies[v->id] = cast(b, v, d);
    return copies[v->id];
}

/* ---- nodes ---- */

/* Whether bf16 holds the constant v exactly. */
static bool is_exact_constant(const Value *v)
{
    if (!node_is(v->def, OP_full))
        return false;
    double x = v->def->attr[attr_index(v->def->op, "fill_value")].f;
    return x != x || (double)bf16_to_f32(f32_to_bf16((float)x)) == x;
}

/* The dtype in which n takes its COMMON operands, NDTYPE where these leave that open. */
static DType widest(const Precision *s, const Node *n)
{
    DType d = NDTYPE;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        if (!is_cast(v) || letter(s, n, i) != COMMON || s->weight[v->id] || is_exact_constant(v))
            continue;
        if (v->type.dtype == F32 && !s->soft[v->id])
            return F32;
        d = BF16;
    }
    return d;
}

static DType common_dtype(const Precision *s, const Node *n)
{
    DType d = widest(s, n);
    if (d == NDTYPE)
        return n->op->view ? NDTYPE : F32;
    return s->exact[n->out[0]->id] && passes_on(s, n) ? F32 : d;
}

static void set_operands(Precision *s, Node *n)
{
    Build b = {.g = s->g, .before = n, .phase = n->phase, .scope = n->scope};
    DType common = common_dtype(s, n), sum = sum_dtype(n) < 0 ? NDTYPE : F32;
    for (int i = 0; i < n->nin; i++) {
        char x = letter(s, n, i);
        DType d = x == NARROW   ? BF16
                  : x == WIDE   ? F32
                  : x == COMMON ? common
                  : x == RESULT ? sum
                                : NDTYPE;
        if (is_cast(n->in[i]) && d != NDTYPE)
            n->in[i] = as(s, &b, n->in[i], d);
    }
}

static void set_types(Precision *s, Node *n)
{
    Type type[TN_MAX_OUT] = {0};
    op_infer(s->g, n, type);
    for (int k = 0; k < n->nout; k++)
        n->out[k]->type = type[k];
}

/* Sums of bf16 in f32: products only where the result must not be rounded, others always. */
static void set_sum(Precision *s, Node *n)
{
    int i = sum_dtype(n), count = op_nattr(n->op);
    int first = is_product(n) ? (int)strcspn(n->op->bf16, "n") : 0;
    DType summed = n->nin ? n->in[first]->type.dtype : NDTYPE;
    if (i < 0 || summed != BF16 || (is_product(n) && !s->exact[n->out[0]->id]))
        return;
    Attr *attr = NEWN(s->g->a, Attr, count);
    memcpy(attr, n->attr, sizeof *attr * (size_t)count);
    attr[i].i = F32;
    n->attr = attr;
}

static void rewrite_region(Precision *s, Node *n);

static void rewrite_node(Precision *s, Node *n)
{
    if (n->region) {
        rewrite_region(s, n);
        return;
    }
    for (int k = 0; k < n->nout; k++) {
        s->weight[n->out[k]->id] = n->op->view && s->weight[n->in[0]->id];
        s->soft[n->out[k]->id] = s->dtype == BF16 && strchr(n->op->bf16, SOFT);
    }
    set_operands(s, n);
    set_sum(s, n);
    set_types(s, n);
}

/* ---- graphs ---- */

/* An output whose dtype changed goes back to what it was, at once. */
static void restore_outputs(Precision *s, const DType *before)
{
    Graph *g = s->g;
    Map renewed = {.a = s->tmp}; /* what takes an input's place has its dtype */
    for (int i = 0; i < g->nin; i++)
        if (role_renewed(g->in[i].role))
            map_put(&renewed, g->in[i].name, g->in[i].v);
    for (int i = 0; i < g->nout; i++) {
        Value *v = g->out[i].v;
        const Value *old = g->out[i].role == ROLE_NEW ? map_find(&renewed, g->out[i].name) : NULL;
        DType want = old ? old->type.dtype : g->out[i].role == ROLE_NEW ? v->type.dtype : before[i];
        if (v->type.dtype == want)
            continue;
        Build b = {.g = g,
                   .before = v->def ? v->def->next : g->first,
                   .phase = v->def ? v->def->phase : FORWARD,
                   .scope = v->def ? v->def->scope : ""};
        g->out[i].v = cast(&b, v, want);
        s->changes++;
    }
}

/* weight[i]: input i is a parameter, which becomes params[i]. */
static int rewrite(Graph *g, Arena *tmp, DType dtype, const bool *weight, const DType *params)
{
    int n = g->nvalue;
    DType *before = NEWN(tmp, DType, g->nout);
    Precision s = {.g = g, .tmp = tmp, .dtype = dtype, .weight = NEWN(tmp, bool, n)};
    s.soft = NEWN(tmp, bool, n);
    s.exact = NEWN(tmp, bool, n);
    s.uses = NEWN(tmp, int, n);
    s.narrow = NEWN(tmp, Value *, n);
    for (int i = 0; i < NPART; i++)
        s.wide[i] = NEWN(tmp, Value *, n);
    for (int i = 0; i < g->nout; i++)
        before[i] = g->out[i].v->type.dtype;
    for (int i = 0; i < g->nin; i++) {
        Value *v = g->in[i].v;
        s.weight[v->id] = weight[i] && is_cast(v);
        s.changes += s.weight[v->id] && v->type.dtype != params[i];
        v->type.dtype = s.weight[v->id] ? params[i] : v->type.dtype;
    }
    find_exact(&s);
    EACH_NODE(m, g)
        rewrite_node(&s, m);
    restore_outputs(&s, before);
    return s.changes;
}

/* The ports keep their types: operands go in as f32, and a body's results come out as they did. */
static void rewrite_region(Precision *s, Node *n)
{
    const Region *r = n->region;
    bool *given = NEWN(s->tmp, bool, n->nin); /* by operand, before casts take their places */
    for (int i = 0; i < n->nin; i++)
        given[i] = s->weight[n->in[i]->id];
    set_operands(s, n);
    EACH_BODY(b, n) {
        bool *weight = NEWN(s->tmp, bool, r->body[b]->nin);
        DType *wide = NEWN(s->tmp, DType, r->body[b]->nin);
        for (int j = 0; j < r->nin; j++) {
            int i = r->in[j].at[b];
            if (i >= 0 && r->in[j].kind == PORT_WHOLE)
                weight[i] = given[r->in[j].arg];
        }
        for (int i = 0; i < r->body[b]->nin; i++)
            wide[i] = F32;
        s->changes += rewrite(r->body[b], s->tmp, s->dtype, weight, wide);
    }
}

static void check_dtype(const Graph *g, const char *name, DType d)
{
    if (d != F32 && d != BF16)
        fail(g->ctx, TN_USAGE, "precision: %s: expected f32 or bf16, found %s", name,
             dtype_name(d));
}

int pass_precision(Graph *g, Arena *tmp, const PassOptions *o)
{
    check_dtype(g, "dtype", o->dtype);
    check_dtype(g, "param_dtype", o->param_dtype);
    if (o->dtype == F32 && o->param_dtype == F32)
        return 0;
    bool *weight = NEWN(tmp, bool, g->nin);
    DType *params = NEWN(tmp, DType, g->nin);
    for (int i = 0; i < g->nin; i++) {
        weight[i] = g->in[i].role == ROLE_PARAM;
        params[i] = weight[i] && globs_match(&o->adapters, g->in[i].name) ? F32 : o->param_dtype;
    }
    return rewrite(g, tmp, o->dtype, weight, params);
}
