/* Options of a resumed run. state.json has the values with which the run began: options that are
 * not given again are taken from there; those that are given must be equal, except options that
 * change no number, and the end of the run, which may be moved with a message, as the schedule ends
 * there. Data may be at another path; its contents are checked when it is opened.
 *
 * A checkpoint may be someone else's. What is not stored (NEVER) is not taken from it, whatever it
 * says, and a file that is written (metrics alone) only where train sees that it is the run's. */
#include "cli.h"

#include "../train/train.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Whether a text of a list is the word for an empty one. */
static bool says_off(const Option *o, const char *text)
{
    return o->words && word_among(o->words, "off") && !strcmp(text, "off");
}

json_t *option_value(const Option *o)
{
    switch (o->kind) {
    case OPT_FLAG: return json_boolean(*(int *)o->into);
    case OPT_INT:
    case OPT_COUNT:
    case OPT_AUTO:
    case OPT_BYTES: return json_integer(*(int64_t *)o->into);
    case OPT_MEMORY: return json_integer(((tn_options *)o->into)->memory);
    case OPT_REAL: return json_real(*(double *)o->into);
    case OPT_LIST:
    case OPT_INS: {
        const Texts *t = o->into;
        json_t *list = json_array();
        for (int i = 0; i < t->count; i++)
            if (!says_off(o, t->text[i]))
                json_array_append_new(list, json_string(t->text[i]));
        return list;
    }
    case OPT_SHARED: {
        const Texts *t = o->into;
        json_t *list = json_array();
        for (int i = 0; i < t->count; i++)
            json_array_append_new(list, json_sprintf("%.*s=%s", (int)strcspn(t->option[i], "="),
                                                     t->option[i], t->text[i]));
        return list;
    }
    default: break;
    }
    const char *text = *(const char **)o->into;
    json_t *value = text ? json_string(text) : NULL;
    return value ? value : json_null();
}

/* The first text of an option that is not UTF-8; NULL: all are. */
static const char *not_utf8(const Option *o)
{
    json_t *value = option_value(o);
    const bool list = json_is_array(value);
    const char *bad = NULL;
    const Texts *t = o->into;
    if (json_is_null(value))
        bad = *(const char **)o->into; /* or NULL, where it was not given */
    for (int i = 0; list && i < t->count && !bad; i++) {
        json_t *text = json_string(t->text[i]);
        bad = text ? NULL : t->text[i];
        json_decref(text);
    }
    json_decref(value);
    return bad;
}

int options_storable(const Command *c, const Option *table)
{
    for (const Option *o = table; o->kind; o++) {
        bool kept = o->resume != RESUME_NEVER && strcmp(o->name, "out") != 0;
        const char *bad = kept ? not_utf8(o) : NULL;
        if (bad)
            return report(TN_CODE_USAGE,
                          "%s: --%s: expected UTF-8, as --resume reads it of state.json; found "
                          "\"%s\"",
                          c->name, o->name, bad);
    }
    return -1;
}

json_t *options_describe(const Option *table)
{
    json_t *all = json_object();
    for (const Option *o = table; o->kind; o++)
        if (o->resume != RESUME_NEVER)
            json_object_set_new(all, o->name, option_value(o));
    return all;
}

/* With `shared` each text has the name of its option before it. */
static bool take_list(Texts *t, const json_t *value, bool shared)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > (size_t)LEN(t->text))
        return false;
    t->count = (int)n;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(value, i));
        t->option[i] = s;
        t->text[i] = s && shared ? strchr(s, '=') : s;
        if (!t->text[i])
            return false;
        t->text[i] += shared;
    }
    return true;
}

