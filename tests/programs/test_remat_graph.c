/* Recomputation in graphs: those that PyTorch traced (tests/fx), under random rules, keep every bit
 * of every output, in the memory that was planned, also where the result was compiled again;
 * presets under every policy. Having other passes run before, or reading the graph from its text,
 * gives the same text. TN_LONG: all of the graphs, each in f32 and bf16, more rules, and more
 * presets; else each third, in one of these. */
#include "../../include/tenon.h"
#include "../../src/io/io.h"
#include "../shared/test.h"

#include <dirent.h>
#include <string.h>

enum { MOST_OUT = 200, MOST_RULES = 3, RANDOM = 1, LONG = 5 }; /* rules of each graph */

static const char *const again = "canonicalize,cse,dce,remat,fuse";

/* ---- random rules ---- */

static uint32_t draw(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525U + 1013904223U;
    return (*state >> 16) % n;
}

static int draw_rules(uint32_t seed, tn_rule *rule)
{
    static const char *const policies[] = {"must_save", "prefer_recompute", "must_recompute"};
    static const char *const patterns[] = {"*::*",     "*::*mm",    "*::add", "*::mul",
                                           "*::view",  "*::*soft*", "*::sub", "*::[g-t]*",
                                           "*::*norm", "*::[a-f]*"};
    int n = 1 + (int)draw(&seed, MOST_RULES);
    for (int i = 0; i < n; i++)
        rule[i] =
            (tn_rule){policies[draw(&seed, LEN(policies))], patterns[draw(&seed, LEN(patterns))]};
    return n;
}

/* ---- texts ---- */

static bool ok(tn_context *ctx, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s\n", what, tn_error(ctx));
    return code == TN_CODE_OK;
}

/* The graph's text after the passes; NULL where a rule matches nothing. To be freed. */
static char *compiled(tn_context *ctx, const char *what, tn_graph *g, const char *passes,
                      const tn_options *o)
{
    const char *text;
    int code = tn_graph_passes(g, passes, o, NULL, NULL);
    if (code == TN_CODE_USAGE && strstr(tn_error(ctx), "matches nothing"))
        return NULL;
    char *copy =
        ok(ctx, what, code) && ok(ctx, what, tn_graph_print(g, &text)) ? strdup(text) : strdup("");
    CHECK(copy);
    return copy;
}

static void expect_same(const char *what, const tn_options *o, const char *how, const char *want,
                        const char *got)
{
    if (EXPECT(got && !strcmp(want, got)))
        return;
    printf("  %s: %s", what, o->recompute);
    for (int i = 0; i < o->nrules; i++)
        printf(" %s=%s", o->rules[i].policy, o->rules[i].pattern);
    printf(": %s gives another text\n", how);
}

/* ---- presets ---- */

static tn_graph *step_graph(tn_context *ctx, const char *name, const tn_options *o)
{
    tn_model *m;
    tn_graph *g = NULL;
    if (ok(ctx, name, tn_model_open(ctx, name, &m)))
        ok(ctx, name, tn_model_graph(m, 2, 64, o, &g));
    return g;
}

static void test_preset(const char *name, const char *policy, const char *dtype)
{
    static const char *const first = "grad,precision,accumulate,optimizer,",
                             *const more = "cse,dce,canonicalize,cse,canonicalize,dce,cse,dce";
    tn_context *ctx = tn_context_new();
    tn_options o = tn_options_default();
    CHECK(ctx);
    o.recompute = policy;
    o.dtype = dtype;
    char passes[200];
    tn_graph *g = step_graph(ctx, name, &o), *h = step_graph(ctx, name, &o), *k;
    if (g && h) {
        char *once = compiled(ctx, name, g, "default", &o);
        free(compiled(ctx, name, g, again, &o));
        snprintf(passes, sizeof passes, "%s%s", first, more);
        char *plain = compiled(ctx, name, h, passes, &o);
        char *late = compiled(ctx, name, h, "into,dce,remat,fuse", &o);
        expect_same(name, &o, "running other passes before", once, late);
        if (ok(ctx, name, tn_graph_parse(ctx, plain, name, &k))) {
            char *read = compiled(ctx, name, k, "into,dce,remat,fuse", &o);
            expect_same(name, &o, "reading the graph before", once, read);
            free(read);
        }
        EXPECT(!strcmp(policy, "none") || strcmp(plain, once) != 0);
        free(once), free(plain), free(late);
    }
    tn_context_free(ctx);
}

/* ---- graphs of PyTorch ---- */

typedef struct Run {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
} Run;

typedef struct Traced {
    tn_context *ctx;
    const char *name;
    char graph[220], inputs[240];
    int nout;
    char *out[MOST_OUT];
    int64_t nbytes[MOST_OUT];
    int copies; /* nodes more than without rules, in all its runs */
} Traced;

/* Keeps the outputs, or compares them with what was kept. */
static void look_at_outputs(Traced *t, const Run *u, const tn_options *o)
{
    bool keeps = !t->nout;
    void *data;
    int64_t nbytes;
    for (int n = 0; n < MOST_OUT; n++) {
        char name[20];
        snprintf(name, sizeof name, "out%d", n);
        if (tn_program_data(u->x, name, &data, &nbytes))
            break;
        if (keeps) {
            t->out[n] = malloc((size_t)nbytes + 1);
            CHECK(t->out[n]);
            memcpy(t->out[n], data, (size_t)nbytes);
            t->nbytes[n] = nbytes;
            t->nout++;
        } else if (!EXPECT(n < t->nout && nbytes == t->nbytes[n] &&
                           !memcmp(data, t->out[n], (size_t)nbytes))) {
            expect_same(t->name, o, name, "", NULL);
        }
    }
}

