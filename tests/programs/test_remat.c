/* Recomputation in whole training steps (tests/ref) and in graphs of PyTorch (tests/fx): whatever
 * is computed again by named policies and by random rules, with dropout or without, in one
 * microbatch or two, in f32 or bf16, the loss, every gradient and what AdamW steps make of
 * parameters and state have the bits that they have with all saved; the planned peak is the highest
 * byte written; so it is where the result was compiled again. Each named policy lowers the peak
 * where activations are what fills it: at small shapes an AdamW step is fullest at its end, where
 * clipping has all gradients in memory, which no recomputation changes. TN_LONG=1: every case of
 * every step, else each case of one. */
#include "../../include/tenon.h"
#include "../../src/io/io.h"
#include "../shared/test.h"

#include <dirent.h>
#include <jansson.h>
#include <string.h>

enum { STEPS = 2, MOST_BYTES = 1 << 22, RANDOM = 10, NAMED = 4, MOST_RULES = 4, MOST_NAME = 300 };

typedef struct Case {
    char policy[12];
    tn_rule rule[MOST_RULES];
    int nrule;
} Case;

static const Case cases[] = {
    {.policy = "full"},
    {.policy = "every=2"},
    {.policy = "every=3"},
    {.policy = "selective"},
    {.policy = "none", .rule = {{"must_recompute", "*::*"}}, .nrule = 1},
    {.policy = "none",
     .rule = {{"must_recompute", "layers.*::*"}, {"must_save", "layers.?::*"}},
     .nrule = 2},
    {.policy = "full",
     .rule = {{"must_save", "*::*mm"}, {"must_recompute", "*mlp*::*mm"}},
     .nrule = 2},
    {.policy = "none",
     .rule = {{"prefer_recompute", "*::*"}, {"must_save", "layers.1*::*"}},
     .nrule = 2},
    {.policy = "selective",
     .rule = {{"must_recompute", "*::flash_attention"}, {"prefer_save", "*::*norm"}},
     .nrule = 2},
};

/* ---- random rules ---- */

static uint32_t draw(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525U + 1013904223U;
    return (*state >> 16) % n;
}

/* What only some graphs have is refused where it matches nothing. */
static Case random_case(uint32_t seed)
{
    static const char *const policies[] = {"must_save", "prefer_save", "prefer_recompute",
                                           "must_recompute", "must_recompute"};
    static const char *const named[] = {"none", "none", "full", "every=2", "selective"};
    static const char *const patterns[] = {
        "*::*",           "layers.*::*", "layers.1*::*", "*::*mm",     "*::add",
        "layers.0*::*mm", "*::*norm",    "*mlp*::*",     "*attn*::*",  "*::view",
        "*::mul",         "*::[g-s]*u",  "*::flash_*n",  "*::dropout", "*::[a-f]*"};
    Case c = {.nrule = 1 + (int)draw(&seed, MOST_RULES)};
    snprintf(c.policy, sizeof c.policy, "%s", named[draw(&seed, LEN(named))]);
    for (int i = 0; i < c.nrule; i++)
        c.rule[i] =
            (tn_rule){policies[draw(&seed, LEN(policies))], patterns[draw(&seed, LEN(patterns))]};
    return c;
}

static void set_case(tn_options *o, const Case *c)
{
    o->recompute = c->policy;
    o->rules = c->rule;
    o->nrules = c->nrule;
}

/* ---- models ---- */

static const struct {
    const char *dtype, *optimizer;
    double dropout;
    int64_t accumulate;
} steps[] = {{"f32", "none", 0.1, 1},
             {"f32", "adamw", 0, 2},
             {"bf16", "adamw", 0.1, 1},
             {"bf16", "none", 0, 1}};

typedef struct Ref {
    tn_context *ctx;
    const char *name;
    char folder[60], batch[100], grads[100];
    tn_model *model;
    int64_t B, T;
} Ref;

/* What a run gave, and what it was planned to need. */
typedef struct Result {
    char *bytes;
    size_t nbytes;
    int64_t peak;
    bool refused;
} Result;

static bool ok(const Ref *r, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", r->name, what, tn_error(r->ctx));
    return code == TN_CODE_OK;
}

/* Whether no rule of a random case matches nothing. */
static bool applies(const Ref *r, int code)
{
    return code != TN_CODE_USAGE || !strstr(tn_error(r->ctx), "matches nothing");
}

