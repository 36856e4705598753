/* loop_make: makes a loop of nodes of a graph, over slices of their values.
 *
 * The bodies hold the parts of the nodes `inside` (cut/part_node.c, cut/loop_cuts.c). Values that
 * they read from outside enter by ports, each made when the first node needs it. Values that are
 * yielded leave as a concat of slices, as a sum, or as a carry to which products add themselves
 * (loop_product.c). Then nodes that no longer run outside are removed and the loop is put in their
 * place. Readers of its results follow (loop_results.c).
 *
 * A slice that is not one run of an axis, [outer][count][inner], passes its port as the view
 * [outer][count * inner], sliced along its second axis; bodies read and yield the flat form.
 *
 * Everything is linear in the graph, but for the search of operands among ports. */
#include "loop_make.h"

#include <string.h>

/* ---- the loop under construction ---- */

/* The source of a port: a value; one with an axis split; zeros. */
typedef struct PortSource {
    Value *v;            /* NULL: none, an offset or zeros */
    int64_t outer;       /* over 1: v's axis is split in [outer][rest] */
    int axis;            /* that one */
    Value *flat[NBODY];  /* then: the bodies' views of it, as v is cut */
    const Node *product; /* zeros: what is added to them */
    Type zeros;
} PortSource;

/* Port j is input j of both bodies. */
typedef struct Loop {
    Graph *g;
    Arena *tmp;
    const LoopPart *p;
    Region *r;
    PortSource *source; /* by port */
    Value **in;         /* the loop's operands */
    Value **result;     /* values of the graph that it yields, by result */
    Node *const *node;  /* those inside, in order, up to a NULL */
    Node *first;        /* the nodes before it are not concerned */
    bool *trails;       /* by node id: it does not run before the loop */
    Value **ones[NBODY];
    ProductSums sums;
    WideSums wide;
    int nsource, nin, nresult, capsource, capin, capport, capout, capresult;
    int nnode, nvalue; /* of the graph before */
} Loop;

_Noreturn static void refuse(const Loop *x, const Node *n, const char *why)
{
    fail_node(x->g, n, "%s: %s", x->p->what, why);
}

static Cut cut_of(const Loop *x, const Value *v)
{
    return x->p->cut.value[v->id];
}

static bool made_inside(const Loop *x, const Value *v, Cut need)
{
    return v->def && x->p->inside[v->def->id] && cut_equal(cut_of(x, v), need);
}

/* ---- ports ---- */

/* The type of the operand that s becomes. */
static Type source_type(const PortSource *s)
{
    return !s->v          ? s->zeros
           : s->outer > 1 ? loop_split_type(&s->v->type, s->axis, s->outer)
                          : s->v->type;
}

/* A new port like p, seen by both bodies; returns its index. */
static int add_port(Loop *x, PortIn p, PortSource s, const char *name)
{
    Region *r = x->r;
    p.arg = p.kind == PORT_OFFSET ? -1 : x->nin;
    for (int b = 0; b < region_nbody(r); b++) {
        Type type = p.kind == PORT_OFFSET ? type_make(I64, 0, NULL) : source_type(&s);
        if (p.kind == PORT_SLICE)
            type = loop_part_type(x->p, &type, (Cut){CUT_SLICE, p.axis, 1}, b);
        graph_input(r->body[b], graph_fresh(r->body[b], name), type, ROLE_NONE, NULL);
        p.at[b] = r->nin;
    }
    if (p.arg >= 0)
        PUSH(x->g->a, x->in, x->nin, x->capin, s.v);
    PUSH(x->tmp, x->source, x->nsource, x->capsource, s);
    PUSH(x->g->a, r->in, r->nin, x->capport, p);
    return r->nin - 1;
}

