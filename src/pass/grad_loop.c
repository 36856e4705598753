/* grad_loop: the gradient of a loop is another loop, with the iterations in reverse.
 *
 * The backward of the body is first appended to the body itself, with placeholders for the
 * gradients of what it yields, then moved into the body of a new loop that runs the iterations
 * backwards (the tail first if the forward ran it last). A value of the forward body that the
 * backward reads is
 *
 *   - an operand that the body sees by any port but a carry: the new loop takes the same operand
 *     through a port of the same kind;
 *   - a view, or a node without operands that is not random: recomputed in the new body, as saving
 *     a view of a whole operand would copy it once per iteration;
 *   - a result that the forward loop concatenates or stacks: read from that result;
 *   - anything else, carried operands included: the forward loop yields it as one more result on a
 *     new leading axis (stack; the tail's separately), and the new loop reads that by stack.
 *
 * Gradients of whole operands are summed over the iterations in f32 (f64 for f64), those of slices
 * are concatenated, those of carried operands are carried. Main body and tail are differentiated
 * separately and joined port by port. Linear, but for the search of values among ports. */
#include "pass.h"

#include <string.h>

/* One body's backward in the making. */
typedef struct BodyGrad {
    Graph *fwd, *bwd;
    Value **grad;  /* by forward value id: gradient, in fwd until moved, then in bwd */
    Value **moved; /* by forward value id: its stand-in in bwd */
    Value **seed;  /* by result port: the placeholder in fwd, NULL where no gradient comes */
    Node *last;    /* of the forward part */
    int *port;     /* by forward body input: the port that gives it */
    Value **saved; /* forward values to be saved, in the order of first use */
    int nsaved, capsaved;
} BodyGrad;

/* The loop being built. */
typedef struct LoopGrad {
    Build *b;
    Node *n;
    Value **dy;
    bool *need_port, *need_out;
    BodyGrad part[2]; /* main, tail */
    int nparts;
    Value **in; /* operands of the new loop */
    int nin, capin;
    Region *r;
    int capport, capout;
    int *carry;  /* forward carry port -> the new loop's port with its gradient, or -1 */
    int *result; /* forward operand port -> the new loop's result with its gradient, or -1 */
} LoopGrad;

static DType sum_dtype(DType d)
{
    return d == F64 ? F64 : F32;
}

/* ---- which results depend on needed operands ---- */

static void mark_body(const Node *n, bool tail, const bool *need_port, bool *need_out)
{
    const Region *r = n->region;
    const Graph *body = r->body[tail];
    bool *need = NEWN(body->a, bool, body->nvalue);
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[tail];
        if (i >= 0)
            need[body->in[i].v->id] = need_port[j];
    }
    grad_mark(body, need);
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[tail];
        if (i >= 0)
            need_out[k] |= need[body->out[i].v->id];
    }
}

void grad_mark_region(const Node *n, const bool *need_in, bool *need_port, bool *need_out)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++)
        need_port[j] = r->in[j].arg >= 0 && need_in[r->in[j].arg] &&
                       dtype_float(n->in[r->in[j].arg]->type.dtype);
    memset(need_out, 0, sizeof *need_out * (size_t)r->nout);
    for (bool again = true; again;) {
        again = false;
        EACH_BODY(b, n)
            mark_body(n, b, need_port, need_out);
        for (int k = 0; k < r->nout; k++) {
            if (r->out[k].kind != PORT_CARRY || !need_out[k] || need_port[r->out[k].carry])
                continue;
            need_port[r->out[k].carry] = true;
            again = true;
        }
    }
}

/* ---- ports of the new loop ---- */

static int add_operand(LoopGrad *l, Value *v)
{
    for (int i = 0; i < l->nin; i++)
        if (l->in[i] == v)
            return i;
    PUSH(l->b->g->a, l->in, l->nin, l->capin, v);
    return l->nin - 1;
}

static int add_port(LoopGrad *l, PortIn p)
{
    p.at[MAIN] = p.at[TAIL] = -1;
    PUSH(l->b->g->a, l->r->in, l->r->nin, l->capport, p);
    return l->r->nin - 1;
}

/* Lets body `tail` see port j as a new input. */
static Value *add_body_input(LoopGrad *l, bool tail, int j, const char *name, Type t)
{
    Graph *bwd = l->part[tail].bwd;
    l->r->in[j].at[tail] = bwd->nin;
    return graph_input(bwd, name, t, ROLE_NONE, NULL);
}

/* ---- differentiating one body in place ---- */

