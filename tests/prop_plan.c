/* Plans of random graphs: what the executor computes in its arena, by the kernels that the planner
 * chose over the strides it chose, is what the interpreter computes with a buffer for each value.
 * In f64, where references run, bit for bit. Dead buffers are poisoned, the arena's ends are
 * guarded. A second step in the same arena, over what the first left there, gives the same. */
#include "prop.h"

#include "../src/exec/exec.h"

#include <string.h>

static void write_inputs(const Program *x, const Tensor *in)
{
    for (int i = 0; i < x->plan->nin; i++)
        memcpy(program_data(x, &x->plan->in[i]), in[i].data, (size_t)tensor_nbytes(&in[i]));
}

static void compare(Trial *t, const Program *x, const Tensor *want, const char *when)
{
    for (int i = 0; i < x->plan->nout; i++) {
        Tensor got = want[i];
        got.data = program_data(x, &x->plan->out[i]);
        const char *how = prop_differ(t->a, &got, &want[i], 0);
        if (how)
            prop_fail(t, "executed, %s: output %d: %s", when, i, how);
    }
}

static void check_plan(Trial *t, const Plan *p, const Graph *g)
{
    if (p->nin != g->nin || p->nout != g->nout)
        prop_fail(t, "the plan has %d inputs, %d outputs, the graph %d, %d", p->nin, p->nout,
                  g->nin, g->nout);
    if (p->bound > p->peak)
        prop_fail(t, "the plan's peak %lld is below its lower bound %lld", (long long)p->peak,
                  (long long)p->bound);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->offset < 0 || s->offset % PLAN_ALIGN ||
            (s->end > s->start && s->offset + s->nbytes > p->peak))
            prop_fail(t, "buffer %d lies at %lld", i, (long long)s->offset);
    }
}

void prop_plan(Trial *t, Graph *g, const Tensor *in, const Tensor *want)
{
    Plan *p = plan_make(t->a, g, 0);
    check_plan(t, p, g);
    if (t->failure)
        return;
    Program *x = program_make(t->a, p, true, 0);
    for (int step = 0; step < 2 && !t->failure; step++) {
        write_inputs(x, in);
        if (program_run(x))
            prop_fail(t, "executed: %s", x->message);
        else
            compare(t, x, want, step ? "second step" : "first step");
    }
}
