/* optimizer: appends an update, AdamW (Loshchilov & Hutter 2019) or SGD, for every gradient.
 * Clipping by global norm is an operand `scale` of the update, so no scaled copies of gradients
 * exist. The operand `apply` is false if the norm or the loss (without clipping: the loss) is not
 * finite; then the step changes nothing. Adds the inputs lr and, for AdamW, step, the states
 * (AdamW: PARAM.m, PARAM.v; SGD with momentum: PARAM.m), and the metric grad_norm. Weight decay
 * applies to parameters of two or more dimensions that no pattern of no_decay matches. Parameters
 * of 16 bits are rounded stochastically (op/update.c), each by a stream of its own and the inputs
 * seed and step, or to nearest where o->rounding says so, with a warning. Linear. */
#include "pass.h"

#include <string.h>

enum { MOST_STATES = 2, MOST_OPERANDS = 10 };

/* The stream of the first parameter's rounding, above those of dropout; the others follow. */
enum { ROUNDING_STREAM = 0x52000000 };

typedef struct ParamUpdate {
    Build b;
    const PassOptions *o;
    Value *lr, *step, *scale, *apply;
    Value *seed;    /* NULL: nothing is rounded stochastically */
    int64_t stream; /* of the next parameter's rounding */
    int nstate;     /* of a parameter */
    Node *(*emit)(struct ParamUpdate *u, Value *p, Value *grad, Value *const *state, double decay);
} ParamUpdate;

static const char *const suffix[MOST_STATES] = {"m", "v"};

static Value *input(Graph *g, const char *name, Type t, Role role, const char *role_name)
{
    Port *p = graph_find_input(g, role, role_name);
    return p ? p->v : graph_input(g, name, t, role, role_name);
}

/* Inputs and outputs that the graph has already, by name. */
typedef struct NamedPorts {
    Map param, state, renewed;
} NamedPorts;

static Value *state(Graph *g, const NamedPorts *known, const Value *p, const char *param, int k)
{
    Type t = p->type;
    t.dtype = t.dtype == F64 ? F64 : F32;
    const char *name = arena_printf(g->a, "%s.%s", param, suffix[k]);
    Value *v = map_find(&known->state, name);
    return v ? v
             : graph_input(g, arena_printf(g->a, "%s.%s", p->name, suffix[k]), t, ROLE_STATE, name);
}

/* An output that takes the place of input p, called after it. */
static void replace(Graph *g, Value *v, const Value *p, const char *name)
{
    value_rename(g, v, graph_fresh(g, arena_printf(g->a, "%s.new", p->name)));
    graph_output(g, v, ROLE_NEW, name);
}

static bool is_narrow(const Value *p)
{
    return dtype_size(p->type.dtype) == 2;
}

/* The update of p by its own operands and attributes, and those that say how it is rounded. */
static Node *emit_update(ParamUpdate *u, const char *op, Value *const *own, int nown, AttrArg *attr,
                         int nattr)
{
    const Type *t = &own[0]->type;
    Value *in[MOST_OPERANDS];
    memcpy(in, own, sizeof *in * (size_t)nown);
    if (u->seed && is_narrow(own[0])) {
        in[nown++] = u->seed;
        in[nown++] = u->step;
        attr[nattr++] = A_INT("rounding", u->stream++);
        attr[nattr++] = A_INTS("extents", t->rank, t->dim);
    }
    attr[nattr] = (AttrArg){0};
    return emit(&u->b, op, nown, in, attr);
}

static Node *adamw(ParamUpdate *u, Value *p, Value *grad, Value *const *state, double decay)
{
    const PassOptions *o = u->o;
    Value *in[] = {p, grad, state[0], state[1], u->lr, u->step, u->scale, u->apply};
    AttrArg attr[7] = {A_FLOAT("beta1", o->beta1), A_FLOAT("beta2", o->beta2),
                       A_FLOAT("eps", o->eps), A_FLOAT("weight_decay", decay)};
    return emit_update(u, "adamw", in, 8, attr, 4);
}

static Node *sgd(ParamUpdate *u, Value *p, Value *grad, Value *const *state, double decay)
{
    Value *in[] = {p, grad, u->lr, u->scale, u->apply, state[0]};
    AttrArg attr[5] = {A_FLOAT("weight_decay", decay), A_FLOAT("momentum", u->o->momentum)};
    return emit_update(u, "sgd", in, 5 + u->nstate, attr, 2);
}

static void update(ParamUpdate *u, const NamedPorts *known, Port grad)
{
    Graph *g = u->b.g;
    if (map_find(&known->renewed, grad.name))
        fail(g->ctx, TN_USAGE, "optimizer: \"%s\" has a new value already", grad.name);
    Value *p = map_find(&known->param, grad.name), *states[MOST_STATES] = {NULL};
    for (int k = 0; k < u->nstate; k++)
        states[k] = state(g, known, p, grad.name, k);
    bool decays = p->type.rank >= 2 && !globs_match(&u->o->no_decay, grad.name);
    double decay = decays ? u->o->weight_decay : 0;
    Node *n = u->emit(u, p, grad.v, states, decay);
    replace(g, n->out[0], p, grad.name);
    for (int k = 0; k < u->nstate; k++)
        replace(g, n->out[k + 1], states[k], arena_printf(g->a, "%s.%s", grad.name, suffix[k]));
}

/* norm + loss, which is finite where both are (but for sums beyond the dtype); a loss of infinity
 * can have gradients that are finite. */
