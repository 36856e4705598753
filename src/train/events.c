/* Writes the metrics of a run as event files for TensorBoard, whose records event_record.c makes.
 *
 * Each process that goes on with a run begins a file of its own, named by the second and the run's
 * id; what earlier files have beyond the checkpoint is cut off, and a first event tells a reader
 * that is watching to drop it. So the folder has each step once. Files of other runs, which would
 * be drawn as one with this one's, are moved to a folder beside. */
#define _GNU_SOURCE /* O_NOFOLLOW */
#include "trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char marked[] = "tfevents"; /* in the name of each such file */

/* ---- writing ---- */

static int flush(const Trainer *r)
{
    if (!fflush(r->events.file))
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot write: %s", r->events.path,
                           strerror(errno));
}

int events_write(Trainer *r, const MetricsLine *l)
{
    const EventMessage m = event_of(l);
    event_write(r->events.file, &m);
    return flush(r);
}

/* The first records: the version by which readers know the file, and of a run that goes on that
 * what they have from that step on is no more. */
static int write_head(const Trainer *r)
{
    EventMessage m = event_version();
    event_write(r->events.file, &m);
    if (r->t->resume) {
        m = event_restart(r->t->resume->step + 1);
        event_write(r->events.file, &m);
    }
    return flush(r);
}

/* ---- files of a folder ---- */

static int fail_file(const Trainer *r, const char *path, const char *what)
{
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot %s: %s", path, what, strerror(errno));
}

static bool is_events(const char *name)
{
    return strstr(name, marked) != NULL;
}

static bool is_own(const Trainer *r, const char *name)
{
    const char *dot = strrchr(name, '.');
    return is_events(name) && dot && *r->folder.run && !strcmp(dot + 1, r->folder.run);
}

/* Whether a record at `at` that cannot be read is torn: zeros fill the file from within its head,
 * or from within what it says that it has (nbytes, 0: its head is not whole), to the end. */
static bool is_torn(FILE *f, off_t at, size_t nbytes)
{
    enum { HEAD = 12 };
    const off_t last = at + (off_t)(nbytes ? EVENT_FRAME + nbytes : HEAD);
    off_t zeros = at, here = at; /* from `zeros` on there is nothing else */
    bool any = false;
    if (fseeko(f, at, SEEK_SET))
        return false;
    for (int c; (c = getc(f)) != EOF; here++) {
        any = !c;
        zeros = c ? here + 1 : zeros;
    }
    return any && !ferror(f) && zeros <= last;
}

/* The bytes of a file's records that the run keeps when it goes on. */
static int find_kept(Trainer *r, FILE *f, const char *path, off_t *nbytes)
{
    EventMessage m;
    MetricsKey k;
    int code;
    bool evaluated = false, all = true;
    *nbytes = 0;
    while (all && (code = event_read(f, &m))) {
        if (code < 0 && is_torn(f, *nbytes, m.n))
            break; /* torn, and filled up by the file system */
        if (code < 0 || !event_key(m.byte, m.n, &k))
            return tn_context_fail(r->ctx, TN_CODE_FAIL,
                                   "%s: at byte %" PRId64 ": expected a record of events", path,
                                   (int64_t)*nbytes);
        all = metrics_stays(r, &k, &evaluated);
        *nbytes += all ? (off_t)(EVENT_FRAME + m.n) : 0;
    }
    r->events.evaluated |= evaluated;
    return 0;
}

/* Writes the first bytes of a file to one that is not there yet. */
static int copy_bytes(const Trainer *r, FILE *f, const char *to, off_t nbytes)
{
    FILE *out = fopen(to, "wbx");
    if (!out)
        return fail_file(r, to, "create");
    rewind(f);
    for (int c; nbytes-- && (c = getc(f)) != EOF;)
        putc(c, out);
    return fclose(out) ? fail_file(r, to, "write") : 0;
}

/* Cuts a file to what is kept, or copies that where `to` is another folder. */
static int keep_file(Trainer *r, const char *path, const char *to)
{
    off_t nbytes;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r+b");
    if (!f)
        return fail_file(r, path, "open");
    int code = to ? 0 : lock_file(r->ctx, fd, path);
    if (!code)
        code = find_kept(r, f, path, &nbytes);
    if (!code && to)
        code = copy_bytes(r, f, to, nbytes);
    else if (!code && ftruncate(fd, nbytes))
        code = fail_file(r, path, "cut");
    fclose(f);
    return code;
}

/* Moves a file of another run, if that is not writing it. */
static int move_file(const Trainer *r, const char *path, const char *to)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int code = fd < 0 ? 0 : lock_file(r->ctx, fd, path);
    if (!code && rename(path, to))
        code = fail_file(r, path, "move");
    if (fd >= 0)
        close(fd);
    return code;
}

static int join_path(const Trainer *r, char path[CHECKPOINT_PATH], const char *folder,
                     const char *name)
{
    if (snprintf(path, CHECKPOINT_PATH, "%s/%s", folder, name) < CHECKPOINT_PATH)
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", folder);
}

/* Files of this run are cut, or copied from an original's folder; others go aside. */
typedef struct Folder {
    const char *path, *copy;     /* copy: a folder, or NULL */
    char aside[CHECKPOINT_PATH]; /* "": not made yet */
} Folder;

