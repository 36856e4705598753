/* The folder of a run. One run at a time holds it, by a lock that ends with its process, so that
 * unfinished files of an earlier run can be removed. Each run has an id, in its checkpoints, its
 * metrics and the folder's file .run, so that no run resumes, replaces or removes another's
 * checkpoints. A folder with a checkpoint belongs to that run: a new run begins there only after
 * the folder was renamed. */
#define _GNU_SOURCE /* getrandom */
#include "trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- what is read there ---- */

/* Opens a regular file; NULL for anything else, as a pipe may never be written to. */
static FILE *open_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) ? fdopen(fd, "rb") : NULL;
    if (!f && fd >= 0)
        close(fd);
    return f;
}

json_t *folder_json(const char *path)
{
    FILE *f = open_file(path);
    json_t *all = f ? json_loadf(f, 0, NULL) : NULL;
    if (f)
        fclose(f);
    return all;
}

/* ---- steps ---- */

/* The N of a name step-N, or -1. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
        return -1;
    int64_t step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

int64_t folder_linked(const char *out, const char *link)
{
    char path[CHECKPOINT_PATH], name[64];
    int64_t step;
    int end = 0;
    if (snprintf(path, sizeof path, "%s/%s", out, link) >= (int)sizeof path)
        return -1;
    ssize_t len = readlink(path, name, sizeof name - 1);
    name[len < 0 ? 0 : len] = 0;
    return sscanf(name, "step-%" SCNd64 "%n", &step, &end) == 1 && !name[end] ? step : -1;
}

int64_t folder_before(const char *out, int64_t step)
{
    int64_t best = -1;
    DIR *folder = opendir(out);
    if (!folder)
        return -1;
    for (struct dirent *e; (e = readdir(folder));) {
        int64_t found = step_of(e->d_name);
        if (found < step && found > best)
            best = found;
    }
    closedir(folder);
    return best;
}

struct json_t *folder_state(const char *out, int64_t step)
{
    char path[CHECKPOINT_PATH];
    int n = snprintf(path, sizeof path, "%s/step-%" PRId64 "/state.json", out, step);
    return n < (int)sizeof path ? folder_json(path) : NULL;
}

/* ---- checkpoints ---- */

bool folder_is_checkpoint(const char *folder)
{
    char path[CHECKPOINT_PATH];
    if (snprintf(path, sizeof path, "%s/state.json", folder) >= (int)sizeof path)
        return false;
    json_t *state = folder_json(path); /* other programs' files have that name too */
    bool is = json_is_object(json_object_get(state, "plan")) &&
              json_is_object(json_object_get(state, "options"));
    json_decref(state);
    return is;
}

