/* Lowering: from the ordered graph to a flat list of kernel calls on storages.
 *
 * Every value gets a location: a storage, an element offset, strides, and what one turn of each
 * enclosing loop adds. A view is a location in its operand's storage and no call. A node is one
 * call of the first of its kernels that takes its operands' strides, or that takes them after
 * copies (which are calls of their own, visible in the plan), or of its reference.
 *
 * A result takes the storage of an operand where the op allows it, the operand's value is not read
 * again, and nothing else lives in that storage: uses are counted for each storage, over all values
 * in it. A new parameter takes the old one's storage if it is the last to read it; otherwise it is
 * copied there when the step ends. */
#include "lower.h"

#include <string.h>

/* ---- storages and steps ---- */

static int64_t round_up(int64_t n)
{
    return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

int new_storage(Lower *l, const Frame *f, const char *name, const char *scope, Category c,
                int64_t nbytes)
{
    Plan *p = l->p;
    Storage s = {.name = name,
                 .scope = scope ? scope : "",
                 .category = c,
                 .nbytes = round_up(nbytes),
                 .loop = f->loop};
    int count = p->nstorage;
    PUSH(l->a, l->pending, count, l->cappending, 0);
    PUSH(l->a, p->storage, p->nstorage, p->capstorage, s);
    return p->nstorage - 1;
}

Step *new_step(Lower *l, StepKind kind, const Node *n)
{
    Plan *p = l->p;
    Step s = {.kind = kind, .node = n, .work = -1};
    PUSH(l->a, p->step, p->nstep, p->capstep, s);
    return &p->step[p->nstep - 1];
}

Category category_of(const Node *n)
{
    return n->origin               ? CAT_RECOMPUTE
           : n->phase == BACKWARD  ? CAT_GRAD
           : n->phase == OPTIMIZER ? CAT_OTHER
                                   : CAT_ACTIVATION;
}

Loc whole(int storage, const Type *t)
{
    Loc x = {.storage = storage};
    Tensor shape = {.rank = t->rank};
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    tensor_fill_strides(&shape);
    memcpy(x.at.stride, shape.stride, sizeof x.at.stride);
    return x;
}

static Tensor tensor_of(const Type *t, const Loc *x)
{
    Tensor y = {.dtype = t->dtype, .rank = t->rank};
    memcpy(y.dim, t->dim, sizeof y.dim);
    memcpy(y.stride, x->at.stride, sizeof y.stride);
    return y;
}

bool contiguous(const Type *t, const Loc *x)
{
    Tensor y = tensor_of(t, x);
    return tensor_contiguous(&y);
}

Arg arg_of(const Type *t, const Loc *x)
{
    int64_t size = dtype_size(t->dtype);
    Arg a = {.storage = x->storage, .offset = x->at.offset * size};
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        a.turn[d] = x->turn[d] * size;
    return a;
}

void bind(Lower *l, Frame *f, const Value *v, Loc x)
{
    f->loc[v->id] = x;
    l->pending[x.storage] += f->uses[v->id];
}

void consume(Lower *l, const Frame *f, const Value *v)
{
    l->pending[f->loc[v->id].storage]--;
}

/* ---- kernels ---- */

static Call make_call(Lower *l, const Node *n, int nin, const Type *const *tin, const Loc *in,
                      int nout, const Type *const *tout, const Loc *out)
{
    Call c = {.node = n, .nin = nin, .nout = nout};
    c.in = NEWN(l->a, Tensor, nin);
    c.out = NEWN(l->a, Tensor, nout);
    for (int i = 0; i < nin; i++)
        c.in[i] = tensor_of(tin[i], &in[i]);
    for (int k = 0; k < nout; k++)
        c.out[k] = tensor_of(tout[k], &out[k]);
    return c;
}

/* Puts a call into the list; chosen may be NULL for the reference. */
static void emit_call(Lower *l, const Frame *f, const Node *n, const Kernel *kernel, Call c,
                      const Type *const *tin, const Loc *in, const Type *const *tout,
                      const Loc *out)
{
    if (kernel && kernel->prepare && l->prepare)
        kernel->prepare(&c, l->a);
    int work = -1;
    if (c.nbytes_work > 0)
        work = new_storage(l, f, n->op->name, n->scope, CAT_WORK, c.nbytes_work);
    Step *s = new_step(l, STEP_CALL, n);
    s->kernel = kernel;
    s->call = c;
    s->work = work;
    s->arg = NEWN(l->a, Arg, c.nin + c.nout);
    for (int i = 0; i < c.nin; i++)
        s->arg[i] = arg_of(tin[i], &in[i]);
    for (int k = 0; k < c.nout; k++)
        s->arg[c.nin + k] = arg_of(tout[k], &out[k]);
}

static const Kernel *first_accepting(const Node *n, const Call *c)
{
    for (const Kernel *k = n->op->rules->kernels; k && k->name; k++)
        if (k->accepts(c))
            return k;
    return NULL;
}

/* A call that is not in the graph: a copy, a cast, an accumulation. */
static void emit_helper(Lower *l, const Frame *f, const char *op, const Node *from, int nin,
                        const Type *const *tin, const Loc *in, const Type *tout, Loc out)
{
    Node *n = NEW(l->a, Node);
    *n = (Node){.op = op_get(l->p->g->ctx, op),
                .phase = from ? from->phase : FORWARD,
                .stream = -1,
                .scope = from ? from->scope : ""};
    if (op_nattr(n->op)) { /* _to_copy: its dtype */
        n->attr = NEWN(l->a, Attr, op_nattr(n->op));
        n->attr[0].i = tout->dtype;
    }
    const Type *touts[] = {tout};
    Call c = make_call(l, n, nin, tin, in, 1, touts, &out);
    emit_call(l, f, n, first_accepting(n, &c), c, tin, in, touts, &out);
    l->p->step[l->p->nstep - 1].copy = true;
    l->p->ncopies += nin == 1;
}

void emit_copy_to(Lower *l, const Frame *f, const Node *from, const Type *t, Loc in, Loc out)
{
    const Type *tin[] = {t};
    emit_helper(l, f, "clone", from, 1, tin, &in, t, out);
}

Loc copied(Lower *l, const Frame *f, const Node *from, const char *name, const Type *t, Loc in)
{
    Loc out = whole(new_storage(l, f, name, from ? from->scope : "",
                                from ? category_of(from) : CAT_OTHER, type_nbytes(t)),
                    t);
    emit_copy_to(l, f, from, t, in, out);
    return out;
}

/* The best kernel for the operands as they lie or copied; in[] becomes what it takes. */
static const Kernel *choose(Lower *l, const Frame *f, const Node *n, Call *c,
                            const Type *const *tin, Loc *in)
{
    for (const Kernel *k = n->op->rules->kernels; k && k->name; k++) {
        if (k->accepts(c))
            return k;
        Call packed = *c;
        packed.in = NEWN(l->a, Tensor, c->nin);
        memcpy(packed.in, c->in, sizeof *c->in * (size_t)c->nin);
        for (int i = 0; i < c->nin; i++)
            tensor_fill_strides(&packed.in[i]);
        if (!k->accepts(&packed))
            continue;
        for (int i = 0; i < c->nin; i++) {
            Tensor strided = c->in[i];
            if (tensor_contiguous(&strided))
                continue;
            packed.in[i] = strided; /* copy only what it does not take as it is */
            if (k->accepts(&packed))
                continue;
            tensor_fill_strides(&packed.in[i]);
            in[i] = copied(l, f, n, n->in[i]->name, tin[i], in[i]);
        }
        *c = packed;
        return k;
    }
    return NULL;
}

/* ---- results ---- */

static bool others_share(const Node *n, const Loc *in, int i)
{
    for (int j = 0; j < n->nin; j++)
        if (j != i && in[j].storage == in[i].storage)
            return true;
    return false;
}

/* Whether result k may be written over operand i. */
static bool may_overwrite(const Lower *l, const Frame *f, const Node *n, const Loc *in, int i,
                          int k)
{
    const Storage *s = &l->p->storage[in[i].storage];
    bool is_new = f->loop < 0 && l->new_of[n->out[k]->id] == n->in[i];
    const Type *x = &n->in[i]->type, *y = &n->out[k]->type;
    bool alike = n->op->region == FUSED ? x->dtype == y->dtype && type_nelem(x) == type_nelem(y)
                                        : type_equal(x, y);
    return alike && contiguous(&n->in[i]->type, &in[i]) && !in[i].at.offset && s->loop == f->loop &&
           (is_new || !s->persistent) && l->pending[in[i].storage] == 1 && !others_share(n, in, i);
}

/* A parameter in the dtype of computation counts as one. */
static Category result_category(const Lower *l, const Node *n, const Loc *in)
{
    bool weight = node_is(n, "_to_copy") && l->p->storage[in[0].storage].category == CAT_PARAM;
    return weight ? CAT_PARAM : category_of(n);
}

static Loc result_loc(Lower *l, Frame *f, const Node *n, const Loc *in, int k, unsigned *taken)
{
    const Value *v = n->out[k];
    if (f->target[v->id].storage >= 0)
        return f->target[v->id];
    unsigned mask = node_inplace(n, k);
    for (int i = 0; i < n->nin && i < 32; i++) {
        if (!(mask & ~*taken & 1u << i) || f->loc[n->in[i]->id].storage != in[i].storage)
            continue;
        if (may_overwrite(l, f, n, in, i, k)) {
            *taken |= 1u << i;
            return type_equal(&n->in[i]->type, &v->type) ? in[i] : whole(in[i].storage, &v->type);
        }
    }
    return whole(new_storage(l, f, v->name, value_scope(v), result_category(l, n, in),
                             type_nbytes(&v->type)),
                 &v->type);
}

void add_to_sum(Lower *l, Frame *f, const Node *n, const Value *v, const Type *acc, Loc sum)
{
    Loc term = f->loc[v->id];
    if (acc->dtype != v->type.dtype) {
        const Type *t[] = {&v->type};
        Loc wide =
            whole(new_storage(l, f, v->name, n ? n->scope : "", CAT_GRAD, type_nbytes(acc)), acc);
        emit_helper(l, f, "_to_copy", n, 1, t, &term, acc, wide);
        term = wide;
    }
    Loc in[] = {sum, term};
    const Type *tin[] = {acc, acc};
    emit_helper(l, f, "add", n, 2, tin, in, acc, sum);
    consume(l, f, v);
}

static void finish_sums(Lower *l, Frame *f, const Node *n)
{
    for (int k = 0; k < n->nout; k++) {
        const Value *v = n->out[k], *sum = f->sum[v->id];
        if (sum)
            add_to_sum(l, f, n, v, &sum->type, whole(f->acc[v->id], &sum->type));
    }
}

/* ---- nodes ---- */

static bool lower_view(Lower *l, Frame *f, const Node *n)
{
    const Loc *x = &f->loc[n->in[0]->id];
    for (int k = 0; k < n->nout; k++) {
        Loc y = *x;
        if (!n->op->rules->view(n, k, &x->at, &y.at))
            return false;
        bind(l, f, n->out[k], y);
    }
    consume(l, f, n->in[0]);
    return true;
}

/* A view that strides cannot express: of a copy they can. */
static void lower_view_of_copy(Lower *l, Frame *f, const Node *n)
{
    Value *x = n->in[0];
    Loc dense = copied(l, f, n, x->name, &x->type, f->loc[x->id]);
    for (int k = 0; k < n->nout; k++) {
        Loc y = dense;
        bool good = n->op->rules->view(n, k, &dense.at, &y.at);
        CHECK(good);
        bind(l, f, n->out[k], y);
    }
    consume(l, f, x);
}

static void lower_plain(Lower *l, Frame *f, const Node *n)
{
    Loc *in = NEWN(l->a, Loc, n->nin), *out = NEWN(l->a, Loc, n->nout);
    const Type **tin = NEWN(l->a, const Type *, n->nin), **tout = NEWN(l->a, const Type *, n->nout);
    for (int i = 0; i < n->nin; i++) {
        in[i] = f->loc[n->in[i]->id];
        tin[i] = &n->in[i]->type;
    }
    for (int k = 0; k < n->nout; k++) {
        tout[k] = &n->out[k]->type;
        out[k] = whole(-1, tout[k]);
    }
    Call c = make_call(l, n, n->nin, tin, in, n->nout, tout, out);
    const Kernel *kernel = choose(l, f, n, &c, tin, in);
    unsigned taken = 0;
    for (int k = 0; k < n->nout; k++)
        out[k] = result_loc(l, f, n, in, k, &taken);
    emit_call(l, f, n, kernel, c, tin, in, tout, out);
    for (int i = 0; i < n->nin; i++)
        consume(l, f, n->in[i]);
    for (int k = 0; k < n->nout; k++)
        bind(l, f, n->out[k], out[k]);
}

void lower_graph(Lower *l, Frame *f)
{
    for (Node *n = f->g->first; n; n = n->next) {
        if (n->op->region == LOOP)
            lower_loop(l, f, n);
        else if (!n->op->view)
            lower_plain(l, f, n);
        else if (!lower_view(l, f, n))
            lower_view_of_copy(l, f, n);
        finish_sums(l, f, n);
    }
}

Frame new_frame(Lower *l, Graph *g, int loop, int depth)
{
    Frame f = {.g = g, .loop = loop, .depth = depth};
    f.loc = NEWN(l->a, Loc, g->nvalue);
    f.target = NEWN(l->a, Loc, g->nvalue);
    f.uses = NEWN(l->a, int, g->nvalue);
    f.sum = NEWN(l->a, const Value *, g->nvalue);
    f.acc = NEWN(l->a, int, g->nvalue);
    for (int i = 0; i < g->nvalue; i++)
        f.loc[i].storage = f.target[i].storage = -1;
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            f.uses[n->in[i]->id]++;
    for (int i = 0; i < g->nout; i++)
        f.uses[g->out[i].v->id]++;
    return f;
}

/* ---- the graph's inputs and outputs ---- */

static Category input_category(Role role)
{
    return role == ROLE_PARAM   ? CAT_PARAM
           : role == ROLE_STATE ? CAT_STATE
           : role == ROLE_CACHE ? CAT_OTHER
                                : CAT_INPUT;
}

static void bind_graph_inputs(Lower *l, Frame *f)
{
    Plan *p = l->p;
    const char **scope = plan_input_scopes(l->a, f->g);
    p->nin = f->g->nin;
    p->in = NEWN(l->a, PlanPort, p->nin);
    for (int i = 0; i < p->nin; i++) {
        const Port *q = &f->g->in[i];
        int s = new_storage(l, f, q->v->name, scope[i], input_category(q->role),
                            type_nbytes(&q->v->type));
        p->storage[s].persistent = role_kept(q->role);
        p->in[i] = (PlanPort){q->name, q->v->name, q->role, q->v->type, s};
        bind(l, f, q->v, whole(s, &q->v->type));
        if (!p->storage[s].persistent)
            l->pending[s]++; /* the caller's data is not overwritten */
    }
}

/* The input whose storage an output of role new takes. */
static const PlanPort *replaced(const Plan *p, const Port *o)
{
    for (int i = 0; i < p->nin; i++)
        if (role_renewed(p->in[i].role) && !strcmp(p->in[i].name, o->name))
            return &p->in[i];
    return NULL;
}

static void mark_new(Lower *l, Frame *f)
{
    l->new_of = NEWN(l->a, const Value *, f->g->nvalue);
    for (int i = 0; i < f->g->nout; i++) {
        const Port *o = &f->g->out[i];
        const PlanPort *q = o->role == ROLE_NEW ? replaced(l->p, o) : NULL;
        if (q)
            l->new_of[o->v->id] = f->g->in[q - l->p->in].v;
    }
}

static bool is_input_storage(const Plan *p, int s)
{
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].storage == s)
            return true;
    return false;
}

