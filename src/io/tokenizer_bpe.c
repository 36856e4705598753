/* Byte-pair encoding of one word (Sennrich et al. 2016): of the neighbouring pairs that are a
 * merge, the one of least rank is joined, the leftmost first, until none is left.
 *
 * Symbols are a linked list, candidates a heap by (rank, place), so a word of n bytes takes O(n log
 * n). A heap entry whose symbols have changed is recognised by its rank, which belongs to one pair
 * only, and skipped. One entry is pushed for each place at first and two for each merge, which pops
 * one, so 2n entries suffice.
 *
 * Symbols are bytes, or characters: characters that are no token become tokens of their bytes
 * (byte_fallback) or the unknown one. A word of characters may be the whole text, so it is cut
 * where no merge can join the two sides: where no merge has a left part that ends in the character
 * before and a right part that begins with the one after. The merges of one side then do not depend
 * on the other, and both give the ids of the whole. A token that stands for a byte or the unknown
 * is part of no merge (if one is, nothing is cut). The pairs of characters that merges join are
 * bits of a hash table; if two pairs share a bit, only a cut is missed. */
#include "tokenizer.h"

#include <string.h>

enum { LAST = -1, GONE = -2 };

typedef struct Symbol {
    uint32_t id;
    int prev, next; /* LAST; next GONE: joined to the symbol before */
} Symbol;

struct Bpe {
    Arena *a;
    const Tokenizer *t;
    Cache *cache;
    size_t cap; /* bytes of a word that there is room for */
    Symbol *symbol;
    uint64_t *heap; /* rank << 32 | place */
    size_t nheap;
    uint32_t *id; /* of a call's pieces */
    size_t count, room;
};

Bpe *bpe_new(Arena *a, const Tokenizer *t)
{
    Bpe *b = NEW(a, Bpe);
    *b = (Bpe){.a = a, .t = t, .cache = cache_new(a)};
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
    const Merge *m =
        &b->t->bpe.merge[merge_slot(b->t, (uint64_t)s->id << 32 | b->symbol[s->next].id)];
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
}

static void put(Bpe *b, const uint32_t *id, size_t n)
{
    if (b->count + n > b->room) {
        uint32_t *old = b->id;
        b->room = MAX(2 * b->room, MAX(b->count + n, (size_t)256));
        b->id = NEWN(b->a, uint32_t, b->room);
        if (b->count)
            memcpy(b->id, old, b->count * sizeof *old);
    }
    memcpy(b->id + b->count, id, n * sizeof *id);
    b->count += n;
}

/* Merges n symbols and puts what is left. */
static void merge(Bpe *b, int n)
{
    b->nheap = 0;
    for (int i = 0; i < n; i++) {
        b->symbol[i].prev = i - 1;
        b->symbol[i].next = i + 1 < n ? i + 1 : LAST;
    }
    for (int i = 0; i + 1 < n; i++)
        offer(b, i);
    while (b->nheap) {
        uint64_t top = pop(b);
        int i = (int)(uint32_t)top;
        const Merge *m = find_merge(b, i);
        if (m && m->rank == top >> 32)
            join(b, i, m->id);
    }
    for (int i = n ? 0 : LAST; i >= 0; i = b->symbol[i].next)
        put(b, &b->symbol[i].id, 1);
}

/* ---- symbols ---- */

static uint32_t find_letter(const Tokenizer *t, uint32_t c)
{
    const uint32_t *page = t->letter[c >> 8];
    return page ? page[c & 0xff] : NO_TOKEN;
}

typedef enum { LETTER, BYTES, UNKNOWN } Kind;

static Kind kind_of(const Tokenizer *t, uint32_t c, const char *s, int n)
{
    bool bytes = t->byte_fallback;
    if (find_letter(t, c) != NO_TOKEN)
        return LETTER;
    for (int i = 0; i < n && bytes; i++)
        bytes = t->symbol[(unsigned char)s[i]] != NO_TOKEN;
    return bytes ? BYTES : UNKNOWN;
}

_Noreturn static void fail_unknown(const Tokenizer *t, uint32_t c, const char *s, int n)
{
    if (t->byte_level)
        fail(t->ctx, TN_FAIL, "%s: the text has byte %u, which has no token", t->path, c);
    fail(t->ctx, TN_FAIL, "%s: the text has U+%04X \"%.*s\", which has no token", t->path, c, n, s);
}

static int split_bytes(const Bpe *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)s[i];
        b->symbol[i].id = b->t->symbol[byte];
        if (b->t->symbol[byte] == NO_TOKEN)
            fail_unknown(b->t, byte, s + i, 1);
    }
    return (int)n;
}

/* The unknown token comes before the next letter, or at the end, where it is one of several; so it
 * does in Hugging Face, even after the bytes of other characters. */
