/* Checkpoints of a run in its folder: what state.json says, saving, and how many are kept. One run
 * at a time holds the folder, by a lock that ends with its process, so that what an earlier one
 * left there unfinished can be removed. Each run has an id, in its checkpoints and in the file .run
 * of the folder, so that no run goes on from another's checkpoints or removes them. */
#include "train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

int64_t checkpoint_before(const char *out, int64_t step)
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

/* Failing to remove is a warning: what was saved is whole. */
static void drop_old(const Trainer *r, int64_t step)
{
    char folder[CHECKPOINT_PATH], id[RUN_ID];
    int64_t at = step, kept = 1;
    while ((at = checkpoint_before(r->t->out, at)) >= 0) {
        if (!checkpoint_run(r->t->out, at, id) || strcmp(id, r->run) != 0 || kept++ < r->t->keep)
            continue;
        snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, at);
        if (tn_checkpoint_remove(r->ctx, folder))
            fprintf(stderr, "tenon: warning: --keep: %s\n", tn_error(r->ctx));
    }
}

void checkpoint_tried(Trainer *r)
{
    if (r->untried && r->t->keep)
        drop_old(r, r->untried);
    r->untried = 0;
}

/* ---- runs ---- */

static bool is_id(const char *text)
{
    return text && strlen(text) == RUN_ID - 1 && strspn(text, "0123456789abcdef") == RUN_ID - 1;
}

void checkpoint_id(const json_t *state, char id[RUN_ID])
{
    const char *run = json_string_value(json_object_get(state, "run"));
    snprintf(id, RUN_ID, "%s", is_id(run) ? run : "");
}

bool checkpoint_run(const char *out, int64_t step, char id[RUN_ID])
{
    char path[CHECKPOINT_PATH];
    if (snprintf(path, sizeof path, "%s/step-%" PRId64 "/state.json", out, step) >=
        (int)sizeof path)
        return false;
    json_t *state = json_load_file(path, 0, NULL);
    checkpoint_id(state, id);
    json_decref(state);
    return state != NULL;
}

bool checkpoint_last_run(const char *out, char id[RUN_ID])
{
    char path[CHECKPOINT_PATH];
    *id = 0;
    if (snprintf(path, sizeof path, "%s/.run", out) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "rb");
    bool there = f && fgets(id, RUN_ID, f) && is_id(id);
    if (f)
        fclose(f);
    return there;
}

/* FNV-1a, of words. */
static uint64_t hash_ids(const int64_t *ids, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)ids[i]) * 0x100000001b3u;
    return h;
}

/* That of the run that goes on, or a new one, of the time and the process. */
static void choose_id(Trainer *r)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t of[] = {now.tv_sec, now.tv_nsec, getpid()};
    if (r->t->resume)
        memcpy(r->run, r->t->resume->run, RUN_ID);
    else
        snprintf(r->run, RUN_ID, "%016" PRIx64, hash_ids(of, 3));
}

static int write_run(const Trainer *r, const char *path, const char *aside)
{
    FILE *f = fopen(aside, "wb");
    bool bad = !f || fprintf(f, "%s\n", r->run) < 0 || fflush(f) || fsync(fileno(f));
    int why = errno;
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
    return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: cannot write: %s", path, strerror(why));
}

int checkpoint_begin(Trainer *r)
{
    char path[CHECKPOINT_PATH], aside[CHECKPOINT_PATH], id[RUN_ID];
    checkpoint_last_run(r->t->out, id);
    if (!*r->run || !strcmp(id, r->run))
        return 0;
    if (snprintf(path, sizeof path, "%s/.run", r->t->out) >= (int)sizeof path ||
        snprintf(aside, sizeof aside, "%s.tmp%ld", path, (long)getpid()) >= (int)sizeof aside)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", r->t->out);
    return write_run(r, path, aside);
}

/* ---- the folder ---- */

