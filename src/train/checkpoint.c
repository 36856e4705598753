/* Checkpoints of a run in its folder: what state.json says, saving, and how many are kept. One run
 * at a time holds the folder, by a lock that ends with its process, so that what an earlier one
 * left there unfinished can be removed. */
#include "train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- the folder ---- */

int checkpoint_open(Trainer *r)
{
    const char *out = r->t->out;
    int code = tn_folder_make(r->ctx, out);
    if (code)
        return code;
    r->lock = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock >= 0 && flock(r->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: another run is writing there", out);
    return tn_checkpoint_clean(r->ctx, out);
}

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
    char folder[CHECKPOINT_PATH];
    int64_t at = step, kept = 1;
    if (!r->t->keep)
        return;
    while ((at = checkpoint_before(r->t->out, at)) >= 0) {
        if (kept++ < r->t->keep)
            continue;
        snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, at);
        if (tn_checkpoint_remove(r->ctx, folder)) {
            fprintf(stderr, "tenon: warning: --keep: %s\n", tn_error(r->ctx));
            return;
        }
    }
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

/* FNV-1a. */
static uint64_t hash_ids(const int64_t *ids, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)ids[i]) * 0x100000001b3u;
    return h;
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
    for (int i = 0; r->data && tn_data_file(r->data, i, &path, &nbytes, &fingerprint); i++)
        add_file(list, path, nbytes, fingerprint);
    return list;
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
    char *state = state_text(r, step);
    if (!state)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory");
    if (r->metrics)
        fsync(fileno(r->metrics)); /* no checkpoint before its metrics; a pipe cannot */
    int code = tn_program_save(r->step, r->m, folder, state);
    free(state);
    if (code)
        return fail_save(r, code);
    r->saved = step;
    drop_old(r, step);
    return 0;
}
