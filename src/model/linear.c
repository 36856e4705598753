/* Linear modules, with the adapters beside them: LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA
 * (Liu et al. 2024, arXiv:2402.09353), as PEFT computes them. W is [out, in], A [r, in], B [out,
 * r]:
 *
 *   LoRA  y = x W^T + b + s d(x) A^T B^T
 *   DoRA  y = g (x W^T + s x A^T B^T) + b, g = magnitude / norm(W + s B A), by rows
 *
 * d is dropout, with a stream for each module; s is alpha / r, or alpha / sqrt(r) (rsLoRA). The
 * factor s goes on d(x) A^T, the smallest of the values, and the last product adds to y in its
 * place. DoRA's norm counts as a constant, as in its paper (section 4.3). With dropout DoRA adds g
 * (d(x) W^T + s d(x) A^T B^T) - d(x) W^T to x W^T + b. */
#include "model.h"

/* A module's weight and its adapter. */
typedef struct Linear {
    Value *weight, *w, *bias; /* w: the weight as [in, out]; bias NULL: none */
    Value *a, *b, *magnitude; /* a NULL: it has no adapter; magnitude NULL: no DoRA */
    double scale;             /* s */
    bool in_first;
} Linear;

static const char *name_of(const Model *m, const char *module, const char *which)
{
    return lora_name(m->b.g->a, m->c, m->layer, module, which);
}

static Value *find_adapter(const Model *m, const char *module, const char *which)
{
    return map_find(&m->params, name_of(m, module, which));
}

static Linear find_linear(Model *m, const char *module, bool bias, bool in_first)
{
    Linear l = {.weight = model_weight(m, module, "weight"), .in_first = in_first};
    l.w = in_first ? l.weight : emit1(&m->b, "t", IN(l.weight), NOATTRS);
    if (bias)
        l.bias = model_weight(m, module, "bias");
    if (!m->c->lora)
        return l;
    l.a = find_adapter(m, module, "lora_A.weight");
    l.scale = l.a ? lora_scale(m->b.g->a, m->c->lora, name_of(m, module, "lora_A.weight")) : 1;
    l.b = find_adapter(m, module, "lora_B.weight");
    l.magnitude = find_adapter(m, module, "lora_magnitude_vector");
    return l;
}

static Value *turn(Model *m, Value *x)
{
    return emit1(&m->b, "t", IN(x), NOATTRS);
}

static Value *two(Model *m, const char *op, Value *x, Value *y)
{
    return emit1(&m->b, op, IN(x, y), NOATTRS);
}

static Value *product(Model *m, Value *x, const Linear *l, bool bias)
{
    if (bias && l->bias)
        return emit1(&m->b, "addmm", IN(l->bias, x, l->w), NOATTRS);
    return two(m, "mm", x, l->w);
}

static Value *scaled(Model *m, Value *x, double s)
{
    return s == 1 ? x : two(m, "mul", x, emit_full(&m->b, s, x->type.dtype));
}

/* y + s x A^T B^T. */
static Value *add_low_rank(Model *m, Value *y, Value *x, const Linear *l)
{
    Value *h = scaled(m, two(m, "mm", x, turn(m, l->a)), l->scale);
    return emit1(&m->b, "addmm", IN(y, h, turn(m, l->b)), NOATTRS);
}

/* magnitude / norm(W + s B A): [out]. */
static Value *gain(Model *m, const Linear *l)
{
    const int64_t in_axis[] = {l->in_first ? 0 : 1};
    Value *a = scaled(m, l->a, l->scale), *b = l->b;
    Value *v = l->in_first ? emit1(&m->b, "addmm", IN(l->weight, turn(m, a), turn(m, b)), NOATTRS)
                           : emit1(&m->b, "addmm", IN(l->weight, b, a), NOATTRS);
    v = emit1(&m->b, "detach", IN(v), NOATTRS);
    Value *sum = emit1(&m->b, "sum", IN(two(m, "mul", v, v)), ATTRS(A_INTS("dim", 1, in_axis)));
    return two(m, "div", l->magnitude, emit1(&m->b, "sqrt", IN(sum), NOATTRS));
}

static Value *dora(Model *m, Value *x, const Linear *l)
{
    Value *y = two(m, "mul", add_low_rank(m, product(m, x, l, false), x, l), gain(m, l));
    return l->bias ? two(m, "add", y, l->bias) : y;
}

static Value *dora_dropped(Model *m, Value *x, Value *dropped, const Linear *l)
{
    Value *y = product(m, x, l, true), *base = product(m, dropped, l, false);
    Value *adapted = two(m, "mul", add_low_rank(m, base, dropped, l), gain(m, l));
    return two(m, "add", y, two(m, "sub", adapted, base));
}

static Value *dropped(Model *m, Value *x, const Linear *l)
{
    int64_t width = l->a->type.dim[1];
    return m->adapter_dropout > 0 ? model_dropped(m, x, width, m->adapter_dropout) : x;
}

Value *model_linear(Model *m, Value *x, const char *module, bool bias, bool in_first)
{
    model_scope(m, module);
    Linear l = find_linear(m, module, bias, in_first);
    if (!l.a)
        return product(m, x, &l, true);
    if (!l.magnitude) {
        Value *y = product(m, x, &l, true);
        model_scope(m, arena_printf(m->b.g->a, "%s.lora", module));
        return add_low_rank(m, y, dropped(m, x, &l), &l);
    }
    model_scope(m, arena_printf(m->b.g->a, "%s.lora", module));
    Value *d = dropped(m, x, &l);
    return d == x ? dora(m, x, &l) : dora_dropped(m, x, d, &l);
}
