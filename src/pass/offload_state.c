/* offload_state: keeps the optimizer's state in the host's memory (`--offload state`). Each input of
 * the role state becomes one of the host's memory. For such an input m, with the new value n,
 *
 *     m_load = reload(m)
 *     m_back = wait_tensor(m_load, m)       right before m's first reader; all read this one
 *     n_copy = offload(n, m)                after n is made, in m's place
 *     n_host = wait_tensor(n_copy, n)       after n's last reader; the new value of m
 *
 * `offload` then moves loads up and waits down, so that copies run beside kernels, as far as the
 * peak does not rise: with what it moves for the backward, which goes over the same link.
 *
 * Before that updates move to where they cost the least memory. Each node of the optimizer runs as
 * soon as it can: without clipping an update then follows its gradient, inside of the backward, and
 * its copies have the rest of that. Updates that follow one another run from the smallest to the
 * largest: gradients die as they go, and the largest state comes when the fewest are left. Both are
 * kept only if the flow's peak is not higher.
 *
 * A state whose new value no node makes stays where it is, with a warning. Bits stay, as copies
 * change none. Linear, but for a sort. */
#include "../flow/flow.h"
#include "offload.h"

#include <stdlib.h>
#include <string.h>

bool offload_wants_state(const PassOptions *o)
{
    for (int i = 0; i < o->nrules; i++)
        if (policy_rule_is_state(&o->rules[i]))
            return true;
    return false;
}

/* ---- which states ---- */

/* The outputs that are new values, by the names of what they renew. */
static Map renewals(Graph *g, Arena *tmp)
{
    Map m = {.a = tmp};
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NEW)
            map_put(&m, g->out[i].name, &g->out[i]);
    return m;
}

static bool is_read(const Graph *g, const Value *v)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == v)
                return true;
    return false;
}

/* Why a state stays, NULL: it does not. */
static const char *find_stay(const Graph *g, const Port *p, const Port *renewed)
{
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v == p->v)
            return "it is an output as it is";
    for (int i = 0; renewed && i < g->nout; i++)
        if (&g->out[i] != renewed && g->out[i].v == renewed->v)
            return "its new value is another output too";
    if (renewed && !renewed->v->def)
        return "its new value is an input";
    return renewed || is_read(g, p->v) ? NULL : "nothing reads it";
}

int offload_take_states(Graph *g, Arena *tmp, const PassOptions *o)
{
    const Map renewed = renewals(g, tmp);
    int taken = 0, states = 0;
    for (int i = 0; i < g->nin; i++) {
        Port *p = &g->in[i];
        if (p->role != ROLE_STATE)
            continue;
        states++;
        if (p->host)
            continue;
        if (device_is_host(o->device))
            fail(g->ctx, TN_USAGE,
                 "offload: the state \"%s\" cannot be moved to the host's memory: the back end %s "
                 "computes in it, there is no other; --backend %s has one",
                 p->name, o->device->name, device_at(DEVICE_emulated)->name);
        const char *stays = find_stay(g, p, map_find(&renewed, p->name));
        p->host = !stays;
        taken += p->host;
        if (stays && o->warn)
            o->warn(o->warn_arg,
                    arena_printf(tmp, "offload: the state \"%s\" stays: %s", p->name, stays));
    }
    if (!states)
        fail(g->ctx, TN_USAGE,
             "offload \"state\": matches nothing: the graph has no state of an optimizer");
    return taken;
}

/* ---- where updates stand ---- */

/* A graph's nodes in their order. */
typedef struct NodeList {
    Node **at;
    int count;
} NodeList;

static NodeList list_nodes(const Graph *g, Arena *tmp)
{
    NodeList x = {NEWN(tmp, Node *, g->nnode + 1), 0};
    for (Node *n = g->first; n; n = n->next)
        x.at[x.count++] = n;
    return x;
}

static void relink(Graph *g, const NodeList *x)
{
    for (int i = 0; i < x->count; i++)
        node_move(g, x->at[i], NULL);
}

/* Of each value the latest node that touches it or what views it, by number in the new order. */
typedef struct Latest {
    const Value **base; /* by value id */
    Node **node;        /* by value id, of bases; NULL: none */
    int *place;         /* by node id: in the order so far */
} Latest;

static void later(const Latest *x, Node **best, Node *n)
{
    if (n && (!*best || x->place[n->id] > x->place[(*best)->id]))
        *best = n;
}

/* The last node after which n may run: of those that make its operands, of its order edges, and of
 * the readers of inputs that it renews. */
static Node *find_last(const Latest *x, const Graph *g, const Node *n, const Map *input)
{
    Node *last = NULL;
    for (int i = 0; i < node_nsource(n); i++)
        later(x, &last, node_source(n, i));
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        const Value *old = p->role == ROLE_NEW && p->v->def == n ? map_find(input, p->name) : NULL;
        if (old)
            later(x, &last, x->node[old->id]);
    }
    return last;
}

static Map renewed_inputs(const Graph *g, Arena *tmp)
{
    Map m = {.a = tmp};
    for (int i = 0; i < g->nin; i++)
        if (role_renewed(g->in[i].role))
            map_put(&m, g->in[i].name, g->in[i].v);
    return m;
}

static Latest latest_new(const Graph *g, Arena *tmp)
{
    Latest x = {NEWN(tmp, const Value *, g->nvalue), NEWN(tmp, Node *, g->nvalue),
                NEWN(tmp, int, g->nnode)};
    for (int i = 0; i < g->nin; i++)
        x.base[g->in[i].v->id] = g->in[i].v;
    return x;
}

