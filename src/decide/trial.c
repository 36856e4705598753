/* Plans of a step with choices that may be taken: the rest of the pipeline runs on a copy of the
 * graph, so that they are those of the step in the end. */
#include "chunk_choose.h"

PassOptions trial_options(const PassOptions *o)
{
    PassOptions x = *o;
    x.decisions = NULL;
    x.chunk_report = NULL;
    x.warn = NULL;
    return x;
}

Plan *trial_plan(Arena *a, const PassWalk *w, Graph *g, const PassOptions *o, const PlanFor *to,
                 bool ordered)
{
    PassWalk x = passes_fork(w, g, o);
    passes_until(&x, NULL);
    return ordered ? plan_ordered(a, g, to) : plan_make(a, g, to);
}
