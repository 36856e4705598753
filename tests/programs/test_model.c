/* model: parameters found in files; initial values; the graphs, whose losses on the reference
 * models are PyTorch's. */
#include "../shared/folder.h"

#include "../shared/case.h"
#include "../shared/config.h"
#include "../shared/interp.h"

#include <math.h>

/* ---- parameters ---- */

typedef struct Match {
    ModelConfig c;
    const char *path;
} Match;

static void match(void *arg)
{
    Match *m = arg;
    model_match(a, &m->c, tensors_open(a, m->path));
}

/* Writes the model's parameters, from a running pattern, and what else is asked for. */
static void put_model(Match *m, const char *prefix, int nextra, const TensorOut *extra)
{
    int count;
    m->c.prefix = prefix;
    const ModelParam *p = model_params(a, &m->c, &count);
    TensorOut *t = NEWN(a, TensorOut, count + nextra);
    for (int i = 0; i < count; i++) {
        float *x = NEWN(a, float, type_nelem(&p[i].type));
        model_init(&p[i], 1, F32, x);
        t[i] = (TensorOut){p[i].name, p[i].type, x};
    }
    for (int i = 0; i < nextra; i++) {
        t[count + i] = extra[i];
        if (!extra[i].data) /* the embedding */
            t[count + i].data = t[0].data;
    }
    tensors_write(&ctx, m->path, count + nextra, t);
}

static void test_match(void)
{
    float zero[48 * 97] = {0};
    Match m = {config_read(a, "tests/ref/gpt2-tiny/config.json"),
               arena_printf(a, "%s/model.safetensors", dir)};
    const TensorOut buffers[] = {{"transformer.h.0.attn.bias", {F32, 2, {3, 3}}, zero},
                                 {"transformer.h.1.attn.masked_bias", {F32, 0, {0}}, zero},
                                 {"lm_head.weight", {F32, 2, {97, 48}}, NULL}};
    put_model(&m, "transformer.", LEN(buffers), buffers);
    m.c.prefix = "";
    match(&m);
    EXPECT(!strcmp(m.c.prefix, "transformer."));
    const TensorOut head = {"lm_head.weight", {F32, 2, {97, 48}}, zero};
    put_model(&m, "", 1, &head);
    EXPECT_FAIL(&ctx, match, &m, "\"lm_head.weight\" differs from \"wte.weight\"");
    const TensorOut score = {"score.weight", {F32, 1, {2}}, zero};
    put_model(&m, "", 1, &score);
    EXPECT_FAIL(&ctx, match, &m, "tensor \"score.weight\", f32[2], is no part of this model");
    const TensorOut count = {"wte.weight", {I64, 2, {1, 1}}, zero};
    tensors_write(&ctx, m.path, 1, &count);
    m.c.vocab = m.c.hidden = 1;
    EXPECT_FAIL(&ctx, match, &m, "\"wte.weight\": expected f32[1, 1], found i64[1, 1]");
    m.c.vocab = 97;
    m.c.hidden = 48;
    put_model(&m, "", 0, NULL);
    match(&m);
    EXPECT(!strcmp(m.c.prefix, ""));
    m.c.npos = 33;
    EXPECT_FAIL(&ctx, match, &m, "tensor \"wpe.weight\": expected f32[33, 48], found f32[32, 48]");
    m.c.npos = 32;
    m.c.nlayer = 3;
    EXPECT_FAIL(&ctx, match, &m, "tensor \"h.2.ln_1.weight\", f32[48], is missing");
    m.c.nlayer = 1;
    EXPECT_FAIL(&ctx, match, &m, "tensor \"h.1.");
    EXPECT_FAIL(&ctx, match, &m, "\n  and 4 more"); /* of 12 in that layer */
    m.c.nlayer = 3;
    m.c.npos = 33;
    EXPECT_FAIL(&ctx, match, &m,
                "found f32[32, 48]\n  tensor \"h.2.ln_1.weight\", f32[48], is missing\n  tensor ");
    m.c.nlayer = 2;
    m.c.npos = 32;
    const TensorOut almost = {"h.x.attn.bias", {F32, 2, {3, 3}}, zero};
    put_model(&m, "", 1, &almost);
    EXPECT_FAIL(&ctx, match, &m, "tensor \"h.x.attn.bias\", f32[3, 3], is no part of this model");
}

