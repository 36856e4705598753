/* merge: a model with its adapters as one folder, which needs none. */
#include "cli.h"

#include "../train/train.h"

#include <stdio.h>
#include <string.h>

typedef struct MergeCommand {
    tn_options o;
    const char *adapter, *dtype, *output;
    int64_t threads;
} MergeCommand;

static int parse(int argc, char **argv, MergeCommand *x, Texts *args)
{
    const OptionSlot slots[] = {{"adapter", &x->adapter},
                                {"dtype", &x->dtype},
                                {"output", &x->output},
                                {"threads", &x->threads},
                                {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "merge", &x->o, slots);
    int code = options_parse(command_find("merge"), argc, argv, table, args, 1, 1);
    if (code < 0 && !x->output)
        return report(TN_CODE_USAGE, "merge: --output is missing");
    return code;
}

static void tell(const MergeCommand *x, const tn_merged *merged, const char *dtype)
{
    char count[40];
    fprintf(stderr, "tenon: adapters of %s are merged into %s: weights change by at most %.3g\n",
            tn_count_text(merged->modules, "module", count, sizeof count), x->output,
            merged->added);
    if (!strcmp(dtype, "f32"))
        return;
    fprintf(stderr, "tenon: note: rounding to %s changes a weight by at most %.3g, in %s%s\n",
            dtype, merged->rounded, *merged->name ? merged->name : "none",
            merged->added > 0 && merged->rounded >= merged->added
                ? ": more than the adapters do; --dtype f32 keeps what they add"
                : "");
}

static int merge(tn_context *ctx, const char *path, const MergeCommand *x)
{
    tn_model *m;
    tn_merged merged;
    tn_threads((int)x->threads);
    int code = model_open_as_trained(ctx, "merge", path, NULL, x->adapter, &m);
    if (!code)
        code = tn_model_merge(m, x->output, x->dtype, x->o.shard, &merged);
    if (code)
        return report_last(code, ctx);
    tell(x, &merged, x->dtype ? x->dtype : tn_model_dtype(m));
    return 0;
}

int command_merge(int argc, char **argv)
{
    MergeCommand x = {.o = tn_options_default()};
    Texts args;
    int code = parse(argc, argv, &x, &args);
    if (code >= 0)
        return code;
    tn_context *ctx = context_new();
    code = merge(ctx, args.text[0], &x);
    tn_context_free(ctx);
    return code;
}
