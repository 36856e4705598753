/* Parses a graph's text (docs/formats.md has the grammar) by recursive descent, one function for
 * each production, and builds nodes with the builder. A name must be defined above its use, so one
 * pass over the text suffices; only bodies of loops recurse, and their depth is limited. */
#include "ir.h"

#include <string.h>

#define X(id, text) text,
static const char *const phases[] = {PHASES(X)};
static const char *const policies[] = {POLICIES(X)};
static const char *const roles[] = {ROLES(X)};
static const char *const ports[] = {PORTS(X)};
#undef X

/* ---- types and values ---- */

static void need_new_name(Lexer *x, const Graph *g, const Token *t)
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

static Value *parse_operand(Lexer *x, Graph *g)
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

typedef struct AttrList {
    AttrArg arg[TN_MAX_ATTR + 1]; /* ends with a zero element */
    int count;
} AttrList;

static bool attr_known(const Op *op, const char *name)
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

static void parse_attr(Lexer *x, const Op *op, AttrList *l)
{
    const AttrField *f = need_field(x, op);
    for (int i = 0; i < l->count; i++)
        if (!strcmp(l->arg[i].name, f->name))
            lex_fail(x, &x->t, "expected each attribute once, found \"%s\" again", f->name);
    lex_next(x);
    lex_need(x, "=");
    l->arg[l->count++] = (AttrArg){f->name, f->kind, lex_attr(x, f->kind)};
}

Attr *attrs_parse(Graph *g, const Op *op, const char *text)
{
    Lexer x;
    AttrList l = {0};
    lex_start(&x, g->a, text, "attributes");
    while (x.t.kind == TOK_WORD) {
        parse_attr(&x, op, &l);
        if (!lex_take(&x, ","))
            break;
    }
    if (x.t.kind != TOK_END)
        lex_expected(&x, "an attribute or the end");
    return attrs_make(g, op, l.arg);
}

/* ---- nodes ---- */

/* What stands before "=": names, and types where given. */
typedef struct ResultName {
    Token t;
    bool typed;
    Token type_token;
    Type type;
} ResultName;

typedef struct Results {
    ResultName *r;
    const char **name;
    int count;
} Results;

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

/* What stands after ")": in any order, each at most once. */
enum { F_SCOPE = 1, F_PHASE = 2, F_POLICY = 4, F_ORIGIN = 8, F_STREAM = 16, F_AFTER = 32 };

typedef struct Fields {
    unsigned given;
    Phase phase;
    Policy policy;
    const char *scope, *origin;
    int64_t stream;
    Node **after;
    int nafter;
} Fields;

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

static Fields parse_fields(Lexer *x, Graph *g)
{
    Fields f = {.stream = -1, .phase = FORWARD};
    while (parse_field(x, g, &f))
        ;
    return f;
}

typedef struct Operands {
    Value **v;
    int count, cap;
} Operands;

/* What a node's text says before the node is made. */
typedef struct Head {
    Token t, at_op;
    Results results;
    const Op *op;
    Operands in;
    AttrList attrs;
    Fields fields;
} Head;

static void parse_operand_into(Lexer *x, Graph *g, Operands *in)
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

