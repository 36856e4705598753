/* import: a graph of PyTorch as a file of ours. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static int list_unknown(tn_context *ctx, const char *path)
{
    const char *text = NULL;
    int code = tn_fx_unknown(ctx, path, &text);
    if (code)
        return report_last(code, ctx);
    code = text ? write_text("-", text) : 0;
    return code ? code : text ? TN_CODE_FAIL : 0;
}

/* The graph goes to output; the summary to standard output, or beside a graph that is written
 * there. */
static int import(tn_context *ctx, const char *path, const tn_fx_options *o, const char *output)
{
    tn_graph *g;
    const char *summary, *text;
    int code = tn_graph_import_fx(ctx, path, o, &g, &summary);
    if (!code)
        code = tn_graph_print(g, &text);
    if (code)
        return report_last(code, ctx);
    code = write_text(output, text);
    if (!code)
        fputs(summary, strcmp(output, "-") ? stdout : stderr);
    return code;
}

int command_import(int argc, char **argv)
{
    tn_fx_options o = {0};
    const char *output;
    int list;
    Texts groups;
    const OptionSlot slots[] = {{"output", &output},
                                {"inputs", &o.inputs},
                                {"shapes", &o.shapes},
                                {"loss", &o.loss},
                                {"params", &o.params},
                                {"backward-from", &o.backward_from},
                                {"alias", &o.alias},
                                {"unknown", &o.unknown},
                                {"mesh", &o.mesh},
                                {"rank", &o.rank},
                                {"group", &groups},
                                {"list-unknown", &list},
                                {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "import", NULL, slots);
    Texts args;
    const Command *c = command_find("import");
    int code = options_parse(c, argc, argv, table, &args, 2, 2);
    if (code >= 0)
        return code;
    o.groups = groups.text;
    o.ngroups = groups.count;
    if (strcmp(args.text[0], "fx") != 0)
        return report(TN_CODE_USAGE, "import: expected fx, found \"%s\"", args.text[0]);
    if (!list && !output)
        return report(TN_CODE_USAGE, "import: -o is missing");
    if (o.inputs && o.shapes)
        return report(TN_CODE_USAGE, "import: --inputs and --shapes exclude each other");
    tn_context *ctx = context_new();
    code = list ? list_unknown(ctx, args.text[1]) : import(ctx, args.text[1], &o, output);
    tn_context_free(ctx);
    return code;
}