static void test_match_llama(void)
{
    float zero[8] = {0};
    Match m = {config_read(a, put_config(LLAMA_KEYS ", \"attention_bias\": true, \"mlp_bias\": "
                                                    "true}")),
               arena_printf(a, "%s/model.safetensors", dir)};
    const TensorOut old[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", {F32, 1, {4}}, zero},
                             {"model.rotary_emb.inv_freq", {F32, 1, {4}}, zero}};
    put_model(&m, "model.", 2, old);
    match(&m);
    TensorFile *f = tensors_open(a, m.path);
    EXPECT(tensors_find(f, "model.layers.2.self_attn.o_proj.bias"));
    EXPECT(tensors_find(f, "model.layers.2.mlp.down_proj.bias") &&
           tensors_find(f, "lm_head.weight"));
    m.c.tie = true;
    EXPECT_FAIL(&ctx, match, &m, "\"lm_head.weight\" differs from \"model.embed_tokens.weight\"");
    m.c.tie = m.c.mlp_bias = false;
    EXPECT_FAIL(&ctx, match, &m, "_proj.bias\", f32[100], is no part of this model");
}

static void test_init(void)
{
    int count;
    const ModelParam *p = model_params(a, config_preset("demo"), &count);
    int64_t n = type_nelem(&p[0].type);
    float *x = NEWN(a, float, n), *y = NEWN(a, float, n);
    double sum = 0, squares = 0;
    model_init(&p[0], 7, F32, x);
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    EXPECT(fabs(sum / (double)n) < 4 * 0.02 / sqrt((double)n));
    EXPECT(fabs(sqrt(squares / (double)n) / 0.02 - 1) < 4 / sqrt(2.0 * (double)n));
    int threads = par_threads();
    par_set_threads(1);
    model_init(&p[0], 7, F32, y);
    par_set_threads(threads);
    EXPECT(!memcmp(x, y, sizeof *x * (size_t)n));
    memset(y, 0, sizeof *y * (size_t)n);
    model_init_part(&p[0], 7, F32, 0, 1001, y);
    model_init_part(&p[0], 7, F32, 1001, n - 1001, y + 1001);
    EXPECT(!memcmp(x, y, sizeof *x * (size_t)n));
    model_init(&p[0], 8, F32, y);
    EXPECT(memcmp(x, y, sizeof *x * (size_t)n));
    ModelParam other = p[0];
    other.index = 1;
    model_init(&other, 7, F32, y);
    EXPECT(memcmp(x, y, sizeof *x * (size_t)n));
    p = model_params(a, config_preset("gpt2"), &count);
    for (int i = 0; i < 14; i++) {
        bool norm = strstr(p[i].name, "ln_") && strstr(p[i].name, "weight");
        EXPECT(p[i].index == i && p[i].mean == (norm ? 1 : 0));
        EXPECT(p[i].std == (strstr(p[i].name, "c_proj.weight")  ? 0.02 / sqrt(24)
                            : norm || strstr(p[i].name, "bias") ? 0
                                                                : 0.02));
    }
}

/* ---- graphs ---- */

static int count_op(const Graph *g, const char *op)
{
    int count = 0;
    EACH_NODE(n, g)
        count += n->op == op_find(op);
    return count;
}

static const char *scope_of(const Graph *g, const char *op, int which)
{
    EACH_NODE(n, g)
        if (n->op == op_find(op) && !which--)
            return n->scope;
    return "none";
}

static void check_text(Graph *g)
{
    Buf b = {.a = a}, c = {.a = a};
    graph_verify(g);
    graph_print(&b, g);
    graph_print(&c, graph_parse(a, b.text, "model.tn"));
    EXPECT(!strcmp(b.text, c.text));
}

static void test_graph_gpt2(void)
{
    ModelConfig c = *config_preset("gpt2");
    c.prefix = "transformer.";
    Graph *g = model_graph(a, &c, 4, 64, &(ModelOptions){.dropout = 0.1});
    check_text(g);
    EXPECT(count_op(g, "addmm") == 48 && count_op(g, "mm") == 1 && count_op(g, "split") == 12);
    EXPECT(count_op(g, "flash_attention") == 12 && count_op(g, "native_layer_norm") == 25);
    EXPECT(count_op(g, "slice") == 1 && count_op(g, "cross_entropy") == 1);
    int stream = 0;
    EACH_NODE(n, g)
        if (node_is(n, OP_dropout))
            EXPECT(n->stream == stream++ && n->in[0]->type.rank == 3);
    EXPECT(stream == 25);
    EXPECT(!strcmp(scope_of(g, "addmm", 4), "layers.1.attn.c_attn"));
    EXPECT(!strcmp(scope_of(g, "native_layer_norm", 24), "ln_f"));
    EXPECT(!strcmp(scope_of(g, "cross_entropy", 0), "loss"));
    EXPECT(graph_find_input(g, ROLE_PARAM, "transformer.h.11.mlp.c_proj.bias") &&
           graph_find_input(g, ROLE_SEED, NULL) && graph_find_input(g, ROLE_STEP, NULL));
    EXPECT(graph_find_output(g, ROLE_LOSS, NULL)->v->type.rank == 0);
    EACH_NODE(n, g)
        EXPECT(n->phase == (strcmp(n->scope, "loss") ? FORWARD : LOSS));
    g = model_graph(a, config_preset("gpt2"), 1, 1024, NULL);
    EXPECT(count_op(g, "slice") == 0 && !graph_find_input(g, ROLE_SEED, NULL));
}

