/* io: safetensors there and back, conversions, every kind of damage, files that cannot be written.
 */
#include "../shared/folder.h"

#include "../../src/io/io.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
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

/* ---- safetensors ---- */

/* A file with a header of this text and ndata bytes of data that count up. */
static const char *put_header(const char *header, int ndata)
{
    Buf b = {.a = a};
    uint64_t n = strlen(header);
    buf_addn(&b, (char *)&n, 8);
    buf_add(&b, header);
    for (int i = 0; i < ndata; i++)
        buf_addn(&b, &(char){(char)i}, 1);
    return put_file("header.safetensors", b.text, b.len);
}

static void open_path(void *path)
{
    tensors_open(a, path);
}

static void test_there_and_back(void)
{
    static const double x[] = {1, -2.5, 1e300};
    static const float y[] = {3.25f};
    static const uint16_t h[] = {0x3c00, 0xfc00, 0x0001};
    static const int64_t k[] = {INT64_MAX, INT64_MIN};
    static const uint8_t u[] = {255}, b[] = {1, 0, 1};
    const TensorOut t[] = {{"u", {U8, 1, {1}}, u},
                           {"b", {BOOL, 2, {1, 3}}, b},
                           {"x", {F64, 1, {3}}, x},
                           {"scalar", {F32, 0, {0}}, y},
                           {"h", {F16, 1, {3}}, h},
                           {"k", {I64, 1, {2}}, k},
                           {"empty", {F32, 2, {0, 7}}, NULL},
                           {"a \"name\"\\ \x01", {BF16, 1, {3}}, h},
                           {"i", {I32, 1, {2}}, k}};
    const char *path = in_dir("there.safetensors");
    tensors_write(&ctx, path, LEN(t), t);
    TensorFile *f = tensors_open(a, path);
    EXPECT(f->count == LEN(t));
    for (int i = 0; i < LEN(t); i++) {
        const TensorEntry *e = tensors_find(f, t[i].name);
        char got[64];
        if (!EXPECT(e && type_equal(&e->type, &t[i].type)))
            continue;
        EXPECT(e->begin % dtype_size(e->type.dtype) == 0);
        tensors_read(f, e, e->type.dtype, false, got);
        EXPECT(!memcmp(got, t[i].data ? t[i].data : got, (size_t)type_nbytes(&e->type)));
        EXPECT(tensors_same(f, e, e));
    }
    EXPECT(!tensors_same(f, tensors_get(f, "h"), tensors_get(f, "i")));
    EXPECT(!tensors_find(f, "absent"));
    tensors_write(&ctx, path, 0, NULL);
    EXPECT(tensors_open(a, path)->count == 0);
}

static void get_near(void *f)
{
    tensors_get(f, "input_idz");
}

static void test_fixture(void)
{
    TensorFile *f = tensors_open(a, "tests/ref/llama-tiny/batch.safetensors");
    const TensorEntry *e = tensors_get(f, "input_ids");
    int64_t ids[64];
    EXPECT(f->count == 2 && type_equal(&e->type, &(Type){I64, 2, {2, 32}}));
    tensors_read(f, e, I64, false, ids);
    for (int i = 0; i < 64; i++)
        EXPECT(ids[i] >= 0 && ids[i] < 131);
    EXPECT_FAIL(&ctx, get_near, f, "no tensor \"input_idz\"; the nearest is \"input_ids\"");
    EXPECT(tensors_open(a, "tests/ref/llama-tiny")->count == 21);
}

