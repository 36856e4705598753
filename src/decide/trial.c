/* Plans of a step with choices that may be taken: the rest of the pipeline runs on a copy of the
 * graph, so that they are those of the step in the end, which may then take one. */
#include "again.h"
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

static bool is_made_for(const PlanMade *m, const Graph *g, const PlanFor *to, bool ordered)
{
    return m->a && m->ordered == ordered && m->p->nthread == par_threads() &&
           plan_for_equal(&m->to, to) && graph_hash(m->g) == graph_hash(g);
}

Plan *again_made(AgainReport *r, const Graph *g, const PlanFor *to, bool ordered)
{
    Plan *p = NULL;
    for (int i = 0; i < LEN(r->made); i++) {
        const PlanMade m = r->made[i];
        r->made[i] = (PlanMade){0};
        if (!p && is_made_for(&m, g, to, ordered))
            p = m.p;
        else if (m.a)
            arena_reset(m.a);
    }
    if (p)
        plan_fill_bound(p, to);
    return p;
}
