/* The C API without running anything: contexts and messages, tables, graphs that are parsed and
 * built, passes, models, data, and objects freed in every legal order. test_api_run.c has plans and
 * programs. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <unistd.h>

static tn_context *ctx;
static char folder[] = "/tmp/tenon_api_XXXXXX";

#define OK(call)                           EXPECT_CODE((call), TN_CODE_OK, "", #call)
#define FAILS(call, want, part)            EXPECT_CODE((call), (want), (part), #call)
#define EXPECT_CODE(got, want, part, what) expect_code((got), (want), (part), what, __LINE__)

static bool expect_code(int got, int want, const char *part, const char *what, int line)
{
    bool right = got == want && (!want || strstr(tn_error(ctx), part));
    if (!test_note(right, __FILE__, line, what))
        printf("  expected code %d, \"%s\"; found %d, \"%s\"\n", want, part, got, tn_error(ctx));
    return right;
}

/* ---- contexts, messages, help ---- */

/* TN_ISA is read at load; a wrong one, or one that came too late, is an error of each call. */
static void test_isa(void)
{
    const char *before = getenv("TN_ISA"), *text;
    char *old = before ? strdup(before) : NULL;
    setenv("TN_ISA", "avx3", 1);
    FAILS(tn_passes(ctx, &text), TN_CODE_USAGE, "TN_ISA: expected base, avx2");
    tn_context *other = tn_context_new();
    EXPECT(other && strstr(tn_error(other), "found \"avx3\""));
    tn_context_free(other);
    if (!strstr(tn_version(), "isa base")) {
        setenv("TN_ISA", "base", 1);
        FAILS(tn_passes(ctx, &text), TN_CODE_USAGE, "TN_ISA=base: was set after the library");
    }
    unsetenv("TN_ISA");
    if (old)
        setenv("TN_ISA", old, 1);
    free(old);
    OK(tn_passes(ctx, &text));
}

static void test_context(void)
{
    EXPECT(!strcmp(tn_error(ctx), ""));
    EXPECT(tn_context_fail(ctx, TN_CODE_FIT, "%d of %s", 3, "them") == TN_CODE_FIT);
    EXPECT(!strcmp(tn_error(ctx), "3 of them"));
    EXPECT(tn_context_fail(ctx, TN_CODE_FAIL, "again: %s", tn_error(ctx)) == TN_CODE_FAIL);
    EXPECT(!strcmp(tn_error(ctx), "again: 3 of them")); /* the arguments may be the old message */
    tn_context *other = tn_context_new();
    EXPECT(other && !strcmp(tn_error(other), ""));
    tn_context_free(other);
    test_isa();
    tn_context_free(NULL);
    tn_graph_free(NULL);
    tn_model_free(NULL);
    tn_data_free(NULL);
    tn_plan_free(NULL);
    tn_program_free(NULL);
}

