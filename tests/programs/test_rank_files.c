/* Files do not know the mesh: what ranks save is byte for byte what one rank saves, and any mesh
 * reads it. A rank that fails while all save fails all, and leaves what was there. TN_QUICK: every
 * third way only. */
#include "../../src/api/api.h"
#include "../shared/config.h"
#include "../shared/race.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>

enum { BATCH = 24, SEQ = 8 };

/* ---- calls that fail on one rank ---- */

typedef enum { NO_FAILURE, WRITE_FAILS, SYNC_FAILS, READ_LIES, RENAME_FAILS } Failure;

/* The call of that kind which fails, from 1, how files are written then, and what is said. */
typedef struct Injected {
    Failure failure;
    int way, rank, at;
    const char *said;
} Injected;

static int stride = 1;  /* of what is tried */
static Injected inject; /* changed by rank 0 while others wait for it */

static _Thread_local int this_rank = -1, ncalls;
static size_t most_memory; /* malloc's, while files are written */
static ssize_t bytes_read; /* by one rank */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool fails(Failure failure, int why)
{
    bool now = failure == inject.failure && this_rank == inject.rank && ++ncalls == inject.at;
    if (now)
        errno = why;
    return now;
}

ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
    struct mallinfo2 m = mallinfo2();
    pthread_mutex_lock(&lock);
    most_memory = MAX(most_memory, m.uordblks + m.hblkhd);
    pthread_mutex_unlock(&lock);
    return fails(WRITE_FAILS, ENOSPC) ? -1 : __real_pwrite(fd, p, n, at);
}

ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
    ssize_t got = __real_pread(fd, p, n, at);
    if (got > 0 && fails(READ_LIES, 0))
        ((char *)p)[got / 2] ^= 1;
    if (this_rank < 0)
        bytes_read += MAX(got, 0);
    return got;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    return fails(SYNC_FAILS, EIO) ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return fails(RENAME_FAILS, EIO) ? -1 : __real_rename(from, to);
}

static void begin_faults(int rank)
{
    this_rank = rank;
    ncalls = 0;
}

/* ---- programs ---- */

typedef struct Form {
    const char *config, *mesh; /* mesh "": one rank */
    const char *param_dtype, *backend;
    int64_t shard;
} Form;

typedef struct Run {
    tn_context *ctx;
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    tn_options o;
} Run;

static bool good(tn_context *c, int code, const char *what)
{
    pthread_mutex_lock(&lock);
    if (!test_note(!code, __FILE__, __LINE__, what))
        printf("  rank %d: %s\n", tn_rank(c), tn_error(c));
    pthread_mutex_unlock(&lock);
    return !code;
}

static void expect(bool holds, int line, const char *what)
{
    pthread_mutex_lock(&lock);
    test_note(holds, __FILE__, line, what);
    pthread_mutex_unlock(&lock);
}

/* frozen: the pattern of parameters without gradients, the others' are outputs; NULL: the program
 * has an optimizer. */
static bool run_begin(Run *r, tn_context *c, const Form *f, const char *model, const char *frozen)
{
    *r = (Run){.ctx = c, .o = tn_options_default()};
    r->o.mesh = *f->mesh ? f->mesh : NULL;
    r->o.rank = tn_rank(c);
    r->o.seed = 7;
    r->o.shard = f->shard;
    r->o.overlap = "off"; /* files do not depend on the order, the search for which takes long */
    if (frozen) {
        r->o.optimizer = "none";
        r->o.freeze = &frozen;
        r->o.nfreeze = 1;
    }
    r->o.param_dtype = f->param_dtype ? f->param_dtype : "f32";
    r->o.backend = f->backend ? f->backend : "cpu";
    return good(c, tn_model_open(c, model, &r->m), model) &&
           good(c, tn_model_graph(r->m, BATCH, SEQ, &r->o, &r->g), f->mesh) &&
           good(c, tn_graph_passes(r->g, "default", &r->o, NULL, NULL), f->mesh) &&
           good(c, tn_plan_new(r->g, &r->o, 0, &r->p), f->mesh) &&
           good(c, tn_program_new(r->p, &r->o, &r->x), f->mesh) &&
           good(c, tn_program_load(r->x, r->m, &r->o), model);
}

/* ---- what one rank has ---- */

