/* The builder of nodes: a node is checked, typed and complete before it enters its graph. */
#include "ir.h"

#include <string.h>

static int field_index(const AttrField *f, const char *name)
{
    for (int i = 0; f[i].kind; i++)
        if (!strcmp(f[i].name, name))
            return i;
    return -1;
}

Attr *attrs_make(Graph *g, const Op *op, const AttrArg *args)
{
    const AttrField *f = op_attrs(op);
    int count = 0;
    while (f[count].kind)
        count++;
    Attr *attr = NEWN(g->a, Attr, count);
    bool given[TN_MAX_ATTR] = {0};
    CHECK(count <= TN_MAX_ATTR);
    for (int i = 0; i < count; i++)
        attr[i] = (Attr){.absent = f[i].optional, .i = f[i].i, .f = f[i].f, .s = f[i].s};
    for (; args && args->name; args++) {
        int i = field_index(f, args->name);
        if (i < 0)
            fail(g->ctx, TN_FAIL, "%s: unknown attribute \"%s\"", op->name, args->name);
        if (f[i].kind != args->kind)
            fail(g->ctx, TN_FAIL, "%s: attribute \"%s\" is of another kind", op->name, args->name);
        CHECK(!args->a.absent || f[i].optional);
        attr[i] = args->a;
        given[i] = true;
        if (f[i].kind == ATTR_STR)
            attr[i].s = arena_strdup(g->a, args->a.s);
        if (f[i].kind == ATTR_INTS && args->a.i) {
            int64_t *ints = NEWN(g->a, int64_t, args->a.i);
            attr[i].ints = memcpy(ints, args->a.ints, sizeof *ints * (size_t)args->a.i);
        }
    }
    for (int i = 0; i < count; i++)
        if (f[i].required && !given[i])
            fail(g->ctx, TN_FAIL, "%s: attribute \"%s\" is missing", op->name, f[i].name);
    return attr;
}

static void insert(Graph *g, Node *n, Node *before)
{
    n->next = before;
    n->prev = before ? before->prev : g->last;
    *(n->prev ? &n->prev->next : &g->first) = n;
    *(before ? &before->prev : &g->last) = n;
}

static void check_types(const Graph *g, const Node *n, const Type *type, int count)
{
    for (int k = 0; k < count; k++) {
        double nbytes = dtype_size(type[k].dtype);
        for (int d = 0; d < type[k].rank; d++) {
            if (type[k].dim[d] < 0)
                fail_node(g, n, "output %d has a negative size on axis %d", k, d);
            nbytes *= (double)MAX(type[k].dim[d], 1);
        }
        if (nbytes > 0x1p56)
            fail_node(g, n, "output %d is larger than 2^56 bytes", k);
    }
}

Node *emit_named(Build *b, const Op *op, int nin, Value *const *in, const Attr *attr, Region *r,
                 int64_t stream, const char *const *names, int count)
{
    Graph *g = b->g;
    Node *n = NEW(g->a, Node);
    *n = (Node){.op = op,
                .nin = nin,
                .phase = b->phase,
                .policy = b->policy,
                .stream = stream,
                .region = r,
                .scope = b->scope ? b->scope : "",
                .origin = b->origin,
                .line = b->line,
                .column = b->column};
    n->in = NEWN(g->a, Value *, nin);
    if (nin)
        memcpy(n->in, in, sizeof *in * (size_t)nin);
    n->attr = (Attr *)attr;
    if (nin < op->nin_least || (op->nin_most >= 0 && nin > op->nin_most))
        fail_node(g, n, "takes %s inputs, found %d", op_takes(g->a, op), nin);
    bool random = op->class == CLASS_RANDOM;
    if (random != (stream >= 0))
        fail_node(g, n, random ? "needs a stream" : "takes no stream");
    if (!op->region != !r)
        fail_node(g, n, op->region ? "needs a body" : "takes no body");
    Type few[TN_MAX_OUT] = {0};
    Type *type = r && r->nout > TN_MAX_OUT ? NEWN(g->a, Type, r->nout) : few;
    n->nout = op_infer(g, n, type);
    check_types(g, n, type, n->nout);
    if (count >= 0 && count != n->nout)
        fail_node(g, n, "has %d outputs, found %d names", n->nout, count);
    n->out = NEWN(g->a, Value *, n->nout);
    for (int k = 0; k < n->nout; k++) {
        Value *v = n->out[k] = NEW(g->a, Value);
        const char *name = count >= 0 ? names[k] : graph_fresh(g, op->name);
        *v = (Value){.id = g->nvalue++, .name = name, .type = type[k], .def = n, .index = k};
        map_put(&g->names, v->name, v);
    }
    n->id = g->nnode++;
    insert(g, n, b->before);
    return n;
}

static Node *emit_any(Build *b, const char *name, int nin, Value *const *in, const AttrArg *args,
                      int64_t stream)
{
    const Op *op = op_get(b->g->ctx, name);
    return emit_named(b, op, nin, in, attrs_make(b->g, op, args), NULL, stream, NULL, -1);
}

Node *emit(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs)
{
    return emit_any(b, op, nin, in, attrs, -1);
}

Value *emit1(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs)
{
    return emit_any(b, op, nin, in, attrs, -1)->out[0];
}

Node *emit_stream(Build *b, const char *op, int nin, Value *const *in, const AttrArg *attrs,
                  int64_t stream)
{
    return emit_any(b, op, nin, in, attrs, stream);
}

Node *emit_clone(Build *b, const Node *n, Value *const *in)
{
    Build own = *b;
    own.phase = n->phase;
    own.policy = n->policy;
    own.scope = n->scope;
    own.origin = n->origin;
    return emit_named(&own, n->op, n->nin, in, n->attr, n->region, n->stream, NULL, -1);
}

Build build_like(Graph *g, Node *before, const Node *n)
{
    return (Build){g, before, n->phase, n->policy, n->scope, n->origin, n->line, n->column};
}

Node *emit_like(Build *b, const Node *n, Value *const *in, Region *r, const char *suffix)
{
    const char **name = graph_fresh_results(b->g, n, suffix);
    return emit_named(b, n->op, n->nin, in, n->attr, r, n->stream, name, n->nout);
}

Node *emit_loop(Build *b, int nin, Value *const *in, Region *r)
{
    const Op *op = op_get(b->g->ctx, "loop");
    return emit_named(b, op, nin, in, attrs_make(b->g, op, NULL), r, -1, NULL, -1);
}

const char *scope_join(Arena *a, const char *outer, const char *inner)
{
    return outer && *outer ? arena_printf(a, "%s.%s", outer, inner) : arena_strdup(a, inner);
}
