/* Says what --memory decided: what the backward computes again, what the host's memory keeps, and
 * which gathered parameters ranks keep. */
#include "page.h"

static void print_counts(Buf *b, const AgainReport *r)
{
    const char *values = r->nagain ? arena_count(b->a, r->nagain, "value") : "nothing";
    buf_printf(b, "recompute: auto computes %s again", values);
    if (r->naway)
        buf_printf(b, ", has %d in the host's memory", r->naway);
    if (r->nkept)
        buf_printf(b, ", keeps %s", arena_count(b->a, r->nkept, "gathered parameter"));
}

static void print_choice(Buf *b, const AgainReport *r)
{
    if (r->chosen.word)
        buf_printf(b, "recompute: auto computes again what \"%s\" does", r->chosen.word);
    else
        print_counts(b, r);
    if (r->hoisted)
        buf_add(b, ", keeps all gathered parameters");
}

static void print_cost(Buf *b, const AgainReport *r)
{
    const Planned *x = &r->chosen, *none = &r->none;
    bool less = x->sec < none->sec;
    double sec = less ? none->sec - x->sec : x->sec - none->sec;
    buf_printf(b, ": %s %s a step (%+.1f %%)", sec_text(b->a, sec), less ? "less" : "more",
               100 * (x->sec / none->sec - 1));
    if (r->bound > 0)
        buf_printf(b, ", at least %s in any choice", sec_text(b->a, r->bound));
    buf_printf(b, "; the step takes %lld bytes, %lld with all saved; %s tried\n",
               (long long)x->need, (long long)none->need, arena_count(b->a, r->nplanned, "plan"));
}

void again_print(Buf *b, const AgainReport *r)
{
    if (r->replayed) {
        print_choice(b, r);
        buf_printf(b, ": as was decided before\n");
    }
    if (!r->searched && !r->replayed && r->nkept)
        buf_printf(b, "reshard: auto keeps all of %s for the backward\n",
                   arena_count(b->a, r->nkept, "gathered parameter"));
    if (!r->searched && !r->replayed && r->hoisted)
        buf_add(b, "reshard: auto keeps all gathered parameters for the backward\n");
    if (!r->searched)
        return;
    print_choice(b, r);
    print_cost(b, r);
}
