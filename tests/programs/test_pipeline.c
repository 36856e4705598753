/* The passes on whole models: what the pipeline makes verifies, prints and parses, and has nothing
 * left to simplify; simplifying keeps every bit. Microbatches: for every batch size up to 7 and
 * every legal number of iterations the loss and all gradients are those of one iteration, in
 * double, with labels that are ignored unevenly and with dropout, whose masks do not depend on how
 * the batch was cut. Gradients of each family of models agree with central differences. */
#include "../shared/graphs.h"
#include "../shared/test.h"

#include "../../src/model/model.h"

enum { T = 3, VOCAB = 11, MOST = 7, IGNORE = -100 };

static const ModelConfig configs[] = {
    {.kind = MODEL_GPT2,
     .vocab = VOCAB,
     .npos = 8,
     .hidden = 12,
     .nlayer = 2,
     .nhead = 3,
     .nkv = 3,
     .head_dim = 4,
     .intermediate = 20,
     .activation = "gelu_new",
     .norm_eps = 1e-5,
     .init_std = 0.02,
     .tie = true,
     .prefix = ""},
    {.kind = MODEL_LLAMA,
     .vocab = VOCAB,
     .npos = 8,
     .hidden = 12,
     .nlayer = 2,
     .nhead = 6,
     .nkv = 2,
     .head_dim = 2,
     .intermediate = 16,
     .activation = "silu",
     .norm_eps = 1e-5,
     .init_std = 0.02,
     .rope_theta = 1e4,
     .tie = false,
     .prefix = "model."},
};

static const char *const references[] = {
    "tests/ref/gpt2-tiny/config.json", "tests/ref/gpt2-ignore/config.json",
    "tests/ref/llama-tiny/config.json", "tests/ref/llama-tied/config.json",
    "tests/ref/qwen3-tiny/config.json"};

static Ctx ctx;
static Arena *a;   /* of one case */
static bool quick; /* TN_QUICK: fewer cuts and models */

/* ---- graphs and their inputs ---- */

static void run_passes(Graph *g, const char *names, int64_t iterations)
{
    PassOptions o = pass_defaults();
    o.accumulate = iterations;
    passes_run(g, names, &o, NULL, NULL);
}

/* Loss and gradients in f64. */
static Graph *joint_graph(const ModelConfig *c, int64_t batch, double dropout, int64_t iterations)
{
    Graph *g = graphs_widen(a, model_graph(a, c, batch, T, &(ModelOptions){.dropout = dropout}));
    run_passes(g, "grad,accumulate,canonicalize,cse,dce", iterations);
    return g;
}

/* Tokens and labels of the vocabulary; row r ignores its labels where (r * 7 + t * 3) % 5 < r % 4,
 * the first row all of them where there are others. */
static Tensor *model_inputs(const Graph *g)
{
    Tensor *in = graphs_inputs(a, g);
    for (int i = 0; i < g->nin; i++) {
        if (g->in[i].role != ROLE_BATCH)
            continue;
        bool labels = !strcmp(g->in[i].v->name, "labels");
        for (int64_t e = 0, n = tensor_nelem(&in[i]); e < n; e++) {
            int64_t row = e / T, *x = (int64_t *)(void *)in[i].data + e;
            bool ignored = row ? (row * 7 + e % T * 3) % 5 < row % 4 : n > T;
            *x = (e * 5 + e / 3 + labels) % VOCAB;
            *x = labels && ignored ? IGNORE : *x;
        }
    }
    return in;
}

/* ---- microbatches ---- */

static void compare(const Graph *g, const Tensor *got, const Graph *h, const Tensor *want,
                    double tol)
{
    for (int i = 0; i < h->nout; i++) {
        int k = graphs_output(g, h, i);
        double error = k < 0 ? 1e30 : graphs_distance(&got[k], &want[i]);
        if (!EXPECT(error <= tol))
            printf("  %s %s: off by %.3g\n", role_name(h->out[i].role),
                   h->out[i].name ? h->out[i].name : "", error);
    }
}

static bool legal(int64_t rows, int64_t iterations)
{
    int64_t part = (rows + iterations - 1) / iterations;
    return part * (iterations - 1) < rows;
}

typedef struct Cutting {
    const ModelConfig *c;
    int64_t batch, iterations;
    double dropout;
} Cutting;

static void cut_model(void *arg)
{
    const Cutting *x = arg;
    joint_graph(x->c, x->batch, x->dropout, x->iterations);
}

static void check_iterations(const Cutting *x, const Graph *one, const Tensor *want)
{
    Graph *g = joint_graph(x->c, x->batch, x->dropout, x->iterations);
    Tensor *in = model_inputs(g);
    EXPECT(graphs_count(g, "loop") == 1 && graphs_count(g, "count_labels") == 1);
    compare(g, graphs_interpret(a, g, in), one, want, 1e-12);
    if (x->batch == 3)
        compare(g, graphs_execute(a, g, in), one, want, 1e-12);
}

