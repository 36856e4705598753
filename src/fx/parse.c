/* Parses the code of a GraphModule into a tree, by recursive descent. The grammar is in
 * docs/formats.md.
 *
 * The text around the one function is checked and then ignored: the head of print(gm), imports,
 * `class NAME(torch.nn.Module):`. In pytree code tree_flatten_spec names the inputs, and
 * tree_unflatten of the result is its first argument. */
#include "fx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 60,   /* of brackets and operators */
    MAX_HEIGHT = 500, /* of an expression: x + 1 + 1 + 1 and x[0][0][0] have 3 */
};

typedef struct Parser {
    PyLexer x;
    Arena *a;
    FxModule *m;
    Map inputs; /* by name */
    int depth;
} Parser;

static bool at(const Parser *p, const char *s)
{
    const PyToken *t = &p->x.t;
    return (t->kind == PY_NAME || t->kind == PY_PUNCT) && !strcmp(t->s, s);
}

static bool take(Parser *p, const char *s)
{
    bool yes = at(p, s);
    if (yes)
        py_next(&p->x);
    return yes;
}

static void need(Parser *p, const char *s)
{
    if (!take(p, s))
        py_expected(&p->x, s);
}

static const char *name(Parser *p, const char *what)
{
    const char *s = p->x.t.s;
    if (p->x.t.kind != PY_NAME)
        py_expected(&p->x, what);
    py_next(&p->x);
    return s;
}

static void skip_lines(Parser *p)
{
    while (p->x.t.kind == PY_LINE)
        py_next(&p->x);
}

static void end_line(Parser *p)
{
    if (p->x.t.kind != PY_LINE && p->x.t.kind != PY_END)
        py_expected(&p->x, "the end of the statement");
    skip_lines(p);
}

/* ---- expressions ---- */

static Annotation annotation(Parser *p)
{
    PyToken where = p->x.t;
    return annotation_parse(&p->x, &where, py_annotation(&p->x));
}

static Expr *expression(Parser *p);
static Expr *unary(Parser *p);

static Expr *expr_new(Parser *p, ExprKind kind, const PyToken *t)
{
    Expr *e = NEW(p->a, Expr);
    e->kind = kind;
    e->line = t->line;
    e->column = t->column;
    return e;
}

static void add_item(Parser *p, Expr *e, const char *key, Expr *item)
{
    int cap = e->cap;
    PyToken t = {.line = e->line, .column = e->column};
    e->height = MAX(e->height, item->height + 1);
    if (e->height > MAX_HEIGHT)
        py_fail(&p->x, &t, "nested too deep: more than %d operators, indices or calls on one path",
                MAX_HEIGHT);
    PUSH(p->a, e->key, e->count, cap, key);
    e->count--;
    PUSH(p->a, e->item, e->count, e->cap, item);
}

static Expr *expr_call(Parser *p, const PyToken *t, const char *s, Expr *x, Expr *y)
{
    Expr *e = expr_new(p, EX_CALL, t);
    e->s = s;
    add_item(p, e, NULL, x);
    if (y)
        add_item(p, e, NULL, y);
    return e;
}

/* Elements up to the closing bracket; a dict's keys are left. */
static Expr *list(Parser *p, const PyToken *t, const char *close, bool *comma)
{
    Expr *e = expr_new(p, EX_LIST, t);
    bool any = false;
    while (!take(p, close)) {
        Expr *item = expression(p);
        if (*close == '}') {
            need(p, ":");
            item = expression(p);
        }
        add_item(p, e, NULL, item);
        if (!at(p, close)) {
            need(p, ",");
            any = true;
        }
    }
    if (comma)
        *comma = any;
    return e;
}

static Expr *parentheses(Parser *p, const PyToken *t)
{
    bool comma;
    Expr *e = list(p, t, ")", &comma);
    return e->count == 1 && !comma ? e->item[0] : e;
}

