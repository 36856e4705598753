/* loop_cuts: cuts a loop as its bodies are cut; its ports translate cuts between outside and
 * inside.
 *
 * A cut of an axis that the loop itself slices or concatenates must lie within an iteration:
 * [iterations][outer][count][inner] outside is [outer][count][inner] inside, and the loop must have
 * no tail. Every other cut is the same on both sides, except that a stack removes or adds axis 0. A
 * carry must be yielded with the cut with which it entered. The part is a loop with the same ports
 * whose bodies are the parts of the bodies; the starts of parts enter by whole ports. Linear in the
 * bodies. */
#include "cut.h"

#include <string.h>

static bool refuse(CutStop *stop, const char *why, int operand, int result)
{
    *stop = (CutStop){why, operand, result};
    return false;
}

/* ---- ports ---- */

bool cut_enter(const Region *r, int j, Cut c, Cut *inside, CutStop *stop)
{
    const PortIn *p = &r->in[j];
    *inside = c;
    if (c.kind != CUT_SLICE)
        return true;
    if (p->kind == PORT_STACK)
        return inside->axis-- > 0 || refuse(stop, "it takes one by one what is cut of", p->arg, -1);
    if (p->kind != PORT_SLICE || p->axis != c.axis)
        return true;
    inside->outer = c.outer / r->n;
    return (!r->body[TAIL] && c.outer % r->n == 0) ||
           refuse(stop, "it slices the axis that is cut of", p->arg, -1);
}

bool cut_leave(const Region *r, int k, Cut c, Cut *outside, CutStop *stop)
{
    const PortOut *p = &r->out[k];
    *outside = c;
    if (p->kind == PORT_SUM && c.kind > CUT_SUM)
        return refuse(stop, "it adds what is no partial sum in", -1, k);
    if (c.kind != CUT_SLICE)
        return true;
    if (p->kind == PORT_STACK)
        outside->axis++;
    if (p->kind != PORT_CONCAT || p->axis != c.axis)
        return true;
    outside->outer = c.outer * r->n;
    return !r->body[TAIL] || refuse(stop, "it joins the axis that is cut in", -1, k);
}

/* ---- forward ---- */

static bool body_forward(const Node *n, Arena *tmp, int t, const Cut *in, const GraphCut *c,
                         CutStop *stop)
{
    const Region *r = n->region;
    const Graph *body = r->body[t];
    const Node *at = NULL;
    for (int j = 0; j < r->nin; j++) {
        int i = r->in[j].at[t];
        if (i >= 0 && r->in[j].arg >= 0 &&
            !cut_enter(r, j, in[r->in[j].arg], &c->value[body->in[i].v->id], stop))
            return false;
    }
    if (cut_graph(body, tmp, c, &at, stop))
        return true;
    return refuse(stop,
                  arena_printf(tmp, "in its body %s %%%s: %s", at->op->name, at->out[0]->name,
                               cut_stop_text(tmp, at, stop)),
                  -1, -1);
}

static bool body_results(const Node *n, int t, const Cut *in, const GraphCut *c, bool *seen,
                         Cut *out, CutStop *stop)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++) {
        const PortOut *p = &r->out[k];
        Cut y;
        if (p->at[t] < 0)
            continue;
        if (!cut_leave(r, k, c->value[r->body[t]->out[p->at[t]].v->id], &y, stop))
            return false;
        if ((seen[k] && !cut_equal(y, out[k])) ||
            (p->kind == PORT_CARRY && !cut_equal(y, in[r->in[p->carry].arg])))
            return refuse(stop, "iterations would be cut differently in", -1, k);
        out[k] = y;
        seen[k] = true;
    }
    return true;
}

bool cut_loop_forward(const Node *n, Arena *tmp, int64_t count, const Cut *in, NodeCut *how,
                      Cut *out, CutStop *stop)
{
    bool *seen = NEWN(tmp, bool, n->nout), whole = true;
    *how = (NodeCut){.kind = NODE_WHOLE};
    memset(out, 0, sizeof *out * (size_t)n->nout);
    for (int i = 0; i < n->nin; i++)
        whole &= in[i].kind == CUT_WHOLE;
    if (whole)
        return true;
    how->kind = NODE_LOOP;
    for (int t = 0; t < 2; t++) {
        const Graph *body = n->region->body[t];
        if (!body)
            continue;
        GraphCut *c = how->body[t] = NEW(tmp, GraphCut);
        *c = (GraphCut){count, NEWN(tmp, Cut, body->nvalue), NEWN(tmp, NodeCut, body->nnode)};
        if (!body_forward(n, tmp, t, in, c, stop) || !body_results(n, t, in, c, seen, out, stop))
            return false;
    }
    return true;
}

static void body_cuts(int ncut, const NodeCut *how, int t, const GraphCut **graph)
{
    for (int c = 0; c < ncut; c++)
        graph[c] = how[c].body[t];
}

