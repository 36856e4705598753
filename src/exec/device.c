/* The running half of each device, by device.def; and what those in the host's memory share. */
#define _GNU_SOURCE /* madvise */
#include "exec.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#define DRIVER(n, ...) &driver_##n,
static const Driver *const drivers[NDEVICE] = {DEVICES(DRIVER)};

const Driver *driver_of(const Device *d)
{
    return drivers[d->id];
}

int device_of_rank(int first, int local, int count)
{
    return count > 0 && first < count ? (int)(((int64_t)first + local) % count) : first;
}

int memory_map(Memory *m, size_t edge)
{
    size_t inner = (size_t)m->nbytes + 2 * (size_t)GUARD;
    int allowed = edge ? PROT_NONE : PROT_READ | PROT_WRITE;
    m->nmapped = inner + 2 * edge;
    m->mapped = mmap(NULL, m->nmapped, allowed, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->mapped == MAP_FAILED) {
        m->mapped = NULL;
        return errno;
    }
    if (edge && mprotect(m->mapped + edge, inner, PROT_READ | PROT_WRITE)) {
        int why = errno;
        memory_unmap(m);
        return why;
    }
#ifdef MADV_HUGEPAGE /* one core reads up to twice as fast; where there are none, as before */
    madvise(m->mapped + edge, inner, MADV_HUGEPAGE);
#endif
    m->at = m->work_at = m->mapped + edge + GUARD;
    m->on_host = true;
    return 0;
}

void memory_unmap(Memory *m)
{
    if (m->mapped)
        munmap(m->mapped, m->nmapped);
    if (m->hidden)
        munmap(m->hidden, m->nhidden);
    m->mapped = m->hidden = NULL;
}

typedef struct MappedMemory {
    const Driver *driver;
    Memory *m;
} MappedMemory;

static void unmap(void *arg)
{
    const MappedMemory *x = arg;
    x->driver->unmap(x->m);
}

int memory_own(Arena *a, const Driver *d, Memory *m)
{
    MappedMemory *x = NEW(a, MappedMemory);
    *x = (MappedMemory){d, m};
    int why = d->map(m);
    if (!why)
        arena_defer(a, unmap, x);
    return why;
}

static void copy(void *stream, void *to, const void *from, int64_t nbytes)
{
    (void)stream;
    memcpy(to, from, (size_t)nbytes);
}

static void fill(void *stream, void *to, uint8_t byte, int64_t nbytes)
{
    (void)stream;
    memset(to, byte, (size_t)nbytes);
}

static void store(void *stream, int64_t *to, int64_t x)
{
    (void)stream;
    *to = x;
}

static bool all_bytes(const char *p, int64_t n, uint8_t byte)
{
    return n <= 0 || ((uint8_t)p[0] == byte && !memcmp(p, p + 1, (size_t)n - 1));
}

static int64_t high(void *stream, const char *p, uint8_t byte, int64_t nbytes)
{
    (void)stream;
    if (all_bytes(p, nbytes, byte))
        return 0;
    while (all_bytes(p + nbytes - PLAN_ALIGN, PLAN_ALIGN, byte))
        nbytes -= PLAN_ALIGN;
    return nbytes;
}

/* Whether an element consists of poison. */
static bool poisoned(const char *p, int size)
{
    static const uint8_t poison[8] = {POISON, POISON, POISON, POISON,
                                      POISON, POISON, POISON, POISON};
    return !memcmp(p, poison, (size_t)size);
}

static bool any(void *stream, const Tensor *t, Unsound what)
{
    int64_t ix[TN_RANK] = {0};
    int size = dtype_size(t->dtype);
    (void)stream;
    do {
        int64_t at = tensor_index(t, ix);
        if (what == POISONED ? poisoned(t->data + at * size, size) : !isfinite(tensor_get(t, at)))
            return true;
    } while (next_index(t->rank, t->dim, ix));
    return false;
}

const StreamWork host_work = {.copy = copy, .fill = fill, .store = store, .high = high, .any = any};

int64_t memory_available(void)
{
    char line[100];
    long long kib = -1;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = -1;
    if (f)
        fclose(f);
    return kib < 0 ? -1 : kib * 1024;
}

int queues_end(Queues *q, char *message)
{
    if (!q->failed)
        return 0;
    memcpy(message, q->message, RUN_MESSAGE);
    q->failed = false;
    return -1;
}
