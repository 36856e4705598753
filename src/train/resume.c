/* Resumes a run from a checkpoint. The batch of a step, dropout and the learning rate are functions
 * of options and step, so with the same weights, optimizer state, plan and number of threads a
 * resumed run gives the bits of an uninterrupted one. On another machine or back end it goes on,
 * with a warning, where the graph and the decisions are the same; and on any other mesh.
 *
 * The checkpoint is the one that `latest` names, or if that is damaged the newest complete one of
 * the same run. Later steps are repeated. */
#include "trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which checkpoint ---- */

static int open_state(tn_context *ctx, Resume *x)
{
    char path[CHECKPOINT_PATH + 20];
    json_int_t step, threads;
    json_t *options, *data, *model;
    const char *hash;
    json_int_t skipped = 0, skipped_now = 0; /* older files have none */
    int code = tn_checkpoint_check(ctx, x->folder);
    if (code)
        return code;
    snprintf(path, sizeof path, "%s/state.json", x->folder);
    x->state = folder_json(path);
    if (!x->state)
        return tn_context_fail(ctx, TN_CODE_FAIL, "%s: cannot read it", path);
    if (json_unpack(x->state, "{s:I, s:I, s:F, s:o, s:o, s:o, s:{s:s}, s?I, s?I}", "step", &step,
                    "threads", &threads, "elapsed_sec", &x->sec, "model", &model, "options",
                    &options, "data", &data, "plan", "plan_hash", &hash, "skipped_steps", &skipped,
                    "skipped_in_a_row", &skipped_now) ||
        threads < 1 || threads > 4096 || !json_is_object(options) || !json_is_array(data))
        return tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: expected threads, elapsed_sec, model, options, data and plan",
                               path);
    x->step = step;
    x->threads = (int)threads;
    run_of_state(x->state, x->run);
    x->skipped = skipped;
    x->skipped_now = skipped_now;
    return 0;
}

static int try_step(tn_context *ctx, const char *out, int64_t step, Resume *x)
{
    if (snprintf(x->folder, sizeof x->folder, "%s/step-%" PRId64, out, step) >=
        (int)sizeof x->folder)
        return tn_context_fail(ctx, TN_CODE_FAIL, "%s: path too long", out);
    int code = open_state(ctx, x);
    if (code)
        resume_drop(x);
    return code;
}

/* Whether a checkpoint is of a run, or may be: one that is torn does not say. */
static bool may_be_of(const char *out, int64_t step, const char *run)
{
    char id[RUN_ID];
    return !*run || !run_of_step(out, step, id) || !strcmp(id, run);
}

/* The newest checkpoint before `step` that may be of a run, or -1. */
static int64_t before_of(const char *out, int64_t step, const char *run)
{
    while ((step = folder_before(out, step)) >= 0 && !may_be_of(out, step, run))
        ;
    return step;
}

/* The last run there was ended before its first save. */
static int fail_none(tn_context *ctx, const char *out, int64_t other)
{
    return tn_context_fail(ctx, TN_CODE_FAIL,
                           "%s: the last run there has no checkpoint yet; step-%" PRId64
                           " is of an earlier run\n  to begin from its weights: tenon train "
                           "%s/step-%" PRId64 " ...; to resume that run: remove %s/.run first",
                           out, other, out, other, out);
}

static int find(tn_context *ctx, const char *out, Resume *x)
{
    int64_t latest = folder_linked(out, "latest"), newest = folder_before(out, INT64_MAX);
    char run[RUN_ID];
    *x = (Resume){.step = -1, .latest = latest};
    if (!run_of_folder(out, run) && latest >= 0)
        run_of_step(out, latest, run);
    bool other = latest >= 0 && !may_be_of(out, latest, run);
    if (latest >= 0 && !other && !try_step(ctx, out, latest, x))
        return 0;
    if (newest < 0)
        return 0;
    int64_t step = before_of(out, INT64_MAX, run);
    if (step < 0)
        return fail_none(ctx, out, newest);
    fprintf(stderr, "tenon: warning: %s/latest: %s\n", out,
            latest < 0 ? "not a link to a checkpoint"
            : other    ? "a checkpoint of another run"
                       : tn_error(ctx));
    for (; step >= 0; step = before_of(out, step, run)) {
        if (step != latest && !try_step(ctx, out, step, x)) {
            fprintf(stderr, "tenon: warning: goes on from %s, the newest that is whole\n",
                    x->folder);
            x->torn = true;
            return 0;
        }
        if (step != latest)
            fprintf(stderr, "tenon: warning: %s\n", tn_error(ctx));
    }
    return tn_context_fail(ctx, TN_CODE_FAIL, "%s: none of the checkpoints there is whole", out);
}

