/* Answers that threads of one process find once (share.c), also where the one that looks for it
 * fails; addresses of buffers that several ranks have alike are searched once (addresses.c). */
#include "../../src/place/place.h"
#include "../../src/plan/plan.h"
#include "../shared/test.h"

enum { THREADS = 4 };

/* One thread's own context. */
typedef struct Self {
    pthread_t thread;
    Ctx ctx;
    Share *share;
    int i;
    intptr_t wrong;
    int64_t *offset;
} Self;

static void in_threads(Self *self, Share *share, void *(*run)(void *arg))
{
    for (int i = 0; i < THREADS; i++) {
        self[i] = (Self){.share = share, .ctx.share = share, .i = i};
        CHECK(!pthread_create(&self[i].thread, NULL, run, &self[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(self[i].thread, NULL);
        EXPECT(!self[i].wrong);
    }
}

/* ---- answers ---- */

enum { ANSWERS = 50, VALUES = 3 };

/* Another thread finds what one does not. */
static void *share_all(void *arg)
{
    Self *self = arg;
    for (int i = 0; i < ANSWERS; i++) {
        const int key[2] = {i % 2, i / 2};
        int value[VALUES] = {0};
        while (!share_get(self->share, key, sizeof key, value, sizeof value)) {
            const bool lost = i % 7 == 3 && !value[0];
            for (int k = 0; k < VALUES; k++)
                value[k] = i + k;
            share_put(self->share, key, sizeof key, lost ? NULL : value, sizeof value);
            if (!lost)
                break;
        }
        for (int k = 0; k < VALUES; k++)
            self->wrong += value[k] != i + k;
    }
    return NULL;
}

static void test_answers(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Share *share = share_new(a);
    Self self[THREADS];
    int found, taken;
    in_threads(self, share, share_all);
    share_count(share, &found, &taken);
    EXPECT(found == ANSWERS && taken == (THREADS - 1) * ANSWERS);
    arena_free(a);
    ctx_end(&ctx);
}

/* ---- fails ---- */

typedef struct Filling {
    Self *self;
    int value;
} Filling;

static void fill(void *arg)
{
    Filling *x = arg;
    if (x->self->i < THREADS - 1)
        fail(&x->self->ctx, TN_FIT, "thread %d has none", x->self->i);
    x->value = 7;
}

static void fill_once(void *arg)
{
    Filling *x = arg;
    share_once(&x->self->ctx, "one", 3, &x->value, sizeof x->value, fill, x);
}

/* All but the last thread fail, or take what that has found. */
static void *share_failing(void *arg)
{
    Filling x = {.self = arg};
    const Code code = ctx_try(&x.self->ctx, fill_once, &x);
    char message[40];
    snprintf(message, sizeof message, "thread %d has none", x.self->i);
    x.self->wrong =
        code ? code != TN_FIT || strcmp(x.self->ctx.message, message) != 0 : x.value != 7;
    return NULL;
}

static void test_failing(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Self self[THREADS];
    in_threads(self, share_new(a), share_failing);
    Filling alone = {.self = &self[THREADS - 1]};
    alone.self->ctx.share = NULL;
    fill_once(&alone);
    EXPECT(alone.value == 7);
    arena_free(a);
    ctx_end(&ctx);
}

/* ---- addresses ---- */

enum { BUFFERS = 200 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int searches;

PlaceResult __real_place_on(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort);
PlaceResult __wrap_place_on(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort);

PlaceResult __wrap_place_on(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort)
{
    pthread_mutex_lock(&lock);
    searches++;
    pthread_mutex_unlock(&lock);
    return __real_place_on(tmp, buf, n, capacity, effort);
}

static int draw(int i, uint32_t which, int below)
{
    return (int)((float)below * random_uniform(3, which, 0, (uint64_t)i)) % below;
}

/* Storages that fill a rectangle, into which it was cut: greedy orders waste some bytes. */
static Plan *storages(Arena *a)
{
    Plan *p = NEW(a, Plan);
    *p = (Plan){.g = graph_new(a, "g"), .device = device_at(DEVICE_cpu)};
    p->storage = NEWN(a, Storage, BUFFERS);
    p->storage[p->nstorage++] = (Storage){.nbytes = 64 << 12, .end = 1 << 8};
    for (int i = 0; p->nstorage < BUFFERS; i++) {
        Storage *x = &p->storage[draw(i, 0, p->nstorage)], *y = &p->storage[p->nstorage];
        const int width = x->end - x->start, n = (int)(x->nbytes / 64);
        const bool before = draw(i, 1, 2);
        if (before ? width < 2 : n < 2)
            continue;
        *y = *x;
        if (before)
            x->end = y->start = x->start + 1 + draw(i, 2, width - 1);
        else
            y->nbytes -= x->nbytes = 64 * (1 + draw(i, 2, n - 1));
        p->nstorage++;
    }
    return p;
}

static void *place_storages(void *arg)
{
    Self *self = arg;
    Arena *a = arena_new(&self->ctx);
    Plan *p = storages(a);
    plan_place(p, 1, 0, NULL);
    self->offset = malloc(BUFFERS * sizeof *self->offset);
    CHECK(self->offset);
    for (int i = 0; i < BUFFERS; i++)
        self->offset[i] = p->storage[i].offset;
    arena_free(a);
    ctx_end(&self->ctx);
    return NULL;
}

static void test_addresses(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Self alone = {0}, self[THREADS];
    place_storages(&alone);
    EXPECT(searches == 1);
    in_threads(self, share_new(a), place_storages);
    EXPECT(searches == 2);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(!memcmp(self[i].offset, alone.offset, BUFFERS * sizeof *alone.offset));
        free(self[i].offset);
    }
    free(alone.offset);
    arena_free(a);
    ctx_end(&ctx);
}

int main(void)
{
    test_answers();
    test_failing();
    test_addresses();
    return test_report();
}
