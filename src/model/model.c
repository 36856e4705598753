/* Builds the graph of forward and loss. Hidden states are matrices [B*T, C], so every product is
 * one mm over all tokens; attention sees views [B, T, H, D] of them. Sizes of views leave the batch
 * axis open (-1), so that a pass that cuts the batch need not rewrite them.
 *
 * Scopes are "layers.N.MODULE" with Hugging Face's module names, for all families alike
 * (h.N of GPT-2 is layers.N), so that one pattern serves all models. Dropout nodes take the streams
 * 0, 1, ... in the order of the forward.
 *
 * The decoding graph is the same network on a few tokens; their position is an operand, and keys
 * and values of earlier positions are in caches, so one plan serves every step. */
#include "model.h"

#include <ctype.h>
#include <string.h>

/* A value's name from a parameter's: letters, digits and _. */
static const char *value_name(Arena *a, const char *param)
{
    char *s = arena_strdup(a, param);
    for (char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p))
            *p = '_';
    return s;
}

Layer layer_make(Arena *a, const char *list, int64_t i)
{
    return (Layer){.name = arena_printf(a, "%s.%lld.", list, (long long)i),
                   .scope = arena_printf(a, "layers.%lld", (long long)i)};
}

Layer layer_none(void)
{
    return (Layer){.name = "", .scope = ""};
}

void model_scope(Model *m, const char *module)
{
    m->b.scope = *module ? scope_join(m->b.g->a, m->layer.scope, module) : m->layer.scope;
}

Value *model_weight(const Model *m, const char *module, const char *which)
{
    Arena *a = m->b.g->a;
    const char *name = arena_printf(a, "%s.%s", module, which);
    Value *v = map_find(&m->params, param_name(a, m->c, m->layer, name));
    CHECK(v);
    return v;
}

Value *model_reshape(Model *m, Value *x, int rank, const int64_t *size)
{
    return emit1(&m->b, "view", IN(x), ATTRS(A_INTS("size", rank, size)));
}

Value *model_embedding(Model *m, const char *module)
{
    model_scope(m, module);
    return emit1(&m->b, "embedding", IN(model_weight(m, module, "weight"), m->ids), NOATTRS);
}

Value *model_dropout(Model *m, Value *h, const char *module)
{
    if (!(m->dropout > 0))
        return h;
    model_scope(m, module);
    return model_dropped(m, h, m->c->hidden, m->dropout);
}

Value *model_dropped(Model *m, Value *x, int64_t width, double p)
{
    const int64_t wide[] = {-1, m->T, width}, flat[] = {-1, width};
    Node *n = emit_stream(&m->b, "dropout", IN(model_reshape(m, x, 3, wide), m->seed, m->step),
                          ATTRS(A_FLOAT("p", p)), m->ndropout++);
    return model_reshape(m, n->out[0], 2, flat);
}

static const struct {
    const char *name, *op, *approximate;
} activations[] = {
    {"gelu_new", "gelu", "tanh"},  {"gelu_pytorch_tanh", "gelu", "tanh"},
    {"gelu_fast", "gelu", "tanh"}, {"gelu_python_tanh", "gelu", "tanh"},
    {"gelu", "gelu", "none"},      {"gelu_python", "gelu", "none"},
    {"relu", "relu", NULL},        {"silu", "silu", NULL},
    {"swish", "silu", NULL},
};

static int find_activation(const char *name)
{
    for (int i = 0; i < LEN(activations); i++)
        if (!strcmp(activations[i].name, name))
            return i;
    return -1;
}

bool activation_known(const char *name)
{
    return find_activation(name) >= 0;
}

const char *activation_list(Arena *a)
{
    Buf b = {.a = a};
    for (int i = 0; i < LEN(activations); i++)
        buf_printf(&b, "%s%s", i ? ", " : "", activations[i].name);
    return b.text;
}

Value *model_activation(Model *m, Value *x)
{
    int i = find_activation(m->c->activation);
    CHECK(i >= 0);
    const char *approximate = activations[i].approximate;
    return emit1(&m->b, activations[i].op, IN(x),
                 approximate ? ATTRS(A_STR("approximate", approximate)) : NOATTRS);
}