typedef struct Whole {
    const char *name;
    Type type;
    char *data;
} Whole;

static Whole *wholes;
static int nwhole, capwhole;

static const Whole *find_whole(const char *name)
{
    for (int i = 0; i < nwhole; i++)
        if (!strcmp(wholes[i].name, name))
            return &wholes[i];
    return NULL;
}

/* Numbers that tell every element of every tensor from the others, nearly. */
static void fill_state(const Run *r, const PlanPort *p, int number)
{
    int64_t n = type_nelem(&p->type);
    float *x = NEWN(a, float, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i * 97 + number * 31 + 1) / 1024;
    CHECK(p->type.dtype == F32 && !tn_program_write(r->x, p->name, x, n * 4));
}

/* One rank's program, with state that is no zeros, and what it saves; keeps what it has. */
static void make_reference(const Form *f, const char *model, const char *folder)
{
    tn_context *c = tn_context_new();
    Form one = *f;
    Run r;
    one.mesh = "";
    one.backend = NULL;
    wholes = NULL;
    nwhole = capwhole = 0;
    begin_faults(-1);
    if (run_begin(&r, c, &one, model, NULL)) {
        const Plan *p = r.p->p;
        for (int i = 0; i < p->nin; i++) {
            const PlanPort *q = &p->in[i];
            if (q->role == ROLE_STATE)
                fill_state(&r, q, i);
            if (q->role != ROLE_STATE && q->role != ROLE_PARAM)
                continue;
            Whole w = {arena_strdup(a, q->name), q->type, NEWN(a, char, type_nbytes(&q->type))};
            CHECK(!tn_program_read(r.x, q->name, w.data, type_nbytes(&q->type)));
            PUSH(a, wholes, nwhole, capwhole, w);
        }
        good(c, tn_program_save(r.x, r.m, folder, "{\"step\": 1}"), "one rank saves");
    }
    tn_context_free(c);
}

/* ---- what ranks have ---- */

typedef struct PartSeen {
    const char *data, *whole;
    int64_t size;
    bool good;
} PartSeen;

static void see_run(void *arg, PartRun r)
{
    PartSeen *p = arg;
    static const char zeros[16];
    for (int64_t i = 0; i < r.n && p->good; i++)
        p->good =
            !memcmp(p->data + (r.local + i) * p->size,
                    r.whole < 0 ? zeros : p->whole + (r.whole + i) * p->size, (size_t)p->size);
}

/* That a rank's parameters (and its state) are its parts of the reference. */
static void check_parts(const Run *r, bool state)
{
    const Plan *p = r->p->p;
    Arena *tmp = arena_new(&r->ctx->ctx);
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *q = &p->in[i];
        if (q->role != ROLE_PARAM && (q->role != ROLE_STATE || !state))
            continue;
        const Whole *w = find_whole(q->name);
        char *data = NEWN(tmp, char, type_nbytes(&q->type));
        PartSeen x = {data, w ? w->data : NULL, dtype_size(q->type.dtype), w != NULL};
        good(r->ctx, tn_program_read(r->x, q->name, data, type_nbytes(&q->type)), q->name);
        if (w)
            part_each_run(tmp, &q->type, r->g->g->mesh, q->cut, &w->type, see_run, &x);
        expect(x.good, __LINE__, q->name);
        arena_reset(tmp);
    }
    arena_free(tmp);
}

/* How files are written. */
enum { PARALLEL, STREAM, NWAY };
static const char *const ways[NWAY] = {"parallel", "stream"};

typedef struct Task {
    Form form;
    const char *from;         /* folder with the weights and state; a config: they are drawn */
    const char *to;           /* "all": saves go to all-parallel/step-1 and so on; NULL: none */
    const Injected *failures; /* which fail further saves there, one after the other */
    int nfailure;
} Task;

/* Returns what the save does. */
static int do_save(const Run *r, const char *stem, int way)
{
    char to[200];
    snprintf(to, sizeof to, "%s-%s/step-1", stem, ways[way]);
    if (!tn_rank(r->ctx)) /* which alone looks */
        setenv("TENON_SAVE", ways[way], 1);
    begin_faults(tn_rank(r->ctx));
    int code = tn_program_save(r->x, r->m, to, "{\"step\": 1}");
    begin_faults(-1);
    return code;
}

