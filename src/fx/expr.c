/* Parses Python's expressions into a tree, by recursive descent. The grammar is in docs/formats.md.
 */
#include "fx.h"

#include <string.h>

enum {
    MAX_DEPTH = 60,   /* of brackets and operators */
    MAX_HEIGHT = 500, /* of an expression: x + 1 + 1 + 1 and x[0][0][0] have 3 */
};

static Expr *unary(PyLexer *x);

static Expr *expr_new(PyLexer *x, ExprKind kind, const PyToken *t)
{
    Expr *e = NEW(x->a, Expr);
    e->kind = kind;
    e->line = t->line;
    e->column = t->column;
    return e;
}

static void add_item(PyLexer *x, Expr *e, const char *key, Expr *item)
{
    int cap = e->cap;
    PyToken t = {.line = e->line, .column = e->column};
    e->height = MAX(e->height, item->height + 1);
    if (e->height > MAX_HEIGHT)
        py_fail(x, &t, "nested too deep: more than %d operators, indices or calls on one path",
                MAX_HEIGHT);
    PUSH(x->a, e->key, e->count, cap, key);
    e->count--;
    PUSH(x->a, e->item, e->count, e->cap, item);
}

static Expr *expr_call(PyLexer *x, const PyToken *t, const char *s, Expr *left, Expr *right)
{
    Expr *e = expr_new(x, EX_CALL, t);
    e->s = s;
    add_item(x, e, NULL, left);
    if (right)
        add_item(x, e, NULL, right);
    return e;
}

/* The text of a dict's key, as far as it is a string. */
static const char *key_text(const Expr *key)
{
    return key->kind == EX_STRING ? key->s : NULL;
}

/* Elements up to the closing bracket. */
static Expr *list(PyLexer *x, const PyToken *t, const char *close, bool *comma)
{
    Expr *e = expr_new(x, EX_LIST, t);
    bool any = false;
    while (!py_take(x, close)) {
        Expr *item = py_expression(x);
        const char *key = NULL;
        if (*close == '}') {
            py_need(x, ":");
            key = key_text(item);
            item = py_expression(x);
        }
        add_item(x, e, key, item);
        if (!py_at(x, close)) {
            py_need(x, ",");
            any = true;
        }
    }
    if (comma)
        *comma = any;
    return e;
}

static Expr *parentheses(PyLexer *x, const PyToken *t)
{
    bool comma;
    Expr *e = list(x, t, ")", &comma);
    return e->count == 1 && !comma ? e->item[0] : e;
}

static Expr *arguments(PyLexer *x, const PyToken *t, const char *callee)
{
    Expr *e = expr_new(x, EX_CALL, t);
    e->s = callee;
    while (!py_take(x, ")")) {
        PyToken first = x->t;
        Expr *item = py_expression(x);
        const char *key = NULL;
        if (py_at(x, "=")) {
            if (item->kind != EX_NAME || first.kind != PY_NAME)
                py_expected(x, "a value");
            py_next(x);
            key = item->s;
            item = py_expression(x);
        } else if (e->count && e->key[e->count - 1]) {
            py_fail(x, &first, "expected a keyword argument after another");
        }
        add_item(x, e, key, item);
        if (!py_at(x, ")"))
            py_need(x, ",");
    }
    return e;
}

/* Parses an expression that begins with the name t. */
static const char *dotted_name(PyLexer *x, const PyToken *t)
{
    Buf b = {.a = x->a};
    if (!py_at(x, "."))
        return t->s;
    buf_add(&b, t->s);
    while (b.len <= PY_MAX_NAME && py_take(x, ".")) {
        buf_add(&b, ".");
        buf_add(&b, py_name(x, "a name"));
    }
    if (b.len > PY_MAX_NAME)
        py_fail(x, t, "a name longer than %d bytes", PY_MAX_NAME);
    return b.text;
}

static Expr *word(PyLexer *x, const PyToken *t)
{
    static const struct Word {
        const char *s;
        ExprKind kind;
        int64_t i;
    } words[] = {{"None", EX_NONE, 0}, {"True", EX_BOOL, 1}, {"False", EX_BOOL, 0}};
    for (int i = 0; i < LEN(words); i++)
        if (!strcmp(t->s, words[i].s)) {
            Expr *e = expr_new(x, words[i].kind, t);
            e->i = words[i].i;
            return e;
        }
    Expr *e = expr_new(x, EX_NAME, t);
    e->s = dotted_name(x, t);
    if (!strncmp(e->s, "self.", 5)) {
        e->kind = EX_SELF;
        e->s += 5;
    }
    return e;
}

static Expr *atom(PyLexer *x)
{
    PyToken t = x->t;
    py_next(x);
    switch (t.kind) {
    case PY_NAME: return word(x, &t);
    case PY_INT:
    case PY_FLOAT: {
        if (t.kind == PY_INT && t.i == INT64_MIN)
            py_fail(x, &t, "integer out of range");
        Expr *e = expr_new(x, t.kind == PY_INT ? EX_INT : EX_FLOAT, &t);
        e->i = t.i;
        e->f = t.f;
        return e;
    }
    case PY_STRING: {
        Expr *e = expr_new(x, EX_STRING, &t);
        e->s = t.s;
        return e;
    }
    case PY_PUNCT:
        if (*t.s == '(')
            return parentheses(x, &t);
        if (*t.s == '[')
            return list(x, &t, "]", NULL);
        if (*t.s == '{')
            return list(x, &t, "}", NULL);
        break;
    default: break;
    }
    x->t = t;
    py_expected(x, "a value");
}

