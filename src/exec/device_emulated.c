/* emulated: behaves as a GPU does, on the processor, so that spaces, queues and events are tested
 * where there is no GPU.
 *
 * The address of device memory is that of a mapping that nobody may touch; work finds the memory in
 * another mapping. Each queue is a thread that does what a bounded ring holds, in order, after
 * random pauses. A record notes how often it was reached; a wait ends when the event has been
 * reached as often as it had been recorded when the wait was given. Whatever fails first ends the
 * run: what is left in the rings is passed over, without waiting.
 *
 * One lock guards all that threads share, but for the work itself. The pauses are set by
 * TENON_EMULATED_DELAY=USEC[,SEED]: each piece of work starts up to USEC microseconds later. A
 * process that was forked has the programs but not the threads: running one fails there. */
#include "exec.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RING = 256 };

typedef enum { ITEM_WORK, ITEM_RECORD, ITEM_WAIT } ItemKind;

typedef struct QueueItem {
    ItemKind kind;
    Work work;
    Event *event;
    uint64_t number; /* of the event */
} QueueItem;

typedef struct Emulated Emulated;

typedef struct Worker {
    Emulated *e;
    Queue queue;
    pthread_t thread;
    pthread_cond_t wake; /* something was put, or an event reached */
    QueueItem ring[RING];
    int64_t nput, ndone;
    char message[RUN_MESSAGE]; /* the thread's own */
} Worker;

struct Emulated {
    Queues queues; /* first: what callers have of it */
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a ring has room, or is empty */
    Worker worker[MAX_QUEUE];
    int nworker; /* threads that were started */
    bool stop;
    pid_t process;
};

/* ---- memory ---- */

static int map(Memory *m)
{
    int why = memory_map(m, GUARD);
    if (why || m->space == SPACE_HOST)
        return why;
    m->nhidden = m->nmapped;
    m->hidden = mmap(NULL, m->nhidden, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->hidden == MAP_FAILED) {
        why = errno;
        m->hidden = NULL;
        memory_unmap(m);
        return why;
    }
    m->at = m->hidden + (m->work_at - m->mapped);
    m->on_host = false;
    return 0;
}

/* ---- the threads ---- */

static void wake_all(Emulated *e)
{
    for (int i = 0; i < e->nworker; i++)
        pthread_cond_signal(&e->worker[i].wake);
}

static void pause_before(const Worker *w)
{
    const Delay *d = &w->e->queues.delay;
    uint64_t number = (uint64_t)w->ndone;
    if (d->queues && !(d->queues >> w->queue & 1))
        return;
    if (d->usec <= 0 || random_uniform(d->seed, w->queue, 0, number) * (float)d->every >= 1)
        return;
    int64_t nsec = (int64_t)(1e3 * (double)d->usec * random_uniform(d->seed, w->queue, 1, number));
    struct timespec t = {nsec / 1000000000, nsec % 1000000000};
    nanosleep(&t, NULL);
}

/* Unlocked while it runs. */
static void work(Worker *w, const QueueItem *item)
{
    Emulated *e = w->e;
    pthread_mutex_unlock(&e->lock);
    pause_before(w);
    int bad = item->work.run(&item->work, w->message);
    pthread_mutex_lock(&e->lock);
    if (!bad || e->queues.failed)
        return;
    e->queues.failed = true;
    memcpy(e->queues.message, w->message, RUN_MESSAGE);
    wake_all(e);
}

static void serve_item(Worker *w, const QueueItem *item)
{
    Emulated *e = w->e;
    switch (item->kind) {
    case ITEM_WORK:
        if (!e->queues.failed)
            work(w, item);
        break;
    case ITEM_RECORD:
        item->event->done = item->number;
        wake_all(e);
        break;
    case ITEM_WAIT:
        while (item->event->done < item->number && !e->queues.failed)
            pthread_cond_wait(&w->wake, &e->lock);
    }
}

