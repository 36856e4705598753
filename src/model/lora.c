/* Adapters: what is asked for, which modules have them, and their parameters, as PEFT names and
 * initialises them. A module's name is that of transformers' model with its head,
 * "model.layers.0.mlp. up_proj"; a target is a whole name or its end after a dot. Adapters'
 * parameters are named as in PEFT's files. A is drawn from U(-1/sqrt(in), 1/sqrt(in)), which is its
 * kaiming_uniform_ with a = sqrt(5); B is zero; DoRA's magnitude is the norm of the weight's rows,
 * which the loader finds. */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char all_linear[] = "all-linear";

enum { MOST_RANK = 65536 };

/* ---- what is asked for ---- */

static const char keys[] = "r, alpha, dropout, targets, save, rslora, dora";

static double parse_number(Arena *a, const char *key, const char *text, double low, double high)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || errno || !(x >= low && x <= high))
        fail(arena_ctx(a), TN_USAGE, "lora: %s: expected a number from %g to %g, found \"%s\"", key,
             low, high, text);
    return x;
}

static void parse_names(Arena *a, const char *key, const char *text, const char ***list, int *count,
                        int *cap)
{
    for (size_t n; *text; text += n + (text[n] == '|')) {
        n = strcspn(text, "|");
        if (!n)
            break;
        PUSH(a, *list, *count, *cap, arena_strndup(a, text, n));
    }
    if (*text || !*count)
        fail(arena_ctx(a), TN_USAGE, "lora: %s: expected names of modules, separated by |", key);
}

static bool parse_switch(Arena *a, const char *key, const char *value)
{
    if (!value || !strcmp(value, "on"))
        return true;
    if (strcmp(value, "off") != 0)
        fail(arena_ctx(a), TN_USAGE, "lora: %s: expected on or off, found \"%s\"", key, value);
    return false;
}

/* Takes one "key=value", or a key alone. */
static void parse_field(Arena *a, Lora *o, const char *key, const char *value)
{
    bool flag = !strcmp(key, "rslora") || !strcmp(key, "dora");
    if (!flag && !value)
        fail(arena_ctx(a), TN_USAGE, "lora: %s: expected one of %s, with =VALUE", key, keys);
    if (!strcmp(key, "r")) {
        double r = parse_number(a, key, value, 1, MOST_RANK);
        if (r != floor(r))
            fail(arena_ctx(a), TN_USAGE, "lora: r: expected an integer, found \"%s\"", value);
        o->r = (int64_t)r;
    } else if (!strcmp(key, "alpha"))
        o->alpha = parse_number(a, key, value, 1e-6, 1e6);
    else if (!strcmp(key, "dropout"))
        o->dropout = parse_number(a, key, value, 0, 0.99);
    else if (!strcmp(key, "targets"))
        parse_names(a, key, value, &o->target, &o->ntarget, &o->captarget);
    else if (!strcmp(key, "save"))
        parse_names(a, key, value, &o->save, &o->nsave, &o->capsave);
    else if (!strcmp(key, "rslora"))
        o->rslora = parse_switch(a, key, value);
    else if (!strcmp(key, "dora"))
        o->dora = parse_switch(a, key, value);
    else
        fail(arena_ctx(a), TN_USAGE, "lora: expected one of %s, found \"%s\"", keys, key);
}

Lora *lora_parse(Arena *a, const char *text)
{
    Lora *o = NEW(a, Lora);
    Map seen = {.a = a};
    *o = (Lora){.r = 16};
    for (size_t n; *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        char *field = arena_strndup(a, text, n), *value = strchr(field, '=');
        if (value)
            *value++ = 0;
        if (map_find(&seen, field))
            fail(arena_ctx(a), TN_USAGE, "lora: %s is given twice", field);
        map_put(&seen, field, field);
        parse_field(a, o, field, value);
    }
    if (o->alpha == 0)
        o->alpha = 2 * (double)o->r;
    if (!o->ntarget)
        PUSH(a, o->target, o->ntarget, o->captarget, all_linear);
    return o;
}

/* ---- names ---- */

