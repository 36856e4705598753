/* Texts as data through the C API: the token file that is made, taken again, kept or refused; what
 * is left where making it is stopped, or where a table is damaged. */
#include "../../include/tenon.h"
#include "../shared/folder.h"

#include <sys/stat.h>

static tn_context *c;
static tn_tokenizer *t;

static void write_file(const char *path, const char *text, int times)
{
    FILE *f = fopen(path, "wb");
    CHECK(f);
    for (int i = 0; i < times; i++)
        fputs(text, f);
    fclose(f);
}

static char *read_file(const char *path, size_t *n)
{
    return file_read(a, path, n);
}

/* A text opened as bytes. */
static tn_data *open_text(const char *path)
{
    tn_data *d = NULL;
    CHECK(!tn_data_open(c, 1, &path, "auto", 0, 0, &d));
    return d;
}

/* The code of tokenizing a text; *made as it says, -1 where it fails. */
static int tokenize(const char *path, const tn_text_options *o, int *made, int64_t *count)
{
    int64_t nval, nbytes;
    tn_data *text = open_text(path), *tokens = NULL;
    int code = tn_data_tokenize(text, t, o, &tokens, made);
    if (!code) {
        tn_data_size(tokens, count, &nval, &nbytes);
        EXPECT(tn_data_width(tokens) == 2 && nbytes == 2 * (*count + nval));
    } else {
        *made = -1;
    }
    tn_data_free(text); /* tokens do not need it */
    tn_data_free(tokens);
    return code;
}

static void begin_with(const char *tokenizer)
{
    c = tn_context_new();
    CHECK(c && !tn_tokenizer_open(c, tokenizer, &t));
}

static void begin(void)
{
    begin_with("tests/tokenizer/gpt2.json");
}

static void test_made(void)
{
    const char *text = in_dir("text"), *file = in_dir("tokens.bin"), *plain = in_dir("plain.bin");
    tn_text_options o = {.file = file, .between = 0};
    tn_tokenize_options how = {0};
    int64_t count, n;
    size_t size, same;
    int made, width;
    begin();
    write_file(text, "The one thing and another. ", 200);
    EXPECT(!tokenize(text, &o, &made, &count) && made == 1);
    EXPECT(!tn_tokenize(t, 1, &text, plain, &how, &n, &width) && n == count && width == 2);
    const char *x = read_file(file, &size), *y = read_file(plain, &same);
    EXPECT(size == same && !memcmp(x, y, size));
    EXPECT(!tokenize(text, &o, &made, &n) && made == 0 && n == count);
    o.val_fraction = 0.5;
    EXPECT(!tokenize(text, &o, &made, &n) && made == 0 && n == count - count / 2);
    o.between = 1; /* what would be made is another file, though of one text it has the same ids */
    EXPECT(!tokenize(text, &o, &made, &n) && made == 1);
    o.file = NULL;
    EXPECT(!tokenize(text, &o, &made, &n) && made == 1);
    tn_context_free(c);
}

/* The tokenizer "bytes", which has no file: tokens are made, taken again, and not taken for those
 * of another. */
static void test_bytes(void)
{
    static const unsigned char text[] = {'a', 0, 0xff, 'z'};
    const char *path = in_dir("some.bytes"), *file = in_dir("bytes.bin");
    tn_text_options o = {.file = file, .between = -1};
    int64_t count;
    size_t size;
    int made;
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, 1, sizeof text, f) == sizeof text && !fclose(f));
    begin_with("bytes");
    EXPECT(!tokenize(path, &o, &made, &count) && made == 1 && count == LEN(text));
    const char *ids = read_file(file, &size);
    for (size_t i = 0; EXPECT(size == 2 * sizeof text) && i < sizeof text; i++)
        EXPECT((unsigned char)ids[2 * i] == text[i] && !ids[2 * i + 1]);
    EXPECT(!tokenize(path, &o, &made, &count) && made == 0);
    tn_context_free(c);
    begin();
    EXPECT(!tokenize(path, &o, &made, &count) && made == 1);
    tn_context_free(c);
}