static Expr *arguments(Parser *p, const PyToken *t, const char *callee)
{
    Expr *e = expr_new(p, EX_CALL, t);
    e->s = callee;
    while (!take(p, ")")) {
        PyToken first = p->x.t;
        Expr *item = expression(p);
        const char *key = NULL;
        if (at(p, "=")) {
            if (item->kind != EX_NAME || first.kind != PY_NAME)
                py_expected(&p->x, "a value");
            py_next(&p->x);
            key = item->s;
            item = expression(p);
        } else if (e->count && e->key[e->count - 1]) {
            py_fail(&p->x, &first, "expected a keyword argument after another");
        }
        add_item(p, e, key, item);
        if (!at(p, ")"))
            need(p, ",");
    }
    return e;
}

/* Parses an expression that begins with the name t. */
static const char *dotted_name(Parser *p, const PyToken *t)
{
    Buf b = {.a = p->a};
    if (!at(p, "."))
        return t->s;
    buf_add(&b, t->s);
    while (b.len <= PY_MAX_NAME && take(p, ".")) {
        buf_add(&b, ".");
        buf_add(&b, name(p, "a name"));
    }
    if (b.len > PY_MAX_NAME)
        py_fail(&p->x, t, "a name longer than %d bytes", PY_MAX_NAME);
    return b.text;
}

static Expr *word(Parser *p, const PyToken *t)
{
    static const struct Word {
        const char *s;
        ExprKind kind;
        int64_t i;
    } words[] = {{"None", EX_NONE, 0}, {"True", EX_BOOL, 1}, {"False", EX_BOOL, 0}};
    for (int i = 0; i < LEN(words); i++)
        if (!strcmp(t->s, words[i].s)) {
            Expr *e = expr_new(p, words[i].kind, t);
            e->i = words[i].i;
            return e;
        }
    Expr *e = expr_new(p, EX_NAME, t);
    e->s = dotted_name(p, t);
    if (!strncmp(e->s, "self.", 5)) {
        e->kind = EX_SELF;
        e->s += 5;
    }
    return e;
}

static Expr *atom(Parser *p)
{
    PyToken t = p->x.t;
    py_next(&p->x);
    switch (t.kind) {
    case PY_NAME: return word(p, &t);
    case PY_INT:
    case PY_FLOAT: {
        if (t.kind == PY_INT && t.i == INT64_MIN)
            py_fail(&p->x, &t, "integer out of range");
        Expr *e = expr_new(p, t.kind == PY_INT ? EX_INT : EX_FLOAT, &t);
        e->i = t.i;
        e->f = t.f;
        return e;
    }
    case PY_STRING: {
        Expr *e = expr_new(p, EX_STRING, &t);
        e->s = t.s;
        return e;
    }
    case PY_PUNCT:
        if (*t.s == '(')
            return parentheses(p, &t);
        if (*t.s == '[')
            return list(p, &t, "]", NULL);
        if (*t.s == '{')
            return list(p, &t, "}", NULL);
        break;
    default: break;
    }
    p->x.t = t;
    py_expected(&p->x, "a value");
}

/* More of the path e, which names a constant or a module. */
static Expr *path(Parser *p, Expr *e, const char *more)
{
    PyToken t = {.line = e->line, .column = e->column};
    e->s = arena_printf(p->a, "%s.%s", e->s, more);
    if (strlen(e->s) > PY_MAX_NAME)
        py_fail(&p->x, &t, "a name longer than %d bytes", PY_MAX_NAME);
    return e;
}

/* getattr(self.layer, "0") is self.layer.0. */
static Expr *attribute(Parser *p, Expr *e)
{
    bool part = !strcmp(e->s, "getattr") && e->count == 2 && e->item[0]->kind == EX_SELF &&
                e->item[1]->kind == EX_STRING;
    return part ? path(p, e->item[0], e->item[1]->s) : e;
}

/* A call of e: a function, or the check of an exported program's inputs, which means nothing. */
static Expr *call(Parser *p, const Expr *e)
{
    PyToken t = {.line = e->line, .column = e->column};
    bool guards = e->kind == EX_SELF && !strcmp(e->s, "_guards_fn");
    if (e->kind != EX_NAME && !guards)
        fx_foreign(&p->x, &t, e->kind == EX_SELF ? FOREIGN_MODULE : FOREIGN_METHOD);
    py_next(&p->x);
    Expr *y = arguments(p, &t, e->s);
    return guards ? expr_new(p, EX_NONE, &t) : attribute(p, y);
}

