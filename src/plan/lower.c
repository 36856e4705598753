/* Lowering: writes the decisions of a flow (src/flow) as a flat list of steps on storages.
 *
 * Each root of the flow that lies over no other becomes a storage; each move, call and loop of an
 * item becomes a step, in the order of the line. Lowering adds only a storage's name, scope and
 * category: places, copies and kernels are the flow's. Linear. */
#include "plan.h"

#include <string.h>

typedef struct Lower {
    Plan *p;
    Arena *a;
} Lower;

/* A flow while it is being written down: the whole graph's or a body's. */
typedef struct Frame {
    Flow *f;
    const struct Frame *outer;
    int *storage; /* by root, -1: none yet */
    int loop;     /* the step that begins it, -1: none */
} Frame;

/* ---- storages and steps ---- */

static int new_storage(Lower *l, const Frame *f, const char *name, const char *scope, Category c,
                       Space space, int64_t nbytes)
{
    Plan *p = l->p;
    Storage s = {.name = name,
                 .scope = scope ? scope : "",
                 .category = c,
                 .space = space,
                 .nbytes = flow_round(nbytes),
                 .loop = f->loop};
    PUSH(l->a, p->storage, p->nstorage, p->capstorage, s);
    return p->nstorage - 1;
}

/* A root's storage, which exists. */
static int storage_of(const Frame *f, int root)
{
    const Root *r = &f->f->root[root];
    return r->outer >= 0 ? storage_of(f->outer, r->outer) : f->storage[root];
}

/* The storage of a root, made here for `name` unless there is one. */
static int make_storage(Lower *l, const Frame *f, int root, const char *name, const char *scope,
                        Category c)
{
    const Root *r = &f->f->root[root];
    if (storage_of(f, root) < 0)
        f->storage[root] = new_storage(l, f, name, scope, c, r->space, r->nbytes);
    return storage_of(f, root);
}

static Step *new_step(Lower *l, StepKind kind, const Node *n, int narg)
{
    Plan *p = l->p;
    Step s = {.kind = kind, .node = n, .work = -1, .narg = narg, .arg = NEWN(l->a, Arg, narg)};
    PUSH(l->a, p->step, p->nstep, p->capstep, s);
    return &p->step[p->nstep - 1];
}

