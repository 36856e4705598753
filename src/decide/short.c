/* Makes a short step: of a row of equal blocks, such as the layers of a model, the first two and
 * the last two stay.
 *
 * Blocks are equal whose nodes, in the order of the graph, have equal ops, attributes, types and
 * operands within the block. A node that stays and reads a value of a block that goes reads the
 * same value of the nearest block that stays: in the forward's direction for values of the
 * forward, in the backward's for those of the backward. Updates of parameters of blocks that go,
 * go too; a sum over all gradients has fewer operands. Where an output other than a parameter's
 * would go, there is no short step. */
#include "short.h"

#include <string.h>

enum { LEAST_EQUAL = 3 * SHORT_KEPT };

/* The blocks of a graph, numbered in the order of their first nodes. */
typedef struct BlockRow {
    const Graph *g;
    Arena *tmp;
    int *of, *at; /* by node id: its block, NO_BLOCK; its place there */
    Node ***node; /* by block and place */
    int *n, *cap, count;
    int first, last; /* the equal ones */
} BlockRow;

static int number_of(BlockRow *x, Map *number, const char *scope)
{
    const Block b = block_of(scope);
    if (!b.len)
        return NO_BLOCK;
    const char *name = arena_strndup(x->tmp, b.scope, (size_t)b.len);
    intptr_t k = (intptr_t)map_find(number, name);
    if (!k)
        map_put(number, name, (void *)(k = ++x->count));
    return (int)k - 1;
}

static BlockRow find_row(const Graph *g, Arena *tmp)
{
    BlockRow x = {g, tmp, NEWN(tmp, int, g->nnode), NEWN(tmp, int, g->nnode), NULL, NULL, NULL, 0,
                  0, 0};
    Map number = {.a = tmp};
    const char *scope = NULL;
    int last = NO_BLOCK;
    for (const Node *n = g->first; n; n = n->next) {
        if (n->scope != scope)
            last = number_of(&x, &number, n->scope);
        scope = n->scope;
        x.of[n->id] = last;
    }
    x.node = NEWN(tmp, Node **, x.count);
    x.n = NEWN(tmp, int, x.count);
    x.cap = NEWN(tmp, int, x.count);
    for (Node *n = g->first; n; n = n->next) {
        const int b = x.of[n->id];
        if (b == NO_BLOCK)
            continue;
        x.at[n->id] = x.n[b];
        PUSH(tmp, x.node[b], x.n[b], x.cap[b], n);
    }
    return x;
}

static bool is_within(const BlockRow *x, const Value *v, int block)
{
    return v->def && x->of[v->def->id] == block;
}

static bool operands_equal(const BlockRow *x, const Node *n, const Node *m)
{
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i], *w = m->in[i];
        const bool inner = is_within(x, v, x->of[n->id]);
        if (inner != is_within(x, w, x->of[m->id]) || !type_equal(&v->type, &w->type) ||
            (inner && (x->at[v->def->id] != x->at[w->def->id] || v->index != w->index)))
            return false;
    }
    return true;
}

static bool nodes_equal(const BlockRow *x, const Node *n, const Node *m)
{
    Node like = *m;
    like.stream = n->stream;
    if (n->op != m->op || n->phase != m->phase || n->policy != m->policy || n->region ||
        m->region || n->nin != m->nin || n->nout != m->nout || !attrs_equal(n, &like))
        return false;
    for (int k = 0; k < n->nout; k++)
        if (!type_equal(&n->out[k]->type, &m->out[k]->type))
            return false;
    return operands_equal(x, n, m);
}

static bool blocks_equal(const BlockRow *x, int b, int c)
{
    for (int i = 0; x->n[b] == x->n[c] && i < x->n[b]; i++)
        if (!nodes_equal(x, x->node[b][i], x->node[c][i]))
            return false;
    return x->n[b] == x->n[c];
}

/* Finds the longest row of equal blocks; whether it is long enough. */
static bool find_equal(BlockRow *x)
{
    int first = 0;
    for (int b = 1; b <= x->count; b++) {
        if (b < x->count && blocks_equal(x, b - 1, b))
            continue;
        if (b - 1 - first > x->last - x->first) {
            x->first = first;
            x->last = b - 1;
        }
        first = b;
    }
    return x->last - x->first + 1 >= LEAST_EQUAL;
}