static int treat_other(const Trainer *r, Folder *d, const char *path, const char *name)
{
    char to[CHECKPOINT_PATH];
    int code = 0;
    if (!*d->aside) {
        code = path_aside(r->ctx, d->path, d->aside);
        if (!code && mkdir(d->aside, 0777))
            code = fail_file(r, d->aside, "create");
        if (!code)
            fprintf(r->log,
                    "tenon: note: the event files of another run that were in %s are now in %s\n",
                    d->path, d->aside);
    }
    if (!code)
        code = join_path(r, to, d->aside, name);
    return code ? code : move_file(r, path, to);
}

static int treat_file(Trainer *r, Folder *d, const char *name)
{
    char path[CHECKPOINT_PATH], to[CHECKPOINT_PATH];
    int code = join_path(r, path, d->path, name);
    if (code || !is_events(name))
        return code;
    if (!r->t->resume || !is_own(r, name))
        return d->copy ? 0 : treat_other(r, d, path, name);
    if (d->copy)
        code = join_path(r, to, d->copy, name);
    return code ? code : keep_file(r, path, d->copy ? to : NULL);
}

static int treat_folder(Trainer *r, const char *path, const char *copy)
{
    Folder d = {.path = path, .copy = copy};
    DIR *dir = opendir(path);
    int code = 0;
    if (!dir)
        return errno == ENOENT ? 0 : fail_file(r, path, "open");
    for (struct dirent *e; !code && (e = readdir(dir));)
        code = treat_file(r, &d, e->d_name);
    closedir(dir);
    return code;
}

/* ---- the run's own file ---- */

/* Seconds in the name of the last file of the run; 0: there is none. Readers take files by name. */
static int64_t last_named(const Trainer *r, const char *folder)
{
    DIR *dir = opendir(folder);
    int64_t last = 0, sec;
    if (!dir)
        return 0;
    for (struct dirent *e; (e = readdir(dir));)
        if (is_own(r, e->d_name) && sscanf(e->d_name, "events.out.tfevents.%" SCNd64, &sec) == 1)
            last = sec > last ? sec : last;
    closedir(dir);
    return last;
}

static int begin_file(Trainer *r, const char *folder)
{
    char name[100];
    int64_t now = (int64_t)time(NULL), last = last_named(r, folder);
    snprintf(name, sizeof name, "events.out.tfevents.%010" PRId64 ".%s",
             now > last ? now : last + 1, r->folder.run);
    int code = join_path(r, r->events.path, folder, name);
    if (code)
        return code;
    int fd = open(r->events.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    r->events.file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!r->events.file)
        return fail_file(r, r->events.path, "create");
    code = lock_file(r->ctx, fd, r->events.path);
    return code ? code : write_head(r);
}

static bool has_own(const Trainer *r, const char *folder)
{
    return last_named(r, folder) > 0;
}

int events_check(const Trainer *r)
{
    char folder[CHECKPOINT_PATH];
    const char *path = r->t->tensorboard;
    struct stat st;
    if (!path)
        return 0;
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash; stat(folder, &st) && errno == ENOENT && strcmp(folder, ".") != 0;) {
        slash = strrchr(folder, '/'); /* the nearest folder above that is there */
        snprintf(slash ? slash + (slash == folder) : folder, 2, "%s", slash ? "" : ".");
    }
    errno = stat(folder, &st) ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (!errno && !access(folder, W_OK | X_OK))
        return 0;
    return fail_file(r, path, "create");
}

/* A folder within the run's, which may be someone else's, is not one that a link names. */
static int check_plain(const Trainer *r, const char *path)
{
    struct stat st;
    if (!metrics_inside(r, path) || lstat(path, &st) || S_ISDIR(st.st_mode))
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "%s: not a folder, in the run's folder: it is not written to", path);
}

/* The events of a copy go on in its folder, where the original may go on with its own. */
static int leave_original(Trainer *r, const char *path, char own[CHECKPOINT_PATH])
{
    int code = join_path(r, own, r->t->out, "tensorboard");
    if (code)
        return code;
    fprintf(r->log,
            "tenon: note: %s has the events of the run that this is a copy of; those of the copy "
            "go to %s\n",
            path, own);
    code = check_plain(r, own);
    bool there = !access(own, F_OK);
    if (!code)
        code = tn_folder_make(r->ctx, own);
    if (!code)
        code = there ? treat_folder(r, own, NULL) : treat_folder(r, path, own);
    json_object_set_new(r->t->described, "tensorboard", json_string(own));
    return code;
}

int open_events(Trainer *r)
{
    char own[CHECKPOINT_PATH], to[CHECKPOINT_PATH];
    const char *path = r->t->tensorboard;
    const bool stored = r->t->tensorboard_stored;
    if (path)
        path = metrics_moved(r, path, stored, has_own, "tensorboard", to);
    if (!path || !metrics_claim(r, path, stored, has_own, "event files", "--tensorboard"))
        return 0;
    int code = check_plain(r, path);
    if (!code && r->t->resume && metrics_original(r, path)) {
        code = leave_original(r, path, own);
        return code ? code : begin_file(r, own);
    }
    if (!code)
        code = tn_folder_make(r->ctx, path);
    if (!code)
        code = treat_folder(r, path, NULL);
    return code ? code : begin_file(r, path);
}
