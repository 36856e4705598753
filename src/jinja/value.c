/* Values of templates, and what Python says of them: truth, equality, order, membership. Lists and
 * dictionaries are shared, strings are borrowed; all live in the arena of a rendering. */
#include "jinja.h"

#include <jansson.h>
#include <string.h>

void jinja_fail(const JinjaRun *r, const char *format, ...)
{
    char message[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fail(r->ctx, TN_FAIL, "%s:%d: %s", r->t->where, r->line, message);
}

void jinja_step(JinjaRun *r, int64_t count)
{
    r->left -= count;
    if (r->left < 0)
        jinja_fail(r, "the template takes more steps than any that writes a chat");
}

/* ---- making them ---- */

JinjaValue jinja_none(void)
{
    return (JinjaValue){.kind = JINJA_IS_NONE};
}

JinjaValue jinja_bool(bool yes)
{
    return (JinjaValue){.kind = JINJA_IS_BOOL, .u.yes = yes};
}

JinjaValue jinja_int(int64_t x)
{
    return (JinjaValue){.kind = JINJA_IS_INT, .u.integer = x};
}

JinjaValue jinja_real(double x)
{
    return (JinjaValue){.kind = JINJA_IS_REAL, .u.real = x};
}

JinjaValue jinja_string(const char *s, size_t n)
{
    return (JinjaValue){.kind = JINJA_IS_STRING, .u.s = s, .n = n};
}

JinjaValue jinja_undefined(const char *name)
{
    return (JinjaValue){.kind = JINJA_IS_UNDEFINED, .u.s = name};
}

JinjaValue jinja_list(Arena *a)
{
    return (JinjaValue){.kind = JINJA_IS_LIST, .u.list = NEW(a, JinjaList)};
}

JinjaValue jinja_dict(Arena *a)
{
    return (JinjaValue){.kind = JINJA_IS_DICT, .u.dict = NEW(a, JinjaDict)};
}

void jinja_push(Arena *a, JinjaValue list, JinjaValue x)
{
    JinjaList *l = list.u.list;
    PUSH(a, l->item, l->count, l->cap, x);
}

const JinjaValue *jinja_find(JinjaValue dict, JinjaValue key)
{
    for (int i = 0; i < dict.u.dict->count; i++)
        if (jinja_equal(dict.u.dict->member[i].key, key))
            return &dict.u.dict->member[i].value;
    return NULL;
}

void jinja_put(Arena *a, JinjaValue dict, JinjaValue key, JinjaValue x)
{
    JinjaDict *d = dict.u.dict;
    for (int i = 0; i < d->count; i++)
        if (jinja_equal(d->member[i].key, key)) {
            d->member[i].value = x;
            return;
        }
    JinjaMember m = {key, x};
    PUSH(a, d->member, d->count, d->cap, m);
}

JinjaValue jinja_json(Arena *a, const json_t *v)
{
    const char *key;
    json_t *item;
    JinjaValue x = jinja_none();
    switch (json_typeof(v)) {
    case JSON_TRUE:
    case JSON_FALSE: return jinja_bool(json_is_true(v));
    case JSON_INTEGER: return jinja_int(json_integer_value(v));
    case JSON_REAL: return jinja_real(json_real_value(v));
    case JSON_STRING: return jinja_string(json_string_value(v), json_string_length(v));
    case JSON_NULL: break;
    case JSON_ARRAY:
        x = jinja_list(a);
        for (size_t i = 0; i < json_array_size(v); i++)
            jinja_push(a, x, jinja_json(a, json_array_get(v, i)));
        break;
    case JSON_OBJECT:
        x = jinja_dict(a);
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            JinjaMember m = {jinja_string(key, strlen(key)), jinja_json(a, item)};
            PUSH(a, x.u.dict->member, x.u.dict->count, x.u.dict->cap, m);
        }
        break;
    }
    return x;
}

/* ---- asking them ---- */

const char *jinja_kind(JinjaValue x)
{
    static const char *const names[] = {[JINJA_IS_UNDEFINED] = "an undefined value",
                                        [JINJA_IS_NONE] = "none",
                                        [JINJA_IS_BOOL] = "a boolean",
                                        [JINJA_IS_INT] = "an integer",
                                        [JINJA_IS_REAL] = "a number",
                                        [JINJA_IS_STRING] = "a string",
                                        [JINJA_IS_LIST] = "a list",
                                        [JINJA_IS_TUPLE] = "a tuple",
                                        [JINJA_IS_DICT] = "a mapping",
                                        [JINJA_IS_NAMESPACE] = "a namespace",
                                        [JINJA_IS_LOOP] = "a loop",
                                        [JINJA_IS_MACRO] = "a macro",
                                        [JINJA_IS_FUNCTION] = "a function",
                                        [JINJA_IS_METHOD] = "a method"};
    return names[x.kind];
}

bool jinja_is_string(JinjaValue x, const char *s)
{
    return x.kind == JINJA_IS_STRING && x.n == strlen(s) && !memcmp(x.u.s, s, x.n);
}

static bool is_list(JinjaValue x)
{
    return x.kind == JINJA_IS_LIST || x.kind == JINJA_IS_TUPLE;
}

