/* Filters, by their names in a table. Those that Jinja gives an iterator give a list. */
#include "jinja.h"

#include <stdlib.h>
#include <string.h>

typedef struct JinjaFilter {
    const char *name;
    JinjaValue (*run)(JinjaRun *r, JinjaValue x, const JinjaArgs *args);
    const char *words; /* of its arguments, by place; NULL: any */
} JinjaFilter;

const JinjaValue *jinja_arg(const JinjaArgs *args, int at, const char *word)
{
    for (int i = 0, place = 0; i < args->count; i++) {
        if (args->word[i] ? word && !strcmp(args->word[i], word) : place == at)
            return &args->value[i];
        place += !args->word[i];
    }
    return NULL;
}

/* The same, but none is as if it were absent. */
static const JinjaValue *arg_some(const JinjaArgs *args, int at, const char *word)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    return x && x->kind != JINJA_IS_NONE ? x : NULL;
}

static bool arg_true(const JinjaArgs *args, int at, const char *word)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    return x && jinja_true(*x);
}

/* A string, or NULL where it is absent or none. */
static const JinjaValue *arg_string(JinjaRun *r, const JinjaArgs *args, int at, const char *word)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    if (!x || x->kind == JINJA_IS_NONE)
        return NULL;
    if (x->kind != JINJA_IS_STRING)
        jinja_fail(r, "expected a string as argument \"%s\", found %s", word, jinja_kind(*x));
    return x;
}

static int64_t arg_int(JinjaRun *r, const JinjaArgs *args, int at, const char *word,
                       int64_t otherwise)
{
    const JinjaValue *x = jinja_arg(args, at, word);
    if (!x || x->kind == JINJA_IS_NONE)
        return otherwise;
    if (x->kind != JINJA_IS_INT)
        jinja_fail(r, "expected an integer as argument \"%s\", found %s", word, jinja_kind(*x));
    return x->u.integer;
}

/* Arguments from number `from` on. */
static JinjaArgs args_after(const JinjaArgs *args, int from)
{
    if (from >= args->count)
        return (JinjaArgs){0};
    return (JinjaArgs){args->value + from, args->word + from, args->count - from};
}

/* ---- of strings ---- */

static JinjaValue trim(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    JinjaValue s = jinja_strip(jinja_str(r, x), arg_string(r, args, 0, "chars"), JINJA_BOTH);
    s.markup = x.markup;
    return s;
}

static JinjaValue upper(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    return jinja_case(r->a, jinja_str(r, x), JINJA_UPPER);
}

static JinjaValue lower(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    return jinja_case(r->a, jinja_str(r, x), JINJA_LOWER);
}

static JinjaValue capitalize(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    return jinja_case(r->a, jinja_str(r, x), JINJA_CAPITAL);
}

static JinjaValue title(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    return jinja_case(r->a, jinja_str(r, x), JINJA_WORDS);
}

static JinjaValue replace(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *from = arg_string(r, args, 0, "old"), *to = arg_string(r, args, 1, "new");
    if (!from || !to)
        jinja_fail(r, "replace: expected two strings");
    JinjaValue s = jinja_str(r, x);
    jinja_step(r, (int64_t)((s.n + 1) * (to->n + 16) / 16));
    return jinja_replace(r->a, s, *from, *to, arg_int(r, args, 2, "count", -1));
}

static JinjaValue string(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    return jinja_str(r, x);
}

static JinjaValue safe(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    x = jinja_str(r, x);
    x.markup = true;
    return x;
}

static JinjaValue escape(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    if (!x.markup)
        x = jinja_escape(r->a, jinja_str(r, x));
    x.markup = true;
    return x;
}

/* ---- of any values ---- */

static JinjaValue otherwise(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)r;
    const JinjaValue *other = jinja_arg(args, 0, "default_value");
    bool falsy = arg_true(args, 1, "boolean") && !jinja_true(x);
    if (x.kind != JINJA_IS_UNDEFINED && !falsy)
        return x;
    return other ? *other : jinja_string("", 0);
}

static JinjaValue length(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    switch (x.kind) {
    case JINJA_IS_UNDEFINED: return jinja_int(0);
    case JINJA_IS_STRING: return jinja_int((int64_t)jinja_length(x));
    case JINJA_IS_LIST:
    case JINJA_IS_TUPLE: return jinja_int(x.u.list->count);
    case JINJA_IS_DICT: return jinja_int(x.u.dict->count);
    default:
        jinja_fail(r, "length: expected a string, a list or a mapping, found %s", jinja_kind(x));
    }
}