static Value *with_loss(ParamUpdate *u, Value *norm)
{
    const Port *loss = graph_find_output(u->b.g, ROLE_LOSS, NULL);
    if (!loss)
        return norm;
    return emit1(&u->b, "add", IN(norm, emit_cast(&u->b, loss->v, norm->type.dtype)), NOATTRS);
}

static Value *emit_norm(ParamUpdate *u, const Port *grad, int count)
{
    Value **sum = NEWN(u->b.g->a, Value *, count);
    for (int i = 0; i < count; i++)
        sum[i] = emit1(&u->b, "sum_squares", IN(grad[i].v), NOATTRS);
    DType d = count ? grad[0].v->type.dtype : F32;
    return emit1(&u->b, "norm_of", count, sum, ATTRS(A_DTYPE("dtype", d)));
}

static void clip(ParamUpdate *u, const Port *grad, int count)
{
    Graph *g = u->b.g;
    Value *norm = emit_norm(u, grad, count);
    u->apply = emit1(&u->b, "isfinite", IN(with_loss(u, norm)), NOATTRS); /* its sum dies first */
    u->scale = emit1(&u->b, "clip_scale", IN(norm), ATTRS(A_FLOAT("max_norm", u->o->clip)));
    graph_output(g, norm, ROLE_METRIC, "grad_norm");
}

/* Takes the gradients out of the outputs; they stay outputs only without an optimizer. Those of 16
 * bits go on in f32, as the state is. */
static Port *take_gradients(Graph *g, Arena *tmp, int *count)
{
    Build b = {.g = g, .phase = OPTIMIZER};
    Port *grad = NEWN(tmp, Port, g->nout);
    int kept = 0;
    *count = 0;
    for (int i = 0; i < g->nout; i++) {
        if (g->out[i].role != ROLE_GRAD) {
            g->out[kept++] = g->out[i];
            continue;
        }
        Value *v = g->out[i].v;
        g->out[i].v = emit_cast(&b, v, v->type.dtype == F64 ? F64 : F32);
        grad[(*count)++] = g->out[i];
    }
    g->nout = kept;
    return grad;
}

/* Without clipping the loss says whether the step is taken. */
static void watch_loss(ParamUpdate *u)
{
    Graph *g = u->b.g;
    const Port *loss = graph_find_output(g, ROLE_LOSS, NULL);
    if (!loss)
        fail(g->ctx, TN_USAGE,
             "optimizer: expected a loss (whether it is finite decides if the "
             "step is taken), or clipping");
    u->scale = emit_full(&u->b, 1, F32);
    u->apply = emit1(&u->b, "isfinite", IN(loss->v), NOATTRS);
}

/* The seed by which parameters are rounded; NULL where none of those with gradients has 16 bits, or
 * they are to be rounded to nearest, which is warned of. */
static Value *rounding_seed(ParamUpdate *u, Arena *tmp, const Port *grad, int count)
{
    Graph *g = u->b.g;
    Map param = graph_named(g->in, g->nin, ROLE_PARAM, tmp);
    int narrow = 0;
    for (int i = 0; i < count; i++) {
        const Value *p = map_find(&param, grad[i].name);
        narrow += is_narrow(p);
    }
    bool nearest = u->o->rounding && !strcmp(u->o->rounding, "nearest");
    if (narrow && nearest && u->o->warn)
        u->o->warn(
            u->o->warn_arg,
            arena_printf(tmp,
                         "rounding nearest: of %d parameters of 16 bits updates below half a "
                         "unit of the last place, 1/512 of a weight in bf16, are lost in "
                         "every step; --rounding stochastic keeps their mean",
                         narrow));
    return narrow && !nearest ? input(g, "seed", type_make(I64, 0, NULL), ROLE_SEED, NULL) : NULL;
}

int pass_optimizer(Graph *g, Arena *tmp, const PassOptions *o)
{
    bool is_adamw = !strcmp(o->optimizer, "adamw");
    if (!strcmp(o->optimizer, "none"))
        return 0;
    if (!is_adamw && strcmp(o->optimizer, "sgd"))
        fail(g->ctx, TN_USAGE, "optimizer: expected adamw, sgd or none, found \"%s\"",
             o->optimizer);
    pass_check_names(g, tmp, &o->no_decay, "no-decay");
    int before = g->nnode, count;
    Port *grad = take_gradients(g, tmp, &count);
    ParamUpdate u = {.b = {.g = g, .phase = OPTIMIZER},
                     .o = o,
                     .stream = ROUNDING_STREAM,
                     .nstate = is_adamw ? 2 : o->momentum > 0,
                     .emit = is_adamw ? adamw : sgd};
    u.lr = input(g, "lr", type_make(F32, 0, NULL), ROLE_SCALAR, "lr");
    u.seed = rounding_seed(&u, tmp, grad, count);
    if (is_adamw || u.seed)
        u.step = input(g, "step", type_make(I64, 0, NULL), ROLE_STEP, NULL);
    if (o->clip > 0)
        clip(&u, grad, count);
    else
        watch_loss(&u);
    const NamedPorts known = {graph_named(g->in, g->nin, ROLE_PARAM, tmp),
                              graph_named(g->in, g->nin, ROLE_STATE, tmp),
                              graph_named(g->out, g->nout, ROLE_NEW, tmp)};
    for (int i = 0; i < count; i++)
        update(&u, &known, grad[i]);
    return g->nnode - before;
}
