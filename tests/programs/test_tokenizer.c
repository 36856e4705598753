/* Tokenizers: ids as Hugging Face gives them (tests/tokenizer, written by tools/tokenizer-oracle.sh
 * bless), the same however the text is cut; token files. */
#include "../shared/folder.h"

#include "../../include/tenon.h"
#include "../../src/io/tokenizer.h"

#define SMALL "tests/tokenizer/small.json"

/* The text with the first `from` replaced. */
static const char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    CHECK(at);
    return arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static const char *put_file(const char *name, const void *data, size_t n)
{
    const char *path = in_dir(name);
    file_write(&ctx, path, data, n);
    return path;
}

/* ---- ids ---- */

typedef struct Ids {
    uint32_t *id;
    int count, cap;
} Ids;

static void collect(void *arg, const uint32_t *id, size_t n)
{
    Ids *x = arg;
    for (size_t i = 0; i < n; i++)
        PUSH(a, x->id, x->count, x->cap, id[i]);
}

typedef struct Subject {
    const Tokenizer *t;
    Encoder *e;
    Ids got;
} Subject;

static Subject *open_subject(const char *path)
{
    Subject *s = NEW(a, Subject);
    s->t = tokenizer_open(a, path);
    s->e = encoder_new(a, s->t, collect, &s->got);
    return s;
}

/* Ids of a text fed in pieces of `piece` bytes; 0: of random sizes. */
static const Ids *encode(Subject *s, const char *text, size_t n, size_t piece)
{
    s->got.count = 0;
    encoder_begin(s->e, "text");
    for (size_t at = 0, k = 0; at < n; at += piece ? piece : k) {
        k = piece ? piece : 1 + (size_t)(random_uniform(n, 1, (uint32_t)text[0], at) * 9);
        encoder_feed(s->e, text + at, MIN(k, n - at));
    }
    encoder_end(s->e);
    return &s->got;
}

static bool same(const Ids *x, const uint32_t *id, int count)
{
    return x->count == count && (!count || !memcmp(x->id, id, sizeof *id * (size_t)count));
}

static const char *decode(const Tokenizer *t, const Ids *x, size_t *n)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (int i = 0; i < x->count; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, x->id[i], &len);
        CHECK(bytes);
        buf_addn(&b, bytes, len);
    }
    *n = b.len;
    return b.text;
}

static const char *const kinds[] = {"gpt2", "llama3", "qwen2"};

static void test_expected(void)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 64, 1000, 1 << 20};
    size_t n, nid;
    const char *text = file_read(a, "tests/tokenizer/mixed.txt", &n);
    for (int i = 0; i < LEN(kinds); i++) {
        Subject *s = open_subject(arena_printf(a, "tests/tokenizer/%s.json", kinds[i]));
        const char *raw = file_read(a, arena_printf(a, "tests/tokenizer/%s.ids", kinds[i]), &nid);
        uint32_t *want = NEWN(a, uint32_t, nid / 2);
        for (size_t k = 0; k < nid; k++)
            want[k / 2] |= (uint32_t)(unsigned char)raw[k] << (k % 2 * 8);
        EXPECT(nid > 2000);
        for (int k = 0; k < LEN(pieces); k++)
            EXPECT(same(encode(s, text, n, pieces[k]), want, (int)(nid / 2)));
    }
}

