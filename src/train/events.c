/* Writes the metrics of a run as event files for TensorBoard. A file is a sequence of records (the
 * framing of TFRecord: length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes),
 * each of which is a message Event of protocol buffers, encoded here by hand: wall_time (1),
 * step (2), and one of file_version (3), summary (5) and session_log (7). A summary has a value for
 * each metric: tag (1), simple_value (2).
 *
 * Each process that goes on with a run begins a file of its own, named by the second and the run's
 * id; what earlier files have beyond the checkpoint is cut off, and a first event tells a reader
 * that is watching to drop it. So the folder has each step once. Files of other runs, which would
 * be drawn as one with this one's, are moved to a folder beside. A torn last record is no record.
 */
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

/* ---- messages of protocol buffers ---- */

enum { MESSAGE = 4096, HEAD = 12, TAIL = 4 };             /* bytes */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* how a field's value is stored */

typedef struct EventMessage {
    unsigned char byte[MESSAGE];
    size_t n;
} EventMessage;

static void put_bytes(EventMessage *m, const void *data, size_t n)
{
    if (n > sizeof m->byte - m->n)
        return; /* it cannot be: MOST_METRICS values fit */
    memcpy(m->byte + m->n, data, n);
    m->n += n;
}

/* The least significant byte first, as processors here store numbers. */
static void put_varint(EventMessage *m, uint64_t x)
{
    unsigned char byte;
    for (; x >= 0x80; x >>= 7) {
        byte = (unsigned char)(x | 0x80);
        put_bytes(m, &byte, 1);
    }
    byte = (unsigned char)x;
    put_bytes(m, &byte, 1);
}

static void put_key(EventMessage *m, unsigned field, unsigned how)
{
    put_varint(m, field << 3 | how);
}

static void put_string(EventMessage *m, unsigned field, const void *data, size_t n)
{
    put_key(m, field, BYTES);
    put_varint(m, n);
    put_bytes(m, data, n);
}

