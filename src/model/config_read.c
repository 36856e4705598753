/* Reads Hugging Face's config.json of GPT-2, Llama, Mistral, Qwen 2 and Qwen 3.
 *
 * A key is read here, or is in the list of keys that do not affect training, or must be off (null,
 * false, empty, the number in `neutral`): an unknown key could change the model, so it is refused,
 * not ignored. Dropout probabilities are in that list because a run has its own; they are kept for
 * messages. Defaults are those of transformers' configuration classes (family.c). */
#include "model.h"

#include <math.h>
#include <string.h>

/* The most of widths; of layers; of heads and of a head's width; of tokens and positions. */
enum { WIDEST = 1 << 20, DEEPEST = 1 << 12, HEADS = 1 << 15, MOST = INT32_MAX };

static const char *const harmless[] = {
    "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_scores", "return_dict_in_generate",
    "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "is_decoder",
    "gradient_checkpointing", "n_ctx", "attn_implementation", "name_or_path",
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
    "summary_first_dropout", "predict_special_tokens", "n_special", "classifier_dropout", NULL};

/* Keys that change nothing at this number. */
static const struct {
    const char *key;
    double value;
} neutral[] = {{"pretraining_tp", 1}, {"partial_rotary_factor", 1}};

static bool is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(name, *list))
        list++;
    return *list != NULL;
}

_Noreturn static void refuse(Json j, const char *key, const char *model, const char *supported)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": %s is not supported for %s; supported: %s",
         j.where, key, json_text(j, key), model, supported);
}

static void check_key(Json j, const char *key, const char *model)
{
    for (int i = 0; i < LEN(neutral); i++)
        if (!strcmp(key, neutral[i].key)) {
            if (json_get_real(j, key) != neutral[i].value)
                refuse(j, key, model, arena_printf(j.a, "%g", neutral[i].value));
            return;
        }
    refuse(j, key, model, "null or false; take it out if it changes no result");
}

static void check_keys(Json j, const char *model, const char *const *used, const char *const *more)
{
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key))
        if (*key != '_' && json_is_set(j, key) && !is_in(key, used) && !is_in(key, more) &&
            !is_in(key, harmless))
            check_key(j, key, model);
}

_Noreturn static void wrong(Json j, const char *key, const char *expected)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected %s, found %s", j.where, key, expected,
         json_text(j, key));
}

static double find_positive(Json j, const char *key, double fallback)
{
    double x = json_find_real(j, key, fallback);
    if (!(x > 0) || isinf(x))
        wrong(j, key, "a positive number");
    return x;
}

