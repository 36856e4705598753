/* Adapters by the API, short enough for sanitizers: three steps of a small model in each form,
 * saved, read again, merged: losses go down, and are those of a run that goes on. And names of
 * rank_pattern: those that Python's re and PCRE2 read alike mean what PEFT says, others are
 * refused. tests/scripts/lora.sh has a user's run, tests/python/test_lora.py the numbers of PEFT.
 */
#include "../../include/tenon.h"
#include "../../src/model/model.h"
#include "../shared/folder.h"

#include <math.h>

/* ---- patterns ---- */

static const char q0[] = "model.layers.0.self_attn.q_proj";
static const char up11[] = "model.layers.11.mlp.up_proj";

/* re.match(rf"(.*\.)?({pattern})$", module), by Python 3.11. */
static const struct {
    const char *pattern, *module;
    bool means;
} meant[] = {
    {"q_proj", q0, true},
    {"_proj", q0, false},
    {"proj", q0, false},
    {".*proj", q0, true},
    {"self_attn.q_proj", q0, true},
    {"self.attn.q.proj", q0, true},
    {"attn\\.q_proj", q0, false},
    {"layers\\.0\\..*", q0, true},
    {"layers\\.0", q0, false},
    {"^q_proj", q0, false},
    {"^model.*", q0, true},
    {"(q|k)_proj", q0, true},
    {"q|k_proj", q0, false},
    {"k_proj|q_proj", q0, true},
    {"[qkv]_proj", q0, true},
    {"[^q]_proj", q0, false},
    {"[]q]_proj", q0, true},
    {"layers\\.\\d\\.mlp\\.(?:up|down)_proj", up11, false},
    {"layers\\.\\d+\\.mlp\\.(?:up|down)_proj", up11, true},
    {"layers\\.\\d{1,2}\\.mlp\\.up_proj$", up11, true},
    {"layers\\.1{2}\\.mlp\\.\\w++", up11, true},
    {"(?!up)\\w+_proj", up11, false},
    {"(?=up)\\w+?", up11, true},
    {"\\bup_proj\\b", up11, true},
    {"\\S*\\.mlp[.]up_proj", up11, true},
    {"UP_PROJ", up11, false},
    {"", up11, false},
};

/* One of the libraries reads these otherwise, or does not read them. */
static const char *const refused[] = {
    "\\Qq_proj\\E", "\\p{L}_proj",  "(q)_\\2",   "(?i)q_proj", "(?<=q)_proj",
    "(?P<a>q)",     "[[:alpha:]]+", "q{,2}",     "q{1}{2}",    "q**",
    "(*ACCEPT)q",   "(?#remark)q",  "\\x71",     "(?>q)",      "[q",
    "q{a}",         "\\",           "(?(1)q|k)", "(q",
};

typedef struct Ask {
    const char *pattern;
    const char *module;
    bool means;
} Ask;

static void ask(void *arg)
{
    Ask *x = arg;
    const LoraPattern p = {x->pattern, lora_pattern(a, "file", x->pattern), 1};
    x->means = lora_pattern_means(&p, x->module);
}

static void check_patterns(void)
{
    for (int i = 0; i < LEN(meant); i++) {
        Ask x = {meant[i].pattern, meant[i].module, false};
        if (!EXPECT(!ctx_try(&ctx, ask, &x) && x.means == meant[i].means))
            printf("  %s, %s: %s\n", x.pattern, x.module, ctx.message);
    }
    for (int i = 0; i < LEN(refused); i++) {
        Ask x = {refused[i], q0, false};
        EXPECT_FAIL(&ctx, ask, &x, "file: pattern \"");
    }
    Ask slow = {"(.|..)*\\d", q0, false}; /* backtracks for ever */
    EXPECT_FAIL(&ctx, ask, &slow, "too many steps");
}

/* ---- runs ---- */

enum { STEPS = 3 };

static const char base[] = "tests/ref/llama-tiny";

/* Runs steps of a model on its batch; saves it where a folder is given. Returns the last loss. */
static float run(tn_context *c, tn_model *m, const char *passes, int steps, const char *save)
{
    tn_options o = tn_options_default();
    tn_graph *g;
    tn_plan *plan;
    tn_program *x;
    int64_t B, T;
    float loss = NAN, lr = 1e-2f;
    const char *batch = arena_printf(a, "%s/batch.safetensors", base);
    CHECK(!tn_batch_shape(c, batch, &B, &T));
    int64_t *ids = NEWN(a, int64_t, B * T), *labels = NEWN(a, int64_t, B * T);
    CHECK(!tn_batch_read(c, batch, B, T, ids, labels));
    if (tn_model_graph(m, B, T, &o, &g) || tn_graph_passes(g, passes, &o, NULL, NULL) ||
        tn_plan_new(g, &o, 1, &plan) || tn_program_new(plan, &o, &x) || tn_program_load(x, m, &o))
        return NAN;
    for (int64_t step = 1; step <= steps; step++) {
        CHECK(!tn_program_write(x, "input_ids", ids, B * T * 8) &&
              !tn_program_write(x, "labels", labels, B * T * 8));
        if (!strcmp(passes, "default"))
            CHECK(!tn_program_write(x, "lr", &lr, sizeof lr) &&
                  !tn_program_write(x, "step", &step, sizeof step));
        if (tn_program_run(x) || tn_program_read(x, "loss", &loss, sizeof loss))
            return NAN;
    }
    if (save && tn_program_save(x, m, save, "{}"))
        loss = NAN;
    tn_program_free(x);
    return loss;
}

static tn_model *opened(tn_context *c, const char *path)
{
    tn_model *m;
    return tn_model_open(c, path, &m) ? NULL : m;
}

static void check_form(const char *text)
{
    tn_context *c = tn_context_new();
    const char *adapters = in_dir(text), *merged = arena_printf(a, "%s-merged", adapters);
    tn_merged figures;
    CHECK(c);
    float plain = run(c, opened(c, base), "forward", 1, NULL);
    tn_model *m = opened(c, base), *again = opened(c, base);
    bool made = EXPECT(!tn_model_lora(m, text));
    made = made && EXPECT(tn_model_trained(m) * 2 < tn_model_count(m));
    float last = run(c, m, "default", STEPS, adapters);
    made = made && EXPECT(last < plain) && EXPECT(!tn_model_adapter(again, adapters));
    float read = run(c, again, "forward", 1, NULL);
    EXPECT(read < last); /* after one more update */
    tn_model *on = opened(c, base);
    EXPECT(!tn_model_lora(on, text) &&
           fabsf(run(c, on, "default", STEPS + 1, NULL) - read) < 1e-5F);
    EXPECT(made && !tn_model_merge(again, merged, NULL, 0, &figures) && figures.added > 0);
    EXPECT(fabsf(run(c, opened(c, merged), "forward", 1, NULL) - read) < 1e-5F);
    if (!made)
        printf("  %s: %s\n", text, tn_error(c));
    tn_context_free(c);
}

static void check_forms(void)
{
    check_form("r=3,alpha=5,targets=q_proj|down_proj");
    check_form("r=2,dora,rslora");
}

int main(void)
{
    static void (*const tests[])(void) = {check_patterns, check_forms};
    return test_in_folder(tests, LEN(tests));
}
