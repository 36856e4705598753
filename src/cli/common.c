/* Checks and settings that train, grad and plan share. */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

void common_apply(Common *c)
{
    if (c->fuse) /* opt has no such option */
        c->o.fuse = fuse_asked(c->fuse);
    for (int i = 0; i < c->rules.count; i++) {
        const char *option = c->rules.option[i];
        const char *policy = *option == 's'   ? "must_save"
                             : *option == 'o' ? "offload"
                                              : "must_recompute";
        c->rule[i] = (tn_rule){policy, c->rules.text[i]};
    }
    c->o.rules = c->rule;
    c->o.nrules = c->rules.count;
    c->o.warn = warn;
    c->o.freeze = c->freeze.text;
    c->o.nfreeze = c->freeze.count;
    c->o.shardings = c->shardings.text;
    c->o.nshardings = c->shardings.count;
    c->o.pins = c->pins.text;
    c->o.npins = c->pins.count;
    c->o.what_if = c->what_if.text;
    c->o.nwhat_if = c->what_if.count;
    c->o.chunk = c->chunk.text;
    c->o.nchunk = c->chunk.count;
    if (c->sequence_parallel)
        c->o.sequence_parallel = strcmp(c->sequence_parallel, "off") != 0;
    c->o.no_decay = c->no_decay.text;
    c->o.nno_decay = c->no_decay.count;
    tn_threads((int)c->threads);
}

int model_open(tn_context *ctx, const char *path, const char *lora, const char *adapter,
               tn_model **m)
{
    int code = tn_model_open(ctx, path, m);
    if (!code && (lora || adapter) && tn_model_trained(*m) < tn_model_count(*m))
        return tn_context_fail(
            ctx, TN_CODE_USAGE,
            "%s: has adapters of its own, which --%s would replace\n  `tenon merge "
            "%s -o DIR` adds them to the weights; its base is %s",
            path, lora ? "lora" : "adapter", path, tn_model_base(*m));
    if (!code && adapter)
        code = tn_model_adapter(*m, adapter);
    if (!code && lora)
        code = tn_model_lora(*m, lora);
    return code;
}

int model_open_as_trained(tn_context *ctx, const char *command, const char *path, const char *lora,
                          const char *adapter, tn_model **m)
{
    char other[CHECKPOINT_PATH + 100] = "";
    int code = model_open(ctx, path, lora, adapter, m);
    if (!code && rank_first(ctx)) /* the others hear of it where ranks agree next */
        code = base_compare(ctx, *m, other, sizeof other);
    if (code || !*other)
        return code;
    if (!adapter)
        return tn_context_fail(ctx, TN_CODE_FAIL,
                               "%s: %s\n  to add them to other weights all the same: tenon %s M "
                               "--adapter %s%s",
                               command, other, command, path,
                               strcmp(command, "merge") ? "" : " -o DIR");
    fprintf(stderr, "tenon: warning: %s: %s\n", command, other);
    return 0;
}

int check_adapters(const Command *c, const Common *x)
{
    if (x->lora && x->adapter)
        return report(TN_CODE_USAGE,
                      "%s: --lora and --adapter exclude each other: the folder says what its "
                      "adapters are",
                      c->name);
    return -1;
}

int check_optimizer(const Command *command, const Option *table, const tn_options *o)
{
    int code = -1;
    if (strcmp(o->optimizer, "adamw") != 0)
        code = options_refuse(command, table, "beta1 beta2 eps", "is for --optimizer adamw");
    if (code < 0 && strcmp(o->optimizer, "sgd") != 0)
        code = options_refuse(command, table, "momentum", "is for --optimizer sgd");
    if (code < 0 && !strcmp(o->optimizer, "none"))
        code = options_refuse(command, table, "weight-decay no-decay clip rounding",
                              "means nothing with --optimizer none");
    return code;
}

int check_rounding(const Command *command, const Option *table, const tn_options *o)
{
    int code = check_optimizer(command, table, o);
    if (code < 0 && strcmp(o->param_dtype, "bf16") != 0)
        code = options_refuse(command, table, "rounding", "is for --param-dtype bf16");
    return code;
}

/* Whether anything is to be run in slices. */
static bool chunks(const Common *x)
{
    bool any = false;
    for (int i = 0; i < x->chunk.count; i++)
        any |= strcmp(x->chunk.text[i], "off") != 0;
    return any;
}

int check_chunk(const Command *c, const Option *table, const char *passes, const Common *x)
{
    if (!chunks(x))
        return options_refuse(c, table, "chunk-accumulate", "means nothing without --chunk");
    return passes && !tn_passes_have(passes, "chunk")
               ? options_refuse(c, table, "chunk", "changes nothing without the pass chunk")
               : -1;
}

/* Whether a mesh "dp=2,tp=4" has an axis of that name. */
static bool has_axis(const char *mesh, const char *axis)
{
    size_t n = strlen(axis);
    for (const char *s = mesh; s; s = strchr(s, ',')) {
        s += *s == ',';
        if (!strncmp(s, axis, n) && s[n] == '=')
            return true;
    }
    return false;
}