static const char *find_activation(Json j, const Family *f, const char *key, const char *fallback)
{
    const char *name = json_find_string(j, key, fallback);
    if (!activation_known(name))
        refuse(j, key, f->type, activation_list(j.a));
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

static void read_gpt2(Json j, const Family *f, ModelConfig *c)
{
    check_keys(j, f->type, gpt2_keys, f->key);
    c->hidden = json_get_int(j, "n_embd", 1, WIDEST);
    c->nlayer = json_get_int(j, "n_layer", 1, DEEPEST);
    c->nhead = json_get_int(j, "n_head", 1, HEADS);
    c->npos = json_get_int(j, "n_positions", 1, MOST);
    c->npos_given = true;
    c->activation = find_activation(j, f, "activation_function", "gelu_new");
    c->norm_eps = find_positive(j, "layer_norm_epsilon", 1e-5);
    c->tie = json_find_bool(j, "tie_word_embeddings", true);
    c->intermediate = json_find_int(j, "n_inner", 1, WIDEST, 4 * c->hidden);
    c->nkv = c->nhead;
    c->head_dim = c->hidden / c->nhead;
    if (c->hidden % c->nhead)
        wrong(j, "n_embd", "a multiple of n_head");
    if (!json_find_bool(j, "scale_attn_weights", true))
        refuse(j, "scale_attn_weights", f->type, "true");
}

/* ---- decoders ---- */

/* The object that says how positions turn, if there is one: transformers up to 4 has rope_scaling
 * beside the key rope_theta, from 5 on rope_parameters with the angle inside. */
static Json find_rope(Json j)
{
    bool newer = json_has(j, "rope_parameters");
    if (newer && json_is_set(j, "rope_scaling"))
        wrong(j, "rope_scaling", "null beside rope_parameters");
    return json_find_object(j, newer ? "rope_parameters" : "rope_scaling");
}

static double find_theta(Json j, Json r)
{
    double theta = find_positive(j, "rope_theta", 1e4);
    if (!r.object || !json_has(r, "rope_theta"))
        return theta;
    double inner = find_positive(r, "rope_theta", theta);
    if (json_has(j, "rope_theta") && inner != theta)
        wrong(r, "rope_theta", "that beside it");
    return inner;
}

/* The keys that a rope type has, beside those of all types. */
static const struct {
    const char *name;
    RopeKind kind;
    const char *key[5];
} rope_types[] = {
    {"default", ROPE_PLAIN, {NULL}},
    {"linear", ROPE_LINEAR, {"factor"}},
    {"llama3",
     ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
};

static void read_rope(Json j, const Family *f, ModelConfig *c)
{
    static const char *const used[] = {"rope_type", "type", "rope_theta", NULL};
    Json r = find_rope(j);
    c->rope_theta = find_theta(j, r);
    if (!r.object)
        return;
    const char *key = json_has(r, "rope_type") ? "rope_type" : "type";
    const char *name = json_find_string(r, key, "default");
    int i = 0;
    while (i < LEN(rope_types) && strcmp(rope_types[i].name, name))
        i++;
    if (i == LEN(rope_types))
        refuse(r, key, f->type, "default, linear, llama3");
    if (strcmp(json_find_string(r, "type", name), name))
        wrong(r, "type", "what rope_type says");
    check_keys(r, arena_printf(j.a, "rope type %s", name), used, rope_types[i].key);
    c->rope.kind = rope_types[i].kind;
    if (c->rope.kind == ROPE_PLAIN)
        return;
    json_get_real(r, "factor");
    c->rope.factor = find_positive(r, "factor", 1);
    if (c->rope.kind == ROPE_LINEAR)
        return;
    c->rope.low = json_get_real(r, "low_freq_factor");
    c->rope.high = json_get_real(r, "high_freq_factor");
    c->rope.original = (double)json_get_int(r, "original_max_position_embeddings", 1, MOST);
    if (!(c->rope.low > 0 && c->rope.high > c->rope.low))
        wrong(r, "high_freq_factor", "more than low_freq_factor, and both positive");
}

/* Whether layer_types names a layer that sees a window only. */
static bool any_slides(Json j, const Family *f, int64_t nlayer)
{
    int64_t count = 0;
    bool slides = false;
    for (const char *type; (type = json_string_at(j, "layer_types", (int)count)); count++) {
        bool slide = !strcmp(type, "sliding_attention");
        if (!slide && strcmp(type, "full_attention"))
            refuse(j, "layer_types", f->type, "full_attention, sliding_attention");
        slides |= slide;
    }
    if (count != nlayer)
        wrong(j, "layer_types", "one for each of num_hidden_layers");
    return slides;
}

/* How many tokens a token sees, itself included; 0: all. Where only some layers have the window,
 * it counts for the model: up to its length they are all alike. */
static int64_t read_window(Json j, const Family *f, int64_t nlayer)
{
    if (!f->window)
        return 0;
    int64_t fallback = json_given(j, "sliding_window") ? 0 : f->window;
    int64_t window = json_find_int(j, "sliding_window", 1, MOST, fallback);
    if (!family_has_key(f, "use_sliding_window"))
        return window;
    if (!json_find_bool(j, "use_sliding_window", false))
        window = 0;
    bool slides = json_find_int(j, "max_window_layers", 0, MOST, 28) < nlayer;
    if (json_has(j, "layer_types"))
        slides = any_slides(j, f, nlayer);
    if (slides && !window && json_has(j, "layer_types"))
        wrong(j, "layer_types", "full_attention only, as there is no sliding_window");
    return slides ? window : 0;
}

static void read_heads(Json j, const Family *f, ModelConfig *c)
{
    c->nhead = json_get_int(j, "num_attention_heads", 1, HEADS);
    c->nkv = json_given(j, "num_key_value_heads") || !f->nkv ? c->nhead : f->nkv;
    c->nkv = json_find_int(j, "num_key_value_heads", 1, HEADS, c->nkv);
    c->head_dim = f->head_dim ? f->head_dim : c->hidden / c->nhead;
    c->head_dim = json_find_int(j, "head_dim", 1, HEADS, c->head_dim);
    if (f->head_dim && json_given(j, "head_dim") && !json_has(j, "head_dim"))
        wrong(j, "head_dim", "an integer");
    if (!f->head_dim && !json_has(j, "head_dim") && c->hidden % c->nhead)
        wrong(j, "hidden_size", "a multiple of num_attention_heads");
    if (c->nhead % c->nkv)
        fail(arena_ctx(j.a), TN_FAIL,
             "%s: key \"num_key_value_heads\": expected a divisor of num_attention_heads, %lld, "
             "found %lld",
             j.where, (long long)c->nhead, (long long)c->nkv);
    if (c->head_dim % 2)
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"head_dim\": expected an even number, found %lld",
             j.where, (long long)c->head_dim);
}

static const char *const decoder_keys[] = {"model_type",
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
                                           "rope_theta",
                                           "rope_scaling",
                                           "rope_parameters",
                                           NULL};

static bool find_bias(Json j, const Family *f, const char *key)
{
    return family_has_key(f, key) && json_find_bool(j, key, false);
}

static void read_decoder(Json j, const Family *f, ModelConfig *c)
{
    check_keys(j, f->type, decoder_keys, f->key);
    c->hidden = json_get_int(j, "hidden_size", 1, WIDEST);
    c->intermediate = json_get_int(j, "intermediate_size", 1, WIDEST);
    c->nlayer = json_get_int(j, "num_hidden_layers", 1, DEEPEST);
    c->npos = json_find_int(j, "max_position_embeddings", 1, MOST, f->npos);
    c->npos_given = json_has(j, "max_position_embeddings");
    c->activation = find_activation(j, f, "hidden_act", "silu");
    c->norm_eps = find_positive(j, "rms_norm_eps", 1e-6);
    c->tie = json_find_bool(j, "tie_word_embeddings", false);
    c->attention_bias = f->qkv_bias || find_bias(j, f, "attention_bias");
    c->mlp_bias = find_bias(j, f, "mlp_bias");
    c->window = read_window(j, f, c->nlayer);
    read_heads(j, f, c);
    read_rope(j, f, c);
}

/* "gpt2, llama or qwen2" */
static const char *family_list(Arena *a)
{
    Buf b = {.a = a};
    for (int i = 0; i < NMODEL; i++)
        buf_printf(&b, "%s%s", !i ? "" : i < NMODEL - 1 ? ", " : " or ", families[i].type);
    return b.text;
}

static const Family *find_family(Json j)
{
    const char *type = json_get_string(j, "model_type");
    for (int i = 0; i < NMODEL; i++)
        if (!strcmp(type, families[i].type))
            return &families[i];
    fail(arena_ctx(j.a), TN_FAIL, "%s: key \"model_type\": expected %s, found \"%s\"", j.where,
         family_list(j.a), type);
}

static void read_dropout(Json j, ModelConfig *c)
{
    static const struct {
        const char *key;
        bool attention; /* of its probabilities, which the graph has not */
    } all[] = {{"embd_pdrop", false},
               {"resid_pdrop", false},
               {"hidden_dropout", false},
               {"attn_pdrop", true},
               {"attention_dropout", true}};
    Buf said = {.a = j.a};
    for (int i = 0; i < LEN(all); i++) {
        double p = json_find_real(j, all[i].key, 0);
        if (p > 0 && !all[i].attention)
            c->dropout = fmax(c->dropout, p);
        if (p > 0)
            buf_printf(&said, "%s%s %g", said.len ? ", " : "", all[i].key, p);
    }
    c->dropout_text = said.text;
}

ModelConfig config_read(Arena *a, const char *path)
{
    size_t len;
    const char *source = file_read_regular(a, path, &len);
    Json j = json_read(a, path);
    const Family *f = find_family(j);
    ModelConfig c = {.kind = (ModelKind)(f - families),
                     .vocab = json_get_int(j, "vocab_size", 1, MOST),
                     .init_std = find_positive(j, "initializer_range", 0.02),
                     .prefix = f == &families[MODEL_GPT2] ? "" : f->prefix,
                     .source = source};
    if (c.kind == MODEL_GPT2)
        read_gpt2(j, f, &c);
    else
        read_decoder(j, f, &c);
    read_dropout(j, &c);
    return c;
}
