/* Attributes, subscripts, methods of strings, mappings and loops, and functions. What Python's
 * types have beyond these is refused where it is called, as its result would be missing in silence.
 *
 * strftime_now gives one date whenever it is called, so that a run repeats: 26 July 2024, which
 * templates of Llama write without a clock, or that of SOURCE_DATE_EPOCH. */
#include "jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIXED_DATE 1721952000 /* seconds since 1970 */

/* ---- attributes ---- */

static bool in_list(const char *name, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

/* Whether Python's type has a method of that name. */
static bool has_method(JinjaKind kind, const char *name)
{
    static const char *const strings[] = {
        "capitalize", "casefold",     "center",       "count",   "encode",    "endswith",
        "expandtabs", "find",         "format",       "index",   "isalnum",   "isalpha",
        "isascii",    "isdecimal",    "isdigit",      "islower", "isnumeric", "isspace",
        "istitle",    "isupper",      "join",         "ljust",   "lower",     "lstrip",
        "partition",  "removeprefix", "removesuffix", "replace", "rfind",     "rindex",
        "rjust",      "rpartition",   "rsplit",       "rstrip",  "split",     "splitlines",
        "startswith", "strip",        "swapcase",     "title",   "upper",     "zfill"};
    static const char *const dicts[] = {"clear", "copy", "fromkeys", "get",    "items",
                                        "keys",  "pop",  "popitem",  "update", "values"};
    static const char *const lists[] = {"append", "clear", "copy", "count",   "extend", "index",
                                        "insert", "pop",   "sort", "reverse", "remove"};
    if (kind == JINJA_IS_STRING)
        return in_list(name, strings, LEN(strings));
    if (kind == JINJA_IS_DICT)
        return in_list(name, dicts, LEN(dicts));
    return kind == JINJA_IS_LIST && in_list(name, lists, LEN(lists));
}

static JinjaValue method(JinjaRun *r, JinjaValue of, const char *name)
{
    JinjaMethod *m = NEW(r->a, JinjaMethod);
    *m = (JinjaMethod){of, name};
    return (JinjaValue){.kind = JINJA_IS_METHOD, .u.method = m};
}

static JinjaValue neighbour(const JinjaLoop *l, int at)
{
    return at >= 0 && at < l->all->count ? l->all->item[at]
                                         : jinja_undefined(at < 0 ? "previtem" : "nextitem");
}

static JinjaValue loop_attribute(JinjaRun *r, JinjaValue x, const char *name)
{
    const JinjaLoop *l = x.u.loop;
    const bool all_of = !strncmp(name, "revindex", 8) || !strcmp(name, "length");
    jinja_loop_reach(r, x.u.loop,
                     all_of                                               ? INT32_MAX
                     : !strcmp(name, "last") || !strcmp(name, "nextitem") ? l->at + 1
                                                                          : 0);
    const struct {
        const char *name;
        JinjaValue value;
    } all[] = {{"index", jinja_int(l->at + 1)},
               {"index0", jinja_int(l->at)},
               {"revindex", jinja_int(l->all->count - l->at)},
               {"revindex0", jinja_int(l->all->count - l->at - 1)},
               {"first", jinja_bool(!l->at)},
               {"last", jinja_bool(l->at + 1 == l->all->count)},
               {"length", jinja_int(l->all->count)},
               {"depth", jinja_int(1)}, /* of recursive loops, which are refused */
               {"depth0", jinja_int(0)},
               {"previtem", neighbour(l, l->at - 1)},
               {"nextitem", neighbour(l, l->at + 1)}};
    for (int i = 0; i < LEN(all); i++)
        if (!strcmp(all[i].name, name))
            return all[i].value;
    if (!strcmp(name, "cycle"))
        return method(r, x, name);
    jinja_fail(r, "loop.%s is not supported", name);
}

JinjaValue jinja_attribute(JinjaRun *r, JinjaValue x, const char *name)
{
    if (x.kind == JINJA_IS_UNDEFINED)
        jinja_fail(r, "\"%s\" is undefined, so it has no \"%s\"", x.u.s, name);
    if (x.kind == JINJA_IS_LOOP)
        return loop_attribute(r, x, name);
    if (has_method(x.kind, name))
        return method(r, x, name);
    const JinjaValue *there = NULL;
    if (x.kind == JINJA_IS_DICT || x.kind == JINJA_IS_NAMESPACE)
        there = jinja_find(x, jinja_string(name, strlen(name)));
    return there ? *there : jinja_undefined(name);
}

static JinjaValue item_at(JinjaRun *r, JinjaValue x, int64_t at)
{
    bool string = x.kind == JINJA_IS_STRING;
    int64_t count = string ? (int64_t)jinja_length(x) : x.u.list->count;
    at += at < 0 ? count : 0;
    jinja_step(r, string ? at / 16 : 0);
    if (at < 0 || at >= count)
        return jinja_undefined("an item beyond the last");
    return string ? jinja_cut(r->a, x, at, at + 1, 1) : x.u.list->item[at];
}

JinjaValue jinja_subscript(JinjaRun *r, JinjaValue x, JinjaValue key)
{
    bool sequence =
        x.kind == JINJA_IS_STRING || x.kind == JINJA_IS_LIST || x.kind == JINJA_IS_TUPLE;
    const char *name =
        key.kind == JINJA_IS_STRING ? arena_strndup(r->a, key.u.s, key.n) : "an item";
    if (x.kind == JINJA_IS_UNDEFINED)
        jinja_fail(r, "\"%s\" is undefined, so it has no item", x.u.s);
    if (x.kind == JINJA_IS_DICT) {
        const JinjaValue *there = jinja_find(x, key);
        if (there)
            return *there;
    }
    if (sequence && (key.kind == JINJA_IS_INT || key.kind == JINJA_IS_BOOL))
        return item_at(r, x, key.kind == JINJA_IS_INT ? key.u.integer : key.u.yes);
    return key.kind == JINJA_IS_STRING ? jinja_attribute(r, x, name) : jinja_undefined(name);
}

/* ---- methods ---- */

static const JinjaValue *string_arg(JinjaRun *r, const JinjaArgs *args, int at, const char *word)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    if (!x || x->kind == JINJA_IS_NONE)
        return NULL;
    if (x->kind != JINJA_IS_STRING)
        jinja_fail(r, "expected a string as argument, found %s", jinja_kind(*x));
    return x;
}

