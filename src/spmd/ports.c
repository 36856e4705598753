/* ports: moves nodes that read gathered parameters into loops or out of them.
 *
 * Under --reshard always weights formed of such parameters (formed.c) go from before a loop into
 * the bodies that read them, so that the parameters are gathered there and dropped again. Under
 * never casts go before the loop, so that their results are gathered once. Linear in the nodes of
 * bodies for each port. */
#include "rewrite.h"

#include <string.h>

/* ---- ports ---- */

/* Adds a whole port for v; input[] gets what each body sees there. */
static void add_port(Graph *g, Node *n, Value *v, Value **input)
{
    Region *r = n->region;
    PortIn *ports = NEWN(g->a, PortIn, r->nin + 1);
    Value **in = NEWN(g->a, Value *, n->nin + 1);
    memcpy(ports, r->in, sizeof *ports * (size_t)r->nin);
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    ports[r->nin] = (PortIn){.kind = PORT_WHOLE, .arg = n->nin, .at = {-1, -1}};
    in[n->nin] = v;
    EACH_BODY(t, n) {
        Graph *body = r->body[t];
        ports[r->nin].at[t] = body->nin;
        input[t] = graph_input(body, graph_fresh(body, v->name), v->type, ROLE_NONE, NULL);
    }
    r->in = ports;
    r->nin++;
    n->in = in;
    n->nin++;
}

static void replace_in(Graph *body, Value *old, Value *now)
{
    EACH_NODE(m, body)
        for (int i = 0; i < m->nin; i++)
            if (m->in[i] == old && m != now->def)
                m->in[i] = now;
    for (int i = 0; i < body->nout; i++)
        if (body->out[i].v == old)
            body->out[i].v = now;
}

/* The whole port through which body t sees its input v; NULL: another kind. */
static const PortIn *whole_port(const Node *n, int t, const Value *v)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_WHOLE && r->in[j].at[t] == v->index)
            return &r->in[j];
    return NULL;
}

/* The inputs through which all bodies see v whole: of the port there is, so that a parameter and
 * its views have one form, or of a new one. */
static void see_whole(Graph *g, Node *n, Value *v, Value **input)
{
    const Region *r = n->region;
    for (int j = 0; j < r->nin; j++) {
        bool all = r->in[j].kind == PORT_WHOLE && n->in[r->in[j].arg] == v;
        EACH_BODY(t, n)
            all = all && r->in[j].at[t] >= 0;
        if (!all)
            continue;
        EACH_BODY(t, n)
            input[t] = r->body[t]->in[r->in[j].at[t]].v;
        return;
    }
    add_port(g, n, v, input);
}

/* ---- nodes ---- */

/* Casts that bodies make of parameters go before the loop. */
static void hoist_casts(Graph *g, Arena *tmp, const Gathered *p, Node *n)
{
    EACH_LOOP_BODY(t, n) {
        Graph *body = n->region->body[t];
        Gathered inner = body_gathered(p, tmp, n, t);
        EACH_NODE(m, body) {
            Value *seen[NBODY];
            const PortIn *port = node_is(m, OP__to_copy) && is_gathered(&inner, m->in[0])
                                     ? whole_port(n, t, m->in[0])
                                     : NULL;
            if (!port)
                continue;
            Build b = build_like(g, n, m);
            Value *w = n->in[port->arg], *cast = find_cast(g, w, m->out[0]->type.dtype, n);
            see_whole(g, n, cast ? cast : emit_cast(&b, w, m->out[0]->type.dtype), seen);
            replace_in(body, m->out[0], seen[t]);
            node_unlink(body, m);
        }
    }
}

static bool is_read(const Graph *body, const Value *v)
{
    EACH_NODE(m, body)
        for (int i = 0; i < m->nin; i++)
            if (m->in[i] == v)
                return true;
    return graph_is_output(body, v);
}

static bool port_is_read(const Node *n, const PortIn *p)
{
    EACH_BODY(t, n)
        if (p->at[t] >= 0 && is_read(n->region->body[t], n->region->body[t]->in[p->at[t]].v))
            return true;
    return false;
}