static Attr *make_attrs(Lexer *x, Graph *g, const Head *h)
{
    const AttrField *f = op_attrs(h->op);
    for (int i = 0; f[i].kind; i++) {
        bool given = !f[i].required;
        for (int j = 0; j < h->attrs.count; j++)
            given |= !strcmp(h->attrs.arg[j].name, f[i].name);
        if (!given)
            lex_fail(x, &h->at_op, "%s: expected the attribute \"%s\", found none", h->op->name,
                     f[i].name);
    }
    return attrs_make(g, h->op, h->attrs.arg);
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

/* ---- regions ---- */

static void parse_nodes(Lexer *x, Graph *g);

static Graph *new_body(Lexer *x, Graph *g, const Head *h)
{
    int depth = 1;
    for (const Graph *up = g; up->parent; up = up->parent)
        depth++;
    if (depth > TN_MAX_DEPTH + (h->op->region == FUSED))
        lex_fail(x, &h->t, "%s: expected loops at most %d deep, found another inside", h->op->name,
                 TN_MAX_DEPTH);
    return graph_body(g);
}

/* %name: TYPE, an input of the body; returns its index. */
static int parse_body_input(Lexer *x, Graph *body)
{
    Token name = lex_token(x, TOK_VALUE, "the body's name of the operand (%name)");
    need_new_name(x, body, &name);
    lex_need(x, ":");
    graph_input(body, name.s, lex_type(x), ROLE_NONE, NULL);
    return body->nin - 1;
}

/* KIND %name: TYPE = %operand axis D; what the tail sees is known later, but of a tail port. */
static PortIn parse_port_in(Lexer *x, Graph *g, Region *r, Head *h)
{
    int kind = lex_enum(x, ports, 0, PORT_CARRY + 1);
    if (kind < 0)
        lex_expected(x, "\"reverse\" or a port (whole slice stack tail offset carry)");
    PortIn port = {.kind = (PortKind)kind, .arg = -1, .at = {-1, -1}};
    if (port.kind == PORT_TAIL && !r->body[TAIL])
        r->body[TAIL] = new_body(x, g, h);
    int b = port.kind == PORT_TAIL ? TAIL : MAIN;
    port.at[b] = parse_body_input(x, r->body[b]);
    if (port.kind == PORT_OFFSET) {
        lex_need(x, "step");
        port.step = lex_token(x, TOK_INT, "an integer").i;
        return port;
    }
    lex_need(x, "=");
    port.arg = h->in.count;
    parse_operand_into(x, g, &h->in);
    if (port.kind == PORT_SLICE) {
        lex_need(x, "axis");
        port.axis = (int)lex_int(x, "an axis", 0, TN_RANK - 1);
    }
    return port;
}

static void parse_ports_in(Lexer *x, Graph *g, Region *r, Head *h)
{
    int cap = 0;
    lex_need(x, "(");
    lex_need(x, "n");
    lex_need(x, "=");
    r->n = lex_int(x, "a number of iterations", 1, INT32_MAX);
    while (!lex_take(x, ")")) {
        lex_need(x, ",");
        if (lex_take(x, "reverse"))
            r->reverse = true;
        else if (x->t.kind == TOK_WORD && attr_known(h->op, x->t.s))
            parse_attr(x, h->op, &h->attrs);
        else
            PUSH(x->a, r->in, r->nin, cap, parse_port_in(x, g, r, h));
    }
}

static int find_carry(Lexer *x, const Region *r, const Token *name)
{
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_CARRY &&
            !strcmp(r->body[MAIN]->in[r->in[j].at[MAIN]].v->name, name->s))
            return j;
    lex_fail(x, name, "expected a carry port's name, found %%%.200s", name->s);
}

static PortOut parse_port_out(Lexer *x, const Region *r)
{
    static const PortKind kinds[] = {PORT_STACK, PORT_TAIL, PORT_CARRY, PORT_CONCAT, PORT_SUM};
    int i = 0;
    while (i < LEN(kinds) && !lex_take(x, port_name(kinds[i])))
        i++;
    if (i == LEN(kinds))
        lex_expected(x, "a result port (stack tail carry concat sum)");
    PortOut port = {.kind = kinds[i], .at = {-1, -1}};
    if (port.kind == PORT_CONCAT) {
        lex_need(x, "axis");
        port.axis = (int)lex_int(x, "an axis", 0, TN_RANK - 1);
    } else if (port.kind == PORT_SUM) {
        port.dtype = lex_dtype(x);
    } else if (port.kind == PORT_CARRY) {
        Token name = lex_token(x, TOK_VALUE, "a carry port's name (%name)");
        port.carry = find_carry(x, r, &name);
    }
    return port;
}

static void parse_ports_out(Lexer *x, Region *r)
{
    int cap = 0;
    lex_need(x, "->");
    lex_need(x, "(");
    for (bool first = true; !lex_take(x, ")"); first = false) {
        if (!first)
            lex_need(x, ",");
        PUSH(x->a, r->out, r->nout, cap, parse_port_out(x, r));
    }
}

/* yield %a, %b: one value for each result port that this body gives. */
static void parse_yield(Lexer *x, Region *r, int b)
{
    Graph *body = r->body[b];
    const Token t = x->t;
    int wanted = 0;
    lex_need(x, "yield");
    if (!lex_at(x, "}"))
        do
            graph_output(body, parse_operand(x, body), ROLE_NONE, NULL);
        while (lex_take(x, ","));
    for (int k = 0; k < r->nout; k++) {
        if (r->out[k].kind == (b == TAIL ? PORT_STACK : PORT_TAIL))
            continue;
        r->out[k].at[b] = wanted++;
    }
    if (wanted != body->nout)
        lex_fail(x, &t, "expected %d values to yield, found %d", wanted, body->nout);
    lex_need(x, "}");
}