/* That what was saved to both folders is as it was, and is alone. */
static void check_saved(const char *one, const char *stem)
{
    char command[800];
    for (int w = 0; w < NWAY; w++) {
        snprintf(command, sizeof command, "diff -r '%s/..' '%s-%s' >&2", one, stem, ways[w]);
        expect(!system(command), __LINE__, command);
    }
}

/* Whatever fails on one rank, all say so, and what there was stays. */
static void do_failure(const Run *r, const Task *t, const Injected *x)
{
    if (!tn_rank(r->ctx))
        inject = *x;
    good(r->ctx, tn_agree_code(r->ctx, 0), "failure begins");
    int code = do_save(r, t->to, x->way);
    expect(code && strstr(tn_error(r->ctx), x->said), __LINE__, tn_error(r->ctx));
    good(r->ctx, tn_agree_code(r->ctx, 0), "failure ends");
    if (tn_rank(r->ctx))
        return;
    inject.failure = NO_FAILURE;
    check_saved(t->from, t->to);
}

static int do_task(tn_context *c, void *arg)
{
    const Task *t = arg;
    Run r;
    bool drawn = strstr(t->from, ".json") != NULL;
    begin_faults(-1);
    if (!run_begin(&r, c, &t->form, t->from, NULL))
        return TN_CODE_FAIL;
    if (!drawn)
        good(c, tn_program_restore(r.x, t->from), t->form.mesh);
    if (nwhole)
        check_parts(&r, !drawn);
    for (int w = 0; w < NWAY && t->to; w++)
        good(c, do_save(&r, t->to, w), ways[w]);
    for (int i = 0; i < t->nfailure; i += stride)
        do_failure(&r, t, &t->failures[i]);
    tn_program_free(r.x);
    return TN_CODE_OK;
}

static int64_t count_ranks(const char *mesh)
{
    return mesh_nranks(mesh_parse(&ctx, a, mesh));
}

static void run_task(const Task *t)
{
    EXPECT(!tn_ranks_run((int)count_ranks(t->form.mesh), 60, do_task, (void *)t));
}

static const char *write_config(const char *text)
{
    const char *path = in_dir("model.json");
    file_write(&ctx, path, text, strlen(text));
    return path;
}

static void fresh(const char *name)
{
    CHECK(!system(arena_printf(a, "rm -rf '%s'", in_dir(name))));
}

/* ---- tests ---- */

#define GPT2  GPT2_KEYS "}"
#define LLAMA LLAMA_KEYS "}"
#define TIED  LLAMA_KEYS ", \"tie_word_embeddings\": true}"

static const Form forms[] = {
    {GPT2, "fsdp=8", NULL, NULL, 0},
    {GPT2, "dp=2,fsdp=2,tp=2", NULL, NULL, 0},
    {GPT2, "fsdp=4,tp=2", NULL, NULL, 40000},
    {GPT2, "tp=4", "bf16", NULL, 0},
    {GPT2, "dp=2", NULL, NULL, 0},
    {LLAMA, "fsdp=8", NULL, NULL, 0},
    {LLAMA, "tp=3", NULL, NULL, 30000},
    {LLAMA, "fsdp=3,tp=2", "bf16", NULL, 0},
    {TIED, "tp=2,fsdp=4", NULL, NULL, 1},
    {LLAMA, "dp=2,fsdp=2,tp=2", NULL, "emulated", 0},
};

static void fresh_both(const char *stem)
{
    for (int w = 0; w < NWAY; w++)
        fresh(arena_printf(a, "%s-%s", stem, ways[w]));
}

/* Loads and restores, saves by each way, and draws. */
static void test_forms(void)
{
    const char *from = in_dir("one/step-1"), *to = in_dir("all");
    for (int i = 0; i < LEN(forms); i += stride) {
        const char *config = write_config(forms[i].config);
        fresh("one");
        fresh_both("all");
        make_reference(&forms[i], config, from);
        run_task(&(Task){.form = forms[i], .from = from, .to = to});
        check_saved(from, to);
        run_task(&(Task){.form = forms[i], .from = config});
    }
}

