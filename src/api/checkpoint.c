/* Checkpoints: a folder in Hugging Face's layout with the optimizer's state and what a run needs to
 * go on. It is written aside, synced and renamed, and the link `latest` is replaced last, so that
 * whatever happens there is a whole one. */
#define _GNU_SOURCE /* renameat2 */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct SaveArgs {
    tn_program *x;
    tn_model *m;
    Arena *a;
    const char *folder, *state;
    const char *parent, *name, *aside; /* the folder's parent and name; where it is written first */
} SaveArgs;

static void write_role(const SaveArgs *s, Role role, const char *file)
{
    const Plan *p = s->x->x->plan;
    TensorOut *out = NEWN(s->a, TensorOut, p->nin);
    int n = 0;
    for (int i = 0; i < p->nin; i++)
        if (p->in[i].role == role)
            out[n++] = (TensorOut){p->in[i].name, p->in[i].type, program_data(s->x->x, &p->in[i])};
    tensors_write(arena_ctx(s->a), arena_printf(s->a, "%s/%s", s->aside, file), n, out);
}

static void write_text(const SaveArgs *s, const char *text, const char *file)
{
    file_write(arena_ctx(s->a), arena_printf(s->a, "%s/%s", s->aside, file), text, strlen(text));
}

static void sync_folder(Ctx *ctx, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int why = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (why)
        fail(ctx, TN_FAIL, "%s: cannot sync: %s", path, strerror(why));
}

static void remove_folder(const char *path)
{
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "state.json"};
    char file[PATH_MAX];
    for (int i = 0; i < LEN(files); i++)
        if (snprintf(file, sizeof file, "%s/%s", path, files[i]) < (int)sizeof file)
            unlink(file);
    rmdir(path);
}

static void drop_folder(void *path)
{
    remove_folder(path);
}

/* An earlier folder of that name is exchanged as a whole, so that at every moment one is there;
 * where the file system cannot, it is moved out of the way first. */
static void put_in_place(const SaveArgs *s)
{
    char *old = arena_printf(s->a, "%s.old", s->aside);
    if (!rename(s->aside, s->folder) ||
        !renameat2(AT_FDCWD, s->aside, AT_FDCWD, s->folder, RENAME_EXCHANGE))
        return;
    bool moved = (errno == EINVAL || errno == ENOSYS) && !rename(s->folder, old);
    if (!moved || rename(s->aside, s->folder))
        fail(arena_ctx(s->a), TN_FAIL, "%s: cannot create: %s", s->folder, strerror(errno));
    remove_folder(old);
}

static void make_folders(Arena *a, const char *path)
{
    char *part = arena_strdup(a, path);
    for (char *end = part;;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char after = *end;
        *end = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            fail(arena_ctx(a), TN_FAIL, "%s: cannot create: %s", part, strerror(errno));
        if (!after)
            return;
        *end = after;
    }
}

static void replace_latest(const SaveArgs *s)
{
    Ctx *ctx = arena_ctx(s->a);
    const char *link = arena_printf(s->a, "%s/latest", s->parent);
    const char *aside = arena_printf(s->a, "%s/.latest.tmp%ld", s->parent, (long)getpid());
    unlink(aside);
    if (symlink(s->name, aside) || rename(aside, link)) {
        int why = errno;
        unlink(aside);
        fail(ctx, TN_FAIL, "%s: cannot replace: %s", link, strerror(why));
    }
    sync_folder(ctx, s->parent);
}

static void split_path(SaveArgs *s)
{
    size_t len = strlen(s->folder);
    while (len > 1 && s->folder[len - 1] == '/')
        len--;
    s->folder = arena_strndup(s->a, s->folder, len);
    const char *slash = strrchr(s->folder, '/');
    s->name = slash ? slash + 1 : s->folder;
    s->parent = !slash ? "." : arena_strndup(s->a, s->folder, (size_t)MAX(slash - s->folder, 1));
}

static void save(void *arg)
{
    SaveArgs *s = arg;
    Ctx *ctx = arena_ctx(s->a);
    split_path(s);
    make_folders(s->a, s->parent);
    char *aside = arena_printf(s->a, "%s/.%s.tmp%ld", s->parent, s->name, (long)getpid());
    remove_folder(aside); /* of a process that was killed */
    if (mkdir(aside, 0777))
        fail(ctx, TN_FAIL, "%s: cannot create: %s", s->folder, strerror(errno));
    s->aside = aside;
    arena_defer(s->a, drop_folder, aside); /* what failed, or what was there before */
    write_text(s, config_text(s->a, &s->m->config), "config.json");
    write_role(s, ROLE_PARAM, "model.safetensors");
    write_role(s, ROLE_STATE, "optimizer.safetensors");
    write_text(s, s->state, "state.json");
    sync_folder(ctx, aside);
    put_in_place(s);
    replace_latest(s);
}

int tn_program_save(tn_program *x, tn_model *m, const char *folder, const char *state)
{
    SaveArgs s = {.x = x, .m = m, .folder = folder, .state = state};
    return try_aside(x->h.owner, &s.a, save, &s);
}

/* ---- before training ---- */

typedef struct FolderArgs {
    Arena *a;
    const char *path;
} FolderArgs;

static void try_folder(void *arg)
{
    FolderArgs *x = arg;
    make_folders(x->a, x->path);
    const char *probe = arena_printf(x->a, "%s/.probe.tmp%ld", x->path, (long)getpid());
    int fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        fail(arena_ctx(x->a), TN_FAIL, "%s: cannot write there: %s", x->path, strerror(errno));
    close(fd);
    unlink(probe);
}

int tn_folder_make(tn_context *ctx, const char *path)
{
    FolderArgs x = {NULL, path};
    return try_aside(ctx, &x.a, try_folder, &x);
}
