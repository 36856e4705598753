/* Parameters: their list, their initial values, and their names in a file. A file of the bare model
 * (GPT2Model) lacks the prefix that a file of the model with its head has; the embedding's name
 * tells which it is, and the graph's parameters are named alike. */
#include "model.h"

#include <stdarg.h>
#include <stdio.h>
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
    family_of(c)->params(&l);
    if (c->lora)
        lora_params(&l);
    *count = l.count;
    return l.param;
}

/* ---- initial values ---- */

typedef struct InitFill {
    const ModelParam *p;
    uint64_t seed;
    int64_t first;
    Tensor dst; /* from there on */
} InitFill;

static void fill_part(void *arg, int64_t lo, int64_t hi)
{
    const InitFill *f = arg;
    for (int64_t i = lo; i < hi; i++) {
        double x = f->p->mean;
        if (f->p->bound > 0)
            x += f->p->bound *
                 (2 * random_uniform(f->seed, (uint32_t)f->p->index, 0, (uint64_t)(f->first + i)) -
                  1);
        else if (f->p->std > 0)
            x += f->p->std *
                 random_normal(f->seed, (uint32_t)f->p->index, 0, (uint64_t)(f->first + i));
        tensor_set(&f->dst, i, (float)x);
    }
}

void model_init_part(const ModelParam *p, uint64_t seed, DType d, int64_t first, int64_t n,
                     void *dst)
{
    InitFill f = {p, seed, first, {.data = dst, .dtype = d}};
    par_for(n, 4096, fill_part, &f);
}

void model_init(const ModelParam *p, uint64_t seed, DType d, void *dst)
{
    model_init_part(p, seed, d, 0, type_nelem(&p->type), dst);
}

/* ---- names in a file ---- */

/* After a layer's number in a name such as "h.12.attn.bias", or NULL. */
static const char *skip_layer(const char *name, const char *prefix, const char *list)
{
    size_t n = strlen(prefix), m = strlen(list);
    if (strncmp(name, prefix, n) || strncmp(name + n, list, m) || name[n + m] != '.')
        return NULL;
    name += n + m + 1;
    size_t digits = strspn(name, "0123456789");
    return digits && name[digits] == '.' ? name + digits + 1 : NULL;
}

/* Constants that older versions of transformers saved beside the parameters. */
static bool is_buffer(const ModelConfig *c, const char *name)
{
    const char *part = skip_layer(name, c->prefix, family_of(c)->list);
    if (c->kind == MODEL_GPT2)
        return part && (!strcmp(part, "attn.bias") || !strcmp(part, "attn.masked_bias"));
    if (part)
        return !strcmp(part, "self_attn.rotary_emb.inv_freq");
    size_t n = strlen(c->prefix);
    return !strncmp(name, c->prefix, n) && !strcmp(name + n, "rotary_emb.inv_freq");
}

static const char *find_prefix(const ModelConfig *c, const TensorFile *f)
{
    const char *with = family_of(c)->prefix;
    size_t n = strlen(with);
    for (int i = 0; i < f->count; i++)
        if (!strncmp(f->entry[i].name, with, n))
            return with;
    return "";
}

/* ---- what does not fit ---- */

enum { MISFITS = 8 };

/* The first is the message's line, the next few its details; the others are counted. */
typedef struct Misfits {
    const TensorFile *f;
    Buf text;
    int count;
} Misfits;

static void misfit(Misfits *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void misfit(Misfits *m, const char *format, ...)
{
    char line[200];
    va_list args;
    if (m->count++ >= MISFITS)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    buf_printf(&m->text, "%stensor %s", m->count > 1 ? "\n  " : "", line);
}

static void check_param(Misfits *m, const ModelParam *p)
{
    const TensorEntry *e = tensors_find(m->f, p->name);
    Arena *a = m->f->a;
    if (!e)
        misfit(m, "\"%s\", %s, is missing", p->name, type_text(a, &p->type));
    else if (!shape_equal(&p->type, &e->type) || !dtype_float(e->type.dtype))
        misfit(m, "\"%s\": expected %s, found %s", p->name, type_text(a, &p->type),
               type_text(a, &e->type));
}

/* A tensor that is no parameter: a file may hold the head of a tied model, but then it must be the
 * embedding. */
static void check_other(Misfits *m, const ModelConfig *c, const ModelParam *embedding,
                        const TensorEntry *e)
{
    if (!c->tie || strcmp(e->name, "lm_head.weight")) {
        misfit(m, "\"%s\", %s, is no part of this model", e->name, type_text(m->f->a, &e->type));
        return;
    }
    const TensorEntry *tied = tensors_find(m->f, embedding->name);
    if (tied && !tensors_same(m->f, tied, e))
        misfit(m, "\"%s\" differs from \"%s\", but tie_word_embeddings holds", e->name,
               embedding->name);
}

/* A file may hold a tied model's head alone: it is the embedding, and is found by that name. */
static void name_tied(const ModelConfig *c, const ModelParam *embedding, TensorFile *f)
{
    const TensorEntry *head = c->tie ? tensors_find(f, "lm_head.weight") : NULL;
    if (!head || tensors_find(f, embedding->name))
        return;
    map_put(&f->names, embedding->name, map_find(&f->names, head->name));
    f->entry[head - f->entry].name = embedding->name;
}

void model_match(Arena *a, ModelConfig *c, TensorFile *f)
{
    Map known = {.a = a};
    Misfits m = {.f = f, .text = {.a = a}};
    int count;
    c->prefix = find_prefix(c, f);
    const ModelParam *p = model_params(a, c, &count);
    name_tied(c, &p[0], f);
    for (int i = 0; i < count; i++) {
        check_param(&m, &p[i]);
        map_put(&known, p[i].name, (void *)&p[i]);
    }
    for (int i = 0; i < f->count; i++) {
        const TensorEntry *e = &f->entry[i];
        if (!map_find(&known, e->name) && !is_buffer(c, e->name))
            check_other(&m, c, &p[0], e);
    }
    if (m.count)
        fail(arena_ctx(a), TN_FAIL, "%s: %s%s", f->path, m.text.text,
             m.count > MISFITS ? arena_printf(a, "\n  and %d more", m.count - MISFITS) : "");
}
