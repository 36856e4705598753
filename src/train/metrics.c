/* Writes the metrics of a run, lines with the run's id (metrics_line.c). An existing file of
 * another run is renamed, never appended to or cut; one of the same run, resumed, is cut to its
 * step. One run at a time holds the file, by a lock. */
#include "trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one line ---- */

/* Whether it is the evaluation of the step that the run goes on from, which the file has. */
static bool has_line(const Trainer *r, const MetricsFile *m, int64_t step, const StepResult *s)
{
    return !s && step == r->first && m->evaluated;
}

static int write_line(Trainer *r, const MetricsLine *l)
{
    FILE *f = r->metrics.file;
    metrics_put(f, l, r->metrics.csv);
    if (!fflush(f))
        return 0;
    if (errno == EPIPE) {
        fprintf(r->log, "tenon: warning: %s: nobody reads the metrics any longer\n",
                r->metrics.path);
        if (f != stdout)
            fclose(f);
        r->metrics.file = NULL;
        return 0;
    }
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot write: %s", r->metrics.path,
                           strerror(errno));
}

int write_metrics(Trainer *r, int64_t step, const StepResult *s)
{
    if (!r->metrics.file && !r->events.file)
        return 0;
    const MetricsLine l = metrics_line(r, step, s);
    int code = 0;
    if (r->metrics.file && !has_line(r, &r->metrics, step, s))
        code = write_line(r, &l);
    if (!code && r->events.file && !has_line(r, &r->events, step, s))
        code = events_write(r, &l);
    return code;
}

/* ---- a file that is there already ---- */

static bool is_file(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && st.st_size;
}

static bool is_regular(FILE *f)
{
    struct stat st;
    return !fstat(fileno(f), &st) && S_ISREG(st.st_mode);
}

/* Metrics of another run are not lost. */
static int put_aside(const Trainer *r, const char *path)
{
    char aside[CHECKPOINT_PATH];
    int code = path_aside(r->ctx, path, aside);
    if (!code && rename(path, aside))
        code = tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot rename to %s: %s", path, aside,
                               strerror(errno));
    if (!code)
        fprintf(r->log, "tenon: note: the metrics that were in %s are now in %s\n", path, aside);
    return code;
}

/* The lines of a file that a run keeps when it goes on. */
typedef struct Kept {
    off_t nbytes; /* up to the first line that goes */
    bool own;     /* every line is of the run */
    bool evaluated;
} Kept;

int metrics_stays(const Trainer *r, const MetricsKey *k, bool *evaluated)
{
    int64_t step = r->t->resume->step;
    if (!k->evaluation || k->step != step)
        return k->step <= step;
    *evaluated = r->heldout.known || !resume_at_end(r->t);
    return *evaluated;
}

/* -1: not a line of metrics. */
static int stays(const Trainer *r, const char *line, size_t len, bool csv, Kept *kept)
{
    MetricsKey k;
    bool good = metrics_read(line, len, csv, &k);
    kept->own &= *k.run && !strcmp(k.run, r->folder.run);
    return good ? metrics_stays(r, &k, &kept->evaluated) : -1;
}

/* A last line without its end is torn and goes. */
static int find_kept(const Trainer *r, FILE *f, const char *path, Kept *kept)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    off_t at = 0;
    int stay = 1;
    bool all = true, csv = metrics_is_csv(path), any = false;
    *kept = (Kept){.own = true};
    while (stay >= 0 && (len = getline(&line, &cap, f)) > 0 && line[len - 1] == '\n') {
        bool evaluated = kept->evaluated, head = csv && !at;
        if (head)
            stay = metrics_is_head(line, (size_t)len) ? 1 : -1;
        else
            stay = stays(r, line, (size_t)len, csv, kept);
        any |= !head;
        all &= stay > 0;
        kept->nbytes += all ? len : 0;
        kept->evaluated = all ? kept->evaluated : evaluated;
        at += stay < 0 ? 0 : len;
    }
    free(line);
    kept->own &= any;
    if (stay >= 0)
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "%s: at byte %" PRId64 ": expected a line of metrics", path,
                           (int64_t)at);
}

static int fail_open(tn_context *ctx, const char *path)
{
    return tn_context_fail(ctx, TN_CODE_FAIL, "%s: cannot open: %s", path, strerror(errno));
}

/* Looks at a file that no other run may be writing to. */
static int look_at(const Trainer *r, const char *path, Kept *kept)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return fail_open(r->ctx, path);
    int code = lock_file(r->ctx, fileno(f), path);
    if (!code && r->t->resume)
        code = find_kept(r, f, path, kept);
    fclose(f);
    return code;
}