static Expr *postfix(Parser *p)
{
    Expr *e = atom(p);
    for (;;) {
        PyToken t = p->x.t;
        if (at(p, "(")) {
            e = call(p, e);
        } else if (e->kind == EX_SELF && t.kind == PY_FLOAT && *t.begin == '.') { /* layer.0 */
            e = path(p, e, arena_strndup(p->a, t.begin + 1, (size_t)t.len - 1));
            py_next(&p->x);
        } else if (at(p, ".")) {
            if (e->kind != EX_SELF)
                fx_foreign(&p->x, &t, FOREIGN_METHOD);
            py_next(&p->x);
            e = path(p, e, name(p, "a name"));
        } else if (take(p, "[")) {
            Expr *index = expr_new(p, EX_INDEX, &t);
            add_item(p, index, NULL, e);
            add_item(p, index, NULL, expression(p));
            need(p, "]");
            e = index;
        } else {
            return e;
        }
    }
}

/* Negates the operand of a minus. */
static Expr *negative(Parser *p, const PyToken *minus)
{
    PyToken t = p->x.t;
    if (t.kind != PY_INT || t.i != INT64_MIN) {
        Expr *e = unary(p);
        bool number = (e->kind == EX_INT && e->i != INT64_MIN) || e->kind == EX_FLOAT;
        if (!number)
            return expr_call(p, minus, "operator.neg", e, NULL);
        e->i = -e->i;
        e->f = -e->f;
        return e;
    }
    Expr *e = expr_new(p, EX_INT, &t);
    e->i = INT64_MIN;
    e->f = -0x1p63;
    py_next(&p->x);
    return e;
}

static Expr *unary(Parser *p)
{
    PyToken t = p->x.t;
    Expr *e;
    if (++p->depth > MAX_DEPTH)
        py_fail(&p->x, &t, "nested too deep");
    if (take(p, "-")) {
        e = negative(p, &t);
    } else {
        e = postfix(p);
        if (take(p, "**"))
            e = expr_call(p, &t, "operator.pow", e, unary(p));
    }
    p->depth--;
    return e;
}

/* Operators by how strongly they bind, weakest first. */
static Expr *binary(Parser *p, int level)
{
    static const struct Operator {
        int level;
        const char *s, *call;
    } operators[] = {
        {0, "==", "operator.eq"},     {0, "!=", "operator.ne"},    {0, "<=", "operator.le"},
        {0, ">=", "operator.ge"},     {0, "<", "operator.lt"},     {0, ">", "operator.gt"},
        {1, "|", "operator.or_"},     {2, "&", "operator.and_"},   {3, "+", "operator.add"},
        {3, "-", "operator.sub"},     {4, "*", "operator.mul"},    {4, "//", "operator.floordiv"},
        {4, "/", "operator.truediv"}, {4, "@", "operator.matmul"},
    };
    Expr *e = level == 4 ? unary(p) : binary(p, level + 1);
    for (int i = 0; i < LEN(operators); i++) {
        PyToken t = p->x.t;
        if (operators[i].level != level || !take(p, operators[i].s))
            continue;
        Expr *right = level == 4 ? unary(p) : binary(p, level + 1);
        e = expr_call(p, &t, operators[i].call, e, right);
        i = -1;
    }
    return e;
}

static Expr *expression(Parser *p)
{
    if (++p->depth > MAX_DEPTH)
        py_fail(&p->x, &p->x.t, "nested too deep");
    Expr *e = binary(p, 0);
    p->depth--;
    return e;
}

/* a, b: a tuple without parentheses */
static Expr *tuple(Parser *p)
{
    PyToken t = p->x.t;
    Expr *e = expression(p);
    if (!at(p, ","))
        return e;
    Expr *all = expr_new(p, EX_LIST, &t);
    add_item(p, all, NULL, e);
    while (take(p, ","))
        if (p->x.t.kind != PY_LINE && p->x.t.kind != PY_END && !at(p, "="))
            add_item(p, all, NULL, expression(p));
    return all;
}