static int take_folder(Trainer *r)
{
    int fd = open(r->t->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock >= 0)
        close(r->lock);
    r->lock = fd;
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: another run is writing there", r->t->out);
    return 0;
}

/* The folder may have been renamed or removed since, and the lock with it. */
static int hold_folder(Trainer *r)
{
    struct stat held, now;
    const char *out = r->t->out;
    bool there = !stat(out, &now);
    if (r->lock < 0 || (!there && errno != ENOENT) || fstat(r->lock, &held) ||
        (there && held.st_dev == now.st_dev && held.st_ino == now.st_ino))
        return 0;
    fprintf(stderr, "tenon: warning: %s: %s\n", out,
            there ? "another folder than when the run began; the run goes on there"
                  : "the folder is gone; it is made again");
    int code = there ? 0 : tn_folder_make(r->ctx, out);
    if (!code)
        code = take_folder(r);
    if (!code)
        code = checkpoint_begin(r);
    r->saved = 0;
    return code;
}

/* What stands at the name of a checkpoint that is going to be saved. */
static int check_names(const Trainer *r)
{
    const TrainOptions *t = r->t;
    char folder[CHECKPOINT_PATH];
    int64_t first = t->resume ? t->resume->step : 0, at = INT64_MAX;
    int code = 0;
    while (!code && (at = checkpoint_before(t->out, at)) > first) {
        bool saves = at == t->steps || (t->save_every && at % t->save_every == 0);
        if (saves && at <= t->steps &&
            snprintf(folder, sizeof folder, "%s/step-%" PRId64, t->out, at) < (int)sizeof folder)
            code = tn_checkpoint_replaceable(r->ctx, folder);
    }
    return code;
}

/* A new run in a folder with another's checkpoints: one line. */
static void tell_of_others(const Trainer *r)
{
    enum { FEW = 8 };
    char id[RUN_ID];
    int n = 0;
    for (int64_t at = INT64_MAX; (at = checkpoint_before(r->t->out, at)) >= 0;) {
        if (!checkpoint_run(r->t->out, at, id))
            continue;
        if (!n)
            fprintf(stderr, "tenon: warning: %s has checkpoints of another run: step", r->t->out);
        if (n++ < FEW)
            fprintf(stderr, "%s %" PRId64, n > 1 ? "," : "", at);
    }
    if (n)
        fprintf(stderr,
                "%s; they stay but where this run saves the same step, and --resume goes on from "
                "this run's alone\n",
                n > FEW ? " and earlier" : "");
}

int checkpoint_open(Trainer *r)
{
    const char *out = r->t->out;
    int code = tn_folder_make(r->ctx, out);
    if (!code)
        code = take_folder(r);
    if (!code)
        code = tn_checkpoint_clean(r->ctx, out);
    if (!code)
        code = check_names(r);
    choose_id(r);
    if (!code && !r->t->resume)
        tell_of_others(r);
    return code;
}

/* ---- state.json ---- */

static json_t *text_or_null(const char *text)
{
    json_t *t = text ? json_string(text) : NULL; /* NULL where it is not UTF-8 */
    return t ? t : json_null();
}

/* Of the plan's JSON the fields by which one run tells whether it goes on as another began. */
json_t *checkpoint_plan(const Trainer *r)
{
    static const char *const fields[] = {"plan_hash", "peak_bytes", "nodes", "decisions"};
    const char *text;
    if (tn_plan_json(r->step_plan, 1, &text))
        return NULL;
    json_t *all = json_loads(text, 0, NULL), *some = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        json_object_set(some, fields[i], json_object_get(all, fields[i]));
    json_decref(all);
    return some;
}

static void add_file(json_t *list, const char *path, int64_t nbytes, uint64_t fingerprint)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, fingerprint);
    json_array_append_new(list, json_pack("{s:o, s:I, s:s}", "path", text_or_null(path), "nbytes",
                                          (json_int_t)nbytes, "fingerprint", hex));
}

