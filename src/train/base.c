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

int base_find(Trainer *r)
{
    const char *path;
    int code = 0;
    if (!tn_model_base(r->m))
        return 0;
    r->base = json_array();
    for (int i = 0; !code && (path = tn_model_file(r->m, i)); i++)
        if (ends(path, ".safetensors") && !ends(path, "/adapter_model.safetensors"))
            code = add_file(r->ctx, r->base, path);
    return code;
}

static bool same_file(const json_t *x, const json_t *y)
{
    return json_equal(json_object_get(x, "nbytes"), json_object_get(y, "nbytes")) &&
           json_equal(json_object_get(x, "hash"), json_object_get(y, "hash"));
}

int base_check(const Trainer *r)
{
    const json_t *before = json_object_get(r->t->resume->state, "base");
    size_t had = json_array_size(before), has = json_array_size(r->base);
    if (had != has)
        return tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "--resume: the adapters' base had %zu files of weights when the run "
                               "began, now %zu",
                               had, has);
    for (size_t i = 0; i < has; i++) {
        const json_t *now = json_array_get(r->base, i);
        const char *path = json_string_value(json_object_get(now, "path"));
        if (!same_file(json_array_get(before, i), now))
            return tn_context_fail(
                r->ctx, TN_CODE_FAIL,
                "--resume: %s: the adapters' base had other weights when the run "
                "began\n  where it has moved: M, as the first argument, names "
                "the new place",
                path ? path : "base");
    }
    return 0;
}
