/* Escapes text for HTML: names in graphs and command lines are bytes and may be hostile. Bytes that
 * are not UTF-8, and characters that a document may not have, become U+FFFD. */
#include "page.h"

#include <math.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Bytes of the UTF-8 character at s that HTML may have, 0: none (there, s[0] is not 0). */
static int character(const unsigned char *s)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = s[0] < 0x80   ? 1
            : s[0] < 0xc2 ? 0
            : s[0] < 0xe0 ? 2
            : s[0] < 0xf0 ? 3
            : s[0] < 0xf5 ? 4
                          : 0;
    if (n == 1)
        return s[0] >= ' ' && s[0] != 0x7f;
    unsigned c = n ? s[0] & (0x7fu >> n) : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    bool whole = n && c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    return whole && c >= 0xa0 && (c & 0xfffe) != 0xfffe ? n : 0;
}

/* Adds up to `most` characters of s, those that `instead` names as it says; "..." where cut. */
static void put(Buf *b, const char *s, int most, const char *(*instead)(char c))
{
    for (; *s && most; most--) {
        int n = character((const unsigned char *)s);
        const char *other = n == 1 ? instead(*s) : n ? NULL : REPLACEMENT;
        if (other)
            buf_add(b, other);
        else
            buf_addn(b, s, (size_t)n);
        s += MAX(n, 1);
    }
    if (*s)
        buf_add(b, "\xe2\x80\xa6");
}

static const char *entity(char c)
{
    switch (c) {
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '&': return "&amp;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

void put_cut(Buf *b, const char *s, int most)
{
    put(b, s, most, entity);
}

void put_escaped(Buf *b, const char *s)
{
    put(b, s, -1, entity);
}

/* < never stands in the script: no "</script>", no "<!--". */
static const char *escape(char c)
{
    return c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '<' ? "\\u003c" : NULL;
}

void put_quoted(Buf *b, const char *s)
{
    buf_add(b, "\"");
    put(b, s, 120, escape);
    buf_add(b, "\"");
}

/* ---- numbers ---- */

void put_grouped(Buf *b, double x, int decimals)
{
    char digits[64];
    int n = snprintf(digits, sizeof digits, "%.*f", decimals, fabs(x));
    int whole = decimals ? n - decimals - 1 : n;
    if (x < 0)
        buf_add(b, "\xe2\x88\x92");
    for (int i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0)
            buf_add(b, ",");
        buf_addn(b, &digits[i], 1);
    }
    buf_add(b, digits + whole);
}

void put_bytes(Buf *b, int64_t nbytes)
{
    double size = fabs((double)nbytes);
    double unit = size >= 0x1p20 ? 0x1p20 : size >= 1024 ? 1024 : 1;
    put_grouped(b, (double)nbytes / unit, unit > 1 ? 2 : 0);
    buf_add(b, unit == 1 ? " bytes" : unit == 1024 ? " KiB" : " MiB");
}

static PageUnit first_unit(const PageUnit *unit, int n, double most)
{
    int i = 0;
    while (i < n - 1 && most < unit[i].one)
        i++;
    return unit[i];
}

PageUnit unit_of_bytes(double most)
{
    static const PageUnit units[] = {{"MiB", 0x1p20, 2}, {"KiB", 0x1p10, 2}, {"bytes", 1, 0}};
    return first_unit(units, LEN(units), most);
}

PageUnit unit_of_sec(double most)
{
    static const PageUnit units[] = {{"s", 1, 4}, {"ms", 1e-3, 3}, {"\xc2\xb5s", 1e-6, 2}};
    return first_unit(units, LEN(units), most);
}

void put_in(Buf *b, double x, const PageUnit *u)
{
    double least = pow(10, -u->digits);
    if (x != 0 && fabs(x) < least / 2 * u->one)
        buf_printf(b, "%s&lt;%.*f", x < 0 ? "\xe2\x88\x92" : "", u->digits, least);
    else
        put_grouped(b, x / u->one, x == 0 ? 0 : u->digits);
}