static void test_help(void)
{
    static const char *const words[] = {"plan", "train", "run"};
    static const struct {
        const char *word, *candidate;
        int is_near; /* one edit for each four letters, or the beginning of one of its parts */
    } near[] = {{"memroy", "memory", 1},
                {"sede", "seed", 1},
                {"batchsize", "batch-size", 1},
                {"dem", "demo", 1},
                {"accum", "accumulate", 1},
                {"decay", "no-decay", 1},
                {"coffee", "compare", 0},
                {"foo", "show", 0},
                {"out", "dropout", 0},
                {"x", "y", 0},
                {"bias", "b", 0},
                {"opts", "tests", 0},
                {"", "a", 0},
                {"html", "help", 0}};
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"0", 0},
                 {"12", 12},
                 {"0.5", -1},
                 {"12.5B", -1},
                 {"1.5kB", 1500},
                 {"3GiB", 3LL << 30},
                 {"1.5 MB", 1500000},
                 {"2kB", 2000},
                 {"1KiB", 1024},
                 {"7B", 7},
                 {"-1", -1},
                 {"", -1},
                 {"GiB", -1},
                 {"1 GiBs", -1},
                 {"nan", -1},
                 {"1e30", -1},
                 {"0x10", 16},
                 {"1 ", 1}};
    for (int i = 0; i < LEN(sizes); i++)
        if (!EXPECT(tn_bytes(sizes[i].text) == sizes[i].bytes))
            printf("  \"%s\": %lld\n", sizes[i].text, (long long)tn_bytes(sizes[i].text));
    EXPECT(tn_nearest("trian", words, 3) == words[1]);
    EXPECT(!tn_nearest("something else", words, 3));
    for (int i = 0; i < LEN(near); i++) {
        const char *found = tn_nearest(near[i].word, &near[i].candidate, 1);
        if (!EXPECT(!found == !near[i].is_near))
            printf("  \"%s\" and \"%s\"\n", near[i].word, near[i].candidate);
    }
    EXPECT(!strncmp(tn_version(), "tenon ", 6));
    EXPECT(!strncmp(tn_version() + 6, tn_version_number(), strlen(tn_version_number())));
    EXPECT(strstr(tn_version(), "\nonednn ") && strstr(tn_version(), "\njansson "));
    EXPECT(tn_rss_peak() > 1 << 20);
    tn_threads(0);
    EXPECT(tn_backend_is_gpu("cuda") && !tn_backend_is_gpu("cpu") &&
           !tn_backend_is_gpu("emulated"));
    EXPECT(!tn_backend_is_gpu(NULL) && !tn_backend_is_gpu("cudaa"));
    EXPECT(tn_threads_used() >= 1);
    tn_threads(3);
    EXPECT(tn_threads_used() == 3);
    tn_threads(0);
    tn_options o = tn_options_default();
    EXPECT(o.accumulate == 1 && !strcmp(o.optimizer, "adamw") && o.beta1 == 0.9 &&
           o.beta2 == 0.95 && o.eps == 1e-8 && o.weight_decay == 0.1 && o.clip == 1 &&
           o.dropout == 0 && !o.memory && !o.check && !o.warn);
}

static void test_tables(void)
{
    const char *text = NULL;
    OK(tn_ops(ctx, NULL, NULL, &text));
    EXPECT(strstr(text, "\nflash_attention "));
    OK(tn_ops(ctx, "adamw", NULL, &text));
    EXPECT(strstr(text, "weight_decay"));
    OK(tn_ops(ctx, "mm", "factors", &text));
    FAILS(tn_ops(ctx, "flash_atention", NULL, &text), TN_CODE_USAGE, "\"flash_attention\"");
    FAILS(tn_ops(ctx, "mm", "kernel", &text), TN_CODE_USAGE,
          "expected infer, diff, cost or factors");
    OK(tn_passes(ctx, &text));
    EXPECT(strstr(text, "grad") && strstr(text, "accumulate") && strstr(text, "cse"));
    EXPECT(tn_passes_have("default", "optimizer") && tn_passes_have("dce,default", "remat"));
    EXPECT(tn_passes_have("grad,dce", "grad") && !tn_passes_have("grad,default", "optimizer"));
    EXPECT(!tn_passes_have("gradients", "optimizer") && tn_passes_have("cse,remat", "policies"));
    EXPECT(!tn_passes_have("forward", "remat") && !tn_passes_have("cse,dce_", "dce"));
    EXPECT(!tn_passes_have("dce", "remat") && !tn_passes_have("saved", "remat"));
    EXPECT(tn_passes_have("saved", "saved") && !tn_passes_have("cse_", "cse_"));
    EXPECT(!tn_passes_have("", "dce") && !tn_passes_have("dce", "") && !tn_passes_have(",", ""));
}

/* ---- text ---- */

static const char *const good = "tenon 1\n"
                                "graph g(%x: f32[2] batch, %w: f32[2] param \"w\") {\n"
                                "  %y: f32[2] = mul(%x, %w)  @\"a.b\" forward\n"
                                "  %l: f32[] = sum(%y)  loss\n"
                                "  return loss %l\n"
                                "}\n";

