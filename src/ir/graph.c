/* The graph's container: values and nodes with stable addresses and dense ids; nodes are in a list
 * whose order is a valid order of execution. Insertion, removal and move are O(1), a clone linear.
 */
#include "ir.h"

#include <string.h>

Graph *graph_new(Arena *a, const char *name)
{
    Graph *g = NEW(a, Graph);
    g->ctx = arena_ctx(a);
    g->a = a;
    g->name = arena_strdup(a, name);
    g->names.a = a;
    return g;
}

Graph *graph_body(Graph *parent)
{
    Graph *g = graph_new(parent->a, parent->name);
    g->parent = parent;
    g->file = parent->file;
    return g;
}

const Mesh *graph_mesh(const Graph *g)
{
    while (g->parent)
        g = g->parent;
    return g->mesh;
}

int graph_depth(const Graph *g)
{
    int depth = 1;
    while ((g = g->parent))
        depth++;
    return depth;
}

const char *graph_fresh(Graph *g, const char *stem)
{
    if (!map_find(&g->names, stem))
        return arena_strdup(g->a, stem);
    for (int i = 1;; i++) { /* the count of values is a good first guess for long runs */
        char text[300];
        snprintf(text, sizeof text, "%.280s_%d", stem, i < 8 ? i : i + g->nvalue);
        if (!map_find(&g->names, text))
            return arena_strdup(g->a, text);
    }
}

static bool is_among(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

const char **graph_fresh_results(Graph *g, const Node *n, const char *suffix)
{
    const char **name = NEWN(g->a, const char *, n->nout);
    for (int k = 0; k < n->nout; k++) {
        const char *stem = arena_printf(g->a, "%s%s", n->out[k]->name, suffix);
        name[k] = graph_fresh(g, stem);
        for (int i = 1; is_among(name[k], name, k); i++) /* a name that another result gets */
            name[k] = graph_fresh(g, arena_printf(g->a, "%s_%d", stem, i));
    }
    return name;
}

void value_rename(Graph *g, Value *v, const char *name)
{
    CHECK(!map_find(&g->names, name));
    map_del(&g->names, v->name);
    v->name = arena_strdup(g->a, name);
    map_put(&g->names, v->name, v);
}

Value *graph_input(Graph *g, const char *name, Type t, Role role, const char *role_name)
{
    Value *v = NEW(g->a, Value);
    *v = (Value){.id = g->nvalue++, .name = graph_fresh(g, name), .type = t, .index = g->nin};
    map_put(&g->names, v->name, v);
    Port p = {.v = v, .role = role, .name = role_name ? arena_strdup(g->a, role_name) : NULL};
    PUSH(g->a, g->in, g->nin, g->capin, p);
    return v;
}

static const char **clone_names(Arena *a, const char **name)
{
    const char **to = NULL;
    int n = 0, cap = 0;
    for (const char **s = name; s && *s; s++)
        PUSH(a, to, n, cap, arena_strdup(a, *s));
    if (n)
        PUSH(a, to, n, cap, NULL);
    return to;
}

Value *graph_input_like(Graph *g, const Port *p, const Type *t)
{
    Value *v = graph_input(g, p->v->name, t ? *t : p->v->type, p->role, p->name);
    Port *q = &g->in[g->nin - 1];
    q->tied = clone_names(g->a, p->tied);
    q->host = p->host;
    q->line = p->line;
    q->column = p->column;
    return v;
}

void graph_output(Graph *g, Value *v, Role role, const char *role_name)
{
    Port p = {.v = v, .role = role, .name = role_name ? arena_strdup(g->a, role_name) : NULL};
    PUSH(g->a, g->out, g->nout, g->capout, p);
}

static Port *find_port(Port *p, int count, Role role, const char *name)
{
    for (int i = 0; i < count; i++)
        if (p[i].role == role && (!name || (p[i].name && !strcmp(p[i].name, name))))
            return &p[i];
    return NULL;
}

Port *graph_find_input(const Graph *g, Role role, const char *name)
{
    return find_port(g->in, g->nin, role, name);
}

Port *graph_find_output(const Graph *g, Role role, const char *name)
{
    return find_port(g->out, g->nout, role, name);
}

bool graph_is_output(const Graph *g, const Value *v)
{
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v == v)
            return true;
    return false;
}