/* ---- what goes ---- */

typedef struct Making {
    const BlockRow *x;
    Short *s;
    Graph *to;
    bool *gone;    /* by node id */
    Value **value; /* by value id: in the short step */
    Node **node;   /* by node id */
    const Machine *m;
} Making;

static int low_of(const BlockRow *x)
{
    return x->first + SHORT_KEPT / 2 - 1;
}

static int high_of(const BlockRow *x)
{
    return x->last - SHORT_KEPT / 2 + 1;
}

static bool block_goes(const BlockRow *x, int b)
{
    return b > low_of(x) && b < high_of(x);
}

/* The value in whose place v stands for who stays; NULL: it is gone. */
static const Value *stand_in(const Making *k, const Value *v)
{
    const BlockRow *x = k->x;
    const Node *n = v->def;
    if (!n || !k->gone[n->id])
        return v;
    if (x->of[n->id] == NO_BLOCK)
        return NULL;
    const int b = n->phase < BACKWARD ? low_of(x) : high_of(x);
    return x->node[b][x->at[n->id]]->out[v->index];
}

/* Whether n may have any number of operands that are alike. */
static bool takes_any(const Node *n)
{
    return n->op->nin_most < 0 && n->op->nin_least <= 1;
}

/* Fills the values that n reads in the short step; returns how many, -1: it goes. */
static int find_operands(const Making *k, const Node *n, Value **in)
{
    const bool drops = n->phase == OPTIMIZER;
    int count = 0;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        const bool gone = v->def && k->gone[v->def->id];
        const Value *w = gone && drops ? NULL : stand_in(k, v);
        if (w)
            in[count++] = k->value[w->id];
        else if (!takes_any(n))
            return -1;
    }
    return count ? count : n->nin ? -1 : 0;
}

static void copy_node(Making *k, Node *n, Value **in, int count)
{
    Build b = build_like(k->to, NULL, n);
    const char **name = NEWN(k->to->a, const char *, n->nout);
    b.origin = n->origin;
    b.policy = n->policy;
    for (int i = 0; i < n->nout; i++)
        name[i] = n->out[i]->name;
    Node *m =
        emit_named(&b, n->op, count, in, n->attr, n->region ? region_clone(k->to, n->region) : NULL,
                   n->stream, name, n->nout);
    for (int i = 0; i < n->nout; i++)
        k->value[n->out[i]->id] = m->out[i];
    m->after = NEWN(k->to->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        if (k->node[n->after[i]->id])
            m->after[m->nafter++] = k->node[n->after[i]->id];
    k->node[n->id] = m;
}

static void copy_nodes(Making *k)
{
    const Graph *g = k->x->g;
    Value **in = NULL;
    int most = 0;
    for (const Node *n = g->first; n; n = n->next)
        most = MAX(most, n->nin);
    in = NEWN(k->x->tmp, Value *, most + 1);
    for (Node *n = g->first; n; n = n->next) {
        const int b = k->x->of[n->id];
        const int count = b != NO_BLOCK && block_goes(k->x, b) ? -1 : find_operands(k, n, in);
        k->gone[n->id] = count < 0;
        if (count >= 0)
            copy_node(k, n, in, count);
        if (n->phase == OPTIMIZER && count < n->nin)
            k->s->sec += node_sec(k->m, graph_mesh(g), n);
        if (n->phase == OPTIMIZER && 0 <= count && count < n->nin)
            k->s->sec -= node_sec(k->m, graph_mesh(g), k->node[n->id]);
    }
}

/* ---- inputs and outputs ---- */

/* By value id: nodes read it, and all of those go. Filled before nodes are copied, from the blocks
 * and from what only they hand to updates. */
static bool *find_unread(const BlockRow *x)
{
    const Graph *g = x->g;
    bool *kept = NEWN(x->tmp, bool, g->nvalue), *read = NEWN(x->tmp, bool, g->nvalue);
    bool *gone = NEWN(x->tmp, bool, g->nnode);
    for (const Node *n = g->first; n; n = n->next) {
        const int b = x->of[n->id];
        bool goes = b != NO_BLOCK && block_goes(x, b);
        for (int i = 0; i < n->nin && n->phase == OPTIMIZER && !takes_any(n); i++)
            goes |= n->in[i]->def && gone[n->in[i]->def->id];
        gone[n->id] = goes;
        for (int i = 0; i < n->nin; i++) {
            read[n->in[i]->id] = true;
            kept[n->in[i]->id] |= !goes;
        }
    }
    for (int i = 0; i < g->nvalue; i++)
        read[i] = read[i] && !kept[i];
    return read;
}

static void copy_inputs(Making *k)
{
    const Graph *g = k->x->g;
    const bool *unread = find_unread(k->x);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (unread[p->v->id]) {
            k->s->nbytes += role_kept(p->role) ? flow_round(type_nbytes(&p->v->type)) : 0;
            continue;
        }
        k->value[p->v->id] = graph_input_like(k->to, p, NULL);
        k->to->in[k->to->nin - 1].cut = p->cut;
    }
}

