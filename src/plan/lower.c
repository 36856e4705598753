/* Lowering: writes the decisions of a flow (src/flow) as a flat list of steps on storages.
 *
 * Each buffer of the flow that lies over no other becomes a storage; each move, call and loop of an
 * item becomes a step, in the order of the line. Lowering adds only a storage's name, scope and
 * category: places, copies and kernels are the flow's. Linear. */
#include "plan.h"
#include "../flow/steps.h"

#include <string.h>

typedef struct Lower {
    Plan *p;
    Arena *a;
    int capstep, capstorage;
} Lower;

/* A flow while it is being written down: the whole graph's or a body's. */
typedef struct FlowFrame {
    Flow *f;
    const struct FlowFrame *outer;
    int *storage; /* by buffer, -1: none yet */
    int loop;     /* the step that begins it, -1: none */
} FlowFrame;

/* ---- storages and steps ---- */

static int new_storage(Lower *l, const FlowFrame *f, const char *name, const char *scope,
                       Category c, Space space, int64_t nbytes)
{
    Plan *p = l->p;
    Storage s = {.name = name,
                 .scope = scope ? scope : "",
                 .category = c,
                 .space = space,
                 .nbytes = flow_round(nbytes),
                 .loop = f->loop};
    PUSH(l->a, p->storage, p->nstorage, l->capstorage, s);
    return p->nstorage - 1;
}

/* A buffer's storage, which exists. */
static int storage_of(const FlowFrame *f, int buffer)
{
    int outer = buffer_outer(f->f, buffer);
    return outer >= 0 ? storage_of(f->outer, outer) : f->storage[buffer];
}

/* The storage of a buffer, made here for `name` unless there is one. */
static int make_storage(Lower *l, const FlowFrame *f, int buffer, const char *name,
                        const char *scope, Category c)
{
    if (storage_of(f, buffer) < 0)
        f->storage[buffer] = new_storage(l, f, name, scope, c, buffer_space(f->f, buffer),
                                         buffer_nbytes(f->f, buffer));
    return storage_of(f, buffer);
}

static Step *new_step(Lower *l, StepKind kind, const Node *n, int narg)
{
    Plan *p = l->p;
    Step s = {.kind = kind, .node = n, .work = -1, .narg = narg, .arg = NEWN(l->a, Arg, narg)};
    PUSH(l->a, p->step, p->nstep, l->capstep, s);
    return &p->step[p->nstep - 1];
}

static Arg arg_of(const FlowFrame *f, const Type *t, const Place *x)
{
    int64_t size = dtype_size(t->dtype);
    Arg a = {.storage = storage_of(f, x->buffer), .offset = x->at.offset * size};
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        a.loop_stride[d] = x->loop_stride[d] * size;
    return a;
}

static Category category_of(const Node *n)
{
    return !n                      ? CAT_OTHER
           : n->origin             ? CAT_RECOMPUTE
           : n->phase == BACKWARD  ? CAT_GRAD
           : n->phase == OPTIMIZER ? CAT_OTHER
                                   : CAT_ACTIVATION;
}

/* Sets the kernel of a call, NULL: the reference, which is the processor's. `from`: the node that
 * it is for, or NULL. */
static void set_kernel(Lower *l, Step *s, const Kernel *k, const Node *from)
{
    const Call *c = &s->call;
    s->kernel = k;
    if (k || !device_is_gpu(l->p->device))
        return;
    Buf b = {.a = l->a};
    for (int i = 0; i < c->nin + c->nout; i++) {
        const Tensor *t = i < c->nin ? &c->in[i] : &c->out[i - c->nin];
        Type type = {.dtype = t->dtype, .rank = t->rank};
        memcpy(type.dim, t->dim, sizeof type.dim);
        buf_printf(&b, "%s%s%s",
                   i == c->nin ? " -> "
                   : i         ? ", "
                               : "",
                   type_text(l->a, &type), tensor_contiguous(t) ? "" : " with strides");
    }
    fail_node(l->p->g, from ? from : c->node, "%s has no kernel for %s of %s", l->p->device->name,
              c->node->op->name, b.text);
}

/* ---- moves ---- */

