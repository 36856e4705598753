/* A context's memory until it ends: answers that are expensive and always the same, and handles of
 * which one suffices. Keys are bytes, compared in full. Open addressing with linear probing, at
 * most half full; single entries are never removed. */
#include "base.h"

#include <string.h>

struct Remembered {
    const void *key; /* NULL: free */
    size_t nbytes;
    void *what;
};

static struct Remembered *slot(const Memo *m, const void *key, size_t nbytes)
{
    uint64_t i = hash_bytes(key, nbytes, nbytes);
    for (;; i++) {
        struct Remembered *x = &m->entry[i & (uint64_t)(m->cap - 1)];
        if (!x->key || (x->nbytes == nbytes && !memcmp(x->key, key, nbytes)))
            return x;
    }
}

static void grow(Memo *m)
{
    Memo bigger = {.a = m->a, .count = m->count, .cap = m->cap ? m->cap * 2 : 64};
    bigger.entry = NEWN(m->a, struct Remembered, bigger.cap);
    for (int i = 0; i < m->cap; i++)
        if (m->entry[i].key)
            *slot(&bigger, m->entry[i].key, m->entry[i].nbytes) = m->entry[i];
    *m = bigger;
}

Arena *memo_arena(Ctx *ctx)
{
    Memo *m = &ctx->memo;
    if (!m->a)
        m->a = arena_new(ctx);
    if (!m->a)
        fail(ctx, TN_FAIL, "out of memory");
    return m->a;
}

void *memo_find(const Ctx *ctx, const void *key, size_t nbytes)
{
    return ctx->memo.cap ? slot(&ctx->memo, key, nbytes)->what : NULL;
}

void memo_put(Ctx *ctx, const void *key, size_t nbytes, void *what)
{
    Memo *m = &ctx->memo;
    void *copy = memcpy(arena_alloc(memo_arena(ctx), nbytes), key, nbytes);
    if (2 * m->count >= m->cap)
        grow(m);
    struct Remembered *x = slot(m, key, nbytes);
    CHECK(!x->key);
    *x = (struct Remembered){copy, nbytes, what};
    m->count++;
}

void ctx_end(Ctx *ctx)
{
    arena_free(ctx->memo.a);
    ctx->memo = (Memo){0};
}
