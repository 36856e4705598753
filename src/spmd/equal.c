/* equal: finds which nodes, values and ports of a graph are to be cut alike: those of equal blocks.
 *
 * Nodes are equal if their scopes are but for numbers ("layers.3.mlp", "layers.4.mlp"), and phase,
 * op, attributes and types; several such of one scope are told apart by their order. Parameters are
 * if their names are but for numbers, and types; state, gradients and new values go with their
 * parameter. Whoever ties what is equal so loses no legality, as a cut depends on op and types
 * alone; blocks that differ at their borders are tied too. Linear in nodes and operands. */
#include "solved.h"

#include "../pass/block.h"

#include <limits.h>
#include <string.h>

enum { ALL_NUMBERS = INT_MAX };

/* The names of those that gather a parameter; see gatherer(). */
typedef struct Gatherers {
    const char **name;
    int count, cap;
} Gatherers;

typedef struct Tying {
    EqualGraph *e;
    Arena *tmp;
    const PinList *pins;
    Map classes;   /* key -> 1 + class */
    Map ordinals;  /* of place_key() */
    Map groups;    /* key -> 1 + group */
    Map params;    /* of inputs, by name */
    Reading *read; /* by value, from first[id] on */
    const char **block;
    int *first;
    Gatherers *of_view; /* by node id, of a view of a parameter: who reads it, through more views */
} Tying;

static int find_number(const Map *m, const char *key)
{
    return (int)(intptr_t)map_find(m, key);
}

static void put_number(Map *m, const char *key, int number)
{
    map_put(m, key, (void *)(intptr_t)number);
}

/* ---- classes ---- */

static int class_new(EqualGraph *e, EqualClass q)
{
    q.times = 1;
    PUSH(e->a, e->class, e->nclass, e->capclass, q);
    return e->nclass - 1;
}

static int value_new(EqualGraph *e, int of, int result, Type t)
{
    ValueClass v = {.of = of, .result = result, .type = t};
    PUSH(e->a, e->value, e->nvalue, e->capvalue, v);
    return e->nvalue - 1;
}

/* The text that equal nodes have in common. Scopes are no part of it, nor streams, as each node
 * that draws has its own. */
static void print_node(Buf *b, const Node *n)
{
    Node any = *n;
    any.stream = 0;
    buf_printf(b, "|%d|%s|%llx", (int)n->phase, n->op->name, (unsigned long long)attrs_hash(&any));
    for (int i = 0; i < n->nin; i++) {
        buf_printf(b, i ? "," : "|");
        type_print(b, &n->in[i]->type);
    }
    for (int k = 0; k < n->nout; k++) {
        buf_printf(b, k ? "," : "|");
        type_print(b, &n->out[k]->type);
    }
}

/* The name by which a node's block is known: its scope; of an update, which has none, its
 * parameter. */
static const char *place_of(const Tying *y, const Node *n)
{
    const Value *v = n->op->class == CLASS_OPTIMIZER && n->nin ? n->in[0] : NULL;
    const Port *p = v && !v->def ? &y->e->g->in[v->index] : NULL;
    return p && p->role == ROLE_PARAM ? p->name : n->scope;
}

/* The loop of a node, and for what it stands: where it is the node itself, outside, nothing. */
static void print_flat(Buf *b, FlatNode f)
{
    if (f.kind != FLAT_NODE || f.loop)
        buf_printf(b, "|%d %s", (int)f.kind, f.loop ? f.loop->out[0]->name : "");
}

static const char *node_key_of(Tying *y, const Node *n)
{
    Buf what = {.a = y->tmp};
    print_node(&what, n);
    print_flat(&what, flat_node(y->e->flat, n));
    const char *key = place_key(y->tmp, &y->ordinals, place_of(y, n), ALL_NUMBERS, what.text);
    const Pin *pin = pin_of(y->pins, n);
    return pin ? arena_printf(y->tmp, "%s|%s %s", key, pin->option, pin->text) : key;
}

