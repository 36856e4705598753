/* model: GPT-2, Llama, Mistral and Qwen from a Hugging Face configuration: parameters, their names
 * in the files, and the graph of forward and loss. Sections name the file that implements them. */
#ifndef TENON_MODEL_H
#define TENON_MODEL_H

#include "../io/io.h"

/* ---- config_read.c, config.c ---- */

typedef enum { MODEL_GPT2, MODEL_LLAMA, MODEL_MISTRAL, MODEL_QWEN2, MODEL_QWEN3, NMODEL } ModelKind;
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 } RopeKind;

/* The configuration that decides the mathematics, the shapes and the initialisation. */
typedef struct ModelConfig {
    ModelKind kind;
    int64_t vocab, hidden, intermediate, nlayer, nhead, nkv, head_dim;
    int64_t npos;           /* GPT-2: rows of wpe; decoders: as many as it was made for */
    bool npos_given;        /* by config.json; else npos is transformers' default, or a preset's */
    int64_t window;         /* decoders: how many tokens a token sees in some layer; 0: all */
    const char *activation; /* Hugging Face's name */
    double norm_eps, init_std;
    bool tie;            /* the head is the embedding */
    bool attention_bias; /* of q, k, v; and of o but for Qwen 2 */
    bool mlp_bias;
    double rope_theta;
    struct {
        RopeKind kind;
        double factor, low, high, original; /* low, high, original: llama3 only */
    } rope;
    /* Dropout in training, by config.json, beside the graph's: the largest of embeddings and
     * residual branches; and a list of all, "resid_pdrop 0.1, ...", or NULL. */
    double dropout;
    const char *dropout_text;
    const char *prefix;      /* of the names in the file: "transformer.", "model." or "" */
    const char *source;      /* the text of config.json as it was read, or NULL */
    const struct Lora *lora; /* adapters beside its linear modules; NULL: none */
} ModelConfig;

/* Reads config.json. A key that may change the mathematics and is not supported is an error. */
ModelConfig config_read(Arena *a, const char *path);
/* A model known by name, or NULL. The i-th name, or NULL after the last. */
const ModelConfig *config_preset(const char *name);
const char *config_preset_name(int i);
/* The longest sequence: its positions, which linear scaling stretches. */
int64_t config_longest(const ModelConfig *c);
/* The text of a config.json: what was read, or one made from c. */
const char *config_text(Arena *a, const ModelConfig *c);
/* Gives it another vocabulary, in the text too. */
void config_resize(Arena *a, ModelConfig *c, int64_t vocab);
/* The same beside weights of dtype d, which is what its torch_dtype then says. */
const char *config_text_of(Arena *a, const ModelConfig *c, DType d);

/* ---- init.c: parameters ---- */

typedef struct ModelParam {
    const char *name; /* as in the file, prefix included */
    Type type;        /* f32 */
    int index;        /* in the list: the stream of its random numbers */
    double mean, std; /* of its initial values; std 0: constant */
    double bound;     /* not 0: they are uniform from -bound to bound */
    /* With adapters, of what is trained: its name in their file. NULL: it is frozen. */
    const char *adapter;
    const char *weight; /* of an adapter: the parameter beside which it stands */
} ModelParam;

/* The beginnings of names: in the file ("h.3.", "" outside of the layers) and in scopes
 * ("layers.3"). */
typedef struct Layer {
    const char *name, *scope;
} Layer;

typedef struct ParamList {
    Arena *a;
    const ModelConfig *c;
    Layer layer;
    ModelParam *param;
    int count, cap;
} ParamList;

/* Every parameter, in the order of the graph's inputs: those of adapters last. */
const ModelParam *model_params(Arena *a, const ModelConfig *c, int *count);
/* Initial values in f32 or bf16: a function of seed, index and position alone, rounded. */
void model_init(const ModelParam *p, uint64_t seed, DType d, void *dst);
/* The same of elements [first, first + n). */
void model_init_part(const ModelParam *p, uint64_t seed, DType d, int64_t first, int64_t n,
                     void *dst);
