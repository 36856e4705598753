/* Writing safetensors: in pieces, by several at once, and in the shards of a folder; objects with a
 * checksum. */
#include "../shared/folder.h"

#include "../../src/io/io.h"

#include <math.h>
#include <sys/stat.h>

/* ---- in pieces ---- */

enum { COUNT = 70000, PART = 9999 };

/* Tensors whose bytes several writers put, each a part of them. */
typedef struct Pieces {
    Arena *a;
    const char *path;
    TensorLayout l;
    TensorWriter *w[2];
} Pieces;

static void begin_pieces(Pieces *p, int n, const TensorOut *t, bool summed)
{
    p->a = arena_tmp(a);
    p->path = arena_strdup(p->a, in_dir("pieces.safetensors"));
    p->l = tensors_layout(p->a, p->path, n, t, summed);
    p->w[0] = tensors_begin(p->a, p->path, &p->l, true);
    p->w[1] = tensors_join(p->a, p->path, &p->l, getpid());
    for (int i = n - 1; i >= 0; i--)
        for (int64_t nbytes = type_nbytes(&t[i].type), at = 0, piece; at < nbytes; at += piece) {
            piece = MIN(PART, nbytes - at);
            tensors_put(p->w[at / PART % 2], p->l.begin[i] + at, (const char *)t[i].data + at,
                        piece);
        }
    for (int i = 0; i < 2; i++)
        tensors_sync(p->w[i]);
}

static void check_second(void *arg)
{
    const Pieces *p = arg;
    tensors_check(p->w[1]);
}

static const char *aside_pieces(const Pieces *p)
{
    return arena_printf(a, "%s.tmp%ld", p->path, (long)getpid());
}

/* What one writer put is not what the file has, as another wrote there, or the file is shorter. */
static void test_pieces_lost(int n, const TensorOut *t)
{
    for (int i = 0; i < 2; i++) {
        Pieces p;
        begin_pieces(&p, n, t, false);
        const char *aside = aside_pieces(&p);
        tensors_check(p.w[0]);
        if (i)
            CHECK(!truncate(aside, p.l.begin[0] + 2 * PART - 1));
        else
            tensors_put(p.w[0], p.l.begin[0] + 2 * PART - 1, "!", 1);
        EXPECT_FAIL(&ctx, check_second, &p, "what was read back is not what was written, 9999");
        arena_reset(p.a);
        EXPECT(access(aside, F_OK));
    }
}

/* CRC-32C of RFC 3720's check value, and of pieces in any order. */
static void test_sums(void)
{
    static char x[100001];
    uint32_t sum = crc32c_add(0, x, 0), whole;
    EXPECT(crc32c_end(sum, 0) == 0);
    EXPECT(crc32c_end(crc32c_add(0, "123456789", 9), 9) == 0xe3069283);
    EXPECT(crc32c_end(crc32c_add(0, x, 32), 32) == 0x8a9136aa);
    for (int i = 0; i < LEN(x); i++)
        x[i] = (char)(i * 7 + i / 256);
    whole = crc32c_add(0, x, LEN(x));
    for (int64_t at = LEN(x), n; at > 0; at -= n) {
        n = MIN(at, 1 + at % 40000);
        sum ^= crc32c_move(crc32c_add(0, x + at - n, n), LEN(x) - at);
    }
    EXPECT(sum == whole);
    x[70000] ^= 1;
    EXPECT(crc32c_add(0, x, LEN(x)) != whole);
}

static void verify_file(void *path)
{
    Arena *tmp = arena_tmp(a);
    tensors_verify(tensors_open(tmp, path), 0, 1);
}

/* Sums of two writers make the checksums that one has made; a byte that differs later is found, as
 * is a text that is no checksum. */
