/* The C API from plan to checkpoint: JSON of plans, memory limits, data by name, files, faults,
 * shared arenas, objects freed in every legal order. test_api.c has what does not run. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <jansson.h>
#include <math.h>

static tn_context *ctx;
static char folder[] = "/tmp/tenon_run_XXXXXX";

#define OK(call)                expect_code((call), TN_CODE_OK, "", #call, __LINE__)
#define FAILS(call, want, part) expect_code((call), (want), (part), #call, __LINE__)
/* Calls whose message is the program's. */
#define DOES(x, call) expect_text((call), 0, "", tn_program_error(x), #call, __LINE__)
#define LEAVES(x, call, want, part) \
    expect_text((call), (want), (part), tn_program_error(x), #call, __LINE__)

static bool expect_text(int got, int want, const char *part, const char *text, const char *what,
                        int line)
{
    bool right = got == want && (!want || strstr(text, part));
    if (!test_note(right, __FILE__, line, what))
        printf("  expected code %d, \"%s\"; found %d, \"%s\"\n", want, part, got, text);
    return right;
}

static bool expect_code(int got, int want, const char *part, const char *what, int line)
{
    return expect_text(got, want, part, tn_error(ctx), what, line);
}

static const char *in_folder(const char *name)
{
    static char path[2][100];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* A graph with its plan and program. */
typedef struct Run {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
} Run;

static void free_run(Run *r)
{
    tn_program_free(r->x);
    tn_plan_free(r->p);
    tn_graph_free(r->g);
    *r = (Run){NULL, NULL, NULL};
}

static Run start_text(const char *text, const tn_options *o)
{
    Run r = {NULL, NULL, NULL};
    OK(tn_graph_parse(ctx, text, "text", &r.g));
    OK(tn_plan_new(r.g, o, 0, &r.p));
    OK(tn_program_new(r.p, o, &r.x));
    return r;
}

static Run start_model(tn_model *m, int64_t B, int64_t T, const tn_options *o)
{
    Run r = {NULL, NULL, NULL};
    OK(tn_model_graph(m, B, T, o, &r.g));
    OK(tn_graph_passes(r.g, "default", o, NULL, NULL));
    OK(tn_plan_new(r.g, o, 1, &r.p));
    OK(tn_program_new(r.p, o, &r.x));
    OK(tn_program_load(r.x, m, o));
    return r;
}

static void *data(tn_program *x, const char *name)
{
    void *p = NULL;
    DOES(x, tn_program_data(x, name, &p, NULL));
    return p;
}

/* ---- JSON of plans ---- */

static int64_t integer(const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);
    EXPECT(json_is_integer(x));
    return json_integer_value(x);
}

static int64_t sum(const json_t *o)
{
    int64_t all = 0;
    for (void *i = json_object_iter((json_t *)o); i; i = json_object_iter_next((json_t *)o, i)) {
        EXPECT(json_is_integer(json_object_iter_value(i)));
        all += json_integer_value(json_object_iter_value(i));
    }
    return all;
}

static json_t *plan_json(tn_plan *p, int fits)
{
    const char *text = "";
    json_error_t e;
    OK(tn_plan_json(p, fits, &text));
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!EXPECT(o))
        printf("  %d:%d: %s\n", e.line, e.column, e.text);
    return o;
}

static void check_bytes(const json_t *o, tn_plan *p)
{
    static const char *const categories[] = {"parameters", "optimizer", "gradients", "activations",
                                             "recompute",  "workspace", "inputs",    "other"};
    const json_t *all = json_object_get(o, "by_category");
    int64_t peak, persistent, reserve;
    int64_t bound = integer(o, "lower_bound_bytes"), least = integer(o, "order_bound_bytes");
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    EXPECT(integer(o, "peak_bytes") == peak && integer(o, "planned_peak_bytes") == peak &&
           integer(o, "arena_bytes") == peak && bound <= peak);
    EXPECT(persistent < least && least <= bound && integer(o, "waste_bytes") == peak - bound);
    EXPECT(peak % 64 == 0 && bound % 64 == 0 && persistent % 64 == 0 &&
           integer(o, "persistent_bytes") == persistent);
    EXPECT(integer(o, "library_reserve_bytes") == reserve && reserve > 0 &&
           integer(o, "workspace_bytes") >= integer(all, "workspace"));
    for (int i = 0; i < LEN(categories); i++)
        EXPECT(integer(all, categories[i]) % 64 == 0);
    EXPECT(json_object_size(all) == LEN(categories) && sum(all) == bound &&
           integer(all, "parameters") + integer(all, "optimizer") == persistent);
}

