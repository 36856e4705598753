/* JSON as a stream: a problem has up to hundreds of megabytes of numbers, of which nothing but the
 * numbers is kept. Errors name the line and the column. */
#include "pick.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 16, DEEPEST = 100, LONGEST_NUMBER = 400 };

_Noreturn void scan_fail(const JsonScan *s, const char *format, ...)
{
    char text[500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(s->ctx, TN_FAIL, "%s:%d:%lld: %s", s->title, s->line, (long long)s->column, text);
}

static bool refill(JsonScan *s)
{
    if (!s->file)
        return false;
    s->at = 0;
    s->len = fread((char *)s->text, 1, CHUNK, s->file);
    if (!s->len && ferror(s->file))
        fail(s->ctx, TN_FAIL, "%s: cannot read", s->title);
    return s->len;
}

static int peek(JsonScan *s)
{
    return s->at < s->len || refill(s) ? (unsigned char)s->text[s->at] : EOF;
}

static void advance(JsonScan *s)
{
    s->column++;
    if (s->text[s->at++] == '\n') {
        s->line++;
        s->column = 1;
    }
}

int scan_peek(JsonScan *s)
{
    int c = peek(s);
    for (; c == ' ' || c == '\n' || c == '\t' || c == '\r'; c = peek(s))
        advance(s);
    return c;
}

/* The next byte, for messages. */
static const char *found(JsonScan *s, char text[12])
{
    int c = scan_peek(s);
    if (c == EOF)
        return "the end";
    snprintf(text, 12, c > ' ' && c < 127 ? "%c" : "byte %d", c);
    return text;
}

static void expect(JsonScan *s, char c)
{
    char text[12];
    if (scan_peek(s) != c)
        scan_fail(s, "expected %c, found %s", c, found(s, text));
    advance(s);
}

void scan_open(JsonScan *s, char bracket)
{
    expect(s, bracket);
}

bool scan_more(JsonScan *s, char close, int64_t *count)
{
    int c = scan_peek(s);
    if (c == close) {
        advance(s);
        return false;
    }
    char text[12];
    if (*count && c != ',')
        scan_fail(s, "expected , or %c, found %s", close, found(s, text));
    if (*count)
        advance(s);
    ++*count;
    return true;
}

/* Reads a string; keeps what fits. Escapes stay as they are written. */
static void read_string(JsonScan *s, char word[SCAN_WORD])
{
    int n = 0;
    expect(s, '"');
    for (int c; (c = peek(s)) != '"'; advance(s)) {
        if (c == EOF || c < ' ')
            scan_fail(s, "a string does not end on its line");
        if (n < SCAN_WORD - 1)
            word[n++] = (char)c;
        if (c == '\\') {
            advance(s);
            if (peek(s) == EOF)
                scan_fail(s, "a string does not end on its line");
        }
    }
    advance(s);
    word[n] = 0;
}

void scan_key(JsonScan *s, char word[SCAN_WORD])
{
    read_string(s, word);
    expect(s, ':');
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool in_number(int c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* [-]DIGITS[.DIGITS][e[+-]DIGITS], without zeros in front. */
static bool well_formed(const char *t)
{
    t += *t == '-';
    if (!is_digit(*t) || (*t == '0' && is_digit(t[1])))
        return false;
    t += strspn(t, "0123456789");
    if (*t == '.' && is_digit(t[1]))
        t += 1 + strspn(t + 1, "0123456789");
    if (*t == 'e' || *t == 'E') {
        t += t[1] == '-' || t[1] == '+' ? 2 : 1;
        if (!is_digit(*t))
            return false;
        t += strspn(t, "0123456789");
    }
    return !*t;
}

/* The digits of most numbers end before they reach 15. */
static bool read_short(JsonScan *s, double *x)
{
    enum { DIGITS = 15 };
    int64_t value = 0;
    size_t n = 0, left = s->len - s->at;
    const char *t = s->text + s->at;
    for (; n < left && n < DIGITS && is_digit(t[n]); n++)
        value = 10 * value + (t[n] - '0');
    if (!n || n == left || in_number(t[n]) || (*t == '0' && n > 1))
        return false;
    s->at += n;
    s->column += (int64_t)n;
    *x = (double)value;
    return true;
}

double scan_number(JsonScan *s)
{
    char text[LONGEST_NUMBER + 1], other[12];
    double x;
    int c = scan_peek(s), n = 0;
    if (read_short(s, &x))
        return x;
    if (c != '-' && !is_digit(c))
        scan_fail(s, "expected a number, found %s", found(s, other));
    JsonScan begin = *s;
    for (; in_number(c = peek(s)) && n < LONGEST_NUMBER; advance(s))
        text[n++] = (char)c;
    text[n] = 0;
    x = strtod(text, NULL);
    if (!well_formed(text))
        scan_fail(&begin, "expected a number, found %.40s", text);
    if (!isfinite(x))
        scan_fail(&begin, "expected a finite number, found %.40s", text);
    return x;
}

int64_t scan_integer(JsonScan *s, int64_t low, int64_t high)
{
    scan_peek(s);
    JsonScan begin = *s;
    double x = scan_number(s);
    if (x != floor(x))
        scan_fail(&begin, "expected an integer, found %g", x);
    if (x < (double)low || x > (double)high)
        scan_fail(&begin, "expected %lld to %lld, found %.17g", (long long)low, (long long)high, x);
    return (int64_t)x;
}

static void read_word(JsonScan *s, const char *word)
{
    for (const char *t = word; *t; t++)
        if (peek(s) != *t)
            scan_fail(s, "expected %s", word);
        else
            advance(s);
}

bool scan_null(JsonScan *s)
{
    if (scan_peek(s) != 'n')
        return false;
    read_word(s, "null");
    return true;
}

static void skip(JsonScan *s, int depth);

static void skip_list(JsonScan *s, char close, int depth)
{
    char word[SCAN_WORD];
    if (!depth)
        scan_fail(s, "nested more than %d deep", DEEPEST);
    for (int64_t count = 0; scan_more(s, close, &count);) {
        if (close == '}')
            scan_key(s, word);
        skip(s, depth - 1);
    }
}

static void skip(JsonScan *s, int depth)
{
    char word[SCAN_WORD];
    int c = scan_peek(s);
    if (c == '[' || c == '{') {
        scan_open(s, (char)c);
        skip_list(s, c == '[' ? ']' : '}', depth);
    } else if (c == '"')
        read_string(s, word);
    else if (c == 't' || c == 'f')
        read_word(s, c == 't' ? "true" : "false");
    else if (!scan_null(s))
        scan_number(s);
}

void scan_skip(JsonScan *s)
{
    skip(s, DEEPEST);
}

void scan_end(JsonScan *s)
{
    char text[12];
    if (scan_peek(s) != EOF)
        scan_fail(s, "expected the end, found %s", found(s, text));
}
