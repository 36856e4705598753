/* Parses a graph's text (docs/formats.md has the grammar) by recursive descent, one function for
 * each production, and builds nodes with the builder. A name must be defined above its use, so one
 * pass over the text suffices. parse_region.c has the productions of regions, parse_mesh.c those of
 * ranks. */
#include "parse.h"

#include <string.h>

#define X(id, text) text,
static const char *const phases[] = {PHASES(X)};
static const char *const policies[] = {POLICIES(X)};
static const char *const roles[] = {ROLES(X)};
#undef X

/* ---- types and values ---- */

void need_new_name(Lexer *x, const Graph *g, const Token *t)
{
    if (map_find(&g->names, t->s))
        lex_fail(x, t, "expected a new name, found %%%.200s, which is defined above", t->s);
}

static const char *nearest_value(const Graph *g, const char *name)
{
    const char **names = NEWN(g->a, const char *, g->names.count);
    int count = 0;
    for (int i = 0; i < g->names.cap; i++)
        if (g->names.key[i])
            names[count++] = g->names.key[i];
    return nearest(name, names, count);
}

Value *parse_operand(Lexer *x, Graph *g)
{
    Token t = lex_token(x, TOK_VALUE, "a value (%name)");
    Value *v = map_find(&g->names, t.s);
    if (v)
        return v;
    const char *near = nearest_value(g, t.s);
    lex_fail(x, &t, "expected a value defined above, found %%%.200s%s%s%s", t.s,
             near ? " (the nearest is %" : "", near ? near : "", near ? ")" : "");
}

/* ---- attributes ---- */

bool attr_known(const Op *op, const char *name)
{
    for (const AttrField *f = op_attrs(op); f->kind; f++)
        if (!strcmp(f->name, name))
            return true;
    return false;
}

static const AttrField *need_field(Lexer *x, const Op *op)
{
    const AttrField *f = op_attrs(op);
    const char *names[TN_MAX_ATTR];
    int count = 0;
    for (; f[count].kind; count++) {
        if (!strcmp(f[count].name, x->t.s))
            return &f[count];
        names[count] = f[count].name;
    }
    const char *near = nearest(x->t.s, names, count);
    lex_fail(x, &x->t, "expected an attribute of %s, found \"%.100s\"%s%s%s", op->name, x->t.s,
             near ? " (the nearest is \"" : "", near ? near : "", near ? "\")" : "");
}

void parse_attr(Lexer *x, const Op *op, AttrList *l)
{
    const AttrField *f = need_field(x, op);
    for (int i = 0; i < l->count; i++)
        if (!strcmp(l->arg[i].name, f->name))
            lex_fail(x, &x->t, "expected each attribute once, found \"%s\" again", f->name);
    lex_next(x);
    lex_need(x, "=");
    l->arg[l->count++] = (AttrArg){f->name, f->kind, lex_attr(x, f->kind)};
}

static void parse_attrs(Lexer *x, const Op *op, AttrList *l)
{
    while (x->t.kind == TOK_WORD) {
        parse_attr(x, op, l);
        if (!lex_take(x, ","))
            break;
    }
}

/* The list's attributes and defaults; at_op: the place to name if an attribute is missing. */
static Attr *make_attrs(Lexer *x, Graph *g, const Op *op, const Token *at_op, const AttrList *l)
{
    const AttrField *f = op_attrs(op);
    for (int i = 0; f[i].kind; i++) {
        bool given = !f[i].required;
        for (int j = 0; j < l->count; j++)
            given |= !strcmp(l->arg[j].name, f[i].name);
        if (!given)
            lex_fail(x, at_op, "%s: expected the attribute \"%s\", found none", op->name,
                     f[i].name);
    }
    return attrs_make(g, op, l->arg);
}

Attr *lex_attrs(Lexer *x, Graph *g, const Op *op, const Token *at_op, bool any)
{
    AttrList l = {0};
    if (any)
        parse_attrs(x, op, &l);
    return make_attrs(x, g, op, at_op, &l);
}

Attr *attrs_parse(Graph *g, const Op *op, const char *text)
{
    Lexer x;
    AttrList l = {0};
    lex_start(&x, g->a, text, "attributes");
    parse_attrs(&x, op, &l);
    if (x.t.kind != TOK_END)
        lex_expected(&x, "an attribute or the end");
    return attrs_make(g, op, l.arg);
}

/* ---- nodes ---- */

static ResultName parse_result(Lexer *x, const Graph *g)
{
    ResultName r = {.t = lex_token(x, TOK_VALUE, "a value (%name)")};
    need_new_name(x, g, &r.t);
    r.typed = lex_take(x, ":");
    r.type_token = x->t;
    if (r.typed)
        r.type = lex_type(x);
    return r;
}

