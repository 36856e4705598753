/* The commands that take a model: train, grad, plan. */
#include "cli.h"

#include "../train/train.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What train, grad and plan share. */
typedef struct Common {
    tn_options o;
    int64_t threads, batch, seq, seed;
    const char *dtype, *param_dtype, *recompute, *chunk, *fuse;
} Common;

static Common common_defaults(void)
{
    return (Common){.o = tn_options_default(), .dtype = "f32", .param_dtype = "f32",
                    .recompute = "none", .chunk = "off", .fuse = "off"};
}

#define COMMON_OPTIONS(c)                                                                          \
    {"dtype", OPT_WORD, &(c).dtype, "compute (f32)", "f32", 0, 0, 0},                              \
    {"param-dtype", OPT_WORD, &(c).param_dtype, "parameters (f32)", "f32", 0, 0, 0},               \
    {"recompute", OPT_WORD, &(c).recompute, "(none)", "none", 0, 0, 0},                            \
    {"chunk", OPT_WORD, &(c).chunk, "(off)", "off", 0, 0, 0},                                      \
    {"fuse", OPT_WORD, &(c).fuse, "(off)", "off", 0, 0, 0},                                        \
    {"memory", OPT_BYTES, &(c).o.memory, "refuse what needs more than this", NULL, 0, 0, 0},       \
    {"accumulate", OPT_INT, &(c).o.accumulate, "loop turns of a step (1)", NULL, 1, 1e9, 0},       \
    {"dropout", OPT_REAL, &(c).o.dropout, "probability (0)", NULL, 0, 0.999999, 0},                \
    {"threads", OPT_INT, &(c).threads, "(the cores the process may use)", NULL, 1, 4096, 0},       \
    {"seed", OPT_INT, &(c).seed, "of weights, data and dropout (0)", NULL, 0, 9e18, 0},            \
    {"check", OPT_FLAG, &(c).o.check, "poison dead buffers, guard the arena, look for NaN", NULL, 0, 0, 0}

#define OPTIMIZER_OPTIONS(c)                                                                       \
    {"optimizer", OPT_WORD, &(c).o.optimizer, "(adamw)", "adamw|none", 0, 0, 0},                   \
    {"weight-decay", OPT_REAL, &(c).o.weight_decay, "on matrices (0.1)", NULL, 0, 1e3, 0},         \
    {"beta1", OPT_REAL, &(c).o.beta1, "(0.9)", NULL, 0, 1, 0},                                     \
    {"beta2", OPT_REAL, &(c).o.beta2, "(0.95)", NULL, 0, 1, 0},                                    \
    {"eps", OPT_REAL, &(c).o.eps, "(1e-8)", NULL, 0, 1, 0},                                        \
    {"clip", OPT_REAL, &(c).o.clip, "global norm of the gradient (1.0; 0: off)", NULL, 0, 1e30, 0}

static void warn(void *arg, const char *message)
{
    (void)arg;
    fprintf(stderr, "tenon: warning: %s\n", message);
}

static void apply_common(Common *c)
{
    c->o.seed = (uint64_t)c->seed;
    c->o.warn = warn;
    tn_threads((int)c->threads);
}

/* ---- grad ---- */

static int write_gradients(tn_context *ctx, const char *path, const Common *c, const char *batch,
                           const char *out)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    void *ids, *labels, *loss, *seed;
    int64_t B, T;
    int code = tn_model_open(ctx, path, &m);
    if (!code)
        code = tn_batch_shape(ctx, batch, &B, &T);
    if (!code)
        code = tn_model_graph(m, B, T, &c->o, &g);
    if (!code)
        code = tn_graph_passes(g, "grad,accumulate,canonicalize,cse,dce", &c->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &c->o, 1, &p);
    if (!code)
        code = tn_program_new(p, &c->o, &x);
    if (!code)
        code = tn_program_data(x, "input_ids", &ids, NULL);
    if (!code)
        code = tn_program_data(x, "labels", &labels, NULL);
    if (!code)
        code = tn_batch_read(ctx, batch, B, T, ids, labels);
    if (!code)
        code = tn_program_load(x, m, &c->o);
    if (!code && !tn_program_data(x, "seed", &seed, NULL))
        *(int64_t *)seed = c->seed;
    if (!code && !tn_program_data(x, "step", &seed, NULL))
        *(int64_t *)seed = 1;
    if (!code)
        code = tn_program_run(x);
    if (!code)
        code = tn_program_write(x, out, "grad.");
    if (!code)
        code = tn_program_data(x, "loss", &loss, NULL);
    if (!code)
        printf("loss %.9g\n", *(float *)loss);
    return code ? report_last(code, ctx) : 0;
}

