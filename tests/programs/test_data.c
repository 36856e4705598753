/* io: JSON getters; token files of every kind, and what is wrong with them; files that change. What
 * batches are made of them: test_data_batch.c. */
#include "../shared/folder.h"

#include "../../src/io/io.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

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
    EXPECT_FAIL(&ctx, get_missing, &j, "x.json: key \"null\" is null");
}

/* ---- files ---- */

typedef struct DataCall {
    const char *path;
    DataOptions o;
    DataSet *s;
} DataCall;

static void open_call(void *p)
{
    DataCall *c = p;
    c->s = data_open(a, 1, &c->path, &c->o);
}

/* The first token of a set that is open. */
static void read_call(void *p)
{
    int64_t id;
    data_tokens(((DataCall *)p)->s, 0, 1, &id);
}

static DataSet *open_data(const char *path, TokenType type, double val)
{
    return data_open(a, 1, &path, &(DataOptions){.type = type, .val_fraction = val});
}

enum { SHARD_TOKENS = 20 };

/* A shard as llm.c writes it, of tokens 0, 1, 2, ... */
static Buf shard(int32_t magic, int32_t version, int32_t count, int width)
{
    int32_t head[256] = {magic, version, count};
    Buf b = {.a = a};
    buf_addn(&b, (char *)head, sizeof head);
    for (uint32_t i = 0; i < SHARD_TOKENS; i++)
        buf_addn(&b, (char *)&i, (size_t)width);
    return b;
}

static void test_bytes(void)
{
    char text[1000];
    int64_t ids[20];
    for (int i = 0; i < 1000; i++)
        text[i] = (char)(i % 251);
    put_file("b1.txt", text, 300);
    put_file("b2.txt", text + 300, 700);
    DataSet *s = open_data(in_dir("b*.txt"), TOKEN_AUTO, 0.25);
    EXPECT(s->count == 2 && s->ntoken == 1000 && s->ntrain == 750 && s->nval == 250);
    data_tokens(s, 290, 20, ids);
    for (int i = 0; i < 20; i++)
        EXPECT(ids[i] == (290 + i) % 251);
}

static void test_tokens(void)
{
    uint16_t flat[] = {1, 50256, 300, 65535};
    uint32_t wide[] = {1, 128255, 70000};
    int64_t ids[4];
    DataSet *s = open_data(put_file("t.u16", flat, sizeof flat), TOKEN_U16, 0);
    data_tokens(s, 0, 4, ids);
    EXPECT(s->ntoken == 4 && ids[1] == 50256 && ids[3] == 65535);
    EXPECT(open_data(in_dir("t.u16"), TOKEN_AUTO, 0)->ntoken == 8);
    s = open_data(put_file("t.u32", wide, sizeof wide), TOKEN_U32, 0);
    data_tokens(s, 1, 2, ids);
    EXPECT(s->ntoken == 3 && ids[0] == 128255 && ids[1] == 70000);
    EXPECT(token_type_parse("u32") == TOKEN_U32 && token_type_parse("u31") == -1);
}

static void test_shards(void)
{
    static const int32_t magic[] = {20240520, 20240801}, version[] = {1, 7};
    static const TokenType type[] = {TOKEN_U16, TOKEN_U32};
    int64_t ids[4];
    for (int i = 0; i < 2; i++) {
        Buf b = shard(magic[i], version[i], SHARD_TOKENS, 2 << i);
        const char *path = put_file("s.bin", b.text, b.len);
        DataSet *s = open_data(path, TOKEN_AUTO, 0);
        data_tokens(s, 16, 4, ids);
        EXPECT(s->ntoken == SHARD_TOKENS && ids[0] == 16 && ids[3] == 19);
        EXPECT(open_data(path, type[i], 0)->ntoken == SHARD_TOKENS);
        EXPECT(open_data(path, TOKEN_BYTE, 0)->ntoken == (int64_t)b.len);
        DataCall c = {.path = path, .o.type = type[!i]};
        EXPECT_FAIL(&ctx, open_call, &c, i ? "bytes, found a shard of 4" : "found a shard of 2");
    }
}

