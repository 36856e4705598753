/* JSON on standard output, or in a file that is open. */
#include "cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

int write_json(FILE *f, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(o);
    if (!text)
        return report(TN_CODE_FAIL, "out of memory");
    fprintf(f, "%s\n", text);
    free(text);
    return 0;
}