/* Sends rank 0's finding to all. */
static int share(tn_context *ctx, Resume *x)
{
    int code = tn_share(ctx, &x->step, sizeof x->step);
    if (!code)
        code = tn_share(ctx, &x->torn, sizeof x->torn);
    return code ? code : tn_share(ctx, x->folder, sizeof x->folder);
}

int resume_find(tn_context *ctx, const char *out, Resume *x)
{
    *x = (Resume){.step = -1};
    int code = tn_agree_code(ctx, tn_rank(ctx) ? 0 : find(ctx, out, x));
    if (!code)
        code = share(ctx, x);
    if (!code && tn_rank(ctx) && x->step >= 0)
        code = open_state(ctx, x);
    return tn_agree_code(ctx, code);
}

void resume_drop(Resume *x)
{
    json_decref(x->state);
    x->state = NULL;
    x->step = -1;
}

int resume_check_latest(const Trainer *r)
{
    const Resume *x = r->t->resume;
    int64_t now = x ? folder_linked(r->t->out, "latest") : 0;
    if (!x || now == x->latest)
        return 0;
    if (now < 0)
        return tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "--resume: %s/latest: another process removed it\n  start it again",
                               r->t->out);
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "--resume: %s: another process saved step %" PRId64
                           " while this one began to go on from step %" PRId64 "\n  start it again",
                           r->t->out, now, x->step);
}

/* ---- whether the run is the same ---- */

/* The machine file of the run, with its kernels; NULL: of an earlier tenon. */
static const char *stored_machine(const Trainer *r)
{
    return json_string_value(json_object_get(r->t->resume->state, "machine_file"));
}

static int differs(const Trainer *r, const char *what, const char *of, const json_t *x,
                   const json_t *y)
{
    char *before = x ? json_dumps(x, JSON_ENCODE_ANY) : NULL;
    char *now = y ? json_dumps(y, JSON_ENCODE_ANY) : NULL;
    int code =
        tn_context_fail(r->ctx, TN_CODE_FAIL, "--resume: %s: the run began with %s%s, now %s",
                        of ? of : "data", what, before ? before : "nothing", now ? now : "nothing");
    free(before);
    free(now);
    return code;
}

/* Compares the place in the data where the run goes on: as stored, and as computed. */
static int check_place(const Trainer *r)
{
    const Resume *x = r->t->resume;
    json_t *now = checkpoint_place(&r->feed, r->t->batch, x->step),
           *before = json_object_get(x->state, "epoch");
    int code = json_equal(before, now) ? 0 : differs(r, "the place ", x->folder, before, now);
    json_decref(now);
    return code;
}

/* Compares the files of a list of state.json; takes `now`. */
static int check_files(const Trainer *r, const char *key, json_t *now)
{
    json_t *before = json_object_get(r->t->resume->state, key);
    size_t had = json_array_size(before), has = json_array_size(now);
    int code = 0;
    if (had != has)
        code = tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "--resume: the run began with %zu data files, now there are %zu",
                               had, has);
    for (size_t i = 0; !code && i < has; i++) {
        const json_t *x = json_array_get(before, i), *y = json_array_get(now, i);
        const char *path = json_string_value(json_object_get(y, "path"));
        json_int_t x_size = json_integer_value(json_object_get(x, "nbytes"));
        json_int_t y_size = json_integer_value(json_object_get(y, "nbytes"));
        if (x_size != y_size)
            code = tn_context_fail(r->ctx, TN_CODE_FAIL,
                                   "--resume: %s: the run began with %" PRId64
                                   " bytes, now there are %" PRId64,
                                   path ? path : "data", (int64_t)x_size, (int64_t)y_size);
        const json_t *x_print = json_object_get(x, "fingerprint");
        const json_t *y_print = json_object_get(y, "fingerprint");
        if (!code && !json_equal(x_print, y_print))
            code = differs(r, "other content, of fingerprint ", path, x_print, y_print);
    }
    json_decref(now);
    return code;
}

/* For text data: fails if the same texts give other tokens than before. */
static int check_tokens(const Trainer *r)
{
    const json_t *before = json_object_get(r->t->resume->state, "tokens");
    const json_t *x = json_object_get(before, "fingerprint");
    json_t *now = checkpoint_tokens(&r->feed), *y = json_object_get(now, "fingerprint");
    const char *path = json_string_value(json_object_get(now, "path"));
    int code = json_equal(x, y) || (!x && !y)
                   ? 0
                   : differs(r, "other tokens, of fingerprint ", path, x, y);
    json_decref(now);
    return code;
}

