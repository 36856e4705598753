/* Every parser of files against damage: each prefix of a good file, and thousands of copies with
 * changed, cut, doubled and replaced pieces (TN_LONG=1: 100,000 for each). A file is read or
 * refused with a message, without a crash, a hang or an allocation that its size does not explain:
 * the address space is limited, and "out of memory" is a failure here. Under the sanitizers each
 * wrong access is one too. */
#define _GNU_SOURCE
#include "../../src/api/api.h"
#include "../../src/machine/machine.h"
#include "../../src/place/place.h"
#include "../shared/state_case.h"
#include "../shared/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 1 << 14, MEMORY = 256 << 20 };

static tn_context *ctx;
static char folder[64];

static const char *inside(const char *name)
{
    static char path[4][200];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", folder, name);
    return path[turn];
}

static const char *put(const char *name, const char *text, size_t n)
{
    const char *path = inside(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n && !close(fd));
    return path;
}

/* ---- the parsers: each gives a good text, and reads what became of it ---- */

typedef struct Input {
    Arena *a;
    char *text; /* NUL added */
    size_t n;
} Input;

static size_t load(char *text, const char *path)
{
    Arena *a = arena_new(&ctx->ctx);
    size_t n;
    const char *all = file_read(a, path, &n);
    CHECK(n < MOST);
    memcpy(text, all, n + 1);
    arena_free(a);
    return n;
}

static size_t graph_text(char *text)
{
    return load(text, "tests/ir/loop.tn");
}

static void read_graph(Input *x)
{
    tn_graph *g;
    const char *path = put("g.tn", x->text, x->n);
    if (tn_graph_read(ctx, path, &g))
        fail(&ctx->ctx, TN_FAIL, "%s", tn_error(ctx));
    tn_graph_free(g);
}

static void write_tensors(const char *path, const char *name)
{
    static const float x[] = {1, 2, 3, 4, 5, 6};
    static const int64_t k[] = {7, 8};
    char other[20];
    snprintf(other, sizeof other, "%s.ids", name);
    const TensorOut t[] = {{name, {F32, 2, {2, 3}}, x}, {other, {I64, 1, {2}}, k}};
    tensors_write(&ctx->ctx, path, LEN(t), t);
}

static size_t tensors_text(char *text)
{
    write_tensors(inside("t.safetensors"), "weight");
    return load(text, inside("t.safetensors"));
}

static void read_all(Input *x, const char *path)
{
    TensorFile *f = tensors_open(x->a, path);
    for (int i = 0; i < f->count; i++) {
        void *dst = arena_alloc(x->a, (size_t)type_nbytes(&f->entry[i].type));
        tensors_read(f, &f->entry[i], f->entry[i].type.dtype, false, dst);
    }
}

static void read_tensors(Input *x)
{
    read_all(x, put("t.safetensors", x->text, x->n));
}

static size_t index_text(char *text)
{
    mkdir(inside("model"), 0700);
    write_tensors(inside("model/1.safetensors"), "x");
    write_tensors(inside("model/2.safetensors"), "y");
    return (size_t)snprintf(text, MOST,
                            "{\"metadata\": {\"total_size\": 80}, \"weight_map\": {\"x\": "
                            "\"1.safetensors\", \"x.ids\": \"1.safetensors\", \"y\": "
                            "\"2.safetensors\", \"y.ids\": \"2.safetensors\"}}");
}

static void read_index(Input *x)
{
    put("model/model.safetensors.index.json", x->text, x->n);
    read_all(x, inside("model"));
}

static size_t adapter_text(char *text)
{
    return load(text, "tests/seeds/lora/peft.json");
}

static void read_adapter(Input *x)
{
    const char *base;
    lora_read(x->a, put("adapter_config.json", x->text, x->n), &base);
}

static size_t lora_line(char *text)
{
    return load(text, "tests/seeds/lora/line.txt");
}

static void read_lora(Input *x)
{
    ModelConfig c = *config_preset("demo");
    c.lora = lora_parse(x->a, x->text);
    lora_check(x->a, &c);
    graph_verify(model_graph(x->a, &c, 1, 2, NULL));
}

static size_t good_config(char *text)
{
    return load(text, "tests/ref/llama-tiny/config.json");
}

static void read_config(Input *x)
{
    config_read(x->a, put("config.json", x->text, x->n));
}

