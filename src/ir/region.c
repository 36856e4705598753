/* Regions: nodes that own bodies. Ports say what a body sees of an operand and how its results
 * form the node's. The types on both sides must agree; that is checked only here.
 *
 * A slice of an axis of N elements over n iterations without a tail gives each iteration N / n,
 * which must be whole; with a tail each main iteration takes what the main body's input has, and
 * the tail takes the rest, which must be smaller and at least 1. */
#include "ir.h"

static Value *body_input(const Region *r, int j, int b)
{
    int i = r->in[j].at[b];
    const Graph *body = r->body[b];
    return i < 0 || !body || i >= body->nin ? NULL : body->in[i].v;
}

static Value *body_output(const Region *r, int k, int b)
{
    int i = r->out[k].at[b];
    const Graph *body = r->body[b];
    return i < 0 || !body || i >= body->nout ? NULL : body->out[i].v;
}

static void need_same(const Graph *g, const Node *n, const char *what, int j, const Type *want,
                      const Type *got)
{
    if (!type_equal(want, got))
        fail_node(g, n, "%s %d: expected %s, found %s", what, j, type_text(g->a, want),
                  type_text(g->a, got));
}

/* Whether port kind k is seen by body b. */
static bool seen(PortKind k, int b)
{
    return b == TAIL ? k != PORT_STACK : k != PORT_TAIL;
}

/* A region that runs once has only whole ports; a loop has no whole result. */
static void check_kind(const Graph *g, const Node *n, const char *what, int j, PortKind k,
                       bool whole)
{
    if (n->op->region == FUSED ? k != PORT_WHOLE : whole && k == PORT_WHOLE)
        fail_node(g, n, "%s %d: %s is no port of %s here", what, j, port_name(k), n->op->name);
}

static void check_presence(const Graph *g, const Node *n, const char *what, int j, PortKind k,
                           bool main, bool tail)
{
    const Region *r = n->region;
    if (main != seen(k, MAIN) || (r->body[TAIL] ? tail != seen(k, TAIL) : tail))
        fail_node(g, n, "%s %d: a %s port of the wrong body", what, j, port_name(k));
    if (k == PORT_TAIL && !r->body[TAIL])
        fail_node(g, n, "%s %d: a tail port without a tail", what, j);
}

static Type slice_type(const Graph *g, const Node *n, int j, const Type *whole, int b)
{
    const Region *r = n->region;
    int axis = r->in[j].axis;
    if (axis < 0 || axis >= whole->rank)
        fail_node(g, n, "operand port %d: axis %d outside of rank %d", j, axis, whole->rank);
    int64_t total = whole->dim[axis];
    const Value *main = body_input(r, j, MAIN);
    int64_t part =
        r->body[TAIL] && main && axis < main->type.rank ? main->type.dim[axis] : total / r->n;
    int64_t rest = part > total / r->n ? -1 : total - part * r->n; /* no overflow */
    if (r->body[TAIL] ? rest < 1 || rest >= part : rest != 0)
        fail_node(g, n, "operand port %d: %lld elements do not split into %lld iterations%s", j,
                  (long long)total, (long long)r->n, r->body[TAIL] ? " and a shorter tail" : "");
    Type t = *whole;
    t.dim[axis] = b == TAIL ? rest : part;
    return t;
}

Type region_input_type(const Graph *g, const Node *n, int j, int b)
{
    const Region *r = n->region;
    const PortIn *p = &r->in[j];
    if (p->kind == PORT_OFFSET)
        return type_make(I64, 0, NULL);
    if (p->arg < 0 || p->arg >= n->nin)
        fail_node(g, n, "operand port %d: no operand %d", j, p->arg);
    const Type *whole = &n->in[p->arg]->type;
    if (p->kind == PORT_SLICE)
        return slice_type(g, n, j, whole, b);
    if (p->kind != PORT_STACK)
        return *whole;
    if (!whole->rank || whole->dim[0] != r->n)
        fail_node(g, n, "operand port %d: a stack of %lld needs that size on axis 0, found %s", j,
                  (long long)r->n, type_text(g->a, whole));
    return type_make(whole->dtype, whole->rank - 1, whole->dim + 1);
}

static void check_inputs(const Graph *g, const Node *n)
{
    const Region *r = n->region;
    int count[NBODY] = {0};
    for (int j = 0; j < r->nin; j++) {
        Value *v[NBODY] = {body_input(r, j, MAIN), body_input(r, j, TAIL)};
        if (r->in[j].kind > PORT_CARRY)
            fail_node(g, n, "operand port %d: %s is no operand port", j, port_name(r->in[j].kind));
        check_kind(g, n, "operand port", j, r->in[j].kind, false);
        check_presence(g, n, "operand port", j, r->in[j].kind, v[MAIN], v[TAIL]);
        for (int b = 0; b < NBODY; b++) {
            if (!v[b])
                continue;
            Type want = region_input_type(g, n, j, b);
            need_same(g, n, b == TAIL ? "operand port of the tail" : "operand port", j, &want,
                      &v[b]->type);
            count[b]++;
        }
    }
    EACH_BODY(b, n)
        if (count[b] != r->body[b]->nin)
            fail_node(g, n, "a body has inputs that no port gives");
}

