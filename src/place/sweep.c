/* Greedy placement in the order of starts (or of ends, mirrored). The buffers alive form one list
 * by address; a buffer that starts goes into a gap of the list, one that ends leaves it. The list
 * is kept in blocks that know their widest gap, so finding a gap, entering and leaving cost the
 * number of blocks plus the length of one: about the square root of the number of buffers alive. */
#include "place.h"

#include <string.h>

enum { BLOCK = 128 };

typedef struct Live {
    int64_t lo, hi;
    int i;
} Live;

typedef struct LiveBlock {
    struct LiveBlock *prev, *next;
    int n;
    int64_t room; /* the widest gap right below one of live[] */
    Live live[BLOCK];
} LiveBlock;

typedef struct PlaceSweep {
    Arena *tmp;
    const PlaceBuf *b;
    LiveBlock *first, *last, *spare;
    LiveBlock **home; /* of a live buffer */
    int nblock;
} PlaceSweep;

/* ---- blocks ---- */

static int64_t gap_below(const LiveBlock *k, int j)
{
    int64_t top = j ? k->live[j - 1].hi : k->prev ? k->prev->live[k->prev->n - 1].hi : 0;
    return k->live[j].lo - top;
}

static void measure(LiveBlock *k)
{
    if (!k)
        return;
    k->room = 0;
    for (int j = 0; j < k->n; j++) {
        int64_t gap = gap_below(k, j);
        k->room = MAX(k->room, gap);
    }
}

/* A new empty block after k; the first one if k is NULL. */
static LiveBlock *add_block(PlaceSweep *s, LiveBlock *k)
{
    LiveBlock *new = s->spare;
    if (new)
        s->spare = new->next;
    else
        new = NEW(s->tmp, LiveBlock);
    *new = (LiveBlock){.prev = k, .next = k ? k->next : s->first};
    *(k ? &k->next : &s->first) = new;
    *(new->next ? &new->next->prev : &s->last) = new;
    s->nblock++;
    return new;
}

static void drop_block(PlaceSweep *s, LiveBlock *k)
{
    *(k->prev ? &k->prev->next : &s->first) = k->next;
    *(k->next ? &k->next->prev : &s->last) = k->prev;
    k->next = s->spare;
    s->spare = k;
    s->nblock--;
}

static void leave(PlaceSweep *s, int i)
{
    LiveBlock *k = s->home[i], *next = k->next;
    int j = 0;
    while (k->live[j].i != i)
        j++;
    memmove(k->live + j, k->live + j + 1, sizeof(Live) * (size_t)(--k->n - j));
    if (k->n)
        measure(k);
    else
        drop_block(s, k);
    measure(next);
}

/* Moves the upper half of a full block to a new one. */
static void halve(PlaceSweep *s, LiveBlock *k)
{
    LiveBlock *up = add_block(s, k);
    up->n = BLOCK / 2;
    k->n -= up->n;
    memcpy(up->live, k->live + k->n, sizeof(Live) * (size_t)up->n);
    for (int j = 0; j < up->n; j++)
        s->home[up->live[j].i] = up;
}

/* Puts x in front of live[j] of block k. */
static void enter(PlaceSweep *s, LiveBlock *k, int j, Live x)
{
    if (!k)
        k = add_block(s, NULL);
    if (k->n == BLOCK) {
        halve(s, k);
        if (j > k->n) {
            j -= k->n;
            k = k->next;
        }
    }
    memmove(k->live + j + 1, k->live + j, sizeof(Live) * (size_t)(k->n++ - j));
    k->live[j] = x;
    s->home[x.i] = k;
    measure(k->prev);
    measure(k);
    measure(k->next);
}

/* ---- the sweep ---- */

/* The block for nbytes: the first with room, or the one with least room enough; NULL: none. */
static LiveBlock *find_block(const PlaceSweep *s, int64_t nbytes, Fit fit)
{
    LiveBlock *best = NULL;
    for (LiveBlock *k = s->first; k; k = k->next) {
        if (k->room < nbytes || (best && k->room >= best->room))
            continue;
        best = k;
        if (fit == FIT_FIRST)
            break;
    }
    return best;
}

/* Which gap of block k: the lowest that takes nbytes, or the tightest. */
static int find_slot(const LiveBlock *k, int64_t nbytes, Fit fit)
{
    int best = -1;
    int64_t room = INT64_MAX;
    for (int j = 0; j < k->n; j++) {
        int64_t gap = gap_below(k, j);
        if (gap < nbytes || gap >= room)
            continue;
        best = j;
        room = gap;
        if (fit == FIT_FIRST)
            break;
    }
    return best;
}

/* Gives buffer i an address. */
static int64_t put(PlaceSweep *s, int i, Fit fit)
{
    int64_t nbytes = s->b[i].nbytes;
    LiveBlock *k = find_block(s, nbytes, fit), *last = s->last;
    if (!k) {
        int64_t top = last ? last->live[last->n - 1].hi : 0;
        enter(s, last, last ? last->n : 0, (Live){top, top + nbytes, i});
        return top;
    }
    int j = find_slot(k, nbytes, fit);
    int64_t lo = k->live[j].lo - gap_below(k, j);
    enter(s, k, j, (Live){lo, lo + nbytes, i});
    return lo;
}

/* Buffers by start and by end, or by the mirrored times; of those that start together, the longest
 * first. */
static void fill_events(const Leaf *leaf, bool mirror, Key *start, Key *end)
{
    int64_t n = leaf->nsection + 1;
    for (int i = 0; i < leaf->n; i++) {
        int64_t s = leaf->b[i].start, e = leaf->b[i].end, life = e - s;
        start[i] = (Key){(mirror ? n - e : s) * n + n - life, i};
        end[i] = (Key){mirror ? n - s : e, i};
    }
    place_sort(start, leaf->n);
    place_sort(end, leaf->n);
}

int64_t place_sweep(Arena *tmp, Leaf *leaf, bool mirror, Fit fit, int64_t ceiling, int64_t *offset,
                    int64_t *pairs)
{
    PlaceSweep s = {.tmp = tmp, .b = leaf->b, .home = NEWN(tmp, LiveBlock *, leaf->n)};
    Key *start = NEWN(tmp, Key, leaf->n), *end = NEWN(tmp, Key, leaf->n);
    int64_t peak = 0, n = leaf->nsection + 1;
    fill_events(leaf, mirror, start, end);
    *pairs = 0;
    for (int k = 0, gone = 0; k < leaf->n; k++) {
        int i = start[k].i;
        for (; end[gone].at <= start[k].at / n; gone++)
            leave(&s, end[gone].i);
        *pairs += k - gone;
        leaf->steps += s.nblock + BLOCK;
        offset[i] = put(&s, i, fit);
        if (offset[i] + leaf->b[i].nbytes >= ceiling)
            return -1;
        peak = MAX(peak, offset[i] + leaf->b[i].nbytes);
    }
    return peak;
}
