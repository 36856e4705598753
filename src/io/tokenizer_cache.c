/* A cache of the ids of short words: a table of fixed size, one place for each hash, where a newer
 * word replaces an older one. */
#include "tokenizer.h"

#include <string.h>

enum { CACHE_WORDS = 1 << 15, CACHE_BYTES = 30, CACHE_IDS = 14 };

struct Cache {
    struct Cached {
        uint64_t hash;
        uint8_t n, nid; /* n 0: empty */
        char word[CACHE_BYTES];
        uint32_t id[CACHE_IDS];
    } word[CACHE_WORDS];
};

Cache *cache_new(Arena *a)
{
    return NEW(a, Cache);
}

size_t cache_find(const Cache *c, uint64_t hash, const char *word, size_t n, const uint32_t **id)
{
    const struct Cached *x = &c->word[hash & (CACHE_WORDS - 1)];
    if (x->hash != hash || x->n != n || memcmp(x->word, word, n))
        return 0;
    *id = x->id;
    return x->nid;
}

void cache_put(Cache *c, uint64_t hash, const char *word, size_t n, const uint32_t *id, size_t nid)
{
    struct Cached *x = &c->word[hash & (CACHE_WORDS - 1)];
    if (n > CACHE_BYTES || nid > CACHE_IDS)
        return;
    x->hash = hash;
    x->n = (uint8_t)n;
    x->nid = (uint8_t)nid;
    memcpy(x->word, word, n);
    memcpy(x->id, id, nid * sizeof *id);
}
