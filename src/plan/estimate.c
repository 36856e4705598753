/* estimate: seconds of a plan's step, by src/machine: of every call, and from these how long a step
 * takes. Nothing is measured, so that the same plan and machine give the same seconds.
 *
 * Queues run side by side, and so do collectives, each in the queue of its group (machine/clock.c):
 * a call begins when the one before it in its queue has ended, and all that it waits for. What
 * nothing hides of a collective is how long its queue stands still at its wait. The first
 * iterations of a loop are followed like that; each later one takes as long as the last of these,
 * when the queues have settled. Shares of classes and what is computed again are sums over calls:
 * where queues overlap they exceed the step. A fused node's seconds are shared among the nodes in
 * its body by what these would take alone. Linear in the steps, those in loops counted 8 times for
 * each loop around them. */
#include "plan.h"

#include <stdlib.h>
#include <math.h>
#include <string.h>

enum { FOLLOWED = 8 }; /* iterations of a loop, at most */

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

/* ---- the time line ---- */

typedef struct TimeLine {
    Plan *p;
    Arena *tmp;
    Clock *clock;
    double *ended; /* by step: its latest run */
    int *start;    /* by step: of a wait the collective's step, -1: none */
    bool *apart;   /* by step: a collective for which another step waits */
    int *job;      /* by step: of a collective, its latest run */
} TimeLine;

static void follow(TimeLine *t, int from, int to);

static void find_starts(TimeLine *t)
{
    const Plan *p = t->p;
    t->start = NEWN(t->tmp, int, p->nstep);
    t->apart = NEWN(t->tmp, bool, p->nstep);
    t->job = NEWN(t->tmp, int, p->nstep);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        t->start[i] = s->kind == STEP_CALL && s->node->op->wait ? plan_find_start(p, i) : -1;
        if (t->start[i] >= 0)
            t->apart[t->start[i]] = true;
    }
}

/* When an iteration of a loop begins: the queues, and what its collectives were exposed before. */
typedef struct IterationStart {
    double at[MAX_QUEUE], *exposed;
} IterationStart;

static void start_iteration(const TimeLine *t, int from, int to, IterationStart *x)
{
    for (int q = 0; q < MAX_QUEUE; q++)
        x->at[q] = clock_at(t->clock, (Queue)q);
    for (int i = from; i < to; i++)
        x->exposed[i - from] = t->p->step[i].exposed;
}

/* Moves the queues and the steps of a loop on by what they took for its last iteration. */
static void skip(TimeLine *t, int from, int to, const IterationStart *before, double iterations)
{
    double last[MAX_QUEUE];
    for (int q = 0; q < MAX_QUEUE; q++) {
        last[q] = clock_at(t->clock, (Queue)q) - before->at[q];
        clock_run(t->clock, (Queue)q, 0, last[q] * iterations);
    }
    for (int i = from; i < to; i++) {
        Step *s = &t->p->step[i];
        t->ended[i] += last[s->queue] * iterations;
        s->exposed += (s->exposed - before->exposed[i - from]) * iterations;
    }
}

static void follow_loop(TimeLine *t, int begin)
{
    const Step *s = &t->p->step[begin];
    int64_t count = MIN(s->count, FOLLOWED);
    IterationStart last = {.exposed = NEWN(t->tmp, double, s->end - begin)};
    for (int64_t k = 0; k < count; k++) {
        start_iteration(t, begin, s->end, &last);
        follow(t, begin + 1, s->end);
    }
    if (s->count > count)
        skip(t, begin, s->end, &last, (double)(s->count - count));
}

/* A collective runs beside its queue, which goes on where another step waits for it. */
static double begin_collective(TimeLine *t, int i, double begin)
{
    const Step *s = &t->p->step[i];
    Group where = node_group(t->p->machine, t->p->g->mesh, s->node);
    const char *group = s->node->attr[attr_index(s->node->op, "group")].s;
    t->job[i] = clock_start(t->clock, group, &where, begin, s->sec);
    return t->apart[i] ? begin : clock_end(t->clock, t->job[i]);
}

/* The end of a step that begins when its queue is free and what it waits for has ended. */
static double run_step(TimeLine *t, int i)
{
    const Step *s = &t->p->step[i];
    double begin = clock_at(t->clock, s->queue), end;
    bool collective = s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE;
    for (int k = 0; k < s->nwait; k++)
        begin = MAX(begin, t->ended[s->wait[k]]);
    if (!collective && t->start[i] < 0)
        return clock_run(t->clock, s->queue, begin, s->sec);
    end = collective ? begin_collective(t, i, begin) : clock_end(t->clock, t->job[t->start[i]]);
    t->p->step[collective ? i : t->start[i]].exposed += MAX(0, end - begin);
    return clock_run(t->clock, s->queue, MAX(begin, end), 0);
}

static void follow(TimeLine *t, int from, int to)
{
    for (int i = from; i < to; i++) {
        if (t->p->step[i].kind == STEP_LOOP) {
            follow_loop(t, i);
            i = t->p->step[i].end;
        } else {
            t->ended[i] = run_step(t, i);
        }
    }
}

int plan_find_start(const Plan *p, int wait)
{
    const Node *n = node_waits_for(p->step[wait].node);
    int i = n ? wait - 1 : -1;
    while (i >= 0 && !(p->step[i].kind == STEP_CALL && !p->step[i].copy && p->step[i].node == n))
        i--;
    CHECK(!n || i >= 0);
    return i;
}

void plan_estimate(Plan *p, Arena *tmp)
{
    p->est = (Estimate){0};
    for (int i = 0; i < p->nstep; i++) {
        p->step[i].sec = step_sec(p->machine, p->g->mesh, &p->step[i]);
        p->step[i].exposed = 0;
    }
    add_steps(p, 0, p->nstep, 1);
    TimeLine t = {
        .p = p, .tmp = tmp, .clock = clock_new(tmp), .ended = NEWN(tmp, double, p->nstep)};
    find_starts(&t);
    follow(&t, 0, p->nstep);
    p->est.step = clock_last(t.clock);
    for (int i = 0; i < p->nstep; i++)
        p->est.exposed += p->step[i].exposed;
}

/* ---- as text ---- */

const char *sec_text(Arena *a, double sec)
{
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