static bool is_number(JinjaValue x)
{
    return x.kind == JINJA_IS_BOOL || x.kind == JINJA_IS_INT || x.kind == JINJA_IS_REAL;
}

static double number(JinjaValue x)
{
    return x.kind == JINJA_IS_BOOL  ? x.u.yes
           : x.kind == JINJA_IS_INT ? (double)x.u.integer
                                    : x.u.real;
}

bool jinja_true(JinjaValue x)
{
    switch (x.kind) {
    case JINJA_IS_UNDEFINED:
    case JINJA_IS_NONE: return false;
    case JINJA_IS_BOOL: return x.u.yes;
    case JINJA_IS_INT: return x.u.integer != 0;
    case JINJA_IS_REAL: return x.u.real != 0;
    case JINJA_IS_STRING: return x.n > 0;
    case JINJA_IS_LIST:
    case JINJA_IS_TUPLE: return x.u.list->count > 0;
    case JINJA_IS_DICT: return x.u.dict->count > 0;
    default: return true;
    }
}

static bool same_dict(JinjaValue x, JinjaValue y)
{
    if (x.u.dict->count != y.u.dict->count)
        return false;
    for (int i = 0; i < x.u.dict->count; i++) {
        const JinjaValue *other = jinja_find(y, x.u.dict->member[i].key);
        if (!other || !jinja_equal(x.u.dict->member[i].value, *other))
            return false;
    }
    return true;
}

bool jinja_equal(JinjaValue x, JinjaValue y)
{
    if (is_number(x) && is_number(y))
        return x.kind == JINJA_IS_INT && y.kind == JINJA_IS_INT ? x.u.integer == y.u.integer
                                                                : number(x) == number(y);
    if (x.kind != y.kind)
        return false;
    switch (x.kind) {
    case JINJA_IS_UNDEFINED:
    case JINJA_IS_NONE: return true;
    case JINJA_IS_STRING: return x.n == y.n && !memcmp(x.u.s, y.u.s, x.n);
    case JINJA_IS_DICT: return same_dict(x, y);
    case JINJA_IS_LIST:
    case JINJA_IS_TUPLE:
        for (int i = 0; i < x.u.list->count && x.u.list->count == y.u.list->count; i++)
            if (!jinja_equal(x.u.list->item[i], y.u.list->item[i]))
                return false;
        return x.u.list->count == y.u.list->count;
    default: return x.u.s == y.u.s;
    }
}

int jinja_order(const JinjaRun *r, JinjaValue x, JinjaValue y)
{
    if (is_number(x) && is_number(y)) {
        if (x.kind == JINJA_IS_INT && y.kind == JINJA_IS_INT)
            return (x.u.integer > y.u.integer) - (x.u.integer < y.u.integer);
        return (number(x) > number(y)) - (number(x) < number(y));
    }
    if (x.kind == JINJA_IS_STRING && y.kind == JINJA_IS_STRING) {
        int c = memcmp(x.u.s, y.u.s, MIN(x.n, y.n));
        return c ? c : (x.n > y.n) - (x.n < y.n);
    }
    if (is_list(x) && x.kind == y.kind) {
        int n = MIN(x.u.list->count, y.u.list->count);
        for (int i = 0; i < n; i++)
            if (!jinja_equal(x.u.list->item[i], y.u.list->item[i]))
                return jinja_order(r, x.u.list->item[i], y.u.list->item[i]);
        return (x.u.list->count > n) - (y.u.list->count > n);
    }
    jinja_fail(r, "expected values that have an order, found %s and %s", jinja_kind(x),
               jinja_kind(y));
}

bool jinja_in(const JinjaRun *r, JinjaValue x, JinjaValue y)
{
    if (y.kind == JINJA_IS_STRING && x.kind == JINJA_IS_STRING)
        return jinja_search(y, x, false) >= 0;
    if (y.kind == JINJA_IS_DICT)
        return jinja_find(y, x) != NULL;
    if (y.kind == JINJA_IS_UNDEFINED)
        return false;
    if (!is_list(y))
        jinja_fail(r, "in: expected a string, a list or a mapping, found %s in %s", jinja_kind(x),
                   jinja_kind(y));
    for (int i = 0; i < y.u.list->count; i++)
        if (jinja_equal(y.u.list->item[i], x))
            return true;
    return false;
}

const JinjaList *jinja_items(JinjaRun *r, JinjaValue x)
{
    JinjaValue list = jinja_list(r->a);
    if (is_list(x))
        list = x;
    else if (x.kind == JINJA_IS_DICT)
        for (int i = 0; i < x.u.dict->count; i++)
            jinja_push(r->a, list, x.u.dict->member[i].key);
    else if (x.kind == JINJA_IS_STRING)
        for (size_t i = 0, n; i < x.n; i += n) {
            n = jinja_char(x.u.s + i, x.n - i);
            jinja_push(r->a, list, jinja_string(x.u.s + i, n));
        }
    else if (x.kind != JINJA_IS_UNDEFINED)
        jinja_fail(r, "expected a list, a mapping or a string to go through, found %s",
                   jinja_kind(x));
    jinja_step(r, list.u.list->count);
    return list.u.list;
}
