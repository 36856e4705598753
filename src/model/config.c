/* The presets, and writing a config.json. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    {"llama3-70b",  LLAMA( 128256, 8192,   8192, 80, 64, 8,  28672, 5e5,  false, ROPE_PLAIN, 0, 0, 0, 0)},
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

int64_t config_longest(const ModelConfig *c)
{
    bool stretched = c->kind != MODEL_GPT2 && c->rope.kind == ROPE_LINEAR;
    const double longest = (double)c->npos * (stretched ? fmax(1, c->rope.factor) : 1);
    return (int64_t)fmin(longest, INT32_MAX);
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

/* The window is in every layer, where the family can have it in some. */
static void add_window(Buf *b, const ModelConfig *c, const Family *f)
{
    if (!family_has_key(f, "sliding_window"))
        return;
    if (family_has_key(f, "max_window_layers"))
        add_int(b, "max_window_layers", 0);
    if (c->window)
        add_int(b, "sliding_window", c->window);
    else
        buf_add(b, ",\n  \"sliding_window\": null");
    if (family_has_key(f, "use_sliding_window"))
        add_bool(b, "use_sliding_window", c->window > 0);
}

static void add_decoder(Buf *b, const ModelConfig *c)
{
    const Family *f = family_of(c);
    if (family_has_key(f, "attention_bias"))
        add_bool(b, "attention_bias", c->attention_bias);
    add_int(b, "head_dim", c->head_dim);
    buf_printf(b, ",\n  \"hidden_act\": \"%s\"", c->activation);
    add_int(b, "hidden_size", c->hidden);
    add_real(b, "initializer_range", c->init_std);
    add_int(b, "intermediate_size", c->intermediate);
    add_int(b, "max_position_embeddings", c->npos);
    if (family_has_key(f, "mlp_bias"))
        add_bool(b, "mlp_bias", c->mlp_bias);
    add_int(b, "num_attention_heads", c->nhead);
    add_int(b, "num_hidden_layers", c->nlayer);
    add_int(b, "num_key_value_heads", c->nkv);
    add_real(b, "rms_norm_eps", c->norm_eps);
    add_rope(b, c);
    add_window(b, c, f);
    add_bool(b, "tie_word_embeddings", c->tie);
    add_int(b, "vocab_size", c->vocab);
}

const char *config_text(Arena *a, const ModelConfig *c)
{
    if (c->source)
        return c->source;
    const Family *f = family_of(c);
    Buf b = {.a = a};
    buf_printf(&b, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", f->class,
               f->type);
    if (c->kind == MODEL_GPT2)
        add_gpt2(&b, c);
    else
        add_decoder(&b, c);
    buf_add(&b, "\n}\n");
    return b.text;
}

/* The value of a key of the top level, after its colon, or NULL. */
static const char *find_value(const char *text, const char *key)
{
    int depth = 0;
    size_t n = strlen(key);
    bool quoted = false;
    for (const char *p = text; *p; p++) {
        const char *after = p + 2 + n;
        if (!quoted && *p == '"' && depth == 1 && !strncmp(p + 1, key, n) && after[-1] == '"') {
            after += strspn(after, " \t\r\n");
            if (*after == ':')
                return after + 1 + strspn(after + 1, " \t\r\n");
        }
        if (*p == '"')
            quoted = !quoted;
        else if (quoted && *p == '\\' && p[1])
            p++;
        else if (!quoted)
            depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
    }
    return NULL;
}

/* The text with a key's value, where it is a string or null, replaced by a name; NULL where not. */
static const char *with_value(Arena *a, const char *text, const char *key, const char *name)
{
    const char *value = find_value(text, key);
    if (!value || (*value != '"' && strncmp(value, "null", 4)))
        return NULL;
    const char *end = *value == '"' ? strchr(value + 1, '"') + 1 : value + 4;
    return arena_printf(a, "%.*s\"%s\"%s", (int)(value - text), text, name, end);
}

const char *config_text_of(Arena *a, const ModelConfig *c, DType d)
{
    static const char *const keys[] = {"torch_dtype", "dtype"}; /* of transformers 4, 5 */
    const char *text = config_text(a, c), *name = d == BF16 ? "bfloat16" : "float32";
    bool said = d == F32; /* what it is where nothing is said */
    for (int i = 0; i < LEN(keys); i++) {
        const char *changed = with_value(a, text, keys[i], name);
        text = changed ? changed : text;
        said |= changed != NULL;
    }
    if (said)
        return text;
    const char *open = strchr(text, '{') + 1;
    return arena_printf(a, "%.*s\n  \"torch_dtype\": \"%s\",%s", (int)(open - text), text, name,
                        open);
}

void config_resize(Arena *a, ModelConfig *c, int64_t vocab)
{
    const char *text = c->source, *value = text ? find_value(text, "vocab_size") : NULL;
    c->vocab = vocab;
    if (value)
        c->source = arena_printf(a, "%.*s%lld%s", (int)(value - text), text, (long long)vocab,
                                 value + strspn(value, "0123456789"));
    else if (text && (value = strchr(text, '{')))
        c->source = arena_printf(a, "%.*s\n  \"vocab_size\": %lld,%s", (int)(value + 1 - text),
                                 text, (long long)vocab, value + 1);
}
