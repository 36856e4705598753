/* The decoder that Llama (Touvron et al. 2023; Llama 3: Dubey et al. 2024), Mistral (Jiang et al.
 * 2023), Qwen 2 and Qwen 3 (Yang et al. 2024, 2025) have in common, with the names and layouts of
 * Hugging Face: Linear weights are [out, in], rope pairs element i with i + D/2. Per token:
 *
 *   h = embed_tokens[ids]
 *   for each layer:
 *     n = norm(h), h += o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n)))
 *     n = norm(h), h += down_proj(silu(gate_proj(n)) * up_proj(n))
 *   logits = norm(h) lm_head^T
 *
 * They differ by the biases that projections have, by head_dim apart from hidden size / heads, and
 * Qwen 3 norms each head of q and k before it is turned: see family.c.
 *
 * Rotary angles are position * f_i, f_i = theta^(-2i/D). Llama 3.1's scaling of f ("llama3") leaves
 * wavelengths below original/high as they are, divides those above original/low by factor and goes
 * linearly between: f_i ((1 - s)/factor + s), s = clamp((original f_i / 2 pi - low)/(high - low),
 * 0, 1). Unscaled tables are one rope_table node; scaled ones are made from pointwise ops in
 * double, once a graph. Initial values as Hugging Face's: N(0, std), norms 1, biases 0. */
#include "model.h"

#include <math.h>

static void linear_params(ParamList *l, const char *module, int64_t out, int64_t in, bool bias)
{
    param_add(l, arena_printf(l->a, "%s.weight", module), out, in, 0, l->c->init_std);
    if (bias)
        param_add(l, arena_printf(l->a, "%s.bias", module), out, 0, 0, 0);
}

static bool output_bias(const ModelConfig *c)
{
    return c->attention_bias && !family_of(c)->qkv_bias;
}

void decoder_params(ParamList *l)
{
    const ModelConfig *c = l->c;
    int64_t C = c->hidden, I = c->intermediate;
    int64_t Q = c->nhead * c->head_dim, K = c->nkv * c->head_dim;
    param_add(l, "embed_tokens.weight", c->vocab, C, 0, c->init_std);
    for (int64_t i = 0; i < c->nlayer; i++) {
        l->layer = layer_make(l->a, "layers", i);
        param_add(l, "input_layernorm.weight", C, 0, 1, 0);
        linear_params(l, "self_attn.q_proj", Q, C, c->attention_bias);
        linear_params(l, "self_attn.k_proj", K, C, c->attention_bias);
        linear_params(l, "self_attn.v_proj", K, C, c->attention_bias);
        linear_params(l, "self_attn.o_proj", C, Q, output_bias(c));
        if (family_of(c)->qk_norm) {
            param_add(l, "self_attn.q_norm.weight", c->head_dim, 0, 1, 0);
            param_add(l, "self_attn.k_norm.weight", c->head_dim, 0, 1, 0);
        }
        param_add(l, "post_attention_layernorm.weight", C, 0, 1, 0);
        linear_params(l, "mlp.gate_proj", I, C, c->mlp_bias);
        linear_params(l, "mlp.up_proj", I, C, c->mlp_bias);
        linear_params(l, "mlp.down_proj", C, I, c->mlp_bias);
    }
    l->layer = layer_none();
    param_add(l, "norm.weight", C, 0, 1, 0);
    if (!c->tie)
        param_add(l, "lm_head.weight", c->vocab, C, 0, c->init_std);
}

static Value *linear(Model *m, Value *x, const char *module, bool bias)
{
    return model_linear(m, x, module, bias, false);
}

static Value *norm(Model *m, Value *x, const char *module)
{
    model_scope(m, module);
    return emit1(&m->b, "rms_norm", IN(x, model_weight(m, module, "weight")),
                 ATTRS(A_FLOAT("eps", m->c->norm_eps)));
}

/* ---- rotary tables ---- */

typedef struct Rotary {
    Value *cosine, *sine;
} Rotary;

static Value *binary(Model *m, const char *op, Value *x, double y)
{
    return emit1(&m->b, op, IN(x, emit_full(&m->b, y, F64)), NOATTRS);
}

static Value *wide(Model *m, Value *x)
{
    return emit1(&m->b, "_to_copy", IN(x), ATTRS(A_DTYPE("dtype", F64)));
}

static Value *scaled_frequencies(Model *m)
{
    const ModelConfig *c = m->c;
    double rate = -2 * log(c->rope_theta) / (double)c->head_dim;
    Value *index = emit1(&m->b, "arange", 0, NULL, ATTRS(A_INT("end", c->head_dim / 2)));
    Value *f = binary(m, "mul", wide(m, index), rate);
    f = emit1(&m->b, "exp", IN(f), NOATTRS);
    if (c->rope.kind == ROPE_LINEAR)
        return binary(m, "div", f, c->rope.factor);
    Value *s = binary(m, "mul", f, c->rope.original / (2 * 3.14159265358979323846));
    s = binary(m, "div", binary(m, "sub", s, c->rope.low), c->rope.high - c->rope.low);
    s = binary(m, "minimum", binary(m, "maximum", s, 0), 1);
    Value *scale = binary(m, "mul", s, 1 - 1 / c->rope.factor);
    return emit1(&m->b, "mul", IN(f, binary(m, "add", scale, 1 / c->rope.factor)), NOATTRS);
}