static void test_text(void)
{
    tn_graph *g = NULL, *h = NULL;
    const char *text = NULL, *again = NULL;
    OK(tn_graph_parse(ctx, good, "good.tn", &g));
    OK(tn_graph_print(g, &text));
    OK(tn_graph_parse(ctx, text, "again.tn", &h));
    OK(tn_graph_print(h, &again));
    EXPECT(!strcmp(text, good) && !strcmp(again, good));
    OK(tn_graph_dot(g, &text));
    EXPECT(!strncmp(text, "digraph \"g\" {", 13) && strstr(text, "mul"));
    tn_graph_free(h);
    h = g;
    FAILS(tn_graph_parse(ctx, "tenon 1\ngraph g() {\n  return x\n}\n", "bad.tn", &h), TN_CODE_FAIL,
          "bad.tn:3:10: expected");
    EXPECT(h == g); /* untouched */
    FAILS(tn_graph_read(ctx, "/nonexistent.tn", &h), TN_CODE_FAIL, "/nonexistent.tn: cannot open");
    FAILS(tn_graph_read(ctx, "/", &h), TN_CODE_FAIL, "/: ");
    OK(tn_graph_read(ctx, "tests/ir/loop.tn", &h));
    OK(tn_graph_dot(h, &text));
    EXPECT(strstr(text, "subgraph"));
    FAILS(tn_graph_mesh(h, &text), TN_CODE_FAIL, "expected a mesh, found none");
    tn_graph_free(h);
    tn_graph_free(g);
}

/* ---- building ---- */

static const int64_t two_by_three[] = {2, 3};

static tn_value *add_input(tn_graph *g, const char *name, const char *role, const char *role_name)
{
    tn_value *v = NULL;
    OK(tn_graph_input(g, name, "f32", 2, two_by_three, role, role_name, &v));
    return v;
}

static void test_inputs(tn_graph *g)
{
    const int64_t negative[] = {2, -1}, large[] = {1LL << 55};
    tn_value *v = NULL;
    FAILS(tn_graph_input(g, "x", "f32", 2, two_by_three, "", NULL, &v), TN_CODE_USAGE,
          "\"x\": expected a name that is free");
    FAILS(tn_graph_input(g, "a b", "f32", 2, two_by_three, "", NULL, &v), TN_CODE_USAGE, "\"a b\"");
    FAILS(tn_graph_input(g, "", "f32", 2, two_by_three, "", NULL, &v), TN_CODE_USAGE, "\"\"");
    FAILS(tn_graph_input(g, "a", "f33", 2, two_by_three, "", NULL, &v), TN_CODE_USAGE, "\"f33\"");
    FAILS(tn_graph_input(g, "a", "f32", 9, two_by_three, "", NULL, &v), TN_CODE_USAGE, "rank");
    FAILS(tn_graph_input(g, "a", "f32", -1, two_by_three, "", NULL, &v), TN_CODE_USAGE, "rank");
    FAILS(tn_graph_input(g, "a", "f32", 2, negative, "", NULL, &v), TN_CODE_USAGE,
          "found f32[2, -1]: a negative size");
    FAILS(tn_graph_input(g, "a", "f32", 1, large, "", NULL, &v), TN_CODE_USAGE, "more than 2^56");
    FAILS(tn_graph_input(g, "a", "f32", 0, NULL, "weight", NULL, &v), TN_CODE_USAGE, "\"weight\"");
    FAILS(tn_graph_input(g, "a", "f32", 0, NULL, "loss", NULL, &v), TN_CODE_USAGE, "an input");
    FAILS(tn_graph_input(g, "a", "f32", 0, NULL, "param", NULL, &v), TN_CODE_USAGE, "a name");
    FAILS(tn_graph_input(g, "a", "f32", 0, NULL, "batch", "b", &v), TN_CODE_USAGE, "no name");
    EXPECT(!v);
}