int resume_check_place(const Trainer *r)
{
    int code = check_tokens(r);
    return code ? code : check_place(r);
}

static void add_difference(char *text, size_t size, const char *name, const json_t *x,
                           const json_t *y)
{
    char *before = x ? json_dumps(x, JSON_ENCODE_ANY) : NULL;
    char *now = y ? json_dumps(y, JSON_ENCODE_ANY) : NULL;
    size_t len = strlen(text);
    if (!json_equal(x, y))
        snprintf(text + len, size - len, "\n  %s: stored %.200s, now %.200s", name,
                 before ? before : "nothing", now ? now : "nothing");
    free(before);
    free(now);
}

/* Decisions without what is the machine's, their seconds, and of slices the reason, which has them:
 * a new list. */
static json_t *unpriced(const json_t *decisions)
{
    json_t *list = json_deep_copy(decisions);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *x = json_array_get(list, i);
        const char *kind = json_string_value(json_object_get(x, "kind"));
        json_object_del(x, "sec");
        if (kind && !strcmp(kind, "chunk"))
            json_object_del(x, "reason");
    }
    return list;
}

static void add_decisions(char *text, size_t size, const json_t *before, const json_t *now)
{
    json_t *x = unpriced(before), *y = unpriced(now);
    add_difference(text, size, "decisions", x, y);
    json_decref(x);
    json_decref(y);
}

/* The first line in which two texts differ, of each. */
static void add_line(char *text, size_t size, const char *before, const char *now)
{
    while (*before || *now) {
        size_t n = strcspn(before, "\n"), m = strcspn(now, "\n"), len = strlen(text);
        if (n != m || strncmp(before, now, n) != 0) {
            snprintf(text + len, size - len, "\n  kernels: stored %.*s\n  now %.*s",
                     (int)(n < 400 ? n : 400), n ? before : "nothing", (int)(m < 400 ? m : 400),
                     m ? now : "nothing");
            return;
        }
        before += n + (before[n] != 0);
        now += m + (now[m] != 0);
    }
}

/* Checks that the run's kernels were taken again, where they were to be. */
static void add_ways(const Trainer *r, char *text, size_t size)
{
    const char *before = stored_machine(r), *asked = r->t->o.machine, *now;
    if (before && asked && !strcmp(before, asked) && !tn_plan_machine(r->plans.step, &now))
        add_line(text, size, before, now);
}

/* Writes a line for each difference between the stored plan and this one, none where there is none.
 * The hash and bytes may be the machine's: where it is another the graph and the decisions count.
 */
static void compare_plans(const Trainer *r, const json_t *now, bool other, char *text, size_t size)
{
    static const char *const fields[] = {"nodes", "steps_hash", "peak_bytes"};
    const json_t *state = r->t->resume->state, *before = json_object_get(state, "plan");
    json_t *version = json_string(tn_version_number());
    *text = 0;
    add_ways(r, text, size);
    for (size_t i = 0; i < (other ? 1 : sizeof fields / sizeof *fields); i++)
        add_difference(text, size, fields[i], json_object_get(before, fields[i]),
                       json_object_get(now, fields[i]));
    add_decisions(text, size, json_object_get(state, "decisions"),
                  json_object_get(now, "decisions"));
    if (*text)
        add_difference(text, size, "version", json_object_get(state, "version"), version);
    if (*text && other)
        add_difference(text, size, "machine", json_object_get(before, "machine"),
                       json_object_get(now, "machine"));
    json_decref(version);
}

static bool equal_text(const json_t *x, const json_t *y, const char *key)
{
    return json_is_string(json_object_get(x, key)) &&
           json_equal(json_object_get(x, key), json_object_get(y, key));
}

/* Whether the run was planned by other figures, or may have been; says so. Those of its number of
 * threads are told of elsewhere. */
static bool other_machine(const Trainer *r, const json_t *now)
{
    const json_t *before = json_object_get(r->t->resume->state, "plan");
    const char *x = json_string_value(json_object_get(before, "machine"));
    const char *y = json_string_value(json_object_get(now, "machine"));
    const char *was = stored_machine(r), *is;
    if (was && equal_text(before, now, "machine") && equal_text(before, now, "machine_hash"))
        return false; /* what is stored has the kernels of a plan, which may be another */
    bool other = !was || tn_plan_machine(r->plans.step, &is) || strcmp(was, is) != 0;
    if (!was)
        fprintf(r->log,
                "tenon: warning: --resume: the checkpoint, of an earlier tenon, does not say "
                "which kernels the run had: bits may differ\n");
    else if (other && x && y && strcmp(x, y) != 0)
        fprintf(r->log,
                "tenon: warning: --resume: the run began on the machine %s, now %s: bits may "
                "differ\n",
                x, y);
    else if (other && x && r->t->resume->threads == tn_threads_used())
        fprintf(r->log,
                "tenon: warning: --resume: the figures of the machine %s are others than when the "
                "run began: bits may differ\n",
                x);
    return other;
}

