/* The collectives of a plan: what each moves, for whom, and how much.
 *
 * A call may move several values. It counts for the largest of them; its seconds are shared among
 * them by bytes.
 *
 * A value in another form counts once, however many calls bring it there: gathers over two axes may
 * be one call over both or one after the other. So calls of one kind form a chain where each reads
 * nothing but what the one before made, moved or cast, and nothing else reads that. A chain counts
 * as its last call, over the groups of all. What goes around a ring is another value in each step.
 *
 * The role of a call follows from where its operand comes from and where its result goes: values
 * that are a parameter's, moved or cast; the gradient that an optimizer or an output takes, and
 * what that is the moved, cast or scaled value of; what the gradient's norm is made of; all else
 * are activations. Fused nodes and bodies of loops are followed, calls in these counted as often as
 * they run. Linear in nodes. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#define X(id, text) text,
static const char *const roles[] = {COLLECTIVE_ROLES(X)};
#undef X

const char *collective_role(CollectiveRole r)
{
    return roles[r];
}

/* A value of a collective of the graph or a body. */
typedef struct SentCall {
    const Node *node;
    int tensor; /* which of the node's operands and results */
    double times;
    CollectiveRole role;
    int from;          /* the call whose result it reads, moved or cast, -1: none */
    bool read;         /* by more than calls of its kind */
    int onward;        /* the call of its chain that follows, -1: it ends here */
    int end;           /* the call that ends its chain */
    const char *group; /* of the chain, where it ends */
} SentCall;

/* The origin of a value that is only moved or cast. */
typedef struct ValueSource {
    bool param;
    int sent; /* the call that made it, plus one; 0: none */
} ValueSource;

typedef struct SentCalls {
    Arena *a;
    SentCall *sent;
    int count, cap;
} SentCalls;

/* Whether n's result is operand 0's values, or some of them, elsewhere. */
static bool moves(const Node *n)
{
    return n->nin && (n->op->class == CLASS_MOVEMENT || n->op->copy);
}

/* ---- where operands come from ---- */

static void collect(SentCalls *c, const Graph *g, double times, ValueSource *of);

static bool reduces(const Node *n)
{
    CollectiveKind k = node_collective(n);
    return k == REDUCE_SCATTER || k == ALL_REDUCE;
}

static void mark_read(SentCalls *c, ValueSource from)
{
    if (from.sent)
        c->sent[from.sent - 1].read = true;
}

static ValueSource collect_call(SentCalls *c, const Node *n, int tensor, double times,
                                ValueSource from)
{
    bool chain =
        from.sent && c->sent[from.sent - 1].node->op == n->op && node_collective(n) != PERMUTE;
    CollectiveRole role = !reduces(n) && from.param ? FOR_PARAMETER
                          : n->phase == OPTIMIZER   ? FOR_NORM
                                                    : FOR_ACTIVATION;
    if (!chain)
        mark_read(c, from);
    SentCall s = {.tensor = tensor,
                  .node = n,
                  .times = times,
                  .role = role,
                  .from = chain ? from.sent - 1 : -1,
                  .onward = -1};
    PUSH(c->a, c->sent, c->count, c->cap, s);
    return (ValueSource){role == FOR_PARAMETER, c->count};
}

/* Follows the ports of body b inwards; the results of a fused node are what its body yields. */
static void collect_body(SentCalls *c, const Node *n, int b, double times, ValueSource *of)
{
    const Region *r = n->region;
    const Graph *body = r->body[b];
    ValueSource *inside = NEWN(c->a, ValueSource, body->nvalue);
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].arg >= 0 && r->in[j].at[b] >= 0)
            inside[body->in[r->in[j].at[b]].v->id] = of[n->in[r->in[j].arg]->id];
    collect(c, body, times * (double)region_times(r, b), inside);
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[b];
        if (n->op->region == FUSED)
            of[n->out[k]->id] = inside[body->out[i].v->id];
        else if (i >= 0)
            mark_read(c, inside[body->out[i].v->id]);
    }
}

/* of: by value id, of g's inputs; fills the others. */
static void collect(SentCalls *c, const Graph *g, double times, ValueSource *of)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            collect_body(c, n, b, times, of);
        if (n->region)
            continue;
        for (int t = 0; t < n->nout && n->op->class == CLASS_COLLECTIVE; t++)
            of[n->out[t]->id] = collect_call(c, n, t, times, of[n->in[t]->id]);
        for (int i = 0; i < n->nin && !moves(n) && n->op->class != CLASS_COLLECTIVE; i++)
            mark_read(c, of[n->in[i]->id]);
        for (int k = 0; k < n->nout && moves(n); k++)
            of[n->out[k]->id] = of[n->in[0]->id];
    }
}

