/* Values as text, as Python's str, repr and json.dumps write them. Values are no deeper than the
 * JSON that they came from and what a template nests, both of which are limited. */
#include "jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MOST_NESTED = 500 };

/* ---- numbers ---- */

/* The shortest digits that give the number back; an exponent from 1e16 on, and below 1e-4. */
void jinja_real_text(Buf *b, double x)
{
    char text[40];
    int digits = 1;
    if (!isfinite(x)) {
        buf_add(b, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    do
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    int power = atoi(strchr(text, 'e') + 1);
    if (power < -4 || power >= 16) {
        *strchr(text, 'e') = 0;
        buf_printf(b, "%se%c%02d", text, power < 0 ? '-' : '+', abs(power));
        return;
    }
    int after = MAX(digits - 1 - power, 0);
    buf_printf(b, "%.*f%s", after, x, after ? "" : ".0");
}

/* ---- repr ---- */

/* Whether repr() shows a character as it is. */
static bool printable(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return c == ' ' ||
           !(k == UTF8PROC_CATEGORY_CN || k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF ||
             k == UTF8PROC_CATEGORY_CS || k == UTF8PROC_CATEGORY_CO || k == UTF8PROC_CATEGORY_ZS ||
             k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP);
}

static void quote(Buf *b, JinjaValue s)
{
    bool one = memchr(s.u.s, '\'', s.n) && !memchr(s.u.s, '"', s.n);
    char mark = one ? '"' : '\'';
    buf_addn(b, &mark, 1);
    for (size_t i = 0, n; i < s.n; i += n) {
        int32_t c = 0;
        n = jinja_char(s.u.s + i, s.n - i);
        utf8proc_iterate((const utf8proc_uint8_t *)s.u.s + i, (utf8proc_ssize_t)n, &c);
        if (c == mark || c == '\\')
            buf_printf(b, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            buf_printf(b, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (printable(c))
            buf_addn(b, s.u.s + i, n);
        else
            buf_printf(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
    buf_addn(b, &mark, 1);
}

static void nest(JinjaRun *r, int depth)
{
    jinja_step(r, 1);
    if (depth > MOST_NESTED)
        jinja_fail(r, "expected values in values at most %d deep", MOST_NESTED);
}

static void repr(JinjaRun *r, Buf *b, JinjaValue x, int depth);

static void repr_all(JinjaRun *r, Buf *b, JinjaValue x, int depth)
{
    bool dict = x.kind == JINJA_IS_DICT, list = x.kind == JINJA_IS_LIST;
    int count = dict ? x.u.dict->count : x.u.list->count;
    buf_add(b, dict ? "{" : list ? "[" : "(");
    for (int i = 0; i < count; i++) {
        if (i)
            buf_add(b, ", ");
        if (dict) {
            repr(r, b, x.u.dict->member[i].key, depth);
            buf_add(b, ": ");
        }
        repr(r, b, dict ? x.u.dict->member[i].value : x.u.list->item[i], depth);
    }
    buf_add(b, dict ? "}" : list ? "]" : count == 1 ? ",)" : ")");
}

static void repr(JinjaRun *r, Buf *b, JinjaValue x, int depth)
{
    nest(r, depth);
    switch (x.kind) {
    case JINJA_IS_UNDEFINED: buf_add(b, depth ? "Undefined" : ""); break;
    case JINJA_IS_NONE: buf_add(b, "None"); break;
    case JINJA_IS_BOOL: buf_add(b, x.u.yes ? "True" : "False"); break;
    case JINJA_IS_INT: buf_printf(b, "%lld", (long long)x.u.integer); break;
    case JINJA_IS_REAL: jinja_real_text(b, x.u.real); break;
    case JINJA_IS_STRING: quote(b, x); break;
    case JINJA_IS_LIST:
    case JINJA_IS_TUPLE:
    case JINJA_IS_DICT: repr_all(r, b, x, depth + 1); break;
    default: jinja_fail(r, "expected a value that has a text, found %s", jinja_kind(x));
    }
}

void jinja_show(JinjaRun *r, Buf *b, JinjaValue x)
{
    jinja_step(r, (int64_t)x.n / 16);
    if (x.kind == JINJA_IS_STRING)
        buf_addn(b, x.u.s, x.n);
    else
        repr(r, b, x, 0);
}

JinjaValue jinja_str(JinjaRun *r, JinjaValue x)
{
    if (x.kind == JINJA_IS_STRING)
        return x;
    Buf b = {.a = r->a};
    buf_addn(&b, "", 0);
    jinja_show(r, &b, x);
    return jinja_string(b.text, b.len);
}

/* ---- JSON ---- */

static void dump_string(Buf *b, JinjaValue s, bool ascii)
{
    static const char names[] = "\"\\\n\r\t\b\f", means[] = "\"\\nrtbf";
    buf_add(b, "\"");
    for (size_t i = 0, n; i < s.n; i += n) {
        unsigned char c = (unsigned char)s.u.s[i];
        const char *k = c ? strchr(names, c) : NULL;
        int32_t code = c;
        n = jinja_char(s.u.s + i, s.n - i);
        utf8proc_iterate((const utf8proc_uint8_t *)s.u.s + i, (utf8proc_ssize_t)n, &code);
        if (k)
            buf_printf(b, "\\%c", means[k - names]);
        else if (ascii && code > 0xffff)
            buf_printf(b, "\\u%04x\\u%04x", 0xd800 + ((unsigned)code - 0x10000) / 0x400,
                       0xdc00 + ((unsigned)code - 0x10000) % 0x400);
        else if (c < ' ' || (ascii && (code > 0x7f)))
            buf_printf(b, "\\u%04x", (unsigned)code);
        else
            buf_addn(b, s.u.s + i, n);
    }
    buf_add(b, "\"");
}

static void new_line(Buf *b, const JinjaDump *how, int depth)
{
    if (how->indent >= 0)
        buf_printf(b, "\n%*s", how->indent * depth, "");
}

static void dump(JinjaRun *r, Buf *b, JinjaValue x, const JinjaDump *how, int depth);

/* Members by key, where that is asked for. */
static const JinjaMember *members_of(JinjaRun *r, const JinjaDict *d, bool sorted)
{
    JinjaMember *m = NEWN(r->a, JinjaMember, d->count + 1);
    for (int i = 0; i < d->count; i++) {
        int k = i;
        for (; sorted && k && jinja_order(r, m[k - 1].key, d->member[i].key) > 0; k--)
            m[k] = m[k - 1];
        m[k] = d->member[i];
    }
    return m;
}

static void dump_key(JinjaRun *r, Buf *b, JinjaValue key, const JinjaDump *how)
{
    if (key.kind == JINJA_IS_STRING) {
        dump_string(b, key, how->ascii);
        return;
    }
    buf_add(b, "\"");
    dump(r, b, key, how, 0);
    buf_add(b, "\"");
}

static void dump_all(JinjaRun *r, Buf *b, JinjaValue x, const JinjaDump *how, int depth)
{
    bool dict = x.kind == JINJA_IS_DICT;
    int count = dict ? x.u.dict->count : x.u.list->count;
    const JinjaMember *m = dict ? members_of(r, x.u.dict, how->sorted) : NULL;
    buf_add(b, dict ? "{" : "[");
    for (int i = 0; i < count; i++) {
        if (i)
            buf_add(b, how->comma);
        new_line(b, how, depth + 1);
        if (dict) {
            dump_key(r, b, m[i].key, how);
            buf_add(b, how->colon);
        }
        dump(r, b, dict ? m[i].value : x.u.list->item[i], how, depth + 1);
    }
    if (count)
        new_line(b, how, depth);
    buf_add(b, dict ? "}" : "]");
}

static void dump(JinjaRun *r, Buf *b, JinjaValue x, const JinjaDump *how, int depth)
{
    nest(r, depth);
    switch (x.kind) {
    case JINJA_IS_NONE: buf_add(b, "null"); break;
    case JINJA_IS_BOOL: buf_add(b, x.u.yes ? "true" : "false"); break;
    case JINJA_IS_STRING: dump_string(b, x, how->ascii); break;
    case JINJA_IS_LIST:
    case JINJA_IS_TUPLE:
    case JINJA_IS_DICT: dump_all(r, b, x, how, depth); break;
    case JINJA_IS_INT:
    case JINJA_IS_REAL: repr(r, b, x, 0); break;
    default: jinja_fail(r, "tojson: expected a value that JSON has, found %s", jinja_kind(x));
    }
}

void jinja_dump(JinjaRun *r, Buf *b, JinjaValue x, const JinjaDump *how)
{
    dump(r, b, x, how, 0);
}
