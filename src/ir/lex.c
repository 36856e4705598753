/* The tokens of .tn text: values, words, numbers, strings, punctuation. White space and comments
 * (# to the end of the line) separate them; line ends have no other meaning. Numbers are read
 * without regard to the locale: digits and a decimal exponent, no decimal point, go to strtod. */
#include "ir.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_letter(char c) /* of ASCII, whatever the locale */
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_word(char c)
{
    return is_letter(c) || isdigit((unsigned char)c);
}

static bool is_name(char c)
{
    return is_word(c) || c == '.';
}

/* ---- messages ---- */

void lex_fail(const Lexer *x, const Token *t, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(arena_ctx(x->a), TN_FAIL, "%.300s:%d:%d: %s", x->file, t->line, t->column, text);
}

/* The token as it stands in the text, at most 40 bytes of it, unprintable ones as \xNN. */
static const char *token_text(const Lexer *x, const Token *t)
{
    if (t->kind == TOK_END)
        return "the end of the file";
    Buf b = {.a = x->a};
    buf_add(&b, "\"");
    for (int i = 0; i < MIN(t->len, 40); i++) {
        unsigned char c = (unsigned char)t->begin[i];
        buf_printf(&b, c >= 32 && c < 127 ? "%c" : "\\x%02x", c);
    }
    buf_add(&b, t->len > 40 ? "...\"" : "\"");
    return b.text;
}

void lex_expected(const Lexer *x, const char *what)
{
    lex_fail(x, &x->t, "expected %s, found %s", what, token_text(x, &x->t));
}

/* ---- tokens ---- */

static void skip_space(Lexer *x)
{
    for (;;) {
        if (*x->at == '#')
            x->at += strcspn(x->at, "\n");
        if (!isspace((unsigned char)*x->at))
            return;
        if (*x->at++ == '\n') {
            x->line++;
            x->line_begin = x->at;
        }
    }
}

static void lex_string(Lexer *x, Token *t)
{
    Buf b = {.a = x->a};
    const char *s = t->begin + 1;
    buf_add(&b, "");
    for (; *s != '"'; s++) {
        if (!*s || *s == '\n')
            lex_fail(x, t, "expected \" at the end of the string, found the end of the line");
        if (*s == '\\' && !strchr("\"\\n", s[1] ? s[1] : 'x'))
            lex_fail(x, t, "expected \\\", \\\\ or \\n in a string, found another escape");
        bool escaped = *s == '\\';
        s += escaped;
        buf_addn(&b, escaped && *s == 'n' ? "\n" : s, 1);
    }
    t->kind = TOK_STRING;
    t->s = b.text;
    t->len = (int)(s + 1 - t->begin);
}

/* digits x 10^exponent, both without a decimal point */
static double to_double(Lexer *x, const char *begin, const char *end, long exponent)
{
    Buf b = {.a = x->a};
    bool point = false;
    for (const char *s = begin; s < end && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') {
            point = true;
            continue;
        }
        buf_addn(&b, s, 1);
        exponent -= point;
    }
    buf_printf(&b, "e%ld", exponent);
    return strtod(b.text, NULL);
}

