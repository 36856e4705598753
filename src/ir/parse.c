/* Reads a graph's text (docs/formats.md has the grammar) by recursive descent, one function for each
 * production, through the ordinary builder. A name must be defined above its use, so one pass over
 * the text does; only bodies of loops recurse, and their depth is limited. */
#include "ir.h"

#include <string.h>

#define X(id, text, ...) text,
static const char *const phases[] = {PHASES(X)};
static const char *const policies[] = {POLICIES(X)};
static const char *const roles[] = {ROLES(X)};
#undef X

typedef struct Parser {
    Lexer x;
    Arena *a;
} Parser;

/* ---- tokens ---- */

static bool at(const Parser *p, TokenKind kind, const char *s)
{
    return p->x.t.kind == kind && !strcmp(p->x.t.s, s);
}

static bool at_punct(const Parser *p, const char *s)
{
    return at(p, TOK_PUNCT, s);
}

/* Takes the token where it is the one asked for. */
static bool take(Parser *p, TokenKind kind, const char *s)
{
    if (!at(p, kind, s))
        return false;
    lex_next(&p->x);
    return true;
}

static bool take_punct(Parser *p, const char *s)
{
    return take(p, TOK_PUNCT, s);
}

static bool take_word(Parser *p, const char *s)
{
    return take(p, TOK_WORD, s);
}

static void need_punct(Parser *p, const char *s)
{
    if (!take_punct(p, s))
        lex_expected(&p->x, arena_printf(p->a, "\"%s\"", s));
}

static void need_word(Parser *p, const char *s)
{
    if (!take_word(p, s))
        lex_expected(&p->x, arena_printf(p->a, "\"%s\"", s));
}

static Token need(Parser *p, TokenKind kind, const char *what)
{
    if (p->x.t.kind != kind)
        lex_expected(&p->x, what);
    Token t = p->x.t;
    lex_next(&p->x);
    return t;
}

static int64_t need_int(Parser *p, const char *what, int64_t least, int64_t most)
{
    Token t = need(p, TOK_INT, what);
    if (t.i < least || t.i > most)
        lex_fail(&p->x, &t, "expected %s from %lld to %lld, found %lld", what, (long long)least,
                 (long long)most, (long long)t.i);
    return t.i;
}

/* The index in [first, count) of the current word, which is taken then, or -1. */
static int take_enum(Parser *p, const char *const *names, int first, int count)
{
    for (int i = first; i < count; i++)
        if (take_word(p, names[i]))
            return i;
    return -1;
}

/* ---- types and values ---- */

static DType parse_dtype(Parser *p)
{
    int d = p->x.t.kind == TOK_WORD ? dtype_parse(p->x.t.s) : -1;
    if (d < 0)
        lex_expected(&p->x, "a dtype (f64 f32 f16 bf16 i64 i32 u8 bool)");
    lex_next(&p->x);
    return (DType)d;
}

static Type parse_type(Parser *p)
{
    Token start = p->x.t;
    Type t = {.dtype = parse_dtype(p)};
    double nbytes = dtype_size(t.dtype);
    need_punct(p, "[");
    while (!at_punct(p, "]")) {
        if (t.rank)
            need_punct(p, ",");
        if (t.rank == TN_RANK)
            lex_expected(&p->x, arena_printf(p->a, "\"]\" (a rank of at most %d)", TN_RANK));
        t.dim[t.rank] = need_int(p, "a size", 0, (int64_t)1 << 56);
        nbytes *= (double)MAX(t.dim[t.rank], 1);
        t.rank++;
    }
    need_punct(p, "]");
    if (nbytes > 0x1p56)
        lex_fail(&p->x, &start, "expected a type of at most 2^56 bytes, found a larger one");
    return t;
}

