/* The table of model families and their differences. Llama, Mistral, Qwen 2 and Qwen 3 are one
 * network (decoder.c) and differ by their row; GPT-2 has its own (gpt2.c). Defaults are those of
 * transformers' configuration classes, for keys that config.json does not have. */
#include "model.h"

#include <string.h>

/* clang-format off */
const Family families[NMODEL] = {
    [MODEL_GPT2] = {"gpt2", "GPT2LMHeadModel", "transformer.", "h", gpt2_params, gpt2_logits,
                       0, 0, 0, 0, false, false, {NULL}},
#define DECODER(type, class) type, class, "model.", "layers", decoder_params, decoder_logits
    /*                                                        where config.json does not say: bias of
     *                                                        npos    nkv head_dim window q, k, v  q, k norms */
    [MODEL_LLAMA]   = {DECODER("llama", "LlamaForCausalLM"),     2048,   0,  0,   0,    false, false,
                       {"attention_bias", "mlp_bias"}},
    [MODEL_MISTRAL] = {DECODER("mistral", "MistralForCausalLM"), 131072, 8,  0,   4096, false, false,
                       {"sliding_window"}},
    [MODEL_QWEN2]   = {DECODER("qwen2", "Qwen2ForCausalLM"),     32768,  32, 0,   4096, true,  false,
                       {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}},
    [MODEL_QWEN3]   = {DECODER("qwen3", "Qwen3ForCausalLM"),     32768,  32, 128, 4096, false, true,
                       {"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers",
                        "layer_types"}},
};
/* clang-format on */

const Family *family_of(const ModelConfig *c)
{
    return &families[c->kind];
}

bool family_has_key(const Family *f, const char *key)
{
    for (int i = 0; i < LEN(f->key) && f->key[i]; i++)
        if (!strcmp(f->key[i], key))
            return true;
    return false;
}