int command_grad(int argc, char **argv)
{
    Common c = common_defaults();
    const char *batch = NULL, *out = NULL;
    Option table[] = {{"batch", OPT_TEXT, &batch, "safetensors file: input_ids, labels", NULL, 0, 0, 0},
                      {"out", OPT_TEXT, &out, "safetensors file to be written", NULL, 0, 0, 0},
                      COMMON_OPTIONS(c),
                      {0}};
    Texts args;
    int code = options_parse(command_find("grad"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!batch || !out)
        return report(TN_CODE_USAGE, "grad: --%s is missing", batch ? "out" : "batch");
    apply_common(&c);
    c.o.optimizer = "none";
    tn_context *ctx = tn_context_new();
    code = write_gradients(ctx, args.text[0], &c, batch, out);
    tn_context_free(ctx);
    return code;
}

/* ---- plan ---- */

static bool is_graph_file(const char *path)
{
    size_t n = strlen(path);
    return !strcmp(path, "-") || (n > 3 && !strcmp(path + n - 3, ".tn"));
}

static int load_for_plan(tn_context *ctx, const char *path, const Common *c, const char *passes,
                         tn_graph **g)
{
    tn_model *m;
    int code;
    if (is_graph_file(path)) {
        code = tn_graph_read(ctx, path, g);
        return code || !passes ? code : tn_graph_passes(*g, passes, &c->o, NULL, NULL);
    }
    if (!c->batch || !c->seq)
        return tn_context_fail(ctx, TN_CODE_USAGE, "plan: --%s is missing", c->batch ? "seq-len" : "batch-size");
    code = tn_model_open(ctx, path, &m);
    if (!code)
        code = tn_model_graph(m, c->batch, c->seq, &c->o, g);
    return code ? code : tn_graph_passes(*g, passes ? passes : "default", &c->o, NULL, NULL);
}

int command_plan(int argc, char **argv)
{
    Common c = common_defaults();
    const char *passes = NULL;
    int json = 0, steps = 0;
    Option table[] = {{"batch-size", OPT_INT, &c.batch, "sequences per step", NULL, 1, 1e9, 0},
                      {"seq-len", OPT_INT, &c.seq, "tokens per sequence", NULL, 1, 1e9, 0},
                      {"json", OPT_FLAG, &json, "one JSON object", NULL, 0, 0, 0},
                      {"steps", OPT_FLAG, &steps, "every call with its addresses", NULL, 0, 0, 0},
                      {"passes", OPT_TEXT, &passes, "names separated by commas (of a model: default)", NULL, 0, 0, 0},
                      COMMON_OPTIONS(c),
                      OPTIMIZER_OPTIONS(c),
                      {0}};
    Texts args;
    int code = options_parse(command_find("plan"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    apply_common(&c);
    tn_context *ctx = tn_context_new();
    tn_graph *g;
    tn_plan *p = NULL;
    const char *text = NULL;
    bool reorder = !is_graph_file(args.text[0]);
    code = load_for_plan(ctx, args.text[0], &c, passes, &g);
    if (!code)
        code = tn_plan_new(g, &c.o, reorder, &p);
    if (code)
        report_last(code, ctx);
    if (p && (json ? tn_plan_json(p, !code, &text) : tn_plan_text(p, steps, &text)))
        code = report_last(TN_CODE_FAIL, ctx);
    if (text && (!code || json))
        printf("%s%s", text, json ? "\n" : "");
    tn_context_free(ctx);
    return code;
}

/* ---- train ---- */

static const char *no_on_nan = "stop";

/* The command line as a JSON object, for state.json. */
static void describe(const Option *table, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "{");
    for (const Option *o = table; o->kind && n < size - 300; o++) {
        if (!o->given || o->kind == OPT_LIST)
            continue;
        n += (size_t)snprintf(text + n, size - n, "%s\"%s\": ", n > 1 ? ", " : "", o->name);
        if (o->kind == OPT_INT || o->kind == OPT_BYTES)
            n += (size_t)snprintf(text + n, size - n, "%lld", (long long)*(int64_t *)o->into);
        else if (o->kind == OPT_REAL)
            n += (size_t)snprintf(text + n, size - n, "%.17g", *(double *)o->into);
        else if (o->kind == OPT_FLAG)
            n += (size_t)snprintf(text + n, size - n, "true");
        else {
            n += (size_t)snprintf(text + n, size - n, "\"");
            for (const char *s = *(const char **)o->into; *s && n < size - 8; s++)
                if (*s == '"' || *s == '\\')
                    n += (size_t)snprintf(text + n, size - n, "\\%c", *s);
                else if ((unsigned char)*s >= 32)
                    text[n++] = *s;
            n += (size_t)snprintf(text + n, size - n, "\"");
        }
    }
    snprintf(text + n, size - n, "}");
}

static int check_train(const TrainOptions *t)
{
    const char *missing = !t->out                        ? "out"
                          : !t->steps                    ? "steps"
                          : t->batch_file || t->ndata    ? NULL
                                                         : "data";
    if (missing)
        return report(TN_CODE_USAGE, "train: --%s is missing", missing);
    if (t->batch_file && t->ndata)
        return report(TN_CODE_USAGE, "train: --batch and --data exclude each other");
    if (t->ndata && (!t->batch || !t->seq))
        return report(TN_CODE_USAGE, "train: --%s is missing", t->batch ? "seq-len" : "batch-size");
    return -1;
}

static int run_train(tn_context *ctx, const char *path, TrainOptions *t)
{
    tn_model *m;
    int code = tn_model_open(ctx, path, &m);
    if (!code && t->batch_file)
        code = tn_batch_shape(ctx, t->batch_file, &t->batch, &t->seq);
    if (!code)
        code = train(ctx, m, t);
    return code && code != 130 ? report_last(code, ctx) : code;
}

int command_train(int argc, char **argv)
{
    Common c = common_defaults();
    Texts data = {.count = 0}, args;
    const char *on_nan = no_on_nan;
    char described[4096];
    TrainOptions t = {.lr = 3e-4, .min_lr = -1, .schedule = "cosine", .token_type = "auto",
                      .val_fraction = 0.1, .prompt = "The "};
    Option table[] = {
        {"data", OPT_LIST, &data, "text or token file or glob; may repeat", NULL, 0, 0, 0},
        {"batch", OPT_TEXT, &t.batch_file, "train on this one batch (safetensors)", NULL, 0, 0, 0},
        {"steps", OPT_INT, &t.steps, "optimizer steps", NULL, 1, 1e12, 0},
        {"max-sec", OPT_REAL, &t.max_sec, "end the run and its schedule by then (0: no limit)", NULL, 0, 1e9, 0},
        {"batch-size", OPT_INT, &c.batch, "sequences per step", NULL, 1, 1e9, 0},
        {"seq-len", OPT_INT, &c.seq, "tokens per sequence", NULL, 1, 1e9, 0},
        {"out", OPT_TEXT, &t.out, "folder of checkpoints", NULL, 0, 0, 0},
        {"lr", OPT_REAL, &t.lr, "(3e-4)", NULL, 0, 1e6, 0},
        {"min-lr", OPT_REAL, &t.min_lr, "(a tenth of lr)", NULL, 0, 1e6, 0},
        {"warmup", OPT_INT, &t.warmup, "steps (0)", NULL, 0, 1e12, 0},
        {"schedule", OPT_WORD, &t.schedule, "(cosine)", "cosine|linear|constant", 0, 0, 0},
        {"eval-every", OPT_INT, &t.eval_every, "steps (at the end)", NULL, 1, 1e12, 0},
        {"save-every", OPT_INT, &t.save_every, "steps (at the end)", NULL, 1, 1e12, 0},
        {"sample-every", OPT_INT, &t.sample_every, "steps (at the end)", NULL, 1, 1e12, 0},
        {"sample-tokens", OPT_INT, &t.sample_tokens, "bytes generated after training (0)", NULL, 0, 1e6, 0},
        {"prompt", OPT_TEXT, &t.prompt, "that the sample continues", NULL, 0, 0, 0},
        {"metrics", OPT_TEXT, &t.metrics, "JSON Lines file", NULL, 0, 0, 0},
        {"on-nan", OPT_WORD, &on_nan, "(stop)", "stop|skip", 0, 0, 0},
        {"token-type", OPT_WORD, &t.token_type, "(auto)", "auto|u16|u32|byte", 0, 0, 0},
        {"val-fraction", OPT_REAL, &t.val_fraction, "of the tokens, held out (0.1)", NULL, 0, 0.9, 0},
        COMMON_OPTIONS(c),
        OPTIMIZER_OPTIONS(c),
        {0}};
    int code = options_parse(command_find("train"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    t.data = data.text;
    t.ndata = data.count;
    t.batch = c.batch;
    t.seq = c.seq;
    if ((code = check_train(&t)) >= 0)
        return code;
    apply_common(&c);
    t.o = c.o;
    t.skip_bad = !strcmp(on_nan, "skip");
    t.progress = isatty(STDERR_FILENO);
    describe(table, described, sizeof described);
    t.options_json = described;
    tn_context *ctx = tn_context_new();
    code = run_train(ctx, args.text[0], &t);
    tn_context_free(ctx);
    return code;
}
