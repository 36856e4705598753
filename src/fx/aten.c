/* The table of ATen overloads, made from aten.def by inclusion, and the ops that have an overload's
 * name as their alias. */
#include "fx.h"

#include <string.h>

/* clang-format off */
static const AtenRow table[] = {
#define ATEN(name, schema, lower)   {name, schema, row_##lower, NULL},
#define FOREACH(name, schema, each) {"_foreach_" name, schema, row_foreach, each},
#define SAME(name, schema, each)    {name, schema, row_same, each},
#define REFUSE(name, reason)        {name, reason, NULL, NULL},
#include "aten.def"
#undef ATEN
#undef FOREACH
#undef SAME
#undef REFUSE
};
/* clang-format on */

const AtenRow *aten_find(const char *name)
{
    size_t stem = strcspn(name, ".");
    for (int i = 0; i < LEN(table); i++) {
        const char *row = table[i].name;
        bool same =
            table[i].lower ? !strcmp(row, name) : strlen(row) == stem && !strncmp(row, name, stem);
        if (same)
            return &table[i];
    }
    return NULL;
}

const Op *aten_alias(const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < op_count; i++) {
        const char *p = op_table[i].rules ? op_table[i].rules->alias : NULL;
        for (; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
            if (strcspn(p, " ") == n && !strncmp(p, name, n))
                return &op_table[i];
    }
    return NULL;
}

const char *aten_nearest(Arena *a, const char *name)
{
    const char **names = NULL;
    int count = 0, cap = 0;
    for (int i = 0; i < LEN(table); i++)
        if (table[i].lower)
            PUSH(a, names, count, cap, arena_printf(a, "aten.%s", table[i].name));
    for (int i = 0; i < op_count; i++) {
        const char *p = op_table[i].rules ? op_table[i].rules->alias : NULL;
        for (; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
            PUSH(a, names, count, cap, arena_strndup(a, p, strcspn(p, " ")));
    }
    return nearest(name, names, count);
}
