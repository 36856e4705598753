/* Graphs for others: as a module of PyTorch; src/fx has the rest. */
#include "api.h"

#include "../fx/export.h"

int tn_graph_export_fx(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx)
        *text = text_kept(g->h.a, &g->said[GRAPH_FX], fx_export(try_arena(&t), g->g, TN_VERSION));
    return tried(&t);
}