static Arg arg_of(const Frame *f, const Type *t, const Place *x)
{
    int64_t size = dtype_size(t->dtype);
    Arg a = {.storage = storage_of(f, x->root), .offset = x->at.offset * size};
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

/* What runs the call, NULL: the reference, which is the processor's. `from`: the node that it is
 * for, or NULL. */
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
static void emit_helper(Lower *l, const Frame *f, const char *op, const Node *from, const Move *m)
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

static void emit_move(Lower *l, const Frame *f, const Node *from, const Move *m)
{
    static const char *const op[] = {
        [FLOW_COPY] = "clone", [FLOW_CAST] = "_to_copy", [FLOW_ADD] = "add"};
    const char *scope = from ? from->scope : "";
    if (!move_is(f->f, m))
        return;
    if (m->kind == FLOW_OFFSET)
        make_storage(l, f, m->out.root, "offset", scope, CAT_INPUT);
    make_storage(l, f, m->out.root, m->v->name, scope,
                 m->kind == FLOW_CAST ? CAT_GRAD : category_of(from));
    if (m->kind == FLOW_ZERO || m->kind == FLOW_OFFSET) {
        Step *s = new_step(l, m->kind == FLOW_ZERO ? STEP_ZERO : STEP_OFFSET, from, 1);
        s->nbytes = type_nbytes(m->to);
        s->by = m->by;
        s->depth = m->kind == FLOW_ZERO ? 0 : f->f->depth - 1;
        s->arg[0] = arg_of(f, m->to, &m->out);
    } else {
        emit_helper(l, f, op[m->kind], from, m);
    }
}

static void emit_moves(Lower *l, const Frame *f, const Node *from, const Move *m, int count)
{
    for (int k = 0; k < count; k++)
        emit_move(l, f, from, &m[k]);
}

/* ---- calls ---- */

static bool gathers(const Node *n)
{
    return node_is(n, OP_all_gather_into_tensor) || node_is(n, OP_all_to_all_single) ||
           node_is(n, OP_broadcast);
}

/* A parameter in the dtype of computation counts as one, as what is gathered of it; a copy in
 * another memory as what it is. */
static Category result_category(const Lower *l, const Frame *f, const FlowItem *x)
{
    if (!node_is(x->node, OP__to_copy) && !gathers(x->node) && !x->node->op->async)
        return category_of(x->node);
    const FlowValue *from = &f->f->value[f->f->slot[x->slot].value];
    Category c = l->p->storage[storage_of(f, from->at.root)].category;
    return c == CAT_PARAM || x->node->op->async ? c : category_of(x->node);
}

static void make_result(Lower *l, const Frame *f, const FlowItem *x, const FlowValue *y)
{
    const Root *r = &f->f->root[y->at.root];
    const FlowItem *def = r->outer < 0 ? &f->f->item[r->def] : x;
    const Value *v = def == x ? y->v : def->node->out[0]; /* of a cat that y is joined to */
    if (r->over >= 0)
        f->storage[y->at.root] = storage_of(f, r->over);
    else
        make_storage(l, f, y->at.root, v->name, value_scope(v), result_category(l, f, x));
}

/* Where the item reads operand i: in place, or from a copy; `made` counts copies so far. */
static const Place *read_from(const Frame *f, const FlowItem *x, int i, int *made)
{
    if (x->copied[i])
        return &x->before[(*made)++].out;
    return item_reads(f->f, x, i);
}

/* The storage of a call's workspace: a collective's is the wait's, too. */
static int lower_work(Lower *l, const Frame *f, const FlowItem *x)
{
    const FlowItem *from = item_started(f->f, x);
    from = from ? from : x;
    if (from->work <= 0)
        return -1;
    if (!op_starts(from->node->op))
        return new_storage(l, f, x->node->op->name, x->node->scope, CAT_WORK, SPACE_MAIN, x->work);
    int root = from->made[from->nmade - 1];
    return make_storage(l, f, root, from->node->op->name, from->node->scope, CAT_WORK);
}

static void lower_call(Lower *l, const Frame *f, const FlowItem *x)
{
    const Node *n = x->node;
    for (int k = 0; k < n->nout && !node_aliases(n); k++)
        make_result(l, f, x, &f->f->value[x->value + k]);
    Step *s = new_step(l, STEP_CALL, n, n->nin + n->nout);
    Call *c = &s->call;
    *c = (Call){.node = n, .mesh = graph_mesh(f->f->g), .nin = n->nin, .nout = n->nout};
    c->in = NEWN(l->a, Tensor, n->nin);
    c->out = NEWN(l->a, Tensor, n->nout);
    s->queue = f->f->nspace > 1 ? node_queue(n) : QUEUE_COMPUTE;
    for (int i = 0, made = 0; i < n->nin; i++) {
        const Place *at = read_from(f, x, i, &made);
        c->in[i] = tensor_at(&n->in[i]->type, at);
        s->arg[i] = arg_of(f, &n->in[i]->type, at);
    }
    for (int k = 0; k < n->nout; k++) {
        const Place *at = &f->f->value[x->value + k].at;
        c->out[k] = tensor_at(&n->out[k]->type, at);
        s->arg[n->nin + k] = arg_of(f, &n->out[k]->type, at);
    }
    set_kernel(l, s, x->kernel, n);
    const FlowItem *from = item_started(f->f, x);
    c->nbytes_work = (from ? from : x)->work;
    s->work = lower_work(l, f, x);
}

/* ---- loops ---- */

static void lower_flow(Lower *l, const Frame *f);

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

static Frame new_frame(Lower *l, Flow *f, const Frame *outer, int loop)
{
    Frame x = {f, outer, NEWN(l->a, int, f->nroot), loop};
    memset(x.storage, 0xff, sizeof *x.storage * (size_t)f->nroot);
    return x;
}

/* A body, between LOOP, whose arguments are what the body touches of the graph around, and END. */
static void lower_body(Lower *l, const Frame *f, const FlowItem *x, int c)
{
    const Region *r = x->node->region;
    int begin = l->p->nstep, step = x->nbefore + c, narg = 0;
    Step *s = new_step(l, STEP_LOOP, x->node, x->ntouch);
    for (int k = x->touch; k < x->touch + x->ntouch; k++) {
        const Touch *t = &f->f->touch[k];
        if (t->first <= step && step <= t->last)
            s->arg[narg++].storage = storage_of(f, t->root);
    }
    bool tail = x->body[c]->tail;
    s->narg = narg;
    s->depth = f->f->depth;
    s->count = tail ? 1 : r->n;
    s->first = tail ? r->n : r->reverse ? r->n - 1 : 0;
    s->by = r->reverse ? -1 : 1;
    Frame body = new_frame(l, x->body[c], f, begin);
    lower_flow(l, &body);
    Step *e = new_step(l, STEP_END, x->node, 0);
    e->end = begin;
    e->depth = f->f->depth;
    l->p->step[begin].end = l->p->nstep - 1;
}

static void lower_loop(Lower *l, const Frame *f, const FlowItem *x)
{
    for (int k = 0; k < x->node->nout; k++)
        if (x->node->region->out[k].kind != PORT_CARRY)
            make_storage(l, f, f->f->value[x->value + k].at.root, x->node->out[k]->name,
                         result_scope(x->node, k), category_of(x->node));
    for (int j = 0; j < x->node->region->nin; j++)
        if (x->carry[j] >= 0 && f->f->root[x->carry[j]].over >= 0)
            f->storage[x->carry[j]] = storage_of(f, f->f->root[x->carry[j]].over);
    emit_moves(l, f, x->node, x->before, x->nbefore);
    for (int c = 0; c < x->ncore; c++)
        lower_body(l, f, x, c);
}

/* Every item between the ends of the line, and the ends of a body. */
static void lower_flow(Lower *l, const Frame *f)
{
    const Flow *w = f->f;
    const Node *loop = w->outer ? w->outer->item[w->loop].node : NULL;
    for (int i = w->first; i >= 0; i = w->item[i].next) {
        const FlowItem *x = &w->item[i];
        if (!x->node && !loop)
            continue;
        if (x->node && x->node->op->region == LOOP) {
            lower_loop(l, f, x);
        } else {
            emit_moves(l, f, x->node ? x->node : loop, x->before, x->nbefore);
            if (x->ncore)
                lower_call(l, f, x);
        }
        emit_moves(l, f, x->node, x->after, x->nafter);
    }
}

/* ---- the graph's inputs and outputs ---- */

static Category input_category(Role role)
{
    return role == ROLE_PARAM   ? CAT_PARAM
           : role == ROLE_STATE ? CAT_STATE
           : role == ROLE_CACHE ? CAT_OTHER
                                : CAT_INPUT;
}

static void lower_inputs(Lower *l, const Frame *f)
{
    Plan *p = l->p;
    const Graph *g = p->g;
    const char **scope = plan_input_scopes(l->a, g);
    p->nin = g->nin;
    p->in = NEWN(l->a, PlanPort, p->nin);
    for (int i = 0; i < p->nin; i++) {
        const Port *q = &g->in[i];
        int root = f->f->value[f->f->value_of[q->v->id]].at.root;
        int s = make_storage(l, f, root, q->v->name, scope[i], input_category(q->role));
        p->storage[s].persistent = role_kept(q->role);
        p->in[i] = (PlanPort){q->name, q->v->name, q->role, q->v->type, s, q->cut};
    }
    const FlowItem *x = &f->f->item[f->f->first];
    emit_moves(l, f, NULL, x->before, x->nbefore);
}

static void lower_outputs(Lower *l, const Frame *f)
{
    Plan *p = l->p;
    const Graph *g = p->g;
    const FlowItem *x = &f->f->item[f->f->last];
    for (int k = 0; k < x->nbefore; k++)
        emit_moves(l, f, x->before[k].v->def, &x->before[k], 1);
    p->nout = g->nout;
    p->out = NEWN(l->a, PlanPort, g->nout);
    for (int i = 0; i < g->nout; i++) {
        const Port *o = &g->out[i];
        int root = flow_output(f->f, i);
        p->out[i] =
            (PlanPort){o->name, o->v->name, o->role, o->v->type, storage_of(f, root), o->cut};
    }
}

Plan *plan_lower(Arena *a, Flow *flow)
{
    Lower l = {.p = NEW(a, Plan), .a = a};
    l.p->g = flow->g;
    l.p->device = flow->device;
    l.p->nthread = par_threads();
    Frame f = new_frame(&l, flow, NULL, -1);
    lower_inputs(&l, &f);
    lower_flow(&l, &f);
    lower_outputs(&l, &f);
    return l.p;
}
