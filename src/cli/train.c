/* train: the command line of the training loop in src/train. */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An option's value; a text that is not UTF-8 becomes null. */
static json_t *value_of(const Option *o)
{
    switch (o->kind) {
    case OPT_FLAG: return json_true();
    case OPT_INT:
    case OPT_BYTES: return json_integer(*(json_int_t *)o->into);
    case OPT_REAL: return json_real(*(double *)o->into);
    case OPT_LIST: {
        const Texts *t = o->into;
        json_t *list = json_array();
        for (int i = 0; i < t->count; i++)
            json_array_append_new(list, json_string(t->text[i]));
        return list;
    }
    default: break;
    }
    json_t *text = json_string(*(const char **)o->into);
    return text ? text : json_null();
}

/* What was given on the command line, for state.json. */
static json_t *describe(const Option *table)
{
    json_t *all = json_object();
    for (const Option *o = table; o->kind; o++)
        if (o->given)
            json_object_set_new(all, o->name, value_of(o));
    return all;
}

static int missing(const char *name)
{
    return report(TN_CODE_USAGE, "train: --%s is missing", name);
}

static int check_options(const Option *table, const TrainOptions *t)
{
    const Command *c = command_find("train");
    if (!t->out)
        return missing("out");
    if (!t->steps && t->max_sec == 0)
        return missing("steps");
    if (t->batch_file && t->ndata)
        return report(TN_CODE_USAGE, "train: --batch and --data exclude each other");
    if (t->batch_file)
        return options_refuse(c, table,
                              "batch-size seq-len token-type val-fraction eval-every sample-every "
                              "sample-tokens prompt",
                              "is for --data, not for --batch");
    if (!t->ndata)
        return missing("data");
    if (!t->batch || !t->seq)
        return missing(t->batch ? "seq-len" : "batch-size");
    if (t->eval_every && t->val_fraction == 0)
        return report(TN_CODE_USAGE, "train: --eval-every: --val-fraction 0 holds nothing out");
    if (t->sample_tokens == 0)
        return options_refuse(c, table, "sample-every prompt", "needs --sample-tokens");
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
    const char *on_nan = "stop";
    TrainOptions t = {.lr = 3e-4,
                      .min_lr = -1,
                      .schedule = "cosine",
                      .token_type = "auto",
                      .val_fraction = 0.1,
                      .prompt = "The "};
    /* clang-format off */
    Option table[] = {
        {"data", OPT_LIST, &data, "text or token file or glob; may repeat", NULL, 0, 0, 0},
        {"batch", OPT_TEXT, &t.batch_file, "train on this one batch (safetensors)", NULL, 0, 0, 0},
        {"steps", OPT_INT, &t.steps, "optimizer steps (with --max-sec: as many as fit)", NULL, 1, 1e12, 0},
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
        {"profile", OPT_TEXT, &t.profile, "what each call of steps 3 to 5 takes, as trace events (JSON)", NULL, 0, 0, 0},
        {"on-nan", OPT_WORD, &on_nan, "(stop)", "stop|skip", 0, 0, 0},
        {"token-type", OPT_WORD, &t.token_type, "(auto)", "auto|u16|u32|byte", 0, 0, 0},
        {"val-fraction", OPT_REAL, &t.val_fraction, "of the tokens, held out (0.1)", NULL, 0, 0.9, 0},
        COMMON_OPTIONS(c),
        OPTIMIZER_OPTIONS(c.o),
        {0}};
    /* clang-format on */
    int code = options_parse(command_find("train"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    t.data = data.text;
    t.ndata = data.count;
    t.batch = c.batch;
    t.seq = c.seq;
    if ((code = check_options(table, &t)) >= 0)
        return code;
    if (!t.steps)
        t.steps = INT64_MAX;
    common_apply(&c);
    t.o = c.o;
    t.skip_bad = !strcmp(on_nan, "skip");
    t.progress = isatty(STDERR_FILENO);
    json_t *described = describe(table);
    t.described = described;
    tn_context *ctx = context_new();
    code = run_train(ctx, args.text[0], &t);
    tn_context_free(ctx);
    json_decref(described);
    return code;
}