static JinjaValue need_string(JinjaRun *r, const JinjaArgs *args, int at, const char *word)
{
    const JinjaValue *x = string_arg(r, args, at, word);
    if (!x)
        jinja_fail(r, "expected a string as argument, found none");
    return *x;
}

static int64_t int_arg(const JinjaArgs *args, int at, const char *word, int64_t otherwise)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    return x && x->kind == JINJA_IS_INT ? x->u.integer : otherwise;
}

static bool at_side(JinjaValue s, JinjaValue part, bool end)
{
    return part.n <= s.n && !memcmp(s.u.s + (end ? s.n - part.n : 0), part.u.s, part.n);
}

/* startswith, endswith: one string or any of several. */
static bool has_side(JinjaRun *r, JinjaValue s, const JinjaArgs *args, bool end)
{
    const JinjaValue *part = jinja_arg(args, 0, NULL);
    if (!part || part->kind != JINJA_IS_TUPLE)
        return at_side(s, need_string(r, args, 0, NULL), end);
    for (int i = 0; i < part->u.list->count; i++)
        if (part->u.list->item[i].kind == JINJA_IS_STRING && at_side(s, part->u.list->item[i], end))
            return true;
    return false;
}

static JinjaValue remove_side(JinjaRun *r, JinjaValue s, const JinjaArgs *args, bool end)
{
    JinjaValue part = need_string(r, args, 0, NULL);
    if (!at_side(s, part, end))
        return s;
    return jinja_string(s.u.s + (end ? 0 : part.n), s.n - part.n);
}

static JinjaValue split_string(JinjaRun *r, JinjaValue s, const JinjaArgs *args, bool right)
{
    const JinjaValue *by = string_arg(r, args, 0, "sep");
    int64_t most = int_arg(args, 1, "maxsplit", -1);
    if (by && !by->n)
        jinja_fail(r, "split: expected a separator, found an empty string");
    if (!by && right && most >= 0)
        jinja_fail(r, "rsplit at white space with a limit is not supported");
    jinja_step(r, (int64_t)s.n / 16);
    return jinja_split(r->a, s, by, most, right);
}