static void show(const Ref *r, const tn_options *o, const char *what)
{
    printf("  %s: %s", r->name, o->recompute);
    for (int i = 0; i < o->nrules; i++)
        printf(" %s=%s", o->rules[i].policy, o->rules[i].pattern);
    printf(": %s\n", what);
}

static void keep(const Ref *r, tn_program *x, const char *name, Result *s)
{
    void *p = NULL;
    int64_t nbytes = 0;
    if (!ok(r, name, tn_program_data(x, name, &p, &nbytes)))
        return;
    CHECK(s->nbytes + (size_t)nbytes <= MOST_BYTES);
    memcpy(s->bytes + s->nbytes, p, (size_t)nbytes);
    s->nbytes += (size_t)nbytes;
}

/* Gradients, or with an optimizer parameters and state. */
static void keep_all(const Ref *r, tn_program *x, bool updates, Result *s)
{
    static const char *const suffix[] = {"", ".m", ".v"};
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    const TensorFile *f = tensors_open(a, r->grads); /* its names are the parameters' */
    keep(r, x, "loss", s);
    for (int i = 0; i < f->count; i++)
        for (int k = 0; k < (updates ? 3 : 1); k++)
            keep(r, x,
                 arena_printf(a, "%s.%s%s", updates ? "new" : "grad", f->entry[i].name, suffix[k]),
                 s);
    arena_free(a);
}

static int64_t run_step(const Ref *r, tn_program *x, int step, int pattern)
{
    void *at, *ids, *labels;
    tn_program_fill(x, pattern);
    if (!tn_program_data(x, "lr", &at, NULL))
        *(float *)at = 1e-3F;
    if (!tn_program_data(x, "step", &at, NULL))
        *(int64_t *)at = step;
    if (!tn_program_data(x, "seed", &at, NULL))
        *(int64_t *)at = 7;
    if (ok(r, "ids", tn_program_data(x, "input_ids", &ids, NULL)) &&
        ok(r, "labels", tn_program_data(x, "labels", &labels, NULL)) &&
        ok(r, "batch", tn_batch_read(r->ctx, r->batch, r->B, r->T, ids, labels)))
        ok(r, "step", tn_program_run(x));
    return tn_program_high(x, pattern);
}

static Result run(const Ref *r, const tn_options *o)
{
    Result s = {calloc(1, MOST_BYTES), 0, 0, false};
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    bool updates = strcmp(o->optimizer, "none") != 0;
    int code = tn_model_graph(r->model, r->B, r->T, o, &g);
    CHECK(s.bytes);
    if (!code)
        code = tn_graph_passes(g, "default", o, NULL, NULL);
    s.refused = !applies(r, code);
    if (!code)
        ok(r, "again", tn_graph_passes(g, "canonicalize,cse,dce,remat,fuse", o, NULL, NULL));
    if (!s.refused && ok(r, "passes", code) && ok(r, "plan", tn_plan_new(g, o, 1, &p)) &&
        ok(r, "program", tn_program_new(p, o, &x)) &&
        ok(r, "load", tn_program_load(x, r->model, o))) {
        int64_t persistent, reserve, high = 0;
        for (int i = 0; i < STEPS; i++) {
            int64_t end = run_step(r, x, i + 1, i % 2 ? 0x5a : 0xa5);
            high = MAX(high, end);
        }
        keep_all(r, x, updates, &s);
        tn_plan_bytes(p, &s.peak, &persistent, &reserve);
        if (!EXPECT(high == s.peak))
            printf("  %s: %s: planned %lld bytes, highest written %lld\n", r->name, o->recompute,
                   (long long)s.peak, (long long)high);
    }
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
    return s;
}

static void compare(const Ref *r, const tn_options *o, const Result *got, const Result *want)
{
    if (!EXPECT(got->nbytes == want->nbytes && !memcmp(got->bytes, want->bytes, want->nbytes)))
        show(r, o, "other bits than with all saved");
}

/* Returns how many random cases could be run. */
static int test_random(const Ref *r, tn_options o, const Result *saved, int most)
{
    int count = 0;
    for (uint32_t seed = 1; count < most && seed < 100; seed++) {
        Case c = random_case(seed);
        set_case(&o, &c);
        Result again = run(r, &o);
        if (!again.refused) {
            compare(r, &o, &again, saved);
            count++;
        }
        free(again.bytes);
    }
    return count;
}