static void test_headers(void)
{
#define ENTRY(name, dtype, shape, span) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}"
    static const struct {
        const char *header;
        int ndata;
        const char *part; /* of the message; NULL: is good */
    } h[] = {
        {"{}", 0, NULL},
        {"{}   ", 0, NULL},
        {"{" ENTRY("x", "F32", "[2]", "[0,8]") "}", 8, NULL},
        {"{\"__metadata__\":{\"a\":\"b\"}," ENTRY("x", "U8", "[]", "[0,1]") "}", 1, NULL},
        {"{" ENTRY("z", "U8", "[0]", "[1,1]") "," ENTRY("x", "U8", "[1]", "[0,1]") "}", 1, NULL},
        {"{" ENTRY("x", "U8", "[1]", "[0,1]") "," ENTRY("z", "U8", "[0]", "[0,0]") "}", 1, NULL},
        {"{}", 1, "fill 0 bytes, found 1"},
        {"[]", 0, "expected a JSON object"},
        {"{\"x\":1}", 0, "key \"x\": expected an object, found an integer"},
        {"{} x", 0, "header.safetensors:1:4: end of file expected"},
        {"{\"x\":{}}", 0, "\"x\": key \"dtype\" is missing"},
        {"{" ENTRY("x", "F32", "[2]", "[0,8]") "," ENTRY("x", "F32", "[2]", "[0,8]") "}", 8,
         "duplicate"},
        {"{" ENTRY("x", "F31", "[2]", "[0,8]") "}", 8, "\"x\": dtype \"F31\" is not supported"},
        {"{" ENTRY("x", "F32", "[3]", "[0,8]") "}", 8, "\"x\": f32[3] does not fill its 8 bytes"},
        {"{" ENTRY("x", "F32", "[-2]", "[0,8]") "}", 8, "no negative"},
        {"{" ENTRY("x", "F32", "[2.0]", "[0,8]") "}", 8, "expected integers, found a number"},
        {"{" ENTRY("x", "F32", "{}", "[0,8]") "}", 8, "expected an array, found an object"},
        {"{" ENTRY("x", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "at most 8 numbers"},
        {"{" ENTRY("x", "F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "does not fill"},
        {"{" ENTRY("x", "F32", "[4611686018427387904,4,0]", "[0,0]") "}", 0, "does not fill"},
        {"{" ENTRY("x", "F32", "[99999999999999999999]", "[0,0]") "}", 0, "too big"},
        {"{" ENTRY("x", "F32", "[2]", "[8,0]") "}", 8, "data_offsets do not lie"},
        {"{" ENTRY("x", "F32", "[2]", "[0]") "}", 8, "data_offsets do not lie"},
        {"{" ENTRY("x", "F32", "[3]", "[0,12]") "}", 8, "data_offsets do not lie"},
        {"{" ENTRY("x", "U8", "[2]", "[0,2]") "," ENTRY("y", "U8", "[2]", "[1,3]") "}", 3,
         "\"y\" begins at data byte 1, expected 2: it overlaps"},
        {"{" ENTRY("x", "U8", "[1]", "[0,1]") "," ENTRY("y", "U8", "[1]", "[2,3]") "}", 3,
         "\"y\" begins at data byte 2, expected 1: there is a hole"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"scale\":2}}", 1,
         "unknown key \"scale\""},
        {"{\"\xff\":1}", 0, "unable to decode byte 0xff"},
        {"", 0, "header.safetensors"},
    };
    for (int i = 0; i < LEN(h); i++) {
        const char *path = put_header(h[i].header, h[i].ndata);
        if (h[i].part)
            EXPECT_FAIL(&ctx, open_path, (void *)path, h[i].part);
        else
            EXPECT(ctx_try(&ctx, open_path, (void *)path) == TN_OK);
    }
    uint64_t claim[2] = {0}, claims[] = {UINT64_MAX, INT64_MAX, 1ull << 33, 9};
    for (int i = 0; i < LEN(claims); i++) {
        claim[0] = claims[i];
        EXPECT_FAIL(&ctx, open_path, (void *)put_file("claim", claim, 16), "its header claims");
    }
    EXPECT_FAIL(&ctx, open_path, (void *)put_file("short", claim, 7), "ends too early");
    EXPECT_FAIL(&ctx, open_path, (void *)in_dir("absent"), "absent: cannot open: No such file");
    EXPECT_FAIL(&ctx, open_path, "/dev/zero", "not a regular file");
}

typedef struct TextCall {
    Arena *a;
    const char *path;
} TextCall;

static void read_text(void *arg)
{
    const TextCall *c = arg;
    size_t n;
    file_read(c->a, c->path, &n);
}

/* What is too long by its size, and what never ends. */
static void test_endless(void)
{
    TextCall long_file = {arena_new(&ctx), put_text("long", "tenon 1\n")};
    EXPECT(!truncate(long_file.path, ((off_t)256 << 20) + 1));
    EXPECT_FAIL(&ctx, read_text, &long_file, "long: longer than 256 MiB");
    EXPECT_FAIL(&ctx, read_text, (&(TextCall){long_file.a, "/dev/zero"}),
                "/dev/zero: longer than 256 MiB");
    unlink(long_file.path);
    arena_free(long_file.a);
}

typedef struct ReadCall {
    const TensorFile *f;
    const TensorEntry *e;
    DType want;
    bool lossy;
    void *dst;
} ReadCall;

static void read_call(void *p)
{
    const ReadCall *c = p;
    tensors_read(c->f, c->e, c->want, c->lossy, c->dst);
}

static void test_convert_values(void)
{
    static const double x[] = {
        1 + 0x1p-30,           1 + 0x1.8p-24,     -0.0,  INFINITY, 1 + 0x1p-8 + 0x1p-40,
        1 + 0x1p-11 + 0x1p-50, 0x1p-25 + 0x1p-60, 1e-320};
    static const int32_t k[] = {INT32_MIN, 16777217};
    static const int64_t big[] = {(1LL << 53) + 1};
    static const double huge[] = {1, 1e39};
    static const uint8_t u[] = {0, 255}, two[] = {1, 2};
    const TensorOut t[] = {{"x", {F64, 1, {8}}, x},      {"k", {I32, 1, {2}}, k},
                           {"u", {U8, 1, {2}}, u},       {"huge", {F64, 1, {2}}, huge},
                           {"two", {BOOL, 1, {2}}, two}, {"big", {I64, 1, {1}}, big}};
    const char *path = in_dir("convert.safetensors");
    tensors_write(&ctx, path, LEN(t), t);
    TensorFile *f = tensors_open(a, path);
    float y[8];
    uint16_t h[8];
    int64_t wide[2];
    tensors_read(f, tensors_get(f, "x"), F32, true, y);
    for (int i = 0; i < 8; i++)
        EXPECT(y[i] == (float)x[i] && !signbit(y[i]) == !signbit(x[i]));
    tensors_read(f, tensors_get(f, "x"), BF16, true, h);
    EXPECT(h[0] == 0x3f80 && h[2] == 0x8000 && h[3] == 0x7f80 && h[4] == 0x3f81);
    tensors_read(f, tensors_get(f, "x"), F16, true, h);
    EXPECT(h[0] == 0x3c00 && h[3] == 0x7c00 && h[5] == 0x3c01 && h[6] == 1 && h[7] == 0);
    tensors_read(f, tensors_get(f, "k"), I64, false, wide);
    EXPECT(wide[0] == INT32_MIN && wide[1] == 16777217);
    tensors_read(f, tensors_get(f, "k"), F32, true, y);
    EXPECT(y[0] == -0x1p31f && y[1] == 16777216.0f);
    tensors_read(f, tensors_get(f, "u"), BF16, false, h);
    EXPECT(h[0] == 0 && h[1] == 0x437f);
    const ReadCall bad[] = {
        {f, tensors_get(f, "x"), F32, false, y},     {f, tensors_get(f, "x"), I64, true, wide},
        {f, tensors_get(f, "k"), F32, false, y},     {f, tensors_get(f, "big"), F64, false, wide},
        {f, tensors_get(f, "big"), I32, true, wide}, {f, tensors_get(f, "u"), BOOL, true, y}};
    for (int i = 0; i < LEN(bad); i++)
        EXPECT_FAIL(&ctx, read_call, (void *)&bad[i], "which would lose digits");
    ReadCall c = {f, tensors_get(f, "huge"), F32, true, y};
    EXPECT_FAIL(&ctx, read_call, &c, "\"huge\": element 1, 1e+39, is too large for f32");
    c = (ReadCall){f, tensors_get(f, "two"), BOOL, false, y};
    EXPECT_FAIL(&ctx, read_call, &c, "\"two\": element 1 is neither false nor true");
    c.want = I64;
    EXPECT_FAIL(&ctx, read_call, &c, "\"two\": element 1 is neither false nor true");
}

/* ---- conversions ---- */

/* What 16 bits mean, from the definition of the formats. */
static double value_of(DType d, int bits)
{
    int nexp = d == F16 ? 5 : 8, nman = 15 - nexp, top = (1 << nexp) - 1, bias = top / 2;
    int e = bits >> nman & top, m = bits & ((1 << nman) - 1);
    double x = e == top ? (m ? NAN : INFINITY)
               : e      ? ldexp(m + (1 << nman), e - bias - nman)
                        : ldexp(m, 1 - bias - nman);
    return bits >> 15 ? -x : x;
}

static bool same_value(double x, double y)
{
    return (isnan(x) && isnan(y)) || (x == y && !signbit(x) == !signbit(y));
}

/* Every 16-bit float to f32, f64 and back; more elements than one chunk holds. */
static void test_convert_all(void)
{
    static uint16_t h[65536], back[65536];
    static float y[65536];
    static double z[65536];
    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    for (int d = F16; d <= BF16; d++) {
        const char *path = in_dir("all.safetensors");
        tensors_write(&ctx, path, 1, &(TensorOut){"h", {(DType)d, 1, {65536}}, h});
        TensorFile *f = tensors_open(a, path);
        tensors_read(f, f->entry, F32, false, y);
        tensors_read(f, f->entry, F64, false, z);
        int nwrong = 0;
        for (int i = 0; i < 65536; i++)
            nwrong += !same_value(y[i], value_of((DType)d, i)) || !same_value(z[i], y[i]);
        EXPECT(nwrong == 0);
        const TensorOut wide[] = {{"y", {F32, 1, {65536}}, y}, {"z", {F64, 1, {65536}}, z}};
        tensors_write(&ctx, path, 2, wide);
        f = tensors_open(a, path);
        for (int k = 0; k < 2; k++) {
            int nbad = 0;
            tensors_read(f, tensors_get(f, wide[k].name), (DType)d, true, back);
            for (int i = 0; i < 65536; i++)
                nbad += back[i] != h[i] && !(isnan(y[i]) && isnan(z[i]));
            EXPECT(nbad == 0);
        }
    }
}

static const char *put_small(size_t *n)
{
    static const float x[] = {1, 2, 3, 4, 5, 6};
    static const int64_t k[] = {7, 8};
    static const uint8_t b[] = {0, 1, 1};
    const TensorOut t[] = {{"h.0.weight", {F32, 2, {2, 3}}, x},
                           {"input_ids", {I64, 1, {2}}, k},
                           {"mask", {BOOL, 1, {3}}, b}};
    const char *path = in_dir("small.safetensors");
    tensors_write(&ctx, path, LEN(t), t);
    return file_read(a, path, n);
}

static void open_and_read(void *path)
{
    Arena *own = arena_tmp(a);
    TensorFile *f = tensors_open(own, path);
    for (int i = 0; i < f->count; i++) {
        char *dst = arena_alloc(own, (size_t)type_nbytes(&f->entry[i].type));
        tensors_read(f, &f->entry[i], f->entry[i].type.dtype, false, dst);
    }
}

static void test_truncation(void)
{
    size_t n;
    const char *text = put_small(&n);
    EXPECT(ctx_try(&ctx, open_and_read, (void *)in_dir("small.safetensors")) == TN_OK);
    for (size_t i = 0; i < n; i++)
        EXPECT_FAIL(&ctx, open_and_read, (void *)put_file("cut.safetensors", text, i), "cut.safe");
}

static uint32_t draw(int i, int j)
{
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)j, 0, 0}, key[2] = {7, 0}, word[4];
    philox(counter, key, word);
    return word[0];
}

/* Changes some bytes, or a digit, or cuts out or doubles a piece. Returns the new length. */
static size_t damage(char *text, size_t n, int seed)
{
    for (uint32_t j = 0; j <= draw(seed, 0) % 4; j++) {
        size_t at = draw(seed, 10 + (int)j) % n, len = MIN(n - at, draw(seed, 20 + (int)j) % 32);
        uint32_t x = draw(seed, 30 + (int)j);
        switch (draw(seed, 40 + (int)j) % 4) {
        case 0: text[at] = (char)x; break;
        case 1: text[at] ^= (char)(1 << x % 8); break;
        case 2:
            memmove(text + at, text + at + len, n - at - len);
            n -= len;
            break;
        case 3:
            memmove(text + at + len, text + at, n - at);
            n += len;
            break;
        }
        if (!n)
            return 0;
    }
    return n;
}

static void test_corruption(void)
{
    size_t n;
    const char *text = put_small(&n), *path = in_dir("bad.safetensors");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), ngood = 0;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < 10000; i++) {
        char bad[4096];
        memcpy(bad, text, n);
        size_t len = damage(bad, n, i);
        if (ftruncate(fd, 0) || pwrite(fd, bad, len, 0) != (ssize_t)len)
            abort();
        Arena *whole = a;
        a = arena_new(&ctx);
        ngood += ctx_try(&ctx, open_and_read, (void *)path) == TN_OK;
        arena_free(a);
        a = whole;
    }
    close(fd);
    getrusage(RUSAGE_SELF, &after);
    EXPECT(ngood > 0 && ngood < 5000); /* damage to the numbers alone is not seen */
