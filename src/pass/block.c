/* block: the key by which what stands at one place of equal blocks is found: its scope without
 * numbers, what the caller says of it (op, types, ...), and how many like it its own scope has had
 * before. Linear. */
#include "block.h"

#include <string.h>

static bool is_number(const char *s, size_t len)
{
    return len && strspn(s, "0123456789") == len;
}

const char *scope_alike(Arena *a, const char *scope, int most)
{
    Buf b = {.a = a};
    buf_printf(&b, "%s", "");
    for (const char *s = scope; *s;) {
        size_t n = strcspn(s, ".");
        bool star = most > 0 && is_number(s, n);
        most -= star;
        buf_printf(&b, star ? "*" : "%.*s", (int)n, s);
        s += n;
        buf_printf(&b, "%s", *s ? "." : "");
        s += *s == '.';
    }
    return b.text;
}

const char *place_key(Arena *a, Map *count, const char *scope, int most, const char *what)
{
    const char *own = arena_printf(a, "%s|%s", scope, what);
    int before = (int)(intptr_t)map_find(count, own);
    map_put(count, own, (void *)(intptr_t)(before + 1));
    return arena_printf(a, "%s|%s|%d", scope_alike(a, scope, most), what, before);
}