/* The files with their sizes and fingerprints; of --batch those of its two tensors. */
json_t *checkpoint_data(const Trainer *r)
{
    json_t *list = json_array();
    const char *path;
    int64_t nbytes, count = 2 * r->t->batch * r->t->seq;
    uint64_t fingerprint;
    if (!r->data)
        add_file(list, r->t->batch_file, count * (int64_t)sizeof *r->ids,
                 hash_ids(r->one_ids, count));
    for (int i = 0; r->data && tn_data_file(r->source.files, i, &path, &nbytes, &fingerprint); i++)
        add_file(list, path, nbytes, fingerprint);
    return list;
}

json_t *checkpoint_tokens(const Trainer *r)
{
    json_t *list = json_array(), *file = json_null();
    const char *path;
    int64_t nbytes;
    uint64_t fingerprint;
    if (source_is_text(&r->source) && tn_data_file(r->data, 0, &path, &nbytes, &fingerprint)) {
        add_file(list, path, nbytes, fingerprint);
        file = json_incref(json_array_get(list, 0));
    }
    json_decref(list);
    return file;
}

json_t *checkpoint_place(const Trainer *r, int64_t step)
{
    int64_t done = step * r->t->batch, windows = r->epoch_windows;
    if (!windows)
        return json_null();
    return json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)(done / windows + 1), "position",
                     (json_int_t)(done % windows), "windows", (json_int_t)windows);
}

static char *state_text(const Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:i, s:I, s:I, s:f, s:s, s:o, s:O, s:o, s:o, s:I, s:I, s:o}", "step",
        (json_int_t)step, "data_position", (json_int_t)(step * t->batch * t->seq), "seed",
        (json_int_t)t->o.seed, "threads", tn_threads_used(), "batch_size", (json_int_t)t->batch,
        "seq_len", (json_int_t)t->seq, "elapsed_sec", wall_sec() - r->start, "version",
        tn_version_number(), "model", text_or_null(t->model), "options", t->described, "data",
        checkpoint_data(r), "plan", checkpoint_plan(r), "skipped_steps", (json_int_t)r->skipped,
        "skipped_in_a_row", (json_int_t)r->skipped_now, "epoch", checkpoint_place(r, step));
    if (o) {
        json_object_set_new(o, "token_type", text_or_null(r->data ? r->source.type : NULL));
        json_object_set_new(o, "tokens", checkpoint_tokens(r));
    }
    if (o && *r->run)
        json_object_set_new(o, "run", json_string(r->run));
    if (o)
        json_object_set(o, "decisions", json_object_get(json_object_get(o, "plan"), "decisions"));
    json_object_del(json_object_get(o, "plan"), "decisions");
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return text;
}

/* ---- saving ---- */

/* A message that also says what there is to go on from. */
static int fail_save(Trainer *r, int code)
{
    char message[2000];
    r->save_failed = true;
    if (r->saved == 0)
        return code;
    snprintf(message, sizeof message, "%s", tn_error(r->ctx));
    return tn_context_fail(r->ctx, code, "%s\n  the last checkpoint is %s/step-%" PRId64, message,
                           r->t->out, r->saved);
}

int checkpoint_save(Trainer *r, int64_t step)
{
    char folder[CHECKPOINT_PATH];
    if (r->saved == step)
        return 0;
    if (snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, step) >= (int)sizeof folder)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", r->t->out);
    int code = hold_folder(r);
    if (code)
        return fail_save(r, code);
    char *state = state_text(r, step);
    if (!state)
        return fail_save(r, tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory"));
    if (r->metrics)
        fsync(fileno(r->metrics)); /* no checkpoint before its metrics; a pipe cannot */
    code = tn_program_save(r->step, r->m, folder, state);
    free(state);
    if (code)
        return fail_save(r, code);
    r->saved = r->untried = step;
    return 0;
}