/* The port like p for s, made where there is none. */
static int find_port(Loop *x, PortIn p, PortSource s)
{
    for (int j = 0; j < x->r->nin; j++) {
        const PortIn *q = &x->r->in[j];
        const PortSource *have = &x->source[j];
        if (q->kind == p.kind && q->axis == p.axis && q->step == p.step && have->v == s.v &&
            have->outer == s.outer)
            return j;
    }
    return add_port(x, p, s, s.v ? s.v->name : "offset");
}

static PortIn port_in(PortKind kind, int axis, int64_t step)
{
    return (PortIn){.kind = kind, .axis = axis, .step = step, .at = {-1, -1}};
}

/* The input of body t that gives s through a port like p. */
static Value *port_value(Loop *x, PortIn p, PortSource s, int t)
{
    int j = find_port(x, p, s);
    return x->r->body[t]->in[j].v;
}

/* Body t's flat form of the slices that port j gives. */
static Value *flat_slice(Loop *x, int j, Cut need, int t)
{
    PortSource *s = &x->source[j];
    if (!s->flat[t]) {
        Build b = {.g = x->r->body[t]};
        Type type = loop_part_type(x->p, &s->v->type, need, t);
        s->flat[t] = loop_view(&b, x->r->body[t]->in[j].v, &type);
    }
    return s->flat[t];
}

/* Body t's ones in the place of v. */
static Value *ones_like(Loop *x, const Node *n, const Value *v, Cut need, int t)
{
    Type type = loop_part_type(x->p, &v->type, need, t);
    Value *known = x->ones[t][v->id];
    if (known && type_equal(&known->type, &type))
        return known;
    Build b = {.g = x->r->body[t], .scope = n->scope};
    return x->ones[t][v->id] = emit1(&b, "full", 0, NULL,
                                     ATTRS(A_INTS("size", type.rank, type.dim),
                                           A_FLOAT("fill_value", 1), A_DTYPE("dtype", type.dtype)));
}

/* Body t's value of an operand that enters by a port. */
static Value *operand_input(Loop *x, const Node *n, Value *v, Cut need, int t)
{
    if (v->def && x->trails[v->def->id])
        refuse(x, n, arena_printf(x->tmp, "it reads %%%s, which is not made before", v->name));
    if (cut_is_partial(need))
        refuse(x, n, arena_printf(x->tmp, "it needs parts of the sum %%%s", v->name));
    PortSource s = {.v = v, .outer = 1};
    if (need.kind != CUT_SLICE)
        return port_value(x, port_in(PORT_WHOLE, 0, 0), s, t);
    if (need.outer == 1)
        return port_value(x, port_in(PORT_SLICE, need.axis, 0), s, t);
    if (v->type.rank == TN_RANK)
        refuse(x, n, arena_printf(x->tmp, "units are not major in operand %%%s", v->name));
    s.outer = need.outer;
    s.axis = need.axis;
    return flat_slice(x, find_port(x, port_in(PORT_SLICE, need.axis + 1, 0), s), need, t);
}

/* ---- bodies ---- */

typedef struct Iteration {
    Loop *loop;
    int t;
} Iteration;

static Value *start(void *arg, Build *b, int64_t step)
{
    const Iteration *x = arg;
    PortIn p = port_in(PORT_OFFSET, 0, step * x->loop->p->slices.filled);
    (void)b;
    return port_value(x->loop, p, (PortSource){.outer = 1}, x->t);
}

/* Body t under construction: what it has of the graph's values, by id. */
typedef struct Body {
    Loop *loop;
    int t;
    Value **now, **wide; /* in the graph's dtypes; in f32 (NULL: as in the graph) */
} Body;

/* The body's v in the wider dtype. */
static Value *widest(const Body *y, const Value *v)
{
    return y->wide[v->id] ? y->wide[v->id] : y->now[v->id];
}

