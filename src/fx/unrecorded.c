/* Refuses to differentiate through writes in place that autograd does not record: under no_grad, or
 * through detach. PyTorch's gradient ignores such a write, which no op of ours can express. */
#include "fx.h"

static bool through_detach(const FxTensor *t)
{
    for (; t->base; t = t->base)
        for (int i = 0; i < t->nstep; i++)
            if (stops_gradient(t->step[i]))
                return true;
    return false;
}

void fx_note_write(Importer *im, FxTensor *t)
{
    if (!dtype_float(t->type.dtype) || !(im->gradients.off || through_detach(t)))
        return;
    while (t->base)
        t = t->base;
    Unrecorded x = {im->progress.at, fx_peek(im, t)};
    PUSH(im->a, im->gradients.unrecorded, im->gradients.nunrecorded, im->gradients.capunrecorded,
         x);
}

void fx_check_writes(Importer *im)
{
    Graph *g = im->g;
    bool *carries = NEWN(im->a, bool, g->nvalue); /* a gradient, to a parameter */
    for (int i = 0; i < g->nin; i++)
        carries[g->in[i].v->id] = g->in[i].role == ROLE_PARAM;
    for (Node *n = g->first; n; n = n->next) {
        bool any = false;
        for (int i = 0; i < n->nin; i++)
            any |= carries[n->in[i]->id];
        for (int k = 0; k < n->nout; k++)
            carries[n->out[k]->id] = any && !stops_gradient(n);
    }
    for (int i = 0; i < im->gradients.nunrecorded; i++) {
        const Unrecorded *x = &im->gradients.unrecorded[i];
        if (carries[x->old->id])
            fail(g->ctx, TN_FAIL,
                 "%s:%d:%d: writes under no_grad, or through detach, to a tensor whose gradient is "
                 "asked for: PyTorch does not record that write; expected a new tensor instead: "
                 "y + (new - y).detach()",
                 im->m->file, x->at->line, x->at->column);
    }
}
