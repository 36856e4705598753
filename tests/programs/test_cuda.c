/* The CUDA kernels of every op against every line of its case file (check_op.c), on the processor
 * (simt.h): no GPU is needed. Threads and blocks go in order in the first run and backwards in the
 * one that must give the same bits; TN_SIMT=shuffled: in a random order in that. With arguments:
 * only the named ops. Every tenth line, with TN_LONG all, and then every way of results in place
 * and as parts, and all kernels must be reached. */
#include "../shared/check.h"

#include "../shared/simt.h"

#include <stdlib.h>
#include <string.h>

static void before(bool again)
{
    const char *how = getenv("TN_SIMT");
    int other = how && !strcmp(how, "shuffled") ? SIMT_SHUFFLED : SIMT_BACKWARD;
    simt_order(again ? other : SIMT_FORWARD);
}

int main(int argc, char **argv)
{
    const Harness h = {.kernels = KERNELS_CUDA,
                       .before = before,
                       .without = "tests/without_cuda.txt",
                       .every = getenv("TN_LONG") || argc > 1 ? 0 : 10,
                       .brief = !getenv("TN_LONG"),
                       .tell = argc > 1};
    Total t = {0};
    check_ops(&h, argv + 1, &t);
    printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed != 0;
}
