/* Checkpoints of a run: what state.json contains, when one is saved, and which are kept. Saving
 * changes nothing that training reads, so a run's numbers do not depend on its saves. Ranks save
 * together, each its part; rank 0 alone looks for room and removes what is not to be kept. */
#include "trainer.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which are kept ---- */

/* Whether --keep counts a checkpoint: those of this run but the best one saved; without --keep
 * those that the clock or a signal asked for, or that were the best. */
static bool is_counted(const Trainer *r, int64_t step)
{
    char id[RUN_ID];
    if (step == r->best.kept)
        return false;
    json_t *state = folder_state(r->t->out, step);
    run_of_state(state, id);
    bool counted = state && !strcmp(id, r->folder.run) &&
                   (r->t->keep || json_is_true(json_object_get(state, "by_time")));
    json_decref(state);
    return counted;
}

int64_t checkpoint_count(const Trainer *r, int64_t step)
{
    int64_t count = 0;
    while ((step = folder_before(r->t->out, step)) >= 0)
        count += is_counted(r, step);
    return count;
}

static int64_t most_kept(const Trainer *r)
{
    return r->t->keep ? r->t->keep : KEPT_BY_TIME;
}

/* Failing to remove is a warning: what was saved is whole. */
static void drop_old(const Trainer *r, int64_t step)
{
    char folder[CHECKPOINT_PATH];
    int64_t at = step, kept = r->t->keep || r->saves.by_time, most = most_kept(r);
    while ((at = folder_before(r->t->out, at)) >= 0) {
        if (!is_counted(r, at) || kept++ < most)
            continue;
        snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, at);
        if (tn_checkpoint_remove(r->ctx, folder))
            fprintf(r->log, "tenon: warning: --keep: %s\n", tn_error(r->ctx));
    }
}

/* Removes the oldest checkpoint that the save of a step would remove once it is done. One stays
 * whose weights gave a finite loss. */
static bool give_up_oldest(const Trainer *r, int64_t step)
{
    char folder[CHECKPOINT_PATH];
    int64_t at = step, oldest = -1, good = 0, least = most_kept(r) > 2 ? most_kept(r) - 1 : 1;
    while ((at = folder_before(r->t->out, at)) >= 0) {
        if (at == r->saves.untried || !is_counted(r, at))
            continue;
        oldest = at;
        good++;
    }
    if (good <= least)
        return false;
    snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, oldest);
    if (tn_checkpoint_remove(r->ctx, folder))
        return false;
    fprintf(r->log, "%stenon: note: %s is removed: there is too little room beside it\n",
            show_line_start(r), folder);
    return true;
}

void checkpoint_tried(Trainer *r)
{
    if (r->saves.untried && !r->rank)
        drop_old(r, r->saves.untried);
    r->saves.untried = 0;
}

/* ---- state.json ---- */

/* FNV-1a, of words. */
static uint64_t hash_ids(const int64_t *ids, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)ids[i]) * 0x100000001b3u;
    return h;
}

static json_t *text_or_null(const char *text)
{
    json_t *t = text ? json_string(text) : NULL; /* NULL where it is not UTF-8 */
    return t ? t : json_null();
}