static void test_nodes(tn_graph *g, tn_value *x, tn_value *foreign)
{
    tn_value *out[2] = {NULL, NULL}, *in[] = {x, x}, *missing[] = {x, NULL},
             *other[] = {x, foreign};
    FAILS(tn_graph_node(g, "ad", 2, in, NULL, NULL, NULL, 1, out), TN_CODE_FAIL, "\"add\"");
    FAILS(tn_graph_node(g, "add", 1, in, NULL, NULL, NULL, 1, out), TN_CODE_FAIL, "add");
    FAILS(tn_graph_node(g, "mm", 2, in, NULL, NULL, NULL, 1, out), TN_CODE_FAIL, "mm");
    FAILS(tn_graph_node(g, "add", 2, missing, NULL, NULL, NULL, 1, out), TN_CODE_USAGE,
          "operand 1");
    FAILS(tn_graph_node(g, "add", 2, other, NULL, NULL, NULL, 1, out), TN_CODE_USAGE,
          "another graph");
    FAILS(tn_graph_node(g, "sum", 1, in, "dims=[1]", NULL, NULL, 1, out), TN_CODE_FAIL, "dim");
    FAILS(tn_graph_node(g, "sum", 1, in, "dim=[1]]", NULL, NULL, 1, out), TN_CODE_FAIL, "expected");
    FAILS(tn_graph_node(g, "sum", 1, in, "dim=[7]", NULL, NULL, 1, out), TN_CODE_FAIL, "sum");
    FAILS(tn_graph_node(g, "loop", 1, in, NULL, NULL, NULL, 1, out), TN_CODE_FAIL, "body");
    FAILS(tn_graph_node(g, "add", 2, in, NULL, NULL, "later", 1, out), TN_CODE_USAGE, "\"later\"");
    FAILS(tn_graph_node(g, "split", 1, in, "split_sizes=[1, 1]", NULL, NULL, 1, out), TN_CODE_USAGE,
          "split: has 2 results, found room for 1");
    EXPECT(!out[0] && !out[1]);
    OK(tn_graph_node(g, "split", 1, in, "split_sizes=[1, 1]", "a \"b\"", "forward", 2, out));
    FAILS(tn_graph_output(g, out[1], "result", NULL), TN_CODE_USAGE, "\"result\"");
    FAILS(tn_graph_output(g, out[1], "batch", NULL), TN_CODE_USAGE, "an output");
    FAILS(tn_graph_output(g, out[1], "metric", NULL), TN_CODE_USAGE, "a name");
    FAILS(tn_graph_output(g, foreign, "", NULL), TN_CODE_USAGE, "another graph");
    FAILS(tn_graph_output(g, NULL, "", NULL), TN_CODE_USAGE, "NULL");
    OK(tn_graph_output(g, out[1], "metric", "m"));
}

/* Two ops that draw: streams of their own. */
static void test_streams(tn_graph *g, tn_value *x)
{
    tn_value *seed, *step, *out;
    OK(tn_graph_input(g, "seed", "i64", 0, NULL, "seed", NULL, &seed));
    OK(tn_graph_input(g, "step", "i64", 0, NULL, "step", NULL, &step));
    for (int i = 0; i < 2; i++) {
        tn_value *in[] = {x, seed, step};
        OK(tn_graph_node(g, "dropout", 3, in, "p=0.5", NULL, NULL, 1, &out));
        OK(tn_graph_output(g, out, "", NULL));
    }
}

static void test_build(void)
{
    tn_graph *g = NULL, *h = NULL;
    const char *text = NULL, *again = NULL;
    OK(tn_graph_new(ctx, "built", &g));
    OK(tn_graph_new(ctx, "other", &h));
    tn_value *x = add_input(g, "x", "batch", NULL);
    test_inputs(g);
    test_nodes(g, x, add_input(h, "y", "", NULL));
    test_streams(g, x);
    tn_graph_free(h);
    OK(tn_graph_print(g, &text)); /* what failed has left nothing */
    OK(tn_graph_parse(ctx, text, "built", &h));
    OK(tn_graph_print(h, &again));
    EXPECT(!strcmp(text, again));
    EXPECT(strstr(text, "@\"a \\\"b\\\"\"") && strstr(text, "stream=0") &&
           strstr(text, "stream=1"));
    tn_graph_free(g);
    tn_graph_free(h);
}

/* ---- passes ---- */

typedef struct Seen {
    char names[200], warning[300];
    int count, nparts, changes; /* reports; since the last whole one */
} Seen;

static void after(void *arg, tn_graph *g, const char *pass, int changes, double sec)
{
    Seen *s = arg;
    const char *text;
    s->count += OK(tn_graph_print(g, &text)) && changes >= 0 && sec >= 0;
    if (strchr(pass, '.')) {
        s->nparts++;
        s->changes += changes;
        return;
    }
    EXPECT(!s->nparts || s->changes == changes); /* of the whole group */
    s->nparts = s->changes = 0;
    snprintf(s->names + strlen(s->names), sizeof s->names - strlen(s->names), "%s ", pass);
}