/* A call that is not in the graph (copy, cast, addition), for the node `from` or NULL. */
static void emit_helper(Lower *l, const FlowFrame *f, const char *op, const Node *from,
                        const Move *m)
{
    Node *n = NEW(l->a, Node);
    *n = (Node){.op = op_get(l->p->g->ctx, op),
                .phase = from ? from->phase : FORWARD,
                .stream = -1,
                .scope = from ? from->scope : ""};
    if (op_nattr(n->op)) { /* _to_copy: its dtype */
        n->attr = NEWN(l->a, Attr, op_nattr(n->op));
        n->attr[0].i = m->to->dtype;
    }
    bool add = m->kind == FLOW_ADD;
    const Place *in[] = {add ? &m->out : &m->in, &m->in};
    Call c = {.node = n, .nin = add ? 2 : 1, .nout = 1, .in = NEWN(l->a, Tensor, 2)};
    c.out = NEW(l->a, Tensor);
    for (int i = 0; i < c.nin; i++)
        c.in[i] = tensor_at(m->type, in[i]);
    c.out[0] = tensor_at(m->to, &m->out);
    const Kernel *k = op_kernels(n->op, l->p->device->kernels);
    while (k && k->name && !kernel_takes(k, &c))
        k++;
    Step *s = new_step(l, STEP_CALL, n, c.nin + 1);
    s->call = c;
    set_kernel(l, s, k && k->name ? k : NULL, from);
    for (int i = 0; i < c.nin; i++)
        s->arg[i] = arg_of(f, m->type, in[i]);
    s->arg[c.nin] = arg_of(f, m->to, &m->out);
    s->copy = true;
    l->p->ncopies += !add;
}

static void emit_move(Lower *l, const FlowFrame *f, const Node *from, const Move *m)
{
    static const char *const op[] = {
        [FLOW_COPY] = "clone", [FLOW_CAST] = "_to_copy", [FLOW_ADD] = "add"};
    const char *scope = from ? from->scope : "";
    if (!move_is(f->f, m))
        return;
    if (m->kind == FLOW_OFFSET)
        make_storage(l, f, m->out.buffer, "offset", scope, CAT_INPUT);
    make_storage(l, f, m->out.buffer, m->v->name, scope,
                 m->kind == FLOW_CAST ? CAT_GRAD : category_of(from));
    if (m->kind == FLOW_ZERO || m->kind == FLOW_OFFSET) {
        Step *s = new_step(l, m->kind == FLOW_ZERO ? STEP_ZERO : STEP_OFFSET, from, 1);
        s->nbytes = type_nbytes(m->to);
        s->by = m->by;
        s->depth = m->kind == FLOW_ZERO ? 0 : flow_depth(f->f) - 1;
        s->arg[0] = arg_of(f, m->to, &m->out);
    } else {
        emit_helper(l, f, op[m->kind], from, m);
    }
}

/* The moves of an item before its core or after it, for the node `from` or NULL. */
static void emit_moves(Lower *l, const FlowFrame *f, const Node *from, int item, bool after)
{
    int count;
    const Move *m = item_moves(f->f, item, after, &count);
    for (int k = 0; k < count; k++)
        emit_move(l, f, from, &m[k]);
}

/* ---- calls ---- */

static bool gathers(const Node *n)
{
    return node_is(n, OP_all_gather_into_tensor) || node_is(n, OP_all_to_all_single) ||
           node_is(n, OP_broadcast) || node_is(n, OP_permute_tensor);
}

/* A parameter in the dtype of computation counts as one, as what is gathered of it; a copy in
 * another memory as what it is. */
static Category result_category(const Lower *l, const FlowFrame *f, int item, int k)
{
    const Node *n = item_node(f->f, item);
    if (!node_is(n, OP__to_copy) && !gathers(n) && !n->op->async)
        return category_of(n);
    const Place *from = value_place(f->f, item_operand(f->f, item, k));
    Category c = l->p->storage[storage_of(f, from->buffer)].category;
    return c == CAT_PARAM || n->op->async ? c : category_of(n);
}