/* The fields of the plan's JSON by which a resumed run checks that it has the same plan. */
json_t *checkpoint_plan(tn_plan *p)
{
    static const char *const fields[] = {"plan_hash",    "steps_hash", "peak_bytes",
                                         "nodes",        "backend",    "machine",
                                         "machine_hash", "decisions",  "mesh"};
    const char *text;
    if (tn_plan_json(p, 1, &text))
        return NULL;
    json_t *all = json_loads(text, 0, NULL), *some = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        json_object_set(some, fields[i], json_object_get(all, fields[i]));
    if (json_is_null(json_object_get(some, "mesh"))) /* as in files older than ranks */
        json_object_del(some, "mesh");
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

static void add_files(json_t *list, const Source *s)
{
    const char *path;
    int64_t nbytes;
    uint64_t fingerprint;
    for (int i = 0; tn_data_file(s->files, i, &path, &nbytes, &fingerprint); i++)
        add_file(list, path, nbytes, fingerprint);
}

/* The files with their sizes and fingerprints; of --batch those of its two tensors. */
json_t *checkpoint_data(const Trainer *r)
{
    json_t *list = json_array();
    int64_t count = 2 * r->t->batch * r->t->seq;
    if (!r->feed.data)
        add_file(list, r->t->batch_file, count * (int64_t)sizeof *r->feed.whole.ids,
                 hash_ids(r->feed.whole.ids, count));
    if (r->feed.data)
        add_files(list, &r->feed.source);
    for (int i = 0; i < r->feed.nmore; i++)
        add_files(list, &r->feed.more[i]);
    return list;
}

json_t *checkpoint_held(const Feed *f)
{
    json_t *list = json_array();
    if (f->held.files)
        add_files(list, &f->held);
    return list;
}

json_t *checkpoint_tokens(const Feed *f)
{
    json_t *list = json_array(), *file = json_null();
    const char *path;
    int64_t nbytes;
    uint64_t fingerprint;
    if (source_is_text(&f->source) &&
        tn_data_file(f->source.data, 0, &path, &nbytes, &fingerprint)) {
        add_file(list, path, nbytes, fingerprint);
        file = json_incref(json_array_get(list, 0));
    }
    json_decref(list);
    return file;
}

json_t *checkpoint_place(const Feed *f, int64_t batch, int64_t step)
{
    int64_t done = step * batch, windows = f->windows;
    if (!windows)
        return json_null();
    return json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)(done / windows + 1), "position",
                     (json_int_t)(done % windows), "windows", (json_int_t)windows);
}

char *checkpoint_state(const Trainer *r, int64_t step, bool by_time)
{
    const TrainOptions *t = r->t;
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:i, s:I, s:I, s:f, s:s, s:o, s:O, s:o, s:o, s:I, s:I, s:o}", "step",
        (json_int_t)step, "data_position", (json_int_t)(step * t->batch * t->seq), "seed",
        (json_int_t)t->o.seed, "threads", tn_threads_used(), "batch_size", (json_int_t)t->batch,
        "seq_len", (json_int_t)t->seq, "elapsed_sec", wall_sec() - r->clock.start, "version",
        tn_version_number(), "model", text_or_null(t->model), "options", t->described, "data",
        checkpoint_data(r), "plan", checkpoint_plan(r->plans.step), "skipped_steps",
        (json_int_t)r->skipped, "skipped_in_a_row", (json_int_t)r->skipped_now, "epoch",
        checkpoint_place(&r->feed, t->batch, step));
    if (o) {
        json_object_set_new(o, "token_type",
                            text_or_null(r->feed.data ? r->feed.source.type : NULL));
        json_object_set_new(o, "tokens", checkpoint_tokens(&r->feed));
        json_object_set_new(o, "val_data", checkpoint_held(&r->feed));
    }
    if (o && r->base)
        json_object_set(o, "base", r->base);
    if (o && *r->folder.run)
        json_object_set_new(o, "run", json_string(r->folder.run));
    if (o && r->best.step)
        json_object_set_new(o, "best", best_state(&r->best));
    if (o && by_time)
        json_object_set_new(o, "by_time", json_true());
    const char *machine, *decided;
    if (o &&
        (tn_plan_decided(r->plans.step, &decided) || tn_plan_machine(r->plans.step, &machine))) {
        json_decref(o); /* a run that goes on from it would decide anew */
        o = NULL;
    }
    if (o) {
        json_object_set_new(o, "decided", json_string(decided));
        json_object_set_new(o, "machine_file", text_or_null(machine));
    }
    if (o)
        json_object_set_new(o, "folder", text_or_null(r->folder.path));
    if (o && r->metrics.originals)
        json_object_set(o, "originals", r->metrics.originals);
    if (o)
        json_object_set(o, "decisions", json_object_get(json_object_get(o, "plan"), "decisions"));
    json_object_del(json_object_get(o, "plan"), "decisions");
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return text;
}

/* ---- saving ---- */

/* A message that also names the checkpoint to resume from. */
static int fail_save(Trainer *r, int code)
{
    char message[2000];
    r->saves.failed = true;
    if (r->saves.saved == 0)
        return code;
    snprintf(message, sizeof message, "%s", tn_error(r->ctx));
    return tn_context_fail(r->ctx, code, "%s\n  the last checkpoint is %s/step-%" PRId64, message,
                           r->t->out, r->saves.saved);
}