static Value **find_operands(const Body *y, const Node *n)
{
    Loop *x = y->loop;
    bool wide = wide_node(&x->wide, n);
    const Cut *need = loop_needs(x->tmp, &x->p->cut, n);
    Value **in = NEWN(x->tmp, Value *, n->nin);
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i];
        in[i] = x->p->one && x->p->one[v->id] ? ones_like(x, n, v, need[i], y->t)
                : made_inside(x, v, need[i])  ? (wide ? widest(y, v) : y->now[v->id])
                                              : operand_input(x, n, v, need[i], y->t);
    }
    return in;
}

/* Orders m, of n's part, as n is. */
static void order_node(const Body *y, const Node *n, Node *m)
{
    if (!n->nafter)
        return;
    m->after = NEWN(y->loop->g->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        m->after[m->nafter++] = widest(y, n->after[i]->out[0])->def;
}

static void part_node(const Body *y, const Node *n)
{
    Loop *x = y->loop;
    Iteration it = {x, y->t};
    PartCut cut = {x->p->slices.units, loop_units(x->p, y->t), start, &it};
    const NodeCut *how = &x->p->cut.node[n->id];
    Value **in = find_operands(y, n), **out = NEWN(x->tmp, Value *, n->nout);
    Build b = build_like(x->r->body[y->t], NULL, n);
    if (how->kind == NODE_LOOP) {
        cut_loop_part(&b, n, x->tmp, 1, &cut, how, in, out);
    } else if (n->region) {
        Node *m = emit_like(&b, n, in, region_clone(b.g, n->region), "");
        memcpy(out, m->out, sizeof *out * (size_t)n->nout);
    } else if (wide_node(&x->wide, n)) {
        WidePart part = {&x->wide, x->p, x->g, x->tmp, &b, &cut, y->wide};
        wide_part(&part, n, in, out);
    } else {
        cut_part(&b, n, node_factors(x->tmp, n), 1, &cut, how, in, out);
    }
    for (int k = 0; k < n->nout; k++)
        y->now[n->out[k]->id] = out[k];
    order_node(y, n, widest(y, n->out[0])->def);
}

/* The body's output for v. */
static void yield_value(const Body *y, const Value *v)
{
    Loop *x = y->loop;
    Graph *body = x->r->body[y->t];
    Value *now = widest(y, v);
    Cut c = cut_of(x, v);
    if (c.kind == CUT_SLICE && c.outer > 1) {
        Build b = build_like(body, NULL, v->def);
        Type type = loop_split_type(&now->type, c.axis, c.outer);
        now = loop_view(&b, now, &type);
    }
    graph_output(body, now, ROLE_NONE, NULL);
}

/* A node within a sum that is carried: a product adds itself, all others are left out. */
static void carry_node(const Body *y, const Node *n, ProductSum *s)
{
    Loop *x = y->loop;
    if (node_is(n, OP_mm)) {
        Value *const *in = find_operands(y, n);
        Build b = build_like(x->r->body[y->t], NULL, n);
        s->now[y->t] =
            emit1(&b, "addmm", IN(s->now[y->t], in[0], in[1]),
                  ATTRS(A_DTYPE("out_dtype",
                                s->type.dtype == in[0]->type.dtype ? NDTYPE : s->type.dtype)));
    }
    y->now[n->out[0]->id] = s->now[y->t];
}

/* Adds to sums that are carried those of n's results that are terms of them. */
static void add_terms(const Body *y, const Node *n)
{
    Build b = build_like(y->loop->r->body[y->t], NULL, n);
    for (int k = 0; k < n->nout; k++) {
        ProductSum *s = y->loop->sums.term[n->out[k]->id];
        if (!s)
            continue;
        Value *term = emit_cast(&b, widest(y, n->out[k]), s->type.dtype);
        s->now[y->t] = emit1(&b, "add", IN(s->now[y->t], term), NOATTRS);
    }
}

static void make_body(Loop *x, int t)
{
    Body y = {x, t, SPARSE(x->tmp, Value *, x->nvalue), SPARSE(x->tmp, Value *, x->nvalue)};
    for (Node *const *at = x->node; *at; at++) {
        const Node *n = *at;
        if (x->sums.within[n->id]) {
            carry_node(&y, n, x->sums.within[n->id]);
        } else {
            part_node(&y, n);
            add_terms(&y, n);
        }
        for (int k = 0; k < n->nout; k++)
            if (x->p->yielded[n->out[k]->id])
                yield_value(&y, n->out[k]);
    }
}

/* ---- results ---- */

/* A carry that begins as zeros; returns its port. */
static int add_carry(Loop *x, ProductSum *s, const char *name)
{
    PortSource from = {.outer = 1, .product = s->product, .zeros = s->type};
    int j = add_port(x, port_in(PORT_CARRY, 0, 0), from, name);
    for (int t = 0; t < region_nbody(x->r); t++)
        s->now[t] = x->r->body[t]->in[j].v;
    return j;
}

static void add_result(Loop *x, Value *v)
{
    Region *r = x->r;
    Cut c = cut_of(x, v);
    ProductSum *s = x->sums.result[v->id];
    PortOut o = {.at = {r->nout, r->body[TAIL] ? r->nout : -1},
                 .dtype = loop_sum_dtype(x->p, v->type.dtype)};
    if (x->p->outside[v->def->id])
        refuse(x, v->def, "it is to be yielded, and computed around the loop, too");
    if (c.kind != CUT_SLICE && c.kind != CUT_SUM)
        refuse(x, v->def, arena_printf(x->tmp, "%%%s is neither slices nor a sum", v->name));
    if (c.kind == CUT_SLICE && c.outer > 1 && v->type.rank == TN_RANK)
        refuse(x, v->def, arena_printf(x->tmp, "units are not major in result %d", v->index));
    o.kind = c.kind == CUT_SLICE ? PORT_CONCAT : s ? PORT_CARRY : PORT_SUM;
    o.axis = c.kind != CUT_SLICE ? 0 : c.outer > 1 ? c.axis + 1 : c.axis;
    if (o.kind == PORT_CARRY)
        o.carry = add_carry(x, s, v->name);
    PUSH(x->g->a, r->out, r->nout, x->capout, o);
    PUSH(x->tmp, x->result, x->nresult, x->capresult, v);
}

static void find_results(Loop *x)
{
    for (Node *const *at = x->node; *at; at++)
        for (int k = 0; k < (*at)->nout; k++)
            if (x->p->yielded[(*at)->out[k]->id])
                add_result(x, (*at)->out[k]);
    if (!x->nresult)
        fail(x->g->ctx, TN_FAIL, "%s: a loop without results", x->p->what);
}

/* ---- the graph around the loop ---- */

/* Whether n, which stays around the loop, may read v there. */
static void check_read(const Loop *x, const Node *n, const Value *v)
{
    bool leads = !x->trails[n->id];
    if (loop_drops(x->p, v) && (leads || !x->p->yielded[v->id]))
        refuse(x, n, arena_printf(x->tmp, "it reads %%%s, which is inside of the loop", v->name));
    if (leads && v->def && x->p->after[v->def->id])
        refuse(x, n, arena_printf(x->tmp, "it reads %%%s, which is behind the loop", v->name));
}

static void check_node(const Loop *x, const Node *n)
{
    const LoopPart *p = x->p;
    for (int i = 0; i < n->nafter; i++) {
        int m = n->after[i]->id;
        bool in = p->inside[n->id] && !p->inside[m];
        bool out = p->outside[n->id] && !p->outside[m];
        if (in || out || (!x->trails[n->id] && p->after[m]))
            refuse(x, n,
                   arena_printf(x->tmp, "its order after %%%s crosses the loop",
                                n->after[i]->out[0]->name));
    }
    for (int i = 0; i < n->nin && p->outside[n->id]; i++)
        check_read(x, n, n->in[i]);
    for (int k = 0; k < n->nout; k++)
        if (p->yielded[n->out[k]->id] && !p->inside[n->id])
            refuse(x, n, "it is to be yielded, but is not inside");
}

/* Finds what runs before the loop, which must not read what it makes; an order edge must not cross
 * its border. */
static void find_leads(Loop *x)
{
    const LoopPart *p = x->p;
    const Node *end = p->node ? p->before : NULL; /* whoever knows the nodes has seen to the rest */
    x->trails = SPARSE(x->tmp, bool, x->nnode);
    CHECK(!p->before || (p->outside[p->before->id] && !p->after[p->before->id]));
    for (const Node *n = x->first; n != p->before; n = n->next)
        x->trails[n->id] = !p->outside[n->id] || p->after[n->id];
    for (const Node *n = p->before; n != end; n = n->next)
        x->trails[n->id] = true;
    for (const Node *n = x->first; n != end; n = n->next)
        check_node(x, n);
}

/* Emits operands that are not values of the graph: views and zeros. */
static void fill_operands(Loop *x)
{
    for (int j = 0; j < x->nsource; j++) {
        const PortSource *s = &x->source[j];
        Type type = source_type(s);
        Build b = {.g = x->g, .before = x->p->before};
        if (s->product) {
            b = build_like(x->g, x->p->before, s->product);
            b.policy = POLICY_NONE;
            x->in[x->r->in[j].arg] = emit_zeros(&b, &type);
        } else if (s->outer > 1) {
            b.phase = s->v->def ? s->v->def->phase : FORWARD;
            x->in[x->r->in[j].arg] = loop_view(&b, s->v, &type);
        }
    }
}

static Node *emit_made(Loop *x)
{
    const char **names = NEWN(x->tmp, const char *, x->nresult);
    fill_operands(x); /* the names of what the loop yields are not free yet */
    Node *before = x->first->prev, *end = x->p->node ? x->p->before : NULL;
    for (Node *n = x->first, *next; n != end; n = next) {
        next = n->next;
        if (n->id < x->nnode && !x->p->outside[n->id])
            node_unlink(x->g, n);
    }
    for (int k = 0; k < x->nresult; k++)
        names[k] = x->result[k]->name;
    Build b = {.g = x->g, .before = x->p->before};
    const Op *op = op_get(x->g->ctx, "loop");
    Node *loop =
        emit_named(&b, op, x->nin, x->in, attrs_make(x->g, op, NULL), x->r, -1, names, x->nresult);
    region_fit_phase(loop);
    x->first = before ? before->next : x->g->first;
    return loop;
}

Node *loop_make(Graph *g, Arena *tmp, const LoopPart *p)
{
    const Slices *s = &p->slices;
    Region *r = NEW(g->a, Region);
    *r = (Region){.n = s->n, .body = {graph_body(g), s->rest ? graph_body(g) : NULL}};
    Loop x = {.g = g, .tmp = tmp, .p = p, .r = r, .nnode = g->nnode, .nvalue = g->nvalue};
    x.node = loop_nodes(g, tmp, p);
    x.first = p->node ? p->node[0] : g->first;
    for (int t = 0; t < NBODY; t++)
        x.ones[t] = p->one ? SPARSE(tmp, Value *, g->nvalue) : NULL;
    find_leads(&x);
    x.sums = product_sums(g, tmp, p);
    x.wide = wide_sums(g, tmp, p, &x.sums);
    find_results(&x);
    for (int t = 0; t < region_nbody(r); t++)
        make_body(&x, t);
    Node *loop = emit_made(&x);
    LoopMade made = {.g = g,
                     .tmp = tmp,
                     .p = p,
                     .loop = loop,
                     .result = x.result,
                     .nresult = x.nresult,
                     .sums = &x.sums,
                     .inside = x.node,
                     .first = x.first,
                     .trails = x.trails,
                     .nnode = x.nnode,
                     .nvalue = x.nvalue};
    loop_read_results(&made);
    return loop;
}
