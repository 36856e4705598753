/* Models: opening, graphs, weights into a program's arena. */
#include "api.h"
#include "../spmd/spmd.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const char *path)
{
    struct stat st;
    return !stat(path, &st);
}

/* A config.json by itself: a model that has no weights yet, whatever the file is called. */
static bool is_config(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json") && !stat(path, &st) && S_ISREG(st.st_mode);
}

static const char *parent(Arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? arena_strndup(a, path, (size_t)MAX(slash - path, 1)) : ".";
}

/* A folder, or the checkpoint of a run, that is there but not for this process, or is a link that
 * leads nowhere. */
static void check_readable(Ctx *ctx, const char *path)
{
    static const char *const below[] = {"", "/config.json", "/latest/", "/latest/config.json"};
    char name[4096];
    for (int i = 0; i < LEN(below); i++) {
        int n = snprintf(name, sizeof name, "%s%s", path, below[i]);
        if (n >= (int)sizeof name)
            continue;
        if (access(name, R_OK) && errno == EACCES)
            fail(ctx, TN_FAIL, "%s: cannot be read: %s", name, strerror(errno));
        if (n > 1 && name[n - 1] == '/') /* of the link itself */
            name[n - 1] = 0;
        file_check_link(ctx, name);
    }
}

/* Whether a path names a graph rather than a model. */
static bool is_graph(const char *path)
{
    size_t n = strlen(path);
    return n > 3 && !strcmp(path + n - 3, ".tn");
}

static void fail_unknown(Ctx *ctx, Arena *tmp, const char *path)
{
    if (is_graph(path))
        fail(ctx, TN_USAGE,
             "%s: a graph, where a model is expected (a folder, a preset, a config.json)\n"
             "  `tenon train %s --inputs WEIGHTS` trains it, `tenon run` runs one step, `tenon "
             "plan` "
             "plans it",
             path, path);
    const char *names[32];
    int n = 0;
    while (n < LEN(names) && (names[n] = config_preset_name(n)))
        n++;
    const char *near = nearest(path, names, n);
    check_readable(ctx, path);
    if (exists(path))
        fail(ctx, TN_FAIL, "%s: no config.json there and no latest checkpoint", path);
    Buf all = {.a = tmp};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    fail(ctx, TN_FAIL,
         "model \"%s\": no such folder and no preset of that name%s%s%s\n  presets: %s", path,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "", all.text);
}

/* Notes what of the folder, or of a configuration alone, decides on what the model computes. */
static void list_read(tn_model *m, const char *config)
{
    Arena *a = m->h.a;
    int n = m->file ? m->file->nfile : 0;
    m->read = NEWN(a, const char *, n + 2);
    m->read[m->nread++] = arena_strdup(a, config);
    for (int i = 0; i < n; i++)
        m->read[m->nread++] = m->file->file[i].path;
    for (const Companion *c = m->companion; c; c = c->next)
        if (!strcmp(c->name, "tokenizer.json"))
            m->read[m->nread++] = arena_printf(a, "%s/%s", m->folder, c->name);
}

static tn_model *open_model(tn_context *ctx, Arena *call, const char *path);

/* Opens the base that a folder's adapters name, with these. A relative name counts from where the
 * process works, as PEFT takes it. */
static tn_model *open_adapted(tn_context *ctx, Arena *call, const char *folder)
{
    const char *base, *file = arena_printf(call, "%s/adapter_config.json", folder);
    lora_read(call, file, &base);
    const char *again = base ? adapters_folder(call, base) : NULL;
    if (again && adapters_alone(call, again))
        fail(
            &ctx->ctx, TN_FAIL,
            "%s: \"base_model_name_or_path\": %s has adapters itself: expected a folder of weights",
            file, base);
    if (!base || !model_folder(call, base))
        fail(
            &ctx->ctx, TN_FAIL,
            "%s: \"base_model_name_or_path\": %s%s%s\n  name it: M --adapter %s in the place of %s",
            file, base ? "no model folder is at " : "expected the folder of the adapters' base",
            base ? base : "", base ? "" : ", found none", folder, folder);
    tn_model *m = open_model(ctx, call, base);
    adapters_open(m, call, folder);
    return m;
}

/* The folder by which others find the model. */
static const char *absolute(Arena *a, const char *folder)
{
    char path[PATH_MAX];
    return arena_strdup(a, realpath(folder, path) ? path : folder);
}

