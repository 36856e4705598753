/* What the backward computes again to fit a limit, as --memory decided it. */
#include "page.h"

void again_print(Buf *b, const AgainReport *r)
{
    const Planned *x = &r->chosen, *none = &r->none;
    if (!r->searched)
        return;
    buf_printf(b, "recompute: auto: ");
    if (x->word)
        buf_printf(b, "as \"%s\"", x->word);
    else
        buf_printf(b, "%d values", r->nvalue);
    buf_printf(b, ", %s %s a step (%+.1f %%); all saved it needs %lld bytes, so %lld, of %lld; %d plans\n",
               x->sec < none->sec ? "saves" : "adds",
               sec_text(b->a, x->sec < none->sec ? none->sec - x->sec : x->sec - none->sec),
               100 * (x->sec / none->sec - 1), (long long)none->need, (long long)x->need,
               (long long)r->memory, r->nplanned);
}
