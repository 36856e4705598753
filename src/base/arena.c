/* Arenas: a list of blocks, each twice as large as the last up to a limit; an allocation advances a
 * pointer. Deferred calls are in a list of their own and run when the arena is reset. */
#include "base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ALIGN = 16,
    FIRST_BLOCK = 4096,
    LAST_BLOCK = 1 << 20,
    LEAST_SPARE = 1 << 16, /* of a block that a spare one may be instead */
    FIRST_LIST = 64,
    LEAST_MAPPED = 1 << 16, /* bytes: less is cheaper to clear than to map */
    MAPPED_ARRAYS = 16,     /* for so many like the first there is room in a mapping */
    MOST_ROOM = 1 << 24,    /* but no more than so many bytes */
};

typedef struct ArenaBlock {
    struct ArenaBlock *next;
    size_t used, size;
    _Alignas(ALIGN) char data[];
} ArenaBlock;

typedef struct Defer {
    struct Defer *next;
    void (*drop)(void *);
    void *what;
} Defer;

struct Arena {
    Ctx *ctx;
    ArenaBlock *block;
    Defer *defer;
    char *mapped; /* what is left of the last mapping */
    size_t left;
};

Arena *arena_new(Ctx *ctx)
{
    Arena *a = calloc(1, sizeof *a);
    if (a)
        a->ctx = ctx;
    return a;
}

Ctx *arena_ctx(const Arena *a)
{
    return a->ctx;
}

static ArenaBlock *new_block(Ctx *c, size_t size)
{
    ArenaBlock *b = size == LAST_BLOCK ? c->spare : NULL;
    if (b)
        c->spare = b->next;
    return b ? b : malloc(sizeof *b + size);
}

static void drop_block(Ctx *c, ArenaBlock *b)
{
    if (c->keepers && b->size == LAST_BLOCK) {
        b->next = c->spare;
        c->spare = b;
    } else {
        free(b);
    }
}

static void stop_keeping(void *context)
{
    Ctx *c = context;
    c->keepers--;
    for (ArenaBlock *b; !c->keepers && (b = c->spare);) {
        c->spare = b->next;
        free(b);
    }
}

void arena_keep_blocks(Arena *with)
{
    arena_defer(with, stop_keeping, with->ctx);
    with->ctx->keepers++;
}

static void add_block(Arena *a, size_t least)
{
    size_t size = a->block ? MIN(a->block->size * 2, (size_t)LAST_BLOCK) : (size_t)FIRST_BLOCK;
    size = MAX(size, least);
    if (a->ctx && a->ctx->spare && size >= LEAST_SPARE && size < LAST_BLOCK)
        size = LAST_BLOCK;
    ArenaBlock *b = new_block(a->ctx, size);
    if (!b)
        fail(a->ctx, TN_FAIL, "out of memory: %zu bytes", size);
    b->next = a->block;
    b->used = 0;
    b->size = size;
    a->block = b;
}

void *arena_alloc(Arena *a, size_t nbytes)
{
    if (nbytes > SIZE_MAX / 2)
        fail(a->ctx, TN_FAIL, "out of memory: %zu bytes", nbytes);
    size_t need = (nbytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!a->block || a->block->size - a->block->used < need)
        add_block(a, need);
    void *p = a->block->data + a->block->used;
    a->block->used += need;
    return memset(p, 0, need);
}

typedef struct Mapped {
    void *p;
    size_t nbytes;
} Mapped;

static void unmap(void *mapped)
{
    const Mapped *m = mapped;
    munmap(m->p, m->nbytes);
}

static void map(Arena *a, size_t nbytes)
{
    Mapped *m = NEW(a, Mapped);
    Defer *d = NEW(a, Defer);
    *m = (Mapped){mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                  nbytes};
    if (m->p == MAP_FAILED)
        fail(a->ctx, TN_FAIL, "out of memory: %zu bytes", nbytes);
    madvise(m->p, nbytes, MADV_NOHUGEPAGE); /* else one byte that is written clears 2 MiB */
    *d = (Defer){a->defer, unmap, m};
    a->defer = d;
    a->mapped = m->p;
    a->left = nbytes;
}

void *arena_sparse(Arena *a, size_t nbytes)
{
    size_t need = (nbytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (nbytes < LEAST_MAPPED)
        return arena_alloc(a, nbytes);
    if (nbytes > SIZE_MAX / 2)
        fail(a->ctx, TN_FAIL, "out of memory: %zu bytes", nbytes);
    if (a->left < need)
        map(a, MAX(need, MIN(need * MAPPED_ARRAYS, (size_t)MOST_ROOM)));
    void *p = a->mapped;
    a->mapped += need;
    a->left -= need;
    return p;
}

char *arena_strndup(Arena *a, const char *s, size_t n)
{
    char *copy = arena_alloc(a, n + 1);
    memcpy(copy, s, n);
    return copy;
}

char *arena_strdup(Arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

const char *arena_count(Arena *a, int64_t n, const char *noun)
{
    const size_t size = strlen(noun) + 24;
    return count_text(n, noun, arena_alloc(a, size), size);
}

char *arena_printf(Arena *a, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(n >= 0);
    char *s = arena_alloc(a, (size_t)n + 1);
    va_start(args, format);
    vsnprintf(s, (size_t)n + 1, format, args);
    va_end(args);
    return s;
}

void arena_defer(Arena *a, void (*drop)(void *), void *what)
{
    Defer *d = NEW(a, Defer);
    *d = (Defer){a->defer, drop, what};
    a->defer = d;
}

static void free_inner(void *a)
{
    arena_free(a);
}

Arena *arena_tmp(Arena *with)
{
    Arena *a = arena_new(with->ctx);
    if (!a)
        fail(with->ctx, TN_FAIL, "out of memory");
    arena_defer(with, free_inner, a);
    return a;
}

void arena_reset(Arena *a)
{
    a->mapped = NULL;
    a->left = 0;
    while (a->defer) {
        Defer *d = a->defer;
        a->defer = d->next;
        d->drop(d->what);
    }
    while (a->block) {
        ArenaBlock *b = a->block;
        a->block = b->next;
        drop_block(a->ctx, b);
    }
}

void arena_free(Arena *a)
{
    if (!a)
        return;
    arena_reset(a);
    free(a);
}

void *arena_grow(Arena *a, void *array, int count, int *cap, size_t size)
{
    if (count < *cap)
        return array;
    int bigger = *cap ? *cap * 2 : MAX(1, FIRST_LIST / (int)size);
    void *copy = arena_alloc(a, (size_t)bigger * size);
    if (count)
        memcpy(copy, array, (size_t)count * size);
    *cap = bigger;
    return copy;
}