static void collect_graph(SentCalls *c, const Graph *g)
{
    ValueSource *of = NEWN(c->a, ValueSource, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        of[g->in[i].v->id].param = g->in[i].role == ROLE_PARAM;
    collect(c, g, 1, of);
    for (int i = 0; i < g->nout; i++)
        mark_read(c, of[g->out[i].v->id]);
}

/* ---- where results go ---- */

/* Reductions of gradients, by node. */
typedef struct GradientNodes {
    Arena *a;
    const Node **node;
    int count, cap;
} GradientNodes;

/* The operand whose values n's result has, moved, cast or scaled by single elements; -1: none. */
static int scaled_operand(const Node *n)
{
    int found = moves(n) ? 0 : -1;
    for (int i = 0; i < n->nin && n->op->class == CLASS_POINTWISE; i++) {
        const Type *t = &n->in[i]->type;
        if (!dtype_float(t->dtype) || (type_nelem(t) == 1 && type_nelem(&n->out[0]->type) > 1))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* marked: by value id, what is a gradient; marks what it is made of. */
static void follow(GradientNodes *x, const Graph *g, bool *marked);

static void follow_body(GradientNodes *x, const Node *n, int b, bool *marked)
{
    const Region *r = n->region;
    const Graph *body = r->body[b];
    bool *inside = NEWN(x->a, bool, body->nvalue);
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[b] >= 0)
            inside[body->out[r->out[k].at[b]].v->id] |= marked[n->out[k]->id];
    follow(x, body, inside);
    for (int i = 0; n->op->region == FUSED && i < body->nin; i++)
        marked[n->in[i]->id] |= inside[body->in[i].v->id];
}

static void follow(GradientNodes *x, const Graph *g, bool *marked)
{
    for (const Node *n = g->last; n; n = n->prev) {
        EACH_BODY(b, n)
            follow_body(x, n, b, marked);
        bool is = false;
        for (int k = 0; k < n->nout; k++)
            is |= marked[n->out[k]->id];
        bool collective = n->op->class == CLASS_COLLECTIVE;
        int i = is && !n->region && !collective ? scaled_operand(n) : -1;
        if (i >= 0)
            marked[n->in[i]->id] = true;
        for (int t = 0; t < n->nin && collective; t++)
            marked[n->in[t]->id] |= marked[n->out[t]->id];
        if (is && collective)
            PUSH(x->a, x->node, x->count, x->cap, n);
    }
}

enum { GRADIENT = 1 }; /* the operand of an optimizer's node */

static void mark_updates(const Graph *g, bool *marked)
{
    for (const Node *n = g->first; n; n = n->next)
        if (attr_index(n->op, "weight_decay") >= 0 && n->nin > GRADIENT)
            marked[n->in[GRADIENT]->id] = true;
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_GRAD)
            marked[g->out[i].v->id] = true;
}

static int by_address(const void *s, const void *t)
{
    const Node *x = *(const Node *const *)s, *y = *(const Node *const *)t;
    return (x > y) - (x < y);
}

static void find_gradients(SentCalls *c, const Graph *g)
{
    GradientNodes x = {.a = c->a};
    bool *marked = NEWN(c->a, bool, g->nvalue);
    mark_updates(g, marked);
    follow(&x, g, marked);
    if (!x.count)
        return;
    qsort(x.node, (size_t)x.count, sizeof *x.node, by_address);
    for (int i = 0; i < c->count; i++) {
        SentCall *s = &c->sent[i];
        if (s->role != FOR_PARAMETER &&
            bsearch(&s->node, x.node, (size_t)x.count, sizeof *x.node, by_address))
            s->role = FOR_GRADIENT;
    }
}

/* ---- rows ---- */

/* Links each call that nothing else reads to the first one that goes on with what it made. */
static void link_chains(SentCalls *c)
{
    for (int i = 0; i < c->count; i++) {
        int before = c->sent[i].from;
        if (before >= 0 && !c->sent[before].read && c->sent[before].onward < 0)
            c->sent[before].onward = i;
    }
}

static const char *group_of(const SentCall *s)
{
    return s->node->attr[attr_index(s->node->op, "group")].s;
}

/* The groups of the chain that ends with a call, major first: what was gathered last, or reduced
 * first, is above the others. */
static const char *chain_group(const SentCalls *c, int end)
{
    Buf b = {.a = c->a};
    int *call = NULL, count = 0, cap = 0;
    for (int i = end; i >= 0 && (i == end || !c->sent[i].read); i = c->sent[i].from)
        PUSH(c->a, call, count, cap, i);
    for (int j = 0; j < count; j++) {
        int i = reduces(c->sent[end].node) ? count - 1 - j : j;
        buf_printf(&b, "%s%s", j ? "," : "", group_of(&c->sent[call[i]]));
    }
    return b.text;
}

/* Fills where chains end, and the groups of those that have several. */
static void end_chains(SentCalls *c)
{
    for (int i = c->count - 1; i >= 0; i--) {
        SentCall *s = &c->sent[i];
        s->end = s->onward < 0 ? i : c->sent[s->onward].end;
        if (s->onward < 0)
            s->group = s->from < 0 ? group_of(s) : chain_group(c, i);
    }
}

static Phase phase_of(const Node *n)
{
    return n->phase == LOSS ? FORWARD : n->phase;
}

/* Whether this rank is the one that sends; without a mesh that is not known. */
static bool is_source(const Mesh *mesh, const Node *n)
{
    int axes[MAX_MESH],
        naxes = mesh ? group_axes(mesh, group_of(&(SentCall){.node = n}), axes) : -1;
    int64_t place = 0;
    for (int i = 0; i < naxes; i++)
        place = place * mesh->size[axes[i]] + mesh->at[axes[i]];
    return naxes >= 0 && place == n->attr[attr_index(n->op, "src")].i;
}

/* Bytes of a tensor in its larger form. */
static double moved_bytes(const Node *n, int t)
{
    return (double)MAX(type_nbytes(&n->in[t]->type), type_nbytes(&n->out[t]->type));
}

/* The share of a tensor in the seconds of its call. *counts: it is the one that counts. */
static double share_of(const Node *n, int t, bool *counts)
{
    double all = 0;
    int largest = 0;
    for (int i = 0; i < n->nin; i++) {
        all += moved_bytes(n, i);
        largest = moved_bytes(n, i) > moved_bytes(n, largest) ? i : largest;
    }
    *counts = t == largest;
    return all > 0 ? moved_bytes(n, t) / all : *counts;
}

/* Bytes of tensor t that this rank receives in one call. */
static double received(const Mesh *mesh, const Node *n, int t)
{
    double in = (double)type_nbytes(&n->in[t]->type), out = (double)type_nbytes(&n->out[t]->type);
    double ranks = (double)group_ranks(mesh, n), others = ranks > 0 ? 1 - 1 / ranks : 1;
    switch (node_collective(n)) {
    case ALL_GATHER: return out - in;
    case REDUCE_SCATTER: return in - out;
    case ALL_REDUCE: return 2 * in * others;
    case BROADCAST: return is_source(mesh, n) ? 0 : out;
    case PERMUTE: return ranks == 1 ? 0 : out;
    default: return out * others;
    }
}

static int order_of(const CollectiveRow *x, const CollectiveRow *y)
{
    int64_t d = (int64_t)x->phase - (int64_t)y->phase;
    d = d ? d : (int64_t)x->role - (int64_t)y->role;
    d = d ? d : (int64_t)x->kind - (int64_t)y->kind;
    d = d ? d : (int64_t)x->dtype - (int64_t)y->dtype;
    return d ? (d > 0) - (d < 0) : strcmp(x->group, y->group);
}

static int by_order(const void *s, const void *t)
{
    return order_of(s, t);
}

typedef struct CollectiveRows {
    CollectiveRow *row;
    int count, cap;
} CollectiveRows;

static CollectiveRow *find_row(Arena *a, CollectiveRows *rows, const CollectiveRow *key)
{
    for (int i = 0; i < rows->count; i++)
        if (!order_of(&rows->row[i], key))
            return &rows->row[i];
    PUSH(a, rows->row, rows->count, rows->cap, *key);
    return &rows->row[rows->count - 1];
}

static void add_call(const Plan *p, const SentCalls *c, const NodeSteps *steps, int i,
                     CollectiveRows *rows)
{
    const SentCall *s = &c->sent[i];
    const Mesh *mesh = p->g->mesh;
    const SentCall *end = &c->sent[s->end];
    const Node *last = end->node;
    CollectiveRow key = {.kind = node_collective(last),
                         .group = end->group,
                         .dtype = last->out[end->tensor]->type.dtype,
                         .phase = phase_of(last),
                         .role = end->role};
    CollectiveRow *row = find_row(c->a, rows, &key);
    bool counts;
    double share = share_of(s->node, s->tensor, &counts);
    row->count += s->end == i ? (int64_t)s->times : 0;
    row->calls += counts ? (int64_t)s->times : 0;
    row->nbytes += s->times * received(mesh, s->node, s->tensor);
    row->sec += s->times * share * node_sec(p->machine, mesh, s->node);
    const Step *step = plan_node_step(steps, s->node);
    row->exposed += step ? share * step->exposed : 0;
}

int plan_collectives(Arena *a, const Plan *p, CollectiveRow **rows)
{
    SentCalls c = {.a = a};
    CollectiveRows x = {0};
    collect_graph(&c, p->g);
    find_gradients(&c, p->g);
    link_chains(&c);
    end_chains(&c);
    NodeSteps steps = plan_node_steps(a, p);
    for (int i = 0; i < c.count; i++)
        add_call(p, &c, &steps, i, &x);
    if (x.count)
        qsort(x.row, (size_t)x.count, sizeof *x.row, by_order);
    *rows = x.row;
    return x.count;
}

/* ---- groups ---- */

int plan_rank_groups(Arena *a, const Plan *p, RankGroup **groups)
{
    SentCalls c = {.a = a};
    int count = 0, cap = 0;
    *groups = NULL;
    collect_graph(&c, p->g);
    for (int i = 0, k; i < c.count; i++) {
        const Node *n = c.sent[i].node;
        const char *name = n->attr[attr_index(n->op, "group")].s;
        for (k = 0; k < count && strcmp((*groups)[k].name, name); k++)
            ;
        if (k == count)
            PUSH(a, *groups, count, cap,
                 ((RankGroup){name, group_ranks(p->g->mesh, n),
                              node_group(p->machine, p->g->mesh, n)}));
    }
    return count;
}