static JinjaValue tojson(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *between = jinja_arg(args, 2, "separators");
    int64_t indent = arg_int(r, args, 1, "indent", -1);
    JinjaDump how = {.indent = (int)MAX(MIN(indent, 100), -1),
                     .comma = indent >= 0 ? "," : ", ",
                     .colon = ": ",
                     .ascii = arg_true(args, 0, "ensure_ascii"),
                     .sorted = arg_true(args, 3, "sort_keys")};
    if (between && between->kind != JINJA_IS_NONE) {
        const JinjaList *two = jinja_items(r, *between);
        if (two->count != 2 || two->item[0].kind != JINJA_IS_STRING ||
            two->item[1].kind != JINJA_IS_STRING)
            jinja_fail(r, "tojson: separators: expected two strings");
        how.comma = two->item[0].u.s;
        how.colon = two->item[1].u.s;
    }
    Buf b = {.a = r->a};
    jinja_dump(r, &b, x, &how);
    jinja_step(r, (int64_t)b.len / 16);
    return jinja_string(b.text, b.len);
}

/* Reads a string as int() or float() does; false where it is no number. */
static bool read_number(JinjaValue x, double *value)
{
    JinjaValue s = jinja_strip(x, NULL, JINJA_BOTH);
    char text[64], *end;
    if (!s.n || s.n >= sizeof text)
        return false;
    memcpy(text, s.u.s, s.n);
    text[s.n] = 0;
    if (text[strspn(text, "+-.0123456789eE")])
        return false;
    *value = strtod(text, &end);
    return !*end;
}

static JinjaValue to_int(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    double value = 0;
    if (arg_int(r, args, 1, "base", 10) != 10)
        jinja_fail(r, "int: a base other than 10 is not supported");
    if (x.kind == JINJA_IS_INT)
        return x;
    if (x.kind == JINJA_IS_BOOL)
        return jinja_int(x.u.yes);
    if (x.kind == JINJA_IS_REAL)
        value = x.u.real;
    else if (x.kind != JINJA_IS_STRING || !read_number(x, &value))
        return jinja_int(arg_int(r, args, 0, "default", 0));
    if (!(value > -9e18 && value < 9e18))
        jinja_fail(r, "int: expected a number of 64 bits, found %g", value);
    return jinja_int((int64_t)value);
}

static JinjaValue to_real(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *other = jinja_arg(args, 0, "default");
    double value = 0;
    (void)r;
    if (x.kind == JINJA_IS_INT)
        return jinja_real((double)x.u.integer);
    if (x.kind == JINJA_IS_REAL)
        return x;
    if (x.kind == JINJA_IS_STRING && read_number(x, &value))
        return jinja_real(value);
    return other ? *other : jinja_real(0);
}

static JinjaValue absolute(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    if (x.kind == JINJA_IS_REAL)
        return jinja_real(x.u.real < 0 ? -x.u.real : x.u.real);
    if (x.kind != JINJA_IS_INT || x.u.integer == INT64_MIN)
        jinja_fail(r, "abs: expected a number, found %s", jinja_kind(x));
    return jinja_int(x.u.integer < 0 ? -x.u.integer : x.u.integer);
}

/* ---- of lists ---- */

static JinjaValue list(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    const JinjaList *all = jinja_items(r, x);
    JinjaValue copy = jinja_list(r->a);
    for (int i = 0; i < all->count; i++)
        jinja_push(r->a, copy, all->item[i]);
    return copy;
}

static JinjaValue first(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    const JinjaList *all = jinja_items(r, x);
    return all->count ? all->item[0] : jinja_undefined("the first of no items");
}

static JinjaValue last(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    const JinjaList *all = jinja_items(r, x);
    return all->count ? all->item[all->count - 1] : jinja_undefined("the last of no items");
}

static JinjaValue reverse(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    const JinjaList *all = jinja_items(r, x);
    JinjaValue turned = jinja_list(r->a);
    for (int i = all->count; i--;)
        jinja_push(r->a, turned, all->item[i]);
    Buf b = {.a = r->a};
    buf_addn(&b, "", 0);
    for (int i = 0; x.kind == JINJA_IS_STRING && i < all->count; i++)
        buf_addn(&b, turned.u.list->item[i].u.s, turned.u.list->item[i].n);
    return x.kind == JINJA_IS_STRING ? jinja_string(b.text, b.len) : turned;
}

/* x.a.0.b by a path of names and numbers. */
static JinjaValue by_path(JinjaRun *r, JinjaValue x, JinjaValue path)
{
    if (path.kind != JINJA_IS_STRING)
        return jinja_subscript(r, x, path);
    const JinjaValue dot = jinja_string(".", 1);
    JinjaValue parts = jinja_split(r->a, path, &dot, -1, false);
    for (int i = 0; i < parts.u.list->count; i++) {
        JinjaValue part = parts.u.list->item[i];
        const char *name = arena_strndup(r->a, part.u.s, part.n);
        bool place = part.n && part.n < 10 && strspn(name, "0123456789") == part.n;
        x = place ? jinja_subscript(r, x, jinja_int(atoi(name)))
                  : jinja_subscript(r, x, jinja_string(name, part.n));
    }
    return x;
}