static const Injected failures[] = {
    {WRITE_FAILS, PARALLEL, 3, 1, "rank 3: "},
    {WRITE_FAILS, PARALLEL, 0, 2, "cannot write: No space left on device"},
    {WRITE_FAILS, PARALLEL, 7, 4, "No space left on device"},
    {WRITE_FAILS, STREAM, 0, 9, "cannot write: No space left on device"},
    {SYNC_FAILS, PARALLEL, 2, 1, "rank 2: "},
    {SYNC_FAILS, PARALLEL, 5, 2, "rank 5: "},
    {SYNC_FAILS, STREAM, 0, 4, "cannot write: Input/output error"},
    {READ_LIES, PARALLEL, 6, 1, "rank 6: "},
    {READ_LIES, PARALLEL, 4, 3, "what was read back is not what was written"},
    {READ_LIES, STREAM, 0, 3, "what was read back is not what was written"},
    {RENAME_FAILS, PARALLEL, 0, 5, "cannot write: Input/output error"},
    {RENAME_FAILS, STREAM, 0, 5, "cannot write: Input/output error"},
};

static void test_failures(void)
{
    Form f = {GPT2, "fsdp=4,tp=2", NULL, NULL, 40000};
    const char *from = in_dir("failing/step-1");
    fresh_both("all");
    make_reference(&f, write_config(f.config), from);
    run_task(&(Task){f, from, in_dir("all"), failures, LEN(failures)});
}

/* Large tensors, whose rows two ranks share, go through bounded buffers. */
static void test_memory(void)
{
    enum { BUFFERS = 40 << 20 };
    Form f = {"{\"model_type\": \"gpt2\", \"n_embd\": 512, \"n_head\": 4, \"n_layer\": 1, "
              "\"n_positions\": 32, \"vocab_size\": 30001}",
              "tp=2", NULL, NULL, 0};
    nwhole = 0;
    most_memory = 0;
    run_task(&(Task){.form = f, .from = write_config(f.config), .to = in_dir("large")});
    struct stat st;
    CHECK(!stat(in_dir("large-stream/step-1/optimizer.safetensors"), &st));
    EXPECT(st.st_size > 3 * BUFFERS);
    if (!EXPECT(most_memory < BUFFERS))
        printf("  %zu bytes\n", most_memory);
    check_saved(in_dir("large-parallel/step-1"), in_dir("large"));
}

/* ---- gradients ---- */

static void give_run(void *arg, PartRun r)
{
    float *x = arg;
    for (int64_t i = 0; i < r.n; i++)
        x[r.local + i] = r.whole < 0 ? NAN : (float)(r.whole + i);
}

typedef struct Gradients {
    Form form;
    const char *model, *path[NWAY], *pipe;
} Gradients;

static int write_gradients(tn_context *c, void *arg)
{
    const Gradients *t = arg;
    Run r;
    if (!run_begin(&r, c, &t->form, t->model, "*ln_1*"))
        return TN_CODE_FAIL;
    const Plan *p = r.p->p;
    for (int i = 0; i < p->nout; i++) {
        const PlanPort *q = &p->out[i];
        int64_t n = type_nelem(&q->type);
        Arena *tmp = arena_new(&c->ctx);
        float *x = NEWN(tmp, float, n);
        Type whole = part_output(p, r.x->whole, q);
        CHECK(q->type.dtype == F32);
        part_each_run(tmp, &q->type, r.g->g->mesh, q->cut, &whole, give_run, x);
        CHECK(!program_write(r.x->x, q, 0, n * 4, x));
        arena_free(tmp);
    }
    for (int w = 0; w < NWAY; w++) {
        if (!tn_rank(c))
            setenv("TENON_SAVE", ways[w], 1);
        good(c, tn_program_write_file(r.x, t->path[w], "grad."), t->path[w]);
    }
    if (t->pipe)
        good(c, tn_program_write_file(r.x, t->pipe, "grad."), t->pipe);
    tn_program_free(r.x);
    return TN_CODE_OK;
}

static void *read_pipe(void *arg)
{
    CHECK(!system(arg));
    return NULL;
}