static void append_backward(LoopGrad *l, bool tail)
{
    const Region *r = l->n->region;
    BodyGrad *p = &l->part[tail];
    Graph *fwd = p->fwd = r->body[tail];
    Arena *a = fwd->a;
    p->port = NEWN(a, int, fwd->nin);
    p->seed = NEWN(a, Value *, r->nout);
    p->last = fwd->last;
    int nin = fwd->nin;
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[tail];
        if (i >= 0 && l->dy[k])
            p->seed[k] = graph_input(fwd, "dy", fwd->out[i].v->type, ROLE_NONE, NULL);
    }
    bool *need = NEWN(a, bool, fwd->nvalue);
    Value **grad = NEWN(a, Value *, fwd->nvalue);
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[tail];
        if (i >= 0) {
            need[fwd->in[i].v->id] = l->need_port[j];
            p->port[i] = j;
        }
    }
    grad_mark(fwd, need);
    Build b = {.g = fwd, .phase = BACKWARD, .scope = l->n->scope};
    for (int k = 0; k < r->nout; k++) {
        if (!p->seed[k])
            continue;
        int id = fwd->out[r->out[k].at[tail]].v->id;
        grad[id] = grad[id] ? emit1(&b, "add", IN(grad[id], p->seed[k]), NOATTRS) : p->seed[k];
    }
    grad_backprop(fwd, p->last, grad, need);
    p->grad = grad;
    p->moved = NEWN(a, Value *, fwd->nvalue);
    p->bwd = graph_body(l->b->g);
    l->r->body[tail] = p->bwd;
    fwd->nin = nin; /* the placeholders stay values until the backward has moved out */
}

/* ---- moving it out ---- */

static Value *stand_in(LoopGrad *l, bool tail, Value *v);

/* Gives every body that sees the forward port of v the same operand again. */
static Value *share_input(LoopGrad *l, bool tail, const Value *v)
{
    int jf = l->part[tail].port[v->index];
    const PortIn *f = &l->n->region->in[jf];
    PortIn forward = *f;
    forward.arg = f->arg < 0 ? -1 : add_operand(l, l->n->in[f->arg]);
    int j = add_port(l, forward);
    for (int t = 0; t < l->nparts; t++) {
        int i = f->at[t];
        if (i < 0)
            continue;
        const Value *w = l->part[t].fwd->in[i].v;
        l->part[t].moved[w->id] = add_body_input(l, t, j, w->name, w->type);
    }
    return l->part[tail].moved[v->id];
}

/* The port kind that reads iteration by iteration what a result of this kind holds, or PORT_WHOLE.
 */
static PortKind reads(PortKind result)
{
    return result == PORT_CONCAT                         ? PORT_SLICE
           : result == PORT_STACK || result == PORT_TAIL ? result
                                                         : PORT_WHOLE;
}

/* Reads v from a result of the forward loop that holds it; NULL where none does. */
static Value *share_result(LoopGrad *l, bool tail, const Value *v)
{
    const Region *r = l->n->region;
    for (int k = 0; k < r->nout; k++) {
        const PortOut *o = &r->out[k];
        int i = o->at[tail];
        if (i < 0 || l->part[tail].fwd->out[i].v != v || reads(o->kind) == PORT_WHOLE)
            continue;
        int j = add_port(
            l,
            (PortIn){.kind = reads(o->kind), .axis = o->axis, .arg = add_operand(l, l->n->out[k])});
        for (int t = 0; t < l->nparts; t++) {
            BodyGrad *p = &l->part[t];
            i = o->at[t];
            if (i < 0)
                continue;
            const Value *w = p->fwd->out[i].v;
            Value *x = add_body_input(l, t, j, w->name, w->type);
            p->moved[w->id] = p->moved[w->id] ? p->moved[w->id] : x;
        }
        return l->part[tail].moved[v->id];
    }
    return NULL;
}

static Value *save(LoopGrad *l, bool tail, Value *v)
{
    BodyGrad *p = &l->part[tail];
    Arena *a = p->fwd->a;
    if (!tail && v->type.rank == TN_RANK)
        fail_node(l->b->g, l->n, "has no gradient through %%%s: saving rank %d needs one more axis",
                  v->name, TN_RANK);
    PUSH(a, p->saved, p->nsaved, p->capsaved, v);
    int j = add_port(l, (PortIn){.kind = tail ? PORT_TAIL : PORT_STACK, .arg = -1});
    return add_body_input(l, tail, j, v->name, v->type);
}

static Value *copy_into(LoopGrad *l, bool tail, Node *n, int index)
{
    BodyGrad *p = &l->part[tail];
    Value **in = NEWN(p->bwd->a, Value *, n->nin);
    for (int i = 0; i < n->nin; i++)
        in[i] = stand_in(l, tail, n->in[i]);
    Build b = {.g = p->bwd};
    Node *m = emit_clone(&b, n, in);
    if (m->phase < BACKWARD) { /* a forward view or constant made again */
        m->phase = BACKWARD;
        m->policy = POLICY_NONE;
        m->origin = n->out[0]->name;
    }
    EACH_BODY(t, m)
        m->region->body[t]->parent = p->bwd;
    for (int k = 0; k < n->nout; k++)
        p->moved[n->out[k]->id] = m->out[k];
    return m->out[index];
}