int checkpoint_sound(Trainer *r, const char *when)
{
    int64_t count;
    int code = 0;
    const char *name = tn_program_unsound(r->step, &count);
    if (name)
        code = tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: %s has %" PRId64 " value%s not finite",
                               when, name, count, count == 1 ? " that is" : "s that are");
    code = tn_agree_code(r->ctx, code);
    r->ending.spoiled |= code != 0;
    return code;
}

/* No later step would mend such weights, so that --on-nan skip cannot go on either. */
static int check_sound(Trainer *r, int64_t step)
{
    char when[80];
    snprintf(when, sizeof when, "step %" PRId64 " is not saved", step);
    return checkpoint_sound(r, when);
}

static int64_t file_bytes(const char *folder, const char *name)
{
    char path[2 * CHECKPOINT_PATH];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !lstat(path, &st) && S_ISREG(st.st_mode) ? st.st_size : 0;
}

static void tell(const Trainer *r, int64_t step, const char *folder)
{
    int64_t nbytes = 0;
    DIR *d = r->rank ? NULL : opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        nbytes += file_bytes(folder, e->d_name);
    if (!d)
        return;
    closedir(d);
    fprintf(r->log, "%stenon: note: step %" PRId64 " is saved in %s, %" PRId64 " bytes\n",
            show_line_start(r), step, folder, nbytes);
}

/* Whether the folder is this run's still, and there is room. */
static int make_room(Trainer *r, int64_t step)
{
    int code = folder_hold(r);
    if (!code)
        code = room_check(r);
    while (code && give_up_oldest(r, step))
        code = room_check(r);
    return code;
}

static int write_checkpoint(Trainer *r, int64_t step, bool by_time, const char *folder)
{
    int code = tn_agree_code(r->ctx, r->rank ? 0 : make_room(r, step));
    if (code)
        return code;
    char *state = checkpoint_state(r, step, by_time);
    if (!state)
        code = tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory");
    code = tn_agree_code(r->ctx, code);
    if (!code && r->metrics.file)
        fsync(fileno(r->metrics.file)); /* no checkpoint before its metrics; a pipe cannot */
    if (!code && r->events.file)
        fsync(fileno(r->events.file));
    if (!code)
        code = tn_agree_code(r->ctx, tn_program_save(r->step, r->m, folder, state));
    free(state);
    return code;
}

static int save(Trainer *r, int64_t step, bool by_time)
{
    char folder[CHECKPOINT_PATH];
    if (r->saves.saved == step)
        return 0;
    if (snprintf(folder, sizeof folder, "%s/step-%" PRId64, r->t->out, step) >= (int)sizeof folder)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "%s: path too long", r->t->out);
    int code = check_sound(r, step);
    if (!code)
        code = write_checkpoint(r, step, by_time, folder);
    if (code)
        return fail_save(r, code);
    r->saves.saved = r->saves.untried = step;
    r->saves.by_time = by_time;
    tell(r, step, folder);
    return 0;
}

int checkpoint_save(Trainer *r, int64_t step)
{
    const int64_t every = r->t->save_every;
    return save(r, step, r->ending.stopping && !(every && step % every == 0));
}

/* ---- saves during training ---- */

static bool due_by_step(const Trainer *r, int64_t step)
{
    return r->t->save_every && step % r->t->save_every == 0;
}

bool checkpoint_due(const Trainer *r, int64_t step)
{
    return due_by_step(r, step) || (r->t->save_sec > 0 && r->clock.unsaved >= r->t->save_sec);
}

/* Where it fails it warns, unless the weights are not finite. */
static int try_save(Trainer *r, int64_t step)
{
    char why[2000];
    int code = save(r, step, !due_by_step(r, step));
    r->clock.last_save = wall_sec();
    if (!code || r->ending.spoiled)
        return code;
    snprintf(why, sizeof why, "%s", tn_error(r->ctx));
    if ((code = agree_lost(r->ctx, &r->ending)))
        return code;
    fprintf(r->log,
            "tenon: warning: step %" PRId64 " is not saved: %s\n  the next save tries again\n",
            step, why);
    r->saves.failed = false;
    return 0;
}

int checkpoint_pause(Trainer *r, int64_t step)
{
    return checkpoint_due(r, step) ? try_save(r, step) : 0;
}

int checkpoint_best(Trainer *r, int64_t step)
{
    return try_save(r, step);
}