static void test_gradients(void)
{
    static const char *const meshes[] = {"", "fsdp=3,tp=2", "dp=2,tp=4"};
    pthread_t reader;
    const char *pipe = in_dir("pipe"), *one = in_dir("grad0-0");
    char *command = arena_printf(a, "cat '%s' >'%s.read'", pipe, pipe);
    CHECK(!mkfifo(pipe, 0600));
    const char *model = write_config(GPT2);
    for (int i = 0; i < LEN(meshes); i++) {
        Gradients t = {
            .form = {GPT2, meshes[i], NULL, NULL, 0}, .model = model, .pipe = i ? pipe : NULL};
        for (int w = 0; w < NWAY; w++)
            t.path[w] = in_dir(arena_printf(a, "grad%d-%d", i, w));
        if (i)
            CHECK(!pthread_create(&reader, NULL, read_pipe, command));
        EXPECT(!tn_ranks_run(i ? (int)count_ranks(meshes[i]) : 1, 60, write_gradients, &t));
        for (int w = 0; w < NWAY; w++)
            EXPECT(!system(arena_printf(a, "cmp '%s' '%s'", one, t.path[w])));
        if (!i)
            continue;
        pthread_join(reader, NULL);
        EXPECT(!system(arena_printf(a, "cmp '%s' '%s.read'", one, pipe)));
    }
    TensorFile *f = tensors_open(a, one);
    float x[48] = {1};
    EXPECT(f->count == 28 && tensors_find(f, "h.1.ln_1.bias"));
    tensors_read(f, tensors_get(f, "h.1.ln_1.bias"), F32, false, x);
    EXPECT(x[0] == 0);
    tensors_read(f, tensors_get(f, "h.1.ln_2.bias"), F32, false, x);
    EXPECT(x[47] == 47);
}

/* Another vocabulary than the plan's, cut over the ranks, is no padding. */
static int load_smaller(tn_context *c, void *arg)
{
    const char *const *path = arg;
    Run r;
    tn_model *smaller;
    if (!run_begin(&r, c, &(Form){GPT2, "fsdp=2", NULL, NULL, 0}, path[0], NULL) ||
        !good(c, tn_model_open(c, path[1], &smaller), path[1]))
        return 1;
    expect(tn_program_load(r.x, smaller, &r.o) == TN_CODE_FAIL, __LINE__, "a smaller vocabulary");
    return 0;
}

static void test_smaller(void)
{
    char *config = arena_strdup(a, GPT2), *vocab = strstr(config, "\"vocab_size\": ");
    const char *path[] = {write_config(GPT2), in_dir("smaller.json")};
    CHECK(vocab);
    vocab[strlen("\"vocab_size\": ")] = '1';
    file_write(&ctx, path[1], config, strlen(config));
    EXPECT(!tn_ranks_run(2, 60, load_smaller, path));
}

/* A checkpoint that was checked is loaded without a second look at its checksums, unless a file of
 * it was written to since. */
static void test_checked(void)
{
    const char *from = in_dir("checked/step-1"), *path = in_dir("checked/step-1/model.safetensors");
    const Form one = {GPT2, "", NULL, NULL, 0};
    ssize_t nread[2];
    struct stat st;
    make_reference(&one, write_config(GPT2), from);
    CHECK(!stat(path, &st));
    for (int checked = 0; checked < 2; checked++) {
        tn_context *c = tn_context_new();
        tn_model *m;
        Run r;
        begin_faults(-1);
        EXPECT(!checked || !tn_checkpoint_check(c, from));
        bytes_read = 0;
        EXPECT(run_begin(&r, c, &one, from, NULL));
        nread[checked] = bytes_read;
        int fd = open(path, O_RDWR);
        char last;
        CHECK(fd >= 0 && pread(fd, &last, 1, st.st_size - 1) == 1);
        last ^= 1;
        CHECK(pwrite(fd, &last, 1, st.st_size - 1) == 1);
        EXPECT(!tn_model_open(c, from, &m));
        EXPECT(tn_program_load(r.x, m, &r.o) == TN_CODE_FAIL && strstr(tn_error(c), "checksum"));
        last ^= 1;
        CHECK(pwrite(fd, &last, 1, st.st_size - 1) == 1 && !close(fd));
        tn_context_free(c);
    }
    if (!EXPECT(nread[0] - nread[1] > st.st_size / 2))
        printf("  read %zd, and %zd after the check, of %zd bytes\n", nread[0], nread[1],
               (ssize_t)st.st_size);
}

static void (*const tests[])(void) = {test_forms,     test_failures, test_memory,
                                      test_gradients, test_smaller,  test_checked};

int main(void)
{
    if (!getenv("TN_LONG"))
        stride = 3;
    return test_in_folder(tests, LEN(tests));
}
