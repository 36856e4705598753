/* io: JSON getters; token files of every kind, batches and validation windows. */
#include "test.h"

#include "../src/io/io.h"

#include <unistd.h>

static Ctx ctx;
static Arena *a; /* of one test */
static char dir[] = "/tmp/tenon-test-data-XXXXXX";

static const char *in_dir(const char *name)
{
    return arena_printf(a, "%s/%s", dir, name);
}

static const char *put_file(const char *name, const void *data, size_t n)
{
    const char *path = in_dir(name);
    file_write(&ctx, path, data, n);
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put_file(name, text, strlen(text));
}

/* ---- json ---- */

static void get_range(void *j)
{
    json_get_int(*(Json *)j, "n", 0, 6);
}

static void get_kind(void *j)
{
    json_find_string(*(Json *)j, "n", "");
}

static void get_missing(void *j)
{
    json_get_real(*(Json *)j, "null");
}

static void test_json(void)
{
    Json j = json_read(a, put_text("x.json", "{\"n\": 7, \"r\": 1e-5, \"t\": true, \"null\": null, "
                                             "\"s\": \"text\", \"o\": {\"k\": 2}, \"e\": []}"));
    EXPECT(json_get_int(j, "n", 7, 7) == 7 && json_find_int(j, "absent", 0, 1, -3) == -3);
    EXPECT(json_get_real(j, "r") == 1e-5 && json_get_real(j, "n") == 7);
    EXPECT(json_find_real(j, "null", 2.5) == 2.5 && !json_has(j, "null") && json_has(j, "e"));
    EXPECT(json_find_bool(j, "t", false) && json_find_bool(j, "absent", true));
    EXPECT(!strcmp(json_get_string(j, "s"), "text") && !strcmp(json_find_string(j, "a", "b"), "b"));
    EXPECT(json_get_int(json_get_object(j, "o"), "k", 0, 9) == 2);
    EXPECT(!json_find_object(j, "absent").object);
    EXPECT(json_is_set(j, "o") && !json_is_set(j, "e") && !json_is_set(j, "null"));
    int count = 0;
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key))
        count++;
    EXPECT(count == 7);
    EXPECT_FAIL(&ctx, get_range, &j, "x.json: key \"n\": expected 0 to 6, found 7");
    EXPECT_FAIL(&ctx, get_kind, &j, "x.json: key \"n\": expected a string, found an integer");
    EXPECT_FAIL(&ctx, get_missing, &j, "x.json: key \"null\" is missing");
}

/* ---- data ---- */

typedef struct DataCall {
    const char *path;
    DataOptions o;
    DataSet *s;
    int64_t T;
} DataCall;

static void data_call(void *p)
{
    DataCall *c = p;
    c->s = data_open(a, 1, &c->path, &c->o);
}

static void batch_call(void *p)
{
    DataCall *c = p;
    int64_t ids[64], labels[64];
    data_train_batch(c->s, 1, 1, 1, c->T, ids, labels);
}

static DataSet *open_data(const char *path, TokenType type, double val)
{
    return data_open(a, 1, &path, &(DataOptions){.type = type, .val_fraction = val});
}

static void test_data_bytes(void)
{
    char text[1000];
    int64_t ids[40], labels[40], again[40], once[40];
    for (int i = 0; i < 1000; i++)
        text[i] = (char)(i % 251);
    put_file("b1.txt", text, 300);
    put_file("b2.txt", text + 300, 700);
    DataSet *s = open_data(in_dir("b*.txt"), TOKEN_AUTO, 0.25);
    EXPECT(s->count == 2 && s->ntoken == 1000 && s->ntrain == 750 && s->nval == 250);
    data_tokens(s, 290, 20, ids);
    for (int i = 0; i < 20; i++)
        EXPECT(ids[i] == (290 + i) % 251);
    int64_t sum = 0;
    for (uint32_t step = 0; step < 300; step++) {
        data_train_batch(s, 9, step, 4, 10, ids, labels);
        for (int i = 0; i < 40; i++) {
            EXPECT(labels[i] == (ids[i] + 1) % 251);
            EXPECT(i % 10 == 9 || ids[i + 1] == labels[i]);
        }
        sum += ids[0];
    }
    EXPECT(sum / 300 > 90 && sum / 300 < 150);
    data_train_batch(s, 9, 5, 4, 10, once, labels);
    data_train_batch(s, 9, 6, 4, 10, again, labels);
    EXPECT(memcmp(once, again, sizeof once));
    data_train_batch(s, 9, 5, 2, 10, again,
                     labels); /* a row does not depend on how many there are */
    EXPECT(!memcmp(once, again, sizeof *once * 20));
    data_train_batch(s, 10, 5, 4, 10, again, labels);
    EXPECT(memcmp(once, again, sizeof once));
}