/* The tail's part of a concat must be shorter, as for a slice: its gradient is sliced. */
static void need_shorter(const Graph *g, const Node *n, int k, int64_t main, int64_t tail)
{
    if (tail < 1 || tail >= main)
        fail_node(g, n, "tail's result %d: expected 1 to %lld elements to concatenate, found %lld",
                  k, (long long)main - 1, (long long)tail);
}

static Type output_type(const Graph *g, const Node *n, int k)
{
    const Region *r = n->region;
    const PortOut *p = &r->out[k];
    Value *main = body_output(r, k, MAIN), *tail = body_output(r, k, TAIL);
    check_kind(g, n, "result port", k, p->kind, true);
    check_presence(g, n, "result port", k, p->kind, main, tail);
    Type t = main ? main->type : tail->type;
    switch (p->kind) {
    case PORT_CONCAT:
        if (p->axis < 0 || p->axis >= t.rank)
            fail_node(g, n, "result port %d: axis %d outside of rank %d", k, p->axis, t.rank);
        if (t.dim[p->axis] > INT64_MAX / 2 / r->n)
            fail_node(g, n, "result port %d: more than 2^62 elements on axis %d", k, p->axis);
        t.dim[p->axis] *= r->n;
        if (tail) {
            Type part = tail->type;
            t.dim[p->axis] += part.rank == t.rank ? part.dim[p->axis] : 0;
            part.dim[p->axis] = main->type.dim[p->axis];
            need_same(g, n, "tail's result", k, &main->type, &part);
            need_shorter(g, n, k, main->type.dim[p->axis], tail->type.dim[p->axis]);
        }
        return t;
    case PORT_SUM:
        if (tail)
            need_same(g, n, "tail's result", k, &main->type, &tail->type);
        t.dtype = p->dtype;
        return t;
    case PORT_STACK:
        if (t.rank == TN_RANK)
            fail_node(g, n, "result port %d: rank above %d", k, TN_RANK);
        for (int d = t.rank++; d > 0; d--)
            t.dim[d] = t.dim[d - 1];
        t.dim[0] = r->n;
        return t;
    case PORT_CARRY:
        if (p->carry < 0 || p->carry >= r->nin || r->in[p->carry].kind != PORT_CARRY)
            fail_node(g, n, "result port %d: carries no operand port", k);
        need_same(g, n, "carried result", k, &n->in[r->in[p->carry].arg]->type, &t);
        if (tail)
            need_same(g, n, "tail's carried result", k, &t, &tail->type);
        return t;
    case PORT_WHOLE:
    case PORT_TAIL: return t;
    default: fail_node(g, n, "result port %d: %s is no result port", k, port_name(p->kind));
    }
}

Region *region_whole(Graph *body)
{
    Region *r = NEW(body->a, Region);
    *r = (Region){.n = 1, .nin = body->nin, .nout = body->nout, .body = {body}};
    r->in = NEWN(body->a, PortIn, r->nin);
    r->out = NEWN(body->a, PortOut, r->nout);
    for (int i = 0; i < r->nin; i++)
        r->in[i] = (PortIn){.kind = PORT_WHOLE, .arg = i, .at = {i, -1}};
    for (int k = 0; k < r->nout; k++)
        r->out[k] = (PortOut){.kind = PORT_WHOLE, .at = {k, -1}};
    return r;
}

void region_need_depth(const Graph *g, const Node *n)
{
    if (n->op->region == LOOP && graph_depth(g) > TN_MAX_DEPTH)
        fail_node(g, n, "expected loops at most %d deep, found another inside", TN_MAX_DEPTH);
}

int region_infer(const Graph *g, const Node *n, Type *out)
{
    const Region *r = n->region;
    region_need_depth(g, n);
    if (n->op->region == FUSED && (r->n != 1 || r->reverse || r->body[TAIL]))
        fail_node(g, n, "expected one body that runs once");
    for (int j = 0; j < r->nin && n->op->region == FUSED; j++)
        if (r->in[j].arg != j || r->in[j].at[MAIN] != j)
            fail_node(g, n, "operand port %d: expected input %d of the body to be operand %d", j, j,
                      j);
    if (r->n < 1)
        fail_node(g, n, "n: expected at least 1, found %lld", (long long)r->n);
    check_inputs(g, n);
    for (int k = 0; k < r->nout; k++)
        out[k] = output_type(g, n, k);
    int carried = 0, taken = 0;
    for (int j = 0; j < r->nin; j++)
        carried += r->in[j].kind == PORT_CARRY;
    for (int k = 0; k < r->nout; k++)
        taken += r->out[k].kind == PORT_CARRY;
    if (carried != taken)
        fail_node(g, n, "%d carried operands but %d carried results", carried, taken);
    return r->nout;
}
