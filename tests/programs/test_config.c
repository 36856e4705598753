/* config: configurations read, refused and written; presets. */
#include "../shared/folder.h"

#include "../shared/config.h"

static void read_config(void *path)
{
    config_read(a, path);
}

static void test_config_values(void)
{
    ModelConfig c = config_read(a, "tests/ref/gpt2-tiny/config.json");
    EXPECT(c.kind == MODEL_GPT2 && c.vocab == 97 && c.hidden == 48 && c.nlayer == 2);
    EXPECT(c.nhead == 4 && c.nkv == 4 && c.head_dim == 12 && c.intermediate == 192 && c.npos == 32);
    EXPECT(c.norm_eps == 1e-5 && c.tie && !strcmp(c.activation, "gelu_new"));
    c = config_read(a, "tests/ref/llama-tiny/config.json");
    EXPECT(c.kind == MODEL_LLAMA && c.vocab == 131 && c.hidden == 64 && c.nlayer == 2 && !c.tie);
    EXPECT(c.nhead == 4 && c.nkv == 2 && c.head_dim == 16 && c.intermediate == 176);
    EXPECT(c.rope_theta == 1e4 && c.rope.kind == ROPE_PLAIN);
    c = config_read(a, put_config(LLAMA_KEYS "}")); /* transformers' defaults */
    EXPECT(c.nkv == 6 && c.norm_eps == 1e-6 && c.rope_theta == 1e4 && !c.tie && c.init_std == 0.02);
    c = config_read(a, put_config(LLAMA_KEYS ", \"head_dim\": 32, \"rope_parameters\": {"
                                             "\"rope_theta\": 5e5, \"rope_type\": \"default\"}}"));
    EXPECT(c.head_dim == 32 && c.rope_theta == 5e5 && c.rope.kind == ROPE_PLAIN);
    c = config_read(
        a,
        put_config(LLAMA_KEYS ", \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3_KEYS "}}"));
    EXPECT(c.rope.kind == ROPE_LLAMA3 && c.rope.factor == 8 && c.rope.original == 64);
    c = config_read(a, put_config(LLAMA_KEYS ", \"rope_scaling\": {\"type\": \"linear\", "
                                             "\"factor\": 2}}"));
    EXPECT(c.rope.kind == ROPE_LINEAR && c.rope.factor == 2);
    c = config_read(a, put_config(GPT2_KEYS ", \"n_inner\": null, \"torch_dtype\": \"float32\", "
                                            "\"resid_pdrop\": 0.1, \"sliding_window\": null, "
                                            "\"add_cross_attention\": false, \"_any\": 1, "
                                            "\"pruned_heads\": {}}"));
    EXPECT(c.intermediate == 192);
}

/* What transformers takes where config.json does not say, and null where that says something. */
static void test_config_defaults(void)
{
    ModelConfig c = config_of(MODEL_KEYS("mistral") "}");
    EXPECT(c.kind == MODEL_MISTRAL && c.nkv == 8 && c.head_dim == 2 && c.window == 4096);
    EXPECT(!c.attention_bias && !c.tie && c.npos == 131072 && !strcmp(c.prefix, "model."));
    c = config_of(MODEL_KEYS("mistral") ", \"num_key_value_heads\": null}");
    EXPECT(c.nkv == 32);
    c = config_of(MODEL_KEYS("mistral") ", \"sliding_window\": null, \"head_dim\": 16}");
    EXPECT(c.window == 0 && c.head_dim == 16);
    c = config_of(MODEL_KEYS("qwen2") "}");
    EXPECT(c.kind == MODEL_QWEN2 && c.nkv == 32 && c.head_dim == 2 && c.window == 0);
    EXPECT(c.attention_bias && !c.mlp_bias);
    c = config_of(MODEL_KEYS("qwen3") ", \"tie_word_embeddings\": true}");
    EXPECT(c.kind == MODEL_QWEN3 && c.head_dim == 128 && !c.attention_bias && c.tie);
}

static void test_config_windows(void)
{
#define SLIDING ", \"use_sliding_window\": true, \"sliding_window\": 7"
    static const struct {
        const char *text;
        int64_t window;
    } cases[] = {
        {MODEL_KEYS("mistral") ", \"sliding_window\": 7}", 7},
        {MODEL_KEYS("qwen2") ", \"sliding_window\": 7}", 0},
        {MODEL_KEYS("qwen2") SLIDING "}", 0}, /* layers from 28 on */
        {MODEL_KEYS("qwen2") SLIDING ", \"max_window_layers\": 2}", 0},
        {MODEL_KEYS("qwen2") SLIDING ", \"max_window_layers\": 1}", 7},
        {MODEL_KEYS("qwen3") ", \"use_sliding_window\": true, \"max_window_layers\": 0}", 4096},
        {MODEL_KEYS("qwen3") SLIDING ", \"max_window_layers\": 0, \"layer_types\": "
                                     "[\"full_attention\", \"full_attention\"]}",
         0},
        {MODEL_KEYS("qwen3") SLIDING ", \"layer_types\": [\"full_attention\", "
                                     "\"sliding_attention\"]}",
         7},
        {MODEL_KEYS("qwen3") ", \"use_sliding_window\": true, \"sliding_window\": null, "
                             "\"max_window_layers\": 0}",
         0},
    };
    for (int i = 0; i < LEN(cases); i++)
        if (!EXPECT(config_of(cases[i].text).window == cases[i].window))
            printf("  %s\n", cases[i].text);
}