static void run_measured(Traced *t, Run *u, const tn_options *o)
{
    int64_t high = 0, peak, persistent, reserve;
    for (int i = 0; i < 2; i++) {
        int pattern = i ? 0x5a : 0xa5;
        tn_program_fill(u->x, pattern);
        if (!ok(t->ctx, t->name, tn_program_read_file(u->x, t->inputs)) ||
            !ok(t->ctx, t->name, tn_program_run(u->x)))
            return;
        int64_t end = tn_program_high(u->x, pattern);
        high = MAX(high, end);
    }
    tn_plan_bytes(u->p, &peak, &persistent, &reserve);
    if (!EXPECT(high == peak))
        printf("  %s: planned %lld, measured %lld\n", t->name, (long long)peak, (long long)high);
    look_at_outputs(t, u, o);
}

static int count_origins(const char *text)
{
    int count = 0;
    for (const char *s = text; (s = strstr(s, " origin=%")); s++)
        count++;
    return count;
}

/* Whether the rules match something. */
static bool test_rules(Traced *t, const tn_options *o)
{
    tn_fx_options fx = {.inputs = t->inputs};
    const char *summary;
    Run u = {0};
    char *once = NULL;
    if (ok(t->ctx, t->name, tn_graph_import_fx(t->ctx, t->graph, &fx, &u.g, &summary)) &&
        ok(t->ctx, t->name, tn_graph_passes(u.g, "precision", o, NULL, NULL)) &&
        (once = compiled(t->ctx, t->name, u.g, again, o))) {
        free(compiled(t->ctx, t->name, u.g, again, o));
        t->copies += count_origins(once);
        if (ok(t->ctx, t->name, tn_plan_new(u.g, o, 1, &u.p)) &&
            ok(t->ctx, t->name, tn_program_new(u.p, o, &u.x)))
            run_measured(t, &u, o);
    }
    bool matched = once;
    free(once);
    tn_program_free(u.x);
    tn_plan_free(u.p);
    tn_graph_free(u.g);
    return matched;
}

/* Returns how many nodes were computed again. */
static int test_traced(tn_context *ctx, const char *name, const char *dtype)
{
    Traced t = {.ctx = ctx, .name = name};
    tn_options o = tn_options_default();
    o.dtype = dtype;
    tn_rule rule[MOST_RULES];
    snprintf(t.graph, sizeof t.graph, "tests/fx/%s/graph.txt", name);
    snprintf(t.inputs, sizeof t.inputs, "tests/fx/%s/inputs.safetensors", name);
    o.recompute = "none";
    o.rules = rule;
    EXPECT(test_rules(&t, &o));
    int kept = t.copies, runs = 0, most = getenv("TN_LONG") ? LONG : RANDOM;
    EXPECT(t.nout > 0);
    for (uint32_t seed = 1; runs < most && seed < 60; seed++) {
        o.nrules = draw_rules(seed, rule);
        runs += test_rules(&t, &o);
    }
    for (int i = 0; i < t.nout; i++)
        free(t.out[i]);
    return t.copies - kept * (runs + 1);
}

static int test_folder(tn_context *ctx, bool all)
{
    DIR *dir = opendir("tests/fx");
    int copies = 0;
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char graph[300];
        snprintf(graph, sizeof graph, "tests/fx/%s/graph.txt", e->d_name);
        FILE *f = fopen(graph, "r");
        if (!f)
            continue;
        fclose(f);
        /* by its name: folders are read in any order */
        const uint32_t number = (uint32_t)hash_bytes(e->d_name, strlen(e->d_name), 0);
        bool narrow = number / 3 % 2;
        if (!all && number % 3)
            continue;
        if (all || !narrow)
            copies += test_traced(ctx, e->d_name, "f32");
        if (all || narrow)
            copies += test_traced(ctx, e->d_name, "bf16");
    }
    closedir(dir);
    return copies;
}

int main(void)
{
    static const char *const policies[] = {"none", "full", "every=2", "every=3", "selective"},
                             *const presets[] = {"demo", "gpt2", "llama3-1b"};
    tn_context *ctx = tn_context_new();
    CHECK(ctx);
    tn_threads(1); /* all is small */
    bool all = getenv("TN_LONG");
    for (int i = 0; i < LEN(presets); i++) /* one of them under all */
        for (int k = 0; k < LEN(policies); k++)
            if (all || !i || k == i)
                test_preset(presets[i], policies[k], k % 2 ? "bf16" : "f32");
    if (all) {
        test_preset("gpt2-medium", "full", "f32");
        test_preset("llama3-8b", "selective", "bf16");
    }
    int copies = test_folder(ctx, all);
    printf("note: %d nodes of traced graphs computed again\n", copies);
    EXPECT(copies > (all ? 400 : 100));
    tn_context_free(ctx);
    return test_report();
}
