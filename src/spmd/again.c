/* again: parameters that the forward gathered and the backward reads. A form of the forward is
 * gathered again there, with all forms between it and the part that the rank stores, but for those
 * that another reader had gathered again. A choice of all forms counts that as the walk comes to
 * it, so the walk asks for the price that it then notes: of a form that is read as it is too, which
 * may be made from another one that the backward has already. Linear in the steps of a form. */
#include "rewrite.h"

bool form_is_again(const RankForm *h, const Node *reader)
{
    return h->block && reader && reader->phase >= BACKWARD && h->phase < BACKWARD;
}

/* Seconds of what form_note_again() notes. */
static double noted_sec(const RankForm *h, const Node *reader)
{
    if (!h || !form_is_again(h, reader) || h->again)
        return 0;
    return noted_sec(h->from, reader) + h->step_sec;
}

double form_again_sec(const Spmd *x, const RankForm *h, const Reshard *r, const Node *reader)
{
    if (gathers_count_twice(x))
        return noted_sec(h, reader);
    return form_is_again(h, reader) && r->nstep && !x->free ? h->sec : 0;
}

void form_note_again(SpmdGraph *s, RankForm *h, const Node *reader)
{
    for (; h && form_is_again(h, reader) && !h->again; h = h->from) {
        h->again = true;
        s->x->again += (double)loop_times(s) * h->step_sec;
    }
}
