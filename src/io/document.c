/* Reads a record by the keys that people use, the first of these that it has:
 *
 *     messages: [{role, content, ...}], tools      a chat
 *     conversations: [{from, value}], system       a chat, as ShareGPT has it
 *     prompt, completion                           two texts, or two parts of a chat
 *     instruction, input, output                   a question and its answer
 *     text                                         a text
 *
 * Each answer of a chat is learned, and the completion of a prompt. */
#include "record.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_of(const json_t *v)
{
    static const char *const text[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return v ? text[json_typeof(v)] : "none";
}

static json_t *find(const json_t *record, const char *key)
{
    json_t *v = json_object_get(record, key);
    return json_is_null(v) ? NULL : v;
}

static json_t *get_string(const RecordReader *r, const json_t *record, const char *key)
{
    json_t *v = find(record, key);
    if (!json_is_string(v))
        records_fail(r, "\"%s\": expected a string, found %s", key,
                     kind_of(json_object_get(record, key)));
    return v;
}

static bool has_text(const json_t *v)
{
    return json_is_string(v) && json_string_length(v);
}

/* After a call that fails without memory only. */
static void made(const RecordReader *r, bool failed)
{
    if (failed)
        fail(r->ctx, TN_FAIL, "out of memory");
}

/* ---- messages ---- */

/* As transformers gives them to a template: without members that are null, and with reasoning under
 * the name that templates read. */
static void add_plain(const RecordReader *r, json_t *to, const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *plain = json_object(), *reasoning = NULL, *value;
    const char *key;
    made(r, json_array_append_new(to, plain)); /* which owns it from here on */
    for (int i = 0; i < LEN(names) && !reasoning; i++)
        reasoning = find(message, names[i]);
    if (reasoning)
        made(r, json_object_set(plain, "thinking", reasoning));
    json_object_foreach((json_t *)(uintptr_t)message, key, value) if (!json_is_null(value))
        made(r, json_object_set(plain, key, value));
    if (reasoning)
        made(r, json_object_set(plain, "reasoning_content", reasoning));
}

static void add_messages(const RecordReader *r, json_t *to, const json_t *list, const char *key)
{
    size_t i;
    json_t *m;
    json_array_foreach((json_t *)(uintptr_t)list, i, m)
    {
        if (!json_is_object(m))
            records_fail(r, "\"%s\", number %zu: expected an object, found %s", key, i, kind_of(m));
        if (!json_is_string(json_object_get(m, "role")))
            records_fail(r, "\"%s\", number %zu: \"role\": expected a string, found %s", key, i,
                         kind_of(json_object_get(m, "role")));
        add_plain(r, to, m);
    }
}

/* The role of ShareGPT's name for who speaks. */
static const char *role_of(const RecordReader *r, const json_t *from, size_t i)
{
    static const char *const roles[][2] = {
        {"human", "user"},          {"user", "user"},
        {"gpt", "assistant"},       {"bot", "assistant"},
        {"assistant", "assistant"}, {"model", "assistant"},
        {"system", "system"},       {"tool", "tool"},
        {"observation", "tool"},    {"function_response", "tool"}};
    const char *name = json_string_value(from);
    for (int k = 0; name && k < LEN(roles); k++)
        if (!strcmp(roles[k][0], name))
            return roles[k][1];
    records_fail(r,
                 "\"conversations\", number %zu: \"from\": expected human, gpt, system or tool, "
                 "found %s",
                 i, name ? name : kind_of(from));
}

static void add_message(const RecordReader *r, json_t *to, const char *role, const json_t *content)
{
    json_t *m = json_object();
    made(r, json_array_append_new(to, m));
    made(r, json_object_set_new(m, "role", json_string(role)));
    made(r, json_object_set(m, "content", (json_t *)(uintptr_t)content));
}

static void add_conversations(const RecordReader *r, json_t *to, const json_t *list)
{
    size_t i;
    json_t *m;
    json_array_foreach((json_t *)(uintptr_t)list, i, m)
    {
        const json_t *value = json_object_get(m, "value");
        if (!json_is_object(m))
            records_fail(r, "\"conversations\", number %zu: expected an object, found %s", i,
                         kind_of(m));
        const char *role = role_of(r, json_object_get(m, "from"), i);
        if (!json_is_string(value))
            records_fail(r, "\"conversations\", number %zu: \"value\": expected a string, found %s",
                         i, kind_of(value));
        add_message(r, to, role, value);
    }
}

/* ---- kinds of records ---- */

static json_t *get_list(const RecordReader *r, const json_t *record, const char *key)
{
    json_t *v = find(record, key);
    if (!json_is_array(v))
        records_fail(r, "\"%s\": expected a list, found %s", key, kind_of(v));
    if (!json_array_size(v))
        records_fail(r, "\"%s\": expected a message, found none", key);
    return v;
}

static const json_t *get_tools(const RecordReader *r, const json_t *record)
{
    const json_t *v = find(record, "tools");
    if (v && !json_is_array(v))
        records_fail(r, "\"tools\": expected a list, found %s", kind_of(v));
    return v;
}

static void read_chat(const RecordReader *r, const json_t *record, Document *d)
{
    json_t *list = find(record, "messages"), *first;
    const char *key = list ? "messages" : "conversations";
    list = get_list(r, record, key);
    first = json_array_get(list, 0);
    if (list == find(record, "conversations") && !find(first, "role")) {
        if (has_text(find(record, "system")))
            add_message(r, d->messages, "system", find(record, "system"));
        add_conversations(r, d->messages, list);
    } else {
        add_messages(r, d->messages, list, key);
    }
}

static void read_pair(const RecordReader *r, const json_t *record, Document *d)
{
    if (json_is_array(find(record, "prompt"))) {
        add_messages(r, d->messages, get_list(r, record, "prompt"), "prompt");
        d->prompt = (int)json_array_size(d->messages);
        add_messages(r, d->messages, get_list(r, record, "completion"), "completion");
        return;
    }
    d->kind = DOCUMENT_PAIR;
    d->text = get_string(r, record, "prompt");
    d->answer = get_string(r, record, "completion");
}

/* Two texts with an empty line between them, as a new value. */
static json_t *joined(const json_t *x, const json_t *y)
{
    size_t n = json_string_length(x), m = y ? json_string_length(y) : 0;
    char *s = malloc(n + 2 + m);
    json_t *v = NULL;
    if (s) {
        memcpy(s, json_string_value(x), n);
        memcpy(s + n, "\n\n", 2);
        if (y)
            memcpy(s + n + 2, json_string_value(y), m);
        v = json_stringn_nocheck(s, n + 2 + m);
    }
    free(s);
    return v;
}

/* The question is the instruction, and after an empty line what it is about. Without a template it
 * is a text, and after an empty line its answer. */
static void read_instruction(const RecordReader *r, const json_t *record, Document *d)
{
    json_t *question = get_string(r, record, "instruction"), *about = find(record, "input");
    json_t *texts = json_object();
    made(r, json_array_append_new(r->slot[1], texts));
    if (about)
        get_string(r, record, "input");
    if (has_text(find(record, "system")))
        add_message(r, d->messages, "system", find(record, "system"));
    if (has_text(about)) {
        made(r, json_object_set_new(texts, "question", joined(question, about)));
        question = json_object_get(texts, "question");
    }
    d->answer = get_string(r, record, "output");
    made(r, json_object_set_new(texts, "text", joined(question, NULL)));
    d->text = json_object_get(texts, "text");
    add_message(r, d->messages, "user", question);
    add_message(r, d->messages, "assistant", d->answer);
}

_Noreturn static void unknown(const RecordReader *r, const json_t *record)
{
    char found[200] = "";
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)record, key, value) if (n < sizeof found - 60) n +=
        (size_t)snprintf(found + n, sizeof found - n, "%s\"%.40s\"", n ? ", " : "", key);
    records_fail(r,
                 "expected the key \"messages\", \"conversations\", \"prompt\" and \"completion\", "
                 "\"instruction\" and \"output\", or \"text\", found %s%s%s",
                 n ? found : "none", r->as_text ? "\n  text of it makes: " : "",
                 r->as_text ? r->as_text : "");
}

Document document_read(const RecordReader *r, json_t *record)
{
    Document d = {.kind = DOCUMENT_CHAT, .prompt = -1, .messages = json_array()};
    json_decref(r->slot[1]);
    r->slot[1] = json_array();
    made(r, json_array_append_new(r->slot[1], d.messages));
    if (find(record, "messages") || find(record, "conversations")) {
        read_chat(r, record, &d);
    } else if (find(record, "prompt") && find(record, "completion")) {
        read_pair(r, record, &d);
    } else if (find(record, "instruction") && find(record, "output")) {
        read_instruction(r, record, &d);
    } else if (json_object_get(record, "text")) {
        d.kind = DOCUMENT_TEXT;
        d.text = get_string(r, record, "text");
    } else {
        unknown(r, record);
    }
    if (d.kind == DOCUMENT_CHAT)
        d.tools = get_tools(r, record);
    return d;
}
