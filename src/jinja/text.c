/* Strings as Python has them: of characters, though their bytes are UTF-8. White space is that of
 * str.isspace; letters change by Unicode's simple mappings. Linear in the text. */
#include "jinja.h"

#include <ctype.h>
#include <string.h>
#include <utf8proc.h>

size_t jinja_char(const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;
    size_t len = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return MIN(len, n);
}

static uint32_t code_at(const char *s, size_t n)
{
    utf8proc_int32_t c = -1;
    utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    return c < 0 ? 0xfffd : (uint32_t)c;
}

bool jinja_space(const char *s, size_t n, size_t *len)
{
    unsigned char b = (unsigned char)*s;
    *len = 1;
    if (b < 0x80)
        return (b >= 9 && b <= 13) || (b >= 0x1c && b <= 0x20);
    *len = jinja_char(s, n);
    uint32_t c = code_at(s, n);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t jinja_length(JinjaValue s)
{
    size_t count = 0;
    for (size_t i = 0; i < s.n; i++)
        count += ((unsigned char)s.u.s[i] & 0xc0) != 0x80;
    return count;
}

/* The byte at which a character begins. */
static size_t byte_of(JinjaValue s, int64_t at)
{
    size_t i = 0;
    for (; at > 0 && i < s.n; at--)
        i += jinja_char(s.u.s + i, s.n - i);
    return i;
}

JinjaValue jinja_cut(Arena *a, JinjaValue s, int64_t from, int64_t to, int64_t step)
{
    Buf b = {.a = a};
    if (step == 1) {
        size_t begin = byte_of(s, from), end = byte_of(s, MAX(from, to));
        return jinja_string(s.u.s + begin, end - begin);
    }
    buf_addn(&b, "", 0);
    size_t *byte = NEWN(a, size_t, s.n + 1), at = 0; /* by character */
    for (int64_t k = 0; at < s.n; k++, at += jinja_char(s.u.s + at, s.n - at))
        byte[k] = at;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        buf_addn(&b, s.u.s + byte[i], jinja_char(s.u.s + byte[i], s.n - byte[i]));
    return jinja_string(b.text, b.len);
}

/* ---- strip ---- */

static bool stripped(JinjaValue s, size_t at, const JinjaValue *chars, size_t *len)
{
    if (!chars)
        return jinja_space(s.u.s + at, s.n - at, len);
    *len = jinja_char(s.u.s + at, s.n - at);
    for (size_t i = 0, n; i < chars->n; i += n) {
        n = jinja_char(chars->u.s + i, chars->n - i);
        if (n == *len && !memcmp(chars->u.s + i, s.u.s + at, n))
            return true;
    }
    return false;
}

JinjaValue jinja_strip(JinjaValue s, const JinjaValue *chars, JinjaSide side)
{
    size_t begin = 0, len;
    while ((side & JINJA_LEFT) && begin < s.n && stripped(s, begin, chars, &len))
        begin += len;
    size_t end = s.n;
    while ((side & JINJA_RIGHT) && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)s.u.s[at] & 0xc0) == 0x80)
            at--;
        if (!stripped(s, at, chars, &len))
            break;
        end = at;
    }
    return jinja_string(s.u.s + begin, end - begin);
}

/* ---- letters ---- */

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Some capitals are several letters. */
static bool put_special(Buf *b, uint32_t c, bool all)
{
    static const struct {
        uint32_t from;
        const char *upper, *title;
    } special[] = {{0xdf, "SS", "Ss"},    {0x149, "\xca\xbcN", "\xca\xbcN"},
                   {0xfb00, "FF", "Ff"},  {0xfb01, "FI", "Fi"},
                   {0xfb02, "FL", "Fl"},  {0xfb03, "FFI", "Ffi"},
                   {0xfb04, "FFL", "Ffl"}};
    for (int i = 0; i < LEN(special); i++)
        if (special[i].from == c) {
            buf_add(b, all ? special[i].upper : special[i].title);
            return true;
        }
    return false;
}

/* Whether a character parts words of the filter title. */
static bool parts_words(const char *s, size_t n)
{
    size_t len;
    return jinja_space(s, n, &len) || memchr("-({[<", *s, 5);
}

