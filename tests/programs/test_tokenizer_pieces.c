/* Tokenizers of SentencePiece's kind: ids and texts as Hugging Face gives them (tests/tokenizer,
 * written by tools/tokenizer-pieces.py), the same however the text is cut, and with cuts of words
 * or without; what is refused; what is said of texts that are empty or not UTF-8. */
#include "../shared/folder.h"

#include "../../include/tenon.h"
#include "../../src/io/tokenizer.h"

static const char *const kinds[] = {"llama2", "llama5", "gemma", "t5", "unigram"};

typedef struct Subject {
    Tokenizer *t;
    Encoder *e;
    uint32_t *id;
    int count, cap;
} Subject;

static void collect(void *arg, const uint32_t *id, size_t n)
{
    Subject *s = arg;
    for (size_t i = 0; i < n; i++)
        PUSH(a, s->id, s->count, s->cap, id[i]);
}

static Subject *open_subject(const char *kind)
{
    Subject *s = NEW(a, Subject);
    s->t = tokenizer_open(a, arena_printf(a, "tests/tokenizer/%s.json", kind));
    s->e = encoder_new(a, s->t, collect, s);
    return s;
}

/* In pieces of `piece` bytes; 0: of random sizes. */
static void encode(Subject *s, const char *text, size_t n, size_t piece)
{
    s->count = 0;
    encoder_begin(s->e, "text");
    for (size_t at = 0, k = 0; at < n; at += k) {
        k = piece ? piece : 1 + (size_t)(random_uniform(n, 1, (uint32_t)text[0], at) * 9);
        encoder_feed(s->e, text + at, MIN(k, n - at));
    }
    encoder_end(s->e);
}

static bool same(const Subject *s, const uint32_t *id, int count)
{
    return s->count == count && (!count || !memcmp(s->id, id, sizeof *id * (size_t)count));
}

static const char *decode(const Subject *s, size_t *n)
{
    Buf b = {.a = a};
    Decoder *d = decoder_new(a, s->t);
    decoder_begin(d);
    for (int i = 0; i < s->count; i++)
        EXPECT(decoder_put(d, s->id[i], &b));
    decoder_end(d, &b);
    *n = b.len;
    return b.text;
}

static void test_expected(void)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 64, 1000, 1 << 20};
    size_t n, nid, ntext, len;
    const char *text = file_read(a, "tests/tokenizer/pieces.txt", &n);
    for (int i = 0; i < LEN(kinds); i++) {
        Subject *s = open_subject(kinds[i]);
        const char *raw = file_read(a, arena_printf(a, "tests/tokenizer/%s.ids", kinds[i]), &nid);
        const char *want =
            file_read(a, arena_printf(a, "tests/tokenizer/%s.txt", kinds[i]), &ntext);
        uint32_t *id = NEWN(a, uint32_t, nid / 2);
        for (size_t k = 0; k < nid; k++)
            id[k / 2] |= (uint32_t)(unsigned char)raw[k] << (k % 2 * 8);
        EXPECT(nid > 1000);
        for (int k = 0; k < LEN(pieces); k++) {
            encode(s, text, n, pieces[k]);
            EXPECT(same(s, id, (int)(nid / 2)));
        }
        const char *back = decode(s, &len);
        EXPECT(len == ntext && !memcmp(back, want, len));
    }
}

/* ---- cuts ---- */

static const char *random_text(uint32_t seed, size_t *n)
{
    static const char *const parts[] = {
        "a",      "b",      " ",       "  ",      "\n",     "\t",           "in",         "the",
        " of",    "\u00e9", "e\u0301", "\u0301",  "\u4e2d", "\u2603",       "\U0001f642", "\xff",
        "\xe4",   "12",     "\u2581",  "\u2581a", "<m>",    "[R]",          "both",       "word",
        "norm",   "a b",    "<unk>",   "<0x41>",  "\u3000", "\u1100\u1161", "\u11a8",     "fi\r\n",
        "\u0130", "\uff21", "gradient"};
    Buf b = {.a = a};
    buf_add(&b, "");
    int count = 1 + (int)(random_uniform(1, 2, seed, 0) * 40);
    for (int i = 1; i <= count; i++)
        buf_add(&b, parts[(int)(random_uniform(1, 2, seed, (uint64_t)i) * LEN(parts))]);
    *n = b.len;
    return b.text;
}