static void warn(void *arg, const char *message)
{
    snprintf(((Seen *)arg)->warning, sizeof((Seen *)arg)->warning, "%s", message);
}

static int run_passes(const char *source, const char *names, const tn_options *o, Seen *s,
                      const char **text)
{
    tn_graph *g = NULL;
    OK(tn_graph_parse(ctx, source, "passes.tn", &g));
    int code = tn_graph_passes(g, names, o, s ? after : NULL, s);
    static char copy[8000];
    const char *t = "";
    if (!code)
        OK(tn_graph_print(g, &t));
    snprintf(copy, sizeof copy, "%s", t);
    *text = copy;
    tn_graph_free(g);
    return code;
}

/* A pipeline is another one for a graph that is a step already. */
static void test_passes_have(void)
{
    const tn_options o = tn_options_default();
    tn_graph *g = NULL;
    int has = 0;
    OK(tn_graph_parse(ctx, good, "good.tn", &g));
    OK(tn_graph_passes_have(g, "default", "optimizer", &has));
    EXPECT(has);
    OK(tn_graph_passes_have(g, "grad,default", "optimizer", &has));
    EXPECT(!has);
    OK(tn_graph_passes(g, "grad", &o, NULL, NULL));
    OK(tn_graph_passes_have(g, "default", "optimizer", &has));
    EXPECT(!has);
    OK(tn_graph_passes_have(g, "optimizer,default", "optimizer", &has));
    EXPECT(has);
    OK(tn_graph_passes_have(g, "default", "remat", &has));
    EXPECT(has);
    tn_graph_free(g);
}

static void test_passes(void)
{
    tn_options o = tn_options_default();
    Seen s = {.count = 0};
    const char *text;
    o.warn = warn;
    o.warn_arg = &s;
    OK(run_passes(good, "default", &o, &s, &text));
    EXPECT(strstr(s.names, "grad precision accumulate optimizer ") && strstr(s.names, " remat "));
    EXPECT(s.count > 20);
    EXPECT(strstr(text, "new \"w\"") && strstr(text, "adamw") && !s.warning[0]);
    OK(run_passes(good, "", &o, NULL, &text));
    EXPECT(!strcmp(text, good));
    OK(run_passes(good, "grad,dce", &o, NULL, &text));
    EXPECT(strstr(text, "grad \"w\""));
    FAILS(run_passes(good, "grda", &o, NULL, &text), TN_CODE_USAGE, "\"grad\"");
    FAILS(run_passes(good, "optimizer", &o, NULL, &text), TN_CODE_USAGE, "a graph with gradients");
    FAILS(run_passes(good, "grad,grad", &o, NULL, &text), TN_CODE_USAGE,
          "a graph without gradients");
    o.accumulate = 3;
    FAILS(run_passes(good, "grad,accumulate", &o, NULL, &text), TN_CODE_USAGE, "empty");
    o.accumulate = 1;
    o.optimizer = "sdg";
    FAILS(run_passes(good, "default", &o, NULL, &text), TN_CODE_USAGE, "\"sdg\"");
    o.optimizer = "none";
    OK(run_passes("tenon 1\ngraph g(%x: f32[] param \"x\", %y: f32[] param \"y\") {\n"
                  "  %l: f32[] = exp(%x)  loss\n  return loss %l\n}\n",
                  "default", &o, NULL, &text));
    EXPECT(strstr(s.warning, "\"y\"") && strstr(text, "grad \"y\""));
}

/* A graph that only the whole shows to be wrong is refused before anything else. */
static void test_verified(void)
{
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    OK(tn_graph_new(ctx, "twice", &g));
    tn_value *x = add_input(g, "x", "", NULL);
    OK(tn_graph_output(g, x, "metric", "m"));
    OK(tn_graph_output(g, x, "metric", "m"));
    FAILS(tn_plan_new(g, &o, 0, &p), TN_CODE_FAIL, "a name used once");
    FAILS(tn_graph_passes(g, "dce", &o, NULL, NULL), TN_CODE_FAIL, "a name used once");
    tn_graph_free(g);
}

