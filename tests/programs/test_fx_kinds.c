/* Calls of every overload that the importer knows, each argument in turn of each kind: a graph or a
 * message at the call, and no crash. An argument of the right kind may still be one that the op
 * cannot take, as sizes of other tensors; that is a message too. TN_SHOW=1 prints each call before
 * it is tried. */
#include "../../src/fx/lower.h"
#include "../shared/fx.h"

#include <stdlib.h>

typedef struct Overload {
    const char *name, *schema;
} Overload;

/* clang-format off */
static const Overload overloads[] = {
#define ATEN(name, schema, lower)   {name, schema},
#define FOREACH(name, schema, each) {"_foreach_" name, schema},
#define SAME(name, schema, each)    {name, schema},
#define REFUSE(name, reason)
#include "../../src/fx/aten.def"
#undef ATEN
#undef FOREACH
#undef SAME
#undef REFUSE
};
/* clang-format on */

/* One text for each kind that an expression can be, and sizes that are wrong. */
static const char *const kinds[] = {
    "x",
    "y",
    "s",
    "i",
    "1",
    "-1",
    "9223372036854775807",
    "2.5",
    "None",
    "True",
    "'mean'",
    "torch.f32",
    "[x]",
    "[x, None]",
    "[]",
    "[0]",
    "[1, 2]",
    "[2.5, 1.0]",
    "[True]",
    "['a']",
    "[[x], [1]]",
    "torch.float32",
    "[0, 0, 0, 0, 0, 0, 0, 0, 0]",
};

enum { MOST_ARGS = 40 };

typedef struct Schema {
    int count;
    char type[MOST_ARGS][32], name[MOST_ARGS][64];
} Schema;

/* The fields of "Tensor self, int dim=0, *, bool keepdim=False". */
static void read_schema(const char *text, Schema *to)
{
    to->count = 0;
    while (*text) {
        size_t n = 0;
        int depth = 0;
        for (; text[n] && (text[n] != ',' || depth); n++)
            depth += (text[n] == '[' || text[n] == '(') - (text[n] == ']' || text[n] == ')');
        char field[200];
        snprintf(field, sizeof field, "%.*s", (int)n, text);
        char type[32], name[64];
        if (sscanf(field, " %31s %63[a-zA-Z0-9_]", type, name) == 2) {
            CHECK(to->count < MOST_ARGS);
            strcpy(to->type[to->count], type);
            strcpy(to->name[to->count++], name);
        }
        text += n + (text[n] == ',');
    }
}

/* An expression of the type. */
static const char *fitting(const char *type)
{
    static const char *const fit[][2] = {
        {"Tensor[]", "[x, x]"},
        {"Tensor?[]", "[i]"},
        {"Tensor", "x"},
        {"int[", "[0]"},
        {"int", "1"},
        {"bool[", "[True]"},
        {"bool", "False"},
        {"float", "0.5"},
        {"Scalar[]", "[1, 2]"},
        {"Scalar", "2"},
        {"str", "'mean'"},
        {"any", "None"},
        {"ScalarType", "torch.float32"},
    };
    for (int k = 0; k < LEN(fit); k++)
        if (!strncmp(type, fit[k][0], strlen(fit[k][0])))
            return strcmp(type, "ScalarType") ? fit[k][1] : "torch.float32";
    return "None";
}

/* The call with argument `other` as `text`; -1: none. Arguments go by name, so that those behind a
 * star can be given; optional ones are None. */
static const char *call_text(Arena *a, const Overload *o, const Schema *c, int other,
                             const char *text)
{
    Buf b = {.a = a};
    bool bare = strchr(o->name, '.') == strrchr(o->name, '.');
    buf_printf(&b, HEAD "    z = torch.ops.%s%s(", bare ? "aten." : "", o->name);
    for (int k = 0; k < c->count; k++) {
        const char *value = k == other ? text : fitting(c->type[k]);
        if (strchr(c->type[k], '?') && k != other)
            value = "None";
        buf_printf(&b, "%s = %s, ", c->name[k], value);
    }
    buf_add(&b, ")\n    return z\n");
    return b.text;
}

static int graphs, messages;

static void try_call(Arena *a, const char *text)
{
    Ctx *ctx = arena_ctx(a);
    Input in = input(a, text);
    point(&in);
    if (getenv("TN_SHOW"))
        fprintf(stderr, "%s", text);
    if (ctx_try(ctx, import, &in) == TN_OK)
        graphs++;
    else if (EXPECT(!strncmp(ctx->message, "test.fx:", 8)))
        messages++;
    else
        printf("  %s  %s\n", text, ctx->message);
}

static void try_overload(Arena *tmp, const Overload *o)
{
    Schema c;
    read_schema(o->schema, &c);
    try_call(tmp, call_text(tmp, o, &c, -1, NULL));
    for (int k = 0; k < c.count; k++)
        for (int i = 0; i < LEN(kinds); i++) {
            try_call(tmp, call_text(tmp, o, &c, k, kinds[i]));
            arena_reset(tmp);
        }
}

int main(void)
{
    Ctx ctx = {0};
    Arena *tmp = arena_new(&ctx);
    for (int i = 0; i < LEN(overloads); i++)
        try_overload(tmp, &overloads[i]);
    printf("%d overloads: %d graphs, %d messages\n", LEN(overloads), graphs, messages);
    EXPECT(graphs > 1000 && messages > 10000);
    arena_free(tmp);
    return test_report();
}
