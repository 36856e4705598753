/* config: what tests of models write as config.json. */
#ifndef TENON_TEST_CONFIG_H
#define TENON_TEST_CONFIG_H

#include "folder.h"

#include "../../src/model/model.h"

#define GPT2_KEYS                                                                \
    "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 4, \"n_layer\": 2, " \
    "\"n_positions\": 32, \"vocab_size\": 97"
#define LLAMA_KEYS                                                                  \
    "{\"model_type\": \"llama\", \"hidden_size\": 48, \"num_attention_heads\": 6, " \
    "\"num_hidden_layers\": 3, \"intermediate_size\": 100, \"vocab_size\": 89"
/* 32 heads: what Mistral and Qwen have where num_key_value_heads is not said divides them. */
#define MODEL_KEYS(type)                                                                \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"num_attention_heads\": 32, " \
    "\"num_hidden_layers\": 2, \"intermediate_size\": 100, \"vocab_size\": 89"
#define LLAMA3_KEYS                                                          \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
    "\"original_max_position_embeddings\": 64"

/* Writes config.json into the test's folder; returns its path. */
static inline const char *put_config(const char *text)
{
    const char *path = in_dir("config.json");
    file_write(&ctx, path, text, strlen(text));
    return path;
}

static inline ModelConfig config_of(const char *text)
{
    return config_read(a, put_config(text));
}

#endif
