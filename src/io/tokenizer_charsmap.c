/* SentencePiece's map of characters ("Precompiled"), as Hugging Face's spm_precompiled applies it:
 * to each grapheme cluster (UAX #29) of fewer than 6 bytes; to each character of a cluster that is
 * longer or that the map does not have. The whole cluster or character is replaced by the map's
 * entry for its shortest prefix; so does the reference, with which models were trained.
 *
 * The map is base64 of: the bytes of the trie (uint32), the trie, a double array (Yata's
 * darts-clone) of uint32 units, the replacements, each ended by NUL. A leaf's value is a place in
 * them. */
#include "tokenizer.h"

#include <string.h>
#include <utf8proc.h>

enum { SHORT = 6 }; /* bytes of a cluster that is looked up */

struct Charsmap {
    const unsigned char *unit; /* little-endian uint32 */
    size_t nunit;
    const char *text;
    size_t ntext;
    bool same[128]; /* ASCII characters that the map leaves as they are */
};

static size_t decode_base64(const char *s, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0, count = 0;
    uint32_t bits = 0;
    for (; *s && *s != '='; s++) {
        const char *digit = strchr(digits, *s);
        if (!digit)
            return 0;
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (++n % 4 != 1)
            out[count++] = (unsigned char)(bits >> (6 - 2 * ((n - 1) % 4)));
    }
    return n % 4 == 1 ? 0 : count;
}

static uint32_t unit_at(const Charsmap *m, size_t i)
{
    const unsigned char *u = m->unit + 4 * i;
    return u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The image of the shortest beginning of s[0..n) that the map has; NULL: it has none. */
static const char *look_up(const Charsmap *m, const char *s, size_t n)
{
    size_t at = offset_of(unit_at(m, 0));
    for (size_t i = 0; i < n && s[i]; i++) {
        unsigned char byte = (unsigned char)s[i];
        at ^= byte;
        uint32_t unit = at < m->nunit ? unit_at(m, at) : ~0u;
        if ((unit & (1u << 31 | 0xff)) != byte)
            return NULL;
        at ^= offset_of(unit);
        if (unit >> 8 & 1) {
            size_t place = at < m->nunit ? unit_at(m, at) & ~(1u << 31) : m->ntext;
            bool begins = place < m->ntext && ((unsigned char)m->text[place] & 0xc0) != 0x80;
            return begins ? m->text + place : NULL;
        }
    }
    return NULL;
}

static void check_text(Arena *a, const char *where, const Charsmap *m)
{
    Buf b = {.a = a};
    int64_t bad;
    size_t first;
    text_repair(&b, m->text, m->ntext, true, &bad, &first);
    if (bad)
        fail(arena_ctx(a), TN_FAIL, "%s: \"precompiled_charsmap\": its texts are not UTF-8", where);
}

Charsmap *charsmap_new(Arena *a, const char *where, const char *base64)
{
    Charsmap *m = NEW(a, Charsmap);
    unsigned char *raw = arena_alloc(a, strlen(base64) + 1);
    size_t n = decode_base64(base64, raw);
    uint32_t nbytes =
        n > 4 ? raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 | (uint32_t)raw[3] << 24
              : 0;
    if (n < 8 || nbytes < 4 || nbytes % 4 || nbytes > n - 4)
        fail(arena_ctx(a), TN_FAIL,
             "%s: \"precompiled_charsmap\": expected base64 of a trie and its texts", where);
    *m = (Charsmap){.unit = raw + 4, .nunit = nbytes / 4};
    m->text = (char *)raw + 4 + nbytes; /* arena memory is zeroed: the last one has its NUL */
    m->ntext = n - 4 - nbytes;
    check_text(a, where, m);
    for (int c = 0; c < 128; c++)
        m->same[c] = c != '\r' && !look_up(m, &(char){(char)c}, 1);
    return m;
}

/* The end of the cluster at s[at]; 0 where more text must say. */
static size_t cluster_end(const char *s, size_t n, size_t at, bool end)
{
    int bytes;
    utf8proc_int32_t state = 0, c = (utf8proc_int32_t)char_at(s + at, &bytes);
    for (at += (size_t)bytes; at < n; at += (size_t)bytes) {
        utf8proc_int32_t next = (utf8proc_int32_t)char_at(s + at, &bytes);
        if (utf8proc_grapheme_break_stateful(c, next, &state))
            return at;
        c = next;
    }
    return end ? n : 0;
}

static void replace(const Charsmap *m, Buf *out, const char *s, size_t n)
{
    int bytes;
    const char *to = n < SHORT ? look_up(m, s, n) : NULL;
    if (to) {
        buf_add(out, to);
        return;
    }
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        char_at(s + at, &bytes);
        to = look_up(m, s + at, (size_t)bytes);
        if (to)
            buf_add(out, to);
        else
            buf_addn(out, s + at, (size_t)bytes);
    }
}

/* How many bytes are ASCII characters that stay as they are and are clusters of their own: no mark
 * follows, nor are they CR LF. */
static size_t plain(const Charsmap *m, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (signed char)s[i] >= 0 && m->same[(unsigned char)s[i]])
        i++;
    return i < n && (signed char)s[i] < 0 && i ? i - 1 : i;
}

size_t charsmap_run(const Charsmap *m, Buf *out, const char *s, size_t n, bool end)
{
    for (size_t at = 0; at < n;) {
        size_t len = plain(m, s + at, n - at), stop;
        len = len == n - at && !end ? len - (len > 0) : len; /* a mark may follow */
        buf_addn(out, s + at, len);
        at += len;
        if (at == n)
            break;
        stop = cluster_end(s, n, at, end);
        if (!stop)
            return at;
        replace(m, out, s + at, stop - at);
        at = stop;
    }
    return n;
}
