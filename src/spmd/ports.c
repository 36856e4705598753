/* ports: what loops see of parameters that are gathered. Under --reshard always views of them,
 * and what is computed of views element by element, go from before a loop into the bodies that read
 * them, so that what a view needs is gathered there and dropped again; under never casts go before
 * the loop, so that what they make is gathered once. Linear in the nodes of bodies for each port.
 */
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

/* Whether v is made of a parameter that is gathered, element by element: a view, perhaps of a cast,
 * or what is computed of one. A cast alone is not: it is made of the part that is stored. */
static bool formed_of_parameter(const Gathered *p, const Value *v)
{
    bool moved = false;
    if (!v->def || v->def->op->copy)
        return false;
    while (v->def && v->def->nin == 1 &&
           (v->def->op->view || v->def->op->class == CLASS_POINTWISE)) {
        moved |= v->def->op->view;
        v = v->def->in[0];
    }
    return moved && is_gathered(p, v);
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

/* Has bodies make what they see through the port. */
static void sink_view(Graph *g, Node *n, PortIn port)
{
    Value *v = n->in[port.arg], *seen[NBODY];
    see_whole(g, n, v->def->in[0], seen);
    EACH_BODY(t, n) {
        Graph *body = n->region->body[t];
        if (port.at[t] < 0)
            continue;
        Build b = build_like(body, body->first, v->def);
        b.phase = FORWARD; /* what reads the view there may be of any phase */
        Node *m = emit_like(&b, v->def, &seen[t], NULL, "");
        replace_in(body, body->in[port.at[t]].v, m->out[v->index]);
    }
}

/* What is formed of views of parameters goes from before the loop into the bodies that read it, so
 * that what views need is gathered there. A view of a view that is seen too gives its port readers
 * again. */
static void sink_views(Graph *g, const Gathered *p, Node *n)
{
    for (bool again = true; again;) {
        again = false;
        for (int j = 0; j < n->region->nin; j++) { /* ports are added while it runs */
            const PortIn port = n->region->in[j];
            if (port.kind != PORT_WHOLE || !formed_of_parameter(p, n->in[port.arg]) ||
                !port_is_read(n, &port))
                continue;
            sink_view(g, n, port);
            again = true;
        }
    }
}

void spmd_ports(Graph *g, Arena *tmp, const Gathered *p, bool keep)
{
    EACH_NODE(n, g) {
        if (n->op->region == LOOP && keep)
            hoist_casts(g, tmp, p, n);
        else if (n->op->region == LOOP)
            sink_views(g, p, n);
    }
}