static Value *narrow(Model *m, Value *x)
{
    return emit1(&m->b, "_to_copy", IN(x), ATTRS(A_DTYPE("dtype", F32)));
}

static Rotary rotary_tables(Model *m)
{
    model_scope(m, "rotary_emb");
    if (m->c->rope.kind == ROPE_PLAIN) {
        Node *n = emit(&m->b, "rope_table", m->position ? 1 : 0, &m->position,
                       ATTRS(A_INT("length", m->T), A_INT("dim", m->c->head_dim),
                             A_FLOAT("theta", m->c->rope_theta)));
        return (Rotary){n->out[0], n->out[1]};
    }
    const int64_t column[] = {m->T, 1};
    Value *t = model_reshape(m, wide(m, model_places(m)), 2, column);
    Value *angle = emit1(&m->b, "mul", IN(t, scaled_frequencies(m)), NOATTRS);
    Value *cosine = narrow(m, emit1(&m->b, "cos", IN(angle), NOATTRS));
    return (Rotary){cosine, narrow(m, emit1(&m->b, "sin", IN(angle), NOATTRS))};
}

/* ---- the network ---- */

/* The rows of the tables for the positions of documents that share rows: [B*T, D/2]. */
static Rotary rotary_rows(Model *m, Rotary r)
{
    const int64_t flat[] = {-1};
    if (!m->starts)
        return r;
    Value *at = model_reshape(m, model_positions(m), 1, flat);
    return (Rotary){emit1(&m->b, "embedding", IN(r.cosine, at), NOATTRS),
                    emit1(&m->b, "embedding", IN(r.sine, at), NOATTRS)};
}

/* [B*T, heads*D] to [B, T, heads, D]. */
static Value *heads(Model *m, Value *x, int64_t count)
{
    const int64_t size[] = {-1, m->T, count, m->c->head_dim};
    model_scope(m, "self_attn");
    return model_reshape(m, x, 4, size);
}

/* Heads of queries or keys: normed, where the family does that, and turned by their position. Rows
 * that documents share are turned as one long one, as each token has its own row of the tables. */
static Value *turned(Model *m, Value *x, int64_t count, const char *module, Rotary r)
{
    const int64_t one[] = {1, -1, count, m->c->head_dim},
                  rows[] = {-1, m->T, count, m->c->head_dim};
    x = heads(m, x, count);
    if (family_of(m->c)->qk_norm)
        x = norm(m, x, module);
    model_scope(m, "self_attn");
    if (m->starts)
        x = model_reshape(m, x, 4, one);
    x = emit1(&m->b, "rope", IN(x, r.cosine, r.sine), NOATTRS);
    return m->starts ? model_reshape(m, x, 4, rows) : x;
}

static Value *attention(Model *m, Value *x, Rotary r)
{
    const ModelConfig *c = m->c;
    bool bias = c->attention_bias;
    Value *q = linear(m, x, "self_attn.q_proj", bias);
    q = turned(m, q, c->nhead, "self_attn.q_norm", r);
    Value *k = linear(m, x, "self_attn.k_proj", bias);
    k = turned(m, k, c->nkv, "self_attn.k_norm", r);
    Value *v = heads(m, linear(m, x, "self_attn.v_proj", bias), c->nkv);
    Value *o = linear(m, model_attention(m, q, k, v), "self_attn.o_proj", output_bias(c));
    return model_dropout(m, o, "self_attn.resid_dropout");
}

static Value *mlp(Model *m, Value *x)
{
    bool bias = m->c->mlp_bias;
    Value *gate = linear(m, x, "mlp.gate_proj", bias);
    Value *up = linear(m, x, "mlp.up_proj", bias);
    model_scope(m, "mlp.act_fn");
    Value *y = emit1(&m->b, "mul", IN(model_activation(m, gate), up), NOATTRS);
    return model_dropout(m, linear(m, y, "mlp.down_proj", bias), "mlp.dropout");
}

Value *decoder_logits(Model *m)
{
    const int64_t flat[] = {-1, m->c->hidden};
    Rotary r = rotary_rows(m, rotary_tables(m));
    Value *h = model_reshape(m, model_embedding(m, "embed_tokens"), 2, flat);
    h = model_dropout(m, h, "drop");
    for (int64_t i = 0; i < m->c->nlayer; i++) {
        m->layer = layer_make(m->b.g->a, "layers", i);
        h = model_residual(m, h, attention(m, norm(m, h, "input_layernorm"), r));
        h = model_residual(m, h, mlp(m, norm(m, h, "post_attention_layernorm")));
    }
    m->layer = layer_none();
    return model_head(m, norm(m, model_last(m, h), "norm"), "embed_tokens");
}
