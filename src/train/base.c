/* The base of adapters: a checkpoint of theirs names its folder but does not hold it, so its
 * state.json has the hashes of its weights' files, by which a run that goes on sees that they are
 * the same. The folder may have moved. */
#include "trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static bool ends(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && !strcmp(path + n - m, end);
}

static int add_file(tn_context *ctx, json_t *list, const char *path)
{
    int64_t nbytes;
    uint64_t hash;
    char hex[17];
    int code = tn_file_hash(ctx, path, &nbytes, &hash);
    if (code)
        return code;
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    json_t *name = json_string(path);
    json_array_append_new(list, json_pack("{s:o, s:I, s:s}", "path", name ? name : json_null(),
                                          "nbytes", (json_int_t)nbytes, "hash", hex));
    return 0;
}

static int list_files(tn_context *ctx, const tn_model *m, json_t *list)
{
    const char *path;
    int code = 0;
    for (int i = 0; !code && (path = tn_model_file(m, i)); i++)
        if (ends(path, ".safetensors") && !ends(path, "/adapter_model.safetensors"))
            code = add_file(ctx, list, path);
    return code;
}

int base_find(Trainer *r)
{
    if (!tn_model_base(r->m))
        return 0;
    r->base = json_array();
    return list_files(r->ctx, r->m, r->base);
}

static bool same_file(const json_t *x, const json_t *y)
{
    return json_equal(json_object_get(x, "nbytes"), json_object_get(y, "nbytes")) &&
           json_equal(json_object_get(x, "hash"), json_object_get(y, "hash"));
}

/* Says how the files of the base differ from those of a run's state; "" where they do not. */
static void compare_files(const json_t *before, const json_t *now, char *text, size_t size)
{
    size_t had = json_array_size(before), has = json_array_size(now);
    *text = 0;
    if (had != has)
        snprintf(text, size,
                 "the adapters' base had %zu files of weights when the run began, now %zu", had,
                 has);
    for (size_t i = 0; i < has && !*text; i++) {
        const json_t *file = json_array_get(now, i);
        const char *path = json_string_value(json_object_get(file, "path"));
        if (!same_file(json_array_get(before, i), file))
            snprintf(text, size, "%s: the adapters' base had other weights when the run began",
                     path ? path : "base");
    }
}

int base_check(const Trainer *r)
{
    char text[CHECKPOINT_PATH + 100];
    compare_files(json_object_get(r->t->resume->state, "base"), r->base, text, sizeof text);
    if (!*text)
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "--resume: %s\n  where it has moved: M, as the first argument, names "
                           "the new place",
                           text);
}

int base_compare(tn_context *ctx, const tn_model *m, char *text, size_t size)
{
    char path[CHECKPOINT_PATH];
    json_t *list = json_array(), *state = NULL;
    const char *folder = tn_model_folder(m);
    int code = 0;
    *text = 0;
    if (folder && snprintf(path, sizeof path, "%s/state.json", folder) < (int)sizeof path)
        state = folder_json(path);
    const json_t *before = json_object_get(state, "base");
    if (before)
        code = list_files(ctx, m, list);
    if (before && !code)
        compare_files(before, list, text, size);
    json_decref(state);
    json_decref(list);
    return code;
}