/* ---- statements ---- */

static void add_target(Parser *p, FxStatement *s, const Expr *e)
{
    if (e->kind == EX_LIST) {
        s->unpack = true;
        for (int i = 0; i < e->count; i++)
            add_target(p, s, e->item[i]);
    } else if (e->kind == EX_NAME && !strchr(e->s, '.')) {
        PUSH(p->a, s->target, s->ntarget, s->cap, e->s);
    } else {
        PyToken t = {.line = e->line, .column = e->column};
        py_fail(&p->x, &t, "expected a name before =");
    }
}

static void statement(Parser *p)
{
    FxStatement s = {.line = p->x.t.line, .column = p->x.t.column, .remark = p->x.remark};
    Expr *e = tuple(p);
    if (at(p, ":")) {
        add_target(p, &s, e);
        py_next(&p->x);
        s.annotation = annotation(p);
        if (take(p, "="))
            s.value = tuple(p);
    } else {
        s.value = e;
        while (take(p, "=")) {
            if (s.unpack)
                py_fail(&p->x, &p->x.t, "expected one name before each = of a chain");
            add_target(p, &s, s.value);
            s.value = tuple(p);
        }
    }
    end_line(p);
    PUSH(p->a, p->m->statement, p->m->nstatement, p->m->cap, s);
}

/* ---- the function and what is around it ---- */

static void input(Parser *p)
{
    FxInput in = {.line = p->x.t.line, .column = p->x.t.column};
    in.name = name(p, "an argument");
    if (take(p, ":")) {
        if (at(p, "Tensor"))
            fx_foreign(&p->x, &p->x.t, FOREIGN_CODE);
        in.annotation = annotation(p);
    }
    if (at(p, "="))
        py_fail(&p->x, &p->x.t, "arguments with defaults are not supported");
    if (map_find(&p->inputs, in.name))
        py_fail(&p->x, &p->x.t, "argument \"%s\" twice", in.name);
    map_put(&p->inputs, in.name, p);
    PUSH(p->a, p->m->in, p->m->nin, p->m->capin, in);
}

static void signature(Parser *p)
{
    need(p, "def");
    bool built = at(p, "__init__");
    name(p, "forward");
    need(p, "(");
    if (built || (p->x.t.kind == PY_NAME && !at(p, "self")))
        fx_foreign(&p->x, &p->x.t, FOREIGN_SOURCE);
    need(p, "self");
    while (take(p, ","))
        if (!at(p, ")"))
            input(p);
    need(p, ")");
    if (take(p, "->"))
        py_annotation(&p->x);
    need(p, ":");
}

static void brackets(Parser *p)
{
    int open = p->x.depth;
    need(p, "(");
    while (p->x.depth >= open && p->x.t.kind != PY_END)
        py_next(&p->x);
    need(p, ")");
}

static const char *module_name(Parser *p)
{
    bool lambda = take(p, "<");
    const char *s = name(p, "a name");
    if (lambda)
        need(p, ">");
    return s;
}

/* Below an exported program: which inputs are parameters, constraints. No value depends on it. */
static bool signature_follows(Parser *p)
{
    return p->x.t.kind == PY_NAME && !strncmp(p->x.t.begin, "Graph signature:", 16);
}