static size_t tokenizer_text(char *text)
{
    return load(text, "tests/tokenizer/small.json");
}

static void read_tokenizer(Input *x)
{
    tokenizer_parse(x->a, x->text, x->n, "tokenizer.json");
}

static size_t shard_text(char *text)
{
    int32_t head[256] = {20240520, 1, 100};
    memcpy(text, head, sizeof head);
    for (int i = 0; i < 200; i++)
        text[1024 + i] = (char)(i % 2 ? 0 : i % 50);
    return 1224;
}

static void read_shard(Input *x)
{
    int64_t ids[8], labels[8], count;
    tn_data *d;
    const char *path = put("shard.bin", x->text, x->n);
    int code = tn_data_open(ctx, 1, &path, "auto", 0.2, 50, &d);
    if (code)
        fail(&ctx->ctx, TN_FAIL, "%s", tn_error(ctx));
    code = tn_data_batch(d, 1, 1, 2, 4, ids, labels);
    if (!code)
        code = tn_data_val(d, 0, 1, 2, 4, ids, labels, &count);
    tn_data_free(d);
    if (code)
        fail(&ctx->ctx, TN_FAIL, "%s", tn_error(ctx));
}

static size_t batch_text(char *text)
{
    static const int64_t k[] = {1, 2, 3, 4};
    const TensorOut t[] = {{"input_ids", {I64, 2, {2, 2}}, k}, {"labels", {I64, 2, {2, 2}}, k}};
    tensors_write(&ctx->ctx, inside("b.safetensors"), LEN(t), t);
    return load(text, inside("b.safetensors"));
}

static void read_batch(Input *x)
{
    int64_t B, T, ids[4], labels[4];
    const char *path = put("b.safetensors", x->text, x->n);
    if (tn_batch_shape(ctx, path, &B, &T) || tn_batch_read(ctx, path, 2, 2, ids, labels))
        fail(&ctx->ctx, TN_FAIL, "%s", tn_error(ctx));
}

static size_t state_text(char *text)
{
    return (size_t)snprintf(text, MOST, "%s", state_good);
}

static void read_state(Input *x)
{
    char said[2100];
    if (!state_try(x->text, x->n, said, sizeof said))
        fail(&ctx->ctx, TN_FAIL, "%s", *said ? said : "an option");
}

static size_t latest_text(char *text)
{
    return (size_t)snprintf(text, MOST, "step-2");
}

static void read_latest(Input *x)
{
    char said[2100];
    if (!state_try_latest(x->text, x->n, said, sizeof said))
        fail(&ctx->ctx, TN_FAIL, "%s", *said ? said : "an option");
}

static size_t buffers_text(char *text)
{
    return load(text, "tests/seeds/place/quoted.csv");
}

static void read_buffers(Input *x)
{
    const PlaceTable *t = place_parse(x->a, x->text, x->n, "place.csv");
    place_need_offsets(t);
    PlaceCheck c = place_check(x->a, t->buf, t->n);
    if (c.first >= 0)
        place_overlap(t, &c);
}

static size_t machine_text(char *text)
{
    return load(text, "tests/seeds/machine/lab.machine");
}

static void read_machine(Input *x)
{
    Buf b = {.a = x->a};
    machine_print(&b, machine_parse(x->a, x->text, x->n, "lab.machine"));
    machine_parse(x->a, b.text, b.len, "printed");
}

static const struct Parser {
    const char *name;
    size_t (*good)(char *text);
    void (*read)(Input *x);
} parsers[] = {
    {".tn", graph_text, read_graph},
    {"safetensors", tensors_text, read_tensors},
    {"index", index_text, read_index},
    {"config.json", good_config, read_config},
    {"adapter_config.json", adapter_text, read_adapter},
    {"lora", lora_line, read_lora},
    {"tokenizer.json", tokenizer_text, read_tokenizer},
    {"shard", shard_text, read_shard},
    {"batch", batch_text, read_batch},
    {"state.json", state_text, read_state},
    {"latest", latest_text, read_latest},
    {"place.csv", buffers_text, read_buffers},
    {"machine", machine_text, read_machine},
};

/* ---- damage ---- */

static uint64_t seed = 1;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static size_t draw_length(uint32_t below, size_t most)
{
    size_t n = draw(below);
    return n < most ? n : most;
}