static void test_config_errors(void)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{\"model_type\": \"opt\"}", "key \"model_type\": expected gpt2, llama, mistral, qwen2"},
        {"{\"model_type\": \"opt\"}", " or "},
        {"{\"model_type\": \"opt\"}", ", found \"opt\""},
        {"{}", "key \"model_type\" is missing"},
        {"{\"model_type\": \"gpt2\"}", "config.json: key \"vocab_size\" is missing"},
        {GPT2_KEYS ", \"n_embd\": 48}", "duplicate"},
        {GPT2_KEYS ", \"n_inner\": 0}", "key \"n_inner\": expected 1 to"},
        {GPT2_KEYS ", \"activation_function\": \"mish\"}",
         "\"mish\" is not supported for gpt2; supported: gelu_new, "},
        {GPT2_KEYS ", \"scale_attn_weights\": false}",
         "\"scale_attn_weights\": false is not supported for gpt2; supported: true"},
        {GPT2_KEYS ", \"scale_attn_by_inverse_layer_idx\": true}",
         "true is not supported for gpt2"},
        {GPT2_KEYS ", \"reorder_and_upcast_attn\": true}", "true is not supported for gpt2"},
        {LLAMA_KEYS ", \"pretraining_tp\": 2}", "\"pretraining_tp\": 2 is not supported for llama; "
                                                "supported: 1"},
        {LLAMA_KEYS ", \"final_logit_softcapping\": 30.0}", "30.0 is not supported for llama"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"factor\": 2}}", "\"factor\": 2 is not supported for"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"rope_type\": \"default\", \"type\": \"linear\"}}",
         "\"type\": expected what rope_type says, found \"linear\""},
        {LLAMA_KEYS ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}}}",
         "\"full_attention\": {\"rope_theta\": 10000.0} is not supported"},
        {LLAMA_KEYS ", \"rope_parameters\": {\"rope_theta\": 1}, \"rope_theta\": 2}",
         "\"rope_parameters\": key \"rope_theta\": expected that beside it, found 1"},
        {LLAMA_KEYS ", \"rope_parameters\": {\"rope_theta\": 1}, \"rope_scaling\": "
                    "{\"type\": \"default\"}}",
         "key \"rope_scaling\": expected null beside rope_parameters"},
        {MODEL_KEYS("mistral") ", \"attention_bias\": true}", "is not supported for mistral"},
        {MODEL_KEYS("mistral") ", \"sliding_window\": 0}", "\"sliding_window\": expected 1 to"},
        {MODEL_KEYS("mistral") ", \"layer_types\": [\"full_attention\"]}", "for mistral"},
        {MODEL_KEYS("qwen2") ", \"mlp_bias\": true}", "is not supported for qwen2"},
        {MODEL_KEYS("qwen2") ", \"layer_types\": [\"full_attention\"]}",
         "\"layer_types\": expected one for each of num_hidden_layers, found [\"full_attention\"]"},
        {MODEL_KEYS("qwen2") ", \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
         "is not supported for qwen2; supported: full_attention, sliding_attention"},
        {MODEL_KEYS("qwen2") ", \"layer_types\": [\"full_attention\", 1]}", "expected strings"},
        {MODEL_KEYS("qwen3") ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "expected full_attention only, as there is no sliding_window"},
        {MODEL_KEYS("qwen3") ", \"head_dim\": null}",
         "\"head_dim\": expected an integer, found null"},
        {MODEL_KEYS("qwen3") ", \"num_experts\": 4}",
         "\"num_experts\": 4 is not supported for qwen3"},
        {GPT2_KEYS ", \"add_cross_attention\": true}",
         "\"add_cross_attention\": true is not supported"},
        {GPT2_KEYS ", \"quantization_config\": {\"bits\": 4}}",
         "\"quantization_config\": {\"bits\": 4} is not"},
        {GPT2_KEYS ", \"rope_theta\": 1e4}", "\"rope_theta\": 10000.0 is not supported for gpt2"},
        {GPT2_KEYS ", \"layer_norm_epsilon\": 0}", "\"layer_norm_epsilon\": expected a positive"},
        {GPT2_KEYS ", \"layer_norm_epsilon\": \"x\"}", "expected a number, found a string"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 10, \"n_head\": 4, \"n_layer\": 1, "
         "\"n_positions\": 1, \"vocab_size\": 1}",
         "\"n_embd\": expected a multiple of n_head"},
        {LLAMA_KEYS ", \"hidden_act\": \"tanh\"}",
         "\"hidden_act\": \"tanh\" is not supported for llama; supported: "},
        {LLAMA_KEYS ", \"sliding_window\": 4096}",
         "\"sliding_window\": 4096 is not supported for llama"},
        {LLAMA_KEYS ", \"partial_rotary_factor\": 0.5}",
         "\"partial_rotary_factor\": 0.5 is not supported for llama; supported: 1"},
        {LLAMA_KEYS ", \"num_key_value_heads\": 4}", "expected a divisor of num_attention_heads"},
        {LLAMA_KEYS ", \"head_dim\": 9}", "\"head_dim\": expected an even number"},
        {LLAMA_KEYS ", \"rope_theta\": -1}", "\"rope_theta\": expected a positive number"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
         "\"rope_type\": \"yarn\" is not supported for llama; supported: default, linear"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"type\": \"linear\"}}", "\"factor\" is missing"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta\": 1}}",
         "\"rope_scaling\": key \"beta\": 1 is not supported for rope type linear"},
        {LLAMA_KEYS ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2}}",
         "\"low_freq_factor\" is missing"},
        {"[1]", "config.json: expected a JSON object"},
        {"{\"model_type\": 1}", "expected a string, found an integer"},
    };
    for (int i = 0; i < LEN(bad); i++)
        EXPECT_FAIL(&ctx, read_config, (void *)put_config(bad[i].text), bad[i].part);
}

