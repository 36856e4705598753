/* Characters of the tokenizer's text: UTF-8 repair, white space, the forms NFC, NFD, NFKC, NFKD.
 *
 * The forms are utf8proc's, applied piece by piece: a text can be cut before a character whose
 * decomposition begins with one that neither reorders nor composes with what precedes it; that
 * holds below U+0300 and in the ranges of `apart` (combining class 0, not the second of a pair that
 * composes, UAX #15). */
#include "tokenizer.h"

#include <string.h>
#include <utf8proc.h>

int char_bytes(char first)
{
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

uint32_t char_at(const char *s, int *n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *n = 1;
        return u[0];
    }
    *n = char_bytes(*s);
    uint32_t c = u[0] & (0xffu >> (*n + 1));
    for (int i = 1; i < *n; i++)
        c = c << 6 | (u[i] & 0x3f);
    return c;
}

size_t char_before(const char *s, size_t at)
{
    do
        at--;
    while (at && ((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

bool space_char(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* ---- repair ---- */

/* The bytes of the well-formed character at s, or 0; then *bad is how many bytes of it could begin
 * one (at least 1), and *open says that they are all there is. */
static size_t well_formed(const unsigned char *s, size_t n, size_t *bad, bool *open)
{
    unsigned c = s[0], lo = 0x80, hi = 0xbf;
    size_t need = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    *bad = 1;
    *open = false;
    if (c == 0xe0 || c == 0xf0)
        lo = c == 0xe0 ? 0xa0 : 0x90;
    if (c == 0xed || c == 0xf4)
        hi = c == 0xed ? 0x9f : 0x8f;
    for (size_t i = 1; i < need; i++) {
        if (i == n) {
            *open = true;
            return 0;
        }
        if (s[i] < lo || s[i] > hi)
            return 0;
        *bad = i + 1;
        lo = 0x80;
        hi = 0xbf;
    }
    return need;
}

size_t text_repair(Buf *b, const char *s, size_t n, bool last, int64_t *bad_count, size_t *first)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t from = 0, at = 0;
    *bad_count = 0;
    while (at < n) {
        size_t bad = 1;
        bool open = false;
        while (at < n && u[at] < 0x80)
            at++;
        size_t need = at < n ? well_formed(u + at, n - at, &bad, &open) : 0;
        if (at == n || (!need && open && !last))
            break;
        if (!need) {
            if (!(*bad_count)++)
                *first = at;
            buf_addn(b, s + from, at - from);
            buf_add(b, "\xef\xbf\xbd");
            at += bad;
            from = at;
        }
        at += need;
    }
    buf_addn(b, s + from, at - from);
    return n - at;
}

/* ---- NFC and the like ---- */

static bool apart(uint32_t c)
{
    return c < 0x300 || (c >= 0x3000 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3098) ||
           (c >= 0x30a0 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x9fff);
}

size_t text_cut(const char *s, size_t n)
{
    int bytes;
    for (size_t at = n; at > 0;) {
        at = char_before(s, at);
        if (apart(char_at(s + at, &bytes)))
            return at;
    }
    return 0;
}

/* Whether all lead bytes are below. */
static bool below(const char *s, size_t n, unsigned char lead)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= lead)
            return false;
    return true;
}

/* Room for n characters in a buffer's memory. */
static utf8proc_int32_t *reserve(Buf *b, size_t n)
{
    if (b->cap < n * sizeof(utf8proc_int32_t)) {
        b->cap = 2 * n * sizeof(utf8proc_int32_t);
        b->text = arena_alloc(b->a, b->cap);
    }
    return (void *)b->text;
}

void text_normalize(Buf *b, Buf *scratch, const char *s, size_t n, bool composes, bool compatible)
{
    if (below(s, n, composes && !compatible ? 0xcc : 0x80)) { /* U+0300, U+0080 */
        buf_addn(b, s, n);
        return;
    }
    utf8proc_option_t how =
        (utf8proc_option_t)(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                            (compatible ? UTF8PROC_COMPAT : 0));
    utf8proc_ssize_t most = (utf8proc_ssize_t)n * (compatible ? 6 : 2); /* U+FDFA is the longest */
    utf8proc_int32_t *c = reserve(scratch, (size_t)most);
    utf8proc_ssize_t count =
        utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, c, most, how);
    CHECK(count >= 0 && count <= most);
    count = utf8proc_normalize_utf32(c, count, how);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        utf8proc_uint8_t out[4];
        buf_addn(b, (char *)out, (size_t)utf8proc_encode_char(c[i], out));
    }
}
