/* bucket: makes one collective of several, so that a block's parameters come, and its gradients go,
 * by one call:
 *
 *     %a1 = all_gather_into_tensor(%a)          %a1, %b1 = all_gather_into_tensor(%a, %b)
 *     %b1 = all_gather_into_tensor(%b)
 *
 * Each value keeps its memory and its wait, nothing is copied, and ranks send one another a message
 * for all (exec/collective.c). Sources: FSDP of PyTorch, whose calls are _coalesced; torchtitan's
 * joint_transformer_block_bucketing.
 *
 * Joined are gathers of what is made of parameters alone, and reductions in the backward whose
 * results go into updates alone; of one unit, direction, op and attributes, group and dtype, where
 * none is made of another. Units (`--bucket block`): each block; what the forward runs before the
 * blocks, as the embedding; what it runs after them, as the last norm and the head; of a graph
 * that names no blocks, bucket_units.c finds them. `--bucket
 * BYTES` fills buckets up to so many bytes, whatever the unit. The machine must say that one call
 * takes less than several.
 *
 * A joined gather stands where the first of them stood, behind what the others read, which is made
 * of parameters; a reduction where the last stood. All else keeps its order. Were calls joined that
 * would have to wait for each other, they are left alone. The pass stands behind remat: clones are
 * joined as their originals. Values that offload moves, and calls with order edges, are left alone;
 * calls before and behind a barrier are not joined.
 *
 * Bits stay, as each value is gathered or reduced as before. O(n log n); calls of several values
 * are not joined again: idempotent. Each body of a loop is a graph of its own. */
#include "bucket.h"

#include <string.h>

enum { BY_UPDATE = 1, BY_OTHERS = 2 }; /* who reads a value */

typedef struct Bucketing {
    Arena *tmp;
    const PassOptions *o;
    int64_t most; /* bytes of a bucket; 0: units make them */
} Bucketing;

/* The kinds of a graph's values, by value id. */
typedef struct BucketRoles {
    bool *param; /* made of parameters alone */
    int *by;
} BucketRoles;

/* ---- roles ---- */

/* Whether n's result is made of parameters, and constants. */
static bool made_of_parameters(const Node *n, const bool *param)
{
    bool may = n->op->class == CLASS_MOVEMENT || n->op->class == CLASS_POINTWISE || n->op->copy ||
               node_is(n, OP_all_gather_into_tensor),
         any = false;
    for (int i = 0; i < n->nin && may; i++) {
        const Node *def = n->in[i]->def;
        may = param[n->in[i]->id] || (def && def->op->class == CLASS_CREATION);
        any |= param[n->in[i]->id];
    }
    return may && any;
}

/* Whether n's result is a gradient of a parameter if an operand is one. */
static bool hands_on(const Node *n)
{
    return node_aliases(n) || n->op->class == CLASS_COLLECTIVE || n->op->class == CLASS_POINTWISE ||
           n->op->copy;
}

static void read_by_node(int *by, const Node *n)
{
    int reads = n->phase > BACKWARD ? BY_UPDATE : BY_OTHERS;
    for (int k = 0; k < n->nout && n->phase == BACKWARD && hands_on(n); k++)
        reads = k ? reads | by[n->out[k]->id] : by[n->out[k]->id];
    for (int i = 0; i < n->nin; i++)
        by[n->in[i]->id] |= reads;
}

/* The reader of a result of the whole graph. In a backward alone gradients have no role. */
static int leaves_as(const Port *p)
{
    bool gradient =
        p->role == ROLE_GRAD || (p->role == ROLE_NONE && p->v->def && p->v->def->phase == BACKWARD);
    return gradient ? BY_UPDATE : BY_OTHERS;
}

/* by: by output of a body, what reads it around the loop; NULL: of the whole graph. param: of
 * inputs, the same. */
static BucketRoles find_roles(const Graph *g, Arena *tmp, const int *by, const bool *param)
{
    BucketRoles r = {NEWN(tmp, bool, g->nvalue), NEWN(tmp, int, g->nvalue)};
    for (int i = 0; i < g->nin; i++)
        r.param[g->in[i].v->id] = param ? param[i] : g->in[i].role == ROLE_PARAM;
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            r.param[n->out[k]->id] = made_of_parameters(n, r.param);
    for (int i = 0; i < g->nout; i++)
        r.by[g->out[i].v->id] |= by ? by[i] : leaves_as(&g->out[i]);
    for (const Node *n = g->last; n; n = n->prev)
        read_by_node(r.by, n);
    return r;
}

