/* Calls on lists of tensors: _foreach_X is X for each element, in order; a fused optimizer is one
 * update for each parameter. */
#include "lower.h"

#include <string.h>

/* ---- X of each element ---- */

/* How many elements the lists have. */
static int list_length(Site *s)
{
    const Item *first = NULL;
    for (int k = 0; k < s->narg; k++) {
        const Item *x = &s->arg[k];
        if (x->kind == FX_LIST && first && first->count != x->count)
            site_fail(s, "argument %s: expected %d elements as in the lists before, found %d",
                      s->arg_name[k], first->count, x->count);
        first = x->kind == FX_LIST && !first ? x : first;
    }
    return first ? first->count : 0;
}

/* Calls row->each: an overload, and the keyword of its last argument where it must have one. */
void row_foreach(Site *s)
{
    const char *each = s->row->each, *space = strchr(each, ' '), *key[FX_MAX_ARG] = {0};
    int n = list_length(s);
    Item *out = NEWN(s->im->a, Item, n + 1), arg[FX_MAX_ARG];
    for (int k = 0; k < s->narg; k++)
        key[k] = s->arg_keyword[k] ? s->arg_name[k] : NULL;
    if (space)
        key[s->narg - 1] = space + 1;
    const char *name = arena_strndup(s->im->a, each, strcspn(each, " "));
    Expr call = {.kind = EX_CALL, .count = s->narg, .key = key};
    call.s = arena_printf(s->im->a, "torch.ops.aten.%s", name);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < s->narg; k++)
            arg[k] = s->arg[k].kind == FX_LIST ? s->arg[k].item[i] : s->arg[k];
        out[i] = fx_call(s->im, &call, arg);
    }
    s->result = (Item){.kind = FX_LIST, .count = n, .item = out};
}

/* addcmul and addcdiv whose factors are the elements of one tensor */
void row_foreach_factors(Site *s)
{
    int n, count;
    const char *op = strstr(s->row->name, "addcdiv") ? "div" : "mul";
    Value **x = site_tensors(s, "self", &n), *factor = site_tensor(s, "scalars");
    Value **a = site_tensors(s, "tensor1", &count), **b = site_tensors(s, "tensor2", &count);
    if (list_length(s) != n || factor->type.rank != 1 || factor->type.dim[0] != n)
        site_fail(s, "argument scalars: expected %d elements, found %s", n,
                  type_text(s->im->a, &factor->type));
    for (int i = 0; i < n; i++) {
        Value *one = lower_reshape(s, lower_slice(s, factor, 0, i, i + 1, 1), 0, NULL);
        Value *y =
            lower2(s, "mul", lower2(s, op, a[i], b[i]), lower_cast(s, one, x[i]->type.dtype));
        x[i] = lower2(s, "add", x[i], y);
    }
    site_return_list(s, n, x);
}

/* ---- fused optimizers ---- */

/* The lists to update, one for each of the first arguments, in their order. */
enum { MOST_LISTS = 5 };

typedef struct ListUpdate {
    Value **list[MOST_LISTS];
    int nlist, count;
    Value *lr, *apply; /* apply: a bool, NULL: always */
} ListUpdate;

/* The lists, of which those from `need` on may be empty; gradients (list 1) are divided by
 * grad_scale. */
static ListUpdate update_of(Site *s, int nlist, int need)
{
    ListUpdate u = {.nlist = nlist, .count = s->arg[0].count};
    for (int k = 0; k < nlist; k++) {
        int n = 0;
        u.list[k] = site_tensors(s, s->arg_name[k], &n);
        if (n != u.count && (n || k < need))
            site_fail(s, "argument %s: expected %d tensors, found %d", s->arg_name[k], u.count, n);
    }
    const Item *lr = site_arg(s, "lr");
    u.lr = lower_reshape(s, promoted(s, lr, F64), 0, NULL);
    Value *found = site_find_tensor(s, "found_inf"), *scale = site_find_tensor(s, "grad_scale");
    if (found)
        u.apply = lower2(s, "eq", lower_reshape(s, found, 0, NULL), lower_like(s, 0, found));
    for (int i = 0; scale && i < u.count; i++) {
        Value *g = u.list[1][i];
        scale = lower_cast(s, lower_reshape(s, scale, 0, NULL), g->type.dtype);
        Value *unscaled = lower2(s, "div", g, scale);
        u.list[1][i] = u.apply ? lower_where(s, u.apply, unscaled, g) : unscaled;
    }
    return u;
}