/* What Hugging Face's tokenizers 0.23.3 give with small.json. */
static void test_added(void)
{
    static const struct {
        const char *text;
        int count;
        uint32_t id[12];
    } c[] = {{"", 0, {0}},
             {"abc", 3, {35, 20, 2}},
             {" abc  a", 6, {20, 35, 20, 2, 20, 38}},
             {"a <m> b", 4, {38, 45, 20, 1}},
             {"a  <m>b", 4, {38, 45, 20, 1}},
             {"[R]  abc", 4, {46, 35, 20, 2}},
             {"a[R]\n\n[R] b", 5, {38, 46, 46, 20, 1}},
             {"word", 1, {42}},
             {"a word b", 5, {38, 20, 42, 20, 1}},
             {"awordb word_", 7, {38, 42, 1, 20, 42, 20, 34}},
             {"word\u0301", 5, {20, 42, 20, 27, 28}},
             {"word<m>word", 3, {42, 45, 42}},
             {"  both  ", 1, {47}},
             {"aboth both", 6, {35, 20, 7, 10, 11, 47}},
             {"aboth\u00e9", 6, {35, 20, 7, 10, 11, 43}},
             {"e\u0301 \u00e9", 4, {20, 43, 20, 43}},
             {"\u0436\u00e9 \u0436\u0435\u0301", 6, {20, 29, 30, 43, 20, 48}},
             {"\u0436\u0435", 5, {20, 29, 30, 29, 31}},
             {"<<m>>", 4, {12, 45, 20, 13}},
             {"12 121", 11, {20, 21, 20, 22, 20, 20, 21, 20, 22, 20, 21}},
             {"abcabc ab", 8, {35, 20, 2, 35, 20, 2, 20, 35}},
             {"\u3000<m>\u3000both\u3000a", 3, {45, 47, 38}},
             {"cboth c", 8, {20, 2, 1, 7, 10, 11, 20, 2}},
             {"<", 1, {12}},
             {"both[R]", 2, {47, 46}}};
    Subject *s = open_subject(SMALL);
    for (int i = 0; i < LEN(c); i++)
        for (size_t piece = 1; piece < 20; piece++)
            if (!EXPECT(same(encode(s, c[i].text, strlen(c[i].text), piece), c[i].id, c[i].count)))
                printf("  \"%s\" in pieces of %zu\n", c[i].text, piece);
    encode(s, "a", 1, 1);
    encoder_put_special(s->e, true);
    encoder_put_special(s->e, false);
    EXPECT(same(&s->got, (uint32_t[]){38, 47, 45}, 3));
}

static const uint32_t *encode_edited(const char *json, const char *text, int count)
{
    Subject *s = open_subject(put_file("edited.json", json, strlen(json)));
    EXPECT(encode(s, text, strlen(text), 1)->count == count);
    return s->got.id;
}

static void test_merges(void)
{
    size_t n;
    const char *json = file_read(a, SMALL, &n), *x;
    /* A word that is a token without merges that lead to it. */
    x = edit(json, ",[\"Ġ\",\"a\"]", "");
    EXPECT(encode_edited(x, "a", 2)[0] == 20);
    x = edit(x, "\"ignore_merges\":false", "\"ignore_merges\":true");
    EXPECT(encode_edited(x, "a", 1)[0] == 38);
    /* " a" is of less rank than "a bc", whose place was offered as "a b" before. */
    x = edit(json,
             ",\n{\"id\":35,\"content\":\"ab\",\"single_word\":false,\"lstrip\":false,"
             "\"rstrip\":false,\"normalized\":true,\"special\":false}",
             "");
    x = edit(x, "[\"a\",\"b\"],[\"b\",\"c\"],[\"ab\",\"c\"],[\"Ġ\",\"a\"]",
             "[\"b\",\"c\"],\"a b\",[\"Ġ\",\"a\"],[\"a\",\"bc\"]");
    const uint32_t *id = encode_edited(x, "abc", 2);
    EXPECT(id[0] == 38 && id[1] == 36);
}

static const char *random_text(uint32_t seed, size_t *n)
{
    static const char *const parts[] = {"a",
                                        "b",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "'s",
                                        "'",
                                        "S",
                                        "The",
                                        "\u00e9",
                                        "e\u0301",
                                        "\u0301",
                                        "\u0323",
                                        "\u4e2d",
                                        "\xff",
                                        "\xe4",
                                        "\xb8",
                                        "\xf0",
                                        "\x9f",
                                        "\U0001f642",
                                        "12",
                                        "\u00bd",
                                        "\u3000",
                                        "!",
                                        "?!\n",
                                        "_",
                                        "<|",
                                        "<|begin_of_text|>",
                                        "<|endoftext|>",
                                        "<|end",
                                        "\u1100\u1161",
                                        "\u11a8",
                                        "\xc2\x85",
                                        "def f(x):\n    "};
    Buf b = {.a = a};
    buf_add(&b, "");
    int count = 1 + (int)(random_uniform(1, 2, seed, 0) * 40);
    for (int i = 1; i <= count; i++)
        buf_add(&b, parts[(int)(random_uniform(1, 2, seed, (uint64_t)i) * LEN(parts))]);
    *n = b.len;
    return b.text;
}

