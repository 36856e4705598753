/* Puts results over operands of more bytes, as that of a cast to a narrower dtype whose kernel
 * makes it in place of what it casts.
 *
 * The result then has the operand's bytes for as long as it lives, of which it needs a part: that
 * may raise a later peak as well as it lowers that of the cast. So each is tried, those that run
 * last first, and stays where fewer bytes are alive at most from there to the end. Peaks before
 * that are left to the results that are tried later.
 *
 * Runs last, on a flow that is not edited any more. A try costs O(k log n) as an edit does. */
#include "inside.h"

bool item_may_lie_over_wider(Flow *f, int item)
{
    const FlowItem *x = &f->item[item];
    if (!x->node || !x->ncore || !x->call.kernel || !x->call.kernel->over_wider)
        return false;
    const FlowValue *from = operand_value(f, x, 0), *to = &f->value[x->value];
    const Buffer *y = &f->buffer[to->at.buffer];
    return (flow_inplace(f, item, 0) & 1) && y->def == item && y->renews < 0 &&
           dtype_size(to->v->type.dtype) < dtype_size(from->v->type.dtype) &&
           shape_equal(&to->v->type, &from->v->type) && item_may_take(f, item, 0, 0);
}

static void set_over_wider(Flow *f, int item, bool over_wider)
{
    f->buffer[f->value[f->item[item].value].at.buffer].over_wider = over_wider;
    item_mark(f, item);
}

static void try_over_wider(Flow *f, int item)
{
    if (!item_reads_last(f, item, f->value[f->slot[f->item[item].slot].value].at.buffer))
        return;
    int64_t apart = flow_most(f, item, f->line.last);
    set_over_wider(f, item, true);
    if (flow_most(f, item, f->line.last) >= apart)
        set_over_wider(f, item, false);
}

void flow_lay_over_wider(Flow *f)
{
    for (int i = f->line.last; i >= 0; i = f->line.at[i].prev) {
        for (int c = 0; c < 2 && f->item[i].loop.body[c]; c++) {
            flow_lay_over_wider(f->item[i].loop.body[c]);
            item_mark(f, i);
        }
        if (item_may_lie_over_wider(f, i))
            try_over_wider(f, i);
    }
    flow_settle(f);
}