/* What is alive at the peak is all in some scope. */
static void check_scopes(const json_t *o)
{
    const json_t *all = json_object_get(o, "by_scope");
    int64_t alive = 0;
    size_t i;
    json_t *x;
    EXPECT(json_array_size(all) > 2);
    json_array_foreach(all, i, x) alive += integer(x, "count") * integer(x, "bytes_at_peak");
    EXPECT(alive == integer(o, "lower_bound_bytes"));
    EXPECT(json_number_value(json_object_get(o, "added_nflop")) <=
           json_number_value(json_object_get(o, "nflop")));
}

static void check_counts(const json_t *o)
{
    EXPECT(sum(json_object_get(o, "op_counts")) == integer(o, "nodes"));
    EXPECT(json_is_string(json_object_get(o, "peak_node")));
    EXPECT(json_is_string(json_object_get(o, "plan_hash")));
    EXPECT(json_is_real(json_object_get(o, "plan_sec")));
    EXPECT(json_is_number(json_object_get(o, "added_nflop")));
    EXPECT(json_is_array(json_object_get(o, "decisions")));
}

static char *hash_of(tn_model *m, int64_t batch, int64_t seq, int64_t accumulate)
{
    tn_options o = tn_options_default();
    o.accumulate = accumulate;
    Run r = start_model(m, batch, seq, &o);
    json_t *json = plan_json(r.p, 1);
    check_bytes(json, r.p);
    check_counts(json);
    check_scopes(json);
    EXPECT(!json_object_get(json, "least_feasible_bytes"));
    char *hash = strdup(json_string_value(json_object_get(json, "plan_hash")));
    json_decref(json);
    free_run(&r);
    return hash;
}

static void test_json(const char *path)
{
    tn_model *m;
    OK(tn_model_open(ctx, path, &m));
    char *first = hash_of(m, 2, 16, 1), *again = hash_of(m, 2, 16, 1), *other = hash_of(m, 1, 4, 1),
         *cut = hash_of(m, 2, 16, 2);
    EXPECT(!strcmp(first, again) && strcmp(first, other) && strcmp(first, cut));
    free(first);
    free(again);
    free(other);
    free(cut);
    tn_model_free(m);
}

/* What does not fit is refused with the least that would, and with what holds the peak. */
static void test_limit(void)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p = NULL, *q = NULL;
    tn_options o = tn_options_default();
    int64_t peak, persistent, reserve;
    OK(tn_model_open(ctx, "tests/ref/llama-tiny", &m));
    OK(tn_model_graph(m, 2, 16, &o, &g));
    OK(tn_graph_passes(g, "default", &o, NULL, NULL));
    OK(tn_plan_new(g, &o, 0, &p));
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    tn_plan_free(p);
    o.memory = peak + reserve;
    OK(tn_plan_new(g, &o, 0, &p));
    tn_plan_free(p);
    p = NULL;
    o.memory--;
    FAILS(tn_plan_new(g, &o, 0, &p), TN_CODE_FIT, "the least that would do is ");
    EXPECT(strstr(tn_error(ctx), "\n  ") && strstr(tn_error(ctx), "parameters"));
    if (EXPECT(p)) {
        json_t *json = plan_json(p, 0);
        EXPECT(integer(json, "least_feasible_bytes") == peak + reserve);
        const json_t *values = json_object_get(json, "peak_values");
        EXPECT(json_array_size(values) > 0);
        for (size_t i = 0; i < json_array_size(values); i++) {
            const json_t *v = json_array_get(values, i);
            EXPECT(json_is_string(json_object_get(v, "name")) &&
                   json_is_string(json_object_get(v, "scope")) && integer(v, "bytes") > 0);
            EXPECT(i == 0 ||
                   integer(v, "bytes") <= integer(json_array_get(values, i - 1), "bytes"));
        }
        json_decref(json);
    }
    o.memory = 0;
    OK(tn_plan_new(g, &o, 1, &q)); /* a second plan of one graph, in another order */
    tn_plan_free(q);
    tn_plan_free(p);
    tn_graph_free(g);
    tn_model_free(m);
}

