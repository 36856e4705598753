/* GPT-2 (Radford et al. 2019), with the names and layouts of Hugging Face's GPT2LMHeadModel: Conv1D
 * weights are [in, out], the head is the embedding.
 *
 *   h = wte[ids] + wpe[0..T)
 *   for each layer: h += c_proj(attention(c_attn(ln_1(h))));  h += c_proj(gelu(c_fc(ln_2(h))))
 *   logits = ln_f(h) wte^T
 *
 * q, k and v are views of one product. Initial values as Hugging Face's: N(0, std), residual
 * projections divided by sqrt(2 nlayer), biases 0, norms 1 and 0. */
#include "model.h"

#include <math.h>

void gpt2_params(ParamList *l)
{
    const ModelConfig *c = l->c;
    int64_t C = c->hidden, I = c->intermediate;
    double std = c->init_std, residual = std / sqrt(2.0 * (double)c->nlayer);
    param_add(l, "wte.weight", c->vocab, C, 0, std);
    param_add(l, "wpe.weight", c->npos, C, 0, std);
    for (int64_t i = 0; i < c->nlayer; i++) {
        l->layer = layer_make(l->a, "h", i);
        param_add(l, "ln_1.weight", C, 0, 1, 0);
        param_add(l, "ln_1.bias", C, 0, 0, 0);
        param_add(l, "attn.c_attn.weight", C, 3 * C, 0, std);
        param_add(l, "attn.c_attn.bias", 3 * C, 0, 0, 0);
        param_add(l, "attn.c_proj.weight", C, C, 0, residual);
        param_add(l, "attn.c_proj.bias", C, 0, 0, 0);
        param_add(l, "ln_2.weight", C, 0, 1, 0);
        param_add(l, "ln_2.bias", C, 0, 0, 0);
        param_add(l, "mlp.c_fc.weight", C, I, 0, std);
        param_add(l, "mlp.c_fc.bias", I, 0, 0, 0);
        param_add(l, "mlp.c_proj.weight", I, C, 0, residual);
        param_add(l, "mlp.c_proj.bias", C, 0, 0, 0);
    }
    l->layer = layer_none();
    param_add(l, "ln_f.weight", C, 0, 1, 0);
    param_add(l, "ln_f.bias", C, 0, 0, 0);
    if (!c->tie)
        param_add(l, "lm_head.weight", c->vocab, C, 0, std);
}

static Value *conv1d(Model *m, Value *x, const char *module)
{
    return model_linear(m, x, module, true, true);
}

static Value *norm(Model *m, Value *x, const char *module)
{
    model_scope(m, module);
    return emit1(
        &m->b, "native_layer_norm",
        IN(x, model_weight(m, module, "weight"), model_weight(m, module, "bias")),
        ATTRS(A_INTS("normalized_shape", 1, &m->c->hidden), A_FLOAT("eps", m->c->norm_eps)));
}

static Value *embed(Model *m)
{
    const int64_t flat[] = {-1, m->c->hidden};
    Value *token = model_embedding(m, "wte");
    model_scope(m, "wpe");
    Value *position = model_weight(m, "wpe", "weight");
    if (m->position || m->starts)
        position = emit1(&m->b, "embedding", IN(position, model_positions(m)), NOATTRS);
    else if (m->T < m->c->npos)
        position = emit1(&m->b, "slice", IN(position), ATTRS(A_INT("dim", 0), A_INT("end", m->T)));
    Value *h = emit1(&m->b, "add", IN(token, position), NOATTRS);
    return model_dropout(m, model_reshape(m, h, 2, flat), "drop");
}

static Value *attention(Model *m, Value *x)
{
    int64_t H = m->c->nhead;
    const int64_t heads[] = {-1, m->T, 3 * H, m->c->head_dim}, part[] = {H, H, H};
    Value *qkv = conv1d(m, x, "attn.c_attn");
    model_scope(m, "attn");
    qkv = model_reshape(m, qkv, 4, heads);
    Node *n = emit(&m->b, "split", IN(qkv), ATTRS(A_INTS("split_sizes", 3, part), A_INT("dim", 2)));
    Value *o = model_attention(m, n->out[0], n->out[1], n->out[2]);
    return model_dropout(m, conv1d(m, o, "attn.c_proj"), "attn.resid_dropout");
}

static Value *mlp(Model *m, Value *x)
{
    Value *y = conv1d(m, x, "mlp.c_fc");
    model_scope(m, "mlp.act");
    y = model_activation(m, y);
    return model_dropout(m, conv1d(m, y, "mlp.c_proj"), "mlp.dropout");
}

Value *gpt2_logits(Model *m)
{
    Value *h = embed(m);
    for (int64_t i = 0; i < m->c->nlayer; i++) {
        m->layer = layer_make(m->b.g->a, "h", i);
        h = model_residual(m, h, attention(m, norm(m, h, "ln_1")));
        h = model_residual(m, h, mlp(m, norm(m, h, "ln_2")));
    }
    m->layer = layer_none();
    return model_head(m, norm(m, model_last(m, h), "ln_f"), "wte");
}