static void make_result(Lower *l, const FlowFrame *f, int item, int k)
{
    int buffer = value_place(f->f, item_result(f->f, item, k))->buffer,
        over = buffer_over(f->f, buffer);
    const Value *v = item_names(f->f, item, k);
    if (over >= 0)
        f->storage[buffer] = storage_of(f, over);
    else
        make_storage(l, f, buffer, v->name, value_scope(v), result_category(l, f, item, k));
}

/* Fills the call's workspace, and the storage where it lies: a collective's is the wait's, too. */
static void lower_work(Lower *l, const FlowFrame *f, int item, Step *s)
{
    const Node *n;
    int buffer;
    int64_t nbytes = s->call.nbytes_work = item_workspace(f->f, item, &n, &buffer);
    if (buffer >= 0)
        s->work = make_storage(l, f, buffer, n->op->name, n->scope, CAT_WORK);
    else if (nbytes > 0)
        s->work = new_storage(l, f, n->op->name, n->scope, CAT_WORK, SPACE_MAIN, nbytes);
}

static void lower_call(Lower *l, const FlowFrame *f, int item)
{
    const Node *n = item_node(f->f, item);
    for (int k = 0; k < n->nout && !node_aliases(n); k++)
        make_result(l, f, item, k);
    Step *s = new_step(l, STEP_CALL, n, n->nin + n->nout);
    Call *c = &s->call;
    *c = (Call){.node = n, .mesh = graph_mesh(flow_graph(f->f)), .nin = n->nin, .nout = n->nout};
    c->in = NEWN(l->a, Tensor, n->nin);
    c->out = NEWN(l->a, Tensor, n->nout);
    s->queue = device_nspace(l->p->device) > 1 ? node_queue(n) : QUEUE_COMPUTE;
    const Place **from = NEWN(l->a, const Place *, n->nin);
    item_read_places(f->f, item, from);
    for (int i = 0; i < n->nin; i++) {
        c->in[i] = tensor_at(&n->in[i]->type, from[i]);
        s->arg[i] = arg_of(f, &n->in[i]->type, from[i]);
    }
    for (int k = 0; k < n->nout; k++) {
        const Place *at = value_place(f->f, item_result(f->f, item, k));
        c->out[k] = tensor_at(&n->out[k]->type, at);
        s->arg[n->nin + k] = arg_of(f, &n->out[k]->type, at);
    }
    set_kernel(l, s, item_kernel(f->f, item), n);
    lower_work(l, f, item, s);
}

/* ---- loops ---- */

static void lower_flow(Lower *l, const FlowFrame *f);

/* The loop's scope, or if it has none the scope of the value that the body yields. */
static const char *result_scope(const Node *n, int k)
{
    for (int t = 0; t < 2 && !*n->scope; t++) {
        const Graph *body = n->region->body[t];
        int i = body ? n->region->out[k].at[t] : -1;
        const Node *def = i < 0 ? NULL : body->out[i].v->def;
        if (def && *def->scope)
            return def->scope;
    }
    return n->scope;
}

static FlowFrame new_frame(Lower *l, Flow *f, const FlowFrame *outer, int loop)
{
    FlowFrame x = {f, outer, NEWN(l->a, int, flow_nbuffer(f)), loop};
    memset(x.storage, 0xff, sizeof *x.storage * (size_t)flow_nbuffer(f));
    return x;
}

/* A body, between LOOP, whose arguments are what the body touches of the graph around, and END. */
static void lower_body(Lower *l, const FlowFrame *f, int item, int c)
{
    const Node *n = item_node(f->f, item);
    const Region *r = n->region;
    int begin = l->p->nstep, narg, *touched = item_touched(f->f, item, c, l->a, &narg);
    Flow *inner = item_body(f->f, item, c);
    Step *s = new_step(l, STEP_LOOP, n, narg);
    for (int k = 0; k < narg; k++)
        s->arg[k].storage = storage_of(f, touched[k]);
    bool tail = flow_tail(inner);
    s->depth = flow_depth(f->f);
    s->count = tail ? 1 : r->n;
    s->first = tail ? r->n : r->reverse ? r->n - 1 : 0;
    s->by = r->reverse ? -1 : 1;
    FlowFrame body = new_frame(l, inner, f, begin);
    lower_flow(l, &body);
    Step *e = new_step(l, STEP_END, n, 0);
    e->end = begin;
    e->depth = flow_depth(f->f);
    l->p->step[begin].end = l->p->nstep - 1;
}

