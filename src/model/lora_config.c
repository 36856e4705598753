/* Reads and writes PEFT's adapter_config.json. As with config.json, a key is read here, or changes
 * no result of adapters that are there, or must be off: what is not known could change the
 * mathematics (biases, token rows, layers that are there twice), so it is refused by name, not
 * ignored.
 *
 * target_modules may be a list or a regular expression, and layers_to_transform and exclude_modules
 * may take modules away again. A list alone says which modules have adapters, and its tensors must
 * be there; of all else these say it, and whole names take its place (lora_take_modules). */
#include "model.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys that say nothing of adapters that are there already, or are read elsewhere. */
static const char *const harmless[] = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "lora_dropout",
    "loftq_config", "megatron_config", "megatron_core", "revision", "task_type", "peft_version",
    "peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "target_modules", "modules_to_save",
    "bias", "init_lora_weights", "rank_pattern", "alpha_pattern", "runtime_config", "eva_config",
    "corda_config", "lora_ga_config", "ephemeral_gpu_offload", "qalora_group_size",
    /* which modules: the tensors say it */
    "layers_to_transform", "layers_pattern", "exclude_modules", NULL};

static bool is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(name, *list))
        list++;
    return *list != NULL;
}

_Noreturn static void refuse(Json j, const char *key, const char *supported)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": %s is not supported; supported: %s", j.where,
         key, json_text(j, key), supported);
}

/* Ways to begin that leave the base as it is; others (pissa, olora, loftq, corda) change it. */
static void check_beginning(Json j)
{
    static const char *const plain[] = {"gaussian", "eva", "orthogonal", "lora_ga", NULL};
    const json_t *v = json_object_get(j.object, "init_lora_weights");
    if (json_is_string(v) && !is_in(json_string_value(v), plain))
        refuse(j, "init_lora_weights",
               "true, false, \"gaussian\", \"eva\", \"orthogonal\", which leave the base as it is");
}

static void check_text(Json j, const char *key, const char *expected)
{
    if (strcmp(json_find_string(j, key, expected), expected) != 0)
        refuse(j, key, arena_printf(j.a, "\"%s\"", expected));
}

static void check_keys(Json j)
{
    check_text(j, "peft_type", "LORA");
    check_text(j, "bias", "none");
    check_text(j, "task_type", "CAUSAL_LM");
    check_beginning(j);
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key))
        if (json_is_set(j, key) && !is_in(key, harmless))
            refuse(j, key, "null, false or empty");
}

static void read_names(Json j, const char *key, const char ***list, int *count, int *cap)
{
    for (int i = 0; json_string_at(j, key, i); i++)
        PUSH(j.a, *list, *count, *cap, arena_strdup(j.a, json_string_at(j, key, i)));
}

static double read_positive(Json j, const char *key, double fallback, double below)
{
    double x = json_find_real(j, key, fallback);
    if (!(x >= 0 && x < below))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected 0 to below %g, found %g", j.where,
             key, below, x);
    return x;
}

static void read_pattern(Json j, const char *key, double low, LoraPattern **list, int *count,
                         int *cap)
{
    if (!json_is_set(j, key))
        return;
    Json o = json_get_object(j, key);
    const char *where = arena_printf(j.a, "%s: key \"%s\"", j.where, key);
    for (const char *name = json_next(o, NULL); name; name = json_next(o, name)) {
        double x = json_get_real(o, name);
        if (!(x >= low && x <= 65536) || (low >= 1 && x != floor(x)))
            fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected %s %g to 65536, found %g",
                 o.where, name, low >= 1 ? "an integer from" : "a number from", low, x);
        LoraPattern p = {arena_strdup(j.a, name), lora_pattern(j.a, where, name), x};
        PUSH(j.a, *list, *count, *cap, p);
    }
}

Lora *lora_read(Arena *a, const char *path, const char **base)
{
    Json j = json_read(a, path);
    Lora *o = NEW(a, Lora);
    check_keys(j);
    *base = json_find_string(j, "base_model_name_or_path", NULL);
    *base = *base ? arena_strdup(a, *base) : NULL;
    *o = (Lora){.r = json_get_int(j, "r", 1, 65536),
                .alpha = read_positive(j, "lora_alpha", 8, 1e6),
                .dropout = read_positive(j, "lora_dropout", 0, 1),
                .rslora = json_find_bool(j, "use_rslora", false),
                .dora = json_find_bool(j, "use_dora", false)};
    read_pattern(j, "rank_pattern", 1, &o->ranks, &o->nrank, &o->caprank);
    read_pattern(j, "alpha_pattern", 0, &o->alphas, &o->nalpha, &o->capalpha);
    if (json_is_array(json_object_get(j.object, "target_modules"))) {
        read_names(j, "target_modules", &o->target, &o->ntarget, &o->captarget);
        o->listed = !json_has(j, "layers_to_transform") && !json_has(j, "exclude_modules");
    }
    if (json_has(j, "modules_to_save"))
        read_names(j, "modules_to_save", &o->save, &o->nsave, &o->capsave);
    return o;
}

static json_t *names(const char *const *name, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_string(name[i]));
    return list;
}

static json_t *number(double x)
{
    return x == floor(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *pattern(const LoraPattern *p, int count)
{
    json_t *all = json_object();
    for (int i = 0; i < count; i++)
        json_object_set_new(all, p[i].module, number(p[i].value));
    return all;
}

static json_t *text_or_null(const char *text)
{
    json_t *t = text ? json_string(text) : NULL;
    return t ? t : json_null();
}

const char *lora_text(Arena *a, const ModelConfig *c, const char *base)
{
    const Lora *o = c->lora;
    int ntarget;
    const char **target = lora_targets(a, c, &ntarget);
    json_t *j = json_pack(
        "{s:s, s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:b, s:b, s:o, s:o}",
        "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
        text_or_null(base), "r", (json_int_t)o->r, "lora_alpha", number(o->alpha), "lora_dropout",
        number(o->dropout), "target_modules", names(target, ntarget), "modules_to_save",
        o->nsave ? names(o->save, o->nsave) : json_null(), "bias", "none", "fan_in_fan_out",
        c->kind == MODEL_GPT2, "use_rslora", o->rslora, "use_dora", o->dora, "inference_mode", 1,
        "init_lora_weights", 1, "rank_pattern", pattern(o->ranks, o->nrank), "alpha_pattern",
        pattern(o->alphas, o->nalpha));
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(j);
    if (!text)
        fail(arena_ctx(a), TN_FAIL, "out of memory");
    const char *copy = arena_printf(a, "%s\n", text);
    free(text);
    return copy;
}
