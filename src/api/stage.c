/* Moves inputs and outputs between files and a program, in pieces of bounded size where the host
 * cannot touch the program's memory. Where it can, a tensor is one piece, which is read and written
 * in its place. */
#include "api.h"

#include <stdlib.h>

enum { MOST_STAGED = 16 << 20 }; /* at once; a multiple of the size of every element */

static int64_t largest_away(const Program *x, const PlanPort *p, int count)
{
    int64_t nbytes = 0;
    for (int i = 0; i < count; i++)
        if (!program_on_host(x, &p[i]))
            nbytes = MAX(nbytes, type_nbytes(&p[i].type));
    return nbytes;
}

void stage_make(tn_program *x)
{
    const Plan *p = x->x->plan;
    int64_t most = MAX(largest_away(x->x, p->in, p->nin), largest_away(x->x, p->out, p->nout));
    x->nstage = MIN(most, MOST_STAGED);
    if (!x->nstage)
        return;
    x->stage = malloc((size_t)x->nstage);
    if (!x->stage)
        fail(&x->h.owner->ctx, TN_FAIL, "out of memory");
    arena_defer(x->h.a, free, x->stage);
}

void *stage_room(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes)
{
    if (program_on_host(x->x, p))
        return (char *)program_data(x->x, p) + at;
    *nbytes = MIN(*nbytes, x->nstage);
    return x->stage;
}

void stage_done(const tn_program *x, const PlanPort *p, int64_t at, int64_t nbytes)
{
    if (!program_on_host(x->x, p) && program_write(x->x, p, at, nbytes, x->stage))
        fail(&x->h.owner->ctx, TN_FAIL, "%s", x->x->message);
}

const void *stage_bytes(const tn_program *x, const PlanPort *p, int64_t at, int64_t *nbytes)
{
    void *to = stage_room(x, p, at, nbytes);
    if (!program_on_host(x->x, p) && program_read(x->x, p, at, *nbytes, to))
        fail(&x->h.owner->ctx, TN_FAIL, "%s", x->x->message);
    return to;
}

void stage_tensor(const tn_program *x, const PlanPort *p, const TensorFile *f, const TensorEntry *e,
                  bool lossy)
{
    DType d = p->type.dtype;
    int64_t nbytes = type_nbytes(&p->type), size = dtype_size(d);
    for (int64_t at = 0, n = 1; at < nbytes || !nbytes; at += n) { /* one that is empty may fail */
        n = nbytes - at;
        void *to = stage_room(x, p, at, &n);
        tensors_read_part(f, e, d, lossy, at / size, n / size, to);
        stage_done(x, p, at, n);
        if (!nbytes)
            return;
    }
}

static const void *piece(void *arg, const TensorOut *t, int64_t at, int64_t *nbytes)
{
    static const char zeros[1 << 16];
    if (t->data)
        return stage_bytes(arg, t->data, at, nbytes);
    *nbytes = MIN(*nbytes, LEN(zeros));
    return zeros;
}

TensorSource stage_source(tn_program *x)
{
    return (TensorSource){piece, x};
}
