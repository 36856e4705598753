/* estimate: seconds of a plan's step, by src/machine: of every call, and from these how long a step
 * takes. Nothing is measured, so that the same plan and machine give the same seconds.
 *
 * The step's own seconds are when the last of the calls ends (timeline.c). Shares of classes and
 * what is computed again are sums over calls: where queues overlap they exceed the step. A fused
 * node's seconds are shared among the nodes in its body by what these would take alone. Linear in
 * the steps. */
#include "plan.h"

#include <stdlib.h>
#include <math.h>
#include <string.h>

/* ---- calls ---- */

static double tensors_nbytes(const Tensor *t, int count)
{
    double nbytes = 0;
    for (int i = 0; i < count; i++)
        nbytes += (double)tensor_nelem(&t[i]) * (double)dtype_size(t[i].dtype);
    return nbytes;
}

/* Calls that the planner has added; their nodes have no operands. */
static double helper_sec(const Machine *m, const Step *s)
{
    const Call *x = &s->call;
    DType d = x->in[0].dtype;
    double known = machine_call_sec(m, x);
    if (known > 0)
        return known;
    double nread = tensors_nbytes(x->in, x->nin), nwrite = tensors_nbytes(x->out, x->nout);
    bool adds = s->node->op->class == CLASS_POINTWISE;
    Cost c = {adds ? nwrite / (double)dtype_size(d) : 0, nread, nwrite};
    return cost_sec(m, s->node->op->class, d, &c);
}

static double step_sec(const Machine *m, const Mesh *mesh, const Step *s)
{
    if (s->kind == STEP_ZERO)
        return cost_sec(m, CLASS_CREATION, F32, &(Cost){0, 0, (double)s->nbytes});
    if (s->kind != STEP_CALL)
        return 0;
    return s->copy ? helper_sec(m, s) : node_sec(m, mesh, s->node);
}

/* ---- steps of nodes ---- */

static int by_node(const void *s, const void *t)
{
    const NodeStep *x = s, *y = t;
    return (x->node > y->node) - (x->node < y->node);
}

NodeSteps plan_node_steps(Arena *a, const Plan *p)
{
    NodeSteps s = {NEWN(a, NodeStep, p->nstep), 0};
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && !p->step[i].copy)
            s.list[s.count++] = (NodeStep){p->step[i].node, &p->step[i]};
    if (s.count)
        qsort(s.list, (size_t)s.count, sizeof *s.list, by_node);
    return s;
}

const Step *plan_node_step(const NodeSteps *s, const Node *n)
{
    const NodeStep key = {n, NULL};
    const NodeStep *found =
        s->count ? bsearch(&key, s->list, (size_t)s->count, sizeof key, by_node) : NULL;
    return found ? found->step : NULL;
}

/* ---- sums over calls ---- */

/* Adds a node's seconds to its class and, where it is computed again, to what that adds. */
static void add_node(Estimate *e, const Node *n, double sec)
{
    e->by_class[n->op->class] += sec;
    e->added += n->origin ? sec : 0;
    e->communicates |= n->op->class == CLASS_COLLECTIVE;
}

static void add_fused(Estimate *e, const Machine *m, const Node *n, double sec)
{
    double all = 0;
    EACH_FUSED(part, n)
        all += node_sec(m, NULL, part);
    EACH_FUSED(part, n)
        add_node(e, part, all > 0 ? sec * node_sec(m, NULL, part) / all : 0);
}

static void add_steps(Plan *p, int from, int to, double times)
{
    for (int i = from; i < to; i++) {
        Step *s = &p->step[i];
        double sec = times * s->sec;
        if (s->kind == STEP_LOOP) {
            add_steps(p, i + 1, s->end, times * (double)s->count);
            i = s->end;
        } else if (s->kind == STEP_ZERO) {
            p->est.by_class[CLASS_CREATION] += sec;
        } else if (s->kind == STEP_CALL && s->node->op->region == FUSED) {
            add_fused(&p->est, p->machine, s->node, sec);
        } else if (s->kind == STEP_CALL) {
            add_node(&p->est, s->node, sec);
        }
    }
}

/* ---- a plan ---- */

void plan_estimate(Plan *p, Arena *tmp)
{
    p->est = (Estimate){0};
    double *exposed = NEWN(tmp, double, p->nstep);
    for (int i = 0; i < p->nstep; i++)
        p->step[i].sec = step_sec(p->machine, p->g->mesh, &p->step[i]);
    add_steps(p, 0, p->nstep, 1);
    p->est.step = plan_times(p, tmp, exposed, NULL);
    for (int i = 0; i < p->nstep; i++) {
        p->step[i].exposed = exposed[i];
        p->est.exposed += exposed[i];
    }
}

/* ---- as text ---- */

const char *sec_text(Arena *a, double sec)
{
    if (fabs(sec) < 1e-9) /* of differences, what rounding leaves */
        sec = 0;
    double size = fabs(sec), by = size < 1e-3 ? 1e6 : size < 1 ? 1e3 : 1;
    const char *unit = size < 1e-3 ? "us" : size < 1 ? "ms" : "s";
    return arena_printf(a, size * by < 9999.5 ? "%.4g %s" : "%.0f %s", sec * by, unit);
}

typedef struct ClassShare {
    OpClass class;
    double share;
} ClassShare;

static int by_share(const void *s, const void *t)
{
    const ClassShare *x = s, *y = t;
    if (x->share != y->share)
        return x->share < y->share ? 1 : -1;
    return (int)x->class - (int)y->class;
}

const char *estimate_shares(Arena *a, const Estimate *e)
{
    ClassShare list[NCLASS];
    Buf b = {.a = a};
    double all = 0;
    for (int c = 0; c < NCLASS; c++)
        all += e->by_class[c];
    for (int c = 0; c < NCLASS; c++)
        list[c] = (ClassShare){(OpClass)c, all > 0 ? e->by_class[c] / all : 0};
    qsort(list, NCLASS, sizeof *list, by_share);
    for (int i = 0; i < NCLASS && list[i].share >= 5e-4; i++)
        buf_printf(&b, "%s%.1f %% %s", i ? ", " : "", 100 * list[i].share,
                   class_name(list[i].class));
    return b.text ? b.text : "";
}