/* `GraphModule()`, `ExportedProgram:`, imports and `class NAME(torch.nn.Module):` */
static void head(Parser *p)
{
    bool layers = false;
    for (skip_lines(p); !at(p, "def"); skip_lines(p)) {
        if (!strncmp(p->x.t.begin, "graph(", 6))
            fx_foreign(&p->x, &p->x.t, fx_foreign_graph(p->x.t.begin));
        if (layers && p->x.t.kind == PY_END)
            fx_foreign(&p->x, &p->x.t, FOREIGN_LAYERS);
        if (at(p, "opcode"))
            fx_foreign(&p->x, &p->x.t, FOREIGN_TABLE);
        if (at(p, "ExportGraphSignature") || signature_follows(p))
            fx_foreign(&p->x, &p->x.t, FOREIGN_SIGNATURE);
        if (take(p, "class")) {
            module_name(p);
            brackets(p);
            need(p, ":");
        } else if (at(p, "import") || at(p, "from")) {
            while (p->x.t.kind != PY_LINE && p->x.t.kind != PY_END)
                py_next(&p->x);
        } else {
            if (p->x.t.kind != PY_NAME && !at(p, "<"))
                py_expected(&p->x, "def forward(self, ...)");
            bool exported = at(p, "ExportedProgram");
            module_name(p);
            if (!exported && at(p, ":"))
                fx_foreign(&p->x, &p->x.t, FOREIGN_SIGNATURE);
            layers = !exported || !take(p, ":");
            if (layers)
                brackets(p);
        }
    }
}

/* `a, b, = fx_pytree.tree_flatten_spec([x, y], self._in_spec)`: a and b are the inputs. */
static void flatten_inputs(Parser *p, FxStatement *s)
{
    FxModule *m = p->m;
    Map bare = {.a = p->a}; /* statements that only annotate, by name */
    for (int k = 0; k < m->nstatement; k++)
        if (!m->statement[k].value)
            map_put(&bare, m->statement[k].target[0], &m->statement[k]);
    m->nin = 0;
    for (int i = 0; i < s->ntarget; i++) {
        FxInput in = {.name = s->target[i], .line = s->line, .column = s->column};
        if (s->annotation.known)
            in.annotation = s->annotation;
        const FxStatement *also = map_find(&bare, in.name);
        if (also)
            in.annotation = also->annotation;
        PUSH(p->a, m->in, m->nin, m->capin, in);
    }
}

static bool is_call(const Expr *e, const char *end)
{
    if (!e || e->kind != EX_CALL)
        return false;
    size_t n = strlen(e->s), k = strlen(end);
    return n >= k && !strcmp(e->s + n - k, end);
}

static void pytree(Parser *p)
{
    FxModule *m = p->m;
    for (int i = 0; i < m->nstatement; i++)
        if (is_call(m->statement[i].value, "pytree.tree_flatten_spec")) {
            flatten_inputs(p, &m->statement[i]);
            m->statement[i].value = NULL;
        }
    if (is_call(m->result, "pytree.tree_unflatten") && m->result->count)
        m->result = m->result->item[0];
}

static void function(Parser *p)
{
    p->inputs = (Map){.a = p->a};
    signature(p);
    for (skip_lines(p); !at(p, "return"); skip_lines(p)) {
        if (p->x.t.kind == PY_END)
            py_expected(&p->x, "return");
        statement(p);
    }
    py_next(&p->x);
    p->m->result = tuple(p);
    skip_lines(p);
}

/* `class submod_1(torch.nn.Module):` and its function, below that of the module it is inside of. */
static void inner_module(Parser *p, InnerModules *inner)
{
    FxModule *outer = p->m;
    p->m = NEW(p->a, FxModule);
    *p->m = (FxModule){.file = outer->file, .line = p->x.t.line, .column = p->x.t.column};
    need(p, "class");
    p->m->name = module_name(p);
    brackets(p);
    need(p, ":");
    skip_lines(p);
    function(p);
    PUSH(p->a, inner->module, inner->count, inner->cap, p->m);
    p->m = outer;
}

FxModule *fx_parse(Arena *a, const char *text, const char *file)
{
    Parser p = {.a = a, .m = NEW(a, FxModule)};
    InnerModules inner = {0};
    p.m->file = file;
    py_start(&p.x, a, py_plain(a, text), file);
    head(&p);
    function(&p);
    while (at(&p, "class"))
        inner_module(&p, &inner);
    if (p.x.t.kind != PY_END && !signature_follows(&p))
        py_expected(&p.x, "nothing more");
    pytree(&p);
    fx_inline(a, &p.x, p.m, &inner);
    return p.m;
}
