/* What ranks have of inputs and outputs: recipes on the presets of each family, rules of the user,
 * batches in iterations; and every error, with what it names. */
#include "../../src/model/model.h"
#include "../../src/spmd/spmd.h"
#include "../shared/test.h"

static Ctx ctx;
static Arena *a; /* of one case */

enum { MOST_RULES = 4 };

typedef struct Case {
    const char *model, *mesh; /* a preset, or a graph's text */
    int64_t accumulate;
    const char *rule[MOST_RULES];
    const char *port; /* a parameter; %value; grad, new or state and a name */
    const char
        *expect; /* its cuts, behind them the mesh axes by which readers compute; or the error */
} Case;

#define MM(rest)                                                                 \
    "tenon 1\ngraph g(%x: f32[8, 6] batch, %c: f32[8] const \"c\", "             \
    "%w: f32[6, 5] param \"layer.w\", %b: f32[5] param \"layer.b\"" rest ") {\n" \
    "  %y: f32[8, 5] = addmm(%b, %x, %w)  forward\n"                             \
    "  %l: f32[] = sum(%y)  loss\n"                                              \
    "  return loss %l, %y\n}\n"

#define LINEAR                                                                                \
    "tenon 1\ngraph g(%x: f32[8, 4] batch, %a: f32[12, 4] param \"t.0.attn.c_attn.weight\", " \
    "%p: f32[4, 4] param \"t.0.attn.c_proj.weight\", %f: f32[16, 4] param "                   \
    "\"p_t_0_mlp_c_fc_weight\", %b: f32[16] param \"p_t_0_mlp_c_fc_bias\") {\n"               \
    "  %l: f32[] = sum(%x)  loss\n  return loss %l\n}\n"

/* Its loop takes the rows of %a, not those of %x. */
#define LOOP                                                                           \
    "tenon 1\ngraph g(%a: f32[8, 4] batch, %x: f32[8] batch) {\n"                      \
    "  %y: f32[8, 4] = loop(n=4, slice %p: f32[2, 4] = %a axis 0) -> (concat axis 0) " \
    "forward {\n    %q: f32[2, 4] = neg(%p)  forward\n    yield %q\n  }\n"             \
    "  %l: f32[] = sum(%x)  loss\n  return loss %l, %y\n}\n"