static bool made_again(const Node *n)
{
    return n->op->view || (!n->nin && n->op->class != CLASS_RANDOM && !n->region);
}

/* The value that the new body reads in place of v, one of the forward body. */
static Value *stand_in(LoopGrad *l, bool tail, Value *v)
{
    BodyGrad *p = &l->part[tail];
    if (p->moved[v->id])
        return p->moved[v->id];
    Value *w;
    if (v->def && made_again(v->def))
        w = copy_into(l, tail, v->def, v->index);
    else if (!v->def && l->n->region->in[p->port[v->index]].kind != PORT_CARRY)
        w = share_input(l, tail, v);
    else if (!(w = share_result(l, tail, v)))
        w = save(l, tail, v);
    return p->moved[v->id] = w;
}

static Node *first_backward(const BodyGrad *p)
{
    return p->last ? p->last->next : p->fwd->first;
}

static void move_out(LoopGrad *l, bool tail)
{
    BodyGrad *p = &l->part[tail];
    for (Node *n = first_backward(p); n; n = n->next)
        copy_into(l, tail, n, 0);
    for (Node *n = first_backward(p), *next; n; n = next) {
        next = n->next;
        node_unlink(p->fwd, n);
    }
    for (int k = 0; k < l->n->region->nout; k++)
        if (p->seed[k])
            map_del(&p->fwd->names, p->seed[k]->name);
}

/* ---- gradients that come in ---- */

/* Adds the port that gives the gradient of result k, and its operand. */
static void take_gradient(LoopGrad *l, int k)
{
    const PortOut *o = &l->n->region->out[k];
    static const PortKind kind[NPORT] = {[PORT_CONCAT] = PORT_SLICE,
                                         [PORT_STACK] = PORT_STACK,
                                         [PORT_TAIL] = PORT_TAIL,
                                         [PORT_SUM] = PORT_WHOLE,
                                         [PORT_CARRY] = PORT_CARRY};
    Value *dy = l->dy[k];
    if (o->kind == PORT_SUM)
        dy = emit_cast(l->b, dy, l->part[0].seed[k]->type.dtype);
    PortIn p = {.kind = kind[o->kind], .arg = -1, .axis = o->axis};
    int j = add_port(l, p);
    l->r->in[j].arg = add_operand(l, dy);
    if (o->kind == PORT_CARRY)
        l->carry[o->carry] = j;
    for (int t = 0; t < l->nparts; t++) {
        Value *seed = l->part[t].seed[k];
        if (seed)
            l->part[t].moved[seed->id] = add_body_input(l, t, j, "dy", seed->type);
    }
}

/* A carried operand that needs a gradient gets zeros where nothing reads its last value. */
static void complete_gradients(LoopGrad *l)
{
    const Region *r = l->n->region;
    for (int k = 0; k < r->nout; k++) {
        if (r->out[k].kind == PORT_CARRY && l->need_port[r->out[k].carry])
            l->dy[k] = l->dy[k] ? l->dy[k] : grad_zero(l->b, &l->n->out[k]->type);
        else if (!l->need_out[k])
            l->dy[k] = NULL;
    }
}

/* ---- gradients that go out ---- */

static PortOut gradient_port(const LoopGrad *l, int j, const Type *t)
{
    const PortIn *p = &l->n->region->in[j];
    PortOut o = {.at = {-1, -1}, .axis = p->axis, .dtype = sum_dtype(t->dtype)};
    o.kind = p->kind == PORT_SLICE ? PORT_CONCAT : p->kind == PORT_WHOLE ? PORT_SUM : p->kind;
    return o;
}

static Value *input_gradient(LoopGrad *l, bool tail, int j)
{
    BodyGrad *p = &l->part[tail];
    int i = l->n->region->in[j].at[tail];
    if (i < 0)
        return NULL;
    Value *dx = p->grad[p->fwd->in[i].v->id];
    return dx ? stand_in(l, tail, dx) : NULL;
}

static void give_gradient(LoopGrad *l, int j)
{
    const Region *r = l->n->region;
    Value *dx[2] = {NULL, NULL};
    bool any = false;
    for (int t = 0; t < l->nparts; t++)
        any |= (dx[t] = input_gradient(l, t, j)) != NULL;
    if (!any && r->in[j].kind != PORT_CARRY)
        return;
    const Type *t0 = &l->n->in[r->in[j].arg]->type;
    PortOut o = gradient_port(l, j, t0);
    o.carry = MAX(l->carry[j], 0);
    for (int t = 0; t < l->nparts; t++) {
        int i = r->in[j].at[t];
        if (i < 0)
            continue;
        Build b = {.g = l->part[t].bwd, .phase = BACKWARD, .scope = l->n->scope};
        if (!dx[t])
            dx[t] = grad_zero(&b, &l->part[t].fwd->in[i].v->type);
        o.at[t] = l->part[t].bwd->nout;
        graph_output(l->part[t].bwd, dx[t], ROLE_NONE, NULL);
    }
    l->result[j] = l->r->nout;
    PUSH(l->b->g->a, l->r->out, l->r->nout, l->capout, o);
}

