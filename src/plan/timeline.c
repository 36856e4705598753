/* timeline: when each step of a plan runs, by the clock (machine/clock.c).
 *
 * Queues run side by side, and so do collectives, each in the queue of its group: a call begins
 * when the one before it in its queue has ended, and all that it waits for. What nothing hides of a
 * collective is what is done of it while a queue stands still at a wait, for it or for another one
 * behind it or beside it on its link. The first iterations of a loop are
 * followed like that; each later one takes as long as the last of these, when the queues have
 * settled. Linear in the steps, those in loops counted 8 times for each loop around them. */
#include "plan.h"

enum { FOLLOWED = 8 }; /* iterations of a loop, at most */

typedef struct TimeLine {
    const Plan *p;
    Arena *tmp;
    Clock *clock;
    double *exposed;     /* by step */
    PlanSpans *spans;    /* NULL: nobody asks for them */
    double *ended;       /* by step: its latest run */
    int *start;          /* by step: of a wait the collective's step, -1: none */
    bool *apart;         /* by step: a collective for which another step waits */
    int *job;            /* by step: of a collective, its latest run */
    int *of, nof, capof; /* by job: its step */
} TimeLine;

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

/* ---- spans ---- */

/* Notes what a queue does from `start` to `end`. */
static void note(TimeLine *t, SpanKind kind, int step, double start, double end)
{
    PlanSpans *x = t->spans;
    if (!x || (end <= start && kind != SPAN_COLLECTIVE))
        return;
    PUSH(x->a, x->list, x->count, x->cap, ((PlanSpan){kind, step, start, end}));
}

/* The beginning and end of a collective are known once it has ended. */
static void end_collectives(TimeLine *t)
{
    for (int i = 0; t->spans && i < t->spans->count; i++) {
        PlanSpan *x = &t->spans->list[i];
        if (x->kind != SPAN_COLLECTIVE)
            continue;
        int job = (int)x->end;
        x->end = clock_end(t->clock, job);
        x->start = clock_begin(t->clock, job);
    }
}

/* ---- loops ---- */

/* When an iteration of a loop begins: the queues, and what its collectives were exposed before. */
typedef struct IterationStart {
    double at[MAX_QUEUE], *exposed;
} IterationStart;

static void start_iteration(const TimeLine *t, int from, int to, IterationStart *x)
{
    for (int q = 0; q < MAX_QUEUE; q++)
        x->at[q] = clock_at(t->clock, (Queue)q);
    for (int i = from; i < to; i++)
        x->exposed[i - from] = t->exposed[i];
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
        t->ended[i] += last[t->p->step[i].queue] * iterations;
        t->exposed[i] += (t->exposed[i] - before->exposed[i - from]) * iterations;
    }
}

static void follow(TimeLine *t, int from, int to);

static void follow_loop(TimeLine *t, int begin)
{
    const Step *s = &t->p->step[begin];
    int64_t count = MIN(s->count, FOLLOWED);
    IterationStart last = {.exposed = NEWN(t->tmp, double, s->end - begin)};
    for (int64_t k = 0; k < count; k++) {
        start_iteration(t, begin, s->end, &last);
        follow(t, begin + 1, s->end);
    }
    if (s->count <= count)
        return;
    double now = clock_at(t->clock, s->queue);
    skip(t, begin, s->end, &last, (double)(s->count - count));
    note(t, SPAN_LATER, begin, now, clock_at(t->clock, s->queue));
}

/* ---- steps ---- */

static void see_exposed(void *arg, int job, double sec)
{
    TimeLine *t = arg;
    t->exposed[t->of[job]] += sec;
}

/* A collective runs beside its queue, which goes on where another step waits for it. */
static double begin_collective(TimeLine *t, int i, double begin)
{
    const Step *s = &t->p->step[i];
    Group where = node_group(t->p->machine, t->p->g->mesh, s->node);
    const char *group = s->node->attr[attr_index(s->node->op, "group")].s;
    t->job[i] = clock_start(t->clock, group, &where, begin, s->sec);
    PUSH(t->tmp, t->of, t->nof, t->capof, i);
    CHECK(t->nof == t->job[i] + 1);
    note(t, SPAN_COLLECTIVE, i, begin, t->job[i]);
    return t->apart[i] ? begin : clock_wait(t->clock, t->job[i], begin, see_exposed, t);
}

/* The end of a step that begins when its queue is free and what it waits for has ended. */
static double run_step(TimeLine *t, int i)
{
    const Step *s = &t->p->step[i];
    double begin = clock_at(t->clock, s->queue), end;
    bool collective = s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE;
    for (int k = 0; k < s->nwait; k++)
        begin = MAX(begin, t->ended[s->wait[k]]);
    if (!collective && t->start[i] < 0) {
        end = clock_run(t->clock, s->queue, begin, s->sec);
        note(t, SPAN_CALL, i, end - s->sec, end);
        return end;
    }
    end = collective ? begin_collective(t, i, begin)
                     : clock_wait(t->clock, t->job[t->start[i]], begin, see_exposed, t);
    note(t, SPAN_EXPOSED, collective ? i : t->start[i], begin, end);
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

double plan_times(const Plan *p, Arena *tmp, double *exposed, PlanSpans *spans)
{
    TimeLine t = {.p = p,
                  .tmp = tmp,
                  .clock = clock_new(tmp),
                  .ended = NEWN(tmp, double, p->nstep),
                  .exposed = exposed,
                  .spans = spans};
    find_starts(&t);
    follow(&t, 0, p->nstep);
    end_collectives(&t);
    return clock_last(t.clock);
}
