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
    const char *output = NULL;
    int list = 0;
    /* clang-format off */
    Option table[] = {
        {"output", OPT_OUT, &output, "where the graph goes (-o too)", NULL, 0, 0, 0},
        {"inputs", OPT_IN, &o.inputs, "safetensors file with the inputs and constants", NULL, 0, 0, 0},
        {"shapes", OPT_TEXT, &o.shapes, "their types: \"x=f32[2,4],ids=i64[2]\"", NULL, 0, 0, 0},
        {"loss", OPT_TEXT, &o.loss, "name of the loss (found by its tangent)", NULL, 0, 0, 0},
        {"params", OPT_TEXT, &o.params, "patterns of inputs that are parameters: \"primals_*,w?\"", NULL, 0, 0, 0},
        {"backward-from", OPT_TEXT, &o.backward_from, "name of the first node of the backward", NULL, 0, 0, 0},
        {"alias", OPT_WORD, &o.alias, "what aten.alias does to a gradient (as the code tells)", "pass|stop", 0, 0, 0},
        {"list-unknown", OPT_FLAG, &list, "print all calls that are not known, and nothing else", NULL, 0, 0, 0},
        {0}};
    /* clang-format on */
    Texts args;
    const Command *c = command_find("import");
    int code = options_parse(c, argc, argv, table, &args, 2, 2);
    if (code >= 0)
        return code;
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