#ifndef __SANITIZE_ADDRESS__           /* it keeps freed memory */
    EXPECT(after.ru_maxrss - before.ru_maxrss < 64 * 1024);
#endif
}

static void test_shrinks(void)
{
    size_t n;
    put_small(&n);
    const char *path = in_dir("small.safetensors");
    TensorFile *f = tensors_open(a, path);
    char dst[64];
    if (truncate(path, (off_t)n - 20))
        abort();
    ReadCall c = {f, tensors_get(f, "h.0.weight"), F32, false, dst};
    EXPECT_FAIL(&ctx, read_call, &c, "\"h.0.weight\": cannot read: the file ends too early");
    c.want = F64;
    EXPECT_FAIL(&ctx, read_call, &c, "\"h.0.weight\": cannot read: the file ends too early");
}

static void write_big(void *path)
{
    static char data[1 << 16];
    const TensorOut t[] = {{"x", {U8, 1, {sizeof data}}, data}};
    tensors_write(&ctx, path, 1, t);
}

static void write_twice(void *path)
{
    const TensorOut t[] = {{"x", {U8, 1, {0}}, NULL}, {"x", {U8, 1, {0}}, NULL}};
    tensors_write(&ctx, path, 2, t);
}

static void test_write_errors(void)
{
    size_t n, m;
    const char *old = put_small(&n), *path = in_dir("small.safetensors");
    int nentry = count_entries(dir);
    struct rlimit none, limit;
    getrlimit(RLIMIT_FSIZE, &none);
    limit = none;
    limit.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_FAIL(&ctx, write_big, (void *)path, "small.safetensors: cannot write: File too large");
    setrlimit(RLIMIT_FSIZE, &none);
    EXPECT_FAIL(&ctx, write_big, "/dev/full", "/dev/full: cannot write: No space left");
    EXPECT_FAIL(&ctx, write_big, (void *)in_dir("no/where"), "cannot create: No such file");
    EXPECT_FAIL(&ctx, write_twice, (void *)path, "two tensors are named \"x\"");
    const char *now = file_read(a, path, &m);
    EXPECT(n == m && !memcmp(old, now, n));
    EXPECT(count_entries(dir) == nentry);
}

