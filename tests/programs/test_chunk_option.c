/* The texts of --chunk and --chunk-accumulate: what they ask for, and what is refused. */
#include "../../src/chunk/chunk.h"
#include "../shared/test.h"

static Ctx ctx;
static Arena *a;

enum { MOST = 4 };

typedef struct Good {
    const char *text[MOST];
    ChunkMode mode;
    int64_t slices;
    const char *patterns; /* each as "PATTERN SLICES" and a semicolon */
} Good;

static const Good good[] = {
    {{NULL}, CHUNK_OFF, 0, ""},
    {{"off"}, CHUNK_OFF, 0, ""},
    {{"auto"}, CHUNK_AUTO, 0, ""},
    {{"1"}, CHUNK_N, 1, ""},
    {{"1000000000"}, CHUNK_N, 1000000000, ""},
    {{"lm_head=8"}, CHUNK_OFF, 0, "lm_head 8;"},
    {{"layers.*.mlp::mm=4", "auto", "lm_head=1"}, CHUNK_AUTO, 0, "layers.*.mlp::mm 4;lm_head 1;"},
    {{"3", "a=2", "a=3"}, CHUNK_N, 3, "a 2;a 3;"},
    {{"a=b=2", "off", "::mm=7"}, CHUNK_OFF, 0, "a=b 2;::mm 7;"},
};

typedef struct Bad {
    const char *text[MOST], *part;
} Bad;

#define EXPECTED \
    "chunk: expected off, auto, N or PATTERN=N (N: slices, from 1 to 1000000000), found "

static const Bad bad[] = {
    {{"0"}, EXPECTED "\"0\""},
    {{"-1"}, EXPECTED "\"-1\""},
    {{"+4"}, EXPECTED "\"+4\""},
    {{""}, EXPECTED "\"\""},
    {{"4x"}, EXPECTED "\"4x\""},
    {{"1.5"}, EXPECTED "\"1.5\""},
    {{"Auto"}, EXPECTED "\"Auto\""},
    {{"lm_head"}, EXPECTED "\"lm_head\""},
    {{"auto", "1000000001"}, EXPECTED "\"1000000001\""},
    {{"99999999999999999999"}, EXPECTED "\"99999999999999999999\""},
    {{"lm_head=0"}, EXPECTED "\"lm_head=0\": no such number"},
    {{"lm_head=-2"}, EXPECTED "\"lm_head=-2\": no such number"},
    {{"lm_head="}, EXPECTED "\"lm_head=\": no such number"},
    {{"lm_head=auto"}, EXPECTED "\"lm_head=auto\": no such number"},
    {{"lm_head=1000000001"}, EXPECTED "\"lm_head=1000000001\": no such number"},
    {{"=4"}, EXPECTED "\"=4\": no pattern"},
    {{"lm_head::=4"}, EXPECTED "\"lm_head::=4\": no op behind ::"},
    {{"4", "a=2", "8"}, "chunk: expected one of off, auto and N, found \"4\" and \"8\""},
    {{"auto", "auto"}, "chunk: expected one of off, auto and N, found \"auto\" and \"auto\""},
    {{"off", "auto"}, "chunk: expected one of off, auto and N, found \"off\" and \"auto\""},
};

static Globs list_of(const char *const *text)
{
    Globs g = {text, 0};
    while (g.count < MOST && text[g.count])
        g.count++;
    return g;
}

typedef struct Asked {
    const char *const *text;
    ChunkAsked got;
} Asked;

static void ask(void *arg)
{
    Asked *x = arg;
    Globs list = list_of(x->text);
    x->got = chunk_asked(a, &list);
}

static void check_good(const Good *c)
{
    Asked x = {.text = c->text};
    Buf b = {.a = a};
    if (!EXPECT(!ctx_try(&ctx, ask, &x))) {
        printf("  %s: %s\n", c->text[0], ctx.message);
        return;
    }
    buf_add(&b, "");
    for (int i = 0; i < x.got.npattern; i++)
        buf_printf(&b, "%s %lld;", x.got.pattern[i].pattern, (long long)x.got.pattern[i].slices);
    if (!EXPECT(x.got.mode == c->mode && x.got.slices == c->slices && !strcmp(b.text, c->patterns)))
        printf("  %s: found mode %d, %lld, \"%s\"\n", c->text[0] ? c->text[0] : "nothing",
               (int)x.got.mode, (long long)x.got.slices, b.text);
}

static void ask_narrow(void *arg)
{
    chunk_narrow(&ctx, arg);
}

int main(void)
{
    a = arena_new(&ctx);
    for (int i = 0; i < LEN(good); i++, arena_reset(a))
        check_good(&good[i]);
    for (int i = 0; i < LEN(bad); i++, arena_reset(a)) {
        Asked x = {.text = bad[i].text};
        EXPECT_FAIL(&ctx, ask, &x, bad[i].part);
        EXPECT(ctx.code == TN_USAGE);
    }
    EXPECT(!chunk_narrow(&ctx, NULL));
    EXPECT(!chunk_narrow(&ctx, "f32"));
    EXPECT(chunk_narrow(&ctx, "same"));
    EXPECT_FAIL(&ctx, ask_narrow, (char[]){"bf16"},
                "chunk-accumulate: expected f32 or same, found \"bf16\"");
    arena_free(a);
    return test_report();
}
