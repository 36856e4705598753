/* Configurations: Hugging Face's config.json of GPT-2 and Llama, and presets.
 *
 * A key is either read here, or in the list of keys that do not touch the training mathematics, or
 * it must be off (null, false, empty): what is unknown might change the model, and is refused
 * rather than ignored. Dropout probabilities are in that list because the run states its own.
 * Defaults are those of transformers' GPT2Config and LlamaConfig. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 20, MOST = INT32_MAX }; /* of layers, heads, widths; of tokens, positions */

static const char *const harmless[] = {
    "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_scores", "return_dict_in_generate",
    "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "is_decoder",
    "gradient_checkpointing", "pretraining_tp", "reorder_and_upcast_attn", "n_ctx",
    /* dropout: the run states its own */
    "resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout",
    /* tokens and generation */
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens",
    "bad_words_ids", "tokenizer_class", "prefix", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k",
    "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "num_return_sequences", "remove_invalid_values",
    "exponential_decay_length_penalty",
    /* other heads than the language model's */
    "finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", "predict_special_tokens", "n_special", NULL};

static bool is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(name, *list))
        list++;
    return *list != NULL;
}

static void check_keys(Json j, const char *model, const char *const *used)
{
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key))
        if (*key != '_' && json_is_set(j, key) && !is_in(key, used) && !is_in(key, harmless))
            fail(arena_ctx(j.a), TN_FAIL,
                 "%s: key \"%s\" is not supported for %s; take it out if it changes no result",
                 j.where, key, model);
}

_Noreturn static void wrong(Json j, const char *key, const char *expected)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected %s", j.where, key, expected);
}

static double find_positive(Json j, const char *key, double fallback)
{
    double x = json_find_real(j, key, fallback);
    if (!(x > 0) || isinf(x))
        wrong(j, key, "a positive number");
    return x;
}

static const char *find_activation(Json j, const char *key, const char *fallback)
{
    const char *name = json_find_string(j, key, fallback);
    if (!activation_known(name))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": activation \"%s\" is not supported", j.where,
             key, name);
    return arena_strdup(j.a, name);
}

/* ---- GPT-2 ---- */

static const char *const gpt2_keys[] = {"model_type",
                                        "vocab_size",
                                        "n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_positions",
                                        "n_inner",
                                        "activation_function",
                                        "layer_norm_epsilon",
                                        "initializer_range",
                                        "scale_attn_weights",
                                        "tie_word_embeddings",
                                        NULL};

static ModelConfig read_gpt2(Json j)
{
    check_keys(j, "gpt2", gpt2_keys);
    ModelConfig c = {.kind = MODEL_GPT2,
                     .vocab = json_get_int(j, "vocab_size", 1, MOST),
                     .hidden = json_get_int(j, "n_embd", 1, MANY),
                     .nlayer = json_get_int(j, "n_layer", 1, MANY),
                     .nhead = json_get_int(j, "n_head", 1, MANY),
                     .npos = json_get_int(j, "n_positions", 1, MOST),
                     .activation = find_activation(j, "activation_function", "gelu_new"),
                     .norm_eps = find_positive(j, "layer_norm_epsilon", 1e-5),
                     .init_std = find_positive(j, "initializer_range", 0.02),
                     .tie = json_find_bool(j, "tie_word_embeddings", true),
                     .prefix = ""};
    c.intermediate = json_find_int(j, "n_inner", 1, MANY, 4 * c.hidden);
    c.nkv = c.nhead;
    c.head_dim = c.hidden / c.nhead;
    if (c.hidden % c.nhead)
        wrong(j, "n_embd", "a multiple of n_head");
    if (!json_find_bool(j, "scale_attn_weights", true))
        wrong(j, "scale_attn_weights", "true");
    return c;
}

/* ---- Llama ---- */

