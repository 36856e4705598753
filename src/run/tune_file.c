/* The machine file that tn_tune makes, and its device. It grows aside: each save writes
 * PATH.part.new, syncs it and renames it to PATH.part, so that a process that is killed leaves what
 * it has measured, and PATH as it was; the next one goes on from there. A lock on PATH.lock, which
 * ends with the process, keeps two from measuring at once. Nothing else is left in the folder. */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the lock ---- */

static void unlock(void *arg)
{
    TuneFile *f = arg;
    if (f->lock < 0)
        return;
    unlink(f->lock_path); /* while it is held: who opened it before finds it gone */
    close(f->lock);
    f->lock = -1;
}

/* Whether the file that was locked is the one that is there. */
static bool is_there(const TuneFile *f)
{
    struct stat locked, now;
    return !fstat(f->lock, &locked) && !stat(f->lock_path, &now) && locked.st_ino == now.st_ino &&
           locked.st_dev == now.st_dev;
}

static void lock(TuneFile *f)
{
    Ctx *ctx = arena_ctx(f->a);
    f->lock = -1;
    arena_defer(f->a, unlock, f);
    do {
        if (f->lock >= 0)
            close(f->lock);
        f->lock = open(f->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (f->lock < 0)
            fail(ctx, TN_FAIL, "%s: cannot create: %s", f->lock_path, strerror(errno));
        if (flock(f->lock, LOCK_EX | LOCK_NB)) {
            int why = errno;
            close(f->lock);
            f->lock = -1; /* perhaps another's, to be left there */
            if (why == EWOULDBLOCK)
                fail(ctx, TN_FAIL, "%s: another `tenon tune` is measuring for this file", f->path);
            fail(ctx, TN_FAIL, "%s: cannot lock: %s", f->lock_path, strerror(why));
        }
    } while (!is_there(f));
}

/* ---- what is there ---- */

/* NULL where there is none, or it cannot be read, which is kept as a warning. */
static Machine *read_old(TuneFile *f, const char *path)
{
    Ctx *ctx = arena_ctx(f->a);
    Machine *volatile m = NULL;
    struct stat st;
    if (stat(path, &st))
        return NULL;
    TRY(t, ctx)
        m = machine_copy(f->a, machine_of_file(f->a, path, &f->to));
    if (tried(&t))
        f->warning = arena_printf(f->a, "%s\n  the file is not gone on from", ctx->message);
    return m;
}

/* Fails where the path is no regular file, or the user has named it and it is not a machine's. */
static void check_old(const TuneFile *f, bool named)
{
    struct stat st;
    Arena *a = f->a;
    if (stat(f->path, &st))
        return;
    if (!S_ISREG(st.st_mode))
        fail(arena_ctx(a), TN_FAIL, "%s: not a regular file", f->path);
    if (named)
        machine_of_file(a, f->path, &f->to);
}

static Machine *new_machine(Arena *a, const TunedFor *to)
{
    bool gpu = device_is_gpu(to->device);
    const char *row = gpu ? gpu_row(a, to->device, to->number) : "none";
    Machine *m = machine_copy(a, machine_get(a, row, to->nthread));
    m->name = TUNED;
    if (gpu)
        machine_set_ways_for(m, 0, gpu_library(a, to->number));
    return m;
}

/* ---- opening and saving ---- */

static const char *find_path(Arena *a, const char *path, const TunedFor *to)
{
    if (!path)
        path = cache_path(a, to);
    else if (!*path)
        fail(arena_ctx(a), TN_USAGE, "expected a path for the file, found \"\"");
    if (!path)
        fail(
            arena_ctx(a), TN_USAGE,
            "no folder for the file: none of TENON_CACHE, XDG_CACHE_HOME and HOME says where; name "
            "it");
    if (strlen(path) > 4000)
        fail(arena_ctx(a), TN_FAIL, "%.200s...: path too long", path);
    return path;
}

static void make_folder(Arena *a, const char *path)
{
    const char *end = strrchr(path, '/');
    char *folder = arena_strndup(a, path, end ? (size_t)(end - path) : 0);
    for (char *s = folder + 1; *folder && *s; s++) {
        if (*s != '/')
            continue;
        *s = 0;
        mkdir(folder, 0777);
        *s = '/';
    }
    if (*folder && mkdir(folder, 0777) && errno != EEXIST)
        fail(arena_ctx(a), TN_FAIL, "%s: cannot create: %s", folder, strerror(errno));
}

TuneFile *tune_open(Arena *a, const char *path, const TunedFor *to)
{
    TuneFile *f = NEW(a, TuneFile);
    f->a = a;
    f->tmp = arena_tmp(a);
    f->to = *to;
    f->path = find_path(a, path, to);
    f->part = arena_printf(a, "%s.part", f->path);
    f->aside = arena_printf(a, "%s.new", f->part);
    f->lock_path = arena_printf(a, "%s.lock", f->path);
    check_old(f, path);
    if (!path)
        make_folder(a, f->path);
    lock(f);
    f->machine = read_old(f, f->part);
    f->goes_on = f->machine;
    if (!f->machine)
        f->machine = read_old(f, f->path);
    if (!f->machine)
        f->machine = new_machine(a, to);
    tune_save(f); /* what cannot be written is known before anything is measured */
    return f;
}

static bool write_all(int fd, const char *text, size_t len)
{
    while (len) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno != EINTR)
            return false;
        text += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

void tune_save(TuneFile *f)
{
    Buf b = {.a = f->tmp};
    buf_printf(&b, "# made by tenon tune, tenon %s\n", TN_VERSION);
    machine_print(&b, f->machine);
    int fd = file_create_aside(f->aside), why = errno;
    bool good = fd >= 0 && write_all(fd, b.text, b.len) && !fsync(fd);
    why = good || fd < 0 ? why : errno;
    if (fd >= 0 && close(fd) && good) {
        good = false;
        why = errno;
    }
    if (good && rename(f->aside, f->part)) {
        good = false;
        why = errno;
    }
    arena_reset(f->tmp);
    if (good)
        return;
    unlink(f->aside);
    fail(arena_ctx(f->a), TN_FAIL, "%s: cannot write: %s", f->path, strerror(why));
}

void tune_end(TuneFile *f)
{
    tune_save(f);
    if (rename(f->part, f->path))
        fail(arena_ctx(f->a), TN_FAIL, "%s: cannot create: %s", f->path, strerror(errno));
}

/* ---- for what it is ---- */

TunedFor tune_for(Ctx *ctx, const tn_options *o)
{
    TunedFor to = {device_get(ctx, o ? o->backend : NULL), o ? (int)o->device : 0, par_threads()};
    const Driver *d = driver_of(to.device);
    if (to.number && !device_is_gpu(to.device))
        fail(ctx, TN_USAGE, "--device %d: expected --backend cuda, found %s", to.number,
             to.device->name);
    if (d->ready)
        d->ready(ctx, to.number);
    if (device_is_gpu(to.device) && !gpu_library(memo_arena(ctx), to.number))
        fail(ctx, TN_FAIL,
             "--backend cuda: expected cuBLASLt, found none (LD_LIBRARY_PATH says where to look)");
    return to;
}

TunedFor tune_for_steps(Ctx *ctx, const tn_tune_step *steps, int count, const tn_tune_options *o)
{
    TunedFor to = tune_for(ctx, steps[0].options);
    for (int i = 1; i < count; i++) {
        const tn_options *x = steps[i].options;
        if (device_get(ctx, x->backend) != to.device || x->device != to.number)
            fail(ctx, TN_USAGE, "step %d is for another device than the first: each has a file",
                 i + 1);
    }
    if (o->cpu && device_is_gpu(to.device))
        fail(ctx, TN_USAGE, "what a GPU takes is no CPU time");
    return to;
}

/* o NULL: of the processor. */
static int find_path_for(tn_context *ctx, const tn_options *o, const char **path)
{
    *path = NULL;
    TRY(t, &ctx->ctx) {
        TunedFor to = tune_for(t.ctx, o);
        *path = cache_path(memo_arena(t.ctx), &to);
    }
    return tried(&t);
}

int tn_tune_path(tn_context *ctx, const char **path)
{
    if (!GIVEN(ctx, ctx, path))
        return TN_CODE_USAGE;
    return find_path_for(ctx, NULL, path);
}

int tn_tune_path_for(tn_context *ctx, const tn_options *options, const char **path)
{
    if (!GIVEN(ctx, ctx, options, path) || !args_options(ctx, __func__, options))
        return TN_CODE_USAGE;
    return find_path_for(ctx, options, path);
}
