/* Every op against every line of its case file (check_op.c). With arguments: only the named ops.
 * Only with TN_LONG parts along every axis, and on two threads every line in place and as parts;
 * with TN_QUICK every twelfth line. */
#include "../shared/check.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    Total t = {0};
    (void)argc;
    check_ops(&(Harness){.kernels = KERNELS_CPU,
                         .every = getenv("TN_QUICK") ? 12 : 0,
                         .one_axis = !getenv("TN_LONG")},
              argv + 1, &t);
    printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed != 0;
}