/* The lists after the update, as the functional forms return them. What did not change needs no
 * copy. */
static void return_update(Site *s, const ListUpdate *u)
{
    Item *out = NEWN(s->im->a, Item, u->nlist);
    for (int k = 0; k < u->nlist; k++) {
        const Item *before = &s->arg[k];
        Value **v = NEWN(s->im->a, Value *, before->count + 1);
        for (int i = 0; i < before->count; i++)
            v[i] = u->list[k][i] == fx_peek(s->im, before->item[i].t) ? NULL : u->list[k][i];
        site_return_list(s, before->count, v);
        out[k] = s->result;
        for (int i = 0; i < before->count; i++)
            if (!v[i])
                out[k].item[i] = (Item){.kind = FX_TENSOR, .t = fx_fresh(s->im, u->list[k][i])};
    }
    s->result = (Item){.kind = FX_LIST, .count = u->nlist, .item = out};
}

/* y where the step applies, else x as it was */
static Value *applied(Site *s, const ListUpdate *u, Value *y, Value *x)
{
    return u->apply ? lower_where(s, u->apply, y, x) : y;
}

/* g, or -g where the objective grows, and decay p */
static Value *ascent(Site *s, Value *g, Value *p, double decay)
{
    if (site_bool(s, "maximize"))
        g = lower1(s, "neg", g);
    return decay != 0 ? lower2(s, "add", g, lower_times(s, p, decay)) : g;
}

/* x + (y - x) weight */
static Value *lerp(Site *s, Value *x, Value *y, double weight)
{
    return lower2(s, "add", x, lower_times(s, lower2(s, "sub", y, x), weight));
}

/* 1 - beta^step, in double */
static Value *bias_correction(Site *s, Value *step, double beta)
{
    Value *power = lower2(s, "pow", lower_number(s, beta, F64), lower_cast(s, step, F64));
    return lower2(s, "sub", lower_number(s, 1, F64), power);
}

enum { P, G, M, V, MOST };

/* Adam with the largest second moment so far: no op of ours. */
static void amsgrad(Site *s, ListUpdate *u, int i, Value *g, Value *step, double decay)
{
    Value *p = u->list[P][i], *m = u->list[M][i], *v = u->list[V][i];
    double beta1 = site_real(s, "beta1"), beta2 = site_real(s, "beta2");
    DType d = p->type.dtype;
    Value *next_m = lerp(s, m, g, 1 - beta1);
    Value *next_v = lower2(s, "add", lower_times(s, v, beta2),
                           lower_times(s, lower2(s, "mul", g, g), 1 - beta2));
    Value *most = lower2(s, "maximum", u->list[MOST][i], next_v);
    Value *size = lower2(s, "div", u->lr, bias_correction(s, step, beta1));
    Value *root = lower1(s, "sqrt", bias_correction(s, step, beta2));
    Value *bound = lower2(s, "div", lower1(s, "sqrt", most), lower_cast(s, root, d));
    bound = lower2(s, "add", bound, lower_like(s, site_real(s, "eps"), bound));
    Value *change = lower2(s, "mul", lower2(s, "div", next_m, bound), lower_cast(s, size, d));
    if (decay != 0) {
        Value *keep = lower2(s, "sub", lower_number(s, 1, F64), lower_times(s, u->lr, decay));
        change = lower2(s, "sub", lower2(s, "mul", p, lower_cast(s, keep, d)), change);
    } else {
        change = lower2(s, "sub", p, change);
    }
    u->list[P][i] = applied(s, u, change, p);
    u->list[M][i] = applied(s, u, next_m, m);
    u->list[V][i] = applied(s, u, next_v, v);
    u->list[MOST][i] = applied(s, u, most, u->list[MOST][i]);
}

static void adam_step(Site *s, ListUpdate *u, int i, Value *g, Value *step, double decay)
{
    Value *scale = lower_number(s, 1, F32);
    Value *apply = u->apply ? u->apply : lower_number(s, 1, BOOL);
    Node *n =
        emit(s->b, "adamw",
             IN(u->list[P][i], g, u->list[M][i], u->list[V][i], u->lr, lower_cast(s, step, I64),
                scale, apply),
             ATTRS(A_FLOAT("beta1", site_real(s, "beta1")), A_FLOAT("beta2", site_real(s, "beta2")),
                   A_FLOAT("eps", site_real(s, "eps")), A_FLOAT("weight_decay", decay)));
    u->list[P][i] = n->out[0];
    u->list[M][i] = n->out[1];
    u->list[V][i] = n->out[2];
}

