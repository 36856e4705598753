/* check: the same random inputs through two graphs. */
#include "cli.h"

#include <stdio.h>

int command_check(int argc, char **argv)
{
    int64_t seed = 0, threads = 0;
    double tolerance = 0, worst;
    /* clang-format off */
    Option table[] = {
        {"seed", OPT_INT, &seed, "of the random inputs (0)", NULL, 0, 9e18, 0},
        {"tolerance", OPT_REAL, &tolerance, "largest relative error allowed (0)", NULL, 0, 1e30, 0},
        {"threads", OPT_INT, &threads, "(the cores the process may use)", NULL, 1, 4096, 0},
        {0}};
    /* clang-format on */
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
