/* Folders that appear as a whole: each is written under another name, synced and renamed. */
#define _GNU_SOURCE /* renameat2 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void folder_sync(Ctx *ctx, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int why = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (why)
        fail(ctx, TN_FAIL, "%s: cannot sync: %s", path, strerror(why));
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path) && errno != ENOENT;
}

int folder_remove(const char *path)
{
    return nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS) && errno != ENOENT ? -1 : 0;
}

void folder_drop(void *path)
{
    folder_remove(path);
}

/* An earlier folder of that name is exchanged as a whole, so that at every moment one is there;
 * where the file system cannot, it is moved out of the way first. */
void folder_put(Arena *a, const char *aside, const char *path)
{
    char *old = arena_printf(a, "%s.old", aside);
    if (!rename(aside, path) || !renameat2(AT_FDCWD, aside, AT_FDCWD, path, RENAME_EXCHANGE))
        return;
    bool moved = (errno == EINVAL || errno == ENOSYS) && !rename(path, old);
    if (!moved || rename(aside, path))
        fail(arena_ctx(a), TN_FAIL, "%s: cannot create: %s", path, strerror(errno));
    folder_remove(old);
}

void folders_make(Arena *a, const char *path)
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
