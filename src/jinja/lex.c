/* Cuts a template into tokens: text between tags, and the words and signs of each tag. White space
 * is treated as Jinja does with trim_blocks and lstrip_blocks: a line break right after a block or
 * comment goes; so do blanks before one that begins its line; `-` in a tag takes all white space on
 * its side, `+` keeps it. The last line break of a template goes too. One pass. */
#include "jinja.h"

#include <ctype.h>
#include <string.h>

typedef struct JinjaLexer {
    Arena *a;
    const char *where;
    const char *s;
    size_t n, at;
    int line;
    bool line_start; /* what was read last ended in a line break, or nothing was read yet */
    JinjaToken *token;
    int count, cap;
} JinjaLexer;

_Noreturn static void wrong(const JinjaLexer *l, const char *what)
{
    fail(arena_ctx(l->a), TN_FAIL, "%s:%d: %s", l->where, l->line, what);
}

static void add(JinjaLexer *l, JinjaTokenKind kind, const char *s, size_t n)
{
    JinjaToken t = {kind, l->line, arena_strndup(l->a, s, n), n};
    PUSH(l->a, l->token, l->count, l->cap, t);
}

static void advance(JinjaLexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->s[l->at] == '\n';
}

/* Line breaks become \n, and the last one goes. */
static void normalize(JinjaLexer *l, const char *text, size_t n)
{
    char *s = NEWN(l->a, char, n + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        bool cr = text[i] == '\r';
        s[k++] = cr ? '\n' : text[i];
        i += cr && i + 1 < n && text[i + 1] == '\n';
    }
    k -= k && s[k - 1] == '\n';
    s[k] = 0;
    l->s = s;
    l->n = k;
}

/* ---- text between tags ---- */

static bool tag_at(const JinjaLexer *l, size_t at)
{
    return at + 1 < l->n && l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1];
}

static size_t skip_space(const JinjaLexer *l, size_t at)
{
    size_t len;
    while (at < l->n && jinja_space(l->s + at, l->n - at, &len))
        at += len;
    return at;
}

/* The end of a text that a tag at `end` follows. */
static size_t strip_text(const JinjaLexer *l, size_t begin, size_t end)
{
    char sign = end + 2 < l->n ? l->s[end + 2] : 0;
    if (sign == '-') {
        JinjaValue x = jinja_string(l->s + begin, end - begin);
        return begin + jinja_strip(x, NULL, JINJA_RIGHT).n;
    }
    if (sign == '+' || l->s[end + 1] == '{')
        return end;
    size_t line = end;
    while (line > begin && l->s[line - 1] != '\n')
        line--;
    bool whole = line > begin || l->line_start;
    return whole && skip_space(l, line) >= end ? line : end;
}

static void lex_text(JinjaLexer *l)
{
    size_t begin = l->at, at = begin;
    while (at < l->n && !tag_at(l, at))
        at++;
    size_t end = at < l->n ? strip_text(l, begin, at) : at;
    if (end > begin)
        add(l, JINJA_TEXT, l->s + begin, end - begin);
    if (at > begin)
        l->line_start = l->s[at - 1] == '\n';
    advance(l, at);
}

/* After the two characters that end a tag: what follows of white space, as `sign` before them says.
 */
static void end_tag(JinjaLexer *l, char sign, bool block)
{
    size_t at = l->at + 2;
    if (sign == '-')
        at = skip_space(l, at);
    else if (block && sign != '+' && at < l->n && l->s[at] == '\n')
        at++;
    advance(l, at);
    l->line_start = l->s[at - 1] == '\n';
}

static void lex_comment(JinjaLexer *l)
{
    const char *end = NULL;
    for (size_t i = l->at + 2; i + 1 < l->n && !end; i++)
        if (l->s[i] == '#' && l->s[i + 1] == '}')
            end = l->s + i;
    if (!end)
        wrong(l, "a comment: expected #}, found the end of the template");
    char sign = end[-1];
    advance(l, (size_t)(end - l->s));
    end_tag(l, sign, true);
}

/* ---- words and signs ---- */