/* Ids do not depend on where the text is cut, and stand for the repaired text. */
static void test_cuts(void)
{
    uint32_t rounds = getenv("TN_QUICK") ? 300 : 2000;
    for (int i = 0; i < LEN(kinds); i++) {
        Subject *s = open_subject(arena_printf(a, "tests/tokenizer/%s.json", kinds[i]));
        for (uint32_t r = 0; r < rounds; r++) {
            size_t n, len;
            const char *text = random_text(r, &n);
            Ids whole = *encode(s, text, n, n);
            uint32_t *id = NEWN(a, uint32_t, whole.count);
            memcpy(id, whole.id, sizeof *id * (size_t)whole.count);
            Buf fixed = {.a = a};
            int64_t bad;
            size_t first;
            text_repair(&fixed, text, n, true, &bad, &first);
            const char *back = decode(s->t, &whole, &len);
            EXPECT(s->t->nnormal || (len == fixed.len && !memcmp(back, fixed.text, len)));
            EXPECT(same(encode(s, text, n, 1), id, whole.count));
            EXPECT(same(encode(s, text, n, 0), id, whole.count));
        }
    }
}

static void test_bytes(void)
{
    char text[256];
    size_t n;
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    Subject *s = open_subject("bytes");
    const Ids *x = encode(s, text, 256, 100);
    EXPECT(x->count == 256 && x->id[0] == 0 && x->id[255] == 255 && tokenizer_limit(s->t) == 256);
    EXPECT(!memcmp(decode(s->t, x, &n), text, 256) && tokenizer_find(s->t, "\n") == 10);
    EXPECT(!tokenizer_bytes(s->t, 256, &n) && !tokenizer_bytes(s->t, -1, &n));
}