static int split_letters(const Bpe *b, const char *s, size_t n)
{
    const Tokenizer *t = b->t;
    int count = 0, bytes;
    bool waits = false;
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        uint32_t c = char_at(s + at, &bytes);
        Kind kind = kind_of(t, c, s + at, bytes);
        if (kind == UNKNOWN && t->unk == NO_TOKEN)
            fail_unknown(t, c, s + at, bytes);
        if (waits && (kind == LETTER || (kind == UNKNOWN && !t->fuse_unk)))
            b->symbol[count++].id = t->unk;
        waits = kind == UNKNOWN || (waits && kind == BYTES);
        if (kind == LETTER)
            b->symbol[count++].id = find_letter(t, c);
        for (int i = 0; i < bytes && kind == BYTES; i++)
            b->symbol[count++].id = t->symbol[(unsigned char)s[at + (size_t)i]];
    }
    if (waits)
        b->symbol[count++].id = t->unk;
    return count;
}

/* ---- cuts ---- */

static uint64_t joint_bit(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

void bpe_fill_joint(Tokenizer *t, Arena *a, int count, const char *const *left,
                    const char *const *right)
{
    int bytes;
    uint64_t size = 64;
    while (size < 64 * (uint64_t)count)
        size *= 2;
    t->bpe.joint = NEWN(a, uint64_t, size / 64);
    t->bpe.joint_mask = size - 1;
    for (int i = 0; i < count; i++) {
        uint32_t before = char_at(left[i] + char_before(left[i], strlen(left[i])), &bytes);
        uint64_t bit = joint_bit(before, char_at(right[i], &bytes)) & t->bpe.joint_mask;
        t->bpe.joint[bit / 64] |= (uint64_t)1 << bit % 64;
    }
}

static bool joins(const Tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t bit = joint_bit(left, right) & t->bpe.joint_mask;
    return t->bpe.joint[bit / 64] >> bit % 64 & 1;
}

/* The state of the characters before, by which cuts are found. */
typedef struct Before {
    uint32_t c;
    Kind kind;
    bool waits; /* for a letter: the unknown token */
} Before;

/* Whether the text may be cut before the character c, which becomes the one before. */
static bool cuts(const Tokenizer *t, Before *x, uint32_t c, Kind kind)
{
    bool cut = x->waits ? kind == LETTER || (kind == UNKNOWN && !t->fuse_unk)
                        : x->kind != LETTER || kind != LETTER || !joins(t, x->c, c);
    x->waits = kind == UNKNOWN || (x->waits && kind == BYTES);
    x->c = c;
    x->kind = kind;
    return cut && !t->bpe.no_cuts;
}

/* ---- words ---- */

/* Puts the ids of a piece. */
static void encode(Bpe *b, const char *s, size_t n)
{
    const uint32_t *id;
    uint64_t hash = hash_bytes(s, n, 0);
    size_t from = b->count, found = cache_find(b->cache, hash, s, n, &id);
    if (n > MAX_WORD)
        fail(b->t->ctx, TN_FAIL, "%s: expected words of at most %d bytes, found one of %zu",
             b->t->path, MAX_WORD, n);
    if (found) {
        put(b, id, found);
        return;
    }
    reserve(b, n + 1);
    merge(b, b->t->byte_level ? split_bytes(b, s, n) : split_letters(b, s, n));
    cache_put(b->cache, hash, s, n, b->id + from, b->count - from);
}

static size_t encode_pieces(Bpe *b, const char *text, size_t n, bool end)
{
    int bytes;
    size_t from = 0;
    Before before = {0};
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        uint32_t c = char_at(text + at, &bytes);
        bool cut = cuts(b->t, &before, c, kind_of(b->t, c, text + at, bytes));
        if (!cut || at == from)
            continue;
        encode(b, text + from, at - from);
        from = at;
    }
    if (end && from < n)
        encode(b, text + from, n - from);
    return end ? n : from;
}

size_t bpe_encode(Bpe *b, const char *text, size_t n, bool begin, bool end, const uint32_t **id,
                  size_t *count)
{
    const Tokenizer *t = b->t;
    b->count = *count = 0;
    if ((t->byte_level || (t->bpe.whole && begin && n <= t->longest)) && !end)
        return 0;
    if (t->bpe.whole && begin && end) {
        const VocabEntry *x = &t->bpe.whole[whole_slot(t, text, n)];
        *id = &x->id;
        *count = x->bytes != NULL;
        if (*count)
            return n;
    }
    if (t->byte_level)
        encode(b, text, n);
    size_t done = t->byte_level ? n : encode_pieces(b, text, n, end);
    *id = b->id;
    *count = b->count;
    return done;
}