/* Sets c->prefix from the names in f and checks that f has every parameter in its shape, as
 * floating-point numbers, and nothing else that the model would have to use. */
void model_match(Arena *a, ModelConfig *c, TensorFile *f);

/* ---- lora.c: adapters, as PEFT has them ---- */

typedef struct LoraName LoraName; /* a pattern, compiled (lora_pattern.c) */

/* Another number for modules, by a regular expression of their whole name or its end after a dot.
 */
typedef struct LoraPattern {
    const char *module;
    const LoraName *compiled;
    double value;
} LoraPattern;

/* Settings of adapters (LoRA). */
typedef struct Lora {
    int64_t r;
    double alpha, dropout;
    bool rslora, dora;
    LoraPattern *ranks, *alphas; /* the first that means a module holds for it */
    int nrank, nalpha, caprank, capalpha;
    const char **target; /* ends of modules' names, or "all-linear" */
    const char **save;   /* ends of names of modules that are trained whole */
    int ntarget, nsave, captarget, capsave;
    bool listed; /* read from a file in which target alone says which modules have adapters */
} Lora;

/* Reads "r=16,alpha=32,dropout=0.05,targets=q_proj|v_proj". */
Lora *lora_parse(Arena *a, const char *text);
/* The name of a part of a module's adapter, as in PEFT's files. */
const char *lora_name(Arena *a, const ModelConfig *c, Layer layer, const char *module,
                      const char *which);
/* The factor of what an adapter adds, whose first matrix has this name in PEFT's files. */
double lora_scale(Arena *a, const Lora *o, const char *first);
/* The targets as PEFT reads them in a list: "all-linear" is the ends of the modules that it means.
 */
const char **lora_targets(Arena *a, const ModelConfig *c, int *count);
/* Fails where a target, or a module to be saved, is none of the model's. */
void lora_check(Arena *a, const ModelConfig *c);
/* Adds the adapters' parameters to those of the model, and marks those that are trained whole. */
void lora_params(ParamList *l);
/* Takes the modules that a file has adapters of, where targets mean others. */
void lora_take_modules(Arena *a, const ModelConfig *c, Lora *o, const TensorFile *f);
/* Fails where the file has not all that is trained, in its shape, and nothing else. */
void lora_match(Arena *a, const ModelConfig *c, const TensorFile *f);
/* Whether the weight of a parameter's module is [in, out], as GPT-2's are. */
bool lora_in_first(const ModelConfig *c, const ModelParam *weight);

/* ---- lora_pattern.c: names of modules as PEFT's patterns have them ---- */

/* Compiles a regular expression of Python, which `where` names; fails where PCRE2 may read it
 * otherwise. */
const LoraName *lora_pattern(Arena *a, const char *where, const char *name);
/* Whether it is a module's whole name, or its end after a dot. */
bool lora_pattern_means(const LoraPattern *p, const char *module);

/* ---- lora_config.c: adapter_config.json ---- */

/* Reads it; *base: the model that it names, or NULL. A key that may change the mathematics and is
 * not supported is an error. */
Lora *lora_read(Arena *a, const char *path, const char **base);
const char *lora_text(Arena *a, const ModelConfig *c, const char *base);

/* ---- model.c: the graph ---- */

/* Options of training. */
typedef struct ModelOptions {
    double dropout, z_loss, label_smoothing;
    bool adapters_drop; /* the inputs of adapters, with the probability that these have */
    bool pack; /* documents share rows: an input starts [batch, seq] says where each begins */
} ModelOptions;

/* Forward and loss for batches [batch, seq]: inputs input_ids and labels (batch), the parameters,
 * and with dropout > 0 seed and step; output loss. Without options none of them. */
Graph *model_graph(Arena *a, const ModelConfig *c, int64_t batch, int64_t seq,
                   const ModelOptions *o);
/* The same without labels and loss: output metric "logits" [batch * seq, vocab]. */
Graph *model_logits(Arena *a, const ModelConfig *c, int64_t batch, int64_t seq);