static void put_code(Buf *b, uint32_t c)
{
    char s[4];
    size_t n = 0;
    if (c < 0x80) {
        s[n++] = (char)c;
    } else if (c < 0x800) {
        s[n++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        s[n++] = (char)(0xe0 | c >> 12);
        s[n++] = (char)(0x80 | (c >> 6 & 63));
    } else {
        s[n++] = (char)(0xf0 | c >> 18);
        s[n++] = (char)(0x80 | (c >> 12 & 63));
        s[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    if (c >= 0x80)
        s[n++] = (char)(0x80 | (c & 63));
    buf_addn(b, s, n);
}

/* A number of `digits` hexadecimal digits. */
static uint32_t read_hex(const JinjaLexer *l, size_t at, size_t end, int digits)
{
    uint32_t c = 0;
    for (int i = 0; i < digits; i++) {
        char d = at + (size_t)i < end ? l->s[at + (size_t)i] : 0;
        if (!isxdigit((unsigned char)d))
            wrong(l, "a string: expected hexadecimal digits after a backslash");
        c = c * 16 + (uint32_t)(isdigit((unsigned char)d) ? d - '0' : tolower(d) - 'a' + 10);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        wrong(l, "a string: expected a character after a backslash, found none of that number");
    return c;
}

/* Decodes the escape that a backslash at `at` begins; returns how many bytes it has. */
static size_t put_escape(const JinjaLexer *l, Buf *b, size_t at, size_t end)
{
    static const char names[] = "\\'\"abfnrtv", means[] = "\\'\"\a\b\f\n\r\t\v";
    char c = at + 1 < end ? l->s[at + 1] : 0;
    const char *k = c ? strchr(names, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (k) {
        buf_addn(b, &means[k - names], 1);
        return 2;
    }
    if (digits) {
        put_code(b, read_hex(l, at + 2, end, digits));
        return 2 + (size_t)digits;
    }
    if (c == '\n')
        return 2;
    if (c >= '0' && c <= '7') {
        uint32_t x = 0;
        size_t i = at + 1;
        while (i < end && i < at + 4 && l->s[i] >= '0' && l->s[i] <= '7')
            x = x * 8 + (uint32_t)(l->s[i++] - '0');
        put_code(b, x);
        return i - at;
    }
    if (c == 'N')
        wrong(l, "a string: characters by name (\\N) are not supported");
    buf_addn(b, "\\", 1);
    return 1;
}

static void lex_string(JinjaLexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    Buf b = {.a = l->a};
    while (end < l->n && l->s[end] != quote)
        end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        wrong(l, "a string: expected its quote, found the end of the template");
    buf_addn(&b, "", 0);
    for (size_t i = l->at + 1; i < end;) {
        if (l->s[i] == '\\') {
            i += put_escape(l, &b, i, end);
            continue;
        }
        buf_addn(&b, l->s + i++, 1);
    }
    add(l, JINJA_STRING, b.text ? b.text : "", b.len);
    advance(l, end + 1);
}

static void lex_number(JinjaLexer *l)
{
    size_t i = l->at;
    bool real = false;
    Buf b = {.a = l->a};
    for (; i < l->n; i++) {
        char c = l->s[i], next = i + 1 < l->n ? l->s[i + 1] : 0;
        bool point = c == '.' && !real && isdigit((unsigned char)next);
        bool power = (c == 'e' || c == 'E') && (isdigit((unsigned char)next) || next == '-');
        if (c == '_' && isdigit((unsigned char)next))
            continue;
        if (!isdigit((unsigned char)c) && !point && !power)
            break;
        real = real || point || power;
        buf_addn(&b, &c, 1);
        if (power && next == '-') {
            buf_addn(&b, &next, 1);
            i++;
        }
    }
    add(l, real ? JINJA_REAL : JINJA_INT, b.text, b.len);
    advance(l, i);
}

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static void lex_sign(JinjaLexer *l)
{
    static const char *const signs[] = {"==", "!=", ">=", "<=", "//", "**"};
    char c = l->s[l->at];
    size_t n = 0;
    for (int i = 0; i < LEN(signs); i++)
        if (!strncmp(l->s + l->at, signs[i], 2))
            n = 2;
    if (!n && strchr("+-*/%~|.,:=<>()[]{}", c) && c)
        n = 1;
    if (!n)
        fail(arena_ctx(l->a), TN_FAIL,
             isprint((unsigned char)c) ? "%s:%d: expected a name, a value or an operator, found %c"
                                       : "%s:%d: expected a name, a value or an operator, found "
                                         "a byte of value %d",
             l->where, l->line, (unsigned char)c);
    add(l, JINJA_SIGN, l->s + l->at, n);
    advance(l, l->at + n);
}

static void lex_word(JinjaLexer *l)
{
    char c = l->s[l->at];
    if (isdigit((unsigned char)c)) {
        lex_number(l);
    } else if (name_char(c)) {
        size_t end = l->at;
        while (end < l->n && name_char(l->s[end]))
            end++;
        add(l, JINJA_NAME, l->s + l->at, end - l->at);
        advance(l, end);
    } else if (c == '\'' || c == '"') {
        lex_string(l);
    } else {
        lex_sign(l);
    }
}

/* ---- tags ---- */

/* Whether a tag ends here, but for what brackets in it still want; *sign: - or + before that. */
static bool ends(const JinjaLexer *l, bool block, int open, char *sign)
{
    char c = l->s[l->at], first = block ? '%' : '}';
    bool signs = c == '-' || (block && c == '+');
    size_t at = l->at + signs;
    *sign = signs ? c : 0;
    return (block || !open || signs) && at + 1 < l->n && l->s[at] == first && l->s[at + 1] == '}';
}

static void lex_tag(JinjaLexer *l)
{
    bool block = l->s[l->at + 1] == '%';
    char sign = l->at + 2 < l->n ? l->s[l->at + 2] : 0;
    int open = 0;
    add(l, block ? JINJA_OPEN_BLOCK : JINJA_OPEN, l->s + l->at, 2);
    advance(l, l->at + 2 + (sign == '-' || (sign == '+')));
    for (;;) {
        while (l->at < l->n && isspace((unsigned char)l->s[l->at]))
            advance(l, l->at + 1);
        if (l->at >= l->n)
            wrong(l, block ? "expected %}, found the end of the template"
                           : "expected }}, found the end of the template");
        if (ends(l, block, open, &sign))
            break;
        open += l->s[l->at] == '{';
        open -= l->s[l->at] == '}';
        lex_word(l);
    }
    add(l, block ? JINJA_CLOSE_BLOCK : JINJA_CLOSE, l->s + l->at, 2);
    advance(l, l->at + (sign != 0));
    end_tag(l, sign, block);
}

JinjaToken *jinja_lex(Arena *a, const char *text, size_t n, const char *where)
{
    JinjaLexer l = {.a = a, .where = where, .line = 1, .line_start = true};
    normalize(&l, text, n);
    while (l.at < l.n) {
        lex_text(&l);
        if (l.at < l.n && l.s[l.at + 1] == '#')
            lex_comment(&l);
        else if (l.at < l.n)
            lex_tag(&l);
    }
    add(&l, JINJA_END, "", 0);
    return l.token;
}