static EventMessage event_begin(int64_t step)
{
    EventMessage m = {.n = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double sec = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(&m, 1, FIXED64);
    put_bytes(&m, &sec, sizeof sec);
    put_key(&m, 2, VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

/* A summary of the values that are known. */
static EventMessage event_of(const MetricsLine *l)
{
    EventMessage m = event_begin(l->step), all = {.n = 0};
    for (int i = 0; i < l->count; i++) {
        const Metric *x = &l->list[i];
        EventMessage one = {.n = 0};
        float value = x->whole ? (float)x->integer : (float)x->real;
        if (!isfinite(value))
            continue;
        put_string(&one, 1, x->name, strlen(x->name));
        put_key(&one, 2, FIXED32);
        put_bytes(&one, &value, sizeof value);
        put_string(&all, 1, one.byte, one.n);
    }
    put_string(&m, 5, all.byte, all.n);
    return m;
}

/* ---- records ---- */

static uint32_t masked_sum(const void *data, size_t n)
{
    uint32_t sum = tn_crc32c(data, (int64_t)n);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

static void write_record(FILE *f, const EventMessage *m)
{
    uint64_t len = m->n;
    uint32_t of_len = masked_sum(&len, sizeof len), of_bytes = masked_sum(m->byte, m->n);
    fwrite(&len, sizeof len, 1, f);
    fwrite(&of_len, sizeof of_len, 1, f);
    fwrite(m->byte, 1, m->n, f);
    fwrite(&of_bytes, sizeof of_bytes, 1, f);
}

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
    write_record(r->events.file, &m);
    return flush(r);
}

/* The first records: the version by which readers know the file, and of a run that goes on that
 * what they have from that step on is no more. */
static int write_head(const Trainer *r)
{
    static const char version[] = "brain.Event:2";
    static const unsigned char started[] = {1 << 3 | VARINT, 1}; /* SessionLog.status: START */
    EventMessage m = event_begin(0);
    put_string(&m, 3, version, sizeof version - 1);
    write_record(r->events.file, &m);
    if (r->t->resume) {
        m = event_begin(r->t->resume->step + 1);
        put_string(&m, 7, started, sizeof started);
        write_record(r->events.file, &m);
    }
    return flush(r);
}

/* ---- records that are there ---- */

/* Reads a record; 0 at the end, also within a record, -1 where it is damaged. */
static int read_record(FILE *f, EventMessage *m)
{
    uint64_t len;
    uint32_t sum;
    if (fread(&len, sizeof len, 1, f) != 1 || fread(&sum, sizeof sum, 1, f) != 1)
        return 0;
    if (sum != masked_sum(&len, sizeof len) || len > sizeof m->byte)
        return -1;
    m->n = (size_t)len;
    if (fread(m->byte, 1, m->n, f) != m->n || fread(&sum, sizeof sum, 1, f) != 1)
        return 0;
    return sum == masked_sum(m->byte, m->n) ? 1 : -1;
}

typedef struct Cursor {
    const unsigned char *at, *end;
    bool good;
} Cursor;

static uint64_t take_varint(Cursor *c)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (c->at == c->end)
            break;
        x |= (uint64_t)(*c->at & 0x7f) << shift;
        if (!(*c->at++ & 0x80))
            return x;
    }
    c->good = false;
    return 0;
}

/* Takes a field's number; its value is a varint, in *x, or the bytes of *value. 0: there is none.
 */
static unsigned take_field(Cursor *c, uint64_t *x, Cursor *value)
{
    if (c->at == c->end || !c->good)
        return 0;
    uint64_t key = take_varint(c);
    unsigned how = (unsigned)(key & 7);
    uint64_t n = how == FIXED64 ? 8 : how == FIXED32 ? 4 : 0;
    if (how == VARINT || how == BYTES)
        *x = take_varint(c);
    if (how == BYTES)
        n = *x;
    c->good &= how == VARINT || how == BYTES || n;
    c->good &= n <= (uint64_t)(c->end - c->at);
    if (!c->good)
        return 0;
    *value = (Cursor){c->at, c->at + n, true};
    c->at += n;
    return (unsigned)(key >> 3);
}

/* Whether a summary has a value of that tag. */
static bool has_tag(Cursor summary, const char *tag)
{
    uint64_t x = 0;
    Cursor value, text;
    bool found = false;
    for (unsigned field; (field = take_field(&summary, &x, &value));)
        for (unsigned part; field == 1 && (part = take_field(&value, &x, &text));)
            found |= part == 1 && (size_t)(text.end - text.at) == strlen(tag) &&
                     !memcmp(text.at, tag, strlen(tag));
    return found;
}

static bool read_event(const EventMessage *m, MetricsKey *k)
{
    Cursor c = {m->byte, m->byte + m->n, true}, value;
    uint64_t x = 0;
    *k = (MetricsKey){0};
    for (unsigned field; (field = take_field(&c, &x, &value));) {
        if (field == 2)
            k->step = (int64_t)x;
        k->evaluation |= field == 5 && has_tag(value, "eval_loss");
    }
    return c.good;
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

/* The bytes of a file's records that the run keeps when it goes on. */
static int find_kept(Trainer *r, FILE *f, const char *path, off_t *nbytes)
{
    EventMessage m;
    MetricsKey k;
    int code;
    bool evaluated = false, all = true;
    *nbytes = 0;
    while (all && (code = read_record(f, &m))) {
        if (code < 0 || !read_event(&m, &k))
            return tn_context_fail(r->ctx, TN_CODE_FAIL,
                                   "%s: at byte %" PRId64 ": expected a record of events", path,
                                   (int64_t)*nbytes);
        all = metrics_stays(r, &k, &evaluated);
        *nbytes += all ? (off_t)(HEAD + m.n + TAIL) : 0;
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
    char own[CHECKPOINT_PATH];
    const char *path = r->t->tensorboard;
    if (!path ||
        !metrics_claim(r, path, r->t->tensorboard_stored, has_own, "event files", "--tensorboard"))
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
