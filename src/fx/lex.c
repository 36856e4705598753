/* Tokens of the Python subset in which PyTorch prints a graph: names, numbers, strings, brackets,
 * operators. A line's end counts only outside of brackets; indentation does not count. */
#include "fx.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void py_fail(const PyLexer *x, const PyToken *t, const char *format, ...)
{
    va_list args;
    char text[600];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(arena_ctx(x->a), TN_FAIL, "%s:%d:%d: %s", x->file, t->line, t->column, text);
}

/* Names the innermost bracket that was opened before the line of the current token: it may be the
 * one that was left open. */
static const char *open_text(const PyLexer *x)
{
    const PyToken *t = &x->t;
    bool opens = t->kind == PY_PUNCT && strchr("([{", *t->s);
    const PyOpen *o = x->depth > opens ? &x->open[x->depth - 1 - opens] : NULL;
    if (!o || (o->line == t->line && t->kind != PY_END))
        return "";
    return arena_printf(x->a, "; \"%c\" at %d:%d is not closed", o->bracket, o->line, o->column);
}

void py_expected(const PyLexer *x, const char *what)
{
    const PyToken *t = &x->t;
    if (t->kind == PY_END || t->kind == PY_LINE)
        py_fail(x, t, "expected %s, found the end of %s%s", what,
                t->kind == PY_LINE ? "the statement"
                : x->part          ? x->part
                                   : "the file",
                open_text(x));
    py_fail(x, t, "expected %s, found \"%.*s\"%s", what, t->len > 60 ? 60 : t->len, t->begin,
            open_text(x));
}

static void comment(PyLexer *x)
{
    const char *begin = x->at + 1;
    x->at += strcspn(x->at, "\n");
    begin += strspn(begin, " \t");
    x->remark = arena_strndup(x->a, begin, (size_t)(MAX(x->at, begin) - begin));
}

static void new_line(PyLexer *x)
{
    x->at++;
    x->line++;
    x->line_begin = x->at;
}

/* Goes past what separates tokens; false where a line ends that counts. */
static bool skip(PyLexer *x)
{
    for (;;) {
        if (*x->at == '#')
            comment(x);
        else if (*x->at == '\n' && x->depth == 0)
            return false;
        else if (*x->at == '\n')
            new_line(x);
        else if (x->at[0] == '\\' && x->at[1] == '\n')
            x->at++, new_line(x);
        else if (*x->at == ' ' || *x->at == '\t' || *x->at == '\r' || *x->at == '\f')
            x->at++;
        else
            return true;
    }
}

static void number(PyLexer *x)
{
    PyToken *t = &x->t;
    char *end, *end_int;
    t->f = strtod(x->at, &end);
    errno = 0;
    unsigned long long i = strtoull(x->at, &end_int, 10);
    bool whole = end_int == end;
    t->kind = whole ? PY_INT : PY_FLOAT;
    t->len = (int)(end - x->at);
    if (strspn(x->at, "0123456789.eE+-") < (size_t)t->len || isalnum((unsigned char)*end) ||
        *end == '_')
        py_fail(x, t, "malformed number");
    if (whole && (errno || i > 1ULL << 63))
        py_fail(x, t, "integer out of range");
    t->i = i > INT64_MAX ? INT64_MIN : (int64_t)i;
    x->at = end;
}

/* Goes past a text in three quotes, which may have several lines. */
static void long_string(PyLexer *x)
{
    PyToken *t = &x->t;
    char quote = *x->at;
    const char *begin = x->at += 3;
    while (*x->at && !(x->at[0] == quote && x->at[1] == quote && x->at[2] == quote)) {
        if (*x->at == '\n')
            new_line(x);
        else
            x->at += x->at[0] == '\\' && x->at[1] && x->at[1] != '\n' ? 2 : 1;
    }
    if (!*x->at)
        py_fail(x, t, "string without its end");
    t->kind = PY_STRING;
    t->s = arena_strndup(x->a, begin, (size_t)(x->at - begin));
    x->at += 3;
}

/* The character that an escape stands for, which x->at goes past to its last; a letter that none
 * begins stands for itself. */
static char escaped(PyLexer *x)
{
    static const char letters[] = "ntr", meant[] = "\n\t\r";
    const char *letter = strchr(letters, *x->at);
    if (letter && *x->at)
        return meant[letter - letters];
    if (*x->at == 'x' && isxdigit((unsigned char)x->at[1]) && isxdigit((unsigned char)x->at[2])) {
        const char digits[] = {x->at[1], x->at[2], 0};
        char c = (char)strtol(digits, NULL, 16);
        if (!c)
            py_fail(x, &x->t, "unexpected \\x00 in a string");
        x->at += 2;
        return c;
    }
    return *x->at;
}

static void string(PyLexer *x)
{
    PyToken *t = &x->t;
    if (x->at[1] == x->at[0] && x->at[2] == x->at[0]) {
        long_string(x);
        return;
    }
    char quote = *x->at++;
    Buf b = {.a = x->a};
    buf_add(&b, "");
    for (; *x->at != quote; x->at++) {
        bool escape = *x->at == '\\' && x->at[1] && x->at[1] != '\n';
        x->at += escape;
        if (*x->at == 0 || *x->at == '\n')
            py_fail(x, t, "string without its end");
        char c = escape ? escaped(x) : *x->at;
        buf_addn(&b, &c, 1);
    }
    x->at++;
    t->kind = PY_STRING;
    t->s = b.text;
}