static void lower_loop(Lower *l, const FlowFrame *f, int item)
{
    const Node *n = item_node(f->f, item);
    for (int k = 0; k < n->nout; k++)
        if (n->region->out[k].kind != PORT_CARRY)
            make_storage(l, f, value_place(f->f, item_result(f->f, item, k))->buffer,
                         n->out[k]->name, result_scope(n, k), category_of(n));
    for (int j = 0; j < n->region->nin; j++) {
        int carry = item_carry(f->f, item, j), over = carry < 0 ? -1 : buffer_over(f->f, carry);
        if (over >= 0)
            f->storage[carry] = storage_of(f, over);
    }
    emit_moves(l, f, n, item, false);
    for (int c = 0; item_body(f->f, item, c); c++)
        lower_body(l, f, item, c);
}

/* Every item between the ends of the line, and the ends of a body. */
static void lower_flow(Lower *l, const FlowFrame *f)
{
    const Node *loop = flow_loop(f->f);
    for (int i = flow_first(f->f); i >= 0; i = flow_next(f->f, i)) {
        const Node *n = item_node(f->f, i);
        if (!n && !loop)
            continue;
        if (n && n->op->region == LOOP) {
            lower_loop(l, f, i);
        } else {
            emit_moves(l, f, n ? n : loop, i, false);
            if (item_ncore(f->f, i))
                lower_call(l, f, i);
        }
        emit_moves(l, f, n, i, true);
    }
}

/* ---- the graph's inputs and outputs ---- */

static Category input_category(const Port *p, const Map *params)
{
    if (p->role == ROLE_STATE && state_param(params, p->name))
        return CAT_STATE;
    return p->role == ROLE_PARAM                            ? CAT_PARAM
           : p->role == ROLE_STATE || p->role == ROLE_CACHE ? CAT_OTHER
                                                            : CAT_INPUT;
}

static void lower_inputs(Lower *l, const FlowFrame *f)
{
    Plan *p = l->p;
    const Graph *g = p->g;
    const char **scope = plan_input_scopes(l->a, g);
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, l->a);
    p->nin = g->nin;
    p->in = NEWN(l->a, PlanPort, p->nin);
    for (int i = 0; i < p->nin; i++) {
        const Port *q = &g->in[i];
        int buffer = value_place(f->f, flow_value(f->f, q->v))->buffer;
        int s = make_storage(l, f, buffer, q->v->name, scope[i], input_category(q, &params));
        p->storage[s].persistent = role_kept(q->role);
        p->in[i] = (PlanPort){q->name, q->v->name, q->role, q->v->type, s, q->cut};
    }
    emit_moves(l, f, NULL, flow_first(f->f), false);
}

static void lower_outputs(Lower *l, const FlowFrame *f)
{
    Plan *p = l->p;
    const Graph *g = p->g;
    int count;
    const Move *m = item_moves(f->f, flow_last(f->f), false, &count);
    for (int k = 0; k < count; k++)
        emit_move(l, f, m[k].v->def, &m[k]);
    p->nout = g->nout;
    p->out = NEWN(l->a, PlanPort, g->nout);
    for (int i = 0; i < g->nout; i++) {
        const Port *o = &g->out[i];
        int buffer = flow_output(f->f, i);
        p->out[i] =
            (PlanPort){o->name, o->v->name, o->role, o->v->type, storage_of(f, buffer), o->cut};
    }
}

Plan *plan_lower(Arena *a, Flow *flow)
{
    Lower l = {.p = NEW(a, Plan), .a = a};
    l.p->g = flow_graph(flow);
    l.p->device = flow_device(flow);
    l.p->nthread = par_threads();
    FlowFrame f = new_frame(&l, flow, NULL, -1);
    lower_inputs(&l, &f);
    lower_flow(&l, &f);
    lower_outputs(&l, &f);
    return l.p;
}