static void check_batch(Cutting x)
{
    Graph *one = joint_graph(x.c, x.batch, x.dropout, 1);
    Tensor *want = graphs_interpret(a, one, model_inputs(one));
    EXPECT(tensor_get(&want[0], 0) > 0.1);
    for (x.iterations = 2; x.iterations <= x.batch + 1; x.iterations++) {
        if (legal(x.batch, x.iterations))
            check_iterations(&x, one, want);
        else
            EXPECT_FAIL(&ctx, cut_model, &x, "leave an iteration empty");
        EXPECT(legal(x.batch, x.iterations) || ctx.code == TN_USAGE);
    }
}

static void test_microbatches(void *arg)
{
    Cutting x = {.c = arg};
    int most = quick ? 3 : MOST;
    for (x.batch = 1; x.batch <= most; x.batch++) {
        x.dropout = x.batch % 2 ? 0.3 : 0;
        check_batch(x);
    }
}

/* Each microbatch's rows of the batch and rows of padding behind them, as where data ranks are not
 * filled; padding has tokens, and labels that are ignored. */
static Tensor *padded_inputs(const Graph *g, const Graph *one, const Tensor *in, int64_t part,
                             int64_t padded)
{
    Tensor *y = model_inputs(g);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &one->in[i];
        for (int64_t e = 0; p->role == ROLE_BATCH && e < tensor_nelem(&y[i]); e++) {
            int64_t row = e / T / padded * part + e / T % padded;
            bool filled = e / T % padded < part && row < p->v->type.dim[0];
            double none = strcmp(p->v->name, "labels") ? 1 : IGNORE;
            tensor_set(&y[i], e, filled ? tensor_get(&in[i], row * T + e % T) : none);
        }
    }
    return y;
}

static void test_padded_rows(void *arg)
{
    enum { ROWS = 5, ITERATIONS = 2, PART = 3, PADDED = 4 };
    Graph *one = joint_graph(arg, ROWS, 0.3, 1);
    Tensor *in = model_inputs(one), *want = graphs_interpret(a, one, in);
    Graph *g = graphs_widen(
        a, model_graph(a, arg, ITERATIONS * PADDED, T, &(ModelOptions){.dropout = 0.3}));
    PassOptions o = pass_defaults();
    o.accumulate = ITERATIONS;
    o.filled = ROWS;
    passes_run(g, "grad,accumulate,canonicalize,cse,dce", &o, NULL, NULL);
    Tensor *padded = padded_inputs(g, one, in, PART, PADDED);
    compare(g, graphs_interpret(a, g, padded), one, want, 1e-12);
}

/* Without a label that counts. */
static Tensor *unlabelled_inputs(const Graph *g)
{
    Tensor *in = model_inputs(g);
    for (int i = 0; i < g->nin; i++)
        for (int64_t e = 0; !strcmp(g->in[i].v->name, "labels") && e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, IGNORE);
    return in;
}

static void interpret_unlabelled(void *arg)
{
    Graph *g = joint_graph(arg, 4, 0, 2);
    graphs_interpret(a, g, unlabelled_inputs(g));
}

static void execute_unlabelled(void *arg)
{
    Graph *g = joint_graph(arg, 4, 0, 2);
    graphs_execute(a, g, unlabelled_inputs(g));
}

/* The model in f32, by its fast kernels: as one iteration but for rounding. */
static void test_f32(void *arg)
{
    Graph *one = model_graph(a, arg, MOST, T, &(ModelOptions){.dropout = 0.3}),
          *cut = model_graph(a, arg, MOST, T, &(ModelOptions){.dropout = 0.3});
    run_passes(one, "grad,canonicalize,cse,dce", 1);
    run_passes(cut, "grad,accumulate,canonicalize,cse,dce", 4);
    Tensor *in = model_inputs(one), *want = graphs_execute(a, one, in);
    compare(cut, graphs_execute(a, cut, in), one, want, 2e-5);
}

/* ---- masks ---- */

static const char mask_text[] =
    "tenon 1\n"
    "graph mask(%%x: f32[%d, 3, 2] batch, %%seed: i64[] seed, %%step: i64[] step, %%w: f32[] param "
    "\"w\") {\n"
    "  %%xw = mul(%%x, %%w)\n"
    "  %%a = dropout(%%xw, %%seed, %%step, p=0.5) stream=4\n"
    "  %%f = view(%%a, size=[-1, 2])\n"
    "  %%b = dropout(%%f, %%seed, %%step, p=0.25) stream=5\n"
    "  %%t = t(%%b)\n"
    "  %%l = sum(%%t) loss\n"
    "  return loss %%l, metric \"a\" %%a, metric \"b\" %%b, metric \"t\" %%t\n"
    "}\n";