static void punctuation(PyLexer *x)
{
    static const char *const two[] = {"->", "==", "!=", "<=", ">=", "**", "//"};
    PyToken *t = &x->t;
    t->len = 1;
    for (int i = 0; i < LEN(two); i++)
        if (!strncmp(x->at, two[i], 2))
            t->len = 2;
    if (t->len == 1 && !strchr("()[]{},:=.+-*/%@<>~|&^", *x->at))
        py_fail(x, t, isprint((unsigned char)*x->at) ? "unexpected \"%c\"" : "unexpected byte %d",
                (unsigned char)*x->at);
    PyOpen opened = {t->line, t->column, *x->at};
    if (strchr("([{", *x->at))
        PUSH(x->a, x->open, x->depth, x->cap, opened);
    else if (strchr(")]}", *x->at) && x->depth > 0)
        x->depth--;
    t->kind = PY_PUNCT;
    t->s = arena_strndup(x->a, x->at, (size_t)t->len);
    x->at += t->len;
}

static bool name_begins(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

void py_next(PyLexer *x)
{
    bool more = skip(x);
    x->t = (PyToken){.begin = x->at, .line = x->line, .column = (int)(x->at - x->line_begin) + 1};
    PyToken *t = &x->t;
    if (!more) {
        t->kind = PY_LINE;
        new_line(x);
    } else if (*x->at == ';') {
        t->kind = PY_LINE;
        x->at++;
    } else if (*x->at == 0) {
        t->kind = PY_END;
    } else if (name_begins(*x->at)) {
        while (name_begins(*x->at) || isdigit((unsigned char)*x->at))
            x->at++;
        if (x->at - t->begin > PY_MAX_NAME)
            py_fail(x, t, "a name longer than %d bytes", PY_MAX_NAME);
        t->kind = PY_NAME;
        t->s = arena_strndup(x->a, t->begin, (size_t)(x->at - t->begin));
    } else if (isdigit((unsigned char)*x->at) ||
               (*x->at == '.' && isdigit((unsigned char)x->at[1]))) {
        number(x);
    } else if (*x->at == '"' || *x->at == '\'') {
        string(x);
    } else {
        punctuation(x);
    }
    t->len = (int)(x->at - t->begin);
}

void py_start(PyLexer *x, Arena *a, const char *text, const char *file, int line)
{
    *x =
        (PyLexer){.a = a, .file = file, .at = text, .line_begin = text, .line = line, .remark = ""};
    py_next(x);
}

bool py_at(const PyLexer *x, const char *s)
{
    const PyToken *t = &x->t;
    return (t->kind == PY_NAME || t->kind == PY_PUNCT) && !strcmp(t->s, s);
}

bool py_take(PyLexer *x, const char *s)
{
    bool yes = py_at(x, s);
    if (yes)
        py_next(x);
    return yes;
}

void py_need(PyLexer *x, const char *s)
{
    if (!py_take(x, s))
        py_expected(x, s);
}

const char *py_name(PyLexer *x, const char *what)
{
    const char *s = x->t.s;
    if (x->t.kind != PY_NAME)
        py_expected(x, what);
    py_next(x);
    return s;
}

void py_skip_lines(PyLexer *x)
{
    while (x->t.kind == PY_LINE)
        py_next(x);
}

void py_end_line(PyLexer *x)
{
    if (x->t.kind != PY_LINE && x->t.kind != PY_END)
        py_expected(x, "the end of the statement");
    py_skip_lines(x);
}

const char *py_annotation(PyLexer *x)
{
    const char *begin = x->t.begin, *p = begin;
    int depth = 0;
    char quote = 0;
    for (; *p && *p != '\n'; p++) {
        if (quote)
            quote = *p == quote ? 0 : quote;
        else if (*p == '"' || *p == '\'')
            quote = *p;
        else if (*p == '[' || *p == '(')
            depth++;
        else if (depth == 0 && strchr(",)=;", *p))
            break;
        else if (depth == 0 && *p == ':' && !isdigit((unsigned char)p[1])) /* not cuda:0 */
            break;
        else if (*p == ']' || *p == ')')
            depth--;
    }
    if (quote || depth > 0 || p == begin)
        py_expected(x, "an annotation");
    const char *end = p;
    while (end > begin && isspace((unsigned char)end[-1]))
        end--;
    x->depth -= x->t.kind == PY_PUNCT && strchr("([{", *x->t.begin) ? 1 : 0;
    x->at = p;
    py_next(x);
    if (end - begin >= 2 && (*begin == '"' || *begin == '\'') && end[-1] == *begin)
        return arena_strndup(x->a, begin + 1, (size_t)(end - begin - 2));
    return arena_strndup(x->a, begin, (size_t)(end - begin));
}

/* Without what colours it on a terminal: ESC [ numbers m */
const char *py_plain(Arena *a, const char *text)
{
    Buf b = {.a = a};
    const char *from = text, *at = text;
    while ((at = strstr(at, "\033["))) {
        size_t n = 2 + strspn(at + 2, "0123456789;");
        if (at[n] == 'm') {
            buf_addn(&b, from, (size_t)(at - from));
            from = at + n + 1;
        }
        at += n;
    }
    if (from == text)
        return text;
    buf_add(&b, from);
    return b.text;
}