/* Whether another back end ran it; says so. */
static bool other_backend(const Trainer *r, const json_t *now)
{
    const json_t *plan = json_object_get(r->t->resume->state, "plan");
    const char *before = json_string_value(json_object_get(plan, "backend"));
    const char *after = json_string_value(json_object_get(now, "backend"));
    before = before ? before : "cpu"; /* of a run that did not say: there was no other */
    if (!after || !strcmp(before, after))
        return false;
    fprintf(r->log, "tenon: warning: --resume: the run was on the back end %s, now %s\n", before,
            after);
    return true;
}

/* Whether other ranks ran it, or the same ones otherwise, whose plan was theirs; the caller of
 * train has said so. */
static bool other_mesh(const Trainer *r, const json_t *now)
{
    static const char *const keys[] = {"shard",  "reshard", "sequence-parallel",
                                       "bucket", "overlap", "pin"};
    const json_t *before = json_object_get(r->t->resume->state, "plan");
    const json_t *options = json_object_get(r->t->resume->state, "options");
    const char *x = json_string_value(json_object_get(before, "mesh"));
    const char *y = json_string_value(json_object_get(now, "mesh"));
    bool other = strcmp(x ? x : "", y ? y : "") != 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && y; i++) {
        const json_t *stored = json_object_get(options, keys[i]);
        const json_t *given = json_object_get(r->t->described, keys[i]);
        other |= stored && given && !json_equal(stored, given);
    }
    return other;
}

static bool keeps_state(const json_t *options)
{
    const json_t *rules = json_object_get(options, "offload");
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const char *rule = json_string_value(json_array_get(rules, i));
        if (rule && !strcmp(rule, "offload=state"))
            return true;
    }
    return false;
}

/* Whether the optimizer's state was elsewhere, in the device's memory or in the host's; where
 * slices are chosen by what is alive at the peak, says so. */
static bool other_state(const Trainer *r)
{
    const json_t *options = json_object_get(r->t->resume->state, "options");
    const bool now = keeps_state(r->t->described);
    if (keeps_state(options) == now)
        return false;
    if (json_array_size(json_object_get(options, "chunk")))
        fprintf(r->log,
                "tenon: warning: --resume: the run began %s --offload state, with which --chunk "
                "may cut otherwise: bits may differ\n",
                now ? "without" : "with");
    return true;
}

/* Another back end fuses otherwise, and so has another graph of the same step; as one whose state
 * is elsewhere has. */
static int compare(const Trainer *r, const json_t *plan)
{
    char text[1500];
    int before = r->t->resume->threads, now = tn_threads_used();
    bool backend = other_backend(r, plan), machine = other_machine(r, plan);
    *text = 0;
    if (!other_state(r) && !backend)
        compare_plans(r, plan, machine, text, sizeof text);
    if (before != now)
        fprintf(r->log,
                "tenon: warning: --resume: the run had %d threads, now %d: bits may differ\n",
                before, now);
    if (!*text || before != now)
        return 0;
    if (r->t->retune) {
        fprintf(r->log, "tenon: warning: --retune: the plan is another than the run's%s\n", text);
        return 0;
    }
    return tn_context_fail(
        r->ctx, TN_CODE_FAIL,
        "--resume: %s: the plan is another than the run's%s\n  the tenon that began "
        "the run can go on; --retune goes on with another plan, whose bits may differ; or train "
        "the "
        "model %s in a new folder",
        r->t->resume->folder, text, r->t->resume->folder);
}

static int check_plan(const Trainer *r)
{
    json_t *plan = checkpoint_plan(r->plans.step);
    int code = other_mesh(r, plan) ? 0 : compare(r, plan);
    json_decref(plan);
    return code;
}

static int check_data(const Trainer *r)
{
    int code = check_files(r, "data", checkpoint_data(r));
    return code ? code : check_files(r, "val_data", checkpoint_held(&r->feed));
}

int resume_check(const Trainer *r)
{
    int code = check_data(r);
    return code ? code : check_plan(r);
}

bool resume_at_end(const TrainOptions *t)
{
    const Resume *x = t->resume;
    return x && (x->step >= t->steps || (t->max_sec > 0 && x->sec >= train_sec(t)));
}