static size_t replace(char *text, size_t n, size_t at, size_t gone, const char *by, size_t nby)
{
    if (n - gone + nby >= MOST)
        return n;
    memmove(text + at + nby, text + at + gone, n - at - gone);
    memmove(text + at, by, nby);
    return n - gone + nby;
}

/* Early bytes are chosen more often: headers lie there. */
static size_t damage(char *text, size_t n)
{
    static const char *const pieces[] = {"9223372036854775807",
                                         "-1",
                                         "1e308",
                                         "null",
                                         "[[[[[[[[",
                                         "{\"\":",
                                         "\\u0000",
                                         "\xff",
                                         "\"",
                                         "0",
                                         "99999999999999999999",
                                         "18446744073709551615"};
    char copy[64];
    for (uint32_t turns = 1 + draw(3); turns && n; turns--) {
        size_t at = draw((uint32_t)(draw(2) ? n : MIN(n, (size_t)48)));
        size_t len = draw_length(sizeof copy, n - at);
        const char *piece = pieces[draw(LEN(pieces))];
        switch (draw(6)) {
        case 0: text[at] = (char)draw(256); break;
        case 1: text[at] ^= (char)(1 << draw(8)); break;
        case 2: n = replace(text, n, at, len, "", 0); break;
        case 3: n = replace(text, n, at, 0, memcpy(copy, text + at, len), len); break;
        case 4: n = replace(text, n, at, draw_length(6, n - at), piece, strlen(piece)); break;
        default:
            memcpy(copy, text + draw((uint32_t)(n - len + 1)), len);
            n = replace(text, n, at, len, copy, len);
            break;
        }
    }
    text[n] = 0;
    return n;
}

/* ---- all of it ---- */

typedef struct Try {
    const struct Parser *p;
    Input x;
} Try;

static void read_it(void *arg)
{
    Try *t = arg;
    t->p->read(&t->x);
}

/* Whether a text is read; what is said of one that is not must say why. */
static bool try_text(const struct Parser *p, char *text, size_t n)
{
    Try t = {p, {arena_new(&ctx->ctx), text, n}};
    ctx->ctx.message[0] = 0;
    alarm(60);
    bool good = ctx_try(&ctx->ctx, read_it, &t) == TN_OK;
    arena_free(t.x.a);
    if (!good && !EXPECT(ctx->ctx.message[0] && !strstr(ctx->ctx.message, "out of memory")))
        printf("  %s: \"%s\"\n", p->name, ctx->ctx.message);
    return good;
}

static int count_files(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static void test_parser(const struct Parser *p, int rounds)
{
    static char text[MOST + 1], copy[MOST + 1];
    size_t n = p->good(text);
    int naccepted = 0, npassed = test_npass;
    memcpy(copy, text, n + 1);
    EXPECT(try_text(p, copy, n));
    int nfile = count_files();
    for (size_t i = 0; i < n; i++) {
        memcpy(copy, text, i);
        copy[i] = 0;
        try_text(p, copy, i);
    }
    for (int i = 0; i < rounds; i++) {
        memcpy(copy, text, n + 1);
        naccepted += try_text(p, copy, damage(copy, n));
    }
    EXPECT(naccepted > 0 && count_files() == nfile);
    printf("note: test_corrupt: %s: %d prefixes, %d corruptions, of which %d could be read\n",
           p->name, (int)n, rounds, naccepted);
    test_npass = npassed + 1; /* a parser, not a text, is what is tested */
}

#ifdef TN_SANITIZE
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "max_allocation_size_mb=64:allocator_may_return_null=1";
}
#endif

/* Beside what the process has taken so far. */
static void limit_memory(void)
{
#ifndef TN_SANITIZE
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld", &pages) == 1 && !fclose(f));
    rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY;
    CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){most, most}));
#endif
}

int main(int argc, char **argv)
{
    int rounds = getenv("TN_LONG") ? 100000 : getenv("TN_QUICK") ? 2000 : 10000;
    snprintf(folder, sizeof folder, "%s/tenon_corrupt_XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    CHECK(mkdtemp(folder) && (ctx = tn_context_new()));
    state_folder();
    limit_memory();
    for (int i = 0; i < LEN(parsers); i++)
        if (argc < 2 || !strcmp(argv[1], parsers[i].name))
            test_parser(&parsers[i], rounds);
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    state_remove();
    tn_context_free(ctx);
    EXPECT(!system(command));
    return test_report();
}