/* Cuts lines after the checkpoint from a file of the run's metrics. */
static int cut(Trainer *r, const char *path)
{
    Kept kept = {0};
    int code = look_at(r, path, &kept);
    if (code || !kept.own)
        return code ? code : put_aside(r, path);
    r->metrics.evaluated = kept.evaluated;
    if (truncate(path, kept.nbytes))
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot cut: %s", path, strerror(errno));
    return 0;
}

/* ---- the folder of the run ---- */

const char *metrics_parent(const char *path, char folder[CHECKPOINT_PATH])
{
    const char *slash = strrchr(path, '/');
    int len = !slash ? 0 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, CHECKPOINT_PATH, "%.*s", slash ? len : 1, slash ? path : ".");
    return folder;
}

bool metrics_inside(const Trainer *r, const char *path)
{
    char folder[CHECKPOINT_PATH], real[CHECKPOINT_PATH];
    size_t n = strlen(r->folder.path);
    return n && realpath(metrics_parent(path, folder), real) && !strncmp(real, r->folder.path, n) &&
           (!real[n] || real[n] == '/');
}

/* In the run's folder, which may be someone else's, nothing is written through a link, nor to what
 * is no file: the user has not seen it. */
static int check_plain(const Trainer *r, const char *path)
{
    struct stat st;
    if (!metrics_inside(r, path) || lstat(path, &st) || S_ISREG(st.st_mode))
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "%s: not a regular file, in the run's folder: it is not written to",
                           path);
}

/* Opens a file for lines that follow what it has, or, of a new run, for the first ones. */
static FILE *open_file(const Trainer *r, const char *path)
{
    int how = r->t->resume ? O_APPEND : O_TRUNC, fd;
    if (!metrics_inside(r, path))
        return fopen(path, r->t->resume ? "ab" : "wb");
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0666);
    return fd < 0 ? NULL : fdopen(fd, r->t->resume ? "ab" : "wb");
}

/* ---- a run that is a copy ---- */

/* Whether the folder is a copy of another, in which that run still is. */
static bool is_copy(const Trainer *r)
{
    const Resume *x = r->t->resume;
    const char *folder = json_string_value(json_object_get(x->state, "folder"));
    char id[RUN_ID];
    struct stat here, there;
    return folder && !stat(folder, &there) && !stat(r->t->out, &here) &&
           (here.st_dev != there.st_dev || here.st_ino != there.st_ino) &&
           run_of_folder(folder, id) && *x->run && !strcmp(id, x->run);
}

/* The originals' metrics and folders of events, which the copy's checkpoints name from then on. */
static void add_original(Trainer *r, const char *option)
{
    const json_t *options = json_object_get(r->t->resume->state, "options");
    const char *before = json_string_value(json_object_get(options, option));
    char path[CHECKPOINT_PATH];
    if (!before || !realpath(before, path))
        return;
    if (!json_is_array(r->metrics.originals)) {
        json_decref(r->metrics.originals);
        r->metrics.originals = json_array();
    }
    json_array_append_new(r->metrics.originals, json_string(path));
}

static void find_originals(Trainer *r)
{
    const json_t *state = r->t->resume->state;
    r->metrics.originals = json_deep_copy(json_object_get(state, "originals"));
    if (!is_copy(r))
        return;
    add_original(r, "metrics");
    add_original(r, "tensorboard");
}

bool metrics_original(const Trainer *r, const char *path)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(r->metrics.originals); i++) {
        const char *original = json_string_value(json_array_get(r->metrics.originals, i));
        found |= original && path_same(path, original);
    }
    return found;
}

/* Copies what is kept of a file into one that is not there yet. */
static int copy_kept(Trainer *r, const char *path, const char *to)
{
    Kept kept = {0};
    FILE *f = fopen(path, "rb"), *out = NULL;
    int code = f ? find_kept(r, f, path, &kept) : fail_open(r->ctx, path);
    if (!code && !(out = fopen(to, "wb")))
        code = fail_open(r->ctx, to);
    if (!code && kept.own) {
        rewind(f);
        r->metrics.evaluated = kept.evaluated;
        for (int c; kept.nbytes-- && (c = getc(f)) != EOF;)
            putc(c, out);
    }
    if (out && fclose(out) && !code)
        code = tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot write: %s", to, strerror(errno));
    if (f)
        fclose(f);
    return code;
}