static const char *skip_digits(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

static void lex_number(Lexer *x, Token *t)
{
    const char *s = skip_digits(t->begin + (*t->begin == '-'));
    long exponent = 0;
    t->kind = TOK_INT;
    if (*s == '.') {
        t->kind = TOK_FLOAT;
        s = skip_digits(s + 1);
    }
    if (*s == 'e' || *s == 'E') {
        const char *digits = s + 1 + (s[1] == '-' || s[1] == '+');
        t->kind = TOK_FLOAT;
        exponent = MAX(-100000000, MIN(100000000, strtol(s + 1, NULL, 10)));
        s = skip_digits(digits);
        t->len = (int)(s - t->begin);
        if (s == digits)
            lex_fail(x, t, "expected digits of an exponent, found none");
    }
    t->len = (int)(s - t->begin);
    if (is_name(*s))
        lex_fail(x, t, "expected the end of a number, found '%c'", *s);
    errno = 0;
    t->i = t->kind == TOK_INT ? strtoll(t->begin, NULL, 10) : 0;
    if (errno)
        lex_fail(x, t, "expected an integer of 64 bits, found a larger one");
    t->f = to_double(x, t->begin, s, exponent);
}

static void lex_minus(Lexer *x, Token *t)
{
    const char *s = t->begin + 1;
    if (isdigit((unsigned char)*s)) {
        lex_number(x, t);
    } else if (*s == '>') {
        *t = (Token){TOK_PUNCT, t->begin, 2, t->line, t->column, "->", 0, 0};
    } else if ((!strncmp(s, "inf", 3) || !strncmp(s, "nan", 3)) && !is_name(s[3])) {
        t->kind = TOK_FLOAT;
        t->len = 4;
        t->f = copysign(*s == 'i' ? INFINITY : NAN, -1.0);
    } else {
        lex_fail(x, t, "expected a number or \"->\", found \"-\"");
    }
}

static void lex_span(Lexer *x, Token *t, TokenKind kind, bool (*in)(char))
{
    int first = kind == TOK_VALUE, n = first;
    while (in(t->begin[n]))
        n++;
    t->kind = kind;
    t->len = n;
    t->s = arena_strndup(x->a, t->begin + first, (size_t)(n - first));
    if (n == first)
        lex_fail(x, t, "expected a name after %%, found none");
}

static void lex_punct(Lexer *x, Token *t)
{
    static const char *const all[] = {"(", ")", "[", "]", "{", "}", ",", ":", "=", "@"};
    t->kind = TOK_PUNCT;
    t->len = 1;
    for (int i = 0; i < LEN(all); i++)
        if (*all[i] == *t->begin)
            t->s = all[i];
    if (!t->s)
        lex_fail(x, t, "expected a token, found the character %s", token_text(x, t));
}

void lex_next(Lexer *x)
{
    skip_space(x);
    Token *t = &x->t;
    *t = (Token){.begin = x->at, .line = x->line, .column = (int)(x->at - x->line_begin) + 1};
    char c = *x->at;
    if (!c)
        t->kind = TOK_END;
    else if (c == '%')
        lex_span(x, t, TOK_VALUE, is_name);
    else if (is_letter(c))
        lex_span(x, t, TOK_WORD, is_word);
    else if (isdigit((unsigned char)c))
        lex_number(x, t);
    else if (c == '-')
        lex_minus(x, t);
    else if (c == '"')
        lex_string(x, t);
    else
        lex_punct(x, t);
    x->at += t->len;
}

void lex_start(Lexer *x, Arena *a, const char *text, const char *file)
{
    *x = (Lexer){.a = a, .file = file, .at = text, .line_begin = text, .line = 1};
    lex_next(x);
}

/* ---- what the parser asks for ---- */

bool lex_at(const Lexer *x, const char *s)
{
    return (x->t.kind == TOK_PUNCT || x->t.kind == TOK_WORD) && !strcmp(x->t.s, s);
}

bool lex_take(Lexer *x, const char *s)
{
    if (!lex_at(x, s))
        return false;
    lex_next(x);
    return true;
}

void lex_need(Lexer *x, const char *s)
{
    if (!lex_take(x, s))
        lex_expected(x, arena_printf(x->a, "\"%s\"", s));
}

Token lex_token(Lexer *x, TokenKind kind, const char *what)
{
    if (x->t.kind != kind)
        lex_expected(x, what);
    Token t = x->t;
    lex_next(x);
    return t;
}

Token lex_dotted(Lexer *x, const char *what)
{
    if (x->t.kind == TOK_WORD) {
        lex_span(x, &x->t, TOK_WORD, is_name);
        x->at = x->t.begin + x->t.len;
    }
    return lex_token(x, TOK_WORD, what);
}

int64_t lex_int(Lexer *x, const char *what, int64_t least, int64_t most)
{
    Token t = lex_token(x, TOK_INT, what);
    if (t.i < least || t.i > most)
        lex_fail(x, &t, "expected %s from %lld to %lld, found %lld", what, (long long)least,
                 (long long)most, (long long)t.i);
    return t.i;
}

int lex_enum(Lexer *x, const char *const *names, int first, int count)
{
    for (int i = first; i < count; i++)
        if (lex_take(x, names[i]))
            return i;
    return -1;
}

DType lex_dtype(Lexer *x)
{
    int d = x->t.kind == TOK_WORD ? dtype_parse(x->t.s) : -1;
    if (d < 0)
        lex_expected(x, "a dtype (f64 f32 f16 bf16 i64 i32 u8 bool)");
    lex_next(x);
    return (DType)d;
}

Type lex_type(Lexer *x)
{
    Token start = x->t;
    Type t = {.dtype = lex_dtype(x)};
    double nbytes = dtype_size(t.dtype);
    lex_need(x, "[");
    while (!lex_at(x, "]")) {
        if (t.rank)
            lex_need(x, ",");
        if (t.rank == TN_RANK)
            lex_expected(x, arena_printf(x->a, "\"]\" (a rank of at most %d)", TN_RANK));
        t.dim[t.rank] = lex_int(x, "a size", 0, (int64_t)1 << 56);
        nbytes *= (double)MAX(t.dim[t.rank], 1);
        t.rank++;
    }
    lex_need(x, "]");
    if (nbytes > 0x1p56)
        lex_fail(x, &start, "expected a type of at most 2^56 bytes, found a larger one");
    return t;
}

static Attr parse_ints(Lexer *x)
{
    int64_t *ints = NULL;
    int count = 0, cap = 0;
    lex_need(x, "[");
    while (!lex_at(x, "]")) {
        if (count)
            lex_need(x, ",");
        PUSH(x->a, ints, count, cap, lex_token(x, TOK_INT, "an integer").i);
    }
    lex_need(x, "]");
    return (Attr){.i = count, .ints = ints};
}

static double parse_float(Lexer *x)
{
    if (lex_take(x, "inf"))
        return __builtin_inf();
    if (lex_take(x, "nan"))
        return __builtin_nan("");
    TokenKind kind = x->t.kind == TOK_INT ? TOK_INT : TOK_FLOAT;
    if (kind == TOK_INT && (x->t.f >= 0x1p63 || (int64_t)x->t.f != x->t.i))
        lex_expected(x, "a number that a double has");
    return lex_token(x, kind, "a number").f;
}

static bool parse_bool(Lexer *x)
{
    if (lex_take(x, "false"))
        return false;
    if (!lex_take(x, "true"))
        lex_expected(x, "true or false");
    return true;
}

Attr lex_attr(Lexer *x, AttrKind kind)
{
    switch (kind) {
    case ATTR_INT: return (Attr){.i = lex_token(x, TOK_INT, "an integer").i};
    case ATTR_FLOAT: return (Attr){.f = parse_float(x)};
    case ATTR_BOOL: return (Attr){.i = parse_bool(x)};
    case ATTR_STR: return (Attr){.s = lex_token(x, TOK_STRING, "a string").s};
    case ATTR_DTYPE: return (Attr){.i = lex_dtype(x)};
    default: return parse_ints(x);
    }
}
