/* cpu: kernels compute in the host's memory. The one queue is the thread that runs the program:
 * what it is given is done when launch() returns, so there is nothing to wait for. */
#include "exec.h"

static int map(Memory *m)
{
    return memory_map(m, 0);
}

static Queues *open(Arena *a, int number)
{
    (void)number;
    return NEW(a, Queues);
}

static bool launch(Queues *q, Queue to, const Work *w)
{
    (void)to;
    q->failed = q->failed || w->run(w, q->message);
    return !q->failed;
}

static void record(Queues *q, Queue in, Event *e)
{
    (void)q, (void)in, (void)e;
}

const Driver driver_cpu = {
    .available = memory_available,
    .map = map,
    .unmap = memory_unmap,
    .open = open,
    .launch = launch,
    .record = record,
    .wait = record,
    .finish = queues_end,
    .work = &host_work,
};