static tn_model *open_model(tn_context *ctx, Arena *call, const char *path)
{
    const char *adapters = adapters_folder(call, path);
    if (adapters && adapters_alone(call, adapters))
        return open_adapted(ctx, call, adapters);
    tn_model *m = handle_new(ctx, call, sizeof *m);
    Arena *a = m->h.a;
    const ModelConfig *preset = config_preset(path);
    const char *folder = model_folder_linked(a, model_folder(a, path));
    if (folder && graph_model_file(call, folder)) {
        m->folder = arena_strdup(a, folder);
        model_check_state(call, folder);
        graph_model_open(m, graph_model_file(call, folder), folder);
        graph_model_check(m, call, folder);
        companions_open(m, folder);
        return m;
    }
    if (folder) {
        m->folder = arena_strdup(a, folder);
        model_check_state(call, folder);
        m->config = config_read(a, arena_printf(a, "%s/config.json", folder));
        convert_check(a, folder);
        m->file = tensors_open(a, folder);
        m->base = absolute(a, folder);
        model_match(a, &m->config, m->file);
        companions_open(m, folder);
        list_read(m, arena_printf(a, "%s/config.json", folder));
    } else if (is_config(path)) {
        m->config = config_read(a, path);
        m->folder = parent(a, path);
        companions_open(m, m->folder);
        list_read(m, path);
    } else if (preset) {
        m->config = *preset;
    } else {
        fail_unknown(&ctx->ctx, call, path);
    }
    m->param = model_params(a, &m->config, &m->nparam);
    return m;
}

int tn_model_open(tn_context *ctx, const char *path, tn_model **model)
{
    if (!GIVEN(ctx, ctx, path, model))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *model = handle_keep(open_model(ctx, try_arena(&t), path));
    return tried(&t);
}

int tn_model_resize(tn_model *m, int64_t vocab)
{
    if (!GIVEN(args_owner(m), m) || !WITHIN(args_owner(m), 1, MOST_VOCAB, vocab))
        return TN_CODE_USAGE;
    if (m->graph || vocab < m->config.vocab)
        return tn_context_fail(m->h.owner, TN_CODE_USAGE,
                               m->graph ? "%s: expected a model, found a graph, whose sizes are "
                                          "its own"
                                        : "%s: expected at least the %lld tokens that the model "
                                          "has, found %lld",
                               __func__, (long long)m->config.vocab, (long long)vocab);
    TRY(t, &m->h.owner->ctx) {
        config_resize(m->h.a, &m->config, vocab);
        m->param = model_params(m->h.a, &m->config, &m->nparam);
    }
    return tried(&t);
}

int tn_model_open_graph(tn_context *ctx, const char *path, const char *inputs, tn_model **model)
{
    if (!GIVEN(ctx, ctx, path, inputs, model))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        tn_model *m = handle_new(ctx, try_arena(&t), sizeof *m);
        m->folder = parent(m->h.a, path);
        graph_model_open(m, path, inputs);
        companions_open(m, m->folder);
        *model = handle_keep(m);
    }
    return tried(&t);
}

int tn_model_graph_batch(const tn_model *m, int64_t *batch, int64_t *seq, const char **labels)
{
    if (!GIVEN(args_owner(m), m, batch, seq, labels) || !m->graph)
        return 0;
    const GraphModel *x = m->graph;
    *batch = x->ids->v->type.dim[0];
    *seq = x->ids->v->type.dim[1];
    *labels = x->labels ? x->shift : "none";
    return !strcmp(graph_model_passes(m, "default"), "default")    ? 1
           : !strcmp(graph_model_passes(m, "default"), "compiled") ? 3
                                                                   : 2;
}

int tn_model_close_files(tn_model *m)
{
    if (!GIVEN(args_owner(m), m))
        return TN_CODE_USAGE;
    if (m->file)
        tensors_close(m->file);
    if (m->adapters)
        tensors_close(m->adapters);
    return 0;
}

void tn_model_free(tn_model *m)
{
    handle_free((Handle *)m);
}

int64_t tn_model_count(const tn_model *m)
{
    if (!GIVEN(args_owner(m), m))
        return 0;
    int64_t n = 0;
    for (int i = 0; i < m->nparam; i++)
        n += type_nelem(&m->param[i].type);
    return n;
}

void tn_model_shape(const tn_model *m, int64_t *vocab, int64_t *context)
{
    if (!GIVEN(args_owner(m), m, vocab, context))
        return;
    if (m->graph) {
        *vocab = m->graph->vocab;
        *context = m->graph->ids->v->type.dim[1];
        return;
    }
    *vocab = m->config.vocab;
    *context = config_longest(&m->config);
    if (m->config.window)
        *context = MIN(*context, m->config.window);
}