/* ---- what the forward loop yields in addition ---- */

static void add_result(LoopGrad *l, bool tail, Value *v, int port)
{
    Node *n = l->n;
    Graph *g = l->b->g, *fwd = l->part[tail].fwd;
    Region *r = n->region;
    PortOut o = {.kind = tail ? PORT_TAIL : PORT_STACK, .at = {-1, -1}};
    o.at[tail] = fwd->nout;
    graph_output(fwd, v, ROLE_NONE, NULL);
    Type t = v->type;
    if (!tail) {
        memmove(t.dim + 1, t.dim, sizeof *t.dim * (size_t)t.rank++);
        t.dim[0] = r->n;
    }
    Value *w = NEW(g->a, Value);
    *w = (Value){
        .id = g->nvalue++, .name = graph_fresh(g, v->name), .type = t, .def = n, .index = n->nout};
    map_put(&g->names, w->name, w);
    r->out[r->nout++] = o;
    n->out[n->nout++] = w;
    l->r->in[port].arg = add_operand(l, w);
}

static void add_results(LoopGrad *l)
{
    Node *n = l->n;
    Arena *a = l->b->g->a;
    int most = n->nout + l->part[0].nsaved + l->part[1].nsaved;
    PortOut *ports = NEWN(a, PortOut, most);
    Value **out = NEWN(a, Value *, most);
    memcpy(ports, n->region->out, sizeof *ports * (size_t)n->nout);
    memcpy(out, n->out, sizeof *out * (size_t)n->nout);
    n->region->out = ports;
    n->out = out;
    for (int t = 0; t < l->nparts; t++) {
        const BodyGrad *p = &l->part[t];
        for (int j = 0, next = 0; next < p->nsaved; j++)
            if (l->r->in[j].arg < 0 && l->r->in[j].kind == (t ? PORT_TAIL : PORT_STACK))
                add_result(l, t, p->saved[next++], j);
    }
}

static int *filled(Arena *a, int count, int x)
{
    int *p = NEWN(a, int, count);
    for (int i = 0; i < count; i++)
        p[i] = x;
    return p;
}

static LoopGrad start(Build *b, Node *n, Value **dy, const bool *need)
{
    Arena *a = b->g->a;
    const Region *r = n->region;
    LoopGrad l = {.b = b, .n = n, .dy = dy, .nparts = region_nbody(r), .r = NEW(a, Region)};
    l.need_port = NEWN(a, bool, r->nin);
    l.need_out = NEWN(a, bool, r->nout);
    grad_mark_region(n, need, l.need_port, l.need_out);
    l.carry = filled(a, r->nin, -1);
    l.result = filled(a, r->nin, -1);
    l.r->n = r->n;
    l.r->reverse = !r->reverse;
    return l;
}

/* The results of the new loop, called %dx where they are the gradient of %x. */
static void collect(const LoopGrad *l, Node *m, Value **dx)
{
    const Node *n = l->n;
    for (int j = 0; j < n->region->nin; j++) {
        if (l->result[j] < 0)
            continue;
        int arg = n->region->in[j].arg;
        Graph *g = l->b->g;
        Value *dy = m->out[l->result[j]];
        value_rename(g, dy, graph_fresh(g, arena_printf(g->a, "d%s", n->in[arg]->name)));
        dy = emit_cast(l->b, dy, n->in[arg]->type.dtype);
        dx[arg] = dx[arg] ? emit1(l->b, "add", IN(dx[arg], dy), NOATTRS) : dy;
    }
}

void grad_loop(Build *b, Node *n, Value **dy, const bool *need, Value **dx)
{
    LoopGrad l = start(b, n, dy, need);
    int nin = n->region->nin, nout = n->region->nout;
    complete_gradients(&l);
    for (int t = 0; t < l.nparts; t++)
        append_backward(&l, t);
    for (int k = 0; k < nout; k++)
        if (dy[k])
            take_gradient(&l, k);
    for (int t = 0; t < l.nparts; t++)
        move_out(&l, t);
    for (int j = 0; j < nin; j++)
        if (l.need_port[j])
            give_gradient(&l, j);
    add_results(&l);
    if (l.r->nout)
        collect(&l, emit_loop(b, l.nin, l.in, l.r), dx);
}
