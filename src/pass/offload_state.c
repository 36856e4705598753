/* offload_state: keeps the optimizer's state in the host's memory (`--offload state`). Each input
 * of the role state becomes one of the host's memory. For such an input m, with the new value n,
 *
 *     m_load = reload(m)
 *     m_back = wait_tensor(m_load, m)       right before m's first reader; all read this one
 *     n_copy = offload(n, m)                after n is made, in m's place
 *     n_host = wait_tensor(n_copy, n)       after n's last reader; the new value of m
 *
 * `offload` then moves loads up and waits down, so that copies run beside kernels, as far as the
 * peak does not rise: with what it moves for the backward, which goes over the same link.
 *
 * Before that updates move to where they cost the least memory, and what of the optimizer they need
 * before the first that does. Each update runs as soon as it can: without clipping it then follows
 * its gradient, inside of the backward, and its copies have the rest of that. Updates that can run
 * at the same place run from the smallest to the largest: gradients die as they go, and the largest
 * state comes when the fewest are left. All this is kept only if the flow's peak is not higher.
 *
 * A state whose new value is an input, or another output too, stays with a warning; states that are
 * not the optimizer's stay without. Bits stay, as copies
 * change none. Linear, but for sorts and what find_stay() compares: states times outputs. */
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

/* By value id, which phases read it. */
typedef struct StateReaders {
    bool *optimizer, *other;
    Map params;
} StateReaders;

static StateReaders read_phases(const Graph *g, Arena *tmp)
{
    StateReaders x = {NEWN(tmp, bool, g->nvalue), NEWN(tmp, bool, g->nvalue),
                      graph_named(g->in, g->nin, ROLE_PARAM, tmp)};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            (n->phase == OPTIMIZER ? x.optimizer : x.other)[n->in[i]->id] = true;
    return x;
}

/* Whether a state is the optimizer's: no other phase reads it, and the optimizer does or its name
 * is of a parameter. Buffers of the model are states too, which evaluation reads where they lie. */
static bool is_optimizers(const StateReaders *x, const Port *p)
{
    return p->role == ROLE_STATE && !x->other[p->v->id] &&
           (x->optimizer[p->v->id] || graph_state_param(&x->params, p->name));
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
    return renewed && !renewed->v->def ? "its new value is an input" : NULL;
}

/* Whether a state stays on the device; says why. */
static bool stays(const Graph *g, const Port *p, const Port *renewed, Arena *tmp,
                  const PassOptions *o)
{
    const char *why = find_stay(g, p, renewed);
    if (why && o->warn)
        o->warn(o->warn_arg,
                arena_printf(tmp, "offload: the state \"%s\" stays: %s", p->name, why));
    return why != NULL;
}

int offload_take_states(Graph *g, Arena *tmp, const PassOptions *o)
{
    const Map renewed = renewals(g, tmp);
    const StateReaders readers = read_phases(g, tmp);
    int taken = 0, states = 0;
    for (int i = 0; i < g->nin; i++) {
        Port *p = &g->in[i];
        const bool is = p->host || is_optimizers(&readers, p);
        states += is;
        if (!is || p->host)
            continue;
        if (device_is_host(o->device))
            fail(g->ctx, TN_USAGE,
                 "offload: the state \"%s\" cannot be moved to the host's memory: the back end %s "
                 "computes in it, there is no other; --backend %s has one",
                 p->name, o->device->name, device_at(DEVICE_emulated)->name);
        p->host = !stays(g, p, map_find(&renewed, p->name), tmp, o);
        taken += p->host;
    }
    if (!states)
        fail(g->ctx, TN_USAGE,
             "offload \"state\": matches nothing: the graph has no state of an optimizer");
    return taken;
}

/* ---- where updates stand ---- */

/* A node that makes a new value. Places are in the order of before. */
typedef struct Update {
    Node *n;
    int place; /* of the last node that must run before it */
    int64_t nbytes;
    int index;
} Update;

/* A graph while its updates are moved. */
typedef struct Moving {
    Graph *g;
    Node **at; /* by place */
    int count;
    int *place;         /* by node id: of the optimizer's the last that each needs */
    const Value **base; /* by value id: what it views in the end */
    int *read;          /* by value id, of bases: the last place where one reads it */
    const Value **old;  /* by value id, of new values: the input that it renews, or NULL */
    bool *settled;      /* by node id: of the optimizer's, it has its place */
} Moving;