static void test_plan_text(void)
{
    tn_options o = tn_options_default();
    Run r = start_text("tenon 1\ngraph g(%a: f32[4, 6], %b: f32[6, 5]) {\n"
                       "  %y: f32[4, 5] = mm(%a, %b)  forward\n"
                       "  %z: f32[4, 5] = mm(%a, %b)  forward\n"
                       "  return %y, %z\n}\n",
                       &o);
    const char *text = "";
    double all, products;
    tn_product product[2] = {{0}};
    OK(tn_plan_text(r.p, 0, &text));
    EXPECT(strstr(text, "lower bound") && !strstr(text, " 0 mm."));
    OK(tn_plan_text(r.p, 1, &text));
    EXPECT(strstr(text, " 0 mm."));
    tn_plan_flops(r.p, &all, &products);
    EXPECT(all == 2 * 2.0 * 4 * 6 * 5 && products == all);
    EXPECT(tn_plan_products(r.p, 0, product) >= 1 && product[0].count == 0);
    EXPECT(tn_plan_products(r.p, 2, product) == 1);
    EXPECT(product[0].batch == 1 && product[0].m == 4 && product[0].k == 6 && product[0].n == 5 &&
           product[0].count == 2);
    EXPECT(!strcmp(product[0].dtype, "f32") && !strcmp(product[0].out_dtype, "f32"));
    free_run(&r);
}

/* The page of one plan; what another keeps in the same arena is drawn as other. */
static void test_plan_page(void)
{
    tn_options o = tn_options_default();
    Run r =
        start_text("tenon 1\ngraph g(%a: f32[4]) { %y: f32[4] = neg(%a) forward return %y }", &o);
    tn_plan *plans[2] = {r.p, NULL};
    const char *text = "", *side[] = {"x", "y"};
    OK(tn_plan_page(plans, NULL, 1, "a<b", "tenon", &text));
    EXPECT(strstr(text, "<title>a&lt;b: memory") && !strstr(text, "data-layer=\"other\""));
    EXPECT(tn_plan_page(plans, NULL, 3, "", "", &text) == TN_CODE_USAGE);
    o.persistent = 1 << 20;
    OK(tn_plan_new(r.g, &o, 0, &plans[1]));
    OK(tn_plan_page(plans, side, 2, "two", "tenon", &text));
    EXPECT(strstr(text, "data-layer=\"other\"") && !tn_plan_compare(plans, side, 1, &text));
    json_t *both = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *d;
    d = json_object_get(both, "difference");
    EXPECT(integer(d, "peak_bytes") == 1 << 20 && integer(d, "nodes") == 0);
    EXPECT(integer(json_object_get(d, "by_category"), "other") == 1 << 20);
    json_decref(both);
    tn_plan_free(plans[1]);
    free_run(&r);
}

/* Any number of bytes that another plan keeps: what lies behind them is aligned all the same. */
static void test_persistent(void)
{
    int64_t peak, persistent, reserve;
    tn_options o = tn_options_default();
    o.persistent = 100;
    Run r =
        start_text("tenon 1\ngraph g(%a: f32[4]) { %y: f32[4] = neg(%a) forward return %y }", &o);
    tn_plan_bytes(r.p, &peak, &persistent, &reserve);
    EXPECT(persistent == 128 && peak % 64 == 0);
    EXPECT((uintptr_t)data(r.x, "a") % 64 == 0);
    free_run(&r);
}

/* ---- programs ---- */

static const char *const small = "tenon 1\n"
                                 "graph g(%x: f32[2] batch, %w: f32[2] param \"the.weight\",\n"
                                 "    %s: i64[] seed, %t: i64[] step, %r: f32[] scalar \"lr\") {\n"
                                 "  %y: f32[2] = mul(%x, %w)  forward\n"
                                 "  %d: f32[2] = dropout(%y, %s, %t, p=0.5)  forward stream=0\n"
                                 "  %l: f32[] = sum(%y)  loss\n"
                                 "  %n: f32[2] = mul(%w, %r)  optimizer\n"
                                 "  return loss %l, new \"the.weight\" %n, metric \"m\" %d, %y\n"
                                 "}\n";