static void tie_node(Tying *y, const Node *n)
{
    EqualGraph *e = y->e;
    const char *key = node_key_of(y, n);
    int at = find_number(&y->classes, key) - 1;
    if (at < 0) {
        at = class_new(e,
                       (EqualClass){.n = n, .f = node_factors(e->a, n), .pin = pin_of(y->pins, n)});
        FlatNode flat = flat_node(e->flat, n);
        e->class[at].skipped = node_is(n, OP_norm_of);
        e->class[at].kind = flat.kind;
        e->class[at].loop = flat.loop;
        e->class[at].times = flat.loop ? flat.loop->region->n : 1;
        put_number(&y->classes, key, at + 1);
        for (int k = 0; k < n->nout; k++)
            value_new(e, at, k, n->out[k]->type);
    }
    e->class[at].count++;
    e->of_node[n->id] = at;
    int first = 0;
    while (e->value[first].of != at)
        first++;
    for (int k = 0; k < n->nout; k++)
        e->of_value[n->out[k]->id] = first + k;
}

/* ---- ports ---- */

/* The input whose form a port has: its own, or that of a parameter with its name, or its name but
 * for the end. NULL: none. */
static const Port *owner_of(const Tying *y, const Port *p)
{
    const Graph *g = y->e->g;
    if (p->role == ROLE_PARAM)
        return p;
    if (p->role != ROLE_STATE && p->role != ROLE_GRAD && p->role != ROLE_NEW)
        return NULL;
    const Value *v = map_find(&y->params, p->name);
    const char *period = strrchr(p->name, '.');
    if (!v && period)
        v = map_find(&y->params, arena_strndup(y->tmp, p->name, (size_t)(period - p->name)));
    return v && shape_equal(&v->type, &p->v->type) ? &g->in[v->index] : NULL;
}

static const char *port_key(Tying *y, const Port *p, const Mesh *m, const Sharding *s)
{
    Buf key = {.a = y->tmp};
    buf_printf(&key, "param %s|", scope_alike(y->tmp, p->name, ALL_NUMBERS));
    type_print(&key, &p->v->type);
    if (s->ruled)
        buf_printf(&key, "|%s", cuts_text(y->tmp, m, s->cut));
    return key.text;
}

/* The class of a parameter, which p's port may be or go with. */
static int param_class(Tying *y, const Port *p, const Mesh *m, const Sharding *s)
{
    EqualGraph *e = y->e;
    const char *key = port_key(y, p, m, s);
    int at = find_number(&y->classes, key) - 1;
    if (at < 0) {
        at = class_new(e, (EqualClass){.name = p->name,
                                       .type = p->v->type,
                                       .fixed = s->ruled ? s->cut : NULL,
                                       .least_units = s->least_units});
        put_number(&y->classes, key, at + 1);
    }
    return at;
}

static int fixed_class(EqualGraph *e, const Port *p, const Sharding *s)
{
    int at = class_new(e, (EqualClass){.name = p->v->name, .type = p->v->type, .fixed = s->cut});
    e->class[at].count = 1;
    return at;
}

/* A value class for the inputs of one kind that go with a class of parameters. */
static int input_value(Tying *y, int at, const Port *p)
{
    Buf key = {.a = y->tmp};
    const char *end = strrchr(p->name ? p->name : "", '.');
    buf_printf(&key, "value %d|%d|%s", at, (int)p->role, p->role == ROLE_STATE && end ? end : "");
    int v = find_number(&y->classes, key.text) - 1;
    if (v < 0) {
        v = value_new(y->e, at, 0, p->v->type);
        put_number(&y->classes, key.text, v + 1);
    }
    return v;
}

static void tie_inputs(Tying *y, const Mesh *m, const Sharding *in)
{
    EqualGraph *e = y->e;
    for (int i = 0; i < e->g->nin; i++) {
        const Port *p = &e->g->in[i], *q = owner_of(y, p);
        int at = q ? param_class(y, q, m, &in[q->v->index]) : fixed_class(e, p, &in[i]);
        e->class[at].count += q == p;
        e->of_in[i] = at;
        e->of_value[p->v->id] = q ? input_value(y, at, p) : value_new(e, at, 0, p->v->type);
        y->e->param[p->v->id] = q == p;
    }
}

static void tie_outputs(Tying *y, const Mesh *m, const Sharding *in, const Sharding *out)
{
    EqualGraph *e = y->e;
    for (int i = 0; i < e->g->nout; i++) {
        const Port *p = &e->g->out[i], *q = owner_of(y, p);
        e->of_out[i] = q ? param_class(y, q, m, &in[q->v->index]) : fixed_class(e, p, &out[i]);
    }
}

/* ---- readings ---- */

