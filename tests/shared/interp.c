/* Interpreter of graphs: each node by its op's ref on whole tensors, values kept until the end.
 * Loops follow ir.h's ports iteration by iteration. Slow and obvious on purpose: nothing is planned
 * or shared. */
#include "interp.h"

#include "case.h"

#include <math.h>
#include <string.h>

/* noise: every computed floating-point element is multiplied by 1 plus at most this. Results of ops
 * that are neither elementwise nor views are formed of several terms, as large as their largest
 * element or more, that may cancel in the others: all of these have a tenth of its noise as well.
 */
typedef struct Interp {
    Arena *a;
    double noise;
    uint64_t seed, count;
} Interp;

static void run_graph(Interp *p, const Graph *g, const Tensor *in, Tensor *out);

/* ---- loops ---- */

/* The elements [at, at + size) on an axis, without copying. */
static Tensor part_of(const Tensor *t, int axis, int64_t at, int64_t size)
{
    Tensor s = *t;
    s.data += at * t->stride[axis] * dtype_size(t->dtype);
    s.dim[axis] = size;
    return s;
}

static Tensor without_axis0(const Tensor *t, int64_t at)
{
    Tensor s = part_of(t, 0, at, 1);
    s.rank--;
    memmove(s.dim, s.dim + 1, sizeof *s.dim * (TN_RANK - 1));
    memmove(s.stride, s.stride + 1, sizeof *s.stride * (TN_RANK - 1));
    return s;
}

LoopRun loop_start(Arena *a, const Node *n, const Tensor *in, Tensor *out)
{
    const Region *r = n->region;
    LoopRun l = {a, n, in, NEWN(a, Tensor, r->nin), out, 0};
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_CARRY)
            l.carry[j] = in[r->in[j].arg];
    memset(out, 0, sizeof *out * (size_t)r->nout);
    return l;
}

static int64_t iteration_of(const LoopRun *l)
{
    const Region *r = l->n->region;
    return r->reverse ? r->n - 1 - l->done + region_nbody(r) - 1 : l->done;
}

const Graph *loop_body(const LoopRun *l)
{
    const Region *r = l->n->region;
    if (l->done == r->n + region_nbody(r) - 1)
        return NULL;
    return r->body[iteration_of(l) == r->n ? TAIL : MAIN];
}

static Tensor iteration_operand(const LoopRun *l, const PortIn *p, int j, const Type *seen)
{
    const Region *r = l->n->region;
    if (p->kind == PORT_OFFSET) {
        Type scalar = type_make(I64, 0, NULL);
        Tensor t = tensor_new(l->a, &scalar, 0);
        *(int64_t *)(void *)t.data = iteration_of(l) * p->step;
        return t;
    }
    const Tensor *whole = &l->in[p->arg];
    if (p->kind == PORT_CARRY)
        return l->carry[j];
    if (p->kind == PORT_STACK)
        return without_axis0(whole, iteration_of(l));
    if (p->kind != PORT_SLICE)
        return *whole;
    int64_t main = r->body[MAIN]->in[p->at[MAIN]].v->type.dim[p->axis];
    return part_of(whole, p->axis, iteration_of(l) * main, seen->dim[p->axis]);
}

void loop_operands(const LoopRun *l, Tensor *in)
{
    const Region *r = l->n->region;
    const Graph *body = loop_body(l);
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[iteration_of(l) == r->n];
        if (i >= 0)
            in[i] = iteration_operand(l, &r->in[j], j, &body->in[i].v->type);
    }
}

static void add_to(const Tensor *sum, const Tensor *x)
{
    int64_t n = tensor_nelem(x);
    for (int64_t i = 0; i < n; i++)
        tensor_set(sum, i, tensor_get(sum, i) + tensor_get(x, tensor_linear(x, i)));
}

static void take_result(LoopRun *l, int k, const Tensor *x)
{
    const Region *r = l->n->region;
    const PortOut *p = &r->out[k];
    Tensor *y = &l->out[k];
    if (!y->data)
        *y = tensor_new(l->a, &l->n->out[k]->type, p->kind == PORT_SUM ? 0 : 0xff);
    Tensor place = *y;
    if (p->kind == PORT_CONCAT) {
        int64_t main = r->body[MAIN]->out[p->at[MAIN]].v->type.dim[p->axis];
        place = part_of(y, p->axis, iteration_of(l) * main, x->dim[p->axis]);
    } else if (p->kind == PORT_STACK) {
        place = without_axis0(y, iteration_of(l));
    }
    if (p->kind == PORT_SUM) /* from zero, as the executor does: 0 + -0 is 0 */
        add_to(y, x);
    else
        tensor_assign(&place, x);
    if (p->kind == PORT_CARRY)
        l->carry[p->carry] = tensor_copy(l->a, x, x->dtype);
}