/* The bytes of a path that are before its last name, without slashes at their end. */
static size_t before_name(const char *path, size_t n)
{
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

void folder_parent(const char *path, char parent[CHECKPOINT_PATH])
{
    size_t n = before_name(path, strlen(path));
    snprintf(parent, CHECKPOINT_PATH, "%.*s", n ? (int)n : 1, n ? path : ".");
}

bool folder_in_checkpoint(const char *folder, char checkpoint[CHECKPOINT_PATH])
{
    char path[CHECKPOINT_PATH];
    snprintf(path, sizeof path, "%s", folder);
    while (!realpath(path, checkpoint)) { /* it is made */
        char inner[CHECKPOINT_PATH];
        memcpy(inner, path, sizeof inner);
        folder_parent(inner, path);
        if (!strcmp(inner, path))
            return false;
    }
    for (size_t n = strlen(checkpoint); n > 1; n = before_name(checkpoint, n)) {
        checkpoint[n] = 0;
        if (folder_is_checkpoint(checkpoint))
            return true;
    }
    return false;
}

/* ---- runs ---- */

static bool is_id(const char *text)
{
    return text && strlen(text) == RUN_ID - 1 && strspn(text, "0123456789abcdef") == RUN_ID - 1;
}

void run_of_state(const json_t *state, char id[RUN_ID])
{
    const char *run = json_string_value(json_object_get(state, "run"));
    snprintf(id, RUN_ID, "%s", is_id(run) ? run : "");
}

bool run_of_step(const char *out, int64_t step, char id[RUN_ID])
{
    json_t *state = folder_state(out, step);
    run_of_state(state, id);
    json_decref(state);
    return state != NULL;
}

bool run_of_folder(const char *out, char id[RUN_ID])
{
    char path[CHECKPOINT_PATH];
    *id = 0;
    if (snprintf(path, sizeof path, "%s/.run", out) >= (int)sizeof path)
        return false;
    FILE *f = open_file(path);
    bool there = f && fgets(id, RUN_ID, f) && is_id(id);
    if (f)
        fclose(f);
    return there;
}

/* The id of the resumed run, or a new one: random, so that no two runs share it. */
static void choose_id(const Resume *from, char run[RUN_ID])
{
    struct timespec now = {0};
    uint64_t id;
    if (from) {
        memcpy(run, from->run, RUN_ID);
        return;
    }
    if (getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id) { /* soon after the start */
        clock_gettime(CLOCK_REALTIME, &now);
        id = (uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 48;
    }
    snprintf(run, RUN_ID, "%016" PRIx64, id);
}

static int write_run(tn_context *ctx, const char *run, const char *path, const char *aside)
{
    unlink(aside); /* a link of that name is not written through */
    int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool bad = !f || fprintf(f, "%s\n", run) < 0 || fflush(f) || fsync(fileno(f));
    int why = errno;
    if (!f && fd >= 0)
        close(fd);
    if (f && fclose(f) && !bad) {
        bad = true;
        why = errno;
    }
    if (!bad && rename(aside, path)) {
        bad = true;
        why = errno;
    }
    if (!bad)
        return 0;
    unlink(aside);
    return tn_context_fail(ctx, TN_CODE_FAIL, "%s: cannot write: %s", path, strerror(why));
}

int folder_begin(Trainer *r)
{
    char path[CHECKPOINT_PATH], aside[CHECKPOINT_PATH], id[RUN_ID];
    run_of_folder(r->t->out, id);
    if (!*r->folder.run || !strcmp(id, r->folder.run))
        return 0;
    if (snprintf(path, sizeof path, "%s/.run", r->t->out) >= (int)sizeof path ||
        snprintf(aside, sizeof aside, "%s.tmp%ld", path, (long)getpid()) >= (int)sizeof aside)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", r->t->out);
    return write_run(r->ctx, r->folder.run, path, aside);
}

/* ---- the evaluation at its end ---- */

static bool evaluated_path(const Trainer *r, char path[CHECKPOINT_PATH])
{
    return snprintf(path, CHECKPOINT_PATH, "%s/.evaluated", r->t->out) < CHECKPOINT_PATH;
}

/* A regular file, not one that a link or a pipe stands for. */
static FILE *open_evaluated(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool file = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
    FILE *f = file ? fdopen(fd, "rb") : NULL;
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

void folder_evaluated(const Trainer *r, int64_t step)
{
    const Evaluation *e = &r->heldout.last;
    char path[CHECKPOINT_PATH], aside[CHECKPOINT_PATH];
    if (!evaluated_path(r, path) ||
        snprintf(aside, sizeof aside, "%s.tmp%ld", path, (long)getpid()) >= (int)sizeof aside)
        return;
    unlink(aside); /* of a killed process that had this number */
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "run", r->folder.run, "step",
                          (json_int_t)step, "windows", (json_int_t)e->windows, "planned",
                          (json_int_t)e->planned, "all", (json_int_t)e->all, "tokens",
                          (json_int_t)e->count, "bytes", (json_int_t)e->text, "eval_loss", e->loss);
    char *text = o ? json_dumps(o, 0) : NULL;
    int fd = text ? open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    size_t n = text ? strlen(text) : 0;
    bool good = fd >= 0 && write(fd, text, n) == (ssize_t)n;
    if (fd >= 0)
        good &= !close(fd);
    if (fd >= 0 && (!good || rename(aside, path)))
        unlink(aside);
    free(text);
    json_decref(o);
}

/* Whether the run that goes on is at its end, or ended by --patience. */
static bool at_end(const Trainer *r)
{
    return resume_at_end(r->t) || r->ending.exhausted;
}

/* Whether an evaluation of as many windows as now is what the file has. One that --max-sec ended
 * is, as long as there is such a limit: it would end another after other windows. */
static bool take_evaluated(Trainer *r, const json_t *o, int64_t step)
{
    char id[RUN_ID];
    int64_t all, nlabel, most = evaluation_most(r->t, step, at_end(r));
    const json_t *loss = json_object_get(o, "eval_loss"), *planned = json_object_get(o, "planned");
    run_of_state(o, id);
    if (tn_data_windows(feed_held(&r->feed), 1, r->t->seq, &all, &nlabel) || !*r->folder.run ||
        strcmp(id, r->folder.run) != 0)
        return false;
    int64_t windows = json_integer_value(json_object_get(o, "windows"));
    Evaluation e = {.windows = windows,
                    .planned = planned ? json_integer_value(planned) : windows,
                    .all = json_integer_value(json_object_get(o, "all")),
                    .count = json_integer_value(json_object_get(o, "tokens")),
                    .text = json_integer_value(json_object_get(o, "bytes")),
                    .loss = json_real_value(loss)};
    e.late = windows < e.planned;
    r->heldout.last = e;
    return json_integer_value(json_object_get(o, "step")) == step && json_is_real(loss) &&
           windows > 0 && e.count > 0 && e.all == all && e.planned == (most < all ? most : all) &&
           (!e.late || r->t->max_sec > 0);
}

int folder_find_evaluated(Trainer *r)
{
    char path[CHECKPOINT_PATH];
    int64_t first = r->t->resume ? r->t->resume->step : 0, every = r->t->eval_every;
    bool due = first && every && first % every == 0;
    if (!r->feed.data || !r->plans.eval || !first || !(due || at_end(r)) ||
        !evaluated_path(r, path))
        return 0;
    FILE *f = open_evaluated(path);
    json_t *o = f ? json_loadf(f, 0, NULL) : NULL;
    r->heldout.known = o && take_evaluated(r, o, first);
    if (f)
        fclose(f);
    json_decref(o);
    return 0;
}

/* ---- one run at a time ---- */

static int fail_busy(tn_context *ctx, const char *path)
{
    return tn_context_fail(ctx, TN_CODE_FAIL, "%s: another run is writing there", path);
}

int lock_file(tn_context *ctx, int fd, const char *path)
{
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return fail_busy(ctx, path);
    return 0; /* or there are no locks there */
}

static int take_folder(tn_context *ctx, const char *out, RunFolder *f)
{
    int fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->lock >= 0)
        close(f->lock);
    f->lock = fd;
    return fd >= 0 ? lock_file(ctx, fd, out) : 0;
}

int folder_hold(Trainer *r)
{
    struct stat locked, now;
    const char *out = r->t->out;
    bool there = !stat(out, &now);
    if (r->folder.lock < 0 || (!there && errno != ENOENT) || fstat(r->folder.lock, &locked) ||
        (there && locked.st_dev == now.st_dev && locked.st_ino == now.st_ino))
        return 0;
    fprintf(r->log, "tenon: warning: %s: %s\n", out,
            there ? "another folder than when the run began; the run goes on there"
                  : "the folder is gone; it is made again");
    int code = there ? 0 : tn_folder_make(r->ctx, out);
    if (!code)
        code = take_folder(r->ctx, r->t->out, &r->folder);
    if (!code)
        code = folder_begin(r);
    r->saves.saved = 0;
    return code;
}

/* ---- a run that is there already ---- */

int path_aside(tn_context *ctx, const char *path, char aside[CHECKPOINT_PATH])
{
    struct stat st;
    for (int n = 1; n < INT_MAX; n++) {
        if (snprintf(aside, CHECKPOINT_PATH, "%s~%d", path, n) >= CHECKPOINT_PATH)
            return tn_context_fail(ctx, TN_CODE_FAIL, "%s: path too long", path);
        if (lstat(aside, &st))
            break;
    }
    return 0;
}

bool path_same(const char *path, const char *other)
{
    struct stat x, y;
    return !stat(path, &x) && !stat(other, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int folder_check(tn_context *ctx, const TrainOptions *t)
{
    char checkpoint[CHECKPOINT_PATH];
    int64_t last = folder_before(t->out, INT64_MAX);
    if (!t->resume && folder_in_checkpoint(t->out, checkpoint))
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "train: --out %s: %s %s, the checkpoint of a run: expected a folder "
                               "elsewhere",
                               t->out, path_same(t->out, checkpoint) ? "this is" : "it lies in",
                               checkpoint);
    if (t->resume || t->overwrite || last < 0)
        return 0;
    return tn_context_fail(
        ctx, TN_CODE_USAGE,
        "train: %s holds a run, whose last checkpoint is step-%" PRId64
        "\n  --resume goes on with it; --overwrite renames the folder and begins "
        "anew",
        t->out, last);
}

_Static_assert(CHECKPOINT_PATH >= PATH_MAX, "realpath writes so many");

static int find_path(tn_context *ctx, const char *out, RunFolder *f)
{
    if (realpath(out, f->path))
        return 0;
    *f->path = 0;
    return tn_context_fail(ctx, TN_CODE_FAIL, "%s: %s", out, strerror(errno));
}

/* The folder itself, not a link to it, gets another name: the link then leads to the new one. */
static int rename_folder(Trainer *r)
{
    const char *real = r->folder.path;
    char aside[CHECKPOINT_PATH];
    int code = find_path(r->ctx, r->t->out, &r->folder);
    if (!code)
        code = path_aside(r->ctx, real, aside);
    if (!code)
        code = take_folder(r->ctx, r->t->out, &r->folder);
    if (code)
        return code;
    if (rename(real, aside))
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "--overwrite: cannot rename %s to %s: %s",
                               real, aside, strerror(errno));
    fprintf(r->log, "tenon: note: the run that was in %s is now in %s\n", real, aside);
    memcpy(r->folder.aside, aside, sizeof aside);
    r->folder.before = strlen(r->t->out) - 1; /* the folder's parent stays */
    return tn_folder_make(r->ctx, real);
}

/* How many bytes of a path name what is there. */
static size_t there(const char *path)
{
    char part[CHECKPOINT_PATH];
    struct stat st;
    snprintf(part, sizeof part, "%s", path);
    size_t n = strlen(part);
    while (n && lstat(part, &st)) {
        while (n && part[n - 1] == '/')
            n--;
        while (n && part[n - 1] != '/')
            n--;
        part[n] = 0;
    }
    return n;
}

void folder_undo(Trainer *r)
{
    char path[CHECKPOINT_PATH];
    const char *out = r->t->out;
    if (r->rank || !r->folder.made)
        return;
    r->folder.made = false;
    bool own = r->folder.before < strlen(out); /* what is there this run has made */
    if (own && snprintf(path, sizeof path, "%s/.run", out) < (int)sizeof path)
        unlink(path);
    for (int i = -2; own && i < r->feed.nmore; i++) {
        const Source *s = i == -2 ? &r->feed.held : i == -1 ? &r->feed.source : &r->feed.more[i];
        if (!s->made)
            continue;
        unlink(s->file);
        if (snprintf(path, sizeof path, "%s.json", s->file) < (int)sizeof path)
            unlink(path);
    }
    snprintf(path, sizeof path, "%s", out);
    for (size_t n = strlen(path); n > r->folder.before && !rmdir(path);) {
        while (n && path[n - 1] == '/')
            n--;
        while (n && path[n - 1] != '/')
            n--;
        path[n] = 0;
    }
    if (*r->folder.aside && (!rmdir(r->folder.path) || errno == ENOENT) &&
        !rename(r->folder.aside, r->folder.path))
        fprintf(r->log, "tenon: note: the run that was in %s is there again\n", r->folder.path);
}

/* A checkpoint of a later step is done again and replaced, at whatever step a save may come. So it
 * has to be the run's own, and nothing else. */
static int check_later(const Trainer *r)
{
    const char *out = r->t->out;
    char folder[CHECKPOINT_PATH], id[RUN_ID];
    int64_t first = r->t->resume ? r->t->resume->step : 0, at = INT64_MAX;
    int code = 0;
    while (!code && (at = folder_before(out, at)) > first) {
        if (at > r->t->steps ||
            snprintf(folder, sizeof folder, "%s/step-%" PRId64, out, at) >= (int)sizeof folder)
            continue;
        code = tn_checkpoint_replaceable(r->ctx, folder);
        if (!code && run_of_step(out, at, id) && strcmp(id, r->folder.run) != 0)
            code = tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: a checkpoint of another run", folder);
        if (code)
            tn_context_fail(r->ctx, code, "%s\n  the run would save there: move it away first",
                            tn_error(r->ctx));
    }
    return code;
}

/* A save replaces a link there, or a file; it cannot replace a folder. */
static int check_link(const Trainer *r, const char *name, const char *to)
{
    char path[CHECKPOINT_PATH];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", r->t->out, name);
    if (n >= (int)sizeof path || resume_at_end(r->t) || lstat(path, &st) || !S_ISDIR(st.st_mode))
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "%s: a folder, where a link to the %s checkpoint is to be\n"
                           "  move it away first",
                           path, to);
}

static int check_links(const Trainer *r)
{
    int code = check_link(r, "latest", "last");
    return code || !r->t->eval_every ? code : check_link(r, "best", "best");
}

int folder_clean(Trainer *r)
{
    struct stat st;
    choose_id(r->t->resume, r->folder.run);
    if (stat(r->t->out, &st) || !S_ISDIR(st.st_mode))
        return 0;
    int code = take_folder(r->ctx, r->t->out, &r->folder);
    return code ? code : tn_checkpoint_clean(r->ctx, r->t->out);
}

int folder_open(Trainer *r)
{
    const TrainOptions *t = r->t;
    int code = 0;
    r->folder.before = there(t->out);
    r->folder.made = true;
    if (t->overwrite && folder_before(t->out, INT64_MAX) >= 0) {
        code = metrics_check(r);
        if (!code)
            code = events_check(r);
        if (!code)
            code = rename_folder(r);
    }
    if (!code)
        code = tn_folder_make(r->ctx, t->out);
    if (!code)
        code = find_path(r->ctx, r->t->out, &r->folder);
    if (!code)
        code = take_folder(r->ctx, r->t->out, &r->folder);
    if (!code)
        code = check_links(r);
    return code ? code : check_later(r);
}
