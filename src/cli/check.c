/* check: the same random inputs through two graphs. */
#include "cli.h"

#include <stdio.h>

int command_check(int argc, char **argv)
{
    int64_t seed, threads;
    double tolerance, worst;
    const OptionSlot slots[] = {
        {"seed", &seed}, {"tolerance", &tolerance}, {"threads", &threads}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "check", NULL, slots);
    Texts args;
    int code = options_parse(command_find("check"), argc, argv, table, &args, 2, 2);
    if (code >= 0)
        return code;
    tn_threads((int)threads);
    tn_context *ctx = context_new();
    tn_graph *a, *b;
    const char *where = NULL;
    code = tn_graph_read(ctx, args.text[0], &a);
    if (!code)
        code = tn_graph_read(ctx, args.text[1], &b);
    if (!code)
        code = tn_graph_compare(a, b, (uint64_t)seed, &worst, &where);
    if (code)
        code = report_last(code, ctx);
    else if (worst == 0)
        puts("equal");
    else
        printf("largest relative error %.3g at %s\n", worst, where);
    tn_context_free(ctx);
    return code ? code : worst > tolerance ? TN_CODE_FAIL : 0;
}
