/* Checks that the ranks that a launcher has started were given one command line. Rank 0's options
 * go to all of them as JSON, and each compares the values with its own, however they were written.
 */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Options of which each rank may have its own: rank 0's machine file alone is read, and how long a
 * rank waits and whether it speaks changes nothing for others. */
static const char own[] = "machine log-ranks comm-timeout";

static json_t *arguments(const Texts *args)
{
    json_t *list = json_array();
    for (int i = 0; i < args->count; i++)
        json_array_append_new(list, json_string(args->text[i]));
    return list;
}

static char *describe(const Option *table, const Texts *args, bool help)
{
    json_t *all = json_object();
    json_object_set_new(all, "arguments", arguments(args));
    json_object_set_new(all, "--help", json_boolean(help));
    for (const Option *o = table; o->kind; o++)
        json_object_set_new(all, o->name, option_value(o));
    char *text = json_dumps(all, 0);
    json_decref(all);
    return text;
}

/* Rank 0's text in the place of each rank's own. */
static int share_text(tn_context *ctx, char **text)
{
    int64_t n = *text ? (int64_t)strlen(*text) + 1 : 0;
    int code = tn_share(ctx, &n, sizeof n);
    if (!code && !rank_first(ctx)) {
        free(*text);
        *text = malloc((size_t)n);
    }
    if (!code && !*text)
        code = tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    code = tn_agree_code(ctx, code);
    return code ? code : tn_share(ctx, *text, (size_t)n);
}

/* A value as messages have it; of flags, and of what was not given, a word. */
static char *show(const json_t *value, bool absent)
{
    if (absent || !value || json_is_boolean(value))
        return strdup(!absent && json_is_true(value) ? "it" : "none");
    return json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

/* o NULL: no option's values. */
static int compare(tn_context *ctx, const char *what, const Option *o, const json_t *first,
                   const json_t *mine)
{
    if (first ? json_equal(first, mine) : !mine)
        return 0;
    char *x = show(first, o && first && option_absent(o, first));
    char *y = show(mine, o && mine && option_absent(o, mine));
    int code = tn_context_fail(ctx, TN_CODE_USAGE, "%s: rank 0 has %s, found %s", what, x ? x : "?",
                               y ? y : "?");
    free(x);
    free(y);
    return code;
}

static int compare_all(tn_context *ctx, const Command *c, const json_t *first, const Option *table,
                       const Texts *args, bool help)
{
    char what[80];
    json_t *mine = json_boolean(help);
    snprintf(what, sizeof what, "%s: --help", c->name);
    int code = compare(ctx, what, NULL, json_object_get(first, "--help"), mine);
    json_decref(mine);
    for (const Option *o = table; o->kind && !code; o++) {
        if (word_among(own, o->name))
            continue;
        mine = option_value(o);
        snprintf(what, sizeof what, "%s: --%s", c->name, o->name);
        code = compare(ctx, what, o, json_object_get(first, o->name), mine);
        json_decref(mine);
    }
    mine = arguments(args);
    snprintf(what, sizeof what, "%s: arguments", c->name);
    if (!code)
        code = compare(ctx, what, NULL, json_object_get(first, "arguments"), mine);
    json_decref(mine);
    return code;
}

int alike_options(tn_context *ctx, const Command *c, const Option *table, const Texts *args,
                  bool help)
{
    char *text = describe(table, args, help);
    int code = share_text(ctx, &text);
    json_t *first = code ? NULL : json_loads(text, 0, NULL);
    if (!code)
        code = tn_agree_code(ctx, compare_all(ctx, c, first, table, args, help));
    json_decref(first);
    free(text);
    return code;
}

int alike_command(tn_context *ctx, const Command *c)
{
    char first[40];
    snprintf(first, sizeof first, "%s", c->name);
    int code = tn_share(ctx, first, sizeof first);
    if (!code && strcmp(first, c->name))
        code = tn_context_fail(ctx, TN_CODE_USAGE,
                               "expected the command %s, as rank 0 has, found %s", first, c->name);
    return tn_agree_code(ctx, code);
}