static void check_twice(Lexer *x, const Results *l)
{
    Map seen = {.a = x->a};
    for (int i = 0; i < l->count && l->count > 1; i++) {
        if (map_find(&seen, l->r[i].t.s))
            lex_fail(x, &l->r[i].t, "expected a new name, found %%%.200s twice", l->r[i].t.s);
        map_put(&seen, l->r[i].t.s, x);
    }
}

static Results parse_results(Lexer *x, const Graph *g)
{
    Results l = {0};
    int cap = 0;
    do
        PUSH(x->a, l.r, l.count, cap, parse_result(x, g));
    while (lex_take(x, ","));
    check_twice(x, &l);
    lex_need(x, "=");
    l.name = NEWN(x->a, const char *, l.count);
    for (int i = 0; i < l.count; i++)
        l.name[i] = l.r[i].t.s;
    return l;
}

/* The fields, in any order, each at most once. */
enum { F_SCOPE = 1, F_PHASE = 2, F_POLICY = 4, F_ORIGIN = 8, F_STREAM = 16, F_AFTER = 32 };

static void need_once(Lexer *x, const Token *t, Fields *f, unsigned field, const char *what)
{
    if (f->given & field)
        lex_fail(x, t, "expected one %s, found another", what);
    f->given |= field;
}

static void parse_after(Lexer *x, Graph *g, Fields *f)
{
    int cap = 0;
    lex_need(x, "=");
    do {
        Token t = x->t;
        Value *v = parse_operand(x, g);
        if (!v->def || v->index)
            lex_fail(x, &t, "expected the first result of a node, found %%%.200s", t.s);
        PUSH(x->a, f->after, f->nafter, cap, v->def);
    } while (lex_take(x, ","));
}

static void parse_origin(Lexer *x, Fields *f)
{
    lex_need(x, "=");
    f->origin = lex_token(x, TOK_VALUE, "a value (%name)").s;
}

static void parse_stream(Lexer *x, Fields *f)
{
    lex_need(x, "=");
    f->stream = lex_int(x, "a stream", 0, UINT32_MAX);
}

/* One field, or false where something else stands. */
static bool parse_field(Lexer *x, Graph *g, Fields *f)
{
    const Token t = x->t;
    int i;
    if (lex_take(x, "@")) {
        need_once(x, &t, f, F_SCOPE, "scope");
        f->scope = lex_token(x, TOK_STRING, "a scope (a string)").s;
    } else if ((i = lex_enum(x, phases, 0, NPHASE)) >= 0) {
        need_once(x, &t, f, F_PHASE, "phase");
        f->phase = (Phase)i;
    } else if ((i = lex_enum(x, policies, 0, NPOLICY)) >= 0) {
        need_once(x, &t, f, F_POLICY, "policy");
        f->policy = (Policy)i;
    } else if (lex_take(x, "origin")) {
        need_once(x, &t, f, F_ORIGIN, "origin");
        parse_origin(x, f);
    } else if (lex_take(x, "stream")) {
        need_once(x, &t, f, F_STREAM, "stream");
        parse_stream(x, f);
    } else if (lex_take(x, "after")) {
        need_once(x, &t, f, F_AFTER, "after list");
        parse_after(x, g, f);
    } else {
        return false;
    }
    return true;
}

Fields parse_fields(Lexer *x, Graph *g)
{
    Fields f = {.stream = -1, .phase = FORWARD};
    while (parse_field(x, g, &f))
        ;
    return f;
}

void parse_operand_into(Lexer *x, Graph *g, Operands *in)
{
    Value *v = parse_operand(x, g);
    PUSH(x->a, in->v, in->count, in->cap, v);
}

/* op(operands, attributes) without the op; operands come first. */
static void parse_arguments(Lexer *x, Graph *g, Head *h)
{
    lex_need(x, "(");
    for (bool first = true; !lex_take(x, ")"); first = false) {
        if (!first)
            lex_need(x, ",");
        if (x->t.kind == TOK_VALUE && !h->attrs.count)
            parse_operand_into(x, g, &h->in);
        else if (x->t.kind == TOK_WORD)
            parse_attr(x, h->op, &h->attrs);
        else
            lex_expected(x, h->attrs.count ? "an attribute" : "an operand or an attribute");
    }
}

static void get_op(void *arg)
{
    Lexer *x = arg;
    op_get(arena_ctx(x->a), x->t.s);
}

static const Op *parse_op(Lexer *x)
{
    Token t = x->t;
    if (t.kind != TOK_WORD)
        lex_expected(x, "an op");
    if (ctx_try(arena_ctx(x->a), get_op, x) != TN_OK)
        lex_fail(x, &t, "expected an op, found an %s", arena_ctx(x->a)->message);
    lex_next(x);
    return op_find(t.s);
}

static void check_results(Lexer *x, const Node *n, const Results *l)
{
    for (int k = 0; k < l->count; k++) {
        const ResultName *r = &l->r[k];
        if (r->typed && !type_equal(&r->type, &n->out[k]->type))
            lex_fail(x, &r->type_token, "%s %%%.200s: expected %s, found %s", n->op->name, r->t.s,
                     type_text(x->a, &n->out[k]->type), type_text(x->a, &r->type));
    }
}

