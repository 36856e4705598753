/* Normalizers: rewrite a stretch of text before the model reads it, piece by piece. Each holds back
 * the part that following text could change. The result is that of Hugging Face's normalizers on
 * the whole stretch. */
#include "tokenizer.h"

#include <string.h>
#include <utf8proc.h>

/* ---- the forms of UAX #15 ---- */

static size_t run_form(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n, bool begun,
                       bool end)
{
    (void)begun;
    size_t cut = end ? n : text_cut(s, n);
    text_normalize(out, scratch, s, cut, f->composes, f->compatible);
    return cut;
}

static size_t run_lowercase(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                            bool begun, bool end)
{
    (void)f, (void)scratch, (void)begun, (void)end;
    int bytes;
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        utf8proc_uint8_t low[4];
        uint32_t c = char_at(s + at, &bytes);
        if (c == 0x130) { /* the one that becomes two */
            buf_add(out, "i\xcc\x87");
            continue;
        }
        utf8proc_ssize_t len = utf8proc_encode_char(utf8proc_tolower((utf8proc_int32_t)c), low);
        buf_addn(out, (char *)low, (size_t)len);
    }
    return n;
}

static size_t run_accents(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                          bool begun, bool end)
{
    (void)f, (void)scratch, (void)begun, (void)end;
    int bytes;
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        uint32_t c = char_at(s + at, &bytes);
        utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
        bool mark = kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
                    kind == UTF8PROC_CATEGORY_ME;
        if (!mark)
            buf_addn(out, s + at, (size_t)bytes);
    }
    return n;
}

static size_t run_charsmap(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                           bool begun, bool end)
{
    (void)scratch, (void)begun;
    return charsmap_run(f->map, out, s, n, end);
}

/* ---- Prepend, Strip ---- */

static size_t run_prepend(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                          bool begun, bool end)
{
    (void)scratch, (void)end;
    if (!begun && n)
        buf_add(out, f->content);
    buf_addn(out, s, n);
    return n;
}

static size_t run_strip(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                        bool begun, bool end)
{
    (void)scratch;
    int bytes;
    size_t from = 0, to = n;
    while (f->left && !begun && from < n && space_char(char_at(s + from, &bytes)))
        from += (size_t)bytes;
    while (f->right && to > from && space_char(char_at(s + char_before(s, to), &bytes)))
        to = char_before(s, to);
    buf_addn(out, s + from, to - from);
    return end ? n : to;
}

/* ---- Replace ---- */

/* The literal's first place at `at` or later; else where it may begin and more text must say. */
static bool find_literal(const Normal *f, const char *s, size_t n, size_t at, bool end, size_t *lo)
{
    for (;; at++) {
        const char *next = at < n ? memchr(s + at, f->literal[0], n - at) : NULL;
        *lo = at = next ? (size_t)(next - s) : n;
        if (at == n || (n - at < f->nliteral && !end && !memcmp(next, f->literal, n - at)))
            return false;
        if (n - at >= f->nliteral && !memcmp(next, f->literal, f->nliteral))
            return true;
    }
}

static size_t run_replace(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                          bool begun, bool end)
{
    (void)scratch, (void)begun;
    size_t at = 0, lo;
    for (; find_literal(f, s, n, at, end, &lo); at = lo + f->nliteral) {
        buf_addn(out, s + at, lo - at);
        buf_add(out, f->content);
    }
    buf_addn(out, s + at, lo - at);
    return lo;
}

static size_t run_regex(const Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                        bool begun, bool end)
{
    (void)scratch, (void)begun;
    size_t at = 0, lo, hi;
    Found found = FOUND_ALL;
    while (at < n && (found = regex_find(f->regex, s, n, at, !end, &lo, &hi)) == FOUND_ALL) {
        buf_addn(out, s + at, lo - at);
        buf_add(out, f->content);
        at = hi;
    }
    size_t plain = at < n && found == FOUND_PART ? lo : n;
    buf_addn(out, s + at, plain - at);
    return plain;
}

static void read_replace(Arena *a, Json j, Normal *f)
{
    json_check_keys(j, "type|pattern|content");
    Json pattern = json_get_object(j, "pattern");
    json_check_keys(pattern, "Regex|String");
    f->content = arena_strdup(a, json_get_string(j, "content"));
    f->moves = true;
    if (json_has(pattern, "String")) {
        f->run = run_replace;
        f->literal = arena_strdup(a, json_get_string(pattern, "String"));
        f->nliteral = strlen(f->literal);
        if (!f->nliteral)
            fail(arena_ctx(j.a), TN_FAIL, "%s: an empty pattern is not supported", j.where);
        f->moves = !*f->content || f->literal[char_bytes(f->literal[0])];
        return;
    }
    f->run = run_regex;
    f->regex = regex_new(a, j.where, json_get_string(pattern, "Regex"));
    if (strchr(f->content, '$'))
        fail(arena_ctx(j.a), TN_FAIL, "%s: groups in \"content\" (\"%s\") are not supported",
             j.where, f->content);
}

/* ---- all of them ---- */

static bool read_kind(Arena *a, Json j, const char *type, Normal *f)
{
    static const struct {
        const char *type;
        Normal f;
    } plain[] = {{"NFC", {.run = run_form, .composes = true}},
                 {"NFD", {.run = run_form}},
                 {"NFKC", {.run = run_form, .composes = true, .compatible = true}},
                 {"NFKD", {.run = run_form, .compatible = true}},
                 {"Lowercase", {.run = run_lowercase}},
                 {"StripAccents", {.run = run_accents, .moves = true}}};
    for (int i = 0; i < LEN(plain); i++)
        if (!strcmp(type, plain[i].type)) {
            json_check_keys(j, "type");
            *f = plain[i].f;
            return true;
        }
    *f = (Normal){0};
    if (!strcmp(type, "Replace")) {
        read_replace(a, j, f);
    } else if (!strcmp(type, "Prepend")) {
        json_check_keys(j, "type|prepend");
        *f =
            (Normal){.run = run_prepend, .content = arena_strdup(a, json_get_string(j, "prepend"))};
    } else if (!strcmp(type, "Strip")) {
        json_check_keys(j, "type|strip_left|strip_right");
        *f = (Normal){.run = run_strip,
                      .left = json_get_bool(j, "strip_left"),
                      .right = json_get_bool(j, "strip_right")};
        f->moves = f->left;
    } else if (!strcmp(type, "Precompiled")) {
        json_check_keys(j, "type|precompiled_charsmap");
        *f = (Normal){.run = run_charsmap, .moves = true};
        f->map = charsmap_new(a, j.where, json_get_string(j, "precompiled_charsmap"));
    }
    return f->run != NULL;
}

bool normal_read(Arena *a, Json j, const char *type, Normal *f)
{
    bool known = read_kind(a, j, type, f);
    f->beyond =
        arena_printf(a,
                     "%s: type \"%s\": makes more than %d bytes of each byte of text, which is "
                     "not supported",
                     j.where, type, MAX_GROWTH);
    return known;
}

const char *normal_text(Arena *a, const Normal *f, int n, const char *text)
{
    const size_t most = MAX_GROWTH * strlen(text) + MAX_MORE;
    text = arena_strdup(a, text);
    for (int i = 0; i < n; i++) {
        Buf out = {.a = a, .most = most, .beyond = f[i].beyond}, scratch = {.a = a};
        buf_add(&out, "");
        f[i].run(&f[i], &out, &scratch, text, strlen(text), false, true);
        text = out.text;
    }
    return text;
}
