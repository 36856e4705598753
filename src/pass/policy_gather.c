/* policy_gather: policies of gathered parameters, by `--reshard`. Ranks that cut a parameter gather
 * it before they read it:
 *
 *     %c = _to_copy(%w)                 a cast to a narrower dtype, of this rank's shard
 *     %g = all_gather_into_tensor(%c)
 *     %a = wait_tensor(%g, %c)          then views, a further gather, pads, weights formed of
 *                                       gathered parameters alone
 *
 * always: all of these are must_recompute, so that the forward's result dies there and the backward
 * gathers again (ZeRO-3; PyTorch's reshard_after_forward). never: gathers are must_save, so that
 * the backward has none (ZeRO-2); values formed of them are must_recompute, as a widening cast. In
 * a loop of the forward the policies only prefer: it keeps what the backward's loop reads of it. A
 * policy of the text or of a rule holds instead, as for any value.
 *
 * An error names a parameter for which that is impossible. A loop over the whole forward and
 * backward keeps what is gathered before it, so `always` wants the gather in its body. `never`
 * wants no gather in the backward of a parameter that the forward gathers from the same ranks. A
 * parameter that only the backward gathers is gathered once in any case. Linear. */
#include "pass.h"

#include <string.h>

/* A value made of a parameter alone, and the last gather between. */
typedef struct Chain {
    const Value *param; /* NULL: it is made of more, or of none */
    const Node *gather;
    bool reads; /* it is made of a parameter, alone or not */
    bool plain; /* it has the parameter's elements, cast at most */
} Chain;

typedef struct Gathers {
    Arena *tmp;
    bool always;
    enum { GIVE, LOOK, CHECK_ALL } task; /* gives policies; fills `gathered`; checks all policies */
    bool inner;                          /* in a loop of the forward alone */
    Map gathered; /* "GRAPH PARAMETER GROUP" of each gather in the forward: bodies have their own */
    const Graph *level[TN_MAX_DEPTH + 1]; /* the graph that is walked, and those around it */
    int depth;
    int changes;
} Gathers;

static bool is_gather(const Node *n)
{
    return node_is(n, OP_all_gather_into_tensor);
}

/* ---- what is made of parameters alone ---- */

/* Whether n is formed of values that are made of parameters, and constants. */
static bool follows(const Node *n, const Chain *c)
{
    bool any = false, may = n->op->class == CLASS_MOVEMENT || n->op->class == CLASS_POINTWISE;
    for (int i = 0; i < n->nin && (may || is_gather(n)); i++) {
        const Node *def = n->in[i]->def;
        if (!c[n->in[i]->id].param && !(def && def->op->class == CLASS_CREATION))
            return false;
        any |= c[n->in[i]->id].param != NULL;
    }
    return any;
}

/* Follows result k, which a gather makes of its own operand. */
static Chain chain_of(const Node *n, int k, const Chain *c)
{
    Chain x = {0};
    bool made = follows(n, c), gather = is_gather(n);
    for (int i = gather ? k : 0; i < (gather ? k + 1 : n->nin) && made; i++) {
        const Chain *y = &c[n->in[i]->id];
        x.param = x.param ? x.param : y->param;
        x.gather = x.gather ? x.gather : y->gather;
    }
    x.gather = x.param && is_gather(n) ? n : x.gather;
    x.plain = x.param && n->nin && c[n->in[gather ? k : 0]->id].plain &&
              (n->op->class == CLASS_MOVEMENT || n->op->copy || is_gather(n));
    for (int i = 0; i < n->nin; i++)
        x.reads |= c[n->in[i]->id].reads;
    return x;
}

/* By node id: whether n's result goes into a gather, as a shard that is cast or padded before. */
static bool *find_leads(const Graph *g, Arena *tmp, const Chain *c)
{
    bool *leads = NEWN(tmp, bool, g->nnode);
    for (const Node *n = g->last; n; n = n->prev) {
        bool on = c[n->out[0]->id].param && (is_gather(n) || leads[n->id]);
        for (int i = 0; i < n->nin && on; i++)
            if (n->in[i]->def)
                leads[n->in[i]->def->id] = true;
    }
    return leads;
}

/* ---- policies ---- */

static int give_policies(Graph *g, const Gathers *x, const Chain *c)
{
    int changes = 0;
    const bool *leads = find_leads(g, x->tmp, c);
    for (Node *n = g->first; n; n = n->next) {
        const Chain *y = &c[n->out[0]->id];
        bool meant = y->param && (y->gather || (x->always && leads[n->id]));
        if (!meant || n->policy || n->phase >= BACKWARD || node_aliases(n))
            continue;
        n->policy = !x->always && is_gather(n) ? MUST_SAVE
                    : x->inner                 ? PREFER_RECOMPUTE
                                               : MUST_RECOMPUTE;
        changes++;
    }
    return changes;
}

/* ---- what cannot be obeyed ---- */

/* "%g <- %c <- %w" */
static const char *path_of(Arena *a, const Value *v, const Chain *c)
{
    Buf b = {.a = a};
    for (const Value *from; v->def; v = from) {
        from = op_starts(v->def->op) ? started_from(v) : v->def->in[0];
        buf_printf(&b, "%%%s <- ", v->name);
        if (!c[from->id].param)
            break;
    }
    buf_printf(&b, "%%%s", v->name);
    return b.text;
}

/* Whether v is made of several values, so that spmd might have formed it in the loop. */
static bool is_formed(const Value *v)
{
    for (; v->def && v->def->nin; v = v->def->in[0])
        if (v->def->nin > 1 && !v->def->op->wait)
            return true;
    return false;
}