Map graph_named(const Port *p, int count, Role role, Arena *tmp)
{
    Map named = {.a = tmp};
    for (int i = 0; i < count; i++)
        if (p[i].role == role && p[i].name)
            map_put(&named, p[i].name, p[i].v);
    return named;
}

Value *graph_state_param(const Map *params, const char *state)
{
    const char *dot = strrchr(state, '.');
    return dot ? map_find(params, arena_strndup(params->a, state, (size_t)(dot - state))) : NULL;
}

static void take_out(Graph *g, Node *n)
{
    *(n->prev ? &n->prev->next : &g->first) = n->next;
    *(n->next ? &n->next->prev : &g->last) = n->prev;
}

static void put_before(Graph *g, Node *n, Node *before)
{
    n->next = before;
    n->prev = before ? before->prev : g->last;
    *(n->prev ? &n->prev->next : &g->first) = n;
    *(before ? &before->prev : &g->last) = n;
}

void node_unlink(Graph *g, Node *n)
{
    take_out(g, n);
    for (int k = 0; k < n->nout; k++)
        map_del(&g->names, n->out[k]->name);
}

void node_move(Graph *g, Node *n, Node *before)
{
    if (n == before)
        return;
    take_out(g, n);
    put_before(g, n, before);
}

const char *value_scope(const Value *v)
{
    const Node *n = v->def;
    if (n && n->op->region == FUSED && v->index < n->region->nout)
        n = n->region->body[MAIN]->out[n->region->out[v->index].at[MAIN]].v->def;
    return n ? n->scope : v->def ? v->def->scope : "";
}

/* ---- clone ---- */

typedef struct Clone {
    Graph *to;
    Value **value; /* by id in the source */
    Node **node;
} Clone;

static Value *clone_value(Clone *c, const Value *v, Node *def)
{
    Value *w = NEW(c->to->a, Value);
    *w = *v;
    w->name = arena_strdup(c->to->a, v->name);
    w->def = def;
    map_put(&c->to->names, w->name, w);
    return c->value[v->id] = w;
}

static void *copy_array(Arena *a, const void *p, size_t nbytes)
{
    if (!nbytes)
        return NULL;
    return memcpy(arena_alloc(a, nbytes), p, nbytes);
}

static Attr *clone_attrs(Arena *a, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    int count = 0;
    while (f[count].kind)
        count++;
    Attr *attr = copy_array(a, n->attr, sizeof(Attr) * (size_t)count);
    for (int i = 0; i < count; i++) {
        if (f[i].kind == ATTR_INTS)
            attr[i].ints = copy_array(a, attr[i].ints, sizeof(int64_t) * (size_t)attr[i].i);
        if (f[i].kind == ATTR_STR && attr[i].s)
            attr[i].s = arena_strdup(a, attr[i].s);
    }
    return attr;
}

static void clone_node(Clone *c, const Node *n)
{
    Arena *a = c->to->a;
    Node *m = NEW(a, Node);
    *m = *n;
    m->in = NEWN(a, Value *, n->nin);
    for (int i = 0; i < n->nin; i++)
        m->in[i] = c->value[n->in[i]->id];
    m->out = NEWN(a, Value *, n->nout);
    for (int k = 0; k < n->nout; k++)
        m->out[k] = clone_value(c, n->out[k], m);
    m->attr = clone_attrs(a, n);
    Node *last = c->to->last;
    m->scope = last && !strcmp(last->scope, n->scope) ? last->scope : arena_strdup(a, n->scope);
    m->origin = n->origin ? arena_strdup(a, n->origin) : NULL;
    m->after = NEWN(a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        m->after[i] = c->node[n->after[i]->id];
    m->region = n->region ? region_clone(c->to, n->region) : NULL;
    put_before(c->to, m, NULL);
    c->node[n->id] = m;
}

static void clone_into(Graph *to, const Graph *g)
{
    Clone c = {to, NEWN(to->a, Value *, g->nvalue), NEWN(to->a, Node *, g->nnode)};
    to->file = g->file ? arena_strdup(to->a, g->file) : NULL;
    to->mesh = mesh_clone(to->a, g->mesh);
    to->nnode = g->nnode;
    to->nvalue = g->nvalue;
    for (int i = 0; i < g->nin; i++) {
        Port p = g->in[i];
        p.v = clone_value(&c, p.v, NULL);
        p.name = p.name ? arena_strdup(to->a, p.name) : NULL;
        p.tied = clone_names(to->a, p.tied);
        p.cut = cuts_clone(to->a, g->mesh, p.cut);
        PUSH(to->a, to->in, to->nin, to->capin, p);
    }
    for (const Node *n = g->first; n; n = n->next)
        clone_node(&c, n);
    for (int i = 0; i < g->nout; i++) {
        graph_output(to, c.value[g->out[i].v->id], g->out[i].role, g->out[i].name);
        to->out[i].line = g->out[i].line;
        to->out[i].column = g->out[i].column;
        to->out[i].cut = cuts_clone(to->a, g->mesh, g->out[i].cut);
    }
}

Region *region_clone(Graph *to, const Region *r)
{
    Region *s = NEW(to->a, Region);
    *s = *r;
    s->in = copy_array(to->a, r->in, sizeof *r->in * (size_t)r->nin);
    s->out = copy_array(to->a, r->out, sizeof *r->out * (size_t)r->nout);
    for (int b = 0; b < region_nbody(r); b++)
        clone_into(s->body[b] = graph_body(to), r->body[b]);
    return s;
}

Graph *graph_clone(Arena *a, const Graph *g)
{
    Graph *to = graph_new(a, g->name);
    clone_into(to, g);
    return to;
}

int graph_count(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count++;
        EACH_BODY(b, n)
            count += graph_count(n->region->body[b]);
    }
    return count;
}