/* Each checkpoint of a run asks for these texts: they take memory once. */
static void test_plan_texts(void)
{
    static int (*const give[])(tn_plan *, const char **) = {tn_plan_decided, tn_plan_machine};
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    const char *first = NULL, *again = NULL;
    OK(tn_graph_parse(ctx, good, "texts", &g));
    OK(tn_plan_new(g, &o, 0, &p));
    OK(tn_plan_json(p, 1, &first));
    OK(tn_plan_json(p, 1, &again));
    EXPECT(first && first == again);
    for (int i = 0; i < (int)(sizeof give / sizeof *give); i++) {
        first = again = NULL;
        OK(give[i](p, &first));
        OK(give[i](p, &again));
        EXPECT(first && first == again);
    }
    tn_plan_free(p);
    tn_graph_free(g);
}

/* ---- comparing ---- */

static void test_compare(void)
{
    tn_graph *a = NULL, *b = NULL, *c = NULL;
    double worst = -1;
    const char *where = NULL;
    OK(tn_graph_parse(ctx, good, "a", &a));
    OK(tn_graph_parse(ctx,
                      "tenon 1\ngraph g(%x: f32[2] batch, %w: f32[2] param \"w\") {\n"
                      "  %y: f32[2] = add(%x, %w)  forward\n  %l: f32[] = sum(%y)  loss\n"
                      "  return loss %l\n}\n",
                      "b", &b));
    OK(tn_graph_parse(ctx, "tenon 1\ngraph g(%x: f32[2] batch) {\n  return %x\n}\n", "c", &c));
    OK(tn_graph_compare(a, a, 1, &worst, &where));
    EXPECT(worst == 0);
    OK(tn_graph_compare(a, b, 1, &worst, &where));
    EXPECT(worst > 0 && where && !strcmp(where, "l"));
    double first = worst;
    OK(tn_graph_compare(a, b, 1, &worst, &where));
    EXPECT(worst == first);
    OK(tn_graph_compare(a, b, 2, &worst, &where));
    EXPECT(worst != first);
    FAILS(tn_graph_compare(a, c, 1, &worst, &where), TN_CODE_FAIL, "2 and 1 inputs");
    tn_context_free(tn_context_new());
    tn_graph_free(a);
    tn_graph_free(b);
    tn_graph_free(c);
}

/* ---- models and data ---- */

static void test_models(void)
{
    tn_options o = tn_options_default();
    tn_model *m = NULL;
    tn_graph *g = NULL;
    const char *text;
    int64_t vocab, context;
    FAILS(tn_model_open(ctx, "dmo", &m), TN_CODE_FAIL, "the nearest is \"demo\"");
    FAILS(tn_model_open(ctx, "tests", &m), TN_CODE_FAIL, "no config.json");
    EXPECT(!m);
    OK(tn_model_open(ctx, "gpt2", &m));
    EXPECT(tn_model_count(m) == 124439808);
    tn_model_shape(m, &vocab, &context);
    EXPECT(vocab == 50257 && context == 1024);
    tn_model_free(m);
    OK(tn_model_open(ctx, "tests/ref/llama-tied", &m));
    tn_model_shape(m, &vocab, &context);
    EXPECT(context == 64);
    OK(tn_model_graph(m, 2, 5, &o, &g));
    OK(tn_graph_print(g, &text));
    EXPECT(strstr(text, "%input_ids: i64[2, 5] batch") && strstr(text, "loss %"));
    tn_graph_free(g);
    OK(tn_model_logits(m, 1, 5, &g));
    OK(tn_graph_print(g, &text));
    EXPECT(strstr(text, "metric \"logits\"") && !strstr(text, "labels"));
    tn_graph_free(g);
    FAILS(tn_model_graph(m, 0, 5, &o, &g), TN_CODE_USAGE, "batch: expected 1 to");
    o.dropout = 1;
    FAILS(tn_model_graph(m, 1, 5, &o, &g), TN_CODE_USAGE, "dropout");
    tn_model_free(m);
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    FAILS(tn_model_logits(m, 1, 33, &g), TN_CODE_USAGE, "32 positions");
    tn_model_free(m);
}

static const char *make_file(const char *name, const char *text)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
    return path;
}