/* ---- nodes and graphs ---- */

static void parse_node(Lexer *x, Graph *g)
{
    Head h = {.t = x->t, .results = parse_results(x, g)};
    h.at_op = x->t;
    h.op = parse_op(x);
    Region *r = h.op->region ? parse_region(x, g, &h) : NULL;
    if (!r) {
        parse_arguments(x, g, &h);
        h.fields = parse_fields(x, g);
    }
    Fields *f = &h.fields;
    Build b = {g, NULL, f->phase, f->policy, f->scope, f->origin, h.t.line, h.t.column};
    Attr *attr = make_attrs(x, g, h.op, &h.at_op, &h.attrs);
    Node *n = emit_named(&b, h.op, h.in.count, h.in.v, attr, r, f->stream, h.results.name,
                         h.results.count);
    n->after = f->after;
    n->nafter = f->nafter;
    check_results(x, n, &h.results);
}

void parse_nodes(Lexer *x, Graph *g)
{
    while (x->t.kind == TOK_VALUE)
        parse_node(x, g);
}

static const char *parse_role_name(Lexer *x, Role r)
{
    return role_named(r) ? lex_token(x, TOK_STRING, "a name (a string)").s : NULL;
}

/* Further names of a tied parameter; NULL: none. */
static const char **parse_tied(Lexer *x, Graph *g)
{
    const char **name = NULL;
    int n = 0, cap = 0;
    while (x->t.kind == TOK_STRING) {
        PUSH(g->a, name, n, cap, arena_strdup(g->a, x->t.s));
        lex_next(x);
    }
    if (n)
        PUSH(g->a, name, n, cap, NULL);
    return name;
}

static void parse_input(Lexer *x, Graph *g)
{
    Token t = lex_token(x, TOK_VALUE, "an input (%name)");
    need_new_name(x, g, &t);
    lex_need(x, ":");
    Type type = lex_type(x);
    int i = lex_enum(x, roles, ROLE_BATCH, ROLE_LOSS);
    Role role = i < 0 ? ROLE_NONE : (Role)i;
    graph_input(g, t.s, type, role, parse_role_name(x, role));
    Port *p = &g->in[g->nin - 1];
    p->tied = role == ROLE_PARAM ? parse_tied(x, g) : NULL;
    p->host = role == ROLE_STATE && lex_take(x, "host");
    p->cut = lex_cuts(x, g->mesh);
    p->line = t.line;
    p->column = t.column;
}

static void parse_output(Lexer *x, Graph *g)
{
    const Token t = x->t;
    int i = lex_enum(x, roles, ROLE_LOSS, NROLE);
    Role role = i < 0 ? ROLE_NONE : (Role)i;
    const char *name = parse_role_name(x, role);
    graph_output(g, parse_operand(x, g), role, name);
    Port *p = &g->out[g->nout - 1];
    p->cut = lex_cuts(x, g->mesh);
    p->line = t.line;
    p->column = t.column;
}

static Graph *parse_head(Lexer *x)
{
    lex_need(x, "tenon");
    lex_int(x, "the version of the format", 1, 1);
    lex_need(x, "graph");
    TokenKind kind = x->t.kind == TOK_STRING ? TOK_STRING : TOK_WORD;
    Graph *g = graph_new(x->a, lex_token(x, kind, "a name of the graph").s);
    g->file = x->file;
    g->mesh = lex_mesh(x);
    return g;
}

typedef struct Parse {
    Arena *tmp, *a;
    const char *text, *file;
    Graph *g;
} Parse;

static void parse_graph(void *arg)
{
    Parse *p = arg;
    Lexer x;
    lex_start(&x, p->tmp, p->text, arena_strdup(p->tmp, p->file ? p->file : "-"));
    Graph *g = parse_head(&x);
    lex_need(&x, "(");
    for (bool first = true; !lex_take(&x, ")"); first = false) {
        if (!first)
            lex_need(&x, ",");
        parse_input(&x, g);
    }
    lex_need(&x, "{");
    parse_nodes(&x, g);
    lex_need(&x, "return");
    do
        parse_output(&x, g);
    while (lex_take(&x, ","));
    lex_need(&x, "}");
    if (x.t.kind != TOK_END)
        lex_expected(&x, "the end of the file");
    p->g = graph_clone(p->a, g);
}

/* The parsed graph is cloned, so that nodes lie side by side and what the parser needed is freed.
 */
Graph *graph_parse(Arena *a, const char *text, const char *file)
{
    Ctx *ctx = arena_ctx(a);
    Parse p = {arena_new(ctx), a, text, file, NULL};
    if (!p.tmp)
        fail(ctx, TN_FAIL, "out of memory");
    Code code = ctx_try(ctx, parse_graph, &p);
    arena_free(p.tmp);
    if (code)
        fail_again(ctx, "");
    return p.g;
}
