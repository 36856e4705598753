/* The commands that take a model and do not train: grad, plan; and what they share with train. */
#include "cli.h"

#include <jansson.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

Common common_defaults(void)
{
    return (Common){.o = tn_options_default(), .recompute = "none", .chunk = "off", .fuse = "on"};
}

void common_apply(Common *c)
{
    c->o.seed = (uint64_t)c->seed;
    c->o.fuse = !strcmp(c->fuse, "on");
    c->o.recompute = c->recompute;
    for (int i = 0; i < c->rules.count; i++) {
        bool save = !strncmp(c->rules.option[i], "save", 4);
        c->rule[i] = (tn_rule){save ? "must_save" : "must_recompute", c->rules.text[i]};
    }
    c->o.rules = c->rule;
    c->o.nrules = c->rules.count;
    c->o.warn = warn;
    c->o.freeze = c->freeze.text;
    c->o.nfreeze = c->freeze.count;
    c->o.no_decay = c->no_decay.text;
    c->o.nno_decay = c->no_decay.count;
    tn_threads((int)c->threads);
}

int check_optimizer(const Command *command, const Option *table, const tn_options *o)
{
    int code = -1;
    if (strcmp(o->optimizer, "adamw") != 0)
        code = options_refuse(command, table, "beta1 beta2 eps", "is for --optimizer adamw");
    if (code < 0 && strcmp(o->optimizer, "sgd") != 0)
        code = options_refuse(command, table, "momentum", "is for --optimizer sgd");
    if (code < 0 && !strcmp(o->optimizer, "none"))
        code = options_refuse(command, table, "weight-decay no-decay clip",
                              "means nothing with --optimizer none");
    return code;
}

int64_t trained_length(const tn_model *m)
{
    char path[4096];
    const char *folder = tn_model_folder(m);
    if (!folder || snprintf(path, sizeof path, "%s/state.json", folder) >= (int)sizeof path)
        return 0;
    json_t *state = json_load_file(path, 0, NULL);
    json_t *options = json_object_get(state, "options");
    int64_t length = json_integer_value(json_object_get(options, "seq-len"));
    json_decref(state);
    return length > 0 ? length : 0;
}

/* ---- grad ---- */

/* A loss that is not finite is a fault, named by its node under --check. */
static int report_fault(tn_context *ctx, tn_program *x)
{
    const char *fault = tn_program_fault(x);
    return tn_context_fail(ctx, TN_CODE_FAIL, "the loss is not finite%s%s",
                           fault ? "\n  first value that is not finite: "
                                 : "; --check names the node",
                           fault ? fault : "");
}

static int write_gradients(tn_context *ctx, const char *path, const Common *c, const char *batch,
                           const char *out)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x = NULL;
    void *ids, *labels, *loss, *seed;
    int64_t B, T;
    int code = tn_model_open(ctx, path, &m);
    if (!code)
        code = tn_batch_shape(ctx, batch, &B, &T);
    if (!code)
        code = tn_model_graph(m, B, T, &c->o, &g);
    if (!code)
        code =
            tn_graph_passes(g,
                            c->o.fuse ? "grad,precision,accumulate,canonicalize,cse,dce,remat,fuse"
                                      : "grad,precision,accumulate,canonicalize,cse,dce,remat",
                            &c->o, NULL, NULL);
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
    if (!code && c->freeze.count)
        fprintf(stderr, "tenon: gradients of frozen parameters are written as zeros\n");
    if (!code)
        code = tn_program_data(x, "loss", &loss, NULL);
    if (!code) /* standard output is the file's where it is written there */
        fprintf(strcmp(out, "-") ? stdout : stderr, "loss %.9g\n", plain_nan(*(float *)loss));
    if (!code && !isfinite(*(float *)loss))
        code = report_fault(ctx, x);
    return code ? report_last(code, ctx) : 0;
}