static void test_masks(void *arg)
{
    (void)arg;
    for (int rows = 2; rows <= MOST; rows++) {
        const char *text = arena_printf(a, mask_text, rows);
        Graph *one = graph_parse(a, text, "mask");
        Tensor *in = graphs_inputs(a, one), *want = graphs_interpret(a, one, in);
        for (int iterations = 2; iterations <= rows; iterations++) {
            if (!legal(rows, iterations))
                continue;
            Graph *g = graph_parse(a, text, "mask");
            run_passes(g, "grad,accumulate,cse,dce", iterations);
            Tensor *got = graphs_interpret(a, g, in), *run = graphs_execute(a, g, in);
            for (int i = 1; i <= 3; i++)
                EXPECT(tensor_same_bits(&got[i], &want[i]) &&
                       graphs_distance(&run[i], &want[i]) < 1e-6);
        }
    }
}

/* ---- composition ---- */

static void count_changes(void *arg, const Graph *g, const PassReport *r)
{
    (void)g;
    *(int *)arg += r->part ? 0 : r->changes;
}

static void check_text(const Graph *g)
{
    const char *text = graphs_text(a, g);
    Graph *again = graph_parse(a, text, "again");
    graph_verify(again);
    EXPECT(!strcmp(graphs_text(a, again), text));
}

/* Each pass in turn keeps the bits of what the graph before it gave. */
static void check_simplifying(Graph *g)
{
    static const char *const names[] = {"canonicalize", "cse", "dce"};
    Tensor *in = model_inputs(g), *want = graphs_interpret(a, g, in);
    for (int i = 0; i < LEN(names); i++) {
        Graph *h = graph_clone(a, g);
        run_passes(h, names[i], 1);
        Tensor *got = graphs_interpret(a, h, in);
        for (int k = 0; k < g->nout; k++)
            EXPECT(tensor_same_bits(&got[k], &want[k]));
        check_text(h);
    }
}

static void test_composition(void *arg)
{
    PassOptions o = pass_defaults();
    for (o.accumulate = 1; o.accumulate <= 2; o.accumulate++) {
        int changes = 0;
        Graph *g = model_graph(a, arg, 3, T, &(ModelOptions){.dropout = 0.1});
        passes_run(g, "default", &o, NULL, NULL);
        check_text(g);
        const char *text = graphs_text(a, g);
        passes_run(g, "canonicalize,cse,dce", &o, count_changes, &changes);
        EXPECT(changes == 0 && !strcmp(graphs_text(a, g), text));
        Graph *joint = model_graph(a, arg, 3, T, &(ModelOptions){.dropout = 0.1});
        run_passes(joint, "grad,accumulate", o.accumulate);
        check_simplifying(joint);
    }
}

static void run_case(void (*test)(void *), const ModelConfig *c)
{
    ctx.message[0] = 0;
    if (!EXPECT(ctx_try(&ctx, test, (void *)c) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_reset(a);
}

/* ---- gradients ---- */

/* Every gradient of a model of each family, with all the parameters that it can have, agrees with
 * central differences of the loss. */
static void test_differences(void *arg)
{
    const ModelConfig *c = arg;
    Graph *loss = graphs_widen(a, model_graph(a, c, 1, T, 0)), *g = joint_graph(c, 1, 0, 1);
    Tensor *in = model_inputs(loss), *out = graphs_interpret(a, g, model_inputs(g));
    int count = 0;
    model_params(a, c, &count);
    for (int i = 0; i < g->nout; i++) {
        if (g->out[i].role != ROLE_GRAD)
            continue;
        double error = graphs_gradient_error(a, loss, in, g->out[i].name, &out[i]);
        count--;
        if (!EXPECT(error < 1e-7))
            printf("  %s, %s: off by %.3g\n", family_of(c)->type, g->out[i].name, error);
    }
    EXPECT(count == 0);
}

static void test_families(void)
{
    for (int kind = quick ? MODEL_QWEN3 : 0; kind < NMODEL; kind++) {
        ModelConfig c = configs[kind != MODEL_GPT2];
        c.kind = (ModelKind)kind;
        c.nlayer = 1;
        c.hidden = 4;
        c.nhead = c.head_dim = 2;
        c.nkv = kind == MODEL_GPT2 ? 2 : 1;
        c.intermediate = 3;
        c.tie = kind % 2;
        c.attention_bias =
            family_of(&c)->qkv_bias || family_has_key(family_of(&c), "attention_bias");
        c.mlp_bias = family_has_key(family_of(&c), "mlp_bias");
        run_case(test_differences, &c);
    }
}

/* ---- all ---- */

int main(void)
{
    a = arena_new(&ctx);
    quick = getenv("TN_QUICK");
    run_case(test_masks, NULL);
    test_families();
    for (int i = 0; i < LEN(configs); i++) {
        run_case(test_microbatches, &configs[i]);
        run_case(test_padded_rows, &configs[i]);
        run_case(test_f32, &configs[i]);
        run_case(test_composition, &configs[i]);
        EXPECT_FAIL(&ctx, interpret_unlabelled, (void *)&configs[i], "count");
        EXPECT_FAIL(&ctx, execute_unlabelled, (void *)&configs[i], "count");
        arena_reset(a);
    }
    for (int i = 0; i < (quick ? 1 : LEN(references)); i++) {
        ModelConfig c = config_read(a, references[i]);
        run_case(test_composition, &c);
    }
    arena_free(a);
    return test_report();
}