int check_mesh(const Command *c, const Option *table, const char *passes, bool graph, Common *x)
{
    bool remat = passes && tn_passes_have(passes, "policies");
    int code = -1;
    if (x->o.mesh && !strcmp(x->o.mesh, "none"))
        x->o.mesh = NULL;
    const char *mesh = x->o.mesh;
    if (!mesh) {
        code = options_refuse(
            c, table,
            "rank shard pin what-if sequence-parallel reduce comm-timeout log-ranks gpu-comm",
            "needs --mesh");
        if (code < 0 && !remat)
            code = options_refuse(c, table, "reshard",
                                  "needs --mesh, or the pass remat of a rank's graph");
        if (code < 0 && !(passes && tn_passes_have(passes, "bucket")))
            code = options_refuse(c, table, "bucket", "needs --mesh");
        if (code < 0 && !graph &&
            !(passes && tn_passes_have(passes, "ring"))) /* it may be a rank's */
            code = options_refuse(c, table, "overlap", "needs --mesh");
        return code;
    }
    if (!tn_backend_is_gpu(x->o.backend))
        code = options_refuse(c, table, "gpu-comm", "needs --backend cuda");
    if (code < 0 && passes && !tn_passes_have(passes, "spmd") && !tn_passes_have(passes, "align"))
        code = options_refuse(c, table, "mesh", "changes nothing without the pass spmd");
    if (code < 0 && !has_axis(mesh, "tp") && !mesh_auto(&x->o))
        code = options_refuse(c, table, "sequence-parallel", "needs a mesh with an axis tp");
    return code;
}

/* The state.json of the run that wrote a checkpoint; NULL: there is none. */
static json_t *trained_state(const tn_model *m)
{
    char path[4096];
    const char *folder = tn_model_folder(m);
    if (!folder || snprintf(path, sizeof path, "%s/state.json", folder) >= (int)sizeof path)
        return NULL;
    return folder_json(path);
}

int64_t trained_length(const tn_model *m)
{
    json_t *state = trained_state(m);
    json_t *options = json_object_get(state, "options");
    int64_t length = json_integer_value(json_object_get(options, "seq-len"));
    json_decref(state);
    return length > 0 ? length : 0;
}

int model_vary(const tn_model *m)
{
    int64_t rows, seq;
    const char *labels;
    int has = tn_model_graph_batch(m, &rows, &seq, &labels);
    return TN_VARY_RECOMPUTE | (has < 2 ? TN_VARY_ACCUMULATE : 0) | (has ? 0 : TN_VARY_BATCH);
}

/* Tells whether a graph shifts its labels: by --labels, else by its run's options, else as found.
 */
static int find_labels(tn_context *ctx, const tn_model *m, const char *given, const char *found,
                       bool *same)
{
    json_t *state = trained_state(m);
    const char *asked =
        json_string_value(json_object_get(json_object_get(state, "options"), "labels"));
    const char *said = given ? given : asked ? asked : found;
    *same = said && !strcmp(said, "same");
    json_decref(state);
    if (!said)
        return tn_context_fail(
            ctx, TN_CODE_USAGE,
            "%s: whether the graph shifts its labels does not follow from it, and no state.json "
            "says: --labels same where it shifts them itself, --labels shifted where it takes the "
            "next tokens",
            tn_model_folder(m));
    if (given && !strcmp(found ? found : "", "none"))
        return tn_context_fail(ctx, TN_CODE_USAGE, "eval: --labels %s: the graph reads no labels",
                               given);
    return 1;
}

int refuse_sizes(tn_context *ctx, const char *graph, const int64_t of[2], const int64_t given[2])
{
    char rows[40] = "", tokens[40] = "";
    if (given[0])
        snprintf(rows, sizeof rows, "%lld rows", (long long)given[0]);
    if (given[1])
        snprintf(tokens, sizeof tokens, "%s%lld tokens", given[0] ? " of " : "rows of ",
                 (long long)given[1]);
    return tn_context_fail(ctx, TN_CODE_USAGE, "%s is for %lld rows of %lld tokens, found %s%s",
                           graph, (long long)of[0], (long long)of[1], rows, tokens);
}

int graph_batch(tn_context *ctx, const tn_model *m, Common *c, const char *given, bool *same)
{
    int64_t rows, seq;
    const char *labels;
    if (!tn_model_graph_batch(m, &rows, &seq, &labels))
        return 0;
    if ((c->batch && c->batch != rows) || (c->seq && c->seq != seq))
        return refuse_sizes(ctx, "the graph", (int64_t[]){rows, seq},
                            (int64_t[]){c->batch, c->seq});
    c->batch = rows;
    c->seq = seq;
    return same ? find_labels(ctx, m, given, labels, same) : 1;
}
