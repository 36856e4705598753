/* Reads batches ahead: a thread reads the next AHEAD steps into slots, whose memory is allocated at
 * the start, while the caller computes. A batch is the one that data_train_batch gives, whenever it
 * was read. If a batch cannot be read the thread ends, and the caller that asks for that step reads
 * it itself and gets the error. The thread has a context of its own, since errors unwind; all
 * shared state is under one lock. */
#include "io.h"

#include <string.h>

enum { AHEAD = 2 };

struct DataReader {
    const DataSet *set; /* with the thread's context */
    Ctx ctx;
    uint64_t seed;
    int64_t B, T;
    int64_t nid;          /* of a slot */
    int64_t *slot[AHEAD]; /* step s lies in s % AHEAD: ids, labels, starts */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int64_t next, end; /* steps [next, end) are there */
    bool failed;       /* at step `end`; the thread has ended */
    bool stop;
};

static void read_step(void *arg)
{
    DataReader *r = arg;
    int64_t *ids = r->slot[r->end % AHEAD];
    const DataRow to = {r->T, ids, ids + r->nid, ids + 2 * r->nid};
    data_train_batch(r->set, r->seed, (uint32_t)r->end, r->B, to);
}

static void *read_ahead(void *arg)
{
    DataReader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop && !r->failed) {
        if (r->end - r->next == AHEAD) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock); /* only this thread changes `end` */
        bool failed = ctx_try(&r->ctx, read_step, r) != TN_OK;
        pthread_mutex_lock(&r->lock);
        r->failed = failed;
        r->end += !failed;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void stop(void *arg)
{
    DataReader *r = arg;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

DataReader *data_reader_start(Arena *a, const DataSet *s, uint64_t seed, uint32_t step, int64_t B,
                              int64_t T)
{
    DataReader *r = NEW(a, DataReader);
    r->set = data_mix_copy(a, s, &r->ctx);
    r->seed = seed;
    r->B = B;
    r->T = T;
    r->nid = data_rows(s, B) * T;
    r->next = r->end = step;
    for (int i = 0; i < AHEAD; i++)
        r->slot[i] = NEWN(a, int64_t, 3 * r->nid);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    thread_begin(arena_ctx(a), "data", &r->thread, read_ahead, r);
    arena_defer(a, stop, r);
    return r;
}

bool data_reader_take(DataReader *r, uint64_t seed, uint32_t step, int64_t B, DataRow to)
{
    size_t nbytes = sizeof *to.ids * (size_t)r->nid;
    int64_t *const part[] = {to.ids, to.labels, to.starts};
    pthread_mutex_lock(&r->lock);
    bool mine = step == r->next && seed == r->seed && B == r->B && to.T == r->T;
    while (mine && r->next == r->end && !r->failed)
        pthread_cond_wait(&r->changed, &r->lock);
    bool there = mine && r->next < r->end;
    if (there) {
        for (int i = 0; i < LEN(part); i++)
            if (part[i])
                memcpy(part[i], r->slot[step % AHEAD] + i * r->nid, nbytes);
        r->next++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return there;
}

bool data_reader_full(DataReader *r)
{
    pthread_mutex_lock(&r->lock);
    bool full = r->end - r->next == AHEAD;
    pthread_mutex_unlock(&r->lock);
    return full;
}