/* Each shorter file is an error, once its beginning says that it is a shard. */
static void test_truncated(void)
{
    static const int32_t magic[] = {20240520, 20240801}, version[] = {1, 7};
    for (int i = 0; i < 2; i++) {
        Buf b = shard(magic[i], version[i], SHARD_TOKENS, 2 << i);
        for (size_t n = 0; n < b.len; n++) {
            DataCall c = {.path = put_file("cut.bin", b.text, n)};
            if (n > 0 && n < 4)
                EXPECT(ctx_try(&ctx, open_call, &c) == TN_OK && c.s->ntoken == (int64_t)n);
            else
                EXPECT_FAIL(&ctx, open_call, &c,
                            n == 0     ? "cut.bin: no data: the file is empty"
                            : n < 1024 ? "expected a header of 1024 bytes, found"
                                       : "its header says 20 tokens of");
        }
    }
}

static void test_headers(void)
{
    static const struct {
        int32_t magic, version, count;
        const char *message;
    } cases[] = {
        {20240520, 1, SHARD_TOKENS + 1, "says 21 tokens of 2 bytes, its size 1064"},
        {20240520, 1, SHARD_TOKENS - 1, "says 19 tokens of 2 bytes, its size 1064"},
        {20240520, 1, INT32_MAX, "says 2147483647 tokens of 2 bytes"},
        {20240520, 1, -1, "says -1 tokens of 2 bytes"},
        {20240520, 1, INT32_MIN, "says -2147483648 tokens of 2 bytes"},
        {20240520, 7, SHARD_TOKENS, "expected version 1, found 7"},
        {20240801, 1, SHARD_TOKENS, "expected version 7, found 1"},
        {20240801, 7, SHARD_TOKENS, "says 20 tokens of 4 bytes, its size 1064"},
        {20240522, 1, SHARD_TOKENS, "expected tokens, found an evaluation of llm.c"},
        {(int32_t)0x88d83401, 1, SHARD_TOKENS, "expected little-endian numbers"},
    };
    for (int i = 0; i < LEN(cases); i++) {
        Buf b = shard(cases[i].magic, cases[i].version, cases[i].count, 2);
        DataCall c = {.path = put_file("head.bin", b.text, b.len)};
        EXPECT_FAIL(&ctx, open_call, &c, cases[i].message);
    }
    Buf b = shard(20240520, 1, SHARD_TOKENS, 2);
    DataCall c = {.path = put_file("odd.bin", b.text, b.len - 1)};
    EXPECT_FAIL(&ctx, open_call, &c, "says 20 tokens of 2 bytes, its size 1063");
    b = shard(20240520, 1, 0, 2);
    c.path = put_file("none.bin", b.text, 1024);
    EXPECT_FAIL(&ctx, open_call, &c, "none.bin: no data: a shard of 0 tokens");
}

static void test_errors(void)
{
    DataCall c = {.path = in_dir("no*such")};
    EXPECT_FAIL(&ctx, open_call, &c, "no*such: no such file, and no file matches it");
    EXPECT(!mkdir(in_dir("a.d"), 0777));
    c.path = in_dir("a.d");
    EXPECT_FAIL(&ctx, open_call, &c, "a.d: no file in the folder");
    c.path = "/dev/null";
    EXPECT_FAIL(&ctx, open_call, &c, "/dev/null: not a regular file");
    c.path = put_text("odd.txt", "abc");
    c.o.type = TOKEN_U16;
    EXPECT_FAIL(&ctx, open_call, &c, "expected tokens of 2 bytes, found 3 bytes");
    c.o = (DataOptions){.val_fraction = 1.5};
    EXPECT_FAIL(&ctx, open_call, &c, "expected 0 to 1, found 1.5");
    put_text("w1", "0123456789");
    Buf b = shard(20240520, 1, SHARD_TOKENS, 2);
    put_file("w2", b.text, b.len);
    c = (DataCall){.path = in_dir("w[12]")};
    EXPECT_FAIL(&ctx, open_call, &c, "w2: has tokens of 2 bytes, but");
    c = (DataCall){.path = in_dir("w1"), .o.vocab = '9'};
    open_call(&c);
    read_call(&c);
    c.o.vocab = '0';
    open_call(&c);
    EXPECT_FAIL(&ctx, read_call, &c, "w1: token 0 (from 0; at byte 0): expected 0 to 47");
}