static JinjaValue find_string(JinjaRun *r, JinjaValue s, const JinjaArgs *args, bool last)
{
    int64_t at = jinja_search(s, need_string(r, args, 0, NULL), last);
    if (args->count > 1)
        jinja_fail(r, "find: expected one argument, found %d", args->count);
    return jinja_int(at < 0 ? -1 : (int64_t)jinja_length(jinja_string(s.u.s, (size_t)at)));
}

static JinjaValue count_string(JinjaRun *r, JinjaValue s, const JinjaArgs *args)
{
    JinjaValue part = need_string(r, args, 0, NULL);
    if (!part.n)
        return jinja_int((int64_t)jinja_length(s) + 1);
    return jinja_int(jinja_split(r->a, s, &part, -1, false).u.list->count - 1);
}

static JinjaValue join_strings(JinjaRun *r, JinjaValue s, const JinjaArgs *args)
{
    if (args->count != 1)
        jinja_fail(r, "join: expected a list, found %d arguments", args->count);
    const JinjaList *all = jinja_items(r, args->value[0]);
    for (int i = 0; i < all->count; i++)
        if (all->item[i].kind != JINJA_IS_STRING)
            jinja_fail(r, "join: expected strings, found %s", jinja_kind(all->item[i]));
    JinjaArgs by = {&s, (const char *[]){NULL}, 1};
    return jinja_filter(r, "join", args->value[0], &by);
}

static JinjaValue replace_string(JinjaRun *r, JinjaValue s, const JinjaArgs *args)
{
    JinjaValue from = need_string(r, args, 0, "old"), to = need_string(r, args, 1, "new");
    jinja_step(r, (int64_t)((s.n + 1) * (to.n + 16) / 16));
    return jinja_replace(r->a, s, from, to, int_arg(args, 2, "count", -1));
}

static bool all_digits(JinjaValue s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.u.s[i] < '0' || s.u.s[i] > '9')
            return false;
    return s.n > 0;
}

_Noreturn static void no_method(JinjaRun *r, JinjaValue x, const char *name)
{
    jinja_fail(r, "the method %s of %s is not supported", name, jinja_kind(x));
}

static JinjaValue string_method(JinjaRun *r, JinjaValue s, const char *name, const JinjaArgs *args)
{
#define IS(word) (!strcmp(name, word))
    s.markup = false;
    jinja_check_args(
        r, name,
        IS("split") || IS("rsplit") ? "sep maxsplit"
        : IS("replace")             ? "old new count"
        : IS("upper") || IS("lower") || IS("title") || IS("capitalize") || IS("isdigit") ? ""
                                                                                         : "-",
        args);
    if (IS("strip") || IS("lstrip") || IS("rstrip"))
        return jinja_strip(s, string_arg(r, args, 0, NULL),
                           IS("strip")    ? JINJA_BOTH
                           : IS("lstrip") ? JINJA_LEFT
                                          : JINJA_RIGHT);
    if (IS("split") || IS("rsplit"))
        return split_string(r, s, args, IS("rsplit"));
    if (IS("startswith") || IS("endswith"))
        return jinja_bool(has_side(r, s, args, IS("endswith")));
    if (IS("removeprefix") || IS("removesuffix"))
        return remove_side(r, s, args, IS("removesuffix"));
    if (IS("upper") || IS("lower") || IS("title") || IS("capitalize"))
        return jinja_case(r->a, s,
                          IS("upper")   ? JINJA_UPPER
                          : IS("lower") ? JINJA_LOWER
                          : IS("title") ? JINJA_TITLE
                                        : JINJA_CAPITAL);
    if (IS("replace"))
        return replace_string(r, s, args);
    if (IS("find") || IS("rfind"))
        return find_string(r, s, args, IS("rfind"));
    if (IS("count"))
        return count_string(r, s, args);
    if (IS("join"))
        return join_strings(r, s, args);
    if (IS("isdigit"))
        return jinja_bool(all_digits(s));
    no_method(r, s, name);
}

static JinjaValue dict_method(JinjaRun *r, JinjaValue x, const char *name, const JinjaArgs *args)
{
    jinja_check_args(r, name, IS("get") ? "- -" : "", args);
    if (IS("items"))
        return jinja_filter(r, "items", x, args);
    if (IS("keys"))
        return jinja_filter(r, "list", x, args);
    if (IS("values")) {
        JinjaValue all = jinja_list(r->a);
        for (int i = 0; i < x.u.dict->count; i++)
            jinja_push(r->a, all, x.u.dict->member[i].value);
        return all;
    }
    if (!IS("get"))
        no_method(r, x, name);
    const JinjaValue *key = jinja_arg(args, 0, NULL), *other = jinja_arg(args, 1, NULL);
    if (!key)
        jinja_fail(r, "get: expected a key");
    const JinjaValue *there = jinja_find(x, *key);
    return there ? *there : other ? *other : jinja_none();
#undef IS
}