/* Whether a path is of something that would be waited for, such as a pipe. */
static bool may_wait(const char *path)
{
    struct stat st;
    return path && !stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* Paths that a checkpoint names to be read: whoever made it may have named anything. */
static bool names_files(const Option *o)
{
    const Texts *t = o->into;
    bool good = o->kind != OPT_IN || !may_wait(*(const char **)o->into);
    for (int i = 0; o->kind == OPT_INS && i < t->count; i++)
        good = good && !may_wait(t->text[i]);
    return good;
}

/* Stores an unchecked value of state.json; false if the option cannot have it. */
static bool take(Option *o, const json_t *value)
{
    double x = json_number_value(value);
    switch (o->kind) {
    case OPT_FLAG: *(int *)o->into = json_is_true(value); return json_is_boolean(value);
    case OPT_INT:
    case OPT_AUTO:
    case OPT_COUNT: *(int64_t *)o->into = json_integer_value(value); break;
    case OPT_MEMORY:
        ((tn_options *)o->into)->memory = json_integer_value(value);
        return json_is_integer(value) && x >= 0;
    case OPT_BYTES:
        *(int64_t *)o->into = json_integer_value(value);
        return json_is_integer(value) && x >= 0;
    case OPT_REAL: *(double *)o->into = x; return json_is_real(value) && option_within(o, x);
    case OPT_LIST:
    case OPT_INS:
    case OPT_SHARED: return take_list(o->into, value, o->kind == OPT_SHARED);
    case OPT_WORD:
        if (!json_is_string(value) || !word_among(o->words, json_string_value(value)))
            return false;
        /* fall through */
    default: *(const char **)o->into = json_string_value(value); return json_is_string(value);
    }
    return json_is_integer(value) && option_within(o, x);
}

bool option_absent(const Option *o, const json_t *value)
{
    double x = json_number_value(value);
    bool number =
        o->kind == OPT_INT || o->kind == OPT_COUNT || o->kind == OPT_AUTO || o->kind == OPT_REAL;
    return json_is_null(value) || (json_is_array(value) && !json_array_size(value)) ||
           (number && (!option_within(o, x) || (x == 0 && o->resume == RESUME_END)));
}

/* Takes the stored --min-lr where none was given then, and the one given now is what it stands for:
 * a tenth of --lr. */
static bool is_default_min(Option *o, const json_t *stored, const json_t *before)
{
    double lr = json_number_value(json_object_get(stored, "lr"));
    if (strcmp(o->name, "min-lr") != 0 || !option_absent(o, before) ||
        fabs(*(double *)o->into - 0.1 * lr) > 1e-12 * lr)
        return false;
    *(double *)o->into = json_number_value(before);
    return true;
}

static bool is_chunked(const json_t *x)
{
    return json_is_string(x) && !strcmp(json_string_value(x), "chunked");
}

/* The rules of a list but for that of the optimizer's state, which may lie anywhere: bits stay. */
static json_t *without_state(const json_t *rules)
{
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(rules); i++) {
        json_t *rule = json_array_get(rules, i);
        if (!json_is_string(rule) || strcmp(json_string_value(rule), "offload=state") != 0)
            json_array_append(kept, rule);
    }
    return kept;
}