/* all: all cases, without TN_LONG each by one kind of steps; else those that are named. */
static void test_options(const Ref *r, tn_options o, bool all, int kind)
{
    const bool more = getenv("TN_LONG");
    o.recompute = "none";
    Result saved = run(r, &o);
    EXPECT(saved.nbytes > 0);
    for (int i = 0; i < (all ? LEN(cases) : NAMED); i++) {
        const Case *c = &cases[i];
        if (all && !more && i % LEN(steps) != kind)
            continue;
        set_case(&o, c);
        Result again = run(r, &o);
        compare(r, &o, &again, &saved);
        if (i < NAMED && !EXPECT(again.peak <= saved.peak))
            printf("  %s: %s: peak %lld, with all saved %lld\n", r->name, c->policy,
                   (long long)again.peak, (long long)saved.peak);
        free(again.bytes);
    }
    int most = all && more ? RANDOM : 2;
    EXPECT(test_random(r, o, &saved, most) == most);
    free(saved.bytes);
}

static void test_folder(const char *name, bool all)
{
    Ref r = {.ctx = tn_context_new(), .name = name};
    CHECK(r.ctx);
    snprintf(r.folder, sizeof r.folder, "tests/ref/%s", name);
    snprintf(r.batch, sizeof r.batch, "%s/batch.safetensors", r.folder);
    snprintf(r.grads, sizeof r.grads, "%s/grads.safetensors", r.folder);
    if (ok(&r, "model", tn_model_open(r.ctx, r.folder, &r.model)) &&
        ok(&r, "batch", tn_batch_shape(r.ctx, r.batch, &r.B, &r.T)))
        for (int k = 0; k < (all && !getenv("TN_QUICK") ? LEN(steps) : 1); k++) {
            tn_options o = tn_options_default();
            o.optimizer = steps[k].optimizer;
            o.dropout = steps[k].dropout;
            o.dtype = steps[k].dtype;
            o.accumulate = steps[k].accumulate;
            test_options(&r, o, all, k);
        }
    tn_context_free(r.ctx);
}

/* ---- the peak ---- */

static int64_t peak_of(tn_context *ctx, const char *name, int64_t B, int64_t T, const tn_options *o)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    int64_t peak = 0, persistent, reserve;
    Ref r = {.ctx = ctx, .name = name};
    if (ok(&r, "model", tn_model_open(ctx, name, &m)) &&
        ok(&r, "graph", tn_model_graph(m, B, T, o, &g)) &&
        ok(&r, "passes", tn_graph_passes(g, "default", o, NULL, NULL)) &&
        ok(&r, "plan", tn_plan_new(g, o, 1, &p)))
        tn_plan_bytes(p, &peak, &persistent, &reserve);
    return peak;
}

/* A policy that recomputes more needs less, where tokens outweigh parameters. */
static void test_peaks(const char *name, int64_t B, int64_t T, int first)
{
    const int by = getenv("TN_LONG") ? 1 : 2; /* kinds of steps, of which two models have all */
    static const char *const policies[] = {"full", "every=2", "every=3", "none"};
    for (int k = by == 1 ? 0 : first; k < LEN(steps); k += by) {
        tn_context *ctx = tn_context_new();
        tn_options o = tn_options_default();
        CHECK(ctx);
        o.optimizer = steps[k].optimizer;
        o.dtype = steps[k].dtype;
        o.accumulate = steps[k].accumulate;
        int64_t peak[LEN(policies)];
        for (int i = 0; i < LEN(policies); i++) {
            o.recompute = policies[i];
            peak[i] = peak_of(ctx, name, B, T, &o);
            if (!EXPECT(!i || peak[i - 1] < peak[i]))
                printf("  %s, step %d: %s needs %lld bytes, %s %lld\n", name, k, policies[i - 1],
                       (long long)peak[i - 1], policies[i], (long long)peak[i]);
        }
        o.recompute = "selective";
        EXPECT(peak_of(ctx, name, B, T, &o) < peak[LEN(policies) - 1]);
        tn_context_free(ctx);
    }
}

int main(void)
{
    tn_threads(1); /* all is small */
    static const char *const others[] = {"llama-tied", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"};
    test_folder("gpt2-tiny", true);
    test_folder("llama-tiny", true);
    for (int i = 0; i < LEN(others); i++)
        test_folder(others[i], false);
    test_peaks("demo", 8, 512, 1);
    test_peaks("gpt2", 4, 1024, 0);
    return test_report();
}