static JinjaValue join(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *between = arg_string(r, args, 0, "d");
    const JinjaValue *path = arg_some(args, 1, "attribute");
    const JinjaList *all = jinja_items(r, x);
    Buf b = {.a = r->a};
    buf_addn(&b, "", 0);
    for (int i = 0; i < all->count; i++) {
        if (i && between)
            buf_addn(&b, between->u.s, between->n);
        jinja_show(r, &b, path ? by_path(r, all->item[i], *path) : all->item[i]);
    }
    return jinja_string(b.text, b.len);
}

static JinjaValue pair(JinjaRun *r, const JinjaMember *m)
{
    JinjaValue x = jinja_list(r->a);
    x.kind = JINJA_IS_TUPLE;
    jinja_push(r->a, x, m->key);
    jinja_push(r->a, x, m->value);
    return x;
}

static JinjaValue items(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    (void)args;
    JinjaValue all = jinja_list(r->a);
    if (x.kind != JINJA_IS_DICT && x.kind != JINJA_IS_UNDEFINED)
        jinja_fail(r, "items: expected a mapping, found %s", jinja_kind(x));
    for (int i = 0; x.kind == JINJA_IS_DICT && i < x.u.dict->count; i++)
        jinja_push(r->a, all, pair(r, &x.u.dict->member[i]));
    return all;
}

/* The key by which items are ordered. */
static JinjaValue sort_key(JinjaRun *r, JinjaValue x, bool cased)
{
    return x.kind == JINJA_IS_STRING && !cased ? jinja_case(r->a, x, JINJA_LOWER) : x;
}

/* Puts an item behind those that are not after it, which keeps equal ones in order. */
static void insert(JinjaRun *r, JinjaList *all, JinjaValue *key, int n, JinjaValue x, JinjaValue k,
                   bool down)
{
    int at = n;
    for (; at; at--) {
        int order = jinja_order(r, key[at - 1], k);
        if (down ? order >= 0 : order <= 0)
            break;
        key[at] = key[at - 1];
        all->item[at] = all->item[at - 1];
        jinja_step(r, 1);
    }
    key[at] = k;
    all->item[at] = x;
}

static JinjaValue sort_items(JinjaRun *r, JinjaValue all, const JinjaValue *path, bool cased,
                             bool down)
{
    JinjaValue sorted = list(r, all, NULL);
    JinjaList *l = sorted.u.list;
    JinjaValue *key = NEWN(r->a, JinjaValue, l->count + 1);
    for (int i = 0; i < l->count; i++) {
        JinjaValue x = l->item[i];
        insert(r, l, key, i, x, sort_key(r, path ? by_path(r, x, *path) : x, cased), down);
    }
    return sorted;
}

static JinjaValue sort(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    return sort_items(r, x, arg_some(args, 2, "attribute"), arg_true(args, 1, "case_sensitive"),
                      arg_true(args, 0, "reverse"));
}

static JinjaValue dictsort(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *by = jinja_arg(args, 1, "by");
    JinjaValue place = jinja_int(by && jinja_is_string(*by, "value"));
    if (x.kind != JINJA_IS_DICT)
        jinja_fail(r, "dictsort: expected a mapping, found %s", jinja_kind(x));
    return sort_items(r, items(r, x, args), &place, arg_true(args, 0, "case_sensitive"),
                      arg_true(args, 2, "reverse"));
}

static JinjaValue unique(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *path = arg_some(args, 1, "attribute");
    const bool cased = arg_true(args, 0, "case_sensitive");
    const JinjaList *all = jinja_items(r, x);
    JinjaValue some = jinja_list(r->a), keys = jinja_list(r->a);
    for (int i = 0; i < all->count; i++) {
        JinjaValue key = sort_key(r, path ? by_path(r, all->item[i], *path) : all->item[i], cased);
        jinja_step(r, keys.u.list->count);
        if (jinja_in(r, key, keys))
            continue;
        jinja_push(r->a, keys, key);
        jinja_push(r->a, some, all->item[i]);
    }
    return some;
}