static void fill_small(tn_program *x, float weight)
{
    float *in = data(x, "x"), *w = data(x, "the.weight");
    in[0] = 3;
    in[1] = 4;
    w[0] = w[1] = weight;
    *(float *)data(x, "lr") = 0.5f;
    *(int64_t *)data(x, "seed") = 7;
    *(int64_t *)data(x, "step") = 1;
}

static void test_data_by_name(void)
{
    static const char *const names[] = {
        "x",    "the.weight",     "w",        "s",   "seed", "t", "step", "lr", "r",
        "loss", "new.the.weight", "metric.m", "out3"};
    tn_options o = tn_options_default();
    Run r = start_text(small, &o);
    void *p;
    int64_t nbytes = 0;
    for (int i = 0; i < LEN(names); i++) {
        DOES(r.x, tn_program_data(r.x, names[i], &p, &nbytes));
        EXPECT((uintptr_t)p % 64 == 0 && nbytes > 0);
    }
    LEAVES(r.x, tn_program_data(r.x, "", &p, NULL), TN_CODE_FAIL, "no input or output \"\"");
    LEAVES(r.x, tn_program_data(r.x, "out0", &p, NULL), TN_CODE_FAIL, "\"out0\"");
    LEAVES(r.x, tn_program_data(r.x, "metric.x", &p, NULL), TN_CODE_FAIL, "\"metric.x\"");
    EXPECT(data(r.x, "new.the.weight") == data(r.x, "the.weight")); /* takes its storage */
    fill_small(r.x, 2);
    DOES(r.x, tn_program_run(r.x));
    EXPECT(*(float *)data(r.x, "loss") == 14 && *(float *)data(r.x, "w") == 1);
    fill_small(r.x, 2);
    DOES(r.x, tn_program_run(r.x));
    EXPECT(*(float *)data(r.x, "loss") == 14);
    free_run(&r);
}

static void test_files(void)
{
    tn_options o = tn_options_default();
    Run r = start_text(small, &o);
    fill_small(r.x, 2);
    DOES(r.x, tn_program_run(r.x));
    OK(tn_program_write_file(r.x, in_folder("all"), ""));
    OK(tn_program_write_file(r.x, in_folder("new"), "new."));
    FAILS(tn_program_write_file(r.x, "/dev/full", ""), TN_CODE_FAIL, "/dev/full: cannot write");
    FAILS(tn_program_write_file(r.x, "tests/no folder/x", ""), TN_CODE_FAIL,
          "tests/no folder/x: cannot create");
    FAILS(tn_program_read_file(r.x, in_folder("all")), TN_CODE_FAIL,
          "input \"x\": expected f32[2]");
    FAILS(tn_program_read_file(r.x, in_folder("none")), TN_CODE_FAIL, "none: cannot open");
    Run q = start_text("tenon 1\ngraph g(%the.weight: f32[2]) {\n  return %the.weight\n}\n", &o);
    OK(tn_program_read_file(q.x, in_folder("new")));
    DOES(q.x, tn_program_run(q.x));
    EXPECT(((float *)data(q.x, "out0"))[1] == 1);
    free_run(&q);
    q = start_text("tenon 1\ngraph g(%the.weight: f32[3]) {\n  return %the.weight\n}\n", &o);
    FAILS(tn_program_read_file(q.x, in_folder("new")), TN_CODE_FAIL,
          "expected f32[3], found f32[2]");
    free_run(&q);
    q = start_text("tenon 1\ngraph g(%s: i64[] seed) {\n  return %s\n}\n", &o);
    FAILS(tn_program_read_file(q.x, in_folder("new")), TN_CODE_FAIL,
          "\"the.weight\" is no input of the graph");
    free_run(&q);
    free_run(&r);
}

