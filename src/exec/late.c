/* Collectives of a program whose work is given to streams: what comm does begins when the stream is
 * there, as its operands are made by what the stream has before, and not when the step is given. So
 * a step leaves its call, with the addresses of this iteration, in a place of its own, and the
 * device calls back from there: a start returns at once, a wait holds the stream until the job has
 * ended. A run that is repeated as a whole finds the places as they were.
 *
 * Callbacks of a program come one after the other, in the order of its steps: all are of the queue
 * of kernels. After one that has failed the others do nothing, and kernels go on with whatever was
 * in memory: so its reason is the run's, not that of a kernel behind it. */
#include "exec.h"

#include <string.h>

typedef struct LateCall {
    Program *x;
    int step;
    Call call; /* with tensors of its own */
} LateCall;

struct Late {
    LateCall *call;
    int count, given; /* that a run has, and that this one has given so far */
    bool failed;
    char message[RUN_MESSAGE];
};

static bool talks(const Step *s)
{
    return s->kind == STEP_CALL &&
           (s->node->op->class == CLASS_COLLECTIVE || node_waits_for(s->node));
}

/* The number of times that a run comes to steps that talk. */
static int count_times(const Plan *p)
{
    int64_t times[TN_MAX_DEPTH + 1] = {1}, count = 0;
    int depth = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP) {
            times[depth + 1] = times[depth] * s->count;
            depth++;
        }
        depth -= s->kind == STEP_END;
        count += talks(s) ? times[depth] : 0;
    }
    CHECK(count < INT32_MAX);
    return (int)count;
}

void late_prepare(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    int count = count_times(p), most = 0;
    if (!x->driver->work->later)
        return;
    for (int i = 0; i < p->nstep; i++)
        most = talks(&p->step[i]) ? MAX(most, p->step[i].narg) : most;
    Late *l = x->late = NEW(a, Late);
    l->count = count;
    l->call = NEWN(a, LateCall, count);
    for (int i = 0; i < count; i++)
        l->call[i] = (LateCall){.x = x, .call.in = NEWN(a, Tensor, most)};
}

static void call_back(void *arg)
{
    LateCall *c = arg;
    Late *l = c->x->late;
    if (!l->failed)
        l->failed = collective_step(c->x, c->step, &c->call, l->message);
}

void late_begin(Program *x)
{
    if (x->late)
        x->late->given = 0;
}

int late_give(Program *x, void *stream, int step, const Call *c, char *message)
{
    Late *l = x->late;
    CHECK(l->given < l->count);
    LateCall *k = &l->call[l->given++];
    Tensor *in = k->call.in, *out = in + c->nin;
    memcpy(in, c->in, sizeof *in * (size_t)c->nin);
    memcpy(out, c->out, sizeof *out * (size_t)c->nout);
    k->step = step;
    k->call = *c;
    k->call.in = in;
    k->call.out = out;
    if (x->driver->work->later(stream, call_back, k))
        return 0;
    snprintf(message, RUN_MESSAGE, "%s %%%s: the device calls nothing back", c->node->op->name,
             c->node->out[0]->name);
    return -1;
}

int late_end(Program *x, int bad)
{
    Late *l = x->late;
    if (!l || !l->failed)
        return bad;
    l->failed = false;
    memcpy(x->message, l->message, RUN_MESSAGE);
    return -1;
}
