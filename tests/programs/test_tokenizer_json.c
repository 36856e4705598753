/* What of a tokenizer.json is read and what refused: patterns, settings, damaged files.
 * Usage: test_tokenizer_json [ROUNDS of corruption]. */
#include "../shared/test.h"

#include "../../src/io/tokenizer.h"

#define SMALL "tests/tokenizer/small.json"

static Ctx ctx;
static Arena *a; /* of one test */

/* ---- patterns ---- */

static const char *pattern;

static void make_regex(void *unused)
{
    (void)unused;
    regex_new(a, "here", pattern);
}

static void test_patterns(void)
{
    static const struct {
        const char *pattern, *text;
        size_t lo, hi;
    } good[] = {{"\\s", "a\u180e\u2028", 4, 7},
                {"[\\s]", "a\xc2\x85", 1, 3},
                {"\\S+", " \u180e\u00a0", 1, 4},
                {"\\d+", "a\u0663\u00bd", 1, 3},
                {"(?i:'s|k)", "\u017f'\u017f", 2, 5},
                {"(?i:k)", "\u212a", 0, 3},
                {"a.c", "a\nc a\rc", 4, 7},
                {"a$", "a\nb", 0, 1},
                {"a$", "ab a", 3, 4},
                {"\\p{^L}", "ab1", 2, 3},
                {"\\P{L}", "ab1", 2, 3},
                {"\\p{Han}+", "a\u4e2d\u3001", 1, 4},
                {"[\\u4e2d-\\u4e2e]|\\x{1f642}|\\x41", "x\U0001f642", 1, 5},
                {"\\p{N}{1,3}", "12345", 0, 3},
                {"a++b|[-x]|[x\\-]", "aaab", 0, 4},
                {"[^\\r\\n\\p{L}]?\\p{L}+", "\n a", 1, 3},
                {"(?=a+?)a??a", "ba-", 1, 2}, /* what PCRE2 10.42 has wrong if asked plainly */
                {"\\P{Lu}??\\P{Nd}", "cd", 0, 1},
                {"(a|b)+?c|]|}", "abc", 0, 3}};
    static const char *const bad[][2] = {{"^a", "this anchor at byte 0"},
                                         {"\\bx", "this escape at byte 0"},
                                         {"\\w", "this escape"},
                                         {"\\h", "this escape"},
                                         {"\\X", "this escape"},
                                         {"\\1", "this escape"},
                                         {"[\\S]", "this escape"},
                                         {"\\p{Alpha}", "this property"},
                                         {"\\pL", "this property"},
                                         {"\\p{L", "this property"},
                                         {"\\p", "this property"},
                                         {"(?i:\\p{Lu})", "this property"},
                                         {"(?<=a)b", "this kind of group at byte 0"},
                                         {"(?<n>a)", "this kind of group"},
                                         {"(?i)a", "this kind of group"},
                                         {"(*UTF)a", "this kind of group"},
                                         {"a{2}+", "this quantifier at byte 1"},
                                         {"a{2}?", "this quantifier"},
                                         {"a{,2}", "this quantifier"},
                                         {"a**", "this quantifier at byte 2"},
                                         {"*a", "this quantifier at byte 0"},
                                         {"[a-c-e]", "this range"},
                                         {"[\\s-a]", "this range"},
                                         {"[a-\\d]", "the end of a range before this"},
                                         {"[a&&b]", "this in a class"},
                                         {"[[a]]", "this in a class"},
                                         {"[]a]", "this in a class"},
                                         {"[a", "this in a class"},
                                         {"(?i:ss)", "a ligature's letters"},
                                         {"(?i:\\x73)", "the case of an escape"},
                                         {"\\x{\x11}", "this escape"},
                                         {"(?i:\u00e9)", "not ASCII"},
                                         {"a*", "matches empty text"},
                                         {"", "matches empty text"},
                                         {"(a", "missing closing parenthesis"},
                                         {"a)", "this without a group"},
                                         {"(?=a)+b", "this quantifier"},
                                         {"(?:ab){60000}", "a count that makes more than 65536"},
                                         {"(?:(?:(?:(?:ab){32}c){32}){32})", "a count that makes"},
                                         {"x(?:a|(?:b{9}|c){256,}){128}y", "a count that makes"},
                                         {"a\\", "this escape"}};
    for (int i = 0; i < LEN(good); i++) {
        size_t lo = 99, hi = 99;
        Regex *r = regex_new(a, "here", good[i].pattern);
        Found f = regex_find(r, good[i].text, strlen(good[i].text), 0, false, &lo, &hi);
        if (!EXPECT(f == FOUND_ALL && lo == good[i].lo && hi == good[i].hi))
            printf("  %s: found %zu to %zu\n", good[i].pattern, lo, hi);
    }
    for (int i = 0; i < LEN(bad); i++) {
        pattern = bad[i][0];
        EXPECT_FAIL(&ctx, make_regex, NULL, bad[i][1]);
    }
    char *wide = NEWN(a, char, 70000);
    memset(wide, 'a', 69999);
    pattern = wide;
    EXPECT_FAIL(&ctx, make_regex, NULL, "pattern: more than 65536 bytes are not supported");
}