/* One name of tail(...): a new input of the tail, or the one that its tail port has made. */
static void parse_tail_input(Lexer *x, const Graph *g, const Node *n, int j)
{
    Region *r = n->region;
    Token name = lex_token(x, TOK_VALUE, "the tail's name of an operand (%name)"), at_type = name;
    const Value *v = r->in[j].at[TAIL] >= 0 ? r->body[TAIL]->in[r->in[j].at[TAIL]].v : NULL;
    if (v && strcmp(v->name, name.s))
        lex_fail(x, &name, "expected the tail port's name %%%.200s, found %%%.200s", v->name,
                 name.s);
    if (!v)
        need_new_name(x, r->body[TAIL], &name);
    Type want = region_input_type(g, n, j, TAIL), t = want;
    if (lex_take(x, ":")) {
        at_type = x->t;
        t = lex_type(x);
    }
    if (!type_equal(&t, &want))
        lex_fail(x, &at_type, "%%%.200s: expected %s, found %s", name.s, type_text(x->a, &want),
                 type_text(x->a, &t));
    if (v)
        return;
    graph_input(r->body[TAIL], name.s, t, ROLE_NONE, NULL);
    r->in[j].at[TAIL] = r->body[TAIL]->nin - 1;
}

/* tail(%name: TYPE, ...): every port but stacks, in order; a type may be left out. */
static void parse_tail_head(Lexer *x, const Graph *g, Region *r, const Head *h)
{
    const Node n = {.op = h->op,
                    .in = h->in.v,
                    .nin = h->in.count,
                    .region = r,
                    .line = h->t.line,
                    .column = h->t.column};
    const char *before = "(";
    lex_need(x, before);
    for (int j = 0; j < r->nin; j++) {
        if (r->in[j].kind == PORT_STACK)
            continue;
        if (*before == ',')
            lex_need(x, before);
        before = ",";
        parse_tail_input(x, g, &n, j);
    }
    lex_need(x, ")");
}

/* (%name: TYPE = %operand, ...) fields { body }, after the op. */
static Region *parse_fused(Lexer *x, Graph *g, Head *h)
{
    Graph *body = new_body(x, g, h);
    lex_need(x, "(");
    for (bool first = true; !lex_take(x, ")"); first = false) {
        if (!first)
            lex_need(x, ",");
        parse_body_input(x, body);
        lex_need(x, "=");
        parse_operand_into(x, g, &h->in);
    }
    h->fields = parse_fields(x, g);
    lex_need(x, "{");
    parse_nodes(x, body);
    lex_need(x, "yield");
    do
        graph_output(body, parse_operand(x, body), ROLE_NONE, NULL);
    while (lex_take(x, ","));
    lex_need(x, "}");
    return region_whole(body);
}

/* (ports) -> (ports) fields { body } tail(...) { body }, after the op. */
static Region *parse_region(Lexer *x, Graph *g, Head *h)
{
    if (h->op->region == FUSED)
        return parse_fused(x, g, h);
    Region *r = NEW(x->a, Region);
    r->body[MAIN] = new_body(x, g, h);
    parse_ports_in(x, g, r, h);
    parse_ports_out(x, r);
    h->fields = parse_fields(x, g);
    lex_need(x, "{");
    parse_nodes(x, r->body[MAIN]);
    parse_yield(x, r, MAIN);
    if (!lex_at(x, "tail") && !r->body[TAIL])
        return r;
    lex_need(x, "tail");
    r->body[TAIL] = r->body[TAIL] ? r->body[TAIL] : new_body(x, g, h);
    parse_tail_head(x, g, r, h);
    lex_need(x, "{");
    parse_nodes(x, r->body[TAIL]);
    parse_yield(x, r, TAIL);
    return r;
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
    Attr *attr = make_attrs(x, g, &h);
    Node *n = emit_named(&b, h.op, h.in.count, h.in.v, attr, r, f->stream, h.results.name,
                         h.results.count);
    n->after = f->after;
    n->nafter = f->nafter;
    check_results(x, n, &h.results);
}

static void parse_nodes(Lexer *x, Graph *g)
{
    while (x->t.kind == TOK_VALUE)
        parse_node(x, g);
}

static const char *parse_role_name(Lexer *x, Role r)
{
    return role_named(r) ? lex_token(x, TOK_STRING, "a name (a string)").s : NULL;
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
