/* Adapters of a model: those that a text asks for, whose first values a seed gives, or those of a
 * folder that PEFT, or a run of train, has written. Their names are those of PEFT's files. */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has(Arena *a, const char *folder, const char *name)
{
    return !access(arena_printf(a, "%s/%s", folder, name), F_OK);
}

const char *adapters_folder(Arena *a, const char *path)
{
    if (has(a, path, "adapter_config.json"))
        return model_folder_linked(a, path);
    const char *latest = arena_printf(a, "%s/latest", path);
    return has(a, latest, "adapter_config.json") ? model_folder_linked(a, latest) : NULL;
}

bool adapters_alone(Arena *a, const char *folder)
{
    return has(a, folder, "adapter_config.json") && !has(a, folder, "model.safetensors") &&
           !has(a, folder, "model.safetensors.index.json");
}

/* ---- attaching ---- */

static void check_model(const tn_model *m)
{
    if (m->graph)
        fail(&m->h.owner->ctx, TN_USAGE,
             "%s: a graph names no modules: adapters are for models with a config.json",
             m->graph->g->file);
}

static void attach(tn_model *m, const Lora *o, TensorFile *f)
{
    m->config.lora = o;
    m->adapters = f;
    m->verified = 0;
    m->param = model_params(m->h.a, &m->config, &m->nparam);
}

void adapters_new(tn_model *m, const char *text)
{
    check_model(m);
    Lora *o = lora_parse(m->h.a, text);
    ModelConfig c = m->config;
    c.lora = o;
    lora_check(m->h.a, &c);
    attach(m, o, NULL);
}

static const char *weights_of(Arena *a, const char *folder)
{
    const char *path = arena_printf(a, "%s/adapter_model.safetensors", folder);
    if (access(path, F_OK) && has(a, folder, "adapter_model.bin"))
        fail(arena_ctx(a), TN_FAIL,
             "%s: expected adapter_model.safetensors, found adapter_model.bin\n"
             "  PEFT writes the former: PeftModel.from_pretrained(base, FOLDER).save_pretrained("
             "FOLDER)",
             folder);
    return path;
}

/* Adds the files that decide on what the model computes. */
static void list_files(tn_model *m, const char *folder)
{
    Arena *a = m->h.a;
    const char **read = NEWN(a, const char *, m->nread + 2);
    for (int i = 0; i < m->nread; i++)
        read[i] = m->read[i];
    m->read = read;
    m->read[m->nread++] = arena_printf(a, "%s/adapter_config.json", folder);
    m->read[m->nread++] = weights_of(a, folder);
}

void adapters_open(tn_model *m, Arena *call, const char *folder)
{
    Arena *a = m->h.a;
    const char *base;
    check_model(m);
    Lora *o = lora_read(a, arena_printf(a, "%s/adapter_config.json", folder), &base);
    TensorFile *f = tensors_open(a, weights_of(a, folder));
    ModelConfig c = m->config;
    c.lora = NULL;
    lora_take_modules(a, &c, o, f);
    c.lora = o;
    lora_check(a, &c);
    lora_match(call, &c, f);
    attach(m, o, f);
    list_files(m, folder);
    if (!has(a, folder, "state.json"))
        return;
    model_check_state(call, folder);
    m->folder = arena_strdup(a, folder); /* of a run, which has all that the base's has */
    companions_open(m, m->folder);
}

TensorFile *adapters_check(Arena *a, const char *folder)
{
    const char *base;
    lora_read(a, arena_printf(a, "%s/adapter_config.json", folder), &base);
    return tensors_open(a, weights_of(a, folder));
}

/* ---- values ---- */

/* The norms of a weight's rows, or of its columns where it is [in, out], as floats. */
static float *norms(const tn_model *m, Arena *tmp, const ModelParam *w, uint64_t seed)
{
    bool in_first = lora_in_first(&m->config, w);
    int64_t rows = w->type.dim[0], cols = w->type.dim[1], n = in_first ? cols : rows;
    float *x = SPARSE(tmp, float, rows *cols), *norm = NEWN(tmp, float, n);
    double *sum = NEWN(tmp, double, n);
    if (m->file)
        tensors_read(m->file, tensors_get(m->file, w->name), F32, true, x);
    else
        model_init(w, seed, F32, x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            sum[in_first ? k : i] += (double)x[i * cols + k] * (double)x[i * cols + k];
    for (int64_t i = 0; i < n; i++)
        norm[i] = (float)sqrt(sum[i]);
    return norm;
}

static void give_floats(void *arg, int64_t first, int64_t n, void *to)
{
    memcpy(to, (const float *)arg + first, (size_t)n * sizeof(float));
}

void adapters_magnitude(const tn_program *x, const tn_model *m, Arena *tmp, const PlanPort *p,
                        const ModelParam *magnitude, uint64_t seed)
{
    float *norm = norms(m, tmp, model_param(m, magnitude->weight), seed);
    stage_part(x, tmp, p, &magnitude->type, give_floats, norm);
}

Globs adapters_trained(const tn_model *m, Arena *a)
{
    const char **pattern = NULL;
    int n = 0, cap = 0;
    if (!m->config.lora)
        return (Globs){0};
    PUSH(a, pattern, n, cap, "base_model.*");
    for (int i = 0; i < m->nparam; i++)
        if (m->param[i].adapter && !m->param[i].weight)
            PUSH(a, pattern, n, cap, arena_strdup(a, m->param[i].name));
    return (Globs){pattern, n};
}
