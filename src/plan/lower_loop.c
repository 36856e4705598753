/* Loops: bodies are lowered into the same list between LOOP and END. What a turn writes for a
 * concat, stack or tail result goes straight to its place in the outer storage where kernels may
 * write there (contiguous, aligned); sums are added as soon as their term exists; carries are
 * copied at the end. */
#include "lower.h"

#include <string.h>

typedef struct Loop {
    const Node *n;
    Frame *outer;
    Loc *out;   /* by result port: the outer storage */
    int *carry; /* by operand port: its storage, or -1 */
} Loop;

/* The loop's scope, or where it is over more than one the scope of what the body yields. */
static const char *result_scope(const Node *n, int k)
{
    for (int t = 0; t < 2 && !*n->scope; t++) {
        const Graph *body = region_body(n->region, t);
        int i = body ? output_at(&n->region->out[k], t) : -1;
        const Node *def = i < 0 ? NULL : body->out[i].v->def;
        if (def && *def->scope)
            return def->scope;
    }
    return n->scope;
}

/* Storages of results, zeroed or filled with what is carried in. */
static void begin_results(Lower *l, Loop *x)
{
    const Region *r = x->n->region;
    for (int j = 0; j < r->nin; j++) {
        x->carry[j] = -1;
        if (r->in[j].kind != PORT_CARRY)
            continue;
        const Value *v = x->n->in[r->in[j].arg];
        x->carry[j] = copied(l, x->outer, x->n, v->name, &v->type, x->outer->loc[v->id]).storage;
    }
    for (int k = 0; k < r->nout; k++) {
        const Value *v = x->n->out[k];
        if (r->out[k].kind == PORT_CARRY) {
            x->out[k] = whole(x->carry[r->out[k].carry], &v->type);
            continue;
        }
        x->out[k] = whole(new_storage(l, x->outer, v->name, result_scope(x->n, k),
                                      category_of(x->n), type_nbytes(&v->type)),
                          &v->type);
        if (r->out[k].kind != PORT_SUM)
            continue;
        Step *s = new_step(l, STEP_ZERO, x->n);
        s->nbytes = type_nbytes(&v->type);
        s->arg = NEW(l->a, Arg);
        s->arg[0] = arg_of(&v->type, &x->out[k]);
    }
}

/* Where the body sees operand port j. */
static Loc input_loc(Lower *l, const Loop *x, Frame *body, int j)
{
    const Region *r = x->n->region;
    const PortIn *p = &r->in[j];
    Type scalar = type_make(I64, 0, NULL);
    if (p->kind == PORT_OFFSET)
        return whole(new_storage(l, body, "offset", x->n->scope, CAT_INPUT, 8), &scalar);
    Loc y = x->outer->loc[x->n->in[p->arg]->id];
    if (p->kind == PORT_CARRY)
        return whole(x->carry[j], &x->n->in[p->arg]->type);
    if (p->kind == PORT_SLICE)
        y.turn[body->depth - 1] = y.at.stride[p->axis] * r->body->in[p->main].v->type.dim[p->axis];
    if (p->kind == PORT_STACK) {
        y.turn[body->depth - 1] = y.at.stride[0];
        memmove(y.at.stride, y.at.stride + 1, sizeof *y.at.stride * (TN_RANK - 1));
    }
    return y;
}

static void bind_inputs(Lower *l, const Loop *x, Frame *body, bool tail)
{
    const Region *r = x->n->region;
    for (int j = 0; j < r->nin; j++) {
        int i = tail ? r->in[j].tail : r->in[j].main;
        if (i < 0)
            continue;
        Loc y = input_loc(l, x, body, j);
        bind(l, body, body->g->in[i].v, y);
        if (r->in[j].kind != PORT_OFFSET)
            continue;
        Step *s = new_step(l, STEP_OFFSET, x->n);
        Type scalar = type_make(I64, 0, NULL);
        s->by = r->in[j].step;
        s->depth = body->depth - 1;
        s->arg = NEW(l->a, Arg);
        s->arg[0] = arg_of(&scalar, &y);
    }
}

/* The place of this turn's part of result k. */
static Loc part_loc(const Loop *x, const Frame *body, int k)
{
    const Region *r = x->n->region;
    const PortOut *p = &r->out[k];
    Loc y = x->out[k];
    if (p->kind == PORT_CONCAT)
        y.turn[body->depth - 1] = y.at.stride[p->axis] * r->body->out[p->main].v->type.dim[p->axis];
    if (p->kind == PORT_STACK) {
        y.turn[body->depth - 1] = y.at.stride[0];
        memmove(y.at.stride, y.at.stride + 1, sizeof *y.at.stride * (TN_RANK - 1));
    }
    return y;
}