JinjaValue jinja_method(JinjaRun *r, const JinjaMethod *m, const JinjaArgs *args)
{
    JinjaValue x = m->of;
    if (x.kind == JINJA_IS_STRING)
        return string_method(r, x, m->name, args);
    if (x.kind == JINJA_IS_DICT)
        return dict_method(r, x, m->name, args);
    if (x.kind == JINJA_IS_LOOP && args->count)
        return args->value[x.u.loop->at % args->count];
    no_method(r, x, m->name);
}

/* ---- functions ---- */

static JinjaValue make_dict(JinjaRun *r, const JinjaArgs *args, const char *what)
{
    JinjaValue x = jinja_dict(r->a);
    for (int i = 0; i < args->count; i++) {
        const char *word = args->word[i];
        JinjaValue y = args->value[i];
        if (!word && y.kind != JINJA_IS_DICT)
            jinja_fail(r, "%s: expected a mapping or arguments by name, found %s", what,
                       jinja_kind(y));
        if (word)
            jinja_put(r->a, x, jinja_string(word, strlen(word)), y);
        for (int k = 0; !word && k < y.u.dict->count; k++)
            jinja_put(r->a, x, y.u.dict->member[k].key, y.u.dict->member[k].value);
    }
    return x;
}

static JinjaValue range(JinjaRun *r, const JinjaArgs *args)
{
    int64_t v[3] = {0, 0, 1};
    JinjaValue all = jinja_list(r->a);
    if (args->count < 1 || args->count > 3)
        jinja_fail(r, "range: expected 1 to 3 integers, found %d arguments", args->count);
    for (int i = 0; i < args->count; i++) {
        JinjaValue x = args->value[i];
        if (x.kind != JINJA_IS_INT || x.u.integer > INT32_MAX || x.u.integer < INT32_MIN)
            jinja_fail(r, "range: expected integers of 32 bits, found %s", jinja_kind(x));
        v[args->count == 1 ? 1 : i] = x.u.integer;
    }
    if (!v[2])
        jinja_fail(r, "range: expected a step that is not 0");
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1]; i += v[2]) {
        jinja_step(r, 1);
        jinja_push(r->a, all, jinja_int(i));
    }
    return all;
}

static JinjaValue strftime_now(JinjaRun *r, const JinjaArgs *args)
{
    const char *given = getenv("SOURCE_DATE_EPOCH");
    char *end = NULL, text[256];
    JinjaValue format = need_string(r, args, 0, "format");
    time_t when = FIXED_DATE;
    struct tm day;
    if (given && *given) {
        errno = 0;
        when = (time_t)strtoll(given, &end, 10);
    }
    if ((end && (*end || errno)) || !gmtime_r(&when, &day))
        jinja_fail(r, "SOURCE_DATE_EPOCH: expected seconds since 1970, found \"%s\"", given);
    size_t n = strftime(text, sizeof text, arena_strndup(r->a, format.u.s, format.n), &day);
    return jinja_string(arena_strndup(r->a, text, n), n);
}

static const char *const functions[] = {"raise_exception", "namespace", "dict", "range",
                                        "strftime_now"};

bool jinja_function_known(const char *name)
{
    return in_list(name, functions, LEN(functions));
}

JinjaValue jinja_function(JinjaRun *r, const char *name, const JinjaArgs *args)
{
    if (*name == 'n' || *name == 'd') {
        JinjaValue x = make_dict(r, args, name);
        x.kind = *name == 'n' ? JINJA_IS_NAMESPACE : JINJA_IS_DICT;
        return x;
    }
    if (!strcmp(name, "range"))
        return range(r, args);
    if (!strcmp(name, "strftime_now"))
        return strftime_now(r, args);
    JinjaValue why = jinja_str(r, args->count ? args->value[0] : jinja_none());
    jinja_fail(r, "the template refuses this chat: %.*s", (int)MIN(why.n, 600), why.u.s);
}