static void need_new_name(Parser *p, const Graph *g, const Token *t)
{
    if (map_find(&g->names, t->s))
        lex_fail(&p->x, t, "expected a new name, found %%%.200s, which is defined above", t->s);
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

static Value *parse_operand(Parser *p, Graph *g)
{
    Token t = need(p, TOK_VALUE, "a value (%name)");
    Value *v = map_find(&g->names, t.s);
    if (v)
        return v;
    const char *near = nearest_value(g, t.s);
    lex_fail(&p->x, &t, "expected a value defined above, found %%%.200s%s%s%s", t.s,
             near ? " (the nearest is %" : "", near ? near : "", near ? ")" : "");
}

/* ---- attributes ---- */

static Attr parse_ints(Parser *p)
{
    int64_t *ints = NULL;
    int count = 0, cap = 0;
    need_punct(p, "[");
    while (!at_punct(p, "]")) {
        if (count)
            need_punct(p, ",");
        PUSH(p->a, ints, count, cap, need(p, TOK_INT, "an integer").i);
    }
    need_punct(p, "]");
    return (Attr){.i = count, .ints = ints};
}

static double parse_float(Parser *p)
{
    if (take_word(p, "inf"))
        return __builtin_inf();
    if (take_word(p, "nan"))
        return __builtin_nan("");
    TokenKind kind = p->x.t.kind == TOK_INT ? TOK_INT : TOK_FLOAT;
    return need(p, kind, "a number").f;
}

static bool parse_bool(Parser *p)
{
    if (take_word(p, "false"))
        return false;
    if (!take_word(p, "true"))
        lex_expected(&p->x, "true or false");
    return true;
}

static Attr parse_attr_value(Parser *p, AttrKind kind)
{
    switch (kind) {
    case ATTR_INT: return (Attr){.i = need(p, TOK_INT, "an integer").i};
    case ATTR_FLOAT: return (Attr){.f = parse_float(p)};
    case ATTR_BOOL: return (Attr){.i = parse_bool(p)};
    case ATTR_STR: return (Attr){.s = need(p, TOK_STRING, "a string").s};
    case ATTR_DTYPE: return (Attr){.i = parse_dtype(p)};
    default: return parse_ints(p);
    }
}

typedef struct AttrList {
    AttrArg arg[TN_MAX_ATTR + 1]; /* ends with a zero element */
    int count;
} AttrList;

static const AttrField *need_field(Parser *p, const Op *op)
{
    const AttrField *f = op_attrs(op);
    const char *names[TN_MAX_ATTR];
    int count = 0;
    for (; f[count].kind; count++) {
        if (!strcmp(f[count].name, p->x.t.s))
            return &f[count];
        names[count] = f[count].name;
    }
    const char *near = nearest(p->x.t.s, names, count);
    lex_fail(&p->x, &p->x.t, "expected an attribute of %s, found \"%.100s\"%s%s%s", op->name,
             p->x.t.s, near ? " (the nearest is \"" : "", near ? near : "", near ? "\")" : "");
}

static void parse_attr(Parser *p, const Op *op, AttrList *l)
{
    const AttrField *f = need_field(p, op);
    for (int i = 0; i < l->count; i++)
        if (!strcmp(l->arg[i].name, f->name))
            lex_fail(&p->x, &p->x.t, "expected each attribute once, found \"%s\" again", f->name);
    lex_next(&p->x);
    need_punct(p, "=");
    l->arg[l->count++] = (AttrArg){f->name, f->kind, parse_attr_value(p, f->kind)};
}

static Attr *make_attrs(Parser *p, Graph *g, const Token *at_op, const Op *op, const AttrList *l)
{
    const AttrField *f = op_attrs(op);
    for (int i = 0; f[i].kind; i++) {
        bool given = !f[i].required;
        for (int j = 0; j < l->count; j++)
            given |= !strcmp(l->arg[j].name, f[i].name);
        if (!given)
            lex_fail(&p->x, at_op, "%s: expected the attribute \"%s\", found none", op->name,
                     f[i].name);
    }
    return attrs_make(g, op, l->arg);
}

/* ---- nodes ---- */

/* What stands before "=": names, and types where given. */
typedef struct Result {
    Token t;
    bool typed;
    Token type_token;
    Type type;
} Result;

typedef struct Results {
    Result *r;
    const char **name;
    int count;
} Results;

static Result parse_result(Parser *p, const Graph *g, Map *seen)
{
    Result r = {.t = need(p, TOK_VALUE, "a value (%name)")};
    need_new_name(p, g, &r.t);
    if (map_find(seen, r.t.s))
        lex_fail(&p->x, &r.t, "expected a new name, found %%%.200s twice", r.t.s);
    map_put(seen, r.t.s, p);
    r.typed = take_punct(p, ":");
    r.type_token = p->x.t;
    if (r.typed)
        r.type = parse_type(p);
    return r;
}

static Results parse_results(Parser *p, const Graph *g)
{
    Results l = {0};
    int cap = 0;
    Map seen = {.a = p->a};
    do
        PUSH(p->a, l.r, l.count, cap, parse_result(p, g, &seen));
    while (take_punct(p, ","));
    need_punct(p, "=");
    l.name = NEWN(p->a, const char *, l.count);
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

static void need_once(Parser *p, const Token *t, Fields *f, unsigned field, const char *what)
{
    if (f->given & field)
        lex_fail(&p->x, t, "expected one %s, found another", what);
    f->given |= field;
}

static void parse_after(Parser *p, Graph *g, Fields *f)
{
    int cap = 0;
    need_punct(p, "=");
    do {
        Token t = p->x.t;
        Value *v = parse_operand(p, g);
        if (!v->def || v->index)
            lex_fail(&p->x, &t, "expected the first result of a node, found %%%.200s", t.s);
        PUSH(p->a, f->after, f->nafter, cap, v->def);
    } while (take_punct(p, ","));
}

static void parse_origin(Parser *p, Fields *f)
{
    need_punct(p, "=");
    f->origin = need(p, TOK_VALUE, "a value (%name)").s;
}

static void parse_stream(Parser *p, Fields *f)
{
    need_punct(p, "=");
    f->stream = need_int(p, "a stream", 0, UINT32_MAX);
}

/* One field, or false where something else stands. */
static bool parse_field(Parser *p, Graph *g, Fields *f)
{
    const Token t = p->x.t;
    int i;
    if (take_punct(p, "@")) {
        need_once(p, &t, f, F_SCOPE, "scope");
        f->scope = need(p, TOK_STRING, "a scope (a string)").s;
    } else if ((i = take_enum(p, phases, 0, NPHASE)) >= 0) {
        need_once(p, &t, f, F_PHASE, "phase");
        f->phase = (Phase)i;
    } else if ((i = take_enum(p, policies, 0, NPOLICY)) >= 0) {
        need_once(p, &t, f, F_POLICY, "policy");
        f->policy = (Policy)i;
    } else if (take_word(p, "origin")) {
        need_once(p, &t, f, F_ORIGIN, "origin");
        parse_origin(p, f);
    } else if (take_word(p, "stream")) {
        need_once(p, &t, f, F_STREAM, "stream");
        parse_stream(p, f);
    } else if (take_word(p, "after")) {
        need_once(p, &t, f, F_AFTER, "after list");
        parse_after(p, g, f);
    } else {
        return false;
    }
    return true;
}

static Fields parse_fields(Parser *p, Graph *g)
{
    Fields f = {.stream = -1, .phase = FORWARD};
    while (parse_field(p, g, &f))
        ;
    return f;
}

typedef struct Operands {
    Value **v;
    int count, cap;
} Operands;

/* op(operands, attributes) without the op; operands come first. */
static Operands parse_arguments(Parser *p, Graph *g, const Op *op, AttrList *attrs)
{
    Operands in = {0};
    need_punct(p, "(");
    for (bool first = true; !at_punct(p, ")"); first = false) {
        if (!first)
            need_punct(p, ",");
        if (p->x.t.kind == TOK_VALUE && !attrs->count)
            PUSH(p->a, in.v, in.count, in.cap, parse_operand(p, g));
        else if (p->x.t.kind == TOK_WORD)
            parse_attr(p, op, attrs);
        else
            lex_expected(&p->x, attrs->count ? "an attribute" : "an operand or an attribute");
    }
    need_punct(p, ")");
    return in;
}

static void get_op(void *arg)
{
    Parser *p = arg;
    op_get(arena_ctx(p->a), p->x.t.s);
}

static const Op *parse_op(Parser *p)
{
    Token t = p->x.t;
    if (t.kind != TOK_WORD)
        lex_expected(&p->x, "an op");
    if (ctx_try(arena_ctx(p->a), get_op, p) != TN_OK)
        lex_fail(&p->x, &t, "expected an op, found an %s", arena_ctx(p->a)->message);
    lex_next(&p->x);
    return op_find(t.s);
}

static void check_results(Parser *p, const Node *n, const Results *l)
{
    for (int k = 0; k < l->count; k++) {
        const Result *r = &l->r[k];
        if (r->typed && !type_equal(&r->type, &n->out[k]->type))
            lex_fail(&p->x, &r->type_token, "%s %%%.200s: expected %s, found %s", n->op->name,
                     r->t.s, type_text(p->a, &n->out[k]->type), type_text(p->a, &r->type));
    }
}

static void parse_node(Parser *p, Graph *g)
{
    Build b = {.g = g, .line = p->x.t.line, .column = p->x.t.column};
    Results results = parse_results(p, g);
    Token at_op = p->x.t;
    const Op *op = parse_op(p);
    AttrList attrs = {0};
    Operands in = parse_arguments(p, g, op, &attrs);
    Fields f = parse_fields(p, g);
    b.phase = f.phase;
    b.policy = f.policy;
    b.scope = f.scope;
    b.origin = f.origin;
    Attr *attr = make_attrs(p, g, &at_op, op, &attrs);
    Node *n = emit_named(&b, op, in.count, in.v, attr, NULL, f.stream, results.name, results.count);
    n->after = f.after;
    n->nafter = f.nafter;
    check_results(p, n, &results);
}

static void parse_nodes(Parser *p, Graph *g)
{
    while (p->x.t.kind == TOK_VALUE)
        parse_node(p, g);
}

/* ---- graphs ---- */

static const char *parse_role_name(Parser *p, Role r)
{
    return role_named(r) ? need(p, TOK_STRING, "a name (a string)").s : NULL;
}

static void parse_input(Parser *p, Graph *g)
{
    Token t = need(p, TOK_VALUE, "an input (%name)");
    need_new_name(p, g, &t);
    need_punct(p, ":");
    Type type = parse_type(p);
    int i = take_enum(p, roles, ROLE_BATCH, ROLE_LOSS);
    Role role = i < 0 ? ROLE_NONE : (Role)i;
    graph_input(g, t.s, type, role, parse_role_name(p, role));
}

static void parse_output(Parser *p, Graph *g)
{
    int i = take_enum(p, roles, ROLE_LOSS, NROLE);
    Role role = i < 0 ? ROLE_NONE : (Role)i;
    const char *name = parse_role_name(p, role);
    graph_output(g, parse_operand(p, g), role, name);
}

static Graph *parse_head(Parser *p)
{
    need_word(p, "tenon");
    need_int(p, "the version of the format", 1, 1);
    need_word(p, "graph");
    TokenKind kind = p->x.t.kind == TOK_STRING ? TOK_STRING : TOK_WORD;
    Graph *g = graph_new(p->a, need(p, kind, "a name of the graph").s);
    g->file = p->x.file;
    return g;
}

Graph *graph_parse(Arena *a, const char *text, const char *file)
{
    Parser p = {.a = a};
    lex_start(&p.x, a, text, arena_strdup(a, file ? file : "-"));
    Graph *g = parse_head(&p);
    need_punct(&p, "(");
    for (bool first = true; !take_punct(&p, ")"); first = false) {
        if (!first)
            need_punct(&p, ",");
        parse_input(&p, g);
    }
    need_punct(&p, "{");
    parse_nodes(&p, g);
    need_word(&p, "return");
    if (!at_punct(&p, "}"))
        do
            parse_output(&p, g);
        while (take_punct(&p, ","));
    need_punct(&p, "}");
    if (p.x.t.kind != TOK_END)
        lex_expected(&p.x, "the end of the file");
    return g;
}