int command_grad(int argc, char **argv)
{
    Common c = common_defaults();
    const char *batch = NULL, *out = NULL;
    /* clang-format off */
    Option table[] = {
        {"batch", OPT_IN, &batch, "safetensors file: input_ids, labels", NULL, 0, 0, 0},
        {"out", OPT_OUT, &out, "safetensors file to be written", NULL, 0, 0, 0},
        COMMON_OPTIONS(c),
        FREEZE_OPTION(c),
        LOSS_OPTIONS(c),
        {0}};
    /* clang-format on */
    Texts args;
    int code = options_parse(command_find("grad"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!batch || !out)
        return report(TN_CODE_USAGE, "grad: --%s is missing", batch ? "out" : "batch");
    common_apply(&c);
    c.o.optimizer = "none";
    tn_context *ctx = context_new();
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
        return tn_context_fail(ctx, TN_CODE_USAGE, "plan: --%s is missing",
                               c->batch ? "seq-len" : "batch-size");
    code = tn_model_open(ctx, path, &m);
    if (!code)
        code = tn_model_graph(m, c->batch, c->seq, &c->o, g);
    return code ? code : tn_graph_passes(*g, passes ? passes : "default", &c->o, NULL, NULL);
}

/* A graph is planned as it is written: what would change it needs a pass that does so. */
static int check_graph_options(const Option *table)
{
    const Command *c = command_find("plan");
    int code = options_refuse(c, table, "batch-size seq-len dropout z-loss label-smoothing",
                              "is for models, not for graphs");
    if (code < 0 && !option_given(table, "passes"))
        code =
            options_refuse(c, table,
                           "dtype param-dtype accumulate recompute save recompute-rule fuse "
                           "freeze optimizer weight-decay no-decay beta1 beta2 eps momentum clip",
                           "changes nothing in a graph without --passes");
    return code;
}

int command_plan(int argc, char **argv)
{
    Common c = common_defaults();
    const char *passes = NULL;
    int json = 0, steps = 0, why = 0;
    /* clang-format off */
    Option table[] = {
        {"batch-size", OPT_INT, &c.batch, "sequences per step", NULL, 1, 1e9, 0},
        {"seq-len", OPT_INT, &c.seq, "tokens per sequence", NULL, 1, 1e9, 0},
        {"json", OPT_FLAG, &json, "one JSON object", NULL, 0, 0, 0},
        {"explain", OPT_FLAG, &why, "what was saved and what is computed again, and why", NULL, 0, 0, 0},
        {"steps", OPT_FLAG, &steps, "every call with its addresses", NULL, 0, 0, 0},
        {"passes", OPT_TEXT, &passes, "names separated by commas (of a model: default)", NULL, 0, 0, 0},
        COMMON_OPTIONS(c),
        FREEZE_OPTION(c),
        LOSS_OPTIONS(c),
        OPTIMIZER_OPTIONS(c),
        {0}};
    /* clang-format on */
    Texts args;
    int code = options_parse(command_find("plan"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    bool reorder = !is_graph_file(args.text[0]);
    if (!reorder && (code = check_graph_options(table)) >= 0)
        return code;
    if ((code = check_optimizer(command_find("plan"), table, &c.o)) >= 0)
        return code;
    common_apply(&c);
    tn_context *ctx = context_new();
    tn_graph *g;
    tn_plan *p = NULL;
    const char *text = NULL;
    code = load_for_plan(ctx, args.text[0], &c, passes, &g);
    if (!code)
        code = tn_plan_new(g, &c.o, reorder, &p);
    if (code)
        report_last(code, ctx);
    if (p && (json ? tn_plan_json(p, !code, &text) : tn_plan_text(p, steps, &text)))
        code = report_last(TN_CODE_FAIL, ctx);
    if (text && (!code || json))
        printf("%s%s", text, json ? "\n" : "");
    if (!code && why && !json)
        code = tn_plan_explain(p, &text) ? report_last(TN_CODE_FAIL, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}