/* Ids depend neither on where the text is cut nor on whether a word is. */
static void test_cuts(void)
{
    uint32_t rounds = getenv("TN_QUICK") ? 300 : 2000;
    for (int i = 0; i < LEN(kinds); i++) {
        Subject *s = open_subject(kinds[i]), *whole = open_subject(kinds[i]);
        whole->t->bpe.no_cuts = true;
        for (uint32_t r = 0; r < rounds; r++) {
            size_t n;
            const char *text = random_text(r, &n);
            encode(whole, text, n, n);
            encode(s, text, n, n);
            EXPECT(same(s, whole->id, whole->count));
            encode(s, text, n, 1);
            EXPECT(same(s, whole->id, whole->count));
            encode(s, text, n, 0);
            if (!EXPECT(same(s, whole->id, whole->count)))
                printf("  %s: \"%s\"\n", kinds[i], text);
        }
    }
}

typedef struct EncodeCall {
    Subject *s;
    const char *text;
    size_t n, piece;
} EncodeCall;

static void encode_call(void *arg)
{
    EncodeCall *c = arg;
    encode(c->s, c->text, c->n, c->piece);
}

/* A text without an end to its words is taken in pieces, in memory of a word; of one that can be
 * cut nowhere that is an error. */
static void test_long(void)
{
    size_t n = 3 * MAX_WORD;
    char *text = NEWN(a, char, n);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 5 ? (char)('a' + i * i % 26) : ' ';
    for (int i = 0; i < LEN(kinds); i++) {
        Subject *s = open_subject(kinds[i]);
        encode(s, text, n, MAX_FEED);
        int count = s->count;
        encode(s, text, n, 12345);
        EXPECT(count > 100000 && s->count == count);
    }
    EncodeCall c = {open_subject("llama2"), text, n, MAX_FEED};
    c.s->t->bpe.no_cuts = true;
    EXPECT_FAIL(&ctx, encode_call, &c, "expected at most 1048576 bytes of a");
}

/* ---- what is refused ---- */

typedef struct ParseCall {
    const char *text;
} ParseCall;

static void parse(void *arg)
{
    ParseCall *c = arg;
    tokenizer_parse(a, c->text, strlen(c->text), "x.json");
}