bool cut_loop_together(const Node *n, Arena *tmp, int ncut, const PartCut *cuts, const NodeCut *how,
                       CutStop *stop)
{
    const GraphCut *graph[MAX_CUT];
    for (int t = 0; t < 2; t++) {
        body_cuts(ncut, how, t, graph);
        if (n->region->body[t] &&
            !cut_graph_together(n->region->body[t], tmp, ncut, cuts, graph, stop))
            return false;
    }
    return true;
}

/* ---- the loop of a part ---- */

/* A start that bodies read: the value outside, and its index among each body's inputs. */
typedef struct Start {
    Value *outer;
    int at[2];
} Start;

typedef struct CutLoop {
    Build *b; /* where the loop stands */
    Start *start;
    int nstart, cap;
} CutLoop;

/* One cut, as a body of the part sees it. */
typedef struct Inner {
    CutLoop *loop;
    const PartCut *outer;
    Graph *body;
    int t;
} Inner;

static Value *inner_start(void *arg, Build *b, int64_t step)
{
    const Inner *x = arg;
    Value *outer = x->outer->start(x->outer->arg, x->loop->b, step);
    (void)b;
    if (!outer)
        return NULL;
    Start s = {outer, {-1, -1}};
    s.at[x->t] = x->body->nin;
    PUSH(x->body->a, x->loop->start, x->loop->nstart, x->loop->cap, s);
    return graph_input(x->body, graph_fresh(x->body, "start"), outer->type, ROLE_NONE, NULL);
}

static Graph *part_body(CutLoop *loop, const Node *n, Arena *tmp, int t, int ncut,
                        const PartCut *cuts, const NodeCut *how)
{
    const Graph *body = n->region->body[t];
    const GraphCut *graph[MAX_CUT];
    Graph *to = graph_body(loop->b->g);
    PartCut inner[MAX_CUT];
    Inner arg[MAX_CUT];
    Value **now = NEWN(tmp, Value *, body->nvalue);
    body_cuts(ncut, how, t, graph);
    for (int c = 0; c < ncut; c++) {
        arg[c] = (Inner){loop, &cuts[c], to, t};
        inner[c] = (PartCut){cuts[c].count, cuts[c].units, inner_start, &arg[c]};
    }
    for (int i = 0; i < body->nin; i++) {
        const Value *v = body->in[i].v;
        Cut own[MAX_CUT] = {{.kind = CUT_WHOLE}};
        for (int c = 0; c < ncut; c++)
            own[c] = graph[c] ? graph[c]->value[v->id] : (Cut){.kind = CUT_WHOLE};
        now[v->id] = graph_input(to, v->name, cut_type(&v->type, ncut, cuts, own), ROLE_NONE, NULL);
    }
    cut_graph_part(body, to, tmp, ncut, inner, graph, now);
    return to;
}

/* Both bodies see every whole port. */
static void add_start_ports(CutLoop *loop, const Node *n, Region *r, Value **in)
{
    Arena *a = loop->b->g->a;
    PortIn *ports = NEWN(a, PortIn, r->nin + loop->nstart);
    memcpy(ports, r->in, sizeof *ports * (size_t)r->nin);
    for (int j = 0; j < loop->nstart; j++) {
        Start *s = &loop->start[j];
        for (int t = 0; t < 2; t++)
            if (r->body[t] && s->at[t] < 0) {
                Graph *g = r->body[t];
                s->at[t] = g->nin;
                graph_input(g, graph_fresh(g, "start"), s->outer->type, ROLE_NONE, NULL);
            }
        in[n->nin + j] = s->outer;
        ports[r->nin + j] =
            (PortIn){.kind = PORT_WHOLE, .arg = n->nin + j, .at = {s->at[MAIN], s->at[TAIL]}};
    }
    r->in = ports;
    r->nin += loop->nstart;
}

void cut_loop_part(Build *b, const Node *n, Arena *tmp, int ncut, const PartCut *cuts,
                   const NodeCut *how, Value *const *in, Value **out)
{
    CutLoop loop = {.b = b};
    Region *r = NEW(b->g->a, Region);
    *r = *n->region;
    for (int t = 0; t < 2; t++)
        r->body[t] = r->body[t] ? part_body(&loop, n, tmp, t, ncut, cuts, how) : NULL;
    Value **all = NEWN(tmp, Value *, n->nin + loop.nstart);
    memcpy(all, in, sizeof *in * (size_t)n->nin);
    add_start_ports(&loop, n, r, all);
    const char **names = graph_fresh_results(b->g, n, "");
    Node *m =
        emit_named(b, n->op, n->nin + loop.nstart, all, n->attr, r, n->stream, names, n->nout);
    memcpy(out, m->out, sizeof *out * (size_t)n->nout);
}