JinjaValue jinja_case(Arena *a, JinjaValue s, JinjaCase how)
{
    Buf b = {.a = a};
    bool before = false, parted = true; /* a cased letter is, what parts words is */
    buf_addn(&b, "", 0);
    for (size_t i = 0, n; i < s.n; i += n) {
        utf8proc_uint8_t made[4];
        n = jinja_char(s.u.s + i, s.n - i);
        uint32_t c = code_at(s.u.s + i, n);
        bool first = how == JINJA_CAPITAL ? i == 0 : how == JINJA_TITLE && !before;
        bool upper = how == JINJA_UPPER || (how == JINJA_WORDS && parted);
        before = is_cased(c);
        parted = parts_words(s.u.s + i, n);
        if ((upper || first) && put_special(&b, c, upper))
            continue;
        utf8proc_int32_t to = (utf8proc_int32_t)c;
        to = upper ? utf8proc_toupper(to) : first ? utf8proc_totitle(to) : utf8proc_tolower(to);
        buf_addn(&b, (const char *)made, (size_t)utf8proc_encode_char(to, made));
    }
    return jinja_string(b.text, b.len);
}

/* ---- search, replace, split ---- */

int64_t jinja_search(JinjaValue s, JinjaValue part, bool last)
{
    if (part.n > s.n)
        return -1;
    size_t end = s.n - part.n;
    for (size_t k = 0; k <= end; k++) {
        size_t at = last ? end - k : k;
        if (!memcmp(s.u.s + at, part.u.s, part.n))
            return (int64_t)at;
    }
    return -1;
}

static JinjaValue rest_of(JinjaValue s, size_t from)
{
    return jinja_string(s.u.s + from, s.n - from);
}

JinjaValue jinja_replace(Arena *a, JinjaValue s, JinjaValue from, JinjaValue to, int64_t most)
{
    Buf b = {.a = a};
    size_t at = 0;
    int64_t count = 0;
    buf_addn(&b, "", 0);
    while (most < 0 || count < most) {
        int64_t k = jinja_search(rest_of(s, at), from, false);
        if (k < 0)
            break;
        size_t n = from.n ? (size_t)k : 0, step = from.n;
        buf_addn(&b, s.u.s + at, n);
        buf_addn(&b, to.u.s, to.n);
        count++;
        if (!from.n) { /* before each character, and at the end */
            if (at >= s.n)
                break;
            step = jinja_char(s.u.s + at, s.n - at);
            buf_addn(&b, s.u.s + at, step);
        }
        at += n + step;
    }
    buf_addn(&b, s.u.s + at, s.n - at);
    return jinja_string(b.text, b.len);
}

static void reverse(JinjaList *l)
{
    for (int i = 0; i < l->count / 2; i++) {
        JinjaValue x = l->item[i];
        l->item[i] = l->item[l->count - 1 - i];
        l->item[l->count - 1 - i] = x;
    }
}

static JinjaValue split_right(Arena *a, JinjaValue s, JinjaValue by, int64_t most)
{
    JinjaValue list = jinja_list(a);
    for (int64_t k; (most < 0 || most--) && (k = jinja_search(s, by, true)) >= 0;) {
        jinja_push(a, list, rest_of(s, (size_t)k + by.n));
        s = jinja_string(s.u.s, (size_t)k);
    }
    jinja_push(a, list, s);
    reverse(list.u.list);
    return list;
}

static JinjaValue split_spaces(Arena *a, JinjaValue s, int64_t most)
{
    JinjaValue list = jinja_list(a);
    size_t at = 0, len;
    for (;;) {
        while (at < s.n && jinja_space(s.u.s + at, s.n - at, &len))
            at += len;
        if (at >= s.n)
            return list;
        if (most >= 0 && list.u.list->count >= most) {
            jinja_push(a, list, rest_of(s, at));
            return list;
        }
        size_t begin = at;
        while (at < s.n && !jinja_space(s.u.s + at, s.n - at, &len))
            at += len;
        jinja_push(a, list, jinja_string(s.u.s + begin, at - begin));
    }
}

JinjaValue jinja_split(Arena *a, JinjaValue s, const JinjaValue *by, int64_t most, bool right)
{
    if (!by)
        return split_spaces(a, s, most);
    if (right)
        return split_right(a, s, *by, most);
    JinjaValue list = jinja_list(a);
    for (int64_t k; (most < 0 || most--) && (k = jinja_search(s, *by, false)) >= 0;) {
        jinja_push(a, list, jinja_string(s.u.s, (size_t)k));
        s = rest_of(s, (size_t)k + by->n);
    }
    jinja_push(a, list, s);
    return list;
}

JinjaValue jinja_escape(Arena *a, JinjaValue s)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    Buf b = {.a = a};
    buf_addn(&b, "", 0);
    for (size_t i = 0; i < s.n; i++) {
        const char *k = s.u.s[i] ? strchr(from, s.u.s[i]) : NULL;
        if (k)
            buf_add(&b, to[k - from]);
        else
            buf_addn(&b, s.u.s + i, 1);
    }
    return jinja_string(b.text, b.len);
}