/* As PEFT has it: of the model with its head, whatever the file of weights says. */
static const char *whole_name(Arena *a, const ModelConfig *c, const char *name)
{
    if (!strncmp(name, "lm_head.", 8))
        return name;
    return arena_printf(a, "%s%s", family_of(c)->prefix, name + strlen(c->prefix));
}

static const char in_file[] = "base_model.model.";

const char *lora_name(Arena *a, const ModelConfig *c, Layer layer, const char *module,
                      const char *which)
{
    const char *prefix = !strcmp(module, "lm_head") ? "" : family_of(c)->prefix;
    return arena_printf(a, "%s%s%s%s.%s", in_file, prefix, layer.name, module, which);
}

/* The module of a parameter: all before its last dot. */
static const char *module_of(Arena *a, const ModelConfig *c, const ModelParam *p)
{
    const char *name = whole_name(a, c, p->name);
    return arena_strndup(a, name, (size_t)(strrchr(name, '.') - name));
}

/* Whether a target means a module: by its whole name, or its end after a dot. */
static bool means(const char *target, const char *module)
{
    size_t n = strlen(module), m = strlen(target);
    return ends_in(module, target) && (m == n || module[n - m - 1] == '.');
}

static bool is_table(const char *module)
{
    return means("embed_tokens", module) || means("wte", module) || means("wpe", module);
}

/* Whether p is the weight of a linear module. */
static bool is_linear(const ModelParam *p, const char *module)
{
    return !p->adapter && p->type.rank == 2 && !is_table(module) && ends_in(p->name, ".weight");
}

static bool is_target(const char *target, const char *module)
{
    return strcmp(target, all_linear) ? means(target, module) : strcmp(module, "lm_head") != 0;
}

static bool is_adapted(const Lora *o, const char *module)
{
    for (int i = 0; i < o->ntarget; i++)
        if (is_target(o->target[i], module))
            return true;
    return false;
}

static bool is_saved(const Lora *o, const char *module)
{
    for (int i = 0; i < o->nsave; i++)
        if (ends_in(module, o->save[i]))
            return true;
    return false;
}

static double find_value(const LoraPattern *p, int n, const char *module, double otherwise)
{
    for (int i = 0; i < n; i++)
        if (lora_pattern_means(&p[i], module))
            return p[i].value;
    return otherwise;
}

static int64_t rank_of(const Lora *o, const char *module)
{
    return (int64_t)find_value(o->ranks, o->nrank, module, (double)o->r);
}

double lora_scale(Arena *a, const Lora *o, const char *first)
{
    const char *name = first + strlen(in_file);
    const char *module = arena_strndup(a, name, strlen(name) - strlen(".lora_A.weight"));
    double r = (double)rank_of(o, module);
    return find_value(o->alphas, o->nalpha, module, o->alpha) / (o->rslora ? sqrt(r) : r);
}

bool lora_in_first(const ModelConfig *c, const ModelParam *weight)
{
    return c->kind == MODEL_GPT2 && strcmp(weight->name, "lm_head.weight") != 0;
}

/* ---- parameters ---- */

static ModelParam *add_adapter(ParamList *l, const char *name, const char *weight, int64_t rows,
                               int64_t cols)
{
    ModelParam p = {.name = name,
                    .type = type_make(F32, cols ? 2 : 1, (int64_t[]){rows, cols}),
                    .index = l->count,
                    .adapter = name,
                    .weight = weight};
    PUSH(l->a, l->param, l->count, l->cap, p);
    return &l->param[l->count - 1];
}

static void adapt(ParamList *l, const ModelParam *w, const char *module)
{
    const Lora *o = l->c->lora;
    bool in_first = lora_in_first(l->c, w);
    int64_t out = w->type.dim[in_first], in = w->type.dim[!in_first], r = rank_of(o, module);
    const char *name = w->name, *stem = arena_printf(l->a, "%s%s.lora_", in_file, module);
    add_adapter(l, arena_printf(l->a, "%sA.weight", stem), name, r, in)->bound =
        1 / sqrt((double)in);
    add_adapter(l, arena_printf(l->a, "%sB.weight", stem), name, out, r);
    if (o->dora)
        add_adapter(l, arena_printf(l->a, "%smagnitude_vector", stem), name, out, 0);
}