Value *model_places(Model *m)
{
    Value *count = emit1(&m->b, "arange", 0, NULL, ATTRS(A_INT("end", m->T)));
    return m->position ? emit1(&m->b, "add", IN(count, m->position), NOATTRS) : count;
}

Value *model_positions(Model *m)
{
    Value *places = model_places(m);
    return m->starts ? emit1(&m->b, "sub", IN(places, m->starts), NOATTRS) : places;
}

/* Puts x into the layer's cache of that name; all of it. */
static Value *cached(Model *m, const char *name, Value *x)
{
    Graph *g = m->b.g;
    Type t = x->type;
    t.dim[1] = m->capacity;
    name = scope_join(g->a, m->layer.scope, name);
    Value *cache = graph_input(g, value_name(g->a, name), t, ROLE_CACHE, name);
    Value *y = emit1(&m->b, "cache_update", IN(cache, x, m->position), NOATTRS);
    graph_output(g, y, ROLE_NEW, name);
    return y;
}

Value *model_attention(Model *m, Value *q, Value *k, Value *v)
{
    const int64_t flat[] = {-1, m->c->nhead * m->c->head_dim};
    Value *in[] = {q, k, v, m->position ? m->position : m->starts};
    if (m->position) {
        in[1] = cached(m, "k", k);
        in[2] = cached(m, "v", v);
    }
    Value *o = emit1(&m->b, "flash_attention", in[3] ? 4 : 3, in, ATTRS(A_BOOL("causal", 1)));
    return model_reshape(m, o, 2, flat);
}

Value *model_residual(Model *m, Value *h, Value *y)
{
    model_scope(m, "");
    return emit1(&m->b, "add", IN(h, y), NOATTRS);
}

Value *model_last(Model *m, Value *h)
{
    model_scope(m, "");
    return m->last ? emit1(&m->b, "embedding", IN(h, m->last), NOATTRS) : h;
}

Value *model_head(Model *m, Value *h, const char *embedding)
{
    if (!m->c->tie)
        return model_linear(m, h, "lm_head", false, false);
    model_scope(m, "lm_head");
    Value *w = model_weight(m, embedding, "weight");
    return emit1(&m->b, "mm", IN(h, emit1(&m->b, "t", IN(w), NOATTRS)), NOATTRS);
}

/* ---- inputs and loss ---- */

static void add_params(Model *m)
{
    Graph *g = m->b.g;
    int count;
    const ModelParam *p = model_params(g->a, m->c, &count);
    for (int i = 0; i < count; i++) {
        const char *name = value_name(g->a, p[i].name);
        map_put(&m->params, p[i].name, graph_input(g, name, p[i].type, ROLE_PARAM, p[i].name));
    }
}

static void add_inputs(Model *m, int64_t batch, bool labels)
{
    Graph *g = m->b.g;
    Type tokens = type_make(I64, 2, (int64_t[]){batch, m->T}), scalar = type_make(I64, 0, NULL);
    m->ids = graph_input(g, "input_ids", tokens, ROLE_BATCH, NULL);
    if (labels)
        m->labels = graph_input(g, "labels", tokens, ROLE_BATCH, NULL);
    if (m->pack)
        m->starts = graph_input(g, "starts", tokens, ROLE_BATCH, NULL);
    if (m->dropout > 0 || m->adapter_dropout > 0) {
        m->seed = graph_input(g, "seed", scalar, ROLE_SEED, NULL);
        m->step = graph_input(g, "step", scalar, ROLE_STEP, NULL);
    }
    add_params(m);
}

static Value *emit_loss(Model *m, Value *logits, const ModelOptions *o)
{
    const int64_t flat[] = {-1};
    m->b.phase = LOSS;
    model_scope(m, "loss");
    Value *count = emit1(&m->b, "count_labels", IN(m->labels), NOATTRS);
    Value *labels = model_reshape(m, m->labels, 1, flat);
    return emit1(
        &m->b, "cross_entropy", IN(logits, labels, count),
        ATTRS(A_FLOAT("z_loss", o->z_loss), A_FLOAT("label_smoothing", o->label_smoothing)));
}