static Moving moving_new(Graph *g, Arena *tmp)
{
    Moving x = {.g = g,
                .at = NEWN(tmp, Node *, g->nnode),
                .place = NEWN(tmp, int, g->nnode),
                .base = NEWN(tmp, const Value *, g->nvalue),
                .read = NEWN(tmp, int, g->nvalue),
                .old = NEWN(tmp, const Value *, g->nvalue),
                .settled = NEWN(tmp, bool, g->nnode)};
    Map input = {.a = tmp};
    for (Node *n = g->first; n; n = n->next)
        x.at[x.count++] = n;
    for (int i = 0; i < g->nin; i++) {
        x.base[g->in[i].v->id] = g->in[i].v;
        if (role_renewed(g->in[i].role))
            map_put(&input, g->in[i].name, g->in[i].v);
    }
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NEW)
            x.old[g->out[i].v->id] = map_find(&input, g->out[i].name);
    return x;
}

/* The last place that node n of the optimizer needs: of what makes its operands, and of the readers
 * of what it renews. */
static int last_needed(const Moving *x, const Node *n)
{
    int place = 0;
    for (int i = 0; i < node_nsource(n); i++)
        place = node_source(n, i) ? MAX(place, x->place[node_source(n, i)->id]) : place;
    for (int k = 0; k < n->nout; k++) {
        const Value *old = x->old[n->out[k]->id];
        place = old ? MAX(place, x->read[old->id]) : place;
    }
    return place;
}

static void fill_places(Moving *x)
{
    for (int p = 0; p < x->count; p++) {
        Node *n = x->at[p];
        bool moves = n->phase == OPTIMIZER && !node_is_barrier(n);
        int place = x->place[n->id] = moves ? last_needed(x, n) : p;
        x->settled[n->id] = !moves;
        for (int k = 0; k < n->nout; k++)
            x->base[n->out[k]->id] = n->op->view ? x->base[n->in[0]->id] : n->out[k];
        for (int i = 0; i < n->nin; i++) {
            int *read = &x->read[x->base[n->in[i]->id]->id];
            *read = MAX(*read, place);
        }
    }
}

static int64_t update_bytes(const Node *n)
{
    int64_t nbytes = 0;
    for (int i = 0; n->op->class == CLASS_OPTIMIZER && i < n->nin; i++)
        nbytes += type_nbytes(&n->in[i]->type);
    return nbytes;
}

static int by_place(const void *p, const void *q)
{
    const Update *x = p, *y = q;
    return x->place != y->place     ? x->place - y->place
           : x->nbytes != y->nbytes ? (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes)
                                    : x->index - y->index;
}

static int list_updates(const Moving *x, Update *list)
{
    int count = 0;
    for (int p = 0; p < x->count; p++) {
        Node *n = x->at[p];
        bool renews = false;
        for (int k = 0; k < n->nout; k++)
            renews |= x->old[n->out[k]->id] != NULL;
        if (renews && !x->settled[n->id])
            list[count++] = (Update){n, x->place[n->id], update_bytes(n), p};
    }
    qsort(list, (size_t)count, sizeof *list, by_place);
    return count;
}

/* Moves n to before a node, NULL: the end; and before n what of the optimizer it needs. */
static void settle(Moving *x, Node *n, Node *before)
{
    if (x->settled[n->id])
        return;
    x->settled[n->id] = true;
    if (n != before)
        node_move(x->g, n, before);
    for (int i = 0; i < node_nsource(n); i++)
        if (node_source(n, i))
            settle(x, node_source(n, i), n);
}

/* Whether each node comes behind those that it needs. */
static bool is_ordered(const Graph *g, Arena *tmp)
{
    bool *seen = NEWN(tmp, bool, g->nnode);
    for (const Node *n = g->first; n; n = n->next) {
        for (int i = 0; i < node_nsource(n); i++)
            if (node_source(n, i) && !seen[node_source(n, i)->id])
                return false;
        seen[n->id] = true;
    }
    return true;
}