static const char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    CHECK(at);
    return arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void test_refused(void)
{
    static const char *const c[][4] = {
        {"llama2", "\"Prepend\"", "\"BertNormalizer\"", "type \"BertNormalizer\" is not supported"},
        {"llama2", "{\"String\":\" \"}", "{\"String\":\"\"}", "an empty pattern is not supported"},
        {"llama2", "{\"String\":\" \"},\"content\":\"\u2581\"",
         "{\"Regex\":\"(a)b\"},\"content\":\"$1\"", "groups in \"content\" (\"$1\")"},
        {"llama2", "\"start\":1,\"stop\":0", "\"start\":1,\"stop\":1", "\"stop\" other than 0"},
        {"llama2", "{\"type\":\"Fuse\"}", "{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}",
         "a decoder other than Strip after Fuse"},
        {"llama2", "{\"type\":\"Fuse\"}", "{\"type\":\"CTC\"}", "type \"CTC\" is not supported"},
        {"llama2", "\"unk_token\":null", "\"unk_token\":\"<no>\"",
         "\"unk_token\": \"<no>\" is not in the vocabulary"},
        {"llama5", "\"first\"", "\"last\"", "expected always, first or never, found \"last\""},
        {"llama5", "\"replacement\":\"\u2581\"", "\"replacement\":\"ab\"",
         "\"replacement\": expected one character, found \"ab\""},
        {"llama5", "\"prepend_scheme\":\"first\"", "\"add_prefix_space\":false",
         "\"add_prefix_space\": false needs \"prepend_scheme\": \"never\""},
        {"llama5", "\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}",
         "\"first\" is not supported after a normalizer that can remove"},
        {"gemma", "\"MergedWithPrevious\"", "\"Contiguous\"", "behavior \"Contiguous\" is not"},
        {"t5", "\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"!", "expected base64 of"},
        {"t5", "\"unk_id\":2", "\"unk_id\":2222", "key \"unk_id\": expected 0 to"},
        {"t5", "\"byte_fallback\":false", "\"byte_fallback\":false,\"x\":1", "key \"x\" is not"},
        {"t5", "[\"<pad>\",0.0]", "[\"<pad>\"]", "\"vocab\"[0]: expected [\"text\", score]"},
        {"t5", "[\"<pad>\",0.0]", "[\"\",0.0]", "\"vocab\"[0]: a token has no text"},
        {"t5", "{\"type\":\"WhitespaceSplit\"}",
         "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}", "more than one Metaspace"},
        {"t5", "{\"type\":\"WhitespaceSplit\"}", "{\"type\":\"Whitespace\"}",
         "type \"Whitespace\" is not supported"}};
    for (int i = 0; i < LEN(c); i++) {
        size_t n;
        const char *text = file_read(a, arena_printf(a, "tests/tokenizer/%s.json", c[i][0]), &n);
        ParseCall p = {edit(text, c[i][1], c[i][2])};
        EXPECT_FAIL(&ctx, parse, &p, c[i][3]);
    }
}

/* A word that is a token is not merged, nor is a part of a word taken for one. */
static void test_whole(void)
{
    size_t n;
    const char *json = file_read(a, "tests/tokenizer/gemma.json", &n);
    Subject s = {0};
    json = edit(json, "\"ignore_merges\":false", "\"ignore_merges\":true");
    s.t = tokenizer_parse(a, json, strlen(json), "x.json");
    s.e = encoder_new(a, s.t, collect, &s);
    for (size_t piece = 1; piece < 9; piece++) {
        encode(&s, "<0x41>", 6, piece);
        EXPECT(s.count == 1 && s.id[0] == tokenizer_find(s.t, "<0x41>"));
        encode(&s, " <0x41>", 7, piece);
        EXPECT(s.count > 4);
    }
}

static void open_call(void *arg)
{
    tokenizer_open(a, arg);
}

/* A map of "a" to one byte that is no text: base64 of 4 units and "\xff". */
static void test_charsmap(void)
{
    static const char text[] =
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"EAAAAAAAAAAAAAAAAAAAAAAAAAD/\"}";
    size_t n;
    const char *json = file_read(a, "tests/tokenizer/llama5.json", &n);
    ParseCall p = {edit(json, "\"normalizer\":null", arena_printf(a, "\"normalizer\":%s", text))};
    EXPECT_FAIL(&ctx, parse, &p, "\"precompiled_charsmap\": its texts are not UTF-8");
}

/* ---- what grows ---- */

typedef struct GrowthCall {
    const char *json, *text;
} GrowthCall;

/* Reads a tokenizer and takes much text through it, there and back. */
static void grow(void *arg)
{
    const GrowthCall *c = arg;
    enum { TIMES = 2000 };
    Subject *s = NEW(a, Subject);
    s->t = tokenizer_parse(a, c->json, strlen(c->json), "x.json");
    s->e = encoder_new(a, s->t, collect, s);
    encoder_begin(s->e, "text");
    for (int i = 0; i < TIMES; i++)
        encoder_feed(s->e, c->text, strlen(c->text));
    encoder_end(s->e);
    size_t n;
    decode(s, &n);
    EXPECT(n < 100 * TIMES * strlen(c->text));
}

/* Five of them, each of which writes ten times what it finds. */
static const char *five(const char *one)
{
    return arena_printf(a, "%s,%s,%s,%s,%s", one, one, one, one, one);
}

/* A map of "a" to n bytes of text, as base64: the units are those of a trie with one leaf. */
static const char *map_of_a(int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { UNITS = 'a' + 1, HEAD = 4 + 4 * UNITS };
    unsigned char *raw = arena_alloc(a, (size_t)(HEAD + n + 4));
    Buf b = {.a = a};
    raw[0] = 4 * UNITS & 255;
    raw[1] = 4 * UNITS >> 8;
    uint32_t leaf = 'a' | 1u << 8 | (uint32_t)('a' ^ 1) << 10; /* whose value is in unit 1: 0 */
    memcpy(raw + 4 + 4 * 'a', &leaf, sizeof leaf);
    memset(raw + HEAD, 'b', (size_t)n);
    for (int i = 0; i <= HEAD + n; i += 3) {
        uint32_t bits = (uint32_t)raw[i] << 16 | (uint32_t)raw[i + 1] << 8 | raw[i + 2];
        for (int k = 18; k >= 0; k -= 6)
            buf_addn(&b, &digits[bits >> k & 63], 1);
    }
    return b.text;
}

/* A tokenizer of 100 KB that would make gigabytes of a text is refused by the part that does. */
static void test_growth(void)
{
    static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}";
    static const char strip[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
                                "\"content\":\" \"}";
    static const char literal[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                                  "\"content\":\"aaaaaaaaaa\"}";
    static const char regex[] = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},"
                                "\"content\":\"aaaaaaaaaa\"}";
    static const char added[] = "\"content\":\"<m>\",\"single_word\":false,\"lstrip\":true,"
                                "\"rstrip\":false,\"normalized\":false";
    size_t n;
    const char *json = file_read(a, "tests/tokenizer/llama2.json", &n);
    const char *long_mark = arena_printf(a, "{\"type\":\"Prepend\",\"prepend\":\"%0999d\"}", 0);
    const char *map = arena_printf(a, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}",
                                   map_of_a(100));
    const char *few =
        arena_printf(a, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}", map_of_a(50));
    const char *normal = edit(json, prepend, five(literal));
    const struct {
        const char *json, *text, *error;
    } c[] = {
        {normal, "aaaa", "\"normalizers\"[3]: type \"Replace\": makes more than 64 bytes of each"},
        {edit(json, prepend, five(regex)), "aaaa", "\"normalizers\"[3]: type \"Replace\": makes"},
        {edit(json, prepend, long_mark), "a<s>a", "type \"Prepend\": makes more than 64 bytes"},
        {edit(json, prepend, map), "a", "type \"Precompiled\": makes more than 64 bytes"},
        {edit(normal, added,
              "\"content\":\"aa\",\"single_word\":false,\"lstrip\":false,"
              "\"rstrip\":false,\"normalized\":true"),
         "b", "type \"Replace\": makes more than 64 bytes"},
        {edit(json, strip, five(literal)), "a a", "\"decoder\": makes more than 64 bytes of each"},
    };
    for (int i = 0; i < LEN(c); i++)
        EXPECT_FAIL(&ctx, grow, &((GrowthCall){c[i].json, c[i].text}), c[i].error);
    grow(&(GrowthCall){edit(json, prepend, few), "a"});
    grow(&(GrowthCall){json, " a \ufdfa"});
}

