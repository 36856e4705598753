/* Chats as a model's folder writes them: chat_template.jinja, or the chat_template of
 * tokenizer_config.json, with the special tokens of that file as variables, as transformers gives
 * them.
 *
 * Answers are what generation tags enclose. A template without tags is rendered up to each answer,
 * with what then begins it, and up to its end: both must be the beginning of the whole chat's text,
 * and what is between is the answer, with the token that ends it. White space that follows that
 * token is not learned. Linear in the chat for templates with tags, else in turns times text. */
#include "record.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Chat {
    Jinja *template;
    json_t **tokens; /* by the name of the variable */
    uint64_t hash;
    const char *where;
};

static void drop_json(void *slot)
{
    json_decref(*(json_t **)slot);
}

/* ---- the folder ---- */

/* A file's object, which the arena owns; NULL: there is none. Numbers may be larger than 64 bits,
 * as model_max_length is. */
static const json_t *read_file(Arena *a, const char *path)
{
    json_error_t e;
    size_t n;
    json_t **slot = NEW(a, json_t *);
    file_check_link(arena_ctx(a), path);
    if (access(path, F_OK))
        return NULL;
    const char *text = file_read_regular(a, path, &n);
    arena_defer(a, drop_json, slot);
    *slot = json_loadb(text, n, JSON_DECODE_INT_AS_REAL, &e);
    if (!*slot)
        fail(arena_ctx(a), TN_FAIL, "%s:%d:%d: %s", path, e.line, MAX(e.column, 1), e.text);
    if (!json_is_object(*slot))
        fail(arena_ctx(a), TN_FAIL, "%s: expected a JSON object", path);
    return *slot;
}

/* A token is its text, or an object that has it. */
static const json_t *token_text(const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, name);
    v = json_is_object(v) ? json_object_get(v, "content") : v;
    return json_is_string(v) ? v : NULL;
}

static json_t *read_tokens(Arena *a, const char *folder, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const json_t *map = read_file(a, arena_printf(a, "%s/special_tokens_map.json", folder));
    json_t *tokens = json_object();
    for (int i = 0; i < LEN(names); i++) {
        const json_t *v = token_text(json_object_get(config, names[i]) ? config : map, names[i]);
        if (v)
            json_object_set(tokens, names[i], (json_t *)(uintptr_t)v);
    }
    return tokens;
}

/* The template of the configuration: a text, or one of several by name. */
static const json_t *find_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default"))
            return json_object_get(one, "template");
    }
    return json_is_string(v) ? v : NULL;
}

Chat *chat_open(Arena *a, const char *folder)
{
    const char *path = arena_printf(a, "%s/chat_template.jinja", folder), *date = NULL;
    const char *where = arena_printf(a, "%s/tokenizer_config.json", folder);
    const json_t *config = read_file(a, where);
    const json_t *own = find_template(config);
    const char *text = json_string_value(own);
    size_t n = json_string_length(own);
    file_check_link(arena_ctx(a), path);
    if (!access(path, F_OK))
        text = file_read_regular(a, path, &n);
    else
        path = arena_printf(a, "%s: chat_template", where);
    if (!text)
        return NULL;
    Chat *c = NEW(a, Chat);
    *c = (Chat){.tokens = NEW(a, json_t *), .where = path};
    arena_defer(a, drop_json, c->tokens);
    *c->tokens = read_tokens(a, folder, config);
    c->template = jinja_parse(a, text, n, path);
    char *tokens = json_dumps(*c->tokens, JSON_SORT_KEYS | JSON_COMPACT);
    if (jinja_names(c->template, "strftime_now"))
        date = getenv("SOURCE_DATE_EPOCH");
    c->hash = hash_bytes(text, n, hash_bytes(date ? date : "", date ? strlen(date) : 0, 1));
    c->hash = hash_bytes(tokens ? tokens : "", tokens ? strlen(tokens) : 0, c->hash);
    free(tokens);
    return c;
}

