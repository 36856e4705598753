/* share: answers that threads of one process share, as ranks do that plan the same step: the first
 * that asks finds the answer, and the others wait for what it finds. Entries are memory of their
 * own, as a rank's arenas end with its call. Linear in the entries, of which a command has some
 * twenty; keys are bytes, compared in full. */
#include "base.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 64 << 20 }; /* bytes of keys and answers; beyond that each thread finds its own */

typedef struct SharedAnswer {
    struct SharedAnswer *next;
    bool done; /* else a thread is about to find it */
    void *key, *value;
    size_t nkey, size;
} SharedAnswer;

struct Share {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    SharedAnswer *first;
    size_t nbytes;
    int found, taken;
};

static void drop(void *what)
{
    Share *s = what;
    for (SharedAnswer *x = s->first, *next; x; x = next) {
        next = x->next;
        free(x->key);
        free(x->value);
        free(x);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

Share *share_new(Arena *a)
{
    Share *s = NEW(a, Share);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    arena_defer(a, drop, s);
    return s;
}

static SharedAnswer *find(const Share *s, const void *key, size_t nkey)
{
    SharedAnswer *x = s->first;
    while (x && (x->nkey != nkey || memcmp(x->key, key, nkey) != 0))
        x = x->next;
    return x;
}

/* Notes that the caller is about to find it; without memory nobody is told. */
static void begin(Share *s, const void *key, size_t nkey, size_t size)
{
    const bool full = s->nbytes + nkey + size > MOST;
    SharedAnswer *x = full ? NULL : calloc(1, sizeof *x);
    void *copy = x ? malloc(nkey) : NULL;
    if (!copy) {
        free(x);
        return;
    }
    *x = (SharedAnswer){
        .next = s->first, .key = memcpy(copy, key, nkey), .nkey = nkey, .size = size};
    s->first = x;
    s->nbytes += nkey + size;
}

bool share_get(Share *s, const void *key, size_t nkey, void *value, size_t size)
{
    pthread_mutex_lock(&s->lock);
    const SharedAnswer *x = find(s, key, nkey);
    while (x && !x->done) {
        pthread_cond_wait(&s->changed, &s->lock);
        x = find(s, key, nkey);
    }
    const bool known = x && x->size == size;
    if (known)
        memcpy(value, x->value, size);
    s->taken += known;
    if (!x)
        begin(s, key, nkey, size);
    pthread_mutex_unlock(&s->lock);
    return known;
}

static void remove_answer(Share *s, SharedAnswer *x)
{
    SharedAnswer **at = &s->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    s->nbytes -= x->nkey + x->size;
    free(x->key);
    free(x);
}

void share_put(Share *s, const void *key, size_t nkey, const void *value, size_t size)
{
    void *copy = value ? malloc(size) : NULL;
    if (copy)
        memcpy(copy, value, size);
    pthread_mutex_lock(&s->lock);
    s->found += value != NULL;
    SharedAnswer *x = find(s, key, nkey);
    if (x && !x->done && !copy) {
        remove_answer(s, x);
    } else if (x && !x->done) {
        x->value = copy;
        x->done = true;
        copy = NULL;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    free(copy);
}

void share_once(Ctx *ctx, const void *key, size_t nkey, void *value, size_t size,
                void (*fill)(void *arg), void *arg)
{
    Share *s = ctx->share;
    if (!s) {
        fill(arg);
        return;
    }
    if (share_get(s, key, nkey, value, size))
        return;
    const bool failed = ctx_try(ctx, fill, arg) != TN_OK;
    share_put(s, key, nkey, failed ? NULL : value, size);
    if (failed)
        fail_again(ctx, "");
}

void share_count(Share *s, int *found, int *taken)
{
    pthread_mutex_lock(&s->lock);
    *found = s->found;
    *taken = s->taken;
    pthread_mutex_unlock(&s->lock);
}