static int *body_readers(Arena *tmp, const BucketRoles *r, const Node *n, int b)
{
    int *by = NEWN(tmp, int, n->region->body[b]->nout);
    for (int k = 0; k < n->region->nout; k++)
        if (n->region->out[k].at[b] >= 0)
            by[n->region->out[k].at[b]] |= r->by[n->out[k]->id];
    return by;
}

static bool *body_parameters(Arena *tmp, const BucketRoles *r, const Node *n, int b)
{
    bool *param = NEWN(tmp, bool, n->region->body[b]->nin);
    for (int j = 0; j < n->region->nin; j++) {
        const PortIn *p = &n->region->in[j];
        if (p->at[b] >= 0 && (p->kind == PORT_WHOLE || p->kind == PORT_TAIL))
            param[p->at[b]] = r->param[n->in[p->arg]->id];
    }
    return param;
}

/* ---- units ---- */

/* By scope outside of blocks: whether the forward runs it before any block. */
typedef struct Units {
    Arena *tmp;
    Map before; /* scope -> bool */
} Units;

static Units find_units(const Graph *g, Arena *tmp, const bool *param)
{
    Units u = {tmp, {.a = tmp}};
    bool blocks = false, *yes = NEW(tmp, bool), *no = NEW(tmp, bool);
    *yes = true;
    for (const Node *n = g->first; n; n = n->next) {
        if (n->phase >= BACKWARD || !n->nin || param[n->out[0]->id])
            continue; /* what is made of parameters may stand anywhere before */
        if (block_of(n->scope).len)
            blocks = true;
        else if (!map_find(&u.before, n->scope))
            map_put(&u.before, n->scope, blocks ? no : yes);
    }
    return u;
}

static const char *unit_of(const Units *u, const Node *n)
{
    Block b = block_of(n->scope);
    const bool *before = map_find(&u->before, n->scope);
    if (b.len)
        return arena_strndup(u->tmp, n->scope, (size_t)b.len);
    return before ? *before ? "<" : ">" : n->scope;
}

/* ---- candidates ---- */

static const char *text_attr(const Node *n, const char *name)
{
    int i = attr_index(n->op, name);
    return i < 0 ? "" : n->attr[i].s;
}

/* How many calls like n are on the way to its operand. */
static int level_of(const Node *n)
{
    int level = 0;
    for (const Node *m = n->in[0]->def; m && m->nin && (hands_on(m) || m->op->view);) {
        level += m->op == n->op && !strcmp(text_attr(m, "group"), text_attr(n, "group"));
        m = (op_starts(m->op) ? started_from(m->out[0]) : m->in[0])->def;
    }
    return level;
}

static bool may_join(const Node *n, const BucketRoles *r)
{
    if (n->op->class != CLASS_COLLECTIVE || n->nin != 1 || n->nafter || n->policy == OFFLOAD)
        return false;
    switch (node_collective(n)) {
    case ALL_GATHER: return r->param[n->in[0]->id];
    case REDUCE_SCATTER:
    case ALL_REDUCE: return n->phase == BACKWARD && r->by[n->out[0]->id] == BY_UPDATE;
    default: return false;
    }
}

static int64_t sent_bytes(const Node *n)
{
    return MAX(type_nbytes(&n->in[0]->type), type_nbytes(&n->out[0]->type));
}

/* Calls of a unit with equal keys may be joined. */
static const char *key_of(const Bucketing *x, const Node *n)
{
    Phase direction = n->phase < BACKWARD ? FORWARD : n->phase;
    return arena_printf(x->tmp, "%s %s %s %d %d %d %d %d", n->op->name, text_attr(n, "group"),
                        text_attr(n, "reduce_op"), (int)n->in[0]->type.dtype, (int)direction,
                        n->origin != NULL, (int)n->policy, level_of(n));
}

/* The calls of a graph that may be joined, with their keys and units. */
typedef struct Candidates {
    Node **node;
    const char **key, **unit;
    int *barriers; /* how many stand before it: no call moves across one */
    int count;
} Candidates;

static bool has_blocks(const Graph *g)
{
    bool has = false;
    for (const Node *n = g->first; n && !has; n = n->next)
        has = block_of(n->scope).len > 0;
    return has;
}