/* A label out of range is an error of the run that names the node; the program can run again. */
static void test_faults(void)
{
    tn_model *m;
    tn_options o = tn_options_default();
    o.check = 1;
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    Run r = start_model(m, 1, 4, &o);
    int64_t *ids = data(r.x, "input_ids"), *labels = data(r.x, "labels");
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < 4; i++) {
            ids[i] = turn == 1 ? 97 : 5;
            labels[i] = turn == 0 ? 97 : turn == 2 ? -100 : 6;
        }
        *(float *)data(r.x, "lr") = 1e-3f;
        *(int64_t *)data(r.x, "step") = 1;
        int code = tn_program_run(r.x);
        if (turn == 0)
            LEAVES(r.x, code, TN_CODE_FAIL, "cross_entropy");
        else if (turn == 1)
            LEAVES(r.x, code, TN_CODE_FAIL, "embedding");
        else if (turn == 2)
            LEAVES(r.x, code, TN_CODE_FAIL, "count");
        else
            DOES(r.x, code);
    }
    EXPECT(!tn_program_fault(r.x) && isfinite(*(float *)data(r.x, "loss")));
    free_run(&r);
    tn_model_free(m);
    r = start_text("tenon 1\ngraph g(%x: f32[2]) {\n  %y: f32[2] = log(%x)  @\"a.b\" forward\n"
                   "  %z: f32[2] = exp(%y)  forward\n  return %z\n}\n",
                   &o);
    ((float *)data(r.x, "x"))[0] = -1;
    DOES(r.x, tn_program_run(r.x));
    const char *fault = tn_program_fault(r.x);
    EXPECT(fault && !strcmp(fault, "log %y in a.b"));
    free_run(&r);
}

/* Which bytes are written shows under either pattern; parameters are not filled. */
static void test_patterns(void)
{
    tn_options o = tn_options_default();
    int64_t peak, persistent, reserve;
    Run r = start_text(small, &o);
    tn_plan_bytes(r.p, &peak, &persistent, &reserve);
    EXPECT(persistent == 64);
    fill_small(r.x, 2);
    tn_program_fill(r.x, 0x5a);
    EXPECT(tn_program_high(r.x, 0x5a) == persistent && tn_program_high(r.x, 0xa5) == peak);
    EXPECT(*(float *)data(r.x, "w") == 2);
    fill_small(r.x, 2);
    DOES(r.x, tn_program_run(r.x));
    EXPECT(tn_program_high(r.x, 0x5a) == peak);
    free_run(&r);
}

/* ---- a shared arena ---- */

static void test_share(void)
{
    tn_model *m, *other;
    tn_options o = tn_options_default(), beside = o;
    tn_graph *g, *h;
    tn_plan *p, *q;
    tn_program *y = NULL;
    int64_t peak, persistent, reserve, ours, kept;
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    OK(tn_model_open(ctx, "tests/ref/llama-tiny", &other));
    Run r = start_model(m, 1, 4, &o);
    tn_plan_bytes(r.p, &peak, &persistent, &reserve);
    OK(tn_model_logits(m, 1, 32, &g)); /* takes more than the step of 4 tokens */
    beside.persistent = persistent;
    OK(tn_plan_new(g, &beside, 1, &p));
    tn_plan_bytes(p, &ours, &kept, &reserve);
    json_t *json = plan_json(p, 1);
    EXPECT(sum(json_object_get(json, "by_category")) == integer(json, "lower_bound_bytes"));
    json_decref(json);
    bool larger = ours > peak;
    if (larger)
        FAILS(tn_program_share(p, r.x, &y), TN_CODE_FIT, "the arena to be shared has");
    tn_program_free(r.x);
    o.arena = ours;
    OK(tn_program_new(r.p, &o, &r.x));
    OK(tn_program_load(r.x, m, &o));
    OK(tn_program_share(p, r.x, &y));
    for (int i = 0; i < 32; i++)
        ((int64_t *)data(y, "input_ids"))[i] = i;
    DOES(y, tn_program_run(y));
    EXPECT(isfinite(*(float *)data(y, "metric.logits")));
    OK(tn_model_logits(other, 1, 4, &h));
    OK(tn_plan_new(h, &beside, 1, &q));
    tn_program_free(y);
    y = NULL;
    FAILS(tn_program_share(q, r.x, &y), TN_CODE_FAIL, "do not share");
    FAILS(tn_program_load(r.x, other, &o), TN_CODE_FAIL, "is not one of the model");
    EXPECT(!y);
    tn_plan_free(p);
    tn_plan_free(q);
    tn_graph_free(g);
    tn_graph_free(h);
    free_run(&r);
    tn_model_free(m);
    tn_model_free(other);
}

