/* export: a graph of ours for others. */
#include "cli.h"

#include <string.h>

int command_export(int argc, char **argv)
{
    const char *output;
    const OptionSlot slots[] = {{"output", &output}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "export", NULL, slots);
    Texts args;
    int code = options_parse(command_find("export"), argc, argv, table, &args, 2, 2);
    if (code >= 0)
        return code;
    if (strcmp(args.text[0], "fx") != 0)
        return report(TN_CODE_USAGE, "export: expected fx, found \"%s\"", args.text[0]);
    tn_context *ctx = context_new();
    tn_graph *g;
    const char *text;
    code = tn_graph_read(ctx, args.text[1], &g);
    if (!code)
        code = tn_graph_export_fx(g, &text);
    code = code ? report_last(code, ctx) : write_text(output, text);
    tn_context_free(ctx);
    return code;
}
