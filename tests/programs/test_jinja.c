/* Chat templates: what transformers makes of the same (tests/chat/expected.jsonl, which
 * tests/python/chats.py writes), what is refused and where, limits, and templates cut anywhere. */
#include "../shared/test.h"

#include "../../src/io/record.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char variables[] =
    "{\"s\": \"some text\", \"l\": [1, 2, 3], \"d\": {\"a\": 1, \"b c\": \"two\"},"
    " \"ld\": [{\"n\": 1, \"b\": true}, {\"n\": 2, \"b\": false}, {\"n\": 1, \"m\": \"yes\"}],"
    " \"messages\": [], \"tools\": null, \"documents\": null, \"add_generation_prompt\": false}";

/* ---- against transformers ---- */

typedef struct TemplateCase {
    const json_t *line;
    JinjaText text;
} TemplateCase;

static json_t *chat_variables(Arena *a, const json_t *line)
{
    char *record = json_dumps(json_object_get(line, "chat"), JSON_COMPACT);
    RecordReader *r = records_of_text(a, "chat", record, strlen(record));
    Document d = document_read(r, records_next(r));
    json_t *v = json_pack("{s:O, s:O?, s:n, s:O, s:s, s:s}", "messages", d.messages, "tools",
                          (json_t *)(uintptr_t)d.tools, "documents", "add_generation_prompt",
                          json_object_get(line, "prompt"), "bos_token", "<s>", "eos_token", "</s>");
    free(record);
    return v;
}

static void render(Ctx *ctx, Arena *a, TemplateCase *c)
{
    const char *snippet = json_string_value(json_object_get(c->line, "snippet"));
    const char *name = json_string_value(json_object_get(c->line, "template"));
    size_t n = snippet ? strlen(snippet) : 0;
    const char *text = snippet;
    json_t **v = NEW(a, json_t *);
    if (!snippet)
        text = file_read(a, arena_printf(a, "tests/chat/%s", name), &n);
    *v = snippet ? json_loads(variables, 0, NULL) : chat_variables(a, c->line);
    volatile Code code = TN_OK;
    TRY(t, ctx)
        c->text = jinja_render(jinja_parse(a, text, n, "template"), a, *v);
    code = tried(&t);
    json_decref(*v);
    if (code)
        fail_again(ctx, "");
}

static bool same_spans(const JinjaText *t, const json_t *spans)
{
    bool same = (size_t)t->nspan == json_array_size(spans);
    for (int i = 0; same && i < t->nspan; i++) {
        const json_t *s = json_array_get(spans, (size_t)i);
        same = (json_int_t)t->span[i].begin == json_integer_value(json_array_get(s, 0)) &&
               (json_int_t)t->span[i].end == json_integer_value(json_array_get(s, 1));
    }
    return same;
}

static void test_line(Ctx *ctx, const json_t *line)
{
    TemplateCase c = {.line = line};
    const json_t *text = json_object_get(line, "text");
    Arena *a = arena_new(ctx);
    volatile bool ok = false;
    TRY(t, ctx) {
        render(ctx, a, &c);
        ok = text && json_string_length(text) == c.text.n &&
             !memcmp(json_string_value(text), c.text.text, c.text.n) &&
             same_spans(&c.text, json_object_get(line, "spans"));
    }
    if (tried(&t))
        ok = !text;
    EXPECT(ok);
    if (!ok) {
        char *shown = json_dumps(line, 0);
        fprintf(stderr, "%s\nfound: %s\n", shown, c.text.text ? c.text.text : ctx->message);
        free(shown);
    }
    arena_free(a);
}

static void test_expected(Ctx *ctx)
{
    FILE *f = fopen("tests/chat/expected.jsonl", "rb");
    json_t *line;
    int count = 0;
    EXPECT(f);
    while (f && (line = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL))) {
        test_line(ctx, line);
        json_decref(line);
        count++;
    }
    EXPECT(count > 100);
    if (f)
        fclose(f);
}

/* ---- what is refused ---- */