/* clang-format off */
static const Case good[] = {
    /* fsdp and tp by the recipe of each family */
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.3.self_attn.q_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.3.self_attn.k_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.3.self_attn.v_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.3.self_attn.o_proj.weight", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.0.mlp.gate_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.0.mlp.up_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.0.mlp.down_proj.weight", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.layers.31.input_layernorm.weight", "shard(0: tp, fsdp)"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.norm.weight", "shard(0: tp, fsdp)"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "model.embed_tokens.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16,tp=8", 1, {0}, "lm_head.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "tp=8,fsdp=16", 1, {0}, "lm_head.weight", "shard(0: tp, fsdp) computes by tp"},
    {"llama3-8b", "fsdp=16", 1, {0}, "lm_head.weight", "shard(0: fsdp)"},
    {"llama3-8b", "tp=8", 1, {0}, "model.norm.weight", "shard(0: tp)"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.11.attn.c_attn.weight", "shard(0: fsdp) shard(1: 3, tp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.11.attn.c_attn.bias", "shard(0: 3, tp, fsdp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.11.attn.c_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.11.attn.c_proj.bias", "shard(0: tp, fsdp)"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.mlp.c_fc.weight", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.mlp.c_fc.bias", "shard(0: tp, fsdp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.mlp.c_proj.weight", "shard(0: tp, fsdp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.mlp.c_proj.bias", "shard(0: tp, fsdp)"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.ln_1.weight", "shard(0: tp, fsdp)"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "h.0.ln_1.bias", "shard(0: tp, fsdp)"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "wte.weight", "shard(0: tp, fsdp) computes by tp"},
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "wpe.weight", "shard(0: tp, fsdp)"},
    {"gpt2", "dp=4", 1, {0}, "wte.weight", ""},
    {"gpt2", "fsdp=4,tp=1", 1, {0}, "wte.weight", "shard(0: fsdp)"},
    {"tests/ref/qwen3-tiny/config.json", "tp=2", 1, {0}, "model.layers.0.self_attn.q_norm.weight", "shard(0: tp)"},
    {"tests/ref/qwen3-tiny/config.json", "tp=2", 1, {0}, "model.layers.0.self_attn.q_proj.weight", "shard(0: tp) computes by tp"},
    /* what does not divide: fsdp along the other axis, or tp where it is stored; vocabularies are padded */
    {"tests/ref/llama-tied/config.json", "fsdp=4,tp=2", 1, {0}, "model.layers.0.mlp.gate_proj.weight",
     "shard(0: tp) shard(1: fsdp) computes by tp"},
    {"tests/ref/llama-tied/config.json", "fsdp=4,tp=2", 1, {0}, "model.layers.0.mlp.down_proj.weight",
     "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"tests/ref/llama-tied/config.json", "fsdp=4,tp=2", 1, {0}, "model.embed_tokens.weight", "shard(0: tp, fsdp) computes by tp"},
    {"tests/ref/llama-tied/config.json", "fsdp=4,tp=3", 1, {0}, "model.layers.0.mlp.gate_proj.weight", "shard(0: tp, fsdp)"},
    {"tests/ref/llama-tied/config.json", "fsdp=4,tp=3", 1, {0}, "model.layers.0.mlp.down_proj.weight", "shard(0: tp, fsdp)"},
    {"tests/ref/gpt2-tiny/config.json", "fsdp=8,tp=4", 1, {0}, "h.0.attn.c_attn.bias", "shard(0: tp, fsdp)"},
    {"tests/ref/gpt2-tiny/config.json", "fsdp=8,tp=4", 1, {0}, "h.0.attn.c_attn.weight",
     "shard(0: fsdp) shard(1: 3, tp) computes by tp"},
    /* GPT-2 with Linear; names of traced values */
    {LINEAR, "fsdp=2,tp=2", 1, {0}, "t.0.attn.c_attn.weight", "shard(0: 3, tp, fsdp) computes by tp"},
    {LINEAR, "fsdp=2,tp=2", 1, {0}, "t.0.attn.c_proj.weight", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {LINEAR, "fsdp=2,tp=2", 1, {0}, "p_t_0_mlp_c_fc_weight", "shard(0: tp, fsdp) computes by tp"},
    {LINEAR, "fsdp=2,tp=2", 1, {0}, "p_t_0_mlp_c_fc_bias", "shard(0: tp, fsdp) computes by tp"},
    /* the batch, and what is whole */
    {"gpt2", "dp=2,fsdp=4,tp=2", 1, {0}, "%input_ids", "shard(0: dp, fsdp)"},
    {"gpt2", "fsdp=4,dp=2", 1, {0}, "%labels", "shard(0: fsdp, dp)"},
    {"gpt2", "fsdp=4,dp=2", 4, {0}, "%labels", "shard(0: 4, fsdp, dp)"},
    {"gpt2", "fsdp=4,dp=2", 4, {0}, "%input_ids", "shard(0: 4, fsdp, dp)"},
    {"gpt2", "fsdp=4,dp=2", 1, {0}, "loss", ""},
    {MM(""), "dp=2", 1, {0}, "%x", "shard(0: dp)"},
    {MM(""), "dp=2", 1, {0}, "%c", ""},
    {MM(""), "dp=3", 1, {0}, "%x", "shard(0: dp)"},
    {MM(", %one: f32[1, 6] batch"), "dp=2", 1, {0}, "%one", ""},
    {MM(", %two: f32[2, 6] batch"), "dp=2", 1, {"two="}, "%two", ""},
    {LOOP, "dp=2", 1, {0}, "%x", "shard(0: 4, dp)"},
    {LOOP, "dp=8", 1, {"a="}, "%x", "shard(0: dp)"},
    /* what follows a parameter */
    {"gpt2", "fsdp=4,tp=2", 1, {0}, "state h.0.mlp.c_fc.weight.m", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"gpt2", "fsdp=4,tp=2", 1, {0}, "state h.0.mlp.c_fc.weight.v", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"gpt2", "fsdp=4,tp=2", 2, {0}, "new h.0.mlp.c_fc.weight", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {"gpt2", "fsdp=4,tp=2", 1, {0}, "new h.0.mlp.c_fc.weight.m", "shard(0: fsdp) shard(1: tp) computes by tp"},
    {MM(", %m: f32[6, 5] state \"layer.w.m\""), "x=2,y=2", 1, {"*.w=1:y,x"}, "state layer.w.m", "shard(1: y, x)"},
    {MM(", %m: f32[] state \"layer.w.m\""), "fsdp=2", 1, {0}, "state layer.w.m", ""},
    /* rules of the user: the last match holds, whole */
    {MM(""), "fsdp=2,tp=2", 1, {"*.w=0:tp,fsdp"}, "layer.w", "shard(0: tp, fsdp)"},
    {MM(""), "fsdp=2,tp=2", 1, {"*.w=0:fsdp;1:tp"}, "layer.w", "shard(0: fsdp) shard(1: tp)"},
    {MM(""), "fsdp=2,tp=2", 1, {"*=0: tp", "*.w=1:tp"}, "layer.w", "shard(1: tp)"},
    {MM(""), "fsdp=2,tp=2", 1, {"*=0: tp", "*.w=1:tp"}, "layer.b", "shard(0: tp)"},
    {MM(""), "fsdp=2,tp=2", 1, {"*.w=0: tp , fsdp"}, "layer.w", "shard(0: tp, fsdp)"},
    {MM(""), "fsdp=2,tp=2", 1, {"*.w=0:3,tp"}, "layer.w", "shard(0: 3, tp)"},
    {MM(""), "fsdp=1,tp=2", 1, {"*.w=0:tp,3,fsdp"}, "layer.w", "shard(0: tp)"},
    {MM(""), "fsdp=2", 1, {"*.w="}, "layer.w", ""},
    {MM(""), "fsdp=2", 1, {"*.w="}, "layer.b", "shard(0: fsdp)"},
    {MM(""), "x=2", 1, {"x=1:x"}, "%x", "shard(1: x)"},
    {MM(""), "dp=2,x=2", 1, {"c=0:x"}, "%c", "shard(0: x)"},
    {MM(""), "dp=2,x=2", 1, {"y=0:x"}, "%y", "shard(0: x)"},
    {MM(""), "fsdp=2,x=1", 1, {"*.w=0:x"}, "layer.w", ""},
    {"gpt2", "tp=3,fsdp=2", 1, {"*c_attn*=0:fsdp", "*attn.c_proj*=0:fsdp"}, "wte.weight", "shard(0: tp, fsdp) computes by tp"},
    {"gpt2", "fsdp=2,tp=2", 1, {"wte*=0:tp,fsdp"}, "wte.weight", "shard(0: tp, fsdp)"},
    {"gpt2", "fsdp=2,tp=2", 1, {"wte*=0:fsdp", "wte*=0:fsdp"}, "wte.weight", "shard(0: fsdp)"},
};

static const Case bad[] = {
    {"gpt2", "dp=2,x=3", 1, {0}, NULL, "mesh axis \"x\" of 3 ranks cuts nothing: no --shard names it"},
    {"gpt2", "dp=2,x=1", 1, {0}, NULL, "mesh axis \"x\" of 1 ranks cuts nothing"},
    {MM(""), "tp=2", 1, {0}, NULL, "mesh axis \"tp\" of 2 ranks cuts nothing: no parameter is one of a family with a recipe"},
    {"tenon 1\ngraph g(%x: f32[4] param \"x\") {\n  %y: f32[] = sum(%x)  forward\n  return %y\n}\n", "dp=2", 1, {0}, NULL,
     "mesh axis \"dp\" of 2 ranks cuts nothing: no batch input has rows"},
    {"gpt2", "tp=2", 1, {"*.bias=", "*.weight="}, NULL, "mesh axis \"tp\" of 2 ranks cuts nothing: it would cut \"wte.weight\" f32[50257, 768], but "
     "--shard \"*.weight=\" holds for that and does not name it"},
    {"tenon 1\ngraph g(%x: f32[4] param \"x\") {\n  %y: f32[] = sum(%x)  forward\n  return %y\n}\n", "fsdp=2", 1, {"x="}, NULL,
     "mesh axis \"fsdp\" of 2 ranks cuts nothing: it would cut \"x\" f32[4], but --shard \"x=\" holds"},
    {"gpt2", "fsdp=2", 1, {"h.*.mlp.cfc.weight=0:fsdp"}, NULL, "shard \"h.*.mlp.cfc.weight\": matches no parameter; the nearest is \"h.0.mlp.c_fc.weight\""},
    {MM(""), "fsdp=2", 1, {"*.b=1:fsdp"}, NULL, "shard \"*.b=1:fsdp\": \"layer.b\" f32[5] has no axis 1"},
    {MM(""), "fsdp=2", 1, {"*.b=0:2,fsdp"}, NULL, "shard \"*.b=0:2,fsdp\": axis 0 of \"layer.b\" f32[5] is no multiple of 4"},
    {MM(""), "fsdp=2", 1, {"*.w=0:fsdp,fsdp"}, NULL, "shard \"*.w=0:fsdp,fsdp\": mesh axis \"fsdp\" is named twice"},
    {MM(""), "fsdp=2", 1, {"*.w=0:fsdp;1:fsdp"}, NULL, "mesh axis \"fsdp\" is named twice"},
    {MM(""), "fsdp=2,x=2", 1, {"*.w=0:fsdp;0:x"}, NULL, "tensor axis 0 is named twice"},
    {MM(""), "fsdp=2", 1, {"*.w=0:tp"}, NULL, "shard \"*.w=0:tp\": the mesh fsdp=2 has no axis \"tp\""},
    {MM(""), "fsdp=2", 1, {"*.w"}, NULL, "shard \"*.w\": expected auto, or PATTERN=AXIS:MESH_AXES, such as *.weight=0:fsdp"},
    {MM(""), "fsdp=2", 1, {"*.w=fsdp"}, NULL, "shard \"*.w=fsdp\": expected AXIS:MESH_AXES, found \"fsdp\""},
    {MM(""), "fsdp=2", 1, {"*.w=9:fsdp"}, NULL, "expected AXIS:MESH_AXES, found \"9:fsdp\""},
    {MM(""), "fsdp=2", 1, {"*.w=0:"}, NULL, "expected a mesh axis at the end of what cuts axis 0"},
    {MM(""), "fsdp=2", 1, {"*.w=0:fsdp,2"}, NULL, "expected a mesh axis at the end of what cuts axis 0"},
    {MM(""), "fsdp=2,x=2", 1, {"*.w=0:fsdp,"}, NULL, "shard \"*.w=0:fsdp,\": expected a mesh axis at the end of what cuts axis 0"},
    {MM(""), "fsdp=2,x=2", 1, {"*.w=0:fsdp,,x"}, NULL, "shard \"*.w=0:fsdp,,x\": expected a mesh axis or a whole number, found \"\""},
    {MM(""), "fsdp=2", 1, {"*.w=0: ,fsdp"}, NULL, "expected a mesh axis or a whole number, found \"\""},
    {MM(""), "fsdp=2", 1, {"*.w=0:fsdp;"}, NULL, "shard \"*.w=0:fsdp;\": expected AXIS:MESH_AXES, found \"\""},
    {MM(""), "fsdp=2", 1, {"*.w=;0:fsdp"}, NULL, "expected AXIS:MESH_AXES, found \"\""},
    {MM(""), "x=32768,y=65535", 1, {"*.w=0:4,x,y"}, NULL, "shard \"*.w=0:4,x,y\": axis 0 of \"layer.w\" f32[6, 5] is no multiple of 8589803520"},
    {MM(""), "fsdp=2", 1, {"*.w=0:0,fsdp"}, NULL, "expected a mesh axis or a whole number, found \"0\""},
    {MM(""), "fsdp=2", 1, {"*.w=0:2x,fsdp"}, NULL, "expected a mesh axis or a whole number, found \"2x\""},
    {MM(""), "fsdp=2", 1, {"*.w=0:2147483647,2147483647,2147483647,fsdp"}, NULL, "its numbers are too large"},
    {MM(""), "fsdp=2", 1, {"*.w=0:fsdp", "*.w=1:fsdp"}, NULL,
     "shard \"*.w=0:fsdp\": contradicts \"*.w=1:fsdp\", which holds for all that it matches, such as \"layer.w\" f32[6, 5]"},
    {MM(", %two: f32[2, 6] batch"), "dp=2", 1, {0}, NULL, "batch inputs %x f32[8, 6] and %two f32[2, 6] have different rows"},
    {"gpt2", "dp=2", 3, {0}, NULL, "takes the rows of %input_ids i64[8, 16] in iterations of different sizes"},
    {"llama3-8b", "tp=16", 1, {0}, NULL, "16 ranks share the heads of \"model.layers.0.self_attn.q_proj.weight\" f32[4096, 4096], but attention"},
    {"llama3-8b", "tp=16", 1, {0}, NULL, "has 8 key heads for 32 heads, and the heads of a key stay together: the largest tp up to 16 that works is 8"},
    {"llama3-8b", "tp=3", 2, {0}, NULL, "the largest tp up to 3 that works is 2"},
    {"gpt2", "tp=24", 1, {0}, NULL, "the largest tp up to 24 that works is 12"},
    {"gpt2", "tp=5", 1, {0}, NULL, "the largest tp up to 5 that works is 4"},
    {"gpt2", "tp=8", 1, {0}, NULL, "the largest tp up to 8 that works is 6"},
    {"gpt2", "x=7", 1, {"h.*.attn.c_proj.weight=0:x"}, NULL, "the largest x up to 7 that works is 6"},
    {"gpt2", "tp=2,x=4,y=1", 1, {"h.*.attn.c_proj.weight=0:tp,x,y"}, NULL, "the largest tp times x up to 8 that works is 6"},
};
/* clang-format on */

typedef struct Found {
    const Case *c;
    Graph *g;
    Mesh *m;
    Sharding *in, *out;
} Found;

static const ModelConfig *config_of(const char *name)
{
    ModelConfig *c = NEW(a, ModelConfig);
    if (config_preset(name))
        return config_preset(name);
    *c = config_read(a, name);
    return c;
}

static Graph *make(const Case *c, const PassOptions *o)
{
    if (!strncmp(c->model, "tenon", 5))
        return graph_parse(a, c->model, "test.tn");
    Graph *g = model_graph(a, config_of(c->model), 8, 16, NULL);
    PassOptions one = *o;
    one.mesh = NULL;
    passes_run(g, "default", &one, NULL, NULL);
    return g;
}

static void shard(void *arg)
{
    Found *f = arg;
    const Case *c = f->c;
    PassOptions o = pass_defaults();
    o.mesh = c->mesh;
    o.accumulate = c->accumulate;
    o.fuse = false;
    o.shardings.pattern = c->rule;
    while (o.shardings.count < MOST_RULES && c->rule[o.shardings.count])
        o.shardings.count++;
    f->g = make(c, &o);
    f->m = sharding_mesh(&ctx, a, &o);
    f->in = NEWN(a, Sharding, f->g->nin);
    f->out = NEWN(a, Sharding, f->g->nout);
    sharding_fill(f->g, a, &o, f->m, f->in, f->out);
}

/* That of a port named as cases name it. */
static const Sharding *find(const Found *f, const char *port)
{
    for (int k = 0; k < f->g->nin + f->g->nout; k++) {
        bool in = k < f->g->nin;
        const Port *p = in ? &f->g->in[k] : &f->g->out[k - f->g->nin];
        const char *name = p->role == ROLE_PARAM ? p->name
                           : p->name ? arena_printf(a, "%s %s", role_name(p->role), p->name)
                                     : role_name(p->role);
        if (!strcmp(port, name) || (*port == '%' && !strcmp(port + 1, p->v->name)))
            return in ? &f->in[k] : &f->out[k - f->g->nin];
    }
    return NULL;
}

static const char *text_of(const Mesh *m, const Sharding *s)
{
    Buf b = {.a = a};
    buf_add(&b, cuts_text(a, m, s->cut));
    for (int c = 0; c < m->naxes; c++)
        if (s->computed_sharded[c])
            buf_printf(&b, " computes by %s", m->name[c]);
    return b.text;
}

static void check_good(const Case *c)
{
    Found f = {.c = c};
    if (!EXPECT(!ctx_try(&ctx, shard, &f))) {
        printf("  %s: %s\n", c->port, ctx.message);
        return;
    }
    const Sharding *s = find(&f, c->port);
    const char *text = s ? text_of(f.m, s) : "no such port";
    if (!EXPECT(!strcmp(text, c->expect)))
        printf("  %s on %s: expected \"%s\", found \"%s\"\n", c->port, c->mesh, c->expect, text);
}

static void parse_rank(void *arg)
{
    PassOptions o = pass_defaults();
    o.mesh = "dp=2,tp=3";
    o.rank = *(const int64_t *)arg;
    Mesh *m = sharding_mesh(&ctx, a, &o);
    EXPECT(m->at[0] == 1 && m->at[1] == 2);
}

static void check_rank(void)
{
    int64_t last = 5, none = 6;
    PassOptions o = pass_defaults();
    EXPECT(!sharding_mesh(&ctx, a, &o));
    EXPECT(!ctx_try(&ctx, parse_rank, &last));
    EXPECT_FAIL(&ctx, parse_rank, &none, "rank 6: the mesh dp=2,tp=3 has ranks 0 to 5");
}

int main(void)
{
    a = arena_new(&ctx);
    for (int i = 0; i < LEN(good); i++, arena_reset(a))
        check_good(&good[i]);
    for (int i = 0; i < LEN(bad); i++, arena_reset(a)) {
        Found f = {.c = &bad[i]};
        EXPECT_FAIL(&ctx, shard, &f, bad[i].expect);
        EXPECT(ctx.code == TN_USAGE);
    }
    check_rank();
    arena_free(a);
    return test_report();
}