static const char *where_formed(Arena *a)
{
    return arena_printf(a,
                        ", where weights of at most %d nodes and %d times their bytes are formed",
                        FORMED_NODES, FORMED_TIMES);
}

/* Whether the forward begins before the loop, which reads an activation: it is a region that the
 * pass chunk cut, and what is gathered for it is dropped after it. */
static bool reads_forward(const Node *n, const Chain *c)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->def && n->in[i]->def->phase < BACKWARD && c[n->in[i]->id].reads &&
            !c[n->in[i]->id].param)
            return true;
    return false;
}

/* Refuses a gather that `always` cannot drop: a loop over forward and backward keeps what it reads.
 */
static void check_dropped(const Graph *g, const Gathers *x, const Chain *c, const Node *n)
{
    if (n->op->region != LOOP || n->phase < BACKWARD || node_in_backward(n) || reads_forward(n, c))
        return;
    for (int i = 0; i < n->nin; i++) {
        const Node *gather = c[n->in[i]->id].gather, *base = defining_node(n->in[i]);
        if (gather && base && base->policy == MUST_RECOMPUTE)
            fail_node(g, gather,
                      "must be dropped after the forward (reshard always), but stands before loop "
                      "%%%s over forward and backward, which keeps it: %s; gather in its body%s, "
                      "or take reshard never",
                      n->out[0]->name, path_of(x->tmp, n->in[i], c),
                      is_formed(n->in[i]) ? where_formed(x->tmp) : "");
    }
}

/* The parameter, ranks and graph of a gather's result k. */
static const char *gather_key(const Gathers *x, int level, const Node *n, int k, const Chain *c)
{
    const char *group = n->attr[attr_index(n->op, "group")].s;
    return arena_printf(x->tmp, "%p %s %s", (const void *)x->level[level],
                        c[n->out[k]->id].param->name, group);
}

static void look_at(Gathers *x, const Chain *c, Node *n)
{
    for (int k = 0; k < n->nout && is_gather(n) && n->phase < BACKWARD; k++)
        if (c[n->out[k]->id].plain)
            map_put(&x->gathered, gather_key(x, x->depth, n, k, c), n);
}

/* Whether the forward has gathered so n's result k, where n could read it. */
static bool is_repeated(const Gathers *x, const Chain *c, const Node *n, int k)
{
    bool found = false;
    for (int i = 0; i <= x->depth && c[n->out[k]->id].plain; i++)
        found |= map_find(&x->gathered, gather_key(x, i, n, k, c)) != NULL;
    return found;
}

static void check_kept(const Graph *g, const Gathers *x, const Chain *c, const Node *n)
{
    const Node *from = find_original(g, n);
    for (int k = 0; k < n->nout && is_gather(n) && n->phase == BACKWARD && !from; k++)
        if (c[n->out[k]->id].param && (n->origin || is_repeated(x, c, n, k)))
            fail_node(g, n,
                      "gathers %%%s in the backward, which reshard never excludes, and %s: %s",
                      c[n->out[k]->id].param->name,
                      n->origin ? "the forward's gather that it repeats is gone"
                                : "the forward gathers it in another form",
                      path_of(x->tmp, n->out[k], c));
}

/* ---- one graph and the bodies in it ---- */

static void walk(Graph *g, Gathers *x, Chain *c);

static void walk_body(const Node *n, int b, Gathers *x, const Chain *outer)
{
    const Region *r = n->region;
    Chain *c = NEWN(x->tmp, Chain, r->body[b]->nvalue);
    for (int j = 0; j < r->nin; j++) {
        const PortIn *p = &r->in[j];
        if (p->at[b] >= 0 && (p->kind == PORT_WHOLE || p->kind == PORT_TAIL))
            c[r->body[b]->in[p->at[b]].v->id] = outer[n->in[p->arg]->id];
    }
    bool outside = x->inner;
    x->inner = n->phase < BACKWARD;
    x->depth++;
    walk(r->body[b], x, c);
    x->depth--;
    x->inner = outside;
}

/* c: by value id, with the inputs' chains. */
static void walk(Graph *g, Gathers *x, Chain *c)
{
    x->level[x->depth] = g;
    for (Node *n = g->first; n; n = n->next) {
        for (int k = 0; k < n->nout; k++)
            c[n->out[k]->id] = chain_of(n, k, c);
        EACH_LOOP_BODY(b, n)
            walk_body(n, b, x, c);
        if (x->task == LOOK)
            look_at(x, c, n);
        else if (x->task == CHECK_ALL && x->always)
            check_dropped(g, x, c, n);
        else if (x->task == CHECK_ALL)
            check_kept(g, x, c, n);
    }
    if (x->task == GIVE)
        x->changes += give_policies(g, x, c);
}

static void walk_all(Graph *g, Gathers *x)
{
    Chain *c = NEWN(x->tmp, Chain, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM)
            c[g->in[i].v->id] = (Chain){.param = g->in[i].v, .reads = true, .plain = true};
    walk(g, x, c);
}

bool gathers_are_kept(const PassOptions *o)
{
    return o->reshard && !strcmp(o->reshard, "never");
}

static Gathers gathers_start(Arena *tmp, const PassOptions *o)
{
    return (Gathers){.tmp = tmp, .always = !gathers_are_kept(o), .gathered = {.a = tmp}};
}

int policy_gathers(Graph *g, Arena *tmp, const PassOptions *o)
{
    Gathers x = gathers_start(tmp, o);
    walk_all(g, &x);
    return x.changes;
}

void policy_check_gathers(Graph *g, Arena *tmp, const PassOptions *o)
{
    Gathers x = gathers_start(tmp, o);
    x.task = LOOK;
    if (!x.always)
        walk_all(g, &x);
    x.task = CHECK_ALL;
    walk_all(g, &x);
}