/* The message of a template that cannot be parsed, or not rendered; "" where it can. */
static const char *message(Ctx *ctx, const char *text)
{
    json_t *v = json_loads(variables, 0, NULL);
    Arena *a = arena_new(ctx);
    TRY(t, ctx)
        jinja_render(jinja_parse(a, text, strlen(text), "T"), a, v);
    Code code = tried(&t);
    arena_free(a);
    json_decref(v);
    return code ? ctx->message : "";
}

/* All of the message, or a part of it. */
static void expect_message(Ctx *ctx, const char *text, const char *expected, bool whole)
{
    const char *found = message(ctx, text);
    bool ok = whole ? !strcmp(found, expected) : strstr(found, expected) != NULL;
    EXPECT(ok);
    if (!ok)
        fprintf(stderr, "%.200s\n  expected: %s\n  found:    %s\n", text, expected, found);
}

static void test_refused(Ctx *ctx)
{
    static const char *const cases[][2] = {
        {"\n{{ s | indent }}", "T:2: the filter indent is not supported"},
        {"{{ s is weird }}", "T:1: the test weird is not supported"},
        {"{% include 'x' %}", "T:1: the statement include is not supported"},
        {"a\nb\n{% filter upper %}", "T:3: the statement filter is not supported"},
        {"{% nothing %}", "T:1: expected if, for, set, macro, generation, break, continue, or the "
                          "end of one of them, found nothing"},
        {"{% for x in l recursive %}{% endfor %}", "T:1: the word recursive is not supported"},
        {"{{ f(*l) }}", "T:1: the argument * is not supported"},
        {"{% if s %}", "T:1: expected endif, found the template's end"},
        {"{% endif %}", "T:1: expected if, for, set, macro, generation, break, continue, or the "
                        "end of one of them, found endif"},
        {"{% break %}", "T:1: expected a loop around it, found break"},
        {"{{ s", "T:1: expected }}, found the end of the template"},
        {"{{ s }", "T:1: expected }}, found the end of the template"},
        {"{# s", "T:1: a comment: expected #}, found the end of the template"},
        {"{{ 'x }}", "T:1: a string: expected its quote, found the end of the template"},
        {"{{ s ? }}", "T:1: expected a name, a value or an operator, found ?"},
        {"{{ s t }}", "T:1: expected }}, found t"},
        {"{{ }}", "T:1: expected a value, found }}"},
        {"{{ [1, }}", "T:1: expected a value, found }}"},
        {"{{ 1234567890123456789 }}", "T:1: expected at most 18 digits, found 19"},
        {"{{ '\\ud800' }}", "T:1: a string: expected a character after a backslash, found none of "
                            "that number"},
        {"\n\n{{ raise_exception('because') }}", "T:3: the template refuses this chat: because"},
        {"{{ l|unique(1, 2, 3) }}", "T:1: unique: expected at most 2 arguments, found 3"},
        {"{{ s|trim(odd=1) }}", "T:1: trim: the argument odd is not supported"},
        {"{{ '1f'|int(0, 16) }}", "T:1: int: a base other than 10 is not supported"},
        {"{{ s.startswith('o', 1) }}", "T:1: startswith: expected at most 1 arguments, found 2"},
        {"{{ s.count('e', 2) }}", "T:1: count: expected at most 1 arguments, found 2"},
        {"{{ d.get('b', default=3) }}", "T:1: get: the argument default is not supported"},
        {"{{ x.y }}", "T:1: \"x\" is undefined, so it has no \"y\""},
        {"{{ x() }}", "T:1: \"x\" is undefined, so it cannot be called"},
        {"{{ s.center(3) }}", "T:1: the method center of a string is not supported"},
        {"{{ l.append(3) }}", "T:1: the method append of a list is not supported"},
        {"{{ s - 1 }}",
         "T:1: -: expected numbers, or for + strings or lists, found a string and an "
         "integer"},
        {"{{ 1 < s }}", "T:1: expected values that have an order, found an integer and a string"},
        {"{% set a, b = l %}", "T:1: expected 2 values for as many names, found 3"},
        {"{% set s.x = 1 %}", "T:1: set s.x: expected a namespace, found a string"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "T:1: macro m: expected 1 arguments, found "
                                                        "another"},
        {"{{ 9223372036854775807 }}", "T:1: expected at most 18 digits, found 19"},
        {"{{ 10 ** 30 }}", "T:1: expected an integer of 64 bits, found a larger one"},
        {"{{ loop.index }}", "T:1: \"loop\" is undefined, so it has no \"index\""},
        {"{{ l | tojson(separators=1) }}", "T:1: expected a list, a mapping or a string to go "
                                           "through, found an integer"},
        {"{{ u | tojson }}",
         "T:1: tojson: expected a value that JSON has, found an undefined value"},
    };
    for (int i = 0; i < LEN(cases); i++)
        expect_message(ctx, cases[i][0], cases[i][1], true);
}

