/* Random loops: a body of a few nodes, grown like a graph, whose inputs become ports as they are
 * asked for: an operand whole, sliced along an axis, stacked or carried, or the iteration's offset.
 * Some of its values become results: concatenated, stacked, summed; each carried operand gets a
 * carried result. Some loops run in reverse; some have a tail, a body of its own that is grown
 * separately and whose values are bent to the types that the results need. Ranges are known for the
 * first iteration only, so a loop that fails when it runs is dropped. */
#include "gen.h"

#include <string.h>

enum { MOST_ITERATIONS = 4, MOST_DEPTH = 2, MOST_ELEMENTS = 4096 };

typedef struct LoopGen {
    Gen *outer, *main, *tail; /* tail: NULL where none */
    Region *r;
    bool has_tail;
    Value **in; /* operands */
    Tensor *data;
    int nin, capin, capdata, capport, capout;
} LoopGen;

/* ---- operands ---- */

static int add_operand(LoopGen *l, const Known *k)
{
    int count = l->nin;
    PUSH(l->outer->a, l->data, count, l->capdata, k->t);
    PUSH(l->outer->a, l->in, l->nin, l->capin, k->v);
    return l->nin - 1;
}

static Tensor part(Gen *x, const Tensor *whole, int axis, int64_t at, int64_t size)
{
    Tensor s = *whole;
    s.data += at * s.stride[axis] * dtype_size(s.dtype);
    s.dim[axis] = size;
    return tensor_copy(x->a, &s, s.dtype);
}

/* The port's data in the iteration that x's body runs first. */
static Tensor iteration_data(LoopGen *l, Gen *x, const PortIn *p, int64_t iteration, const Type *t)
{
    if (p->kind == PORT_OFFSET) {
        Tensor i = tensor_new(x->a, t, 0);
        tensor_set(&i, 0, (double)(iteration * p->step));
        return i;
    }
    const Tensor *whole = &l->data[p->arg];
    if (p->kind == PORT_SLICE) {
        int64_t main = (whole->dim[p->axis] - (x->tail ? t->dim[p->axis] : 0)) / l->r->n;
        return part(x, whole, p->axis, iteration * main, t->dim[p->axis]);
    }
    if (p->kind != PORT_STACK)
        return *whole;
    Tensor s = part(x, whole, 0, iteration, 1);
    s.rank--;
    memmove(s.dim, s.dim + 1, sizeof *s.dim * (TN_RANK - 1));
    memmove(s.stride, s.stride + 1, sizeof *s.stride * (TN_RANK - 1));
    return s;
}

/* Lets x's body see port j. */
static Known *add_body_input(LoopGen *l, Gen *x, int j, const Type *t)
{
    PortIn *p = &l->r->in[j];
    p->at[x->tail] = x->b.g->nin;
    Value *v = graph_input(x->b.g, port_name(p->kind), *t, ROLE_NONE, NULL);
    int64_t iteration = x->tail ? l->r->n : l->r->reverse ? l->r->n - 1 : 0;
    Tensor data = iteration_data(l, x, p, iteration, t);
    return gen_learn(x, v, &data);
}

static int add_port(LoopGen *l, PortIn p)
{
    p.at[MAIN] = p.at[TAIL] = -1;
    PUSH(l->outer->a, l->r->in, l->r->nin, l->capport, p);
    return l->r->nin - 1;
}

/* A kind of port that can give the main body a value of type t, and the operand's type. */
static PortIn choose_port(LoopGen *l, const Type *t, double lo, double hi, Type *whole)
{
    Rng *r = l->outer->rng;
    PortIn p = {.kind = PORT_WHOLE, .arg = -1};
    int64_t n = l->r->n;
    *whole = *t;
    double what = rng_uniform(r);
    if (t->dtype == I64 && !t->rank && lo <= 0 && (double)n <= hi) {
        p.kind = PORT_OFFSET;
        p.step = 1;
    } else if (type_nelem(t) * (n + 1) > MOST_ELEMENTS) {
        return p;
    } else if (what < 0.4 && t->rank) {
        int axis = (int)rng_below(r, t->rank);
        if (t->dim[axis] < (l->has_tail ? 2 : 1))
            return p;
        p.kind = PORT_SLICE;
        p.axis = axis;
        whole->dim[axis] *= n;
        whole->dim[axis] += l->has_tail ? 1 + rng_below(r, t->dim[axis] - 1) : 0;
    } else if (what < 0.6 && t->rank < TN_RANK) {
        p.kind = PORT_STACK;
        memmove(whole->dim + 1, t->dim, sizeof *t->dim * (TN_RANK - 1));
        whole->dim[0] = n;
        whole->rank++;
    } else if (what < 0.75 && lo > hi) {
        p.kind = PORT_CARRY;
    }
    return p;
}

Known *gen_loop_input(Gen *x, const Type *t, double lo, double hi)
{
    LoopGen *l = x->loop;
    Type whole = *t;
    PortIn p = {.kind = PORT_TAIL, .arg = -1};
    if (!x->tail)
        p = choose_port(l, t, lo, hi, &whole);
    if (p.kind != PORT_OFFSET)
        p.arg = add_operand(l, gen_operand(l->outer, &whole, lo, hi));
    return add_body_input(l, x, add_port(l, p), t);
}

/* ---- bodies ---- */