/* For generating text: the next `tokens` of one row, input_ids [1, tokens], from position i64[] on
 * (both batch); caches "layers.N.k" and "layers.N.v" [1, capacity, Hkv, D] hold the keys and values
 * of the positions before and are extended. Output metric "logits" [1, vocab] of token number
 * `last` i64[1] (batch; no such input where tokens is 1). */
Graph *model_decode(Arena *a, const ModelConfig *c, int64_t tokens, int64_t capacity);

/* ---- what gpt2.c and decoder.c share ---- */

/* Adds a parameter [rows, cols], or [rows] where cols is 0, by its name within the layer. */
void param_add(ParamList *l, const char *name, int64_t rows, int64_t cols, double mean, double std);

typedef struct Model {
    Build b;
    const ModelConfig *c;
    Map params; /* name -> Value */
    Layer layer;
    int64_t T;
    double dropout, adapter_dropout;
    bool pack;
    Value *ids, *labels, *seed, *step;
    Value *starts;          /* of rows that documents share; else NULL */
    Value *position, *last; /* of a graph that decodes; else NULL */
    int64_t capacity;
    int ndropout; /* dropout nodes so far: the next stream */
} Model;

Layer layer_make(Arena *a, const char *list, int64_t i); /* "h", 3 */
Layer layer_none(void);
/* A parameter's name in the file: prefix (which the head has not), layer, module. */
const char *param_name(Arena *a, const ModelConfig *c, Layer layer, const char *name);

/* Nodes from here on are in this module of the layer ("": the layer itself). */
void model_scope(Model *m, const char *module);
Value *model_weight(const Model *m, const char *module, const char *which);
Value *model_reshape(Model *m, Value *x, int rank, const int64_t *size);
Value *model_embedding(Model *m, const char *module);         /* [B, T, C] of the ids */
Value *model_dropout(Model *m, Value *h, const char *module); /* of h [B*T, C] */
/* The same of x [B*T, width], with a probability of its own. */
Value *model_dropped(Model *m, Value *x, int64_t width, double p);
Value *model_activation(Model *m, Value *x);
/* Where the tokens stand in a row, i64[T]; in their documents, i64[T] or of rows that these share
 * [B, T]. */
Value *model_places(Model *m);
Value *model_positions(Model *m);
/* Causal attention of q [B,T,H,D] and k, v [B,T,Hkv,D] to [B*T, H*D]; through the layer's caches
 * where it decodes. */
Value *model_attention(Model *m, Value *q, Value *k, Value *v);
Value *model_residual(Model *m, Value *h, Value *y);
Value *model_last(Model *m, Value *h); /* of a graph that decodes: the row that is wanted; else h */
Value *model_head(Model *m, Value *h, const char *embedding); /* logits [B*T, vocab] */
bool activation_known(const char *name);                      /* Hugging Face's name */
const char *activation_list(Arena *a);                        /* the names, for messages */

/* ---- linear.c ---- */

/* x [B*T, in] through a linear module and its adapter. in_first: its weight is [in, out]. */
Value *model_linear(Model *m, Value *x, const char *module, bool bias, bool in_first);

void gpt2_params(ParamList *l);
Value *gpt2_logits(Model *m); /* [B*T, vocab] */
void decoder_params(ParamList *l);
Value *decoder_logits(Model *m);

/* ---- family.c ---- */

/* One kind of model: its names, its network, and how decoders differ. */
typedef struct Family {
    const char *type, *class; /* model_type and architecture in config.json */
    const char *prefix;       /* of names in files of the model with its head */
    const char *list;         /* of layers: "h" in "h.3.ln_1.weight" */
    void (*params)(ParamList *l);
    Value *(*logits)(Model *m);
    /* where config.json does not say; 0: as many as heads; hidden size / heads; has none */
    int64_t npos, nkv, head_dim, window;
    bool qkv_bias, qk_norm;
    const char *key[6]; /* of config.json, which not all families have; ends with NULL */
} Family;

extern const Family families[NMODEL];
const Family *family_of(const ModelConfig *c);
bool family_has_key(const Family *f, const char *key);

#endif