typedef struct MatchCall {
    const Regex *r;
    const char *text;
} MatchCall;

static void match(void *arg)
{
    const MatchCall *c = arg;
    size_t lo, hi;
    regex_find(c->r, c->text, strlen(c->text), 0, false, &lo, &hi);
}

/* A pattern whose ways to match are more than can be tried is refused at the text that shows it. */
static void test_steps(void)
{
    static const char *const patterns[] = {"(?:a?b?){3000}c", "(?:(?:a{0,9}){0,9}){0,9}c",
                                           "(?:a+)+c"};
    char *text = NEWN(a, char, 5001);
    memset(text, 'a', 5000);
    for (int i = 0; i < LEN(patterns); i++) {
        MatchCall c = {regex_new(a, "here", patterns[i]), text};
        EXPECT_FAIL(&ctx, match, &c, "here: pattern: ");
    }
}

/* With text to follow, only what cannot change is found. */
static void test_open_matches(void)
{
    size_t lo, hi;
    Regex *r = regex_new(a, "here", " ?\\p{L}+|\\s+(?!\\S)|\\s+");
    EXPECT(regex_find(r, "ab ", 3, 0, true, &lo, &hi) == FOUND_ALL && hi == 2);
    EXPECT(regex_find(r, "ab", 2, 0, true, &lo, &hi) == FOUND_PART && lo == 0);
    EXPECT(regex_find(r, "ab  ", 4, 2, true, &lo, &hi) == FOUND_PART && lo == 2);
    EXPECT(regex_find(r, "ab  c", 5, 2, true, &lo, &hi) == FOUND_ALL && hi == 3);
    EXPECT(regex_find(r, "12", 2, 0, true, &lo, &hi) == FOUND_NONE);
    EXPECT(regex_find(r, "12a", 3, 0, true, &lo, &hi) == FOUND_PART && lo == 2);
}

/* ---- random patterns: matches in a text that comes byte by byte are those in the whole text ----
 */

static uint64_t drawn; /* numbers so far */

static int pick(int below)
{
    return (int)(random_uniform(5, 4, 0, drawn++) * below);
}

static void add_pattern(Buf *b, int depth)
{
    static const char *const atoms[] = {"a",      "b",        " ",      "\n",       "\\s",   "\\S",
                                        "\\d",    "\\p{L}",   "\\p{N}", "[^\\sab]", ".",     "$",
                                        "\u00e9", "[ab\\n-]", "\\P{L}", "(?i:'s)",  "(?i:A)"};
    static const char *const groups[] = {"(", "(?:", "(?=", "(?!", "(?>", "(?i:"};
    static const char *const repeats[] = {"",   "",   "",   "*",  "+",   "?",     "*?",
                                          "+?", "??", "*+", "++", "{2}", "{1,3}", "{2,}"};
    for (int i = pick(3); i >= 0; i--) {
        bool group = depth < 3 && !pick(4);
        const char *atom = atoms[pick(LEN(atoms))];
        if (group) {
            buf_add(b, groups[pick(LEN(groups))]);
            add_pattern(b, depth + 1);
            buf_add(b, ")");
        } else {
            buf_add(b, atom);
        }
        if (group || *atom != '$')
            buf_add(b, repeats[pick(LEN(repeats))]);
        if (i && !pick(3))
            buf_add(b, "|");
    }
}

/* At least `have` bytes, whole characters. */
static size_t whole_chars(const char *text, size_t n, size_t have)
{
    have = MIN(n, have);
    while (have < n && ((unsigned char)text[have] & 0xc0) == 0x80)
        have++;
    return have;
}

typedef struct FindCall {
    const Regex *r;
    const char *text;
    size_t n, step; /* text comes in `step` bytes */
    size_t span[200];
    int count;
} FindCall;

/* All matches in a text as it comes. */
static void find_all(void *arg)
{
    FindCall *c = arg;
    size_t lo, hi, have = whole_chars(c->text, c->n, c->step);
    c->count = 0;
    for (size_t at = 0; at < c->n;) {
        Found f =
            at < have ? regex_find(c->r, c->text, have, at, have < c->n, &lo, &hi) : FOUND_NONE;
        if (f == FOUND_ALL) {
            c->span[c->count++] = lo;
            c->span[c->count++] = at = hi;
            continue;
        }
        if (have == c->n)
            break;
        at = f == FOUND_PART ? lo : have;
        have = whole_chars(c->text, c->n, have + c->step);
    }
}