static void test_graph_llama(void)
{
    Graph *g = model_graph(a, config_preset("llama3-8b"), 1, 2048, NULL);
    check_text(g);
    EXPECT(count_op(g, "mm") == 32 * 7 + 1 && count_op(g, "rope") == 64);
    EXPECT(count_op(g, "rope_table") == 1 && count_op(g, "rms_norm") == 65);
    EXPECT(!strcmp(scope_of(g, "mm", 7), "layers.1.self_attn.q_proj"));
    EXPECT(!strcmp(scope_of(g, "mm", 13), "layers.1.mlp.down_proj"));
    EXPECT(!strcmp(scope_of(g, "mm", 224), "lm_head") &&
           !strcmp(scope_of(g, "rope", 0), "layers.0.self_attn"));
    ModelConfig c = *config_preset("llama3-1b");
    c.attention_bias = c.mlp_bias = true;
    g = model_graph(a, &c, 2, 16, &(ModelOptions){.dropout = 0.5});
    check_text(g);
    EXPECT(count_op(g, "addmm") == 16 * 7 && count_op(g, "mm") == 1 &&
           count_op(g, "dropout") == 33);
    EXPECT(count_op(g, "rope_table") == 0 && count_op(g, "cos") == 1);
}

/* Nodes of a graph of two layers, and which parameters it has. */
static void test_graph_families(void)
{
    static const struct {
        const char *text;
        int addmm, mm, norms;
        const char *has, *lacks;
    } cases[] = {
        {MODEL_KEYS("mistral") "}", 0, 15, 5, "lm_head.weight",
         "model.layers.0.self_attn.q_proj.bias"},
        {MODEL_KEYS("qwen2") "}", 6, 9, 5, "model.layers.1.self_attn.v_proj.bias",
         "model.layers.1.self_attn.o_proj.bias"},
        {MODEL_KEYS("qwen3") ", \"tie_word_embeddings\": true}", 0, 15, 9,
         "model.layers.1.self_attn.k_norm.weight", "lm_head.weight"},
        {MODEL_KEYS("qwen3") ", \"attention_bias\": true}", 8, 7, 9,
         "model.layers.1.self_attn.o_proj.bias", "model.layers.1.mlp.up_proj.bias"},
    };
    for (int i = 0; i < LEN(cases); i++) {
        ModelConfig c = config_of(cases[i].text);
        Graph *g = model_graph(a, &c, 2, 5, NULL);
        check_text(g);
        EXPECT(count_op(g, "addmm") == cases[i].addmm && count_op(g, "mm") == cases[i].mm);
        EXPECT(count_op(g, "rms_norm") == cases[i].norms && count_op(g, "rope") == 4);
        EXPECT(graph_find_input(g, ROLE_PARAM, cases[i].has));
        EXPECT(!graph_find_input(g, ROLE_PARAM, cases[i].lacks));
        if (cases[i].norms == 9)
            EXPECT(!strcmp(scope_of(g, "rms_norm", 2), "layers.0.self_attn.k_norm"));
    }
}

static void graph_of_8(void *c)
{
    model_graph(a, c, 1, 8, NULL);
}

static void decode_of_8(void *c)
{
    model_decode(a, c, 1, 8);
}

/* Up to the window nothing slides; beyond, the model would be another. */
static void test_window(void)
{
    ModelConfig c = config_of(MODEL_KEYS("mistral") ", \"sliding_window\": 7}");
    EXPECT_FAIL(&ctx, graph_of_8, &c, "sequence length 8: key \"sliding_window\"");
    EXPECT_FAIL(&ctx, decode_of_8, &c, "sequence length 8: key \"sliding_window\"");
    c.window = 8;
    graph_of_8(&c);
    decode_of_8(&c);
}

static void graph_too_long(void *c)
{
    model_graph(a, c, 1, 1025, NULL);
}

static void graph_all_dropped(void *c)
{
    model_graph(a, c, 1, 8, &(ModelOptions){.dropout = 1});
}

static void graph_empty(void *c)
{
    model_graph(a, c, 0, 8, NULL);
}

static void test_graph_errors(void)
{
    ModelConfig c = *config_preset("gpt2");
    EXPECT_FAIL(&ctx, graph_too_long, &c, "sequence length 1025: the model has 1024 positions");
    EXPECT_FAIL(&ctx, graph_all_dropped, &c, "dropout: expected at least 0 and below 1, found 1");
    EXPECT_FAIL(&ctx, graph_empty, &c, "batch [0, 8]: expected sizes of at least 1");
}

