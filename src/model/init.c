/* Parameters: their list, initial values, and how they are found in a file. A file made by the bare
 * model (GPT2Model) lacks the prefix that one made by the model with its head has; which one it is
 * shows at the embedding, and the names of the graph's parameters follow. */
#include "model.h"

#include <string.h>

const char *param_name(Arena *a, const ModelConfig *c, Layer layer, const char *name)
{
    bool head = !strncmp(name, "lm_head.", 8);
    return arena_printf(a, "%s%s%s", head ? "" : c->prefix, layer.name, name);
}

void param_add(ParamList *l, const char *name, int64_t rows, int64_t cols, double mean, double std)
{
    ModelParam p = {.name = param_name(l->a, l->c, l->layer, name),
                    .type = type_make(F32, cols ? 2 : 1, (int64_t[]){rows, cols}),
                    .index = l->count,
                    .mean = mean,
                    .std = std};
    PUSH(l->a, l->param, l->count, l->cap, p);
}

const ModelParam *model_params(Arena *a, const ModelConfig *c, int *count)
{
    ParamList l = {.a = a, .c = c, .layer = layer_none()};
    if (c->kind == MODEL_GPT2)
        gpt2_params(&l);
    else
        llama_params(&l);
    *count = l.count;
    return l.param;
}

/* ---- initial values ---- */

typedef struct Fill {
    const ModelParam *p;
    uint64_t seed;
    float *dst;
} Fill;

static void fill_part(void *arg, int64_t lo, int64_t hi)
{
    const Fill *f = arg;
    for (int64_t i = lo; i < hi; i++) {
        double x = f->p->mean;
        if (f->p->std > 0)
            x += f->p->std * random_normal(f->seed, (uint32_t)f->p->index, 0, (uint64_t)i);
        f->dst[i] = (float)x;
    }
}

void model_init(const ModelParam *p, uint64_t seed, float *dst)
{
    par_for(type_nelem(&p->type), 4096, fill_part, &(Fill){p, seed, dst});
}

/* ---- names in a file ---- */

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Constants that older versions of transformers saved beside the parameters. */
static bool is_buffer(const ModelConfig *c, const char *name)
{
    if (c->kind == MODEL_LLAMA)
        return ends_in(name, ".rotary_emb.inv_freq");
    return ends_in(name, ".attn.bias") || ends_in(name, ".attn.masked_bias");
}

static const char *find_prefix(const ModelConfig *c, const TensorFile *f)
{
    const char *with = c->kind == MODEL_GPT2 ? "transformer." : "model.";
    size_t n = strlen(with);
    for (int i = 0; i < f->count; i++)
        if (!strncmp(f->entry[i].name, with, n))
            return with;
    return "";
}

static void check_param(Ctx *ctx, const TensorFile *f, const ModelParam *p, const TensorEntry *e)
{
    Arena *a = f->a;
    if (!e)
        fail(ctx, TN_FAIL, "%s: tensor \"%s\", %s, is missing", f->path, p->name,
             type_text(a, &p->type));
    if (!shape_equal(&p->type, &e->type) || !dtype_float(e->type.dtype))
        fail(ctx, TN_FAIL, "%s: tensor \"%s\": expected %s, found %s", f->path, p->name,
             type_text(a, &p->type), type_text(a, &e->type));
}

/* A file may hold the head of a tied model, but then it must be the embedding. */
static void check_tied_head(Ctx *ctx, const TensorFile *f, const ModelParam *embedding,
                            const TensorEntry *head)
{
    if (!tensors_same(f, tensors_get(f, embedding->name), head))
        fail(ctx, TN_FAIL, "%s: tie_word_embeddings holds, but \"%s\" differs from \"%s\"", f->path,
             head->name, embedding->name);
}

void model_match(Arena *a, ModelConfig *c, const TensorFile *f)
{
    Ctx *ctx = arena_ctx(a);
    Map known = {.a = a};
    int count;
    c->prefix = find_prefix(c, f);
    const ModelParam *p = model_params(a, c, &count);
    for (int i = 0; i < count; i++) {
        check_param(ctx, f, &p[i], tensors_find(f, p[i].name));
        map_put(&known, p[i].name, (void *)&p[i]);
    }
    for (int i = 0; i < f->count; i++) {
        const TensorEntry *e = &f->entry[i];
        if (map_find(&known, e->name) || is_buffer(c, e->name))
            continue;
        if (!c->tie || strcmp(e->name, "lm_head.weight"))
            fail(ctx, TN_FAIL, "%s: tensor \"%s\" is no part of this model", f->path, e->name);
        check_tied_head(ctx, f, &p[0], e);
    }
}