/* One pattern on one text, with all steps; false where the matcher gives up. */
static bool compare_steps(const Regex *r, const char *text, size_t n)
{
    FindCall whole = {.r = r, .text = text, .n = n, .step = n}, c = whole;
    if (ctx_try(&ctx, find_all, &whole))
        return false;
    for (c.step = 1; c.step < 9; c.step += 1 + c.step / 2) {
        if (ctx_try(&ctx, find_all, &c))
            return false;
        bool same = c.count == whole.count &&
                    !memcmp(c.span, whole.span, sizeof c.span[0] * (size_t)c.count);
        if (!EXPECT(same))
            printf("  pattern %s, step %zu, text %s\n", pattern, c.step, text);
    }
    return true;
}

static void test_random_patterns(int rounds)
{
    static const char *const parts[] = {"a",      "b",  "A",  " ", "\n",     "1",
                                        "\u00e9", "'s", "'S", "-", "\u4e2d", "\u017f"};
    int compared = 0;
    for (int round = 0; round < rounds; round++) {
        Buf b = {.a = a}, text = {.a = a};
        buf_add(&b, "");
        add_pattern(&b, 0);
        pattern = b.text;
        if (ctx_try(&ctx, make_regex, NULL))
            continue;
        for (int i = 0; i < 60; i++)
            buf_add(&text, parts[pick(LEN(parts))]);
        compared += compare_steps(regex_new(a, "here", pattern), text.text, text.len);
    }
    EXPECT(compared > rounds / 8);
}

/* ---- what is refused ---- */

typedef struct ParseCall {
    const char *text;
    size_t n;
    Arena *a;
} ParseCall;

static void parse(void *arg)
{
    ParseCall *c = arg;
    tokenizer_parse(c->a, c->text, c->n, "x.json");
}

/* The text with the first `from` replaced. */
static const char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    CHECK(at);
    return arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void test_refused(void)
{
    static const char *const c[][3] = {
        {"\"version\":\"1.0\"", "\"version\":\"2.0\"", "expected version \"1.0\", found \"2.0\""},
        {"\"version\"", "\"new\":1,\"version\"", "key \"new\" is not supported"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}",
         "\"truncation\" is not supported"},
        {"\"padding\":null", "\"padding\":{}", "\"padding\" is not supported"},
        {"\"id\":46", "\"id\":49", "\"[R]\": expected id 46, as Hugging Face gives it, found 49"},
        {"\"id\":42", "\"id\":41", "\"word\": expected id 42"},
        {"\"lstrip\":true,", "", "\"added_tokens\"[0]: key \"lstrip\" is missing"},
        {"\"special\":true", "\"special\":true,\"x\":1",
         "\"added_tokens\"[0]: key \"x\" is not supported"},
        {"\"content\":\"<m>\"", "\"content\":\"\"", "a token has no text"},
        {"\"id\":42,\"content\":\"word\"", "\"id\":45,\"content\":\"<m>\"",
         "two added tokens are found as \"<m>\""},
        {"{\"type\":\"NFC\"}", "{\"type\":\"Nmt\"}",
         "\"normalizer\": type \"Nmt\" is not supported"},
        {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"}]}",
         "\"normalizers\"[0]: type \"Nmt\" is not supported"},
        {"\"Isolated\"", "\"MergedWithNext\"",
         "\"pretokenizers\"[0]: behavior \"MergedWithNext\" is not supported"},
        {"\"invert\":false", "\"invert\":true", "\"invert\" is not supported"},
        {"(?i:'s|'t)", "(?<=x)y", "this kind of group at byte 0 is not supported"},
        {"{\"type\":\"Digits\",\"individual_digits\":true}", "{\"type\":\"Whitespace\"}",
         "type \"Whitespace\" is not supported"},
        {",{\"type\":\"ByteLevel\"",
         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":true},{\"type\":\"ByteLevel\"",
         "a pre-tokenizer after ByteLevel"},
        {"\"use_regex\":false", "\"use_regex\":false,\"x\":0", "key \"x\" is not supported"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
         "type \"WordPiece\""},
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"",
         "expected type \"BPE\" or \"Unigram\", found \"WordPiece\""},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "\"model\": key \"dropout\" is not supported"},
        {"\"dropout\":null", "\"dropout\":0.1", "\"dropout\" is not supported"},
        {"\"unk_token\":null", "\"unk_token\":\"a\"",
         "\"unk_token\" is not supported where a byte (0)"},
        {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
         "\"continuing_subword_prefix\" is not supported"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"w\"",
         "\"end_of_word_suffix\" is not"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true",
         "\"byte_fallback\" is not supported where a byte (0)"},
        {"\"a\":0,", "\"a\":1,", "two tokens have the id 1"},
        {"\"a\":0,", "\"a\":-1,", "expected 0 to 4294967294, found -1"},
        {"\"a\":0,", "\"a\":1.5,", "expected an integer"},
        {"[\"a\",\"b\"]", "[\"a\",\"q\"]", "\"merges\"[0]: \"aq\" is not in the vocabulary"},
        {"[\"a\",\"b\"]", "\"a b c\"", "\"merges\"[0]: expected \"a b\" or"},
        {"[\"a\",\"b\"]", "[\"a\",7]", "\"merges\"[0]: expected \"a b\" or"},
        {"\"ids\":[45]", "\"ids\":[77]", "no token has the id 77"}};
    size_t n;
    const char *text = file_read(a, SMALL, &n);
    for (int i = 0; i < LEN(c); i++) {
        ParseCall p = {edit(text, c[i][0], c[i][1]), 0, a};
        p.n = strlen(p.text);
        EXPECT_FAIL(&ctx, parse, &p, c[i][2]);
    }
    const char *lines = edit(text, "[\"a\",\"b\"]", "\"#version: 0.2\",\"a b\"");
    parse(&(ParseCall){lines, strlen(lines), a});
}

