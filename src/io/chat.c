/* Chats as a model's folder writes them: chat_template.jinja, or the chat_template of
 * tokenizer_config.json, with the special tokens of that file as variables, as transformers gives
 * them.
 *
 * Answers are what generation tags enclose. A template without tags is rendered up to each answer,
 * with what then begins it, and up to its end: both must be the beginning of the whole chat's text,
 * and what is between is the answer, with the token that ends it. White space that follows that
 * token is not learned. Two things that templates write only at the end of a chat rewrite nothing
 * before: a prompt that begins a thought, which the answer may not have, and an end-of-text token
 * behind the last message. Linear in the chat for templates with tags, else in turns times text. */
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
    if (!tokens)
        fail(arena_ctx(a), TN_FAIL, "out of memory");
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
    int failed = json_object_set_new(*all, "messages", some);
    for (size_t i = 0; i < count && !failed; i++)
        failed = json_array_append(some, json_array_get(messages, i));
    failed |= json_object_set(*all, "tools", tools ? (json_t *)(uintptr_t)tools : json_null());
    failed |= json_object_set_new(*all, "documents", json_null());
    failed |= json_object_set_new(*all, "add_generation_prompt", json_boolean(prompt));
    if (failed)
        fail(arena_ctx(tmp), TN_FAIL, "out of memory");
    return jinja_render(c->template, tmp, *all);
}

/* How many bytes at their beginnings are the same, in whole characters. */
static size_t common(const JinjaText *x, const JinjaText *y)
{
    size_t n = 0, most = MIN(x->n, y->n);
    while (n < most && x->text[n] == y->text[n])
        n++;
    while (n && n < most && ((unsigned char)x->text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static bool begins(const JinjaText *whole, const JinjaText *part)
{
    return common(whole, part) == part->n;
}

static JinjaValue eos_of(const Chat *c)
{
    const json_t *v = json_object_get(*c->tokens, "eos_token");
    return jinja_string(v ? json_string_value(v) : "", json_string_length(v));
}

/* Whether `n` bytes at a place are a token, which may be empty: then not. */
static bool is_token(const char *text, size_t n, JinjaValue token)
{
    return token.n && token.n <= n && !memcmp(text, token.u.s, token.n);
}

/* A text without the end-of-text token at its end, with white space behind that; `n` where it has
 * none. */
static size_t unclosed(const JinjaText *t, JinjaValue eos)
{
    size_t n = jinja_strip(jinja_string(t->text, t->n), NULL, JINJA_RIGHT).n;
    if (n < eos.n || !is_token(t->text + n - eos.n, eos.n, eos))
        return t->n;
    return n - eos.n;
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
    int64_t at = jinja_search(span, said, false);
    bool bare = !n || (said.n && at >= 0 && (size_t)at + said.n == n);
    return bare ? end : begin + n;
}

_Noreturn static void rewrites(const Chat *c, Arena *tmp, size_t i)
{
    fail(arena_ctx(tmp), TN_FAIL,
         "%s: message %zu (from 0): the template writes what is before it otherwise than with it, "
         "so its answers are not known\n"
         "  a template with {%% generation %%} tags around answers says which they are: trl ships "
         "such for many models",
         c->where, i);
}

#define THINK "<think>"

/* A prompt without the thought that it begins; `n` where it begins none. */
static size_t unthought(const JinjaText *t)
{
    size_t n = jinja_strip(jinja_string(t->text, t->n), NULL, JINJA_RIGHT).n, size = strlen(THINK);
    return n >= size && !memcmp(t->text + n - size, THINK, size) ? n - size : t->n;
}

/* Where an answer begins: behind its prompt. A thought that the prompt begins is the prompt's where
 * the chat has that token whole, else the answer begins in its place. */
static size_t begin_of_answer(const Chat *c, Arena *own, const Document *d, const JinjaText *whole,
                              size_t from)
{
    JinjaText prompt = render(c, own, d->messages, from, d->tools, true);
    size_t n = common(whole, &prompt), stem = unthought(&prompt);
    if (n < stem)
        rewrites(c, own, from);
    return n < prompt.n && n < stem + strlen(THINK) ? stem : n;
}

/* The end of the text of messages before `to` within the whole's. An end-of-text token that the
 * template writes behind the last message, whichever that is, is the whole's alone. */
static size_t end_of_messages(const Chat *c, Arena *own, const Document *d, const JinjaText *whole,
                              size_t from, size_t to)
{
    if (to == json_array_size(d->messages))
        return whole->n;
    JinjaText part = render(c, own, d->messages, to, d->tools, false);
    if (begins(whole, &part))
        return part.n;
    JinjaValue eos = eos_of(c);
    bool closed = unclosed(whole, eos) < whole->n;
    part.n = closed ? unclosed(&part, eos) : part.n;
    if (!begins(whole, &part))
        rewrites(c, own, from);
    return part.n;
}

/* Adds the span of messages [from, to); `own` is memory for its renderings alone. A template that
 * ends a turn only where another follows ends it with the token that comes next. */
static void add_span(const Chat *c, Arena *tmp, Arena *own, const Document *d, JinjaText *whole,
                     size_t from, size_t to)
{
    arena_reset(own);
    size_t begin = begin_of_answer(c, own, d, whole, from);
    size_t end = end_of_messages(c, own, d, whole, from, to);
    if (begin > end)
        rewrites(c, own, from);
    end = MAX(begin, end_of_answer(whole, begin, end, json_array_get(d->messages, to - 1)));
    JinjaValue eos = eos_of(c);
    bool closed = end - begin >= eos.n && is_token(whole->text + end - eos.n, eos.n, eos);
    if (!closed && is_token(whole->text + end, whole->n - end, eos))
        end += eos.n;
    JinjaSpan span = {begin, end};
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
