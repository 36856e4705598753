/* train with a graph in the place of a model: checks its options, takes its batch and its labels.
 */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

bool train_is_graph(const TrainOptions *t)
{
    size_t n = t->model ? strlen(t->model) : 0;
    return n > 3 && !strcmp(t->model + n - 3, ".tn");
}

/* Opens the checkpoint. Where the base of its adapters has moved, another command than others'
 * names the new place. */
static int open_checkpoint(tn_context *ctx, const TrainOptions *t, tn_model **m)
{
    int code = tn_model_open(ctx, t->resume->folder, m);
    const char *why = tn_error(ctx);
    if (!code || !strstr(why, "\"base_model_name_or_path\": "))
        return code;
    return tn_context_fail(ctx, code, "%.*s\n  name it: tenon train M --resume --out %s",
                           (int)strcspn(why, "\n"), why, t->out);
}

int train_open(tn_context *ctx, const TrainOptions *t, tn_model **m)
{
    if (t->resume && !t->base)
        return open_checkpoint(ctx, t, m);
    if (t->resume) {
        int code = tn_model_open(ctx, t->base, m);
        return code ? code : tn_model_adapter(*m, t->resume->folder);
    }
    if (!train_is_graph(t))
        return model_open(ctx, t->model, t->lora, t->adapter, m);
    return tn_model_open_graph(ctx, t->model, t->inputs, m);
}

MeshCommand train_mesh(const TrainOptions *t, const tn_options *o)
{
    MeshCommand m = {.batch = t->batch, .seq = t->seq, .o = o};
    m.model = !t->resume || t->base ? t->model : t->resume->folder;
    m.lora = t->resume ? NULL : t->lora;
    m.adapter = !t->resume ? t->adapter : t->base ? t->resume->folder : NULL;
    return m;
}

int train_graph_options(const Option *table, const TrainOptions *t, const tn_options *o)
{
    const Command *c = command_find("train");
    int code =
        options_refuse(c, table,
                       "lora adapter dropout z-loss label-smoothing sample-tokens sample-every "
                       "prompt",
                       "is for models, not for graphs");
    if (code < 0 && mesh_auto(o))
        return report(TN_CODE_USAGE, "train: --mesh auto is for models, not for graphs");
    if (code < 0 && !t->resume && !t->inputs)
        return report(TN_CODE_USAGE,
                      "train: --inputs is missing: the file with the weights and constants of %s, "
                      "under the names of "
                      "its inputs",
                      t->model);
    return code;
}

/* Fails where one of these options was given, names separated by spaces. */
static int refuse(tn_context *ctx, const Option *table, const char *names, const char *why)
{
    char name[40];
    for (int n; sscanf(names, " %39s%n", name, &n) == 1; names += n)
        if (option_given(table, name))
            return tn_context_fail(ctx, TN_CODE_USAGE, "train: --%s %s", name, why);
    return 0;
}

/* Takes the sizes of a batch and what its labels are from a graph. Returns -1 to go on, or an exit
 * code. */
int train_take_graph(tn_context *ctx, const tn_model *m, TrainOptions *t, const Option *table)
{
    int64_t batch, seq;
    const char *labels;
    int has = tn_model_graph_batch(m, &batch, &seq, &labels);
    if (!has)
        return refuse(ctx, table, "inputs labels", "is for graphs, not for models");
    int code = has == 1 ? 0
                        : refuse(ctx, table, "accumulate dtype param-dtype freeze",
                                 "does not go with a graph that has its backward already");
    if (!code && has == 3)
        code = refuse(ctx, table,
                      "optimizer weight-decay no-decay beta1 beta2 eps momentum clip rounding",
                      "does not go with a graph that has its update already");
    if (code)
        return code;
    const char *said = t->labels ? t->labels : labels;
    if (!said)
        return tn_context_fail(
            ctx, TN_CODE_USAGE,
            "%s: whether it shifts its labels does not follow from it: --labels same where it "
            "is called with labels=input_ids and shifts them itself, --labels shifted where its "
            "caller gives the next tokens",
            t->model);
    bool other = t->labels && labels && strcmp(t->labels, labels) != 0;
    if (other && !strcmp(labels, "none"))
        return tn_context_fail(ctx, TN_CODE_USAGE, "train: --labels %s: the graph reads no labels",
                               t->labels);
    if (other && !t->resume && rank_first(ctx))
        fprintf(stderr,
                "tenon: note: %s: what it does with its labels looks like %s; it is given %s, as "
                "--labels says\n",
                t->model, labels, t->labels);
    if ((t->batch && t->batch != batch) || (t->seq && t->seq != seq))
        return refuse_sizes(ctx, t->model, (int64_t[]){batch, seq}, (int64_t[]){t->batch, t->seq});
    t->batch = batch;
    t->seq = seq;
    if (!t->batch_file) { /* which has the sizes */
        json_object_set_new(t->described, "batch-size", json_integer(batch));
        json_object_set_new(t->described, "seq-len", json_integer(seq));
    }
    t->graph = true;
    t->same = !strcmp(said, "same");
    if (!strcmp(said, "none"))
        t->val_fraction = 0; /* what a pass should leave out it could not */
    return 0;
}