const char *tn_model_dropout(const tn_model *m, double *p)
{
    if (!GIVEN(args_owner(m), m, p))
        return NULL;
    *p = m->config.dropout;
    return m->config.dropout_text;
}

const char *tn_model_dtype(const tn_model *m)
{
    DType d = F32;
    if (!GIVEN(args_owner(m), m) || !m->file || m->graph)
        return NULL;
    for (int i = 0; i < m->nparam && !m->param[i].weight; i++) { /* adapters are last */
        DType now = tensors_find(m->file, m->param[i].name)->type.dtype;
        if (i && now != d)
            return "mixed";
        d = now;
    }
    return dtype_name(d);
}

const char *tn_model_folder(const tn_model *m)
{
    if (!GIVEN(args_owner(m), m))
        return NULL;
    return m->folder;
}

const char *tn_model_file(const tn_model *m, int i)
{
    if (!GIVEN(args_owner(m), m))
        return NULL;
    return i >= 0 && i < m->nread ? m->read[i] : NULL;
}

/* eos_token_id is a number or a list of them. */
/* The ids of eos_token_id, one or several, of a configuration's text. */
static int end_ids(const char *text, size_t n, int most, int64_t *ids)
{
    json_t *root = text ? json_loadb(text, n, 0, NULL) : NULL;
    json_t *end = json_object_get(root, "eos_token_id");
    size_t all = json_is_array(end) ? json_array_size(end) : 1;
    int count = 0;
    for (size_t i = 0; i < all; i++) {
        json_t *id = json_is_array(end) ? json_array_get(end, i) : end;
        if (json_is_integer(id) && count++ < most)
            ids[count - 1] = json_integer_value(id);
    }
    json_decref(root);
    return count;
}

int tn_model_end(const tn_model *m, int most, int64_t *ids)
{
    if (!GIVEN(args_owner(m), m) || !WITHIN(args_owner(m), 0, INT32_MAX, most) ||
        (most && !GIVEN(args_owner(m), ids)))
        return 0;
    const char *text = m->config.source;
    return end_ids(text, text ? strlen(text) : 0, most, ids);
}

int tn_model_stops(const tn_model *m, int most, int64_t *ids)
{
    enum { MOST = 1 << 16 };
    if (!GIVEN(args_owner(m), m) || !WITHIN(args_owner(m), 0, INT32_MAX, most) ||
        (most && !GIVEN(args_owner(m), ids)))
        return 0;
    const Companion *c = m->companion;
    while (c && strcmp(c->name, "generation_config.json") != 0)
        c = c->next;
    char *text = c ? malloc(MOST) : NULL;
    ssize_t n = text ? pread(c->fd, text, MOST, 0) : -1;
    int count = n > 0 ? end_ids(text, (size_t)n, most, ids) : 0;
    free(text);
    return count ? count : tn_model_end(m, most, ids);
}

/* A head that is tied has no tensor of its own to be chosen: the embedding, every model's first, is
 * both. */
static void check_tied(const tn_model *m, const Globs *p, const char *what)
{
    const char *head = "lm_head.weight", *embedding = m->param[0].name;
    for (int i = 0; m->config.tie && i < p->count; i++) {
        Globs one = {&p->pattern[i], 1};
        if (globs_match(&one, head) && !globs_match(&one, embedding))
            fail(&m->h.owner->ctx, TN_USAGE,
                 "%s \"%s\": %s is tied to \"%s\", which stands for both", what, *one.pattern, head,
                 embedding);
    }
}

/* The patterns of rules "PATTERN=...". */
static void check_tied_shardings(const tn_model *m, Arena *a, const tn_options *o)
{
    for (int i = 0; i < o->nshardings; i++) {
        const char *equals = strrchr(o->shardings[i], '=');
        const char *pattern =
            arena_strndup(a, o->shardings[i], equals ? (size_t)(equals - o->shardings[i]) : 0);
        check_tied(m, &(Globs){&pattern, 1}, "shard");
    }
}

/* Rows of a graph for a batch of so many: data ranks have as many each. */
static int64_t count_rows(Ctx *ctx, Arena *a, int64_t batch, const tn_options *o)
{
    PassOptions p = pass_defaults();
    p.mesh = o->mesh;
    p.rank = o->rank;
    const Mesh *m = sharding_mesh(ctx, a, &p);
    return m ? sharding_rows(m, batch, o->accumulate) : batch;
}