/* How the longest sequence of a model is known. */
static const char *longest_text(Arena *a, const ModelConfig *c)
{
    const char *key = c->kind == MODEL_GPT2 ? "n_positions" : "max_position_embeddings";
    if (!c->source)
        return "as the preset has it";
    return arena_printf(a,
                        c->npos_given ? "\"%s\" of its config.json"
                                      : "transformers' default where config.json has no \"%s\"",
                        key);
}

static void check_sizes(Ctx *ctx, const Model *m, int64_t batch)
{
    const ModelConfig *c = m->c;
    if (batch < 1 || m->T < 1)
        fail(ctx, TN_USAGE, "batch [%lld, %lld]: expected sizes of at least 1", (long long)batch,
             (long long)m->T);
    if (m->T > config_longest(c))
        fail(ctx, TN_USAGE, "sequence length %lld: the model has %lld positions (%s)",
             (long long)m->T, (long long)config_longest(c), longest_text(m->b.g->a, c));
    if (c->window && m->T > c->window)
        fail(ctx, TN_USAGE,
             "sequence length %lld: key \"sliding_window\" of the model's config.json is %lld; "
             "supported: sequences up to that length, in which every token sees all before it",
             (long long)m->T, (long long)c->window);
    if (!(m->dropout >= 0 && m->dropout < 1))
        fail(ctx, TN_USAGE, "dropout: expected at least 0 and below 1, found %g", m->dropout);
}

static Model start(Arena *a, const ModelConfig *c, int64_t seq, double dropout, const char *name)
{
    return (Model){.b = {.g = graph_new(a, name), .phase = FORWARD},
                   .c = c,
                   .T = seq,
                   .dropout = dropout,
                   .params = {.a = a},
                   .layer = layer_none()};
}

static Value *emit_logits(Model *m, int64_t batch, bool labels)
{
    check_sizes(m->b.g->ctx, m, batch);
    add_inputs(m, batch, labels);
    return family_of(m->c)->logits(m);
}

Graph *model_graph(Arena *a, const ModelConfig *c, int64_t batch, int64_t seq,
                   const ModelOptions *options)
{
    const ModelOptions o = options ? *options : (ModelOptions){0};
    Model m = start(a, c, seq, o.dropout, "train_step");
    m.adapter_dropout = c->lora && o.adapters_drop ? c->lora->dropout : 0;
    m.pack = o.pack;
    Value *logits = emit_logits(&m, batch, true);
    graph_output(m.b.g, emit_loss(&m, logits, &o), ROLE_LOSS, NULL);
    return m.b.g;
}

Graph *model_logits(Arena *a, const ModelConfig *c, int64_t batch, int64_t seq)
{
    Model m = start(a, c, seq, 0, "logits");
    graph_output(m.b.g, emit_logits(&m, batch, false), ROLE_METRIC, "logits");
    return m.b.g;
}

Graph *model_decode(Arena *a, const ModelConfig *c, int64_t tokens, int64_t capacity)
{
    Model m = start(a, c, capacity, 0, "decode");
    Graph *g = m.b.g;
    check_sizes(g->ctx, &m, 1);
    if (tokens < 1 || tokens > capacity)
        fail(g->ctx, TN_USAGE, "tokens at once: expected 1 to %lld, found %lld",
             (long long)capacity, (long long)tokens);
    m.T = tokens;
    m.capacity = capacity;
    Type ids = type_make(I64, 2, (int64_t[]){1, tokens});
    m.ids = graph_input(g, "input_ids", ids, ROLE_BATCH, NULL);
    m.position = graph_input(g, "position", type_make(I64, 0, NULL), ROLE_BATCH, NULL);
    if (tokens > 1)
        m.last = graph_input(g, "last", type_make(I64, 1, (int64_t[]){1}), ROLE_BATCH, NULL);
    add_params(&m);
    graph_output(g, family_of(c)->logits(&m), ROLE_METRIC, "logits");
    return g;
}