static bool writable(const Loc *y, const Type *t)
{
    bool aligned = true;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        aligned &= y->turn[d] * dtype_size(t->dtype) % PLAN_ALIGN == 0;
    return aligned && contiguous(t, y);
}

/* Lets the body write results where they belong, and add sums as soon as they exist. */
static void set_targets(const Loop *x, Frame *body, bool tail)
{
    const Region *r = x->n->region;
    for (int k = 0; k < r->nout; k++) {
        int i = tail ? r->out[k].tail : r->out[k].main;
        if (i < 0)
            continue;
        const Value *v = body->g->out[i].v;
        bool made_here = v->def && !v->def->op->view && v->def->op->region != LOOP;
        if (r->out[k].kind == PORT_SUM && v->def && !body->sum[v->id]) {
            body->sum[v->id] = x->n->out[k];
            body->acc[v->id] = x->out[k].storage;
        } else if (made_here && r->out[k].kind != PORT_SUM && r->out[k].kind != PORT_CARRY &&
                   body->target[v->id].storage < 0) {
            Loc y = part_loc(x, body, k);
            if (writable(&y, &v->type))
                body->target[v->id] = y;
        }
    }
}

static bool same_place(const Type *t, const Loc *x, const Loc *y)
{
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] > 1 && x->at.stride[d] != y->at.stride[d])
            return false;
    return x->storage == y->storage && x->at.offset == y->at.offset &&
           !memcmp(x->turn, y->turn, sizeof x->turn);
}

/* What a turn yields and has not written or added yet. Carries are copied last, and by way of a
 * copy where they come out of another carry, or out of their own in another order. */
static void finish_turn(Lower *l, const Loop *x, Frame *body, bool tail)
{
    const Region *r = x->n->region;
    Loc *carried = NEWN(l->a, Loc, r->nout);
    for (int k = 0; k < r->nout; k++) {
        int i = tail ? r->out[k].tail : r->out[k].main;
        if (i < 0)
            continue;
        const Value *v = body->g->out[i].v;
        Loc y = part_loc(x, body, k);
        if (r->out[k].kind == PORT_SUM) {
            if (body->sum[v->id] != x->n->out[k])
                add_to_sum(l, body, x->n, v, &x->n->out[k]->type, x->out[k]);
        } else if (r->out[k].kind == PORT_CARRY) {
            carried[k] = body->loc[v->id];
            for (int j = 0; j < r->nin; j++)
                if (x->carry[j] == carried[k].storage &&
                    (j != r->out[k].carry || !same_place(&v->type, &carried[k], &y)))
                    carried[k] = copied(l, body, x->n, v->name, &v->type, carried[k]);
        } else if (!same_place(&v->type, &body->loc[v->id], &y)) {
            emit_copy_to(l, body, x->n, &v->type, body->loc[v->id], y);
        }
    }
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].kind == PORT_CARRY &&
            !same_place(&x->n->out[k]->type, &carried[k], &x->out[k]))
            emit_copy_to(l, body, x->n, &x->n->out[k]->type, carried[k], x->out[k]);
}

static void lower_body(Lower *l, const Loop *x, bool tail)
{
    const Region *r = x->n->region;
    Graph *g = tail ? r->tail : r->body;
    int begin = l->p->nstep;
    Step *s = new_step(l, STEP_LOOP, x->n);
    s->depth = x->outer->depth;
    s->count = tail ? 1 : r->n;
    s->first = tail ? r->n : r->reverse ? r->n - 1 : 0;
    s->by = r->reverse ? -1 : 1;
    Frame body = new_frame(l, g, begin, x->outer->depth + 1);
    bind_inputs(l, x, &body, tail);
    set_targets(x, &body, tail);
    lower_graph(l, &body);
    finish_turn(l, x, &body, tail);
    Step *e = new_step(l, STEP_END, x->n);
    e->end = begin;
    e->depth = x->outer->depth;
    l->p->step[begin].end = l->p->nstep - 1;
}

void lower_loop(Lower *l, Frame *f, const Node *n)
{
    const Region *r = n->region;
    Loop x = {n, f, NEWN(l->a, Loc, r->nout), NEWN(l->a, int, r->nin)};
    begin_results(l, &x);
    if (r->tail && r->reverse)
        lower_body(l, &x, true);
    lower_body(l, &x, false);
    if (r->tail && !r->reverse)
        lower_body(l, &x, true);
    for (int i = 0; i < n->nin; i++)
        consume(l, f, n->in[i]);
    for (int k = 0; k < n->nout; k++)
        bind(l, f, n->out[k], x.out[k]);
}
