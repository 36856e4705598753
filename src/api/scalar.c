/* Scalar inputs: the step and inputs of the optimizer, such as lr. A scalar that was never set is
 * an error of the run, as training with 0 would fail silently. Once set it stays set, for its
 * memory is the program's own (program_data). Unset ones hold a bit pattern that no caller writes.
 * A step that says only which random numbers are drawn, in a graph that updates nothing, is 1 until
 * it is set.
 */
#include "api.h"

#include <string.h>

/* NaN in every floating-point dtype, and no step. */
static const uint64_t mark = 0x7ff57fa57fa57fa5;

/* Whether only random numbers are drawn by an input: by nodes, or in regions, which pass it on. */
static bool only_drawn(const Graph *g, const char *name)
{
    bool read = false;
    EACH_NODE(n, g) {
        if (n->phase == OPTIMIZER)
            return false;
        for (int i = 0; i < n->nin; i++) {
            if (n->in[i]->def || strcmp(n->in[i]->name, name) != 0)
                continue;
            if (n->stream < 0 && !n->region)
                return false;
            read = true;
        }
    }
    return read;
}

void scalars_start(tn_program *x)
{
    const Plan *p = x->x->plan;
    const int64_t first = 1;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        bool draws = in->role == ROLE_STEP && only_drawn(p->g, in->value);
        if (role_scalar(in->role))
            memcpy(program_data(x->x, in), draws ? (const void *)&first : &mark,
                   (size_t)type_nbytes(&in->type));
    }
}

bool scalar_set(const tn_program *x, const PlanPort *in)
{
    return memcmp(program_data(x->x, in), &mark, (size_t)type_nbytes(&in->type)) != 0;
}

const PlanPort *scalars_unset(const tn_program *x)
{
    const Plan *p = x->x->plan;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        if (role_scalar(in->role) && !scalar_set(x, in))
            return in;
    }
    return NULL;
}
