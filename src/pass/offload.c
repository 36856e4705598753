/* offload: keeps forward values whose policy is `offload` in the host's memory while only the
 * backward will read them. For such a value x
 *
 *     x_copy = offload(x)
 *     x_host = wait_tensor(x_copy, x)       after x's last reader of the forward: x dies here
 *     x_load = reload(x_host)
 *     x_back = wait_tensor(x_load, x_host)  right before x's first reader of the backward
 *
 * All readers in the backward after x's last other reader get x_back, clones that `remat` made
 * included; a reader of a view of x gets a clone of the view, of x_back. Source: torchtitan's
 * apply_cpu_offload, defer_offload_waits and prefetch_reloads, with seconds of a machine instead of
 * numbers of layers.
 *
 * Method: at first each x_host stands as early as it may, and each x_load right before x_back, so
 * that copies need the least memory. Then both move, so that copies run beside kernels. The clock
 * (machine/clock.c) says how far: when nodes begin, and copies of each direction end.
 * x_host moves down to where the copy is done, x_load up to where the copy must begin; both only as
 * far as the flow's peak does not rise, found by bisection. Order edges keep what has moved in its
 * place, as the search for an order would move it back to gain a byte elsewhere. Copies and edges
 * are put beside nodes that `fuse` leaves alone, where there are any.
 *
 * - Outputs stay in their memory, and so do values that the backward does not read. A warning names
 *   what cannot be moved: values that a loop over forward and backward reads, that a forward loop
 *   keeps for another loop, or that the forward still reads when the backward has read them.
 * - A collective's result is moved once it was waited for.
 * - The optimizer's state is moved for its update instead of the backward (offload_state.c).
 * - Values that the graph offloads already are reloaded again for new readers: the pass is
 *   idempotent.
 * - On a device with one memory there is nowhere to move a value: an error.
 *
 * Invariants: bits, as a copy has x's strides and clones are views. The flow's peak in the graph's
 * order is as if nothing had moved. Each body of a loop is a graph of its own. Cost: linear in
 * nodes, and for each value log n moves on the flow: a node that stands alone, or a moment of the
 * time line, is found by a table or by bisection. */
#include "../flow/flow.h"
#include "../machine/machine.h"
#include "offload.h"

#include <stdlib.h>
#include <string.h>

typedef struct Offload {
    Arena *tmp;
    const PassOptions *o;
    Transfers **graph; /* with what is moved in them */
    int count, cap;
    int refused;
    Decision first; /* of those */
} Offload;

/* ---- who reads a value ---- */

/* Whether n reads what the host may have had. */
static bool reads_later(const Node *n)
{
    return !n->op->view && !node_moves(n) && node_in_backward(n);
}

static bool spans_both(const Node *n)
{
    return n->op->region == LOOP && n->phase == BACKWARD && !node_in_backward(n);
}

/* Finds the last place where something else than the backward needs a base. */
static void find_last(OffloadSource *s)
{
    for (int p = 0; p < s->count; p++) {
        const Node *n = s->at[p];
        bool spans = spans_both(n);
        for (int i = 0; i < n->nin; i++) {
            Reads *r = &s->read[s->read[n->in[i]->id].base->id];
            if (spans)
                r->kept = "a loop over forward and backward reads it";
            if (s->later[p])
                r->later = true;
            else if (!n->op->view)
                r->last = p;
        }
        const Node *copy = n->op->wait ? n->in[0]->def : NULL;
        if (copy && copy->op->to_host)
            s->read[n->in[1]->id].host = n->out[0];
        else if (node_is(copy, OP_reload))
            s->read[n->out[0]->id].host = n->in[1];
    }
}

/* Sets `first` of v, of what it views, and so on, to what is the least that was told so far: places
 * come in their order. */
static void add_reader(const OffloadSource *s, const Value *v, int place)
{
    const Value *base = s->read[v->id].base;
    for (; place > s->read[base->id].last && s->read[v->id].first > place; v = v->def->in[0]) {
        s->read[v->id].first = place;
        if (v == base)
            return;
    }
}

