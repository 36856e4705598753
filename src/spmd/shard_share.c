/* shard_share: solutions of sharding problems that ranks of one process share. Each of them comes
 * to the same problems: the first that has one solves it, and the others wait for what it finds.
 * Entries are memory of their own, as a rank's arenas end with its call; a key is a problem's text
 * (solved.c). Linear in the entries, of which a command has some twenty. */
#include "../pass/pass.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct SharedSolution {
    struct SharedSolution *next;
    bool done; /* else a rank is about to find it */
    char *key;
    void *value;
    size_t size;
} SharedSolution;

struct ShardShare {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    SharedSolution *first;
    int solved, taken;
};

static void drop(void *what)
{
    ShardShare *s = what;
    for (SharedSolution *x = s->first, *next; x; x = next) {
        next = x->next;
        free(x->key);
        free(x->value);
        free(x);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

ShardShare *shard_share_new(Arena *a)
{
    ShardShare *s = NEW(a, ShardShare);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    arena_defer(a, drop, s);
    return s;
}

static SharedSolution *find(const ShardShare *s, const char *key)
{
    SharedSolution *x = s->first;
    while (x && strcmp(x->key, key) != 0)
        x = x->next;
    return x;
}

/* Notes that the caller is about to find it; without memory nobody is told. */
static void begin(ShardShare *s, const char *key)
{
    SharedSolution *x = calloc(1, sizeof *x);
    char *copy = x ? strdup(key) : NULL;
    if (!copy) {
        free(x);
        return;
    }
    x->key = copy;
    x->next = s->first;
    s->first = x;
}

bool shard_share_get(ShardShare *s, const char *key, void *value, size_t size)
{
    pthread_mutex_lock(&s->lock);
    const SharedSolution *x = find(s, key);
    while (x && !x->done) {
        pthread_cond_wait(&s->changed, &s->lock);
        x = find(s, key);
    }
    const bool known = x && x->size == size;
    if (known)
        memcpy(value, x->value, size);
    s->taken += known;
    if (!x)
        begin(s, key);
    pthread_mutex_unlock(&s->lock);
    return known;
}

static void unlink_solution(ShardShare *s, SharedSolution *x)
{
    SharedSolution **at = &s->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    free(x->key);
    free(x);
}

void shard_share_put(ShardShare *s, const char *key, const void *value, size_t size)
{
    void *copy = value ? malloc(size) : NULL;
    if (copy)
        memcpy(copy, value, size);
    pthread_mutex_lock(&s->lock);
    s->solved += value != NULL;
    SharedSolution *x = find(s, key);
    if (x && !x->done && !copy) {
        unlink_solution(s, x);
    } else if (x && !x->done) {
        x->value = copy;
        x->size = size;
        x->done = true;
        copy = NULL;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    free(copy);
}

void shard_share_count(ShardShare *s, int *solved, int *taken)
{
    pthread_mutex_lock(&s->lock);
    *solved = s->solved;
    *taken = s->taken;
    pthread_mutex_unlock(&s->lock);
}