static void copy_outputs(Making *k)
{
    const Graph *g = k->x->g;
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        Value *v = k->value[p->v->id];
        if (!v && p->role != ROLE_NEW && p->role != ROLE_GRAD)
            fail(g->ctx, TN_FAIL, "output %%%s belongs to one block", p->v->name);
        if (!v)
            continue;
        graph_output(k->to, v, p->role, p->name);
        k->to->out[k->to->nout - 1].cut = p->cut;
    }
}

static int kept_block(const BlockRow *x, int i)
{
    return i < SHORT_KEPT / 2 ? x->first + i : x->last - (SHORT_KEPT - 1 - i);
}

static void fill_twins(const BlockRow *x, Arena *a, Short *s)
{
    s->node = (Map){.a = a};
    for (int b = x->first; b <= x->last; b++)
        for (int i = 0; i < x->n[b]; i++) {
            const Node *n = x->node[b][i];
            if (n->phase >= BACKWARD || !n->nout)
                continue;
            Twin *t = NEW(a, Twin);
            t->block = b - x->first;
            for (int k = 0; k < SHORT_KEPT; k++)
                t->name[k] = x->node[kept_block(x, k)][i]->out[0]->name;
            map_put(&s->node, n->out[0]->name, t);
        }
}

static void fill_weights(const BlockRow *x, Short *s)
{
    s->nequal = x->last - x->first + 1;
    for (int i = 0; i < SHORT_KEPT; i++) {
        const Block b = block_of(x->node[kept_block(x, i)][0]->scope);
        s->scope[i] = b.scope;
        s->len[i] = b.len;
        s->weight[i] = 1;
    }
    const int rest = s->nequal - SHORT_KEPT;
    s->weight[SHORT_KEPT / 2 - 1] += rest / 2;
    s->weight[SHORT_KEPT / 2] += rest - rest / 2;
}

static void make(void *arg)
{
    Making *k = arg;
    copy_inputs(k);
    copy_nodes(k);
    copy_outputs(k);
}

static bool make_of(Arena *a, const BlockRow *x, const Machine *m, Short *s)
{
    const Graph *g = x->g;
    s->g = graph_new(a, g->name);
    s->g->mesh = g->mesh;
    s->g->file = g->file;
    Making k = {x,
                s,
                s->g,
                NEWN(x->tmp, bool, g->nnode),
                NEWN(x->tmp, Value *, g->nvalue),
                NEWN(x->tmp, Node *, g->nnode),
                m};
    if (ctx_try(g->ctx, make, &k))
        return false;
    fill_twins(x, a, s);
    fill_weights(x, s);
    return true;
}

bool short_make(Arena *a, const Graph *g, const Machine *m, Short *s)
{
    Arena *tmp = arena_tmp(a);
    BlockRow x = find_row(g, tmp);
    *s = (Short){0};
    bool made = find_equal(&x) && make_of(a, &x, m, s);
    arena_reset(tmp);
    return made;
}