void offload_order_updates(Graph *g, Arena *tmp, const PassOptions *o)
{
    const int64_t peak = flow_peak(pass_flow(g, o, tmp));
    Moving x = moving_new(g, tmp);
    Update *list = NEWN(tmp, Update, x.count + 1);
    fill_places(&x);
    int count = list_updates(&x, list);
    Node *tail = NULL; /* the last that was moved to this place */
    for (int i = 0; i < count; i++) {
        if (!i || list[i].place != list[i - 1].place)
            tail = x.at[list[i].place];
        Node *before = tail->next == list[i].n ? list[i].n->next : tail->next;
        settle(&x, list[i].n, before);
        tail = list[i].n;
    }
    if (count && (!is_ordered(g, tmp) || flow_peak(pass_flow(g, o, tmp)) > peak))
        for (int p = 0; p < x.count; p++)
            node_move(g, x.at[p], NULL);
}

/* ---- copies ---- */

/* By value id the place of the first node that reads it; none: the end. */
static int *first_readers(const OffloadSource *s, Arena *tmp)
{
    int *first = NEWN(tmp, int, s->nvalue);
    for (int v = 0; v < s->nvalue; v++)
        first[v] = s->count;
    for (int p = s->count - 1; p >= 0; p--)
        for (int i = 0; i < s->at[p]->nin; i++)
            first[s->at[p]->in[i]->id] = p;
    return first;
}

void offload_tell(Decisions *list, Decision d)
{
    if (!list)
        return;
    d.node = arena_strdup(list->a, d.node);
    d.scope = arena_strdup(list->a, d.scope);
    PUSH(list->a, list->list, list->count, list->cap, d);
}

static void add_transfer(Transfers *t, Arena *tmp, const PassOptions *o, Transfer c)
{
    const int64_t nbytes = type_nbytes(&c.x->type);
    c.state = true;
    PUSH(tmp, t->list, t->count, t->cap, c);
    offload_tell(o->decisions,
                 (Decision){.node = c.x->name,
                            .scope = c.scope,
                            .policy = OFFLOAD,
                            .honoured = true,
                            .offload = true,
                            .nbytes = nbytes,
                            .sec = copy_sec(o->prices, (double)nbytes),
                            .reason = c.old ? "the new value goes back to the host's memory"
                                            : "the host's memory keeps it between updates"});
}

/* The scope of a state: of the first reader of its parameter, or else of its own. */
static const char *state_scope(const OffloadSource *s, const int *first, const Map *params,
                               const Port *p)
{
    const Value *param = graph_state_param(params, p->name);
    int reader = param ? first[param->id] : s->count;
    reader = reader < s->count ? reader : first[p->v->id];
    return reader < s->count ? s->at[reader]->scope : "";
}

/* Whether an earlier compilation has made the copies of a state: that of its new value, or that
 * which its first reader is. */
static bool has_copies(const Value *state, const Port *renewed, const Node *reader)
{
    const Node *wait = renewed ? renewed->v->def : NULL;
    const Node *out = wait && wait->op->wait ? wait->in[0]->def : NULL;
    return node_is(reader, OP_reload) ||
           (node_is(out, OP_offload) && out->nin > 1 && out->in[1] == state);
}

void offload_list_states(Transfers *t, Arena *tmp, const PassOptions *o)
{
    OffloadSource *s = &t->s;
    const Map renewed = renewals(s->g, tmp);
    const Map params = graph_named(s->g->in, s->g->nin, ROLE_PARAM, tmp);
    const int *readers = first_readers(s, tmp);
    for (int i = 0; i < s->g->nin; i++) {
        Port *p = &s->g->in[i];
        const Port *new = p->host ? map_find(&renewed, p->name) : NULL;
        const int first = readers[p->v->id];
        if (!p->host || device_is_host(o->device) ||
            has_copies(p->v, new, first < s->count ? s->at[first] : NULL))
            continue;
        p->host = !stays(s->g, p, new, tmp, o); /* what the text says */
        if (!p->host)
            continue;
        const char *scope = state_scope(s, readers, &params, p);
        s->read[p->v->id].host = p->v;
        s->read[p->v->id].first = first;
        s->read[p->v->id].last = -1; /* nothing needs it here before */
        if (first < s->count)
            add_transfer(t, tmp, o,
                         (Transfer){.x = p->v, .scope = scope, .phase = s->at[first]->phase});
        if (new)
            add_transfer(
                t, tmp, o,
                (Transfer){.x = new->v, .scope = scope, .phase = new->v->def->phase, .old = p->v});
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
