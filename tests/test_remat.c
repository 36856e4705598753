/* Recomputation in whole training steps (tests/ref): whatever is computed again, with dropout or
 * without, in one microbatch or two, in f32 or bf16, the loss, every gradient and what three AdamW
 * steps make of parameters and state have the bits that they have with all saved; the planned peak
 * is the highest byte written, and lower than with all saved. */
#include "../include/tenon.h"
#include "../src/io/io.h"
#include "test.h"

#include <string.h>

enum { STEPS = 3, MOST_BYTES = 1 << 22 };

typedef struct Case {
    const char *policy;
    tn_rule rule[3];
    int nrule;
    bool least; /* need not lower the peak of so small a step; with an optimizer none need */
} Case;

static const Case cases[] = {
    {.policy = "full"},
    {.policy = "every=2"},
    {.policy = "every=3"},
    {.policy = "selective"},
    {.policy = "none", .rule = {{"must_recompute", "*::*"}}, .nrule = 1, .least = true},
    {.policy = "none",
     .rule = {{"must_recompute", "layers.*::*"}, {"must_save", "layers.?::*"}},
     .nrule = 2},
    {.policy = "full",
     .rule = {{"must_save", "*::*mm"}, {"must_recompute", "*mlp*::*mm"}},
     .nrule = 2},
    {.policy = "none",
     .rule = {{"prefer_recompute", "*::*"}, {"must_save", "layers.1*::*"}},
     .nrule = 2,
     .least = true},
    {.policy = "selective",
     .rule = {{"must_recompute", "*::flash_attention"}, {"prefer_save", "*::*norm"}},
     .nrule = 2},
};

static const struct {
    const char *dtype, *optimizer;
    double dropout;
    int64_t accumulate;
} steps[] = {{"f32", "none", 0, 1}, {"f32", "adamw", 0.1, 2}, {"bf16", "adamw", 0.1, 1}};

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
} Result;

static bool ok(const Ref *r, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", r->name, what, tn_error(r->ctx));
    return code == TN_CODE_OK;
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
    Result s = {calloc(1, MOST_BYTES), 0, 0};
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    bool updates = strcmp(o->optimizer, "none") != 0;
    CHECK(s.bytes);
    if (ok(r, "graph", tn_model_graph(r->model, r->B, r->T, o, &g)) &&
        ok(r, "passes", tn_graph_passes(g, "default", o, NULL, NULL)) &&
        ok(r, "plan", tn_plan_new(g, o, 1, &p)) && ok(r, "program", tn_program_new(p, o, &x)) &&
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

static void test_options(const Ref *r, tn_options o)
{
    o.recompute = "none";
    Result saved = run(r, &o);
    EXPECT(saved.nbytes > 0);
    for (int i = 0; i < LEN(cases); i++) {
        const Case *c = &cases[i];
        o.recompute = c->policy;
        o.rules = c->rule;
        o.nrules = c->nrule;
        Result again = run(r, &o);
        if (!EXPECT(again.nbytes == saved.nbytes &&
                    !memcmp(again.bytes, saved.bytes, saved.nbytes)))
            printf("  %s: case %d: other bits than with all saved\n", r->name, i);
        bool small = c->least || (again.peak == saved.peak && strcmp(o.optimizer, "none") != 0);
        if (!EXPECT(small || again.peak < saved.peak))
            printf("  %s: case %d: peak %lld, with all saved %lld\n", r->name, i,
                   (long long)again.peak, (long long)saved.peak);
        free(again.bytes);
    }
    free(saved.bytes);
}

static void test_folder(const char *name)
{
    Ref r = {.ctx = tn_context_new(), .name = name};
    CHECK(r.ctx);
    snprintf(r.folder, sizeof r.folder, "tests/ref/%s", name);
    snprintf(r.batch, sizeof r.batch, "%s/batch.safetensors", r.folder);
    snprintf(r.grads, sizeof r.grads, "%s/grads.safetensors", r.folder);
    if (ok(&r, "model", tn_model_open(r.ctx, r.folder, &r.model)) &&
        ok(&r, "batch", tn_batch_shape(r.ctx, r.batch, &r.B, &r.T)))
        for (int k = 0; k < LEN(steps); k++) {
            tn_options o = tn_options_default();
            o.optimizer = steps[k].optimizer;
            o.dropout = steps[k].dropout;
            o.dtype = steps[k].dtype;
            o.accumulate = steps[k].accumulate;
            test_options(&r, o);
        }
    tn_context_free(r.ctx);
}

int main(void)
{
    test_folder("gpt2-tiny");
    test_folder("llama-tiny");
    return test_report();
}