/* The node before which body makes what takes its input's place, for all that read it. */
static Node *first_reader(const Graph *body, const Value *v)
{
    EACH_NODE(m, body)
        for (int i = 0; i < m->nin; i++)
            if (m->in[i] == v)
                return m;
    return NULL;
}

typedef Value *Seen[NBODY]; /* by body */

static Value *make_constant(Graph *body, Node *before, const Value *v)
{
    Build b = build_like(body, before, v->def);
    b.phase = FORWARD;
    return emit_like(&b, v->def, NULL, NULL, "")->out[v->index];
}

/* Has bodies make what they see through the port. */
static void sink(Graph *g, Arena *tmp, Node *n, PortIn port)
{
    const Value *v = n->in[port.arg];
    const Node *def = v->def;
    Seen *seen = NEWN(tmp, Seen, def->nin);
    Value **in = NEWN(tmp, Value *, def->nin);
    for (int i = 0; i < def->nin; i++)
        if (!def->in[i]->def || def->in[i]->def->nin)
            see_whole(g, n, def->in[i], seen[i]);
    EACH_BODY(t, n) {
        Graph *body = n->region->body[t];
        if (port.at[t] < 0)
            continue;
        Value *old = body->in[port.at[t]].v;
        Build b = build_like(body, first_reader(body, old), def);
        b.phase = FORWARD; /* what reads it there may be of any phase */
        for (int i = 0; i < def->nin; i++)
            in[i] = seen[i][t] ? seen[i][t] : make_constant(body, b.before, def->in[i]);
        replace_in(body, old, emit_like(&b, def, in, NULL, "")->out[v->index]);
    }
}

/* Has bodies make v where they see it whole. */
static bool sink_value(Graph *g, FormedSet *x, Node *n, const Value *v)
{
    bool any = false;
    for (int j = 0, count = n->region->nin; j < count; j++) { /* ports are added while it runs */
        const PortIn port = n->region->in[j];
        if (port.kind != PORT_WHOLE || n->in[port.arg] != v || !port_is_read(n, &port))
            continue;
        sink(g, x->tmp, n, port);
        formed_put_in(x, v);
        any = true;
    }
    return any;
}

/* Moves formed weights from before the loop into the bodies that read them, readers before their
 * operands, so that all readers share an operand. */
static bool sink_all(Graph *g, FormedSet *x, Node *n)
{
    bool any = false;
    for (Node *m = n->prev; m; m = m->prev)
        for (int k = 0; k < m->nout; k++)
            any |= formed_goes_in(x, n, m->out[k]) && sink_value(g, x, n, m->out[k]);
    return any;
}

/* Removes nodes that only loops have read, so that nothing is gathered for them. */
static void drop_unread(Graph *g, const FormedSet *x)
{
    int *nread = NEWN(x->tmp, int, g->nvalue);
    EACH_NODE(n, g) {
        for (int i = 0; i < n->nin; i++)
            nread[n->in[i]->id]++;
        for (int i = 0; i < n->nafter; i++)
            nread[n->after[i]->out[0]->id]++;
    }
    for (int i = 0; i < g->nout; i++)
        nread[g->out[i].v->id]++;
    for (Node *n = g->last, *prev; n; n = prev) {
        bool read = n->out[0]->id >= x->nvalue || !x->of[n->out[0]->id].gathers;
        prev = n->prev;
        for (int k = 0; k < n->nout; k++)
            read |= nread[n->out[k]->id] > 0;
        for (int i = 0; i < n->nin && !read; i++)
            nread[n->in[i]->id]--;
        if (!read)
            node_unlink(g, n);
    }
}

void spmd_ports(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
                const Gathered *p, bool keep)
{
    FormedSet x = {0};
    bool any = false;
    EACH_NODE(n, g) {
        if (n->op->region == LOOP && keep)
            hoist_casts(g, tmp, p, n);
        else if (n->op->region == LOOP) {
            x = x.of ? x : formed_fill(g, tmp, o, m, in, p);
            any |= sink_all(g, &x, n);
        }
    }
    if (any)
        drop_unread(g, &x);
}
