/* Scalar inputs: the step and inputs of the optimizer, such as lr. A scalar that was never set is
 * an error of the run, as training with 0 would fail silently. Once set it stays set, for its
 * memory is the program's own (program_data). Unset ones hold a bit pattern that no caller writes.
 */
#include "api.h"

#include <string.h>

/* NaN in every floating-point dtype, and no step. */
static const uint64_t mark = 0x7ff57fa57fa57fa5;

void scalars_start(tn_program *x)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++)
        if (role_scalar(p->in[i].role))
            memcpy(program_data(x->x, &p->in[i]), &mark, (size_t)type_nbytes(&p->in[i].type));
}

const PlanPort *scalars_unset(const tn_program *x)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        if (role_scalar(in->role) &&
            !memcmp(program_data(x->x, in), &mark, (size_t)type_nbytes(&in->type)))
            return in;
    }
    return NULL;
}