uint64_t graph_hash(const Graph *g)
{
    Ctx *ctx = g->ctx;
    Arena *tmp = arena_new(ctx);
    if (!tmp)
        fail(ctx, TN_FAIL, "out of memory");
    Buf b = {.a = tmp};
    graph_print(&b, g);
    uint64_t h = hash_bytes(b.text, b.len, 0);
    arena_free(tmp);
    return h;
}

static bool attr_equal(AttrKind kind, const Attr *x, const Attr *y)
{
    if (x->absent || y->absent)
        return x->absent == y->absent;
    switch (kind) {
    case ATTR_FLOAT: return !memcmp(&x->f, &y->f, sizeof x->f);
    case ATTR_STR: return !strcmp(x->s ? x->s : "", y->s ? y->s : "");
    case ATTR_INTS:
        return x->i == y->i && (!x->i || !memcmp(x->ints, y->ints, sizeof(int64_t) * (size_t)x->i));
    default: return x->i == y->i;
    }
}

static uint64_t attr_hash(AttrKind k, const Attr *a, uint64_t h)
{
    if (a->absent)
        return hash_bytes(&a->absent, sizeof a->absent, h);
    if (k == ATTR_FLOAT)
        return hash_bytes(&a->f, sizeof a->f, h);
    if (k == ATTR_STR)
        return a->s ? hash_bytes(a->s, strlen(a->s), h) : h;
    h = hash_bytes(&a->i, sizeof a->i, h);
    return k == ATTR_INTS && a->i ? hash_bytes(a->ints, sizeof *a->ints * (size_t)a->i, h) : h;
}

uint64_t attrs_hash(const Node *n)
{
    uint64_t h = hash_bytes(&n->op, sizeof n->op, (uint64_t)n->stream);
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++)
        h = attr_hash(f[i].kind, &n->attr[i], h);
    return h;
}

bool attrs_equal(const Node *n, const Node *m)
{
    if (n->op != m->op || !n->region != !m->region || n->stream != m->stream)
        return false;
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++)
        if (!attr_equal(f[i].kind, &n->attr[i], &m->attr[i]))
            return false;
    return true;
}

bool node_is_barrier(const Node *n)
{
    bool is = n->op->barrier;
    EACH_LOOP_BODY(b, n)
        for (const Node *m = n->region->body[b]->first; m && !is; m = m->next)
            is = node_is_barrier(m);
    return is;
}

_Noreturn void fail_node(const Graph *g, const Node *n, const char *format, ...)
{
    char text[1200], where[600] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n->line && g->file)
        snprintf(where, sizeof where, "%s:%d:%d: ", g->file, n->line, n->column);
    bool named = n->out && n->nout && n->out[0] && n->out[0]->name;
    fail(g->ctx, TN_FAIL, "%s%s%s%s: %s", where, n->op->name, named ? " %" : "",
         named ? n->out[0]->name : "", text);
}