/* ---- limits ---- */

static char *repeated(const char *head, const char *part, int count, const char *tail)
{
    size_t n = strlen(part) * (size_t)count;
    char *s = malloc(strlen(head) + n + strlen(tail) + 1), *at = s;
    at += sprintf(at, "%s", head);
    for (int i = 0; i < count; i++)
        at += sprintf(at, "%s", part);
    strcpy(at, tail);
    return s;
}

static void expect_limit(Ctx *ctx, char *text, const char *part)
{
    expect_message(ctx, text, part, false);
    free(text);
}

static void test_limits(Ctx *ctx)
{
    static const char deep[] = "of what is in each other", steps[] = "takes more steps";
    expect_limit(ctx, repeated("{{ ", "(", 10000, "1 }}"), deep);
    expect_limit(ctx, repeated("{{ ", "[", 10000, "1 }}"), deep);
    expect_limit(ctx, repeated("{{ ", "- ", 10000, "1 }}"), deep);
    expect_limit(ctx, repeated("{{ ", "not ", 10000, "1 }}"), deep);
    expect_limit(ctx, repeated("", "{% if s %}", 10000, ""), deep);
    expect_limit(ctx, repeated("{% if s %}", "{% elif s %}", 10000, ""), deep);
    expect_limit(ctx, repeated("{{ 1", " if s else 1", 10000, " }}"), deep);
    expect_limit(ctx, repeated("{% macro m() %}{{ m() }}{% endmacro %}", "{{ m() }}", 1, ""),
                 "calls and values at most");
    expect_limit(ctx,
                 repeated("", "{% for a in range(2000) %}", 3,
                          "{% endfor %}{% endfor %}"
                          "{% endfor %}"),
                 steps);
    expect_limit(ctx,
                 repeated("{% set ns = namespace(x=s) %}{% for i in range(99) %}"
                          "{% set ns.x = ns.x + ns.x %}",
                          "", 0, "{% endfor %}"),
                 steps);
    expect_limit(ctx, repeated("{{ 'x' * 999999999999 }}", "", 0, ""), steps);
    expect_limit(ctx, repeated("{{ range(2000000000) }}", "", 0, ""), steps);
    EXPECT(!*message(ctx, "{% for i in range(1000) %}{{ i }}{% endfor %}"));
}

/* ---- a template cut at each byte either parses or is refused ---- */

static void test_cut(Ctx *ctx)
{
    static const char *const names[] = {"thinking", "headers", "turns"};
    int parsed = 0, refused = 0;
    for (int k = 0; k < LEN(names); k++) {
        Arena *all = arena_new(ctx), *a = arena_new(ctx);
        size_t n;
        volatile size_t at = 0;
        const char *text = file_read(all, arena_printf(all, "tests/chat/%s.jinja", names[k]), &n);
        for (; at < n; at += 3) {
            TRY(t, ctx)
                jinja_parse(a, text, at, "T");
            *(tried(&t) ? &refused : &parsed) += 1;
            arena_reset(a);
        }
        arena_free(a);
        arena_free(all);
    }
    EXPECT(parsed > 10 && refused > 500);
}

int main(void)
{
    Ctx ctx = {0};
    test_expected(&ctx);
    test_refused(&ctx);
    test_limits(&ctx);
    test_cut(&ctx);
    ctx_end(&ctx);
    return test_report();
}