static void *serve(void *arg)
{
    Worker *w = arg;
    Emulated *e = w->e;
    pthread_mutex_lock(&e->lock);
    while (w->ndone < w->nput || !e->stop) {
        if (w->ndone == w->nput) {
            pthread_cond_wait(&w->wake, &e->lock);
            continue;
        }
        serve_item(w, &w->ring[w->ndone % RING]);
        w->ndone++;
        if (w->ndone == w->nput || w->nput - w->ndone == RING / 2)
            pthread_cond_signal(&e->progress);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- opening ---- */

static void close_queues(void *arg)
{
    Emulated *e = arg;
    if (e->process != getpid())
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    wake_all(e);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->nworker; i++)
        pthread_join(e->worker[i].thread, NULL);
    for (int i = 0; i < MAX_QUEUE; i++)
        pthread_cond_destroy(&e->worker[i].wake);
    pthread_cond_destroy(&e->progress);
    pthread_mutex_destroy(&e->lock);
}

static void read_delay(Ctx *ctx, Delay *d)
{
    *d = (Delay){.usec = 20, .every = 16};
    if (delay_read(ctx, "TENON_EMULATED_DELAY", &d->usec, &d->seed))
        d->every = 1;
}

static Queues *open_queues(Arena *a, int number)
{
    (void)number;
    Emulated *e = NEW(a, Emulated);
    read_delay(arena_ctx(a), &e->queues.delay);
    e->process = getpid();
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->progress, NULL);
    for (int i = 0; i < MAX_QUEUE; i++) {
        e->worker[i].e = e;
        e->worker[i].queue = (Queue)i;
        pthread_cond_init(&e->worker[i].wake, NULL);
    }
    arena_defer(a, close_queues, e);
    for (int i = 0; i < MAX_QUEUE; i++) {
        thread_begin(arena_ctx(a), "emulated", &e->worker[i].thread, serve, &e->worker[i]);
        pthread_mutex_lock(&e->lock);
        e->nworker++;
        pthread_mutex_unlock(&e->lock);
    }
    return &e->queues;
}

/* ---- giving work ---- */

static bool is_lost(const Emulated *e)
{
    return e->process != getpid();
}

/* Returns whether nothing has failed. */
static bool put(Emulated *e, Queue to, const QueueItem *item)
{
    Worker *w = &e->worker[to];
    if (is_lost(e))
        return false;
    pthread_mutex_lock(&e->lock);
    while (w->nput - w->ndone == RING)
        pthread_cond_wait(&e->progress, &e->lock);
    w->ring[w->nput++ % RING] = *item;
    pthread_cond_signal(&w->wake);
    bool good = !e->queues.failed;
    pthread_mutex_unlock(&e->lock);
    return good;
}

static bool launch(Queues *q, Queue to, const Work *w)
{
    return put((Emulated *)q, to, &(QueueItem){.kind = ITEM_WORK, .work = *w});
}

static void record(Queues *q, Queue in, Event *e)
{
    put((Emulated *)q, in, &(QueueItem){.kind = ITEM_RECORD, .event = e, .number = ++e->recorded});
}

static void wait_for(Queues *q, Queue in, Event *e)
{
    put((Emulated *)q, in, &(QueueItem){.kind = ITEM_WAIT, .event = e, .number = e->recorded});
}

static int finish(Queues *q, char *message)
{
    Emulated *e = (Emulated *)q;
    if (is_lost(e)) {
        snprintf(message, RUN_MESSAGE, "the queues of a device do not outlive a fork()");
        return -1;
    }
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < MAX_QUEUE; i++)
        while (e->worker[i].ndone < e->worker[i].nput)
            pthread_cond_wait(&e->progress, &e->lock);
    int bad = queues_end(q, message);
    pthread_mutex_unlock(&e->lock);
    return bad;
}

const Driver driver_emulated = {
    .available = memory_available,
    .map = map,
    .unmap = memory_unmap,
    .open = open_queues,
    .launch = launch,
    .record = record,
    .wait = wait_for,
    .finish = finish,
    .work = &host_work,
};
