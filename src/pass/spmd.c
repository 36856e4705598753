/* spmd: the graph of one rank of a mesh. */
#include "pass.h"

int pass_spmd(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)tmp;
    if (o->mesh)
        fail(g->ctx, TN_FAIL, "spmd: under construction");
    return 0;
}
