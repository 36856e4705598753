/* Byte-pair encoding of one word (Sennrich et al. 2016): among neighbours that are a merge the one
 * of least rank is joined, the leftmost first, until none is left.
 *
 * Symbols are a linked list, candidates a heap by (rank, place), so a word of n bytes takes O(n log
 * n). An entry whose symbols have changed since is known by its rank, which is that of one pair
 * only, and skipped. Of each place at most the pairs it ever began are pushed: one at first and two
 * per merge, which pops one, so that 2n entries are room enough.
 *
 * Short words are remembered in a table of fixed size, each in the one place its hash gives; a
 * newer one takes it over. */
#include "tokenizer.h"

#include <string.h>

enum { CACHE_WORDS = 1 << 15, CACHE_BYTES = 30, CACHE_IDS = 14 };
enum { LAST = -1, GONE = -2 };

typedef struct Symbol {
    uint32_t id;
    int prev, next; /* LAST; next GONE: joined to the symbol before */
} Symbol;

typedef struct Cached {
    uint64_t hash;
    uint8_t n, nid; /* n 0: empty */
    char word[CACHE_BYTES];
    uint32_t id[CACHE_IDS];
} Cached;

struct Bpe {
    Arena *a;
    const Tokenizer *t;
    Cached *cache;
    size_t cap; /* bytes of a word that there is room for */
    Symbol *symbol;
    uint64_t *heap; /* rank << 32 | place */
    uint32_t *id;
    size_t nheap;
};

Bpe *bpe_new(Arena *a, const Tokenizer *t)
{
    Bpe *b = NEW(a, Bpe);
    *b = (Bpe){.a = a, .t = t, .cache = NEWN(a, Cached, CACHE_WORDS)};
    return b;
}

/* ---- the heap ---- */

static void push(Bpe *b, uint64_t x)
{
    size_t i = b->nheap++;
    for (; i && b->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = x;
}

static uint64_t pop(Bpe *b)
{
    uint64_t top = b->heap[0], x = b->heap[--b->nheap];
    size_t i = 0;
    for (size_t k = 1; k < b->nheap; i = k, k = 2 * k + 1) {
        k += k + 1 < b->nheap && b->heap[k + 1] < b->heap[k];
        if (b->heap[k] >= x)
            break;
        b->heap[i] = b->heap[k];
    }
    b->heap[i] = x;
    return top;
}

/* ---- merging ---- */

/* The merge of a symbol with the next, or NULL. */
static const Merge *find_merge(const Bpe *b, int i)
{
    const Symbol *s = &b->symbol[i];
    if (s->next < 0)
        return NULL;
    const Merge *m = &b->t->merge[merge_slot(b->t, (uint64_t)s->id << 32 | b->symbol[s->next].id)];
    return m->id == NO_TOKEN ? NULL : m;
}

static void offer(Bpe *b, int i)
{
    const Merge *m = find_merge(b, i);
    if (m)
        push(b, (uint64_t)m->rank << 32 | (uint64_t)i);
}

static void join(Bpe *b, int i, uint32_t id)
{
    Symbol *s = &b->symbol[i], *right = &b->symbol[s->next];
    s->id = id;
    s->next = right->next;
    if (right->next >= 0)
        b->symbol[right->next].prev = i;
    right->next = GONE;
    if (s->prev >= 0)
        offer(b, s->prev);
    offer(b, i);
}

static void reserve(Bpe *b, size_t n)
{
    if (n <= b->cap)
        return;
    b->cap = MAX(2 * b->cap, MAX(n, (size_t)256));
    b->symbol = NEWN(b->a, Symbol, b->cap);
    b->heap = NEWN(b->a, uint64_t, 2 * b->cap);
    b->id = NEWN(b->a, uint32_t, b->cap);
}

static size_t merge(Bpe *b, const char *word, size_t n)
{
    size_t count = 0;
    reserve(b, n);
    b->nheap = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)word[i];
        uint32_t id = b->t->symbol[byte];
        if (id == NO_TOKEN)
            fail(b->t->ctx, TN_FAIL, "%s: the text has byte %d, which has no token", b->t->path,
                 byte);
        b->symbol[i] = (Symbol){id, (int)i - 1, i + 1 < n ? (int)i + 1 : LAST};
    }
    for (size_t i = 0; i + 1 < n; i++)
        offer(b, (int)i);
    while (b->nheap) {
        uint64_t top = pop(b);
        int i = (int)(uint32_t)top;
        const Merge *m = find_merge(b, i);
        if (m && m->rank == top >> 32)
            join(b, i, m->id);
    }
    for (int i = 0; i >= 0; i = b->symbol[i].next)
        b->id[count++] = b->symbol[i].id;
    return count;
}

/* ---- words ---- */

static void remember(Cached *c, uint64_t hash, const char *word, size_t n, const uint32_t *id,
                     size_t nid)
{
    if (n > CACHE_BYTES || nid > CACHE_IDS)
        return;
    c->hash = hash;
    c->n = (uint8_t)n;
    c->nid = (uint8_t)nid;
    memcpy(c->word, word, n);
    memcpy(c->id, id, nid * sizeof *id);
}

size_t bpe_encode(Bpe *b, const char *word, size_t n, const uint32_t **id)
{
    const Tokenizer *t = b->t;
    if (t->whole) {
        const VocabEntry *x = &t->whole[whole_slot(t, word, n)];
        *id = &x->id;
        if (x->bytes)
            return 1;
    }
    uint64_t hash = hash_bytes(word, n, 0);
    Cached *c = &b->cache[hash & (CACHE_WORDS - 1)];
    if (c->hash == hash && c->n == n && !memcmp(c->word, word, n)) {
        *id = c->id;
        return c->nid;
    }
    size_t count = merge(b, word, n);
    remember(c, hash, word, n, b->id, count);
    *id = b->id;
    return count;
}