static void test_data_validation(void)
{
    char text[100];
    int64_t ids[24], labels[24];
    for (int i = 0; i < 100; i++)
        text[i] = (char)i;
    DataSet *s = open_data(put_file("v.txt", text, 100), TOKEN_AUTO, 0.2);
    EXPECT(data_val_windows(s, 8) == 3 && data_val_windows(s, 19) == 1 &&
           data_val_windows(s, 18) == 2);
    EXPECT(data_val_batch(s, 1, 3, 8, ids, labels) == 11); /* 20 tokens, 19 labels, 8 seen before */
    for (int i = 0; i < 24; i++) {
        EXPECT(ids[i] == (i < 11 ? 88 + i : 0));
        EXPECT(labels[i] == (i < 11 ? 89 + i : -100));
    }
    EXPECT(data_val_windows(open_data(in_dir("v.txt"), TOKEN_AUTO, 0), 8) == 0);
    s = open_data(in_dir("v.txt"), TOKEN_AUTO, 1); /* all of it is for evaluation */
    EXPECT(s->ntrain == 0 && data_val_windows(s, 99) == 1);
}

static void test_data_tokens(void)
{
    uint16_t flat[] = {1, 50256, 300, 65535};
    uint32_t wide[] = {1, 128255, 70000};
    int32_t head[256] = {20240520, 1, 4};
    int64_t ids[4];
    DataSet *s = open_data(put_file("t.u16", flat, sizeof flat), TOKEN_U16, 0);
    data_tokens(s, 0, 4, ids);
    EXPECT(s->ntoken == 4 && ids[1] == 50256 && ids[3] == 65535);
    s = open_data(put_file("t.u32", wide, sizeof wide), TOKEN_U32, 0);
    data_tokens(s, 1, 2, ids);
    EXPECT(s->ntoken == 3 && ids[0] == 128255 && ids[1] == 70000);
    Buf b = {.a = a};
    buf_addn(&b, (char *)head, sizeof head);
    buf_addn(&b, (char *)flat, sizeof flat);
    s = open_data(put_file("t.bin", b.text, b.len), TOKEN_AUTO, 0);
    data_tokens(s, 2, 2, ids);
    EXPECT(s->ntoken == 4 && ids[0] == 300 && ids[1] == 65535);
    EXPECT(open_data(in_dir("t.bin"), TOKEN_BYTE, 0)->ntoken == 1032);
    EXPECT(open_data(in_dir("t.u16"), TOKEN_AUTO, 0)->ntoken == 8);
    EXPECT(token_type_parse("u32") == TOKEN_U32 && token_type_parse("u31") == -1);
    DataCall c = {.path = in_dir("t.bin"), .o.type = TOKEN_U32};
    EXPECT_FAIL(&ctx, data_call, &c, "expected tokens of 4 bytes, found a shard of 2");
    put_file("t.bin", b.text, b.len - 2);
    c.o.type = TOKEN_AUTO;
    EXPECT_FAIL(&ctx, data_call, &c, "says 4 tokens of 2 bytes, its size 1030");
    b.text[4] = 9;
    put_file("t.bin", b.text, b.len);
    EXPECT_FAIL(&ctx, data_call, &c, "expected version 1, found 9");
}

static void test_data_errors(void)
{
    DataCall c = {.path = in_dir("no*such")};
    EXPECT_FAIL(&ctx, data_call, &c, "no*such: no such file, and no file matches it");
    c.path = dir;
    EXPECT_FAIL(&ctx, data_call, &c, "not a regular file");
    c.path = put_text("empty.txt", "");
    EXPECT_FAIL(&ctx, data_call, &c, "empty.txt: no data");
    c.path = put_text("odd.txt", "abc");
    c.o.type = TOKEN_U16;
    EXPECT_FAIL(&ctx, data_call, &c, "expected tokens of 2 bytes, found 3 bytes");
    c.o = (DataOptions){.val_fraction = 1.5};
    EXPECT_FAIL(&ctx, data_call, &c, "expected 0 to 1, found 1.5");
    c = (DataCall){.path = put_text("d.txt", "0123456789"), .o.vocab = 'z', .T = 9};
    data_call(&c);
    batch_call(&c);
    c.T = 10;
    EXPECT_FAIL(&ctx, batch_call, &c, "expected at least 11 tokens to train on, found 10");
    c.T = 9;
    c.s->vocab = '7';
    EXPECT_FAIL(&ctx, batch_call, &c, "d.txt: token 7 is 55, but the model has 55 tokens");
    c.s->vocab = 0;
    if (truncate(c.path, 12))
        abort();
    EXPECT_FAIL(&ctx, batch_call, &c, "changed during the run: it had 10 bytes, it has 12");
}

int main(void)
{
    static void (*const tests[])(void) = {test_json, test_data_bytes, test_data_validation,
                                          test_data_tokens, test_data_errors};
    if (!mkdtemp(dir))
        abort();
    for (int i = 0; i < LEN(tests); i++) {
        a = arena_new(&ctx);
        tests[i]();
        arena_free(a);
    }
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command))
        abort();
    return test_report();
}