static void test_sealed(int n, const TensorOut *t, const char *path)
{
    char *text, *digits;
    size_t len;
    EXPECT(ctx_try(&ctx, verify_file, (void *)path) == TN_OK);
    text = (char *)file_read(a, path, &len);
    text[len - 1] ^= 1;
    file_write(&ctx, path, text, len);
    EXPECT_FAIL(
        &ctx, verify_file, (void *)path,
        arena_printf(a, "pieces.safetensors: \"%s\": expected the checksum", t[n - 1].name));
    digits = strstr(text + 8, TENSORS_SUM);
    CHECK(digits);
    digits = strstr(digits, "\":\"") + 3;
    *digits = 'G';
    file_write(&ctx, path, text, len);
    EXPECT_FAIL(&ctx, verify_file, (void *)path, "expected a checksum of eight hexadecimal digits");
}

/* Checksums of a file that two write, joined. */
static void test_checksums(void)
{
    static float x[COUNT];
    const TensorOut t[] = {{"x", {F32, 1, {COUNT}}, x}, {"y", {F32, 1, {3}}, x + 5}};
    uint32_t sum[LEN(t)];
    Pieces p;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)sin(i);
    begin_pieces(&p, LEN(t), t, true);
    for (int i = 0; i < LEN(t); i++)
        sum[i] = tensors_sums(p.w[0])[i] ^ tensors_sums(p.w[1])[i];
    tensors_seal(p.w[0], sum);
    for (int i = 0; i < 2; i++)
        tensors_check(p.w[i]);
    tensors_end(p.w[0]);
    arena_reset(p.a);
    test_sealed(LEN(t), t, in_dir("pieces.safetensors"));
}

/* A file is the same whoever puts its bytes and in which order, and read in parts as it is as a
 * whole. */
static void test_pieces(void)
{
    static float x[COUNT];
    static uint16_t whole[COUNT], parts[COUNT];
    const TensorOut t[] = {{"x", {F32, 1, {COUNT}}, x}, {"y", {F32, 1, {3}}, x + 5}};
    const char *text[2];
    size_t len[2];
    Pieces p;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)sin(i);
    test_pieces_lost(LEN(t), t);
    tensors_write(&ctx, in_dir("whole.safetensors"), LEN(t), t);
    text[0] = file_read(a, in_dir("whole.safetensors"), &len[0]);
    begin_pieces(&p, LEN(t), t, false);
    for (int i = 0; i < 2; i++)
        tensors_check(p.w[i]);
    tensors_end(p.w[0]);
    arena_reset(p.a);
    text[1] = file_read(a, in_dir("pieces.safetensors"), &len[1]);
    EXPECT(len[0] == len[1] && !memcmp(text[0], text[1], len[0]));
    TensorFile *f = tensors_open(a, in_dir("pieces.safetensors"));
    const TensorEntry *e = tensors_get(f, "x");
    for (int d = 0; d < 2; d++) {
        DType to = d ? F32 : BF16;
        tensors_read(f, e, to, true, d ? (void *)x : whole);
        for (int64_t at = 0; at < COUNT; at += PART)
            tensors_read_part(f, e, to, true, at, MIN(PART, COUNT - at),
                              d ? (void *)(x + at) : parts + at);
        EXPECT(d || !memcmp(whole, parts, sizeof whole));
    }
    EXPECT(x[COUNT - 1] == (float)sin(COUNT - 1) && x[PART] == (float)sin(PART));
}

/* ---- folders written ---- */

enum { SHARDED = 5 };
static const int64_t sharded_size[SHARDED] = {3, 0, 5, 1, 2}; /* of f32: 12, 0, 20, 4, 8 bytes */

typedef struct Sharded {
    const char *folder;
    int64_t most;
    TensorOut t[SHARDED];
} Sharded;

static void write_folder(void *arg)
{
    const Sharded *s = arg;
    int n;
    const TensorShard *shard = tensors_shards(a, s->folder, s->most, SHARDED, s->t, &n);
    for (int i = 0; i < n; i++)
        tensors_write(&ctx, shard[i].path, shard[i].n, shard[i].t);
    tensors_write_index(a, s->folder, s->most, SHARDED, s->t);
}

/* That the folder has these many files, and reads back. */
static void check_sharded(const Sharded *s, int nfile)
{
    TensorFile *f = tensors_open(a, s->folder);
    EXPECT(f->nfile == nfile && f->count == SHARDED);
    for (int i = 0; i < SHARDED; i++) {
        float x[5] = {0};
        tensors_read(f, tensors_get(f, s->t[i].name), F32, false, x);
        EXPECT(!memcmp(x, s->t[i].data, (size_t)type_nbytes(&s->t[i].type)));
    }
}

