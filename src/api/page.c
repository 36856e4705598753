/* Plans as HTML pages. */
#include "api.h"

#include "../page/page.h"

int tn_plan_page(tn_plan *const *plans, const char *const *side, int count, const char *title,
                 const char *command, const char **text)
{
    tn_context *ctx = plans ? args_owner(plans[0]) : NULL;
    if (count < 1 || count > 2)
        return tn_context_fail(ctx, TN_CODE_USAGE, "expected one plan or two, found %d", count);
    if (!args_plans(__func__, plans, side, count) || !GIVEN(ctx, title, command, text))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        Buf b = {.a = try_arena(&t)};
        PageSide both[2];
        for (int i = 0; i < count; i++)
            both[i] = (PageSide){plans[i]->p, &plans[i]->graph->chunk, &plans[i]->graph->sharded,
                                 side ? side[i] : ""};
        plan_page(&b, both, count, title, command);
        *text = text_kept(plans[0]->h.a, &plans[0]->said[SAID_PAGE], b.text);
    }
    return tried(&t);
}