/* Text comes from a network that can be cut off after its logits, and run token by token. */
static void need_config(const tn_model *m)
{
    if (m->graph)
        fail(&m->h.owner->ctx, TN_USAGE,
             "%s: a graph computes its loss alone: it has no logits or text to give",
             m->graph->g->file);
}

static bool packs(const tn_options *o)
{
    return o->pack && !strcmp(o->pack, "on");
}

static tn_graph *make_graph(const tn_model *m, Arena *call, int64_t batch, int64_t seq,
                            const tn_options *o, bool drop)
{
    tn_graph *g = handle_new(m->h.owner, call, sizeof *g);
    Arena *a = g->h.a;
    g->tied = m->config.tie ? arena_strdup(a, m->param[0].name) : NULL;
    check_tied_shardings(m, a, o);
    g->filled = batch;
    g->iterations = o->accumulate;
    g->rows = count_rows(arena_ctx(a), a, batch, o);
    if (m->graph && packs(o))
        fail(arena_ctx(a), TN_USAGE, "%s: pack: a graph has the inputs that it has: expected off",
             m->graph->g->file);
    if (m->graph) {
        const int64_t *dim = m->graph->ids->v->type.dim;
        if (batch != dim[0] || seq != dim[1] || g->rows != batch)
            fail(arena_ctx(a), TN_USAGE,
                 "%s: a graph for %lld rows of %lld tokens: expected as many, and ranks that "
                 "divide them, found "
                 "%lld rows of %lld%s",
                 m->graph->g->file, (long long)dim[0], (long long)dim[1], (long long)g->rows,
                 (long long)seq, g->rows != batch ? " with padding" : "");
        g->g = graph_model_graph(m, a);
        graph_verify(g->g);
        return g;
    }
    g->g = model_graph(a, &m->config, g->rows, seq,
                       &(ModelOptions){o->dropout, o->z_loss, o->label_smoothing, drop, packs(o)});
    g->adapters = adapters_trained(m, a);
    graph_verify(g->g);
    return g;
}

int step_graph(tn_model *m, int64_t batch, int64_t seq, const tn_options *o, bool drop,
               tn_graph **graph)
{
    TRY(t, &m->h.owner->ctx)
        *graph = handle_keep(make_graph(m, try_arena(&t), batch, seq, o, drop));
    return tried(&t);
}

int tn_model_graph(tn_model *m, int64_t batch, int64_t seq, const tn_options *options,
                   tn_graph **graph)
{
    if (!GIVEN(args_owner(m), m, options, graph) ||
        !WITHIN(args_owner(m), 1, INT32_MAX, batch, seq) ||
        !args_options(args_owner(m), __func__, options))
        return TN_CODE_USAGE;
    return step_graph(m, batch, seq, options, true, graph);
}

int tn_model_logits(tn_model *m, int64_t batch, int64_t seq, tn_graph **graph)
{
    if (!GIVEN(args_owner(m), m, graph) || !WITHIN(args_owner(m), 1, INT32_MAX, batch, seq))
        return TN_CODE_USAGE;
    TRY(t, &m->h.owner->ctx) {
        need_config(m);
        tn_graph *g = handle_new(m->h.owner, try_arena(&t), sizeof *g);
        g->g = model_logits(g->h.a, &m->config, batch, seq);
        g->adapters = adapters_trained(m, g->h.a);
        *graph = handle_keep(g);
    }
    return tried(&t);
}

int tn_model_decode(tn_model *m, int64_t tokens, int64_t capacity, tn_graph **graph)
{
    if (!GIVEN(args_owner(m), m, graph) || !WITHIN(args_owner(m), 1, INT32_MAX, tokens, capacity))
        return TN_CODE_USAGE;
    TRY(t, &m->h.owner->ctx) {
        need_config(m);
        tn_graph *g = handle_new(m->h.owner, try_arena(&t), sizeof *g);
        g->g = model_decode(g->h.a, &m->config, tokens, capacity);
        g->adapters = adapters_trained(m, g->h.a);
        graph_verify(g->g);
        *graph = handle_keep(g);
    }
    return tried(&t);
}

/* ---- weights in ---- */

typedef struct InitialWeights {
    const ModelParam *param;
    uint64_t seed;
    DType dtype;
} InitialWeights;

static void draw_run(void *arg, int64_t first, int64_t n, void *to)
{
    const InitialWeights *x = arg;
    model_init_part(x->param, x->seed, x->dtype, first, n, to);
}

