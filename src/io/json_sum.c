/* The text of a JSON object with a checksum of its own, as state.json is: a first key `crc32c`,
 * whose value is the CRC-32C, as eight hexadecimal digits, of all bytes behind its closing quote. A
 * text without that key has none, as those of earlier versions. Linear. */
#include "io.h"

#include <ctype.h>
#include <string.h>

#define KEY   "\"crc32c\":"
#define BEGIN "{\n " KEY " \""
enum { DIGITS = 8, UNSUMMED = sizeof BEGIN - 1 + DIGITS + 1 };

static const char *sum_text(Arena *a, const char *text, size_t n)
{
    return arena_printf(a, "%08x", crc32c_end(crc32c_add(0, text, (int64_t)n), (int64_t)n));
}

const char *json_add_sum(Arena *a, const char *object)
{
    const char *rest = strchr(object, '{') + 1;
    while (isspace((unsigned char)*rest))
        rest++;
    rest = arena_printf(a, "%s%s", *rest == '}' ? "\n" : ",\n ", rest);
    return arena_printf(a, BEGIN "%s\"%s", sum_text(a, rest, strlen(rest)), rest);
}

void json_check_sum(Arena *a, const char *path)
{
    Ctx *ctx = arena_ctx(a);
    size_t n;
    const char *text = file_read_regular(a, path, &n), *said = text + sizeof BEGIN - 1;
    if (!strstr(text, KEY) && strlen(text) == n)
        return;
    if (n < UNSUMMED || strncmp(text, BEGIN, sizeof BEGIN - 1) != 0 || said[DIGITS] != '"')
        fail(ctx, TN_FAIL,
             "%s: \"crc32c\": expected eight digits in the second line: it is not as it was saved\n"
             "  without that key it is read as it is",
             path);
    const char *found = sum_text(a, text + UNSUMMED, n - UNSUMMED);
    if (strncmp(said, found, DIGITS) != 0)
        fail(ctx, TN_FAIL,
             "%s: expected the checksum %.*s, which it says, found %s: it is not as it was saved\n"
             "  without its line \"crc32c\" it is read as it is",
             path, DIGITS, said, found);
}