static void put_index(const char *text)
{
    put_text("model/model.safetensors.index.json", text);
}

static void test_folder(void)
{
    static const float x[] = {1, 2};
    const char *folder = in_dir("model");
    mkdir(folder, 0700);
    tensors_write(&ctx, in_dir("model/1.safetensors"), 1, &(TensorOut){"x", {F32, 1, {2}}, x});
    tensors_write(&ctx, in_dir("model/2.safetensors"), 1, &(TensorOut){"y", {F32, 1, {1}}, x + 1});
    tensors_write(&ctx, in_dir("model/3.safetensors"), 1, &(TensorOut){"x", {F32, 1, {1}}, x + 1});
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "model/model.safetensors: cannot open");
    put_index("{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"2.safetensors\"}}");
    TensorFile *f = tensors_open(a, folder);
    float y;
    tensors_read(f, tensors_get(f, "y"), F32, false, &y);
    EXPECT(f->count == 2 && f->nfile == 2 && y == 2);
    put_index("{\"weight_map\":{\"x\":\"2.safetensors\",\"y\":\"1.safetensors\"}}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "\"x\" is not in 2.safetensors");
    put_index("{\"weight_map\":{\"x\":\"1.safetensors\",\"z\":\"2.safetensors\"}}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "\"z\" is not in 2.safetensors");
    put_index("{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"3.safetensors\"}}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "\"x\" is in another file");
    const TensorOut two[] = {{"x", {F32, 1, {2}}, x}, {"y", {F32, 1, {1}}, x}};
    tensors_write(&ctx, in_dir("model/4.safetensors"), 2, two);
    put_index("{\"weight_map\":{\"x\":\"4.safetensors\"}}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "4.safetensors is not listed");
    put_index("{\"weight_map\":{\"x\":\"../small.safetensors\"}}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "leaves the folder");
    put_index("{}");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "key \"weight_map\" is missing");
    put_index("{\"weight_map\":");
    EXPECT_FAIL(&ctx, open_path, (void *)folder, "index.json:1:14:");
}

int main(void)
{
    static void (*const tests[])(void) = {test_there_and_back, test_fixture,     test_headers,
                                          test_convert_values, test_convert_all, test_truncation,
                                          test_corruption,     test_shrinks,     test_write_errors,
                                          test_folder,         test_endless};
    return test_in_folder(tests, LEN(tests));
}