uint64_t chat_hash(const Chat *c)
{
    return c->hash;
}

/* ---- rendering ---- */

/* The first `count` messages; `prompt`: and what begins an answer. */
static JinjaText render(const Chat *c, Arena *tmp, const json_t *messages, size_t count,
                        const json_t *tools, bool prompt)
{
    json_t **all = NEW(tmp, json_t *);
    arena_defer(tmp, drop_json, all);
    *all = json_copy(*c->tokens);
    json_t *some = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append(some, json_array_get(messages, i));
    json_object_set_new(*all, "messages", some);
    json_object_set(*all, "tools", tools ? (json_t *)(uintptr_t)tools : json_null());
    json_object_set_new(*all, "documents", json_null());
    json_object_set_new(*all, "add_generation_prompt", json_boolean(prompt));
    return jinja_render(c->template, tmp, *all);
}

static bool begins(const JinjaText *whole, const JinjaText *part)
{
    return part->n <= whole->n && !memcmp(whole->text, part->text, part->n);
}

/* The end of an answer: of white space after the token that ends it nothing is its own. Without
 * such a token, where the answer's content itself ends there, all is. */
static size_t end_of_answer(const JinjaText *t, size_t begin, size_t end, const json_t *message)
{
    JinjaValue span = jinja_string(t->text + begin, end - begin);
    size_t n = jinja_strip(span, NULL, JINJA_RIGHT).n;
    const json_t *content = json_object_get(message, "content");
    JinjaValue said = jinja_string(json_is_string(content) ? json_string_value(content) : "",
                                   json_string_length(content));
    said = jinja_strip(said, NULL, JINJA_RIGHT);
    bool bare = !n || (said.n && said.n <= n && !memcmp(span.u.s + n - said.n, said.u.s, said.n));
    return bare ? end : begin + n;
}

_Noreturn static void rewrites(const Chat *c, Arena *tmp, size_t i)
{
    fail(arena_ctx(tmp), TN_FAIL,
         "%s: message %zu (from 0): the template writes what is before it otherwise than with it, "
         "so its answers are not known\n"
         "  a template with {%% generation %%} tags around answers says which they are",
         c->where, i);
}

/* Adds the span of messages [from, to); `own` is memory for its renderings alone. */
static void add_span(const Chat *c, Arena *tmp, Arena *own, const Document *d, JinjaText *whole,
                     size_t from, size_t to)
{
    arena_reset(own);
    JinjaText before = render(c, own, d->messages, from, d->tools, true), after = *whole;
    if (to < json_array_size(d->messages))
        after = render(c, own, d->messages, to, d->tools, false);
    if (!begins(whole, &before) || !begins(whole, &after) || before.n > after.n)
        rewrites(c, own, from);
    size_t end = end_of_answer(whole, before.n, after.n, json_array_get(d->messages, to - 1));
    JinjaSpan span = {before.n, MAX(end, before.n)};
    PUSH(tmp, whole->span, whole->nspan, whole->capspan, span);
}

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "assistant");
}

JinjaText chat_render(const Chat *c, Arena *tmp, const Document *d)
{
    size_t count = json_array_size(d->messages);
    JinjaText t = render(c, tmp, d->messages, count, d->tools, false);
    Arena *own = arena_tmp(tmp);
    if (d->prompt >= 0) {
        t.nspan = 0;
        add_span(c, tmp, own, d, &t, (size_t)d->prompt, count);
    } else if (!jinja_marks(c->template)) {
        for (size_t i = 0; i < count; i++)
            if (is_answer(json_array_get(d->messages, i)))
                add_span(c, tmp, own, d, &t, i, i + 1);
    }
    return t;
}

JinjaText chat_prompt(const Chat *c, Arena *tmp, const Document *d)
{
    return render(c, tmp, d->messages, json_array_size(d->messages), d->tools, true);
}