/* A folder, or a file, of SentencePiece's own: the line that converts it. */
static void test_model_file(void)
{
    const char *path = in_dir("it's.model");
    file_write(&ctx, path, "x", 1);
    EXPECT_FAIL(&ctx, open_call, (void *)path, "T.from_pretrained(sys.argv[1]).save_pretrained");
    file_write(&ctx, in_dir("tokenizer.model"), "x", 1);
    EXPECT_FAIL(&ctx, open_call, (void *)dir, "tokenizer.model: a SentencePiece model");
    EXPECT(strstr(ctx.message, arena_printf(a, " '%s'", dir)));
}

/* ---- the public interface ---- */

static const char *decode_all(tn_tokenizer *t, int64_t count, const int64_t *ids)
{
    const char *text;
    size_t n;
    return tn_tokenizer_decode(t, count, ids, &text, &n) ? NULL : arena_strdup(a, text);
}

/* Token by token the text is that of all at once. */
static void test_decode(void)
{
    tn_context *c = tn_context_new();
    tn_tokenizer *t = NULL;
    const int64_t *ids;
    const char *text;
    int64_t count;
    size_t n;
    Buf b = {.a = a};
    EXPECT(!tn_tokenizer_open(c, "tests/tokenizer/llama2.json", &t));
    EXPECT(!tn_tokenizer_encode(t, "the  gradient \u2603 in", 20, 0, &ids, &count) && count > 8);
    int64_t *own = NEWN(a, int64_t, count);
    memcpy(own, ids, sizeof *own * (size_t)count);
    EXPECT(!strcmp(decode_all(t, count, own), "the  gradient \u2603 in"));
    EXPECT(!tn_tokenizer_decode_begin(t, 1, own, &text, &n));
    buf_add(&b, text);
    for (int64_t i = 1; i < count; i++) {
        EXPECT(!tn_tokenizer_decode_next(t, 1, &own[i], &text, &n));
        EXPECT(strlen(text) == n);
        buf_add(&b, text);
    }
    EXPECT(!strcmp(b.text, "the  gradient \u2603 in"));
    int64_t snow = tn_tokenizer_find(t, "<0xE2>");
    EXPECT(!tn_tokenizer_decode_begin(t, 1, &snow, &text, &n) && n == 0);
    EXPECT(!tn_tokenizer_decode_next(t, 0, NULL, &text, &n) && !strcmp(text, "\ufffd"));
    EXPECT(tn_tokenizer_decode_next(t, 1, &(int64_t){-1}, &text, &n) == TN_CODE_FAIL && !text);
    tn_tokenizer_free(t);
    tn_context_free(c);
}