static void test_shards(void)
{
    static const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const struct {
        int64_t most;
        int nfile;
    } cases[] = {{0, 1}, {44, 1}, {43, 2}, {36, 2}, {32, 2}, {31, 3}, {12, 3}, {11, 5}, {1, 5}};
    for (int i = 0; i < LEN(cases); i++) {
        Sharded s = {arena_printf(a, "%s/shards%d", dir, i), cases[i].most, {{0}}};
        for (int k = 0; k < SHARDED; k++)
            s.t[k] = (TensorOut){arena_printf(a, "t%d\"", k), {F32, 1, {sharded_size[k]}}, x + k};
        mkdir(s.folder, 0700);
        write_folder(&s);
        check_sharded(&s, cases[i].nfile);
        EXPECT(count_entries(s.folder) == 2 + cases[i].nfile + (cases[i].nfile > 1));
        EXPECT(!access(arena_printf(a, "%s/model.safetensors", s.folder), F_OK) ==
               (cases[i].nfile == 1));
        if (cases[i].nfile < 5)
            continue;
        const char *index = arena_printf(a, "%s/model.safetensors.index.json", s.folder);
        Json meta = json_get_object(json_read(a, index), "metadata");
        EXPECT(json_get_int(meta, "total_size", 0, 99) == 44);
        unlink(index); /* the index comes last: where it cannot be written, all else is there */
        mkdir(index, 0700);
        unlink(arena_printf(a, "%s/model-00005-of-00005.safetensors", s.folder));
        EXPECT_FAIL(&ctx, write_folder, &s, "index.json: cannot write");
        EXPECT(!access(arena_printf(a, "%s/model-00005-of-00005.safetensors", s.folder), F_OK));
    }
}

/* ---- objects ---- */

static void check_object(void *path)
{
    json_check_sum(arena_tmp(a), path);
}

static void put_object(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, 1, n, f) == n && !fclose(f));
}

/* Each bit that flips is known, but in the key, without which there is no checksum; so is each cut
 * behind it. */
static void test_object(const char *object)
{
    static const char key[] = "\"crc32c\":";
    const char *path = arena_strdup(a, in_dir("object.json"));
    char *text = arena_strdup(a, json_add_sum(a, object));
    size_t n = strlen(text), begin = (size_t)(strstr(text, key) - text), end = begin + strlen(key);
    put_object(path, object, strlen(object));
    EXPECT(ctx_try(&ctx, check_object, (void *)path) == TN_OK);
    put_object(path, text, n);
    EXPECT(ctx_try(&ctx, check_object, (void *)path) == TN_OK);
    Json j = json_read(a, path);
    EXPECT(json_has(j, "crc32c") && json_find_int(j, "step", 0, 99, 7) == 7);
    for (size_t i = 0; i < 8 * n; i++) {
        bool in_key = i / 8 >= begin && i / 8 < end;
        text[i / 8] ^= (char)(1 << i % 8);
        put_object(path, text, n);
        if (in_key)
            EXPECT(ctx_try(&ctx, check_object, (void *)path) == TN_OK);
        else
            EXPECT_FAIL(&ctx, check_object, (void *)path, "object.json: ");
        text[i / 8] ^= (char)(1 << i % 8);
    }
    for (size_t i = end; i < n; i++) {
        put_object(path, text, i);
        EXPECT_FAIL(&ctx, check_object, (void *)path, "it is not as it was saved");
    }
}

static void test_objects(void)
{
    static const char *const objects[] = {"{}", " { }\n", "{\"step\": 7}",
                                          "{\n \"model\": \"{crc32c}\",\n \"step\": 7\n}\n"};
    for (int i = 0; i < LEN(objects); i++)
        test_object(objects[i]);
}

int main(void)
{
    static void (*const tests[])(void) = {test_sums, test_checksums, test_pieces, test_shards,
                                          test_objects};
    return test_in_folder(tests, LEN(tests));
}
