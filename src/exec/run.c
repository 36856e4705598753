/* A run: the calling thread walks through the plan's steps, loops unrolled, and gives each to its
 * queue, after the events that it waits for; then it waits until all queues are done. A step's
 * addresses are found where it runs: an argument's offset and, for each enclosing loop, a stride
 * times the iteration. A run allocates nothing. */
#include "exec.h"

#include <string.h>

/* ---- on the queues ---- */

bool port_set_once(const PlanPort *port) /* no output has such a role */
{
    return role_scalar(port->role) || port->role == ROLE_SEED;
}

/* The first work of a run on each queue: copies have a thread, kernels as many as was planned. */
static int start_compute(const Work *w, char *message)
{
    (void)message;
    const Program *x = w->x;
    const Plan *p = x->plan;
    const Fault *fault = x->queues->fault;
    par_set_threads(p->nthread);
    if (fault && fault->stop) /* before all else: other queues wait for what is given here */
        x->driver->work->fill(w->stream, fault->stop, 0, sizeof *fault->stop);
    for (int i = 0; i < p->nin; i++) {
        if (port_set_once(&p->in[i]))
            x->driver->work->copy(w->stream, program_storage(x, p->in[i].storage),
                                  program_data(x, &p->in[i]), type_nbytes(&p->in[i].type));
    }
    return 0;
}

static int start_copies(const Work *w, char *message)
{
    (void)w, (void)message;
    par_set_threads(1);
    return 0;
}

static char *address(const Program *x, const Arg *a, const Work *w)
{
    int64_t at = a->offset;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        at += a->loop_stride[d] * w->iteration[d];
    return program_storage(x, a->storage) + at;
}

static void say(char *message, const Step *s, const char *what)
{
    snprintf(message, RUN_MESSAGE, "%s%s%s: %.200s", s->node->op->name, s->node->nout ? " %" : "",
             s->node->nout ? s->node->out[0]->name : "", what);
}

/* Whether a result of the step's outlives the run. */
static bool renews(const Plan *p, const Step *s)
{
    for (int k = s->call.nin; k < s->call.nin + s->call.nout; k++)
        if (p->storage[s->arg[k].storage].persistent)
            return true;
    return false;
}

/* The step's call, with its addresses. */
static Call *call_at(const Work *w, int step)
{
    Program *x = w->x;
    const Step *s = &x->plan->step[step];
    Call *c = &x->call[step];
    for (int k = 0; k < c->nin; k++)
        c->in[k].data = address(x, &s->arg[k], w);
    for (int k = 0; k < c->nout; k++)
        c->out[k].data = address(x, &s->arg[c->nin + k], w);
    if (s->work >= 0)
        c->work = program_storage(x, s->work);
    c->stream = w->stream;
    c->fault = x->queues->fault;
    c->stop = c->fault && renews(x->plan, s) ? c->fault->stop : NULL;
    c->step = step;
    return c;
}

/* Step and those after it that run as one. */
static int run_joined(const Work *w, const Kernel *k, int n)
{
    Call **c = w->x->together;
    for (int i = 0; i < n; i++)
        c[i] = call_at(w, w->step + i);
    return k->run_all(c, n);
}

/* A collective or its wait: where its stream comes to it, or here. */
static int talk(const Work *w, const Call *c, char *message)
{
    Program *x = w->x;
    const StreamWork *s = x->driver->work;
    bool device = collective_on_device(x, w->step);
    if (!device && x->late && !x->traced && !x->check)
        return late_give(x, w->stream, w->step, c, message);
    if (!device && s->wait_for)
        s->wait_for(w->stream);
    return collective_step(x, w->step, c, message);
}

static int call(const Work *w, char *message)
{
    Program *x = w->x;
    const Step *s = &x->plan->step[w->step];
    bool rank = x->comm && (node_waits_for(s->node) || s->node->op->class == CLASS_COLLECTIVE);
    bool each =
        !x->joined || !s->kernel || !s->kernel->run_all || x->traced || x->check || x->hashes;
    if (!each && x->joined[w->step] != 1) {
        int n = x->joined[w->step];
        if (!n || !run_joined(w, s->kernel, n))
            return 0;
        say(message, s, x->call[w->step].message);
        return -1;
    }
    Call *c = call_at(w, w->step);
    if (rank)
        return talk(w, c, message);
    int bad = s->kernel ? s->kernel->run(c) : s->node->op->rules->ref(c);
    if (!bad)
        return 0;
    say(message, s, c->message);
    return -1;
}

static int run_work(const Work *w, char *message)
{
    Program *x = w->x;
    const Step *s = &x->plan->step[w->step];
    double start = x->traced ? trace_now(x->trace) : 0;
    switch (s->kind) {
    case STEP_CALL:
        if (call(w, message))
            return -1;
        break;
    case STEP_ZERO: x->driver->work->fill(w->stream, address(x, s->arg, w), 0, s->nbytes); break;
    case STEP_OFFSET:
        x->driver->work->store(w->stream, (int64_t *)(void *)address(x, s->arg, w),
                               w->iteration[s->depth] * s->by);
        break;
    case STEP_LOOP:
    case STEP_END: break; /* to be recorded */
    }
    if (x->hashes)
        hash_step(w);
    if (x->traced && x->driver->work->wait_for)
        x->driver->work->wait_for(w->stream);
    if (x->traced)
        trace_step(x->trace, x->plan, w->step, w->iteration[s->depth], w->jumps, start);
    return x->check ? check_step(w, message) : 0;
}

