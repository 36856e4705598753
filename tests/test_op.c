/* Every op against every line of its case file (check_op.c). With arguments: only the named ops. */
#include "check.h"

int main(int argc, char **argv)
{
    return check_ops(&(Harness){.kernels = KERNELS_CPU}, argc, argv);
}
