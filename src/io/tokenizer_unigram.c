/* Unigram (Kudo 2018): of all segmentations of a text into tokens the one with the largest sum of
 * scores, by Viterbi over a trie of the tokens. A character that is no token scores 10 below the
 * worst token; consecutive unknown characters become one token.
 *
 * A word is cut where no token in the text crosses: every segmentation passes through that place,
 * so the best one up to it is part of the best one of all. The sum goes on across cuts, because its
 * rounding decides between segmentations that are otherwise equal.
 *
 * The trie is one hash table of (node, byte): a node is a slot + 1, the root is 0. */
#include "tokenizer.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { LEAF = 1, INNER = 2, PENALTY = 10 };

struct Trie {
    struct TrieSlot {
        uint32_t parent, token; /* token: index in the vocabulary */
        uint8_t byte, kind;
        bool used;
    } * slot;
    uint64_t mask;
    const double *score; /* by index */
    double unknown;
};

/* ---- the trie ---- */

static uint32_t find_child(const Trie *t, uint32_t node, unsigned char byte)
{
    uint64_t h = ((uint64_t)node << 8 | byte) * 0x9e3779b97f4a7c15u;
    for (h = (h ^ h >> 32) & t->mask; t->slot[h].used; h = (h + 1) & t->mask)
        if (t->slot[h].parent == node && t->slot[h].byte == byte)
            break;
    return (uint32_t)h + 1;
}

static void add(Trie *t, const VocabEntry *x, uint32_t index)
{
    uint32_t node = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t child = find_child(t, node, (unsigned char)x->bytes[i]);
        struct TrieSlot *s = &t->slot[child - 1];
        s->parent = node;
        s->byte = (unsigned char)x->bytes[i];
        s->used = true;
        if (node)
            t->slot[node - 1].kind |= INNER;
        node = child;
    }
    t->slot[node - 1].kind |= LEAF;
    t->slot[node - 1].token = index;
}

static int by_bytes(const void *x, const void *y)
{
    const VocabEntry *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, MIN(a->n, b->n));
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

/* In sorted order each token adds a node for each byte that it does not share with the one before.
 */
static size_t count_nodes(Arena *tmp, int count, const VocabEntry *token)
{
    size_t nodes = 0;
    VocabEntry *sorted = NEWN(tmp, VocabEntry, count);
    memcpy(sorted, token, sizeof *sorted * (size_t)count);
    qsort(sorted, (size_t)count, sizeof *sorted, by_bytes);
    for (int i = 0; i < count; i++) {
        uint32_t same = 0, most = i ? MIN(sorted[i].n, sorted[i - 1].n) : 0;
        while (same < most && sorted[i].bytes[same] == sorted[i - 1].bytes[same])
            same++;
        nodes += sorted[i].n - same;
    }
    return nodes;
}

Trie *trie_new(Arena *a, Arena *tmp, int count, const VocabEntry *token, const double *score)
{
    size_t nodes = count_nodes(tmp, count, token), size = 16;
    Trie *t = NEW(a, Trie);
    double *own = NEWN(a, double, count);
    double least = DBL_MAX;
    for (int i = 0; i < count; i++)
        least = MIN(least, score[i]);
    while (size < nodes * 2)
        size *= 2;
    memcpy(own, score, sizeof *own * (size_t)count);
    *t = (Trie){NEWN(a, struct TrieSlot, size), size - 1, own, least - PENALTY};
    for (int i = 0; i < count; i++)
        add(t, &token[i], (uint32_t)i);
    return t;
}

/* ---- the best path ---- */

typedef struct Best {
    double score;   /* of the best path to here */
    uint32_t from;  /* where its last token begins */
    uint32_t token; /* its index; NO_TOKEN: unknown */
    bool reached;
} Best;

struct Unigram {
    Arena *a;
    const Tokenizer *t;
    Cache *cache;
    size_t cap;  /* bytes of a piece that there is room for */
    size_t high; /* of best, what is in use */
    Best *best;  /* of a piece, by place */
    uint32_t *order;
    double score; /* of the word so far */
    uint32_t *id; /* of all pieces of a call */
    size_t count, room;
};

Unigram *unigram_new(Arena *a, const Tokenizer *t)
{
    Unigram *u = NEW(a, Unigram);
    *u = (Unigram){.a = a, .t = t, .cache = cache_new(a)};
    return u;
}

static void reserve(Unigram *u, size_t n)
{
    if (n + 1 > u->cap) {
        u->cap = MAX(2 * u->cap, MAX(n + 1, (size_t)256));
        u->best = NEWN(u->a, Best, u->cap);
        u->order = NEWN(u->a, uint32_t, u->cap);
    }
    if (u->count + n > u->room) {
        uint32_t *old = u->id;
        u->room = MAX(2 * u->room, MAX(u->count + n, (size_t)256));
        u->id = NEWN(u->a, uint32_t, u->room);
        if (u->count)
            memcpy(u->id, old, u->count * sizeof *old);
    }
}

