/* Reports unknown calls: those of another kind of graph before inputs are asked for; all of them
 * can be listed at once. */
#include "fx.h"

#include <ctype.h>
#include <string.h>

bool fx_named_tuple(const char *s)
{
    const char *dot = strrchr(s, '.'), *name = dot ? dot + 1 : s;
    name += strspn(name, "_");
    return isupper((unsigned char)*name) && strncmp(s, "torch.ops.", 10) != 0;
}

static bool built_in(const char *s)
{
    return fx_named_tuple(s) || !strcmp(s, FX_SET_GRAD) || !strcmp(s, "device") ||
           !strcmp(s, "torch.device") || !strcmp(s, "float") || !strcmp(s, "complex") ||
           !strncmp(s, "operator.", 9) || !strncmp(s, "_operator.", 10);
}

static void check(Arena *a, const FxModule *m, const Expr *e)
{
    for (int i = 0; e && i < e->count; i++)
        check(a, m, e->item[i]);
    const char *what = e && e->kind == EX_CALL && !built_in(e->s) ? fx_foreign_call(e->s) : NULL;
    bool runs = fx_is_flex(e) && e->item[3]->kind == EX_MODULE;
    if (!runs && e && e->kind == EX_CALL && !strncmp(e->s, "torch.ops.higher_order.", 23))
        what = fx_foreign_nested(e->s);
    if (what)
        fail(arena_ctx(a), TN_FAIL, "%s:%d:%d: unknown op %s, %s", m->file, e->line, e->column,
             e->s, what);
}

void fx_check_calls(Arena *a, const FxModule *m)
{
    for (int i = 0; i < m->nstatement; i++)
        check(a, m, m->statement[i].value);
    check(a, m, m->result);
}

/* ---- all unknown calls at once ---- */

typedef struct Unknown {
    const char *name, *why;
    int count, line;
} Unknown;

typedef struct UnknownList {
    Arena *a;
    Unknown *item;
    int count, cap;
} UnknownList;

static void find_unknown(UnknownList *u, const Expr *e)
{
    for (int i = 0; e && i < e->count; i++)
        find_unknown(u, e->item[i]);
    if (!e || e->kind != EX_CALL || built_in(e->s) ||
        (fx_is_flex(e) && e->item[3]->kind == EX_MODULE))
        return;
    for (int i = 0; i < u->count; i++)
        if (!strcmp(u->item[i].name, e->s)) {
            u->item[i].count++;
            return;
        }
    const char *why = fx_call_unknown(u->a, e->s);
    if (why) {
        Unknown x = {e->s, why, 1, e->line};
        PUSH(u->a, u->item, u->count, u->cap, x);
    }
}

const char *fx_unknown(Arena *a, const char *text, const char *file, bool program)
{
    UnknownList u = {.a = a};
    Buf b = {.a = a};
    const FxModule *m = fx_parse(a, text, file, NULL);
    for (int i = 0; i < m->nstatement; i++)
        find_unknown(&u, m->statement[i].value);
    find_unknown(&u, m->result);
    for (int i = 0; i < u.count; i++) {
        const Unknown *x = &u.item[i];
        const char *place = program ? arena_printf(a, " %s", fx_place(a, text, x->line))
                                    : arena_printf(a, "%d", x->line);
        buf_printf(&b, "%s:%s: %s, %d time%s; %s\n", file, place, x->name, x->count,
                   x->count == 1 ? "" : "s", x->why);
    }
    return b.text;
}
