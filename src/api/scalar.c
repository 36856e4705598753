/* Scalar inputs: the step and what the optimizer reads, such as lr. One that was never set is an
 * error of the run: training with 0 in its place would fail in silence. Once set it stays set, for
 * no other value of the plan gets its memory (live.c).
 *
 * Whether one was set shows in its bytes, which begin as a mark that nobody writes. A program that
 * shares an arena may not write there before it runs: of its scalars it is known whether their
 * places were asked for. */
#include "api.h"

#include <string.h>

/* NaN in every floating-point dtype, and no step. */
#define MARK 0x7ff57fa57fa57fa5

void scalars_start(tn_program *x)
{
    const Plan *p = x->x->plan;
    x->mark = MARK;
    x->asked = NEWN(x->h.a, bool, p->nin);
    for (int i = 0; i < p->nin && !x->shares; i++)
        if (role_scalar(p->in[i].role))
            memcpy(program_data(x->x, &p->in[i]), &x->mark, (size_t)type_nbytes(&p->in[i].type));
}

void scalars_asked(tn_program *x, const PlanPort *port)
{
    for (int i = 0; i < x->x->plan->nin; i++)
        x->asked[i] |= !port || port == &x->x->plan->in[i];
}

void scalars_filled(tn_program *x, uint8_t pattern)
{
    x->mark =
        pattern ? (uint64_t)pattern * 0x0101010101010101 : MARK; /* 0 is a value that is set */
}

const PlanPort *scalars_unset(const tn_program *x)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        if (!role_scalar(in->role))
            continue;
        size_t nbytes = (size_t)type_nbytes(&in->type);
        if (x->shares ? !x->asked[i] : !memcmp(program_data(x->x, in), &x->mark, nbytes))
            return in;
    }
    return NULL;
}