/* transformers up to 4 has rope_theta and rope_scaling, from 5 on rope_parameters with both. */
static void read_rope(Json j, ModelConfig *c)
{
    static const char *const used[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings",
                                       NULL};
    bool both = json_has(j, "rope_parameters");
    Json r = json_find_object(j, both ? "rope_parameters" : "rope_scaling");
    c->rope_theta = find_positive(both && json_has(r, "rope_theta") ? r : j, "rope_theta", 1e4);
    if (!r.object)
        return;
    if (both && json_has(j, "rope_scaling"))
        wrong(j, "rope_scaling", "null beside rope_parameters");
    check_keys(r, "llama", used);
    const char *key = json_has(r, "rope_type") ? "rope_type" : "type";
    const char *kind = json_find_string(r, key, "default");
    if (!strcmp(kind, "default"))
        return;
    if (strcmp(kind, "linear") && strcmp(kind, "llama3"))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": rope type \"%s\" is not supported", r.where,
             key, kind);
    json_get_real(r, "factor");
    c->rope.factor = find_positive(r, "factor", 1);
    c->rope.kind = ROPE_LINEAR;
    if (!strcmp(kind, "linear"))
        return;
    c->rope.kind = ROPE_LLAMA3;
    c->rope.low = json_get_real(r, "low_freq_factor");
    c->rope.high = json_get_real(r, "high_freq_factor");
    c->rope.original = (double)json_get_int(r, "original_max_position_embeddings", 1, MOST);
    if (!(c->rope.low > 0 && c->rope.high > c->rope.low))
        wrong(r, "high_freq_factor", "more than low_freq_factor, and both positive");
}

static const char *const llama_keys[] = {"model_type",
                                         "vocab_size",
                                         "hidden_size",
                                         "intermediate_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "max_position_embeddings",
                                         "hidden_act",
                                         "rms_norm_eps",
                                         "initializer_range",
                                         "tie_word_embeddings",
                                         "attention_bias",
                                         "mlp_bias",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         NULL};

static ModelConfig read_llama(Json j)
{
    check_keys(j, "llama", llama_keys);
    ModelConfig c = {.kind = MODEL_LLAMA,
                     .vocab = json_get_int(j, "vocab_size", 1, MOST),
                     .hidden = json_get_int(j, "hidden_size", 1, MANY),
                     .intermediate = json_get_int(j, "intermediate_size", 1, MANY),
                     .nlayer = json_get_int(j, "num_hidden_layers", 1, MANY),
                     .nhead = json_get_int(j, "num_attention_heads", 1, MANY),
                     .npos = json_find_int(j, "max_position_embeddings", 1, MOST, 2048),
                     .activation = find_activation(j, "hidden_act", "silu"),
                     .norm_eps = find_positive(j, "rms_norm_eps", 1e-6),
                     .init_std = find_positive(j, "initializer_range", 0.02),
                     .tie = json_find_bool(j, "tie_word_embeddings", false),
                     .attention_bias = json_find_bool(j, "attention_bias", false),
                     .mlp_bias = json_find_bool(j, "mlp_bias", false),
                     .prefix = "model."};
    c.nkv = json_find_int(j, "num_key_value_heads", 1, MANY, c.nhead);
    c.head_dim = json_find_int(j, "head_dim", 1, MANY, c.hidden / c.nhead);
    if (!json_has(j, "head_dim") && c.hidden % c.nhead)
        wrong(j, "hidden_size", "a multiple of num_attention_heads");
    if (c.nhead % c.nkv)
        wrong(j, "num_key_value_heads", "a divisor of num_attention_heads");
    if (c.head_dim % 2)
        wrong(j, "head_dim", "an even number");
    read_rope(j, &c);
    return c;
}

ModelConfig config_read(Arena *a, const char *path)
{
    size_t len;
    const char *source = file_read(a, path, &len);
    Json j = json_read(a, path);
    const char *type = json_get_string(j, "model_type");
    if (strcmp(type, "gpt2") && strcmp(type, "llama"))
        fail(arena_ctx(a), TN_FAIL, "%s: key \"model_type\": expected gpt2 or llama, found \"%s\"",
             path, type);
    ModelConfig c = strcmp(type, "gpt2") ? read_llama(j) : read_gpt2(j);
    c.source = source;
    return c;
}

/* ---- presets ---- */

/* clang-format off */
#define GPT2(vocab_, npos_, C, L, H)                                                               \
    {.kind = MODEL_GPT2, .vocab = vocab_, .npos = npos_, .hidden = C, .nlayer = L, .nhead = H,     \
     .nkv = H, .head_dim = (C) / (H), .intermediate = 4 * (C), .activation = "gelu_new",           \
     .norm_eps = 1e-5, .init_std = 0.02, .tie = true, .prefix = ""}
#define LLAMA(vocab_, npos_, C, L, H, K, I, theta, tie_, ...)                                      \
    {.kind = MODEL_LLAMA, .vocab = vocab_, .npos = npos_, .hidden = C, .nlayer = L, .nhead = H,    \
     .nkv = K, .head_dim = (C) / (H), .intermediate = I, .activation = "silu", .norm_eps = 1e-5,   \
     .init_std = 0.02, .rope_theta = theta, .rope = {__VA_ARGS__}, .tie = tie_, .prefix = "model."}

