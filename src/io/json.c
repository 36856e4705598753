/* Typed reading of JSON by key, on jansson, with errors that name file and key. jansson checks
 * UTF-8, limits nesting and refuses integers that do not fit; duplicate keys are refused here. */
#include "io.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS = JSON_REJECT_DUPLICATES };

static void drop_document(void *slot)
{
    json_decref(*(json_t **)slot);
}

/* Owned by the arena before there is a document, so that no failure between can lose one. */
static json_t **new_slot(Arena *a)
{
    json_t **slot = NEW(a, json_t *);
    arena_defer(a, drop_document, slot);
    return slot;
}

static Json check_root(Arena *a, json_t *root, const json_error_t *e, const char *where)
{
    if (!root && e->line > 0) /* at the end of a line jansson counts no column yet */
        fail(arena_ctx(a), TN_FAIL, "%s:%d:%d: %s", where, e->line, MAX(e->column, 1), e->text);
    if (!root)
        fail(arena_ctx(a), TN_FAIL, "%s: %s", where, e->text);
    if (!json_is_object(root))
        fail(arena_ctx(a), TN_FAIL, "%s: expected a JSON object", where);
    return (Json){a, where, root};
}

Json json_read(Arena *a, const char *path)
{
    json_error_t e;
    json_t **slot = new_slot(a);
    const char *where = arena_strdup(a, path);
    FILE *f = file_stream(arena_ctx(a), path);
    *slot = json_loadf(f, FLAGS, &e);
    fclose(f);
    return check_root(a, *slot, &e, where);
}

Json json_stream(Arena *a, size_t (*next)(void *, size_t, void *), void *data, const char *where)
{
    json_error_t e;
    json_t **slot = new_slot(a);
    *slot = json_load_callback(next, data, FLAGS, &e);
    return check_root(a, *slot, &e, where);
}

static json_t *find(Json j, const char *key)
{
    json_t *v = json_object_get(j.object, key);
    return json_is_null(v) ? NULL : v;
}

bool json_has(Json j, const char *key)
{
    return find(j, key) != NULL;
}

bool json_given(Json j, const char *key)
{
    return json_object_get(j.object, key) != NULL;
}

bool json_is_set(Json j, const char *key)
{
    json_t *v = find(j, key);
    if (json_is_array(v))
        return json_array_size(v) > 0;
    if (json_is_object(v))
        return json_object_size(v) > 0;
    return v && !json_is_false(v);
}

const char *json_next(Json j, const char *key)
{
    void *it = key ? json_object_iter_next(j.object, json_object_key_to_iter(key))
                   : json_object_iter(j.object);
    return json_object_iter_key(it);
}

static const char *kind_text(const json_t *v)
{
    static const char *const text[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return text[json_typeof(v)];
}

_Noreturn static void wrong(Json j, const char *key, const char *expected, const json_t *found)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected %s, found %s", j.where, key, expected,
         kind_text(found));
}

static json_t *get(Json j, const char *key)
{
    json_t *v = find(j, key);
    if (!v)
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\" is %s", j.where, key,
             json_given(j, key) ? "null" : "missing");
    return v;
}

int64_t json_get_int(Json j, const char *key, int64_t lo, int64_t hi)
{
    json_t *v = get(j, key);
    if (json_typeof(v) != JSON_INTEGER)
        wrong(j, key, "an integer", v);
    int64_t x = json_integer_value(v);
    if (x < lo || x > hi)
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected %lld to %lld, found %lld", j.where,
             key, (long long)lo, (long long)hi, (long long)x);
    return x;
}

int64_t json_find_int(Json j, const char *key, int64_t lo, int64_t hi, int64_t fallback)
{
    return json_has(j, key) ? json_get_int(j, key, lo, hi) : fallback;
}

double json_get_real(Json j, const char *key)
{
    json_t *v = get(j, key);
    if (!json_is_number(v))
        wrong(j, key, "a number", v);
    return json_number_value(v);
}

double json_find_real(Json j, const char *key, double fallback)
{
    return json_has(j, key) ? json_get_real(j, key) : fallback;
}

bool json_find_bool(Json j, const char *key, bool fallback)
{
    json_t *v = find(j, key);
    if (!v)
        return fallback;
    if (!json_is_boolean(v))
        wrong(j, key, "true or false", v);
    return json_is_true(v);
}

const char *json_get_string(Json j, const char *key)
{
    json_t *v = get(j, key);
    if (json_typeof(v) != JSON_STRING)
        wrong(j, key, "a string", v);
    return json_string_value(v);
}

const char *json_find_string(Json j, const char *key, const char *fallback)
{
    return json_has(j, key) ? json_get_string(j, key) : fallback;
}

Json json_get_object(Json j, const char *key)
{
    json_t *v = get(j, key);
    if (!json_is_object(v))
        wrong(j, key, "an object", v);
    return (Json){j.a, arena_printf(j.a, "%s: \"%s\"", j.where, key), v};
}

Json json_find_object(Json j, const char *key)
{
    return json_has(j, key) ? json_get_object(j, key) : (Json){.a = j.a, .where = j.where};
}

const char *json_string_at(Json j, const char *key, int i)
{
    json_t *v = get(j, key);
    if (!json_is_array(v))
        wrong(j, key, "an array", v);
    if ((size_t)i >= json_array_size(v))
        return NULL;
    json_t *x = json_array_get(v, (size_t)i);
    if (!json_is_string(x))
        wrong(j, key, "strings", x);
    return json_string_value(x);
}

const char *json_text(Json j, const char *key)
{
    enum { MOST = 60 };
    json_t *v = json_object_get(j.object, key);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    if (!text)
        return "nothing";
    const char *copy = arena_printf(j.a, "%.*s%s", MOST, text, strlen(text) > MOST ? "..." : "");
    free(text);
    return copy;
}

int json_get_ints(Json j, const char *key, int most, int64_t *out)
{
    json_t *v = get(j, key);
    if (!json_is_array(v))
        wrong(j, key, "an array", v);
    if (json_array_size(v) > (size_t)most)
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected at most %d numbers, found %zu",
             j.where, key, most, json_array_size(v));
    int n = (int)json_array_size(v);
    for (int i = 0; i < n; i++) {
        json_t *x = json_array_get(v, (size_t)i);
        if (json_typeof(x) != JSON_INTEGER)
            wrong(j, key, "integers", x);
        out[i] = json_integer_value(x);
        if (out[i] < 0)
            fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected no negative number, found %lld",
                 j.where, key, (long long)out[i]);
    }
    return n;
}
