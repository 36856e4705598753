/* The running half of each device, by device.def; and what those in the host's memory share. */
#define _GNU_SOURCE /* madvise */
#include "exec.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE(n, ...) &driver_##n,
static const Driver *const drivers[NDEVICE] = {
#include "../op/device.def"
};
#undef DEVICE

const Driver *driver_of(const Device *d)
{
    return drivers[d->id];
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

void memory_copy(void *to, const void *from, int64_t nbytes)
{
    memcpy(to, from, (size_t)nbytes);
}

void memory_fill(void *to, uint8_t byte, int64_t nbytes)
{
    memset(to, byte, (size_t)nbytes);
}

static bool all_bytes(const char *p, int64_t n, uint8_t byte)
{
    return n <= 0 || ((uint8_t)p[0] == byte && !memcmp(p, p + 1, (size_t)n - 1));
}

int64_t memory_high(const char *p, uint8_t byte, int64_t nbytes)
{
    if (all_bytes(p, nbytes, byte))
        return 0;
    while (all_bytes(p + nbytes - PLAN_ALIGN, PLAN_ALIGN, byte))
        nbytes -= PLAN_ALIGN;
    return nbytes;
}
