/* Files do not know the mesh: what ranks save is byte for byte what one rank saves, and any mesh
 * reads it. A rank that fails while all save fails all, and leaves what was there. */
#include "../src/api/api.h"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>

enum { BATCH = 24, SEQ = 8 };

/* ---- calls that fail on one rank ---- */

typedef enum { NO_FAULT, WRITE_FAILS, SYNC_FAILS, OPEN_FAILS, READ_LIES, RENAME_FAILS } Failure;

static struct {
    Failure fault;
    int rank, at; /* the call of that kind which fails, from 1 */
} inject;

static _Thread_local int this_rank = -1, ncalls;
static size_t most_memory; /* malloc's, while files are written */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool fails(Failure fault, int why)
{
    bool now = fault == inject.fault && this_rank == inject.rank && ++ncalls == inject.at;
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

static bool run_begin(Run *r, tn_context *c, const Form *f, const char *model)
{
    *r = (Run){.ctx = c, .o = tn_options_default()};
    r->o.mesh = *f->mesh ? f->mesh : NULL;
    r->o.rank = tn_rank(c);
    r->o.seed = 7;
    r->o.shard = f->shard;
    r->o.param_dtype = f->param_dtype ? f->param_dtype : "f32";
    r->o.backend = f->backend ? f->backend : "cpu";
    return good(c, tn_model_open(c, model, &r->m), model) &&
           good(c, tn_model_graph(r->m, BATCH, SEQ, &r->o, &r->g), f->mesh) &&
           good(c, tn_graph_passes(r->g, "default", &r->o, NULL, NULL), f->mesh) &&
           good(c, tn_plan_new(r->g, &r->o, 1, &r->p), f->mesh) &&
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
    nwhole = 0;
    begin_faults(-1);
    if (run_begin(&r, c, &one, model)) {
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
static const char *const ways[] = {"parallel", "stream"};

typedef struct Task {
    Form form;
    const char *from; /* folder with the weights and state; a config: they are drawn */
    const char *to;   /* "all": saves go to all-parallel/step-1 and so on; NULL: none */
    const char *said; /* saves fail, and every rank says so; NULL: they do not */
} Task;

static void do_save(const Run *r, const Task *t, const char *to)
{
    begin_faults(tn_rank(r->ctx));
    int code = tn_program_save(r->x, r->m, to, "{\"step\": 1}");
    begin_faults(-1);
    if (!t->said)
        good(r->ctx, code, to);
    else
        expect(code && strstr(tn_error(r->ctx), t->said), __LINE__, tn_error(r->ctx));
}

static int do_task(tn_context *c, void *arg)
{
    const Task *t = arg;
    Run r;
    bool drawn = strstr(t->from, ".json") != NULL;
    begin_faults(-1);
    if (!run_begin(&r, c, &t->form, t->from))
        return TN_CODE_FAIL;
    if (!drawn)
        good(c, tn_program_restore(r.x, t->from), t->form.mesh);
    check_parts(&r, !drawn);
    for (int w = 0; w < LEN(ways) && t->to; w++) {
        char to[200];
        snprintf(to, sizeof to, "%s-%s/step-1", t->to, ways[w]);
        if (!tn_rank(c)) /* which alone looks */
            setenv("TENON_SAVE", ways[w], 1);
        do_save(&r, t, to);
    }
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

static bool same_folders(const char *x, const char *y)
{
    return !system(arena_printf(a, "diff -r '%s' '%s' >&2", x, y));
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

/* Loads and restores, saves by each way, and draws. */
static void test_forms(void)
{
    for (int i = 0; i < LEN(forms); i++) {
        const Form *f = &forms[i];
        const char *config = write_config(f->config);
        fresh("one");
        make_reference(f, config, in_dir("one/step-1"));
        for (int w = 0; w < LEN(ways); w++)
            fresh(arena_printf(a, "all-%s", ways[w]));
        run_task(&(Task){.form = *f, .from = in_dir("one/step-1"), .to = in_dir("all")});
        for (int w = 0; w < LEN(ways); w++)
            if (!EXPECT(same_folders(in_dir("one"), in_dir(arena_printf(a, "all-%s", ways[w])))))
                printf("  %s, %s\n", f->mesh, ways[w]);
        run_task(&(Task){.form = *f, .from = config});
    }
}

static void (*const tests[])(void) = {test_forms};

int main(void)
{
    return test_in_folder(tests, LEN(tests));
}