static Tensor read_tensor(const TensorFile *f, const char *name, const Type *t)
{
    Tensor x = tensor_new(a, t, 0);
    tensors_read(f, tensors_get(f, name), t->dtype, false, x.data);
    return x;
}

/* The loss of a reference model, by every op's reference in graph order, against PyTorch's. */
static void check_loss(const char *folder)
{
    ModelConfig c = config_read(a, arena_printf(a, "%s/config.json", folder));
    Json want = json_read(a, arena_printf(a, "%s/expected.json", folder));
    TensorFile *f = tensors_open(a, folder);
    TensorFile *batch = tensors_open(a, arena_printf(a, "%s/batch.safetensors", folder));
    model_match(a, &c, f);
    Graph *g =
        model_graph(a, &c, json_get_int(want, "B", 1, 99), json_get_int(want, "T", 1, 99), NULL);
    check_text(g);
    Tensor *in = NEWN(a, Tensor, g->nin), out;
    for (int i = 0; i < g->nin; i++)
        in[i] = g->in[i].role == ROLE_BATCH
                    ? read_tensor(batch, g->in[i].v->name, &g->in[i].v->type)
                    : read_tensor(f, g->in[i].name, &g->in[i].v->type);
    interp_graph(a, g, in, &out);
    double loss = tensor_get(&out, 0), expected = json_get_real(want, "loss");
    if (!EXPECT(fabs(loss / expected - 1) < 5e-7))
        printf("  %s: loss %.9g, expected %.9g\n", folder, loss, expected);
}

static void test_losses(void)
{
    static const char *const folders[] = {"tests/ref/gpt2-tiny",    "tests/ref/gpt2-ignore",
                                          "tests/ref/llama-tiny",   "tests/ref/llama-tied",
                                          "tests/ref/mistral-tiny", "tests/ref/qwen2-tiny",
                                          "tests/ref/qwen3-tiny"};
    for (int i = 0; i < LEN(folders); i++)
        check_loss(folders[i]);
}

/* Scaled frequencies as transformers computes them, case by case. */
static double scaled_frequency(const ModelConfig *c, int i)
{
    double f = pow(c->rope_theta, -2.0 * i / (double)c->head_dim);
    double wavelength = 2 * acos(-1) / f;
    if (c->rope.kind == ROPE_LINEAR)
        return f / c->rope.factor;
    if (wavelength < c->rope.original / c->rope.high)
        return f;
    if (wavelength > c->rope.original / c->rope.low)
        return f / c->rope.factor;
    double s = (c->rope.original / wavelength - c->rope.low) / (c->rope.high - c->rope.low);
    return (1 - s) * f / c->rope.factor + s * f;
}

static void check_tables(const ModelConfig *c)
{
    const int T = 50;
    Graph *g = model_graph(a, c, 1, T, NULL), *part = graph_new(a, "tables");
    Build b = {.g = part};
    Value **to = NEWN(a, Value *, g->nvalue), *table[2] = {0};
    EACH_NODE(n, g) { /* the nodes in front, which need no input of the graph */
        if (strcmp(n->scope, "rotary_emb"))
            break;
        Value *in[2];
        for (int i = 0; i < n->nin; i++)
            in[i] = to[n->in[i]->id];
        to[n->out[0]->id] = emit_clone(&b, n, in)->out[0];
        if (node_is(n, OP__to_copy)) {
            table[0] = table[1];
            table[1] = to[n->out[0]->id];
        }
    }
    graph_output(part, table[0], ROLE_NONE, NULL);
    graph_output(part, table[1], ROLE_NONE, NULL);
    Tensor out[2];
    interp_graph(a, part, NULL, out);
    double worst = 0;
    for (int t = 0; t < T; t++)
        for (int i = 0; i < c->head_dim / 2; i++) {
            double angle = t * scaled_frequency(c, i);
            int64_t at = t * c->head_dim / 2 + i;
            worst = fmax(worst, fabs(tensor_get(&out[0], at) - cos(angle)));
            worst = fmax(worst, fabs(tensor_get(&out[1], at) - sin(angle)));
        }
    EXPECT(worst < 6e-8);
}

static void test_rope_scaling(void)
{
    ModelConfig c = *config_preset("llama3-1b");
    c.nlayer = 1;
    check_tables(&c);
    c.rope.kind = ROPE_LINEAR;
    check_tables(&c);
}

int main(void)
{
    static void (*const tests[])(void) = {test_graph_families, test_window,       test_match,
                                          test_match_llama,    test_init,         test_graph_gpt2,
                                          test_graph_llama,    test_graph_errors, test_losses,
                                          test_rope_scaling};
    return test_in_folder(tests, LEN(tests));
}
