/* What running promises about memory. A step allocates nothing: the linker's --wrap (see the
 * Makefile) sends every call of an allocating function from Tenon's objects through the counters
 * below; calls from inside oneDNN, OpenMP and the C library go where they always go and are not
 * counted. And the process stays within 64 MiB of what the plan and the library's reserve say. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- counting ---- */

static int64_t ncall;

#define WRAP(type, name, params, args) \
    type __real_##name params;         \
    type __wrap_##name params;         \
    type __wrap_##name params          \
    {                                  \
        ncall++;                       \
        return __real_##name args;     \
    }

WRAP(void *, malloc, (size_t n), (n))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *p, size_t n), (p, n))
WRAP(void *, aligned_alloc, (size_t align, size_t n), (align, n))
WRAP(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n))
WRAP(char *, strdup, (const char *s), (s))
WRAP(char *, strndup, (const char *s, size_t n), (s, n))
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset))

/* ---- setting up ---- */

static tn_context *ctx;
static char folder[] = "/tmp/tenon_alloc_XXXXXX";

#define OK(call) test_code((call), #call, __LINE__)

static void test_code(int code, const char *what, int line)
{
    if (!test_note(!code, __FILE__, line, what))
        printf("  %s\n", tn_error(ctx));
}

static void *data(tn_program *x, const char *name)
{
    void *p = NULL;
    OK(tn_program_data(x, name, &p, NULL));
    return p;
}

/* A training step's program. The graph and plan go with the context. */
static tn_program *start(tn_model *m, int64_t B, int64_t T, const tn_options *o, tn_plan **p)
{
    tn_graph *g = NULL;
    tn_program *x = NULL;
    OK(tn_model_graph(m, B, T, o, &g));
    OK(tn_graph_passes(g, "default", o, NULL, NULL));
    OK(tn_plan_new(g, o, 1, p));
    OK(tn_program_new(*p, o, &x));
    OK(tn_program_load(x, m, o));
    return x;
}

/* ---- no allocation ---- */

static void set_scalars(tn_program *x, int64_t step)
{
    void *seed;
    *(float *)data(x, "lr") = 1e-3f;
    *(int64_t *)data(x, "step") = step;
    if (!tn_program_data(x, "seed", &seed, NULL))
        *(int64_t *)seed = 1;
}

static void step(tn_program *x, tn_data *d, int64_t B, int64_t T, int64_t at)
{
    set_scalars(x, at);
    OK(tn_data_batch(d, 1, (uint32_t)at, B, T, data(x, "input_ids"), data(x, "labels")));
    OK(tn_program_run(x));
}

static void evaluate(tn_program *x, tn_data *d, int64_t B, int64_t T)
{
    int64_t count;
    OK(tn_data_val(d, 0, 1, B, T, data(x, "input_ids"), data(x, "labels"), &count));
    EXPECT(count > 0);
    OK(tn_program_run(x));
}

/* On a device with queues of its own. */
static void test_emulated(void)
{
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_plan *p = NULL;
    o.backend = "emulated";
    ctx = tn_context_new();
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    tn_program *x = start(m, 1, 16, &o, &p);
    int64_t before = 0;
    for (int i = 1; i <= 4; i++) {
        int64_t ids[16] = {0};
        float loss = 0;
        set_scalars(x, i);
        OK(tn_program_write(x, "input_ids", ids, sizeof ids));
        OK(tn_program_write(x, "labels", ids, sizeof ids));
        OK(tn_program_run(x));
        OK(tn_program_read(x, "loss", &loss, sizeof loss));
        EXPECT(loss > 0);
        before = i == 1 ? ncall : before;
    }
    EXPECT(ncall == before);
    tn_context_free(ctx);
}