static const char **units_of(const Bucketing *x, const Graph *g, const Candidates *c,
                             const bool *param)
{
    const char **what = NEWN(x->tmp, const char *, c->count + 1);
    if (!has_blocks(g)) {
        for (int i = 0; i < c->count; i++)
            what[i] = arena_printf(x->tmp, "%s %s", c->key[i],
                                   type_text(x->tmp, &c->node[i]->in[0]->type));
        return repeated_units(x->tmp, c->count, what);
    }
    Units u = find_units(g, x->tmp, param);
    for (int i = 0; i < c->count; i++)
        what[i] = unit_of(&u, c->node[i]);
    return what;
}

static Candidates find_candidates(const Bucketing *x, const Graph *g, const BucketRoles *r)
{
    Candidates c = {.node = NEWN(x->tmp, Node *, g->nnode + 1),
                    .key = NEWN(x->tmp, const char *, g->nnode + 1),
                    .barriers = NEWN(x->tmp, int, g->nnode + 1)};
    int barriers = 0;
    for (Node *n = g->first; n; n = n->next) {
        barriers += node_is_barrier(n);
        if (!may_join(n, r))
            continue;
        c.barriers[c.count] = barriers;
        c.node[c.count] = n;
        c.key[c.count++] = key_of(x, n);
    }
    c.unit = units_of(x, g, &c, r->param);
    return c;
}

/* Whether the machine says that one call of these takes less. */
static bool is_cheaper(const Bucketing *x, const Graph *g, const Bucket *b)
{
    const Node *n = b->node[0];
    double apart = 0;
    for (int i = 0; i < b->count; i++)
        apart += node_sec(x->o->prices, graph_mesh(g), b->node[i]);
    return collective_sec(x->o->prices, node_collective(n),
                          node_group(x->o->prices, graph_mesh(g), n), (double)b->nbytes) < apart;
}

static void add_member(const Bucketing *x, Bucket *b, Node *n)
{
    PUSH(x->tmp, b->node, b->count, b->cap, n);
    b->nbytes += sent_bytes(n);
}

/* The buckets of a graph, those of one call among them. */
static Buckets find_buckets(const Bucketing *x, const Graph *g, const BucketRoles *r)
{
    Buckets list = {.tmp = x->tmp};
    Candidates c = find_candidates(x, g, r);
    Map open = {.a = x->tmp}; /* key -> Bucket */
    for (int i = 0; i < c.count; i++) {
        const char *unit = x->most ? "" : c.unit[i];
        const char *key = arena_printf(x->tmp, "%s %s %d", c.key[i], unit, c.barriers[i]);
        Bucket *b = map_find(&open, key);
        if (!b || b->count == TN_MAX_OUT ||
            (x->most && b->nbytes + sent_bytes(c.node[i]) > x->most)) {
            b = NEW(x->tmp, Bucket);
            PUSH(x->tmp, list.at, list.count, list.cap, b);
            map_put(&open, key, b);
        }
        add_member(x, b, c.node[i]);
    }
    for (int i = 0; i < list.count; i++)
        list.at[i]->left = list.at[i]->count < 2 || !is_cheaper(x, g, list.at[i]);
    return list;
}

/* ---- a graph and the bodies in it ---- */

static int bucket_graph(const Bucketing *x, Graph *g, const int *by, const bool *param)
{
    BucketRoles r = find_roles(g, x->tmp, by, param);
    int changes = 0;
    for (const Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            changes += bucket_graph(x, n->region->body[b], body_readers(x->tmp, &r, n, b),
                                    body_parameters(x->tmp, &r, n, b));
    Buckets list = find_buckets(x, g, &r);
    return changes + buckets_emit(&list, g, r.param);
}

int64_t bucket_bytes(Ctx *ctx, const char *text)
{
    if (!text || !strcmp(text, "block") || !strcmp(text, "auto"))
        return BUCKET_BLOCK;
    if (!strcmp(text, "off"))
        return BUCKET_OFF;
    int64_t nbytes = parse_bytes(text);
    if (nbytes <= 0)
        fail(ctx, TN_USAGE,
             "bucket: expected auto, off, block or a number of bytes above 0, found \"%.100s\"",
             text);
    return nbytes;
}

int pass_bucket(Graph *g, Arena *tmp, const PassOptions *o)
{
    int64_t most = bucket_bytes(g->ctx, o->bucket);
    Bucketing x = {.tmp = tmp, .o = o, .most = most};
    return most == BUCKET_OFF || !g->mesh ? 0 : bucket_graph(&x, g, NULL, NULL);
}
