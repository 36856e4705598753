/* Companions: files beside a model's weights that training does not change but that a loader of a
 * checkpoint needs: the tokenizer's, and settings of generation. They are opened with the model and
 * copied into each checkpoint, so that they remain when their folder, an older checkpoint, is
 * removed. */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
};

bool companion_is(const char *name)
{
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static void drop_companion(void *c)
{
    close(((Companion *)c)->fd);
}

/* The companion of a name, replacing one of that name, if the file is there. */
static void take(tn_model *m, const char *path, const char *name)
{
    Ctx *ctx = &m->h.owner->ctx;
    struct stat st;
    file_check_link(ctx, path);
    if (stat(path, &st) && errno == ENOENT)
        return;
    int64_t nbytes;
    int fd = file_open_regular(ctx, path, &nbytes);
    Companion *c = NEW(m->h.a, Companion), **at = &m->companion;
    *c = (Companion){name, fd, NULL};
    arena_defer(m->h.a, drop_companion, c);
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    c->next = *at ? (*at)->next : NULL;
    *at = c;
}

void companions_open(tn_model *m, const char *folder)
{
    for (int i = 0; i < LEN(names); i++)
        take(m, arena_printf(m->h.a, "%s/%s", folder, names[i]), names[i]);
}

/* Returns 0, or -1 with errno. */
static int copy_file(int from, int to)
{
    char chunk[65536];
    ssize_t n;
    for (off_t at = 0; (n = pread(from, chunk, sizeof chunk, at)) > 0; at += n)
        for (ssize_t done = 0, part; done < n; done += part)
            if ((part = write(to, chunk + done, (size_t)(n - done))) < 0)
                return -1;
    return n < 0 ? -1 : fsync(to);
}

static void write_companion(Ctx *ctx, const Companion *c, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool bad = fd < 0 || copy_file(c->fd, fd);
    int why = errno;
    if (fd >= 0 && close(fd) && !bad) {
        bad = true;
        why = errno;
    }
    if (bad)
        fail(ctx, TN_FAIL, "%s: cannot write: %s", path, strerror(why));
}

void companions_write(const tn_model *m, Arena *a, const char *folder)
{
    for (const Companion *c = m->companion; c; c = c->next)
        write_companion(arena_ctx(a), c, arena_printf(a, "%s/%s", folder, c->name));
}

void companions_sizes(const tn_model *m, FileSizes *sizes)
{
    struct stat st;
    for (const Companion *c = m->companion; c; c = c->next)
        if (!fstat(c->fd, &st))
            sizes_add(sizes, st.st_size);
}

/* Lets go of the files of the model's own tokenizer: another's do not go with them. Ids that end
 * generation stay unless the other has its own. */
static void leave_tokenizer(tn_model *m)
{
    for (Companion **at = &m->companion; *at;)
        if (strcmp((*at)->name, "generation_config.json") != 0)
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

static void take_tokenizer(tn_model *m, const char *path)
{
    struct stat st;
    const char *folder = model_folder(m->h.a, path);
    if (folder || (!stat(path, &st) && S_ISDIR(st.st_mode))) {
        leave_tokenizer(m);
        companions_open(m, folder ? folder : path);
    } else
        take(m, path, names[0]);
}

int tn_model_tokenizer(tn_model *m, const char *path)
{
    if (!GIVEN(args_owner(m), m, path))
        return TN_CODE_USAGE;
    TRY(t, &m->h.owner->ctx)
        take_tokenizer(m, path);
    return tried(&t);
}