/* llama3-1b is Llama-3.2-1B, llama3-8b is Meta-Llama-3-8B; demo reads bytes. */
static const struct {
    const char *name;
    ModelConfig c;
} presets[] = {
    /*                     vocab   npos    C     L   H   Hkv I      theta tie    rope */
    {"gpt2",        GPT2(  50257,  1024,   768,  12, 12)},
    {"gpt2-medium", GPT2(  50257,  1024,   1024, 24, 16)},
    {"llama3-1b",   LLAMA( 128256, 131072, 2048, 16, 32, 8,  8192,  5e5,  true,  ROPE_LLAMA3, 32, 1, 4, 8192)},
    {"llama3-8b",   LLAMA( 128256, 8192,   4096, 32, 32, 8,  14336, 5e5,  false, ROPE_PLAIN, 0, 0, 0, 0)},
    {"demo",        LLAMA( 256,    1024,   128,  5,  2,  2,  352,   1e4,  true,  ROPE_PLAIN, 0, 0, 0, 0)},
};
/* clang-format on */

const ModelConfig *config_preset(const char *name)
{
    for (int i = 0; i < LEN(presets); i++)
        if (!strcmp(presets[i].name, name))
            return &presets[i].c;
    return NULL;
}

const char *config_preset_name(int i)
{
    return i < LEN(presets) ? presets[i].name : NULL;
}

/* ---- text ---- */

/* The fewest digits that read back as x, always with a point or exponent. */
static const char *real_text(Arena *a, double x)
{
    char text[40];
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    return arena_printf(a, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

static void add_int(Buf *b, const char *key, int64_t x)
{
    buf_printf(b, ",\n  \"%s\": %lld", key, (long long)x);
}

static void add_bool(Buf *b, const char *key, bool x)
{
    buf_printf(b, ",\n  \"%s\": %s", key, x ? "true" : "false");
}

static void add_real(Buf *b, const char *key, double x)
{
    buf_printf(b, ",\n  \"%s\": %s", key, real_text(b->a, x));
}

static void add_gpt2(Buf *b, const ModelConfig *c)
{
    buf_add(b, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\"");
    buf_printf(b, ",\n  \"activation_function\": \"%s\"", c->activation);
    add_real(b, "initializer_range", c->init_std);
    add_real(b, "layer_norm_epsilon", c->norm_eps);
    add_int(b, "n_embd", c->hidden);
    add_int(b, "n_head", c->nhead);
    add_int(b, "n_inner", c->intermediate);
    add_int(b, "n_layer", c->nlayer);
    add_int(b, "n_positions", c->npos);
    add_bool(b, "tie_word_embeddings", c->tie);
    add_int(b, "vocab_size", c->vocab);
}

static void add_rope(Buf *b, const ModelConfig *c)
{
    add_real(b, "rope_theta", c->rope_theta);
    if (c->rope.kind == ROPE_PLAIN)
        return;
    buf_printf(b, ",\n  \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": %s",
               c->rope.kind == ROPE_LINEAR ? "linear" : "llama3", real_text(b->a, c->rope.factor));
    if (c->rope.kind == ROPE_LLAMA3)
        buf_printf(b,
                   ", \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
                   "\"original_max_position_embeddings\": %.0f",
                   real_text(b->a, c->rope.low), real_text(b->a, c->rope.high), c->rope.original);
    buf_add(b, "}");
}

static void add_llama(Buf *b, const ModelConfig *c)
{
    buf_add(b, "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\"");
    add_bool(b, "attention_bias", c->attention_bias);
    add_int(b, "head_dim", c->head_dim);
    buf_printf(b, ",\n  \"hidden_act\": \"%s\"", c->activation);
    add_int(b, "hidden_size", c->hidden);
    add_real(b, "initializer_range", c->init_std);
    add_int(b, "intermediate_size", c->intermediate);
    add_int(b, "max_position_embeddings", c->npos);
    add_bool(b, "mlp_bias", c->mlp_bias);
    add_int(b, "num_attention_heads", c->nhead);
    add_int(b, "num_hidden_layers", c->nlayer);
    add_int(b, "num_key_value_heads", c->nkv);
    add_real(b, "rms_norm_eps", c->norm_eps);
    add_rope(b, c);
    add_bool(b, "tie_word_embeddings", c->tie);
    add_int(b, "vocab_size", c->vocab);
}

const char *config_text(Arena *a, const ModelConfig *c)
{
    if (c->source)
        return c->source;
    Buf b = {.a = a};
    if (c->kind == MODEL_GPT2)
        add_gpt2(&b, c);
    else
        add_llama(&b, c);
    buf_add(&b, "\n}\n");
    return b.text;
}