static JinjaValue map(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    const JinjaValue *path = arg_some(args, -1, "attribute");
    const JinjaValue *other = jinja_arg(args, -1, "default"), *name = arg_string(r, args, 0, "");
    const JinjaList *all = jinja_items(r, x);
    JinjaValue made = jinja_list(r->a);
    if (!path && !name)
        jinja_fail(r, "map: expected a filter's name or attribute=");
    if (!path && !jinja_filter_known(name->u.s))
        jinja_fail(r, "the filter %s is not supported", name->u.s);
    JinjaArgs rest = args_after(args, path ? 0 : 1);
    for (int i = 0; i < all->count; i++) {
        JinjaValue y = path ? by_path(r, all->item[i], *path)
                            : jinja_filter(r, name->u.s, all->item[i], &rest);
        jinja_push(r->a, made, y.kind == JINJA_IS_UNDEFINED && other ? *other : y);
    }
    return made;
}

/* Items that a test holds for, or does not, of themselves or an attribute. */
static JinjaValue choose(JinjaRun *r, JinjaValue x, const JinjaArgs *args, bool attribute, bool yes)
{
    const JinjaValue *path = attribute ? jinja_arg(args, 0, "") : NULL;
    const JinjaValue *name = arg_string(r, args, attribute, "");
    const JinjaList *all = jinja_items(r, x);
    JinjaValue some = jinja_list(r->a);
    if (attribute && !path)
        jinja_fail(r, "expected an attribute's name");
    if (name && !jinja_test_known(name->u.s))
        jinja_fail(r, "the test %s is not supported", name->u.s);
    JinjaArgs rest = args_after(args, attribute + 1);
    for (int i = 0; i < all->count; i++) {
        JinjaValue y = path ? by_path(r, all->item[i], *path) : all->item[i];
        bool holds = name ? jinja_test(r, name->u.s, y, &rest) : jinja_true(y);
        if (holds == yes)
            jinja_push(r->a, some, all->item[i]);
    }
    return some;
}

static JinjaValue select_items(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    return choose(r, x, args, false, true);
}

static JinjaValue reject_items(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    return choose(r, x, args, false, false);
}

static JinjaValue selectattr(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    return choose(r, x, args, true, true);
}

static JinjaValue rejectattr(JinjaRun *r, JinjaValue x, const JinjaArgs *args)
{
    return choose(r, x, args, true, false);
}

/* ---- all of them ---- */

static const JinjaFilter filters[] = {
    {"abs", absolute, ""},
    {"capitalize", capitalize, ""},
    {"count", length, ""},
    {"d", otherwise, "default_value boolean"},
    {"default", otherwise, "default_value boolean"},
    {"dictsort", dictsort, "case_sensitive by reverse"},
    {"e", escape, ""},
    {"escape", escape, ""},
    {"first", first, ""},
    {"float", to_real, "default"},
    {"int", to_int, "default base"},
    {"items", items, ""},
    {"join", join, "d attribute"},
    {"last", last, ""},
    {"length", length, ""},
    {"list", list, ""},
    {"lower", lower, ""},
    {"map", map, NULL},
    {"reject", reject_items, NULL},
    {"rejectattr", rejectattr, NULL},
    {"replace", replace, "old new count"},
    {"reverse", reverse, ""},
    {"safe", safe, ""},
    {"select", select_items, NULL},
    {"selectattr", selectattr, NULL},
    {"sort", sort, "reverse case_sensitive attribute"},
    {"string", string, ""},
    {"title", title, ""},
    {"tojson", tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", trim, "chars"},
    {"unique", unique, "case_sensitive attribute"},
    {"upper", upper, ""},
};

static const JinjaFilter *find_filter(const char *name)
{
    for (int i = 0; i < LEN(filters); i++)
        if (!strcmp(filters[i].name, name))
            return &filters[i];
    return NULL;
}

/* The place of a word among others, or how many these are. */
static int place_of(const char *words, const char *word, size_t n)
{
    int place = 0;
    for (size_t len; *words; words += len + (words[len] == ' '), place++)
        if ((len = strcspn(words, " ")) == n && !memcmp(words, word, n))
            break;
    return place;
}

void jinja_check_args(JinjaRun *r, const char *name, const char *words, const JinjaArgs *args)
{
    const int most = place_of(words, "", 0);
    int places = 0;
    for (int i = 0; i < args->count; i++) {
        const char *word = args->word[i];
        if (word && place_of(words, word, strlen(word)) == most)
            jinja_fail(r, "%s: the argument %s is not supported", name, word);
        places += !word;
    }
    if (places > most)
        jinja_fail(r, "%s: expected at most %d arguments, found %d", name, most, places);
}

bool jinja_filter_known(const char *name)
{
    return find_filter(name) != NULL;
}

JinjaValue jinja_filter(JinjaRun *r, const char *name, JinjaValue x, const JinjaArgs *args)
{
    const JinjaFilter *f = find_filter(name);
    CHECK(f);
    if (f->words)
        jinja_check_args(r, name, f->words, args);
    return f->run(r, x, args);
}
