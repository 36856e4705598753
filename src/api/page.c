/* Plans as HTML pages. */
#include "api.h"

#include "../page/page.h"

typedef struct PageArgs {
    tn_plan *const *plans;
    const char *const *side;
    int count;
    const char *title, *command, *text;
} PageArgs;

static void page(void *arg)
{
    PageArgs *x = arg;
    Buf b = {.a = x->plans[0]->h.a};
    PageSide side[2];
    for (int i = 0; i < x->count; i++)
        side[i] = (PageSide){x->plans[i]->p, &x->plans[i]->graph->chunk, x->side ? x->side[i] : ""};
    plan_page(&b, side, x->count, x->title, x->command);
    x->text = b.text;
}

int tn_plan_page(tn_plan *const *plans, const char *const *side, int count, const char *title,
                 const char *command, const char **text)
{
    tn_context *ctx = plans ? args_owner(plans[0]) : NULL;
    if (count < 1 || count > 2)
        return tn_context_fail(ctx, TN_CODE_USAGE, "expected one plan or two, found %d", count);
    if (!args_plans(__func__, plans, side, count) || !GIVEN(ctx, title, command, text))
        return TN_CODE_USAGE;
    PageArgs x = {plans, side, count, title, command, NULL};
    int code = (int)ctx_try(&ctx->ctx, page, &x);
    if (!code)
        *text = x.text;
    return code;
}
