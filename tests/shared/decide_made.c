/* Sets of forward values and their plans. Nothing is fused, so that a step's seconds are the sum of
 * its nodes'. */
#include "decide_made.h"

#include "../../include/tenon.h"
#include "../../src/decide/again.h"
#include "../../src/plan/order.h"

#include <string.h>

static const char passes[] = "unfuse,grad,canonicalize,cse,dce,remat";
static const char passes_fused[] = "unfuse,grad,canonicalize,cse,dce,remat,fuse";

static const Node *base_of(const Value *v)
{
    const Node *n = v->def;
    while (n && node_aliases(n))
        n = n->in[0]->def;
    return n;
}

uint64_t made_bit(const Made *m, const Value *v)
{
    const Node *n = base_of(v);
    for (int k = 0; k < m->n; k++)
        if (m->node[k] == n)
            return UINT64_C(1) << k;
    return 0;
}

/* False: too many forward nodes. */
static bool read_forward(Made *m, const Graph *g, int most)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (n->phase >= BACKWARD || node_aliases(n) || n->phase == LOSS)
            continue;
        if (m->n == most)
            return false;
        m->sec[m->n] = node_sec(m->o.prices, NULL, n);
        m->node[m->n++] = n;
    }
    for (const Node *n = g->first; n; n = n->next) {
        uint64_t self = n->phase < LOSS && n->nout && !node_aliases(n) ? made_bit(m, n->out[0]) : 0;
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            if (n->phase >= BACKWARD)
                m->read |= made_bit(m, n->in[i]);
            else if (self)
                m->operand[__builtin_ctzll(self)] |= made_bit(m, n->in[i]);
        }
    }
    for (int i = 0; i < g->nout; i++)
        m->out |= made_bit(m, g->out[i].v);
    return true;
}

bool made_read(Made *m, Arena *a, const char *text, int most)
{
    *m = (Made){.text = text, .tmp = arena_tmp(a), .o = pass_defaults()};
    tn_threads(1);
    m->o.machine = "avx512_bf16";
    pass_target(&m->o, a);
    m->to = (PlanFor){.device = m->o.device, .machine = m->o.prices};
    m->w = passes_begin(graph_parse(a, m->text, "step"), passes, &m->o);
    return passes_until(&m->w, "policies") && read_forward(m, m->w.g, most);
}

void made_fuse(Made *m)
{
    m->fused = true;
    m->w = passes_begin(graph_parse(m->w.g->a, m->text, "step"), passes_fused, &m->o);
    passes_until(&m->w, "policies");
}

static Graph *graph_of_set(const Made *m, uint64_t again, Policy policy)
{
    Graph *g = graph_clone(m->tmp, m->w.g);
    Map names = {.a = m->tmp};
    for (int k = 0; k < m->n; k++)
        if (again >> k & 1)
            map_put(&names, m->node[k]->out[0]->name, (void *)m);
    for (Node *n = g->first; n; n = n->next)
        if (n->phase < BACKWARD && n->nout && map_find(&names, n->out[0]->name))
            n->policy = policy;
    PassWalk w = passes_fork(&m->w, g, &m->o);
    passes_until(&w, NULL);
    return g;
}

int64_t made_bound(Made *m, uint64_t again)
{
    Graph *g = graph_of_set(m, again, MUST_RECOMPUTE);
    int64_t bound = order_bound(flow_new(g, m->o.device, m->o.prices, m->tmp), m->tmp);
    arena_reset(m->tmp);
    m->nbound++;
    return bound;
}

Choice made_plan(Made *m, uint64_t again, Policy policy)
{
    Graph *g = graph_of_set(m, again, policy);
    Plan *p = plan_ordered(m->tmp, g, &m->to);
    Choice c = {again, 1, plan_least(p), p->est.step, p->space[SPACE_MAIN].peak, 0, 0};
    for (const Node *n = g->first; n; n = n->next)
        c.clones += n->origin ? node_sec(m->o.prices, NULL, n) : 0;
    arena_reset(m->tmp);
    m->nplan++;
    return c;
}

bool made_fits(Made *m, uint64_t again, int64_t memory)
{
    PlanFor to = m->to;
    to.limit = memory;
    to.tried = true;
    Graph *g = graph_of_set(m, again, MUST_RECOMPUTE);
    bool fits = plan_least(plan_ordered(m->tmp, g, &to)) <= memory;
    arena_reset(m->tmp);
    m->ntried++;
    return fits;
}

double made_least_sec(Made *m, int64_t peak)
{
    const BoundFor to = {.nbytes = (double)peak - again_kept_bytes(m->w.g), .fused = m->fused};
    double sec = again_bound(m->tmp, m->w.g, m->o.prices, &to);
    arena_reset(m->tmp);
    return sec;
}

Choice made_decide(Made *m, int64_t memory)
{
    PassOptions o = m->o;
    Graph *g = graph_parse(m->tmp, m->text, "step");
    Globs off = {0};
    ChunkAsked asked = chunk_asked(m->tmp, &off);
    ChunkReport chunk = {.a = m->tmp};
    AgainReport report = {.a = m->tmp};
    PassWalk w = passes_begin(g, passes, &o);
    DecideTask t = {.to = m->to, .ordered = true, .memory = memory, .chunk = &asked};
    decide(&w, &t, &o, &(Decided){&chunk, &report});
    passes_until(&w, NULL);
    Choice c = {0};
    for (int k = 0; k < m->n; k++)
        for (const Node *n = g->first; n; n = n->next)
            if (n->phase >= BACKWARD && n->origin && !strcmp(n->origin, m->node[k]->out[0]->name))
                c.again |= UINT64_C(1) << k;
    Plan *p = plan_ordered(m->tmp, g, &m->to);
    c.need = plan_least(p);
    c.sec = p->est.step;
    arena_reset(m->tmp);
    return c;
}

void made_print(const Made *m, const char *what, const Choice *c)
{
    printf("    %s %.6g us, %lld bytes:", what, 1e6 * c->sec, (long long)c->need);
    for (int k = 0; k < m->n; k++)
        if (c->again >> k & 1)
            printf(" %s", m->node[k]->out[0]->name);
    printf("\n");
}