/* The name of those that gather a parameter once together: a block, or its forward, or the rest of
 * it, in that loop; n NULL: an output. */
static const char *gatherer(const EqualGraph *e, Arena *a, const Node *n, const Node *loop)
{
    Block b = block_of(n ? n->scope : "");
    const char *again = e->how.twice && n && n->phase >= BACKWARD ? "|again" : "";
    const char *in = loop ? arena_printf(a, "%s|in %s", again, loop->out[0]->name) : again;
    return b.len ? arena_printf(a, "%.*s%s", b.len, b.scope, in)
                 : arena_printf(a, "%s%s", n ? n->scope : "", in);
}

static bool is_read(const EqualGraph *e, const Node *n)
{
    return !e->class[e->of_node[n->id]].skipped;
}

/* Whether each reader makes what n makes again, of what it gathers of a parameter. */
static bool is_param_view(const EqualGraph *e, const Node *n)
{
    return n->op->view && e->param[n->out[0]->id];
}

static void add_gatherer(const Tying *y, Gatherers *of, const char *name)
{
    for (int i = 0; i < of->count; i++)
        if (!strcmp(of->name[i], name))
            return;
    PUSH(y->tmp, of->name, of->count, of->cap, name);
}

/* Those who gather what n reads of a parameter: n, or the readers of a view; n NULL: an output.
 * What is kept is gathered once. */
static Gatherers gatherers_of(const Tying *y, const Node *n)
{
    const EqualGraph *e = y->e;
    if (n && !e->how.keep && y->of_view[n->id].count)
        return y->of_view[n->id];
    Gatherers own = {0};
    add_gatherer(y, &own, gatherer(e, y->tmp, n, n ? flat_node(e->flat, n).loop : NULL));
    return own;
}

static void tell_view(Tying *y, const Value *v, const Gatherers *who)
{
    if (v->def && is_param_view(y->e, v->def))
        for (int i = 0; i < who->count; i++)
            add_gatherer(y, &y->of_view[v->def->id], who->name[i]);
}

static void find_gatherers(Tying *y)
{
    const Graph *g = y->e->g;
    y->of_view = NEWN(y->tmp, Gatherers, g->nnode);
    const Gatherers outputs = gatherers_of(y, NULL);
    for (int i = 0; i < g->nout; i++)
        tell_view(y, g->out[i].v, &outputs);
    for (const Node *n = g->last; n; n = n->prev) {
        const Gatherers who = gatherers_of(y, n);
        for (int i = 0; i < n->nin && is_read(y->e, n); i++)
            tell_view(y, n->in[i], &who);
    }
}

/* n NULL: an output reads v. fill: NULL: readings are counted alone. */
static void add_reading(Tying *y, const Value *v, int *fill, Reading r, const Node *n)
{
    const Gatherers who = y->e->param[v->id] ? gatherers_of(y, n) : (Gatherers){.count = 1};
    for (int i = 0; i < who.count; i++) {
        if (!fill) {
            y->first[v->id + 1]++;
            continue;
        }
        int at = y->first[v->id] + fill[v->id]++;
        y->read[at] = r;
        y->block[at] = who.name ? who.name[i] : "";
    }
}

static void add_readings(Tying *y, int *fill)
{
    const EqualGraph *e = y->e;
    for (const Node *n = e->g->first; n; n = n->next)
        for (int i = 0; i < n->nin && is_read(e, n); i++)
            add_reading(y, n->in[i], fill, (Reading){e->of_node[n->id], i}, n);
    for (int i = 0; i < e->g->nout; i++)
        add_reading(y, e->g->out[i].v, fill, (Reading){e->of_out[i], -1}, NULL);
}

/* Where a view of a parameter reads it, each gatherer of the view does. */
static void find_readings(Tying *y)
{
    const Graph *g = y->e->g;
    find_gatherers(y);
    y->first = NEWN(y->tmp, int, g->nvalue + 1);
    add_readings(y, NULL);
    for (int v = 0; v < g->nvalue; v++)
        y->first[v + 1] += y->first[v];
    y->read = NEWN(y->tmp, Reading, y->first[g->nvalue]);
    y->block = NEWN(y->tmp, const char *, y->first[g->nvalue]);
    add_readings(y, NEWN(y->tmp, int, g->nvalue));
}