/* ---- in the caller's thread ---- */

typedef struct Loops {
    int64_t left[TN_MAX_DEPTH];
    int depth;
} Loops;

/* Loops from that depth on are in their last iteration. */
static int last_from(const Loops *t)
{
    int d = t->depth;
    while (d > 0 && t->left[d - 1] == 1)
        d--;
    return d;
}

/* Before the step is given to its queue. */
static void enter(const Step *s, Work *w, Loops *t)
{
    w->jumps = false;
    if (s->kind == STEP_LOOP) {
        w->iteration[s->depth] = s->first;
        t->left[s->depth] = s->count;
        t->depth = s->depth + 1;
    } else if (s->kind == STEP_END) {
        w->jumps = t->left[s->depth] > 1;
    }
}

/* Returns the step after which the run goes on. */
static int leave(const Plan *p, int i, Work *w, Loops *t)
{
    const Step *s = &p->step[i];
    if (s->kind != STEP_END)
        return i;
    if (--t->left[s->depth] > 0) {
        w->iteration[s->depth] += p->step[s->end].by;
        return s->end;
    }
    w->iteration[s->depth] = 0;
    t->depth = s->depth;
    return i;
}

/* Stops early where something has failed. */
static void give_steps(Program *x)
{
    const Plan *p = x->plan;
    const Driver *d = x->driver;
    bool all = x->traced || x->check;
    Work w = {.run = run_work, .x = x};
    Loops t = {.depth = 0};
    for (int i = 0; i < p->nstep; i = leave(p, i, &w, &t) + 1) {
        const Step *s = &p->step[i];
        enter(s, &w, &t);
        for (int k = 0; k < s->nwait; k++)
            d->wait(x->queues, s->queue, &x->event[s->wait[k]]);
        w.step = i;
        w.last = x->check ? last_from(&t) : 0;
        bool runs = all || (s->kind != STEP_LOOP && s->kind != STEP_END);
        if (runs && !d->launch(x->queues, s->queue, &w))
            return;
        if (s->awaited)
            d->record(x->queues, s->queue, &x->event[i]);
    }
}

static void give_starts(Program *x)
{
    const Driver *d = x->driver;
    Event *start = &x->event[x->plan->nstep];
    d->launch(x->queues, QUEUE_COMPUTE, &(Work){.run = start_compute, .x = x});
    if (device_is_host(x->plan->device))
        return;
    d->record(x->queues, QUEUE_COMPUTE, start);
    for (int i = QUEUE_COMPUTE + 1; i < MAX_QUEUE; i++) {
        d->wait(x->queues, (Queue)i, start);
        d->launch(x->queues, (Queue)i, &(Work){.run = start_copies, .x = x});
    }
}

/* Anew, or as it was recorded. */
static void give_run(Program *x)
{
    bool records = x->recording && !x->traced && !x->check;
    if (records && !x->driver->recorder->begin(x->queues, x->recording))
        return;
    late_begin(x);
    give_starts(x);
    give_steps(x);
    if (!records || x->driver->recorder->end(x->queues, x->recording))
        return;
    late_begin(x);
    give_starts(x);
    give_steps(x);
}

/* Writes what a kernel noted as the run's message, unless ranks have failed; whether one did. */
static bool noted(Program *x)
{
    Fault *f = x->queues->fault;
    bool left = x->queues->left;
    x->queues->left = false;
    if (!f || !f->noted)
        return false;
    if (left) {
        f->noted = 0;
        return true;
    }
    char what[200];
    const Step *s = &x->plan->step[f->step];
    /* formats of the kernel's table, all of long longs */
    snprintf(what, sizeof what, s->kernel->faults[f->what], f->value[0], f->value[1], f->value[2],
             f->value[3]);
    say(x->message, s, what);
    f->noted = 0;
    return true;
}

/* No handler runs on this thread while kernels do; threads of a device have none.
 */
static int run_queues(Program *x)
{
    bool here = device_is_host(x->plan->device);
    sigset_t before;
    if (here) {
        par_set_threads(x->plan->nthread);
        signals_hold(&before);
    }
    x->queues->ranks = x->ranks;
    give_run(x);
    int bad = x->driver->finish(x->queues, x->message);
    x->queues->ranks = NULL;
    if (here)
        signals_release(&before);
    return bad;
}

int program_run(Program *x)
{
    int before = par_threads();
    x->traced = trace_begin(x->trace);
    x->not_finite = NULL;
    if (x->hashes)
        hash_run(x);
    int bad = run_queues(x);
    bad = noted(x) ? -1 : bad;
    bad = late_end(x, bad);
    par_set_threads(before);
    if (x->traced)
        trace_end(x->trace, !bad);
    return bad;
}