void loop_results(LoopRun *l, const Tensor *out)
{
    const Region *r = l->n->region;
    bool tail = iteration_of(l) == r->n;
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[tail] >= 0)
            take_result(l, k, &out[r->out[k].at[tail]]);
    l->done++;
}

static void run_loop(Interp *p, const Node *n, const Tensor *in, Tensor *out)
{
    LoopRun l = loop_start(p->a, n, in, out);
    for (const Graph *body; (body = loop_body(&l));) {
        Tensor *x = NEWN(p->a, Tensor, body->nin), *y = NEWN(p->a, Tensor, body->nout);
        loop_operands(&l, x);
        run_graph(p, body, x, y);
        loop_results(&l, y);
    }
}

/* ---- nodes, graphs ---- */

static void run_ref(Arena *a, const Graph *g, const Node *n, const Tensor *in, Tensor *out)
{
    Tensor *operand = NEWN(a, Tensor, n->nin);
    if (n->nin)
        memcpy(operand, in, sizeof *in * (size_t)n->nin);
    for (int k = 0; k < n->nout; k++)
        out[k] = tensor_new(a, &n->out[k]->type, 0xff);
    Call c = {.node = n, .in = operand, .out = out, .nin = n->nin, .nout = n->nout};
    if (n->op->rules->ref(&c))
        fail_node(g, n, "%s", c.message);
}

/* A collective of ranks that all hold what this one does: a function of the operand, by which
 * passes are seen to keep values. Ranks that differ: tests/shared/ranks.c. */
static void run_alike(Arena *a, const Node *n, const Tensor *in, Tensor *out)
{
    int size = attr_index(n->op, "group_size");
    double ranks = size < 0 ? 2 : (double)n->attr[size].i;
    double by = attr_index(n->op, "reduce_op") >= 0 ? ranks : 1;
    for (int t = 0; t < n->nin; t++) {
        out[t] = tensor_new(a, &n->out[t]->type, 0);
        for (int64_t i = 0, all = tensor_nelem(&in[t]); i < tensor_nelem(&out[t]); i++)
            tensor_set(&out[t], i, tensor_get(&in[t], tensor_linear(&in[t], i % all)) * by);
    }
}

double interp_largest(const Tensor *t)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double x = fabs(tensor_get(t, i));
        most = isfinite(x) ? fmax(most, x) : most;
    }
    return most;
}

/* `terms`: the size of what may have cancelled. */
static void add_noise(Interp *p, const Tensor *t, double terms)
{
    if (!p->noise || !dtype_float(t->dtype))
        return;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double u = 2.0 * random_uniform(p->seed, 0, 0, p->count++) - 1.0, x = tensor_get(t, i);
        tensor_set(t, i, x + p->noise * u * (fabs(x) + 0.1 * terms));
    }
}

static void run_node(Interp *p, const Graph *g, const Node *n, const Tensor *in, Tensor *out)
{
    if (n->op->region == FUSED) {
        run_graph(p, n->region->body[MAIN], in, out); /* operand i is the body's input i */
        return;
    }
    if (n->region) {
        run_loop(p, n, in, out);
        return;
    }
    if (n->op->class == CLASS_COLLECTIVE)
        run_alike(p->a, n, in, out);
    else
        run_ref(p->a, g, n, in, out);
    bool several = n->op->class != CLASS_POINTWISE && !n->op->view && n->nin;
    for (int k = 0; k < n->nout; k++)
        add_noise(p, &out[k], p->noise && several ? interp_largest(&out[k]) : 0);
}

static void run_graph(Interp *p, const Graph *g, const Tensor *in, Tensor *out)
{
    Arena *a = p->a;
    Tensor *value = NEWN(a, Tensor, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        value[g->in[i].v->id] = in[i];
    for (const Node *n = g->first; n; n = n->next) {
        Tensor *x = NEWN(a, Tensor, n->nin), *y = NEWN(a, Tensor, n->nout);
        for (int i = 0; i < n->nin; i++)
            x[i] = value[n->in[i]->id];
        run_node(p, g, n, x, y);
        for (int k = 0; k < n->nout; k++)
            value[n->out[k]->id] = y[k];
    }
    for (int i = 0; i < g->nout; i++)
        out[i] = value[g->out[i].v->id];
}

void interp_node(Arena *a, const Graph *g, const Node *n, const Tensor *in, Tensor *out)
{
    Interp p = {.a = a};
    run_node(&p, g, n, in, out);
}

void interp_graph(Arena *a, const Graph *g, const Tensor *in, Tensor *out)
{
    Interp p = {.a = a};
    run_graph(&p, g, in, out);
}

void interp_noisy(Arena *a, const Graph *g, const Tensor *in, double noise, uint64_t seed,
                  Tensor *out)
{
    Interp p = {.a = a, .noise = noise, .seed = seed};
    Tensor *near = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        near[i] = tensor_copy(a, &in[i], in[i].dtype);
        add_noise(&p, &near[i], 0);
    }
    run_graph(&p, g, near, out);
}