/* The metrics of a copy go on in its folder, where the original may go on with its own file. */
static int leave_original(Trainer *r)
{
    char own[CHECKPOINT_PATH];
    const char *path = r->metrics.path, *slash = strrchr(path, '/');
    if (snprintf(own, sizeof own, "%s/%s", r->t->out, slash ? slash + 1 : path) >= (int)sizeof own)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", r->t->out);
    fprintf(r->log,
            "tenon: note: %s has the metrics of the run that this is a copy of; those of the copy "
            "go to %s\n",
            path, own);
    int code = check_plain(r, own);
    if (!code)
        code = is_file(own) ? cut(r, own) : copy_kept(r, path, own);
    snprintf(r->metrics.path, sizeof r->metrics.path, "%s", own);
    json_object_set_new(r->t->described, "metrics", json_string(own));
    return code;
}

/* ---- all of it ---- */

int metrics_check(const Trainer *r)
{
    char folder[CHECKPOINT_PATH];
    const char *path = r->t->metrics;
    struct stat st;
    Kept kept;
    if (!path || !strcmp(path, "-"))
        return 0;
    if (is_file(path))
        return look_at(r, path, &kept);
    bool there = !stat(path, &st);
    if (there && S_ISDIR(st.st_mode))
        errno = EISDIR;
    else if (there ? !access(path, W_OK) : !access(metrics_parent(path, folder), W_OK | X_OK))
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot create: %s", path, strerror(errno));
}

/* Whether a file has the metrics of this very run, each line with its id. */
static bool is_own(const Trainer *r, const char *path)
{
    Kept kept = {0};
    FILE *f = is_file(path) ? fopen(path, "rb") : NULL;
    bool own = f && !find_kept(r, f, path, &kept) && kept.own;
    if (f)
        fclose(f);
    return own;
}

const char *metrics_moved(const Trainer *r, const char *path, bool stored,
                          bool (*own)(const Trainer *r, const char *path), const char *option,
                          char to[CHECKPOINT_PATH])
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    if (!stored || !strcmp(path, "-") || !stat(path, &st) ||
        snprintf(to, CHECKPOINT_PATH, "%s/%s", r->t->out, slash ? slash + 1 : path) >=
            CHECKPOINT_PATH ||
        !own(r, to))
        return path;
    fprintf(r->log, "tenon: note: --resume: --%s goes on in %s, as %s is gone\n", option, to, path);
    json_object_set_new(r->t->described, option, json_string(to));
    return to;
}

bool metrics_claim(const Trainer *r, const char *path, bool stored,
                   bool (*own)(const Trainer *r, const char *path), const char *what,
                   const char *option)
{
    if (!stored || metrics_inside(r, path) || metrics_original(r, path) || own(r, path))
        return true;
    fprintf(r->log,
            "tenon: note: --resume: %s does not have this run's %s, though the checkpoint "
            "names it: none are written\n  %s %s writes them there\n",
            path, what, option, path);
    return false;
}

static int prepare(Trainer *r)
{
    const char *path = r->metrics.path;
    Kept kept;
    if (!is_file(path)) /* not there yet, a device or a pipe */
        return 0;
    if (r->t->resume && metrics_original(r, path))
        return leave_original(r);
    if (r->t->resume)
        return cut(r, path);
    int code = look_at(r, path, &kept);
    return code ? code : put_aside(r, path);
}

/* The head of a file that has no line yet. */
static void put_head(const Trainer *r)
{
    struct stat st;
    if (r->metrics.csv && !fstat(fileno(r->metrics.file), &st) && !st.st_size)
        metrics_put_head(r->metrics.file);
}

int open_metrics(Trainer *r)
{
    char to[CHECKPOINT_PATH];
    const char *path = r->t->metrics;
    if (r->t->resume)
        find_originals(r);
    if (!path)
        return 0;
    bool file = strcmp(path, "-") != 0;
    path = metrics_moved(r, path, r->t->metrics_stored, is_own, "metrics", to);
    if (snprintf(r->metrics.path, sizeof r->metrics.path, "%s", file ? path : "standard output") >=
        (int)sizeof r->metrics.path)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", path);
    if (file && !metrics_claim(r, path, r->t->metrics_stored, is_own, "metrics", "--metrics"))
        return 0;
    r->metrics.csv = metrics_is_csv(path);
    int code = file ? check_plain(r, path) : 0;
    if (!code && file)
        code = prepare(r);
    if (code)
        return code;
    path = r->metrics.path;
    r->metrics.file = file ? open_file(r, path) : stdout;
    if (!r->metrics.file)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot create: %s", path,
                               strerror(errno));
    code = is_regular(r->metrics.file) ? lock_file(r->ctx, fileno(r->metrics.file), path) : 0;
    if (!code)
        put_head(r);
    return code;
}