static void touch(const Latest *x, Node *n, int place)
{
    x->place[n->id] = place;
    for (int k = 0; k < n->nout; k++)
        x->base[n->out[k]->id] = n->op->view ? x->base[n->in[0]->id] : n->out[k];
    for (int i = 0; i < n->nin; i++)
        x->node[x->base[n->in[i]->id]->id] = n;
}

/* Moves each node of the optimizer to after the last one that it needs, or to the start. Nodes that
 * follow the same one have its place, in their order. */
static void hoist(Graph *g, Arena *tmp)
{
    const NodeList list = list_nodes(g, tmp);
    const Latest x = latest_new(g, tmp);
    const Map input = renewed_inputs(g, tmp);
    Node **tail = NEWN(tmp, Node *, list.count + 1); /* by place: the last there; 0: the start */
    for (int p = 0; p < list.count; p++) {
        Node *n = list.at[p];
        int place = p + 1;
        if (n->phase == OPTIMIZER && !node_is_barrier(n)) {
            const Node *last = find_last(&x, g, n, &input);
            place = last ? x.place[last->id] : 0;
            Node *before = tail[place] ? tail[place]->next : g->first;
            if (before != n)
                node_move(g, n, before);
        }
        tail[place] = n;
        touch(&x, n, place);
    }
}

static int64_t state_bytes(const Node *n)
{
    int64_t nbytes = 0;
    for (int i = 0; n->op->class == CLASS_OPTIMIZER && i < n->nin; i++)
        if (!n->in[i]->def)
            nbytes += type_nbytes(&n->in[i]->type);
    return nbytes;
}

typedef struct SizedUpdate {
    Node *n;
    int64_t nbytes;
    int index;
} SizedUpdate;

static int by_size(const void *p, const void *q)
{
    const SizedUpdate *x = p, *y = q;
    return x->nbytes != y->nbytes ? (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes)
                                  : x->index - y->index;
}

static bool is_update(const Node *n, const bool *renews)
{
    return n->op->class == CLASS_OPTIMIZER && n->phase == OPTIMIZER && !n->nafter && renews[n->id];
}

/* Sorts updates that stand side by side, which do not read each other's results. */
static void sort_updates(Graph *g, Arena *tmp)
{
    bool *renews = NEWN(tmp, bool, g->nnode);
    SizedUpdate *run = NEWN(tmp, SizedUpdate, g->nnode + 1);
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NEW && g->out[i].v->def)
            renews[g->out[i].v->def->id] = true;
    for (Node *n = g->first, *next; n; n = next) {
        int count = 0;
        for (next = n; next && is_update(next, renews); next = next->next, count++)
            run[count] = (SizedUpdate){next, state_bytes(next), count};
        qsort(run, (size_t)count, sizeof *run, by_size);
        for (int i = 0; i < count; i++)
            node_move(g, run[i].n, next);
        next = count ? next : n->next;
    }
}

void offload_order_updates(Graph *g, Arena *tmp, const PassOptions *o)
{
    void (*const change[])(Graph * g, Arena * tmp) = {hoist, sort_updates};
    for (int i = 0; i < LEN(change); i++) {
        const NodeList before = list_nodes(g, tmp);
        const int64_t peak = flow_peak(pass_flow(g, o, tmp));
        change[i](g, tmp);
        if (flow_peak(pass_flow(g, o, tmp)) > peak)
            relink(g, &before);
    }
}

/* ---- copies ---- */

/* The place of the first node that reads v; none: the end. */
static int first_reader(const OffloadSource *s, const Value *v)
{
    for (int p = 0; p < s->count; p++)
        for (int i = 0; i < s->at[p]->nin; i++)
            if (s->at[p]->in[i] == v)
                return p;
    return s->count;
}

void offload_list_states(Transfers *t, Arena *tmp)
{
    OffloadSource *s = &t->s;
    const Map renewed = renewals(s->g, tmp);
    for (int i = 0; i < s->g->nin; i++) {
        const Port *p = &s->g->in[i], *new = p->host ? map_find(&renewed, p->name) : NULL;
        if (!p->host || (new && new->v->def->op->wait))
            continue; /* or by an earlier compilation */
        int first = first_reader(s, p->v);
        s->read[p->v->id].host = p->v;
        s->read[p->v->id].first = first;
        s->read[p->v->id].last = -1; /* nothing needs it here before */
        if (first < s->count)
            PUSH(tmp, t->list, t->count, t->cap,
                 ((Transfer){.x = p->v, .by = s->at[first], .state = true}));
        if (new)
            PUSH(tmp, t->list, t->count, t->cap,
                 ((Transfer){.x = new->v, .by = new->v->def, .old = p->v, .state = true}));
    }
}

void offload_redirect_states(const Transfers *t, Arena *tmp)
{
    const OffloadSource *s = &t->s;
    Value **now = NEWN(tmp, Value *, s->nvalue);
    const Value **host = NEWN(tmp, const Value *, s->nvalue);
    for (int i = 0; i < t->count; i++) {
        const Transfer *c = &t->list[i];
        if (c->state && c->node[BACK_NODE])
            now[c->x->id] = c->node[BACK_NODE]->out[0];
        if (c->state && c->node[HOST_NODE])
            host[c->x->id] = c->node[HOST_NODE]->out[0];
    }
    for (int p = 0; p < s->count; p++)
        for (int i = 0; i < s->at[p]->nin; i++)
            if (now[s->at[p]->in[i]->id])
                s->at[p]->in[i] = now[s->at[p]->in[i]->id];
    for (int i = 0; i < s->g->nout; i++) {
        Port *p = &s->g->out[i];
        if (p->role == ROLE_NEW && p->v->id < s->nvalue && host[p->v->id])
            p->v = (Value *)host[p->v->id];
    }
}