/* Reads an input of a graph; one without elements needs no tensor, state that has none is zeros. */
static void load_given(const tn_program *x, const tn_model *m, Arena *tmp, const PlanPort *p)
{
    const TensorEntry *e = graph_model_tensor(m, p);
    if (e)
        stage_tensor(x, tmp, p, m->file, e, true);
    else if (p->role == ROLE_STATE)
        stage_zeros(x, p);
}

/* A tensor that has fewer rows than the parameter: the others are its rows' mean. */
typedef struct GrownRows {
    const TensorFile *f;
    const TensorEntry *e;
    DType dtype;
    int64_t columns;
    const char *mean; /* of dtype */
} GrownRows;

static const char *mean_row(Arena *tmp, const TensorFile *f, const TensorEntry *e, DType d)
{
    int64_t rows = e->type.dim[0], columns = e->type.dim[1];
    double *sum = NEWN(tmp, double, columns);
    float *row = NEWN(tmp, float, columns);
    char *mean = arena_alloc(tmp, (size_t)(columns * dtype_size(d)));
    for (int64_t i = 0; i < rows; i++) {
        tensors_read_part(f, e, F32, true, i * columns, columns, row);
        for (int64_t k = 0; k < columns; k++)
            sum[k] += (double)row[k];
    }
    for (int64_t k = 0; k < columns; k++) {
        float x = (float)(sum[k] / (double)MAX(rows, (int64_t)1));
        if (d == BF16)
            ((uint16_t *)(void *)mean)[k] = f32_to_bf16(x);
        else
            ((float *)(void *)mean)[k] = x;
    }
    return mean;
}

static void grown_run(void *arg, int64_t first, int64_t n, void *to)
{
    const GrownRows *x = arg;
    int64_t there = MAX(MIN(n, type_nelem(&x->e->type) - first), (int64_t)0);
    int64_t size = dtype_size(x->dtype);
    if (there)
        tensors_read_part(x->f, x->e, x->dtype, true, first, there, to);
    for (int64_t i = there; i < n; i++)
        memcpy((char *)to + i * size, x->mean + (first + i) % x->columns * size, (size_t)size);
}

static void load_tensor(const tn_program *x, const tn_model *m, Arena *tmp, const PlanPort *p,
                        const ModelParam *param)
{
    const TensorEntry *e = tensors_get(m->file, p->name);
    DType d = p->type.dtype;
    if (shape_equal(&e->type, &param->type)) {
        stage_tensor(x, tmp, p, m->file, e, true);
        return;
    }
    GrownRows grown = {m->file, e, d, e->type.dim[1], mean_row(tmp, m->file, e, d)};
    stage_part(x, tmp, p, &param->type, grown_run, &grown);
}

static void load_param(const tn_program *x, const tn_model *m, Arena *tmp, const PlanPort *p,
                       uint64_t seed)
{
    const ModelParam *param = model_get_param(m, x->x->plan, p);
    InitialWeights initial = {param, seed, p->type.dtype};
    if (m->graph)
        load_given(x, m, tmp, p);
    else if (param->adapter && m->adapters)
        stage_tensor(x, tmp, p, m->adapters, tensors_get(m->adapters, param->adapter), true);
    else if (param->weight && param->type.rank == 1)
        adapters_magnitude(x, m, tmp, p, param, seed);
    else if (m->file && !param->weight)
        load_tensor(x, m, tmp, p, param);
    else
        stage_part(x, tmp, p, &param->type, draw_run, &initial);
}

static void load(tn_program *x, const tn_model *m, Arena *tmp, uint64_t seed)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        if (p->in[i].role == ROLE_PARAM)
            load_param(x, m, tmp, &p->in[i], seed);
        else if (m->graph && role_kept(p->in[i].role))
            load_given(x, m, tmp, &p->in[i]);
        else if (p->in[i].role == ROLE_STATE)
            stage_zeros(x, &p->in[i]);
        arena_reset(tmp);
    }
    part_wholes(p, m, x->whole);
    x->sized = true;
}

int tn_program_load(tn_program *x, tn_model *m, const tn_options *options)
{
    if (!GIVEN(args_owner(x), x, m, options) || !args_kin(__func__, x, m) ||
        !args_options(args_owner(x), __func__, options))
        return TN_CODE_USAGE;
    TRY(t, &x->h.owner->ctx) {
        model_verify(m, graph_mesh(x->x->plan->g));
        load(x, m, try_arena(&t), options->seed);
    }
    return tried(&t);
}