/* More of the path e, which names a constant or a module. */
static Expr *path(PyLexer *x, Expr *e, const char *more)
{
    PyToken t = {.line = e->line, .column = e->column};
    e->s = arena_printf(x->a, "%s.%s", e->s, more);
    if (strlen(e->s) > PY_MAX_NAME)
        py_fail(x, &t, "a name longer than %d bytes", PY_MAX_NAME);
    return e;
}

/* getattr(self.layer, "0") is self.layer.0. */
static Expr *attribute(PyLexer *x, Expr *e)
{
    bool part = !strcmp(e->s, "getattr") && e->count == 2 && e->item[0]->kind == EX_SELF &&
                e->item[1]->kind == EX_STRING;
    return part ? path(x, e->item[0], e->item[1]->s) : e;
}

/* A call of e: a function, or the check of an exported program's inputs, which means nothing. */
static Expr *call(PyLexer *x, const Expr *e)
{
    PyToken t = {.line = e->line, .column = e->column};
    bool guards = e->kind == EX_SELF && !strcmp(e->s, "_guards_fn");
    if (e->kind != EX_NAME && !guards)
        fx_foreign(x, &t, e->kind == EX_SELF ? FOREIGN_MODULE : FOREIGN_METHOD);
    py_next(x);
    Expr *y = arguments(x, &t, e->s);
    return guards ? expr_new(x, EX_NONE, &t) : attribute(x, y);
}

static Expr *postfix(PyLexer *x)
{
    Expr *e = atom(x);
    for (;;) {
        PyToken t = x->t;
        if (py_at(x, "(")) {
            e = call(x, e);
        } else if (e->kind == EX_SELF && t.kind == PY_FLOAT && *t.begin == '.') { /* layer.0 */
            e = path(x, e, arena_strndup(x->a, t.begin + 1, (size_t)t.len - 1));
            py_next(x);
        } else if (py_at(x, ".")) {
            if (e->kind != EX_SELF)
                fx_foreign(x, &t, FOREIGN_METHOD);
            py_next(x);
            e = path(x, e, py_name(x, "a name"));
        } else if (py_take(x, "[")) {
            Expr *index = expr_new(x, EX_INDEX, &t);
            add_item(x, index, NULL, e);
            add_item(x, index, NULL, py_expression(x));
            py_need(x, "]");
            e = index;
        } else {
            return e;
        }
    }
}

/* Negates the operand of a minus. */
static Expr *negative(PyLexer *x, const PyToken *minus)
{
    PyToken t = x->t;
    if (t.kind != PY_INT || t.i != INT64_MIN) {
        Expr *e = unary(x);
        bool number = (e->kind == EX_INT && e->i != INT64_MIN) || e->kind == EX_FLOAT;
        if (!number)
            return expr_call(x, minus, "operator.neg", e, NULL);
        e->i = -e->i;
        e->f = -e->f;
        return e;
    }
    Expr *e = expr_new(x, EX_INT, &t);
    e->i = INT64_MIN;
    e->f = -0x1p63;
    py_next(x);
    return e;
}

static Expr *unary(PyLexer *x)
{
    PyToken t = x->t;
    Expr *e;
    if (++x->nested > MAX_DEPTH)
        py_fail(x, &t, "nested too deep");
    if (py_take(x, "-")) {
        e = negative(x, &t);
    } else {
        e = postfix(x);
        if (py_take(x, "**"))
            e = expr_call(x, &t, "operator.pow", e, unary(x));
    }
    x->nested--;
    return e;
}

/* Operators by how strongly they bind, weakest first. */
static Expr *binary(PyLexer *x, int level)
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
    Expr *e = level == 4 ? unary(x) : binary(x, level + 1);
    for (int i = 0; i < LEN(operators); i++) {
        PyToken t = x->t;
        if (operators[i].level != level || !py_take(x, operators[i].s))
            continue;
        Expr *right = level == 4 ? unary(x) : binary(x, level + 1);
        e = expr_call(x, &t, operators[i].call, e, right);
        i = -1;
    }
    return e;
}

Expr *py_expression(PyLexer *x)
{
    if (++x->nested > MAX_DEPTH)
        py_fail(x, &x->t, "nested too deep");
    Expr *e = binary(x, 0);
    x->nested--;
    return e;
}

Expr *py_tuple(PyLexer *x)
{
    PyToken t = x->t;
    Expr *e = py_expression(x);
    if (!py_at(x, ","))
        return e;
    Expr *all = expr_new(x, EX_LIST, &t);
    add_item(x, all, NULL, e);
    while (py_take(x, ","))
        if (x->t.kind != PY_LINE && x->t.kind != PY_END && !py_at(x, "="))
            add_item(x, all, NULL, py_expression(x));
    return all;
}