static bool config_same(const ModelConfig *s, const ModelConfig *t)
{
    return s->kind == t->kind && s->vocab == t->vocab && s->hidden == t->hidden &&
           s->intermediate == t->intermediate && s->nlayer == t->nlayer && s->nhead == t->nhead &&
           s->window == t->window && s->nkv == t->nkv && s->head_dim == t->head_dim &&
           s->npos == t->npos && !strcmp(s->activation, t->activation) &&
           s->norm_eps == t->norm_eps && s->init_std == t->init_std && s->tie == t->tie &&
           s->mlp_bias == t->mlp_bias && s->attention_bias == t->attention_bias &&
           s->rope_theta == t->rope_theta && s->rope.kind == t->rope.kind &&
           s->rope.factor == t->rope.factor && s->rope.low == t->rope.low &&
           s->rope.high == t->rope.high && s->rope.original == t->rope.original &&
           !strcmp(s->prefix, t->prefix);
}

static int64_t count_weights(const ModelConfig *c)
{
    int count;
    int64_t sum = 0;
    const ModelParam *p = model_params(a, c, &count);
    for (int i = 0; i < count; i++)
        sum += type_nelem(&p[i].type);
    return sum;
}

static void test_presets(void)
{
    EXPECT(count_weights(config_preset("gpt2")) == 124439808);
    EXPECT(count_weights(config_preset("gpt2-medium")) == 354823168);
    EXPECT(count_weights(config_preset("llama3-1b")) == 1235814400);
    EXPECT(count_weights(config_preset("llama3-8b")) == 8030261248);
    EXPECT(count_weights(config_preset("llama3-70b")) == 70553706496);
    EXPECT(!config_preset("gpt3"));
    for (int i = 0; config_preset_name(i); i++) {
        const ModelConfig *c = config_preset(config_preset_name(i));
        const char *text = config_text(a, c);
        ModelConfig back = config_read(a, put_config(text));
        EXPECT(config_same(c, &back));
        EXPECT(!strcmp(config_text(a, &back), text));
        back.norm_eps = 0.1 + 0.2; /* needs all 17 digits */
        back.attention_bias = back.kind == MODEL_LLAMA;
        back.source = NULL;
        ModelConfig again = config_read(a, put_config(config_text(a, &back)));
        EXPECT(config_same(&back, &again));
    }
}

/* The text made from a configuration says all that it has. */
static void test_config_text(void)
{
    static const char *const texts[] = {
        MODEL_KEYS("mistral") "}",
        MODEL_KEYS("mistral") ", \"sliding_window\": null}",
        MODEL_KEYS("qwen2") SLIDING ", \"max_window_layers\": 0}",
        MODEL_KEYS("qwen2") "}",
        MODEL_KEYS("qwen3") ", \"attention_bias\": true, \"head_dim\": 6}",
        MODEL_KEYS("llama") ", \"mlp_bias\": true, \"rope_scaling\": {\"rope_type\": "
                            "\"llama3\", " LLAMA3_KEYS "}}"};
    for (int i = 0; i < LEN(texts); i++) {
        ModelConfig c = config_of(texts[i]);
        c.source = NULL;
        ModelConfig back = config_of(config_text(a, &c));
        EXPECT(config_same(&c, &back));
    }
}

int main(void)
{
    static void (*const tests[])(void) = {test_config_values,  test_config_defaults,
                                          test_config_windows, test_config_errors,
                                          test_presets,        test_config_text};
    return test_in_folder(tests, LEN(tests));
}