static Gen *new_body(LoopGen *l, bool tail)
{
    Gen *x = NEW(l->outer->a, Gen);
    *x = *l->outer;
    x->b = (Build){.g = graph_body(l->outer->b.g)};
    x->known = NULL;
    x->nknown = x->capknown = 0;
    x->in = NULL;
    x->nin = x->capin = 0;
    x->loop = l;
    x->tail = tail;
    x->depth++;
    return x;
}

static void grow(Gen *x)
{
    int nodes = 2 + (int)rng_below(x->rng, 5);
    while (x->b.g->nnode < nodes)
        if (x->depth < MOST_DEPTH && rng_chance(x->rng, 0.04))
            gen_loop(x);
        else
            gen_node(x);
}

/* The tail sees the ports that the main body asked for. */
static void share_ports(LoopGen *l)
{
    for (int j = 0, count = l->r->nin; j < count; j++) {
        const PortIn *p = &l->r->in[j];
        if (p->kind == PORT_STACK)
            continue;
        Type t = l->main->b.g->in[p->at[MAIN]].v->type;
        if (p->kind == PORT_SLICE)
            t.dim[p->axis] = l->data[p->arg].dim[p->axis] - t.dim[p->axis] * l->r->n;
        add_body_input(l, l->tail, j, &t);
    }
}

/* ---- results ---- */

/* Some value of x as type t, tame; a constant where there is none. */
static Known *bend(Gen *x, const Type *t)
{
    Known *k = gen_any_float(x);
    if (!k)
        return gen_emit(x, "full", 0, NULL,
                        ATTRS(A_INTS("size", t->rank, t->dim), A_FLOAT("fill_value", 1),
                              A_DTYPE("dtype", t->dtype)));
    if (!gen_within(k, 1, -1))
        k = gen_squash(x, k, 1, -1);
    return gen_adapt(x, k, t);
}

static int add_body_output(Gen *x, const Known *k)
{
    graph_output(x->b.g, k->v, ROLE_NONE, NULL);
    return x->b.g->nout - 1;
}

static void add_result(LoopGen *l, PortOut o, const Known *k)
{
    o.at[MAIN] = o.at[TAIL] = -1;
    o.at[MAIN] = add_body_output(l->main, k);
    if (l->has_tail && o.kind != PORT_STACK) {
        Type t = k->v->type;
        if (o.kind == PORT_CONCAT)
            t.dim[o.axis] = 1 + rng_below(l->outer->rng, t.dim[o.axis] - 1);
        o.at[TAIL] = add_body_output(l->tail, bend(l->tail, &t));
    }
    PUSH(l->outer->a, l->r->out, l->r->nout, l->capout, o);
}

static bool choose_result(LoopGen *l, const Known *k)
{
    Rng *r = l->outer->rng;
    const Type *t = &k->v->type;
    PortOut o = {.kind = PORT_SUM, .dtype = F64};
    double what = rng_uniform(r);
    if (!k->v->def || !k->finite || type_nelem(t) * (l->r->n + 1) > MOST_ELEMENTS)
        return false;
    int axis = (int)rng_below(r, MAX(t->rank, 1));
    if (what < 0.4 && t->rank && (!l->has_tail || t->dim[axis] > 1))
        o = (PortOut){.kind = PORT_CONCAT, .axis = axis};
    else if (what < 0.7 && t->rank < TN_RANK)
        o.kind = PORT_STACK;
    else if (t->dtype != F64)
        return false;
    add_result(l, o, k);
    return true;
}

static void add_results(LoopGen *l)
{
    for (int j = 0; j < l->r->nin; j++)
        if (l->r->in[j].kind == PORT_CARRY) {
            Type t = l->in[l->r->in[j].arg]->type;
            add_result(l, (PortOut){.kind = PORT_CARRY, .carry = j}, bend(l->main, &t));
        }
    int wanted = 1 + (int)rng_below(l->outer->rng, 3);
    for (int i = l->main->nknown - 1, made = 0; i >= 0 && made < wanted; i--)
        made += choose_result(l, &l->main->known[i]);
    if (l->has_tail && rng_chance(l->outer->rng, 0.3)) {
        Type t = type_make(F64, 1, (int64_t[]){3});
        PortOut o = {.kind = PORT_TAIL, .at = {-1, -1}};
        o.at[TAIL] = add_body_output(l->tail, bend(l->tail, &t));
        PUSH(l->outer->a, l->r->out, l->r->nout, l->capout, o);
    }
}

/* ---- the loop ---- */

static void run(void *arg)
{
    LoopGen *l = arg;
    gen_run(l->outer, l->outer->b.g->last, l->data);
}

void gen_loop(Gen *x)
{
    LoopGen l = {.outer = x, .r = NEW(x->a, Region), .has_tail = rng_chance(x->rng, 0.4)};
    l.r->n = 1 + rng_below(x->rng, MOST_ITERATIONS);
    l.r->reverse = rng_chance(x->rng, 0.3);
    l.main = new_body(&l, false);
    grow(l.main);
    if (l.has_tail) {
        l.tail = new_body(&l, true);
        share_ports(&l);
        grow(l.tail);
    }
    add_results(&l);
    l.r->body[MAIN] = l.main->b.g;
    l.r->body[TAIL] = l.has_tail ? l.tail->b.g : NULL;
    if (!l.r->nout)
        return;
    Node *n = emit_loop(&x->b, l.nin, l.in, l.r);
    if (ctx_try(x->b.g->ctx, run, &l))
        node_unlink(x->b.g, n);
}