static OffloadSource read_source(Graph *g, Arena *tmp)
{
    OffloadSource s = {.g = g, .nnode = g->nnode, .nvalue = g->nvalue};
    s.at = NEWN(tmp, Node *, g->nnode + 1); /* NULL: the end */
    s.place = NEWN(tmp, int, g->nnode);
    s.later = NEWN(tmp, bool, g->nnode);
    s.read = NEWN(tmp, Reads, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        s.read[g->in[i].v->id].base = g->in[i].v;
    for (Node *n = g->first; n; n = n->next) {
        for (int k = 0; k < n->nout; k++) {
            Value *v = n->out[k];
            s.read[v->id].base = n->op->view ? s.read[n->in[0]->id].base : v;
            s.read[v->id].last = s.count;
        }
        s.place[n->id] = s.count;
        s.later[s.count] = reads_later(n);
        s.at[s.count++] = n;
    }
    for (int i = 0; i < g->nvalue; i++)
        s.read[i].first = s.count;
    for (int i = 0; i < g->nout; i++)
        s.read[s.read[g->out[i].v->id].base->id].output = true;
    find_last(&s);
    for (int p = 0; p < s.count; p++)
        for (int i = 0; i < s.at[p]->nin && s.later[p]; i++)
            add_reader(&s, s.at[p]->in[i], p);
    return s;
}

/* ---- decisions ---- */

/* Why v stays where it is, NULL: it is moved. *honoured: nothing is lost by that. */
static const char *find_reason(const OffloadSource *s, const Value *v, bool *honoured)
{
    const Reads *r = &s->read[v->id];
    *honoured = !r->kept && (!r->later || r->output);
    return r->kept                ? r->kept
           : !r->later            ? "the backward has no use for it"
           : r->output            ? "it is an output, and kept in any case"
           : r->first == s->count ? "the forward reads it after the backward has"
                                  : NULL;
}

static void refuse_device(const Graph *g, const Device *d, const Node *n)
{
    if (device_is_host(d))
        fail(g->ctx, TN_USAGE,
             "offload: %%%s cannot be moved to the host's memory: the back end %s computes in it, "
             "there is no other; --backend %s has one",
             n->out[0]->name, d->name, device_at(DEVICE_emulated)->name);
}

static void note(Offload *x, const Node *n, const Decision *d)
{
    Decision copy = *d;
    copy.node = n->out[0]->name;
    copy.scope = n->scope;
    offload_tell(x->o->decisions, copy);
    if (!d->honoured && !x->refused++) {
        x->first = *d;
        x->first.node = n->out[0]->name;
    }
}

/* Whether v was copied to the host's memory, or is what ranks make of such values there (stage.c),
 * where it stays. */
static bool lies_in_host(const Value *v)
{
    while (v->def && v->def->op->view && !v->def->op->wait)
        v = v->def->in[0];
    const Node *made = v->def && v->def->op->wait ? v->def->in[0]->def : NULL;
    if (!made || made->op->to_host)
        return made;
    return made->op->class == CLASS_COLLECTIVE && lies_in_host(started_from(v->def->in[0]));
}

/* Adds n's results that are to be moved to t. */
static void choose_node(Offload *x, Transfers *t, const Node *n)
{
    Decision d = {.policy = OFFLOAD, .unused = true, .honoured = true};
    for (int k = 0; k < n->nout; k++) {
        const Reads *r = &t->s.read[n->out[k]->id];
        bool honoured = true, already = (r->host && !r->later) || lies_in_host(n->out[k]);
        const char *why = already ? NULL : find_reason(&t->s, n->out[k], &honoured);
        if (why) {
            d.reason = d.reason && honoured ? d.reason : why;
            d.honoured &= honoured;
            d.unused &= honoured;
            continue;
        }
        d.offload = true;
        d.nbytes += type_nbytes(&n->out[k]->type);
        d.sec += t->times * 2 * copy_sec(x->o->prices, (double)type_nbytes(&n->out[k]->type));
        refuse_device(t->s.g, x->o->device, n);
        if (!already)
            PUSH(x->tmp, t->list, t->count, t->cap,
                 ((Transfer){.x = n->out[k], .scope = n->scope, .phase = n->phase}));
    }
    for (int k = 0; k < n->nout && !d.offload; k++)
        d.nbytes += type_nbytes(&n->out[k]->type);
    if (d.offload && d.honoured)
        d.reason = "the host keeps it for the backward";
    d.unused &= !d.offload;
    note(x, n, &d);
}

/* Whether n's results are to be moved. The result of a collective or a reload is there only once it
 * was waited for, so its policy counts for the wait. */
static bool is_meant(const Transfers *t, const Node *n)
{
    const Node *made = n->op->wait ? n->in[0]->def : NULL;
    bool waited = made && op_starts(made->op) && made->policy == OFFLOAD;
    bool unfinished = op_starts(n->op) && !t->s.read[n->out[0]->id].later;
    return (n->policy == OFFLOAD || waited) && n->phase < BACKWARD && !n->op->view && !unfinished;
}

/* ---- where copies stand ---- */

static void fill_alone(OffloadSource *s, Arena *tmp)
{
    s->above = NEWN(tmp, int, s->count + 1);
    s->below = NEWN(tmp, int, s->count + 1);
    s->above[s->count] = s->below[s->count] = s->count;
    for (int p = 0, near = -1; p < s->count; p++)
        s->above[p] = near = offload_stands_alone(s->at[p]) ? p : near;
    for (int p = s->count - 1, near = s->count; p >= 0; p--)
        s->below[p] = near = s->above[p] == p ? p : near;
}

/* The first place on the way from `from` to `to`, both included, before which a node stands alone,
 * or `after` which one does; none: otherwise. */
static int find_alone(const OffloadSource *s, int from, int to, bool after, int otherwise)
{
    int place = (to < from ? s->above : s->below)[from - after] + after;
    return place >= MIN(from, to) && place <= MAX(from, to) ? place : otherwise;
}

static int by_copied(const void *p, const void *q)
{
    const Transfer *x = p, *y = q;
    return x->copied != y->copied ? x->copied - y->copied : x->x->id - y->x->id;
}

static int by_needed(const void *p, const void *q)
{
    const Transfer *x = p, *y = q;
    return x->needed != y->needed ? x->needed - y->needed : x->x->id - y->x->id;
}

static void find_limits(const Offload *x, Transfers *t)
{
    fill_alone(&t->s, x->tmp);
    for (int i = 0; i < t->count; i++) {
        Transfer *c = &t->list[i];
        const Reads *r = &t->s.read[c->x->id];
        int made = c->x->def ? t->s.place[c->x->def->id] + 1 : 0;
        c->needed = c->loaded = c->old ? t->s.count : r->first;
        c->copied = x->o->fuse ? find_alone(&t->s, made, c->needed, false, made) : made;
        c->least = MAX(r->last + 1, c->copied);
    }
}

/* The first place from `from` on, or `to`, where `busy` seconds of a line are over. */
static int find_moment(const double *sec, int from, int to, double busy)
{
    while (from < to) {
        int middle = from + (to - from) / 2;
        if (sec[middle] < busy)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The last place up to `to`, or `from`, where no more than `busy` seconds are over. */
static int find_moment_before(const double *sec, int from, int to, double busy)
{
    while (from < to) {
        int middle = to - (to - from) / 2;
        if (sec[middle] > busy)
            to = middle - 1;
        else
            from = middle;
    }
    return from;
}

/* When each node begins, were nothing copied; behind the last the end of all. */
static double *find_moments(const Offload *x, const OffloadSource *s)
{
    double *sec = NEWN(x->tmp, double, s->count + 1);
    int *job = NEWN(x->tmp, int, s->nnode);
    Clock *c = clock_new(x->tmp);
    const Mesh *mesh = graph_mesh(s->g);
    for (int p = 0; p < s->count; p++) {
        const Node *n = s->at[p], *from = node_waits_for(n);
        double now = clock_at(c, QUEUE_COMPUTE);
        bool starts = n->op->class == CLASS_COLLECTIVE && op_starts(n->op);
        if (starts) {
            Group where = node_group(x->o->prices, mesh, n);
            const char *group = n->attr[attr_index(n->op, "group")].s;
            job[n->id] = clock_start(c, group, &where, now, node_sec(x->o->prices, mesh, n));
        }
        if (from)
            clock_run(c, QUEUE_COMPUTE, clock_end(c, job[from->id]), 0);
        else if (!starts && !node_transfers(n))
            clock_run(c, QUEUE_COMPUTE, 0, node_sec(x->o->prices, mesh, n));
        sec[p + 1] = clock_at(c, QUEUE_COMPUTE);
    }
    return sec;
}

/* Fills where copies out are done: at least one node lies in between, if there is one. */
static void find_freed(const Offload *x, Transfers *t, const double *sec)
{
    const OffloadSource *s = &t->s;
    Clock *clock = clock_new(x->tmp);
    qsort(t->list, (size_t)t->count, sizeof *t->list, by_copied);
    for (int i = 0; i < t->count; i++) {
        Transfer *c = &t->list[i];
        if (s->read[c->x->id].host)
            continue;
        double busy = clock_run(clock, QUEUE_OUT, sec[c->copied],
                                copy_sec(x->o->prices, (double)type_nbytes(&c->x->type)));
        c->freed = MIN(MAX(c->least, c->copied + 1), c->needed);
        c->freed = find_moment(sec, c->freed, c->needed, busy);
        c->freed = find_alone(s, c->freed, c->needed, true, c->freed);
        c->turn = i;
    }
}

/* Fills where copies in begin to be done in time, likewise. The clock runs backward from the end:
 * a copy then begins when it is needed. */
static void find_begun(const Offload *x, Transfers *t, const double *sec)
{
    const OffloadSource *s = &t->s;
    const double end = sec[s->count];
    Clock *clock = clock_new(x->tmp);
    qsort(t->list, (size_t)t->count, sizeof *t->list, by_needed);
    for (int i = t->count - 1; i >= 0; i--) {
        Transfer *c = &t->list[i];
        if (c->old)
            continue;
        double busy = end - clock_run(clock, QUEUE_IN, end - sec[c->needed],
                                      copy_sec(x->o->prices, (double)type_nbytes(&c->x->type)));
        c->begun = MAX(c->least, c->needed - 1);
        c->begun = find_moment_before(sec, c->least, c->begun, busy);
        c->begun = find_alone(s, c->begun, c->least, false, c->begun);
        clock_run(clock, QUEUE_IN, end - sec[c->begun], 0);
    }
}

static void find_times(const Offload *x, Transfers *t)
{
    const double *sec = find_moments(x, &t->s);
    find_freed(x, t, sec);
    find_begun(x, t, sec);
}

/* ---- the nodes ---- */

/* A wait reads what the part before it makes, and that one's source. */
static const struct {
    const char *op, *suffix;
    bool wait, backward;
} parts[NPART] = {[COPY_NODE] = {"offload", "_copy", false, false},
                  [HOST_NODE] = {"wait_tensor", "_host", true, false},
                  [LOAD_NODE] = {"reload", "_load", false, true},
                  [BACK_NODE] = {"wait_tensor", "_back", true, true}};

/* A node to be emitted before a place. */
typedef struct EmitOrder {
    int place, part, turn, index;
} EmitOrder;

static int by_place(const void *p, const void *q)
{
    const EmitOrder *x = p, *y = q;
    return x->place != y->place ? x->place - y->place
           : x->part != y->part ? x->part - y->part
                                : x->turn - y->turn;
}

static void emit_part(const OffloadSource *s, Transfer *c, TransferPart part, int place)
{
    Graph *g = s->g;
    const Node *host = c->node[HOST_NODE];
    Value *source = part < LOAD_NODE ? c->x : host ? host->out[0] : s->read[c->x->id].host;
    bool wait = parts[part].wait, two = wait || (part == COPY_NODE && c->old);
    Value *in[] = {wait ? c->node[part - 1]->out[0] : source, wait ? source : c->old};
    Phase phase = parts[part].backward && !c->state ? BACKWARD : c->phase;
    Build b = {g, s->at[place], phase, POLICY_NONE, c->scope, NULL, 0, 0};
    const char *name = graph_fresh(g, arena_printf(g->a, "%s%s", c->x->name, parts[part].suffix));
    c->node[part] =
        emit_named(&b, op_get(g->ctx, parts[part].op), two ? 2 : 1, in, NULL, NULL, -1, &name, 1);
}

static void emit_transfers(const Offload *x, Transfers *t)
{
    EmitOrder *order = NEWN(x->tmp, EmitOrder, NPART * t->count);
    int count = 0;
    for (int i = 0; i < t->count; i++) {
        const Transfer *c = &t->list[i];
        const int place[NPART] = {c->copied, c->least, c->needed, c->needed};
        bool there = t->s.read[c->x->id].host;
        for (int k = there ? LOAD_NODE : COPY_NODE; k < (c->old ? LOAD_NODE : NPART); k++)
            order[count++] = (EmitOrder){place[k], k, k < LOAD_NODE ? c->turn : i, i};
    }
    qsort(order, (size_t)count, sizeof *order, by_place);
    for (int i = 0; i < count; i++)
        emit_part(&t->s, &t->list[order[i].index], (TransferPart)order[i].part, order[i].place);
}

/* Makes the backward read what was loaded back, and clones of views that view it. */
static void redirect(const Offload *x, const Transfers *t)
{
    const OffloadSource *s = &t->s;
    Value **now = NEWN(x->tmp, Value *, s->nvalue);
    for (int i = 0; i < t->count; i++)
        if (!t->list[i].state)
            now[t->list[i].x->id] = t->list[i].node[BACK_NODE]->out[0];
    for (int p = 0; p < s->count; p++) {
        Node *n = s->at[p];
        int first = s->count;
        for (int k = 0; k < n->nout && n->op->view; k++)
            first = MIN(first, s->read[n->out[k]->id].first);
        if (first < s->count && now[n->in[0]->id]) {
            const char *origin = n->phase < BACKWARD ? n->out[0]->name : n->origin;
            Node *m = remat_clone(s->g, n, s->at[first], origin);
            m->in[0] = now[n->in[0]->id];
            for (int k = 0; k < n->nout; k++)
                now[n->out[k]->id] = m->out[k];
        }
        for (int i = 0; i < n->nin && s->later[p]; i++) {
            const Value *v = n->in[i];
            if (now[v->id] && p >= s->read[s->read[v->id].base->id].first)
                n->in[i] = now[v->id];
        }
    }
}

/* ---- distances ---- */

/* Moves n, if that leaves the flow's peak as it is. */
static bool try_move(Flow *f, Graph *g, int64_t peak, Node *n, Node *before)
{
    int undo = flow_mark(f);
    flow_move(f, flow_item(f, n), before ? flow_item(f, before) : flow_last(f));
    if (flow_peak(f) > peak) {
        flow_undo(f, undo);
        return false;
    }
    node_move(g, n, before);
    return true;
}

/* Moves n, which stands before place `from`, towards place `to`, as far as that is free of charge,
 * a load to before a node that stands alone, a wait to after one; returns where to. `other`, which
 * stands before place `to` as well, stays after n. */
static int move_towards(Flow *f, const OffloadSource *s, int64_t peak, Node *n, int from, int to,
                        Node *other)
{
    int good = from, step = to > from ? 1 : -1;
    for (int low = 1, high = (to - from) * step, far = high; low <= high;) {
        int end = from + step * far, place = find_alone(s, end, from + step, step > 0, end);
        if (try_move(f, s->g, peak, n, place == to && other ? other : s->at[place])) {
            good = place;
            low = far + 1;
        } else {
            high = far - 1;
        }
        far = low + (high - low) / 2;
    }
    return good;
}

/* Moves the loads up and the waits of offloads down, in the flow and in the graph. */
static void move_apart(Flow *f, Transfers *t)
{
    const OffloadSource *s = &t->s;
    const int64_t peak = flow_peak(f);
    for (int i = 0; i < t->count; i++) {
        Transfer *c = &t->list[i];
        if (c->old)
            continue;
        c->loaded = move_towards(f, s, peak, c->node[LOAD_NODE], c->needed, c->begun, NULL);
        c->prefetched = c->loaded != c->needed;
    }
    for (int i = 0; i < t->count; i++) {
        Transfer *c = &t->list[i];
        Node *host = c->node[HOST_NODE];
        if (!host)
            continue;
        int to = MIN(c->freed, c->loaded);
        Node *load = to == c->loaded ? c->node[LOAD_NODE] : NULL;
        c->deferred = move_towards(f, s, peak, host, c->least, to, load) != c->least;
    }
}

static void settle(Flow *f, Offload *x)
{
    for (int i = 0; i < x->count; i++)
        if (x->graph[i]->s.g == flow_graph(f))
            move_apart(f, x->graph[i]);
    for (int i = flow_first(f); i >= 0; i = flow_next(f, i))
        for (int c = 0; item_body(f, i, c); c++)
            settle(item_body(f, i, c), x);
}

/* ---- the graph and its bodies ---- */

static void warn_refused(const Graph *g, const Offload *x)
{
    char more[60] = "";
    if (!x->refused || !x->o->warn)
        return;
    if (x->refused > 1)
        snprintf(more, sizeof more, ", and %d more (plan --explain)", x->refused - 1);
    x->o->warn(x->o->warn_arg, arena_printf(g->a, "offload: %%%s stays: %s%s", x->first.node,
                                            x->first.reason, more));
}

/* collected: by output of a body, whether the backward reads what its loop makes of it; NULL: not a
 * body. */
static int offload_graph(Offload *x, Graph *g, const bool *collected, double times)
{
    Transfers *t = NEW(x->tmp, Transfers);
    int changes = 0;
    *t = (Transfers){.s = read_source(g, x->tmp), .times = times};
    for (int i = 0; i < g->nout && collected; i++)
        if (collected[i])
            t->s.read[t->s.read[g->out[i].v->id].base->id].kept =
                "its loop keeps it for another loop; a policy of the loop moves what it keeps";
    for (int p = 0; p < t->s.count; p++) {
        const Node *n = t->s.at[p];
        EACH_LOOP_BODY(b, n) {
            const Graph *body = n->region->body[b];
            bool *later = NEWN(x->tmp, bool, body->nout);
            for (int k = 0; k < n->nout; k++)
                if (n->region->out[k].at[b] >= 0)
                    later[n->region->out[k].at[b]] |= t->s.read[n->out[k]->id].later;
            changes += offload_graph(x, n->region->body[b], later,
                                     times * (double)region_times(n->region, b));
        }
        if (is_meant(t, n))
            choose_node(x, t, n);
    }
    if (!g->parent)
        offload_list_states(t, x->tmp, x->o);
    if (!t->count)
        return changes;
    find_limits(x, t);
    find_times(x, t);
    emit_transfers(x, t);
    offload_redirect_states(t, x->tmp);
    redirect(x, t);
    PUSH(x->tmp, x->graph, x->count, x->cap, t);
    return changes + t->count;
}

int pass_offload(Graph *g, Arena *tmp, const PassOptions *o)
{
    Offload x = {.tmp = tmp, .o = o};
    if (offload_wants_state(o) && offload_take_states(g, tmp, o))
        offload_order_updates(g, tmp, o);
    int changes = offload_graph(&x, g, NULL, 1);
    if (changes)
        settle(pass_flow(g, o, tmp), &x);
    for (int i = 0; i < x.count; i++)
        offload_pin(x.graph[i], tmp);
    warn_refused(g, &x);
    return changes;
}