static void keep(void *arg, const char *message)
{
    Buf *b = arg;
    buf_add(b, message);
    buf_add(b, "\n");
}

/* What is to be said of texts, once for all of them; bytes carry everything. */
static void test_texts(void)
{
    static const char *const tokenizers[] = {"tests/tokenizer/gpt2.json",
                                             "tests/tokenizer/llama2.json", "bytes"};
    const char *path[] = {in_dir("fine"), in_dir("none"), in_dir("bad"), in_dir("worse")};
    char *long_text = NEWN(a, char, 200000);
    memset(long_text, 'a', 200000);
    long_text[150000] = (char)0xff;
    file_write(&ctx, path[0], "fine", 4);
    file_write(&ctx, path[1], "", 0);
    file_write(&ctx, path[2], long_text, 200000);
    file_write(&ctx, path[3], "\xe4\xb8 \xc3", 4);
    for (int i = 0; i < LEN(tokenizers); i++) {
        tn_context *c = tn_context_new();
        tn_tokenizer *t = NULL;
        int64_t count;
        int width;
        Buf b = {.a = a};
        buf_add(&b, "");
        tn_tokenize_options o = {.warn = keep, .warn_arg = &b};
        EXPECT(!tn_tokenizer_open(c, tokenizers[i], &t));
        EXPECT(!tn_tokenize(t, 4, path, in_dir("out"), &o, &count, &width) && count > 0);
        const char *want = arena_printf(
            a, "%s: is empty (1 of 4 texts are)\n%s%s", path[1], i == 2 ? "" : path[2],
            i == 2
                ? ""
                : ": byte 150000: not UTF-8; 3 such places in 2 of 4 texts: each became U+FFFD\n");
        if (!EXPECT(!strcmp(b.text, want)))
            printf("  found: %s  expected: %s", b.text, want);
        b.len = 0;
        EXPECT(!tn_tokenize(t, 1, path, in_dir("out"), &o, &count, &width) && !b.len);
        EXPECT(tn_tokenize(t, 1, path + 1, in_dir("out"), &o, &count, &width) == TN_CODE_FAIL);
        EXPECT(strstr(tn_error(c), "none: is empty: there is nothing to write"));
        tn_tokenizer_free(t);
        tn_context_free(c);
    }
}

int main(void)
{
    static void (*const tests[])(void) = {test_expected, test_cuts,   test_long,  test_refused,
                                          test_charsmap, test_growth, test_whole, test_model_file,
                                          test_decode,   test_texts};
    return test_in_folder(tests, LEN(tests));
}
