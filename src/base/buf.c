/* Growing text in an arena: the capacity doubles; the old text stays until the arena is reset. */
#include "base.h"

#include <string.h>
#include <utf8proc.h>

void buf_addn(Buf *b, const char *s, size_t n)
{
    if (b->most && n > b->most - MIN(b->len, b->most))
        fail(arena_ctx(b->a), TN_FAIL, "%s", b->beyond);
    if (b->len + n + 1 > b->cap) {
        size_t cap = MAX(b->cap * 2, b->len + n + 32);
        char *text = arena_alloc(b->a, cap);
        if (b->len)
            memcpy(text, b->text, b->len);
        b->text = text;
        b->cap = cap;
    }
    memcpy(b->text + b->len, s, n);
    b->len += n;
    b->text[b->len] = 0;
}

void buf_add(Buf *b, const char *s)
{
    buf_addn(b, s, strlen(s));
}

void buf_printf(Buf *b, const char *format, ...)
{
    char small[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    CHECK(n >= 0);
    if ((size_t)n < sizeof small) {
        buf_addn(b, small, (size_t)n);
        return;
    }
    char *large = arena_alloc(b->a, (size_t)n + 1);
    va_start(args, format);
    vsnprintf(large, (size_t)n + 1, format, args);
    va_end(args);
    buf_addn(b, large, (size_t)n);
}

bool text_utf8(const char *text)
{
    size_t left = strlen(text);
    while (left) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)left, &c);
        if (n < 1)
            return false;
        text += n;
        left -= (size_t)n;
    }
    return true;
}