static const char *readers_name(Arena *a, const char *value, const char *block, bool param)
{
    return param ? arena_printf(a, "%s|%s", value, block) : arena_strdup(a, value);
}

int equal_group(const EqualGraph *e, Arena *tmp, const char *value, const Node *reader,
                const Node *loop, bool param)
{
    bool some = param && !e->how.keep;
    const char *block = some ? gatherer(e, tmp, reader, loop) : "";
    return find_number(&e->by_name, readers_name(tmp, value, block, some)) - 1;
}

/* Adds a group of those readings of v from `from` on that belong to its block; all if v is no
 * parameter. They are marked as done. */
static void add_group(Tying *y, const Value *v, int from)
{
    EqualGraph *e = y->e;
    Buf key = {.a = y->tmp};
    const char *block = y->block[from];
    int end = y->first[v->id + 1];
    ReadGroup r = {.value = e->of_value[v->id],
                   .count = 1,
                   .shared = -1,
                   .param = y->e->param[v->id],
                   .read = NEWN(e->a, Reading, end - from)};
    buf_printf(&key, "%d", r.value);
    for (int k = from; k < end; k++) {
        if (y->read[k].reader < 0 ||
            (y->e->param[v->id] && !y->e->how.keep && strcmp(y->block[k], block)))
            continue;
        buf_printf(&key, "|%d,%d", y->read[k].reader, y->read[k].operand);
        r.read[r.nread++] = y->read[k];
        y->read[k].reader = -1;
    }
    int at = find_number(&y->groups, key.text) - 1;
    if (!r.param)
        e->of_group[v->id] = at >= 0 ? at : e->ngroup;
    put_number(&e->by_name,
               readers_name(e->a, flat_value(e->flat, v), block, r.param && !y->e->how.keep),
               1 + (at >= 0 ? at : e->ngroup));
    if (at >= 0) {
        e->group[at].count++;
        return;
    }
    PUSH(e->a, e->group, e->ngroup, e->capgroup, r);
    put_number(&y->groups, key.text, e->ngroup);
}

static void find_groups(Tying *y)
{
    const Graph *g = y->e->g;
    find_readings(y);
    for (int i = 0; i < g->nin; i++)
        for (int k = y->first[g->in[i].v->id]; k < y->first[g->in[i].v->id + 1]; k++)
            if (y->read[k].reader >= 0)
                add_group(y, g->in[i].v, k);
    for (const Node *n = g->first; n; n = n->next)
        for (int j = 0; j < n->nout; j++)
            for (int k = y->first[n->out[j]->id]; k < y->first[n->out[j]->id + 1]; k++)
                if (y->read[k].reader >= 0)
                    add_group(y, n->out[j], k);
}

EqualGraph *equal_find(const FlatGraph *flat, Arena *a, const Mesh *m, const Sharding *in,
                       const Sharding *out, const PinList *pins, GatherHow how)
{
    const Graph *g = flat->g;
    Arena *tmp = arena_new(g->ctx);
    CHECK(tmp);
    EqualGraph *e = NEW(a, EqualGraph);
    *e = (EqualGraph){.a = a,
                      .how = how,
                      .flat = flat,
                      .g = g,
                      .of_node = NEWN(a, int, g->nnode),
                      .of_value = NEWN(a, int, g->nvalue),
                      .of_in = NEWN(a, int, g->nin),
                      .of_out = NEWN(a, int, g->nout),
                      .param = NEWN(a, bool, g->nvalue),
                      .of_group = NEWN(a, int, g->nvalue),
                      .by_name = {.a = a}};
    Tying y = {.e = e,
               .tmp = tmp,
               .pins = pins,
               .classes = {.a = tmp},
               .ordinals = {.a = tmp},
               .groups = {.a = tmp},
               .params = graph_named(g->in, g->nin, ROLE_PARAM, tmp)};
    memset(e->of_group, -1, sizeof *e->of_group * (size_t)g->nvalue);
    tie_inputs(&y, m, in);
    for (const Node *n = g->first; n; n = n->next) {
        tie_node(&y, n);
        bool through = n->nin && (n->op->view || n->op->identity || n->op->copy);
        for (int k = 0; k < n->nout; k++)
            e->param[n->out[k]->id] = through && e->param[n->in[0]->id];
    }
    tie_outputs(&y, m, in, out);
    find_groups(&y);
    arena_free(tmp);
    return e;
}
