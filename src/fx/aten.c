/* The table of ATen overloads, made from aten.def by inclusion, and the search for an op that has
 * an overload's name as its alias. */
#include "lower.h"

#include <limits.h>
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

/* ---- what may have been meant ---- */

/* The name's second part: the op without namespace and overload. */
static const char *stem_of(Arena *a, const char *name)
{
    const char *at = strchr(name, '.') ? strchr(name, '.') + 1 : name;
    return arena_strndup(a, at, strcspn(at, "."));
}

typedef struct Nearest {
    Arena *a;
    const char *name, *stem, *best;
    int far; /* of the stem, then of the name */
    int far_name;
} Nearest;

/* Ops' names must be near; overloads only decide between equals. */
static void consider(Nearest *x, const char *name)
{
    int far = edit_distance(x->stem, stem_of(x->a, name), false);
    if (far > near_edits(x->stem, false) || far > x->far)
        return;
    int far_name = edit_distance(x->name, name, false);
    if (far == x->far && far_name >= x->far_name)
        return;
    x->best = name;
    x->far = far;
    x->far_name = far_name;
}

/* "prims.add.default", and not "add.Tensor" */
static bool has_namespace(const AtenRow *row)
{
    const char *dot = strchr(row->name, '.');
    return dot && strchr(dot + 1, '.');
}

const char *aten_nearest(Arena *a, const char *name)
{
    Nearest x = {a, name, stem_of(a, name), NULL, INT_MAX, INT_MAX};
    for (int i = 0; i < LEN(table); i++)
        if (table[i].lower)
            consider(&x, arena_printf(a, "%s%s", has_namespace(&table[i]) ? "" : "aten.",
                                      table[i].name));
    for (int i = 0; i < op_count; i++) {
        const char *p = op_table[i].rules ? op_table[i].rules->alias : NULL;
        for (; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
            consider(&x, arena_strndup(a, p, strcspn(p, " ")));
    }
    return x.best;
}