/* ---- files that change ---- */

static void set_time(const char *path, long nsec)
{
    struct timespec t[2] = {{1000000000, nsec}, {1000000000, nsec}};
    if (utimensat(AT_FDCWD, path, t, 0))
        abort();
}

static void test_changes(void)
{
    const char *path = put_text("c.txt", "0123456789");
    DataCall c = {.path = path};
    set_time(path, 7);
    open_call(&c);
    read_call(&c);
    set_time(path, 8);
    EXPECT_FAIL(&ctx, read_call, &c,
                "c.txt: written to during the run: last at 1000000000.000000007 s since 1970, now "
                "at 1000000000.000000008");
    put_text("d.txt", "0123456789");
    set_time(in_dir("d.txt"), 7);
    if (rename(in_dir("d.txt"), path))
        abort();
    EXPECT_FAIL(&ctx, read_call, &c, "c.txt: replaced during the run: it was inode");
    if (truncate(path, 12))
        abort();
    EXPECT_FAIL(&ctx, read_call, &c, "c.txt: changed during the run: it had 10 bytes, it has 12");
    if (truncate(path, 0))
        abort();
    EXPECT_FAIL(&ctx, read_call, &c, "c.txt: changed during the run: it had 10 bytes, it has 0");
    unlink(path);
    EXPECT_FAIL(&ctx, read_call, &c, "c.txt: cannot be opened again: No such file");
    if (mkfifo(path, 0600))
        abort();
    EXPECT_FAIL(&ctx, read_call, &c, "c.txt");
}

static uint64_t print_of(const char *path)
{
    return open_data(path, TOKEN_BYTE, 0)->file[0].fingerprint;
}

/* Of a small file any byte, of a large one those at its ends. */
static void test_fingerprint(void)
{
    enum { SIZE = 200000 };
    char *text = NEWN(a, char, SIZE);
    static const size_t sizes[] = {1, 10, 4096, 4097, 65536, SIZE};
    for (int i = 0; i < LEN(sizes); i++) {
        size_t n = sizes[i], at[] = {0, n / 3, n - 1};
        uint64_t before = print_of(put_file("f", text, n));
        EXPECT(print_of(put_file("g", text, n)) == before);
        for (int k = 0; k < 3; k++) {
            if (n == SIZE && k == 1)
                continue;
            text[at[k]] ^= 1;
            EXPECT(print_of(put_file("g", text, n)) != before);
            text[at[k]] ^= 1;
        }
    }
}

/* ---- memory and handles ---- */

static long peak_kib(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

/* A file of 6 GiB, most of which is a hole. */
static void test_large(void)
{
    enum { T = 64, B = 4 };
    const int64_t size = (int64_t)6 << 30;
    const char *path = in_dir("large");
    int64_t ids[B * T] = {0}, labels[B * T] = {0};
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    bool made = fd >= 0 && !ftruncate(fd, size) && pwrite(fd, "end", 3, size - 3) == 3;
    close(fd);
    if (!made) {
        printf("note: test_data: no sparse file of 6 GiB could be made in /tmp\n");
        unlink(path);
        return;
    }
    long before = peak_kib();
    DataSet *s = open_data(path, TOKEN_BYTE, 0.001);
    data_tokens(s, size - 3, 3, ids);
    EXPECT(ids[0] == 'e' && ids[1] == 'n' && ids[2] == 'd');
    for (uint32_t step = 1; step <= 200; step++)
        data_train_batch(s, 1, step, B, (DataRow){T, ids, labels, NULL});
    data_val_batch(s, 0, 1000, B, (DataRow){T, ids, labels, NULL});
    EXPECT(peak_kib() - before < 1024);
    unlink(path);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_json,      test_bytes,  test_tokens,  test_shards,      test_headers,
        test_truncated, test_errors, test_changes, test_fingerprint, test_large};
    return test_in_folder(tests, LEN(tests));
}