static void test_data(void)
{
    const char *path = make_file("text", "abcdefghijklmnopqrst");
    int64_t ids[8], labels[8], again[8], ntrain, nval, nbytes, count;
    tn_data *d = NULL;
    FAILS(tn_data_open(ctx, 1, &path, "words", 0, 0, &d), TN_CODE_USAGE, "\"words\"");
    FAILS(tn_data_open(ctx, 1, &path, "byte", 2, 0, &d), TN_CODE_USAGE, "val-fraction");
    FAILS(tn_data_open(ctx, 0, NULL, "byte", 0, 0, &d), TN_CODE_USAGE, "npath: expected 1 to");
    OK(tn_data_open(ctx, 1, &path, "byte", 0.25, 256, &d));
    tn_data_size(d, &ntrain, &nval, &nbytes);
    EXPECT(ntrain == 15 && nval == 5 && nbytes == 20);
    OK(tn_data_batch(d, 1, 1, 2, 4, ids, labels));
    for (int i = 0; i < 8; i++)
        EXPECT(labels[i] == -100 || (labels[i] == ids[i] + 1 && labels[i] <= 'o'));
    OK(tn_data_batch(d, 1, 1, 2, 4, again, labels));
    EXPECT(!memcmp(ids, again, sizeof ids));
    FAILS(tn_data_batch(d, 1, 1, 1, 15, ids, labels), TN_CODE_FAIL, "at least 16 tokens");
    FAILS(tn_data_batch(d, 1, 0, 1, 4, ids, labels), TN_CODE_USAGE, "step: expected 1 to");
    OK(tn_data_val(d, 0, 1, 2, 3, ids, labels, &count));
    EXPECT(count == 4 && ids[0] == 'p' && labels[3] == 't' && labels[4] == -100);
    OK(tn_data_val(d, 2, 1, 2, 3, ids, labels, &count));
    EXPECT(count == 0);
    tn_data_free(d);
    OK(tn_data_open(ctx, 1, &path, "byte", 0, 100, &d));
    FAILS(tn_data_batch(d, 1, 1, 1, 15, ids, labels), TN_CODE_FAIL, "expected 0 to 99");
    tn_data_free(d);
}

static void test_batch(void)
{
    const char *path = "tests/ref/gpt2-tiny/batch.safetensors";
    int64_t B = 0, T = 0, ids[32], labels[32];
    OK(tn_batch_shape(ctx, path, &B, &T));
    EXPECT(B == 2 && T == 16);
    OK(tn_batch_read(ctx, path, B, T, ids, labels));
    EXPECT(ids[0] >= 0 && ids[0] < 97);
    FAILS(tn_batch_read(ctx, path, 1, T, ids, labels), TN_CODE_FAIL, "expected i64[1, 16]");
    FAILS(tn_batch_shape(ctx, "tests/ref/gpt2-tiny/grads.safetensors", &B, &T), TN_CODE_FAIL,
          "no tensor \"input_ids\"");
    FAILS(tn_batch_shape(ctx, "tests/ref/none", &B, &T), TN_CODE_FAIL,
          "tests/ref/none: cannot open");
    const char *bad = make_file("bad", "too short");
    FAILS(tn_batch_shape(ctx, bad, &B, &T), TN_CODE_FAIL, "bad: ");
}

static void test_folder(void)
{
    char path[100];
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    OK(tn_folder_make(ctx, path));
    OK(tn_folder_make(ctx, path));
    EXPECT(!access(path, W_OK));
    make_file("file", "");
    snprintf(path, sizeof path, "%s/file/a", folder);
    FAILS(tn_folder_make(ctx, path), TN_CODE_FAIL, "file");
    FAILS(tn_folder_make(ctx, "/proc/none"), TN_CODE_FAIL, "/proc/none");
}

int main(void)
{
    ctx = tn_context_new();
    CHECK(ctx && mkdtemp(folder));
    test_context();
    test_help();
    test_tables();
    test_text();
    test_build();
    test_passes_have();
    test_passes();
    test_verified();
    test_plan_texts();
    test_compare();
    test_models();
    test_data();
    test_batch();
    test_folder();
    tn_context_free(ctx);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(!system(command));
    return test_report();
}
