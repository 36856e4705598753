/* Says what --memory decided that the backward computes again. */
#include "page.h"

void again_print(Buf *b, const AgainReport *r)
{
    const Planned *x = &r->chosen, *none = &r->none;
    if (!r->searched)
        return;
    bool less = x->sec < none->sec;
    double sec = less ? none->sec - x->sec : x->sec - none->sec;
    if (x->word)
        buf_printf(b, "recompute: auto computes again what \"%s\" does: ", x->word);
    else
        buf_printf(b, "recompute: auto computes %d values again: ", r->nvalue);
    buf_printf(b,
               "%s %s a step (%+.1f %%), at least %s in any choice; %lld bytes, %lld with all "
               "saved; %d plans tried\n",
               sec_text(b->a, sec), less ? "less" : "more", 100 * (x->sec / none->sec - 1),
               sec_text(b->a, r->bound), (long long)x->need, (long long)none->need, r->nplanned);
}