/* Weight decay of adamw is decoupled, of adam a part of the gradient. */
void row_fused_adam(Site *s)
{
    int nstep;
    ListUpdate u = update_of(s, 5, 4);
    Value **step = site_tensors(s, "state_steps", &nstep);
    bool decoupled = strstr(s->row->name, "adamw") != NULL;
    double decay = site_real(s, "weight_decay");
    if (nstep != u.count || (site_bool(s, "amsgrad") && !s->arg[MOST].count))
        site_fail(s, "expected %d steps and, for amsgrad, as many maxima", u.count);
    for (int i = 0; i < u.count; i++) {
        Value *g = ascent(s, u.list[G][i], u.list[P][i], decoupled ? 0 : decay);
        Value *t = lower_reshape(s, step[i], 0, NULL);
        if (site_bool(s, "amsgrad"))
            amsgrad(s, &u, i, g, t, decoupled ? decay : 0);
        else
            adam_step(s, &u, i, g, t, decoupled ? decay : 0);
    }
    return_update(s, &u);
}

/* In the first step the momentum is the gradient, whatever its buffer holds. */
void row_fused_sgd(Site *s)
{
    double momentum = site_real(s, "momentum"), dampening = site_real(s, "dampening");
    bool first = site_bool(s, "is_first_step");
    int nbuffer = s->arg[M].count;
    s->arg[M].count = first ? 0 : nbuffer; /* it may be empty, which is not to be read */
    ListUpdate u = update_of(s, 3, 2);
    s->arg[M].count = nbuffer;
    if (first)
        u.list[M] = NEWN(s->im->a, Value *, nbuffer + 1);
    for (int i = 0; first && i < nbuffer; i++)
        u.list[M][i] = fx_peek(s->im, s->arg[M].item[i].t);
    for (int i = 0; i < u.count; i++) {
        Value *p = u.list[P][i], *g = ascent(s, u.list[G][i], p, site_real(s, "weight_decay"));
        if (momentum != 0 && nbuffer != u.count)
            site_fail(s, "argument momentum_buffer_list: expected %d tensors", u.count);
        if (momentum != 0) {
            Value *m = first ? g
                             : lower2(s, "add", lower_times(s, u.list[M][i], momentum),
                                      lower_times(s, g, 1 - dampening));
            u.list[M][i] = applied(s, &u, m, u.list[M][i]);
            g = site_bool(s, "nesterov") ? lower2(s, "add", g, lower_times(s, m, momentum)) : m;
        }
        Value *change = lower2(s, "mul", g, lower_cast(s, u.lr, p->type.dtype));
        u.list[P][i] = applied(s, &u, lower2(s, "sub", p, change), p);
    }
    return_update(s, &u);
}

/* The squares of gradients summed; lr falls with the steps. */
void row_fused_adagrad(Site *s)
{
    ListUpdate u = update_of(s, 4, 4);
    for (int i = 0; i < u.count; i++) {
        Value *p = u.list[P][i], *g = ascent(s, u.list[G][i], p, site_real(s, "weight_decay"));
        Value *sum = lower2(s, "add", u.list[M][i], lower2(s, "mul", g, g));
        Value *bound = lower1(s, "sqrt", sum);
        bound = lower2(s, "add", bound, lower_like(s, site_real(s, "eps"), bound));
        Value *t = lower_cast(s, lower_reshape(s, u.list[V][i], 0, NULL), F64);
        Value *one = lower_number(s, 1, F64);
        t = lower_times(s, lower2(s, "sub", t, one), site_real(s, "lr_decay"));
        Value *rate =
            lower_cast(s, lower2(s, "div", u.lr, lower2(s, "add", t, one)), p->type.dtype);
        Value *change = lower2(s, "mul", lower2(s, "div", g, bound), rate);
        u.list[P][i] = applied(s, &u, lower2(s, "sub", p, change), p);
        u.list[M][i] = applied(s, &u, sum, u.list[M][i]);
    }
    return_update(s, &u);
}