/* ---- checkpoints ---- */

static float first_weight(tn_model *m, const tn_options *o)
{
    Run r = start_model(m, 1, 4, o);
    float w = *(float *)data(r.x, "wte.weight");
    free_run(&r);
    return w;
}

static void test_checkpoint(void)
{
    tn_model *m, *saved;
    tn_options o = tn_options_default();
    OK(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m));
    Run r = start_model(m, 1, 4, &o);
    for (int turn = 1; turn <= 2; turn++) {
        *(float *)data(r.x, "wte.weight") = (float)turn;
        OK(tn_program_save(r.x, m, in_folder("a/b/step-1"), "{}"));
        OK(tn_model_open(ctx, in_folder("a/b/step-1"), &saved));
        EXPECT(first_weight(saved, &o) == (float)turn);
        tn_model_free(saved);
    }
    OK(tn_model_open(ctx, in_folder("a/b"), &saved)); /* by its link `latest` */
    EXPECT(first_weight(saved, &o) == 2);
    tn_model_free(saved);
    FAILS(tn_program_save(r.x, m, "/proc/a/step-1", "{}"), TN_CODE_FAIL, "/proc/a: cannot create");
    FAILS(tn_program_save(r.x, m, "/proc/step-1", "{}"), TN_CODE_FAIL,
          "/proc/step-1: cannot create");
    free_run(&r);
    tn_model_free(m);
}

/* Initial values of a preset are a function of the seed. */
static void test_preset(void)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    tn_options o = tn_options_default();
    float w[3];
    OK(tn_model_open(ctx, "demo", &m));
    OK(tn_model_logits(m, 1, 2, &g));
    OK(tn_plan_new(g, &o, 1, &p));
    OK(tn_program_new(p, &o, &x));
    for (int i = 0; i < 3; i++) {
        o.seed = i == 2;
        OK(tn_program_load(x, m, &o));
        w[i] = *(float *)data(x, "model.embed_tokens.weight");
    }
    EXPECT(w[0] == w[1] && w[0] != w[2]);
    tn_model_free(m);
    tn_context_free(NULL);
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
}

/* ---- lifetimes ---- */

/* Objects of a context of their own, freed one by one in some order, the rest with the context. */
static void test_lifetime(int order)
{
    tn_context *own = tn_context_new();
    tn_options o = tn_options_default();
    tn_model *m;
    tn_data *d;
    Run r = {NULL, NULL, NULL};
    const char *text = "docs/formats.md";
    EXPECT(!tn_model_open(own, "tests/ref/gpt2-tiny", &m));
    EXPECT(!tn_data_open(own, 1, &text, "byte", 0, 0, &d));
    EXPECT(!tn_model_graph(m, 1, 4, &o, &r.g));
    EXPECT(!tn_graph_passes(r.g, "default", &o, NULL, NULL));
    EXPECT(!tn_plan_new(r.g, &o, 1, &r.p));
    EXPECT(!tn_program_new(r.p, &o, &r.x));
    EXPECT(!tn_program_load(r.x, m, &o));
    EXPECT(tn_model_open(own, "none", &m) == TN_CODE_FAIL);
    if (order & 1)
        tn_model_free(m);
    if (order & 2)
        tn_data_free(d);
    if (order & 4)
        tn_program_free(r.x);
    if ((order & 12) == 12)
        tn_plan_free(r.p);
    if ((order & 28) == 28)
        tn_graph_free(r.g);
    tn_context_free(own);
}

int main(void)
{
    static const char *const models[] = {"tests/ref/gpt2-tiny", "tests/ref/llama-tiny",
                                         "tests/ref/llama-tied"};
    ctx = tn_context_new();
    CHECK(ctx && mkdtemp(folder));
    for (int i = 0; i < LEN(models); i++)
        test_json(models[i]);
    test_limit();
    test_plan_text();
    test_plan_page();
    test_persistent();
    test_data_by_name();
    test_files();
    test_faults();
    test_patterns();
    test_share();
    test_checkpoint();
    test_preset();
    for (int order = 0; order < 32; order++)
        test_lifetime(order);
    tn_context_free(ctx);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(!system(command));
    return test_report();
}