static void test_repair(void)
{
#define BAD "\xef\xbf\xbd"
    static const struct {
        const char *text, *want;
    } c[] = {{"abc", "abc"},
             {"\xff", BAD},
             {"\xc3\xa9", "\xc3\xa9"},
             {"\xc3", BAD},
             {"\xc3(", BAD "("},
             {"\xc0\xaf", BAD BAD},
             {"\xe2\x82", BAD},
             {"\xe2\x82\xac\xe2\x82", "\xe2\x82\xac" BAD},
             {"\xe0\x80\xaf", BAD BAD BAD},
             {"\xed\xa0\x80", BAD BAD BAD},
             {"\xf0\x9f\x98x", BAD "x"},
             {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
             {"\xf4\x90\x80\x80", BAD BAD BAD BAD},
             {"\xf5\x80", BAD BAD},
             {"\x80\x80x", BAD BAD "x"}};
    int64_t bad;
    size_t first;
    for (int i = 0; i < LEN(c); i++) {
        Buf b = {.a = a};
        buf_add(&b, "");
        EXPECT(text_repair(&b, c[i].text, strlen(c[i].text), true, &bad, &first) == 0);
        EXPECT(!strcmp(b.text, c[i].want));
    }
    Buf b = {.a = a};
    EXPECT(text_repair(&b, "x\xf0\x9f\x98", 4, false, &bad, &first) == 3 && !strcmp(b.text, "x"));
    EXPECT(bad == 0);
    text_repair(&b, "x\xc3\xa9\xff\x80z", 6, false, &bad, &first);
    EXPECT(bad == 2 && first == 3);
}

/* ---- limits ---- */

typedef struct EncodeCall {
    Subject *s;
    const char *text;
    size_t n;
} EncodeCall;

static void encode_call(void *arg)
{
    EncodeCall *c = arg;
    encode(c->s, c->text, c->n, MAX_FEED);
}

static void special_call(void *s)
{
    encoder_put_special(((Subject *)s)->e, false);
}

static void test_limits(void)
{
    size_t n = MAX_WORD;
    char *text = NEWN(a, char, n + 2);
    Subject *s = open_subject("tests/tokenizer/gpt2.json");
    memset(text, 'x', n + 2);
    int most = encode(s, text, n, MAX_FEED)->count;
    EXPECT(most > 0 && encode(s, text, n, 12345)->count == most);
    EncodeCall c = {s, text, n + 1};
    EXPECT_FAIL(&ctx, encode_call, &c, "expected at most 1048576 bytes of a");
    memset(text, ' ', n + 1);
    text[n + 1] = '.';
    c.n = n + 2;
    encode_call(&c); /* the last space is the next word's */
    EXPECT(s->got.count > 1);
    c = (EncodeCall){open_subject(SMALL), "ab'", 3};
    EXPECT_FAIL(&ctx, encode_call, &c, "the text has byte 39, which has no token");
    size_t len;
    const char *json = file_read(a, SMALL, &len);
    put_file("post.json", json, len);
    json = edit(json, "\"post_processor\":{\"type\":\"TemplateProcessing\"",
                "\"post_processor\":{\"type\":\"X\"");
    EXPECT_FAIL(&ctx, special_call, open_subject(put_file("post.json", json, strlen(json))),
                "special tokens: post_processor of type \"X\" is not supported");
}

/* ---- files ---- */

typedef struct FileCall {
    const Tokenizer *t;
    const char *path[2], *output;
    int n;
    TokenizeOptions o;
    TokenType type;
    int64_t count;
} FileCall;

typedef struct Aside {
    FileCall *c;
    Arena *a;
    bool back;
} Aside;

static void run_aside(void *arg)
{
    Aside *x = arg;
    FileCall *c = x->c;
    c->count = x->back ? detokenize_file(x->a, c->t, c->path[0], c->output, &c->o)
                       : tokenize_files(x->a, c->t, c->n, c->path, c->output, &c->o, &c->type);
}

/* In an arena of its own, so that what a failure leaves open is dropped at once. */
static void call_aside(FileCall *c, bool back)
{
    Aside x = {c, arena_new(&ctx), back};
    CHECK(x.a);
    Code code = ctx_try(&ctx, run_aside, &x);
    arena_free(x.a);
    if (code)
        fail_again(&ctx, "");
}

static void tokenize_call(void *c)
{
    call_aside(c, false);
}

static void detokenize_call(void *c)
{
    call_aside(c, true);
}

static bool stop_later(void *arg, int64_t done, int64_t total)
{
    return ++*(int *)arg < 3 || done > total;
}

static bool file_is(const char *path, const void *data, size_t n)
{
    size_t len;
    const char *got = file_read(a, path, &len);
    return len == n && !memcmp(got, data, n);
}

static FileCall file_call(const char *tokenizer, const char *path, const char *output)
{
    return (FileCall){
        .t = tokenizer_open(a, tokenizer), .path = {path}, .output = in_dir(output), .n = 1};
}

static void test_files(void)
{
    static const uint16_t want[] = {38, 12, 35, 20, 2, 45, 47, 12}, around[] = {45, 38, 47};
    static const uint32_t wide[] = {38};
    FileCall c = file_call(SMALL, put_file("1.txt", "a", 1), "out.bin");
    c.path[1] = put_file("2.txt", "abc<m>both", 10);
    c.n = 2;
    c.o.end = "<";
    tokenize_call(&c);
    EXPECT(c.count == 8 && c.type == TOKEN_U16 && file_is(c.output, want, sizeof want));
    c.n = 1;
    c.o = (TokenizeOptions){.type = TOKEN_U32};
    tokenize_call(&c);
    EXPECT(c.count == 1 && c.type == TOKEN_U32 && file_is(c.output, wide, sizeof wide));
    FileCall back = file_call(SMALL, c.output, "back.txt");
    back.o.type = TOKEN_U32;
    detokenize_call(&back);
    EXPECT(back.count == 1 && file_is(back.output, " a", 2));
    c.o = (TokenizeOptions){.type = TOKEN_BYTE};
    tokenize_call(&c);
    EXPECT(c.count == 1 && c.type == TOKEN_BYTE && file_is(c.output, "&", 1)); /* 38 */
    back = file_call(SMALL, c.output, "back.txt");
    back.o.type = TOKEN_BYTE;
    detokenize_call(&back);
    EXPECT(back.count == 1 && file_is(back.output, " a", 2));
    c.o = (TokenizeOptions){.special = true};
    tokenize_call(&c);
    EXPECT(c.count == 3 && file_is(c.output, around, sizeof around));
    back = file_call("bytes", put_file("empty", "", 0), "back.txt");
    detokenize_call(&back);
    EXPECT(back.count == 0 && file_is(back.output, "", 0));
}

/* An llm.c shard says its own width. */
static void test_shard(void)
{
    int32_t shard[257] = {20240520, 1, 2};
    shard[256] = 'h' | 'i' << 16;
    FileCall c = file_call("bytes", put_file("shard.bin", shard, sizeof shard), "shard.txt");
    detokenize_call(&c);
    EXPECT(c.count == 2 && file_is(c.output, "hi", 2));
}

/* What fails leaves the output as it was, and nothing beside it. */
static void test_file_errors(void)
{
    int turns = 0;
    size_t n = 300000, len;
    char *text = NEWN(a, char, n);
    memset(text, 'a', n);
    FileCall c = file_call(SMALL, put_file("text", "ab q'", 5), "kept.bin");
    put_file("kept.bin", "kept", 4);
    int entries = count_entries(dir);
    EXPECT_FAIL(&ctx, tokenize_call, &c, "the text has byte 39");
    c = file_call("bytes", put_file("text", text, n), "kept.bin");
    c.o = (TokenizeOptions){.progress = stop_later, .arg = &turns};
    EXPECT_FAIL(&ctx, tokenize_call, &c, "stopped");
    c.o = (TokenizeOptions){.end = "no such"};
    EXPECT_FAIL(&ctx, tokenize_call, &c, "bytes: no token \"no such\"");
    c = file_call("bytes", dir, "kept.bin");
    EXPECT_FAIL(&ctx, tokenize_call, &c, "is a folder");
    c.path[0] = in_dir("absent");
    EXPECT_FAIL(&ctx, tokenize_call, &c, "absent: cannot open: No such file");
    c = file_call(SMALL, put_file("text", "\x31\x00\x7d\x00", 4), "kept.bin");
    EXPECT_FAIL(&ctx, detokenize_call, &c,
                "text: token 0 is 49, which tests/tokenizer/small.json does not");
    const char *json = file_read(a, SMALL, &len);
    json = edit(json, "\"<\":12,", "\"<\":65536,");
    json = edit(json, "\"id\":12,", "\"id\":65536,");
    c = file_call(put_file("wide.json", json, strlen(json)), put_file("text", "a<", 2), "kept.bin");
    c.o.type = TOKEN_U16;
    EXPECT_FAIL(&ctx, tokenize_call, &c, "token 65536 does not fit 16 bits; use --token-type u32");
    c.o.type = TOKEN_BYTE;
    EXPECT_FAIL(&ctx, tokenize_call, &c, "token 65536 does not fit 8 bits; use --token-type u32");
    json = edit(file_read(a, SMALL, &len), "\"<\":12,", "\"<\":256,");
    json = edit(json, "\"id\":12,", "\"id\":256,");
    c = file_call(put_file("wide.json", json, strlen(json)), c.path[0], "kept.bin");
    c.o.type = TOKEN_BYTE;
    EXPECT_FAIL(&ctx, tokenize_call, &c, "token 256 does not fit 8 bits; use --token-type u16");
    EXPECT(count_entries(dir) == entries + 1 && file_is(in_dir("kept.bin"), "kept", 4));
}

/* ---- the public interface ---- */

static void test_interface(void)
{
    tn_context *c = tn_context_new();
    tn_tokenizer *t = NULL;
    const int64_t *ids;
    int64_t count;
    const char *text;
    size_t n;
    EXPECT(tn_tokenizer_open(c, "absent.json", &t) == TN_CODE_FAIL && !t);
    EXPECT(strstr(tn_error(c), "absent.json: cannot open"));
    EXPECT(!tn_tokenizer_open(c, "tests/tokenizer/llama3.json", &t));
    EXPECT(tn_tokenizer_limit(t) == 400 && tn_tokenizer_find(t, "<|begin_of_text|>") == 0);
    EXPECT(tn_tokenizer_find(t, "no such") == -1);
    EXPECT(!tn_tokenizer_encode(t, "a \xff b", 5, 1, &ids, &count) && count > 3 && ids[0] == 0);
    int64_t with = count;
    EXPECT(!tn_tokenizer_encode(t, "a \xff b", 5, 0, &ids, &count) && count == with - 1);
    EXPECT(!tn_tokenizer_decode(t, count, ids, &text, &n) && !strcmp(text, "a \xef\xbf\xbd b"));
    EXPECT(!tn_tokenizer_encode(t, "", 0, 0, &ids, &count) && count == 0);
    EXPECT(!tn_tokenizer_decode(t, 0, ids, &text, &n) && n == 0 && !text[0]);
    EXPECT(tn_tokenizer_decode(t, 1, &(int64_t){400}, &text, &n) == TN_CODE_FAIL);
    EXPECT(!strcmp(tn_error(c), "token 0 is 400, which the tokenizer does not have"));
    tn_tokenize_options o = {.token_type = "u8"};
    const char *path = put_file("text", "abc", 3);
    int width;
    EXPECT(tn_tokenize(t, 1, &path, in_dir("api.bin"), &o, &count, &width) == TN_CODE_USAGE);
    o.token_type = NULL;
    EXPECT(!tn_tokenize(t, 1, &path, in_dir("api.bin"), &o, &count, &width) && width == 2);
    EXPECT(!tn_detokenize(t, in_dir("api.bin"), in_dir("api.txt"), &o, &with) && with == count);
    EXPECT(file_is(in_dir("api.txt"), "abc", 3));
    tn_tokenizer_free(t);
    tn_context_free(c);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_expected, test_added, test_merges, test_cuts,        test_bytes,    test_repair,
        test_limits,   test_files, test_shard,  test_file_errors, test_interface};
    return test_in_folder(tests, LEN(tests));
}