void lora_params(ParamList *l)
{
    const Lora *o = l->c->lora;
    int n = l->count;
    for (int i = 0; i < n; i++) {
        const ModelParam p = l->param[i]; /* a copy, as the list grows */
        const char *module = module_of(l->a, l->c, &p);
        if (is_saved(o, module))
            l->param[i].adapter =
                arena_printf(l->a, "%s%s", in_file, whole_name(l->a, l->c, p.name));
        else if (is_linear(&p, module) && is_adapted(o, module))
            adapt(l, &p, module);
    }
}

static bool has(const char *const *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

const char **lora_targets(Arena *a, const ModelConfig *c, int *count)
{
    const Lora *o = c->lora;
    ModelConfig plain = *c;
    const char **list = NULL;
    int nparam, cap = 0, n = 0;
    plain.lora = NULL;
    const ModelParam *p = model_params(a, &plain, &nparam);
    for (int i = 0; i < o->ntarget; i++)
        if (strcmp(o->target[i], all_linear) != 0)
            PUSH(a, list, n, cap, o->target[i]);
    for (int i = 0; i < nparam && has(o->target, o->ntarget, all_linear); i++) {
        const char *module = module_of(a, c, &p[i]), *dot = strrchr(module, '.');
        const char *end = dot ? dot + 1 : module;
        if (is_linear(&p[i], module) && is_target(all_linear, module) && !has(list, n, end))
            PUSH(a, list, n, cap, end);
    }
    *count = n;
    return list;
}

/* ---- whether they are the model's ---- */

/* The last parts of modules' names, each once: of linear ones, or of all. */
static const char **module_names(Arena *a, const ModelConfig *c, bool linear, int *n)
{
    Map seen = {.a = a};
    int count;
    ModelConfig plain = *c;
    plain.lora = NULL;
    const ModelParam *p = model_params(a, &plain, &count);
    const char **name = NEWN(a, const char *, count);
    *n = 0;
    for (int i = 0; i < count; i++) {
        const char *module = module_of(a, c, &p[i]), *dot = strrchr(module, '.');
        const char *last = dot ? dot + 1 : module;
        if ((linear && !is_linear(&p[i], module)) || map_find(&seen, last))
            continue;
        map_put(&seen, last, (void *)last);
        name[(*n)++] = last;
    }
    return name;
}

_Noreturn static void fail_target(Arena *a, const ModelConfig *c, bool save, const char *target)
{
    char text[1000];
    int n;
    const char **name = module_names(a, c, !save, &n);
    const char *why = !save && is_table(target)
                          ? ": a token table has no adapter here; save=NAME trains it whole"
                          : names_hint(target, name, n, text, sizeof text);
    fail(arena_ctx(a), TN_USAGE, "lora: %s: \"%s\" is no %smodule of the model%s",
         save ? "save" : "targets", target, save ? "" : "linear ", why);
}

static bool any_module(Arena *a, const ModelConfig *c, const ModelParam *p, int count,
                       const char *name, bool whole)
{
    for (int i = 0; i < count; i++) {
        const char *module = module_of(a, c, &p[i]);
        if (whole ? ends_in(module, name) : is_linear(&p[i], module) && is_target(name, module))
            return true;
    }
    return false;
}

/* A head that is the embedding has no weight of its own, and both are one module's. */
static void check_tied(Arena *a, const ModelConfig *c, const char *embedding)
{
    const Lora *o = c->lora;
    for (int i = 0; c->tie && i < o->ntarget; i++)
        if (means(o->target[i], "lm_head"))
            fail(arena_ctx(a), TN_USAGE,
                 "lora: targets: lm_head is tied to %s in this model: it has no adapter",
                 embedding);
    for (int i = 0; c->tie && i < o->nsave; i++)
        if (ends_in(embedding, o->save[i]) || ends_in("lm_head", o->save[i]))
            fail(arena_ctx(a), TN_USAGE,
                 "lora: save: %s: lm_head and %s are tied in this model, and PEFT would train one "
                 "of them apart",
                 o->save[i], embedding);
}

void lora_check(Arena *a, const ModelConfig *c)
{
    const Lora *o = c->lora;
    ModelConfig plain = *c;
    int count;
    plain.lora = NULL;
    const ModelParam *p = model_params(a, &plain, &count);
    check_tied(a, c, module_of(a, c, &p[0]));
    for (int i = 0; i < o->ntarget; i++)
        if (!any_module(a, c, p, count, o->target[i], false))
            fail_target(a, c, false, o->target[i]);
    for (int i = 0; i < o->nsave; i++)
        if (!any_module(a, c, p, count, o->save[i], true))
            fail_target(a, c, true, o->save[i]);
    for (int i = 0; i < count; i++) {
        const char *module = module_of(a, c, &p[i]);
        if (is_linear(&p[i], module) && is_adapted(o, module) && !is_saved(o, module))
            return;
    }
    fail(arena_ctx(a), TN_USAGE,
         "lora: save has every module of targets: expected one at least that gets an adapter");
}

/* ---- of a file ---- */

/* Whether a file has an adapter of a module. */
static bool file_has(Arena *a, const TensorFile *f, const char *module)
{
    return tensors_find(f, arena_printf(a, "%s%s.lora_A.weight", in_file, module)) != NULL;
}

_Noreturn static void fail_listed(Arena *a, const TensorFile *f, const char *module, bool there)
{
    fail(arena_ctx(a), TN_FAIL,
         there ? "%s: module \"%s\" has an adapter there, but target_modules of its "
                 "adapter_config.json does not mean it"
               : "%s: module \"%s\" has no adapter there, but target_modules of its "
                 "adapter_config.json means it",
         f->path, module);
}

void lora_take_modules(Arena *a, const ModelConfig *c, Lora *o, const TensorFile *f)
{
    int count, cap = 0, n = 0;
    bool other = !o->ntarget;
    const char **has = NULL, *odd = NULL; /* a module of which list and tensors differ */
    const ModelParam *p = model_params(a, c, &count);
    for (int i = 0; i < o->ntarget; i++)
        other |= !any_module(a, c, p, count, o->target[i], false);
    for (int i = 0; i < count; i++) {
        const char *module = module_of(a, c, &p[i]);
        if (!is_linear(&p[i], module))
            continue;
        bool there = file_has(a, f, module);
        bool meant = is_adapted(o, module) && !is_saved(o, module);
        odd = odd || there == meant ? odd : module;
        if (there)
            PUSH(a, has, n, cap, module);
    }
    if (!n)
        fail(arena_ctx(a), TN_FAIL,
             "%s: expected adapters of linear modules of the model, found none", f->path);
    if (odd && o->listed)
        fail_listed(a, f, odd, file_has(a, f, odd));
    if (!odd && !other)
        return;
    o->target = has;
    o->ntarget = n;
}

void lora_match(Arena *a, const ModelConfig *c, const TensorFile *f)
{
    Map known = {.a = a};
    int count;
    const ModelParam *p = model_params(a, c, &count);
    for (int i = 0; i < count; i++) {
        if (!p[i].adapter)
            continue;
        const TensorEntry *e = tensors_get(f, p[i].adapter);
        bool resized = !p[i].weight && e->type.rank == 2 && p[i].type.rank == 2 &&
                       e->type.dim[0] != p[i].type.dim[0];
        if (!shape_equal(&e->type, &p[i].type) || !dtype_float(e->type.dtype))
            fail(arena_ctx(a), TN_FAIL, "%s: tensor \"%s\": expected %s, found %s%s", f->path,
                 e->name, type_text(a, &p[i].type), type_text(a, &e->type),
                 resized ? "\n  adapters with resized embeddings are not supported: the base must "
                           "have as many rows"
                         : "");
        map_put(&known, p[i].adapter, (void *)&p[i]);
    }
    for (int i = 0; i < f->count; i++)
        if (!map_find(&known, f->entry[i].name))
            fail(arena_ctx(a), TN_FAIL,
                 "%s: tensor \"%s\", %s, is no part of the adapters that its adapter_config.json "
                 "describes",
                 f->path, f->entry[i].name, type_text(a, &f->entry[i].type));
}