static void test_steps(const char *name, int64_t accumulate, double dropout, int check)
{
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_plan *p = NULL;
    tn_data *d = NULL;
    char path[100];
    const char *file = path;
    o.accumulate = accumulate;
    o.dropout = dropout;
    o.check = check;
    ctx = tn_context_new();
    snprintf(path, sizeof path, "%s/tokens", folder);
    OK(tn_data_open(ctx, 1, &file, "byte", 0.2, 80, &d));
    OK(tn_model_open(ctx, name, &m));
    int64_t before = ncall;
    tn_program *x = start(m, 3, 16, &o, &p);
    EXPECT(ncall > before); /* the counters are there */
    OK(tn_data_read_ahead(d, 1, 1, 3, 16));
    step(x, d, 3, 16, 1);
    before = ncall;
    for (int i = 2; i <= 4; i++)
        step(x, d, 3, 16, i);
    tn_program_fill(x, 0x5a);
    EXPECT(tn_program_high(x, 0x5a) >= 0 && !tn_program_fault(x));
    set_scalars(x, 5);
    evaluate(x, d, 3, 16);
    if (!EXPECT(ncall == before))
        printf("  %s: %lld allocations after the first step\n", name, (long long)(ncall - before));
    tn_context_free(ctx);
}

static void write_tokens(void)
{
    char path[100], text[2000];
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = (char)(i * 7 % 80);
    snprintf(path, sizeof path, "%s/tokens", folder);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, sizeof text, 1, f) && !fclose(f));
}

/* ---- resident size ---- */

#ifdef TN_SANITIZE
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int child(void (*fn)(void))
{
    int status = -1;
    pid_t pid = fork(); /* before this process has threads */
    if (!pid) {
        fn();
        fflush(stdout);
        _exit(test_nfail != 0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static void save_model(void)
{
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    char path[100];
    ctx = tn_context_new();
    OK(tn_model_open(ctx, "demo", &m));
    OK(tn_model_logits(m, 1, 1, &g));
    OK(tn_plan_new(g, &o, 1, &p));
    OK(tn_program_new(p, &o, &x));
    OK(tn_program_load(x, m, &o));
    snprintf(path, sizeof path, "%s/model", folder);
    OK(tn_program_save(x, m, path, "{}"));
    tn_context_free(ctx);
}

/* Of a process that trains a model of 5 million parameters from a folder for two steps. */
static void check_resident(void)
{
    enum { B = 8, T = 256 };
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_plan *p = NULL;
    int64_t peak, persistent, reserve;
    char path[100];
    ctx = tn_context_new();
    snprintf(path, sizeof path, "%s/model", folder);
    OK(tn_model_open(ctx, path, &m));
    tn_program *x = start(m, B, T, &o, &p);
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    for (int i = 0; i < 2; i++) {
        tn_program_fill(x, 0x5a);
        memset(data(x, "input_ids"), 0, B * T * sizeof(int64_t));
        memset(data(x, "labels"), 0, B * T * sizeof(int64_t));
        *(float *)data(x, "lr") = 1e-3f;
        *(int64_t *)data(x, "step") = i + 1;
        OK(tn_program_run(x));
    }
    int64_t rss = tn_rss_peak(), most = peak + reserve + (64 << 20);
    if (!EXPECT(rss >= peak && rss <= most))
        printf("  resident %lld bytes; planned %lld, reserve %lld\n", (long long)rss,
               (long long)peak, (long long)reserve);
    tn_context_free(ctx);
}

int main(void)
{
    CHECK(mkdtemp(folder));
    if (!SANITIZED) { /* whose shadow memory is resident too */
        EXPECT(child(save_model) == 0);
        EXPECT(child(check_resident) == 0);
    }
    write_tokens();
    static const char *const models[] = {"tests/ref/gpt2-tiny", "tests/ref/llama-tied"};
    for (int i = 0; i < LEN(models); i++) {
        test_steps(models[i], 1, 0, 0);
        test_steps(models[i], 2, 0.1, 0);
        test_steps(models[i], 1, 0.1, 1);
    }
    test_emulated();
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(!system(command));
    return test_report();
}