/* ---- damage ---- */

static void ignore(void *arg, const uint32_t *id, size_t n)
{
    (void)arg, (void)id, (void)n;
}

/* Parses and, where that succeeds, encodes. */
static void parse_and_use(void *arg)
{
    ParseCall *c = arg;
    const Tokenizer *t = tokenizer_parse(c->a, c->text, c->n, "x.json");
    Encoder *e = encoder_new(c->a, t, ignore, NULL);
    encoder_begin(e, "text");
    encoder_feed(e, "word a<m> both\nabc e\xcc\x81 12  ", 27);
    encoder_end(e);
}

static bool try_parse(const char *text, size_t n)
{
    Arena *own = arena_new(&ctx);
    CHECK(own);
    Code code = ctx_try(&ctx, parse_and_use, &(ParseCall){text, n, own});
    arena_free(own);
    return code == TN_OK;
}

static void test_truncation(void)
{
    size_t n;
    char *text = file_read(a, SMALL, &n);
    for (size_t i = 0; i < n - 2; i++) {
        char *cut = malloc(i + 1); /* so that a read beyond is seen */
        CHECK(cut);
        memcpy(cut, text, i);
        EXPECT(!try_parse(cut, i));
        free(cut);
    }
    EXPECT(try_parse(text, n));
}

static uint32_t draw(uint32_t round, uint64_t at, size_t below)
{
    return (uint32_t)(random_uniform(11, 3, round, at) * (double)below);
}

/* One to four bytes changed, or a stretch removed or doubled. */
static size_t damage(char *text, size_t n, uint32_t r)
{
    static const char some[] = "\"{}[]:,\\0195-.eaul <\xc3\xff\n";
    size_t at = draw(r, 0, n), len = MIN(draw(r, 1, 60), n - at);
    uint32_t kind = draw(r, 2, 4);
    if (kind == 0) {
        memmove(text + at, text + at + len, n - at - len);
        return n - len;
    }
    if (kind == 1) {
        memmove(text + at + len, text + at, n - at);
        return n + len;
    }
    for (uint32_t i = 0; i <= draw(r, 3, 4); i++)
        text[draw(r, 4 + i, n)] =
            kind == 2 ? some[draw(r, 9 + i, sizeof some - 1)] : (char)draw(r, 9 + i, 256);
    return n;
}

static void test_corruption(const char *path, uint32_t rounds)
{
    size_t n;
    uint32_t good = 0;
    const char *text = file_read(a, path, &n);
    char *copy = NEWN(a, char, n + 64);
    for (uint32_t r = 0; r < rounds; r++) {
        memcpy(copy, text, n);
        good += try_parse(copy, damage(copy, n, r));
    }
    EXPECT(good < rounds && (good || rounds < 100));
}

static void test_all_corruption(uint32_t rounds)
{
    static const char *const kinds[] = {"llama2", "llama5", "gemma", "t5", "unigram"};
    test_corruption(SMALL, rounds);
    for (int i = 0; i < LEN(kinds); i++)
        test_corruption(arena_printf(a, "tests/tokenizer/%s.json", kinds[i]), rounds / 50);
}

int main(int argc, char **argv)
{
    static void (*const tests[])(void) = {test_patterns, test_steps, test_open_matches,
                                          test_refused, test_truncation};
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : getenv("TN_QUICK") ? 10000 : 20000;
    for (int i = 0; i <= LEN(tests) + 1; i++) {
        a = arena_new(&ctx);
        if (i < LEN(tests))
            tests[i]();
        else if (i == LEN(tests))
            test_random_patterns((int)rounds / 10);
        else
            test_all_corruption(rounds);
        arena_free(a);
    }
    return test_report();
}