static bool differ_in_state(const Option *o, const json_t *before, const json_t *now)
{
    if (o->kind != OPT_SHARED)
        return false;
    json_t *x = without_state(before), *y = without_state(now);
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* An option that is not what it was: an exit code, or -1 where that may be. */
static int differs(const Option *o, const json_t *before, const json_t *now)
{
    if (differ_in_state(o, before, now))
        return -1;
    const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(9);
    if (word_among("shard sequence-parallel pin", o->name))
        fprintf(stderr, "tenon: warning: --resume: --%s is not what it was: bits may differ\n",
                o->name);
    if (!strcmp(o->name, "overlap") &&
        (is_chunked(before) || is_chunked(now))) /* which rounds otherwise */
        fprintf(stderr, "tenon: warning: --resume: --overlap chunked: bits may differ\n");
    if (o->resume == RESUME_OWN || o->resume == RESUME_NEVER)
        return -1;
    char *x = json_dumps(before, flags), *y = json_dumps(now, flags);
    bool absent = option_absent(o, before);
    int code = -1;
    if (o->resume == RESUME_END)
        fprintf(stderr,
                "tenon: warning: the run began %s --%s%s%s and now ends by %s: so does the "
                "schedule of the learning rate\n",
                absent ? "without" : "with", o->name, absent ? "" : " ", absent || !x ? "" : x,
                y ? y : "?");
    else
        code = report(TN_CODE_USAGE, "train: --%s: the run began with%s %s, found %s", o->name,
                      absent ? "out" : "", absent || !x ? "it" : x, y ? y : "?");
    free(x);
    free(y);
    return code;
}

/* Whether another option of the list that o shares was given: what is compared is the whole list,
 * once. */
static bool shared_given(const Option *table, const Option *o)
{
    bool found = false;
    for (const Option *p = table; p->kind; p++)
        found |= p != o && o->kind == OPT_SHARED && p->into == o->into && p->given;
    return found;
}

static const Option *find(const Option *table, const char *name)
{
    while (table->kind && strcmp(table->name, name) != 0)
        table++;
    return table;
}

/* Whether an option of the run says how its mesh is used, and another was given now, or none. */
static bool is_of_mesh(const Option *table, const json_t *stored, const Option *o)
{
    const Option *mesh = find(table, "mesh");
    const char *before = json_string_value(json_object_get(stored, "mesh"));
    if (!mesh->kind || !mesh->given || !before)
        return false;
    const char *now = *(const char **)mesh->into;
    bool of_ranks =
        word_among("reduce log-ranks bucket overlap gpu-comm", o->name) && !strcmp(now, "none");
    bool other = word_among("shard reshard sequence-parallel", o->name) && strcmp(before, now);
    if (other)
        fprintf(stderr, "tenon: note: --%s of the run was for --mesh %s: it is not taken to %s\n",
                o->name, before, now);
    return other || of_ranks;
}

/* Whether an option of the run is for a GPU, and it goes on without one. */
static bool is_of_gpu(const Option *table, const Option *o)
{
    const Option *backend = find(table, "backend");
    return !strcmp(o->name, "gpu-comm") && backend->kind && backend->given &&
           !tn_backend_is_gpu(*(const char **)backend->into);
}

/* Rules of the run without --offload, where it goes on without a memory beside the host's: then
 * what was offloaded is saved, with the same bits. Takes `before`. */
static json_t *without_offload(const Option *table, const Option *o, json_t *before)
{
    const Option *backend = find(table, "backend");
    bool off = o->kind == OPT_SHARED && json_is_array(before) && backend->kind && backend->given &&
               !strcmp(*(const char **)backend->into, "cpu");
    json_t *kept = json_array();
    for (size_t i = 0; off && i < json_array_size(before); i++) {
        json_t *rule = json_array_get(before, i); /* whose text the options will hold */
        if (!json_is_string(rule) || strncmp(json_string_value(rule), "offload=", 8))
            json_array_append(kept, rule);
    }
    off = off && json_array_size(kept) < json_array_size(before);
    if (off && !strcmp(o->name, "offload"))
        fprintf(stderr, "tenon: note: --offload of the run was for a memory beside the host's: it "
                        "is not taken to --backend cpu\n");
    json_decref(off ? before : kept);
    return off ? kept : before;
}

/* The value that a run began with, new; earlier versions wrote an empty list as the word for it.
 * NULL: it had no such option. */
static json_t *value_before(const Option *o, const json_t *stored)
{
    json_t *value = json_object_get(stored, o->name);
    bool off =
        json_is_string(value) && o->kind == OPT_LIST && says_off(o, json_string_value(value));
    return off ? json_array() : json_incref(value);
}

int options_resume(Option *table, const json_t *stored, const char *where)
{
    for (Option *o = table; o->kind; o++) {
        json_t *before = without_offload(table, o, value_before(o, stored));
        json_t *now = option_value(o);
        int code = -1;
        if (!before || o->resume == RESUME_NEVER || json_equal(before, now) ||
            (!o->given && shared_given(table, o)))
            ;
        else if (o->given && is_default_min(o, stored, before))
            ;
        else if (o->given && o->kind == OPT_AUTO && !*(int64_t *)o->into)
            *(int64_t *)o->into = json_integer_value(before); /* what the run has found */
        else if (o->given)
            code = differs(o, before, now);
        else if (is_of_mesh(table, stored, o) || is_of_gpu(table, o))
            ;
        else if (!take(o, before))
            code = report(TN_CODE_FAIL, "%s/state.json: \"%s\" is not an option's value", where,
                          o->name);
        else if (!names_files(o))
            code = report(TN_CODE_FAIL,
                          "%s/state.json: \"%s\": names what is no file; --%s names another", where,
                          o->name, o->name);
        else
            o->given = true;
        json_decref(before);
        json_decref(now);
        if (code >= 0)
            return code;
    }
    return -1;
}

int resume_adapter(const Option *table, const char *now, const json_t *stored)
{
    const char *before = json_string_value(json_object_get(stored, "adapter"));
    if (!option_given(table, "adapter") || (before && !strcmp(before, now)) ||
        (before && path_same(before, now)))
        return -1;
    return report(TN_CODE_USAGE, "train: --adapter: the run began with%s %s, found %s",
                  before ? "" : "out", before ? before : "it", now);
}

int resume_not_inside(const char *out)
{
    char run[CHECKPOINT_PATH];
    if (!folder_is_checkpoint(out))
        return -1;
    folder_parent(out, run);
    return report(TN_CODE_USAGE, "train: --resume: %s is a checkpoint of the run in %s: --out %s",
                  out, run, run);
}

/* ---- what else state.json says ---- */

/* Whether a version, numbers and dots, is later than another. */
static bool is_later(const char *version, const char *than)
{
    int x[3] = {0}, y[3] = {0};
    sscanf(version, "%d.%d.%d", &x[0], &x[1], &x[2]);
    sscanf(than, "%d.%d.%d", &y[0], &y[1], &y[2]);
    for (int i = 0; i < LEN(x); i++)
        if (x[i] != y[i])
            return x[i] > y[i];
    return false;
}

static int check_number(const json_t *state, const char *where, const char *key, int64_t expected)
{
    const json_t *value = json_object_get(state, key);
    if (json_is_integer(value) && json_integer_value(value) == expected)
        return -1;
    char *found = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    int code = report(TN_CODE_FAIL, "%s/state.json: \"%s\": expected %" PRId64 ", found %s", where,
                      key, expected, found ? found : "nothing");
    free(found);
    return code;
}

int state_check(const json_t *state, const char *where)
{
    static const char *const keys[][2] = {
        {"batch_size", "batch-size"}, {"seq_len", "seq-len"}, {"seed", "seed"}};
    const json_t *options = json_object_get(state, "options");
    const char *version = json_string_value(json_object_get(state, "version"));
    int code = -1;
    if (!version)
        return report(TN_CODE_FAIL, "%s/state.json: \"version\": expected a text", where);
    if (is_later(version, tn_version_number()))
        return report(TN_CODE_FAIL,
                      "%s/state.json: \"version\": written by tenon %s, which is later than this "
                      "one, %s",
                      where, version, tn_version_number());
    bool one_batch = json_is_string(json_object_get(options, "batch")); /* it has the sizes */
    for (int i = one_batch ? 2 : 0; i < LEN(keys) && code < 0; i++) {
        const json_t *option = json_object_get(options, keys[i][1]);
        if (option)
            code = check_number(state, where, keys[i][0], json_integer_value(option));
    }
    int64_t position = json_integer_value(json_object_get(state, "step"));
    if (code < 0 &&
        (__builtin_mul_overflow(position, json_integer_value(json_object_get(state, "batch_size")),
                                &position) ||
         __builtin_mul_overflow(position, json_integer_value(json_object_get(state, "seq_len")),
                                &position)))
        return report(TN_CODE_FAIL, "%s/state.json: \"batch_size\" times \"seq_len\": too large",
                      where);
    return code < 0 ? check_number(state, where, "data_position", position) : code;
}