static void test_refused(void)
{
    const char *text = in_dir("text"), *file = in_dir("mine.bin"),
               *record = in_dir("mine.bin.json");
    tn_text_options o = {.file = file, .between = -1};
    int64_t count;
    size_t n;
    int made;
    begin();
    write_file(file, "mine", 1);
    EXPECT(tokenize(text, &o, &made, &count) && strstr(tn_error(c), "it is not replaced"));
    EXPECT(!strcmp(read_file(file, &n), "mine"));
    unlink(file);
    o.vocab = 100;
    EXPECT(tokenize(text, &o, &made, &count) &&
           strstr(tn_error(c), "but the model has 100 tokens"));
    EXPECT(access(file, F_OK) && access(record, F_OK));
    o.vocab = 0;
    EXPECT(!tokenize(text, &o, &made, &count) && made == 1);
    o.vocab = 100;
    EXPECT(tokenize(text, &o, &made, &count) &&
           strstr(tn_error(c), "but the model has 100 tokens"));
    o.vocab = 0;
    o.keep = 1;
    EXPECT(!tokenize(text, &o, &made, &count) && made == 0);
    write_file(text, "Another one. ", 50);
    EXPECT(tokenize(text, &o, &made, &count) &&
           strstr(tn_error(c), "text: the run began with other"));
    o.keep = 0;
    EXPECT(!tokenize(text, &o, &made, &count) && made == 1);
    tn_data *tokens = NULL, *none = NULL;
    CHECK(!tn_data_open(c, 1, &file, "u16", 0, 0, &tokens));
    EXPECT(tn_data_tokenize(tokens, t, &o, &none, &made) == TN_CODE_USAGE && !none);
    EXPECT(!strcmp(tn_data_not_text(tokens), file));
    tn_data_free(tokens);
    tn_context_free(c);
}

static int stop(void *arg, int64_t done, int64_t total)
{
    EXPECT(done > 0 && done <= total);
    return --*(int *)arg == 0;
}

static void test_stopped(void)
{
    const char *text = in_dir("long"), *file = in_dir("stopped.bin");
    int64_t count;
    int made, left = 2, before;
    tn_text_options o = {.file = file, .between = -1, .progress = stop, .progress_arg = &left};
    begin();
    write_file(text, "A text that takes several pieces. ", 10000);
    before = count_entries(dir);
    EXPECT(tokenize(text, &o, &made, &count) && strstr(tn_error(c), "stopped") && left == 0);
    EXPECT(count_entries(dir) == before);
    left = 1000;
    EXPECT(!tokenize(text, &o, &made, &count) && made == 1 && left < 999);
    tn_context_free(c);
}

/* What looks like text: also with a few bad bytes, not token ids. */
static void test_looks(void)
{
    static const char *const texts[] = {"plain text\n",
                                        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80",
                                        "Latin-1: \xe9 among many letters, of which few are bad"};
    static const char *const binary[] = {"\x01\x02\x03\x04", "\xff\xfe\xfd ab",
                                         "ab\xc3\xc3\xc3\xc3"};
    const char *path = in_dir("looks");
    begin();
    for (int i = 0; i < LEN(texts) + LEN(binary); i++) {
        write_file(path, i < LEN(texts) ? texts[i] : binary[i - LEN(texts)], 3000);
        tn_data *d = open_text(path);
        EXPECT((tn_data_not_text(d) == NULL) == (i < LEN(texts)));
        tn_data_free(d);
    }
    tn_context_free(c);
}

/* Tables that are damaged are refused where they are; under AddressSanitizer nothing of them is
 * left. */
static void test_tables(void)
{
    static const char *const bad[][2] = {
        {"prompt,completion,prompt\na,b,c\n", "bad.csv:2: column \"prompt\" is there twice"},
        {"prompt,completion\na,\377\n", "bad.csv:2: column \"completion\": expected UTF-8"},
        {"prompt,completion\na,b\na\n", "bad.csv:3: expected 2 cells"},
        {"prompt,completion\na,b,c\n", "bad.csv:2: expected 2 cells"},
        {"prompt,completion\n\"a,b\n", "bad.csv:2: a cell in quotes"}};
    const char *path = in_dir("bad.csv");
    tn_text_options o = {
        .file = in_dir("table.bin"), .between = -1, .holds = TN_HOLDS_ROWS, .seq = 4};
    int64_t count;
    int made;
    begin();
    for (int i = 0; i < LEN(bad); i++) {
        write_file(path, bad[i][0], 1);
        EXPECT(tokenize(path, &o, &made, &count) && strstr(tn_error(c), bad[i][1]));
    }
    tn_context_free(c);
}

int main(void)
{
    static void (*const tests[])(void) = {test_made,    test_bytes, test_refused,
                                          test_stopped, test_looks, test_tables};
    return test_in_folder(tests, LEN(tests));
}
