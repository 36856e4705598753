/* Places of nodes in messages. The code of an exported program is made here and nobody sees it, so
 * messages have the node's name in the place of a line of it, and the user's line where the program
 * has one. A comment above each statement carries both. */
#include "fx.h"

#include <string.h>

/* The n-th line of a text, from 1; its end where there are fewer. */
static const char *line_at(const char *text, int n)
{
    while (n-- > 1 && *text) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return text;
}

const char *fx_place(Arena *a, const char *code, int line)
{
    for (; line >= 1; line--) {
        const char *at = line_at(code, line);
        if (!strncmp(at, "def ", 4))
            break;
        if (!strncmp(at, FX_NODE, LEN(FX_NODE) - 1))
            return arena_strndup(a, at + LEN(FX_NODE) - 1, strcspn(at, "\n") - (LEN(FX_NODE) - 1));
    }
    return "";
}

_Noreturn void fx_fail_again(Ctx *ctx, Arena *a, const char *code, const char *file)
{
    size_t n = strlen(file);
    const char *message = ctx->message;
    int line = 0, used = 0;
    if (strncmp(message, file, n) != 0 || sscanf(message + n, ":%d:%*d: %n", &line, &used) < 1 ||
        !used)
        fail_again(ctx, "");
    const char *place = fx_place(a, code, line);
    fail(ctx, ctx->code, "%s: %s%s%s", file, place, *place ? ": " : "", message + n + used);
}