/* Outputs that are inputs, before anything is overwritten. */
static void copy_input_outputs(Lower *l, Frame *f)
{
    Graph *g = f->g;
    l->p->nout = g->nout;
    l->p->out = NEWN(l->a, PlanPort, g->nout);
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        l->p->out[i] = (PlanPort){g->out[i].name, v->name, g->out[i].role, v->type, -1};
        if (!v->def)
            l->p->out[i].storage = copied(l, f, NULL, v->name, &v->type, f->loc[v->id]).storage;
    }
}

static void finish_outputs(Lower *l, Frame *f)
{
    Plan *p = l->p;
    for (int i = 0; i < p->nout; i++) {
        const Value *v = f->g->out[i].v;
        Loc x = v->def ? f->loc[v->id] : whole(p->out[i].storage, &v->type);
        if (!contiguous(&v->type, &x) || x.at.offset ||
            (p->out[i].role != ROLE_NEW && is_input_storage(p, x.storage)))
            x = copied(l, f, v->def, v->name, &v->type, x);
        p->out[i].storage = x.storage;
    }
    for (int i = 0; i < p->nout; i++) { /* after all reading: new parameters to their place */
        const PlanPort *q = p->out[i].role == ROLE_NEW ? replaced(p, &f->g->out[i]) : NULL;
        if (!q || q->storage == p->out[i].storage)
            continue;
        emit_copy_to(l, f, f->g->out[i].v->def, &q->type, whole(p->out[i].storage, &q->type),
                     whole(q->storage, &q->type));
        p->out[i].storage = q->storage;
    }
}

Plan *plan_lower(Arena *a, Graph *g, bool prepare)
{
    Lower l = {.p = NEW(a, Plan), .a = a, .prepare = prepare};
    l.p->g = g;
    Frame f = new_frame(&l, g, -1, 0);
    bind_graph_inputs(&l, &f);
    mark_new(&l, &f);
    copy_input_outputs(&l, &f);
    lower_graph(&l, &f);
    finish_outputs(&l, &f);
    return l.p;
}