static void offer(Unigram *u, size_t at, double score, size_t from, uint32_t token)
{
    while (u->high < at)
        u->best[++u->high].reached = false;
    Best *to = &u->best[at];
    if (!to->reached || score > to->score)
        *to = (Best){score, (uint32_t)from, token, true};
}

/* The token that a whole text is: its index, or NO_TOKEN. */
static uint32_t find_whole(const Trie *t, const char *s, size_t n)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        node = find_child(t, node, (unsigned char)s[i]);
        if (!t->slot[node - 1].used)
            return NO_TOKEN;
    }
    return t->slot[node - 1].kind & LEAF ? t->slot[node - 1].token : NO_TOKEN;
}

static void put(Unigram *u, uint32_t id)
{
    reserve(u, 1);
    u->id[u->count++] = id;
}

/* Puts unknown text: as one token where it is one, else as bytes or as the unknown token. */
static void put_unknown(Unigram *u, const char *s, size_t n)
{
    const Tokenizer *t = u->t;
    uint32_t token = find_whole(t->trie, s, n);
    bool bytes = t->byte_fallback && token == NO_TOKEN;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = t->symbol[(unsigned char)s[i]] != NO_TOKEN;
    if (bytes) {
        for (size_t i = 0; i < n; i++)
            put(u, t->symbol[(unsigned char)s[i]]);
        return;
    }
    if (token == NO_TOKEN && t->unk == NO_TOKEN)
        fail(t->ctx, TN_FAIL, "%s: the text has \"%.*s\", which has no token, and no token is unk",
             t->path, (int)MIN(n, (size_t)40), s);
    put(u, token == NO_TOKEN ? t->unk : token);
}

/* Whether the best path to a place ends in what counts as unknown. */
static bool unknown(const Unigram *u, const Best *b)
{
    return b->token == NO_TOKEN || b->token == u->t->unk;
}

static void put_piece(Unigram *u, const char *s, size_t n)
{
    size_t count = 0;
    if (n > MAX_WORD)
        fail(u->t->ctx, TN_FAIL, "%s: expected words of at most %d bytes, found one of %zu",
             u->t->path, MAX_WORD, n);
    for (size_t at = n; at; at = u->best[at].from)
        u->order[count++] = (uint32_t)at;
    for (size_t at = 0; count; at = u->order[--count]) {
        size_t stop = u->order[count - 1];
        if (!unknown(u, &u->best[stop])) {
            put(u, u->best[stop].token);
            continue;
        }
        while (count > 1 && unknown(u, &u->best[u->order[count - 2]]))
            count--;
        stop = u->order[count - 1];
        put_unknown(u, s + at, stop - at);
    }
    u->score = u->best[n].score;
}

/* Offers all tokens at s[at]; returns where the longest that may stand there ends, n + 1 where more
 * text must say. */
static size_t offer_all(Unigram *u, const char *s, size_t n, size_t at, bool end)
{
    const Trie *t = u->t->trie;
    double before = u->best[at].score;
    size_t letter = at + (size_t)char_bytes(s[at]), i = at, most = letter;
    bool single = false;
    uint32_t node = 0;
    while (i < n) {
        node = find_child(t, node, (unsigned char)s[i]);
        const struct TrieSlot *x = &t->slot[node - 1];
        if (!x->used)
            break;
        i++;
        if (x->kind & LEAF) {
            offer(u, i, before + t->score[x->token], at, x->token);
            single = single || i == letter;
            most = MAX(most, i);
        }
        if (!(x->kind & INNER))
            break;
        if (i == n && !end)
            return n + 1;
    }
    if (!single)
        offer(u, letter, before + t->unknown, at, NO_TOKEN);
    return most;
}

/* Pieces as far as the text is enough to say; returns their bytes. */
static size_t encode(Unigram *u, const char *text, size_t n, bool end)
{
    size_t from = 0, at = 0, most = 0;
    while (at < n) {
        if (at == from) {
            reserve(u, n - from);
            u->best[0] = (Best){.score = u->score, .reached = true};
            u->high = 0;
            most = at;
        }
        size_t letter = (size_t)char_bytes(text[at]);
        size_t stop = from + offer_all(u, text + from, n - from, at - from, end);
        if (stop > n)
            return from;
        most = MAX(most, stop);
        at += letter;
        bool cut = at == n || (at == most && !unknown(u, &u->best[at - from]));
        if (cut && (at < n || end)) {
            put_piece(u, text + from, at - from);
            from = at;
        }
    }
    return from;
}

size_t unigram_encode(Unigram *u, const char *text, size_t n, bool begin, bool end,
                      const uint32_t **id, size_t *count)
{
    uint64_t hash = begin && end ? hash_bytes(text, n, 0) : 0;
    if (begin && end && (*count = cache_find(u->cache, hash, text, n, id)) > 0)
        return n;
    if (begin)
        u->score = 0;
    u->count = 0;
    size_t done = encode(u, text, n, end);
    if (begin && end && n)
        cache_put(u->cache, hash, text, n, u->id, u->count);
    *id = u->id;
    *count = u->count;
    return done;
}
